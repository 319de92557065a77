//! Tests of a log whose callers write it themselves.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::failpoints::{EIO, holder, ids, shared, submit, wait_until, writer_settings};
use super::{at, check, key, settings};
use crate::keys::Keys;
use crate::ledger::{Ledger, Unrecorded};
use crate::log::Log;
use crate::queue::{PendingRecord, Queue, RecordRefused, WriteOutcome};
use crate::record::AuditEvent;
use crate::segments::folder::{FailPoint, FaultInjector, LogFolder};
use crate::segments::recover::recover;
use crate::shared_writer::SharedWriter;

/// The disk under the log: its behaviour towards callers, and the threads that have written.
#[derive(Default)]
struct Disk {
    state: Mutex<DiskState>,
    changed: Condvar,
}

#[derive(Default)]
struct DiskState {
    writers: Vec<String>,
    /// Whether the next write of a caller breaks off.
    fails: bool,
    /// Whether writes of callers hang.
    hangs: bool,
    hanging: usize,
}

struct Injector(Arc<Disk>);

fn thread_name() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

impl FaultInjector for Injector {
    fn at(&mut self, point: FailPoint) -> io::Result<()> {
        let is_caller = thread_name().starts_with("caller");
        let mut state = self.0.state.lock().unwrap();
        match point {
            FailPoint::BeforeWrite => state.writers.push(thread_name()),
            FailPoint::AfterPartialWrite if is_caller && std::mem::take(&mut state.fails) => {
                return Err(io::Error::from_raw_os_error(EIO));
            }
            _ => return Ok(()),
        }
        if is_caller && state.hangs {
            state.hanging += 1;
            drop(self.0.changed.wait_while(state, |state| state.hangs).unwrap());
        }
        Ok(())
    }

    fn allowed_length(&mut self, length: usize) -> usize {
        if self.0.state.lock().unwrap().fails { length / 2 } else { length }
    }
}

/// A log with its thread, whose clock the test sets.
struct OpenLog {
    folder: tempfile::TempDir,
    disk: Arc<Disk>,
    queue: Arc<Queue>,
    writer: Arc<SharedWriter>,
    thread: thread::JoinHandle<()>,
    seconds: Arc<AtomicU64>,
}

impl OpenLog {
    /// Opens a log, and waits until its callers may write.
    fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::<Disk>::default();
        let mut folder = LogFolder::open(directory.path()).unwrap();
        let keys = Keys::new(&key());
        let recovered = recover(&folder, &keys).unwrap();
        folder.inject_faults(Arc::new(Mutex::new(Injector(disk.clone()))));
        let log = Log::new(folder, Arc::new(keys), settings(), &recovered, at(0)).unwrap();
        // Nothing is synced while the test runs, so nothing but the disk stops callers.
        let settings = writer_settings(1 << 20, Duration::from_secs(3600), false);
        let queue = Arc::new(Queue::new(settings.clone()));
        let seconds = Arc::new(AtomicU64::new(5));
        let now = seconds.clone();
        let clock = Box::new(move || at(now.load(Ordering::Relaxed)));
        let writer = Arc::new(shared(&queue, log, clock, settings));
        let own = writer.clone();
        let thread = thread::Builder::new().name("audit".to_owned());
        let thread = thread.spawn(move || own.run()).unwrap();
        let open = Self { folder: directory, disk, queue, writer, thread, seconds };
        wait_until("callers may not write", || {
            let pending = open.submit(0);
            let is_for_callers = pending.unwrap().unwrap().is_for_callers;
            open.queue.wake_for_waiting();
            is_for_callers
        });
        wait_until("the thread keeps its turn", || open.queue.waiting() == (0, None));
        open
    }

    fn submit(&self, id: u64) -> Result<Option<PendingRecord>, RecordRefused> {
        let event = AuditEvent::new("test").number("id", id);
        self.queue.submit(&holder(), None, event, at(self.seconds.load(Ordering::Relaxed)))
    }

    /// Records as a caller does. Returns whether that was successful.
    fn record(&self, id: u64) -> bool {
        let Ok(Some(pending)) = self.submit(id) else { return false };
        if pending.is_for_callers {
            self.writer.write_waiting();
        }
        pending.written.blocking_recv() == Ok(WriteOutcome::Written)
    }

    fn writers(&self) -> Vec<String> {
        self.disk.state.lock().unwrap().writers.clone()
    }

    /// Ends the log, and returns how often it has each id.
    fn close(self) -> BTreeMap<u64, usize> {
        self.queue.drain();
        self.thread.join().unwrap();
        let path: &Path = self.folder.path();
        let report = check(path);
        assert!(report.mistakes.is_empty() && report.missing.is_empty(), "{:?}", report.mistakes);
        let mut ids = ids(path);
        ids.remove(&0);
        ids
    }
}

fn caller<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    body: impl FnOnce() -> bool + Send + 'scope,
) -> thread::ScopedJoinHandle<'scope, bool> {
    thread::Builder::new().name("caller".to_owned()).spawn_scoped(scope, body).unwrap()
}

#[test]
fn each_record_of_many_callers_is_written_once_by_one_of_them_or_by_the_thread() {
    let log = OpenLog::open();
    thread::scope(|scope| {
        for caller_number in 0..4 {
            let log = &log;
            caller(scope, move || {
                let ids = 1 + caller_number * 500..=(caller_number + 1) * 500;
                ids.into_iter().all(|id| log.record(id))
            });
        }
    });
    assert!(log.writers().iter().any(|name| name == "caller"), "no caller has written");
    assert_eq!(log.close(), (1..=2_000).map(|id| (id, 1)).collect());
}

#[test]
fn the_thread_writes_what_a_caller_could_not_write() {
    let log = OpenLog::open();
    log.disk.state.lock().unwrap().fails = true;
    let is_written = thread::scope(|scope| caller(scope, || log.record(1)).join().unwrap());
    assert!(is_written, "the thread writes it to a new segment");
    assert!(!log.disk.state.lock().unwrap().fails, "the write of the caller has failed");
    assert!(log.record(2));
    assert_eq!(log.close(), BTreeMap::from([(1, 1), (2, 1)]));
}

#[test]
fn a_disk_that_hangs_holds_one_caller_until_the_others_are_refused() {
    let log = OpenLog::open();
    log.disk.state.lock().unwrap().hangs = true;
    thread::scope(|scope| {
        let held = caller(scope, || log.record(1));
        wait_until("no caller writes", || log.disk.state.lock().unwrap().hanging == 1);
        let other = log.submit(2).unwrap().unwrap();
        log.writer.write_waiting();
        assert_eq!(log.disk.state.lock().unwrap().hanging, 1, "the other caller is not held");
        log.seconds.store(30, Ordering::Relaxed);
        assert_eq!(log.submit(3).err(), Some(RecordRefused), "the log counts as down");
        let before = log.writers().len();
        log.disk.state.lock().unwrap().hangs = false;
        log.disk.changed.notify_all();
        assert!(held.join().unwrap(), "it is written, late");
        assert_eq!(other.written.blocking_recv(), Ok(WriteOutcome::Written));
        assert_eq!(log.writers()[before..], ["audit"], "no caller follows a slow write");
    });
    wait_until("the log stays down", || !log.queue.is_down_at(at(30).up));
    assert!(thread::scope(|scope| caller(scope, || log.record(4)).join().unwrap()));
    assert_eq!(log.close(), BTreeMap::from([(1, 1), (2, 1), (4, 1)]));
}

#[test]
fn a_record_whose_caller_is_gone_is_written_by_the_thread() {
    let log = OpenLog::open();
    let pending = submit(&log.queue, AuditEvent::new("test").number("id", 1)).unwrap().unwrap();
    assert!(pending.is_for_callers);
    assert_eq!(pending.written.blocking_recv(), Ok(WriteOutcome::Written));
    assert_eq!(log.close(), BTreeMap::from([(1, 1)]));
}

/// Runs a call on a runtime whose threads are callers of the log, and returns its outcome, if it
/// has one, and whether other tasks go on.
fn call(
    runtime: &Runtime,
    ledger: &Arc<Ledger>,
    id: u64,
) -> (Option<Result<(), Unrecorded>>, bool) {
    let ledger = ledger.clone();
    let event = AuditEvent::new("test").number("id", id);
    runtime.block_on(async {
        let call = runtime.spawn(async move { ledger.record(&holder(), event).await });
        let outcome = timeout(Duration::from_secs(10), call).await.ok().map(Result::unwrap);
        let others = (0..8).map(|_| runtime.spawn(async {}));
        let others = timeout(Duration::from_secs(10), async {
            for other in others {
                other.await.unwrap();
            }
        });
        (outcome, others.await.is_ok())
    })
}

fn runtime_of_callers(workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).thread_name("caller").enable_time().build().unwrap()
}

#[test]
fn a_disk_that_hangs_holds_no_call_and_leaves_threads_to_the_others() {
    let log = OpenLog::open();
    let queue = log.queue.clone();
    let writer = log.writer.clone();
    let ledger = Arc::new(Ledger::of_parts(log.folder.path(), queue, writer));
    let runtime = runtime_of_callers(2);
    assert_eq!(call(&runtime, &ledger, 1), (Some(Ok(())), true));
    assert_eq!(log.writers().last().map(String::as_str), Some("caller"));
    log.disk.state.lock().unwrap().hangs = true;
    let held = call(&runtime, &ledger, 2);
    let hanging = log.disk.state.lock().unwrap().hanging;
    log.disk.state.lock().unwrap().hangs = false;
    log.disk.changed.notify_all();
    assert_eq!((held, hanging), ((Some(Err(Unrecorded::Late)), true), 1));
    drop((runtime, ledger));
    assert_eq!(log.close(), BTreeMap::from([(1, 1), (2, 1)]));
}

#[test]
fn the_only_thread_of_a_runtime_does_not_write() {
    let log = OpenLog::open();
    let queue = log.queue.clone();
    let writer = log.writer.clone();
    let ledger = Arc::new(Ledger::of_parts(log.folder.path(), queue, writer));
    assert_eq!(call(&runtime_of_callers(1), &ledger, 1), (Some(Ok(())), true));
    assert_eq!(log.writers().last().map(String::as_str), Some("audit"));
    drop(ledger);
    assert_eq!(log.close(), BTreeMap::from([(1, 1)]));
}
