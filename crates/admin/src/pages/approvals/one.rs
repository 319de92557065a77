//! One prompt that may wait: the change, and the form of a decision on it.

use std::sync::Arc;

use askama::Template;

use super::change::{Change, ChangeContent};
use super::inbox::{Inbox, LastDecision};
use super::{ApprovalLine, line};
use crate::approvals::{self, NotShown, Shown};
use crate::console::{ConsoleSection, filters};
use crate::pages::message::ContentView;
use crate::pages::version::MessageChange;
use crate::pages::{Page, PageResult};
use crate::request::PageRequest;
use crate::sign_in::{Role, Visitor};
use crate::state::AdminState;
use ::approvals::words::{DiffLine, LineKind};
use ::approvals::{FoundVariant, OfferedFinding};
use audit::usage::RecentUses;
use catalog::approval::ApprovalRow;
use domain::approval::Decided;

/// One prompt with the difference between its approved and its offered version.
#[derive(Template)]
#[template(path = "approval.html")]
pub(crate) struct ApprovalPage {
    line: ApprovalLine,
    inbox: Inbox,
    /// The decision that led here.
    last: Option<LastDecision>,
    /// The entity tag of the shown version, to which decisions are bound.
    tag: String,
    /// `None` for viewers, who read no texts.
    change: Option<Change>,
    /// The names of the arguments, whose places are marked.
    places: Vec<String>,
    /// Why an approval would cover the definition alone; `None` if texts are compared, too.
    unseen: Option<String>,
    /// Findings of guards in the offered version.
    findings: Vec<OfferedFinding>,
    /// The parts that an approval compares, and the parts that it does not compare.
    covers: [&'static str; 2],
    /// Texts that the upstream returned at another time.
    /// Texts that the upstream has returned at other times.
    seen_otherwise: Vec<String>,
    /// Texts that callers got, and that match no approved text.
    variants: Vec<FoundVariant>,
    is_approved: bool,
    has_previous: bool,
    /// The first approval, where two people must approve.
    first: Option<Decided>,
    /// The callers that used the prompt in the last week.
    uses: RecentUses,
    can_decide: bool,
    csrf: String,
}

impl ApprovalPage {
    /// The page without texts.
    fn new(
        state: &AdminState,
        row: &ApprovalRow,
        request: &PageRequest,
        visitor: &Visitor,
    ) -> Self {
        let approval = row.approval.as_ref();
        let arguments = row.offered.iter().flat_map(|offered| &offered.prompt.arguments);
        Self {
            line: line(row),
            inbox: Inbox::around(state, &row.public_name),
            last: request.params.some("after").and_then(|name| LastDecision::on(state, name)),
            tag: String::new(),
            change: None,
            places: arguments.map(|argument| argument.name.to_string()).collect(),
            unseen: None,
            findings: Vec::new(),
            covers: ["", ""],
            seen_otherwise: Vec::new(),
            variants: row.variants.clone(),
            is_approved: approval.is_some_and(|own| own.approved.is_some()),
            has_previous: approval.is_some_and(|own| !own.previous.is_empty()),
            first: row.half_approved().cloned(),
            uses: RecentUses::default(),
            can_decide: visitor.role >= Role::Approver,
            csrf: visitor.csrf_token(),
        }
    }

    /// Whether the offered version differs from the approved one.
    fn has_news(&self) -> bool {
        self.line.is_waiting || self.change.as_ref().is_none_or(|change| !change.is_empty())
    }

    /// The class of a line of the patch.
    fn class(line: &DiffLine) -> &'static str {
        match line.kind {
            LineKind::Heading | LineKind::Range | LineKind::Note => "head",
            LineKind::Added => "add",
            LineKind::Removed => "remove",
            LineKind::Same => "same",
        }
    }

    fn is_cut(&self) -> bool {
        self.change.as_ref().is_some_and(Change::is_cut)
    }
}

impl Page for ApprovalPage {
    const SECTION: ConsoleSection = ConsoleSection::Approvals;

    fn title(&self) -> String {
        self.line.name.clone()
    }
}

/// Returns one prompt with its change. The offered version is fetched, so the upstream is called.
pub(crate) async fn approval(
    state: &Arc<AdminState>,
    request: &PageRequest,
    visitor: &Visitor,
    name: &str,
) -> PageResult<ApprovalPage> {
    if visitor.role < Role::Tester {
        let row = state.approvals.row(name).ok_or(NotShown::Unknown)?;
        return Ok(ApprovalPage::new(state, &row, request, visitor));
    }
    let Shown { examined, tag } = approvals::show(state, name, request.until).await?;
    let uses = approvals::uses_of(state, name, request.until).await;
    let class = examined.offered.as_ref().map(|offered| offered.version.class());
    let seen = examined.seen_otherwise.iter();
    Ok(ApprovalPage {
        tag,
        change: Some(Change::of(state, examined.clone(), request.rows).await),
        unseen: examined.unseen_text(),
        findings: examined.findings.clone(),
        covers: class.map_or(["", ""], |class| [class.compared(), class.not_compared()]),
        seen_otherwise: seen.map(|seen| seen.message(request.now)).collect(),
        uses,
        ..ApprovalPage::new(state, &examined.row, request, visitor)
    })
}
