//! Attacks that held, as tables: many inputs, of which each is cheap, on one gateway.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::client::{MODERN, modern, request};
use crate::support::gateway::api_key;
use crate::support::{Client, Gateway, PATIENCE, Upstream};

async fn gateway() -> (Gateway, Upstream) {
    let upstream = Upstream::with_prompts(&["p", "secret"]).await;
    let toml = upstream.table("up")
        + &api_key("ann", "pg_ann")
        + &api_key("bob", "pg_bob")
        + "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\nprompts = [\"p\"]\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    (gateway, upstream)
}

fn ann(gateway: &Gateway) -> Client {
    gateway.client().with("X-API-Key", "pg_ann")
}

#[tokio::test]
async fn denied_unknown_and_nobodys_names_are_equal_byte_for_byte_in_forty_questions() {
    let (gateway, upstream) = gateway().await;
    let arguments = [
        json!(null),
        json!({}),
        json!({"a": "b"}),
        json!({"a": "x".repeat(10_000)}),
        json!({"\u{e9}": "\u{1f600}"}),
        json!({"a": ""}),
        json!([]),
        json!("text"),
        json!({"a": 1}),
        json!({"a": null}),
        json!({"a": {"b": "c"}}),
        json!(7),
    ];
    let members = [
        json!({}),
        json!({"extra": true}),
        json!({"_meta": {"progressToken": "t"}}),
        json!({"_meta": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}),
        json!({"requestState": "x"}),
        json!({"inputResponses": {}}),
    ];
    let mut questions = Vec::new();
    for arguments in &arguments {
        questions.push(("prompts/get", json!({"arguments": arguments})));
    }
    for members in &members {
        questions.push(("prompts/get", members.clone()));
    }
    for argument in [
        json!({"name": "x", "value": "y"}),
        json!({"name": "", "value": ""}),
        json!({"name": "x", "value": "z".repeat(5_000)}),
        json!({"name": "x"}),
        json!({"value": "y"}),
        json!([]),
        json!(null),
    ] {
        for context in [json!(null), json!({"arguments": {"a": "b"}}), json!([])] {
            let mut params = json!({"argument": argument});
            if !context.is_null() {
                params["context"] = context;
            }
            questions.push(("completion/complete", params));
        }
    }
    assert!(questions.len() >= 39, "{}", questions.len());
    for (method, params) in &questions {
        let ask = async |name: &str, session: bool| {
            let mut params = params.clone();
            match *method {
                "prompts/get" => params["name"] = json!(name),
                _ => params["ref"] = json!({"type": "ref/prompt", "name": name}),
            }
            let reply = match session {
                false => ann(&gateway).modern(method, params).await,
                true => {
                    let client = ann(&gateway).legacy("2025-06-18").await;
                    client.post(&request(1, method, params)).await
                }
            };
            (reply.status, reply.body)
        };
        for session in [false, true] {
            let denied = ask("up__secret", session).await;
            assert_eq!(denied, ask("up__nothing", session).await, "{method} {params}");
            assert_eq!(denied, ask("nobody__secret", session).await, "{method} {params}");
        }
    }
    assert!(
        upstream.gets().is_empty() && !upstream.methods().contains(&"completion/complete".into())
    );
}

#[tokio::test]
async fn twenty_seven_spellings_of_a_name_are_other_names() {
    let (gateway, upstream) = gateway().await;
    let tricks = [
        "up__p\0",
        "up__p ",
        " up__p",
        "UP__p",
        "up__P",
        "up__p\n",
        "up__p\t",
        "up__p\u{200b}",
        "up__\u{200d}p",
        "\u{feff}up__p",
        "up__p\u{202e}",
        "up__\u{440}",
        "up__\u{ff50}",
        "\u{ff55}p__p",
        "up__p\u{301}",
        "up____p",
        "up_p",
        "up__",
        "__p",
        "p",
        "up__p/../secret",
        "up__p%00",
        "up%5f%5fp",
        "up__p?x=y",
        "up__*",
        "up__secret\0p",
        "=?base64?dXBfX3A=?=",
    ];
    assert_eq!(tricks.iter().collect::<BTreeSet<_>>().len(), 27);
    let client = ann(&gateway).legacy("2025-06-18").await;
    for name in tricks {
        let reply = client.post(&request(1, "prompts/get", json!({"name": name}))).await;
        assert_eq!(reply.refusal(), (200, -32602, "unknown_prompt".into()), "{name:?}");
    }
    assert!(upstream.gets().is_empty());
    client.post(&request(1, "prompts/get", json!({"name": "up__p"}))).await;
    assert_eq!(upstream.gets().len(), 1);
}

#[tokio::test]
async fn thirty_five_bodies_that_are_no_message_are_refused_and_the_session_lives() {
    let (gateway, _upstream) = gateway().await;
    let client = ann(&gateway).legacy("2025-06-18").await;
    let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
    let nested = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{}{}}}",
        "{\"a\":".repeat(70),
        "1".to_owned() + &"}".repeat(70)
    );
    let bodies: [&[u8]; 35] = [
        b"",
        b" ",
        b"null",
        b"true",
        b"7",
        b"\"text\"",
        b"[]",
        b"[1]",
        b"{}",
        b"{",
        b"}",
        b"{\"jsonrpc\":\"2.0\"}",
        b"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}",
        b"{\"id\":1,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":true,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":[],\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":7}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"result\":{}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"} x",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}{}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",}",
        b"{'jsonrpc':'2.0','id':1,'method':'ping'}",
        b"{\"jsonrpc\":\"2.0\",\"id\":01,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\\ud800\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"a\":1e999}}",
        b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}",
        deep.as_bytes(),
        nested.as_bytes(),
    ];
    for body in bodies {
        let reply = client.post_bytes(body).await;
        let shown = String::from_utf8_lossy(body);
        assert_eq!(reply.status, 400, "{shown}");
        let code = reply.json()["error"]["code"].as_i64().unwrap();
        assert!([-32700, -32600].contains(&code), "{shown}: {code}");
    }
    let pong = client.post(&request(2, "ping", json!({}))).await;
    assert_eq!(pong.json()["result"], json!({}));
}

/// Values that a token of the gateway can be turned into, none of which it made.
fn forgeries(good: &str) -> Vec<String> {
    let mut forged = vec![
        String::new(),
        " ".to_owned(),
        "AAAA".to_owned(),
        "null".to_owned(),
        format!("{good}="),
        format!("{good} "),
        format!("{good}A"),
        format!("A{good}"),
        good[1..].to_owned(),
        good[..good.len() - 1].to_owned(),
        good[..good.len() / 2].to_owned(),
        good.to_uppercase(),
        // Of the other base64 alphabet.
        format!("{}+{}", &good[..7], &good[8..]),
        [good, good].concat(),
        "A".repeat(good.len()),
        "A".repeat(10_000),
    ];
    for at in [0, 5, 31, 32, 40, good.len() - 2] {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        forged.push(String::from_utf8(bytes).unwrap());
    }
    forged.retain(|forged| forged != good);
    forged
}

#[tokio::test]
async fn forged_and_foreign_cursors_sessions_and_states_are_refused_alike() {
    let upstream = Upstream::with_prompts(&["p", "q"]).await;
    let toml = "[listing]\npage_size = 1\n".to_owned()
        + &upstream.table("up")
        + &api_key("ann", "pg_ann")
        + &api_key("bob", "pg_bob");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let bob = gateway.client().with("X-API-Key", "pg_bob");
    let page = ann(&gateway).ask("prompts/list", json!({})).await;
    let cursor = page["nextCursor"].as_str().unwrap().to_owned();
    let session = ann(&gateway).legacy("2025-06-18").await.session().to_owned();
    let theirs =
        bob.ask("prompts/list", json!({})).await["nextCursor"].as_str().unwrap().to_owned();
    let their_session = bob.clone().legacy("2025-06-18").await.session().to_owned();

    let mut cursors = forgeries(&cursor);
    cursors.extend([theirs, session.clone(), their_session.clone()]);
    assert!(cursors.len() >= 25, "{}", cursors.len());
    let mut answers = BTreeSet::new();
    for cursor in &cursors {
        let error = ann(&gateway).ask_error("prompts/list", json!({"cursor": cursor})).await;
        answers.insert(error.to_string());
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.contains("invalid_cursor")));

    let mut sessions = forgeries(&session);
    sessions.extend([their_session, cursor.clone()]);
    // Blanks around the value of a header are no part of it.
    sessions.retain(|session| session.trim() == session);
    let mut answers = BTreeSet::new();
    for session in &sessions {
        let client = ann(&gateway).with("Mcp-Session-Id", session);
        let reply = client.post(&request(1, "prompts/list", json!({}))).await;
        assert_eq!(reply.status, 404, "{session:?}: {reply:?}");
        answers.insert(reply.body);
    }
    assert_eq!(answers.len(), 1);

    let mut states = forgeries(&cursor);
    states.extend([session, cursor]);
    for state in &states {
        let params = json!({"name": "up__p", "requestState": state,
            "inputResponses": {"x": {"result": {"action": "accept"}}}});
        let reply = ann(&gateway).modern("prompts/get", params).await;
        let message = reply.json();
        assert_eq!(message["error"]["code"], -32602, "{state}: {message}");
    }
    assert!(upstream.gets().is_empty(), "no state of ours, no call");
}

/// A request with this request line and these headers, and the body of a list.
fn raw(line: &str, headers: &[&str], length: bool) -> Vec<u8> {
    let (body, own) = modern(1, "prompts/list", json!({}));
    let body = body.to_string();
    let mut text = format!("{line}\r\nX-API-Key: pg_ann\r\nConnection: close\r\n");
    for (name, value) in own {
        text += &format!("{name}: {value}\r\n");
    }
    for header in headers {
        text += &format!("{header}\r\n");
    }
    if length {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    format!("{text}\r\n{body}").into_bytes()
}

#[tokio::test]
async fn raw_requests_that_mean_two_things_or_nothing_get_no_list() {
    let (gateway, _upstream) = gateway().await;
    let host = "Host: localhost";
    let post = "POST /mcp HTTP/1.1";
    let status = async |bytes: Vec<u8>| {
        let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
        let _ = stream.write_all(&bytes).await;
        let mut answer = Vec::new();
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an end");
        let text = String::from_utf8_lossy(&answer).into_owned();
        (text.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()), text)
    };
    assert_eq!(status(raw(post, &[host], true)).await.0, Some(200));
    let lines = [
        "POST /mcp HTTP/1.2",
        "POST /mcp HTTP/3.0",
        "POST /mcp HTTX/1.1",
        "POST /mcp",
        "POST  /mcp HTTP/1.1",
        "POST /mcp  HTTP/1.1",
        " POST /mcp HTTP/1.1",
        "PO ST /mcp HTTP/1.1",
        "POST mcp HTTP/1.1",
        "POST /mcp\0 HTTP/1.1",
        "POST /mcp/../mcp HTTP/1.1",
        "POST /%6dcp HTTP/1.1",
        "POST /MCP HTTP/1.1",
        "POST /mcp; HTTP/1.1",
        "POST /mcp%00 HTTP/1.1",
        "POST /mcp%2f HTTP/1.1",
        "POST * HTTP/1.1",
        "POST http://evil.example/mcp HTTP/1.1",
        "CONNECT localhost:80 HTTP/1.1",
        "post /mcp HTTP/1.1",
        "PUT /mcp HTTP/1.1",
        "PATCH /mcp HTTP/1.1",
        "TRACE /mcp HTTP/1.1",
        "GET /mcp HTTP/1.1",
        "DELETE /mcp HTTP/1.1",
        "PRI * HTTP/1.1",
    ];
    for line in lines {
        let (status, text) = status(raw(line, &[host], true)).await;
        assert!(status.is_none_or(|status| (400..=505).contains(&status)), "{line:?}: {text}");
        assert!(!text.contains("up__p"), "{line:?}");
    }
    let chunked = "Transfer-Encoding: chunked";
    let headers: [&[&str]; 27] = [
        &[],
        &["Host: evil.example"],
        &[host, "Host: evil.example"],
        &["Host : localhost"],
        &["Host: localhost\0"],
        &["Host: localhost, evil.example"],
        &["Host: localhost@evil.example"],
        &["Host: evil.example:80"],
        &["Host: localhost.evil.example"],
        &[host, "Origin: https://evil.example"],
        &[host, "Origin: null"],
        &[host, "Origin: http://localhost", "Origin: https://evil.example"],
        &[host, "X-API-Key: pg_bob"],
        &[host, "Authorization: Bearer pg_ann"],
        &[host, "Content-Type: text/plain"],
        &[host, "Content-Encoding: gzip"],
        &[host, "MCP-Protocol-Version: 2025-06-18"],
        &[host, "Mcp-Method: prompts/get"],
        &[host, "Accept: text/html"],
        &[host, "Content-Length: 0"],
        &[host, "Content-Length: -1"],
        &[host, "Content-Length: 0x10"],
        &[host, "Content-Length: 99999999999999999999"],
        &[host, "Transfer-Encoding: gzip"],
        &[host, "Transfer-Encoding: chunked, gzip"],
        &[host, chunked],
        &[host, "X: a\r\n b"],
    ];
    for headers in headers {
        let (status, text) = status(raw(post, headers, true)).await;
        assert!(status.is_none_or(|status| (400..=505).contains(&status)), "{headers:?}: {text}");
        assert!(!text.contains("up__p"), "{headers:?}");
    }
    assert_eq!(status(raw(post, &[host], true)).await.0, Some(200), "and it goes on");
}

#[tokio::test]
async fn hostile_lists_reach_clients_as_one_line_of_plain_names_or_not_at_all() {
    let names = [
        json!("good"),
        json!(""),
        json!(" "),
        json!("a\nb"),
        json!("a\u{202e}b"),
        json!("a\u{200b}"),
        json!("x".repeat(200)),
        json!(7),
        json!(null),
        json!(["a"]),
        json!({"a": 1}),
        json!("good"),
        json!("\u{1b}[31mred"),
    ];
    let prompts: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let upstream = Upstream::modern(move |asked| {
        (asked.method() == "prompts/list").then(|| asked.list(&json!(prompts)))
    })
    .await;
    let gateway = Gateway::start(&upstream.table("up")).await;
    gateway.summary().await;
    assert_eq!(gateway.client().names().await.0, ["up__good"]);
    let reply = gateway.client().with("X-Seen", MODERN).modern("prompts/list", json!({})).await;
    let text = String::from_utf8(reply.body).unwrap();
    assert!(!text.chars().any(|c| c.is_control() || "\u{202e}\u{200b}".contains(c)), "{text}");
}
