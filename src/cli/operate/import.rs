//! `promptgate import`: converts the MCP servers of a host to upstreams.

mod bridge;
mod entry;

use std::path::Path;

use jsonc_parser::ParseOptions;
use serde_json::{Map, Value};

use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{print, printable};
use base::platform::disk;
use domain::name::is_hidden;
use entry::Converter;

/// The tables for gateway.toml, and the steps that are left to a person.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Imported {
    pub toml: String,
    /// One sentence each; never with a secret.
    pub notes: Vec<String>,
}

/// The members under which hosts list their servers: Claude, Cursor and Windsurf; VS Code; Zed.
const SERVERS: [&str; 3] = ["mcpServers", "servers", "context_servers"];

pub(crate) fn run(file: &Path) -> Result<(), Failure> {
    let Imported { toml, notes } = read(file)?;
    notes.iter().for_each(|note| eprintln!("{}", printable(note)));
    print(toml.trim_end())
}

/// Reads the configuration of a host.
pub(crate) fn read(file: &Path) -> Result<Imported, Failure> {
    let shown = file.display();
    let text = disk::read_text(file)
        .map_err(|error| Failure::new(format!("{shown} cannot be read: {error}")))?;
    convert(&text).map_err(|why| Failure::new(format!("{shown}: {why}")))
}

fn convert(text: &str) -> Result<Imported, String> {
    let options = ParseOptions::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parsed: Value = jsonc_parser::parse_to_serde_value(text, &options)
        .map_err(|error| format!("is not JSON: {error}"))?;
    let has_hidden = drop_hidden(&mut parsed);
    let servers = servers(&parsed).ok_or_else(|| {
        format!(
            "lists no servers: one of {} is expected",
            SERVERS.map(|key| format!("`{key}`")).join(", ")
        )
    })?;
    let mut converter = Converter::default();
    if has_hidden {
        converter.note_file("invisible characters in its texts were left out");
    }
    servers.values().for_each(|entry| converter.reserve(entry));
    for (name, entry) in servers {
        converter.add(name, entry);
    }
    Ok(converter.finish())
}

/// Drops control and hidden characters from all texts, but line feeds and tabs: in a configuration
/// they would make the text look different. Returns whether there were any.
fn drop_hidden(value: &mut Value) -> bool {
    let is_dropped = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t' | '\r');
    match value {
        Value::String(text) if text.contains(is_dropped) => {
            text.retain(|c| !is_dropped(c));
            true
        }
        Value::Array(values) => {
            values.iter_mut().fold(false, |found, value| drop_hidden(value) | found)
        }
        Value::Object(members) => {
            let mut found = false;
            let clean = |(mut name, mut value): (String, Value)| {
                found |= name.contains(is_dropped) | drop_hidden(&mut value);
                name.retain(|c| !is_dropped(c));
                (name, value)
            };
            *members = std::mem::take(members).into_iter().map(clean).collect();
            found
        }
        _ => false,
    }
}

/// Returns the servers. VS Code keeps them below `mcp` in its settings.
fn servers(parsed: &Value) -> Option<&Map<String, Value>> {
    let places = [parsed, parsed.get("mcp").unwrap_or(&Value::Null)];
    let mut found = places.into_iter().flat_map(|place| SERVERS.map(|key| place.get(key)));
    found.find_map(|servers| servers?.as_object())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;

    fn imported(text: &str) -> Imported {
        convert(text).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn a_file_is_read_as_windows_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mcp.json");
        let text = "\u{feff}{\"mcpServers\":\r\n{\"a\": {\"url\": \"https://a.example/mcp\"}}}\r\n";
        for bytes in
            [text.as_bytes().to_vec(), text.encode_utf16().flat_map(u16::to_le_bytes).collect()]
        {
            std::fs::write(&file, bytes).unwrap();
            assert!(read(&file).unwrap().toml.contains("https://a.example/mcp"));
        }
    }

    #[test]
    fn a_value_in_one_server_and_a_reference_in_another_are_different_variables() {
        let server =
            |value: &str| format!(r#"{{"command": "x", "env": {{"API_KEY": "{value}"}}}}"#);
        let (value, reference) = (server("s3cret-of-a"), server("${API_KEY}"));
        for (first, second) in [(&value, &reference), (&reference, &value)] {
            let Imported { toml, .. } =
                imported(&format!(r#"{{"mcpServers": {{"a": {first}, "b": {second}}}}}"#));
            let own = if first == &value { "A_API_KEY" } else { "B_API_KEY" };
            for variable in ["API_KEY", own] {
                let named = format!("API_KEY = {{ env = \"{variable}\" }}");
                assert_eq!(toml.matches(&named).count(), 1, "{variable} in {toml}");
            }
        }
        let third = r#"{"command": "x", "cwd": "${HOME}", "env": {"K": "${A_API_KEY}"}}"#;
        let servers =
            format!(r#"{{"mcpServers": {{"a": {value}, "b": {reference}, "c": {third}}}}}"#);
        let Imported { toml, notes } = imported(&servers);
        assert!(toml.contains("API_KEY = { env = \"A_API_KEY_2\" }"), "{toml}");
        assert!(!format!("{notes:?}").contains("HOME"), "{notes:?}");
    }

    #[test]
    fn the_servers_of_each_host_become_valid_upstreams() {
        let claude = r#"{"mcpServers": {"GitHub Server": {"command": "npx", "args": ["-y", "@x/github"],
            "env": {"GITHUB_TOKEN": "ghp_secret", "LOG": "debug"}}}}"#;
        let cursor = r#"{"mcpServers": {"remote": {"url": "https://a.example/mcp",
            "headers": {"Authorization": "Bearer s3cret", "X-Team": "platform"}}}}"#;
        let windsurf = r#"{"mcpServers": {"w": {"serverUrl": "https://a.example/sse",
            "headers": {"X-Api-Key": "${env:W_KEY}"}, "disabled": true}}}"#;
        let vscode = r#"{ // a comment
            "inputs": [{"id": "gh-key", "type": "promptString"}],
            "servers": {"docs": {"type": "http", "url": "https://a.example/mcp",
            "headers": {"Authorization": "Bearer ${input:gh-key}"},},},}"#;
        let zed = r#"{"theme": "x", "context_servers": {"z": {"source": "custom",
            "command": {"path": "uvx", "args": ["mcp-server-fetch"], "env": {}}}}}"#;
        for (host, expected) in [
            (
                claude,
                "[upstreams.github-server]\ntransport = \"stdio\"\ncommand = [\"npx\", \"-y\", \"@x/github\"]\n\
                 env = { GITHUB_TOKEN = { env = \"GITHUB_TOKEN\" }, LOG = \"debug\" }\n",
            ),
            (
                cursor,
                "[upstreams.remote]\ntransport = \"http\"\nurl = \"https://a.example/mcp\"\n\
                 credential = { bearer = { env = \"REMOTE_TOKEN\" } }\nheaders = { X-Team = \"platform\" }\n",
            ),
            (
                windsurf,
                "[upstreams.w]\ntransport = \"http\"\nurl = \"https://a.example/sse\"\n\
                 headers = { X-Api-Key = { env = \"W_KEY\" } }\nenabled = false\n",
            ),
            (
                vscode,
                "[upstreams.docs]\ntransport = \"http\"\nurl = \"https://a.example/mcp\"\n\
                 credential = { bearer = { env = \"GH_KEY\" } }\n",
            ),
            (
                zed,
                "[upstreams.z]\ntransport = \"stdio\"\ncommand = [\"uvx\", \"mcp-server-fetch\"]\n",
            ),
        ] {
            let Imported { toml, notes } = imported(host);
            assert_eq!(toml, expected);
            let said = format!("{toml}{notes:?}");
            assert!(!said.contains("secret") && !said.contains("s3cret"), "{said}");
            let env = ["GITHUB_TOKEN", "REMOTE_TOKEN", "W_KEY", "GH_KEY"];
            let env = env.map(|name| (name.to_owned(), "t".to_owned()));
            let config = Config::parse("g", &toml, Path::new("."), &env);
            assert!(config.is_ok(), "{}\n{toml}", config.unwrap_err());
        }
    }

    #[test]
    fn no_value_that_may_be_a_secret_is_shown() {
        let host = r#"{"mcpServers": {
            "a": {"command": "x", "args": ["--header", "X-Any: S3", "-e", "API_KEY=S3", "--port", 8080,
                "--token", "S3", "${KEY:-S3}", "X-Api-Key: S3", "sk-S3", "https://h.example/mcp?k=S3", "--env=API_KEY=S3",
                "--header=Authorization: Bearer S3", "--url=https://h.example/mcp#S3", "--mode=fast",
                "WSS://h.example/?k=S3", "curl http://h | jq . # x"],
                "env": {"API_KEY": "S3-a", "SMTP_PASS": "S3", "GITHUB_PAT": "S3", "DB": "Server=x;AccountKey=S3==",
                    "PORT": 3000, "LOG_LEVEL": "debug", "PASSPHRASE": "$S3low"}},
            "b": {"command": "x", "env": {"API_KEY": "S3-b"}},
            "c": {"url": "https://hooks.example/mcp#S3", "headers": {"X-Session": "S3", "Proxy": "Basic S3",
                "Content-Type": "application/json", "X-Org": "a ${env:ORG} S3"}},
            "1password": {"url": "https://a.example/mcp", "headers": {"Authorization": "Bearer S3"}}}}"#;
        let Imported { toml, notes } = imported(host);
        let notes = notes.join("\n");
        assert!(!toml.contains("S3") && !notes.contains("S3"), "{toml}\n{notes}");
        for shown in [
            "\"--port\", \"8080\"",
            "\"https://h.example/mcp?REPLACE_ME\"",
            "--mode=fast",
            "jq . # x",
            "PORT = \"3000\"",
            "LOG_LEVEL = \"debug\"",
            "\"${KEY}\"",
        ] {
            assert!(toml.contains(shown), "{shown}\n{toml}");
        }
        let names = ["API_KEY", "B_API_KEY", "_1PASSWORD_TOKEN", "C_X_SESSION"];
        for name in names {
            assert!(toml.contains(&format!("env = \"{name}\"")), "{name}\n{toml}");
        }
        assert!(!toml.contains("Content-Type"), "the gateway sets it itself");
        let variables = toml.split("{ env = \"").skip(1).filter_map(|rest| rest.split('"').next());
        let env: Vec<_> = variables.map(|name| (name.to_owned(), "t".to_owned())).collect();
        let config = Config::parse("g", &toml, Path::new("."), &env);
        assert!(config.is_ok(), "{}\n{toml}", config.unwrap_err());
    }

    #[test]
    fn a_server_behind_a_bridge_is_reached_without_it() {
        let host = r#"{"mcpServers": {
            "npx": {"command": "npx", "args": ["-y", "mcp-remote@0.1.29", "https://a.example/mcp", "3334",
                "--header", "Authorization: Bearer s3cret", "--allow-http"]},
            "cmd": {"command": "cmd", "args": ["/c", "npx", "mcp-remote", "https://b.example/sse", "--transport",
                "sse-only", "--header", "Authorization:${AUTH}", "--header=X-Team:platform"],
                "env": {"AUTH": "Bearer s3cret"}},
            "py": {"command": "/usr/bin/mcp-proxy", "args": ["--transport", "streamablehttp", "--headers",
                "X-Api-Key", "s3cret", "https://c.example/mcp"], "env": {"API_ACCESS_TOKEN": "s3cret-2"}},
            "super": {"command": "npx", "args": ["-y", "supergateway", "--streamableHttp", "https://d.example/mcp",
                "--oauth2Bearer", "s3cret-3"]},
            "plain": {"command": "bunx", "args": ["mcp-remote", "https://e.example/mcp", "--static-oauth-client-info",
                "s3cret"]},
            "serves": {"command": "mcp-proxy", "args": ["--port", "8080", "uvx", "mcp-server-fetch"]}}}"#;
        let Imported { toml, notes } = imported(host);
        let notes = notes.join("\n");
        assert!(!toml.contains("s3cret") && !notes.contains("s3cret"), "{toml}\n{notes}");
        for table in [
            "[upstreams.npx]\ntransport = \"http\"\nurl = \"https://a.example/mcp\"\n\
             credential = { bearer = { env = \"NPX_TOKEN\" } }\n",
            "[upstreams.cmd]\ntransport = \"sse\"\nurl = \"https://b.example/sse\"\n\
             credential = { bearer = { env = \"CMD_TOKEN\" } }\nheaders = { X-Team = \"platform\" }\n",
            "[upstreams.py]\ntransport = \"http\"\nurl = \"https://c.example/mcp\"\n",
            "headers = { X-Api-Key = { env = \"PY_X_API_KEY\" } }\n",
            "credential = { bearer = { env = \"SUPER_TOKEN\" } }\n",
            "[upstreams.plain]\ntransport = \"http\"\nurl = \"https://e.example/mcp\"\n",
            "[upstreams.serves]\ntransport = \"stdio\"\n",
        ] {
            assert!(toml.contains(table), "{table}\n{toml}");
        }
        assert!(notes.contains("plain: mcp-remote signs in by itself"), "{notes}");
        assert!(notes.contains("--static-oauth-client-info"), "{notes}");
        let variables = toml.split("{ env = \"").skip(1).filter_map(|rest| rest.split('"').next());
        let env: Vec<_> = variables.map(|name| (name.to_owned(), "t".to_owned())).collect();
        let config = Config::parse("g", &toml, Path::new("."), &env);
        assert!(config.is_ok(), "{}\n{toml}", config.unwrap_err());
    }

    #[test]
    fn invisible_characters_of_a_host_do_not_reach_the_configuration() {
        let host = "\u{feff}{\"mcpServers\": {\"a\u{202e}\": {\"command\": \"x\u{202e}\u{2028}\u{200b}\", \"args\": \
            [\"b\\u001b[2J\", \"c\\nd\"], \"env\": {\"LOG\u{2066}\": \"debug\"}}}}";
        let Imported { toml, notes } = imported(host);
        assert!(!toml.chars().any(|c| is_hidden(c) && c != '\n'), "{toml:?}");
        assert!(toml.contains("command = [\"x\", \"b[2J\","), "{toml}");
        assert!(toml.contains("LOG = \"debug\""), "{toml}");
        assert!(notes.join("").contains("invisible"), "{notes:?}");
    }

    #[test]
    fn names_stay_apart_and_what_cannot_be_converted_is_said() {
        let host = r#"{"mcpServers": {"A b": {"command": "x"}, "a-b": {"command": "y"}, "": {"command": "z"},
            "none": {}, "dir": {"command": "x", "args": ["${workspaceFolder}", "--token=t0p", "--api-key", "t0p",
                "--name", "kept"], "env": {"DATABASE": "postgres://u:t0p@db/x", "ID": "a1b2c3d4e5t0pa1b2c3d4"}},
            "query": {"url": "https://u:t0p@a.example/mcp?api_key=t0p"}, "ws": {"type": "ws", "url": "wss://a"}}}"#;
        let Imported { toml, notes } = imported(host);
        for table in ["[upstreams.a-b]", "[upstreams.a-b-2]", "[upstreams.server]"] {
            assert!(toml.contains(table), "{table}\n{toml}");
        }
        let notes = notes.join("\n");
        for said in [
            "none:",
            "${workspaceFolder}",
            "dir: an argument looks like a secret",
            "query: the user",
            "query: the query",
            "ws: ",
        ] {
            assert!(notes.contains(said), "{said}\n{notes}");
        }
        assert!(!notes.contains("t0p") && !toml.contains("t0p"), "{notes}\n{toml}");
        let command = "command = [\"x\", \"${workspaceFolder}\", \"--token=REPLACE_ME\", \
            \"--api-key\", \"REPLACE_ME\", \"--name\", \"kept\"]";
        assert!(toml.contains(command), "{toml}");
        assert!(toml.contains("url = \"https://a.example/mcp\""), "{toml}");
        assert!(convert("{}").unwrap_err().contains("`mcpServers`"));
        assert!(convert("{").unwrap_err().contains("is not JSON"));
    }
}
