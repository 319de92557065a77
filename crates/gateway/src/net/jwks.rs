//! JSON Web Key Sets (RFC 7517): the public keys with which an issuer signs its tokens.

use http::Uri;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;

use super::egress::Egress;

/// The usable keys of one issuer: at least one.
pub struct KeySet(Vec<VerificationKey>);

/// One key, with its id and algorithm.
struct VerificationKey {
    jwk: Jwk,
    decoding: DecodingKey,
}

/// Keys of one issuer; further keys are ignored.
const MAX_KEYS: usize = 100;

impl KeySet {
    /// Fetches a key set.
    ///
    /// # Errors
    /// When it cannot be fetched, is no key set, or has no key that can be used.
    pub async fn fetch(egress: &Egress, url: &Uri) -> Result<Self, String> {
        let document = egress.get_json(url).await.map_err(|error| format!("{url}: {error}"))?;
        Self::parse(document).map_err(|error| format!("{url}: {error}"))
    }

    /// Reads a key set; keys that cannot be used are left out.
    ///
    /// # Errors
    /// It is no key set, or has no key that can be used.
    pub fn parse(document: Value) -> Result<Self, String> {
        let set: JwkSet = serde_json::from_value(document).map_err(|error| error.to_string())?;
        let key = |jwk: Jwk| {
            let decoding = DecodingKey::from_jwk(&jwk).ok()?;
            Some(VerificationKey { jwk, decoding })
        };
        let keys: Vec<_> = set.keys.into_iter().take(MAX_KEYS).filter_map(key).collect();
        if keys.is_empty() {
            return Err("there is no key in it that can be used".to_owned());
        }
        Ok(Self(keys))
    }

    /// Returns the key for a token by its id (`kid`) and algorithm. A token without a key id can
    /// only mean an issuer's single key.
    pub fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let is_meant = |key: &&VerificationKey| id.is_none() || key.id() == id;
        let mut fitting = self.0.iter().filter(|key| fits(&key.jwk, algorithm)).filter(is_meant);
        let first = fitting.next();
        let second = fitting.next();
        first.filter(|_| id.is_some() || second.is_none()).map(|key| &key.decoding)
    }

    /// Returns the ids of the keys for logs, separated by commas.
    pub fn ids(&self) -> String {
        let ids: Vec<_> = self.0.iter().map(|key| key.id().unwrap_or("-")).collect();
        ids.join(",")
    }
}

impl VerificationKey {
    fn id(&self) -> Option<&str> {
        self.jwk.common.key_id.as_deref()
    }
}

/// Whether a key is for signatures with this algorithm.
fn fits(jwk: &Jwk, algorithm: Algorithm) -> bool {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let is_of_kind = match (&jwk.algorithm, algorithm) {
        (AlgorithmParameters::RSA(_), RS256 | RS384 | RS512 | PS256 | PS384 | PS512) => true,
        (AlgorithmParameters::EllipticCurve(key), ES256) => key.curve == EllipticCurve::P256,
        (AlgorithmParameters::EllipticCurve(key), ES384) => key.curve == EllipticCurve::P384,
        (AlgorithmParameters::OctetKeyPair(key), EdDSA) => key.curve == EllipticCurve::Ed25519,
        _ => false,
    };
    let named = jwk.common.key_algorithm;
    let is_named = named.is_none_or(|n| Algorithm::try_from(n).is_ok_and(|n| n == algorithm));
    let usage = jwk.common.public_key_use.as_ref();
    is_of_kind && is_named && usage.is_none_or(|usage| *usage == PublicKeyUse::Signature)
}
