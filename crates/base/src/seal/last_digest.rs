//! Digests of texts that are sent again and again.

use std::sync::{Mutex, PoisonError};

use super::sha256_of;
use domain::chunks::Chunks;

/// The SHA-256 digest of the last text of a series that mostly repeats. The large part of such a
/// text is the same memory each time, so that it is recognized without being read.
#[derive(Debug, Default)]
pub struct LastDigest(Mutex<Option<(Chunks, [u8; 32])>>);

/// Bytes that a remembered text keeps at most, beside those that it shares.
pub const MAX_KEPT: usize = 4 << 10;

impl LastDigest {
    /// Returns the digest of a text, computed unless the text is the last one.
    pub fn of(&self, text: &Chunks) -> [u8; 32] {
        // The digest of a short text costs hardly more than its comparison.
        let is_remembered = text.is_shared() && text.unshared() <= MAX_KEPT;
        let last = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_remembered
            && let Some((known, digest)) = &*last()
            && known.is_same(text)
        {
            return *digest;
        }
        let digest = sha256_of(text);
        if is_remembered {
            *last() = Some((text.clone(), digest));
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use domain::chunks::{Splices, shared};

    fn text(before: &str, part: &Arc<String>, after: &str) -> Chunks {
        let (mut out, mut splices) = (before.to_owned(), Splices::default());
        splices.add(&mut out, part, || shared(part));
        out.push_str(after);
        splices.into_chunks(out)
    }

    #[test]
    fn a_digest_is_always_that_of_the_text() {
        let [one, equal, other] = ["a", "a", "b"].map(|part| Arc::new(part.repeat(MAX_KEPT)));
        let long = "x".repeat(MAX_KEPT);
        let last = LastDigest::default();
        for (before, part, after) in [
            ("", &one, ""),
            ("", &equal, ""),
            ("(", &one, ")"),
            ("(", &other, ")"),
            // As long as before, in the same number of chunks.
            ("[", &other, ")"),
            // At the limit of lengths that are kept, and above.
            (&long, &one, ""),
            (&long, &one, ")"),
            ("", &Arc::new("short".to_owned()), ""),
        ] {
            let expected = super::super::sha256([before, part, after].concat().as_bytes());
            for _ in 0..2 {
                assert_eq!(last.of(&text(before, part, after)), expected);
            }
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let part = Arc::new("a".repeat(MAX_KEPT));
        let kept = |before: usize| {
            let last = LastDigest::default();
            last.of(&text(&"x".repeat(before), &part, ""));
            last.0.into_inner().unwrap().is_some()
        };
        assert_eq!([0, MAX_KEPT, MAX_KEPT + 1].map(kept), [true, true, false]);
        let last = LastDigest::default();
        last.of(&Chunks::from("y".repeat(MAX_KEPT)));
        assert!(last.0.into_inner().unwrap().is_none(), "it shares nothing");
    }
}
