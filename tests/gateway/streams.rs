//! Streams over HTTP/1.1 that last, on connections that have carried other answers before.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::client::modern_bytes;
use crate::support::{Gateway, PATIENCE, Upstream};

fn listen(version: &str) -> Vec<u8> {
    let params = json!({"notifications": {"promptsListChanged": true}});
    modern_bytes(version, "subscriptions/listen", params)
}

/// Reads until the stream was opened; what has come by then.
async fn until_it_listens(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("notifications/subscriptions/acknowledged") {
        let read = timeout(PATIENCE, stream.read_buf(&mut text)).await.expect("more in time");
        assert!(read.unwrap() > 0, "it ends before: {}", String::from_utf8_lossy(&text));
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_stream_behind_an_answer_that_is_not_read_yet_loses_nothing_of_it() {
    let long = "x".repeat(8 << 20);
    let answer = json!({"type": "text", "text": long});
    let upstream = Upstream::modern(move |asked| {
        (asked.method() == "prompts/get").then(|| asked.content(answer.clone()))
    })
    .await;
    let table = upstream.patient_table("up") + "max_message = \"16MiB\"\n";
    let gateway = Gateway::start(&table).await;
    assert_eq!(gateway.client().names().await.0, ["up__p"]);
    let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
    let get = modern_bytes("HTTP/1.1", "prompts/get", json!({"name": "up__p"}));
    stream.write_all(&[get, listen("HTTP/1.1")].concat()).await.unwrap();
    // More than all buffers on the way hold.
    let text = until_it_listens(&mut stream).await;
    assert!(text.len() > long.len(), "{} of {}", text.len(), long.len());
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2);
}

#[tokio::test]
async fn a_stream_of_older_http_has_no_chunks_and_one_of_newer_http_ends_its_connection() {
    let gateway = Gateway::start("").await;
    let head = async |version: &str| {
        let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
        stream.write_all(&listen(version)).await.unwrap();
        until_it_listens(&mut stream).await.to_ascii_lowercase()
    };
    let (older, newer) = (head("HTTP/1.0").await, head("HTTP/1.1").await);
    assert!(!older.contains("transfer-encoding"), "{older}");
    for line in [
        "transfer-encoding: chunked",
        "connection: close",
        "cache-control: no-cache",
        "x-accel-buffering: no",
        "date: ",
    ] {
        assert_eq!(newer.matches(&format!("\r\n{line}")).count(), 1, "{newer}");
    }
}
