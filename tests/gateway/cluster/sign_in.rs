//! Sign-ins of callers at one replica, and what the others know of them.

use serde_json::{Value, json};

use super::{administered, create_user, revoke};
use crate::support::browser::{Browser, PAGE, text};
use crate::support::client::Client;
use crate::support::client_modes::{ClientMode, ModeClient};
use crate::support::gateway::api_key;
use crate::support::replicas::{Replica, Store};
use crate::support::wiki::Wiki;
use crate::support::{Upstream, eventually};

/// Two replicas before a wiki that lists for each caller, and a library for all.
struct Site {
    wiki: Wiki,
    upstream: Upstream,
    store: Store,
    folder: tempfile::TempDir,
}

impl Site {
    async fn start() -> Self {
        let wiki = Wiki::lasting(3600);
        let upstream = wiki.start().await;
        let store = Store::start().await;
        create_user(&store).await;
        Self { wiki, upstream, store, folder: tempfile::tempdir().unwrap() }
    }

    async fn replica(&self, name: &str) -> Replica {
        let folder = self.folder.path().join(name);
        let tables = format!(
            "[listing]\ndebounce = \"20ms\"\ndebounce_max = \"200ms\"\n\
             {}poll = \"1h\"\nact_as = \"caller\"\nlist_as = \"caller\"\n\
             credential = {{ sign_in = {{}} }}\n{}",
            self.upstream.patient_table("wiki"),
            ["ada", "bob"].map(|id| api_key(id, &format!("key-of-{id}"))).concat()
        );
        administered(&self.store, &folder, "https://gate.example.com/mcp", &tables).await
    }
}

fn of(replica: &Replica, caller: &str) -> Client {
    replica.client().with("Authorization", &format!("Bearer key-of-{caller}"))
}

async fn listed(client: &mut ModeClient, prompts: usize) {
    let result = client.ask("prompts/list", json!({})).await;
    assert_eq!(result["prompts"].as_array().unwrap().len(), prompts, "{result}");
}

/// The error of a get without a sign-in.
async fn asked(client: &Client) -> Value {
    let error = client.ask_error("prompts/get", json!({"name": "wiki__p"})).await;
    assert_eq!(error["data"]["reason"], "sign_in_needed", "{error}");
    error["data"].clone()
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn replicas_know_at_once_who_has_signed_in_and_who_has_signed_out() {
    let site = Site::start().await;
    let (first, second) = (site.replica("a").await, site.replica("b").await);
    let (ada, bob) = (of(&first, "ada"), of(&first, "bob"));
    eventually(
        async || ada.modern("prompts/list", json!({})).await.json(),
        |listed| listed["result"]["prompts"].as_array().is_some_and(|all| all.len() == 1),
    )
    .await;
    let eliciting = json!({"elicitation": {"url": {}}});
    let mut session =
        ModeClient::over_http(ada.clone(), ClientMode::Http("2025-11-25"), eliciting).await;
    let mut modern = ModeClient::over_http(ada.clone(), ClientMode::Modern, json!({})).await;
    listed(&mut session, 1).await;
    listed(&mut modern, 1).await;
    let refused = session.answer("prompts/get", json!({"name": "wiki__p"})).await;
    assert_eq!(refused["error"]["code"], -32042, "{refused}");
    let page = refused["error"]["data"]["elicitations"][0].clone();
    let (link, id) = (page["url"].as_str().unwrap(), &page["elicitationId"]);
    assert!(link.starts_with(PAGE), "{page}");
    let asked_elsewhere = asked(&of(&second, "ada")).await;
    let code = asked_elsewhere["code"].as_str().unwrap();
    assert!(page["message"].as_str().unwrap().contains(code), "both replicas have one link");

    // The whole sign-in at the other replica: the first one tells its clients.
    Browser::new(second.client()).sign_in(link, code).await;
    let complete = session.next_message().await;
    assert_eq!(complete["method"], "notifications/elicitation/complete", "{complete}");
    assert_eq!(&complete["params"]["elicitationId"], id);
    for client in [&mut session, &mut modern] {
        client.await_list_changed().await;
        listed(client, 2).await;
        client.ask("prompts/get", json!({"name": "wiki__p"})).await;
    }
    of(&second, "ada").ask("prompts/get", json!({"name": "wiki__p"})).await;
    assert_eq!(site.wiki.state().issues(), 1, "one sign-in serves both");
    asked(&bob).await;
    for replica in [&first, &second] {
        let again = Browser::new(replica.client()).open(link).await;
        assert_eq!(again.status, 403, "{}", text(&again));
    }

    // An account that is ended at one replica is ended at the other, too.
    let revoked = revoke(&second, "ada").await;
    assert_eq!(revoked[0]["revokedAtProvider"], true, "{revoked}");
    for client in [&mut session, &mut modern] {
        client.await_list_changed().await;
        listed(client, 1).await;
    }
    asked(&ada).await;
}
