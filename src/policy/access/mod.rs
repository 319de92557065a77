//! Access decisions by Cedar policies: whether a caller may use a prompt, and which policies
//! decided.
//!
//! Policies are evaluated once for each class of callers, class of prompts and method, not for each
//! caller and prompt.

mod class;
mod prompt_tests;

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use cedar_policy::{PolicyId, PolicySet};
use class::{CallerClass, Types};
use quick_cache::sync::Cache;

use crate::config::{self, RuleCallers};
use domain::caller::Caller;
use domain::method::Method;
use domain::rights::{Allowed, PromptRef, Rights};

/// The compiled policies, and the classes of the recent callers.
pub(crate) struct Access {
    policies: PolicySet,
    rules: Vec<(PolicyId, RuleCallers)>,
    types: Arc<Types>,
    /// Without a share in the classes: these are bounded by their own cache.
    callers: Cache<ByRights, Weak<CallerClass>>,
    /// `None` for callers that Cedar does not accept.
    classes: Cache<String, Option<Arc<CallerClass>>>,
}

/// A caller, equal to those with the same id, groups and scopes.
#[derive(Clone, Debug)]
struct ByRights(Caller);

/// An access decision, with the policies that decided.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Verdict {
    pub is_allowed: bool,
    /// Ids of the policies that decided; empty where no policy matches the request, or it cannot
    /// be evaluated.
    pub reasons: Vec<String>,
}

/// Most callers whose class is remembered: to find it again costs microseconds.
const CALLERS: usize = 16_384;

/// Most remembered classes, of some 10 KiB each. A forgotten one decides anew.
const CLASSES: usize = 2_048;

impl Access {
    /// Returns the access decisions of a configuration, with empty caches.
    pub(crate) fn new(access: &config::Access) -> Self {
        Self {
            policies: access.policies.clone(),
            rules: access.rules.clone(),
            types: Arc::new(Types::new()),
            callers: Cache::new(CALLERS),
            classes: Cache::new(CLASSES),
        }
    }

    /// Returns the access decision for a request, with the policies that decided. A request that
    /// cannot be evaluated is denied.
    pub(crate) fn decide(&self, caller: &Caller, method: Method, prompt: PromptRef<'_>) -> Verdict {
        let class = self.class(caller);
        class.map(|class| class.decide(method, prompt)).unwrap_or_default()
    }

    fn class(&self, caller: &Caller) -> Option<Arc<CallerClass>> {
        let by_rights = ByRights(caller.clone());
        if let Some(class) = self.callers.get(&by_rights).and_then(|class| class.upgrade()) {
            return Some(class);
        }
        let key = self.key_of(caller);
        let make = || {
            let policies = self.policies_for(caller);
            let class = CallerClass::new(&key, policies, caller, self.types.clone());
            Ok::<_, std::convert::Infallible>(class.map(Arc::new))
        };
        let class = match self.classes.get_or_insert_with(&key, make) {
            Ok(class) => class,
            Err(never) => match never {},
        };
        let class = class?;
        self.callers.insert(by_rights, Arc::downgrade(&class));
        Some(class)
    }

    /// The class of a caller: the rules that are for it, and all its attributes where there are
    /// policies of a file, since those can see them.
    fn key_of(&self, caller: &Caller) -> String {
        let mut key = String::new();
        for (_, callers) in &self.rules {
            key.push(if callers.include(caller) { '1' } else { '0' });
        }
        if self.has_file() {
            key += &format!(" {:?} {:?} {:?}", caller.id(), caller.groups(), caller.scopes());
        }
        key
    }

    fn has_file(&self) -> bool {
        self.policies.num_of_policies() > self.rules.len()
    }

    /// The policies without the rules that are for other callers.
    fn policies_for(&self, caller: &Caller) -> PolicySet {
        let mut policies = PolicySet::new();
        for (id, callers) in &self.rules {
            if let Some(policy) = self.policies.policy(id).filter(|_| callers.include(caller)) {
                // Ids are unique in the set that they come from.
                let _ = policies.add(policy.clone());
            }
        }
        if self.has_file() {
            let is_rule = |id: &PolicyId| self.rules.iter().any(|(rule, _)| rule == id);
            for policy in self.policies.policies().filter(|policy| !is_rule(policy.id())) {
                let _ = policies.add(policy.clone());
            }
        }
        policies
    }
}

impl Rights for Access {
    fn entitlement(&self, caller: &Caller) -> Option<Arc<str>> {
        // All callers that Cedar does not accept may use nothing.
        Some(self.class(caller).map_or_else(|| "".into(), |class| class.key.clone()))
    }

    fn allows(&self, caller: &Caller, method: Method, prompt: PromptRef<'_>) -> bool {
        self.class(caller).is_some_and(|class| class.allows(method, prompt))
    }

    fn allowed(
        &self,
        caller: &Caller,
        method: Method,
        prompts: &mut dyn Iterator<Item = PromptRef<'_>>,
    ) -> Allowed {
        let class = self.class(caller);
        class.map_or(Allowed::None, |class| class.allowed(method, prompts))
    }
}

impl PartialEq for ByRights {
    fn eq(&self, other: &Self) -> bool {
        let (Self(one), Self(other)) = (self, other);
        (one.id(), one.groups(), one.scopes()) == (other.id(), other.groups(), other.scopes())
    }
}

impl Eq for ByRights {}

impl Hash for ByRights {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self(caller) = self;
        (caller.id(), caller.groups(), caller.scopes()).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::option;
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};

    use super::*;
    use crate::config::Config;
    use domain::pin::State;

    const UPSTREAMS: &str = "[upstreams.crm]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/\"\n\
        [upstreams.git]\ntransport = \"http\"\nurl = \"http://127.0.0.1:2/\"\n";

    fn access(rules: &str) -> Access {
        let hash = format!("sha256:{}", "0".repeat(64));
        let key = format!("[[auth.api_keys]]\nid = \"ci\"\nhash = \"{hash}\"\n");
        let toml = format!("{UPSTREAMS}{key}{rules}");
        let config =
            Config::parse("g", &toml, Path::new(""), &[]).unwrap_or_else(|e| panic!("{e}"));
        Access::new(&config.access.unwrap())
    }

    fn caller(id: &str, group: &str) -> Caller {
        Caller::in_groups(id, &[group.to_owned()])
    }

    fn prompt<'a>(upstream: &'a str, raw_name: &'a str) -> PromptRef<'a> {
        PromptRef { upstream, raw_name, state: State::Unpinned }
    }

    #[test]
    fn rules_and_policies_know_the_state_of_a_prompt() {
        let folder = tempfile::tempdir().unwrap();
        let policy = "permit (principal, action == Action::\"list\", resource)\n\
                      when { resource.state != \"pending\" };";
        std::fs::write(folder.path().join("p.cedar"), policy).unwrap();
        let toml = format!(
            "{UPSTREAMS}[access]\ncedar = \"p.cedar\"\n\
             [[access.rules]]\nallow = [\"get\"]\nstates = [\"approved\", \"unpinned\"]\n"
        );
        let config = Config::parse("g", &toml, folder.path(), &[]).unwrap();
        let access = Access::new(&config.access.unwrap());
        for state in State::ALL {
            let prompt = PromptRef { state, ..prompt("crm", "p") };
            let ci = caller("ci", "x");
            let is_final = matches!(state, State::Approved | State::Unpinned);
            assert_eq!(access.allows(&ci, Method::Get, prompt), is_final, "{state:?}");
            assert_eq!(access.allows(&ci, Method::List, prompt), state != State::Pending);
        }
        let wrong = toml.replace("unpinned", "unknown");
        let error = Config::parse("g", &wrong, folder.path(), &[]).unwrap_err().to_string();
        assert!(error.contains("access.rules.1.states: \"unknown\" is not one of"), "{error}");
    }

    #[test]
    fn p2_nothing_is_allowed_that_no_rule_allows() {
        let access = access(
            "[[access.rules]]\nallow = [\"get\"]\ngroups = [\"sales\"]\nupstreams = [\"crm\"]\n",
        );
        let sales = caller("a", "sales");
        assert!(access.allows(&sales, Method::Get, prompt("crm", "x")));
        assert!(!access.allows(&sales, Method::List, prompt("crm", "x")));
        assert!(!access.allows(&sales, Method::Get, prompt("git", "x")));
        assert!(!access.allows(&caller("a", "other"), Method::Get, prompt("crm", "x")));
        assert!(!access.allows(&Caller::anonymous(), Method::Get, prompt("crm", "x")));
    }

    #[test]
    fn a_rule_without_callers_is_for_everyone_who_is_known_and_denials_win() {
        let access = access(
            "[[access.rules]]\nallow = [\"list\", \"get\"]\n\
             [[access.rules]]\ndeny = [\"get\"]\nprompts = [\"secret*\", \"*\\\"quoted\\\"*\"]\n\
             [[access.rules]]\nallow = [\"complete\"]\ncallers = [\"ci\"]\nprompts = [\"a*b\"]\n",
        );
        let ci = caller("ci", "x");
        assert!(access.allows(&ci, Method::Get, prompt("crm", "open")));
        assert!(!access.allows(&Caller::anonymous(), Method::Get, prompt("crm", "open")));
        for denied in ["secret", "secrets of state", "a \"quoted\" name"] {
            let verdict = access.decide(&ci, Method::Get, prompt("crm", denied));
            assert_eq!(
                verdict,
                Verdict { is_allowed: false, reasons: vec!["access.rules.2".into()] }
            );
        }
        assert!(access.allows(&ci, Method::List, prompt("crm", "secret")));
        assert!(access.allows(&ci, Method::Complete, prompt("git", "a to b")));
        assert!(!access.allows(&caller("other", "x"), Method::Complete, prompt("git", "a to b")));
        assert_ne!(access.entitlement(&ci), access.entitlement(&caller("other", "x")));
    }

    #[test]
    fn policies_of_a_file_are_nested_no_deeper_than_cedar_can_walk() {
        let read = |patterns: usize| {
            let like = |n: usize| format!("resource.name like \"x{n}*\"");
            let patterns: Vec<_> = (0..patterns).map(like).collect();
            let condition = patterns.join(" || ");
            let folder = tempfile::tempdir().unwrap();
            let policy = format!("permit (principal, action, resource) when {{ {condition} }};");
            std::fs::write(folder.path().join("p.cedar"), policy).unwrap();
            let toml = format!("{UPSTREAMS}[access]\ncedar = \"p.cedar\"\n");
            Config::parse("g", &toml, folder.path(), &[])
        };
        // Without optimization a level takes ten times the stack.
        let size = if cfg!(debug_assertions) { 8 << 20 } else { 2 << 20 };
        let deciding = std::thread::Builder::new().stack_size(size).spawn(move || {
            // A clause, a pair of brackets, and an access.
            let access = Access::new(&read(98).unwrap().access.unwrap());
            let allows = |name| access.allows(&caller("a", "b"), Method::Get, prompt("crm", name));
            assert!(allows("x97 and so on") && !allows("y"));
            let refused = read(99).unwrap_err().to_string();
            assert!(
                refused.contains("access.cedar: a policy may be nested more than 100"),
                "{refused}"
            );
        });
        deciding.unwrap().join().unwrap();
    }

    #[test]
    fn rules_may_have_very_long_lists() {
        let list = |text: &str| (0..5_000).map(|n| format!("\"{text}{n}\", ")).collect::<String>();
        let access = access(&format!(
            "[[access.rules]]\nallow = [\"get\"]\ncallers = [{}]\ngroups = [{}]\nscopes = [{}]\n\
             prompts = [{}{}]\n",
            list("caller"),
            list("group"),
            list("scope"),
            list("name"),
            list("a*b"),
        ));
        // As on a thread of the runtime.
        let deciding = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
            let allows = |caller: &Caller, name: &str| {
                access.allows(caller, Method::Get, prompt("crm", name))
            };
            let members = [caller("caller4999", "x"), caller("x", "group4999"), {
                caller("x", "x").with_scopes(vec!["scope4999".to_owned()])
            }];
            for member in &members {
                assert!(allows(member, "name4999") && allows(member, "a to b4999"));
                assert!(!allows(member, "name5000") && !allows(member, "a to b5000"));
            }
            assert!(!allows(&caller("caller5000", "group5000"), "name4999"));
        });
        deciding.unwrap().join().unwrap();
    }

    #[test]
    fn callers_with_the_same_groups_share_what_they_see_unless_a_rule_names_callers() {
        let access = access("[[access.rules]]\nallow = [\"list\"]\ngroups = [\"x\"]\n");
        assert_eq!(access.entitlement(&caller("a", "x")), access.entitlement(&caller("b", "x")));
        assert_ne!(access.entitlement(&caller("a", "x")), access.entitlement(&caller("a", "y")));
        // No rule is for either of them.
        let nobody = access.entitlement(&Caller::anonymous());
        assert_eq!(nobody, access.entitlement(&Caller::new("somebody")));
    }

    #[test]
    fn policies_of_a_file_may_look_at_anything_of_a_caller() {
        let folder = tempfile::tempdir().unwrap();
        let policy = "permit (principal == Caller::\"ci\", action, resource);";
        std::fs::write(folder.path().join("p.cedar"), policy).unwrap();
        let toml = format!("{UPSTREAMS}[access]\ncedar = \"p.cedar\"\n");
        let config = Config::parse("g", &toml, folder.path(), &[]).unwrap();
        let access = Access::new(&config.access.unwrap());
        assert!(access.allows(&caller("ci", "x"), Method::Get, prompt("crm", "p")));
        assert!(!access.allows(&caller("other", "x"), Method::Get, prompt("crm", "p")));
    }

    fn rule() -> impl Strategy<Value = String> {
        let list = |key: &'static str, values: &'static [&'static str]| {
            option::of(subsequence(values, 1..=values.len())).prop_map(move |values| {
                values.map(|v| format!("{key} = {v:?}\n")).unwrap_or_default()
            })
        };
        (
            select(&["allow", "deny"][..]),
            subsequence(&["list", "get", "complete"][..], 1..=3),
            list("groups", &["a", "b"]),
            list("callers", &["ci", "bob"]),
            list("scopes", &["s"]),
            list("upstreams", &["crm", "git"]),
            list("prompts", &["p*", "*q", "r", "p"]),
        )
            .prop_map(|(effect, actions, groups, callers, scopes, upstreams, prompts)| {
                format!(
                    "[[access.rules]]\n{effect} = {actions:?}\n{groups}{callers}{scopes}{upstreams}{prompts}"
                )
            })
    }

    proptest! {
        // Cedar validates the rules of each case.
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn property_5_decisions_for_classes_are_those_of_all_policies_for_each_caller_and_prompt(
            rules in prop::collection::vec(rule(), 1..5),
        ) {
            let access = access(&rules.concat());
            let callers = ["ci", "bob", "eve"].into_iter().flat_map(|id| {
                let groups = [vec![], vec!["a".to_owned()], vec!["a".to_owned(), "b".to_owned()]];
                groups.map(|groups| Caller::in_groups(id, &groups))
            });
            let scoped = Caller::new("eve").with_scopes(vec!["s".to_owned()]);
            for caller in callers.chain([scoped, Caller::anonymous()]) {
                let types = Arc::new(Types::new());
                let all = CallerClass::new("", access.policies.clone(), &caller, types).unwrap();
                for (method, upstream) in
                    Method::ALL.into_iter().flat_map(|method| [(method, "crm"), (method, "git")])
                {
                    let names = ["p", "pq", "q", "r", "s"];
                    let expected = names.map(|name| all.decide(method, prompt(upstream, name)).is_allowed);
                    let each = names.map(|name| access.allows(&caller, method, prompt(upstream, name)));
                    prop_assert_eq!(each, expected);
                    let together =
                        access.allowed(&caller, method, &mut names.map(|name| prompt(upstream, name)).into_iter());
                    prop_assert_eq!(together, Allowed::of(expected.to_vec()));
                }
            }
        }
    }
}
