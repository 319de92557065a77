//! Lists that tell the truth: what is merged, what is missing, and who is to blame.

use serde_json::json;

use crate::support::client::request;
use crate::support::upstream::HANG;
use crate::support::{Gateway, Scripted, Upstream, eventually};

#[tokio::test]
async fn u1_an_upstream_that_is_down_holds_up_nobody_and_is_named() {
    let up = Upstream::with_prompts(&["p"]).await;
    let dead = "[upstreams.dead]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n\
                [upstreams.lost]\ntransport = \"http\"\nurl = \"http://no-such-host.invalid/mcp\"\n";
    let gateway = Gateway::start(&(up.table("up") + dead)).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(list["prompts"], json!([{"name": "up__p"}]));
    assert_eq!(list["ttlMs"], 0);
    let incomplete = list["_meta"]["promptgate/incomplete"].as_array().unwrap();
    assert_eq!(incomplete.len(), 2);
    let expected = json!({"upstream": "dead", "reason": "upstream_unavailable", "stale": false});
    assert_eq!(incomplete[0], expected);
    let error = gateway.client().ask_error("prompts/get", json!({"name": "dead__p"})).await;
    assert_eq!(error["data"]["reason"], "upstream_unavailable");
    let error = gateway.client().ask_error("prompts/get", json!({"name": "up__q"})).await;
    assert_eq!(error["data"]["reason"], "unknown_prompt");
}

#[tokio::test]
async fn u1_a_list_waits_for_a_silent_upstream_no_longer_than_the_deadline() {
    let up = Upstream::with_prompts(&["p"]).await;
    let silent = Upstream::start(|_| HANG).await;
    let toml = "[listing]\ndeadline = \"100ms\"\n".to_owned()
        + &up.table("up")
        + &silent.patient_table("silent");
    let gateway = Gateway::start(&toml).await;
    // The other upstream may be late, too, where the machine is busy; the silent one never answers.
    let list = eventually(
        async || gateway.client().modern("prompts/list", json!({})).await.json()["result"].clone(),
        |list| list["prompts"] == json!([{"name": "up__p"}]),
    )
    .await;
    assert_eq!(list["_meta"]["promptgate/incomplete"][0]["upstream"], "silent");
}

#[tokio::test]
async fn u1_an_upstream_that_goes_down_keeps_its_list_and_comes_back_by_itself() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static DOWN: AtomicBool = AtomicBool::new(false);
    let upstream = Upstream::modern(|asked| {
        let _ = asked;
        DOWN.load(Ordering::SeqCst).then(|| Scripted::Http(503, vec![], vec![]))
    })
    .await;
    let gateway = Gateway::start(&(upstream.table("up") + "poll = \"20ms\"\n")).await;
    let client = gateway.client();
    assert_eq!(client.names().await.0, ["up__p"]);
    DOWN.store(true, Ordering::SeqCst);
    let list = eventually(
        async || client.ask("prompts/list", json!({})).await,
        |list| list["_meta"].get("promptgate/incomplete").is_some(),
    )
    .await;
    assert_eq!(list["prompts"], json!([{"name": "up__p"}]), "stale, but there");
    let incomplete = &list["_meta"]["promptgate/incomplete"][0];
    assert_eq!(
        (&incomplete["stale"], &incomplete["reason"]),
        (&json!(true), &json!("upstream_http_error"))
    );
    assert!(incomplete["ageMs"].is_u64());
    let error = client.ask_error("prompts/get", json!({"name": "up__p"})).await;
    assert_eq!(error["code"], -32603);
    DOWN.store(false, Ordering::SeqCst);
    eventually(
        async || client.ask("prompts/list", json!({})).await,
        |list| list["_meta"].get("promptgate/incomplete").is_none(),
    )
    .await;
    client.ask("prompts/get", json!({"name": "up__p"})).await;
}

#[tokio::test]
async fn u2_when_all_are_down_the_list_is_an_error_and_not_empty() {
    let dead = "[upstreams.dead]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let gateway = Gateway::start(dead).await;
    let error = gateway.client().ask_error("prompts/list", json!({})).await;
    let expected = (json!(-32603), json!("upstream_unavailable"));
    assert_eq!((error["code"].clone(), error["data"]["reason"].clone()), expected);
    let empty = Gateway::start("").await;
    assert_eq!(empty.client().ask("prompts/list", json!({})).await["prompts"], json!([]));
}

#[tokio::test]
async fn an_upstream_without_prompts_has_none_and_has_not_failed() {
    let refusing = Upstream::modern(|asked| {
        (asked.method() == "prompts/list").then(|| asked.error(-32601, "what?"))
    })
    .await;
    let toolbox = Upstream::modern(|asked| {
        let result = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "public",
            "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}});
        (asked.method() == "server/discover").then(|| asked.result(result))
    })
    .await;
    let gateway = Gateway::before(&[("refusing", &refusing), ("toolbox", &toolbox)]).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(list["prompts"], json!([]));
    assert!(list["_meta"].get("promptgate/incomplete").is_none());
    assert!(!toolbox.methods().contains(&"prompts/list".to_owned()));
}

#[tokio::test]
async fn a_hundred_pages_of_a_hundred_arrive_complete() {
    let upstream = Upstream::modern(|asked| {
        let page: usize = asked.message["params"]["cursor"].as_str().unwrap_or("0").parse().ok()?;
        let prompts: Vec<_> =
            (0..100).map(|i| json!({"name": format!("p{:05}", page * 100 + i)})).collect();
        let mut result = json!({"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public",
            "prompts": prompts});
        if page < 99 {
            result["nextCursor"] = (page + 1).to_string().into();
        }
        (asked.method() == "prompts/list").then(|| asked.result(result))
    })
    .await;
    let toml = "[listing]\ndeadline = \"60s\"\n".to_owned() + &upstream.patient_table("up");
    let gateway = Gateway::start(&toml).await;
    let (names, pages) = gateway.client().names().await;
    assert_eq!((names.len(), pages), (10_000, 10));
    assert!(names.is_sorted());
}

#[tokio::test]
async fn what_is_malformed_in_a_list_leaves_the_rest() {
    let upstream = Upstream::modern(|asked| {
        let prompts = json!([
            {"name": "good", "title": null, "icons": null},
            {"name": "bad", "icons": [{"src": "x", "sizes": "48x48"}]},
            {"name": "hid\u{202e}den"},
            {"title": "nameless"},
            7,
        ]);
        (asked.method() == "prompts/list").then(|| asked.list(&prompts))
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(list["prompts"], json!([{"name": "up__bad"}, {"name": "up__good"}]));
}

#[tokio::test]
async fn ttl_and_scope_are_those_of_the_parts() {
    let page = |ttl: u64, scope: &'static str| {
        Upstream::modern(move |asked| {
            let result = json!({"resultType": "complete", "ttlMs": ttl, "cacheScope": scope,
                "prompts": []});
            (asked.method() == "prompts/list").then(|| asked.result(result))
        })
    };
    let (long, short) = (page(3_600_000, "public").await, page(20_000, "private").await);
    let gateway = Gateway::before(&[("long", &long)]).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!((&list["ttlMs"], &list["cacheScope"]), (&json!(300_000), &json!("public")));
    let gateway = Gateway::before(&[("long", &long), ("short", &short)]).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert!(list["ttlMs"].as_u64().unwrap() <= 20_000);
    assert_eq!(list["cacheScope"], "private");
    let client = gateway.client().legacy("2025-11-25").await;
    let legacy = client.post(&request(1, "prompts/list", json!({}))).await.json();
    assert_eq!(legacy["result"], json!({"prompts": []}), "no fields of another era");
}
