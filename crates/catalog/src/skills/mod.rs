//! Skills as they are listed: those of upstreams, in their approved form, those that stand for
//! prompts, and the prompts that stand for skills.

pub mod approved;
pub mod catalog;
pub mod of_prompts;
pub mod prompts;
