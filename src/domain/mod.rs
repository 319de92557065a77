//! Values in, values out: what MCP means, without runtime, network or clock.

pub mod call;
pub mod caller;
pub mod content;
pub mod cursor;
pub mod document;
pub mod fault;
pub mod json;
pub mod jsonrpc;
pub mod mcp_name;
pub mod merge;
pub mod meta;
pub mod method;
pub mod name;
pub mod prompt;
pub mod revision;
