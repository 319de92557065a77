//! Sign-in: the visitors of the console and of the admin API, and their roles (docs/console.md).
//!
//! A visitor is known by `admin.token` in a header, by the cookie of a session, or, where no
//! sign-in is configured, by a loopback address alone. A session begins with the token or at an
//! OpenID provider and is held by the browser alone ([`session`]).

mod attempts;
mod cookie;
mod error;
mod local_path;
mod oidc;
mod revoked;
mod role;
mod session;
mod site;
mod visitor;

use std::net::IpAddr;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use subtle::ConstantTimeEq;
use tracing::warn;

use attempts::{Attempts, Failed};
use audit::Audit;
use audit::record::AuditEvent;
use base::seal::{Sealer, sha256};
use cookie::Cookie;
pub(crate) use cookie::SetCookie;
use domain::time::unix_time::UnixSeconds;
pub(crate) use error::SignInError;
pub(crate) use local_path::LocalPath;
pub use oidc::ConsolePeople;
use oidc::{Flow, OidcSignIn, Person, SignInFailure};
use revoked::{EndedSession, Revoked};
pub(crate) use role::Role;
use session::{Session, SessionId, SessionOrigin};
pub(crate) use site::{Site, is_foreign_subresource, is_same_site_post};
pub(crate) use visitor::{SignInMethod, TOKEN, Visitor};

/// Knows visitors, and signs people in and out, by one configuration.
pub(crate) struct SignIn {
    admin: config::Admin,
    sealer: Arc<Sealer>,
    audit: Audit,
    /// `None`: people sign in with the token.
    oidc: Option<Arc<OidcSignIn>>,
    shared: Arc<SharedSignIn>,
}

/// The response that begins a sign-in at the provider: a redirect (303) with a cookie.
#[derive(Debug)]
pub(crate) struct Redirect {
    /// The value of `Location`.
    pub location: HeaderValue,
    pub cookie: SetCookie,
}

/// The response that ends a sign-in at the provider.
///
/// It must be a page (200) that moves on to `return_to` ([`LocalPath::refresh`]), and no redirect:
/// a browser that comes from another site does not send `SameSite=Strict` cookies along a chain of
/// redirects.
#[derive(Debug)]
pub(crate) struct SignedIn {
    /// Two values of `Set-Cookie`: the session, and the end of the cookie of [`Redirect`].
    pub cookies: [SetCookie; 2],
    pub return_to: LocalPath,
}

/// State that outlives a configuration.
struct SharedSignIn {
    /// Failures with `admin.token`.
    attempts: Attempts,
    /// Limits the failures at the provider that are recorded, so that a flood does not fill the
    /// disk.
    recorded: Attempts,
    revoked: Revoked,
    /// Stands for the session of visitors without one.
    process: SessionId,
}

impl SignIn {
    /// Returns the sign-in of the first configuration.
    pub(crate) fn new(admin: &config::Admin, sealer: Arc<Sealer>, audit: Audit) -> Self {
        let shared = SharedSignIn {
            attempts: Attempts::new(),
            recorded: Attempts::new(),
            revoked: Revoked::default(),
            process: SessionId::random(),
        };
        let oidc = admin.oidc.as_ref().map(|oidc| Arc::new(OidcSignIn::new(oidc)));
        Self { admin: admin.clone(), sealer, audit, oidc, shared: Arc::new(shared) }
    }

    /// Returns the sign-in of the next configuration. Failed attempts, ended sessions and the
    /// metadata of the provider are kept; sessions end where the token or the provider that they
    /// began with was changed.
    pub(crate) fn renew(&self, admin: &config::Admin, sealer: Arc<Sealer>) -> Self {
        let same = self.oidc.clone().filter(|own| Some(own.config()) == admin.oidc.as_ref());
        let oidc = same.or_else(|| admin.oidc.as_ref().map(|oidc| Arc::new(OidcSignIn::new(oidc))));
        let (audit, shared) = (self.audit.clone(), self.shared.clone());
        Self { admin: admin.clone(), sealer, audit, oidc, shared }
    }

    /// Returns the visitor who sends a request; `None` if they must sign in first. `now` is the
    /// wall-clock time.
    ///
    /// A `Bearer` token decides alone: a valid cookie does not make up for a wrong token. Without
    /// `admin.token` the header is ignored.
    pub(crate) fn visitor(
        &self,
        site: &Site,
        headers: &HeaderMap,
        now: UnixSeconds,
    ) -> Option<Visitor> {
        if let (Some(_), Some(sent)) = (&self.admin.token, bearer_token(headers)) {
            let role = Role::of_token(&self.admin);
            return self.holder(sent).map(|(holder, _)| Visitor::bearer(holder, role));
        }
        let session = Cookie::Session
            .values(site, headers)
            .find_map(|value| self.session_visitor(value, now));
        let role = if self.admin.local_tries { Role::Tester } else { Role::Viewer };
        session.or_else(|| self.is_open().then(|| Visitor::local(self.shared.process, role)))
    }

    /// Signs in with `admin.token`. `address` is that of the client, `now` the wall-clock time.
    ///
    /// # Errors
    /// The token is wrong, none is configured, or there were too many failures: five from one
    /// network of addresses, then one every 30 seconds; fifty in total, then one every two seconds.
    pub(crate) fn log_in(
        &self,
        site: &Site,
        token: &str,
        address: IpAddr,
        now: UnixSeconds,
    ) -> Result<SetCookie, SignInError> {
        if !self.takes_token() {
            return Err(SignInError::NoToken);
        }
        let found = self.holder(token.as_bytes());
        match self.shared.attempts.check(address, found.is_some()) {
            Ok(()) => {}
            // Not recorded: a flood must not fill the disk.
            Err(Failed::TooMany(wait)) => return Err(SignInError::TooMany { wait }),
            Err(Failed::Wrong) => {
                self.record(SignInMethod::Token, &SignInError::WrongToken, None, address);
                return Err(SignInError::WrongToken);
            }
        }
        let (holder, own) = found.ok_or(SignInError::WrongToken)?;
        let session = self.begun(holder.to_owned(), None, Vec::new(), now);
        let role = Role::of_token(&self.admin);
        self.audit.note(begun(&session, SignInMethod::Token, role, address));
        Ok(self.session_cookie(site, &session, &SessionOrigin::token(own)))
    }

    /// Returns the id of the visitor who has this token, and the digest of the token. All tokens
    /// are compared, so that the time tells no name.
    fn holder(&self, sent: &[u8]) -> Option<(&str, &[u8; 32])> {
        let sent = sha256(sent);
        self.tokens().fold(None, |found, (id, token)| {
            if bool::from(sent.ct_eq(token)) { Some((id, token)) } else { found }
        })
    }

    /// The tokens by which people sign in, with the ids of the visitors.
    fn tokens(&self) -> impl Iterator<Item = (&str, &[u8; 32])> {
        let named = self.admin.tokens.iter().map(|(name, token)| (name.as_str(), token));
        self.admin.token.iter().map(|token| (TOKEN, token)).chain(named)
    }

    /// Whether people can sign in with a token.
    pub(crate) fn takes_token(&self) -> bool {
        self.admin.token.is_some()
    }

    /// Whether people can sign in at a provider.
    pub(crate) fn takes_oidc(&self) -> bool {
        self.oidc.is_some()
    }

    /// Begins a sign-in at the provider, which ends with [`SignIn::finish`] at `/login/callback` of
    /// the same site.
    pub(crate) async fn begin(
        &self,
        site: &Site,
        return_to: &LocalPath,
        now: UnixSeconds,
    ) -> Result<Redirect, SignInError> {
        let oidc = self.oidc.as_ref().ok_or(SignInError::NoProvider)?;
        let flow = Flow::begin(site.callback(), return_to, now);
        let location = oidc.location(&flow).await?;
        let value = flow.seal(&self.sealer, &SessionOrigin::oidc(oidc.config()));
        Ok(Redirect { location, cookie: Cookie::Flow.set(site, &value, oidc::LIFETIME) })
    }

    /// Ends a sign-in at the provider. `query` is that of the callback without `?`, `address` that
    /// of the client.
    pub(crate) async fn finish(
        &self,
        site: &Site,
        query: &str,
        headers: &HeaderMap,
        address: IpAddr,
        now: UnixSeconds,
    ) -> Result<SignedIn, SignInError> {
        let oidc = self.oidc.as_ref().ok_or(SignInError::NoProvider)?;
        let source = SessionOrigin::oidc(oidc.config());
        let here = site.callback();
        let mut flows = Cookie::Flow
            .values(site, headers)
            .filter_map(|value| Flow::open(&self.sealer, &source, value, &here, now));
        let flow = flows.next().ok_or(SignInError::NotBegunHere)?;
        let person = oidc.person(&flow, query, now).await;
        let admitted = person.and_then(|person| self.admitted(oidc.config(), person));
        let (person, role) = admitted.map_err(|failure| self.record_failure(failure, address))?;
        let groups = session::kept_groups(person.groups, oidc.config());
        let session = self.begun(person.subject, person.name, groups, now);
        self.audit.note(begun(&session, SignInMethod::Oidc, role, address));
        let cookie = self.session_cookie(site, &session, &source);
        let cookies = [cookie, Cookie::Flow.delete(site)];
        Ok(SignedIn { cookies, return_to: flow.return_to() })
    }

    /// Returns a person with its role.
    fn admitted(
        &self,
        oidc: &config::Oidc,
        person: Person,
    ) -> Result<(Person, Role), SignInFailure> {
        match Role::of_groups(&self.admin, oidc, &person.groups) {
            Some(role) => Ok((person, role)),
            None => Err(SignInFailure {
                error: SignInError::NoRole,
                diagnosis: None,
                subject: Some(person.subject),
            }),
        }
    }

    /// Records and logs a failed sign-in at the provider, unless there were many.
    fn record_failure(&self, failure: SignInFailure, address: IpAddr) -> SignInError {
        let SignInFailure { error, diagnosis, subject } = failure;
        let is_recorded = || self.shared.recorded.check(address, false) == Err(Failed::Wrong);
        if error.reason().is_some() && is_recorded() {
            warn!(%error, why = diagnosis, "a sign-in at the OpenID provider has failed");
            self.record(SignInMethod::Oidc, &error, subject.as_deref(), address);
        }
        error
    }

    fn record(&self, via: SignInMethod, error: &SignInError, by: Option<&str>, address: IpAddr) {
        if let Some(reason) = error.reason() {
            self.audit.note(failed(via, reason, by, address));
        }
    }

    /// Signs out: ends the session of a visitor, and deletes its cookie. Other visitors have no
    /// session that could end.
    pub(crate) fn log_out(&self, site: &Site, visitor: &Visitor, now: UnixSeconds) -> SetCookie {
        if let (Some(id), Some(began), Some(expires)) =
            (visitor.session, visitor.began, visitor.expires)
        {
            self.shared.revoked.insert(&visitor.id, EndedSession { id, began, expires }, now);
            let event = AuditEvent::new("admin_logout").text("by", &visitor.id);
            self.audit.note(event.text("via", visitor.via.name()));
        }
        Cookie::Session.delete(site)
    }

    /// Whether visitors need no sign-in, and may look. The address is loopback then.
    fn is_open(&self) -> bool {
        self.admin.token.is_none() && self.admin.oidc.is_none()
    }

    /// Returns the visitor of a session that is valid.
    fn session_visitor(&self, value: &str, now: UnixSeconds) -> Option<Visitor> {
        let (session, role, via) = self.opened(value)?;
        let expires = session.expires(self.admin.session);
        let began = UnixSeconds(session.issued);
        let has_ended = self.shared.revoked.contains(&session.visitor, &session.id, began);
        let is_valid = now < expires && !has_ended;
        is_valid.then_some(Visitor {
            role,
            via,
            expires: Some(expires),
            began: Some(began),
            session: Some(session.id),
            id: session.visitor,
            name: session.name,
            groups: session.groups,
        })
    }

    /// Opens a session of any configured source, and decides its role by this configuration.
    fn opened(&self, value: &str) -> Option<(Session, Role, SignInMethod)> {
        let Self { admin, sealer, .. } = self;
        let by_token = self.tokens().find_map(|(id, token)| {
            let session = Session::open(sealer, &SessionOrigin::token(token), value)?;
            (session.visitor == id).then(|| (session, Role::of_token(admin), SignInMethod::Token))
        });
        by_token.or_else(|| {
            let oidc = admin.oidc.as_ref()?;
            let session = Session::open(sealer, &SessionOrigin::oidc(oidc), value)?;
            let role = Role::of_groups(admin, oidc, &session.groups)?;
            Some((session, role, SignInMethod::Oidc))
        })
    }

    /// Returns a session that begins now.
    fn begun(
        &self,
        visitor: String,
        name: Option<String>,
        groups: Vec<String>,
        now: UnixSeconds,
    ) -> Session {
        let expires = now.0.saturating_add(self.admin.session.as_secs());
        Session { id: SessionId::random(), visitor, name, groups, issued: now.0, expires }
    }

    fn session_cookie(&self, site: &Site, session: &Session, source: &SessionOrigin) -> SetCookie {
        let value = session.seal(&self.sealer, source);
        Cookie::Session.set(site, &value, self.admin.session)
    }
}

/// Returns the token of `Authorization: Bearer` (RFC 6750, section 2.1); an empty one, which is
/// never right, if the header is repeated. `None` without such a header, and for other schemes,
/// which a proxy may use.
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    fn token(value: &HeaderValue) -> Option<&[u8]> {
        let (scheme, token) = value.as_bytes().split_at_checked(BEARER.len())?;
        scheme.eq_ignore_ascii_case(BEARER).then_some(token)
    }
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let found = values.find_map(token)?;
    let is_repeated = headers.get_all(AUTHORIZATION).iter().count() > 1;
    Some(if is_repeated { b"" } else { found })
}

const BEARER: &[u8] = b"Bearer ";

/// Returns the record of a sign-in.
fn begun(session: &Session, via: SignInMethod, role: Role, address: IpAddr) -> AuditEvent {
    AuditEvent::new("admin_login")
        .text("by", &session.visitor)
        .optional_text("name", session.name.as_deref())
        .text("via", via.name())
        .text("role", role.name())
        .text("address", &address.to_string())
}

/// Returns the record of a sign-in that has failed. `by` is the person, where it is known.
fn failed(
    via: SignInMethod,
    reason: &'static str,
    by: Option<&str>,
    address: IpAddr,
) -> AuditEvent {
    AuditEvent::new("admin_login_failed")
        .optional_text("by", by)
        .text("via", via.name())
        .text("reason", reason)
        .text("address", &address.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http::header::COOKIE;

    use super::site::site;
    use super::*;
    use base::seal::SealKeys;
    use config::Config;

    /// The admin section with these keys.
    pub(super) fn admin(text: &str) -> config::Admin {
        let text = format!("[admin]\n{text}");
        Config::parse("g", &text, Path::new(""), &[]).unwrap().admin.unwrap()
    }

    const WITH_TOKEN: &str = "token = { value = \"t0ken\" }\n";
    const OIDC: &str = "[admin.oidc]\nissuer = \"https://id.example\"\nclient_id = \"console\"\n\
        viewers = [\"staff\"]\n";
    const NOW: UnixSeconds = UnixSeconds(1_000_000);
    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    pub(super) fn sealer() -> Arc<Sealer> {
        Arc::new(Sealer::new(&SealKeys::new(vec![[7; 32]]).unwrap()))
    }

    fn sign_in(text: &str) -> SignIn {
        SignIn::new(&admin(text), sealer(), Audit::default())
    }

    fn headers(pairs: &[(http::HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn with_cookie(cookie: &SetCookie) -> HeaderMap {
        headers(&[(COOKIE, cookie.pair())])
    }

    fn role(sign_in: &SignIn, headers: &HeaderMap) -> Option<(Role, SignInMethod)> {
        sign_in.visitor(&site("localhost"), headers, NOW).map(|v| (v.role, v.via))
    }

    #[tokio::test]
    async fn a_visitor_is_known_by_header_cookie_or_loopback() {
        let none = HeaderMap::new();
        let bearer = |text: &str| headers(&[(AUTHORIZATION, text)]);
        let open = sign_in("");
        assert_eq!(
            role(&open, &none),
            Some((Role::Tester, SignInMethod::Local)),
            "as at the endpoint"
        );
        assert_eq!(role(&open, &bearer("Bearer x")), Some((Role::Tester, SignInMethod::Local)));
        for credential in [
            "[[auth.api_keys]]\nid = \"a\"\nhash = \"sha256:0000000000000000000000000000000000000000000000000000000000000000\"\n",
            "[[access.rules]]\nallow = [\"list\"]\n",
        ] {
            let some = Some((Role::Viewer, SignInMethod::Local));
            assert_eq!(role(&sign_in(credential), &none), some, "{credential}");
        }
        assert_eq!(role(&sign_in(OIDC), &none), None, "they must sign in");
        assert_eq!(role(&sign_in(OIDC), &bearer("Bearer x")), None);
        let closed = sign_in(WITH_TOKEN);
        assert_eq!(role(&closed, &none), None);
        for right in ["Bearer t0ken", "bearer t0ken"] {
            assert_eq!(role(&closed, &bearer(right)), Some((Role::Tester, SignInMethod::Bearer)));
        }
        for wrong in ["Bearer t0ke", "Bearer ", "Bearer  t0ken", "Basic t0ken", "t0ken"] {
            assert_eq!(role(&closed, &bearer(wrong)), None, "{wrong}");
        }
        let twice = [(AUTHORIZATION, "Bearer t0ken"), (AUTHORIZATION, "Bearer t0ken")];
        assert_eq!(role(&closed, &headers(&twice)), None);
        let writing = sign_in(&format!("write = true\n{WITH_TOKEN}"));
        let approver = Some((Role::Approver, SignInMethod::Bearer));
        assert_eq!(role(&writing, &bearer("Bearer t0ken")), approver);
        let cookie = closed.log_in(&site("localhost"), "t0ken", HOME, NOW).unwrap();
        assert_eq!(role(&closed, &with_cookie(&cookie)), Some((Role::Tester, SignInMethod::Token)));
        let both = [(AUTHORIZATION, "Bearer wrong"), (COOKIE, cookie.pair())];
        assert_eq!(role(&closed, &headers(&both)), None, "a wrong bearer does not fall back");
        let proxied = [(AUTHORIZATION, "Basic eDp5"), (COOKIE, cookie.pair())];
        assert_eq!(role(&closed, &headers(&proxied)), Some((Role::Tester, SignInMethod::Token)));
    }

    #[tokio::test]
    async fn a_session_ends_at_its_time_with_its_token_and_by_signing_out() {
        let here = site("console.example");
        let before = sign_in(WITH_TOKEN);
        let cookie = before.log_in(&here, "t0ken", HOME, NOW).unwrap();
        assert!(cookie.text().starts_with("__Host-promptgate_session="), "{}", cookie.text());
        let sent = with_cookie(&cookie);
        let at = |sign_in: &SignIn, secs| {
            sign_in.visitor(&here, &sent, UnixSeconds(NOW.0 + secs)).map(|visitor| visitor.via)
        };
        assert_eq!(at(&before, 28_799), Some(SignInMethod::Token));
        assert_eq!(at(&before, 28_800), None);
        assert!(before.visitor(&site("localhost"), &sent, NOW).is_none(), "the name has a prefix");
        let other = before.renew(&admin("token = { value = \"other\" }\n"), sealer());
        assert_eq!(at(&other, 0), None, "the token was changed");
        assert_eq!(at(&before.renew(&admin(OIDC), sealer()), 0), None);
        let shorter = format!("session = \"1h\"\n{WITH_TOKEN}");
        assert_eq!(at(&before.renew(&admin(&shorter), sealer()), 3_600), None);
        let writing = before.renew(&admin(&format!("write = true\n{WITH_TOKEN}")), sealer());
        let visitor = writing.visitor(&here, &sent, NOW).unwrap();
        assert_eq!(visitor.role, Role::Approver, "the role is that of the configuration");
        assert!(visitor.check_csrf(&visitor.csrf_token()) && !visitor.check_csrf(""));
        let deleted = writing.log_out(&here, &visitor, NOW);
        assert!(deleted.text().contains("_session=; Max-Age=0;"), "{}", deleted.text());
        assert_eq!(at(&writing, 0), None);
        assert_eq!(at(&before.renew(&admin(WITH_TOKEN), sealer()), 0), None, "also after reloads");
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_tokens_are_limited_across_reloads() {
        let here = site("localhost");
        let first = sign_in(WITH_TOKEN);
        for _ in 0..5 {
            let wrong = first.log_in(&here, "wrong", HOME, NOW);
            assert_eq!(wrong, Err(SignInError::WrongToken));
        }
        let next = first.renew(&admin(WITH_TOKEN), sealer());
        let limited = next.log_in(&here, "t0ken", HOME, NOW).unwrap_err();
        assert_eq!(limited.retry_after(), Some(30));
        tokio::time::advance(std::time::Duration::from_secs(30)).await;
        assert!(next.log_in(&here, "t0ken", HOME, NOW).is_ok());
        assert_eq!(sign_in("").log_in(&here, "", HOME, NOW), Err(SignInError::NoToken));
    }

    #[test]
    fn records_say_who_how_and_from_where() {
        let session = sign_in(WITH_TOKEN).begun(TOKEN.to_owned(), None, vec![], NOW);
        let text = |event: AuditEvent| format!("{event:?}").replace('\\', "");
        let event = text(begun(&session, SignInMethod::Token, Role::Tester, HOME));
        let members = r#""by":"token","via":"token","role":"tester","address":"127.0.0.1""#;
        assert!(event.contains(members), "{event}");
        let event = text(failed(SignInMethod::Token, "wrong_token", None, HOME));
        assert!(event.contains(r#""via":"token","reason":"wrong_token""#), "{event}");
    }
}
