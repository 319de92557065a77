//! The tab of rights: who may use a prompt, and by which rule.

use askama::Template;

use super::Looked;
use crate::console::filters;
use crate::pages::rights::{Right, decider, known, right};

/// The rights of callers and groups to one prompt.
#[derive(Template)]
#[template(path = "prompt_access.html")]
pub(super) struct AccessTab {
    rights: Vec<Right>,
    has_rules: bool,
}

pub(super) fn rights(looked: &Looked<'_>) -> AccessTab {
    let access = decider(looked.state);
    let who = known(&looked.state.config).into_iter().take(looked.request.rows);
    let rights = who.map(|who| right(access.as_ref(), &who, looked.owner.prompt())).collect();
    AccessTab { rights, has_rules: access.is_some() }
}
