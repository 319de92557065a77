//! `[access]`: which caller may use which prompt. Rules are compiled to Cedar policies; `cedar`
//! names a file with further policies. All policies are validated against the schema here, so that
//! an error is a mistake in the configuration rather than a wrong decision at run time.

use std::path::Path;
use std::str::FromStr;

use cedar_policy::{Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator};

use super::Config;
use super::auth::Auth;
use super::error::ConfigError;
use super::raw::Raw;
use super::reader::{Context, Section};
use super::upstream::Upstream;
use super::views::{all, globs, upstream_ids};
use crate::domain::caller::{ANONYMOUS, Caller};
use crate::domain::glob::Glob;
use crate::domain::method::Method;
use crate::domain::name::UpstreamId;
use crate::domain::pin::State;

/// Cedar schema of the policies. There is no context: decisions depend neither on time nor on
/// addresses.
pub const SCHEMA: &str = r#"
entity Group;
entity Upstream;
entity Caller in [Group] = { scopes: Set<String> };
entity Prompt in [Upstream] = { name: String, state: String };
action "list", "get", "complete" appliesTo { principal: [Caller], resource: [Prompt] };
"#;

/// The compiled policies. What no policy allows is denied.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    pub policies: PolicySet,
    /// The callers of each rule, by the id of its policy. Policies of a file are not here: they may
    /// look at anything.
    pub rules: Vec<(PolicyId, RuleCallers)>,
    /// Whether `cedar = ""` says that there is none.
    pub is_fileless_by_choice: bool,
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

impl Access {
    /// Reads `[[access.rules]]` from a text that has nothing else, as they would be in the file of
    /// `config`. The policies of a Cedar file stay.
    ///
    /// # Errors
    /// All mistakes in the rules.
    pub(crate) fn pasted(text: &str, config: &Config) -> Result<Option<Self>, ConfigError> {
        const PASTED: &str = "pasted";
        let raw = Raw::read(PASTED, text, [])?;
        let context = Context::new(raw.origins, &|_| None, Path::new(""));
        let mut root = Section::root(raw.root, &context);
        let mut section = root.section("access");
        section.reject("cedar", "stays as it is in the file; paste rules only");
        let mut rules = read(section, &config.upstreams, &config.disabled_upstreams, &config.auth);
        root.finish();
        context.mistakes.into_result(PASTED, &[])?;
        let of_file = config.access.iter().flat_map(Self::policies_of_file);
        for policy in of_file {
            let rules = rules.get_or_insert_with(Self::empty);
            // Ids are unique: those of rules are keys, those of a file begin with `cedar`.
            let _ = rules.policies.add(policy.clone());
        }
        Ok(rules)
    }

    fn empty() -> Self {
        let (policies, rules) = (PolicySet::new(), Vec::new());
        Self { policies, rules, is_fileless_by_choice: false }
    }

    /// The policies of the Cedar file.
    pub(crate) fn policies_of_file(&self) -> impl Iterator<Item = &Policy> {
        let is_rule = |id: &PolicyId| self.rules.iter().any(|(rule, _)| rule == id);
        self.policies.policies().filter(move |policy| !is_rule(policy.id()))
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

/// Returns the Cedar action of a method.
pub(crate) fn action(method: Method) -> &'static str {
    match method {
        Method::List => "list",
        Method::Get => "get",
        Method::Complete => "complete",
    }
}

/// Parses a Cedar action.
pub(super) fn parse_action(name: &str) -> Option<Method> {
    Method::ALL.into_iter().find(|method| action(*method) == name)
}

/// The keys of `[access]`.
const KEYS: &str = r#"
cedar = "", such as "policies.cedar": File of Cedar policies, beside the rules.
rules: Rules. With the first rule or policy, everything that none allows is denied.
"#;

/// Returns `None` without rules and without a file of policies: everything is allowed then.
pub(super) fn read(
    mut section: Section<'_>,
    upstreams: &[Upstream],
    disabled: &[UpstreamId],
    auth: &Auth,
) -> Option<Access> {
    section.explain(KEYS);
    let file = section.file("cedar");
    let mut access = Access {
        is_fileless_by_choice: file.is_none() && section.was_read("cedar"),
        ..Access::empty()
    };
    let rules = section.tables("rules");
    let is_given = file.is_some() || !rules.is_empty();
    for (index, mut table) in rules.into_iter().enumerate() {
        table.explain(RULE_KEYS);
        let mistakes = table.mistake_count();
        table.reject_empty(&["groups", "callers", "scopes", "upstreams", "prompts", "states"]);
        let callers = rule_callers(&mut table, auth);
        let text = policy_text(&mut table, upstreams, disabled, &callers);
        if table.mistake_count() > mistakes {
            // What is left of a rule with a mistake would only be a second mistake.
            table.finish();
            continue;
        }
        let id = PolicyId::new(format!("access.rules.{}", index + 1));
        match Policy::parse(Some(id.clone()), text) {
            Ok(policy) => {
                add(&mut access.policies, policy, &table, "");
                access.rules.push((id, callers));
            }
            Err(error) => {
                table.mistake("", format!("cannot be compiled to a Cedar policy: {error}"));
            }
        }
        table.finish();
    }
    if let Some(path) = file {
        match section.read_file(path.clone()) {
            Ok(text) => add_all(&mut access.policies, &text, &section),
            Err(error) => {
                section.mistake("cedar", format!("cannot read {}: {error}", path.display()));
            }
        }
    }
    section.finish();
    is_given.then_some(access)
}

/// The keys of `[[access.rules]]`. A rule has either `allow` or `deny`.
const RULE_KEYS: &str = r#"
allow, such as ["list", "get", "complete"]: Methods that the rule allows, one or more of `list`,
    `get` and `complete`.
deny, such as ["get", "complete"]: Methods that the rule denies. It wins over `allow`.
groups, such as ["engineering"]: Callers that are in one of the groups. Without `groups`, `callers`
    and `scopes`, the rule is for every authenticated caller, or for every caller where no method of
    authentication is configured.
callers, such as ["ci"]: Callers that have one of the ids.
scopes, such as ["prompts"]: Callers that have one of the scopes.
upstreams, such as ["library"]: Upstreams whose prompts the rule is for. Not set: all.
prompts, such as ["draft-*"]: Patterns of raw names, where `*` matches any text. Not set: all.
states, such as ["approved"]: States of the prompt's pin. Not set: all. See docs/releases.md#states.
"#;

/// Returns the Cedar text of one rule.
fn policy_text(
    table: &mut Section<'_>,
    upstreams: &[Upstream],
    disabled: &[UpstreamId],
    callers: &RuleCallers,
) -> String {
    let allow = actions(table, "allow");
    let deny = actions(table, "deny");
    let (effect, actions) = match (allow, deny) {
        (Some(actions), None) => ("permit", actions),
        (None, Some(actions)) => ("forbid", actions),
        _ => {
            table.mistake("", "must have exactly one of allow = [\"…\"] and deny = [\"…\"]");
            ("forbid", Vec::new())
        }
    };
    let upstreams = upstream_ids(table, upstreams, disabled).unwrap_or_default();
    let upstreams = set(upstreams.iter().map(|id| format!("Upstream::{:?}", id.as_str())));
    let upstreams = upstreams.map(|upstreams| format!("resource in {upstreams}"));
    let names = names(&globs(table, "prompts").unwrap_or_else(all));
    let states = State::ALL.map(|state| (state.as_str(), state));
    let states = table.choices("states", &states);
    let states = set(states.into_iter().map(|state| format!("{:?}", state.as_str())));
    let states = states.map(|states| format!("{states}.contains(resource.state)"));
    let alternatives = [any_of(&callers.conditions()), upstreams, any_of(&names), states];
    let conditions: Vec<_> = alternatives.into_iter().flatten().collect();
    let actions: Vec<_> = actions.iter().map(|action| format!("Action::{action:?}")).collect();
    format!(
        "{effect} (principal, action in [{}], resource) when {{ {} }};",
        actions.join(", "),
        conditions.join(" && ")
    )
}

/// Reads the callers of a rule. A rule that names none is for every authenticated caller, or for
/// every caller where no authentication is configured.
fn rule_callers(table: &mut Section<'_>, auth: &Auth) -> RuleCallers {
    let groups = table.texts("groups");
    let ids = table.texts("callers");
    let scopes = table.texts("scopes");
    match (groups.is_empty() && ids.is_empty() && scopes.is_empty(), auth.has_method()) {
        (true, true) => RuleCallers::Authenticated,
        (true, false) => RuleCallers::Everyone,
        (false, _) => RuleCallers::Named { groups, ids, scopes },
    }
}

/// Reads a list of Cedar actions; `None` if the key is not set.
fn actions(table: &mut Section<'_>, key: &'static str) -> Option<Vec<String>> {
    let actions = table.texts(key);
    if !table.was_read(key) {
        return None;
    }
    let known = Method::ALL.map(action);
    if actions.is_empty() || actions.iter().any(|name| !known.contains(&name.as_str())) {
        table.mistake(key, "must list one or more of \"list\", \"get\", \"complete\"");
    }
    Some(actions)
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

/// Returns the condition that one of several holds; `None` without any. Cedar walks conditions by
/// recursion, so their nesting grows with the logarithm of their number only.
fn any_of(conditions: &[String]) -> Option<String> {
    if let [_] | [] = conditions {
        return conditions.first().cloned();
    }
    let (left, right) = conditions.split_at(conditions.len() / 2);
    Some(format!("({} || {})", any_of(left)?, any_of(right)?))
}

/// Adds the policies of a Cedar file. Their ids are their `@id` annotations, or else their
/// positions.
fn add_all(policies: &mut PolicySet, text: &str, section: &Section<'_>) {
    if nesting(text) > MAX_NESTING {
        let message = format!(
            "a policy may be nested more than {MAX_NESTING} levels deep (operators, clauses, brackets and accesses are \
             counted); compare with a set, such as `principal in [Group::\"a\", \
             Group::\"b\"]` or `[\"a\", \"b\"].contains(resource.name)`, or write several policies"
        );
        return section.mistake("cedar", message);
    }
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

/// Most levels of a policy in a Cedar file. Cedar walks policies by recursion: beyond some hundreds
/// it denies what it cannot walk.
const MAX_NESTING: usize = 100;

/// Returns a bound for the levels of the deepest policy of a Cedar text: its operators and clauses,
/// which may be one chain, and its deepest brackets and accesses.
fn nesting(text: &str) -> usize {
    let (mut deepest, mut operators) = (0, 0);
    let (mut open, mut most_open, mut accesses, mut most_accesses) = (0_usize, 0, 0, 0);
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let length = match next {
            '"' => quoted(rest),
            '/' if rest.starts_with("//") => rest.find(['\n', '\r']).unwrap_or(rest.len()),
            _ if word > 0 => {
                operators += match &rest[..word] {
                    "if" | "when" => 1,
                    // The negation of its condition.
                    "unless" => 2,
                    _ => 0,
                };
                word
            }
            '!' if rest.starts_with("!=") => 2,
            _ if ["||", "&&"].iter().any(|operator| rest.starts_with(operator)) => {
                (operators, accesses) = (operators + 1, 0);
                2
            }
            _ => next.len_utf8(),
        };
        match next {
            '+' | '-' | '*' => operators += 1,
            '!' if length == 1 => operators += 1,
            '.' => accesses += 1,
            ',' => accesses = 0,
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            ';' => (operators, most_open, accesses, most_accesses) = (0, 0, 0, 0),
            _ => {}
        }
        (most_open, most_accesses) = (most_open.max(open), most_accesses.max(accesses));
        deepest = deepest.max(operators + most_open + most_accesses);
        rest = &rest[length..];
    }
    deepest
}

/// Returns the length of the string literal with which a Cedar text begins, with its quotes.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text[1..].find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 2)
}

/// Validates a policy and adds it.
fn add(policies: &mut PolicySet, policy: Policy, section: &Section<'_>, key: &str) {
    let name = policy.id().to_string();
    let mut single = PolicySet::new();
    for set in [&mut single, policies] {
        if let Err(error) = set.add(policy.clone()) {
            return section.mistake(key, format!("{name}: {error}"));
        }
    }
    let Ok((schema, _)) = Schema::from_cedarschema_str(SCHEMA) else {
        return section
            .mistake(key, "cannot be validated: the built-in schema is invalid; report it");
    };
    let checked = Validator::new(schema).validate(&single, ValidationMode::Strict);
    for error in checked.validation_errors() {
        section.mistake(key, error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_nested_is_counted_for_each_policy() {
        for (text, levels) in [
            ("", 0),
            ("permit (principal, action, resource);", 1),
            ("permit (principal, action, resource) when { a || b && !(c.d == 1) };", 7),
            ("permit (principal, action, resource) when { a != b } unless { c };", 4),
            (
                "// if || && (\npermit (principal, action, resource) when { \"if ( || \\\" && \" == a_if };",
                2,
            ),
            ("// a comment\rpermit (principal, action, resource) when { a || b };", 3),
            (
                "@id(\"a;b\") permit (principal, action, resource) when { if a then b.c.d else -1 };",
                6,
            ),
            ("\"never closed || ", 0),
        ] {
            assert_eq!(nesting(text), levels, "{text}");
        }
        let many = "permit (principal, action, resource) when { a || b };".repeat(10);
        assert_eq!(nesting(&many), 3);
    }
}
