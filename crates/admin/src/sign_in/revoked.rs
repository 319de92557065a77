//! Sessions that people have ended before they expired.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::session::SessionId;
use domain::unix_time::UnixSeconds;

/// The ended sessions of this process, each until it expires. Other replicas do not know them:
/// there the session ends because the browser has deleted its cookie.
#[derive(Default)]
pub(super) struct Revoked(Mutex<HashMap<SessionId, UnixSeconds>>);

/// Ended sessions that are remembered. Only people who are signed in can end one, so this is far
/// more than there are.
const MAX: usize = 4_096;

impl Revoked {
    /// Ends a session that expires at `expires`. When there are too many, the one that expires
    /// first is forgotten.
    pub(super) fn insert(&self, id: SessionId, expires: UnixSeconds, now: UnixSeconds) {
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.len() >= MAX {
            ended.retain(|_, expires| now < *expires);
        }
        if ended.len() >= MAX
            && let Some(first) = ended.iter().min_by_key(|(_, expires)| **expires)
        {
            let first = *first.0;
            ended.remove(&first);
        }
        ended.insert(id, expires);
    }

    pub(super) fn contains(&self, id: &SessionId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_bounded_and_forgets_what_ends_first() {
        let revoked = Revoked::default();
        let now = UnixSeconds(1_000);
        let first = SessionId::random();
        revoked.insert(first, UnixSeconds(1_001), now);
        let ids: Vec<_> = (1..MAX).map(|_| SessionId::random()).collect();
        ids.iter().for_each(|id| revoked.insert(*id, UnixSeconds(2_000), now));
        assert!(revoked.contains(&first));
        let last = SessionId::random();
        revoked.insert(last, UnixSeconds(2_000), now);
        assert!(!revoked.contains(&first) && revoked.contains(&last) && revoked.contains(&ids[0]));
        assert_eq!(revoked.0.lock().unwrap().len(), MAX);
        revoked.insert(first, UnixSeconds(3_000), UnixSeconds(2_000));
        assert_eq!(revoked.0.lock().unwrap().len(), 1, "expired ones take no room");
    }
}
