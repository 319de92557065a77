//! `labels.toml` in the folder of a library: which version of a prompt each label names. People
//! review and edit it, so a move of a label leaves the rest of its text as it is.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml_edit::{Document, DocumentMut, Item, Table, TableLike, value};

use super::durable_file::{self, Readers, disk};
use super::reader::Section;
use base::seal;
use domain::text::similar::suggestion;

/// The name of the file.
pub const LABELS_FILE: &str = "labels.toml";

/// The label of the newest version, which no file moves.
pub const LATEST: &str = "latest";

/// Largest number of a version: people count them.
pub const MAX_VERSION: u32 = 999_999;

/// Longest name of a label, in characters: the label is a part of a prompt's name.
const MAX_LABEL: usize = 64;

/// Largest file, in bytes.
pub const MAX_LABELS_FILE: usize = 1 << 20;

/// Time for which another process may hold the folder.
const PATIENCE: Duration = Duration::from_secs(5);

/// The content of `labels.toml`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LabelFile {
    /// The version of each label, by prompt.
    pub prompts: BTreeMap<String, BTreeMap<String, u32>>,
}

/// A move of a label to a version, or its removal.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LabelMove {
    /// Name of the prompt in the library.
    pub prompt: String,
    pub label: String,
    /// `None` removes the label.
    pub version: Option<u32>,
    /// Whether the prompt may get a label that it does not have.
    pub is_new: bool,
    pub by: String,
    pub why: Option<String>,
}

/// A mistake in a file of labels or rollouts, with its place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LabelsMistake {
    /// The name of the file.
    pub file: &'static str,
    /// Line and column, counted from 1.
    pub place: Option<(usize, usize)>,
    pub text: String,
}

/// Why a label was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error("{0}")]
    Refused(String),
    #[error("the labels of the prompt have changed meanwhile; look at them, and try again")]
    Conflict,
    #[error("{file} cannot be written: {error}", file = .path.display())]
    File { path: PathBuf, error: io::Error },
}

impl LabelsMistake {
    pub(super) fn at(
        file: &'static str,
        text: &str,
        span: Option<Range<usize>>,
        message: &str,
    ) -> Self {
        let place = span.map(|span| {
            let before = text.get(..span.start).unwrap_or(text);
            let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
            (before.matches('\n').count() + 1, column)
        });
        Self { file, place, text: message.trim().to_owned() }
    }
}

impl std::fmt::Display for LabelsMistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.place {
            Some((line, column)) => write!(f, "{}:{line}:{column}: {}", self.file, self.text),
            None => write!(f, "{}: {}", self.file, self.text),
        }
    }
}

/// Whether a text is a valid label: 1 to 64 characters of `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`,
/// not only digits (a version), and not [`LATEST`].
pub fn is_label(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=MAX_LABEL).contains(&text.len())
        && text.chars().all(is_allowed)
        && !text.chars().all(|c| c.is_ascii_digit())
        && text != LATEST
}

const LABEL_RULE: &str = "a label has 1 to 64 characters of A-Z, a-z, 0-9, `.`, `_` and `-`, is not a number, and not `latest`";

/// The default of the key `label`: the label of the versions that are served.
pub const DEFAULT_LABEL: &str = "production";

/// Reads the key `label` of a library.
pub(super) fn key(section: &mut Section<'_>) -> String {
    let label = section.text("label", DEFAULT_LABEL);
    if !is_label(&label) && label != LATEST {
        let rule = format!("must be a label such as \"{DEFAULT_LABEL}\", or \"{LATEST}\"");
        section.mistake("label", rule);
    }
    label
}

impl LabelFile {
    /// Reads the text of the file.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(text: &str) -> Result<Self, LabelsMistake> {
        let document = Document::parse(text)
            .map_err(|error| LabelsMistake::at(LABELS_FILE, text, error.span(), error.message()))?;
        let mut labels = Self::default();
        for (key, item) in document.iter() {
            labels.read_prompt(key, item).map_err(|(span, what)| {
                LabelsMistake::at(LABELS_FILE, text, span.or(item.span()), &what)
            })?;
        }
        Ok(labels)
    }

    fn read_prompt(&mut self, prompt: &str, item: &Item) -> Result<(), Misread> {
        let rule = format!("[{prompt}] must be a table such as `production = 3`");
        let table = item.as_table_like().ok_or_else(|| misread(item, &rule))?;
        let mut labels = BTreeMap::new();
        for (label, item) in table.iter() {
            if !is_label(label) {
                return Err(misread(item, &format!("{label:?}: {LABEL_RULE}")));
            }
            let version = item.as_integer().and_then(|number| u32::try_from(number).ok());
            let version = version.filter(|number| (1..=MAX_VERSION).contains(number));
            let rule = format!("{label} must be the number of a version, from 1 to {MAX_VERSION}");
            labels.insert(label.to_owned(), version.ok_or_else(|| misread(item, &rule))?);
        }
        self.prompts.insert(prompt.to_owned(), labels);
        Ok(())
    }

    /// Returns the tag of the labels of one prompt, by which a move detects a conflict. The tag of
    /// a missing file differs.
    pub fn tag(&self, prompt: &str) -> String {
        let labels = self.prompts.get(prompt);
        let has_any = !self.prompts.is_empty();
        seal::sha256_text(format!("{labels:?} {has_any}").as_bytes())
    }

    fn version(&self, prompt: &str, label: &str) -> Option<u32> {
        self.prompts.get(prompt)?.get(label).copied()
    }

    /// Checks a move. Returns the version that the label names before it.
    fn check(&self, wanted: &LabelMove) -> Result<Option<u32>, String> {
        let LabelMove { prompt, label, version, .. } = wanted;
        if !is_label(label) {
            return Err(format!("{label:?}: {LABEL_RULE}"));
        }
        let from = self.version(prompt, label);
        match (from, version) {
            (None, version) if version.is_none() || !wanted.is_new => {
                Err(self.unknown_label(wanted))
            }
            (from, Some(version)) if from == Some(*version) => {
                Err(format!("{label} of {prompt} is version {version} already"))
            }
            _ => Ok(from),
        }
    }

    fn unknown_label(&self, wanted: &LabelMove) -> String {
        let LabelMove { prompt, label, version, .. } = wanted;
        let known = self.prompts.get(prompt).into_iter().flat_map(BTreeMap::keys);
        let known: Vec<_> = known.map(String::as_str).collect();
        let has = match known.as_slice() {
            [] => "it has none".to_owned(),
            known => format!("it has {}", known.join(", ")),
        };
        let meant = suggestion(label, known.into_iter());
        let new = if version.is_some() {
            " To make a new label, use `--new` (API: `\"new\": true`)."
        } else {
            ""
        };
        format!("{prompt} has no label {label}; {has}{meant}{new}")
    }
}

/// The place of a mistake, and its description.
type Misread = (Option<Range<usize>>, String);

fn misread(item: &Item, what: &str) -> Misread {
    (item.span(), what.to_owned())
}

/// Returns the text of the file after a move or removal, and the version that the label named
/// before.
///
/// # Errors
/// The reason why the move is refused.
pub fn moved(text: &str, wanted: &LabelMove) -> Result<(String, Option<u32>), String> {
    let labels = LabelFile::parse(text).map_err(|mistake| mistake.to_string())?;
    let from = labels.check(wanted)?;
    let mut document: DocumentMut = text.parse().map_err(|_| "it is no TOML".to_owned())?;
    let LabelMove { prompt, label, version, .. } = wanted;
    let table = document.entry(prompt).or_insert_with(|| Item::Table(Table::new()));
    let table = table.as_table_like_mut().ok_or("its labels are no table")?;
    match version {
        Some(version) => set_number(table, label, *version),
        None => drop(table.remove(label)),
    }
    Ok((readable(&document, LABELS_FILE, LabelFile::parse)?, from))
}

/// Returns the text of a changed file, which must be readable again.
pub(super) fn readable<T>(
    document: &DocumentMut,
    file: &str,
    parse: impl FnOnce(&str) -> Result<T, LabelsMistake>,
) -> Result<String, String> {
    let text = document.to_string();
    parse(&text).map_err(|mistake| mistake.to_string())?;
    if text.len() > MAX_LABELS_FILE {
        return Err(format!("{file} would be larger than 1 MiB"));
    }
    Ok(text)
}

/// Sets a number in place, with the comment behind it.
fn set_number(table: &mut dyn TableLike, label: &str, version: u32) {
    let decor = table.get(label).and_then(Item::as_value).map(|old| old.decor().clone());
    let mut item = value(i64::from(version));
    if let (Some(decor), Some(new)) = (decor, item.as_value_mut()) {
        *new.decor_mut() = decor;
    }
    table.insert(label, item);
}

/// Reads a file of labels or rollouts; an absent file is empty.
fn read_text(path: &Path) -> io::Result<String> {
    let text = match disk::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    if text.len() > MAX_LABELS_FILE {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

/// Moves or removes a label in the file of a library's folder, and returns the version that it
/// named before.
/// `tag` is the [`LabelFile::tag`] that the person saw; `None` skips this check. Blocks.
///
/// # Errors
/// The labels have changed since, the move is refused, or the file cannot be written.
pub fn move_label(
    folder: &Path,
    wanted: &LabelMove,
    tag: Option<&str>,
) -> Result<Option<u32>, MoveError> {
    rewrite(folder, LABELS_FILE, |text| {
        let seen = LabelFile::parse(text).map(|labels| labels.tag(&wanted.prompt));
        if let (Some(tag), Ok(seen)) = (tag, &seen)
            && tag != seen
        {
            return Err(MoveError::Conflict);
        }
        moved(text, wanted).map_err(MoveError::Refused)
    })
}

/// Replaces a file of labels or rollouts by the text that `change` makes of it. Blocks.
///
/// # Errors
/// `change` fails, or the file cannot be read or written.
pub(super) fn rewrite<T>(
    folder: &Path,
    file: &str,
    change: impl FnOnce(&str) -> Result<(String, T), MoveError>,
) -> Result<T, MoveError> {
    let path = folder.join(file);
    let failed = |error| MoveError::File { path: path.clone(), error };
    // One process at a time; the lock is released when the file is closed, also by a crash.
    let _writer = hold(folder).map_err(failed)?;
    let (text, changed) = change(&read_text(&path).map_err(failed)?)?;
    durable_file::replace(&path, &text, Readers::Usual).map_err(failed)?;
    Ok(changed)
}

/// Keeps other writers out until the file is dropped. Libraries skip dot-files.
fn hold(folder: &Path) -> io::Result<durable_file::File> {
    durable_file::hold(&folder.join(".labels.lock"), Readers::Usual, PATIENCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# reviewed\n\n[refund]\nproduction = 3 # since May\ncandidate = 4\n";

    fn wanted(label: &str, version: u32, by: &str) -> LabelMove {
        let text = |text: &str| text.to_owned();
        let version = Some(version);
        let prompt = text("refund");
        LabelMove { prompt, label: text(label), version, is_new: true, by: text(by), why: None }
    }

    #[test]
    fn a_move_changes_its_number_and_leaves_the_rest_of_the_text() {
        let (text, from) = moved(TEXT, &wanted("candidate", 5, "ada")).unwrap();
        assert_eq!(from, Some(4));
        assert_eq!(text, TEXT.replace("candidate = 4", "candidate = 5"));
        let (text, from) = moved("", &wanted("beta", 1, "ada")).unwrap();
        assert_eq!((text.as_str(), from), ("[refund]\nbeta = 1\n", None));
        for (label, version) in [
            ("candidate", 4),
            ("7", 1),
            ("latest", 1),
            ("a b", 1),
            ("", 1),
            ("beta", 0),
            ("beta", 1_000_000),
        ] {
            assert!(moved(TEXT, &wanted(label, version, "ada")).is_err(), "{label} {version}");
        }
    }

    #[test]
    fn a_label_that_a_prompt_does_not_have_is_made_only_if_that_is_meant() {
        let slip = LabelMove { is_new: false, ..wanted("productoin", 5, "ada") };
        let refused = moved(TEXT, &slip).unwrap_err();
        for said in
            ["has no label productoin", "candidate, production", "did you mean `production`?"]
        {
            assert!(refused.contains(said), "{refused}");
        }
        assert!(moved(TEXT, &LabelMove { is_new: true, ..slip }).is_ok());
        assert!(moved(TEXT, &LabelMove { is_new: false, ..wanted("candidate", 5, "ada") }).is_ok());
    }

    #[test]
    fn a_removal_takes_its_line_and_leaves_the_rest_of_the_text() {
        let removal = |label| LabelMove { version: None, ..wanted(label, 1, "ada") };
        let (text, from) = moved(TEXT, &removal("candidate")).unwrap();
        assert_eq!((text, from), (TEXT.replace("candidate = 4\n", ""), Some(4)));
        assert!(moved(TEXT, &removal("beta")).unwrap_err().contains("has no label beta"));
    }

    #[test]
    fn a_move_never_writes_a_file_that_could_not_be_read_again() {
        let full = format!("#{}\n{TEXT}", "x".repeat(MAX_LABELS_FILE - TEXT.len() - 2));
        let refused = moved(&full, &wanted("beta", 1, "ada")).unwrap_err();
        assert!(refused.contains("larger than 1 MiB"), "{refused}");
        assert!(moved(&full, &wanted("candidate", 5, "ada")).is_ok(), "as long as before");
    }

    #[test]
    fn mistakes_are_named_with_their_places() {
        for (text, expected) in [
            ("[refund]\nproduction = \"3\"\n", "labels.toml:2:14: production must be the number"),
            ("[refund]\nproduction = 0\n", "labels.toml:2:14"),
            ("refund = 3\n", "labels.toml:1:10: [refund] must be a table"),
            ("protected = [\"production\"]\n", "labels.toml:1:13: [protected] must be a table"),
            ("[refund]\n7 = 3\n", "\"7\": a label has"),
            ("[refund\n", "labels.toml:1:"),
        ] {
            let mistake = LabelFile::parse(text).unwrap_err().to_string();
            assert!(mistake.contains(expected), "{text:?}: {mistake}");
        }
    }

    #[test]
    fn a_move_is_of_the_labels_that_were_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LABELS_FILE);
        std::fs::write(&path, TEXT).unwrap();
        let tag = LabelFile::parse(TEXT).unwrap().tag("refund");
        let first = wanted("candidate", 5, "ada");
        move_label(folder.path(), &first, Some(&tag)).unwrap();
        let late = move_label(folder.path(), &wanted("candidate", 6, "bob"), Some(&tag));
        assert!(matches!(late, Err(MoveError::Conflict)), "{late:?}");
        let other = LabelMove { prompt: "greet".to_owned(), ..wanted("beta", 1, "bob") };
        let tag = LabelFile::parse(TEXT).unwrap().tag("greet");
        move_label(folder.path(), &other, Some(&tag)).unwrap();
        let read = LabelFile::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!((read.prompts["refund"]["candidate"], read.prompts["greet"]["beta"]), (5, 1));
    }

    #[test]
    fn a_move_of_a_prompt_without_labels_does_not_make_a_file_that_is_gone_anew() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = LabelMove { prompt: "new".to_owned(), ..wanted("beta", 1, "ada") };
        let seen = LabelFile::parse(TEXT).unwrap().tag("new");
        let moved = move_label(folder.path(), &wanted, Some(&seen));
        assert!(matches!(moved, Err(MoveError::Conflict)), "{moved:?}");
        assert!(!folder.path().join(LABELS_FILE).exists());
        let seen = LabelFile::default().tag("new");
        assert!(move_label(folder.path(), &wanted, Some(&seen)).is_ok(), "the first of all");
    }
}
