//! Access: the rights of callers and groups to each prompt, and the effect of other rules.

use std::cmp::Reverse;
use std::sync::Arc;

use askama::Template;

use super::rights::{Right, RightsHolder, decider, known, right};
use super::{Page, PageError, PageResult};
use crate::console::text::counted;
use crate::console::{ConsoleSection, filters};
use crate::request::{PageRequest, Paging, Params};
use crate::sign_in::Visitor;
use crate::state::AdminState;
use ::access::Decisions;
use catalog::listed_item::ListedItem;
use config::Access as Rules;

/// The matrix of callers and prompts.
#[derive(Template)]
#[template(path = "access.html")]
pub(crate) struct AccessPage {
    has_rules: bool,
    /// The columns.
    who: Vec<String>,
    who_total: usize,
    /// Single callers, where a switch shows or hides them.
    callers: Option<usize>,
    rows: Vec<AccessRow>,
    paging: Paging,
    /// The effect of pasted rules; `None` if none were pasted.
    what_if: Option<WhatIf>,
    params: Params,
    csrf: String,
}

/// The rights of each caller or group to one prompt, in the order of the columns.
struct AccessRow {
    prompt: String,
    rights: Vec<Right>,
    /// Whether approvals hold it back, so that the rights are of no effect.
    is_held: bool,
}

/// The effect of other rules.
#[derive(Default)]
struct WhatIf {
    /// Mistakes in the rules, one sentence each; then nothing else is known.
    mistakes: Vec<String>,
    /// Losses and gains of each caller or group, with the most losses first.
    summaries: Vec<ChangeSummary>,
    changes: Vec<AccessChange>,
    /// All changes, shown or not.
    total: usize,
    /// Whether there was no time for all prompts and callers.
    is_cut: bool,
}

/// Prompts of which a caller or group loses rights, and of which it gains some.
struct ChangeSummary {
    who: String,
    lost: usize,
    gained: usize,
}

/// A right that would change.
struct AccessChange {
    who: String,
    prompt: String,
    before: Right,
    after: Right,
}

impl Page for AccessPage {
    const SECTION: ConsoleSection = ConsoleSection::Access;
}

impl AccessPage {
    /// The rights of a row, each with its column.
    fn cells<'a>(&'a self, row: &'a AccessRow) -> impl Iterator<Item = (&'a String, &'a Right)> {
        self.who.iter().zip(&row.rights)
    }
}

impl ChangeSummary {
    /// The summary in words, after the name: "loses rights to 8 prompts, gains rights to 1".
    fn text(&self) -> String {
        let part =
            |verb, count| (count > 0).then(|| format!("{verb} {}", counted(count, "prompt")));
        let parts = [part("loses rights to", self.lost), part("gains rights to", self.gained)];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Longest text of rules that is compared, in bytes: parsing rules takes CPU time.
const MAX_RULES: usize = 64 << 10;

/// Prompts of one page, and columns.
const PAGE: usize = 25;
const COLUMNS: usize = 12;

/// Returns the matrix for the parameters `q` (prompts), `who` (callers and groups) and `callers`:
/// without `1` single callers are left out where there are groups and none is searched for.
pub(crate) fn access(
    state: &Arc<AdminState>,
    request: &PageRequest,
    visitor: &Visitor,
) -> PageResult<AccessPage> {
    let params = &request.params;
    let (text, who_text) = (params.get("q").to_lowercase(), params.get("who").to_lowercase());
    let mut who = known(&state.config);
    who.retain(|who| who.label.to_lowercase().contains(&who_text));
    let singles = who.iter().filter(|who| who.is_single).count();
    let callers = (who_text.is_empty() && (1..who.len()).contains(&singles)).then_some(singles);
    let is_folded = callers.is_some() && params.get("callers") != "1";
    let columns: Vec<_> = who.iter().filter(|who| !is_folded || !who.is_single).collect();
    let who_total = columns.len();
    let catalog = state.router.catalog();
    let items = catalog.content.items();
    let items: Vec<_> =
        items.filter(|item| item.public_name.to_lowercase().contains(&text)).collect();
    let held = catalog.approvals.iter().flat_map(|rows| rows.iter()).filter(|row| row.is_held());
    let held: Vec<_> = held.filter(|row| row.public_name.to_lowercase().contains(&text)).collect();
    let access = decider(state);
    let columns = &columns[..who_total.min(COLUMNS)];
    let paging = request.paging(items.len() + held.len(), PAGE);
    let listed = items.iter().map(|item| (&*item.public_name, item.prompt(), false));
    let held_back = held.iter().map(|row| (row.public_name.as_str(), row.prompt(), true));
    let mut rows = Vec::new();
    for (name, prompt, is_held) in listed.chain(held_back).skip(paging.start).take(paging.size) {
        if request.is_late() {
            return Err(PageError::late());
        }
        let rights = columns.iter().map(|who| right(access.as_ref(), who, prompt)).collect();
        rows.push(AccessRow { prompt: name.to_owned(), rights, is_held });
    }
    // After the matrix: the comparison itself notes when it is not complete.
    let what_if = params.some("rules").map(|rules| what_if(state, request, rules, &who, &items));
    Ok(AccessPage {
        has_rules: access.is_some(),
        who: columns.iter().map(|who| who.label.clone()).collect(),
        who_total,
        callers,
        rows,
        paging,
        what_if,
        params: params.clone(),
        csrf: visitor.csrf_token(),
    })
}

/// Compares the rules in use with pasted ones.
fn what_if(
    state: &AdminState,
    request: &PageRequest,
    rules: &str,
    who: &[RightsHolder],
    items: &[&ListedItem],
) -> WhatIf {
    let mut what_if = WhatIf::default();
    if rules.len() > MAX_RULES {
        what_if.mistakes = vec![format!(
            "The rules are longer than {} KiB. Put them into a copy of the configuration, and ask \
             `promptgate explain --config COPY CALLER PROMPT`.",
            MAX_RULES >> 10
        )];
        return what_if;
    }
    let others = match Rules::pasted(rules, &state.config) {
        Ok(others) => others.as_ref().map(|others| Decisions::new(&others.rules)),
        Err(error) => {
            what_if.mistakes = error.to_string().lines().map(str::to_owned).collect();
            return what_if;
        }
    };
    what_if.compare(request, (decider(state), others), who, items);
    what_if
}

impl WhatIf {
    /// Notes the rights that differ between the present rules and others.
    fn compare(
        &mut self,
        request: &PageRequest,
        (present, others): (Option<Decisions>, Option<Decisions>),
        who: &[RightsHolder],
        items: &[&ListedItem],
    ) {
        let mut summaries = vec![(0, 0); who.len()];
        let each = items.iter().flat_map(|item| who.iter().zip(0..).map(move |who| (item, who)));
        for (item, (who, index)) in each {
            if request.is_late() {
                self.is_cut = true;
                break;
            }
            let before = right(present.as_ref(), who, item.prompt());
            let after = right(others.as_ref(), who, item.prompt());
            if before.allowed == after.allowed {
                continue;
            }
            let has_more = |one: &Right, other: &Right| {
                one.allowed.iter().any(|method| !other.allowed.contains(method))
            };
            summaries[index].0 += usize::from(has_more(&before, &after));
            summaries[index].1 += usize::from(has_more(&after, &before));
            self.total += 1;
            if self.changes.len() < request.rows {
                let (who, prompt) = (who.label.clone(), item.public_name.to_string());
                self.changes.push(AccessChange { who, prompt, before, after });
            }
        }
        let summaries = who.iter().zip(summaries).filter(|(_, sums)| *sums != (0, 0));
        let summary = |(who, (lost, gained)): (&RightsHolder, _)| ChangeSummary {
            who: who.label.clone(),
            lost,
            gained,
        };
        self.summaries = summaries.map(summary).collect();
        self.summaries.sort_by_key(|summary| Reverse((summary.lost, summary.gained)));
        self.summaries.truncate(request.rows);
    }
}
