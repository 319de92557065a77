//! The counters of one UTC day, bounded in memory, and their file.
//!
//! A file is a header in JSON and three sections: sums of the day by key, sums by hour and key, and
//! pairs. Each has a digest of its own, so that a question about a year reads the first section of
//! each day only.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::codec::{Reader, write_number, write_text};
use crate::usage::counts::{Counts, Histogram, Seen};
use crate::usage::names::{NONE, Names, OTHERS};
use crate::usage::query::{Dimension, Filter, Part, Sums};
use base::seal;
use base::seal::hex::hex;

/// Seconds of a day.
pub(super) const DAY: u64 = 86_400;

/// Seconds of an hour.
pub(super) const HOUR: u64 = 3_600;

/// The counters of one day.
#[derive(Debug)]
pub(super) struct Day {
    /// Days since the Unix epoch.
    pub number: u64,
    /// The last record of each log that is counted, by the id of the log.
    pub through: BTreeMap<String, u64>,
    names: Names,
    hours: BTreeMap<u8, Slot>,
    /// By prompt, upstream, caller and endpoint.
    tables: [HashMap<u32, Entry>; 4],
    pairs: HashMap<Pair, Counts>,
}

/// All calls of one hour.
#[derive(Debug, Default)]
struct Slot {
    counts: Counts,
    histogram: Histogram,
}

/// The calls of one key.
#[derive(Debug, Default)]
struct Entry {
    counts: Counts,
    /// The last use, in seconds since midnight plus one; 0 if there was none.
    last: u32,
    /// Of upstreams only.
    histogram: Histogram,
    /// The upstream of a prompt, or the groups of a caller.
    related: Vec<u32>,
    /// In ascending order; empty if they were dropped.
    hours: Vec<(u8, Counts)>,
}

/// Prompt, caller and endpoint.
type Pair = [u32; 3];

const PROMPTS: usize = 0;
const UPSTREAMS: usize = 1;
const CALLERS: usize = 2;
const ENDPOINTS: usize = 3;

/// Memory of the names of a day, in bytes: 50,000 of them.
const NAMES: usize = 8 << 20;

/// Keys of one table; more are joined.
const MAX_KEYS: usize = 20_000;

/// Pairs in a file: the most used of a day; the rest is joined.
const MAX_PAIRS: usize = 10_000;

/// Pairs in memory, from which the most used are chosen.
const MAX_OPEN_PAIRS: usize = 4 * MAX_PAIRS;

/// Logs whose last record is known: more than share a folder.
const MAX_LOGS: usize = 64;

impl Day {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            through: BTreeMap::new(),
            names: Names::new(NAMES),
            hours: BTreeMap::new(),
            tables: Default::default(),
            pairs: HashMap::new(),
        }
    }

    /// Notes that the records of a log are counted up to this one.
    pub(super) fn count_through(&mut self, instance: &str, seq: u64) {
        if self.through.len() >= MAX_LOGS && !self.through.contains_key(instance) {
            self.through.pop_first();
        }
        self.through.insert(instance.to_owned(), seq);
    }

    /// Counts a call at a time in seconds since midnight.
    pub(super) fn add(&mut self, secs: u64, seen: &Seen<'_>) {
        let hour = u8::try_from(secs / HOUR).unwrap_or(23).min(23);
        let last = u32::try_from(secs.min(DAY) + 1).unwrap_or_default();
        self.hours.entry(hour).or_default().add(seen);
        let names = &mut self.names;
        let keys = [seen.prompt, seen.upstream, seen.caller, seen.endpoint];
        let mut keys = keys.map(|name| names.optional(name));
        for (table, key) in self.tables.iter().zip(&mut keys) {
            if table.len() >= MAX_KEYS && !table.contains_key(key) && *key != NONE {
                *key = OTHERS;
            }
        }
        for (kind, key) in keys.into_iter().enumerate().filter(|(_, key)| *key != NONE) {
            let entry = self.tables[kind].entry(key).or_default();
            entry.add(hour, last, seen);
            match (kind, seen.micros) {
                (PROMPTS, _) if key != OTHERS => entry.related = vec![keys[UPSTREAMS]],
                (CALLERS, _) if key != OTHERS && !seen.groups.is_empty() => {
                    entry.related = seen.groups.iter().map(|group| names.number(group)).collect();
                }
                (UPSTREAMS, Some(micros)) => entry.histogram.add(micros),
                _ => {}
            }
        }
        let pair = [keys[PROMPTS], keys[CALLERS], keys[ENDPOINTS]];
        if self.pairs.len() >= MAX_OPEN_PAIRS && !self.pairs.contains_key(&pair) {
            self.pairs = most_used(&self.pairs).into_iter().collect();
        }
        self.pairs.entry(pair).or_default().add(seen);
    }

    /// Drops the sums by hour and key.
    pub(super) fn drop_hours(&mut self) {
        self.tables.iter_mut().flat_map(HashMap::values_mut).for_each(|entry| entry.hours.clear());
    }

    /// Returns the file of the day.
    pub(super) fn write(&self) -> Vec<u8> {
        let sections = [self.write_sums(), self.write_hours(), self.write_pairs()];
        let described = sections.each_ref().map(|section| Section::of(section));
        let header = Header {
            version: VERSION,
            day: self.number,
            through: self.through.clone(),
            has_hours: self.tables.iter().flat_map(HashMap::values).any(|e| !e.hours.is_empty()),
            sections: described,
        };
        // Maps of texts and numbers always serialise.
        let header = serde_json::to_vec(&header).unwrap_or_default();
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&(header.len() as u64).to_be_bytes());
        out.extend_from_slice(&seal::sha256(&header));
        out.extend_from_slice(&header);
        sections.iter().for_each(|section| out.extend_from_slice(section));
        out
    }

    fn write_sums(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_number(&mut out, self.names.all().len() as u64);
        self.names.all().iter().for_each(|name| write_text(&mut out, name));
        write_number(&mut out, self.hours.len() as u64);
        for (hour, slot) in &self.hours {
            out.push(*hour);
            write_counts(&mut out, &slot.counts);
            write_histogram(&mut out, &slot.histogram);
        }
        for table in &self.tables {
            let mut part = Vec::new();
            write_number(&mut part, table.len() as u64);
            for (key, entry) in table {
                write_number(&mut part, (*key).into());
                write_counts(&mut part, &entry.counts);
                write_number(&mut part, entry.last.into());
                write_histogram(&mut part, &entry.histogram);
                write_number(&mut part, entry.related.len() as u64);
                entry.related.iter().for_each(|name| write_number(&mut part, (*name).into()));
            }
            write_number(&mut out, part.len() as u64);
            out.extend_from_slice(&part);
        }
        out
    }

    fn write_hours(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for table in &self.tables {
            let mut part = Vec::new();
            let entries = table.iter().filter(|(_, entry)| !entry.hours.is_empty());
            write_number(&mut part, entries.clone().count() as u64);
            for (key, entry) in entries {
                write_number(&mut part, (*key).into());
                write_number(&mut part, entry.hours.len() as u64);
                for (hour, counts) in &entry.hours {
                    part.push(*hour);
                    write_counts(&mut part, counts);
                }
            }
            write_number(&mut out, part.len() as u64);
            out.extend_from_slice(&part);
        }
        out
    }

    fn write_pairs(&self) -> Vec<u8> {
        let kept = most_used(&self.pairs);
        let mut out = Vec::new();
        write_number(&mut out, kept.len() as u64);
        for (pair, counts) in kept {
            pair.iter().for_each(|key| write_number(&mut out, (*key).into()));
            write_counts(&mut out, &counts);
        }
        out
    }

    /// Reads a whole file; `None` if it is damaged.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let file = DayFile::read(bytes)?;
        let sums = file.sums(file.section(0)?)?;
        let mut day = Self::new(file.header.day);
        day.through.clone_from(&file.header.through);
        // The first two numbers have fixed meanings.
        for name in sums.names.iter().skip(2) {
            day.names.number(name);
        }
        for (hour, counts, histogram) in sums.hours {
            day.hours.insert(hour, Slot { counts, histogram });
        }
        let table_of_hours = tables(file.section(1)?)?;
        for (kind, (table, hours)) in sums.tables.into_iter().zip(table_of_hours).enumerate() {
            each_entry(table, |key, entry| {
                day.tables[kind].insert(key, entry);
            })?;
            each_hours(hours, |key, hour, counts| {
                if let Some(entry) = day.tables[kind].get_mut(&key) {
                    entry.hours.push((hour, counts));
                }
            })?;
        }
        each_pair(Reader(file.section(2)?), |pair, counts| {
            day.pairs.insert(pair, counts);
        })?;
        Some(day)
    }
}

/// Returns the most used pairs; the rest is joined in one.
fn most_used(pairs: &HashMap<Pair, Counts>) -> Vec<(Pair, Counts)> {
    let mut all: Vec<_> = pairs.iter().map(|(pair, counts)| (*pair, *counts)).collect();
    let calls = |counts: &Counts| counts.uses + counts.denied + counts.limited;
    if all.len() <= MAX_PAIRS {
        return all;
    }
    all.sort_unstable_by_key(|(pair, counts)| (std::cmp::Reverse(calls(counts)), *pair));
    let mut rest = Counts::default();
    all.drain(MAX_PAIRS - 1..).for_each(|(_, counts)| rest.merge(&counts));
    match all.iter_mut().find(|(pair, _)| *pair == [OTHERS; 3]) {
        Some((_, others)) => others.merge(&rest),
        None => all.push(([OTHERS; 3], rest)),
    }
    all
}

impl Slot {
    fn add(&mut self, seen: &Seen<'_>) {
        self.counts.add(seen);
        if let Some(micros) = seen.micros {
            self.histogram.add(micros);
        }
    }
}

impl Entry {
    fn add(&mut self, hour: u8, last: u32, seen: &Seen<'_>) {
        let uses = self.counts.uses;
        self.counts.add(seen);
        if self.counts.uses > uses {
            self.last = self.last.max(last);
        }
        let at = match self.hours.binary_search_by_key(&hour, |(hour, _)| *hour) {
            Ok(at) => at,
            Err(at) => {
                self.hours.insert(at, (hour, Counts::default()));
                at
            }
        };
        self.hours[at].1.add(seen);
    }
}

fn write_counts(out: &mut Vec<u8>, counts: &Counts) {
    let Counts { uses, failures, denied, limited, micros } = *counts;
    [uses, failures, denied, limited, micros].into_iter().for_each(|n| write_number(out, n));
}

fn write_histogram(out: &mut Vec<u8>, histogram: &Histogram) {
    write_number(out, histogram.steps().len() as u64);
    for (step, count) in histogram.steps() {
        out.push(*step);
        write_number(out, *count);
    }
}

fn read_counts(reader: &mut Reader<'_>) -> Option<Counts> {
    Some(Counts {
        uses: reader.number()?,
        failures: reader.number()?,
        denied: reader.number()?,
        limited: reader.number()?,
        micros: reader.number()?,
    })
}

fn read_histogram(reader: &mut Reader<'_>) -> Option<Histogram> {
    let mut histogram = Histogram::default();
    for _ in 0..reader.number()? {
        let step = *reader.bytes(1)?.first()?;
        histogram.add_step(step, reader.number()?);
    }
    Some(histogram)
}

const MAGIC: &[u8] = b"pg-usage";

const VERSION: u32 = 1;

/// Bytes before the header: the magic bytes, its length and its digest.
pub(super) const PREAMBLE: usize = MAGIC.len() + 8 + 32;

/// The limit of a header, in bytes: it names some logs.
const MAX_HEADER: usize = 64 << 10;

#[derive(Debug, Deserialize, Serialize)]
struct Header {
    version: u32,
    day: u64,
    through: BTreeMap<String, u64>,
    has_hours: bool,
    sections: [Section; 3],
}

#[derive(Debug, Deserialize, Serialize)]
struct Section {
    bytes: usize,
    sha256: String,
}

impl Section {
    fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len(), sha256: hex(&seal::sha256(bytes)) }
    }
}

/// The file of a day, or the begin of it.
pub(super) struct DayFile<'a> {
    header: Header,
    sections: &'a [u8],
}

/// The first section, with the tables not yet read.
struct DaySums<'a> {
    names: Vec<&'a str>,
    hours: Vec<(u8, Counts, Histogram)>,
    tables: [Reader<'a>; 4],
}

/// Returns the length of a file up to the end of its first section, or of all; `None` if it is no
/// file of a day. `begin` are its first bytes, more than [`PREAMBLE`] of them.
pub(super) fn wanted_length(begin: &[u8], detail: Detail) -> Result<usize, Option<usize>> {
    let header = header_range(begin).ok_or(None)?;
    let Some(text) = begin.get(header.clone()) else {
        return Err(Some(header.end));
    };
    let read: Header = serde_json::from_slice(text).map_err(|_| None)?;
    let sections = match detail {
        Detail::Days => 1,
        Detail::Hours => 2,
        Detail::Pairs => 3,
    };
    Ok(read.sections[..sections].iter().fold(header.end, |sum, s| sum.saturating_add(s.bytes)))
}

fn header_range(begin: &[u8]) -> Option<Range<usize>> {
    let length = begin.strip_prefix(MAGIC)?.get(..8)?;
    let length = usize::try_from(u64::from_be_bytes(length.try_into().ok()?)).ok()?;
    (length <= MAX_HEADER).then_some(PREAMBLE..PREAMBLE + length)
}

/// How much of a file a question needs.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Detail {
    Days,
    Hours,
    Pairs,
}

impl<'a> DayFile<'a> {
    /// Reads the header of a file; `None` if it is damaged.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let range = header_range(bytes)?;
        let text = bytes.get(range.clone())?;
        let digest = bytes.get(PREAMBLE - 32..PREAMBLE)?;
        let is_whole = seal::sha256(text) == *digest;
        let header: Header = is_whole.then(|| serde_json::from_slice(text).ok()).flatten()?;
        (header.version == VERSION).then_some(Self { header, sections: &bytes[range.end..] })
    }

    pub(super) fn number(&self) -> u64 {
        self.header.day
    }

    /// Whether the day has sums by hour and key.
    pub(super) fn has_hours(&self) -> bool {
        self.header.has_hours
    }

    /// Returns a section; `None` if it was not read, or is damaged.
    fn section(&self, number: usize) -> Option<&'a [u8]> {
        let described = &self.header.sections;
        let start = described[..number].iter().try_fold(0_usize, |sum, s| sum.checked_add(s.bytes));
        let section = &described[number];
        let bytes = self.sections.get(start?..)?.get(..section.bytes)?;
        (hex(&seal::sha256(bytes)) == section.sha256).then_some(bytes)
    }

    fn sums(&self, section: &'a [u8]) -> Option<DaySums<'a>> {
        let mut reader = Reader(section);
        let count = reader.number()?;
        let names = (0..count).map(|_| reader.text()).collect::<Option<Vec<_>>>()?;
        let mut hours = Vec::new();
        for _ in 0..reader.number()? {
            let hour = *reader.bytes(1)?.first()?;
            hours.push((hour, read_counts(&mut reader)?, read_histogram(&mut reader)?));
        }
        Some(DaySums { names, hours, tables: tables(reader.0)? })
    }

    /// Adds the counts of the day to `sums`; `None` if the file is damaged.
    pub(super) fn collect(&self, part: &DayPart<'_>, sums: &mut Sums) -> Option<()> {
        let day = self.sums(self.section(0)?)?;
        let reading = Reading { day: &day, file: self, part };
        match part.source() {
            Source::Keys if part.is_whole => reading.keys(sums),
            Source::Keys => reading.hours(sums),
            Source::Pairs => reading.pairs(sums),
        }
    }
}

/// The part of a query that concerns one day.
#[derive(Debug)]
pub(super) struct DayPart<'a> {
    pub by: Dimension,
    pub filter: &'a Filter,
    /// The hours of the query.
    pub hours: Range<u8>,
    /// Whether that is the whole day, as one point.
    pub is_whole: bool,
}

/// Where the rows of an answer come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Source {
    /// The sums of single keys.
    Keys,
    /// The pairs, which have no hours.
    Pairs,
}

impl DayPart<'_> {
    /// Returns where the rows come from: a filter by another key than that of the rows needs pairs.
    fn source(&self) -> Source {
        source(self.by, self.filter)
    }

    /// Returns how much of the file is needed.
    pub(super) fn detail(&self) -> Detail {
        match self.source() {
            Source::Pairs => Detail::Pairs,
            Source::Keys if self.is_whole => Detail::Days,
            Source::Keys => Detail::Hours,
        }
    }
}

/// See [`DayPart::source`].
pub(super) fn source(by: Dimension, filter: &Filter) -> Source {
    let Filter { prompt, caller, upstream, endpoint } = filter;
    let is_set = [prompt.is_some(), upstream.is_some(), caller.is_some(), endpoint.is_some()];
    let own = match by {
        Dimension::Prompt => PROMPTS,
        Dimension::Upstream => UPSTREAMS,
        Dimension::Caller | Dimension::Group => CALLERS,
        Dimension::View => ENDPOINTS,
    };
    let is_other = is_set.iter().enumerate().any(|(kind, is_set)| *is_set && kind != own);
    if is_other { Source::Pairs } else { Source::Keys }
}

/// One day while it is read.
struct Reading<'a> {
    day: &'a DaySums<'a>,
    file: &'a DayFile<'a>,
    part: &'a DayPart<'a>,
}

impl Reading<'_> {
    /// Adds the sums of the day.
    fn keys(&self, sums: &mut Sums) -> Option<()> {
        let mut matched = Counts::default();
        self.each_wanted(|key, entry| {
            matched.merge(&entry.counts);
            let part = Part {
                counts: entry.counts,
                histogram: Some(&entry.histogram),
                upstream: None,
                last: self.last(entry.last),
            };
            self.add(key, &entry.related, part, sums);
        })?;
        let start = self.file.number() * DAY;
        if self.has_filter() {
            sums.add_point(start, &matched, None);
        } else {
            for (_, counts, histogram) in &self.day.hours {
                sums.add_point(start, counts, Some(histogram));
            }
        }
        Some(())
    }

    /// Adds the sums of the hours of the query.
    fn hours(&self, sums: &mut Sums) -> Option<()> {
        if !self.file.has_hours() && !self.day.hours.is_empty() {
            // They were dropped with age: the whole day is the closest there is.
            sums.partial = true;
            return self.keys(sums);
        }
        let mut entries = HashMap::new();
        self.each_wanted(|key, entry| drop(entries.insert(key, entry)))?;
        let table = tables(self.file.section(1)?)?[self.table()];
        let start = self.file.number() * DAY;
        let point = |hour: u8| start + u64::from(hour) * HOUR;
        each_hours(table, |key, hour, counts| {
            let Some(entry) = entries.get(&key).filter(|_| self.part.hours.contains(&hour)) else {
                return;
            };
            let is_last = entry.last > 0 && u64::from(entry.last - 1) / HOUR == u64::from(hour);
            let last = match (is_last, counts.uses) {
                (true, _) => self.last(entry.last),
                (false, 0) => 0,
                (false, _) => point(hour),
            };
            self.add(key, &entry.related, Part { counts, last, ..Part::default() }, sums);
            if self.has_filter() {
                sums.add_point(point(hour), &counts, None);
            }
        })?;
        if !self.has_filter() {
            let wanted = self.day.hours.iter().filter(|(hour, ..)| self.part.hours.contains(hour));
            for (hour, counts, histogram) in wanted {
                sums.add_point(point(*hour), counts, Some(histogram));
            }
        }
        Some(())
    }

    /// Adds the sums of the pairs.
    fn pairs(&self, sums: &mut Sums) -> Option<()> {
        let (mut prompts, mut callers) = (HashMap::new(), HashMap::new());
        each_entry(self.day.tables[PROMPTS], |key, entry| drop(prompts.insert(key, entry)))?;
        each_entry(self.day.tables[CALLERS], |key, entry| drop(callers.insert(key, entry)))?;
        let start = self.file.number() * DAY;
        let upstream_of = |prompt: u32| {
            let upstream = prompts.get(&prompt).and_then(|entry| entry.related.first());
            upstream.copied().unwrap_or(NONE)
        };
        let Filter { prompt, caller, upstream, endpoint } = self.part.filter;
        let is = |wanted: &Option<String>, key: u32| {
            wanted.as_deref().is_none_or(|wanted| key != NONE && self.name(key) == wanted)
        };
        each_pair(Reader(self.file.section(2)?), |pair, counts| {
            let [of, by, at] = pair;
            sums.partial |= pair == [OTHERS; 3];
            let is_wanted = is(prompt, of)
                && is(caller, by)
                && is(upstream, upstream_of(of))
                && is(endpoint, at);
            if !is_wanted {
                return;
            }
            sums.add_point(start, &counts, None);
            let (key, related) = match self.part.by {
                Dimension::Prompt => (of, vec![upstream_of(of)]),
                Dimension::Upstream => (upstream_of(of), Vec::new()),
                Dimension::View => (at, Vec::new()),
                Dimension::Caller => (by, Vec::new()),
                Dimension::Group => {
                    (by, callers.get(&by).map_or_else(Vec::new, |entry| entry.related.clone()))
                }
            };
            let last = match self.part.by {
                _ if counts.uses == 0 => 0,
                // Of a prompt the time is known, unless others used it later.
                Dimension::Prompt => prompts.get(&key).map_or(start, |e| self.last(e.last)),
                _ => start,
            };
            self.add(key, &related, Part { counts, last, ..Part::default() }, sums);
        })
    }

    fn table(&self) -> usize {
        match self.part.by {
            Dimension::Prompt => PROMPTS,
            Dimension::Upstream => UPSTREAMS,
            Dimension::Caller | Dimension::Group => CALLERS,
            Dimension::View => ENDPOINTS,
        }
    }

    /// Calls `each` with the keys of the table that the filter admits.
    fn each_wanted(&self, mut each: impl FnMut(u32, Entry)) -> Option<()> {
        let filter = self.part.filter;
        let wanted = match self.table() {
            PROMPTS => &filter.prompt,
            UPSTREAMS => &filter.upstream,
            CALLERS => &filter.caller,
            _ => &filter.endpoint,
        };
        each_entry(self.day.tables[self.table()], |key, entry| {
            if wanted.as_deref().is_none_or(|wanted| self.name(key) == wanted) {
                each(key, entry);
            }
        })
    }

    fn has_filter(&self) -> bool {
        *self.part.filter != Filter::default()
    }

    /// Adds the sums of a key to its row, or those of a caller to its groups.
    fn add(&self, key: u32, related: &[u32], part: Part<'_>, sums: &mut Sums) {
        match self.part.by {
            Dimension::Group => {
                related.iter().for_each(|group| sums.add(self.name(*group), part));
            }
            Dimension::Prompt => {
                let upstream = related.first().filter(|upstream| **upstream != NONE);
                let upstream = upstream.map(|upstream| self.name(*upstream));
                if key != NONE {
                    sums.add(self.name(key), Part { upstream, ..part });
                }
            }
            _ if key == NONE => {}
            _ => sums.add(self.name(key), part),
        }
    }

    /// Returns the time of a last use, in seconds since the Unix epoch; 0 if there was none.
    fn last(&self, last: u32) -> u64 {
        if last == 0 { 0 } else { self.file.number() * DAY + u64::from(last) - 1 }
    }

    fn name(&self, number: u32) -> &str {
        self.day.names.get(number as usize).copied().unwrap_or_default()
    }
}

fn tables(section: &[u8]) -> Option<[Reader<'_>; 4]> {
    let mut reader = Reader(section);
    let mut next = || {
        let length = usize::try_from(reader.number()?).ok()?;
        Some(Reader(reader.bytes(length)?))
    };
    Some([next()?, next()?, next()?, next()?])
}

fn each_entry(mut table: Reader<'_>, mut each: impl FnMut(u32, Entry)) -> Option<()> {
    for _ in 0..table.number()? {
        let key = table.small()?;
        let (counts, last) = (read_counts(&mut table)?, table.small()?);
        let histogram = read_histogram(&mut table)?;
        let count = table.number()?;
        let related = (0..count).map(|_| table.small()).collect::<Option<Vec<_>>>()?;
        each(key, Entry { counts, last, histogram, related, hours: Vec::new() });
    }
    Some(())
}

fn each_hours(mut table: Reader<'_>, mut each: impl FnMut(u32, u8, Counts)) -> Option<()> {
    for _ in 0..table.number()? {
        let key = table.small()?;
        for _ in 0..table.number()? {
            let hour = *table.bytes(1)?.first()?;
            each(key, hour, read_counts(&mut table)?);
        }
    }
    Some(())
}

fn each_pair(mut pairs: Reader<'_>, mut each: impl FnMut(Pair, Counts)) -> Option<()> {
    for _ in 0..pairs.number()? {
        let pair = [pairs.small()?, pairs.small()?, pairs.small()?];
        each(pair, read_counts(&mut pairs)?);
    }
    Some(())
}
