//! The tab of rights: who may use a prompt or skill, and by which rule.

use askama::Template;

use super::Looked;
use crate::console::filters;
use crate::pages::rights::{Right, decider, known, right, right_to_skill};
use domain::prompts::skill::is_skill_uri;

/// The rights of callers and groups to one prompt or skill.
#[derive(Template)]
#[template(path = "prompt_access.html")]
pub(super) struct AccessTab {
    rights: Vec<Right>,
    has_rules: bool,
}

pub(super) fn rights(looked: &Looked<'_>) -> AccessTab {
    let access = decider(looked.state);
    let who = known(&looked.state.config).into_iter().take(looked.request.rows);
    let right = if is_skill_uri(looked.name) { right_to_skill } else { right };
    let rights = who.map(|who| right(access.as_ref(), &who, looked.item.prompt())).collect();
    AccessTab { rights, has_rules: access.is_some() }
}
