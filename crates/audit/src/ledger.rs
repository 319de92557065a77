//! One audit log with its writer: sends records to the writer, and waits until they are written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::FolderUse;
use super::digest;
use super::keys::Keys;
use super::log::{Log, LogSettings};
use super::queue::{Queue, WriteOutcome, WriterSettings};
use super::record::{AuditEvent, Stamp};
use super::segments::folder::LogFolder;
use super::segments::recover::{SetAside, recover};
use super::shared_writer::SharedWriter;
use super::writer::LogWriter;
use base::platform::{spawn_thread, wall_clock};
use base::seal::AuditKey;
pub(crate) use config::Durability;
use domain::calls::fair_share::Holder;
use domain::json::document::Document;

/// A log that is being written. When the last handle is dropped, the writer ends the log with a
/// checkpoint.
pub struct Ledger {
    /// The folder of the log.
    path: PathBuf,
    queue: Arc<Queue>,
    writer: Arc<SharedWriter>,
    keys: Arc<Keys>,
    started: Instant,
}

/// A task's promise to write the waiting records, for which the log thread was not woken. Dropping
/// the promise unfulfilled wakes the log thread.
struct WritePromise(Option<Arc<SharedWriter>>);

impl WritePromise {
    /// Writes in a new task of this runtime, which starts when the present task waits. A disk that
    /// hangs blocks only that task and its thread; other threads serve the calls.
    fn fulfil(self) {
        let handle = Handle::try_current().ok();
        if let Some(handle) = handle.filter(|handle| handle.metrics().num_workers() > 1) {
            handle.spawn(async move { self.write() });
        }
    }

    fn write(mut self) {
        if let Some(writer) = self.0.take() {
            writer.write_waiting();
        }
    }
}

impl Drop for WritePromise {
    fn drop(&mut self) {
        if let Some(writer) = &self.0 {
            writer.leave_to_thread();
        }
    }
}

/// A record is not known to be written, so the call must not continue.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unrecorded {
    /// The record will not be written.
    #[error("the audit log cannot be written")]
    Refused,
    /// The record waits to be written, and will be if the log can be written again.
    #[error("the audit log could not be written in time")]
    Late,
}

impl Ledger {
    /// Opens the log of the configuration and starts its writer.
    ///
    /// # Errors
    /// When the folder cannot be used, or was written with another key.
    pub fn open(config: &config::Audit, folder_use: FolderUse) -> io::Result<Self> {
        let folder = open_folder(&config.path, folder_use)?;
        let (key, created) = match config.key()? {
            Some(key) => (key, None),
            None => config.make_key().map(|(key, file)| (key, Some(file)))?,
        };
        let keys = Arc::new(Keys::new(&key));
        let path = folder.path().to_owned();
        let recovered = recover(&folder, &keys)?;
        let started = Instant::now();
        let now = Stamp { wall: wall_clock(), up: Duration::ZERO };
        let settings = writer_settings(config);
        let log = Log::new(folder, keys.clone(), settings.log.clone(), &recovered, now)?;
        if let Some(file) = created {
            tracing::info!(
                file = %file.display(),
                "no audit key is set, so one was created; who has it can forge the log: in production keep it \
                 elsewhere and set PROMPTGATE_AUDIT_KEY"
            );
        }
        tracing::info!(path = %path.display(), last = recovered.head.seq, public_key = %keys.public(), "audit log opened");
        let queue = Arc::new(Queue::new(settings.clone()));
        let clock = Box::new(move || stamp(started));
        let log_writer = LogWriter::new(queue.clone(), log, clock, settings);
        let writer = Arc::new(SharedWriter::new(queue.clone(), log_writer));
        let own = writer.clone();
        spawn_thread("audit", move || own.run())?;
        let ledger = Self { path, queue, writer, keys, started };
        let event = AuditEvent::new("started").text("version", env!("CARGO_PKG_VERSION"));
        ledger.note(event.number("after", recovered.head.seq));
        for SetAside { name, bytes, last_seq } in &recovered.aside {
            tracing::error!(
                name,
                bytes,
                "a file of the audit folder is no segment; it was set aside"
            );
            let event = AuditEvent::new("set_aside").text("name", name).number("bytes", *bytes);
            ledger.note(event.number("last_seq", *last_seq));
        }
        if recovered.torn > 0 {
            let event = AuditEvent::new("recovered").number("last_seq", recovered.head.seq);
            ledger.note(event.number("torn_bytes", recovered.torn));
        }
        Ok(ledger)
    }

    /// Returns the folder of the log.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the log is written with this key.
    pub(super) fn uses_key(&self, key: &AuditKey) -> bool {
        Keys::new(key).public() == self.keys.public()
    }

    /// Returns the keys of the log.
    pub(super) fn keys(&self) -> Arc<Keys> {
        self.keys.clone()
    }

    /// Returns the interval of the regular verification.
    pub(super) fn verify_every(&self) -> Duration {
        self.queue.verify_every()
    }

    /// Returns the queue of the writer.
    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Whether calls that must be recorded are refused at present, because the log is down.
    pub fn refuses(&self) -> bool {
        self.is_down() && !self.queue.degrades()
    }

    /// Whether records cannot be written at present, or not within `audit.timeout`.
    pub(super) fn is_down(&self) -> bool {
        self.queue.is_down_at(self.started.elapsed())
    }

    /// Returns how long the oldest waiting record has waited; `None` if none waits.
    pub(super) fn lag(&self) -> Option<Duration> {
        let since = self.queue.waiting().1?;
        Some(self.started.elapsed().saturating_sub(since))
    }

    /// Records an event that `holder` has caused, and waits until the record is written.
    ///
    /// # Errors
    /// When the record cannot be written within `audit.timeout`, unless `audit.on_failure` is
    /// `degrade`.
    ///
    /// # Cancel safety
    /// A record in the queue is written even if the future is dropped.
    pub async fn record(&self, holder: &Holder, event: AuditEvent) -> Result<(), Unrecorded> {
        self.record_both(holder, None, event).await
    }

    /// Records two events, `before` right before `event`: both are written, or neither.
    ///
    /// # Errors
    /// As [`Ledger::record`]. Cancel safety is the same, too.
    pub async fn record_both(
        &self,
        holder: &Holder,
        before: Option<AuditEvent>,
        event: AuditEvent,
    ) -> Result<(), Unrecorded> {
        let pending = self.queue.submit(holder, before, event, stamp(self.started));
        let Some(pending) = pending.map_err(|_| Unrecorded::Refused)? else {
            return Ok(());
        };
        if pending.is_for_callers {
            let promise = WritePromise(Some(self.writer.clone()));
            if pending.is_shared {
                // Calls that are ready record first, and share one write with this call.
                yield_now().await;
            }
            promise.fulfil();
        }
        match pending.outcome(&self.queue).await {
            Ok(Some(WriteOutcome::Written)) => Ok(()),
            _ if self.queue.degrades() => Ok(()),
            Ok(None) => Err(Unrecorded::Refused),
            Ok(Some(WriteOutcome::Late)) | Err(_) => Err(Unrecorded::Late),
        }
    }

    /// Records an event without waiting until it is written. The record precedes all later ones.
    /// Notes have separate room from records that calls wait for: without room only the kind is
    /// counted.
    pub fn note(&self, event: AuditEvent) {
        self.queue.note(event, stamp(self.started));
    }

    /// Records the end of a call or stream whose start is on record, without waiting until it is
    /// written. An end always has room: there are at most as many ends as calls and streams.
    pub fn end(&self, event: AuditEvent) {
        self.queue.end(event, stamp(self.started));
    }

    /// Adds the arguments of a call to an event: their names, sizes in bytes and keyed digests; the
    /// values only if `raw`.
    pub fn with_arguments(
        &self,
        event: AuditEvent,
        name: &'static str,
        arguments: &Document,
        raw: bool,
    ) -> AuditEvent {
        digest::add_arguments(event, name, &self.keys, arguments.json(), raw)
    }

    /// Returns the keyed digest of a value, in hexadecimal.
    pub fn digest(&self, value: &str) -> String {
        digest::value_digest(&self.keys, value.as_bytes())
    }

    /// Returns the id of the key of the digests.
    pub fn digest_key(&self) -> &str {
        self.keys.digest_id()
    }

    /// Applies changed settings; folder and key stay the same.
    pub fn reconfigure(&self, config: &config::Audit) {
        self.queue.reconfigure(writer_settings(config));
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.queue.drain();
    }
}

fn stamp(started: Instant) -> Stamp {
    Stamp { wall: wall_clock(), up: started.elapsed() }
}

pub(crate) fn writer_settings(config: &config::Audit) -> WriterSettings {
    WriterSettings {
        limit: config.buffer,
        timeout: config.timeout,
        share: config.share.of(config.buffer),
        degrades: config.on_failure == config::OnAuditFailure::Degrade,
        sync_every: (config.durability == Durability::Interval).then_some(config.sync),
        verify_every: config.verify_every,
        log: LogSettings {
            segment_size: config.segment_size,
            segment_age: config.segment_age,
            keep_size: config.keep_size,
            keep_for: config.keep_for,
            export_reserve: config.export.as_ref().map(|export| export.reserve),
            refuses_when_full: config.on_full == config::OnAuditFull::Refuse,
            checkpoint_records: config.checkpoint_records,
            checkpoint_every: config.checkpoint_every,
        },
    }
}

/// The limit of gateways that share a configuration and write a log each: each one tries the
/// folders of all before it, so their number is bounded.
const MAX_SHARED_LOGS: usize = 64;

fn open_folder(path: &Path, folder_use: FolderUse) -> io::Result<LogFolder> {
    let with_path = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "; set a folder that the gateway can write, or \"\" to disable the audit log"
            }
            _ => "",
        };
        io::Error::new(error.kind(), format!("audit.path {}: {error}{hint}", path.display()))
    };
    let mut opened = LogFolder::open(path);
    for number in 2..=MAX_SHARED_LOGS {
        match &opened {
            Err(error)
                if folder_use == FolderUse::Numbered
                    && error.kind() == io::ErrorKind::WouldBlock =>
            {
                let mut name = path.as_os_str().to_owned();
                name.push(format!("-{number}"));
                opened = LogFolder::open(Path::new(&name));
            }
            _ => break,
        }
    }
    opened.map_err(with_path)
}

#[cfg(test)]
impl Ledger {
    /// Joins the parts of a log that a test has opened.
    pub(super) fn of_parts(path: &Path, queue: Arc<Queue>, writer: Arc<SharedWriter>) -> Self {
        let keys = Arc::new(Keys::new(&super::tests::key()));
        Self { path: path.to_owned(), queue, writer, keys, started: Instant::now() }
    }
}
