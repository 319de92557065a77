//! One call to an upstream: the request, its exchange, the correlation of what comes before the
//! response, and the codec of replies.

pub mod correlator;
pub mod exchange;
pub mod reply;
pub mod request;
