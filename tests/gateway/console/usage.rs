//! One question about usage has one answer at each door: page, list, CSV, status and command.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::{Browser, OPEN_ADMIN, document, rows, text};
use crate::audit::Log;
use crate::rollouts;
use crate::skills::{self, file, skill};
use crate::support::gateway::api_key;
use crate::support::{Client, Gateway, eventually};
use crate::usage::Terminal;

const SKILL: &str = "skill://crm/acme/refunds/SKILL.md";

const LIMIT: &str = "[[limits]]\nname = \"gets\"\nper = [\"caller\"]\nrate = \"1/h\"\nburst = 6\n\
    methods = [\"prompts/get\"]\n";

fn count(row: &Value, member: &str) -> u64 {
    row[member].as_u64().unwrap()
}

/// Alice gets the new version of a rollout three times, and twice in vain; Bob the old version five
/// times, the new one by its name once in vain, and is then limited twice. Both read a skill.
async fn calls(gateway: &Gateway, fails: &std::sync::atomic::AtomicBool) {
    let [alice, bob]: [Client; 2] =
        ["alice", "bob"].map(|id| gateway.client().with("X-API-Key", id));
    for _ in 0..3 {
        assert_eq!(rollouts::got(&alice).await, "refund@candidate");
    }
    for _ in 0..5 {
        assert_eq!(rollouts::got(&bob).await, "refund");
    }
    fails.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        alice.ask_error("prompts/get", json!({"name": "up__refund"})).await;
    }
    bob.ask_error("prompts/get", json!({"name": "up__refund@candidate"})).await;
    for _ in 0..2 {
        assert_eq!(rollouts::got(&bob).await, "rate_limited");
    }
    for client in [&alice, &bob] {
        client.ask("resources/read", json!({"uri": SKILL})).await;
    }
}

#[tokio::test]
async fn each_door_gives_the_same_numbers_for_a_prompt_of_two_versions() {
    let log = Log::new();
    let (up, fails) = rollouts::upstream(&[]).await;
    let own = ("SKILL.md", "Refund it.");
    let crm = skills::upstream(json!([skill("skill://acme/refunds", &[own])]), move |asked| {
        file(asked, own.1)
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("usage");
    let toml = log.table()
        + OPEN_ADMIN
        + &format!("[admin.usage]\npath = {index:?}\n")
        + &(api_key("alice", "alice") + "groups = [\"beta\"]\n" + &api_key("bob", "bob"))
        + LIMIT
        + &up.table("up")
        + &crm.table("crm")
        + &rollouts::rollout("share = 1\ngroups = [\"beta\"]");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    calls(&gateway, &fails).await;

    // The commands.
    let terminal = Terminal::new(&toml);
    let usage = terminal.usage(&[]);
    let of = |row: &Value| {
        let key = row["key"].as_str().unwrap().to_owned();
        (key, count(row, "uses"), count(row, "failures"))
    };
    let all: Vec<_> = usage["rows"].as_array().unwrap().iter().map(of).collect();
    let prompt = ("up__refund".to_owned(), 11, 3);
    assert_eq!(all, [prompt, (SKILL.to_owned(), 2, 0)], "{usage}");
    let versions: Vec<_> =
        usage["rows"][0]["versions"].as_array().unwrap().iter().map(of).collect();
    let candidate = ("up__refund@candidate".to_owned(), 6, 3);
    assert_eq!(versions, [candidate, ("up__refund".to_owned(), 5, 0)], "{usage}");
    let callers = [("bob".to_owned(), 6, 1, 0), ("alice".to_owned(), 5, 2, 0)];
    assert_eq!(terminal.rows(&["--prompt", "up__refund", "--by", "caller"]), callers);
    let [bob, alice] = [callers[0].clone(), callers[1].clone()];
    let table = terminal.run(&["usage"]);
    let names: Vec<_> = table.lines().map(|line| line.split("  up ").next().unwrap()).collect();
    assert!(names[1].starts_with("up__refund "), "{table}");
    assert!(names[2].starts_with("  up__refund@candidate"), "{table}");
    assert!(names[3].starts_with("  up__refund "), "{table}");
    let csv = terminal.run(&["usage", "--csv"]);
    assert!(csv.contains("\nup__refund,up,11,0,3,0,0,") && !csv.contains('@'), "{csv}");
    assert_eq!(terminal.usage(&["--unused"])["unused"], json!([]));

    // The console.
    let mut browser = Browser::new(&gateway.admin());
    let reader = browser.clone();
    let uses = async || reader.clone().page("/prompts/up__refund/uses").await;
    let uses = eventually(uses, |page| page.contains("11 in the last day, 3 failed")).await;
    let compared = rows(&uses, "Versions");
    let cells = |row: &[String]| [&row[0], &row[2], &row[3], &row[5]].map(String::clone);
    assert_eq!(cells(&compared[0]), ["up__refund@candidate", "6", "3", "alice 5, bob 1"]);
    assert_eq!(cells(&compared[1]), ["up__refund", "5", "0", "bob 5"]);
    let by_caller = rows(&uses, "Callers");
    assert_eq!(by_caller[0][..3], [bob.0, bob.1.to_string(), bob.2.to_string()]);
    assert_eq!(by_caller[1][..3], [alice.0, alice.1.to_string(), alice.2.to_string()]);
    let page = browser.page("/usage").await;
    let shown = rows(&page, "Usage");
    let uses: Vec<_> = shown.iter().map(|row| (row[0].as_str(), row[2].as_str())).collect();
    assert_eq!(uses[..3], [("up__refund", "11"), ("@candidate", "6"), ("up__refund", "5")]);
    assert_eq!(uses[3], (format!("{SKILL} skill").as_str(), "2"));
    let table = text(&browser.get("/usage?format=csv").await);
    assert!(table.contains("\nup__refund,up,11,3,0,0,") && !table.contains('@'), "{table}");
    let listed = rows(&browser.page("/prompts").await, "Prompts");
    let listed = listed.iter().find(|row| row[0].starts_with("up__refund Refunds")).unwrap();
    assert!(listed[3].contains("11 uses this week"), "{listed:?}");
    let overview = browser.page("/overview").await;
    assert!(overview.contains("<b class=\"\">13</b> uses in the last hour"), "{overview}");

    // The status counts the calls that the upstream got.
    let upstreams = document(&gateway.admin(), "/upstreams").await;
    let rows = upstreams["upstreams"].as_array().unwrap();
    let hour = &rows.iter().find(|row| row["upstream"] == "up").unwrap()["lastHour"];
    assert_eq!((count(hour, "calls"), count(hour, "failures")), (11, 3), "{upstreams}");

    // Refusals are recorded together, the last of them when the log is closed.
    gateway.drain().await;
    let limited = &terminal.usage(&["--by", "caller", "--sort", "limited"])["rows"][0];
    assert_eq!((limited["key"].as_str(), count(limited, "limited")), (Some("bob"), 2));
    let refused = terminal.found(&["--outcome", "rate_limited"]);
    let refusals: u64 = refused.iter().map(|entry| count(&entry["members"], "count")).sum();
    assert_eq!((refusals, &refused[0]["caller"]), (2, &json!("bob")), "{refused:?}");
}
