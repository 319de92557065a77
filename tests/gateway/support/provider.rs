//! A small identity provider: discovery, keys, rotation, tokens, and everything that can be wrong
//! with them.

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use ring::signature::{self, KeyPair as _};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::upstream::{HANG, Received, Scripted, Upstream};

/// A key of the provider.
#[derive(Clone)]
pub struct SigningKey {
    pub id: String,
    pub algorithm: Algorithm,
    pub encoding: EncodingKey,
    pub jwk: Value,
}

/// The response of the provider to a request for its keys.
#[derive(Clone, Debug)]
pub enum JwksResponse {
    Well,
    Status(u16),
    Html,
    /// This many bytes, and no end of the JSON.
    Huge(usize),
    Silent,
}

pub struct Provider {
    http: Upstream,
    state: Arc<Mutex<State>>,
}

struct State {
    keys: Vec<Value>,
    mood: JwksResponse,
    /// The issuer that its metadata names; by default its own URL.
    issuer: Option<String>,
    /// The ID token of the next person who signs in.
    id_token: String,
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

impl SigningKey {
    pub fn rsa(id: &str) -> Self {
        let pem = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gateway/fixtures/rsa.pem");
        let der = PrivatePkcs8KeyDer::from_pem_file(pem).unwrap();
        let pair = signature::RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).unwrap();
        let public = signature::RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
        let jwk = json!({"kty": "RSA", "kid": id, "use": "sig", "alg": "RS256",
            "n": text(&public.n), "e": text(&public.e)});
        let encoding = EncodingKey::from_rsa_der(der.secret_pkcs8_der());
        Self { id: id.to_owned(), algorithm: Algorithm::RS256, encoding, jwk }
    }

    pub fn ec(id: &str) -> Self {
        let pair = rcgen::KeyPair::generate().unwrap();
        let point = pair.public_key_raw();
        let jwk = json!({"kty": "EC", "kid": id, "crv": "P-256",
            "x": text(&point[1..33]), "y": text(&point[33..])});
        let encoding = EncodingKey::from_ec_der(pair.serialized_der());
        Self { id: id.to_owned(), algorithm: Algorithm::ES256, encoding, jwk }
    }

    pub fn ed(id: &str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let der = pair.serialized_der();
        let own = signature::Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).unwrap();
        let jwk = json!({"kty": "OKP", "kid": id, "crv": "Ed25519",
            "x": text(own.public_key().as_ref())});
        Self {
            id: id.to_owned(),
            algorithm: Algorithm::EdDSA,
            encoding: EncodingKey::from_ed_der(der),
            jwk,
        }
    }

    /// A token with these claims and what else the header says.
    pub fn sign_with(&self, claims: &Value, change: impl FnOnce(&mut Header)) -> String {
        base::seal::jws::install();
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.id.clone());
        change(&mut header);
        encode(&header, claims, &self.encoding).unwrap()
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.sign_with(claims, |_| {})
    }
}

pub fn text(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

impl Provider {
    pub async fn start(keys: &[&SigningKey]) -> Self {
        let keys = keys.iter().map(|key| key.jwk.clone()).collect();
        let id_token = String::new();
        let state = State { keys, mood: JwksResponse::Well, issuer: None, id_token };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        let http = Upstream::start(move |asked| answer(&shared.lock().unwrap(), asked)).await;
        Self { http, state }
    }

    /// Its name.
    pub fn issuer(&self) -> String {
        format!("http://{}", self.http.addr)
    }

    /// `[auth.jwt]` that believes it; what follows belongs to it.
    pub fn table(&self) -> String {
        format!("[auth.jwt]\nissuer = \"{}\"\n", self.issuer())
    }

    pub fn set(&self, mood: JwksResponse) {
        self.state.lock().unwrap().mood = mood;
    }

    pub fn call_itself(&self, issuer: &str) {
        self.state.lock().unwrap().issuer = Some(issuer.to_owned());
    }

    /// Lets a person sign in: the next code is exchanged for this ID token.
    pub fn give(&self, id_token: &str) {
        self.state.lock().unwrap().id_token = id_token.to_owned();
    }

    pub fn rotate(&self, keys: &[&SigningKey]) {
        self.state.lock().unwrap().keys = keys.iter().map(|key| key.jwk.clone()).collect();
    }

    /// How often its keys were asked for.
    pub fn fetches(&self) -> usize {
        self.http.received().iter().filter(|asked| asked.path == "/jwks").count()
    }

    /// Waits until its keys were fetched this often.
    #[track_caller]
    pub fn fetched(&self, least: usize) -> impl Future<Output = ()> {
        self.http.until(move |received| {
            received.iter().filter(|request| request.path == "/jwks").count() >= least
        })
    }

    /// Claims of a good token for `audience`.
    pub fn claims(&self, audience: &str) -> Value {
        json!({"iss": self.issuer(), "aud": audience, "sub": "ada", "exp": now() + 300,
            "iat": now(), "groups": ["staff"], "scope": "prompts openid"})
    }
}

fn answer(state: &State, asked: &Received) -> Scripted {
    let host = asked.header("host").unwrap_or_default();
    let json = |value: Value| {
        let headers = vec![("Content-Type", "application/json".to_owned())];
        Scripted::Http(200, headers, value.to_string().into_bytes())
    };
    match (asked.path.as_str(), &state.mood) {
        ("/.well-known/openid-configuration", _) => {
            let issuer = state.issuer.clone().unwrap_or_else(|| format!("http://{host}"));
            json(json!({"issuer": issuer, "jwks_uri": format!("http://{host}/jwks"),
                "authorization_endpoint": format!("http://{host}/authorize"),
                "token_endpoint": format!("http://{host}/token")}))
        }
        ("/token", _) => json(json!({"access_token": "a", "token_type": "Bearer",
            "id_token": state.id_token})),
        ("/jwks", JwksResponse::Well) => json(json!({"keys": state.keys})),
        ("/jwks", JwksResponse::Status(status)) => Scripted::Http(*status, vec![], vec![]),
        ("/jwks", JwksResponse::Html) => Scripted::Http(200, vec![], b"<html>".to_vec()),
        ("/jwks", JwksResponse::Huge(bytes)) => {
            Scripted::Http(200, vec![], [b"{\"keys\":[\"".as_slice(), &vec![b'x'; *bytes]].concat())
        }
        ("/jwks", JwksResponse::Silent) => HANG,
        _ => Scripted::Http(404, vec![], vec![]),
    }
}
