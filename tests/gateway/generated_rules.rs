//! Over generated rules: what is listed can be got, and nothing else (fault matrix, property 5).

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;
use tokio::runtime::Runtime;

use super::generated_histories::over_histories;
use crate::support::gateway::{api_key, upstream_tables};
use crate::support::{Gateway, Upstream};

/// A rule over lists and gets alike.
#[derive(Clone, Debug)]
struct Rule {
    allows: bool,
    caller: Option<&'static str>,
    upstream: Option<&'static str>,
    prompt: &'static str,
}

const CALLERS: [&str; 2] = ["alice", "bob"];
const PROMPTS: [&str; 3] = ["p", "q", "qq"];

fn rule() -> impl Strategy<Value = Rule> {
    let (caller, upstream) =
        (option::of(select(&CALLERS[..])), option::of(select(vec!["one", "two"])));
    let prompt = select(vec!["*", "p", "q*", "?"]);
    let parts = (prop::bool::weighted(0.7), caller, upstream, prompt);
    parts.prop_map(|(allows, caller, upstream, prompt)| Rule { allows, caller, upstream, prompt })
}

impl Rule {
    fn table(&self) -> String {
        let effect = if self.allows { "allow" } else { "deny" };
        let one = |key: &str, value: Option<&str>| {
            value.map(|value| format!("{key} = [\"{value}\"]\n")).unwrap_or_default()
        };
        let places = one("callers", self.caller) + &one("upstreams", self.upstream);
        let prompts = one("prompts", Some(self.prompt));
        format!("[[access.rules]]\n{effect} = [\"list\", \"get\"]\n{places}{prompts}")
    }
}

#[test]
fn property_5_what_is_listed_can_be_got_and_nothing_else() {
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
    let names: Vec<_> =
        ["one", "two"].iter().flat_map(|id| PROMPTS.map(|name| format!("{id}__{name}"))).collect();
    over_histories(24, rule(), |rules| {
        let rules: String = rules.iter().take(6).map(Rule::table).collect();
        runtime.block_on(async {
            gateway.reload(&(toml.clone() + &rules)).await;
            for caller in CALLERS {
                let client = gateway.client().with("X-API-Key", caller);
                let listed = client.names().await.0;
                for name in &names {
                    let got = client.modern("prompts/get", json!({"name": name})).await.json();
                    let reason = &got["error"]["data"]["reason"];
                    match listed.contains(name) {
                        true => assert!(got["result"]["messages"].is_array(), "{caller} {got}"),
                        false => assert_eq!(reason, "unknown_prompt", "{caller} {name} {got}"),
                    }
                }
            }
        });
    });
}
