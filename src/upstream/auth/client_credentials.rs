//! Access tokens for upstreams (OAuth client credentials; RFC 6749, section 4.4): discovery of the
//! authorization server, token requests, and a cache with one request at a time.

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
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::config::{ClientProof, OAuth};
use crate::domain::address_policy::{AddressPolicy, is_loopback};
use crate::domain::fault::{UpstreamFaultKind as Kind, excerpt};
use crate::domain::percent;
use crate::net::egress::{CONNECT, Egress, FetchError};
use crate::net::issuer::{discover, safe_url};
use crate::net::origin::{is_same_origin, with_path};
use crate::seal;
use crate::seal::hex::hex;
use crate::seal::random;

/// Access tokens of one upstream.
pub(crate) struct TokenSource {
    oauth: OAuth,
    /// URL of the upstream.
    url: Uri,
    egress: Egress,
    token: ArcSwapOption<Token>,
    /// Held during a token request: one request serves all calls that wait.
    requests: Mutex<RequestState>,
}

/// State that token requests hand on.
#[derive(Default)]
struct RequestState {
    /// Absent until it is configured or discovered.
    grant: Option<Grant>,
    /// Time and fault of the last request, if it failed.
    failure: Option<(Instant, Kind)>,
    /// Time of the last request that replaced a refused token.
    replaced: Option<Instant>,
}

/// Parameters of a token request.
#[derive(Clone)]
struct Grant {
    token_endpoint: Uri,
    /// `aud` of a client assertion (RFC 7523, section 3).
    audience: String,
    /// Whether the client authenticates by `client_secret_post`, not `client_secret_basic`.
    posts_secret: bool,
    /// Resource indicator (RFC 8707).
    resource: String,
    /// The configured scope, or else that of the upstream's challenge.
    scope: Option<String>,
}

/// The parameters of a `Bearer` challenge (RFC 6750, section 3) about token requests.
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

/// An access token.
struct Token {
    /// Value of `Authorization`.
    header: HeaderValue,
    /// From this time on a call requests another token, while the others still use this one.
    renew_at: Instant,
    expires_at: Instant,
}

/// Lifetime of a token whose response has no `expires_in`: short, because the real one is unknown.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(300);

/// Longest lifetime that is used, whatever `expires_in` has: a token request per day costs nothing.
const MAX_LIFETIME: Duration = Duration::from_secs(86_400);

/// Pause after a failed token request: the authorization server gets one request per second at most,
/// however many calls wait for a token.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Pause after the replacement of a refused token: an upstream that refuses all tokens must not cause a
/// token request per call.
const REPLACE_PAUSE: Duration = Duration::from_secs(10);

/// Lifetime of a client assertion in seconds: enough for one request and a clock that is a little off.
const ASSERTION_SECS: u64 = 60;

/// Well-known path of protected-resource metadata (RFC 9728, section 3).
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

impl TokenSource {
    /// `url` is the upstream's; `ca` holds certificates (PEM) that are trusted in addition to those of
    /// the system.
    ///
    /// # Errors
    /// When `ca` holds no usable certificate.
    pub(crate) fn new(oauth: &OAuth, url: &Uri, ca: Option<&str>) -> Result<Self, String> {
        seal::jws::install();
        // The operator's token endpoint is trusted. One that an upstream names must have a public
        // address, unless the upstream is on this machine.
        let is_trusted = oauth.token_url.is_some() || is_loopback(url.host().unwrap_or_default());
        let address_policy =
            if is_trusted { AddressPolicy::NotLinkLocal } else { AddressPolicy::PublicOnly };
        let egress = Egress::new(CONNECT, ca, address_policy)?;
        let grant = oauth.token_url.as_ref().map(|endpoint| Grant {
            token_endpoint: endpoint.clone(),
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
            requests: Mutex::new(RequestState { grant, ..RequestState::default() }),
        })
    }

    /// Returns the value of `Authorization` of the last requests, if there is a token.
    pub(crate) fn last_header(&self) -> Option<HeaderValue> {
        self.token.load().as_ref().map(|token| token.header.clone())
    }

    /// Returns the value of `Authorization` for a request; nothing until a challenge of the upstream
    /// has led to an authorization server. Cancel safe: a request that is dropped is repeated by the
    /// next call.
    ///
    /// # Errors
    /// [`Kind::NoToken`] when the token request fails or has failed within the last second.
    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, Kind> {
        let now = Instant::now();
        let token = self.token.load_full().filter(|token| now < token.expires_at);
        if let Some(token) = &token {
            // One call renews the token before it expires; all others use the current one meanwhile.
            let state = if now < token.renew_at { None } else { self.requests.try_lock().ok() };
            let header = match state {
                Some(state) => self.renew(state, Some(token)).await.unwrap_or(None),
                None => None,
            };
            return Ok(header.or_else(|| Some(token.header.clone())));
        }
        let state = self.requests.lock().await;
        self.renew(state, None).await
    }

    /// Returns another token after the upstream has refused the one in `sent` with 401 and the headers
    /// `response`, which may name the authorization server.
    ///
    /// # Errors
    /// [`Kind::AuthFailed`] when a refused token was replaced less than ten seconds ago, [`Kind::NoToken`] when no
    /// token can be had.
    pub(crate) async fn refused(
        &self,
        sent: Option<&HeaderValue>,
        response: &HeaderMap,
    ) -> Result<HeaderValue, Kind> {
        let mut state = self.requests.lock().await;
        let newer = self.token.load_full().filter(|token| Some(&token.header) != sent);
        if let Some(token) = newer.filter(|token| Instant::now() < token.expires_at) {
            return Ok(token.header.clone());
        }
        if state.replaced.is_some_and(|at| at.elapsed() < REPLACE_PAUSE) {
            return Err(Kind::AuthFailed { status: 401 });
        }
        if sent.is_some() {
            state.replaced = Some(Instant::now());
        }
        self.token.store(None);
        if state.grant.is_none() {
            check_pause(&state)?;
            match self.discover_grant(response).await {
                Ok(grant) => state.grant = Some(grant),
                Err(reason) => return Err(fail(&mut state, reason)),
            }
        }
        let header = self.renew(state, None).await?;
        header.ok_or_else(|| Kind::NoToken("no authorization server is known".to_owned()))
    }

    /// Requests a token, unless another call has stored one that is newer than `old` meanwhile.
    async fn renew(
        &self,
        mut state: MutexGuard<'_, RequestState>,
        old: Option<&Arc<Token>>,
    ) -> Result<Option<HeaderValue>, Kind> {
        let now = Instant::now();
        let stored = self.token.load_full().filter(|token| now < token.renew_at);
        if let Some(token) = stored.filter(|token| old.is_none_or(|old| !Arc::ptr_eq(old, token))) {
            return Ok(Some(token.header.clone()));
        }
        let Some(grant) = state.grant.clone() else {
            return Ok(None);
        };
        check_pause(&state)?;
        match self.request_token(&grant).await {
            Ok(token) => {
                state.failure = None;
                let header = token.header.clone();
                self.token.store(Some(Arc::new(token)));
                Ok(Some(header))
            }
            Err(reason) => {
                // The discovered endpoint may be out of date: the next challenge starts discovery anew.
                if self.oauth.token_url.is_none() {
                    state.grant = None;
                }
                Err(fail(&mut state, reason))
            }
        }
    }

    /// Sends a token request (RFC 6749, section 4.4; RFC 8707, section 2).
    async fn request_token(&self, grant: &Grant) -> Result<Token, String> {
        let mut form = vec![("grant_type", "client_credentials".to_owned())];
        form.push(("resource", grant.resource.clone()));
        form.extend(grant.scope.clone().map(|scope| ("scope", scope)));
        let mut request = Request::new(Full::default());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = grant.token_endpoint.clone();
        let id = &self.oauth.client_id;
        match &self.oauth.proof {
            ClientProof::Secret(secret) if grant.posts_secret => {
                form.push(("client_id", id.clone()));
                form.push(("client_secret", secret.expose().to_owned()));
            }
            ClientProof::Secret(secret) => {
                // Form-encoded before they are joined (RFC 6749, section 2.3.1).
                let pair =
                    format!("{}:{}", percent::encoded(id), percent::encoded(secret.expose()));
                let header = format!("Basic {}", BASE64_STANDARD.encode(pair));
                request.headers_mut().insert(AUTHORIZATION, sensitive(&header)?);
            }
            ClientProof::Key { algorithm, key, .. } => {
                let assertion = encode(&Header::new(*algorithm), &claims(id, &grant.audience), key);
                let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
                form.push(("client_id", id.clone()));
                form.push(("client_assertion_type", kind.to_owned()));
                form.push(("client_assertion", assertion.map_err(|e| e.to_string())?));
            }
        }
        let pairs = form.iter().map(|(name, value)| format!("{name}={}", percent::encoded(value)));
        *request.body_mut() = Full::new(Bytes::from(pairs.collect::<Vec<_>>().join("&")));
        let media = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, media);
        let sent_at = Instant::now();
        let response = self.egress.json(request).await;
        let response = response.map_err(|error| format!("{}: {error}", grant.token_endpoint))?;
        parse_token(&response, sent_at)
    }

    /// Discovers the authorization server of the upstream from the headers of its 401 response (MCP
    /// 2025-11-25, authorization server discovery).
    async fn discover_grant(&self, response: &HeaderMap) -> Result<Grant, String> {
        let challenge = BearerChallenge::read(response);
        let (document, source) = match challenge.resource_metadata {
            Some(url) => (self.named_metadata(&url).await?, url),
            None => self.well_known_metadata().await?,
        };
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        let resource = text("resource").unwrap_or_default();
        if !covers(resource, &self.url) {
            let resource = excerpt(resource);
            return Err(format!(
                "{source}: its resource is {resource:?}, which does not cover {}",
                self.url
            ));
        }
        let issuer =
            document.get("authorization_servers").and_then(|servers| servers.get(0)?.as_str());
        let issuer = issuer.ok_or_else(|| format!("{source}: it names no authorization server"))?;
        let metadata = discover(&self.egress, issuer).await?;
        let posts_secret = metadata.posts_secret();
        let token_endpoint =
            metadata.token_endpoint.ok_or_else(|| format!("{issuer} names no token_endpoint"))?;
        Ok(Grant {
            token_endpoint,
            audience: issuer.to_owned(),
            posts_secret,
            resource: self.oauth.resource.clone().unwrap_or_else(|| resource.to_owned()),
            scope: self.oauth.scope.clone().or(challenge.scope),
        })
    }

    /// Fetches the protected-resource metadata at the URL that a challenge names, which must have the
    /// origin of the upstream (RFC 9728, section 3).
    async fn named_metadata(&self, named: &str) -> Result<Value, String> {
        let url = safe_url(named).filter(|url| is_same_origin(url, &self.url));
        let url =
            url.ok_or_else(|| format!("{:?} is not at the upstream's own origin", excerpt(named)))?;
        self.egress.get_json(&url).await.map_err(|error| format!("{url}: {error}"))
    }

    /// Fetches the protected-resource metadata at its well-known URL, first with the path of the upstream,
    /// then without. Returns it with its URL.
    async fn well_known_metadata(&self) -> Result<(Value, String), String> {
        let path = self.url.path().trim_end_matches('/');
        let mut last = "the upstream names no protected-resource metadata".to_owned();
        for path in [format!("{WELL_KNOWN}{path}"), WELL_KNOWN.to_owned()] {
            let Some(url) = with_path(&self.url, &path) else {
                continue;
            };
            match self.egress.get_json(&url).await {
                Ok(document) => return Ok((document, url.to_string())),
                Err(error @ FetchError::Status { .. }) => last = format!("{url}: {error}"),
                Err(error) => return Err(format!("{url}: {error}")),
            }
        }
        Err(last)
    }
}

/// Repeats the fault of a token request that has just failed.
fn check_pause(state: &RequestState) -> Result<(), Kind> {
    match &state.failure {
        Some((at, kind)) if at.elapsed() < RETRY_PAUSE => Err(kind.clone()),
        _ => Ok(()),
    }
}

fn fail(state: &mut RequestState, reason: String) -> Kind {
    let kind = Kind::NoToken(reason);
    state.failure = Some((Instant::now(), kind.clone()));
    kind
}

/// Returns the claims of a client assertion (RFC 7523, section 3).
fn claims(client: &str, audience: &str) -> Value {
    let now = get_current_timestamp();
    json!({"iss": client, "sub": client, "aud": audience, "iat": now, "exp": now + ASSERTION_SECS,
        "jti": hex(&random::<16>())})
}

/// Parses the response to a token request that was sent at `sent_at` (RFC 6749, section 5.1).
fn parse_token(response: &Value, sent_at: Instant) -> Result<Token, String> {
    let text = |name: &str| response.get(name).and_then(Value::as_str);
    let token = text("access_token")
        .filter(|token| !token.is_empty())
        .ok_or("the token response has no access_token")?;
    if !text("token_type").is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err("token_type is not Bearer".to_owned());
    }
    let seconds = response.get("expires_in").and_then(Value::as_u64).map(Duration::from_secs);
    let lifetime = seconds.unwrap_or(DEFAULT_LIFETIME).min(MAX_LIFETIME);
    Ok(Token {
        header: sensitive(&format!("Bearer {token}"))?,
        renew_at: sent_at + lifetime.mul_f32(0.8),
        expires_at: sent_at + lifetime,
    })
}

/// Returns a header value that is not logged.
fn sensitive(text: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(text);
    let mut value = value
        .map_err(|_| "the credential has a character that no HTTP header may have".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns whether the resource of protected-resource metadata covers a URL: the same origin, and the same
/// path or a parent of it.
fn covers(resource: &str, url: &Uri) -> bool {
    let Ok(resource) = resource.parse::<Uri>() else {
        return false;
    };
    let parent = resource.path().trim_end_matches('/');
    let below = url.path().strip_prefix(parent);
    is_same_origin(&resource, url)
        && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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
    fn a12_metadata_of_another_resource_is_refused() {
        let url: Uri = "https://a.example/team/mcp".parse().unwrap();
        for good in [
            "https://a.example/team/mcp",
            "https://a.example/team",
            "https://a.example/",
            "https://a.example",
        ] {
            assert!(covers(good, &url), "{good}");
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
            assert!(!covers(bad, &url), "{bad}");
        }
    }

    #[tokio::test]
    async fn the_lifetime_of_a_token_is_read_from_its_response() {
        let now = Instant::now();
        let good = json!({"access_token": "t", "token_type": "bearer", "expires_in": 100});
        let token = parse_token(&good, now).unwrap();
        assert_eq!(
            (token.header.to_str().unwrap(), token.header.is_sensitive()),
            ("Bearer t", true)
        );
        assert_eq!(token.renew_at.duration_since(now).as_secs(), 80);
        assert_eq!(token.expires_at.duration_since(now).as_secs(), 100);
        for bad in [
            json!({"token_type": "Bearer"}),
            json!({"access_token": "", "token_type": "Bearer"}),
            json!({"access_token": "a\nb", "token_type": "Bearer"}),
            json!({"access_token": "t", "token_type": "mac"}),
            json!({"access_token": "t"}),
        ] {
            assert!(parse_token(&bad, now).is_err(), "{bad}");
        }
    }
}
