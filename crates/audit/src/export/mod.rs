//! The export of the log to a collector (`audit.export`): from the segments on the disk, in their
//! order, each record at least once. A collector that is down, slow or refuses records delays the
//! export, and nothing else.

mod batch;
mod collector;
mod cursor;
mod otlp;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ledger::Ledger;
use base::platform::{Locked, run_blocking, wall_clock};
use batch::{Batch, ExportedLog};
use collector::{Collector, Refusal};
use config::Proxies;
pub(crate) use cursor::keep_replaced;
use domain::calls::caller::Caller;
use domain::calls::fair_share::Holder;
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
    /// Records that the collector has refused for good since the start.
    pub refused: u64,
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
        let mut current = self.destination.locked();
        if *current != destination {
            *current = destination;
            *self.status.locked() = ExportStatus::default();
            self.configured.notify_one();
        }
    }

    /// Returns the state of the export; `None` without it. `synced` is the last record on the disk.
    pub(super) fn status(&self, synced: u64, now: SystemTime) -> Option<ExportStatus> {
        self.destination.locked().as_ref()?;
        let status = self.status.locked().clone();
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

    /// Sends the next records; returns the time until the next step. An export that catches up
    /// leaves half of a processor to calls.
    async fn step(
        &self,
        running: &mut Option<Exporting>,
        ledger: Option<Arc<Ledger>>,
    ) -> io::Result<Duration> {
        let destination = self.destination.locked().clone();
        let (Some(destination), Some(ledger)) = (destination, ledger) else {
            return Ok(RETRY);
        };
        let before = running.take_if(|running| running.destination != destination);
        let exporting = match running {
            Some(running) => running,
            None => running.insert(Exporting::open(destination, before, &ledger).await?),
        };
        let Destination { config, service, .. } = &exporting.destination;
        let interval = config.interval;
        let began = Instant::now();
        let batch = exporting.log.next_batch(exporting.limit, service).await?;
        let reading = began.elapsed();
        let is_full = batch.is_full;
        // While the rest of a replaced log is exported, the log that is written waits as a whole.
        let is_current = exporting.log.is_of(&ledger);
        self.update(if is_current { exporting.log.cursor.seq } else { 0 }, batch.begin());
        if batch.lines.is_empty() && !is_full {
            // The replaced log is read to its end before the log that continues it.
            if exporting.log.has_ended() && !is_current {
                *running = None;
                return Ok(Duration::ZERO);
            }
            return Ok(interval);
        }
        if let Err(refusal) = exporting.send(&batch).await {
            let wait = exporting.backoff.next(fastrand::f64());
            if !exporting.is_refused_for_good(&batch, &refusal).await {
                self.failed(refusal.why);
                return Ok(refusal.retry_after.unwrap_or_default().max(wait));
            }
            self.pass_over(&mut exporting.log, &batch, &refusal.why, &ledger).await?;
            // The record of a refusal may be refused, too, which makes another one.
            return Ok(interval);
        }
        exporting.log.accept(batch.end).await?;
        self.update(if is_current { exporting.log.cursor.seq } else { 0 }, None);
        let mut status = self.status.locked();
        status.last_success = Some(wall_clock());
        if status.failure.take().is_some() {
            info!("the collector accepts records of the audit log again");
        }
        Ok(if is_full { reading } else { interval })
    }

    /// Moves the cursor behind the only line of a batch, after the log has the record that the
    /// collector refuses it for good.
    async fn pass_over(
        &self,
        log: &mut ExportedLog,
        batch: &Batch,
        why: &str,
        ledger: &Ledger,
    ) -> io::Result<()> {
        let refused = log.refused(batch, why).await?;
        let holder = Holder::of(&Caller::anonymous(), None);
        ledger.record(&holder, refused).await.map_err(io::Error::other)?;
        log.accept(batch.end.clone()).await?;
        self.status.locked().refused += 1;
        warn!(
            record = log.cursor.seq,
            reason = why,
            "the collector refuses an audit record for good"
        );
        Ok(())
    }

    fn update(&self, accepted: u64, oldest: Option<SystemTime>) {
        let mut status = self.status.locked();
        status.accepted = accepted;
        status.oldest = oldest;
    }

    fn failed(&self, why: String) {
        let mut status = self.status.locked();
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
        collector.send(request).await.map_err(|refusal| refusal.why)
    }
}

impl Exporting {
    /// Opens the log of the export `before`, or else the one behind its cursor.
    async fn open(
        destination: Destination,
        before: Option<Self>,
        ledger: &Arc<Ledger>,
    ) -> io::Result<Self> {
        let Destination { config, proxies, .. } = &destination;
        let collector = Collector::new(config.clone(), proxies).map_err(io::Error::other)?;
        let limit = config.batch;
        let ledger = ledger.clone();
        let log = match before {
            Some(before) => before.log,
            None => run_blocking(move || ExportedLog::open(&ledger)).await?,
        };
        Ok(Self { destination, collector, log, limit, backoff: Backoff::default() })
    }

    async fn send(&mut self, batch: &Batch) -> Result<(), Refusal> {
        let count = batch.lines.len();
        let sent = self.collector.send(batch.request.clone()).await;
        match &sent {
            Ok(()) => {
                self.limit = (2 * self.limit).min(self.destination.config.batch);
                self.backoff = Backoff::default();
            }
            Err(refusal) if refusal.is_of_records => self.limit = (count / 2).max(1),
            Err(_) => {}
        }
        sent
    }

    /// Whether the collector refuses the only line of a batch, and accepts a test record.
    async fn is_refused_for_good(&self, batch: &Batch, refusal: &Refusal) -> bool {
        let is_alone = refusal.is_of_records && batch.lines.len() == 1;
        let test = otlp::test_request(&self.destination.service, wall_clock());
        is_alone && self.collector.send(test).await.is_ok()
    }
}
