//! Orderly shutdown: signals, tasks that end in order, and the supervision of tasks that live as
//! long as the gateway.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use config::Limits;

/// The tasks and phases of a shutdown, in the order in which they end: `pre_drain`, `drain`,
/// `stop`.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// The accept loop and its connections.
    pub connections: TaskTracker,
    /// Cancelled first: `/readyz` answers 503, and connections are still accepted.
    pub pre_drain: CancellationToken,
    /// Cancelled after `server.limits.pre_drain`: no connections are accepted, and streams end.
    pub drain: CancellationToken,
    /// The drivers of upstreams, the refresh, and calls that outlive their connection.
    pub background: TaskTracker,
    /// Cancelled last: calls and background tasks end.
    pub stop: CancellationToken,
    /// Spawns tasks into `background` that live until `stop`.
    pub supervisor: Supervisor,
}

/// Spawns the tasks that live as long as the gateway. A failed task is logged and reported, makes
/// the gateway unready, and resolves [`Supervisor::failed`], which ends the process in order: a new
/// process is better than a gateway that runs without one of its parts. Clones are handles of the
/// same supervisor.
#[derive(Clone, Debug)]
pub struct Supervisor {
    tasks: TaskTracker,
    stop: CancellationToken,
    failures: Arc<Failures>,
}

/// A task that has ended although it was still needed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TaskFailure {
    pub task: &'static str,
    pub how: TaskEnd,
}

/// How a task has failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TaskEnd {
    Panicked,
    /// The task has returned too early.
    Returned,
}

impl TaskEnd {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Panicked => "panicked",
            Self::Returned => "returned",
        }
    }
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, how } = self;
        match how {
            TaskEnd::Panicked => write!(f, "the task {task} has panicked"),
            TaskEnd::Returned => write!(f, "the task {task} has ended too early"),
        }
    }
}

struct Failures {
    /// One failure for each name of a task.
    all: Mutex<Vec<TaskFailure>>,
    /// Cancelled at the first failure.
    failed: CancellationToken,
    report: Box<dyn Fn(&TaskFailure) + Send + Sync>,
}

impl Failures {
    fn all(&self) -> MutexGuard<'_, Vec<TaskFailure>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all().iter()).finish()
    }
}

impl Supervisor {
    /// Tasks are spawned into `tasks`, and live until `stop` is cancelled.
    pub fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self::reporting(tasks, stop, |_| {})
    }

    /// As [`Supervisor::new`]; also hands each failure to `report`.
    fn reporting(
        tasks: TaskTracker,
        stop: CancellationToken,
        report: impl Fn(&TaskFailure) + Send + Sync + 'static,
    ) -> Self {
        let all = Mutex::default();
        let failed = CancellationToken::new();
        let report = Box::new(report);
        Self { tasks, stop, failures: Arc::new(Failures { all, failed, report }) }
    }

    /// Returns the same supervisor with its tasks in another tracker.
    pub fn tracked_by(&self, tasks: &TaskTracker) -> Self {
        Self { tasks: tasks.clone(), ..self.clone() }
    }

    /// Returns the tracker of tasks that live as long as a call or a connection. They are not
    /// supervised.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Returns the token that is cancelled at the end of a shutdown.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Spawns a task that lives until the end of the shutdown.
    pub fn supervise(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.supervise_until(&self.stop, name, task);
    }

    /// Spawns a task that lives until `end` is cancelled.
    pub fn supervise_until(
        &self,
        end: &CancellationToken,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let supervisor = self.clone();
        let end = end.clone();
        self.tasks.spawn(async move {
            match caught(task).await {
                Ok(()) if end.is_cancelled() => {}
                Ok(()) => supervisor.fail(name, TaskEnd::Returned, ""),
                Err(panic) => supervisor.fail(name, TaskEnd::Panicked, &panic),
            }
        });
    }

    /// Spawns a task that ends by itself when its work is done; only a panic is a failure.
    pub fn supervise_job(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let supervisor = self.clone();
        self.tasks.spawn(async move { supervisor.watch(name, task).await });
    }

    /// Awaits a part of the gateway that runs in the task of its caller; only a panic is a failure.
    pub async fn watch(&self, name: &'static str, part: impl Future<Output = ()>) {
        if let Err(panic) = caught(part).await {
            self.fail(name, TaskEnd::Panicked, &panic);
        }
    }

    fn fail(&self, task: &'static str, how: TaskEnd, panic: &str) {
        error!(task, how = how.as_str(), panic, "a task has failed; the gateway ends in order");
        let failure = TaskFailure { task, how };
        (self.failures.report)(&failure);
        let mut all = self.failures.all();
        if !all.iter().any(|known| known.task == task) {
            all.push(failure);
        }
        drop(all);
        self.failures.failed.cancel();
    }

    /// Returns the tasks that have failed, each once.
    pub fn failures(&self) -> Vec<TaskFailure> {
        self.failures.all().clone()
    }

    /// Resolves once a task has failed.
    pub async fn failed(&self) {
        self.failures.failed.cancelled().await;
    }
}

/// Awaits a future, and returns the message of its panic if it panics.
pub async fn caught<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        // A future is not polled again after a panic.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic_message(&*panic))),
        }
    })
    .await
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::reporting(|_| {})
    }
}

/// The time for background tasks to end after `stop`: a child process has two seconds to end after
/// the end of its input, and three more after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(6);

impl Shutdown {
    /// Hands each failure of a supervised task to `report`.
    pub fn reporting(report: impl Fn(&TaskFailure) + Send + Sync + 'static) -> Self {
        let background = TaskTracker::new();
        let stop = CancellationToken::new();
        let supervisor = Supervisor::reporting(background.clone(), stop.clone(), report);
        Self {
            connections: TaskTracker::new(),
            pre_drain: CancellationToken::new(),
            drain: CancellationToken::new(),
            background,
            stop,
            supervisor,
        }
    }

    /// Drains the connections: accepts new ones for `pre_drain`, then lets requests in flight
    /// finish within `grace`.
    pub async fn drain_connections(&self, limits: &Limits) {
        info!(pre_drain = ?limits.pre_drain, grace = ?limits.grace, "draining");
        self.pre_drain.cancel();
        tokio::time::sleep(limits.pre_drain).await;
        self.drain.cancel();
        self.connections.close();
        if timeout(limits.grace, self.connections.wait()).await.is_err() {
            warn!(
                connections = self.connections.len(),
                "grace period ended with open connections; their calls get shutting_down"
            );
        }
    }

    /// Ends the background tasks within [`STOP_TIMEOUT`]. Calls in flight get `shutting_down`, and
    /// their connections have the same time to send it.
    pub async fn stop(&self) {
        // Without a drain the accept loop would go on.
        self.pre_drain.cancel();
        self.drain.cancel();
        self.stop.cancel();
        self.background.close();
        self.connections.close();
        let ending = async { tokio::join!(self.background.wait(), self.connections.wait()) };
        if timeout(STOP_TIMEOUT, ending).await.is_err() {
            warn!(
                tasks = self.background.len(),
                connections = self.connections.len(),
                "shutdown timed out; abandoning remaining tasks"
            );
        }
        info!("stopped");
    }
}

/// Returns a future that resolves at SIGTERM or SIGINT, on Windows at Ctrl-Break or Ctrl-C. From
/// the call on, neither ends the process by itself.
pub fn termination_signal() -> impl Future<Output = ()> {
    #[cfg(unix)]
    let signals = {
        use tokio::signal::unix::{SignalKind, signal};
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    };
    #[cfg(windows)]
    let signals = (tokio::signal::windows::ctrl_break(), tokio::signal::windows::ctrl_c());
    async move {
        match signals {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            }
            _ => std::future::pending().await,
        }
    }
}

/// Returns a future that notifies `reload` at each SIGHUP, from the call on, and never resolves.
pub fn reload_signals(reload: &Notify) -> impl Future<Output = ()> {
    #[cfg(unix)]
    let signals = {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::hangup())
    };
    async move {
        #[cfg(unix)]
        if let Ok(mut signals) = signals {
            while signals.recv().await.is_some() {
                reload.notify_one();
            }
        }
        let _ = reload;
        std::future::pending().await
    }
}

/// Makes a write beyond the file size limit (RLIMIT_FSIZE) fail with an error, as on a full disk,
/// instead of ending the process by SIGXFSZ.
pub fn handle_file_size_signal() {
    #[cfg(target_os = "linux")]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // tokio never removes a handler, also after the listener is dropped.
        let file_size = rustix::process::Signal::XFSZ.as_raw();
        drop(signal(SignalKind::from_raw(file_size)));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::time::{Instant, sleep};

    use super::*;
    use config::Config;

    fn limits() -> Limits {
        Config::parse("g", "", Path::new(""), &[]).unwrap().server.limits
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_finish_within_the_grace_period() {
        let shutdown = Shutdown::default();
        let start = Instant::now();
        let drain = shutdown.drain.clone();
        shutdown.connections.spawn(async move {
            drain.cancelled().await;
            sleep(Duration::from_secs(7)).await;
        });
        let stop = shutdown.stop.clone();
        shutdown.background.spawn(async move { stop.cancelled().await });
        shutdown.drain_connections(&limits()).await;
        shutdown.stop().await;
        assert_eq!(start.elapsed().as_secs(), 1 + 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_with_hanging_tasks_times_out() {
        let shutdown = Shutdown::default();
        let start = Instant::now();
        shutdown.connections.spawn(std::future::pending::<()>());
        shutdown.background.spawn(std::future::pending::<()>());
        shutdown.drain_connections(&limits()).await;
        shutdown.stop().await;
        assert_eq!(start.elapsed().as_secs(), 1 + 30 + 6);
    }
    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_with_the_shutdown_has_not_failed() {
        let shutdown = Shutdown::default();
        let stop = shutdown.stop.clone();
        shutdown.supervisor.supervise("usage", async move { stop.cancelled().await });
        shutdown.supervisor.supervise_job("export", async {});
        let edition = CancellationToken::new();
        let ended = edition.clone();
        shutdown.supervisor.supervise_until(
            &edition,
            "probing",
            async move { ended.cancelled().await },
        );
        edition.cancel();
        shutdown.stop().await;
        assert_eq!(shutdown.supervisor.failures(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_or_returns_too_early_is_reported_by_its_name() {
        let (sender, reported) = std::sync::mpsc::channel();
        let shutdown = Shutdown::reporting(move |failure| drop(sender.send(failure.clone())));
        let supervisor = shutdown.supervisor.clone();
        supervisor.supervise("refresh", async { panic!("a list that nobody expected") });
        supervisor.failed().await;
        let refresh = TaskFailure { task: "refresh", how: TaskEnd::Panicked };
        assert_eq!(supervisor.failures(), std::slice::from_ref(&refresh));
        supervisor.supervise("usage", async {});
        supervisor.supervise_job("export", async { panic!("{}", "formatted") });
        shutdown.background.close();
        shutdown.background.wait().await;
        let usage = TaskFailure { task: "usage", how: TaskEnd::Returned };
        let export = TaskFailure { task: "export", how: TaskEnd::Panicked };
        assert_eq!(reported.try_iter().collect::<Vec<_>>(), [refresh, usage, export]);
    }

    #[tokio::test]
    async fn the_message_of_a_panic_is_kept() {
        assert_eq!(caught(async { 1 }).await, Ok(1));
        assert_eq!(caught(async { panic!("text") }).await.map(|(): ()| ()), Err("text".to_owned()));
        let formatted = caught(async { panic!("{}", 2) }).await.map(|(): ()| ());
        assert_eq!(formatted, Err("2".to_owned()));
    }
}
