//! Callers whom an identity provider knows: whose tokens are believed, and whose are not.

use std::time::Duration;

use serde_json::{Value, json};

use super::audit::Log;
use crate::support::gateway::api_key;
use crate::support::provider::{JwksResponse, Provider, SigningKey, now, text};
use crate::support::{Client, Gateway, Upstream, eventually};

const RESOURCE: &str = "https://prompts.example.com/mcp";

fn server() -> String {
    format!("[server]\npublic_url = \"{RESOURCE}\"\n")
}

fn bearer(gateway: &Gateway, token: &str) -> Client {
    gateway.client().with("Authorization", &format!("Bearer {token}"))
}

async fn status(gateway: &Gateway, token: &str) -> u16 {
    bearer(gateway, token).modern("prompts/list", json!({})).await.status
}

/// Once the gateway has the keys of its provider.
async fn ready(gateway: &Gateway, token: &str) {
    eventually(async || status(gateway, token).await, |seen| *seen == 200).await;
}

#[tokio::test]
async fn a3_good_tokens_of_each_kind_are_callers_with_groups_and_scopes() {
    let keys = [SigningKey::rsa("r"), SigningKey::ec("e"), SigningKey::ed("d")];
    let provider = Provider::start(&keys.each_ref()).await;
    let upstream = Upstream::with_prompts(&["p", "q"]).await;
    let log = Log::new();
    let toml = server()
        + &upstream.table("up")
        + &provider.table()
        + "scopes = [\"prompts\"]\n\
           [[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"staff\"]\nprompts = [\"p\"]\n\
           [[access.rules]]\nallow = [\"list\", \"get\"]\nscopes = [\"all\"]\n"
        + &log.table();
    let gateway = Gateway::start(&toml).await;
    for key in &keys {
        let client = bearer(&gateway, &key.sign(&provider.claims(RESOURCE)));
        let (names, _) = client.names().await;
        assert_eq!(names, ["up__p"], "{:?}", key.algorithm);
    }
    let mut claims = provider.claims(RESOURCE);
    claims["scope"] = json!("prompts all");
    claims["aud"] = json!(["https://other.example.com", RESOURCE]);
    claims["client_id"] = json!("desktop");
    claims["jti"] = json!("canary-token-id");
    let token = keys[1].sign_with(&claims, |header| {
        // Nothing that a token brings with it is asked or believed.
        header.jku = Some("http://169.254.169.254/keys".to_owned());
        header.x5u = Some("http://127.0.0.1:1/cert".to_owned());
    });
    let (names, _) = bearer(&gateway, &token).names().await;
    assert_eq!(names, ["up__p", "up__q"]);
    bearer(&gateway, &token).ask("prompts/get", json!({"name": "up__q"})).await;
    // A session belongs to the subject, whatever token it shows.
    let session = bearer(&gateway, &token).legacy("2025-06-18").await;
    assert_eq!(session.names().await.0.len(), 2);

    let get = log.of("received").into_iter().find(|r| r["name"] == "up__q").unwrap();
    assert_eq!((&get["caller"], &get["proof"]), (&json!("ada"), &json!("jwt")));
    assert_eq!((&get["issuer"], &get["client_id"]), (&json!(provider.issuer()), &json!("desktop")));
    assert!(get["token_id"].as_str().unwrap().starts_with("sha256:"));
    let said = log.text();
    assert!(!said.contains("canary") && !said.contains(&token[..40]), "{said}");
    let upstream_saw = format!("{:?}", upstream.received());
    assert!(!upstream_saw.contains("canary") && !upstream_saw.contains(&token[..40]));
}

#[tokio::test]
async fn a_uri_at_the_root_is_accepted_in_both_spellings_and_a_refusal_says_what_came() {
    let key = SigningKey::ec("e");
    let provider = Provider::start(&[&key]).await;
    for public in ["https://prompts.example.com/", "https://prompts.example.com"] {
        let toml = format!("[server]\npublic_url = \"{public}\"\n") + &provider.table();
        let gateway = Gateway::start(&toml).await;
        let token = |audience: Value, issuer: String| {
            let mut claims = provider.claims("");
            (claims["aud"], claims["iss"]) = (audience, issuer.into());
            key.sign(&claims)
        };
        let good = "https://prompts.example.com";
        for audience in [json!(good), json!("HTTPS://Prompts.example.com:443/"), json!(["x", good])]
        {
            ready(&gateway, &token(audience, provider.issuer() + "/")).await;
        }
        let why = async |audience: &str, issuer: String| {
            let token = token(json!(audience), issuer);
            let reply = bearer(&gateway, &token).modern("prompts/list", json!({})).await;
            assert_eq!(reply.status, 401);
            reply.json()["error"]["message"].as_str().unwrap().to_owned()
        };
        let said = why("https://prompts.example.com/mcp", provider.issuer()).await;
        let expected = "another audience: \"https://prompts.example.com/mcp\", not \"https://prompts.example.com\"";
        assert!(said.contains(expected), "{said}");
        let said = why(good, "https://evil.example".to_owned()).await;
        let expected =
            format!("another issuer: \"https://evil.example\", not {:?}", provider.issuer());
        assert!(said.contains(&expected), "{said}");
    }
}

#[tokio::test]
async fn a3_what_is_wrong_with_a_token_makes_it_nobodys() {
    let (key, other) = (SigningKey::ec("e"), SigningKey::ec("e"));
    let rsa = SigningKey::rsa("r");
    let provider = Provider::start(&[&key, &rsa]).await;
    let toml = server() + &provider.table() + "leeway = \"30s\"\n" + &api_key("ci", "pg_good");
    let gateway = Gateway::start(&toml).await;
    let good = provider.claims(RESOURCE);
    ready(&gateway, &key.sign(&good)).await;
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        match value.is_null() {
            true => drop(claims.as_object_mut().unwrap().remove(name)),
            false => claims[name] = value,
        }
        claims
    };
    let unsigned = |header: Value, signature: &str| {
        format!(
            "{}.{}.{signature}",
            text(header.to_string().as_bytes()),
            text(good.to_string().as_bytes())
        )
    };
    let hmac = {
        // The public key of the issuer as the secret.
        let header = json!({"alg": "HS256", "kid": "r"});
        let message = unsigned(header, "");
        let message = message.trim_end_matches('.');
        let secret = rsa.jwk["n"].as_str().unwrap().as_bytes();
        let tag = ring::hmac::sign(
            &ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret),
            message.as_bytes(),
        );
        format!("{message}.{}", text(tag.as_ref()))
    };
    let whole = key.sign(&good);
    let (head, signature) = whole.rsplit_once('.').unwrap();
    let header = head.split_once('.').unwrap().0;
    let admin =
        format!("{header}.{}.{signature}", text(with("sub", json!("root")).to_string().as_bytes()));
    let bad = [
        ("alg none", unsigned(json!({"alg": "none"}), "")),
        ("alg none, capital", unsigned(json!({"alg": "None"}), "AAAA")),
        ("HS256 with the public key", hmac),
        ("an algorithm nobody knows", unsigned(json!({"alg": "XX1"}), "AAAA")),
        ("another's key of the same name", other.sign(&good)),
        ("a tampered claim", admin),
        ("a cut signature", whole[..whole.len() - 4].to_owned()),
        ("another issuer", key.sign(&with("iss", json!("https://evil.example")))),
        ("a path of the issuer", key.sign(&with("iss", json!(provider.issuer() + "/x")))),
        ("no issuer", key.sign(&with("iss", Value::Null))),
        ("another audience", key.sign(&with("aud", json!("https://other.example/mcp")))),
        ("part of the audience", key.sign(&with("aud", json!("https://prompts.example.com")))),
        ("the audience with a slash", key.sign(&with("aud", json!(format!("{RESOURCE}/"))))),
        ("an endpoint below it", key.sign(&with("aud", json!(format!("{RESOURCE}/support"))))),
        ("no audience", key.sign(&with("aud", Value::Null))),
        ("expired", key.sign(&with("exp", json!(now() - 32)))),
        ("no end", key.sign(&with("exp", Value::Null))),
        ("an end that is no number", key.sign(&with("exp", json!("9999999999")))),
        ("not yet", key.sign(&with("nbf", json!(now() + 40)))),
        ("a beginning that is no number", key.sign(&with("nbf", json!("0")))),
        ("no subject", key.sign(&with("sub", Value::Null))),
        ("an empty subject", key.sign(&with("sub", json!("")))),
        ("a subject with a line feed", key.sign(&with("sub", json!("a\nb")))),
        ("nobody", key.sign(&with("sub", json!("anonymous")))),
        ("the console", key.sign(&with("sub", json!("console")))),
        ("a person of the console", key.sign(&with("sub", json!("console/ada")))),
        ("a caller with a key", key.sign(&with("sub", json!("ci")))),
        ("the caller over standard streams", key.sign(&with("sub", json!("local")))),
        ("groups that are no texts", key.sign(&with("groups", json!([1])))),
        ("extensions", key.sign_with(&good, |h| h.crit = Some(vec!["b64".to_owned()]))),
        ("another key's kind", key.sign_with(&good, |h| h.kid = Some("r".to_owned()))),
        ("a long token", key.sign(&with("pad", json!("x".repeat(16 << 10))))),
        ("no token", "ey.ey.ey".to_owned()),
        ("two parts", "eyJhbGciOiJFUzI1NiJ9.e30".to_owned()),
    ];
    for (what, token) in &bad {
        let reply = bearer(&gateway, token).modern("prompts/list", json!({})).await;
        assert_eq!(reply.status, 401, "{what}: {reply:?}");
        let challenge = reply.header("www-authenticate").unwrap();
        assert!(challenge.contains("error=\"invalid_token\""), "{what}: {challenge}");
        assert!(!String::from_utf8_lossy(&reply.body).contains(&token[..token.len().min(30)]));
    }
    for (what, claims) in [
        ("within the leeway", with("exp", json!(now() - 25))),
        ("a beginning within the leeway", with("nbf", json!(now() + 20))),
        ("an end with a fraction", with("exp", json!(now() as f64 + 5.5))),
        ("no groups", with("groups", Value::Null)),
    ] {
        assert_eq!(status(&gateway, &key.sign(&claims)).await, 200, "{what}");
    }
    let unnamed = rsa.sign_with(&good, |header| header.kid = None);
    assert_eq!(status(&gateway, &unnamed).await, 200, "one key of the kind is there");
    // The other methods stand beside it, and none helps another.
    assert_eq!(status(&gateway, "pg_good").await, 200);
    let both = bearer(&gateway, &bad[0].1).with("X-API-Key", "pg_good");
    assert_eq!(both.modern("prompts/list", json!({})).await.status, 401);
}

#[tokio::test]
async fn groups_are_read_at_a_path_and_a_claim_without_them_is_named() {
    let key = SigningKey::ec("e");
    let provider = Provider::start(&[&key]).await;
    let upstream = Upstream::with_prompts(&["p"]).await;
    let log = Log::new();
    let toml = server()
        + &upstream.table("up")
        + &provider.table()
        + "groups_claim = \"realm_access.roles\"\n\
           [[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"staff\"]\n"
        + &log.table();
    let gateway = Gateway::start(&toml).await;
    let with = |name: &str, value: Value| {
        let mut claims = provider.claims(RESOURCE);
        claims[name] = value;
        key.sign(&claims)
    };
    let names = async |token: &str| bearer(&gateway, token).names().await.0;
    assert_eq!(names(&with("realm_access", json!({"roles": ["staff"]}))).await, ["up__p"]);
    for (name, value) in [
        ("groups", json!(["staff"])),
        ("_claim_names", json!({"realm_access": "src1"})),
        ("realm_access", json!({"roles": []})),
    ] {
        assert!(names(&with(name, value)).await.is_empty(), "{name}");
    }
    let odd = with("realm_access", json!({"roles": {"staff": {}}}));
    assert_eq!(status(&gateway, &odd).await, 401);
    eventually(async || log.text(), |text| text.contains("realm_access.roles")).await;
}

#[tokio::test]
async fn a7_a13_challenges_and_metadata_name_the_configured_url() {
    let key = SigningKey::ec("e");
    let provider = Provider::start(&[&key]).await;
    let toml = format!(
        "{}allowed_hosts = [\"evil.example\"]\n[views.support]\n{}scopes = [\"prompts\", \"read\"]\n",
        server(),
        provider.table()
    );
    let gateway = Gateway::start(&toml).await;
    let spoofed = gateway
        .client()
        .with("Host", "evil.example")
        .with("X-Forwarded-Host", "evil.example")
        .with("X-Forwarded-Proto", "http");
    let reply = spoofed.modern("prompts/list", json!({})).await;
    assert_eq!(reply.status, 401);
    let origin = "https://prompts.example.com";
    let metadata = format!("{origin}/.well-known/oauth-protected-resource/mcp");
    let expected = format!("Bearer resource_metadata=\"{metadata}\", scope=\"prompts read\"");
    assert_eq!(reply.header("www-authenticate"), Some(expected.as_str()));
    for (path, resource) in [
        ("/.well-known/oauth-protected-resource", RESOURCE.to_owned()),
        ("/.well-known/oauth-protected-resource/mcp", RESOURCE.to_owned()),
        ("/.well-known/oauth-protected-resource/mcp/support", format!("{RESOURCE}/support")),
    ] {
        let reply = spoofed.send("GET", path, &[], b"").await;
        assert_eq!(reply.status, 200, "{path}");
        let document = reply.json();
        assert_eq!(document["resource"], resource);
        assert_eq!(document["authorization_servers"], json!([provider.issuer()]));
        assert!(!document.to_string().contains("evil"));
    }
    let post = spoofed.send("POST", "/.well-known/oauth-protected-resource", &[], b"").await;
    assert_eq!(post.status, 405);

    let claims = provider.claims(RESOURCE);
    let poor = key.sign(&claims);
    eventually(async || status(&gateway, &poor).await, |seen| *seen == 403).await;
    let reply = bearer(&gateway, &poor).modern("prompts/list", json!({})).await;
    assert_eq!(reply.json()["error"]["data"]["reason"], "insufficient_scope");
    let expected = format!(
        "Bearer error=\"insufficient_scope\", resource_metadata=\"{metadata}\", scope=\"prompts read\""
    );
    assert_eq!(reply.header("www-authenticate"), Some(expected.as_str()));
    // Each endpoint has tokens of its own.
    let mut claims = provider.claims(&format!("{RESOURCE}/support"));
    claims["scope"] = json!(["read", "prompts"]);
    let support = bearer(&gateway, &key.sign(&claims));
    assert_eq!(support.modern("prompts/list", json!({})).await.status, 401);
    let get = support.send("GET", "/mcp/support", &[("Accept", "text/event-stream")], b"").await;
    assert_eq!(get.status, 400, "it is let in, and lacks a session");
}

#[tokio::test]
async fn a1_each_route_wants_a_credential_but_those_that_tell_how_to_get_one() {
    let key = SigningKey::ec("e");
    let provider = Provider::start(&[&key]).await;
    let gateway = Gateway::start(&(server() + &provider.table() + &api_key("ci", "pg_good"))).await;
    let expired = {
        let mut claims = provider.claims(RESOURCE);
        claims["exp"] = json!(now() - 3600);
        key.sign(&claims)
    };
    let good = key.sign(&provider.claims(RESOURCE));
    ready(&gateway, &good).await;
    let credentials =
        [None, Some("pg_bad"), Some(expired.as_str()), Some(good.as_str()), Some("pg_good")];
    for (method, path) in [
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        ("DELETE", "/mcp"),
        ("PUT", "/mcp"),
        ("POST", "/sse"),
        ("GET", "/sse?sessionId=1"),
        ("GET", "/"),
        ("GET", "/livez"),
        ("GET", "/metrics"),
        ("POST", "/api/v1/upstreams"),
    ] {
        for (index, credential) in credentials.iter().enumerate() {
            let mut client = gateway.client();
            if let Some(credential) = credential {
                client = client.with("Authorization", &format!("Bearer {credential}"));
            }
            // As JSON, so that no stream stays open.
            let headers = [("Accept", "application/json"), ("Content-Type", "application/json")];
            let reply = client.send(method, path, &headers, b"").await;
            match index {
                0..=2 => {
                    assert_eq!(reply.status, 401, "{method} {path} {credential:?}");
                    assert!(
                        reply.header("www-authenticate").unwrap().contains("resource_metadata")
                    );
                }
                _ => assert_ne!(reply.status, 401, "{method} {path}: {reply:?}"),
            }
        }
    }
    let preflight = [("Origin", "http://localhost"), ("Access-Control-Request-Method", "POST")];
    assert_eq!(gateway.client().send("OPTIONS", "/mcp", &preflight, b"").await.status, 204);
    for query in ["/mcp?access_token=", "/mcp?key="] {
        let path = format!("{query}{good}");
        assert_eq!(gateway.client().send("GET", &path, &[], b"").await.status, 401);
    }
    let cookie = gateway.client().with("Cookie", &format!("access_token={good}"));
    assert_eq!(cookie.send("GET", "/mcp", &[], b"").await.status, 401);
    // Without tokens there is nothing to be told.
    let plain = Gateway::start(&api_key("ci", "pg_good")).await;
    let reply = plain.client().send("GET", "/.well-known/oauth-protected-resource", &[], b"").await;
    assert_eq!(reply.status, 404);
    let reply = plain.client().send("GET", "/mcp", &[], b"").await;
    assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
}

#[tokio::test]
async fn a4_a_thousand_unknown_keys_cost_the_issuer_one_fetch() {
    let key = SigningKey::ec("e");
    let provider = Provider::start(&[&key]).await;
    let toml = server() + &provider.table() + "cooldown = \"1h\"\n";
    let gateway = Gateway::start(&toml).await;
    let good = key.sign(&provider.claims(RESOURCE));
    ready(&gateway, &good).await;
    let asked = provider.fetches();
    let claims = provider.claims(RESOURCE);
    for batch in 0..20 {
        let calls = (0..50).map(|i| {
            let token = key.sign_with(&claims, |h| h.kid = Some(format!("{batch}-{i}")));
            let client = bearer(&gateway, &token);
            tokio::spawn(async move { client.modern("prompts/list", json!({})).await.status })
        });
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(call.await.unwrap(), 401);
        }
    }
    assert_eq!(provider.fetches(), asked, "within the cooldown nobody is asked");
    assert_eq!(status(&gateway, &good).await, 200);
}

#[tokio::test]
async fn a5_rotation_is_noticed_by_the_first_token_and_a_key_taken_back_by_the_next_fetch() {
    let (old, new) = (SigningKey::ec("old"), SigningKey::ed("new"));
    let provider = Provider::start(&[&old]).await;
    let toml = server() + &provider.table() + "cooldown = \"1ms\"\nrefresh = \"1s\"\n";
    let gateway = Gateway::start(&toml).await;
    let (with_old, with_new) =
        (old.sign(&provider.claims(RESOURCE)), new.sign(&provider.claims(RESOURCE)));
    ready(&gateway, &with_old).await;
    assert_eq!(status(&gateway, &with_new).await, 401);
    provider.rotate(&[&old, &new]);
    // At once, unless a fetch was under way that has found what was there before.
    eventually(async || status(&gateway, &with_new).await, |seen| *seen == 200).await;
    assert_eq!(status(&gateway, &with_old).await, 200);
    provider.rotate(&[&new]);
    eventually(async || status(&gateway, &with_old).await, |seen| *seen == 401).await;
    assert_eq!(status(&gateway, &with_new).await, 200);
}

#[tokio::test]
async fn a5_without_keys_nobody_can_tell_and_old_keys_are_good_for_a_while() {
    let key = SigningKey::ec("e");
    for mood in [
        JwksResponse::Status(500),
        JwksResponse::Html,
        JwksResponse::Huge(2 << 20),
        JwksResponse::Silent,
    ] {
        let provider = Provider::start(&[&key]).await;
        provider.set(mood.clone());
        let toml =
            server() + &provider.table() + "cooldown = \"10ms\"\n" + &api_key("ci", "pg_good");
        let gateway = Gateway::start(&toml).await;
        let token = key.sign(&provider.claims(RESOURCE));
        let reply = bearer(&gateway, &token).modern("prompts/list", json!({})).await;
        assert_eq!(reply.status, 503, "{mood:?}: {reply:?}");
        assert_eq!(reply.json()["error"]["data"]["reason"], "auth_unavailable");
        assert!(reply.header("retry-after").is_some());
        assert_eq!(status(&gateway, "pg_good").await, 200, "other methods go on");
        if !matches!(mood, JwksResponse::Silent) {
            provider.set(JwksResponse::Well);
            ready(&gateway, &token).await;
        }
    }
    // Once known, keys are good for `refresh` and `max_stale`.
    let provider = Provider::start(&[&key]).await;
    let times = "cooldown = \"10ms\"\nrefresh = \"1s\"\nmax_stale = \"5s\"\n";
    let gateway = Gateway::start(&(server() + &provider.table() + times)).await;
    let token = key.sign(&provider.claims(RESOURCE));
    let known = tokio::time::Instant::now();
    ready(&gateway, &token).await;
    provider.set(JwksResponse::Status(500));
    let asked = provider.fetches();
    provider.fetched(asked + 1).await;
    assert_eq!(status(&gateway, &token).await, 200, "stale, and good");
    eventually(async || status(&gateway, &token).await, |seen| *seen == 503).await;
    assert!(known.elapsed() >= Duration::from_millis(4900));
    provider.set(JwksResponse::Well);
    ready(&gateway, &token).await;
}

#[tokio::test]
async fn a5_a_reload_keeps_the_keys_of_the_issuer_that_were_fetched() {
    let key = SigningKey::ec("e");
    let provider = Provider::start(&[&key]).await;
    let toml = |more: &str| server() + &provider.table() + "cooldown = \"10ms\"\n" + more;
    let gateway = Gateway::start(&toml("")).await;
    let token = key.sign(&provider.claims(RESOURCE));
    ready(&gateway, &token).await;
    provider.set(JwksResponse::Status(500));
    let asked = provider.fetches();
    gateway.reload(&toml("leeway = \"5s\"\nmax_stale = \"2h\"\n")).await;
    provider.fetched(asked + 1).await;
    assert_eq!(status(&gateway, &token).await, 200);
    // The keys of another issuer are not its keys.
    let other = Provider::start(&[&key]).await;
    other.set(JwksResponse::Status(500));
    gateway.reload(&(server() + &other.table() + "cooldown = \"10ms\"\n")).await;
    let of_other = key.sign(&other.claims(RESOURCE));
    assert_eq!(status(&gateway, &of_other).await, 503);
}

#[tokio::test]
async fn a5_an_issuer_that_calls_itself_otherwise_is_not_believed() {
    let key = SigningKey::ec("e");
    let provider = Provider::start(&[&key]).await;
    provider.call_itself("https://somebody.else");
    let gateway = Gateway::start(&(server() + &provider.table())).await;
    let token = key.sign(&provider.claims(RESOURCE));
    assert_eq!(status(&gateway, &token).await, 503);
    assert_eq!(provider.fetches(), 0, "its keys are not asked for");
    // With the address of the keys in the configuration nobody needs to be asked.
    let toml =
        format!("{}{}jwks_url = \"{}/jwks\"\n", server(), provider.table(), provider.issuer());
    let gateway = Gateway::start(&toml).await;
    ready(&gateway, &token).await;
}

#[tokio::test]
async fn a6_a_stream_ends_with_the_token_that_opened_it() {
    let key = SigningKey::ec("e");
    let provider = Provider::start(&[&key]).await;
    let toml = server() + &provider.table() + "leeway = \"0s\"\n";
    let gateway = Gateway::start(&toml).await;
    ready(&gateway, &key.sign(&provider.claims(RESOURCE))).await;
    let mut claims = provider.claims(RESOURCE);
    claims["exp"] = json!(now() + 2);
    let token = key.sign(&claims);
    let client = bearer(&gateway, &token);
    let session = client.clone().legacy("2025-06-18").await;
    let mut listen = client.listen().await;
    let get = [("Accept", "text/event-stream"), ("Mcp-Session-Id", session.session())];
    let mut legacy = client.stream("GET", &get, b"").await;
    let mut sse = client.stream_at("GET", "/sse", &[("Accept", "text/event-stream")], b"").await;
    assert!(
        listen.event().await.is_none(),
        "without a result, so that the client subscribes again"
    );
    assert!(legacy.event().await.is_none());
    while sse.event().await.is_some() {}
    eventually(async || status(&gateway, &token).await, |seen| *seen == 401).await;
}

#[tokio::test]
async fn p3_rights_that_are_taken_back_between_two_pages_count_at_once() {
    let key = SigningKey::ec("e");
    let provider = Provider::start(&[&key]).await;
    let upstream = Upstream::with_prompts(&["a", "b", "c", "d"]).await;
    let toml = server()
        + "[listing]\npage_size = 1\n"
        + &upstream.table("up")
        + &provider.table()
        + "[[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"staff\"]\nprompts = [\"b\", \"c\"]\n\
           [[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"all\"]\nprompts = [\"a\", \"d\"]\n";
    let gateway = Gateway::start(&toml).await;
    let as_member_of = |groups: &[&str]| {
        let mut claims = provider.claims(RESOURCE);
        claims["groups"] = json!(groups);
        bearer(&gateway, &key.sign(&claims))
    };
    let (before, now) = (as_member_of(&["all", "staff"]), as_member_of(&["all"]));
    ready(&gateway, &key.sign(&provider.claims(RESOURCE))).await;
    assert_eq!(before.names().await.0.len(), 4);
    let first = before.ask("prompts/list", json!({})).await;
    assert_eq!(first["prompts"][0]["name"], "up__a");
    let next = json!({"cursor": first["nextCursor"]});
    let second = now.ask("prompts/list", next.clone()).await;
    assert_eq!(second["prompts"], json!([{"name": "up__d"}]), "b and c are passed over");
    assert_eq!(second.get("nextCursor"), None);
    let error = now.ask_error("prompts/get", json!({"name": "up__b"})).await;
    assert_eq!(error["data"]["reason"], "unknown_prompt");
    // Given back, they are there behind the same cursor.
    assert_eq!(before.ask("prompts/list", next).await["prompts"][0]["name"], "up__b");
}
