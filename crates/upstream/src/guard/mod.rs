//! Protection of an upstream and its callers from each other: circuit breaker, concurrency limit,
//! and places for work on large texts.

pub mod circuit_breaker;
pub mod concurrency;
pub mod large_texts;
