//! The domain of the gateway: MCP messages and their rules as values and functions, without async
//! runtime, network or clock.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod json;
pub mod error_code;
pub mod document;
pub mod edits;
pub mod sse_decoder;
pub mod line_decoder;
pub mod jsonrpc;
pub mod address_policy;
pub mod backoff;
pub mod revision;
pub mod log_level;
pub mod method;
pub mod unix_time;
pub mod percent;
pub mod text_file;
pub mod millis;
pub mod caller;
pub mod chunks;
pub mod fair_share;
pub mod rights;
pub mod rollout;
pub mod glob;
pub mod hidden_text;
pub mod server_request;
pub mod skill;
pub mod trace;
pub mod uri;
pub mod via;
pub mod subject_token;
mod params;
pub mod call;
pub mod passthrough;
pub mod name;
pub mod call_overlay;
pub mod repair;
mod prompt_shape;
pub mod prompt_version;
pub mod prompt;
pub mod skill_prompt;
pub mod prompt_skill;
pub mod content;
pub mod content_repair;
pub mod translate;
pub mod tool;
pub mod similar;
pub mod meta;
pub mod mcp_name;
pub mod param_headers;
pub mod overlay;
pub mod approval;
pub mod merge;
pub mod confusable;
pub mod cursor;
mod token_fields;
pub mod request_state;
pub mod link;
pub mod redaction;
pub mod fault;
