//! Counting, and answers from memory.

use super::index::tests::{Call, Log};
use super::*;
use domain::method::Method;

fn used(prompt: Option<&str>, outcome: &'static str) -> Used {
    Used {
        prompt: prompt.map(Into::into),
        upstream: prompt.and_then(|_| UpstreamId::parse("up")),
        caller: Caller::anonymous(),
        endpoint: "/mcp".into(),
        outcome,
        duration: Duration::from_millis(1),
    }
}

fn report(usage: &GatewayUsage, by: Dimension, period: Duration, now: SystemTime) -> Report {
    let to = now + Duration::from_secs(1);
    let query = Query {
        by,
        from: now - period,
        to,
        filter: Filter::default(),
        limit: 10,
        sort: Sort::Uses,
    };
    usage.report_now(&query, now, Instant::now() + Duration::from_secs(60))
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_call_is_in_the_next_answer_and_lists_are_no_uses() {
    let usage = GatewayUsage::default();
    for (prompt, method, outcome) in [
        (Some("up__p"), Method::Get, "ok"),
        (Some("up__p"), Method::Get, "upstream_timeout"),
        (None, Method::Get, "unknown_prompt"),
        (None, Method::List, "ok"),
        (Some("up__p"), Method::Complete, "rate_limited"),
    ] {
        if Used::is_counted(method == Method::Get, outcome) {
            usage.count(used(prompt, outcome));
        }
    }
    let now = SystemTime::now();
    let by_prompt = report(&usage, Dimension::Prompt, MINUTE, now);
    assert_eq!(by_prompt.rows.len(), 1);
    let row = &by_prompt.rows[0];
    assert_eq!((row.key.as_str(), row.uses, row.failures, row.limited), ("up__p", 2, 1, 1));
    assert_eq!(row.upstream.as_deref(), Some("up"));
    let by_caller = report(&usage, Dimension::Caller, MINUTE, now);
    assert_eq!((by_caller.rows[0].uses, by_caller.rows[0].denied), (2, 1));
    let json = serde_json::to_value(&by_caller).unwrap();
    assert_eq!(json["fromIndex"], false);
    assert!(json["series"][0]["p95Ms"].is_number());
    let (used, is_partial) = usage.used_now(now - MINUTE, now, Instant::now() + MINUTE);
    assert_eq!(used, ["up__p".to_owned()].into());
    assert!(is_partial, "nobody knows what was before");
}

#[test]
fn calls_that_find_no_room_are_counted_as_such() {
    let usage = GatewayUsage::default();
    for _ in 0..BUFFER + 5 {
        usage.count(used(Some("up__p"), "ok"));
    }
    let report = report(&usage, Dimension::View, MINUTE, SystemTime::now());
    assert_eq!((report.rows[0].uses, report.uncounted), (BUFFER as u64, 5));
}

#[test]
fn a_gateway_that_was_restarted_knows_the_last_day() {
    let mut log = Log::new("i0");
    let now = query::at(20_800 * 86_400);
    for hours in [30, 20, 10] {
        let secs = secs(now) - hours * 3600;
        log.call(Call { secs, prompt: 0, caller: 0, outcome: "ok" });
    }
    let last = tail::last_seq(log.path()).unwrap();
    assert_eq!(last, 6);
    // It is running already, and counts this call itself.
    log.call(Call { secs: secs(now), prompt: 0, caller: 0, outcome: "ok" });
    let minutes = Mutex::new(Minutes::new(MEMORY, minute(now)));
    let usage = GatewayUsage { minutes, ..GatewayUsage::default() };
    usage.seed(log.path(), last, now);
    let report = report(&usage, Dimension::Prompt, Duration::from_secs(23 * 3600), now);
    assert_eq!((report.rows[0].uses, report.partial, report.from_index), (2, false, false));
    assert!(report.known_since < secs(now) - 22 * 3600, "the log is older than the period");
    assert_eq!(report.series.len(), 2);
}

#[test]
fn the_uses_of_a_week_are_told_by_day_from_the_index_and_a_day_of_them_from_memory() {
    let mut log = Log::new("i0");
    let now = query::at(20_800 * 86_400 + 15 * 3600);
    for (days, prompt) in [(7, 0), (6, 0), (6, 0), (1, 1), (0, 0), (0, 2)] {
        let secs = secs(now) - days * DAY - 3600;
        log.call(Call { secs, prompt, caller: 0, outcome: "ok" });
    }
    let until = Instant::now() + MINUTE;
    let names = ["u0__p0", "u1__p1", "u0__p4"].map(str::to_owned);
    let usage = GatewayUsage::read(None, Some(log.path())).unwrap();
    let daily = usage.daily_now(&names, now, until);
    assert_eq!(daily.of("u0__p0"), [2, 0, 0, 0, 0, 0, 1], "the eighth day is over");
    assert_eq!(daily.of("u1__p1"), [0, 0, 0, 0, 0, 1, 0]);
    assert_eq!((daily.prompts.len(), daily.is_partial), (2, false), "as many as are asked for");
    let minutes = Mutex::new(Minutes::new(MEMORY, minute(now)));
    let usage = GatewayUsage { minutes, ..GatewayUsage::default() };
    usage.seed(log.path(), tail::last_seq(log.path()).unwrap(), now);
    let daily = usage.daily_now(&names, now, until);
    assert_eq!((daily.of("u0__p0"), daily.is_partial), ([0, 0, 0, 0, 0, 0, 1], true));
}

#[test]
fn a_report_says_since_when_calls_are_known() {
    let mut log = Log::new("i0");
    let now = query::at(20_800 * 86_400 + 15 * 3600);
    log.call(Call { secs: secs(now) - 2 * DAY, prompt: 0, caller: 0, outcome: "ok" });
    let usage = GatewayUsage::read(None, Some(log.path())).unwrap();
    let week = report(&usage, Dimension::Prompt, MINUTE * 7 * 1440, now);
    assert_eq!((week.known_since, week.from_index), (20_798 * DAY, true));
    assert!(week.p95_ms.is_some_and(|ms| ms > 1.0), "of all calls");
    let empty = GatewayUsage::read(None, None).unwrap();
    let week = report(&empty, Dimension::Prompt, MINUTE * 7 * 1440, now);
    assert_eq!((week.known_since, week.p95_ms), (u64::MAX, None));
    let minutes = Mutex::new(Minutes::new(MEMORY, minute(now)));
    let begun = GatewayUsage { minutes, ..GatewayUsage::default() };
    let hour = report(&begun, Dimension::Prompt, MINUTE * 60, now);
    assert_eq!(hour.known_since, secs(now));
    // A log that has begun ten minutes ago has all calls of the hour: there were none before.
    let mut log = Log::new("i1");
    log.call(Call { secs: secs(now) - 600, prompt: 0, caller: 0, outcome: "ok" });
    begun.seed(log.path(), tail::last_seq(log.path()).unwrap(), now);
    let hour = report(&begun, Dimension::Prompt, MINUTE * 60, now);
    assert_eq!((hour.known_since, hour.partial), (secs(now) - 600, false));
}

#[test]
fn a_call_is_in_a_period_or_in_the_one_before() {
    let mut log = Log::new("i0");
    // 15:04:30.
    let now = query::at(20_800 * 86_400 + 15 * 3600 + 4 * 60 + 30);
    // Eight minutes ago in the hour before, eleven, and ninety.
    for ago in [8 * 60, 8 * 60, 11 * 60, 90 * 60] {
        log.call(Call { secs: secs(now) - ago, prompt: 0, caller: 0, outcome: "ok" });
    }
    let counts = |usage: &GatewayUsage, period: u64| {
        let report = report(usage, Dimension::Caller, MINUTE * u32::try_from(period).unwrap(), now);
        let row = report.rows.first();
        (row.map_or(0, |row| row.uses), row.map_or(0, |row| row.before), report.from_index)
    };
    let minutes = Mutex::new(Minutes::new(MEMORY, minute(now)));
    let usage = GatewayUsage::read(None, Some(log.path())).unwrap();
    let usage = GatewayUsage { minutes, ..usage };
    // By the hour, outwards; the hour in which the period begins is not in the one before, too.
    assert_eq!(counts(&usage, 10), (3, 1, true));
    assert_eq!(counts(&usage, 60), (3, 1, true));
    usage.read_minutes(log.path(), now).unwrap();
    assert_eq!(counts(&usage, 10), (2, 1, false));
    assert_eq!(counts(&usage, 60), (3, 1, false));
    assert_eq!(counts(&usage, 100), (4, 0, false));
}

/// `cargo test --release --lib a_count -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn a_count_costs_little() {
    let usage = GatewayUsage::default();
    let used = used(Some("up__p"), "ok");
    let (mut counting, mut draining) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..200 {
        let began = Instant::now();
        for _ in 0..BUFFER {
            usage.count(used.clone());
        }
        counting += began.elapsed();
        let began = Instant::now();
        usage.drain(SystemTime::now());
        draining += began.elapsed();
    }
    let calls = 200 * u32::try_from(BUFFER).unwrap();
    println!("count: {:?} a call; taken in: {:?} a call", counting / calls, draining / calls);
}
