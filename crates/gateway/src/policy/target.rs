//! The target of a call, as limits and records see it.

use domain::approval::ApprovalState;
use domain::rights::PromptRef;

/// The prompt that a call is for, as its upstream knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTarget<'a> {
    /// Id of the upstream.
    pub(crate) upstream: &'a str,
    pub(crate) raw_name: &'a str,
    /// `sha256:…` of the definition as listed; empty where none is known.
    pub(crate) definition: &'a str,
    /// The state of the prompt's approval.
    pub(crate) state: ApprovalState,
}

impl<'a> CallTarget<'a> {
    /// The prompt, as access decisions see it.
    pub(super) fn prompt(self) -> PromptRef<'a> {
        PromptRef { upstream: self.upstream, raw_name: self.raw_name, state: self.state }
    }
}
