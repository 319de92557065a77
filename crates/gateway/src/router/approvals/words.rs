//! Changed words within changed lines of a difference, for people who decide.

use std::iter::zip;
use std::time::Duration;

use similar::{ChangeTag, TextDiff};

/// Time for which the changed words of a line are searched; then the rest of it counts as changed.
const TIME: Duration = Duration::from_millis(50);

/// Longest line whose words are compared, in bytes: nobody sees more of a line at once.
const MAX_LINE: usize = 64 << 10;

/// A line in pieces, and whether each is changed.
pub type MarkedLine = Vec<(bool, String)>;

/// Returns the lines of a unified difference, each with its pieces. Where added lines follow
/// removed ones, each is compared with its counterpart, and its sign is the first of several
/// pieces; other lines are one piece.
pub fn marked_lines(diff: &str) -> Vec<(&str, MarkedLine)> {
    let lines: Vec<&str> = diff.lines().collect();
    let mut marked = Vec::with_capacity(lines.len());
    let mut rest = lines.as_slice();
    while !rest.is_empty() {
        let removed = rest.iter().take_while(|line| is_removed(line)).count();
        let added = rest[removed..].iter().take_while(|line| is_added(line)).count();
        if removed == 0 || added == 0 {
            let run = removed.max(1);
            marked
                .extend(rest[..run].iter().map(|line| (*line, vec![(false, (*line).to_owned())])));
            rest = &rest[run..];
            continue;
        }
        let (before, after) = (&rest[..removed], &rest[removed..removed + added]);
        let pairs: Vec<_> = zip(before, after).map(|(old, new)| words(old, new)).collect();
        let side = |lines: &[&'_ str], pick: fn(&(MarkedLine, MarkedLine)) -> &MarkedLine| {
            let pieces = |(at, line): (usize, &&str)| match pairs.get(at) {
                Some(pair) => pick(pair).clone(),
                None => vec![(false, (*line).to_owned())],
            };
            lines.iter().enumerate().map(pieces).collect::<Vec<_>>()
        };
        let old = side(before, |pair| &pair.0);
        let new = side(after, |pair| &pair.1);
        marked.extend(zip(before.iter().copied(), old));
        marked.extend(zip(after.iter().copied(), new));
        rest = &rest[removed + added..];
    }
    marked
}

fn is_removed(line: &str) -> bool {
    line.starts_with('-') && !line.starts_with("--- ")
}

fn is_added(line: &str) -> bool {
    line.starts_with('+') && !line.starts_with("+++ ")
}

/// Returns a removed and an added line in pieces. The first character of each says which it is.
fn words(removed: &str, added: &str) -> (MarkedLine, MarkedLine) {
    let (mut old, mut new) = (MarkedLine::new(), MarkedLine::new());
    let (before, after) = (&removed[1..], &added[1..]);
    if before.len().max(after.len()) > MAX_LINE {
        push(&mut old, false, before);
        push(&mut new, false, after);
        return (signed("-", old), signed("+", new));
    }
    let diff = TextDiff::configure().timeout(TIME).diff_words(before, after);
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
    (signed("-", joined(&old)), signed("+", joined(&new)))
}

/// A line of a pair, with its sign as a piece of its own.
fn signed(sign: &str, line: MarkedLine) -> MarkedLine {
    [(false, sign.to_owned())].into_iter().chain(line).collect()
}

fn push(line: &mut MarkedLine, is_marked: bool, text: &str) {
    match line.last_mut() {
        Some((last, piece)) if *last == is_marked => piece.push_str(text),
        _ => line.push((is_marked, text.to_owned())),
    }
}

/// Joins changed words with the space between them, so that they read as one.
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
        let lines = marked_lines(diff).into_iter();
        lines.map(|(_, pieces)| pieces.iter().map(piece).collect()).collect()
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
        for diff in ["", "-\n+\n", "-a\n-b\n", "+é\n", "\n\n", "-\u{301}a\n+\u{301}b\n"] {
            let whole: Vec<String> = marked_lines(diff)
                .into_iter()
                .map(|(line, pieces)| {
                    let all: String = pieces.into_iter().map(|(_, text)| text).collect();
                    assert_eq!(all, line);
                    all
                })
                .collect();
            assert_eq!(whole, diff.lines().collect::<Vec<_>>());
        }
    }
}
