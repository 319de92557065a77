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
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ledger::Ledger;
use base::platform::wall_clock;
use batch::{Batch, ExportedLog, run_blocking};
use collector::{Collector, Refusal};
use config::Proxies;
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
}

/// The time between two attempts to read a log or a cursor that cannot be read.
const RETRY: Duration = Duration::from_secs(10);

impl AuditExport {
    /// Applies the destination of a configuration; `None` ends the export.
    pub fn configure(&self, destination: Option<Destination>) {
        let mut current = lock(&self.destination);
        if *current != destination {
            *current = destination;
            *lock(&self.status) = ExportStatus::default();
            self.configured.notify_one();
        }
    }

    /// Returns the state of the export; `None` without it. `synced` is the last record on the disk.
    pub(super) fn status(&self, synced: u64, now: SystemTime) -> Option<ExportStatus> {
        lock(&self.destination).as_ref()?;
        let status = lock(&self.status).clone();
        let waiting = synced.saturating_sub(status.accepted);
        // A clock that was set back makes no record older.
        let age = status.oldest.and_then(|oldest| now.duration_since(oldest).ok());
        Some(ExportStatus { waiting, lag: age.unwrap_or_default(), ..status })
    }

    /// Exports the log that `current` returns until `stop`.
    pub async fn run(
        self: Arc<Self>,
        current: impl Fn() -> Option<Arc<Ledger>>,
        stop: CancellationToken,
    ) {
        let mut running = None;
        let exporting = async {
            loop {
                let stepped = self.step(&mut running, current()).await;
                let pause = stepped.unwrap_or_else(|error| {
                    running = None;
                    self.failed(error.to_string());
                    RETRY
                });
                tokio::select! {
                    () = self.configured.notified() => {}
                    () = sleep(pause) => {}
                }
            }
        };
        stop.run_until_cancelled(exporting).await;
    }

    /// Sends the next records; returns the time until the next step.
    async fn step(
        &self,
        running: &mut Option<Exporting>,
        ledger: Option<Arc<Ledger>>,
    ) -> io::Result<Duration> {
        let destination = lock(&self.destination).clone();
        running.take_if(|running| Some(&running.destination) != destination.as_ref());
        let (Some(destination), Some(ledger)) = (destination, ledger) else {
            return Ok(RETRY);
        };
        let exporting = match running {
            Some(running) => running,
            None => running.insert(Exporting::open(destination, &ledger).await?),
        };
        let interval = exporting.destination.config.interval;
        let batch = exporting.log.next_batch(exporting.limit).await?;
        let is_full = batch.is_full;
        self.update(exporting.log.cursor.seq, batch.begin());
        if batch.lines.is_empty() && !is_full {
            // The replaced log is read to its end before the log that continues it.
            if ledger.path() != exporting.log.path && exporting.log.has_ended() {
                *running = None;
                return Ok(Duration::ZERO);
            }
            return Ok(interval);
        }
        if let Err(Refusal { why, retry_after, .. }) = exporting.send(&batch).await {
            self.failed(why);
            let wait = exporting.backoff.next(fastrand::f64());
            return Ok(retry_after.unwrap_or_default().max(wait));
        }
        exporting.log.accept(batch.end).await?;
        self.update(exporting.log.cursor.seq, None);
        let mut status = lock(&self.status);
        status.last_success = Some(wall_clock());
        if status.failure.take().is_some() {
            info!("the collector accepts records of the audit log again");
        }
        Ok(if is_full { Duration::ZERO } else { interval })
    }

    fn update(&self, accepted: u64, oldest: Option<SystemTime>) {
        let mut status = lock(&self.status);
        status.accepted = accepted;
        status.oldest = oldest;
    }

    fn failed(&self, why: String) {
        let mut status = lock(&self.status);
        if status.failure.as_ref() != Some(&why) {
            warn!(reason = why, "the audit log cannot be exported; retrying");
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
    async fn open(destination: Destination, ledger: &Arc<Ledger>) -> io::Result<Self> {
        let Destination { config, proxies, .. } = &destination;
        let collector = Collector::new(config.clone(), proxies).map_err(io::Error::other)?;
        let limit = config.batch;
        let ledger = ledger.clone();
        let log = run_blocking(move || ExportedLog::open(&ledger)).await?;
        Ok(Self { destination, collector, log, limit, backoff: Backoff::default() })
    }

    async fn send(&mut self, batch: &Batch) -> Result<(), Refusal> {
        let count = batch.lines.len();
        let Destination { service, config, .. } = &self.destination;
        let request = otlp::request(service, &batch.end.instance, &batch.lines, wall_clock());
        let sent = self.collector.send(&request).await;
        match &sent {
            Ok(()) => {
                self.limit = (2 * self.limit).min(config.batch);
                self.backoff = Backoff::default();
            }
            Err(refusal) if refusal.is_part => self.limit = (count / 2).max(1),
            Err(_) => {}
        }
        sent
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
