//! Ways to the store: Sentinel, Cluster, TLS, and a user of its own.

use std::fs;

use serde_json::json;

use super::limited;
use crate::support::eventually;
use crate::support::replicas::{Replicas, Store, free_port, url};

/// Waits until three replicas behind `urls` count together.
async fn count_together(urls: &str, toml: &str) -> Replicas {
    let replicas = Replicas::start(urls, &(limited() + toml)).await;
    let client = replicas.client().with("Authorization", &super::bearer(0));
    let mut passed = 0;
    for _ in 0..60 {
        passed += usize::from(client.modern("prompts/list", json!({})).await.status == 200);
    }
    assert_eq!(passed, 30);
    replicas
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn each_node_of_a_cluster_leads_to_the_shard_that_holds_the_keys() {
    let nodes = [
        Store::start_with(&["--cluster-enabled", "yes"]).await,
        Store::start_with(&["--cluster-enabled", "yes"]).await,
    ];
    for (node, slots) in nodes.iter().zip(["0 8191", "8192 16383"]) {
        node.command(&format!("CLUSTER ADDSLOTSRANGE {slots}")).await;
    }
    nodes[0].command(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[1].port)).await;
    for node in &nodes {
        let info = async || node.command("CLUSTER INFO").await;
        eventually(info, |info| {
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
        })
        .await;
        let slots = async || node.command("CLUSTER SLOTS").await;
        eventually(slots, |slots| slots.contains(&format!(":{}", nodes[1].port))).await;
    }
    // One prefix for each half of the slots, so that each node is asked for its own keys and for
    // those of the other.
    let mut prefixes = [None, None];
    for letter in 'a'..='z' {
        let slot = nodes[0].command(&format!("CLUSTER KEYSLOT {{{letter}:}}")).await;
        let slot: u16 = slot.trim_start_matches(':').trim().parse().unwrap();
        prefixes[usize::from(slot > 8191)].get_or_insert(letter);
    }
    for (owner, prefix) in prefixes.into_iter().enumerate() {
        let toml = format!("[cluster]\nprefix = \"{}:\"\n", prefix.expect("a letter of each half"));
        for asked in &nodes {
            drop(count_together(&asked.url(), &toml).await);
            let held = nodes[owner].command("DBSIZE").await;
            assert_ne!(held, ":0\r\n", "the owner holds the keys");
            nodes[owner].command("FLUSHALL").await;
        }
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_sentinel_names_the_master_before_and_after_a_failover() {
    let mut master = Store::start().await;
    let replica = master.replica().await;
    let folder = tempfile::tempdir().unwrap();
    let port = free_port().await;
    let file = folder.path().join("sentinel.conf");
    let text = format!(
        "port {port}\nbind 127.0.0.1\nsentinel monitor gate 127.0.0.1 {} 1\n\
         sentinel down-after-milliseconds gate 500\nsentinel failover-timeout gate 2000\n",
        master.port
    );
    fs::write(&file, text).unwrap();
    let sentinel = tokio::process::Command::new("redis-server")
        .arg(&file)
        .arg("--sentinel")
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let _sentinel = sentinel.unwrap();
    let known = async || crate::support::replicas::ask(port, "SENTINEL REPLICAS gate").await;
    eventually(known, |known| {
        known.as_ref().is_some_and(|text| text.contains(&replica.port.to_string()))
    })
    .await;
    let replicas = count_together(&url(port), "").await;
    master.kill().await;
    replicas.see_store(false).await;
    let promoted = async || replica.command("ROLE").await;
    eventually(promoted, |role| role.contains("master")).await;
    replicas.see_store(true).await;
    replicas.know_each_other().await;
    let client = replicas.client().with("Authorization", &super::bearer(1));
    assert_eq!(client.modern("prompts/list", json!({})).await.status, 200);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_user_with_the_documented_rights_over_tls_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("cert.pem"), certified.cert.pem()).unwrap();
    fs::write(path("key.pem"), certified.signing_key.serialize_pem()).unwrap();
    let port = free_port().await;
    let tls = [
        "--tls-port",
        &port.to_string(),
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &path("cert.pem"),
        "--tls-key-file",
        &path("key.pem"),
    ]
    .map(str::to_owned);
    let tls: Vec<_> = tls.iter().map(String::as_str).collect();
    let store = Store::start_with(&tls).await;
    super::create_user(&store).await;
    store.command("ACL SETUSER default off").await;
    let toml = format!(
        "[cluster]\nusername = \"gate\"\npassword = {{ value = \"secret\" }}\nca = {:?}\n",
        path("cert.pem")
    );
    count_together(&format!("rediss://localhost:{port}"), &toml).await;
}
