//! Differences between the approved and the offered version of a prompt, for approvers.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::iter;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

use similar::{DiffOp, DiffTag, TextDiff, group_diff_ops};

use catalog::approval::DEPTH;
use domain::json::Json;

/// One part of two versions: its name, and its canonical texts. A text is empty if the version has
/// no such part.
pub(super) struct ChangedPart<'a> {
    pub what: String,
    pub approved: &'a str,
    pub offered: &'a str,
}

/// Most bytes of all differences of one prompt: enough for a person to read.
const MAX_DIFF: usize = 1 << 20;

/// The last line of a truncated difference. No other line begins with a backslash.
const CUT: &str = "\\ The difference is longer than 1 MiB. Its rest is not shown.\n";

/// Context lines around a change.
const CONTEXT: usize = 3;

/// Most lines of each version, and their bytes, in one comparison.
const WINDOW: usize = 5_000;
const WINDOW_BYTES: usize = 512 << 10;

/// Time limit of the search for the shortest difference of a window; then the rest of the window is
/// shown as removed and added.
const DIFF_TIME: Duration = Duration::from_millis(200);

/// Appends the difference of one part, whose digests differ, as a unified diff with context, of at
/// most [`MAX_DIFF`] bytes. Memory use depends on the longest line, not on the number of lines.
pub(super) fn write_diff(part: &ChangedPart<'_>, out: &mut String) {
    write_diff_within(part, DIFF_TIME, out);
}

/// Like [`write_diff`], with a time limit for the search in each window.
fn write_diff_within(part: &ChangedPart<'_>, time: Duration, out: &mut String) {
    let header = |side: &str, text: &str| {
        if text.is_empty() { "/dev/null".to_owned() } else { format!("{side}: {}", part.what) }
    };
    let headers = [header("approved", part.approved), header("offered", part.offered)];
    let [old, new] = headers.map(|header| header.replace('\n', " "));
    let mut hunks = Hunks { header: format!("--- {old}\n+++ {new}\n"), out };
    match compare(part, time, &mut hunks) {
        ControlFlow::Break(()) => {}
        // The digests differ, but the lines do not: for example 5 and "5".
        ControlFlow::Continue(()) if !hunks.header.is_empty() => {
            let _ =
                writeln!(out, "{}: only types or escapes differ; compare the objects", part.what);
        }
        ControlFlow::Continue(()) => {}
    }
}

/// Writes the hunks of one part, window by window.
fn compare(part: &ChangedPart<'_>, time: Duration, hunks: &mut Hunks<'_>) -> ControlFlow<()> {
    let mut old = Side::new(part.approved);
    let mut new = Side::new(part.offered);
    // The last lines before the window, which are equal in both versions.
    let mut before: VecDeque<String> = VecDeque::new();
    loop {
        while let Some(line) = old.peek()
            && new.peek() == Some(line)
        {
            before.extend(old.next());
            new.next();
            if before.len() > CONTEXT {
                before.pop_front();
            }
        }
        if old.peek().is_none() && new.peek().is_none() {
            return ControlFlow::Continue(());
        }
        let is_last = [&mut old, &mut new].map(Side::fill) == [true, true];
        let window = |side: &Side<'_>| -> Vec<String> {
            before.iter().chain(&side.window).cloned().collect()
        };
        let lines = [window(&old), window(&new)];
        let [old_lines, new_lines] = lines.each_ref().map(|lines| borrowed(lines));
        let diff = TextDiff::configure().timeout(time).diff_slices(&old_lines, &new_lines);
        let ops = settled(diff.ops(), before.len(), is_last);
        let starts = [&old, &new].map(|side| side.done - before.len());
        let ends = ops.last().map_or((0, 0), |op| (op.old_range().end, op.new_range().end));
        let equal = ops.last().filter(|op| op.tag() == DiffTag::Equal).map(DiffOp::old_range);
        for group in group_diff_ops(ops, CONTEXT) {
            hunks.write(&group, starts, [&old_lines, &new_lines])?;
        }
        old.skip(ends.0 - before.len());
        new.skip(ends.1 - before.len());
        let equal = equal.map_or(&[][..], |range| &old_lines[range]);
        let context = equal.iter().rev().take(CONTEXT).rev();
        before = context.map(|line| (*line).to_owned()).collect();
    }
}

fn borrowed(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).collect()
}

/// Returns the operations that further lines cannot change: in the last window all; in another
/// window the operations up to the last equal lines after `before`, or all without equal lines.
fn settled(ops: &[DiffOp], before: usize, is_last: bool) -> Vec<DiffOp> {
    let is_aligned = |op: &DiffOp| op.tag() == DiffTag::Equal && op.old_range().end > before;
    let aligned = if is_last { None } else { ops.iter().rposition(is_aligned) };
    ops[..aligned.map_or(ops.len(), |at| at + 1)].to_vec()
}

/// Writes the hunks of one part.
struct Hunks<'a> {
    /// The header before the first hunk; empty once it is written.
    header: String,
    out: &'a mut String,
}

impl Hunks<'_> {
    /// Writes a hunk; breaks if the diff is full. `starts` are the lines before the window.
    fn write(
        &mut self,
        group: &[DiffOp],
        starts: [usize; 2],
        lines: [&[&str]; 2],
    ) -> ControlFlow<()> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            return ControlFlow::Continue(());
        };
        let header = std::mem::take(&mut self.header);
        self.push(&header, "")?;
        let range = |start: usize, range: Range<usize>| {
            let begin = start + range.start + usize::from(!range.is_empty());
            if range.len() == 1 { begin.to_string() } else { format!("{begin},{}", range.len()) }
        };
        let old = range(starts[0], first.old_range().start..last.old_range().end);
        let new = range(starts[1], first.new_range().start..last.new_range().end);
        self.push(&format!("@@ -{old} +{new} @@\n"), "")?;
        for op in group {
            if op.tag() == DiffTag::Equal {
                op.old_range().try_for_each(|at| self.push(" ", lines[0][at]))?;
                continue;
            }
            op.old_range().try_for_each(|at| self.push("-", lines[0][at]))?;
            op.new_range().try_for_each(|at| self.push("+", lines[1][at]))?;
        }
        ControlFlow::Continue(())
    }

    /// Writes a line with its leading mark.
    fn push(&mut self, mark: &str, line: &str) -> ControlFlow<()> {
        if self.out.ends_with(CUT) {
            return ControlFlow::Break(());
        }
        if self.out.len() + mark.len() + line.len() >= MAX_DIFF {
            self.out.push_str(CUT);
            return ControlFlow::Break(());
        }
        self.out.push_str(mark);
        self.out.push_str(line);
        if !mark.ends_with('\n') && !mark.is_empty() {
            self.out.push('\n');
        }
        ControlFlow::Continue(())
    }
}

/// One version, line by line.
struct Side<'a> {
    lines: ReadableLines<'a>,
    /// Lines that were read but not yet compared.
    window: VecDeque<String>,
    /// The number of lines before `window`.
    done: usize,
}

impl<'a> Side<'a> {
    fn new(canonical: &'a str) -> Self {
        Self { lines: readable(canonical), window: VecDeque::new(), done: 0 }
    }

    fn peek(&mut self) -> Option<&String> {
        if self.window.is_empty() {
            self.window.extend(self.lines.next());
        }
        self.window.front()
    }

    fn next(&mut self) -> Option<String> {
        self.peek()?;
        self.done += 1;
        self.window.pop_front()
    }

    /// Reads the lines of a window; returns whether the version ends with the window.
    fn fill(&mut self) -> bool {
        let mut bytes: usize = self.window.iter().map(String::len).sum();
        while self.window.len() < WINDOW && bytes < WINDOW_BYTES {
            let Some(line) = self.lines.next() else {
                return true;
            };
            bytes += line.len();
            self.window.push_back(line);
        }
        false
    }

    fn skip(&mut self, lines: usize) {
        self.window.drain(..lines);
        self.done += lines;
    }
}

/// Most bytes of readable lines for each byte of JSON: each value is preceded by its path, so an
/// upstream could turn one long key into gigabytes.
const MOST_READABLE: usize = 8;

/// Bytes of readable lines that are always allowed.
const ALWAYS_READABLE: usize = 64 << 10;

type ReadableLines<'a> = Box<dyn Iterator<Item = String> + 'a>;

/// Returns canonical JSON as readable lines: one line for each member or element, and for each line
/// of a long text. Returns the JSON unchanged if its readable lines would be far longer.
fn readable(canonical: &str) -> ReadableLines<'_> {
    if canonical.is_empty() {
        return Box::new(iter::empty());
    }
    let mut left = canonical.len() * MOST_READABLE + ALWAYS_READABLE;
    let fits = |line: String| {
        let rest = left.checked_sub(line.len() + 1);
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    match Json::parse(canonical.as_bytes(), DEPTH) {
        Ok(json) if lines_of(json, "").all(fits) => lines_of(json, ""),
        _ => Box::new(iter::once(canonical.to_owned())),
    }
}

fn lines_of<'a>(json: Json<'a>, path: &str) -> ReadableLines<'a> {
    if let Some(raw) = json.raw_str() {
        return Box::new(lines_of_text(raw, path.to_owned()));
    }
    let is_leaf = json.members().next().is_none() && json.elements().next().is_none();
    if is_leaf {
        return Box::new(iter::once(labelled(path, json.text())));
    }
    let parent = path.to_owned();
    let members = json.members().flat_map(move |(key, value)| {
        // A line feed in a key must not begin a line.
        let key = key.as_str().unwrap_or_default().replace('\n', "\\n");
        let separator = if parent.is_empty() { "" } else { "." };
        lines_of(value, &format!("{parent}{separator}{key}"))
    });
    let parent = path.to_owned();
    let elements = json.elements().enumerate();
    let elements = elements
        .flat_map(move |(index, value)| lines_of(value, &format!("{parent}[{}]", index + 1)));
    Box::new(members.chain(elements))
}

/// Returns the lines of a text. Decodes each line separately, because the text may have megabytes.
/// `raw` is the inside of a canonical JSON string. Lines keep carriage returns, so that they show.
fn lines_of_text(raw: &str, path: String) -> impl Iterator<Item = String> + '_ {
    let mut rest = Some(raw);
    let mut is_first = true;
    iter::from_fn(move || {
        let (line, after) = split_line(rest?);
        rest = after.filter(|after| !after.is_empty());
        let line = format!("\"{line}\"");
        let line = Json::accepted(&line).as_str().unwrap_or_default();
        let is_first = std::mem::take(&mut is_first);
        Some(if is_first { labelled(&path, &line) } else { format!("    {line}") })
    })
}

/// Splits the inside of a string at its first line feed.
fn split_line(raw: &str) -> (&str, Option<&str>) {
    let mut from = 0;
    while let Some(found) = raw[from..].find('\\') {
        let mark = from + found;
        if raw[mark..].starts_with("\\n") {
            return (&raw[..mark], Some(&raw[mark + 2..]));
        }
        // An escape is a backslash and at least one more ASCII character.
        from = mark + 2;
    }
    (raw, None)
}

fn labelled(path: &str, text: &str) -> String {
    if path.is_empty() { text.to_owned() } else { format!("{path}: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(approved: &str, offered: &str) -> String {
        let mut out = String::new();
        let part = ChangedPart { what: "text".to_owned(), approved, offered };
        // However slow the machine is.
        write_diff_within(&part, Duration::from_secs(600), &mut out);
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
        assert!(
            readable(&long).eq([long.clone()]),
            "a path before each element would take a hundred megabytes"
        );
        let new = diff("", "{\"name\":\"p\",\"arguments\":[]}");
        assert!(new.starts_with("--- /dev/null\n+++ offered: text\n"), "{new}");
        assert!(new.contains("\n+arguments: []\n") && new.contains("\n+name: p\n"), "{new}");
    }
    #[test]
    fn the_lines_of_a_text_are_those_that_it_has() {
        for text in ["", "\n", "a", "a\n", "a\n\n", "\n\nb", "\\n\\\n\"\r\n\u{1}é😀\n\\"] {
            let found: Vec<_> = readable(&serde_json::json!(text).to_string()).collect();
            let lines = text.strip_suffix('\n').unwrap_or(text).split('\n').enumerate();
            let indented = |(at, line): (usize, &str)| {
                if at == 0 { line.to_string() } else { format!("    {line}") }
            };
            assert_eq!(found, lines.map(indented).collect::<Vec<_>>(), "{text:?}");
        }
    }

    /// The versions of a text whose lines are numbers, without some of them.
    fn numbers(lines: std::ops::Range<u32>, left_out: &[u32]) -> String {
        let lines = lines.filter(|line| !left_out.contains(line));
        serde_json::json!(lines.map(|line| format!("{line}\n")).collect::<String>()).to_string()
    }

    #[test]
    fn changes_far_apart_are_shown_with_the_lines_around_them_and_nothing_else() {
        let far = 3 * WINDOW as u32;
        let changed = diff(&numbers(0..2 * far, &[far + 1]), &numbers(0..2 * far, &[5, far]));
        let hunk = |at: u32| format!("     {at}\n");
        let lines = |lines: [u32; 3]| lines.map(hunk).concat();
        let expected = format!(
            "--- approved: text\n+++ offered: text\n@@ -3,7 +3,6 @@\n{}-    5\n{}\
             @@ -{},7 +{},7 @@\n{}-    {far}\n+    {}\n{}",
            lines([2, 3, 4]),
            lines([6, 7, 8]),
            far - 2,
            far - 3,
            lines([far - 3, far - 2, far - 1]),
            far + 1,
            lines([far + 2, far + 3, far + 4]),
        );
        assert_eq!(changed, expected);
        let grown = diff(&numbers(0..far, &[]), &numbers(0..far + 2, &[]));
        assert!(grown.ends_with(&format!("+    {far}\n+    {}\n", far + 1)), "{grown}");
    }

    #[test]
    fn a_difference_ends_at_its_border_and_says_so() {
        let feeds = |lines: usize| serde_json::json!("\n".repeat(lines)).to_string();
        let cut = diff(&feeds(500_000), &feeds(200_000));
        assert!(cut.ends_with(CUT), "{}", &cut[cut.len() - 100..]);
        assert!(cut.len() <= MAX_DIFF + CUT.len());
        let mut all = cut.clone();
        write_diff(&ChangedPart { what: "b".to_owned(), approved: "1", offered: "2" }, &mut all);
        assert_eq!(all, cut, "nothing follows a cut");
        let long = |length: usize| serde_json::json!("x".repeat(length)).to_string();
        let room = MAX_DIFF - "--- /dev/null\n+++ offered: text\n@@ -0,0 +1 @@\n+\n".len();
        assert!(!diff("", &long(room)).ends_with(CUT));
        assert!(diff("", &long(room + 1)).ends_with(CUT));
        assert_eq!(diff("", &long(room)).lines().count(), 4);
    }
}
