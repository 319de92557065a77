//! The export of the log to a collector (`audit.export`): from the segments on the disk, in their
//! order, each record at least once. A collector that is down, slow or refuses records delays the
//! export, and nothing else.

mod batch;
mod collector;
mod cursor;
mod otlp;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Audit;
use base::platform::{blocking, wall_clock};
use batch::{Batch, ExportedLog};
use collector::{Collector, Refusal};
use config::Proxies;
use cursor::Cursor;
use domain::time::backoff::Backoff;

/// The export of a gateway, with its state.
#[derive(Default)]
pub struct AuditExport {
    /// `None` without an export.
    destination: Mutex<Option<Destination>>,
    /// Notified when the destination changes.
    configured: Notify,
    status: Mutex<ExportStatus>,
}

/// A collector, and the way to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Destination {
    pub config: config::AuditExport,
    pub proxies: Proxies,
    /// `service.name` of the records.
    pub service: String,
}

/// The state of the export.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ExportStatus {
    /// The last record that the collector has accepted.
    accepted: u64,
    /// When the oldest record was made that the collector has not accepted, as far as it was read.
    oldest: Option<SystemTime>,
    /// Records on the disk that the collector has not accepted.
    pub waiting: u64,
    /// The age of the oldest of these records; zero if none waits.
    pub lag: Duration,
    /// When the collector accepted records last; `None` since the start.
    pub last_success: Option<SystemTime>,
    /// Why records wait; `None` after a success.
    pub failure: Option<String>,
}

/// The running export of one log to one collector.
struct Exporting {
    destination: Destination,
    collector: Collector,
    log: ExportedLog,
    /// Records of the next request, at most: fewer after a refusal, to find the refused record.
    limit: usize,
    backoff: Backoff,
    /// The cursor in the file, and when it was written.
    saved: (Cursor, Instant),
}

/// The time between two attempts to read a log or a cursor that cannot be read.
const RETRY: Duration = Duration::from_secs(10);

/// The time between two writes of the cursor: a killed gateway sends the records since then again.
const SAVE_EVERY: Duration = Duration::from_secs(1);

impl AuditExport {
    /// Applies the destination of a configuration; `None` ends the export.
    pub fn configure(&self, destination: Option<Destination>) {
        let mut current = lock(&self.destination);
        if *current != destination {
            *current = destination;
            drop(current);
            *lock(&self.status) = ExportStatus::default();
            self.configured.notify_one();
        }
    }

    /// Returns the state of the export; `None` without an export. `synced` is the last record on the
    /// disk.
    pub(super) fn status(&self, synced: u64, now: SystemTime) -> Option<ExportStatus> {
        lock(&self.destination).as_ref()?;
        let status = lock(&self.status).clone();
        let waiting = synced.saturating_sub(status.accepted);
        // A clock that was set back makes no record older.
        let age = status.oldest.and_then(|oldest| now.duration_since(oldest).ok());
        Some(ExportStatus { waiting, lag: age.unwrap_or_default(), ..status })
    }

    /// Exports the current log until `stop`. After a change of the destination it goes on where it
    /// was.
    pub async fn run(self: Arc<Self>, audit: Audit, stop: CancellationToken) {
        let mut running: Option<Exporting> = None;
        loop {
            let pause = tokio::select! {
                () = stop.cancelled() => break,
                pause = self.step(&mut running, &audit) => pause,
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.configured.notified() => {}
                () = sleep(pause) => {}
            }
        }
        if let Some(running) = &mut running {
            let _ = running.save(Duration::ZERO).await;
        }
    }

    /// Sends the next records; returns the time until the next step.
    async fn step(&self, running: &mut Option<Exporting>, audit: &Audit) -> Duration {
        match self.try_step(running, audit).await {
            Ok(pause) => pause,
            Err(error) => {
                *running = None;
                self.failed(error.to_string());
                RETRY
            }
        }
    }

    async fn try_step(
        &self,
        running: &mut Option<Exporting>,
        audit: &Audit,
    ) -> io::Result<Duration> {
        let Some(destination) = lock(&self.destination).clone() else {
            *running = None;
            return Ok(RETRY);
        };
        if let Some(before) = running.take_if(|running| running.destination != destination) {
            *running = Some(before.turn_to(destination.clone()).await?);
        }
        let exporting = match running {
            Some(running) => running,
            None => match Exporting::open(destination, audit).await? {
                Some(opened) => running.insert(opened),
                None => return Ok(RETRY),
            },
        };
        let batch = exporting.log.next_batch(exporting.limit).await?;
        self.found(&batch, exporting.log.cursor.seq);
        if batch.lines.is_empty() && !batch.is_full {
            exporting.save(SAVE_EVERY).await?;
            let is_replaced = audit.path().as_ref() != Some(&exporting.log.path);
            // The replaced log is read to its end before the log that continues it.
            if is_replaced && exporting.log.has_ended() {
                exporting.save(Duration::ZERO).await?;
                *running = None;
                return Ok(Duration::ZERO);
            }
            return Ok(exporting.collector.config().interval);
        }
        let is_full = batch.is_full;
        match exporting.send(batch).await {
            Ok(()) => {
                exporting.save(SAVE_EVERY).await?;
                self.succeeded(exporting.log.cursor.seq);
                let pause = exporting.collector.config().interval;
                Ok(if is_full { Duration::ZERO } else { pause })
            }
            Err(refusal) => {
                let wait = exporting.backoff.next(fastrand::f64());
                let wait = refusal.retry_after.unwrap_or_default().max(wait);
                self.failed(refusal.why);
                Ok(wait)
            }
        }
    }

    fn found(&self, batch: &Batch, accepted: u64) {
        let mut status = lock(&self.status);
        status.accepted = accepted;
        status.oldest = batch.begin();
    }

    fn succeeded(&self, accepted: u64) {
        let mut status = lock(&self.status);
        status.accepted = accepted;
        status.oldest = None;
        status.last_success = Some(wall_clock());
        if status.failure.take().is_some() {
            info!("the collector accepts records of the audit log again");
        }
    }

    fn failed(&self, why: String) {
        let mut status = lock(&self.status);
        if status.failure.as_ref() != Some(&why) {
            warn!(reason = why, "the audit log cannot be exported; retrying, and nothing is lost");
            status.failure = Some(why);
        }
    }
}

impl Destination {
    /// Sends a single log record that belongs to no log.
    ///
    /// # Errors
    /// Why the collector has not accepted it, for an operator.
    pub async fn test(&self) -> Result<(), String> {
        let collector = Collector::new(self.config.clone(), &self.proxies)?;
        let request = otlp::test_request(&self.service, wall_clock());
        collector.send(&request).await.map_err(|refusal| refusal.why)
    }
}

impl Exporting {
    /// Opens the current log; `None` if the log is disabled.
    async fn open(destination: Destination, audit: &Audit) -> io::Result<Option<Self>> {
        let Some(ledger) = audit.ledger() else { return Ok(None) };
        let log = run_blocking(move || ExportedLog::open(&ledger)).await?;
        Self::to(destination, log).map(Some)
    }

    fn to(destination: Destination, log: ExportedLog) -> io::Result<Self> {
        let collector = Collector::new(destination.config.clone(), &destination.proxies);
        let collector = collector.map_err(io::Error::other)?;
        let limit = destination.config.batch;
        let saved = (log.cursor.clone(), Instant::now());
        Ok(Self { destination, collector, log, limit, backoff: Backoff::default(), saved })
    }

    /// Exports the same log to another destination.
    async fn turn_to(mut self, destination: Destination) -> io::Result<Self> {
        self.save(Duration::ZERO).await?;
        Self::to(destination, self.log)
    }

    /// Sends a batch, and moves the cursor behind it once the collector has accepted it.
    async fn send(&mut self, batch: Batch) -> Result<(), Refusal> {
        let Batch { lines, end, .. } = batch;
        let count = lines.len();
        if count > 0 {
            let service = self.destination.service.clone();
            let instance = end.instance.clone();
            let made = blocking(move || otlp::request(&service, &instance, &lines, wall_clock()));
            let request = made.await.map_err(|error| Refusal::of(error.to_string()))?;
            if let Err(refusal) = self.collector.send(&request).await {
                if refusal.is_part {
                    self.limit = (count / 2).max(1);
                }
                return Err(refusal);
            }
        }
        self.log.accept(end);
        self.limit = (2 * self.limit).min(self.destination.config.batch);
        self.backoff = Backoff::default();
        Ok(())
    }

    /// Writes the cursor, if it has moved and was not written within `every`.
    async fn save(&mut self, every: Duration) -> io::Result<()> {
        let (saved, at) = &self.saved;
        if *saved == self.log.cursor || at.elapsed() < every {
            return Ok(());
        }
        let cursor = self.log.cursor.clone();
        let path = self.log.path.clone();
        let written = cursor.clone();
        run_blocking(move || written.write(&path)).await?;
        self.saved = (cursor, Instant::now());
        Ok(())
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error.to_string())))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
