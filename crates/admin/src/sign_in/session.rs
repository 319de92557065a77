//! The session of a person at the console: everything about it is in a sealed cookie, so it takes
//! no memory, survives a restart, and is valid at every replica with the same seal key.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::role::Role;
use base::seal::hex::hex;
use base::seal::{self, Sealer, TokenKind, random};
use domain::time::unix_time::UnixSeconds;

/// The content of the session cookie.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Session {
    pub id: SessionId,
    /// The id of the visitor who signed in.
    pub visitor: String,
    pub name: Option<String>,
    pub groups: Vec<String>,
    /// Seconds since the Unix epoch.
    pub issued: u64,
    /// The second in which it expires, since the Unix epoch.
    pub expires: u64,
}

/// The identity of a session: 16 random bytes, which only this gateway knows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub(super) struct SessionId([u8; 16]);

/// The origin of a session: the digest of `admin.token`, or of the provider and the client id. A
/// session is sealed for its source, so a change of the source ends it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct SessionOrigin(String);

/// Room for the groups of a session, in bytes as written. With the rest, of at most 1,000 bytes,
/// the cookie stays below the 4,096 bytes that browsers keep (RFC 6265, section 6.1).
const GROUPS_ROOM: usize = 1_700;

impl SessionId {
    /// Draws an id at random.
    pub(super) fn random() -> Self {
        Self(random())
    }

    /// Returns the text that forms of this session carry. It is no secret to the person, and does
    /// not reveal the id.
    pub(super) fn form_token(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(seal::digest(["promptgate console form", &hex(&self.0)]))
    }
}

impl SessionOrigin {
    /// `digest` is that of `admin.token`.
    pub(super) fn token(digest: &[u8; 32]) -> Self {
        Self::of(["token", &hex(digest)])
    }

    pub(super) fn oidc(oidc: &config::Oidc) -> Self {
        Self::of(["oidc", &oidc.issuer, &oidc.client_id, &oidc.groups_claim])
    }

    fn of<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        Self(hex(&seal::digest(parts)))
    }

    /// Returns the context that sessions of this source are sealed for.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Session {
    /// Returns the value of the cookie, in base64url.
    pub(super) fn seal(&self, sealer: &Sealer, source: &SessionOrigin) -> String {
        // Texts and numbers are always written.
        let plain = serde_json::to_vec(self).unwrap_or_default();
        sealer.seal(TokenKind::Console, &source.0, &plain)
    }

    /// Opens the value of a cookie. `None` if it is altered, of another source, or sealed with an
    /// unknown key.
    pub(super) fn open(sealer: &Sealer, source: &SessionOrigin, value: &str) -> Option<Self> {
        let plain = sealer.open(TokenKind::Console, &source.0, value)?;
        serde_json::from_slice(&plain).ok()
    }

    /// Returns the second in which the session expires, where sessions last at most `longest` by
    /// the present configuration.
    pub(super) fn expires(&self, longest: Duration) -> UnixSeconds {
        UnixSeconds(self.expires.min(self.issued.saturating_add(longest.as_secs())))
    }
}

/// Returns the groups that a session keeps: those with a role first, the highest role first, then
/// others, as long as there is room. So a person in very many groups keeps their role.
pub(super) fn kept_groups(groups: Vec<String>, oidc: &config::Oidc) -> Vec<String> {
    let rank = |group: &String| {
        let roles = [Role::Approver, Role::Tester, Role::Viewer];
        roles.iter().position(|role| role.groups(oidc).contains(group)).unwrap_or(roles.len())
    };
    let mut groups = groups;
    groups.sort_by_cached_key(rank);
    let mut room = GROUPS_ROOM;
    groups.retain(|group| {
        // With its comma.
        let size = serde_json::to_string(group).map_or(usize::MAX, |text| text.len() + 1);
        let fits = size <= room;
        room -= if fits { size } else { 0 };
        fits
    });
    groups
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sign_in::tests::admin;
    use base::seal::SealKeys;

    fn session(groups: Vec<String>) -> Session {
        Session {
            id: SessionId([255; 16]),
            visitor: "ada".to_owned(),
            name: None,
            groups,
            issued: 1_000,
            expires: 4_600,
        }
    }

    fn sealer() -> Sealer {
        Sealer::new(&SealKeys::new(vec![[7; 32]]).unwrap())
    }

    #[test]
    fn a_session_ends_at_its_second_and_with_a_shorter_configuration() {
        let session = session(vec![]);
        for (longest, expires) in [(60, 1_060), (3_600, 4_600), (7_200, 4_600)] {
            let longest = Duration::from_secs(longest);
            assert_eq!(session.expires(longest), UnixSeconds(expires));
        }
    }

    #[test]
    fn a_session_opens_for_its_source_kind_and_key_only() {
        let (sealer, source) = (sealer(), SessionOrigin::token(&[1; 32]));
        let session = session(vec!["a".to_owned()]);
        let value = session.seal(&sealer, &source);
        assert_eq!(Session::open(&sealer, &source, &value), Some(session.clone()));
        assert_eq!(Session::open(&sealer, &SessionOrigin::token(&[2; 32]), &value), None);
        assert_eq!(sealer.open(TokenKind::SignIn, source.as_str(), &value), None);
        let plain = serde_json::to_vec(&session).unwrap();
        let other = sealer.seal(TokenKind::SignIn, source.as_str(), &plain);
        assert_eq!(Session::open(&sealer, &source, &other), None);
        let other = Sealer::new(&SealKeys::new(vec![[8; 32]]).unwrap());
        assert_eq!(Session::open(&other, &source, &value), None);
    }

    #[test]
    fn groups_with_a_role_are_kept_and_the_cookie_is_bounded() {
        let oidc = "[admin.oidc]\nissuer = \"https://id.example\"\nclient_id = \"c\"\n\
            viewers = [\"last\"]\napprovers = [\"leads\"]\n";
        let oidc = admin(oidc).oidc.unwrap();
        let mut groups: Vec<_> = (0..256).map(|i| format!("{i:\u{1f600}>40}")).collect();
        groups.extend(["last", "leads"].map(str::to_owned));
        let kept = kept_groups(groups, &oidc);
        assert_eq!(kept[..2], ["leads", "last"]);
        assert!(kept.len() > 5, "{}", kept.len());
        assert_eq!(kept_groups(vec!["x".repeat(2_000), "b".to_owned()], &oidc), ["b"]);
        let longest = Session {
            visitor: "\u{1f600}".repeat(128),
            name: Some("\"".repeat(128)),
            issued: u64::MAX,
            expires: u64::MAX,
            ..session(kept)
        };
        let value = longest.seal(&sealer(), &SessionOrigin::token(&[1; 32]));
        assert!(value.len() <= TokenKind::Console.max_len(), "{}", value.len());
        assert_eq!(
            Session::open(&sealer(), &SessionOrigin::token(&[1; 32]), &value),
            Some(longest)
        );
    }

    #[test]
    fn sessions_of_earlier_releases_open() {
        let (sealer, source) = (sealer(), SessionOrigin::token(&[1; 32]));
        let session = session(vec!["a".to_owned()]);
        let value = include_str!("../../../../tests/formats/console-1");
        assert_eq!(Session::open(&sealer, &source, value), Some(session));
    }

    proptest! {
        #[test]
        fn every_session_survives_the_round_trip_and_no_altered_byte_does(
            visitor in "\\PC{1,40}", groups in prop::collection::vec("\\PC{0,40}", 0..10),
            at in any::<usize>(), bit in 0..7u32,
        ) {
            let (sealer, source) = (sealer(), SessionOrigin::token(&[1; 32]));
            let session = Session { visitor, ..session(groups) };
            let value = session.seal(&sealer, &source);
            prop_assert_eq!(Session::open(&sealer, &source, &value), Some(session));
            let mut altered = value.into_bytes();
            let at = at % altered.len();
            altered[at] ^= 1 << bit;
            if let Ok(altered) = String::from_utf8(altered) {
                prop_assert_eq!(Session::open(&sealer, &source, &altered), None);
            }
        }
    }
}
