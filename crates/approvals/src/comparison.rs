//! Compares two versions of a text, message by message, for approvers.

use std::time::Duration;

use similar::{DiffTag, TextDiff};
use tokio::time::Instant;

use super::diff::{ChangedPart, write_diff};
use super::words::{DiffLine, LineKind, marked_lines};
use catalog::approval::DEPTH;
use domain::json::Json;

/// A message of a text, and its counterpart in the previous text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ComparedMessage {
    /// Canonical JSON; `None` if the message was added.
    pub before: Option<String>,
    /// Canonical JSON; `None` if the message was removed.
    pub after: Option<String>,
    /// The changed lines with context; empty unless both messages exist and differ.
    pub lines: Vec<DiffLine>,
}

impl ComparedMessage {
    pub fn is_same(&self) -> bool {
        self.before == self.after
    }
}

/// Time limit of the search for the shortest difference; then the rest counts as changed.
const TIME: Duration = Duration::from_millis(200);

/// Context lines around a change.
const CONTEXT: usize = 3;

/// Time limit of the line-by-line comparison of a text; further messages count as removed and
/// added.
const ALL: Duration = Duration::from_secs(2);

/// Compares two canonical texts, message by message; `""` has no messages.
pub fn compared_messages(before: &str, after: &str) -> Vec<ComparedMessage> {
    let until = Instant::now() + ALL;
    let old = messages(before);
    let new = messages(after);
    let diff = TextDiff::configure().timeout(TIME).diff_slices(&old, &new);
    let mut all = Vec::with_capacity(new.len());
    for op in diff.ops() {
        let mut before = old[op.old_range()].iter();
        let mut after = new[op.new_range()].iter();
        loop {
            let before = before.next();
            let after = after.next();
            if before.is_none() && after.is_none() {
                break;
            }
            let [before, after] = [before, after].map(|text| text.map(|text| (*text).to_owned()));
            let is_changed = before.is_some() && after.is_some() && op.tag() != DiffTag::Equal;
            if is_changed && Instant::now() >= until {
                all.push(ComparedMessage { before, after: None, lines: Vec::new() });
                all.push(ComparedMessage { before: None, after, lines: Vec::new() });
                continue;
            }
            let lines = match (&before, &after) {
                (Some(before), Some(after)) if is_changed => compared_message(before, after),
                _ => Vec::new(),
            };
            all.push(ComparedMessage { before, after, lines });
        }
    }
    all
}

/// Returns the changed lines of a plain text, with context.
pub fn compared_text(before: &str, after: &str) -> Vec<DiffLine> {
    // A final line feed counts as a separate line, so that the line before it stays the same.
    let [old, new] = [before, after].map(lines);
    let diff = TextDiff::configure().timeout(TIME).diff_slices(&old, &new);
    marked_lines(&diff.unified_diff().context_radius(CONTEXT).to_string())
}

fn lines(text: &str) -> Vec<&str> {
    if text.is_empty() { Vec::new() } else { text.split('\n').collect() }
}

/// Returns the changed lines of a message; of its text alone, if only the text has changed.
fn compared_message(before: &str, after: &str) -> Vec<DiffLine> {
    let [old, new] = [before, after].map(Json::accepted);
    let text = |message: Json<'_>| {
        let content = message.get("content")?;
        let has_two = |json: Json<'_>| json.members().count() == 2;
        let is_plain = has_two(message) && has_two(content) && content.get("type")?.is("text");
        content.get("text").filter(|_| is_plain)?.as_str().map(|text| text.into_owned())
    };
    let role = |message: Json<'_>| message.get("role").map(|role| role.text().to_owned());
    match (text(old), text(new)) {
        (Some(old_text), Some(new_text)) if role(old) == role(new) => {
            compared_text(&old_text, &new_text)
        }
        _ => compared_parts(before, after),
    }
}

/// Returns the changed lines of two canonical objects, member by member, with context.
pub fn compared_parts(before: &str, after: &str) -> Vec<DiffLine> {
    let mut diff = String::new();
    write_diff(&ChangedPart { what: String::new(), approved: before, offered: after }, &mut diff);
    let lines = marked_lines(&diff).into_iter();
    lines.filter(|line| line.kind != LineKind::Heading).collect()
}

/// The messages of a canonical text.
fn messages(text: &str) -> Vec<&str> {
    let Ok(json) = Json::parse(text.as_bytes(), DEPTH) else {
        return Vec::new();
    };
    json.get("messages").into_iter().flat_map(Json::elements).map(Json::text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(messages: &[(&str, &str)]) -> String {
        let message = |(role, text): &(&str, &str)| json!({"content": {"text": text, "type": "text"}, "role": role});
        json!({"messages": messages.iter().map(message).collect::<Vec<_>>()}).to_string()
    }

    #[test]
    fn each_message_is_compared_with_its_counterpart() {
        let before = text(&[("user", "a\nb"), ("assistant", "same"), ("user", "gone")]);
        let after = text(&[("user", "a\nb and more"), ("assistant", "same")]);
        let [changed, same, removed] = &compared_messages(&before, &after)[..] else {
            panic!("three messages");
        };
        assert!(same.is_same() && same.lines.is_empty());
        assert!(removed.after.is_none() && removed.before.is_some());
        let lines: Vec<_> = changed.lines.iter().map(|line| (line.kind, line.text())).collect();
        let expected = [
            (LineKind::Range, "@@ -1,2 +1,2 @@".to_owned()),
            (LineKind::Same, "a".to_owned()),
            (LineKind::Removed, "b".to_owned()),
            (LineKind::Added, "b and more".to_owned()),
        ];
        assert_eq!(lines, expected);
        let marked = |line: &DiffLine| line.pieces.iter().any(|(is_marked, _)| *is_marked);
        assert!(!marked(&changed.lines[2]) && marked(&changed.lines[3]));
    }

    #[test]
    fn metadata_of_a_message_is_compared_too() {
        let with = |meta: &str| {
            let content = json!({"text": "a", "type": "text"});
            json!({"messages": [{"_meta": {"m": meta}, "content": content, "role": "user"}]})
        };
        let [changed] = &compared_messages(&with("one").to_string(), &with("two").to_string())[..]
        else {
            panic!("one message");
        };
        assert!(changed.lines.iter().any(|line| line.text() == "_meta.m: two"));
    }

    #[test]
    fn a_first_version_has_added_messages_and_other_roles_are_changes() {
        let added = compared_messages("", &text(&[("user", "a")]));
        assert!(matches!(&added[..], [ComparedMessage { before: None, after: Some(_), .. }]));
        let [changed] =
            &compared_messages(&text(&[("user", "a")]), &text(&[("assistant", "a")]))[..]
        else {
            panic!("one message");
        };
        let lines: Vec<_> = changed.lines.iter().map(DiffLine::text).collect();
        assert!(
            lines.contains(&"role: user".to_owned())
                && lines.contains(&"role: assistant".to_owned())
        );
    }
}
