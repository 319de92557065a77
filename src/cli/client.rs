//! `promptgate list` and `promptgate get`: an MCP client of a running gateway.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::header::AUTHORIZATION;
use serde_json::{Map, Value};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::args::Gateway;
use super::failure::Failure;
use super::load::load;
use super::output::printable;
use super::runtime::runtime;
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

/// Environment variable with the API key or token. It is no argument, because every user of the machine
/// can read the arguments of a process.
const KEY_VARIABLE: &str = "PROMPTGATE_API_KEY";

/// Timeout of the handshake, and of the whole command: longer than `server.limits.request` by default, so
/// that the gateway's own timeout is reported.
const TIMEOUT: Duration = Duration::from_secs(90);

pub(super) fn list(gateway: &Gateway) -> Result<(), Failure> {
    let listed = call(gateway, async |client| {
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
    let text = if prompts.is_empty() {
        "The gateway lists no prompts.".to_owned()
    } else {
        list_text(&prompts)
    };
    gateway.output.print(&Value::from(prompts), &text)
}

pub(super) fn get(
    gateway: &Gateway,
    name: &str,
    arguments: &[(String, String)],
) -> Result<(), Failure> {
    let arguments: Map<String, Value> =
        arguments.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let arguments = Value::from(arguments).to_string().into_bytes();
    let request = UpstreamRequest {
        params: RequestParams::Get {
            name: name.to_owned(),
            arguments: Document::parse(arguments, 2).ok(),
            answers: None,
        },
        forwarded: ForwardedMeta::default(),
        capabilities: ClientCapabilities::NONE,
        progress: false,
    };
    let result = call(gateway, async |client| client.call(&request).await)?;
    let result: Value = serde_json::from_str(result.json().text()).unwrap_or_default();
    gateway.output.print(&result, &messages_text(&result))
}

/// Connects to the gateway and calls it.
fn call<T>(
    gateway: &Gateway,
    send: impl AsyncFnOnce(GatewayClient) -> Result<T, Kind>,
) -> Result<T, Failure> {
    let url = endpoint_url(gateway)?;
    let uri: Uri = url.parse().map_err(|_| Failure::usage(format!("{url} is not a URL")))?;
    let key = std::env::var(KEY_VARIABLE).ok().map(|key| Secret::new(format!("Bearer {key}")));
    let headers = key.into_iter().map(|key| (AUTHORIZATION, key)).collect();
    let http = Http {
        url: uri,
        revision: None,
        headers,
        oauth: None,
        ca: None,
        address_policy: AddressPolicy::NotLinkLocal,
    };
    runtime()?.block_on(async {
        let endpoint = HttpEndpoint::new(&http, &Settings::default(), TaskTracker::new())
            .map_err(Failure::new)?;
        let exchange = async {
            let correlator = Correlator::new(NotificationSinks::new("gateway"));
            let transport = Transport::Http { endpoint: Arc::new(endpoint), correlator };
            send(GatewayClient::open(transport, TIMEOUT).await?).await
        };
        let result = timeout(TIMEOUT, exchange).await.unwrap_or(Err(Kind::Timeout));
        result.map_err(|kind| failure(&url, kind))
    })
}

/// Returns the given URL, or that of a gateway with the configuration file.
fn endpoint_url(gateway: &Gateway) -> Result<String, Failure> {
    if let Some(url) = &gateway.url {
        return Ok(url.clone());
    }
    let file = &gateway.file.config;
    if !file.exists() {
        return Ok(DEFAULT_URL.to_owned());
    }
    let server = load(file)?.server;
    Ok(server.url_at(server.listen))
}

/// URL of the gateway where there is no configuration file.
const DEFAULT_URL: &str = "http://127.0.0.1:8080/mcp";

fn failure(url: &str, kind: Kind) -> Failure {
    Failure::new(match kind {
        Kind::Error { code, message, .. } => format!("{} ({code})", printable(&message)),
        Kind::AuthFailed { .. } => format!(
            "{url} requires a valid credential: set {KEY_VARIABLE} to your API key or token"
        ),
        Kind::Unavailable(why) if why.contains("certificate") => format!(
            "The certificate of {url} is not trusted: {why}. Set SSL_CERT_FILE to a PEM file with the \
             certificate of the authority."
        ),
        Kind::Unavailable(why) => format!(
            "No gateway answers at {url}: {why}. Start one with `promptgate serve`, or give another URL \
             with --url."
        ),
        other => format!("{url}: {}", printable(&other.to_string())),
    })
}

/// Returns a line for each prompt with its name and description, and a line with its arguments.
fn list_text(prompts: &[Value]) -> String {
    let text = |value: &Value, key: &str| printable(value[key].as_str().unwrap_or_default());
    let width = prompts.iter().map(|p| text(p, "name").chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for prompt in prompts {
        let name = text(prompt, "name");
        let mut description = text(prompt, "description");
        if description.is_empty() {
            description = text(prompt, "title");
        }
        let first_line = description.lines().next().unwrap_or_default();
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

fn messages_text(result: &Value) -> String {
    let mut out = String::new();
    for message in result["messages"].as_array().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or_default();
        let heading = if io::stdout().is_terminal() {
            format!("\u{1b}[1m{role}\u{1b}[0m")
        } else {
            format!("## {role}")
        };
        let _ = writeln!(out, "{heading}\n{}\n", content_text(&message["content"]));
    }
    out.trim_end().to_owned()
}

/// Returns the text of one content block, or a line about content that is not text.
fn content_text(content: &Value) -> String {
    let field = |value: &Value, key: &str| printable(value[key].as_str().unwrap_or_default());
    // Four characters of base64 are three bytes.
    let bytes = |value: &Value, key: &str| value[key].as_str().map_or(0, |data| data.len() / 4 * 3);
    match content["type"].as_str() {
        Some("text") => field(content, "text"),
        Some(kind @ ("image" | "audio")) => {
            let size = bytes(content, "data");
            format!("[{kind} {}, about {size} bytes]", field(content, "mimeType"))
        }
        Some("resource") => {
            let resource = &content["resource"];
            let uri = field(resource, "uri");
            match resource["text"].as_str() {
                Some(text) => format!("[resource {uri}]\n{}", printable(text)),
                None => format!("[resource {uri}, about {} bytes]", bytes(resource, "blob")),
            }
        }
        Some("resource_link") => {
            format!("[resource link {} {}]", field(content, "name"), field(content, "uri"))
        }
        _ => "[content of an unknown type]".to_owned(),
    }
}
