//! The pace of list walks: a list that changes again and again is walked less and less often, so
//! that an upstream cannot keep the gateway, its clients and its log busy.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use library::prompt_list::PromptList;

/// Changes of one list in quick succession. Pure: the clock is an argument.
#[derive(Debug, Default)]
pub(super) struct WalkPace {
    hasher: RandomState,
    /// The hash of the last walked list, and the time of its last change.
    last: Option<(u64, Instant)>,
    /// The number of recent changes; each [`CALM`] without a change reduces it by one.
    changes: u32,
}

/// Recent changes that cause no delay: a person edits prompts one after another.
const UNDELAYED: u32 = 10;

/// Longest time between two walks of a list that changes constantly.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// The time without a change that compensates for one change.
const CALM: Duration = Duration::from_secs(30);

/// Most counted changes: beyond it the wait no longer grows.
const MAX_CHANGES: u32 = UNDELAYED + 6;

impl WalkPace {
    /// Notes a walked list. Returns the least time until the next walk: zero at first, from the
    /// eleventh change in quick succession on one second, doubling up to [`LONGEST`].
    pub(super) fn walked(&mut self, list: &PromptList, now: Instant) -> Duration {
        let hash = self.hash(list);
        let Some((known, changed_at)) = self.last else {
            self.last = Some((hash, now));
            return Duration::ZERO;
        };
        let calm = now.duration_since(changed_at).as_secs() / CALM.as_secs();
        let left = self.changes.saturating_sub(calm.try_into().unwrap_or(u32::MAX));
        if known != hash {
            self.changes = (left + 1).min(MAX_CHANGES);
            self.last = Some((hash, now));
            return Self::pause(self.changes);
        }
        Self::pause(left)
    }

    fn pause(changes: u32) -> Duration {
        match changes.checked_sub(UNDELAYED + 1) {
            Some(beyond) => Duration::from_secs(1 << beyond).min(LONGEST),
            None => Duration::ZERO,
        }
    }

    fn hash(&self, list: &PromptList) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        let mut text = String::new();
        for prompt in &list.prompts {
            text.clear();
            prompt.write(&prompt.name, &mut text);
            hasher.write(text.as_bytes());
        }
        list.malformed.iter().for_each(|left_out| hasher.write(left_out.reason.as_bytes()));
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::prompts::prompt::Prompt;

    fn list(name: usize) -> PromptList {
        PromptList { prompts: vec![Prompt::named(&name.to_string())], ..PromptList::default() }
    }

    #[tokio::test]
    async fn a_list_that_always_changes_is_walked_twice_a_minute_and_recovers_when_it_is_calm() {
        let mut pace = WalkPace::default();
        let mut now = Instant::now();
        let second = Duration::from_secs(1);
        let mut pauses = Vec::new();
        for name in 0..30 {
            let pause = pace.walked(&list(name), now);
            now += pause.max(second);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses[..17], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 30]);
        assert!(pauses[17..].iter().all(|pause| (16..=30).contains(pause)), "{pauses:?}");
        // Walks without a change, a minute apart, make up for it.
        let mut calm = Vec::new();
        for _ in 0..6 {
            now += 2 * CALM;
            calm.push(pace.walked(&list(29), now).as_secs());
        }
        assert!(calm.is_sorted_by(|before, after| before >= after), "{calm:?}");
        assert_eq!(*calm.last().unwrap(), 0, "{calm:?}");
        assert_eq!(pace.walked(&list(30), now).as_secs(), 0, "one change is none again and again");
    }

    #[tokio::test]
    async fn changes_half_a_minute_apart_delay_no_walk() {
        let mut pace = WalkPace::default();
        let mut now = Instant::now();
        for name in 0..200 {
            assert_eq!(pace.walked(&list(name), now), Duration::ZERO);
            now += CALM;
        }
    }
}
