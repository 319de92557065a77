//! The keys that seal: 32 bytes each, the first one seals, all open (rotation).

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

pub const KEY_LEN: usize = 32;

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
        let config =
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let base64 = GeneralPurpose::new(&alphabet::STANDARD, config);
        let keys = text.split(',').enumerate().map(|(index, key)| {
            let bytes = base64.decode(key.trim()).ok();
            bytes.and_then(|b| b.try_into().ok()).ok_or(KeyError::Malformed { index: index + 1 })
        });
        Self::new(keys.collect::<Result<_, _>>()?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8; KEY_LEN]> {
        self.0.iter()
    }
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
}
