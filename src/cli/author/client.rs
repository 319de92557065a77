//! `promptgate list` and `promptgate get`: an MCP client of a running gateway.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::header::AUTHORIZATION;
use serde_json::{Map, Value};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::cli::observe::status::waiting_lines;
use crate::cli::shared::admin_api::fetch_once;
use crate::cli::shared::args::GatewayArgs;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{
    Column, elements, fitted, is_styled, printable, printable_line, table, terminal_width,
};
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;
use admin::hosts::KEY_VARIABLE;
use config::{Credentials, Http, Proxies, Secret, Settings};
use domain::address_policy::AddressPolicy;
use domain::calls::call::ForwardedMeta;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::document::Document;
use domain::name::{Naming, Prefix};
use domain::prompts::prompt::Prompt;
use domain::protocol::server_request::ClientCapabilities;
use domain::text::glob::Glob;
use domain::text::similar::suggestion;
use upstream::call::correlator::{Correlator, NotificationSinks};
use upstream::call::request::{RequestParams, UpstreamRequest};
use upstream::connection::GatewayClient;
use upstream::transport::UpstreamTransport;
use upstream::transport::streamable_http::HttpEndpoint;

/// Timeout of the handshake, and of the whole command: longer than `server.limits.request` by
/// default, so that the gateway's own timeout is reported.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The choice of listed prompts.
pub(crate) struct Choice {
    /// Pattern of public names, or a part of them.
    pub pattern: Option<String>,
    /// Id of an upstream.
    pub upstream: Option<String>,
}

/// Lists the chosen prompts.
pub(crate) fn list(gateway: &GatewayArgs, choice: &Choice) -> Result<(), Failure> {
    let reach = Reach::find(&gateway.file);
    let listed = listed(&reach, gateway, choice)?;
    let mut text = listed.none().unwrap_or_else(|| list_text(&listed.chosen, terminal_width()));
    // A list of another gateway has nothing to do with the admin API here.
    if !gateway.output.json
        && gateway.url.is_none()
        && let Ok(admin) = reach.admin(None)
    {
        let waiting = runtime()?.block_on(waiting_lines(&admin));
        text.extend(waiting.iter().flat_map(|line| ["\n", line]));
    }
    gateway.output.print(&Value::from(listed.chosen), &text)
}

/// Lists the chosen prompts with their origins, as the admin API has them.
pub(crate) fn list_origins(gateway: &GatewayArgs, choice: &Choice) -> Result<(), Failure> {
    let reach = Reach::find(&gateway.file);
    let mut listed = listed(&reach, gateway, choice)?;
    let admin = reach.admin(None)?;
    let catalog = runtime()?.block_on(fetch_once(&admin, "/api/v1/catalog"))?;
    let mut origins: HashMap<&str, &Value> = HashMap::new();
    for prompt in elements(&catalog["prompts"]) {
        origins.extend(prompt["name"].as_str().map(|name| (name, prompt)));
    }
    for prompt in &mut listed.chosen {
        let origin = prompt["name"].as_str().and_then(|name| origins.get(name).copied());
        prompt["origin"] = origin.cloned().unwrap_or_default();
    }
    let text = listed.none().unwrap_or_else(|| table(&ORIGINS, &listed.chosen));
    gateway.output.print(&Value::from(listed.chosen), &text)
}

/// The columns of `promptgate list --long`.
const ORIGINS: [Column; 6] = [
    Column::new("PROMPT", "name"),
    Column::new("UPSTREAM", "origin.upstream"),
    Column::new("NAME THERE", "origin.rawName"),
    Column::new("STATE", "origin.state"),
    Column::new("OVERLAYS", "origin.overlays"),
    Column::new("TITLE", "title"),
];

/// The prompts of a list.
struct Listed {
    /// As the gateway lists them.
    chosen: Vec<Value>,
    /// The number of all prompts.
    all: usize,
}

impl Listed {
    /// The message for a list from which no prompt is chosen.
    fn none(&self) -> Option<String> {
        self.chosen.is_empty().then(|| match self.all {
            0 => "The gateway lists no prompts.".to_owned(),
            all => format!("None of the {all} prompts matches."),
        })
    }
}

fn listed(reach: &Reach, gateway: &GatewayArgs, choice: &Choice) -> Result<Listed, Failure> {
    let filter = ListFilter::new(reach, choice.pattern.as_deref(), choice.upstream.as_deref())?;
    let url = reach.endpoint(gateway.url.as_deref())?;
    let listed = call(&url, async |client| {
        if client.has_prompts() {
            client.list(&Settings::default(), &ForwardedMeta::default()).await.map(Some)
        } else {
            Ok(None)
        }
    })?;
    let listed = listed.ok_or_else(|| Failure::new(no_prompts(&url)))?;
    let chosen = listed.prompts.iter().filter(|prompt| filter.accepts(&prompt.name));
    Ok(Listed { chosen: chosen.map(definition).collect(), all: listed.prompts.len() })
}

/// Returns a prompt as the gateway lists it.
pub(super) fn definition(prompt: &Prompt) -> Value {
    let mut text = String::new();
    prompt.write(&prompt.name, &mut text);
    serde_json::from_str(&text).unwrap_or_default()
}

/// The prompts that `promptgate list` shows.
pub(crate) struct ListFilter {
    pattern: Option<Glob>,
    /// The prefix of an upstream, and the naming that separates it from the rest of a public name.
    prefix: Option<(Naming, Prefix)>,
}

impl ListFilter {
    pub(crate) fn new(
        reach: &Reach,
        pattern: Option<&str>,
        upstream: Option<&str>,
    ) -> Result<Self, Failure> {
        let glob = |pattern: &str| {
            let whole =
                if pattern.contains('*') { pattern.to_owned() } else { format!("*{pattern}*") };
            Glob::parse(&whole).ok_or_else(|| Failure::usage(format!("{pattern:?} is too long")))
        };
        let prefix = |id: &str| {
            let known = &reach.addresses.upstreams;
            let own = reach.addresses.prefixes.get(id).cloned();
            // A gateway elsewhere may have other upstreams than the file.
            if !known.is_empty() && !known.iter().any(|known| known == id) {
                let near = suggestion(id, known.iter().map(String::as_str));
                eprintln!(
                    "{}",
                    printable(&format!("the configuration has no upstream `{id}`{near}"))
                );
            }
            let prefix = own.or_else(|| Prefix::parse(id));
            let invalid = || Failure::usage(format!("{id:?} is not the id of an upstream"));
            Ok::<_, Failure>((reach.addresses.naming.clone(), prefix.ok_or_else(invalid)?))
        };
        Ok(Self {
            pattern: pattern.map(glob).transpose()?,
            prefix: upstream.map(prefix).transpose()?,
        })
    }

    pub(crate) fn accepts(&self, name: &str) -> bool {
        let is_of = |(naming, prefix): &(Naming, Prefix)| {
            let claimed = naming.claimed(name).map(|(prefix, _)| prefix);
            // Bare names have no prefix, or one that only looks like one.
            if prefix.is_bare() { claimed.is_none() } else { claimed == Some(prefix.as_str()) }
        };
        self.pattern.as_ref().is_none_or(|glob| glob.matches(name))
            && self.prefix.as_ref().is_none_or(is_of)
    }
}

/// Gets a prompt, after its arguments were compared with the list: a gateway ignores arguments that
/// a prompt does not have.
pub(crate) fn get(
    gateway: &GatewayArgs,
    name: &str,
    arguments: &[(String, String)],
) -> Result<(), Failure> {
    let url = Reach::find(&gateway.file).endpoint(gateway.url.as_deref())?;
    let arguments = &with_values(arguments, &mut io::stdin().lock())?;
    let request = UpstreamRequest {
        params: RequestParams::Get {
            name: name.into(),
            arguments: document(arguments),
            answers: None,
            source: None,
        },
        forwarded: ForwardedMeta::default(),
        overlay: None,
        capabilities: ClientCapabilities::NONE,
        progress: false,
        log_level: None,
    };
    let result = call(&url, async |client| {
        if !client.has_prompts() {
            return Ok(Err(no_prompts(&url)));
        }
        // A caller may have the right to get a prompt that it cannot list.
        let listed = client.list(&Settings::default(), &ForwardedMeta::default()).await;
        let listed = listed.map(|listed| listed.prompts).unwrap_or_default();
        if let Some(prompt) = listed.iter().find(|prompt| prompt.name == name)
            && let Err(mistake) = check_arguments(&definition(prompt), arguments)
        {
            return Ok(Err(mistake));
        }
        match client.call(&request).await {
            Err(Kind::Error { data: Some(data), .. }) if data.contains(UNKNOWN_PROMPT) => {
                let near = suggestion(name, listed.iter().map(|prompt| prompt.name.as_str()));
                Ok(Err(printable(&format!(
                    "There is no prompt `{name}`{near} `promptgate list` shows all."
                ))))
            }
            answer => answer.map(Ok),
        }
    })?;
    let result = result.map_err(Failure::new)?;
    let result: Value = serde_json::from_str(result.json().text()).unwrap_or_default();
    gateway.output.print(&result, &messages_text(&result))
}

/// Returns the arguments as an object of strings.
pub(super) fn document(arguments: &[(String, String)]) -> Option<Document> {
    let given: Map<String, Value> =
        arguments.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    Document::parse(Value::from(given).to_string().into_bytes(), 2).ok()
}

/// Returns the arguments with the values that stand elsewhere: `@FILE` in a file, `-` on standard
/// input. `@@` is an `@`.
///
/// # Errors
/// With exit code 64, if a value cannot be read or is not UTF-8, or two are on standard input.
pub(super) fn with_values(
    arguments: &[(String, String)],
    input: &mut dyn Read,
) -> Result<Vec<(String, String)>, Failure> {
    let mut input = Some(input);
    let mut value = |key: &str, given: &str| -> Result<String, Failure> {
        let unreadable = |what: &str, error: &dyn std::fmt::Display| {
            Failure::usage(format!("{key}: {what} cannot be read: {error}"))
        };
        let bytes = match given.strip_prefix('@') {
            Some(literal) if literal.starts_with('@') => return Ok(literal.to_owned()),
            Some(file) => {
                let hint = |error| {
                    format!("{error}; for a value that begins with @, write {key}=@{given}")
                };
                fs::read(file).map_err(|error| unreadable(file, &hint(error)))?
            }
            None if given == "-" => {
                let twice = || Failure::usage("only one argument can be on standard input");
                let mut bytes = Vec::new();
                let read = input.take().ok_or_else(twice)?.read_to_end(&mut bytes);
                read.map_err(|error| unreadable("standard input", &error))?;
                bytes
            }
            None => return Ok(given.to_owned()),
        };
        String::from_utf8(bytes).map_err(|_| unreadable(given, &"it is not UTF-8"))
    };
    arguments.iter().map(|(key, given)| Ok((key.clone(), value(key, given)?))).collect()
}

/// The message for an endpoint that declares no prompts.
fn no_prompts(url: &str) -> String {
    format!(
        "{url} offers no prompts as such: its `expose` may have tools only; ask another endpoint with --url"
    )
}

/// `data.reason` of a prompt that does not exist, or that the caller may not use.
const UNKNOWN_PROMPT: &str = r#""reason":"unknown_prompt""#;

/// Checks that a prompt has these arguments. A value that is not among the choices of its argument
/// is reported on standard error.
pub(super) fn check_arguments(
    prompt: &Value,
    arguments: &[(String, String)],
) -> Result<(), String> {
    let name = printable(prompt["name"].as_str().unwrap_or_default());
    let known: Vec<&str> = elements(&prompt["arguments"])
        .iter()
        .filter_map(|argument| argument["name"].as_str())
        .collect();
    for (key, value) in arguments {
        if !known.contains(&key.as_str()) {
            let near = suggestion(key, known.iter().copied());
            let has = if known.is_empty() { "no arguments".to_owned() } else { known.join(", ") };
            let unknown = format!("{name} has no argument `{key}`{near} It has {has}.");
            return Err(printable(&unknown));
        }
        let choices: Vec<&str> = elements(&prompt["_meta"]["choices"][key.as_str()])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        if !choices.is_empty() && !choices.contains(&value.as_str()) {
            let near = suggestion(value, choices.iter().copied());
            let has = choices.join(", ");
            // Completion offers the choices; the prompt decides on the value.
            let note = format!(
                "`{value}` is no choice for `{key}` of {name}{near} The choices are {has}."
            );
            eprintln!("{}", printable(&note));
        }
    }
    Ok(())
}

/// Connects to the gateway and calls it.
pub(crate) fn call<T>(
    url: &str,
    send: impl AsyncFnOnce(GatewayClient) -> Result<T, Kind>,
) -> Result<T, Failure> {
    let uri: Uri = url.parse().map_err(|_| Failure::usage(format!("{url} is not a URL")))?;
    let key = std::env::var(KEY_VARIABLE).ok();
    let key = key.map(|key| Secret::new(format!("Bearer {}", key.trim())));
    let headers = key.into_iter().map(|key| (AUTHORIZATION, key)).collect();
    let http = Http {
        url: uri,
        revision: None,
        headers,
        credentials: Credentials::default(),
        ca: None,
        address_policy: AddressPolicy::NotLinkLocal,
        proxies: Some(Proxies::of_environment()),
    };
    runtime()?.block_on(async {
        let endpoint = HttpEndpoint::new(&http, None, &Settings::default(), TaskTracker::new())
            .map_err(Failure::new)?;
        let exchange = async {
            let correlator = Correlator::new(NotificationSinks::new("gateway"));
            let transport = UpstreamTransport::Http { endpoint: Arc::new(endpoint), correlator };
            send(GatewayClient::open(transport, TIMEOUT).await?).await
        };
        let result = timeout(TIMEOUT, exchange).await.unwrap_or(Err(Kind::Timeout));
        result.map_err(|kind| failure(url, kind))
    })
}

/// `data.reason` of a gateway that has no endpoint at a path.
const NOT_FOUND: &str = r#""reason":"not_found""#;

fn failure(url: &str, kind: Kind) -> Failure {
    let no_endpoint = || {
        format!(
            "There is no endpoint at {url}. Use the port of server.listen and the path of server.path, such as \
             --url http://127.0.0.1:8080/mcp"
        )
    };
    Failure::new(match kind {
        // A gateway at another path, or another server.
        Kind::Error { data: Some(data), .. } if data.contains(NOT_FOUND) => no_endpoint(),
        Kind::Status { status: 404, .. } => no_endpoint(),
        Kind::Error { code, message, .. } => format!("{} ({code})", printable(&message)),
        Kind::AuthFailed { .. } => format!(
            "{url} requires a valid credential: set {KEY_VARIABLE} to your API key or token"
        ),
        Kind::Unavailable(why) if why.contains("certificate") => {
            format!("The certificate of {url} is not trusted: {why}.")
        }
        Kind::Unavailable(why) => format!(
            "No gateway answers at {url}: {why}. Start one with `promptgate serve`, or give another URL \
             with --url."
        ),
        Kind::RateLimited { retry_after_secs } => {
            let later = retry_after_secs.map_or("later".to_owned(), |secs| format!("in {secs} s"));
            format!("A rate limit of the gateway at {url} refuses the call; try again {later}.")
        }
        Kind::Moved { .. } | Kind::Status { status: 300..400 | 415, .. } => format!(
            "{url} is no endpoint; it may be the admin port. Use the port of server.listen, such as --url http://127.0.0.1:8080/mcp"
        ),
        Kind::Status { status, .. } => format!("{url} answers with HTTP {status}"),
        other => format!("{url}: {}", printable(&other.to_string())),
    })
}

/// Returns a line for each prompt with its name and description, and a line with its arguments.
pub(crate) fn list_text(prompts: &[Value], terminal: Option<usize>) -> String {
    let text = |value: &Value, key: &str| printable(value[key].as_str().unwrap_or_default());
    let longest = prompts.iter().map(|p| text(p, "name").chars().count()).max().unwrap_or(0);
    // On a terminal at least half of a line is left for the description.
    let width = terminal.map_or(longest, |terminal| longest.min(terminal / 2));
    let mut out = String::new();
    for prompt in prompts {
        let name = text(prompt, "name");
        let mut description = text(prompt, "description");
        if description.is_empty() {
            description = text(prompt, "title");
        }
        let first_line = description.lines().next().unwrap_or_default();
        let line = format!("{name:width$}  {first_line}");
        let _ = writeln!(out, "{}", fitted(line.trim_end(), terminal));
        let arguments: Vec<_> = elements(&prompt["arguments"])
            .iter()
            .map(|argument| match argument["required"].as_bool() {
                Some(true) => format!("{}=…", text(argument, "name")),
                _ => format!("[{}=…]", text(argument, "name")),
            })
            .collect();
        if !arguments.is_empty() {
            let line = format!("{:width$}    {}", "", arguments.join(" "));
            let _ = writeln!(out, "{}", fitted(&line, terminal));
        }
    }
    out.pop();
    out
}

pub(super) fn messages_text(result: &Value) -> String {
    let mut out = String::new();
    for message in elements(&result["messages"]) {
        let role = printable_line(message["role"].as_str().unwrap_or_default());
        let heading =
            if is_styled() { format!("\u{1b}[1m{role}\u{1b}[0m") } else { format!("## {role}") };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_an_argument_may_be_in_a_file_or_on_standard_input() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("diff");
        fs::write(&file, "+ a\n").unwrap();
        fs::write(folder.path().join("latin"), b"caf\xe9").unwrap();
        let values = |given: &[&str]| {
            let pairs: Vec<_> = given.iter().map(|v| ("k".to_owned(), (*v).to_owned())).collect();
            let values = with_values(&pairs, &mut &b"typed"[..]);
            values.map(|values| values.into_iter().map(|(_, value)| value).collect::<Vec<_>>())
        };
        let at = |file: &str| format!("@{}", folder.path().join(file).display());
        let given = [at("diff"), "-".into(), "@@x".into(), "@@".into(), "a@b".into(), "--".into()];
        let given: Vec<_> = given.iter().map(String::as_str).collect();
        assert_eq!(values(&given).unwrap(), ["+ a\n", "typed", "@x", "@", "a@b", "--"]);
        assert!(values(&["-", "-"]).is_err(), "there is one standard input");
        assert!(values(&[&at("latin")]).is_err() && values(&[&at("none")]).is_err());
    }
}
