//! Libraries in git repositories: a real `git` fetches real repositories; what is not a signed file
//! of the last commit is not served.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::audit::Log;
use crate::support::process::command;
use crate::support::{Gateway, eventually};

const ADMIN: &str = "[listing]\ndebounce = \"20ms\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";

/// A repository, and a folder for the state of the gateway.
pub(super) struct Repository {
    folder: tempfile::TempDir,
}

impl Repository {
    /// With one commit of the prompt `greet` in the folder `prompts`.
    pub(super) fn new() -> Self {
        let repository = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(repository.work()).unwrap();
        repository.git(&["init", "-q", "-b", "main"]);
        repository.commit("one");
        repository
    }

    /// The parent of the repository `work` and of the state `state`.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        let identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
        let git = git.current_dir(self.work()).args(identity).args(arguments);
        let done = git.env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.work().join("prompts").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Commits this text of the prompt, and returns the id.
    pub(super) fn commit(&self, text: &str) -> String {
        self.commit_with(text, &[])
    }

    fn commit_with(&self, text: &str, options: &[&str]) -> String {
        self.write("greet.md", &format!("---\nname: greet\n---\n{text}"));
        self.git(&["add", "."]);
        self.git(&[&["commit", "-q", "-m", text][..], options].concat());
        self.git(&["rev-parse", "HEAD"])
    }

    pub(super) fn table(&self, keys: &str) -> String {
        let (work, state) = (self.work(), self.folder.path().join("state"));
        let (work, state) = (work.display(), state.display());
        format!(
            "{ADMIN}[upstreams.team]\ntransport = \"git\"\nurl = \"file://{work}\"\n\
             path = \"prompts\"\npoll = \"100ms\"\nstate = \"{state}\"\n{keys}"
        )
    }

    /// A key of ssh, and the options that sign with it.
    fn key(&self, name: &str) -> (String, [String; 4]) {
        let file = self.folder.path().join(name);
        let mut making = Command::new("ssh-keygen");
        making.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&file);
        assert!(making.status().unwrap().success());
        let public = fs::read_to_string(file.with_extension("pub")).unwrap();
        let key = format!("user.signingkey={}", file.display());
        (public, ["-c".to_owned(), "gpg.format=ssh".to_owned(), "-c".to_owned(), key])
    }

    fn signed(&self, signing: &[String], arguments: &[&str]) {
        let signing = signing.iter().map(String::as_str);
        self.git(&signing.chain(arguments.iter().copied()).collect::<Vec<_>>());
    }
}

pub(super) async fn text(gateway: &Gateway) -> Option<String> {
    let reply = gateway.client().modern("prompts/get", json!({"name": "team__greet"})).await;
    let reply = reply.json();
    Some(reply["result"]["messages"][0]["content"]["text"].as_str()?.trim().to_owned())
}

pub(super) async fn serves(gateway: &Gateway, expected: &str) {
    eventually(async || text(gateway).await, |seen| seen.as_deref() == Some(expected)).await;
}

/// The status of the upstream.
async fn row(gateway: &Gateway) -> Value {
    let shown = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
    shown["upstreams"][0].clone()
}

/// Waits until the upstream has an error with this in it.
pub(super) async fn fails(gateway: &Gateway, with: &str) -> Value {
    let has = |row: &Value| {
        row["error"]["message"].as_str().is_some_and(|message| message.contains(with))
    };
    eventually(async || row(gateway).await, has).await
}

#[tokio::test]
async fn a_commit_is_served_and_announced_and_a_rewritten_branch_is_followed() {
    let repository = Repository::new();
    let gateway = Gateway::start(&repository.table("")).await;
    serves(&gateway, "one").await;
    let mut changes = gateway.client().listen().await;
    repository.write("more.md", "---\nname: more\n---\nMore");
    let second = repository.commit("two");
    changes.event().await.expect("a notification");
    serves(&gateway, "two").await;
    assert_eq!(gateway.client().names().await.0, ["team__greet", "team__more"]);
    let shown = row(&gateway).await;
    assert_eq!((&shown["commit"], &shown["transport"]), (&json!(second), &json!("git")));
    let page = gateway.admin().send("GET", "/upstreams/team", &[], b"").await.body;
    assert!(String::from_utf8(page).unwrap().contains(&second), "on the console's page");
    repository.git(&["reset", "-q", "--hard", "HEAD~1"]);
    repository.commit_with("rewritten", &["--amend"]);
    serves(&gateway, "rewritten").await;
    assert_eq!(gateway.client().names().await.0, ["team__greet"]);
    gateway.drain().await;
}

#[tokio::test]
async fn a_label_that_a_commit_moves_is_on_record_with_the_commit() {
    let repository = Repository::new();
    for number in 1..=2 {
        let name = format!("refund/versions/{number}.md");
        repository.write(&name, &format!("---\nname: refund\n---\n{number}"));
    }
    repository.write("labels.toml", "[refund]\nproduction = 1\n");
    repository.commit("one");
    let log = Log::new();
    let gateway = Gateway::start(&(log.table() + &repository.table(""))).await;
    serves(&gateway, "one").await;
    repository.write("labels.toml", "[refund]\nproduction = 2\n");
    let second = repository.commit("two");
    let record = log.wait_for("label_moved").await;
    let expected = json!(["refund", "production", 1, 2, "commit", second]);
    let members = ["prompt", "label", "from", "to", "via", "commit"].map(|key| &record[key]);
    assert_eq!(json!(members), expected, "{record}");
    assert_eq!(log.of("label_moved").len(), 1, "the label has two names in the list");
}

#[tokio::test]
async fn the_last_commit_is_served_without_its_remote_also_after_a_restart() {
    let repository = Repository::new();
    let toml = repository.table("");
    let gateway = Gateway::start(&toml).await;
    serves(&gateway, "one").await;
    let aside = repository.folder.path().join("aside");
    fs::rename(repository.work(), &aside).unwrap();
    let shown = fails(&gateway, "is still served").await;
    assert_eq!((&shown["state"], &shown["listed"]), (&json!("stale"), &json!(1)));
    assert_eq!(text(&gateway).await.as_deref(), Some("one"));
    gateway.drain().await;
    let gateway = Gateway::start(&toml).await;
    serves(&gateway, "one").await;
    fails(&gateway, "is still served").await;
    fs::rename(&aside, repository.work()).unwrap();
    repository.commit("two");
    serves(&gateway, "two").await;
    eventually(async || row(&gateway).await, |row| row.get("error").is_none()).await;
    gateway.drain().await;
    // What another place or other keys would have refused is not kept for them.
    fs::rename(repository.work(), &aside).unwrap();
    let gateway = Gateway::start(&repository.table("ref = \"main\"\n")).await;
    fails(&gateway, "git: fatal").await;
    assert_eq!(text(&gateway).await, None);
    gateway.drain().await;
}

#[tokio::test]
async fn a_commit_that_is_no_library_changes_nothing_and_a_broken_file_is_left_out() {
    let repository = Repository::new();
    let gateway = Gateway::start(&repository.table("max_message = \"16KiB\"\n")).await;
    serves(&gateway, "one").await;
    repository.write("broken.md", "---\nname: [\n---\n");
    repository.commit("two");
    serves(&gateway, "two").await;
    let catalog = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await.json();
    let reason = catalog["leftOut"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("prompts/broken.md:2:7: "), "{catalog}");
    // A prompt that was served stays as it was, whatever becomes of its file.
    for (spoiled, said) in [
        ("{{ gone }}".to_owned(), "prompts/greet.md:4:4: "),
        ("x".repeat(20_000), "prompts/greet.md: larger than max_message"),
    ] {
        repository.commit(&spoiled);
        let left_out = async || {
            let catalog = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await.json();
            catalog["leftOut"].to_string()
        };
        let left_out = eventually(left_out, |left_out| left_out.contains(said)).await;
        assert!(left_out.contains("; the text of before is served"), "{left_out}");
        assert_eq!(text(&gateway).await.as_deref(), Some("two"));
    }
    repository.git(&["mv", "prompts", "elsewhere"]);
    repository.git(&["commit", "-q", "-m", "moved"]);
    let shown = fails(&gateway, "no folder").await;
    assert_eq!(shown["error"]["reason"], "upstream_protocol_error");
    assert_eq!(text(&gateway).await.as_deref(), Some("two"));
    gateway.drain().await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_hostile_repository_reaches_nothing_but_its_own_plain_files() {
    use std::os::unix::fs::symlink;
    let repository = Repository::new();
    let (folder, prompts) = (repository.folder.path(), repository.work().join("prompts"));
    let marks = folder.join("marks");
    fs::write(folder.join("secret.md"), "---\nname: secret\n---\nsecret").unwrap();
    symlink("../../secret.md", prompts.join("link.md")).unwrap();
    symlink(folder, prompts.join("out")).unwrap();
    repository.write("big.md", &format!("---\nname: big\n---\n{}", "x".repeat(20_000)));
    repository.write(".hidden.md", "---\nname: hidden\n---\n");
    // Programs that git would run for a checkout: a filter, a hook, and one for file systems.
    let attributes = "*.md filter=evil\ngreet.md export-subst ident\n";
    fs::write(repository.work().join(".gitattributes"), attributes).unwrap();
    let touch = format!("touch {}", marks.display());
    repository.git(&["config", "filter.evil.smudge", &touch]);
    repository.git(&["config", "core.fsmonitor", &touch]);
    let hook = repository.work().join(".git/hooks/post-checkout");
    fs::write(hook, format!("#!/bin/sh\n{touch}\n")).unwrap();
    let modules = format!("[submodule \"m\"]\npath = prompts/m\nurl = ext::{touch}\n");
    fs::write(repository.work().join(".gitmodules"), modules).unwrap();
    repository.git(&["-c", "core.fsmonitor=false", "add", "."]);
    let head = repository.git(&["rev-parse", "HEAD"]);
    let module = format!("160000,{head},prompts/m");
    repository.git(&["update-index", "--add", "--cacheinfo", &module]);
    repository.git(&["-c", "core.fsmonitor=false", "commit", "-q", "-m", "evil"]);
    // A tree that names `..`, as no index lets it in.
    let blob = repository.git(&["rev-parse", "HEAD:prompts/greet.md"]);
    let listing = repository.git(&["ls-tree", "HEAD:prompts"]) + "\n";
    let evil = mktree(&repository, &format!("{listing}100644 blob {blob}\t..\n"));
    let root = repository.git(&["ls-tree", "HEAD"]).replace(&tree_id(&repository), &evil) + "\n";
    let root = mktree(&repository, &root);
    let commit = repository.git(&["commit-tree", "-m", "evil", &root]);
    repository.git(&["update-ref", "refs/heads/evil", &commit]);
    let _ = fs::remove_file(&marks);

    let gateway =
        Gateway::start(&repository.table("ref = \"evil\"\nmax_message = \"16KiB\"\n")).await;
    serves(&gateway, "one").await;
    assert_eq!(gateway.client().names().await.0, ["team__greet"]);
    assert!(!marks.exists(), "a program of the repository has run");
    let catalog = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await.json();
    let left_out = catalog["leftOut"].to_string();
    assert!(left_out.contains("link.md: a symbolic link"), "{left_out}");
    assert!(left_out.contains("big.md: larger than max_message"), "{left_out}");
    let commit = row(&gateway).await["commit"].as_str().unwrap().to_owned();
    let trees = folder.join("state/team/trees");
    let served = fs::read_dir(&trees).unwrap().map(|entry| entry.unwrap().path());
    let served: Vec<_> = served.collect();
    assert!(served.len() == 1 && served[0].to_str().unwrap().contains(&commit), "{served:?}");
    let names = fs::read_dir(&served[0]).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["greet.md"]);
    gateway.drain().await;
}

/// The remote writes the whole folder, which may be a repository with programs for git.
#[cfg(unix)]
#[tokio::test]
async fn an_approval_runs_no_program_of_the_files_of_a_commit() {
    let repository = Repository::new();
    let (marks, evil) =
        (repository.folder.path().join("marks"), repository.work().join("prompts/evil"));
    repository.write("evil/p.md", "---\nname: p\n---\none");
    let run = |arguments: &[&str]| {
        let identity = ["-c", "user.name=Mallory", "-c", "user.email=m@example.com"];
        let mut git = Command::new("git");
        let done = git.current_dir(&evil).args(identity).args(arguments).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    run(&["init", "-q"]);
    run(&["add", "."]);
    run(&["commit", "-q", "-m", "x"]);
    for entry in fs::read_dir(evil.join(".git")).unwrap().map(|entry| entry.unwrap()) {
        fs::rename(entry.path(), evil.join(entry.file_name())).unwrap();
    }
    fs::remove_dir(evil.join(".git")).unwrap();
    let config = format!(
        "[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\n[filter \"x\"]\nclean = \
         touch {}\n",
        marks.display()
    );
    fs::write(evil.join("config"), config).unwrap();
    fs::create_dir_all(evil.join("info")).unwrap();
    fs::write(evil.join("info/attributes"), "* filter=x\n").unwrap();
    // git keeps no empty folder.
    fs::create_dir_all(evil.join("refs/heads")).unwrap();
    fs::write(evil.join("refs/heads/kept"), "").unwrap();
    repository.commit("two");
    let lock = repository.folder.path().join("promptgate.lock");
    let approvals =
        format!("[approvals]\nmode = \"enforce\"\nlock = \"{}\"\napprovers = 2\n", lock.display());
    let writable = "[admin]\nwrite = true\ntoken = { value = \"t0ken\" }\n";
    let table = repository.table("").replace("[admin]\n", writable);
    let gateway = Gateway::start(&(approvals + &table)).await;
    let admin = gateway.admin();
    let token = ("authorization", "Bearer t0ken");
    let headers = [token];
    let rows = async || admin.send("GET", "/api/v1/approvals", &headers, b"").await.json();
    let waits = |rows: &Value| rows.to_string().contains("team__p");
    eventually(rows, waits).await;
    // The first of two is enough to ask for the author.
    let shown = admin.send("GET", "/api/v1/approvals/team__p", &headers, b"").await.json();
    let tag = ("if-match", shown["tag"].as_str().unwrap());
    let headers = [token, ("content-type", "application/json"), tag];
    let body = json!({"prompts": ["team__p"], "by": "bob"}).to_string();
    let path = "/api/v1/approvals/approve";
    let done = admin.send("POST", path, &headers, body.as_bytes()).await;
    assert_eq!(done.status, 200, "{}", String::from_utf8_lossy(&done.body));
    assert!(!marks.exists(), "a program of the repository has run");
    gateway.drain().await;
    let trees = repository.folder.path().join("state/team/trees");
    let served = fs::read_dir(trees).unwrap().next().unwrap().unwrap().path();
    let mut git = Command::new("git");
    let git = git.current_dir(served.join("evil")).args(["status", "--porcelain", "--", "p.md"]);
    assert!(git.output().is_ok() && marks.exists(), "the trap works");
}

fn tree_id(repository: &Repository) -> String {
    repository.git(&["rev-parse", "HEAD:prompts"])
}

/// Makes a tree as it is listed; git checks no name here.
fn mktree(repository: &Repository, listing: &str) -> String {
    let mut git = Command::new("git");
    let git = git.current_dir(repository.work()).args(["mktree", "--missing"]);
    let mut git = git
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    git.stdin.take().unwrap().write_all(listing.as_bytes()).unwrap();
    let done = git.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_commit_or_a_tag_without_a_trusted_signature_is_refused_and_the_last_good_one_stays() {
    let repository = Repository::new();
    let (public, ada) = repository.key("ada");
    let (_, mallory) = repository.key("mallory");
    let signers = repository.folder.path().join("signers");
    fs::write(&signers, format!("ada@example.com {public}")).unwrap();
    let keys = format!("trusted_keys = {:?}\n", signers);
    let log = super::audit::Log::new();
    let toml = log.table() + &repository.table(&keys);
    let gateway = Gateway::start(&toml).await;
    fails(&gateway, "trusted_keys: sign it (`git commit --amend -S`").await;
    assert_eq!(text(&gateway).await, None, "unsigned, and none before");
    repository.signed(&ada, &["commit", "-q", "--amend", "-S", "-m", "signed"]);
    serves(&gateway, "one").await;
    let good = repository.git(&["rev-parse", "HEAD"]);
    repository.commit("unsigned");
    fails(&gateway, "is still served").await;
    repository.signed(&mallory, &["commit", "-q", "--amend", "-S", "-m", "forged"]);
    let forged = repository.git(&["rev-parse", "HEAD"]);
    let shown = fails(&gateway, &forged).await;
    assert_eq!((&shown["commit"], text(&gateway).await.as_deref()), (&json!(good), Some("one")));
    gateway.drain().await;
    let again = Gateway::start(&toml).await;
    fails(&again, &forged).await;
    serves(&again, "one").await;
    again.drain().await;
    assert_eq!(log.of("commit_served").len(), 2, "once for each start");
    assert!(log.of("commit_refused").iter().any(|event| event["commit"] == forged));

    // Tags: unsigned, of another key, of another name, and at last a good one.
    repository.git(&["tag", "-a", "-m", "x", "v1"]);
    let gateway = Gateway::start(&repository.table(&format!("ref = \"v1\"\n{keys}"))).await;
    fails(&gateway, "the tag").await;
    repository.signed(&mallory, &["tag", "-f", "-s", "-m", "x", "v1"]);
    let forged = repository.git(&["rev-parse", "v1"]);
    fails(&gateway, &forged).await;
    repository.signed(&ada, &["tag", "-f", "-s", "-m", "x", "v0"]);
    repository.git(&["update-ref", "refs/tags/v1", "refs/tags/v0"]);
    fails(&gateway, "has another name").await;
    assert_eq!(text(&gateway).await, None);
    repository.signed(&ada, &["tag", "-f", "-s", "-m", "x", "v1"]);
    serves(&gateway, "unsigned").await;
    gateway.drain().await;
}

#[tokio::test]
async fn a_signed_tag_is_refused_under_another_name_and_as_a_branch() {
    let repository = Repository::new();
    let (public, ada) = repository.key("ada");
    let signers = repository.folder.path().join("signers");
    fs::write(&signers, format!("ada@example.com {public}")).unwrap();
    repository.signed(&ada, &["tag", "-s", "-m", "x", "v2"]);
    repository.git(&["update-ref", "refs/tags/prod/v2", "refs/tags/v2"]);
    // git makes no such branch, but a server may offer it.
    let tag = repository.git(&["rev-parse", "v2"]);
    let branches = repository.work().join(".git/refs/heads/rel");
    fs::create_dir(&branches).unwrap();
    fs::write(branches.join("v2"), format!("{tag}\n")).unwrap();
    let start = async |reference: &str| {
        let keys = format!("ref = \"{reference}\"\ntrusted_keys = {signers:?}\n");
        Gateway::start(&repository.table(&keys)).await
    };
    for reference in ["prod/v2", "rel/v2", "refs/heads/rel/v2"] {
        let gateway = start(reference).await;
        fails(&gateway, "has another name").await;
        assert_eq!(text(&gateway).await, None, "{reference}");
        gateway.drain().await;
    }
    let gateway = start("v2").await;
    serves(&gateway, "one").await;
    gateway.drain().await;
}

#[tokio::test]
async fn a_commit_that_is_refused_is_not_fetched_again() {
    let repository = Repository::new();
    let (public, ada) = repository.key("ada");
    let signers = repository.folder.path().join("signers");
    fs::write(&signers, format!("ada@example.com {public}")).unwrap();
    let keys = format!("trusted_keys = {signers:?}\n");
    let gateway = Gateway::start(&repository.table(&keys)).await;
    fails(&gateway, "trusted_keys: sign it").await;
    let mark = repository.folder.path().join("state/team/repository/mark");
    fs::write(&mark, "the same repository").expect("what was fetched is kept");
    let second = repository.commit("two");
    fails(&gateway, &second).await;
    assert!(mark.exists(), "what was fetched is kept");
    repository.signed(&ada, &["commit", "-q", "--amend", "-S", "-m", "signed"]);
    serves(&gateway, "two").await;
    gateway.drain().await;
}

#[tokio::test]
async fn a_repository_of_folders_without_end_and_without_files_is_refused() {
    let repository = Repository::new();
    let mut tree = repository.git(&["mktree"]);
    for _ in 0..14 {
        let entries = (0..10).map(|name| format!("040000 tree {tree}\t{name}\n"));
        tree = mktree(&repository, &entries.collect::<String>());
    }
    let root = mktree(&repository, &format!("040000 tree {tree}\tprompts\n"));
    let commit = repository.git(&["commit-tree", "-m", "nested", &root]);
    repository.git(&["update-ref", "refs/heads/nested", &commit]);
    // Reading all folders would take longer than any test.
    let gateway = Gateway::start(&repository.table("ref = \"nested\"\n")).await;
    fails(&gateway, "too many files or folders").await;
    gateway.drain().await;
}

/// A server that answers every request in this way, or never; returns its port and the requests.
fn http_server(answer: Option<&'static str>) -> (u16, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, requests) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let head = lines.map_while(Result::ok).take_while(|line| !line.is_empty());
            if sender.send(head.collect::<Vec<_>>().join("\n")).is_err() {
                return;
            }
            match answer {
                Some(answer) => stream.write_all(answer.as_bytes()).unwrap(),
                // Until the other side gives up.
                None => drop(stream.read(&mut [0])),
            }
        }
    });
    (port, requests)
}

fn remote(folder: &Path, port: u16, keys: &str) -> String {
    format!(
        "{ADMIN}[upstreams.team]\ntransport = \"git\"\nurl = \"http://127.0.0.1:{port}/p.git\"\n\
         state = \"{}\"\ncredential = {{ password = {{ value = \"s3cret-token\" }} }}\n{keys}",
        folder.display()
    )
}

#[tokio::test]
async fn the_credential_goes_to_the_server_only_and_not_where_it_redirects_to() {
    let folder = tempfile::tempdir().unwrap();
    let (elsewhere, stolen) = http_server(Some("HTTP/1.1 404 no\r\ncontent-length: 0\r\n\r\n"));
    let moved = format!(
        "HTTP/1.1 302 moved\r\nlocation: http://127.0.0.1:{elsewhere}/p.git/info/refs\r\n\
         content-length: 0\r\nconnection: close\r\n\r\n"
    );
    let (port, requests) = http_server(Some(moved.leak()));
    let gateway = Gateway::start(&remote(folder.path(), port, "")).await;
    let shown = fails(&gateway, "git: fatal").await;
    let head = requests.recv().unwrap();
    // x-access-token:s3cret-token
    let expected = "Authorization: Basic eC1hY2Nlc3MtdG9rZW46czNjcmV0LXRva2Vu";
    assert!(head.contains(expected), "{head}");
    assert!(!shown.to_string().contains("s3cret") && stolen.try_recv().is_err(), "{shown}");
    gateway.drain().await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_that_never_answers_is_given_up_with_its_processes() {
    let folder = tempfile::tempdir().unwrap();
    let (port, requests) = http_server(None);
    let gateway = Gateway::start(&remote(folder.path(), port, "walk_timeout = \"500ms\"\n")).await;
    let url = format!("127.0.0.1:{port}/p.git");
    let running = || {
        let entries = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let lines = entries.filter_map(|path| fs::read_to_string(path.join("cmdline")).ok());
        lines.filter(|line| line.contains(&url)).collect::<Vec<_>>()
    };
    let commands = eventually(async || running(), |running| running.len() >= 2).await;
    assert!(commands.iter().all(|command| !command.contains("s3cret")), "{commands:?}");
    assert!(requests.recv().unwrap().contains("info/refs"));
    let reason = async || row(&gateway).await["error"]["reason"].clone();
    eventually(reason, |reason| reason == "upstream_timeout").await;
    gateway.drain().await;
    eventually(async || running(), Vec::is_empty).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn git_runs_within_bounds_and_a_credential_is_in_no_argument_and_no_environment() {
    let folder = tempfile::tempdir().unwrap();
    let (port, requests) = http_server(None);
    let gateway = Gateway::start(&remote(folder.path(), port, "")).await;
    let url = format!("127.0.0.1:{port}/p.git");
    let of = |path: &Path| {
        let read = |name: &str| fs::read(path.join(name)).unwrap_or_default();
        let text = |name: &str| String::from_utf8_lossy(&read(name)).into_owned();
        (text("cmdline"), text("environ"), text("limits"))
    };
    let running = || {
        let entries = fs::read_dir("/proc").unwrap().map(|entry| of(&entry.unwrap().path()));
        entries.filter(|(arguments, ..)| arguments.contains(&url)).collect::<Vec<_>>()
    };
    // The helper that speaks http, too.
    let asked = eventually(
        async || requests.try_recv().unwrap_or_default(),
        |asked| asked.contains("Authorization: Basic eC1hY2Nlc3M"),
    );
    asked.await;
    let seen = eventually(async || running(), |running| running.len() >= 2).await;
    assert!(seen.iter().any(|(_, environment, _)| environment.contains("GIT_DIR=")), "{seen:?}");
    for (arguments, environment, limits) in seen {
        let bound = limits.lines().find(|line| line.starts_with("Max address space"));
        assert!(bound.is_some_and(|bound| !bound.contains("unlimited")), "{limits}");
        for secret in ["s3cret", "eC1hY2Nlc3M"] {
            assert!(!arguments.contains(secret) && !environment.contains(secret), "{environment}");
        }
    }
    gateway.drain().await;
}

#[tokio::test]
async fn git_connects_to_no_address_that_is_refused_whatever_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (port, requests) = http_server(None);
    for (url, keys, expected) in [
        // 169.254.169.254
        ("https://2852039166/p.git", "", "link-local"),
        ("ssh://git@2852039166/p.git", "", "link-local"),
        ("git@2852039166:p.git", "", "link-local"),
        (&*format!("https://localhost:{port}/p.git"), "allow_private = false\n", "not a public"),
        (&format!("ssh://localhost:{port}/p.git"), "allow_private = false\n", "not a public"),
    ] {
        let table = format!(
            "{ADMIN}[upstreams.team]\ntransport = \"git\"\nurl = \"{url}\"\nstate = \"{}\"\n{keys}",
            folder.path().display()
        );
        let gateway = Gateway::start(&table).await;
        fails(&gateway, expected).await;
        gateway.drain().await;
    }
    assert!(requests.try_recv().is_err(), "a connection was opened");
}

#[test]
fn check_says_that_git_is_missing_and_what_a_mistake_should_be() {
    let folder = tempfile::tempdir().unwrap();
    let check = |toml: &str| {
        fs::write(folder.path().join("gateway.toml"), toml).unwrap();
        let done = command(folder.path(), &["check"]).env("PATH", "").output().unwrap();
        let text = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8(text).unwrap())
    };
    let table = "[upstreams.team]\ntransport = \"git\"\nurl = ";
    let (code, said) = check(&format!("{table}\"https://git.example.com/p.git\"\n"));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("upstreams.team: the program `git` is not installed"), "{said}");
    let (code, said) = check(&format!("{table}\"ext::sh -c id\"\n"));
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("git@host:repository.git"), "{said}");
}
