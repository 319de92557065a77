//! The search against a naive reading of the same log.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::keys::Keys;
use crate::record::{AuditEvent, Head, Stamp, WriterId};
use crate::segments::compressor::compress;
use crate::segments::folder::segment_name;
use crate::segments::header::SegmentHeader;
use base::seal::AuditKey;

/// A log that is written line by line.
struct Log {
    folder: TempDir,
    keys: Keys,
    writer: WriterId,
    head: Head,
    segment: u64,
    calls: u64,
}

impl Log {
    fn new() -> Self {
        let keys = Keys::new(&AuditKey::parse(&"A".repeat(43)).unwrap());
        let writer = WriterId { instance: "aa".into(), boot: "bb".into() };
        let folder = tempfile::tempdir().unwrap();
        let mut log = Self { folder, keys, writer, head: Head::default(), segment: 0, calls: 0 };
        log.rotate();
        log
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn stamp(&self) -> Stamp {
        let up = Duration::from_secs(self.head.seq);
        Stamp { wall: SystemTime::UNIX_EPOCH + up, up }
    }

    fn append(&self, bytes: &[u8]) {
        let file = self.path().join(segment_name(self.segment));
        let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
        file.write_all(bytes).unwrap();
    }

    fn rotate(&mut self) {
        self.segment += 1;
        let header = SegmentHeader {
            number: self.segment,
            instance: "aa".into(),
            previous: self.head,
            name: String::new(),
            bytes: 0,
            headers: [0; 32],
            abandoned: None,
        };
        self.append(&header.write(self.stamp(), &self.keys));
    }

    fn note(&mut self, event: &AuditEvent) {
        let mut line = Vec::new();
        let stamp = self.stamp();
        self.head.write(event, stamp, &self.writer, &self.keys, &mut line);
        self.append(&line);
    }

    fn begin(&mut self, caller: &str) -> u64 {
        self.calls += 1;
        let event = AuditEvent::new("received").number("call", self.calls).text("caller", caller);
        let event =
            event.json("arguments", "{\"x\":{\"bytes\":6,\"hmac\":\"77\",\"value\":\"s3cret\"}}");
        let event = event.text("name", "up__p").text("upstream", "up").text("prompt", "p");
        self.note(&event.text("decision", "allowed"));
        self.calls
    }

    fn end(&mut self, call: u64, outcome: &str) {
        let event = AuditEvent::new("completed").number("call", call).number("duration_us", 5);
        self.note(&event.text("outcome", outcome));
    }
}

fn all(log: &Log, wanted: &Find, page: usize) -> Vec<LogEntry> {
    let (mut entries, mut before) = (Vec::new(), None);
    loop {
        let until = Instant::now() + Duration::from_secs(60);
        let found = find(log.path(), wanted, page, before, until).unwrap();
        entries.extend(found.entries);
        before = found.next;
        if before.is_none() {
            assert!(found.complete);
            return entries;
        }
    }
}

/// Record, outcome.
fn short(entries: &[LogEntry]) -> Vec<(u64, Option<String>)> {
    entries.iter().map(|entry| (entry.seq, entry.outcome.clone())).collect()
}

#[test]
fn denials_of_all_kinds_are_found_by_one_outcome_with_and_without_their_rule() {
    let mut log = Log::new();
    let allowed = log.begin("denied");
    log.end(allowed, "ok");
    let received =
        |call, caller| AuditEvent::new("received").number("call", call).text("caller", caller);
    // As older releases have written it.
    log.note(&received(7, "bob").text("name", "up__p").text("decision", "denied"));
    log.end(7, "unknown_prompt");
    let denied = received(8, "cid").text("decision", "denied").text("rule", "access.rules.2");
    log.note(&denied.text("config", "sha256:ab"));
    log.end(8, "unknown_prompt");
    log.note(&received(9, "dan,\"rule\":\"x").text("decision", "allowed"));
    log.end(9, "ok");
    log.note(&received(10, "eve").text("decision", "allowed"));
    let refused = AuditEvent::new("completed").number("call", 10).text("outcome", "no_choice");
    log.note(&refused.text("rule", "arguments.tone"));
    log.note(&AuditEvent::new("refused").text("reason", "rate_limited").text("caller", "fay"));
    let denials = Find { outcome: Some(DENIED.to_owned()), ..Find::default() };
    let rules: Vec<_> = all(&log, &denials, 10)
        .into_iter()
        .map(|entry| (entry.caller.unwrap(), entry.rule.unwrap_or_default()))
        .collect();
    let expected = [("fay", ""), ("eve", "arguments.tone"), ("cid", "access.rules.2"), ("bob", "")];
    assert_eq!(rules, expected.map(|(caller, rule)| (caller.to_owned(), rule.to_owned())));
    let find = |outcome: &str| {
        let find = Find { outcome: Some(outcome.to_owned()), ..Find::default() };
        all(&log, &find, 10).into_iter().filter_map(|entry| entry.caller).collect::<Vec<_>>()
    };
    assert_eq!(find("unknown_prompt"), ["cid", "bob"]);
    assert_eq!(find("rate_limited"), ["fay"], "by the name that other outcomes have");
    assert_eq!(find("ok"), ["dan,\"rule\":\"x", "denied"]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(u8),
    End(u8),
    Note,
    Rotate,
}

/// Record, caller and outcome of a call; a note has neither.
type Expected = (u64, Option<u8>, Option<String>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3_u8).prop_map(Step::Begin),
        4 => any::<u8>().prop_map(Step::End),
        1 => Just(Step::Note),
        1 => Just(Step::Rotate),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_found_is_what_was_recorded(steps in steps(), page in 1..7_usize, tears: bool) {
        let mut log = Log::new();
        let mut live = Live::at_end(log.path()).unwrap();
        let mut open: Vec<(u64, u64)> = Vec::new();
        let mut expected: Vec<Expected> = Vec::new();
        for step in steps {
            match step {
                Step::Begin(caller) => {
                    let call = log.begin(&format!("c{caller}"));
                    open.push((call, log.head.seq));
                    expected.push((log.head.seq, Some(caller), None));
                }
                Step::End(which) if !open.is_empty() => {
                    let (call, seq) = open.remove(which as usize % open.len());
                    let outcome = if which % 3 == 0 { "upstream_timeout" } else { "ok" };
                    log.end(call, outcome);
                    let of = expected.iter_mut().find(|(at, ..)| *at == seq).unwrap();
                    of.2 = Some(outcome.to_owned());
                }
                Step::End(_) => {}
                Step::Note => {
                    log.note(&AuditEvent::new("config_reloaded").text("digest", "sha256:1"));
                    expected.push((log.head.seq, None, None));
                }
                Step::Rotate => {
                    log.rotate();
                    let closed = log.segment - 1;
                    if closed.is_multiple_of(2) {
                        compress(log.path(), closed, &|| false).unwrap();
                    }
                }
            }
        }
        if tears {
            log.append(b"{\"seq\":");
        }
        expected.reverse();
        let naive = |admits: &dyn Fn(&Expected) -> bool| {
            let of = expected.iter().filter(|entry| admits(entry));
            of.map(|(seq, _, outcome)| (*seq, outcome.clone())).collect::<Vec<_>>()
        };
        let found = |wanted: Find| short(&all(&log, &wanted, page));
        prop_assert_eq!(found(Find::default()), naive(&|_| true));
        let of_caller = Find { caller: Some("c1".into()), ..Find::default() };
        prop_assert_eq!(found(of_caller), naive(&|(_, caller, _)| *caller == Some(1)));
        let failed = Find { outcome: Some("upstream_timeout".into()), ..Find::default() };
        let is_failed = |(_, _, outcome): &(_, _, Option<String>)| {
            outcome.as_deref() == Some("upstream_timeout")
        };
        prop_assert_eq!(found(failed), naive(&is_failed));
        let notes = Find { event: Some("config_reloaded".into()), ..Find::default() };
        prop_assert_eq!(found(notes), naive(&|(_, caller, _)| caller.is_none()));
        let half = log.head.seq / 2;
        let at = |seq: u64| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seq));
        let later = Find { from: at(half), event: Some("call".into()), ..Find::default() };
        // The time of a record is the number of the one before it.
        let is_later = |(seq, caller, _): &(u64, Option<u8>, _)| caller.is_some() && *seq > half;
        prop_assert_eq!(found(later), naive(&is_later));
        let mut ended: Vec<_> = naive(&|(_, caller, outcome)| caller.is_none() || outcome.is_some());
        ended.sort_unstable();
        let (entries, more) = live.poll(&Find::default()).unwrap();
        let mut seen = short(&entries);
        seen.sort_unstable();
        prop_assert_eq!(seen, ended);
        prop_assert!(!more);
    }
}

#[test]
fn values_of_arguments_are_neither_shown_nor_found() {
    let mut log = Log::new();
    let call = log.begin("ann");
    log.end(call, "ok");
    let entries = all(&log, &Find::default(), 10);
    let shown = serde_json::to_string(&entries).unwrap();
    assert!(shown.contains("\"hmac\":\"77\"") && !shown.contains("s3cret"), "{shown}");
    let by_value = Find { text: Some("s3cret".into()), ..Find::default() };
    assert!(all(&log, &by_value, 10).is_empty());
    let by_name = Find { text: Some("up__".into()), ..Find::default() };
    assert_eq!(all(&log, &by_name, 10).len(), 1);
    let entry = record(log.path(), 1, soon()).unwrap().unwrap();
    assert_eq!((entry.seq, entry.caller.as_deref()), (1, Some("ann")));
    assert_eq!(entry.outcome.as_deref(), Some("ok"), "a call is shown with its end");
    assert!(record(log.path(), 3, soon()).unwrap().is_none());
}

#[test]
fn a_search_ends_at_its_deadline_and_goes_on_from_there() {
    let mut log = Log::new();
    for _ in 0..100 {
        let call = log.begin("ann");
        log.end(call, "ok");
    }
    let found = find(log.path(), &Find::default(), 1000, None, Instant::now()).unwrap();
    assert!(!found.complete && found.entries.is_empty());
    let rest = find(
        log.path(),
        &Find::default(),
        1000,
        found.next,
        Instant::now() + Duration::from_secs(60),
    );
    assert_eq!(rest.unwrap().entries.len(), 100);
}

#[test]
fn several_types_are_found_together_and_what_was_looked_through_is_counted() {
    let mut log = Log::new();
    let call = log.begin("ann");
    log.end(call, "ok");
    for kind in ["prompt_approved", "prompt_rejected", "config_reloaded"] {
        log.note(&AuditEvent::new(kind));
    }
    log.rotate();
    log.note(&AuditEvent::new("prompt_withdrawn"));
    let decisions = Find { event: Some("decisions".into()), ..Find::default() };
    let found = find(log.path(), &decisions, 10, None, soon()).unwrap();
    let kinds: Vec<_> = found.entries.iter().map(|entry| entry.event.as_str()).collect();
    assert_eq!(kinds, ["prompt_withdrawn", "prompt_rejected", "prompt_approved"]);
    // The headers of both segments are no records.
    assert_eq!((found.looked_through, log.head.seq), (6, 6));
    assert_eq!(found.since.as_deref(), Some("1970-01-01T00:00:00.000000Z"));
}

#[test]
fn decisions_and_moves_are_found_by_the_public_name_of_their_prompt() {
    let mut log = Log::new();
    let call = log.begin("ann");
    log.end(call, "ok");
    for (kind, upstream) in
        [("prompt_approved", "up"), ("label_moved", "up"), ("prompt_approved", "other")]
    {
        log.note(&AuditEvent::new(kind).text("upstream", upstream).text("prompt", "p"));
    }
    let found = |event: &str, prompt: &str| {
        let event = Some(event.into());
        let wanted = Find { event, prompt: Some(prompt.to_owned()), ..Find::default() };
        all(&log, &wanted, 10).len()
    };
    assert_eq!([found("decisions", "up__p"), found("labels", "up__p")], [1, 1]);
    assert_eq!([found("changes", "up__p"), found("changes", "p")], [2, 3]);
    assert_eq!([found("call", "up__p"), found("call", "p"), found("call", "up__q")], [1, 1, 0]);
}

#[test]
fn a_record_is_found_in_a_segment_whose_file_has_a_coarser_time() {
    let mut log = Log::new();
    log.note(&AuditEvent::new("started"));
    let from = log.stamp().wall;
    log.note(&AuditEvent::new("stopped"));
    let file = OpenOptions::new().append(true).open(log.path().join(segment_name(1))).unwrap();
    file.set_modified(from - Duration::from_millis(4)).unwrap();
    let wanted = Find { from: Some(from), ..Find::default() };
    let found = find(log.path(), &wanted, 10, None, soon()).unwrap();
    assert_eq!(short(&found.entries).len(), 1, "{:?}", found.entries);
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn a_record_is_looked_for_where_its_number_can_be_and_until_the_deadline() {
    let mut log = Log::new();
    for _ in 0..3 {
        (0..3).for_each(|_| log.note(&AuditEvent::new("x")));
        log.rotate();
        // The first one stays plain.
        if log.segment == 3 {
            compress(log.path(), 2, &|| false).unwrap();
        }
    }
    let seqs: Vec<u64> = (1..=log.head.seq).collect();
    for seq in &seqs {
        assert!(record(log.path(), *seq, soon()).unwrap().is_some(), "{seq}");
    }
    // It is behind the first line, which is read in any case.
    let late = record(log.path(), seqs[2], Instant::now());
    assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
    // The oldest segment can be read no more, and is needed for its own records only.
    let oldest = log.path().join(segment_name(1));
    std::fs::remove_file(&oldest).unwrap();
    std::fs::create_dir(&oldest).unwrap();
    assert!(record(log.path(), u64::MAX, soon()).unwrap().is_none());
    assert!(record(log.path(), 1, soon()).is_err());
}

/// Lines of every kind that denies, as this version writes them.
#[test]
fn a_log_as_it_is_written_today_is_intact_and_its_denials_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let today = include_bytes!("../../../../tests/formats/audit-2.jsonl");
    std::fs::write(folder.path().join(segment_name(1)), today).unwrap();
    let keys = Some(Keys::new(&AuditKey::parse(&"A".repeat(43)).unwrap()));
    let anchors =
        crate::verify::TrustAnchors { keys: keys.map(std::sync::Arc::new), ..Default::default() };
    let report = crate::verify::verify(folder.path(), anchors).unwrap();
    assert!(report.mistakes.is_empty() && report.last == 6, "{:?}", report.mistakes);
    let denials = Find { outcome: Some(DENIED.to_owned()), ..Find::default() };
    let found = find(folder.path(), &denials, 10, None, soon()).unwrap();
    let rules: Vec<_> = found.entries.iter().map(|entry| entry.rule.as_deref()).collect();
    assert_eq!(rules, [None, Some("arguments.tone"), Some("access.rules.2")]);
    assert!(found.entries.iter().all(|entry| entry.members.contains_key("config")));
}
