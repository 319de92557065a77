//! Over generated access rules: a prompt is listed if and only if the rules allow `list`, and can
//! be got if and only if they allow `get` (fault matrix, property 5).

use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::json;
use tokio::runtime::Runtime;

use super::generated_histories::over_histories;
use crate::support::gateway::{api_key, upstream_tables};
use crate::support::{Gateway, Upstream};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Effect {
    Allow,
    Deny,
}

#[derive(Clone, Debug)]
struct Rule {
    effect: Effect,
    /// One or both of [`ACTIONS`].
    actions: Vec<&'static str>,
    caller: Option<&'static str>,
    upstream: Option<&'static str>,
    /// One of [`PATTERNS`].
    pattern: &'static str,
}

const ACTIONS: [&str; 2] = ["list", "get"];
const CALLERS: [&str; 2] = ["alice", "bob"];
const UPSTREAMS: [&str; 2] = ["one", "two"];
const PROMPTS: [&str; 3] = ["p", "q", "qq"];
const PATTERNS: [&str; 4] = ["*", "p", "q*", "?"];

/// Rules of one generated configuration.
const MOST_RULES: usize = 6;

fn rule() -> impl Strategy<Value = Rule> {
    (
        prop_oneof![7 => Just(Effect::Allow), 3 => Just(Effect::Deny)],
        subsequence(&ACTIONS[..], 1..=2),
        option::of(select(&CALLERS[..])),
        option::of(select(&UPSTREAMS[..])),
        select(&PATTERNS[..]),
    )
        .prop_map(|(effect, actions, caller, upstream, pattern)| Rule {
            effect,
            actions,
            caller,
            upstream,
            pattern,
        })
}

impl Rule {
    fn table(&self) -> String {
        let effect = match self.effect {
            Effect::Allow => "allow",
            Effect::Deny => "deny",
        };
        let one = |key: &str, value: Option<&str>| {
            value.map(|value| format!("{key} = [\"{value}\"]\n")).unwrap_or_default()
        };
        let scope = one("callers", self.caller) + &one("upstreams", self.upstream);
        let prompts = one("prompts", Some(self.pattern));
        format!("[[access.rules]]\n{effect} = {:?}\n{scope}{prompts}", self.actions)
    }

    fn matches(&self, action: &str, caller: &str, upstream: &str, prompt: &str) -> bool {
        let matches_pattern = match self.pattern {
            "*" => true,
            "q*" => prompt.starts_with('q'),
            // `?` too: only `*` is a wildcard.
            literal => prompt == literal,
        };
        matches_pattern
            && self.actions.contains(&action)
            && self.caller.is_none_or(|only| only == caller)
            && self.upstream.is_none_or(|only| only == upstream)
    }
}

/// The documented semantics: some rule allows it, and none denies it.
fn is_allowed(rules: &[Rule], action: &str, caller: &str, upstream: &str, prompt: &str) -> bool {
    let has = |effect| {
        rules
            .iter()
            .any(|rule| rule.effect == effect && rule.matches(action, caller, upstream, prompt))
    };
    has(Effect::Allow) && !has(Effect::Deny)
}

#[test]
fn property_5_lists_and_gets_are_what_the_rules_allow_each_caller() {
    let runtime = Runtime::new().unwrap();
    let (_upstreams, toml, gateway) = runtime.block_on(async {
        let one = Upstream::with_prompts(&PROMPTS).await;
        let two = Upstream::with_prompts(&PROMPTS).await;
        let keys: String = CALLERS.iter().map(|id| api_key(id, id)).collect();
        let toml = keys + &upstream_tables(&[("one", &one), ("two", &two)]);
        let gateway = Gateway::start(&toml).await;
        gateway.summary().await;
        ([one, two], toml, gateway)
    });
    over_histories(24, rule(), |mut rules| {
        rules.truncate(MOST_RULES);
        let tables: String = rules.iter().map(Rule::table).collect();
        runtime.block_on(async {
            gateway.reload(&(toml.clone() + &tables)).await;
            for caller in CALLERS {
                let client = gateway.client().with("X-API-Key", caller);
                let listed = client.names().await.0;
                for (upstream, prompt) in
                    UPSTREAMS.iter().flat_map(|id| PROMPTS.map(|prompt| (id, prompt)))
                {
                    let name = format!("{upstream}__{prompt}");
                    let is = |action| is_allowed(&rules, action, caller, upstream, prompt);
                    assert_eq!(listed.contains(&name), is("list"), "list: {caller} {name}");
                    let got = client.modern("prompts/get", json!({"name": name})).await.json();
                    if is("get") {
                        assert!(got["result"]["messages"].is_array(), "{caller} {name} {got}");
                    } else {
                        let reason = &got["error"]["data"]["reason"];
                        assert_eq!(reason, "unknown_prompt", "{caller} {name} {got}");
                    }
                }
            }
        });
    });
}
