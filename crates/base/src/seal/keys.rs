//! The secret keys of 32 bytes: the seal keys, of which the first seals tokens and all open them
//! (rotation), and the key of the audit log.

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;

/// The length of a key in bytes.
pub(crate) const KEY_LEN: usize = 32;

/// The seal keys: at least one, newest first.
#[derive(Clone, Eq, PartialEq)]
pub struct SealKeys(Vec<[u8; KEY_LEN]>);

/// The reason why seal keys are refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyError {
    /// The key at `index`, counted from 1, is malformed.
    #[error(
        "key {index} is not base64 of exactly 32 bytes; make one with `openssl rand -base64 32`"
    )]
    Malformed { index: usize },
    #[error("at least one key is needed")]
    Empty,
}

impl SealKeys {
    /// Returns the seal keys, newest first.
    ///
    /// # Errors
    /// If `keys` is empty.
    pub fn new(keys: Vec<[u8; KEY_LEN]>) -> Result<Self, KeyError> {
        if keys.is_empty() { Err(KeyError::Empty) } else { Ok(Self(keys)) }
    }

    /// Returns a random key for this process only. Its tokens are invalid after a restart and at
    /// other replicas.
    pub fn ephemeral() -> Self {
        Self(vec![super::random()])
    }

    /// Reads base64 keys, separated by commas. The padding is optional.
    ///
    /// # Errors
    /// If a key is not base64 of exactly 32 bytes.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let keys = text.split(',').enumerate();
        let keys = keys.map(|(i, key)| decode(key).ok_or(KeyError::Malformed { index: i + 1 }));
        Self::new(keys.collect::<Result<_, _>>()?)
    }

    /// Returns the key that seals.
    pub(super) fn newest(&self) -> &[u8; KEY_LEN] {
        &self.0[0]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8; KEY_LEN]> {
        self.0.iter()
    }
}

/// The secret from which all keys of an audit log are derived.
#[derive(Clone, Eq, PartialEq)]
pub struct AuditKey([u8; KEY_LEN]);

impl AuditKey {
    /// Reads base64 of exactly 32 bytes; `None` for any other text. The padding is optional.
    pub fn parse(text: &str) -> Option<Self> {
        decode(text).map(Self)
    }

    /// Returns a new random key, and its base64 text.
    pub fn generate() -> (Self, String) {
        let bytes: [u8; KEY_LEN] = super::random();
        (Self(bytes), BASE64_STANDARD.encode(bytes))
    }

    /// Returns the derived key for one purpose, which `label` names.
    pub fn subkey(&self, label: &str) -> [u8; KEY_LEN] {
        super::subkey(&self.0, label)
    }
}

impl fmt::Debug for AuditKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditKey(redacted)")
    }
}

fn decode(text: &str) -> Option<[u8; KEY_LEN]> {
    let config =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let base64 = GeneralPurpose::new(&alphabet::STANDARD, config);
    base64.decode(text.trim()).ok()?.try_into().ok()
}

/// Shows the number of keys, never the keys.
impl fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealKeys({} redacted)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_with_and_without_padding() {
        let zeros = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let two = SealKeys::parse(&format!("{zeros}=, {zeros}")).unwrap();
        assert_eq!(two.iter().count(), 2);
        assert_eq!(SealKeys::parse("AAAA"), Err(KeyError::Malformed { index: 1 }));
        assert_eq!(SealKeys::parse(&format!("{zeros},")), Err(KeyError::Malformed { index: 2 }));
        assert_eq!(format!("{two:?}"), "SealKeys(2 redacted)");
    }

    #[test]
    fn an_audit_key_is_read_as_it_was_made_and_never_shown() {
        let (key, text) = AuditKey::generate();
        assert_eq!(AuditKey::parse(&format!(" {text}\n")), Some(key.clone()));
        for wrong in ["", "AAAA", &text[..40], &format!("{text}{text}")] {
            assert_eq!(AuditKey::parse(wrong), None, "{wrong}");
        }
        assert_eq!(format!("{key:?}"), "AuditKey(redacted)");
    }
}
