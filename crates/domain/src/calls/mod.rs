//! Calls and their callers: what a caller asks for, may do and holds.

pub mod call;
pub mod caller;
pub mod cursor;
pub mod error_code;
pub mod fair_share;
pub mod link;
pub mod passthrough;
pub mod request_state;
pub mod rights;
pub mod rollout;
pub mod subject_token;
