//! Batches, which 2025-03-26 has and no other revision.

use serde_json::{Value, json};

use crate::support::client::request;
use crate::support::{Gateway, Upstream};

async fn gateway() -> (Gateway, Upstream) {
    let upstream = Upstream::with_prompts(&["p"]).await;
    (Gateway::start(&upstream.table("up")).await, upstream)
}

#[tokio::test]
async fn each_item_is_answered_by_itself_in_one_array() {
    let (gateway, _upstream) = gateway().await;
    let client = gateway.client().legacy("2025-03-26").await;
    let batch = json!([
        request(1, "prompts/list", json!({})),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request(2, "prompts/get", json!({"name": "up__nope"})),
        {"jsonrpc": "2.0", "id": 3, "Method": "ping"},
    ]);
    let reply = client.post(&batch).await;
    assert_eq!(reply.status, 200);
    let answers = reply.answers();
    let ids: Vec<_> = answers.iter().map(|a| a["id"].clone()).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(answers[0]["result"]["prompts"][0]["name"], "up__p");
    assert_eq!(answers[1]["error"]["code"], -32602);
    assert_eq!(answers[2]["error"]["code"], -32600);
    let streamed = client.clone().with("Accept", "text/event-stream").post(&batch).await;
    assert_eq!(streamed.json(), json!(answers));
}

#[tokio::test]
async fn notifications_alone_are_accepted_and_bounds_are_kept() {
    let (gateway, _upstream) = gateway().await;
    let client = gateway.client().legacy("2025-03-26").await;
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let reply = client.post(&json!([notice, notice])).await;
    assert_eq!((reply.status, reply.body.len()), (202, 0));
    let pings =
        |n: u64| Value::from((0..n).map(|i| request(i, "ping", json!({}))).collect::<Vec<_>>());
    assert_eq!(client.post(&pings(100)).await.status, 200);
    let refused = (400, -32600, "batch_unsupported".to_owned());
    assert_eq!(client.post(&pings(101)).await.refusal(), refused);
    assert_eq!(client.post(&json!([])).await.refusal(), refused);
    let params = json!({"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {}});
    let initialize = json!([request(1, "initialize", params)]);
    assert_eq!(client.post(&initialize).await.refusal(), refused);
    for revision in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let client = gateway.client().legacy(revision).await;
        assert_eq!(client.post(&pings(1)).await.refusal(), refused, "{revision}");
    }
    assert_eq!(gateway.client().post(&pings(1)).await.refusal(), refused, "without a session");
}

#[tokio::test]
async fn the_same_id_twice_in_a_batch_runs_once() {
    let (gateway, _upstream) = gateway().await;
    let client = gateway.client().legacy("2025-03-26").await;
    let list = request(1, "prompts/list", json!({}));
    let reply = client.post(&json!([list, list])).await;
    let answers = reply.answers();
    assert!(answers[0]["result"].is_object());
    assert_eq!(answers[1]["error"]["data"]["reason"], "id_in_use");
}

#[tokio::test]
async fn responses_that_are_too_large_together_are_refused_with_the_bound() {
    let upstream = Upstream::modern(|asked| {
        let content = json!({"type": "text", "text": "x".repeat(10 << 20)});
        let messages = json!([{"role": "user", "content": content}]);
        (asked.method() == "prompts/get")
            .then(|| asked.result(json!({"resultType": "complete", "messages": messages})))
    })
    .await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    gateway.summary().await;
    let client = gateway.client().legacy("2025-03-26").await;
    let gets = (1..=7).map(|id| request(id, "prompts/get", json!({"name": "up__p"})));
    let reply = client.post(&Value::from(gets.collect::<Vec<_>>())).await;
    let answers = reply.answers();
    let (last, others) = answers.split_last().unwrap();
    assert!(others.iter().all(|answer| answer["result"].is_object()));
    assert_eq!(last["error"]["data"]["reason"], "batch_too_large");
    let message = last["error"]["message"].as_str().unwrap();
    assert!(message.contains("67108864 bytes"), "{message}");
}
