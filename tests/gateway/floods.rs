//! HTTP as nobody should speak it: heads that are too large or mean two things, streams that are
//! opened and thrown away, frames without end, windows that never open (fault matrix, W13, W16,
//! W18).

use config::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::client::modern;
use crate::support::h2::{
    ACK, CONTINUATION, END_HEADERS, GOAWAY, HEADERS, Http2, INITIAL_WINDOW_SIZE, PING, RST_STREAM,
    SETTINGS, frame, head,
};
use crate::support::upstream::HANG;
use crate::support::{Client, Gateway, PATIENCE, Upstream, eventually};

/// The answer of the gateway to these bytes: a status, or nothing if it only closes.
async fn status(client: &Client, bytes: &[u8]) -> Option<u16> {
    client.raw(bytes).await.map(|reply| reply.status)
}

fn list() -> (String, Vec<(&'static str, String)>) {
    let (body, headers) = modern(1, "prompts/list", json!({}));
    (body.to_string(), headers)
}

/// A good request with this line, these headers beside its own, and this body.
fn request(line: &str, more: &str, body: &str) -> Vec<u8> {
    let mut text = format!("{line}\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in list().1 {
        text += &format!("{name}: {value}\r\n");
    }
    format!("{text}{more}\r\n{body}").into_bytes()
}

#[tokio::test]
async fn w13_heads_beyond_their_limits_are_refused_and_what_means_two_things_is_not_served() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&upstream.table("up")).await;
    gateway.summary().await;
    let client = gateway.client();
    let body = list().0;
    let length = format!("Content-Length: {}\r\n", body.len());
    let line = "POST /mcp HTTP/1.1";
    assert_eq!(status(&client, &request(line, &length, &body)).await, Some(200));

    let many: String = (0..101).map(|n| format!("X-{n}: y\r\n")).collect();
    assert_eq!(status(&client, &request(line, &(many + &length), &body)).await, Some(431));
    let large = format!("X: {}\r\n{length}", "y".repeat(33 << 10));
    assert_eq!(status(&client, &request(line, &large, &body)).await, Some(431));
    let long = format!("POST /mcp?{} HTTP/1.1", "x".repeat(9 << 10));
    assert_eq!(status(&client, &request(&long, &length, &body)).await, Some(414));
    // An underscore is a character like others: nothing here maps it to a dash.
    let odd = format!("X_Api_Key: nobody\r\n{length}");
    assert_eq!(status(&client, &request(line, &odd, &body)).await, Some(200));

    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let smuggled = [
        ("two lengths", format!("{length}Content-Length: 1\r\n"), body.clone()),
        ("a list of lengths", format!("Content-Length: {0}, 1\r\n", body.len()), body.clone()),
        ("a signed length", format!("Content-Length: +{}\r\n", body.len()), body.clone()),
        ("chunked twice", "Transfer-Encoding: chunked, identity\r\n".into(), chunked.clone()),
        ("an unknown coding", "Transfer-Encoding: xchunked\r\n".into(), chunked.clone()),
        ("a folded line", format!("X: a\r\n b\r\n{length}"), body.clone()),
        ("a blank before the colon", format!("X : a\r\n{length}"), body.clone()),
        ("a NUL in a value", format!("X: a\0b\r\n{length}"), body.clone()),
    ];
    for (what, more, body) in &smuggled {
        let status = status(&client, &request(line, more, body)).await;
        assert!(matches!(status, None | Some(400 | 501)), "{what}: {status:?}");
    }
    // Of two lengths the chunks count, and the connection ends with the answer: what follows is no
    // second request.
    let two = [
        format!("{length}Transfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: chunked\r\n{length}"),
    ];
    let text = |more: &str, body: &str| {
        let whole = String::from_utf8(request(line, more, body)).unwrap();
        whole.replace("Connection: close\r\n", "")
    };
    for more in &two {
        let both = text(more, &chunked) + &text(&length, &body);
        assert_eq!(answers(&client, &both).await, 1);
    }
    // Two good requests in one piece are two.
    let last = String::from_utf8(request(line, &length, &body)).unwrap();
    assert_eq!(answers(&client, &(text(&length, &body) + &last)).await, 2);
}

/// How many answers come to these requests until the connection ends.
async fn answers(client: &Client, requests: &str) -> usize {
    let mut stream = TcpStream::connect(client.addr).await.unwrap();
    stream.write_all(requests.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    // Where more was sent than is read, the end may be a reset.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut text)).await.expect("an end");
    String::from_utf8_lossy(&text).matches("HTTP/1.1 200").count()
}

const STREAMS: &str = "[server.limits]\nkeep_alive = \"100ms\"\nidle = \"300ms\"\n";

/// Headers and body of a request, for HTTP/2.
async fn post(client: &mut Http2, stream: u32, method: &str, params: Value) {
    let (body, headers) = modern(1, method, params);
    let accept = ("accept", "application/json, text/event-stream");
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).chain([accept]).collect();
    client.post(stream, &headers, body.to_string().as_bytes()).await;
}

async fn streams(gateway: &Gateway) -> String {
    let text = gateway.admin().send("GET", "/metrics", &[], b"").await.body;
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find(|line| line.starts_with("promptgate_streams ")).unwrap();
    line.to_owned()
}

#[tokio::test]
async fn w16_a_client_that_opens_no_window_is_left_and_others_are_served() {
    let upstream = Upstream::modern(|asked| {
        let text = json!({"type": "text", "text": "x".repeat(1 << 20)});
        (asked.method() == "prompts/get").then(|| asked.content(text))
    })
    .await;
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let gateway =
        Gateway::start(&format!("{STREAMS}{admin}{}", upstream.patient_table("up"))).await;
    gateway.summary().await;
    let listen = json!({"notifications": {"promptsListChanged": true}});
    // Nothing at all, or one byte and then nothing, of an answer or of a stream.
    for window in [0, 1, 70_000] {
        for (method, params) in
            [("prompts/get", json!({"name": "up__p"})), ("subscriptions/listen", listen.clone())]
        {
            if (window, method) == (70_000, "subscriptions/listen") {
                continue; // there is room for what it tells
            }
            let mut client = Http2::open(gateway.addr, &[(INITIAL_WINDOW_SIZE, window)]).await;
            post(&mut client, 1, method, params).await;
            client.closed().await;
            assert_eq!(gateway.client().names().await.0, ["up__p"]);
        }
    }
    eventually(async || streams(&gateway).await, |seen| *seen == "promptgate_streams 0").await;
}

#[tokio::test]
async fn w12_pings_of_a_client_do_not_keep_a_connection_without_requests() {
    let gateway = Gateway::start(STREAMS).await;
    let mut client = Http2::open(gateway.addr, &[]).await;
    // Each answer is a reason for the next ping, until the connection is closed.
    let pinging = async {
        while client.send(PING, 0, 0, &[0; 8]).await.is_ok() {
            loop {
                match client.next().await {
                    Some(frame) if frame.kind == PING && frame.flags == ACK => break,
                    Some(_) => {}
                    None => return,
                }
            }
        }
    };
    timeout(PATIENCE, pinging).await.expect("it is closed");
}

#[tokio::test]
async fn w18_streams_that_are_opened_and_thrown_away_end_the_connection() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&upstream.table("up")).await;
    let mut client = Http2::open(gateway.addr, &[]).await;
    let mut sent = 0;
    for n in 0..50_000_u32 {
        let stream = n * 2 + 1;
        let open = frame(HEADERS, END_HEADERS, stream, &head("POST", &[]));
        let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        if !client.pour(&[open, reset].concat()).await {
            break;
        }
        sent += 1;
    }
    assert!(sent < 50_000, "it was not let go on");
    assert_eq!(gateway.client().names().await.0, ["up__p"]);
}

#[tokio::test]
async fn w18_a_head_without_end_and_frames_that_want_answers_without_end_end_the_connection() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&format!("{STREAMS}{}", upstream.table("up"))).await;
    let block = head("GET", &[("x-long", &"y".repeat(100))]);
    let more = frame(CONTINUATION, 0, 1, &block[..].repeat(8));
    let flood = |first: Vec<u8>, again: Vec<u8>| (first, again.repeat(64));
    let floods = [
        ("a head", flood(frame(HEADERS, 0, 1, &block), more)),
        ("settings", flood(Vec::new(), frame(SETTINGS, 0, 0, &[]))),
        ("pings", flood(Vec::new(), frame(PING, 0, 0, &[7; 8]))),
        ("no headers at all", flood(frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, 0, 1, &[]))),
    ];
    for (what, (first, again)) in floods {
        let mut client = Http2::open(gateway.addr, &[]).await;
        assert!(client.pour(&first).await);
        // Responses are not read: a client that floods does not read them either.
        let mut poured = 0_usize;
        while client.pour(&again).await {
            poured += again.len();
            assert!(poured < 1 << 30, "{what}");
        }
        assert_eq!(gateway.client().names().await.0, ["up__p"], "{what}");
    }
}

#[tokio::test]
async fn w18_beyond_their_number_streams_are_refused_and_the_others_go_on() {
    let upstream =
        Upstream::modern(|asked| (asked.method() == "prompts/get").then_some(HANG)).await;
    let set = |limits: &mut Limits| limits.h2_streams = 10;
    let gateway = Gateway::start_with(&upstream.patient_table("up"), set).await;
    gateway.summary().await;
    let mut client = Http2::open(gateway.addr, &[]).await;
    for n in 0..11 {
        post(&mut client, n * 2 + 1, "prompts/get", json!({"name": "up__p"})).await;
    }
    let refused = async {
        while let Some(frame) = client.next().await {
            assert_ne!(frame.kind, GOAWAY);
            if frame.kind == RST_STREAM {
                return Some((frame.stream, frame.payload));
            }
        }
        None
    };
    // REFUSED_STREAM: nothing was done, it may be tried again (RFC 9113, section 8.7).
    assert_eq!(refused.await, Some((21, 7_u32.to_be_bytes().to_vec())));
    upstream.received_gets(10).await;
}
