//! Examinations that were shown to approvers, and the tags by which decisions name them.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::examined::Examined;
use super::json::tag;
use super::probe::ProbedText;
use catalog::approval::ApprovalRow;
use config::lock::Object;
use domain::approval::Approval;

/// Whether an examination belongs to this prompt and its decisions are still current.
fn is_current(examined: &Examined, row: &ApprovalRow, approval: Option<&Approval>) -> bool {
    (&examined.row.upstream, examined.row.kind) == (&row.upstream, row.kind)
        && examined.row.raw_name == row.raw_name
        && examined.row.approval.as_ref() == approval
}

/// The approximate memory of an examination, in bytes.
fn size(examined: &Examined) -> usize {
    let objects = examined.offered.iter().flat_map(|offered| offered.objects.values());
    let texts = examined.offered.iter().flat_map(|offered| offered.texts.values());
    let texts = texts.map(|text| match text {
        ProbedText::Stable { text, .. } => text.len(),
        ProbedText::Unstable => 0,
        ProbedText::Failed(why) => why.len(),
    });
    let variants = examined.row.variants.iter().map(|found| found.text.len());
    BARE_EXAMINATION + objects.map(Object::size).chain(texts).chain(variants).sum::<usize>()
}

/// Generous memory estimate of an examination without texts, in bytes.
const BARE_EXAMINATION: usize = 4 << 10;

/// Cache of shown examinations, keyed by tag, so that a decision uses the shown objects even if the
/// upstream has changed. Evicts the least recently used examinations; a decision then examines
/// again, and requires the same digests.
pub(super) struct Examinations(Cache<String, Arc<Examined>, ExaminationSize>);

/// Memory for examinations, in bytes.
const MEMORY: u64 = 32 << 20;

/// Estimated number of examinations. More examinations only cost a resize.
const EXPECTED: usize = 64;

#[derive(Clone)]
struct ExaminationSize;

impl Weighter<String, Arc<Examined>> for ExaminationSize {
    fn weight(&self, tag: &String, examined: &Arc<Examined>) -> u64 {
        (tag.len() + size(examined)) as u64
    }
}

impl Default for Examinations {
    fn default() -> Self {
        Self(Cache::with_weighter(EXPECTED, MEMORY, ExaminationSize))
    }
}

impl Examinations {
    /// Keeps an examination that will be shown, and returns its tag.
    pub(super) fn keep(&self, examined: &Arc<Examined>) -> String {
        let tag = tag(examined);
        self.0.insert(tag.clone(), examined.clone());
        tag
    }

    /// Returns the examination of a prompt with this tag; `None` if it was evicted or a decision on
    /// the prompt was made since.
    pub(super) fn shown(
        &self,
        tag: &str,
        row: &ApprovalRow,
        approval: Option<&Approval>,
    ) -> Option<Arc<Examined>> {
        self.0.get(tag).filter(|examined| is_current(examined, row, approval))
    }
}
