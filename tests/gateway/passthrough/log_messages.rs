//! Log messages of the upstream of `[passthrough]`, which belong to calls.

use super::*;

fn log(level: &str, text: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/message",
        "params": {"level": level, "logger": "db", "data": {"text": text}}})
}

/// A server that logs on the stream of each call, before its result.
async fn logging(is_modern: bool) -> Upstream {
    server(is_modern, |asked| {
        (asked.method() == "tools/call")
            .then(|| {
                let (live, scripted) = OpenStream::new();
                for level in ["debug", "warning", "emergency", "loud"] {
                    live.send(&log(level, asked.message["params"]["name"].as_str().unwrap()));
                }
                let result = json!({"resultType": "complete", "content": [], "said": "done"});
                live.send(&json!({"jsonrpc": "2.0", "id": asked.message["id"], "result": result}));
                scripted
            })
            .or_else(|| tool_server(asked))
    })
    .await
}

/// The levels of the messages before the result of a call.
async fn levels(client: &Client, headers: &[(&str, &str)], body: &Value) -> Vec<String> {
    let mut stream = client.stream("POST", headers, body.to_string().as_bytes()).await;
    let mut levels = Vec::new();
    loop {
        let message = stream.event().await.expect("a message").json();
        if message.get("method").is_none() {
            assert_eq!(message["result"]["said"], "done", "{message}");
            return levels;
        }
        assert_eq!(message["method"], "notifications/message", "{message}");
        let params = &message["params"];
        assert_eq!(params["data"]["text"], "own", "of its own call: {message}");
        levels.push(params["level"].as_str().unwrap().to_owned());
    }
}

async fn legacy_levels(client: &Client) -> Vec<String> {
    levels(client, &EVENTS, &request(3, "tools/call", json!({"name": "own"}))).await
}

async fn set_level(client: &Client, level: &str) -> Value {
    let body = request(2, "logging/setLevel", json!({"level": level}));
    client.post(&body).await.json()
}

#[tokio::test]
async fn messages_of_a_call_reach_its_client_from_the_level_that_it_asked_for() {
    for is_modern in [false, true] {
        let upstream = logging(is_modern).await;
        let gateway = before(&upstream, "").await;
        let (quiet, loud) = (
            gateway.client().legacy("2025-11-25").await,
            gateway.client().legacy("2025-03-26").await,
        );
        assert_eq!(set_level(&loud, "warning").await["result"], json!({}));
        let called = ask_session(&quiet, "tools/call", json!({"name": "own"})).await;
        assert_eq!(called["said"], "done", "without a level there are no messages");
        assert_eq!(legacy_levels(&loud).await, ["warning", "emergency"], "{is_modern}");
        assert_eq!(set_level(&quiet, "alert").await["result"], json!({}));
        assert_eq!(legacy_levels(&quiet).await, ["emergency"], "{is_modern}");

        let key = "io.modelcontextprotocol/logLevel";
        let params = json!({"name": "own", "_meta": {key: "debug"}});
        let (body, headers) = modern(4, "tools/call", params);
        let mut headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        headers.push(EVENTS[1]);
        let told = levels(&gateway.client(), &headers, &body).await;
        assert_eq!(told, ["debug", "warning", "emergency"], "{is_modern}");
        let silent = gateway.client().ask("tools/call", json!({"name": "own"})).await;
        assert_eq!(silent["said"], "done");

        let asked = upstream.received();
        let of = |method: &'static str| asked.iter().filter(move |a| a.method() == method);
        let levels = of("logging/setLevel").map(|asked| asked.message["params"]["level"].clone());
        let session: Vec<Value> = levels.collect();
        let levels = of("tools/call").map(|asked| asked.message["params"]["_meta"][key].clone());
        let calls: Vec<Value> = levels.collect();
        if is_modern {
            assert_eq!(json!(calls), json!([null, "warning", "alert", "debug", null]));
            assert!(session.is_empty());
        } else {
            assert_eq!(session, ["warning", "debug"], "the least severe that was asked for");
            assert!(calls.iter().all(|level| level.is_null()));
        }
    }
}

#[tokio::test]
async fn a_level_is_one_of_the_protocol_and_of_one_session() {
    let upstream = logging(false).await;
    let gateway = before(&upstream, "").await;
    let client = gateway.client().legacy("2025-11-25").await;
    for level in [json!("loud"), json!(3), Value::Null] {
        let body = request(2, "logging/setLevel", json!({"level": level}));
        let refused = client.post(&body).await;
        assert_eq!(
            (refused.status, refused.json()["error"]["code"].clone()),
            (200, (-32602).into())
        );
    }
    let body = request(2, "logging/setLevel", json!({"level": "debug"}));
    assert_eq!(client.modern("logging/setLevel", json!({"level": "debug"})).await.status, 404);
    assert!(client.post(&body).await.json()["result"].is_object());
    assert!(!upstream.methods().contains(&"logging/setLevel".to_owned()), "no call needs it yet");
}

#[tokio::test]
async fn messages_outside_of_calls_reach_no_client() {
    let (live, scripted) = OpenStream::new();
    let upstream = server(false, move |asked| match asked.http_method.as_str() {
        "GET" => Some(scripted.clone()),
        _ => tool_server(asked),
    })
    .await;
    let gateway = before(&upstream, "").await;
    upstream.until(|all| all.iter().any(|asked| asked.http_method == "GET")).await;
    let client = gateway.client().legacy("2025-06-18").await;
    assert_eq!(set_level(&client, "debug").await["result"], json!({}));
    let mut stream = client.stream("GET", &[("Accept", "text/event-stream")], b"").await;
    live.send(&log("emergency", "of whom?"));
    live.send(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    let next = stream.event().await.expect("an event").json();
    assert_eq!(next["method"], "notifications/tools/list_changed");
}
