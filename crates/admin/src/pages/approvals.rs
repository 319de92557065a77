//! Approvals: what waits for a decision, and the difference on which one is decided.

use std::sync::Arc;

use askama::Template;
use tokio::sync::Semaphore;

use super::{Page, PageResult};
use crate::approvals::{NotShown, Shown};
use crate::console::ConsoleSection;
use crate::console::text::filters;
use crate::request::{PageRequest, Paging, Params};
use crate::sign_in::{Role, Visitor};
use crate::state::AdminState;
use audit::usage::RecentUses;
use domain::approval::{self, Decided};
use gateway::router::approval::ApprovalRow;
use gateway::router::approvals::words::{LineKind, marked_lines};
use gateway::router::approvals::{Examined, FoundVariant, SeenOtherwise};
use gateway::router::blocking::beside_calls;

/// The prompts that are offered or in the lock file.
#[derive(Template)]
#[template(path = "approvals.html")]
pub(super) struct ApprovalsPage {
    lock: String,
    approvals: Vec<ApprovalLine>,
    paging: Paging,
    params: Params,
    states: Vec<&'static str>,
    /// Whether any upstream has approvals.
    has_approvals: bool,
}

/// One prompt with its state.
#[derive(Clone, Debug)]
pub(crate) struct ApprovalLine {
    pub name: String,
    pub upstream: String,
    pub state: &'static str,
    pub mode: &'static str,
    /// Why the prompt is in this state.
    pub reason: String,
    /// Whether it is offered and not served.
    pub held: bool,
    pub offered: bool,
    pub approved_by: Option<String>,
    pub approved_at: Option<String>,
    pub approved_why: Option<String>,
}

/// One prompt with the difference between its approved and its offered version.
#[derive(Template)]
#[template(path = "approval.html")]
pub(super) struct ApprovalPage {
    line: ApprovalLine,
    /// The entity tag of the shown version, to which decisions are bound.
    tag: String,
    /// Lines of a unified diff, at most `admin.page_rows`; `None` for viewers, who read no texts.
    diff: Option<Vec<DiffLine>>,
    /// The lines of the whole diff.
    diff_total: usize,
    /// Why an approval would cover the definition alone; `None` if texts are compared, too.
    unseen: Option<String>,
    /// The parts that an approval compares.
    covers: &'static str,
    /// Texts that the upstream has given otherwise.
    seen_otherwise: Vec<SeenOtherwise>,
    /// Texts that callers got, and that fit no approved one.
    variants: Vec<FoundVariant>,
    /// Whether the offered version waits for a decision, or an approval can be withdrawn.
    is_waiting: bool,
    is_approved: bool,
    /// The first approval, where two people must approve.
    first: Option<Decided>,
    /// Its callers of the last week.
    uses: RecentUses,
    previous: Vec<Earlier>,
    can_decide: bool,
    csrf: String,
}

/// A line of a unified diff.
#[derive(Clone, Debug)]
struct DiffLine {
    /// `add`, `remove`, `head` or `same`.
    kind: &'static str,
    /// The line in pieces, and whether each is marked as changed.
    pieces: Vec<(bool, String)>,
}

/// A version that was approved before.
#[derive(Clone, Debug)]
struct Earlier {
    digest: String,
    by: String,
    at: String,
}

impl Page for ApprovalsPage {
    const SECTION: ConsoleSection = ConsoleSection::Approvals;
}

impl ApprovalPage {
    /// The page without texts.
    fn new(row: &ApprovalRow, visitor: &Visitor) -> Self {
        let previous = row.approval.iter().flat_map(|approval| &approval.previous);
        let previous = previous.map(|decided| Earlier {
            digest: decided.version.definition.to_string(),
            by: decided.attribution.by.clone(),
            at: decided.attribution.at.clone(),
        });
        Self {
            line: line(row),
            tag: String::new(),
            diff: None,
            diff_total: 0,
            unseen: None,
            covers: "",
            seen_otherwise: Vec::new(),
            variants: row.variants.clone(),
            is_waiting: row.is_waiting(),
            is_approved: row.approval.as_ref().is_some_and(|own| own.approved.is_some()),
            first: row.half_approved().cloned(),
            uses: RecentUses::default(),
            previous: previous.collect(),
            can_decide: visitor.role >= Role::Approver,
            csrf: visitor.csrf_token(),
        }
    }

    /// Whether something is offered that is not approved so.
    fn has_news(&self) -> bool {
        self.is_waiting || self.diff.as_ref().is_none_or(|diff| !diff.is_empty())
    }

    /// Whether the page shows only a part of the diff, so that approval is disabled.
    fn is_cut(&self) -> bool {
        self.diff.as_ref().is_some_and(|diff| diff.len() < self.diff_total)
    }
}

impl Page for ApprovalPage {
    const SECTION: ConsoleSection = ConsoleSection::Approvals;

    fn title(&self) -> String {
        self.line.name.clone()
    }
}

/// Rows of one page.
const PAGE: usize = 50;

/// The value of the parameter `state` for prompts without a decision.
const WAITING: &str = "waiting";

/// Returns the prompts that match the parameters `q`, `state` and `upstream`; those that wait come
/// first.
pub(super) fn approvals(state: &AdminState, request: &PageRequest) -> ApprovalsPage {
    let params = &request.params;
    let text = params.get("q").trim().to_lowercase();
    let wanted = params.get("state");
    let is_wanted = |row: &ApprovalRow| {
        let own = row.decision.state;
        let is_state = match wanted {
            "" => true,
            WAITING => row.is_waiting(),
            state => own.as_str() == state,
        };
        is_state
            && row.public_name.to_lowercase().contains(&text)
            && params.some("upstream").is_none_or(|id| row.upstream.as_str() == id)
    };
    let catalog = state.router.catalog();
    let all = || catalog.approvals.iter().flat_map(|rows| rows.iter());
    let mut rows: Vec<&ApprovalRow> = all().filter(|row| is_wanted(row)).collect();
    rows.sort_by_key(|row| (!row.is_waiting(), &row.public_name));
    let paging = request.paging(rows.len(), PAGE);
    let states = approval::ApprovalState::ALL.map(approval::ApprovalState::as_str).into_iter();
    ApprovalsPage {
        lock: state.router.lock_digest().to_owned(),
        approvals: rows.into_iter().skip(paging.start).take(paging.size).map(line).collect(),
        paging,
        params: params.clone(),
        states: [WAITING].into_iter().chain(states).collect(),
        has_approvals: all().any(|row| row.mode != approval::Mode::Off),
    }
}

/// Returns one prompt with its difference. The offered version is fetched, so the upstream is
/// called.
///
/// # Errors
/// There is no such prompt, or its texts cannot be had in time.
pub(super) async fn approval(
    state: &Arc<AdminState>,
    request: &PageRequest,
    visitor: &Visitor,
    name: &str,
) -> PageResult<ApprovalPage> {
    if visitor.role < Role::Tester {
        let row = state.router.approval_row(name).ok_or(NotShown::Unknown)?;
        return Ok(ApprovalPage::new(&row, visitor));
    }
    let Shown { examined, tag } = state.show(name, request.until).await?;
    let uses = state.uses_of(name, request.until).await;
    let (diff, diff_total) = difference(state, request, examined.clone()).await;
    Ok(ApprovalPage {
        tag,
        diff: Some(diff),
        diff_total,
        unseen: examined.unseen_text(),
        covers: examined.offered.as_ref().map_or("", |offered| offered.version.class().compared()),
        seen_otherwise: examined.seen_otherwise.clone(),
        uses,
        ..ApprovalPage::new(&examined.row, visitor)
    })
}

/// Returns the lines that are shown, and how many there are in all.
async fn difference(
    state: &Arc<AdminState>,
    request: &PageRequest,
    examined: Arc<Examined>,
) -> (Vec<DiffLine>, usize) {
    let router = state.router.clone();
    let turn = DIFFERENCES.acquire().await.ok();
    let text = beside_calls(move || {
        let _turn = turn;
        router.diff(&examined)
    });
    let text = text.await;
    let total = text.lines().count();
    let is_cut = text.lines().next_back().is_some_and(|line| line.starts_with('\\'));
    let shown = marked_lines(&text).into_iter().take(request.rows);
    let shown = shown.map(|line| DiffLine { kind: kind(line.kind), pieces: line.pieces }).collect();
    (shown, total + usize::from(is_cut))
}

/// Differences that are computed at once: the versions may have `max_message` bytes each.
static DIFFERENCES: Semaphore = Semaphore::const_new(1);

fn kind(kind: LineKind) -> &'static str {
    match kind {
        LineKind::Heading | LineKind::Range => "head",
        LineKind::Added => "add",
        LineKind::Removed => "remove",
        LineKind::Same => "same",
    }
}

fn line(row: &ApprovalRow) -> ApprovalLine {
    let approved = row.approval.as_ref().and_then(|approval| approval.approved.as_ref());
    let attribution = approved.map(|decided| &decided.attribution);
    ApprovalLine {
        name: row.public_name.clone(),
        upstream: row.upstream.to_string(),
        state: row.decision.state.as_str(),
        mode: row.mode.as_str(),
        reason: row.problem.clone().unwrap_or_else(|| row.decision.reason.as_str().to_owned()),
        held: row.is_held(),
        offered: row.offered.is_some(),
        approved_by: attribution.map(|attribution| attribution.by.clone()),
        approved_at: attribution.map(|attribution| attribution.at.clone()),
        approved_why: attribution.and_then(|attribution| attribution.why.clone()),
    }
}
