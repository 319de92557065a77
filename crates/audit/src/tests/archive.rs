//! Tests of the archive: what leaves the log stays verifiable, and no copy is lost or overwritten.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::*;
use crate::archive::{Archive, CopyState};
use crate::segments::closed_segment::ClosedSegment;
use crate::verify::verify_with;

/// Copies everything that is due, with a record of each copy.
fn archive(log: &Path, folder: &Path) -> Vec<String> {
    let archive = Archive::open(log, folder).unwrap();
    let mut copied = Vec::new();
    for number in archive.closed().unwrap() {
        if archive.state(number).unwrap() != CopyState::Complete {
            let copy = archive.copy(number).unwrap();
            archive.keep(&copy).unwrap();
            copied.push(copy.name().to_owned());
        }
    }
    let (mut writer, _) = open(log);
    for name in &copied {
        let number = crate::segments::folder::segment_number(name).unwrap();
        let event = ClosedSegment::find(log, number).unwrap().event("segment_archived");
        writer.append(std::iter::once((&event, at(50))), at(50)).unwrap();
    }
    writer.sign(at(50)).unwrap();
    writer.sync(at(50)).unwrap();
    copied
}

/// Removes the oldest segments of a log, with a record of each.
fn remove_oldest(log: &Path, count: usize) {
    let (mut writer, _) = open(log);
    for _ in 0..count {
        let oldest = crate::segments::folder::segment_numbers(log).unwrap()[0];
        let event = ClosedSegment::find(log, oldest).unwrap().event("segment_removed");
        writer.append(std::iter::once((&event, at(60))), at(60)).unwrap();
        writer.sign(at(60)).unwrap();
        writer.sync(at(60)).unwrap();
        writer.remove(oldest).unwrap();
    }
}

/// Verifies a log with an archive, with the secret and without it.
fn check_both(log: &Path, folder: &Path) -> [VerificationReport; 2] {
    let keys = || Keys::new(&key());
    let known = [
        TrustAnchors { keys: Some(keys().into()), ..TrustAnchors::default() },
        TrustAnchors { public: Some(keys().public()), ..TrustAnchors::default() },
    ];
    known.map(|anchors| {
        verify_with(&[log, folder], anchors, &mut |_| ControlFlow::Continue(())).unwrap()
    })
}

fn assert_intact(reports: &[VerificationReport]) {
    for report in reports {
        assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
    }
}

#[test]
fn a_log_that_was_archived_is_intact_together_with_its_archive_and_each_is() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit");
    let dir = folder.path().join("archive");
    sample(&log);
    compress(&log, 1, &|| false).unwrap();
    let names = ["audit-00000001.jsonl.gz", "audit-00000002.jsonl", "audit-00000003.jsonl"];
    assert_eq!(archive(&log, &dir), names);
    assert!(archive(&log, &dir).is_empty(), "nothing is copied twice");
    assert_intact(&check_both(&log, &dir));
    assert_intact(&[check(&log), check(&dir), check_without_secret(&dir, Vec::new())]);
    let last = check(&log).last;

    // The log loses its begin, and goes on.
    remove_oldest(&log, 2);
    let reports = check_both(&log, &dir);
    assert_intact(&reports);
    for report in &reports {
        assert_eq!((report.first, report.removed, report.segments), (1, 0, 4));
        assert!(report.last > last);
    }
    assert_intact(&[check(&log), check(&dir)]);
    assert_eq!(check(&log).first, 23);
}

#[test]
fn a_copy_that_was_compressed_since_is_the_same_and_one_that_was_cut_off_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit");
    let dir = folder.path().join("archive");
    sample(&log);
    archive(&log, &dir);
    compress(&log, 2, &|| false).unwrap();
    assert!(archive(&log, &dir).is_empty());
    let whole = fs::read(dir.join(segment_name(1))).unwrap();
    fs::write(dir.join(segment_name(1)), &whole[..whole.len() / 2]).unwrap();
    fs::write(dir.join("copy.tmp"), "of a run that was stopped").unwrap();
    assert_eq!(archive(&log, &dir), [segment_name(1)]);
    assert_eq!(fs::read(dir.join(segment_name(1))).unwrap(), whole);
    // Compressed since, and cut off before.
    fs::write(dir.join(segment_name(2)), &fs::read(dir.join(segment_name(2))).unwrap()[..99])
        .unwrap();
    assert_eq!(archive(&log, &dir), [compressed_name(2)]);
    assert!(!dir.join(segment_name(2)).exists(), "one copy is left");
    assert_intact(&check_both(&log, &dir));
}

#[test]
fn a_copy_that_differs_is_reported_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit");
    let dir = folder.path().join("archive");
    sample(&log);
    archive(&log, &dir);
    let path = dir.join(segment_name(2));
    let text = fs::read_to_string(&path).unwrap().replace("\"id\":12", "\"id\":21");
    fs::write(&path, &text).unwrap();
    let state = Archive::open(&log, &dir).unwrap().state(2).unwrap();
    assert_eq!(state, CopyState::Different);
    for report in check_both(&log, &dir) {
        let mistake = &report.mistakes[0];
        assert_eq!(mistake.segment, segment_name(2));
        assert!(mistake.what.contains("its copy in") && mistake.what.contains("differs"));
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_segment_that_was_archived_and_is_in_no_folder_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit");
    let dir = folder.path().join("archive");
    sample(&log);
    archive(&log, &dir);
    remove_oldest(&log, 3);
    assert_intact(&check_both(&log, &dir));
    fs::remove_file(dir.join(segment_name(2))).unwrap();
    for report in check_both(&log, &dir) {
        assert!(
            report.mistakes[0].what.contains("was archived, and is in no folder"),
            "{report:?}"
        );
        assert_eq!(report.mistakes[0].seq, Some(12));
    }
}

#[test]
fn what_left_before_it_was_archived_is_told_and_a_removal_without_a_record_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit");
    let dir = folder.path().join("archive");
    sample(&log);
    fs::create_dir(&dir).unwrap();
    fs::copy(log.join(segment_name(1)), dir.join(segment_name(1))).unwrap();
    remove_oldest(&log, 3);
    for report in check_both(&log, &dir) {
        assert_intact(std::slice::from_ref(&report));
        assert_eq!((report.first, report.left), (1, vec![12..=33]));
    }
    let (mut writer, _) = open(&log);
    for id in 70..75 {
        append(&mut writer, id).unwrap();
        writer.rotate(at(id)).unwrap();
    }
    drop(writer);
    archive(&log, &dir);
    fs::remove_file(log.join(segment_name(6))).unwrap();
    fs::remove_file(dir.join(segment_name(6))).unwrap();
    for report in check_both(&log, &dir) {
        assert!(
            report.mistakes.iter().any(|found| found.what.contains("are missing")),
            "{report:?}"
        );
    }
}

#[test]
fn an_archive_is_for_one_log_and_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit");
    let dir = folder.path().join("archive");
    let other = folder.path().join("other");
    sample(&log);
    sample(&other);
    archive(&log, &dir);
    let refused = |log: &Path, dir: &Path| Archive::open(log, dir).err().unwrap().to_string();
    assert!(refused(&other, &dir).contains("segments of another log"));
    assert!(refused(&log, &log).contains("the log itself"));
    let one = Archive::open(&log, &dir).unwrap();
    assert_eq!(Archive::open(&log, &dir).err().unwrap().kind(), io::ErrorKind::WouldBlock);
    drop(one);
    let names: BTreeSet<_> =
        fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "three copies and the lock: {names:?}");
}
