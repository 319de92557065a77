//! Versions and labels of a library prompt: the version of the page, the moves of labels, and the
//! difference between two versions.

use std::collections::BTreeMap;

use askama::Template;
use serde_json::Value;

use super::Looked;
use crate::console::filters;
use crate::pages::message::ContentView;
use crate::pages::version::{Comparison, MessageChange};
use crate::sign_in::Role;
use approvals::VersionParts;
use audit::question::Question;
use audit::search::{EventKinds, Find, LogEntry, SearchResult};
use calls::labels::LabelledPrompt;
use catalog::blocking::run_blocking;
use domain::name::version_name;

/// The versions and labels of one prompt.
#[derive(Template)]
#[template(path = "prompt_labels.html")]
pub(super) struct LabelsPart {
    /// Public name of the page's prompt.
    page: String,
    /// Public name of the prompt that has the versions.
    name: String,
    version: String,
    label: Option<String>,
    commit: Option<String>,
    labels: BTreeMap<String, u32>,
    numbers: String,
    read_only: Option<&'static str>,
    /// The newest first.
    moves: Vec<MoveRow>,
    /// Labels and numbers that can be compared.
    choices: Vec<String>,
    between: Option<(String, String)>,
    /// `None` for visitors who read no texts.
    comparison: Option<Comparison>,
    places: Vec<String>,
}

/// A move as the audit log has it.
struct MoveRow {
    time: String,
    what: String,
    by: String,
    why: String,
}

/// Moves that a page shows.
const MOVES: usize = 20;

/// Returns the part of a prompt that has a version.
pub(super) async fn labels(looked: &Looked<'_>) -> Option<LabelsPart> {
    let mark = looked.item.version.as_ref()?;
    let upstream = looked.item.upstream.as_str();
    let prompts = looked.state.router.labels().prompts();
    let is_of =
        |prompt: &LabelledPrompt| prompt.upstream == upstream && *prompt.raw_name == *mark.of;
    let known = prompts.into_iter().find(is_of);
    let mut part = LabelsPart {
        page: looked.name.to_owned(),
        name: known.as_ref().map_or(looked.name, |known| &known.name).to_owned(),
        version: mark.version.to_string(),
        label: mark.label.as_ref().map(ToString::to_string),
        commit: known.as_ref().and_then(|known| known.commit.as_ref()).map(ToString::to_string),
        labels: known.as_ref().map(|known| known.versions.labels.clone()).unwrap_or_default(),
        numbers: String::new(),
        read_only: known.as_ref().and_then(LabelledPrompt::read_only),
        moves: moves(looked, &mark.of).await,
        choices: Vec::new(),
        between: None,
        comparison: None,
        places: looked.definition.places(),
    };
    let Some(known) = known else { return Some(part) };
    let numbers: Vec<_> = known.versions.numbers.iter().map(u32::to_string).collect();
    part.numbers = numbers.join(", ");
    part.choices = known.versions.labels.keys().cloned().chain(numbers).collect();
    part.between = between(looked, &part.choices);
    if let Some((left, right)) =
        part.between.clone().filter(|_| looked.visitor.role >= Role::Tester)
    {
        let parts = async |choice: &str| {
            let raw_name = version_name(&mark.of, choice);
            let approvals = &looked.state.approvals;
            approvals.library_parts(&looked.item.upstream, &raw_name).await.unwrap_or_default()
        };
        let (left, right): (VersionParts, VersionParts) = (parts(&left).await, parts(&right).await);
        part.comparison = Some(run_blocking(move || Comparison::of(&left, &right, &[])).await);
    }
    Some(part)
}

/// The two versions that the parameters `left` and `right` choose, or else the first two.
fn between(looked: &Looked<'_>, choices: &[String]) -> Option<(String, String)> {
    let [first, second, ..] = choices else { return None };
    let chosen = |key: &str, usual: &String| {
        let wanted = looked.request.params.get(key);
        choices.iter().find(|choice| *choice == wanted).unwrap_or(usual).clone()
    };
    Some((chosen("left", first), chosen("right", second)))
}

/// The newest moves of the labels of a prompt.
async fn moves(looked: &Looked<'_>, raw_name: &str) -> Vec<MoveRow> {
    let find = Find {
        prompt: Some(raw_name.to_owned()),
        upstream: Some(looked.item.upstream.to_string()),
        event: Some(EventKinds::from("labels")),
        ..Find::default()
    };
    let find = Box::new(find);
    let question =
        |_: &str| Some(Question::Find { find: find.clone(), limit: MOVES, before: None });
    let answers = looked.state.ask(None, question, looked.request.until).await;
    let found: Vec<_> = answers.found().map(|(replica, own)| (replica, None, own)).collect();
    SearchResult::merge(&found, MOVES).0.iter().map(move_row).collect()
}

fn move_row(entry: &LogEntry) -> MoveRow {
    let member = |key: &str| match entry.members.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let (label, from, to) = (member("label"), member("from"), member("to"));
    let what = match from.as_str() {
        "" => format!("{label} to {to}"),
        _ => format!("{label} from {from} to {to}"),
    };
    MoveRow { time: entry.time.clone(), what, by: member("by"), why: member("why") }
}
