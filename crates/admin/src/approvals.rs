//! `/api/v1/approvals`: lists the states of approval, and takes decisions over the same code path
//! as `promptgate approvals`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::ETAG;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout, timeout_at};

use super::AdminState;
use super::answer::{AdminAnswer, ErrorDocument};
use super::sign_in::Visitor;
use ::approvals::json::{ApprovalDocument, ShownApproval, tag};
use ::approvals::{Action, ApprovalError, DecisionOutcome, Examined, examine_all};
use audit::usage::RecentUses;
use base::platform::wall_clock;
use base::seal;
use catalog::approval::ApprovalRow;
use catalog::blocking::run_blocking;
use domain::name::UpstreamId;

/// Longest wait for the configuration with the changed lock file. The gateway reads a lock file
/// when two polls in a row find the same digest.
const APPLIED: Duration = Duration::from_secs(5);

/// A decision on prompts, as the body of a POST.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionRequest {
    /// Public names, at least one.
    pub prompts: Vec<String>,
    /// The person who decides; counts only with the token. A person who signed in at the provider
    /// is recorded under their own id.
    pub by: Option<String>,
    pub why: Option<String>,
    /// For a rollback: a digest, or its first eight or more digits.
    pub to: Option<String>,
    /// Whether to approve a prompt whose texts are unknown, by its definition alone.
    #[serde(default)]
    pub unseen: bool,
    /// To approve variants beside the approved version, and nothing else: their digests, or the
    /// first eight or more digits.
    #[serde(default)]
    pub variants: Vec<String>,
    /// Whether to approve the prompts that can be approved, and to name the others in `refused`.
    #[serde(default)]
    pub partial: bool,
    /// The tags of the shown prompts, instead of `If-Match`: a header has no room for many.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// A decision that was not carried out.
pub(super) type Refusal = (StatusCode, ErrorDocument);

/// The document of `/api/v1/approvals`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct ApprovalList {
    /// Digest of the lock file; `none` without one.
    lock: String,
    /// Whether `admin.write` is set.
    takes_decisions: bool,
    /// Whether each decision needs a reason (`approvals.require_reason`).
    requires_reason: bool,
    prompts: Vec<ListedApproval>,
}

/// A prompt or skill as it is known without a probe.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ListedApproval {
    #[serde(flatten)]
    approval: ApprovalDocument,
    /// The entity tag of this prompt, for `If-Match` of a decision on it alone.
    tag: String,
}

/// A prompt or skill as its upstream offers it now.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ExaminedApproval {
    #[serde(flatten)]
    shown: ShownApproval,
    uses: RecentUses,
    /// Definition, source and texts of the offered version, by digest.
    objects: BTreeMap<Arc<str>, String>,
}

/// The outcome of a decision.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct Decided {
    #[serde(flatten)]
    prompts: DecidedPrompts,
    /// Prompts that another person must approve, too.
    needs_second_person: Vec<String>,
    /// Prompts that a partial approval has left out, with the reasons.
    pub refused: BTreeMap<String, String>,
    /// Digest of the lock file.
    lock: String,
    /// Whether the gateway uses the new lock file.
    applied: bool,
    /// Remarks, such as on texts that the approval does not cover.
    notes: Vec<String>,
}

/// The prompts on which was decided, under the name of the decision.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
enum DecidedPrompts {
    Approved(Vec<String>),
    Rejected(Vec<String>),
    Withdrawn(Vec<String>),
    RolledBack(Vec<String>),
}

impl DecidedPrompts {
    fn of(action: &Action, names: Vec<String>) -> Self {
        match action {
            Action::Approve { .. } | Action::ApproveVariants { .. } => Self::Approved(names),
            Action::Reject => Self::Rejected(names),
            Action::Withdraw => Self::Withdrawn(names),
            Action::RollBack { .. } => Self::RolledBack(names),
        }
    }
}

/// Returns the document of `/api/v1/approvals`.
pub(super) fn all(state: &AdminState) -> ApprovalList {
    document(state, &state.approvals.rows())
}

/// The answer with that document, and its entity tag.
pub(super) fn answer(state: &AdminState) -> AdminAnswer {
    let document = all(state);
    AdminAnswer::json(StatusCode::OK, &document).with(ETAG, &entity_tag(&document))
}

fn document(state: &AdminState, rows: &[ApprovalRow]) -> ApprovalList {
    let row = |row: &ApprovalRow| {
        let known = Examined::known(row);
        ListedApproval { approval: ApprovalDocument::of(&known), tag: tag(&known) }
    };
    ApprovalList {
        lock: state.approvals.lock_digest().to_owned(),
        takes_decisions: state.admin.write,
        requires_reason: state.approvals.requires_reason(),
        prompts: rows.iter().map(row).collect(),
    }
}

/// Returns the document of `/api/v1/approvals/{name}`: the prompt as its upstream offers it
/// now, with the texts, the difference to the approved version, and the tag for a decision on
/// exactly that.
pub(super) async fn one(
    state: &AdminState,
    name: &str,
    until: Instant,
) -> Result<ExaminedApproval, NotShown> {
    let Shown { examined, tag } = show(state, name, until).await?;
    let approvals = state.approvals.clone();
    let (diff, examined) = run_blocking(move || (approvals.diff(&examined), examined)).await;
    let shown = ShownApproval { tag, ..ShownApproval::of(&examined, diff) };
    let offered = examined.offered.iter().flat_map(|offered| &offered.objects);
    let offered = offered.map(|(digest, object)| (digest, object.json()));
    let variants = examined.row.variants.iter().map(|found| (&found.digest, (*found.text).into()));
    let objects = offered
        .chain(variants)
        .map(|(digest, text): (_, Cow<'_, str>)| (digest.clone(), text.into_owned()))
        .collect();
    Ok(ExaminedApproval { shown, uses: uses_of(state, name, until).await, objects })
}

/// Counts the callers of a prompt in the last week.
pub(super) async fn uses_of(state: &AdminState, name: &str, until: Instant) -> RecentUses {
    let query = RecentUses::query(name, wall_clock());
    RecentUses::of(state.usage_report(&query, None, until).await)
}

/// Examines a prompt for a person who may decide on it.
pub(super) async fn show(
    state: &AdminState,
    name: &str,
    until: Instant,
) -> Result<Shown, NotShown> {
    let row = state.approvals.row(name).ok_or(NotShown::Unknown)?;
    match timeout_at(until, state.approvals.examine(&row)).await {
        Err(_) => {
            Err(NotShown::Late { upstream: row.upstream, within: state.admin.render_timeout })
        }
        Ok(Err(error)) => Err(NotShown::Failed(error)),
        Ok(Ok((examined, tag))) => Ok(Shown { examined, tag }),
    }
}

/// Carries a decision out. `if_match` is the entity tag of the document on which it is based
/// (RFC 9110, section 13.1.1); for one prompt, the tag of its row, page or document will do.
/// Without it the decision has the tags of all prompts.
pub(super) async fn decide(
    state: &AdminState,
    action: Action,
    decision: DecisionRequest,
    visitor: &Visitor,
    if_match: Option<&str>,
) -> Result<Decided, Refusal> {
    let if_match = if_match.into_iter().flat_map(|tags| tags.split(','));
    let tags = if_match.chain(decision.tags.iter().map(String::as_str));
    let tags: Vec<&str> = tags.map(str::trim).collect();
    if tags.is_empty() {
        let error = "send the tag of the page or document that shows what is decided on in If-Match: the ETag of \
                     GET /api/v1/approvals, or `tag` of a prompt";
        return Err((StatusCode::PRECONDITION_REQUIRED, ErrorDocument::new(error)));
    }
    // One snapshot of the catalog, so that the decision is on the version that the tag names.
    let rows = state.approvals.rows();
    let chosen = chosen(&rows, &decision.prompts)?;
    let lock = state.approvals.lock_digest().to_owned();
    let examined = decided_on(state, &action, &tags, &rows, chosen).await?;
    let action = match action {
        Action::RollBack { .. } => Action::RollBack { to: decision.to },
        Action::Approve { .. } if !decision.variants.is_empty() => {
            Action::ApproveVariants { digests: decision.variants }
        }
        Action::Approve { .. } => {
            Action::Approve { unseen: decision.unseen, partial: decision.partial }
        }
        action => action,
    };
    let decider = visitor.decider(decision.by, decision.why);
    let outcome = state.approvals.decide(&action, examined, Some(lock), &decider).await;
    let DecisionOutcome { lock, half, refused, notes, .. } = outcome.map_err(refusal)?;
    let applied = timeout(APPLIED, state.approvals.lock_in_use(&lock.digest)).await;
    let mut decided = decision.prompts;
    decided.retain(|name| !half.contains(name) && !refused.contains_key(name));
    Ok(Decided {
        prompts: DecidedPrompts::of(&action, decided),
        needs_second_person: half,
        refused,
        lock: lock.digest,
        applied: applied.is_ok(),
        notes,
    })
}

/// Returns the examinations that `tags` name: the shown ones, or new ones with the same digests.
async fn decided_on(
    state: &AdminState,
    action: &Action,
    tags: &[&str],
    rows: &[ApprovalRow],
    chosen: Vec<ApprovalRow>,
) -> Result<Vec<Examined>, Refusal> {
    let shown = |row: &ApprovalRow| tags.iter().find_map(|tag| state.approvals.shown(tag, row));
    let shown: Option<Vec<_>> = chosen.iter().map(shown).collect();
    if let Some(shown) = shown {
        return Ok(shown.iter().map(|shown| Examined::clone(shown)).collect());
    }
    let seen: Vec<_> = chosen.iter().map(Examined::known).collect();
    let is_only = |own: &str| matches!(tags, [only] if *only == own);
    let is_of_row = matches!(seen.as_slice(), [only] if is_only(&tag(only)));
    let is_of_document = is_of_row || is_only(&entity_tag(&document(state, rows)));
    // An earlier version is read from the lock file, so the upstream may be gone.
    if is_of_document && matches!(action, Action::RollBack { .. } | Action::Withdraw) {
        return Ok(seen);
    }
    let examined = examine_all(&state.approvals, chosen).await.into_iter();
    let examined: Vec<_> = examined.collect::<Result<_, _>>().map_err(refusal)?;
    let is_as_shown = if is_of_document {
        examined.iter().zip(&seen).all(|(now, seen)| now.is_as_seen(seen))
    } else {
        let tags: BTreeSet<&str> = tags.iter().copied().collect();
        examined.iter().all(|now| tags.contains(tag(now).as_str()))
    };
    if is_as_shown {
        return Ok(examined);
    }
    let error =
        "the approvals or what upstreams offer have changed since; look at the prompt again";
    Err((StatusCode::PRECONDITION_FAILED, ErrorDocument::new(error)))
}

/// An examination as it is shown to a person who may decide.
pub(super) struct Shown {
    pub examined: Arc<Examined>,
    /// The entity tag that a decision on it names.
    pub tag: String,
}

/// Why a prompt cannot be shown to a person who may decide on it.
#[derive(Debug)]
pub(super) enum NotShown {
    /// The prompt is neither offered nor in the lock file.
    Unknown,
    /// The upstream does not deliver its texts within `admin.render_timeout`.
    Late {
        upstream: UpstreamId,
        within: Duration,
    },
    Failed(ApprovalError),
}

/// The entity tag of a prompt as it is known without a probe.
pub(super) fn row_tag(row: &ApprovalRow) -> String {
    tag(&Examined::known(row))
}

/// The prompts with these names, each once.
fn chosen(rows: &[ApprovalRow], names: &[String]) -> Result<Vec<ApprovalRow>, Refusal> {
    let named = rows.iter().flat_map(|row| {
        let names = std::iter::once(&row.public_name).chain(&row.aliases);
        names.map(move |name| (name.as_str(), row))
    });
    let by_name: HashMap<&str, &ApprovalRow> = named.collect();
    if names.is_empty() {
        let error = "prompts must hold at least one public name";
        return Err((StatusCode::BAD_REQUEST, ErrorDocument::new(error)));
    }
    let mut chosen = BTreeMap::new();
    for name in names {
        let Some(row) = by_name.get(name.as_str()) else {
            let error = format!("no prompt {name:?} is offered or in the lock file");
            return Err((StatusCode::NOT_FOUND, ErrorDocument::new(error)));
        };
        chosen.insert(&row.public_name, ApprovalRow::clone(row));
    }
    Ok(chosen.into_values().collect())
}

/// Returns the entity tag of a document (RFC 9110, section 8.8.3).
fn entity_tag(document: &ApprovalList) -> String {
    let digest = seal::sha256_text(&serde_json::to_vec(document).unwrap_or_default());
    format!("\"{digest}\"")
}

fn refusal(error: ApprovalError) -> Refusal {
    let mut document = ErrorDocument::new(error.to_string());
    if let ApprovalError::ReadOnly { patch, .. } = error {
        document.patch = Some(patch);
    }
    (StatusCode::CONFLICT, document)
}
