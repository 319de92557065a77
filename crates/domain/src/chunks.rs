//! Texts in chunks: large parts of a response are shared with their source, not copied.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// A text as a sequence of chunks of UTF-8.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Chunks {
    chunks: Vec<Bytes>,
    /// Bytes in chunks that are shared with where the text came from.
    shared: usize,
}

/// The large parts of a text while it is written, each with its place.
#[derive(Debug, Default)]
pub struct Splices(Vec<(usize, Bytes)>);

/// A shared text as the owner of its bytes.
struct SharedText(Arc<String>);

/// Parts from this size on are shared, in bytes: for smaller ones a copy is cheaper than a write of
/// its own.
const SHARED: usize = 4 << 10;

impl Chunks {
    /// Bytes of the text.
    pub fn size(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.chunks.iter()
    }

    /// Returns whether a part of the text is shared with where it came from.
    pub fn is_shared(&self) -> bool {
        self.shared > 0
    }

    /// Bytes of the text that are not shared.
    pub fn unshared(&self) -> usize {
        self.size() - self.shared
    }

    /// Returns whether two texts are known to be the same, without reading the parts that they
    /// share.
    pub fn is_same(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&Bytes, &Bytes)| {
            let is_there = one.as_ptr() == other.as_ptr() && one.len() == other.len();
            is_there || (one.len() < SHARED && one == other)
        };
        self.chunks.len() == other.chunks.len()
            && self.chunks.iter().zip(&other.chunks).all(is_same)
    }

    /// The text between two others. Short texts become one chunk.
    pub fn between(mut self, before: &str, after: &str) -> Self {
        match self.chunks.as_slice() {
            [] => [before, after].concat().into(),
            [only] if only.len() < SHARED => {
                let text = [before.as_bytes(), only, after.as_bytes()].concat();
                Self { chunks: vec![text.into()], shared: 0 }
            }
            _ => {
                self.chunks.insert(0, before.to_owned().into());
                self.chunks.push(after.to_owned().into());
                self
            }
        }
    }

    /// The text in one piece.
    pub fn into_text(self) -> String {
        let mut chunks = self.chunks;
        let bytes = match chunks.pop() {
            Some(only) if chunks.is_empty() => only.into(),
            last => chunks.into_iter().chain(last).fold(Vec::new(), |mut all, chunk| {
                all.extend_from_slice(&chunk);
                all
            }),
        };
        // Chunks are cut out of texts at the borders of characters.
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
        Self { chunks: vec![text.into()], shared: 0 }
    }
}

impl From<&'static str> for Chunks {
    fn from(text: &'static str) -> Self {
        Self { chunks: vec![Bytes::from_static(text.as_bytes())], shared: 0 }
    }
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunks({} bytes in {})", self.size(), self.chunks.len())
    }
}

impl Splices {
    /// Adds a part at the end of the text so far. A small one is copied; of a large one, `share`
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

    /// The written text with the parts in their places.
    pub fn into_chunks(self, out: String) -> Chunks {
        if self.0.is_empty() {
            return out.into();
        }
        let text = Bytes::from(out);
        let shared = self.0.iter().map(|(_, part)| part.len()).sum();
        let mut chunks = Vec::with_capacity(2 * self.0.len() + 1);
        let mut written = 0;
        for (at, part) in self.0 {
            chunks.extend([text.slice(written..at), part]);
            written = at;
        }
        chunks.push(text.slice(written..));
        chunks.retain(|chunk| !chunk.is_empty());
        Chunks { chunks, shared }
    }
}

/// The bytes of a shared text.
pub fn shared(text: &Arc<String>) -> Bytes {
    Bytes::from_owner(SharedText(text.clone()))
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
            let (mut out, mut expected, mut splices) = (String::new(), String::new(), Splices::default());
            let mut shared = 0;
            for (text, size) in parts {
                out.push_str(&text);
                // Below the border, at it, and above.
                let part = "x".repeat(SHARED - 1 + size);
                shared += if part.len() < SHARED { 0 } else { part.len() };
                splices.add(&mut out, &part, || part.clone().into());
                expected.extend([text, part]);
            }
            let chunks = splices.into_chunks(out).between("(", ")");
            prop_assert_eq!(chunks.size(), expected.len() + 2);
            prop_assert_eq!(chunks.unshared(), expected.len() + 2 - shared);
            prop_assert_eq!(chunks.into_text(), format!("({expected})"));
        }
    }
}
