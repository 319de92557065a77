//! Guards: what the texts of calls may hold. Patterns find, and a guard denies or masks.

pub mod built_in;
mod encoded;
pub mod pattern;
pub mod text_guard;
