//! Bridges: programs that hosts start to reach a server over HTTP. The gateway needs no bridge.

use serde_json::{Map, Value, json};

/// The command of a server over standard streams.
pub(super) struct ServerCommand<'a> {
    pub program: &'a str,
    pub arguments: Vec<String>,
    pub env: Option<&'a Map<String, Value>>,
}

/// A server behind a bridge.
#[derive(Debug, PartialEq)]
pub(super) struct Bridged {
    /// Name of the bridge.
    pub bridge: &'static str,
    pub url: String,
    /// `http` or `sse`.
    pub transport: &'static str,
    /// The headers that the bridge sends, with the values of the entry's variables.
    pub headers: Map<String, Value>,
    /// Options that have no counterpart here, without their values.
    pub dropped: Vec<String>,
}

/// The bridges that people use, by the names of their packages.
const BRIDGES: [&str; 3] = ["mcp-remote", "mcp-proxy", "supergateway"];

/// Options with a value that matter to the bridge alone: how it signs in, listens and logs.
const WITH_VALUE: [&str; 9] = [
    "--resource",
    "--host",
    "--port",
    "--auth-timeout",
    "--static-oauth-client-info",
    "--static-oauth-client-metadata",
    "--ignore-tool",
    "--outputTransport",
    "--logLevel",
];

/// Reads the command of a server; `None` if it is no bridge, or has no URL.
pub(super) fn bridged(command: &ServerCommand<'_>) -> Option<Bridged> {
    let mut words =
        std::iter::once(command.program).chain(command.arguments.iter().map(String::as_str));
    let bridge = words.find_map(bridge)?;
    let mut found = Bridged {
        bridge,
        url: String::new(),
        transport: "http",
        headers: Map::new(),
        dropped: Vec::new(),
    };
    while let Some(word) = words.next() {
        let (option, inline) = match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, Some(value)),
            _ => (word, None),
        };
        let mut value = || inline.or_else(|| words.next()).unwrap_or_default();
        match option {
            "--header" | "-H" | "--headers" => {
                // mcp-proxy has the name and the value as two words.
                let header = value();
                let two = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
                let pair = header.split_once(':').map(two);
                let (name, text) = pair.unwrap_or_else(|| (header.to_owned(), value().to_owned()));
                found.header(name.trim(), &with_variables(command, text.trim()));
            }
            "--oauth2Bearer" => {
                let token = with_variables(command, value());
                found.header("Authorization", &format!("Bearer {token}"));
            }
            "--transport" => found.transport = transport(value()),
            "--sse" | "--streamableHttp" | "--streamable-http" => {
                found.transport = if option == "--sse" { "sse" } else { "http" };
                found.url = value().to_owned();
            }
            _ if option.starts_with('-') => {
                if WITH_VALUE.contains(&option) {
                    value();
                }
                found.dropped.push(option.to_owned());
            }
            // A number is the port of a callback.
            _ if found.url.is_empty() && is_url(word) => found.url = word.to_owned(),
            _ => {}
        }
    }
    let token = command.env.and_then(|env| env.get("API_ACCESS_TOKEN")).and_then(Value::as_str);
    if let Some(token) = token.filter(|_| bridge == "mcp-proxy") {
        found.header("Authorization", &format!("Bearer {token}"));
    }
    is_url(&found.url).then_some(found)
}

impl Bridged {
    fn header(&mut self, name: &str, value: &str) {
        self.headers.insert(name.to_owned(), json!(value));
    }
}

/// Returns the bridge that a word starts: a package, with or without a version, or a path.
fn bridge(word: &str) -> Option<&'static str> {
    let name = word.rsplit(['/', '\\']).next().unwrap_or(word);
    let name = name.split('@').next().unwrap_or(name);
    let name = name.strip_suffix(".cmd").or(name.strip_suffix(".exe")).unwrap_or(name);
    BRIDGES.into_iter().find(|bridge| *bridge == name)
}

fn transport(named: &str) -> &'static str {
    if named.starts_with("sse") { "sse" } else { "http" }
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Returns a value with the variables of the entry in it replaced by their values.
fn with_variables(command: &ServerCommand<'_>, value: &str) -> String {
    let variables = command.env.into_iter().flatten();
    variables.fold(value.to_owned(), |value, (name, own)| match own.as_str() {
        Some(own) => value.replace(&format!("${{{name}}}"), own),
        None => value,
    })
}
