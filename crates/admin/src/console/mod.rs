//! The console: pages for people, made on the server. Every page works without the script.

pub(super) mod asset;
pub(super) mod cell_labels;
pub(super) mod filters;
mod frame;
pub(super) mod plot;
mod prompt_tab;
pub(super) mod prompt_text;
pub(super) mod text;

pub(super) use frame::{ConsoleFrame, ConsoleSection, ErrorPage, LoginPage, SignedInPage};
pub(super) use prompt_tab::{PromptTab, page_of};
