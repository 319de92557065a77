//! Rollouts in the catalog: choose the version for a get or completion, and roll back when the new
//! version fails.

pub mod changes;
pub mod rollbacks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::broadcast;
use tracing::{info, warn};

use crate::RouterSharedState;
use audit::record::AuditEvent;
use base::platform::Locked;
use base::seal::Sealer;
use catalog::blocking::run_blocking;
use catalog::listed_item::ListedItem;
use catalog::reply::Reply;
use catalog::snapshot::Catalog;
use config::{Config, Transport};
use domain::approval::{ApprovalKind, Attribution};
use domain::calls::caller::{Caller, PROBER};
use domain::calls::rollout::{GetOutcome, Rollout, RolloutOutcomes, RolloutStep};
use domain::fault::{Fault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::name::{Naming, UpstreamId, version_name};
use domain::prompts::prompt_version::PromptVersion;
use domain::time::unix_time::UnixSeconds;
use policy::ServedVersion;
use rollbacks::RollbackNotice;
use upstream::Upstream;

/// The rollouts of one configuration.
pub struct Rollouts {
    /// The rollouts of the configuration, by the public names of the prompts.
    configured: BTreeMap<String, Arc<Rollout>>,
    /// The upstreams whose files have started rollouts.
    libraries: Vec<Arc<Upstream>>,
    naming: Naming,
    sealer: Arc<Sealer>,
    shared: Arc<RouterSharedState>,
    /// The file that keeps rollbacks; `None` without such a file ([`rollbacks::file_of`]).
    file: Option<PathBuf>,
    /// Why the rollbacks in the file are unknown.
    unread: Option<String>,
}

/// The states of all rollouts since the start, keyed by prompt and pair of versions, so that an
/// edit of the share keeps the state.
pub(super) struct RolloutStates {
    states: Mutex<Vec<RolloutState>>,
    /// Rollbacks and restarts in this process, for other replicas.
    news: broadcast::Sender<RollbackNotice>,
    /// Held while the file is written, so that the newest states are written last.
    writing: Mutex<()>,
    /// Whether the store of a cluster has the states, and whether they were read from it.
    is_replica: bool,
    is_read: AtomicBool,
}

/// Queue capacity for slow receivers. A rollout is rolled back once before a person restarts it.
const NEWS: usize = 64;

struct RolloutState {
    prompt: String,
    from: Arc<str>,
    to: Arc<str>,
    outcomes: RolloutOutcomes,
    /// Time of the last rollback or restart: of two replicas the newer one counts.
    changed: UnixSeconds,
    /// The last logged reason for not serving `to`.
    problem: Option<RolloutProblem>,
}

/// The prompt of a rollout by its public name, the old version and the new one.
type RolloutKey<'a> = (&'a str, &'a Arc<str>, &'a Arc<str>);

/// The version that a rollout has chosen for a call.
#[derive(Clone, Copy)]
pub(super) struct ChosenVersion<'a> {
    rollout: &'a Rollout,
    /// Whether `item` is the rollout's `to`.
    is_new: bool,
    /// The listed prompt, and the version (`item`) that is served in its place.
    pub listed: &'a ListedItem,
    pub item: &'a ListedItem,
}

/// Why a version is not served in the place of a prompt.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RolloutProblem {
    #[error("no upstream lists the prompt {0}")]
    NoPrompt(String),
    #[error("its upstream does not list {0}")]
    NotListed(String),
    #[error("approvals hold {name} back: {state}")]
    Held { name: String, state: &'static str },
    #[error(
        "{name} requires the argument {argument:?}, which the prompt does not: calls that fit the \
         list would fail"
    )]
    Argument { name: String, argument: String },
    #[error(
        "other overlays apply to {0} than to the prompt: write their `prompt` so that it matches both"
    )]
    Overlays(String),
    #[error("a restart would forget its rollback: set audit.path, or [cluster]")]
    Unkept,
    #[error("whether it was rolled back is unknown: {0}")]
    Unknown(String),
}

/// A rollout with its counts and problems in this replica.
#[derive(Clone, Debug)]
pub struct RolloutStatus {
    /// Public name of the prompt.
    pub prompt: String,
    pub rollout: Arc<Rollout>,
    /// Whether `rollouts.toml` has it, not the configuration.
    pub is_started: bool,
    /// The current share, and the next step.
    pub share: f64,
    pub next: Option<RolloutStep>,
    /// Gets that `to` has answered since the last (re)start, and how many of these gets failed.
    pub gets: u64,
    pub failed: u64,
    pub rolled_back: Option<UnixSeconds>,
    /// Why `to` is not served.
    pub problem: Option<RolloutProblem>,
    /// Why the plain prompt is served in the place of `from`.
    pub fallback: Option<RolloutProblem>,
}

impl RolloutStatus {
    /// `running`, `paused`, `blocked` (see `problem`) or `rolled_back`.
    pub fn state(&self) -> &'static str {
        match (&self.rolled_back, &self.problem) {
            (Some(_), _) => "rolled_back",
            (None, Some(_)) => "blocked",
            (None, None) if self.rollout.is_paused => "paused",
            (None, None) => "running",
        }
    }
}

impl Rollouts {
    pub(super) fn new(
        config: &Config,
        upstreams: &BTreeMap<UpstreamId, Arc<Upstream>>,
        sealer: Arc<Sealer>,
        shared: Arc<RouterSharedState>,
    ) -> Self {
        let file = rollbacks::file_of(config);
        let configured = config.rollouts.iter().cloned().collect();
        let has_files = |upstream: &&Arc<Upstream>| {
            matches!(upstream.config().transport, Transport::Library(_) | Transport::Git(_))
        };
        let libraries = upstreams.values().filter(has_files).cloned().collect();
        let naming = config.naming.clone();
        let read = file.as_deref().map_or(Ok(Vec::new()), rollbacks::read);
        let unread = read.as_ref().err().map(|error| {
            let path = file.as_deref().unwrap_or(Path::new("")).display();
            warn!(%path, %error, "the rollbacks of rollouts cannot be read");
            format!(
                "{path} cannot be read ({error}); begin it again, or repair the file and reload"
            )
        });
        for kept in read.iter().flatten() {
            shared.rollouts.apply(kept);
        }
        Self { configured, libraries, naming, sealer, shared, file, unread }
    }

    /// Returns why it is not known whether a rollout was rolled back, or would not be after a
    /// restart; `None` where it is known.
    fn unknown(&self, rollout: &Rollout) -> Option<RolloutProblem> {
        let states = &self.shared.rollouts;
        if states.is_replica {
            let why = || "the store of the cluster was not read yet".to_owned();
            let is_read = states.is_read.load(Ordering::Acquire);
            return (!is_read).then(|| RolloutProblem::Unknown(why()));
        }
        let unkept = || {
            (self.file.is_none() && rollout.rollback.is_some()).then_some(RolloutProblem::Unkept)
        };
        self.unread.clone().map(RolloutProblem::Unknown).or_else(unkept)
    }

    /// Chooses the version of a listed prompt for a caller; `None` without a rollout. The gateway's
    /// own probes always get the listed version, because people approve that version.
    pub(super) fn choose<'a>(
        &'a self,
        caller: &Caller,
        listed: &'a ListedItem,
        catalog: &'a Catalog,
        now: UnixSeconds,
    ) -> Option<ChosenVersion<'a>> {
        let started = || listed.version.as_ref()?.rollout.as_ref();
        let rollout = self.configured.get(&*listed.public_name).or_else(started)?;
        if caller.id() == PROBER {
            return None;
        }
        let hash = |text: &str| self.keyed_hash(text);
        let is_taken = rollout.takes(&listed.public_name, caller, now, hash);
        let new = is_taken.then(|| self.new_version(rollout, listed, catalog));
        let new = new.flatten();
        let item = new.or_else(|| old_version(catalog, listed, &rollout.from).ok());
        let item = item.unwrap_or(listed);
        Some(ChosenVersion { rollout, is_new: new.is_some(), listed, item })
    }

    /// A hash that callers cannot compute, equal on all replicas.
    fn keyed_hash(&self, text: &str) -> u64 {
        let blind = self.sealer.blind(text);
        blind.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// The new version, unless it was rolled back or cannot be served. Logs each change of the
    /// reason.
    fn new_version<'a>(
        &self,
        rollout: &Rollout,
        listed: &ListedItem,
        catalog: &'a Catalog,
    ) -> Option<&'a ListedItem> {
        let unknown = self.unknown(rollout);
        let found = new_version(catalog, listed, &rollout.to);
        self.shared.rollouts.with(key(&listed.public_name, rollout), |state| {
            if state.outcomes.rolled_back().is_some() {
                return None;
            }
            let unknown = unknown.filter(|_| !state.is_decided());
            let found = unknown.map_or(found, Err);
            let problem = found.as_ref().err();
            if state.problem.as_ref() != problem {
                let prompt = &listed.public_name;
                let to = &rollout.to;
                match problem {
                    Some(why) => warn!(%prompt, %to, %why, "a rollout serves no new version"),
                    None => info!(%prompt, %to, "a rollout serves its new version"),
                }
                state.problem = problem.cloned();
            }
            found.ok()
        })
    }

    /// Counts the outcome of a get for its version, and rolls back if the rule demands it.
    pub(super) fn note(
        &self,
        chosen: ChosenVersion<'_>,
        caller: &Caller,
        reply: &Result<Reply, Fault>,
        now: UnixSeconds,
    ) {
        let ChosenVersion { rollout, listed, .. } = chosen;
        let prompt = &listed.public_name;
        let has_failed = reply.as_ref().is_err_and(is_failure);
        let outcome = if has_failed { "failed" } else { "ok" };
        self.shared.telemetry.metrics().rolled_out(prompt, chosen.label(), outcome);
        if !chosen.is_new {
            return;
        }
        let get = GetOutcome { caller: self.keyed_hash(caller.id()), has_failed };
        let key = key(prompt, rollout);
        let (is_rolled_back, (gets, failed)) = self.shared.rollouts.with(key, |state| {
            let is_rolled_back = state.outcomes.note(get, rollout.rollback, now);
            if is_rolled_back {
                state.note_change(now);
            }
            (is_rolled_back, state.outcomes.counts())
        });
        if is_rolled_back {
            let to = &rollout.to;
            warn!(%prompt, %to, gets, failed, "a rollout was rolled back; `promptgate rollouts rearm` begins again");
            let event = rollout_event("rollout_rolled_back", key).number("gets", gets);
            self.shared.upstream_deps.audit.note(event.number("failed", failed));
            self.tell(key);
        }
    }

    /// Sends a rollback or restart to other replicas, and writes it to the file.
    fn tell(&self, key: RolloutKey<'_>) {
        let news = self.shared.rollouts.with(key, |state| state.news());
        // Without other replicas the channel has no receiver.
        let _ = self.shared.rollouts.news.send(news);
        self.keep(key);
    }

    /// Writes the state of a rollout, beside calls.
    fn keep(&self, (prompt, from, to): RolloutKey<'_>) {
        let (Some(file), shared) = (self.file.clone(), self.shared.clone()) else { return };
        let tasks = shared.upstream_deps.tasks.clone();
        let (prompt, from, to) = (prompt.to_owned(), from.clone(), to.clone());
        tasks.spawn(run_blocking(move || {
            let rollouts = &shared.rollouts;
            let _writing = rollouts.writing.locked();
            // Read the state under the lock: another change may have come first.
            let news = rollouts.with((&prompt, &from, &to), |state| state.news());
            rollbacks::record(&file, &news);
        }));
    }

    /// Rollbacks and restarts from now on, for other replicas.
    pub fn news(&self) -> broadcast::Receiver<RollbackNotice> {
        self.shared.rollouts.news.subscribe()
    }

    /// Applies the rollbacks and restarts that the store of a cluster has. Returns those that are
    /// newer here: the store could not be reached, or has lost them.
    pub fn follow_store(&self, kept: &[RollbackNotice]) -> Vec<RollbackNotice> {
        kept.iter().for_each(|notice| self.follow(notice));
        let states = &self.shared.rollouts;
        states.is_read.store(true, Ordering::Release);
        let states = states.states.locked();
        let own = states.iter().filter(|state| state.is_decided()).map(RolloutState::news);
        own.filter(|own| !kept.contains(own)).collect()
    }

    /// Applies a rollback or restart of another replica.
    pub fn follow(&self, news: &RollbackNotice) {
        let RollbackNotice { prompt, from, to, at, .. } = news;
        let (from, to) = (from.as_str().into(), to.as_str().into());
        let key = (prompt.as_str(), &from, &to);
        if self.shared.rollouts.apply(news) {
            let what = if at.is_some() { "was rolled back" } else { "began again" };
            info!(prompt, %to, "a rollout {what} on another replica, and here");
            self.keep(key);
        }
    }

    /// The rollouts, in the order of their prompts, with the lists of one snapshot.
    pub fn status(&self, catalog: &Catalog, now: UnixSeconds) -> Vec<RolloutStatus> {
        let status = |(prompt, (rollout, is_started)): (String, (Arc<Rollout>, bool))| {
            let key = key(&prompt, &rollout);
            let unknown = self.unknown(&rollout);
            let (outcomes, unknown) = self.shared.rollouts.with(key, |state| {
                (state.outcomes.clone(), unknown.filter(|_| !state.is_decided()))
            });
            let (gets, failed) = outcomes.counts();
            let listed = catalog.content.item(&prompt);
            let old = listed.map(|listed| old_version(catalog, listed, &rollout.from));
            RolloutStatus {
                share: rollout.share_at(now),
                next: rollout.next_step(now),
                gets,
                failed,
                rolled_back: outcomes.rolled_back(),
                problem: unknown.or_else(|| problem(catalog, &prompt, &rollout)),
                fallback: old.and_then(Result::err),
                is_started,
                prompt,
                rollout,
            }
        };
        self.all().into_iter().map(status).collect()
    }

    /// Returns the rollouts by public names, and whether each was started; the rollout of the
    /// configuration counts for its prompt.
    fn all(&self) -> BTreeMap<String, (Arc<Rollout>, bool)> {
        let mut all: BTreeMap<_, _> =
            self.started().map(|(prompt, rollout)| (prompt, (rollout, true))).collect();
        let configured = self.configured.iter();
        all.extend(configured.map(|(prompt, own)| (prompt.clone(), (own.clone(), false))));
        all
    }

    /// Whether the configuration has the rollout of a prompt.
    pub(super) fn is_configured(&self, prompt: &str) -> bool {
        self.configured.contains_key(prompt)
    }

    /// Returns the started rollouts by the public names of their prompts.
    fn started(&self) -> impl Iterator<Item = (String, Arc<Rollout>)> {
        self.libraries.iter().flat_map(|library| {
            let versions = library.library_versions();
            let prefix = &library.config().prefix;
            let public = |(name, rollout): (&String, &Arc<Rollout>)| {
                Some((self.naming.public(prefix, name).ok()?, rollout.clone()))
            };
            let rollouts = versions.iter().flat_map(|versions| &versions.rollouts);
            rollouts.filter_map(public).collect::<Vec<_>>()
        })
    }

    /// Rolls back the rollout of a prompt at `back_at`, or restarts it, and records the person
    /// (`by`). Returns whether that changed anything; `None` without a rollout of the prompt.
    pub fn step(
        &self,
        prompt: &str,
        back_at: Option<UnixSeconds>,
        now: UnixSeconds,
        Attribution { by, why, .. }: &Attribution,
    ) -> Option<bool> {
        let (rollout, _) = self.all().remove(prompt)?;
        let key = key(prompt, &rollout);
        let has_changed = self.shared.rollouts.with(key, |state| state.step(back_at, now));
        if has_changed {
            let kind = if back_at.is_some() { "rollout_rolled_back" } else { "rollout_rearmed" };
            let event =
                rollout_event(kind, key).text("by", by).optional_text("why", why.as_deref());
            self.shared.upstream_deps.audit.note(event);
        }
        // Sent even without a change here: the state may be known to another replica only.
        self.tell(key);
        Some(has_changed)
    }
}

impl RolloutStates {
    /// Creates states without rollbacks. A replica of a cluster serves no new version before
    /// [`Rollouts::follow_store`].
    pub(super) fn new(is_replica: bool) -> Self {
        let (news, _) = broadcast::channel(NEWS);
        let is_read = AtomicBool::new(false);
        Self { states: Mutex::default(), news, writing: Mutex::default(), is_replica, is_read }
    }

    /// Applies a rollback or restart of the file or of another replica, unless this process knows
    /// a newer one. Returns whether the state changed. The rollout may not be known here yet.
    fn apply(&self, notice: &RollbackNotice) -> bool {
        let RollbackNotice { prompt, from, to, at, changed } = notice;
        let (from, to) = (from.as_str().into(), to.as_str().into());
        let changed = UnixSeconds((*changed).max(at.unwrap_or_default()));
        self.with((prompt.as_str(), &from, &to), |state| {
            // Of two changes in one second, the rollback counts.
            let is_newer =
                (changed, at.is_some()) > (state.changed, state.outcomes.rolled_back().is_some());
            if !is_newer {
                return false;
            }
            let has_changed = state.step(at.map(UnixSeconds), changed);
            state.changed = changed;
            has_changed
        })
    }

    fn with<T>(&self, key: RolloutKey<'_>, change: impl FnOnce(&mut RolloutState) -> T) -> T {
        let mut states = self.states.locked();
        let at = states.iter().position(|state| state.is_of(key));
        let at = at.unwrap_or_else(|| {
            states.push(RolloutState::new(key));
            states.len() - 1
        });
        change(&mut states[at])
    }
}

impl RolloutState {
    fn new((prompt, from, to): RolloutKey<'_>) -> Self {
        let outcomes = RolloutOutcomes::default();
        let (prompt, from, to) = (prompt.to_owned(), from.clone(), to.clone());
        Self { prompt, from, to, outcomes, changed: UnixSeconds(0), problem: None }
    }

    fn is_of(&self, key: RolloutKey<'_>) -> bool {
        (&*self.prompt, &self.from, &self.to) == key
    }

    /// Whether the rollout was ever rolled back or restarted, so that its state is known.
    fn is_decided(&self) -> bool {
        self.changed != UnixSeconds(0)
    }

    /// Notes the time of a change. Clocks of replicas differ: it is newer than the one before.
    fn note_change(&mut self, now: UnixSeconds) {
        self.changed = now.max(UnixSeconds(self.changed.0 + 1));
    }

    /// Rolls back at `back_at`, or restarts. Returns whether the state changed.
    fn step(&mut self, back_at: Option<UnixSeconds>, now: UnixSeconds) -> bool {
        self.note_change(now);
        let is_change = self.outcomes.rolled_back().is_some() != back_at.is_some();
        if is_change {
            self.outcomes = back_at.map(RolloutOutcomes::after_rollback).unwrap_or_default();
        }
        is_change
    }

    fn news(&self) -> RollbackNotice {
        let at = self.outcomes.rolled_back().map(|at| at.0);
        let from = self.from.to_string();
        let to = self.to.to_string();
        RollbackNotice { prompt: self.prompt.clone(), from, to, at, changed: self.changed.0 }
    }
}

impl<'a> ChosenVersion<'a> {
    /// The label or version, as the configuration names it.
    pub(super) fn label(&self) -> &'a Arc<str> {
        if self.is_new { &self.rollout.to } else { &self.rollout.from }
    }

    /// The version, as records see it.
    pub(super) fn served(&self) -> ServedVersion<'a> {
        let ListedItem { public_name, raw_name, digest, version, .. } = self.item;
        let number = version.as_ref().map(|version| &*version.version);
        ServedVersion { public_name, raw_name, definition: digest, label: self.label(), number }
    }
}

fn key<'a>(prompt: &'a str, rollout: &'a Rollout) -> RolloutKey<'a> {
    (prompt, &rollout.from, &rollout.to)
}

/// Returns a version of a prompt.
fn version<'a>(
    catalog: &'a Catalog,
    listed: &ListedItem,
    label: &str,
) -> Result<&'a ListedItem, RolloutProblem> {
    let name = version_name(&listed.public_name, label);
    // A prompt server may list versions under names of the same form.
    let is_version = |item: &&ListedItem| {
        item.upstream == listed.upstream && *item.raw_name == version_name(&listed.raw_name, label)
    };
    let by_name = || catalog.content.item(&name).filter(is_version);
    let Some(item) = catalog.content.version(listed, label).or_else(by_name) else {
        return Err(match catalog.held(ApprovalKind::Prompt, &name) {
            Some(row) => RolloutProblem::Held { name, state: row.decision.state.as_str() },
            None => RolloutProblem::NotListed(name),
        });
    };
    let is_required = |name: &str| {
        listed.arguments.iter().any(|argument| argument.required && argument.name == name)
    };
    let mut required = item.arguments.iter().filter(|argument| argument.required);
    if let Some(argument) = required.find(|argument| !is_required(&argument.name)) {
        return Err(RolloutProblem::Argument { name, argument: argument.name.clone() });
    }
    let overlays =
        |item: &'_ ListedItem| item.overlay.as_ref().map(|overlay| overlay.numbers.clone());
    if overlays(item) != overlays(listed) {
        return Err(RolloutProblem::Overlays(name));
    }
    Ok(item)
}

/// Returns the version for callers in the share, unless it is not approved.
fn new_version<'a>(
    catalog: &'a Catalog,
    listed: &ListedItem,
    to: &str,
) -> Result<&'a ListedItem, RolloutProblem> {
    let item = version(catalog, listed, to)?;
    if item.approval.is_held {
        let name = version_name(&listed.public_name, to);
        let row = catalog.approval_row(ApprovalKind::Prompt, &name);
        let state = row.map_or("pending", |row| row.decision.state.as_str());
        return Err(RolloutProblem::Held { name, state });
    }
    Ok(item)
}

/// Returns the version for callers outside the share: the listed prompt, if it has this label or
/// number or if its version is unknown.
fn old_version<'a>(
    catalog: &'a Catalog,
    listed: &'a ListedItem,
    from: &str,
) -> Result<&'a ListedItem, RolloutProblem> {
    let is_it = |of: &Arc<PromptVersion>| *of.version == *from || of.label.as_deref() == Some(from);
    if listed.version.as_ref().is_some_and(is_it) {
        return Ok(listed);
    }
    match version(catalog, listed, from) {
        Err(RolloutProblem::NotListed(_)) if listed.version.is_none() => Ok(listed),
        found => found,
    }
}

/// Returns why the new version of a rollout is not served, with the lists of one snapshot.
pub fn problem(catalog: &Catalog, prompt: &str, rollout: &Rollout) -> Option<RolloutProblem> {
    match catalog.content.item(prompt) {
        Some(listed) => new_version(catalog, listed, &rollout.to).err(),
        None => Some(RolloutProblem::NoPrompt(prompt.to_owned())),
    }
}

/// Whether a get failed because of its version: the caller's arguments or credential do not count,
/// nor does an unreachable upstream.
fn is_failure(fault: &Fault) -> bool {
    let Fault::Upstream(UpstreamFault { kind, .. }) = fault else { return false };
    match kind {
        // Invalid params.
        Kind::Error { code, .. } => *code != -32602,
        Kind::Reset(_)
        | Kind::ChildExited(_)
        | Kind::Internal(_)
        | Kind::Timeout
        | Kind::Status { .. }
        | Kind::Protocol(_)
        | Kind::NoMessage { .. }
        | Kind::ServerRequestNotAllowed => true,
        Kind::NotApproved { are_arguments_approved, .. } => *are_arguments_approved,
        _ => false,
    }
}

fn rollout_event(event: &'static str, (prompt, from, to): RolloutKey<'_>) -> AuditEvent {
    AuditEvent::new(event).text("prompt", prompt).text("from", from).text("to", to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_of_arguments_and_absent_upstreams_are_no_failures_of_a_version() {
        let error = |code| Kind::Error { code, message: "no".to_owned(), data: None };
        let unapproved = |are_arguments_approved| Kind::NotApproved {
            approved: "a".into(),
            offered: "b".into(),
            are_arguments_approved,
        };
        let is_failure = |kind| is_failure(&Fault::upstream("up", kind));
        let by_version = [error(-32603), unapproved(true), Kind::Timeout];
        assert!(by_version.into_iter().all(is_failure));
        let by_others = [
            error(-32602),
            unapproved(false),
            Kind::TooLarge { limit: 1 },
            Kind::TooCostly,
            Kind::Busy,
            Kind::Unavailable(String::new()),
        ];
        assert!(!by_others.into_iter().any(is_failure));
    }
}
