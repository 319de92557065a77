//! Gets of texts that are not approved: refused, served with a note, or answered with the approved
//! snapshot.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;
use tracing::error;

use super::approval::{ApprovalRow, DEPTH, SeenOtherwise};
use super::blocking::beside_calls;
use super::owner::Owner;
use super::reply::{self, PromptReply, Reply};
use super::{RoutedCall, Router, origin};
use audit::record::AuditEvent;
use base::platform::wall_clock;
use domain::approval::{ApprovalState, DigestText, NO_ARGUMENTS};
use domain::document::Document;
use domain::fault::{Fault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::name::UpstreamId;

/// The outcome of a get of a text that is not approved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Unapproved {
    Served,
    Refused,
    /// The approved text was served instead.
    Snapshot,
}

impl Unapproved {
    fn as_str(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Refused => "refused",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Prompts whose gets gave other texts than the approved ones, until they are probed.
#[derive(Default)]
pub(super) struct Mismatches {
    /// By upstream.
    prompts: Mutex<HashMap<UpstreamId, HashSet<Arc<str>>>>,
    added: watch::Sender<()>,
    /// The last text of each prompt that was not approved: its digest, and when.
    last: Mutex<HashMap<PromptKey, (DigestText, SystemTime)>>,
}

/// The upstream and raw name of a prompt.
type PromptKey = (UpstreamId, Arc<str>);

/// Prompts whose last text that was not approved is remembered; others then forget theirs.
const LAST_MISMATCHES: usize = 10_000;

impl Mismatches {
    /// Remembers the text of a get, to show it to those who decide.
    fn remember(&self, owner: &Owner, offered: &DigestText) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= LAST_MISMATCHES {
            last.clear();
        }
        let key = (owner.upstream.clone(), owner.raw_name.clone());
        last.insert(key, (offered.clone(), wall_clock()));
    }

    /// The last text of a prompt that a caller's get gave, and that was not approved.
    pub(super) fn last(&self, row: &ApprovalRow) -> Option<SeenOtherwise> {
        let key = (row.upstream.clone(), row.raw_name.clone());
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (digest, at) = last.get(&key)?.clone();
        Some(SeenOtherwise { arguments: None, digest: Some(digest), at })
    }

    fn add(&self, owner: &Owner) {
        let mut prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        prompts.entry(owner.upstream.clone()).or_default().insert(owner.raw_name.clone());
        self.added.send_replace(());
    }

    /// Marked changed whenever one is added.
    pub(super) fn added(&self) -> watch::Receiver<()> {
        self.added.subscribe()
    }

    /// The raw names of an upstream's prompts.
    pub(super) fn take(&self, upstream: &UpstreamId) -> HashSet<Arc<str>> {
        let mut prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        prompts.remove(upstream).unwrap_or_default()
    }
}

impl Router {
    /// Answers a get that failed with the approved text, if the upstream is gone or offers another
    /// text, and there is a snapshot for the arguments, which are in the form of approvals.
    ///
    /// # Errors
    /// The fault of the get.
    pub(super) async fn snapshot_or(
        &self,
        routed: &RoutedCall<'_>,
        arguments: Option<&str>,
        fault: Fault,
    ) -> Result<Reply, Fault> {
        let Fault::Upstream(UpstreamFault { kind, .. }) = &fault else {
            return Err(fault);
        };
        let is_refused = matches!(kind, Kind::NotApproved { .. });
        let is_gone = is_gone(kind, routed.upstream.config().acts_as_caller());
        let has_snapshot = arguments == Some(NO_ARGUMENTS) && (is_refused || is_gone);
        let snapshot = if has_snapshot { self.snapshot(routed).await } else { None };
        let outcome = if snapshot.is_some() { Unapproved::Snapshot } else { Unapproved::Refused };
        if is_refused {
            self.note_unapproved(routed.owner, &fault, outcome);
        }
        snapshot.map(Reply::Prompt).ok_or(fault)
    }

    /// Reads the approved text of a prompt without arguments; `None` if there is none, or it cannot
    /// be served.
    async fn snapshot(&self, routed: &RoutedCall<'_>) -> Option<PromptReply> {
        let owner = routed.owner;
        let approval = owner.approval.approved.clone().filter(|approval| approval.has_snapshot)?;
        let read = beside_calls(move || approval.snapshot()).await?;
        let name = &*owner.public_name;
        let text =
            read.inspect_err(|error| error!(%error, name, "snapshot cannot be read")).ok()?;
        let result = Document::parse(text.into_bytes(), DEPTH).ok()?;
        // Under the present rules, which may differ from those at its approval.
        let hidden_text = routed.upstream.config().settings.content;
        let checked = reply::prompt(result, origin(owner), hidden_text);
        let checked =
            checked.inspect_err(|fault| error!(%fault, name, "snapshot is refused")).ok()?;
        Some(PromptReply { overlay: owner.overlay.clone(), is_snapshot: true, ..checked })
    }

    /// Counts and records a get of a text that was not approved.
    pub(super) fn note_unapproved(&self, owner: &Owner, fault: &Fault, outcome: Unapproved) {
        let Fault::Upstream(UpstreamFault {
            kind: Kind::NotApproved { approved, offered }, ..
        }) = fault
        else {
            return;
        };
        let upstream = owner.upstream.as_str();
        // `count_tolerated` counts the gets of tolerated prompts.
        if !(outcome == Unapproved::Served && owner.approval.is_tolerated) {
            self.shared.telemetry.metrics().unapproved(upstream, outcome.as_str());
        }
        self.shared.mismatches.remember(owner, offered);
        // Its state changes with the next probe; once it has, gets cause no more probes.
        if owner.approval.state == ApprovalState::Approved {
            self.shared.mismatches.add(owner);
        }
        let event = AuditEvent::new("text_not_approved").text("upstream", upstream);
        let event = event.text("prompt", &owner.raw_name).text("approved", approved);
        self.audit().note(event.text("offered", offered).text("outcome", outcome.as_str()));
    }

    /// Counts a get of a prompt that is served although the offered version is not the approved
    /// one.
    pub(super) fn count_tolerated(&self, owner: &Owner) {
        if owner.approval.is_tolerated {
            let upstream = owner.upstream.as_str();
            self.shared.telemetry.metrics().unapproved(upstream, Unapproved::Served.as_str());
        }
    }
}

/// Whether the fault means that the upstream is unavailable. Where it is called as the caller, an
/// authorization failure or an HTTP error status is a decision about that caller, not an outage.
fn is_gone(kind: &Kind, as_caller: bool) -> bool {
    kind.is_no_answer()
        || matches!(kind, Kind::SessionLost)
        || !as_caller
            && matches!(
                kind,
                Kind::AuthFailed { .. }
                    | Kind::NoToken { .. }
                    | Kind::Status { .. }
                    | Kind::Paused { .. }
                    | Kind::Moved { .. }
            )
}
