//! The gateway as the client of strangers' networks and servers: proxies, cookies, redirects, and
//! the words of their identity providers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::upstream::good_legacy;
use crate::support::{Gateway, Received, Scripted, Upstream, eventually};

/// An upstream that only a proxy finds.
const FAR: &str = "[upstreams.far]\ntransport = \"http\"\nurl = \"http://prompts.invalid/mcp\"\n";

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// The failure of an upstream that is down, as the admin API has it.
async fn failure(gateway: &Gateway, id: &str) -> String {
    let admin = gateway.admin();
    let row = async || {
        let shown = admin.send("GET", "/api/v1/upstreams", &[], b"").await.json();
        let rows = shown["upstreams"].as_array().cloned().unwrap_or_default();
        rows.into_iter().find(|row| row["upstream"] == id).unwrap_or_default()
    };
    let down = eventually(row, |row| row["state"] == "down").await;
    down["error"]["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn u1_a_proxy_leads_to_remote_upstreams_and_never_to_loopback() {
    // It answers for each URL that it is asked to forward to.
    let proxy = Upstream::with_prompts(&["p"]).await;
    let local = Upstream::with_prompts(&["p"]).await;
    let net = format!("[net]\nproxy = \"http://ada:hunter2@{}\"\n", proxy.addr);
    let gateway = Gateway::start(&(net + FAR + &local.table("near"))).await;
    assert_eq!(gateway.client().names().await.0, ["far__p", "near__p"]);
    gateway.client().ask("prompts/get", json!({"name": "far__p"})).await;
    let forwarded = proxy.received();
    assert!(!forwarded.is_empty());
    for asked in forwarded {
        assert_eq!(asked.path, "http://prompts.invalid/mcp");
        assert_eq!(asked.header("host"), Some("prompts.invalid"));
        assert_eq!(asked.header("proxy-authorization"), Some("Basic YWRhOmh1bnRlcjI="));
    }
    for asked in local.received() {
        assert_eq!((asked.path.as_str(), asked.header("proxy-authorization")), ("/mcp", None));
    }
}

#[tokio::test]
async fn u1_an_upstream_without_the_proxy_is_called_directly_and_a_refusal_of_the_proxy_says_so() {
    let proxy = Upstream::start(|_| Scripted::Http(407, vec![], vec![])).await;
    let net = format!("[net]\nproxy = \"http://ada:hunter2@{}\"\n", proxy.addr);
    let direct = FAR.replace("far", "direct") + "proxy = false\n";
    let gateway = Gateway::start(&(net + ADMIN + FAR + &direct)).await;
    let refused = failure(&gateway, "far").await;
    let expected = format!("the proxy http://{} refuses the user and password (407)", proxy.addr);
    assert!(refused.contains(&expected), "{refused}");
    assert!(!refused.contains("hunter2"), "{refused}");
    let direct = failure(&gateway, "direct").await;
    assert!(!direct.contains("proxy"), "{direct}");
}

#[tokio::test]
async fn a_cookie_keeps_a_session_at_its_replica_and_ends_with_it() {
    let gets = Arc::new(AtomicUsize::new(0));
    let script = move |asked: &Received| {
        let answer = good_legacy(asked, "2025-06-18");
        match (asked.method(), answer) {
            ("initialize", Scripted::Http(status, mut headers, body)) => {
                headers.push(("Set-Cookie", "LB=r1; Path=/; HttpOnly".to_owned()));
                headers.push(("Set-Cookie", "foreign=1; Domain=b.example".to_owned()));
                Scripted::Http(status, headers, body)
            }
            ("prompts/get", _) if gets.fetch_add(1, Ordering::SeqCst) == 0 => {
                Scripted::Http(404, vec![], vec![])
            }
            (_, answer) => answer,
        }
    };
    let upstream = Upstream::start(script).await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let client = gateway.client();
    client.names().await;
    // The first get loses the session.
    client.modern("prompts/get", json!({"name": "up__p"})).await;
    eventually(
        async || upstream.methods().iter().filter(|method| *method == "initialize").count(),
        |handshakes| *handshakes >= 2,
    )
    .await;
    client.ask("prompts/get", json!({"name": "up__p"})).await;
    for asked in upstream.received() {
        let is_first = matches!(asked.method(), "server/discover" | "initialize");
        let expected = (!is_first).then_some("LB=r1");
        assert_eq!(asked.header("cookie"), expected, "{} {}", asked.http_method, asked.method());
    }
}

#[tokio::test]
async fn u7_a_redirect_that_is_not_followed_is_explained_with_its_target() {
    let upstream = Upstream::start(|_| {
        let location = "https://user:secret@moved.example/mcp?key=secret".to_owned();
        Scripted::Http(301, vec![("Location", location)], vec![])
    })
    .await;
    let gateway = Gateway::start(&(upstream.table("up") + ADMIN)).await;
    let said = failure(&gateway, "up").await;
    assert!(said.contains("HTTP 301, which leads to \"https://moved.example/mcp\""), "{said}");
    assert!(!said.contains("secret"), "{said}");
}

#[tokio::test]
async fn u7_what_a_provider_says_about_a_failure_is_shown_also_with_status_200() {
    let upstream = Upstream::start(|asked| match asked.path.as_str() {
        "/token" => Scripted::Json(json!({"error": "invalid_client",
            "error_description": "client canary-secret is\u{1b}[1m unknown"})),
        _ => Scripted::Http(401, vec![], vec![]),
    })
    .await;
    let credential = format!(
        "credential.oauth = {{ client_id = \"gw\", client_secret = {{ value = \"canary-secret\" }}, \
         token_url = \"http://{}/token\" }}\n",
        upstream.addr
    );
    let gateway = Gateway::start(&(upstream.table("up") + &credential + ADMIN)).await;
    let said = failure(&gateway, "up").await;
    let expected = "HTTP 200, invalid_client: client [redacted] is [1m unknown";
    assert!(said.contains(expected), "{said}");
}

#[tokio::test]
async fn odd_members_of_a_token_response_do_not_spoil_the_token() {
    let upstream = Upstream::start(|asked| match asked.path.as_str() {
        "/token" => Scripted::Json(json!({"access_token": "t", "token_type": "bearer",
            "expires_in": "3600.5", "scope": ["a", "b"], "refresh_token": null, "extra": {}})),
        _ if asked.header("authorization") == Some("Bearer t") => {
            crate::support::upstream::good_modern(asked)
        }
        _ => Scripted::Http(401, vec![], vec![]),
    })
    .await;
    let credential = format!(
        "credential.oauth = {{ client_id = \"gw\", client_secret = {{ value = \"s\" }}, \
         token_url = \"http://{}/token\" }}\n",
        upstream.addr
    );
    let gateway = Gateway::start(&(upstream.table("up") + &credential)).await;
    assert_eq!(gateway.client().names().await.0, ["up__p"]);
    let asked: Vec<Value> = upstream.received().iter().map(|r| json!(r.path)).collect();
    assert_eq!(asked.iter().filter(|path| **path == "/token").count(), 1, "{asked:?}");
}
