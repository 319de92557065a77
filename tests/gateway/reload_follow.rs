//! A running binary reloads when the files of its configuration change (fault matrix, K2 and K4).

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::audit::Log;
use crate::support::{Client, Process, eventually};

/// A running binary with a configuration file, and a client of its admin side.
pub struct ConfiguredProcess {
    pub folder: tempfile::TempDir,
    pub process: Process,
    pub admin: Client,
}

impl ConfiguredProcess {
    pub async fn start(toml: &str) -> Self {
        Self::with(toml, &[]).await
    }

    /// The same, with these variables.
    pub async fn with(toml: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("gateway.toml"), toml).unwrap();
        let (process, admin) = Process::serve_admin(folder.path(), variables).await;
        Self { folder, process, admin }
    }

    pub fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("gateway.toml")
    }

    pub async fn reloads(&self) -> Value {
        self.admin.send("GET", "/api/v1/status", &[], b"").await.json()["reloads"].clone()
    }

    /// Waits until so many were taken over, and so many rejected.
    pub async fn has(&self, taken: u64, rejected: u64) -> Value {
        eventually(
            async || self.reloads().await,
            |reloads| reloads["applied"] == taken && reloads["rejected"] == rejected,
        )
        .await
    }

    pub async fn names(&self) -> Vec<String> {
        self.process.client().names().await.0
    }
}

fn library(folder: &Path, name: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("p.md"), format!("---\nname: {name}\n---\nHello\n")).unwrap();
}

fn library_table(id: &str, folder: &Path) -> String {
    format!("[upstreams.{id}]\ntransport = \"library\"\npath = {folder:?}\n")
}

#[cfg(unix)]
#[tokio::test]
async fn k2_what_is_wrong_with_the_file_changes_nothing_and_is_told() {
    let prompts = tempfile::tempdir().unwrap();
    library(prompts.path(), "p");
    let log = Log::new();
    let good = |id: &str| log.table() + &library_table(id, prompts.path());
    let followed = ConfiguredProcess::start(&good("one")).await;
    assert_eq!(followed.names().await, ["one__p"]);
    // Mistakes, by the watch.
    fs::write(followed.file(), good("two") + "[listing]\npage_sise = 3\ndebounce = 7\n").unwrap();
    let reloads = followed.has(0, 1).await;
    let mistakes = reloads["mistakes"].to_string();
    assert!(mistakes.contains("page_sise") && mistakes.contains("listing.debounce"), "{mistakes}");
    // Gone.
    fs::remove_file(followed.file()).unwrap();
    followed.has(0, 2).await;
    assert_eq!(followed.names().await, ["one__p"]);
    // Half of it, and no TOML.
    fs::write(followed.file(), "[upstreams.one]\ntransport = \"libr").unwrap();
    followed.has(0, 3).await;
    // A secret that is not there, by the signal.
    let secret = good("two") + "[server]\nseal_key = { file = \"nowhere\" }\n";
    fs::write(followed.file(), &secret).unwrap();
    followed.process.signal(rustix::process::Signal::HUP);
    let reloads = followed.has(0, 4).await;
    assert!(reloads["mistakes"].to_string().contains("nowhere"), "{reloads}");
    assert_eq!(followed.names().await, ["one__p"]);
    assert_eq!(log.of("config_rejected").len(), 4);
    // Once it is there, it is found without a further edit.
    fs::write(followed.folder.path().join("nowhere"), super::audit::KEY).unwrap();
    followed.has(1, 4).await;
    assert_eq!(followed.names().await, ["two__p"]);
    // And by another link.
    let other = followed.folder.path().join("other.toml");
    fs::write(&other, good("three") + "[server]\nlisten = \"127.0.0.1:9\"\n").unwrap();
    let link = followed.folder.path().join("link");
    std::os::unix::fs::symlink(&other, &link).unwrap();
    fs::rename(&link, followed.file()).unwrap();
    let reloads = followed.has(2, 4).await;
    assert_eq!(reloads["mistakes"], json!([]));
    assert_eq!(followed.names().await, ["three__p"]);
    followed.process.stop().await;
}

#[cfg(unix)]
#[tokio::test]
async fn f6_a_file_that_lost_its_end_is_rejected_and_an_explicit_removal_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    library(&folder.path().join("one"), "p");
    let open = library_table("one", &folder.path().join("one"));
    let rules = "[[access.rules]]\nallow = [\"list\"]\n";
    let followed = ConfiguredProcess::start(&(open.clone() + rules + "[end]\n")).await;
    assert_eq!(followed.names().await, ["one__p"]);
    for (rejected, cut) in [open.clone() + rules, open.clone()].iter().enumerate() {
        fs::write(followed.file(), cut).unwrap();
        let reloads = followed.has(0, rejected as u64 + 1).await;
        assert!(reloads["mistakes"].to_string().contains("[end]"), "{reloads}");
        assert_eq!(reloads["removed"], json!([]), "{reloads}");
    }
    let removed = open
        + "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\n[audit]\npath = \"\"\n[end]\n";
    fs::write(followed.file(), removed).unwrap();
    let reloads = followed.has(1, 2).await;
    assert_eq!(reloads["removed"], json!(["audit"]), "{reloads}");
    followed.process.stop().await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_is_cut_anywhere_is_held_back_until_it_is_accepted_or_has_an_end() {
    let prompts = tempfile::tempdir().unwrap();
    library(prompts.path(), "p");
    let log = Log::new();
    let open = log.table()
        + &library_table("one", prompts.path())
        + "[[access.rules]]\nallow = [\"list\", \"get\"]\n";
    let whole = open.clone() + "[[access.rules]]\ndeny = [\"list\"]\nprompts = [\"*\"]\n";
    let with = "[admin]\nwrite = true\ntoken = { value = \"t0ken\" }\n".to_owned();
    let mut followed = ConfiguredProcess::start(&(with.clone() + &whole)).await;
    followed.admin = followed.admin.with("Authorization", "Bearer t0ken");
    let none = Vec::<String>::new();
    assert_eq!(followed.names().await, none);
    // By the watch, and by the signal.
    fs::write(followed.file(), with.clone() + &open).unwrap();
    let reloads = followed.has(0, 1).await;
    let why = reloads["mistakes"].to_string();
    assert!(why.contains("access.rules.2.deny") && why.contains("reload --accept"), "{why}");
    followed.process.signal(rustix::process::Signal::HUP);
    let reloads = followed.has(0, 2).await;
    assert_eq!(followed.names().await, none);
    assert_eq!(log.of("config_rejected")[0]["held"], reloads["held"]);
    // The accepted file is the one that was seen.
    let accept = async |digest: &Value| {
        let (headers, body) =
            ([("Content-Type", "application/json")], json!({"accept": digest}).to_string());
        followed.admin.send("POST", "/api/v1/reload", &headers, body.as_bytes()).await.json()
    };
    assert!(!accept(&json!("sha256:0")).await["held"].is_null());
    assert_eq!(followed.names().await, none);
    let reloads = accept(&reloads["held"]).await;
    assert_eq!((&reloads["applied"], &reloads["held"]), (&json!(1), &Value::Null), "{reloads}");
    assert_eq!(followed.names().await, ["one__p"]);
    let requested = log.of("reload_requested");
    assert_eq!((requested.len(), &requested[1]["by"]), (2, &json!("token")), "{requested:?}");
    // A file that ends with [end] is whole.
    fs::write(followed.file(), with + &open + "[end]\n").unwrap();
    followed.has(2, 3).await;
    followed.process.stop().await;
}

#[tokio::test]
async fn k2_a_repaired_file_clears_the_mistakes_at_once() {
    let prompts = tempfile::tempdir().unwrap();
    library(prompts.path(), "p");
    let good = library_table("one", prompts.path());
    let followed = ConfiguredProcess::start(&good).await;
    let cleared = async || followed.reloads().await;
    // Back to what is in use: nothing is applied, and nothing is wrong any more.
    fs::write(followed.file(), "[server]\nlisen = 1\n").unwrap();
    followed.has(0, 1).await;
    fs::write(followed.file(), &good).unwrap();
    let reloads = eventually(cleared, |reloads| reloads["mistakes"] == json!([])).await;
    assert_eq!((&reloads["applied"], &reloads["rejected"]), (&json!(0), &json!(1)));
    // To something else: it is applied.
    fs::write(followed.file(), "[server]\nlisen = 1\n").unwrap();
    followed.has(0, 2).await;
    fs::write(followed.file(), good + "[listing]\npage_size = 7\n").unwrap();
    let reloads = followed.has(1, 2).await;
    assert_eq!(reloads["mistakes"], json!([]));
    // The mistake is in a file that only the rejected configuration names.
    let key = followed.folder.path().join("key");
    fs::write(&key, "short").unwrap();
    let secret = format!("[server]\nseal_key = {{ file = {key:?} }}\n");
    fs::write(followed.file(), secret).unwrap();
    followed.has(1, 3).await;
    fs::write(&key, super::audit::KEY).unwrap();
    let reloads = followed.has(2, 3).await;
    assert_eq!(reloads["mistakes"], json!([]));
    followed.process.stop().await;
}

#[cfg(unix)]
#[tokio::test]
async fn k2_a_file_that_belongs_to_the_configuration_is_followed() {
    let prompts = tempfile::tempdir().unwrap();
    library(prompts.path(), "p");
    let policy = prompts.path().join("policy.cedar");
    fs::write(&policy, "permit(principal, action, resource);").unwrap();
    let toml = format!(
        "[audit]\npath = \"\"\n[access]\ncedar = {policy:?}\n{}",
        library_table("one", prompts.path())
    );
    let followed = ConfiguredProcess::start(&toml).await;
    assert_eq!(followed.names().await, ["one__p"]);
    fs::write(&policy, "permit(principal, action, resource) when { false };").unwrap();
    followed.has(1, 0).await;
    assert_eq!(followed.names().await, Vec::<String>::new());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn k4_a_storm_of_signals_is_a_few_reloads_and_leaves_nothing_behind() {
    let prompts = tempfile::tempdir().unwrap();
    library(prompts.path(), "p");
    let toml = format!("[audit]\npath = \"\"\n{}", library_table("one", prompts.path()));
    let followed = ConfiguredProcess::with(&toml, &[("PROMPTGATE_ALLOW_PTRACE", "true")]).await;
    let descriptors =
        || fs::read_dir(format!("/proc/{}/fd", followed.process.pid())).unwrap().count();
    let threads =
        || fs::read_dir(format!("/proc/{}/task", followed.process.pid())).unwrap().count();
    followed.process.signal(rustix::process::Signal::HUP);
    followed.has(1, 0).await;
    let before = (descriptors(), threads());
    for _ in 0..500 {
        followed.process.signal(rustix::process::Signal::HUP);
    }
    let taken = |reloads: &Value| reloads["applied"].as_u64().unwrap();
    let after = eventually(
        async || {
            let first = followed.reloads().await;
            // A reload that is pending after the last signal has been applied once this is
            // answered.
            followed.names().await;
            (first, followed.reloads().await)
        },
        |(first, second)| taken(first) > 1 && taken(first) == taken(second),
    )
    .await
    .1;
    assert!(taken(&after) < 500, "{after}");
    assert_eq!(followed.names().await, ["one__p"]);
    // The look itself is a connection, and workers that read files come and go.
    eventually(async || descriptors(), |seen| *seen <= before.0 + 4).await;
    assert!(threads() <= before.1 + 8, "{before:?} {}", threads());
}
