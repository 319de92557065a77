//! A gateway on a free port.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use config::{Config, Limits};
use front::downstream::StdioStreams;
use promptgate::App;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;

use super::Client;

pub struct Gateway {
    app: Arc<App>,
    pub addr: SocketAddr,
}

impl Gateway {
    /// Starts a gateway; `toml` goes behind a `[server]` table with a free port.
    pub async fn start(toml: &str) -> Self {
        Self::start_with(toml, |_| {}).await
    }

    /// The same, with bounds that have no keys.
    pub async fn start_with(toml: &str, set: impl FnOnce(&mut Limits)) -> Self {
        let mut config = config(toml);
        set(&mut config.server.limits);
        let app = Box::pin(App::start(config)).await.unwrap();
        let addr = app.local_addr().expect("it listens");
        Self { app: Arc::new(app), addr }
    }

    /// Lets another configuration take over.
    pub async fn reload(&self, toml: &str) {
        self.try_reload(toml).await.unwrap_or_else(|e| panic!("{e}"));
    }

    /// The same, and what of it waits for a restart; or why it does not.
    pub async fn try_reload(&self, toml: &str) -> Result<Vec<&'static str>, String> {
        self.app.reload(config(toml)).await
    }

    /// The other end of standard streams that the gateway serves.
    pub fn stdio(&self) -> DuplexStream {
        self.stdio_task().0
    }

    /// The same, and the task that serves them.
    pub fn stdio_task(&self) -> (DuplexStream, JoinHandle<()>) {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (input, output) = tokio::io::split(theirs);
        let app = self.app.clone();
        let serving = tokio::spawn(async move {
            app.serve(StdioStreams { input, output }).await;
        });
        (ours, serving)
    }

    /// Starts a gateway in front of these upstreams.
    pub async fn before(upstreams: &[(&str, &super::Upstream)]) -> Self {
        Self::start(&upstream_tables(upstreams)).await
    }

    pub fn client(&self) -> Client {
        Client::new(self.addr)
    }

    /// A client of the admin side.
    pub fn admin(&self) -> Client {
        Client::new(self.app.admin_addr().expect("it has an admin side"))
    }

    /// The texts that as many clients get of `up__p` at once, each with its own name (`client-0`,
    /// …) for the argument `who`.
    pub async fn texts_at_once(&self, clients: usize) -> Vec<String> {
        let calls = (0..clients).map(|i| {
            let client = self.client();
            tokio::spawn(async move {
                let params = json!({"name": "up__p", "arguments": {"who": format!("client-{i}")}});
                let result = client.ask("prompts/get", params).await;
                result["messages"][0]["content"]["text"].as_str().expect("text").to_owned()
            })
        });
        let mut texts = Vec::with_capacity(clients);
        for call in calls.collect::<Vec<_>>() {
            texts.push(call.await.unwrap());
        }
        texts
    }

    /// Ends the gateway, as a signal would.
    pub async fn drain(self) {
        self.app.drain().await;
    }

    /// The contribution of each upstream: (id, prompts, reason of failure).
    pub async fn summary(&self) -> Vec<(String, usize, Option<&'static str>)> {
        let summary = self.app.summary().await;
        summary.into_iter().map(|u| (u.id, u.listed, u.failure.map(|f| f.reason()))).collect()
    }
}

pub fn upstream_tables(upstreams: &[(&str, &super::Upstream)]) -> String {
    upstreams.iter().map(|(id, upstream)| upstream.table(id)).collect()
}

/// The table of a caller who holds this key; what follows may add to it.
pub fn api_key(id: &str, key: &str) -> String {
    let hash = base::seal::digest_text(&Sha256::digest(key.as_bytes()).into());
    format!("[[auth.api_keys]]\nid = \"{id}\"\nhash = \"{hash}\"\n")
}

fn config(toml: &str) -> Config {
    let config = Config::parse("test", &with_port(toml), Path::new("."), &[]);
    let mut config = config.unwrap_or_else(|e| panic!("{e}"));
    if cfg!(target_os = "linux") {
        config.supervise_children(Path::new(env!("CARGO_BIN_EXE_promptgate")));
    }
    config
}

/// A free port; neither audit log nor admin side, unless the test is about one.
fn with_port(toml: &str) -> String {
    let listen = "listen = \"127.0.0.1:0\"";
    let (toml, end) = match toml.strip_suffix("[end]\n") {
        Some(before) => (before, "\n[end]\n"),
        None => (toml, ""),
    };
    let with_port = match toml.split_once("[server]\n") {
        Some((before, after)) => format!("{before}[server]\n{listen}\n{after}"),
        None => format!("[server]\n{listen}\n{toml}"),
    };
    let has = |table: &str| toml.contains(table);
    let audit = if has("[audit]\n") { "" } else { "\n[audit]\npath = \"\"\n" };
    let admin = if has("[admin]\n") { "" } else { "\n[admin]\nlisten = \"\"\n" };
    // Tests would share the default folder: the index is next to the audit log of a test.
    let is_default = has("[admin]\n") && !has("[admin.usage]\n");
    let log = toml.split_once("[audit]\npath = \"").and_then(|(_, rest)| rest.split_once('"'));
    let index = log.map(|(path, _)| path).filter(|path| !path.is_empty());
    let index = index.map(|path| format!("{path}-usage")).unwrap_or_default();
    let usage =
        if is_default { format!("\n[admin.usage]\npath = {index:?}\n") } else { String::new() };
    format!("{with_port}{audit}{admin}{usage}{end}")
}
