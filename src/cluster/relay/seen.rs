//! The messages that were received: each is handled at most once.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::message::MessageId;

/// The ids of received messages, until they expire. Pure: the clock is an argument, in milliseconds since the Unix
/// epoch.
#[derive(Debug, Default)]
pub(super) struct SeenMessages {
    ids: HashSet<MessageId>,
    /// In the order of arrival, with the time from which the clock alone refuses the message.
    order: VecDeque<(u64, MessageId)>,
}

/// Why a message is not handled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Rejected {
    /// It has expired, or its sender's clock differs too much.
    Expired,
    Repeated,
    /// No more ids can be remembered.
    Full,
}

/// Most ids that are remembered: about 3 MiB.
const MAX: usize = 1 << 16;

/// Difference of the clocks of two replicas that does no harm, in milliseconds.
const SKEW: u64 = 5_000;

impl SeenMessages {
    /// Notes a message that expires at `expires`, not later than `longest` after it was sent.
    ///
    /// # Errors
    /// Why the message must not be handled.
    pub(super) fn note(
        &mut self,
        id: MessageId,
        expires: u64,
        longest: Duration,
        now: u64,
    ) -> Result<(), Rejected> {
        let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        let latest = now.saturating_add(longest).saturating_add(SKEW);
        if now > expires.saturating_add(SKEW) || expires > latest {
            return Err(Rejected::Expired);
        }
        // All are kept for the longest time, so that the order is the one of their ends.
        while let Some((until, oldest)) = self.order.front()
            && *until < now
        {
            self.ids.remove(oldest);
            self.order.pop_front();
        }
        if self.ids.contains(&id) {
            return Err(Rejected::Repeated);
        }
        if self.ids.len() >= MAX {
            return Err(Rejected::Full);
        }
        self.ids.insert(id);
        self.order.push_back((latest.saturating_add(SKEW), id));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    fn id(n: u32) -> MessageId {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&n.to_be_bytes());
        id
    }

    #[test]
    fn a_message_is_handled_once_and_not_after_its_end() {
        let mut seen = SeenMessages::default();
        let sent = 1_000_000;
        let expires = sent + 60_000;
        assert_eq!(seen.note(id(1), expires, LONGEST, sent), Ok(()));
        assert_eq!(seen.note(id(1), expires, LONGEST, sent + 1), Err(Rejected::Repeated));
        assert_eq!(seen.note(id(1), expires, LONGEST, expires + SKEW), Err(Rejected::Repeated));
        assert_eq!(seen.note(id(1), expires, LONGEST, expires + SKEW + 1), Err(Rejected::Expired));
        assert_eq!(seen.note(id(2), sent - SKEW, LONGEST, sent), Ok(()), "the clocks differ");
        assert_eq!(seen.note(id(3), sent - SKEW - 1, LONGEST, sent), Err(Rejected::Expired));
        assert_eq!(seen.note(id(4), expires + SKEW, LONGEST, sent), Ok(()));
        assert_eq!(seen.note(id(5), expires + SKEW + 1, LONGEST, sent), Err(Rejected::Expired));
    }

    #[test]
    fn a_repeated_message_is_refused_as_long_as_the_clock_would_accept_it() {
        // Whatever its end, an id is forgotten only when the clock refuses it.
        for expires in [1_000_000 - SKEW, 1_000_000, 1_060_000 + SKEW] {
            let mut seen = SeenMessages::default();
            assert_eq!(seen.note(id(1), expires, LONGEST, 1_000_000), Ok(()));
            for now in 1_000_000..=1_075_000 {
                assert!(seen.note(id(1), expires, LONGEST, now).is_err(), "{expires} {now}");
            }
        }
    }

    #[test]
    fn ids_are_bounded_and_forgotten_after_their_end() {
        let mut seen = SeenMessages::default();
        for n in 0..MAX as u32 {
            assert_eq!(seen.note(id(n), 1_000, LONGEST, 1_000), Ok(()));
        }
        let next = id(MAX as u32);
        assert_eq!(seen.note(next, 1_000, LONGEST, 1_000), Err(Rejected::Full));
        let later = 1_000 + 60_000 + 2 * SKEW + 1;
        assert_eq!(seen.note(next, later, LONGEST, later), Ok(()));
        assert_eq!(seen.ids.len(), 1);
    }
}
