//! The audit log: every call with its caller and outcome, on the disk before the caller gets a
//! response (docs/audit.md).
//!
//! Many threads record; one thread at a time writes. A record is text before it enters the
//! [`queue`] of a [`ledger`]. The [`writer`] takes all waiting records at once and hands them to
//! the [`log`], which numbers, chains and appends them. While writes are quick, a task of a caller
//! writes ([`shared_writer`]); else the thread of the log does. The [`sync_thread`] syncs
//! meanwhile. [`verify`] checks a log that it does not trust.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod segments;
mod checkpoint;
pub mod digest;
pub mod export;
pub mod keys;
mod ledger;
mod log;
pub mod proof;
pub mod question;
mod queue;
pub mod record;
mod retention;
pub mod search;
mod shared_writer;
mod sync_thread;
pub mod tail;
pub mod usage;
pub mod verify;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use base::platform::{disk, wall_clock};
use export::{AuditExport, ExportStatus};
use queue::Queue;
use record::AuditEvent;

pub use ledger::{Ledger, Unrecorded};

/// A handle on the current audit log, cheap to clone. While the log is disabled, it discards every
/// record.
#[derive(Clone, Default)]
pub struct Audit(Arc<AuditState>);

#[derive(Default)]
struct AuditState {
    ledger: ArcSwapOption<Ledger>,
    /// The folders and queues of earlier logs that may not have ended yet.
    replaced: Mutex<Vec<(PathBuf, Arc<Queue>)>>,
    /// The number of the last call. One counter for all logs, so that a call keeps its number when
    /// the log is replaced.
    calls: AtomicU64,
    folder_use: FolderUse,
    export: Arc<AuditExport>,
}

/// Whether the folder of the log is for one gateway.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum FolderUse {
    /// A folder that another gateway writes into is an error.
    #[default]
    Exclusive,
    /// A folder that another gateway writes into is replaced by a numbered sibling folder.
    Numbered,
}

/// The effect of a changed configuration on the log.
pub enum LogChange {
    /// The log continues.
    Unchanged,
    /// A different log replaces the log; `None` disables the audit log.
    Replaced(Option<Ledger>),
}

/// The timeout for the last records at a shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(8);

impl Audit {
    /// Opens the log of the configuration and starts its writer. `None` disables the audit log.
    ///
    /// # Errors
    /// When the folder cannot be used, is used by another gateway, or was written with another key.
    pub fn open(config: Option<&config::Audit>) -> io::Result<Self> {
        Self::open_in(config, FolderUse::Exclusive)
    }

    /// Like [`Audit::open`], for gateways that share a configuration, such as those started by
    /// clients (`serve --stdio`): each one after the first writes into a separate, numbered folder.
    ///
    /// # Errors
    /// When no folder can be used, or the folder was written with another key.
    pub fn open_shared(config: Option<&config::Audit>) -> io::Result<Self> {
        Self::open_in(config, FolderUse::Numbered)
    }

    pub fn open_in(config: Option<&config::Audit>, folder_use: FolderUse) -> io::Result<Self> {
        let ledger = config.map(|config| Ledger::open(config, folder_use)).transpose()?;
        let ledger = ArcSwapOption::from(ledger.map(Arc::new));
        Ok(Self(Arc::new(AuditState { ledger, folder_use, ..AuditState::default() })))
    }

    /// Opens the log of a changed configuration, if it is not the log of `before`;
    /// [`Audit::apply`] then switches to it. Blocks on the file system.
    ///
    /// # Errors
    /// As [`Audit::open`]; when the key of the current log would change; and while an earlier log
    /// is still written in the new folder (`WouldBlock`).
    pub fn prepare(
        &self,
        config: Option<&config::Audit>,
        before: Option<&config::Audit>,
    ) -> io::Result<LogChange> {
        let running = self.ledger();
        let Some(config) = config else {
            return Ok(if running.is_some() {
                LogChange::Replaced(None)
            } else {
                LogChange::Unchanged
            });
        };
        if before.is_some_and(|before| config.is_same_log(before)) {
            return Ok(LogChange::Unchanged);
        }
        let is_same_directory = |path: &Path| {
            disk::canonicalize(&config.path)
                .is_ok_and(|there| Some(there) == disk::canonicalize(path).ok())
        };
        if let Some(running) = running.as_ref().filter(|log| is_same_directory(log.path())) {
            // The same key may be configured in a different way.
            let is_same = config.key()?.is_some_and(|key| running.uses_key(&key));
            return if is_same {
                Ok(LogChange::Unchanged)
            } else {
                Err(io::Error::other(KEY_CHANGED))
            };
        }
        if self.replaced().iter().any(|(path, queue)| !queue.is_closed() && is_same_directory(path))
        {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, STILL_IN_USE));
        }
        let next = Ledger::open(config, self.0.folder_use)?;
        if let Some(running) = &running {
            export::keep_replaced(next.path(), running.path())?;
        }
        Ok(LogChange::Replaced(Some(next)))
    }

    /// Switches to the log of `next`, with the settings of `config`. The replaced log records the
    /// events of `change` and `log_replaced`; it ends once all calls of which it has records have
    /// ended.
    pub fn apply(&self, next: LogChange, config: Option<&config::Audit>, change: &[AuditEvent]) {
        let LogChange::Replaced(next) = next else {
            if let (Some(ledger), Some(config)) = (self.ledger(), config) {
                ledger.reconfigure(config);
            }
            return;
        };
        let next = next.map(Arc::new);
        let shown = |ledger: &Ledger| ledger.path().display().to_string();
        if let Some(before) = self.ledger() {
            let by = next.as_deref().map(shown).unwrap_or_default();
            change.iter().for_each(|event| before.note(event.clone()));
            before.note(AuditEvent::new("log_replaced").text("by", &by));
            if let Some(next) = &next {
                next.note(AuditEvent::new("log_replaces").text("path", &shown(&before)));
            }
            let mut replaced = self.replaced();
            replaced.retain(|(_, queue)| !queue.is_closed());
            replaced.push((before.path().to_owned(), before.queue().clone()));
        }
        self.0.ledger.store(next);
    }

    /// Returns the folder of the current log.
    pub fn path(&self) -> Option<PathBuf> {
        self.0.ledger.load().as_ref().map(|ledger| ledger.path().to_owned())
    }

    /// Returns the current log. A call holds the log until its last record, even if the log is
    /// replaced meanwhile.
    pub fn ledger(&self) -> Option<Arc<Ledger>> {
        self.0.ledger.load_full()
    }

    /// Whether the audit log is enabled.
    pub fn is_on(&self) -> bool {
        self.0.ledger.load().is_some()
    }

    /// Whether calls that must be recorded are refused at present, because the log is down.
    pub fn refuses(&self) -> bool {
        self.0.ledger.load().as_ref().is_some_and(|ledger| ledger.refuses())
    }

    /// Whether records can be written at present; also true if the log is disabled.
    pub fn is_up(&self) -> bool {
        self.0.ledger.load().as_ref().is_none_or(|ledger| !ledger.is_down())
    }

    /// Returns the stored size of all segments, in bytes; counted once a second.
    pub fn size(&self) -> u64 {
        self.0.ledger.load().as_ref().map_or(0, |ledger| ledger.queue().size().0)
    }

    /// Returns the size at which records are refused, in bytes; `None` if the oldest segments leave
    /// instead.
    pub fn size_limit(&self) -> Option<u64> {
        self.0.ledger.load().as_ref().and_then(|ledger| ledger.queue().size().1)
    }

    /// Returns the size of the records that wait to be written, in bytes.
    pub fn waiting_bytes(&self) -> usize {
        self.0.ledger.load().as_ref().map_or(0, |ledger| ledger.queue().waiting().0)
    }

    /// Returns how long the oldest waiting record has waited; zero without waiting records.
    pub fn lag(&self) -> Duration {
        self.0.ledger.load().as_ref().and_then(|ledger| ledger.lag()).unwrap_or_default()
    }

    /// Returns the export of the log.
    pub fn export(&self) -> &Arc<AuditExport> {
        &self.0.export
    }

    /// Returns the state of the export; `None` without an export.
    pub fn export_status(&self) -> Option<ExportStatus> {
        let ledger = self.ledger()?;
        let synced = ledger.queue().synced.load(Ordering::Acquire);
        self.0.export.status(synced, wall_clock())
    }

    /// Records an event without waiting until it is written. The record precedes all later records.
    pub fn note(&self, event: AuditEvent) {
        if let Some(ledger) = self.0.ledger.load().as_ref() {
            ledger.note(event);
        }
    }

    /// Records the end of a call or stream whose start is on record ([`Ledger::end`]).
    pub fn end(&self, event: AuditEvent) {
        if let Some(ledger) = self.0.ledger.load().as_ref() {
            ledger.end(event);
        }
    }

    /// Returns a new number for a call, which all its records share.
    pub fn next_call(&self) -> u64 {
        self.0.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Ends the current log and all replaced logs: writes the waiting records and a checkpoint.
    /// Blocks for at most [`CLOSE_TIMEOUT`].
    pub fn close(&self) {
        let until = Instant::now() + CLOSE_TIMEOUT;
        let replaced = std::mem::take(&mut *self.replaced());
        let last = self.ledger().map(|ledger| ledger.queue().clone());
        let queues: Vec<_> =
            last.into_iter().chain(replaced.into_iter().map(|(_, queue)| queue)).collect();
        // All logs end at the same time.
        queues.iter().for_each(|queue| queue.close());
        for queue in queues {
            queue.wait_for_end(until.saturating_duration_since(Instant::now()));
        }
    }

    fn replaced(&self) -> MutexGuard<'_, Vec<(PathBuf, Arc<Queue>)>> {
        self.0.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const STILL_IN_USE: &str = "audit.path: earlier calls are still recorded in this folder; retrying";

const KEY_CHANGED: &str =
    "audit.key: the key of a log cannot change; set another audit.path together with another key";

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Audit(on)" } else { "Audit(off)" })
    }
}
