//! Rate limits: who asks too often hears when to come again, and nobody else is the worse for it.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::approvals::{Folder, enforced};
use super::audit::Log;
use crate::support::client::{Reply, modern, request};
use crate::support::gateway::api_key;
use crate::support::{Client, Gateway, Process, Upstream, eventually};

/// One call of each bucket an hour, but for the burst: nothing is refilled while a test runs.
fn limit(name: &str, per: &str, burst: u32, rest: &str) -> String {
    format!("[[limits]]\nname = \"{name}\"\nper = {per}\nrate = \"1/h\"\nburst = {burst}\n{rest}")
}

fn keys() -> String {
    api_key("alice", "alice") + &api_key("bob", "bob")
}

fn as_caller(gateway: &Gateway, id: &str) -> Client {
    gateway.client().with("X-API-Key", id)
}

async fn get(client: &Client, name: &str) -> Reply {
    client.modern("prompts/get", json!({"name": name})).await
}

fn assert_limited(reply: &Reply, limit: &str) {
    assert_eq!(reply.refusal(), (429, -32603, "rate_limited".into()), "{reply:?}");
    let data = &reply.json()["error"]["data"];
    assert_eq!(data["limit"], limit);
    let millis = data["retryAfterMs"].as_u64().expect("a time to wait");
    assert!(millis > 3_500_000 && millis <= 3_600_000, "{millis}");
    let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(seconds, millis.div_ceil(1000));
}

#[tokio::test]
async fn p4_one_more_than_the_burst_is_refused_and_nobody_else_is() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let limit = limit("gets", "[\"caller\"]", 3, "methods = [\"prompts/get\"]\n");
    let gateway = Gateway::start(&(keys() + &limit + &upstream.table("up"))).await;
    let (alice, bob) = (as_caller(&gateway, "alice"), as_caller(&gateway, "bob"));
    for _ in 0..3 {
        assert_eq!(get(&alice, "up__p").await.status, 200);
    }
    let refused = get(&alice, "up__p").await;
    assert_limited(&refused, "gets");
    assert_eq!(refused.json()["id"], 1, "it is the answer to this request");
    let gets = || upstream.methods().iter().filter(|method| *method == "prompts/get").count();
    assert_eq!(gets(), 3, "the upstream has not heard of it");
    assert_eq!(get(&bob, "up__p").await.status, 200);
    assert_eq!(alice.names().await.0, ["up__p"], "lists are not counted");
    // The session of whoever was refused lives on.
    let alice = alice.legacy("2025-11-25").await;
    let refused = alice.post(&request(7, "prompts/get", json!({"name": "up__p"}))).await;
    assert_limited(&refused, "gets");
    assert_eq!(alice.post(&request(8, "prompts/list", json!({}))).await.status, 200);
}

#[tokio::test]
async fn p4_lists_that_are_refused_are_on_record_although_lists_are_not() {
    let (upstream, log) = (Upstream::with_prompts(&["p"]).await, Log::new());
    let limit = limit("all", "[\"caller\"]", 1, "");
    let toml = keys() + &limit + &log.table() + "list = false\n" + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let alice = as_caller(&gateway, "alice");
    assert_eq!(alice.modern("prompts/list", json!({})).await.status, 200);
    for _ in 0..9 {
        assert_eq!(alice.modern("prompts/list", json!({})).await.status, 429);
    }
    gateway.drain().await;
    let refused = log.of("refused");
    assert!(refused.iter().all(|event| event["reason"] == "rate_limited"), "{refused:?}");
    let counts = refused.iter().filter_map(|event| event["count"].as_u64());
    assert_eq!(counts.sum::<u64>(), 9, "{refused:?}");
}

#[tokio::test]
async fn p4_lists_and_completions_can_be_limited_too() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let limit = limit("all", "[\"caller\", \"method\"]", 1, "");
    let gateway = Gateway::start(&(keys() + &limit + &upstream.table("up"))).await;
    let alice = as_caller(&gateway, "alice");
    let complete = json!({"ref": {"type": "ref/prompt", "name": "up__p"}, "argument": {"name": "a", "value": ""}});
    let calls = [
        ("prompts/list", json!({})),
        ("prompts/get", json!({"name": "up__p"})),
        ("completion/complete", complete),
    ];
    for (method, params) in &calls {
        assert_eq!(alice.modern(method, params.clone()).await.status, 200, "{method}");
    }
    for (method, params) in calls {
        assert_limited(&alice.modern(method, params).await, "all");
    }
}

#[tokio::test]
async fn p1_a_limit_by_prompt_does_not_tell_what_is_denied() {
    let upstream = Upstream::with_prompts(&["p", "secret"]).await;
    let rules = "[[access.rules]]\nallow = [\"list\", \"get\"]\nprompts = [\"p\"]\n";
    let limit = limit("by prompt", "[\"prompt\"]", 1, "");
    let toml = keys() + rules + &limit + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let (alice, bob) = (as_caller(&gateway, "alice"), as_caller(&gateway, "bob"));
    for name in ["up__secret", "up__never"] {
        let answers = [get(&alice, name).await, get(&alice, name).await, get(&bob, name).await];
        for answer in answers {
            assert_eq!(answer.refusal(), (200, -32602, "unknown_prompt".into()));
        }
    }
    assert_eq!(get(&alice, "up__p").await.status, 200);
    assert_limited(&get(&bob, "up__p").await, "by prompt");
}

#[tokio::test]
async fn a11_an_address_is_counted_before_its_keys_are_looked_at() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let limit = limit("knocks", "[\"address\"]", 5, "");
    let proxied = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n".to_owned();
    let gateway = Gateway::start(&(proxied + &keys() + &limit + &upstream.table("up"))).await;
    let stranger = as_caller(&gateway, "a guess").with("X-Forwarded-For", "192.0.2.1");
    for _ in 0..5 {
        assert_eq!(get(&stranger, "up__p").await.status, 401);
    }
    assert_limited(&get(&stranger, "up__p").await, "knocks");
    // Not even a good key from there, and nobody from elsewhere is the worse for it.
    let alice = as_caller(&gateway, "alice").with("X-Forwarded-For", "192.0.2.1");
    assert_limited(&get(&alice, "up__p").await, "knocks");
    let alice = as_caller(&gateway, "alice").with("X-Forwarded-For", "192.0.2.2");
    assert_eq!(get(&alice, "up__p").await.status, 200);
}

#[tokio::test]
async fn p4_each_item_of_a_batch_and_each_line_of_a_stream_counts() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let limit = limit("two", "[\"caller\"]", 2, "");
    let gateway = Gateway::start(&(limit + &upstream.table("up"))).await;
    let client = gateway.client().legacy("2025-03-26").await;
    let items: Vec<_> =
        (1..=3).map(|id| request(id, "prompts/get", json!({"name": "up__p"}))).collect();
    let reply = client.post(&json!(items)).await;
    let answers = reply.answers();
    let refused: Vec<_> = answers.iter().filter(|answer| answer.get("error").is_some()).collect();
    assert_eq!((answers.len(), refused.len()), (3, 1));
    assert_eq!(refused[0]["error"]["data"]["reason"], "rate_limited");

    let (input, mut output) = tokio::io::split(gateway.stdio());
    let mut lines = BufReader::new(input).lines();
    for id in 1..=3 {
        let (body, _) = modern(id, "prompts/get", json!({"name": "up__p"}));
        output.write_all(format!("{body}\n").as_bytes()).await.unwrap();
        let answer: Value =
            serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
        assert_eq!(answer["error"]["data"]["reason"] == "rate_limited", id == 3, "{answer}");
    }
}

#[tokio::test]
async fn d4_requests_about_sessions_are_counted_by_limits_that_name_them() {
    for method in ["initialize", "ping", "delete"] {
        let limit = limit(method, "[\"caller\"]", 1, &format!("methods = [\"{method}\"]\n"));
        let gateway = Gateway::start(&(keys() + &limit)).await;
        let send = async |client: &Client| {
            let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
            match method {
                "delete" => client.send("DELETE", "/mcp", &[], b"").await,
                method => client.post(&request(1, method, params)).await,
            }
        };
        let alice = as_caller(&gateway, "alice").legacy("2025-11-25").await;
        if method != "initialize" {
            assert_eq!(send(&alice).await.status, 200, "{method}");
        }
        assert_limited(&send(&alice).await, method);
        let bob = as_caller(&gateway, "bob");
        let bob = if method == "initialize" { bob } else { bob.legacy("2025-11-25").await };
        assert_eq!(send(&bob).await.status, 200, "{method}: other callers are not limited");
    }
}

#[tokio::test]
async fn d4_streams_are_counted_by_limits_that_name_them() {
    let stream = limit("streams", "[\"caller\"]", 1, "methods = [\"stream\"]\n");
    let listen = limit("listen", "[\"caller\"]", 1, "methods = [\"subscriptions/listen\"]\n");
    let gateway = Gateway::start(&(keys() + &stream + &listen)).await;
    let alice = as_caller(&gateway, "alice").legacy("2025-11-25").await;
    let accept = [("Accept", "text/event-stream")];
    let _open = alice.stream("GET", &accept, b"").await;
    assert_limited(&alice.send("GET", "/mcp", &accept, b"").await, "streams");
    assert_limited(&alice.send("GET", "/sse", &accept, b"").await, "streams");
    let bob = as_caller(&gateway, "bob");
    let _subscribed = bob.listen().await;
    let params = json!({"notifications": {"promptsListChanged": true}});
    assert_limited(&bob.modern("subscriptions/listen", params).await, "listen");
}

#[tokio::test]
async fn calls_of_the_gateway_itself_take_from_no_limit_and_are_in_no_numbers_of_callers() {
    let argument = json!([{"name": "tone", "required": true}, {"name": "topic"}]);
    let prompt = |n: usize| json!({"name": format!("p{n}"), "arguments": argument});
    let prompts: Vec<_> = (1..=8).map(prompt).collect();
    let upstream = Upstream::modern(move |asked| {
        (asked.method() == "prompts/list").then(|| asked.list(&json!(prompts)))
    })
    .await;
    let limits = limit("all", "[]", 1, "") + &limit("each", "[\"caller\"]", 1, "");
    let folder = Folder::new(&(enforced("[admin]\n") + &limits + &upstream.table("up")));
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let known = async || admin.send("GET", "/api/v1/approvals", &[], b"").await.json();
    let is_probed = |row: &Value| row["offered"]["texts"][0].is_object();
    let all =
        |list: &Value| list["prompts"].as_array().is_some_and(|all| all.iter().all(is_probed));
    eventually(known, all).await;
    for n in 1..=8 {
        let shown = admin.send("GET", &format!("/api/v1/approvals/up__p{n}"), &[], b"").await;
        assert_eq!((shown.status, &shown.json()["unseen"]), (200, &Value::Null), "{shown:?}");
    }
    let approve = ["approve", "--all-of", "up", "--yes", "--why", "reviewed"];
    let said = folder.approvals(&approve).await;
    assert_eq!(said.code, Some(0), "{said:?}");

    let upstreams = async || admin.send("GET", "/api/v1/upstreams", &[], b"").await.json();
    assert_eq!(upstreams().await["upstreams"][0]["lastHour"]["calls"], 0);
    // The caller still has all of its limit.
    let params = json!({"name": "up__p1", "arguments": {"tone": "warm"}});
    let get = async || process.client().modern("prompts/get", params.clone()).await;
    let listed = async || admin.send("GET", "/api/v1/catalog", &[], b"").await.json();
    eventually(listed, |all| all["prompts"].as_array().is_some_and(|all| all.len() == 8)).await;
    assert_eq!(get().await.status, 200);
    assert_limited(&get().await, "all");
    assert_eq!(upstreams().await["upstreams"][0]["lastHour"]["calls"], 1);
    process.stop().await;
    let own = |record: &&Value| record["caller"] == "promptgate";
    let records = folder.records();
    assert!(records.iter().filter(own).all(|record| record["event"] == "received"), "{records:?}");
    assert!(records.iter().filter(own).count() >= 32, "each is on record");
}
