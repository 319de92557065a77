//! The comparisons of policies with a prompt: they compare its upstream and its name with texts
//! that they contain. Prompts for which all these comparisons give the same are decided alike.

use cedar_policy::Policy;
use serde_json::Value;

use domain::approval::ApprovalState;
use domain::calls::rights::PromptRef;
use domain::text::glob::Glob;
use domain::uri::normal_form::Spelling;

/// The comparisons that a set of policies makes.
#[derive(Debug, Default)]
pub(super) struct PromptTests {
    /// The upstreams that policies name, sorted.
    upstreams: Vec<String>,
    /// The names with which policies compare that of the prompt, sorted.
    names: Vec<String>,
    tests: Vec<PromptTest>,
    /// A policy uses the prompt in a way that is no comparison with a text of its own.
    sees_all: bool,
}

#[derive(Debug, Eq, PartialEq)]
enum PromptTest {
    /// `resource.name like "…"`
    Like(Glob),
    /// `resource == Prompt::"…"`
    Prompt(String),
    /// `resource.state == "…"`
    State(String),
}

/// Prompts that are decided alike, for one method.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) enum PromptClass {
    /// The positions of the upstream and of the name among those that policies name, and one bit
    /// for each other test.
    Tested { upstream: Option<usize>, name: Option<usize>, bits: Box<[u64]> },
    /// One prompt alone.
    Prompt { upstream: Box<str>, raw_name: Box<str>, state: ApprovalState },
}

impl PromptTests {
    /// Reads the comparisons from policies.
    pub(super) fn of<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Self {
        let mut tests = Self::default();
        for policy in policies {
            // A policy without JSON form may look at anything.
            let is_understood = policy.to_json().is_ok_and(|json| tests.read_policy(&json));
            tests.sees_all |= !is_understood;
        }
        for named in [&mut tests.upstreams, &mut tests.names] {
            named.sort_unstable();
            named.dedup();
        }
        tests
    }

    /// The names, and patterns of names, with which policies compare, and how they spell URIs.
    pub(super) fn spellings(&self) -> Vec<(String, Spelling)> {
        let of_name = |name: &str| (name.to_owned(), Spelling::of_name(name));
        let of_test = |test: &PromptTest| match test {
            PromptTest::Like(glob) => {
                Some((glob.to_string(), Spelling::of_pattern(&glob.to_string())))
            }
            PromptTest::Prompt(id) => id.split_once('/').map(|(_, name)| of_name(name)),
            PromptTest::State(_) => None,
        };
        let names = self.names.iter().map(|name| of_name(name));
        names.chain(self.tests.iter().filter_map(of_test)).collect()
    }

    /// Whether two prompts of one upstream can be decided differently.
    pub(super) fn tell_prompts_apart(&self) -> bool {
        self.sees_all || !self.tests.is_empty() || !self.names.is_empty()
    }

    /// The class of a prompt.
    pub(super) fn class(&self, prompt: PromptRef<'_>) -> PromptClass {
        let PromptRef { upstream, raw_name, state } = prompt;
        if self.sees_all {
            let (upstream, raw_name) = (upstream.into(), raw_name.into());
            return PromptClass::Prompt { upstream, raw_name, state };
        }
        let mut bits = vec![0; self.tests.len().div_ceil(64)];
        for (at, test) in self.tests.iter().enumerate() {
            bits[at / 64] |= u64::from(test.holds(prompt)) << (at % 64);
        }
        let position = |named: &[String], text: &str| {
            named.binary_search_by(|named| named.as_str().cmp(text)).ok()
        };
        PromptClass::Tested {
            upstream: position(&self.upstreams, upstream),
            name: position(&self.names, raw_name),
            bits: bits.into(),
        }
    }

    /// Reads a policy in its JSON form (Cedar, JSON policy format); false if it uses the prompt in
    /// another way.
    fn read_policy(&mut self, policy: &Value) -> bool {
        let scope = &policy["resource"];
        let entities = [&scope["entity"], &scope["in"]["entity"]];
        let is_scope_understood =
            entities.into_iter().all(|entity| entity.is_null() || self.read_entity(entity));
        let conditions = policy["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        is_scope_understood
            && scope["slot"].is_null()
            && conditions.iter().all(|condition| self.read(&condition["body"]))
    }

    fn read(&mut self, expression: &Value) -> bool {
        match expression {
            Value::Object(members) => members.iter().all(|(operator, operands)| {
                let (left, right) = (&operands["left"], &operands["right"]);
                match operator.as_str() {
                    "Var" => operands != "resource",
                    "Value" => true,
                    "like" if is_name(left) => self.read_pattern(&operands["pattern"]),
                    "==" | "!=" if is_name(left) => self.read_text(right),
                    "==" | "!=" if is_name(right) => self.read_text(left),
                    "==" | "!=" if is_state(left) => self.read_state(right),
                    "==" | "!=" if is_state(right) => self.read_state(left),
                    "==" | "!=" | "in" if is_prompt(left) => self.read_entities(right),
                    "==" | "!=" if is_prompt(right) => self.read_entities(left),
                    // The schema has one kind of prompt, which always has a name and a state.
                    "is" | "has" if is_prompt(left) => operands["in"].is_null(),
                    "contains" if is_name(right) => {
                        let texts = left["Set"].as_array();
                        texts.is_some_and(|texts| texts.iter().all(|text| self.read_text(text)))
                    }
                    "contains" if is_state(right) => {
                        let texts = left["Set"].as_array();
                        texts.is_some_and(|texts| texts.iter().all(|text| self.read_state(text)))
                    }
                    _ => self.read(operands),
                }
            }),
            Value::Array(parts) => parts.iter().all(|part| self.read(part)),
            _ => true,
        }
    }

    fn read_pattern(&mut self, pattern: &Value) -> bool {
        let pieces = pattern.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut text = String::new();
        for piece in pieces {
            match piece["Literal"].as_str() {
                // A glob has no escape for a star that is meant literally.
                Some(literal) if literal.contains('*') => return false,
                Some(literal) => text.push_str(literal),
                None => text.push('*'),
            }
        }
        let glob = Glob::parse(&text);
        glob.is_some_and(|glob| self.add(PromptTest::Like(glob)))
    }

    fn read_text(&mut self, text: &Value) -> bool {
        let text = text["Value"].as_str();
        self.names.extend(text.map(str::to_owned));
        text.is_some()
    }

    fn read_state(&mut self, text: &Value) -> bool {
        let text = text["Value"].as_str();
        text.is_some_and(|text| self.add(PromptTest::State(text.to_owned())))
    }

    /// Reads an entity, or a set of them.
    fn read_entities(&mut self, expression: &Value) -> bool {
        if let Some(entities) = expression["Set"].as_array() {
            return entities.iter().all(|entity| self.read_entities(entity));
        }
        self.read_entity(&expression["Value"]["__entity"])
    }

    fn read_entity(&mut self, entity: &Value) -> bool {
        let (Some(kind), Some(id)) = (entity["type"].as_str(), entity["id"].as_str()) else {
            return false;
        };
        match kind {
            "Upstream" => {
                self.upstreams.push(id.to_owned());
                true
            }
            "Prompt" => self.add(PromptTest::Prompt(id.to_owned())),
            _ => true,
        }
    }

    fn add(&mut self, test: PromptTest) -> bool {
        if !self.tests.contains(&test) && !test.always_holds() {
            self.tests.push(test);
        }
        true
    }
}

impl PromptTest {
    fn holds(&self, prompt: PromptRef<'_>) -> bool {
        let PromptRef { upstream, raw_name, state } = prompt;
        match self {
            Self::State(text) => text == state.as_str(),
            Self::Like(glob) => glob.matches(raw_name),
            Self::Prompt(id) => {
                let named = id.strip_prefix(upstream).and_then(|rest| rest.strip_prefix('/'));
                named == Some(raw_name)
            }
        }
    }

    /// Whether the test holds for every name: the pattern of a rule that names no prompts.
    fn always_holds(&self) -> bool {
        matches!(self, Self::Like(glob) if glob.pieces().all(str::is_empty) && glob.pieces().count() > 1)
    }
}

fn is_prompt(expression: &Value) -> bool {
    expression["Var"] == "resource"
}

fn is_name(expression: &Value) -> bool {
    is_attribute(expression, "name")
}

fn is_state(expression: &Value) -> bool {
    is_attribute(expression, "state")
}

fn is_attribute(expression: &Value, name: &str) -> bool {
    let access = &expression["."];
    access["attr"] == name && is_prompt(&access["left"])
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use cedar_policy::PolicySet;

    use super::*;

    fn tests(policies: &str) -> PromptTests {
        PromptTests::of(PolicySet::from_str(policies).unwrap().policies())
    }

    #[test]
    fn comparisons_with_texts_of_the_policy_are_understood() {
        for (condition, alike, different) in [
            ("resource.name like \"a*\"", ("u/ab", "v/ac"), Some(("u/a", "u/b"))),
            ("resource.name == \"a\"", ("u/b", "v/c"), Some(("u/a", "u/b"))),
            ("resource.state == \"approved\"", ("u/b", "v/c"), None),
            ("[\"changed\"].contains(resource.state)", ("u/b", "v/c"), None),
            ("\"a\" != resource.name", ("u/b", "v/c"), Some(("u/a", "u/b"))),
            ("[\"a\", \"b\"].contains(resource.name)", ("u/c", "v/d"), Some(("u/a", "u/c"))),
            ("resource in Upstream::\"u\"", ("u/a", "u/b"), Some(("u/a", "v/a"))),
            (
                "resource in [Upstream::\"u\", Upstream::\"v\"]",
                ("w/a", "x/b"),
                Some(("u/a", "w/a")),
            ),
            ("resource == Prompt::\"u/a\"", ("v/a", "u/b"), Some(("u/a", "u/b"))),
            ("principal in Group::\"g\"", ("u/a", "v/b"), None),
            (
                "if principal in Group::\"g\" then resource.name like \"*z\" else false",
                ("u/a", "v/b"),
                Some(("u/z", "u/a")),
            ),
        ] {
            let text = format!("permit (principal, action, resource) when {{ {condition} }};");
            let tests = tests(&text);
            let class = |prompt: &str| {
                let (upstream, name) = prompt.split_once('/').unwrap();
                tests.class(PromptRef { upstream, raw_name: name, state: ApprovalState::Approved })
            };
            assert!(!tests.sees_all, "{condition}");
            assert_eq!(class(alike.0), class(alike.1), "{condition}");
            if let Some((one, other)) = different {
                assert_ne!(class(one), class(other), "{condition}");
            }
        }
        let scoped = tests("permit (principal, action, resource in Upstream::\"u\");");
        assert!(!scoped.sees_all && scoped.upstreams == ["u"]);
        assert!(!tests("permit (principal, action, resource == Prompt::\"u/a\");").sees_all);
    }

    #[test]
    fn a_prompt_that_is_used_in_another_way_is_a_class_of_its_own() {
        for condition in [
            "principal.scopes.contains(resource.name)",
            "resource.name like \"a\\*\"",
            "[resource.name].contains(\"a\")",
            "[\"a\", resource.name].containsAll([\"b\"])",
            "resource is Prompt in Upstream::\"u\"",
            "resource.state like \"a*\"",
        ] {
            let text = format!("permit (principal, action, resource) when {{ {condition} }};");
            assert!(tests(&text).sees_all, "{condition}");
        }
    }
}
