//! Prompts as tools, for hosts and models that know no prompts: the names, definitions, search and
//! results of the tools that stand for prompts (MCP 2025-11-25, tools).

pub(crate) mod name;
pub(crate) mod definition;
pub(crate) mod search;
pub(crate) mod result;

/// The tool that searches the prompts.
pub(crate) const FIND_PROMPT: &str = "find_prompt";

/// The tool that gets one prompt by its name.
pub(crate) const USE_PROMPT: &str = "use_prompt";
