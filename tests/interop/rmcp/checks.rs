//! The checks of every client, with rmcp as the client. The expectations are those of
//! `tests/interop/expect.json`.

use rmcp::model::{
    ArgumentInfo, CompleteRequestParams, CompletionContext, GetPromptRequestParams,
    PaginatedRequestParams, ProtocolVersion, Reference,
};
use rmcp::service::{ClientLifecycleMode, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientServiceExt, RoleClient, ServiceExt};
use serde_json::Value;

type Connected = RunningService<RoleClient, ()>;

/// Connects by `initialize` ("legacy") or `server/discover` ("modern").
pub async fn connect(url: &str, mode: &str) -> Connected {
    let transport = StreamableHttpClientTransport::from_uri(url);
    match mode {
        "legacy" => ().serve(transport).await.expect("initialize"),
        "modern" => {
            let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
            let mode = ClientLifecycleMode::Discover { preferred_versions };
            ().serve_with_lifecycle(transport, mode).await.expect("discover")
        }
        other => panic!("unknown mode {other}"),
    }
}

/// Lists page by page, gets, completes and provokes errors; says what it did.
pub async fn check(client: &Connected, expect: &Value) -> String {
    let (names, pages) = list(client).await;
    assert_eq!(Value::from(names), expect["names"]);
    assert!(pages >= expect["minPages"].as_u64().unwrap_or(1), "{pages} pages");
    for get in entries(expect, "gets") {
        let result = client.get_prompt(get_params(get)).await.expect("a prompt");
        let text = serde_json::to_string(&result).expect("JSON");
        for part in entries(get, "contains") {
            assert!(text.contains(part.as_str().expect("text")), "{part} is not in {text}");
        }
        assert_eq!(get["messages"], result.messages.len());
    }
    for completion in entries(expect, "completions") {
        let text = |key: &str| completion[key].as_str().expect("text").to_owned();
        let argument = ArgumentInfo::new(text("argument"), text("value"));
        let mut params = CompleteRequestParams::new(Reference::for_prompt(text("name")), argument);
        if let Some(context) = completion["context"].as_object() {
            let known =
                context.iter().map(|(k, v)| (k.clone(), v.as_str().expect("text").to_owned()));
            params.context = Some(CompletionContext::with_arguments(known.collect()));
        }
        let result = client.complete(params).await.expect("a completion");
        assert_eq!(Value::from(result.completion.values), completion["values"]);
    }
    for error in entries(expect, "errors") {
        match client.get_prompt(get_params(error)).await {
            Err(ServiceError::McpError(e)) => assert_eq!(error["code"], e.code.0),
            other => panic!("{error}: {other:?}"),
        }
    }
    let version = &client.peer_info().expect("a peer").protocol_version;
    format!("{version} prompts={} pages={pages}", entries(expect, "names").len())
}

async fn list(client: &Connected) -> (Vec<String>, u64) {
    let (mut names, mut pages, mut cursor) = (Vec::new(), 0, None);
    loop {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = client.list_prompts(Some(params)).await.expect("a page");
        names.extend(page.prompts.into_iter().map(|p| p.name));
        (pages, cursor) = (pages + 1, page.next_cursor);
        if cursor.is_none() {
            return (names, pages);
        }
    }
}

fn entries<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn get_params(entry: &Value) -> GetPromptRequestParams {
    let params = GetPromptRequestParams::new(entry["name"].as_str().expect("a name"));
    match entry["arguments"].as_object() {
        Some(arguments) => params.with_arguments(arguments.clone()),
        None => params,
    }
}
