//! Labels of library prompts: which versions they name, and their moves.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, timeout};

use super::Router;
use audit::record::AuditEvent;
use catalog::blocking::run_blocking;
use config::labels::{LabelMove, MoveError, move_label};
use config::{Library, Transport};
use domain::approval::{ApprovalKind, Decider, Mode};
use domain::name::version_name;
use library::{LibraryVersions, VersionsOfPrompt};
use upstream::Upstream;

/// The reason for refusing label moves in a git library.
const IN_REPOSITORY: &str = "labels.toml and rollouts.toml are in its git repository: change them there, and the gateway follows within `poll`";

/// Longest wait until a library was read again.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The labels of all libraries.
#[derive(Clone, Copy)]
pub struct LabelledPrompts<'a> {
    pub(super) router: &'a Router,
}

/// A library prompt that has versions.
#[derive(Clone, Debug)]
pub struct LabelledPrompt {
    /// Public name.
    pub name: String,
    pub upstream: String,
    /// Name in the library.
    pub raw_name: String,
    pub versions: VersionsOfPrompt,
    /// The version that the plain name serves to callers.
    pub served: Option<u32>,
    /// The tag of the current labels. A move that is based on these labels names it.
    pub tag: String,
    /// The commit, for a library in a git repository.
    pub commit: Option<Arc<str>>,
    /// `None` for a git library, whose labels cannot be moved here.
    library: Option<Library>,
}

/// A change of a label that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct LabelChange<'a> {
    pub label: &'a str,
    /// `None` removes the label.
    pub version: Option<u32>,
    /// Whether the prompt may get a label that it does not have.
    pub is_new: bool,
}

/// The versions and labels of a library prompt.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "LabelledPrompt"))]
#[serde(rename_all = "camelCase")]
pub struct LabelsDocument {
    /// Public name.
    pub name: String,
    pub upstream: String,
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1))))]
    pub versions: BTreeSet<u32>,
    /// The version of each label.
    pub labels: BTreeMap<String, u32>,
    /// The version that the plain name serves to callers: an earlier version where the labelled
    /// version is not approved.
    pub served: Option<u32>,
    /// The commit, for a library in a git repository.
    pub commit: Option<Arc<str>>,
    /// How labels are moved instead of through this API.
    pub read_only: Option<&'static str>,
    /// For `If-Match`.
    pub tag: String,
}

/// A label that was moved from a version to another, or removed.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MovedLabel {
    pub name: String,
    pub label: String,
    pub from: Option<u32>,
    /// `None`: the label was removed.
    pub to: Option<u32>,
}

impl LabelledPrompt {
    /// The prompt, as the admin API and commands show it.
    pub fn document(&self) -> LabelsDocument {
        LabelsDocument {
            name: self.name.clone(),
            upstream: self.upstream.clone(),
            versions: self.versions.numbers.clone(),
            labels: self.versions.labels.clone(),
            served: self.served,
            commit: self.commit.clone(),
            read_only: self.read_only(),
            tag: format!("\"{}\"", self.tag),
        }
    }

    /// A change of a label of this prompt, in the form of the admin API and commands.
    pub fn moved(&self, change: LabelChange<'_>, from: Option<u32>) -> MovedLabel {
        let label = change.label.to_owned();
        MovedLabel { name: self.name.clone(), label, from, to: change.version }
    }

    /// Returns the library with the files of the prompt.
    ///
    /// # Errors
    /// The files are in a git repository.
    pub(super) fn library(&self) -> Result<&Library, MoveError> {
        self.library.as_ref().ok_or_else(|| MoveError::Refused(IN_REPOSITORY.to_owned()))
    }

    /// Returns the label by which the plain name is served, or else the number of its version.
    pub(super) fn plain_label(&self) -> String {
        let label = self.library.as_ref().map(|library| &library.label);
        let label = label.filter(|label| self.versions.labels.contains_key(*label));
        let number = || self.versions.served.map(|number| number.to_string());
        label.cloned().or_else(number).unwrap_or_default()
    }

    /// Returns the number of the version that a label or number names.
    ///
    /// # Errors
    /// The prompt has no such version.
    pub(super) fn number(&self, version: &str) -> Result<u32, MoveError> {
        let VersionsOfPrompt { numbers, labels, .. } = &self.versions;
        let number = labels.get(version).copied().or_else(|| version.parse().ok());
        number.filter(|number| numbers.contains(number)).ok_or_else(|| {
            let known = labels.keys().cloned().chain(numbers.iter().map(u32::to_string));
            let known = known.collect::<Vec<_>>().join(", ");
            let name = &self.name;
            MoveError::Refused(format!("{name} has no version {version}; it has {known}"))
        })
    }

    /// How to move the labels if they are read-only; `None` if they can be moved here.
    pub fn read_only(&self) -> Option<&'static str> {
        self.library.is_none().then_some(IN_REPOSITORY)
    }
}

impl LabelledPrompts<'_> {
    /// All prompts that have versions, by upstreams and names.
    pub fn prompts(&self) -> Vec<LabelledPrompt> {
        self.of_upstreams(|_| true)
    }

    /// The prompt with this public name.
    pub fn prompt(&self, name: &str) -> Option<LabelledPrompt> {
        self.of_upstreams(|other| other == name).into_iter().next()
    }

    /// Returns the prompts whose public names pass `is_wanted`; no other prompt is built.
    fn of_upstreams(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<LabelledPrompt> {
        let upstreams = self.router.upstreams.values();
        upstreams.flat_map(|upstream| self.of_upstream(upstream, &is_wanted)).collect()
    }

    fn of_upstream(
        &self,
        upstream: &Upstream,
        is_wanted: &impl Fn(&str) -> bool,
    ) -> Vec<LabelledPrompt> {
        let Some(library) = upstream.library_versions() else { return Vec::new() };
        let catalog = self.router.catalog();
        let served = |name: &str| {
            let version = catalog.content.item(name)?.version.as_ref()?;
            version.version.parse().ok()
        };
        let config = upstream.config();
        let (commit, own) = match &config.transport {
            Transport::Library(library) => (None, Some(library.clone())),
            _ => (upstream.commit(), None),
        };
        let prompt = |(raw_name, versions): (&String, &VersionsOfPrompt)| {
            let name = self.router.lists.naming.public(&config.prefix, raw_name).ok()?;
            is_wanted(&name).then(|| LabelledPrompt {
                served: served(&name),
                name,
                upstream: config.id.to_string(),
                raw_name: raw_name.clone(),
                versions: versions.clone(),
                tag: library.file.tag(raw_name),
                commit: commit.clone(),
                library: own.clone(),
            })
        };
        library.prompts.iter().filter_map(prompt).collect()
    }

    /// Moves or removes a label of a prompt, records it, and returns the previous version. `tag` is
    /// the [`LabelledPrompt::tag`] that was shown to the person; `None` skips this check. Returns
    /// once the gateway has read the labels again, or after [`READ_TIMEOUT`].
    ///
    /// # Errors
    /// The labels have changed since `tag`, the move is refused, or the file cannot be written.
    pub async fn move_to(
        &self,
        prompt: &LabelledPrompt,
        change: LabelChange<'_>,
        tag: Option<String>,
        decider: &Decider,
    ) -> Result<Option<u32>, MoveError> {
        let attribution = decider.attribution(self.router.approval_rules.requires_reason);
        let attribution = attribution.map_err(|why| MoveError::Refused(why.to_string()))?;
        let Library { folder, label: served } = movable(prompt, change)?;
        if let Some(version) = change.version {
            self.check_approved(prompt, version)?;
        }
        let wanted = LabelMove {
            prompt: prompt.raw_name.clone(),
            label: change.label.to_owned(),
            version: change.version,
            // The label of the upstream is no slip.
            is_new: change.is_new || change.label == served,
            by: attribution.by,
            why: attribution.why,
        };
        let upstream = prompt.upstream.clone();
        let via = decider.via;
        let deps = &self.router.shared.upstream_deps;
        let audit = deps.audit.clone();
        let expected = self.router.shared.commanded.clone();
        // A spawned task finishes the move and its record even if the client disconnects.
        let moving = deps.tasks.spawn(run_blocking(move || {
            let version = wanted.version.map(|version| version.to_string()).unwrap_or_default();
            let names = [&upstream, &wanted.prompt, &wanted.label, &version];
            let commanded = names.map(Clone::clone);
            expected.expect(commanded.clone(), Instant::now());
            let from = move_label(&folder, &wanted, tag.as_deref())
                .inspect_err(|_| _ = expected.take(&commanded, Instant::now()))?;
            audit.note(event(from, &wanted, &upstream).text("via", via));
            Ok(from)
        }));
        let from = moving.await.unwrap_or_else(|error| resume_unwind(error.into_panic()))?;
        let _ = timeout(READ_TIMEOUT, self.until_read(prompt)).await;
        Ok(from)
    }

    /// Refuses a move to a version that is not approved while approvals are enforced: the label
    /// would go on serving the version before.
    pub(super) fn check_approved(
        &self,
        prompt: &LabelledPrompt,
        version: u32,
    ) -> Result<(), MoveError> {
        let name = version_name(&prompt.name, &version.to_string());
        let catalog = self.router.catalog();
        let rules = &self.router.approval_rules;
        let upstream = self.upstream(prompt);
        if upstream.is_none_or(|own| rules.mode_of(&own.config().id) != Mode::Enforce) {
            return Ok(());
        }
        let Some(row) = catalog.approval_row(ApprovalKind::Prompt, &name) else {
            let what = "is not examined yet; try again in a moment";
            return Err(MoveError::Refused(format!("{name} {what}")));
        };
        // The lock file may be newer than the catalog.
        let approval = rules.lock.approval(row.kind, row.upstream.as_str(), &row.raw_name);
        let approved = approval.or(row.approval.as_ref()).and_then(|own| own.approved.as_ref());
        let offered = row.offered.as_ref().map(|offered| &offered.version);
        let is_approved = |offered| approved.is_some_and(|own| own.version.matches(offered));
        if offered.is_some_and(is_approved) {
            return Ok(());
        }
        Err(MoveError::Refused(format!(
            "{name} is not approved, so no caller could get it. Approve it first: `promptgate \
             approvals approve {name}`; `promptgate labels set --approve` approves and moves a label"
        )))
    }

    fn upstream(&self, prompt: &LabelledPrompt) -> Option<&Upstream> {
        let mut upstreams = self.router.upstreams.values().map(AsRef::as_ref);
        upstreams.find(|upstream: &&Upstream| upstream.config().id.as_str() == prompt.upstream)
    }

    /// Waits until the labels of a prompt differ from the `shown` labels, so that the person sees
    /// the completed move.
    async fn until_read(&self, shown: &LabelledPrompt) {
        if let Some(upstream) = self.upstream(shown) {
            let is_other =
                |library: &LibraryVersions| library.file.tag(&shown.raw_name) != shown.tag;
            upstream.until_library_versions(is_other).await;
        }
    }
}

/// Returns the library; refuses read-only labels, unknown versions, and the removal of the label by
/// which the prompt is served.
fn movable(prompt: &LabelledPrompt, change: LabelChange<'_>) -> Result<Library, MoveError> {
    let library = prompt.library()?;
    if change.version.is_none() && change.label == library.label {
        return Err(MoveError::Refused(format!(
            "{} is served by {}: move the label, or set another `label` of the upstream first",
            prompt.name, change.label
        )));
    }
    if let Some(version) = change.version {
        prompt.number(&version.to_string())?;
    }
    Ok(library.clone())
}

/// The record of a move or removal.
fn event(from: Option<u32>, wanted: &LabelMove, upstream: &str) -> AuditEvent {
    let kind = if wanted.version.is_some() { "label_moved" } else { "label_removed" };
    let event = AuditEvent::new(kind).text("upstream", upstream);
    let mut event = event.text("prompt", &wanted.prompt).text("label", &wanted.label);
    if let Some(from) = from {
        event = event.number("from", from.into());
    }
    if let Some(to) = wanted.version {
        event = event.number("to", to.into());
    }
    event.text("by", &wanted.by).optional_text("why", wanted.why.as_deref())
}
