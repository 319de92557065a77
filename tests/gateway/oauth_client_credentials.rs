//! OAuth client credentials for upstreams: discovery, caching, renewal, and which addresses are
//! refused.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::support::gateway::api_key;
use crate::support::upstream::good_modern;
use crate::support::{Gateway, OpenStream, Received, Scripted, Upstream, eventually};

/// An upstream that demands access tokens and is its own authorization server.
#[derive(Clone, Default)]
struct TokenIssuer {
    tokens: Arc<Mutex<Vec<String>>>,
    /// Tokens with numbers below this are not taken any more.
    least: Arc<AtomicUsize>,
    lifetime: u64,
    refuses: Arc<AtomicBool>,
}

fn json_body(status: u16, value: &Value) -> Scripted {
    let headers = vec![("Content-Type", "application/json".to_owned())];
    Scripted::Http(status, headers, value.to_string().into_bytes())
}

impl TokenIssuer {
    fn lasting(lifetime: u64) -> Self {
        Self { lifetime, ..Self::default() }
    }

    async fn start(&self) -> Upstream {
        let own = self.clone();
        Upstream::start(move |asked| own.answer(asked)).await
    }

    fn answer(&self, asked: &Received) -> Scripted {
        let origin = format!("http://{}", asked.header("host").unwrap_or_default());
        match asked.path.as_str() {
            "/.well-known/oauth-protected-resource/mcp" => json_body(
                200,
                &json!({"resource": format!("{origin}/mcp"), "authorization_servers": [origin]}),
            ),
            "/.well-known/oauth-authorization-server" => json_body(
                200,
                &json!({"issuer": origin, "token_endpoint": format!("{origin}/token"),
                    "token_endpoint_auth_methods_supported": ["client_secret_basic"]}),
            ),
            "/token" if self.refuses.load(Ordering::SeqCst) => {
                json_body(400, &json!({"error": "invalid_client"}))
            }
            "/token" => {
                let mut tokens = self.tokens.lock().unwrap();
                let token = format!("canary-token-{}", tokens.len());
                tokens.push(token.clone());
                json_body(
                    200,
                    &json!({"access_token": token, "token_type": "Bearer",
                    "expires_in": self.lifetime}),
                )
            }
            _ => {
                let token = asked.header("authorization").unwrap_or_default();
                let number =
                    token.strip_prefix("Bearer canary-token-").and_then(|n| n.parse().ok());
                match number.is_some_and(|n: usize| n >= self.least.load(Ordering::SeqCst)) {
                    true => good_modern(asked),
                    false => {
                        let place = format!("{origin}/.well-known/oauth-protected-resource/mcp");
                        let challenge =
                            format!("Bearer resource_metadata=\"{place}\", scope=\"prompts\"");
                        Scripted::Http(401, vec![("WWW-Authenticate", challenge)], vec![])
                    }
                }
            }
        }
    }

    fn count(&self) -> usize {
        self.tokens.lock().unwrap().len()
    }
}

fn oauth(upstream: &Upstream, rest: &str) -> String {
    upstream.patient_table("up")
        + &format!(
            "credential = {{ oauth = {{ client_id = \"gate way\", client_secret = {{ value = \"s:cret&\" }}{rest} }} }}\n"
        )
}

async fn get(gateway: &Gateway) -> Value {
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await
}

#[tokio::test]
async fn a_token_is_found_by_discovery_got_once_and_sent_with_everything() {
    let issuing = TokenIssuer::lasting(3600);
    let upstream = issuing.start().await;
    let toml = oauth(&upstream, "") + &api_key("ci", "canary-of-the-client");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client().with("Authorization", "Bearer canary-of-the-client");
    let (names, _) = client.names().await;
    assert_eq!(names, ["up__p"]);
    let calls = (0..50).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.ask("prompts/get", json!({"name": "up__p"})).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!(issuing.count(), 1);
    let asked = upstream.received();
    let token = asked.iter().find(|asked| asked.path == "/token").unwrap();
    let basic = format!("Basic {}", BASE64_STANDARD.encode("gate%20way:s%3Acret%26"));
    assert_eq!(token.header("authorization"), Some(basic.as_str()));
    let expected = format!(
        "grant_type=client_credentials&resource=http%3A%2F%2F127.0.0.1%3A{}%2Fmcp&scope=prompts",
        upstream.addr.port()
    );
    assert_eq!(token.body_text(), expected);
    assert!(!format!("{asked:?}").contains("canary-of-the-client"));
}

#[tokio::test]
async fn a_given_endpoint_is_asked_before_the_upstream_is() {
    let issuing = TokenIssuer::lasting(3600);
    let upstream = issuing.start().await;
    let given = format!(
        ", token_url = \"http://{}/token\", scope = \"a b\", resource = \"urn:x\"",
        upstream.addr
    );
    let gateway = Gateway::start(&oauth(&upstream, &given)).await;
    get(&gateway).await;
    let asked = upstream.received();
    assert_eq!(asked[0].path, "/token", "nothing had to be found out");
    assert!(asked[0].body_text().ends_with("resource=urn%3Ax&scope=a%20b"));
    assert!(asked.iter().all(|asked| !asked.path.contains("well-known")));
}

#[tokio::test]
async fn an_empty_resource_is_not_sent_and_the_secret_goes_where_the_file_says() {
    let issuing = TokenIssuer::lasting(3600);
    let upstream = issuing.start().await;
    let place =
        format!(", token_url = \"http://{}/token\", scope = \"api://x/.default\"", upstream.addr);
    for (rest, sends_resource, posts_secret) in [
        ("", true, false),
        (", resource = \"\"", false, false),
        (", resource = \"\", client_secret_in = \"body\"", false, true),
    ] {
        let gateway = Gateway::start(&oauth(&upstream, &(place.clone() + rest))).await;
        get(&gateway).await;
        let received = upstream.received();
        let asked = received.iter().rfind(|asked| asked.path == "/token").unwrap();
        let form = String::from_utf8_lossy(&asked.body);
        assert_eq!(form.contains("resource="), sends_resource, "{form}");
        assert_eq!(form.contains("client_secret=s%3Acret"), posts_secret, "{form}");
        assert_eq!(asked.header("authorization").is_some(), !posts_secret, "{rest}");
    }
}

#[tokio::test]
async fn a_token_is_renewed_before_its_end_and_one_that_is_taken_back_at_once() {
    let issuing = TokenIssuer::lasting(1);
    let upstream = issuing.start().await;
    let gateway = Gateway::start(&oauth(&upstream, "")).await;
    get(&gateway).await;
    let refused = || {
        upstream
            .received()
            .iter()
            .filter(|a| a.path == "/mcp" && a.header("authorization").is_none())
            .count()
    };
    let at_first = refused();
    // No call is refused for an old token: each new one comes before.
    eventually(
        async || {
            get(&gateway).await;
            issuing.count()
        },
        |seen| *seen >= 3,
    )
    .await;
    assert_eq!(refused(), at_first);
    // Taken back: the call that finds out is sent again, with another one.
    let long = TokenIssuer::lasting(3600);
    let upstream = long.start().await;
    let gateway = Gateway::start(&oauth(&upstream, "")).await;
    get(&gateway).await;
    long.least.store(1, Ordering::SeqCst);
    get(&gateway).await;
    assert_eq!(long.count(), 2);
    // An upstream that takes none does not make the gateway ask for more and more.
    long.least.store(1000, Ordering::SeqCst);
    for _ in 0..10 {
        let error = gateway.client().ask_error("prompts/get", json!({"name": "up__p"})).await;
        assert_eq!(error["data"]["reason"], "upstream_auth_failed");
    }
    assert_eq!(long.count(), 2);
}

#[tokio::test]
async fn a_place_that_was_found_out_is_looked_for_anew_when_it_gives_no_token() {
    let issuing = TokenIssuer::lasting(1);
    let upstream = issuing.start().await;
    let gateway = Gateway::start(&oauth(&upstream, "")).await;
    get(&gateway).await;
    let looked = || {
        upstream.received().iter().filter(|a| a.path.contains("oauth-authorization-server")).count()
    };
    assert_eq!(looked(), 1);
    issuing.refuses.store(true, Ordering::SeqCst);
    eventually(
        async || gateway.client().modern("prompts/get", json!({"name": "up__p"})).await.json(),
        |reply| reply.get("error").is_some(),
    )
    .await;
    issuing.refuses.store(false, Ordering::SeqCst);
    eventually(
        async || gateway.client().modern("prompts/get", json!({"name": "up__p"})).await.json(),
        |reply| reply.get("result").is_some(),
    )
    .await;
    assert!(looked() >= 2);
}

#[tokio::test]
async fn a_refused_client_is_told_to_the_operator_and_not_asked_for_again_and_again() {
    let issuing = TokenIssuer::lasting(3600);
    issuing.refuses.store(true, Ordering::SeqCst);
    let upstream = issuing.start().await;
    let other = Upstream::with_prompts(&["q"]).await;
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let toml = oauth(&upstream, "") + &other.table("other") + admin;
    let gateway = Gateway::start(&toml).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(list["prompts"][0]["name"], "other__q", "others are served");
    assert_eq!(list["_meta"]["promptgate/incomplete"][0]["reason"], "upstream_auth_failed");
    for _ in 0..20 {
        let error = gateway.client().ask_error("prompts/get", json!({"name": "up__p"})).await;
        let message = error["message"].as_str().unwrap();
        assert_eq!(message, "upstream `up`: the gateway has no access token for it");
    }
    let shown = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
    let shown = shown["upstreams"].to_string();
    assert!(shown.contains("invalid_client") && !shown.contains("s:cret"), "{shown}");
    let asked = upstream.received().iter().filter(|asked| asked.path == "/token").count();
    assert!(asked < 15, "fewer than the calls: {asked}");
    issuing.refuses.store(false, Ordering::SeqCst);
    eventually(
        async || gateway.client().ask("prompts/list", json!({})).await,
        |list| list["prompts"].as_array().unwrap().len() == 2,
    )
    .await;
}

#[tokio::test]
async fn a12_an_upstream_cannot_send_the_gateway_elsewhere_for_a_token() {
    let sinkhole = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hole = sinkhole.local_addr().unwrap();
    let huge = "x".repeat(10 << 20);
    let places = [
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "file:///etc/passwd".to_owned(),
        "http://10.0.0.1/".to_owned(),
        format!("http://{hole}/"),
        format!("http://2130706433:{}/", hole.port()),
        format!("http://[::ffff:127.0.0.1]:{}/", hole.port()),
        "//".to_owned(),
        "own:redirect".to_owned(),
        "own:huge".to_owned(),
        "own:foreign-resource".to_owned(),
        "own:foreign-issuer".to_owned(),
        "own:bad-issuer".to_owned(),
        "own:bad-token-endpoint".to_owned(),
    ];
    for place in places {
        let (huge, meant) = (huge.clone(), place.clone());
        let upstream = Upstream::start(move |asked| {
            let origin = format!("http://{}", asked.header("host").unwrap_or_default());
            let resource = format!("{origin}/mcp");
            let metadata = |resource: &str, issuer: &str| {
                json_body(200, &json!({"resource": resource, "authorization_servers": [issuer]}))
            };
            match asked.path.as_str() {
                "/redirect" => {
                    Scripted::Http(302, vec![("Location", format!("http://{hole}/"))], vec![])
                }
                "/huge" => json_body(200, &json!({"resource": huge})),
                "/foreign-resource" => metadata("https://evil.example.com/mcp", &origin),
                "/foreign-issuer" => metadata(&resource, "http://10.0.0.1/"),
                "/bad-issuer" => metadata(&resource, &format!("{origin}/a")),
                "/.well-known/oauth-authorization-server/a" => json_body(
                    200,
                    &json!({"issuer": "https://evil.example.com", "token_endpoint": format!("http://{hole}/t")}),
                ),
                "/bad-token-endpoint" => metadata(&resource, &format!("{origin}/b")),
                "/.well-known/oauth-authorization-server/b" => json_body(
                    200,
                    &json!({"issuer": format!("{origin}/b"), "token_endpoint": "http://169.254.169.254/t"}),
                ),
                "/mcp" => {
                    let place = match meant.strip_prefix("own:") {
                        Some(path) => format!("{origin}/{path}"),
                        None => meant.clone(),
                    };
                    let challenge = format!("Bearer resource_metadata=\"{place}\"");
                    Scripted::Http(401, vec![("WWW-Authenticate", challenge)], vec![])
                }
                _ => Scripted::Http(404, vec![], vec![]),
            }
        })
        .await;
        // Each place is refused, however long that takes on this machine.
        let toml = "[listing]\ndeadline = \"60s\"\n".to_owned() + &oauth(&upstream, "");
        let gateway = Gateway::start(&toml).await;
        let summary = gateway.summary().await;
        assert_eq!(summary[0].2, Some("upstream_auth_failed"), "{place}");
        let tokens = upstream.received().iter().filter(|asked| asked.path.contains("/t")).count();
        assert_eq!(tokens, 0, "{place}");
    }
    // Connections are accepted in the order in which they came: ours is the first.
    let own = TcpStream::connect(hole).await.unwrap();
    let (_, first) = sinkhole.accept().await.unwrap();
    assert_eq!(first, own.local_addr().unwrap(), "the gateway connected before");
}

#[tokio::test]
async fn a_scope_that_is_refused_takes_the_token_of_nobody() {
    let upstream = Upstream::start(|asked| match asked.path.as_str() {
        "/token" if asked.body_text().contains("admin") => {
            json_body(400, &json!({"error": "invalid_scope"}))
        }
        "/token" => json_body(
            200,
            &json!({"access_token": "canary-token", "token_type": "Bearer", "expires_in": 3600}),
        ),
        _ if asked.message["params"]["arguments"].get("secret").is_some() => {
            let challenge = "Bearer error=\"insufficient_scope\", scope=\"admin\"".to_owned();
            Scripted::Http(403, vec![("WWW-Authenticate", challenge)], vec![])
        }
        _ => good_modern(asked),
    })
    .await;
    let rest = format!(", token_url = \"http://{}/token\", scope = \"read\"", upstream.addr);
    let gateway = Gateway::start(&oauth(&upstream, &rest)).await;
    get(&gateway).await;
    let wants = json!({"name": "up__p", "arguments": {"secret": "x"}});
    for _ in 0..2 {
        let error = gateway.client().ask_error("prompts/get", wants.clone()).await;
        assert_eq!(error["data"]["reason"], "scope_refused", "{error}");
        get(&gateway).await;
    }
}

#[tokio::test]
async fn f11_a_token_that_was_replaced_meanwhile_is_redacted_too() {
    let issuing = TokenIssuer::lasting(3600);
    let (own, held) = (issuing.clone(), Arc::new(Mutex::new(None)));
    let answer = held.clone();
    let upstream = Upstream::start(move |asked| {
        let is_slow = asked.message["params"]["arguments"].get("slow").is_some();
        match asked.method() {
            "prompts/get" if is_slow => {
                let (stream, scripted) = OpenStream::new();
                *answer.lock().unwrap() = Some((stream, asked.message["id"].clone()));
                scripted
            }
            _ => own.answer(asked),
        }
    })
    .await;
    let gateway = Gateway::start(&oauth(&upstream, "")).await;
    get(&gateway).await;
    let client = gateway.client();
    let slow = tokio::spawn(async move {
        let params = json!({"name": "up__p", "arguments": {"slow": "1"}});
        client.ask_error("prompts/get", params).await
    });
    eventually(async || held.lock().unwrap().is_some(), |is_held| *is_held).await;
    issuing.least.store(1, Ordering::SeqCst);
    get(&gateway).await;
    assert_eq!(issuing.count(), 2);
    let (stream, id) = held.lock().unwrap().take().unwrap();
    let error = json!({"code": -32603, "message": "bad key: canary-token-0"});
    stream.send(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
    drop(stream);
    let error = slow.await.unwrap();
    assert!(error["message"].as_str().unwrap().contains("bad key: [redacted]"), "{error}");
}
