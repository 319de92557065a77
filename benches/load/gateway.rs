//! The gateway under test, in several configurations, and the requests that are sent to it.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::time::Instant;

use super::client::{Connection, NUMBER, Prepared, initialize};
use super::process::{Process, address};
use super::upstreams::UpstreamOptions;

/// The API key of the caller `load`.
pub const KEY: &str = "pg_load";

/// The configuration besides the upstreams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Configured {
    /// No authentication, no rules, no audit log, no collector.
    Bare,
    /// The same with an API key.
    Key,
    /// Bare with a collector and 1 % of the traces.
    Traces,
    /// An API key, ten access rules, three rate limits, the audit log, a collector and 1 % of the
    /// traces.
    Everything,
    /// The same, and a record counts as written once the disk has it.
    Strict,
}

impl Configured {
    /// Whether callers need the key.
    pub fn has_key(self) -> bool {
        !matches!(self, Self::Bare | Self::Traces)
    }
}

/// The scripted upstreams.
pub struct Upstreams {
    _process: Process,
    pub addresses: Vec<SocketAddr>,
    pub prompts: usize,
}

impl Upstreams {
    pub fn start(options: &UpstreamOptions) -> Self {
        let UpstreamOptions { upstreams, prompts, text, big, slow } = options;
        let arguments = [
            ("--upstreams", upstreams.to_string()),
            ("--prompts", prompts.to_string()),
            ("--text", text.to_string()),
            ("--big", big.to_string()),
            ("--slow", slow.to_string()),
        ];
        let arguments = arguments.iter().flat_map(|(name, value)| [*name, value.as_str()]);
        let arguments: Vec<&str> = ["upstreams"].into_iter().chain(arguments).collect();
        let mut process = Process::role(&arguments);
        let addresses = (0..*upstreams).map(|_| address(&process.line())).collect();
        Self { addresses, prompts: upstreams * prompts, _process: process }
    }

    /// Changes the list of one upstream, which announces it.
    pub async fn change(&self, upstream: usize) {
        self.ask(upstream, "/change").await;
    }

    /// The gets and completions that all upstreams have answered.
    pub async fn calls(&self) -> u64 {
        self.ask(0, "/calls").await.parse().expect("a number")
    }

    async fn ask(&self, upstream: usize, path: &str) -> String {
        let path = path.to_owned();
        let prepared =
            Prepared { path, headers: Vec::new(), body: String::new(), calls: 1, fails: false };
        let mut connection = Connection::open(self.addresses[upstream]).await;
        let response = connection.ask(&prepared.bytes()).await;
        let text = String::from_utf8_lossy(response);
        text.rsplit("\r\n").next().unwrap_or_default().to_owned()
    }

    /// The tables of the configuration.
    pub fn tables(&self) -> String {
        let mut toml = String::new();
        for (index, address) in self.addresses.iter().enumerate() {
            let _ = writeln!(
                toml,
                "[upstreams.u{index}]\ntransport = \"http\"\nurl = \"http://{address}/mcp\"\n\
                 in_flight = 100000\nmax_prompts = 100000"
            );
        }
        toml
    }
}

/// A gateway that serves, with its folder.
pub struct Gateway {
    pub process: Process,
    pub addr: SocketAddr,
    /// From the start of the process until the whole list was served.
    pub ready_after: Duration,
    _folder: TempDir,
}

impl Gateway {
    /// Starts the gateway and waits until it lists `prompts` prompts.
    pub async fn start(
        binary: Option<&Path>,
        toml: &str,
        prompts: usize,
        key: Option<&str>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("gateway.toml"), toml).expect("a file");
        let (process, addr, began) = spawn(&mut command(binary), folder.path());
        let client = Requests::new(addr, key, "2025-06-18").await;
        client.until_listed(prompts).await;
        Self { process, addr, ready_after: began.elapsed(), _folder: folder }
    }
}

/// The command that starts the gateway.
pub fn command(binary: Option<&Path>) -> Command {
    let own = Path::new(env!("CARGO_BIN_EXE_promptgate"));
    // The gateway starts in a folder of its own.
    let binary = binary.unwrap_or(own).canonicalize().expect("the binary is there");
    Command::new(binary)
}

/// Starts the gateway of `folder` on a free port, and returns once it listens.
pub fn spawn(command: &mut Command, folder: &Path) -> (Process, SocketAddr, Instant) {
    let began = Instant::now();
    let command = command
        .current_dir(folder)
        .env("PROMPTGATE__SERVER__LISTEN", "127.0.0.1:0")
        .env("PROMPTGATE__ADMIN__LISTEN", "")
        .env("PROMPTGATE_SEAL_KEY", "bG9hZCBsb2FkIGxvYWQgbG9hZCBsb2FkIGxvYWQgMTI=")
        .env("PROMPTGATE_AUDIT_KEY", "bG9hZCBsb2FkIGxvYWQgbG9hZCBsb2FkIGxvYWQgMTI=")
        .env("XDG_RUNTIME_DIR", folder)
        .stderr(Stdio::inherit());
    let mut process = Process::start(command);
    let first = process.line();
    let addr = first.split("://").nth(1).and_then(|url| url.split('/').next());
    (process, address(addr.expect("it says where it listens")), began)
}

/// The configuration beside the upstreams.
pub fn settings(configured: Configured, collector: SocketAddr) -> String {
    let mut toml =
        "[telemetry]\nlog = \"error\"\nOTLP[listing]\npage_size = 100000\nSERVER\n".to_owned();
    let otlp = match configured {
        Configured::Bare | Configured::Key => "otlp_endpoint = \"\"\n".to_owned(),
        _ => format!("otlp_endpoint = \"http://{collector}\"\ntrace_sample = 0.01\n"),
    };
    toml = toml.replace("OTLP", &otlp).replace("SERVER", "");
    if configured.has_key() {
        toml += &api_key("load", KEY, "engineering");
    }
    let durability = match configured {
        Configured::Bare | Configured::Key | Configured::Traces => {
            return toml + "[audit]\npath = \"\"\n";
        }
        Configured::Everything => "interval",
        Configured::Strict => "strict",
    };
    let _ = writeln!(toml, "[audit]\npath = \"audit\"\ndurability = \"{durability}\"");
    toml +=
        "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ngroups = [\"engineering\"]\n";
    for rule in 0..8 {
        let _ = writeln!(
            toml,
            "[[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"team-{rule}\"]\n\
             upstreams = [\"u{rule}\"]\nprompts = [\"p-*\"]"
        );
    }
    toml += "[[access.rules]]\ndeny = [\"get\"]\nprompts = [\"secret*\"]\n";
    for per in [r#""caller""#, r#""caller", "prompt""#, r#""upstream""#] {
        let _ = writeln!(toml, "[[limits]]\nper = [{per}]\nrate = \"1000000/s\"");
    }
    toml
}

/// The entry of a caller in the configuration.
pub fn api_key(id: &str, key: &str, group: &str) -> String {
    let hash = Sha256::digest(key);
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[auth.api_keys]]\nid = \"{id}\"\nhash = \"sha256:{hash}\"\ngroups = [\"{group}\"]\n")
}

/// The requests of one client.
pub struct Requests {
    addr: SocketAddr,
    path: String,
    /// Sent with each request.
    headers: Vec<(&'static str, String)>,
    session: Option<String>,
    revision: &'static str,
}

impl Requests {
    /// Opens a session at a gateway.
    pub async fn new(addr: SocketAddr, key: Option<&str>, revision: &'static str) -> Self {
        Self::at(addr, "/mcp", key, revision).await
    }

    /// The same at another path.
    pub async fn at(
        addr: SocketAddr,
        path: &str,
        key: Option<&str>,
        revision: &'static str,
    ) -> Self {
        let mut headers = vec![
            ("Content-Type", "application/json".to_owned()),
            ("Accept", "application/json, text/event-stream".to_owned()),
        ];
        headers.extend(key.map(|key| ("X-API-Key", key.to_owned())));
        let path = path.to_owned();
        let first = Prepared {
            path: path.clone(),
            headers: headers.clone(),
            body: String::new(),
            calls: 1,
            fails: false,
        };
        let session = initialize(addr, first, revision).await;
        Self { addr, path, headers, session, revision }
    }

    /// A request of a legacy session.
    pub fn legacy(&self, method: &str, params: &str) -> Prepared {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        self.legacy_body(body, 1)
    }

    /// A batch of ten of them (2025-03-26).
    pub fn batch(&self, method: &str, params: &str) -> Prepared {
        let items: Vec<String> = (0..10)
            .map(|id| {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
            })
            .collect();
        self.legacy_body(format!("[{}]", items.join(",")), 10)
    }

    fn legacy_body(&self, body: String, calls: u64) -> Prepared {
        let mut headers = self.headers.clone();
        headers.push(("MCP-Protocol-Version", self.revision.to_owned()));
        headers.extend(self.session.iter().map(|id| ("Mcp-Session-Id", id.clone())));
        Prepared { path: self.path.clone(), headers, body, calls, fails: false }
    }

    /// A modern request; `name` is that of the prompt.
    pub fn modern(&self, method: &str, name: &str) -> Prepared {
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"name":"{name}","arguments":{{"text":"{NUMBER}"}},{meta}}}}}"#
        );
        let mut headers = self.headers.clone();
        headers.extend([
            ("MCP-Protocol-Version", "2026-07-28".to_owned()),
            ("Mcp-Method", method.to_owned()),
            ("Mcp-Name", name.to_owned()),
        ]);
        Prepared { path: self.path.clone(), headers, body, calls: 1, fails: false }
    }

    /// A get of one prompt.
    pub fn get(&self, name: &str) -> Prepared {
        let params = format!(r#"{{"name":"{name}","arguments":{{"text":"{NUMBER}"}}}}"#);
        self.legacy("prompts/get", &params)
    }

    /// A call of a tool of the upstream of `[passthrough]`.
    pub fn call(&self) -> Prepared {
        let params = format!(r#"{{"name":"tool","arguments":{{"text":"{NUMBER}"}}}}"#);
        self.legacy("tools/call", &params)
    }

    pub fn list(&self) -> Prepared {
        self.legacy("prompts/list", "{}")
    }

    /// Asks for the list until it has this many prompts.
    pub async fn until_listed(&self, prompts: usize) {
        let list = self.list().bytes();
        let mut connection = Connection::open(self.addr).await;
        loop {
            let response = connection.ask(&list).await;
            if memchr::memmem::find_iter(response, b"{\"name\":\"u").count() == prompts {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
