//! The index against a naive count of the same log.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tempfile::TempDir;
use tokio::time::Instant;

use super::*;
use crate::segments::compressor::compress;
use crate::usage::query::{
    Dimension, Filter, Query, Report, Rounding, Row, Sort, Sums, UsedKind, at,
};

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

    pub(in crate::usage) fn record(&mut self, secs: u64, members: &str) {
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

    /// Adds a get of a prompt of `u0` by its name there.
    pub(in crate::usage) fn get(&mut self, raw: &str, call: Call) {
        self.calls += 1;
        let Call { secs, caller, .. } = call;
        self.record(
            secs,
            &format!(
                "\"event\":\"received\",\"call\":{},\"caller\":\"c{caller}\",\"endpoint\":\"/mcp\",\
                 \"method\":\"prompts/get\",\"name\":\"u0__{raw}\",\"upstream\":\"u0\",\"prompt\":\"{raw}\"",
                self.calls
            ),
        );
        self.end(self.calls, call);
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

fn report(index: &mut Index, query: &Query) -> Report {
    let range = (crate::usage::query::secs(query.from), crate::usage::query::secs(query.to));
    let mut sums = Sums::default();
    let until = Instant::now() + FOREVER;
    let step = index
        .snapshot()
        .unwrap()
        .collect(query, range, Rounding::Outwards, until, &mut sums)
        .unwrap();
    sums.report(&Sums::default(), query, step)
}

/// Uses and failures by key, over all time.
fn counts(index: &mut Index, by: Dimension, filter: &Filter) -> BTreeMap<String, (u64, u64)> {
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

fn check(index: &mut Index, calls: &[Call]) {
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

/// The files of an index that a crash leaves.
type Copy = BTreeMap<PathBuf, Vec<u8>>;

fn copy(path: &Path) -> Copy {
    let files = ["usage.db", "usage.db-wal"].map(|name| path.join(name));
    files.into_iter().filter_map(|file| Some((file.clone(), fs::read(file).ok()?))).collect()
}

fn restore(path: &Path, files: &Copy) {
    for file in fs::read_dir(path).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    files.iter().for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
}

/// The names of the databases in a folder that were set aside.
fn set_aside(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    names.filter(|name| name.starts_with("usage.db.") && !name.contains("-wal")).collect()
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
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 4),
    ) {
        let mut log = Log::new("i0");
        let folder = tempfile::tempdir().unwrap();
        let mut index = open(folder.path());
        before.iter().for_each(|call| log.call(*call));
        // One call is in flight when the place is written.
        let last = Call { secs: NOON + 9, prompt: 4, caller: 2, outcome: "ok" };
        let in_flight = log.begin(last);
        follow(&mut index, log.path());
        index.flush().unwrap();
        if rotates {
            log.rotate();
            compress(log.path(), 1, &|| false).unwrap();
        }
        log.end(in_flight, last);
        after.iter().for_each(|call| log.call(*call));
        if tears {
            log.append("{\"seq\":");
        }
        let all: Vec<_> = before.iter().chain(&after).chain([&last]).copied().collect();
        follow(&mut index, log.path());
        check(&mut index, &all);
        let files = copy(folder.path());
        drop(index);
        // The log of SQLite is only appended to, so a crash leaves some begin of it.
        let written = files[&folder.path().join("usage.db-wal")].len();
        for cut in cuts.iter().map(|cut| cut.index(written + 1)).chain([0, written]) {
            let mut files = files.clone();
            files.get_mut(&folder.path().join("usage.db-wal")).unwrap().truncate(cut);
            restore(folder.path(), &files);
            let mut index = open(folder.path());
            follow(&mut index, log.path());
            check(&mut index, &all);
            prop_assert!(set_aside(folder.path()).is_empty());
        }
        restore(folder.path(), &Copy::new());
        let mut rebuilt = open(folder.path());
        follow(&mut rebuilt, log.path());
        check(&mut rebuilt, &all);
        rebuilt.flush().unwrap();
        check(&mut rebuilt, &all);
        drop(rebuilt);
        let mut again = open(folder.path());
        follow(&mut again, log.path());
        check(&mut again, &all);
    }
}

fn one(secs: u64) -> Call {
    Call { secs, prompt: 0, caller: 0, outcome: "ok" }
}

#[test]
fn a_database_that_cannot_be_used_is_set_aside_and_built_anew() {
    let mut log = Log::new("i0");
    (0..50).for_each(|hour| log.call(one(NOON + hour * HOUR)));
    let calls: Vec<_> = (0..50).map(|hour| one(NOON + hour * HOUR)).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("usage.db");
    let mut index = open(folder.path());
    follow(&mut index, log.path());
    index.flush().unwrap();
    drop(index);
    let whole = fs::read(&file).unwrap();
    let other_version = || {
        let db = rusqlite::Connection::open(&file).unwrap();
        db.pragma_update(None, "user_version", 7).unwrap();
    };
    let pages_of_zeros = || {
        let mut bytes = whole.clone();
        bytes[8192..].fill(0);
        fs::write(&file, bytes).unwrap();
    };
    let no_database = || fs::write(&file, "no database at all".repeat(100)).unwrap();
    let damages: [(&str, &dyn Fn()); 3] = [
        ("usage.db.v7-", &other_version),
        ("usage.db.damaged-", &pages_of_zeros),
        ("usage.db.damaged-", &no_database),
    ];
    for (name, damage) in damages {
        fs::write(&file, &whole).unwrap();
        damage();
        let damaged = fs::read(&file).unwrap();
        let reader = Index::reader(Some(folder.path())).and_then(|mut reader| {
            let query = query(Dimension::Prompt, Filter::default(), (0, 2 * NOON));
            let (range, until) = ((0, 2 * NOON), Instant::now() + FOREVER);
            reader.snapshot()?.collect(
                &query,
                range,
                Rounding::Outwards,
                until,
                &mut Sums::default(),
            )
        });
        assert!(is_damage(&reader.unwrap_err()), "{name}");
        let mut index = open(folder.path());
        follow(&mut index, log.path());
        check(&mut index, &calls);
        let aside = set_aside(folder.path());
        assert_eq!(aside.len(), 1, "{aside:?}");
        assert!(aside[0].starts_with(name), "{aside:?}");
        assert_eq!(fs::read(folder.path().join(&aside[0])).unwrap(), damaged);
        drop(index);
        fs::remove_file(folder.path().join(&aside[0])).unwrap();
    }
}

#[test]
fn a_database_that_is_damaged_while_it_is_open_is_set_aside() {
    let mut log = Log::new("i0");
    let calls: Vec<_> = (0..50).map(|hour| one(NOON + hour * HOUR)).collect();
    calls.iter().for_each(|call| log.call(*call));
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    follow(&mut index, log.path());
    index.flush().unwrap();
    index.set_aside().unwrap();
    assert_eq!(set_aside(folder.path()).len(), 1);
    let mut index = open(folder.path());
    follow(&mut index, log.path());
    check(&mut index, &calls);
}

#[test]
fn the_views_say_what_was_counted() {
    let mut log = Log::new("i0");
    log.call(one(NOON));
    log.call(Call { outcome: "upstream_timeout", ..one(NOON + 1) });
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    follow(&mut index, log.path());
    index.flush().unwrap();
    let db = rusqlite::Connection::open(folder.path().join("usage.db")).unwrap();
    let first = |sql: &str| -> Vec<String> {
        let read = |row: &rusqlite::Row<'_>| (0..3).map(|column| row.get(column)).collect();
        db.query_row(sql, [], read).unwrap()
    };
    let by_day = first(
        "SELECT day, upstream, uses || ' ' || failures FROM usage_by_day WHERE kind = 'prompt'",
    );
    assert_eq!(by_day, ["2026-12-13", "u0", "2 1"]);
    let by_hour = first("SELECT hour, groups, last_use FROM usage_by_hour WHERE kind = 'caller'");
    assert_eq!(by_hour, ["2026-12-13 12:00", "[\"staff\",\"leads\"]", "2026-12-13 12:00:01"]);
    assert_eq!(
        first("SELECT caller, prompt, endpoint FROM usage_by_pair"),
        ["c0", "u0__p0", "/mcp"]
    );
    for (kind, name) in [("prompt", "u0__p0"), ("upstream", "u0"), ("caller", "c0"), ("all", "")] {
        let latency = first(&format!(
            "SELECT name, CAST(below_ms AS TEXT), CAST(calls AS TEXT) FROM latency_by_day \
             WHERE kind = '{kind}'"
        ));
        assert_eq!(latency, [name, "2.048", "2"]);
    }
}

#[test]
fn the_least_used_pairs_of_a_day_are_joined_once_it_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    let mut count = |secs: u64, prompt: &str, caller: &str| {
        let (prompt, upstream, caller) = (Some(prompt), Some("u"), Some(caller));
        let kind = crate::usage::counts::OutcomeKind::Used;
        let (endpoint, count, micros) = (Some("/mcp"), 1, Some(1));
        let seen =
            CountedCall { prompt, upstream, caller, groups: &[], endpoint, kind, count, micros };
        index.count(secs, &seen).unwrap();
        index.has_changed = true;
    };
    for pair in 0..12_000 {
        count(NOON, &format!("p{}", pair / 100), &format!("c{}", pair % 100));
    }
    count(NOON + 1, "p119", "c99");
    count(NOON + DAY, "p0", "c0");
    index.flush().unwrap();
    let pairs = |index: &Index| {
        let sql = "SELECT count(*) FROM pairs_by_day WHERE day = ?1";
        index
            .database
            .with(|db| db.query_row(sql, [NOON / DAY * DAY], |row| row.get::<_, u64>(0)))
            .unwrap()
    };
    assert_eq!(pairs(&index), 10_000_u64);
    let filter = |prompt: &str| Filter { prompt: Some(prompt.to_owned()), ..Filter::default() };
    let range = (NOON - DAY, NOON + DAY);
    let found = report(&mut index, &query(Dimension::Caller, filter("p119"), range));
    assert_eq!((found.rows[0].key.as_str(), found.rows[0].uses), ("c99", 2), "the most used stays");
    assert!(found.partial, "others are joined");
    let all = report(&mut index, &query(Dimension::Prompt, Filter::default(), range));
    assert_eq!((all.rows.len(), all.rows[119].uses, all.partial), (120, 100, false));
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
    check(&mut index, &calls);
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
    let files = || copy(folder.path());
    let before = files();
    let mut reader = Index::reader(Some(folder.path())).unwrap();
    follow(&mut reader, b.path());
    check(&mut reader, &[one(NOON), one(NOON + 1)]);
    assert_eq!(files(), before);
}

#[test]
fn what_is_written_while_a_reader_reads_is_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::new("i0");
    let mut index = open(folder.path());
    log.call(one(NOON));
    follow(&mut index, log.path());
    index.flush().unwrap();
    let mut reader = Index::reader(Some(folder.path())).unwrap();
    log.call(one(NOON + 1));
    follow(&mut reader, log.path());
    follow(&mut index, log.path());
    index.flush().unwrap();
    check(&mut reader, &[one(NOON), one(NOON + 1)]);
    check(&mut index, &[one(NOON), one(NOON + 1)]);
}

#[test]
fn an_index_at_rest_is_one_file_and_readers_leave_it_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::new("i0");
    log.call(one(NOON));
    let mut index = open(folder.path());
    follow(&mut index, log.path());
    index.close().unwrap();
    let names = || {
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["lock", "usage.db"]);
    let mut reader = Index::reader(Some(folder.path())).unwrap();
    check(&mut reader, &[one(NOON)]);
    drop(reader);
    assert_eq!(names(), ["lock", "usage.db"]);
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
    check(&mut index, &[one(NOON), one(NOON + 1)]);
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
    let rows = counts(&mut index, Dimension::Prompt, &Filter::default());
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
    check(&mut index, &[]);
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
    let days = |index: &Index, table: &str, time: &str| {
        let sql = format!("SELECT count(*), min({time}) FROM {table} WHERE kind = 0");
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        index.database.with(|db| db.query_row(&sql, [], read)).unwrap()
    };
    let today = now / DAY * DAY;
    assert_eq!(days(&index, "calls_by_day", "day"), (61_u64, today - 60 * DAY));
    assert_eq!(days(&index, "calls_by_hour", "hour").1, NOON + (99 - 31) * DAY);
    index.limit(FOREVER, 1);
    index.tidy(now).unwrap();
    assert_eq!(days(&index, "calls_by_day", "day"), (1, today));
    let old = report(&mut index, &query(Dimension::Prompt, Filter::default(), (0, today)));
    assert!(old.rows.is_empty());
    // Names that are still in use keep their meaning.
    let found = report(&mut index, &query(Dimension::Caller, Filter::default(), (today, now + 1)));
    assert_eq!((found.rows[0].key.as_str(), found.rows[0].uses), ("c0", 1));
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
    let mut index = open(folder.path());
    let range = (NOON - DAY, NOON + DAY);
    let found = report(&mut index, &query(Dimension::Prompt, Filter::default(), range));
    assert_eq!(found.rows[0].uses, 2);
}

#[test]
fn reading_its_own_file_is_a_use_of_a_skill_and_nothing_else() {
    let own = "\"name\":\"skill://up/a/SKILL.md\",\"upstream\":\"up\",\"prompt\":\"a\"";
    let part = |name: &str| {
        let skill = "\"upstream\":\"up\",\"prompt\":\"a\",\"skill\":\"skill://up/a/SKILL.md\"";
        format!("\"name\":\"skill://up/a{name}\",{skill}")
    };
    let mut log = Log::new("i0");
    for (method, members, outcome) in [
        ("resources/read", own.to_owned(), "ok"),
        // A prompt that stands for it.
        (
            "prompts/get",
            "\"name\":\"up__a\",\"served\":\"skill://up/a/SKILL.md\",\"upstream\":\"up\",\"prompt\":\"a\""
                .to_owned(),
            "upstream_timeout",
        ),
        ("resources/read", own.to_owned(), "unknown_resource"),
        ("resources/read", "\"name\":\"skill://up/none/SKILL.md\"".to_owned(), "unknown_resource"),
        ("resources/read", part("/limits.md"), "ok"),
        ("resources/read", part("/inner/SKILL.md"), "ok"),
        ("resources/read", "\"name\":\"skill://x/SKILL.md\",\"upstream\":\"rest\"".to_owned(), "ok"),
        ("resources/read", "\"name\":\"file:///x\"".to_owned(), "unknown_resource"),
        ("resources/directory/read", part(""), "ok"),
        ("skills/get", own.to_owned(), "ok"),
        ("skills/list", "\"endpoint\":\"/mcp\"".to_owned(), "ok"),
    ] {
        log.calls += 1;
        let call = log.calls;
        let received = format!(
            "\"event\":\"received\",\"call\":{call},\"caller\":\"c\",\"method\":\"{method}\",{members}"
        );
        log.record(NOON, &received);
        log.end(call, Call { outcome, ..one(NOON) });
    }
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    follow(&mut index, log.path());
    let range = (NOON - DAY, NOON + DAY);
    let mut rows = |by| report(&mut index, &query(by, Filter::default(), range)).rows;
    let skills = rows(Dimension::Prompt);
    assert_eq!(skills.len(), 1, "{skills:?}");
    let counts = |row: &Row| (row.uses, row.failures, row.denied);
    assert_eq!((skills[0].key.as_str(), counts(&skills[0])), ("skill://up/a/SKILL.md", (2, 1, 1)));
    assert_eq!(skills[0].kind, Some(UsedKind::Skill));
    let caller = &rows(Dimension::Caller)[0];
    assert_eq!((counts(caller), caller.kind), ((2, 1, 2), None));
}

#[test]
fn the_durations_of_the_most_used_names_are_kept_and_of_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    for number in 0..1_200 {
        let caller = format!("c{number}");
        let seen = CountedCall {
            prompt: Some("up__p"),
            upstream: Some("up"),
            caller: Some(&caller),
            groups: &[],
            endpoint: Some("/mcp"),
            kind: crate::usage::counts::OutcomeKind::Used,
            count: 1,
            micros: Some(4_000),
        };
        for _ in 0..=u8::from(number % 400 == 7) {
            index.count(NOON, &seen).unwrap();
        }
    }
    index.has_changed = true;
    index.flush().unwrap();
    let range = (NOON - 2 * DAY, NOON + 1);
    let rows = report(&mut index, &query(Dimension::Caller, Filter::default(), range)).rows;
    assert_eq!(rows.len(), 1_200, "their uses are all there");
    assert_eq!(rows.iter().filter(|row| row.p95_ms.is_some()).count(), 500);
    assert!(rows.iter().filter(|row| row.uses == 2).all(|row| row.p95_ms.is_some()));
}

/// The number of rows by minute, and the minute since which they are whole.
fn minutes(index: &Index) -> (u64, u64) {
    let sql = "SELECT (SELECT count(*) FROM calls_by_minute), since FROM minutes";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    index.database.with(|db| db.query_row(sql, [], read)).unwrap()
}

#[test]
fn minutes_are_kept_for_a_day_and_then_hours_answer() {
    let mut log = Log::new("i0");
    (0..50).for_each(|hour| log.call(one(NOON + hour * HOUR)));
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    follow(&mut index, log.path());
    index.flush().unwrap();
    let now = NOON + 49 * HOUR;
    assert_eq!(minutes(&index), (25, now + MINUTE - 25 * HOUR));
    let mut ask = |range| report(&mut index, &query(Dimension::Prompt, Filter::default(), range));
    let day = ask((now - DAY, now));
    assert_eq!((day.rows[0].uses, day.series[0].seconds), (24, 5 * MINUTE));
    let before = ask((now - 2 * DAY, now - DAY));
    assert_eq!((before.rows[0].uses, before.series[0].seconds), (24, HOUR));
}

#[test]
fn minutes_without_room_are_forgotten_the_oldest_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    for number in 0..210_000_u64 {
        let (prompt, caller) = (format!("p{}", number % 100), format!("c{}", number / 100 % 100));
        let seen = CountedCall {
            prompt: Some(&prompt),
            upstream: Some("u"),
            caller: Some(&caller),
            groups: &[],
            endpoint: Some("/mcp"),
            kind: crate::usage::counts::OutcomeKind::Used,
            count: 1,
            micros: Some(1),
        };
        index.count(NOON + number / 10_000 * MINUTE, &seen).unwrap();
        index.has_changed = true;
        if index.batch.is_full() {
            index.flush().unwrap();
        }
    }
    index.flush().unwrap();
    assert_eq!(minutes(&index), (200_000, NOON + MINUTE));
    let range = (NOON, NOON + 21 * MINUTE);
    let all = report(&mut index, &query(Dimension::Upstream, Filter::default(), range));
    assert_eq!((all.rows[0].uses, all.series[0].seconds), (210_000, HOUR), "the sums stay");
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
    let mut ask = |range| report(&mut index, &query(Dimension::Prompt, Filter::default(), range));
    let week = ask((NOON + 2 * HOUR, NOON + 27 * HOUR));
    assert_eq!((week.rows[0].uses, week.series.len(), week.series[0].seconds), (25, 25, HOUR));
    assert_eq!(week.rows[0].last, Some(at(NOON + 26 * HOUR)));
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
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        for file in ["usage.db", "usage.db-wal", "usage.db-shm"] {
            assert_eq!(mode(&path.join(file)), 0o600, "{file}");
        }
    }
    assert!(Index::reader(Some(&path)).is_ok());
    let _: SystemTime = at(0);
}

/// The shape of the measurements.
const PROMPTS: u64 = 200;
const CALLERS: u64 = 500;
const CALLS: u64 = 1_000_000;

/// A year of a million calls a day: `cargo test --release --lib a_year -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn a_year_is_answered_within_the_time_of_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = open(folder.path());
    let first = NOON / DAY;
    let mut random = 1_u64;
    let began = Instant::now();
    let newest = first + 364;
    for call in 0..=CALLS {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (prompt, caller) = ((random >> 33) % PROMPTS, (random >> 45) % CALLERS);
        let upstream = format!("upstream-{}", prompt % 20);
        let (prompt, caller) = (format!("{upstream}__prompt-{prompt}"), format!("caller-{caller}"));
        let seen = CountedCall {
            prompt: Some(&prompt),
            upstream: Some(&upstream),
            caller: Some(&caller),
            groups: &["staff".to_owned()],
            endpoint: Some("/mcp"),
            kind: crate::usage::counts::OutcomeKind::Used,
            count: 1,
            micros: Some(random >> 44),
        };
        // The last call is one of the next day, so that the day is over.
        index.count(newest * DAY + call * DAY / CALLS, &seen).unwrap();
        index.has_changed = true;
        if index.batch.is_full() || call == CALLS {
            index.flush().unwrap();
        }
    }
    println!("a call, counted and written: {:?}", began.elapsed() / CALLS as u32);
    let used = |index: &Index| index.database.with(|db| used_bytes(db)).unwrap();
    println!("a day with hours: {} bytes", used(&index));
    // The other days are copies.
    for day in 1..365 {
        let back = day * DAY;
        let copy = |table: &str, time: &str, before: &str, columns: &str| {
            format!(
                "INSERT INTO {table} SELECT {before} {time} - {back}, {columns} FROM {table} \
                 WHERE {time} >= {} AND {time} < {};",
                newest * DAY,
                (newest + 1) * DAY
            )
        };
        let sums = "uses, failures, denied, limited, micros, max(0, last - 86400)";
        let calls = format!("name, upstream, groups, {sums}");
        let pairs = format!("caller, prompt, upstream, endpoint, {sums}");
        let mut sql = copy("calls_by_day", "day", "kind,", &calls)
            + &copy("pairs_by_day", "day", "", &pairs)
            + &copy("durations_by_day", "day", "kind,", "name, step, calls");
        if day <= HOURS_KEPT {
            sql += &copy("calls_by_hour", "hour", "kind,", &calls);
            sql += &copy("durations_by_hour", "hour", "kind,", "name, step, calls");
        }
        index.database.change(|db| db.execute_batch(&sql)).unwrap();
    }
    println!("a year: {} bytes", used(&index));
    drop(index);
    println!("the file: {} bytes", fs::metadata(super::path(folder.path())).unwrap().len());
    let began = Instant::now();
    drop(open(folder.path()));
    println!("open to write, with its check: {:?}", began.elapsed());
    let mut index = Index::reader(Some(folder.path())).unwrap();
    let year = (first * DAY, (first + 365) * DAY);
    let prompt = "upstream-7__prompt-7".to_owned();
    let by = [Dimension::Prompt, Dimension::Caller, Dimension::Group, Dimension::Upstream];
    for (round, by) in by.into_iter().cycle().take(8).enumerate() {
        let is_cold = round < 4 && drop_page_cache();
        let began = Instant::now();
        let report = report(&mut index, &query(by, Filter::default(), year));
        let cache = if is_cold { "cold" } else { "warm" };
        println!("a year by {by:?}, {cache}: {:?}, {} rows", began.elapsed(), report.rows.len());
    }
    for (by, filter) in [
        (Dimension::Prompt, Filter { caller: Some("caller-7".into()), ..Filter::default() }),
        (Dimension::Caller, Filter { prompt: Some(prompt), ..Filter::default() }),
        (Dimension::Group, Filter { endpoint: Some("/mcp".into()), ..Filter::default() }),
    ] {
        let began = Instant::now();
        let report = report(&mut index, &query(by, filter.clone(), year));
        println!(
            "a year by {by:?} of {filter:?}: {:?}, {} rows",
            began.elapsed(),
            report.rows.len()
        );
    }
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
    let mut random = 1_u64;
    for call in 0..200_000_u64 {
        let number = call + 1;
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (prompt, caller) = ((random >> 33) % PROMPTS, (random >> 45) % CALLERS);
        let mac = "0".repeat(64);
        log.seq += 1;
        text += &log.text(NOON - 6 * HOUR + call * DAY / 1_000_000, &format!(
            "\"event\":\"received\",\"call\":{number},\"caller\":\"caller-{caller}\",\"proof\":\"api_key\",\"groups\":[\"staff\"],\"endpoint\":\"/mcp\",\"method\":\"prompts/get\",\"name\":\"up__prompt-{prompt}\",\"digest_key\":\"9c1f20aa\",\"arguments\":{{\"code\":{{\"bytes\":311,\"hmac\":\"{mac}\"}}}},\"upstream\":\"up\",\"prompt\":\"prompt-{prompt}\",\"definition\":\"sha256:{mac}\",\"decision\":\"allowed\",\"mac\":\"{mac}\"}}\n"
        ));
        log.seq += 1;
        text += &log.text(NOON - 6 * HOUR + call * DAY / 1_000_000, &format!(
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
    let bytes = index.database.with(|db| used_bytes(db)).unwrap();
    println!("bytes: {bytes}");
}
