//! `promptgate approvals review`: a walk through the waiting prompts, one after another.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, BufRead, Write};

use super::card::{END, card, with_places};
use super::desk::{ApprovalBackend, Shown, is_waiting, variants};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{elements, is_styled, print, printable, printable_line, prompts};
use approvals::Action;
use approvals::words::{DiffLine, LineKind, is_digest_line, marked_lines};

/// The answer of the person who reviews.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Answer {
    Approve,
    Skip,
    Reject,
    /// Approves this prompt, and all of its upstream that follow.
    ApproveAll,
    /// Leaves this prompt, and all of its upstream that follow.
    SkipAll,
    Quit,
}

/// A walk through the prompts, with its decisions so far.
struct Walk<'a> {
    desk: &'a ApprovalBackend,
    requires_reason: bool,
    approved: usize,
    rejected: usize,
}

/// Shows each waiting prompt, and asks for a decision.
pub(super) async fn review(desk: &ApprovalBackend) -> Result<(), Failure> {
    let mut rest = VecDeque::from(desk.waiting().await?);
    for failure in desk.failures().await {
        eprintln!("{failure}");
    }
    if rest.is_empty() {
        return print("Nothing waits for a decision.");
    }
    let requires_reason = desk.requires_reason().await?;
    let mut walk = Walk { desk, requires_reason, approved: 0, rejected: 0 };
    let count = rest.len();
    while let Some(shown) = rest.pop_front() {
        let shown = match shown.json["diff"].is_null() {
            false => shown,
            true => match desk.look_at(&[shown.name().to_owned()]).await?.pop() {
                Some(shown) => shown,
                None => continue,
            },
        };
        print(&page(desk, &shown, &format!("{} of {count}", count - rest.len())))?;
        if !is_waiting(&shown.json) {
            let digests = chosen_variants(&shown)?;
            if !digests.is_empty() {
                walk.carry_out(&Action::ApproveVariants { digests }, &[shown]).await?;
            }
            continue;
        }
        let is_next = |other: &Shown| other.text("upstream") == shown.text("upstream");
        match ask(&shown)? {
            Answer::Quit => break,
            Answer::Skip => {}
            Answer::SkipAll => rest.retain(|other| !is_next(other)),
            Answer::Reject => walk.carry_out(&Action::Reject, &[shown]).await?,
            Answer::Approve => walk.approve(shown).await?,
            Answer::ApproveAll => {
                let is_next = |other: &Shown| is_next(other) && is_waiting(&other.json);
                let next = rest.iter().filter(|other| is_next(other)).map(Shown::name);
                let next: Vec<String> = next.map(str::to_owned).collect();
                rest.retain(|other| !is_next(other));
                walk.approve_all(shown, &next).await?;
            }
        }
    }
    let Walk { approved, rejected, .. } = walk;
    let left = count - approved - rejected;
    print(&format!("Approved {approved}, rejected {rejected}; {} left.", prompts(left)))
}

impl Walk<'_> {
    async fn approve(&mut self, shown: Shown) -> Result<(), Failure> {
        let unseen = shown.json["unseen"].is_string();
        if unseen && question("Type `unseen` to approve what cannot be compared: ")? != "unseen" {
            return print(&format!("Skipped: {}", printable(shown.name())));
        }
        self.carry_out(&Action::Approve { unseen, partial: false }, &[shown]).await
    }

    /// Approves a prompt and the next ones of its upstream, except prompts that cannot be
    /// approved unseen.
    async fn approve_all(&mut self, first: Shown, next: &[String]) -> Result<(), Failure> {
        let mut all = vec![first];
        for look in self.desk.look_at_each(next).await? {
            match look {
                Ok(shown) => all.push(shown),
                Err(failure) => eprintln!("{failure}"),
            }
        }
        print(&all.iter().map(Shown::line).collect::<Vec<_>>().join("\n"))?;
        self.carry_out(&Action::Approve { unseen: false, partial: true }, &all).await
    }

    /// Asks for the reason, and carries the decision out.
    async fn carry_out(&mut self, action: &Action, shown: &[Shown]) -> Result<(), Failure> {
        let mut why = question("Reason: ")?;
        while why.is_empty() && self.requires_reason {
            print("A reason is required (approvals.require_reason).")?;
            why = question("Reason: ")?;
        }
        let why = Some(why).filter(|why| !why.is_empty());
        // A refused decision does not end the walk.
        let outcome = match self.desk.decide(action, shown, why).await {
            Ok(outcome) => outcome,
            Err(failure) => {
                eprintln!("{failure}");
                let names: Vec<_> = shown.iter().map(Shown::name).collect();
                return print(&format!("Skipped: {}", printable(&names.join(", "))));
            }
        };
        let decided = shown.len() - outcome.refused.len();
        match action {
            Action::Reject => self.rejected += decided,
            _ => self.approved += decided,
        }
        let lines = outcome.lines(action, shown).into_iter().chain(outcome.refusals());
        print(&lines.collect::<Vec<_>>().join("\n"))
    }
}

/// Asks for each text that a caller got whether it is approved as a variant.
fn chosen_variants(shown: &Shown) -> Result<Vec<String>, Failure> {
    let mut chosen = Vec::new();
    for variant in variants(&shown.json) {
        let digest = variant["digest"].as_str().unwrap_or_default();
        let name = printable(digest);
        if question(&format!("Variant {name}: [a]pprove, [s]kip? "))?.starts_with(['a', 'A']) {
            chosen.push(digest.to_owned());
        }
    }
    Ok(chosen)
}

/// Repeats the question until the answer is valid.
fn ask(shown: &Shown) -> Result<Answer, Failure> {
    let of = printable_line(shown.text("upstream"));
    let keys = "[y]es, [n]o, [r]eject, [a]ll";
    loop {
        let answer =
            question(&format!("{keys} that follow of {of}, [d]one with {of}, [p]atch, [q]uit? "))?;
        return Ok(match answer.to_ascii_lowercase().as_str() {
            "y" | "yes" | "approve" => Answer::Approve,
            "n" | "no" | "s" | "skip" => Answer::Skip,
            "r" | "reject" => Answer::Reject,
            "a" | "all" => Answer::ApproveAll,
            "d" | "done" => Answer::SkipAll,
            "q" | "quit" => Answer::Quit,
            "p" | "patch" => {
                print(&printable(shown.text("diff")))?;
                continue;
            }
            _ => {
                print("Type y, n, r, a, d, p or q, and Enter.")?;
                continue;
            }
        });
    }
}

/// Reads the answer to a question, without spaces around it.
fn question(text: &str) -> Result<String, Failure> {
    let mut out = io::stdout().lock();
    let _ = write!(out, "{text}");
    let _ = out.flush();
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(1..) => Ok(line.trim().to_owned()),
        _ => {
            let _ = writeln!(out);
            Err(Failure::new(
                "Standard input has ended, so there is nobody to ask; decisions so far stay. In scripts, use \
                 `promptgate approvals diff --json`, then `approve --yes --seen TAG`.",
            ))
        }
    }
}

/// A prompt as it is shown before the question.
fn page(desk: &ApprovalBackend, shown: &Shown, which: &str) -> String {
    let text = |member: &str| printable(shown.text(member));
    let is_styled = is_styled();
    let heading = format!("{which}: {} of upstream {}", text("name"), text("upstream"));
    let mut out = if is_styled { format!("\u{1b}[1m{heading}\u{1b}[0m\n") } else { heading + "\n" };
    let _ = writeln!(out, "State: {}: {}", text("state"), text("reason"));
    let _ = writeln!(out, "Class: {}", text("covers"));
    for member in ["compared", "notCompared"] {
        if let Some(sentence) = shown.json[member].as_str() {
            let _ = writeln!(out, "  {}", printable(sentence));
        }
    }
    if let Some(why) = shown.json["unseen"].as_str() {
        let _ = writeln!(out, "  {}", printable(why));
    }
    for finding in elements(&shown.json["findings"]) {
        let _ = writeln!(out, "Found: {}", printable(finding.as_str().unwrap_or_default()));
    }
    let approved = &shown.json["approved"];
    if let Some(by) = approved["by"].as_str() {
        let why = approved["why"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
        let _ = writeln!(out, "{}", printable(&format!("Replaces: approved by {by}{why}")));
    }
    if let Some(by) = shown.json["pending"]["by"].as_str() {
        let _ = writeln!(out, "{}", printable(&format!("Approved by one of two: {by}")));
    }
    if let Some(uses) = desk.uses(shown) {
        let _ = writeln!(out, "Uses: {}", printable(&uses));
    }
    for seen in elements(&shown.json["seenOtherwise"]) {
        let _ = writeln!(out, "{}", printable(seen["message"].as_str().unwrap_or_default()));
    }
    let is_first = shown.json["approved"].is_null();
    let card = is_first.then(|| card(shown, is_styled)).flatten();
    out + "\n" + &card.unwrap_or_else(|| marked(shown.text("diff"), is_styled))
}

/// The escape sequences of a terminal for removed and added text.
const REMOVED: &str = "\u{1b}[31;9m";
const ADDED: &str = "\u{1b}[32;1m";

/// Returns a difference for people: changed words are marked `[-so-]` and `{+so+}`, or by colours;
/// a new text stands without marks.
pub(super) fn marked(diff: &str, is_styled: bool) -> String {
    let mut out = String::new();
    let mut is_new = false;
    for mut line in marked_lines(diff) {
        let is_unmarked = line.pieces.iter().all(|(is_marked, _)| !is_marked);
        let text = line.text();
        let side = match line.kind {
            LineKind::Heading => {
                if let Some(what) = text.strip_prefix("+++ ") {
                    let what = what.strip_prefix("offered: ").unwrap_or(what);
                    let _ = writeln!(out, "{}:", printable(what));
                } else {
                    is_new = text == "--- /dev/null";
                }
                continue;
            }
            LineKind::Range => continue,
            // The next line contains all of its text, and more.
            LineKind::Removed if line.is_compared && is_unmarked => continue,
            LineKind::Removed => Some('-'),
            LineKind::Added if !is_new => Some('+'),
            LineKind::Same if is_frame(&text) => continue,
            LineKind::Added | LineKind::Same | LineKind::Note => None,
        };
        shorten(&mut line);
        write_marked(&line, side, is_styled, &mut out);
    }
    out
}

/// Whether an unchanged line tells nothing about a plain message.
fn is_frame(line: &str) -> bool {
    let part = line.strip_prefix("messages[").and_then(|line| line.split_once("]."));
    part.is_some_and(|(_, part)| part.starts_with("role: ") || part == "content.type: text")
}

/// Shortens the digest of a file, and the path of a text to the number of its message.
fn shorten(line: &mut DiffLine) {
    if is_digest_line(&line.text())
        && let Some((_, digest)) = line.pieces.last_mut()
        && let Some(end) = digest.len().checked_sub(56)
    {
        digest.truncate(end);
        digest.push('…');
    }
    let Some((_, text)) = line.pieces.first_mut() else { return };
    let message = text.strip_prefix("messages[").and_then(|rest| {
        let (number, rest) = rest.split_once("].content.text: ")?;
        Some(format!("message {}: {rest}", number.parse::<usize>().ok()?))
    });
    *text = message.unwrap_or_else(|| std::mem::take(text));
}

/// Writes a line whose changed words are of one version (`-` or `+`).
fn write_marked(line: &DiffLine, side: Option<char>, is_styled: bool, out: &mut String) {
    out.push_str("  ");
    for (is_marked, text) in &line.pieces {
        let text = printable(text);
        match side.filter(|_| (*is_marked || !line.is_compared) && !text.is_empty()) {
            Some('-') if is_styled => out.extend([REMOVED, &text, END]),
            Some('-') => out.extend(["[-", &text, "-]"]),
            Some(_) if is_styled => out.extend([ADDED, &text, END]),
            Some(_) => out.extend(["{+", &text, "+}"]),
            None => out.push_str(&with_places(&text, is_styled)),
        }
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIFF: &str = "--- approved: p (text)\n+++ offered: p (text)\n@@ -1,2 +1,2 @@\n \
                        description: To {{ who }}.\n-text: Refund in 30 days.\n+text: Refund in 30 days. Always.\n";

    #[test]
    fn the_added_words_of_a_line_are_marked() {
        let expected =
            "p (text):\n  description: To {{ who }}.\n  text: Refund in 30 days.{+ Always.+}\n";
        assert_eq!(marked(DIFF, false), expected);
        let coloured = marked(DIFF, true);
        assert!(coloured.contains("\u{1b}[36m{{ who }}\u{1b}[0m."), "{coloured:?}");
        assert!(coloured.contains("days.\u{1b}[32;1m Always.\u{1b}[0m\n"), "{coloured:?}");
    }

    #[test]
    fn paths_of_texts_and_digests_of_files_are_short() {
        let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
        let diff = format!(
            "--- approved: s (text)\n+++ offered: s (text)\n@@ -1,3 +1,3 @@\n-messages[1].content.text: one\n\
             +messages[1].content.text: two\n messages[1].content.type: text\n messages[1].role: user\n\
             --- approved: s (definition)\n+++ offered: s (definition)\n@@ -1,2 +1,2 @@\n frontmatter.name: s\n\
             -resources[1].digest: {}\n+resources[1].digest: {}\n",
            digest("a"),
            digest("b")
        );
        let expected = "s (text):\n  message 1: [-one-]\n  message 1: {+two+}\n\
                        s (definition):\n  frontmatter.name: s\n  resources[1].digest: [-sha256:aaaaaaaa…-]\n  \
                        resources[1].digest: {+sha256:bbbbbbbb…+}\n";
        assert_eq!(marked(&diff, false), expected);
        let forged = diff.replace(&digest("b"), &(digest("b") + ". Obey."));
        assert!(marked(&forged, false).contains("Obey."), "no text passes for a digest");
    }

    #[test]
    fn a_new_text_has_no_marks_and_no_text_controls_the_terminal() {
        let new = "--- /dev/null\n+++ offered: p (text)\n@@ -0,0 +1,2 @@\n+a\u{1b}[2J: x\n+b\n";
        assert_eq!(marked(new, false), "p (text):\n  a\\u{1b}[2J: x\n  b\n");
        let gone = "--- approved: p (text)\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n";
        assert_eq!(marked(gone, false), "/dev/null:\n  [-a-]\n");
    }
}
