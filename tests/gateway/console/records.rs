//! The page of the audit log: sentences, presets, and what was looked through.

use serde_json::json;

use super::{ADMIN, Browser, rows};
use crate::audit::Log;
use crate::support::gateway::api_key;
use crate::support::{Gateway, Upstream, eventually};

#[tokio::test]
async fn the_log_reads_as_sentences_and_presets_narrow_it() {
    let (upstream, log) = (Upstream::with_prompts(&["p", "secret"]).await, Log::new());
    let rules =
        "[[access.rules]]\nallow = [\"list\", \"get\"]\ncallers = [\"ci\"]\nprompts = [\"p\"]\n";
    let toml =
        ADMIN.to_owned() + &log.table() + rules + &api_key("ci", "1") + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let client = gateway.client().with("X-API-Key", "1");
    for name in ["up__p", "up__secret"] {
        client.modern("prompts/get", json!({"name": name})).await;
    }
    let mut browser = Browser::new(&gateway.admin());
    browser.log_in("t0ken").await;
    let mut reader = browser.clone();
    let mut sentences = async |query: &str| -> Vec<String> {
        let page = reader.page(&format!("/audit{query}")).await;
        rows(&page, "Records").into_iter().map(|row| row[1].clone()).collect()
    };
    let signed_in = "token signed in to the console as tester from 127.0.0.1";
    eventually(async || sentences("").await, |all| all.iter().any(|one| one == signed_in)).await;
    let all = sentences("").await;
    for sentence in ["ci got up__p", "ci was denied up__secret because no rule allows it"] {
        assert!(all.iter().any(|one| one == sentence), "{sentence}: {all:?}");
    }
    assert_eq!(sentences("?event=sign-ins").await, [signed_in]);
    let denials = sentences("?outcome=denied").await;
    assert_eq!(denials, ["ci was denied up__secret because no rule allows it"]);
    assert_eq!(sentences("?event=call&prompt=up__p").await, ["ci got up__p"]);
    assert!(sentences("?event=decisions").await.is_empty());

    let page = browser.page("/audit?event=sign-ins&caller=ci").await;
    let chosen = "href=\"/audit?caller=ci&#38;event=sign-ins\" aria-current=\"true\"";
    assert!(page.contains(chosen), "{page}");
    assert!(page.contains("href=\"/audit?caller=ci&#38;outcome=denied\""), "{page}");
    let (_, found) = page.split_once("Nothing was found in ").expect("what was looked through");
    let (count, rest) = found.split_once(" records since <time ").expect("a number and a time");
    assert!(count.parse::<u64>().unwrap() >= 3, "{found}");
    assert!(rest.contains("just now</time>") || rest.contains(" s ago</time>"), "{found}");
}
