//! Tests of the log on a file system, with a clock that is handed in.

mod failpoints;
mod tampering;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::folder::{LogFolder, segments};
use super::keys::Keys;
use super::log::{Gap, Log, LogSettings};
use super::record::{AuditEvent, RecordLine, Stamp};
use super::recover::{Recovered, recover};
use super::verify::{KeptCheckpoint, TrustAnchors, VerificationReport, verify};
use base::seal::AuditKey;
use failpoints::try_open;

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

fn append(log: &mut Log, id: u64) -> io::Result<()> {
    log.append(std::iter::once((&AuditEvent::new("test").number("id", id), at(id))), at(id))
}

fn check(path: &Path) -> VerificationReport {
    check_against(path, Vec::new())
}

fn check_against(path: &Path, checkpoints: Vec<KeptCheckpoint>) -> VerificationReport {
    verify(path, TrustAnchors { keys: Some(Keys::new(&key())), public: None, checkpoints }).unwrap()
}

/// Verifies as an auditor does who has the public key and the kept checkpoints, and not the secret.
fn check_without_secret(path: &Path, checkpoints: Vec<KeptCheckpoint>) -> VerificationReport {
    let public = Some(Keys::new(&key()).public());
    verify(path, TrustAnchors { keys: None, public, checkpoints }).unwrap()
}

/// Writes a log of four segments with checkpoints, and returns a copy of the last checkpoint.
fn sample(path: &Path) -> KeptCheckpoint {
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
    KeptCheckpoint { instance: recovered.writer.instance, checkpoint: signed }
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
    assert_eq!(log.oldest_surplus().unwrap(), None, "0 keeps all");
    drop(log);
    let folder_handle = LogFolder::open(&path).unwrap();
    let keys = Keys::new(&key());
    let recovered = recover(&folder_handle, &keys).unwrap();
    let settings = LogSettings { keep: 3, ..settings() };
    log = Log::new(folder_handle, Arc::new(keys), settings, &recovered, at(0)).unwrap();
    let (name, last_seq) = log.oldest_surplus().unwrap().unwrap();
    assert_eq!((name.as_str(), last_seq), ("audit-00000001.jsonl", 11));
    let event = AuditEvent::new("segment_removed").number("last_seq", last_seq);
    log.append(std::iter::once((&event, at(1))), at(1)).unwrap();
    log.remove(&name).unwrap();
    log.sync(at(2)).unwrap();
    assert_eq!(log.oldest_surplus().unwrap(), None);
    let mistakes = check_without_secret(&path, Vec::new()).mistakes;
    assert!(mistakes[0].what.contains("the records 1 to 11 are missing"), "f13: {mistakes:?}");
    log.sign(at(3)).unwrap();
    log.sync(at(3)).unwrap();
    for report in [check(&path), check_without_secret(&path, Vec::new())] {
        assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
        assert_eq!((report.first, report.removed), (12, 11));
    }
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
