//! Prompts and skills: their definitions, contents and overlays.

pub mod call_overlay;
pub mod content;
pub mod content_repair;
pub mod hidden_text;
pub mod merge;
pub mod overlay;
pub mod prompt;
pub(crate) mod prompt_shape;
pub mod prompt_skill;
pub mod prompt_version;
pub mod rollout;
pub mod skill;
pub mod skill_prompt;
