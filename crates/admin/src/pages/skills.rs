//! The list of served skills, on the page of prompts.

use std::collections::BTreeMap;

use super::definition::{clipped, text};
use super::prompt::FileRow;
use crate::console::plot::spark_bars;
use crate::request::Params;
use crate::state::AdminState;
use audit::usage::{DailyUses, WEEK_DAYS};
use catalog::listed_item::ListedItem;
use catalog::snapshot::SkillCatalog;
use domain::approval::ApprovalState;
use domain::json::Json;

/// A skill in the list.
pub(super) struct SkillRow {
    /// The URI of its `SKILL.md`.
    pub name: String,
    pub description: String,
    pub upstream: String,
    pub state: ApprovalState,
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Uses by day, the oldest first.
    week: [u64; WEEK_DAYS],
}

/// A skill that matches.
pub(super) struct FoundSkill<'a> {
    pub item: &'a ListedItem,
    entry: Json<'a>,
}

impl SkillRow {
    pub(super) fn uses(&self) -> u64 {
        self.week.iter().sum()
    }

    /// The drawing of its week, as a path of SVG.
    pub(super) fn bars(&self) -> String {
        spark_bars(&self.week)
    }
}

impl FoundSkill<'_> {
    pub(super) fn row(&self, uses: &DailyUses) -> SkillRow {
        let Self { item, entry } = self;
        let files = FileRow::of_entry(*entry, &item.public_name);
        SkillRow {
            name: item.public_name.to_string(),
            description: clipped(&description(*entry)),
            upstream: item.upstream.to_string(),
            state: item.approval.state,
            files: files.len(),
            bytes: files.iter().map(|file| file.size).sum(),
            week: uses.of(&item.public_name),
        }
    }
}

/// Returns the skills that match the parameters `q`, `upstream`, `view` and `state`, in the order
/// of their URIs, and the number of matching skills in each state. Skills have no tags, so `tag`
/// matches none.
pub(super) fn skills<'c>(
    state: &AdminState,
    catalog: &'c SkillCatalog,
    params: &Params,
) -> (Vec<FoundSkill<'c>>, BTreeMap<&'static str, usize>) {
    let endpoint = params.some("view").map(|view| state.config.server.view_path(view));
    let is_wanted = |item: &ListedItem| {
        params.some("tag").is_none()
            && params.some("upstream").is_none_or(|id| item.upstream.as_str() == id)
            && endpoint.as_ref().is_none_or(|path| state.router.serves(path, item))
    };
    let mut found = matching(catalog, params.get("q"));
    found.retain(|found| is_wanted(found.item));
    let mut states = BTreeMap::new();
    for found in &found {
        *states.entry(found.item.approval.state.as_str()).or_default() += 1;
    }
    let has_state = |item: &ListedItem| {
        params.some("state").is_none_or(|state| item.approval.state.as_str() == state)
    };
    found.retain(|found| has_state(found.item));
    (found, states)
}

/// Returns the skills whose URI or description has a text, in the order of their URIs.
pub(super) fn matching<'c>(catalog: &'c SkillCatalog, wanted: &str) -> Vec<FoundSkill<'c>> {
    let wanted = wanted.trim().to_lowercase();
    let is_found = |text: &str| text.to_lowercase().contains(&wanted);
    let entries = catalog.content.everyone.elements().map(|(_, entry)| entry);
    let all = catalog.content.items().zip(entries);
    all.filter(|(item, entry)| is_found(&item.public_name) || is_found(&description(*entry)))
        .map(|(item, entry)| FoundSkill { item, entry })
        .collect()
}

fn description(entry: Json<'_>) -> String {
    entry.get("frontmatter").map(|front| text(front, "description")).unwrap_or_default()
}
