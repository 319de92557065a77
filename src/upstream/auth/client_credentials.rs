//! Tokens that the gateway gets for itself (OAuth 2.1 client credentials): found out where, checked
//! whose, kept as long as they are good, and got by one for all.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use http_auth::ChallengeParser;
use http_body_util::Full;
use jsonwebtoken::{Header, encode, get_current_timestamp};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::config::{ClientProof, OAuth};
use crate::domain::address_policy::{AddressPolicy, is_loopback};
use crate::domain::fault::{UpstreamFaultKind as Kind, excerpt};
use crate::net::egress::{CONNECT, Egress, NoDocument};
use crate::net::issuer::{Metadata, discover, safe_url};
use crate::net::origin::{is_same_origin, with_path};
use crate::seal;
use crate::seal::hex::hex;
use crate::seal::random;

/// The tokens of one upstream.
pub(crate) struct TokenSource {
    oauth: OAuth,
    /// The upstream itself.
    url: Uri,
    egress: Egress,
    token: ArcSwapOption<Token>,
    /// Whoever gets one does so for all.
    getting: Mutex<Getting>,
}

/// What is known of getting tokens.
#[derive(Default)]
struct Getting {
    place: Option<Place>,
    failed: Option<(Instant, Kind)>,
    /// When a token was last got because one was refused.
    replaced: Option<Instant>,
}

/// Where tokens are had.
#[derive(Clone)]
struct Place {
    endpoint: Uri,
    /// Whom an assertion is for.
    audience: String,
    /// Whether the secret goes into the body.
    posts_secret: bool,
    resource: String,
    /// What the upstream asks for.
    scope: Option<String>,
}

/// The parameters of a `Bearer` challenge (RFC 6750, section 3) that say how to get a token.
#[derive(Debug, Default, Eq, PartialEq)]
struct BearerChallenge {
    /// URL of the protected-resource metadata (RFC 9728, section 5.1).
    resource_metadata: Option<String>,
    scope: Option<String>,
}

impl BearerChallenge {
    /// Reads the challenges of all `WWW-Authenticate` lines: the first `Bearer` challenge that names
    /// `resource_metadata` counts, else the first one at all. The rest of a malformed line is skipped.
    fn read(headers: &HeaderMap) -> Self {
        let mut first = None;
        let lines = headers.get_all(WWW_AUTHENTICATE).into_iter().filter_map(|v| v.to_str().ok());
        let challenges = lines.flat_map(|line| ChallengeParser::new(line).map_while(Result::ok));
        for challenge in challenges.filter(|c| c.scheme.eq_ignore_ascii_case("bearer")) {
            let parameter = |name: &str| {
                let mut all = challenge.params.iter();
                let (_, value) = all.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
                Some(value.to_unescaped())
            };
            let read = Self {
                resource_metadata: parameter("resource_metadata"),
                scope: parameter("scope"),
            };
            if read.resource_metadata.is_some() {
                return read;
            }
            first.get_or_insert(read);
        }
        first.unwrap_or_default()
    }
}

struct Token {
    header: HeaderValue,
    /// From then on another one is got, and at the end this one is no good.
    renew_at: Instant,
    ends_at: Instant,
}

/// Lifetime of a token of which nothing is said.
const LIFETIME: Duration = Duration::from_secs(300);

/// How long nobody tries again after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// How long a refused token is not replaced by another one again.
const REPLACE: Duration = Duration::from_secs(10);

/// Time in which the assertion of a client is good, in seconds.
const ASSERTION_SECS: u64 = 60;

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

impl TokenSource {
    /// # Errors
    /// When the certificates cannot be used.
    pub(crate) fn new(oauth: &OAuth, url: &Uri, ca: Option<&str>) -> Result<Self, String> {
        seal::jws::install();
        // An endpoint that the operator has given is trusted; one that an upstream names must be
        // public, unless the upstream is on this machine itself.
        let is_trusted = oauth.token_url.is_some() || is_loopback(url.host().unwrap_or_default());
        let address_policy =
            if is_trusted { AddressPolicy::NotLinkLocal } else { AddressPolicy::PublicOnly };
        let egress = Egress::new(CONNECT, ca, address_policy)?;
        let place = oauth.token_url.as_ref().map(|endpoint| Place {
            endpoint: endpoint.clone(),
            audience: endpoint.to_string(),
            posts_secret: false,
            resource: oauth.resource.clone().unwrap_or_else(|| url.to_string()),
            scope: oauth.scope.clone(),
        });
        Ok(Self {
            oauth: oauth.clone(),
            url: url.clone(),
            egress,
            token: ArcSwapOption::empty(),
            getting: Mutex::new(Getting { place, ..Getting::default() }),
        })
    }

    /// What to send with a request; nothing as long as it is not known where to get it.
    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, Kind> {
        let now = Instant::now();
        let token = self.token.load_full().filter(|token| now < token.ends_at);
        if let Some(token) = &token {
            // One gets another before this one ends; all others go on with this one.
            let getting = if now < token.renew_at { None } else { self.getting.try_lock().ok() };
            let header = match getting {
                Some(getting) => self.get(getting, Some(token)).await.unwrap_or(None),
                None => None,
            };
            return Ok(header.or_else(|| Some(token.header.clone())));
        }
        let getting = self.getting.lock().await;
        self.get(getting, None).await
    }

    /// The upstream has refused what was sent, and has said this: another token, which was not
    /// tried yet.
    pub(crate) async fn refused(
        &self,
        sent: Option<&HeaderValue>,
        answer: &HeaderMap,
    ) -> Result<HeaderValue, Kind> {
        let mut getting = self.getting.lock().await;
        let other = self.token.load_full().filter(|token| Some(&token.header) != sent);
        if let Some(token) = other.filter(|token| Instant::now() < token.ends_at) {
            return Ok(token.header.clone());
        }
        // One that takes no token at all must not make us ask for tokens as fast as we are called.
        if getting.replaced.is_some_and(|at| at.elapsed() < REPLACE) {
            return Err(Kind::AuthFailed { status: 401 });
        }
        if sent.is_some() {
            getting.replaced = Some(Instant::now());
        }
        self.token.store(None);
        if getting.place.is_none() {
            check_pause(&getting)?;
            match self.find(answer).await {
                Ok(place) => getting.place = Some(place),
                Err(why) => return Err(failed(&mut getting, why)),
            }
        }
        let header = self.get(getting, None).await?;
        header.ok_or_else(|| Kind::NoToken("nobody says where to get one".to_owned()))
    }

    /// Gets a token, unless somebody has got one meanwhile that is another one than `old`.
    async fn get(
        &self,
        mut getting: tokio::sync::MutexGuard<'_, Getting>,
        old: Option<&Arc<Token>>,
    ) -> Result<Option<HeaderValue>, Kind> {
        let now = Instant::now();
        let got = self.token.load_full().filter(|token| now < token.renew_at);
        if let Some(token) = got.filter(|token| old.is_none_or(|old| !Arc::ptr_eq(old, token))) {
            return Ok(Some(token.header.clone()));
        }
        let Some(place) = getting.place.clone() else {
            return Ok(None);
        };
        check_pause(&getting)?;
        match self.request_token(&place).await {
            Ok(token) => {
                getting.failed = None;
                let header = token.header.clone();
                self.token.store(Some(Arc::new(token)));
                Ok(Some(header))
            }
            Err(why) => {
                // What was found out may be out of date: it is looked for anew.
                if self.oauth.token_url.is_none() {
                    getting.place = None;
                }
                Err(failed(&mut getting, why))
            }
        }
    }

    /// Asks for a token (RFC 6749, section 4.4).
    async fn request_token(&self, place: &Place) -> Result<Token, String> {
        let mut form = vec![("grant_type", "client_credentials".to_owned())];
        form.push(("resource", place.resource.clone()));
        form.extend(place.scope.clone().map(|scope| ("scope", scope)));
        let mut request = Request::new(Full::default());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = place.endpoint.clone();
        let id = &self.oauth.client_id;
        match &self.oauth.proof {
            ClientProof::Secret(secret) if place.posts_secret => {
                form.push(("client_id", id.clone()));
                form.push(("client_secret", secret.expose().to_owned()));
            }
            ClientProof::Secret(secret) => {
                // Both are encoded first (RFC 6749, section 2.3.1).
                let pair = format!("{}:{}", encoded(id), encoded(secret.expose()));
                let header = format!("Basic {}", BASE64_STANDARD.encode(pair));
                request.headers_mut().insert(AUTHORIZATION, sensitive(&header)?);
            }
            ClientProof::Key { algorithm, key, .. } => {
                let assertion = encode(&Header::new(*algorithm), &claims(id, &place.audience), key);
                let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
                form.push(("client_id", id.clone()));
                form.push(("client_assertion_type", kind.to_owned()));
                form.push(("client_assertion", assertion.map_err(|e| e.to_string())?));
            }
        }
        let pairs = form.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
        *request.body_mut() = Full::new(Bytes::from(pairs.collect::<Vec<_>>().join("&")));
        let media = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, media);
        let sent_at = Instant::now();
        let answer = self.egress.json(request).await;
        read(&answer.map_err(|error| format!("{}: {error}", place.endpoint))?, sent_at)
    }

    /// Finds out where to get tokens for the upstream, from what it said when it refused
    /// (2025-11-25, authorization server discovery).
    async fn find(&self, answer: &HeaderMap) -> Result<Place, String> {
        let challenge = BearerChallenge::read(answer);
        let (document, place) = match challenge.resource_metadata {
            Some(place) => (self.metadata_at(&place).await?, place),
            None => self.metadata_nearby().await?,
        };
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        let resource = text("resource").unwrap_or_default();
        if !is_of(&self.url, resource) {
            let resource = excerpt(resource);
            return Err(format!("{place}: it is about {resource:?}, not about {}", self.url));
        }
        let issuer =
            document.get("authorization_servers").and_then(|servers| servers.get(0)?.as_str());
        let issuer = issuer.ok_or_else(|| format!("{place}: it names no authorization server"))?;
        let Metadata { token_endpoint, auth_methods, .. } = discover(&self.egress, issuer).await?;
        let endpoint = token_endpoint.ok_or_else(|| format!("{issuer} names no token_endpoint"))?;
        let takes = |method: &str| auth_methods.iter().any(|m| m == method);
        Ok(Place {
            endpoint,
            audience: issuer.to_owned(),
            posts_secret: takes("client_secret_post") && !takes("client_secret_basic"),
            resource: self.oauth.resource.clone().unwrap_or_else(|| resource.to_owned()),
            scope: self.oauth.scope.clone().or(challenge.scope),
        })
    }

    /// The upstream's metadata at a place that it names, which must be its own origin (RFC 9728,
    /// section 3).
    async fn metadata_at(&self, place: &str) -> Result<Value, String> {
        let url = safe_url(place).filter(|url| is_same_origin(url, &self.url));
        let url =
            url.ok_or_else(|| format!("{:?} is not at the upstream's own origin", excerpt(place)))?;
        self.egress.get_json(&url).await.map_err(|error| format!("{url}: {error}"))
    }

    /// The upstream's metadata where it is by default: below the name of its path, or of its origin.
    async fn metadata_nearby(&self) -> Result<(Value, String), String> {
        let path = self.url.path().trim_end_matches('/');
        let mut last = "the upstream does not say where to get a token".to_owned();
        for path in [format!("{WELL_KNOWN}{path}"), WELL_KNOWN.to_owned()] {
            let Some(url) = with_path(&self.url, &path) else {
                continue;
            };
            match self.egress.get_json(&url).await {
                Ok(document) => return Ok((document, url.to_string())),
                Err(error @ NoDocument::Status { .. }) => last = format!("{url}: {error}"),
                Err(error) => return Err(format!("{url}: {error}")),
            }
        }
        Err(last)
    }
}

/// A token that could not be had is not asked for again at once.
fn check_pause(getting: &Getting) -> Result<(), Kind> {
    match &getting.failed {
        Some((at, kind)) if at.elapsed() < RETRY => Err(kind.clone()),
        _ => Ok(()),
    }
}

fn failed(getting: &mut Getting, why: String) -> Kind {
    let kind = Kind::NoToken(why);
    getting.failed = Some((Instant::now(), kind.clone()));
    kind
}

fn claims(client: &str, audience: &str) -> Value {
    let now = get_current_timestamp();
    json!({"iss": client, "sub": client, "aud": audience, "iat": now, "exp": now + ASSERTION_SECS,
        "jti": hex(&random::<16>())})
}

/// Reads a token, asked for at `asked`.
fn read(answer: &Value, sent_at: Instant) -> Result<Token, String> {
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    let token = text("access_token").filter(|token| !token.is_empty()).ok_or("no access_token")?;
    if !text("token_type").is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err("the token is of a type that is not known here".to_owned());
    }
    let seconds = answer.get("expires_in").and_then(Value::as_u64).map(Duration::from_secs);
    // A day is long enough to look again, whatever is promised.
    let lifetime = seconds.unwrap_or(LIFETIME).min(Duration::from_secs(86_400));
    Ok(Token {
        header: sensitive(&format!("Bearer {token}"))?,
        renew_at: sent_at + lifetime.mul_f32(0.8),
        ends_at: sent_at + lifetime,
    })
}

fn sensitive(text: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(text);
    let mut value = value.map_err(|_| "it holds what no header can hold".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whether a resource is the one at this URL: its origin, and its path or one above it.
fn is_of(url: &Uri, resource: &str) -> bool {
    let Ok(named) = resource.parse::<Uri>() else {
        return false;
    };
    let above = named.path().trim_end_matches('/');
    let below = url.path().strip_prefix(above);
    is_same_origin(&named, url)
        && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// As forms are encoded (WHATWG URL, application/x-www-form-urlencoded), with blanks spelled like
/// the rest.
fn encoded(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(lines: &[&'static str]) -> (Option<String>, Option<String>) {
        let lines = lines.iter().map(|line| (WWW_AUTHENTICATE, HeaderValue::from_static(line)));
        let read = BearerChallenge::read(&lines.collect());
        (read.resource_metadata, read.scope)
    }

    #[test]
    fn the_bearer_challenge_is_found_among_all_header_lines() {
        let expected = (Some("https://a/b?c=d".to_owned()), Some("a b".to_owned()));
        let bearer = r#"Bearer error="a", resource_metadata="https://a/b?c=d", scope = "a b""#;
        assert_eq!(challenge(&[bearer]), expected);
        assert_eq!(challenge(&["Basic realm=\"x\"", bearer]), expected);
        assert_eq!(challenge(&["Negotiate", "Bearer", bearer]), expected);
        let one_line =
            r#"Basic realm="x", bearer resource_metadata="https://a/b?c=d", scope="a b""#;
        assert_eq!(challenge(&[one_line]), expected);
        assert_eq!(challenge(&["Bearer scope=one"]), (None, Some("one".to_owned())));
        assert_eq!(challenge(&[]), (None, None));
    }

    #[test]
    fn parameters_inside_quoted_text_and_of_other_schemes_do_not_count() {
        let quoted =
            r#"Bearer realm="x, resource_metadata=https://evil, scope=all", error="a\" b""#;
        assert_eq!(challenge(&[quoted]), (None, None));
        assert_eq!(challenge(&["Basic scope=all, resource_metadata=\"https://b\""]), (None, None));
        assert_eq!(challenge(&["Bearer scope==="]), (None, None));
    }

    #[test]
    fn a12_metadata_about_somebody_else_is_refused() {
        let url: Uri = "https://a.example/team/mcp".parse().unwrap();
        for good in [
            "https://a.example/team/mcp",
            "https://a.example/team",
            "https://a.example/",
            "https://a.example",
        ] {
            assert!(is_of(&url, good), "{good}");
        }
        for bad in [
            "https://evil.example/team/mcp",
            "http://a.example/team/mcp",
            "https://a.example:444/team/mcp",
            "https://a.example/team/mc",
            "https://a.example/other",
            "https://a.example/team/mcp/deeper",
            "",
        ] {
            assert!(!is_of(&url, bad), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_token_says_how_long_it_is_good() {
        let now = Instant::now();
        let good = json!({"access_token": "t", "token_type": "bearer", "expires_in": 100});
        let token = read(&good, now).unwrap();
        assert_eq!(
            (token.header.to_str().unwrap(), token.header.is_sensitive()),
            ("Bearer t", true)
        );
        assert_eq!(token.renew_at.duration_since(now).as_secs(), 80);
        assert_eq!(token.ends_at.duration_since(now).as_secs(), 100);
        for bad in [
            json!({"token_type": "Bearer"}),
            json!({"access_token": "", "token_type": "Bearer"}),
            json!({"access_token": "a\nb", "token_type": "Bearer"}),
            json!({"access_token": "t", "token_type": "mac"}),
            json!({"access_token": "t"}),
        ] {
            assert!(read(&bad, now).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_a_form_holds_is_encoded() {
        assert_eq!(encoded("a b&c=é~"), "a%20b%26c%3D%C3%A9~");
    }
}
