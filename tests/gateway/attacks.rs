//! Attacks of callers and strangers on the gateway as a whole, by the numbers of their findings.
//! Decisions of pure parts and state machines are tested beside them, under the same numbers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::calls::caller::Caller;
use domain::calls::rights::{PromptRef, Rights};
use domain::fault::{Fault, RequestFault};
use domain::protocol::method::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::audit::{Log, check, fill};
use crate::support::client::{modern, modern_bytes, request};
use crate::support::gateway::api_key;
use crate::support::h2::{ACK, GOAWAY, Http2, PING, SETTINGS, frame};
use crate::support::provider::{Provider, SigningKey};
use crate::support::session_layer::SessionLayer;
use crate::support::upstream::HANG;
use crate::support::{Client, Counter, Gateway, PATIENCE, Scripted, Upstream, eventually};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const EVENTS: (&str, &str) = ("Accept", "text/event-stream");

fn key(client: Client, key: &str) -> Client {
    client.with("X-API-Key", key)
}

/// Connects from another loopback address.
#[cfg(target_os = "linux")]
async fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    timeout(PATIENCE, socket.connect(to)).await.expect("in time").unwrap()
}

/// Sends a request over a connection and reads until it is closed, or until this text has come.
async fn exchange(mut stream: TcpStream, request: &[u8], until: &str) -> String {
    let exchange = async {
        stream.write_all(request).await.unwrap();
        let mut text = Vec::new();
        while !String::from_utf8_lossy(&text).contains(until) {
            if stream.read_buf(&mut text).await.unwrap_or(0) == 0 {
                break;
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    };
    timeout(PATIENCE, exchange).await.expect("an answer in time")
}

#[tokio::test]
async fn f1_refused_streams_leave_no_record_and_short_ones_are_counted() {
    let log = Log::new();
    let toml = log.table()
        + &api_key("a", "pg_a")
        + "[[limits]]\nname = \"listens\"\nper = [\"caller\"]\nmethods = [\"subscriptions/listen\"]\n\
           rate = \"300/d\"\n";
    let gateway = Gateway::start(&toml).await;
    let client = key(gateway.client(), "pg_a");
    let params = json!({"notifications": {"promptsListChanged": true}});
    let (body, headers) = modern(1, "subscriptions/listen", params);
    let mut headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    headers.push(("Accept", "application/json"));
    for _ in 0..200 {
        let refused = client.send("POST", "/mcp", &headers, body.to_string().as_bytes()).await;
        assert_eq!(refused.status, 406);
    }
    assert!(log.of("stream_started").is_empty() && log.of("stream_ended").is_empty());
    for _ in 0..100 {
        drop(client.listen().await);
    }
    let limited = client.modern("subscriptions/listen", json!({"notifications": {}})).await;
    assert_eq!(limited.status, 429, "the limit knows the method");
    log.wait_for("stream_ended").await;
    gateway.drain().await;
    assert_eq!(log.of("stream_started").len(), 16);
    let counted = log.of("streams");
    let sum: u64 = counted.iter().map(|record| record["count"].as_u64().unwrap()).sum();
    assert_eq!(
        (sum, &counted[0]["caller"], &counted[0]["endpoint"]),
        (84, &json!("a"), &json!("/mcp"))
    );
    check(&log.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_in_refuse_mode_no_record_of_any_kind_is_given_up_with_the_smallest_buffer() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p", "secret"]).await;
    let silent = Upstream::modern(|asked| (asked.method() == "prompts/get").then_some(HANG)).await;
    let toml = log.table()
        + "buffer = \"64KiB\"\nraw_arguments = [\"*\"]\n[server.limits]\nrequest = \"300ms\"\n"
        + &upstream.table("up")
        + &silent.patient_table("silent")
        + &api_key("a", "pg_a")
        + &api_key("b", "pg_b")
        + "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\nprompts = [\"p\"]\n\
           [[limits]]\nname = \"few\"\nper = [\"caller\"]\nmethods = [\"completion/complete\"]\nrate = \"2/d\"\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let mut flood = JoinSet::new();
    for n in 0..24 {
        let client = gateway.client();
        flood.spawn(async move {
            let mut lists = 0;
            for round in 0..20 {
                let caller = key(client.clone(), ["pg_a", "pg_b", "pg_wrong"][n % 3]);
                let large = json!({"name": "up__p", "arguments": {"x": "y".repeat(8 << 10)}});
                let complete = json!({"ref": {"type": "ref/prompt", "name": "up__p"},
                    "argument": {"name": "x", "value": "y"}});
                let reply = match (n + round) % 6 {
                    0 => caller.modern("prompts/get", large).await,
                    1 => caller.modern("prompts/get", json!({"name": "up__secret"})).await,
                    2 => caller.modern("prompts/get", json!({"name": "silent__p"})).await,
                    3 => caller.modern("completion/complete", complete).await,
                    4 => {
                        if n % 3 < 2 {
                            drop(caller.listen().await);
                        }
                        continue;
                    }
                    _ => caller.modern("prompts/list", json!({})).await,
                };
                assert!([200, 401, 429, 503].contains(&reply.status), "{reply:?}");
                lists += u64::from(reply.status == 200 && (n + round) % 6 == 5);
            }
            lists
        });
    }
    let mut lists = 0;
    while let Some(listed) = flood.join_next().await {
        lists += listed.unwrap();
    }
    gateway.drain().await;
    let report = check(&log.path());
    assert!(report.missing.is_empty() && report.unknown.is_empty(), "{report:?}");
    assert!(log.of("gap").is_empty());
    // Each caller that got a list is on record.
    let received = log.of("received");
    let listed = received.iter().filter(|record| record["method"] == "prompts/list");
    let callers = listed.filter(|record| ["a", "b"].contains(&record["caller"].as_str().unwrap()));
    assert!(callers.count() as u64 >= lists && lists > 0, "{lists}");
    let ended: Vec<_> = log.of("completed").iter().map(|record| record["call"].clone()).collect();
    assert!(received.iter().all(|record| ended.contains(&record["call"])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_stalled_uploads_of_one_caller_leave_room_for_bodies_of_others() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = "[server.limits]\nin_flight_bytes = \"32MiB\"\n".to_owned()
        + &upstream.table("up")
        + &api_key("a", "pg_a")
        + &api_key("b", "pg_b");
    let gateway = Gateway::start_with(&toml, |limits| limits.body_rate = 0).await;
    gateway.summary().await;
    let length = (4 << 20) - 1;
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-API-Key: pg_a\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    let mut stalled = Vec::new();
    for _ in 0..33 {
        let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
        // A body without room is refused before it is complete.
        let piece = [head.as_bytes(), &vec![b' '; length - 10]].concat();
        let _ = timeout(PATIENCE, stream.write_all(&piece)).await.expect("taken or refused");
        stalled.push(stream);
    }
    for _ in 0..20 {
        assert_eq!(key(gateway.client(), "pg_b").names().await.0, ["up__p"]);
    }
    let large = json!({"name": "up__p", "arguments": {"x": "y".repeat(3 << 20)}});
    let reply = key(gateway.client(), "pg_b").modern("prompts/get", large).await;
    assert_eq!(reply.status, 200, "a large body has room, too");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn f4_idle_connections_to_the_admin_side_do_not_take_the_probes_away() {
    let gateway = Gateway::start("[admin]\nlisten = \"127.0.0.1:0\"\n").await;
    let admin = gateway.admin().addr;
    let probe = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut idle = Vec::new();
    for _ in 0..70 {
        let mut stream = connect_from([127, 0, 0, 3], admin).await;
        stream.write_all(probe).await.unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        idle.push(stream);
    }
    // Others that have not even sent a byte.
    for _ in 0..70 {
        idle.push(connect_from([127, 0, 0, 4], admin).await);
    }
    for _ in 0..5 {
        let answer = exchange(connect_from([127, 0, 0, 2], admin).await, probe, "ok").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn f4_forms_without_a_credential_that_never_end_do_not_take_the_probes_away() {
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\ntoken = { value = \"t\" }\n";
    let gateway = Gateway::start(toml).await;
    let admin = gateway.admin().addr;
    let form = b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\
        Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 16000\r\n\r\ntoken=";
    let mut held = Vec::new();
    for (network, count) in [(3, 33), (4, 16), (5, 15)] {
        for _ in 0..count {
            let mut stream = connect_from([127, 0, 0, network], admin).await;
            stream.write_all(form).await.unwrap();
            held.push(stream);
        }
    }
    let probe = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for _ in 0..5 {
        let answer = exchange(connect_from([127, 0, 0, 2], admin).await, probe, "ok").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
    let large = b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\
        Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 16385\r\n\r\n";
    let large = [&large[..], &[b'x'; 16_385]].concat();
    let answer = exchange(connect_from([127, 0, 0, 2], admin).await, &large, "large").await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn f5_idle_connections_of_a_stranger_are_closed_for_new_ones() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = "[server.limits]\nconnections = 8\n".to_owned() + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let options = b"OPTIONS /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut idle = Vec::new();
    for _ in 0..40 {
        let mut stream = connect_from([127, 0, 0, 3], gateway.addr).await;
        stream.write_all(options).await.unwrap();
        idle.push(stream);
    }
    let list = modern_bytes("HTTP/1.1", "prompts/list", json!({}));
    for _ in 0..3 {
        let stream = connect_from([127, 0, 0, 2], gateway.addr).await;
        let answer = exchange(stream, &list, "up__p").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
}

#[tokio::test]
async fn f7_each_post_over_http_sse_has_the_rights_of_its_own_credential() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = upstream.table("up")
        + &api_key("ann", "pg_strong")
        + "groups = [\"staff\"]\n"
        + &api_key("ann", "pg_weak")
        + &api_key("bob", "pg_other")
        + "[[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"staff\"]\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let strong = key(gateway.client(), "pg_strong");
    let mut stream = strong.stream_at("GET", "/sse", &[EVENTS], b"").await;
    let endpoint = stream.event().await.unwrap().data;
    let get = request(1, "prompts/get", json!({"name": "up__p"})).to_string();
    let mut ask = async |with: &str| {
        let client = key(gateway.client(), with);
        let posted = client.send("POST", &endpoint, &[JSON], get.as_bytes()).await;
        if posted.status != 202 {
            return Err(posted.status);
        }
        loop {
            let message = stream.event().await.unwrap().json();
            // Without `initialize` the list may be another than the client knows.
            if message["method"] != "notifications/prompts/list_changed" {
                return Ok(message);
            }
        }
    };
    assert!(ask("pg_strong").await.unwrap()["result"].is_object());
    let denied = ask("pg_weak").await.unwrap();
    assert_eq!(denied["error"]["data"]["reason"], "unknown_prompt", "{denied}");
    assert_eq!(ask("pg_other").await, Err(404), "the session of another caller");
    assert_eq!(ask("pg_none").await, Err(401));
    assert!(ask("pg_strong").await.unwrap()["result"].is_object());
}

#[tokio::test]
async fn f9_refused_calls_of_one_caller_take_nothing_from_the_limit_that_all_share() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = upstream.table("up")
        + &api_key("a", "pg_a")
        + &api_key("b", "pg_b")
        + "[[limits]]\nname = \"all\"\nper = []\nrate = \"60/d\"\n\
           [[limits]]\nname = \"each\"\nper = [\"caller\"]\nrate = \"5/d\"\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let client = key(gateway.client(), "pg_a");
    let mut passed = 0;
    for _ in 0..80 {
        let reply = client.modern("prompts/get", json!({"name": "up__p"})).await;
        passed += u64::from(reply.status == 200);
    }
    assert_eq!(passed, 5);
    assert_eq!(key(gateway.client(), "pg_b").modern("prompts/list", json!({})).await.status, 200);
}

#[tokio::test]
async fn f10_errors_tell_callers_a_sentence_and_an_id_and_operators_the_rest() {
    let log = Log::new();
    let echoes = Upstream::start(|asked| {
        let credential = asked.header("authorization").unwrap_or_default().to_owned();
        match asked.method() {
            "prompts/get" => {
                let mut error = asked.error(-32000, &format!("bad key: {credential}"));
                if let Scripted::Json(message) = &mut error {
                    message["error"]["data"] = json!({"sent": {"authorization": credential}});
                }
                error
            }
            _ => crate::support::upstream::good_modern(asked),
        }
    })
    .await;
    let toml = log.table()
        + &echoes.table("echo")
        + "credential = { bearer = { value = \"canary-credential\" } }\n\
           [upstreams.internal]\ntransport = \"http\"\nurl = \"http://localhost:1/mcp\"\nallow_private = false\n\
           [upstreams.token]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n\
           credential = { oauth = { client_id = \"x\", client_secret = { value = \"canary-secret\" }, \
           token_url = \"http://127.0.0.1:1/realms/corp/token\" } }\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    for (name, sentence) in [
        ("internal__p", "upstream `internal`: not reachable at present"),
        ("token__p", "upstream `token`: its authorization server is not available"),
    ] {
        let error = gateway.client().ask_error("prompts/get", json!({"name": name})).await;
        assert_eq!(error["message"], sentence);
        let told = error.to_string();
        for hidden in ["127.0.0.1", "allow_private", "realms", "refused"] {
            assert!(!told.contains(hidden), "{told}");
        }
        let id = error["data"]["correlationId"].as_str().unwrap();
        let record = log.of("completed").into_iter().find(|record| record["correlation"] == id);
        let cause = record.expect("it is on record")["error"].as_str().unwrap().to_owned();
        assert!(cause.contains("127.0.0.1"), "{cause}");
    }
    let error = gateway.client().ask_error("prompts/get", json!({"name": "echo__p"})).await;
    assert_eq!(error["data"].get("sent"), None, "{error}");
    assert!(error["message"].as_str().unwrap().contains("bad key: [redacted]"), "{error}");
    let id = error["data"]["correlationId"].as_str().unwrap();
    let record = log.of("completed").into_iter().find(|record| record["correlation"] == id);
    // The words of an upstream may repeat values of arguments, of which the log has none.
    assert_eq!(record.unwrap()["error"], "error -32000");
    gateway.drain().await;
    assert!(!log.text().contains("canary"), "{}", log.text());
}

#[tokio::test]
async fn an_upstream_that_changes_all_of_its_prompts_again_and_again_has_a_share_of_the_log() {
    for mode in ["off", "warn", "enforce"] {
        let walks = Counter::new();
        let counted = walks.clone();
        let flood = Upstream::modern(move |asked| {
            (asked.method() == "prompts/list").then(|| {
                counted.increment();
                let walk = counted.get();
                let prompt = |n| json!({"name": format!("p{n}"), "description": walk.to_string()});
                let prompts: Vec<_> = (0..1_500).map(prompt).collect();
                asked.result(json!({"resultType": "complete", "ttlMs": 1,
                    "cacheScope": "public", "prompts": prompts}))
            })
        })
        .await;
        let lock = tempfile::tempdir().unwrap();
        let path = lock.path().join("promptgate.lock");
        let log = Log::new();
        let toml = log.table()
            + &format!("[approvals]\nmode = {mode:?}\nlock = {path:?}\n")
            + &flood.table("up");
        let gateway = Gateway::start(&toml).await;
        walks.reaches(4).await;
        gateway.drain().await;
        let (own, count) = match mode {
            "off" => ("definition_changed", "definitions_changed"),
            _ => ("prompt_state", "prompt_states"),
        };
        assert_eq!(log.of(own).len(), 1_000, "{mode}");
        let counts = log.of(count);
        assert_eq!((counts.len(), &counts[0]["upstream"]), (1, &json!("up")), "{mode}: {counts:?}");
        assert!(counts[0]["count"].as_u64().unwrap() >= 1_500, "{mode}: {counts:?}");
        assert!(counts[0]["digest"].as_str().unwrap().starts_with("sha256:"), "{counts:?}");
    }
}

#[tokio::test]
async fn lists_that_need_a_credential_are_private_for_caches() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    for (required, scope) in [(true, "private"), (false, "public")] {
        let toml = format!("[auth]\nrequired = {required}\n") + &api_key("ci", "pg_ci");
        let gateway = Gateway::start(&(toml + &upstream.table("up"))).await;
        let list = key(gateway.client(), "pg_ci").ask("prompts/list", json!({})).await;
        assert_eq!(list["cacheScope"], scope, "{list}");
    }
}

#[tokio::test]
async fn f11_a_failing_upstream_is_named_in_the_lists_that_it_belongs_to_and_in_no_other() {
    let good = Upstream::with_prompts(&["p"]).await;
    let toml = "[listing]\ndeadline = \"200ms\"\n".to_owned()
        + &good.table("lib")
        + "[upstreams.secret-project]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n\
           [views.pub]\nupstreams = [\"lib\"]\n[views.named]\nprompts = [\"lib__*\"]\n\
           [views.both]\nprompts = [\"lib__*\", \"secret-*\"]\n"
        + &api_key("a", "pg_a")
        + &api_key("b", "pg_b");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let (body, headers) = modern(1, "prompts/list", json!({}));
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let list = async |path: &str, with: &str| {
        let client = key(gateway.client(), with);
        client.send("POST", path, &headers, body.to_string().as_bytes()).await.json()
    };
    for path in ["/mcp", "/mcp/both"] {
        let listed = list(path, "pg_a").await;
        let incomplete = &listed["result"]["_meta"]["promptgate/incomplete"];
        assert_eq!(incomplete[0]["upstream"], "secret-project", "{path}: {listed}");
    }
    for path in ["/mcp/pub", "/mcp/named"] {
        let listed = list(path, "pg_a").await;
        assert_eq!(listed["result"]["prompts"][0]["name"], "lib__p", "{path}: {listed}");
        assert!(!listed.to_string().contains("secret"), "{listed}");
    }
    // Rights that differ by caller: what one sees nothing of does not exist for it.
    let rules =
        "[[access.rules]]\nallow = [\"list\", \"get\"]\nupstreams = [\"lib\"]\ncallers = [\"a\"]\n";
    gateway.reload(&(toml + rules)).await;
    let listed = list("/mcp", "pg_a").await;
    assert_eq!(listed["result"]["prompts"][0]["name"], "lib__p", "{listed}");
    assert!(!listed.to_string().contains("secret"), "{listed}");
}

/// Nobody may use `denied`.
struct Denies;

impl Rights for Denies {
    fn entitlement(&self, caller: &Caller) -> Option<Arc<str>> {
        Some(caller.id().into())
    }

    fn allows(&self, _: &Caller, _: Method, prompt: PromptRef<'_>) -> bool {
        prompt.raw_name != "denied"
    }
}

#[tokio::test(start_paused = true)]
async fn f12_denied_unknown_and_not_yet_known_names_wait_alike_while_upstreams_are_awaited() {
    let library = tempfile::tempdir().unwrap();
    for name in ["denied", "allowed"] {
        let prompt = format!("---\nname: {name}\n---\nHello\n");
        std::fs::write(library.path().join(format!("{name}.md")), prompt).unwrap();
    }
    let silent = Upstream::start(|_| HANG).await;
    let toml = format!(
        "[listing]\ndeadline = \"5s\"\n[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n{}",
        library.path(),
        silent.patient_table("silent")
    );
    let layer = Arc::new(SessionLayer::with_rights(&toml, Arc::new(Denies)));
    let start = tokio::time::Instant::now();
    let get = |name: &'static str| {
        let layer = layer.clone();
        async move {
            let result = layer.call("ann", "prompts/get", json!({"name": name})).await;
            (result, start.elapsed())
        }
    };
    let (denied, unknown, missing) =
        tokio::join!(get("lib__denied"), get("lib__nothing"), get("silent__denied"));
    for (result, after) in [&denied, &unknown, &missing] {
        assert_eq!(result, &Err(Fault::from(RequestFault::UnknownPrompt)));
        assert_eq!(*after, denied.1, "none is answered before the others");
    }
    assert!(denied.1 >= Duration::from_millis(4_900), "{:?}", denied.1);
    assert!(get("lib__allowed").await.0.is_ok());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn f15_other_processes_of_the_same_user_cannot_read_the_environment_of_the_gateway() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use crate::support::process::copy_of_binary;

    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let binary = copy_of_binary(folder.path());
    let config =
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"\"\n[audit]\npath = \"\"\n";
    std::fs::write(folder.path().join("gateway.toml"), config).unwrap();
    // Root can read everything, so the test becomes somebody else.
    let as_user = |command: &mut Command| {
        if rustix::process::geteuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
    };
    for (allows, is_readable) in [("", false), ("true", true)] {
        let mut serve = Command::new(&binary);
        serve.arg("serve").current_dir(folder.path()).env("REMOTE_TOKEN", "canary");
        serve.env("PROMPTGATE_ALLOW_PTRACE", allows).env("XDG_RUNTIME_DIR", folder.path());
        serve.stdout(Stdio::piped()).stderr(Stdio::null());
        as_user(&mut serve);
        let mut gateway = serve.spawn().unwrap();
        let mut line = [0; 10];
        std::io::Read::read_exact(gateway.stdout.as_mut().unwrap(), &mut line).unwrap();
        let mut read = Command::new("cat");
        read.arg(format!("/proc/{}/environ", gateway.id())).stderr(Stdio::null());
        as_user(&mut read);
        let environment = read.output().unwrap().stdout;
        let found = String::from_utf8_lossy(&environment).contains("canary");
        gateway.kill().unwrap();
        gateway.wait().unwrap();
        assert_eq!(found, is_readable, "PROMPTGATE_ALLOW_PTRACE={allows}");
    }
}

#[tokio::test]
async fn f16_a_body_of_many_arguments_is_read_once_for_all_required_ones() {
    let arguments: Vec<_> =
        (0..256).map(|n| json!({"name": format!("a{n}"), "required": true})).collect();
    let prompt = json!({"name": "p", "arguments": arguments});
    let upstream = Upstream::modern(move |asked| {
        (asked.method() == "prompts/list").then(|| asked.list(&json!([prompt])))
    })
    .await;
    let gateway = Gateway::start(&upstream.table("up")).await;
    gateway.summary().await;
    let mut given: serde_json::Map<String, Value> =
        (0..256).map(|n| (format!("a{n}"), json!("x"))).collect();
    let all = json!({"name": "up__p", "arguments": given});
    gateway.client().ask("prompts/get", all).await;
    given.remove("a7");
    given.remove("a200");
    let params = json!({"name": "up__p", "arguments": given});
    let error = gateway.client().ask_error("prompts/get", params).await;
    assert_eq!(error["message"], "required argument `a7` is missing");
}

#[tokio::test]
async fn f18_sessions_that_one_caller_ends_stay_ended_whatever_others_end() {
    let toml = api_key("a", "pg_a") + &api_key("flood", "pg_flood");
    let gateway = Gateway::start_with(&toml, |limits| limits.terminated_sessions = 100).await;
    let mine = key(gateway.client(), "pg_a").legacy("2025-06-18").await;
    assert_eq!(mine.send("DELETE", "/mcp", &[], b"").await.status, 200);
    for _ in 0..101 {
        let session = key(gateway.client(), "pg_flood").legacy("2025-06-18").await;
        assert_eq!(session.send("DELETE", "/mcp", &[], b"").await.status, 200);
    }
    assert_eq!(mine.post(&request(1, "ping", json!({}))).await.status, 404);
}

#[tokio::test]
async fn f19_a_caller_with_a_long_id_can_use_legacy_sessions() {
    let id = "\u{6f22}".repeat(128);
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&(upstream.table("up") + &api_key(&id, "pg_long"))).await;
    gateway.summary().await;
    let client = key(gateway.client(), "pg_long").legacy("2025-06-18").await;
    let reply = client.post(&request(1, "prompts/list", json!({}))).await;
    assert_eq!(reply.json()["result"]["prompts"][0]["name"], "up__p", "{reply:?}");
}

#[tokio::test]
async fn f20_streams_of_http_sse_are_on_record_and_refused_while_nothing_can_be_recorded() {
    let log = Log::new();
    let toml = log.table() + "keep_size = \"64KiB\"\non_full = \"refuse\"\n";
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let mut stream = client.stream_at("GET", "/sse", &[EVENTS], b"").await;
    assert!(stream.event().await.unwrap().data.starts_with("/sse?sessionId="));
    let started = log.of("stream_started");
    assert_eq!((started.len(), &started[0]["endpoint"]), (1, &json!("/mcp")));
    drop(stream);
    let ended = log.wait_for("stream_ended").await;
    assert_eq!(ended["call"], started[0]["call"]);
    // Lists fill the log; then no stream is let in.
    fill(&log.path(), async || client.modern("prompts/list", json!({})).await.status).await;
    let refused = client.try_stream_at("GET", "/sse", &[EVENTS], b"").await;
    let head = refused.err().expect("it is refused");
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
}

#[tokio::test]
async fn f21_tokens_of_other_types_and_for_other_proofs_are_refused() {
    const RESOURCE: &str = "https://prompts.example.com/mcp";
    let signing = SigningKey::ec("e");
    let provider = Provider::start(&[&signing]).await;
    let server = format!("[server]\npublic_url = \"{RESOURCE}\"\n");
    let gateway = Gateway::start(&(server.clone() + &provider.table())).await;
    let typed = |typ: Option<&str>| {
        let claims = provider.claims(RESOURCE);
        signing.sign_with(&claims, |header| header.typ = typ.map(str::to_owned))
    };
    let status = async |gateway: &Gateway, token: &str| {
        let client = gateway.client().with("Authorization", &format!("Bearer {token}"));
        client.modern("prompts/list", json!({})).await.status
    };
    let good = typed(Some("at+jwt"));
    eventually(async || status(&gateway, &good).await, |seen| *seen == 200).await;
    for (typ, expected) in [
        (None, 200),
        (Some("JWT"), 200),
        (Some("application/AT+jwt"), 200),
        (Some("logout+jwt"), 401),
        (Some("dpop+jwt"), 401),
        (Some("secevent+jwt"), 401),
    ] {
        assert_eq!(status(&gateway, &typed(typ)).await, expected, "{typ:?}");
    }
    for (claim, value) in
        [("cnf", json!({"jkt": "x"})), ("iss", json!([provider.issuer(), "https://evil.example"]))]
    {
        let mut claims = provider.claims(RESOURCE);
        claims[claim] = value;
        assert_eq!(status(&gateway, &signing.sign(&claims)).await, 401, "{claim}");
    }
    gateway.reload(&(server + &provider.table() + "typ = [\"at+jwt\"]\n")).await;
    eventually(async || status(&gateway, &good).await, |seen| *seen == 200).await;
    assert_eq!(status(&gateway, &typed(None)).await, 401);
}

#[tokio::test]
async fn f22_a_flood_of_control_frames_ends_in_goaway() {
    const LIMIT: usize = 1_000;
    let gateway = Gateway::start("").await;
    let floods = [
        ("pings", frame(PING, 0, 0, &[7; 8])),
        ("settings", frame(SETTINGS, 0, 0, &[])),
        ("acknowledged pings", frame(PING, ACK, 0, &[7; 8])),
        ("unknown frames", frame(0xfa, 0, 0, b"x")),
        ("window updates", frame(8, 0, 0, &1_u32.to_be_bytes())),
    ];
    for (what, one) in floods {
        let mut client = Http2::open(gateway.addr, &[]).await;
        // One frame of settings opens a connection.
        assert!(client.pour(&one.repeat(LIMIT)).await);
        let mut goaway = false;
        while let Some(frame) = client.next().await {
            goaway |= frame.kind == GOAWAY;
        }
        assert!(goaway, "{what}");
    }
}
