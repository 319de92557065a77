//! Protection of an upstream and its callers from each other: circuit breaker and concurrency
//! limit.

pub(crate) mod circuit_breaker;
pub(crate) mod concurrency;
