//! The bounds of pages: rows, time, and how many at once.

use std::sync::{Arc, Mutex};

use serde_json::json;

use super::{ADMIN, Browser, post, rows, text, with_token};
use crate::audit::Log;
use crate::support::gateway::api_key;
use crate::support::{Gateway, OpenStream, Upstream, eventually};

#[tokio::test]
async fn a_page_has_no_more_rows_than_it_may() {
    let (upstream, log) = (Upstream::with_prompts(&["a", "b", "c"]).await, Log::new());
    let toml = ADMIN.to_owned()
        + "page_rows = 1\n"
        + &log.table()
        + &api_key("one", "1")
        + &api_key("two", "2")
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    for (key, name) in [("1", "up__a"), ("2", "up__b"), ("2", "up__c")] {
        gateway.client().with("X-API-Key", key).ask("prompts/get", json!({"name": name})).await;
    }
    let admin = with_token(&gateway.admin());
    let mut browser = Browser::new(&admin);
    let mut reader = browser.clone();
    let used = async || reader.page("/usage?by=prompt").await;
    let usage = eventually(used, |page| page.contains("<td class=\"number\">3</td>")).await;
    assert_eq!(rows(&usage, "Usage").len(), 1, "{usage}");
    for (path, label) in [
        ("/prompts", "Prompts"),
        ("/access", "Access matrix"),
        ("/audit", "Records"),
        ("/configuration", "Values in use"),
        ("/prompts/up__a/access", "Rights"),
    ] {
        let shown = browser.page(path).await;
        assert_eq!(rows(&shown, label).len(), 1, "{path}: {shown}");
    }
    // Every row can be reached: page by page, and by the position in the log.
    let mut names = Vec::new();
    for page in 1..=3 {
        let shown = browser.page(&format!("/prompts?page={page}")).await;
        assert!(shown.contains(&format!("Prompts: 3, page {page} of 3")), "{shown}");
        names.push(rows(&shown, "Prompts")[0][0].clone());
    }
    assert_eq!(names, ["up__a", "up__b", "up__c"]);
    let (mut seqs, mut before) = (Vec::new(), String::new());
    loop {
        let shown = browser.page(&format!("/audit?event=call{before}")).await;
        let (_, found) = shown.split_once("id=\"entries\"").expect("the entries");
        let links = found.split("href=\"/audit/").skip(1);
        seqs.extend(links.map(|link| link.split_once('"').unwrap().0.parse::<u64>().unwrap()));
        match found.split_once("before=") {
            Some((_, next)) => before = format!("&before={}", next.split_once('"').unwrap().0),
            None => break,
        }
    }
    assert_eq!(seqs.len(), 3, "{seqs:?}");
    assert!(seqs.is_sorted_by(|a, b| a > b), "{seqs:?}");
    for page in ["0", "-1", "99999999999999999999", "x", "4"] {
        let shown = browser.page(&format!("/prompts?page={page}")).await;
        assert_eq!(rows(&shown, "Prompts").len(), 1, "{page}");
    }
}

#[tokio::test]
async fn a_page_without_time_says_so() {
    let names: Vec<String> = (0..10_000).map(|n| format!("p{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let upstream = Upstream::with_prompts(&names).await;
    let toml = ADMIN.to_owned()
        + "render_timeout = \"1ms\"\n"
        + &api_key("ci", "pg_ci")
        + &upstream.patient_table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    browser.log_in("t0ken").await;
    for path in [
        "/prompts?q=p",
        "/access",
        "/usage",
        "/overview",
        "/configuration",
        "/connect",
        "/approvals",
    ] {
        let page = browser.get(path).await;
        assert!([200, 503].contains(&page.status), "{path}: {}", text(&page));
    }
    // A search in 10,000 prompts takes longer.
    let search = async || {
        let page = browser.get("/prompts?q=p").await;
        (page.status, text(&page))
    };
    let (_, said) = eventually(search, |(status, _)| *status == 503).await;
    assert!(said.contains("admin.render_timeout") || said.contains("at once"), "{said}");
}

#[tokio::test]
async fn trials_that_hang_leave_room_for_pages_and_are_bounded() {
    let open = Arc::new(Mutex::new(Some(Vec::new())));
    let held = open.clone();
    let upstream = Upstream::modern(move |asked| {
        let mut held = held.lock().unwrap();
        let held = held.as_mut().filter(|_| asked.method() == "prompts/get")?;
        let (live, scripted) = OpenStream::new();
        held.push(live);
        Some(scripted)
    })
    .await;
    let toml = ADMIN.to_owned()
        + "render_timeout = \"10s\"\n[server.limits]\nrequest = \"1h\"\n"
        + &upstream.patient_table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let admin = with_token(&gateway.admin());
    let trials: Vec<_> = (0..9)
        .map(|_| {
            let admin = admin.clone();
            tokio::spawn(async move { post(&admin, "/prompts/up__p/try", &json!({})).await })
        })
        .collect();
    upstream.received_gets(8).await;
    let mut browser = Browser::new(&admin);
    for path in ["/overview", "/prompts"] {
        browser.page(path).await;
    }
    assert_eq!(upstream.gets().len(), 8, "the ninth waits");
    // No stream is held from here on.
    drop(open.lock().unwrap().take());
    for trial in trials {
        assert_eq!(trial.await.unwrap().status, 200, "a fault is an outcome");
    }
}
