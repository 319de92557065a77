//! Debounce of changes: announces changes after a quiet time, or after the longest delay.

use std::time::Duration;

use tokio::time::Instant;

/// Coalesces changes into one announcement. Pure: the clock is an argument.
#[derive(Clone, Copy, Debug)]
pub struct Debounce {
    /// Quiet time after which a change is announced.
    quiet: Duration,
    /// Longest delay of the first change.
    longest: Duration,
    /// Times of the first and the last unannounced change.
    waiting: Option<(Instant, Instant)>,
}

impl Debounce {
    pub fn new(quiet: Duration, longest: Duration) -> Self {
        Self { quiet, longest, waiting: None }
    }

    /// Notes a change.
    pub fn note(&mut self, now: Instant) {
        let first = self.waiting.map_or(now, |(first, _)| first);
        self.waiting = Some((first, now));
    }

    /// When the announcement is due; `None` if nothing has changed.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.map(|(first, last)| (last + self.quiet).min(first + self.longest))
    }

    /// Notes that the changes were announced.
    pub fn done(&mut self) {
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn l1_a_storm_is_announced_once_when_it_is_over_or_has_lasted_too_long() {
        let start = Instant::now();
        let millis = Duration::from_millis;
        let mut debounce = Debounce::new(millis(200), millis(2_000));
        assert_eq!(debounce.due(), None);
        debounce.note(start);
        assert_eq!(debounce.due(), Some(start + millis(200)));
        debounce.note(start + millis(150));
        assert_eq!(debounce.due(), Some(start + millis(350)));
        for i in 0..100 {
            debounce.note(start + millis(150 + i * 50));
        }
        assert_eq!(debounce.due(), Some(start + millis(2_000)));
        debounce.done();
        assert_eq!(debounce.due(), None);
    }
}
