//! Sign-ins of callers at upstreams that let in users only: the link with which a caller is asked,
//! the flow in the browser that opens it, and the check of the person there. Links and flows are
//! sealed: any replica takes them up, and the gateway keeps no table of them.

use std::pin::Pin;

use serde::{Deserialize, Serialize};
use serde_json::json;
use subtle::ConstantTimeEq;

use crate::sign_in::flow::BegunFlow;
use base::seal::hex::hex;
use base::seal::{Sealer, TokenKind, digest};
use domain::calls::caller::{Caller, Proof};
use domain::text::percent;
use domain::time::unix_time::UnixSeconds;

/// A caller as links and kept sign-ins name it. Names are equal as [`Caller`]s are.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CallerName {
    pub id: String,
    /// The kind of the caller's credential, and the issuer of such credentials.
    pub method: String,
    pub issuer: String,
}

impl CallerName {
    pub fn of(caller: &Caller) -> Self {
        let (method, issuer) = caller.authority();
        let id = caller.id().to_owned();
        Self { id, method: method.to_owned(), issuer: issuer.to_owned() }
    }

    /// Returns the name under which the sign-in at an upstream is kept.
    pub fn key(&self, upstream: &str) -> String {
        self.login_name(CallerLoginKind::SignIn, upstream)
    }

    /// Returns the name under which a login at an upstream is kept.
    pub fn login_name(&self, kind: CallerLoginKind, upstream: &str) -> String {
        let digest = digest([&*self.method, &*self.issuer, &*self.id]);
        kind.prefix(upstream) + &hex(&digest[..16])
    }
}

/// A kind of logins of callers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CallerLoginKind {
    SignIn,
    /// A token for an identity assertion, which replicas share.
    SharedToken,
}

impl CallerLoginKind {
    /// Returns the beginning of the names of these logins at an upstream. No id of an upstream has
    /// a dot or a colon.
    pub fn prefix(self, upstream: &str) -> String {
        let separator = match self {
            Self::SignIn => '.',
            Self::SharedToken => ':',
        };
        format!("{upstream}{separator}")
    }
}

/// Returns the id of the upstream in the name of a caller's login; `None` for a login of the
/// operator.
pub fn upstream_of(login: &str) -> Option<&str> {
    Some(login.split_once(['.', ':'])?.0)
}

/// A request to sign in at one upstream, for one caller.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SignInLink {
    pub upstream: String,
    pub caller: CallerName,
    /// The subject of the caller's token; `None` for other credentials.
    pub subject: Option<String>,
    /// The scopes that the upstream needs beyond the configured scopes.
    pub scope: Option<String>,
    /// The id of the sign-in that was kept when the link was issued. Each sign-in and each
    /// revocation has another id, so that a link is used once.
    pub after: Option<String>,
    /// Begin of the period in which the link was issued, in seconds since the Unix epoch.
    pub issued: u64,
}

/// Lifetime of a link in seconds.
pub const LIFETIME: u64 = 600;

/// The seconds in which a caller gets the same link from all replicas. A person has at least the
/// rest of [`LIFETIME`], enough to look for a second factor.
const PERIOD: u64 = 120;

/// Characters of a code, which are hard to confuse (RFC 8628, section 6.1): 20^8 codes cannot be
/// guessed within [`LIFETIME`].
const LETTERS: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";

impl SignInLink {
    pub fn new(
        upstream: &str,
        caller: &Caller,
        scope: Option<String>,
        after: Option<String>,
        now: UnixSeconds,
    ) -> Self {
        let subject = match caller.proof() {
            Proof::Token(token) => Some(token.subject.clone()),
            _ => None,
        };
        let caller = CallerName::of(caller);
        let issued = now.0 - now.0 % PERIOD;
        Self { upstream: upstream.to_owned(), caller, subject, scope, after, issued }
    }

    /// Returns the id of the request to sign in, which all links of it have, on all replicas. It
    /// does not show who they are for.
    pub fn id(&self, sealer: &Sealer) -> String {
        let request = json!(Self { issued: 0, ..self.clone() });
        hex(&sealer.blind(&format!("sign-in {request}")))
    }

    /// Returns the code that the message with the link shows.
    pub fn code(&self, sealer: &Sealer) -> String {
        let blind = sealer.blind(&format!("sign-in code {}", json!(self)));
        let letters = blind.as_chunks::<2>().0.iter().map(|pair| {
            char::from(LETTERS[usize::from(u16::from_be_bytes(*pair)) % LETTERS.len()])
        });
        let code: String = letters.collect();
        format!("{}-{}", &code[..4], &code[4..])
    }

    /// Whether a person has typed the code, in any case and with or without the dash.
    pub fn has_code(&self, typed: &str, sealer: &Sealer) -> bool {
        let letters = typed.chars().filter(char::is_ascii_alphabetic).take(9);
        let typed: String = letters.map(|letter| letter.to_ascii_uppercase()).collect();
        typed.as_bytes().ct_eq(self.code(sealer).replace('-', "").as_bytes()).into()
    }

    /// Returns the URL for the caller's browser, below the URL of the page.
    pub fn url(&self, page: &str, sealer: &Sealer) -> String {
        format!("{page}?link={}", percent::encoded(&seal(self, "caller link", sealer)))
    }

    /// Opens the link of a URL; `None` if no replica has sealed it, or it is too old.
    pub fn open(sealer: &Sealer, link: &str, now: UnixSeconds) -> Option<Self> {
        let plain = sealer.open(TokenKind::SignIn, "caller link", link)?;
        serde_json::from_slice(&plain).ok().filter(|link: &Self| link.is_fresh(now))
    }

    fn is_fresh(&self, now: UnixSeconds) -> bool {
        now.0 < self.issued.saturating_add(LIFETIME)
    }

    /// Whether the caller has signed in, or was signed out, since the link was issued: `kept` is
    /// the id of the sign-in that is kept now.
    pub fn is_used(&self, kept: Option<&str>) -> bool {
        self.after.as_deref() != kept
    }
}

/// A sign-in that has begun in a browser, which holds it in a cookie. No other browser can end it.
#[derive(Deserialize, Serialize)]
pub struct CallerFlow {
    pub link: SignInLink,
    pub step: FlowStep,
}

/// The page from which the browser comes back.
#[derive(Deserialize, Serialize)]
pub enum FlowStep {
    /// The provider that names the person; with its sealed state.
    Person(String),
    /// The authorization server of the upstream.
    Upstream(BegunFlow),
}

impl CallerFlow {
    /// Returns the value of the cookie. Longer ones than browsers keep do not open.
    pub fn seal(&self, sealer: &Sealer) -> String {
        seal(self, "caller flow", sealer)
    }

    /// Opens the value of a cookie, if its link is not too old.
    pub fn open(sealer: &Sealer, value: &str, now: UnixSeconds) -> Option<Self> {
        let plain = sealer.open(TokenKind::SignIn, "caller flow", value)?;
        serde_json::from_slice(&plain).ok().filter(|flow: &Self| flow.link.is_fresh(now))
    }
}

/// A person at the page of its own sign-ins, which the browser holds in a cookie.
#[derive(Deserialize, Serialize)]
pub enum OwnVisit {
    /// The provider names the person; with its sealed state.
    Begun(String),
    /// The person, and the first second in which the visit is over, since the Unix epoch.
    Named { issuer: String, subject: String, until: u64 },
}

impl OwnVisit {
    /// Returns the value of the cookie.
    pub fn seal(&self, sealer: &Sealer) -> String {
        seal(self, "own visit", sealer)
    }

    /// Opens the value of a cookie, if its visit is not over.
    pub fn open(sealer: &Sealer, value: &str, now: UnixSeconds) -> Option<Self> {
        let plain = sealer.open(TokenKind::SignIn, "own visit", value)?;
        let visit = serde_json::from_slice(&plain).ok()?;
        (!matches!(visit, Self::Named { until, .. } if until <= now.0)).then_some(visit)
    }
}

fn seal(plain: &impl Serialize, context: &str, sealer: &Sealer) -> String {
    // Texts and numbers are always written.
    sealer.seal(TokenKind::SignIn, context, &serde_json::to_vec(plain).unwrap_or_default())
}

/// Names the person in a browser.
pub trait PersonCheck: Send + Sync {
    /// The issuer of the OpenID provider.
    fn issuer(&self) -> &str;

    /// Returns the URL to which the browser is sent, and the sealed state that it keeps.
    fn begin(&self, now: UnixSeconds) -> Checked<'_, (String, String)>;

    /// Returns the subject (`sub`) of the person who comes back with `query`.
    fn finish<'a>(
        &'a self,
        state: &'a str,
        query: &'a str,
        now: UnixSeconds,
    ) -> Checked<'a, String>;
}

/// The result of a check, or the reason for the person.
pub type Checked<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_login;
    use base::seal::SealKeys;

    const NOW: UnixSeconds = UnixSeconds(1_200_000);
    const PAGE: &str = "https://gate.example/mcp/sign_in";

    fn link(after: Option<&str>) -> SignInLink {
        SignInLink::new("wiki", &Caller::new("ada"), None, after.map(str::to_owned), NOW)
    }

    fn sealer(key: u8) -> Sealer {
        Sealer::new(&SealKeys::new(vec![[key; 32]]).unwrap())
    }

    #[test]
    fn a_link_opens_on_every_replica_for_ten_minutes_and_nowhere_else() {
        let link = link(None);
        let url = link.url(PAGE, &sealer(1));
        let sealed = url.strip_prefix(&format!("{PAGE}?link=")).unwrap();
        let open = |key, after| SignInLink::open(&sealer(key), sealed, UnixSeconds(NOW.0 + after));
        assert_eq!(open(1, 0), Some(link.clone()));
        assert_eq!(open(1, 599), Some(link.clone()));
        assert_eq!((open(1, 600), open(2, 0)), (None, None));
        assert_eq!(SignInLink::open(&sealer(1), &sealed[1..], NOW), None);
        assert!(!url.contains(&link.code(&sealer(1))) && !url.contains("ada"));
    }

    #[test]
    fn a_caller_has_one_link_until_its_sign_in_changes() {
        let id = |link: SignInLink| (link.id(&sealer(1)), link.code(&sealer(1)));
        assert_eq!(id(link(None)), id(link(None)));
        assert_ne!(id(link(None)), id(link(Some("one"))));
        let kept = sample_login("wiki");
        assert!(!link(None).is_used(None) && link(None).is_used(Some(&kept.id)));
        assert!(!link(Some("one")).is_used(Some(&kept.id)));
        assert!(link(Some("one")).is_used(Some(&kept.end("revoked").id)));
    }

    #[test]
    fn only_the_code_of_the_link_is_taken_in_any_spelling() {
        let (link, sealer) = (link(None), sealer(1));
        let code = link.code(&sealer);
        assert_eq!(code.len(), 9, "{code}");
        for good in [code.clone(), code.to_lowercase(), code.replace('-', " ")] {
            assert!(link.has_code(&good, &sealer), "{good}");
        }
        for bad in ["", &code[..8], &format!("{code}B"), &"B".repeat(1 << 20)] {
            assert!(!link.has_code(bad, &sealer));
        }
    }

    #[test]
    fn callers_of_different_authorities_have_different_sign_ins() {
        let key = |[method, issuer, id]: [&str; 3], upstream| {
            let [method, issuer, id] = [method, issuer, id].map(str::to_owned);
            CallerName { id, method, issuer }.key(upstream)
        };
        let keys = std::collections::HashSet::from([
            key(["token", "https://a", "ada"], "wiki"),
            key(["token", "https://b", "ada"], "wiki"),
            key(["api_key", "", "ada"], "wiki"),
            key(["token", "https://a", "bob"], "wiki"),
            key(["token", "https://a", "ada"], "code"),
        ]);
        assert_eq!(keys.len(), 5);
        let ada = CallerName::of(&Caller::new("ada"));
        for kind in [CallerLoginKind::SignIn, CallerLoginKind::SharedToken] {
            let name = ada.login_name(kind, "wiki");
            assert_eq!(upstream_of(&name), Some("wiki"), "{name}");
            assert_eq!(name == ada.key("wiki"), kind == CallerLoginKind::SignIn, "{name}");
        }
        assert_eq!(upstream_of("wiki"), None);
    }
}
