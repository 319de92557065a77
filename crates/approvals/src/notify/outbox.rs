//! Schedules notifications by upstream. Pure: clock and randomness are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use domain::name::UpstreamId;
use domain::time::backoff::Backoff;

/// The digest of a prompt version that waits for approval.
pub(super) type VersionId = [u8; 32];

/// The due notifications: at most one for each upstream. A notification is composed when it is
/// sent, so changes before that cause no second notification.
#[derive(Debug, Default)]
pub(super) struct Outbox(BTreeMap<UpstreamId, Entry>);

/// The waiting and the notified versions of one upstream.
#[derive(Debug, Default)]
struct Entry {
    waiting: BTreeSet<VersionId>,
    /// The part of `waiting` that was delivered or given up.
    said: BTreeSet<VersionId>,
    /// `Some` while a version in `waiting` is not in `said`.
    due: Option<Instant>,
    quiet_until: Option<Instant>,
    failing: Option<Failing>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    backoff: Backoff,
}

/// The consequence of a failed attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AfterFailure {
    Retried {
        is_first: bool,
    },
    /// Given up until another version waits.
    GivenUp,
}

/// Time from the first waiting version to the notification: a list often changes in several steps,
/// and after a start many prompts wait at once.
const SETTLE: Duration = Duration::from_secs(2);

/// Time between two notifications about one upstream, so that an upstream that keeps changing
/// prompts cannot flood a chat.
const PAUSE: Duration = Duration::from_mins(5);

/// Time from the first failed attempt until the last one.
const PATIENCE: Duration = Duration::from_hours(1);

/// Longest wait between two attempts; with [`PATIENCE`] there are fewer than 30.
const LONGEST_WAIT: Duration = Duration::from_mins(10);

impl Outbox {
    /// Replaces the waiting versions. Versions that no longer wait are forgotten.
    pub(super) fn observe(
        &mut self,
        mut waiting: BTreeMap<UpstreamId, BTreeSet<VersionId>>,
        now: Instant,
    ) {
        for (upstream, entry) in &mut self.0 {
            entry.observe(waiting.remove(upstream).unwrap_or_default(), now);
        }
        for (upstream, versions) in waiting {
            self.0.entry(upstream).or_default().observe(versions, now);
        }
        self.0.retain(|_, entry| {
            !entry.waiting.is_empty() || entry.quiet_until.is_some_and(|until| now < until)
        });
    }

    /// Returns the upstream of the next notification, and its time.
    pub(super) fn next(&self) -> Option<(Instant, &UpstreamId)> {
        self.0.iter().filter_map(|(upstream, entry)| Some((entry.due?, upstream))).min()
    }

    /// Notes that the receiver has accepted the notification of `waiting`.
    pub(super) fn delivered(&mut self, upstream: &UpstreamId, now: Instant) {
        if let Some(entry) = self.0.get_mut(upstream) {
            entry.done(now);
        }
    }

    /// Notes a failed attempt. `random` is uniform in 0..1.
    pub(super) fn failed(
        &mut self,
        upstream: &UpstreamId,
        now: Instant,
        random: f64,
    ) -> AfterFailure {
        let Some(entry) = self.0.get_mut(upstream) else {
            return AfterFailure::GivenUp;
        };
        let is_first = entry.failing.is_none();
        let backoff = Backoff::up_to(LONGEST_WAIT);
        let failing = entry.failing.get_or_insert(Failing { since: now, backoff });
        if now - failing.since >= PATIENCE {
            entry.done(now);
            return AfterFailure::GivenUp;
        }
        entry.due = Some(now + failing.backoff.next(random));
        AfterFailure::Retried { is_first }
    }
}

impl Entry {
    fn observe(&mut self, waiting: BTreeSet<VersionId>, now: Instant) {
        self.waiting = waiting;
        self.said.retain(|version| self.waiting.contains(version));
        if self.said.len() == self.waiting.len() {
            (self.due, self.failing) = (None, None);
        } else {
            let settled = now + SETTLE;
            let first = self.quiet_until.map_or(settled, |until| settled.max(until));
            self.due.get_or_insert(first);
        }
    }

    fn done(&mut self, now: Instant) {
        self.said.clone_from(&self.waiting);
        (self.due, self.failing, self.quiet_until) = (None, None, Some(now + PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(text: &str) -> UpstreamId {
        UpstreamId::parse(text).unwrap()
    }

    fn waiting(upstreams: &[(&str, &[u8])]) -> BTreeMap<UpstreamId, BTreeSet<VersionId>> {
        let versions = |versions: &[u8]| versions.iter().map(|version| [*version; 32]).collect();
        upstreams.iter().map(|(upstream, own)| (id(upstream), versions(own))).collect()
    }

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn each_version_that_begins_to_wait_is_said_once_after_a_moment() {
        let mut outbox = Outbox::default();
        let start = Instant::now();
        assert_eq!(outbox.next(), None);
        outbox.observe(waiting(&[("a", &[1])]), start);
        outbox.observe(waiting(&[("a", &[1, 2])]), start + secs(1));
        let (due, upstream) = outbox.next().unwrap();
        assert_eq!((due, upstream.as_str()), (start + SETTLE, "a"), "both in one");
        outbox.delivered(&id("a"), due);
        outbox.observe(waiting(&[("a", &[1, 2])]), due);
        outbox.observe(waiting(&[("a", &[2])]), due);
        assert_eq!(outbox.next(), None);
        outbox.observe(waiting(&[("a", &[2, 3])]), due + secs(1));
        assert_eq!(outbox.next().unwrap().0, due + PAUSE, "one upstream does not fill a chat");
        outbox.observe(waiting(&[]), due + secs(2));
        assert_eq!(outbox.next(), None, "nothing waits any longer");
        outbox.observe(waiting(&[("a", &[2])]), due + secs(3));
        assert_eq!(outbox.next().unwrap().0, due + PAUSE, "it waits anew");
        outbox.observe(waiting(&[]), due + PAUSE);
        assert!(outbox.0.is_empty());
    }

    #[test]
    fn a_notification_that_fails_is_retried_for_an_hour_while_others_go_on() {
        let mut outbox = Outbox::default();
        let start = Instant::now();
        outbox.observe(waiting(&[("a", &[1]), ("b", &[1])]), start);
        let first = outbox.failed(&id("a"), start + SETTLE, 1.0);
        assert_eq!(first, AfterFailure::Retried { is_first: true });
        assert_eq!(outbox.next().unwrap().1, &id("b"), "a notification holds up no other");
        outbox.delivered(&id("b"), start + SETTLE);
        let mut attempts = 1;
        let given_up = loop {
            let (due, upstream) = outbox.next().map(|(due, next)| (due, next.clone())).unwrap();
            attempts += 1;
            match outbox.failed(&upstream, due, 0.0) {
                AfterFailure::Retried { is_first } => assert!(!is_first),
                AfterFailure::GivenUp => break due,
            }
        };
        let took = given_up - (start + SETTLE);
        assert!((PATIENCE..PATIENCE + LONGEST_WAIT).contains(&took), "{took:?}");
        assert!(attempts < 30, "{attempts}");
        outbox.observe(waiting(&[("a", &[1])]), given_up);
        assert_eq!(outbox.next(), None);
        outbox.observe(waiting(&[("a", &[1, 2])]), given_up + PAUSE);
        assert_eq!(outbox.next().unwrap().0, given_up + PAUSE + SETTLE, "another version waits");
        let again = outbox.failed(&id("a"), given_up + PAUSE + SETTLE, 0.0);
        assert_eq!(again, AfterFailure::Retried { is_first: true });
        outbox.observe(waiting(&[("a", &[1])]), given_up + PAUSE + SETTLE);
        assert_eq!(outbox.next(), None, "the new one was decided on");
    }

    /// An event between two looks at what waits.
    #[derive(Clone, Debug)]
    enum Step {
        Observe(BTreeSet<u8>, BTreeSet<u8>),
        /// The next notification is sent, if it is due within the seconds.
        Send {
            within: u64,
            is_taken: bool,
        },
        Pass(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let versions = || prop::collection::btree_set(0..6_u8, 0..4);
        let step = prop_oneof![
            (versions(), versions()).prop_map(|(a, b)| Step::Observe(a, b)),
            (0..2_000_u64, any::<bool>())
                .prop_map(|(within, is_taken)| Step::Send { within, is_taken }),
            (0..1_000_u64).prop_map(Step::Pass),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn something_is_due_exactly_while_a_version_waits_that_was_not_said(steps in steps()) {
            let mut outbox = Outbox::default();
            let mut now = Instant::now();
            let mut said: BTreeMap<UpstreamId, BTreeSet<VersionId>> = BTreeMap::new();
            let mut waits: BTreeMap<UpstreamId, BTreeSet<VersionId>> = BTreeMap::new();
            let mut delivered: BTreeMap<UpstreamId, Instant> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Observe(a, b) => {
                        let a: Vec<_> = a.into_iter().collect();
                        let b: Vec<_> = b.into_iter().collect();
                        let lists: Vec<_> =
                            [("a", &a), ("b", &b)].into_iter().filter(|(_, own)| !own.is_empty())
                            .map(|(upstream, own)| (upstream, own.as_slice())).collect();
                        waits = waiting(&lists);
                        said.retain(|upstream, _| waits.contains_key(upstream));
                        for (upstream, said) in &mut said {
                            said.retain(|version| waits[upstream].contains(version));
                        }
                        outbox.observe(waits.clone(), now);
                    }
                    Step::Send { within, is_taken } => {
                        let next = outbox.next().map(|(due, upstream)| (due, upstream.clone()));
                        let Some((due, upstream)) = next else { continue };
                        if due > now + secs(within) {
                            continue;
                        }
                        now = now.max(due);
                        let is_over = is_taken || {
                            outbox.failed(&upstream, now, 0.5) == AfterFailure::GivenUp
                        };
                        if is_taken {
                            let before = delivered.insert(upstream.clone(), now);
                            prop_assert!(before.is_none_or(|before| now - before >= PAUSE));
                            outbox.delivered(&upstream, now);
                        }
                        if is_over {
                            said.insert(upstream.clone(), waits[&upstream].clone());
                        }
                    }
                    Step::Pass(seconds) => now += secs(seconds),
                }
                let open = |upstream: &UpstreamId| {
                    waits.get(upstream).is_some_and(|own| said.get(upstream) != Some(own))
                };
                for upstream in [id("a"), id("b")] {
                    let due = outbox.0.get(&upstream).and_then(|entry| entry.due);
                    prop_assert_eq!(due.is_some(), open(&upstream));
                    prop_assert!(due.is_none_or(|due| due <= now + PAUSE.max(LONGEST_WAIT)));
                }
            }
        }
    }
}
