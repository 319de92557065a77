//! One log that is written: what is recorded goes to its writer, and is waited for.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout};

use super::digest;
use super::folder::Folder;
use super::keys::Keys;
use super::log::{Log, LogSettings};
use super::queue::{Queue, Tuning};
use super::record::{Event, Stamp};
use super::recover::recover;
use super::writer::Scribe;
use crate::config::{self, Durability};
use crate::domain::document::Document;
use crate::seal::AuditKey;

/// A log that is written. Once nobody holds it any more it gets its proper end.
pub struct Ledger {
    /// Its folder.
    path: PathBuf,
    queue: Arc<Queue>,
    keys: Arc<Keys>,
    started: Instant,
}

/// The record of it cannot be written, so it must not happen.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the audit log cannot be written")]
pub struct Unrecorded;

/// How long a record may take to be written before whoever waits is refused: a disk that hangs must
/// not make calls hang.
const PATIENCE: Duration = Duration::from_secs(5);

impl Ledger {
    /// Opens the log of the configuration and starts writing. Where several gateways share a file,
    /// as those that clients start themselves do (`shares`), each writes into a folder of its own
    /// beside the first.
    ///
    /// # Errors
    /// When the folder cannot be used, or was written with another key.
    pub(super) fn open(config: &config::Audit, shares: bool) -> io::Result<Self> {
        let folder = open_folder(&config.path, shares)?;
        let (key, made) = match config.key()? {
            Some(key) => (key, None),
            None => config.make_key().map(|(key, file)| (key, Some(file)))?,
        };
        let keys = Arc::new(Keys::new(&key));
        let path = folder.path().to_owned();
        let recovered = recover(&folder, &keys)?;
        let started = Instant::now();
        let now = Stamp { wall: SystemTime::now(), up: Duration::ZERO };
        let tuning = tuning(config);
        let log = Log::new(folder, keys.clone(), tuning.log.clone(), &recovered, now)?;
        if let Some(file) = made {
            tracing::warn!(
                file = %file.display(),
                "no audit key is set, so one was made; whoever has it can forge the log: keep it elsewhere and set \
                 PROMPTGATE_AUDIT_KEY"
            );
        }
        tracing::info!(path = %path.display(), last = recovered.head.seq, public_key = %keys.public(), "audit log");
        let queue = Arc::new(Queue::new(tuning.clone()));
        let clock = Box::new(move || stamp(started));
        let scribe = Scribe::new(queue.clone(), log, clock, tuning);
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || scribe.run())?;
        let ledger = Self { path, queue, keys, started };
        let event = Event::new("started").text("version", env!("CARGO_PKG_VERSION"));
        ledger.note(event.number("after", recovered.head.seq));
        if recovered.torn > 0 {
            let event = Event::new("recovered").number("last_seq", recovered.head.seq);
            ledger.note(event.number("torn_bytes", recovered.torn));
        }
        Ok(ledger)
    }

    /// Its folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is written with this key.
    pub(super) fn is_of(&self, key: &AuditKey) -> bool {
        Keys::new(key).public() == self.keys.public()
    }

    /// What waits to be written.
    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Whether audited calls are refused at present, since their records cannot be written.
    pub fn refuses(&self) -> bool {
        self.queue.is_down() && !self.queue.degrades()
    }

    /// How long the oldest record has waited that is not written.
    pub(super) fn lag(&self) -> Option<Duration> {
        let since = self.queue.waiting().1?;
        Some(self.started.elapsed().saturating_sub(since))
    }

    /// Records something, and waits until it is written.
    ///
    /// # Errors
    /// When it cannot be written and calls do not go on without.
    pub async fn record(&self, event: Event) -> Result<(), Unrecorded> {
        self.record_both(None, event).await
    }

    /// The same, with a record that belongs right before it: both are written, or none.
    ///
    /// # Errors
    /// As [`Ledger::record`].
    pub async fn record_both(&self, before: Option<Event>, event: Event) -> Result<(), Unrecorded> {
        let waits = self.queue.submit(before, event, stamp(self.started));
        let waits = waits.map_err(|_| Unrecorded)?;
        let Some(waits) = waits else {
            return Ok(());
        };
        match timeout(PATIENCE, waits).await {
            Ok(Ok(())) => Ok(()),
            _ if self.queue.degrades() => Ok(()),
            _ => Err(Unrecorded),
        }
    }

    /// Records something that nobody waits for, before whatever is recorded from now on.
    pub fn note(&self, event: Event) {
        self.queue.note(event, stamp(self.started));
    }

    /// Adds what was said in the arguments of a call: their names, sizes and keyed digests, and the
    /// values only if `raw`.
    pub fn with_arguments(
        &self,
        event: Event,
        name: &'static str,
        arguments: &Document,
        raw: bool,
    ) -> Event {
        digest::add(event, name, &self.keys, arguments.json(), raw)
    }

    /// The keyed digest of a value.
    pub fn digest(&self, value: &str) -> String {
        digest::value_digest(&self.keys, value.as_bytes())
    }

    /// Which key digests are made with.
    pub fn digest_key(&self) -> &str {
        self.keys.digest_id()
    }

    /// Goes on as this configuration says, in the same folder and with the same key.
    pub(super) fn tune(&self, config: &config::Audit) {
        self.queue.tune(tuning(config));
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.queue.end();
    }
}

fn stamp(started: Instant) -> Stamp {
    Stamp { wall: SystemTime::now(), up: started.elapsed() }
}

fn tuning(config: &config::Audit) -> Tuning {
    Tuning {
        limit: config.buffer,
        degrades: config.on_failure == config::OnAuditFailure::Degrade,
        sync_every: (config.durability == Durability::Interval).then_some(config.sync),
        log: LogSettings {
            segment_size: config.segment_size,
            segment_age: config.segment_age,
            max_size: config.max_size,
            keep: config.keep,
            checkpoint_records: config.checkpoint_records,
            checkpoint_every: config.checkpoint_every,
        },
    }
}

/// How many gateways may share a configuration file and still keep a log each.
const SHARING: usize = 64;

fn open_folder(path: &Path, shares: bool) -> io::Result<Folder> {
    let names_file = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "; name a folder of the gateway's own, or \"\" to keep no log"
            }
            _ => "",
        };
        io::Error::new(error.kind(), format!("audit.path {}: {error}{hint}", path.display()))
    };
    let mut opened = Folder::open(path);
    for number in 2..=SHARING {
        match &opened {
            Err(error) if shares && error.kind() == io::ErrorKind::WouldBlock => {
                let mut name = path.as_os_str().to_owned();
                name.push(format!("-{number}"));
                opened = Folder::open(Path::new(&name));
            }
            _ => break,
        }
    }
    opened.map_err(names_file)
}
