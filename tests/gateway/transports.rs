//! Connections that last, downstream: HTTP+SSE and standard streams, and those who misuse them.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use crate::support::client::request;
use crate::support::{ClientMode, Gateway, ModeClient, PATIENCE, Upstream, eventually};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const EVENTS: (&str, &str) = ("Accept", "text/event-stream");

fn ping(id: u64) -> Value {
    request(id, "ping", json!({}))
}

#[tokio::test]
async fn w17_messages_of_the_older_transport_name_their_session() {
    let gateway = Gateway::start("").await;
    let client = gateway.client();
    let body = ping(1).to_string();
    let post = async |path: &str| client.send("POST", path, &[JSON], body.as_bytes()).await;
    let reason = async |path: &str| {
        let (status, _, reason) = post(path).await.refusal();
        (status, reason)
    };
    assert_eq!(reason("/sse").await, (400, "session_required".into()));
    assert_eq!(reason("/sse?sessionId=").await, (404, "session_unknown".into()));
    let unknown = "/sse?sessionId=0123456789abcdef0123456789abcdef";
    assert_eq!(reason(unknown).await, (404, "session_unknown".into()));

    let mut stream = client.stream_at("GET", "/sse", &[EVENTS], b"").await;
    let endpoint = stream.event().await.unwrap().data;
    assert_eq!(reason("/sse").await.0, 400, "never the only session");
    assert_eq!(post(&endpoint).await.status, 202);
    assert_eq!(
        stream.event().await.unwrap().json(),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}})
    );
    drop(stream);
    // Until the end of the stream is noticed, a message is accepted.
    eventually(async || post(&endpoint).await.status, |status| *status == 404).await;
    let deleted = client.send("DELETE", &endpoint, &[], b"").await;
    assert_eq!((deleted.status, deleted.header("allow")), (405, Some("GET, POST")));
}

#[tokio::test]
async fn the_older_transport_can_be_switched_off() {
    let gateway = Gateway::start("[server]\nsse_path = \"\"\n").await;
    let reply = gateway.client().send("GET", "/sse", &[EVENTS], b"").await;
    assert_eq!(reply.status, 404);
}

#[tokio::test]
async fn the_older_transport_knows_no_modern_requests_and_leads_to_the_handshake() {
    let gateway = Gateway::start("").await;
    let mut client = ModeClient::connect(&gateway, ClientMode::Sse("2025-11-25")).await;
    let mut discover = crate::support::client::modern(7, "server/discover", json!({})).0;
    discover["id"] = json!("probe");
    client.send(&discover).await;
    let answer = client.next_message().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("probe"), &json!(-32601)));
}

#[tokio::test]
async fn a_stream_that_was_opened_again_without_a_handshake_is_served() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    let client = gateway.client();
    let mut stream = client.stream_at("GET", "/sse", &[EVENTS], b"").await;
    let endpoint = stream.event().await.unwrap().data;
    let list = request(3, "prompts/list", json!({})).to_string();
    for told in [1, 0] {
        assert_eq!(client.send("POST", &endpoint, &[JSON], list.as_bytes()).await.status, 202);
        let mut changes = 0;
        let answer = loop {
            let message = stream.event().await.unwrap().json();
            match message["method"].as_str() {
                Some("notifications/prompts/list_changed") => changes += 1,
                _ => break message,
            }
        };
        assert_eq!(answer["result"]["prompts"][0]["name"], "up__p");
        if told > changes {
            // It comes at once, but not always before the answer.
            let message = stream.event().await.unwrap().json();
            assert_eq!(message["method"], "notifications/prompts/list_changed");
        } else {
            assert_eq!(told, changes, "once: the client may have missed a change");
        }
    }
}

#[tokio::test]
async fn a_stream_of_the_older_transport_that_ends_answers_the_calls_in_flight() {
    let (upstream, held) = Upstream::holding_a_get().await;
    let limits = "[server.limits]\nstream_lifetime = \"10s\"\n";
    let gateway = Gateway::start(&(limits.to_owned() + &upstream.patient_table("up"))).await;
    gateway.summary().await;
    let client = gateway.client();
    let mut stream = client.stream_at("GET", "/sse", &[EVENTS], b"").await;
    let endpoint = stream.event().await.unwrap().data;
    let post = async |method: &str, params: Value| {
        let message = request(7, method, params).to_string();
        client.send("POST", &endpoint, &[JSON], message.as_bytes()).await.status
    };
    let ours = json!({"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    assert_eq!(post("initialize", ours).await, 202);
    assert!(stream.event().await.unwrap().json()["result"].is_object());
    assert_eq!(post("prompts/get", json!({"name": "up__p"})).await, 202);
    upstream.received_gets(1).await;
    eventually(async || post("ping", json!({})).await, |seen| *seen == 404).await;
    upstream.answer_get(&held);
    loop {
        let Some(event) = stream.event().await else { panic!("ended without the response") };
        // The answers to `ping` come before it.
        if event.json()["result"]["messages"].is_array() {
            break;
        }
    }
    assert!(stream.event().await.is_none());
}

#[tokio::test]
async fn w19_lines_that_are_no_messages_are_told_and_the_stream_lives() {
    let gateway = Gateway::start("[server.limits]\nbody_size = \"1KiB\"\n").await;
    let (mut stream, serving) = gateway.stdio_task();
    let exact = format!("{:1024}\n", ping(2).to_string());
    let long = format!("\"{}\"\n", "x".repeat(1024));
    let input = [
        "\r\n\n   \nnot json\r\n".to_owned(),
        ping(1).to_string() + "\r\n",
        exact,
        long,
        "\u{0}\n[]\n{\"a\":1}\n".to_owned(),
        ping(3).to_string() + "\n",
        "{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"pi".to_owned(),
    ];
    stream.write_all(input.concat().as_bytes()).await.unwrap();
    let (output, mut input) = tokio::io::split(stream);
    let mut lines = BufReader::new(output).lines();
    let mut told = Vec::new();
    for _ in 0..8 {
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        told.push(match message["id"].as_u64() {
            Some(id) => format!("answer {id}"),
            None => format!("{}", message["error"]["code"]),
        });
    }
    let expected =
        ["-32700", "answer 1", "answer 2", "-32600", "-32700", "-32600", "-32600", "answer 3"];
    assert_eq!(told, expected);
    input.shutdown().await.unwrap();
    timeout(PATIENCE, serving).await.expect("it ends at the end of its input").unwrap();
}

#[tokio::test]
async fn w19_at_the_end_of_the_input_what_is_under_way_is_answered() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    let (stream, serving) = gateway.stdio_task();
    let (output, mut input) = tokio::io::split(stream);
    let get = crate::support::client::modern(4, "prompts/get", json!({"name": "up__p"})).0;
    input.write_all(format!("{get}\n").as_bytes()).await.unwrap();
    input.shutdown().await.unwrap();
    let mut lines = BufReader::new(output).lines();
    let answer = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("an answer");
    assert!(answer.contains("\"id\":4") && answer.contains("\"messages\""), "{answer}");
    timeout(PATIENCE, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn s5_a_byte_order_mark_is_skipped_and_the_last_line_needs_no_end() {
    let gateway = Gateway::start("").await;
    for (text, answered) in [
        (format!("\u{feff}{}\n{}", ping(1), ping(2)), 2),
        (format!("\u{feff}\n{}\r\n", ping(1)), 1),
    ] {
        let (stream, serving) = gateway.stdio_task();
        let (output, mut input) = tokio::io::split(stream);
        input.write_all(text.as_bytes()).await.unwrap();
        input.shutdown().await.unwrap();
        let mut lines = BufReader::new(output).lines();
        for id in 1..=answered {
            let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
            let answer: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(answer["id"], id, "{answer}");
        }
        timeout(PATIENCE, serving).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn w19_when_nobody_reads_the_output_any_more_it_ends() {
    let gateway = Gateway::start("").await;
    let (stream, serving) = gateway.stdio_task();
    let (output, mut input) = tokio::io::split(stream);
    input.write_all(format!("{}\n", ping(1)).as_bytes()).await.unwrap();
    drop((output, input));
    timeout(PATIENCE, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn both_eras_share_one_pair_of_streams() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    let mut modern = ModeClient::connect(&gateway, ClientMode::ModernStdio).await;
    // Discover first and initialize after is normal, and so is the other way round.
    modern.ask("server/discover", json!({})).await;
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"}});
    modern.send(&request(1, "initialize", params)).await;
    assert_eq!(modern.next_message().await["result"]["protocolVersion"], "2025-06-18");
    modern.send(&request(2, "prompts/list", json!({}))).await;
    let legacy = modern.next_message().await;
    assert_eq!(legacy["result"]["prompts"][0]["name"], "up__p");
    assert!(legacy["result"].get("resultType").is_none());
    let list = modern.ask("prompts/list", json!({})).await;
    assert_eq!(list["resultType"], "complete");
}

#[tokio::test]
async fn before_the_handshake_only_a_sign_of_life_is_given() {
    let gateway = Gateway::start("").await;
    let (stream, _serving) = gateway.stdio_task();
    let (output, mut input) = tokio::io::split(stream);
    let mut lines = BufReader::new(output).lines();
    for (message, code) in [(ping(1), None), (request(2, "prompts/list", json!({})), Some(-32600))]
    {
        input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        let line = lines.next_line().await.unwrap().unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["error"]["code"].as_i64(), code, "{answer}");
    }
}

#[tokio::test]
async fn batches_are_served_on_connections_of_their_revision() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    for client_mode in [ClientMode::Stdio("2025-03-26"), ClientMode::Sse("2025-03-26")] {
        let mut client = ModeClient::connect(&gateway, client_mode).await;
        let listen =
            crate::support::client::modern(3, "subscriptions/listen", json!({"notifications": {}}))
                .0;
        client.send(&json!([ping(1), request(2, "prompts/list", json!({})), listen])).await;
        let answers = client.next_message().await;
        let ids: Vec<_> = answers.as_array().unwrap().iter().map(|answer| &answer["id"]).collect();
        assert_eq!(ids, [&json!(1), &json!(2), &json!(3)], "{client_mode:?}");
        assert!(answers[2].get("error").is_some(), "a subscription is no part of an answer");
    }
    let mut client = ModeClient::connect(&gateway, ClientMode::Stdio("2025-06-18")).await;
    client.send(&json!([ping(1)])).await;
    assert_eq!(client.next_message().await["error"]["code"], -32600);
}

#[tokio::test]
async fn w16_a_client_that_reads_nothing_is_left_and_its_places_are_free_again() {
    let upstream = Upstream::modern(|asked| {
        (asked.method() == "prompts/get")
            .then(|| asked.content(json!({"type": "text", "text": "x".repeat(1 << 20)})))
    })
    .await;
    let toml = format!(
        "[server.limits]\nkeep_alive = \"100ms\"\nin_flight = 8\n{}",
        upstream.patient_table("up")
    );
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let mut stream = client.stream_at("GET", "/sse", &[EVENTS], b"").await;
    let endpoint = stream.event().await.unwrap().data;
    let get = |id: u64| request(id, "prompts/get", json!({"name": "up__p"})).to_string();
    let mut id = 0;
    // Unread responses fill buffers on the way, then hold the places of their calls, until the
    // client is disconnected.
    eventually(
        async || {
            id += 1;
            client.send("POST", &endpoint, &[JSON], get(id).as_bytes()).await.status
        },
        |seen| *seen == 404,
    )
    .await;
    let list = client.modern("prompts/get", json!({"name": "up__p"})).await;
    assert_eq!(list.status, 200);
}

#[tokio::test]
async fn x1_at_drain_every_kind_of_stream_ends_in_its_way() {
    let gateway = Gateway::start("[server.limits]\npre_drain = \"0s\"\n").await;
    let mut legacy = ModeClient::connect(&gateway, ClientMode::Sse("2025-11-25")).await;
    let mut stdio = ModeClient::connect(&gateway, ClientMode::ModernStdio).await;
    let draining = gateway.drain();
    let ends = async {
        assert_eq!(stdio.next_message().await["method"], "notifications/cancelled");
        assert!(
            stdio.next_message().await.get("result").is_some(),
            "the subscription's own result"
        );
        legacy.ended().await;
    };
    timeout(PATIENCE, async { tokio::join!(draining, ends) }).await.expect("it ends");
}

#[tokio::test]
async fn w19_no_answer_is_lost_at_the_end_of_the_input() {
    let upstream = Upstream::modern(|asked| {
        (asked.method() == "prompts/get")
            .then(|| asked.content(json!({"type": "text", "text": "x".repeat(200_000)})))
    })
    .await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    let (stream, serving) = gateway.stdio_task();
    let (output, mut input) = tokio::io::split(stream);
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    let mut messages = format!("{}\n", request(0, "initialize", params));
    for id in 1..=20 {
        messages += &format!("{}\n", request(id, "prompts/get", json!({"name": "up__p"})));
    }
    let writing = async {
        input.write_all(messages.as_bytes()).await.unwrap();
        input.shutdown().await.unwrap();
    };
    let reading = async {
        let mut lines = BufReader::new(output).lines();
        let mut ids = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            let message: Value = serde_json::from_str(&line).expect("a whole message");
            ids.push(message["id"].as_u64().unwrap());
        }
        ids.sort_unstable();
        ids
    };
    let (ids, ()) = timeout(PATIENCE, async { tokio::join!(reading, writing) }).await.unwrap();
    assert_eq!(ids, (0..=20).collect::<Vec<_>>());
    timeout(PATIENCE, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn x1_a_server_request_that_cannot_be_answered_any_more_does_not_hold_up_the_end() {
    use crate::support::server_request_upstream::form_elicitation;
    let upstream =
        Upstream::legacy_with_server_requests(vec![form_elicitation("Which colour?")]).await;
    let toml = "[server.limits]\npre_drain = \"0s\"\n".to_owned() + &upstream.patient_table("up");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client().legacy_with("2025-11-25", json!({"elicitation": {}})).await;
    let body = request(7, "prompts/get", json!({"name": "up__p"})).to_string();
    let mut stream = client.stream("POST", &[JSON, EVENTS], body.as_bytes()).await;
    assert_eq!(stream.event().await.unwrap().json()["method"], "elicitation/create");
    let ending = async {
        let taken_back = stream.event().await.expect("a message").json();
        let answer = match taken_back.get("id") {
            Some(_) => taken_back,
            None => stream.event().await.expect("an answer").json(),
        };
        assert_eq!(answer["id"], 7);
    };
    timeout(PATIENCE, async { tokio::join!(gateway.drain(), ending) }).await.expect("it ends");
}
