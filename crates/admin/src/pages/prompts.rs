//! The lists of served, waiting and left-out prompts, of skills, and of pairs that look alike.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use askama::Template;

use super::definition::{clipped, text};
use super::skills::{SkillRow, skills};
use super::{Page, PageError, PageResult};
use crate::console::plot::spark_bars;
use crate::console::{ConsoleSection, filters};
use crate::request::{PageRequest, Paging, Params};
use crate::state::AdminState;
use audit::usage::{DailyUses, WEEK_DAYS};
use catalog::listed_item::ListedItem;
use catalog::snapshot::{Catalog, CatalogContent, LeftOut, LeftOutBy, LookAlike};
use domain::approval::ApprovalKind;
use domain::json::Json;
use domain::text::percent;
use domain::tool::search::{Score, SearchQuery};

/// A part of the prompts.
#[derive(Template)]
#[template(path = "prompts.html")]
pub(super) struct Prompts {
    prompts: Vec<PromptRow>,
    headings: Vec<Heading>,
    /// Whether not all uses of the week are known.
    is_partial: bool,
    paging: Paging,
    skills: Vec<SkillRow>,
    skill_paging: Paging,
    left_out: Vec<LeftOutRow>,
    left_out_total: usize,
    look_alikes: Vec<LookAlike>,
    filter: FilterForm,
}

/// One prompt in the list.
struct PromptRow {
    name: String,
    title: String,
    description: String,
    upstream: String,
    state: &'static str,
    /// Uses by day, the oldest first.
    week: [u64; WEEK_DAYS],
}

impl PromptRow {
    fn uses(&self) -> u64 {
        self.week.iter().sum()
    }

    /// The drawing of its week, as a path of SVG.
    fn bars(&self) -> String {
        spark_bars(&self.week)
    }
}

/// The heading of a column, which sorts the rows by the column.
struct Heading {
    label: &'static str,
    /// The query that sorts by the column, or turns its order around.
    link: String,
    /// The value of `aria-sort`, for the column that the rows are sorted by.
    sorted: Option<&'static str>,
    is_number: bool,
}

/// A prompt that is left out, with a link to the place where an operator can fix it.
struct LeftOutRow {
    prompt: LeftOut,
    repair: &'static str,
    page: String,
}

/// The choices of the page's filters, and the chosen values.
struct FilterForm {
    params: Params,
    upstreams: Vec<String>,
    views: Vec<String>,
    /// The number of matching prompts and skills in each state; the filter `state` does not count.
    states: BTreeMap<&'static str, usize>,
    /// The numbers of matching prompts and skills.
    prompts: usize,
    skills: usize,
}

/// The value of the parameter `kind`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ListedKind {
    All,
    Prompts,
    Skills,
}

impl ListedKind {
    fn of(params: &Params) -> Self {
        match params.get("kind") {
            "prompts" => Self::Prompts,
            "skills" => Self::Skills,
            _ => Self::All,
        }
    }
}

impl Page for Prompts {
    const SECTION: ConsoleSection = ConsoleSection::Prompts;
}

/// Rows of one page.
const PAGE: usize = 50;

/// Rows of skills, of prompts that are left out, and of pairs that look alike, below the prompts.
const BELOW: usize = 100;

/// Prompts that are examined between two readings of the clock.
const BETWEEN: usize = 4096;

/// Upstreams that stand beside each other as links; more are a list to choose from.
const FEW: usize = 8;

/// The columns by the keys of `sort`. The order of the first click, where it is descending, has a
/// minus.
const COLUMNS: [(&str, &str); 4] =
    [("Prompt", "name"), ("Upstream", "upstream"), ("State", "state"), ("Uses, 7 days", "-uses")];

/// A prompt that matches.
struct Found<'a> {
    score: Score,
    item: &'a ListedItem,
    prompt: Json<'a>,
}

/// Returns the prompts and skills that match the parameters `q`, `upstream`, `view`, `tag`, `state`
/// and `kind`; prompts in the order of `sort`: without one the best match first.
pub(super) async fn prompts(state: &AdminState, request: &PageRequest) -> PageResult<Prompts> {
    let catalog = state.router.catalog();
    let content = &catalog.content;
    let wanted = PromptFilter::new(state, request);
    let kind = ListedKind::of(&request.params);
    let (mut found_skills, mut states) = skills(state, &catalog.skills, &request.params);
    let held = held(&catalog);
    let mut found = wanted.found(content, request)?;
    found.extend(held.iter().filter_map(|(item, text)| {
        let prompt = Json::accepted(text);
        Some(Found { score: wanted.score(item, prompt)?, item, prompt })
    }));
    found.sort_by(|a, b| a.item.public_name.cmp(&b.item.public_name));
    if kind == ListedKind::Prompts {
        states.clear();
    }
    for found in found.iter().filter(|_| kind != ListedKind::Skills) {
        *states.entry(found.item.approval.state.as_str()).or_default() += 1;
    }
    found.retain(|found| wanted.has_state(found.item));
    let filter = FilterForm::new(state, request, states, [found.len(), found_skills.len()]);
    match kind {
        ListedKind::All => {}
        ListedKind::Prompts => found_skills.clear(),
        ListedKind::Skills => found.clear(),
    }
    let paging = request.paging(found.len(), PAGE);
    let below = BELOW.min(request.rows);
    let skill_paging = match kind {
        ListedKind::Skills => request.paging(found_skills.len(), PAGE),
        _ => Paging { start: 0, size: below, ..request.paging(found_skills.len(), below) },
    };
    let sort = request.params.get("sort");
    let is_by_use = sort.trim_start_matches('-') == "uses";
    let name = |found: &Found<'_>| found.item.counted_name().to_string();
    let mut counted: Vec<String> = if is_by_use {
        found.iter().map(name).collect()
    } else {
        order(&mut found, sort, &DailyUses::default());
        found.iter().skip(paging.start).take(paging.size).map(name).collect()
    };
    let shown_skills = || found_skills.iter().skip(skill_paging.start).take(skill_paging.size);
    counted.extend(shown_skills().map(|found| found.item.public_name.to_string()));
    let uses = state.daily_uses(counted, request.until).await;
    if is_by_use {
        order(&mut found, sort, &uses);
    }
    let shown = found.iter().skip(paging.start).take(paging.size);
    let left_out = || content.left_out.iter().filter(|left_out| wanted.has_left_out(left_out));
    let shown_skills = shown_skills().map(|found| found.row(&uses)).collect();
    Ok(Prompts {
        prompts: shown.map(|found| row(found, &uses)).collect(),
        headings: COLUMNS.map(|column| heading(&request.params, column)).into(),
        is_partial: uses.is_partial,
        paging,
        skills: shown_skills,
        skill_paging,
        left_out: left_out().take(below).map(left_out_row).collect(),
        left_out_total: left_out().count(),
        look_alikes: content.look_alikes.iter().take(below).cloned().collect(),
        filter,
    })
}

/// Returns the prompts that wait for approval and are not served, with their definitions.
fn held(catalog: &Catalog) -> Vec<(ListedItem, String)> {
    let rows = catalog.approvals.iter().flat_map(|rows| rows.iter());
    let held = rows.filter(|row| {
        row.kind == ApprovalKind::Prompt
            && row.is_waiting()
            && catalog.content.item(&row.public_name).is_none()
    });
    let held = held.filter_map(|row| {
        let item = ListedItem::offered(row).filter(|item| !item.is_version())?;
        Some((item, row.offered.as_ref()?.prompt.canonical()))
    });
    held.collect()
}

/// Returns the names and titles of the prompts that match best.
pub(super) fn best(
    state: &AdminState,
    request: &PageRequest,
    count: usize,
) -> PageResult<Vec<(String, String)>> {
    let catalog = state.router.catalog();
    let mut found = PromptFilter::new(state, request).found(&catalog.content, request)?;
    order(&mut found, "", &DailyUses::default());
    let best = found.into_iter().take(count);
    let name = |found: Found<'_>| (found.item.public_name.to_string(), text(found.prompt, "title"));
    Ok(best.map(name).collect())
}

/// Sorts prompts that are in the order of their names by a key of `sort`.
fn order(found: &mut [Found<'_>], sort: &str, uses: &DailyUses) {
    let key = sort.trim_start_matches('-');
    let total = |of: &Found<'_>| uses.of(of.item.counted_name()).iter().sum::<u64>();
    match key {
        "uses" => found.sort_by_cached_key(total),
        "upstream" => found.sort_by_key(|of| of.item.upstream.as_str()),
        "state" => found.sort_by_key(|of| of.item.approval.state),
        "name" => {}
        _ => return found.sort_by_key(|of| Reverse(of.score)),
    }
    if sort.starts_with('-') {
        found.reverse();
    }
}

fn heading(params: &Params, (label, first): (&'static str, &str)) -> Heading {
    let (key, sort) = (first.trim_start_matches('-'), params.get("sort"));
    // Without a search the best match is the order of names.
    let sort = if sort.is_empty() && params.get("q").trim().is_empty() { "name" } else { sort };
    let is_sorted = sort.trim_start_matches('-') == key;
    let next = match sort.strip_prefix('-') {
        Some(turned) if is_sorted => turned.to_owned(),
        None if is_sorted => format!("-{key}"),
        _ => first.to_owned(),
    };
    let direction = if sort.starts_with('-') { "descending" } else { "ascending" };
    Heading {
        label,
        link: params.with("sort", &next),
        sorted: is_sorted.then_some(direction),
        is_number: key == "uses",
    }
}

fn left_out_row(prompt: &LeftOut) -> LeftOutRow {
    let id = percent::encoded_segment(&prompt.upstream);
    let (repair, page) = match prompt.by {
        LeftOutBy::Defect | LeftOutBy::Stale => {
            ("Repair it at its upstream", format!("/upstreams/{id}"))
        }
        LeftOutBy::Name => {
            ("Set a prefix, or rename it", format!("/configuration?q=upstreams.{id}.prefix"))
        }
        LeftOutBy::Overlay => ("Change the overlay", "/configuration?q=overlays.".to_owned()),
        LeftOutBy::Approval => {
            let name = percent::encoded_segment(&prompt.raw_name);
            ("Decide on it", format!("/approvals?upstream={id}&q={name}"))
        }
        LeftOutBy::NoSkill => ("Change expose", "/configuration?q=expose".to_owned()),
    };
    LeftOutRow { prompt: prompt.clone(), repair, page }
}

fn row(found: &Found<'_>, uses: &DailyUses) -> PromptRow {
    let Found { item, prompt, .. } = found;
    PromptRow {
        name: item.public_name.to_string(),
        title: text(*prompt, "title"),
        description: clipped(&text(*prompt, "description")),
        upstream: item.upstream.to_string(),
        state: item.approval.state.as_str(),
        week: uses.of(item.counted_name()),
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

    /// The prompts that match every filter but `state`.
    fn found<'c>(
        &self,
        content: &'c CatalogContent,
        request: &PageRequest,
    ) -> PageResult<Vec<Found<'c>>> {
        let mut found = Vec::new();
        let elements = content.segments().iter().flat_map(|segment| {
            (0..segment.len()).map(|position| segment.element(position)).zip(segment.items())
        });
        // Views alone serve versions.
        let all = elements.filter(|(_, item)| self.endpoint.is_some() || !item.is_version());
        for (index, (prompt, item)) in all.enumerate() {
            if index % BETWEEN == 0 && request.is_late() {
                return Err(PageError::late());
            }
            found.extend(self.score(item, prompt).map(|score| Found { score, item, prompt }));
        }
        Ok(found)
    }

    /// The score of a prompt that matches every filter but `state`.
    fn score(&self, item: &ListedItem, prompt: Json<'_>) -> Option<Score> {
        let is_wanted = self.upstream.is_none_or(|id| item.upstream.as_str() == id)
            && self.endpoint.as_ref().is_none_or(|path| self.state.router.serves(path, item))
            && self.tag.is_none_or(|tag| has_tag(prompt, tag));
        if !is_wanted {
            return None;
        }
        // The search counts whole words of less than three letters; a visitor who types has not
        // finished the word.
        let begun = || item.public_name.to_lowercase().contains(&self.text);
        self.query.score(prompt).or_else(|| begun().then(Score::default))
    }

    fn has_state(&self, item: &ListedItem) -> bool {
        self.approval.is_none_or(|state| item.approval.state.as_str() == state)
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
    fn new(
        state: &AdminState,
        request: &PageRequest,
        states: BTreeMap<&'static str, usize>,
        [prompts, skills]: [usize; 2],
    ) -> Self {
        Self {
            params: request.params.clone(),
            upstreams: state.config.upstreams.iter().map(|up| up.id.to_string()).collect(),
            views: state.config.views.iter().map(|view| view.name.clone()).collect(),
            states,
            prompts,
            skills,
        }
    }

    fn has_prompts(&self) -> bool {
        ListedKind::of(&self.params) != ListedKind::Skills
    }

    /// Whether the choice of a kind is shown: there are skills, or a kind was chosen.
    fn has_kinds(&self) -> bool {
        self.skills > 0 || self.params.some("kind").is_some()
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.params.get(name) == value
    }

    /// Whether there are several upstreams, and few enough for links.
    fn has_few_upstreams(&self) -> bool {
        (2..=FEW).contains(&self.upstreams.len())
    }

    /// Whether the choice of a state is shown: there are several states, or a state was chosen.
    fn has_states(&self) -> bool {
        self.states.len() > 1 || self.params.some("state").is_some()
    }

    /// Rows in all states.
    fn total(&self) -> usize {
        self.states.values().sum()
    }

    /// The chosen values that the form keeps, as links choose them.
    fn kept(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = ["upstream", "kind", "state", "sort"].into_iter();
        let names = names.filter(|name| *name != "upstream" || self.has_few_upstreams());
        names.filter_map(|name| Some((name, self.params.some(name)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_sorts_by_its_column_and_turns_the_order_around() {
        let of = |query: &str| {
            let params = Params::read(query.as_bytes());
            let headings = COLUMNS.map(|column| heading(&params, column));
            headings.map(|heading| (heading.link, heading.sorted))
        };
        let [name, upstream, _, uses] = of("q=&page=3");
        assert_eq!(name, ("?sort=-name".to_owned(), Some("ascending")));
        assert_eq!((upstream.0.as_str(), upstream.1), ("?sort=upstream", None));
        assert_eq!((uses.0.as_str(), uses.1), ("?sort=-uses", None));
        let [name, _, _, uses] = of("q=a&sort=-uses");
        assert_eq!(uses, ("?q=a&sort=uses".to_owned(), Some("descending")));
        assert_eq!(name, ("?q=a&sort=name".to_owned(), None));
        assert_eq!(of("q=a")[0], ("?q=a&sort=name".to_owned(), None), "the best match is first");
    }
}
