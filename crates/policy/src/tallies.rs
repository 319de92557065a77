//! Aggregation of refusals, and of streams that a caller opens in quick succession: repetitions are
//! counted and recorded once for each window, so that no client can fill the disk.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lru::LruCache;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use audit::Audit;
use audit::record::AuditEvent;
use base::platform::Locked;

/// Counts occurrences by origin and kind. Pure: the clock is an argument.
pub struct Tallies {
    state: Mutex<TallyState>,
}

struct TallyState {
    tallies: LruCache<Occurrence, Tally>,
    /// The start of the present window, and the records written in it.
    window: Option<Instant>,
    recorded: usize,
    /// Refusals and streams beyond the records of this window.
    other_refusals: u64,
    other_streams: u64,
}

/// The origin and the kind of something that is counted.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Occurrence {
    pub who: OccurrenceOrigin,
    pub what: OccurrenceKind,
}

/// The kinds of counted events.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum OccurrenceKind {
    /// A refusal.
    Refused {
        /// The stable reason, as in `error.data.reason`.
        reason: &'static str,
        /// The cause of the refusal, such as the name of a limit.
        by: String,
        /// The digest of the configuration.
        config: Arc<str>,
    },
    /// A notification stream at an endpoint that is only counted.
    Stream { endpoint: String },
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum OccurrenceOrigin {
    /// An IPv4 address, or an IPv6 network of 64 bits.
    Address(String),
    /// Id of a caller.
    Caller(String),
}

/// The occurrences since the last record.
struct Tally {
    recorded: Instant,
    count: u64,
}

/// Interval of the check for due records.
const LOOK: Duration = Duration::from_secs(1);

/// Time between two records of the same occurrence.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// Occurrences that are counted separately. Beyond that the least recent tally is recorded early.
const TALLIES: usize = 4096;

/// Records in one window: a client with many addresses must not fill the disk either. Further
/// occurrences share one record.
const RECORDS: usize = 100;

impl Default for Tallies {
    fn default() -> Self {
        let tallies = LruCache::new(NonZeroUsize::new(TALLIES).unwrap_or(NonZeroUsize::MIN));
        Self {
            state: Mutex::new(TallyState {
                tallies,
                window: None,
                recorded: 0,
                other_refusals: 0,
                other_streams: 0,
            }),
        }
    }
}

impl Tallies {
    /// Records counts when they are due, until `stop`.
    pub async fn watch(self: Arc<Self>, audit: Audit, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(LOOK)).await.is_some() {
            self.due(Instant::now()).into_iter().for_each(|event| audit.note(event));
        }
        self.rest().into_iter().for_each(|event| audit.note(event));
    }

    /// Counts an occurrence; returns the records that are due.
    pub fn count(&self, occurrence: Occurrence, now: Instant) -> Vec<AuditEvent> {
        let mut state = self.state.locked();
        let mut events = state.turn(now);
        if let Some(tally) = state.tallies.get_mut(&occurrence) {
            tally.count += 1;
            if now.duration_since(tally.recorded) >= WINDOW {
                let count = std::mem::take(&mut tally.count);
                tally.recorded = now;
                events.extend(state.record(&occurrence, count));
            }
            return events;
        }
        let pushed_out = state.tallies.push(occurrence.clone(), Tally { recorded: now, count: 0 });
        if let Some((early, tally)) = pushed_out.filter(|(_, tally)| tally.count > 0) {
            events.extend(state.record(&early, tally.count));
        }
        events.extend(state.record(&occurrence, 1));
        events
    }

    /// Records that are due without a further occurrence.
    pub fn due(&self, now: Instant) -> Vec<AuditEvent> {
        let mut state = self.state.locked();
        let mut events = state.turn(now);
        let is_due = |tally: &Tally| now.duration_since(tally.recorded) >= WINDOW;
        let tallies = state.tallies.iter().filter(|(_, tally)| is_due(tally));
        let due: Vec<_> = tallies.map(|(occurrence, _)| occurrence.clone()).collect();
        for occurrence in due {
            if let Some(tally) = state.tallies.pop(&occurrence).filter(|tally| tally.count > 0) {
                events.extend(state.record(&occurrence, tally.count));
            }
        }
        events
    }

    /// All occurrences that were not recorded yet.
    pub fn rest(&self) -> Vec<AuditEvent> {
        let mut state = self.state.locked();
        let mut events = Vec::new();
        while let Some((occurrence, tally)) = state.tallies.pop_lru() {
            if tally.count > 0 {
                events.extend(state.record(&occurrence, tally.count));
            }
        }
        events.extend(state.others());
        events
    }
}

impl TallyState {
    /// Begins another window if the present window is over; returns the records of the occurrences
    /// that found no room in it.
    fn turn(&mut self, now: Instant) -> Vec<AuditEvent> {
        if self.window.is_some_and(|began| now.duration_since(began) < WINDOW) {
            return Vec::new();
        }
        (self.window, self.recorded) = (Some(now), 0);
        self.others()
    }

    /// A record, if the window has room for one.
    fn record(&mut self, occurrence: &Occurrence, count: u64) -> Option<AuditEvent> {
        if self.recorded == RECORDS {
            match occurrence.what {
                OccurrenceKind::Refused { .. } => self.other_refusals += count,
                OccurrenceKind::Stream { .. } => self.other_streams += count,
            }
            return None;
        }
        self.recorded += 1;
        Some(occurrence.event(count))
    }

    fn others(&mut self) -> Vec<AuditEvent> {
        let refusals = std::mem::take(&mut self.other_refusals);
        let streams = std::mem::take(&mut self.other_streams);
        let refused = (refusals > 0)
            .then(|| AuditEvent::new("refused").text("reason", "others").number("count", refusals));
        let opened = (streams > 0).then(|| AuditEvent::new("streams").number("count", streams));
        refused.into_iter().chain(opened).collect()
    }
}

impl Occurrence {
    fn event(&self, count: u64) -> AuditEvent {
        let event = match &self.what {
            OccurrenceKind::Refused { reason, by, config } => {
                let by = Some(by.as_str()).filter(|by| !by.is_empty());
                let event = AuditEvent::new("refused").text("reason", reason);
                event.optional_text("by", by).text("config", config)
            }
            OccurrenceKind::Stream { endpoint } => {
                AuditEvent::new("streams").text("endpoint", endpoint)
            }
        };
        let event = match &self.who {
            OccurrenceOrigin::Address(address) => event.text("address", address),
            OccurrenceOrigin::Caller(caller) => event.text("caller", caller),
        };
        event.number("count", count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> Occurrence {
        let who = OccurrenceOrigin::Address(address.to_owned());
        Occurrence {
            who,
            what: OccurrenceKind::Refused {
                reason: "unauthorized",
                by: String::new(),
                config: "sha256:00".into(),
            },
        }
    }

    fn counted(address: &str, count: u64) -> Vec<AuditEvent> {
        vec![from(address).event(count)]
    }

    #[tokio::test]
    async fn one_record_per_address_and_window_tells_of_all() {
        let tallies = Tallies::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(tallies.count(from("a"), start), counted("a", 1));
        for _ in 0..1000 {
            assert_eq!(tallies.count(from("a"), after(9)), []);
        }
        assert_eq!(tallies.count(from("b"), after(9)), counted("b", 1));
        assert_eq!(tallies.due(after(9)), []);
        assert_eq!(tallies.count(from("a"), after(10)), counted("a", 1001));
        tallies.count(from("a"), after(11));
        assert_eq!(tallies.due(after(19)), [], "of b nothing is left to tell");
        assert_eq!(tallies.due(after(20)), counted("a", 1));
        assert_eq!(tallies.count(from("a"), after(21)), counted("a", 1));
        tallies.count(from("a"), after(22));
        assert_eq!(tallies.rest(), counted("a", 1));
        assert_eq!(tallies.rest(), []);
    }

    /// The counts of all records.
    fn sum(events: &[AuditEvent]) -> u64 {
        let count = |event: &AuditEvent| {
            let text = format!("{event:?}");
            let at = text.find("count\\\":").unwrap() + 8;
            text[at..].chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>()
        };
        events.iter().map(|event| count(event).unwrap()).sum()
    }

    #[tokio::test]
    async fn a11_many_addresses_take_bounded_room_and_records_and_lose_no_count() {
        let tallies = Tallies::default();
        let start = Instant::now();
        let mut told = Vec::new();
        for address in 0..3 * TALLIES {
            told.extend(tallies.count(from(&address.to_string()), start));
        }
        assert_eq!(told.len(), RECORDS);
        assert_eq!(tallies.state.locked().tallies.len(), TALLIES);
        for second in [9, 10, 20] {
            told.extend(tallies.due(start + Duration::from_secs(second)));
        }
        assert_eq!(told.len(), RECORDS + 1, "the rest as one");
        told.extend(tallies.rest());
        assert_eq!(sum(&told), 3 * TALLIES as u64);
    }

    #[tokio::test]
    async fn streams_beyond_the_records_of_a_window_are_not_called_refusals() {
        let tallies = Tallies::default();
        let start = Instant::now();
        for caller in 0..RECORDS + 3 {
            let what = OccurrenceKind::Stream { endpoint: "all".to_owned() };
            tallies.count(
                Occurrence { who: OccurrenceOrigin::Caller(caller.to_string()), what },
                start,
            );
        }
        tallies.count(from("a"), start);
        let others = [
            AuditEvent::new("refused").text("reason", "others").number("count", 1),
            AuditEvent::new("streams").number("count", 3),
        ];
        assert_eq!(tallies.rest(), others);
    }
}
