//! Webhooks of stores and git servers: a signed one has its upstream read at once, and nothing else
//! does.

use std::time::SystemTime;

use base64::prelude::{BASE64_STANDARD, Engine};
use ring::hmac;
use serde_json::json;
use tokio::time::Instant;

use super::audit::Log;
use super::git::Repository;
use super::stores::{Registry, lists, serves};
use crate::support::client::Reply;
use crate::support::gateway::api_key;
use crate::support::{Client, Gateway, Upstream};
use base::seal::hex::hex;
use domain::time::unix_time::UnixSeconds;

const SECRET: &str = "s3cret-of-webhooks";

/// A store that is read at the start, and then only for a webhook: not for a day.
pub(crate) fn table(store: &Upstream) -> String {
    let url = format!("http://{}", store.addr);
    format!(
        "[listing]\ndebounce = \"5ms\"\n[upstreams.s]\ntransport = \"mlflow\"\nurl = \"{url}\"\n\
         poll = \"1d\"\nstate = \"\"\nwebhook_secret = {{ value = \"{SECRET}\" }}\n"
    )
}

fn sign(text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes()), text.as_bytes())
}

/// Delivers a webhook of MLflow, signed now.
pub(crate) async fn deliver(client: &Client, path: &str) -> Reply {
    let (id, body) = ("f43efadd", "{\"entity\":\"prompt_alias\"}");
    let at = UnixSeconds::from(SystemTime::now()).0.to_string();
    let tag = BASE64_STANDARD.encode(sign(&format!("{id}.{at}.{body}")));
    let headers = [
        ("X-MLflow-Delivery-Id", id),
        ("X-MLflow-Timestamp", at.as_str()),
        ("X-MLflow-Signature", &format!("v1,{tag}")),
        ("Content-Type", "application/json"),
    ];
    client.send("POST", path, &headers, body.as_bytes()).await
}

#[tokio::test]
async fn a_signed_webhook_of_mlflow_has_the_store_read_at_once() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    let store = registry.serve().await;
    let gateway = Gateway::start(&table(&store)).await;
    let client = gateway.client();
    serves(&client, "s__greet", &["one"]).await;
    let mut changes = client.listen().await;
    registry.publish("greet", "two");
    registry.publish("new", "x");
    let reply = deliver(&client, "/mcp/hooks/s").await;
    assert_eq!((reply.status, reply.body.len()), (202, 0));
    changes.event().await.expect("a notification");
    serves(&client, "s__greet", &["two"]).await;
    lists(&client, &["s__greet", "s__new"]).await;
}

#[tokio::test]
async fn labels_that_a_person_moves_one_after_the_other_are_all_followed_at_once() {
    let registry = Registry::default();
    registry.publish("greet", "text 0");
    let (store, log) = (registry.serve().await, Log::new());
    let gateway = Gateway::start(&(table(&store) + &log.table())).await;
    let client = gateway.client();
    serves(&client, "s__greet", &["text 0"]).await;
    // Lists of servers that change as often are fetched less often.
    for number in 1..=12 {
        let text = format!("text {number}");
        registry.publish("greet", &text);
        assert_eq!(deliver(&client, "/mcp/hooks/s").await.status, 202);
        serves(&client, "s__greet", &[&text]).await;
    }
    gateway.drain().await;
    assert_eq!(log.of("list_slowed").len(), 0);
}

#[cfg(unix)]
#[tokio::test]
async fn a_push_to_a_git_server_has_the_repository_fetched_at_once() {
    let repository = Repository::new();
    let keys = format!("webhook_secret = {{ value = \"{SECRET}\" }}\n");
    let table = repository.table(&keys).replace("poll = \"100ms\"", "poll = \"1d\"");
    let gateway = Gateway::start(&table).await;
    super::git::serves(&gateway, "one").await;
    let client = gateway.client();
    let hub = format!("sha256={}", hex(sign("{}").as_ref()));
    let ways = [("X-Hub-Signature-256", hub.as_str()), ("X-Gitlab-Token", SECRET)];
    for (text, header) in ["two", "three"].into_iter().zip(ways) {
        repository.commit(text);
        let reply = client.send("POST", "/mcp/hooks/team", &[header], b"{}").await;
        assert_eq!(reply.status, 202, "{header:?}");
        super::git::serves(&gateway, text).await;
    }
    gateway.drain().await;
}

#[tokio::test]
async fn a_webhook_that_is_not_signed_shows_nothing_and_has_no_effect() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    let store = registry.serve().await;
    let toml = table(&store);
    let other = Registry::default().serve().await;
    let other = format!(
        "[upstreams.t]\ntransport = \"mlflow\"\nurl = \"http://{}\"\npoll = \"1d\"\nstate = \"\"\n",
        other.addr
    );
    let gateway = Gateway::start(&(api_key("ada", "k") + &toml + &other)).await;
    let client = gateway.client().with("Authorization", "Bearer k");
    serves(&client, "s__greet", &["one"]).await;
    let stranger = gateway.client();
    let asked = store.received().len();
    let mut replies = Vec::new();
    for path in
        ["/mcp/hooks/s", "/mcp/hooks/t", "/mcp/hooks/nobody", "/mcp/hooks/", "/mcp/hooks/s/x"]
    {
        for headers in [&[][..], &[("X-Gitlab-Token", SECRET)]] {
            let reply = stranger.send("POST", path, headers, b"{}").await;
            assert_eq!(reply.status, 404, "{path}");
            replies.push(reply.body);
        }
    }
    replies.dedup();
    assert_eq!(replies.len(), 1, "all alike");
    for path in ["/mcp/hooks/s", "/mcp/hooks/nobody"] {
        assert_eq!(stranger.send("POST", path, &[], b"{}").await.status, 429);
        assert_eq!(stranger.send("GET", path, &[], b"").await.status, 405);
    }
    assert_eq!(store.received().len(), asked);
    assert_eq!(stranger.modern("prompts/list", json!({})).await.status, 401);
    assert_eq!(client.names().await.0, ["s__greet"]);
    // The right sender may share the address.
    assert_eq!(deliver(&stranger, "/mcp/hooks/s").await.status, 202);
}

#[tokio::test]
async fn without_a_secret_there_is_no_path_of_webhooks() {
    let store = Registry::default().serve().await;
    let table = table(&store);
    let secret = table.lines().find(|line| line.starts_with("webhook_secret")).unwrap();
    let gateway = Gateway::start(&(api_key("ada", "k") + &table.replace(secret, ""))).await;
    assert_eq!(gateway.client().send("POST", "/mcp/hooks/s", &[], b"{}").await.status, 401);
}

#[tokio::test]
async fn a_webhook_is_small() {
    let store = Registry::default().serve().await;
    let gateway = Gateway::start(&table(&store)).await;
    let body = vec![b' '; (1 << 20) + 1];
    // The gateway may close before it has read all.
    if let Some(reply) = gateway.client().try_send("POST", "/mcp/hooks/s", &[], &body).await {
        assert_eq!(reply.status, 413);
    }
    let announced = b"POST /mcp/hooks/s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                      Content-Length: 1048577\r\n\r\n";
    assert_eq!(gateway.client().raw(announced).await.expect("an answer").status, 413);
}

#[tokio::test]
async fn a_flood_of_webhooks_costs_the_store_one_walk_a_second() {
    let registry = Registry::default();
    registry.publish("greet", "one");
    let store = registry.serve().await;
    let began = Instant::now();
    let gateway = Gateway::start(&table(&store)).await;
    let client = gateway.client();
    serves(&client, "s__greet", &["one"]).await;
    while store.received().len() < 3 {
        assert_eq!(deliver(&client, "/mcp/hooks/s").await.status, 202);
    }
    assert!(began.elapsed().as_millis() >= 2_000, "{:?}", began.elapsed());
}
