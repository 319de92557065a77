//! One call to an upstream: the request, its exchange, the correlation of interim messages, and the
//! codec of replies.

pub mod call_secrets;
pub mod correlator;
pub mod exchange;
pub mod reply;
pub mod request;
pub mod result_memory;
