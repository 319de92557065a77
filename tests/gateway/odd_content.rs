//! Content of results and requests of clients in the spellings of libraries that others refuse:
//! read where the meaning is plain, and refused by name where it is not.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::support::client::request;
use crate::support::process::command;
use crate::support::upstream::good_legacy;
use crate::support::{ClientMode, Gateway, ModeClient, Process, Received, Upstream, eventually};

const CLIENTS: [ClientMode; 6] = [
    ClientMode::Sse("2024-11-05"),
    ClientMode::Http("2025-06-18"),
    ClientMode::Http("2025-11-25"),
    ClientMode::Modern,
    ClientMode::Stdio("2025-11-25"),
    ClientMode::ModernStdio,
];

fn message(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

/// A result as an odd library writes it.
fn odd_result() -> Value {
    let lines = "iVBORw0KGgoA\r\nAAAA \n".to_owned();
    json!({"resultType": "complete", "_meta": [], "messages": [
        message(json!({"type": "image", "data": lines, "mimeType": "png", "annotations": []})),
        message(json!({"type": "audio", "data": "_-8", "mimeType": "audio/wav"})),
        message(json!({"type": "resource", "resource": {
            "uri": "/home/me/My Notes/todo.md", "text": "t", "blob": "", "mimeType": ""}})),
        message(json!({"type": "resource_link", "uri": "C:\\x\\y z.md", "name": "n"})),
    ]})
}

/// An upstream of either era that answers gets so.
async fn answering(is_modern: bool, result: Value) -> Upstream {
    let get = move |asked: &Received| {
        (asked.method() == "prompts/get").then(|| asked.result(result.clone()))
    };
    if is_modern {
        Upstream::modern(get).await
    } else {
        Upstream::start(move |asked| get(asked).unwrap_or_else(|| good_legacy(asked, "2025-06-18")))
            .await
    }
}

#[tokio::test]
async fn odd_content_is_delivered_as_valid_content_and_counted() {
    for is_modern in [true, false] {
        let upstream = answering(is_modern, odd_result()).await;
        let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned();
        let gateway = Gateway::start(&(admin + &upstream.table("up"))).await;
        for client_mode in CLIENTS {
            let mut client = ModeClient::connect(&gateway, client_mode).await;
            let result = client.ask("prompts/get", json!({"name": "up__p"})).await;
            let content = |index: usize| &result["messages"][index]["content"];
            let image =
                json!({"type": "image", "data": "iVBORw0KGgoAAAAA", "mimeType": "image/png"});
            assert_eq!(content(0), &image, "{client_mode:?}");
            let (audio, link) = match client_mode {
                ClientMode::Sse(_) => (&content(1)["resource"]["blob"], &content(3)["text"]),
                _ => (&content(1)["data"], &content(3)["uri"]),
            };
            assert_eq!(audio, "/+8=", "{client_mode:?}");
            assert!(link.as_str().unwrap().ends_with("file:///C:/x/y%20z.md"), "{link}");
            let resource = json!({"uri": "file:///home/me/My%20Notes/todo.md", "text": "t"});
            assert_eq!(content(2)["resource"], resource, "{client_mode:?}");
        }
        let rows = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
        let count = CLIENTS.len();
        let expected = json!({"base64": count, "uri": count, "mime_type": count,
            "empty_object": count, "empty_member": count});
        assert_eq!(rows["upstreams"][0]["repairs"], expected);
    }
}

#[tokio::test]
async fn content_that_cannot_be_repaired_is_refused_by_its_member_and_not_by_its_text() {
    for (content, rule) in [
        (json!({"type": "image", "data": "c2VjcmV0IQ==x", "mimeType": "image/png"}), "base64"),
        (json!({"type": "resource_link", "uri": "secret/todo.md", "name": "n"}), "`uri`"),
        (json!({"type": "secret"}), "`type`"),
    ] {
        let result = json!({"resultType": "complete",
            "messages": [message(json!({"type": "text", "text": "a"})), message(content)]});
        for is_modern in [true, false] {
            let upstream = answering(is_modern, result.clone()).await;
            let gateway = Gateway::before(&[("up", &upstream)]).await;
            let mut client = ModeClient::connect(&gateway, ClientMode::Http("2025-06-18")).await;
            let answer = client.answer("prompts/get", json!({"name": "up__p"})).await;
            let told = answer["error"]["message"].as_str().unwrap().to_owned();
            let begin = "upstream `up`: the response violates the protocol: message 1: ";
            assert!(told.starts_with(begin) && told.contains(rule), "{told}");
            assert!(!told.contains("secret") && !told.contains("c2Vj"), "{told}");
        }
    }
}

#[tokio::test]
async fn an_argument_that_is_no_string_is_named_in_both_eras_and_transports() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    for client_mode in CLIENTS {
        let mut client = ModeClient::connect(&gateway, client_mode).await;
        let params = |arguments: Value| json!({"name": "up__p", "arguments": arguments});
        let refused = client.answer("prompts/get", params(json!({"a": "x", "n": 5}))).await;
        assert_eq!(refused["error"]["code"], -32602, "{client_mode:?}");
        assert_eq!(refused["error"]["message"], "`arguments.n` must be a string");
        let got = client.ask("prompts/get", params(json!([]))).await;
        assert!(got["messages"].is_array(), "{client_mode:?}");
        let refused = client.answer("prompts/get", params(json!([1]))).await;
        assert_eq!(refused["error"]["code"], -32602, "{client_mode:?}");
    }
}

#[tokio::test]
async fn an_empty_array_of_a_client_is_an_empty_object() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    for client_mode in CLIENTS {
        // Capabilities, in the handshake or in the metadata of each request.
        let mut client = match client_mode {
            ClientMode::Modern => ModeClient::connect(&gateway, client_mode).await,
            _ => ModeClient::with_capabilities(&gateway, client_mode, json!([])).await,
        };
        let got = client.ask("prompts/get", json!({"name": "up__p"})).await;
        assert!(got["messages"].is_array(), "{client_mode:?}");
    }
    let legacy = gateway.client().legacy("2025-06-18").await;
    for method in ["prompts/list", "ping"] {
        let answer = legacy.post(&request(1, method, json!([]))).await.json();
        assert!(answer["result"].is_object(), "{answer}");
    }
    let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized", "params": []});
    assert_eq!(legacy.post(&note).await.status, 202);
    let params = json!({"name": "up__p", "_meta": []});
    let answer = legacy.post(&request(2, "prompts/get", params)).await.json();
    assert!(answer["result"].is_object(), "{answer}");

    let (input, mut output) = tokio::io::split(gateway.stdio());
    output.write_all(format!("{}\n", request(1, "ping", json!([]))).as_bytes()).await.unwrap();
    let line = BufReader::new(input).lines().next_line().await.unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["result"], json!({}));
}

#[tokio::test]
async fn explain_says_first_that_a_prompt_is_left_out_and_why() {
    let prompts = json!([{"name": "good"}, {"name": "hid\u{200b}den"}]);
    let named = Upstream::modern(move |asked| {
        (asked.method() == "prompts/list").then(|| asked.list(&prompts))
    })
    .await;
    let (one, other) =
        (Upstream::with_prompts(&["greet"]).await, Upstream::with_prompts(&["greet"]).await);
    let bare = "prefix = \"\"\n";
    let toml = "[audit]\npath = \"\"\n[telemetry]\nlog = \"warn,promptgate::app=info\"\n"
        .to_owned()
        + &named.table("up")
        + &one.table("one")
        + bare
        + &other.table("other")
        + bare;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    eventually(
        async || {
            let catalog = admin.send("GET", "/api/v1/catalog", &[], b"").await.json();
            catalog["leftOut"].as_array().map_or(0, Vec::len)
        },
        |count| *count == 3,
    )
    .await;
    let explain = async |name: &str| {
        let command = command(folder.path(), &["explain", "ci", name]);
        let output = tokio::process::Command::from(command).output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = explain("up__hid\u{200b}den").await;
    let first = said.lines().next().unwrap();
    assert!(first.starts_with("up__hid\\u{200b}den is left out of the list, although"), "{said}");
    assert!(said.contains("every caller may use every prompt"), "{said}");
    let said = explain("greet").await;
    assert!(said.contains("upstream one offers") && said.contains("upstream other"), "{said}");
    assert!(explain("up__good").await.starts_with("caller ci"));
    process.stop().await;
}
