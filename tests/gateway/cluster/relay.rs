//! Messages that reach another replica than the one that holds their call.

use std::sync::atomic::Ordering;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stores::{Registry, lists, serves};
use crate::support::client::request;
use crate::support::gateway::api_key;
use crate::support::replicas::{Replica, Replicas, Store};
use crate::support::server_request_upstream::{accept_blue, form_elicitation};
use crate::support::{Client, ClientMode, ModeClient, Upstream, eventually, metrics};
use crate::{hooks, rollouts};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const EVENTS: (&str, &str) = ("Accept", "text/event-stream");

fn get() -> Value {
    json!({"name": "up__p", "arguments": {"a": "1"}})
}

async fn asking(settings: &str) -> (Store, Upstream, Replicas) {
    let store = Store::start().await;
    let server_requests = vec![form_elicitation("Which colour?")];
    let upstream = Upstream::legacy_with_server_requests(server_requests).await;
    let toml = upstream.patient_table("up") + settings;
    let replicas = Replicas::start(&store.url(), &toml).await;
    (store, upstream, replicas)
}

/// A legacy client of a replica whose get waits for an answer: the stream of the get, and the
/// server request.
async fn asked(replica: &Replica) -> (Client, crate::support::client::Stream, Value) {
    let capabilities = json!({"elicitation": {"form": {}}});
    let client = replica.client().legacy_with("2025-11-25", capabilities).await;
    let body = request(7, "prompts/get", get()).to_string();
    let accept = ("Accept", "application/json, text/event-stream");
    let mut stream = client.stream("POST", &[JSON, accept], body.as_bytes()).await;
    let server_request = stream.event().await.expect("a server request").json();
    assert_eq!(server_request["method"], "elicitation/create");
    (client, stream, server_request)
}

fn answer(server_request: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": server_request["id"], "result": accept_blue()})
}

fn at(replica: &Replica, client: &Client) -> Client {
    replica.client().with("Mcp-Session-Id", client.session())
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn server_requests_are_answered_through_any_replica_in_every_cell() {
    let store = Store::start().await;
    let server_requests = || vec![form_elicitation("One?"), form_elicitation("Two?")];
    let upstreams = [
        Upstream::legacy_with_server_requests(server_requests()).await,
        Upstream::modern_with_input_requests(server_requests()).await,
    ];
    for upstream in upstreams {
        let toml = upstream.patient_table("up");
        let replicas = Replicas::start(&store.url(), &toml).await;
        let modes = [
            ClientMode::Http("2025-11-25"),
            ClientMode::Http("2025-06-18"),
            ClientMode::Sse("2025-11-25"),
            ClientMode::Modern,
        ];
        for mode in modes {
            // Three times, so that each message comes to each replica.
            for _ in 0..3 {
                let capabilities = json!({"elicitation": {"form": {}}});
                let client = replicas.client();
                let mut client = ModeClient::over_http(client, mode, capabilities).await;
                let (asked, answer) = client.get_answering(get(), |_| accept_blue()).await;
                assert_eq!(asked.len(), 2, "{mode:?}: {answer}");
                let text = answer["result"]["messages"][0]["content"]["text"].as_str().unwrap();
                assert_eq!(text, json!([accept_blue(), accept_blue()]).to_string(), "{mode:?}");
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn an_answer_is_taken_once_and_from_its_session_only() {
    let (_store, upstream, replicas) = asking("").await;
    let [first, second, third] = &replicas.replicas[..] else { panic!("three") };
    let (client, mut stream, server_request) = asked(first).await;
    // Another session knows the id of the server request, and is answered as if it were its own.
    let stranger = second.client().legacy("2025-11-25").await;
    assert_eq!(stranger.post(&answer(&server_request)).await.status, 202);
    let [second, third] = [second, third].map(|replica| at(replica, &client));
    assert_eq!(second.post(&answer(&server_request)).await.status, 202);
    assert_eq!(third.post(&answer(&server_request)).await.status, 202, "as on one replica");
    let done = stream.event().await.expect("the response").json();
    let text = done["result"]["messages"][0]["content"]["text"].as_str().unwrap();
    assert_eq!(text, json!([accept_blue()]).to_string());
    let received = upstream.received().into_iter();
    let answers = received.filter(|r| r.message.get("result").is_some());
    assert_eq!(answers.count(), 1, "the upstream gets one answer");
    let relayed = metrics(&replicas.replicas[1].admin, &["promptgate_cluster_relayed"]).await;
    let count = |outcome: &str| -> f64 {
        relayed.iter().filter(|(name, _)| name.contains(outcome)).map(|(_, n)| n).sum()
    };
    assert_eq!((count("\"handled\""), count("\"not_found\"")), (1.0, 1.0), "{relayed:?}");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_call_is_cancelled_through_another_replica() {
    let store = Store::start().await;
    let (upstream, _open) = Upstream::holding_a_get().await;
    let replicas = Replicas::start(&store.url(), &upstream.patient_table("up")).await;
    let client = replicas.replicas[0].client().legacy("2025-06-18").await;
    let call = {
        let client = client.clone();
        tokio::spawn(async move { client.post(&request(7, "prompts/get", get())).await })
    };
    upstream.received_gets(1).await;
    let cancel = |id: u64| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    let other = at(&replicas.replicas[1], &client);
    assert_eq!(other.post(&cancel(8)).await.status, 202, "no replica has it: it has ended");
    assert_eq!(other.post(&cancel(7)).await.status, 202);
    let ended = call.await.unwrap();
    assert_eq!((ended.status, ended.body.len()), (200, 0), "{ended:?}");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn posts_of_the_older_transport_reach_their_stream_and_nobody_elses() {
    let (_store, _upstream, replicas) = asking("").await;
    let [first, second, _] = &replicas.replicas[..] else { panic!("three") };
    let mut stream = first.client().stream_at("GET", "/sse", &[EVENTS], b"").await;
    let endpoint = stream.event().await.unwrap().data;
    let ping = request(1, "ping", json!({})).to_string();
    let post = async |client: &Client, path: &str, body: &str| {
        client.send("POST", path, &[JSON], body.as_bytes()).await
    };
    assert_eq!(post(&second.client(), &endpoint, &ping).await.status, 202);
    assert_eq!(stream.event().await.unwrap().json()["id"], 1);
    // A session that the replica does not have, and a replica that does not exist.
    let unknown = format!("{}{}", &endpoint[..endpoint.len() - 32], "0".repeat(32));
    assert_eq!(post(&second.client(), &unknown, &ping).await.status, 404);
    let nowhere = format!("/sse?sessionId={}", "0".repeat(48));
    assert_eq!(post(&second.client(), &nowhere, &ping).await.status, 404);
    drop(stream);
    let gone = async || post(&second.client(), &endpoint, &ping).await.status;
    eventually(gone, |status| *status == 404).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_message_that_is_too_large_for_the_relay_is_refused_at_its_border() {
    let (_store, _upstream, replicas) = asking("[cluster]\nrelay_size = \"1KiB\"\n").await;
    let (client, mut stream, server_request) = asked(&replicas.replicas[0]).await;
    let other = at(&replicas.replicas[1], &client);
    let mut message = answer(&server_request);
    message["result"]["_meta"] = json!({"pad": ""});
    let pad = |message: &mut Value, length: usize| {
        message["result"]["_meta"]["pad"] = json!("");
        let bare = message.to_string().len();
        message["result"]["_meta"]["pad"] = json!("x".repeat(length - bare));
    };
    pad(&mut message, 1025);
    let (status, _, reason) = other.post(&message).await.refusal();
    assert_eq!((status, reason.as_str()), (413, "relay_too_large"));
    pad(&mut message, 1024);
    assert_eq!(other.post(&message).await.status, 202);
    assert!(stream.event().await.expect("the response").json().get("result").is_some());
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_message_that_nobody_acknowledges_is_refused_within_the_deadline_of_the_call() {
    let (_store, _upstream, replicas) = asking("[server.limits]\nrequest = \"5s\"\n").await;
    let [first, second, third] = &replicas.replicas[..] else { panic!("three") };
    let (client, mut stream, server_request) = asked(first).await;
    first.process.signal(Signal::STOP);
    let refused = at(second, &client).post(&answer(&server_request)).await;
    assert_eq!(refused.header("retry-after"), Some("1"));
    let (status, _, reason) = refused.refusal();
    assert_eq!((status, reason.as_str()), (503, "replica_unreachable"));
    first.process.signal(Signal::CONT);
    // Once more, as the error says.
    let again = async || at(third, &client).post(&answer(&server_request)).await.status;
    eventually(again, |status| *status == 202).await;
    assert!(stream.event().await.expect("the response").json().get("result").is_some());
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_session_of_the_older_transport_takes_posts_of_its_caller_only() {
    let store = Store::start().await;
    let replicas = Replicas::start(&store.url(), &super::limited()).await;
    let [first, second, _] = &replicas.replicas[..] else { panic!("three") };
    let [own, other] = [0, 1].map(|n| ("Authorization", super::bearer(n)));
    let own = (own.0, own.1.as_str());
    let mut stream = first.client().stream_at("GET", "/sse", &[EVENTS, own], b"").await;
    let endpoint = stream.event().await.unwrap().data;
    let ping = request(1, "ping", json!({})).to_string();
    let post = async |by: (&str, &str)| {
        second.client().send("POST", &endpoint, &[JSON, by], ping.as_bytes()).await.status
    };
    assert_eq!(post((other.0, other.1.as_str())).await, 404);
    assert_eq!(post(own).await, 202);
    assert_eq!(stream.event().await.unwrap().json()["id"], 1, "and nothing of the other caller");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn messages_for_a_replica_that_was_killed_are_refused_and_later_unknown() {
    let store = Store::start().await;
    let mut replicas = Replicas::start(&store.url(), "").await;
    let killed = replicas.replicas.remove(0);
    let mut stream = killed.client().stream_at("GET", "/sse", &[EVENTS], b"").await;
    let endpoint = stream.event().await.unwrap().data;
    let session = killed.client().legacy("2025-06-18").await.session().to_owned();
    killed.process.kill().await;
    let left = replicas.replicas[0].client();
    let ping = request(1, "ping", json!({})).to_string();
    let post = async || left.send("POST", &endpoint, &[JSON], ping.as_bytes()).await.status;
    let first = post().await;
    assert!([404, 503].contains(&first), "{first}");
    eventually(post, |status| *status == 404).await;
    // Nobody that lives has the call: it has ended.
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": 1}});
    let client = left.clone().with("Mcp-Session-Id", &session);
    assert_eq!(client.post(&cancel).await.status, 202);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_webhook_that_one_replica_gets_is_heard_by_all() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    let prompts = registry.serve().await;
    let store = Store::start().await;
    let replicas = Replicas::start(&store.url(), &hooks::table(&prompts)).await;
    for replica in &replicas.replicas {
        serves(&replica.client(), "s__greet", &["one"]).await;
    }
    registry.publish("greet", "two");
    let delivered = hooks::deliver(&replicas.client(), "/mcp/hooks/s").await;
    assert_eq!(delivered.status, 202);
    for replica in &replicas.replicas {
        serves(&replica.client(), "s__greet", &["two"]).await;
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_removal_that_is_accepted_at_one_replica_is_applied_by_all() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    let prompts = registry.serve().await;
    let store = Store::start().await;
    let toml = hooks::table(&prompts).replace("1d", "100ms") + rollouts::ADMIN;
    let replicas = Replicas::start(&store.url(), &toml).await;
    for replica in &replicas.replicas {
        serves(&replica.client(), "s__greet", &["one"]).await;
    }
    registry.remove("greet");
    let held = async |replica: &Replica| {
        replica.admin.send("GET", "/api/v1/upstreams", &[], b"").await.json()["upstreams"][0]
            .to_string()
    };
    for replica in &replicas.replicas {
        eventually(async || held(replica).await, |row| row.contains("lists 0 prompts")).await;
    }
    let admin = replicas.replicas[0].admin.clone().with("Content-Type", "application/json");
    let accepted = admin.send("POST", "/api/v1/upstreams/s/accept", &[], b"{}").await;
    assert_eq!(accepted.status, 200, "{accepted:?}");
    for replica in &replicas.replicas {
        lists(&replica.client(), &[]).await;
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn replicas_roll_back_and_begin_again_together() {
    let (upstream, fails) = rollouts::upstream(&[]).await;
    let rule = "share = 1\nrollback = { share = 0, over = 2 }";
    let toml = rollouts::ADMIN.to_owned()
        + &upstream.table("up")
        + &rollouts::rollout(rule)
        + &api_key("ada", "ada")
        + &api_key("bob", "bob");
    let store = Store::start().await;
    let replicas = Replicas::start(&store.url(), &toml).await;
    let each = || replicas.replicas.iter().map(|replica| replica.client().with("X-API-Key", "ada"));
    for ada in each() {
        assert_eq!(rollouts::got(&ada).await, "refund@candidate");
    }
    fails.store(true, Ordering::SeqCst);
    let first = replicas.replicas.first().unwrap();
    for caller in ["ada", "bob"] {
        let caller = first.client().with("X-API-Key", caller);
        assert_eq!(rollouts::got(&caller).await, "upstream_error");
    }
    for ada in each() {
        // A replica that has not heard of it yet answers with a failure.
        eventually(async || rollouts::got(&ada).await, |text| text == "refund").await;
    }
    fails.store(false, Ordering::SeqCst);
    // Replicas that start without the folders of the first know of it before they serve a version.
    drop(replicas);
    let replicas = Replicas::start(&store.url(), &toml).await;
    let each = || replicas.replicas.iter().map(|replica| replica.client().with("X-API-Key", "ada"));
    for ada in each() {
        assert_eq!(rollouts::got(&ada).await, "refund");
    }
    for replica in &replicas.replicas {
        let look = async || rollouts::look(&replica.admin).await["state"].clone();
        eventually(look, |state| state == "rolled_back").await;
    }
    let last = replicas.replicas.last().unwrap();
    let admin = last.admin.clone().with("Content-Type", "application/json");
    assert_eq!(rollouts::rearm(&admin, "up__refund").await.1, json!({"changed": true}));
    for ada in each() {
        eventually(async || rollouts::got(&ada).await, |text| text == "refund@candidate").await;
    }
}
