//! Terminated sessions: each replica publishes its own through the store, and reads those of other
//! replicas with each heartbeat.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::Semaphore;

use super::Link;
use super::store::StoreUnavailable;
use base::platform::Locked;
use base::seal::{Sealer, TokenKind};
use domain::calls::caller::Caller;
use domain::calls::fair_share::Holder;
use domain::time::millis::whole_millis;

/// Terminated sessions that wait until the store can be reached. Beyond that the oldest is not
/// published: it stays terminated on this replica.
const UNPUBLISHED: usize = 10_000;

/// Sessions that one script writes: a longer script would block the store for its other clients.
const PUBLISHED_AT_ONCE: usize = 200;

/// Longest time for which the store keeps terminated sessions.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The entry before all others of a stream.
const FIRST: &str = "0-0";

/// The context that the seal of a terminated session is bound to.
const BOUND_TO: &str = "terminated";

/// The terminated sessions of all replicas.
pub struct Terminations {
    link: Arc<Link>,
    /// The last entry of the stream of terminated sessions that this replica has read.
    last: ArcSwap<String>,
    /// Whether this replica has read all terminated sessions that the store had at the start.
    is_complete: AtomicBool,
    /// Terminated sessions that are not published yet.
    unpublished: Mutex<VecDeque<Arc<str>>>,
    /// Serialises the writes of `unpublished` to the store.
    publishing: Semaphore,
}

impl Terminations {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            last: ArcSwap::from_pointee(FIRST.to_owned()),
            is_complete: AtomicBool::new(false),
            unpublished: Mutex::default(),
            publishing: Semaphore::new(1),
        }
    }

    /// Whether sessions that were terminated before this replica started are known here.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed)
    }

    /// Notes that all terminated sessions of the store are known here.
    pub(super) fn note_complete(&self) {
        self.is_complete.store(true, Ordering::Relaxed);
    }

    /// The last entry of the stream that is known here.
    pub(super) fn last(&self) -> Arc<String> {
        self.last.load_full()
    }

    /// Reads the stream from its beginning: another server may number the entries in another way.
    pub(super) fn read_again(&self) {
        self.last.store(Arc::new(FIRST.to_owned()));
    }

    /// Publishes to the other replicas that a session of `holder` was terminated; at once, or as
    /// soon as the store can be reached.
    pub async fn publish(&self, holder: &Holder, session: [u8; 16]) {
        let sealed = seal(&self.link.sealer.load(), holder, session);
        {
            let mut unpublished = self.unpublished.locked();
            if unpublished.len() >= UNPUBLISHED {
                unpublished.pop_front();
            }
            unpublished.push_back(sealed.into());
        }
        // A session that waits here is usually written by the one before it.
        let Ok(_turn) = self.publishing.acquire().await else {
            return;
        };
        self.publish_all().await;
    }

    /// Publishes the terminated sessions that are still unpublished, unless another task does
    /// already.
    pub(super) async fn publish_pending(&self) {
        if let Ok(_turn) = self.publishing.try_acquire() {
            self.publish_all().await;
        }
    }

    /// Cancel safe: a session is unpublished until the store has answered.
    async fn publish_all(&self) {
        loop {
            let sessions: Vec<_> =
                self.unpublished.locked().iter().take(PUBLISHED_AT_ONCE).cloned().collect();
            if sessions.is_empty() || self.publish_sessions(&sessions).await.is_err() {
                return;
            }
            // The front of the queue may have changed meanwhile: another task may have published
            // sessions, or entries may have been dropped.
            self.unpublished.locked().retain(|unpublished| {
                !sessions.iter().any(|session| Arc::ptr_eq(session, unpublished))
            });
        }
    }

    async fn publish_sessions(&self, sessions: &[Arc<str>]) -> Result<(), StoreUnavailable> {
        let Link { store, scripts, bounds, .. } = &*self.link;
        let bounds = bounds.load_full();
        let lifetime = bounds.session_lifetime.clamp(Duration::from_millis(1), LONGEST);
        let mut script = scripts.terminate.key(store.key("terminated"));
        script.arg(bounds.terminated_sessions).arg(whole_millis(lifetime));
        sessions.iter().for_each(|session| {
            script.arg(&**session);
        });
        let run =
            store.run(async |mut connection| script.invoke_async::<Value>(&mut connection).await);
        run.await.map(drop)
    }

    /// Learns which sessions were terminated. Entries that are not sealed with the shared key are
    /// ignored.
    pub(super) fn apply(
        &self,
        news: &[(String, Vec<Vec<u8>>)],
        terminated: &(impl Fn(&Holder, [u8; 16]) + Send),
    ) {
        let sealer = self.link.sealer.load();
        let sealed = news.iter().filter_map(|(_, members)| members.get(1));
        for (holder, session) in sealed.filter_map(|sealed| open(&sealer, sealed)) {
            terminated(&holder, session);
        }
        if let Some((last, _)) = news.last() {
            self.last.store(Arc::new(last.clone()));
        }
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
    sealer.seal(TokenKind::Terminated, BOUND_TO, &plain)
}

/// Opens a terminated session; `None` for any other text.
fn open(sealer: &Sealer, sealed: &[u8]) -> Option<(Holder, [u8; 16])> {
    let plain = sealer.open(TokenKind::Terminated, BOUND_TO, std::str::from_utf8(sealed).ok()?)?;
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
    use base::seal::SealKeys;
    use domain::calls::caller::MAX_ID;

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
            assert_eq!(open(&sealer, sealed.as_bytes()), Some((holder, [7; 16])));
            assert_eq!(open(&Sealer::new(&SealKeys::ephemeral()), sealed.as_bytes()), None);
        }
    }

    #[test]
    fn terminated_sessions_of_earlier_releases_open() {
        let sealer = Sealer::new(&SealKeys::new(vec![[7; 32]]).unwrap());
        let holder = Holder::Caller(Caller::new("ada"));
        let sealed = include_bytes!("../../../tests/formats/terminated-1");
        assert_eq!(open(&sealer, sealed), Some((holder, [3; 16])));
    }
}
