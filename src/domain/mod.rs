//! Values in, values out: what MCP means, without runtime, network or clock.

pub mod json;
pub mod code;
pub mod document;
pub mod events;
pub mod lines;
pub mod jsonrpc;
pub mod reach;
pub mod revision;
pub mod method;
pub mod caller;
pub mod rights;
pub mod glob;
pub mod hidden;
pub mod question;
pub mod trace;
pub mod call;
pub mod name;
pub mod prompt;
pub mod content;
pub mod translate;
pub mod meta;
pub mod mcp_name;
pub mod merge;
pub mod cursor;
pub mod state;
pub mod fault;
