//! Several prompts that wait: a summary of each change, and one decision on all.

use std::sync::Arc;

use askama::Template;
use http::StatusCode;

use super::change::Change;
use crate::approvals::{self, NotShown, Shown};
use crate::console::ConsoleSection;
use crate::console::filters;
use crate::pages::{Page, PageError, PageResult};
use crate::request::PageRequest;
use crate::sign_in::{Role, Visitor};
use crate::state::AdminState;

/// The chosen prompts.
#[derive(Template)]
#[template(path = "approvals_several.html")]
pub(crate) struct SeveralPage {
    rows: Vec<SummaryRow>,
    can_decide: bool,
    csrf: String,
}

/// The change of one prompt in short.
#[derive(Default)]
struct SummaryRow {
    name: String,
    upstream: String,
    /// The entity tag of the shown version.
    tag: String,
    is_first: bool,
    added: usize,
    removed: usize,
    /// The parts that an approval compares.
    class: &'static str,
    /// Why the prompt cannot be decided on together with others.
    alone: Option<String>,
}

impl SeveralPage {
    /// The number of prompts that can be decided on here.
    fn ready(&self) -> usize {
        self.rows.iter().filter(|row| row.alone.is_none()).count()
    }
}

impl Page for SeveralPage {
    const SECTION: ConsoleSection = ConsoleSection::Approvals;

    fn title(&self) -> String {
        "Several approvals".to_owned()
    }
}

/// Prompts that are summarised at once: each is fetched from its upstream.
const SEVERAL: usize = 500;

/// Returns a summary of the prompts that the parameters `chosen` name.
pub(crate) async fn several(
    state: &Arc<AdminState>,
    request: &PageRequest,
    visitor: &Visitor,
) -> PageResult<SeveralPage> {
    if visitor.role < Role::Tester {
        let message = "Texts are shown to testers and approvers.";
        return Err(PageError::new(StatusCode::FORBIDDEN, message));
    }
    let names: Vec<&str> = request.params.all("chosen").collect();
    if names.len() > SEVERAL {
        let message = format!("Choose at most {SEVERAL} prompts.");
        return Err(PageError::new(StatusCode::BAD_REQUEST, message));
    }
    let mut rows = Vec::with_capacity(names.len());
    for name in names {
        rows.push(summary(state, request, name).await?);
    }
    Ok(SeveralPage { rows, can_decide: visitor.role >= Role::Approver, csrf: visitor.csrf_token() })
}

async fn summary(
    state: &Arc<AdminState>,
    request: &PageRequest,
    name: &str,
) -> PageResult<SummaryRow> {
    let Shown { examined, tag } = match approvals::show(state, name, request.until).await {
        Err(NotShown::Failed(why)) => {
            let alone = Some(why.to_string());
            return Ok(SummaryRow { name: name.to_owned(), alone, ..SummaryRow::default() });
        }
        shown => shown?,
    };
    let row = &examined.row;
    let change = Change::of(state, examined.clone(), request.rows).await;
    let alone = if !row.is_waiting() {
        Some("it does not wait".to_owned())
    } else if change.is_cut() {
        Some("its change is too long to be shown whole".to_owned())
    } else if let Some(finding) = examined.enforced_finding() {
        Some(finding.to_owned())
    } else {
        examined.unseen_text().map(|_| "its text is not known".to_owned())
    };
    let (added, removed) = change.counts();
    Ok(SummaryRow {
        name: row.public_name.clone(),
        upstream: row.upstream.to_string(),
        tag,
        is_first: row.approved().is_none(),
        added,
        removed,
        class: examined.offered.as_ref().map_or("", |offered| offered.version.class().as_str()),
        alone,
    })
}
