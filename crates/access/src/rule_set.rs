//! The rules of a configuration, compiled to Cedar policies and validated, so that an error is a
//! mistake in the configuration rather than a wrong decision at run time.

use std::str::FromStr;

use cedar_policy::{Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator};

use crate::prompt_tests::PromptTests;
use crate::rule::{Rule, RuleCallers, ambiguous};
use domain::uri::normal_form::Spelling;

/// Cedar schema of the policies. There is no context: decisions depend neither on time nor on
/// addresses.
pub const SCHEMA: &str = r#"
entity Group;
entity Upstream;
entity Caller in [Group] = { scopes: Set<String> };
entity Prompt in [Upstream] = { name: String, state: String };
action "list", "get", "complete", "passthrough" appliesTo { principal: [Caller], resource: [Prompt] };
"#;

/// The compiled policies. A call that no policy allows is denied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleSet {
    pub(crate) policies: PolicySet,
    /// The callers of each rule, by the id of its policy. Policies of a file are not included: they
    /// may depend on any attribute.
    pub(crate) rules: Vec<(PolicyId, RuleCallers)>,
}

impl RuleSet {
    /// Adds a rule. Decisions name the rule by `id`, which must not begin with `cedar`.
    ///
    /// # Errors
    /// All mistakes in the rule, as sentences for its author.
    pub fn add_rule(&mut self, id: &str, rule: &Rule) -> Result<(), Vec<String>> {
        let id = PolicyId::new(id);
        let policy = Policy::parse(Some(id.clone()), rule.policy_text()?)
            .map_err(|error| vec![format!("cannot be compiled to a Cedar policy: {error}")])?;
        self.add(policy)?;
        self.rules.push((id, rule.callers.clone()));
        Ok(())
    }

    /// Adds the policies of a Cedar file. Their ids are their `@id` annotations, or else their
    /// positions, after the word `cedar`.
    ///
    /// # Errors
    /// All mistakes in the text, as sentences for its author.
    pub fn add_file(&mut self, text: &str) -> Result<(), Vec<String>> {
        if nesting(text) > MAX_NESTING {
            return Err(vec![format!(
                "a policy may be nested more than {MAX_NESTING} levels deep (operators, clauses, \
                 brackets and accesses are counted); compare with a set, such as \
                 `principal in [Group::\"a\", Group::\"b\"]` or \
                 `[\"a\", \"b\"].contains(resource.name)`, or write several policies"
            )]);
        }
        let parsed = PolicySet::from_str(text)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let mut mistakes = Vec::new();
        for policy in parsed.policies() {
            let name =
                policy.annotation("id").map_or_else(|| policy.id().to_string(), str::to_owned);
            mistakes.extend(misspelled(policy).map(|mistake| format!("{name}: {mistake}")));
            let id = PolicyId::new(format!("cedar {name}"));
            mistakes.extend(self.add(policy.new_id(id)).err().into_iter().flatten());
        }
        if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
    }

    /// Adds the policies of the Cedar file in another set.
    pub fn add_file_of(&mut self, other: &Self) {
        for policy in other.policies_of_file() {
            // Ids are unique: those of rules are keys, those of a file begin with `cedar`.
            let _ = self.policies.add(policy.clone());
        }
    }

    /// Returns how many rules and policies there are.
    pub fn policy_count(&self) -> usize {
        self.policies.num_of_policies()
    }

    /// Whether there are policies of a Cedar file.
    pub fn has_file(&self) -> bool {
        self.policies.num_of_policies() > self.rules.len()
    }

    /// Returns the Cedar text of the policy that a decision names.
    pub fn policy_text(&self, id: &str) -> Option<String> {
        self.policies.policy(&PolicyId::new(id)).map(ToString::to_string)
    }

    /// Returns the position of the rule with this id, from 1; `None` if no rule has it.
    pub fn number(&self, id: &str) -> Option<usize> {
        Some(1 + self.rules.iter().position(|(rule, _)| rule.as_ref() as &str == id)?)
    }

    /// The callers that each rule is for.
    pub fn rule_callers(&self) -> impl Iterator<Item = &RuleCallers> {
        self.rules.iter().map(|(_, callers)| callers)
    }

    pub(crate) fn policies_of_file(&self) -> impl Iterator<Item = &Policy> {
        let is_rule = |id: &PolicyId| self.rules.iter().any(|(rule, _)| rule == id);
        self.policies.policies().filter(move |policy| !is_rule(policy.id()))
    }

    /// Validates a policy and adds it.
    fn add(&mut self, policy: Policy) -> Result<(), Vec<String>> {
        let name = policy.id().to_string();
        let mut single = PolicySet::new();
        for set in [&mut single, &mut self.policies] {
            set.add(policy.clone()).map_err(|error| vec![format!("{name}: {error}")])?;
        }
        let Ok((schema, _)) = Schema::from_cedarschema_str(SCHEMA) else {
            let why = "cannot be validated: the built-in schema is invalid; report it";
            return Err(vec![why.to_owned()]);
        };
        let checked = Validator::new(schema).validate(&single, ValidationMode::Strict);
        let mistakes: Vec<_> = checked.validation_errors().map(ToString::to_string).collect();
        if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
    }
}

/// The mistakes in URIs with which a policy of a file compares: a URI in another than normal form
/// would match no resource of `[passthrough]`.
fn misspelled(policy: &Policy) -> impl Iterator<Item = String> {
    let action = policy.to_json().map(|json| json["action"].clone()).unwrap_or_default();
    let is_for_resources = action["op"] == "All" || action.to_string().contains("\"passthrough\"");
    let tests = is_for_resources.then(|| PromptTests::of([policy]));
    let spellings = tests.map(|tests| tests.spellings()).unwrap_or_default();
    spellings.into_iter().filter_map(|(text, spelling)| match spelling {
        Spelling::Normal => None,
        Spelling::Other(normal) => Some(format!(
            "{text:?} matches no resource, since URIs are compared in their normal form: write \
             {normal:?}, or name the actions of prompts alone"
        )),
        Spelling::Ambiguous => Some(ambiguous(&text)),
    })
}

/// Most levels of a policy in a Cedar file. Cedar walks policies by recursion: beyond some hundreds
/// of levels it denies the request.
const MAX_NESTING: usize = 100;

/// Returns a bound for the levels of the deepest policy of a Cedar text: its operators and clauses,
/// which may be one chain, and its deepest brackets and accesses.
fn nesting(text: &str) -> usize {
    let mut deepest = 0;
    let mut operators = 0;
    let mut open = 0_usize;
    let mut most_open = 0;
    let mut accesses = 0;
    let mut most_accesses = 0;
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
