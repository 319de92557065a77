//! Guards: what the texts of calls may hold. Patterns find, or a
//! hook decides, and a guard denies or masks.

pub mod built_in;
mod encoded;
pub mod hook_answer;
pub mod pattern;
pub mod text_guard;
