//! What belongs to one caller is nothing to another, and costs nothing while nobody uses it.

use std::path::Path;
use std::sync::Arc;

use promptgate::config::Config;
use promptgate::domain::caller::Caller;
use promptgate::domain::fault::{Fault, RequestFault, TransportFault};
use promptgate::domain::rights::Everything;
use promptgate::policy::Gate;
use promptgate::router::Router;
use promptgate::seal::{SealKeys, Sealer};
use promptgate::session::headers::{Field, Headers};
use promptgate::session::{CallPlace, Ending, Envelope, Refusal, Sessions, Slot, Turn, Via};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support::asker::{blue, form};
use crate::support::client::{MODERN, modern, request};
use crate::support::{Client, Upstream, eventually};

/// The session layer by itself, so that callers can be named without credentials.
struct Layer {
    sessions: Arc<Sessions>,
}

/// A place that never runs out.
struct Place;

impl CallPlace for Place {
    fn think(&self) -> bool {
        true
    }
}

const NOW: u64 = 1_000_000;

impl Layer {
    fn start(toml: &str) -> Self {
        let config = Config::parse("test", toml, Path::new("."), &[]).unwrap();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let sealer = Arc::new(Sealer::new(&SealKeys::ephemeral()));
        let router =
            Arc::new(Router::start(&config, Arc::new(Everything), sealer.clone(), &tasks, &stop));
        let sessions =
            Sessions::new(&config, Gate::new(&config), router, sealer, tasks, (stop.clone(), stop));
        Self { sessions: Arc::new(sessions) }
    }

    fn read(&self, caller: &str, headers: &Headers<'_>, body: &Value) -> Result<Turn, Refusal> {
        let caller = Caller::new(caller);
        let envelope = Envelope {
            via: Via::Http(headers),
            caller: &caller,
            endpoint: "/mcp",
            address: None,
            now_secs: NOW,
            guess: self.sessions.dialect_of(headers, "/mcp"),
            streams: true,
        };
        self.sessions.read(body.to_string().as_bytes(), &envelope)
    }

    /// What a modern call comes to.
    async fn call(&self, caller: &str, method: &str, params: Value) -> Result<Value, Fault> {
        let mut body = modern(1, method, params.clone()).0;
        let capabilities = json!({"elicitation": {}});
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
        let headers = Headers {
            version: Field::Once(MODERN),
            method: Field::Once(method),
            name: params["name"].as_str().map_or(Field::Absent, Field::Once),
            ..Headers::default()
        };
        let turn = self.read(caller, &headers, &body).map_err(|refusal| refusal.fault)?;
        let Turn::Pending(pending) = turn else { panic!("a call") };
        let slot = Slot { call: Arc::new(Place), room: Arc::new(()) };
        let (told, _heard) = mpsc::channel(16);
        match self.sessions.clone().perform(pending, slot, told, NOW).await {
            Ending::Result(result) => Ok(serde_json::from_str(&result).unwrap()),
            Ending::Fault(fault) => Err(fault),
            Ending::Cancelled => panic!("nobody cancels"),
        }
    }
}

fn fault(turn: Result<Turn, Refusal>) -> Option<Fault> {
    turn.err().map(|refusal| refusal.fault)
}

#[tokio::test]
async fn a8_a_session_of_another_caller_is_unknown_in_every_way() {
    let layer = Layer::start("");
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}});
    let opened = layer.read("alice", &Headers::default(), &request(0, "initialize", params));
    let Ok(Turn::Answer { session: Some(session), .. }) = opened else { panic!("a session") };
    let headers = Headers { session: Field::Once(&session), ..Headers::default() };
    let unknown = Some(TransportFault::SessionUnknown.into());
    let ping = request(1, "ping", json!({}));
    assert_eq!(fault(layer.read("bob", &headers, &ping)), unknown);
    let answer = json!({"jsonrpc": "2.0", "id": "promptgate-0", "result": {}});
    assert_eq!(fault(layer.read("bob", &headers, &answer)), unknown);
    let bob = Caller::new("bob");
    let opened = layer.sessions.open_stream(&headers, None, &bob, "/mcp", NOW);
    assert_eq!(opened.err().map(|refusal| refusal.fault), unknown);
    let ended = layer.sessions.end(&headers, &bob, "/mcp", NOW);
    assert_eq!(ended.err().map(|refusal| refusal.fault), unknown);
    // As if it had never been, and it is unharmed.
    let never = Headers { session: Field::Once("never"), ..Headers::default() };
    assert_eq!(fault(layer.read("bob", &never, &ping)), unknown);
    assert_eq!(fault(layer.read("alice", &headers, &ping)), None);
}

#[tokio::test]
async fn a8_cursors_and_states_of_another_caller_are_not_valid() {
    let upstream = Upstream::legacy_asker(vec![form("Which colour?")]).await;
    let pages = Upstream::with_prompts(&["a", "b"]).await;
    let toml = "[listing]\npage_size = 1\n".to_owned()
        + &upstream.patient_table("up")
        + &pages.patient_table("pages");
    let layer = Layer::start(&toml);
    let list = layer.call("alice", "prompts/list", json!({})).await.unwrap();
    let next = json!({"cursor": list["nextCursor"]});
    let stolen = layer.call("bob", "prompts/list", next.clone()).await;
    assert_eq!(stolen.unwrap_err(), RequestFault::InvalidCursor.into());
    assert!(layer.call("alice", "prompts/list", next).await.is_ok());

    let get = json!({"name": "up__p", "arguments": {"a": "1"}});
    let asked = layer.call("alice", "prompts/get", get.clone()).await.unwrap();
    let mut back = get;
    back["requestState"] = asked["requestState"].clone();
    back["inputResponses"] = json!({"answer": blue()});
    let calls = upstream.gets().len();
    let stolen = layer.call("bob", "prompts/get", back.clone()).await;
    assert_eq!(stolen.unwrap_err(), RequestFault::InvalidState.into());
    assert_eq!(upstream.gets().len(), calls, "the upstream is not called");
    assert_eq!(layer.call("alice", "prompts/get", back).await.unwrap()["resultType"], "complete");
}

/// Resident memory of a process, in KiB.
#[cfg(target_os = "linux")]
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m1_fifty_thousand_sessions_cost_nothing_and_outlive_the_process() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let folder = tempfile::tempdir().unwrap();
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let toml = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nseal_key = {{ value = \"{key}\" }}\n\
         [server.limits]\npre_drain = \"0s\"\n[telemetry]\nlog = \"warn\"\n"
    );
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let serve = async || {
        let mut process = tokio::process::Command::new(env!("CARGO_BIN_EXE_promptgate"))
            .current_dir(folder.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().unwrap();
        let at = line.split("http://").nth(1).unwrap().trim_end_matches("/mcp").parse().unwrap();
        (process, Client::new(at))
    };
    let (mut process, client) = serve().await;
    let pid = process.id().unwrap();
    // The first ones warm up what stays: buffers, pools, the allocator.
    client.open_sessions(10_000).await;
    let before = resident(pid);
    let kept = client.clone().legacy("2025-06-18").await;
    client.open_sessions(40_000).await;
    let ping = request(1, "ping", json!({}));
    assert_eq!(kept.post(&ping).await.status, 200, "it answers throughout");
    // Memory that was freed may take a moment to be given back.
    eventually(async || (resident(pid) <= before + before / 10).then_some(())).await;

    process.kill().await.unwrap();
    let (_process, again) = serve().await;
    let reply = again.with("Mcp-Session-Id", kept.session()).post(&ping).await;
    assert_eq!(reply.status, 200, "the session is still known");
}
