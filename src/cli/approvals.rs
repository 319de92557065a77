//! `promptgate approvals`: shows and changes which versions of prompts are approved.
//!
//! The commands run a gateway of their own, without a listener, so they see what a running one
//! would see.

use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::args::{ApprovalsCommand, ApprovalsDecision, ApprovalsView, SeenTags};
use super::failure::Failure;
use super::load::{demand, load};
use super::output::{Column, print, printable, prompts, table};
use super::runtime::runtime;
use crate::app::App;
use domain::approval::Mode;
use domain::name::UpstreamId;
use domain::similar::suggestion;
use gateway::router::approval::ApprovalRow;
use gateway::router::approvals::json::row_json;
use gateway::router::approvals::{
    Action, ApprovalError, Decider, DecisionOutcome, Examined, notes,
};
use gateway::router::{Router, UpstreamStatus};

/// Runs one of the commands.
///
/// # Errors
/// With exit code 64 for mistakes in the configuration, the lock file or the names of prompts; with
/// 1 if upstreams offer versions that are not approved (`check`), or nothing could be decided.
pub(super) fn run(command: &ApprovalsCommand) -> Result<(), Failure> {
    let view = match command {
        ApprovalsCommand::Rewrite(view) => return rewrite(view),
        ApprovalsCommand::Status(view)
        | ApprovalsCommand::Check(view)
        | ApprovalsCommand::Diff { view, .. } => view,
        ApprovalsCommand::Approve { decision, .. }
        | ApprovalsCommand::Reject { decision, .. }
        | ApprovalsCommand::Rollback { decision, .. } => &decision.view,
    };
    let mut config = load(&view.file.config)?;
    let are_off = config.observe_approvals().map_err(|error| Failure::usage(error.to_string()))?;
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let app = App::new(config).map_err(|error| Failure::new(error.to_string()))?;
        let upstreams = app.summary().await;
        let gateway = ApprovalsGateway { router: app.router(), upstreams, are_off };
        let done = gateway.run(command).await;
        app.stop().await;
        done
    });
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

/// The gateway of a command, with the state of its upstreams.
struct ApprovalsGateway {
    router: Arc<Router>,
    upstreams: Vec<UpstreamStatus>,
    /// Whether approvals are off for all upstreams, and compared for this command only.
    are_off: bool,
}

impl ApprovalsGateway {
    async fn run(&self, command: &ApprovalsCommand) -> Result<(), Failure> {
        match command {
            ApprovalsCommand::Rewrite(view) => rewrite(view),
            ApprovalsCommand::Status(view) => self.status(view).await,
            ApprovalsCommand::Diff { prompt, view } => self.diff(prompt.as_deref(), view).await,
            ApprovalsCommand::Check(view) => self.check(view).await,
            ApprovalsCommand::Approve { prompts, upstream, yes, unseen, seen, decision } => {
                let rows = match upstream {
                    Some(upstream) => self.of_upstream(upstream)?,
                    None => self.named(prompts)?,
                };
                let examined = self.examine(rows).await?;
                check_seen(&examined, seen)?;
                let action = Action::Approve { unseen: *unseen };
                self.approve(&action, examined, upstream.as_deref(), *yes, decision).await
            }
            ApprovalsCommand::Reject { prompts, seen, decision } => {
                let examined = self.examine(self.named(prompts)?).await?;
                check_seen(&examined, seen)?;
                self.show(&examined).await;
                self.decide(&Action::Reject, examined, decision).await
            }
            ApprovalsCommand::Rollback { prompt, to, decision } => {
                let examined = self.examine(self.named(std::slice::from_ref(prompt))?).await?;
                self.decide(&Action::RollBack { to: to.clone() }, examined, decision).await
            }
        }
    }

    async fn status(&self, view: &ApprovalsView) -> Result<(), Failure> {
        let examined = self.examine(self.router.approval_rows()).await?;
        let rows: Vec<Value> = examined.iter().map(|examined| self.row(examined)).collect();
        let mut text = if rows.is_empty() {
            "No upstream offers a prompt, and the lock file has none.".to_owned()
        } else {
            table(&COLUMNS, &rows)
        };
        let mut notes = notes(&Action::Approve { unseen: false }, &examined);
        notes.extend(self.router.unused_probes(&examined));
        for line in notes.iter().map(|note| printable(note)).chain(self.failures()) {
            let _ = write!(text, "\n{line}");
        }
        let report = json!({
            "lock": self.router.lock_digest(),
            "prompts": rows,
            "notes": notes,
            "failures": self.failures().collect::<Vec<_>>(),
        });
        view.output.print(&report, &text)
    }

    async fn diff(&self, prompt: Option<&str>, view: &ApprovalsView) -> Result<(), Failure> {
        let rows = match prompt {
            Some(name) => self.named(&[name.to_owned()])?,
            None => self.router.approval_rows(),
        };
        let examined = self.examine(rows).await?;
        let (json, text) = self.differences(examined.iter(), prompt.is_some()).await;
        let failures: Vec<String> = self.failures().collect();
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

    async fn check(&self, view: &ApprovalsView) -> Result<(), Failure> {
        let examined = self.examine(self.router.approval_rows()).await?;
        let (json, text) = self.differences(examined.iter(), false).await;
        let unapproved = examined.iter().filter(|examined| examined.is_unapproved()).count();
        let unverified = examined.iter().filter_map(|examined| {
            let (arguments, why) = examined.unverified()?;
            let name = &examined.row.public_name;
            Some(printable(&format!("{name}: its text with {arguments} cannot be had: {why}")))
        });
        let failures: Vec<String> = self.failures().chain(unverified).collect();
        let report = json!({"unapproved": json, "failures": failures});
        if unapproved == 0 && failures.is_empty() {
            return view.output.print(&report, "Everything that is offered is approved.");
        }
        if view.output.json || !text.is_empty() {
            view.output.print(&report, text.trim_end())?;
        }
        let mut why = failures;
        if unapproved > 0 {
            let what = prompts(unapproved);
            why.push(format!(
                "{what} not approved as offered; look at the diff, then run `promptgate approvals approve`"
            ));
        }
        Err(Failure::new(why.join("\n")))
    }

    async fn approve(
        &self,
        action: &Action,
        examined: Vec<Examined>,
        upstream_id: Option<&str>,
        yes: bool,
        decision: &ApprovalsDecision,
    ) -> Result<(), Failure> {
        let (approved, new): (Vec<_>, Vec<_>) =
            examined.into_iter().partition(Examined::is_approved_so);
        let output = &decision.view.output;
        let own = self.upstreams.iter().find(|upstream| Some(upstream.id.as_str()) == upstream_id);
        if let Some(failure) = own.and_then(failure) {
            return Err(Failure::new(failure));
        }
        if new.is_empty() {
            let text = format!("Nothing to do: {} approved already.", prompts(approved.len()));
            return output
                .print(&json!({"approved": [], "lock": self.router.lock_digest()}), &text);
        }
        self.show(&new).await;
        if !yes {
            confirm(new.len())?;
        }
        self.decide(action, new, decision).await
    }

    /// Shows on standard error what is decided on.
    async fn show(&self, examined: &[Examined]) {
        let (_, text) = self.differences(examined.iter(), true).await;
        eprint!("{}", printable(&text));
    }

    /// Carries a decision out, and reports it.
    async fn decide(
        &self,
        action: &Action,
        examined: Vec<Examined>,
        decision: &ApprovalsDecision,
    ) -> Result<(), Failure> {
        let names: Vec<String> = examined.iter().map(|e| e.row.public_name.clone()).collect();
        let decider =
            Decider { by: user(), why: decision.why.clone(), via: "cli", at: SystemTime::now() };
        let before = Some(self.router.lock_digest().to_owned());
        let notes = notes(action, &examined);
        let outcome = self.router.decide(action, examined, before, &decider).await;
        let DecisionOutcome { lock, versions } = outcome.map_err(|error| match error {
            ApprovalError::ReadOnly { error, patch } => {
                // The patch alone, so that it can be piped.
                let _ = print(patch.trim_end_matches('\n'));
                Failure::new(format!("{error}; the patch on standard output makes the change"))
            }
            error => Failure::new(error.to_string()),
        })?;
        let verb = match action {
            Action::Approve { .. } | Action::ApproveVariants { .. } => "Approved",
            Action::Reject => "Rejected",
            Action::RollBack { .. } => "Rolled back",
        };
        let mut text = format!("{verb}: {}", printable(&names.join(", ")));
        if let (Action::RollBack { .. }, [version]) = (action, versions.as_slice()) {
            let _ = write!(text, " to the version with the definition {}", version.definition);
        }
        for note in &notes {
            let _ = write!(text, "\n{}", printable(note));
        }
        let report = json!({action.key(): names, "lock": lock.digest, "notes": notes});
        decision.view.output.print(&report, &text)
    }

    async fn examine(&self, rows: Vec<ApprovalRow>) -> Result<Vec<Examined>, Failure> {
        let examined = self.router.examine_all(rows).await;
        examined.map_err(|error| Failure::new(error.to_string()))
    }

    /// The differences of prompts, as JSON and as text. `all` also names those without a
    /// difference.
    async fn differences<'a>(
        &self,
        examined: impl Iterator<Item = &'a Examined>,
        all: bool,
    ) -> (Value, String) {
        let mut rows = Vec::new();
        let mut text = String::new();
        for examined in examined.filter(|examined| all || examined.is_unapproved()) {
            let (router, one) = (self.router.clone(), examined.clone());
            let diff = tokio::task::spawn_blocking(move || router.diff(&one)).await;
            let diff = diff.unwrap_or_default();
            let row = &examined.row;
            let state = row.decision.state.as_str();
            let (name, why) = (printable(&row.public_name), row.decision.reason.as_str());
            let _ = writeln!(text, "{name}: {state}: {why}\n{}", printable(&diff));
            for seen in &examined.seen_otherwise {
                let _ = writeln!(text, "{}", printable(&seen.to_string()));
            }
            let mut row = self.row(examined);
            row["tag"] = examined.tag().trim_matches('"').into();
            row["diff"] = diff.into();
            rows.push(row);
        }
        (rows.into(), text)
    }

    /// A prompt as JSON, with the mode of the configuration.
    fn row(&self, examined: &Examined) -> Value {
        let mut row = row_json(examined);
        if self.are_off {
            row["mode"] = Mode::Off.as_str().into();
        }
        row
    }

    fn named(&self, names: &[String]) -> Result<Vec<ApprovalRow>, Failure> {
        let rows = self.router.approval_rows();
        let find = |name: &String| {
            let found = rows.iter().find(|row| row.public_name == *name).cloned();
            found.ok_or_else(|| {
                let known: Vec<&str> = rows.iter().map(|row| row.public_name.as_str()).collect();
                let hint = suggestion(name, known.into_iter());
                let failures: String =
                    self.failures().map(|failure| format!("\n{failure}")).collect();
                Failure::usage(printable(&format!(
                    "No prompt {name} is offered or in the lock file{hint}{failures}"
                )))
            })
        };
        names.iter().map(find).collect()
    }

    /// The prompts that an upstream offers.
    fn of_upstream(&self, id: &str) -> Result<Vec<ApprovalRow>, Failure> {
        if !self.upstreams.iter().any(|upstream| upstream.id == id) {
            let ids: Vec<_> = self.upstreams.iter().map(|upstream| upstream.id.as_str()).collect();
            let enabled = ids.join(", ");
            let message = format!("There is no enabled upstream {id}; enabled: {enabled}");
            return Err(Failure::usage(printable(&message)));
        }
        let is_of = |row: &ApprovalRow| UpstreamId::parse(id).as_ref() == Some(&row.upstream);
        let rows = self.router.approval_rows().into_iter();
        Ok(rows.filter(|row| is_of(row) && row.offered.is_some()).collect())
    }

    /// The upstreams whose lists could not be fetched.
    fn failures(&self) -> impl Iterator<Item = String> {
        self.upstreams.iter().filter_map(failure)
    }
}

/// Why the list of an upstream could not be fetched.
fn failure(upstream: &UpstreamStatus) -> Option<String> {
    let why = match &upstream.failure {
        Some(failure) => failure.diagnosis(),
        None if upstream.walk.is_none() => "it has not answered in time".to_owned(),
        None => return None,
    };
    Some(printable(&format!("upstream {}: {why}", upstream.id)))
}

/// # Errors
/// An upstream offers something else than what `diff` showed with these tags.
fn check_seen(examined: &[Examined], seen: &SeenTags) -> Result<(), Failure> {
    let is_seen = |examined: &Examined| {
        let tag = examined.tag();
        seen.tags.iter().any(|seen| seen.trim_matches('"') == tag.trim_matches('"'))
    };
    match examined.iter().find(|examined| !seen.tags.is_empty() && !is_seen(examined)) {
        None => Ok(()),
        Some(other) => Err(Failure::new(printable(&format!(
            "{}: no --seen names what is offered now; look at `promptgate approvals diff` again. Nothing was decided",
            other.row.public_name
        )))),
    }
}

const COLUMNS: [Column; 6] = [
    Column::new("PROMPT", "name"),
    Column::new("STATE", "state"),
    Column::new("COVERS", "covers"),
    Column::new("MODE", "mode"),
    Column::new("APPROVED BY", "approvedBy"),
    Column::new("REASON", "reason"),
];

/// Asks on the terminal whether to approve.
///
/// # Errors
/// There is no terminal, or the answer is no.
fn confirm(count: usize) -> Result<(), Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(
            "There is no terminal to ask on. Look at the diff above, then run the command with --yes.",
        ));
    }
    eprint!("Approve {}? [y/N] ", prompts(count));
    let _ = io::stderr().flush();
    let mut answer = String::new();
    let _ = io::stdin().lock().read_line(&mut answer);
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new("Nothing was approved.")),
    }
}

/// Returns the name of the person who runs the command, as the system has it.
fn user() -> String {
    let name = ["USER", "LOGNAME", "USERNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
    name.unwrap_or_else(user_id)
}

#[cfg(unix)]
fn user_id() -> String {
    format!("uid {}", rustix::process::getuid().as_raw())
}

#[cfg(not(unix))]
fn user_id() -> String {
    "unknown".to_owned()
}
