//! The audit log: who asked for what and what became of it, on the disk before anybody is answered.
//!
//! Many record, one writes. A record is text before it reaches the [`queue`] of a [`ledger`]; the
//! [`writer`] takes all that waits at once and hands it to the [`log`], which numbers, chains and
//! appends it.
//! [`verify`] reads it back and trusts nobody.

pub(crate) mod digest;
mod folder;
mod header;
pub(crate) mod keys;
mod ledger;
mod log;
mod queue;
pub(crate) mod record;
mod recover;
mod sync_thread;
pub(crate) mod verify;
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

use crate::config;
use queue::Queue;
use record::Event;

pub(crate) use ledger::{Ledger, Unrecorded};

/// A handle on whichever log is written by now, cheap to copy. Switched off, it takes everything and
/// keeps nothing.
#[derive(Clone, Default)]
pub struct Audit(Arc<Inner>);

#[derive(Default)]
struct Inner {
    ledger: ArcSwapOption<Ledger>,
    /// Those before it that may not have ended yet, by their folders.
    replaced: Mutex<Vec<(PathBuf, Arc<Queue>)>>,
    /// So that numbers are of one call each, whichever log tells of it.
    calls: AtomicU64,
    /// Whether other gateways run with the same configuration.
    shares: bool,
}

/// What becomes of the log under another configuration.
pub enum Next {
    /// It is written on.
    Same,
    /// Another one takes its place, or none.
    Other(Option<Ledger>),
}

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
        let ledger = config.map(|config| Ledger::open(config, shares)).transpose()?;
        let ledger = ArcSwapOption::from(ledger.map(Arc::new));
        Ok(Self(Arc::new(Inner { ledger, shares, ..Inner::default() })))
    }

    /// Opens what the configuration asks for, if that is another log than `before`; [`Audit::go_on`]
    /// then writes it. Blocks for a moment.
    ///
    /// # Errors
    /// As [`Audit::open`]; when the same folder is to be written with another key; and as long as a
    /// log that was replaced before is still written in that folder.
    pub fn prepare(
        &self,
        config: Option<&config::Audit>,
        before: Option<&config::Audit>,
    ) -> io::Result<Next> {
        let running = self.ledger();
        let Some(config) = config else {
            return Ok(if running.is_some() { Next::Other(None) } else { Next::Same });
        };
        if before.is_some_and(|before| config.is_same_log(before)) {
            return Ok(Next::Same);
        }
        let is_there = |path: &Path| {
            config.path.canonicalize().is_ok_and(|there| Some(there) == path.canonicalize().ok())
        };
        if let Some(running) = running.filter(|running| is_there(running.path())) {
            // The same key may be given in another way.
            let is_same = config.key()?.is_some_and(|key| running.is_of(&key));
            return if is_same { Ok(Next::Same) } else { Err(io::Error::other(OTHER_KEY)) };
        }
        if self.replaced().iter().any(|(path, queue)| !queue.is_closed() && is_there(path)) {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, STILL_WRITTEN));
        }
        Ok(Next::Other(Some(Ledger::open(config, self.0.shares)?)))
    }

    /// From now on records go where `next` says, as configured. A log whose place another one takes
    /// tells of `change`, says so, and gets its end once all calls have ended that are on record in it.
    pub fn go_on(&self, next: Next, config: Option<&config::Audit>, change: &[Event]) {
        let Next::Other(next) = next else {
            if let (Some(ledger), Some(config)) = (self.ledger(), config) {
                ledger.tune(config);
            }
            return;
        };
        let next = next.map(Arc::new);
        let shown = |ledger: &Ledger| ledger.path().display().to_string();
        if let Some(before) = self.ledger() {
            let by = next.as_deref().map(shown).unwrap_or_default();
            change.iter().for_each(|event| before.note(event.clone()));
            before.note(Event::new("log_replaced").text("by", &by));
            if let Some(next) = &next {
                next.note(Event::new("log_replaces").text("path", &shown(&before)));
            }
            let mut replaced = self.replaced();
            replaced.retain(|(_, queue)| !queue.is_closed());
            replaced.push((before.path().to_owned(), before.queue().clone()));
        }
        self.0.ledger.store(next);
    }

    /// The log that is written at present: whoever holds it writes into it to its end.
    pub fn ledger(&self) -> Option<Arc<Ledger>> {
        self.0.ledger.load_full()
    }

    /// Whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.0.ledger.load().is_some()
    }

    /// Whether audited calls are refused at present, since their records cannot be written.
    pub fn refuses(&self) -> bool {
        self.0.ledger.load().as_ref().is_some_and(|ledger| ledger.refuses())
    }

    /// Whether records are written at present.
    pub fn is_written(&self) -> bool {
        self.0.ledger.load().as_ref().is_none_or(|ledger| !ledger.queue().is_down())
    }

    /// Bytes of records that wait to be written.
    pub fn waiting(&self) -> usize {
        self.0.ledger.load().as_ref().map_or(0, |ledger| ledger.queue().waiting().0)
    }

    /// How long the oldest record has waited that is not written.
    pub fn lag(&self) -> Duration {
        self.0.ledger.load().as_ref().and_then(|ledger| ledger.lag()).unwrap_or_default()
    }

    /// Records something that nobody waits for, before whatever is recorded from now on.
    pub fn note(&self, event: Event) {
        if let Some(ledger) = self.0.ledger.load().as_ref() {
            ledger.note(event);
        }
    }

    /// A number for a call, of which several records tell.
    pub fn next_call(&self) -> u64 {
        self.0.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Starts another segment.
    pub fn rotate(&self) {
        if let Some(ledger) = self.0.ledger.load().as_ref() {
            ledger.queue().rotate();
        }
    }

    /// Writes what waits, signs it, and ends; those that were replaced and have not ended, too. Blocks
    /// for a moment.
    pub fn close(&self) {
        let until = Instant::now() + LAST_RECORDS;
        let replaced = std::mem::take(&mut *self.replaced());
        let last = self.ledger().map(|ledger| ledger.queue().clone());
        let queues: Vec<_> =
            last.into_iter().chain(replaced.into_iter().map(|(_, queue)| queue)).collect();
        // None waits for another one before it hears of the end.
        queues.iter().for_each(|queue| queue.close());
        for queue in queues {
            queue.wait_for_end(until.saturating_duration_since(Instant::now()));
        }
    }

    fn replaced(&self) -> MutexGuard<'_, Vec<(PathBuf, Arc<Queue>)>> {
        self.0.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const STILL_WRITTEN: &str =
    "audit.path: calls that began before are still recorded there; it is tried again";

const OTHER_KEY: &str =
    "audit.key: a log keeps its key; set another audit.path together with another key";

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Audit(on)" } else { "Audit(off)" })
    }
}
