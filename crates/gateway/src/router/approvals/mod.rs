//! Approvals: what people and the admin API decide on prompts. One code path changes the lock file.

mod asked;
mod comparison;
mod diff;
mod examined;
pub mod json;
mod lock_change;
pub mod notify;
mod parts;
pub(crate) mod probe;
pub mod prober;
pub mod words;

pub use crate::router::approval::{FoundVariant, SeenOtherwise};
pub use comparison::{ComparedMessage, compared_messages, compared_parts, compared_text};
pub(crate) use examined::Examinations;
pub use examined::{Examined, OfferedVersion};
pub use parts::{VersionPart, VersionParts};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tokio::time::timeout;

use diff::{ChangedPart, write_diff};
use lock_change::{ChangedLock, change_lock};
use probe::{Patience, Probe, ProbedText, offered_texts};

use crate::router::Router;
use crate::router::approval::{ApprovalRow, OfferedPrompt};
use crate::router::blocking::beside_calls;
use crate::upstream::library::{FileChange, source_object};
use base::seal;
use config::lock::{Lock, Object, Objects, StoreError};
use config::{Transport, UpstreamSettings};
use domain::approval::{
    Approval, Attribution, DigestText, NO_ARGUMENTS, OfferedText, Reason, Version, decide,
};
use domain::name::UpstreamId;

/// A decision on prompts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    /// Approves the offered versions. `unseen`: also those of which only the definition is
    /// compared.
    Approve { unseen: bool },
    /// Approves variants that callers found, beside the approved version of one prompt: by their
    /// digests, or the first 8 or more digits.
    ApproveVariants { digests: Vec<String> },
    /// Rejects the offered versions that wait for a decision.
    Reject,
    /// Takes approvals back, also of prompts that are not offered.
    Withdraw,
    /// Approves versions that were approved before: the newest, or the one with a digest.
    RollBack { to: Option<String> },
}

impl Action {
    /// The name of the member that lists the completed decisions.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Approve { .. } | Self::ApproveVariants { .. } => "approved",
            Self::Reject => "rejected",
            Self::Withdraw => "withdrawn",
            Self::RollBack { .. } => "rolledBack",
        }
    }
}

/// The author of a decision, and the reason.
#[derive(Clone, Debug)]
pub struct Decider {
    pub by: String,
    /// Another name of the person, such as an email address.
    pub known_as: Option<String>,
    pub why: Option<String>,
    /// `cli` or `admin`, for the audit log.
    pub via: &'static str,
    pub at: SystemTime,
}

/// Why nothing was decided.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    #[error("{0}")]
    Store(#[from] StoreError),
    /// With the patch that makes the change.
    #[error("{error}; apply this patch instead")]
    ReadOnly { error: StoreError, patch: String },
    #[error("{prompt}: {why}")]
    Refused { prompt: String, why: String },
    #[error("give a reason (`--why`, or `why` over the API): approvals.require_reason is set")]
    NoReason,
}

/// Prompts that are examined at once.
const EXAMINED_AT_ONCE: usize = 8;

/// The time for reading the source of a library prompt again, while its folder changes.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(10);

impl Router {
    /// Returns all prompts that are offered or in the lock file, by their public names.
    pub fn approval_rows(&self) -> Vec<ApprovalRow> {
        let catalog = self.catalog();
        let rows = catalog.approvals.iter().flat_map(|rows| rows.iter());
        let mut rows: Vec<_> = rows.map(|row| self.with_variants(row)).collect();
        rows.sort_by(|a, b| a.public_name.cmp(&b.public_name));
        rows
    }

    /// Returns the prompt that is offered or in the lock file under a public name.
    pub fn approval_row(&self, public_name: &str) -> Option<ApprovalRow> {
        let catalog = self.catalog();
        let mut rows = catalog.approvals.iter().flat_map(|rows| rows.iter());
        rows.find(|row| row.public_name == public_name).map(|row| self.with_variants(row))
    }

    /// A row with the variants of its prompt that wait now.
    fn with_variants(&self, row: &ApprovalRow) -> ApprovalRow {
        ApprovalRow { variants: self.shared.mismatches.variants(row), ..row.clone() }
    }

    /// Returns the digest of the lock file that this configuration was read with.
    pub fn lock_digest(&self) -> &str {
        &self.approvals.lock.digest
    }

    /// Returns once a configuration with this lock file is in use. Cancel safe.
    pub async fn lock_in_use(&self, digest: &str) {
        let mut newest = self.shared.lock.subscribe();
        // Fails only when the gateway has ended.
        let _ = newest.wait_for(|in_use| in_use == digest).await;
    }

    /// Fetches the texts and the source of the offered version of a prompt, as far as possible.
    ///
    /// # Errors
    /// The source of a library prompt has changed meanwhile, or cannot be read.
    pub async fn examine(&self, row: &ApprovalRow) -> Result<Examined, ApprovalError> {
        let Some(known) = &row.offered else {
            return Ok(Examined::known(row));
        };
        let OfferedPrompt { prompt, version: offered, .. } = known;
        let mut version = Version { texts: Default::default(), ..offered.version() };
        let mut objects =
            Objects::from([(offered.definition.clone(), Object::Json(prompt.canonical()))]);
        if let (Some(source), Some(digest)) = (&prompt.source, &offered.source) {
            let text = self.source_of(&row.upstream, source.path.clone()).await;
            let text = text.map_err(|why| refused(row, why))?;
            if seal::sha256_text(text.as_bytes()) != **digest {
                return Err(refused(row, "its file has changed meanwhile; try again".to_owned()));
            }
            objects.insert(digest.clone(), Object::Json(text));
        }
        let probe = Probe { router: self, row, offered: known, patience: Patience::Short };
        let texts = probe.texts().await;
        for (arguments, text) in &texts {
            if let ProbedText::Stable { digest, text } = text {
                version.texts.insert(arguments.clone(), digest.clone());
                objects.insert(digest.clone(), Object::Text(text.clone()));
            }
        }
        row.keep_variants(&mut version);
        let mut row = row.clone();
        let mut known = offered.clone();
        known.texts = offered_texts(&texts);
        // The difference shows them already.
        let is_offered = |text: &DigestText| {
            known.texts.values().any(|known| *known == OfferedText::Known(text.clone()))
        };
        row.variants.retain(|found| !is_offered(&found.digest));
        let mut seen: Vec<_> = seen_otherwise(&row, &known.texts).collect();
        let refused = self.shared.mismatches.last(&row);
        seen.extend(refused.filter(|refused| {
            version.digests().all(|digest| Some(digest) != refused.digest.as_ref())
        }));
        row.decision = decide(row.mode, row.approval.as_ref(), &known, || {
            row.decision.reason != Reason::ArgumentAdded
        });
        if let Some(offered) = &mut row.offered {
            offered.version = known;
        }
        let offered = Some(OfferedVersion { version, objects, texts });
        Ok(Examined { row, offered, seen_otherwise: seen, own_change: None })
    }

    /// Examines a prompt for a person who may decide on it. Returns what is to be shown, with the
    /// tag that the decision must name.
    ///
    /// # Errors
    /// As [`Router::examine`].
    pub async fn examine_to_show(
        &self,
        row: &ApprovalRow,
    ) -> Result<(Arc<Examined>, String), ApprovalError> {
        let examined = Arc::new(self.examine(row).await?);
        let tag = self.shared.examinations.keep(&examined);
        Ok((examined, tag))
    }

    /// Returns the examination of a prompt that was shown with this tag; `None` if it is not known
    /// here, or there was a decision on the prompt since.
    pub fn shown(&self, tag: &str, row: &ApprovalRow) -> Option<Arc<Examined>> {
        self.shared.examinations.shown(tag, row, self.decisions(row))
    }

    /// Returns notes on configured probes whose prompts are not offered.
    pub fn unused_probes(&self, examined: &[Examined]) -> Vec<String> {
        let is_offered = |name: &str| {
            examined.iter().any(|e| e.row.public_name == name && e.row.offered.is_some())
        };
        let probes = self.approvals.probes.iter().enumerate();
        let unused = probes.filter(|(_, probe)| !is_offered(&probe.prompt));
        unused
            .map(|(index, probe)| {
                format!("approvals.probes.{}: no prompt {} is offered", index + 1, probe.prompt)
            })
            .collect()
    }

    /// Examines several prompts, a few at once.
    ///
    /// # Errors
    /// As [`Router::examine`].
    pub async fn examine_all(
        self: &Arc<Self>,
        rows: Vec<ApprovalRow>,
    ) -> Result<Vec<Examined>, ApprovalError> {
        let mut examined = Vec::with_capacity(rows.len());
        let mut running = JoinSet::new();
        let mut rows = rows.into_iter().enumerate();
        loop {
            while running.len() < EXAMINED_AT_ONCE
                && let Some((index, row)) = rows.next()
            {
                let router = self.clone();
                running.spawn(async move { (index, router.examine(&row).await) });
            }
            match running.join_next().await {
                None => break,
                Some(Ok((index, outcome))) => examined.push((index, outcome?)),
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        examined.sort_by_key(|(index, _)| *index);
        Ok(examined.into_iter().map(|(_, examined)| examined).collect())
    }

    async fn source_of(&self, upstream: &UpstreamId, file: PathBuf) -> Result<String, String> {
        let Some((folder, config)) = self.library(upstream) else {
            return Err("its upstream is no library any more".to_owned());
        };
        let (folder, library) = (folder.to_owned(), upstream.to_string());
        let limit = config.settings.max_message;
        let reading = beside_calls(move || source_object(&folder, &library, &file, limit));
        let read = timeout(SOURCE_TIMEOUT, reading).await;
        read.unwrap_or_else(|_| Err("its file cannot be read in time".to_owned()))
    }

    /// Reads the file of a library prompt as it is now; `None` for prompts of other upstreams. No
    /// call is made.
    pub async fn library_parts(
        &self,
        upstream: &UpstreamId,
        raw_name: &str,
    ) -> Option<VersionParts> {
        let file = self.upstreams.get(upstream)?.library_file(raw_name)?;
        Some(VersionParts::of_source(self.source_of(upstream, file).await))
    }

    /// Returns the folder of a library; `None` for other upstreams.
    fn library(&self, upstream: &UpstreamId) -> Option<(&Path, &UpstreamSettings)> {
        let config = self.upstreams.get(upstream)?.config();
        match &config.transport {
            Transport::Library(folder) => Some((folder, config)),
            _ => None,
        }
    }

    /// Notes the library files that the person who decides has changed last, where git tells.
    async fn note_own_changes(&self, prompts: &mut [Examined], decider: &Decider) {
        for examined in prompts {
            let prompt = examined.row.offered.as_ref().map(|offered| &offered.prompt);
            let source = prompt.and_then(|prompt| prompt.source.as_ref());
            let Some((source, (folder, _))) = source.zip(self.library(&examined.row.upstream))
            else {
                continue;
            };
            let Ok(change) = FileChange::last(folder.join(&source.path)).await else { return };
            let mut names = std::iter::once(&decider.by).chain(&decider.known_as);
            examined.own_change = change.filter(|change| names.any(|name| change.is_by(name)));
        }
    }

    /// Carries out an action on prompts, all or none, and records it. `before` is the digest of the
    /// lock file on which the decision is based; `None` for the one that is there.
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
        let rules = self.approvals.clone();
        let mut decider = decider.clone();
        decider.why = decider.why.filter(|why| !why.trim().is_empty());
        if rules.requires_reason && decider.why.is_none() {
            return Err(ApprovalError::NoReason);
        }
        if rules.needs_two && matches!(action, Action::Approve { .. }) {
            self.note_own_changes(&mut prompts, &decider).await;
        }
        let attribution = Attribution {
            by: decider.by.clone(),
            at: humantime::format_rfc3339_seconds(decider.at).to_string(),
            why: decider.why.clone(),
        };
        let action = action.clone();
        let audit = self.audit().clone();
        // A task of its own: a client that disconnects must not leave a decision that is not on
        // record.
        let deciding = self.shared.upstream_deps.tasks.spawn(beside_calls(move || {
            let changed = change_lock(&rules, &action, &prompts, before.as_deref(), &attribution);
            changed.map(|ChangedLock { lock, versions, events, half }| {
                for event in events {
                    let event = event.text("by", &decider.by).text("via", decider.via);
                    audit.note(event.optional_text("why", decider.why.as_deref()));
                }
                DecisionOutcome { lock, versions, half }
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
        let mut out = self.approved_parts(row).diff(&examined.offered_parts(), &row.public_name);
        self.write_variants(row, &mut out);
        out
    }

    /// Returns the decisions on a prompt as the lock file has them: the catalog follows it a moment
    /// later.
    pub fn decisions(&self, row: &ApprovalRow) -> Option<&Approval> {
        self.approvals.lock.of_upstream(row.upstream.as_str())?.get(&*row.raw_name)
    }

    /// Reads the parts of the approved version; none if no version is approved. Blocks.
    pub fn approved_parts(&self, row: &ApprovalRow) -> VersionParts {
        let approved = row.approval.as_ref().and_then(|approval| approval.approved.as_ref());
        approved.map(|approved| self.version_parts(&approved.version)).unwrap_or_default()
    }

    /// Appends the differences of the variants that callers found to the approved texts. Blocks.
    fn write_variants(&self, row: &ApprovalRow, out: &mut String) {
        for found in &row.variants {
            let approved = self.approvals.store.object(&found.approved).unwrap_or_default();
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
    /// The public names of prompts that a second person must approve, too.
    pub half: Vec<String>,
}

/// Returns the consequences of a decision, as notes for people.
pub fn notes(action: &Action, examined: &[Examined]) -> Vec<String> {
    let mut notes = Vec::new();
    for Examined { row, offered, .. } in examined {
        let name = &row.public_name;
        if let Action::Approve { .. } = action {
            for (arguments, text) in offered.iter().flat_map(|offered| &offered.texts) {
                let with = match &**arguments {
                    NO_ARGUMENTS => String::new(),
                    arguments => format!(" with {arguments}"),
                };
                match text {
                    ProbedText::Stable { .. } => {}
                    ProbedText::Unstable => {
                        notes.push(format!(
                            "{name}: its text{with} is unstable, so the approval does not cover it"
                        ));
                    }
                    ProbedText::Failed(why) => {
                        notes.push(format!(
                            "{name}: the approval does not cover its text{with}: {why}"
                        ));
                    }
                }
            }
        } else if matches!(action, Action::RollBack { .. }) && offered.is_some() {
            notes.push(format!(
                "{name}: its upstream may offer another version; gets of another text are refused, or answered with \
                 the approved one where approvals.snapshot is set"
            ));
        }
    }
    notes
}

/// The texts that the gateway knew before, where they differ from those that were fetched now.
fn seen_otherwise(
    row: &ApprovalRow,
    now: &BTreeMap<Arc<str>, OfferedText>,
) -> impl Iterator<Item = SeenOtherwise> {
    let known = row.offered.iter().filter_map(|offered| Some((offered, offered.texts_since?)));
    let known = known.flat_map(|(offered, at)| {
        offered.version.texts.iter().map(move |(arguments, text)| (arguments, text, at))
    });
    let differs = |arguments, text| now.get(arguments).is_some_and(|now| now != text);
    known.filter(move |(arguments, text, _)| differs(*arguments, *text)).map(
        |(arguments, text, at)| {
            let digest = match text {
                OfferedText::Known(digest) => Some(digest.clone()),
                OfferedText::Unstable => None,
            };
            SeenOtherwise { arguments: Some(arguments.clone()), digest, at }
        },
    )
}

fn refused(row: &ApprovalRow, why: String) -> ApprovalError {
    ApprovalError::Refused { prompt: row.public_name.clone(), why }
}
