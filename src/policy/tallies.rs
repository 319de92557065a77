//! Aggregation of refusals: repeated refusals are counted and recorded once for each window, so that an
//! unauthenticated client cannot fill the disk.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::audit::Audit;
use crate::audit::record::Event;

/// Counts refusals by origin and reason. Pure: the clock is an argument.
pub struct Refusals {
    state: Mutex<State>,
}

struct State {
    tallies: LruCache<Refusal, Tally>,
    /// The start of the present window, and the records written in it.
    window: Option<Instant>,
    recorded: usize,
    /// Refusals beyond the records of this window.
    others: u64,
}

/// The origin and the reason of a refusal.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Refusal {
    pub who: Who,
    /// The stable reason, as in `error.data.reason`.
    pub reason: &'static str,
    /// What refused it, such as the name of a limit.
    pub by: String,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Who {
    /// An IPv4 address, or an IPv6 network of 64 bits.
    Address(String),
    /// Id of a caller.
    Caller(String),
}

/// The refusals since the last record.
struct Tally {
    recorded: Instant,
    count: u64,
}

/// Interval of the check for due records.
const LOOK: Duration = Duration::from_secs(1);

/// Time between two records of the same refusal.
const WINDOW: Duration = Duration::from_secs(10);

/// Refusals that are counted separately. Beyond that the least recent one is recorded early.
const TALLIES: usize = 4096;

/// Records in one window: a client with many addresses must not fill the disk either. The others are recorded
/// as one.
const RECORDS: usize = 100;

impl Default for Refusals {
    fn default() -> Self {
        let tallies = LruCache::new(NonZeroUsize::new(TALLIES).unwrap_or(NonZeroUsize::MIN));
        Self { state: Mutex::new(State { tallies, window: None, recorded: 0, others: 0 }) }
    }
}

impl Refusals {
    /// Records counted refusals when they are due, until `stop`.
    pub async fn watch(self: Arc<Self>, audit: Audit, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(LOOK)).await.is_some() {
            self.due(Instant::now()).into_iter().for_each(|event| audit.note(event));
        }
        self.rest().into_iter().for_each(|event| audit.note(event));
    }

    /// Counts a refusal; returns the records that are due.
    pub fn count(&self, refusal: Refusal, now: Instant) -> Vec<Event> {
        let mut state = self.lock();
        let mut events: Vec<_> = state.turn(now).into_iter().collect();
        if let Some(tally) = state.tallies.get_mut(&refusal) {
            tally.count += 1;
            if now.duration_since(tally.recorded) >= WINDOW {
                let count = std::mem::take(&mut tally.count);
                tally.recorded = now;
                events.extend(state.record(&refusal, count));
            }
            return events;
        }
        let pushed_out = state.tallies.push(refusal.clone(), Tally { recorded: now, count: 0 });
        if let Some((early, tally)) = pushed_out.filter(|(_, tally)| tally.count > 0) {
            events.extend(state.record(&early, tally.count));
        }
        events.extend(state.record(&refusal, 1));
        events
    }

    /// Records that are due without a further refusal.
    pub fn due(&self, now: Instant) -> Vec<Event> {
        let mut state = self.lock();
        let mut events: Vec<_> = state.turn(now).into_iter().collect();
        let is_due = |tally: &Tally| now.duration_since(tally.recorded) >= WINDOW;
        let tallies = state.tallies.iter().filter(|(_, tally)| is_due(tally));
        let due: Vec<_> = tallies.map(|(refusal, _)| refusal.clone()).collect();
        for refusal in due {
            if let Some(tally) = state.tallies.pop(&refusal).filter(|tally| tally.count > 0) {
                events.extend(state.record(&refusal, tally.count));
            }
        }
        events
    }

    /// All refusals that were not recorded yet.
    pub fn rest(&self) -> Vec<Event> {
        let mut state = self.lock();
        let mut events = Vec::new();
        while let Some((refusal, tally)) = state.tallies.pop_lru() {
            if tally.count > 0 {
                events.extend(state.record(&refusal, tally.count));
            }
        }
        events.extend(state.others());
        events
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Begins another window if the present one is over; returns the record of what exceeded it.
    fn turn(&mut self, now: Instant) -> Option<Event> {
        if self.window.is_some_and(|began| now.duration_since(began) < WINDOW) {
            return None;
        }
        (self.window, self.recorded) = (Some(now), 0);
        self.others()
    }

    /// A record, if the window has room for one.
    fn record(&mut self, refusal: &Refusal, count: u64) -> Option<Event> {
        if self.recorded == RECORDS {
            self.others += count;
            return None;
        }
        self.recorded += 1;
        Some(refusal.event(count))
    }

    fn others(&mut self) -> Option<Event> {
        let count = std::mem::take(&mut self.others);
        let event = || Event::new("refused").text("reason", "others").number("count", count);
        (count > 0).then(event)
    }
}

impl Refusal {
    fn event(&self, count: u64) -> Event {
        let event = Event::new("refused").text("reason", self.reason);
        let event = match &self.who {
            Who::Address(address) => event.text("address", address),
            Who::Caller(caller) => event.text("caller", caller),
        };
        let by = Some(self.by.as_str()).filter(|by| !by.is_empty());
        event.optional_text("by", by).number("count", count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> Refusal {
        let who = Who::Address(address.to_owned());
        Refusal { who, reason: "unauthorized", by: String::new() }
    }

    fn counted(address: &str, count: u64) -> Vec<Event> {
        vec![from(address).event(count)]
    }

    #[tokio::test]
    async fn one_record_per_address_and_window_tells_of_all() {
        let refusals = Refusals::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(refusals.count(from("a"), start), counted("a", 1));
        for _ in 0..1000 {
            assert_eq!(refusals.count(from("a"), after(9)), []);
        }
        assert_eq!(refusals.count(from("b"), after(9)), counted("b", 1));
        assert_eq!(refusals.due(after(9)), []);
        assert_eq!(refusals.count(from("a"), after(10)), counted("a", 1001));
        refusals.count(from("a"), after(11));
        assert_eq!(refusals.due(after(19)), [], "of b nothing is left to tell");
        assert_eq!(refusals.due(after(20)), counted("a", 1));
        assert_eq!(refusals.count(from("a"), after(21)), counted("a", 1));
        refusals.count(from("a"), after(22));
        assert_eq!(refusals.rest(), counted("a", 1));
        assert_eq!(refusals.rest(), []);
    }

    /// The counts of all records.
    fn sum(events: &[Event]) -> u64 {
        let count = |event: &Event| {
            let text = format!("{event:?}");
            let at = text.find("count\\\":").unwrap() + 8;
            text[at..].chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>()
        };
        events.iter().map(|event| count(event).unwrap()).sum()
    }

    #[tokio::test]
    async fn a11_many_addresses_take_bounded_room_and_records_and_lose_no_count() {
        let refusals = Refusals::default();
        let start = Instant::now();
        let mut told = Vec::new();
        for address in 0..3 * TALLIES {
            told.extend(refusals.count(from(&address.to_string()), start));
        }
        assert_eq!(told.len(), RECORDS);
        assert_eq!(refusals.lock().tallies.len(), TALLIES);
        for second in [9, 10, 20] {
            told.extend(refusals.due(start + Duration::from_secs(second)));
        }
        assert_eq!(told.len(), RECORDS + 1, "the rest as one");
        told.extend(refusals.rest());
        assert_eq!(sum(&told), 3 * TALLIES as u64);
    }
}
