//! The whole list of an upstream, however it was fetched.

use std::time::Duration;

use crate::domain::cursor::CacheScope;
use crate::domain::prompt::Prompt;

/// The whole list of an upstream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptList {
    pub prompts: Vec<Prompt>,
    /// One reason for each element that is no valid prompt.
    pub malformed: Vec<String>,
    pub pages: usize,
    /// Shortest `ttlMs` of all pages (MCP 2026-07-28, caching); absent where no page has one.
    pub ttl: Option<Duration>,
    /// Private if the `cacheScope` of any page is.
    pub scope: CacheScope,
}
