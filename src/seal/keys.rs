//! Secrets of 32 bytes: the keys that seal, of which the first one seals and all open (rotation),
//! and the one of the audit log.

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;

pub(crate) const KEY_LEN: usize = 32;

/// At least one key, newest first.
#[derive(Clone, Eq, PartialEq)]
pub struct SealKeys(Vec<[u8; KEY_LEN]>);

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyError {
    #[error(
        "key {index} is not base64 of exactly 32 bytes; make one with `openssl rand -base64 32`"
    )]
    Malformed { index: usize },
    #[error("at least one key is needed")]
    Empty,
}

impl SealKeys {
    pub fn new(keys: Vec<[u8; KEY_LEN]>) -> Result<Self, KeyError> {
        match keys.is_empty() {
            true => Err(KeyError::Empty),
            false => Ok(Self(keys)),
        }
    }

    /// A key for this process alone: its tokens die with it.
    pub fn ephemeral() -> Self {
        Self(vec![super::random()])
    }

    /// Reads base64 keys separated by commas; padding may be left out.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let keys = text.split(',').enumerate();
        let keys = keys.map(|(i, key)| decode(key).ok_or(KeyError::Malformed { index: i + 1 }));
        Self::new(keys.collect::<Result<_, _>>()?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8; KEY_LEN]> {
        self.0.iter()
    }
}

/// The secret that all keys of an audit log are derived from.
#[derive(Clone, Eq, PartialEq)]
pub struct AuditKey([u8; KEY_LEN]);

impl AuditKey {
    /// Reads base64 of exactly 32 bytes; padding may be left out.
    pub fn parse(text: &str) -> Option<Self> {
        decode(text).map(Self)
    }

    /// A new key, and how it is written down.
    pub fn generate() -> (Self, String) {
        let bytes: [u8; KEY_LEN] = super::random();
        (Self(bytes), BASE64_STANDARD.encode(bytes))
    }

    /// The key for one use.
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

/// Tells how many keys there are, never what they are.
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
