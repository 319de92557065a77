//! The index against a naive count of the same log.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::usage::query::{Dimension, Filter, Report, Sort, at};

/// Noon of a day in 2026.
const NOON: u64 = 20_800 * DAY + 12 * HOUR;

const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// A log as the gateway writes it; only its authentication codes are none.
pub(in crate::usage) struct Log {
    folder: TempDir,
    segment: u64,
    seq: u64,
    calls: u64,
    instance: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::usage) struct Call {
    pub secs: u64,
    pub prompt: u8,
    pub caller: u8,
    pub outcome: &'static str,
}

impl Log {
    pub(in crate::usage) fn new(instance: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Self { folder, segment: 0, seq: 0, calls: 0, instance };
        log.rotate();
        log
    }

    pub(in crate::usage) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn rotate(&mut self) {
        self.segment += 1;
        let Self { segment, seq, instance, .. } = self;
        let zeros = "0".repeat(64);
        let header = format!(
            "{{\"segment\":{segment},\"time\":\"2026-01-01T00:00:00.000000Z\",\"instance\":\"{instance}\",\"after\":{seq},\
             \"after_mac\":\"{zeros}\",\"previous\":\"\",\"previous_bytes\":0"
        );
        self.line(&header);
    }

    fn line(&self, text: &str) {
        let mac = "0".repeat(64);
        self.append(&format!("{text},\"mac\":\"{mac}\"}}\n"));
    }

    fn append(&self, text: &str) {
        let file = self.path().join(format!("audit-{:08}.jsonl", self.segment));
        let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn record(&mut self, secs: u64, members: &str) {
        self.seq += 1;
        let text = self.text(secs, members);
        self.line(&text);
    }

    fn text(&self, secs: u64, members: &str) -> String {
        let time = humantime::format_rfc3339_micros(at(secs));
        let Self { seq, instance, .. } = self;
        format!(
            "{{\"seq\":{seq},\"time\":\"{time}\",\"up_us\":1,\"instance\":\"{instance}\",\"boot\":\"b0\",{members}"
        )
    }

    fn begin(&mut self, call: Call) -> u64 {
        self.calls += 1;
        let Call { secs, prompt, caller, .. } = call;
        let groups = if caller == 0 { ",\"groups\":[\"staff\",\"leads\"]" } else { "" };
        self.record(
            secs,
            &format!(
                "\"event\":\"received\",\"call\":{},\"caller\":\"c{caller}\"{groups},\"endpoint\":\"/mcp\",\
                 \"method\":\"prompts/get\",\"name\":\"u{}__p{prompt}\",\"upstream\":\"u{}\",\"prompt\":\"p{prompt}\"",
                self.calls,
                prompt % 2,
                prompt % 2,
            ),
        );
        self.calls
    }

    fn end(&mut self, number: u64, call: Call) {
        let Call { secs, outcome, .. } = call;
        self.record(
            secs,
            &format!(
                "\"event\":\"completed\",\"call\":{number},\"duration_us\":2000,\"outcome\":\"{outcome}\""
            ),
        );
    }

    pub(in crate::usage) fn call(&mut self, call: Call) {
        let number = self.begin(call);
        self.end(number, call);
    }
}

fn query(by: Dimension, filter: Filter, (from, to): (u64, u64)) -> Query {
    Query { by, from: at(from), to: at(to), filter, limit: usize::MAX, sort: Sort::Uses }
}

fn report(index: &Index, query: &Query) -> Report {
    let range = (crate::usage::query::secs(query.from), crate::usage::query::secs(query.to));
    let step = Snapshot::step(query, range);
    let mut sums = Sums::default();
    let until = Instant::now() + FOREVER;
    index.snapshot().collect(query, range, step, until, &mut sums).unwrap();
    sums.report(&Sums::default(), query, step)
}

/// Uses and failures by key, over all time.
fn counts(index: &Index, by: Dimension, filter: &Filter) -> BTreeMap<String, (u64, u64)> {
    let rows = report(index, &query(by, filter.clone(), (0, 2 * NOON))).rows;
    rows.into_iter().map(|row| (row.key, (row.uses, row.failures))).collect()
}

fn naive(calls: &[Call], key: impl Fn(&Call) -> Vec<String>) -> BTreeMap<String, (u64, u64)> {
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for call in calls {
        for key in key(call) {
            let (uses, failures) = counts.entry(key).or_default();
            *uses += u64::from(call.outcome != "unknown_prompt");
            *failures += u64::from(call.outcome == "upstream_timeout");
        }
    }
    counts
}

fn check(index: &Index, calls: &[Call]) {
    let all = Filter::default();
    let prompt = |call: &Call| vec![format!("u{}__p{}", call.prompt % 2, call.prompt)];
    assert_eq!(counts(index, Dimension::Prompt, &all), naive(calls, prompt));
    let upstream = |call: &Call| vec![format!("u{}", call.prompt % 2)];
    assert_eq!(counts(index, Dimension::Upstream, &all), naive(calls, upstream));
    let caller = |call: &Call| vec![format!("c{}", call.caller)];
    assert_eq!(counts(index, Dimension::Caller, &all), naive(calls, caller));
    let groups = |call: &Call| match call.caller {
        0 => vec!["staff".to_owned(), "leads".to_owned()],
        _ => Vec::new(),
    };
    assert_eq!(counts(index, Dimension::Group, &all), naive(calls, groups));
    let of: Vec<_> = calls.iter().filter(|call| call.caller == 1).copied().collect();
    let filter = Filter { caller: Some("c1".into()), ..Filter::default() };
    assert_eq!(counts(index, Dimension::Prompt, &filter), naive(&of, prompt));
    let of: Vec<_> = calls.iter().filter(|call| call.prompt % 2 == 1).copied().collect();
    let filter = Filter { upstream: Some("u1".into()), ..Filter::default() };
    assert_eq!(counts(index, Dimension::Caller, &filter), naive(&of, caller));
}

fn open(path: &Path) -> Index {
    Index::open(path, FOREVER, u64::MAX).unwrap()
}

fn follow(index: &mut Index, log: &Path) {
    let mut tail = index.tail(log).unwrap();
    while !index.follow(&mut tail, 1000).unwrap() {}
}

type Copy = BTreeMap<PathBuf, Vec<u8>>;

fn copy(path: &Path) -> Copy {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| !file.ends_with("lock"));
    files.map(|file| (file.clone(), fs::read(&file).unwrap())).collect()
}

fn restore(path: &Path, files: &Copy) {
    copy(path).keys().for_each(|file| fs::remove_file(file).unwrap());
    files.iter().for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let outcome = prop_oneof![Just("ok"), Just("upstream_timeout"), Just("unknown_prompt")];
    let call = (0..4 * DAY, 0..5_u8, 0..3_u8, outcome);
    let call = call.prop_map(|(secs, prompt, caller, outcome)| Call {
        secs: NOON + secs,
        prompt,
        caller,
        outcome,
    });
    prop::collection::vec(call, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_history_is_counted_once_wherever_a_crash_interrupts_the_writing(
        before in calls(),
        after in calls(),
        rotates: bool,
        tears: bool,
    ) {
        let mut log = Log::new("i0");
        let folder = tempfile::tempdir().unwrap();
        let mut index = open(folder.path());
        before.iter().for_each(|call| log.call(*call));
        // One call is in flight when the position is written.
        let last = Call { secs: NOON + 9, prompt: 4, caller: 2, outcome: "ok" };
        let in_flight = log.begin(last);
        follow(&mut index, log.path());
        index.flush().unwrap();
        let old = copy(folder.path());
        if rotates {
            log.rotate();
        }
        log.end(in_flight, last);
        after.iter().for_each(|call| log.call(*call));
        if tears {
            log.append("{\"seq\":");
        }
        let all: Vec<_> = before.iter().chain(&after).chain([&last]).copied().collect();
        follow(&mut index, log.path());
        check(&index, &all);
        index.flush().unwrap();
        drop(index);
        let new = copy(folder.path());
        let is_position = |file: &Path| file.ends_with("position");
        // Days are written first, in their order, and the position last.
        let (position, days): (Vec<_>, Vec<_>) =
            new.keys().partition(|file| is_position(file));
        let order: Vec<_> = days.into_iter().chain(position).collect();
        for written in 0..=order.len() {
            let mut files = old.clone();
            for file in &order[..written] {
                files.insert((*file).clone(), new[*file].clone());
            }
            restore(folder.path(), &files);
            let mut index = open(folder.path());
            follow(&mut index, log.path());
            check(&index, &all);
        }
        restore(folder.path(), &Copy::new());
        let mut rebuilt = open(folder.path());
        follow(&mut rebuilt, log.path());
        check(&rebuilt, &all);
        rebuilt.flush().unwrap();
        check(&rebuilt, &all);
        drop(rebuilt);
        let mut again = open(folder.path());
        follow(&mut again, log.path());
        check(&again, &all);
    }

    #[test]
    fn a_damaged_file_is_never_believed(calls in calls(), at: prop::sample::Index, bit in 0..8_u8) {
        let mut log = Log::new("i0");
        calls.iter().for_each(|call| log.call(*call));
        let folder = tempfile::tempdir().unwrap();
        let mut index = open(folder.path());
        follow(&mut index, log.path());
        index.flush().unwrap();
        drop(index);
        for (file, mut bytes) in copy(folder.path()) {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            fs::write(&file, &bytes).unwrap();
            let mut index = open(folder.path());
            follow(&mut index, log.path());
            check(&index, &calls);
            index.flush().unwrap();
        }
    }
}

fn one(secs: u64) -> Call {
    Call { secs, prompt: 0, caller: 0, outcome: "ok" }
}

#[test]
fn two_logs_in_turn_are_each_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (Log::new("aa"), Log::new("bb"));
    let mut index = open(folder.path());
    let mut calls = Vec::new();
    for turn in 0..4 {
        let log = if turn % 2 == 0 { &mut a } else { &mut b };
        log.call(one(NOON + turn));
        calls.push(one(NOON + turn));
        // A change of `audit.path` does not flush the index.
        follow(&mut index, log.path());
    }
    check(&index, &calls);
}

#[test]
fn a_reader_writes_nothing_whatever_log_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (Log::new("aa"), Log::new("bb"));
    let mut index = open(folder.path());
    a.call(one(NOON));
    follow(&mut index, a.path());
    index.flush().unwrap();
    b.call(one(NOON + 1));
    let files = || {
        let entries = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries.map(|path| (fs::read(&path).unwrap(), path)).collect();
        files.sort();
        files
    };
    let before = files();
    let mut reader = Index::reader(Some(folder.path())).unwrap();
    follow(&mut reader, b.path());
    check(&reader, &[one(NOON), one(NOON + 1)]);
    assert_eq!(files(), before);
}

#[test]
fn lines_that_are_written_again_are_counted_once() {
    let mut log = Log::new("i0");
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    log.call(one(NOON));
    let file = log.path().join("audit-00000001.jsonl");
    let lines = fs::read_to_string(&file).unwrap();
    let again: Vec<_> = lines.lines().skip(1).collect();
    follow(&mut index, log.path());
    log.rotate();
    log.append(&(again.join("\n") + "\n"));
    log.call(one(NOON + 1));
    follow(&mut index, log.path());
    check(&index, &[one(NOON), one(NOON + 1)]);
}

#[test]
fn calls_of_a_process_that_was_killed_count_as_failures() {
    let mut log = Log::new("i0");
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    log.begin(one(NOON));
    let started = log.text(NOON + 5, "\"event\":\"started\"").replace("\"b0\"", "\"b1\"");
    let started =
        started.replace(&format!("\"seq\":{}", log.seq), &format!("\"seq\":{}", log.seq + 1));
    log.line(&started);
    follow(&mut index, log.path());
    let rows = counts(&index, Dimension::Prompt, &Filter::default());
    assert_eq!(rows["u0__p0"], (1, 1));
}

#[test]
fn probes_of_the_gateway_are_no_uses() {
    let mut log = Log::new("i0");
    log.call(one(NOON));
    let file = log.path().join("audit-00000001.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"caller\":\"c0\"", "\"caller\":\"promptgate\"")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    follow(&mut index, log.path());
    check(&index, &[]);
}

#[test]
fn days_beyond_the_limits_are_removed_and_old_days_lose_their_hours() {
    let mut log = Log::new("i0");
    let folder = tempfile::tempdir().unwrap();
    for day in 0..100 {
        log.call(one(NOON + day * DAY));
    }
    let now = NOON + 99 * DAY;
    let mut index = Index::open(folder.path(), Duration::from_secs(60 * DAY), u64::MAX).unwrap();
    follow(&mut index, log.path());
    index.flush().unwrap();
    index.tidy(now).unwrap();
    let days = index.files.as_ref().unwrap().days().unwrap();
    assert_eq!((days.len(), days[0].0), (61, (now / DAY) - 60));
    let hours = |number: u64| {
        let bytes = index.files.as_ref().unwrap().day(number).unwrap().unwrap();
        DayFile::read(&bytes).unwrap().has_hours()
    };
    assert!(!hours(now / DAY - 32) && hours(now / DAY - 31));
    let total: u64 = days[60..].iter().map(|(_, bytes)| bytes).sum();
    index.limit(FOREVER, total);
    index.tidy(now).unwrap();
    assert_eq!(index.files.as_ref().unwrap().days().unwrap().len(), 1);
}

#[test]
fn what_is_counted_of_an_old_day_stays_when_the_day_is_tidied() {
    let mut log = Log::new("i0");
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    log.call(one(NOON));
    follow(&mut index, log.path());
    index.flush().unwrap();
    log.call(one(NOON + 1));
    follow(&mut index, log.path());
    index.tidy(NOON + 40 * DAY).unwrap();
    index.flush().unwrap();
    drop(index);
    let index = open(folder.path());
    let range = (NOON - DAY, NOON + DAY);
    let found = report(&index, &query(Dimension::Prompt, Filter::default(), range));
    assert_eq!(found.rows[0].uses, 2);
}

#[test]
fn a_week_is_answered_by_hour_and_more_by_day() {
    let mut log = Log::new("i0");
    for hour in 0..48 {
        log.call(one(NOON + hour * HOUR));
    }
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    follow(&mut index, log.path());
    let ask = |range| report(&index, &query(Dimension::Prompt, Filter::default(), range));
    let week = ask((NOON + 2 * HOUR, NOON + 5 * HOUR));
    assert_eq!((week.rows[0].uses, week.series.len(), week.series[0].seconds), (3, 3, HOUR));
    assert_eq!(week.rows[0].last, Some(at(NOON + 4 * HOUR)));
    assert_eq!(week.rows[0].upstream.as_deref(), Some("u0"));
    let month = ask((NOON - 20 * DAY, NOON + 20 * DAY));
    assert_eq!((month.rows[0].uses, month.series.len(), month.series[0].seconds), (48, 3, DAY));
    assert_eq!(month.rows[0].last, Some(at(NOON + 47 * HOUR)));
}

#[test]
fn one_process_writes_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage");
    let _index = open(&path);
    let second = Index::open(&path, FOREVER, u64::MAX).err().unwrap();
    assert_eq!(second.kind(), io::ErrorKind::WouldBlock);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }
    assert!(Index::reader(Some(&path)).is_ok());
    let _: SystemTime = at(0);
}

/// A year of a million calls a day: `cargo test --release --lib a_year -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn a_year_is_answered_within_the_time_of_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::open(folder.path()).unwrap();
    let began = Instant::now();
    let mut template = Day::new(0);
    let mut random = 1_u64;
    for call in 0..1_000_000_u64 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (prompt, caller) = ((random >> 33) % 2_000, (random >> 45) % 200);
        let upstream = format!("upstream-{}", prompt % 20);
        let (prompt, caller) = (format!("{upstream}__prompt-{prompt}"), format!("caller-{caller}"));
        template.add(
            call * DAY / 1_000_000,
            &crate::usage::counts::Seen {
                prompt: Some(&prompt),
                upstream: Some(&upstream),
                caller: Some(&caller),
                groups: &["staff".to_owned()],
                endpoint: Some("/mcp"),
                kind: crate::usage::counts::Kind::Used,
                count: 1,
                micros: Some(random >> 44),
            },
        );
    }
    println!("count of a call in a day: {:?}", began.elapsed() / 1_000_000);
    let first = NOON / DAY;
    for day in 0..365 {
        template.number = first + day;
        if day == 365 - 31 {
            println!("a day without hours: {} bytes", template.write().len());
        }
        if day == 0 {
            println!("a day with hours: {} bytes", template.write().len());
            template.drop_hours();
        }
        files.write_day(first + day, &template.write()).unwrap();
    }
    drop(files);
    let began = Instant::now();
    let index = Index::reader(Some(folder.path())).unwrap();
    println!("open to read: {:?}", began.elapsed());
    let year = (first * DAY, (first + 365) * DAY);
    let by = [Dimension::Prompt, Dimension::Caller, Dimension::Group, Dimension::Upstream];
    for (round, by) in by.into_iter().cycle().take(8).enumerate() {
        let is_cold = round < 4 && drop_page_cache();
        let began = Instant::now();
        let report = report(&index, &query(by, Filter::default(), year));
        let cache = if is_cold { "cold" } else { "warm" };
        println!("a year by {by:?}, {cache}: {:?}, {} rows", began.elapsed(), report.rows.len());
    }
    let began = Instant::now();
    let filter = Filter { caller: Some("caller-7".into()), ..Filter::default() };
    let report = report(&index, &query(Dimension::Prompt, filter, year));
    println!("a year of one caller: {:?}, {} rows", began.elapsed(), report.rows.len());
}

/// Drops the page cache of the system. Returns whether it may: on Linux, as root.
fn drop_page_cache() -> bool {
    let synced = std::process::Command::new("sync").status();
    synced.is_ok_and(|status| status.success())
        && fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

/// `cargo test --release --lib the_follower -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn the_follower_keeps_up() {
    let mut log = Log::new("i0");
    let mut text = String::new();
    for call in 0..200_000_u64 {
        let number = call + 1;
        let (caller, prompt) = (call % 200, call % 2_000);
        let mac = "0".repeat(64);
        log.seq += 1;
        text += &log.text(NOON + call / 100, &format!(
            "\"event\":\"received\",\"call\":{number},\"caller\":\"caller-{caller}\",\"proof\":\"api_key\",\"groups\":[\"staff\"],\"endpoint\":\"/mcp\",\"method\":\"prompts/get\",\"name\":\"up__prompt-{prompt}\",\"digest_key\":\"9c1f20aa\",\"arguments\":{{\"code\":{{\"bytes\":311,\"hmac\":\"{mac}\"}}}},\"upstream\":\"up\",\"prompt\":\"prompt-{prompt}\",\"definition\":\"sha256:{mac}\",\"decision\":\"allowed\",\"mac\":\"{mac}\"}}\n"
        ));
        log.seq += 1;
        text += &log.text(NOON + call / 100, &format!(
            "\"event\":\"completed\",\"call\":{number},\"duration_us\":4288,\"outcome\":\"ok\",\"result_bytes\":912,\"result\":\"sha256:{mac}\",\"mac\":\"{mac}\"}}\n"
        ));
    }
    log.append(&text);
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    let began = Instant::now();
    let mut tail = index.tail(log.path()).unwrap();
    while !index.follow(&mut tail, 1 << 20).unwrap() {}
    println!("follow: {:?} a record, {} bytes in all", began.elapsed() / 400_000, text.len());
    let began = Instant::now();
    index.flush().unwrap();
    println!("flush: {:?}", began.elapsed());
}
