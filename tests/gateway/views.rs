//! Named endpoints: each with its own part of the catalog, its own cursors, its own changes.

use serde_json::{Value, json};

use crate::support::client::modern;
use crate::support::{Client, Gateway, Upstream, eventually};

pub async fn ask_at(client: &Client, path: &str, method: &str, params: Value) -> Value {
    let (body, headers) = modern(1, method, params);
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let reply = client.send("POST", path, &headers, body.to_string().as_bytes()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

pub async fn names_at(client: &Client, path: &str) -> Vec<String> {
    let answer = ask_at(client, path, "prompts/list", json!({})).await;
    let prompts = answer["result"]["prompts"].as_array().unwrap().iter();
    prompts.map(|prompt| prompt["name"].as_str().unwrap().to_owned()).collect()
}

const VIEWS: &str = "[views.support]\nupstreams = [\"crm\"]\n\
    [views.reviews]\nprompts = [\"*__review*\", \"crm__x\"]\n";

#[tokio::test]
async fn a_view_serves_its_part_and_nothing_else() {
    let crm = Upstream::with_prompts(&["x", "review"]).await;
    let git = Upstream::with_prompts(&["review-code", "blame"]).await;
    let gateway = Gateway::start(&(VIEWS.to_owned() + &crm.table("crm") + &git.table("git"))).await;
    let client = gateway.client();
    let all = ["crm__review", "crm__x", "git__blame", "git__review-code"];
    assert_eq!(names_at(&client, "/mcp").await, all);
    assert_eq!(names_at(&client, "/mcp/support").await, ["crm__review", "crm__x"]);
    let reviews = ["crm__review", "crm__x", "git__review-code"];
    assert_eq!(names_at(&client, "/mcp/reviews").await, reviews);

    // A prompt outside of the view is unknown there, byte for byte.
    for (method, name) in [("prompts/get", "git__blame"), ("completion/complete", "git__blame")] {
        let params = |name: &str| match method {
            "prompts/get" => json!({"name": name}),
            _ => json!({"ref": {"type": "ref/prompt", "name": name},
                "argument": {"name": "a", "value": ""}}),
        };
        let hidden = ask_at(&client, "/mcp/support", method, params(name)).await;
        let unknown = ask_at(&client, "/mcp/support", method, params("git__never")).await;
        assert_eq!((&hidden["error"]["code"], &hidden), (&json!(-32602), &unknown));
        assert!(ask_at(&client, "/mcp", method, params(name)).await.get("result").is_some());
    }
    let unserved = client.send("POST", "/mcp/none", &[], b"").await;
    assert_eq!(unserved.status, 404);
}

#[tokio::test]
async fn c1_cursors_and_sessions_belong_to_their_endpoint() {
    let crm = Upstream::with_prompts(&["a", "b"]).await;
    let toml = "[listing]\npage_size = 1\n[views.support]\n".to_owned() + &crm.table("crm");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let first = ask_at(&client, "/mcp", "prompts/list", json!({})).await;
    let cursor = json!({"cursor": first["result"]["nextCursor"]});
    let elsewhere = ask_at(&client, "/mcp/support", "prompts/list", cursor.clone()).await;
    assert_eq!(elsewhere["error"]["data"]["reason"], "invalid_cursor");
    assert!(ask_at(&client, "/mcp", "prompts/list", cursor).await.get("result").is_some());
    let legacy = gateway.client().legacy("2025-11-25").await;
    let ping = crate::support::client::request(1, "ping", json!({})).to_string();
    let json = [("Content-Type", "application/json")];
    let reply = legacy.send("POST", "/mcp/support", &json, ping.as_bytes()).await;
    assert_eq!(reply.status, 404);
}

#[tokio::test]
async fn l3_a_change_outside_of_a_view_is_not_told_there() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static MORE: AtomicBool = AtomicBool::new(false);
    let git = Upstream::modern(|asked| {
        let more = MORE.load(Ordering::SeqCst);
        (asked.method() == "prompts/list").then(|| match more {
            false => asked.list(&json!([{"name": "a"}])),
            true => asked.list(&json!([{"name": "a"}, {"name": "b"}])),
        })
    })
    .await;
    let crm = Upstream::with_prompts(&["x"]).await;
    let toml = format!(
        "[listing]\ndebounce = \"10ms\"\n[views.crm]\nupstreams = [\"crm\"]\n\
         [views.git]\nupstreams = [\"git\"]\n{}{}poll = \"20ms\"\n",
        crm.patient_table("crm"),
        git.patient_table("git")
    );
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    assert_eq!(names_at(&client, "/mcp").await.len(), 2);
    let listen = async |path: &str| {
        let params = json!({"notifications": {"promptsListChanged": true}});
        let (body, headers) = modern(9, "subscriptions/listen", params);
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let body = body.to_string();
        let mut stream = client.stream_at("POST", path, &headers, body.as_bytes()).await;
        stream.event().await.expect("an acknowledgement");
        stream
    };
    let (mut there, mut elsewhere) = (listen("/mcp/git").await, listen("/mcp/crm").await);
    MORE.store(true, Ordering::SeqCst);
    let told = there.event().await.expect("a change").json();
    assert_eq!(told["method"], "notifications/prompts/list_changed");
    eventually(async || names_at(&client, "/mcp/git").await.len(), |seen| *seen == 2).await;
    gateway.drain().await;
    let last = elsewhere.event().await.expect("the end").json();
    assert!(last.get("result").is_some(), "nothing was told before it: {last}");
}

#[tokio::test]
async fn a_stream_of_a_view_that_a_reload_removes_ends() {
    let upstream = Upstream::with_prompts(&["a"]).await;
    let debounce = "[listing]\ndebounce = \"10ms\"\n".to_owned();
    let view = "[views.one]\nprompts = [\"up__a\"]\n";
    let rest = upstream.patient_table("up");
    let gateway = Gateway::start(&(debounce.clone() + view + &rest)).await;
    let client = gateway.client();
    assert_eq!(names_at(&client, "/mcp/one").await, ["up__a"]);
    let params = json!({"notifications": {"promptsListChanged": true}});
    let (body, headers) = modern(9, "subscriptions/listen", params);
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let body = body.to_string();
    let mut stream = client.stream_at("POST", "/mcp/one", &headers, body.as_bytes()).await;
    stream.event().await.expect("an acknowledgement");
    gateway.reload(&(debounce + &rest)).await;
    assert!(stream.event().await.is_none(), "it has no endpoint, and hears nothing of another one");
}
