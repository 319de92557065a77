//! What is refused again and again is counted, and recorded once in a while: a stranger must not fill the disk by knocking.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use tokio::time::Instant;

use crate::audit::record::Event;

/// Counts refusals by who was refused and why. Pure: the clock is handed in.
pub struct Refusals {
    tallies: Mutex<LruCache<Refusal, Tally>>,
}

/// Who was refused, and why.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Refusal {
    pub who: Who,
    /// As `error.data.reason` names it.
    pub reason: &'static str,
    /// What it was refused by, such as the name of a limit.
    pub by: String,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Who {
    /// A network: of IPv6 the first 64 bits.
    Address(String),
    /// Id of a caller.
    Caller(String),
}

/// Those since the last record.
struct Tally {
    recorded: Instant,
    count: u64,
}

/// Time between two records of one refusal.
const WINDOW: Duration = Duration::from_secs(10);

/// Refusals that are counted apart. Beyond that the least recent is recorded early.
const TALLIES: usize = 4096;

impl Default for Refusals {
    fn default() -> Self {
        let tallies = LruCache::new(NonZeroUsize::new(TALLIES).unwrap_or(NonZeroUsize::MIN));
        Self { tallies: Mutex::new(tallies) }
    }
}

impl Refusals {
    /// Counts a refusal; what is to be recorded now.
    pub fn count(&self, refusal: Refusal, now: Instant) -> Vec<Event> {
        let mut tallies = self.lock();
        if let Some(tally) = tallies.get_mut(&refusal) {
            tally.count += 1;
            if now.duration_since(tally.recorded) < WINDOW {
                return Vec::new();
            }
            let count = std::mem::take(&mut tally.count);
            tally.recorded = now;
            return vec![refusal.event(count)];
        }
        let first = refusal.event(1);
        let pushed_out = tallies.push(refusal, Tally { recorded: now, count: 0 });
        let early = pushed_out.filter(|(_, tally)| tally.count > 0);
        early
            .map(|(refusal, tally)| refusal.event(tally.count))
            .into_iter()
            .chain([first])
            .collect()
    }

    /// What is to be recorded by now, of those that have not come again.
    pub fn due(&self, now: Instant) -> Vec<Event> {
        let mut tallies = self.lock();
        let is_due = |tally: &Tally| now.duration_since(tally.recorded) >= WINDOW;
        let due: Vec<_> =
            tallies.iter().filter(|(_, t)| is_due(t)).map(|(refusal, _)| refusal.clone()).collect();
        due.into_iter().filter_map(|refusal| pop(&mut tallies, refusal)).collect()
    }

    /// All that was not recorded yet.
    pub fn rest(&self) -> Vec<Event> {
        let mut tallies = self.lock();
        std::iter::from_fn(|| tallies.pop_lru())
            .filter(|(_, tally)| tally.count > 0)
            .map(|(refusal, tally)| refusal.event(tally.count))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<Refusal, Tally>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pop(tallies: &mut LruCache<Refusal, Tally>, refusal: Refusal) -> Option<Event> {
    let tally = tallies.pop(&refusal)?;
    (tally.count > 0).then(|| refusal.event(tally.count))
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
        let (refusals, start) = (Refusals::default(), Instant::now());
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

    #[tokio::test]
    async fn a11_many_addresses_take_bounded_room_and_lose_no_count() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for round in 0..2 {
            for address in 0..TALLIES {
                let told = refusals.count(from(&address.to_string()), now);
                assert_eq!(told.len(), usize::from(round == 0));
            }
        }
        let pushed = refusals.count(from("new"), now);
        assert_eq!(pushed, [counted("0", 1), counted("new", 1)].concat());
        assert_eq!(refusals.lock().len(), TALLIES);
    }
}
