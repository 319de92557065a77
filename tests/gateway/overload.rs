//! More than there is room for: connections, bodies, streams and costly requests, of the real
//! binary. What is let in is served, the rest is told early, and behind it everything is as it was
//! (fault matrix, M and L5).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::skills::{discovered, library, listed, skill};
use crate::support::client::{Stream, modern, modern_bytes, request};
use crate::support::gateway::api_key;
use crate::support::process::LOG_WARNINGS;
use crate::support::upstream::HANG;
use crate::support::{
    Client, PATIENCE, Process, Received, Scripted, Upstream, eventually, metrics,
};

/// A running binary, and where it can be looked at.
struct ObservedProcess {
    process: Process,
    admin: Client,
    folder: tempfile::TempDir,
}

impl ObservedProcess {
    async fn start(toml: &str) -> Self {
        Self::with(toml, &[]).await
    }

    /// The same, with these variables.
    async fn with(toml: &str, variables: &[(&str, &str)]) -> Self {
        // Its descriptors are counted, also by users other than root.
        let variables = &[&[("PROMPTGATE_ALLOW_PTRACE", "true")], variables].concat();
        let folder = tempfile::tempdir().unwrap();
        let toml = format!("[audit]\npath = \"\"\n[telemetry]\nlog = \"{LOG_WARNINGS}\"\n{toml}");
        fs::write(folder.path().join("gateway.toml"), toml).unwrap();
        let (process, admin) = Process::serve_admin(folder.path(), variables).await;
        Self { process, admin, folder }
    }

    /// A number of the process's status, in KiB.
    fn memory(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.pid())).unwrap().count()
    }

    fn limit_descriptors(&self, most: u64) {
        let pid = Pid::from_raw(i32::try_from(self.process.pid()).unwrap());
        let limit = Rlimit { current: Some(most), maximum: Some(20_000) };
        prlimit(pid, Resource::Nofile, limit).unwrap();
    }

    /// The gauges that must return to their first values once nothing is in progress.
    async fn gauges(&self) -> BTreeMap<String, f64> {
        let kept = [
            "promptgate_calls_",
            "promptgate_connections",
            "promptgate_in_flight",
            "promptgate_streams",
            "promptgate_tasks",
            "promptgate_upstream_in_flight",
            "promptgate_upstream_queued",
        ];
        metrics(&self.admin, &kept).await
    }
}

/// The allocator gives no memory back, so that what is freed does not hide what is allocated.
const KEEP_MEMORY: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "-1");

/// A connection that is kept for one list after the other. It has an address of its own.
struct Kept(TcpStream);

impl Kept {
    async fn open(client: &Client) -> Self {
        Self(connect_from([127, 0, 0, 2], client.addr).await.unwrap())
    }

    async fn list(&mut self) {
        let (body, headers) = modern(1, "prompts/list", json!({}));
        let body = body.to_string();
        let mut head = String::from("POST /mcp HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        let message = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        self.0.write_all(message.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"}}") {
            let read = timeout(PATIENCE, self.0.read_buf(&mut answer)).await;
            assert_ne!(read.expect("an answer").unwrap(), 0);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
}

/// Connects from another loopback address.
async fn connect_from(from: [u8; 4], to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

#[tokio::test]
async fn m2_with_few_descriptors_who_is_in_is_served_and_the_rest_waits_and_is_served_later() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = ObservedProcess::start(&upstream.table("up")).await;
    let client = gateway.process.client();
    let mut kept = Kept::open(&client).await;
    kept.list().await;
    // Room for few connections of the crowd.
    let few = gateway.descriptors() + 6;
    // Limits, and how many descriptors are in use then: half of a limit is for connections; and a
    // limit that is reached before that half is.
    for (limit, reached) in [(256, 128), (few, few)] {
        gateway.limit_descriptors(limit as u64);
        let mut crowd = JoinSet::new();
        for n in 0..1_000_u16 {
            let addr = client.addr;
            crowd.spawn(async move {
                // Of eight addresses, whose shares together are more than there is. Not each gets
                // even that far.
                let stream = connect_from([127, 0, 1, (n % 8) as u8], addr).await;
                std::future::pending::<()>().await;
                drop(stream);
            });
        }
        eventually(
            async || {
                kept.list().await;
                gateway.descriptors()
            },
            |seen| *seen >= reached,
        )
        .await;
        for _ in 0..20 {
            kept.list().await;
        }
        drop(crowd);
        // Later clients are served.
        assert_eq!(client.names().await.0, ["up__p"]);
        gateway.limit_descriptors(20_000);
        eventually(async || gateway.descriptors(), |seen| *seen < few).await;
    }
    gateway.process.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m3_two_hundred_large_bodies_are_taken_as_far_as_there_is_room_and_the_rest_is_told() {
    let upstream = Upstream::modern(|asked| {
        let content = || asked.content(json!({"type": "text", "text": "taken"}));
        (asked.method() == "prompts/get").then(content)
    })
    .await;
    let toml =
        "[server.limits]\nin_flight_bytes = \"32MiB\"\n".to_owned() + &upstream.patient_table("up");
    // As documented for where memory is tight.
    let gateway = ObservedProcess::with(&toml, &[("MIMALLOC_PURGE_DELAY", "1")]).await;
    let params = json!({"name": "up__p", "arguments": {"x": "y".repeat((4 << 20) - 2_000)}});
    let (body, headers) = modern(1, "prompts/get", params);
    let (body, headers) = (Arc::new(body.to_string().into_bytes()), Arc::new(headers));
    let mut clients = JoinSet::new();
    for _ in 0..200 {
        let (client, body, headers) = (gateway.process.client(), body.clone(), headers.clone());
        clients.spawn(async move {
            let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
            let reply = client.try_send("POST", "/mcp", &headers, &body).await;
            reply.map(|reply| {
                let retry = reply.header("retry-after").is_some();
                (reply.status, retry)
            })
        });
    }
    let (mut served, mut refused) = (0, 0);
    while let Some(reply) = clients.join_next().await {
        match reply.unwrap() {
            Some((200, _)) => served += 1,
            Some((503, true)) => refused += 1,
            // Told before its body was whole, and closed before it had read that.
            None => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(served > 0 && refused > 0, "{served} served, {refused} refused");
    let peak = gateway.memory("VmHWM:");
    assert!(peak < 128 << 10, "{peak} KiB at most");
    assert_eq!(gateway.process.client().names().await.0, ["up__p"], "and it goes on");
}

/// A caller that reads none of its results.
struct UnreadResults {
    calls: usize,
    /// Of one result, in bytes.
    size: usize,
    /// `in_flight_bytes`, in MiB.
    budget: u32,
}

/// The source of large results.
struct LargeResult {
    /// It also has the small prompt `p`.
    upstream: Upstream,
    method: &'static str,
    params: Value,
    /// A library, in its folder.
    library: Option<(String, tempfile::TempDir)>,
}

impl LargeResult {
    async fn of_prompt(size: usize) -> Self {
        let large = "x".repeat(size);
        let upstream = Upstream::modern(move |asked| {
            (asked.message["params"]["arguments"]["x"] == "large").then(|| {
                let message = json!({"role": "user", "content": {"type": "text", "text": "LARGE"}});
                let result = json!({"resultType": "complete", "messages": [message]});
                filled(asked, result, &large)
            })
        })
        .await;
        let params = json!({"name": "up__p", "arguments": {"x": "large"}});
        Self { upstream, method: "prompts/get", params, library: None }
    }

    async fn of_skill(size: usize) -> Self {
        let large = "x".repeat(size);
        let entry = skill("skill://big", &[("SKILL.md", "x"), ("big.txt", &large)]);
        let upstream = Upstream::modern(move |asked| match asked.method() {
            "server/discover" => Some(discovered(asked)),
            "skills/list" => Some(listed(asked, &json!([entry]))),
            "resources/read" => {
                let content = json!({"uri": asked.message["params"]["uri"], "text": "LARGE"});
                let result = json!({"resultType": "complete", "contents": [content]});
                Some(filled(asked, result, &large))
            }
            _ => None,
        })
        .await;
        let params = json!({"uri": "skill://up/big/big.txt"});
        Self { upstream, method: "resources/read", params, library: None }
    }

    async fn of_library(size: usize) -> Self {
        let own = "---\nname: big\ndescription: d\n---\n";
        let library = library(&[("big/SKILL.md", own), ("big/big.txt", &"x".repeat(size))]);
        let params = json!({"uri": "skill://lib/big/big.txt"});
        let upstream = Upstream::with_prompts(&["p"]).await;
        Self { upstream, method: "resources/read", params, library: Some(library) }
    }
}

/// A response with a text in the place of `LARGE`, which is not encoded once more.
fn filled(asked: &Received, result: Value, large: &str) -> Scripted {
    let answer = json!({"jsonrpc": "2.0", "id": asked.message["id"], "result": result});
    let answer = answer.to_string().replace("LARGE", large).into_bytes();
    Scripted::Http(200, vec![("Content-Type", "application/json".to_owned())], answer)
}

impl UnreadResults {
    /// Calls, and checks that the budget holds and that another caller has its share. Returns the
    /// greatest memory of the gateway, in KiB.
    async fn peak(self, result: LargeResult, variables: &[(&str, &str)]) -> u64 {
        let Self { calls, size, budget } = self;
        let LargeResult { upstream, method, params: large, library } = result;
        let toml = format!("[server.limits]\nin_flight_bytes = \"{budget}MiB\"\n")
            + "[defaults]\nmax_message = \"20MiB\"\n"
            + &upstream.patient_table("up")
            + library.as_ref().map_or("", |(toml, _)| toml)
            + &api_key("a", "pg_a")
            + &api_key("b", "pg_b");
        let gateway = ObservedProcess::with(&toml, variables).await;
        let [a, b] = ["pg_a", "pg_b"].map(|key| gateway.process.client().with("X-API-Key", key));
        let is_there = async || b.modern(method, large.clone()).await;
        eventually(is_there, |reply| reply.body.len() > size).await;
        let request = modern_bytes("HTTP/1.1", method, large.clone());
        let request = String::from_utf8(request).unwrap();
        let request = Arc::new(request.replace("\r\nHost", "\r\nX-API-Key: pg_a\r\nHost"));
        let mut clients = JoinSet::new();
        for _ in 0..calls {
            let (request, addr) = (request.clone(), gateway.process.addr);
            clients.spawn(async move {
                let mut stream = TcpStream::connect(addr).await.unwrap();
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut status = [0; 12];
                stream.read_exact(&mut status).await.unwrap();
                (String::from_utf8(status.to_vec()).unwrap(), stream)
            });
        }
        let mut answers = Vec::new();
        while let Some(answer) = timeout(PATIENCE, clients.join_next()).await.expect("an answer") {
            answers.push(answer.unwrap());
            b.ask("prompts/get", json!({"name": "up__p"})).await;
        }
        let count =
            |status: &str| answers.iter().filter(|(said, _)| said.ends_with(status)).count();
        assert!(count("200") >= 2 && count("200") + count("503") == calls, "{}", count("200"));
        const SIZE: &str = "promptgate_in_flight_size_bytes";
        let held = async || metrics(&gateway.admin, &[SIZE]).await[SIZE];
        let now = held().await;
        assert!(now > 2. * size as f64 && now <= f64::from(budget << 20), "{now}");
        let reply = a.modern(method, large.clone()).await;
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
        let reply = b.modern(method, large.clone()).await;
        assert_eq!(reply.status, 200, "others have their share");
        let peak = gateway.memory("VmHWM:");
        println!("{} of {calls} results are held, {peak} KiB at most", count("200"));
        drop(answers);
        eventually(held, |held| *held == 0.).await;
        assert_eq!(a.modern(method, large).await.status, 200);
        peak
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_one_caller_does_not_read_stay_within_the_budget_and_others_are_served() {
    // More than the buffers of a connection take.
    let unread = UnreadResults { calls: 30, size: 7 << 20, budget: 32 };
    let large = LargeResult::of_prompt(unread.size).await;
    let peak = unread.peak(large, &[("MIMALLOC_PURGE_DELAY", "1")]).await;
    assert!(peak < 128 << 10, "{peak} KiB at most");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_files_of_skills_stay_within_the_budget_whether_of_an_upstream_or_a_library() {
    const SIZE: usize = 12 << 20;
    for large in [LargeResult::of_skill(SIZE).await, LargeResult::of_library(SIZE).await] {
        let unread = UnreadResults { calls: 16, size: SIZE, budget: 128 };
        let peak = unread.peak(large, &[("MIMALLOC_PURGE_DELAY", "1")]).await;
        assert!(peak < 256 << 10, "{peak} KiB at most");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes gigabytes; `.ci/nightly unread`"]
async fn two_hundred_unread_results_of_11_mb_stay_below_300_mib_and_others_are_served() {
    let unread = UnreadResults { calls: 200, size: 11_000_000, budget: 256 };
    let large = LargeResult::of_prompt(unread.size).await;
    let peak = unread.peak(large, &[]).await;
    assert!(peak < 300 << 10, "{peak} KiB at most");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m5_bodies_that_are_costly_to_read_are_refused_and_others_are_served() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    // Bodies are slow to arrive where reading the others takes all cores.
    let toml = "[server.limits]\nbody = \"60s\"\n".to_owned() + &upstream.patient_table("up");
    let gateway = ObservedProcess::start(&toml).await;
    let most = (4 << 20) - 100;
    let fill = |open: &str, unit: &str, close: &str| {
        let count = (most - open.len() - close.len()) / unit.len();
        [open, &unit.repeat(count), close].concat().into_bytes()
    };
    let keys: String = (0..400_000).map(|n| format!("\"{n:x}\":0,")).collect();
    let weird = Arc::new([
        fill("", "[", ""),
        fill("{\"a\":[", "0,", "0]}"),
        fill("{\"a\":\"", "\\u00e9", "\"}"),
        fill("{\"a\":\"", "\\\\", "\"}"),
        fill("{\"a\":", "1", "}"),
        fill("[", "{},", "{}]"),
        format!("{{{keys}\"end\":0}}").into_bytes(),
        fill(
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"prompts/get\",\"params\":{\"x\":[",
            "{\"k\":[]},",
            "{}]}}",
        ),
    ]);
    let mut strangers = JoinSet::new();
    for n in 0..4 {
        let (client, weird) = (gateway.process.client(), weird.clone());
        strangers.spawn(async move {
            for body in weird.iter().cycle().skip(n).take(10) {
                let reply = client.post_bytes(body).await;
                assert_eq!(reply.status, 400, "{}", String::from_utf8_lossy(&reply.body));
            }
        });
    }
    let mut served = 0;
    while !strangers.is_empty() {
        gateway.process.client().ask("prompts/get", json!({"name": "up__p"})).await;
        served += 1;
        while let Some(stranger) = strangers.try_join_next() {
            stranger.unwrap();
        }
    }
    assert!(served >= 10, "{served} while there were 40 costly ones");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m4_l5_a_thousand_streams_cost_little_are_told_once_and_leave_nothing_behind() {
    const STREAMS: usize = 1_000;
    const MEASURED: usize = STREAMS / 2;
    let library = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let prompt = format!("---\nname: {name}\n---\nHello\n");
        fs::write(library.path().join("p.md"), prompt).unwrap();
    };
    write("one");
    let toml = format!(
        "[listing]\ndebounce = \"50ms\"\n[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n",
        library.path()
    );
    let gateway = ObservedProcess::with(&toml, &[KEEP_MEMORY]).await;
    let client = gateway.process.client();
    let open = async |count: usize| {
        let mut streams: Vec<Stream> = Vec::new();
        for _ in 0..count {
            streams.push(client.listen().await);
        }
        streams
    };
    drop(open(50).await);
    eventually(async || gateway.gauges().await["promptgate_streams"], |seen| *seen == 0.).await;
    // The first half uses up what the allocator has kept from before; the second half is measured.
    let mut streams = open(STREAMS - MEASURED).await;
    let before = gateway.memory("VmRSS:");
    streams.extend(open(MEASURED).await);
    let each = (gateway.memory("VmRSS:") - before) / MEASURED as u64;
    assert!((1..=12).contains(&each), "{each} KiB each");
    // Half of them go away without a word, the others hear of a change, once.
    let mut kept = streams.split_off(STREAMS / 2);
    drop(streams);
    write("two");
    for stream in &mut kept {
        let told = stream.event().await.unwrap().json();
        assert_eq!(told["method"], "notifications/prompts/list_changed");
    }
    eventually(
        async || gateway.gauges().await["promptgate_streams"],
        |seen| *seen == kept.len() as f64,
    )
    .await;
    // Told once: on each stream the result that ends it comes next.
    let stopping = tokio::spawn(gateway.process.stop());
    for stream in &mut kept {
        let last = stream.event().await.expect("the result").json();
        assert!(last.get("result").is_some(), "{last}");
    }
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m6_after_all_kinds_of_calls_everything_that_is_counted_is_as_it_was() {
    let upstream = Upstream::modern(|asked| {
        let hangs = asked.message["params"]["arguments"]["hang"] == "yes";
        (asked.method() == "prompts/get" && hangs).then_some(HANG)
    })
    .await;
    let toml = format!(
        "[server.limits]\nidle = \"300ms\"\nkeep_alive = \"200ms\"\n{}timeout = \"300ms\"\n",
        upstream.patient_table("up")
    );
    let gateway = ObservedProcess::start(&toml).await;
    let client = gateway.process.client();
    let round = async || {
        let mut calls = JoinSet::new();
        for _ in 0..20 {
            let client = client.clone();
            calls.spawn(async move {
                let get = |hang: &str| json!({"name": "up__p", "arguments": {"hang": hang}});
                client.modern("prompts/list", json!({})).await;
                client.modern("prompts/get", get("no")).await;
                // One that times out, one whose client goes away, one that is cancelled.
                client.modern("prompts/get", get("yes")).await;
                let mut going = TcpStream::connect(client.addr).await.unwrap();
                let request_bytes = modern_bytes("HTTP/1.1", "prompts/get", get("yes"));
                going.write_all(&request_bytes).await.unwrap();
                drop(going);
                let legacy = client.clone().legacy("2025-06-18").await;
                let mut stream =
                    legacy.stream("GET", &[("Accept", "text/event-stream")], b"").await;
                let (asking, asked) = (legacy.clone(), request(7, "prompts/get", get("yes")));
                let asking = tokio::spawn(async move { asking.post(&asked).await });
                let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
                    "params": {"requestId": 7}});
                legacy.post(&cancel).await;
                asking.await.unwrap();
                legacy.send("DELETE", "/mcp", &[], b"").await;
                assert!(
                    stream.event().await.is_none(),
                    "it ends with its session, and had no events"
                );
                let sse = client.stream_at("GET", "/sse", &[("Accept", "text/event-stream")], b"");
                drop(sse.await);
                client.listen().await;
                client.post_bytes(b"{").await;
            });
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
    };
    let settled = async |before: Option<&BTreeMap<String, f64>>| {
        eventually(
            async || gateway.gauges().await,
            |now| {
                let is_quiet = now["promptgate_streams"] == 0.
                    && now["promptgate_in_flight"] == 0.
                    && now["promptgate_connections"] == 0.;
                let is_same = before.is_none_or(|before| {
                    before.iter().all(|(name, value)| now.get(name).is_some_and(|now| now <= value))
                });
                is_quiet && is_same
            },
        )
        .await
    };
    round().await;
    let before = settled(None).await;
    for _ in 0..3 {
        round().await;
    }
    settled(Some(&before)).await;
    drop(gateway.folder);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m1_fifty_thousand_sessions_cost_nothing_and_outlive_the_process() {
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let toml = format!("[server]\nseal_key = {{ value = \"{key}\" }}\n");
    let gateway = ObservedProcess::with(&toml, &[KEEP_MEMORY]).await;
    let client = gateway.process.client();
    // The first ones warm up what stays: buffers, pools, the allocator.
    client.open_sessions(10_000).await;
    let before = gateway.memory("VmRSS:");
    let kept = client.clone().legacy("2025-06-18").await;
    client.open_sessions(40_000).await;
    let ping = request(1, "ping", json!({}));
    assert_eq!(kept.post(&ping).await.status, 200, "it answers throughout");
    let grown = gateway.memory("VmRSS:").saturating_sub(before);
    assert!(grown <= before / 10, "{grown} KiB more than {before} KiB");

    gateway.process.kill().await;
    let again = Process::serve(gateway.folder.path()).await;
    let reply = again.client().with("Mcp-Session-Id", kept.session()).post(&ping).await;
    assert_eq!(reply.status, 200, "the session is still known");
}
