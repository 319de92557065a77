//! Prompts as tools, for hosts and models without prompt support: the names, definitions, search
//! and results of the tools that represent prompts (MCP 2025-11-25, tools).

pub mod name;
pub mod definition;
pub mod search;
pub mod result;

/// The tool that searches the prompts.
pub const FIND_PROMPT: &str = "find_prompt";

/// The tool that gets one prompt by its name.
pub const USE_PROMPT: &str = "use_prompt";

/// The tool that searches the skills.
pub const FIND_SKILL: &str = "find_skill";

/// The tool that reads a file of a skill.
pub const READ_SKILL: &str = "read_skill";

/// The names of tools that represent no single prompt.
pub(crate) const RESERVED: [&str; 4] = [FIND_PROMPT, USE_PROMPT, FIND_SKILL, READ_SKILL];
