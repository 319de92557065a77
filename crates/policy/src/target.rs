//! The target of a call, as limits and records see it.

use std::sync::Arc;

use domain::approval::ApprovalState;
use domain::calls::rights::PromptRef;

/// The prompt that a call is for, as its upstream knows it.
#[derive(Clone, Copy, Debug)]
pub struct CallTarget<'a> {
    /// Id of the upstream.
    pub upstream: &'a str,
    pub raw_name: &'a str,
    /// `sha256:…` of the definition as listed; empty where none is known.
    pub definition: &'a str,
    /// The state of the prompt's approval.
    pub state: ApprovalState,
    /// The number of the prompt's version, where the upstream gives it.
    pub number: Option<&'a str>,
    /// The version that a rollout serves instead. Rights and limits are those of the prompt.
    pub version: Option<ServedVersion<'a>>,
}

/// A version of a prompt that is requested from its upstream.
#[derive(Clone, Copy, Debug)]
pub struct ServedVersion<'a> {
    pub public_name: &'a Arc<str>,
    pub raw_name: &'a str,
    /// `sha256:…` of the definition of this version.
    pub definition: &'a str,
    /// As the rollout names it.
    pub label: &'a str,
    /// The number of the version, where the upstream gives it.
    pub number: Option<&'a str>,
}

impl<'a> CallTarget<'a> {
    /// The name that its upstream is called with.
    pub(super) fn called_name(self) -> &'a str {
        self.version.map_or(self.raw_name, |version| version.raw_name)
    }

    /// The prompt, as access decisions see it.
    pub(super) fn prompt(self) -> PromptRef<'a> {
        PromptRef { upstream: self.upstream, raw_name: self.raw_name, state: self.state }
    }
}
