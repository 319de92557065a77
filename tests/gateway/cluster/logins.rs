//! Sign-ins of the operator in the store: one for all replicas, changed by one process at a time,
//! unreadable without the key.

use std::io::{Read as _, Write as _};
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::create_user;
use crate::support::process::LOG_WARNINGS;
use crate::support::replicas::{Replica, SEAL_KEY, Store};
use crate::support::wiki::{
    Wiki, failure, files, logins, ran, reason, served, sign_in, spawn, text,
};
use crate::support::{Process, Upstream, eventually, write_greeting};

const LOGIN: &str = "{promptgate:}login:wiki";
const LOCK: &str = "{promptgate:}login-lock:wiki";

/// The wiki, a store with persistence, and the folder from which the operator signs in.
struct Site {
    wiki: Wiki,
    upstream: Upstream,
    store: Store,
    operator: TempDir,
}

impl Site {
    /// With access tokens that last so many seconds.
    async fn start(lifetime: u64) -> Self {
        let wiki = Wiki::lasting(lifetime);
        let upstream = wiki.start().await;
        // Its file has whatever was ever written.
        let store = Store::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
        create_user(&store).await;
        let site = Self { wiki, upstream, store, operator: tempfile::tempdir().unwrap() };
        site.configure(site.operator.path(), &site.store.url());
        site
    }

    fn configure(&self, folder: &Path, store: &str) {
        let toml = format!(
            "[server]\nseal_key = {{ value = \"{SEAL_KEY}\" }}\n\
             [cluster]\nstore = \"{store}\"\ntimeout = \"2s\"\n\
             username = \"gate\"\npassword = {{ value = \"secret\" }}\n\
             [telemetry]\nlog = \"{LOG_WARNINGS}\"\n\
             [upstreams.library]\ntransport = \"library\"\npath = \"library\"\n\
             {}credential = {{ login = {{}} }}\n",
            self.upstream.patient_table("wiki")
        );
        std::fs::write(folder.join("gateway.toml"), toml).unwrap();
        let library = folder.join("library");
        std::fs::create_dir_all(&library).unwrap();
        write_greeting(&library, "Greets.");
    }

    async fn sign_in(&self) {
        sign_in(self.operator.path()).await;
    }

    /// Starts a replica in a folder of its own.
    async fn replica(&self, name: &str) -> Replica {
        let folder = self.operator.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        self.configure(&folder, &self.store.url());
        let (process, admin) = Process::serve_admin(&folder, &[]).await;
        Replica { process, admin, folder }
    }

    /// Two replicas that serve the wiki.
    async fn replicas(&self) -> [Replica; 2] {
        let replicas = [self.replica("a").await, self.replica("b").await];
        for replica in &replicas {
            served(&replica.process).await;
        }
        replicas
    }

    /// How often the token endpoint was asked.
    fn token_requests(&self) -> usize {
        self.upstream.received().iter().filter(|asked| asked.path == "/token").count()
    }

    /// The sealed sign-in.
    async fn stored(&self) -> String {
        self.store.command(&format!("GET {LOGIN}")).await
    }

    /// The time for which the sign-in is kept, in milliseconds; negative without one.
    async fn kept_for(&self) -> i64 {
        let answer = self.store.command(&format!("PTTL {LOGIN}")).await;
        answer.trim().trim_start_matches(':').parse().unwrap()
    }

    /// The upstream refuses all tokens that were issued so far.
    fn refuse_tokens(&self) {
        self.wiki.state().valid.clear();
    }
}

async fn gets_a_prompt(replica: &Replica) {
    let answer = replica.client().modern("prompts/get", json!({"name": "wiki__p"})).await.json();
    assert!(answer["result"]["messages"].is_array(), "{answer}");
}

fn changes_on_record(replica: &Replica) -> usize {
    files(&replica.folder).matches("\"event\":\"login_changed\"").count()
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn one_sign_in_serves_all_replicas_and_each_refresh_token_is_used_once() {
    let site = Site::start(4).await;
    let (first, second) = (site.replica("a").await, site.replica("b").await);
    assert_eq!(logins(site.operator.path())["state"], "needs a sign-in");
    site.sign_in().await;
    assert_eq!(logins(site.operator.path())["state"], "valid");
    for replica in [&first, &second] {
        served(&replica.process).await;
    }
    let renewals = async || {
        tokio::join!(gets_a_prompt(&first), gets_a_prompt(&second));
        site.wiki.state().issues()
    };
    eventually(renewals, |count| *count >= 4).await;
    let state = site.wiki.state();
    assert!(!state.reused, "a refresh token was sent twice");
    assert_eq!(site.token_requests(), state.issues(), "each request renewed the sign-in");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_token_that_is_refused_everywhere_is_replaced_once() {
    let site = Site::start(3600).await;
    site.sign_in().await;
    let [first, second] = site.replicas().await;
    let before = site.token_requests();
    site.refuse_tokens();
    tokio::join!(served(&first.process), served(&second.process));
    assert_eq!(site.token_requests(), before + 1, "one replica renews it for both");
    assert!(!site.wiki.state().reused);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn another_sign_in_is_taken_over_at_once_and_a_sign_out_ends_it_everywhere() {
    let site = Site::start(3600).await;
    site.sign_in().await;
    let replicas = site.replicas().await;
    let dialed = text(&ran(site.operator.path(), &["check", "--dial"]).await);
    assert!(dialed.contains("cluster.store: available"), "{dialed}");
    assert!(!dialed.contains("promptgate login"), "{dialed}");
    site.sign_in().await;
    for replica in &replicas {
        eventually(async || changes_on_record(replica), |count| *count == 1).await;
        served(&replica.process).await;
    }
    let output = ran(site.operator.path(), &["logout", "wiki"]).await;
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(site.wiki.state().revoked.len(), 2);
    for replica in &replicas {
        let client = replica.client();
        eventually(async || reason(&client).await, |reason| reason == "no_login").await;
        assert_eq!(changes_on_record(replica), 2);
    }
    assert_eq!(site.store.command(&format!("EXISTS {LOGIN} {LOCK}")).await.trim(), ":0");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn neither_the_store_nor_a_folder_holds_a_token() {
    let site = Site::start(4).await;
    site.sign_in().await;
    let [first, second] = site.replicas().await;
    let renewals = async || {
        tokio::join!(gets_a_prompt(&first), gets_a_prompt(&second));
        site.wiki.state().issues()
    };
    eventually(renewals, |count| *count >= 3).await;
    let (stored, kept) = (files(site.store.folder()), files(site.operator.path()));
    assert!(stored.contains(LOGIN), "the file of the store was read");
    assert!(kept.contains("\"event\":\"config_loaded\""), "the folders were read");
    for canary in &site.wiki.state().issued {
        assert!(!stored.contains(canary.as_str()), "{canary} is in the store");
        assert!(!kept.contains(canary.as_str()), "{canary} is in a folder");
    }
    for folder in [site.operator.path(), &first.folder, &second.folder] {
        assert!(!folder.join("logins").exists(), "{}", folder.display());
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn without_the_store_tokens_are_used_on_and_a_renewal_says_what_is_wrong() {
    let mut site = Site::start(3600).await;
    site.sign_in().await;
    let [replica, other] = site.replicas().await;
    site.store.kill().await;
    replica.sees_store(false).await;
    gets_a_prompt(&replica).await;
    gets_a_prompt(&other).await;
    let before = site.token_requests();
    site.refuse_tokens();
    let client = replica.client();
    eventually(async || reason(&client).await, |reason| reason == "upstream_auth_failed").await;
    let walk = json!({"name": "wiki__p"});
    let answer = client.modern("prompts/get", walk).await.json();
    assert!(
        !answer.to_string().contains("127.0.0.1"),
        "callers are not told where the store is: {answer}"
    );
    assert_eq!(site.token_requests(), before, "without the lock no refresh token is sent");
    for arguments in [&["login", "wiki", "--no-browser"][..], &["logins"], &["logout", "wiki"]] {
        let output = ran(site.operator.path(), arguments).await;
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(text(&output).contains("check cluster.store"), "{}", text(&output));
        assert!(output.stdout.is_empty(), "a sign-in that cannot be kept does not begin");
    }
    site.store.restart().await;
    create_user(&site.store).await;
    tokio::join!(served(&replica.process), served(&other.process));
    assert_eq!(site.token_requests(), before + 1);
    assert_eq!(changes_on_record(&replica), 0, "the sign-in is the same");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn the_lock_of_a_process_that_died_is_taken_over() {
    let site = Site::start(3600).await;
    site.sign_in().await;
    site.store.command(&format!("SET {LOCK} of-the-dead PX 1500")).await;
    let replica = site.replica("a").await;
    served(&replica.process).await;
    assert_eq!(site.store.command(&format!("EXISTS {LOCK}")).await.trim(), ":0", "it was released");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_process_whose_lock_has_expired_overwrites_nothing() {
    let site = Site::start(3600).await;
    site.sign_in().await;
    let replica = site.replica("a").await;
    served(&replica.process).await;
    let before = site.stored().await;
    let port = site.store.port;
    site.refuse_tokens();
    // While it waits for the provider, its lock expires, and another process takes it.
    site.wiki.state().at_renewal = Some(Box::new(move || {
        ask_blocking(port, &format!("SET {LOCK} of-another"));
    }));
    // The tokens that it was issued are used all the same.
    served(&replica.process).await;
    let issued = site.wiki.state().issues();
    assert_eq!(issued, 2);
    assert_eq!(site.stored().await, before, "the sign-in is in the hands of another process");
    let lock = site.store.command(&format!("GET {LOCK}")).await;
    assert!(lock.contains("of-another"), "its lock is not released: {lock}");
    // It is written as soon as that is possible, and used by others without another renewal.
    site.store.command(&format!("DEL {LOCK}")).await;
    site.store.command("CLIENT KILL TYPE pubsub").await;
    eventually(async || site.stored().await, |stored| *stored != before).await;
    let second = site.replica("b").await;
    served(&second.process).await;
    assert_eq!(site.wiki.state().issues(), issued);
    assert!(!site.wiki.state().reused);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_sign_in_that_was_renewed_while_the_store_went_away_is_written_once_it_is_back() {
    let mut site = Site::start(3600).await;
    site.sign_in().await;
    let replica = site.replica("a").await;
    served(&replica.process).await;
    let before = site.stored().await;
    let port = site.store.port;
    site.refuse_tokens();
    site.wiki.state().at_renewal = Some(Box::new(move || ask_blocking(port, "SHUTDOWN")));
    // The issued tokens are used all the same.
    served(&replica.process).await;
    let issued = site.wiki.state().issues();
    assert_eq!(issued, 2);
    site.store.kill().await;
    site.store.restart().await;
    create_user(&site.store).await;
    eventually(async || site.stored().await, |stored| *stored != before).await;
    let second = site.replica("b").await;
    served(&second.process).await;
    assert_eq!(site.wiki.state().issues(), issued, "the other replica renews nothing");
    assert!(!site.wiki.state().reused);
}

/// Sends a command to the store from code that cannot wait.
fn ask_blocking(port: u16, command: &str) {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_to_string(&mut String::new()).unwrap();
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn the_store_forgets_a_sign_in_that_no_gateway_uses() {
    const IDLE: i64 = 90 * 86_400_000;
    let site = Site::start(3600).await;
    assert!(site.kept_for().await < 0);
    site.sign_in().await;
    let kept_for = site.kept_for().await;
    assert!((IDLE - 60_000..=IDLE).contains(&kept_for), "{kept_for}");
    // A gateway that has the upstream marks it; one that has not leaves it alone.
    site.store.command(&format!("PEXPIRE {LOGIN} 600000")).await;
    site.store.command("SET {promptgate:}login:gone sealed PX 600000").await;
    let replica = site.replica("a").await;
    let kept_for = eventually(async || site.kept_for().await, |kept_for| *kept_for > 600_000).await;
    assert!((IDLE - 60_000..=IDLE).contains(&kept_for), "{kept_for}");
    served(&replica.process).await;
    let gone = site.store.command("PTTL {promptgate:}login:gone").await;
    assert!(gone.trim().trim_start_matches(':').parse::<u64>().unwrap() <= 600_000, "{gone}");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_gateway_that_joins_a_cluster_needs_another_sign_in() {
    let site = Site::start(3600).await;
    site.configure(site.operator.path(), "");
    site.sign_in().await;
    assert_eq!(logins(site.operator.path())["state"], "valid");
    site.configure(site.operator.path(), &site.store.url());
    assert_eq!(logins(site.operator.path())["state"], "needs a sign-in");
    let replica = site.replica("a").await;
    let row =
        eventually(async || failure(&replica.admin).await, |row| row["state"] == "down").await;
    assert!(row.to_string().contains("promptgate login wiki"), "{row}");
    site.sign_in().await;
    served(&replica.process).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_gateway_that_stands_alone_follows_the_sign_ins_of_the_replicas() {
    let site = Site::start(3600).await;
    site.sign_in().await;
    let folder = tempfile::tempdir().unwrap();
    site.configure(folder.path(), &site.store.url());
    let gateway = spawn(folder.path(), &["serve", "--stdio"]);
    site.upstream.received_method("prompts/list").await;
    site.sign_in().await;
    let all = async || files(folder.path());
    eventually(all, |all| all.contains("\"event\":\"login_changed\"")).await;
    assert!(!folder.path().join("logins").exists());
    drop(gateway);
}
