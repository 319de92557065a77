//! Rollouts: a growing share of the callers gets another version of a prompt, until that version
//! has failed too often.

use std::collections::{BTreeMap, VecDeque};

use crate::calls::caller::{Caller, is_reserved};
pub use crate::prompts::rollout::{RollbackRule, Rollout, RolloutStep};
use crate::time::unix_time::UnixSeconds;

/// The outcomes of the gets that the new version has answered since it was last armed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RolloutOutcomes {
    gets: u64,
    failed: u64,
    /// The last gets, the newest last; at most [`RollbackRule::over`].
    last: VecDeque<GetOutcome>,
    rolled_back: Option<UnixSeconds>,
}

/// The outcome of a get.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GetOutcome {
    /// A number for the caller, equal for all gets of that caller.
    pub caller: u64,
    pub has_failed: bool,
}

impl RollbackRule {
    /// Returns the number of failures among the last gets that cause a rollback.
    fn needed(self) -> usize {
        // The result is at most `over`, since the share is below 1.
        (self.share * self.over as f64) as usize + 1
    }

    /// Whether `last` has enough failures, of several callers.
    fn is_met_by(self, last: &VecDeque<GetOutcome>) -> bool {
        let most = self.needed().div_ceil(2);
        let mut failures = BTreeMap::<u64, usize>::new();
        for get in last.iter().filter(|get| get.has_failed) {
            *failures.entry(get.caller).or_default() += 1;
        }
        let counted: usize = failures.values().map(|count| (*count).min(most)).sum();
        failures.len() > 1 && counted >= self.needed()
    }
}

impl Rollout {
    /// Whether a caller is in the share of a prompt with this public name. `hash` maps the caller
    /// to a uniformly distributed number, so that a caller in one share is also in each larger
    /// share. Callers without an identity are never in a share.
    pub fn takes(
        &self,
        prompt: &str,
        caller: &Caller,
        now: UnixSeconds,
        hash: impl FnOnce(&str) -> u64,
    ) -> bool {
        let is_member = |group| self.groups.contains(group);
        if is_reserved(caller.id())
            || !self.groups.is_empty() && !caller.groups().iter().any(is_member)
        {
            return false;
        }
        // The share of all 2^64 hash values.
        let bound = self.share_at(now) * 18_446_744_073_709_551_616.0;
        let Self { from, to, .. } = self;
        u128::from(hash(&format!("rollout\0{prompt}\0{from}\0{to}\0{}", caller.id())))
            < bound as u128
    }
}

impl RolloutOutcomes {
    /// Notes a get that the new version has answered. Returns whether the version is rolled back.
    pub fn note(&mut self, get: GetOutcome, rule: Option<RollbackRule>, now: UnixSeconds) -> bool {
        if self.rolled_back.is_some() {
            return false;
        }
        self.gets += 1;
        self.failed += u64::from(get.has_failed);
        let Some(rule) = rule else {
            return false;
        };
        self.keep(get, rule.over);
        if get.has_failed && rule.is_met_by(&self.last) {
            self.rolled_back = Some(now);
        }
        self.rolled_back.is_some()
    }

    /// Keeps a get among the last `over` gets, at most half of which are of one caller.
    fn keep(&mut self, get: GetOutcome, over: usize) {
        let is_own = |kept: &GetOutcome| kept.caller == get.caller;
        if self.last.iter().filter(|kept| is_own(kept)).count() >= over.div_ceil(2)
            && let Some(oldest) = self.last.iter().position(is_own)
        {
            self.last.remove(oldest);
        }
        self.last.push_back(get);
        let excess = self.last.len().saturating_sub(over);
        self.last.drain(..excess);
    }

    /// Returns the outcomes of a version that was rolled back earlier, or by another replica.
    pub fn after_rollback(at: UnixSeconds) -> Self {
        Self { rolled_back: Some(at), ..Self::default() }
    }

    /// Returns the time of the rollback.
    pub fn rolled_back(&self) -> Option<UnixSeconds> {
        self.rolled_back
    }

    /// Returns the number of noted gets, and of the failed ones among them.
    pub fn counts(&self) -> (u64, u64) {
        (self.gets, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use proptest::prelude::*;

    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_000);

    fn rollout(share: f64) -> Rollout {
        let from = "production".into();
        let to = "candidate".into();
        let (groups, steps) = (vec![], vec![]);
        Rollout { from, to, share, groups, steps, rollback: None, is_paused: false }
    }

    /// A hash with a key, as all replicas have it.
    fn keyed(key: u64) -> impl Fn(&str) -> u64 {
        move |text| {
            let mut hasher = DefaultHasher::new();
            (key, text).hash(&mut hasher);
            hasher.finish()
        }
    }

    fn get(caller: u64, has_failed: bool) -> GetOutcome {
        GetOutcome { caller, has_failed }
    }

    fn takes(rollout: &Rollout, caller: &Caller, hash: impl FnOnce(&str) -> u64) -> bool {
        rollout.takes("team__refund", caller, NOW, hash)
    }

    fn callers() -> Vec<Caller> {
        (0..10_000).map(|n| Caller::new(&format!("caller-{n}"))).collect()
    }

    #[test]
    fn the_share_is_met_within_one_percent_and_replicas_agree() {
        let callers = callers();
        for share in [0.0, 0.05, 0.25, 0.5, 0.9, 1.0] {
            let sides = |key| -> Vec<bool> {
                // Each replica reads the rollout from its own file.
                let rollout = rollout(share);
                let hash = keyed(key);
                callers.iter().map(|caller| takes(&rollout, caller, &hash)).collect()
            };
            let first = sides(7);
            let taken = first.iter().filter(|taken| **taken).count() as f64;
            assert!((taken / 10_000.0 - share).abs() < 0.01, "{taken} for {share}");
            assert!([sides(7), sides(7)].iter().all(|other| *other == first));
            assert_eq!(sides(8) == first, share == 0.0 || share == 1.0, "the key counts: {share}");
        }
    }

    #[test]
    fn rollouts_of_two_prompts_choose_their_callers_independently() {
        let half = rollout(0.5);
        let both = |caller: &&Caller| {
            let takes = |prompt| half.takes(prompt, caller, NOW, keyed(7));
            takes("team__refund") && takes("other")
        };
        let both = callers().iter().filter(both).count();
        assert!((2_300..2_700).contains(&both), "{both}");
    }

    #[test]
    fn the_ends_of_the_hash_are_on_the_right_sides() {
        let ada = Caller::new("ada");
        assert!(takes(&rollout(1.0), &ada, |_| u64::MAX));
        assert!(!takes(&rollout(0.0), &ada, |_| 0));
        assert!(takes(&rollout(0.5), &ada, |_| (1 << 63) - 1));
        assert!(!takes(&rollout(0.5), &ada, |_| 1 << 63));
    }

    #[test]
    fn a_paused_rollout_takes_no_caller() {
        let paused = Rollout { is_paused: true, ..rollout(1.0) };
        assert!(!takes(&paused, &Caller::new("ada"), |_| 0));
        assert_eq!((paused.share_at(NOW), paused.share), (0.0, 1.0));
    }

    #[test]
    fn callers_outside_the_groups_and_without_an_identity_are_never_taken() {
        let all = Rollout { groups: vec!["beta".to_owned()], ..rollout(1.0) };
        let member = Caller::in_groups("ada", &["alpha".to_owned(), "beta".to_owned()]);
        assert!(takes(&all, &member, |_| 0));
        assert!(!takes(&all, &Caller::new("bob"), |_| 0));
        for nobody in [crate::calls::caller::PROBER, crate::calls::caller::ANONYMOUS] {
            assert!(!takes(&rollout(1.0), &Caller::new(nobody), |_| 0), "{nobody}");
        }
    }

    #[test]
    fn a_step_counts_from_its_second_on() {
        let step = |at, share| RolloutStep { at: UnixSeconds(at), share };
        let steps = vec![step(10, 0.1), step(20, 0.5)];
        let rollout = Rollout { steps, ..rollout(0.01) };
        for (now, share, next) in
            [(9, 0.01, Some(10)), (10, 0.1, Some(20)), (19, 0.1, Some(20)), (20, 0.5, None)]
        {
            let now = UnixSeconds(now);
            assert_eq!(rollout.share_at(now), share, "{now}");
            assert_eq!(rollout.next_step(now).map(|step| step.at.0), next, "{now}");
        }
    }

    #[test]
    fn without_a_rule_outcomes_are_counted_and_nothing_is_rolled_back() {
        let mut outcomes = RolloutOutcomes::default();
        assert!((0..1_000).all(|caller| !outcomes.note(get(caller, true), None, NOW)));
        assert_eq!((outcomes.counts(), outcomes.rolled_back()), ((1_000, 1_000), None));
    }

    proptest! {
        #[test]
        fn a_caller_never_changes_sides_as_the_share_grows(
            id in "[a-z]{1,8}", key: u64, mut shares in prop::collection::vec(0.0..=1.0_f64, 1..8),
        ) {
            shares.sort_by(f64::total_cmp);
            let caller = Caller::new(&id);
            let taken = shares.iter().map(|share| takes(&rollout(*share), &caller, keyed(key)));
            let taken: Vec<_> = taken.collect();
            prop_assert!(taken.is_sorted(), "{taken:?} of {shares:?}");
        }

        #[test]
        fn with_a_caller_for_each_get_it_is_rolled_back_when_more_failed_than_may(
            outcomes in prop::collection::vec(any::<bool>(), 0..80),
            share in 0.0..0.99_f64, over in 2..20_usize,
        ) {
            let mut window = RolloutOutcomes::default();
            let rule = RollbackRule { share, over };
            let mut expected = None;
            for (at, has_failed) in outcomes.iter().enumerate() {
                let last = &outcomes[(at + 1).saturating_sub(over)..=at];
                let failed = last.iter().filter(|failed| **failed).count();
                let passes = *has_failed
                    && expected.is_none()
                    && failed > 1
                    && failed as f64 > share * over as f64;
                let now = UnixSeconds(at as u64);
                prop_assert_eq!(window.note(get(at as u64, *has_failed), Some(rule), now), passes);
                expected = expected.or(passes.then_some(now));
                prop_assert_eq!(window.rolled_back(), expected);
            }
        }

        #[test]
        fn a_caller_who_fails_on_purpose_takes_nothing_back_without_failures_of_others(
            others in prop::collection::vec((1..6_u64, any::<bool>()), 0..200),
            share in 0.0..0.99_f64, over in 2..40_usize,
        ) {
            let mut window = RolloutOutcomes::default();
            let rule = RollbackRule { share, over };
            // After each get of another caller the adversary fails as often as fits the window.
            let mut failed_of_others = 0;
            let mut is_back = false;
            for (caller, has_failed) in others {
                failed_of_others += usize::from(has_failed);
                is_back |= window.note(get(caller, has_failed), Some(rule), NOW);
                for _ in 0..over {
                    is_back |= window.note(get(0, true), Some(rule), NOW);
                }
                let needed = rule.needed();
                let of_others = (needed - needed.div_ceil(2)).max(1);
                prop_assert!(!is_back || failed_of_others >= of_others, "{failed_of_others}");
            }
        }

        #[test]
        fn a_caller_who_succeeds_on_purpose_does_not_hide_the_failures_of_others(
            share in 0.0..0.4_f64, over in 4..40_usize, flood in 0..100_usize,
        ) {
            let mut window = RolloutOutcomes::default();
            let rule = RollbackRule { share, over };
            let mut is_back = false;
            for caller in 1..=over as u64 {
                is_back |= window.note(get(caller, true), Some(rule), NOW);
                for _ in 0..flood {
                    is_back |= window.note(get(0, false), Some(rule), NOW);
                }
            }
            prop_assert!(is_back);
        }
    }
}
