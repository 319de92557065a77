//! The domain of the gateway: MCP messages and their rules as values and functions, without async runtime,
//! network or clock.

pub(crate) mod json;
pub(crate) mod error_code;
pub(crate) mod document;
pub(crate) mod sse_decoder;
pub(crate) mod line_decoder;
pub(crate) mod jsonrpc;
pub(crate) mod address_policy;
pub(crate) mod backoff;
pub(crate) mod revision;
pub(crate) mod method;
pub(crate) mod unix_time;
pub(crate) mod caller;
pub(crate) mod chunks;
pub(crate) mod fair_share;
pub(crate) mod rights;
pub(crate) mod glob;
pub(crate) mod hidden_text;
pub(crate) mod server_request;
pub(crate) mod trace;
pub(crate) mod uri;
pub(crate) mod call;
pub(crate) mod name;
pub(crate) mod prompt;
pub(crate) mod content;
pub(crate) mod translate;
pub(crate) mod tool;
pub(crate) mod similar;
pub(crate) mod meta;
pub(crate) mod mcp_name;
pub(crate) mod merge;
pub(crate) mod confusable;
pub(crate) mod cursor;
pub(crate) mod request_state;
pub(crate) mod redaction;
pub(crate) mod fault;
