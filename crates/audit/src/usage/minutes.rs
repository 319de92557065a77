//! Counters by minute, for a day, in bounded memory. Pure: the clock is an argument.

use std::collections::{HashMap, VecDeque};

use super::counts::{CountedCall, Counts, Histogram};
use super::daily::DailyUses;
use super::names::{NONE, Names, OTHERS};
use super::query::{Dimension, Filter, SumPart, Sums};

/// The minutes that are kept.
pub(super) const KEPT: u64 = 24 * 60;

/// The counters of the last day.
pub(super) struct Minutes {
    names: Names,
    /// The groups of callers, as last seen.
    groups: HashMap<u32, Box<[u32]>>,
    /// In the order of their numbers, with gaps where nothing was counted.
    minutes: VecDeque<Minute>,
    /// The first minute that may have been counted.
    since: u64,
    /// The minute in which the log, or without one the process, has begun: before it there were no
    /// calls.
    begun: u64,
    /// The first minute whose details are whole.
    details_since: u64,
    /// Memory of the minutes, in bytes, approximately.
    bytes: usize,
    /// The limit of all memory, in bytes.
    limit: usize,
}

/// The counts of one minute.
struct Minute {
    /// Minutes since the Unix epoch.
    number: u64,
    total: MinuteSlot,
    upstreams: HashMap<u32, MinuteSlot>,
    /// Empty once the details were dropped for lack of room, as `upstreams` is then.
    rows: HashMap<RowKey, MinuteSlot>,
}

#[derive(Debug, Default)]
struct MinuteSlot {
    counts: Counts,
    histogram: Histogram,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct RowKey {
    prompt: u32,
    upstream: u32,
    caller: u32,
    endpoint: u32,
}

/// Memory of a row, in bytes: its table is between half full and full, and its histogram has few
/// steps.
const ROW: usize = 2 * (size_of::<RowKey>() + size_of::<MinuteSlot>()) + 64;

/// Memory of a minute, or of an upstream in it, in bytes: its sums and some steps of its histogram.
const SLOT: usize = 2 * size_of::<MinuteSlot>() + 128;

/// Memory of a caller with groups, in bytes, without its groups.
const GROUPED: usize = 64;

impl Minutes {
    /// Creates counters that begin at this minute and take at most `limit` bytes, approximately.
    pub(super) fn new(limit: usize, now: u64) -> Self {
        Self {
            names: Names::new(limit / 4),
            groups: HashMap::new(),
            minutes: VecDeque::new(),
            since: now,
            begun: now,
            details_since: 0,
            bytes: 0,
            limit,
        }
    }

    /// Returns the first minute whose calls, and the details of them, are known.
    pub(super) fn known_since(&self) -> u64 {
        self.since.max(self.details_since)
    }

    /// Returns the first minute from which on it is known that there were no other calls.
    pub(super) fn begun(&self) -> u64 {
        self.known_since().max(self.begun)
    }

    /// Notes that calls are known from this minute on: they were read from the audit log.
    pub(super) fn begin(&mut self, minute: u64) {
        self.since = self.since.min(minute);
    }

    /// Notes the minute of the first record that was read from the audit log.
    pub(super) fn note_record(&mut self, minute: u64) {
        self.begun = self.begun.min(minute);
    }

    /// Counts a call in a minute since the Unix epoch. A clock that was set back by more than a day
    /// begins anew.
    pub(super) fn add(&mut self, minute: u64, seen: &CountedCall<'_>) {
        let newest = self.minutes.back().map_or(minute, |newest| newest.number);
        if minute + KEPT <= newest {
            self.clear(minute);
        }
        self.since = self.since.min(minute);
        self.expire(newest.max(minute));
        let key = self.key(seen);
        let at = self.position(minute);
        let slots = {
            let minute = &mut self.minutes[at];
            let before = minute.upstreams.len();
            minute.total.add(seen);
            if key.upstream != NONE && minute.number >= self.details_since {
                minute.upstreams.entry(key.upstream).or_default().add(seen);
            }
            minute.upstreams.len() - before
        };
        self.bytes += slots * SLOT;
        if minute >= self.details_since {
            self.add_row(at, key, seen);
        }
        while self.size() > self.limit && self.drop_oldest_details() {}
    }

    fn add_row(&mut self, at: usize, key: RowKey, seen: &CountedCall<'_>) {
        let newest = self.minutes.back().map_or(0, |newest| newest.number);
        let has_older = self.minutes.iter().any(|m| m.number < newest && m.has_details());
        let is_full = !has_older && self.size() + 2 * (ROW + SLOT) > self.limit;
        let rows = &mut self.minutes[at].rows;
        let before = rows.len();
        let key = if is_full && !rows.contains_key(&key) { RowKey::OTHERS } else { key };
        rows.entry(key).or_default().add(seen);
        self.bytes += (rows.len() - before) * ROW;
    }

    /// Returns the memory in use, in bytes, approximately.
    pub(super) fn size(&self) -> usize {
        self.bytes + self.names.bytes() + self.groups.len() * GROUPED
    }

    /// Forgets minutes that are a day older than `now`.
    fn expire(&mut self, now: u64) {
        let first = (now + 1).saturating_sub(KEPT);
        self.since = self.since.max(first);
        let mut has_expired = false;
        while self.minutes.front().is_some_and(|minute| minute.number < first) {
            if let Some(minute) = self.minutes.pop_front() {
                self.bytes -= minute.bytes();
                has_expired = true;
            }
        }
        if has_expired && self.names.is_nearly_full() {
            self.compact();
        }
    }

    fn clear(&mut self, minute: u64) {
        *self = Self::new(self.limit, minute);
    }

    /// Forgets the details of the oldest minute that has any, unless it is the newest; its sums
    /// stay.
    fn drop_oldest_details(&mut self) -> bool {
        let last = self.minutes.len().saturating_sub(1);
        let older = self.minutes.iter_mut().take(last);
        let Some(oldest) = older.into_iter().find(|minute| minute.has_details()) else {
            return false;
        };
        self.bytes -= oldest.rows.len() * ROW + oldest.upstreams.len() * SLOT;
        (oldest.rows, oldest.upstreams) = (HashMap::new(), HashMap::new());
        self.details_since = self.details_since.max(oldest.number + 1);
        true
    }

    /// Gives new numbers to the names that are still in use, so that those of a day ago take no
    /// room.
    fn compact(&mut self) {
        let before = std::mem::replace(&mut self.names, Names::new(self.limit / 4));
        let groups = std::mem::take(&mut self.groups);
        let names = &mut self.names;
        let mut renewed = |number: u32| match number {
            NONE | OTHERS => number,
            number => names.number(before.name(number)),
        };
        for minute in &mut self.minutes {
            let rows = std::mem::take(&mut minute.rows);
            let rows = rows.into_iter().map(|(key, slot)| (key.map(&mut renewed), slot));
            minute.rows = HashMap::new();
            for (key, slot) in rows {
                minute.rows.entry(key).or_default().merge(&slot);
            }
            let upstreams = std::mem::take(&mut minute.upstreams);
            for (upstream, slot) in upstreams {
                minute.upstreams.entry(renewed(upstream)).or_default().merge(&slot);
            }
        }
        for (caller, of) in groups {
            let caller = match before.name(caller) {
                name if names.find(name).is_some() => names.number(name),
                _ => continue,
            };
            let of = of.iter().map(|group| names.number(before.name(*group))).collect();
            self.groups.insert(caller, of);
        }
        self.bytes = self.minutes.iter().map(Minute::bytes).sum();
    }

    fn key(&mut self, seen: &CountedCall<'_>) -> RowKey {
        let caller = self.names.optional(seen.caller);
        if caller > OTHERS && self.has_other_groups(caller, seen.groups) {
            let groups = seen.groups.iter().map(|group| self.names.number(group)).collect();
            self.groups.insert(caller, groups);
        }
        RowKey {
            prompt: self.names.optional(seen.prompt),
            upstream: self.names.optional(seen.upstream),
            caller,
            endpoint: self.names.optional(seen.endpoint),
        }
    }

    fn has_other_groups(&self, caller: u32, groups: &[String]) -> bool {
        let known = self.groups.get(&caller).map_or(&[][..], |known| known);
        known.len() != groups.len()
            || known.iter().zip(groups).any(|(number, group)| self.names.name(*number) != group)
    }

    /// Returns the position of a minute, which is added if there is none.
    fn position(&mut self, number: u64) -> usize {
        match self.minutes.binary_search_by_key(&number, |minute| minute.number) {
            Ok(at) => at,
            Err(at) => {
                self.minutes.insert(at, Minute::new(number));
                self.bytes += SLOT;
                at
            }
        }
    }

    /// Adds the counts of `from..to`, in minutes since the Unix epoch; points take `step` minutes.
    pub(super) fn collect(
        &self,
        by: Dimension,
        (from, to): (u64, u64),
        filter: &Filter,
        step: u64,
        sums: &mut Sums,
    ) {
        let Some(wanted) = self.wanted(filter) else {
            return;
        };
        let mut rows: HashMap<u32, (SumPart<'_>, Histogram)> = HashMap::new();
        let minutes = self.minutes.iter().filter(|m| (from..to).contains(&m.number));
        for minute in minutes {
            let start = minute.number / step * step * 60;
            let last = minute.number * 60;
            match wanted.slot(minute) {
                MinuteSource::Slot(slot) => {
                    sums.add_point(start, &slot.counts, Some(&slot.histogram));
                }
                MinuteSource::Rows => {}
                MinuteSource::Nothing => continue,
            }
            for (key, row) in minute.rows.iter().filter(|(key, _)| wanted.admits(key)) {
                let MinuteSlot { counts, histogram } = row;
                if wanted.needs_rows() {
                    sums.add_point(start, counts, Some(histogram));
                }
                self.each_key(by, *key, |number| {
                    let (part, latency) = rows.entry(number).or_default();
                    part.counts.merge(counts);
                    latency.merge(histogram);
                    if key.upstream != NONE {
                        part.upstream = Some(self.names.name(key.upstream));
                    }
                    if counts.uses > 0 {
                        part.last = part.last.max(last);
                    }
                });
            }
        }
        for (number, (part, histogram)) in rows {
            let upstream = part.upstream.filter(|_| by == Dimension::Prompt);
            let histogram = Some(&histogram);
            sums.add(self.names.name(number), SumPart { upstream, histogram, ..part });
        }
    }

    /// Adds the uses of prompts on the days of the week that begins at `first`, in seconds since
    /// the Unix epoch.
    pub(super) fn daily(&self, prompts: &[String], first: u64, daily: &mut DailyUses) {
        let number = |name: &String| self.names.find(name);
        let wanted: HashMap<u32, &String> =
            prompts.iter().filter_map(|name| Some((number(name)?, name))).collect();
        for minute in &self.minutes {
            let Some(since) = (minute.number * 60).checked_sub(first) else { continue };
            let day = usize::try_from(since / (KEPT * 60)).unwrap_or(usize::MAX);
            for (key, row) in &minute.rows {
                if let Some(name) = wanted.get(&key.prompt) {
                    daily.add(name, day, row.counts.uses);
                }
            }
        }
    }

    /// Calls `each` with the keys that a row counts for; a row without a name counts for none.
    fn each_key(&self, by: Dimension, key: RowKey, mut each: impl FnMut(u32)) {
        let number = match by {
            Dimension::Prompt => key.prompt,
            Dimension::Upstream => key.upstream,
            Dimension::Caller => key.caller,
            Dimension::View => key.endpoint,
            Dimension::Group => {
                let groups = self.groups.get(&key.caller);
                return groups.into_iter().flatten().for_each(|group| each(*group));
            }
        };
        if number != NONE {
            each(number);
        }
    }

    /// Returns the numbers of a filter; `None` if a name in it was never seen.
    fn wanted(&self, filter: &Filter) -> Option<RowFilter> {
        let number = |name: &Option<String>| match name {
            Some(name) => Some(Some(self.names.find(name)?)),
            None => Some(None),
        };
        Some(RowFilter {
            prompt: number(&filter.prompt)?,
            upstream: number(&filter.upstream)?,
            caller: number(&filter.caller)?,
            endpoint: number(&filter.endpoint)?,
        })
    }
}

/// A filter in numbers.
struct RowFilter {
    prompt: Option<u32>,
    upstream: Option<u32>,
    caller: Option<u32>,
    endpoint: Option<u32>,
}

/// Where the point of a minute comes from.
enum MinuteSource<'a> {
    Slot(&'a MinuteSlot),
    Rows,
    Nothing,
}

impl RowFilter {
    fn admits(&self, key: &RowKey) -> bool {
        let is = |wanted: Option<u32>, number| wanted.is_none_or(|wanted| wanted == number);
        is(self.prompt, key.prompt)
            && is(self.upstream, key.upstream)
            && is(self.caller, key.caller)
            && is(self.endpoint, key.endpoint)
    }

    /// Whether the filter can be applied to rows only.
    fn needs_rows(&self) -> bool {
        self.prompt.is_some() || self.caller.is_some() || self.endpoint.is_some()
    }

    fn slot<'a>(&self, minute: &'a Minute) -> MinuteSource<'a> {
        match self.upstream {
            _ if self.needs_rows() => MinuteSource::Rows,
            None => MinuteSource::Slot(&minute.total),
            Some(upstream) => {
                minute.upstreams.get(&upstream).map_or(MinuteSource::Nothing, MinuteSource::Slot)
            }
        }
    }
}

impl RowKey {
    const OTHERS: Self =
        Self { prompt: OTHERS, upstream: OTHERS, caller: OTHERS, endpoint: OTHERS };

    fn map(self, mut change: impl FnMut(u32) -> u32) -> Self {
        let Self { prompt, upstream, caller, endpoint } = self;
        Self {
            prompt: change(prompt),
            upstream: change(upstream),
            caller: change(caller),
            endpoint: change(endpoint),
        }
    }
}

impl Minute {
    fn new(number: u64) -> Self {
        let (upstreams, rows) = (HashMap::new(), HashMap::new());
        Self { number, total: MinuteSlot::default(), upstreams, rows }
    }

    fn has_details(&self) -> bool {
        !self.rows.is_empty() || !self.upstreams.is_empty()
    }

    fn bytes(&self) -> usize {
        SLOT + self.upstreams.len() * SLOT + self.rows.len() * ROW
    }
}

impl MinuteSlot {
    fn add(&mut self, seen: &CountedCall<'_>) {
        self.counts.add(seen);
        if let Some(micros) = seen.use_micros() {
            self.histogram.add(micros);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.counts.merge(&other.counts);
        self.histogram.merge(&other.histogram);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;
    use crate::usage::counts::OutcomeKind;
    use crate::usage::query::{Query, Report, Sort};

    const NOW: u64 = 30_000_000;

    fn seen<'a>(
        prompt: &'a str,
        caller: &'a str,
        groups: &'a [String],
        kind: OutcomeKind,
    ) -> CountedCall<'a> {
        let (upstream, endpoint) = (Some("up"), Some("/mcp"));
        let (prompt, caller) = (Some(prompt), Some(caller));
        CountedCall {
            prompt,
            upstream,
            caller,
            groups,
            endpoint,
            kind,
            count: 1,
            micros: Some(1000),
        }
    }

    fn report(minutes: &Minutes, by: Dimension, filter: &Filter) -> Report {
        let (from, to) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
        let query =
            Query { by, from, to, filter: filter.clone(), limit: usize::MAX, sort: Sort::Uses };
        let mut sums = Sums::default();
        minutes.collect(by, (0, u64::MAX / 60), filter, 1, &mut sums);
        sums.report(&Sums::default(), &query, 60)
    }

    fn uses(minutes: &Minutes, by: Dimension, filter: &Filter) -> BTreeMap<String, u64> {
        let rows = report(minutes, by, filter).rows;
        rows.into_iter().map(|row| (row.key, row.uses)).collect()
    }

    #[test]
    fn a_caller_counts_in_each_of_its_groups_as_last_seen() {
        let mut minutes = Minutes::new(1 << 20, NOW);
        let groups = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        minutes.add(NOW, &seen("p", "ann", &groups(&["staff"]), OutcomeKind::Used));
        minutes.add(NOW, &seen("p", "ann", &groups(&["leads", "staff"]), OutcomeKind::Used));
        minutes.add(NOW, &seen("p", "bob", &[], OutcomeKind::Used));
        let by_group = uses(&minutes, Dimension::Group, &Filter::default());
        assert_eq!(by_group, [("leads".into(), 2), ("staff".into(), 2)].into());
        let only = Filter { caller: Some("bob".into()), ..Filter::default() };
        assert_eq!(uses(&minutes, Dimension::Prompt, &only), [("p".into(), 1)].into());
        let nobody = Filter { caller: Some("eve".into()), ..Filter::default() };
        assert!(report(&minutes, Dimension::Prompt, &nobody).series.is_empty());
        for by in [Dimension::Upstream, Dimension::Prompt, Dimension::Caller, Dimension::Group] {
            let rows = report(&minutes, by, &Filter::default()).rows;
            assert!((rows[0].p50_ms.unwrap() - 1.0).abs() < 0.2, "{by:?}");
        }
        let of_bob = report(&minutes, Dimension::Prompt, &only);
        assert!(of_bob.rows[0].p95_ms.is_some() && of_bob.series[0].p95_ms.is_some());
    }

    #[test]
    fn a_refusal_has_no_part_in_the_latency_of_its_caller() {
        let mut minutes = Minutes::new(1 << 20, NOW);
        minutes.add(NOW, &seen("p", "ann", &[], OutcomeKind::Denied));
        assert_eq!(report(&minutes, Dimension::Caller, &Filter::default()).rows[0].p95_ms, None);
    }

    #[test]
    fn memory_is_bounded_whatever_callers_do() {
        let limit = 256 << 10;
        let mut minutes = Minutes::new(limit, NOW);
        let mut sent = 0;
        for minute in 0..30 {
            for number in 0..1_000 {
                // At first many pairs, then many names.
                let (prompt, caller) = match minute {
                    0..20 => (format!("p{}", number % 40), format!("c{}", number / 40)),
                    _ => ("p".to_owned(), format!("caller-{minute}-{number}")),
                };
                minutes.add(NOW + minute, &seen(&prompt, &caller, &[], OutcomeKind::Used));
                sent += 1;
                assert!(minutes.size() <= limit, "{} {minute} {number}", minutes.size());
            }
        }
        let all = report(&minutes, Dimension::Caller, &Filter::default());
        let total: u64 = all.series.iter().map(|point| point.uses).sum();
        assert_eq!(total, sent, "the sums stay");
        assert!(all.partial, "some names are joined");
        assert!(minutes.known_since() > NOW, "the details do not");
        // A day later all of it is forgotten, and there is room for new names.
        for minute in 0..3 {
            let seen = seen("later", "new", &[], OutcomeKind::Used);
            minutes.add(NOW + 2 * KEPT + minute, &seen);
        }
        let later = uses(&minutes, Dimension::Caller, &Filter::default());
        assert_eq!(later, [("new".into(), 3)].into());
    }

    proptest! {
        #[test]
        fn sums_equal_a_naive_count(
            calls in prop::collection::vec((0..3 * KEPT, 0..4_u8, 0..4_u8, any::<bool>()), 1..200),
        ) {
            let mut minutes = Minutes::new(16 << 20, NOW);
            let mut model: Vec<(u64, String, String, bool)> = Vec::new();
            let mut newest = 0;
            for (minute, prompt, caller, fails) in calls {
                let minute = NOW + minute;
                let (prompt, caller) = (format!("p{prompt}"), format!("c{caller}"));
                let kind = if fails { OutcomeKind::Failed } else { OutcomeKind::Used };
                minutes.add(minute, &seen(&prompt, &caller, &[], kind));
                if minute + KEPT <= newest {
                    model.clear();
                    newest = minute;
                }
                newest = newest.max(minute);
                model.push((minute, prompt, caller, fails));
                model.retain(|(minute, ..)| minute + KEPT > newest);
            }
            let mut by_prompt = BTreeMap::new();
            let mut of_caller = BTreeMap::new();
            let mut failures = 0;
            for (_, prompt, caller, fails) in &model {
                *by_prompt.entry(prompt.clone()).or_insert(0) += 1;
                if caller == "c1" {
                    *of_caller.entry(prompt.clone()).or_insert(0) += 1;
                }
                failures += u64::from(*fails);
            }
            prop_assert_eq!(uses(&minutes, Dimension::Prompt, &Filter::default()), by_prompt);
            let filter = Filter { caller: Some("c1".into()), ..Filter::default() };
            prop_assert_eq!(uses(&minutes, Dimension::Prompt, &filter), of_caller);
            let all = report(&minutes, Dimension::View, &Filter::default());
            let points: u64 = all.series.iter().map(|point| point.failures).sum();
            prop_assert_eq!(points, failures);
        }
    }
}
