//! The prompts that wait for a decision, listed around the current prompt.

use crate::state::AdminState;
use catalog::approval::ApprovalRow;
use catalog::snapshot::Catalog;
use domain::approval::{Approval, Attribution};

/// A part of the waiting prompts, around one prompt.
#[derive(Default)]
pub(super) struct Inbox {
    pub rows: Vec<InboxRow>,
    /// How many prompts wait.
    pub total: usize,
    /// The names of the prompts around this one.
    pub next: Option<String>,
    pub previous: Option<String>,
}

/// A prompt that waits.
pub(super) struct InboxRow {
    pub name: String,
    pub state: &'static str,
    pub is_here: bool,
}

/// Rows that are shown.
const ROWS: usize = 40;

impl Inbox {
    pub(super) fn around(state: &AdminState, name: &str) -> Self {
        let catalog = state.router.catalog();
        let waiting = waiting(&catalog);
        let place = waiting.binary_search_by(|row| row.public_name.as_str().cmp(name));
        let (at, after) = match place {
            Ok(at) => (at, at + 1),
            Err(at) => (at, at),
        };
        let own = |row: &&ApprovalRow| row.public_name.clone();
        let start = at.saturating_sub(ROWS / 2).min(waiting.len().saturating_sub(ROWS));
        let rows = waiting.iter().skip(start).take(ROWS).map(|row| InboxRow {
            name: row.public_name.clone(),
            state: row.decision.state.as_str(),
            is_here: row.public_name == name,
        });
        Self {
            rows: rows.collect(),
            total: waiting.len(),
            next: waiting.get(after).map(own),
            previous: at.checked_sub(1).and_then(|before| waiting.get(before)).map(own),
        }
    }
}

/// The prompts that wait, by their names.
fn waiting(catalog: &Catalog) -> Vec<&ApprovalRow> {
    let rows = catalog.approvals.iter().flat_map(|rows| rows.iter());
    let mut waiting: Vec<_> = rows.filter(|row| row.is_waiting()).collect();
    waiting.sort_by(|a, b| a.public_name.cmp(&b.public_name));
    waiting
}

/// Returns the first waiting prompt after the last name in `decided`, else the first waiting
/// prompt. The prompts in `decided` may still wait in this snapshot.
pub(crate) fn next_waiting(state: &AdminState, decided: &[String]) -> Option<String> {
    let catalog = state.router.catalog();
    let waiting = waiting(&catalog);
    let names = waiting.iter().map(|row| &row.public_name);
    let others: Vec<_> = names.filter(|name| !decided.contains(name)).collect();
    let last = decided.last();
    let next = others.iter().find(|name| last.is_some_and(|last| **name > last));
    next.or(others.first()).map(|name| (*name).clone())
}

/// The last decision on a prompt.
pub(super) struct LastDecision {
    pub name: String,
    pub verb: &'static str,
    pub by: String,
    pub at: String,
}

impl LastDecision {
    pub(super) fn on(state: &AdminState, name: &str) -> Option<Self> {
        let row = state.approvals.row(name)?;
        let Approval { approved, rejected, pending, .. } = state.approvals.decisions(&row)?;
        let decided = [
            ("approved", approved),
            ("rejected", rejected),
            ("approved by one of two people", pending),
        ];
        let decided =
            decided.into_iter().filter_map(|(verb, decided)| Some((verb, decided.as_ref()?)));
        let (verb, last) =
            decided.max_by(|(_, a), (_, b)| a.attribution.at.cmp(&b.attribution.at))?;
        let Attribution { by, at, .. } = last.attribution.clone();
        Some(Self { name: row.public_name, verb, by, at })
    }
}
