//! Gets of what was not approved: refused, served with a note, or answered with the approved snapshot.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::blocking::beside_calls;
use super::owner::Owner;
use super::pin::DEPTH;
use super::reply::{PromptReply, Reply};
use super::{RoutedCall, Router, origin};
use crate::audit::record::Event;
use crate::domain::document::Document;
use crate::domain::fault::{Fault, UpstreamFault, UpstreamFaultKind as Kind};
use crate::domain::json::Json;
use crate::domain::name::UpstreamId;
use crate::domain::pin::State;

/// What became of a get of a text that was not approved.
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
    prompts: Mutex<HashSet<(UpstreamId, Arc<str>)>>,
    added: Notify,
}

impl Mismatches {
    fn add(&self, owner: &Owner) {
        let mut prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        prompts.insert((owner.upstream.clone(), owner.raw_name.clone()));
        self.added.notify_one();
    }

    /// Returns once there are some. Cancel safe.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    pub(super) fn take(&self) -> HashSet<(UpstreamId, Arc<str>)> {
        std::mem::take(&mut self.prompts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Router {
    /// Answers a get that failed with the approved text, if the upstream is gone or offers another text, and there is a
    /// snapshot for the arguments that the client gives.
    ///
    /// # Errors
    /// The fault of the get.
    pub(super) async fn snapshot_or(
        &self,
        routed: &RoutedCall<'_>,
        given: Option<Json<'_>>,
        fault: Fault,
    ) -> Result<Reply, Fault> {
        let Fault::Upstream(UpstreamFault { kind, .. }) = &fault else {
            return Err(fault);
        };
        let is_refused = matches!(kind, Kind::NotApproved { .. });
        let has_arguments = given.is_some_and(|given| given.members().next().is_some());
        let snapshot = match &routed.owner.pin.approved {
            Some(pin) if pin.has_snapshot && !has_arguments && (is_refused || is_gone(kind)) => {
                let pin = pin.clone();
                beside_calls(move || pin.snapshot()).await
            }
            _ => None,
        };
        let text = match snapshot {
            Some(Ok(text)) => Document::parse(text.into_bytes(), DEPTH).ok(),
            Some(Err(error)) => {
                let name = &*routed.owner.public_name;
                tracing::error!(%error, name, "approved snapshot cannot be served");
                None
            }
            None => None,
        };
        let Some(result) = text else {
            if is_refused {
                self.note_unapproved(routed.owner, &fault, Unapproved::Refused);
            }
            return Err(fault);
        };
        if is_refused {
            self.note_unapproved(routed.owner, &fault, Unapproved::Snapshot);
        }
        let mut prompt = PromptReply::of(result, origin(routed.owner));
        prompt.overlay.clone_from(&routed.owner.overlay);
        prompt.is_snapshot = true;
        Ok(Reply::Prompt(prompt))
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
        // What is tolerated anyway is counted once.
        if !(outcome == Unapproved::Served && owner.pin.is_tolerated) {
            self.shared.telemetry.metrics().unapproved(upstream, outcome.as_str());
        }
        // Its state changes with the next probe; once it has, gets cause no more probes.
        if owner.pin.state == State::Approved {
            self.shared.mismatches.add(owner);
        }
        let event = Event::new("text_not_approved").text("upstream", upstream);
        let event = event.text("prompt", &owner.raw_name).text("approved", approved);
        self.audit().note(event.text("offered", offered).text("outcome", outcome.as_str()));
    }

    /// Counts a get of a prompt that is served although the offered version is not the approved one.
    pub(super) fn count_tolerated(&self, owner: &Owner) {
        if owner.pin.is_tolerated {
            let upstream = owner.upstream.as_str();
            self.shared.telemetry.metrics().unapproved(upstream, Unapproved::Served.as_str());
        }
    }
}

/// Whether an upstream that fails so may be gone.
fn is_gone(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Unavailable(_)
            | Kind::Reset(_)
            | Kind::ChildExited(_)
            | Kind::ChildSilent { .. }
            | Kind::Timeout
            | Kind::SessionLost
            | Kind::AuthFailed { .. }
            | Kind::NoToken(_)
            | Kind::Status { .. }
    )
}
