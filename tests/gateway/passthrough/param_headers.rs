//! The headers `Mcp-Param-*`, which repeat arguments of tools of the upstream of `[passthrough]`.

use super::*;

/// A server with a tool whose arguments headers repeat.
async fn annotated(is_modern: bool) -> Upstream {
    server(is_modern, annotated_tools).await
}

fn annotated_tools(asked: &Received) -> Option<Scripted> {
    match asked.method() {
        "tools/list" => {
            let annotated = json!({"type": "object", "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "page": {"type": "object", "properties": {
                    "limit": {"type": "integer", "x-mcp-header": "Limit"}}}}});
            let invalid = json!({"type": "object", "properties": {
                "region": {"type": "object", "x-mcp-header": "Region"}}});
            Some(asked.result(json!({"resultType": "complete", "tools": [
                {"name": "search", "inputSchema": annotated},
                {"name": "odd", "inputSchema": invalid},
                {"name": "zero", "inputSchema": annotated}]})))
        }
        _ => tool_server(asked),
    }
}

/// The parameters' headers that the upstream got with each call of a tool.
fn sent(upstream: &Upstream) -> Vec<Vec<(String, String)>> {
    let calls = upstream.received().into_iter().filter(|asked| asked.method() == "tools/call");
    let params = calls.map(|call| {
        call.headers.into_iter().filter(|(name, _)| name.starts_with("mcp-param")).collect()
    });
    params.collect()
}

fn search(arguments: Value) -> Value {
    json!({"name": "search", "arguments": arguments})
}

#[tokio::test]
async fn headers_for_the_upstream_are_made_from_the_body_in_both_eras() {
    let upstream = annotated(true).await;
    let gateway = before(&upstream, "").await;
    let arguments = json!({"region": "Zürich", "page": {"limit": 5}, "other": "x"});
    let legacy = gateway.client().legacy("2025-11-25").await.with("Mcp-Param-Region", "forged");
    let called = ask_session(&legacy, "tools/call", search(arguments.clone())).await;
    assert_eq!(called["structuredContent"]["said"], arguments);
    let modern = gateway
        .client()
        .with("Mcp-Param-Region", "=?base64?WsO8cmljaA==?=")
        .with("Mcp-Param-Limit", "5.0")
        .with("Mcp-Param-Other", "forged");
    modern.ask("tools/call", search(arguments)).await;
    gateway.client().ask("tools/call", search(json!({"region": null}))).await;
    gateway
        .client()
        .with("Mcp-Param-Region", "forged")
        .ask("tools/call", json!({"name": "odd", "arguments": {"region": "x"}}))
        .await;
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let both =
        vec![pair("mcp-param-region", "=?base64?WsO8cmljaA==?="), pair("mcp-param-limit", "5")];
    assert_eq!(sent(&upstream), [both.clone(), both, vec![], vec![]], "never those of a client");
}

#[tokio::test]
async fn tools_that_a_client_has_listed_get_their_headers_also_where_prompts_cannot_be_listed() {
    let upstream = server(true, |asked| match asked.method() {
        "prompts/list" => Some(asked.error(-32603, "broken")),
        _ => annotated_tools(asked),
    })
    .await;
    let gateway = Gateway::start(&(REST.to_owned() + &upstream.patient_table("tools"))).await;
    let client = gateway.client();
    client.ask("tools/list", json!({})).await;
    let client = client.with("Mcp-Param-Region", "eu");
    client.ask("tools/call", search(json!({"region": "eu"}))).await;
    assert_eq!(sent(&upstream), [[("mcp-param-region".to_owned(), "eu".to_owned())]]);
}

#[tokio::test]
async fn a_header_that_differs_from_the_body_is_refused_and_reveals_no_tool() {
    for is_modern in [true, false] {
        let upstream = annotated(is_modern).await;
        let toml = keys() + RULES + REST + &upstream.patient_table("tools");
        let gateway = Gateway::start(&toml).await;
        let alice = as_caller(&gateway, "alice");
        alice.names().await;
        let with = |value: &str| as_caller(&gateway, "alice").with("Mcp-Param-Region", value);
        let eu = || search(json!({"region": "eu"}));
        for (client, params) in [
            (alice.clone(), eu()),
            (with("us"), eu()),
            (with("=?base64?ZXU?="), eu()),
            (with("eu").with("mcp-param-region", "eu"), eu()),
            (with("eu"), search(json!({}))),
            (with("eu"), search(json!({"region": null}))),
            (with("eu"), search(json!({"region": ["eu"]}))),
            (with("eu"), json!({"name": "search"})),
        ] {
            let refused = client.modern("tools/call", params.clone()).await;
            let refusal = (400, -32020, "header_mismatch".to_owned());
            assert_eq!(refused.refusal(), refusal, "{params}");
            let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains("mcp-param-region"), "{message}");
        }
        assert!(sent(&upstream).is_empty(), "nothing is passed on");
        let hidden = json!({"name": "zero", "arguments": {"region": "eu"}});
        let unknown = json!({"name": "none", "arguments": {"region": "eu"}});
        let hidden = alice.modern("tools/call", hidden).await.refusal();
        assert_eq!(hidden, alice.modern("tools/call", unknown).await.refusal());
        with("eu").ask("tools/call", eu()).await;
        assert_eq!(sent(&upstream).len(), 1);
    }
}
