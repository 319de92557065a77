//! Protection of an upstream and its callers from each other: circuit breaker, concurrency limit,
//! reconnect backoff.

pub(crate) mod backoff;
pub(crate) mod breaker;
pub(crate) mod concurrency;
