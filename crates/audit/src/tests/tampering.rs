//! Tests of the verification: every change of a log is reported, and nothing else.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;

use super::{append, at, check, check_against, check_without_secret, key, open, sample};
use crate::keys::Keys;
use crate::record::MAX_LINE;
use crate::segments::folder::{LogFolder, segments};
use crate::segments::recover::recover;
use crate::verify::{TrustAnchors, verify};
use base::seal::AuditKey;

/// Changes the lines of one segment.
fn tamper(path: &Path, segment: usize, change: impl FnOnce(&mut Vec<Vec<u8>>)) {
    let name = &segments(path).unwrap()[segment];
    let text = fs::read(path.join(name)).unwrap();
    let mut lines: Vec<Vec<u8>> =
        text.split_inclusive(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
    change(&mut lines);
    fs::write(path.join(name), lines.concat()).unwrap();
}

/// Changes bits of one byte of a segment: of the last one within the length that `of_last` returns.
fn flip(path: &Path, segment: Index, at: Index, bits: u8, of_last: impl Fn(&[u8]) -> usize) {
    let names = segments(path).unwrap();
    let name = path.join(segment.get(&names));
    let is_last = segment.index(names.len()) == names.len() - 1;
    let mut text = fs::read(&name).unwrap();
    let length = if is_last { of_last(&text) } else { text.len() };
    text[at.index(length)] ^= bits;
    fs::write(name, text).unwrap();
}

#[test]
fn d6_every_change_is_reported_with_its_sequence_number() {
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
        let first =
            report.mistakes.first().unwrap_or_else(|| panic!("{what}: nothing was reported"));
        assert_eq!(first.seq.unwrap_or_default(), seq, "{what}: {:?}", report.mistakes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn property_12_any_changed_byte_is_reported(
        segment in any::<Index>(), at in any::<Index>(), bits in 1_u8..,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        sample(&path);
        // A last line without its line feed counts as a line that is being written.
        flip(&path, segment, at, bits, |last| last.len() - 1);
        prop_assert!(!check(&path).mistakes.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn f13_without_the_secret_any_changed_byte_below_the_last_checkpoint_is_reported(
        segment in any::<Index>(), at in any::<Index>(), bits in 1_u8..,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        sample(&path);
        // The last line of the last segment is the last checkpoint itself.
        let without_last_line =
            |last: &[u8]| last[..last.len() - 1].iter().rposition(|&b| b == b'\n').unwrap() + 1;
        flip(&path, segment, at, bits, without_last_line);
        prop_assert!(!check_without_secret(&path, Vec::new()).mistakes.is_empty());
    }
}

#[test]
fn f13_without_the_secret_the_report_says_how_far_the_lines_were_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    sample(&path);
    let report = check_without_secret(&path, Vec::new());
    assert_eq!((report.mistakes.len(), report.signed, report.last), (0, Some(1..=34), 35));
    // Texts of the same length, as a forger would replace them.
    tamper(&path, 1, |lines| {
        let text = String::from_utf8(lines[3].clone()).unwrap();
        assert!(text.contains("\"id\":12"), "{text}");
        lines[3] = text.replace("\"id\":12", "\"id\":21").into_bytes();
    });
    let mistakes = check_without_secret(&path, Vec::new()).mistakes;
    assert_eq!(mistakes.len(), 1, "found once: {mistakes:?}");
    assert_eq!(mistakes[0].seq, Some(22));
    assert!(mistakes[0].what.contains("between the records 10 and 22"), "{mistakes:?}");
}

#[test]
fn f13_a_log_cannot_be_passed_off_as_one_of_an_earlier_release() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let kept = sample(&path);
    // Without digests in the header and without checkpoints, an edit of the first segment.
    tamper(&path, 0, |lines| {
        let header = String::from_utf8(lines[0].clone()).unwrap();
        let (before, rest) = header.split_once(",\"after_lines\"").unwrap();
        let (_, mac) = rest.split_once(",\"mac\"").unwrap();
        lines[0] = format!("{before},\"mac\"{mac}").into_bytes();
        for line in &mut lines[1..] {
            let text = String::from_utf8(line.clone()).unwrap();
            *line = text
                .replace("\"checkpoint\"", "\"checkpoinT\"")
                .replace("\"id\":3", "\"id\":7")
                .into();
        }
    });
    let report = check_without_secret(&path, Vec::new());
    assert!(report.mistakes[0].what.contains("does not start with a header"), "{report:?}");
    assert!(!check_without_secret(&path, vec![kept]).mistakes.is_empty());
}

#[test]
fn f13_a_kept_checkpoint_signs_the_lines_below_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let kept = sample(&path);
    // All checkpoints are gone, and the lines edited behind the last header: only the copy tells.
    tamper(&path, 3, |lines| {
        let text = String::from_utf8(lines[1].clone()).unwrap();
        lines[1] = text.replace("\"id\":30", "\"id\":31").into_bytes();
        lines.pop();
    });
    assert!(check_without_secret(&path, Vec::new()).mistakes.is_empty(), "above the last one");
    let mistakes = check_without_secret(&path, vec![kept]).mistakes;
    assert!(mistakes[0].what.contains("a kept checkpoint has signed"), "{mistakes:?}");
}

#[test]
fn f14_what_is_no_segment_is_set_aside_at_the_start_and_its_numbers_are_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    sample(&path);
    // Truncated in place while it was written: what follows has no header.
    tamper(&path, 3, |lines| drop(lines.remove(0)));
    fs::write(path.join("audit-00000099.jsonl"), "").unwrap();
    let mistakes = check(&path).mistakes;
    assert!(mistakes.iter().any(|m| m.what == "the segment is empty"), "{mistakes:?}");
    let (mut log, recovered) = open(&path);
    let aside: Vec<_> = recovered.aside.iter().map(|a| (a.name.as_str(), a.last_seq)).collect();
    assert_eq!(aside, [("audit-00000004.jsonl.aside", 35), ("audit-00000099.jsonl.aside", 0)]);
    append(&mut log, 50).unwrap();
    log.sign(at(51)).unwrap();
    log.sync(at(51)).unwrap();
    drop(log);
    let report = check(&path);
    let found: Vec<_> = report.mistakes.iter().map(|m| m.what.as_str()).collect();
    assert_eq!(found, ["the records 34 to 35 are missing"], "and nothing else");
    assert_eq!(report.last, 37);
}

#[test]
fn f14_a_segment_that_is_truncated_while_it_is_written_is_left_and_what_is_lost_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let (mut log, _) = open(&path);
    append(&mut log, 1).unwrap();
    log.sync(at(1)).unwrap();
    append(&mut log, 2).unwrap();
    assert_eq!(log.abandon_if_damaged(), None);
    fs::write(path.join("audit-00000001.jsonl"), "").unwrap();
    assert!(log.abandon_if_damaged().unwrap().contains("truncated"));
    append(&mut log, 3).unwrap();
    log.sync(at(3)).unwrap();
    drop(log);
    let text = fs::read_to_string(path.join("audit-00000002.jsonl")).unwrap();
    assert!(text.contains("\"id\":2") && text.contains("\"id\":3"), "not synced before: kept");
    assert_eq!(fs::metadata(path.join("audit-00000001.jsonl")).unwrap().len(), 0);
    let mistakes = check(&path).mistakes;
    assert!(mistakes.iter().any(|m| m.what == "the segment is empty"), "{mistakes:?}");
    assert!(mistakes.iter().any(|m| m.seq == Some(1)), "{mistakes:?}");
}

#[test]
fn d6_a_removed_segment_is_reported() {
    for (segment, missing) in [(0, 1), (1, 12), (2, 23)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        sample(&path);
        let name = &segments(&path).unwrap()[segment];
        fs::remove_file(path.join(name)).unwrap();
        let mistakes = check(&path).mistakes;
        assert!(mistakes.iter().any(|m| m.seq == Some(missing)), "{segment}: {mistakes:?}");
    }
}

#[test]
fn d6_a_truncated_or_rewritten_end_is_detected_by_a_kept_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let kept = sample(&path);
    assert!(check_against(&path, vec![kept.clone()]).mistakes.is_empty());
    // Without the key a log cannot be signed, but it can be truncated.
    tamper(&path, 3, |lines| lines.truncate(1));
    assert!(check(&path).mistakes.is_empty(), "undetectable from the log alone");
    let report = check_against(&path, vec![kept.clone()]);
    assert_eq!(report.mistakes[0].seq, Some(34), "{:?}", report.mistakes);
    // With the key a different end can be written.
    let (mut log, _) = open(&path);
    for id in 50..60 {
        append(&mut log, id).unwrap();
    }
    log.sync(at(60)).unwrap();
    drop(log);
    assert!(check(&path).mistakes.is_empty());
    let report = check_against(&path, vec![kept.clone()]);
    assert!(report.mistakes[0].what.contains("differs from"), "{:?}", report.mistakes);
    let mut forged = kept;
    forged.checkpoint.statement.mac[0] ^= 1;
    let report = check_against(&path, vec![forged]);
    assert!(report.mistakes[0].what.contains("not signed"), "{:?}", report.mistakes);
}

#[test]
fn without_the_secret_the_public_key_verifies_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    sample(&path);
    let known = |key: &AuditKey| TrustAnchors {
        public: Some(Keys::new(key).public()),
        ..TrustAnchors::default()
    };
    assert!(verify(&path, known(&key())).unwrap().mistakes.is_empty());
    let other = verify(&path, known(&AuditKey::generate().0)).unwrap();
    assert!(other.mistakes[0].what.contains("signature"), "{:?}", other.mistakes);
}

#[test]
fn another_key_is_refused_before_it_breaks_the_chain() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let other = Keys::new(&AuditKey::generate().0);
    let error = recover(&LogFolder::open(folder.path()).unwrap(), &other).unwrap_err();
    assert!(error.to_string().contains("another audit.key"), "{error}");
}

#[test]
fn d6_an_emptied_or_replaced_log_is_detected_by_a_kept_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let kept = sample(&path);
    for name in segments(&path).unwrap() {
        fs::remove_file(path.join(name)).unwrap();
    }
    let emptied = check_against(&path, vec![kept.clone()]).mistakes;
    assert!(emptied[0].what.contains("is missing"), "{emptied:?}");
    // A different log of the same gateway, from its first record on.
    sample(&path);
    let replaced = check_against(&path, vec![kept]).mistakes;
    assert!(replaced[0].what.contains("is missing"), "{replaced:?}");
}

#[test]
fn d1_an_incomplete_last_line_is_unfinished_and_not_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit");
    let kept = sample(&path);
    let whole = check(&path);
    let name = segments(&path).unwrap().pop().unwrap();
    let text = fs::read(path.join(&name)).unwrap();
    let last = text[..text.len() - 1].iter().rposition(|&b| b == b'\n').unwrap() + 1;
    for end in last..text.len() {
        fs::write(path.join(&name), &text[..end]).unwrap();
        let report = check(&path);
        assert!(report.mistakes.is_empty(), "{end}: {:?}", report.mistakes);
        assert_eq!((report.last, report.unfinished), (whole.last - 1, (end - last) as u64));
    }
    // A kept checkpoint still detects the missing record, and no other damage counts as unfinished.
    fs::write(path.join(&name), &text[..last - 1]).unwrap();
    assert!(!check_against(&path, vec![kept]).mistakes.is_empty());
    let long = [&text, "x".repeat(MAX_LINE + 1).as_bytes()].concat();
    for other in [&text[..20], &[&text, &b"half\n"[..]].concat(), &long] {
        fs::write(path.join(&name), other).unwrap();
        assert!(!check(&path).mistakes.is_empty(), "{}", String::from_utf8_lossy(other));
    }
}
