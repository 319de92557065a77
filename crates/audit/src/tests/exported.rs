//! Lines as a collector has kept them, and proofs of single records.

use std::fs;
use std::path::Path;

use super::{at, check, key, open, sample};
use crate::checkpoint::Checkpoint;
use crate::keys::Keys;
use crate::proof::prove;
use crate::record::{AuditEvent, RecordLine, next_digest};
use crate::segments::folder::{segment_name, segment_numbers};
use crate::verify::TrustAnchors;
use crate::verify::exported::{ExportedLines, ExportedLogReport};
use base::seal::hex::{from_hex, hex};

fn lines(path: &Path) -> Vec<String> {
    let numbers = segment_numbers(path).unwrap();
    let text = |number| fs::read_to_string(path.join(segment_name(number))).unwrap();
    numbers
        .into_iter()
        .map(text)
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Verifies lines with the secret, and with the public key alone.
fn verified(lines: &[String]) -> [Vec<ExportedLogReport>; 2] {
    let text = lines.join("\n");
    let keys = Keys::new(&key());
    let public = TrustAnchors { public: Some(keys.public()), ..TrustAnchors::default() };
    let secret = TrustAnchors { keys: Some(keys.into()), ..TrustAnchors::default() };
    [secret, public].map(|anchors| ExportedLines::read(text.as_bytes()).unwrap().verify(&anchors))
}

#[test]
fn three_logs_that_come_mixed_repeated_and_backwards_are_whole() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let mut all = Vec::new();
    for folder in &folders {
        sample(folder.path());
        all.extend(lines(folder.path()));
    }
    all.extend(all.clone());
    all.reverse();
    let last = check(folders[0].path()).last;
    for reports in verified(&all) {
        assert_eq!(reports.len(), 3);
        for ExportedLogReport { repeated, report, .. } in reports {
            assert_eq!(report.mistakes, []);
            assert_eq!((report.first, report.last, report.records), (1, last, last));
            assert_eq!(repeated, last + report.segments as u64);
            assert!(report.signed.is_some_and(|signed| *signed.start() == 1));
        }
    }
}

#[test]
fn a_file_that_begins_within_a_segment_is_whole_from_there() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path());
    let all = lines(folder.path());
    // The header and three records are in the file of the day before.
    for reports in verified(&all[4..]) {
        let [ExportedLogReport { report, .. }] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!((report.first, &report.mistakes[..]), (4, &[][..]));
    }
}

#[test]
fn missing_and_changed_records_are_named() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path());
    let all = lines(folder.path());
    let mut missing = all.clone();
    missing.drain(4..6);
    let mut changed = all.clone();
    changed[4] = changed[4].replacen("\"id\":3", "\"id\":8", 1);
    assert_ne!(changed[4], all[4]);
    let mut twice = all.clone();
    twice.push(changed[4].clone());
    let said =
        |lines: &[String]| verified(lines).map(|reports| reports[0].report.mistakes[0].to_string());
    for said in said(&missing) {
        assert!(said.contains("the records 4 to 5 are missing"), "{said}");
    }
    let [secret, public] = said(&changed);
    assert!(secret.contains("record 4: the record, or the record before it, was changed"));
    assert!(public.contains("is not the one that this checkpoint has signed"), "{public}");
    for said in said(&twice) {
        assert!(said.contains("record 4: the record 4 came with two different contents"), "{said}");
    }
}

/// A log whose records say which lines a collector has refused, and without which it has the log.
fn refused_lines(path: &Path, signed: bool) -> Vec<String> {
    sample(path);
    let all = lines(path);
    let find = |text: &str| all.iter().find(|line| line.starts_with(text)).unwrap();
    let header = find("{\"segment\":2,");
    let record = |seq: u64| {
        let line = find(&format!("{{\"seq\":{seq},"));
        let read = RecordLine::read(line.as_bytes()).unwrap();
        let before = from_hex(&prove(path, seq).unwrap().unwrap().before).unwrap();
        let lines = next_digest(&before, format!("{line}\n").as_bytes());
        AuditEvent::new("export_refused")
            .text("log", &read.string("instance").unwrap())
            .number("record", seq)
            .text("record_mac", &hex(&read.mac))
            .text("record_lines", &hex(&lines))
    };
    // Two in a row, the last of a segment, and a header.
    let said = [record(4), record(5), record(11)].into_iter();
    let said = said.chain([AuditEvent::new("export_refused").long_text("header", header, 8192)]);
    let (mut log, _) = open(path);
    for event in said.collect::<Vec<_>>() {
        log.append(std::iter::once((&event, at(40))), at(40)).unwrap();
    }
    if signed {
        log.sign(at(41)).unwrap();
    }
    log.sync(at(41)).unwrap();
    let is_refused = |line: &String| {
        line == header || [4, 5, 11].iter().any(|n| line.starts_with(&format!("{{\"seq\":{n},")))
    };
    lines(path).into_iter().filter(|line| !is_refused(line)).collect()
}

#[test]
fn refused_records_are_named_and_the_lines_around_them_are_verified() {
    let folder = tempfile::tempdir().unwrap();
    let kept = refused_lines(folder.path(), true);
    for reports in verified(&kept) {
        let [ExportedLogReport { report, .. }] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!((&report.mistakes[..], &report.refused[..]), (&[][..], &[4, 5, 11][..]));
        assert!(report.signed.is_some());
    }
    // A record that no log says to be refused is missing beside one that is.
    let others: Vec<_> =
        kept.iter().filter(|line| !line.starts_with("{\"seq\":6,")).cloned().collect();
    for reports in verified(&others) {
        let what = &reports[0].report.mistakes[0].what;
        assert!(what.contains("the records 6 to 6 are missing"), "{what}");
    }
}

#[test]
fn without_the_secret_a_refusal_counts_once_a_checkpoint_has_signed_it() {
    let folder = tempfile::tempdir().unwrap();
    let [secret, public] = verified(&refused_lines(folder.path(), false));
    assert_eq!(secret[0].report.mistakes, []);
    let what = &public[0].report.mistakes[0].what;
    assert!(what.contains("the records 4 to 5 are missing"), "{what}");
}

#[test]
fn a_proof_is_checked_with_the_public_key_alone_and_a_changed_line_is_not_signed() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path());
    assert!(prove(folder.path(), 0).unwrap().is_none());
    assert!(prove(folder.path(), 10_000).unwrap().is_none());
    let proof = prove(folder.path(), 5).unwrap().unwrap();
    assert!(proof.lines[0].starts_with("{\"seq\":5,"), "{}", proof.lines[0]);
    let running = |lines: &[String]| {
        let before: [u8; 32] = from_hex(&proof.before).unwrap();
        let next = |digest, line: &String| next_digest(&digest, format!("{line}\n").as_bytes());
        hex(&lines.iter().fold(before, next))
    };
    let line = RecordLine::read(proof.checkpoint.as_bytes()).unwrap();
    let signed = Checkpoint::read(|name| line.number(name), |name| line.string(name)).unwrap();
    assert!(signed.is_signed(&proof.instance, &Keys::new(&key()).public()));
    assert_eq!(Some(running(&proof.lines)), line.string("lines"));
    let changed: Vec<_> =
        proof.lines.iter().map(|line| line.replace("\"id\":", "\"id\":1")).collect();
    assert_ne!(Some(running(&changed)), line.string("lines"));
}
