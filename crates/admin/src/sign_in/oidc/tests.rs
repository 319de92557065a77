//! Whole sign-ins against a scripted provider on a real socket.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::COOKIE;
use http::{HeaderMap, Uri};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use url::{Url, form_urlencoded};

use crate::sign_in::attempts::Failed;
use crate::sign_in::site::site;
use crate::sign_in::tests::{admin, sealer};
use crate::sign_in::{LocalPath, Redirect, Role, SignIn, SignInError, SignInMethod, SignedIn};
use audit::Audit;
use base::seal::{jws, sha256};
use domain::time::unix_time::UnixSeconds;

const NOW: UnixSeconds = UnixSeconds(1_000_000);
const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A key of the provider.
#[derive(Clone)]
struct Key {
    id: &'static str,
    algorithm: Algorithm,
    encoding: EncodingKey,
    jwk: Value,
}

impl Key {
    fn ec(id: &'static str) -> Self {
        let pair = rcgen::KeyPair::generate().unwrap();
        let point = pair.public_key_raw();
        let jwk = json!({"kty": "EC", "kid": id, "crv": "P-256",
            "x": text(&point[1..33]), "y": text(&point[33..])});
        let encoding = EncodingKey::from_ec_der(pair.serialized_der());
        Self { id, algorithm: Algorithm::ES256, encoding, jwk }
    }

    fn rsa(id: &'static str, algorithm: Algorithm) -> Self {
        use ring::signature::{RsaKeyPair, RsaPublicKeyComponents};
        let pem = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/gateway/fixtures/rsa.pem");
        let der = PrivatePkcs8KeyDer::from_pem_file(pem).unwrap();
        let pair = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).unwrap();
        let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
        let jwk = json!({"kty": "RSA", "kid": id, "use": "sig",
            "n": text(&public.n), "e": text(&public.e)});
        let encoding = EncodingKey::from_rsa_der(der.secret_pkcs8_der());
        Self { id, algorithm, encoding, jwk }
    }

    fn sign(&self, claims: &Value) -> String {
        jws::install();
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.id.to_owned());
        encode(&header, claims, &self.encoding).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// A change that a test makes to the claims of a person.
type Change = Box<dyn Fn(&mut Value) + Send>;

pub(crate) struct State {
    published: Vec<Key>,
    signs: Key,
    metadata: Value,
    change: Change,
    /// Alters a signed token.
    forge: fn(String, &Key) -> String,
    /// The parameters of the last authorization request, until its code is exchanged.
    authorized: Option<HashMap<String, String>>,
    /// `Authorization` and the form of each token request.
    exchanges: Vec<(Option<String>, HashMap<String, String>)>,
}

struct Provider {
    issuer: String,
    state: Arc<Mutex<State>>,
    serving: JoinHandle<()>,
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Provider {
    async fn start(key: Key) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let metadata = json!({"issuer": issuer, "jwks_uri": format!("{issuer}/jwks"),
            "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token")});
        let state = Arc::new(Mutex::new(State {
            published: vec![key.clone()],
            signs: key,
            metadata,
            change: Box::new(|_| {}),
            forge: |token, _| token,
            authorized: None,
            exchanges: Vec::new(),
        }));
        let shared = state.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, &shared).await;
            }
        });
        Self { issuer, state, serving }
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Sets a change to the claims of the next ID tokens.
    fn claims(&self, change: impl Fn(&mut Value) + Send + 'static) {
        self.set(|state| state.change = Box::new(change));
    }

    fn sign_in(&self, more: &str) -> SignIn {
        let text = format!(
            "token = {{ value = \"t\" }}\nwrite = true\n[admin.oidc]\nissuer = \"{}\"\n\
             client_id = \"console\"\nviewers = [\"staff\"]\napprovers = [\"leads\"]\n{more}",
            self.issuer
        );
        SignIn::new(&admin(&text), sealer(), Audit::default())
    }

    /// The person signs in; returns the query with which the provider sends the browser back.
    fn authorize(&self, redirect: &Redirect) -> String {
        let location = Url::parse(redirect.location.to_str().unwrap()).unwrap();
        assert!(location.as_str().starts_with(&format!("{}/authorize?", self.issuer)));
        let asked: HashMap<_, _> = location.query_pairs().into_owned().collect();
        let state = asked["state"].clone();
        self.set(|own| own.authorized = Some(asked));
        format!("code=c0de&state={state}")
    }
}

/// Serves one request of one connection.
async fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    let mut received = Vec::new();
    let (head, body) = loop {
        if stream.read_buf(&mut received).await.unwrap_or_default() == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&received).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = header(head, "content-length").map_or(0, |length| length.parse().unwrap());
        if body.len() >= length {
            break (head.to_owned(), body.to_owned());
        }
    };
    let path = head.split(' ').nth(1).unwrap_or_default();
    let (status, document) = answer(&mut state.lock().unwrap(), path, &head, &body);
    let document = document.to_string();
    let length = document.len();
    let response = format!(
        "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{document}"
    );
    let _ = stream.write_all(response.as_bytes()).await;
}

fn header(head: &str, name: &str) -> Option<String> {
    let mut pairs = head.lines().filter_map(|line| line.split_once(": "));
    pairs.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
}

fn answer(state: &mut State, path: &str, head: &str, body: &str) -> (u16, Value) {
    match path {
        "/.well-known/openid-configuration" => (200, state.metadata.clone()),
        "/jwks" => {
            let keys: Vec<_> = state.published.iter().map(|key| key.jwk.clone()).collect();
            (200, json!({"keys": keys}))
        }
        "/token" => token(state, head, body),
        _ => (404, json!({})),
    }
}

/// The token endpoint: a code is good once, with its verifier.
fn token(state: &mut State, head: &str, body: &str) -> (u16, Value) {
    let form: HashMap<_, _> = form_urlencoded::parse(body.as_bytes()).into_owned().collect();
    state.exchanges.push((header(head, "authorization"), form.clone()));
    let Some(asked) = state.authorized.take() else {
        return (400, json!({"error": "invalid_grant"}));
    };
    let challenge = text(&sha256(form["code_verifier"].as_bytes()));
    let is_good = form["code"] == "c0de"
        && form["grant_type"] == "authorization_code"
        && form["redirect_uri"] == asked["redirect_uri"]
        && challenge == asked["code_challenge"];
    if !is_good {
        return (400, json!({"error": "invalid_grant"}));
    }
    let mut claims = json!({"iss": state.metadata["issuer"], "aud": "console", "sub": "ada",
        "nonce": asked["nonce"], "iat": NOW.0, "exp": NOW.0 + 300, "email": "ada@example.com",
        "groups": ["staff", "leads"]});
    (state.change)(&mut claims);
    let token = (state.forge)(state.signs.sign(&claims), &state.signs);
    (200, json!({"access_token": "a", "token_type": "Bearer", "id_token": token}))
}

async fn begin(sign_in: &SignIn) -> Redirect {
    let return_to = LocalPath::or_root("/approvals");
    sign_in.begin(&site("localhost:9877"), &return_to, NOW).await.unwrap()
}

fn cookies(redirect: &Redirect) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(COOKIE, redirect.cookie.pair().parse().unwrap());
    headers
}

async fn finish(
    sign_in: &SignIn,
    query: &str,
    headers: &HeaderMap,
) -> Result<SignedIn, SignInError> {
    sign_in.finish(&site("localhost:9877"), query, headers, HOME, NOW).await
}

/// A whole sign-in.
async fn run(provider: &Provider, sign_in: &SignIn) -> Result<SignedIn, SignInError> {
    let redirect = begin(sign_in).await;
    let query = provider.authorize(&redirect);
    finish(sign_in, &query, &cookies(&redirect)).await
}

fn visitor(sign_in: &SignIn, signed_in: &SignedIn) -> Option<crate::sign_in::Visitor> {
    let mut headers = HeaderMap::new();
    headers.insert(COOKIE, signed_in.cookies[0].pair().parse().unwrap());
    sign_in.visitor(&site("localhost:9877"), &headers, NOW)
}

#[tokio::test]
async fn a_person_signs_in_with_every_kind_of_key() {
    for key in [
        Key::ec("ec"),
        Key::rsa("rsa", Algorithm::RS256),
        Key::rsa("rsa", Algorithm::PS256),
        Key::rsa("rsa", Algorithm::PS512),
    ] {
        let provider = Provider::start(key).await;
        let sign_in = provider.sign_in("");
        let signed_in = run(&provider, &sign_in).await.unwrap();
        assert_eq!(signed_in.return_to.as_str(), "/approvals");
        assert!(signed_in.cookies[1].text().starts_with("promptgate_login=; Max-Age=0;"));
        let ada = visitor(&sign_in, &signed_in).unwrap();
        assert_eq!((ada.id.as_str(), ada.shown()), ("ada", "ada@example.com"));
        assert_eq!((ada.role, ada.via), (Role::Approver, SignInMethod::Oidc));
        assert_eq!(ada.groups, ["leads", "staff"]);
        let state = provider.state.lock().unwrap();
        let (authorization, form) = &state.exchanges[0];
        assert_eq!((authorization.as_deref(), form["client_id"].as_str()), (None, "console"));
    }
}

#[tokio::test]
async fn the_secret_is_sent_as_the_metadata_says() {
    let provider = Provider::start(Key::ec("k")).await;
    let secret = "client_secret = { value = \"s&cret\" }\n";
    run(&provider, &provider.sign_in(secret)).await.unwrap();
    let methods = json!(["client_secret_post"]);
    provider.set(|s| s.metadata["token_endpoint_auth_methods_supported"] = methods);
    run(&provider, &provider.sign_in(secret)).await.unwrap();
    let state = provider.state.lock().unwrap();
    let [(basic, by_header), (none, by_form)] = &state.exchanges[..] else {
        panic!("{:?}", state.exchanges);
    };
    // The base64 of `console:s%26cret`.
    assert_eq!(basic.as_deref(), Some("Basic Y29uc29sZTpzJTI2Y3JldA=="));
    assert!(!by_header.contains_key("client_secret") && none.is_none());
    assert_eq!(by_form["client_secret"], "s&cret");
}

#[tokio::test]
async fn wrong_claims_and_missing_groups_sign_nobody_in() {
    let provider = Provider::start(Key::ec("k")).await;
    let sign_in = provider.sign_in("");
    for (name, value) in [
        ("nonce", json!("other")),
        ("aud", json!("other")),
        ("iss", json!("https://evil.example")),
        ("exp", json!(NOW.0 - 60)),
    ] {
        provider.claims(move |claims| claims[name] = value.clone());
        let refused = run(&provider, &sign_in).await.unwrap_err();
        assert!(matches!(refused, SignInError::IdToken(_)), "{name}: {refused:?}");
    }
    provider.claims(|claims| claims["groups"] = Value::Null);
    assert_eq!(run(&provider, &sign_in).await.unwrap_err(), SignInError::NoGroups);
    provider.claims(|claims| claims["groups"] = json!(["guests"]));
    assert_eq!(run(&provider, &sign_in).await.unwrap_err(), SignInError::NoRole);
    let more = sign_in.shared.recorded.check(HOME, false);
    assert!(matches!(more, Err(Failed::TooMany(_))), "six failures, of which five are recorded");
    provider.claims(|claims| claims["groups"] = json!("staff"));
    let signed_in = run(&provider, &sign_in).await.unwrap();
    assert_eq!(visitor(&sign_in, &signed_in).unwrap().role, Role::Viewer, "one text is one group");
    // The role ends with its group in the configuration.
    let without = sign_in.admin.oidc.clone().unwrap();
    let oidc = config::Oidc { viewers: Vec::new(), ..without };
    let admin = config::Admin { oidc: Some(oidc), ..sign_in.admin.clone() };
    assert!(visitor(&sign_in.renew(&admin, sealer()), &signed_in).is_none());
}

#[tokio::test]
async fn forged_tokens_sign_nobody_in() {
    fn with_header(token: &str, header: &Value) -> String {
        let (_, rest) = token.split_once('.').unwrap();
        let (claims, _) = rest.split_once('.').unwrap();
        format!("{}.{claims}", text(header.to_string().as_bytes()))
    }
    let forgeries: [fn(String, &Key) -> String; 6] = [
        |token, key| format!("{}.", with_header(&token, &json!({"alg": "none", "kid": key.id}))),
        |token, key| {
            let signed = with_header(&token, &json!({"alg": "HS256", "kid": key.id}));
            let public = key.jwk["n"].as_str().unwrap().as_bytes();
            let public = BASE64_URL_SAFE_NO_PAD.decode(public).unwrap();
            let hmac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &public);
            format!("{signed}.{}", text(ring::hmac::sign(&hmac, signed.as_bytes()).as_ref()))
        },
        |token, _| format!("{}.", token.rsplit_once('.').unwrap().0),
        |token, _| {
            let mut parts: Vec<_> = token.split('.').map(str::to_owned).collect();
            let claims = BASE64_URL_SAFE_NO_PAD.decode(&parts[1]).unwrap();
            let claims = String::from_utf8(claims).unwrap().replace("\"ada\"", "\"eve\"");
            parts[1] = text(claims.as_bytes());
            parts.join(".")
        },
        // Signed with another key, with the id of the provider's key.
        |token, _| {
            let payload = token.split('.').nth(1).unwrap();
            let claims = BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap();
            Key::ec("rsa").sign(&serde_json::from_slice(&claims).unwrap())
        },
        |_, _| "x".to_owned(),
    ];
    let provider = Provider::start(Key::rsa("rsa", Algorithm::RS256)).await;
    let sign_in = provider.sign_in("");
    for (number, forge) in forgeries.into_iter().enumerate() {
        provider.set(|state| state.forge = forge);
        let refused = run(&provider, &sign_in).await.unwrap_err();
        assert!(matches!(refused, SignInError::IdToken(_)), "{number}: {refused:?}");
    }
    provider.set(|state| state.forge = |token, _| token);
    run(&provider, &sign_in).await.unwrap();
}

#[tokio::test]
async fn an_answer_counts_in_its_browser_and_once() {
    let provider = Provider::start(Key::ec("k")).await;
    let sign_in = provider.sign_in("");
    let (own, others) = (begin(&sign_in).await, begin(&sign_in).await);
    let query = provider.authorize(&own);
    let refused = finish(&sign_in, &query, &cookies(&others)).await.unwrap_err();
    assert_eq!(refused, SignInError::NotBegunHere, "the cookie is of another sign-in");
    let refused = finish(&sign_in, &query, &HeaderMap::new()).await.unwrap_err();
    assert_eq!(refused, SignInError::NotBegunHere);
    assert!(provider.state.lock().unwrap().exchanges.is_empty(), "the code was not sent");
    finish(&sign_in, &query, &cookies(&own)).await.unwrap();
    let replayed = finish(&sign_in, &query, &cookies(&own)).await.unwrap_err();
    assert_eq!(replayed, SignInError::Refused, "the provider takes a code once");
    let cookie = own.cookie.text();
    assert!(cookie.ends_with("; Max-Age=600; Path=/; HttpOnly; SameSite=Lax"), "{cookie}");
    provider.set(|s| s.metadata["authorization_response_iss_parameter_supported"] = json!(true));
    let sign_in = provider.sign_in("");
    assert_eq!(run(&provider, &sign_in).await.unwrap_err(), SignInError::OtherIssuer);
    let redirect = begin(&sign_in).await;
    let query = format!("{}&iss={}", provider.authorize(&redirect), provider.issuer);
    finish(&sign_in, &query, &cookies(&redirect)).await.unwrap();
}

#[tokio::test]
async fn rotated_keys_are_fetched_again_after_a_pause() {
    let provider = Provider::start(Key::ec("old")).await;
    let sign_in = provider.sign_in("");
    run(&provider, &sign_in).await.unwrap();
    let new = Key::ec("new");
    provider.set(|state| (state.published, state.signs) = (vec![new.clone()], new));
    let too_early = run(&provider, &sign_in).await.unwrap_err();
    assert!(matches!(too_early, SignInError::IdToken(_)), "{too_early:?}");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(30)).await;
    tokio::time::resume();
    run(&provider, &sign_in).await.unwrap();
}

#[tokio::test]
async fn a_provider_that_is_down_or_calls_itself_otherwise_is_unavailable() {
    let unavailable = SignInError::ProviderUnavailable;
    let provider = Provider::start(Key::ec("k")).await;
    let sign_in = provider.sign_in("");
    let redirect = begin(&sign_in).await;
    let query = provider.authorize(&redirect);
    provider.set(|state| state.metadata["issuer"] = json!("https://evil.example"));
    let (here, root) = (site("localhost"), LocalPath::default());
    let other = provider.sign_in("");
    assert_eq!(other.begin(&here, &root, NOW).await.unwrap_err(), unavailable);
    let issuer = provider.issuer.clone();
    provider.serving.abort();
    // Until the listener is closed.
    let authority = issuer.parse::<Uri>().unwrap().authority().unwrap().to_string();
    while TcpStream::connect(&authority).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(finish(&sign_in, &query, &cookies(&redirect)).await.unwrap_err(), unavailable);
    let fresh = provider.sign_in("");
    assert_eq!(fresh.begin(&here, &root, NOW).await.unwrap_err(), unavailable);
    let none = SignIn::new(&admin(""), sealer(), Audit::default());
    assert_eq!(none.begin(&here, &root, NOW).await.unwrap_err(), SignInError::NoProvider);
}
