//! What protects an upstream and its callers from each other: circuit breaker, concurrency limit,
//! reconnect backoff.

pub mod backoff;
pub mod breaker;
pub mod concurrency;
