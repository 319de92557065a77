//! Support of the tests: a gateway in this process, a client that can send anything, upstreams that
//! can answer anything.

pub mod browser;
pub mod client;
pub mod client_modes;
pub mod collector;
pub mod counter;
pub mod gateway;
pub mod h2;
pub mod process;
#[cfg(target_os = "linux")]
pub mod replicas;
pub mod provider;
pub mod server;
pub mod server_request_upstream;
pub mod session_layer;
pub mod upstream;
pub mod walk_through;
pub mod wiki;

pub use client::Client;
pub use client_modes::{ClientMode, ModeClient};
pub use counter::Counter;
pub use gateway::Gateway;
pub use process::Process;
pub use server::{Server, ServerMode};
pub use upstream::{OpenStream, Received, Scripted, Upstream};

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Deadline of every wait in a test. No assertion depends on it: a test that reaches it fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pause of [`eventually`] after the first look; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Longest pause of [`eventually`]: adds little to a test, and leaves the cores to the code under
/// test.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Polls `observe` until `accept` holds for its value, and returns that value.
///
/// For conditions without an event: files, processes, and what the gateway shows on its endpoints.
/// No other code in the tests waits by the clock. What a scripted upstream can see is waited for
/// with [`Upstream::until`].
///
/// # Panics
///
/// At its deadline, [`PATIENCE`], with the last value.
#[track_caller]
pub fn eventually<T: Debug>(
    mut observe: impl AsyncFnMut() -> T,
    mut accept: impl FnMut(&T) -> bool,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let deadline = Instant::now() + PATIENCE;
        let mut pause = FIRST_PAUSE;
        let mut last = None;
        loop {
            let seen = timeout_at(deadline, observe()).await.ok();
            match seen {
                Some(seen) if accept(&seen) => return seen,
                Some(seen) if Instant::now() < deadline => last = Some(seen),
                seen => panic!("{caller}: not within {PATIENCE:?}; last: {:?}", seen.or(last)),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// A named pipe that holds back shell scripts: `: < PATH` blocks in the script until
/// [`Pipe::open`].
pub struct Pipe {
    path: PathBuf,
    /// Kept open, so that scripts that come later pass.
    writer: OnceLock<fs::File>,
}

impl Pipe {
    pub fn new(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success(), "{made}");
        Self { path, writer: OnceLock::new() }
    }

    /// Lets all scripts pass.
    pub fn open(&self) {
        // Reading as well as writing: opening does not wait for a reader.
        let pipe = fs::OpenOptions::new().read(true).write(true).open(&self.path);
        self.writer.set(pipe.expect("the pipe")).expect("opened once");
    }
}

/// Whether a process runs: it exists, and is not a zombie.
#[cfg(target_os = "linux")]
pub fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
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
