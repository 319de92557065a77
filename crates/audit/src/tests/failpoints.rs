//! Tests of the log under failing disks and crashes: each kind of fault at each fail point.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{append, at, check, key, open, settings};
use crate::keys::Keys;
use crate::log::Log;
use crate::queue::{PendingRecord, Queue, RecordRefused, WriteOutcome, WriterSettings};
use crate::record::{AuditEvent, RecordLine, Stamp};
use crate::segments::folder::{FailPoint, FaultInjector, LogFolder, segments};
use crate::segments::recover::{Recovered, recover};
use crate::shared_writer::SharedWriter;
use crate::writer::LogWriter;
use domain::calls::caller::Caller;
use domain::calls::fair_share::Holder;

pub(super) fn holder() -> Holder {
    Holder::Caller(Caller::new("ci"))
}

const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    /// The process ends at that point.
    Abort,
    Once(i32),
    /// Nothing succeeds from then on, until `well` is set.
    Forever(i32),
}

/// Injects a fault at the n-th fail point.
pub(super) struct FailAt {
    left: usize,
    action: Action,
    passed: Vec<FailPoint>,
    has_failed: bool,
    well: bool,
}

impl FailAt {
    /// Passes `left` points before the first fault.
    fn new(left: usize, action: Action) -> Arc<Mutex<Self>> {
        let passed = Vec::new();
        Arc::new(Mutex::new(Self { left, action, passed, has_failed: false, well: false }))
    }
}

impl FaultInjector for FailAt {
    fn at(&mut self, point: FailPoint) -> io::Result<()> {
        self.passed.push(point);
        if self.well {
            return Ok(());
        }
        if self.left > 0 {
            self.left -= 1;
            return Ok(());
        }
        self.has_failed = true;
        match self.action {
            // A panic without the message of the panic hook.
            Action::Abort => std::panic::resume_unwind(Box::new("the process ends")),
            Action::Once(code) => {
                self.well = true;
                Err(io::Error::from_raw_os_error(code))
            }
            Action::Forever(code) => Err(io::Error::from_raw_os_error(code)),
        }
    }

    fn allowed_length(&mut self, length: usize) -> usize {
        // The write breaks off within a line.
        if self.well { length } else { length / 2 }
    }
}

pub(super) fn try_open(
    path: &Path,
    failing: Option<Arc<Mutex<FailAt>>>,
) -> io::Result<(Log, Recovered)> {
    let mut folder = LogFolder::open(path).unwrap();
    let keys = Keys::new(&key());
    let recovered = recover(&folder, &keys).unwrap();
    if let Some(failing) = failing {
        folder.inject_faults(failing);
    }
    Ok((Log::new(folder, Arc::new(keys), settings(), &recovered, at(0))?, recovered))
}

/// Counts how often each id occurs in the log.
pub(super) fn ids(path: &Path) -> BTreeMap<u64, usize> {
    let mut ids = BTreeMap::new();
    for name in segments(path).unwrap() {
        let text = fs::read(path.join(name)).unwrap();
        let lines = text.split(|&b| b == b'\n').filter_map(RecordLine::read);
        for id in lines.filter_map(|line| line.number("id")) {
            *ids.entry(id).or_default() += 1;
        }
    }
    ids
}

/// Locks the injector, which a panic leaves poisoned.
fn lock(failing: &Mutex<FailAt>) -> MutexGuard<'_, FailAt> {
    failing.lock().unwrap_or_else(PoisonError::into_inner)
}

const RECORDS: u64 = 12;

/// Writes, syncs and rotates, and ignores failures. Adds the ids that count as written to
/// `written`.
fn script(log: &mut Log, written: &Mutex<Vec<u64>>) {
    for id in 0..RECORDS {
        if append(log, id).is_ok() {
            written.lock().unwrap().push(id);
        }
        if id % 4 == 3 {
            let _ = log.sync(at(id));
        }
        if id == 5 || id == 9 {
            let _ = log.rotate(at(id));
        }
    }
}

#[test]
fn d1_d3_d5_written_records_occur_exactly_once_after_every_fault_at_every_point() {
    let actions = [
        Action::Abort,
        Action::Once(EIO),
        Action::Once(ENOSPC),
        Action::Forever(EIO),
        Action::Forever(ENOSPC),
    ];
    let mut tried = 0;
    for action in actions {
        for left in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("audit");
            let (first, _) = open(&path);
            drop(first);
            let failing = FailAt::new(left, action);
            let written = Mutex::new(Vec::new());
            let failed = catch_unwind(AssertUnwindSafe(|| {
                // A disk that fails at the start is reported by `Log::new`.
                if let Ok((mut log, _)) = try_open(&path, Some(failing.clone())) {
                    script(&mut log, &written);
                    lock(&failing).well = true;
                    log.sync(at(99)).unwrap();
                    append(&mut log, 99).unwrap();
                    log.sync(at(99)).unwrap();
                }
            }));
            let (has_failed, last) = {
                let failing = lock(&failing);
                (failing.has_failed, failing.passed.last().copied())
            };
            let what = format!("{action:?} at point {left}, after {last:?}");
            assert_eq!(failed.is_err(), action == Action::Abort && has_failed, "{what}");
            // The next start of the gateway.
            let (mut log, _) = open(&path);
            append(&mut log, 100).unwrap();
            log.sync(at(100)).unwrap();
            drop(log);
            let report = check(&path);
            assert!(report.mistakes.is_empty(), "{what}: {:?}", report.mistakes);
            let ids = ids(&path);
            for id in written.lock().unwrap().iter().chain(&[100]) {
                assert_eq!(ids.get(id), Some(&1), "{what}: record {id}, {ids:?}");
            }
            assert!(ids.values().all(|times| *times == 1), "{what}: {ids:?}");
            tried += 1;
            if !has_failed {
                break;
            }
        }
    }
    assert!(tried > 150, "{tried}");
}

#[test]
fn d1_an_incomplete_line_of_a_crash_is_moved_to_a_torn_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let (mut log, _) = open(&path);
    append(&mut log, 1).unwrap();
    drop(log);
    let name = segments(&path).unwrap().remove(0);
    let mut text = fs::read(path.join(&name)).unwrap();
    let whole = text.len();
    // An incomplete line; and, after a power failure, zeros in place of what was never written.
    for torn in [&b"{\"seq\":2,\"ti"[..], b"\0\0\0\0\n\0\0"] {
        text.truncate(whole);
        text.extend_from_slice(torn);
        fs::write(path.join(&name), &text).unwrap();
        let (log, recovered) = open(&path);
        assert_eq!((recovered.head.seq, recovered.torn), (1, torn.len() as u64));
        drop(log);
        assert!(check(&path).mistakes.is_empty());
    }
    let kept = fs::read(path.join(format!("audit-00000001-{whole}.torn"))).unwrap();
    assert_eq!(kept, b"{\"seq\":2,\"ti\0\0\0\0\n\0\0");
}

#[test]
fn d2_the_first_failure_is_reported_while_the_last_sync_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let action = Action::Forever(ENOSPC);
    let failing = FailAt::new(usize::MAX, action);
    let (mut log, _) = try_open(folder.path(), Some(failing.clone())).unwrap();
    append(&mut log, 1).unwrap();
    let syncing = log.begin_sync().unwrap().unwrap();
    lock(&failing).left = 0;
    let reported = append(&mut log, 2).unwrap_err().to_string();
    assert!(reported.contains(&io::Error::from_raw_os_error(ENOSPC).to_string()), "{reported}");
    assert!(log.end_sync(syncing.run(), at(3)).is_err());
}

pub(super) type Clock = Box<dyn Fn() -> Stamp + Send>;

pub(super) fn shared(
    queue: &Arc<Queue>,
    log: Log,
    clock: Clock,
    settings: WriterSettings,
) -> SharedWriter {
    SharedWriter::new(queue.clone(), LogWriter::new(queue.clone(), log, clock, settings))
}

/// Submits a record whose caller does not write itself.
pub(super) fn submit(
    queue: &Queue,
    event: AuditEvent,
) -> Result<Option<PendingRecord>, RecordRefused> {
    let pending = queue.submit(&holder(), None, event, at(5));
    queue.wake_for_waiting();
    pending
}

#[test]
fn d2_a_log_that_drains_ends_once_it_can_be_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let action = Action::Forever(ENOSPC);
    let failing = FailAt::new(usize::MAX, action);
    let (log, _) = try_open(folder.path(), Some(failing.clone())).unwrap();
    let tuning = writer_settings(1000, Duration::from_millis(10), true);
    let queue = Arc::new(Queue::new(tuning.clone()));
    let looks = AtomicU64::new(0);
    let clock = Box::new(move || at(looks.fetch_add(1, Ordering::Relaxed)));
    let log_writer = shared(&queue, log, clock, tuning);
    lock(&failing).left = 0;
    // One that fits in the queue, and one that does not.
    submit(&queue, AuditEvent::new("test").number("id", 1)).unwrap();
    submit(&queue, AuditEvent::new("test").text("x", &"x".repeat(900))).unwrap();
    queue.drain();
    let writing = std::thread::spawn(move || log_writer.run());
    while !lock(&failing).has_failed || !queue.is_down_at(Duration::ZERO) {
        std::thread::yield_now();
    }
    assert!(!queue.is_closed(), "it is retried");
    lock(&failing).well = true;
    writing.join().unwrap();
    assert!(queue.is_closed());
    let report = check(folder.path());
    assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
    assert_eq!((ids(folder.path()).get(&1), report.missing.len()), (Some(&1), 1));
}

/// Panics once where a segment is synced by a thread other than the writer.
struct PanicInSyncThread(Arc<AtomicBool>);

impl FaultInjector for PanicInSyncThread {
    fn at(&mut self, point: FailPoint) -> io::Result<()> {
        let is_writer = std::thread::current().name() == Some("writer");
        if point == FailPoint::BeforeSync && !is_writer && self.0.swap(false, Ordering::Relaxed) {
            // A panic without the message of the panic hook.
            std::panic::resume_unwind(Box::new("the sync thread panics"));
        }
        Ok(())
    }
}

/// Yields until `is_true`. The deadline is there only so that a failure ends the test.
pub(super) fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_sync_thread_that_panics_takes_the_log_down_until_it_is_restarted() {
    let directory = tempfile::tempdir().unwrap();
    let mut folder = LogFolder::open(directory.path()).unwrap();
    let keys = Keys::new(&key());
    let recovered = recover(&folder, &keys).unwrap();
    let panics = Arc::new(AtomicBool::new(false));
    folder.inject_faults(Arc::new(Mutex::new(PanicInSyncThread(panics.clone()))));
    let log = Log::new(folder, Arc::new(keys), settings(), &recovered, at(0)).unwrap();
    panics.store(true, Ordering::Relaxed);
    let tuning = writer_settings(10_000, Duration::from_millis(1), false);
    let queue = Arc::new(Queue::new(tuning.clone()));
    let seconds = Arc::new(AtomicU64::new(5));
    let now = seconds.clone();
    let clock = Box::new(move || at(now.load(Ordering::Relaxed)));
    let log_writer = shared(&queue, log, clock, tuning);
    let writer = std::thread::Builder::new().name("writer".to_owned());
    let writer = writer.spawn(move || log_writer.run()).unwrap();
    let submit = |id| submit(&queue, AuditEvent::new("test").number("id", id));
    let written = submit(1).unwrap().unwrap();
    wait_until("the death of the sync thread goes unnoticed", || queue.is_down_at(Duration::ZERO));
    assert_eq!(written.written.blocking_recv(), Ok(WriteOutcome::Written));
    assert!(submit(2).is_err(), "a log that is down refuses");
    seconds.store(7, Ordering::Relaxed);
    wait_until("the sync thread is not restarted", || !queue.is_down_at(Duration::ZERO));
    assert_eq!(submit(3).unwrap().unwrap().written.blocking_recv(), Ok(WriteOutcome::Written));
    queue.drain();
    writer.join().unwrap();
    assert!(check(directory.path()).mistakes.is_empty());
    assert_eq!(ids(directory.path()), BTreeMap::from([(1, 1), (3, 1)]));
    let text = fs::read_to_string(
        directory.path().join(segments(directory.path()).unwrap().pop().unwrap()),
    );
    assert!(text.unwrap().contains("\"event\":\"resumed\",\"after\":\"the sync thread"));
}

#[test]
fn a_writer_that_panics_closes_the_log_and_refuses_records() {
    let directory = tempfile::tempdir().unwrap();
    let failing = FailAt::new(usize::MAX, Action::Abort);
    let (log, _) = try_open(directory.path(), Some(failing.clone())).unwrap();
    let settings = writer_settings(10_000, Duration::from_millis(10), true);
    let queue = Arc::new(Queue::new(settings.clone()));
    let log_writer = shared(&queue, log, Box::new(|| at(5)), settings);
    lock(&failing).left = 0;
    let submit = |id| submit(&queue, AuditEvent::new("test").number("id", id));
    let written = submit(1).unwrap().unwrap();
    let writer = std::thread::spawn(move || log_writer.run());
    assert!(writer.join().is_err());
    assert!(written.written.blocking_recv().is_err());
    assert!(
        queue.is_closed() && queue.is_down_at(Duration::ZERO),
        "the death of the writer goes unnoticed"
    );
    assert!(submit(2).is_err(), "the log cannot state what is missing, so nothing is accepted");
}

#[test]
fn d6_a_line_added_after_the_end_of_an_abandoned_segment_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    drop(open(&path));
    let action = Action::Once(ENOSPC);
    let failing = FailAt::new(4, action);
    let (mut log, _) = try_open(&path, Some(failing.clone())).unwrap();
    for id in 0..6 {
        let _ = append(&mut log, id);
    }
    log.sync(at(9)).unwrap();
    drop(log);
    assert!(lock(&failing).has_failed && check(&path).mistakes.is_empty());
    let names = segments(&path).unwrap();
    assert_eq!(names.len(), 2, "it was abandoned");
    // A complete line of the log, in the wrong place.
    let line = fs::read(path.join(&names[1])).unwrap();
    let line = line.split_inclusive(|&b| b == b'\n').next_back().unwrap().to_vec();
    let mut first = fs::read(path.join(&names[0])).unwrap();
    first.extend_from_slice(&line);
    fs::write(path.join(&names[0]), first).unwrap();
    let mistakes = check(&path).mistakes;
    assert!(mistakes[0].what.contains("after the end"), "{mistakes:?}");
}

/// Settings of a writer with room for `limit` bytes, which one holder may use alone.
pub(super) fn writer_settings(
    limit: usize,
    sync_every: Duration,
    degrades: bool,
) -> WriterSettings {
    WriterSettings {
        limit,
        timeout: TIMEOUT,
        share: limit,
        degrades,
        sync_every: Some(sync_every),
        verify_every: TIMEOUT,
        log: settings(),
    }
}

/// A disk whose writes hang while `hangs` is set.
struct HangingDisk {
    hangs: Arc<AtomicBool>,
    is_reached: Arc<AtomicBool>,
}

impl FaultInjector for HangingDisk {
    fn at(&mut self, point: FailPoint) -> io::Result<()> {
        while point == FailPoint::BeforeWrite && self.hangs.load(Ordering::Relaxed) {
            self.is_reached.store(true, Ordering::Relaxed);
            std::thread::yield_now();
        }
        Ok(())
    }
}

#[test]
fn a_disk_that_hangs_refuses_calls_at_once_stops_no_shutdown_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let mut folder = LogFolder::open(directory.path()).unwrap();
    let keys = Keys::new(&key());
    let recovered = recover(&folder, &keys).unwrap();
    let (hangs, is_reached) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let disk = HangingDisk { hangs: hangs.clone(), is_reached: is_reached.clone() };
    folder.inject_faults(Arc::new(Mutex::new(disk)));
    let log = Log::new(folder, Arc::new(keys), settings(), &recovered, at(0)).unwrap();
    let tuning = writer_settings(10_000, Duration::from_millis(10), false);
    let queue = Arc::new(Queue::new(tuning.clone()));
    let log_writer = shared(&queue, log, Box::new(|| at(1)), tuning);
    let writer = std::thread::spawn(move || log_writer.run());
    let submit = |seconds| {
        let pending = queue.submit(&holder(), None, AuditEvent::new("test"), at(seconds));
        queue.wake_for_waiting();
        pending
    };
    hangs.store(true, Ordering::Relaxed);
    let written = submit(1).unwrap().unwrap();
    wait_until("nothing is written", || is_reached.load(Ordering::Relaxed));
    assert!(submit(2).is_ok() && !queue.is_down_at(at(6).up));
    assert!(queue.is_down_at(at(7).up), "the writer has the record, and hangs");
    assert!(submit(7).is_err(), "a call does not wait until its own time is over");
    hangs.store(false, Ordering::Relaxed);
    assert_eq!(written.written.blocking_recv(), Ok(WriteOutcome::Written));
    wait_until("it does not recover", || !queue.is_down_at(at(8).up));
    assert!(submit(8).is_ok());
    hangs.store(true, Ordering::Relaxed);
    queue.close();
    queue.wait_for_end(Duration::from_millis(1));
    assert!(!queue.is_closed(), "the end of the process does not wait for the disk");
    hangs.store(false, Ordering::Relaxed);
    writer.join().unwrap();
    assert!(check(directory.path()).mistakes.is_empty());
}
