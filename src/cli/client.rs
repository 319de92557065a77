//! `promptgate list` and `promptgate get`: a gateway asked as any client would ask it.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::header::AUTHORIZATION;
use serde_json::{Map, Value};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::text::{print, printable};
use super::{Failure, Remote, load, runtime};
use crate::config::{Http, Secret, Settings};
use crate::domain::address_policy::AddressPolicy;
use crate::domain::call::ForwardedMeta;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::server_request::ClientCapabilities;
use crate::upstream::call::correlator::{Correlator, NotificationSinks};
use crate::upstream::call::request::{RequestParams, UpstreamRequest};
use crate::upstream::connection::GatewayClient;
use crate::upstream::transport::Transport;
use crate::upstream::transport::streamable_http::HttpEndpoint;

/// Where the API key comes from: on the command line everybody on the machine could read it.
const KEY_VARIABLE: &str = "PROMPTGATE_API_KEY";

/// How long a person waits for an answer.
const PATIENCE: Duration = Duration::from_secs(90);

pub(super) fn list(remote: &Remote) -> Result<(), Failure> {
    let listed = call(remote, async |client| {
        client.list(&Settings::default(), &ForwardedMeta::default()).await
    })?;
    let prompts: Vec<Value> = listed
        .prompts
        .iter()
        .map(|prompt| {
            let mut text = String::new();
            prompt.write(&prompt.name, &mut text);
            serde_json::from_str(&text).unwrap_or_default()
        })
        .collect();
    match remote.json {
        true => print(&format!("{:#}", Value::from(prompts))),
        false if prompts.is_empty() => print("No prompts are served."),
        false => print(&table(&prompts)),
    }
}

pub(super) fn get(
    remote: &Remote,
    name: &str,
    arguments: &[(String, String)],
) -> Result<(), Failure> {
    let arguments: Map<String, Value> =
        arguments.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let arguments = Value::from(arguments).to_string().into_bytes();
    let outgoing = UpstreamRequest {
        params: RequestParams::Get {
            name: name.to_owned(),
            arguments: Document::parse(arguments, 2).ok(),
            answers: None,
        },
        forwarded: ForwardedMeta::default(),
        capabilities: ClientCapabilities::NONE,
        progress: false,
    };
    let result = call(remote, async |client| client.call(&outgoing).await)?;
    let result: Value = serde_json::from_str(result.json().text()).unwrap_or_default();
    match remote.json {
        true => print(&format!("{result:#}")),
        false => print(&messages(&result)),
    }
}

/// Connects to the gateway and asks it.
fn call<T>(
    remote: &Remote,
    send: impl AsyncFnOnce(GatewayClient) -> Result<T, Kind>,
) -> Result<T, Failure> {
    let url = endpoint_url(remote)?;
    let uri: Uri = url.parse().map_err(|_| Failure::usage(format!("{url} is not a URL")))?;
    let key = std::env::var(KEY_VARIABLE).ok().map(|key| Secret::new(format!("Bearer {key}")));
    let headers = key.into_iter().map(|key| (AUTHORIZATION, key)).collect();
    let (ca, address_policy, oauth) = (None, AddressPolicy::BeyondTheLink, None);
    let http = Http { url: uri, revision: None, headers, oauth, ca, address_policy };
    let asking = async {
        let endpoint = HttpEndpoint::new(&http, &Settings::default(), TaskTracker::new())
            .map_err(Failure::new)?;
        let answer = async {
            let correlator = Correlator::new(NotificationSinks::new("gateway"));
            let wire = Transport::Http { endpoint: Arc::new(endpoint), correlator };
            send(GatewayClient::open(wire, PATIENCE).await?).await
        };
        let answer = timeout(PATIENCE, answer).await.unwrap_or(Err(Kind::Timeout));
        answer.map_err(|kind| explain(&url, kind))
    };
    runtime()?.block_on(asking)
}

/// The URL given, or the one that the configuration file makes a gateway listen on.
fn endpoint_url(remote: &Remote) -> Result<String, Failure> {
    if let Some(url) = &remote.url {
        return Ok(url.clone());
    }
    if !remote.file.config.exists() {
        return Ok("http://127.0.0.1:8080/mcp".to_owned());
    }
    let server = load(&remote.file.config)?.server;
    Ok(server.url_at(server.listen))
}

fn explain(url: &str, kind: Kind) -> Failure {
    Failure::new(match kind {
        Kind::Error { code, message, .. } => format!("{} ({code})", printable(&message)),
        Kind::AuthFailed { .. } => format!(
            "{url} wants to know who asks: put your API key or token into {KEY_VARIABLE} (or it does not \
             know the one that is there)"
        ),
        Kind::Unavailable(why) if why.contains("certificate") => format!(
            "{url} cannot be trusted: {why}. Name a file with the authority's certificate in \
             SSL_CERT_FILE."
        ),
        Kind::Unavailable(why) => format!(
            "No gateway answers at {url}: {why}. Start one with `promptgate serve`, or name \
             another with --url."
        ),
        other => format!("{url}: {}", printable(&other.to_string())),
    })
}

fn table(prompts: &[Value]) -> String {
    let text = |value: &Value, key: &str| printable(value[key].as_str().unwrap_or_default());
    let width = prompts.iter().map(|p| text(p, "name").chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for prompt in prompts {
        let name = text(prompt, "name");
        let title = match text(prompt, "description") {
            description if description.is_empty() => text(prompt, "title"),
            description => description,
        };
        let first_line = title.lines().next().unwrap_or_default();
        let _ = writeln!(out, "{name:width$}  {first_line}");
        let arguments: Vec<_> = prompt["arguments"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|argument| match argument["required"].as_bool() {
                Some(true) => format!("{}=…", text(argument, "name")),
                _ => format!("[{}=…]", text(argument, "name")),
            })
            .collect();
        if !arguments.is_empty() {
            let _ = writeln!(out, "{:width$}    {}", "", arguments.join(" "));
        }
    }
    out.pop();
    out
}

fn messages(result: &Value) -> String {
    let mut out = String::new();
    for message in result["messages"].as_array().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or_default();
        let heading = match io::stdout().is_terminal() {
            true => format!("\u{1b}[1m{role}\u{1b}[0m"),
            false => format!("## {role}"),
        };
        let _ = writeln!(out, "{heading}\n{}\n", content(&message["content"]));
    }
    out.trim_end().to_owned()
}

fn content(content: &Value) -> String {
    let field = |value: &Value, key: &str| printable(value[key].as_str().unwrap_or_default());
    let bytes = |key: &str, value: &Value| value[key].as_str().map_or(0, |data| data.len() / 4 * 3);
    match content["type"].as_str() {
        Some("text") => field(content, "text"),
        Some(kind @ ("image" | "audio")) => {
            let size = bytes("data", content);
            format!("[{kind} {}, about {size} bytes]", field(content, "mimeType"))
        }
        Some("resource") => {
            let resource = &content["resource"];
            let lead = format!("[resource {}]", field(resource, "uri"));
            match resource["text"].as_str() {
                Some(text) => format!("{lead}\n{}", printable(text)),
                None => format!("{lead} about {} bytes", bytes("blob", resource)),
            }
        }
        Some("resource_link") => {
            format!("[link {} {}]", field(content, "name"), field(content, "uri"))
        }
        _ => "[unknown content]".to_owned(),
    }
}
