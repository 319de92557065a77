//! Status of the upstreams, for operators.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::time::Instant;

use super::snapshot::{Catalog, Incomplete, LeftOut, LeftOutBy, WalkInfo, not_reported_yet};
use domain::fault::UpstreamFaultKind;
use domain::name::UpstreamId;
use domain::protocol::revision::Revision;
use library::prompt_list::emptiness;
use upstream::Upstream;
use upstream::driver::{ConnectionState, Outage};
use upstream::held_removal::HeldRemoval;
use upstream::recent_calls::RecentSummary;
use upstream::stderr_tail::StderrTail;

/// The state of an upstream without a shared connection.
pub const PER_CALLER: &str = "per_caller";

/// The state of an upstream whose last walk has failed: its last good list is served, if any.
pub const STALE: &str = "stale";

/// The status of one upstream.
#[derive(Clone, Debug)]
pub struct UpstreamStatus {
    pub id: String,
    pub transport: &'static str,
    /// `connecting`, `up`, [`STALE`] or `down`; `per_caller` if each caller has separate
    /// connections and a private list.
    pub state: &'static str,
    /// The negotiated revision.
    pub revision: Option<Revision>,
    /// Whether the upstream sends `list_changed`.
    pub notifies: bool,
    /// The number of its listed prompts.
    pub listed: usize,
    /// The number of elements that are not listed because of a mistake in them or in their names.
    pub left_out: usize,
    /// The number of prompts that are held back, and of prompts that wait for a decision.
    pub held: usize,
    pub undecided: usize,
    /// Whether approvals are enforced and no prompt of the upstream is approved.
    pub nothing_approved: bool,
    /// The last successful walk of the list.
    pub walk: Option<WalkInfo>,
    /// Since when the upstream cannot be reached; `None` while it can.
    pub outage: Option<Outage>,
    /// When the open circuit breaker admits its next probe; `None` while closed.
    pub breaker_open_until: Option<Instant>,
    /// Calls in flight, and calls queued for the concurrency limit.
    pub load: (usize, usize),
    /// Whether the upstream was called since the start.
    pub was_called: bool,
    /// The calls in the last hour.
    pub recent: RecentSummary,
    /// The last stderr lines of the child process.
    pub stderr_tail: Arc<StderrTail>,
    /// The number of repairs to the upstream's messages, by kind.
    pub repairs: BTreeMap<&'static str, u64>,
    /// How often the driver failed and was restarted.
    pub driver_restarts: u64,
    /// The seconds by which list walks are delayed because the list changes again and again; 0
    /// without a delay.
    pub walk_pause: u64,
    /// The removal of many prompts that is held back.
    pub held_removal: Option<HeldRemoval>,
    /// The served commit of a git repository.
    pub commit: Option<Arc<str>>,
    /// Whether the upstream requires a sign-in by the operator.
    pub has_login: bool,
    /// Why the upstream cannot be called, or its list is stale or missing.
    pub failure: Option<UpstreamFaultKind>,
}

impl UpstreamStatus {
    /// Whether the upstream itself answers: a library or store with a stale list does not.
    pub fn is_reached(&self) -> bool {
        self.state == "up" || (self.state == STALE && self.revision.is_some())
    }

    /// Returns how many prompts wait for approval, and the command to approve them; `None` if no
    /// prompt waits.
    pub fn waiting(&self) -> Option<String> {
        match (self.undecided, self.nothing_approved) {
            (0, _) => None,
            (count, true) => {
                let waiting = prompts_wait(count);
                Some(format!("{waiting}, and nothing is approved yet: {REVIEW}"))
            }
            (count, false) => Some(waiting_sentence(count)),
        }
    }

    /// Returns what the source lists while a removal is held back, and until when.
    pub fn removal(&self) -> Option<String> {
        let HeldRemoval { served, listed, until } = self.held_removal?;
        let seconds = until.saturating_duration_since(Instant::now()).as_secs();
        Some(format!(
            "lists {listed} prompts; the {served} of before are served for {seconds} s more, \
             unless it lists its prompts again (hold_removals); if they were removed on purpose: \
             `promptgate upstreams accept {}`",
            self.id
        ))
    }

    /// A note for operators on an upstream that works without prompts, or whose list changes again
    /// and again.
    pub fn note(&self) -> Option<Cow<'static, str>> {
        if self.state == PER_CALLER {
            return Some("lists for each caller, on connections of the caller's own".into());
        }
        if let Some(removal) = self.removal() {
            return Some(removal.into());
        }
        if self.walk_pause > 0 {
            let seconds = self.walk_pause;
            let note = "changes its list again and again, so it is fetched at most every";
            return Some(format!("{note} {seconds} s").into());
        }
        let walk = self.walk.filter(|_| self.failure.is_none())?;
        let empty = emptiness(walk.pages, walk.prompts + walk.skills).map(Cow::Borrowed);
        let serves = |commit: &Arc<str>| Cow::Owned(format!("serves commit {commit}"));
        empty.or_else(|| self.commit.as_ref().map(serves))
    }
}

/// The command that shows the prompts to approve.
const REVIEW: &str = "`promptgate approvals review`";

/// Returns how many prompts wait for approval, and the command to approve them.
pub fn waiting_sentence(count: usize) -> String {
    format!("{} for approval: {REVIEW}", prompts_wait(count))
}

fn prompts_wait(count: usize) -> String {
    match count {
        1 => "1 prompt waits".to_owned(),
        _ => format!("{count} prompts wait"),
    }
}

/// The status of each upstream, with the lists of one snapshot.
pub fn statuses(
    upstreams: &BTreeMap<UpstreamId, Arc<Upstream>>,
    catalog: &Catalog,
) -> Vec<UpstreamStatus> {
    let counts = catalog.content.counts();
    let left_out = left_out_counts(catalog);
    let approvals = approval_counts(catalog);
    let status = |(id, upstream): (&UpstreamId, &Arc<Upstream>)| {
        let config = upstream.config();
        let missing = catalog.incomplete.iter().find(|part| part.upstream == *id);
        let failure = missing.map(|part| part.kind.clone());
        let is_stale = |part: &Incomplete| !part.has_prompts && part.kind != not_reported_yet();
        let negotiated = upstream.negotiated();
        let approvals = approvals.get(id).copied().unwrap_or_default();
        let (state, down) = match upstream.connection_state() {
            ConnectionState::Connecting => ("connecting", None),
            ConnectionState::Up(_) if missing.is_some_and(is_stale) => (STALE, None),
            ConnectionState::Up(_) => ("up", None),
            ConnectionState::Down(kind) => ("down", Some(kind)),
            ConnectionState::PerCaller => (PER_CALLER, None),
        };
        UpstreamStatus {
            id: id.to_string(),
            transport: config.transport.name(),
            state,
            revision: negotiated.and_then(|negotiated| negotiated.revision),
            notifies: negotiated.is_some_and(|negotiated| negotiated.notifies),
            listed: counts.get(id).copied().unwrap_or_default(),
            left_out: left_out.get(id.as_str()).copied().unwrap_or_default(),
            held: approvals.held,
            undecided: approvals.undecided,
            nothing_approved: approvals.held > 0 && approvals.approved == 0,
            walk: catalog.walks.get(id).copied().filter(|_| !config.lists_per_caller()),
            outage: upstream.outage(),
            breaker_open_until: upstream.breaker_open_until(),
            load: upstream.load(),
            was_called: upstream.was_called(),
            recent: upstream.recent(),
            stderr_tail: upstream.stderr_tail().clone(),
            repairs: upstream.repairs().counted(),
            driver_restarts: upstream.driver_restarts(),
            walk_pause: upstream.walk_pause(),
            held_removal: upstream.held_removal(),
            commit: upstream.commit(),
            has_login: config.login().is_some(),
            failure: down.or(failure),
        }
    };
    upstreams.iter().map(status).collect()
}

fn left_out_counts(catalog: &Catalog) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    let is_mistake =
        |left_out: &&LeftOut| matches!(left_out.by, LeftOutBy::Defect | LeftOutBy::Name);
    for left_out in catalog.content.left_out.iter().filter(is_mistake) {
        *counts.entry(&*left_out.upstream).or_default() += 1;
    }
    counts
}

/// Counts of one upstream's prompts by approval.
#[derive(Clone, Copy, Default)]
struct ApprovalCounts {
    held: usize,
    undecided: usize,
    approved: usize,
}

fn approval_counts(catalog: &Catalog) -> BTreeMap<&UpstreamId, ApprovalCounts> {
    let mut counts: BTreeMap<&UpstreamId, ApprovalCounts> = BTreeMap::new();
    for row in catalog.approvals.iter().flat_map(|rows| rows.iter()) {
        let counts = counts.entry(&row.upstream).or_default();
        counts.held += usize::from(row.is_held());
        counts.undecided += usize::from(row.is_waiting());
        let approved = row.approved();
        counts.approved += usize::from(approved.is_some());
    }
    counts
}
