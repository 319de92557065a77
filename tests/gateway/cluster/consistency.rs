//! Replicas look like one gateway: lists, cursors, sessions, states, and what operators see.

use std::fs;

use serde_json::{Value, json};

use super::limited;
use crate::support::client::{Event, Stream, modern, request};
use crate::support::process::run;
use crate::support::replicas::{Replica, Replicas, SEAL_KEY, Store};
use crate::support::server_request_upstream::{accept_blue, form_elicitation};
use crate::support::{ClientMode, Gateway, ModeClient, Upstream, eventually, metrics};

const PAGES: &str = "[listing]\npage_size = 2\n";

#[tokio::test]
#[ignore = "needs redis-server"]
async fn lists_are_equal_byte_for_byte_and_cursors_valid_everywhere() {
    let store = Store::start().await;
    let names: Vec<String> = (0..11).map(|n| format!("p{n:02}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let upstream = Upstream::with_prompts(&names).await;
    let replicas = Replicas::start(&store.url(), &upstream.table("up")).await;
    let mut bodies = Vec::new();
    for replica in &replicas.replicas {
        let list = replica.client().modern("prompts/list", json!({})).await;
        let body = String::from_utf8(list.body).unwrap();
        let (_, prompts) = body.split_once("\"prompts\":[").expect("a list");
        bodies.push(prompts.split_once("}]").expect("its end").0.to_owned());
    }
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
    drop(replicas);

    let toml = upstream.table("up") + PAGES;
    let replicas = Replicas::start(&store.url(), &toml).await;
    let (walked, pages) = replicas.client().names().await;
    let expected: Vec<_> = names.iter().map(|name| format!("up__{name}")).collect();
    assert_eq!((walked, pages), (expected, 6), "each page by another replica");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn sessions_and_states_are_valid_everywhere() {
    let store = Store::start().await;
    let upstream =
        Upstream::legacy_with_server_requests(vec![form_elicitation("Which colour?")]).await;
    let replicas = Replicas::start(&store.url(), &upstream.patient_table("up")).await;
    let client = replicas.client().legacy("2025-11-25").await;
    for id in 0..6 {
        assert_eq!(client.post(&request(id, "ping", json!({}))).await.status, 200);
    }
    // A modern client is asked by one replica, and answers another one.
    let meta = json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}});
    let mut params = json!({"name": "up__p", "arguments": {"a": "1"}});
    let mut answers = Vec::new();
    for replica in replicas.replicas.iter().cycle().take(4) {
        let (mut body, headers) = modern(1, "prompts/get", params.clone());
        let sent = body["params"]["_meta"].as_object_mut().unwrap();
        sent.extend(meta.as_object().unwrap().clone());
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let client = replica.client();
        let reply = client.send("POST", "/mcp", &headers, body.to_string().as_bytes()).await;
        let result = reply.json()["result"].clone();
        if result["resultType"] == "input_required" {
            let key = result["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
            params["inputResponses"] = json!({ key: accept_blue() });
            params["requestState"] = result["requestState"].clone();
        }
        answers.push(result["resultType"].clone());
        if result["resultType"] == "complete" {
            break;
        }
    }
    assert_eq!(answers, [json!("input_required"), json!("complete")]);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_session_that_is_deleted_on_one_replica_ends_on_all() {
    let store = Store::start().await;
    let replicas = Replicas::start(&store.url(), "").await;
    let session = replicas.client().legacy("2025-06-18").await.session().to_owned();
    let with_session = |replica: &Replica| replica.client().with("Mcp-Session-Id", &session);
    let clients: Vec<_> = replicas.replicas.iter().map(with_session).collect();
    let events = [("Accept", "text/event-stream")];
    let mut stream = clients[2].stream("GET", &events, b"").await;
    assert_eq!(clients[0].send("DELETE", "/mcp", &[], b"").await.status, 200);
    for client in &clients {
        let ping = async || client.post(&request(1, "ping", json!({}))).await.status;
        eventually(ping, |status| *status == 404).await;
    }
    while stream.event().await.is_some() {}
    // A replica that joins later knows it, too.
    let folder = &replicas.replicas[0].folder;
    let variables = crate::support::replicas::environment(&store.url(), "late");
    let variables: Vec<_> = variables.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let late = folder.join("late");
    fs::create_dir(&late).unwrap();
    fs::write(late.join("gateway.toml"), "").unwrap();
    let (late, _) = crate::support::Process::serve_admin(&late, &variables).await;
    let client = late.client().with("Mcp-Session-Id", &session);
    let ping = async || client.post(&request(1, "ping", json!({}))).await.status;
    eventually(ping, |status| *status == 404).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn operators_see_all_replicas_and_those_that_differ() {
    let store = Store::start().await;
    let replicas = Replicas::start(&store.url(), &limited()).await;
    let [first, second, _] = &replicas.replicas[..] else { panic!("three") };
    let cluster = first.cluster().await;
    let rows = cluster["replicas"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["replica-0", "replica-1", "replica-2"]);
    let own: Vec<_> = rows.iter().map(|row| row["self"].as_bool().unwrap()).collect();
    assert_eq!(own, [true, false, false]);
    assert_eq!(cluster["differing"], 0, "{cluster}");
    let gauges = ["promptgate_cluster_up", "promptgate_cluster_replicas"];
    let seen: Vec<_> = metrics(&first.admin, &gauges).await.into_values().collect();
    assert_eq!(seen, [3.0, 1.0]);

    fs::write(second.folder.join("gateway.toml"), limited() + "# another\n").unwrap();
    let look = async || first.cluster().await["differing"].clone();
    eventually(look, |differing| *differing == json!(1)).await;
    let url = format!("http://{}", first.admin.addr);
    let shown = run(&first.folder, &["status", "--url", &url]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    for text in ["REPLICA", "replica-2", "1 with another configuration file or another catalog"] {
        assert!(shown.contains(text), "{shown}");
    }

    // One that leaves says so, before it is forgotten.
    let mut left = replicas;
    left.replicas.pop().expect("three").process.stop().await;
    assert_eq!(store.command("HLEN {promptgate:}replicas").await, ":2\r\n");
    let count = async || left.replicas[0].cluster().await["replicas"].as_array().unwrap().len();
    eventually(count, |count| *count == 2).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_change_is_announced_once_to_a_client_that_moves_between_replicas() {
    let store = Store::start().await;
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("library");
    fs::create_dir(&library).unwrap();
    crate::support::write_greeting(&library, "before");
    let toml = format!(
        "[upstreams.library]\ntransport = \"library\"\npath = {:?}\n[listing]\ndebounce = \"50ms\"\n",
        library.to_str().unwrap()
    );
    let replicas = Replicas::start(&store.url(), &toml).await;
    let modes = [ClientMode::Http("2025-11-25"), ClientMode::Modern, ClientMode::Sse("2024-11-05")];
    let mut clients = Vec::new();
    for mode in modes {
        clients.push(ModeClient::over_http(replicas.client(), mode, json!({})).await);
    }
    let client = replicas.client().legacy("2025-11-25").await;
    let events = ("Accept", "text/event-stream");
    let mut first = client.stream("GET", &[events], b"").await;
    crate::support::write_greeting(&library, "after");
    for client in &mut clients {
        client.await_list_changed().await;
    }
    let told = next_change(&mut first).await.expect("a change").id.expect("an id");
    // All replicas tell the same list by now.
    let digests = async || {
        let cluster = replicas.replicas[0].cluster().await;
        let rows = cluster["replicas"].as_array().unwrap().clone();
        rows.iter().map(|row| row["catalogDigest"].clone()).collect::<Vec<Value>>()
    };
    eventually(digests, |digests| digests.iter().all(|digest| *digest == digests[0])).await;
    // A client that comes back to any of them has been told already, and hears of the next change
    // once.
    let session = client.session();
    let mut streams = Vec::new();
    for replica in &replicas.replicas {
        let client = replica.client().with("Mcp-Session-Id", session);
        let headers = [events, ("Last-Event-ID", told.as_str())];
        streams.push(client.stream("GET", &headers, b"").await);
    }
    crate::support::write_greeting(&library, "once more");
    for stream in &mut streams {
        let event = next_change(stream).await.expect("a change").json();
        assert_eq!(event["method"], "notifications/prompts/list_changed");
    }
    for replica in replicas.replicas {
        replica.process.stop().await;
    }
    for mut stream in streams {
        assert!(next_change(&mut stream).await.is_none(), "told twice");
    }
}

/// The next event that says something: the first one of a stream may bring an id only.
async fn next_change(stream: &mut Stream) -> Option<Event> {
    loop {
        match stream.event().await {
            Some(event) if event.data.is_empty() => {}
            event => return event,
        }
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn k2_the_keys_of_the_cluster_need_a_restart_and_the_seal_key_stays_with_them() {
    let store = Store::start().await;
    let key = format!("[server]\nseal_key = {{ value = \"{SEAL_KEY}\" }}\n");
    let gateway = Gateway::start(&format!("{key}[cluster]\nstore = {:?}\n", store.url())).await;
    let client = gateway.client().legacy("2025-06-18").await;
    let renamed = format!("{key}[cluster]\nstore = {:?}\nreplica = \"b\"\n", store.url());
    assert_eq!(gateway.try_reload(&renamed).await.unwrap(), ["cluster"]);
    // Without both tables it goes on as one of the replicas.
    assert_eq!(gateway.try_reload("").await.unwrap(), ["cluster", "server.seal_key"]);
    assert_eq!(client.post(&request(1, "ping", json!({}))).await.status, 200);
}
