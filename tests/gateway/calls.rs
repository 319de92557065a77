//! Gets and completions: to the owner, checked on the way there and back.

use serde_json::{Value, json};

use crate::support::client::request;
use crate::support::upstream::HANG;
use crate::support::{Gateway, Upstream, eventually};

/// An upstream with one prompt, whose gets are answered with `content`.
async fn answering(content: Value) -> (Gateway, Upstream) {
    let upstream = Upstream::modern(move |asked| {
        (asked.method() == "prompts/get").then(|| asked.content(content.clone()))
    })
    .await;
    (Gateway::before(&[("up", &upstream)]).await, upstream)
}

#[tokio::test]
async fn a_get_goes_to_its_owner_under_the_raw_name_with_its_arguments() {
    let (one, other) = (
        Upstream::with_prompts(&["greet", "a__b"]).await,
        Upstream::with_prompts(&["greet"]).await,
    );
    let gateway = Gateway::before(&[("one", &one), ("other", &other)]).await;
    let get = async |name: &str| {
        let params = json!({"name": name, "arguments": {"who": "é\"", "_meta": "x"}});
        gateway.client().ask("prompts/get", params).await
    };
    let result = get("other__greet").await;
    let text = result["messages"][0]["content"]["text"].as_str().unwrap();
    let arguments = text.strip_prefix("\"greet\" ").expect("the raw name");
    let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap();
    assert_eq!(arguments, json!({"who": "é\"", "_meta": "x"}));
    assert_eq!(result["_meta"]["promptgate/upstream"], "other");
    assert!(result["_meta"]["promptgate/digest"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!(get("one__a__b").await["_meta"]["promptgate/upstream"], "one");

    let asked = other.received();
    let asked = asked.iter().find(|a| a.method() == "prompts/get").unwrap();
    assert_eq!(asked.header("mcp-method"), Some("prompts/get"));
    assert_eq!(asked.header("mcp-name"), Some("greet"));
    assert_eq!(asked.header("mcp-protocol-version"), Some("2026-07-28"));
    assert!(asked.message["params"]["_meta"]["io.modelcontextprotocol/clientInfo"].is_object());
}

#[tokio::test]
async fn arguments_are_checked_before_the_upstream_is_asked() {
    let upstream = Upstream::modern(|asked| {
        let arguments = json!([{"name": "who", "required": true}, {"name": "tone"}]);
        let list = json!([{"name": "p", "arguments": arguments}]);
        (asked.method() == "prompts/list").then(|| asked.list(&list))
    })
    .await;
    let toml = upstream.table("strict") + &upstream.table("lax") + "validate_arguments = false\n";
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    for arguments in [json!({}), json!({"tone": "x"})] {
        let params = json!({"name": "strict__p", "arguments": arguments});
        let error = client.ask_error("prompts/get", params).await;
        assert_eq!(error["code"], -32602);
        assert!(error["message"].as_str().unwrap().contains("`who`"), "{error}");
    }
    for arguments in [json!({"who": 1}), json!([]), json!("x")] {
        let params = json!({"name": "strict__p", "arguments": arguments});
        assert_eq!(client.ask_error("prompts/get", params).await["code"], -32602);
    }
    assert!(!upstream.methods().contains(&"prompts/get".to_owned()));
    client.ask("prompts/get", json!({"name": "strict__p", "arguments": {"who": ""}})).await;
    client.ask("prompts/get", json!({"name": "lax__p"})).await;
}

#[tokio::test]
async fn unknown_prompts_are_32602_in_gets_and_completions() {
    let (gateway, upstream) = answering(json!({"type": "text", "text": "x"})).await;
    let client = gateway.client();
    let get = client.ask_error("prompts/get", json!({"name": "up__nope"})).await;
    assert_eq!((&get["code"], &get["data"]["reason"]), (&json!(-32602), &json!("unknown_prompt")));
    for name in ["nope", "p", "up__", "__p", "", "UP__p"] {
        assert_eq!(client.ask_error("prompts/get", json!({"name": name})).await, get);
        let completion = json!({"ref": {"type": "ref/prompt", "name": name},
            "argument": {"name": "a", "value": ""}});
        assert_eq!(client.ask_error("completion/complete", completion).await, get);
    }
    assert!(!upstream.methods().contains(&"prompts/get".to_owned()));
}

#[tokio::test]
async fn errors_of_upstreams_pass_or_are_translated() {
    let upstream = Upstream::modern(|asked| {
        let code = asked.message["params"]["arguments"]["code"].as_str()?.parse().ok()?;
        Some(asked.error(code, "their \u{1b}[31mwords"))
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let error = async |code: &str| {
        let params = json!({"name": "up__p", "arguments": {"code": code}});
        gateway.client().ask_error("prompts/get", params).await
    };
    for code in [-32602, -32603, 7] {
        let mut error = error(&code.to_string()).await;
        let correlation = error["data"].as_object_mut().unwrap().remove("correlationId");
        assert!(correlation.is_some(), "the log has what the upstream sent");
        let data = json!({"reason": "upstream_error", "upstream": "up"});
        assert_eq!(error, json!({"code": code, "message": "their  [31mwords", "data": data}));
    }
    for code in [-32601, -32000, -32020, -32022] {
        let error = error(&code.to_string()).await;
        assert_eq!(error["code"], -32603);
        assert_eq!(error["data"]["upstreamCode"], code);
    }
}

#[tokio::test]
async fn every_content_type_comes_through_unharmed() {
    let annotations = json!({"audience": ["user"], "priority": 0.5, "x": 1});
    for content in [
        json!({"type": "text", "text": "a\u{0}b\u{2028}é", "annotations": annotations}),
        json!({"type": "image", "data": "iVBORw==", "mimeType": "image/png", "x": {"y": [1]}}),
        json!({"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}),
        json!({"type": "resource", "resource": {"uri": "file:///a", "text": "t", "_meta": {"k": 1}}}),
        json!({"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}),
        json!({"type": "resource_link", "uri": "a:b", "name": "n", "size": 12_345_678_901_i64}),
    ] {
        let (gateway, _upstream) = answering(content.clone()).await;
        let result = gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
        assert_eq!(result["messages"][0]["content"], content);
        assert_eq!(result["resultType"], "complete");
    }
}

#[tokio::test]
async fn six_mebibytes_of_image_pass_and_nulls_do_not() {
    let data = "QUJD".repeat((6 << 20) / 4);
    let image =
        json!({"type": "image", "data": data, "mimeType": "image/png", "annotations": null});
    let upstream = Upstream::modern(move |asked| {
        (asked.method() == "prompts/get").then(|| asked.content(image.clone()))
    })
    .await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    let result = gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    let content = &result["messages"][0]["content"];
    assert_eq!(content["data"].as_str().unwrap(), data);
    assert!(content.get("annotations").is_none());
}

#[tokio::test]
async fn what_a_client_would_choke_on_is_a_protocol_error_and_never_half_a_prompt() {
    for (content, rule) in [
        (json!({"type": "video", "data": "AAAA", "mimeType": "video/mp4"}), "`type` must be"),
        (
            json!({"type": "image", "data": "A", "mimeType": "image/png"}),
            "`data` or `blob` must be",
        ),
        (json!({"type": "text"}), "text content needs `text`"),
        (json!("text"), "`content` must be an object"),
    ] {
        let (gateway, _upstream) = answering(content).await;
        let error = gateway.client().ask_error("prompts/get", json!({"name": "up__p"})).await;
        assert_eq!(error["code"], -32603);
        let message = error["message"].as_str().unwrap();
        let begin = "upstream `up`: the response violates the protocol: message 0: ";
        assert!(message.starts_with(&format!("{begin}{rule}")), "{message}");
        let data = &error["data"];
        assert_eq!(
            (&data["reason"], &data["upstream"]),
            (&json!("upstream_protocol_error"), &json!("up"))
        );
    }
}

#[tokio::test]
async fn completions_go_to_the_owner_with_their_context() {
    let upstream = Upstream::modern(|asked| {
        let values = [asked.message["params"]["context"]["arguments"]["a"].clone()];
        let completion = json!({"values": values, "total": 1, "hasMore": false});
        let result = json!({"resultType": "complete", "completion": completion});
        (asked.method() == "completion/complete").then(|| asked.result(result))
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let params = json!({"ref": {"type": "ref/prompt", "name": "up__p"},
        "argument": {"name": "b", "value": "x"}, "context": {"arguments": {"a": "known"}}});
    let result = gateway.client().ask("completion/complete", params).await;
    assert_eq!(result["completion"], json!({"values": ["known"], "total": 1, "hasMore": false}));
    let asked = upstream.received();
    let asked = &asked.iter().find(|a| a.method() == "completion/complete").unwrap().message;
    assert_eq!(asked["params"]["ref"], json!({"type": "ref/prompt", "name": "p"}));
    assert_eq!(asked["params"]["argument"], json!({"name": "b", "value": "x"}));
}

#[tokio::test]
async fn without_completions_there_are_no_values() {
    let discover = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "public",
        "supportedVersions": ["2026-07-28"], "capabilities": {"prompts": {}}});
    let silent = Upstream::modern(move |asked| {
        (asked.method() == "server/discover").then(|| asked.result(discover.clone()))
    })
    .await;
    let refusing = Upstream::modern(|asked| {
        (asked.method() == "completion/complete").then(|| asked.error(-32601, "no"))
    })
    .await;
    let gateway = Gateway::before(&[("silent", &silent), ("refusing", &refusing)]).await;
    for name in ["silent__p", "refusing__p"] {
        let params = json!({"ref": {"type": "ref/prompt", "name": name},
            "argument": {"name": "b", "value": "x"}});
        let result = gateway.client().ask("completion/complete", params).await;
        assert_eq!(result["completion"]["values"], json!([]), "{name}");
    }
    assert!(!silent.methods().contains(&"completion/complete".to_owned()));
}

#[tokio::test]
async fn the_form_of_the_answer_follows_accept() {
    let (gateway, _upstream) = answering(json!({"type": "text", "text": "x"})).await;
    let ask = async |accept: &str| {
        let client = gateway.client().with("Accept", accept);
        let reply = client.modern("prompts/get", json!({"name": "up__p"})).await;
        (
            reply.header("content-type").unwrap().to_owned(),
            reply.json()["result"]["messages"].clone(),
        )
    };
    let (json_type, messages) = ask("application/json").await;
    assert_eq!(json_type, "application/json");
    let (stream_type, streamed) = ask("text/event-stream").await;
    assert_eq!((stream_type.as_str(), streamed), ("text/event-stream", messages));
}

#[tokio::test]
async fn an_answer_that_takes_long_becomes_a_stream_with_comments() {
    let hanging = Upstream::modern(|asked| (asked.method() == "prompts/get").then_some(HANG)).await;
    let toml = "[server.limits]\nkeep_alive = \"50ms\"\n".to_owned() + &hanging.table("up");
    let gateway = Gateway::start(&toml).await;
    let params = json!({"name": "up__p"});
    let legacy = gateway.client().legacy("2025-06-18").await;
    for reply in [
        gateway.client().modern("prompts/get", params.clone()).await,
        legacy.post(&request(1, "prompts/get", params.clone())).await,
    ] {
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        assert!(reply.body.starts_with(b": keep-alive\n\n"));
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["code"], &error["data"]["reason"]),
            (&json!(-32603), &json!("upstream_timeout"))
        );
    }
}

#[tokio::test]
async fn a_cancelled_legacy_call_ends_as_an_empty_stream() {
    let hanging = Upstream::modern(|asked| (asked.method() == "prompts/get").then_some(HANG)).await;
    let gateway = Gateway::start(&hanging.patient_table("up")).await;
    gateway.summary().await;
    let client = gateway.client().legacy("2025-06-18").await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.post(&request(5, "prompts/get", json!({"name": "up__p"}))).await }
    });
    hanging.received_method("prompts/get").await;
    let again = client.post(&request(5, "prompts/get", json!({"name": "up__p"}))).await;
    assert_eq!(again.refusal(), (400, -32600, "id_in_use".into()), "w14: an id runs once");
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}});
    assert_eq!(client.post(&cancel).await.status, 202);
    let reply = call.await.unwrap();
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
}

#[tokio::test]
async fn too_many_calls_at_once_are_503_with_retry_after() {
    let hanging = Upstream::modern(|asked| (asked.method() == "prompts/get").then_some(HANG)).await;
    let toml = "[server.limits]\nin_flight = 1\n".to_owned() + &hanging.patient_table("up");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.modern("prompts/get", json!({"name": "up__p"})).await }
    });
    hanging.received_method("prompts/get").await;
    let refused = client.modern("prompts/list", json!({})).await;
    assert_eq!(refused.refusal(), (503, -32603, "overloaded".into()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    call.abort();
    eventually(async || client.modern("prompts/list", json!({})).await.status, |seen| *seen == 200)
        .await;
}
