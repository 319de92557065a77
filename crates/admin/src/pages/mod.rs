//! The pages of the console: what each shows.

mod access;
mod audit;
mod configuration;
mod connect;
mod definition;
mod known_names;
mod message;
mod overview;
pub(super) mod approvals;
pub(super) mod prompt;
mod prompts;
mod rights;
mod search;
mod skills;
pub(super) mod sentence;
mod traffic;
pub(super) mod trial;
mod upstreams;
mod usage;
mod version;

use std::sync::Arc;

use askama::Template;
use http::StatusCode;

use super::approvals::NotShown;
use super::console::ConsoleSection;
use super::console::cell_labels::with_cell_labels;
use super::request::PageRequest;
use super::routes;
use super::sign_in::Visitor;
use super::state::AdminState;

/// The content of a page.
pub(super) trait Page: Template {
    /// The part of the console that it belongs to.
    const SECTION: ConsoleSection;

    fn title(&self) -> String {
        Self::SECTION.label().to_owned()
    }

    /// The rows as a table for spreadsheets, where the page has such rows.
    fn csv(&self) -> Option<String> {
        None
    }
}

/// A page of any kind.
pub(super) trait AnyPage: Send {
    fn section(&self) -> ConsoleSection;
    fn title(&self) -> String;
    fn html(&self) -> Result<String, askama::Error>;
    fn csv(&self) -> Option<String>;
}

impl<T: Page + Send> AnyPage for T {
    fn section(&self) -> ConsoleSection {
        T::SECTION
    }

    fn title(&self) -> String {
        Page::title(self)
    }

    fn html(&self) -> Result<String, askama::Error> {
        Ok(with_cell_labels(&self.render()?))
    }

    fn csv(&self) -> Option<String> {
        Page::csv(self)
    }
}

/// The reason and status of a page that cannot be made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PageError {
    pub status: StatusCode,
    /// A sentence for people that says what to do next.
    pub message: String,
}

impl From<NotShown> for PageError {
    fn from(why: NotShown) -> Self {
        match why {
            NotShown::Unknown => {
                Self::not_found("prompt with this name that is offered or in the lock file")
            }
            NotShown::Late { upstream, within } => {
                let within = humantime::format_duration(within);
                let message = format!(
                    "Reading texts from {upstream} took longer than {within}. Try again, approve fewer prompts at once, \
                     or raise admin.render_timeout."
                );
                Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
            }
            NotShown::Failed(error) => Self::new(StatusCode::CONFLICT, error.to_string()),
        }
    }
}

impl PageError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(super) fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("There is no {what}."))
    }

    /// The page is not ready when it must be (`admin.render_timeout`).
    pub(super) fn late() -> Self {
        let message = "The page takes longer than admin.render_timeout. Narrow the search, or raise the limit.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }
}

pub(super) type PageResult<T> = Result<T, PageError>;

/// Makes a page for this visitor. `name` is the one in its path.
pub(super) async fn make(
    page: routes::ConsolePage,
    name: &str,
    state: &Arc<AdminState>,
    visitor: &Visitor,
    page_request: &PageRequest,
) -> PageResult<Box<dyn AnyPage>> {
    Ok(match page {
        routes::ConsolePage::Overview => Box::new(overview::overview(state, page_request).await),
        routes::ConsolePage::Search => Box::new(search::search(state, page_request).await?),
        routes::ConsolePage::Prompts => Box::new(prompts::prompts(state, page_request).await?),
        routes::ConsolePage::Prompt(tab) => {
            Box::new(prompt::prompt(state, page_request, visitor, name, tab).await?)
        }
        routes::ConsolePage::Skill(tab) => {
            Box::new(prompt::skill(state, page_request, visitor, name, tab).await?)
        }
        routes::ConsolePage::Upstreams => Box::new(upstreams::upstreams(state)),
        routes::ConsolePage::Upstream => {
            Box::new(upstreams::upstream(state, page_request, name).await?)
        }
        routes::ConsolePage::Access => Box::new(access::access(state, page_request, visitor)?),
        routes::ConsolePage::Approvals if page_request.params.some("chosen").is_some() => {
            Box::new(approvals::several(state, page_request, visitor).await?)
        }
        routes::ConsolePage::Approvals => {
            Box::new(approvals::approvals(state, page_request, visitor))
        }
        routes::ConsolePage::Approval => {
            Box::new(approvals::approval(state, page_request, visitor, name).await?)
        }
        routes::ConsolePage::Usage => Box::new(usage::usage(state, page_request).await?),
        routes::ConsolePage::Audit => Box::new(audit::audit(state, page_request).await?),
        routes::ConsolePage::Record => Box::new(audit::record(state, page_request, name).await?),
        routes::ConsolePage::Configuration => {
            Box::new(configuration::configuration(state, page_request))
        }
        routes::ConsolePage::Connect => Box::new(connect::connect(state, page_request)),
    })
}
