//! Rights of callers to prompts, and the rule that decides on each.

use std::collections::BTreeSet;
use std::fmt;

use crate::state::AdminState;
use access::{Decisions, RuleCallers, action};
use config::Config;
use domain::calls::caller::{ANONYMOUS, Caller};
use domain::calls::rights::PromptRef;
use domain::protocol::method::Method;

/// A caller or group whose rights are shown.
#[derive(Clone, Debug)]
pub(crate) struct RightsHolder {
    /// The id of a caller, or `group NAME`.
    pub label: String,
    pub caller: Caller,
    /// Whether it is one caller among many, rather than a group or the anonymous caller.
    pub is_single: bool,
}

/// The rights of a caller or group to a prompt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Right {
    pub who: String,
    /// The methods that are allowed.
    pub allowed: Vec<&'static str>,
    /// The number of all methods.
    methods: usize,
    /// The rules that decide; empty if no rule does.
    pub by: Vec<DecidingRule>,
}

/// A rule that decides.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct DecidingRule {
    /// As decisions and the audit log name it.
    pub name: String,
    /// The page that shows where it stands.
    pub page: String,
}

impl fmt::Display for DecidingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Right {
    /// The allowed methods as a text.
    pub(super) fn text(&self) -> String {
        match self.allowed.len() {
            0 => "nothing".to_owned(),
            all if all == self.methods => "everything".to_owned(),
            _ => self.allowed.join(", "),
        }
    }

    /// Whether all methods are allowed, or none, so that a mark says it.
    pub(super) fn is_whole(&self) -> bool {
        self.allowed.is_empty() || self.allowed.len() == self.methods
    }

    pub(super) fn class(&self) -> &'static str {
        match self.allowed.len() {
            0 => "bad",
            all if all == self.methods => "good",
            _ => "warn",
        }
    }
}

/// Returns the groups and callers that the configuration names: first the groups, then the
/// anonymous caller where it is admitted, then callers of keys, certificates and rules. Callers of
/// tokens are known to their provider alone; their groups stand for them.
pub(crate) fn known(config: &Config) -> Vec<RightsHolder> {
    let mut callers: Vec<(String, Vec<String>)> = Vec::new();
    for identity in config.auth.named() {
        match callers.iter_mut().find(|(id, _)| *id == identity.id) {
            Some((_, groups)) => groups.extend_from_slice(&identity.groups),
            None => callers.push((identity.id.clone(), identity.groups.clone())),
        }
    }
    let mut groups: BTreeSet<String> =
        callers.iter().flat_map(|(_, groups)| groups.clone()).collect();
    let rules = config.access.iter().flat_map(|access| access.rules.rule_callers());
    for named in rules {
        if let RuleCallers::Named { groups: more, ids, .. } = named {
            groups.extend(more.iter().cloned());
            for id in ids {
                if !callers.iter().any(|(known, _)| known == id) {
                    callers.push((id.clone(), Vec::new()));
                }
            }
        }
    }
    callers.sort();
    // A rule may name the anonymous caller, which has a separate entry below.
    callers.retain(|(id, _)| id != ANONYMOUS);
    let callers = callers.iter().map(|(id, groups)| RightsHolder {
        label: id.clone(),
        caller: Caller::in_groups(id, groups),
        is_single: true,
    });
    let groups = groups.iter().map(|group| RightsHolder {
        label: format!("group {group}"),
        caller: Caller::in_groups("(member of the group)", std::slice::from_ref(group)),
        is_single: false,
    });
    let anonymous = (!config.auth.required).then(|| RightsHolder {
        label: ANONYMOUS.to_owned(),
        caller: Caller::anonymous(),
        is_single: false,
    });
    groups.chain(anonymous).chain(callers).collect()
}

/// Returns the rights of a caller or group to a prompt. Without rules everything is allowed.
pub(super) fn right(
    access: Option<&Decisions>,
    who: &RightsHolder,
    prompt: PromptRef<'_>,
) -> Right {
    right_to(&Method::OF_PROMPTS, access, who, prompt)
}

/// Returns the rights of a caller or group to a skill: listing and getting it.
pub(super) fn right_to_skill(
    access: Option<&Decisions>,
    who: &RightsHolder,
    skill: PromptRef<'_>,
) -> Right {
    right_to(&[Method::List, Method::Get], access, who, skill)
}

fn right_to(
    methods: &[Method],
    access: Option<&Decisions>,
    who: &RightsHolder,
    prompt: PromptRef<'_>,
) -> Right {
    let who_label = who.label.clone();
    let Some(access) = access else {
        let allowed = methods.iter().copied().map(action).collect();
        return Right { who: who_label, allowed, methods: methods.len(), by: Vec::new() };
    };
    let mut allowed = Vec::new();
    let mut by = BTreeSet::new();
    for method in methods.iter().copied() {
        let verdict = access.decide(&who.caller, method, prompt);
        if verdict.is_allowed {
            allowed.push(action(method));
        }
        by.extend(verdict.reasons);
    }
    let by = by.into_iter().map(|name| deciding_rule(access, name)).collect();
    Right { who: who_label, allowed, methods: methods.len(), by }
}

fn deciding_rule(access: &Decisions, name: String) -> DecidingRule {
    let key = match access.rule_number(&name) {
        // The dot keeps `rules.1` from matching `rules.10`.
        Some(number) => format!("access.rules.{number}."),
        None => "access.cedar".to_owned(),
    };
    DecidingRule { name, page: format!("/configuration?q={key}") }
}

/// Returns the rules of a configuration, ready to decide.
pub(super) fn decider(state: &AdminState) -> Option<Decisions> {
    state.config.access.as_ref().map(|access| Decisions::new(&access.rules))
}
