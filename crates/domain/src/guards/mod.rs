//! Guards: what the texts of calls may hold. Patterns find, and a guard denies or masks.

pub mod built_in;
pub mod pattern;
pub mod text_guard;
