//! Differences between the approved and the offered version of a prompt, for people who decide.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use similar::TextDiff;

use crate::router::approval::DEPTH;
use domain::json::Json;

/// One part of a version: its name, and its canonical text. The text is empty where the version has
/// no such part.
pub(super) struct VersionPart<'a> {
    pub what: String,
    pub approved: &'a str,
    pub offered: &'a str,
}

/// Appends the difference of one part, whose digests differ, as a unified diff.
pub(super) fn write_diff(part: &VersionPart<'_>, out: &mut String) {
    let (approved, offered) = (readable(part.approved), readable(part.offered));
    if approved == offered {
        // Such as 5 and "5", which read alike.
        let _ = writeln!(out, "{}: only types or escapes differ; compare the objects", part.what);
        return;
    }
    let header = |side: &str, text: &str| {
        if text.is_empty() { "/dev/null".to_owned() } else { format!("{side}: {}", part.what) }
    };
    let difference = TextDiff::configure().timeout(DIFF_TIME).diff_lines(&*approved, &*offered);
    let mut difference = difference.unified_diff();
    let difference = difference
        .header(&header("approved", part.approved), &header("offered", part.offered))
        .missing_newline_hint(false);
    // Writing to a string cannot fail.
    let _ = write!(out, "{difference}");
}

/// Time for which the shortest difference is searched; then the rest is shown as removed and added.
const DIFF_TIME: Duration = Duration::from_secs(1);

/// Bytes of the lines to read, for each byte of the JSON: a path stands before each value, so that
/// an upstream could make gigabytes out of one long key.
const MOST_READABLE: usize = 8;

/// Bytes that the lines to read may have in any case.
const ALWAYS_READABLE: usize = 64 << 10;

/// Returns canonical JSON as lines to read: a member or element on each line, and the lines of a
/// long text each on its own. JSON of which they would be far longer is returned as it is.
fn readable(canonical: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let most = canonical.len() * MOST_READABLE + ALWAYS_READABLE;
    match Json::parse(canonical.as_bytes(), DEPTH) {
        Ok(json) if !write_readable(json, "", most, &mut out) => canonical.into(),
        _ => out.into(),
    }
}

/// Returns whether the lines fit into `most` bytes.
fn write_readable(json: Json<'_>, path: &str, most: usize, out: &mut String) -> bool {
    if path.len().saturating_add(out.len()) > most {
        return false;
    }
    let mut line = |text: &str| {
        let _ =
            if path.is_empty() { writeln!(out, "{text}") } else { writeln!(out, "{path}: {text}") };
    };
    if let Some(text) = json.as_str() {
        // Carriage returns are part of a line, so that they show.
        let mut lines = text.strip_suffix('\n').unwrap_or(&text).split('\n');
        line(lines.next().unwrap_or_default());
        for more in lines {
            let _ = writeln!(out, "    {more}");
        }
        return out.len() <= most;
    }
    let is_leaf = json.members().next().is_none() && json.elements().next().is_none();
    if is_leaf {
        line(json.text());
    }
    let fits = json.members().all(|(key, value)| {
        // A line feed in a key must not begin a line.
        let key = key.as_str().unwrap_or_default().replace('\n', "\\n");
        let separator = if path.is_empty() { "" } else { "." };
        write_readable(value, &format!("{path}{separator}{key}"), most, out)
    });
    fits && json
        .elements()
        .enumerate()
        .all(|(index, value)| write_readable(value, &format!("{path}[{}]", index + 1), most, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(approved: &str, offered: &str) -> String {
        let mut out = String::new();
        write_diff(&VersionPart { what: "text".to_owned(), approved, offered }, &mut out);
        out
    }

    #[test]
    fn a_difference_names_the_member_and_shows_the_lines_of_a_text() {
        let text = |text: &str| {
            serde_json::json!({"messages": [{"content": {"text": text, "type": "text"}, "role": "user"}]})
                .to_string()
        };
        assert_eq!(
            diff("{\"a\":5}", "{\"a\":\"5\"}"),
            "text: only types or escapes differ; compare the objects\n"
        );
        let forged = diff("{}", "{\"a\\n-b\":1,\"c\":\"x\\r\\ny\"}");
        assert!(forged.contains("\n+a\\n-b: 1\n") && forged.contains("c: x\r\n"), "{forged:?}");
        let changed = diff(&text("Review:\nbe kind\nend"), &text("Review:\nbe quick\nend"));
        for line in [
            "--- approved: text",
            "+++ offered: text",
            " messages[1].content.text: Review:",
            "-    be kind",
            "+    be quick",
        ] {
            assert!(changed.lines().any(|found| found == line), "{line}\n{changed}");
        }
        let long = format!("{{\"{}\":[0{}]}}", "k".repeat(10_000), ",0".repeat(10_000));
        assert_eq!(
            readable(&long),
            long,
            "a path before each element would take a hundred megabytes"
        );
        let new = diff("", "{\"name\":\"p\",\"arguments\":[]}");
        assert!(new.starts_with("--- /dev/null\n+++ offered: text\n"), "{new}");
        assert!(new.contains("\n+arguments: []\n") && new.contains("\n+name: p\n"), "{new}");
    }
}
