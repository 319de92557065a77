//! Callers whose identity provider vouches for them at the authorization server of an upstream, by
//! identity assertions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::{
    ADMIN, Issuer, World, accounts, bearer, documented, get, json_body, named, ready, reason,
    revoke, server, subject,
};
use crate::audit::Log;
use crate::support::client::Client;
use crate::support::process::{Process, command};
use crate::support::provider::SigningKey;
use crate::support::wiki::{ran, text};
use crate::support::{Gateway, OpenStream, Received, Scripted, Upstream, eventually};

const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";

/// What the two servers do.
#[derive(Default)]
struct Script {
    /// The type and the audience of assertions, unless they are right.
    typ: Option<&'static str>,
    audience: Option<&'static str>,
    /// Answers instead of an assertion, and instead of a token.
    provider_refusal: Option<(u16, Value)>,
    server_refusal: Option<(u16, Value)>,
    /// Whether the metadata of the server names no profiles of grants.
    lacks_profile: bool,
    /// Forms of the token requests at the server.
    grants: Vec<HashMap<String, String>>,
}

/// An identity provider, an upstream, and the authorization server of the upstream.
pub struct Parties {
    world: World,
    issuer: Issuer,
    script: Arc<Mutex<Script>>,
    provider: Upstream,
    server: Upstream,
    upstream: Upstream,
}

fn form(asked: &Received) -> HashMap<String, String> {
    url::form_urlencoded::parse(asked.body_text().as_bytes()).into_owned().collect()
}

fn origin(asked: &Received) -> String {
    format!("http://{}", asked.header("host").unwrap_or_default())
}

/// The token endpoint of the provider.
fn assertion(world: &World, script: &Script, key: &SigningKey, asked: &Received) -> Scripted {
    let form = form(asked);
    let mut state = world.state();
    state.exchanges.push(form.clone());
    if let Some(held) = state.held.take() {
        return held;
    }
    if let Some((status, body)) = &script.provider_refusal {
        return json_body(*status, body);
    }
    let audience = script.audience.unwrap_or(&form["audience"]);
    let claims = json!({"sub": subject(&form["subject_token"]), "aud": audience,
        "client_id": "gate-at-wiki", "jti": "canary-jti-of-an-assertion"});
    let typ = script.typ.unwrap_or("oauth-id-jag+jwt");
    let assertion = key.sign_with(&claims, |header| header.typ = Some(typ.to_owned()));
    json_body(
        200,
        &json!({"access_token": assertion, "issued_token_type": ID_JAG, "token_type": "N_A",
            "expires_in": 60}),
    )
}

/// The authorization server of the upstream.
fn grant(world: &World, script: &mut Script, asked: &Received) -> Scripted {
    match asked.path.as_str() {
        "/.well-known/oauth-authorization-server" => {
            let origin = origin(asked);
            let mut metadata = json!({"issuer": origin, "token_endpoint": format!("{origin}/token"),
                "revocation_endpoint": format!("{origin}/revoke")});
            if !script.lacks_profile {
                metadata["authorization_grant_profiles_supported"] =
                    json!(["urn:ietf:params:oauth:grant-profile:id-jag"]);
            }
            json_body(200, &metadata)
        }
        "/token" => {
            let form = form(asked);
            script.grants.push(form.clone());
            if let Some((status, body)) = &script.server_refusal {
                return json_body(*status, body);
            }
            let mut state = world.state();
            let token = state.issue(&subject(&form["assertion"]), "wiki");
            let lifetime = state.lifetime;
            json_body(
                200,
                &json!({"access_token": token, "token_type": "Bearer", "expires_in": lifetime}),
            )
        }
        "/revoke" => world.state().take_back(asked),
        _ => Scripted::Http(404, vec![], vec![]),
    }
}

impl Parties {
    /// With access tokens that last so many seconds.
    pub async fn lasting(lifetime: u64) -> Self {
        let (world, issuer) = (World::lasting(lifetime), Issuer::start().await);
        let script = Arc::<Mutex<Script>>::default();
        let (own, known, key) = (world.clone(), script.clone(), issuer.key.clone());
        let answer = move |asked: &Received| assertion(&own, &known.lock().unwrap(), &key, asked);
        let provider = Upstream::start(answer).await;
        let (own, known) = (world.clone(), script.clone());
        let answer = move |asked: &Received| grant(&own, &mut known.lock().unwrap(), asked);
        let server = Upstream::start(answer).await;
        let (own, named) = (world.clone(), format!("http://{}", server.addr));
        let upstream = Upstream::start(move |asked| match asked.path.as_str() {
            "/.well-known/oauth-protected-resource/mcp" => {
                let resource = format!("{}/mcp", origin(asked));
                json_body(200, &json!({"resource": resource, "authorization_servers": [named]}))
            }
            _ => own.state().serve("wiki", false, asked),
        });
        Self { world, issuer, script, provider, server, upstream: upstream.await }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    fn issuer_of_server(&self) -> String {
        format!("http://{}", self.server.addr)
    }

    /// The table of the upstream, with more keys of the two clients.
    fn table(&self, provider: &str, server: &str) -> String {
        self.upstream.patient_table("wiki")
            + &format!(
                "act_as = \"caller\"\ncredential = {{ bearer = {{ value = \"operator\" }}, id_jag = {{ \
                 provider = {{ token_url = \"http://{}/token\", client_id = \"gate\", client_secret = {{ value = \"canary-of-the-client\" }}{provider} }}, \
                 server = {{ client_id = \"gate-at-wiki\", client_secret = {{ value = \"canary-at-the-server\" }}{server} }} }} }}\n",
                self.provider.addr
            )
    }

    /// A gateway that has the list of the upstream.
    async fn gateway(&self, toml: &str) -> Gateway {
        let gateway = Gateway::start(&(toml.to_owned() + &self.issuer.provider.table())).await;
        ready(&self.client(&gateway, "ready"), 1).await;
        gateway
    }

    fn client(&self, gateway: &Gateway, caller: &str) -> Client {
        self.issuer.client(gateway, caller)
    }

    /// The tables of a gateway, without the one of its cluster.
    pub fn tables(&self) -> String {
        self.table("", "") + &self.issuer.provider.table()
    }

    /// A token of the caller, as it brings it to the gateway.
    pub fn brought(&self, caller: &str) -> String {
        self.issuer.token(caller, |_| {})
    }

    /// The access tokens that were issued, in order.
    pub fn issued(&self) -> Vec<String> {
        self.world.state().issued.clone()
    }

    /// The access tokens that were revoked, in order.
    pub fn revoked(&self) -> Vec<String> {
        self.world.state().revoked.clone()
    }

    /// The upstream refuses all tokens that were issued so far.
    pub fn refuse_tokens(&self) {
        self.world.state().valid.clear();
    }

    /// Requests of one caller with the token of another, and other faults.
    pub fn violations(&self) -> Vec<String> {
        self.world.state().violations.clone()
    }

    /// How often the token endpoint of each of the two servers was asked.
    pub fn asked(&self) -> [usize; 2] {
        let exchanges = self.world.state().exchanges.len();
        [exchanges, self.script().grants.len()]
    }
}

#[tokio::test]
async fn each_caller_has_a_token_for_its_assertion_and_the_provider_alone_sees_what_it_brought() {
    let (parties, log) = (Parties::lasting(3600).await, Log::new());
    let toml = server() + &parties.table(", scope = \"read\"", "") + &log.table();
    let gateway = parties.gateway(&toml).await;
    let callers = ["ada", "bob"].map(|who| (who, parties.issuer.token(who, |_| {})));
    let calls = (0..40).map(|n| {
        let (who, client) = (callers[n % 2].0, bearer(&gateway, &callers[n % 2].1));
        tokio::spawn(async move { get(&client, who).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    // One assertion and one token each, however many calls wait.
    assert_eq!(parties.asked(), [2, 2]);
    {
        let grant = parties.script().grants[0].clone();
        assert_eq!(grant["grant_type"], "urn:ietf:params:oauth:grant-type:jwt-bearer");
        assert_eq!(grant.len(), 2, "{grant:?}");
        let state = parties.world.state();
        assert_eq!((state.seen.len(), &state.violations), (40, &Vec::new()));
        let form = &state.exchanges[0];
        for (name, value) in [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("subject_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("requested_token_type", ID_JAG),
            ("audience", &parties.issuer_of_server()),
            ("resource", &format!("http://{}/mcp", parties.upstream.addr)),
            ("scope", "read"),
        ] {
            assert_eq!(form.get(name).map(String::as_str), Some(value), "{form:?}");
        }
    }
    // Each of the two clients authenticates at its server.
    let proof = |server: &Upstream| {
        let received = server.received();
        let asked = received.iter().find(|asked| asked.path == "/token").unwrap();
        asked.header("authorization").unwrap().to_owned()
    };
    assert_ne!(proof(&parties.provider), proof(&parties.server));
    // Neither the upstream nor its authorization server has seen a part of what callers brought.
    let [sent, seen @ ..] = [&parties.provider, &parties.server, &parties.upstream].map(|server| {
        let received = server.received();
        let text = |asked: &Received| format!("{asked:?} {}", asked.body_text());
        received.iter().map(text).collect::<String>()
    });
    for part in callers.iter().flat_map(|(_, token)| token.split('.')) {
        assert!(sent.contains(part), "the search finds what is there");
        assert!(seen.iter().all(|seen| !seen.contains(part)), "{part}");
        assert!(!log.text().contains(part));
    }
    assert!(seen.iter().all(|seen| !seen.contains("canary-of-the-client")));
    assert!(!seen[1].contains("canary-at-the-server") && !log.text().contains("canary"));
    let issued = log.of("token_issued");
    assert_eq!(issued.len(), 2, "{issued:?}");
    gateway.drain().await;
}

#[tokio::test]
async fn the_documented_configuration_lets_a_caller_in_by_an_assertion() {
    let parties = Parties::lasting(3600).await;
    let token_url = format!("http://{}/token", parties.provider.addr);
    let provider = ("https://id.example.com/token", token_url.as_str());
    let hosts = [
        provider,
        ("https://id.example.com", &parties.issuer.provider.issuer()),
        ("https://code.example.com/mcp", &format!("http://{}/mcp", parties.upstream.addr)),
    ];
    // The section has only the keys that differ from those of token exchange.
    let exchange = documented("Token exchange", &hosts);
    let (upstream, _) = exchange.split_once("act_as").unwrap();
    let toml = server() + upstream + &documented("Identity assertions", &[provider]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let secrets = [
        ("WIKI_LIST_TOKEN", "operator"),
        ("GATEWAY_SECRET", "at-the-provider"),
        ("WIKI_SECRET", "at-the-server"),
    ];
    let mut check = command(folder.path(), &["check", "--dial"]);
    check.envs(secrets);
    let checked = tokio::process::Command::from(check).output().await.unwrap();
    assert!(checked.status.success(), "{}", text(&checked));
    let process = Process::serve_env(folder.path(), &secrets).await;
    let token = parties.issuer.token("ada", |_| {});
    let ada = process.client().with("Authorization", &format!("Bearer {token}"));
    ready(&ada, 1).await;
    ada.ask("prompts/get", named("code__p", "ada")).await;
    assert_eq!((parties.asked(), parties.world.state().seen.len()), ([1, 1], 1));
    for (server, client) in
        [(&parties.provider, "gateway:at-the-provider"), (&parties.server, "at-wiki:at-the-server")]
    {
        let received = server.received();
        let asked = received.iter().find(|asked| asked.path == "/token").unwrap();
        let expected = format!("Basic {}", BASE64_STANDARD.encode(client));
        assert_eq!(asked.header("authorization"), Some(&*expected));
    }
}

#[tokio::test]
async fn what_either_server_refuses_is_refused_to_the_caller_alone() {
    let parties = Parties::lasting(3600).await;
    let gateway = parties.gateway(&(server() + &parties.table("", ""))).await;
    let refusals = [
        (400, json!({"error": "invalid_grant"}), "exchange_refused"),
        (400, json!({"error": "insufficient_user_authentication"}), "exchange_refused"),
        (400, json!({"error": "invalid_scope"}), "scope_refused"),
        (401, json!({"error": "invalid_client"}), "upstream_auth_failed"),
        (503, json!({}), "provider_unavailable"),
    ];
    for (n, (status, body, expected)) in refusals.into_iter().enumerate() {
        let before = parties.asked();
        parties.script().provider_refusal = Some((status, body.clone()));
        let client = parties.client(&gateway, &format!("one-{n}"));
        assert_eq!(reason(&client).await, expected, "{status} {body}");
        parties.script().provider_refusal = None;
        assert_eq!(parties.asked(), [before[0] + 1, before[1]]);
        parties.script().server_refusal = Some((status, body.clone()));
        let client = parties.client(&gateway, &format!("other-{n}"));
        assert_eq!(reason(&client).await, expected, "{status} {body}");
        parties.script().server_refusal = None;
        assert_eq!(parties.asked(), [before[0] + 2, before[1] + 1]);
    }
    assert_eq!(parties.world.state().seen, []);
    // A failure of one caller is none of another.
    get(&parties.client(&gateway, "ada"), "ada").await;
}

#[tokio::test]
async fn an_assertion_of_another_type_or_for_another_server_is_not_sent_on() {
    let parties = Parties::lasting(3600).await;
    let gateway = parties.gateway(&(server() + &parties.table("", ""))).await;
    for (who, typ, audience) in [
        ("one", Some("at+jwt"), None),
        ("two", None, Some("https://other.example")),
        ("three", None, Some("http://127.0.0.1")),
    ] {
        parties.script().typ = typ;
        parties.script().audience = audience;
        let client = parties.client(&gateway, who);
        assert_eq!(reason(&client).await, "upstream_auth_failed", "{typ:?} {audience:?}");
    }
    // An access token in the place of an assertion.
    parties.script().provider_refusal = Some((
        200,
        json!({"access_token": "t", "token_type": "Bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}),
    ));
    assert_eq!(reason(&parties.client(&gateway, "four")).await, "upstream_auth_failed");
    assert_eq!(parties.asked(), [4, 0]);
}

#[tokio::test]
async fn without_the_profile_in_the_metadata_of_the_server_nothing_is_exchanged() {
    let parties = Parties::lasting(3600).await;
    parties.script().lacks_profile = true;
    let toml = server() + &parties.table("", "");
    let gateway = parties.gateway(&toml).await;
    assert_eq!(reason(&parties.client(&gateway, "ada")).await, "upstream_auth_failed");
    assert_eq!(parties.asked(), [0, 0]);
    let folder = tempfile::tempdir().unwrap();
    let toml = toml + &parties.issuer.provider.table();
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let dialed = ran(folder.path(), &["check", "--dial"]).await;
    let said = format!("{} takes no identity assertions", parties.issuer_of_server());
    assert!(!dialed.status.success() && text(&dialed).contains(&said), "{}", text(&dialed));
    // Once it takes them, the next call has a token.
    parties.script().lacks_profile = false;
    let dialed = ran(folder.path(), &["check", "--dial"]).await;
    assert!(dialed.status.success(), "{}", text(&dialed));
    get(&parties.client(&gateway, "bob"), "bob").await;
}

#[tokio::test]
async fn a_token_is_renewed_by_a_new_assertion_and_revoked_with_the_account() {
    let parties = Parties::lasting(2).await;
    let gateway = parties.gateway(&(server() + ADMIN + &parties.table("", ""))).await;
    let ada = parties.client(&gateway, "ada");
    let renewed = async || {
        get(&ada, "ada").await;
        parties.asked()
    };
    let asked = eventually(renewed, |asked| asked[1] >= 2).await;
    assert_eq!(asked[0], asked[1]);
    let rows = accounts(&gateway).await;
    assert_eq!((&rows[0]["caller"], &rows[0]["way"]), (&json!("ada"), &json!("id_jag")));
    parties.world.state().lifetime = 3600;
    eventually(renewed, |now| now[1] > asked[1]).await;
    let token = parties.world.state().issued.last().unwrap().clone();
    let (_, revoked) = revoke(&gateway, json!({"caller": "ada"})).await;
    assert_eq!(revoked["revoked"][0]["revokedAtProvider"], true, "{revoked}");
    assert_eq!(parties.world.state().revoked, [token]);
    get(&ada, "ada").await;
}

#[tokio::test]
async fn one_request_fails_for_all_calls_that_wait_for_it() {
    let parties = Parties::lasting(3600).await;
    let gateway = parties.gateway(&(server() + &parties.table("", ""))).await;
    let (held, scripted) = OpenStream::new();
    parties.world.state().held = Some(scripted);
    let calls = (0..30).map(|_| {
        let client = parties.client(&gateway, "ada");
        tokio::spawn(async move { reason(&client).await })
    });
    let calls: Vec<_> = calls.collect();
    parties.provider.until(|received| !received.is_empty()).await;
    drop(held);
    for call in calls {
        assert_eq!(call.await.unwrap(), "provider_unavailable");
    }
    assert_eq!(parties.asked(), [1, 0]);
}

#[tokio::test]
async fn a_server_that_is_named_is_not_looked_up_at_the_upstream() {
    let parties = Parties::lasting(3600).await;
    let named = format!(", issuer = \"{}\"", parties.issuer_of_server());
    let brings = ", subject_token_type = \"id_token\", resource = \"\"";
    let gateway = parties.gateway(&(server() + &parties.table(brings, &named))).await;
    get(&parties.client(&gateway, "ada"), "ada").await;
    let received = parties.upstream.received();
    assert!(received.iter().all(|asked| !asked.path.contains("well-known")), "{received:?}");
    let form = parties.world.state().exchanges[0].clone();
    assert_eq!(form["subject_token_type"], "urn:ietf:params:oauth:token-type:id_token");
    assert_eq!(form.get("resource"), None);
}
