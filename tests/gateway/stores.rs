//! Prompt stores as upstreams: what a scripted MLflow, Phoenix or Langfuse has under a label is
//! listed, filled in, followed and approved as a prompt of a library.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::approvals::{Folder, enforced};
use crate::audit::Log;
use crate::rollouts;
use crate::support::client::modern;
use crate::support::process::command;
use crate::support::{Client, Gateway, Process, Received, Scripted, Upstream, eventually};

const QUICK: &str = "[listing]\ndebounce = \"5ms\"\n";

/// A scripted MLflow: versions and the alias `production` of each prompt.
#[derive(Clone, Default)]
pub(crate) struct Registry(Arc<Mutex<Registered>>);

#[derive(Default)]
struct Registered {
    prompts: BTreeMap<String, Versions>,
    /// What every request is answered with instead.
    broken: Option<Scripted>,
    /// The prompt whose versions are refused, with the answer.
    refused: Option<(&'static str, Scripted)>,
}

#[derive(Clone, Default)]
struct Versions {
    texts: Vec<(&'static str, String)>,
    production: Option<usize>,
    staging: Option<usize>,
}

impl Registry {
    /// Adds a version, and moves the alias to it.
    pub(crate) fn publish(&self, name: &str, text: &str) {
        self.add(name, "text", text);
        self.promote(name, None);
    }

    fn add(&self, name: &str, kind: &'static str, text: &str) {
        let mut registered = self.0.lock().unwrap();
        let versions = registered.prompts.entry(name.to_owned()).or_default();
        versions.texts.push((kind, text.to_owned()));
    }

    /// Moves the alias to a version, or to the newest one.
    fn promote(&self, name: &str, version: Option<usize>) {
        let mut registered = self.0.lock().unwrap();
        let versions = registered.prompts.get_mut(name).unwrap();
        versions.production = version.or(Some(versions.texts.len()));
    }

    /// Moves the alias `staging` to a version.
    fn stage(&self, name: &str, version: usize) {
        self.0.lock().unwrap().prompts.get_mut(name).unwrap().staging = Some(version);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.0.lock().unwrap().prompts.remove(name);
    }

    fn break_with(&self, broken: Option<Scripted>) {
        self.0.lock().unwrap().broken = broken;
    }

    fn refuse(&self, name: &'static str, answer: Scripted) {
        self.0.lock().unwrap().refused = Some((name, answer));
    }

    fn refuse_nothing(&self) {
        self.0.lock().unwrap().refused = None;
    }

    pub(crate) async fn serve(&self) -> Upstream {
        let registry = self.clone();
        Upstream::start(move |asked| registry.answer(&asked.path)).await
    }

    fn answer(&self, path: &str) -> Scripted {
        let registered = self.0.lock().unwrap();
        if let Some(broken) = &registered.broken {
            return broken.clone();
        }
        let query = |key: &str| {
            let pairs = path.split_once('?').map_or("", |(_, query)| query).split('&');
            let mut values = pairs.filter_map(|pair| pair.split_once('='));
            values.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
        };
        let number = |key: &str| query(key).and_then(|text| text.parse::<usize>().ok());
        if path.starts_with("/api/2.0/mlflow/registered-models/search?") {
            assert!(path.contains("mlflow.prompt.is_prompt"), "{path}");
            let (start, size) = (number("page_token").unwrap_or(0), number("max_results").unwrap());
            let prompts = registered.prompts.iter().skip(start).take(size);
            let models: Vec<_> = prompts.map(|(name, versions)| versions.model(name)).collect();
            let mut answer = json!({"registered_models": models});
            if start + size < registered.prompts.len() {
                answer["next_page_token"] = (start + size).to_string().into();
            }
            return Scripted::Json(answer);
        }
        let asked = path.starts_with("/api/2.0/mlflow/model-versions/get?");
        if let Some((name, answer)) = &registered.refused
            && query("name").as_deref() == Some(*name)
        {
            return answer.clone();
        }
        let versions = query("name").filter(|_| asked).map(|name| &registered.prompts[&name]);
        let version = number("version").unwrap();
        Scripted::Json(json!({"model_version": versions.unwrap().version(version)}))
    }
}

impl Versions {
    fn version(&self, number: usize) -> Value {
        let (kind, text) = &self.texts[number - 1];
        json!({"version": number.to_string(), "tags": [{"key": "mlflow.prompt.is_prompt", "value": "true"},
            {"key": "_mlflow_prompt_type", "value": kind},
            {"key": "mlflow.prompt.text", "value": text}]})
    }

    fn model(&self, name: &str) -> Value {
        let aliases = [("production", self.production), ("staging", self.staging)];
        let aliases = aliases.into_iter().filter_map(|(alias, version)| {
            version.map(|version| json!({"alias": alias, "version": version.to_string()}))
        });
        json!({"name": name, "description": format!("About {name}"), "creation_timestamp": 1,
            "last_updated_timestamp": self.texts.len(), "aliases": aliases.collect::<Vec<_>>(),
            "latest_versions": [self.version(self.texts.len())]})
    }
}

fn table(store: &Upstream, kind: &str, more: &str) -> String {
    let url = format!("http://{}", store.addr);
    let state = if more.contains("state = ") { "" } else { "state = \"\"\n" };
    let hold = if more.contains("hold_removals") { "" } else { "hold_removals = \"0s\"\n" };
    format!(
        "{QUICK}[upstreams.s]\ntransport = \"{kind}\"\nurl = \"{url}\"\npoll = \"20ms\"\n\
         page_timeout = \"2s\"\nwalk_timeout = \"30s\"\n{state}{hold}{more}"
    )
}

async fn before(store: &Upstream, kind: &str, more: &str) -> Gateway {
    Gateway::start(&table(store, kind, more)).await
}

/// The texts of a prompt's messages, or the reason of the error.
async fn texts(client: &Client, name: &str, arguments: Value) -> Vec<String> {
    let params = json!({"name": name, "arguments": arguments});
    let reply = client.modern("prompts/get", params).await.json();
    let messages = reply["result"]["messages"].as_array().cloned().unwrap_or_default();
    let text = |message: &Value| message["content"]["text"].as_str().unwrap().to_owned();
    match &reply["error"]["data"]["reason"] {
        Value::String(reason) => vec![reason.clone()],
        _ => messages.iter().map(text).collect(),
    }
}

pub(crate) async fn serves(client: &Client, name: &str, expected: &[&str]) {
    eventually(async || texts(client, name, json!({})).await, |texts| texts == expected).await;
}

pub(crate) async fn lists(client: &Client, expected: &[&str]) {
    eventually(async || client.names().await.0, |names| names == expected).await;
}

/// The upstream's row of the admin API.
async fn shown(gateway: &Gateway) -> Value {
    let shown = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
    shown["upstreams"][0].clone()
}

/// The reason of the error in that row.
async fn error_of(gateway: &Gateway) -> Value {
    shown(gateway).await["error"]["reason"].clone()
}

/// The prompts that are left out, or served in an earlier version.
async fn left_out(gateway: &Gateway) -> Value {
    gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await.json()["leftOut"].clone()
}

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

#[tokio::test]
async fn a_prompt_of_mlflow_is_listed_with_its_variables_and_filled_in_for_every_era() {
    let registry = Registry::default();
    registry.publish("oncall", "Page {{ team }} about {{alert}}. {{ team }}!");
    let chat = json!([{"role": "user", "content": "{{ ticket }}"}, {"role": "assistant", "content": "Severity:"}]);
    registry.add("triage", "chat", &chat.to_string());
    registry.promote("triage", None);
    let store = registry.serve().await;
    let gateway = before(&store, "mlflow", "").await;
    let client = gateway.client();
    lists(&client, &["s__oncall", "s__triage"]).await;
    let listed = client.ask("prompts/list", json!({})).await["prompts"][0].clone();
    let required = |name: &str| json!({"name": name, "required": true});
    assert_eq!(listed["arguments"], json!([required("team"), required("alert")]));
    assert_eq!(listed["description"], "About oncall");
    assert_eq!(listed["_meta"]["version"], "1");
    let arguments = json!({"team": "{{ alert }}", "alert": "disk"});
    let filled = texts(&client, "s__oncall", arguments).await;
    assert_eq!(filled, ["Page {{ alert }} about disk. {{ alert }}!"], "a value is no template");
    assert_eq!(texts(&client, "s__triage", json!({"ticket": "T1"})).await, ["T1", "Severity:"]);
    let lacking = client.ask_error("prompts/get", json!({"name": "s__oncall"})).await;
    assert_eq!(lacking["code"], -32602);
    let legacy = gateway.client().legacy("2025-06-18").await;
    let params = json!({"name": "s__triage", "arguments": {"ticket": "T2"}});
    let reply =
        legacy.post(&crate::support::client::request(7, "prompts/get", params)).await.json();
    assert_eq!(reply["result"]["messages"][0]["content"]["text"], "T2");
}

#[tokio::test]
async fn a_moved_alias_a_new_prompt_and_a_deleted_one_reach_a_connected_client() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    let store = registry.serve().await;
    let log = Log::new();
    let gateway = before(&store, "mlflow", &log.table()).await;
    let client = gateway.client();
    lists(&client, &["s__greet"]).await;
    let mut changes = client.listen().await;
    // A new version is not served before the alias moves.
    registry.add("greet", "text", "two");
    registry.publish("other", "x");
    lists(&client, &["s__greet", "s__other"]).await;
    changes.event().await.expect("a notification");
    serves(&client, "s__greet", &["one"]).await;
    registry.promote("greet", Some(2));
    serves(&client, "s__greet", &["two"]).await;
    changes.event().await.expect("a notification");
    registry.promote("greet", Some(1));
    serves(&client, "s__greet", &["one"]).await;
    let has_both = |moved: &Vec<Value>| moved.len() == 2;
    let moved = eventually(async || log.of("label_moved"), has_both).await;
    let members = |record: &Value| ["label", "from", "to", "via"].map(|key| record[key].clone());
    let expected = json!([["production", 1, 2, "store"], ["production", 2, 1, "store"]]);
    assert_eq!(json!(moved.iter().map(members).collect::<Vec<_>>()), expected);
    registry.remove("other");
    lists(&client, &["s__greet"]).await;
    // A name that is given again is another prompt.
    registry.remove("greet");
    lists(&client, &[]).await;
    registry.publish("greet", "three");
    serves(&client, "s__greet", &["three"]).await;
}

#[tokio::test]
async fn further_labels_are_versions_in_the_views_that_ask_for_them() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    registry.add("greet", "text", "two");
    registry.publish("plain", "x");
    let store = registry.serve().await;
    let more = "labels = [\"staging\"]\n[views.all]\nversions = true\n";
    let gateway = before(&store, "mlflow", more).await;
    let client = gateway.client();
    lists(&client, &["s__greet", "s__plain"]).await;
    registry.stage("greet", 2);
    let at_all = async |method: &str, params: Value| {
        let (body, headers) = modern(1, method, params);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let body = body.to_string();
        client.send("POST", "/mcp/all", &headers, body.as_bytes()).await.json()
    };
    let get = async || at_all("prompts/get", json!({"name": "s__greet@staging"})).await;
    let text = |reply: &Value| reply["result"]["messages"][0]["content"]["text"].clone();
    let staged = eventually(get, |reply| text(reply) == "two").await;
    let meta = &staged["result"]["_meta"];
    assert_eq!((&meta["version"], &meta["label"]), (&json!("2"), &json!("staging")));
    let listed = at_all("prompts/list", json!({})).await["result"]["prompts"].clone();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["s__greet", "s__greet@staging", "s__plain"]);
    assert_eq!(texts(&client, "s__greet", json!({})).await, ["one"]);
    assert_eq!(client.names().await.0, ["s__greet", "s__plain"], "elsewhere they do not exist");
    assert_eq!(
        client.ask_error("prompts/get", json!({"name": "s__greet@staging"})).await["code"],
        -32602
    );
    registry.stage("greet", 1);
    eventually(get, |reply| text(reply) == "one").await;
}

#[tokio::test]
async fn a_store_that_fails_is_said_to_and_its_last_versions_are_served_until_it_is_back() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    let store = registry.serve().await;
    let gateway = before(&store, "mlflow", ADMIN).await;
    let client = gateway.client();
    serves(&client, "s__greet", &["one"]).await;
    let html = Scripted::Http(200, vec![("Content-Type", "text/html".into())], b"<p>hi".to_vec());
    for (broken, reason) in [
        (Scripted::Http(503, vec![], vec![]), "upstream_http_error"),
        (html, "upstream_protocol_error"),
        (Scripted::Json(json!({"prompts": []})), "upstream_protocol_error"),
        (Scripted::Break(vec![]), "upstream_reset"),
    ] {
        registry.break_with(Some(broken));
        eventually(async || error_of(&gateway).await, |error| *error == reason).await;
        assert_eq!(texts(&client, "s__greet", json!({})).await, ["one"], "{reason}");
        assert_eq!(client.names().await.0, ["s__greet"], "{reason}");
        let row = shown(&gateway).await;
        assert_eq!(row["state"], "stale", "{reason}");
        assert!(row["ageSecs"].is_u64(), "the last good walk: {row}");
        let metrics = gateway.admin().send("GET", "/metrics", &[], b"").await.body;
        assert!(
            String::from_utf8_lossy(&metrics)
                .contains("promptgate_upstream_up{promptgate_upstream=\"s\"} 0")
        );
        registry.break_with(None);
        eventually(async || shown(&gateway).await, |row| row["state"] == "up").await;
    }
    registry.publish("greet", "two");
    serves(&client, "s__greet", &["two"]).await;
}

#[tokio::test]
async fn a_prompt_that_a_store_refuses_keeps_its_last_version_and_the_walk_goes_on() {
    let registry = Registry::default();
    // The list has the text of the newest version only: others are asked for.
    for text in ["one", "two", "three"] {
        registry.add("greet", "text", text);
    }
    registry.promote("greet", Some(1));
    registry.publish("hello", "hi 0");
    let store = registry.serve().await;
    let gateway = before(&store, "mlflow", ADMIN).await;
    let client = gateway.client();
    serves(&client, "s__greet", &["one"]).await;
    let status = |status: u16| (Scripted::Http(status, vec![], vec![]), status.to_string());
    let html = vec![("Content-Type", "text/html".into())];
    let mut answers = Vec::from([401, 403, 408, 425, 429, 500].map(status));
    answers.push((Scripted::Http(200, html, b"<p>hi".to_vec()), "no message".to_owned()));
    answers.push((Scripted::Break(b"HTTP/1.1 200 OK\r\n".to_vec()), "broke".to_owned()));
    for (round, (answer, reason)) in answers.into_iter().enumerate() {
        registry.refuse("greet", answer);
        registry.promote("greet", Some(2));
        let other = format!("hi {}", round + 1);
        registry.publish("hello", &other);
        serves(&client, "s__hello", &[&other]).await;
        assert_eq!(texts(&client, "s__greet", json!({})).await, ["one"], "{reason}");
        let is_named = |rows: &Value| {
            let row = rows.as_array().unwrap().iter().find(|row| row["name"] == "greet");
            row.is_some_and(|row| {
                row["by"] == "stale" && row["reason"].as_str().unwrap().contains(&reason)
            })
        };
        eventually(async || left_out(&gateway).await, is_named).await;
    }
    registry.refuse_nothing();
    serves(&client, "s__greet", &["two"]).await;
    eventually(async || left_out(&gateway).await, |rows| rows == &json!([])).await;
}

#[tokio::test]
async fn a_store_that_asks_for_patience_at_one_version_is_left_alone_for_that_time() {
    let registry = Registry::default();
    for text in ["one", "two", "three"] {
        registry.add("greet", "text", text);
    }
    registry.promote("greet", Some(1));
    let asked_at: Arc<Mutex<Vec<(Instant, bool)>>> = Arc::default();
    let noted = asked_at.clone();
    let of_store = registry.clone();
    let store = Upstream::start(move |asked| {
        let answer = of_store.answer(&asked.path);
        let is_refused = matches!(answer, Scripted::Http(429, ..));
        noted.lock().unwrap().push((Instant::now(), is_refused));
        answer
    })
    .await;
    let gateway = before(&store, "mlflow", "").await;
    serves(&gateway.client(), "s__greet", &["one"]).await;
    let patience = vec![("Retry-After", "1".to_owned())];
    registry.refuse("greet", Scripted::Http(429, patience, vec![]));
    registry.promote("greet", Some(2));
    let until_asked_again = || {
        let asked_at = asked_at.lock().unwrap();
        let refused = asked_at.iter().position(|(_, is_refused)| *is_refused)?;
        let (next, _) = asked_at.get(refused + 1)?;
        Some(next.duration_since(asked_at[refused].0))
    };
    let paused = eventually(async || until_asked_again(), Option::is_some).await.unwrap();
    assert!(paused >= Duration::from_secs(1), "{paused:?}");
    registry.refuse_nothing();
    serves(&gateway.client(), "s__greet", &["two"]).await;
}

#[tokio::test]
async fn a_store_that_refuses_all_versions_has_no_list() {
    let registry = Registry::default();
    registry.add("greet", "text", "one");
    registry.add("greet", "text", "two");
    registry.promote("greet", Some(1));
    registry.refuse("greet", Scripted::Http(500, vec![], vec![]));
    let store = registry.serve().await;
    let gateway = before(&store, "mlflow", ADMIN).await;
    eventually(async || error_of(&gateway).await, |error| *error == "upstream_http_error").await;
    registry.refuse_nothing();
    serves(&gateway.client(), "s__greet", &["one"]).await;
}

#[tokio::test]
async fn a_gateway_that_starts_without_its_store_comes_up_with_it() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    registry.break_with(Some(Scripted::Break(vec![])));
    let store = registry.serve().await;
    let gateway = before(&store, "mlflow", ADMIN).await;
    eventually(async || error_of(&gateway).await, |error| !error.is_null()).await;
    let shown = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
    assert_eq!(shown["upstreams"][0]["state"], "down");
    assert_eq!(shown["upstreams"][0]["transport"], "mlflow");
    registry.break_with(None);
    serves(&gateway.client(), "s__greet", &["one"]).await;
}

#[tokio::test]
async fn a_gateway_that_starts_without_its_store_serves_the_list_of_before() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    registry.add("older", "text", "first");
    registry.publish("older", "second");
    registry.promote("older", Some(1));
    let store = registry.serve().await;
    let folder = tempfile::tempdir().unwrap();
    let more = format!("state = \"{}\"\n{ADMIN}", folder.path().display());
    let gateway = before(&store, "mlflow", &more).await;
    serves(&gateway.client(), "s__older", &["first"]).await;
    drop(gateway);
    let file = folder.path().join("s").join("walk.json");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "only the owner reads {mode:o}");

    registry.break_with(Some(Scripted::Break(vec![])));
    let gateway = before(&store, "mlflow", &more).await;
    serves(&gateway.client(), "s__greet", &["one"]).await;
    serves(&gateway.client(), "s__older", &["first"]).await;
    let row = shown(&gateway).await;
    assert_eq!((&row["state"], &row["listed"]), (&json!("stale"), &json!(2)), "{row}");
    assert!(row["ageSecs"].is_u64() && !row["error"].is_null(), "{row}");
    assert_eq!(gateway.admin().send("GET", "/readyz", &[], b"").await.status, 200);
    // A version that the store then refuses is the version of before.
    registry.refuse("older", Scripted::Http(403, vec![], vec![]));
    registry.add("older", "text", "third");
    registry.publish("greet", "two");
    registry.break_with(None);
    serves(&gateway.client(), "s__greet", &["two"]).await;
    serves(&gateway.client(), "s__older", &["first"]).await;
    eventually(async || shown(&gateway).await, |row| row["state"] == "up").await;
    drop(gateway);
    fs::write(&file, "{").unwrap();
    registry.break_with(Some(Scripted::Break(vec![])));
    let gateway = before(&store, "mlflow", &more).await;
    eventually(async || shown(&gateway).await, |row| row["state"] == "down").await;
    registry.break_with(None);
    serves(&gateway.client(), "s__greet", &["two"]).await;
}

#[tokio::test]
async fn a_removal_of_much_is_held_back_and_reported_until_the_source_says_the_same_long_enough() {
    let registry = Registry::default();
    let names: Vec<_> = (0..6).map(|number| format!("p{number}")).collect();
    names.iter().for_each(|name| registry.publish(name, "one"));
    let store = registry.serve().await;
    let gateway = before(&store, "mlflow", &format!("hold_removals = \"10m\"\n{ADMIN}")).await;
    let client = gateway.client();
    let all: Vec<_> = names.iter().map(|name| format!("s__{name}")).collect();
    eventually(async || client.names().await.0, |listed| *listed == all).await;
    names.iter().for_each(|name| registry.remove(name));
    let note = async || shown(&gateway).await["note"].as_str().unwrap_or_default().to_owned();
    eventually(&note, |note| note.contains("lists 0 prompts; the 6 of before are served")).await;
    assert_eq!(client.names().await.0, all);
    let page = async |path: &str| gateway.admin().send("GET", path, &[], b"").await.body;
    let metrics = String::from_utf8_lossy(&page("/metrics").await).into_owned();
    let held = "promptgate_upstream_removal_held{promptgate_upstream=\"s\"} 6";
    assert!(metrics.contains(held), "{metrics}");
    // The source is well again, and a prompt that was really removed goes at once.
    names[1..].iter().for_each(|name| registry.publish(name, "two"));
    eventually(async || client.names().await.0, |listed| *listed == all[1..]).await;
    eventually(&note, |note| note.is_empty()).await;

    let quick = before(&store, "mlflow", "hold_removals = \"1s\"\n").await;
    let client = quick.client();
    eventually(async || client.names().await.0.len(), |count| *count == 5).await;
    let removed_at = Instant::now();
    names[1..].iter().for_each(|name| registry.remove(name));
    eventually(async || client.names().await.0, Vec::is_empty).await;
    assert!(removed_at.elapsed() >= Duration::from_secs(1), "applied after hold_removals");
}

#[tokio::test]
async fn a_removal_that_is_held_back_is_applied_at_once_after_the_word_of_a_person() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    let store = registry.serve().await;
    let log = Log::new();
    let more = format!("hold_removals = \"10m\"\n{}{}", rollouts::ADMIN, log.table());
    let gateway = before(&store, "mlflow", &more).await;
    let client = gateway.client();
    lists(&client, &["s__greet"]).await;
    let admin = rollouts::admin(&gateway);
    let accept = async |id: &str| {
        let path = format!("/api/v1/upstreams/{id}/accept");
        let reply = admin.send("POST", &path, &[], b"{\"by\": \"ada\", \"why\": \"moved\"}").await;
        (reply.status, reply.json())
    };
    for (id, status) in [("s", 409), ("other", 404)] {
        let (refused, answer) = accept(id).await;
        assert_eq!(refused, status, "{answer}");
    }
    assert_eq!(accept("s").await.1["error"], "no removal of s is held back here");
    registry.remove("greet");
    let note = async || {
        let shown = admin.send("GET", "/api/v1/upstreams", &[], b"").await.json();
        shown["upstreams"][0]["note"].to_string()
    };
    eventually(&note, |note| note.contains("`promptgate upstreams accept s`")).await;
    lists(&client, &["s__greet"]).await;
    assert_eq!(accept("s").await, (200, json!({"served": 1, "listed": 0})));
    lists(&client, &[]).await;
    eventually(&note, |note| !note.contains("hold_removals")).await;
    let accepted = log.wait_for("removal_accepted").await;
    for (member, value) in [("upstream", json!("s")), ("by", json!("ada")), ("served", json!(1))] {
        assert_eq!(accepted[member], value, "{accepted}");
    }

    // The same with the command, and a word for the removal that was shown only.
    for name in ["a", "b"] {
        registry.publish(name, "two");
    }
    lists(&client, &["s__a", "s__b"]).await;
    ["a", "b"].iter().for_each(|name| registry.remove(name));
    eventually(&note, |note| note.contains("lists 0 prompts")).await;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{}", admin.addr);
    let accept = async || {
        let mut command = command(folder.path(), &["upstreams", "accept", "s", "--url", &url]);
        command.env("PROMPTGATE_ADMIN_TOKEN", "t").env("USER", "bob");
        let output = tokio::process::Command::from(command).output().await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    };
    let (code, said) = accept().await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("s lists 0 prompts, of 2 that are served"), "{said}");
    lists(&client, &[]).await;
    let (code, said) = accept().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no removal of s is held back here"), "{said}");
}

#[tokio::test]
async fn the_versions_of_a_slow_store_are_fetched_eight_at_a_time() {
    let waiting: Arc<Mutex<Vec<Arc<Notify>>>> = Arc::default();
    let store = Upstream::start(move |asked| {
        if asked.path.starts_with("/v1/prompts?") {
            let row = |number| json!({"name": format!("p{number:02}"), "id": format!("{number}")});
            let rows: Vec<_> = (10..34).map(row).collect();
            return Scripted::Json(json!({"data": rows, "next_cursor": null}));
        }
        // Each answer ends once eight requests wait for theirs.
        let mut waiting = waiting.lock().unwrap();
        let answered = Arc::new(Notify::new());
        waiting.push(answered.clone());
        if waiting.len() == 8 {
            waiting.drain(..).for_each(|one| one.notify_one());
        }
        let version = json!({"data": {"id": "v1", "template_format": "NONE", "template":
            {"type": "chat", "messages": [{"role": "user", "content": "x"}]}}});
        Scripted::LateEnd(version.to_string().into_bytes(), answered)
    })
    .await;
    let gateway = before(&store, "phoenix", "").await;
    let client = gateway.client();
    let listed = eventually(async || client.names().await.0, |names| !names.is_empty()).await;
    assert_eq!(listed.len(), 24, "no request of the first walk has waited in vain: {listed:?}");
}

#[tokio::test]
async fn what_cannot_be_served_as_it_is_meant_is_left_out_with_the_reason() {
    let registry = Registry::default();
    registry.publish("good", "fine");
    registry.publish("jinja", "{% for i in items %}{{ i }}{% endfor %}");
    registry.publish("no\u{200b}name", "x");
    let system =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
    registry.add("strict", "chat", &system.to_string());
    registry.promote("strict", None);
    registry.add("unlabelled", "text", "x");
    let store = registry.serve().await;
    let gateway = before(&store, "mlflow", ADMIN).await;
    lists(&gateway.client(), &["s__good"]).await;
    let catalog = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await.json();
    let left_out = catalog["leftOut"].as_array().unwrap();
    let reason = |name: &str| {
        let row = left_out.iter().find(|row| row["name"] == name);
        row.map_or("", |row| row["reason"].as_str().unwrap())
    };
    assert!(reason("jinja").contains("Jinja"), "{left_out:?}");
    assert!(reason("strict").contains("as_user"), "{left_out:?}");
    assert_eq!(left_out.len(), 3, "{left_out:?}");
    let gateway = before(&store, "mlflow", "system = \"as_user\"\n").await;
    lists(&gateway.client(), &["s__good", "s__strict"]).await;
    serves(&gateway.client(), "s__strict", &["Be brief.", "Hi"]).await;
}

#[tokio::test]
async fn two_thousand_prompts_are_read_in_pages_and_only_changes_are_asked_for() {
    let registry = Registry::default();
    for number in 0..2_000 {
        registry.publish(&format!("p{number:04}"), "one");
    }
    registry.add("p0007", "text", "two");
    let store = registry.serve().await;
    let gateway = before(&store, "mlflow", "").await;
    let client = gateway.client();
    eventually(async || client.names().await.0.len(), |count| *count == 2_000).await;
    serves(&client, "s__p0007", &["one"]).await;
    let asked_for = |received: &[Received]| {
        let versions = received.iter().filter(|asked| asked.path.contains("model-versions"));
        versions.count()
    };
    let searched = |received: &[Received]| received.len() - asked_for(received);
    store.until(|received| searched(received) >= 40).await;
    assert_eq!(asked_for(&store.received()), 1, "an unchanged version is not asked for again");
    registry.promote("p0007", None);
    serves(&client, "s__p0007", &["two"]).await;
    assert_eq!(asked_for(&store.received()), 1, "the newest version comes with the list");
}

#[tokio::test]
async fn a_hostile_store_takes_no_memory_and_harms_no_other_upstream() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"registered_models\":[";
    let endless = Upstream::start(move |_| {
        Scripted::Endless(head.to_owned(), b"{\"name\":\"x\"},".repeat(1_000))
    })
    .await;
    let pages = Upstream::start(|_| {
        Scripted::Json(json!({"registered_models": [], "next_page_token": "again"}))
    })
    .await;
    let good = Upstream::with_prompts(&["a"]).await;
    let small = format!("max_message = \"64KiB\"\n{ADMIN}");
    let mut toml = table(&endless, "mlflow", &small) + &good.table("up");
    let url = format!("http://{}", pages.addr);
    toml += &format!("[upstreams.t]\ntransport = \"mlflow\"\nstate = \"\"\nurl = \"{url}\"\n");
    let gateway = Gateway::start(&toml).await;
    lists(&gateway.client(), &["up__a"]).await;
    let reasons = async || {
        let shown = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
        let rows = shown["upstreams"].as_array().unwrap().clone();
        let reason = |row: &Value| row["error"]["reason"].as_str().unwrap_or_default().to_owned();
        rows.iter().map(reason).collect::<Vec<_>>()
    };
    let expected = ["upstream_too_large", "pagination_limit", ""];
    eventually(reasons, |reasons| reasons == &expected).await;
}

#[tokio::test]
async fn an_approval_covers_a_version_of_a_store_and_a_moved_alias_takes_nothing_away() {
    let registry = Registry::default();
    registry.publish("p", "Hello {{ who }}");
    let store = registry.serve().await;
    let url = format!("http://{}", store.addr);
    let upstream =
        format!("[upstreams.up]\ntransport = \"mlflow\"\nurl = \"{url}\"\npoll = \"20ms\"\n");
    let folder = Folder::new(&(enforced("") + &upstream));
    folder.approve().await;
    let status = folder.approvals(&["status", "--json"]).await.json();
    assert_eq!(status["prompts"][0]["covers"], "source");
    let process = Process::serve(folder.path()).await;
    let client = process.client();
    let text = async || texts(&client, "up__p", json!({"who": "Ada"})).await.concat();
    eventually(text, |text| text == "Hello Ada").await;
    registry.publish("p", "Obey {{ who }}");
    let status = async || folder.approvals(&["status", "--json"]).await.json();
    let is_offered = |status: &Value| {
        let rows = status["prompts"].as_array().unwrap();
        rows.iter().any(|row| row["name"] == "up__p@2" && row["state"] == "pending")
    };
    eventually(status, is_offered).await;
    assert_eq!(text().await, "Hello Ada", "the version before, until the next is approved");
    let diff = folder.approvals(&["diff"]).await.stdout;
    assert!(diff.contains("Obey {{ who }}"), "{diff}");
    folder.approve().await;
    eventually(text, |text| text == "Obey Ada").await;
    registry.promote("p", Some(1));
    eventually(text, |text| text == "Hello Ada").await;
    process.stop().await;
    assert!(!fs::read_to_string(folder.path().join("promptgate.lock")).unwrap().is_empty());
}

/// A store that is asked for each prompt: the label's text by the name.
type Labelled = Arc<Mutex<BTreeMap<String, (u64, String)>>>;

#[tokio::test]
async fn a_prompt_of_phoenix_follows_its_tag() {
    let labelled = Labelled::default();
    labelled.lock().unwrap().insert("report".into(), (1, "On {subject} in {{braces}}".into()));
    let prompts = labelled.clone();
    let store = Upstream::start(move |asked| {
        let prompts = prompts.lock().unwrap();
        if asked.path.starts_with("/v1/prompts?") {
            let row = |name: &String| json!({"name": name, "id": format!("id-{name}"), "description": null});
            let rows: Vec<_> = prompts.keys().map(row).chain([row(&"untagged".into())]).collect();
            return Scripted::Json(json!({"data": rows, "next_cursor": null}));
        }
        let name = asked.path.strip_prefix("/v1/prompts/id-");
        let name = name.and_then(|name| name.strip_suffix("/tags/production"));
        match name.and_then(|name| prompts.get(name)) {
            None => Scripted::Http(404, vec![], b"Not Found".to_vec()),
            Some((version, text)) => Scripted::Json(json!({"data": {"id": format!("v{version}"),
                "template_format": "F_STRING", "template": {"type": "chat", "messages": [
                    {"role": "user", "content": [{"type": "text", "text": text}]}]}}})),
        }
    })
    .await;
    let gateway = before(&store, "phoenix", "").await;
    let client = gateway.client();
    lists(&client, &["s__report"]).await;
    let arguments = json!({"subject": "rain"});
    assert_eq!(texts(&client, "s__report", arguments).await, ["On rain in {braces}"]);
    labelled.lock().unwrap().insert("report".into(), (2, "two".into()));
    serves(&client, "s__report", &["two"]).await;
    labelled.lock().unwrap().clear();
    lists(&client, &[]).await;
}

#[tokio::test]
async fn a_prompt_of_langfuse_is_asked_for_again_when_its_row_changes() {
    let labelled = Labelled::default();
    labelled.lock().unwrap().insert("refund".into(), (1, "Refund {{ order }}".into()));
    let prompts = labelled.clone();
    let store = Upstream::start(move |asked| {
        assert_eq!(asked.header("authorization"), Some("Basic cGs6c2s="));
        let prompts = prompts.lock().unwrap();
        if asked.path.starts_with("/api/public/v2/prompts?") {
            let row = |(name, (version, _)): (&String, &(u64, String))| {
                json!({"name": name, "labels": ["production"], "versions": [version],
                    "tags": [], "lastUpdatedAt": format!("2026-11-0{version}T00:00:00Z")})
            };
            let rows: Vec<_> = prompts.iter().map(row).collect();
            let meta = json!({"page": 1, "limit": 100, "totalItems": rows.len(), "totalPages": 1});
            return Scripted::Json(json!({"data": rows, "meta": meta}));
        }
        let (version, text) = &prompts["refund"];
        assert_eq!(asked.path, "/api/public/v2/prompts/refund?label=production");
        Scripted::Json(json!({"name": "refund", "version": version, "type": "text", "prompt": text,
            "config": {"model": "m", "temperature": 0.2}, "labels": ["production"], "tags": [], "resolutionGraph": null}))
    })
    .await;
    let credential =
        "credential = { header = \"Authorization\", value = { value = \"Basic cGs6c2s=\" } }\n";
    let gateway = before(&store, "langfuse", &format!("{credential}config = true\n")).await;
    let client = gateway.client();
    lists(&client, &["s__refund"]).await;
    let params = json!({"name": "s__refund", "arguments": {"order": "7"}});
    let config = client.ask("prompts/get", params).await["_meta"]["promptgate/config"].clone();
    assert_eq!(config, json!({"config": {"model": "m", "temperature": 0.2}}));
    assert_eq!(texts(&client, "s__refund", json!({"order": "7"})).await, ["Refund 7"]);
    store.until(|received| received.len() > 6).await;
    let asked = |received: &[Received]| {
        received.iter().filter(|asked| asked.path.contains("/refund?")).count()
    };
    assert_eq!(asked(&store.received()), 1);
    labelled.lock().unwrap().insert("refund".into(), (2, "No refunds".into()));
    serves(&client, "s__refund", &["No refunds"]).await;
    assert_eq!(asked(&store.received()), 2);
}
