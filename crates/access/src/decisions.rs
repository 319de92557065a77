//! Access decisions by Cedar policies: whether a caller may use a prompt, and which policies
//! decided.
//!
//! Policies are evaluated once for each class of callers, class of prompts and method, not for each
//! caller and prompt.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use cedar_policy::PolicySet;
use quick_cache::sync::Cache;

use crate::class::{AccessVerdict, CallerClass, Types};
use crate::rule_set::RuleSet;
use domain::calls::caller::Caller;
use domain::calls::rights::{Allowed, NO_RULE, PromptRef, Rights};
use domain::protocol::method::Method;

/// The compiled policies, and the classes of the recent callers.
pub struct Decisions {
    rules: RuleSet,
    types: Arc<Types>,
    /// Holds weak references, so that only the cache of classes bounds the classes.
    callers: Cache<ByRights, Weak<CallerClass>>,
    /// `None` for callers that Cedar does not accept.
    classes: Cache<String, Option<Arc<CallerClass>>>,
}

/// A caller, equal to those with the same id, groups and scopes.
#[derive(Clone, Debug)]
struct ByRights(Caller);

/// Most callers whose class is remembered: finding a class again costs microseconds.
const CALLERS: usize = 16_384;

/// Most remembered classes, of some 10 KiB each. A forgotten class decides anew.
const CLASSES: usize = 2_048;

impl Decisions {
    /// Returns the access decisions by these rules, with empty caches.
    pub fn new(rules: &RuleSet) -> Self {
        Self {
            rules: rules.clone(),
            types: Arc::new(Types::new()),
            callers: Cache::new(CALLERS),
            classes: Cache::new(CLASSES),
        }
    }

    /// Returns the access decision for a request, with the policies that decided. A request that
    /// cannot be evaluated is denied.
    pub fn decide(&self, caller: &Caller, method: Method, prompt: PromptRef<'_>) -> AccessVerdict {
        let class = self.class(caller);
        class.map(|class| class.decide(method, prompt)).unwrap_or_default()
    }

    /// Returns the position of a rule that a decision names, from 1; `None` for a policy of a file.
    pub fn rule_number(&self, id: &str) -> Option<usize> {
        self.rules.number(id)
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

    /// The key of a caller's class: the rules for the caller and, where there are policies of a
    /// file, all its attributes, since those policies can depend on any attribute.
    fn key_of(&self, caller: &Caller) -> String {
        let mut key = String::new();
        for callers in self.rules.rule_callers() {
            key.push(if callers.include(caller) { '1' } else { '0' });
        }
        if self.rules.has_file() {
            key += &format!(" {:?} {:?} {:?}", caller.id(), caller.groups(), caller.scopes());
        }
        key
    }

    /// The policies without the rules that are for other callers.
    fn policies_for(&self, caller: &Caller) -> PolicySet {
        let mut policies = PolicySet::new();
        let of_rules = self.rules.rules.iter().filter(|(_, callers)| callers.include(caller));
        let of_rules = of_rules.filter_map(|(id, _)| self.rules.policies.policy(id));
        let of_file =
            self.rules.has_file().then(|| self.rules.policies_of_file()).into_iter().flatten();
        for policy in of_rules.chain(of_file) {
            // Ids are unique in the set that they come from.
            let _ = policies.add(policy.clone());
        }
        policies
    }
}

impl Rights for Decisions {
    fn entitlement(&self, caller: &Caller) -> Option<Arc<str>> {
        // Callers that Cedar does not accept may use nothing, and share one key.
        Some(self.class(caller).map_or_else(|| "".into(), |class| class.key.clone()))
    }

    fn allows(&self, caller: &Caller, method: Method, prompt: PromptRef<'_>) -> bool {
        self.class(caller).is_some_and(|class| class.allows(method, prompt))
    }

    fn denied_by(
        &self,
        caller: &Caller,
        method: Method,
        prompt: PromptRef<'_>,
    ) -> Option<Arc<str>> {
        let class = self.class(caller);
        class.map_or_else(|| Some(NO_RULE.into()), |class| class.denied_by(method, prompt))
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
        let Self(one) = self;
        let Self(other) = other;
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
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    use super::*;
    use crate::rule::{Effect, Rule, RuleCallers};
    use domain::approval::ApprovalState;
    use domain::name::UpstreamId;
    use domain::text::glob::Glob;

    /// A rule that allows all methods of all prompts to every caller that is known.
    fn rule() -> Rule {
        Rule {
            effect: Effect::Allow,
            methods: Method::OF_PROMPTS.to_vec(),
            callers: RuleCallers::Authenticated,
            upstreams: Vec::new(),
            prompts: Vec::new(),
            states: Vec::new(),
        }
    }

    fn named(groups: &[&str], ids: &[&str], scopes: &[&str]) -> RuleCallers {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        RuleCallers::Named { groups: owned(groups), ids: owned(ids), scopes: owned(scopes) }
    }

    fn globs(patterns: &[&str]) -> Vec<Glob> {
        patterns.iter().map(|pattern| Glob::parse(pattern).unwrap()).collect()
    }

    fn upstreams(ids: &[&str]) -> Vec<UpstreamId> {
        ids.iter().map(|id| UpstreamId::parse(id).unwrap()).collect()
    }

    fn rule_set(rules: &[Rule]) -> RuleSet {
        let mut set = RuleSet::default();
        for (index, rule) in rules.iter().enumerate() {
            set.add_rule(&format!("access.rules.{}", index + 1), rule).unwrap();
        }
        set
    }

    fn decisions(rules: &[Rule]) -> Decisions {
        Decisions::new(&rule_set(rules))
    }

    fn of_file(policies: &str) -> Result<Decisions, Vec<String>> {
        let mut set = RuleSet::default();
        set.add_file(policies)?;
        Ok(Decisions::new(&set))
    }

    fn caller(id: &str, group: &str) -> Caller {
        Caller::in_groups(id, &[group.to_owned()])
    }

    fn prompt<'a>(upstream: &'a str, raw_name: &'a str) -> PromptRef<'a> {
        PromptRef { upstream, raw_name, state: ApprovalState::Unchecked }
    }

    #[test]
    fn rules_and_policies_know_the_state_of_a_prompt() {
        let states = vec![ApprovalState::Approved, ApprovalState::Unchecked];
        let mut set = rule_set(&[Rule { methods: vec![Method::Get], states, ..rule() }]);
        set.add_file(
            "permit (principal, action == Action::\"list\", resource)\n\
             when { resource.state != \"pending\" };",
        )
        .unwrap();
        let access = Decisions::new(&set);
        for state in ApprovalState::ALL {
            let prompt = PromptRef { state, ..prompt("crm", "p") };
            let ci = caller("ci", "x");
            let is_final = matches!(state, ApprovalState::Approved | ApprovalState::Unchecked);
            assert_eq!(access.allows(&ci, Method::Get, prompt), is_final, "{state:?}");
            assert_eq!(access.allows(&ci, Method::List, prompt), state != ApprovalState::Pending);
        }
    }

    #[test]
    fn p2_nothing_is_allowed_that_no_rule_allows() {
        let access = decisions(&[Rule {
            methods: vec![Method::Get],
            callers: named(&["sales"], &[], &[]),
            upstreams: upstreams(&["crm"]),
            ..rule()
        }]);
        let sales = caller("a", "sales");
        assert!(access.allows(&sales, Method::Get, prompt("crm", "x")));
        assert!(!access.allows(&sales, Method::List, prompt("crm", "x")));
        assert!(!access.allows(&sales, Method::Get, prompt("git", "x")));
        assert!(!access.allows(&caller("a", "other"), Method::Get, prompt("crm", "x")));
        assert!(!access.allows(&Caller::anonymous(), Method::Get, prompt("crm", "x")));
    }

    #[test]
    fn a_rule_without_callers_is_for_everyone_who_is_known_and_denials_win() {
        let access = decisions(&[
            Rule { methods: vec![Method::List, Method::Get], ..rule() },
            Rule {
                effect: Effect::Deny,
                methods: vec![Method::Get],
                prompts: globs(&["secret*", "*\"quoted\"*"]),
                ..rule()
            },
            Rule {
                methods: vec![Method::Complete],
                callers: named(&[], &["ci"], &[]),
                prompts: globs(&["a*b"]),
                ..rule()
            },
        ]);
        let ci = caller("ci", "x");
        assert!(access.allows(&ci, Method::Get, prompt("crm", "open")));
        assert!(!access.allows(&Caller::anonymous(), Method::Get, prompt("crm", "open")));
        for denied in ["secret", "secrets of state", "a \"quoted\" name"] {
            let verdict = access.decide(&ci, Method::Get, prompt("crm", denied));
            assert_eq!(
                verdict,
                AccessVerdict { is_allowed: false, reasons: vec!["access.rules.2".into()] }
            );
            let denied_by = access.denied_by(&ci, Method::Get, prompt("crm", denied));
            assert_eq!(denied_by.as_deref(), Some("access.rules.2"));
        }
        assert_eq!(access.denied_by(&ci, Method::Get, prompt("crm", "open")), None);
        let strange = access.denied_by(&Caller::anonymous(), Method::Get, prompt("crm", "open"));
        assert_eq!(strange.as_deref(), Some(NO_RULE));
        assert!(access.allows(&ci, Method::List, prompt("crm", "secret")));
        assert!(access.allows(&ci, Method::Complete, prompt("git", "a to b")));
        assert!(!access.allows(&caller("other", "x"), Method::Complete, prompt("git", "a to b")));
        assert_ne!(access.entitlement(&ci), access.entitlement(&caller("other", "x")));
    }

    #[test]
    fn a_denial_names_a_few_of_many_rules_in_a_stable_order() {
        let denials = vec![Rule { effect: Effect::Deny, ..rule() }; 7];
        let access = decisions(&denials);
        let denied_by = access.denied_by(&caller("a", "b"), Method::Get, prompt("crm", "p"));
        let named = (1..=4).map(|n| format!("access.rules.{n}, ")).collect::<String>();
        assert_eq!(denied_by.as_deref(), Some(&*(named + "and 3 more")));
    }

    #[test]
    fn policies_of_a_file_are_nested_no_deeper_than_cedar_can_walk() {
        let read = |patterns: usize| {
            let like = |n: usize| format!("resource.name like \"x{n}*\"");
            let patterns: Vec<_> = (0..patterns).map(like).collect();
            let condition = patterns.join(" || ");
            of_file(&format!("permit (principal, action, resource) when {{ {condition} }};"))
        };
        // Without optimization a level takes ten times the stack.
        let size = if cfg!(debug_assertions) { 8 << 20 } else { 2 << 20 };
        let deciding = std::thread::Builder::new().stack_size(size).spawn(move || {
            // A clause, a pair of brackets, and an access.
            let access = read(98).unwrap();
            let allows = |name| access.allows(&caller("a", "b"), Method::Get, prompt("crm", name));
            assert!(allows("x97 and so on") && !allows("y"));
            let refused = read(99).err().unwrap().concat();
            assert!(refused.contains("a policy may be nested more than 100"), "{refused}");
        });
        deciding.unwrap().join().unwrap();
    }

    #[test]
    fn rules_may_have_very_long_lists() {
        let list = |text: &str| (0..5_000).map(|n| format!("{text}{n}")).collect::<Vec<_>>();
        let prompts = [list("name"), list("a*b")].concat();
        let access = decisions(&[Rule {
            methods: vec![Method::Get],
            callers: RuleCallers::Named {
                groups: list("group"),
                ids: list("caller"),
                scopes: list("scope"),
            },
            prompts: prompts.iter().filter_map(|pattern| Glob::parse(pattern)).collect(),
            ..rule()
        }]);
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
        let callers = named(&["x"], &[], &[]);
        let access = decisions(&[Rule { methods: vec![Method::List], callers, ..rule() }]);
        assert_eq!(access.entitlement(&caller("a", "x")), access.entitlement(&caller("b", "x")));
        assert_ne!(access.entitlement(&caller("a", "x")), access.entitlement(&caller("a", "y")));
        // No rule is for either of them.
        let without = access.entitlement(&Caller::anonymous());
        assert_eq!(without, access.entitlement(&Caller::new("somebody")));
    }

    #[test]
    fn policies_of_a_file_may_look_at_anything_of_a_caller() {
        let access = of_file("permit (principal == Caller::\"ci\", action, resource);").unwrap();
        assert!(access.allows(&caller("ci", "x"), Method::Get, prompt("crm", "p")));
        assert!(!access.allows(&caller("other", "x"), Method::Get, prompt("crm", "p")));
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let some = |values: &'static [&'static str]| subsequence(values, 0..=values.len());
        (
            any::<bool>(),
            subsequence(Method::OF_PROMPTS.to_vec(), 1..=3),
            (some(&["a", "b"]), some(&["ci", "bob"]), some(&["s"])),
            some(&["crm", "git"]),
            some(&["p*", "*q", "r", "p"]),
        )
            .prop_map(|(allows, methods, (groups, ids, scopes), of, prompts)| Rule {
                effect: if allows { Effect::Allow } else { Effect::Deny },
                methods,
                callers: match (groups.len(), ids.len(), scopes.len()) {
                    (0, 0, 0) => RuleCallers::Authenticated,
                    _ => named(&groups, &ids, &scopes),
                },
                upstreams: upstreams(&of),
                prompts: globs(&prompts),
                states: Vec::new(),
            })
    }

    proptest! {
        // Cedar validates the rules of each case.
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn property_5_decisions_for_classes_are_those_of_all_policies_for_each_caller_and_prompt(
            rules in prop::collection::vec(any_rule(), 1..5),
        ) {
            let access = decisions(&rules);
            let callers = ["ci", "bob", "eve"].into_iter().flat_map(|id| {
                let groups = [vec![], vec!["a".to_owned()], vec!["a".to_owned(), "b".to_owned()]];
                groups.map(|groups| Caller::in_groups(id, &groups))
            });
            let scoped = Caller::new("eve").with_scopes(vec!["s".to_owned()]);
            for caller in callers.chain([scoped, Caller::anonymous()]) {
                let types = Arc::new(Types::new());
                let all = CallerClass::new("", access.rules.policies.clone(), &caller, types).unwrap();
                for (method, upstream) in
                    Method::OF_PROMPTS.into_iter().flat_map(|method| [(method, "crm"), (method, "git")])
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
