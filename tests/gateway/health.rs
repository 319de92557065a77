//! Upstreams that are not well: left alone in time, tried again in time, and never waited for by
//! too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::approvals::Folder;
use crate::support::client::request;
use crate::support::gateway::api_key;
use crate::support::upstream::HANG;
use crate::support::{
    Client, Counter, Gateway, Process, Scripted, Upstream, eventually, write_greeting,
};

fn gets(upstream: &Upstream) -> usize {
    upstream.methods().iter().filter(|method| *method == "prompts/get").count()
}

#[tokio::test]
async fn u16_after_failures_of_several_callers_and_prompts_an_upstream_is_left_alone_for_a_time() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = is_well.clone();
    let upstream = Upstream::modern(move |asked| match asked.method() {
        "prompts/list" => Some(asked.list(&json!([{"name": "p"}, {"name": "q"}]))),
        "prompts/get" if !well.load(Ordering::SeqCst) => Some(Scripted::Http(500, vec![], vec![])),
        _ => None,
    })
    .await;
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned()
        + &two_keys()
        + &upstream.patient_table("up")
        + "breaker = { failures = 3, open_min = \"3s\", open_max = \"3s\" }\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let client = |key: &str| gateway.client().with("X-API-Key", key);
    let get = async |key: &str, name: &str| {
        let reply = client(key).modern("prompts/get", json!({ "name": name })).await;
        assert_eq!(reply.status, 200);
        reply.json()
    };
    for [key, name] in [["pg_a", "up__p"], ["pg_b", "up__q"], ["pg_a", "up__p"]] {
        assert_eq!(get(key, name).await["error"]["data"]["reason"], "upstream_http_error");
    }
    let error = get("pg_b", "up__p").await["error"].clone();
    assert_eq!(error["data"]["reason"], "upstream_unavailable");
    assert_eq!(error["message"], "upstream `up`: not reachable at present");
    assert_eq!(gets(&upstream), 3, "it is left alone");
    let shown = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
    assert_eq!(shown["upstreams"][0]["breaker"], "open");
    // Its list is served meanwhile.
    assert_eq!(client("pg_a").names().await.0, ["up__p", "up__q"]);
    is_well.store(true, Ordering::SeqCst);
    // It answers the gateway after that time, and no call has tried before.
    eventually(async || get("pg_b", "up__p").await, |reply| reply.get("result").is_some()).await;
    assert_eq!(gets(&upstream), 4);
    for _ in 0..5 {
        assert!(get("pg_a", "up__q").await.get("result").is_some());
    }
}

/// Two callers, `a` and `b`.
pub fn two_keys() -> String {
    api_key("a", "pg_a") + &api_key("b", "pg_b")
}

/// Gets `boom` as `a` over and over, and after each of them another prompt as `b`.
pub async fn provoke(gateway: &Gateway, prefix: &str) {
    let as_caller = |key: &str| gateway.client().with("X-API-Key", key);
    let (a, b) = (as_caller("pg_a"), as_caller("pg_b"));
    for n in 0..20 {
        let get = |client: &Client, prompt: &str| {
            let (client, name) = (client.clone(), format!("{prefix}__{prompt}"));
            async move { client.modern("prompts/get", json!({ "name": name })).await.json() }
        };
        let refused = get(&a, "boom").await;
        let reason = refused["error"]["data"]["reason"].as_str().unwrap().to_owned();
        let fine = get(&b, "fine").await;
        assert!(fine.get("result").is_some(), "call {n}, after {reason}: {fine}");
    }
}

#[tokio::test]
async fn one_caller_or_prompt_that_fails_refuses_no_other() {
    for is_reset in [false, true] {
        let upstream = Upstream::modern(move |asked| match asked.method() {
            "prompts/list" => Some(asked.list(&json!([{"name": "boom"}, {"name": "fine"}]))),
            "prompts/get" if asked.message["params"]["name"] == "boom" && is_reset => {
                Some(Scripted::Break(vec![]))
            }
            "prompts/get" if asked.message["params"]["name"] == "boom" => {
                Some(Scripted::Http(500, vec![], vec![]))
            }
            _ => None,
        })
        .await;
        let toml = two_keys() + &upstream.patient_table("up") + "breaker = { open_min = \"1m\" }\n";
        let gateway = Gateway::start(&toml).await;
        provoke(&gateway, "up").await;
        // A prompt that fails for both refuses no other.
        for key in ["pg_b", "pg_a"].repeat(6) {
            let client = gateway.client().with("X-API-Key", key);
            let boom = client.modern("prompts/get", json!({"name": "up__boom"})).await.json();
            assert_ne!(boom["error"]["data"]["reason"], "upstream_unavailable");
        }
        let a = gateway.client().with("X-API-Key", "pg_a");
        let fine = a.modern("prompts/get", json!({"name": "up__fine"})).await.json();
        assert!(fine.get("result").is_some(), "{fine}");
    }
}

#[tokio::test]
async fn an_upstream_that_answers_nobody_is_refused_to_all_and_found_again_by_the_gateway() {
    let is_well = Arc::new(AtomicBool::new(true));
    let well = is_well.clone();
    let upstream = Upstream::modern(move |asked| {
        let breaks = asked.method() != "prompts/list" && !well.load(Ordering::SeqCst);
        breaks.then(|| Scripted::Http(503, vec![], vec![]))
    })
    .await;
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned()
        + &two_keys()
        + &upstream.patient_table("up")
        + "breaker = { failures = 3, open_min = \"200ms\" }\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let get = async |key: &str| {
        let client = gateway.client().with("X-API-Key", key);
        client.modern("prompts/get", json!({"name": "up__p"})).await.json()
    };
    is_well.store(false, Ordering::SeqCst);
    for _ in 0..3 {
        get("pg_a").await;
    }
    // The gateway has asked by itself: others need not fail first.
    let shown = async || gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
    eventually(shown, |shown| shown["upstreams"][0]["breaker"] == "open").await;
    assert_eq!(get("pg_b").await["error"]["data"]["reason"], "upstream_unavailable");
    is_well.store(true, Ordering::SeqCst);
    eventually(shown, |shown| shown["upstreams"][0]["breaker"] == "closed").await;
    assert!(get("pg_b").await.get("result").is_some());
    assert!(get("pg_a").await.get("result").is_some());
}

#[tokio::test]
async fn texts_that_the_gateway_fails_to_learn_open_no_circuit() {
    let upstream = Upstream::modern(|asked| match asked.method() {
        "prompts/list" => Some(asked.list(&json!([{"name": "p"}, {"name": "q"}, {"name": "r"}]))),
        "prompts/get" | "ping" => Some(Scripted::Http(503, vec![], vec![])),
        _ => None,
    })
    .await;
    let more = "[admin]\n[approvals]\nmode = \"enforce\"\n";
    let table = upstream.patient_table("up") + "breaker = { failures = 1, open_min = \"1m\" }\n";
    let folder = Folder::new(&(more.to_owned() + &table));
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let shown = async || admin.send("GET", "/api/v1/upstreams", &[], b"").await.json();
    eventually(async || gets(&upstream), |gets| *gets >= 3).await;
    let shown = shown().await["upstreams"][0].take();
    assert_eq!((&shown["breaker"], &shown["lastHour"]["calls"]), (&json!("closed"), &json!(0)));
    process.stop().await;
}

#[tokio::test]
async fn errors_of_its_own_do_not_speak_against_an_upstream() {
    let upstream = Upstream::modern(|asked| {
        (asked.method() == "prompts/get").then(|| asked.error(-32602, "no such colour"))
    })
    .await;
    let toml = upstream.patient_table("up") + "breaker = { failures = 1 }\n";
    let gateway = Gateway::start(&toml).await;
    for n in 1..5 {
        let error = gateway.client().ask_error("prompts/get", json!({"name": "up__p"})).await;
        assert_eq!((&error["message"], gets(&upstream)), (&json!("no such colour"), n));
    }
}

#[tokio::test]
async fn beyond_its_queue_calls_are_told_at_once_that_an_upstream_is_busy() {
    let upstream =
        Upstream::modern(|asked| (asked.method() == "prompts/get").then_some(HANG)).await;
    let toml = upstream.patient_table("up")
        + "in_flight = 1\nqueue = 1\nqueue_wait = \"300ms\"\ntimeout = \"20s\"\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let call = || {
        let client = gateway.client();
        tokio::spawn(async move { client.modern("prompts/get", json!({"name": "up__p"})).await })
    };
    let running = call();
    upstream.received_gets(1).await;
    // One waits for a place as long as it may, the other is told before.
    let (one, two) = (call(), call());
    for refused in [one.await.unwrap(), two.await.unwrap()] {
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(refused.json()["error"]["data"]["reason"], "upstream_busy");
    }
    assert_eq!(gets(&upstream), 1);
    running.abort();
}

/// An upstream whose prompt says something that nobody sees.
async fn whispering() -> Upstream {
    Upstream::modern(|asked| {
        let text =
            json!({"type": "text", "text": "Be kind.\u{200b}\u{e0041} Thanks \u{2764}\u{fe0f}"});
        (asked.method() == "prompts/get").then(|| asked.content(text))
    })
    .await
}

#[tokio::test]
async fn u13_hidden_text_passes_is_flagged_is_taken_out_or_fails_the_prompt() {
    let upstream = whispering().await;
    let get = async |mode: &str| {
        let gateway = Gateway::start(&(upstream.table("up") + mode)).await;
        gateway.client().modern("prompts/get", json!({"name": "up__p"})).await.json()
    };
    let flag = json!([{"message": 0, "characters": 2}]);
    let whole = "Be kind.\u{200b}\u{e0041} Thanks \u{2764}\u{fe0f}";
    let seen = "Be kind. Thanks \u{2764}\u{fe0f}";
    for (mode, text, flagged) in [
        ("", whole, Some(&flag)),
        ("content = \"flag\"\n", whole, Some(&flag)),
        ("content = \"allow\"\n", whole, None),
        ("content = \"strip\"\n", seen, Some(&flag)),
    ] {
        let result = get(mode).await["result"].clone();
        assert_eq!(result["messages"][0]["content"]["text"], text, "{mode}");
        assert_eq!(result["_meta"].get("promptgate/hiddenText"), flagged, "{mode}");
    }
    let error = get("content = \"reject\"\n").await["error"].clone();
    assert_eq!(
        (&error["code"], &error["data"]["reason"]),
        (&json!(-32603), &json!("upstream_protocol_error"))
    );
    let message = error["message"].as_str().unwrap();
    let begin =
        "upstream `up`: the response violates the protocol: hidden text, which `content` rejects";
    assert!(message.starts_with(begin), "{message}");
}

#[tokio::test]
async fn u13_hidden_text_of_a_link_is_found_too_since_old_clients_get_it_as_text() {
    let upstream = Upstream::modern(|asked| {
        let link = json!({"type": "resource_link", "uri": "https://x.example/\u{e0042}", "name": "n\u{200b}",
            "title": "T\u{200b}", "description": "Be kind.\u{e0041}"});
        let messages = json!([{"role": "user", "content": link}]);
        (asked.method() == "prompts/get")
            .then(|| asked.result(json!({"resultType": "complete", "messages": messages})))
    })
    .await;
    let get = async |mode: &str| {
        let gateway = Gateway::start(&(upstream.table("up") + mode)).await;
        gateway.summary().await;
        let client = gateway.client().legacy("2025-03-26").await;
        let get = request(1, "prompts/get", json!({"name": "up__p"}));
        client.post(&get).await.json()
    };
    let flag = json!([{"message": 0, "characters": 4}]);
    for (mode, text) in [
        ("", "T\u{200b}: https://x.example/\u{e0042}\nBe kind.\u{e0041}"),
        ("content = \"strip\"\n", "T: https://x.example/\nBe kind."),
    ] {
        let result = get(mode).await["result"].take();
        assert_eq!(result["messages"][0]["content"]["text"], text, "{mode}");
        assert_eq!(result["_meta"]["promptgate/hiddenText"], flag, "{mode}");
    }
    let error = get("content = \"reject\"\n").await["error"].take();
    assert_eq!(error["data"]["reason"], "upstream_protocol_error");
}

#[tokio::test]
async fn u17_addresses_that_run_what_they_hold_pass_are_flagged_left_out_or_fail_the_prompt() {
    let upstream = Upstream::modern(|asked| {
        let link = json!({"type": "resource_link", "uri": "javascript:alert(1)", "name": "n"});
        let text = json!({"type": "text", "text": "hello"});
        let message = |content| json!({"role": "user", "content": content});
        (asked.method() == "prompts/get").then(|| {
            let messages = [message(link), message(text)];
            asked.result(json!({"resultType": "complete", "messages": messages}))
        })
    })
    .await;
    let get = async |mode: &str| {
        let gateway = Gateway::start(&(upstream.table("up") + mode)).await;
        gateway.client().modern("prompts/get", json!({"name": "up__p"})).await.json()
    };
    let flag = json!([0]);
    for (mode, messages, flagged) in [
        ("", 2, Some(&flag)),
        ("content = \"allow\"\n", 2, None),
        ("content = \"strip\"\n", 1, Some(&flag)),
    ] {
        let result = get(mode).await["result"].clone();
        assert_eq!(result["messages"].as_array().unwrap().len(), messages, "{mode}");
        assert_eq!(result["_meta"].get("promptgate/unsafeUris"), flagged, "{mode}");
    }
    let error = get("content = \"reject\"\n").await["error"].clone();
    assert_eq!(error["data"]["reason"], "upstream_protocol_error");
}

#[tokio::test]
async fn u13_what_is_listed_shows_all_that_it_says() {
    let upstream = Upstream::modern(|asked| {
        let listed = json!([{"name": "p", "title": "T\u{1b}]0;pwned\u{7}",
            "description": "Be kind.\u{200b}\u{e0041}\nAlways."}]);
        (asked.method() == "prompts/list").then(|| asked.list(&listed))
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(list["prompts"][0]["title"], "T]0;pwned");
    assert_eq!(list["prompts"][0]["description"], "Be kind.\nAlways.");
}

#[tokio::test]
async fn u16_an_upstream_that_comes_and_goes_is_neither_stormed_nor_told_of_all_the_time() {
    let requests = Counter::new();
    let counted = requests.clone();
    // Every third request breaks, whatever it is about.
    let upstream = Upstream::modern(move |_| {
        let is_down = counted.increment() % 3 == 2;
        is_down.then(|| Scripted::Break(Vec::new()))
    })
    .await;
    let steady = Upstream::with_prompts(&["p"]).await;
    let toml = "[listing]\ndebounce = \"20ms\"\n".to_owned()
        + &upstream.table("flaps")
        + "poll = \"10ms\"\n"
        + &steady.table("steady")
        + "poll = \"10ms\"\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let mut stream = gateway.client().listen().await;
    let walks = || steady.methods().iter().filter(|method| *method == "prompts/list").count();
    let before = (requests.get(), walks());
    requests.reaches(before.0 + 12).await;
    // Backoff shows in comparison: both are polled as often, and each third request to one of them
    // fails. Without waits behind failures it would get more requests than the steady one, not
    // fewer.
    let walked = walks() - before.1;
    assert!(walked > 12, "12 requests beside {walked} walks of a steady upstream");
    gateway.client().ask("prompts/get", json!({"name": "steady__p"})).await;
    // Its last good list is served meanwhile, so nobody is told anything.
    let list = gateway.client().names().await.0;
    assert_eq!(list, ["flaps__p", "steady__p"]);
    gateway.drain().await;
    let last = stream.event().await.expect("the result").json();
    assert!(
        last.get("result").is_some(),
        "nothing comes before the end of the subscription: {last}"
    );
}

#[tokio::test]
async fn a_prompt_that_changes_is_served_and_recorded_once() {
    let library = tempfile::tempdir().unwrap();
    let write = |text: &str| write_greeting(library.path(), text);
    write("one");
    let log = super::audit::Log::new();
    let folder = library.path();
    let toml =
        log.table() + &format!("[upstreams.lib]\ntransport = \"library\"\npath = {folder:?}\n");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    write("two");
    let event = log.wait_for("definition_changed").await;
    assert_eq!(event["prompt"], "greet");
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(list["prompts"][0]["description"], "two", "{list}");
    gateway.client().ask("prompts/get", json!({"name": "lib__greet"})).await;
    gateway.drain().await;
    assert_eq!(log.of("definition_changed").len(), 1, "one edit, one record");
}
