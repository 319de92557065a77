//! One prompt or skill: its text, and tabs for trials, versions, rights and uses.

mod access;
mod files;
mod labels;
mod rollout;
mod text;
mod try_out;
mod uses;
mod versions;

pub(super) use files::FileRow;

use askama::Template;

use super::definition::Definition;
use super::trial::Trial;
use super::{Page, PageError, PageResult};
use crate::console::text::Html;
use crate::console::{ConsoleSection, PromptTab, filters, page_of};
use crate::request::PageRequest;
use crate::sign_in::Visitor;
use crate::state::AdminState;
use catalog::approval::ApprovalRow;
use catalog::listed_item::ListedItem;
use catalog::snapshot::Catalog;
use domain::approval::ApprovalKind;
use domain::json::Json;

/// One prompt, or one skill.
#[derive(Template)]
#[template(path = "prompt.html")]
pub(crate) struct PromptPage {
    name: String,
    upstream: String,
    raw_name: String,
    digest: String,
    state: &'static str,
    is_served: bool,
    is_waiting: bool,
    /// Why the prompt is in this state; empty without approvals.
    reason: String,
    definition: Definition,
    /// The paths of the endpoints that serve it.
    endpoints: Vec<String>,
    /// The skill that stands for the prompt.
    skill: Option<StandIn>,
    tabs: &'static [PromptTab],
    tab: PromptTab,
    content: Html,
}

/// A skill that stands for a prompt.
struct StandIn {
    /// The URI of its `SKILL.md`.
    uri: String,
    /// The paths of the endpoints that offer it.
    endpoints: Vec<String>,
}

impl StandIn {
    fn of(state: &AdminState, catalog: &Catalog, prompt: &str) -> Option<Self> {
        let item = catalog.skills.of_prompt(prompt)?;
        let offers = |path: &String| state.router.exposure(path).skills;
        let endpoints = state.endpoints(item).filter(offers).collect();
        Some(Self { uri: item.public_name.to_string(), endpoints })
    }
}

impl PromptPage {
    fn is_here(&self, tab: &PromptTab) -> bool {
        self.tab == *tab
    }

    fn path(&self) -> String {
        page_of(&self.name)
    }
}

impl Page for PromptPage {
    const SECTION: ConsoleSection = ConsoleSection::Prompts;

    fn title(&self) -> String {
        self.name.clone()
    }
}

/// A prompt or skill that is served or held back, and who looks at it.
struct Looked<'a> {
    state: &'a AdminState,
    request: &'a PageRequest,
    visitor: &'a Visitor,
    name: &'a str,
    item: &'a ListedItem,
    is_served: bool,
    /// `None` without approvals, and for a prompt that was just added.
    row: Option<ApprovalRow>,
    definition: &'a Definition,
}

/// Returns a tab of a prompt that is served, or offered and held back.
pub(crate) async fn prompt(
    state: &AdminState,
    request: &PageRequest,
    visitor: &Visitor,
    name: &str,
    tab: PromptTab,
) -> PageResult<PromptPage> {
    with_trial(state, request, visitor, name, tab, None).await
}

/// Returns the tab for trials, with the outcome of one.
pub(crate) async fn tried(
    state: &AdminState,
    request: &PageRequest,
    visitor: &Visitor,
    name: &str,
    trial: Trial,
) -> PageResult<PromptPage> {
    with_trial(state, request, visitor, name, PromptTab::Try, Some(trial)).await
}

async fn with_trial(
    state: &AdminState,
    request: &PageRequest,
    visitor: &Visitor,
    name: &str,
    tab: PromptTab,
    trial: Option<Trial>,
) -> PageResult<PromptPage> {
    let catalog = state.router.catalog();
    let row = state.approvals.row(name);
    let listed = catalog.content.item(name);
    let held = row.as_ref().filter(|row| listed.is_none() && row.kind == ApprovalKind::Prompt);
    let held = held.and_then(ListedItem::offered);
    let item = listed.or(held.as_ref()).ok_or_else(|| unlisted(state, name))?;
    let definition = definition(&catalog, item, row.as_ref()).with_origins(&state.config, item);
    let definition = &definition;
    let is_served = listed.is_some();
    let looked = Looked { state, request, visitor, name, item, is_served, row, definition };
    let content = match tab {
        PromptTab::Text => Box::pin(text::text(&looked)).await?.render(),
        PromptTab::Try => Box::pin(try_out::form(&looked, trial)).await.render(),
        PromptTab::Versions => {
            let labels = Box::pin(labels::labels(&looked)).await.map(|part| part.render());
            let rollout = rollout::rollout(&looked).map(|part| part.render());
            let versions = match labels {
                Some(labels) => labels,
                None => Box::pin(versions::versions(&looked)).await.render(),
            };
            rollout.into_iter().chain([versions]).collect()
        }
        PromptTab::Access => access::rights(&looked).render(),
        PromptTab::Uses => Box::pin(uses::uses(&looked)).await.render(),
    };
    let skill = StandIn::of(state, &catalog, name);
    Ok(PromptPage { skill, ..looked.page(&PromptTab::ALL, tab, content)? })
}

/// Returns a tab of a skill that is served; `name` is the URI of its `SKILL.md`.
pub(crate) async fn skill(
    state: &AdminState,
    request: &PageRequest,
    visitor: &Visitor,
    name: &str,
    tab: PromptTab,
) -> PageResult<PromptPage> {
    let catalog = state.router.catalog();
    let content = &catalog.skills.content;
    let found = content.item(name).zip(content.listed(name));
    let (item, entry) = found.ok_or_else(|| unlisted(state, name))?;
    let front_matter = entry.get("frontmatter").unwrap_or(entry);
    let definition = Definition::read(front_matter);
    let row = state.approvals.row(name);
    let definition = &definition;
    let looked = Looked { state, request, visitor, name, item, is_served: true, row, definition };
    let content = match tab {
        PromptTab::Text | PromptTab::Try => Box::pin(files::files(&looked, entry)).await?.render(),
        PromptTab::Versions => Box::pin(versions::versions(&looked)).await.render(),
        PromptTab::Access => access::rights(&looked).render(),
        PromptTab::Uses => Box::pin(uses::uses(&looked)).await.render(),
    };
    looked.page(&PromptTab::OF_SKILL, tab, content)
}

impl Looked<'_> {
    fn is_waiting(&self) -> bool {
        self.row.as_ref().is_some_and(ApprovalRow::is_waiting)
    }

    /// Why the prompt is in its state; of a version in the place of another, both versions.
    fn reason(&self) -> String {
        let Some(row) = &self.row else { return String::new() };
        let offered = row.offered.as_ref().and_then(|offered| offered.prompt.version.as_ref());
        match (offered, &self.item.version) {
            (Some(offered), Some(served)) if self.item.approval.is_held => {
                let state = row.decision.state.as_str();
                format!(
                    "version {} is {state}; version {} is served",
                    offered.version, served.version
                )
            }
            _ => reason(row),
        }
    }

    /// The page around one tab.
    fn page(
        &self,
        tabs: &'static [PromptTab],
        tab: PromptTab,
        content: Result<String, askama::Error>,
    ) -> PageResult<PromptPage> {
        let item = self.item;
        Ok(PromptPage {
            name: self.name.to_owned(),
            upstream: item.upstream.to_string(),
            raw_name: item.raw_name.to_string(),
            digest: item.digest.to_string(),
            state: item.approval.state.as_str(),
            is_served: self.is_served,
            is_waiting: self.is_waiting(),
            reason: self.reason(),
            endpoints: self.state.endpoints(item).filter(|_| self.is_served).collect(),
            skill: None,
            definition: self.definition.clone(),
            tabs,
            tab,
            content: Html(content.map_err(|error| crate::internal(&error))?),
        })
    }
}

/// Why a name leads to no page: it is left out, or unknown.
fn unlisted(state: &AdminState, name: &str) -> PageError {
    match state.approvals.row(name) {
        Some(row) => PageError::new(
            http::StatusCode::NOT_FOUND,
            format!(
                "This {} is {} and is not served ({}); see Approvals.",
                row.kind.as_str(),
                row.decision.state.as_str(),
                reason(&row)
            ),
        ),
        None => PageError::not_found(
            "prompt or skill with this name; look for it in Prompts, also among those that are left out",
        ),
    }
}

/// Why a prompt is in its state.
fn reason(row: &ApprovalRow) -> String {
    row.problem.as_deref().unwrap_or(row.decision.reason.as_str()).to_owned()
}

/// The definition as it is listed, else as it is offered.
fn definition(catalog: &Catalog, item: &ListedItem, row: Option<&ApprovalRow>) -> Definition {
    if let Some(listed) = catalog.content.listed(&item.public_name) {
        return Definition::read(listed);
    }
    let offered = row.and_then(|row| row.offered.as_ref());
    let offered = offered.map(|offered| offered.prompt.canonical());
    offered.map(|text| Definition::read(Json::accepted(&text))).unwrap_or_default()
}
