//! `promptgate status`: shows the state of a running gateway and of its upstreams.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, IF_MATCH};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use serde_json::{Value, json};

use super::args::AdminApi;
use super::failure::Failure;
use super::output::CellKind::{Millis, Terminal};
use super::output::{Column, age, elements, printable, repaired, table};
use super::reach::Reach;
use super::runtime::runtime;
use config::{Proxies, is_https_or_loopback};
use domain::address_policy::AddressPolicy;
use net::egress::{CONNECT, Egress, FetchError};

/// Environment variable with the admin token. It is no argument, because every user of the machine
/// can read the arguments of a process.
const TOKEN_VARIABLE: &str = "PROMPTGATE_ADMIN_TOKEN";

pub(super) fn run(admin: &AdminApi) -> Result<(), Failure> {
    let url = Reach::admin_of(admin)?;
    let state = runtime()?.block_on(async {
        let egress = egress()?;
        let status = fetch(&egress, &url, "/api/v1/status").await?;
        let upstreams = fetch(&egress, &url, "/api/v1/upstreams").await?;
        let cluster = fetch(&egress, &url, "/api/v1/replicas").await;
        // An older gateway has no such document.
        let cluster = cluster.unwrap_or_default();
        let upstreams = &upstreams["upstreams"];
        let unnamed = match elements(upstreams).iter().any(|row| unlisted_count(row) > 0) {
            true => unnamed(&fetch(&egress, &url, "/api/v1/catalog").await?),
            false => Vec::new(),
        };
        Ok::<_, Failure>(json!({
            "status": status, "upstreams": upstreams, "cluster": cluster, "unnamed": unnamed
        }))
    })?;
    admin.output.print(&state, &text(&state))?;
    if state["status"]["ready"] == true {
        Ok(())
    } else {
        Err(Failure::new("the gateway is not ready"))
    }
}

/// Returns one document of the admin API.
pub(super) async fn fetch_once(url: &str, path: &str) -> Result<Value, Failure> {
    fetch(&egress()?, url, path).await
}

/// Posts a JSON document to the admin API, and returns the answer.
pub(super) async fn send_once(url: &str, path: &str, body: &Value) -> Result<Value, Failure> {
    request_once(&egress()?, url, path, post(path, body)).await
}

/// Posts a JSON document with `If-Match: tags`, and returns the answer.
pub(super) async fn send_if_match(
    url: &str,
    path: &str,
    tags: &str,
    body: &Value,
) -> Result<Value, Failure> {
    let mut request = post(path, body);
    request.headers_mut().insert(IF_MATCH, tag_header(tags)?);
    request_once(&egress()?, url, path, request).await
}

/// Puts a JSON document with `If-Match: tag`, and returns the answer.
pub(super) async fn put_if_match(
    url: &str,
    path: &str,
    tag: &str,
    body: &Value,
) -> Result<Value, Failure> {
    let mut request = post(path, body);
    *request.method_mut() = Method::PUT;
    request.headers_mut().insert(IF_MATCH, tag_header(tag)?);
    request_once(&egress()?, url, path, request).await
}

fn tag_header(tag: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(tag).map_err(|_| Failure::new("the gateway has sent a tag that is none"))
}

fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let mut request = Request::post(path).body(Full::from(body.to_string())).unwrap_or_default();
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    request
}

/// Whether the environment has the admin token.
pub(super) fn has_token() -> bool {
    std::env::var_os(TOKEN_VARIABLE).is_some_and(|token| !token.is_empty())
}

/// Returns a client for the admin API, with the proxies of the environment.
pub(super) fn egress() -> Result<Egress, Failure> {
    let proxies = Proxies::of_environment();
    let egress = Egress::new(CONNECT, None, AddressPolicy::NotLinkLocal, Some(&proxies));
    egress.map_err(Failure::new)
}

/// Largest document of the admin API, in bytes. A skill has up to 16 MiB of files, the document has
/// offered and approved files, and a byte takes up to six in JSON.
const MAX_DOCUMENT: usize = 256 << 20;

async fn fetch(egress: &Egress, url: &str, path: &str) -> Result<Value, Failure> {
    request_once(egress, url, path, Request::new(Full::default())).await
}

async fn request_once(
    egress: &Egress,
    url: &str,
    path: &str,
    mut request: Request<Full<Bytes>>,
) -> Result<Value, Failure> {
    let full = format!("{url}{path}");
    let uri: Uri = full.parse().map_err(|_| Failure::usage(format!("{url} is not a URL")))?;
    if let Ok(token) = std::env::var(TOKEN_VARIABLE) {
        if !is_https_or_loopback(&uri) {
            return Err(Failure::usage(format!(
                "{TOKEN_VARIABLE} is not sent to {url}, because the connection is not encrypted: \
                 use https, or a tunnel to loopback"
            )));
        }
        let invalid =
            format!("{TOKEN_VARIABLE} contains characters that an HTTP header must not contain");
        let value = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
        let value = value.map_err(|_| Failure::usage(invalid))?;
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    *request.uri_mut() = uri;
    egress.json_within(request, MAX_DOCUMENT).await.map_err(|error| {
        let hint = match &error {
            // An admin API gives the reason in `error`; this server gives none.
            FetchError::Status { status, error: None, .. } if status.is_client_error() => {
                "; this is no admin API, but perhaps the endpoint for clients (server.listen): \
                 give the URL of admin.listen"
                    .to_owned()
            }
            // A visitor without a token may have too low a role.
            FetchError::Status { status, error: Some(why), .. }
                if status.as_u16() == 401 || (why.contains("admin.token") && !has_token()) =>
            {
                format!("; set {TOKEN_VARIABLE} to the value of admin.token")
            }
            FetchError::Status { .. } | FetchError::NotJson => String::new(),
            FetchError::Broken(_) | FetchError::Timeout => {
                "; check that `promptgate serve` runs with this admin.listen".to_owned()
            }
        };
        Failure::new(format!("{full}: {error}{hint}"))
    })
}

/// The columns of the table of upstreams.
const COLUMNS: [Column; 13] = [
    Column::new("UPSTREAM", "upstream"),
    Column::new("TRANSPORT", "transport"),
    Column::new("STATE", "state"),
    Column::new("REVISION", "revision"),
    Column::new("LISTED", "listed"),
    Column::new("HELD", "held"),
    Column::new("AGE", "ageSecs").of(Terminal(age)),
    Column::new("IN FLIGHT", "inFlight"),
    Column::new("BREAKER", "breaker"),
    Column::new("P50", "lastHour.p50Ms").of(Millis),
    Column::new("P95", "lastHour.p95Ms").of(Millis),
    Column::new("FAILED", "lastHour").of(Terminal(failed)),
    Column::new("HTTP", "lastHour.httpStatus"),
];

/// The columns of the table of replicas.
const REPLICA_COLUMNS: [Column; 6] = [
    Column::new("REPLICA", "name"),
    Column::new("VERSION", "version"),
    Column::new("UP", "uptimeSecs").of(Terminal(age)),
    Column::new("SEEN", "seenMs").of(Terminal(millis_ago)),
    Column::new("CONFIGURATION", "configDigest").of(Terminal(short_digest)),
    Column::new("CATALOG", "catalogDigest").of(Terminal(short_digest)),
];

/// Formats how many of the calls of the last hour failed.
fn failed(hour: &Value) -> String {
    match hour["calls"].as_u64() {
        None | Some(0) => "-".to_owned(),
        Some(calls) => format!("{} of {calls}", hour["failures"]),
    }
}

/// Formats the time since something.
fn millis_ago(millis: &Value) -> String {
    millis.as_u64().map_or_else(String::new, |millis| format!("{millis} ms ago"))
}

/// Formats the first digits of a digest.
fn short_digest(digest: &Value) -> String {
    let digits = digest.as_str().and_then(|digest| digest.strip_prefix("sha256:"));
    digits.and_then(|digits| digits.get(..12)).unwrap_or("-").to_owned()
}

/// Describes the replicas; nothing if this one stands alone.
fn replicas_text(cluster: &Value) -> String {
    let rows = elements(&cluster["replicas"]);
    let mut out = String::new();
    if let Some(error) = cluster["error"].as_str() {
        let _ = write!(out, "\nthe store of the cluster is not available: {}\n", printable(error));
    }
    if !rows.is_empty() {
        let _ = write!(out, "\n{}\n", table(&REPLICA_COLUMNS, rows));
    }
    let others = [
        ("differing", "with another configuration file or another catalog"),
        ("unreadable", "with another server.seal_key: nothing is shared with them"),
    ];
    for (member, how) in others {
        if let Some(count) = cluster[member].as_u64().filter(|count| *count > 0) {
            let _ = writeln!(out, "  {count} {how}");
        }
    }
    out
}

/// Says how many prompts of an upstream wait for approval.
fn awaiting(row: &Value) -> Option<String> {
    let waiting = row["approvals"].as_str()?;
    Some(printable(&format!("{}: {waiting}", row["upstream"].as_str().unwrap_or_default())))
}

/// Returns a line for each upstream whose prompts wait for approval; empty if the admin API does
/// not answer.
pub(super) async fn waiting_lines(url: &str) -> Vec<String> {
    let upstreams = fetch_once(url, "/api/v1/upstreams").await.unwrap_or_default();
    elements(&upstreams["upstreams"]).iter().filter_map(awaiting).collect()
}

/// The elements of the list of an upstream that are neither listed nor held.
fn unlisted_count(row: &Value) -> u64 {
    let count = |member: &str| row[member].as_u64().unwrap_or_default();
    count("prompts").saturating_sub(count("listed") + count("held"))
}

/// Most elements without a name of one upstream whose reasons are shown.
const MAX_UNNAMED: usize = 10;

/// The left-out elements of a catalog without a name: most are no prompts, such as `labels.toml`.
fn unnamed(catalog: &Value) -> Vec<Value> {
    let left_out = elements(&catalog["leftOut"]).iter();
    left_out.filter(|one| one["name"] == "").cloned().collect()
}

/// Returns how many prompts of an upstream are not listed, and the reasons for elements without a
/// name.
fn unlisted(row: &Value, unnamed: &Value) -> Vec<String> {
    let upstream = row["upstream"].as_str().map(printable).unwrap_or_default();
    let own = elements(unnamed).iter().filter(|one| one["upstream"] == row["upstream"]);
    let reasons = own.filter_map(|one| one["reason"].as_str()).take(MAX_UNNAMED);
    let mut lines: Vec<_> =
        reasons.map(|reason| format!("{upstream}: {}", printable(reason))).collect();
    let without_name = lines.len() as u64;
    let count = unlisted_count(row).saturating_sub(without_name);
    if count > 0 {
        let has = row["prompts"].as_u64().unwrap_or_default().saturating_sub(without_name);
        let dial = if row["transport"] == "library" { "" } else { " --dial" };
        lines.push(format!(
            "{upstream}: {count} of {has} prompts are not listed; `promptgate check{dial}` says \
             which, unless an overlay drops them"
        ));
    }
    lines
}

fn text(state: &Value) -> String {
    let word = |value: &Value| value.as_str().map(printable).unwrap_or_default();
    let status = &state["status"];
    let readiness = if status["ready"] == true { "ready" } else { "not ready" };
    let verified = &status["auditVerified"];
    let verified_ago = match verified["problems"].as_array() {
        Some(problems) if problems.is_empty() => {
            format!(", verified {} ago", age(&verified["ageSecs"]))
        }
        Some(_) => ", NOT INTACT".to_owned(),
        None => String::new(),
    };
    let mut out = format!(
        "promptgate {}, {readiness}, up {}, audit {}{verified_ago}\nconfiguration {}\n",
        word(&status["version"]),
        age(&status["uptimeSecs"]),
        word(&status["audit"]),
        word(&status["configDigest"])
    );
    let reloads = &status["reloads"];
    let problems = [
        ("not ready", &status["why"]),
        ("the audit log is not intact", &verified["problems"]),
        ("the configuration file was rejected", &reloads["mistakes"]),
        ("needs a restart", &reloads["needsRestart"]),
        ("the configuration file has removed a protection", &reloads["removed"]),
    ];
    for (problem, details) in problems {
        for detail in elements(details) {
            let _ = writeln!(out, "  {problem}: {}", word(detail));
        }
    }
    for certificate in elements(&status["certificates"]) {
        if let Some(warning) = certificate["warning"].as_str() {
            let _ = writeln!(out, "  {}", printable(warning));
        }
    }
    out += &replicas_text(&state["cluster"]);
    let rows = elements(&state["upstreams"]);
    let _ = write!(out, "\n{}", table(&COLUMNS, rows));
    let notes: Vec<_> = rows.iter().flat_map(|row| notes(row, &state["unnamed"])).collect();
    if !notes.is_empty() {
        let _ = write!(out, "\n\n{}", notes.join("\n"));
    }
    out
}

/// Returns the lines about an upstream that follow the table.
fn notes(row: &Value, unnamed: &Value) -> Vec<String> {
    let upstream = row["upstream"].as_str().map(printable).unwrap_or_default();
    let message = row["error"]["message"].as_str().or(row["note"].as_str()).map(printable);
    let repaired = Some(repaired(row)).filter(|repaired| !repaired.is_empty());
    let restarts = row["driverRestarts"].as_u64().filter(|count| *count > 0);
    let restarts =
        restarts.map(|count| format!("its driver has failed {count} times and was started again"));
    let own = [message, repaired, restarts].into_iter().flatten();
    let mut notes: Vec<_> = own.map(|note| format!("{upstream}: {note}")).collect();
    notes.extend(awaiting(row));
    notes.extend(unlisted(row, unnamed));
    notes
}
