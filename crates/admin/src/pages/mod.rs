//! The pages and their content. One value is a page of the console and a document of the API.

mod access;
mod audit;
mod configuration;
mod connect;
mod definition;
mod overview;
mod pins;
pub(super) mod prompt;
mod prompts;
mod rights;
mod traffic;
pub(super) mod trial;
mod upstreams;
mod usage;

use std::sync::Arc;

use askama::Template;
use http::StatusCode;
use serde::Serialize;

use super::console::Section;
use super::request::PageRequest;
use super::sign_in::Visitor;
use super::state::State;

/// The content of a page. It is written as HTML for the console, and as JSON for the API.
pub(super) trait Page: Template + Serialize {
    /// The part of the console that it belongs to.
    const SECTION: Section;

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
    fn section(&self) -> Section;
    fn title(&self) -> String;
    fn html(&self) -> Result<String, askama::Error>;
    fn json(&self) -> Result<Vec<u8>, serde_json::Error>;
    fn csv(&self) -> Option<String>;
}

impl<T: Page + Send> AnyPage for T {
    fn section(&self) -> Section {
        T::SECTION
    }

    fn title(&self) -> String {
        Page::title(self)
    }

    fn html(&self) -> Result<String, askama::Error> {
        self.render()
    }

    fn json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    fn csv(&self) -> Option<String> {
        Page::csv(self)
    }
}

/// Why there is no page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PageError {
    pub status: StatusCode,
    /// A sentence for people that says what to do next.
    pub message: String,
    /// Whether no page has this address.
    pub is_unknown_page: bool,
}

impl PageError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), is_unknown_page: false }
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

/// Makes the page at a path, for this visitor.
///
/// # Errors
/// There is no such page, or it cannot be made in time.
pub(super) async fn make(
    state: &Arc<State>,
    visitor: &Visitor,
    request: &PageRequest,
) -> PageResult<Box<dyn AnyPage>> {
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    Ok(match path.as_slice() {
        [] | ["overview"] => Box::new(overview::overview(state, request).await),
        ["prompts"] => Box::new(prompts::prompts(state, request)?),
        ["prompts", name] => Box::new(prompt::prompt(state, request, visitor, name).await?),
        ["upstreams"] => Box::new(upstreams::upstreams(state)),
        ["upstreams", id] => Box::new(upstreams::upstream(state, request, id).await?),
        ["access"] => Box::new(access::access(state, request, visitor)?),
        ["approvals"] => Box::new(pins::approvals(state, request)),
        ["approvals", name] => Box::new(pins::approval(state, request, visitor, name).await?),
        ["usage"] => Box::new(usage::usage(state, request).await?),
        ["audit"] => Box::new(audit::audit(state, request).await?),
        ["audit", "verification"] => Box::new(audit::verification(state, visitor)),
        ["audit", seq] => Box::new(audit::record(state, request, seq).await?),
        ["configuration"] => Box::new(configuration::configuration(state, request)),
        ["connect"] => Box::new(connect::connect(state, request)),
        _ => {
            let error = PageError::not_found("page at this address");
            return Err(PageError { is_unknown_page: true, ..error });
        }
    })
}
