//! Versions of prompts rendered for people, and the difference between two of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::definition::Definition;
use super::message::MessageView;
use approvals::words::{DiffLine, LineKind, MarkedLine, is_digest_line};
use approvals::{
    ComparedMessage, VersionPart, VersionParts, compared_messages, compared_parts, compared_text,
};
use catalog::approval::FoundVariant;
use domain::approval::NO_ARGUMENTS;
use domain::approval::template::placeholder;
use domain::json::Json;

/// A version of a prompt.
#[derive(Default)]
pub(super) struct VersionView {
    pub definition: Definition,
    pub texts: Vec<TextView>,
    /// The file of a library prompt.
    pub source: Option<SourceView>,
    /// The files of a skill: their paths and texts.
    pub files: Vec<(String, String)>,
    /// Why parts of it cannot be shown.
    pub missing: Vec<String>,
}

/// The text of a prompt for some arguments, or for any.
pub(super) struct TextView {
    /// The arguments that have one value; empty if there are none.
    pub arguments: String,
    pub description: String,
    pub messages: Vec<MessageView>,
}

/// The file of a library prompt.
pub(super) struct SourceView {
    /// The lines up to the second `---`, which the definition is read from.
    pub front_matter: String,
    pub body: String,
    /// The names of the files that it embeds.
    pub embeds: Vec<String>,
}

impl VersionView {
    pub(super) fn of(parts: &VersionParts) -> Self {
        let mut view = Self::default();
        let mut read =
            |part: &VersionPart, reader: &mut dyn FnMut(&mut Self, Json<'_>)| match &part.text {
                Ok(text) => reader(&mut view, Json::accepted(text)),
                Err(why) => view.missing.push(why.clone()),
            };
        if let Some(part) = &parts.definition {
            let is_skill = !parts.files.is_empty();
            read(part, &mut |view, json| {
                let front_matter = json.get("frontmatter").filter(|_| is_skill);
                view.definition = Definition::read(front_matter.unwrap_or(json));
            });
        }
        if let Some(part) = &parts.source {
            read(part, &mut |view, json| view.source = Some(SourceView::of(json)));
        }
        for (arguments, part) in &parts.texts {
            read(part, &mut |view, json| view.texts.push(TextView::of(arguments, json)));
        }
        for (path, part) in &parts.files {
            read(part, &mut |view, json| {
                view.files.push((path.to_string(), plain_text(json.text())));
            });
        }
        view
    }

    /// Whether it has more than a definition.
    pub(super) fn has_text(&self) -> bool {
        !self.texts.is_empty() || self.source.is_some()
    }
}

impl TextView {
    fn of(arguments: &str, text: Json<'_>) -> Self {
        let messages = text.get("messages").into_iter().flat_map(Json::elements);
        Self {
            arguments: fixed_arguments(arguments),
            description: super::definition::text(text, "description"),
            messages: messages.map(MessageView::of).collect(),
        }
    }
}

impl SourceView {
    fn of(source: Json<'_>) -> Self {
        let embeds = source.get("embeds").into_iter().flat_map(Json::members);
        let name = |(name, _): (Json<'_>, _)| name.as_str().unwrap_or_default().into_owned();
        let text = super::definition::text(source, "source");
        let end = text.starts_with("---").then(|| text[3..].find("\n---")).flatten();
        let end = end.and_then(|end| Some(end + 7 + text[end + 7..].find('\n')? + 1));
        let (front_matter, body) = text.split_at(end.unwrap_or_default());
        Self {
            front_matter: front_matter.to_owned(),
            body: body.to_owned(),
            embeds: embeds.map(name).collect(),
        }
    }
}

/// Returns the arguments with one value, in readable form; arguments with a place are left out.
fn fixed_arguments(arguments: &str) -> String {
    let arguments = Json::accepted(arguments).members().filter_map(|(name, value)| {
        let (name, value) = (name.as_str()?, value.as_str()?);
        (*value != placeholder(&name)).then(|| format!("{name} = {value}"))
    });
    arguments.collect::<Vec<_>>().join(", ")
}

/// The difference between two versions.
#[derive(Default)]
pub(super) struct Comparison {
    pub sections: Vec<ComparedSection>,
    /// The parts that are equal in both.
    pub same: Vec<String>,
    /// Parts that cannot be compared.
    pub missing: Vec<String>,
}

/// One part of two versions that differs.
pub(super) struct ComparedSection {
    pub heading: String,
    /// Changed lines of the definition, of a file, or of the description of a text.
    pub rows: Vec<SideBySide>,
    pub messages: Vec<MessageChange>,
}

/// A message of the later version, or a message that was removed.
pub(super) enum MessageChange {
    Same { message: MessageView },
    Changed { role: String, rows: Vec<SideBySide> },
    Added { message: MessageView },
    Removed { message: MessageView },
}

/// A line of the earlier version and a line of the later version, shown side by side.
#[derive(Default)]
pub(super) struct SideBySide {
    pub before: Option<MarkedLine>,
    pub after: Option<MarkedLine>,
    /// Whether lines between this one and the one before are left out.
    pub is_after_gap: bool,
}

impl SideBySide {
    pub(super) fn is_same(&self) -> bool {
        self.before == self.after
    }
}

impl Comparison {
    /// Compares two versions, and the variants that callers found with the texts of the first one.
    pub(super) fn of(before: &VersionParts, after: &VersionParts, found: &[FoundVariant]) -> Self {
        let mut comparison = Self::default();
        // The digests of files stand in the definition, and the files are compared themselves.
        let has_files = |parts: &VersionParts| parts.source.is_some() || !parts.files.is_empty();
        let is_library = has_files(before) && has_files(after);
        comparison.add("Definition", &before.definition, &after.definition, |old, new| {
            let mut lines = compared_parts(old, new);
            let has_digest = is_library && lines.iter().any(is_file_digest);
            lines.retain(|line| !(is_library && is_file_digest(line)));
            let is_changed =
                |line: &DiffLine| matches!(line.kind, LineKind::Added | LineKind::Removed);
            let is_same = has_digest && !lines.iter().any(is_changed);
            (!is_same).then(|| side_by_side(&lines))
        });
        comparison.add("File", &before.source, &after.source, |old, new| {
            let file = |object| {
                let text = member(object, "source").and_then(Json::as_str);
                text.unwrap_or_default().into_owned()
            };
            let lines = compared_text(&file(old), &file(new));
            (!lines.is_empty()).then(|| side_by_side(&lines))
        });
        comparison.add("Embedded files", &before.source, &after.source, |old, new| {
            let [old, new] =
                [old, new].map(|object| member(object, "embeds").map_or("", Json::text));
            (old != new).then(|| side_by_side(&compared_parts(old, new)))
        });
        let keys: BTreeSet<&Arc<str>> = before.texts.keys().chain(after.texts.keys()).collect();
        for key in keys {
            comparison.add_text(key, before.texts.get(key), after.texts.get(key));
        }
        let paths: BTreeSet<&Arc<str>> = before.files.keys().chain(after.files.keys()).collect();
        for path in paths {
            let [old, new] = [before, after].map(|parts| parts.files.get(path).cloned());
            comparison.add(path, &old, &new, |old, new| {
                let lines = compared_text(&plain_text(old), &plain_text(new));
                Some(side_by_side(&lines))
            });
        }
        for variant in found {
            let approved =
                before.texts.get(&variant.arguments).and_then(|part| part.text.as_deref().ok());
            comparison.sections.push(ComparedSection {
                heading: variant.to_string(),
                rows: Vec::new(),
                messages: message_changes(approved.unwrap_or_default(), &variant.text),
            });
        }
        comparison
    }

    /// Adds a part to the comparison; `rows` returns its changed lines, `None` if there are none.
    fn add(
        &mut self,
        what: &str,
        old: &Option<VersionPart>,
        new: &Option<VersionPart>,
        rows: impl FnOnce(&str, &str) -> Option<Vec<SideBySide>>,
    ) {
        if old.is_none() && new.is_none() {
            return;
        }
        let heading = what.to_owned();
        match both(old.as_ref(), new.as_ref()) {
            Err(why) => self.missing.push(format!("{heading}: {why}")),
            Ok((old, new)) => match rows(old, new).filter(|_| old != new) {
                None => self.same.push(heading),
                Some(rows) => {
                    self.sections.push(ComparedSection { heading, rows, messages: Vec::new() });
                }
            },
        }
    }

    fn add_text(&mut self, key: &str, old: Option<&VersionPart>, new: Option<&VersionPart>) {
        let heading = match (key, fixed_arguments(key)) {
            (NO_ARGUMENTS, _) => "Text".to_owned(),
            (_, fixed) if fixed.is_empty() => "Text with places for arguments".to_owned(),
            (_, fixed) => format!("Text with {fixed}"),
        };
        match both(old, new) {
            Err(why) => self.missing.push(format!("{heading}: {why}")),
            Ok((old, new)) if old == new => self.same.push(heading),
            Ok((old, new)) => {
                let (rows, messages) = (description_changes(old, new), message_changes(old, new));
                self.sections.push(ComparedSection { heading, rows, messages });
            }
        }
    }
}

/// Whether a line is the digest of a file, which is compared itself.
fn is_file_digest(line: &DiffLine) -> bool {
    matches!(line.kind, LineKind::Removed | LineKind::Added) && is_digest_line(&line.text())
}

/// A member of a canonical object. The empty text has no members.
fn member<'a>(object: &'a str, name: &str) -> Option<Json<'a>> {
    if object.is_empty() { None } else { Json::accepted(object).get(name) }
}

/// The text of a file, which is a JSON string; `""` where there is none.
fn plain_text(json: &str) -> String {
    let text = (!json.is_empty()).then(|| Json::accepted(json).as_str()).flatten();
    text.unwrap_or_default().into_owned()
}

/// The texts of both parts; `""` for a missing part.
fn both<'a>(
    old: Option<&'a VersionPart>,
    new: Option<&'a VersionPart>,
) -> Result<(&'a str, &'a str), &'a str> {
    let text = |part: Option<&'a VersionPart>| match part.map(|part| &part.text) {
        None => Ok(""),
        Some(Ok(text)) => Ok(text.as_str()),
        Some(Err(why)) => Err(why.as_str()),
    };
    Ok((text(old)?, text(new)?))
}

/// The changed lines of the description of a text.
fn description_changes(before: &str, after: &str) -> Vec<SideBySide> {
    let [before, after] = [before, after].map(|text| match text {
        "" => String::new(),
        text => super::definition::text(Json::accepted(text), "description"),
    });
    side_by_side(&compared_text(&before, &after))
}

fn message_changes(before: &str, after: &str) -> Vec<MessageChange> {
    let view = |message: Option<&String>| {
        MessageView::of(Json::accepted(message.map_or("{}", String::as_str)))
    };
    let change = |compared: &ComparedMessage| {
        let ComparedMessage { before, after, lines } = compared;
        match (before, after) {
            _ if compared.is_same() => MessageChange::Same { message: view(after.as_ref()) },
            (Some(_), Some(_)) => MessageChange::Changed {
                role: view(after.as_ref()).role,
                rows: side_by_side(lines),
            },
            (None, _) => MessageChange::Added { message: view(after.as_ref()) },
            (_, None) => MessageChange::Removed { message: view(before.as_ref()) },
        }
    };
    compared_messages(before, after).iter().map(change).collect()
}

/// Pairs removed lines with the added lines that follow them.
fn side_by_side(lines: &[DiffLine]) -> Vec<SideBySide> {
    let mut rows: Vec<SideBySide> = Vec::new();
    // Where the added lines of this run begin.
    let mut run = None;
    let mut is_after_gap = false;
    for line in lines {
        let pieces = Some(line.pieces.clone());
        match line.kind {
            LineKind::Heading | LineKind::Note => {}
            LineKind::Range => (is_after_gap, run) = (!rows.is_empty(), None),
            LineKind::Same => {
                rows.push(SideBySide { before: pieces.clone(), after: pieces, is_after_gap });
                (is_after_gap, run) = (false, None);
            }
            LineKind::Removed => {
                run = run.or(Some(rows.len()));
                rows.push(SideBySide { before: pieces, after: None, is_after_gap });
                is_after_gap = false;
            }
            LineKind::Added => {
                let beside = run.and_then(|run: usize| rows.get_mut(run));
                match beside {
                    Some(row) => row.after = pieces,
                    None => rows.push(SideBySide { before: None, after: pieces, is_after_gap }),
                }
                run = run.map(|run| run + 1);
                is_after_gap = false;
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn removed_lines_stand_beside_the_added_ones_that_follow() {
        let rows = side_by_side(&compared_text("a\nb\nc\nd", "a\nB\nd\ne"));
        let text = |line: &Option<MarkedLine>| {
            line.as_ref().map(|line| line.iter().map(|(_, text)| text.as_str()).collect::<String>())
        };
        let rows: Vec<_> = rows.iter().map(|row| (text(&row.before), text(&row.after))).collect();
        let some = |text: &str| Some(text.to_owned());
        let expected = [
            (some("a"), some("a")),
            (some("b"), some("B")),
            (some("c"), None),
            (some("d"), some("d")),
            (None, some("e")),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn no_change_of_a_definition_is_left_out() {
        let parts = |definition: serde_json::Value, has_source: bool| {
            let part = |text: String| VersionPart { digest: None, text: Ok(text) };
            VersionParts {
                definition: Some(part(definition.to_string())),
                source: has_source.then(|| part(r#"{"embeds":{},"source":"a"}"#.to_owned())),
                ..VersionParts::default()
            }
        };
        let shown = |old: serde_json::Value, new: serde_json::Value, has_source| {
            let (old, new) = (parts(old, has_source), parts(new, has_source));
            Comparison::of(&old, &new, &[]).sections.len()
        };
        let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
        let with = |digit| json!({"_meta": {"digest": digest(digit)}, "name": "p"});
        assert_eq!(shown(with("1"), with("2"), true), 0, "the file is compared itself");
        assert_eq!(shown(with("1"), with("2"), false), 1, "the server has written it");
        assert_eq!(shown(with("1"), json!({"name": "q"}), true), 1);
        assert_eq!(shown(json!({"name": 5}), json!({"name": "5"}), false), 1, "of another type");
        assert_eq!(shown(with("1"), with("1"), false), 0);
    }

    #[test]
    fn a_file_and_the_files_that_it_embeds_are_compared_apart() {
        let parts = |source: &str, embeds: serde_json::Value| {
            let text = Ok(json!({"embeds": embeds, "source": source}).to_string());
            let source = Some(VersionPart { digest: None, text });
            VersionParts { source, ..VersionParts::default() }
        };
        let before = parts("a", json!({"list.md": {"text": "one"}}));
        let headings = |after: VersionParts| {
            let sections = Comparison::of(&before, &after, &[]).sections.into_iter();
            sections.map(|section| section.heading).collect::<Vec<_>>()
        };
        assert_eq!(headings(parts("b", json!({"list.md": {"text": "one"}}))), ["File"]);
        assert_eq!(headings(parts("a", json!({"list.md": {"text": "two"}}))), ["Embedded files"]);
    }

    #[test]
    fn the_files_of_a_skill_are_compared_one_by_one() {
        let parts = |files: &[(&str, &str)]| {
            let part = |text: &str| VersionPart { digest: None, text: Ok(json!(text).to_string()) };
            let files = files.iter().map(|(path, text)| (Arc::from(*path), part(text)));
            VersionParts { files: files.collect(), ..VersionParts::default() }
        };
        let before = parts(&[("SKILL.md", "a"), ("x", "same"), ("gone", "g")]);
        let after = parts(&[("SKILL.md", "b"), ("x", "same"), ("new", "n")]);
        let compared = Comparison::of(&before, &after, &[]);
        let headings: Vec<_> = compared.sections.iter().map(|own| own.heading.as_str()).collect();
        assert_eq!((headings, compared.same), (vec!["SKILL.md", "gone", "new"], vec!["x".into()]));
        let view = VersionView::of(&before);
        assert_eq!(view.files[0], ("SKILL.md".to_owned(), "a".to_owned()));
    }

    #[test]
    fn only_arguments_with_one_value_are_named() {
        assert_eq!(fixed_arguments(r#"{"a":"{{ a }}","lang":"de"}"#), "lang = de");
        assert_eq!(fixed_arguments(NO_ARGUMENTS), "");
    }
}
