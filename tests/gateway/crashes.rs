//! The audit log of the real binary through kills, full disks, and logs that nobody reads.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use audit::keys::Keys;
use base::seal::AuditKey;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::audit::{KEY, check, records, segment_files};
use crate::support::process::{BINARY, run};
use crate::support::{Client, PATIENCE, Process, Upstream, eventually};

/// A folder with a configuration whose log is in `audit`.
fn folder(audit: &str, rest: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("[audit]\nkey = {{ value = \"{KEY}\" }}\n{audit}{rest}");
    fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    folder
}

/// Rounds of the kill loop; more by the environment.
fn rounds() -> usize {
    let rounds = std::env::var("PROMPTGATE_KILL_ROUNDS").ok();
    rounds.map_or(3, |rounds| rounds.parse().expect("PROMPTGATE_KILL_ROUNDS is a number"))
}

const CLIENTS: usize = 200;

/// Calls until the gateway is gone, and notes each call that was answered.
async fn load(client: Client, name: String, acknowledged: watch::Sender<Vec<String>>) {
    for n in 0.. {
        let ticket = format!("{name}-{n}");
        let params = json!({"name": "up__p", "arguments": {"ticket": ticket}});
        let Some(reply) = client.try_modern("prompts/get", params).await else {
            return;
        };
        // An answer that broke off is none.
        let answer: Option<Value> = serde_json::from_slice(&reply.body).ok();
        if answer.is_some_and(|answer| answer.get("result").is_some()) {
            acknowledged.send_modify(|tickets| tickets.push(ticket));
        }
    }
}

fn tickets(records: &[Value]) -> HashSet<String> {
    let ticket = |r: &Value| Some(r["arguments"]["ticket"]["value"].as_str()?.to_owned());
    records.iter().filter_map(ticket).collect()
}

/// The tickets of calls whose end is on record.
fn completed(records: &[Value]) -> HashSet<String> {
    let ends: HashSet<_> = records
        .iter()
        .filter(|r| r["event"] == "completed" && r["outcome"] == "ok")
        .map(|r| (r["boot"].to_string(), r["call"].as_u64()))
        .collect();
    let ended: Vec<_> = records
        .iter()
        .filter(|r| ends.contains(&(r["boot"].to_string(), r["call"].as_u64())))
        .cloned()
        .collect();
    tickets(&ended)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_d5_whenever_it_is_killed_what_was_answered_or_asked_is_on_record() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = seen.clone();
    let upstream = Upstream::modern(move |asked| {
        if let Some(ticket) = asked.message["params"]["arguments"]["ticket"].as_str() {
            noted.lock().unwrap().push(ticket.to_owned());
        }
        None
    })
    .await;
    // Rotation, compression and checkpoints all the time.
    let settings = "raw_arguments = [\"*\"]\nsegment_size = \"16KiB\"\n\
        checkpoint = { records = 50 }\n";
    let folder = folder(settings, &upstream.patient_table("up"));
    let path = folder.path().join("audit");
    let acknowledged = watch::Sender::new(Vec::new());
    for round in 0..rounds() {
        let process = Process::serve(folder.path()).await;
        process.client().ask("prompts/list", json!({})).await;
        let mut clients = JoinSet::new();
        for i in 0..CLIENTS {
            let name = format!("{round}-{i}");
            clients.spawn(load(process.client(), name, acknowledged.clone()));
        }
        // Killed after a number of calls that differs in each round; reloaded by signals in
        // between.
        let before = acknowledged.borrow().len();
        let more = 30 + (round * 37) % 300;
        for least in (20..more).step_by(20).chain([more]) {
            let mut counted = acknowledged.subscribe();
            let reached = counted.wait_for(|tickets| tickets.len() - before >= least);
            timeout(PATIENCE, reached).await.expect("calls are answered").unwrap();
            process.signal(Signal::HUP);
        }
        process.kill().await;
        while clients.join_next().await.is_some() {}
        check(&path);
    }
    // One more start puts aside what was half written.
    let process = Process::serve(folder.path()).await;
    process.stop().await;
    let report = check(&path);
    assert!(report.missing.is_empty(), "{report:?}");
    let on_record = records(&path);
    let (received, ended) = (tickets(&on_record), completed(&on_record));
    let acknowledged = acknowledged.borrow();
    assert!(acknowledged.len() > 20 * rounds(), "there was some load: {}", acknowledged.len());
    let lost: Vec<_> = acknowledged.iter().filter(|ticket| !ended.contains(*ticket)).collect();
    assert!(lost.is_empty(), "answered without a record: {lost:?}");
    let unseen: Vec<_> =
        seen.lock().unwrap().iter().filter(|t| !received.contains(*t)).cloned().collect();
    assert!(unseen.is_empty(), "asked without a record: {unseen:?}");
    assert!(report.segments > 2 * rounds(), "it was rotated: {}", report.segments);
    println!(
        "{} rounds: {} calls answered, {} records in {} segments, {} outcomes unknown",
        rounds(),
        acknowledged.len(),
        report.records,
        report.segments,
        report.unknown.len()
    );
}

/// Lets the process write no file beyond this size; nothing lifts that again.
fn limit_files(process: &Process, bytes: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(process.pid()).unwrap());
    prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

#[tokio::test]
async fn d2_when_the_system_takes_no_bytes_calls_are_refused_and_then_served_again() {
    for durability in ["interval", "strict"] {
        let upstream = Upstream::with_prompts(&["p"]).await;
        let settings = format!("durability = \"{durability}\"\nsync = \"50ms\"\n");
        let folder = folder(&settings, &upstream.table("up"));
        let path = folder.path().join("audit");
        let process = Process::serve(folder.path()).await;
        let get = async || process.client().modern("prompts/get", json!({"name": "up__p"})).await;
        assert_eq!(get().await.status, 200);
        limit_files(&process, Some(0));
        let refused = get().await;
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(refused.json()["error"]["data"]["reason"], "audit_unavailable");
        assert_eq!(upstream.gets().len(), 1);
        // Requests that are no calls are still answered.
        process.client().ask("server/discover", json!({})).await;
        limit_files(&process, None);
        eventually(async || get().await.status, |seen| *seen == 200).await;
        process.stop().await;
        let report = check(&path);
        assert!(report.missing.is_empty() && report.unknown.is_empty(), "{report:?}");
        let resumed = records(&path).into_iter().find(|r| r["event"] == "resumed").unwrap();
        assert!(resumed["after"].as_str().unwrap().contains("too large"), "{resumed}");
    }
}

#[tokio::test]
async fn a_log_that_is_taken_away_goes_on_in_another_segment_and_is_missed() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let folder = folder("", &upstream.table("up"));
    let path = folder.path().join("audit");
    let process = Process::serve(folder.path()).await;
    process.client().ask("prompts/get", json!({"name": "up__p"})).await;
    let segment = |number: u8| format!("audit-0000000{number}.jsonl");
    let is_there = |number| path.join(segment(number)).exists();
    for number in [1, 2] {
        fs::rename(path.join(segment(number)), folder.path().join(segment(number))).unwrap();
        eventually(async || is_there(number + 1), |seen| *seen).await;
    }
    process.client().ask("prompts/get", json!({"name": "up__p"})).await;
    process.stop().await;
    let verify = run(folder.path(), &["audit", "verify"]);
    assert_eq!(verify.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&verify.stdout).contains("WRONG record 1: the records 1 to"));
    for number in [1, 2] {
        fs::rename(folder.path().join(segment(number)), path.join(segment(number))).unwrap();
    }
    check(&path);
    assert!(records(&path).iter().any(|record| record["event"] == "segment_lost"));
}

#[tokio::test]
async fn ten_signals_to_reload_make_no_segment_and_forget_nothing() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let folder = folder("keep_size = \"128KiB\"\n", &upstream.table("up"));
    let path = folder.path().join("audit");
    let process = Process::serve(folder.path()).await;
    for _ in 0..10 {
        process.client().ask("prompts/get", json!({"name": "up__p"})).await;
        process.signal(Signal::HUP);
    }
    process.stop().await;
    assert_eq!(segment_files(&path).len(), 1);
    let gets = records(&path).iter().filter(|record| record["event"] == "completed").count();
    assert_eq!(gets, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_busy_gateway_is_intact_and_a_gateway_goes_on_from_it() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let settings = "segment_size = \"16KiB\"\ncheckpoint = { records = 20 }\n";
    let folder = folder(settings, &upstream.table("up"));
    let process = Process::serve(folder.path()).await;
    let acknowledged = watch::Sender::new(Vec::new());
    let mut clients = JoinSet::new();
    for i in 0..4 {
        clients.spawn(load(process.client(), i.to_string(), acknowledged.clone()));
    }
    let mut counted = acknowledged.subscribe();
    let backup = tempfile::tempdir().unwrap();
    for round in 1..=3 {
        let reached = counted.wait_for(|tickets| tickets.len() >= round * 60);
        timeout(PATIENCE, reached).await.expect("calls are answered").unwrap();
        // In the order of operating.md: first the checkpoints, then the log.
        let kept = backup.path().join("checkpoints.jsonl");
        fs::copy(folder.path().join("audit/checkpoints.jsonl"), &kept).unwrap();
        let copy = backup.path().join("audit");
        fs::create_dir_all(&copy).unwrap();
        // A file that is compressed meanwhile is copied the second time.
        for _ in 0..2 {
            for file in segment_files(&folder.path().join("audit")) {
                drop(fs::copy(&file, copy.join(file.file_name().unwrap())));
            }
        }
        let paths = [copy.to_str().unwrap(), "--checkpoints", kept.to_str().unwrap()];
        let verify = run(folder.path(), &[&["audit", "verify"], &paths[..]].concat());
        let said = String::from_utf8_lossy(&verify.stdout);
        assert_eq!(verify.status.code(), Some(0), "{said}");
    }
    process.kill().await;
    while clients.join_next().await.is_some() {}
    let last = check(&backup.path().join("audit")).last;
    fs::copy(folder.path().join("gateway.toml"), backup.path().join("gateway.toml")).unwrap();
    let process = Process::serve(backup.path()).await;
    process.client().ask("prompts/get", json!({"name": "up__p"})).await;
    process.stop().await;
    assert!(check(&backup.path().join("audit")).last > last);
}

#[tokio::test]
async fn d4_a_log_of_its_own_that_nobody_reads_stops_no_call() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    // Each session is a line on standard error, which nobody reads.
    let log = "[telemetry]\nlog = \"debug\"\nlog_format = \"json\"\n";
    let folder = folder("", &(log.to_owned() + &upstream.table("up")));
    let mut process = Process::serve_with(folder.path(), Stdio::piped()).await;
    let client = process.client();
    client.open_sessions(1_000).await;
    client.ask("prompts/get", json!({"name": "up__p"})).await;
    let mut said = Vec::new();
    let mut stderr = process.child.stderr.take().unwrap();
    let reading = tokio::spawn(async move {
        let _ = stderr.read_to_end(&mut said).await;
        said
    });
    process.stop().await;
    let said = reading.await.unwrap();
    assert!(said.len() > 100 << 10, "more than a pipe holds: {}", said.len());
    check(&folder.path().join("audit"));
}

/// The output of a command for this input.
async fn with_input(folder: &Path, arguments: &[&str], input: &[u8]) -> String {
    let mut child = tokio::process::Command::new(BINARY)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).await.unwrap();
    let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn d6_d7_a_person_checks_a_log_and_finds_a_value_in_it() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let folder = folder("", &upstream.table("up"));
    let process = Process::serve(folder.path()).await;
    let params = json!({"name": "up__p", "arguments": {"who": "Ada"}});
    process.client().ask("prompts/get", params).await;
    process.stop().await;

    let hash = with_input(folder.path(), &["audit", "hash"], b"Ada\n").await;
    let digest = hash.split(' ').next().unwrap();
    let found = records(&folder.path().join("audit"));
    let get = found.iter().find(|r| r["arguments"]["who"].is_object()).unwrap();
    assert_eq!(get["arguments"]["who"]["hmac"], digest);
    assert!(hash.contains(get["digest_key"].as_str().unwrap()));

    let verify = |arguments: &[&str]| {
        let output = run(folder.path(), &[&["audit", "verify"], arguments].concat());
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), said + &String::from_utf8_lossy(&output.stderr))
    };
    let (code, said) = verify(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("audit: records 1 to ") && said.ends_with("intact\n"), "{said}");
    let public = said.lines().find_map(|line| line.strip_prefix("public key: ")).unwrap();
    fs::copy(folder.path().join("audit/checkpoints.jsonl"), folder.path().join("kept")).unwrap();
    let kept = ["--checkpoints", "kept"];
    assert_eq!(verify(&kept).0, Some(0));
    let (code, said) = verify(&["audit", "--public-key", public]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(" are intact, as signed") && said.contains("only the order"), "{said}");
    assert!(!said.ends_with("\nintact\n"), "what was not checked is not called intact: {said}");

    // Cut at a record, nothing in the log tells; what was kept elsewhere does.
    let segment = folder.path().join("audit/audit-00000001.jsonl");
    let text = fs::read_to_string(&segment).unwrap();
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    fs::write(&segment, lines[..3].concat()).unwrap();
    assert_eq!(verify(&[]).0, Some(0));
    let (code, said) = verify(&kept);
    assert_eq!(code, Some(1));
    assert!(said.contains("WRONG record 3: the log ends at record 2"), "{said}");
    // An edit is found.
    fs::write(&segment, text.replacen("up__p", "up__q", 1)).unwrap();
    let (code, said) = verify(&[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("is not intact") && said.contains("NOT INTACT"), "{said}");
    // Also without the secret, where nothing but the text of a record differs (f13).
    let (code, said) = verify(&["audit", "--public-key", public]);
    assert_eq!(code, Some(1));
    assert!(said.contains("is not the one that this checkpoint has signed"), "{said}");
    let wrong = run(folder.path(), &["audit", "verify", "--public-key", "x"]);
    assert_eq!(wrong.status.code(), Some(64));
}

#[test]
fn f17_a_folder_without_a_log_is_no_intact_log() {
    let folder = folder("", "");
    fs::create_dir(folder.path().join("empty")).unwrap();
    fs::create_dir(folder.path().join("audit")).unwrap();
    fs::write(folder.path().join("audit/audit-00000001.jsonl"), "").unwrap();
    let public = Keys::new(&AuditKey::parse(super::audit::KEY).unwrap()).public().to_string();
    let of_an_auditor = ["empty", "--public-key", public.as_str()];
    for arguments in [&["empty"][..], &["nowhere"], &["audit"], &of_an_auditor] {
        let command = [&["audit", "verify"], arguments].concat();
        let output = run(folder.path(), &command);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!said.contains("\nintact") && !said.contains("are intact"), "{said}");
    }
}

#[tokio::test]
async fn f23_two_gateways_that_clients_start_keep_a_log_each() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let folder = folder("", &upstream.table("up"));
    let start = || {
        tokio::process::Command::new(BINARY)
            .args(["serve", "--stdio"])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    };
    let mut one = start();
    eventually(async || folder.path().join("audit/audit-00000001.jsonl").exists(), |seen| *seen)
        .await;
    let mut two = start();
    eventually(async || folder.path().join("audit-2/audit-00000001.jsonl").exists(), |seen| *seen)
        .await;
    for child in [&mut one, &mut two] {
        drop(child.stdin.take());
        let ended = timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap();
        assert!(ended.success());
    }
    check(&folder.path().join("audit"));
    check(&folder.path().join("audit-2"));
    // A gateway that listens is meant to be the only one.
    let one = Process::serve(folder.path()).await;
    // Also where somebody has removed the lock.
    fs::remove_file(folder.path().join("audit/lock")).unwrap();
    let mut second = std::process::Command::new(BINARY);
    second.env("PROMPTGATE__SERVER__LISTEN", "127.0.0.1:0");
    second.env("PROMPTGATE__ADMIN__LISTEN", "").current_dir(folder.path());
    let refused = second.output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another running gateway"));
    one.stop().await;
}
