//! What the tests share: a gateway in this process, a client that can send anything, upstreams
//! that can answer anything.

pub mod server_request_upstream;
pub mod client;
pub mod collector;
pub mod gateway;
pub mod h2;
pub mod session_layer;
pub mod client_modes;
pub mod process;
pub mod provider;
pub mod server;
pub mod upstream;

pub use client::Client;
pub use client_modes::{ClientMode, ModeClient};
pub use gateway::Gateway;
pub use process::Process;
pub use server::{Server, ServerMode};
pub use upstream::{OpenStream, Received, Scripted, Upstream};

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// No test waits longer than this for anything; what takes it is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Asks again until the answer is there: for what happens by itself, without an event to wait for.
pub async fn eventually<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("it never happened")
}

/// Makes a folder the library of one prompt, `greet`, which is described in this way.
pub fn write_greeting(library: &Path, description: &str) {
    let prompt = format!("---\nname: greet\ndescription: {description}\n---\nHello\n");
    fs::write(library.join("greet.md"), prompt).expect("the library can be written");
}

/// The metrics of which the names begin like this, as the admin side tells them.
pub async fn metrics(admin: &Client, names: &[&str]) -> BTreeMap<String, f64> {
    let text = admin.send("GET", "/metrics", &[], b"").await.body;
    let text = String::from_utf8(text).unwrap();
    let value = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        let is_meant = names.iter().any(|meant| name.starts_with(meant));
        is_meant.then(|| (name.to_owned(), value.parse().unwrap()))
    };
    text.lines().filter_map(value).collect()
}
