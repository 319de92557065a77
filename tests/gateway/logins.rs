//! Sign-ins of the operator for an upstream that lets in users only: how they begin, what they are worth, and how they end.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;
use url::Url;

use crate::support::client::{Client, Reply};
use crate::support::process::{Process, command, run};
use crate::support::upstream::good_modern;
use crate::support::{PATIENCE, Received, Scripted, Upstream, eventually, metrics, write_greeting};

/// An upstream that lets in users only, and its authorization server.
#[derive(Clone, Default)]
struct Wiki(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Codes that were issued and not used: their challenges, clients and redirect URIs.
    codes: HashMap<String, (String, String, String)>,
    /// Access tokens that the upstream takes.
    valid: HashSet<String>,
    /// The refresh token that may be used next.
    refresh: Option<String>,
    /// All tokens and codes that were ever issued.
    issued: Vec<String>,
    /// Seconds of an access token.
    lifetime: u64,
    revoked: Vec<String>,
    /// The status of the token endpoint, unless it works.
    broken: Option<u16>,
    /// A refresh token was used twice.
    reused: bool,
    /// `authorization_pending` answers before the device is let in.
    pending: usize,
    /// Parameters of the metadata that differ.
    metadata: Value,
    /// What the redirect names as its issuer; the true one where nothing is said.
    named_issuer: Option<String>,
    /// The scope that the upstream wants and no token has.
    lacking: Option<&'static str>,
}

fn json_body(status: u16, value: &Value) -> Scripted {
    let headers = vec![("Content-Type", "application/json".to_owned())];
    Scripted::Http(status, headers, value.to_string().into_bytes())
}

fn form(asked: &Received) -> HashMap<String, String> {
    url::form_urlencoded::parse(asked.body_text().as_bytes()).into_owned().collect()
}

impl Wiki {
    fn lasting(lifetime: u64) -> Self {
        let wiki = Self::default();
        wiki.state().lifetime = lifetime;
        wiki
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    async fn start(&self) -> Upstream {
        let own = self.clone();
        Upstream::start(move |asked| own.answer(asked)).await
    }

    fn answer(&self, asked: &Received) -> Scripted {
        let origin = format!("http://{}", asked.header("host").unwrap_or_default());
        let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
        let mut state = self.state();
        match path {
            "/.well-known/oauth-protected-resource/mcp" => json_body(
                200,
                &json!({"resource": format!("{origin}/mcp"), "authorization_servers": [origin],
                    "scopes_supported": ["read"]}),
            ),
            "/.well-known/oauth-authorization-server" => {
                let mut metadata = json!({"issuer": origin,
                    "authorization_endpoint": format!("{origin}/authorize"),
                    "token_endpoint": format!("{origin}/token"),
                    "registration_endpoint": format!("{origin}/register"),
                    "revocation_endpoint": format!("{origin}/revoke"),
                    "device_authorization_endpoint": format!("{origin}/device"),
                    "code_challenge_methods_supported": ["S256"],
                    "scopes_supported": ["read", "offline_access"],
                    "authorization_response_iss_parameter_supported": true});
                for (name, value) in state.metadata.as_object().into_iter().flatten() {
                    metadata[name] = value.clone();
                }
                json_body(200, &metadata)
            }
            "/register" => json_body(201, &json!({"client_id": "registered"})),
            "/authorize" => state.authorize(&origin, query),
            "/device" => json_body(
                200,
                &json!({"device_code": "canary-device", "user_code": "WDJB-MJHT", "interval": 0,
                    "verification_uri": format!("{origin}/activate")}),
            ),
            "/token" => state.token(&form(asked)),
            "/revoke" => {
                let token = form(asked).remove("token").unwrap();
                state.valid.remove(&token);
                state.revoked.push(token);
                Scripted::Http(200, vec![], vec![])
            }
            _ => {
                let token = asked.header("authorization").unwrap_or_default();
                let token = token.strip_prefix("Bearer ").unwrap_or_default();
                if !state.valid.contains(token) {
                    let place = format!("{origin}/.well-known/oauth-protected-resource/mcp");
                    let challenge = format!("Bearer resource_metadata=\"{place}\"");
                    return Scripted::Http(401, vec![("WWW-Authenticate", challenge)], vec![]);
                }
                if let Some(scope) = state.lacking.filter(|_| asked.method() == "prompts/get") {
                    let challenge =
                        format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
                    return Scripted::Http(403, vec![("WWW-Authenticate", challenge)], vec![]);
                }
                drop(state);
                good_modern(asked)
            }
        }
    }
}

impl State {
    /// Agrees at once, as a user who clicks would.
    fn authorize(&mut self, origin: &str, query: &str) -> Scripted {
        let asked: HashMap<String, String> =
            url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        assert_eq!(asked["response_type"], "code");
        assert_eq!(asked["code_challenge_method"], "S256");
        assert_eq!(asked["resource"], format!("{origin}/mcp"));
        let code = format!("canary-code-{}", self.issued.len());
        self.issued.push(code.clone());
        let kept = (
            asked["code_challenge"].clone(),
            asked["client_id"].clone(),
            asked["redirect_uri"].clone(),
        );
        self.codes.insert(code.clone(), kept);
        let mut back = Url::parse(&asked["redirect_uri"]).unwrap();
        let issuer = self.named_issuer.clone().unwrap_or_else(|| origin.to_owned());
        back.query_pairs_mut()
            .append_pair("code", &code)
            .append_pair("state", &asked["state"])
            .append_pair("iss", &issuer);
        Scripted::Http(302, vec![("Location", back.into())], vec![])
    }

    fn token(&mut self, form: &HashMap<String, String>) -> Scripted {
        if let Some(status) = self.broken {
            return json_body(status, &json!({"error": "temporarily_unavailable"}));
        }
        let refused = json_body(400, &json!({"error": "invalid_grant"}));
        match form["grant_type"].as_str() {
            "authorization_code" => {
                let Some((challenge, client, redirect)) = self.codes.remove(&form["code"]) else {
                    return refused;
                };
                let hash = digest::digest(&digest::SHA256, form["code_verifier"].as_bytes());
                if BASE64_URL_SAFE_NO_PAD.encode(hash) != challenge
                    || client != form["client_id"]
                    || redirect != form["redirect_uri"]
                {
                    return refused;
                }
            }
            "refresh_token" => {
                let sent = &form["refresh_token"];
                if self.refresh.as_ref() != Some(sent) {
                    self.reused |= self.issued.contains(sent) && self.refresh.is_some();
                    self.refresh = None;
                    return refused;
                }
            }
            "urn:ietf:params:oauth:grant-type:device_code" if self.pending > 0 => {
                self.pending -= 1;
                return json_body(400, &json!({"error": "authorization_pending"}));
            }
            "urn:ietf:params:oauth:grant-type:device_code" => {
                assert_eq!(form["device_code"], "canary-device");
            }
            other => panic!("{other}"),
        }
        assert!(form["resource"].ends_with("/mcp"), "{form:?}");
        let number = self.issued.len();
        let (access, refresh) =
            (format!("canary-access-{number}"), format!("canary-refresh-{number}"));
        self.issued.extend([access.clone(), refresh.clone()]);
        self.valid.insert(access.clone());
        self.refresh = Some(refresh.clone());
        json_body(
            200,
            &json!({"access_token": access, "token_type": "Bearer", "expires_in": self.lifetime,
                "refresh_token": refresh, "scope": "read"}),
        )
    }
}

/// A folder with a gateway's configuration.
fn folder(upstream: &Upstream, login: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("library")).unwrap();
    write_greeting(&folder.path().join("library"), "Greets.");
    let toml = format!(
        "[server]\nseal_key = {{ value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }}\n\
         [telemetry]\nlog = \"warn,promptgate::app=info\"\n\
         [upstreams.library]\ntransport = \"library\"\npath = \"library\"\n\
         {}credential = {{ login = {{ {login} }} }}\n",
        upstream.patient_table("wiki")
    );
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    folder
}

/// `promptgate login`, up to the address that it prints.
struct Login {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    url: Url,
}

impl Login {
    async fn begin(folder: &Path, arguments: &[&str]) -> Self {
        let arguments = [&["login", "wiki", "--no-browser"], arguments].concat();
        let mut child = spawn(folder, &arguments);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        let url = Url::parse(&first.expect("it prints an address")).unwrap();
        Self { child, lines, url }
    }

    /// Opens the page of the authorization server, and returns where it sends the browser.
    async fn agree(&self) -> Url {
        let page = browse(&self.url).await;
        assert_eq!(page.status, 302);
        Url::parse(page.header("location").unwrap()).unwrap()
    }

    /// Waits for its end; returns whether it succeeded, and what it said.
    async fn ended(mut self) -> (bool, String) {
        let mut text = String::new();
        while let Some(line) = timeout(PATIENCE, self.lines.next_line()).await.unwrap().unwrap() {
            text += &line;
        }
        let mut errors = self.child.stderr.take().unwrap();
        timeout(PATIENCE, errors.read_to_string(&mut text)).await.unwrap().unwrap();
        let status = timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap();
        (status.success(), text)
    }
}

fn spawn(folder: &Path, arguments: &[&str]) -> Child {
    let mut command = tokio::process::Command::from(command(folder, arguments));
    command.stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command.kill_on_drop(true).spawn().unwrap()
}

/// Asks for a page as a browser does, without following redirects.
async fn browse(url: &Url) -> Reply {
    browse_as(url, url.authority()).await
}

/// The same under another name for the address.
async fn browse_as(url: &Url, host: &str) -> Reply {
    let address = url.socket_addrs(|| None).unwrap()[0];
    let mut stream = TcpStream::connect(address).await.unwrap();
    let path = format!("{}?{}", url.path(), url.query().unwrap_or_default());
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let reading = async {
        loop {
            let reply = Reply::parse(&answer);
            let length = |reply: &Reply| reply.header("content-length")?.parse::<usize>().ok();
            match reply {
                Some(reply) if length(&reply).is_none_or(|l| reply.body.len() >= l) => {
                    return reply;
                }
                _ => assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "a whole page"),
            }
        }
    };
    timeout(PATIENCE, reading).await.expect("a page in time")
}

/// Signs in, as a person would.
async fn sign_in(folder: &Path) {
    let login = Login::begin(folder, &[]).await;
    let page = browse(&login.agree().await).await;
    assert_eq!(page.status, 200);
    let html = String::from_utf8_lossy(&page.body).into_owned();
    assert!(html.contains("<h1>Signed in</h1>"), "{html}");
    let (succeeded, text) = login.ended().await;
    assert!(succeeded && text.starts_with("Signed in to wiki at http://127.0.0.1"), "{text}");
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Runs a command while the upstream answers it.
async fn ran(folder: &Path, arguments: &[&str]) -> Output {
    let ended = spawn(folder, arguments).wait_with_output();
    timeout(PATIENCE, ended).await.expect("it ends").unwrap()
}

fn logins(folder: &Path) -> Value {
    let output = run(folder, &["logins", "--json"]);
    serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone()
}

async fn failure(admin: &Client) -> Value {
    let upstreams = admin.send("GET", "/api/v1/upstreams", &[], b"").await.json();
    let rows = upstreams["upstreams"].as_array().unwrap().clone();
    rows.into_iter().find(|row| row["upstream"] == "wiki").unwrap()
}

async fn reason(client: &Client) -> Value {
    let answer = client.modern("prompts/get", json!({"name": "wiki__p"})).await.json();
    answer["error"]["data"]["reason"].clone()
}

/// Waits until the gateway serves the wiki.
async fn served(gateway: &Process) {
    let client = gateway.client();
    let get = async || client.modern("prompts/get", json!({"name": "wiki__p"})).await.json();
    eventually(get, |answer| answer["result"]["messages"].is_array()).await;
}

/// All files below a folder, as one text.
fn files(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            all += &files(&entry.path());
        } else if let Ok(bytes) = std::fs::read(entry.path()) {
            all += &String::from_utf8_lossy(&bytes);
        }
    }
    all
}

#[tokio::test]
async fn an_operator_signs_in_once_for_a_gateway_that_runs() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    let (gateway, admin) = Process::serve_admin(folder.path(), &[]).await;
    let failed = eventually(async || failure(&admin).await, |row| row["state"] == "down").await;
    assert!(failed.to_string().contains("promptgate login wiki"), "{failed}");
    assert_eq!(logins(folder.path())["state"], "needs a sign-in");
    let missing = "promptgate_upstream_login_missing";
    assert_eq!(metrics(&admin, &[missing]).await.values().next(), Some(&1.0));
    assert!(upstream.received().is_empty(), "an upstream is not asked without a token");
    let dialed = text(&ran(folder.path(), &["check", "--dial"]).await);
    assert!(dialed.contains("promptgate login wiki"), "{dialed}");

    sign_in(folder.path()).await;
    served(&gateway).await;
    assert_eq!(logins(folder.path())["state"], "valid");
    assert_eq!(metrics(&admin, &[missing]).await.values().next(), Some(&0.0));
    let registered = upstream.received().into_iter().find(|asked| asked.path == "/register");
    let message = registered.unwrap().message;
    assert_eq!(message["application_type"], "native");
    assert!(message["redirect_uris"][0].as_str().unwrap().starts_with("http://127.0.0.1:"));
    let all = files(folder.path());
    for canary in &wiki.state().issued {
        assert!(!all.contains(canary.as_str()), "{canary} is on the disk");
    }
    assert!(all.contains("\"event\":\"login_failed\"") && all.contains("\"reason\":\"no_grant\""));
    assert!(all.contains("\"event\":\"login_changed\",\"upstream\":\"wiki\""));
    gateway.stop().await;
    // The next gateway needs neither a person nor the provider.
    wiki.state().broken = Some(503);
    let (gateway, _) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
}

#[tokio::test]
async fn tokens_are_renewed_ahead_and_a_refresh_token_is_used_once_by_two_replicas() {
    let wiki = Wiki::lasting(4);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let audit = [("PROMPTGATE__AUDIT__PATH", "audit-b")];
    let (first, _) = Process::serve_admin(folder.path(), &[]).await;
    let (second, _) = Process::serve_admin(folder.path(), &audit).await;
    served(&first).await;
    served(&second).await;
    let clients = [first.client(), second.client()];
    let renewals = async || {
        for client in &clients {
            let answer = client.modern("prompts/get", json!({"name": "wiki__p"})).await.json();
            assert!(answer["result"]["messages"].is_array(), "{answer}");
        }
        wiki.state().issued.iter().filter(|token| token.contains("refresh")).count()
    };
    eventually(renewals, |count| *count >= 3).await;
    assert!(!wiki.state().reused, "a refresh token was sent twice");
}

#[tokio::test]
async fn a_sign_in_that_the_provider_ends_is_said_and_repaired_by_another() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let (gateway, admin) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
    {
        let mut state = wiki.state();
        state.refresh = None;
        state.valid.clear();
    }
    let client = gateway.client();
    eventually(async || reason(&client).await, |reason| reason == "grant_refused").await;
    assert_eq!(logins(folder.path())["state"], "ended by the provider");
    let asked = upstream.received().iter().filter(|asked| asked.path == "/token").count();
    reason(&client).await;
    let row = eventually(async || failure(&admin).await, |row| !row["error"].is_null()).await;
    assert!(row.to_string().contains("promptgate login wiki"), "{row}");
    let again = upstream.received().iter().filter(|asked| asked.path == "/token").count();
    assert_eq!(asked, again, "a sign-in that has ended is not tried again");
    sign_in(folder.path()).await;
    served(&gateway).await;
}

#[tokio::test]
async fn a_provider_that_is_away_is_another_reason_and_needs_no_sign_in() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let (gateway, _) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
    {
        let mut state = wiki.state();
        state.valid.clear();
        state.broken = Some(503);
    }
    let client = gateway.client();
    eventually(async || reason(&client).await, |reason| reason == "provider_unavailable").await;
    assert_eq!(logins(folder.path())["state"], "valid");
    wiki.state().broken = None;
    served(&gateway).await;
}

#[tokio::test]
async fn a_sign_out_ends_the_use_at_once_and_tells_the_provider() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let (gateway, _) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
    let output = ran(folder.path(), &["logout", "wiki"]).await;
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("Its provider has ended the sign-in"), "{}", text(&output));
    let revoked = wiki.state().revoked.clone();
    assert_eq!(revoked.len(), 2, "{revoked:?}");
    assert!(revoked[0].contains("refresh") && revoked[1].contains("access"));
    let client = gateway.client();
    eventually(async || reason(&client).await, |reason| reason == "no_grant").await;
    let again = ran(folder.path(), &["logout", "wiki"]).await;
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again).contains("Nobody has signed in"), "{}", text(&again));
}

#[tokio::test]
async fn a_provider_without_revocation_is_named() {
    let wiki = Wiki::lasting(3600);
    wiki.state().metadata = json!({"revocation_endpoint": null});
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let said = text(&ran(folder.path(), &["logout", "wiki"]).await);
    assert!(said.contains("advertises no revocation"), "{said}");
    assert!(wiki.state().revoked.is_empty());
}

#[tokio::test]
async fn an_address_can_be_pasted_and_a_device_be_used() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "client_id = \"known\", scope = \"read\"");
    let mut login = Login::begin(folder.path(), &[]).await;
    let pairs: HashMap<_, _> = login.url.query_pairs().into_owned().collect();
    assert_eq!(pairs["client_id"], "known");
    assert_eq!(pairs["scope"], "read offline_access");
    let back = login.agree().await;
    let mut input = login.child.stdin.take().unwrap();
    input.write_all(format!("\nnothing\n{back}\n").as_bytes()).await.unwrap();
    let (succeeded, said) = login.ended().await;
    assert!(succeeded, "{said}");
    assert!(said.contains("An answer was refused"), "{said}");
    assert!(upstream.received().iter().all(|asked| asked.path != "/register"));

    wiki.state().pending = 2;
    let output = ran(folder.path(), &["login", "wiki", "--device"]).await;
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("WDJB-MJHT"), "{}", text(&output));
    assert_eq!(logins(folder.path())["state"], "valid");
}

#[tokio::test]
async fn a12_answers_that_belong_to_no_request_sign_nobody_in() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    let login = Login::begin(folder.path(), &[]).await;
    let back = login.agree().await;
    let with = |name: &str, value: &str| {
        let mut url = back.clone();
        let pairs: Vec<_> = back.query_pairs().into_owned().collect();
        url.query_pairs_mut().clear().extend_pairs(
            pairs.iter().map(|(key, own)| (key, if key == name { value } else { own.as_str() })),
        );
        url
    };
    let mut elsewhere = back.clone();
    elsewhere.set_path("/other");
    let mut empty = back.clone();
    empty.set_query(Some("x=1"));
    for (attack, status) in [(with("state", "guessed"), 400), (elsewhere, 404), (empty, 400)] {
        assert_eq!(browse(&attack).await.status, status, "{attack}");
    }
    let rebound = browse_as(&back, "evil.example").await;
    assert_eq!(rebound.status, 404, "another name for this address");

    // A code of another sign-in is of no use: its challenge is another.
    let other = Login::begin(folder.path(), &[]).await;
    let stolen = other.agree().await;
    let code = stolen.query_pairs().find(|(name, _)| name == "code").unwrap().1.into_owned();
    assert_eq!(browse(&with("code", &code)).await.status, 400);
    let (succeeded, said) = login.ended().await;
    assert!(!succeeded && said.contains("invalid_grant"), "{said}");
    drop(other);

    for (change, expected) in [
        ("https://evil.example", "another authorization server"),
        ("", "another authorization server"),
    ] {
        wiki.state().named_issuer = Some(change.to_owned());
        let login = Login::begin(folder.path(), &[]).await;
        assert_eq!(browse(&login.agree().await).await.status, 400);
        let (succeeded, said) = login.ended().await;
        assert!(!succeeded && said.contains(expected), "{said}");
    }
    wiki.state().named_issuer = None;
    let login = Login::begin(folder.path(), &[]).await;
    let mut denied = login.agree().await;
    let state = denied.query_pairs().find(|(name, _)| name == "state").unwrap().1.into_owned();
    let issuer = denied.query_pairs().find(|(name, _)| name == "iss").unwrap().1.into_owned();
    denied
        .query_pairs_mut()
        .clear()
        .append_pair("error", "access_denied")
        .append_pair("state", &state)
        .append_pair("iss", &issuer);
    assert_eq!(browse(&denied).await.status, 400);
    let (succeeded, said) = login.ended().await;
    assert!(!succeeded && said.contains("access was denied"), "{said}");
    assert!(!folder.path().join("grants/wiki.grant").exists());
}

#[tokio::test]
async fn a12_a_provider_that_cannot_be_trusted_gets_no_browser() {
    for (metadata, expected) in [
        (json!({"code_challenge_methods_supported": ["plain"]}), "S256"),
        (json!({"code_challenge_methods_supported": null}), "S256"),
        (json!({"authorization_endpoint": "javascript:alert(1)"}), "authorization_endpoint"),
        (json!({"token_endpoint": "http://169.254.169.254/token"}), "token_endpoint"),
        (json!({"issuer": "https://evil.example"}), "issuer"),
        (json!({"registration_endpoint": "http://10.0.0.1/register"}), "set client_id"),
    ] {
        let wiki = Wiki::lasting(3600);
        wiki.state().metadata = metadata.clone();
        let upstream = wiki.start().await;
        let folder = folder(&upstream, "");
        let output = ran(folder.path(), &["login", "wiki", "--no-browser"]).await;
        assert_eq!(output.status.code(), Some(1), "{metadata}");
        assert!(text(&output).contains(expected), "{metadata}: {}", text(&output));
        assert!(output.stdout.is_empty(), "{}", text(&output));
    }
}

#[tokio::test]
async fn a_scope_that_the_operator_has_not_granted_is_named() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let (gateway, _) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
    wiki.state().lacking = Some("write");
    assert_eq!(reason(&gateway.client()).await, "scope_refused");
    wiki.state().lacking = None;
    served(&gateway).await;
}

#[tokio::test]
async fn commands_say_what_is_wrong_with_an_upstream() {
    let upstream = Wiki::default().start().await;
    let folder = folder(&upstream, "");
    for (arguments, expected) in [
        (["login", "nowhere"], "There is no enabled upstream"),
        (["login", "library"], "takes no sign-in"),
        (["logout", "wiki"], "Nobody has signed in to wiki"),
    ] {
        let output = run(folder.path(), &arguments);
        assert!(!output.status.success());
        assert!(text(&output).contains(expected), "{}", text(&output));
    }
}

#[tokio::test]
async fn a_sign_in_that_cannot_be_kept_does_not_begin() {
    let upstream = Wiki::default().start().await;
    let folder = folder(&upstream, "");
    std::fs::write(folder.path().join("grants"), "a file where the folder should be").unwrap();
    let output = run(folder.path(), &["login", "wiki", "--no-browser"]);
    assert!(!output.status.success() && text(&output).contains("grants"), "{}", text(&output));
    assert_eq!(upstream.methods(), Vec::<String>::new());
}
