//! Tokens for identity assertions of callers, which replicas share through the store.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{administered, create_user, revoke};
use crate::act_as_caller::RESOURCE;
use crate::act_as_caller::id_jag::Parties;
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::replicas::{Replica, Store};

/// The identity provider, the upstream, its authorization server, and the store of the replicas.
struct Site {
    parties: Parties,
    store: Store,
    folder: tempfile::TempDir,
}

impl Site {
    async fn start() -> Self {
        let parties = Parties::lasting(3600).await;
        let store = Store::start().await;
        create_user(&store).await;
        Self { parties, store, folder: tempfile::tempdir().unwrap() }
    }

    async fn replica(&self, name: &str) -> Replica {
        let folder = self.folder.path().join(name);
        let replica = administered(&self.store, &folder, RESOURCE, &self.parties.tables()).await;
        let client = self.client(&replica, "ready");
        let listed = async || client.modern("prompts/list", json!({})).await.json().to_string();
        eventually(listed, |listed| listed.contains("wiki__p")).await;
        replica
    }

    fn client(&self, replica: &Replica, caller: &str) -> Client {
        let token = self.parties.brought(caller);
        replica.client().with("Authorization", &format!("Bearer {token}"))
    }

    /// Whether a get of the caller at the replica has its own token.
    async fn get(&self, replica: &Replica, caller: &str) {
        let params = json!({"name": "wiki__p", "arguments": {"who": caller}});
        let answer = self.client(replica, caller).modern("prompts/get", params).await.json();
        assert!(answer["result"]["messages"].is_array(), "{caller}: {answer}");
        assert_eq!(self.parties.violations(), Vec::<String>::new());
    }
}

async fn accounts(replica: &Replica) -> Value {
    replica.admin.send("GET", "/api/v1/accounts", &[], b"").await.json()["accounts"].clone()
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn one_token_of_a_caller_serves_all_replicas_until_it_is_refused() {
    let site = Site::start().await;
    let (first, second) = (site.replica("a").await, site.replica("b").await);
    site.get(&first, "ada").await;
    site.get(&second, "ada").await;
    assert_eq!(site.parties.asked(), [1, 1]);
    // Both replicas at once.
    let clients = [&first, &second].map(|replica| site.client(replica, "bob"));
    let mut gets = JoinSet::new();
    for client in clients.iter().cycle().take(20) {
        let client = client.clone();
        let params = json!({"name": "wiki__p", "arguments": {"who": "bob"}});
        gets.spawn(async move { client.modern("prompts/get", params).await.json() });
    }
    for answer in gets.join_all().await {
        assert!(answer["result"]["messages"].is_array(), "{answer}");
    }
    assert_eq!(site.parties.asked(), [2, 2]);
    let dump = site.store.command("KEYS *").await;
    assert_eq!(dump.matches("login:wiki:").count(), 2, "{dump}");
    for name in dump.lines().filter(|line| line.contains("login:wiki:")) {
        let (kept, lifetime) = (
            site.store.command(&format!("GET {name}")).await,
            site.store.command(&format!("PTTL {name}")).await,
        );
        assert!(!kept.contains("canary") && !kept.contains("ada"), "{kept}");
        let lifetime: i64 = lifetime.trim().trim_start_matches(':').parse().unwrap();
        assert!((3_000_000..=3_600_000).contains(&lifetime), "as long as the token: {lifetime}");
    }
    // The replica that is refused first gets another token, which serves the other one, too.
    site.parties.refuse_tokens();
    site.get(&first, "ada").await;
    site.get(&second, "ada").await;
    assert_eq!(site.parties.asked(), [3, 3]);
    // A replica that starts later has it, too.
    let third = site.replica("c").await;
    let rows = accounts(&third).await;
    let row = rows.as_array().unwrap().iter().find(|row| row["caller"] == "ada").expect("a row");
    assert!(row["way"] == "id_jag" && row["signedInAt"].is_null(), "{row}");
    site.get(&third, "ada").await;
    assert_eq!(site.parties.asked(), [3, 3]);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_token_that_is_revoked_at_one_replica_is_used_by_none() {
    let site = Site::start().await;
    let (first, second) = (site.replica("a").await, site.replica("b").await);
    site.get(&first, "ada").await;
    site.get(&first, "bob").await;
    site.get(&second, "bob").await;
    // The second replica has no account of this caller.
    let revoked = revoke(&second, "ada").await;
    assert_eq!(revoked.as_array().unwrap().len(), 1, "{revoked}");
    assert!(revoked[0]["revokedAtProvider"] == true && revoked[0]["way"] == "id_jag", "{revoked}");
    assert_eq!(site.parties.revoked(), [site.parties.issued()[0].clone()], "once");
    let callers = async || {
        let rows = accounts(&first).await;
        let caller = |row: &Value| row["caller"].as_str().unwrap().to_owned();
        rows.as_array().unwrap().iter().map(caller).collect::<Vec<_>>()
    };
    eventually(callers, |callers| *callers == ["bob"]).await;
    let asked = site.parties.asked();
    for replica in [&first, &second, &first] {
        site.get(replica, "ada").await;
        site.get(replica, "bob").await;
    }
    assert_eq!(site.parties.asked(), asked.map(|asked| asked + 1), "one more, of the one caller");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn without_the_store_each_replica_asks_for_a_token() {
    let mut site = Site::start().await;
    let (first, second) = (site.replica("a").await, site.replica("b").await);
    site.get(&first, "ada").await;
    site.store.kill().await;
    for replica in [&first, &second] {
        site.get(replica, "ada").await;
        site.get(replica, "bob").await;
    }
    assert_eq!(site.parties.asked(), [4, 4]);
}
