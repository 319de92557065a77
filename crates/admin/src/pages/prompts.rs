//! The prompts that are served, those that are left out, and pairs that look alike.

use std::cmp::Reverse;

use askama::Template;

use super::definition::text;
use super::{Page, PageError, PageResult};
use crate::console::ConsoleSection;
use crate::console::text::filters;
use crate::request::{PageRequest, Paging, Params};
use crate::state::AdminState;
use domain::approval;
use domain::json::Json;
use domain::tool::search::{Score, SearchQuery};
use gateway::router::catalog::{CatalogContent, LeftOut, LookAlike};
use gateway::router::owner::Owner;

/// A part of the prompts.
#[derive(Template)]
#[template(path = "prompts.html")]
pub(super) struct Prompts {
    prompts: Vec<PromptRow>,
    paging: Paging,
    left_out: Vec<LeftOut>,
    left_out_total: usize,
    look_alikes: Vec<LookAlike>,
    filter: FilterForm,
}

/// One prompt in the list.
struct PromptRow {
    name: String,
    title: String,
    upstream: String,
    state: &'static str,
    arguments: usize,
    overlays: usize,
}

/// The choices of the page's filter form, and the chosen values.
struct FilterForm {
    params: Params,
    upstreams: Vec<String>,
    views: Vec<String>,
    states: Vec<&'static str>,
}

impl Page for Prompts {
    const SECTION: ConsoleSection = ConsoleSection::Prompts;
}

/// Rows of one page.
const PAGE: usize = 50;

/// Rows of prompts that are left out, and of pairs that look alike, below the prompts.
const BELOW: usize = 100;

/// Prompts that are examined between two readings of the clock.
const BETWEEN: usize = 4096;

/// Returns the prompts that match the parameters `q`, `upstream`, `view`, `tag` and `state`, in the
/// order of `sort`.
///
/// # Errors
/// They cannot be searched in time.
pub(super) fn prompts(state: &AdminState, request: &PageRequest) -> PageResult<Prompts> {
    let catalog = state.router.catalog();
    let content = &catalog.content;
    let wanted = PromptFilter::new(state, request);
    let mut found = wanted.found(content, request)?;
    match request.params.get("sort") {
        "upstream" => found.sort_by_key(|(_, owner, _)| owner.upstream.as_str()),
        "state" => found.sort_by_key(|(_, owner, _)| owner.approval.state),
        "-name" => found.reverse(),
        _ => found.sort_by_key(|(score, _, _)| Reverse(*score)),
    }
    let paging = request.paging(found.len(), PAGE);
    let shown = found.iter().skip(paging.start).take(paging.size);
    let left_out = || content.left_out.iter().filter(|left_out| wanted.has_left_out(left_out));
    let below = BELOW.min(request.rows);
    Ok(Prompts {
        prompts: shown.map(|(_, owner, prompt)| row(owner, *prompt)).collect(),
        paging,
        left_out: left_out().take(below).cloned().collect(),
        left_out_total: left_out().count(),
        look_alikes: content.look_alikes.iter().take(below).cloned().collect(),
        filter: FilterForm::new(state, request),
    })
}

/// Returns the names and titles of the prompts that match best.
///
/// # Errors
/// As [`prompts`].
pub(super) fn best(
    state: &AdminState,
    request: &PageRequest,
    count: usize,
) -> PageResult<Vec<(String, String)>> {
    let catalog = state.router.catalog();
    let mut found = PromptFilter::new(state, request).found(&catalog.content, request)?;
    found.sort_by_key(|(score, _, _)| Reverse(*score));
    let best = found.into_iter().take(count);
    Ok(best
        .map(|(_, owner, prompt)| (owner.public_name.to_string(), text(prompt, "title")))
        .collect())
}

fn row(owner: &Owner, prompt: Json<'_>) -> PromptRow {
    PromptRow {
        name: owner.public_name.to_string(),
        title: text(prompt, "title"),
        upstream: owner.upstream.to_string(),
        state: owner.approval.state.as_str(),
        arguments: owner.arguments.len(),
        overlays: owner.overlay.as_ref().map_or(0, |overlay| overlay.numbers.len()),
    }
}

/// The criteria of a search.
struct PromptFilter<'a> {
    state: &'a AdminState,
    query: SearchQuery,
    /// In lower case.
    text: String,
    upstream: Option<&'a str>,
    /// The path of the endpoint.
    endpoint: Option<String>,
    tag: Option<&'a str>,
    approval: Option<&'a str>,
}

impl<'a> PromptFilter<'a> {
    fn new(state: &'a AdminState, request: &'a PageRequest) -> Self {
        let params = &request.params;
        Self {
            state,
            query: SearchQuery::new(params.get("q")),
            text: params.get("q").trim().to_lowercase(),
            upstream: params.some("upstream"),
            endpoint: params.some("view").map(|view| state.config.server.view_path(view)),
            tag: params.some("tag"),
            approval: params.some("state"),
        }
    }

    /// The prompts that match, with their scores.
    ///
    /// # Errors
    /// They cannot be searched in time.
    fn found<'c>(
        &self,
        content: &'c CatalogContent,
        request: &PageRequest,
    ) -> PageResult<Vec<(Score, &'c Owner, Json<'c>)>> {
        let mut found = Vec::new();
        let all = content.everyone.elements().zip(content.owners()).enumerate();
        for (index, ((_, prompt), owner)) in all {
            if index % BETWEEN == 0 && request.is_late() {
                return Err(PageError::late());
            }
            found.extend(self.score(owner, prompt).map(|score| (score, owner, prompt)));
        }
        Ok(found)
    }

    /// The score of a prompt that matches.
    fn score(&self, owner: &Owner, prompt: Json<'_>) -> Option<Score> {
        let is_wanted = self.upstream.is_none_or(|id| owner.upstream.as_str() == id)
            && self.approval.is_none_or(|state| owner.approval.state.as_str() == state)
            && self.endpoint.as_ref().is_none_or(|path| self.state.router.serves(path, owner))
            && self.tag.is_none_or(|tag| has_tag(prompt, tag));
        if !is_wanted {
            return None;
        }
        // The search counts whole words of less than three letters; a visitor who types has not
        // finished the word.
        let begun = || owner.public_name.to_lowercase().contains(&self.text);
        self.query.score(prompt).or_else(|| begun().then(Score::default))
    }

    fn has_left_out(&self, left_out: &LeftOut) -> bool {
        self.upstream.is_none_or(|id| left_out.upstream == id)
            && left_out.raw_name.to_lowercase().contains(&self.text)
    }
}

fn has_tag(prompt: Json<'_>, tag: &str) -> bool {
    let tags = prompt.get("_meta").and_then(|meta| meta.get("tags"));
    tags.is_some_and(|tags| tags.elements().any(|own| own.is(tag)))
}

impl FilterForm {
    fn new(state: &AdminState, request: &PageRequest) -> Self {
        Self {
            params: request.params.clone(),
            upstreams: state.config.upstreams.iter().map(|up| up.id.to_string()).collect(),
            views: state.config.views.iter().map(|view| view.name.clone()).collect(),
            states: approval::ApprovalState::ALL.map(approval::ApprovalState::as_str).to_vec(),
        }
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.params.get(name) == value
    }
}
