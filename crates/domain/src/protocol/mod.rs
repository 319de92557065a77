//! The vocabulary of MCP, in every revision.

pub mod log_level;
pub mod mcp_name;
pub mod meta;
pub mod method;
pub mod param_headers;
pub(crate) mod params;
pub mod revision;
pub mod server_request;
pub mod trace;
pub mod translate;
pub mod via;
