//! `promptgate labels`: which versions of library prompts the labels name, and their moves. The
//! running gateway answers where there is one, else a gateway that the command starts.

use serde_json::{Value, json};

use super::approvals;
use crate::app::App;
use crate::cli::observe::find;
use crate::cli::shared::admin_api::{fetch_once, request_if_match};
use crate::cli::shared::args::{
    ApprovalsCommand, ApprovalsDecision, ApprovalsQuery, ApprovalsView, LabelsCommand, LabelsQuery,
    SeenTags,
};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::load::load;
use crate::cli::shared::output::CellKind::Terminal;
use crate::cli::shared::output::{Column, elements, printable, table_or};
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;
use crate::cli::shared::user::user;
use base::platform::wall_clock;
use calls::labels::{LabelChange, LabelledPrompt};
use domain::approval::Decider;
use domain::name::version_name;
use domain::text::percent;
use domain::text::similar::suggestion;
use http::Method;

/// The path of labels in the admin API.
const PATH: &str = "/api/v1/labels";

/// A change that is asked for.
struct Wanted<'a> {
    name: &'a str,
    change: LabelChange<'a>,
    why: Option<&'a str>,
}

/// Runs one of the commands.
///
/// # Errors
/// With exit code 64 for mistakes in the configuration and unknown prompts; with 1 if the label was
/// not changed.
pub(crate) fn run(command: LabelsCommand) -> Result<(), Failure> {
    match command {
        LabelsCommand::List(query) => {
            let prompts = on_runtime(prompts(&query))?;
            query.output.print(&prompts, &table_or(NONE, &COLUMNS, elements(&prompts)))
        }
        LabelsCommand::Set { name, label, version, new, approve, reason, query } => {
            if approve {
                approvals::run(&approval_of(&name, version, reason.clone(), &query))?;
            }
            let change = LabelChange { label: &label, version: Some(version), is_new: new };
            change_label(&query, &Wanted { name: &name, change, why: reason.as_deref() })
        }
        LabelsCommand::Remove { name, label, reason, query } => {
            let change = LabelChange { label: &label, version: None, is_new: false };
            change_label(&query, &Wanted { name: &name, change, why: reason.as_deref() })
        }
        LabelsCommand::History(mut query) => {
            query.period.since.get_or_insert_with(|| "365d".to_owned());
            query.event = Some("labels".to_owned());
            find::run(&query)
        }
    }
}

/// The command that approves a version.
fn approval_of(
    name: &str,
    version: u32,
    why: Option<String>,
    query: &LabelsQuery,
) -> ApprovalsCommand {
    let LabelsQuery { file, output } = query.clone();
    let query = ApprovalsQuery { offline: false, view: ApprovalsView { file, output } };
    ApprovalsCommand::Approve {
        prompts: vec![version_name(name, &version.to_string())],
        all_of: None,
        yes: true,
        unseen: false,
        diff: false,
        variant: Vec::new(),
        seen: SeenTags { tags: Vec::new() },
        decision: ApprovalsDecision { why, query },
    }
}

fn change_label(query: &LabelsQuery, wanted: &Wanted<'_>) -> Result<(), Failure> {
    let done = on_runtime(set(query, wanted))?;
    query.output.print(&done, &printable(&set_text(&done, wanted)))
}

fn on_runtime<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = runtime()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// The prompts that have versions.
async fn prompts(query: &LabelsQuery) -> Result<Value, Failure> {
    match Reach::running_admin(&query.file) {
        Some(url) => Ok(fetch_once(&url, PATH).await?["prompts"].take()),
        None => {
            let app = own_gateway(query).await?;
            let prompts = app.router().labels().prompts();
            app.stop().await;
            Ok(documents(&prompts))
        }
    }
}

/// Starts a gateway without a listener, and waits for the lists of its upstreams.
async fn own_gateway(query: &LabelsQuery) -> Result<App, Failure> {
    let app = App::new(load(&query.file.config)?);
    let app = app.map_err(|error| Failure::new(error.to_string()))?;
    app.summary().await;
    Ok(app)
}

async fn set(query: &LabelsQuery, wanted: &Wanted<'_>) -> Result<Value, Failure> {
    let Wanted { name, change, why } = *wanted;
    if let Some(url) = Reach::running_admin(&query.file) {
        let document = fetch_once(&url, PATH).await?;
        let prompt = named(&document["prompts"], name)?;
        let segment = percent::encoded_segment;
        let path = format!("{PATH}/{}/{}", segment(name), segment(change.label));
        let mut body = json!({"by": user(), "why": why});
        let method = match change.version {
            Some(version) => {
                body["version"] = version.into();
                body["new"] = change.is_new.into();
                Method::PUT
            }
            None => Method::DELETE,
        };
        let tag = prompt["tag"].as_str().unwrap_or_default();
        return request_if_match(method, &url, &path, tag, &body).await;
    }
    let app = own_gateway(query).await?;
    let moved = set_here(&app, wanted).await;
    app.stop().await;
    moved
}

async fn set_here(app: &App, wanted: &Wanted<'_>) -> Result<Value, Failure> {
    let Wanted { name, change, why } = *wanted;
    let router = app.router();
    let labels = router.labels();
    named(&documents(&labels.prompts()), name)?;
    let Some(prompt) = labels.prompt(name) else { return Err(unknown(name, &Value::Null)) };
    let why = why.map(str::to_owned);
    let decider = Decider::at_command_line(user(), why, wall_clock());
    let tag = Some(prompt.tag.clone());
    let moved = labels.move_to(&prompt, change, tag, &decider).await;
    let from = moved.map_err(|error| Failure::new(printable(&error.to_string())))?;
    Ok(json!(prompt.moved(change, from)))
}

/// The prompts as the admin API lists them.
fn documents(prompts: &[LabelledPrompt]) -> Value {
    prompts.iter().map(|prompt| json!(prompt.document())).collect()
}

/// The prompt of this name.
fn named<'a>(prompts: &'a Value, name: &str) -> Result<&'a Value, Failure> {
    let mut all = elements(prompts).iter();
    all.find(|prompt| prompt["name"] == name).ok_or_else(|| unknown(name, prompts))
}

fn unknown(name: &str, prompts: &Value) -> Failure {
    let near =
        suggestion(name, elements(prompts).iter().filter_map(|prompt| prompt["name"].as_str()));
    Failure::usage(printable(&format!(
        "No prompt {name} of a library has versions{near}. A prompt has them in NAME/versions/1.md (docs/versions.md); \
         labels of a prompt store are moved in the store."
    )))
}

fn set_text(done: &Value, wanted: &Wanted<'_>) -> String {
    let Wanted { name, change: LabelChange { label, version, .. }, .. } = wanted;
    match (done["from"].as_u64(), version) {
        (_, None) => format!("{label} of {name}: removed"),
        (Some(from), Some(version)) => format!("{label} of {name}: version {from} → {version}"),
        (None, Some(version)) => format!("{label} of {name}: version {version}"),
    }
}

const COLUMNS: [Column; 5] = [
    Column::new("PROMPT", "name"),
    Column::new("SERVED", "served"),
    Column::new("LABELS", "labels"),
    Column::new("VERSIONS", "versions"),
    Column::new("MOVED", "readOnly").of(Terminal(place)),
];

/// The place where labels are moved.
fn place(read_only: &Value) -> String {
    if read_only.is_string() { "in the repository" } else { "here" }.to_owned()
}

const NONE: &str = "No prompt of a library has versions (docs/versions.md).";
