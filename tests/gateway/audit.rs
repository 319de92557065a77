//! Records of the audit log, and the behaviour when they cannot be written.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use audit::keys::Keys;
use audit::verify::{TrustAnchors, verify};
use base::seal::{AuditKey, digest_text};
use domain::calls::caller::Caller;
use domain::calls::rights::{PromptRef, Rights};
use domain::fault::Fault;
use domain::protocol::method::Method;
use flate2::read::MultiGzDecoder;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::client::{Reply, request};
use crate::support::gateway::api_key;
use crate::support::session_layer::SessionLayer;
use crate::support::{Gateway, Upstream, eventually, write_greeting};

pub const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// A folder with a log in it.
pub struct Log {
    folder: TempDir,
}

impl Log {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("audit")
    }

    /// `[audit]` with this log; what follows belongs to it.
    pub fn table(&self) -> String {
        format!("[audit]\npath = {:?}\nkey = {{ value = \"{KEY}\" }}\n", self.path())
    }

    /// All records by now, in their order.
    pub fn records(&self) -> Vec<Value> {
        records(&self.path())
    }

    pub fn of(&self, event: &str) -> Vec<Value> {
        self.records().into_iter().filter(|record| record["event"] == event).collect()
    }

    /// Waits for a record of this event; returns the last one.
    #[track_caller]
    pub fn wait_for(&self, event: &str) -> impl Future<Output = Value> {
        let found = eventually(async || self.of(event), |records| !records.is_empty());
        async { found.await.pop().expect("it was accepted") }
    }

    pub fn text(&self) -> String {
        text(&self.path())
    }
}

pub fn text(path: &Path) -> String {
    let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
    names.retain(|name| name.extension().is_some_and(|e| e == "jsonl" || e == "gz"));
    names.retain(|name| number(name).starts_with("audit-"));
    names.sort_by(|a, b| number(a).cmp(&number(b)).then_with(|| b.cmp(a)));
    // Of a segment that is there plain and compressed, the compressed one.
    names.dedup_by_key(|name| number(name));
    names.iter().map(|name| segment_text(name)).collect()
}

fn number(segment: &Path) -> String {
    let name = segment.file_name().unwrap().to_string_lossy();
    name.split('.').next().unwrap().to_owned()
}

fn segment_text(path: &Path) -> String {
    let plain = path.with_extension("").with_extension("jsonl");
    match fs::read(path) {
        Ok(bytes) if path.extension().is_some_and(|e| e == "gz") => {
            let mut text = String::new();
            MultiGzDecoder::new(&*bytes).read_to_string(&mut text).unwrap();
            text
        }
        Ok(bytes) => String::from_utf8(bytes).unwrap(),
        // It was compressed meanwhile.
        Err(_) => segment_text(&plain.with_extension("jsonl.gz")),
    }
}

/// The files of the segments, oldest first.
pub fn segment_files(path: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
    names.retain(|name| number(name).starts_with("audit-"));
    names.sort();
    names
}

/// Bytes of all segments as they are stored.
pub fn stored(path: &Path) -> u64 {
    let length = |file: &PathBuf| fs::metadata(file).map_or(0, |meta| meta.len());
    segment_files(path).iter().map(length).sum()
}

/// Calls until a log of 64 KiB is full, and stays so: compressing its closed segments makes room.
/// Returns how many calls were served.
pub async fn fill(path: &Path, mut call: impl AsyncFnMut() -> u16) -> usize {
    let mut served = 0;
    let full = async || {
        while call().await == 200 {
            served += 1;
        }
        let is_plain = |file: &&PathBuf| file.extension().is_some_and(|e| e == "jsonl");
        (segment_files(path).iter().filter(is_plain).count(), stored(path))
    };
    eventually(full, |(plain, stored)| *plain == 1 && *stored > 62 << 10).await;
    served
}

/// The records of a log, headers left out.
pub fn records(path: &Path) -> Vec<Value> {
    let text = text(path);
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line.get("seq").is_some()).collect()
}

/// Nothing is wrong with the log; what it says of itself.
pub fn check(path: &Path) -> audit::verify::VerificationReport {
    let keys = Keys::new(&AuditKey::parse(KEY).unwrap());
    let report =
        verify(path, TrustAnchors { keys: Some(keys.into()), ..TrustAnchors::default() }).unwrap();
    assert!(report.mistakes.is_empty(), "{:#?}", report.mistakes);
    report
}

#[tokio::test]
async fn d1_a_call_is_on_record_before_its_upstream_sees_it_and_its_end_before_its_client_does() {
    let log = Log::new();
    let path = log.path();
    let upstream = Upstream::modern(move |asked| {
        if asked.method() == "prompts/get" {
            let seen = asked.message["params"]["arguments"]["n"].clone();
            let on_disk = records(&path);
            let received = on_disk
                .iter()
                .find(|r| r["event"] == "received" && r["arguments"]["n"]["value"] == seen);
            let received = received.expect("it was recorded before");
            assert_eq!(received["decision"], "allowed");
            let call = &received["call"];
            let completed = |r: &Value| r["event"] == "completed" && r["call"] == *call;
            assert!(!on_disk.iter().any(completed));
        }
        None
    })
    .await;
    let toml = log.table() + "raw_arguments = [\"up__*\"]\n" + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    for n in ["1", "2"] {
        let params = json!({"name": "up__p", "arguments": {"n": n}});
        gateway.client().ask("prompts/get", params).await;
        let completed = log.of("completed");
        assert_eq!(completed.len(), n.parse::<usize>().unwrap());
        assert_eq!(completed.last().unwrap()["outcome"], "ok");
    }
    assert_eq!(upstream.gets().len(), 2);
    gateway.drain().await;
    let report = check(&log.path());
    assert!(report.unknown.is_empty() && report.missing.is_empty());
    let last = log.records().pop().unwrap();
    assert_eq!(last["event"], "checkpoint", "the end is signed");
}

#[tokio::test]
async fn d7_a10_the_record_tells_who_what_and_when_and_no_secret() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p", "secret"]).await;
    let toml = log.table()
        + &upstream.table("up")
        + &api_key("ci", "pg_canary_key")
        + "groups = [\"staff\"]\n\
           [[access.rules]]\nallow = [\"list\", \"get\"]\nprompts = [\"p\"]\n\
           [[limits]]\nname = \"few\"\nper = [\"caller\"]\nmethods = [\"completion/complete\"]\n\
           rate = \"1/d\"\nburst = 1\n";
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client().with("Authorization", "Bearer pg_canary_key");
    client.ask("prompts/list", json!({})).await;
    let params = json!({"name": "up__p", "arguments": {"who": "canary-value"}});
    client.ask("prompts/get", params).await;
    client.ask_error("prompts/get", json!({"name": "up__secret"})).await;
    client.ask_error("prompts/get", json!({"name": "up__none"})).await;
    let complete = json!({"ref": {"type": "ref/prompt", "name": "up__p"},
        "argument": {"name": "who", "value": "canary-typed"}});
    client.ask_error("completion/complete", complete.clone()).await;
    for _ in 0..3 {
        assert_eq!(client.modern("completion/complete", complete.clone()).await.status, 429);
        let wrong = gateway.client().with("Authorization", "Bearer pg_canary_wrong");
        assert_eq!(wrong.modern("prompts/list", json!({})).await.status, 401);
    }
    let listen = client.listen().await;
    drop(listen);
    log.wait_for("stream_ended").await;
    gateway.drain().await;

    let received = log.of("received");
    let decisions: Vec<_> = received
        .iter()
        .map(|r| (r["name"].as_str().unwrap_or("-"), r["decision"].as_str().unwrap_or("-")))
        .collect();
    let expected = [
        ("-", "allowed"),
        ("up__p", "allowed"),
        ("up__secret", "denied"),
        ("up__none", "-"),
        ("up__p", "denied"),
    ];
    assert_eq!(decisions, expected);
    let get = &received[1];
    assert_eq!(get["caller"], "ci");
    assert_eq!((&get["proof"], &get["method"]), (&json!("api_key"), &json!("prompts/get")));
    assert_eq!((&get["upstream"], &get["prompt"]), (&json!("up"), &json!("p")));
    assert_eq!(get["address"], "127.0.0.1");
    assert!(get["definition"].as_str().unwrap().starts_with("sha256:"));
    let keys = Keys::new(&AuditKey::parse(KEY).unwrap());
    let digest = audit::digest::value_digest(&keys, b"canary-value");
    assert_eq!(get["arguments"]["who"], json!({"bytes": 12, "hmac": digest}));
    let completed = log.of("completed");
    let outcomes: Vec<_> = completed.iter().map(|r| r["outcome"].as_str().unwrap()).collect();
    let unknown = "unknown_prompt";
    assert_eq!(outcomes, ["ok", "ok", unknown, unknown, unknown]);
    assert!(completed[0]["list"].is_string() && completed[1]["result"].is_string());

    let refused = log.of("refused");
    let count = |reason: &str| -> u64 {
        let of_reason = refused.iter().filter(|r| r["reason"] == reason);
        of_reason.map(|r| r["count"].as_u64().unwrap()).sum()
    };
    assert_eq!((count("rate_limited"), count("unauthorized")), (3, 3));
    assert_eq!(
        refused.len(),
        4,
        "one at once, and one at the end, for each of the two: {refused:?}"
    );
    assert_eq!(log.of("stream_started").len(), 1);
    assert_eq!(log.of("config_loaded")[0]["auth"], "required");
    assert_eq!(log.of("list_changed")[0]["prompts"], 2);
    assert!(!log.text().contains("canary"), "{}", log.text());
    check(&log.path());
}

#[tokio::test]
async fn a_changed_definition_is_on_record_with_both_digests() {
    let log = Log::new();
    let library = tempfile::tempdir().unwrap();
    let write = |text: &str| write_greeting(library.path(), text);
    write("one");
    let table = format!("[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n", library.path());
    let gateway = Gateway::start(&(log.table() + &table)).await;
    gateway.client().ask("prompts/list", json!({})).await;
    write("two");
    let changed = log.wait_for("definition_changed").await;
    assert_eq!((&changed["upstream"], &changed["prompt"]), (&json!("lib"), &json!("greet")));
    assert_ne!(changed["before"], changed["now"]);
    // Settled a moment later.
    eventually(async || log.of("list_changed").len(), |seen| *seen == 2).await;
    gateway.drain().await;
}

#[tokio::test]
async fn d2_f23_a_full_folder_refuses_and_serves_again_once_there_is_room() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml =
        log.table() + "keep_size = \"64KiB\"\non_full = \"refuse\"\n" + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let get = async || gateway.client().modern("prompts/get", json!({"name": "up__p"})).await;
    let served = fill(&log.path(), async || get().await.status).await;
    let refused = get().await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let error = refused.json()["error"].clone();
    assert_eq!(
        (&error["code"], &error["data"]["reason"]),
        (&json!(-32603), &json!("audit_unavailable"))
    );
    assert!(served > 10);
    let seen = upstream.gets().len();
    assert_eq!(get().await.status, 503);
    assert_eq!(upstream.gets().len(), seen, "nobody is asked unrecorded");
    assert!(!log.of("nearly_full").is_empty());

    // The operator moves the oldest segment away.
    let moved = tempfile::tempdir().unwrap();
    let oldest = segment_files(&log.path()).remove(0);
    let kept = moved.path().join(oldest.file_name().unwrap());
    fs::rename(&oldest, &kept).unwrap();
    eventually(async || get().await.status, |seen| *seen == 200).await;
    gateway.drain().await;
    fs::rename(&kept, &oldest).unwrap();
    let report = check(&log.path());
    assert!(report.missing.is_empty(), "{report:?}");
    assert!(report.unknown.is_empty(), "a call whose end could not be written is no unknown one");
    assert!(!log.of("resumed").is_empty());
    let completed = log.of("completed");
    assert!(completed.iter().filter(|r| r["outcome"] == "ok").count() > served);
}

#[tokio::test]
async fn d2_where_that_is_wanted_calls_go_on_and_what_is_missing_is_counted() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = log.table()
        + "keep_size = \"96KiB\"\non_full = \"refuse\"\non_failure = \"degrade\"\nbuffer = \"64KiB\"\n"
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    // More than fits once its segments are compressed.
    const CALLS: u64 = 2_500;
    for _ in 0..CALLS {
        gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    }
    let moved = tempfile::tempdir().unwrap();
    let move_closed = || {
        let mut closed = segment_files(&log.path());
        closed.pop();
        for file in closed {
            // It may be compressed at this moment.
            drop(fs::rename(&file, moved.path().join(file.file_name().unwrap())));
        }
        // Its segment may have been moved away, too.
        let all = [log.records(), records(moved.path())].concat();
        all.iter().filter(|record| record["event"] == "gap").count()
    };
    eventually(async || move_closed(), |gaps| *gaps > 0).await;
    gateway.drain().await;
    for entry in fs::read_dir(moved.path()).unwrap() {
        let entry = entry.unwrap();
        fs::rename(entry.path(), log.path().join(entry.file_name())).unwrap();
    }
    let report = check(&log.path());
    let missing: u64 = report.missing.iter().map(|range| range.end() - range.start() + 1).sum();
    let of_calls = (log.of("received").len() + log.of("completed").len()) as u64;
    assert!(missing > 0);
    assert_eq!(missing + of_calls, 2 * CALLS, "every record is there or counted");
}

#[tokio::test]
async fn f14_a_damaged_segment_keeps_old_ones_and_refuses_no_call() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = log.table() + "keep_size = \"64KiB\"\n" + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let get = async || gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    let second = log.path().join("audit-00000002.jsonl.gz");
    // Its plain file is removed once it is compressed.
    while !second.exists() || second.with_extension("").exists() {
        get().await;
    }
    fs::write(&second, "damaged\n").unwrap();
    let oldest = || number(&segment_files(&log.path())[0]);
    while stored(&log.path()) < 80 << 10 {
        get().await;
        assert_eq!(oldest(), "audit-00000001", "what cannot be told apart stays");
    }
}

#[tokio::test]
async fn a_log_with_a_size_goes_on_for_ever_within_it_and_stays_intact() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = log.table() + "keep_size = \"64KiB\"\n" + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let get = async || gateway.client().modern("prompts/get", json!({"name": "up__p"})).await;
    let largest = AtomicU64::new(0);
    let go_on = async || {
        for _ in 0..50 {
            assert_eq!(get().await.status, 200);
            largest.fetch_max(stored(&log.path()), Ordering::Relaxed);
        }
        log.of("segment_removed").len()
    };
    eventually(go_on, |removed| *removed > 2).await;
    let largest = largest.into_inner();
    assert!(largest <= 80 << 10, "at most a group of records too much: {largest}");
    gateway.drain().await;
    assert!(stored(&log.path()) <= 64 << 10, "{}", stored(&log.path()));
    let report = check(&log.path());
    assert!(report.first > 1 && report.removed == report.first - 1, "{report:?}");
    let removed = log.of("segment_removed").pop().unwrap();
    assert_eq!(removed["last_seq"], report.removed);
    let count = report.removed + 1 - removed["first_seq"].as_u64().unwrap();
    assert_eq!(removed["count"], count);
    assert_eq!(removed["lines"].as_str().unwrap().len(), 64);
}

#[tokio::test]
async fn the_gateway_verifies_its_log_by_itself_and_tells_what_is_not_intact_until_it_is() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = log.table()
        + "segment_size = \"4KiB\"\nverify_every = \"50ms\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let page = async |path: &str| {
        let reply = gateway.admin().send("GET", path, &[], b"").await;
        String::from_utf8(reply.body).unwrap()
    };
    let metrics = async || page("/metrics").await;
    let status = async || {
        let status: Value = serde_json::from_str(&page("/api/v1/status").await).unwrap();
        status["auditVerified"].clone()
    };
    let verified = eventually(&status, |verified| verified["records"].as_u64() > Some(0)).await;
    assert_eq!(verified["problems"], json!([]));
    assert!(metrics().await.contains("promptgate_audit_verified_intact 1"));
    let get = async || {
        gateway.client().modern("prompts/get", json!({"name": "up__p"})).await;
        segment_files(&log.path())
    };
    let is_closed = |file: &PathBuf| file.extension().is_some_and(|e| e == "gz");
    let files = eventually(get, |files| files.iter().take(2).all(is_closed)).await;

    // The oldest segment is taken away, and found to be missing for as long as it is.
    let oldest = log.folder.path().join("oldest");
    fs::rename(&files[0], &oldest).unwrap();
    let is_missing = |verified: &Value| verified["problems"][0].to_string().contains("are missing");
    let first = eventually(&status, is_missing).await["at"].clone();
    eventually(&status, |verified| is_missing(verified) && verified["at"] != first).await;
    assert!(metrics().await.contains("promptgate_audit_verified_intact 0"));
    let overview = page("/overview").await;
    assert!(overview.contains("The audit log is not intact: "), "{overview}");
    fs::rename(&oldest, &files[0]).unwrap();
    eventually(&status, |verified| verified["problems"] == json!([])).await;
    let verified = async || log.of("verified");
    let is_last = |records: &Vec<Value>| {
        records.last().is_some_and(|record| record["outcome"] == "intact")
            && records.iter().any(|record| record["outcome"] == "not_intact")
    };
    eventually(verified, is_last).await;
}

/// Fails in a way that nobody has thought of.
struct Broken;

impl Rights for Broken {
    fn entitlement(&self, _: &Caller) -> Option<Arc<str>> {
        None
    }

    fn allows(&self, _: &Caller, _: Method, prompt: PromptRef<'_>) -> bool {
        // Not a panic of its own: nobody needs to be told.
        if prompt.raw_name == "cursed" {
            std::panic::resume_unwind(Box::new("broken"));
        }
        true
    }
}

#[tokio::test]
async fn d10_a_call_that_panics_is_on_record_and_takes_nothing_else_with_it() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p", "cursed"]).await;
    let layer = SessionLayer::with_rights(&(log.table() + &upstream.table("up")), Arc::new(Broken));
    let get = async |name: &str| layer.call("ann", "prompts/get", json!({"name": name})).await;
    assert_eq!(get("up__cursed").await.unwrap_err(), Fault::Internal);
    assert!(get("up__p").await.is_ok());
    let panic = log.wait_for("panic").await;
    assert!(panic["seq"].is_number());
    let outcomes: Vec<_> = log.of("completed").iter().map(|r| r["outcome"].clone()).collect();
    assert_eq!(outcomes, ["internal", "ok"]);
}

/// The digest of the result as it came, by another library than the gateway's.
fn result_digest(reply: &Reply) -> String {
    let body = str::from_utf8(&reply.body).unwrap();
    let (_, result) = body.split_once(r#""result":"#).unwrap();
    let digest = digest(&SHA256, result.strip_suffix('}').unwrap().as_bytes());
    digest_text(digest.as_ref().try_into().unwrap())
}

#[tokio::test]
async fn the_log_has_the_digest_of_what_each_client_got_however_often_it_comes() {
    let log = Log::new();
    let texts = Mutex::new(["a", "a", "a", "b", "a"].into_iter().cycle());
    let upstream = Upstream::modern(move |asked| {
        let text = |text: &str| asked.content(json!({"type": "text", "text": text.repeat(9_000)}));
        (asked.method() == "prompts/get").then(|| text(texts.lock().unwrap().next().unwrap()))
    })
    .await;
    let gateway = Gateway::start(&format!("{}{}", log.table(), upstream.table("up"))).await;
    let legacy = gateway.client().legacy("2025-06-18").await;
    let modern = gateway.client();
    let (get, mut digests) = (json!({"name": "up__p"}), Vec::new());
    for is_modern in [true, true, false, false, true, true, true, false] {
        let reply = match is_modern {
            true => modern.modern("prompts/get", get.clone()).await,
            false => legacy.post(&request(1, "prompts/get", get.clone())).await,
        };
        digests.push(result_digest(&reply));
    }
    gateway.drain().await;
    let completed = log.of("completed");
    let recorded: Vec<_> =
        completed.iter().filter_map(|record| record["result"].as_str()).collect();
    assert_eq!(recorded, digests);
}
