//! The tab of a skill's files: their sizes and digests, and the text of one of them.

use askama::Template;
use tokio::time::timeout_at;

use super::Looked;
use crate::console::{filters, page_of};
use crate::pages::definition::text;
use crate::pages::{PageError, PageResult};
use crate::request::Paging;
use crate::sign_in::Role;
use ::approvals::skill_files::offered_file;
use catalog::blocking::run_blocking;
use domain::approval::Version;
use domain::json::Json;
use domain::prompts::hidden_text;
use domain::prompts::skill::SKILL_FILE;

/// The files of a skill.
#[derive(Template)]
#[template(path = "skill_files.html")]
pub(super) struct FilesTab {
    name: String,
    files: Vec<FileRow>,
    paging: Paging,
    /// The chosen file: the parameter `file`, without it `SKILL.md`.
    chosen: String,
    /// `None` for visitors who read no texts.
    shown: Option<ShownFile>,
    /// Whether a version other than the served one waits for a decision.
    is_waiting: bool,
}

/// A file, as the entry of the skill has it.
#[derive(Clone)]
pub(in crate::pages) struct FileRow {
    /// In the folder of the skill.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// `sha256:…`
    pub digest: String,
}

/// The text of a file.
struct ShownFile {
    /// The approver of these bytes, and the time; `None` if the text was fetched from the upstream.
    approved: Option<(String, String)>,
    /// The text, or why it cannot be had.
    text: Result<String, String>,
    /// Bytes of the whole text.
    bytes: usize,
    /// Hidden characters in the shown part.
    hidden: usize,
}

/// Rows of one page.
const PAGE: usize = 50;

/// Bytes of a text that are shown: far more than people read at once.
const SHOWN: usize = 256 << 10;

impl FileRow {
    /// Reads the files of an entry of `skills/list`; `name` is the URI of its `SKILL.md`.
    pub(in crate::pages) fn of_entry(entry: Json<'_>, name: &str) -> Vec<Self> {
        let folder = name.strip_suffix(SKILL_FILE).unwrap_or_default();
        let file = |file: Json<'_>| {
            let uri = text(file, "uri");
            let size = file.get("size").and_then(Json::as_i64).unwrap_or_default();
            Self {
                path: uri.strip_prefix(folder).unwrap_or(&uri).to_owned(),
                size: size.unsigned_abs(),
                digest: text(file, "digest"),
            }
        };
        entry.get("resources").into_iter().flat_map(Json::elements).map(file).collect()
    }
}

impl FilesTab {
    fn link(&self, file: &FileRow) -> String {
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("file", &file.path)
            .finish();
        format!("{}?{query}#file", page_of(&self.name))
    }

    fn is_chosen(&self, file: &FileRow) -> bool {
        self.chosen == file.path
    }

    fn is_markdown(&self) -> bool {
        self.chosen.ends_with(".md")
    }
}

/// Returns the files of a skill, and the text of the chosen one: from the lock file, if these bytes
/// are approved, else from the upstream, which is called.
pub(super) async fn files(looked: &Looked<'_>, entry: Json<'_>) -> PageResult<FilesTab> {
    let Looked { request, visitor, name, .. } = *looked;
    let files = FileRow::of_entry(entry, name);
    let wanted = request.params.some("file").unwrap_or(SKILL_FILE);
    let chosen = files.iter().find(|file| file.path == wanted);
    let chosen = chosen.ok_or_else(|| PageError::not_found("file with this path in the skill"))?;
    let shown = match visitor.role {
        Role::Viewer => None,
        _ => Some(shown(looked, chosen).await?),
    };
    let paging = request.paging(files.len(), PAGE);
    Ok(FilesTab {
        name: name.to_owned(),
        chosen: chosen.path.clone(),
        files: files.iter().skip(paging.start).take(paging.size).cloned().collect(),
        paging,
        shown,
        is_waiting: looked.row.as_ref().is_some_and(|row| row.is_waiting()),
    })
}

async fn shown(looked: &Looked<'_>, file: &FileRow) -> PageResult<ShownFile> {
    let Looked { state, request, name, .. } = *looked;
    let approved = looked.row.as_ref().and_then(|row| row.approved());
    let approved = approved.filter(|decided| {
        decided.version.files.get(file.path.as_str()).is_some_and(|own| **own == *file.digest)
    });
    let Some(decided) = approved else {
        let reading = offered_file(&state.approvals, name, &file.path);
        let text = timeout_at(request.until, reading).await.map_err(|_| PageError::late())?;
        return Ok(ShownFile::of(text, None));
    };
    // Drops the texts and the other files, so that only the chosen file is read.
    let mut version = Version { texts: Default::default(), ..decided.version.clone() };
    version.files.retain(|path, _| **path == *file.path);
    let approvals = state.approvals.clone();
    let mut parts = run_blocking(move || approvals.version_parts(&version)).await;
    let text = parts.files.remove(file.path.as_str()).map(|part| part.text);
    let by = &decided.attribution;
    Ok(ShownFile::of(text, Some((by.by.clone(), by.at.clone()))))
}

impl ShownFile {
    /// `text` is a JSON string; `None` where it is not offered.
    fn of(text: Option<Result<String, String>>, approved: Option<(String, String)>) -> Self {
        let text = text.unwrap_or_else(|| Err("its upstream does not offer it".to_owned()));
        let text = text.map(|json| {
            Json::accepted(&json).as_str().map(|text| text.into_owned()).unwrap_or_default()
        });
        let bytes = text.as_ref().map_or(0, String::len);
        let text = text.map(|mut text| {
            text.truncate(text.floor_char_boundary(SHOWN));
            text
        });
        let hidden = text.as_ref().map_or(0, |text| hidden_text::count(text));
        Self { approved, text, bytes, hidden }
    }

    fn is_cut(&self) -> bool {
        self.text.as_ref().is_ok_and(|text| text.len() < self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let part = |text: &str| Ok(serde_json::json!(text).to_string());
        let long = "a".to_owned() + &"é".repeat(SHOWN);
        let shown = ShownFile::of(Some(part(&long)), None);
        assert!(shown.is_cut());
        assert_eq!(shown.text.map(|text| text.len()), Ok(SHOWN - 1));
        assert!(!ShownFile::of(Some(part("short")), None).is_cut());
        assert!(ShownFile::of(None, None).text.is_err());
    }
}
