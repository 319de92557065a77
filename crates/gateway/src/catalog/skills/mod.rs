//! Skills as they are listed: those of upstreams, in their approved form, those that stand for
//! prompts, and the prompts that stand for skills.

pub(crate) mod approved;
pub(crate) mod catalog;
pub(crate) mod of_prompts;
pub(crate) mod prompts;
