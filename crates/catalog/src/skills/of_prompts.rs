//! Prompts as skills (`expose`): a served prompt becomes a skill, too, if it requires no argument
//! and its text is known before a get. Its `SKILL.md` is kept in memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::catalog::{Claims, PromptOfSkill, SkillGroup, SkillSource};
use crate::approval::{DEPTH, PromptApproval};
use crate::reply::{self, ResultOrigin};
use crate::snapshot::{LeftOut, LeftOutBy};
use crate::source::UpstreamSource;
use base::seal;
use domain::approval::{ApprovalState, Mode};
use domain::fault::{Fault, UpstreamFault};
use domain::json::Json;
use domain::json::document::Document;
use domain::name::UpstreamId;
use domain::prompts::call_overlay::{CallOverlay, with_messages};
use domain::prompts::hidden_text::HiddenText;
use domain::prompts::prompt::Prompt;
use domain::prompts::prompt_skill::{PromptSkill, PromptSkillError, skill_name};
use domain::prompts::skill::Skill;
use library::file_contents;

/// A served prompt of an upstream whose prompts are offered as skills.
pub struct ServedPrompt<'a> {
    pub source: &'a UpstreamSource,
    pub prompt: &'a Prompt,
    pub public_name: Arc<str>,
    pub approval: PromptApproval,
}

/// The skills derived from prompts of one upstream, with the approvals of these prompts.
struct PromptSkills<'a> {
    source: &'a UpstreamSource,
    skills: Vec<Arc<Skill>>,
    approvals: Vec<PromptApproval>,
    prompts: Vec<PromptOfSkill>,
}

/// Merges upstream skills with skills derived from prompts; `None` without derived skills. Also
/// returns the prompts that could not become skills. An `offered` skill keeps its URI even if it is
/// withheld. Blocks, because it reads objects.
pub fn merge(
    (own, offered): (&[SkillSource<'_>], &[SkillSource<'_>]),
    prompts: &[ServedPrompt<'_>],
    prefixes: &HashSet<&str>,
) -> (Option<SkillGroup>, Vec<LeftOut>) {
    if prompts.is_empty() {
        return (None, Vec::new());
    }
    let mut of_prompts: BTreeMap<&UpstreamId, PromptSkills<'_>> = BTreeMap::new();
    let mut left_out = Vec::new();
    let claims = Claims::of(&[own, offered].concat(), prefixes);
    // Skip versions: only the base prompt becomes a skill.
    let prompts: Vec<_> = prompts.iter().filter(|served| !served.prompt.is_version()).collect();
    let names = names(&prompts);
    for (served, name) in prompts.iter().zip(names) {
        let skill = name.and_then(|name| {
            served.check_free(&name, &claims, prefixes)?;
            served.skill(&name)
        });
        match skill {
            Ok((skill, prompt)) => {
                let empty = || PromptSkills::new(served.source);
                let of_prompts = of_prompts.entry(&served.source.id).or_insert_with(empty);
                of_prompts.skills.push(Arc::new(skill));
                of_prompts.approvals.push(served.approval.clone());
                of_prompts.prompts.push(prompt);
            }
            Err(why) => left_out.push(served.left_out(&why)),
        }
    }
    if of_prompts.is_empty() {
        return (None, left_out);
    }
    let of_prompts = of_prompts.values().map(PromptSkills::as_source);
    let all: Vec<_> = own.iter().copied().chain(of_prompts).collect();
    (Some(SkillGroup::merge(&all, prefixes).0), left_out)
}

/// Returns the names of the derived skills. If several prompts yield the same skill name, only the
/// prompt with exactly this name gets it.
fn names(prompts: &[&ServedPrompt<'_>]) -> Vec<Result<String, String>> {
    let own = |served: &&ServedPrompt<'_>| {
        if served.prompt.arguments.iter().any(|argument| argument.required) {
            return Err(PromptSkillError::Arguments.to_string());
        }
        skill_name(served.prompt.listed_name()).map_err(|error| error.to_string())
    };
    let names: Vec<_> = prompts.iter().map(own).collect();
    let is_exact = |at: usize, name: &str| prompts[at].prompt.listed_name() == name;
    // For each name: how many prompts yield it, and whether a prompt has exactly this name.
    let mut claims: HashMap<String, (usize, bool)> = HashMap::new();
    for (at, name) in names.iter().enumerate() {
        let Ok(name) = name else { continue };
        let claim = claims.entry(name.clone()).or_default();
        *claim = (claim.0 + 1, claim.1 || is_exact(at, name));
    }
    let chosen = names.into_iter().enumerate().map(|(at, name)| {
        let name = name?;
        match claims[&name] {
            (1, _) => Ok(name),
            (_, true) if is_exact(at, &name) => Ok(name),
            _ => {
                Err(format!("another prompt makes the name {name:?}, too: rename it by an overlay"))
            }
        }
    });
    chosen.collect()
}

impl<'a> PromptSkills<'a> {
    fn new(source: &'a UpstreamSource) -> Self {
        Self { source, skills: Vec::new(), approvals: Vec::new(), prompts: Vec::new() }
    }

    fn as_source(&self) -> SkillSource<'_> {
        let Self { source, skills, approvals, prompts } = self;
        let upstream = &source.id;
        let prefix = &source.prefix;
        SkillSource { upstream, prefix, skills, approvals, prompts }
    }
}

impl ServedPrompt<'_> {
    fn check_free(
        &self,
        name: &str,
        claims: &Claims,
        prefixes: &HashSet<&str>,
    ) -> Result<(), String> {
        let prefix = &self.source.prefix;
        if prefix.is_bare() && prefixes.contains(name) {
            return Err(format!("{name:?} is the prefix of another upstream"));
        }
        if claims.are_near(&Skill::uri_of(prefix, name)) {
            return Err(format!(
                "a skill of an upstream has the name {name:?}, or is inside of it"
            ));
        }
        Ok(())
    }

    /// Makes the skill with this name.
    fn skill(&self, name: &str) -> Result<(Skill, PromptOfSkill), String> {
        let Self { prompt, public_name, .. } = self;
        let result = self.result()?;
        let canonical = prompt.canonical();
        let description = Json::accepted(&canonical).get("description").and_then(Json::as_str);
        let messages = result.json().get("messages").ok_or("it has no messages")?;
        let messages = with_messages(prompt.overlay.as_deref(), messages);
        let digest = |text: &str| seal::sha256_text(text.as_bytes());
        let made = PromptSkill::new(name, &description.unwrap_or_default(), messages, digest);
        let PromptSkill { skill, text } = made.map_err(|error| error.to_string())?;
        let uri = skill.own_file().map(|file| file.uri.clone()).unwrap_or_default();
        let text = Document::parse(file_contents(&uri, text.into_bytes()).into_bytes(), DEPTH);
        let prompt = PromptOfSkill {
            public_name: public_name.clone(),
            raw_name: prompt.name.as_str().into(),
            digest: digest(&canonical).into(),
            version: prompt.version.clone(),
            text: text.map_err(|error| error.to_string())?,
        };
        Ok((skill, prompt))
    }

    /// Returns the result of a get without arguments, checked like a get: the text that the library
    /// has rendered, or else the approved text.
    fn result(&self) -> Result<Document, String> {
        let Self { source, prompt, public_name, approval } = self;
        let is_approved = approval.state == ApprovalState::Approved;
        if source.approvals.mode == Mode::Enforce && !is_approved {
            return Err(format!("its offered text is held back ({})", approval.state.as_str()));
        }
        let adds_arguments = prompt.overlay.as_deref().is_some_and(CallOverlay::adds_arguments);
        let rendered = prompt.result.as_ref().filter(|_| !adds_arguments);
        let text = match rendered {
            Some(text) => text.to_string(),
            None => {
                let approved = approval.approved.as_ref().filter(|_| is_approved);
                let text = approved.and_then(|approved| approved.exact_text());
                text.ok_or(UNKNOWN_TEXT)?.map_err(|error| error.to_string())?
            }
        };
        let result =
            Document::parse(text.into_bytes(), DEPTH).map_err(|error| error.to_string())?;
        let origin = ResultOrigin {
            upstream: source.id.clone(),
            digest: Arc::default(),
            name: public_name.clone(),
            version: None,
            rollout: None,
        };
        let mode = source.prompts_as_skills.unwrap_or(HiddenText::Reject);
        let checked = reply::prompt(result, origin, mode).map_err(|fault| match fault {
            Fault::Upstream(UpstreamFault { kind, .. }) => kind.diagnosis(),
            other => other.to_string(),
        })?;
        Ok(checked.result)
    }

    fn left_out(&self, why: &str) -> LeftOut {
        LeftOut {
            upstream: self.source.id.to_string(),
            raw_name: self.prompt.name.clone(),
            reason: format!("no skill stands for the prompt: {why}"),
            by: LeftOutBy::NoSkill,
        }
    }
}

/// Why no text of a prompt is known.
const UNKNOWN_TEXT: &str = "its text is not known before a get: a library must render it without arguments, or an \
                            approval have its exact text";
