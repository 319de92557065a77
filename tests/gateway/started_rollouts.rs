//! Rollouts that people start, change and end while the gateway runs.

use std::fs;

use serde_json::{Value, json};

use crate::approvals::enforced;
use crate::audit::Log;
use crate::labels::Library;
use crate::rollouts::{self, ADMIN, SEAL};
use crate::support::gateway::api_key;
use crate::support::process::run;
use crate::support::{Client, Gateway, eventually};

const LABELS: &str = "[refund]\nproduction = 1\ncandidate = 3\n";

const NAME: &str = "lib__refund";

/// A gateway with a library, and its callers.
struct Desk {
    library: Library,
    log: Log,
    gateway: Gateway,
    toml: String,
}

impl Desk {
    async fn new(more: &str) -> Self {
        let (library, log) = (Library::new(LABELS), Log::new());
        let toml = SEAL.to_owned()
            + ADMIN
            + &log.table()
            + &library.table()
            + more
            + &api_key("ada", "ada")
            + &api_key("bob", "bob");
        let gateway = Gateway::start(&toml).await;
        let desk = Self { library, log, gateway, toml };
        let admin = desk.admin();
        let labels = async || admin.send("GET", "/api/v1/labels", &[], b"").await.json();
        eventually(labels, |labels| labels["prompts"][0]["name"] == NAME).await;
        desk
    }

    fn admin(&self) -> Client {
        rollouts::admin(&self.gateway)
    }

    async fn got(&self, id: &str) -> String {
        let client = self.gateway.client().with("X-API-Key", id);
        let reply = client.modern("prompts/get", json!({"name": NAME})).await.json();
        let text = reply["result"]["messages"][0]["content"]["text"].as_str();
        text.unwrap_or_default().to_owned()
    }

    async fn ask(&self, change: Value) -> (u16, Value) {
        let path = format!("/api/v1/rollouts/{NAME}");
        let reply = self.admin().send("POST", &path, &[], change.to_string().as_bytes()).await;
        (reply.status, reply.json())
    }

    async fn changed(&self, change: Value) {
        let said = change.to_string();
        assert_eq!(self.ask(change).await, (200, json!({"changed": true})), "{said}");
    }

    async fn refused(&self, change: Value, why: &str) {
        let (status, document) = self.ask(change).await;
        let error = document["error"].as_str().unwrap_or_default();
        assert!(status == 409 && error.contains(why), "{status} {document}");
    }

    async fn look(&self) -> Value {
        let reply = self.admin().send("GET", "/api/v1/rollouts", &[], b"").await;
        reply.json()["rollouts"][0].clone()
    }

    async fn page(&self) -> String {
        let path = format!("/prompts/{NAME}/versions");
        String::from_utf8(self.admin().send("GET", &path, &[], b"").await.body).unwrap()
    }

    fn file(&self) -> String {
        fs::read_to_string(self.library.path().join("rollouts.toml")).unwrap()
    }
}

#[tokio::test]
async fn a_person_starts_pauses_widens_and_ends_a_rollout_without_the_configuration() {
    let desk = Desk::new("").await;
    eventually(async || desk.page().await, |page| page.contains("value=\"start\"")).await;
    assert_eq!(desk.got("ada").await, "version 1");
    desk.changed(
        json!({"action": "start", "to": "candidate", "share": 1, "rollback": 0.1, "why": "try"}),
    )
    .await;
    assert_eq!(
        (desk.got("ada").await, desk.got("bob").await),
        ("version 3".into(), "version 3".into())
    );
    let started = desk.log.wait_for("rollout_started").await;
    let said = ["from", "to", "share", "why", "prompt"].map(|member| started[member].clone());
    assert_eq!(
        said,
        [json!("production"), json!("candidate"), json!(1), json!("try"), json!(NAME)]
    );
    let row = desk.look().await;
    assert_eq!((&row["state"], &row["started"]), (&json!("running"), &json!(true)), "{row}");
    let page = desk.page().await;
    for shown in ["100 % of the callers get candidate", "10 % of 100 gets", "value=\"pause\""] {
        assert!(page.contains(shown), "{shown}\n{page}");
    }

    desk.changed(json!({"action": "pause"})).await;
    assert_eq!(desk.got("ada").await, "version 1");
    assert_eq!(desk.look().await["state"], "paused");
    assert_eq!(desk.ask(json!({"action": "pause"})).await, (200, json!({"changed": false})));
    desk.changed(json!({"action": "resume"})).await;
    assert_eq!(desk.got("ada").await, "version 3");
    desk.changed(json!({"action": "share", "share": 0})).await;
    assert_eq!(desk.got("ada").await, "version 1");
    desk.changed(json!({"action": "share", "share": 1})).await;
    desk.changed(json!({"action": "roll_back", "why": "wrong"})).await;
    assert_eq!(desk.got("ada").await, "version 1");
    assert_eq!(desk.log.wait_for("rollout_rolled_back").await["why"], "wrong");
    assert!(desk.page().await.contains("value=\"rearm\""));
    desk.changed(json!({"action": "rearm"})).await;
    assert_eq!(desk.got("ada").await, "version 3");
    desk.changed(json!({"action": "end"})).await;
    assert_eq!((desk.got("ada").await.as_str(), desk.file().as_str()), ("version 1", ""));
    assert_eq!(desk.log.wait_for("rollout_ended").await["share"], 0);
    assert_eq!(desk.look().await, Value::Null);
}

#[tokio::test]
async fn a_change_that_would_serve_nothing_new_is_refused_and_the_file_stays() {
    let desk = Desk::new("").await;
    for (change, why) in [
        (json!({"action": "start", "share": 1}), "name the new version"),
        (
            json!({"action": "start", "to": "beta", "share": 1}),
            "it has candidate, production, 1, 2, 3",
        ),
        (json!({"action": "start", "to": "1", "share": 1}), "are both version 1"),
        (json!({"action": "start", "to": "2", "share": 2}), "share must be a number from 0 to 1"),
        (json!({"action": "start", "to": "2"}), "name the share"),
        (json!({"action": "end"}), "has no rollout"),
        (json!({"action": "roll_back"}), "has no rollout"),
    ] {
        desk.refused(change, why).await;
    }
    assert!(!desk.library.path().join("rollouts.toml").exists());
    desk.changed(json!({"action": "start", "to": "2", "share": 1})).await;
    desk.refused(json!({"action": "start", "to": "3", "share": 1}), "end it first").await;
    assert_eq!(desk.got("ada").await, "version 2");

    // A mistake in the file lets the rollout go on.
    desk.library.write("rollouts.toml", "[refund]\nto = 3\n");
    let status =
        async || desk.admin().send("GET", "/api/v1/catalog", &[], b"").await.json().to_string();
    eventually(status, |status| status.contains("the rollouts of before go on")).await;
    assert_eq!(desk.got("ada").await, "version 2");
}

#[tokio::test]
async fn a_rollout_of_the_configuration_counts_and_only_its_state_is_changed() {
    let rollout = "[[rollouts]]\nprompt = \"lib__refund\"\nto = \"2\"\nshare = 1\n";
    let desk = Desk::new(rollout).await;
    desk.library.write("rollouts.toml", "[refund]\nto = \"3\"\nshare = 1\n");
    assert_eq!(desk.got("ada").await, "version 2");
    desk.refused(json!({"action": "share", "share": 0}), "is in the configuration").await;
    assert_eq!(desk.look().await["started"], false);
    desk.changed(json!({"action": "roll_back"})).await;
    assert_eq!(desk.got("ada").await, "version 1");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), &desk.toml).unwrap();
    let checked = run(folder.path(), &["check"]);
    let said = String::from_utf8(checked.stdout).unwrap();
    assert!(said.contains("has another rollout in rollouts.toml"), "{said}");
}

#[tokio::test]
async fn a_started_rollout_never_serves_a_version_that_is_not_approved() {
    let desk = Desk::new(&enforced("")).await;
    let start = json!({"action": "start", "to": "candidate", "share": 1});
    let answer = async || desk.ask(start.clone()).await.1["error"].to_string();
    eventually(answer, |error| error.contains("lib__refund@3 is not approved")).await;
    // A file written by hand is no decision.
    desk.library.write("rollouts.toml", "[refund]\nto = \"candidate\"\nshare = 1\n");
    let state = async || desk.look().await["state"].clone();
    eventually(state, |state| state == "blocked").await;
    assert_eq!(desk.got("ada").await, "");
}

#[tokio::test]
async fn a_started_rollout_is_there_after_a_restart_and_at_a_replica_that_reads_its_files() {
    let desk = Desk::new("").await;
    desk.changed(json!({"action": "start", "to": "candidate", "share": 1})).await;
    let replica =
        Gateway::start(&(ADMIN.to_owned() + &desk.library.table() + &api_key("ada", "ada"))).await;
    let client = replica.client().with("X-API-Key", "ada");
    let got = client.ask("prompts/get", json!({"name": NAME})).await;
    assert_eq!(got["messages"][0]["content"]["text"], "version 3");
    assert_eq!(got["_meta"]["promptgate/rollout"], "candidate");
}
