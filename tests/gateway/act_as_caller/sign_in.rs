//! Callers who sign in themselves at an upstream, when it is first needed.

use std::collections::HashMap;

use serde_json::{Value, json};
use url::Url;

use super::{ADMIN, Issuer, accounts, bearer, documented, named, ready, revoke};
use crate::audit::Log;
use crate::support::browser::{Browser, PAGE, text};
use crate::support::client::{Client, Reply};
use crate::support::client_modes::{ClientMode, ModeClient};
use crate::support::gateway::api_key;
use crate::support::process::{LOG_WARNINGS, Process, command};
use crate::support::wiki::{Wiki, browse};
use crate::support::{Gateway, Upstream, eventually, metrics};

/// Gateways with one folder of sign-ins have no audit log in common.
const NO_LOG: &str = "[audit]\npath = \"\"\n";

/// A gateway in front of the wiki, whose callers have keys and sign in to it.
fn config(upstream: &Upstream, more: &str) -> String {
    format!(
        "[server]\npublic_url = \"https://gate.example.com/mcp\"\n\
         seal_key = {{ value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }}\n\
         {}act_as = \"caller\"\ncredential = {{ bearer = {{ value = \"operator\" }}, sign_in = {{}} }}\n\
         {more}{}",
        upstream.patient_table("wiki"),
        ["ada", "bob"].map(|id| api_key(id, &format!("key-of-{id}"))).concat()
    )
}

/// The same, with a list of each caller.
fn private(toml: &str) -> String {
    let bearer = "bearer = { value = \"operator\" }, ";
    assert!(toml.contains(bearer));
    toml.replace(bearer, "").replace("act_as", "list_as = \"caller\"\nact_as")
}

struct World {
    wiki: Wiki,
    upstream: Upstream,
    log: Log,
    folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let wiki = Wiki::lasting(3600);
        wiki.state().valid.insert("operator".to_owned());
        let upstream = wiki.start().await;
        Self { wiki, upstream, log: Log::new(), folder: tempfile::tempdir().unwrap() }
    }

    fn toml(&self, more: &str) -> String {
        let logins = format!("[logins]\npath = {:?}\n", self.folder.path().join("logins"));
        let log = if more.contains("[audit]") { String::new() } else { self.log.table() };
        config(&self.upstream, &(logins + more)) + &log
    }

    async fn gateway(&self, more: &str) -> (Gateway, Client, Client) {
        let gateway = Gateway::start(&self.toml(more)).await;
        let (ada, bob) = (bearer(&gateway, "key-of-ada"), bearer(&gateway, "key-of-bob"));
        ready(&ada, 1).await;
        (gateway, ada, bob)
    }

    /// The tokens with which gets came, by the caller that their arguments name.
    fn tokens(&self) -> HashMap<String, Vec<String>> {
        let mut tokens = HashMap::<String, Vec<String>>::new();
        for asked in self.upstream.gets() {
            let who = asked.message["params"]["arguments"]["who"].as_str().unwrap_or_default();
            let token = asked.header("authorization").unwrap_or_default().to_owned();
            tokens.entry(who.to_owned()).or_default().push(token);
        }
        tokens
    }
}

/// The link and the code of an error without an elicitation.
async fn asked(client: &Client, who: &str) -> (String, String) {
    asked_for("wiki__p", client, who).await
}

async fn asked_for(prompt: &str, client: &Client, who: &str) -> (String, String) {
    let error = client.ask_error("prompts/get", named(prompt, who)).await;
    assert_eq!(
        (&error["code"], &error["data"]["reason"]),
        (&json!(-32603), &json!("sign_in_needed"))
    );
    let part = |name: &str| error["data"][name].as_str().unwrap().to_owned();
    let (url, code) = (part("url"), part("code"));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&url) && message.contains(&code), "{message}");
    assert!(url.starts_with(&format!("{PAGE}?link=")), "{url}");
    (url, code)
}

async fn get(client: &Client, who: &str) -> Value {
    client.ask("prompts/get", named("wiki__p", who)).await
}

#[tokio::test]
async fn a_caller_signs_in_once_and_no_other_caller_gets_its_token() {
    let world = World::start().await;
    let (gateway, ada, bob) = world.gateway(ADMIN).await;
    let ((of_ada, code), (of_bob, other)) = (asked(&ada, "ada").await, asked(&bob, "bob").await);
    assert!(world.upstream.gets().is_empty(), "nothing is sent without the caller's token");
    let mut browser = Browser::new(gateway.client());
    let page = text(&browser.open(&of_ada).await);
    for part in ["wiki", "http://127.0.0.1", "those that it asks for", "<dd>ada", "name=code"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let missed = browser.click(&of_ada, &other).await;
    assert!(missed.status == 403 && text(&missed).contains("This is not the code"));
    browser.sign_in(&of_ada, &code).await;
    get(&ada, "ada").await;
    // The other caller is still asked, and gets nothing of the first.
    asked(&bob, "bob").await;
    Browser::new(gateway.client()).sign_in(&of_bob, &other).await;
    get(&bob, "bob").await;
    get(&ada, "ada").await;
    let mut tokens = world.tokens();
    let (of_ada, of_bob) = (tokens.remove("ada").unwrap(), tokens.remove("bob").unwrap());
    assert!(of_ada.iter().all(|token| *token == of_ada[0]), "{of_ada:?}");
    assert!(!of_ada.contains(&of_bob[0]) && of_ada.len() == 2 && of_bob.len() == 1);
    for (event, count) in [("sign_in_asked", 2), ("sign_in_refused", 1), ("sign_in_done", 2)] {
        eventually(async || world.log.of(event), |all| all.len() >= count).await;
    }
    let said = world.log.text();
    assert!(!said.contains("canary") && !said.contains("link="), "{said}");
    let rows = accounts(&gateway).await;
    let row = rows.iter().find(|row| row["caller"] == "bob").unwrap();
    assert!(row["way"] == "sign_in" && row["signedInAt"].is_string(), "{row}");
}

#[tokio::test]
async fn a_caller_signs_in_with_the_documented_configuration() {
    let world = World::start().await;
    let hosts = [
        ("https://prompts.example.com/", "https://gate.example.com/"),
        ("https://tracker.example.com/", &format!("http://{}/", world.upstream.addr)),
    ];
    let toml = documented("Sign-in of each caller", &hosts) + &api_key("ada", "key-of-ada");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let secrets = [
        ("PROMPTGATE_SEAL_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        ("TRACKER_LIST_TOKEN", "operator"),
    ];
    let process = Process::serve_env(folder.path(), &secrets).await;
    let ada = process.client().with("Authorization", "Bearer key-of-ada");
    ready(&ada, 1).await;
    let (link, code) = asked_for("tracker__p", &ada, "ada").await;
    Browser::new(process.client()).sign_in(&link, &code).await;
    ada.ask("prompts/get", named("tracker__p", "ada")).await;
    assert_eq!(world.wiki.state().issues(), 1);
}

#[tokio::test]
async fn each_era_shows_the_page_as_it_can() {
    let world = World::start().await;
    let (gateway, ada, _) = world.gateway("").await;
    let eliciting = json!({"elicitation": {"url": {}}});
    let mut modern =
        ModeClient::over_http(ada.clone(), ClientMode::Modern, eliciting.clone()).await;
    let result = modern.ask("prompts/get", named("wiki__p", "ada")).await;
    assert_eq!(result["resultType"], "input_required", "{result}");
    let requests = result["inputRequests"].as_object().unwrap();
    let params = &requests.values().next().unwrap()["params"];
    assert_eq!(params["mode"], "url", "{params}");
    let url = params["url"].as_str().unwrap().to_owned();
    let message = params["message"].as_str().unwrap();
    let code = message.split_once("it is ").unwrap().1.trim_end_matches('.').to_owned();

    let mut legacy =
        ModeClient::over_http(ada.clone(), ClientMode::Http("2025-11-25"), eliciting).await;
    let answer = legacy.answer("prompts/get", named("wiki__p", "ada")).await;
    assert_eq!(answer["error"]["code"], -32042, "{answer}");
    let elicitation = &answer["error"]["data"]["elicitations"][0];
    assert_eq!(elicitation["mode"], "url");
    let id = elicitation["elicitationId"].as_str().unwrap().to_owned();

    for mode in [
        ClientMode::Http("2025-11-25"),
        ClientMode::Http("2025-06-18"),
        ClientMode::Sse("2024-11-05"),
    ] {
        let mut plain = ModeClient::over_http(ada.clone(), mode, json!({})).await;
        let answer = plain.answer("prompts/get", named("wiki__p", "ada")).await;
        assert_eq!(answer["error"]["code"], -32603, "{mode:?}: {answer}");
        assert!(answer["error"]["data"]["url"].is_string(), "{mode:?}: {answer}");
        let params = json!({"ref": {"type": "ref/prompt", "name": "wiki__p"},
            "argument": {"name": "who", "value": ""}});
        let completed = plain.answer("completion/complete", params).await;
        assert!(completed["error"]["data"]["url"].is_string(), "{mode:?}: {completed}");
    }

    Browser::new(gateway.client()).sign_in(&url, &code).await;
    // The client that was sent to the page hears that it can go on.
    let complete = legacy.next_message().await;
    assert_eq!(complete["method"], "notifications/elicitation/complete", "{complete}");
    assert_eq!(complete["params"]["elicitationId"], id);
    let mut retry = named("wiki__p", "ada");
    let key = requests.keys().next().unwrap();
    retry["inputResponses"] = json!({key: {"action": "accept"}});
    retry["requestState"] = result["requestState"].clone();
    let result = modern.ask("prompts/get", retry).await;
    assert!(result["messages"].is_array(), "{result}");
    let result = legacy.ask("prompts/get", named("wiki__p", "ada")).await;
    assert!(result["messages"].is_array(), "{result}");
}

#[tokio::test]
async fn a_modern_client_that_elicits_gets_the_link_in_the_error_of_a_completion() {
    let world = World::start().await;
    let eliciting = json!({"elicitation": {"url": {}}});
    let (_gateway, ada, _) = world.gateway("").await;
    let completing = json!({"ref": {"type": "ref/prompt", "name": "wiki__p"},
        "argument": {"name": "who", "value": ""}});
    let mut client = ModeClient::over_http(ada, ClientMode::Modern, eliciting).await;
    let answer = client.answer("completion/complete", completing).await;
    // MCP 2026-07-28 has no -32042.
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "sign_in_needed", "{answer}");
    assert!(answer["error"]["data"]["url"].is_string(), "{answer}");
}

#[tokio::test]
async fn a_get_of_a_private_prompt_shows_the_page_to_a_modern_client_before_the_sign_in() {
    let world = World::start().await;
    let gateway = Gateway::start(&private(&world.toml(""))).await;
    let ada = bearer(&gateway, "key-of-ada");
    let eliciting = json!({"elicitation": {"url": {}}});
    let mut client = ModeClient::over_http(ada.clone(), ClientMode::Modern, eliciting).await;
    let asked = client.ask("prompts/get", named("wiki__p", "ada")).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    assert_eq!(asked.get("requestState"), None, "the call has not begun: {asked}");
    let requests = asked["inputRequests"].as_object().unwrap();
    let (key, request) = requests.iter().next().unwrap();
    let params = &request["params"];
    assert!(requests.len() == 1 && params["mode"] == "url", "{asked}");
    let message = params["message"].as_str().unwrap();
    let code = message.split_once("it is ").unwrap().1.trim_end_matches('.');
    let mut retry = named("wiki__p", "ada");
    retry["inputResponses"] = json!({key: {"action": "accept"}});
    let again = client.ask("prompts/get", retry.clone()).await;
    assert_eq!(again["inputRequests"], asked["inputRequests"], "not signed in yet: {again}");
    Browser::new(gateway.client()).sign_in(params["url"].as_str().unwrap(), code).await;
    let result = client.ask("prompts/get", retry).await;
    assert!(result["messages"].is_array(), "{result}");
    let bob = bearer(&gateway, "key-of-bob");
    let plain = ModeClient::over_http(bob, ClientMode::Modern, json!({}));
    let answer = plain.await.answer("prompts/get", named("wiki__p", "bob")).await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
}

#[tokio::test]
async fn a_link_is_of_use_once_and_to_its_browser_only() {
    let world = World::start().await;
    let (gateway, ada, _) = world.gateway("").await;
    let (link, code) = asked(&ada, "ada").await;
    let (rest, last) = link.split_at(link.len() - 1);
    let altered = format!("{rest}{}", if last == "A" { "Q" } else { "A" });
    assert_eq!(Browser::new(gateway.client()).open(&altered).await.status, 403);
    // The answer of the authorization server means nothing in another browser, nor with another
    // state, and neither ends the sign-in.
    let mut browser = Browser::new(gateway.client());
    let back = browser.agree(&link, &code).await;
    let stranger = Browser::new(gateway.client()).open(&back).await;
    assert!(stranger.status == 403 && text(&stranger).contains("did not begin in this browser"));
    let changed = back.replace("state=", "state=x");
    assert_eq!(browser.open(&changed).await.status, 403);
    assert_eq!(world.wiki.state().issues(), 0, "no code was exchanged");
    assert_eq!(browser.open(&back).await.status, 200);
    // The link, the form and the answer are used up.
    assert_eq!(Browser::new(gateway.client()).open(&link).await.status, 403);
    assert_eq!(Browser::new(gateway.client()).click(&link, &code).await.status, 403);
    assert_ne!(browser.open(&back).await.status, 200);
    assert_eq!(world.wiki.state().issues(), 1);
    get(&ada, "ada").await;
    let posted =
        [("Content-Type", "application/x-www-form-urlencoded"), ("Origin", "https://evil.example")];
    let foreign = gateway.client().send("POST", "/mcp/sign_in", &posted, b"link=x").await;
    assert_eq!(foreign.status, 403, "a page of another site cannot click");
}

#[tokio::test]
async fn a_sign_in_works_on_another_replica_and_after_a_restart() {
    let world = World::start().await;
    let (first, ada, _) = world.gateway("").await;
    let (second, _, _) = world.gateway(NO_LOG).await;
    let (link, code) = asked(&ada, "ada").await;
    // The page of the one, and the answer at the other.
    let mut browser = Browser::new(first.client());
    let back = browser.agree(&link, &code).await;
    let mut elsewhere = browser.at(second.client());
    assert_eq!(elsewhere.open(&back).await.status, 200);
    get(&ada, "ada").await;
    assert_eq!(Browser::new(first.client()).open(&link).await.status, 403);
    first.drain().await;
    let (_third, ada, bob) = world.gateway(NO_LOG).await;
    get(&ada, "ada").await;
    asked(&bob, "bob").await;
}

#[tokio::test]
async fn a_sign_in_that_ends_is_asked_for_again_and_only_of_its_caller() {
    let world = World::start().await;
    let (gateway, ada, bob) = world.gateway(ADMIN).await;
    let (link, code) = asked(&ada, "ada").await;
    Browser::new(gateway.client()).sign_in(&link, &code).await;
    get(&ada, "ada").await;
    // The upstream refuses the token in the middle of a get, and the refresh token is refused.
    let token = world.tokens()["ada"][0].trim_start_matches("Bearer ").to_owned();
    {
        let mut state = world.wiki.state();
        state.valid.remove(&token);
        state.refresh = None;
    }
    let (again, code) = asked(&ada, "ada").await;
    assert_eq!(Browser::new(gateway.client()).open(&link).await.status, 403);
    Browser::new(gateway.client()).sign_in(&again, &code).await;
    get(&ada, "ada").await;
    let (of_bob, code) = asked(&bob, "bob").await;
    Browser::new(gateway.client()).sign_in(&of_bob, &code).await;
    get(&bob, "bob").await;

    let (_, revoked) = revoke(&gateway, json!({"caller": "ada"})).await;
    let revoked = revoked["revoked"].as_array().unwrap().clone();
    assert_eq!(revoked.len(), 1, "{revoked:?}");
    assert_eq!(revoked[0]["revokedAtProvider"], true, "{revoked:?}");
    let (next, _) = asked(&ada, "ada").await;
    // A link from before the revocation does not bring the account back.
    assert_eq!(Browser::new(gateway.client()).open(&again).await.status, 403);
    assert_eq!(Browser::new(gateway.client()).open(&next).await.status, 200);
    get(&bob, "bob").await;
    let events = eventually(async || world.log.of("sign_in_ended"), |all| !all.is_empty()).await;
    assert_eq!((events.len(), &events[0]["caller"]), (1, &json!("ada")));
}

#[tokio::test]
async fn more_scopes_are_asked_for_once() {
    let world = World::start().await;
    let (gateway, ada, _) = world.gateway("").await;
    let (link, code) = asked(&ada, "ada").await;
    Browser::new(gateway.client()).sign_in(&link, &code).await;
    world.wiki.state().lacking = Some("write");
    let (wider, code) = asked(&ada, "ada").await;
    let mut browser = Browser::new(gateway.client());
    assert!(text(&browser.open(&wider).await).contains("<dt>Scopes<dd>write"));
    browser.sign_in(&wider, &code).await;
    let error = ada.ask_error("prompts/get", named("wiki__p", "ada")).await;
    assert_eq!(error["data"]["reason"], "scope_refused", "{error}");
    world.wiki.state().lacking = None;
    get(&ada, "ada").await;
}

#[tokio::test]
async fn the_page_demands_the_person_that_the_provider_names() {
    let world = World::start().await;
    let issuer = Issuer::start().await;
    let oidc = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[admin.oidc]\nissuer = \"{}\"\nclient_id = \"gate\"\n\
         client_secret = {{ value = \"canary-oidc\" }}\nviewers = [\"staff\"]\n",
        issuer.provider.issuer()
    );
    let jwt = issuer.provider.table();
    let gateway = Gateway::start(&world.toml(&(oidc + &jwt))).await;
    let claims = |claims: &mut Value| claims["aud"] = json!("https://gate.example.com/mcp");
    let eve = bearer(&gateway, &issuer.token("eve", claims));
    ready(&eve, 1).await;
    let (link, _) = asked(&eve, "eve").await;
    let mut browser = Browser::new(gateway.client());
    assert!(!text(&browser.open(&link).await).contains("name=code"));
    let come_back = async |mut browser: Browser, sent: Reply, subject: &str| {
        assert_eq!(sent.status, 303, "{}", text(&sent));
        let away = Url::parse(sent.header("location").unwrap()).unwrap();
        let sent: HashMap<_, _> = away.query_pairs().into_owned().collect();
        assert_eq!(sent["redirect_uri"], format!("{PAGE}/callback"));
        let mut claims = issuer.provider.claims("gate");
        claims["sub"] = json!(subject);
        claims["nonce"] = json!(sent["nonce"]);
        issuer.provider.give(&issuer.key.sign(&claims));
        let back = format!("{PAGE}/callback?code=c&state={}", sent["state"]);
        let reply = browser.open(&back).await;
        (browser, reply)
    };
    let click = async |subject: &str| {
        let mut browser = Browser::new(gateway.client());
        let clicked = browser.click(&link, "").await;
        come_back(browser, clicked, subject).await
    };
    let (_, other) = click("bob").await;
    assert!(other.status == 403 && text(&other).contains("for another person"), "{}", text(&other));
    let (mut browser, own) = click("eve").await;
    assert_eq!(own.status, 303, "{}", text(&own));
    let away = Url::parse(own.header("location").unwrap()).unwrap();
    let back = browse(&away).await.header("location").unwrap().to_owned();
    assert_eq!(browser.open(&back).await.status, 200);
    get(&eve, "eve").await;
    let refused = eventually(async || world.log.of("sign_in_refused"), |all| !all.is_empty()).await;
    assert_eq!(refused[0]["reason"], "other_person");

    // Without a link, the page shows people their own sign-ins, and ends them.
    let visit = async |subject: &str| {
        let mut browser = Browser::new(gateway.client());
        let sent = browser.open(PAGE).await;
        let (mut browser, named) = come_back(browser, sent, subject).await;
        assert_eq!((named.status, named.header("location")), (303, Some(PAGE)));
        let page = text(&browser.open(PAGE).await);
        (browser, page)
    };
    let (mut other, none) = visit("bob").await;
    assert!(none.contains("no upstream"), "{none}");
    other.end("wiki").await;
    get(&eve, "eve").await;
    let stranger = Browser::new(gateway.client()).end("wiki").await;
    assert_eq!(stranger.status, 403, "{}", text(&stranger));
    let (mut own, page) = visit("eve").await;
    assert!(page.contains("<td>wiki<td>") && page.contains("GMT"), "{page}");
    let left = text(&own.end("wiki").await);
    assert!(left.contains("no upstream"), "{left}");
    asked(&eve, "eve").await;
    assert_eq!(Browser::new(gateway.client()).open(&link).await.status, 403);
    let ended = eventually(async || world.log.of("sign_in_ended"), |all| !all.is_empty()).await;
    assert_eq!((ended.len(), &ended[0]["caller"]), (1, &json!("eve")));
}

#[tokio::test]
async fn operators_see_who_has_signed_in_and_why_a_caller_is_asked() {
    let world = World::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("gateway.toml"), world.toml(NO_LOG)).unwrap();
    let log = ("PROMPTGATE__TELEMETRY__LOG", LOG_WARNINGS);
    let (process, admin) = Process::serve_admin(folder.path(), &[log]).await;
    let ada = process.client().with("Authorization", "Bearer key-of-ada");
    ready(&ada, 1).await;
    let explain = async || {
        let command = command(folder.path(), &["explain", "ada", "wiki__p"]);
        let output = tokio::process::Command::from(command).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let said = explain().await;
    assert!(said.contains("ada is asked to sign in at wiki: it has no sign-in there."), "{said}");
    let (link, code) = asked(&ada, "ada").await;
    Browser::new(process.client()).sign_in(&link, &code).await;
    get(&ada, "ada").await;
    let said = explain().await;
    assert!(said.contains("ada has signed in at wiki, on 20"), "{said}");
    let page = text(&admin.send("GET", "/upstreams/wiki", &[], b"").await);
    assert!(page.contains("Accounts of callers") && page.contains("ada"), "{page}");
    assert!(page.contains("sign_in</td>"), "{page}");
    {
        let mut state = world.wiki.state();
        state.valid.clear();
        state.refresh = None;
    }
    asked(&ada, "ada").await;
    let said = explain().await;
    assert!(said.contains("ada is asked to sign in at wiki: its sign-in of 20"), "{said}");
    assert!(said.contains("has ended (") && said.contains("invalid_grant"), "{said}");
}

/// The link and the code that a list names instead of the prompts of the wiki.
fn listed(result: &Value) -> (String, String) {
    let why = &result["_meta"]["promptgate/incomplete"][0];
    assert_eq!(
        (&why["upstream"], &why["reason"]),
        (&json!("wiki"), &json!("sign_in_needed")),
        "{result}"
    );
    let part = |name: &str| why[name].as_str().unwrap().to_owned();
    (part("url"), part("code"))
}

#[tokio::test]
async fn a_private_list_comes_with_the_sign_in_and_goes_with_the_account() {
    let world = World::start().await;
    let toml = private(&world.toml(ADMIN));
    let gateway = Gateway::start(&toml).await;
    let ada = bearer(&gateway, "key-of-ada");
    let alone = eventually(
        async || ada.modern("prompts/list", json!({})).await.json()["result"].clone(),
        |result| result["_meta"]["promptgate/incomplete"].is_array(),
    )
    .await;
    assert_eq!(alone["prompts"], json!([]), "{alone}");
    listed(&alone);
    gateway.drain().await;

    let shared = Upstream::with_prompts(&["s"]).await;
    let debounce = "[listing]\ndebounce = \"20ms\"\ndebounce_max = \"200ms\"\n";
    let toml = toml + debounce + &shared.patient_table("all");
    let gateway = Gateway::start(&toml).await;
    let (ada, bob) = (bearer(&gateway, "key-of-ada"), bearer(&gateway, "key-of-bob"));
    ready(&ada, 1).await;
    let mut clients = Vec::new();
    for mode in [ClientMode::Modern, ClientMode::Http("2025-11-25"), ClientMode::Sse("2024-11-05")]
    {
        let mut client = ModeClient::over_http(ada.clone(), mode, json!({})).await;
        let result = client.ask("prompts/list", json!({})).await;
        assert_eq!(result["prompts"].as_array().unwrap().len(), 1, "{mode:?}: {result}");
        listed(&result);
        clients.push(client);
    }
    let mut bobs = ModeClient::over_http(bob.clone(), ClientMode::Modern, json!({})).await;
    let (link, code) = listed(&clients[0].ask("prompts/list", json!({})).await);
    listed(&bobs.ask("prompts/list", json!({})).await);
    Browser::new(gateway.client()).sign_in(&link, &code).await;
    for client in &mut clients {
        client.await_list_changed().await;
        let result = client.ask("prompts/list", json!({})).await;
        assert_eq!(result["prompts"].as_array().unwrap().len(), 2, "{result}");
        assert!(result["_meta"]["promptgate/incomplete"].is_null(), "{result}");
    }
    listed(&bobs.ask("prompts/list", json!({})).await);
    revoke(&gateway, json!({"caller": "ada"})).await;
    for client in &mut clients {
        client.await_list_changed().await;
        let result = client.ask("prompts/list", json!({})).await;
        assert_eq!(result["prompts"].as_array().unwrap().len(), 1, "{result}");
        listed(&result);
    }
    let sent = metrics(&super::admin(&gateway), &["promptgate_list_changed_sent"]).await;
    assert_eq!(sent.values().sum::<f64>(), 6.0, "no stream of another caller: {sent:?}");
}
