//! Reloads that change where audit records, logs, spans and metrics go.

use std::fs;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::audit::{KEY, Log, check};
use super::reload_follow::ConfiguredProcess;
use crate::support::collector::Collector;
use crate::support::{Client, Gateway, OpenStream, Process, Upstream, eventually};

/// `[audit]` in this folder, with this key.
fn audit(path: &std::path::Path, key: &str) -> String {
    format!("[audit]\npath = {path:?}\nkey = {{ value = \"{key}\" }}\n")
}

/// `[audit]` with this log, in which there are no lists.
fn table(log: &Log) -> String {
    log.table() + "list = false\n"
}

async fn get(client: &Client, ticket: &str) -> Value {
    let params = json!({"name": "up__p", "arguments": {"ticket": ticket}});
    client.ask("prompts/get", params).await
}

/// The ends that are on record, by what came of them.
fn outcomes(log: &Log) -> Vec<String> {
    log.of("completed").iter().map(|r| r["outcome"].as_str().unwrap().to_owned()).collect()
}

/// A gateway whose audit log was replaced by another one while a get was under way.
struct ReplacedLog {
    gateway: Gateway,
    upstream: Upstream,
    live: OpenStream,
    held: JoinHandle<Value>,
    logs: [Log; 2],
}

impl ReplacedLog {
    async fn start() -> Self {
        let (upstream, live) = Upstream::holding_a_get().await;
        let logs = [Log::new(), Log::new()];
        let gateway = Gateway::start(&(table(&logs[0]) + &upstream.patient_table("up"))).await;
        assert_eq!(gateway.client().names().await.0, ["up__p"]);
        let client = gateway.client();
        let held = tokio::spawn(async move { get(&client, "held").await });
        upstream.received_method("prompts/get").await;
        gateway.reload(&(table(&logs[1]) + &upstream.patient_table("up"))).await;
        Self { gateway, upstream, live, held, logs }
    }
}

#[tokio::test]
async fn k2_another_audit_log_is_written_from_then_on_and_calls_under_way_end_in_theirs() {
    let ReplacedLog { gateway, upstream, live, held, logs: [one, two] } =
        ReplacedLog::start().await;
    get(&gateway.client(), "after").await;
    assert_eq!((outcomes(&one), outcomes(&two)), (vec![], vec!["ok".to_owned()]));
    upstream.answer_get(&live);
    held.await.unwrap();
    // Then the first one gets its end.
    eventually(async || one.of("stopped").len(), |seen| *seen == 1).await;
    assert_eq!((outcomes(&one), outcomes(&two)), (vec!["ok".to_owned()], vec!["ok".to_owned()]));
    let places = |log: &Log| log.path().display().to_string();
    assert_eq!(one.of("log_replaced")[0]["by"], places(&two).as_str());
    assert_eq!(two.of("log_replaces")[0]["path"], places(&one).as_str());
    assert_eq!((one.of("config_reloaded").len(), two.of("config_reloaded").len()), (1, 1));
    // And back, where it goes on, as soon as that has ended.
    let back = table(&one) + &upstream.patient_table("up");
    eventually(async || gateway.try_reload(&back).await, Result::is_ok).await.unwrap();
    get(&gateway.client(), "again").await;
    gateway.drain().await;
    assert_eq!((outcomes(&one).len(), outcomes(&two).len()), (2, 1));
    for log in [&one, &two] {
        let report = check(&log.path());
        assert!(report.unknown.is_empty() && report.missing.is_empty(), "{report:?}");
        assert_eq!(log.records().last().unwrap()["event"], "checkpoint");
    }
}

#[tokio::test]
async fn k2_an_audit_log_is_switched_off_and_on_and_streams_that_stay_end_where_it_is_written_by_then()
 {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let (one, two) = (Log::new(), Log::new());
    let off = "[audit]\npath = \"\"\n".to_owned() + &upstream.table("up");
    let gateway = Gateway::start(&(table(&one) + &upstream.table("up"))).await;
    gateway.client().names().await;
    let stream = gateway.client().listen().await;
    gateway.reload(&off).await;
    eventually(async || one.of("stopped").len(), |seen| *seen == 1).await;
    assert_eq!(one.of("log_replaced")[0]["by"], "");
    get(&gateway.client(), "unrecorded").await;
    gateway.reload(&(table(&two) + &upstream.table("up"))).await;
    get(&gateway.client(), "recorded").await;
    drop(stream);
    let opened = &one.of("stream_started")[0]["call"];
    eventually(
        async || two.of("stream_ended"),
        |ended| ended.iter().any(|record| record["call"] == *opened),
    )
    .await;
    gateway.drain().await;
    assert_eq!((outcomes(&one).len(), outcomes(&two).len()), (0, 1));
    check(&one.path());
    check(&two.path());
}

#[tokio::test]
async fn x3_a_log_that_was_replaced_and_is_still_held_gets_its_end_with_the_gateway() {
    let ReplacedLog { gateway, upstream, live, held, logs: [one, two] } =
        ReplacedLog::start().await;
    // It is ours, not another gateway's, and is not gone back to before that.
    let back = table(&one) + &upstream.patient_table("up");
    let refused = gateway.try_reload(&back).await.unwrap_err();
    assert!(refused.contains("earlier calls are still recorded"), "{refused}");
    let draining = tokio::spawn(gateway.drain());
    upstream.answer_get(&live);
    held.await.unwrap();
    draining.await.unwrap();
    for log in [&one, &two] {
        let report = check(&log.path());
        assert!(report.unknown.is_empty(), "{report:?}");
        assert_eq!(log.records().last().unwrap()["event"], "checkpoint");
    }
    assert_eq!(outcomes(&one), ["ok"]);
}

#[tokio::test]
async fn k2_the_same_key_may_be_given_in_another_way() {
    let (log, keys) = (Log::new(), tempfile::tempdir().unwrap());
    let key = keys.path().join("key");
    fs::write(&key, KEY).unwrap();
    let gateway = Gateway::start(&log.table()).await;
    let elsewhere = format!("[audit]\npath = {:?}\nkey = {{ file = {key:?} }}\n", log.path());
    let dotted = log.path().join("../audit");
    let dotted = format!("[audit]\npath = {dotted:?}\nkey = {{ value = \"{KEY}\" }}\n");
    for same in [elsewhere, dotted] {
        gateway.reload(&same).await;
    }
    gateway.drain().await;
    assert_eq!((log.of("log_replaced").len(), log.of("config_reloaded").len()), (0, 2));
    check(&log.path());
}

#[tokio::test]
async fn k2_a_log_that_cannot_be_written_there_is_not_moved() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let (log, other) = (Log::new(), Log::new());
    let gateway = Gateway::start(&(table(&log) + &upstream.table("up"))).await;
    gateway.client().names().await;
    let in_use = Gateway::start(&other.table()).await;
    let other_key = KEY.replace("AAA=", "BBA=");
    for (audit, why) in [
        (other.table(), "another running gateway"),
        (audit(&log.path(), &other_key), "set another audit.path together with another key"),
        (audit("/dev/null/log".as_ref(), KEY), "audit.path /dev/null/log"),
    ] {
        // The upstream, which it takes out, stays as well.
        let refused = gateway.try_reload(&audit).await.unwrap_err();
        assert!(refused.contains(why), "{refused}");
        get(&gateway.client(), "on record").await;
    }
    assert_eq!(outcomes(&log).len(), 3);
    in_use.drain().await;
    gateway.reload(&(table(&other) + &upstream.table("up"))).await;
    gateway.drain().await;
    check(&log.path());
    check(&other.path());
}

#[tokio::test]
async fn k2_addresses_stay_until_a_restart_and_that_is_told() {
    let toml = |port: u16| format!("[admin]\nlisten = \"127.0.0.1:{port}\"\n");
    let gateway = Gateway::start(&toml(0)).await;
    assert_eq!(gateway.try_reload(&toml(9)).await.unwrap(), ["admin.listen"]);
    let status = gateway.admin().send("GET", "/api/v1/status", &[], b"").await.json();
    assert_eq!(status["reloads"]["needsRestart"], json!(["admin.listen"]));
}

/// `[telemetry]` that tells this collector of everything.
fn telemetry(collector: &Collector, service: &str, more: &str) -> String {
    format!(
        "[audit]\npath = \"\"\n[telemetry]\nservice_name = \"{service}\"\notlp_endpoint = {:?}\n{more}",
        collector.url()
    )
}

const AT_ONCE: [(&str, &str); 3] = [
    ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ("OTEL_BLRP_SCHEDULE_DELAY", "20"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
];

/// The names of the spans that have arrived.
fn spans(collector: &Collector) -> Vec<String> {
    collector.spans().into_iter().map(|span| span.name).collect()
}

#[tokio::test]
async fn k2_another_collector_is_told_from_then_on_and_what_has_begun_goes_where_it_would_have() {
    let (upstream, live) = Upstream::holding_a_get().await;
    let (one, two) = (Collector::start().await, Collector::start().await);
    let table = upstream.patient_table("up");
    let followed = ConfiguredProcess::with(&(telemetry(&one, "one", "") + &table), &AT_ONCE).await;
    assert_eq!(followed.names().await, ["up__p"]);
    let client = followed.process.client();
    let held = tokio::spawn(async move { get(&client, "held").await });
    upstream.received_method("prompts/get").await;
    fs::write(followed.file(), telemetry(&two, "two", "max_prompts = 7\n") + &table).unwrap();
    followed.has(1, 0).await;
    let completion = json!({"ref": {"type": "ref/prompt", "name": "up__p"},
        "argument": {"name": "a", "value": ""}});
    followed.process.client().ask("completion/complete", completion).await;
    two.until_some(|two| {
        spans(two).contains(&"completion/complete up__p".to_owned()).then_some(())
    })
    .await;
    assert_eq!(two.service().as_deref(), Some("two"));
    // Metrics are of the new service, and look at the same gateway.
    let text = followed.admin.send("GET", "/metrics", &[], b"").await.body;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("service_name=\"two\"") && !text.contains("service_name=\"one\""));
    assert!(text.contains("promptgate_upstream_up{promptgate_upstream=\"up\"} 1\n"), "{text}");
    two.until_some(|two| two.metric("promptgate.upstream.up")).await;
    upstream.answer_get(&live);
    held.await.unwrap();
    followed.process.stop().await;
    let is_told = |log: &Collector| log.heard_of("draining");
    assert_eq!((is_told(&one), is_told(&two)), (false, true));
    assert!(spans(&one).contains(&"prompts/get up__p".to_owned()), "{:?}", spans(&one));
    assert!(!spans(&two).contains(&"prompts/get up__p".to_owned()), "{:?}", spans(&two));
}

#[tokio::test]
async fn k2_logs_are_written_in_another_way() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let write = |more: &str| {
        let toml = format!("[audit]\npath = \"\"\n[telemetry]\n{more}{}", upstream.table("up"));
        fs::write(file("gateway.toml"), toml).unwrap();
    };
    write("");
    let stderr = fs::File::create(file("stderr")).unwrap();
    let process = Process::serve_with(folder.path(), stderr.into()).await;
    let log = || fs::read_to_string(file("stderr")).unwrap();
    process.client().legacy("2025-06-18").await;
    write("log = \"debug\"\nlog_format = \"text\"\n");
    eventually(async || log().contains("configuration reloaded"), |seen| *seen).await;
    eventually(
        async || {
            process.client().legacy("2025-06-18").await;
            log()
        },
        |log| log.contains(": session opened revision"),
    )
    .await;
    let before = log().lines().take_while(|line| line.starts_with('{')).count();
    assert!(before > 0, "not on a terminal it is JSON: {}", log());
    assert!(!log().contains("\"level\":\"DEBUG\""));
    process.stop().await;
    assert!(log().lines().last().unwrap().contains("INFO stopped"), "{}", log());
}
