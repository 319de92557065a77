//! Sign-in at an OpenID provider, from the link to the page.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{ADMIN, Browser, post, set_cookies, text};
use crate::audit::Log;
use crate::support::gateway::api_key;
use crate::support::provider::{SigningKey, now, text as base64url};
use crate::support::{Gateway, Received, Scripted, Upstream, eventually};

/// A provider at which one person signs in, with changing groups.
pub struct OpenId {
    http: Upstream,
    state: Arc<Mutex<State>>,
}

struct State {
    key: SigningKey,
    groups: Value,
    /// The parameters of the authorization request, until its code is exchanged.
    asked: Option<HashMap<String, String>>,
}

impl OpenId {
    pub async fn start() -> Self {
        let state = State { key: SigningKey::ec("k"), groups: json!([]), asked: None };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        let http = Upstream::start(move |asked| answer(&mut shared.lock().unwrap(), asked)).await;
        Self { http, state }
    }

    pub fn issuer(&self) -> String {
        format!("http://{}", self.http.addr)
    }

    /// `[admin.oidc]` with a group for each role.
    pub fn table(&self) -> String {
        format!(
            "[admin.oidc]\nissuer = \"{}\"\nclient_id = \"console\"\nviewers = [\"readers\"]\n\
             testers = [\"authors\"]\napprovers = [\"leads\"]\n",
            self.issuer()
        )
    }

    /// Signs `ada` in, who is in these groups; returns the answer at the end.
    pub(super) async fn sign_in(
        &self,
        browser: &mut Browser,
        groups: &[&str],
    ) -> crate::support::client::Reply {
        let begun = browser.get("/login/oidc?to=/prompts/up__p").await;
        assert_eq!(begun.status, 303, "{}", text(&begun));
        let location = url::Url::parse(begun.header("location").unwrap()).unwrap();
        assert_eq!(location.origin().ascii_serialization(), self.issuer());
        let asked: HashMap<_, _> = location.query_pairs().into_owned().collect();
        assert_eq!(asked["redirect_uri"], format!("{}/login/callback", browser.origin()));
        let query = super::form(&[("code", "c0de"), ("state", &asked["state"])]);
        {
            let mut state = self.state.lock().unwrap();
            (state.groups, state.asked) = (json!(groups), Some(asked));
        }
        browser.get(&format!("/login/callback?{query}")).await
    }
}

fn answer(state: &mut State, asked: &Received) -> Scripted {
    let issuer = format!("http://{}", asked.header("host").unwrap());
    let (status, document) = match asked.path.as_str() {
        "/.well-known/openid-configuration" => (
            200,
            json!({"issuer": issuer, "jwks_uri": format!("{issuer}/jwks"),
                "authorization_endpoint": format!("{issuer}/authorize"),
                "token_endpoint": format!("{issuer}/token")}),
        ),
        "/jwks" => (200, json!({"keys": [state.key.jwk]})),
        "/token" => token(state, &issuer, &asked.body),
        _ => (404, json!({})),
    };
    let headers = vec![("Content-Type", "application/json".to_owned())];
    Scripted::Http(status, headers, document.to_string().into_bytes())
}

/// A code is good once, for who has the verifier.
fn token(state: &mut State, issuer: &str, body: &[u8]) -> (u16, Value) {
    let form: HashMap<_, _> = url::form_urlencoded::parse(body).into_owned().collect();
    let asked = state.asked.take().filter(|asked| {
        let challenge = base64url(&Sha256::digest(form["code_verifier"].as_bytes()));
        challenge == asked["code_challenge"] && form["code"] == "c0de"
    });
    let Some(asked) = asked else {
        return (400, json!({"error": "invalid_grant"}));
    };
    let claims = json!({"iss": issuer, "aud": "console", "sub": "ada", "nonce": asked["nonce"],
        "iat": now(), "exp": now() + 300, "name": "Ada <script>alert(1)</script>", "groups": state.groups});
    let token = state.key.sign(&claims);
    (200, json!({"access_token": "a", "token_type": "Bearer", "id_token": token}))
}

const RULES: &str =
    "[[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"authors\"]\ncallers = [\"ci\"]\n";

#[tokio::test]
async fn people_sign_in_with_the_role_of_their_groups() {
    let (provider, log) = (OpenId::start().await, Log::new());
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = format!("{ADMIN}write = true\n{}{}", provider.table(), log.table())
        + RULES
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let page = Browser::new(&gateway.admin()).page("/login?to=/approvals").await;
    assert!(page.contains("href=\"/login/oidc?to=%2Fapprovals\""), "{page}");
    for (groups, role, tried) in [
        (&["readers"][..], "viewer", 403),
        (&["authors", "readers"], "tester", 200),
        (&["leads", "authors"], "approver", 200),
    ] {
        let mut browser = Browser::new(&gateway.admin());
        let entered = provider.sign_in(&mut browser, groups).await;
        assert_eq!(
            entered.status,
            200,
            "a page that moves on, and no redirect: {}",
            text(&entered)
        );
        assert_eq!(entered.header("refresh"), Some("0; url=/prompts/up__p"));
        let cookies: Vec<_> = set_cookies(&entered).collect();
        assert_eq!(cookies.len(), 2, "{cookies:?}");
        assert!(cookies[1].starts_with("promptgate_login=; Max-Age=0"), "{cookies:?}");
        let page = browser.page("/prompts/up__p").await;
        assert!(page.contains(role), "{role}");
        assert!(page.contains("Ada &lt;script&gt;") && !page.contains("<script>alert"));
        let csrf = browser.csrf("/access").await;
        let reply = browser.submit("/prompts/up__p/try", &[("csrf", &csrf)]).await;
        assert_eq!(reply.status, tried, "{role}: {}", text(&reply));
        let decided = browser.submit("/approvals/decide", &[("csrf", &csrf)]).await;
        let expected = if role == "approver" { 400 } else { 403 };
        assert_eq!(decided.status, expected, "{role}: {}", text(&decided));
        let is_of_role = |login: &Option<Value>| login.as_ref().is_some_and(|l| l["role"] == role);
        let login = eventually(async || log.of("admin_login").pop(), is_of_role).await.unwrap();
        assert_eq!((&login["by"], &login["via"]), (&json!("ada"), &json!("oidc")));
    }
    // Ada of that provider is nobody's caller; groups count all the same.
    let tried = log.of("received");
    assert!(tried.iter().all(|record| record["caller"] == "console/ada"), "{tried:?}");
    assert!(tried.iter().all(|record| record["tried_by"] == "ada"));
    let mut browser = Browser::new(&gateway.admin());
    let refused = provider.sign_in(&mut browser, &["guests"]).await;
    assert_eq!(refused.status, 403);
    assert!(text(&refused).contains("none of your groups") && browser.get("/").await.status == 303);
    // A sign-in ends where it began, and once.
    let mut thief = Browser::new(&gateway.admin());
    assert_eq!(thief.get("/login/callback?code=c0de&state=x").await.status, 400);
}

#[tokio::test]
async fn a_person_of_the_callers_own_issuer_tries_under_that_id() {
    let (provider, log) = (OpenId::start().await, Log::new());
    let upstream = Upstream::with_prompts(&["p"]).await;
    let jwt = format!("[auth.jwt]\nissuer = \"{}\"\naudience = [\"gateway\"]\n", provider.issuer());
    let toml = format!("{ADMIN}{}{}{jwt}", provider.table(), log.table());
    let gateway = Gateway::start(&(toml + &upstream.table("up"))).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    provider.sign_in(&mut browser, &["authors"]).await;
    let csrf = browser.csrf("/prompts/up__p/try").await;
    let page = browser.submit("/prompts/up__p/try", &[("csrf", &csrf)]).await;
    assert!(text(&page).contains("as ada") || text(&page).contains("ada"), "{}", text(&page));
    let received = log.of("received").pop().unwrap();
    assert_eq!((&received["caller"], &received["tried_by"]), (&json!("ada"), &json!("ada")));
    assert_eq!(received["groups"], json!(["authors"]));
    // A session is no token, and no credential at the endpoint of callers.
    let plain = post(&gateway.admin(), "/prompts/up__p/try", &json!({})).await;
    assert_eq!(plain.status, 401);
}

#[tokio::test]
async fn a_person_does_not_try_as_a_caller_of_the_same_name_with_another_credential() {
    let (provider, log) = (OpenId::start().await, Log::new());
    let upstream = Upstream::with_prompts(&["p"]).await;
    let jwt = format!("[auth.jwt]\nissuer = \"{}\"\naudience = [\"gateway\"]\n", provider.issuer());
    let toml =
        format!("{ADMIN}{}{}{jwt}{}", provider.table(), log.table(), api_key("ada", "pg_ada"));
    let gateway = Gateway::start(&(toml + &upstream.table("up"))).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    provider.sign_in(&mut browser, &["authors"]).await;
    let csrf = browser.csrf("/prompts/up__p/try").await;
    browser.submit("/prompts/up__p/try", &[("csrf", &csrf)]).await;
    let received = log.of("received").pop().unwrap();
    assert_eq!(received["caller"], "console/ada");
}
