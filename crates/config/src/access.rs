//! `[access]`: which caller may use which prompt. Rules are compiled to Cedar policies; `cedar`
//! names a file with further policies. All policies are validated against the schema here, so that
//! an error is a mistake in the configuration rather than a wrong decision at run time.

use std::path::Path;

use ::access::{Effect, Rule, RuleCallers, RuleSet, parse_action};

use super::Config;
use super::auth::Auth;
use super::error::ConfigError;
use super::reader::raw::Raw;
use super::reader::{Context, Section};
use super::server::views::{all, globs, upstream_ids};
use super::upstream::UpstreamSettings;
use domain::approval::ApprovalState;
use domain::calls::rights::NO_RULE;
use domain::name::UpstreamId;
use domain::protocol::method::Method;

/// The compiled rules and policies. A call that no rule or policy allows is denied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Access {
    pub rules: RuleSet,
    /// The rules in the order of the file, as they were written.
    pub written: Vec<Rule>,
    /// Whether `cedar = ""` explicitly disables the file of policies.
    pub is_fileless_by_choice: bool,
}

impl Access {
    /// Reads `[[access.rules]]` from a text without other tables, as part of the file of `config`.
    /// The policies of a Cedar file stay.
    ///
    /// # Errors
    /// All mistakes in the rules.
    pub fn pasted(text: &str, config: &Config) -> Result<Option<Self>, ConfigError> {
        const PASTED: &str = "pasted";
        let raw = Raw::read(PASTED, text, [])?;
        let context = Context::new(raw.origins, &|_| None, Path::new(""));
        let mut root = Section::root(raw.root, &context);
        let mut section = root.section("access");
        section.reject("cedar", "stays as it is in the file; paste rules only");
        let mut rules = read(section, &config.upstreams, &config.disabled_upstreams, &config.auth);
        root.finish();
        context.mistakes.into_result(PASTED, &[])?;
        for access in config.access.iter().filter(|access| access.rules.has_file()) {
            rules.get_or_insert_default().rules.add_file_of(&access.rules);
        }
        Ok(rules)
    }
}

/// The keys of `[access]`.
const KEYS: &str = r#"
cedar = "", such as "policies.cedar": File of Cedar policies, beside the rules.
rules: Rules. With the first rule or policy, everything that none allows is denied.
"#;

/// Returns `None` without rules and without a file of policies: everything is allowed then.
pub(super) fn read(
    mut section: Section<'_>,
    upstreams: &[UpstreamSettings],
    disabled: &[UpstreamId],
    auth: &Auth,
) -> Option<Access> {
    section.explain(KEYS);
    let file = section.file("cedar");
    let mut access = Access {
        is_fileless_by_choice: file.is_none() && section.was_read("cedar"),
        ..Access::default()
    };
    let rules = section.tables("rules");
    let is_given = file.is_some() || !rules.is_empty();
    for (index, mut table) in rules.into_iter().enumerate() {
        let mistakes = table.mistake_count();
        table.reject_empty(&["groups", "callers", "scopes", "upstreams", "prompts", "states"]);
        let name = rule_name(&mut table, &access.rules);
        let rule = read_rule(&mut table, upstreams, disabled, auth);
        // The rest of a rule with a mistake would only be a second mistake.
        if table.mistake_count() == mistakes {
            let name = name.unwrap_or_else(|| format!("access.rules.{}", index + 1));
            let added = access.rules.add_rule(&name, &rule);
            for mistake in added.err().into_iter().flatten() {
                table.mistake("", mistake);
            }
            access.written.push(rule);
        }
        table.finish();
    }
    if let Some(path) = file {
        match section.read_file(path.clone()) {
            Ok(text) => {
                for mistake in access.rules.add_file(&text).err().into_iter().flatten() {
                    section.mistake("cedar", mistake);
                }
            }
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
name, such as "support only": Name that decisions, the audit log and the console show, with the same
    characters as that of a limit. Not set: `access.rules.` and the position.
allow, such as ["list", "get", "complete"]: Methods that the rule allows, one or more of `list`,
    `get`, `complete`, and `passthrough` for those of the upstream of `[passthrough]`.
deny, such as ["get", "complete"]: Methods that the rule denies. It wins over `allow`.
groups, such as ["engineering"]: Callers that are in one of the groups. Without `groups`, `callers`
    and `scopes`, the rule is for every authenticated caller, or for every caller where no method of
    authentication is configured.
callers, such as ["ci"]: Callers that have one of the ids.
scopes, such as ["prompts"]: Callers that have one of the scopes.
upstreams, such as ["library"]: Upstreams whose prompts the rule is for. Not set: all.
prompts, such as ["draft-*"]: Patterns of raw names, and of the paths of skills, where `*` matches
    any text. Of `[passthrough]`: names of tools, URIs of resources, or other methods. Not set: all.
states, such as ["approved"]: States of approval. Not set: all. See docs/approvals.md#states.
"#;

/// Reads the name of a rule: unique, and different from the other reasons of decisions.
fn rule_name(table: &mut Section<'_>, earlier: &RuleSet) -> Option<String> {
    let name = table.name()?;
    if name == NO_RULE || ["access.rules.", "cedar "].iter().any(|begin| name.starts_with(begin)) {
        table.mistake(
            "name",
            "must not be \"none\", nor begin with \"access.rules.\" or \"cedar \"",
        );
        return None;
    }
    if earlier.number(&name).is_some() {
        table.mistake("name", "another rule already has this name; set another one");
        return None;
    }
    Some(name)
}

fn read_rule(
    table: &mut Section<'_>,
    upstreams: &[UpstreamSettings],
    disabled: &[UpstreamId],
    auth: &Auth,
) -> Rule {
    table.explain(RULE_KEYS);
    let callers = rule_callers(table, auth);
    let (effect, methods) = match (methods(table, "allow"), methods(table, "deny")) {
        (Some(methods), None) => (Effect::Allow, methods),
        (None, Some(methods)) => (Effect::Deny, methods),
        _ => {
            table.mistake("", "must have exactly one of allow = [\"…\"] and deny = [\"…\"]");
            (Effect::Deny, Vec::new())
        }
    };
    let upstreams = upstream_ids(table, upstreams, disabled).unwrap_or_default();
    let prompts = globs(table, "prompts").unwrap_or_else(all);
    let states = ApprovalState::ALL.map(|state| (state.as_str(), state));
    let states = table.choices("states", &states);
    Rule { effect, methods, callers, upstreams, prompts, states }
}

/// Reads the callers of a rule. A rule without callers applies to every authenticated caller, or to
/// every caller if no authentication is configured.
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

/// Reads a list of methods by their Cedar actions; `None` if the key is not set.
fn methods(table: &mut Section<'_>, key: &'static str) -> Option<Vec<Method>> {
    let names = table.texts(key);
    if !table.was_read(key) {
        return None;
    }
    let methods: Option<Vec<_>> = names.iter().map(|name| parse_action(name)).collect();
    let methods = methods.filter(|methods| !methods.is_empty());
    if methods.is_none() {
        table.mistake(
            key,
            "must list one or more of \"list\", \"get\", \"complete\", \"passthrough\"",
        );
    }
    Some(methods.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use ::access::Decisions;
    use domain::calls::caller::Caller;
    use domain::calls::rights::{PromptRef, Rights};

    const UPSTREAM: &str = "[upstreams.crm]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/\"\n";
    const RULE: &str = "[[access.rules]]\nallow = [\"get\"]\nstates = [\"approved\"]\n";

    fn read(text: &str) -> Result<Decisions, String> {
        let toml = format!("{UPSTREAM}{text}");
        let config = Config::parse("g", &toml, Path::new(""), &[]).map_err(|e| e.to_string())?;
        Ok(Decisions::new(&config.access.unwrap().rules))
    }

    #[test]
    fn a_rule_is_for_the_states_that_it_lists() {
        let access = read(RULE).unwrap();
        for state in ApprovalState::ALL {
            let prompt = PromptRef { upstream: "crm", raw_name: "p", state };
            let is_allowed = access.allows(&Caller::anonymous(), Method::Get, prompt);
            assert_eq!(is_allowed, state == ApprovalState::Approved, "{state:?}");
        }
        let wrong = read(&RULE.replace("approved", "unknown")).err().unwrap();
        assert!(wrong.contains("access.rules.1.states: \"unknown\" is not one of"), "{wrong}");
    }

    #[test]
    fn a_rule_has_the_name_that_decisions_show_and_no_two_have_the_same() {
        let named = |name: &str| format!("{RULE}name = {name:?}\n");
        let crm = PromptRef { upstream: "crm", raw_name: "p", state: ApprovalState::Approved };
        let access = read(&(named("sales-only") + RULE)).unwrap();
        let verdict = access.decide(&Caller::anonymous(), Method::Get, crm);
        assert_eq!(verdict.reasons, ["access.rules.2", "sales-only"]);
        let long = "x".repeat(65);
        for wrong in ["", " a", "a\nb", "a,b", "a\"b", &long] {
            let error = read(&named(wrong)).err().expect(wrong);
            assert!(error.contains("access.rules.1.name: must be 1 to 64 letters"), "{error}");
            let limit = read(&format!("[[limits]]\nname = {wrong:?}\nrate = \"1/s\"\n"));
            assert!(
                limit
                    .err()
                    .is_some_and(|error| error.contains("limits.1.name: must be 1 to 64 letters"))
            );
        }
        for taken in ["none", "access.rules.2", "cedar x"] {
            let error = read(&named(taken)).err().expect(taken);
            assert!(error.contains("access.rules.1.name: must not be"), "{error}");
        }
        assert!(read(&named("sales (gets: 5/m) écrit")).is_ok());
        let twice = read(&(named("one") + &named("one"))).err().unwrap();
        assert!(twice.contains("access.rules.2.name: another rule already has"), "{twice}");
    }

    #[test]
    fn a_rule_without_callers_is_for_those_who_are_known_where_callers_are_authenticated() {
        let key = format!("[[auth.api_keys]]\nid = \"ci\"\nhash = \"sha256:{}\"\n", "0".repeat(64));
        for (auth, anonymous_may) in [("", true), (key.as_str(), false)] {
            let access = read(&format!("{auth}[[access.rules]]\nallow = [\"get\"]\n")).unwrap();
            let prompt =
                PromptRef { upstream: "crm", raw_name: "p", state: ApprovalState::Unchecked };
            let allows = |caller: &Caller| access.allows(caller, Method::Get, prompt);
            assert!(allows(&Caller::new("ci")));
            assert_eq!(allows(&Caller::anonymous()), anonymous_may);
        }
    }

    #[test]
    fn a_rule_on_uris_means_their_normal_form_or_is_a_mistake() {
        let uri =
            |raw_name| PromptRef { upstream: "crm", raw_name, state: ApprovalState::Unchecked };
        let everyone = Caller::anonymous();
        for (method, normal) in [("passthrough", true), ("get", false)] {
            let rule =
                format!("[[access.rules]]\nallow = [{method:?}]\nprompts = [\"FILE:///X*\"]\n");
            let access = read(&rule).unwrap();
            let method = parse_action(method).unwrap();
            assert_eq!(access.allows(&everyone, method, uri("file:///Xy")), normal);
            assert!(access.allows(&everyone, method, uri("FILE:///Xy")));
            assert!(!access.allows(&everyone, method, uri("file:///x")));
        }
        let mixed =
            "[[access.rules]]\nallow = [\"get\", \"passthrough\"]\nprompts = [\"Team:*\"]\n";
        let access = read(mixed).unwrap();
        assert!(!access.allows(&everyone, Method::Get, uri("team:x")), "another prompt");
        assert!(access.allows(&everyone, Method::Passthrough, uri("team:x")));
        let dots = "[[access.rules]]\ndeny = [\"passthrough\"]\nprompts = [\"file:///a/../b\"]\n";
        let mistake = read(dots).err().unwrap();
        assert!(
            mistake.contains("access.rules.1: \"file:///a/../b\" can be that of no"),
            "{mistake}"
        );
        assert!(read(&dots.replace("passthrough", "get")).is_ok(), "a prompt");
        let folder = tempfile::tempdir().unwrap();
        let toml = format!("{UPSTREAM}[access]\ncedar = \"p.cedar\"\n");
        for (policy, mistake) in [
            (
                "forbid (principal, action, resource) when { resource.name like \"FILE:///x*\" };",
                true,
            ),
            (
                "permit (principal, action == Action::\"passthrough\", resource == Prompt::\"crm/A:1\");",
                true,
            ),
            (
                "forbid (principal, action, resource) when { resource.name like \"file:///x*\" };",
                false,
            ),
            (
                "permit (principal, action == Action::\"get\", resource == Prompt::\"crm/A:1\");",
                false,
            ),
        ] {
            std::fs::write(folder.path().join("p.cedar"), policy).unwrap();
            let read = Config::parse("g", &toml, folder.path(), &[]).map_err(|e| e.to_string());
            let says = |error: &String| error.contains("access.cedar: policy0: ");
            assert_eq!(read.as_ref().err().is_some_and(says), mistake, "{policy}: {read:?}");
        }
    }

    #[test]
    fn mistakes_in_a_file_of_policies_are_those_of_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let deep = format!("permit (principal, action, resource) when {{ {} }};", "!".repeat(100));
        std::fs::write(folder.path().join("p.cedar"), deep).unwrap();
        let toml = format!("{UPSTREAM}[access]\ncedar = \"p.cedar\"\n");
        let error = Config::parse("g", &toml, folder.path(), &[]).unwrap_err().to_string();
        assert!(error.contains("access.cedar: a policy may be nested more than 100"), "{error}");
    }
}
