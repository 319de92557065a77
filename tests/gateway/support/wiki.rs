//! An upstream that lets in users only, its authorization server, and an operator who signs in.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;
use url::Url;

use super::client::{Client, Reply};
use super::process::{Process, command, run};
use super::upstream::good_modern;
use super::{PATIENCE, Received, Scripted, Upstream, eventually};

/// An upstream that lets in users only, and its authorization server.
#[derive(Clone, Default)]
pub struct Wiki(Arc<Mutex<State>>);

#[derive(Default)]
pub struct State {
    /// Codes that were issued and not used: their challenges, clients and redirect URIs.
    pub codes: HashMap<String, (String, String, String)>,
    /// Access tokens that the upstream takes.
    pub valid: HashSet<String>,
    /// The refresh token that may be used next.
    pub refresh: Option<String>,
    /// All tokens and codes that were ever issued.
    pub issued: Vec<String>,
    /// Seconds of an access token.
    pub lifetime: u64,
    pub revoked: Vec<String>,
    /// The status of the token endpoint, unless it works.
    pub broken: Option<u16>,
    /// A refresh token was used twice.
    pub reused: bool,
    /// `authorization_pending` answers before the device is let in.
    pub pending: usize,
    /// Parameters of the metadata that differ.
    pub metadata: Value,
    /// The issuer that the redirect names; by default the true one.
    pub named_issuer: Option<String>,
    /// The scope that the upstream wants and no token has.
    pub lacking: Option<&'static str>,
    /// Called once, while a refresh token is used.
    pub at_renewal: Option<Box<dyn FnOnce() + Send>>,
}

impl State {
    /// How often tokens were issued.
    pub fn issues(&self) -> usize {
        self.issued.iter().filter(|token| token.contains("refresh")).count()
    }
}

fn json_body(status: u16, value: &Value) -> Scripted {
    let headers = vec![("Content-Type", "application/json".to_owned())];
    Scripted::Http(status, headers, value.to_string().into_bytes())
}

fn form(asked: &Received) -> HashMap<String, String> {
    url::form_urlencoded::parse(asked.body_text().as_bytes()).into_owned().collect()
}

impl Wiki {
    /// With access tokens that last so many seconds.
    pub fn lasting(lifetime: u64) -> Self {
        let wiki = Self::default();
        wiki.state().lifetime = lifetime;
        wiki
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub async fn start(&self) -> Upstream {
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
                if let Some(at_renewal) = self.at_renewal.take() {
                    at_renewal();
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

/// `promptgate login`, up to the address that it prints.
pub struct Login {
    pub child: Child,
    pub lines: Lines<BufReader<ChildStdout>>,
    pub url: Url,
}

impl Login {
    pub async fn begin(folder: &Path, arguments: &[&str]) -> Self {
        let arguments = [&["login", "wiki", "--no-browser"], arguments].concat();
        let mut child = spawn(folder, &arguments);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        let url = Url::parse(&first.expect("it prints an address")).unwrap();
        Self { child, lines, url }
    }

    /// Opens the page of the authorization server, and returns where it sends the browser.
    pub async fn agree(&self) -> Url {
        let page = browse(&self.url).await;
        assert_eq!(page.status, 302);
        Url::parse(page.header("location").unwrap()).unwrap()
    }

    /// Waits for its end; returns whether it succeeded, and what it said.
    pub async fn ended(mut self) -> (bool, String) {
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

pub fn spawn(folder: &Path, arguments: &[&str]) -> Child {
    let mut command = tokio::process::Command::from(command(folder, arguments));
    command.stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command.kill_on_drop(true).spawn().unwrap()
}

/// Asks for a page as a browser does, without following redirects.
pub async fn browse(url: &Url) -> Reply {
    browse_as(url, url.authority()).await
}

/// The same under another name for the address.
pub async fn browse_as(url: &Url, host: &str) -> Reply {
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
pub async fn sign_in(folder: &Path) {
    let login = Login::begin(folder, &[]).await;
    let page = browse(&login.agree().await).await;
    assert_eq!(page.status, 200);
    let html = String::from_utf8_lossy(&page.body).into_owned();
    assert!(html.contains("<h1>Signed in</h1>"), "{html}");
    let (succeeded, text) = login.ended().await;
    assert!(succeeded && text.starts_with("Signed in to wiki at http://127.0.0.1"), "{text}");
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Runs a command while the upstream answers it.
pub async fn ran(folder: &Path, arguments: &[&str]) -> Output {
    let ended = spawn(folder, arguments).wait_with_output();
    timeout(PATIENCE, ended).await.expect("it ends").unwrap()
}

pub fn logins(folder: &Path) -> Value {
    let output = run(folder, &["logins", "--json"]);
    serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone()
}

pub async fn failure(admin: &Client) -> Value {
    let upstreams = admin.send("GET", "/api/v1/upstreams", &[], b"").await.json();
    let rows = upstreams["upstreams"].as_array().unwrap().clone();
    rows.into_iter().find(|row| row["upstream"] == "wiki").unwrap()
}

pub async fn reason(client: &Client) -> Value {
    let answer = client.modern("prompts/get", json!({"name": "wiki__p"})).await.json();
    answer["error"]["data"]["reason"].clone()
}

/// Waits until the gateway serves the wiki.
pub async fn served(gateway: &Process) {
    let client = gateway.client();
    let get = async || client.modern("prompts/get", json!({"name": "wiki__p"})).await.json();
    eventually(get, |answer| answer["result"]["messages"].is_array()).await;
}

/// All files below a folder, as one text.
pub fn files(folder: &Path) -> String {
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
