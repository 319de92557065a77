//! The catalog: an immutable snapshot of the prompts of all upstreams and of their freshness.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::approval::ApprovalRow;
use super::approval_rows::ApprovalRows;
use super::listed_item::{ListedItem, ListedSkill};
use super::segment::Segment;
use super::view::ListView;
use domain::approval::ApprovalKind;
use domain::calls::call::SkillPart;
use domain::calls::caller::Principal;
use domain::calls::cursor::CacheScope;
use domain::fault::{Fault, UpstreamFaultKind as Kind};
use domain::json::Json;
use domain::name::{UpstreamId, version_name};
use domain::prompts::skill::SKILL_FILE;
use domain::tool::name::is_derived;

/// One snapshot. A request keeps the same snapshot to its end.
#[derive(Debug, Default)]
pub struct Catalog {
    /// The prompts; shared between snapshots as long as no list changes.
    pub content: Arc<CatalogContent>,
    /// The skills; shared between snapshots as long as no list of an upstream with skills changes.
    pub skills: Arc<SkillCatalog>,
    /// Upstreams whose list is stale or missing.
    pub incomplete: Vec<Incomplete>,
    /// Whether an upstream has not answered since the start and `listing.deadline` has not passed.
    pub pending: bool,
    /// When the lists expire by their `ttlMs`, earliest first. Lists without a `ttlMs` are absent.
    pub fresh_until: Vec<(Instant, UpstreamId)>,
    pub scope: CacheScope,
    /// The approvals of each upstream with approvals.
    pub approvals: Vec<Arc<ApprovalRows>>,
    /// The last successful walk of each upstream.
    pub walks: HashMap<UpstreamId, WalkInfo>,
    /// The error that all lists return while no upstream has a list.
    pub list_fault: Option<Fault>,
}

/// The prompts of a snapshot.
#[derive(Debug, Default)]
pub struct CatalogContent {
    /// Increases with each content.
    pub generation: u64,
    /// Non-empty segments, in byte order of the public names.
    segments: Vec<Arc<Segment>>,
    /// The view of a caller with all rights, without versions of prompts.
    pub everyone: Arc<ListView>,
    pub left_out: Vec<LeftOut>,
    /// Look-alikes stay listed: only people can judge which prompt is genuine.
    pub look_alikes: Vec<LookAlike>,
    /// `Some` if only one caller sees this content.
    pub private: Option<PrivatePart>,
}

/// The skills of a snapshot.
#[derive(Debug, Default)]
pub struct SkillCatalog {
    /// The entries of the list.
    pub content: Arc<CatalogContent>,
    /// The skills by the public URIs of their `SKILL.md`s.
    pub skills: HashMap<Arc<str>, ListedSkill>,
    /// The skills of all callers; `Some` if `skills` belong to one caller only.
    pub shared: Option<Arc<SkillCatalog>>,
    /// The same catalog with skills derived from prompts, if any prompt is offered as a skill.
    pub with_prompts: Option<Arc<SkillCatalog>>,
}

/// The private part of a content for one caller.
#[derive(Debug)]
pub struct PrivatePart {
    pub audience: Principal,
    /// The content of all callers.
    pub shared: Arc<CatalogContent>,
    /// The private segments of the caller.
    pub segments: Vec<Arc<Segment>>,
}

/// An upstream whose list is stale or missing.
#[derive(Clone, Debug)]
pub struct Incomplete {
    pub upstream: UpstreamId,
    pub kind: Kind,
    /// When the served list was walked; `None` if no list is served.
    pub walked_at: Option<Instant>,
    /// Whether the prompts were listed, and only the skills are missing.
    pub has_prompts: bool,
}

/// The outcome of a successful walk.
#[derive(Clone, Copy, Debug)]
pub struct WalkInfo {
    pub pages: usize,
    /// The number of prompts that the upstream lists, including invalid ones.
    pub prompts: usize,
    pub skills: usize,
    pub at: Instant,
}

/// A prompt that an upstream lists and the gateway omits.
#[derive(Clone, Debug, Eq, Hash, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftOut {
    pub upstream: String,
    /// Empty if the name could not be read.
    #[serde(rename = "name")]
    pub raw_name: String,
    pub reason: String,
    pub by: LeftOutBy,
}

/// The reason why a prompt is left out.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LeftOutBy {
    /// A definition that cannot be listed.
    #[default]
    Defect,
    /// A new definition that cannot be listed; the prompt is served as it was before.
    Stale,
    /// A name that cannot be public, or that belongs to another upstream or prompt.
    Name,
    Overlay,
    Approval,
    /// Not offered as a skill; still offered as a prompt.
    NoSkill,
}

impl LeftOut {
    /// The name; of a file of a library, whose reason begins with its path, this path.
    pub fn name(&self) -> &str {
        let file = self.reason.split_once(':').map(|(path, _)| path);
        let file = file.filter(|path| self.raw_name.is_empty() && path.ends_with(".md"));
        file.unwrap_or(&self.raw_name)
    }

    /// A sentence with the name, or with the file and the line.
    pub fn sentence(&self) -> String {
        if self.raw_name.is_empty() {
            return self.reason.clone();
        }
        format!("{}: {}", self.raw_name, self.reason)
    }
}

impl LeftOutBy {
    /// Whether its definition or its file has a mistake, also if an earlier text is served.
    pub fn is_mistake(self) -> bool {
        matches!(self, Self::Defect | Self::Stale)
    }

    /// Whether the configuration or an operator left the prompt out: an overlay drops it, it is not
    /// approved, or it is omitted as a skill only.
    pub fn is_wanted(self) -> bool {
        matches!(self, Self::Overlay | Self::Approval | Self::NoSkill)
    }
}

/// Two listed prompts of different upstreams that a reader may confuse.
#[derive(Clone, Debug, Eq, Hash, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LookAlike {
    pub one: ShownPrompt,
    pub other: ShownPrompt,
}

/// A prompt, and its text that is confusable with that of another prompt.
#[derive(Clone, Debug, Eq, Hash, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownPrompt {
    pub upstream: String,
    /// The public name.
    pub name: String,
    /// An excerpt of the public name, the raw name or the title.
    pub text: String,
}

impl PrivatePart {
    /// Bytes of the private segments.
    pub(crate) fn size(&self) -> usize {
        self.segments.iter().map(|segment| segment.size_with_items()).sum()
    }
}

impl Catalog {
    /// Returns the skill that a part with this URI may belong to, if the skill is offered and
    /// approvals hold it back.
    pub fn held_skill(&self, uri: &str, part: SkillPart) -> Option<&ApprovalRow> {
        let kind = ApprovalKind::Skill;
        if part == SkillPart::Entry {
            return self.held(kind, uri);
        }
        // The URIs of served files are not longer.
        let mut folders = std::iter::successors(Some(uri).filter(|uri| uri.len() <= 1024), |uri| {
            Some(uri.rsplit_once('/')?.0)
        });
        folders.find_map(|folder| self.held(kind, &[folder, "/", SKILL_FILE].concat()))
    }

    /// Returns the prompt or skill with this name, if it is offered and approvals hold it back.
    pub fn held(&self, kind: ApprovalKind, public_name: &str) -> Option<&ApprovalRow> {
        let mut named = self.approvals.iter().filter_map(|rows| rows.named(kind, public_name));
        named.find(|row| row.is_held())
    }

    /// Returns the prompt or skill that is offered or in the lock file under this name; of a label
    /// or a prompt with versions, the version that the name offers.
    pub fn approval_row(&self, kind: ApprovalKind, public_name: &str) -> Option<&ApprovalRow> {
        self.approvals.iter().find_map(|rows| rows.named(kind, public_name))
    }
}

impl CatalogContent {
    /// `segments` come in byte order of their names, and none is empty.
    pub fn new(
        generation: u64,
        segments: Vec<Arc<Segment>>,
        left_out: Vec<LeftOut>,
        look_alikes: Vec<LookAlike>,
    ) -> Self {
        let everyone = Arc::new(ListView::part(&segments, None, Segment::plain));
        Self { generation, segments, everyone, left_out, look_alikes, private: None }
    }

    /// The shared content with segments that only one caller sees. Private segments have separate
    /// name prefixes.
    pub(crate) fn with_private(generation: u64, private: PrivatePart) -> Self {
        let all = private.shared.segments.iter().chain(&private.segments);
        let mut segments: Vec<_> = all.cloned().collect();
        segments.sort_unstable_by(|a, b| a.last_name().cmp(b.last_name()));
        let private = Some(private);
        Self { private, ..Self::new(generation, segments, Vec::new(), Vec::new()) }
    }

    /// The segments, in byte order of the public names.
    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Finds the prompt that a tool stands for, by the tool's name. A name of derived form
    /// is never looked up as a public name.
    pub fn item_of_tool(&self, tool: &str) -> Option<&ListedItem> {
        if !is_derived(tool) {
            return self.item(tool);
        }
        self.segments.iter().find_map(|segment| {
            let position = segment.position_of_derived(tool)?;
            segment.items().get(position)
        })
    }

    /// All prompts and their versions, in the order of their names.
    pub fn items(&self) -> impl Iterator<Item = &ListedItem> {
        self.segments.iter().flat_map(|segment| segment.items())
    }

    /// The number of listed prompts, not counting versions of another prompt.
    pub fn prompt_count(&self) -> usize {
        self.everyone.len()
    }

    /// The number of listed prompts by upstream, not counting versions of another prompt.
    pub fn counts(&self) -> HashMap<&UpstreamId, usize> {
        let mut counts = HashMap::new();
        for segment in &self.segments {
            match segment.upstream() {
                Some(upstream) => *counts.entry(upstream).or_default() += segment.plain_len(),
                None => {
                    let items = segment.items().iter().filter(|item| !item.is_version());
                    items.for_each(|item| *counts.entry(&item.upstream).or_default() += 1);
                }
            }
        }
        counts
    }

    pub fn item(&self, public_name: &str) -> Option<&ListedItem> {
        let (segment, position) = self.find(public_name)?;
        segment.items().get(position)
    }

    /// The version of a prompt with this label or number, whether or not a view shows it.
    pub fn version(&self, of: &ListedItem, label_or_number: &str) -> Option<&ListedItem> {
        let raw_name = version_name(&of.raw_name, label_or_number);
        let is_part = |segment: &&Arc<Segment>| {
            segment.has_versions() && segment.upstream().is_none_or(|id| *id == of.upstream)
        };
        let mut segments = self.segments.iter().filter(is_part);
        segments.find_map(|segment| segment.version(&of.upstream, &raw_name))
    }

    /// The listed definition of a prompt.
    pub fn listed(&self, public_name: &str) -> Option<Json<'_>> {
        let (segment, position) = self.find(public_name)?;
        Some(segment.element(position))
    }

    fn find(&self, public_name: &str) -> Option<(&Arc<Segment>, usize)> {
        let at = self.segments.partition_point(|segment| segment.last_name() < public_name);
        let segment = self.segments.get(at)?;
        Some((segment, segment.position(public_name)?))
    }
}

impl Catalog {
    /// The `ttlMs` of a complete list that is made of some upstreams' lists: the least remaining
    /// time, at most `most`.
    pub fn ttl(
        &self,
        now: Instant,
        most: Duration,
        is_part: impl Fn(&UpstreamId) -> bool,
    ) -> Duration {
        let first = self.fresh_until.iter().find(|(_, upstream)| is_part(upstream));
        first.map_or(most, |(until, _)| until.duration_since(now).min(most))
    }

    /// Notes when the list of an upstream expires.
    pub(crate) fn note_fresh(&mut self, until: Instant, upstream: &UpstreamId) {
        let at = self.fresh_until.partition_point(|(known, _)| *known <= until);
        self.fresh_until.insert(at, (until, upstream.clone()));
    }
}

/// A new number for a list or content, larger than all earlier numbers.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The reason for an upstream that has not yet been asked for a list, or has not answered.
pub(crate) fn not_reported_yet() -> Kind {
    Kind::Unavailable("it has not answered yet".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ttl_is_the_least_time_left_of_what_is_seen_and_capped() {
        let now = Instant::now();
        let one = UpstreamId::parse("one").unwrap();
        let two = UpstreamId::parse("two").unwrap();
        let most = Duration::from_secs(300);
        let mut catalog = Catalog::default();
        assert_eq!(catalog.ttl(now, most, |_| true), most);
        catalog.note_fresh(now + Duration::from_secs(7), &two);
        catalog.note_fresh(now + Duration::from_secs(9), &one);
        assert_eq!(catalog.ttl(now, most, |_| true), Duration::from_secs(7));
        assert_eq!(catalog.ttl(now, most, |id| *id == one), Duration::from_secs(9));
        assert_eq!(catalog.ttl(now, most, |_| false), most);
        assert_eq!(catalog.ttl(now + Duration::from_secs(9), most, |_| true), Duration::ZERO);
    }
}
