//! Approvals: the prompts with their states, one change as it is decided on, and several at once.

mod change;
mod inbox;
mod one;
mod several;

pub(super) use one::approval;
pub(super) use several::several;

use askama::Template;

use super::Page;
use crate::console::{ConsoleSection, filters};
use crate::request::{PageRequest, Paging, Params};
use crate::sign_in::{Role, Visitor};
use crate::state::AdminState;
use catalog::approval::ApprovalRow;
use domain::approval::{self, Reason};

pub(crate) use inbox::next_waiting;

/// The prompts that are offered or in the lock file.
#[derive(Template)]
#[template(path = "approvals.html")]
pub(super) struct ApprovalsPage {
    lock: String,
    approvals: Vec<ApprovalLine>,
    paging: Paging,
    params: Params,
    /// The state of the shown prompts: a state of approval, [`WAITING`] or [`ALL`].
    chosen: String,
    /// Each state with the number of its prompts.
    states: Vec<(&'static str, usize)>,
    /// Whether any upstream has approvals.
    has_approvals: bool,
    /// Whether the modes of the shown prompts differ.
    has_modes: bool,
    can_decide: bool,
}

/// One prompt with its state.
#[derive(Clone, Debug)]
struct ApprovalLine {
    name: String,
    upstream: String,
    state: &'static str,
    mode: &'static str,
    /// Why the prompt is in this state.
    reason: String,
    /// Whether the approved version is offered, which needs no reason in a list.
    is_same: bool,
    /// Whether it is offered and not served.
    held: bool,
    offered: bool,
    is_waiting: bool,
    approved_by: Option<String>,
    approved_at: Option<String>,
    approved_why: Option<String>,
}

impl Page for ApprovalsPage {
    const SECTION: ConsoleSection = ConsoleSection::Approvals;
}

/// Rows of one page.
const PAGE: usize = 50;

/// The value of the parameter `state` for prompts without a decision.
const WAITING: &str = "waiting";

/// The value of the parameter `state` for all prompts.
const ALL: &str = "all";

/// Returns the prompts that match the parameters `q`, `state` and `upstream`; without `state`
/// the prompts that wait, or all prompts if no prompt waits.
pub(super) fn approvals(
    state: &AdminState,
    request: &PageRequest,
    visitor: &Visitor,
) -> ApprovalsPage {
    let params = &request.params;
    let text = params.get("q").trim().to_lowercase();
    let has_state = |row: &ApprovalRow, wanted: &str| match wanted {
        ALL => true,
        WAITING => row.is_waiting(),
        state => row.decision.state.as_str() == state,
    };
    let is_wanted = |row: &ApprovalRow| {
        row.public_name.to_lowercase().contains(&text)
            && params.some("upstream").is_none_or(|id| row.upstream.as_str() == id)
    };
    let catalog = state.router.catalog();
    let all = || catalog.approvals.iter().flat_map(|rows| rows.iter());
    let wanted: Vec<&ApprovalRow> = all().filter(|row| is_wanted(row)).collect();
    let count = |state| wanted.iter().filter(|row| has_state(row, state)).count();
    let states = approval::ApprovalState::ALL.map(approval::ApprovalState::as_str).into_iter();
    let usual = if count(WAITING) > 0 { WAITING } else { ALL };
    let chosen = params.some("state").unwrap_or(usual);
    let states = std::iter::once(WAITING).chain(states).chain([ALL]);
    let states = states.map(|state| (state, count(state)));
    let states = states.filter(|(state, count)| *count > 0 || *state == chosen);
    let states = states.collect();
    let mut rows = wanted;
    rows.retain(|row| has_state(row, chosen));
    rows.sort_by_key(|row| (!row.is_waiting(), &row.public_name));
    let has_modes = rows.iter().any(|row| row.mode != rows[0].mode);
    let paging = request.paging(rows.len(), PAGE);
    ApprovalsPage {
        lock: state.approvals.lock_digest().to_owned(),
        approvals: rows.into_iter().skip(paging.start).take(paging.size).map(line).collect(),
        paging,
        params: params.clone(),
        chosen: chosen.to_owned(),
        states,
        has_modes,
        has_approvals: all().any(|row| row.mode != approval::Mode::Off),
        can_decide: visitor.role >= Role::Approver,
    }
}

impl ApprovalsPage {
    fn is_state(&self, state: &str) -> bool {
        self.chosen == state
    }

    /// The address of the same search in one state.
    fn with_state(&self, state: &str) -> String {
        format!("/approvals{}", self.params.with("state", state))
    }

    fn has_waiting(&self) -> bool {
        self.approvals.iter().any(|line| line.is_waiting)
    }
}

fn line(row: &ApprovalRow) -> ApprovalLine {
    let approved = row.approved();
    let attribution = approved.map(|decided| &decided.attribution);
    ApprovalLine {
        name: row.public_name.clone(),
        upstream: row.upstream.to_string(),
        state: row.decision.state.as_str(),
        mode: row.mode.as_str(),
        reason: row.problem.clone().unwrap_or_else(|| row.decision.reason.as_str().to_owned()),
        is_same: row.problem.is_none() && row.decision.reason == Reason::Same,
        held: row.is_held(),
        offered: row.offered.is_some(),
        is_waiting: row.is_waiting(),
        approved_by: attribution.map(|attribution| attribution.by.clone()),
        approved_at: attribution.map(|attribution| attribution.at.clone()),
        approved_why: attribution.and_then(|attribution| attribution.why.clone()),
    }
}
