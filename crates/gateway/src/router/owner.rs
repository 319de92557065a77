//! The owner of a listed prompt.

use std::sync::Arc;

use super::approval::PromptApproval;
use domain::call_overlay::CallOverlay;
use domain::name::UpstreamId;
use domain::prompt::Argument;
use domain::rights::PromptRef;

/// The upstream and raw name behind a public name.
#[derive(Debug)]
pub struct Owner {
    pub public_name: Arc<str>,
    pub upstream: UpstreamId,
    pub raw_name: Arc<str>,
    pub arguments: Box<[Argument]>,
    /// `sha256:…` of the effective definition, before prefixes.
    pub digest: Arc<str>,
    /// Changes by overlays to calls; `None` if no overlay matches the prompt.
    pub overlay: Option<Arc<CallOverlay>>,
    pub approval: PromptApproval,
}

impl Owner {
    /// The prompt, as access decisions see it.
    pub fn prompt(&self) -> PromptRef<'_> {
        PromptRef {
            upstream: self.upstream.as_str(),
            raw_name: &self.raw_name,
            state: self.approval.state,
        }
    }
}
