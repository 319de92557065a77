//! The audit log: who asked for what and what became of it, on the disk before anybody is answered.
//!
//! Many record, one writes. A record is text before it reaches the [`queue`]; the [`writer`] takes
//! all that waits at once and hands it to the [`log`], which numbers, chains and appends it.
//! [`verify`] reads it back and trusts nobody.

pub mod digest;
mod folder;
mod header;
pub mod keys;
mod log;
mod queue;
pub mod record;
mod recover;
pub mod verify;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout};

use crate::config::{self, Durability};
use crate::domain::document::Document;
use folder::Folder;
use keys::Keys;
use log::{Log, LogSettings};
use queue::{Queue, Tuning};
use record::{Event, Stamp};
use recover::recover;
use writer::Scribe;

/// A handle on the log, cheap to copy. Switched off, it takes everything and keeps nothing.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Open>>);

struct Open {
    queue: Arc<Queue>,
    keys: Arc<Keys>,
    started: Instant,
    calls: AtomicU64,
}

/// The record of it cannot be written, so it must not happen.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the audit log cannot be written")]
pub struct Unrecorded;

/// How long a record may take to be written before whoever waits is refused: a disk that hangs must
/// not make calls hang.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the end waits for the last records.
const LAST_RECORDS: Duration = Duration::from_secs(8);

impl Audit {
    /// Opens the log of the configuration and starts writing. Where several gateways share a file,
    /// as those that clients start themselves do (`shares`), each writes into a folder of its own
    /// beside the first.
    ///
    /// # Errors
    /// When the folder cannot be used, or was written with another key.
    pub fn open(config: Option<&config::Audit>, shares: bool) -> io::Result<Self> {
        let Some(config) = config else {
            return Ok(Self(None));
        };
        let folder = open_folder(&config.path, shares)?;
        let (key, made) = match config.key()? {
            Some(key) => (key, None),
            None => config.make_key().map(|(key, file)| (key, Some(file)))?,
        };
        let keys = Arc::new(Keys::new(&key));
        let path = folder.path().display().to_string();
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
        tracing::info!(path, last = recovered.head.seq, public_key = %keys.public(), "audit log");
        let queue = Arc::new(Queue::new(tuning.clone()));
        let clock = Box::new(move || stamp(started));
        let scribe = Scribe::new(queue.clone(), log, clock, tuning);
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || scribe.run())?;
        let audit = Self(Some(Arc::new(Open { queue, keys, started, calls: AtomicU64::new(0) })));
        let event = Event::new("started").text("version", env!("CARGO_PKG_VERSION"));
        audit.note(event.number("after", recovered.head.seq));
        if recovered.torn > 0 {
            let event = Event::new("recovered").number("last_seq", recovered.head.seq);
            audit.note(event.number("torn_bytes", recovered.torn));
        }
        Ok(audit)
    }

    /// Whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether audited calls are refused at present, since their records cannot be written.
    pub fn refuses(&self) -> bool {
        self.0.as_ref().is_some_and(|open| open.queue.is_down() && !open.queue.degrades())
    }

    /// Whether records are written at present.
    pub fn is_written(&self) -> bool {
        self.0.as_ref().is_none_or(|open| !open.queue.is_down())
    }

    /// Bytes of records that wait to be written.
    pub fn waiting(&self) -> usize {
        self.0.as_ref().map_or(0, |open| open.queue.waiting().0)
    }

    /// How long the oldest record has waited that is not written.
    pub fn lag(&self) -> Duration {
        let lag = |open: &Open| {
            let since = open.queue.waiting().1?;
            Some(open.started.elapsed().saturating_sub(since))
        };
        self.0.as_deref().and_then(lag).unwrap_or_default()
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
    /// As [`Audit::record`].
    pub async fn record_both(&self, before: Option<Event>, event: Event) -> Result<(), Unrecorded> {
        let Some(open) = &self.0 else {
            return Ok(());
        };
        let waits = open.queue.submit(before, event, stamp(open.started));
        let waits = waits.map_err(|_| Unrecorded)?;
        let Some(waits) = waits else {
            return Ok(());
        };
        match timeout(PATIENCE, waits).await {
            Ok(Ok(())) => Ok(()),
            _ if open.queue.degrades() => Ok(()),
            _ => Err(Unrecorded),
        }
    }

    /// Records something that nobody waits for, before whatever is recorded from now on.
    pub fn note(&self, event: Event) {
        if let Some(open) = &self.0 {
            open.queue.note(event, stamp(open.started));
        }
    }

    /// A number for a call, of which several records tell.
    pub fn next_call(&self) -> u64 {
        self.0.as_ref().map_or(0, |open| open.calls.fetch_add(1, Ordering::Relaxed) + 1)
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
        match &self.0 {
            Some(open) => digest::add(event, name, &open.keys, arguments.json(), raw),
            None => event,
        }
    }

    /// The keyed digest of a value, if there is a key.
    pub fn digest(&self, value: &str) -> Option<String> {
        self.0.as_ref().map(|open| digest::value_digest(&open.keys, value.as_bytes()))
    }

    /// Which key digests are made with.
    pub fn digest_key(&self) -> Option<&str> {
        self.0.as_ref().map(|open| open.keys.digest_id())
    }

    /// Goes on as this configuration says, in the same folder and with the same key.
    pub fn tune(&self, config: &config::Audit) {
        if let Some(open) = &self.0 {
            open.queue.tune(tuning(config));
        }
    }

    /// Starts another segment.
    pub fn rotate(&self) {
        if let Some(open) = &self.0 {
            open.queue.rotate();
        }
    }

    /// Writes what waits, signs it, and ends. Blocks for a moment.
    pub fn close(&self) {
        if let Some(open) = &self.0 {
            open.queue.close(LAST_RECORDS);
        }
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Audit(on)" } else { "Audit(off)" })
    }
}

impl Drop for Open {
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
