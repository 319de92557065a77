//! The archive of the audit log, as an operator makes it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::audit::{KEY, check, records, segment_files};
use crate::support::gateway::api_key;
use crate::support::process::{command, run};
use crate::support::{Process, Upstream, eventually};

const TOKEN: (&str, &str) = ("PROMPTGATE_ADMIN_TOKEN", "a token of the admin side");

/// Writes a configuration whose log gets a new segment after a few calls.
fn configure(folder: &Path, upstream: &Upstream, keep: &str) {
    let toml = format!(
        "[audit]\nkey = {{ value = \"{KEY}\" }}\nsegment_size = \"4KiB\"\n{keep}\
         [admin]\ntoken = {{ env = \"{}\" }}\n{}",
        TOKEN.0,
        upstream.table("up")
    );
    fs::write(folder.join("gateway.toml"), toml).unwrap();
}

/// Archives, with the token; returns what was copied.
fn archive(folder: &Path) -> Value {
    let mut archiving = command(folder, &["audit", "archive", "copies", "--json"]);
    let output = archiving.env(TOKEN.0, TOKEN.1).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The exit code and the report of `audit verify`.
fn verify(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(folder, &[&["audit", "verify"], arguments].concat());
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

fn assert_all_intact(folder: &Path) {
    for arguments in [&[][..], &["copies"], &["--archive", "copies"]] {
        let (code, text) = verify(folder, arguments);
        assert_eq!((code, text.lines().last()), (Some(0), Some("intact")), "{arguments:?}: {text}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_running_gateway_records_what_is_archived_and_all_stays_intact() {
    let folder = tempfile::tempdir().unwrap();
    let (path, log) = (folder.path(), folder.path().join("audit"));
    let upstream = Upstream::with_prompts(&["p"]).await;
    configure(path, &upstream, "keep_size = \"64KiB\"\n");
    let (process, _) = Process::serve_admin(path, &[TOKEN]).await;
    let client = process.client();
    let get = async || client.modern("prompts/get", json!({"name": "up__p"})).await;
    let closed = async || {
        assert_eq!(get().await.status, 200);
        segment_files(&log).len()
    };
    eventually(closed, |segments| *segments > 4).await;

    let copied = archive(path);
    let count = copied["copied"].as_array().unwrap().len();
    assert!(count > 2, "{copied}");
    let archived = || -> Vec<Value> {
        records(&log).into_iter().filter(|record| record["event"] == "segment_archived").collect()
    };
    assert_eq!(archived().len(), count);
    let record = &archived()[0];
    assert_eq!(
        (&record["name"], &record["first_seq"]),
        (&json!("audit-00000001.jsonl"), &json!(1))
    );
    assert_eq!(
        (&record["folder"], record["sha256"].as_str().unwrap().len()),
        (&json!("copies"), 64)
    );
    assert_all_intact(path);

    // The segments that have left the log are in the archive.
    let leaving = async || {
        for _ in 0..50 {
            assert_eq!(get().await.status, 200);
        }
        archive(path);
        check(&log).removed
    };
    eventually(leaving, |removed| *removed > 0).await;
    process.stop().await;
    archive(path);
    assert_all_intact(path);
    let (_, text) = verify(path, &["--archive", "copies"]);
    assert!(text.starts_with("audit and copies: records 1 to "), "{text}");
    let (_, text) = verify(path, &[]);
    assert!(text.contains("have left, as audit.keep_size"), "{text}");
}

#[cfg(unix)]
#[tokio::test]
async fn the_log_of_a_stopped_gateway_is_archived_and_a_copy_that_differs_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (path, log) = (folder.path(), folder.path().join("audit"));
    let upstream = Upstream::with_prompts(&["p"]).await;
    configure(path, &upstream, "");
    let process = Process::serve_env(path, &[TOKEN]).await;
    let get = async || {
        let reply = process.client().modern("prompts/get", json!({"name": "up__p"})).await;
        (reply.status, segment_files(&log).len())
    };
    eventually(get, |(_, segments)| *segments > 2).await;
    process.stop().await;
    let count = archive(path)["copied"].as_array().unwrap().len();
    assert!(count >= 2);
    let records = records(&log);
    let ends: Vec<_> = records.iter().rev().take(2).map(|record| &record["event"]).collect();
    assert_eq!(ends, ["checkpoint", "stopped"]);
    assert_all_intact(path);
    assert_eq!(archive(path)["present"], count);

    let copy = segment_files(&path.join("copies")).remove(0);
    let name = copy.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.contains("00000001"), "{name}");
    fs::write(&copy, "other").unwrap();
    let output = run(path, &["audit", "archive", "copies"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains(&name) && errors.contains("a copy differs"), "{errors}");
    assert_eq!(fs::read_to_string(&copy).unwrap(), "other");
    assert_eq!(verify(path, &["--archive", "copies"]).0, Some(1));
}

#[tokio::test]
async fn an_archive_without_a_token_says_which_variable_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = format!(
        "[audit]\nkey = {{ value = \"{KEY}\" }}\nsegment_size = \"4KiB\"\n{}{}",
        upstream.table("up"),
        api_key("ci", "pg_ci")
    );
    fs::write(path.join("gateway.toml"), toml).unwrap();
    let (process, _) = Process::serve_admin(path, &[]).await;
    let get = async || {
        let client = process.client().with("X-API-Key", "pg_ci");
        client.ask("prompts/get", json!({"name": "up__p"})).await;
        segment_files(&path.join("audit")).len()
    };
    eventually(get, |segments| *segments > 1).await;
    let output = run(path, &["audit", "archive", "copies"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("403") && error.contains("set PROMPTGATE_ADMIN_TOKEN"), "{error}");
}

#[tokio::test]
async fn a_copy_is_on_record_only_where_it_is_that_of_a_closed_segment() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::with_prompts(&["p"]).await;
    configure(folder.path(), &upstream, "");
    let (process, admin) = Process::serve_admin(folder.path(), &[TOKEN]).await;
    let log = folder.path().join("audit");
    let get = async || {
        let reply = process.client().modern("prompts/get", json!({"name": "up__p"})).await;
        (reply.status, segment_files(&log).len())
    };
    eventually(get, |(_, segments)| *segments > 2).await;
    let token = format!("Bearer {}", TOKEN.1);
    let post = async |body: Value| {
        let headers = [("Authorization", &*token), ("Content-Type", "application/json")];
        let path = "/api/v1/audit/archived";
        let reply = admin.send("POST", path, &headers, body.to_string().as_bytes()).await;
        (reply.status, reply.json()["error"].to_string())
    };
    let claim =
        |segment: u64| json!({"segment": segment, "sha256": "00", "folder": "x", "by": "y"});
    let (status, why) = post(claim(1)).await;
    assert_eq!(status, 409, "{why}");
    assert!(why.contains("audit-00000001.jsonl differs"), "{why}");
    let (status, why) = post(claim(99_999)).await;
    assert_eq!(status, 409, "{why}");
    assert!(why.contains("no closed segment 99999"), "{why}");
    assert_eq!(post(json!({"segment": 1})).await.0, 400);
    let reply = admin.send("POST", "/api/v1/audit/archived", &[], b"{}").await;
    assert_eq!(reply.status, 401);
    assert!(!records(&log).iter().any(|record| record["event"] == "segment_archived"));
}
