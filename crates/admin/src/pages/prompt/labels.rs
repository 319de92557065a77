//! Versions and labels of a library prompt: the version of the page, the moves of labels, and the
//! difference between two versions.

use std::collections::BTreeMap;

use askama::Template;
use serde_json::Value;

use super::Looked;
use super::uses::last_day;
use crate::console::filters;
use crate::pages::message::ContentView;
use crate::pages::version::{Comparison, MessageChange};
use crate::sign_in::Role;
use approvals::VersionParts;
use audit::question::Question;
use audit::search::{EventKinds, Find, LogEntry, SearchResult};
use audit::usage::Dimension;
use calls::labels::LabelledPrompt;
use catalog::approval::ApprovalRow;
use catalog::blocking::run_blocking;
use domain::approval::Attribution;
use domain::name::version_name;

/// The versions and labels of one prompt.
#[derive(Template)]
#[template(path = "prompt_labels.html")]
pub(super) struct LabelsPart {
    /// Public name of the page's prompt.
    page: String,
    /// Public name of the prompt that has the versions.
    name: String,
    commit: Option<String>,
    /// The newest first.
    versions: Vec<VersionLine>,
    labels: BTreeMap<String, u32>,
    read_only: Option<&'static str>,
    /// The newest first.
    moves: Vec<MoveRow>,
    /// Labels and numbers that can be compared.
    choices: Vec<String>,
    between: Option<(String, String)>,
    /// `None` for visitors who read no texts.
    comparison: Option<Comparison>,
    places: Vec<String>,
    can_move: bool,
    csrf: String,
    /// The tag of the labels to which a move is bound.
    tag: String,
}

/// A version of the prompt.
struct VersionLine {
    number: String,
    /// Public name of the version.
    name: String,
    labels: Vec<String>,
    /// Whether callers get it under the plain name.
    is_served: bool,
    /// Empty while approvals are off.
    state: &'static str,
    decided: Option<Attribution>,
    /// Uses in the last day, and how many of them failed.
    uses: (u64, u64),
    /// The version before it; empty for the first.
    before: String,
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
    if known.is_none() && mark.label.is_none() {
        // The version of a plain file is a remark.
        return None;
    }
    let name = known.as_ref().map_or(looked.name, |known| &known.name).to_owned();
    let mut versions = versions(looked, &name, known.as_ref());
    count_uses(looked, &name, &mut versions).await;
    let labels = known.as_ref().map(|known| known.versions.labels.clone()).unwrap_or_default();
    let read_only = known.as_ref().and_then(LabelledPrompt::read_only);
    let is_movable = known.is_some() && read_only.is_none();
    let mut part = LabelsPart {
        page: looked.name.to_owned(),
        commit: known.as_ref().and_then(|known| known.commit.as_ref()).map(ToString::to_string),
        moves: moves(looked, &mark.of).await,
        choices: Vec::new(),
        between: None,
        comparison: None,
        places: looked.definition.places(),
        can_move: is_movable && looked.visitor.role >= Role::Approver,
        csrf: looked.visitor.csrf_token(),
        tag: known.as_ref().map(|known| known.tag.clone()).unwrap_or_default(),
        name,
        versions,
        labels,
        read_only,
    };
    if known.is_none() {
        return Some(part);
    }
    let numbers = part.versions.iter().map(|version| version.number.clone());
    part.choices = part.labels.keys().cloned().chain(numbers).collect();
    part.between = between(looked, &part);
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

/// Returns the versions in the files of a library, or, of a prompt store, the versions that the
/// store offers or that were decided on; the newest first.
fn versions(looked: &Looked<'_>, name: &str, known: Option<&LabelledPrompt>) -> Vec<VersionLine> {
    let begin = version_name(name, "");
    let catalog = looked.state.router.catalog();
    let rows = catalog.approvals.iter().flat_map(|rows| rows.iter());
    let rows = rows.filter(|row| row.upstream == looked.item.upstream);
    let rows: BTreeMap<&str, &ApprovalRow> =
        rows.filter_map(|row| Some((row.public_name.strip_prefix(&begin)?, row))).collect();
    let listed = |name: &str| catalog.content.item(name)?.version.clone();
    let served = listed(name).map(|version| version.version.to_string());
    let mut numbers: Vec<String> = match known {
        Some(known) => known.versions.numbers.iter().map(u32::to_string).collect(),
        None => rows.keys().map(|number| (*number).to_owned()).collect(),
    };
    if numbers.is_empty() {
        numbers.extend(served.clone());
    }
    numbers.sort_by_key(|number| (number.parse::<u64>().ok(), number.clone()));
    let before = std::iter::once(String::new()).chain(numbers.iter().cloned());
    let line = |(number, before): (&String, String)| {
        let row = rows.get(number.as_str());
        let labels = known.iter().flat_map(|known| &known.versions.labels);
        let labels = labels.filter(|(_, of)| of.to_string() == *number);
        VersionLine {
            number: number.clone(),
            name: version_name(name, number),
            labels: labels.map(|(label, _)| label.clone()).collect(),
            is_served: served.as_ref() == Some(number),
            state: row.map_or("", |row| row.decision.state.as_str()),
            decided: row.and_then(|row| row.approved()).map(|own| own.attribution.clone()),
            uses: (0, 0),
            before,
        }
    };
    let mut lines: Vec<_> = numbers.iter().zip(before).map(line).collect();
    lines.reverse();
    lines
}

/// Sets the uses of the versions of a prompt in the last day.
async fn count_uses(looked: &Looked<'_>, name: &str, versions: &mut [VersionLine]) {
    let Looked { state, request, .. } = *looked;
    let query = last_day(request, name, Dimension::Prompt, 1);
    let report = state.usage_report(&query, None, request.until).await;
    for row in report.rows.iter().flat_map(|row| &row.versions) {
        if let Some(version) = versions.iter_mut().find(|version| version.name == row.key) {
            version.uses = (row.uses, row.failures);
        }
    }
}

/// The two versions that the parameters `left` and `right` choose; else the served version, or the
/// version before the newest, and the newest.
fn between(looked: &Looked<'_>, part: &LabelsPart) -> Option<(String, String)> {
    let [newest, before, ..] = part.versions.as_slice() else { return None };
    let served = part.versions.iter().find(|version| version.is_served);
    let left = served.filter(|served| served.number != newest.number).unwrap_or(before);
    let chosen = |key: &str, usual: &String| {
        let wanted = looked.request.params.get(key);
        part.choices.iter().find(|choice| *choice == wanted).unwrap_or(usual).clone()
    };
    Some((chosen("left", &left.number), chosen("right", &newest.number)))
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
    let what = match [from.as_str(), to.as_str()] {
        [_, ""] => format!("{label} removed"),
        ["", _] => format!("{label} to {to}"),
        _ => format!("{label} from {from} to {to}"),
    };
    MoveRow { time: entry.time.clone(), what, by: member("by"), why: member("why") }
}
