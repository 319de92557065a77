//! When a change is announced: after a quiet time, and after the longest wait at the latest.

use std::time::Duration;

use tokio::time::Instant;

/// Gathers changes into one announcement. Pure: the clock is handed in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debounce {
    /// Time without a further change after which it is announced.
    quiet: Duration,
    /// Longest time that the first change waits.
    longest: Duration,
    /// The first and the last change that were not announced yet.
    waiting: Option<(Instant, Instant)>,
}

impl Debounce {
    pub(crate) fn new(quiet: Duration, longest: Duration) -> Self {
        Self { quiet, longest, waiting: None }
    }

    /// Notes a change.
    pub(crate) fn note(&mut self, now: Instant) {
        let first = self.waiting.map_or(now, |(first, _)| first);
        self.waiting = Some((first, now));
    }

    /// When to announce, if there is anything to announce.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.waiting.map(|(first, last)| (last + self.quiet).min(first + self.longest))
    }

    /// The change was announced.
    pub(crate) fn done(&mut self) {
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn l1_a_storm_is_announced_once_when_it_is_over_or_has_lasted_too_long() {
        let (start, millis) = (Instant::now(), Duration::from_millis);
        let mut settle = Debounce::new(millis(200), millis(2_000));
        assert_eq!(settle.due(), None);
        settle.note(start);
        assert_eq!(settle.due(), Some(start + millis(200)));
        settle.note(start + millis(150));
        assert_eq!(settle.due(), Some(start + millis(350)));
        for i in 0..100 {
            settle.note(start + millis(150 + i * 50));
        }
        assert_eq!(settle.due(), Some(start + millis(2_000)));
        settle.done();
        assert_eq!(settle.due(), None);
    }
}
