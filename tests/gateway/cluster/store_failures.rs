//! The store may die: no call fails because of it, each replica counts its share, and all count
//! together again.

use std::fs;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;

use super::{bearer, limited};
use crate::support::process::command;
use crate::support::replicas::{Balancer, Replica, Replicas, Store, environment, url};
use crate::support::{Client, Process, eventually, metrics};

/// Sends lists of a caller to one replica after the other; returns how many passed. All others were
/// limited.
async fn passed(clients: &[Client], caller: usize, count: usize) -> usize {
    let mut passed = 0;
    for client in clients.iter().cycle().take(count) {
        let client = client.clone().with("Authorization", &bearer(caller));
        match client.modern("prompts/list", json!({})).await.status {
            200 => passed += 1,
            status => assert_eq!(status, 429),
        }
    }
    passed
}

fn clients(replicas: &Replicas) -> Vec<Client> {
    replicas.replicas.iter().map(Replica::client).collect()
}

/// The kinds of events on the audit log of a replica.
fn audited(replica: &Replica) -> String {
    let segments = fs::read_dir(replica.folder.join("audit")).unwrap();
    segments
        .map(|segment| fs::read_to_string(segment.unwrap().path()).unwrap_or_default())
        .collect()
}

/// Loses the store and finds it again: what is lost is counted by shares, and told.
async fn survives(
    store: &mut Store,
    replicas: &Replicas,
    lose: impl AsyncFnOnce(&mut Store),
    find: impl AsyncFnOnce(&mut Store),
) {
    let clients = clients(replicas);
    assert_eq!(passed(&clients, 0, 60).await, 30);
    lose(store).await;
    // The very first call is answered, whether the loss was noticed or not.
    assert_eq!(passed(&clients, 1, 90).await, 30, "ten on each replica");
    for replica in &replicas.replicas {
        replica.sees_store(false).await;
        let up = metrics(&replica.admin, &["promptgate_cluster_up"]).await;
        assert_eq!(up.into_values().collect::<Vec<_>>(), [0.0]);
        let ready = replica.admin.send("GET", "/readyz", &[], b"").await;
        assert_eq!(ready.status, 200, "it serves all the same");
        let log = async || audited(replica).contains("\"cluster_store_lost\"");
        eventually(log, |is_on_record| *is_on_record).await;
    }
    find(store).await;
    for replica in &replicas.replicas {
        replica.sees_store(true).await;
        let log = async || audited(replica).matches("\"cluster_store_available\"").count();
        eventually(log, |count| *count == 2).await;
    }
    replicas.know_each_other().await;
    assert_eq!(passed(&clients, 2, 60).await, 30, "together again");
}

async fn started() -> (Store, Replicas) {
    let store = Store::start().await;
    let toml = limited() + "[audit]\npath = \"audit\"\n";
    let replicas = Replicas::start(&store.url(), &toml).await;
    (store, replicas)
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_store_that_is_killed_and_restarted_empty() {
    let (mut store, replicas) = started().await;
    let restart = async |store: &mut Store| store.restart().await;
    survives(&mut store, &replicas, async |store| store.kill().await, restart).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_store_that_hangs() {
    let (mut store, replicas) = started().await;
    let stop = async |store: &mut Store| store.signal(Signal::STOP);
    let go_on = async |store: &mut Store| store.signal(Signal::CONT);
    survives(&mut store, &replicas, stop, go_on).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_store_that_cannot_be_written() {
    let (mut store, replicas) = started().await;
    let port = crate::support::replicas::free_port().await;
    let demote = async |store: &mut Store| {
        store.command(&format!("REPLICAOF 127.0.0.1 {port}")).await;
    };
    let promote = async |store: &mut Store| {
        store.command("REPLICAOF NO ONE").await;
    };
    survives(&mut store, &replicas, demote, promote).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_store_that_is_full() {
    let (mut store, replicas) = started().await;
    let fill = async |store: &mut Store| {
        store.command("CONFIG SET maxmemory 1").await;
    };
    let empty = async |store: &mut Store| {
        store.command("CONFIG SET maxmemory 0").await;
    };
    survives(&mut store, &replicas, fill, empty).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_store_that_fails_over_to_its_replica() {
    let mut first = Store::start().await;
    let second = first.replica().await;
    let stores = format!("{},{}", first.url(), second.url());
    let replicas = Replicas::start(&stores, &limited()).await;
    let clients = clients(&replicas);
    assert_eq!(passed(&clients, 0, 60).await, 30);
    let replicated = async || second.command("DBSIZE").await;
    let expected = first.command("DBSIZE").await;
    eventually(replicated, |size| *size == expected).await;
    first.kill().await;
    replicas.see_store(false).await;
    second.command("REPLICAOF NO ONE").await;
    replicas.see_store(true).await;
    assert_eq!(passed(&clients, 0, 30).await, 0, "what was counted is counted there");
    replicas.know_each_other().await;
    assert_eq!(passed(&clients, 1, 60).await, 30);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_replica_that_is_cut_off_counts_its_share() {
    let store = Store::start().await;
    let way = Balancer::before(vec![([127, 0, 0, 1], store.port).into()]).await;
    let (direct, through) = (store.url(), url(way.addr.port()));
    let replicas = Replicas::start_each([&direct, &direct, &through], &limited()).await;
    let clients = clients(&replicas);
    way.cut();
    replicas.replicas[2].sees_store(false).await;
    assert_eq!(passed(&clients[..2], 0, 90).await, 30, "the others count together");
    assert_eq!(passed(&clients[2..], 0, 30).await, 10, "and its share comes on top");
    // The others forget it; the store was never lost to them.
    let seen = async || replicas.replicas[0].cluster().await;
    let cluster = eventually(seen, |c| c["replicas"].as_array().unwrap().len() == 2).await;
    assert_eq!(cluster["store"], "available");
    way.mend();
    replicas.replicas[2].sees_store(true).await;
    replicas.know_each_other().await;
    assert_eq!(passed(&clients, 1, 60).await, 30);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn without_the_store_calls_are_refused_where_the_file_says_so() {
    let mut store = Store::start().await;
    let toml = limited() + "[cluster]\non_failure = \"refuse\"\n";
    let replicas = Replicas::start(&store.url(), &toml).await;
    store.kill().await;
    let replica = &replicas.replicas[0];
    replica.sees_store(false).await;
    let client = replica.client().with("Authorization", &bearer(0));
    let refused = client.modern("prompts/list", json!({})).await;
    assert_eq!(refused.header("retry-after"), Some("1"));
    let (status, _, reason) = refused.refusal();
    assert_eq!((status, reason.as_str()), (503, "cluster_unavailable"));
    let ready = replica.admin.send("GET", "/readyz", &[], b"").await;
    assert_eq!(ready.status, 503);
    assert!(String::from_utf8(ready.body).unwrap().contains("cluster_unavailable"));
    store.restart().await;
    let again = async || client.modern("prompts/list", json!({})).await.status;
    eventually(again, |status| *status == 200).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_store_that_is_missing_at_the_start_is_waited_for_or_refused() {
    let mut store = Store::start().await;
    store.kill().await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), limited()).unwrap();
    let variables = environment(&store.url(), "alone");
    let variables: Vec<_> = variables.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let refused = command(folder.path(), &["serve"])
        .envs(variables.iter().copied())
        .env("PROMPTGATE__CLUSTER__ON_MISSING", "refuse")
        .env("PROMPTGATE__SERVER__LISTEN", "127.0.0.1:0")
        .env("PROMPTGATE__ADMIN__LISTEN", "")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("cluster.store") && said.contains("on_missing"), "{said}");

    let dialed = |is_there: bool| {
        let mut check = command(folder.path(), &["check", "--dial"]);
        let output = check.envs(variables.iter().copied()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.success(), is_there, "{said}");
        said
    };
    assert!(dialed(false).contains("cluster.store: 127.0.0.1:"), "it says why");

    let (process, admin) = Process::serve_admin(folder.path(), &variables).await;
    let replica = Replica { process, admin, folder: folder.path().to_owned() };
    let client = [replica.client()];
    assert_eq!(passed(&client, 0, 60).await, 30, "alone, it has the whole limit");
    store.restart().await;
    replica.sees_store(true).await;
    assert_eq!(passed(&client, 1, 60).await, 30);
    assert!(dialed(true).contains("cluster.store: available"));
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_session_that_is_deleted_without_the_store_ends_everywhere_once_it_is_back() {
    let mut store = Store::start().await;
    let replicas = Replicas::start(&store.url(), "").await;
    let session = replicas.client().legacy("2025-06-18").await.session().to_owned();
    store.kill().await;
    replicas.see_store(false).await;
    let with_session = |replica: &Replica| replica.client().with("Mcp-Session-Id", &session);
    let [first, second, _] = &replicas.replicas[..] else { panic!("three") };
    assert_eq!(with_session(first).send("DELETE", "/mcp", &[], b"").await.status, 200);
    let ping = crate::support::client::request(1, "ping", json!({}));
    assert_eq!(with_session(first).post(&ping).await.status, 404);
    assert_eq!(with_session(second).post(&ping).await.status, 200, "it could not be told");
    store.restart().await;
    let second = with_session(second);
    eventually(async || second.post(&ping).await.status, |status| *status == 404).await;
}
