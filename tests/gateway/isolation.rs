//! What belongs to one caller is nothing to another, and costs nothing while nobody uses it.

use promptgate::test_util::domain::caller::Caller;
use promptgate::test_util::domain::fault::{Fault, RequestFault, TransportFault};
use promptgate::test_util::session::headers::{Field, Headers};
use promptgate::test_util::session::{Dispatch, Refusal};
use serde_json::json;

use super::audit::Log;
use crate::support::client::request;
use crate::support::server_request_upstream::{accept_blue, form_elicitation};
use crate::support::session_layer::{NOW, SessionLayer};
use crate::support::{Process, Upstream, eventually};

fn fault(turn: Result<Dispatch, Refusal>) -> Option<Fault> {
    turn.err().map(|refusal| refusal.fault)
}

#[tokio::test]
async fn a8_a_session_of_another_caller_is_unknown_in_every_way() {
    let log = Log::new();
    let layer = SessionLayer::start(&log.table());
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}});
    let opened = layer.read("alice", &Headers::default(), &request(0, "initialize", params));
    let Ok(Dispatch::Answer { session: Some(session), .. }) = opened else { panic!("a session") };
    let headers = Headers { session: Field::Once(&session), ..Headers::default() };
    let unknown = Some(TransportFault::SessionUnknown.into());
    let ping = request(1, "ping", json!({}));
    assert_eq!(fault(layer.read("bob", &headers, &ping)), unknown);
    let answer = json!({"jsonrpc": "2.0", "id": "promptgate-0", "result": {}});
    assert_eq!(fault(layer.read("bob", &headers, &answer)), unknown);
    let bob = Caller::new("bob");
    let opened = layer.sessions.open_stream(&headers, None, &bob, "/mcp", NOW);
    assert_eq!(opened.err().map(|refusal| refusal.fault), unknown);
    let ended = layer.sessions.terminate(&headers, &bob, "/mcp", NOW);
    assert_eq!(ended.err().map(|refusal| refusal.fault), unknown);
    // As if it had never been, and it is unharmed.
    let never = Headers { session: Field::Once("never"), ..Headers::default() };
    assert_eq!(fault(layer.read("bob", &never, &ping)), unknown);
    assert_eq!(fault(layer.read("alice", &headers, &ping)), None);
    // Bob's first try stands on record at once, the others are counted.
    let refused = log.wait_for("refused").await;
    assert_eq!(
        (&refused["caller"], &refused["reason"]),
        (&json!("bob"), &json!("session_unknown"))
    );
}

#[tokio::test]
async fn a8_cursors_and_states_of_another_caller_are_not_valid() {
    let upstream =
        Upstream::legacy_with_server_requests(vec![form_elicitation("Which colour?")]).await;
    let pages = Upstream::with_prompts(&["a", "b"]).await;
    let toml = "[listing]\npage_size = 1\n".to_owned()
        + &upstream.patient_table("up")
        + &pages.patient_table("pages");
    let layer = SessionLayer::start(&toml);
    let list = layer.call("alice", "prompts/list", json!({})).await.unwrap();
    let next = json!({"cursor": list["nextCursor"]});
    let stolen = layer.call("bob", "prompts/list", next.clone()).await;
    assert_eq!(stolen.unwrap_err(), RequestFault::InvalidCursor.into());
    assert!(layer.call("alice", "prompts/list", next).await.is_ok());

    let get = json!({"name": "up__p", "arguments": {"a": "1"}});
    let asked = layer.call("alice", "prompts/get", get.clone()).await.unwrap();
    let mut back = get;
    back["requestState"] = asked["requestState"].clone();
    back["inputResponses"] = json!({"answer": accept_blue()});
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
    let folder = tempfile::tempdir().unwrap();
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let toml = format!(
        "[server]\nseal_key = {{ value = \"{key}\" }}\n[audit]\npath = \"\"\n\
         [telemetry]\nlog = \"warn\"\n"
    );
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let process = Process::serve(folder.path()).await;
    let (pid, client) = (process.pid(), process.client());
    // The first ones warm up what stays: buffers, pools, the allocator.
    client.open_sessions(10_000).await;
    let before = resident(pid);
    let kept = client.clone().legacy("2025-06-18").await;
    client.open_sessions(40_000).await;
    let ping = request(1, "ping", json!({}));
    assert_eq!(kept.post(&ping).await.status, 200, "it answers throughout");
    // Memory that was freed may take a moment to be given back.
    eventually(async || resident(pid), |seen| *seen <= before + before / 10).await;

    process.kill().await;
    let again = Process::serve(folder.path()).await;
    let reply = again.client().with("Mcp-Session-Id", kept.session()).post(&ping).await;
    assert_eq!(reply.status, 200, "the session is still known");
}
