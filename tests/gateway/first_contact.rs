//! The first request of a client, an old client or a person, as they write it.

use serde_json::json;

use crate::support::client::Reply;
use crate::support::client::{modern, request};
use crate::support::gateway::api_key;
use crate::support::{Client, Gateway, Upstream};

const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

async fn list_at(client: &Client, path: &str) -> Reply {
    let (body, headers) = modern(1, "prompts/list", json!({}));
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    client.send("POST", path, &headers, body.to_string().as_bytes()).await
}

#[tokio::test]
async fn a_slash_too_many_means_the_same_endpoint_in_both_eras_and_transports() {
    let (crm, git) = (Upstream::with_prompts(&["x"]).await, Upstream::with_prompts(&["y"]).await);
    let view = "[views.support]\nupstreams = [\"crm\"]\n".to_owned();
    let gateway = Gateway::start(&(view + &crm.table("crm") + &git.table("git"))).await;
    let client = gateway.client();
    for (path, count) in
        [("/mcp/", 2), ("//mcp", 2), ("/mcp//", 2), ("/mcp/support/", 1), ("//mcp/support?x=/", 1)]
    {
        let reply = list_at(&client, path).await;
        assert_eq!(reply.status, 200, "{path}");
        let listed = reply.json()["result"]["prompts"].as_array().unwrap().len();
        assert_eq!(listed, count, "{path}");
    }
    // A session belongs to the endpoint, not to its spelling.
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"}});
    let json = [("Content-Type", "application/json")];
    let opening = request(0, "initialize", params).to_string();
    let opened = client.send("POST", "/mcp/", &json, opening.as_bytes()).await;
    let session = client.clone().with("Mcp-Session-Id", opened.header("mcp-session-id").unwrap());
    let listed = session.post(&request(1, "prompts/list", json!({}))).await.json();
    assert_eq!(listed["result"]["prompts"].as_array().unwrap().len(), 2);
    let mut events =
        client.stream_at("GET", "/sse/", &[("Accept", "text/event-stream")], b"").await;
    assert!(events.event().await.unwrap().data.starts_with("/sse?sessionId="));
    for path in ["/MCP", "/mcp/../mcp", "/%6dcp", "/mcp;", "/mcp%2f", "/mcp/none/", "/mcp//support"]
    {
        assert_eq!(list_at(&client, path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_wrong_path_names_the_endpoints_and_only_to_callers() {
    let toml = "[views.support]\n".to_owned() + &api_key("alice", "alice");
    let gateway = Gateway::start(&toml).await;
    let message = async |client: &Client| {
        let reply = list_at(client, "/mpc").await;
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        (reply.status, message)
    };
    let (status, told) = message(&gateway.client().with("X-API-Key", "alice")).await;
    assert_eq!(status, 404);
    assert!(told.ends_with("there is one at: /mcp, /mcp/support, /sse"), "{told}");
    let (status, told) = message(&gateway.client()).await;
    assert_eq!((status, told.contains("/mcp")), (401, false), "{told}");
}

#[tokio::test]
async fn old_clients_look_for_an_authorization_server_and_are_sent_to_no_sign_in() {
    let gateway = Gateway::start(&api_key("alice", "alice")).await;
    let client = gateway.client().with("Origin", "http://localhost:6274");
    for path in [
        "/.well-known/oauth-authorization-server",
        "/.well-known/oauth-authorization-server/mcp",
        "/.well-known/openid-configuration",
        "/mcp/.well-known/openid-configuration",
        "/register",
    ] {
        for method in ["GET", "POST", "HEAD"] {
            let reply = client.send(method, path, &[], b"{}").await;
            assert_eq!(reply.status, 404, "{method} {path}");
            assert_eq!(reply.header("www-authenticate"), None, "{method} {path}");
            let readable = reply.header("access-control-allow-origin");
            assert_eq!(readable, Some("http://localhost:6274"), "{method} {path}");
            let text = String::from_utf8(reply.body).unwrap();
            assert!(!text.contains("there is one at"), "{text}");
        }
    }
    assert_eq!(client.send("GET", "/registered", &[], b"").await.status, 401);
}

#[tokio::test]
async fn a_page_may_send_the_trace_of_its_request() {
    let gateway = Gateway::start("").await;
    let preflight = [
        ("Origin", "http://localhost:6274"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "traceparent, tracestate, baggage"),
    ];
    let reply = gateway.client().send("OPTIONS", "/mcp", &preflight, b"").await;
    let allowed = reply.header("access-control-allow-headers").unwrap().to_lowercase();
    for name in ["traceparent", "tracestate", "baggage", "mcp-session-id"] {
        assert!(allowed.split(", ").any(|other| other == name), "{name}: {allowed}");
    }
}

#[tokio::test]
async fn a_browser_gets_a_page_that_says_how_to_connect_and_no_client_of_mcp_does() {
    let upstream = Upstream::with_prompts(&["secret-plan"]).await;
    let public =
        "[server]\npublic_url = \"https://prompts.example.com/team/mcp\"\n[views.support]\n";
    let toml = public.to_owned() + &api_key("alice", "alice") + &upstream.table("crm");
    let gateway = Gateway::start(&toml).await;
    let get = async |path: &str, accept: &str| {
        gateway.client().send("GET", path, &[("Accept", accept)], b"").await
    };
    for (path, named) in
        [("/", "/team/mcp"), ("/mcp", "/team/mcp"), ("/mcp/support/", "/team/mcp/support")]
    {
        let page = get(path, BROWSER).await;
        assert_eq!(page.status, 200, "{path}");
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        let text = String::from_utf8(page.body).unwrap();
        assert!(text.contains("MCP endpoint") && text.contains("promptgate connect"), "{text}");
        assert!(text.contains(&format!("<code>{named}</code>")), "{path}: {text}");
        assert!(!text.contains("crm") && !text.contains("secret-plan"), "{text}");
    }
    for accept in [
        "text/event-stream",
        "application/json, text/event-stream",
        "*/*",
        "text/html, text/event-stream",
    ] {
        assert_eq!(get("/mcp", accept).await.status, 401, "{accept}");
        assert_eq!(get("/", accept).await.status, 401, "{accept}");
    }
    assert_eq!(get("/other", BROWSER).await.status, 401);
}
