//! Tasks that live as long as the gateway, and one that fails: nothing is served as if all were
//! well, and whatever runs the gateway is to start it again.

use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::time::timeout;

use super::audit::Log;
use crate::support::client::Reply;
use crate::support::{Gateway, PATIENCE, Process, Upstream, eventually};

/// An upstream that lists `p`, and the prompt of this name once the switch is on.
async fn upstream_with(name: &'static str) -> (Upstream, Arc<AtomicBool>) {
    let is_on = Arc::new(AtomicBool::new(false));
    let seen = is_on.clone();
    let upstream = Upstream::modern(move |asked| {
        let prompts = match seen.load(Ordering::SeqCst) {
            true => json!([{"name": "p"}, {"name": name}]),
            false => json!([{"name": "p"}]),
        };
        (asked.method() == "prompts/list").then(|| asked.list(&prompts))
    })
    .await;
    (upstream, is_on)
}

fn table(upstream: &Upstream, id: &str) -> String {
    upstream.table(id) + "poll = \"100ms\"\n"
}

fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(&reply.body).into_owned()
}

async fn ready(gateway: &Gateway) -> (u16, Value) {
    let reply = gateway.admin().send("GET", "/readyz", &[], b"").await;
    (reply.status, reply.json()["why"].clone())
}

#[tokio::test]
async fn a_reload_after_the_death_of_the_refresh_serves_no_empty_list() {
    let log = Log::new();
    let other = Upstream::with_prompts(&["q"]).await;
    let (upstream, is_hostile) = upstream_with("panic-in-merge").await;
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned()
        + &log.table()
        + &table(&upstream, "up")
        + &other.table("other");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    assert_eq!(gateway.client().names().await.0, ["other__q", "up__p"]);
    assert_eq!(ready(&gateway).await.0, 200);
    is_hostile.store(true, Ordering::SeqCst);
    let (_, why) = eventually(async || ready(&gateway).await, |(status, _)| *status == 503).await;
    assert!(why.to_string().contains("task_failed: the task refresh has panicked"), "{why}");
    assert_eq!(log.wait_for("task_failed").await["task"], "refresh");
    let status = gateway.admin().send("GET", "/api/v1/status", &[], b"").await.json();
    assert!(status["why"].to_string().contains("task_failed"), "{status}");
    let overview = gateway.admin().send("GET", "/", &[("accept", "text/html")], b"").await;
    assert!(text(&overview).contains("the task refresh has panicked"), "{}", text(&overview));
    let metrics = gateway.admin().send("GET", "/metrics", &[], b"").await;
    let metrics = text(&metrics);
    assert!(metrics.contains("promptgate_tasks_failed_total"), "{metrics}");
    // The lists are served as they were, and another configuration does not make them empty.
    assert_eq!(gateway.client().names().await.0, ["other__q", "up__p"]);
    let rejected = gateway.try_reload(&(toml.clone() + "[listing]\npage_size = 7\n")).await;
    let why = rejected.expect_err("there is nothing that would fill its catalog");
    assert!(why.contains("the task that merges the prompt lists has ended"), "{why}");
    assert_eq!(gateway.client().names().await.0, ["other__q", "up__p"]);
    assert_eq!(log.of("config_reloaded").len(), 0);
}

#[tokio::test]
async fn a_list_that_no_task_can_merge_any_more_is_an_error_and_not_empty() {
    let (upstream, is_hostile) = upstream_with("panic-in-merge").await;
    is_hostile.store(true, Ordering::SeqCst);
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned() + &table(&upstream, "up");
    let gateway = Gateway::start(&toml).await;
    eventually(async || ready(&gateway).await.1, |why| why.to_string().contains("task_failed"))
        .await;
    let error = gateway.client().ask_error("prompts/list", json!({})).await;
    assert_eq!(error["data"]["reason"], "upstream_unavailable", "{error}");
}

#[tokio::test]
async fn an_upstream_whose_driver_has_failed_is_driven_again() {
    let log = Log::new();
    let (upstream, is_hostile) = upstream_with("panic-in-driver").await;
    let toml =
        "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned() + &log.table() + &table(&upstream, "up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    is_hostile.store(true, Ordering::SeqCst);
    let shown = async || {
        let shown = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
        shown["upstreams"][0].clone()
    };
    let failing = eventually(&shown, |up| up["driverRestarts"].as_u64() >= Some(4)).await;
    assert_eq!(log.wait_for("driver_failed").await["upstream"], "up");
    // Its list is served as it was, and its calls say what is the matter.
    assert_eq!(gateway.client().names().await.0, ["up__p"]);
    if failing["state"] == "down" {
        let message = failing["error"]["message"].to_string();
        assert!(message.contains("has failed to drive it"), "{message}");
    }
    let call = async || {
        let reply = gateway.client().modern("prompts/get", json!({"name": "up__p"})).await.json();
        reply["error"]["data"]["reason"].clone()
    };
    eventually(&call, |reason| *reason == "upstream_unavailable").await;
    assert_eq!(ready(&gateway).await.0, 200, "one upstream does not end the gateway");
    is_hostile.store(false, Ordering::SeqCst);
    eventually(&call, Value::is_null).await;
    eventually(&shown, |up| up["state"] == "up" && up["error"].is_null()).await;
    let metrics = gateway.admin().send("GET", "/metrics", &[], b"").await;
    let metrics = text(&metrics);
    assert!(metrics.contains("promptgate_upstream_driver_restarts_total"), "{metrics}");
}

#[tokio::test]
async fn the_process_ends_in_order_and_not_well_when_a_task_has_failed() {
    let (upstream, is_hostile) = upstream_with("panic-in-merge").await;
    let folder = tempfile::tempdir().unwrap();
    let log = Log::new();
    let toml = log.table() + &table(&upstream, "up");
    fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let stderr = tempfile::NamedTempFile::new().unwrap();
    let mut process =
        Process::serve_with(folder.path(), Stdio::from(stderr.reopen().unwrap())).await;
    eventually(async || process.client().names().await.0, |names| *names == ["up__p"]).await;
    is_hostile.store(true, Ordering::SeqCst);
    let ended = timeout(PATIENCE, process.child.wait()).await.expect("it ends").unwrap();
    let said = fs::read_to_string(stderr.path()).unwrap();
    assert_eq!(ended.code(), Some(1), "{said}");
    assert!(
        said.contains("the task refresh has panicked; the gateway has ended in order"),
        "{said}"
    );
    // In order: the log is closed, by a checkpoint after its last record.
    assert_eq!((log.of("task_failed").len(), log.of("stopped").len()), (1, 1));
    assert_eq!(log.records().last().unwrap()["event"], "checkpoint");
}
