//! The log under failing disks and crashes: at every point where a write can go wrong, in every way.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::folder::{Failing, Folder, Point};
use super::keys::Keys;
use super::log::{Gap, Log, LogSettings};
use super::record::{Event, Line, MAX_LINE, Stamp};
use super::recover::{Recovered, recover};
use super::verify::{Kept, Known, Report, verify};
use crate::seal::AuditKey;
use crate::seal::hex::from_hex;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    /// The process ends there.
    Abort,
    Once(i32),
    /// From then on nothing succeeds, until the disk is well again.
    Forever(i32),
}

/// Fails at the n-th point that is passed.
struct FailAt {
    left: usize,
    action: Action,
    passed: Vec<Point>,
    has_failed: bool,
    well: bool,
}

impl Failing for FailAt {
    fn at(&mut self, point: Point) -> io::Result<()> {
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
            // As a panic that nobody is told of.
            Action::Abort => std::panic::resume_unwind(Box::new("the process ends")),
            Action::Once(code) => {
                self.well = true;
                Err(io::Error::from_raw_os_error(code))
            }
            Action::Forever(code) => Err(io::Error::from_raw_os_error(code)),
        }
    }

    fn writes(&mut self, length: usize) -> usize {
        // Within a line.
        if self.well { length } else { length / 2 }
    }
}

fn key() -> AuditKey {
    AuditKey::parse(&"A".repeat(43)).unwrap()
}

fn settings() -> LogSettings {
    LogSettings {
        segment_size: 1 << 20,
        segment_age: Duration::from_secs(3600),
        max_size: 1 << 30,
        keep: 0,
        checkpoint_records: 1000,
        checkpoint_every: Duration::from_secs(60),
    }
}

fn at(seconds: u64) -> Stamp {
    Stamp {
        wall: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        up: Duration::from_secs(seconds),
    }
}

fn open(path: &Path) -> (Log, Recovered) {
    try_open(path, None).unwrap()
}

fn try_open(path: &Path, failing: Option<Arc<Mutex<FailAt>>>) -> io::Result<(Log, Recovered)> {
    let (mut folder, keys) = (Folder::open(path).unwrap(), Keys::new(&key()));
    let recovered = recover(&folder, &keys).unwrap();
    if let Some(failing) = failing {
        folder.fail(failing);
    }
    Ok((Log::new(folder, Arc::new(keys), settings(), &recovered, at(0))?, recovered))
}

fn append(log: &mut Log, id: u64) -> io::Result<()> {
    log.append(std::iter::once((&Event::new("test").number("id", id), at(id))), at(id))
}

fn check(path: &Path) -> Report {
    check_against(path, Vec::new())
}

fn check_against(path: &Path, checkpoints: Vec<Kept>) -> Report {
    verify(path, Known { keys: Some(Keys::new(&key())), public: None, checkpoints }).unwrap()
}

/// How often each id stands in the log.
fn ids(path: &Path) -> BTreeMap<u64, usize> {
    let mut ids = BTreeMap::new();
    for name in super::folder::segments(path).unwrap() {
        let text = fs::read(path.join(name)).unwrap();
        let lines = text.split(|&b| b == b'\n').filter_map(Line::read);
        for id in lines.filter_map(|line| line.number("id")) {
            *ids.entry(id).or_default() += 1;
        }
    }
    ids
}

/// The panic of an abort leaves it poisoned.
fn lock(failing: &Mutex<FailAt>) -> MutexGuard<'_, FailAt> {
    failing.lock().unwrap_or_else(PoisonError::into_inner)
}

const RECORDS: u64 = 12;

/// Writes, syncs and rotates; whatever fails is tried once more and then left. Tells which records
/// count as written.
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
fn d1_d3_d5_at_every_point_and_in_every_way_what_counted_as_written_is_there_once() {
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
            let failing =
                FailAt { left, action, passed: Vec::new(), has_failed: false, well: false };
            let failing = Arc::new(Mutex::new(failing));
            let written = Mutex::new(Vec::new());
            let failed = catch_unwind(AssertUnwindSafe(|| {
                // A disk that is broken at the start is told at the start.
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
            // The next start.
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

/// A log of three segments with checkpoints, and the signed head that is kept elsewhere.
fn sample(path: &Path) -> Kept {
    let (mut log, recovered) = open(path);
    for id in 0..30 {
        append(&mut log, id).unwrap();
        if id % 10 == 9 {
            log.rotate(at(id)).unwrap();
        }
    }
    append(&mut log, 30).unwrap();
    let signed = log.sign(at(31)).unwrap();
    log.sync(at(31)).unwrap();
    let head = super::record::Head { seq: signed.seq, mac: from_hex(&signed.mac).unwrap() };
    Kept { instance: recovered.writer.instance, head, signature: signed.signature }
}

/// Changes the lines of one segment.
fn tamper(path: &Path, segment: usize, change: impl FnOnce(&mut Vec<Vec<u8>>)) {
    let name = &super::folder::segments(path).unwrap()[segment];
    let text = fs::read(path.join(name)).unwrap();
    let mut lines: Vec<Vec<u8>> =
        text.split_inclusive(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
    change(&mut lines);
    fs::write(path.join(name), lines.concat()).unwrap();
}

#[test]
fn d6_whatever_is_changed_is_told_with_its_number() {
    type Change = fn(&mut Vec<Vec<u8>>);
    let cases: [(&str, Change, u64); 8] = [
        ("a flipped byte", |l| l[3][60] ^= 1, 14),
        ("a line deleted", |l| drop(l.remove(4)), 15),
        ("two lines swapped", |l| l.swap(4, 5), 15),
        ("a line twice", |l| l.insert(5, l[4].clone()), 15),
        ("the end cut at a line", |l| l.truncate(6), 17),
        ("the end cut in a line", |l| l.last_mut().unwrap().truncate(20), 22),
        ("a forged line", |l| l[4] = l[5].clone(), 15),
        ("the header gone", |l| drop(l.remove(0)), 0),
    ];
    for (what, change, seq) in cases {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        sample(&path);
        let whole = check(&path);
        assert!(whole.mistakes.is_empty(), "{:?}", whole.mistakes);
        assert_eq!((whole.first, whole.last, whole.segments), (1, 35, 4));
        tamper(&path, 1, change);
        let report = check(&path);
        let first = report.mistakes.first().unwrap_or_else(|| panic!("{what}: nothing was told"));
        assert_eq!(first.seq.unwrap_or_default(), seq, "{what}: {:?}", report.mistakes);
    }
}

#[test]
fn d1_a_line_that_is_being_written_or_was_when_the_gateway_was_killed_is_no_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let kept = sample(&path);
    let whole = check(&path);
    let name = super::folder::segments(&path).unwrap().pop().unwrap();
    let text = fs::read(path.join(&name)).unwrap();
    let last = text[..text.len() - 1].iter().rposition(|&b| b == b'\n').unwrap() + 1;
    for end in last..text.len() {
        fs::write(path.join(&name), &text[..end]).unwrap();
        let report = check(&path);
        assert!(report.mistakes.is_empty(), "{end}: {:?}", report.mistakes);
        assert_eq!((report.last, report.unfinished), (whole.last - 1, (end - last) as u64));
    }
    // What was signed is missed all the same, and nothing else goes by that name.
    fs::write(path.join(&name), &text[..last - 1]).unwrap();
    assert!(!check_against(&path, vec![kept]).mistakes.is_empty());
    let long = [&text, "x".repeat(MAX_LINE + 1).as_bytes()].concat();
    for other in [&text[..20], &[&text, &b"half\n"[..]].concat(), &long] {
        fs::write(path.join(&name), other).unwrap();
        assert!(!check(&path).mistakes.is_empty(), "{}", String::from_utf8_lossy(other));
    }
}

#[test]
fn d6_a_segment_taken_away_is_told() {
    for (segment, missing) in [(0, 1), (1, 12), (2, 23)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        sample(&path);
        let name = &super::folder::segments(&path).unwrap()[segment];
        fs::remove_file(path.join(name)).unwrap();
        let mistakes = check(&path).mistakes;
        assert!(mistakes.iter().any(|m| m.seq == Some(missing)), "{segment}: {mistakes:?}");
    }
}

#[test]
fn d6_a_log_that_was_cut_or_made_anew_is_told_by_a_checkpoint_kept_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let kept = sample(&path);
    assert!(check_against(&path, vec![kept.clone()]).mistakes.is_empty());
    // Whoever holds the folder alone cannot sign, but can cut.
    tamper(&path, 3, |lines| lines.truncate(1));
    assert!(check(&path).mistakes.is_empty(), "nothing in the log tells");
    let report = check_against(&path, vec![kept.clone()]);
    assert_eq!(report.mistakes[0].seq, Some(34), "{:?}", report.mistakes);
    // Whoever has the key can write another end.
    let (mut log, _) = open(&path);
    for id in 50..60 {
        append(&mut log, id).unwrap();
    }
    log.sync(at(60)).unwrap();
    drop(log);
    assert!(check(&path).mistakes.is_empty());
    let report = check_against(&path, vec![kept.clone()]);
    assert!(report.mistakes[0].what.contains("another one"), "{:?}", report.mistakes);
    let mut forged = kept;
    forged.head.mac[0] ^= 1;
    let report = check_against(&path, vec![forged]);
    assert!(report.mistakes[0].what.contains("not signed"), "{:?}", report.mistakes);
}

#[test]
fn without_the_secret_the_public_key_checks_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    sample(&path);
    let known =
        |key: &AuditKey| Known { public: Some(Keys::new(key).public()), ..Known::default() };
    assert!(verify(&path, known(&key())).unwrap().mistakes.is_empty());
    let other = verify(&path, known(&AuditKey::generate().0)).unwrap();
    assert!(other.mistakes[0].what.contains("signature"), "{:?}", other.mistakes);
}

#[test]
fn d1_what_a_crash_leaves_half_written_is_put_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let (mut log, _) = open(&path);
    append(&mut log, 1).unwrap();
    drop(log);
    let name = super::folder::segments(&path).unwrap().remove(0);
    let mut text = fs::read(path.join(&name)).unwrap();
    let whole = text.len();
    // A half line; and, after a loss of power, what was never written.
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
fn another_key_is_refused_before_it_spoils_the_chain() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let other = Keys::new(&AuditKey::generate().0);
    let error = recover(&Folder::open(folder.path()).unwrap(), &other).unwrap_err();
    assert!(error.to_string().contains("another audit.key"), "{error}");
}

#[test]
fn d2_what_is_missing_has_numbers_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    append(&mut log, 1).unwrap();
    log.append_gap(&Gap { count: 7, first: at(2), last: at(3) }, at(4)).unwrap();
    append(&mut log, 2).unwrap();
    log.sync(at(5)).unwrap();
    let report = check(folder.path());
    assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
    assert_eq!((report.missing, report.records, report.last), (vec![2..=8], 3, 10));
}

#[test]
fn d9_a_clock_that_goes_back_changes_no_order() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    for id in [7200, 3600, 7201] {
        append(&mut log, id).unwrap();
    }
    log.sync(at(9)).unwrap();
    assert!(check(folder.path()).mistakes.is_empty());
    let name = super::folder::segments(folder.path()).unwrap().remove(0);
    let text = fs::read(folder.path().join(name)).unwrap();
    let lines = text.split(|&b| b == b'\n').filter_map(Line::read);
    let times: Vec<_> =
        lines.filter_map(|l| Some((l.seq()?, l.string("time")?, l.number("up_us")?))).collect();
    assert_eq!(times[1], (2, "1970-01-01T01:00:00.000000Z".to_owned(), 3_600_000_000));
    assert!(times[0].1 > times[1].1 && times[0].0 < times[1].0);
}

#[test]
fn old_segments_are_removed_as_configured_and_the_log_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    sample(&path);
    let (mut log, _) = open(&path);
    assert_eq!(log.surplus().unwrap(), None, "0 keeps all");
    drop(log);
    let (folder_handle, keys) = (Folder::open(&path).unwrap(), Keys::new(&key()));
    let recovered = recover(&folder_handle, &keys).unwrap();
    let settings = LogSettings { keep: 3, ..settings() };
    log = Log::new(folder_handle, Arc::new(keys), settings, &recovered, at(0)).unwrap();
    let (name, last_seq) = log.surplus().unwrap().unwrap();
    assert_eq!((name.as_str(), last_seq), ("audit-00000001.jsonl", 11));
    let event = Event::new("segment_removed").number("last_seq", last_seq);
    log.append(std::iter::once((&event, at(1))), at(1)).unwrap();
    log.remove(&name).unwrap();
    log.sync(at(2)).unwrap();
    assert_eq!(log.surplus().unwrap(), None);
    let report = check(&path);
    assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
    assert_eq!((report.first, report.removed), (12, 11));
}

#[test]
fn d6_an_emptied_or_replaced_log_is_told_by_a_kept_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let kept = sample(&path);
    for name in super::folder::segments(&path).unwrap() {
        fs::remove_file(path.join(name)).unwrap();
    }
    let emptied = check_against(&path, vec![kept.clone()]).mistakes;
    assert!(emptied[0].what.contains("not here"), "{emptied:?}");
    // Another log of the same gateway, from its first record on.
    sample(&path);
    let replaced = check_against(&path, vec![kept]).mistakes;
    assert!(replaced[0].what.contains("not here"), "{replaced:?}");
}

#[test]
fn d6_what_is_added_behind_the_end_of_a_segment_that_was_given_up_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    drop(open(&path));
    let action = Action::Once(ENOSPC);
    let failing = FailAt { left: 4, action, passed: Vec::new(), has_failed: false, well: false };
    let failing = Arc::new(Mutex::new(failing));
    let (mut log, _) = try_open(&path, Some(failing.clone())).unwrap();
    for id in 0..6 {
        let _ = append(&mut log, id);
    }
    log.sync(at(9)).unwrap();
    drop(log);
    assert!(lock(&failing).has_failed && check(&path).mistakes.is_empty());
    let names = super::folder::segments(&path).unwrap();
    assert_eq!(names.len(), 2, "it was given up");
    // A whole line of the log, put where it does not belong.
    let line = fs::read(path.join(&names[1])).unwrap();
    let line = line.split_inclusive(|&b| b == b'\n').next_back().unwrap().to_vec();
    let mut first = fs::read(path.join(&names[0])).unwrap();
    first.extend_from_slice(&line);
    fs::write(path.join(&names[0]), first).unwrap();
    let mistakes = check(&path).mistakes;
    assert!(mistakes[0].what.contains("behind the end"), "{mistakes:?}");
}
