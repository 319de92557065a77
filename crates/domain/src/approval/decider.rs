//! Deciders: the author of a decision on prompts or labels, with the reason and the interface used.

use std::time::SystemTime;

use super::{ApproverProof, Attribution};

/// The author of a decision, and the reason.
#[derive(Clone, Debug)]
pub struct Decider {
    pub by: String,
    /// Another name of the person, such as an email address.
    pub known_as: Option<String>,
    pub proof: ApproverProof,
    pub why: Option<String>,
    /// `cli` or `admin`, for the audit log.
    pub via: &'static str,
    pub at: SystemTime,
}

/// Longest reason of a decision, in bytes: a page of text, which people read in a list.
const MAX_WHY: usize = 4 << 10;

/// Longest name of a decider, in bytes.
const MAX_NAME: usize = 256;

impl Decider {
    /// Returns a decider at the command line, with a self-declared name, at this time.
    pub fn at_command_line(by: String, why: Option<String>, at: SystemTime) -> Self {
        Self { by, known_as: None, proof: ApproverProof::LockFile, why, via: "cli", at }
    }

    /// Returns the author, time and reason of the decision, as files keep them.
    ///
    /// # Errors
    /// The reason is missing, or the reason or a name is too long.
    pub fn attribution(&self, requires_reason: bool) -> Result<Attribution, BadReason> {
        let why = self.why.clone().filter(|why| !why.trim().is_empty());
        if requires_reason && why.is_none() {
            return Err(BadReason::Missing);
        }
        let names = std::iter::once(&self.by).chain(&self.known_as);
        if names.into_iter().any(|name| name.len() > MAX_NAME) {
            return Err(BadReason::LongName);
        }
        if why.as_ref().is_some_and(|why| why.len() > MAX_WHY) {
            return Err(BadReason::Long);
        }
        Ok(Attribution {
            by: self.by.clone(),
            known_as: self.known_as.clone(),
            proof: self.proof,
            at: humantime::format_rfc3339_seconds(self.at).to_string(),
            why,
        })
    }
}

/// Why the reason or the name of a decider is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BadReason {
    #[error("give a reason (`--why`, or `why` over the API): approvals.require_reason is set")]
    Missing,
    #[error("the reason is longer than {MAX_WHY} bytes; shorten it, and link to the rest")]
    Long,
    #[error("the name of the person is longer than {MAX_NAME} bytes; give a shorter one")]
    LongName,
}
