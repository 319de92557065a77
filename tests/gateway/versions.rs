//! Two builds of the gateway in one cluster, as during an upgrade: `.ci/nightly versions` makes the
//! second one, whose messages between replicas have another version.

use serde_json::json;

use crate::support::client::request;
use crate::support::process::BINARY;
use crate::support::replicas::{Replicas, Store};
use crate::support::server_request_upstream::{accept_blue, form_elicitation};
use crate::support::{Upstream, metrics};

#[tokio::test]
#[ignore = "needs redis-server, and another build as PROMPTGATE_OTHER_BUILD"]
async fn replicas_of_two_builds_share_sessions_and_refuse_messages_that_the_other_cannot_read() {
    let other = std::env::var("PROMPTGATE_OTHER_BUILD").expect("the path of another build");
    let store = Store::start().await;
    let server_requests = vec![form_elicitation("Which colour?")];
    let upstream = Upstream::legacy_with_server_requests(server_requests).await;
    let (url, toml) = (store.url(), upstream.patient_table("up"));
    let replicas = Replicas::start_builds([BINARY, &other, BINARY], [&url; 3], &toml).await;
    let [first, second, third] = &replicas.replicas[..] else { panic!("three") };
    let capabilities = json!({"elicitation": {"form": {}}});
    let client = first.client().legacy_with("2025-11-25", capabilities).await;
    let [at_second, at_third] =
        [second, third].map(|replica| replica.client().with("Mcp-Session-Id", client.session()));
    let list = request(1, "prompts/list", json!({}));
    assert_eq!(at_second.post(&list).await.status, 200, "the other build knows the session");

    let headers =
        [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
    let get = request(7, "prompts/get", json!({"name": "up__p", "arguments": {"a": "1"}}));
    let mut stream = client.stream("POST", &headers, get.to_string().as_bytes()).await;
    let asked = stream.event().await.expect("a server request").json();
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": accept_blue()});
    let (status, _, reason) = at_second.post(&answer).await.refusal();
    assert_eq!((status, reason.as_str()), (503, "replica_unreachable"));
    let relayed = metrics(&second.admin, &["promptgate_cluster_relayed"]).await;
    assert!(relayed.keys().any(|name| name.contains("\"other_version\"")), "{relayed:?}");
    assert_eq!(at_third.post(&answer).await.status, 202, "the same build hands it over");
    assert!(stream.event().await.expect("the response").json().get("result").is_some());
}
