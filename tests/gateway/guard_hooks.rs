//! Hooks of guards: a server of the operator decides on texts, and may fail in every way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::approval_notifications::{KEY, verified};
use crate::audit::Log;
use crate::guards::{CLIENTS, assert_denied, get, guard, text};
use crate::support::gateway::api_key;
use crate::support::upstream::HANG;
use crate::support::{Client, Gateway, ModeClient, Received, Scripted, Upstream, eventually};

/// An enforced guard with this hook.
fn hooked(on: &str, hook: &Upstream, keys: &str) -> String {
    let http = format!(
        "http = {{ url = \"http://{}/hook?t=1\", secret = {{ value = \"whsec_{KEY}\" }}{keys} }}",
        hook.addr
    );
    guard("words", on, &http)
}

fn answer(answer: &Value) -> Scripted {
    Scripted::Json(answer.clone())
}

fn allow() -> Scripted {
    answer(&json!({"decision": "allow"}))
}

/// A hook that denies arguments with `rude`, and replaces the text of a result.
async fn moderator() -> Upstream {
    Upstream::start(|asked| {
        let arguments = asked.message["arguments"].to_string();
        if asked.message["event"] == "results" {
            let replacement = json!({"pointer": "/messages/0/content/text", "value": "\"calm\""});
            let replacements = json!([replacement]);
            return answer(&json!({"decision": "mask", "replacements": replacements}));
        }
        if arguments.contains("rude") {
            return answer(&json!({"decision": "deny", "reason": "insults",
                "message": "Please be polite."}));
        }
        allow()
    })
    .await
}

#[tokio::test]
async fn a_hook_decides_by_a_signed_message_for_clients_of_both_eras() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let hook = moderator().await;
    let log = Log::new();
    let toml = "[telemetry]\nservice_name = \"house\"\n".to_owned()
        + &hooked("arguments\", \"results", &hook, "")
        + &upstream.table("up")
        + &log.table();
    let gateway = Gateway::start(&toml).await;
    for client_mode in CLIENTS {
        let mut client = ModeClient::connect(&gateway, client_mode).await;
        let ask = |text: &str| json!({"name": "up__p", "arguments": {"a": text}});
        let refused = client.answer("prompts/get", ask("rude words")).await;
        assert_denied(&refused, "insults");
        assert!(refused.to_string().contains("Please be polite."), "{refused}");
        let result = client.ask("prompts/get", ask("kind words")).await;
        assert_eq!(text(&result), "\"calm\"", "{client_mode:?}");
    }
    let messages: Vec<_> = hook.received().iter().map(verified).collect();
    assert_eq!(messages.len(), 3 * CLIENTS.len());
    let digest = |text: &str| base::seal::sha256_text(text.as_bytes());
    let about = json!({"gateway": "house", "guard": "words", "caller": "anonymous", "groups": [],
        "upstream": "up", "prompt": "up__p"});
    let mut expected = about;
    expected["event"] = json!("arguments");
    expected["digest"] = json!(digest(r#"{"a":"rude words"}"#));
    expected["arguments"] = json!({"a": "rude words"});
    assert_eq!(messages[0], expected);
    let result = &messages[2]["result"];
    assert_eq!(text(result), "\"p\" {\"a\":\"kind words\"}", "{result}");
    let records = log.of("guard");
    let outcomes: Vec<_> =
        records.iter().map(|record| (&record["outcome"], &record["code"])).collect();
    assert_eq!(outcomes[0], (&json!("denied"), &json!("insults")));
    assert_eq!(outcomes[1], (&json!("masked"), &json!("hook")));
    assert!(!log.text().contains("rude words") && !log.text().contains("polite"));
    gateway.drain().await;
}

#[tokio::test]
async fn completions_and_passthrough_are_decided_by_a_hook() {
    let upstream = Upstream::modern(|asked| match asked.method() {
        "server/discover" => Some(asked.result(json!({"resultType": "complete", "ttlMs": 0,
            "cacheScope": "public", "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}, "prompts": {}, "completions": {}}}))),
        "completion/complete" => Some(asked.result(json!({"resultType": "complete",
            "completion": {"values": ["one", "two"]}}))),
        "tools/call" => Some(asked.result(json!({"resultType": "complete", "content":
            [{"type": "text", "text": asked.message["params"]["arguments"]["a"]}]}))),
        _ => None,
    })
    .await;
    let hook = Upstream::start(|asked| {
        let message = &asked.message;
        let pointer = match (message["event"].as_str(), message.get("result").is_some()) {
            (Some("completions"), true) => "/1",
            (Some("passthrough"), false) => "/arguments/a",
            _ => return allow(),
        };
        let replacements = json!([{"pointer": pointer, "value": "new"}]);
        answer(&json!({"decision": "mask", "replacements": replacements}))
    })
    .await;
    let toml = "[passthrough]\nupstream = \"up\"\n".to_owned()
        + &hooked("completions\", \"passthrough", &hook, "")
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let argument = json!({"name": "a", "value": "o"});
    let params = json!({"ref": {"type": "ref/prompt", "name": "up__p"}, "argument": argument});
    let completed = client.ask("completion/complete", params).await;
    assert_eq!(completed["completion"]["values"], json!(["one", "new"]), "{completed}");
    let called = client.ask("tools/call", json!({"name": "t", "arguments": {"a": "old"}})).await;
    assert_eq!(called["content"][0]["text"], "new", "{called}");
    gateway.drain().await;
}

/// What a hook does, its answer, and the error in the record.
type HookFailure = (&'static str, fn(&Received) -> Scripted, &'static str);

const FAILURES: [HookFailure; 9] = [
    ("hangs", |_| HANG, "no response in time"),
    ("answers no JSON", |_| Scripted::Http(200, vec![], b"allow".to_vec()), "is not JSON"),
    ("decides otherwise", |_| answer(&json!({"decision": "maybe"})), "`decision` is not"),
    (
        "masks another place",
        |_| {
            let replacements = json!([{"pointer": "/b", "value": "x"}]);
            answer(&json!({"decision": "mask", "replacements": replacements}))
        },
        "names no text",
    ),
    ("answers 10 MB", |_| Scripted::Http(200, vec![], vec![b' '; 10 << 20]), "larger than 256 KiB"),
    ("closes", |_| Scripted::Break(Vec::new()), "the connection broke"),
    (
        "breaks off",
        |_| Scripted::Break(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_vec()),
        "broke off",
    ),
    (
        "redirects",
        |_| Scripted::Http(307, vec![("Location", "/hook?t=2".to_owned())], Vec::new()),
        "HTTP 307",
    ),
    (
        "repeats the text in an error",
        |asked| Scripted::Http(500, vec![], asked.body.clone()),
        "HTTP 500",
    ),
];

#[tokio::test]
async fn a_hook_that_does_not_decide_refuses_the_text_unless_it_may_pass() {
    for (what, script, why) in FAILURES {
        let upstream = Upstream::with_prompts(&["p"]).await;
        let hook = Upstream::start(script).await;
        for on_failure in ["refuse", "observe"] {
            let log = Log::new();
            let keys = format!(", timeout = \"300ms\", on_failure = \"{on_failure}\"");
            let toml = hooked("arguments", &hook, &keys) + &upstream.table("up") + &log.table();
            let gateway = Gateway::start(&toml).await;
            let answer = get(&gateway.client(), "s3cret").await;
            if on_failure == "refuse" {
                assert_denied(&answer, "hook_failed");
                assert_eq!(upstream.gets().len(), 0, "{what}");
            } else {
                assert!(text(&answer["result"]).contains("s3cret"), "{what}: {answer}");
            }
            let record = log.wait_for("guard").await;
            assert_eq!(record["outcome"], "failed", "{what}: {record}");
            assert!(record["error"].as_str().unwrap().contains(why), "{what}: {record}");
            assert!(!log.text().contains("s3cret"), "{what}");
            gateway.drain().await;
        }
        let paths: Vec<_> = hook.received().iter().map(|asked| asked.path.clone()).collect();
        assert!(paths.iter().all(|path| path == "/hook?t=1"), "{what}: {paths:?}");
        let attempts = if what == "closes" { 4 } else { 2 };
        assert_eq!(paths.len(), attempts, "{what}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_before_the_answer_is_replaced_once_by_the_same_message() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let has_closed = AtomicBool::new(false);
    let hook = Upstream::start(move |_| {
        if has_closed.swap(true, Ordering::SeqCst) { allow() } else { Scripted::Break(Vec::new()) }
    })
    .await;
    let gateway = Gateway::start(&(hooked("arguments", &hook, "") + &upstream.table("up"))).await;
    assert!(text(&get(&gateway.client(), "x").await["result"]).contains('x'));
    let received = hook.received();
    let ids: Vec<_> = received.iter().map(|asked| asked.header("webhook-id")).collect();
    assert!(ids.len() == 2 && ids[0].is_some() && ids[0] == ids[1], "{ids:?}");
    gateway.drain().await;
}

#[tokio::test]
async fn a_hook_that_fails_for_several_callers_is_left_alone_for_a_time() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let hook = Upstream::start(|_| Scripted::Http(503, vec![], vec![])).await;
    let toml = hooked("arguments", &hook, "")
        + &api_key("a", "ka")
        + &api_key("b", "kb")
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let callers =
        ["ka", "kb"].map(|key| gateway.client().with("Authorization", &format!("Bearer {key}")));
    let failing = async || {
        for caller in &callers {
            assert_denied(&get(caller, "x").await, "hook_failed");
        }
        hook.received().len()
    };
    let mut before = failing().await;
    loop {
        let after = failing().await;
        if after == before {
            break;
        }
        assert!(after < 20, "the hook is still asked");
        before = after;
    }
    gateway.drain().await;
}

#[tokio::test]
async fn two_hundred_callers_that_wait_for_a_hook_delay_no_caller_without_it() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let released = Arc::new(Notify::new());
    let is_released = Arc::new(AtomicBool::new(false));
    let (end, ended) = (released.clone(), is_released.clone());
    let hook = Upstream::start(move |_| {
        if ended.load(Ordering::SeqCst) {
            return allow();
        }
        Scripted::LateEnd(br#"{"decision":"allow"}"#.to_vec(), end.clone())
    })
    .await;
    let table =
        upstream.patient_table("up") + "in_flight = 1\nqueue = 1000\nqueue_wait = \"30s\"\n";
    let toml = "[server.limits]\nshare = 1.0\n".to_owned()
        + &hooked("arguments\", \"results", &hook, ", timeout = \"60s\"")
        + "callers = [\"slow\"]\n"
        + &api_key("slow", "ks")
        + &api_key("fast", "kf")
        + &table;
    let gateway = Gateway::start(&toml).await;
    let client = |key: &str| gateway.client().with("Authorization", &format!("Bearer {key}"));
    let mut waiting = JoinSet::new();
    for _ in 0..200 {
        let slow: Client = client("ks");
        waiting.spawn(async move { get(&slow, "slow").await });
    }
    hook.until(|received| received.len() == 64).await;
    let fast = client("kf");
    for _ in 0..20 {
        assert!(text(&get(&fast, "fast").await["result"]).contains("fast"));
    }
    assert!(waiting.try_join_next().is_none(), "the others still wait");
    assert_eq!(hook.received().len(), 64, "no more requests at a time");
    is_released.store(true, Ordering::SeqCst);
    let releasing = async || {
        released.notify_waiters();
        while let Some(answer) = waiting.try_join_next() {
            let answer = answer.unwrap();
            assert!(text(&answer["result"]).contains("slow"), "{answer}");
        }
        waiting.len()
    };
    eventually(releasing, |left| *left == 0).await;
    gateway.drain().await;
}
