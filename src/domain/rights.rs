//! Who may use which prompt: the question that policy answers. Nothing else decides what a caller
//! sees.

use super::caller::Caller;
use super::method::Method;

/// Decides by caller, method, upstream and raw name alone: never by time or address, so that what a
/// caller sees can be put together once.
pub trait Rights: Send + Sync {
    /// What of a caller the decisions depend on: callers of whom it is the same have the same rights.
    /// Nothing where all are equal.
    fn entitlement(&self, caller: &Caller) -> Option<String>;

    fn allows(&self, caller: &Caller, method: Method, upstream: &str, raw_name: &str) -> bool;
}

/// Everybody may use everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Everything;

impl Rights for Everything {
    fn entitlement(&self, _: &Caller) -> Option<String> {
        None
    }

    fn allows(&self, _: &Caller, _: Method, _: &str, _: &str) -> bool {
        true
    }
}
