//! Upstreams that are called as the caller: exchanged tokens, secrets from a vault, child processes
//! of each caller, and that none of it ever serves another caller.

pub mod id_jag;
mod private_lists;
mod private_skills;
mod sign_in;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::audit::Log;
use crate::documents::toml_blocks;
use crate::skills::{file, skill};
use crate::support::client::Client;
use crate::support::gateway::api_key;
use crate::support::provider::{Provider, SigningKey};
use crate::support::upstream::{good_legacy, good_modern};
use crate::support::{Gateway, OpenStream, Received, Scripted, Upstream, eventually};

/// The resource of the gateway, for which callers have tokens.
pub const RESOURCE: &str = "https://gate.example.com";

fn server() -> String {
    format!("[server]\npublic_url = \"{RESOURCE}\"\n")
}

/// An admin API that may end what callers have.
const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\nwrite = true\ntry_as = true\ntoken = { value = \"an-admin-token\" }\n";

fn admin(gateway: &Gateway) -> Client {
    gateway
        .admin()
        .with("Authorization", "Bearer an-admin-token")
        .with("Content-Type", "application/json")
}

/// The rows of what callers have, the most recently used first.
async fn accounts(gateway: &Gateway) -> Vec<Value> {
    let listed = admin(gateway).send("GET", "/api/v1/accounts", &[], b"").await.json();
    listed["accounts"].as_array().unwrap().clone()
}

/// Whose they are, and at which upstream.
async fn holders(gateway: &Gateway) -> Vec<String> {
    let rows = accounts(gateway).await;
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    rows.iter().map(|row| format!("{} at {}", text(row, "caller"), text(row, "upstream"))).collect()
}

async fn revoke(gateway: &Gateway, body: Value) -> (u16, Value) {
    let body = body.to_string();
    let reply = admin(gateway).send("POST", "/api/v1/accounts/revoke", &[], body.as_bytes()).await;
    (reply.status, reply.json())
}

/// An authorization server that exchanges tokens, a vault, and upstreams that let in whom these
/// have let in.
#[derive(Clone, Default)]
struct World(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Access tokens that upstreams take: whose they are, and for which upstream.
    valid: HashMap<String, (String, String)>,
    issued: Vec<String>,
    /// Seconds of an access token; 0 for none said.
    lifetime: u64,
    /// Forms of the token requests.
    exchanges: Vec<HashMap<String, String>>,
    /// Paths of the lookups.
    lookups: Vec<String>,
    /// Whether tokens can be revoked, and those that were.
    revokes: bool,
    revoked: Vec<String>,
    /// The answer of the token endpoint instead of a token.
    refusal: Option<(u16, Value)>,
    /// Token requests that are answered once the test says so.
    held: Option<Scripted>,
    /// Subjects whom the authorization server or the vault knows no more.
    unknown: HashSet<String>,
    /// Scope without which gets are refused.
    needed: Option<&'static str>,
    /// Calls that upstreams received: (upstream, owner of the token, caller that the arguments
    /// name).
    seen: Vec<(String, String, String)>,
    /// Owners of the sessions of legacy upstreams.
    sessions: HashMap<String, String>,
    violations: Vec<String>,
    /// The prompts that each owner of a token is offered; where this is empty, all are offered the
    /// same.
    offers: HashMap<String, Vec<String>>,
    /// The skills that each owner of a token is offered, by name, with the texts of their one file;
    /// without any, the upstream does not have the extension.
    skills: HashMap<String, BTreeMap<String, String>>,
    /// Whose files were read.
    reads: Vec<(String, String)>,
    /// The answer to `prompts/list` instead of a list.
    list_failure: Option<Scripted>,
    /// Whose lists were read, of which upstream.
    walks: Vec<(String, String)>,
    /// The notification streams of the owners.
    streams: HashMap<String, OpenStream>,
}

fn json_body(status: u16, value: &Value) -> Scripted {
    let headers = vec![("Content-Type", "application/json".to_owned())];
    Scripted::Http(status, headers, value.to_string().into_bytes())
}

/// A scope that the authorization server refuses.
const UNGRANTED: &str = "ungranted";

/// A scope that is granted and never suffices.
const NEVER: &str = "never";

/// The claim `sub` of a JSON Web Token, as a provider that has checked it reads it.
fn subject(token: &str) -> String {
    use base64::Engine;
    let claims = token.split('.').nth(1).unwrap_or_default();
    let claims = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    claims["sub"].as_str().unwrap().to_owned()
}

impl World {
    fn lasting(lifetime: u64) -> Self {
        let world = Self::default();
        world.state().lifetime = lifetime;
        world
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A server with the token endpoint at `/token` and the vault below `/v1/`.
    async fn provider(&self) -> Upstream {
        let own = self.clone();
        Upstream::start(move |asked| match asked.path.as_str() {
            "/token" => own.state().exchange(asked),
            "/.well-known/oauth-authorization-server" if own.state().revokes => {
                let origin = format!("http://{}", asked.header("host").unwrap_or_default());
                json_body(
                    200,
                    &json!({"issuer": origin, "token_endpoint": format!("{origin}/token"),
                        "revocation_endpoint": format!("{origin}/revoke")}),
                )
            }
            "/revoke" => own.state().take_back(asked),
            path => own.state().lookup(path, asked),
        })
        .await
    }

    /// An upstream: modern, or legacy with a session for each `initialize`.
    async fn upstream(&self, name: &'static str, is_legacy: bool) -> Upstream {
        let own = self.clone();
        Upstream::start(move |asked| own.state().serve(name, is_legacy, asked)).await
    }
}

impl State {
    fn issue(&mut self, owner: &str, upstream: &str) -> String {
        let token = format!("canary-token-{}", self.issued.len());
        self.issued.push(token.clone());
        self.valid.insert(token.clone(), (owner.to_owned(), upstream.to_owned()));
        token
    }

    fn exchange(&mut self, asked: &Received) -> Scripted {
        let form: HashMap<String, String> =
            url::form_urlencoded::parse(asked.body_text().as_bytes()).into_owned().collect();
        let owner = form.get("subject_token").or(form.get("assertion")).map(|t| subject(t));
        self.exchanges.push(form.clone());
        if let Some(held) = self.held.take() {
            return held;
        }
        if let Some((status, body)) = &self.refusal {
            return json_body(*status, body);
        }
        let owner = owner.unwrap_or_else(|| "gate".to_owned());
        if form.get("scope").is_some_and(|scope| scope.contains(UNGRANTED)) {
            return json_body(400, &json!({"error": "invalid_scope"}));
        }
        if self.unknown.contains(&owner) {
            return json_body(400, &json!({"error": "invalid_grant"}));
        }
        let for_whom = form.get("audience").or(form.get("resource")).unwrap();
        let token = self.issue(&owner, for_whom);
        let mut answer = json!({"access_token": token, "token_type": "Bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"});
        if self.lifetime > 0 {
            answer["expires_in"] = json!(self.lifetime);
        }
        json_body(200, &answer)
    }

    /// The revocation endpoint (RFC 7009).
    fn take_back(&mut self, asked: &Received) -> Scripted {
        let form: HashMap<String, String> =
            url::form_urlencoded::parse(asked.body_text().as_bytes()).into_owned().collect();
        if asked.header("authorization").is_none() {
            return json_body(401, &json!({"error": "invalid_client"}));
        }
        self.valid.remove(&form["token"]);
        self.revoked.push(form["token"].clone());
        Scripted::Http(200, vec![], vec![])
    }

    fn lookup(&mut self, path: &str, asked: &Received) -> Scripted {
        self.lookups.push(path.to_owned());
        if asked.header("x-vault-token") != Some("canary-of-the-vault") {
            return json_body(403, &json!({"errors": ["permission denied"]}));
        }
        let mut segments = path.trim_start_matches("/v1/").split('/');
        let (upstream, caller) = (segments.next().unwrap(), segments.next().unwrap());
        if self.unknown.contains(caller) {
            return json_body(404, &json!({"errors": []}));
        }
        let token = self.issue(caller, upstream);
        json_body(
            200,
            &json!({"lease_duration": self.lifetime, "data": {"data": {"token": token}}}),
        )
    }

    fn serve(&mut self, name: &str, is_legacy: bool, asked: &Received) -> Scripted {
        let token = asked.header("authorization").unwrap_or_default();
        let token = token.strip_prefix("Bearer ").unwrap_or_default();
        let owner = match (token, self.valid.get(token)) {
            // The list is walked by the gateway itself.
            ("operator", _) => "operator".to_owned(),
            (_, Some((owner, upstream))) => {
                if upstream != name {
                    self.violations.push(format!("{name} got a token for {upstream}"));
                }
                owner.clone()
            }
            (_, None) => return Scripted::Http(401, vec![], vec![]),
        };
        if let Some(session) = asked.header("mcp-session-id")
            && self.sessions.get(session) != Some(&owner)
        {
            self.violations.push(format!("{owner} used the session {session}"));
        }
        if asked.method() == "prompts/get" {
            if let Some(scope) = self.needed {
                let last = self.exchanges.last().and_then(|form| form.get("scope"));
                let has_it = last.is_some_and(|given| given.split(' ').any(|one| one == scope));
                if scope == NEVER || !has_it {
                    let challenge =
                        format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
                    return Scripted::Http(403, vec![("WWW-Authenticate", challenge)], vec![]);
                }
            }
            let named = asked.message["params"]["arguments"]["who"].as_str().unwrap_or_default();
            if named != owner && !named.is_empty() {
                self.violations.push(format!("a request of {named} had a token of {owner}"));
            }
            self.seen.push((name.to_owned(), owner.clone(), named.to_owned()));
        }
        if !is_legacy
            && !self.offers.is_empty()
            && let Some(answer) = self.list_for(name, &owner, asked)
        {
            return answer;
        }
        if !is_legacy {
            return good_modern(asked);
        }
        match good_legacy(asked, "2025-11-25") {
            Scripted::Http(200, mut headers, body) if asked.method() == "initialize" => {
                let session = format!("session-{}", self.sessions.len());
                self.sessions.insert(session.clone(), owner);
                headers.retain(|(name, _)| *name != "Mcp-Session-Id");
                headers.push(("Mcp-Session-Id", session));
                Scripted::Http(200, headers, body)
            }
            answer => answer,
        }
    }
}

impl State {
    /// The answer of an upstream that lists for each caller; `None` to requests that do not depend
    /// on the caller.
    fn list_for(&mut self, name: &str, owner: &str, asked: &Received) -> Option<Scripted> {
        match (asked.http_method.as_str(), asked.method()) {
            (_, "server/discover") => {
                let mut capabilities = json!({"prompts": {"listChanged": true}, "completions": {}});
                if !self.skills.is_empty() {
                    capabilities["resources"] = json!({});
                    capabilities["extensions"] = json!({"io.modelcontextprotocol/skills": {}});
                }
                Some(asked.result(json!({"resultType": "complete", "ttlMs": 0,
                    "cacheScope": "public", "supportedVersions": ["2026-07-28"],
                    "capabilities": capabilities})))
            }
            (_, "skills/list") => {
                let offered = self.skills.get(owner).into_iter().flatten();
                let skills = offered
                    .map(|(name, text)| skill(&format!("skill://{name}"), &[("SKILL.md", text)]));
                Some(asked.result(json!({"resultType": "complete", "ttlMs": 3_600_000,
                    "cacheScope": "public", "skills": skills.collect::<Vec<_>>()})))
            }
            (_, "resources/read") => {
                let uri = asked.message["params"]["uri"].as_str().unwrap();
                self.reads.push((owner.to_owned(), uri.to_owned()));
                let name = uri.strip_prefix("skill://").and_then(|uri| uri.split('/').next());
                let text = name.and_then(|name| self.skills.get(owner)?.get(name));
                Some(text.map_or_else(|| asked.error(-32602, "unknown"), |text| file(asked, text)))
            }
            (_, "prompts/list") => {
                self.walks.push((name.to_owned(), owner.to_owned()));
                if let Some(failure) = &self.list_failure {
                    return Some(failure.clone());
                }
                let offered = self.offers.get(owner).into_iter().flatten();
                let prompts: Vec<_> = offered.map(|name| json!({"name": name})).collect();
                Some(asked.list(&json!(prompts)))
            }
            (_, "subscriptions/listen") => {
                let (stream, scripted) = OpenStream::new();
                self.streams.insert(owner.to_owned(), stream);
                Some(scripted)
            }
            _ => None,
        }
    }
}

/// A table of an upstream whose callers exchange their tokens; the list is walked by the
/// operator's.
fn exchanging(upstream: &Upstream, id: &str, provider: &Upstream, more: &str) -> String {
    upstream.patient_table(id)
        + &format!(
            "act_as = \"caller\"\ncredential = {{ bearer = {{ value = \"operator\" }}, exchange = {{ \
             token_url = \"http://{}/token\", client_id = \"gate\", client_secret = {{ value = \"canary-of-the-client\" }}, \
             audience = \"{id}\"{more} }} }}\n",
            provider.addr
        )
}

fn vaulting(upstream: &Upstream, id: &str, provider: &Upstream) -> String {
    upstream.patient_table(id)
        + &format!(
            "act_as = \"caller\"\ncredential = {{ bearer = {{ value = \"operator\" }}, vault = {{ \
             url = \"http://{}/v1/{id}/{{caller}}\", headers = {{ X-Vault-Token = {{ value = \"canary-of-the-vault\" }} }} }} }}\n",
            provider.addr
        )
}

/// The tokens that callers bring.
struct Issuer {
    provider: Provider,
    key: SigningKey,
}

impl Issuer {
    async fn start() -> Self {
        let key = SigningKey::ec("e");
        Self { provider: Provider::start(&[&key]).await, key }
    }

    fn token(&self, subject: &str, change: impl FnOnce(&mut Value)) -> String {
        let mut claims = self.provider.claims(RESOURCE);
        claims["sub"] = json!(subject);
        claims["jti"] = json!(format!("canary-jti-{subject}"));
        change(&mut claims);
        self.key.sign(&claims)
    }

    fn client(&self, gateway: &Gateway, subject: &str) -> Client {
        bearer(gateway, &self.token(subject, |_| {}))
    }
}

/// The TOML of a section of docs/credentials.md, with other hosts in the place of its own.
fn documented(section: &str, hosts: &[(&str, &str)]) -> String {
    let page = include_str!("../../docs/credentials.md");
    let mut sections = page.split("\n### ").filter_map(|text| text.split_once('\n'));
    let (_, text) = sections.find(|(heading, _)| *heading == section).expect(section);
    let toml = toml_blocks(text).remove(0);
    hosts.iter().fold(toml, |toml, (documented, real)| {
        assert!(toml.contains(documented), "{documented} is not in {toml}");
        toml.replace(documented, real)
    })
}

fn bearer(gateway: &Gateway, token: &str) -> Client {
    gateway.client().with("Authorization", &format!("Bearer {token}"))
}

/// Once the gateway knows the issuer's keys and the upstream's list.
async fn ready(client: &Client, prompts: usize) {
    eventually(
        async || match client.try_modern("prompts/list", json!({})).await {
            Some(reply) if reply.status == 200 => {
                reply.json()["result"]["prompts"].as_array().map_or(0, Vec::len)
            }
            _ => 0,
        },
        |count| *count == prompts,
    )
    .await;
}

fn named(prompt: &str, who: &str) -> Value {
    json!({"name": prompt, "arguments": {"who": who}})
}

async fn get(client: &Client, who: &str) -> Value {
    client.ask("prompts/get", named("wiki__p", who)).await
}

async fn reason(client: &Client) -> Value {
    client.ask_error("prompts/get", json!({"name": "wiki__p"})).await["data"]["reason"].clone()
}

#[tokio::test]
async fn the_token_of_each_caller_is_exchanged_once_and_goes_nowhere_else() {
    let (world, issuer, log) = (World::lasting(3600), Issuer::start().await, Log::new());
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
    let toml = server()
        + &exchanging(&upstream, "wiki", &provider, ", scope = \"read\"")
        + &issuer.provider.table()
        + &log.table();
    let gateway = Gateway::start(&toml).await;
    let (ada, bob) = (issuer.client(&gateway, "ada"), issuer.client(&gateway, "bob"));
    ready(&ada, 1).await;
    let calls = (0..40).map(|n| {
        let (client, who) = if n % 2 == 0 { (ada.clone(), "ada") } else { (bob.clone(), "bob") };
        tokio::spawn(async move { get(&client, who).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    {
        let state = world.state();
        assert_eq!(state.violations, Vec::<String>::new());
        assert_eq!(state.seen.len(), 40);
        // One exchange each, however many calls wait.
        assert_eq!(state.exchanges.len(), 2);
        let form = &state.exchanges[0];
        for (name, value) in [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("subject_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("audience", "wiki"),
            ("scope", "read"),
        ] {
            assert_eq!(form.get(name).map(String::as_str), Some(value), "{form:?}");
        }
        assert_eq!(form.get("resource"), None, "the audience says what the token is for");
    }
    let asked = provider.received();
    assert!(asked[0].header("authorization").unwrap().starts_with("Basic "));
    // The tokens of callers have reached the token endpoint alone.
    let brought = issuer.token("ada", |_| {});
    let start = brought.split('.').next().unwrap();
    let saw = format!("{:?}", upstream.received());
    assert!(!saw.contains(start) && !saw.contains("canary-of-the-client"), "{saw}");
    let said = log.text();
    assert!(!said.contains("canary") && !said.contains(start), "{said}");
    let issued = log.of("token_issued");
    let callers: HashSet<_> =
        issued.iter().map(|event| event["caller"].as_str().unwrap()).collect();
    assert_eq!((issued.len(), callers), (2, HashSet::from(["ada", "bob"])));
    gateway.drain().await;
}

#[tokio::test]
async fn callers_without_a_token_get_a_reason_and_no_shared_credential() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
    let toml = server()
        + ADMIN
        + &exchanging(&upstream, "wiki", &provider, "")
        + &api_key("ci", "key-of-ci")
        + &issuer.provider.table();
    let gateway = Gateway::start(&toml).await;
    let ci = bearer(&gateway, "key-of-ci");
    ready(&ci, 1).await;
    assert_eq!(reason(&ci).await, "no_subject_token");
    // A person who tries a prompt with the rights of a caller has none of what is the caller's.
    get(&issuer.client(&gateway, "ada"), "ada").await;
    let body = json!({"as": "ci"}).to_string();
    let tried =
        admin(&gateway).send("POST", "/api/v1/prompts/wiki__p/try", &[], body.as_bytes()).await;
    assert!(tried.json().to_string().contains("no_subject_token"), "{}", tried.json());
    assert_eq!(world.state().seen.len(), 1);
}

#[tokio::test]
async fn what_an_exchange_fails_with_is_told_apart() {
    let (world, issuer, log) = (World::lasting(3600), Issuer::start().await, Log::new());
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
    let toml = server()
        + &exchanging(&upstream, "wiki", &provider, "")
        + &issuer.provider.table()
        + &log.table();
    let gateway = Gateway::start(&toml).await;
    ready(&issuer.client(&gateway, "ready"), 1).await;
    let refusals = [
        (400, json!({"error": "invalid_grant"}), "exchange_refused"),
        (400, json!({"error": "invalid_target"}), "exchange_refused"),
        (400, json!({"error": "invalid_scope"}), "scope_refused"),
        (401, json!({"error": "invalid_client"}), "upstream_auth_failed"),
        (503, json!({}), "provider_unavailable"),
        (
            200,
            json!({"access_token": "t", "token_type": "Bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:refresh_token"}),
            "upstream_auth_failed",
        ),
        (
            200,
            json!({"access_token": "t", "token_type": "N_A",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}),
            "upstream_auth_failed",
        ),
        (200, json!({"access_token": "t", "token_type": "Bearer"}), "upstream_auth_failed"),
    ];
    for (n, (status, body, expected)) in refusals.into_iter().enumerate() {
        world.state().refusal = Some((status, body.clone()));
        // Each caller of its own: a failure is repeated for a second.
        let client = issuer.client(&gateway, &format!("caller-{n}"));
        assert_eq!(reason(&client).await, expected, "{status} {body}");
    }
    let refused = log.of("token_refused");
    assert_eq!(refused[0]["reason"], "exchange_refused");
    assert_eq!(
        (&refused[0]["caller"], &refused[0]["upstream"]),
        (&json!("caller-0"), &json!("wiki"))
    );
    // A failure of one caller is none of another, and the upstream itself works.
    world.state().refusal = None;
    get(&issuer.client(&gateway, "ada"), "ada").await;
}

#[tokio::test]
async fn one_exchange_fails_for_all_calls_that_wait_for_it() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
    let toml = server() + &exchanging(&upstream, "wiki", &provider, "") + &issuer.provider.table();
    let gateway = Gateway::start(&toml).await;
    let ada = issuer.client(&gateway, "ada");
    ready(&ada, 1).await;
    let (held, scripted) = OpenStream::new();
    {
        let mut state = world.state();
        state.held = Some(scripted);
        state.refusal = Some((400, json!({"error": "invalid_grant"})));
    }
    let calls = (0..30).map(|_| {
        let client = ada.clone();
        tokio::spawn(async move { reason(&client).await })
    });
    let calls: Vec<_> = calls.collect();
    provider.until(|received| !received.is_empty()).await;
    // The first is no token response; those who waited hear the same.
    drop(held);
    for call in calls {
        assert_eq!(call.await.unwrap(), "provider_unavailable");
    }
    assert_eq!(world.state().exchanges.len(), 1);
}

#[tokio::test]
async fn a_token_lives_no_longer_than_what_it_was_exchanged_for() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
    let toml =
        server() + ADMIN + &exchanging(&upstream, "wiki", &provider, "") + &issuer.provider.table();
    let gateway = Gateway::start(&toml).await;
    let now = crate::support::provider::now();
    let short = issuer.token("ada", |claims| claims["exp"] = json!(now + 40));
    let ada = bearer(&gateway, &short);
    ready(&ada, 1).await;
    get(&ada, "ada").await;
    get(&issuer.client(&gateway, "bob"), "bob").await;
    let rows = accounts(&gateway).await;
    let left = |caller: &str| {
        let account = rows.iter().find(|account| account["caller"] == caller).unwrap();
        account["expiresInSecs"].as_u64().unwrap()
    };
    assert!(left("ada") <= 40, "{rows:?}");
    assert!((200..=300).contains(&left("bob")), "{rows:?}");
}

#[tokio::test]
async fn a_token_with_less_is_not_served_by_what_one_with_more_was_exchanged_for() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", true).await);
    let toml = server() + &exchanging(&upstream, "wiki", &provider, "") + &issuer.provider.table();
    let gateway = Gateway::start(&toml).await;
    let client = |change: fn(&mut Value)| bearer(&gateway, &issuer.token("ada", change));
    let all = client(|_| {});
    ready(&all, 1).await;
    get(&all, "ada").await;
    for change in [
        (|claims| claims["scope"] = json!("prompts")) as fn(&mut Value),
        |claims| claims["client_id"] = json!("another"),
        |claims| claims["groups"] = json!(["guests"]),
    ] {
        let before = world.state().exchanges.len();
        get(&client(change), "ada").await;
        assert_eq!(world.state().exchanges.len(), before + 1);
    }
    // Another token with the same claims is served by what is there.
    get(&client(|claims| claims["jti"] = json!("another")), "ada").await;
    assert_eq!(world.state().exchanges.len(), 4);
    assert_eq!(world.state().violations, Vec::<String>::new());
}

#[tokio::test]
async fn a_refused_token_is_replaced_once_and_a_call_goes_on() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
    let toml = server() + &exchanging(&upstream, "wiki", &provider, "") + &issuer.provider.table();
    let gateway = Gateway::start(&toml).await;
    let ada = issuer.client(&gateway, "ada");
    ready(&ada, 1).await;
    get(&ada, "ada").await;
    // The upstream forgets all tokens.
    world.state().valid.clear();
    get(&ada, "ada").await;
    assert_eq!(world.state().exchanges.len(), 2);
    // A second time within seconds: the upstream refuses all tokens, and no other is asked for.
    world.state().valid.clear();
    assert_eq!(reason(&ada).await, "upstream_auth_failed");
    assert_eq!(reason(&ada).await, "upstream_auth_failed");
    assert_eq!(world.state().exchanges.len(), 2);
}

/// A gateway that asks for the scope `read`, and has a token of ada; with its authorization server
/// and its upstream.
async fn asking_to_read(world: &World, issuer: &Issuer) -> ([Upstream; 2], Gateway) {
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
    let toml = server()
        + &exchanging(&upstream, "wiki", &provider, ", scope = \"read\"")
        + &issuer.provider.table();
    let gateway = Gateway::start(&toml).await;
    ready(&issuer.client(&gateway, "ada"), 1).await;
    ([provider, upstream], gateway)
}

#[tokio::test]
async fn a_scope_that_the_upstream_needs_is_asked_for_beside_those_known() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let (_servers, gateway) = asking_to_read(&world, &issuer).await;
    let ada = issuer.client(&gateway, "ada");
    world.state().needed = Some("write");
    get(&ada, "ada").await;
    let scopes: Vec<_> =
        world.state().exchanges.iter().map(|form| form.get("scope").cloned()).collect();
    assert_eq!(scopes, [Some("read".to_owned()), Some("read write".to_owned())]);
    // One that was granted and still does not suffice is asked for no more.
    world.state().needed = Some(NEVER);
    assert_eq!(reason(&issuer.client(&gateway, "bob")).await, "scope_refused");
    assert_eq!(world.state().exchanges.len(), 4);
}

#[tokio::test]
async fn after_a_scope_that_is_refused_the_next_token_is_one_that_can_be_had() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let (_servers, gateway) = asking_to_read(&world, &issuer).await;
    let ada = issuer.client(&gateway, "ada");
    world.state().needed = Some(UNGRANTED);
    assert_eq!(reason(&ada).await, "scope_refused");
    world.state().needed = None;
    let get = async || ada.modern("prompts/get", json!({"name": "wiki__p"})).await.json();
    eventually(get, |message| message["result"].is_object()).await;
}

#[tokio::test]
async fn an_actor_is_read_for_each_exchange() {
    let (world, issuer) = (World::lasting(1), Issuer::start().await);
    let folder = tempfile::tempdir().unwrap();
    let actor = folder.path().join("actor");
    std::fs::write(&actor, "canary-actor-1\n").unwrap();
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
    let more = format!(", actor = {{ file = \"{}\" }}", actor.display());
    let toml =
        server() + &exchanging(&upstream, "wiki", &provider, &more) + &issuer.provider.table();
    let gateway = Gateway::start(&toml).await;
    let ada = issuer.client(&gateway, "ada");
    ready(&ada, 1).await;
    get(&ada, "ada").await;
    std::fs::write(&actor, "canary-actor-2\n").unwrap();
    get(&issuer.client(&gateway, "bob"), "bob").await;
    let actors: Vec<_> =
        world.state().exchanges.iter().map(|form| form["actor_token"].clone()).collect();
    assert_eq!(
        (actors.first().unwrap().as_str(), actors.last().unwrap().as_str()),
        ("canary-actor-1", "canary-actor-2")
    );
    std::fs::remove_file(&actor).unwrap();
    assert_eq!(reason(&issuer.client(&gateway, "eve")).await, "upstream_auth_failed");
}

#[tokio::test]
async fn many_callers_at_once_ask_the_provider_within_its_limit() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
    let toml = server()
        + &exchanging(&upstream, "wiki", &provider, ", requests = 2")
        + &issuer.provider.table();
    let gateway = Gateway::start(&toml).await;
    ready(&issuer.client(&gateway, "ready"), 1).await;
    let calls = (0..100).map(|n| {
        let (who, client) =
            (format!("caller-{n}"), issuer.client(&gateway, &format!("caller-{n}")));
        tokio::spawn(async move { get(&client, &who).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!(world.state().exchanges.len(), 100);
    assert_eq!(world.state().violations, Vec::<String>::new());
    // More than two requests at a time would have needed more than two connections.
    let connections: HashSet<_> =
        provider.received().iter().map(|asked| asked.connection).collect();
    assert!(connections.len() <= 2, "{connections:?}");
}

#[tokio::test]
async fn a_vault_holds_the_secret_of_each_caller() {
    let (world, issuer, log) = (World::lasting(0), Issuer::start().await, Log::new());
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", true).await);
    let toml = server()
        + &vaulting(&upstream, "wiki", &provider)
        + &api_key("ci", "key-of-ci")
        + &issuer.provider.table()
        + &log.table();
    let gateway = Gateway::start(&toml).await;
    let ci = bearer(&gateway, "key-of-ci");
    ready(&ci, 1).await;
    // A key is enough: what counts is who calls.
    get(&ci, "ci").await;
    get(&issuer.client(&gateway, "ada"), "ada").await;
    get(&ci, "ci").await;
    assert_eq!(world.state().lookups, ["/v1/wiki/ci", "/v1/wiki/ada"]);
    world.state().unknown.insert("eve".to_owned());
    assert_eq!(reason(&issuer.client(&gateway, "eve")).await, "no_secret");
    assert_eq!(reason(&issuer.client(&gateway, "..")).await, "no_secret");
    let tricky = issuer.client(&gateway, "a/../ci");
    tricky.ask_error("prompts/get", json!({"name": "wiki__q"})).await;
    let _ = tricky.modern("prompts/get", json!({"name": "wiki__p"})).await;
    assert_eq!(world.state().lookups.last().unwrap(), "/v1/wiki/a%2F..%2Fci");
    assert_eq!(world.state().violations, Vec::<String>::new());
    assert!(!log.text().contains("canary"));
}

#[tokio::test]
async fn accounts_are_listed_and_end_at_once() {
    let (world, issuer, log) = (World::lasting(3600), Issuer::start().await, Log::new());
    let provider = world.provider().await;
    let (wiki, code) = (world.upstream("wiki", true).await, world.upstream("code", true).await);
    let toml = server()
        + ADMIN
        + &exchanging(&wiki, "wiki", &provider, "")
        + &exchanging(&code, "code", &provider, "")
        + &issuer.provider.table()
        + &log.table();
    let gateway = Gateway::start(&toml).await;
    let (ada, bob) = (issuer.client(&gateway, "ada"), issuer.client(&gateway, "bob"));
    ready(&ada, 2).await;
    for (client, who) in [(&ada, "ada"), (&bob, "bob")] {
        for prompt in ["wiki__p", "code__p"] {
            client.ask("prompts/get", named(prompt, who)).await;
        }
    }
    let sorted = async || {
        let mut rows = holders(&gateway).await;
        rows.sort();
        rows
    };
    assert_eq!(sorted().await, ["ada at code", "ada at wiki", "bob at code", "bob at wiki"]);
    let (_, revoked) = revoke(&gateway, json!({"caller": "ada", "upstream": "wiki"})).await;
    assert_eq!(revoked["revoked"].as_array().unwrap().len(), 1, "{revoked}");
    assert_eq!(sorted().await, ["ada at code", "bob at code", "bob at wiki"]);
    // Its session at the upstream is ended there, too.
    wiki.until(|received| received.iter().any(|asked| asked.http_method == "DELETE")).await;
    assert_eq!(revoke(&gateway, json!({"upstreams": "x"})).await.0, 400);
    revoke(&gateway, json!({})).await;
    assert_eq!(sorted().await, Vec::<String>::new());
    // The next call gets what the authorization server still grants.
    get(&ada, "ada").await;
    let events = log.of("account_revoked");
    assert_eq!(events.len(), 4);
    assert_eq!((&events[0]["caller"], &events[0]["upstream"]), (&json!("ada"), &json!("wiki")));
    assert_eq!(world.state().violations, Vec::<String>::new());
}

#[tokio::test]
async fn a_token_is_revoked_at_the_authorization_server_where_that_can_be_done() {
    let (world, issuer, log) = (World::lasting(3600), Issuer::start().await, Log::new());
    let (provider, other) = (world.provider().await, world.provider().await);
    let (wiki, code) = (world.upstream("wiki", false).await, world.upstream("code", false).await);
    let toml = server()
        + ADMIN
        + &exchanging(&wiki, "wiki", &provider, "")
        + &vaulting(&code, "code", &other)
        + &issuer.provider.table()
        + &log.table();
    let gateway = Gateway::start(&toml).await;
    let ada = issuer.client(&gateway, "ada");
    ready(&ada, 2).await;
    let get_both = async || {
        get(&ada, "ada").await;
        ada.ask("prompts/get", named("code__p", "ada")).await;
    };
    let told = |revoked: &Value, upstream: &str| {
        let mut rows = revoked["revoked"].as_array().unwrap().iter();
        rows.find(|row| row["upstream"] == upstream).unwrap()["revokedAtProvider"].clone()
    };
    get_both().await;
    // Nothing says that tokens can be revoked.
    let (_, revoked) = revoke(&gateway, json!({})).await;
    assert_eq!((told(&revoked, "wiki"), told(&revoked, "code")), (json!(false), json!(false)));
    world.state().revokes = true;
    get_both().await;
    let token = world.state().issued.iter().rev().nth(1).unwrap().clone();
    let (_, revoked) = revoke(&gateway, json!({})).await;
    assert_eq!((told(&revoked, "wiki"), told(&revoked, "code")), (json!(true), json!(false)));
    assert_eq!(world.state().revoked, [token]);
    let events = eventually(async || log.of("account_revoked"), |events| events.len() >= 4).await;
    let said: Vec<_> = events.iter().map(|event| event["provider"].as_str().unwrap()).collect();
    assert_eq!(said.iter().filter(|said| **said == "revoked").count(), 1, "{said:?}");
    assert_eq!(events.len(), 4);
    assert!(!log.text().contains("canary-token"));
    // The next call gets another.
    get(&ada, "ada").await;
}

#[tokio::test]
async fn a_call_ends_with_the_account_that_it_uses() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let provider = world.provider().await;
    let (upstream, _live) = Upstream::holding_a_get().await;
    let toml =
        server() + ADMIN + &exchanging(&upstream, "wiki", &provider, "") + &issuer.provider.table();
    let gateway = Gateway::start(&toml).await;
    let ada = issuer.client(&gateway, "ada");
    ready(&ada, 1).await;
    let waiting = tokio::spawn(async move { reason(&ada).await });
    upstream.received_method("prompts/get").await;
    revoke(&gateway, json!({"caller": "ada"})).await;
    assert_eq!(waiting.await.unwrap(), "upstream_unavailable");
}

#[tokio::test]
async fn a_call_ends_with_its_account_also_after_another_account_has_taken_the_place() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let provider = world.provider().await;
    let (held, _live) = Upstream::holding_a_get().await;
    let code = world.upstream("code", false).await;
    let toml = server()
        + ADMIN
        + "[accounts]\nper_caller = 1\n"
        + &exchanging(&held, "wiki", &provider, "")
        + &exchanging(&code, "code", &provider, "")
        + &issuer.provider.table();
    let gateway = Gateway::start(&toml).await;
    let ada = issuer.client(&gateway, "ada");
    ready(&ada, 2).await;
    let waits = ada.clone();
    let waiting = tokio::spawn(async move { reason(&waits).await });
    held.received_method("prompts/get").await;
    ada.ask("prompts/get", named("code__p", "ada")).await;
    assert_eq!(holders(&gateway).await, ["ada at code"]);
    let (_, revoked) = revoke(&gateway, json!({"caller": "ada"})).await;
    assert_eq!(revoked["revoked"].as_array().map(Vec::len), Some(2), "{revoked}");
    assert_eq!(waiting.await.unwrap(), "upstream_unavailable");
}

#[tokio::test]
async fn accounts_are_bounded_by_caller_and_in_all_the_least_recently_used_ends() {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let provider = world.provider().await;
    let names = ["one", "two", "three"];
    let mut toml = server() + ADMIN + "[accounts]\nper_caller = 2\nmax = 3\n";
    let mut upstreams = Vec::new();
    for name in names {
        let upstream = world.upstream(name, false).await;
        toml += &exchanging(&upstream, name, &provider, "");
        upstreams.push(upstream);
    }
    let gateway = Gateway::start(&(toml + &issuer.provider.table())).await;
    let (ada, bob) = (issuer.client(&gateway, "ada"), issuer.client(&gateway, "bob"));
    ready(&ada, 3).await;
    let call = async |client: &Client, who: &str, upstream: &str| {
        client.ask("prompts/get", named(&format!("{upstream}__p"), who)).await;
    };
    call(&ada, "ada", "one").await;
    call(&ada, "ada", "two").await;
    call(&ada, "ada", "one").await;
    call(&ada, "ada", "three").await;
    assert_eq!(holders(&gateway).await, ["ada at three", "ada at one"]);
    call(&bob, "bob", "two").await;
    call(&bob, "bob", "one").await;
    assert_eq!(holders(&gateway).await, ["bob at one", "bob at two", "ada at three"]);
    // An ended account is opened again.
    call(&ada, "ada", "one").await;
    assert_eq!(holders(&gateway).await, ["ada at one", "bob at one", "bob at two"]);
    assert_eq!(world.state().violations, Vec::<String>::new());
}

#[tokio::test]
async fn a_workload_is_known_by_a_token_that_others_renew() {
    let world = World::lasting(1);
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = (folder.path().join("token"), SigningKey::ec("k"));
    let assertion = |n: u64| key.sign(&json!({"sub": "gate", "n": n}));
    std::fs::write(&file, assertion(1)).unwrap();
    let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
    let table = |more: &str| {
        upstream.patient_table("wiki")
            + &format!(
                "credential = {{ workload = {{ file = \"{}\", token_url = \"http://{}/token\", audience = \"wiki\"{more} }} }}\n",
                file.display(),
                provider.addr
            )
    };
    let gateway = Gateway::start(&table("")).await;
    ready(&gateway.client(), 1).await;
    get(&gateway.client(), "gate").await;
    {
        let state = world.state();
        let form = &state.exchanges[0];
        assert_eq!(form["grant_type"], "urn:ietf:params:oauth:grant-type:jwt-bearer");
        assert_eq!(form["assertion"], assertion_of(&state, 0));
        assert!(!form.contains_key("client_id"));
    }
    // The platform renews it, and the next request has the new one.
    let renewed = assertion(2);
    std::fs::write(&file, &renewed).unwrap();
    eventually(
        async || {
            get(&gateway.client(), "gate").await;
            world.state().exchanges.last().unwrap()["assertion"].clone()
        },
        |last| *last == renewed,
    )
    .await;
    // As the authentication of a client (RFC 7523, section 2.2).
    gateway.reload(&table(", client_id = \"gate\"")).await;
    eventually(
        async || {
            let _ = gateway.client().modern("prompts/get", json!({"name": "wiki__p"})).await;
            world.state().exchanges.last().unwrap().clone()
        },
        |form: &HashMap<String, String>| form["grant_type"] == "client_credentials",
    )
    .await;
    let form = world.state().exchanges.last().unwrap().clone();
    assert_eq!(form["client_assertion"], renewed);
    assert_eq!(
        form["client_assertion_type"],
        "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    );
}

fn assertion_of(state: &State, index: usize) -> &str {
    &state.exchanges[index]["assertion"]
}

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    /// A caller gets a prompt of an upstream at a replica.
    Get {
        caller: usize,
        upstream: usize,
        replica: usize,
    },
    /// A caller lists at a replica.
    List {
        caller: usize,
        replica: usize,
    },
    /// The upstreams forget all tokens of a caller.
    Expire {
        caller: usize,
    },
    /// The authorization server knows a caller no more, or again.
    Forbid {
        caller: usize,
    },
    Allow {
        caller: usize,
    },
    /// An operator ends what a caller has at a replica.
    Revoke {
        caller: usize,
        replica: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (caller, upstream, replica) = (0..2_usize, 0..4_usize, 0..2_usize);
    prop_oneof![
        8 => (caller.clone(), upstream, replica.clone())
            .prop_map(|(caller, upstream, replica)| Step::Get { caller, upstream, replica }),
        3 => (caller.clone(), replica.clone())
            .prop_map(|(caller, replica)| Step::List { caller, replica }),
        1 => caller.clone().prop_map(|caller| Step::Expire { caller }),
        1 => caller.clone().prop_map(|caller| Step::Forbid { caller }),
        1 => caller.clone().prop_map(|caller| Step::Allow { caller }),
        1 => (caller, replica).prop_map(|(caller, replica)| Step::Revoke { caller, replica }),
    ]
}

/// The last one lists for each caller.
const UPSTREAMS: [&str; 4] = ["wiki", "code", "desk", "notes"];

/// The scene of a history.
struct Scene {
    world: World,
    issuer: Issuer,
    replicas: [Gateway; 2],
}

const CALLERS: [&str; 2] = ["ada", "bob"];

impl Scene {
    async fn perform(&self, step: Step) {
        let Self { world, issuer, replicas } = self;
        match step {
            Step::Get { caller, upstream, replica } => {
                let client = issuer.client(&replicas[replica], CALLERS[caller]);
                let prompt = format!("{}__p", UPSTREAMS[upstream]);
                let reply = client.modern("prompts/get", named(&prompt, CALLERS[caller])).await;
                let answer = reply.json();
                // Served with its own, or refused with a reason.
                let reason = answer["error"]["data"]["reason"].as_str();
                let is_known = matches!(
                    reason,
                    Some(
                        "exchange_refused"
                            | "no_secret"
                            | "upstream_auth_failed"
                            | "upstream_unavailable"
                    )
                );
                assert!(answer["result"].is_object() || is_known, "{answer}");
            }
            Step::List { caller, replica } => {
                let own = format!("notes__of-{}", CALLERS[caller]);
                let listed = issuer.client(&replicas[replica], CALLERS[caller]).names().await.0;
                let foreign = listed.iter().find(|name| !name.ends_with("__p") && **name != own);
                assert_eq!(foreign, None, "{} was listed {listed:?}", CALLERS[caller]);
            }
            Step::Expire { caller } => {
                world.state().valid.retain(|_, (owner, _)| owner != CALLERS[caller]);
            }
            Step::Forbid { caller } => {
                let mut state = world.state();
                state.unknown.insert(CALLERS[caller].to_owned());
                state.valid.retain(|_, (owner, _)| owner != CALLERS[caller]);
            }
            Step::Allow { caller } => {
                world.state().unknown.remove(CALLERS[caller]);
            }
            Step::Revoke { caller, replica } => {
                revoke(&replicas[replica], json!({"caller": CALLERS[caller]})).await;
            }
        }
    }
}

/// Plays a history, groups of its steps at the same time. Never has an upstream got a request with
/// another caller's token.
async fn play(histories: Vec<Vec<Step>>) {
    let (world, issuer) = (World::lasting(3600), Issuer::start().await);
    let provider = world.provider().await;
    world.offer("operator", &["p"]);
    for caller in CALLERS.into_iter().chain(["ready"]) {
        world.offer(caller, &["p", &format!("of-{caller}")]);
    }
    let mut toml = server() + ADMIN + "[accounts]\nper_caller = 2\n";
    let mut upstreams = Vec::new();
    for (n, name) in UPSTREAMS.into_iter().enumerate() {
        let upstream = world.upstream(name, n == 0).await;
        // One of them asks the vault.
        toml += &match n {
            1 => vaulting(&upstream, name, &provider),
            3 => private_lists::private(&upstream, name, &provider, "poll = \"10ms\"\n"),
            _ => exchanging(&upstream, name, &provider, ""),
        };
        upstreams.push(upstream);
    }
    let toml = toml + &issuer.provider.table();
    let replicas = [Gateway::start(&toml).await, Gateway::start(&toml).await];
    for replica in &replicas {
        ready(&issuer.client(replica, "ready"), 5).await;
    }
    let scene = Arc::new(Scene { world, issuer, replicas });
    for history in histories {
        let mut steps = JoinSet::new();
        for step in history {
            let scene = scene.clone();
            steps.spawn(async move { scene.perform(step).await });
        }
        steps.join_all().await;
        assert_eq!(scene.world.state().violations, Vec::<String>::new());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 40, ..ProptestConfig::default() })]
    #[test]
    fn no_history_of_tokens_gives_a_caller_those_of_another(
        histories in prop::collection::vec(prop::collection::vec(step(), 1..6), 1..12)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(play(histories));
    }
}

/// A table of an upstream whose callers have a child each.
#[cfg(unix)]
fn children(more: &str) -> String {
    format!(
        "{ADMIN}[upstreams.tool]\ntransport = \"stdio\"\ncommand = [\"python3\", \"-c\", {}]\n\
         revision = \"2025-11-25\"\nper_caller = true\n{more}",
        json!(CHILD)
    ) + &["ada", "bob", "eve"].map(|id| api_key(id, &format!("key-of-{id}"))).concat()
}

#[cfg(unix)]
fn by_key(gateway: &Gateway, id: &str) -> Client {
    bearer(gateway, &format!("key-of-{id}"))
}

#[cfg(unix)]
#[tokio::test]
async fn each_caller_has_a_child_with_an_environment_of_its_own() {
    let toml = children("max_children = 2\nenv = { WHO = \"{caller}\" }\n");
    let gateway = Gateway::start(&toml).await;
    ready(&by_key(&gateway, "ada"), 1).await;
    let mut children = BTreeMap::new();
    for id in ["ada", "bob", "ada", "bob"] {
        let result = by_key(&gateway, id).ask("prompts/get", json!({"name": "tool__who"})).await;
        let text = result["messages"][0]["content"]["text"].as_str().unwrap().to_owned();
        let (who, pid) = text.split_once(' ').unwrap();
        assert_eq!(who, id);
        let known = children.entry(id).or_insert_with(|| pid.to_owned());
        assert_eq!(known, pid, "one child for all calls of a caller");
    }
    assert_ne!(children["ada"], children["bob"]);
    // All places are taken: the child that was idle longest makes room.
    let result = by_key(&gateway, "eve").ask("prompts/get", json!({"name": "tool__who"})).await;
    assert!(result["messages"][0]["content"]["text"].as_str().unwrap().starts_with("eve "));
    assert_eq!(holders(&gateway).await, ["eve at tool", "bob at tool"]);
    gateway.drain().await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_call_waits_for_a_child_while_all_are_in_use_and_an_idle_child_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let toml = children(&format!(
        "max_children = 1\nqueue_wait = \"100ms\"\nchild_idle = \"300ms\"\nenv = {{ WHO = \"{{caller}}\", GATE = \"{}\" }}\n",
        gate.display()
    ));
    let gateway = Gateway::start(&toml).await;
    ready(&by_key(&gateway, "ada"), 1).await;
    let ada = by_key(&gateway, "ada");
    let waiting = tokio::spawn(async move {
        ada.ask("prompts/get", json!({"name": "tool__who", "arguments": {"wait": "1"}})).await
    });
    eventually(async || holders(&gateway).await.len(), |count| *count == 1).await;
    let busy = by_key(&gateway, "bob").modern("prompts/get", json!({"name": "tool__who"})).await;
    assert_eq!(busy.json()["error"]["data"]["reason"], "upstream_busy");
    std::fs::write(&gate, "open").unwrap();
    waiting.await.unwrap();
    // The place is free again, and a child that nobody uses does not keep it.
    eventually(async || holders(&gateway).await, Vec::is_empty).await;
    by_key(&gateway, "bob").ask("prompts/get", json!({"name": "tool__who"})).await;
}

#[cfg(unix)]
#[tokio::test]
async fn s3_a_child_of_one_caller_that_hangs_is_replaced_and_no_other_caller_notices() {
    let toml = children(
        "timeout = \"300ms\"\nwalk_timeout = \"3s\"\nbreaker = { failures = 1 }\n\
         env = { WHO = \"{caller}\", GATE = \"/nowhere\" }\n",
    );
    let gateway = Gateway::start(&toml).await;
    ready(&by_key(&gateway, "ada"), 1).await;
    let text = |message: &Value| {
        message["result"]["messages"][0]["content"]["text"].as_str().map(str::to_owned)
    };
    let get = async |id: &str, arguments: Value| {
        let params = json!({"name": "tool__who", "arguments": arguments});
        by_key(&gateway, id).modern("prompts/get", params).await.json()
    };
    // The start of a child may take longer than a call.
    let served = async |id: &str| {
        let answer = eventually(async || get(id, json!({})).await, |m| text(m).is_some()).await;
        text(&answer).unwrap()
    };
    let before = served("ada").await;
    let of_bob = served("bob").await;
    let hangs = get("ada", json!({"wait": "1"})).await;
    assert_eq!(hangs["error"]["data"]["reason"], "upstream_timeout");
    for _ in 0..3 {
        let answer = get("bob", json!({})).await;
        let reason = &answer["error"]["data"]["reason"];
        assert!(reason.is_null() || reason == "upstream_timeout", "{answer}");
    }
    assert_ne!(served("ada").await, before, "another process");
    assert_eq!(served("bob").await, of_bob, "the same process");
}

#[tokio::test]
async fn a_call_that_waits_gets_the_place_of_a_child_that_becomes_idle() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let toml = children(&format!(
        "max_children = 1\nqueue_wait = \"10s\"\nenv = {{ WHO = \"{{caller}}\", GATE = \"{}\" }}\n",
        gate.display()
    ));
    let gateway = Gateway::start(&toml).await;
    ready(&by_key(&gateway, "ada"), 1).await;
    let ask = |who: &str, arguments: Value| {
        let client = by_key(&gateway, who);
        let params = json!({"name": "tool__who", "arguments": arguments});
        tokio::spawn(async move { client.ask("prompts/get", params).await })
    };
    let ada = ask("ada", json!({"wait": "1"}));
    eventually(async || holders(&gateway).await.len(), |count| *count == 1).await;
    let bob = ask("bob", json!({}));
    // Bob's call has most likely begun to wait by then.
    by_key(&gateway, "bob").ask("prompts/list", json!({})).await;
    std::fs::write(&gate, "open").unwrap();
    ada.await.unwrap();
    bob.await.unwrap();
    assert_eq!(holders(&gateway).await, ["bob at tool"]);
}

/// A server over stdio whose prompt says who it is for.
const CHILD: &str = r#"
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method = asked.get("method")
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"prompts": {}}, "serverInfo": {"name": "child", "version": "1"}}
    elif method == "prompts/list":
        result = {"prompts": [{"name": "who"}]}
    elif method == "prompts/get":
        while "wait" in asked["params"].get("arguments", {}) and not os.path.exists(os.environ["GATE"]):
            time.sleep(0.01)
        text = os.environ["WHO"] + " " + str(os.getpid())
        result = {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"#;
