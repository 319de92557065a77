//! Approvals: decisions of people and the admin API on prompts and skills. One code path changes
//! the lock file.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod action;
mod asked;
mod comparison;
mod diff;
mod examinations;
mod examined;
mod findings;
pub mod json;
mod lock_change;
mod notes;
pub mod notify;
mod pace;
mod parts;
mod probe;
pub mod prober;
pub mod skill_files;
pub mod words;

pub use action::{Action, ApprovalError};
pub use catalog::approval::{FoundVariant, SeenOtherwise};
pub use comparison::{ComparedMessage, compared_messages, compared_parts, compared_text};
pub use examined::{Examined, OfferedVersion, examine_all, try_offered};
pub use findings::OfferedFinding;
pub use notes::notes;
pub use parts::{VersionPart, VersionParts};

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use diff::{ChangedPart, write_diff};
use examinations::Examinations;
use lock_change::{ChangedLock, change_lock, own};
use pace::OwnPace;

use audit::Audit;
use calls::{Router, UpstreamDeps};
use catalog::approval::{ApprovalRow, OfferedPrompt};
use catalog::blocking::run_blocking;
use config::lock::Lock;
use config::{ApprovalRules, Config, Guard, Transport, UpstreamSettings};
use domain::approval::{Approval, ApprovalKind, Decider, Mode, Version};
use domain::name::UpstreamId;
use domain::prompts::prompt::SourcePlace;
use domain::text::percent;
use library::{FileChange, source_object};
use telemetry::Telemetry;

/// Time limit for rereading the source of a library prompt while its folder changes.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Most prompts of one library whose author git does not know; after that, a decision skips its
/// other prompts, because each question may take as long as a git call.
const MAX_UNKNOWN: usize = 3;

/// The approvals of one configuration: prompts that are offered or in the lock file, and decisions
/// on them.
pub struct Approvals {
    rules: ApprovalRules,
    router: Arc<Router>,
    /// The longest source of a prompt, in bytes (`max_message`), for each upstream whose prompts
    /// are files.
    libraries: BTreeMap<UpstreamId, usize>,
    /// The folders of the libraries whose files are edited in place.
    folders: BTreeMap<UpstreamId, PathBuf>,
    guards: Vec<Arc<Guard>>,
    shared: Arc<ApprovalsSharedState>,
}

/// State that the approvals of all editions share.
struct ApprovalsSharedState {
    examinations: Examinations,
    pace: OwnPace,
    /// The digest of the lock file of the newest configuration.
    lock: watch::Sender<String>,
    audit: Audit,
    tasks: TaskTracker,
    telemetry: Telemetry,
}

impl Approvals {
    /// The approvals of the first configuration and its router.
    pub fn start(config: &Config, router: Arc<Router>, deps: &UpstreamDeps) -> Self {
        let shared = ApprovalsSharedState {
            examinations: Examinations::default(),
            pace: OwnPace::default(),
            lock: watch::Sender::new(config.approvals.lock.digest.clone()),
            audit: deps.audit.clone(),
            tasks: deps.tasks.clone(),
            telemetry: deps.telemetry.clone(),
        };
        Self::new(config, router, Arc::new(shared))
    }

    /// The approvals of another configuration and its router.
    pub fn renew(&self, config: &Config, router: Arc<Router>) -> Self {
        Self::new(config, router, self.shared.clone())
    }

    fn new(config: &Config, router: Arc<Router>, shared: Arc<ApprovalsSharedState>) -> Self {
        let has_files = |upstream: &&UpstreamSettings| {
            matches!(upstream.transport, Transport::Library(_) | Transport::Git(_))
        };
        let libraries = config.upstreams.iter().filter(has_files);
        let max_source = |up: &UpstreamSettings| (up.id.clone(), up.settings.max_message);
        let libraries = libraries.map(max_source).collect();
        let folder = |up: &UpstreamSettings| match &up.transport {
            Transport::Library(library) => Some((up.id.clone(), library.folder.clone())),
            _ => None,
        };
        let folders = config.upstreams.iter().filter_map(folder).collect();
        let rules = config.approvals.clone();
        let guards = config.guards.clone();
        Self { rules, router, libraries, folders, guards, shared }
    }

    /// Returns all prompts that are offered or in the lock file, in the order of public names.
    pub fn rows(&self) -> Vec<ApprovalRow> {
        let catalog = self.router.catalog();
        let rows = catalog.approvals.iter().flat_map(|rows| rows.iter());
        let mut rows: Vec<_> = rows.map(|row| self.with_variants(row)).collect();
        rows.sort_by(|a, b| a.public_name.cmp(&b.public_name));
        rows
    }

    /// Returns the row of a name; see
    /// [`Catalog::approval_row`](catalog::snapshot::Catalog::approval_row).
    pub fn row(&self, public_name: &str) -> Option<ApprovalRow> {
        let catalog = self.router.catalog();
        let kinds = [ApprovalKind::Prompt, ApprovalKind::Skill];
        let row = kinds.into_iter().find_map(|kind| catalog.approval_row(kind, public_name));
        row.map(|row| self.with_variants(row))
    }

    /// A row with the waiting variants of its prompt.
    fn with_variants(&self, row: &ApprovalRow) -> ApprovalRow {
        ApprovalRow { variants: self.router.unapproved_texts().variants(row), ..row.clone() }
    }

    /// Whether each decision needs a reason.
    pub fn requires_reason(&self) -> bool {
        self.rules.requires_reason
    }

    /// Returns the digest of the lock file that this configuration uses.
    pub fn lock_digest(&self) -> &str {
        &self.rules.lock.digest
    }

    /// Notes that the gateway now answers requests with this configuration's lock file.
    pub fn publish_lock(&self) {
        self.shared.lock.send_replace(self.lock_digest().to_owned());
    }

    /// Returns once a configuration with this lock file is in use. Cancel safe.
    pub async fn lock_in_use(&self, digest: &str) {
        let mut newest = self.shared.lock.subscribe();
        // The wait fails only after the gateway has ended.
        let _ = newest.wait_for(|in_use| in_use == digest).await;
    }

    /// Examines a prompt for an approver. Returns the examination, with the tag that a decision
    /// must name.
    ///
    /// # Errors
    /// As [`Examined::now`].
    pub async fn examine(
        &self,
        row: &ApprovalRow,
    ) -> Result<(Arc<Examined>, String), ApprovalError> {
        let examined = Arc::new(Examined::now(self, row).await?);
        let tag = self.shared.examinations.keep(&examined);
        Ok((examined, tag))
    }

    /// Returns the shown examination with this tag; `None` if it is unknown here, or a decision on
    /// the prompt was made since.
    pub fn shown(&self, tag: &str, row: &ApprovalRow) -> Option<Arc<Examined>> {
        self.shared.examinations.shown(tag, row, self.decisions(row))
    }

    /// Returns notes on configured probes whose prompts are not offered.
    pub fn unused_probes(&self, examined: &[Examined]) -> Vec<String> {
        let is_offered =
            |name: &str| examined.iter().any(|e| e.row.is_named(name) && e.row.offered.is_some());
        let probes = self.rules.probes.iter().enumerate();
        let unused = probes.filter(|(_, probe)| !is_offered(&probe.prompt));
        unused
            .map(|(index, probe)| {
                format!("approvals.probes.{}: no prompt {} is offered", index + 1, probe.prompt)
            })
            .collect()
    }

    /// The upstreams whose prompts are probed without a person's request.
    pub fn probed_upstreams(&self) -> impl Iterator<Item = &UpstreamId> {
        let is_compared = |id: &&UpstreamId| self.rules.mode_of(id) != Mode::Off;
        self.router.upstream_ids().filter(|_| self.rules.is_probing).filter(is_compared)
    }

    /// Reads the current source of a library prompt without a call; `None` for prompts of other
    /// upstreams.
    pub async fn library_parts(
        &self,
        upstream: &UpstreamId,
        raw_name: &str,
    ) -> Option<VersionParts> {
        let place = self.router.upstream(upstream)?.library_source(raw_name)?;
        Some(VersionParts::of_source(self.source_of(upstream, place).await))
    }

    /// Reads the source of a library prompt again.
    async fn source_of(&self, upstream: &UpstreamId, place: SourcePlace) -> Result<String, String> {
        let (folder, file) = match place {
            SourcePlace::File { folder, path } => (folder, path),
            SourcePlace::Kept(source) => return Ok(source.to_string()),
        };
        let Some(limit) = self.libraries.get(upstream).copied() else {
            return Err("its upstream is no library any more".to_owned());
        };
        let library = upstream.to_string();
        let reading = run_blocking(move || source_object(&folder, &library, &file, limit));
        let read = timeout(SOURCE_TIMEOUT, reading).await;
        read.unwrap_or_else(|_| Err("its file cannot be read in time".to_owned()))
    }

    /// Notes for each prompt why this person's approval cannot be the second of two: the person has
    /// changed its library file last, or the last author is unknown.
    async fn note_own_changes(&self, prompts: &mut [Examined], decider: &Decider) {
        let mut unknown = BTreeMap::<PathBuf, Vec<String>>::new();
        for examined in prompts {
            let Some((place, library)) = self.place_of(&examined.row) else { continue };
            let unknown = unknown.entry(library.clone()).or_default();
            let last = match unknown.get(MAX_UNKNOWN - 1) {
                Some(why) => Err(why.clone()),
                None => FileChange::last(place, library).await,
            };
            let mut names = std::iter::once(&decider.by).chain(&decider.known_as);
            examined.not_second = match last {
                Ok(change) => {
                    change.filter(|change| names.any(|name| change.is_by(name))).map(|c| own(&c))
                }
                Err(why) => {
                    unknown.push(why.clone());
                    Some(why)
                }
            };
        }
    }

    /// Returns the file of a library prompt, or the folder of a library skill, with the library's
    /// folder. `None` for git upstreams: their remote writes the whole folder, which has no
    /// history.
    fn place_of(&self, row: &ApprovalRow) -> Option<(PathBuf, PathBuf)> {
        let OfferedPrompt { prompt, skill, .. } = row.offered.as_ref()?;
        let library = self.folders.get(&row.upstream)?;
        let place = match skill {
            Some(skill) => library.join(percent::decoded(&skill.path)?),
            None => match &prompt.source.as_ref()?.place {
                SourcePlace::File { path, .. } => path.clone(),
                SourcePlace::Kept(_) => return None,
            },
        };
        Some((place, library.clone()))
    }

    /// Applies an action to all prompts or to none, except a partial approval, and records it.
    /// `before` is the digest of the lock file on which the decision is based; `None` for the
    /// current lock file.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn decide(
        &self,
        action: &Action,
        mut prompts: Vec<Examined>,
        before: Option<String>,
        decider: &Decider,
    ) -> Result<DecisionOutcome, ApprovalError> {
        let rules = self.rules.clone();
        let attribution = decider.attribution(rules.requires_reason)?;
        let approves = matches!(action, Action::Approve { .. } | Action::ApproveVariants { .. });
        if rules.needs_two && approves {
            self.note_own_changes(&mut prompts, decider).await;
        }
        let action = action.clone();
        let via = decider.via;
        let audit = self.shared.audit.clone();
        // A spawned task finishes the decision and its record even if the client disconnects.
        let deciding = self.shared.tasks.spawn(run_blocking(move || {
            let changed = change_lock(&rules, &action, &prompts, before.as_deref(), &attribution);
            changed.map(|ChangedLock { lock, versions, events, half, refused }| {
                for event in events {
                    let event = event.text("by", &attribution.by).text("via", via);
                    audit.note(event.optional_text("why", attribution.why.as_deref()));
                }
                prompts.retain(|examined| !refused.contains_key(&examined.row.public_name));
                let notes = notes(&action, &prompts);
                DecisionOutcome { lock, versions, half, refused, notes }
            })
        }));
        match deciding.await {
            Ok(outcome) => outcome,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Returns the difference between the approved version of a prompt and the offered one, as a
    /// unified diff; empty if there is none. Blocks.
    pub fn diff(&self, examined: &Examined) -> String {
        let row = &examined.row;
        self.diff_of_parts(row, &self.approved_parts(row), &examined.offered_parts())
    }

    /// Like [`Self::diff`], for parts that were already read. Blocks.
    pub fn diff_of_parts(
        &self,
        row: &ApprovalRow,
        approved: &VersionParts,
        offered: &VersionParts,
    ) -> String {
        let mut out = approved.diff(offered, &row.public_name);
        self.write_variants(row, &mut out);
        out
    }

    /// Returns the decisions on a prompt from the lock file, which the catalog follows a moment
    /// later.
    pub fn decisions(&self, row: &ApprovalRow) -> Option<&Approval> {
        self.rules.lock.approval(row.kind, row.upstream.as_str(), &row.raw_name)
    }

    /// Reads the parts of a version in the lock file. Blocks.
    pub fn version_parts(&self, version: &Version) -> VersionParts {
        VersionParts::read(&self.rules.store, version)
    }

    /// Reads the parts of the approved version; empty without an approved version. Blocks.
    pub fn approved_parts(&self, row: &ApprovalRow) -> VersionParts {
        let approved = row.approved();
        approved.map(|approved| self.version_parts(&approved.version)).unwrap_or_default()
    }

    /// Appends the differences between the approved texts and the variants of callers. Blocks.
    fn write_variants(&self, row: &ApprovalRow, out: &mut String) {
        for found in &row.variants {
            let approved = self.rules.store.object(&found.approved).unwrap_or_default();
            let what =
                format!("{} (variant {} with {})", row.public_name, found.digest, found.arguments);
            write_diff(&ChangedPart { what, approved: &approved, offered: &found.text }, out);
        }
    }
}

/// The result of a decision.
#[derive(Debug)]
pub struct DecisionOutcome {
    /// The new lock file.
    pub lock: Lock,
    /// The version of each prompt that was decided on.
    pub versions: Vec<Version>,
    /// The public names of prompts that still need a second person's approval.
    pub half: Vec<String>,
    /// The public names of prompts that a partial approval has left out, with the reasons.
    pub refused: BTreeMap<String, String>,
    /// Remarks, such as on texts that an approval does not cover.
    pub notes: Vec<String>,
}
