//! Another configuration takes over while the gateway serves (fault matrix, K2 to K4, A11, P3).

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use config::Config;
use promptgate::App;
use serde_json::{Value, json};

use super::audit::Log;
use crate::support::client::{Stream, request};
use crate::support::gateway::{api_key, upstream_tables};
use crate::support::{Client, ClientMode, Counter, Gateway, ModeClient, Upstream, eventually};
#[cfg(target_os = "linux")]
use crate::support::{Pipe, is_alive};

const QUICK: &str = "[listing]\ndebounce = \"20ms\"\ndebounce_max = \"200ms\"\n";

/// Lists and gets of what stays, until it is told to stop; every one of them has to succeed.
async fn use_what_stays(client: Client, stop: Arc<AtomicBool>, calls: Counter) {
    while !stop.load(Ordering::SeqCst) {
        let names = client.names().await.0;
        assert!(names.contains(&"stays__p".to_owned()), "{names:?}");
        let got = client.ask("prompts/get", json!({"name": "stays__p"})).await;
        assert_eq!(got["messages"][0]["role"], "user");
        calls.increment();
    }
}

#[tokio::test]
async fn k3_a_reload_under_load_fails_no_call_that_it_is_not_about() {
    let (stays, goes) =
        (Upstream::with_prompts(&["p"]).await, Upstream::with_prompts(&["old"]).await);
    let comes = Upstream::with_prompts(&["new"]).await;
    let log = Log::new();
    let before = upstream_tables(&[("goes", &goes), ("stays", &stays)]);
    let gateway = Gateway::start(&(QUICK.to_owned() + &log.table() + &before)).await;
    assert_eq!(gateway.client().names().await.0, ["goes__old", "stays__p"]);
    let mut stream = gateway.client().listen().await;
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Counter::new());
    let users =
        (0..8).map(|_| tokio::spawn(use_what_stays(gateway.client(), stop.clone(), calls.clone())));
    let users: Vec<_> = users.collect();
    let has_called = async |more: usize| {
        let least = calls.get() + more;
        calls.reaches(least).await;
    };
    has_called(20).await;
    // One goes, one comes, and rules, keys, limits and places change on the way.
    let limits = "[[limits]]\nname = \"wide\"\nper = [\"caller\"]\nrate = \"1000000/s\"\n";
    let after = QUICK.to_owned()
        + "page_size = 1\n[server.limits]\nin_flight = 999\n"
        + &log.table()
        + "checkpoint = { records = 7 }\n"
        + limits
        + "[access]\n[[access.rules]]\nallow = [\"list\", \"get\"]\n"
        + &upstream_tables(&[("comes", &comes), ("stays", &stays)]);
    gateway.reload(&after).await;
    has_called(20).await;
    // An open stream is told, once the new one has been heard of.
    assert_eq!(stream.event().await.unwrap().json()["method"], CHANGED);
    let names = eventually(async || gateway.client().names().await, |(_, pages)| *pages == 2);
    assert_eq!(names.await.0, ["comes__new", "stays__p"]);
    let gone = gateway.client().ask_error("prompts/get", json!({"name": "goes__old"})).await;
    assert_eq!(gone["data"]["reason"], "unknown_prompt");
    stop.store(true, Ordering::SeqCst);
    for user in users {
        user.await.unwrap();
    }
    // The unchanged upstream was walked once, and has noticed nothing.
    let walks = stays.methods().iter().filter(|method| *method == "prompts/list").count();
    assert_eq!(walks, 1);
    let reloaded = log.wait_for("config_reloaded").await;
    assert_eq!((&reloaded["upstreams"], &reloaded["limits"]), (&json!(2), &json!(1)));
    assert_eq!(reloaded["before"], log.of("config_loaded")[0]["digest"]);
    gateway.drain().await;
    super::audit::check(&log.path());
}

const CHANGED: &str = "notifications/prompts/list_changed";

#[cfg(target_os = "linux")]
#[tokio::test]
async fn k3_what_a_removed_upstream_was_asked_it_still_answers_and_then_nothing_is_left_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let child = "echo $$ >> pid; answer() { printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\\n' \"$id\" \"$1\"; }
while read -r line; do
    id=$(printf '%s' \"$line\" | sed 's/.*\"id\":\\([0-9]*\\).*/\\1/')
    case \"$line\" in
    *server/discover*) printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32601,\"message\":\"no\"}}\\n' \"$id\" ;;
    *'\"initialize\"'*) answer '{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"prompts\":{}},\"serverInfo\":{\"name\":\"sh\",\"version\":\"1\"}}' ;;
    *prompts/list*) answer '{\"prompts\":[{\"name\":\"p\"}]}' ;;
    *prompts/get*) : > asked; : < go; answer '{\"messages\":[]}' ;;
    esac
done";
    let table = format!(
        "[upstreams.sh]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {}]\ncwd = {:?}\n",
        serde_json::to_string(child).unwrap(),
        folder.path()
    );
    let go = Pipe::new(folder.path(), "go");
    let gateway = Gateway::start(&table).await;
    assert_eq!(gateway.client().names().await.0, ["sh__p"]);
    let client = gateway.client();
    let asking =
        tokio::spawn(async move { client.ask("prompts/get", json!({"name": "sh__p"})).await });
    let at = |name: &str| folder.path().join(name);
    eventually(async || at("asked").exists(), |seen| *seen).await;
    // Connections that stay open, and standard streams, keep nothing of what was before.
    let _streams = (gateway.client().listen().await, gateway.stdio());
    gateway.reload("").await;
    assert_eq!(gateway.client().names().await.0, Vec::<String>::new());
    go.open();
    assert_eq!(asking.await.unwrap()["messages"], json!([]));
    let pid = fs::read_to_string(at("pid")).unwrap();
    eventually(async || is_alive(pid.trim()), |alive| !alive).await;
}

#[tokio::test]
async fn k3_an_upstream_that_is_configured_anew_is_served_throughout() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&upstream.table("up")).await;
    assert_eq!(gateway.client().names().await.0, ["up__p"]);
    gateway.reload(&(upstream.table("up") + "poll = \"7s\"\n")).await;
    // Its last list is there at once, and a call waits for the new connection.
    assert_eq!(gateway.client().names().await.0, ["up__p"]);
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    eventually(
        async || gateway.client().ask("prompts/list", json!({})).await,
        |list| list["_meta"].get("promptgate/incomplete").is_none(),
    )
    .await;
    // One that fails from the start is missing, and nobody waits for it.
    let toml = upstream.table("up")
        + "poll = \"7s\"\n[upstreams.none]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n";
    gateway.reload(&toml).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(list["prompts"][0]["name"], "up__p");
    assert_eq!(list["_meta"]["promptgate/incomplete"][0]["upstream"], "none");
}

#[tokio::test]
async fn k6_what_listens_beyond_loopback_is_not_opened_by_a_file_that_would_listen_elsewhere() {
    let parse = |toml: &str| {
        let toml = format!("[audit]\npath = \"\"\n{toml}");
        Config::parse("test", &toml, Path::new("."), &[]).unwrap_or_else(|e| panic!("{e}"))
    };
    let open = "[server]\nlisten = \"0.0.0.0:0\"\n[admin]\nlisten = \"0.0.0.0:0\"\n\
        token = { value = \"t\" }\n";
    let app = App::start(parse(&(open.to_owned() + &api_key("ci", "ci")))).await.unwrap();
    let loopback = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
        token = {}\n";
    let unspoken = app.reload(parse(loopback)).await.unwrap_err();
    assert!(unspoken.contains("set auth.required = false"), "{unspoken}");
    let explicit = format!("{loopback}[auth]\nrequired = false\n");
    let why = app.reload(parse(&explicit)).await.unwrap_err();
    assert!(why.contains("server.listen") && why.contains("need no credential"), "{why}");
    let why = app.reload(parse(&(loopback.to_owned() + &api_key("ci", "ci")))).await.unwrap_err();
    assert!(why.contains("admin.token"), "{why}");
    let client = Client::new(([127, 0, 0, 1], app.local_addr().unwrap().port()).into());
    assert_eq!(client.modern("prompts/list", json!({})).await.status, 401);
    app.stop().await;
}

/// Names that all begin alike, on pages of one size: a configuration that can be told from the
/// other.
fn edition(upstream: &Upstream, prefix: &str, page_size: usize) -> String {
    format!(
        "[listing]\npage_size = {page_size}\n{}prefix = \"{prefix}\"\n[server]\ninstructions = \"{prefix}\"\n",
        upstream.table("up")
    )
}

#[tokio::test]
async fn p13_no_request_sees_a_mix_of_two_configurations() {
    let upstream = Upstream::with_prompts(&["a", "b", "c", "d"]).await;
    let one = edition(&upstream, "one", 2);
    let gateway = Arc::new(Gateway::start(&one).await);
    gateway.summary().await;
    let other = edition(&upstream, "other", 3);
    let stop = Arc::new(AtomicBool::new(false));
    let lists = (0..6).map(|_| {
        let (client, stop) = (gateway.client(), stop.clone());
        tokio::spawn(async move {
            let (mut seen, mut lists) = ([0, 0], 0);
            while !stop.load(Ordering::SeqCst) || lists < 10 {
                let list = client.ask("prompts/list", json!({})).await;
                let names = list["prompts"].as_array().unwrap();
                let first = names[0]["name"].as_str().unwrap();
                let (prefix, size, at) = match first.starts_with("one__") {
                    true => ("one__", 2, 0),
                    false => ("other__", 3, 1),
                };
                assert_eq!(names.len(), size, "{list}");
                for name in names {
                    assert!(name["name"].as_str().unwrap().starts_with(prefix), "{list}");
                }
                seen[at] += 1;
                lists += 1;
            }
            seen
        })
    });
    let lists: Vec<_> = lists.collect();
    for toml in [&other, &one].into_iter().cycle().take(30) {
        gateway.reload(toml).await;
        gateway.client().ask("prompts/list", json!({})).await;
    }
    stop.store(true, Ordering::SeqCst);
    let mut seen = [0, 0];
    for list in lists {
        let [one, other] = list.await.unwrap();
        seen = [seen[0] + one, seen[1] + other];
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

fn as_caller(gateway: &Gateway, id: &str) -> Client {
    gateway.client().with("X-API-Key", id)
}

/// Reads a stream to its end.
async fn end_of(mut stream: Stream) -> Option<Value> {
    let mut last = None;
    while let Some(event) = stream.event().await {
        last = (!event.data.is_empty()).then(|| event.json());
    }
    last
}

#[tokio::test]
async fn a11_a_key_that_is_taken_out_counts_no_more_and_its_streams_end() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let (alice, bob) = (api_key("alice", "alice"), api_key("bob", "bob"));
    let gateway = Gateway::start(&(QUICK.to_owned() + &upstream.table("up") + &alice + &bob)).await;
    gateway.summary().await;
    let (stays, goes) = (as_caller(&gateway, "alice"), as_caller(&gateway, "bob"));
    let legacy = goes.clone().legacy("2025-06-18").await;
    let (listen, get) =
        (goes.listen().await, legacy.stream("GET", &[("Accept", "text/event-stream")], b"").await);
    let mut sse = goes.stream_at("GET", "/sse", &[("Accept", "text/event-stream")], b"").await;
    assert!(sse.event().await.unwrap().data.starts_with("/sse?"));
    let mut kept = stays.listen().await;
    gateway
        .reload(&(QUICK.to_owned() + &upstream.table("up") + "prefix = \"now\"\n" + &alice))
        .await;
    let last = end_of(listen).await.unwrap_or_default();
    assert!(last.get("result").is_none(), "a result would tell it not to subscribe again: {last}");
    end_of(get).await;
    end_of(sse).await;
    assert_eq!(goes.modern("prompts/list", json!({})).await.status, 401);
    assert_eq!(legacy.post(&request(1, "prompts/list", json!({}))).await.status, 401);
    // A caller that stays is notified of the change and keeps its stream.
    assert_eq!(kept.event().await.unwrap().json()["method"], CHANGED);
    assert_eq!(stays.names().await.0, ["now__p"]);
}

#[tokio::test]
async fn p3_a_rule_that_changes_between_two_pages_counts_for_the_second_and_streams_hear_of_it() {
    let upstream = Upstream::with_prompts(&["a", "b", "c"]).await;
    let rule = |prompts: &str| {
        format!("[[access.rules]]\nallow = [\"list\", \"get\"]\nprompts = [{prompts}]\n")
    };
    let toml = |rules: &str| {
        format!("{QUICK}page_size = 1\n{}{}{rules}", upstream.table("up"), api_key("ci", "ci"))
    };
    let gateway = Gateway::start(&toml(&rule("\"*\""))).await;
    let ci = as_caller(&gateway, "ci");
    assert_eq!(ci.names().await.0, ["up__a", "up__b", "up__c"]);
    let mut stream = ci.listen().await;
    let first = ci.ask("prompts/list", json!({})).await;
    gateway.reload(&toml(&rule("\"a\", \"c\""))).await;
    let second = ci.ask("prompts/list", json!({"cursor": first["nextCursor"]})).await;
    assert_eq!(second["prompts"], json!([{"name": "up__c"}]));
    let denied = ci.ask_error("prompts/get", json!({"name": "up__b"})).await;
    assert_eq!(denied["data"]["reason"], "unknown_prompt");
    assert_eq!(stream.event().await.unwrap().json()["method"], CHANGED);
}

#[tokio::test]
async fn a_connection_that_lasts_follows_the_configuration() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&upstream.table("up")).await;
    gateway.summary().await;
    let mut clients = Vec::new();
    for client_mode in [ClientMode::Stdio("2025-11-25"), ClientMode::Sse("2024-11-05")] {
        let mut client = ModeClient::connect(&gateway, client_mode).await;
        let list = client.ask("prompts/list", json!({})).await;
        assert_eq!(list["prompts"], json!([{"name": "up__p"}]));
        clients.push(client);
    }
    gateway.reload(&(upstream.table("up") + "prefix = \"now\"\n")).await;
    for client in &mut clients {
        let list = client.ask("prompts/list", json!({})).await;
        assert_eq!(list["prompts"], json!([{"name": "now__p"}]));
    }
}

#[tokio::test]
async fn k3_an_answer_under_way_is_given_by_the_configuration_that_it_was_asked_under() {
    let (upstream, live) = Upstream::holding_a_get().await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    gateway.summary().await;
    let client = gateway.client();
    let asking =
        tokio::spawn(async move { client.ask("prompts/get", json!({"name": "up__p"})).await });
    upstream.received_method("prompts/get").await;
    gateway.reload(&(upstream.patient_table("up") + "max_message = \"13MiB\"\n")).await;
    upstream.answer_get(&live);
    assert_eq!(asking.await.unwrap()["messages"], json!([]));
}
