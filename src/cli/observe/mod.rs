//! Commands that show what the gateway does and did.

pub(super) mod audit;
pub(super) mod evidence;
pub(super) mod explain;
pub(super) mod find;
pub(super) mod guards;
pub(super) mod status;
pub(super) mod usage;
