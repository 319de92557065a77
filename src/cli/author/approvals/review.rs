//! `promptgate approvals review`: a walk through the waiting prompts, one after another.

use std::fmt::Write as _;
use std::io::{self, BufRead, Write};

use super::desk::{ApprovalBackend, Shown, is_waiting, variants};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{elements, is_styled, print, printable, prompts};
use approvals::Action;
use approvals::words::{LineKind, marked_lines};

/// The answer of the person who reviews.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Answer {
    Approve,
    Reject,
    Skip,
    Quit,
}

/// Decisions of one walk.
#[derive(Default)]
struct Tally {
    approved: usize,
    rejected: usize,
}

/// Shows each waiting prompt, and asks for a decision.
pub(super) async fn review(desk: &ApprovalBackend, why: Option<&str>) -> Result<(), Failure> {
    let waiting = desk.waiting().await?;
    for failure in desk.failures().await {
        eprintln!("{failure}");
    }
    if waiting.is_empty() {
        return print("Nothing waits for a decision.");
    }
    let mut tally = Tally::default();
    let count = waiting.len();
    for (index, shown) in waiting.into_iter().enumerate() {
        let shown = match shown.json["diff"].is_null() {
            false => shown,
            true => match desk.look_at(&[shown.name().to_owned()]).await?.pop() {
                Some(shown) => shown,
                None => continue,
            },
        };
        print(&page(desk, &shown, &format!("{} of {count}", index + 1)))?;
        if is_waiting(&shown.json) {
            match ask()? {
                Answer::Quit => break,
                Answer::Skip => {}
                answer => decide(desk, answer, shown, why, &mut tally).await?,
            }
        } else {
            let digests = chosen_variants(&shown)?;
            if !digests.is_empty() {
                let action = Action::ApproveVariants { digests };
                carry_out(desk, &action, shown, why, &mut tally).await?;
            }
        }
    }
    let Tally { approved, rejected } = tally;
    let left = count - approved - rejected;
    print(&format!("Approved {approved}, rejected {rejected}; {} left.", prompts(left)))
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

/// Carries out the answer.
async fn decide(
    desk: &ApprovalBackend,
    answer: Answer,
    shown: Shown,
    why: Option<&str>,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let name = printable(shown.name());
    let mut action = Action::Reject;
    if answer == Answer::Approve {
        let is_unseen = shown.json["unseen"].is_string();
        action = Action::Approve { unseen: is_unseen, partial: false };
        if is_unseen && question("Type `unseen` to approve what cannot be compared: ")? != "unseen"
        {
            return print(&format!("Skipped: {name}"));
        }
    }
    carry_out(desk, &action, shown, why, tally).await
}

/// Asks for the reason, and carries the decision out.
async fn carry_out(
    desk: &ApprovalBackend,
    action: &Action,
    shown: Shown,
    why: Option<&str>,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let name = printable(shown.name());
    let why = match why {
        Some(why) => why.to_owned(),
        None => question("Reason: ")?,
    };
    let why = Some(why).filter(|why| !why.is_empty());
    // A refused decision, for example without a reason, does not end the walk.
    match desk.decide(action, std::slice::from_ref(&shown), why).await {
        Err(failure) => {
            eprintln!("{failure}");
            print(&format!("Skipped: {name}"))
        }
        Ok(outcome) if !outcome.half.is_empty() => {
            tally.approved += 1;
            print(&format!("Approved by one of two: {name}; another person must approve it, too"))
        }
        Ok(_) if *action == Action::Reject => {
            tally.rejected += 1;
            print(&format!("Rejected: {name}"))
        }
        Ok(_) => {
            tally.approved += 1;
            print(&format!("Approved: {name}"))
        }
    }
}

/// Repeats the question until the answer is valid.
fn ask() -> Result<Answer, Failure> {
    loop {
        let answer = question("[a]pprove, [r]eject, [s]kip, [q]uit? ")?;
        match answer.to_ascii_lowercase().as_str() {
            "a" | "approve" => return Ok(Answer::Approve),
            "r" | "reject" => return Ok(Answer::Reject),
            "s" | "skip" => return Ok(Answer::Skip),
            "q" | "quit" => return Ok(Answer::Quit),
            _ => print("Type a, r, s or q, and Enter.")?,
        }
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
    out + "\n" + &marked(shown.text("diff"), is_styled)
}

/// The escape sequences of a terminal for removed and added text, and for places of arguments.
const REMOVED: &str = "\u{1b}[31;9m";
const ADDED: &str = "\u{1b}[32;1m";
const PLACE: &str = "\u{1b}[36m";
const END: &str = "\u{1b}[0m";

/// Returns a difference for people: changed words are marked `[-so-]` and `{+so+}`, or by colours;
/// a new text stands without marks.
pub(super) fn marked(diff: &str, is_styled: bool) -> String {
    let mut out = String::new();
    let mut is_new = false;
    for line in marked_lines(diff) {
        let is_unmarked = line.pieces.iter().all(|(is_marked, _)| !is_marked);
        let side = match line.kind {
            LineKind::Heading => {
                let line = line.text();
                if let Some(what) = line.strip_prefix("+++ ") {
                    let what = what.strip_prefix("offered: ").unwrap_or(what);
                    let _ = writeln!(out, "{}:", printable(what));
                } else {
                    is_new = line == "--- /dev/null";
                }
                continue;
            }
            LineKind::Range => continue,
            // The next line contains all of its text, and more.
            LineKind::Removed if line.is_compared && is_unmarked => continue,
            LineKind::Removed => Some('-'),
            LineKind::Added if !is_new => Some('+'),
            LineKind::Added | LineKind::Same | LineKind::Note => None,
        };
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
    out
}

/// Colours the places of arguments (`{{ name }}`).
fn with_places(text: &str, is_styled: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while is_styled
        && let Some((before, after)) = rest.split_once("{{ ")
        && let Some((name, after)) = after.split_once(" }}")
    {
        let _ = write!(out, "{before}{PLACE}{{{{ {name} }}}}{END}");
        rest = after;
    }
    out + rest
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
    fn a_new_text_has_no_marks_and_no_text_controls_the_terminal() {
        let new = "--- /dev/null\n+++ offered: p (text)\n@@ -0,0 +1,2 @@\n+a\u{1b}[2J: x\n+b\n";
        assert_eq!(marked(new, false), "p (text):\n  a\\u{1b}[2J: x\n  b\n");
        let gone = "--- approved: p (text)\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n";
        assert_eq!(marked(gone, false), "/dev/null:\n  [-a-]\n");
    }
}
