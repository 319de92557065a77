//! Parts of several commands: arguments, output, and requests to a running gateway.

pub(super) mod admin_api;
pub(super) mod args;
pub(super) mod failure;
pub(super) mod load;
pub(super) mod output;
pub(super) mod period;
pub(super) mod process;
pub(super) mod reach;
pub(super) mod running;
pub(super) mod runtime;
pub(super) mod user;
