//! The interface to the access policy: which caller may use which prompt. No other code decides
//! which prompts a caller sees.

use std::sync::Arc;

use crate::approval::ApprovalState;
use crate::calls::caller::Caller;
use crate::protocol::method::Method;

/// A prompt, as access decisions see it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PromptRef<'a> {
    /// Id of the upstream.
    pub upstream: &'a str,
    pub raw_name: &'a str,
    /// The approval state of the prompt.
    pub state: ApprovalState,
}

/// The access decisions of a policy. They depend only on caller, method, and the prompt's upstream,
/// raw name and state, never on time or address, so that the view of a caller can be built once and
/// cached.
pub trait Rights: Send + Sync {
    /// Returns the part of the caller that decisions depend on: callers with the same entitlement
    /// have the same rights. `None` if all callers have the same rights.
    fn entitlement(&self, caller: &Caller) -> Option<Arc<str>>;

    /// Returns whether the caller may use the method on this prompt of the upstream.
    fn allows(&self, caller: &Caller, method: Method, prompt: PromptRef<'_>) -> bool;

    /// Returns the names of the rules that deny the call, or [`NO_RULE`], for the audit log; `None`
    /// if [`Self::allows`] allows the call.
    fn denied_by(
        &self,
        caller: &Caller,
        method: Method,
        prompt: PromptRef<'_>,
    ) -> Option<Arc<str>> {
        (!self.allows(caller, method, prompt)).then(|| NO_RULE.into())
    }

    /// Decides on several prompts of one upstream, in their order.
    fn allowed(
        &self,
        caller: &Caller,
        method: Method,
        prompts: &mut dyn Iterator<Item = PromptRef<'_>>,
    ) -> Allowed {
        Allowed::of(prompts.map(|prompt| self.allows(caller, method, prompt)).collect())
    }
}

/// The name in place of a rule if no rule allows a call, or the rules cannot be evaluated.
pub const NO_RULE: &str = "none";

/// The decisions on several prompts for a caller.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Allowed {
    All,
    None,
    /// One decision for each prompt.
    Some(Vec<bool>),
}

impl Allowed {
    /// Combines the decisions on each prompt.
    pub fn of(each: Vec<bool>) -> Self {
        if each.iter().all(|allowed| *allowed) {
            Self::All
        } else if each.contains(&true) {
            Self::Some(each)
        } else {
            Self::None
        }
    }
}

/// The policy that allows all prompts to all callers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Everything;

impl Rights for Everything {
    fn entitlement(&self, _: &Caller) -> Option<Arc<str>> {
        None
    }

    fn allows(&self, _: &Caller, _: Method, _: PromptRef<'_>) -> bool {
        true
    }

    fn allowed(
        &self,
        _: &Caller,
        _: Method,
        _: &mut dyn Iterator<Item = PromptRef<'_>>,
    ) -> Allowed {
        Allowed::All
    }
}
