//! The end of the real binary: under load, in a hurry, with calls that do not end; and the start of
//! the next one (fault matrix, X).

use std::fs;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixDatagram};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::audit::{KEY, check, records};
use crate::support::client::request;
use crate::support::upstream::HANG;
use crate::support::{
    Counter, Gateway, OpenStream, PATIENCE, Process, Upstream, eventually, is_alive,
};

/// A folder with a configuration that keeps a log in it.
fn folder(toml: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let audit = format!("[audit]\nkey = {{ value = \"{KEY}\" }}\n");
    fs::write(folder.path().join("gateway.toml"), audit + toml).unwrap();
    folder
}

/// The last event of the log.
fn last_event(folder: &tempfile::TempDir) -> Value {
    let path = folder.path().join("audit");
    let report = check(&path);
    assert!(report.missing.is_empty() && report.unknown.is_empty(), "{report:?}");
    let ends = |record: &&Value| record["event"] != "checkpoint";
    records(&path).iter().rfind(ends).unwrap()["event"].clone()
}

#[tokio::test]
async fn x1_at_the_signal_it_is_not_ready_and_what_is_in_flight_finishes() {
    let (live, slow) = OpenStream::new();
    let upstream = Upstream::modern(move |asked| {
        let is_slow = asked.message["params"]["arguments"]["slow"] == "yes";
        (asked.method() == "prompts/get" && is_slow).then(|| slow.clone())
    })
    .await;
    let toml = "[server.limits]\ngrace = \"20s\"\n".to_owned() + &upstream.patient_table("up");
    let folder = folder(&toml);
    let settings = [("PROMPTGATE__SERVER__LIMITS__PRE_DRAIN", "5s")];
    let (mut process, admin) = Process::serve_admin(folder.path(), &settings).await;
    let readyz = async || admin.send("GET", "/readyz", &[], b"").await.status;
    let (mut listen, legacy) =
        (process.client().listen().await, process.client().legacy("2025-06-18").await);
    let mut get = legacy.stream("GET", &[("Accept", "text/event-stream")], b"").await;
    let client = process.client();
    let asking = tokio::spawn(async move {
        let params = json!({"name": "up__p", "arguments": {"slow": "yes"}});
        client.ask("prompts/get", params).await
    });
    upstream.received_gets(1).await;
    // Load that goes on until nobody accepts any more; whatever was accepted is answered.
    let answered = Counter::new();
    let users = (0..8).map(|_| {
        let (client, answered) = (process.client(), answered.clone());
        async move {
            while TcpStream::connect(client.addr).await.is_ok() {
                let Some(reply) = client.try_modern("prompts/get", json!({"name": "up__p"})).await
                else {
                    return;
                };
                assert_eq!(reply.status, 200, "{reply:?}");
                answered.increment();
            }
        }
    });
    let mut users: JoinSet<()> = users.collect();
    answered.reaches(21).await;
    process.signal(Signal::TERM);
    eventually(async || readyz().await, |seen| *seen == 503).await;
    // Still accepting, for the time that those in front need to notice.
    let before = answered.get();
    answered.reaches(before + 1).await;
    while let Some(user) = users.join_next().await {
        user.unwrap();
    }
    // A subscription ends with its result, a legacy stream just ends.
    assert!(listen.event().await.unwrap().json().get("result").is_some());
    assert!(get.event().await.is_none());
    assert!(process.child.try_wait().unwrap().is_none(), "it waits for the call");
    let id = upstream
        .gets()
        .iter()
        .find(|a| a.message["params"]["arguments"]["slow"] == "yes")
        .unwrap()
        .message["id"]
        .clone();
    live.send(&json!({"jsonrpc": "2.0", "id": id,
        "result": {"resultType": "complete", "messages": []}}));
    assert_eq!(asking.await.unwrap()["messages"], json!([]));
    let ended = timeout(PATIENCE, process.child.wait()).await.expect("it ends").unwrap();
    assert!(ended.success(), "{ended}");
    assert_eq!(last_event(&folder), "stopped");
}

#[tokio::test]
async fn x3_a_call_that_outlives_the_grace_is_told_so_and_on_record() {
    let upstream =
        Upstream::modern(|asked| (asked.method() == "prompts/get").then_some(HANG)).await;
    let toml = "[server.limits]\ngrace = \"200ms\"\n".to_owned() + &upstream.patient_table("up");
    let folder = folder(&toml);
    let process = Process::serve(folder.path()).await;
    let (one, legacy) = (process.client(), process.client().legacy("2025-06-18").await);
    let modern =
        tokio::spawn(async move { one.modern("prompts/get", json!({"name": "up__p"})).await });
    let old = tokio::spawn(async move {
        legacy.post(&request(7, "prompts/get", json!({"name": "up__p"}))).await
    });
    upstream.received_gets(2).await;
    process.stop().await;
    for reply in [modern.await.unwrap(), old.await.unwrap()] {
        assert_eq!(reply.refusal(), (503, -32603, "shutting_down".to_owned()));
        assert!(reply.header("retry-after").is_some());
    }
    let outcomes = records(&folder.path().join("audit"));
    let outcomes: Vec<_> =
        outcomes.iter().filter(|r| r["event"] == "completed").map(|r| &r["outcome"]).collect();
    assert_eq!(outcomes, ["shutting_down", "shutting_down"]);
    assert_eq!(last_event(&folder), "stopped");
}

#[tokio::test]
async fn x2_a_second_signal_ends_it_at_once_and_leaves_neither_children_nor_gaps() {
    for second in [Signal::TERM, Signal::INT] {
        let upstream =
            Upstream::modern(|asked| (asked.method() == "prompts/get").then_some(HANG)).await;
        let child = "trap '' TERM; echo $$ > pid; while read -r line; do :; done; sleep 300";
        let toml = format!(
            "[server.limits]\ngrace = \"10m\"\n[listing]\ndeadline = \"0s\"\n{}\
             [upstreams.sh]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {child:?}]\ncwd = \".\"\n",
            upstream.patient_table("up")
        );
        let folder = folder(&toml);
        let mut process = Process::serve(folder.path()).await;
        let pid = eventually(
            async || fs::read_to_string(folder.path().join("pid")).unwrap_or_default(),
            |pid| pid.ends_with('\n'),
        )
        .await;
        let client = process.client();
        // As long as nobody was heard of, lists fail.
        eventually(
            async || client.modern("prompts/list", json!({})).await.json(),
            |list| list["result"]["prompts"][0]["name"] == "up__p",
        )
        .await;
        let asking = tokio::spawn(async move {
            client.try_modern("prompts/get", json!({"name": "up__p"})).await
        });
        upstream.received_gets(1).await;
        process.signal(Signal::TERM);
        // It has understood the first once nobody is let in any more.
        let addr = process.addr;
        eventually(async || TcpStream::connect(addr).await.is_err(), |seen| *seen).await;
        process.signal(second);
        let ended = timeout(PATIENCE, process.child.wait()).await.expect("it ends").unwrap();
        assert!(ended.success(), "{ended}");
        // The call was told, or its connection closed.
        if let Some(reply) = asking.await.unwrap() {
            assert_eq!(reply.refusal().2, "shutting_down");
        }
        eventually(async || is_alive(pid.trim()), |alive| !alive).await;
        assert_eq!(last_event(&folder), "stopped");
    }
}

#[tokio::test]
async fn x5_a_log_that_nobody_reads_and_a_child_that_hangs_do_not_hold_up_the_end() {
    let child = "trap '' TERM HUP; while :; do sleep 1; done";
    let toml = format!(
        "[server.limits]\ngrace = \"200ms\"\n[listing]\ndeadline = \"0s\"\n[telemetry]\nlog = \"trace\"\n\
         [upstreams.sh]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {child:?}]\n"
    );
    let folder = folder(&toml);
    // Standard error is a pipe that is never read, and full.
    let process = Process::serve_with(folder.path(), Stdio::piped()).await;
    for _ in 0..300 {
        process.client().modern("prompts/list", json!({})).await;
    }
    process.stop().await;
    assert_eq!(last_event(&folder), "stopped");
}

const SEAL: &str = "seal_key = { value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }\n";
const OTHER: &str = "seal_key = { value = \"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\" }\n";

#[tokio::test]
async fn x4_fifty_restarts_with_one_key_are_not_noticed_and_another_key_knows_nothing() {
    let upstream = Upstream::with_prompts(&["a", "b", "c"]).await;
    let toml = |key: &str| {
        format!(
            "[server]\n{key}[server.limits]\npre_drain = \"0s\"\n[listing]\npage_size = 1\n{}",
            upstream.table("up")
        )
    };
    let first = Gateway::start(&toml(SEAL)).await;
    let session = first.client().legacy("2025-06-18").await.session().to_owned();
    let page = first.client().ask("prompts/list", json!({})).await;
    let cursor = page["nextCursor"].clone();
    first.drain().await;
    let list = |cursor: &Value| request(1, "prompts/list", json!({"cursor": cursor}));
    let known = async |gateway: &Gateway| {
        let legacy = gateway.client().with("Mcp-Session-Id", &session);
        (
            legacy.post(&list(&cursor)).await,
            gateway.client().modern("prompts/list", json!({"cursor": cursor})).await,
        )
    };
    for round in 0..50 {
        let gateway = Gateway::start(&toml(SEAL)).await;
        let (legacy, modern) = known(&gateway).await;
        for reply in [legacy, modern] {
            assert_eq!(reply.json()["result"]["prompts"][0]["name"], "up__b", "{round}: {reply:?}");
        }
        gateway.drain().await;
    }
    let gateway = Gateway::start(&toml(OTHER)).await;
    let (legacy, modern) = known(&gateway).await;
    assert_eq!(legacy.status, 404);
    assert_eq!(modern.json()["error"]["code"], -32602);
}

/// Waits for the next message to the service manager that is no sign of life.
async fn told(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    loop {
        let length = timeout(PATIENCE, socket.recv(&mut bytes)).await.expect("told").unwrap();
        let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
        if text.trim() != "WATCHDOG=1" {
            return text;
        }
    }
}

#[tokio::test]
async fn the_service_manager_is_told_of_the_start_reloads_life_and_the_end() {
    let folder = folder("");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let settings = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "20000")];
    let mut process = Process::serve_env(folder.path(), &settings).await;
    assert_eq!(told(&socket).await, "READY=1\nSTATUS=serving\n");
    let mut bytes = [0; 64];
    let length = timeout(PATIENCE, socket.recv(&mut bytes)).await.expect("alive").unwrap();
    assert_eq!(&bytes[..length], b"WATCHDOG=1\n");
    process.signal(Signal::HUP);
    let reloading = told(&socket).await;
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(told(&socket).await, "READY=1\nSTATUS=serving\n");
    fs::write(folder.path().join("gateway.toml"), "typo = 1\n").unwrap();
    process.signal(Signal::HUP);
    assert!(told(&socket).await.starts_with("RELOADING=1\n"));
    let rejected = told(&socket).await;
    assert!(rejected.starts_with("READY=1\nSTATUS=configuration rejected"), "{rejected}");
    assert!(rejected.contains("typo"), "{rejected}");
    process.signal(Signal::TERM);
    assert_eq!(told(&socket).await, "STOPPING=1\n");
    assert!(timeout(PATIENCE, process.child.wait()).await.expect("it ends").unwrap().success());
}
