//! Messages of clients, and those that are refused before any upstream is called (fault matrix, W).

use std::time::Duration;

use config::Limits;
use serde_json::{Value, json};

use crate::support::client::{MODERN, modern, request};
use crate::support::{Client, Gateway, Upstream};

async fn gateway() -> (Gateway, Upstream) {
    let upstream = Upstream::with_prompts(&["p"]).await;
    (Gateway::before(&[("up", &upstream)]).await, upstream)
}

type HeaderList = Vec<(&'static str, String)>;

/// A client of each era: every refusal that does not depend on one holds for both.
async fn clients(gateway: &Gateway) -> Vec<Client> {
    let mut clients = vec![gateway.client().with("MCP-Protocol-Version", MODERN)];
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        clients.push(gateway.client().legacy(revision).await);
    }
    clients
}

#[tokio::test]
async fn w1_foreign_hosts_are_403_and_reach_nobody() {
    let (gateway, upstream) = gateway().await;
    gateway.summary().await;
    let before = upstream.received().len();
    let (body, headers) = modern(1, "prompts/get", json!({"name": "up__p"}));
    let body = body.to_string();
    for host in ["evil.com", "127.0.0.1.evil.com", "evil.com:8080", "localhost@evil.com"] {
        let mut headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        headers.push(("Host", host));
        let reply = gateway.client().send("POST", "/mcp", &headers, body.as_bytes()).await;
        assert_eq!(reply.refusal(), (403, -32600, "host_rejected".into()), "{host}");
    }
    for head in [
        "POST /mcp HTTP/1.1\r\n",
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nHost: evil.com\r\n",
        "POST http://evil.com/mcp HTTP/1.1\r\nHost: localhost\r\n",
    ] {
        let raw = format!("{head}Connection: close\r\nContent-Length: 0\r\n\r\n");
        let reply = gateway.client().raw(raw.as_bytes()).await.unwrap();
        assert!(matches!(reply.status, 400 | 403), "{head:?} {reply:?}");
    }
    assert_eq!(upstream.received().len(), before);
}

#[tokio::test]
async fn w2_foreign_origins_are_403_and_allowed_ones_are_echoed() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = "[server]\nallowed_origins = [\"https://app.example.com\"]\n".to_owned();
    let gateway = Gateway::start(&(toml + &upstream.table("up"))).await;
    for origin in ["https://evil.com", "null", "https://app.example.com.evil.com"] {
        let reply = gateway.client().with("Origin", origin).modern("prompts/list", json!({})).await;
        assert_eq!(reply.refusal(), (403, -32600, "origin_rejected".into()), "{origin}");
        assert!(reply.json().get("id").is_none());
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
    let twice =
        gateway.client().with("Origin", "http://localhost").with("Origin", "http://localhost");
    assert_eq!(twice.modern("prompts/list", json!({})).await.status, 403);
    for origin in ["https://app.example.com", "http://localhost:5173"] {
        let client = gateway.client().with("Origin", origin);
        let reply = client.modern("prompts/list", json!({})).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("access-control-allow-origin"), Some(origin));
        let preflight = client.send("OPTIONS", "/mcp", &[], b"").await;
        assert_eq!(preflight.status, 204);
        assert_eq!(preflight.header("access-control-allow-origin"), Some(origin));
        let exposed = preflight.header("access-control-expose-headers").unwrap();
        assert!(exposed.contains("Mcp-Session-Id") && exposed.contains("WWW-Authenticate"));
    }
    let preflight = gateway.client().with("Origin", "https://evil.com");
    assert_eq!(preflight.send("OPTIONS", "/mcp", &[], b"").await.status, 403);
}

#[tokio::test]
async fn w3_bodies_that_are_not_plain_json_are_415() {
    let (gateway, _upstream) = gateway().await;
    let body = request(1, "ping", json!({})).to_string();
    for client in clients(&gateway).await {
        let send = |headers: &'static [(&str, &str)]| {
            let (client, body) = (client.clone(), body.clone());
            async move { client.send("POST", "/mcp", headers, body.as_bytes()).await.refusal() }
        };
        let refused = (415, -32600, "unsupported_media_type".to_owned());
        assert_eq!(send(&[("Content-Type", "text/plain")]).await, refused);
        assert_eq!(send(&[("Content-Type", "application/jsonfoo")]).await, refused);
        assert_eq!(send(&[]).await, refused);
        let zipped = &[("Content-Type", "application/json"), ("Content-Encoding", "gzip")];
        assert_eq!(send(zipped).await, refused);
        let reply = client.clone().with("Accept", "text/html").post_bytes(body.as_bytes()).await;
        assert_eq!(reply.refusal(), (406, -32600, "not_acceptable".into()));
    }
}

#[tokio::test]
async fn w4_body_over_limit_is_413_as_soon_as_that_is_known() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = "[server.limits]\nbody_size = \"4KiB\"\n".to_owned();
    let gateway = Gateway::start(&(toml + &upstream.table("up"))).await;
    let pad = |size: usize| {
        let (body, _) = modern(1, "prompts/list", json!({"pad": ""}));
        let body = body.to_string();
        body.replace("\"pad\":\"\"", &format!("\"pad\":\"{}\"", "x".repeat(size - body.len())))
    };
    let (_, headers) = modern(1, "prompts/list", json!({}));
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let client = gateway.client();
    let exact = client.send("POST", "/mcp", &headers, pad(4096).as_bytes()).await;
    assert_eq!(exact.status, 200, "{exact:?}");
    let over = client.send("POST", "/mcp", &headers, pad(4097).as_bytes()).await;
    assert_eq!(over.refusal(), (413, -32600, "body_too_large".into()));

    // A length that only claims to be large, and a stream that does not end.
    let lying = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: 99999999999\r\n\r\n";
    assert_eq!(client.raw(lying.as_bytes()).await.unwrap().status, 413);
    let endless = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                   Transfer-Encoding: chunked\r\n\r\n"
        .to_owned()
        + &format!("400\r\n{}\r\n", "x".repeat(1024)).repeat(8);
    assert_eq!(client.raw(endless.as_bytes()).await.unwrap().status, 413);
}

#[tokio::test]
async fn w4_a_body_that_does_not_come_is_408() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = "[server.limits]\nbody = \"50ms\"\n".to_owned();
    let gateway = Gateway::start(&(toml + &upstream.table("up"))).await;
    let slow = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 10\r\n\r\n{";
    let reply = gateway.client().raw(slow.as_bytes()).await.unwrap();
    assert_eq!(reply.refusal(), (408, -32600, "body_timeout".into()));
}

#[tokio::test]
async fn w5_what_is_no_json_is_400_and_the_session_lives() {
    let (gateway, _upstream) = gateway().await;
    for (index, client) in clients(&gateway).await.into_iter().enumerate() {
        for body in
            [&b""[..], b"{", b"\xff\xfe", b"NaN", b"\xef\xbb\xbf{}", b"{\"id\":1,}", b"{} {}"]
        {
            let reply = client.post_bytes(body).await;
            assert_eq!(reply.refusal(), (400, -32700, "not_json".into()), "{body:?}");
            assert!(reply.json().get("id").is_none_or(Value::is_null));
        }
        assert_eq!(client.post_bytes(b"[]").await.refusal().1, -32600);
        let alive = client.post(&request(7, "ping", json!({}))).await;
        // The first client is a modern one: its ping lacks the metadata.
        assert_eq!(alive.status, if index == 0 { 400 } else { 200 }, "{alive:?}");
        assert_eq!(alive.json()["id"], 7);
    }
}

#[tokio::test]
async fn w6_members_that_readers_could_take_differently_are_refused() {
    let (gateway, _upstream) = gateway().await;
    for client in clients(&gateway).await {
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{"cursor":"a","cursor":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"a":1,"\u0061":2}}}"#,
        ] {
            let refusal = client.post_bytes(body.as_bytes()).await.refusal();
            assert_eq!(refusal, (400, -32600, "duplicate_member".into()), "{body}");
        }
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"Method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","paramſ":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method\u0000":"ping"}"#,
        ] {
            let reply = client.post_bytes(body.as_bytes()).await;
            assert_eq!(reply.refusal(), (400, -32600, "not_json_rpc".into()), "{body}");
            assert_eq!(reply.json()["id"], 1);
        }
    }
}

#[tokio::test]
async fn w7_depth_and_ids_are_bounded_and_valid_ids_come_back_byte_for_byte() {
    let (gateway, _upstream) = gateway().await;
    for client in clients(&gateway).await {
        let deep = |n: usize| {
            let nested = "[".repeat(n) + &"]".repeat(n);
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"x":{nested}}}}}"#)
        };
        assert_eq!(client.post_bytes(deep(63).as_bytes()).await.refusal().2, "too_deep");
        assert_ne!(client.post_bytes(deep(62).as_bytes()).await.refusal().2, "too_deep");
        let million = client.post_bytes("[".repeat(1_000_000).as_bytes()).await;
        assert_eq!(million.refusal(), (400, -32600, "too_deep".into()));
        for id in ["1.5", "null", "{}", "9223372036854775808", "true"] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
            assert_eq!(client.post_bytes(body.as_bytes()).await.refusal().1, -32600, "{id}");
        }
        let infinite = r#"{"jsonrpc":"2.0","id":1e400,"method":"ping"}"#;
        let refusal = client.post_bytes(infinite.as_bytes()).await.refusal();
        assert_eq!(refusal, (400, -32600, "ambiguous_value".into()));
    }
    let client = gateway.client().legacy("2025-11-25").await;
    for id in ["0", "-7", "9223372036854775807", "\"1\"", "\"\\u00e9\"", "\"\""] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let reply = client.post_bytes(body.as_bytes()).await;
        let text = String::from_utf8(reply.body).unwrap();
        assert_eq!(text, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
    }
    let keys: Vec<_> = (0..100_000).map(|i| format!("\"k{i}\":0")).collect();
    let body =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{{}}}}}"#, keys.join(","));
    assert_eq!(client.post_bytes(body.as_bytes()).await.status, 200);
}

#[tokio::test]
async fn w8_headers_that_do_not_repeat_the_body_are_32020() {
    let (gateway, _upstream) = gateway().await;
    let (body, good) = modern(1, "prompts/get", json!({"name": "up__p"}));
    let body = body.to_string();
    let send = async |change: &dyn Fn(&mut HeaderList)| {
        let mut headers = good.clone();
        change(&mut headers);
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        gateway.client().send("POST", "/mcp", &headers, body.as_bytes()).await
    };
    let set = |name: &'static str, value: &'static str| {
        move |headers: &mut HeaderList| {
            let header = headers.iter_mut().find(|(n, _)| *n == name).unwrap();
            header.1 = value.to_owned();
        }
    };
    let mismatch = (400, -32020, "header_mismatch".to_owned());
    for name in ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"] {
        let without = send(&|headers| headers.retain(|(n, _)| *n != name)).await;
        assert_eq!(without.refusal(), mismatch, "{name}");
        assert_eq!(without.json()["id"], 1);
        let twice = send(&|headers| {
            let again = headers.iter().find(|(n, _)| *n == name).unwrap().clone();
            headers.push(again);
        })
        .await;
        assert_eq!(twice.refusal(), mismatch, "{name}");
    }
    assert_eq!(send(&set("Mcp-Method", "prompts/list")).await.refusal(), mismatch);
    assert_eq!(send(&set("Mcp-Method", "Prompts/Get")).await.refusal(), mismatch);
    assert_eq!(send(&set("Mcp-Name", "p")).await.refusal(), mismatch);
    assert_eq!(send(&set("Mcp-Name", "=?base64?!?=")).await.refusal(), mismatch);
    assert_eq!(send(&set("MCP-Protocol-Version", "2025-11-25")).await.refusal(), mismatch);
    assert_eq!(send(&set("Mcp-Name", "  up__p\t")).await.status, 200);
    assert_eq!(send(&set("Mcp-Name", "=?base64?dXBfX3A=?=")).await.status, 200);
    let renamed = send(&|headers| {
        headers.iter_mut().for_each(|(name, _)| {
            if *name == "Mcp-Method" {
                *name = "mCp-mEtHoD";
            }
        })
    });
    assert_eq!(renamed.await.status, 200);
}

#[tokio::test]
async fn w9_versions_and_metadata_are_checked() {
    let (gateway, _upstream) = gateway().await;
    let client = gateway.client();
    // A version that nobody knows.
    let (mut body, mut headers) = modern(1, "prompts/list", json!({}));
    body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2030-01-01".into();
    headers[1].1 = "2030-01-01".to_owned();
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let reply = client.send("POST", "/mcp", &headers, body.to_string().as_bytes()).await;
    assert_eq!(reply.refusal(), (400, -32022, "unsupported_version".into()));
    let data = &reply.json()["error"]["data"];
    assert_eq!((&data["supported"], &data["requested"]), (&json!([MODERN]), &json!("2030-01-01")));

    // A modern header without its metadata.
    let bare = request(1, "prompts/list", json!({}));
    let headers = [
        ("Content-Type", "application/json"),
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Method", "prompts/list"),
    ];
    let reply = client.send("POST", "/mcp", &headers, bare.to_string().as_bytes()).await;
    assert_eq!(reply.refusal(), (400, -32602, "meta_missing".into()));

    // Legacy without a session, and neither era.
    let legacy = client.clone().with("MCP-Protocol-Version", "2025-06-18").post(&bare).await;
    assert_eq!(legacy.refusal(), (400, -32600, "era_unknown".into()));
    assert_eq!(client.post(&bare).await.refusal(), (400, -32600, "era_unknown".into()));

    // A session with a version that is not served, and with one that is another.
    let session = client.legacy("2025-06-18").await;
    let strange = session.clone().with("MCP-Protocol-Version", "2024-99-99").post(&bare).await;
    assert_eq!(strange.refusal(), (400, -32600, "unsupported_version".into()));
    let response = json!({"jsonrpc": "2.0", "id": "x", "result": {}});
    for (method, body) in
        [("POST", response.to_string()), ("GET", String::new()), ("DELETE", String::new())]
    {
        let strange = session.clone().with("MCP-Protocol-Version", "2024-99-99");
        let accepted = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
        let reply = strange.send(method, "/mcp", &accepted, body.as_bytes()).await;
        assert_eq!(reply.refusal(), (400, -32600, "unsupported_version".into()), "{method}");
    }
    let other = session.clone().with("MCP-Protocol-Version", "2025-11-25").post(&bare).await;
    assert_eq!(other.status, 200);
    assert_eq!(session.post(&bare).await.status, 200, "the session lives");
}

#[tokio::test]
async fn uris_and_paths_outside_their_bounds_are_refused() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = "[server.limits]\nin_flight = 1\n".to_owned();
    let gateway = Gateway::start(&(toml + &upstream.table("up"))).await;
    let client = gateway.client();
    let long = format!("/mcp?{}", "x".repeat(8_193));
    assert_eq!(client.send("POST", &long, &[], b"").await.refusal().0, 414);
    let fits = format!("/mcp?{}", "x".repeat(8_192));
    assert_eq!(client.send("POST", &fits, &[], b"").await.refusal().0, 415);
    assert_eq!(
        client.send("POST", "/other", &[], b"").await.refusal(),
        (404, -32600, "not_found".into())
    );
    let get = client.send("GET", "/mcp", &[], b"").await;
    assert_eq!((get.status, get.header("allow")), (400, None));
    assert_eq!(client.send("PUT", "/mcp", &[], b"").await.status, 405);
}

#[tokio::test]
async fn w12_clients_that_dawdle_are_let_go_and_others_are_served() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let upstream = Upstream::with_prompts(&["p"]).await;
    let set = |limits: &mut Limits| {
        limits.first_byte = Duration::from_millis(50);
        limits.head = Duration::from_millis(100);
        limits.idle = Duration::from_millis(50);
    };
    let gateway = Gateway::start_with(&upstream.table("up"), set).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let whole = b"GET /other HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let said: [&[u8]; 5] = [b"", b"P", b"PRI * HT", b"POST /mcp HTTP/1.1\r\nHost: lo", preface];
    for said in said.into_iter().chain([&whole[..]]) {
        let mut stream = tokio::net::TcpStream::connect(gateway.addr).await.unwrap();
        stream.write_all(said).await.unwrap();
        let mut answer = Vec::new();
        let closed = stream.read_to_end(&mut answer);
        let closed = tokio::time::timeout(crate::support::PATIENCE, closed).await;
        assert!(closed.is_ok(), "still open after {said:?}");
    }
    gateway.client().ask("prompts/list", json!({})).await;
}
