//! One server of a host as the table of an upstream.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;

use http::HeaderName;
use serde_json::{Value, json};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value as Toml};
use url::Url;

use super::Imported;
use super::bridge::{Bridged, ServerCommand, bridged};
use config::is_reserved_header;
use domain::uri::is_scheme;

/// Converts the servers of one host.
#[derive(Default)]
pub(super) struct Converter {
    tables: Vec<(String, Table)>,
    notes: Vec<String>,
    /// The environment variables that hold the secrets, with their values in the file of the host
    /// where it has them. Values are compared, and never shown.
    variables: BTreeMap<String, Option<String>>,
    /// Variables that an entry refers to: they hold values of the user.
    reserved: BTreeSet<String>,
}

impl Converter {
    /// Notes the variables that an entry refers to, so that a value that stands in another entry
    /// gets another variable.
    pub(super) fn reserve(&mut self, entry: &Value) {
        match entry {
            Value::String(text) => {
                if let Some(variable) = reference(text.strip_prefix("Bearer ").unwrap_or(text)) {
                    self.reserved.insert(variable);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| self.reserve(value)),
            Value::Object(members) => members.values().for_each(|value| self.reserve(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    pub(super) fn add(&mut self, name: &str, entry: &Value) {
        let id = self.unused_id(name);
        let mut table = Table::new();
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        let url = ["url", "serverUrl", "httpUrl"].into_iter().find_map(text);
        match (command(entry), url) {
            (Some(command), _) if is_gateway(&command) => {
                return self.note(&id, "starts promptgate itself; left out");
            }
            (Some(command), _) => match bridged(&command) {
                Some(bridged) => self.bridge(&id, bridged, &mut table),
                None => self.stdio(&id, &command, entry, &mut table),
            },
            (None, Some(url)) if url.starts_with("http://") || url.starts_with("https://") => {
                let transport = if text("type") == Some("sse") { "sse" } else { "http" };
                self.http(&id, transport, url, entry, &mut table);
            }
            (None, Some(_)) => {
                return self.note(&id, "its URL is neither http nor https; left out");
            }
            (None, None) => return self.note(&id, "has neither a command nor a URL; left out"),
        }
        let is_off = entry.get("disabled") == Some(&Value::Bool(true))
            || entry.get("enabled") == Some(&Value::Bool(false));
        if is_off {
            table["enabled"] = toml_edit::value(false);
        }
        self.tables.push((id, table));
    }

    pub(super) fn finish(mut self) -> Imported {
        let mut toml = String::new();
        for (id, table) in self.tables {
            let mut document = DocumentMut::new();
            let mut upstreams = Table::new();
            upstreams.set_implicit(true);
            upstreams[&id] = Item::Table(table);
            document["upstreams"] = Item::Table(upstreams);
            if !toml.is_empty() {
                toml.push('\n');
            }
            toml.push_str(&document.to_string());
        }
        if !self.variables.is_empty() {
            let names: Vec<_> = self.variables.into_keys().collect();
            self.notes.push(format!(
                "Set these environment variables for the gateway; their values are in the file of the host: {}",
                names.join(", ")
            ));
        }
        Imported { toml, notes: self.notes }
    }

    fn note(&mut self, id: &str, what: &str) {
        let note = format!("{id}: {what}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Returns the name as an id that no other upstream has.
    fn unused_id(&self, name: &str) -> String {
        let lower = name.to_lowercase();
        let words =
            lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let mut id = words.collect::<Vec<_>>().join("-");
        id.truncate(MAX_ID);
        if id.is_empty() {
            id.push_str("server");
        }
        let is_used = |id: &str| self.tables.iter().any(|(other, _)| other == id);
        let numbered = (2..).map(|number| format!("{id}-{number}"));
        let mut candidates = std::iter::once(id.clone()).chain(numbered);
        candidates.find(|candidate| !is_used(candidate)).unwrap_or(id)
    }

    /// Writes the server behind a bridge, which the gateway reaches itself.
    fn bridge(&mut self, id: &str, bridged: Bridged, table: &mut Table) {
        let Bridged { bridge, url, transport, headers, dropped } = bridged;
        let is_known = headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
        self.http(id, transport, &url, &json!({"headers": headers}), table);
        self.note(id, &format!("{bridge} is left out: the gateway reaches its server itself"));
        if bridge == "mcp-remote" && !is_known {
            self.note(
                id,
                "mcp-remote signs in by itself where the server wants it; set credential = { login = {} }, \
                 and run `promptgate login`",
            );
        }
        if !dropped.is_empty() {
            self.note(id, &format!("options of {bridge} are left out: {}", dropped.join(", ")));
        }
    }

    /// Adds a note on the file as a whole.
    pub(super) fn note_file(&mut self, what: &str) {
        self.notes.push(what.to_owned());
    }

    fn stdio(&mut self, id: &str, command: &ServerCommand<'_>, entry: &Value, table: &mut Table) {
        let mut words = Array::new();
        words.push(command.program);
        let mut is_value_of_secret = false;
        for argument in &command.arguments {
            let (shown, has_secret) = without_secret(argument, is_value_of_secret);
            if has_secret {
                self.note(
                    id,
                    "an argument looks like a secret and is replaced by REPLACE_ME; pass it in env = { … } if the \
                     server can read it there",
                );
            }
            if shown.contains("${") {
                self.note(id, &format!("replace {} in command", placeholders(&shown)));
            }
            words.push(shown);
            let is_option = argument.starts_with('-') && !argument.contains('=');
            is_value_of_secret = is_option && names_secret_value(argument);
        }
        table["transport"] = toml_edit::value("stdio");
        table["command"] = toml_edit::value(words);
        let mut env = InlineTable::new();
        for (name, value) in command.env.into_iter().flatten() {
            let Some(value) = scalar(value) else { continue };
            let shown = if is_plain(name, &value) {
                value.as_str().into()
            } else {
                self.secret(id, &value, name)
            };
            env.insert(name, shown);
        }
        if !env.is_empty() {
            table["env"] = toml_edit::value(env);
        }
        if let Some(cwd) = entry.get("cwd").and_then(Value::as_str) {
            table["cwd"] = toml_edit::value(cwd);
        }
        if entry.get("envFile").is_some() {
            self.note(id, "its envFile is not read; add the variables to env = { … }");
        }
    }

    fn http(&mut self, id: &str, transport: &str, url: &str, entry: &Value, table: &mut Table) {
        table["transport"] = toml_edit::value(transport);
        table["url"] = toml_edit::value(self.plain_url(id, url));
        let mut headers = InlineTable::new();
        let given = entry.get("headers").and_then(Value::as_object);
        for (name, value) in given.into_iter().flatten() {
            let Some(value) = scalar(value) else { continue };
            if HeaderName::try_from(name).is_ok_and(|name| is_reserved_header(&name)) {
                continue;
            }
            let is_authorization = name.eq_ignore_ascii_case("authorization");
            if let Some(token) = value.strip_prefix("Bearer ").filter(|_| is_authorization) {
                let secret = self.secret(id, token, &format!("{}_TOKEN", upper(id)));
                let mut credential = InlineTable::new();
                credential.insert("bearer", secret);
                table["credential"] = toml_edit::value(credential);
            } else if is_plain(name, &value) {
                headers.insert(name, value.as_str().into());
            } else {
                let secret = self.secret(id, &value, &format!("{}_{}", upper(id), upper(name)));
                headers.insert(name, secret);
            }
        }
        if !headers.is_empty() {
            table["headers"] = toml_edit::value(headers);
        }
    }

    /// Returns a URL without its user, password and query, which may hold secrets, and which the
    /// gateway does not take.
    fn plain_url(&mut self, id: &str, url: &str) -> String {
        let Ok(mut parsed) = Url::parse(url) else {
            self.note(id, "its URL cannot be read; correct it");
            return String::new();
        };
        let has_user = !parsed.username().is_empty() || parsed.password().is_some();
        if has_user {
            // Both fail for URLs without a host only, which HTTP does not have.
            let _ = parsed.set_username("");
            let _ = parsed.set_password(None);
            self.note(
                id,
                "the user and password in its URL are left out; set a credential instead",
            );
        }
        parsed.set_fragment(None);
        if parsed.path_segments().is_some_and(|mut parts| parts.any(looks_random)) {
            self.note(
                id,
                "the path of its URL may hold a secret; if it does, keep gateway.toml to yourself",
            );
        }
        if parsed.query().is_some() {
            parsed.set_query(None);
            self.note(id, "the query of its URL is left out, since it may hold a secret; add it if it does not");
        }
        if has_user || url.contains(['?', '#']) { parsed.to_string() } else { url.to_owned() }
    }

    /// Returns `{ env = "NAME" }`, with the variable that the host refers to, or else with `name`.
    /// Servers with different values for one name get separate variables.
    fn secret(&mut self, id: &str, value: &str, name: &str) -> Toml {
        let variable = match reference(value) {
            Some(variable) => {
                self.variables.entry(variable.clone()).or_default();
                variable
            }
            None => {
                if value.contains("${") {
                    self.note(
                        id,
                        &format!(
                            "{name} consists of several parts; set the variable to the whole value"
                        ),
                    );
                }
                let is_taken = |name: &str| {
                    self.reserved.contains(name)
                        || self
                            .variables
                            .get(name)
                            .is_some_and(|other| other.as_deref() != Some(value))
                };
                let of_server = exportable(&format!("{}_{name}", upper(id)));
                let numbered = (2..).map(|number| format!("{of_server}_{number}"));
                let mut names = [exportable(name), of_server.clone()].into_iter().chain(numbered);
                let own = names.find(|name| !is_taken(name)).unwrap_or(of_server);
                self.variables.insert(own.clone(), Some(value.to_owned()));
                own
            }
        };
        let mut secret = InlineTable::new();
        secret.insert("env", variable.as_str().into());
        secret.into()
    }
}

/// Returns a text, number or boolean as text.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Returns a name that a shell can export.
fn exportable(name: &str) -> String {
    let upper = upper(name);
    if upper.starts_with(|c: char| c.is_ascii_digit()) { format!("_{upper}") } else { upper }
}

/// Most characters of an id, with room for a number.
const MAX_ID: usize = 60;

/// Whether a command serves a gateway, as the entry that `promptgate connect` writes does.
fn is_gateway(command: &ServerCommand<'_>) -> bool {
    let program = Path::new(command.program).file_stem().and_then(OsStr::to_str);
    program == Some(env!("CARGO_PKG_NAME")) && command.arguments.iter().any(|word| word == "serve")
}

/// Reads `command`, `args` and `env`. Older versions of Zed have all three in an object `command`.
fn command(entry: &Value) -> Option<ServerCommand<'_>> {
    let command = entry.get("command")?;
    let (program, rest) = match command {
        Value::String(program) => (program.as_str(), entry),
        Value::Object(_) => (command.get("path")?.as_str()?, command),
        _ => return None,
    };
    let arguments = rest.get("args").and_then(Value::as_array).into_iter().flatten();
    Some(ServerCommand {
        program,
        arguments: arguments.filter_map(scalar).collect(),
        env: rest.get("env").and_then(Value::as_object),
    })
}

/// Returns the variable that a value consists of: `$NAME`, `${NAME}`, `${NAME:-default}`,
/// `${env:NAME}` or `${input:name}`.
fn reference(value: &str) -> Option<String> {
    let is_variable = |name: &str| {
        let is_first = |c: char| c.is_ascii_uppercase() || c == '_';
        let is_passthrough = |c: char| is_first(c) || c.is_ascii_digit();
        name.starts_with(is_first) && name.chars().all(is_passthrough)
    };
    if let Some(name) = value.strip_prefix('$').filter(|name| is_variable(name)) {
        return Some(name.to_owned());
    }
    let inner = value.strip_prefix("${")?.strip_suffix('}')?;
    if let Some(input) = inner.strip_prefix("input:") {
        let is_name = !input.is_empty()
            && input.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        return is_name.then(|| exportable(input));
    }
    let name = inner.strip_prefix("env:").unwrap_or(inner);
    let name = name.split(":-").next().unwrap_or(name);
    is_variable(name).then(|| name.to_owned())
}

/// Whether a value is certainly no secret, so that it may be shown: a switch, a short number, or
/// words, under a name that is not that of a secret.
fn is_plain(name: &str, value: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || "-_.,:/ ".contains(c);
    let is_words = value.len() <= MAX_PLAIN && value.chars().all(is_word);
    let is_number =
        value.len() <= MAX_NUMBER && value.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let is_switch = ["true", "false"].contains(&value.to_ascii_lowercase().as_str());
    let is_local = ["http://localhost:", "http://127.0.0.1:"].iter().any(|start| {
        value.strip_prefix(start).is_some_and(|port| {
            port.len() <= MAX_NUMBER && port.bytes().all(|b| b.is_ascii_digit())
        })
    });
    !is_secret_name(name)
        && !looks_secret(value)
        && (is_words || is_number || is_switch || is_local)
}

/// Longest words, and longest number, that are shown, in bytes.
const MAX_PLAIN: usize = 40;
const MAX_NUMBER: usize = 6;

/// Returns a name as that of an environment variable.
fn upper(name: &str) -> String {
    let upper = name.to_ascii_uppercase();
    upper.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn is_secret_name(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let words =
        ["TOKEN", "KEY", "SECRET", "PASS", "PWD", "CREDENTIAL", "AUTH", "COOKIE", "DSN", "WEBHOOK"];
    words.iter().any(|word| upper.contains(word))
}

/// The placeholder for a secret that cannot be a variable.
const REPLACED: &str = "REPLACE_ME";

/// Returns an argument without secrets, and whether a secret was replaced. `is_value`: the previous
/// argument is an option that is named like a secret.
fn without_secret(argument: &str, is_value: bool) -> (String, bool) {
    if let Some(variable) = reference(argument) {
        // Without its default, which may be the secret itself.
        return (format!("${{{variable}}}"), false);
    }
    if is_value || looks_secret(argument) {
        return (REPLACED.to_owned(), true);
    }
    if let Some((option, value)) = argument.split_once('=').filter(|_| argument.starts_with('-')) {
        let (shown, has_secret) = without_secret(value, names_secret_value(option));
        return (format!("{option}={shown}"), has_secret);
    }
    if let Some(shown) = without_query(argument) {
        return (shown, true);
    }
    // A variable or a header with its value.
    let parts = argument.split_once(['=', ':']);
    match parts {
        Some((name, value))
            if !value.trim().is_empty()
                && !value.starts_with("//")
                && (is_secret_name(name) || looks_secret(value.trim())) =>
        {
            let separator = &argument[name.len()..=name.len()];
            (format!("{name}{separator}{REPLACED}"), true)
        }
        _ => (argument.to_owned(), false),
    }
}

/// Returns a URL with a placeholder for its query and fragment, which may hold a secret; `None` for
/// a URL without them, and for other texts.
fn without_query(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme))?;
    let at = text.len() - rest.len() + rest.find(['?', '#'])?;
    Some(format!("{}{REPLACED}", &text[..=at]))
}

/// Whether a text has the form of a well-known token or of random characters, or is a URL with a
/// password.
fn looks_secret(text: &str) -> bool {
    let prefixes = [
        "ghp_",
        "github_pat_",
        "gho_",
        "glpat-",
        "sk-",
        "xoxb-",
        "xoxp-",
        "AKIA",
        "eyJ",
        "Bearer ",
        "Basic ",
    ];
    let has_password = text.split_once("://").is_some_and(|(_, rest)| {
        rest.split('/').next().is_some_and(|authority| authority.contains('@'))
    });
    prefixes.iter().any(|prefix| text.starts_with(prefix)) || has_password || looks_random(text)
}

/// Shortest text that may be random: shorter ones are words, versions and names.
const LEAST_RANDOM: usize = 20;

fn looks_random(text: &str) -> bool {
    let is_token = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_+=".contains(&b));
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    // Names of packages and models have few digits, and words between hyphens.
    text.len() >= LEAST_RANDOM
        && is_token
        && digits >= 4
        && text.bytes().any(|b| b.is_ascii_alphabetic())
}

/// Whether the argument after this option may be a secret: its name says so, or it is a header.
fn names_secret_value(option: &str) -> bool {
    is_secret_name(option) || ["-H", "--header"].contains(&option)
}

/// Returns the `${…}` of a text, for a note.
fn placeholders(text: &str) -> String {
    let found = text.match_indices("${").filter_map(|(at, _)| {
        let end = text[at..].find('}')?;
        Some(&text[at..=at + end])
    });
    found.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d7_a_short_name_of_a_password_is_the_name_of_a_secret() {
        for name in ["SMTP_PASS", "DB_PWD", "SLACK_WEBHOOK", "DB_PASSWORD", "PASSWD"] {
            assert!(!is_plain(name, "hunter"), "{name}");
        }
        assert!(is_plain("LOG_LEVEL", "debug") && !is_secret_name("--path"));
    }
}
