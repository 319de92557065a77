//! Terminated sessions: each replica tells the others, and learns with each heartbeat what they told.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::PoisonError;

use super::Cluster;
use crate::domain::caller::Caller;
use crate::domain::fair_share::Holder;
use crate::seal::{Kind, Sealer};

/// Terminated sessions that wait until the store can be reached. The oldest is dropped first: it stays terminated here.
const UNTOLD: usize = 10_000;

/// What the seal of a terminated session is bound to.
const BOUND_TO: &str = "terminated";

impl Cluster {
    /// Tells the other replicas that a session of `holder` was terminated; at once, or as soon as the store can be
    /// reached.
    pub(crate) async fn tell_terminated(&self, holder: &Holder, session: [u8; 16]) {
        let sealed = seal(&self.sealer.load(), holder, session);
        {
            let mut untold = self.untold();
            if untold.len() >= UNTOLD {
                untold.pop_front();
            }
            untold.push_back(sealed);
        }
        self.tell_untold().await;
    }

    /// Tells the terminated sessions that nobody was told of.
    pub(super) async fn tell_untold(&self) {
        let untold = std::mem::take(&mut *self.untold());
        if untold.is_empty() {
            return;
        }
        let bounds = self.bounds.load_full();
        let mut told = self.scripts.terminate.key(self.store.key("terminated"));
        told.arg(bounds.deleted_sessions);
        told.arg(u64::try_from(bounds.session_lifetime.as_millis()).unwrap_or(u64::MAX).max(1));
        untold.iter().for_each(|sealed| {
            told.arg(sealed);
        });
        let run = self
            .store
            .run(async |mut connection| told.invoke_async::<redis::Value>(&mut connection).await);
        if run.await.is_err() {
            let mut since = self.untold();
            let room = UNTOLD.saturating_sub(since.len());
            let dropped = untold.len().saturating_sub(room);
            untold.into_iter().skip(dropped).rev().for_each(|sealed| since.push_front(sealed));
        }
    }

    fn untold(&self) -> std::sync::MutexGuard<'_, VecDeque<String>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seals a terminated session: its nonce, and the holder that it is remembered for.
fn seal(sealer: &Sealer, holder: &Holder, session: [u8; 16]) -> String {
    let mut plain = session.to_vec();
    match holder {
        Holder::Caller(caller) => {
            plain.push(0);
            plain.extend_from_slice(caller.id().as_bytes());
        }
        Holder::Network(network) => {
            plain.push(1);
            plain.extend_from_slice(network.to_string().as_bytes());
        }
    }
    sealer.seal(Kind::Terminated, BOUND_TO, &plain)
}

/// Opens a terminated session; `None` for any other text.
pub(super) fn open(sealer: &Sealer, sealed: &str) -> Option<(Holder, [u8; 16])> {
    let plain = sealer.open(Kind::Terminated, BOUND_TO, sealed)?;
    let (session, rest) = plain.split_first_chunk()?;
    let (kind, holder) = rest.split_first()?;
    let holder = std::str::from_utf8(holder).ok()?;
    let holder = match kind {
        0 => Holder::Caller(Caller::new(holder)),
        1 => Holder::Network(holder.parse::<IpAddr>().ok()?),
        _ => return None,
    };
    Some((holder, *session))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::caller::MAX_ID;
    use crate::seal::SealKeys;

    #[test]
    fn a_terminated_session_opens_with_its_holder() {
        let sealer = Sealer::new(&SealKeys::ephemeral());
        let longest = Caller::new(&"\u{20000}".repeat(MAX_ID));
        for holder in [
            Holder::Caller(Caller::new("a")),
            Holder::Caller(longest),
            Holder::Network("2001:db8::".parse().unwrap()),
        ] {
            let sealed = seal(&sealer, &holder, [7; 16]);
            assert_eq!(open(&sealer, &sealed), Some((holder, [7; 16])));
            assert_eq!(open(&Sealer::new(&SealKeys::ephemeral()), &sealed), None);
        }
    }
}
