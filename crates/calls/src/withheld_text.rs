//! Gets of texts that differ from the approved one: withheld, served with a note, or answered with
//! the approved snapshot.

use std::sync::Arc;

use tracing::error;

use super::RouterSharedState;
use super::routed_prompt::RoutedPrompt;
use super::verified_texts::OtherText;
use audit::record::AuditEvent;
use catalog::approval::{DEPTH, ExpectedText};
use catalog::listed_item::ListedItem;
use catalog::reply::{self, PromptReply, Reply, ResultOrigin};
use domain::approval::ApprovalState;
use domain::calls::fair_share::Holder;
use domain::fault::{Fault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::json::document::Document;
use domain::prompts::hidden_text::HiddenText;
use upstream::guard::large_texts::{AT_ONCE, work_on};

/// The outcome of a get whose text is not approved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Unapproved {
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

/// Compares a checked result with the approved text. Another text is withheld where approval is
/// enforced, and served with a note otherwise. Returns whether the text is approved.
pub(super) async fn withhold_other_text(
    shared: &Arc<RouterSharedState>,
    routed: &RoutedPrompt<'_>,
    expected: &ExpectedText<'_>,
    result: &Document,
) -> Result<bool, Fault> {
    let item = routed.item;
    // The length of the text, not of its buffer, which may be larger.
    let bytes = result.json().text().len();
    let verified = if bytes <= AT_ONCE {
        let settings = &routed.admitted.upstream.config().settings;
        let treat = |filled| treated(filled, routed.origin(), settings.content);
        shared.verified.verify(expected, result, settings.max_message, treat)
    } else {
        Box::pin(verify_large(shared, routed, expected, result, bytes)).await
    };
    let Err(other) = verified else { return Ok(true) };
    shared.unapproved_texts.found(routed, expected, &other);
    let approved = expected.digest().clone();
    let offered = other.digest;
    let are_arguments_approved = !matches!(expected, ExpectedText::Nothing { .. });
    let kind = Kind::NotApproved { approved, offered, are_arguments_approved };
    let fault = Fault::upstream(item.upstream.as_str(), kind);
    if item.approval.approved.as_ref().is_some_and(|approval| approval.is_enforced) {
        return Err(fault);
    }
    note_unapproved(shared, item, &fault, Unapproved::Served);
    Ok(false)
}

/// Compares a large result beside the calls.
async fn verify_large(
    shared: &Arc<RouterSharedState>,
    routed: &RoutedPrompt<'_>,
    expected: &ExpectedText<'_>,
    result: &Document,
    bytes: usize,
) -> Result<(), OtherText> {
    let shared = shared.clone();
    let approved = routed.item.approval.approved.clone();
    let arguments = expected.arguments().to_owned();
    let origin = routed.origin();
    let settings = &routed.admitted.upstream.config().settings;
    let hidden_text = settings.content;
    let most = settings.max_message;
    let holder = Holder::of(&routed.admitted.call.caller, routed.admitted.call.address);
    let result = result.clone();
    let verify = move || {
        let expected = approved.as_ref().and_then(|approved| approved.known(&arguments));
        let Some(expected) = expected else { return Err(OtherText::of_result(&result)) };
        let treat = |filled| treated(filled, origin.clone(), hidden_text);
        shared.verified.verify(&expected, &result, most, treat)
    };
    work_on(bytes, &holder, verify).await
}

/// Repairs a filled-in approved text as a result is repaired; `None` if the checks refuse it.
fn treated(filled: Document, origin: ResultOrigin, hidden_text: HiddenText) -> Option<Document> {
    let treated = reply::prompt(filled, origin, hidden_text).ok();
    treated.map(|treated| treated.result)
}

/// Answers a failed get with the approved text, if the upstream is down or offers another text, and
/// a snapshot exists for the arguments.
pub(super) async fn snapshot_or(
    shared: &RouterSharedState,
    routed: &RoutedPrompt<'_>,
    expected: Option<&ExpectedText<'_>>,
    fault: Fault,
) -> Result<Reply, Fault> {
    let Fault::Upstream(UpstreamFault { kind, .. }) = &fault else {
        return Err(fault);
    };
    let is_refused = matches!(kind, Kind::NotApproved { .. });
    let is_gone = is_gone(kind, routed.admitted.upstream.config().acts_as_caller());
    let snapshot = snapshot(routed, expected.filter(|_| is_refused || is_gone)).await;
    let outcome = if snapshot.is_some() { Unapproved::Snapshot } else { Unapproved::Refused };
    if is_refused {
        note_unapproved(shared, routed.item, &fault, outcome);
    }
    snapshot.map(Reply::Prompt).ok_or(fault)
}

/// Answers a get of a prompt that its upstream does not list with the approved text.
pub(super) async fn snapshot_alone(
    routed: &RoutedPrompt<'_>,
    expected: Option<&ExpectedText<'_>>,
) -> Result<Reply, Fault> {
    snapshot(routed, expected).await.map(Reply::Prompt).ok_or_else(|| {
        let why = Kind::Unavailable("it has not been listed since the start".to_owned());
        Fault::upstream(routed.item.upstream.as_str(), why)
    })
}

/// Returns the approved text of a get, with its arguments filled in; `None` without a snapshot, or
/// if the snapshot cannot be served.
async fn snapshot(
    routed: &RoutedPrompt<'_>,
    expected: Option<&ExpectedText<'_>>,
) -> Option<PromptReply> {
    let expected = expected?;
    let item = routed.item;
    let approval = item.approval.approved.as_ref().filter(|approval| approval.has_snapshot)?;
    let name = &*item.public_name;
    let most = routed.admitted.upstream.config().settings.max_message;
    let read = approval.snapshot(expected, most).await;
    let text = read.inspect_err(|error| error!(%error, name, "snapshot cannot be read")).ok()??;
    let result = Document::parse(text.into_bytes(), DEPTH).ok()?;
    // Checked under the current rules, which may have changed since the approval.
    let hidden_text = routed.admitted.upstream.config().settings.content;
    let checked = reply::prompt(result, routed.origin(), hidden_text);
    let checked = checked.inspect_err(|fault| error!(%fault, name, "snapshot is refused")).ok()?;
    let overlay = item.overlay.clone();
    Some(PromptReply { overlay, is_snapshot: true, is_proved: true, ..checked })
}

/// Counts and records a get of a text that was not approved.
fn note_unapproved(
    shared: &RouterSharedState,
    item: &ListedItem,
    fault: &Fault,
    outcome: Unapproved,
) {
    let Fault::Upstream(UpstreamFault {
        kind: Kind::NotApproved { approved, offered, .. }, ..
    }) = fault
    else {
        return;
    };
    let upstream = item.upstream.as_str();
    // `count_tolerated` counts the gets of tolerated prompts.
    if !(outcome == Unapproved::Served && item.approval.is_tolerated) {
        shared.telemetry.metrics().unapproved(upstream, outcome.as_str());
    }
    shared.unapproved_texts.remember(item, offered);
    // The source may have changed before any get showed a new text. The next probe updates the
    // state; from then on, gets cause no more probes.
    let version = item.approval.approved.as_ref().map(|approved| &approved.version);
    let has_source = version.is_some_and(|version| version.source.is_some());
    if has_source && item.approval.state == ApprovalState::Approved {
        shared.unapproved_texts.add(item);
    }
    let event = AuditEvent::new("text_not_approved").text("upstream", upstream);
    let event = event.text("prompt", &item.raw_name).text("approved", approved);
    shared
        .upstream_deps
        .audit
        .note(event.text("offered", offered).text("outcome", outcome.as_str()));
}

/// Counts a get of a prompt that is served although the offered version is not the approved
/// one.
pub(super) fn count_tolerated(shared: &RouterSharedState, item: &ListedItem) {
    if item.approval.is_tolerated {
        let upstream = item.upstream.as_str();
        shared.telemetry.metrics().unapproved(upstream, Unapproved::Served.as_str());
    }
}

/// Whether the fault means that the upstream is unavailable. With `as_caller`, an authorization
/// failure or an HTTP error status is a decision about that caller, not an outage.
pub(super) fn is_gone(kind: &Kind, as_caller: bool) -> bool {
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
