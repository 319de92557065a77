//! Authentication: every route with every credential, and state that belongs to one caller.

use serde_json::json;

use crate::support::client::request;
use crate::support::gateway::api_key;
use crate::support::{Client, Gateway, Upstream};

/// Keys of two callers, as `promptgate key new` makes them.
const ALICE: &str = "pg_alice";
const BOB: &str = "pg_bob";

fn keys() -> String {
    api_key("alice", ALICE) + &api_key("bob", BOB)
}

fn with_key(client: Client, key: &str) -> Client {
    client.with("Authorization", &format!("Bearer {key}"))
}

#[tokio::test]
async fn a1_every_route_wants_a_credential_but_preflights() {
    let gateway = Gateway::start(&keys()).await;
    let credentials: [(&[(&str, &str)], bool); 9] = [
        (&[], false),
        (&[("Authorization", "Bearer pg_nobody")], false),
        (&[("Authorization", "Bearer")], false),
        (&[("Authorization", "Basic YWxpY2U6cGdfYWxpY2U=")], false),
        (&[("Authorization", "Negotiate x")], false),
        (&[("Authorization", "Bearer pg_alice"), ("Authorization", "Bearer pg_alice")], false),
        (&[("Authorization", "Bearer pg_nobody"), ("X-API-Key", "pg_alice")], false),
        (&[("Authorization", "Bearer pg_alice")], true),
        (&[("X-API-Key", "pg_bob")], true),
    ];
    let body =
        request(1, "initialize", json!({"protocolVersion": "2025-11-25", "capabilities": {}}));
    let mut looked_at = 0;
    for (headers, is_good) in credentials {
        for method in ["GET", "POST", "DELETE", "PUT", "OPTIONS"] {
            for path in ["/mcp", "/sse", "/", "/mcp?api_key=pg_alice", "/metrics", "//mcp/"] {
                if is_good && (method, path) == ("GET", "/sse") {
                    continue; // a stream that stays open
                }
                let mut all = vec![("Content-Type", "application/json")];
                all.extend(headers);
                let reply = gateway
                    .client()
                    .with("Cookie", "api_key=pg_alice")
                    .send(method, path, &all, body.to_string().as_bytes())
                    .await;
                let expected_401 = !is_good && method != "OPTIONS";
                assert_eq!(reply.status == 401, expected_401, "{method} {path} {headers:?}");
                if expected_401 {
                    assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
                    assert_eq!(reply.refusal().2, "unauthorized");
                    let text = String::from_utf8_lossy(&reply.body).into_owned();
                    assert!(!text.contains("pg_"), "a credential is repeated: {text}");
                }
                looked_at += 1;
            }
        }
    }
    assert!(looked_at > 200, "{looked_at}");
}

#[tokio::test]
async fn a1_the_body_of_an_unknown_caller_is_not_read() {
    let gateway = Gateway::start(&(keys() + "[server.limits]\nbody = \"20s\"\n")).await;
    // A body that never comes: the answer is there nevertheless.
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 1000\r\nConnection: close\r\n\r\n";
    let reply = gateway.client().raw(head.as_bytes()).await.expect("an answer");
    assert_eq!(reply.status, 401);
}

#[tokio::test]
async fn a8_what_belongs_to_one_caller_is_unknown_to_another() {
    let upstream = Upstream::with_prompts(&["a", "b"]).await;
    let toml = keys() + "[listing]\npage_size = 1\n" + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let alice = with_key(gateway.client(), ALICE).legacy("2025-11-25").await;
    let session = alice.session().to_owned();
    let ping = request(1, "ping", json!({}));
    assert_eq!(alice.post(&ping).await.status, 200);
    let bob = with_key(gateway.client(), BOB);
    let thief = bob.clone().with("Mcp-Session-Id", &session);
    let unknown = bob.clone().with("Mcp-Session-Id", "unknown").post(&ping).await;
    let stolen = thief.post(&ping).await;
    assert_eq!((stolen.status, &stolen.body), (404, &unknown.body), "byte for byte");
    assert_eq!(thief.send("GET", "/mcp", &[], b"").await.status, 404);
    assert_eq!(thief.send("DELETE", "/mcp", &[], b"").await.status, 404);
    assert_eq!(alice.post(&ping).await.status, 200, "unharmed");

    let first = with_key(gateway.client(), ALICE).ask("prompts/list", json!({})).await;
    assert_eq!(first["cacheScope"], "private", "a cache must not give the cursor to others");
    let cursor = json!({"cursor": first["nextCursor"]});
    let stolen = bob.ask_error("prompts/list", cursor.clone()).await;
    let forged = bob.ask_error("prompts/list", json!({"cursor": "AAAA"})).await;
    assert_eq!(stolen, forged);
    with_key(gateway.client(), ALICE).ask("prompts/list", cursor).await;
}

#[tokio::test]
async fn a_page_with_a_cursor_is_private_where_callers_are_told_apart() {
    let upstream = Upstream::with_prompts(&["a", "b"]).await;
    let open = "[auth]\nrequired = false\n".to_owned() + &keys();
    for (auth, page_size, scope) in
        [(open.as_str(), 1, "private"), (&open, 2, "public"), ("", 1, "public")]
    {
        let listing = format!("[listing]\npage_size = {page_size}\n");
        let gateway = Gateway::start(&(auth.to_owned() + &listing + &upstream.table("up"))).await;
        gateway.summary().await;
        let first = gateway.client().ask("prompts/list", json!({})).await;
        assert_eq!(first["cacheScope"], scope, "{auth:?} {page_size}");
        if let Some(cursor) = first.get("nextCursor") {
            let next = gateway.client().ask("prompts/list", json!({"cursor": cursor})).await;
            assert_eq!(next["cacheScope"], scope);
        }
    }
}

#[tokio::test]
async fn w17_a_stream_of_another_caller_takes_no_messages() {
    let gateway = Gateway::start(&keys()).await;
    let key = ("X-API-Key", ALICE);
    let accept = ("Accept", "text/event-stream");
    let mut stream = gateway.client().stream_at("GET", "/sse", &[key, accept], b"").await;
    let endpoint = stream.event().await.unwrap().data;
    let body = request(1, "ping", json!({})).to_string();
    let json = ("Content-Type", "application/json");
    let post = async |key: &'static str| {
        let headers = [json, ("X-API-Key", key)];
        gateway.client().send("POST", &endpoint, &headers, body.as_bytes()).await.status
    };
    assert_eq!([post(BOB).await, post(ALICE).await], [404, 202]);
}

#[tokio::test]
async fn those_without_a_credential_may_be_let_in_but_not_those_with_a_wrong_one() {
    let gateway = Gateway::start(&("[auth]\nrequired = false\n".to_owned() + &keys())).await;
    gateway.client().ask("prompts/list", json!({})).await;
    let wrong = with_key(gateway.client(), "pg_nobody").modern("prompts/list", json!({})).await;
    assert_eq!(wrong.status, 401);
}
