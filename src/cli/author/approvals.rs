//! `promptgate approvals`: shows and changes which versions of prompts are approved.

mod card;
mod desk;
mod review;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal, Write};

use serde_json::{Value, json};

use crate::cli::shared::args::{
    ApprovalsCommand, ApprovalsDecision, ApprovalsQuery, ApprovalsView, SeenTags,
};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::load::demand;
use crate::cli::shared::output::{Column, elements, is_styled, printable, prompts, table_or};
use crate::cli::shared::runtime::runtime;
use approvals::{Action, Examined, examine_all, notes};
use desk::{ApprovalBackend, Need, OwnGateway, Shown};
use review::marked;

/// Runs one of the commands.
///
/// # Errors
/// With exit code 64 for mistakes in the configuration, the lock file or the names of prompts; with
/// 1 if upstreams offer versions that are not approved (`check`), or nothing could be decided.
pub(crate) fn run(command: &ApprovalsCommand) -> Result<(), Failure> {
    match command {
        ApprovalsCommand::Rewrite(view) => rewrite(view),
        ApprovalsCommand::Check(view) => on_runtime(run_check(view)),
        ApprovalsCommand::Status(query) => {
            at_desk(query, Need::States, async |desk| status(desk, &query.view).await)
        }
        ApprovalsCommand::Review(query) => {
            at_desk(query, Need::Decisions, async |desk| review::review(desk).await)
        }
        ApprovalsCommand::Diff { prompt, query } => at_desk(query, Need::Texts, async |desk| {
            diff(desk, prompt.as_deref(), &query.view).await
        }),
        ApprovalsCommand::Approve {
            prompts,
            all_of,
            yes,
            diff,
            unseen,
            variant,
            seen,
            decision,
        } => {
            if !variant.is_empty() && prompts.len() != 1 {
                return Err(Failure::usage("--variant is of one prompt."));
            }
            decide_at_desk(decision, async |desk| {
                let unseen = *unseen;
                if let Some(upstream) = all_of {
                    let (shown, failed) = look_at_all(desk, upstream).await?;
                    check_seen(&shown, seen)?;
                    let action = Action::Approve { unseen, partial: true };
                    approve(desk, &action, shown, *diff, *yes, decision).await?;
                    return failed;
                }
                let shown = desk.look_at(prompts).await?;
                check_seen(&shown, seen)?;
                let action = match variant.as_slice() {
                    [] => Action::Approve { unseen, partial: false },
                    digests => Action::ApproveVariants { digests: digests.to_vec() },
                };
                approve(desk, &action, shown, true, *yes, decision).await
            })
        }
        ApprovalsCommand::Reject { prompts, seen, decision, .. } => {
            decide_at_desk(decision, async |desk| {
                let shown = desk.look_at(prompts).await?;
                check_seen(&shown, seen)?;
                show(&shown);
                decide(desk, &Action::Reject, &shown, decision).await
            })
        }
        ApprovalsCommand::Withdraw { prompts, yes, decision } => {
            decide_at_desk(decision, async |desk| {
                let shown = desk.look_at(prompts).await?;
                withdraw(desk, &shown, *yes, decision).await
            })
        }
        ApprovalsCommand::Rollback { prompt, to, decision } => {
            decide_at_desk(decision, async |desk| {
                let shown = desk.look_at(std::slice::from_ref(prompt)).await?;
                decide(desk, &Action::RollBack { to: to.clone() }, &shown, decision).await
            })
        }
    }
}

/// Runs a command that decides.
fn decide_at_desk(
    decision: &ApprovalsDecision,
    work: impl AsyncFnOnce(&ApprovalBackend) -> Result<(), Failure>,
) -> Result<(), Failure> {
    at_desk(&decision.query, Need::Decisions, work)
}

/// Runs a command at its desk.
fn at_desk(
    query: &ApprovalsQuery,
    need: Need,
    work: impl AsyncFnOnce(&ApprovalBackend) -> Result<(), Failure>,
) -> Result<(), Failure> {
    on_runtime(async {
        let desk = ApprovalBackend::open(query, need).await?;
        let done = work(&desk).await;
        desk.close().await;
        done
    })
}

fn on_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = runtime()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// Writes the lock file anew.
fn rewrite(view: &ApprovalsView) -> Result<(), Failure> {
    demand(&view.file.config)?;
    let store = config::lock_store(&view.file.config)?;
    let lock = store.rewrite().map_err(|error| Failure::usage(error.to_string()))?;
    let (path, decided) = (store.path().display(), prompts(lock.len()));
    let text = format!("{path} is written anew, with the decisions on {decided}.");
    view.output.print(&json!({"lock": lock.digest, "prompts": lock.len()}), &text)
}

async fn run_check(view: &ApprovalsView) -> Result<(), Failure> {
    let own = OwnGateway::start(&view.file.config).await?;
    let done = check(&own, view).await;
    own.stop().await;
    done
}

async fn status(desk: &ApprovalBackend, view: &ApprovalsView) -> Result<(), Failure> {
    let (rows, notes) = match desk {
        ApprovalBackend::Running(_) => (desk.rows().await?, Vec::new()),
        ApprovalBackend::Own(own) => {
            let examined = examine_all(&own.approvals, own.approvals.rows()).await;
            let examined = examined.into_iter().collect::<Result<Vec<_>, _>>();
            let examined = examined.map_err(|error| Failure::new(error.to_string()))?;
            let approve = Action::Approve { unseen: false, partial: false };
            let mut notes = notes(&approve, &examined);
            notes.extend(own.approvals.unused_probes(&examined));
            (examined.iter().map(|examined| own.row(examined)).collect(), notes)
        }
    };
    let failures = desk.failures().await;
    let mut text = table_or(NONE, &columns(&rows), &rows);
    for line in notes.iter().map(|note| printable(note)).chain(failures.iter().cloned()) {
        let _ = write!(text, "\n{line}");
    }
    let waiting = rows.iter().filter(|row| desk::is_waiting(row)).count();
    if waiting > 0 {
        let waits = if waiting == 1 { "waits" } else { "wait" };
        let waiting = prompts(waiting);
        let _ = write!(text, "\n{waiting} {waits} for a decision: `promptgate approvals review`");
    }
    let found: usize = rows.iter().map(|row| desk::variants(row).count()).sum();
    if found > 0 {
        let texts = if found == 1 { "1 text" } else { &format!("{found} texts") };
        let _ = write!(
            text,
            "\n{texts} that callers got, not approved as variants: `promptgate approvals review`"
        );
    }
    let lock = desk.lock().await?;
    let report = json!({"lock": lock, "prompts": rows, "notes": notes, "failures": failures});
    view.output.print(&report, &text)
}

async fn diff(
    desk: &ApprovalBackend,
    prompt: Option<&str>,
    view: &ApprovalsView,
) -> Result<(), Failure> {
    let shown = match prompt {
        Some(name) => desk.look_at(&[name.to_owned()]).await?,
        None => unapproved(desk).await?,
    };
    let (json, text) = differences(&shown);
    let failures = desk.failures().await;
    if prompt.is_none() && !failures.is_empty() {
        view.output.print(&json, text.trim_end())?;
        return Err(Failure::new(failures.join("\n")));
    }
    let text = match text.trim_end() {
        "" => "Everything that is offered is approved.",
        text => text,
    };
    view.output.print(&json, text)
}

/// The prompts whose offered versions are not approved.
async fn unapproved(desk: &ApprovalBackend) -> Result<Vec<Shown>, Failure> {
    let rows = desk.rows().await?;
    // Only a running gateway compares texts by itself.
    let is_candidate = |row: &&Value| {
        let is_settled = matches!(row["state"].as_str(), Some("approved" | "unchecked"));
        desk::is_offered(row) && (matches!(desk, ApprovalBackend::Own(_)) || !is_settled)
    };
    let names = rows.iter().filter(is_candidate).filter_map(|row| row["name"].as_str());
    let names: Vec<String> = names.map(str::to_owned).collect();
    let mut shown = desk.look_at(&names).await?;
    shown.retain(Shown::is_unapproved);
    Ok(shown)
}

async fn check(own: &OwnGateway, view: &ApprovalsView) -> Result<(), Failure> {
    let mut shown = Vec::new();
    let mut failures: Vec<String> = own.failures().collect();
    for examined in examine_all(&own.approvals, own.approvals.rows()).await {
        match examined {
            Err(error) => failures.push(printable(&error.to_string())),
            Ok(examined) => {
                failures.extend(unverified(&examined));
                if examined.is_unapproved() {
                    shown.push(own.shown(examined).await);
                }
            }
        }
    }
    let (json, text) = differences(&shown);
    let report = json!({"unapproved": json, "failures": failures});
    if shown.is_empty() && failures.is_empty() {
        return view.output.print(&report, "Everything that is offered is approved.");
    }
    if view.output.json || !text.is_empty() {
        view.output.print(&report, text.trim_end())?;
    }
    let mut why = failures;
    if !shown.is_empty() {
        let what = prompts(shown.len());
        why.push(format!(
            "{what} not approved as offered; look at the diff, then run `promptgate approvals review`"
        ));
    }
    Err(Failure::new(why.join("\n")))
}

/// Names the approved text of a prompt that the upstream does not deliver, and the reason.
fn unverified(examined: &Examined) -> Option<String> {
    let (arguments, why) = examined.unverified()?;
    let name = &examined.row.public_name;
    Some(printable(&format!("{name}: its text with {arguments} cannot be had: {why}")))
}

/// Examines the prompts that an upstream offers. Names the prompts that cannot be examined, which
/// is the failure of the command after its work on the others.
async fn look_at_all(
    desk: &ApprovalBackend,
    upstream: &str,
) -> Result<(Vec<Shown>, Result<(), Failure>), Failure> {
    let names = desk.of_upstream(upstream).await?;
    let mut shown = Vec::with_capacity(names.len());
    let mut failed = Vec::new();
    for look in desk.look_at_each(&names).await? {
        match look {
            Ok(look) => shown.push(look),
            Err(failure) => failed.push(failure.to_string()),
        }
    }
    let failure = || Err(Failure::new(format!("Not examined:\n{}", failed.join("\n"))));
    Ok((shown, if failed.is_empty() { Ok(()) } else { failure() }))
}

async fn approve(
    desk: &ApprovalBackend,
    action: &Action,
    shown: Vec<Shown>,
    shows_diff: bool,
    yes: bool,
    decision: &ApprovalsDecision,
) -> Result<(), Failure> {
    let is_done =
        |shown: &Shown| matches!(action, Action::Approve { .. }) && shown.is_approved_so();
    let (approved, new): (Vec<_>, Vec<_>) = shown.into_iter().partition(is_done);
    if new.is_empty() {
        let text = format!("Nothing to do: {} approved already.", prompts(approved.len()));
        let report = json!({"approved": [], "lock": desk.lock().await?});
        return decision.query.view.output.print(&report, &text);
    }
    if matches!(action, Action::Approve { partial: true, .. }) {
        eprintln!("{}", summary(&new, approved.len()));
    }
    if shows_diff {
        show(&new);
    }
    if !yes {
        confirm(&format!("Approve {}", prompts(new.len())))?;
    }
    decide(desk, action, &new, decision).await
}

/// Counts the prompts that an approval would cover, by kind.
fn summary(new: &[Shown], approved: usize) -> String {
    let counted = |member: &str| {
        let mut counts = BTreeMap::new();
        new.iter().for_each(|shown| *counts.entry(shown.text(member)).or_insert(0) += 1);
        let counts = counts.into_iter().map(|(what, count)| format!("{count} {what}"));
        printable(&counts.collect::<Vec<_>>().join(", "))
    };
    let mut out = format!("{}: {}", prompts(new.len()), counted("state"));
    let _ = write!(out, "; {approved} approved already\nClasses: {}", counted("covers"));
    for shown in new {
        let _ = write!(out, "\n{}", shown.line());
    }
    let unseen = new.iter().filter(|shown| shown.json["unseen"].is_string()).map(Shown::name);
    let unseen = unseen.collect::<Vec<_>>().join(", ");
    if !unseen.is_empty() {
        let _ = write!(out, "\nUnseen, a text cannot be known: {}", printable(&unseen));
    }
    out + "\n"
}

async fn withdraw(
    desk: &ApprovalBackend,
    shown: &[Shown],
    yes: bool,
    decision: &ApprovalsDecision,
) -> Result<(), Failure> {
    for shown in shown {
        let uses = desk.uses(shown);
        let uses = uses.unwrap_or_else(|| "its uses are not known".to_owned());
        eprintln!("{}", printable(&format!("{}: uses: {uses}", shown.name())));
    }
    if !yes {
        confirm(&format!("Take {} from everybody", prompts(shown.len())))?;
    }
    decide(desk, &Action::Withdraw, shown, decision).await
}

/// Shows on standard error the prompts to decide on.
fn show(shown: &[Shown]) {
    let (_, text) = differences(shown);
    eprint!("{text}");
}

/// Carries a decision out, and reports it.
async fn decide(
    desk: &ApprovalBackend,
    action: &Action,
    shown: &[Shown],
    decision: &ApprovalsDecision,
) -> Result<(), Failure> {
    let outcome = desk.decide(action, shown, decision.why.clone()).await?;
    let report = json!({
        action.key(): outcome.decided(shown),
        "needsSecondPerson": outcome.half,
        "refused": outcome.refused,
        "lock": outcome.lock,
        "notes": outcome.notes,
    });
    decision.query.view.output.print(&report, &outcome.lines(action, shown).join("\n"))?;
    match outcome.refusals() {
        None => Ok(()),
        Some(left) => Err(Failure::new(left)),
    }
}

/// The differences of prompts, as JSON and as text that is safe to print.
fn differences(shown: &[Shown]) -> (Value, String) {
    let mut text = String::new();
    let row = |shown: &Shown| {
        let mut row = shown.json.clone();
        row["tag"] = shown.tag().into();
        row
    };
    for shown in shown {
        let _ = writeln!(text, "{}", shown.line());
        for seen in elements(&shown.json["seenOtherwise"]) {
            let _ = writeln!(text, "{}", printable(seen["message"].as_str().unwrap_or_default()));
        }
        let diff = shown.text("diff");
        let diff = if is_styled() { marked(diff, true) } else { printable(diff) };
        let _ = writeln!(text, "{diff}");
    }
    (shown.iter().map(row).collect(), text)
}

fn check_seen(shown: &[Shown], seen: &SeenTags) -> Result<(), Failure> {
    let is_seen =
        |shown: &Shown| seen.tags.iter().any(|seen| seen.trim_matches('"') == shown.tag());
    match shown.iter().find(|shown| !seen.tags.is_empty() && !is_seen(shown)) {
        None => Ok(()),
        Some(other) => Err(Failure::new(printable(&format!(
            "{}: no --seen names what is offered now; look at `promptgate approvals diff` again. Nothing was decided",
            other.name()
        )))),
    }
}

const COLUMNS: [Column; 7] = [
    Column::new("PROMPT", "name"),
    Column::new("SERVED AS", "aliases"),
    Column::new("STATE", "state"),
    Column::new("COVERS", "covers"),
    Column::new("MODE", "mode"),
    Column::new("APPROVED BY", "approvedBy"),
    Column::new("REASON", "reason"),
];

/// The columns; names that share a version only where a prompt has versions.
fn columns(rows: &[Value]) -> Vec<Column> {
    let has_aliases = rows.iter().any(|row| !elements(&row["aliases"]).is_empty());
    COLUMNS.into_iter().filter(|column| column.member != "aliases" || has_aliases).collect()
}

const NONE: &str = "No upstream offers a prompt, and the lock file has none.";

/// Asks on the terminal for a confirmation.
fn confirm(what: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(
            "There is no terminal to ask on. Read the changes above, then run the command with --yes.",
        ));
    }
    eprint!("{what}? [y/N] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    let _ = io::stdin().lock().read_line(&mut answer);
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new("Nothing was decided.")),
    }
}
