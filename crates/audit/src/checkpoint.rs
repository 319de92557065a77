//! Checkpoints: signed statements of the content of a log up to a record. A copy that is kept
//! elsewhere proves the truncation of a log that ends before that record.
//!
//! A checkpoint signs the head of the hash chain, which only the secret recomputes, and digests of
//! all lines, which an auditor without the secret recomputes to find every byte that was edited
//! below the checkpoint.

use super::keys::{Digest, Keys, Mac, PublicKey};
use super::record::{AuditEvent, Head};
use base::seal::hex::{from_hex, hex};

/// The statement that a checkpoint signs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Statement {
    /// The number of the last record.
    pub seq: u64,
    /// The head of the hash chain.
    pub mac: Mac,
    /// The running SHA-256 digest over all records.
    pub lines: Digest,
    /// The number of the segment that is written.
    pub segment: u64,
    /// The running SHA-256 digest over the headers of all segments up to that one.
    pub headers: Digest,
}

/// A signed statement.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Checkpoint {
    pub statement: Statement,
    /// Ed25519, in base64.
    pub signature: String,
}

impl Statement {
    /// States the present content of a log.
    pub(crate) fn of(head: &Head, segment: u64, headers: Digest) -> Self {
        let Head { seq, mac, lines } = *head;
        Self { seq, mac, lines, segment, headers }
    }

    /// Signs the statement for the log `instance`.
    pub(crate) fn sign(self, instance: &str, keys: &Keys) -> Checkpoint {
        let signature = keys.sign(self.text(instance).as_bytes());
        Checkpoint { statement: self, signature }
    }

    /// Returns the text that the signature covers (docs/audit.md).
    fn text(&self, instance: &str) -> String {
        let Self { seq, mac, lines, segment, headers } = self;
        let [mac, lines, headers] = [mac, lines, headers].map(|digest| hex(digest));
        format!(
            "promptgate audit checkpoint v2\n{instance}\n{seq}\n{mac}\n{lines}\n{segment}\n{headers}"
        )
    }
}

impl Checkpoint {
    /// Whether the signature is one of the log `instance` under this key.
    pub(crate) fn is_signed(&self, instance: &str, public: &PublicKey) -> bool {
        public.verify(self.statement.text(instance).as_bytes(), &self.signature)
    }

    /// Returns the record of the checkpoint.
    pub(crate) fn event(&self) -> AuditEvent {
        let Statement { seq, mac, lines, segment, headers } = &self.statement;
        AuditEvent::new("checkpoint")
            .number("count", *seq)
            .text("head", &hex(mac))
            .text("lines", &hex(lines))
            .number("segment", *segment)
            .text("headers", &hex(headers))
            .text("signature", &self.signature)
    }

    /// Reads the members of a checkpoint; `None` if there is none.
    pub(crate) fn read(
        number: impl Fn(&str) -> Option<u64>,
        text: impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let digest = |name| from_hex(&text(name)?);
        let statement = Statement {
            seq: number("count")?,
            mac: digest("head")?,
            lines: digest("lines")?,
            segment: number("segment")?,
            headers: digest("headers")?,
        };
        Some(Self { statement, signature: text("signature")? })
    }
}
