//! The skills that are served, below the prompts.

use super::definition::text;
use crate::request::Params;
use domain::approval::ApprovalState;
use domain::json::Json;
use domain::skill::SKILL_FILE;
use gateway::router::catalog::SkillCatalog;

/// The skills that match.
#[derive(Default)]
pub(super) struct SkillTable {
    pub rows: Vec<SkillRow>,
    /// The number of all.
    pub total: usize,
}

/// A skill in the list.
pub(super) struct SkillRow {
    /// The URI of its `SKILL.md`.
    pub uri: String,
    pub description: String,
    pub upstream: String,
    pub state: ApprovalState,
    /// The paths of its files in its folder, and their bytes.
    pub files: Vec<(String, i64)>,
}

impl SkillRow {
    /// Whether its approval has a page.
    pub(super) fn is_checked(&self) -> bool {
        self.state != ApprovalState::Unchecked
    }
}

/// Returns the skills that match the parameters `q` and `upstream`; at most `most` rows.
pub(super) fn skills(catalog: &SkillCatalog, params: &Params, most: usize) -> SkillTable {
    let wanted = params.get("q").trim().to_lowercase();
    let mut table = SkillTable::default();
    for owner in catalog.content.owners() {
        let is_of = params.some("upstream").is_none_or(|id| owner.upstream.as_str() == id);
        let Some(entry) = catalog.content.listed(&owner.public_name).filter(|_| is_of) else {
            continue;
        };
        let description = entry.get("frontmatter").map(|front| text(front, "description"));
        let description = description.unwrap_or_default();
        let is_found = |text: &str| text.to_lowercase().contains(&wanted);
        if !is_found(&owner.public_name) && !is_found(&description) {
            continue;
        }
        table.total += 1;
        if table.rows.len() == most {
            continue;
        }
        let folder = owner.public_name.strip_suffix(SKILL_FILE).unwrap_or_default();
        let file = |file: Json<'_>| {
            let uri = text(file, "uri");
            let size = file.get("size").and_then(Json::as_i64).unwrap_or_default();
            (uri.strip_prefix(folder).unwrap_or(&uri).to_owned(), size)
        };
        let files = entry.get("resources").into_iter().flat_map(Json::elements);
        table.rows.push(SkillRow {
            uri: owner.public_name.to_string(),
            description,
            upstream: owner.upstream.to_string(),
            state: owner.approval.state,
            files: files.map(file).collect(),
        });
    }
    table
}
