//! Session ids of the legacy era: sealed tokens, so that a session costs no memory and any replica
//! with the same key can read it.

use crate::domain::caller::Caller;
use crate::domain::revision::Revision;
use crate::domain::server_request::ClientCapabilities;
use crate::seal::{Kind, Sealer, random};

/// What a session id holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Token {
    pub revision: Revision,
    /// What its client said that it can be asked.
    pub capabilities: ClientCapabilities,
    /// Seconds since the Unix epoch.
    pub issued_at: u64,
    /// Tells sessions apart.
    pub nonce: Nonce,
    /// Whose session it is.
    pub caller: String,
}

pub(crate) type Nonce = [u8; 16];

impl Token {
    pub(crate) fn new(
        revision: Revision,
        capabilities: ClientCapabilities,
        caller: &Caller,
        now_secs: u64,
    ) -> Self {
        let caller = caller.id().to_owned();
        Self { revision, capabilities, issued_at: now_secs, nonce: random(), caller }
    }

    /// Whether it is this caller's session.
    pub(crate) fn is_of(&self, caller: &Caller) -> bool {
        self.caller == caller.id()
    }

    /// The session id: visible ASCII of at most 512 bytes.
    pub(crate) fn seal(&self, sealer: &Sealer, endpoint: &str) -> String {
        let mut plain = vec![self.revision as u8, self.capabilities.bits()];
        plain.extend_from_slice(&self.issued_at.to_be_bytes());
        plain.extend_from_slice(&self.nonce);
        plain.extend_from_slice(self.caller.as_bytes());
        sealer.seal(Kind::Session, endpoint, &plain)
    }

    /// Reads a session id; nothing if it is not one of ours for this endpoint.
    pub(crate) fn open(sealer: &Sealer, endpoint: &str, id: &str) -> Option<Self> {
        let plain = sealer.open(Kind::Session, endpoint, id)?;
        let (&[revision, capabilities], rest) = plain.split_first_chunk()?;
        let (issued_at, rest) = rest.split_first_chunk::<8>()?;
        let (nonce, caller) = rest.split_first_chunk::<16>()?;
        Some(Self {
            revision: Revision::ALL.into_iter().find(|r| *r as u8 == revision)?,
            capabilities: ClientCapabilities::from_bits(capabilities),
            issued_at: u64::from_be_bytes(*issued_at),
            nonce: *nonce,
            caller: String::from_utf8(caller.to_vec()).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::SealKeys;

    #[test]
    fn a_session_id_reads_back_on_every_replica_and_nowhere_else() {
        let keys = || SealKeys::new(vec![[1; 32]]).unwrap();
        let (here, there) = (Sealer::new(&keys()), Sealer::new(&keys()));
        let token =
            Token::new(Revision::V2025_06_18, ClientCapabilities::FORM, &Caller::new("a"), 7);
        let id = token.seal(&here, "/mcp");
        assert!(id.len() <= 512 && id.bytes().all(|b| b.is_ascii_graphic()));
        assert_eq!(Token::open(&there, "/mcp", &id), Some(token.clone()));
        assert_eq!(Token::open(&there, "/mcp/x", &id), None);
        assert_eq!(Token::open(&Sealer::new(&SealKeys::ephemeral()), "/mcp", &id), None);
        let another =
            Token::new(Revision::V2025_06_18, ClientCapabilities::FORM, &Caller::new("a"), 7);
        assert_ne!(token.nonce, another.nonce);
    }
}
