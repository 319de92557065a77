//! Gateways that are upstreams of each other: their lists settle, and hold each prompt once for
//! each way to its server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::skills;
use crate::support::{Gateway, Upstream, eventually};

/// The table of a gateway as an upstream, whose changes are seen soon.
fn behind(gateway: &Gateway, id: &str) -> String {
    let url = format!("http://{}/mcp", gateway.addr);
    format!("[upstreams.{id}]\ntransport = \"http\"\nurl = \"{url}\"\npoll = \"50ms\"\n")
}

/// Waits until a gateway lists these skills.
async fn lists_skills(gateway: &Gateway, expected: &[&str]) {
    let client = gateway.client();
    eventually(async || skills::uris(&client).await, |uris| uris == expected).await;
}

/// Waits until a gateway lists these prompts.
async fn lists(gateway: &Gateway, expected: &[&str]) {
    let client = gateway.client();
    eventually(async || client.names().await.0, |names| names == expected).await;
}

async fn gets(gateway: &Gateway, names: &[&str]) {
    for name in names {
        gateway.client().ask("prompts/get", json!({"name": name})).await;
    }
}

/// An upstream with as many prompts, `p0`, `p1`, …, as the counter says, and its table.
async fn growing() -> (Upstream, Arc<AtomicUsize>, String) {
    let count = Arc::new(AtomicUsize::new(1));
    let shared = count.clone();
    let upstream = Upstream::modern(move |asked| {
        let names = (0..shared.load(Ordering::SeqCst)).map(|n| json!({"name": format!("p{n}")}));
        let names: Value = names.collect();
        (asked.method() == "prompts/list").then(|| asked.list(&names))
    })
    .await;
    let table = upstream.table("up") + "poll = \"50ms\"\n";
    (upstream, count, table)
}

#[tokio::test]
async fn two_gateways_in_a_circle_list_the_prompts_of_each_other_once() {
    let (_growing, count, first) = growing().await;
    let second = Upstream::with_prompts(&["q"]).await;
    let a = Gateway::start(&first).await;
    let b = Gateway::start(&(second.table("up") + &behind(&a, "a"))).await;
    a.reload(&(first.clone() + &behind(&b, "b"))).await;
    lists(&a, &["b__up__q", "up__p0"]).await;
    lists(&b, &["a__up__p0", "up__q"]).await;
    // What changes later goes round no further.
    count.store(2, Ordering::SeqCst);
    lists(&b, &["a__up__p0", "a__up__p1", "up__q"]).await;
    count.store(3, Ordering::SeqCst);
    lists(&b, &["a__up__p0", "a__up__p1", "a__up__p2", "up__q"]).await;
    lists(&a, &["b__up__q", "up__p0", "up__p1", "up__p2"]).await;
    gets(&a, &["b__up__q"]).await;
    gets(&b, &["a__up__p2"]).await;
    let listed = a.client().ask("prompts/list", json!({})).await;
    let via = |prompt: &Value| prompt["_meta"]["promptgate/via"].as_str().map(str::len);
    let prompts = listed["prompts"].as_array().unwrap();
    assert_eq!(prompts.iter().map(via).collect::<Vec<_>>(), [Some(16), None, None, None]);

    a.reload(&first).await;
    lists(&a, &["up__p0", "up__p1", "up__p2"]).await;
    lists(&b, &["a__up__p0", "a__up__p1", "a__up__p2", "up__q"]).await;
}

#[tokio::test]
async fn three_gateways_in_a_circle_list_each_prompt_of_the_two_others() {
    let (_growing, count, of_a) = growing().await;
    let (second, third) =
        (Upstream::with_prompts(&["q"]).await, Upstream::with_prompts(&["r"]).await);
    let (of_b, of_c) = (second.table("up"), third.table("up"));
    let a = Gateway::start(&of_a).await;
    let c = Gateway::start(&(of_c.clone() + &behind(&a, "a"))).await;
    let b = Gateway::start(&(of_b.clone() + &behind(&c, "c"))).await;
    a.reload(&(of_a.clone() + &behind(&b, "b"))).await;
    lists(&a, &["b__c__up__r", "b__up__q", "up__p0"]).await;
    lists(&b, &["c__a__up__p0", "c__up__r", "up__q"]).await;
    lists(&c, &["a__b__up__q", "a__up__p0", "up__r"]).await;
    count.store(2, Ordering::SeqCst);
    lists(&b, &["c__a__up__p0", "c__a__up__p1", "c__up__r", "up__q"]).await;
    lists(&c, &["a__b__up__q", "a__up__p0", "a__up__p1", "up__r"]).await;
    lists(&a, &["b__c__up__r", "b__up__q", "up__p0", "up__p1"]).await;
    gets(&a, &["b__c__up__r", "b__up__q"]).await;
    gets(&c, &["a__b__up__q"]).await;

    c.reload(&of_c).await;
    lists(&a, &["b__c__up__r", "b__up__q", "up__p0", "up__p1"]).await;
    lists(&b, &["c__up__r", "up__q"]).await;
    lists(&c, &["up__r"]).await;
}

#[tokio::test]
async fn a_bare_name_that_comes_back_does_not_collide_with_itself() {
    let server = Upstream::with_prompts(&["p"]).await;
    let a = Gateway::start(&(server.table("up") + "prefix = \"\"\n")).await;
    let b = Gateway::start(&(behind(&a, "a") + "prefix = \"\"\n")).await;
    lists(&b, &["p"]).await;
    a.reload(&(server.table("up") + "prefix = \"\"\n" + &behind(&b, "b") + "prefix = \"\"\n"))
        .await;
    for gateway in [&a, &b] {
        lists(gateway, &["p"]).await;
        gets(gateway, &["p"]).await;
    }
    let summary = eventually(async || a.summary().await, |all| all.len() == 2).await;
    assert_eq!(summary[1].2, None, "an upstream that has nothing new does not fail: {summary:?}");
}

#[tokio::test]
async fn skills_with_approvals_go_round_no_circle() {
    let count = Arc::new(AtomicUsize::new(1));
    let shared = count.clone();
    let server = Upstream::modern(move |asked| match asked.method() {
        "server/discover" => Some(skills::discovered(asked)),
        "skills/list" => {
            let listed = (0..shared.load(Ordering::SeqCst))
                .map(|n| skills::skill(&format!("skill://s{n}"), &[("SKILL.md", skills::REFUNDS)]));
            Some(skills::listed(asked, &listed.collect()))
        }
        _ => None,
    })
    .await;
    let other = skills::simple("skill://own").await;
    let warned = "[approvals]\nmode = \"warn\"\n";
    let of_a = warned.to_owned() + &server.table("up") + "poll = \"50ms\"\n";
    let a = Gateway::start(&of_a).await;
    // Whether a gateway has skills is known to the other by its handshake.
    lists_skills(&a, &["skill://up/s0/SKILL.md"]).await;
    let b = Gateway::start(&(warned.to_owned() + &other.table("up") + &behind(&a, "a"))).await;
    lists_skills(&b, &["skill://a/up/s0/SKILL.md", "skill://up/own/SKILL.md"]).await;
    a.reload(&(of_a + &behind(&b, "b"))).await;
    lists_skills(&a, &["skill://b/up/own/SKILL.md", "skill://up/s0/SKILL.md"]).await;
    // The walk that brings a later skill would bring what goes round, too.
    count.store(2, Ordering::SeqCst);
    let of_a = ["skill://a/up/s0/SKILL.md", "skill://a/up/s1/SKILL.md", "skill://up/own/SKILL.md"];
    lists_skills(&b, &of_a).await;
    let of_b = ["skill://b/up/own/SKILL.md", "skill://up/s0/SKILL.md", "skill://up/s1/SKILL.md"];
    lists_skills(&a, &of_b).await;
}
