//! The interface to the access policy: which caller may use which prompt. No other code decides which prompts
//! a caller sees.

use std::sync::Arc;

use super::caller::Caller;
use super::method::Method;

/// The access decisions of a policy. They depend only on caller, method, upstream and raw name, never on time
/// or address, so that the view of a caller can be built once and cached.
pub trait Rights: Send + Sync {
    /// Returns the part of the caller that decisions depend on: callers with the same entitlement have the
    /// same rights. `None` if all callers have the same rights.
    fn entitlement(&self, caller: &Caller) -> Option<Arc<str>>;

    /// Returns whether the caller may use the method on this prompt of the upstream.
    fn allows(&self, caller: &Caller, method: Method, upstream: &str, raw_name: &str) -> bool;

    /// Decides on several prompts of one upstream, in the order of their raw names.
    fn allowed(
        &self,
        caller: &Caller,
        method: Method,
        upstream: &str,
        raw_names: &mut dyn Iterator<Item = &str>,
    ) -> Allowed {
        Allowed::of(raw_names.map(|name| self.allows(caller, method, upstream, name)).collect())
    }
}

/// Which of several prompts a caller may use.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Allowed {
    All,
    None,
    /// For each prompt.
    Some(Vec<bool>),
}

impl Allowed {
    /// The decisions on each prompt.
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

    fn allows(&self, _: &Caller, _: Method, _: &str, _: &str) -> bool {
        true
    }

    fn allowed(
        &self,
        _: &Caller,
        _: Method,
        _: &str,
        _: &mut dyn Iterator<Item = &str>,
    ) -> Allowed {
        Allowed::All
    }
}
