//! The difference between the approved and the offered version, rendered for people.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::pages::version::{Comparison, VersionView};
use crate::state::AdminState;
use ::approvals::Examined;
use ::approvals::words::{DiffLine, LineKind, marked_lines};
use catalog::blocking::run_blocking;

/// The changes that an approval would make.
#[derive(Default)]
pub(super) struct Change {
    /// Lines of the patch, at most as many as a page has rows.
    pub patch: Vec<DiffLine>,
    /// The lines of the whole patch.
    pub patch_total: usize,
    pub content: ChangeContent,
}

/// The change as people read it.
#[derive(Default)]
pub(super) enum ChangeContent {
    /// The versions are equal, or the difference is too long for the page.
    #[default]
    None,
    /// Nothing was approved before.
    First(VersionView),
    Comparison(Comparison),
}

/// Differences that are computed at once: the versions may have `max_message` bytes each.
static DIFFERENCES: Semaphore = Semaphore::const_new(1);

impl Change {
    /// Compares the offered version with the approved one; the patch has at most `rows` lines.
    pub(super) async fn of(state: &Arc<AdminState>, examined: Arc<Examined>, rows: usize) -> Self {
        let approvals = state.approvals.clone();
        let turn = DIFFERENCES.acquire().await.ok();
        let compare = move || {
            let _turn = turn;
            let row = &examined.row;
            let (approved, offered) = (approvals.approved_parts(row), examined.offered_parts());
            let text = approvals.diff_of_parts(row, &approved, &offered);
            let total = text.lines().count();
            let is_cut = text.lines().next_back().is_some_and(|line| line.starts_with('\\'));
            let patch_total = total + usize::from(is_cut);
            let mut patch = marked_lines(&text);
            patch.truncate(rows);
            if text.is_empty() || patch.len() < patch_total {
                return Self { patch, patch_total, content: ChangeContent::None };
            }
            let content = if row.approved().is_none() {
                ChangeContent::First(VersionView::of(&offered))
            } else {
                ChangeContent::Comparison(Comparison::of(&approved, &offered, &row.variants))
            };
            Self { patch, patch_total, content }
        };
        run_blocking(compare).await
    }

    /// Whether only a part of the patch is shown, so that it cannot be approved here.
    pub(super) fn is_cut(&self) -> bool {
        self.patch.len() < self.patch_total
    }

    pub(super) fn is_empty(&self) -> bool {
        self.patch_total == 0
    }

    /// The numbers of added and removed lines.
    pub(super) fn counts(&self) -> (usize, usize) {
        let count = |kind| self.patch.iter().filter(|line| line.kind == kind).count();
        (count(LineKind::Added), count(LineKind::Removed))
    }
}
