//! `promptgate login`, `logins` and `logout`: the operator's sign-ins for upstreams.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::cli::shared::args::{LoginArgs, Logout, Output};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::load::load;
use crate::cli::shared::output::{Column, print, printable, table_or};
use crate::cli::shared::runtime::runtime;
use cluster::SharedLogins;
use config::{Config, Http};
use domain::address_policy::AddressPolicy;
use domain::time::unix_time::UnixSeconds;
use logins::StoredLogin;
use logins::sign_in::Provider;
use logins::sign_in::callback::{Arrival, Callback};
use logins::sign_in::device::DeviceFlow;
use logins::sign_in::flow::CodeFlow;
use logins::store::{LoginBackend, LoginStoreError};
use net::egress::{CONNECT, Egress};
use oauth::client::address_policy;
use oauth::code::NoCode;
use shutdown::Supervisor;

/// The time that the operator has in the browser: enough to look for a second factor.
const PATIENCE: Duration = Duration::from_secs(600);

/// Timeout of the revocation of a sign-in at the provider.
const REVOCATION: Duration = Duration::from_secs(20);

/// Signs in to an upstream, and stores the grant of its provider.
pub(crate) fn run(options: &LoginArgs) -> Result<(), Failure> {
    let config = load(&options.file.config)?;
    let upstream = upstream(&config, &options.upstream)?;
    let runtime = runtime()?;
    let granted = runtime.block_on(async {
        let store = store(upstream.login, shared_logins(&config)?)?;
        // A sign-in that could not be stored is not begun.
        store.lock(&options.upstream).await.map_err(unkept)?.release().await;
        let login = sign_in(options, &upstream).await?;
        // A renewal of the previous login would overwrite this one.
        let lock = store.lock(&options.upstream).await.map_err(unkept)?;
        let written = lock.write(&login).await;
        lock.release().await;
        written.map_err(unkept)?;
        Ok::<_, Failure>(login)
    });
    // A read from standard input is still pending.
    runtime.shutdown_background();
    let login = granted?;
    let until = match (&login.refresh_token, login.expires_at) {
        (Some(_), _) => "its access tokens are renewed by the gateway".to_owned(),
        (None, Some(at)) => {
            format!("until {}: the provider issued no refresh token", time(at))
        }
        (None, None) => "the provider tells no end".to_owned(),
    };
    let scope = login.scope.as_deref().map(|scope| format!(" with the scope {}", printable(scope)));
    print(&format!(
        "Signed in to {} at {}{}; {until}. A running gateway takes this over by itself.",
        options.upstream,
        printable(&login.issuer),
        scope.unwrap_or_default()
    ))
}

/// Lists the sign-ins of all upstreams that need one.
pub(crate) fn list(path: &Path, output: &Output) -> Result<(), Failure> {
    let config = load(path)?;
    let now = UnixSeconds::from(SystemTime::now());
    let rows = runtime()?.block_on(async {
        let shared = shared_logins(&config)?;
        let mut rows = Vec::new();
        for upstream in &config.upstreams {
            if let (Some(login), Some(http)) = (upstream.login(), upstream.http()) {
                rows.push(row(&store(login, shared.clone())?, login, http, now).await?);
            }
        }
        Ok::<_, Failure>(rows)
    })?;
    let text = table_or(NONE, &COLUMNS, &rows);
    output.print(&Value::from(rows), &text)
}

const COLUMNS: [Column; 6] = [
    Column::new("UPSTREAM", "upstream"),
    Column::new("STATE", "state"),
    Column::new("ISSUER", "issuer"),
    Column::new("SCOPE", "scope"),
    Column::new("SIGNED IN", "signedInAt"),
    Column::new("RENEWED", "renewedAt"),
];

const NONE: &str = "No upstream needs a sign-in: none has credential = { login = … }.";

async fn row(
    store: &LoginBackend,
    login: &config::Login,
    http: &Http,
    now: UnixSeconds,
) -> Result<Value, Failure> {
    let id = &login.upstream;
    Ok(match store.read(id).await {
        Ok(None) => json!({"upstream": id, "state": "needs a sign-in",
            "repair": format!("promptgate login {id}")}),
        Ok(Some(login)) => {
            let state = login.state(&http.url, now);
            let mut row = json!({"upstream": id, "state": state.as_str(), "issuer": login.issuer,
                "clientId": login.client_id, "scope": login.scope,
                "signedInAt": time(login.signed_in_at), "renewedAt": time(login.renewed_at),
                "expiresAt": login.refresh_expires_at.map(time),
                "isRenewed": login.refresh_token.is_some()});
            if state.needs_login() {
                row["repair"] = json!(format!("promptgate login {id}"));
                row["why"] = json!(login.ended);
            }
            row
        }
        // The store holds all sign-ins, so the others would fail, too.
        Err(error @ LoginStoreError::Cluster(_)) => return Err(unkept(error)),
        Err(error) => json!({"upstream": id, "state": "unreadable", "why": error.to_string(),
            "repair": format!("promptgate login {id}")}),
    })
}

/// Ends a sign-in: at the provider, where it supports revocation, and here.
pub(crate) fn end(options: &Logout) -> Result<(), Failure> {
    let config = load(&options.file.config)?;
    let upstream = upstream(&config, &options.upstream)?;
    let id = &options.upstream;
    let told = runtime()?.block_on(async {
        let login = remove(&store(upstream.login, shared_logins(&config)?)?, id).await?;
        Ok::<_, Failure>(match &login {
            Some(login) => revoke(login, upstream.http).await,
            None => Ok(false),
        })
    })?;
    print(&match told {
        Ok(true) => format!("Signed out of {id}. Its provider has ended the sign-in."),
        Ok(false) => format!(
            "Signed out of {id} here. Its provider advertises no revocation (RFC 7009): end the sign-in there, too."
        ),
        Err(why) => format!(
            "Signed out of {id} here. Its provider could not be told: {}. End the sign-in there, too.",
            printable(&why)
        ),
    })
}

/// Removes the login of an upstream, and returns it, unless it cannot be opened.
async fn remove(store: &LoginBackend, id: &str) -> Result<Option<StoredLogin>, Failure> {
    // Without the lock, a simultaneous renewal would leave new tokens behind: only the replaced
    // tokens would be revoked.
    let lock = store.lock(id).await.map_err(unkept)?;
    let removing = async {
        let login = match store.read(id).await {
            Ok(Some(login)) => Some(login),
            Ok(None) => return Err(Failure::new(format!("Nobody has signed in to {id}."))),
            // A grant that cannot be opened can still be removed.
            Err(error @ LoginStoreError::Unreadable { .. }) => {
                eprintln!("{error}");
                None
            }
            Err(error) => return Err(unkept(error)),
        };
        // Removed first: whatever the provider answers, the gateway stops using the login.
        lock.remove().await.map_err(unkept)?;
        Ok(login)
    };
    let removed = removing.await;
    lock.release().await;
    removed
}

async fn revoke(login: &StoredLogin, http: &Http) -> Result<bool, String> {
    let policy = address_policy(false, &http.url);
    let egress = Egress::new(CONNECT, http.ca.as_deref(), policy, http.proxies.as_ref())?;
    match timeout(REVOCATION, login.revoke(&egress)).await {
        Ok(told) => told.map_err(|refusal| refusal.detail),
        Err(_) => Err("no response in time".to_owned()),
    }
}

/// An upstream that the operator signs in for.
struct LoginTarget<'a> {
    login: &'a config::Login,
    http: &'a Http,
    /// URL of the gateway's client document, if others can read it.
    document: Option<String>,
}

fn upstream<'a>(config: &'a Config, id: &str) -> Result<LoginTarget<'a>, Failure> {
    let upstream = config.upstreams.iter().find(|upstream| upstream.id.as_str() == id);
    let upstream = upstream.ok_or_else(|| {
        Failure::usage(format!("There is no enabled upstream {}.", printable(&format!("{id:?}"))))
    })?;
    match (upstream.login(), upstream.http()) {
        (Some(login), Some(http)) => {
            Ok(LoginTarget { login, http, document: config.server.client_document() })
        }
        _ => Err(Failure::usage(format!(
            "Upstream {id} takes no sign-in: set credential = {{ login = {{}} }} in [upstreams.{id}]."
        ))),
    }
}

pub(crate) fn store(
    login: &config::Login,
    shared: Option<Arc<SharedLogins>>,
) -> Result<LoginBackend, Failure> {
    let kept = login.kept.as_deref();
    kept.map(|kept| LoginBackend::new(kept, shared))
        .ok_or_else(|| Failure::usage("server.seal_key is not set"))
}

/// The sign-ins in the store of the cluster, for as long as the runtime lives; `None` without a
/// cluster.
pub(crate) fn shared_logins(config: &Config) -> Result<Option<Arc<SharedLogins>>, Failure> {
    let cluster = config.cluster.clone();
    let supervisor = Supervisor::new(TaskTracker::new(), CancellationToken::new());
    let alone = |cluster| SharedLogins::alone(cluster, &supervisor);
    cluster.map(alone).transpose().map_err(Failure::new)
}

fn unkept(error: LoginStoreError) -> Failure {
    Failure::new(error.to_string())
}

async fn sign_in(options: &LoginArgs, upstream: &LoginTarget<'_>) -> Result<StoredLogin, Failure> {
    let provider = Provider::discover(upstream.http).await.map_err(failed)?;
    let provider = provider.asked_for(upstream.login.resource.as_deref());
    if options.device {
        let client = provider.client(upstream.login, None, None).await.map_err(failed)?;
        let scope = options.scope.as_deref().or(upstream.login.scope.as_deref());
        let flow = DeviceFlow::begin(provider, &options.upstream, client, scope).await;
        return on_device(flow.map_err(failed)?).await;
    }
    let (callback, mut arrivals) =
        Callback::listen(options.port.unwrap_or(0)).await.map_err(|error| {
            Failure::new(format!("cannot listen on 127.0.0.1 for the browser: {error}"))
        })?;
    let redirect_uri = callback.redirect_uri();
    let document = match &upstream.document {
        Some(url) if is_served(url, upstream.http).await => Some(url.as_str()),
        _ => None,
    };
    let client = provider.client(upstream.login, document, Some(&redirect_uri)).await;
    let scope = options.scope.as_deref().or(upstream.login.scope.as_deref());
    let client = client.map_err(failed)?;
    let flow = CodeFlow::begin(provider, &options.upstream, client, scope, redirect_uri);
    let flow = flow.map_err(failed)?;
    let url = flow.url().ok_or_else(|| Failure::new("the authorization endpoint is no URL"))?;
    let opened = !options.no_browser && open(&url).await;
    if opened {
        eprintln!("Your browser opens a page of {}. If it does not, open:", host(&url));
    } else {
        eprintln!("Open this page of {} in a browser:", host(&url));
    }
    print(url.as_str())?;
    if io::stdin().is_terminal() {
        eprintln!(
            "If the browser is on another machine, paste here the address that it shows at the end, beginning with \
             http://127.0.0.1."
        );
    }
    let tasks = TaskTracker::new();
    let ended = tokio::select! {
        ended = timeout(PATIENCE, finish(flow, &mut arrivals)) => ended,
        never = callback.serve(&tasks) => match never {},
    };
    tasks.close();
    // The browser reads its last page.
    let _ = timeout(Duration::from_secs(2), tasks.wait()).await;
    ended.unwrap_or_else(|_| Err(Failure::new("Nobody signed in within ten minutes. Start again.")))
}

/// Waits for the browser, or for a pasted address, and exchanges the code.
async fn finish(
    flow: CodeFlow,
    arrivals: &mut mpsc::Receiver<Arrival>,
) -> Result<StoredLogin, Failure> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut has_input = true;
    let (code, arrival) = loop {
        let (query, arrival) = tokio::select! {
            Some(arrival) = arrivals.recv() => (arrival.query.clone(), Some(arrival)),
            line = lines.next_line(), if has_input => match line {
                Ok(Some(line)) if line.trim().is_empty() => continue,
                Ok(Some(line)) => (query_of(&line), None),
                Ok(None) | Err(_) => {
                    has_input = false;
                    continue;
                }
            },
        };
        match flow.code(&query) {
            Ok(code) => break (code, arrival),
            Err(why) => {
                if let Some(arrival) = arrival {
                    arrival.refuse(&sentence(&why));
                }
                // Any page can send a browser here: a response to another request does not end this
                // one.
                if !matches!(why, NoCode::OtherRequest | NoCode::Malformed) {
                    return Err(failed(why.to_string()));
                }
                eprintln!("An answer was refused: {why}. Still waiting.");
            }
        }
    };
    let upstream = flow.upstream().to_owned();
    let granted = flow.finish(code).await;
    if let Some(arrival) = arrival {
        match &granted {
            Ok(_) => arrival.succeed(&upstream),
            Err(_) => arrival.refuse("The authorization server did not issue a token"),
        }
    }
    granted.map_err(failed)
}

fn sentence(why: &NoCode) -> String {
    match why {
        NoCode::Malformed => "This address is not that of an answer".to_owned(),
        NoCode::OtherRequest => "This answer belongs to another sign-in".to_owned(),
        NoCode::OtherIssuer { named, expected } => {
            format!(
                "This answer is of another authorization server, {named:?}, not of {expected:?}"
            )
        }
        NoCode::Denied => "Access was denied".to_owned(),
        NoCode::Refused(_) => "The authorization server refused".to_owned(),
    }
}

/// Returns the query of a pasted address; for any other text, the text itself.
fn query_of(line: &str) -> String {
    let line = line.trim();
    let url = Url::parse(line).ok();
    url.and_then(|url| url.query().map(str::to_owned)).unwrap_or_else(|| line.to_owned())
}

async fn on_device(flow: DeviceFlow) -> Result<StoredLogin, Failure> {
    let at = flow.complete_uri.as_ref().unwrap_or(&flow.verification_uri);
    print(&format!(
        "Open {} on any device, and check or type the code {}",
        printable(at),
        printable(&flow.user_code)
    ))?;
    flow.finish().await.map_err(failed)
}

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::new(format!("Not signed in: {}", printable(&why.to_string())))
}

fn time(at: u64) -> String {
    humantime::format_rfc3339_seconds(UnixSeconds(at).writable().into()).to_string()
}

/// The host of a URL, for a sentence.
fn host(url: &Url) -> String {
    printable(url.host_str().unwrap_or_default())
}

/// Whether the client document is served at its URL: an authorization server would read it there.
async fn is_served(url: &str, http: &Http) -> bool {
    let (ca, proxies) = (http.ca.as_deref(), http.proxies.as_ref());
    let Ok(egress) = Egress::new(CONNECT, ca, AddressPolicy::NotLinkLocal, proxies) else {
        return false;
    };
    let Ok(uri) = url.parse() else { return false };
    let document = egress.get_json(&uri).await;
    document.is_ok_and(|document| document["client_id"] == url)
}

/// Opens a page with the program in `BROWSER`, or with that of the system. Returns whether a
/// program was started.
async fn open(url: &Url) -> bool {
    let program = std::env::var_os("BROWSER").filter(|program| !program.is_empty());
    let system: &[&str] = match std::env::consts::OS {
        "macos" => &["open"],
        "windows" => &["rundll32", "url.dll,FileProtocolHandler"],
        _ => &["xdg-open"],
    };
    let program = program.map(|program| vec![program]);
    let program = program.unwrap_or_else(|| system.iter().map(Into::into).collect());
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    // The authorization server chooses the URL: it is passed as one argument, without a shell.
    command.arg(url.as_str()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    spawn_blocking(move || command.spawn().is_ok()).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pasted_address_is_read_as_the_browser_would_send_it() {
        assert_eq!(query_of(" http://127.0.0.1:7/callback?code=a&state=b\n"), "code=a&state=b");
        assert_eq!(query_of("code=a&state=b"), "code=a&state=b");
        assert_eq!(query_of("http://127.0.0.1:7/callback"), "http://127.0.0.1:7/callback");
    }
}
