//! Tests of the log on a file system, with a clock that is handed in.

mod callers_write;
mod exported;
mod failpoints;
mod tampering;

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::keys::Keys;
use super::log::{Gap, Log, LogSettings};
use super::record::{AuditEvent, RecordLine, Stamp};
use super::retention::Retention;
use super::verify::{KeptCheckpoint, TrustAnchors, VerificationReport, verify};
use crate::segments::compressor::compress;
use crate::segments::folder::{compressed_name, segment_name, segments};
use crate::segments::recover::Recovered;
use base::seal::AuditKey;
use failpoints::try_open;

pub(super) fn key() -> AuditKey {
    AuditKey::parse(&"A".repeat(43)).unwrap()
}

fn settings() -> LogSettings {
    LogSettings {
        segment_size: 1 << 20,
        segment_age: Duration::from_secs(3600),
        keep_size: 1 << 30,
        keep_for: Duration::from_secs(1 << 40),
        export_reserve: None,
        refuses_when_full: false,
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

fn append(log: &mut Log, id: u64) -> io::Result<()> {
    log.append(std::iter::once((&AuditEvent::new("test").number("id", id), at(id))), at(id))
}

fn check(path: &Path) -> VerificationReport {
    check_against(path, Vec::new())
}

fn check_against(path: &Path, checkpoints: Vec<KeptCheckpoint>) -> VerificationReport {
    verify(path, TrustAnchors { keys: Some(Keys::new(&key()).into()), public: None, checkpoints })
        .unwrap()
}

/// Verifies as an auditor does who has the public key and the kept checkpoints, and not the secret.
fn check_without_secret(path: &Path, checkpoints: Vec<KeptCheckpoint>) -> VerificationReport {
    let public = Some(Keys::new(&key()).public());
    verify(path, TrustAnchors { keys: None, public, checkpoints }).unwrap()
}

/// Writes a log of four segments with checkpoints, and returns a copy of the last checkpoint.
fn sample(path: &Path) -> KeptCheckpoint {
    let (mut log, _) = open(path);
    for id in 0..30 {
        append(&mut log, id).unwrap();
        if id % 10 == 9 {
            log.rotate(at(id)).unwrap();
        }
    }
    append(&mut log, 30).unwrap();
    log.sign(at(31)).unwrap();
    log.sync(at(31)).unwrap();
    let copies = fs::read_to_string(path.join("checkpoints.jsonl")).unwrap();
    KeptCheckpoint::read(copies.lines().next_back().unwrap()).unwrap()
}

#[test]
fn d6_checkpoints_are_copied_once_their_records_are_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let copies = path.join("checkpoints.jsonl");
    let (mut log, _) = open(path);
    append(&mut log, 1).unwrap();
    log.sign(at(2)).unwrap();
    assert!(!copies.exists());
    log.sync(at(2)).unwrap();
    let copied = fs::read_to_string(&copies).unwrap();
    let segment = fs::read_to_string(path.join(segment_name(1))).unwrap();
    assert!(copied.lines().count() == 1 && segment.ends_with(&copied), "{copied}");
    // A full file gets another name.
    fs::File::options().write(true).open(&copies).unwrap().set_len(8 << 20).unwrap();
    log.sign(at(3)).unwrap();
    log.sync(at(3)).unwrap();
    assert_eq!(fs::metadata(path.join("checkpoints.jsonl.1")).unwrap().len(), 8 << 20);
    assert_eq!(fs::read_to_string(&copies).unwrap().lines().count(), 1);
    // A copy that cannot be written does not take the log down.
    fs::remove_file(&copies).unwrap();
    fs::create_dir(&copies).unwrap();
    log.sign(at(4)).unwrap();
    log.sync(at(4)).unwrap();
    assert!(check(path).mistakes.is_empty());
}

#[test]
fn d2_missing_records_have_sequence_numbers_of_their_own() {
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
fn d9_a_clock_that_is_set_back_does_not_change_the_order() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    for id in [7200, 3600, 7201] {
        append(&mut log, id).unwrap();
    }
    log.sync(at(9)).unwrap();
    assert!(check(folder.path()).mistakes.is_empty());
    let name = segments(folder.path()).unwrap().remove(0);
    let text = fs::read(folder.path().join(name)).unwrap();
    let lines = text.split(|&b| b == b'\n').filter_map(RecordLine::read);
    let times: Vec<_> =
        lines.filter_map(|l| Some((l.seq()?, l.string("time")?, l.number("up_us")?))).collect();
    assert_eq!(times[1], (2, "1970-01-01T01:00:00.000000Z".to_owned(), 3_600_000_000));
    assert!(times[0].1 > times[1].1 && times[0].0 < times[1].0);
}

#[test]
fn old_segments_are_removed_as_configured_and_the_removal_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    sample(&path);
    let (mut log, _) = open(&path);
    assert_eq!(Retention::default().oldest_surplus(&log, 0, at(0)).unwrap(), None);
    // A byte too much, beside the room for the segment that is written.
    log.reconfigure(LogSettings { keep_size: (log.size() - 1) * 8 / 7, ..settings() });
    let surplus = Retention::default().oldest_surplus(&log, 0, at(0)).unwrap().unwrap();
    let surplus = surplus.segment;
    assert_eq!((surplus.number, surplus.first_seq, surplus.last.seq), (1, 1, 11));
    let event = surplus.event("segment_removed");
    log.append(std::iter::once((&event, at(1))), at(1)).unwrap();
    log.remove(surplus.number).unwrap();
    log.sync(at(2)).unwrap();
    assert_eq!(Retention::default().oldest_surplus(&log, 0, at(0)).unwrap(), None);
    let mistakes = check_without_secret(&path, Vec::new()).mistakes;
    assert!(mistakes[0].what.contains("the records 1 to 11 are missing"), "f13: {mistakes:?}");
    log.sign(at(3)).unwrap();
    log.sync(at(3)).unwrap();
    for report in [check(&path), check_without_secret(&path, Vec::new())] {
        assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
        assert_eq!((report.first, report.removed), (12, 11));
    }
}

#[test]
fn a_segment_that_is_not_exported_stays_until_the_reserve_is_used_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    sample(&path);
    let (mut log, _) = open(&path);
    let keep_size = (log.size() - 1) * 8 / 7;
    let room = keep_size - keep_size / 8;
    let mut leaving = |reserve, unexported, refuses_when_full| {
        let export_reserve = Some(reserve);
        let settings = LogSettings { keep_size, export_reserve, refuses_when_full, ..settings() };
        log.reconfigure(settings);
        let surplus = Retention::default().oldest_surplus(&log, unexported, at(0)).unwrap();
        surplus.map(|surplus| (surplus.segment.number, surplus.is_exported))
    };
    assert_eq!(leaving(1 << 20, 1, false), None, "its lines are not exported yet");
    assert_eq!(leaving(1 << 20, 2, false), Some((1, true)));
    assert_eq!(leaving(0, 1, false), Some((1, false)), "{room} are exceeded, with the reserve");
    assert_eq!(leaving(0, 1, true), None, "the log refuses records instead");
}

#[test]
fn a_segment_leaves_at_its_age_whatever_room_there_is() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path());
    let keep_for = Duration::from_secs(86_400);
    let (mut log, _) = open(folder.path());
    log.reconfigure(LogSettings { keep_for, refuses_when_full: true, ..settings() });
    let written = |second| {
        let path = folder.path().join(segment_name(1));
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(at(second).wall).unwrap();
    };
    let mut retention = Retention::default();
    let mut leaving = |wall: u64, up: u64| {
        let now = Stamp { up: Duration::from_secs(up), ..at(wall) };
        retention.oldest_surplus(&log, 0, now).unwrap().map(|surplus| surplus.segment.number)
    };
    written(100);
    assert_eq!([leaving(86_500, 0), leaving(86_500, 9_999)], [None, None]);
    // It has left its age behind for ten minutes.
    assert_eq!([leaving(86_501, 10_000), leaving(87_100, 10_599)], [None, None]);
    assert_eq!(leaving(87_101, 10_600), Some(1));
    // A clock that was set wrong for less than that.
    assert_eq!([leaving(1_000, 10_700), leaving(1 << 40, 10_701)], [None, None]);
    assert_eq!([leaving(1 << 40, 11_300), leaving(2_000, 11_301)], [None, None]);
    assert_eq!(leaving(1 << 40, 12_000), None);
    // A file that looks older than its records are.
    written(0);
    assert_eq!([leaving(86_405, 20_000), leaving(86_405, 30_000)], [None, None]);
}

#[test]
fn no_setting_lets_the_segment_that_is_written_leave() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path());
    append(&mut log, 1).unwrap();
    log.reconfigure(LogSettings { keep_size: 1, keep_for: Duration::ZERO, ..settings() });
    assert_eq!(Retention::default().oldest_surplus(&log, 0, at(1 << 40)).unwrap(), None);
}

#[test]
fn a_full_log_takes_records_again_once_its_segments_are_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    sample(path);
    let (mut log, _) = open(path);
    let keep_size = log.size();
    log.reconfigure(LogSettings { keep_size, refuses_when_full: true, ..settings() });
    assert_eq!(append(&mut log, 31).unwrap_err().kind(), io::ErrorKind::StorageFull);
    compress(path, 1, &|| false).unwrap();
    append(&mut log, 31).unwrap();
    assert!(log.size() < keep_size, "{}", log.size());
}

#[test]
fn a_log_with_compressed_segments_is_verified_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let kept = sample(path);
    (1..=3).for_each(|number| compress(path, number, &|| false).unwrap());
    let intact = |kept: &KeptCheckpoint| {
        for report in [
            check_against(path, vec![kept.clone()]),
            check_without_secret(path, vec![kept.clone()]),
        ] {
            assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
            assert_eq!((report.first, report.segments), (1, segments(path).unwrap().len()));
        }
    };
    intact(&kept);
    // An older copy, as a backup may have it, hides nothing.
    fs::write(path.join(segment_name(2)), "{\"segment\":2").unwrap();
    intact(&kept);
    fs::remove_file(path.join(segment_name(2))).unwrap();
    let (mut log, recovered) = open(path);
    assert_eq!((recovered.number, recovered.is_closed), (4, false));
    append(&mut log, 31).unwrap();
    log.rotate(at(32)).unwrap();
    drop(log);
    // The segment that was written is taken away, so that the last one is compressed.
    compress(path, 4, &|| false).unwrap();
    fs::remove_file(path.join(segment_name(5))).unwrap();
    let (mut log, recovered) = open(path);
    assert_eq!((recovered.number, recovered.is_closed), (4, true));
    append(&mut log, 33).unwrap();
    log.sign(at(33)).unwrap();
    log.sync(at(33)).unwrap();
    intact(&kept);
}

#[test]
fn a_damaged_compressed_segment_is_reported_and_the_next_one_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    sample(path);
    let check_last = check(path).last;
    compress(path, 2, &|| false).unwrap();
    let file = path.join(compressed_name(2));
    let mut text = fs::read(&file).unwrap();
    let middle = text.len() / 2;
    text[middle] ^= 1;
    fs::write(&file, text).unwrap();
    let report = check(path);
    assert!(report.mistakes[0].what.contains("compressed segment is damaged"), "{report:?}");
    assert_eq!(report.mistakes[0].segment, segment_name(2));
    assert!(report.mistakes[1].what.contains("the records 12 to"), "{report:?}");
    assert_eq!((report.segments, report.last), (4, check_last), "{report:?}");
}

#[cfg(unix)]
#[test]
fn f13_a_link_that_leads_nowhere_ends_a_verification() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    sample(&path);
    let first = path.join(&segments(&path).unwrap()[0]);
    fs::remove_file(&first).unwrap();
    std::os::unix::fs::symlink("nowhere", &first).unwrap();
    let error = verify(&path, TrustAnchors::default()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}
