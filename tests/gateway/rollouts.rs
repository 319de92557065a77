//! Rollouts: a share of the callers gets another version of a prompt, and none once it has failed
//! too often.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::approvals::{Folder, enforced};
use super::audit::Log;
use crate::support::gateway::api_key;
use crate::support::process::run;
use crate::support::{Client, Gateway, Process, Upstream, eventually, metrics};

pub const SEAL: &str =
    "[server]\nseal_key = { value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }\n";

pub const ADMIN: &str =
    "[admin]\nlisten = \"127.0.0.1:0\"\nwrite = true\ntoken = { value = \"t\" }\n";

/// `refund` and its version `refund@candidate`, each of which answers its own name. The version
/// needs these arguments, and fails while the flag is set.
pub async fn upstream(required: &'static [&'static str]) -> (Upstream, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let flag = fails.clone();
    let upstream = Upstream::modern(move |asked| match asked.method() {
        "prompts/list" => {
            let needs = |name: &&str| json!({"name": name, "required": true});
            let arguments: Vec<_> = required.iter().map(needs).collect();
            Some(asked.list(&json!([{"name": "refund", "description": "Refunds."},
                {"name": "refund@candidate", "arguments": arguments}])))
        }
        "prompts/get" => {
            let name = asked.message["params"]["name"].as_str().unwrap();
            let is_broken = name == "refund@candidate" && flag.load(Ordering::SeqCst);
            Some(match is_broken {
                true => asked.error(-32603, "no"),
                false => asked.content(json!({"type": "text", "text": name})),
            })
        }
        _ => None,
    });
    (upstream.await, fails)
}

pub fn rollout(more: &str) -> String {
    format!("[[rollouts]]\nprompt = \"up__refund\"\nto = \"candidate\"\n{more}\n")
}

fn key(gateway: &Gateway, id: &str) -> Client {
    gateway.client().with("X-API-Key", id)
}

/// The text of `up__refund` as a caller gets it, or the reason of the error.
pub async fn got(client: &Client) -> String {
    let reply = client.modern("prompts/get", json!({"name": "up__refund"})).await.json();
    let text = reply["result"]["messages"][0]["content"]["text"].as_str();
    text.or(reply["error"]["data"]["reason"].as_str()).unwrap_or_default().to_owned()
}

pub async fn look(admin: &Client) -> Value {
    admin.send("GET", "/api/v1/rollouts", &[], b"").await.json()["rollouts"][0].clone()
}

pub fn admin(gateway: &Gateway) -> Client {
    let admin = gateway.admin().with("Authorization", "Bearer t");
    admin.with("Content-Type", "application/json")
}

pub async fn rearm(admin: &Client, prompt: &str) -> (u16, Value) {
    let path = format!("/api/v1/rollouts/{prompt}");
    let body = json!({"action": "rearm"}).to_string();
    let reply = admin.send("POST", &path, &[], body.as_bytes()).await;
    (reply.status, reply.json())
}

fn ids() -> Vec<String> {
    (0..120).map(|n| format!("caller-{n}")).collect()
}

/// The callers that get the new version.
async fn taken(gateway: &Gateway) -> BTreeSet<String> {
    let mut taken = BTreeSet::new();
    for id in ids() {
        match got(&key(gateway, &id)).await.as_str() {
            "refund@candidate" => drop(taken.insert(id)),
            other => assert_eq!(other, "refund", "{id}"),
        }
    }
    taken
}

#[tokio::test]
async fn a_share_of_the_callers_gets_the_new_version_on_all_replicas_and_keeps_it_as_it_grows() {
    let (upstream, _) = upstream(&[]).await;
    let keys: String = ids().iter().map(|id| api_key(id, id)).collect();
    let toml = |share: &str| format!("{SEAL}{}{}{keys}", upstream.table("up"), rollout(share));
    let gateway = Gateway::start(&toml("share = 0.25")).await;
    let listed = key(&gateway, "caller-0").ask("prompts/list", json!({})).await["prompts"].clone();
    let quarter = taken(&gateway).await;
    assert!((15..=45).contains(&quarter.len()), "{quarter:?}");
    assert_eq!(taken(&gateway).await, quarter, "each caller keeps its version");
    let replica = Gateway::start(&toml("share = 0.25")).await;
    assert_eq!(taken(&replica).await, quarter, "replicas agree");
    // A step that has passed counts, one that is to come does not.
    let steps = "steps = [{ at = \"2026-01-01T00:00:00Z\", share = 0.5 }, { at = \"2999-01-01T00:00:00Z\", share = 1 }]";
    gateway.reload(&toml(steps)).await;
    let half = taken(&gateway).await;
    assert!((40..=80).contains(&half.len()) && half.is_superset(&quarter), "{half:?}");
    gateway.reload(&toml("share = 0")).await;
    assert_eq!(taken(&gateway).await.len(), 0);
    gateway.reload(&toml("share = 1\ngroups = [\"beta\"]")).await;
    assert_eq!(taken(&gateway).await.len(), 0, "nobody is in the group");
    gateway.reload(&toml("share = 1")).await;
    assert_eq!(taken(&gateway).await.len(), ids().len());
    let after = key(&gateway, "caller-1").ask("prompts/list", json!({})).await["prompts"].clone();
    assert_eq!((listed.as_array().unwrap().len(), &after), (2, &listed), "lists are the same");
}

#[tokio::test]
async fn a_version_that_fails_too_often_is_rolled_back_until_a_person_begins_again() {
    let (log, (upstream, fails)) = (Log::new(), upstream(&[]).await);
    let folder = tempfile::tempdir().unwrap();
    let rule = "share = 1\nrollback = { share = 0.2, over = 5 }";
    let index = folder.path().join("usage");
    let toml = SEAL.to_owned()
        + ADMIN
        + &format!("[admin.usage]\npath = {index:?}\n")
        + &log.table()
        + &upstream.table("up")
        + &rollout(rule)
        + &api_key("ada", "ada")
        + &api_key("bob", "bob");
    fs::write(folder.path().join("gateway.toml"), &toml).unwrap();
    let gateway = Gateway::start(&toml).await;
    let (ada, admin) = (key(&gateway, "ada"), admin(&gateway));
    let result = ada.ask("prompts/get", json!({"name": "up__refund"})).await;
    assert_eq!(result["messages"][0]["content"]["text"], "refund@candidate");
    assert_eq!(result["_meta"]["promptgate/rollout"], "candidate");
    let record = log.wait_for("received").await;
    let said = ["name", "prompt", "served", "label"].map(|member| record[member].clone());
    assert_eq!(said, ["up__refund", "refund", "up__refund@candidate", "candidate"]);
    assert_eq!(
        (&look(&admin).await["state"], got(&ada).await.as_str()),
        (&json!("running"), "refund@candidate")
    );

    let page =
        async |path: &str| String::from_utf8(admin.send("GET", path, &[], b"").await.body).unwrap();
    let shown = page("/prompts/up__refund/versions").await;
    assert!(shown.contains("100 % of the callers get candidate"), "{shown}");
    assert!(shown.contains("It is rolled back at 20 % of 5 gets."), "{shown}");

    fails.store(true, Ordering::SeqCst);
    assert_eq!(got(&ada).await, "upstream_error", "one of five may fail");
    assert_eq!(got(&key(&gateway, "bob")).await, "upstream_error");
    assert_eq!(got(&ada).await, "refund", "two may not");
    let event = log.wait_for("rollout_rolled_back").await;
    assert_eq!(
        (&event["gets"], &event["failed"], &event["to"]),
        (&json!(4), &json!(2), &json!("candidate"))
    );
    let row = look(&admin).await;
    assert_eq!((&row["state"], row["rolledBackAt"].is_string()), (&json!("rolled_back"), true));
    let shown = page("/prompts/up__refund/versions").await;
    assert!(shown.contains("promptgate rollouts rearm up__refund"), "{shown}");
    assert!(page("/").await.contains("The rollout of up__refund to candidate was rolled back"));
    fails.store(false, Ordering::SeqCst);
    gateway.reload(&toml.replace("share = 1\n", "share = 0.99999\n")).await;
    assert_eq!(got(&ada).await, "refund", "an edit of the share does not begin again");

    assert_eq!(rearm(&admin, "up__refund").await, (200, json!({"changed": true})));
    assert_eq!(got(&ada).await, "refund@candidate");
    assert_eq!(log.wait_for("rollout_rearmed").await["by"], "admin");
    assert_eq!(rearm(&admin, "up__refund").await, (200, json!({"changed": false})));
    assert_eq!(rearm(&admin, "up__other").await.0, 409);

    assert!(page("/metrics").await.contains("promptgate_rollout_rolled_back{"));
    let name = "promptgate_rollout_gets_total";
    let counted = metrics(&admin, &[name]).await;
    let of = |version: &str, outcome: &str| {
        let has = |name: &str| {
            [version, outcome].iter().all(|label| name.contains(&format!("\"{label}\"")))
        };
        counted.iter().filter(|(name, _)| has(name)).map(|(_, count)| *count).sum::<f64>()
    };
    let counts = [("candidate", "ok"), ("candidate", "failed"), ("production", "ok")];
    assert_eq!(
        counts.map(|(version, outcome)| of(version, outcome)),
        [3.0, 2.0, 2.0],
        "{counted:?}"
    );
    let usage = run(folder.path(), &["usage", "--json"]).stdout;
    let usage: Value = serde_json::from_slice(&usage).unwrap();
    let rows = usage["rows"].as_array().unwrap().iter();
    let rows: Vec<_> = rows
        .map(|row| (row["key"].as_str().unwrap(), row["uses"].clone(), row["failures"].clone()))
        .collect();
    assert_eq!(rows, [("up__refund", json!(7), json!(2))]);
    let new = &usage["rows"][0]["versions"][0];
    assert_eq!((&new["key"], &new["uses"]), (&json!("up__refund@candidate"), &json!(5)));
}

#[tokio::test]
async fn rights_are_those_of_the_prompt_that_is_asked_for() {
    let (upstream, _) = upstream(&[]).await;
    let rules = "[[access.rules]]\nallow = [\"list\", \"get\"]\ncallers = [\"ada\"]\nprompts = [\"refund\"]\n\
        [[access.rules]]\nallow = [\"list\", \"get\"]\ncallers = [\"bob\"]\nprompts = [\"refund@candidate\"]\n";
    let toml = upstream.table("up")
        + &rollout("share = 1")
        + &api_key("ada", "ada")
        + &api_key("bob", "bob")
        + rules;
    let gateway = Gateway::start(&toml).await;
    assert_eq!(got(&key(&gateway, "ada")).await, "refund@candidate");
    assert_eq!(got(&key(&gateway, "bob")).await, "unknown_prompt");
    let version = json!({"name": "up__refund@candidate"});
    let refused = key(&gateway, "ada").ask_error("prompts/get", version).await;
    assert_eq!(refused["data"]["reason"], "unknown_prompt");
}

#[tokio::test]
async fn a_version_whose_arguments_do_not_fit_the_list_is_not_served() {
    let (upstream, _) = upstream(&["order"]).await;
    let toml =
        ADMIN.to_owned() + &upstream.table("up") + &rollout("share = 1") + &api_key("ada", "ada");
    let gateway = Gateway::start(&toml).await;
    assert_eq!(got(&key(&gateway, "ada")).await, "refund");
    let row = look(&admin(&gateway)).await;
    assert_eq!(row["state"], "blocked");
    assert!(row["why"].as_str().unwrap().contains("requires the argument \"order\""), "{row}");
}

#[tokio::test]
async fn a_version_that_nobody_approved_is_not_served_and_its_approval_is_its_own() {
    let (upstream, _) = upstream(&[]).await;
    let toml = enforced("")
        + ADMIN
        + &upstream.table("up")
        + &rollout("share = 1")
        + &api_key("ada", "ada");
    let folder = Folder::new(&toml);
    folder.approvals(&["approve", "up__refund", "--yes"]).await;
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let (ada, admin) =
        (process.client().with("X-API-Key", "ada"), admin.with("Authorization", "Bearer t"));
    eventually(async || got(&ada).await, |text| text == "refund").await;
    let row = look(&admin).await;
    assert!(
        row["why"].as_str().unwrap().contains("approvals hold up__refund@candidate back"),
        "{row}"
    );
    folder.approvals(&["approve", "up__refund@candidate", "--yes"]).await;
    eventually(async || got(&ada).await, |text| text == "refund@candidate").await;
    assert_eq!(look(&admin).await["state"], "running");
    process.stop().await;
}

#[tokio::test]
async fn a_rollback_outlasts_a_restart_until_a_person_begins_again() {
    let (upstream, fails) = upstream(&[]).await;
    fails.store(true, Ordering::SeqCst);
    let rule = "share = 1\nrollback = { share = 0, over = 2 }";
    let toml = ADMIN.to_owned()
        + &upstream.table("up")
        + &rollout(rule)
        + &api_key("ada", "ada")
        + &api_key("bob", "bob");
    let folder = Folder::new(&toml);
    let file = folder.path().join("rollouts.json");
    let start = async || {
        let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
        let admin = admin.with("Authorization", "Bearer t");
        let ada = process.client().with("X-API-Key", "ada");
        (process, admin.with("Content-Type", "application/json"), ada)
    };
    let (process, _, ada) = start().await;
    eventually(async || got(&ada).await, |text| text == "upstream_error").await;
    assert_eq!(got(&ada).await, "upstream_error", "the failures of one caller decide nothing");
    assert_eq!(got(&process.client().with("X-API-Key", "bob")).await, "upstream_error");
    assert_eq!(got(&ada).await, "refund");
    process.stop().await;
    fails.store(false, Ordering::SeqCst);

    let (process, admin, ada) = start().await;
    eventually(async || got(&ada).await, |text| text == "refund").await;
    assert_eq!(look(&admin).await["state"], "rolled_back");
    assert_eq!(rearm(&admin, "up__refund").await, (200, json!({"changed": true})));
    assert_eq!(got(&ada).await, "refund@candidate");
    process.stop().await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "[]");

    // A file that was damaged keeps nobody from starting, and nobody knows what was rolled back.
    fs::write(&file, "{").unwrap();
    let (process, admin, ada) = start().await;
    eventually(async || got(&ada).await, |text| text == "refund").await;
    let row = look(&admin).await;
    let why = row["why"].as_str().unwrap();
    assert!(row["state"] == "blocked" && why.contains("rollouts.json cannot be read"), "{row}");
    rearm(&admin, "up__refund").await;
    assert_eq!(got(&ada).await, "refund@candidate");
    process.stop().await;
}

#[tokio::test]
async fn a_rollback_that_nothing_would_keep_is_not_begun() {
    let (upstream, _) = upstream(&[]).await;
    let toml = SEAL.to_owned() + ADMIN + &upstream.table("up") + &api_key("ada", "ada");
    let rule = |rule| toml.clone() + &rollout(rule);
    let gateway = Gateway::start(&rule("share = 1\nrollback = { share = 0, over = 2 }")).await;
    let ada = key(&gateway, "ada");
    assert_eq!(got(&ada).await, "refund");
    let row = look(&admin(&gateway)).await;
    assert_eq!(row["why"], "a restart would forget its rollback: set audit.path, or [cluster]");
    gateway.reload(&rule("share = 1")).await;
    assert_eq!(got(&ada).await, "refund@candidate");
}
