//! The policy of reloads: decides after which poll the configuration is loaded. Its input is
//! digests and the time; it reads no files.

use std::time::Duration;

use tokio::time::Instant;

use config::{ConfigError, SourceFile};

/// The interval in which a rejected configuration is tried again: the mistake may be in a file that
/// only this configuration names, and whose correction no poll sees.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The cause of a poll.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wake {
    Interval,
    /// A signal, or a command.
    Requested,
}

/// The files of the configuration at one time.
#[derive(Clone, Debug)]
pub(super) struct Polled {
    /// Whether the files are those of the configuration in use.
    pub is_used: bool,
    /// The digests of the files of the configuration in use, then of
    /// [`ConfigWatcher::more_files`].
    pub digests: Vec<String>,
}

/// The step that follows a poll.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    Wait,
    /// The files were changed, rejected, and are again those in use.
    Restored,
    /// The configuration is to be loaded; [`ConfigWatcher::loaded`] takes the outcome.
    Load,
}

/// The polls and the rejection so far.
#[derive(Default)]
pub(super) struct ConfigWatcher {
    /// The digests of the previous poll.
    seen: Vec<String>,
    rejected: Option<RejectedConfig>,
}

/// A rejected configuration.
struct RejectedConfig {
    /// The digests of the files that were polled.
    polled: Vec<String>,
    /// Whether the files ever differed from those in use: otherwise the mistake is not in them.
    has_differed: bool,
    at: Instant,
    reason: RejectionReason,
}

/// Why a configuration is rejected.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct RejectionReason {
    /// One mistake on each line.
    pub why: String,
    /// The digest of the file, if it looks as if it had lost its end.
    pub held: Option<String>,
    /// The other files that were read with it: the mistake may be in one of them.
    pub files: Vec<SourceFile>,
}

impl From<String> for RejectionReason {
    fn from(why: String) -> Self {
        Self { why, held: None, files: Vec::new() }
    }
}

impl From<ConfigError> for RejectionReason {
    fn from(error: ConfigError) -> Self {
        Self { why: error.to_string(), held: None, files: error.files }
    }
}

impl ConfigWatcher {
    /// The files that the rejected configuration was read with: the mistake may be in one of them.
    pub(super) fn more_files(&self) -> &[SourceFile] {
        self.rejected.as_ref().map_or(&[], |rejected| &rejected.reason.files)
    }

    /// Decides what follows a poll. Files that have changed are loaded once they are the same in
    /// two polls, so that a half-written file is not read.
    pub(super) fn observe(&mut self, wake: Wake, polled: &Polled, now: Instant) -> Step {
        if wake == Wake::Requested {
            return Step::Load;
        }
        let Polled { is_used, digests } = polled;
        let is_settled = self.seen == *digests;
        self.seen.clone_from(digests);
        if let Some(rejected) = &mut self.rejected {
            rejected.has_differed |= !is_used;
        }
        if *is_used {
            let is_restored =
                is_settled && self.rejected.take_if(|rejected| rejected.has_differed).is_some();
            return if is_restored { Step::Restored } else { Step::Wait };
        }
        let is_known = self.rejected.as_ref().is_some_and(|rejected| {
            rejected.polled == *digests && now.duration_since(rejected.at) < RETRY_INTERVAL
        });
        if is_settled && !is_known { Step::Load } else { Step::Wait }
    }

    /// Takes the outcome of the load that followed a poll. Returns the rejection to report; `None`
    /// if it was reported before.
    pub(super) fn loaded(
        &mut self,
        outcome: Result<(), RejectionReason>,
        wake: Wake,
        polled: Polled,
        now: Instant,
    ) -> Option<&RejectionReason> {
        let Err(reason) = outcome else {
            self.rejected = None;
            return None;
        };
        let Polled { is_used, mut digests } = polled;
        let before = self.rejected.take();
        let is_reported = before.as_ref().is_some_and(|before| {
            before.polled == digests && before.reason.why == reason.why && wake == Wake::Interval
        });
        let more = before.map_or(0, |before| before.reason.files.len());
        digests.truncate(digests.len().saturating_sub(more));
        // The digests at the time of reading: a correction may have been saved meanwhile.
        digests.extend(reason.files.iter().map(|file| file.digest.clone()));
        self.seen.clone_from(&digests);
        let rejected = RejectedConfig { polled: digests, has_differed: !is_used, at: now, reason };
        let rejected = self.rejected.insert(rejected);
        (!is_reported).then_some(&rejected.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn polled(used: &str, digests: &[&str]) -> Polled {
        let digests: Vec<_> = digests.iter().map(|digest| (*digest).to_owned()).collect();
        Polled { is_used: digests.first().is_some_and(|first| first == used), digests }
    }

    fn rejection(files: &[(&str, &str)]) -> RejectionReason {
        let files = files
            .iter()
            .map(|(path, digest)| SourceFile { path: path.into(), digest: (*digest).to_owned() });
        RejectionReason { files: files.collect(), ..RejectionReason::from("why".to_owned()) }
    }

    #[test]
    fn a_changed_file_is_loaded_once_it_is_the_same_in_two_polls() {
        let mut watcher = ConfigWatcher::default();
        let now = Instant::now();
        let mut observe = |digest| watcher.observe(Wake::Interval, &polled("a", &[digest]), now);
        let steps = ["a", "a", "b", "c", "c"].map(&mut observe);
        assert_eq!(steps, [Step::Wait, Step::Wait, Step::Wait, Step::Wait, Step::Load]);
        assert_eq!(watcher.observe(Wake::Requested, &polled("a", &["d"]), now), Step::Load);
    }

    #[test]
    fn a_rejected_configuration_is_reported_once_and_tried_again_later_or_when_it_changes() {
        let mut watcher = ConfigWatcher::default();
        let start = Instant::now();
        let poll = |watcher: &mut ConfigWatcher, digests: &[&str], secs| {
            let polled = polled("a", digests);
            let now = start + Duration::from_secs(secs);
            let step = watcher.observe(Wake::Interval, &polled, now);
            let outcome = Err(rejection(&[("policies", "p")]));
            let is_load = step == Step::Load;
            let reported =
                is_load && watcher.loaded(outcome, Wake::Interval, polled, now).is_some();
            (step, reported)
        };
        assert_eq!(poll(&mut watcher, &["b"], 0), (Step::Wait, false));
        assert_eq!(poll(&mut watcher, &["b"], 1), (Step::Load, true));
        assert_eq!(poll(&mut watcher, &["b", "p"], 2), (Step::Wait, false), "it is known");
        assert_eq!(poll(&mut watcher, &["b", "p"], 6), (Step::Load, false), "tried again");
        // A correction in the file that only the rejected configuration names.
        assert_eq!(poll(&mut watcher, &["b", "q"], 7), (Step::Wait, false));
        assert_eq!(poll(&mut watcher, &["b", "q"], 8), (Step::Load, true));
        assert_eq!(poll(&mut watcher, &["a", "p"], 9), (Step::Wait, false));
        assert_eq!(poll(&mut watcher, &["a", "p"], 10), (Step::Restored, false));
        assert_eq!(poll(&mut watcher, &["a"], 11), (Step::Wait, false));
    }

    #[test]
    fn a_mistake_outside_of_the_polled_files_is_not_restored_by_them() {
        let mut watcher = ConfigWatcher::default();
        let now = Instant::now();
        let used = || polled("a", &["a"]);
        assert_eq!(watcher.observe(Wake::Requested, &used(), now), Step::Load);
        assert!(watcher.loaded(Err(rejection(&[])), Wake::Requested, used(), now).is_some());
        assert!(watcher.loaded(Err(rejection(&[])), Wake::Requested, used(), now).is_some());
        let steps = [(); 2].map(|()| watcher.observe(Wake::Interval, &used(), now));
        assert_eq!(steps, [Step::Wait; 2]);
    }

    proptest! {
        /// Whatever the files did: once they rest, they are in use or have been tried.
        #[test]
        fn files_that_rest_are_loaded_or_in_use(
            history in prop::collection::vec((0..4_u8, any::<bool>(), 0..9_u64), 0..40),
        ) {
            let mut watcher = ConfigWatcher::default();
            let mut now = Instant::now();
            let mut used = 0;
            let mut tried = None;
            let mut poll = |digest: u8, is_valid: bool, now| {
                let polled = Polled { is_used: digest == used, digests: vec![digest.to_string()] };
                let step = watcher.observe(Wake::Interval, &polled, now);
                if step == Step::Load {
                    tried = Some(digest);
                    let outcome = if is_valid { Ok(()) } else { Err(rejection(&[])) };
                    used = if is_valid { digest } else { used };
                    watcher.loaded(outcome, Wake::Interval, polled, now);
                }
                (used, tried)
            };
            for (digest, is_valid, secs) in history {
                now += Duration::from_secs(secs);
                poll(digest, is_valid, now);
            }
            now += RETRY_INTERVAL;
            poll(3, false, now);
            let (used, tried) = poll(3, false, now);
            prop_assert!(used == 3 || tried == Some(3));
        }
    }
}
