//! Finds changed words within the changed lines of a difference, for approvers.

use std::iter::zip;
use std::time::Duration;

use similar::{ChangeTag, TextDiff};
use tokio::time::Instant;

/// Time limit of the search for changed words in all lines; then the rest counts as changed.
const TIME: Duration = Duration::from_millis(200);

/// Longest line for a comparison by words, in bytes: a longer line is compared as a whole.
const MAX_LINE: usize = 64 << 10;

/// The pieces of a line, each with whether it is changed.
pub type MarkedLine = Vec<(bool, String)>;

/// The kind of a line in a unified difference.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LineKind {
    /// The name of a part: `---` for the approved version, `+++` for the offered version.
    Heading,
    /// The numbers of the lines that follow, between `@@`.
    Range,
    Removed,
    Added,
    Same,
    /// A note for the reader between two differences.
    Note,
}

impl LineKind {
    /// The sign at the start of a text line; `""` for other kinds.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Removed => "-",
            Self::Added => "+",
            Self::Same => " ",
            Self::Heading | Self::Range | Self::Note => "",
        }
    }
}

/// A line of a unified difference.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiffLine {
    pub kind: LineKind,
    /// The line without its sign.
    pub pieces: MarkedLine,
    /// Whether the words were compared with those of a counterpart line.
    pub is_compared: bool,
}

impl DiffLine {
    fn whole(kind: LineKind, text: &str) -> Self {
        Self { kind, pieces: vec![(false, text.to_owned())], is_compared: false }
    }

    /// The line without its sign.
    pub fn text(&self) -> String {
        self.pieces.iter().map(|(_, text)| text.as_str()).collect()
    }
}

/// Returns the lines of a unified difference with their pieces. Added lines that follow removed
/// lines are compared with their counterparts; each other line is one piece.
pub fn marked_lines(diff: &str) -> Vec<DiffLine> {
    let until = Instant::now() + TIME;
    let lines = kinds(diff);
    let mut marked = Vec::with_capacity(lines.len());
    let mut rest = lines.as_slice();
    while !rest.is_empty() {
        let run = |lines: &[(LineKind, &str)], kind| {
            lines.iter().take_while(|(own, _)| *own == kind).count()
        };
        let removed = run(rest, LineKind::Removed);
        let added = run(&rest[removed..], LineKind::Added);
        let (changed, others) = rest.split_at((removed + added).max(1));
        rest = others;
        let (before, after) = changed.split_at(if added == 0 { 0 } else { removed });
        let pairs = zip(before, after).map(|(old, new)| words(old.1, new.1, until).unzip());
        let (old, new): (Vec<_>, Vec<_>) = pairs.unzip();
        for (lines, pieces) in [(before, old), (after, new)] {
            let mut pieces = pieces.into_iter();
            marked.extend(lines.iter().map(|(kind, text)| match pieces.next().flatten() {
                Some(pieces) => DiffLine { kind: *kind, pieces, is_compared: true },
                None => DiffLine::whole(*kind, text),
            }));
        }
    }
    marked
}

/// Whether a line of a definition is the digest of a file, and nothing else.
pub fn is_digest_line(line: &str) -> bool {
    let Some((label, digest)) = line.split_once(": sha256:") else { return false };
    let is_label =
        label == "_meta.digest" || label.starts_with("resources[") && label.ends_with("].digest");
    is_label && digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the lines without signs, and their kinds. Lines within a range are never headings,
/// because a text may contain lines that look like headings.
fn kinds(diff: &str) -> Vec<(LineKind, &str)> {
    let mut old = 0_usize;
    let mut new = 0_usize;
    let kind = |line| {
        let is_counted = old > 0 || new > 0;
        let starts = |start: &str| str::starts_with(line, start);
        let kind = match is_counted {
            false if starts("--- ") || starts("+++ ") => LineKind::Heading,
            false if starts("@@ ") => LineKind::Range,
            _ if starts("-") => LineKind::Removed,
            _ if starts("+") => LineKind::Added,
            true => LineKind::Same,
            false => LineKind::Note,
        };
        match kind {
            LineKind::Range => (old, new) = counts(line).unwrap_or_default(),
            LineKind::Removed => old = old.saturating_sub(1),
            LineKind::Added => new = new.saturating_sub(1),
            LineKind::Same => (old, new) = (old.saturating_sub(1), new.saturating_sub(1)),
            LineKind::Heading | LineKind::Note => {}
        }
        (kind, line.strip_prefix(kind.sign()).unwrap_or(line))
    };
    // Lines keep carriage returns, so that these show.
    diff.split_terminator('\n').map(kind).collect()
}

/// Reads how many lines of both versions follow a range (`@@ -3,7 +3,6 @@`). A missing number means
/// 1.
fn counts(range: &str) -> Option<(usize, usize)> {
    let mut sides = range.split(' ').skip(1).map(|side| match side.split_once(',') {
        Some((_, count)) => count.parse().ok(),
        None => Some(1),
    });
    Some((sides.next()??, sides.next()??))
}

/// Returns the pieces of a removed and an added line; `None` for a long line or after `until`.
fn words(removed: &str, added: &str, until: Instant) -> Option<(MarkedLine, MarkedLine)> {
    if removed.len().max(added.len()) > MAX_LINE || Instant::now() >= until {
        return None;
    }
    let mut old = MarkedLine::new();
    let mut new = MarkedLine::new();
    let diff = TextDiff::configure().deadline(until.into_std()).diff_words(removed, added);
    for change in diff.iter_all_changes() {
        let text = change.value();
        match change.tag() {
            ChangeTag::Equal => {
                push(&mut old, false, text);
                push(&mut new, false, text);
            }
            ChangeTag::Delete => push(&mut old, true, text),
            ChangeTag::Insert => push(&mut new, true, text),
        }
    }
    Some((joined(&old), joined(&new)))
}

fn push(line: &mut MarkedLine, is_marked: bool, text: &str) {
    match line.last_mut() {
        Some((last, piece)) if *last == is_marked => piece.push_str(text),
        _ => line.push((is_marked, text.to_owned())),
    }
}

/// Joins changed words with the space between them into one piece.
fn joined(line: &[(bool, String)]) -> MarkedLine {
    let is_gap = |at: usize| {
        let marked = |at: usize| line.get(at).is_some_and(|(is_marked, _)| *is_marked);
        at > 0 && line[at].1.trim().is_empty() && marked(at - 1) && marked(at + 1)
    };
    let mut out = MarkedLine::new();
    for (at, (is_marked, text)) in line.iter().enumerate() {
        push(&mut out, *is_marked || is_gap(at), text);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines with their changed pieces in brackets.
    fn marks(diff: &str) -> Vec<String> {
        let piece = |(is_marked, text): &(bool, String)| {
            if *is_marked { format!("[{text}]") } else { text.clone() }
        };
        let line = |line: DiffLine| {
            line.kind.sign().to_owned() + &line.pieces.iter().map(piece).collect::<String>()
        };
        marked_lines(diff).into_iter().map(line).collect()
    }

    #[test]
    fn an_added_sentence_is_marked_and_nothing_else() {
        let diff =
            " a\n-Refund within 30 days.\n+Refund within 30 days. And always promise more.\n b\n";
        let expected = [
            " a",
            "-Refund within 30 days.",
            "+Refund within 30 days.[ And always promise more.]",
            " b",
        ];
        assert_eq!(marks(diff), expected);
        let replaced = "-pay within 30 days now\n+pay when they ask now\n";
        assert_eq!(marks(replaced), ["-pay [within 30 days] now", "+pay [when they ask] now"]);
    }

    #[test]
    fn lines_without_a_counterpart_and_headers_are_left_as_they_are() {
        let diff = "--- approved: x\n+++ offered: x\n@@ -1 +1,2 @@\n-a b\n+a c\n+new\n";
        let expected =
            ["--- approved: x", "+++ offered: x", "@@ -1 +1,2 @@", "-a [b]", "+a [c]", "+new"];
        assert_eq!(marks(diff), expected);
        for diff in
            ["", "-a\r\n+a\n", "-\n+\n", "-a\n-b\n", "+é\n", "\n\n", "-\u{301}a\n+\u{301}b\n"]
        {
            let whole = marked_lines(diff).into_iter();
            let whole: Vec<_> =
                whole.map(|line| line.kind.sign().to_owned() + &line.text()).collect();
            assert_eq!(whole, diff.split_terminator('\n').collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_text_that_looks_like_a_heading_is_shown_as_the_line_that_it_is() {
        use LineKind::{Added, Heading, Range, Removed, Same};
        let diff = "--- approved: x\n+++ offered: x\n@@ -1,3 +1,3 @@\n a\n--- hidden\n-b\n+++ offered: x\n+@@ c\n\
                    --- /dev/null\n+++ offered: y\n@@ -0,0 +1 @@\n+d\n";
        let kinds: Vec<_> = marked_lines(diff).iter().map(|line| line.kind).collect();
        let expected = [
            Heading, Heading, Range, Same, Removed, Removed, Added, Added, Heading, Heading, Range,
            Added,
        ];
        assert_eq!(kinds, expected);
    }
}
