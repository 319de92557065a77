//! Connecting to one upstream, over each kind of transport.

use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderValue;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

use super::Connection;
use super::library_watch::LibraryWatch;
use crate::auth::authorization::Authorization;
use crate::auth::caller_tokens::CallerTokens;
use crate::auth::file_credential::FileCredential;
use crate::auth::token_source::TokenSource;
use crate::call::correlator::{Correlator, NotificationSinks};
use crate::held_removal::{HeldRemoval, Removal, RemovalGuard};
use crate::passthrough_signals::PassthroughSignals;
use crate::stores::{StoreReader, StoreWalk};
use crate::transport::UpstreamTransport;
use crate::transport::http_sse::HttpSse;
use crate::transport::stdio::UpstreamChild;
use crate::transport::streamable_http::HttpEndpoint;
use audit::record::AuditEvent;
use base::platform::blocking;
use base::platform::heap::boxed;
use cluster::SharedLogins;
use config::{Stdio, UpstreamSettings};
use domain::calls::caller::{Caller, PROBER};
use domain::fault::{ChildReport, UpstreamFaultKind as Kind};
use domain::protocol::revision::Revision;
use domain::protocol::server_request::ClientCapabilities;
use library::git::{GitSource, GitTree};
use library::{Before, LastSnapshot, LibraryLabels, LibrarySnapshot};

/// Signals that wake a driver before its timers do.
#[derive(Clone, Default)]
pub(crate) struct DriverSignals {
    /// The list may have changed.
    pub list_changed: Arc<Notify>,
    /// A call got [`Kind::SessionLost`].
    pub session_lost: Arc<Notify>,
    /// The stored sign-in may have changed.
    pub logins_changed: Arc<Notify>,
    /// The announcements about tools and resources, if `[passthrough]` names the upstream.
    pub passthrough: Arc<PassthroughSignals>,
}

/// Opens the connections to one upstream, and keeps their shared state.
pub struct Connector {
    upstream: Arc<UpstreamSettings>,
    sinks: NotificationSinks,
    tasks: TaskTracker,
    start_permits: Arc<Semaphore>,
    target: ConnectTarget,
    /// The labels of a library: a label that cannot be followed keeps its version.
    labels: Arc<LibraryLabels>,
    removals: Arc<RemovalGuard>,
}

/// The target of a connector: the configuration of the transport, with the state that is passed
/// from one connection to the next.
enum ConnectTarget {
    /// Streamable HTTP, or else HTTP+SSE (2025-11-25, transports, backwards compatibility).
    Http {
        endpoint: Arc<HttpEndpoint>,
        /// The configured revision; `None` if the handshake detects it.
        revision: Option<Revision>,
    },
    /// HTTP+SSE (2024-11-05) only.
    Sse(Arc<HttpEndpoint>),
    Stdio(Stdio),
    Library {
        folder: PathBuf,
        last: LastSnapshot<()>,
        /// `None` for the connector of a caller.
        watch: Option<Arc<LibraryWatch>>,
    },
    Git {
        source: Box<GitSource>,
        last: LastSnapshot<GitTree>,
    },
    Store {
        reader: Arc<StoreReader>,
        last: LastSnapshot<StoreWalk>,
    },
}

impl ConnectTarget {
    fn new(
        upstream: &UpstreamSettings,
        sinks: &NotificationSinks,
        tasks: &TaskTracker,
        logins: Option<Arc<SharedLogins>>,
    ) -> Result<Self, String> {
        let endpoint = |http| {
            let tokens = TokenSource::new(http, tasks.clone(), logins)?;
            let tokens = tokens.map(|tokens| Authorization::Service(Box::new(tokens)));
            let authorization = match tokens {
                None => FileCredential::new(http)?.map(Authorization::File),
                tokens => tokens,
            };
            HttpEndpoint::new(http, authorization, &upstream.settings, tasks.clone()).map(Arc::new)
        };
        Ok(match &upstream.transport {
            config::Transport::Http(http) => {
                Self::Http { endpoint: endpoint(http)?, revision: http.revision }
            }
            config::Transport::Sse(http) => Self::Sse(endpoint(http)?),
            config::Transport::Stdio(stdio) if stdio.per_caller.is_some() => {
                Self::Stdio(stdio.of_caller(PROBER))
            }
            config::Transport::Stdio(stdio) => Self::Stdio(stdio.clone()),
            config::Transport::Library(library) => {
                let folder = library.folder.clone();
                let changed = sinks.list_changed.clone().unwrap_or_default();
                let watch = LibraryWatch::new(sinks.upstream.clone(), folder.clone(), changed);
                Self::Library { folder, last: LastSnapshot::default(), watch: Some(watch) }
            }
            config::Transport::Git(git) => {
                let id = sinks.upstream.clone();
                let audit = sinks.audit.clone();
                let source = Box::new(GitSource::new(id, git, &upstream.settings, audit));
                Self::Git { source, last: LastSnapshot::default() }
            }
            config::Transport::Store(store) => {
                let store = store.clone();
                let settings = upstream.settings.clone();
                let endpoint = endpoint(&store.http)?;
                let reader = Arc::new(StoreReader::new(store, endpoint, settings));
                Self::Store { reader, last: LastSnapshot::default() }
            }
        })
    }
}

impl Connector {
    /// `start_permits` bounds the child processes that start at the same time, over all upstreams;
    /// `logins` holds the operator's sign-ins, if there is a cluster.
    ///
    /// # Errors
    /// When the upstream cannot be reached as it is configured: a header, certificate or OAuth key
    /// cannot be used.
    pub fn new(
        upstream: Arc<UpstreamSettings>,
        sinks: NotificationSinks,
        tasks: TaskTracker,
        start_permits: Arc<Semaphore>,
        logins: Option<Arc<SharedLogins>>,
    ) -> Result<Self, String> {
        let target = ConnectTarget::new(&upstream, &sinks, &tasks, logins)?;
        let labels = Arc::new(LibraryLabels::of(&upstream.transport));
        let removals = Arc::default();
        Ok(Self { upstream, sinks, tasks, start_permits, target, labels, removals })
    }

    /// Returns the connector of one caller to the same upstream. Over HTTP the connector uses the
    /// `tokens` of the caller; otherwise, the environment of a child process names the caller.
    /// `list_changed` is notified of changes of the caller's list; if it is `None`, the gateway's
    /// walk finds changes.
    ///
    /// # Errors
    /// As [`Connector::new`].
    pub fn of_caller(
        &self,
        caller: &Caller,
        tokens: Option<Arc<CallerTokens>>,
        list_changed: Option<Arc<Notify>>,
    ) -> Result<Self, String> {
        let settings = &self.upstream.settings;
        let tasks = &self.tasks;
        let endpoint = |http| {
            let authorization = tokens.clone().map(Authorization::Caller);
            HttpEndpoint::new(http, authorization, settings, tasks.clone()).map(Arc::new)
        };
        let target = match &self.upstream.transport {
            config::Transport::Http(http) => {
                ConnectTarget::Http { endpoint: endpoint(http)?, revision: http.revision }
            }
            config::Transport::Sse(http) => ConnectTarget::Sse(endpoint(http)?),
            config::Transport::Stdio(stdio) => ConnectTarget::Stdio(stdio.of_caller(caller.id())),
            config::Transport::Library(library) => {
                let last = LastSnapshot::default();
                ConnectTarget::Library { folder: library.folder.clone(), last, watch: None }
            }
            config::Transport::Git(_) | config::Transport::Store(_) => {
                return Err("its prompts are the same for all callers".to_owned());
            }
        };
        Ok(Self {
            upstream: self.upstream.clone(),
            sinks: NotificationSinks { list_changed, ..self.sinks.clone() },
            tasks: self.tasks.clone(),
            start_permits: self.start_permits.clone(),
            target,
            labels: self.labels.clone(),
            removals: Arc::default(),
        })
    }

    /// Returns the guard of the removals of a git repository or a prompt store.
    pub(crate) fn removals(&self) -> &Arc<RemovalGuard> {
        &self.removals
    }

    pub fn upstream(&self) -> &Arc<UpstreamSettings> {
        &self.upstream
    }

    /// Returns the credentials of the last requests that are not in the configuration.
    pub(crate) fn last_tokens(&self) -> [Option<HeaderValue>; 2] {
        self.authorization().map(Authorization::last_headers).unwrap_or_default()
    }

    /// Returns the source of the access tokens that all callers share, if the upstream is called
    /// with such tokens.
    pub fn tokens(&self) -> Option<&TokenSource> {
        self.authorization()?.service()
    }

    fn authorization(&self) -> Option<&Authorization> {
        match &self.target {
            ConnectTarget::Http { endpoint, .. } | ConnectTarget::Sse(endpoint) => {
                endpoint.authorization()
            }
            ConnectTarget::Store { reader, .. } => reader.endpoint().authorization(),
            ConnectTarget::Stdio(_) | ConnectTarget::Library { .. } | ConnectTarget::Git { .. } => {
                None
            }
        }
    }

    /// Opens the connection that calls share, within `walk_timeout`, or `startup` for each start of
    /// a child process.
    ///
    /// # Errors
    /// The upstream cannot be reached, refuses the handshake, or exceeds the time limit.
    pub async fn connect(&self) -> Result<Connection, Kind> {
        // The wait for a permit does not count against the timeout.
        let _permit = match &self.target {
            ConnectTarget::Stdio(_) => self.start_permits.acquire().await.ok(),
            _ => None,
        };
        let connecting = boxed(async {
            match &self.target {
                ConnectTarget::Http { endpoint, revision } => {
                    self.connect_http(endpoint, *revision).await
                }
                ConnectTarget::Sse(endpoint) => {
                    let sinks = self.sinks.clone();
                    self.connect_sse(endpoint, sinks, ClientCapabilities::NONE).await
                }
                ConnectTarget::Stdio(stdio) => self.detect_child(stdio).await,
                ConnectTarget::Library { folder, last, watch } => {
                    self.load_library(folder.clone(), last, watch.clone()).await
                }
                ConnectTarget::Git { source, last } => self.load_newest(source, last).await,
                ConnectTarget::Store { reader, last } => self.read_store(reader, last).await,
            }
        });
        match (&self.target, self.within_limit(connecting).await) {
            (ConnectTarget::Store { reader, last }, Err(kind)) if last.any().is_none() => {
                self.load_kept(reader, last).await.ok_or(kind)
            }
            (_, connected) => connected,
        }
    }

    /// Opens another connection that declares `capabilities`, with the transport and revision of
    /// `like`, within the time limit of [`Connector::connect`]. A library returns its snapshot,
    /// which declares no capabilities.
    ///
    /// # Errors
    /// See [`Connector::connect`].
    pub async fn connect_dedicated(
        &self,
        like: &Connection,
        capabilities: ClientCapabilities,
    ) -> Result<Connection, Kind> {
        let settings = &self.upstream.settings;
        let revision = like.describe().0;
        let connecting = Box::pin(async {
            match &self.target {
                ConnectTarget::Http { endpoint, .. } | ConnectTarget::Sse(endpoint) => {
                    if matches!(like.transport(), Some(UpstreamTransport::Sse(_))) {
                        let sinks = self.sinks.without_list_changed();
                        return self.connect_sse(endpoint, sinks, capabilities).await;
                    }
                    let probe = settings.walk_timeout;
                    Connection::open(self.http(endpoint), revision, probe, capabilities).await
                }
                ConnectTarget::Stdio(stdio) => {
                    let sinks = self.sinks.without_list_changed();
                    self.connect_child(stdio, sinks, revision, capabilities).await
                }
                ConnectTarget::Library { folder, last, watch } => {
                    self.load_library(folder.clone(), last, watch.clone()).await
                }
                ConnectTarget::Git { source, last } => match source.served().await {
                    Some(tree) => self.load_commit(tree, last).await,
                    None => Err(Kind::Unavailable("no commit was fetched yet".to_owned())),
                },
                ConnectTarget::Store { reader, last } => self.read_store(reader, last).await,
            }
        });
        self.within_limit(connecting).await
    }

    /// Limits the time to open a connection. The start of a child process has a separate limit.
    async fn within_limit(
        &self,
        connecting: impl Future<Output = Result<Connection, Kind>> + Unpin,
    ) -> Result<Connection, Kind> {
        if matches!(self.target, ConnectTarget::Stdio(_)) {
            return connecting.await;
        }
        let limit = self.upstream.settings.walk_timeout;
        timeout(limit, connecting).await.unwrap_or_else(|_| match &self.target {
            ConnectTarget::Git { source, .. } => Err(source.given_up(limit)),
            _ => Err(Kind::Timeout),
        })
    }

    /// Detects the transport of an endpoint. An endpoint that refuses `initialize`, by a status or
    /// by a JSON-RPC error in its body, may be the event stream of HTTP+SSE (2025-11-25,
    /// transports, backwards compatibility).
    async fn connect_http(
        &self,
        endpoint: &Arc<HttpEndpoint>,
        revision: Option<Revision>,
    ) -> Result<Connection, Kind> {
        let settings = &self.upstream.settings;
        // The legacy handshake must fit into the same limit.
        let probe = settings.probe.min(settings.walk_timeout / 2);
        let transport = self.http(endpoint);
        let opened = Connection::open(transport, revision, probe, ClientCapabilities::NONE).await;
        match opened {
            Err(refusal @ (Kind::Status { status: 400 | 404 | 405, .. } | Kind::Error { .. }))
                if revision.is_none() =>
            {
                // A server that really refuses may still open a stream that carries no messages.
                let opening =
                    HttpSse::open(endpoint.for_session(), self.sinks.clone(), &self.tasks);
                match timeout(settings.connect, opening).await {
                    Ok(Ok(stream)) => self.open_sse(stream, ClientCapabilities::NONE).await,
                    Ok(Err(_)) | Err(_) => Err(refusal),
                }
            }
            opened => opened,
        }
    }

    async fn connect_sse(
        &self,
        endpoint: &Arc<HttpEndpoint>,
        sinks: NotificationSinks,
        capabilities: ClientCapabilities,
    ) -> Result<Connection, Kind> {
        let stream = HttpSse::open(endpoint.for_session(), sinks, &self.tasks).await?;
        self.open_sse(stream, capabilities).await
    }

    async fn open_sse(
        &self,
        stream: HttpSse,
        capabilities: ClientCapabilities,
    ) -> Result<Connection, Kind> {
        let revision = Some(Revision::NEWEST_LEGACY);
        let probe = self.upstream.settings.walk_timeout;
        Connection::open(UpstreamTransport::Sse(stream), revision, probe, capabilities).await
    }

    /// Starts a child process and detects its era. A child that exits on `server/discover` is
    /// restarted for a legacy handshake.
    async fn detect_child(&self, stdio: &Stdio) -> Result<Connection, Kind> {
        let open = |revision| {
            self.connect_child(stdio, self.sinks.clone(), revision, ClientCapabilities::NONE)
        };
        match open(stdio.revision).await {
            Err(Kind::ChildExited(_)) if stdio.revision.is_none() => {
                open(Some(Revision::NEWEST_LEGACY)).await
            }
            opened => opened,
        }
    }

    /// Starts a child process, and opens a connection to it within `startup`.
    async fn connect_child(
        &self,
        stdio: &Stdio,
        sinks: NotificationSinks,
        revision: Option<Revision>,
        capabilities: ClientCapabilities,
    ) -> Result<Connection, Kind> {
        let settings = &self.upstream.settings;
        let child = UpstreamChild::spawn(stdio, settings, sinks, &self.tasks)?;
        let stderr_tail = child.stderr_tail().clone();
        let transport = UpstreamTransport::Stdio(child);
        let opening = Connection::open(transport, revision, settings.probe, capabilities);
        timeout(settings.startup, opening).await.unwrap_or_else(|_| {
            let report = Arc::new(ChildReport { exit: None, stderr: stderr_tail.lines() });
            Err(Kind::ChildSilent { startup: settings.startup, report })
        })
    }

    async fn load_library(
        &self,
        folder: PathBuf,
        last: &LastSnapshot<()>,
        watch: Option<Arc<LibraryWatch>>,
    ) -> Result<Connection, Kind> {
        let renewed = blocking(move || watch.iter().for_each(|watch| watch.renew())).await;
        renewed.map_err(|failure| Kind::Internal(failure.to_string()))?;
        let snapshot = self.load(folder, last, Vec::new()).await?;
        Ok(Connection::Library(last.keep((), snapshot)))
    }

    /// Reads a folder. `left_out` are files that it lacks, as in [`Before`].
    async fn load<Of: PartialEq>(
        &self,
        folder: PathBuf,
        last: &LastSnapshot<Of>,
        left_out: Vec<String>,
    ) -> Result<LibrarySnapshot, Kind> {
        let upstream = self.upstream.clone();
        let labels = self.labels.clone();
        let last = last.any();
        let load = move || {
            let before = Before { snapshot: last.as_deref(), left_out: &left_out };
            let settings = &upstream.settings;
            LibrarySnapshot::load_after(&folder, upstream.id.as_str(), settings, &labels, before)
        };
        run_loader(&self.upstream, load).await
    }

    /// Loads the newest commit; at the start, the last served commit, so that no call waits for a
    /// remote that may be down. A driver then requests the newest commit at once.
    async fn load_newest(
        &self,
        source: &GitSource,
        last: &LastSnapshot<GitTree>,
    ) -> Result<Connection, Kind> {
        if let Some(driver) = &self.sinks.list_changed
            && let Some(tree) = source.served_before().await
        {
            driver.notify_one();
            return self.load_commit(tree, last).await;
        }
        self.load_commit(source.refresh().await?, last).await
    }

    async fn load_commit(
        &self,
        tree: GitTree,
        last: &LastSnapshot<GitTree>,
    ) -> Result<Connection, Kind> {
        if let Some(same) = last.of(&tree) {
            self.removals.clear();
            return Ok(Connection::Library(same));
        }
        let loading = self.load(tree.folder.clone(), last, tree.left_out.clone());
        let snapshot = loading.await?.of_commit(&tree);
        if let Some(before) = self.held_back(last, &snapshot) {
            return Ok(Connection::Library(before));
        }
        Ok(Connection::Library(last.keep(tree, snapshot)))
    }

    async fn read_store(
        &self,
        reader: &Arc<StoreReader>,
        last: &LastSnapshot<StoreWalk>,
    ) -> Result<Connection, Kind> {
        // A prompt that the store refuses keeps the version that was kept.
        reader.kept().await;
        let walk = reader.walk().await?;
        if let Some(same) = last.of(&walk) {
            self.removals.clear();
            return Ok(Connection::Library(same));
        }
        let before = last.any();
        let (loader, read) = (reader.clone(), walk.clone());
        let load = move || Ok(loader.snapshot(read, before.as_deref()));
        let snapshot = run_loader(&self.upstream, load).await?;
        if let Some(before) = self.held_back(last, &snapshot) {
            return Ok(Connection::Library(before));
        }
        let (keeper, read) = (reader.clone(), walk.clone());
        let _ = blocking(move || keeper.keep(&read)).await;
        Ok(Connection::Library(last.keep(walk, snapshot)))
    }

    /// Returns the last snapshot if it stays served, because the new one removes too much.
    fn held_back<Of: PartialEq>(
        &self,
        last: &LastSnapshot<Of>,
        new: &LibrarySnapshot,
    ) -> Option<Arc<LibrarySnapshot>> {
        let before = last.any()?;
        let hold = self.upstream.settings.hold_removals;
        let decided = self.removals.decide(&before.listed, &new.listed, hold, Instant::now());
        let Removal::Held { removal, is_news } = decided else { return None };
        if is_news {
            let HeldRemoval { served, listed, .. } = removal;
            let upstream = &self.upstream.id;
            warn!(%upstream, served, listed, held_for = ?hold,
                "the removal of many prompts at once is held back; `promptgate upstreams accept \
                 {upstream}` applies it");
            let event = AuditEvent::new("removal_held").text("upstream", upstream.as_str());
            self.sinks
                .audit
                .note(event.number("served", served as u64).number("listed", listed as u64));
        }
        Some(before)
    }

    /// Loads the walk of a store that was kept before the start. A driver then reads the store
    /// again at once.
    async fn load_kept(
        &self,
        reader: &Arc<StoreReader>,
        last: &LastSnapshot<StoreWalk>,
    ) -> Option<Connection> {
        let (walk, age) = reader.kept().await?;
        let (reader, read) = (reader.clone(), walk.clone());
        let load = move || Ok(reader.snapshot(read, None));
        let mut snapshot = run_loader(&self.upstream, load).await.ok()?;
        snapshot.listed.kept_age = Some(age);
        warn!(upstream = %self.upstream.id, age_secs = age.as_secs(),
            "the prompt store cannot be read; its list from before the start is served");
        if let Some(driver) = &self.sinks.list_changed {
            driver.notify_one();
        }
        Some(Connection::Library(last.keep(walk, snapshot)))
    }

    fn http(&self, endpoint: &Arc<HttpEndpoint>) -> UpstreamTransport {
        // A change may be announced on the stream of the call that made it, and only there.
        let correlator = Correlator::new(self.sinks.clone());
        UpstreamTransport::Http { endpoint: endpoint.for_session(), correlator }
    }
}

/// Runs the loader of a library or a prompt store on a thread that may block.
async fn run_loader(
    upstream: &UpstreamSettings,
    load: impl FnOnce() -> Result<LibrarySnapshot, Kind> + Send + 'static,
) -> Result<LibrarySnapshot, Kind> {
    blocking(load).await.unwrap_or_else(|failure| {
        // A panic, or the end of the runtime.
        error!(upstream = %upstream.id, error = %failure,
            "the library loader failed; report it with the log lines before this one");
        Err(Kind::Internal("the library loader failed".to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use config::Config;

    #[tokio::test]
    async fn a_panic_of_the_library_loader_is_an_internal_fault() {
        let toml = "[upstreams.lib]\ntransport = \"library\"\npath = \".\"\n";
        let config = Config::parse("test", toml, Path::new("."), &[]).unwrap();
        let loaded = run_loader(&config.upstreams[0], || panic!("a bug")).await;
        let Err(kind @ Kind::Internal(_)) = loaded else { panic!("no internal fault") };
        assert_eq!(kind.reason(), "internal");
    }

    fn connector(toml: &str) -> Connector {
        let config = Config::parse("test", toml, Path::new("."), &[]).unwrap();
        let upstream = Arc::new(config.upstreams[0].clone());
        let sinks = NotificationSinks::new("a");
        let tasks = TaskTracker::new();
        Connector::new(upstream, sinks, tasks, Arc::new(Semaphore::new(1)), None).unwrap()
    }

    async fn snapshot(connector: &Connector) -> Arc<LibrarySnapshot> {
        match connector.connect().await {
            Ok(Connection::Library(snapshot)) => snapshot,
            Ok(Connection::Remote(_)) => panic!("no snapshot"),
            Err(kind) => panic!("{kind:?}"),
        }
    }

    #[tokio::test]
    async fn a_commit_is_read_once_and_its_files_are_named_as_in_the_repository() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().join("work");
        std::fs::create_dir_all(work.join("prompts")).unwrap();
        let git = |line: &str| {
            let mut git = std::process::Command::new("git");
            let identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
            let git = git.current_dir(&work).args(identity).args(line.split(' '));
            assert!(git.env("GIT_CONFIG_GLOBAL", "/dev/null").status().unwrap().success());
        };
        let commit = |name: &str, text: &str| {
            std::fs::write(work.join("prompts").join(name), text).unwrap();
            git("add .");
            git("commit -q -m x");
        };
        git("init -q -b main");
        commit("a.md", "---\nname: a\n---\nA");
        let toml = format!(
            "[upstreams.a]\ntransport = \"git\"\nurl = \"file://{}\"\npath = \"prompts\"\n\
             state = \"{}\"\n",
            work.display(),
            folder.path().join("state").display()
        );
        let connector = connector(&toml);
        let first = snapshot(&connector).await;
        assert!(Arc::ptr_eq(&first, &snapshot(&connector).await), "the same commit");
        commit("twin.md", "---\nname: a\n---\nTwo");
        let second = snapshot(&connector).await;
        assert_ne!(first.listed.commit, second.listed.commit);
        assert!(Arc::ptr_eq(&second, &snapshot(&connector).await), "the same commit");
        let reasons: Vec<_> = second.listed.malformed.iter().map(|file| &*file.reason).collect();
        let twin = "prompts/twin.md: prompt \"a\" is in prompts/a.md, too, which is served; give this prompt another name";
        assert!(reasons.contains(&twin), "{reasons:?}");
        let remark = "prompts/a.md: has no description: lists show its name only";
        assert_eq!(first.listed.remarks, [remark]);
    }

    #[tokio::test]
    async fn a_walk_of_a_store_that_finds_nothing_new_makes_nothing_anew() {
        let versions = Arc::new(std::sync::Mutex::new(["1", "1"]));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = versions.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let [newest, production] = *served.lock().unwrap();
                let body = format!(
                    r#"{{"registered_models":[{{"name":"p","creation_timestamp":1,
                    "aliases":[{{"alias":"production","version":"{production}"}}],
                    "latest_versions":[{{"version":"{newest}","tags":[
                    {{"key":"mlflow.prompt.text","value":"Hi {newest}"}}]}}]}}]}}"#
                );
                let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                            Connection: close\r\n";
                let length = body.len();
                let answer = format!("{head}Content-Length: {length}\r\n\r\n{body}");
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let connector = connector(&format!(
            "[upstreams.a]\ntransport = \"mlflow\"\nstate = \"\"\nurl = \"{url}\"\n"
        ));
        let first = snapshot(&connector).await;
        assert_eq!(first.listed.prompts.len(), 1);
        assert!(Arc::ptr_eq(&first, &snapshot(&connector).await));
        // The list differs: the alias has moved.
        *versions.lock().unwrap() = ["2", "2"];
        let second = snapshot(&connector).await;
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &snapshot(&connector).await));
        // A version that cannot be served leaves the last one.
        *versions.lock().unwrap() = ["{% if x %}", "{% if x %}"];
        for _ in 0..2 {
            let third = snapshot(&connector).await;
            let text = third.get("p", None, None).unwrap();
            assert!(text.json().text().contains("Hi 2"), "{}", text.json().text());
            let left_out = &third.listed.malformed[0];
            assert_eq!((left_out.name.as_str(), left_out.is_served), ("p", true));
            assert!(left_out.reason.ends_with("; the text of before is served"), "{left_out:?}");
        }
        *versions.lock().unwrap() = ["4", "4"];
        assert_eq!(snapshot(&connector).await.listed.malformed, []);
    }
}
