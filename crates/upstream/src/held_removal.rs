//! The removal of many prompts at once, which is held back: more often a restored database or a
//! wrong filter than the wish of a person.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use library::prompt_list::PromptList;

/// A removal that is held back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeldRemoval {
    /// The number of prompts that stay served.
    pub served: usize,
    /// The number of prompts that the source lists.
    pub listed: usize,
    /// When the removal is applied, if the source then lists as many.
    pub until: Instant,
}

/// Decides on the removals of one source. Pure: the clock is an argument.
#[derive(Debug, Default)]
pub(crate) struct RemovalGuard(Mutex<Removals>);

#[derive(Debug, Default)]
struct Removals {
    held: Option<HeldRemoval>,
    /// The number of prompts after an accepted removal. It holds for the next list only.
    accepted: Option<usize>,
}

/// The decision on a new list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Removal {
    /// The new list is served.
    Applied,
    /// The list before stays served; `is_news` once for each removal.
    Held { removal: HeldRemoval, is_news: bool },
}

/// Fewest removed prompts that are held back, unless no prompt is left: a person deletes a few.
const MANY: usize = 5;

impl RemovalGuard {
    /// Decides whether a list replaces the one before.
    pub(crate) fn decide(
        &self,
        before: &PromptList,
        listed: &PromptList,
        hold: Duration,
        now: Instant,
    ) -> Removal {
        let mut removals = self.removals();
        let Removals { held, accepted } = std::mem::take(&mut *removals);
        let (served, left) = (names(before), names(listed));
        let is_accepted = accepted == Some(left.len());
        if hold.is_zero() || is_accepted || !is_much(&served, &left) {
            return Removal::Applied;
        }
        let new = HeldRemoval { served: served.len(), listed: left.len(), until: now + hold };
        let known = held.filter(|known| known.listed == new.listed);
        if known.is_some_and(|known| known.until <= now) {
            return Removal::Applied;
        }
        let removal = known.unwrap_or(new);
        removals.held = Some(removal);
        Removal::Held { removal, is_news: known.is_none() }
    }

    /// Accepts a removal for a person: the next list is served if it has `listed` prompts.
    pub(crate) fn accept(&self, listed: usize) {
        self.removals().accepted = Some(listed);
    }

    /// Forgets a removal: the source lists its prompts again.
    pub(crate) fn clear(&self) {
        *self.removals() = Removals::default();
    }

    /// Returns the removal that is held back at present.
    pub(crate) fn current(&self) -> Option<HeldRemoval> {
        self.removals().held
    }

    fn removals(&self) -> MutexGuard<'_, Removals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether no prompt is left, or many and more than half are gone.
fn is_much(served: &HashSet<&str>, left: &HashSet<&str>) -> bool {
    let removed = served.difference(left).count();
    (left.is_empty() && removed > 0) || (removed >= MANY && 2 * removed > served.len())
}

/// The names of the prompts, without versions of other prompts.
fn names(list: &PromptList) -> HashSet<&str> {
    let plain = list.prompts.iter().filter(|prompt| !prompt.is_version());
    plain.map(|prompt| &*prompt.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::prompts::prompt::Prompt;

    const HOLD: Duration = Duration::from_secs(600);

    fn list(names: impl IntoIterator<Item = usize>) -> PromptList {
        let prompts = names.into_iter().map(|name| Prompt::named(&name.to_string())).collect();
        PromptList { prompts, ..PromptList::default() }
    }

    #[tokio::test]
    async fn only_a_removal_of_more_than_half_and_at_least_five_or_of_all_is_held_back() {
        let decide = |before, listed| {
            let guard = RemovalGuard::default();
            guard.decide(&list(0..before), &list(0..listed), HOLD, Instant::now())
        };
        for (before, listed) in [(0, 0), (0, 9), (9, 9), (10, 5), (6, 2), (1, 2)] {
            assert_eq!(decide(before, listed), Removal::Applied, "{before} {listed}");
        }
        for (before, listed) in [(1, 0), (9, 0), (9, 4), (300, 149)] {
            let held = matches!(decide(before, listed), Removal::Held { is_news: true, .. });
            assert!(held, "{before} {listed}");
        }
        let now = Instant::now();
        let renamed = RemovalGuard::default().decide(&list(0..9), &list(10..19), HOLD, now);
        assert!(matches!(renamed, Removal::Held { .. }), "as many prompts of other names");
        let off = RemovalGuard::default().decide(&list(0..9), &list(0..0), Duration::ZERO, now);
        assert_eq!(off, Removal::Applied);
    }

    #[tokio::test]
    async fn a_removal_is_applied_after_the_time_unless_the_source_says_something_else() {
        let guard = RemovalGuard::default();
        let begin = Instant::now();
        let at = |secs, listed| {
            guard.decide(&list(0..9), &list(0..listed), HOLD, begin + Duration::from_secs(secs))
        };
        let is_news = |removal| matches!(removal, Removal::Held { is_news: true, .. });
        assert!(is_news(at(0, 0)));
        assert!(!is_news(at(599, 0)), "it is reported once");
        assert!(is_news(at(599, 1)), "another removal begins anew");
        assert!(matches!(at(1_198, 1), Removal::Held { .. }));
        assert_eq!((at(1_199, 1), guard.current()), (Removal::Applied, None));
        assert!(is_news(at(2_000, 0)));
        guard.clear();
        assert_eq!(guard.current(), None);
        assert!(is_news(at(9_000, 0)), "a removal that was forgotten is not applied");
    }

    #[tokio::test]
    async fn an_accepted_removal_is_applied_by_the_next_list_if_that_has_as_many_prompts() {
        let guard = RemovalGuard::default();
        let now = Instant::now();
        let listing = |listed| guard.decide(&list(0..9), &list(0..listed), HOLD, now);
        let is_held = |removal| matches!(removal, Removal::Held { .. });
        assert!(is_held(listing(2)));
        guard.accept(2);
        assert!(is_held(listing(0)), "more is gone than the person knew");
        assert!(is_held(listing(2)), "it holds for one list");
        guard.accept(2);
        assert_eq!((listing(2), guard.current()), (Removal::Applied, None));
        guard.accept(2);
        guard.clear();
        assert!(is_held(listing(2)), "the source had its prompts again");
        // A replica may get the acceptance before it has read the source.
        let other = RemovalGuard::default();
        other.accept(0);
        assert_eq!(other.decide(&list(0..9), &list(0..0), HOLD, now), Removal::Applied);
    }
}
