//! The composite cursor from outside (fault matrix, C).

use serde_json::{Value, json};

use crate::support::client::request;
use crate::support::gateway::upstream_tables;
use crate::support::{Gateway, Upstream, eventually};

const KEY: &str = "seal_key = { value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }\n";

async fn paged(size: usize, upstreams: &[(&str, &Upstream)], server: &str) -> Gateway {
    let tables = upstream_tables(upstreams);
    Gateway::start(&format!("[server]\n{server}[listing]\npage_size = {size}\n{tables}")).await
}

async fn first_cursor(gateway: &Gateway) -> String {
    let page = gateway.client().ask("prompts/list", json!({})).await;
    page["nextCursor"].as_str().expect("a second page").to_owned()
}

#[tokio::test]
async fn c3_pages_of_every_size_make_the_same_list() {
    let (a, b, c) = (
        Upstream::with_prompts(&["x", "y", "z__1", "é"]).await,
        Upstream::with_prompts(&["x"]).await,
        Upstream::with_prompts(&["Z", "y"]).await,
    );
    let upstreams = [("b", &b), ("a-1", &c), ("a", &a)];
    let all = paged(1000, &upstreams, "").await.client().names().await;
    let expected = ["a-1__Z", "a-1__y", "a__x", "a__y", "a__z__1", "a__é", "b__x"];
    assert_eq!(all, (expected.map(str::to_owned).to_vec(), 1));
    for size in 1..=8 {
        let gateway = paged(size, &upstreams, "").await;
        let (names, pages) = gateway.client().names().await;
        assert_eq!((names, pages), (all.0.clone(), 7usize.div_ceil(size)), "size {size}");
    }
}

#[tokio::test]
async fn c1_what_is_not_our_cursor_is_32602_with_one_message() {
    let upstream = Upstream::with_prompts(&["x", "y", "z"]).await;
    let upstreams = [("up", &upstream)];
    let gateway = paged(1, &upstreams, KEY).await;
    let good = first_cursor(&gateway).await;
    let elsewhere = paged(1, &upstreams, &format!("{KEY}path = \"/mcp2\"\n")).await;
    let (body, headers) = crate::support::client::modern(1, "prompts/list", json!({}));
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let foreign =
        elsewhere.client().send("POST", "/mcp2", &headers, body.to_string().as_bytes()).await;
    let foreign = foreign.json()["result"]["nextCursor"].clone();
    let unknown_key = first_cursor(&paged(1, &upstreams, "").await).await;
    let session = gateway.client().legacy("2025-06-18").await;
    let session = session.post(&request(1, "ping", json!({}))).await;
    assert_eq!(session.status, 200);

    let mut flipped = good.clone().into_bytes();
    flipped[40] ^= 1;
    let flipped = String::from_utf8(flipped).unwrap();
    let bad = [
        json!(""),
        json!("x"),
        json!(7),
        json!({"a": 1}),
        json!(format!("{good}=")),
        json!(&good[..good.len() - 1]),
        json!(flipped),
        json!("A".repeat(3 << 20)),
        foreign,
        json!(unknown_key),
    ];
    let mut said: Vec<Value> = Vec::new();
    for cursor in bad {
        said.push(gateway.client().ask_error("prompts/list", json!({"cursor": cursor})).await);
    }
    assert_eq!(said[0]["code"], -32602);
    assert!(said.iter().all(|error| *error == said[0]), "{said:?}");
    let page = gateway.client().ask("prompts/list", json!({"cursor": good})).await;
    assert_eq!(page["prompts"][0]["name"], "up__y", "the good one still opens");
}

#[tokio::test]
async fn a_cursor_opens_on_another_replica_and_after_a_restart() {
    let upstream = Upstream::with_prompts(&["x", "y"]).await;
    let cursor = first_cursor(&paged(1, &[("up", &upstream)], KEY).await).await;
    let replica = paged(1, &[("up", &upstream)], KEY).await;
    let page = replica.client().ask("prompts/list", json!({"cursor": cursor})).await;
    assert_eq!(page["prompts"][0]["name"], "up__y");
    assert!(page.get("nextCursor").is_none());
}

#[tokio::test]
async fn c4_a_cursor_may_be_used_again_and_again() {
    let upstream = Upstream::with_prompts(&["x", "y"]).await;
    let gateway = paged(1, &[("up", &upstream)], "").await;
    let cursor = first_cursor(&gateway).await;
    let first = gateway.client().ask("prompts/list", json!({"cursor": cursor})).await;
    for _ in 0..50 {
        let again = gateway.client().ask("prompts/list", json!({"cursor": cursor})).await;
        assert_eq!(again["prompts"], first["prompts"]);
    }
}

#[tokio::test]
async fn c2_a_list_that_changes_between_pages_repeats_and_loses_nothing_that_stayed() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static CHANGED: AtomicBool = AtomicBool::new(false);
    let upstream = Upstream::modern(|asked| {
        let names = match CHANGED.load(Ordering::SeqCst) {
            false => ["a", "b", "d", "e"],
            true => ["0", "c", "d", "e"],
        };
        let prompts: Vec<_> = names.iter().map(|n| json!({"name": n})).collect();
        (asked.method() == "prompts/list").then(|| asked.list(&json!(prompts)))
    })
    .await;
    let tables = upstream.table("up") + "poll = \"20ms\"\n";
    let gateway = Gateway::start(&format!("[listing]\npage_size = 2\n{tables}")).await;
    let cursor = first_cursor(&gateway).await;
    CHANGED.store(true, Ordering::SeqCst);
    let names = eventually(
        async || {
            let page = gateway.client().ask("prompts/list", json!({"cursor": cursor})).await;
            let prompts = page["prompts"].as_array().cloned().unwrap_or_default();
            prompts.iter().map(|prompt| prompt["name"].clone()).collect::<Vec<_>>()
        },
        |names| names.first().is_some_and(|name| name == "up__c"),
    )
    .await;
    assert_eq!(names, ["up__c", "up__d"], "right behind up__b, which is gone by now");
}
