//! One call to an upstream: the request, its exchange, the correlation of interim messages, and the
//! codec of replies.

pub(crate) mod call_secrets;
pub mod correlator;
pub(crate) mod exchange;
pub(crate) mod reply;
pub mod request;
pub mod result_memory;
