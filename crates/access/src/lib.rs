//! Access rules: rules compiled to Cedar policies, and decisions by them. Nothing else knows Cedar,
//! which brings 82 packages.
//!
//! `rule` is one rule and its Cedar text, `rule_set` the validated policies of a configuration,
//! `decisions` whether a caller may use a prompt. Policies are evaluated once for each class of
//! callers (`class`), class of prompts (`prompt_tests`) and method.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod class;
mod decisions;
mod prompt_tests;
mod rule;
mod rule_set;

pub use class::AccessVerdict;
pub use decisions::Decisions;
pub use rule::{Effect, Rule, RuleCallers, action, parse_action};
pub use rule_set::{RuleSet, SCHEMA};
