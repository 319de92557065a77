//! Listed skills: skills of upstreams in their approved form, skills derived from prompts, and
//! prompts derived from skills.

pub mod approved;
pub mod catalog;
pub mod of_prompts;
pub mod prompts;
