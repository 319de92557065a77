//! Texts in chunks: large parts of a response are shared with their source, not copied.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// A text as a sequence of chunks of UTF-8.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Chunks {
    chunks: Vec<Bytes>,
    /// Bytes of the chunks that stay in memory even without this text.
    kept_elsewhere: usize,
}

/// The large parts of a text while it is written, each with its place.
#[derive(Debug, Default)]
pub struct Splices(Vec<(usize, Bytes)>);

/// A shared text as the owner of its bytes.
struct SharedText(Arc<String>);

/// Bytes that hold a guard until the last of them is dropped.
struct HoldingBytes<G> {
    bytes: Bytes,
    _guard: G,
}

/// Parts from this size on are shared, in bytes: for smaller parts a copy is cheaper than a
/// separate write.
const SHARED: usize = 4 << 10;

impl Chunks {
    fn of(chunks: Vec<Bytes>) -> Self {
        Self { chunks, kept_elsewhere: 0 }
    }

    /// Bytes of the text.
    pub fn size(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    /// Returns the bytes of the text that stay in memory even without it.
    pub fn kept_elsewhere(&self) -> usize {
        self.kept_elsewhere
    }

    /// Returns the text, with the number of its bytes that stay in memory even without it.
    pub fn with_kept_elsewhere(self, kept_elsewhere: usize) -> Self {
        Self { kept_elsewhere, ..self }
    }

    /// Returns the text, whose last chunk holds `guard` until all of its bytes are dropped.
    pub fn holding<G: Send + 'static>(mut self, guard: G) -> Self {
        if let Some(last) = self.chunks.pop() {
            self.chunks.push(holding(last, guard));
        }
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.chunks.iter()
    }

    /// Returns the text between two others. Short texts become one chunk.
    pub fn between(mut self, before: &str, after: &str) -> Self {
        match self.chunks.as_slice() {
            [] => [before, after].concat().into(),
            [only] if only.len() < SHARED => {
                let text = [before.as_bytes(), only, after.as_bytes()].concat();
                Self { chunks: vec![text.into()], ..self }
            }
            _ => {
                self.chunks.insert(0, before.to_owned().into());
                self.chunks.push(after.to_owned().into());
                self
            }
        }
    }

    /// Returns the text in one piece.
    pub fn into_text(self) -> String {
        let mut chunks = self.chunks;
        let bytes = match chunks.pop() {
            Some(only) if chunks.is_empty() => only.into(),
            last => chunks.into_iter().chain(last).fold(Vec::new(), |mut all, chunk| {
                all.extend_from_slice(&chunk);
                all
            }),
        };
        // Texts are cut at the borders of characters only.
        String::from_utf8(bytes).unwrap_or_default()
    }
}

impl IntoIterator for Chunks {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.chunks.into_iter()
    }
}

impl From<String> for Chunks {
    fn from(text: String) -> Self {
        Self::of(vec![text.into()])
    }
}

impl From<&'static str> for Chunks {
    fn from(text: &'static str) -> Self {
        Self::of(vec![Bytes::from_static(text.as_bytes())])
    }
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunks({} bytes in {})", self.size(), self.chunks.len())
    }
}

impl Splices {
    /// Adds a part at the end of the text so far. A small part is copied; for a large part, `share`
    /// returns the bytes.
    pub fn add(&mut self, out: &mut String, part: &str, share: impl FnOnce() -> Bytes) {
        if part.len() >= SHARED {
            self.0.push((out.len(), share()));
        } else {
            out.push_str(part);
        }
    }

    /// Adds a part that is UTF-8.
    pub fn add_bytes(&mut self, out: &mut String, part: Bytes) {
        if part.len() >= SHARED {
            self.0.push((out.len(), part));
        } else if let Ok(text) = std::str::from_utf8(&part) {
            out.push_str(text);
        }
    }

    /// Returns the bytes of the shared parts.
    pub fn size(&self) -> usize {
        self.0.iter().map(|(_, part)| part.len()).sum()
    }

    /// Returns the written text with the parts in their places.
    pub fn into_chunks(self, out: String) -> Chunks {
        if self.0.is_empty() {
            return out.into();
        }
        let text = Bytes::from(out);
        let mut chunks = Vec::with_capacity(2 * self.0.len() + 1);
        let mut written = 0;
        for (at, part) in self.0 {
            chunks.extend([text.slice(written..at), part]);
            written = at;
        }
        chunks.push(text.slice(written..));
        chunks.retain(|chunk| !chunk.is_empty());
        Chunks::of(chunks)
    }
}

/// Returns the bytes of a shared text.
pub fn shared(text: &Arc<String>) -> Bytes {
    Bytes::from_owner(SharedText(text.clone()))
}

/// Returns the bytes, which hold `guard` until the last of them is dropped.
pub fn holding<G: Send + 'static>(bytes: Bytes, guard: G) -> Bytes {
    Bytes::from_owner(HoldingBytes { bytes, _guard: guard })
}

impl<G> AsRef<[u8]> for HoldingBytes<G> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for SharedText {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_are_the_text_with_its_parts_in_their_places(
            parts in prop::collection::vec(("[a-é]{0,3}", 0usize..3), 0..6),
        ) {
            let mut out = String::new();
            let mut expected = String::new();
            let mut splices = Splices::default();
            for (text, size) in parts {
                out.push_str(&text);
                // Below the border, at it, and above.
                let part = "x".repeat(SHARED - 1 + size);
                splices.add(&mut out, &part, || part.clone().into());
                expected.extend([text, part]);
            }
            let chunks = splices.into_chunks(out).between("(", ")");
            prop_assert_eq!(chunks.size(), expected.len() + 2);
            let guard = Arc::new(());
            let mut held: Vec<Bytes> = chunks.clone().holding(guard.clone()).into_iter().collect();
            let last = held.pop().map(|mut last| last.split_off(last.len() - 1));
            drop(held);
            prop_assert_eq!(Arc::strong_count(&guard), 2, "until the last byte is dropped");
            drop(last);
            prop_assert_eq!(Arc::strong_count(&guard), 1);
            prop_assert_eq!(chunks.into_text(), format!("({expected})"));
        }
    }
}
