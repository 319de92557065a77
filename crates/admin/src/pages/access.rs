//! Access: the rights of callers and groups to each prompt, and the effect of other rules.

use std::sync::Arc;

use askama::Template;

use super::rights::{Right, RightsHolder, decider, known, right};
use super::{Page, PageError, PageResult};
use crate::console::ConsoleSection;
use crate::console::text::filters;
use crate::request::{PageRequest, Paging, Params};
use crate::sign_in::Visitor;
use crate::state::AdminState;
use ::access::Decisions;
use config::Access as Rules;
use gateway::router::owner::Owner;

/// The matrix of callers and prompts.
#[derive(Template)]
#[template(path = "access.html")]
pub(crate) struct AccessPage {
    has_rules: bool,
    /// The columns.
    who: Vec<String>,
    who_total: usize,
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
struct WhatIf {
    /// Mistakes in the rules, one sentence each; then nothing else is known.
    mistakes: Vec<String>,
    changes: Vec<AccessChange>,
    /// All changes, shown or not.
    total: usize,
    /// Whether all prompts and callers were looked at.
    complete: bool,
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

/// Longest text of rules that is compared, in bytes: it takes a processor to read them.
const MAX_RULES: usize = 64 << 10;

/// Prompts of one page, and columns.
const PAGE: usize = 25;
const COLUMNS: usize = 12;

/// Returns the matrix for the parameters `q` (prompts) and `who` (callers and groups).
///
/// # Errors
/// It cannot be made in time.
pub(crate) fn access(
    state: &Arc<AdminState>,
    request: &PageRequest,
    visitor: &Visitor,
) -> PageResult<AccessPage> {
    let params = &request.params;
    let (text, who_text) = (params.get("q").to_lowercase(), params.get("who").to_lowercase());
    let mut who = known(&state.config);
    who.retain(|who| who.label.to_lowercase().contains(&who_text));
    let who_total = who.len();
    let catalog = state.router.catalog();
    let owners = catalog.content.owners();
    let owners: Vec<_> =
        owners.filter(|owner| owner.public_name.to_lowercase().contains(&text)).collect();
    let held = catalog.approvals.iter().flat_map(|rows| rows.iter()).filter(|row| row.is_held());
    let held: Vec<_> = held.filter(|row| row.public_name.to_lowercase().contains(&text)).collect();
    let access = decider(state);
    let columns = &who[..who.len().min(COLUMNS)];
    let paging = request.paging(owners.len() + held.len(), PAGE);
    let listed = owners.iter().map(|owner| (&*owner.public_name, owner.prompt(), false));
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
    let what_if = params.some("rules").map(|rules| what_if(state, request, rules, &who, &owners));
    who.truncate(COLUMNS);
    Ok(AccessPage {
        has_rules: access.is_some(),
        who: who.into_iter().map(|who| who.label).collect(),
        who_total,
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
    owners: &[&Owner],
) -> WhatIf {
    let mut what_if =
        WhatIf { mistakes: Vec::new(), changes: Vec::new(), total: 0, complete: true };
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
    let present = decider(state);
    for owner in owners {
        for who in who {
            if request.is_late() {
                what_if.complete = false;
                return what_if;
            }
            let before = right(present.as_ref(), who, owner.prompt());
            let after = right(others.as_ref(), who, owner.prompt());
            if before.allowed == after.allowed {
                continue;
            }
            what_if.total += 1;
            if what_if.changes.len() < request.rows {
                let prompt = owner.public_name.to_string();
                what_if.changes.push(AccessChange {
                    who: who.label.clone(),
                    prompt,
                    before,
                    after,
                });
            }
        }
    }
    what_if
}
