//! The hosts: where each keeps its servers, and the entry that it understands. Keys stand in an
//! entry as variables only.

mod edit;
mod install;

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Value, json};

pub use edit::with_entry;
pub use install::install_link;

/// A host that connects to MCP servers.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Host {
    ClaudeCode,
    ClaudeDesktop,
    #[value(name = "vscode")]
    VsCode,
    Cursor,
    Codex,
    Gemini,
    Zed,
    Goose,
    Inspector,
}

impl Host {
    /// Returns its name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code",
            Self::ClaudeDesktop => "Claude Desktop",
            Self::VsCode => "VS Code",
            Self::Cursor => "Cursor",
            Self::Codex => "Codex",
            Self::Gemini => "Gemini CLI",
            Self::Zed => "Zed",
            Self::Goose => "goose",
            Self::Inspector => "MCP Inspector",
        }
    }

    /// Whether the host supports prompts, or tools only.
    pub fn takes_prompts(self) -> bool {
        self != Self::Codex
    }

    /// Says whether the host supports skills over MCP, as far as that is known.
    fn skills(self) -> String {
        let name = self.title();
        match self {
            Self::ClaudeCode => format!(
                "{name} takes skills over MCP in beta, where its vendor has switched it on (off by \
                 default for team plans): at most 100, of 512 KiB."
            ),
            Self::Codex => format!("{name} reads skills by the tools find_skill and read_skill."),
            _ => format!(
                "{name} is not known to take skills over MCP: expose_skills = [\"prompts\"] of an \
                 upstream makes them prompts."
            ),
        }
    }

    /// Returns the host's file in the home of each user, and the systems that have it there; empty
    /// if the file is in the folder of a project.
    pub fn user_files(self) -> Vec<(String, Vec<&'static str>)> {
        let systems =
            [("Linux", System::Xdg), ("macOS", System::MacOs), ("Windows", System::Windows)];
        let mut files: Vec<(String, Vec<_>)> = Vec::new();
        for (name, system) in systems {
            let Some(file) = UserFolders::of_anyone(system).file_of(self) else { continue };
            let file = file.display().to_string();
            match files.iter_mut().find(|(known, _)| *known == file) {
                Some((_, names)) => names.push(name),
                None => files.push((file, vec![name])),
            }
        }
        files
    }
}

/// Default name of the entry. Some hosts show it before the names of prompts, such as
/// `/mcp__prompts__NAME`.
pub const ENTRY: &str = "prompts";

/// Environment variable with the API key or token of a client. It is no argument, because every
/// user of the machine can read the arguments of a process.
pub const KEY_VARIABLE: &str = "PROMPTGATE_API_KEY";

/// The gateway that an entry is for.
pub struct GatewayEndpoint<'a> {
    /// Name of the entry.
    pub name: &'a str,
    pub url: &'a str,
    /// Whether the URL is not that of the main endpoint, which alone is served over standard
    /// streams.
    pub is_view: bool,
    pub needs_key: bool,
    /// Whether the endpoint is known to offer prompts as tools.
    pub has_tools: bool,
    /// The configuration file, as an absolute path; `None` if it does not exist.
    pub config: Option<PathBuf>,
}

/// Instructions to connect a host.
#[derive(Debug, Default)]
pub struct Plan {
    /// A command that writes the entry.
    pub command: Option<String>,
    /// The entry; `None` where the host has no file.
    pub place: Option<FileEntry>,
    pub notes: Vec<String>,
}

/// An entry in the file of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct FileEntry {
    /// `None` where the file is not known on this system.
    pub file: Option<PathBuf>,
    pub format: Format,
    /// The member that holds the entries.
    pub container: &'static str,
    pub entry: Value,
    /// A question for the key, which VS Code asks and keeps: an element of `inputs`.
    pub input: Option<Value>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// With comments and trailing commas.
    Json,
    Toml,
    Yaml,
}

pub fn plan(host: Host, gateway: &GatewayEndpoint<'_>) -> Plan {
    let url = gateway.url;
    let place =
        |format, container, file, entry| FileEntry { file, format, container, entry, input: None };
    let json_place = |container, file, entry| Some(place(Format::Json, container, file, entry));
    let user_file = UserFolders::current().file_of(host);
    let mut plan = Plan::default();
    // VS Code prompts for the key itself, and the gateway that Claude Desktop starts has only one
    // caller.
    let has_own_key = host == Host::VsCode || (host == Host::ClaudeDesktop && !gateway.is_view);
    if gateway.needs_key && !has_own_key {
        plan.notes.push(format!("Set {KEY_VARIABLE} to your API key where the host runs."));
    }
    match host {
        Host::ClaudeCode => {
            let header = gateway.needs_key.then(|| bearer("${", "}"));
            let flag = header
                .as_ref()
                .map_or(String::new(), |h| format!(" --header 'Authorization: {h}'"));
            plan.command =
                Some(format!("claude mcp add --transport http {} {url}{flag}", gateway.name));
            let entry = with_header(json!({"type": "http", "url": url}), header);
            plan.place = json_place("mcpServers", Some(".mcp.json".into()), entry);
        }
        Host::ClaudeDesktop => {
            let entry = if gateway.is_view {
                mcp_remote(gateway)
            } else {
                plan.notes.push(
                    "The host starts a gateway of its own, with this configuration file. It inherits few variables: give \
                     secrets of the file as { file = … }, or add them to an `env` of the entry."
                        .to_owned(),
                );
                let config = gateway.config.as_deref().map(|path| path.display().to_string());
                json!({"command": program(), "args": ["serve", "--stdio", "-c", config.unwrap_or_default()]})
            };
            plan.place = json_place("mcpServers", user_file, entry);
        }
        Host::VsCode => {
            let id = format!("{}-key", gateway.name);
            let header = gateway.needs_key.then(|| format!("Bearer ${{input:{id}}}"));
            let entry = with_header(json!({"type": "http", "url": url}), header);
            let input = json!({"type": "promptString", "id": id, "password": true,
                "description": "API key of promptgate"});
            let place = place(Format::Json, "servers", Some(".vscode/mcp.json".into()), entry);
            plan.place = Some(FileEntry { input: gateway.needs_key.then_some(input), ..place });
        }
        Host::Cursor => {
            let header = gateway.needs_key.then(|| bearer("${env:", "}"));
            let entry = with_header(json!({"url": url}), header);
            plan.place = json_place("mcpServers", Some(".cursor/mcp.json".into()), entry);
        }
        Host::Codex => {
            let mut entry = json!({"url": url});
            if gateway.needs_key {
                entry["bearer_token_env_var"] = KEY_VARIABLE.into();
            }
            if !gateway.has_tools {
                plan.notes.push("Codex knows tools only: the endpoint needs expose = [\"prompts\", \"tools\"], in [server] or in its view.".to_owned());
            }
            plan.place = Some(place(Format::Toml, "mcp_servers", user_file, entry));
        }
        Host::Gemini => {
            let header = gateway.needs_key.then(|| bearer("${", "}"));
            let entry = with_header(json!({"httpUrl": url}), header);
            plan.place = json_place("mcpServers", Some(".gemini/settings.json".into()), entry);
        }
        Host::Zed => {
            // Zed has no variables in headers.
            let entry = if gateway.needs_key { mcp_remote(gateway) } else { json!({"url": url}) };
            plan.place = json_place("context_servers", user_file, entry);
        }
        Host::Goose => {
            let mut entry = json!({"type": "streamable_http", "name": gateway.name, "enabled": true,
                "uri": url, "timeout": 300});
            if gateway.needs_key {
                entry["env_keys"] = json!([KEY_VARIABLE]);
                entry = with_header(entry, Some(bearer("${", "}")));
            }
            plan.place = Some(place(Format::Yaml, "extensions", user_file, entry));
        }
        Host::Inspector => {
            let header = gateway
                .needs_key
                .then(|| format!(" --header \"Authorization: Bearer ${KEY_VARIABLE}\""));
            plan.command = Some(format!(
                "npx @modelcontextprotocol/inspector --cli {url} --transport http{} --method prompts/list",
                header.unwrap_or_default()
            ));
        }
    }
    plan.notes.push(host.skills());
    plan
}

/// Returns `Bearer` with the variable of the key, in the syntax of a host.
fn bearer(before: &str, after: &str) -> String {
    format!("Bearer {before}{KEY_VARIABLE}{after}")
}

fn with_header(mut entry: Value, header: Option<String>) -> Value {
    if let Some(header) = header {
        entry["headers"] = json!({"Authorization": header});
    }
    entry
}

/// Returns the entry of a bridge from standard streams to HTTP, which reads variables in its
/// headers.
fn mcp_remote(gateway: &GatewayEndpoint<'_>) -> Value {
    let mut arguments = vec!["-y".to_owned(), "mcp-remote".to_owned(), gateway.url.to_owned()];
    if gateway.needs_key {
        let header = format!("Authorization:{}", bearer("${", "}"));
        arguments.extend(["--header".to_owned(), header]);
    }
    json!({"command": "npx", "args": arguments})
}

/// Returns the path of this program: hosts do not have the shell's `PATH`.
fn program() -> String {
    let program = std::env::current_exe().ok();
    program.map_or("promptgate".to_owned(), |program| program.display().to_string())
}

/// The operating systems on which hosts have their files in different places.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum System {
    /// Linux, and others that follow the XDG Base Directory Specification.
    Xdg,
    MacOs,
    Windows,
}

/// The folders of the user, where they are known.
struct UserFolders {
    system: System,
    home: Option<PathBuf>,
    /// `$XDG_CONFIG_HOME`, or `.config` at home.
    config: Option<PathBuf>,
    /// `%APPDATA%` of Windows.
    roaming: Option<PathBuf>,
}

impl UserFolders {
    fn current() -> Self {
        let system = match std::env::consts::OS {
            "macos" => System::MacOs,
            "windows" => System::Windows,
            _ => System::Xdg,
        };
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let home = std::env::home_dir();
        let config = variable("XDG_CONFIG_HOME").filter(|folder| folder.is_absolute());
        let config = config.or_else(|| Some(home.as_ref()?.join(".config")));
        Self { system, home, config, roaming: variable("APPDATA") }
    }

    /// The folders in the notation for any user and machine (`~`, `%APPDATA%`).
    fn of_anyone(system: System) -> Self {
        let folder = |path: &str| Some(PathBuf::from(path));
        let (home, config) = (folder("~"), folder("~/.config"));
        Self { system, home, config, roaming: folder("%APPDATA%") }
    }

    /// Returns the file of a host that has one for each user, as the host's documentation names it.
    fn file_of(&self, host: Host) -> Option<PathBuf> {
        let (folder, file) = match (host, self.system) {
            (Host::Codex, _) => (&self.home, ".codex/config.toml"),
            (Host::ClaudeDesktop, System::Windows) => {
                (&self.roaming, "Claude/claude_desktop_config.json")
            }
            (Host::ClaudeDesktop, System::MacOs) => {
                (&self.home, "Library/Application Support/Claude/claude_desktop_config.json")
            }
            (Host::ClaudeDesktop, System::Xdg) => {
                (&self.config, "Claude/claude_desktop_config.json")
            }
            (Host::Zed, System::Windows) => (&self.roaming, "Zed/settings.json"),
            (Host::Zed, _) => (&self.config, "zed/settings.json"),
            (Host::Goose, System::Windows) => (&self.roaming, "Block/goose/config/config.yaml"),
            (Host::Goose, _) => (&self.config, "goose/config.yaml"),
            _ => return None,
        };
        Some(folder.as_ref()?.join(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_host_is_where_each_system_has_it() {
        let folders = |system| UserFolders {
            system,
            home: Some("/home".into()),
            config: Some("/home/.config".into()),
            roaming: Some("/roaming".into()),
        };
        let file = |system, host| folders(system).file_of(host).map(|p| p.display().to_string());
        for (host, xdg, mac_os, windows) in [
            (
                Host::ClaudeDesktop,
                "/home/.config/Claude/claude_desktop_config.json",
                "/home/Library/Application Support/Claude/claude_desktop_config.json",
                "/roaming/Claude/claude_desktop_config.json",
            ),
            (
                Host::Zed,
                "/home/.config/zed/settings.json",
                "/home/.config/zed/settings.json",
                "/roaming/Zed/settings.json",
            ),
            (
                Host::Goose,
                "/home/.config/goose/config.yaml",
                "/home/.config/goose/config.yaml",
                "/roaming/Block/goose/config/config.yaml",
            ),
            (
                Host::Codex,
                "/home/.codex/config.toml",
                "/home/.codex/config.toml",
                "/home/.codex/config.toml",
            ),
        ] {
            for (system, expected) in
                [(System::Xdg, xdg), (System::MacOs, mac_os), (System::Windows, windows)]
            {
                assert_eq!(file(system, host).as_deref(), Some(expected), "{system:?}");
            }
        }
        let unknown = UserFolders { roaming: None, ..folders(System::Windows) };
        assert_eq!(unknown.file_of(Host::Zed), None, "--to names it");
    }

    #[test]
    fn files_of_users_are_below_their_own_home() {
        let files = |host: Host| host.user_files();
        let all = vec!["Linux", "macOS", "Windows"];
        assert_eq!(files(Host::Codex), [("~/.codex/config.toml".to_owned(), all)]);
        let zed = [
            ("~/.config/zed/settings.json".to_owned(), vec!["Linux", "macOS"]),
            ("%APPDATA%/Zed/settings.json".to_owned(), vec!["Windows"]),
        ];
        assert_eq!(files(Host::Zed), zed);
        assert_eq!(files(Host::Cursor), []);
    }
}
