//! The posted messages that were received: each is handled at most once.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::message::MessageId;
use crate::ReplicaId;
use domain::calls::fair_share::{FairShare, Holder, Share};
use domain::time::millis::whole_millis;

/// The ids of received messages, until they expire. Pure: the clock is an argument, in milliseconds
/// since the Unix epoch.
#[derive(Debug)]
pub(super) struct SeenMessages {
    ids: HashSet<MessageId>,
    /// In the order of arrival.
    order: VecDeque<SeenMessage>,
    shares: FairShare<Holder>,
}

#[derive(Debug)]
struct SeenMessage {
    id: MessageId,
    holder: Holder,
    /// The time from which on the clock alone refuses the message.
    until: u64,
}

/// The replicas whose last message had expired: their clock differs, or messages are late. Each
/// replica is logged once, until a message of it arrives in time.
#[derive(Debug, Default)]
pub(super) struct LateReplicas(HashSet<ReplicaId>);

/// Most replicas that are remembered as late. Further replicas are not logged: ids are those of
/// processes, and come and go.
const MAX_LATE: usize = 256;

impl LateReplicas {
    /// Notes an expired message; returns whether it is the first since the last message in time.
    pub(super) fn note_late(&mut self, replica: ReplicaId) -> bool {
        self.0.len() < MAX_LATE && self.0.insert(replica)
    }

    /// Notes a message in time.
    pub(super) fn note_in_time(&mut self, replica: ReplicaId) {
        self.0.remove(&replica);
    }
}

/// Why a message is not handled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MessageRejection {
    /// The message has expired, or the clock of its sender differs too much.
    Expired,
    Repeated,
    /// No more ids can be remembered for this holder.
    Full,
}

/// Most ids that are remembered: about 10 MiB.
const MAX: usize = 1 << 16;

/// Longest time for which a message is valid, on all replicas alike.
pub(super) const VALIDITY: Duration = Duration::from_secs(60);

/// Difference of the clocks of two replicas that does no harm.
const SKEW: Duration = Duration::from_secs(5);

/// Whether a message that expires at `expires` may be handled: it has not expired, and does not
/// expire too far in the future.
pub(super) fn is_valid(expires: u64, now: u64) -> bool {
    now <= expires.saturating_add(whole_millis(SKEW)) && expires <= latest(now)
}

fn latest(now: u64) -> u64 {
    now.saturating_add(whole_millis(VALIDITY)).saturating_add(whole_millis(SKEW))
}

impl SeenMessages {
    pub(super) fn new(share: Share) -> Self {
        let shares = FairShare::new(MAX, share.of(MAX));
        Self { ids: HashSet::new(), order: VecDeque::new(), shares }
    }

    /// Changes the share of one holder.
    pub(super) fn resize(&mut self, share: Share) {
        self.shares.resize(MAX, share.of(MAX));
    }

    /// Notes a message that [`is_valid`].
    ///
    /// # Errors
    /// Why the message must not be handled.
    pub(super) fn note(
        &mut self,
        id: MessageId,
        holder: &Holder,
        now: u64,
    ) -> Result<(), MessageRejection> {
        // All ids are kept equally long, so the order of arrival is that of their ends.
        while let Some(oldest) = self.order.front().filter(|oldest| oldest.until < now) {
            self.ids.remove(&oldest.id);
            self.shares.put_back(&oldest.holder, 1);
            self.order.pop_front();
        }
        if self.ids.contains(&id) {
            return Err(MessageRejection::Repeated);
        }
        self.shares.take(holder, 1).map_err(|_| MessageRejection::Full)?;
        self.ids.insert(id);
        let until = latest(now).saturating_add(whole_millis(SKEW));
        self.order.push_back(SeenMessage { id, holder: holder.clone(), until });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::calls::caller::Caller;

    const NOW: u64 = 1_000_000;
    const SKEWED: u64 = 5_000;

    fn id(n: u32) -> MessageId {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&n.to_be_bytes());
        id
    }

    fn holder(id: &str) -> Holder {
        Holder::Caller(Caller::new(id))
    }

    #[test]
    fn a_message_is_valid_until_its_end_and_the_difference_of_clocks() {
        assert!(is_valid(NOW - SKEWED, NOW) && !is_valid(NOW - SKEWED - 1, NOW));
        let longest = NOW + 60_000 + SKEWED;
        assert!(is_valid(longest, NOW) && !is_valid(longest + 1, NOW));
    }

    #[test]
    fn a_repeated_message_is_refused_as_long_as_the_clock_would_accept_it() {
        for expires in [NOW - SKEWED, NOW, NOW + 60_000 + SKEWED] {
            let mut seen = SeenMessages::new(Share::WHOLE);
            assert_eq!(seen.note(id(1), &holder("a"), NOW), Ok(()));
            for now in (NOW..=NOW + 80_000).filter(|now| is_valid(expires, *now)) {
                let again = seen.note(id(1), &holder("a"), now);
                assert_eq!(again, Err(MessageRejection::Repeated), "{expires} {now}");
            }
        }
    }

    #[test]
    fn ids_are_shared_fairly_and_forgotten_after_their_end() {
        let mut seen = SeenMessages::new(Share::new(0.25));
        let noted = |seen: &mut SeenMessages, from: usize, holder: &Holder| {
            (from..from + MAX).filter(|n| seen.note(id(*n as u32), holder, NOW).is_ok()).count()
        };
        assert_eq!(noted(&mut seen, 0, &holder("flood")), MAX / 2 + 1);
        assert_eq!(noted(&mut seen, MAX, &holder("other")), MAX / 4);
        assert_eq!(seen.note(id(u32::MAX), &holder("flood"), NOW), Err(MessageRejection::Full));
        let later = NOW + 60_000 + 2 * SKEWED + 1;
        assert_eq!(seen.note(id(0), &holder("flood"), later), Ok(()));
        assert_eq!(seen.ids.len(), 1);
    }

    #[test]
    fn a_replica_whose_clock_differs_is_logged_once_until_it_is_right_again() {
        let replica = |n: u8| ReplicaId::of_test(n);
        let mut late = LateReplicas::default();
        assert!(late.note_late(replica(1)));
        late.note_in_time(replica(2));
        assert!(!late.note_late(replica(1)), "messages of others change nothing");
        assert!(late.note_late(replica(2)));
        late.note_in_time(replica(1));
        assert!(late.note_late(replica(1)));
    }
}
