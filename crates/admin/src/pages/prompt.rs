//! One prompt: its definition with the origin of each part, the rights to it, and its uses.

use std::time::Duration;

use askama::Template;
use tokio::time::Instant;

use super::definition::Definition;
use super::rights::{Right, decider, known, right};
use super::traffic::{LAST_DAY, Traffic, of_report};
use super::trial::{Trial, TrialContent};
use super::{Page, PageError, PageResult};
use crate::console::ConsoleSection;
use crate::console::text::filters;
use crate::request::{PageRequest, Params};
use crate::sign_in::{Role, Visitor};
use crate::state::AdminState;
use audit::search::{self, Find, LogEntry};
use audit::usage::{Dimension, Filter, Query, Row, Sort};
use gateway::router::approval::ApprovalRow;
use gateway::router::blocking::beside_calls;
use gateway::router::catalog::Catalog;
use gateway::router::owner::Owner;

/// One prompt.
#[derive(Template)]
#[template(path = "prompt.html")]
pub(crate) struct PromptPage {
    name: String,
    upstream: String,
    raw_name: String,
    digest: String,
    state: &'static str,
    /// Why the prompt is in this state; empty without approvals.
    reason: String,
    definition: Definition,
    /// The paths of the endpoints that serve it.
    endpoints: Vec<String>,
    rights: Vec<Right>,
    has_rules: bool,
    uses: Traffic,
    /// Its callers in the last day.
    callers: Vec<Row>,
    /// Its latest records, as far as they are found at once.
    records: Vec<LogEntry>,
    trial: Option<Trial>,
    form: TrialForm,
}

/// The form in which a visitor tries the prompt.
struct TrialForm {
    /// Whether the visitor may.
    is_offered: bool,
    csrf: String,
    /// Callers and groups whose rights can be chosen.
    others: Vec<String>,
    /// The values that were sent.
    values: Params,
}

impl TrialForm {
    fn value(&self, argument: &str) -> &str {
        let mut values = self.values.with_prefix("arg.");
        values.find(|(name, _)| *name == argument).map(|(_, value)| value).unwrap_or_default()
    }
}

impl Page for PromptPage {
    const SECTION: ConsoleSection = ConsoleSection::Prompts;

    fn title(&self) -> String {
        self.name.clone()
    }
}

/// Callers that are named on the page.
const CALLERS: usize = 20;

/// Records that are shown on the page.
const RECORDS: usize = 10;

/// The time for finding them: the records of a prompt that is rarely used may be far back.
const SEARCH: Duration = Duration::from_millis(200);

/// Returns a prompt that is served.
///
/// # Errors
/// There is none with this public name.
pub(crate) async fn prompt(
    state: &AdminState,
    request: &PageRequest,
    visitor: &Visitor,
    name: &str,
) -> PageResult<PromptPage> {
    with_trial(state, request, visitor, name, None).await
}

/// Returns a prompt, with the outcome of a trial.
///
/// # Errors
/// As [`prompt`].
pub(crate) async fn with_trial(
    state: &AdminState,
    request: &PageRequest,
    visitor: &Visitor,
    name: &str,
    trial: Option<Trial>,
) -> PageResult<PromptPage> {
    let catalog = state.router.catalog();
    let owner = catalog.content.owner(name);
    let owner = owner.ok_or_else(|| unlisted(state, name))?;
    let filter = Filter { prompt: Some(name.to_owned()), ..Filter::default() };
    let query = Query {
        by: Dimension::Caller,
        from: request.now.checked_sub(LAST_DAY.length).unwrap_or(request.now),
        to: request.now,
        filter,
        limit: CALLERS.min(request.rows),
        sort: Sort::Uses,
    };
    let within = (query.from, query.to);
    let mut report = state.usage_report(&query, None, request.until).await;
    let callers = std::mem::take(&mut report.rows);
    let uses = of_report(report, within, LAST_DAY);
    let access = decider(state);
    let who = known(&state.config);
    let rights = who.iter().take(request.rows);
    let rights = rights.map(|who| right(access.as_ref(), who, owner.prompt())).collect();
    let others = if state.admin.try_as {
        who.into_iter().map(|who| who.label).collect()
    } else {
        Vec::new()
    };
    let definition = definition(&catalog, owner).with_origins(&state.config, owner);
    Ok(PromptPage {
        name: name.to_owned(),
        upstream: owner.upstream.to_string(),
        raw_name: owner.raw_name.to_string(),
        digest: owner.digest.to_string(),
        state: owner.approval.state.as_str(),
        reason: state.router.approval_row(name).map(|row| reason(&row)).unwrap_or_default(),
        definition,
        endpoints: endpoints(state, owner),
        rights,
        has_rules: access.is_some(),
        uses,
        callers,
        records: records(state, request, name).await,
        trial,
        form: TrialForm {
            is_offered: visitor.role >= Role::Tester,
            csrf: visitor.csrf_token(),
            others,
            values: request.params.clone(),
        },
    })
}

/// The latest records of a prompt; none if the log cannot be read, for which the page of the log
/// has the reason.
async fn records(state: &AdminState, request: &PageRequest, name: &str) -> Vec<LogEntry> {
    let Some(path) = state.audit.path() else {
        return Vec::new();
    };
    let find = Find { prompt: Some(name.to_owned()), ..Find::default() };
    let until = request.until.min(Instant::now() + SEARCH);
    let limit = RECORDS.min(request.rows);
    let found = beside_calls(move || search::find(&path, &find, limit, None, until)).await;
    found.map(|found| found.entries).unwrap_or_default()
}

/// Why a name leads to no page: it is left out, or unknown.
fn unlisted(state: &AdminState, name: &str) -> PageError {
    match state.router.approval_row(name) {
        Some(row) => PageError::new(
            http::StatusCode::NOT_FOUND,
            format!(
                "This prompt is {} and is not served ({}); see Approvals.",
                row.decision.state.as_str(),
                reason(&row)
            ),
        ),
        None => PageError::not_found(
            "prompt with this name; look for it in Prompts, also among those that are left out",
        ),
    }
}

/// Why a prompt is in its state.
fn reason(row: &ApprovalRow) -> String {
    row.problem.as_deref().unwrap_or(row.decision.reason.as_str()).to_owned()
}

fn definition(catalog: &Catalog, owner: &Owner) -> Definition {
    let listed = catalog.content.listed(&owner.public_name);
    listed.map(Definition::read).unwrap_or_default()
}

/// The endpoints that serve a prompt: the main one, and views.
fn endpoints(state: &AdminState, owner: &Owner) -> Vec<String> {
    let server = &state.config.server;
    let views = state.config.views.iter().map(|view| server.view_path(&view.name));
    let all = std::iter::once(server.path.clone()).chain(views);
    all.filter(|path| state.router.serves(path, owner)).collect()
}
