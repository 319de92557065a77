//! The tab of trials: a form for the arguments, and the result beside it.

use askama::Template;

use super::Looked;
use super::uses::SEARCH;
use crate::console::filters;
use crate::pages::definition::ArgumentRow;
use crate::pages::message::ContentView;
use crate::pages::rights::known;
use crate::pages::trial::Trial;
use crate::request::Params;
use crate::sign_in::Role;
use audit::search::{Find, LogEntry};

/// The form in which a visitor tries a prompt.
#[derive(Template)]
#[template(path = "prompt_try.html")]
pub(super) struct TryTab {
    name: String,
    arguments: Vec<ArgumentRow>,
    /// Whether the visitor may try prompts.
    may_try: bool,
    /// Whether the visitor may try the offered version, which waits for approval.
    may_try_offered: bool,
    is_served: bool,
    csrf: String,
    /// Callers and groups whose rights can be chosen.
    others: Vec<String>,
    /// The values that were sent.
    values: Params,
    trial: Option<Trial>,
    /// The record of the trial, if it is in the log already.
    record: Option<LogEntry>,
}

/// A result has the values of arguments in their places.
const NO_PLACES: [String; 0] = [];

impl TryTab {
    fn value(&self, argument: &str) -> &str {
        let mut values = self.values.with_prefix("arg.");
        values.find(|(name, _)| *name == argument).map(|(_, value)| value).unwrap_or_default()
    }
}

/// Returns the form, with the outcome of a trial.
pub(super) async fn form(looked: &Looked<'_>, trial: Option<Trial>) -> TryTab {
    let Looked { state, request, visitor, name, .. } = *looked;
    let others = if state.admin.try_as {
        known(&state.config).into_iter().map(|who| who.label).collect()
    } else {
        Vec::new()
    };
    let record = match &trial {
        Some(trial) => {
            let find = Find {
                prompt: Some(name.to_owned()),
                caller: Some(trial.caller.clone()),
                from: Some(trial.started_at),
                ..Find::default()
            };
            state.latest(find, 1, request.within(SEARCH)).await.pop()
        }
        None => None,
    };
    TryTab {
        name: name.to_owned(),
        arguments: looked.definition.arguments.clone(),
        may_try: visitor.role >= Role::Tester,
        may_try_offered: visitor.role >= Role::Approver && looked.is_waiting(),
        is_served: looked.is_served,
        csrf: visitor.csrf_token(),
        others,
        values: request.params.clone(),
        trial,
        record,
    }
}
