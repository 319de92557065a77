//! Sessions that people have ended before they expired.

use std::collections::HashMap;
use std::sync::Mutex;

use super::session::SessionId;
use base::platform::Locked;
use domain::time::unix_time::UnixSeconds;

/// The ended sessions of this process, each until it expires. Other replicas do not know them:
/// there the session ends because the browser has deleted its cookie.
///
/// Each person has a share. When it is exceeded, sessions of that person end early, so that
/// frequent sign-ins of one person never revive an ended session of another person.
#[derive(Default)]
pub(super) struct Revoked(Mutex<EndedSessions>);

#[derive(Default)]
struct EndedSessions {
    /// By the id of the visitor.
    of: HashMap<String, EndedOfPerson>,
    /// Sessions of all people that began up to then have ended.
    until: Option<UnixSeconds>,
}

/// The ended sessions of one person.
#[derive(Default)]
struct EndedOfPerson {
    sessions: Vec<EndedSession>,
    /// Sessions that began up to then have ended.
    until: Option<UnixSeconds>,
    /// When the last of them expires.
    expires: Option<UnixSeconds>,
}

/// A session, and its time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct EndedSession {
    pub id: SessionId,
    pub began: UnixSeconds,
    pub expires: UnixSeconds,
}

/// Ended sessions that are remembered of one person: a browser has one at a time.
const SHARE: usize = 32;

/// Most people whose ended sessions are remembered.
const MAX_PEOPLE: usize = 4_096;

impl Revoked {
    /// Ends a session of a person.
    pub(super) fn insert(&self, person: &str, session: EndedSession, now: UnixSeconds) {
        let mut ended = self.0.locked();
        if ended.of.len() >= MAX_PEOPLE && !ended.of.contains_key(person) {
            ended.of.retain(|_, own| own.expires.is_some_and(|expires| now < expires));
        }
        if ended.of.len() >= MAX_PEOPLE && !ended.of.contains_key(person) {
            // All people sign in again, so that no ended session comes back.
            *ended = EndedSessions { of: HashMap::new(), until: Some(now) };
        }
        ended.of.entry(person.to_owned()).or_default().insert(session, now);
    }

    /// Returns whether the session of a person, which began at `began`, has ended.
    pub(super) fn contains(&self, person: &str, id: &SessionId, began: UnixSeconds) -> bool {
        let ended = self.0.locked();
        ended.until.is_some_and(|until| began <= until)
            || ended.of.get(person).is_some_and(|own| own.contains(id, began))
    }
}

impl EndedOfPerson {
    fn insert(&mut self, session: EndedSession, now: UnixSeconds) {
        self.sessions.retain(|other| now < other.expires);
        self.sessions.push(session);
        self.expires = self.expires.max(Some(session.expires));
        if self.sessions.len() <= SHARE {
            return;
        }
        let oldest = (0..self.sessions.len()).min_by_key(|&index| self.sessions[index].began);
        if let Some(oldest) = oldest {
            let forgotten = self.sessions.swap_remove(oldest);
            self.until = self.until.max(Some(forgotten.began));
        }
    }

    fn contains(&self, id: &SessionId, began: UnixSeconds) -> bool {
        self.until.is_some_and(|until| began <= until)
            || self.sessions.iter().any(|session| session.id == *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_000);

    /// A session that began in this second.
    fn session(began: u64) -> EndedSession {
        let (began, expires) = (UnixSeconds(began), UnixSeconds(2_000));
        EndedSession { id: SessionId::random(), began, expires }
    }

    fn has_ended(revoked: &Revoked, person: &str, session: EndedSession) -> bool {
        revoked.contains(person, &session.id, session.began)
    }

    #[test]
    fn no_ended_session_comes_back_by_the_sign_ins_of_another_person() {
        let revoked = Revoked::default();
        let (ada, open) = (session(900), session(900));
        revoked.insert("ada", ada, NOW);
        for began in 0..10_000 {
            revoked.insert("eve", session(began), NOW);
        }
        assert!(has_ended(&revoked, "ada", ada));
        assert!(!has_ended(&revoked, "ada", open) && !has_ended(&revoked, "bob", ada));
        assert_eq!(revoked.0.locked().of["eve"].sessions.len(), SHARE);
    }

    #[test]
    fn beyond_the_share_of_a_person_all_sessions_before_have_ended() {
        let revoked = Revoked::default();
        let ended: Vec<_> = (0..=SHARE as u64).map(|index| session(100 + index)).collect();
        for session in &ended {
            revoked.insert("ada", *session, NOW);
        }
        assert!(ended.iter().all(|session| has_ended(&revoked, "ada", *session)));
        assert!(has_ended(&revoked, "ada", session(100)));
        assert!(
            !has_ended(&revoked, "ada", session(101)) && !has_ended(&revoked, "bob", session(1))
        );
    }

    #[test]
    fn with_too_many_people_all_sign_in_again_and_expired_sessions_take_no_room() {
        let revoked = Revoked::default();
        let ada = session(900);
        revoked.insert("ada", ada, NOW);
        for index in 1..MAX_PEOPLE {
            revoked.insert(&index.to_string(), session(900), NOW);
        }
        assert!(!has_ended(&revoked, "bob", session(900)));
        revoked.insert("eve", session(900), NOW);
        assert!(has_ended(&revoked, "ada", ada) && has_ended(&revoked, "bob", session(1_000)));
        assert!(!has_ended(&revoked, "bob", session(1_001)));
        assert_eq!(revoked.0.locked().of.len(), 1);

        let revoked = Revoked::default();
        for index in 0..MAX_PEOPLE {
            revoked.insert(&index.to_string(), session(900), NOW);
        }
        revoked.insert("eve", session(1_999), UnixSeconds(2_000));
        let left = revoked.0.locked();
        assert_eq!((left.of.len(), left.until), (1, None));
    }
}
