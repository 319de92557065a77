//! Times and waits as values: no function here reads a clock.

pub mod backoff;
pub mod distance;
pub mod millis;
pub mod unix_time;
