//! The complete prompt list of an upstream, independent of how it was fetched.

use std::sync::Arc;
use std::time::Duration;

use domain::calls::cursor::CacheScope;
use domain::fault::UpstreamFaultKind as Kind;
use domain::prompts::prompt::Prompt;
use domain::prompts::skill::Skill;

/// Returns the note for an operator on a working upstream without prompts; `None` if it has
/// prompts.
pub fn emptiness(pages: usize, prompts: usize) -> Option<&'static str> {
    match (pages, prompts) {
        (0, _) => Some("works, but declares no prompts"),
        (_, 0) => Some("works, but its list of prompts is empty"),
        _ => None,
    }
}

/// An element of a list that is not a valid prompt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MalformedPrompt {
    /// The name; empty if it cannot be read.
    pub name: String,
    pub reason: String,
    /// Whether a prompt of this name is served all the same, such as the earlier text of a file.
    pub is_served: bool,
}

/// The end of the reason for a prompt whose earlier text is served.
pub const EARLIER_SERVED: &str = "; the text of before is served";

impl From<String> for MalformedPrompt {
    fn from(reason: String) -> Self {
        Self { name: String::new(), reason, is_served: false }
    }
}

/// The complete prompt list of an upstream: all pages of a pagination walk, or all files of a
/// library.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptList {
    /// The valid prompts.
    pub prompts: Vec<Prompt>,
    /// The valid skills.
    pub skills: Vec<Arc<Skill>>,
    /// Why the upstream could not list its skills, although it listed its prompts. `skills` then
    /// holds the previous list's skills that may still be served.
    pub skills_failure: Option<Kind>,
    /// The elements that are not valid prompts or skills, and the mistakes in labels.
    pub malformed: Vec<MalformedPrompt>,
    /// Likely slips of the authors of a library, one sentence each behind the path of the
    /// file; empty for other upstreams.
    pub remarks: Vec<String>,
    /// Number of pages; 1 for a library, 0 for an upstream that declares no prompts and skills.
    pub pages: usize,
    /// Shortest `ttlMs` of all pages (MCP 2026-07-28, caching); `None` if no page has it.
    pub ttl: Option<Duration>,
    /// The age of a list that was kept on the disk, whose source was not read since the start.
    pub kept_age: Option<Duration>,
    /// The commit of the files, for a git repository.
    pub commit: Option<Arc<str>>,
    /// The pause before the next walk that the source has asked for (`Retry-After`).
    pub pause: Option<Duration>,
    /// Private if the `cacheScope` of at least one page is private.
    pub scope: CacheScope,
}

impl PromptList {
    /// Returns the number of elements, valid or not, without versions of other prompts.
    pub fn len(&self) -> usize {
        let plain = self.prompts.iter().filter(|prompt| !prompt.is_version()).count();
        let left_out = self.malformed.iter().filter(|malformed| !malformed.is_served);
        plain + self.skills.len() + left_out.count()
    }

    /// Whether the upstream lists no prompts and no skills.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the skills of the same upstream, with the stricter cache hints of both lists.
    pub fn add_skills(&mut self, skills: Self) {
        self.skills = skills.skills;
        self.malformed.extend(skills.malformed);
        self.pages += skills.pages;
        self.ttl = self.ttl.into_iter().chain(skills.ttl).min();
        self.scope = self.scope.max(skills.scope);
    }
}
