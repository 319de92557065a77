//! Gets of prompts derived from skills: read `SKILL.md` like any read of that file.

use super::{AskedFile, ServedFile, serve};
use crate::Router;
use crate::admitted::CallContext;
use crate::routed_prompt::{RoutedPrompt, origin};
use catalog::listed_item::ListedSkill;
use catalog::reply::{self, PromptReply, Reply};
use domain::approval::ApprovalState;
use domain::fault::{Fault, UpstreamFaultKind as Kind};
use domain::json::document::Document;
use domain::prompts::skill_prompt::{SkillMessages, TASK};

/// Gets a prompt that is derived from a skill.
pub(crate) async fn get(
    router: &Router,
    routed: &RoutedPrompt<'_>,
    skill: &ListedSkill,
    arguments: Option<&Document>,
    context: CallContext<'_>,
) -> Result<Reply, Fault> {
    let CallContext { channel, deadline, .. } = context;
    let RoutedPrompt { admitted, item, .. } = routed;
    let task = task(arguments)?;
    let ListedSkill { uri, prefix, skill, .. } = skill;
    let file = skill.own_file().ok_or(Fault::Internal)?;
    let asking = AskedFile { item, file, deadline };
    let served = serve(router, admitted, asking, channel).await?;
    let ServedFile { result, is_snapshot } = served;
    let protocol = |why: &str| Fault::upstream(item.upstream.as_str(), Kind::Protocol(why.into()));
    let text = super::file::text(result.json());
    let text =
        text.ok_or_else(|| protocol("SKILL.md is not UTF-8, as the prompt of a skill is"))?;
    let reads_files = admitted.call.client.reads_skills
        && router.lists.views.endpoints.serves_unlisted(
            &admitted.call.endpoint,
            &item.upstream,
            uri,
        );
    let task = task.as_deref().unwrap_or_default();
    let messages = SkillMessages { skill, prefix, text: &text, task, reads_files };
    let result = messages.result().ok_or(Fault::Internal)?;
    // The result is a prompt from here on, and is checked as a prompt.
    let reply = reply::prompt(result, origin(item), admitted.upstream.config().settings.content)?;
    // Its files were checked against the entry, which approvals cover.
    let is_proved = item.approval.state == ApprovalState::Approved;
    Ok(Reply::Prompt(PromptReply { is_snapshot, is_proved, ..reply }))
}

/// Returns the `task` argument of a prompt that is derived from a skill.
fn task(arguments: Option<&Document>) -> Result<Option<String>, Fault> {
    let mut task = None;
    for (key, value) in arguments.into_iter().flat_map(|arguments| arguments.json().members()) {
        if !key.is(TASK) {
            return Err(Fault::invalid_params(format!("the prompt has one argument, `{TASK}`")));
        }
        task = value.as_str().map(|task| task.into_owned());
    }
    Ok(task)
}
