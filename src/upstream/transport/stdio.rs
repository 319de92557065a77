//! An upstream as a child process: one JSON message per line on its standard input and output.
//!
//! Three streams are worked on at once, so that none can block another: the reader never waits for
//! anybody, the writer has a deadline, standard error is drained to its end.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{self, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::audit::Audit;
use crate::audit::record::Event;
use crate::config;
use crate::config::Settings;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::jsonrpc::Id;
use crate::domain::line_decoder::{Decoder, Line};
use crate::upstream::call::correlator::{Correlator, Followup, NotificationSinks};
use crate::upstream::call::reply;

/// A child that runs. Dropping it ends the child and all that it started.
pub struct Child {
    outgoing: mpsc::Sender<String>,
    correlator: Arc<Correlator>,
    /// Why the child is gone; set before `gone` is cancelled.
    cause: Arc<OnceLock<Kind>>,
    /// Cancelled when the child is gone.
    gone: CancellationToken,
    /// Cancelled when nothing of it is left.
    ended: CancellationToken,
    _end: DropGuard,
}

/// Messages that may wait for the child to read. A child that reads has none waiting; one that
/// does not must not make us hoard.
const OUTGOING: usize = 256;

/// Variables that a child inherits: enough to find programs and a home, none of our secrets.
const INHERITED: [&str; 4] = ["PATH", "HOME", "LANG", "TMPDIR"];

/// How long the output of a child is read after its end.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long a child may take to end once its input is closed, and once it was asked to.
const AFTER_EOF: Duration = Duration::from_secs(2);
const AFTER_TERM: Duration = Duration::from_secs(3);

impl Child {
    /// Starts the child.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub fn spawn(
        stdio: &config::Stdio,
        settings: &Settings,
        sinks: NotificationSinks,
        tasks: &TaskTracker,
    ) -> Result<Self, Kind> {
        let failed = |error: String| Kind::Unavailable(format!("spawn_failed: {error}"));
        look_up(stdio).map_err(|error| failed(error.to_string()))?;
        let spawned = command(stdio).spawn();
        // The error of the system names no path.
        let process = spawned.map_err(|error| failed(error.to_string()))?;
        let (outgoing, mut queue) = mpsc::channel(OUTGOING);
        let life = ChildRecord::start(&sinks, process.id());
        let mut process = ProcessGroup::new(process);
        let (stderr_tail, name) = (sinks.stderr_tail.clone(), sinks.upstream.clone());
        let correlator = Correlator::new(sinks);
        let (gone, end) = (CancellationToken::new(), CancellationToken::new());
        let lines = Lines {
            correlator: correlator.clone(),
            outgoing: outgoing.clone(),
            tasks: tasks.clone(),
            max_message: settings.max_message,
            upstream: name.clone(),
        };
        let ended = CancellationToken::new();
        let nothing_left = ended.clone().drop_guard();
        let (until, done, write_deadline) = (end.clone(), gone.clone(), settings.timeout);
        let cleared = correlator.clone();
        let cause: Arc<OnceLock<Kind>> = Arc::default();
        let because = cause.clone();
        if let Some(stderr) = process.leader.stderr.take() {
            let nothing_left = ended.clone();
            tasks.spawn(async move { stderr_tail.drain(stderr, nothing_left).await });
        }
        tasks.spawn(async move {
            let stdin = process.leader.stdin.take();
            let stdout = process.leader.stdout.take();
            let kind = tokio::select! {
                kind = write(&name, stdin, &mut queue, write_deadline) => kind,
                kind = lines.read(stdout) => kind,
                () = process.exit() => Kind::ChildExited,
                () = until.cancelled() => Kind::Reset("the child process is being ended".to_owned()),
            };
            if !until.is_cancelled() {
                info!(upstream = %name, "the child has ended by itself");
            }
            let _ = because.set(kind);
            done.cancel();
            cleared.close();
            drop(queue);
            process.end().await;
            drop(life);
            drop(nothing_left);
        });
        Ok(Self { outgoing, correlator, cause, gone, ended, _end: end.drop_guard() })
    }

    /// Sends a request and waits for the answer to `id`.
    pub async fn request(&self, id: &Id, body: String) -> Result<Document, Kind> {
        let answer = self.correlator.expect_response(id);
        let _forget = Forget { child: self, id };
        self.notify(body).await?;
        // The child may have gone between the expectation and now.
        if self.gone.is_cancelled() {
            return Err(self.lost());
        }
        answer.await.unwrap_or_else(|_| Err(self.lost()))
    }

    /// Returns why the child is gone.
    fn lost(&self) -> Kind {
        self.cause.get().cloned().unwrap_or(Kind::ChildExited)
    }

    /// Who waits for what on its output.
    pub fn correlator(&self) -> &Arc<Correlator> {
        &self.correlator
    }

    /// Cancelled when nothing of the child is left.
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Waits until the child is gone.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }

    /// Sends a message that has no answer.
    pub async fn notify(&self, body: String) -> Result<(), Kind> {
        self.outgoing.send(body).await.map_err(|_| self.lost())
    }
}

/// What the audit log says of a child: that it was started, and, when this is dropped, that nothing
/// of it is left.
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
        let event = Event::new(event).text("upstream", &self.upstream);
        self.audit.note(event.number("pid", self.pid));
    }
}

impl Drop for ChildRecord {
    fn drop(&mut self) {
        self.note("child_ended");
    }
}

/// Takes a request back when nobody waits for it any more.
struct Forget<'a> {
    child: &'a Child,
    id: &'a Id,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if self.child.correlator.forget_response(self.id) {
            // A full queue means that the child does not read: it would not read this either.
            let _ = self.child.outgoing.try_send(reply::cancellation(self.id));
        }
    }
}

fn command(stdio: &config::Stdio) -> Command {
    let mut command = match &stdio.supervisor {
        None => Command::new(&stdio.program),
        Some(supervisor) => {
            let mut command = Command::new(supervisor);
            let parent = std::process::id().to_string();
            command.args(["supervise", "--parent", &parent, "--", &stdio.program]);
            command
        }
    };
    command.args(&stdio.arguments).current_dir(&stdio.cwd).env_clear();
    for name in INHERITED {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    for (name, value) in &stdio.env {
        command.env(name, value.expose());
    }
    // A group of its own, so that what it starts ends with it, and a terminal's signals pass it by.
    #[cfg(unix)]
    command.process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

/// Writes what is queued; ends when the child does not read in time, or has closed its input.
async fn write(
    upstream: &str,
    stdin: Option<ChildStdin>,
    queue: &mut mpsc::Receiver<String>,
    deadline: Duration,
) -> Kind {
    let Some(mut stdin) = stdin else {
        return Kind::Internal("a child process has no standard input".to_owned());
    };
    while let Some(mut message) = queue.recv().await {
        // Between tokens JSON may hold line feeds; here a line feed ends the message.
        message.retain(|c| c != '\n' && c != '\r');
        message.push('\n');
        match timeout(deadline, stdin.write_all(message.as_bytes())).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Kind::ChildExited,
            Err(_) => {
                info!(upstream, "the child does not read its input");
                return Kind::Reset("the child process does not read its input".to_owned());
            }
        }
    }
    Kind::ChildExited
}

/// What is read of a child at once: as much as a pipe holds.
const READ_BUFFER: usize = 64 << 10;

/// What is done with the child's lines.
struct Lines {
    correlator: Arc<Correlator>,
    outgoing: mpsc::Sender<String>,
    /// Answers to its questions that are not there yet.
    tasks: TaskTracker,
    max_message: usize,
    /// Id of the upstream.
    upstream: Arc<str>,
}

impl Lines {
    /// Reads until the child closes its output, or writes a line beyond the limit.
    async fn read(&self, stdout: Option<impl AsyncRead + Unpin>) -> Kind {
        let Some(mut stdout) = stdout else {
            return Kind::Internal("a child process has no standard output".to_owned());
        };
        let mut decoder = Decoder::new(self.max_message);
        let (mut piece, mut lines, mut skipped) = (vec![0; READ_BUFFER], Vec::new(), 0_u64);
        while let Ok(length @ 1..) = stdout.read(&mut piece).await {
            decoder.feed(&piece[..length], &mut lines);
            for line in lines.drain(..) {
                let Line::Whole(line) = line else {
                    let limit = self.max_message;
                    warn!(upstream = %self.upstream, limit, "a line of the child is too long: it is ended");
                    return Kind::Reset(format!(
                        "a line is longer than max_message = {limit} bytes"
                    ));
                };
                if self.take(line).is_err() {
                    skipped += 1;
                    debug!(skipped, "a line of the child is no message");
                }
            }
        }
        Kind::ChildExited
    }

    fn take(&self, line: Vec<u8>) -> Result<(), Kind> {
        for message in reply::messages(line)? {
            self.dispatch(message);
        }
        Ok(())
    }

    fn dispatch(&self, message: Document) {
        match self.correlator.deliver(message) {
            Followup::None => {}
            Followup::Reply(reply) => {
                // A full queue means that the child does not read: it then gets no answer.
                let _ = self.outgoing.try_send(reply);
            }
            Followup::ReplyLater(id, answer) => {
                let outgoing = self.outgoing.clone();
                self.tasks.spawn(async move {
                    if let Ok(answer) = answer.await {
                        let _ = outgoing.send(reply::client_answer(&id, &answer)).await;
                    }
                });
            }
        }
    }
}

/// Finds the program beforehand: its supervisor would start well, and fail where nobody tells why.
fn look_up(stdio: &config::Stdio) -> Result<PathBuf, which::Error> {
    let own = stdio.env.iter().find(|(name, _)| name == "PATH");
    let path = match own {
        Some((_, path)) => Some(path.expose().into()),
        None => std::env::var_os("PATH"),
    };
    which::which_in(&stdio.program, path, &stdio.cwd)
}

/// A child process and its descendants, as far as they stay in its process group.
struct ProcessGroup {
    leader: process::Child,
    /// The process group, which has the leader's pid; absent once it was killed.
    group: Option<u32>,
}

impl ProcessGroup {
    fn new(leader: process::Child) -> Self {
        // Not known any more once the leader was reaped.
        let group = leader.id();
        Self { leader, group }
    }

    /// Waits until the leader has exited, and for a moment longer, so that its last output is still
    /// read. Its output may be held open by descendants, so the end of the output is no sign.
    async fn exit(&mut self) {
        self.reap().await;
        sleep(LAST_WORDS).await;
    }

    /// Ends the group: by the end of its input, then by SIGTERM, then by SIGKILL.
    async fn end(mut self) {
        drop(self.leader.stdin.take());
        if timeout(AFTER_EOF, self.reap()).await.is_err() {
            self.signal(Signal::Terminate);
            if timeout(AFTER_TERM, self.reap()).await.is_err() {
                self.signal(Signal::Kill);
                self.reap().await;
            }
        }
    }

    /// Waits until the leader has exited, and kills the descendants that are left. Cancel safe.
    async fn reap(&mut self) {
        let _ = self.leader.wait().await;
        // At once and only once: the system may give the pid of an empty group to another process.
        self.signal(Signal::Kill);
        self.group = None;
    }

    #[cfg(unix)]
    fn signal(&self, signal: Signal) {
        let group = self.group.and_then(|id| i32::try_from(id).ok());
        let signal = match signal {
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Terminate => rustix::process::Signal::TERM,
        };
        if let Some(group) = group.and_then(rustix::process::Pid::from_raw) {
            // An error means that the group is empty.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    #[cfg(not(unix))]
    fn signal(&self, _signal: Signal) {}
}

#[derive(Clone, Copy)]
enum Signal {
    Kill,
    Terminate,
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Without a supervisor, as on all systems but Linux.
    #[tokio::test]
    async fn s3_descendants_of_a_child_that_exits_by_itself_are_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000000 & exit 1"]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = ProcessGroup::new(command.spawn().unwrap());
        let mut stdout = process.leader.stdout.take().unwrap();
        process.exit().await;
        process.end().await;
        // The descendant holds the output open as long as it lives.
        let closed = timeout(Duration::from_secs(10), stdout.read_u8()).await;
        assert!(closed.is_ok(), "the descendant lives on");
    }
}
