//! `[access]`: who may use which prompt. Rules of the file become Cedar policies; a file of Cedar may
//! stand beside them. All are checked against the schema here, so that a slip is a mistake of the
//! configuration and not a surprise later.

use std::str::FromStr;

use cedar_policy::{Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator};

use super::reader::Section;
use super::upstream::Upstream;
use super::views::{all, globs};
use crate::domain::caller::ANONYMOUS;
use crate::domain::glob::Glob;
use crate::domain::method::Method;

/// What policies may speak of. There is no context: neither time nor address decides.
pub const SCHEMA: &str = r#"
entity Group;
entity Upstream;
entity Caller in [Group] = { scopes: Set<String> };
entity Prompt in [Upstream] = { name: String };
action "list", "get", "complete" appliesTo { principal: [Caller], resource: [Prompt] };
"#;

/// The rules, compiled. Nothing is allowed that none of them allows.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    pub policies: PolicySet,
    /// Whether a policy may tell callers of the same groups and scopes apart.
    pub names_callers: bool,
}

/// The name of a method among the actions.
pub(crate) fn action(method: Method) -> &'static str {
    match method {
        Method::List => "list",
        Method::Get => "get",
        Method::Complete => "complete",
    }
}

/// The method of an action's name.
pub(super) fn action_of(name: &str) -> Option<Method> {
    Method::ALL.into_iter().find(|method| action(*method) == name)
}

/// Nothing where there are neither rules nor a file: everything is allowed then. `knows_callers` is
/// whether callers can prove who they are.
pub(super) fn read(
    mut section: Section<'_>,
    upstreams: &[Upstream],
    knows_callers: bool,
) -> Option<Access> {
    let file = section.file("cedar");
    let mut access = Access { policies: PolicySet::new(), names_callers: file.is_some() };
    let rules = section.tables("rules");
    let is_given = file.is_some() || !rules.is_empty();
    for (index, mut table) in rules.into_iter().enumerate() {
        access.names_callers |= table.has("callers");
        let text = rule(&mut table, upstreams, knows_callers);
        let id = PolicyId::new(format!("access.rules.{index}"));
        match Policy::parse(Some(id), text) {
            Ok(policy) => add(&mut access.policies, policy, &table, ""),
            Err(error) => table.mistake("", format!("makes no policy: {error}")),
        }
        table.finish();
    }
    if let Some(path) = file {
        match section.read_file(path.clone()) {
            Ok(text) => cedar(&text, &mut access.policies, &section),
            Err(error) => {
                section.mistake("cedar", format!("cannot read {}: {error}", path.display()));
            }
        }
    }
    section.finish();
    is_given.then_some(access)
}

/// The Cedar text of one rule.
fn rule(table: &mut Section<'_>, upstreams: &[Upstream], knows_callers: bool) -> String {
    let (allow, deny) = (actions(table, "allow"), actions(table, "deny"));
    let (effect, actions) = match (allow, deny) {
        (Some(actions), None) => ("permit", actions),
        (None, Some(actions)) => ("forbid", actions),
        _ => {
            table.mistake("", "needs either allow = [...] or deny = [...]");
            ("forbid", Vec::new())
        }
    };
    let mut who: Vec<_> =
        table.texts("groups").iter().map(|g| format!("principal in Group::{g:?}")).collect();
    who.extend(table.texts("callers").iter().map(|c| format!("principal == Caller::{c:?}")));
    who.extend(table.texts("scopes").iter().map(|s| format!("principal.scopes.contains({s:?})")));
    if who.is_empty() && knows_callers {
        who.push(format!("principal != Caller::{ANONYMOUS:?}"));
    }
    let mut whose = Vec::new();
    for id in table.texts("upstreams") {
        if !upstreams.iter().any(|upstream| upstream.id.as_str() == id) {
            table.mistake("upstreams", format!("there is no upstream {id:?}"));
        }
        whose.push(format!("resource in Upstream::{id:?}"));
    }
    let names = globs(table, "prompts").unwrap_or_else(all).iter().map(like).collect();
    let when: Vec<_> = [who, whose, names]
        .into_iter()
        .filter(|any: &Vec<String>| !any.is_empty())
        .map(|any| format!("({})", any.join(" || ")))
        .collect();
    let actions: Vec<_> = actions.iter().map(|action| format!("Action::{action:?}")).collect();
    format!(
        "{effect} (principal, action in [{}], resource) when {{ {} }};",
        actions.join(", "),
        when.join(" && ")
    )
}

/// Names of methods, if the key is there.
fn actions(table: &mut Section<'_>, key: &'static str) -> Option<Vec<String>> {
    if !table.has(key) {
        return None;
    }
    let actions = table.texts(key);
    let known = Method::ALL.map(action);
    if actions.is_empty() || actions.iter().any(|name| !known.contains(&name.as_str())) {
        table.mistake(key, "must name some of \"list\", \"get\", \"complete\"");
    }
    Some(actions)
}

/// A pattern as Cedar writes it.
fn like(glob: &Glob) -> String {
    let escaped = |piece: &str| piece.replace('\\', "\\\\").replace('"', "\\\"");
    let pieces: Vec<_> = glob.pieces().map(escaped).collect();
    format!("resource.name like \"{}\"", pieces.join("*"))
}

/// Adds the policies of a Cedar text, under their `@id` or their number.
fn cedar(text: &str, policies: &mut PolicySet, section: &Section<'_>) {
    let parsed = match PolicySet::from_str(text) {
        Ok(parsed) => parsed,
        Err(errors) => {
            for error in errors.iter() {
                section.mistake("cedar", error.to_string());
            }
            return;
        }
    };
    for policy in parsed.policies() {
        let name = policy.annotation("id").map_or_else(|| policy.id().to_string(), str::to_owned);
        let id = PolicyId::new(format!("cedar {name}"));
        add(policies, policy.new_id(id), section, "cedar");
    }
}

fn add(policies: &mut PolicySet, policy: Policy, section: &Section<'_>, key: &str) {
    let name = policy.id().to_string();
    let mut one = PolicySet::new();
    for set in [&mut one, policies] {
        if let Err(error) = set.add(policy.clone()) {
            return section.mistake(key, format!("{name}: {error}"));
        }
    }
    let Ok((schema, _)) = Schema::from_cedarschema_str(SCHEMA) else {
        return section.mistake(key, "the schema is not one");
    };
    let checked = Validator::new(schema).validate(&one, ValidationMode::Strict);
    for error in checked.validation_errors() {
        section.mistake(key, error.to_string());
    }
}
