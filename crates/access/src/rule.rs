//! One access rule, and its Cedar text.

use domain::approval::ApprovalState;
use domain::calls::caller::{ANONYMOUS, Caller};
use domain::name::UpstreamId;
use domain::protocol::method::Method;
use domain::text::glob::Glob;
use domain::uri::normal_form::Spelling;

/// An access rule: it allows or denies methods of prompts to callers.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub effect: Effect,
    pub methods: Vec<Method>,
    pub callers: RuleCallers,
    /// If empty, the rule is for the prompts of all upstreams.
    pub upstreams: Vec<UpstreamId>,
    /// Patterns of raw names, of which one must match; if empty, all names match.
    pub prompts: Vec<Glob>,
    /// If empty, the rule is for prompts in all states.
    pub states: Vec<ApprovalState>,
}

/// Denials win over permissions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    Allow,
    Deny,
}

/// The callers that a rule is for. The rule decides nothing about others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RuleCallers {
    Everyone,
    /// Every caller with a credential.
    Authenticated,
    /// Callers that are in one of the groups, have one of the ids, or one of the scopes.
    Named {
        groups: Vec<String>,
        ids: Vec<String>,
        scopes: Vec<String>,
    },
}

impl Rule {
    /// Returns the normal forms of URI patterns that are written otherwise: resources of
    /// `[passthrough]` are named in normal form.
    fn respelled(&self) -> Result<Vec<Glob>, Vec<String>> {
        if !self.methods.contains(&Method::Passthrough) {
            return Ok(Vec::new());
        }
        let mut globs = Vec::new();
        let mut mistakes = Vec::new();
        for pattern in self.prompts.iter().map(Glob::to_string) {
            match Spelling::of_pattern(&pattern) {
                Spelling::Normal => {}
                Spelling::Other(normal) => match Glob::parse(&normal) {
                    Some(glob) => globs.push(glob),
                    None => mistakes.push(format!("{pattern:?} is too long in its normal form")),
                },
                Spelling::Ambiguous => mistakes.push(ambiguous(&pattern)),
            }
        }
        if mistakes.is_empty() { Ok(globs) } else { Err(mistakes) }
    }

    /// Returns the rule as a Cedar policy.
    pub(crate) fn policy_text(&self) -> Result<String, Vec<String>> {
        let effect = match self.effect {
            Effect::Allow => "permit",
            Effect::Deny => "forbid",
        };
        let upstreams = self.upstreams.iter().map(|id| format!("Upstream::{:?}", id.as_str()));
        let upstreams = set(upstreams).map(|upstreams| format!("resource in {upstreams}"));
        let states = set(self.states.iter().map(|state| format!("{:?}", state.as_str())));
        let states = states.map(|states| format!("{states}.contains(resource.state)"));
        let respelled = self.respelled()?;
        let mut names = names(&self.prompts);
        if let Some(respelled) = any_of(&self::names(&respelled)) {
            let rest = action(Method::Passthrough);
            names.push(format!("(action == Action::{rest:?} && {respelled})"));
        }
        let names = any_of(&names);
        let alternatives = [any_of(&self.callers.conditions()), upstreams, names, states];
        let conditions: Vec<_> = alternatives.into_iter().flatten().collect();
        let actions = self.methods.iter().map(|method| format!("Action::{:?}", action(*method)));
        Ok(format!(
            "{effect} (principal, action in [{}], resource) when {{ {} }};",
            actions.collect::<Vec<_>>().join(", "),
            conditions.join(" && ")
        ))
    }
}

impl RuleCallers {
    /// Whether the rule is for this caller.
    pub fn include(&self, caller: &Caller) -> bool {
        let any = |named: &[String], has: &[String]| {
            named.iter().any(|name| has.binary_search(name).is_ok())
        };
        match self {
            Self::Everyone => true,
            Self::Authenticated => !caller.is_anonymous(),
            Self::Named { groups, ids, scopes } => {
                any(groups, caller.groups())
                    || any(scopes, caller.scopes())
                    || ids.iter().any(|id| id == caller.id())
            }
        }
    }

    /// The conditions on the caller in Cedar, of which one must hold.
    fn conditions(&self) -> Vec<String> {
        match self {
            Self::Everyone => Vec::new(),
            Self::Authenticated => vec![format!("principal != Caller::{ANONYMOUS:?}")],
            Self::Named { groups, ids, scopes } => {
                let groups = set(groups.iter().map(|group| format!("Group::{group:?}")));
                let ids = set(ids.iter().map(|id| format!("Caller::{id:?}")));
                let scopes = set(scopes.iter().map(|scope| format!("{scope:?}")));
                let conditions = [
                    groups.map(|groups| format!("principal in {groups}")),
                    ids.map(|ids| format!("{ids}.contains(principal)")),
                    scopes.map(|scopes| format!("principal.scopes.containsAny({scopes})")),
                ];
                conditions.into_iter().flatten().collect()
            }
        }
    }
}

/// The mistake of a URI, or a pattern of URIs, that can name no resource.
pub(crate) fn ambiguous(text: &str) -> String {
    format!(
        "{text:?} can be that of no resource, since servers read it differently: name the resource \
         in its normal form (RFC 3986, section 6.2.2), without dot segments, empty segments, \
         backslashes, encoded slashes, user information or another host of a file"
    )
}

/// Returns the Cedar action of a method.
pub fn action(method: Method) -> &'static str {
    match method {
        Method::List | Method::ListSkills => "list",
        Method::Get
        | Method::GetSkill
        | Method::ReadFile
        | Method::ReadDirectory
        | Method::ReadLink => "get",
        Method::Complete => "complete",
        Method::Passthrough => "passthrough",
    }
}

/// Parses a Cedar action.
pub fn parse_action(name: &str) -> Option<Method> {
    let mut methods = Method::OF_PROMPTS.into_iter().chain([Method::Passthrough]);
    methods.find(|method| action(*method) == name)
}

/// Returns the Cedar conditions on a prompt's name, of which one must hold.
fn names(globs: &[Glob]) -> Vec<String> {
    let escaped = |piece: &str| piece.replace('\\', "\\\\").replace('"', "\\\"");
    let quoted = |glob: &Glob| {
        let pieces: Vec<_> = glob.pieces().map(escaped).collect();
        format!("\"{}\"", pieces.join("*"))
    };
    let (patterns, exact): (Vec<&Glob>, Vec<&Glob>) =
        globs.iter().partition(|glob| glob.stars() > 0);
    let exact = set(exact.into_iter().map(quoted));
    let exact = exact.map(|names| format!("{names}.contains(resource.name)"));
    let patterns = patterns.into_iter().map(|glob| format!("resource.name like {}", quoted(glob)));
    exact.into_iter().chain(patterns).collect()
}

/// Returns a Cedar set; `None` if it would be empty, which has no type.
fn set(items: impl Iterator<Item = String>) -> Option<String> {
    let items: Vec<_> = items.collect();
    (!items.is_empty()).then(|| format!("[{}]", items.join(", ")))
}

/// Returns the condition that one of several conditions holds; `None` without any. Cedar walks
/// conditions by recursion, so their nesting grows only with the logarithm of their number.
fn any_of(conditions: &[String]) -> Option<String> {
    if let [_] | [] = conditions {
        return conditions.first().cloned();
    }
    let (left, right) = conditions.split_at(conditions.len() / 2);
    Some(format!("({} || {})", any_of(left)?, any_of(right)?))
}
