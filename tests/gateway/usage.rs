//! Usage equals the calls that were sent: by the index, by the log alone, and record by record.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::audit::Log;
use crate::skills::{self, file, skill};
use crate::support::gateway::api_key;
use crate::support::process::BINARY;
use crate::support::{Gateway, Upstream, eventually};

/// A value that no command may show.
const SECRET: &str = "hunter2-in-an-argument";

pub struct Terminal(tempfile::TempDir);

impl Terminal {
    pub fn new(toml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("gateway.toml"), toml).unwrap();
        Self(folder)
    }

    pub fn run(&self, args: &[&str]) -> String {
        let output = std::process::Command::new(BINARY)
            .args(args)
            .current_dir(self.0.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn usage(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[&["usage", "--json"], args].concat())).unwrap()
    }

    /// Key, uses, failures and denied of each row.
    pub fn rows(&self, args: &[&str]) -> Vec<(String, u64, u64, u64)> {
        let report = self.usage(args);
        let row = |row: &Value| {
            let count = |member: &str| row[member].as_u64().unwrap();
            let key = row["key"].as_str().unwrap().to_owned();
            (key, count("uses"), count("failures"), count("denied"))
        };
        report["rows"].as_array().unwrap().iter().map(row).collect()
    }

    pub fn found(&self, args: &[&str]) -> Vec<Value> {
        let lines = self.run(&[&["audit", "find", "--json"], args].concat());
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn row(key: &str, uses: u64, failures: u64, denied: u64) -> (String, u64, u64, u64) {
    (key.to_owned(), uses, failures, denied)
}

#[test]
fn where_there_is_neither_index_nor_log_both_paths_are_named() {
    let terminal = Terminal::new("[upstreams.up]\ntransport = \"library\"\npath = \".\"\n");
    for (args, paths) in [
        (&["usage"][..], &["usage/usage.db", "no audit log at audit"][..]),
        (&["usage", "--unused", "--json"], &["usage/usage.db", "no audit log at audit"]),
        (&["audit", "find"], &["cannot read audit"]),
    ] {
        let output = std::process::Command::new(BINARY)
            .args(args)
            .current_dir(terminal.0.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(paths.iter().all(|path| said.contains(path)), "{said}");
    }
}

#[tokio::test]
async fn the_terminal_shows_what_two_callers_sent() {
    let log = Log::new();
    let upstream = Upstream::modern(|asked| {
        let fails = asked.message["params"]["arguments"]["fail"].is_string();
        fails.then(|| asked.error(-32603, "no"))
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("usage");
    let key = |id: &str, group: &str| api_key(id, id) + &format!("groups = [\"{group}\"]\n");
    let toml = log.table()
        + "raw_arguments = [\"up__*\"]\n"
        + &format!("[admin]\nlisten = \"127.0.0.1:0\"\n[admin.usage]\npath = {index:?}\n")
        + &key("alice", "sales")
        + &key("bob", "engineering")
        + "[[access.rules]]\nallow = [\"list\", \"get\"]\n"
        + "[[access.rules]]\ndeny = [\"get\"]\ngroups = [\"sales\"]\nprompts = [\"q\"]\n"
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let terminal = Terminal::new(&toml);
    let (alice, bob) =
        (gateway.client().with("X-API-Key", "alice"), gateway.client().with("X-API-Key", "bob"));
    for _ in 0..3 {
        let params = json!({"name": "up__p", "arguments": {"code": SECRET}});
        alice.ask("prompts/get", params).await;
    }
    bob.ask("prompts/get", json!({"name": "up__p"})).await;
    bob.ask_error("prompts/get", json!({"name": "up__p", "arguments": {"fail": "1"}})).await;
    bob.ask_error("prompts/get", json!({"name": "up__nothing-of-this-name"})).await;

    let by_prompt = [row("up__p", 5, 1, 0)];
    let by_caller = [row("alice", 3, 0, 0), row("bob", 2, 1, 1)];
    let by_group = [row("sales", 3, 0, 0), row("engineering", 2, 1, 1)];
    let check = || {
        assert_eq!(terminal.rows(&[]), by_prompt);
        assert_eq!(terminal.rows(&["--by", "caller"]), by_caller);
        let mut groups = terminal.rows(&["--by", "group"]);
        groups.sort_by_key(|row| std::cmp::Reverse(row.1));
        assert_eq!(groups, by_group);
        assert_eq!(terminal.rows(&["--caller", "alice"]), [row("up__p", 3, 0, 0)]);
        assert_eq!(terminal.rows(&["--by", "upstream", "--since", "30d"]), [row("up", 5, 1, 0)]);
        assert_eq!(terminal.rows(&["--by", "view"]), [row("/mcp", 5, 1, 1)]);
        for by in ["prompt", "caller", "upstream"] {
            let shown = terminal.usage(&["--by", by, "--since", "30d"]);
            assert!(shown["rows"][0]["p95Ms"].as_f64().unwrap() > 0.0, "{by}");
        }
    };
    // From the log alone, or from an index that is behind.
    check();
    gateway.drain().await;
    assert!(index.join("usage.db").exists());
    check();
    fs::remove_dir_all(&index).unwrap();
    check();

    let table = terminal.run(&["usage"]);
    assert!(table.starts_with("PROMPT  UPSTREAM  USES"), "{table}");
    let csv = terminal.run(&["usage", "--by", "caller", "--csv"]);
    let names =
        "caller,upstream,uses,before,failures,denied,limited,mean_ms,p50_ms,p95_ms,last,kind";
    assert_eq!(csv.lines().next(), Some(names));
    assert!(csv.contains("\nalice,,3,0,"), "{csv}");
    let report = terminal.usage(&[]);
    assert_eq!(report["series"].as_array().unwrap().len(), 1);
    assert!(report["rows"][0]["last"].as_str().unwrap().ends_with('Z'));
    assert_eq!(terminal.usage(&["--unused"])["unused"], json!([]));

    let calls = terminal.found(&["--event", "call"]);
    let methods: Vec<_> = calls.iter().map(|call| call["outcome"].as_str().unwrap()).collect();
    assert_eq!(methods, ["ok", "ok", "ok", "ok", "upstream_error", "unknown_prompt"]);
    assert_eq!(terminal.found(&["--caller", "alice"]).len(), 3);
    let failed = terminal.found(&["--outcome", "upstream_error"]);
    assert_eq!(failed.len(), 1);
    assert_eq!((&failed[0]["caller"], &failed[0]["name"]), (&json!("bob"), &json!("up__p")));
    assert!(failed[0]["durationUs"].is_u64() && failed[0]["upstream"] == "up");
    assert_eq!(failed[0]["members"]["groups"], json!(["engineering"]));
    assert_eq!(terminal.found(&["--prompt", "p", "--limit", "2"]).len(), 2);
    assert!(terminal.found(&["--until", "1h"]).is_empty());

    // The log has the value, as configured; the commands do not show it, and find nothing by it.
    assert!(log.text().contains(SECRET));
    for args in [&["audit", "find"][..], &["audit", "find", "--json"], &["usage", "--json"]] {
        assert!(!terminal.run(args).contains(SECRET), "{args:?}");
    }
    assert!(terminal.found(&["--text", SECRET]).is_empty());
    assert_eq!(terminal.found(&["--text", "nothing-of-this"]).len(), 1);
}

#[tokio::test]
async fn reading_a_skill_is_a_use_by_the_index_and_by_the_log_alone() {
    let log = Log::new();
    let refunds = ("SKILL.md", "Refund it.");
    let inner = ("inner/SKILL.md", "Another.");
    let skills = json!([skill("skill://acme/refunds", &[refunds, inner])]);
    let reads = AtomicUsize::new(0);
    let crm = skills::upstream(skills, move |asked| {
        if asked.message["params"]["uri"].as_str().unwrap().contains("inner") {
            return file(asked, inner.1);
        }
        match reads.fetch_add(1, Ordering::SeqCst) {
            1 => asked.error(-32603, "no"),
            _ => file(asked, refunds.1),
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("usage");
    let toml = log.table()
        + &format!("[admin]\nlisten = \"127.0.0.1:0\"\n[admin.usage]\npath = {index:?}\n")
        + &(api_key("alice", "alice") + &api_key("bob", "bob"))
        + "[[access.rules]]\nallow = [\"list\", \"get\"]\ncallers = [\"alice\"]\n"
        + &crm.table("crm")
        + "expose_skills = [\"prompts\"]\n";
    let gateway = Gateway::start(&toml).await;
    let terminal = Terminal::new(&toml);
    let (alice, bob) =
        (gateway.client().with("X-API-Key", "alice"), gateway.client().with("X-API-Key", "bob"));
    let own = "skill://crm/acme/refunds/SKILL.md";
    let nested = "skill://crm/acme/refunds/inner/SKILL.md";
    for uri in [own, nested] {
        alice.ask("resources/read", json!({"uri": uri})).await;
    }
    alice.ask_error("resources/read", json!({"uri": own})).await;
    alice.ask("prompts/get", json!({"name": "crm__refunds"})).await;
    alice.ask("skills/get", json!({"uri": own})).await;
    alice.ask_error("resources/read", json!({"uri": "skill://crm/none/SKILL.md"})).await;
    bob.ask_error("resources/read", json!({"uri": own})).await;
    bob.ask_error("prompts/get", json!({"name": "crm__refunds"})).await;

    let check = || {
        assert_eq!(terminal.rows(&[]), [row(own, 3, 1, 2)]);
        let by_caller = [row("alice", 3, 1, 1), row("bob", 0, 0, 2)];
        assert_eq!(terminal.rows(&["--by", "caller"]), by_caller);
        assert_eq!(terminal.rows(&["--prompt", own, "--by", "caller"])[0], row("alice", 3, 1, 0));
        assert_eq!(terminal.rows(&["--since", "30d"]), [row(own, 3, 1, 2)]);
        assert_eq!(terminal.usage(&[])["rows"][0]["kind"], "skill");
    };
    check();
    gateway.drain().await;
    check();
    fs::remove_dir_all(&index).unwrap();
    check();
    let table = terminal.run(&["usage"]);
    assert!(table.lines().next().unwrap().ends_with("KIND"), "{table}");
    assert!(table.lines().nth(1).unwrap().ends_with("skill"), "{table}");
    let csv = terminal.run(&["usage", "--csv"]);
    assert!(csv.lines().nth(1).unwrap().ends_with(",skill"), "{csv}");
}

#[tokio::test]
async fn the_index_is_written_while_the_gateway_serves_and_moves_with_its_configuration() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let folder = tempfile::tempdir().unwrap();
    let toml = |name: &str| {
        let path = folder.path().join(name);
        let admin = format!("[admin]\nlisten = \"127.0.0.1:0\"\n[admin.usage]\npath = {path:?}\n");
        log.table() + &admin + &upstream.table("up")
    };
    let gateway = Gateway::start(&toml("one")).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    let exists = |name: &str| folder.path().join(name).join("lock").exists();
    eventually(async || exists("one"), |exists| *exists).await;
    gateway.reload(&toml("two")).await;
    eventually(async || exists("two"), |exists| *exists).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    gateway.drain().await;
    let terminal = Terminal::new(&toml("two"));
    assert_eq!(terminal.rows(&[]), [row("up__p", 2, 0, 0)]);
}

#[tokio::test]
async fn a_log_that_is_followed_shows_calls_once_they_have_ended() {
    let log = Log::new();
    let upstream = Upstream::modern(|_| None).await;
    let toml = log.table() + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let terminal = Terminal::new(&toml);
    let get = |fail: &str| json!({"name": "up__p", "arguments": {"fail": fail}});
    gateway.client().ask("prompts/get", get("before")).await;
    let mut command = tokio::process::Command::new(BINARY)
        .args(["audit", "find", "--follow", "--json", "--event", "call"])
        .current_dir(terminal.0.path())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(command.stdout.take().unwrap()).lines();
    let mut next = async || -> Value {
        let line = lines.next_line().await.unwrap().expect("the command goes on");
        serde_json::from_str(&line).unwrap()
    };
    assert_eq!(next().await["call"], 1, "what was recorded before");
    gateway.client().ask("prompts/get", get("after")).await;
    let entry = next().await;
    assert_eq!((&entry["call"], &entry["outcome"]), (&json!(2), &json!("ok")));
    assert!(!entry.to_string().contains("after"), "{entry}");
}
