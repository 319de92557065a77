//! Commands of the people who write prompts, approve them, and roll them out.

pub(super) mod approvals;
pub(super) mod check_folder;
pub(super) mod client;
pub(super) mod labels;
pub(super) mod render;
pub(super) mod rollouts;
pub(super) mod skills;
