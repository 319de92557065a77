//! Answers from the index, by minute, hour and day.

use super::index::tests::{Call, Log};
use super::*;

fn report(usage: &GatewayUsage, by: Dimension, period: Duration, now: SystemTime) -> Report {
    filtered(usage, by, Filter::default(), period, now)
}

fn filtered(
    usage: &GatewayUsage,
    by: Dimension,
    filter: Filter,
    period: Duration,
    now: SystemTime,
) -> Report {
    let to = now + Duration::from_secs(1);
    let query = Query { by, from: now - period, to, filter, limit: 10, sort: Sort::Uses };
    usage.report_now(&query, Instant::now() + Duration::from_secs(60))
}

const MINUTE: Duration = Duration::from_secs(60);

/// 15:04:30 of a day in 2026.
fn now() -> SystemTime {
    query::at(20_800 * DAY + 15 * 3600 + 4 * 60 + 30)
}

fn call(log: &mut Log, ago: u64, prompt: u8, outcome: &'static str) {
    log.call(Call { secs: secs(now()) - ago, prompt, caller: 0, outcome });
}

#[test]
fn without_an_index_nothing_is_known() {
    let usage = GatewayUsage::default();
    let hour = report(&usage, Dimension::Prompt, MINUTE * 60, now());
    assert_eq!((hour.rows.len(), hour.partial, hour.known_since), (0, true, u64::MAX));
    let until = Instant::now() + MINUTE;
    assert_eq!(usage.used_now(now() - MINUTE, now(), until), (HashSet::new(), true));
    assert!(usage.daily_now(&["up__p".to_owned()], now(), until).is_partial);
}

#[test]
fn what_is_recorded_is_in_the_next_answer() {
    let folder = tempfile::tempdir().unwrap();
    let config = config::Usage {
        path: Some(folder.path().join("usage")),
        keep: Duration::from_secs(400 * DAY),
        size: 1 << 30,
    };
    let mut log = Log::new("i0");
    call(&mut log, 20, 0, "ok");
    let mut follower = Follower::open(&config).unwrap().unwrap();
    while !follower.step(Some(log.path().to_owned()), now()).unwrap() {}
    let history = History { follower: Some(follower), ..History::default() };
    let usage = GatewayUsage { history: Mutex::new(history), ..GatewayUsage::default() };
    call(&mut log, 10, 0, "upstream_timeout");
    let hour = report(&usage, Dimension::Prompt, MINUTE * 60, now());
    assert_eq!((hour.rows[0].uses, hour.rows[0].failures, hour.partial), (2, 1, false));
    let json = serde_json::to_value(&hour).unwrap();
    assert!(json["series"][0]["p95Ms"].is_number());
    assert_eq!(hour.rows[0].last, Some(now() - Duration::from_secs(10)));
}

#[test]
fn a_day_is_answered_by_minute_with_any_filter() {
    let mut log = Log::new("i0");
    for (ago, prompt, caller) in [(600, 0, 0), (590, 0, 1), (60, 1, 1), (60, 3, 1)] {
        log.call(Call { secs: secs(now()) - ago, prompt, caller, outcome: "ok" });
    }
    log.call(Call { secs: secs(now()) - 30, prompt: 0, caller: 0, outcome: "unknown_prompt" });
    let usage = GatewayUsage::read(None, Some(log.path())).unwrap();
    for (by, rows) in [
        (Dimension::Prompt, &[("u0__p0", 2), ("u1__p1", 1), ("u1__p3", 1)][..]),
        (Dimension::Upstream, &[("u0", 2), ("u1", 2)]),
        (Dimension::Caller, &[("c1", 3), ("c0", 1)]),
        (Dimension::Group, &[("leads", 1), ("staff", 1)]),
        (Dimension::View, &[("/mcp", 4)]),
    ] {
        let hour = report(&usage, by, MINUTE * 60, now());
        let counts: Vec<_> = hour.rows.iter().map(|row| (row.key.as_str(), row.uses)).collect();
        assert_eq!(counts, rows, "{by:?}");
        assert!(hour.rows.iter().all(|row| row.p95_ms.is_some()), "{by:?}");
        assert_eq!(hour.rows.iter().map(|row| row.denied).max(), Some(1), "{by:?}");
        let lengths: Vec<_> = hour.series.iter().map(|point| point.seconds).collect();
        assert_eq!(lengths, [60, 60, 60], "{by:?}");
    }
    let of_caller = Filter { caller: Some("c1".into()), ..Filter::default() };
    let rows = filtered(&usage, Dimension::Upstream, of_caller, MINUTE * 60, now()).rows;
    assert_eq!((rows[0].key.as_str(), rows[0].uses, rows[0].p95_ms.is_some()), ("u1", 2, true));
    let never_seen = Filter { caller: Some("eve".into()), ..Filter::default() };
    let nothing = filtered(&usage, Dimension::Prompt, never_seen, MINUTE * 60, now());
    assert!(nothing.series.is_empty() && nothing.rows.is_empty());
    let day = report(&usage, Dimension::Prompt, MINUTE * 60 * 23, now());
    assert_eq!((day.rows.len(), day.series[0].seconds), (3, 300));
}

#[test]
fn the_uses_of_a_week_are_shown_by_day() {
    let mut log = Log::new("i0");
    for (days, prompt) in [(7, 0), (6, 0), (6, 0), (1, 1), (0, 0), (0, 2)] {
        call(&mut log, days * DAY + 3600, prompt, "ok");
    }
    let names = ["u0__p0", "u1__p1", "u0__p4", "u0__p0"].map(str::to_owned);
    let usage = GatewayUsage::read(None, Some(log.path())).unwrap();
    let daily = usage.daily_now(&names, now(), Instant::now() + MINUTE);
    assert_eq!(daily.of("u0__p0"), [2, 0, 0, 0, 0, 0, 1], "the eighth day is over");
    assert_eq!(daily.of("u1__p1"), [0, 0, 0, 0, 0, 1, 0]);
    assert_eq!((daily.prompts.len(), daily.is_partial), (2, false), "as many as are asked for");
}

#[test]
fn a_prompt_is_used_as_often_as_its_versions_together() {
    let mut log = Log::new("i0");
    for (name, caller, outcome) in [
        ("r", 0, "ok"),
        ("r@candidate", 1, "ok"),
        ("r@candidate", 1, "upstream_timeout"),
        ("r@2", 0, "ok"),
        ("rest", 0, "ok"),
        ("only@3", 0, "ok"),
    ] {
        log.get(name, Call { secs: secs(now()) - 60, prompt: 0, caller, outcome });
    }
    let usage = GatewayUsage::read(None, Some(log.path())).unwrap();
    let rows = |rows: &[Row]| -> Vec<_> {
        rows.iter().map(|row| (row.key.clone(), row.uses, row.failures)).collect()
    };
    let row = |key: &str, uses, failures| (key.to_owned(), uses, failures);
    let of = |prompt: &str| Filter { prompt: Some(prompt.to_owned()), ..Filter::default() };
    for period in [MINUTE * 60, MINUTE * 60 * 24 * 7, MINUTE * 60 * 24 * 30] {
        let all = report(&usage, Dimension::Prompt, period, now());
        let expected = [row("u0__r", 4, 1), row("u0__only", 1, 0), row("u0__rest", 1, 0)];
        assert_eq!(rows(&all.rows), expected);
        let versions = [row("u0__r@candidate", 2, 1), row("u0__r", 1, 0), row("u0__r@2", 1, 0)];
        assert_eq!(rows(&all.rows[0].versions), versions);
        assert!(all.rows[0].versions.iter().all(|version| version.p95_ms.is_some()), "{period:?}");
        assert_eq!(rows(&all.rows[1].versions), [row("u0__only@3", 1, 0)]);
        assert!(all.rows[2].versions.is_empty());
        let series = |report: &Report| report.series.iter().map(|point| point.uses).sum::<u64>();
        for (filter, total, expected) in [
            (of("u0__r"), 4, &[row("c0", 2, 0), row("c1", 2, 1)][..]),
            (of("u0__r@2"), 1, &[row("c0", 1, 0)]),
            (Filter { name: Some("u0__r".into()), ..Filter::default() }, 1, &[row("c0", 1, 0)]),
        ] {
            let callers = filtered(&usage, Dimension::Caller, filter, period, now());
            assert_eq!((series(&callers), &*rows(&callers.rows)), (total, expected));
        }
        let own = filtered(&usage, Dimension::Prompt, of("u0__r"), period, now());
        assert_eq!((rows(&own.rows), own.rows[0].versions.len()), (vec![row("u0__r", 4, 1)], 3));
        let version = filtered(&usage, Dimension::Prompt, of("u0__r@2"), period, now());
        assert_eq!(rows(&version.rows), [row("u0__r@2", 1, 0)]);
        assert!(version.rows[0].versions.is_empty());
    }
    let recent = usage.report_now(&RecentUses::query("u0__r", now()), Instant::now() + MINUTE);
    assert_eq!(RecentUses::of(recent).to_string(), "4 in the last 7 days: c0 2, c1 2");
    let names = ["u0__r", "u0__only", "u0__r@candidate"].map(str::to_owned);
    let daily = usage.daily_now(&names, now(), Instant::now() + MINUTE);
    let uses = names.map(|name| daily.of(&name).iter().sum::<u64>());
    assert_eq!(uses, [4, 1, 2]);
    let (used, _) = usage.used_now(now() - MINUTE * 60, now(), Instant::now() + MINUTE);
    assert!(used.contains("u0__only") && used.contains("u0__only@3"), "{used:?}");
}

#[test]
fn a_separator_is_not_the_mark_of_a_version() {
    let mut sums = Sums::default();
    for name in ["up@review", "up@explain", "skill://up/a@b/SKILL.md"] {
        let counts = counts::Counts { uses: 1, ..Default::default() };
        sums.add(name, query::SumPart { counts, upstream: Some("up"), ..Default::default() });
    }
    let (from, to) = (SystemTime::UNIX_EPOCH, now());
    let by = Dimension::Prompt;
    let query = Query { by, from, to, filter: Filter::default(), limit: 10, sort: Sort::Uses };
    let rows = sums.report(&Sums::default(), &query, 60).rows;
    let keys: Vec<_> = rows.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(keys, ["skill://up/a@b/SKILL.md", "up@explain", "up@review"]);
}

#[test]
fn a_report_says_since_when_calls_are_known() {
    let mut log = Log::new("i0");
    call(&mut log, 2 * DAY, 0, "ok");
    call(&mut log, 60, 0, "ok");
    let usage = GatewayUsage::read(None, Some(log.path())).unwrap();
    let week = report(&usage, Dimension::Prompt, MINUTE * 7 * 1440, now());
    assert_eq!((week.known_since, week.partial), (20_798 * DAY, false));
    assert!(week.p95_ms.is_some_and(|ms| ms > 1.0), "of all calls");
    let empty = GatewayUsage::read(None, None).unwrap();
    let week = report(&empty, Dimension::Prompt, MINUTE * 7 * 1440, now());
    assert_eq!((week.known_since, week.p95_ms), (u64::MAX, None));
    // A log that has begun ten minutes ago has all calls of the hour: there were none before.
    let mut log = Log::new("i1");
    call(&mut log, 600, 0, "ok");
    let begun = GatewayUsage::read(None, Some(log.path())).unwrap();
    let hour = report(&begun, Dimension::Prompt, MINUTE * 60, now());
    assert_eq!((hour.known_since, hour.partial), (secs(now()) - 630, false));
}

#[test]
fn a_call_is_in_a_period_or_in_the_one_before() {
    let mut log = Log::new("i0");
    for ago in [90 * 60, 11 * 60, 8 * 60, 8 * 60] {
        call(&mut log, ago, 0, "ok");
    }
    let usage = GatewayUsage::read(None, Some(log.path())).unwrap();
    let counts = |minutes: u32| {
        let report = report(&usage, Dimension::Caller, MINUTE * minutes, now());
        let row = report.rows.first();
        (row.map_or(0, |row| row.uses), row.map_or(0, |row| row.before))
    };
    assert_eq!(counts(10), (2, 1));
    assert_eq!(counts(60), (3, 1));
    assert_eq!(counts(100), (4, 0));
}

#[test]
fn the_last_use_is_the_same_by_each_key_and_in_each_period() {
    let mut log = Log::new("i0");
    let earlier = 3 * DAY + 55;
    call(&mut log, earlier, 2, "ok");
    for ago in [7300, 430, 97] {
        call(&mut log, ago, 0, "ok");
    }
    call(&mut log, 20, 0, "unknown_prompt");
    let usage = GatewayUsage::read(None, Some(log.path())).unwrap();
    let of_prompt = Filter { prompt: Some("u0__p0".into()), ..Filter::default() };
    for by in [Dimension::Prompt, Dimension::Upstream, Dimension::Caller, Dimension::View] {
        for minutes in [10, 60 * 3, 60 * 24 * 7, 60 * 24 * 30] {
            for filter in [Filter::default(), of_prompt.clone()] {
                let report = filtered(&usage, by, filter, MINUTE * minutes, now());
                let last = report.rows[0].last;
                assert_eq!(last, Some(now() - Duration::from_secs(97)), "{by:?} {minutes}");
            }
        }
        let of_prompt = Filter { prompt: Some("u0__p2".into()), ..Filter::default() };
        let last = filtered(&usage, by, of_prompt, MINUTE * 60 * 24 * 7, now()).rows[0].last;
        assert_eq!(last, Some(now() - Duration::from_secs(earlier)), "{by:?}");
    }
}

/// Earlier releases counted the gateway's own calls in limits.
#[test]
fn the_gateway_is_no_caller_that_a_limit_refused() {
    let mut log = Log::new("i0");
    for caller in ["promptgate", "c1"] {
        let refused = "\"event\":\"refused\",\"reason\":\"rate_limited\",\"count\":52";
        log.record(secs(now()) - 9, &format!("{refused},\"caller\":\"{caller}\""));
    }
    let usage = GatewayUsage::read(None, Some(log.path())).unwrap();
    let rows = report(&usage, Dimension::Caller, MINUTE * 10, now()).rows;
    let rows: Vec<_> = rows.iter().map(|row| (row.key.as_str(), row.limited)).collect();
    assert_eq!(rows, [("c1", 52)]);
}

/// A database that is written takes as long as its disk, so no task of the runtime may wait for it.
#[test]
fn a_reload_does_not_wait_for_the_index() {
    let usage = GatewayUsage::default();
    let _busy = usage.history.locked();
    usage.configure(None);
}
