//! stdio transport (MCP 2025-11-25, transports): an upstream as a child process, with one JSON-RPC
//! message per line on its standard input and output.
//!
//! Three streams are served at the same time, so that none blocks another: the reader of standard
//! output never waits, the writer of standard input has a deadline, and standard error is read to
//! its end.

use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::call::correlator::{Correlator, Followup, NotificationSinks};
use crate::call::reply;
use crate::stderr_tail::{self, StderrTail};
use crate::transport::child_input::{ChildInput, NotQueued};
use audit::Audit;
use audit::record::AuditEvent;
use base::platform::platform;
use base::platform::processes::{
    self, Exit, GATEWAY_DEPTH, Process, ProgramCommand, Signal, gateway_depth,
};
use config::Settings;
use domain::fault::{ChildExit, ChildReport, EXCERPT, UpstreamFaultKind as Kind};
use domain::json::document::Document;
use domain::json::jsonrpc::Id;
use domain::text::line_decoder::{DecodedLine, LineDecoder};

/// A running child process. Dropping it ends the process and its descendants.
pub struct UpstreamChild {
    input: ChildInput,
    correlator: Arc<Correlator>,
    /// Why the child is closed; set before `closed` is cancelled.
    cause: Arc<OnceLock<Kind>>,
    /// Cancelled when no message can be exchanged with the child.
    closed: CancellationToken,
    /// Cancelled when the child and its descendants have ended.
    terminated: CancellationToken,
    /// The last lines that this child wrote to standard error.
    stderr_tail: Arc<StderrTail>,
    /// Whether the handshake has succeeded.
    in_service: Arc<AtomicBool>,
    _stop: DropGuard,
}

/// Environment variables that a child inherits: enough to find programs and a home directory, here
/// and on Windows, and the proxies and certificates of its network. No secret of the gateway is
/// inherited.
const INHERITED: [&str; 21] = [
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "APPDATA",
    "LOCALAPPDATA",
    "PATHEXT",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "TEMP",
    "USERPROFILE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
];

/// Time for which the output of a child is still read after the child's exit.
const OUTPUT_DRAIN: Duration = Duration::from_millis(500);

/// Time for a child to exit after its standard input is closed (MCP 2025-11-25, lifecycle,
/// shutdown).
const EXIT_AFTER_EOF: Duration = Duration::from_secs(2);

/// Time for the child to exit after SIGTERM, before SIGKILL.
const EXIT_AFTER_SIGTERM: Duration = Duration::from_secs(3);

impl UpstreamChild {
    /// Starts a child process.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the command is not found or cannot be started.
    pub fn spawn(
        stdio: &config::Stdio,
        settings: &Settings,
        sinks: NotificationSinks,
        tasks: &TaskTracker,
    ) -> Result<Self, Kind> {
        let failed = |error: String| Kind::Unavailable(format!("cannot be started: {error}"));
        let missing =
            || format!("`{}` is not installed or not on PATH, or not executable", stdio.program);
        find_program(stdio).map_err(|_| failed(missing()))?;
        // The system's error text contains no path, which clients must not see.
        let started = platform().processes.spawn(&command(stdio, &settings.inherit));
        let processes::Child { process, stdin, mut stdout, stderr } =
            started.map_err(|error| failed(error.to_string()))?;
        let record = ChildRecord::start(&sinks, process.id());
        let mut process = ProcessGroup { leader: process, is_killed: false };
        let upstream = sinks.upstream.clone();
        let stderr_tail: Arc<StderrTail> = Arc::default();
        let tails = [stderr_tail.clone(), sinks.stderr_tail.clone()];
        let write_timeout = settings.timeout;
        let correlator = Correlator::new(sinks);
        let (input, mut queue) = ChildInput::channel();
        let reader = StdoutReader {
            tails: tails.clone(),
            correlator: correlator.clone(),
            input: input.clone(),
            tasks: tasks.clone(),
            max_message: settings.max_message,
            upstream: upstream.clone(),
        };
        let stop = CancellationToken::new();
        let child = Self {
            input,
            correlator: correlator.clone(),
            cause: Arc::default(),
            closed: CancellationToken::new(),
            terminated: CancellationToken::new(),
            stderr_tail: stderr_tail.clone(),
            in_service: Arc::default(),
            _stop: stop.clone().drop_guard(),
        };
        let drained = CancellationToken::new();
        let draining = (child.terminated.clone(), drained.clone().drop_guard());
        tasks.spawn(async move {
            let (terminated, drained) = draining;
            stderr_tail::drain(stderr, &tails, terminated).await;
            drop(drained);
        });
        let is_supervised = stdio.supervisor.is_some();
        let in_service = child.in_service.clone();
        let cause = child.cause.clone();
        let closed = child.closed.clone();
        let terminated = child.terminated.clone().drop_guard();
        tasks.spawn(async move {
            let kind = tokio::select! {
                kind = queue.write(&upstream, stdin, write_timeout) => kind,
                kind = reader.read(&mut stdout) => kind,
                () = process.exit() => Kind::ChildExited(Arc::default()),
                () = stop.cancelled() => Kind::Reset("the child process is being ended".to_owned()),
            };
            let kind = match kind {
                Kind::ChildExited(_) => {
                    // Some child processes write their last messages to standard output.
                    let words = async { tokio::join!(drained.cancelled(), reader.read(stdout)) };
                    process.report(is_supervised, words, &stderr_tail).await
                }
                kind => kind,
            };
            // A failure before the handshake is reported by its connection.
            if !stop.is_cancelled() && in_service.load(Ordering::Relaxed) {
                info!(%upstream, error = kind.diagnosis(), "the child process ended by itself");
            }
            let _ = cause.set(kind);
            closed.cancel();
            correlator.close();
            drop(queue);
            // `write` has already closed the child's input.
            process.end().await;
            drop(record);
            drop(terminated);
        });
        Ok(child)
    }

    /// Sends a request and waits for the response to `id`. Dropping the future before the response
    /// cancels the request upstream.
    ///
    /// # Errors
    /// See [`super::UpstreamTransport::request`].
    pub async fn request(&self, id: &Id, body: String) -> Result<Document, Kind> {
        let response = self.correlator.expect_response(id);
        let _guard = StdioRequest { child: self, id };
        self.notify(body).await?;
        // The child may have been closed before the response was expected.
        if self.closed.is_cancelled() {
            return Err(self.cause());
        }
        response.await.unwrap_or_else(|_| Err(self.cause()))
    }

    /// Returns why the child is closed.
    fn cause(&self) -> Kind {
        self.cause.get().cloned().unwrap_or_else(|| Kind::ChildExited(Arc::default()))
    }

    /// Notes that the handshake has succeeded: from now on the end of the child is reported.
    pub fn put_in_service(&self) {
        self.in_service.store(true, Ordering::Relaxed);
    }

    /// Returns the last lines that the child wrote to standard error.
    pub fn stderr_tail(&self) -> &Arc<StderrTail> {
        &self.stderr_tail
    }

    /// Returns the requests in flight on the child's streams.
    pub fn correlator(&self) -> &Arc<Correlator> {
        &self.correlator
    }

    /// Returns a token that is cancelled when the child and its descendants have ended.
    pub fn terminated(&self) -> CancellationToken {
        self.terminated.clone()
    }

    /// Whether no message can be exchanged with the child.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until no message can be exchanged with the child. Cancel safe.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Queues a notification or a response.
    ///
    /// # Errors
    /// When the child is closed.
    pub async fn notify(&self, body: String) -> Result<(), Kind> {
        self.input.send(body).await.map_err(|NotQueued| self.cause())
    }
}

/// The audit events of a child: `child_started`, and `child_ended` on drop.
struct ChildRecord {
    audit: Audit,
    upstream: Arc<str>,
    pid: u64,
}

impl ChildRecord {
    fn start(sinks: &NotificationSinks, pid: Option<u32>) -> Self {
        let pid = pid.unwrap_or_default().into();
        let record = Self { audit: sinks.audit.clone(), upstream: sinks.upstream.clone(), pid };
        record.note("child_started");
        record
    }

    fn note(&self, event: &'static str) {
        let event = AuditEvent::new(event).text("upstream", &self.upstream);
        self.audit.note(event.number("pid", self.pid));
    }
}

impl Drop for ChildRecord {
    fn drop(&mut self) {
        self.note("child_ended");
    }
}

/// Guard of a request in flight. Dropped before the response, it cancels the request upstream
/// (`notifications/cancelled`).
struct StdioRequest<'a> {
    child: &'a UpstreamChild,
    id: &'a Id,
}

impl Drop for StdioRequest<'_> {
    fn drop(&mut self) {
        if self.child.correlator.forget_response(self.id)
            && let Some(cancellation) = reply::cancellation(self.id)
        {
            // A child that does not empty the queue would not read a cancellation either.
            let _ = self.child.input.try_send(cancellation);
        }
    }
}

fn command(stdio: &config::Stdio, inherit: &[String]) -> ProgramCommand {
    let own = stdio.arguments.iter().map(OsString::from);
    let (program, arguments) = match &stdio.supervisor {
        None => ((&stdio.program).into(), own.collect()),
        Some(supervisor) => {
            let parent = std::process::id().to_string();
            let supervising = ["supervise", "--parent", &parent, "--", &stdio.program];
            (supervisor.into(), supervising.into_iter().map(OsString::from).chain(own).collect())
        }
    };
    let names = INHERITED.into_iter().chain(inherit.iter().map(String::as_str));
    let inherited = names.filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
    let configured = stdio.env.iter().map(|(name, value)| (name.into(), value.expose().into()));
    let depth = std::iter::once((GATEWAY_DEPTH.into(), (gateway_depth() + 1).to_string().into()));
    let environment = inherited.chain(configured).chain(depth).collect();
    ProgramCommand { program, arguments, folder: stdio.cwd.clone(), environment }
}

/// Most bytes of one read from standard output: the capacity of a pipe on Linux.
const READ_BUFFER: usize = 64 << 10;

/// Reader of the child's standard output.
struct StdoutReader {
    correlator: Arc<Correlator>,
    input: ChildInput,
    /// Keep output that is not a message: it may explain why a program does not start.
    tails: [Arc<StderrTail>; 2],
    /// Tasks that wait for a client's answer to a server request.
    tasks: TaskTracker,
    /// Bytes of the longest line.
    max_message: usize,
    /// Id of the upstream.
    upstream: Arc<str>,
}

impl StdoutReader {
    /// Delivers messages until the child closes its output, or writes a line beyond the limit.
    /// Returns the cause.
    async fn read(&self, mut stdout: impl AsyncRead + Unpin) -> Kind {
        let mut decoder = LineDecoder::new(self.max_message);
        let mut buffer = vec![0; READ_BUFFER];
        let mut lines = Vec::new();
        let mut length = READ_BUFFER;
        while length > 0 {
            length = stdout.read(&mut buffer).await.unwrap_or(0);
            match length {
                0 => decoder.end_line(&mut lines),
                _ => decoder.feed(&buffer[..length], &mut lines),
            }
            for line in lines.drain(..) {
                let DecodedLine::Whole(line) = line else {
                    return self.line_too_long();
                };
                self.deliver_line(line);
            }
        }
        Kind::ChildExited(Arc::default())
    }

    fn line_too_long(&self) -> Kind {
        let limit = self.max_message;
        warn!(upstream = %self.upstream, limit, "a line of the child process exceeds max_message; ending it");
        Kind::Reset(format!("a line is longer than max_message = {limit} bytes"))
    }

    fn deliver_line(&self, line: Vec<u8>) {
        let noise = (!line.starts_with(b"{")).then(|| line[..line.len().min(EXCERPT)].to_vec());
        match reply::messages(line) {
            Ok(messages) => {
                // Some child processes write log lines in JSON.
                for message in messages {
                    if message.json().get("jsonrpc").is_none() {
                        self.keep(message.json().text().as_bytes());
                    }
                    self.deliver(message);
                }
            }
            Err(unreadable) => {
                debug!(upstream = %self.upstream, why = &*unreadable.why, "a line of the child process is no message");
                self.keep(noise.as_deref().unwrap_or(unreadable.why.as_bytes()));
                self.correlator.deliver_unreadable(unreadable);
            }
        }
    }

    /// Keeps a line that is not a message together with the lines of standard error.
    fn keep(&self, line: &[u8]) {
        let line = [&line[..line.len().min(EXCERPT)], b"\n"].concat();
        self.tails.iter().for_each(|tail| tail.push(&line));
    }

    fn deliver(&self, message: Document) {
        match self.correlator.deliver(message) {
            Followup::None => {}
            Followup::Misfit(misfit) => self.keep(misfit.diagnosis().as_bytes()),
            Followup::Reply(reply) => {
                // A full queue means that the child does not read: it then gets no response.
                let _ = self.input.try_send(reply);
            }
            Followup::ReplyLater(id, answer) => {
                let input = self.input.clone();
                self.tasks.spawn(async move {
                    if let Ok(answer) = answer.await {
                        let _ = input.send(reply::client_answer(&id, &answer)).await;
                    }
                });
            }
        }
    }
}

/// Finds the program before the start. Otherwise its supervisor would start, and a missing program
/// would show on standard error only.
pub(crate) fn find_program(stdio: &config::Stdio) -> io::Result<()> {
    let configured = stdio.env.iter().find(|(name, _)| name == "PATH");
    let path = match configured {
        Some((_, path)) => Some(path.expose().into()),
        None => std::env::var_os("PATH"),
    };
    platform().processes.find(stdio.program.as_ref(), path.as_deref(), &stdio.cwd).map(drop)
}

/// A child process and its descendants, as far as they stay in its process group.
struct ProcessGroup {
    leader: Box<dyn Process>,
    is_killed: bool,
}

impl ProcessGroup {
    /// Waits until the leader has exited, and for a moment longer, so that its last output is still
    /// read. Its output may be held open by descendants, so the end of the output is no sign.
    async fn exit(&mut self) {
        self.reap().await;
        sleep(OUTPUT_DRAIN).await;
    }

    /// Returns why a leader has ended its output, after its last output was read.
    async fn report<T>(
        &mut self,
        is_supervised: bool,
        words: impl Future<Output = T>,
        tail: &StderrTail,
    ) -> Kind {
        let exit = self.exit_status(is_supervised).await;
        let _ = timeout(OUTPUT_DRAIN, words).await;
        Kind::ChildExited(Arc::new(ChildReport { exit, stderr: tail.lines() }))
    }

    /// Returns the exit status of the leader, if it exits within [`OUTPUT_DRAIN`]. A supervisor
    /// exits with 128 plus the number of the signal that ended its child, as a shell does.
    async fn exit_status(&mut self, is_supervised: bool) -> Option<ChildExit> {
        timeout(OUTPUT_DRAIN, self.reap()).await.ok()?;
        self.leader.exit().map(|exit| match exit {
            Exit::Code(code @ 129..=159) if is_supervised => ChildExit::Signal(code - 128),
            Exit::Code(code) => ChildExit::Code(code),
            Exit::Signal(signal) => ChildExit::Signal(signal),
        })
    }

    /// Ends the group, whose input is closed: by SIGTERM, then by SIGKILL.
    async fn end(mut self) {
        if timeout(EXIT_AFTER_EOF, self.reap()).await.is_err() {
            self.leader.signal(Signal::Terminate);
            if timeout(EXIT_AFTER_SIGTERM, self.reap()).await.is_err() {
                self.kill();
                self.reap().await;
            }
        }
    }

    /// Waits until the leader has exited, and kills the descendants that are left. Cancel safe.
    async fn reap(&mut self) {
        self.leader.exited().await;
        self.kill();
    }

    /// Kills the group, at once and only once: the system may give the id of an empty group to
    /// another process.
    fn kill(&mut self) {
        if !std::mem::replace(&mut self.is_killed, true) {
            self.leader.signal(Signal::Kill);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Without a supervisor, as on all systems but Linux.
    #[tokio::test]
    async fn s3_descendants_of_a_child_that_exits_by_itself_are_killed() {
        let command = ProgramCommand {
            program: "sh".into(),
            arguments: vec!["-c".into(), "sleep 1000000 & exit 1".into()],
            folder: ".".into(),
            environment: vec![("PATH".into(), std::env::var_os("PATH").unwrap())],
        };
        let started = platform().processes.spawn(&command).unwrap();
        let mut stdout = started.stdout;
        let mut process = ProcessGroup { leader: started.process, is_killed: false };
        process.exit().await;
        process.end().await;
        // The descendant holds the output open as long as it lives.
        let closed = timeout(Duration::from_secs(10), stdout.read_u8()).await;
        assert!(closed.is_ok(), "the descendant lives on");
    }
}
