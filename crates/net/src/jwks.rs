//! JSON Web Key Sets (RFC 7517): the public keys with which an issuer signs its tokens.

use http::Uri;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::{Map, Value};

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
        Self::parse(&document).map_err(|error| format!("{url}: {error}"))
    }

    /// Reads a key set; keys that cannot be used are left out.
    ///
    /// # Errors
    /// It is no key set, or has no key that can be used.
    pub fn parse(document: &Value) -> Result<Self, String> {
        let given = document.get("keys").and_then(Value::as_array);
        let given = given.ok_or("it is no key set: it has no list `keys` (RFC 7517, section 5)")?;
        let keys: Vec<_> = given.iter().take(MAX_KEYS).filter_map(VerificationKey::read).collect();
        if keys.is_empty() {
            return Err(format!("none of its {} keys can be used", given.len()));
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

/// The members of a key that count (RFC 7518, section 6).
const MEMBERS: [&str; 9] = ["kty", "kid", "use", "alg", "n", "e", "crv", "x", "y"];

impl VerificationKey {
    /// Reads one key; `None` for an unknown kind, which does not invalidate the other keys (RFC
    /// 7517, section 5). Odd members that are not needed are ignored.
    fn read(key: &Value) -> Option<Self> {
        let member = |name: &str| Some((name.to_owned(), key.get(name)?.clone()));
        let members: Map<String, Value> = MEMBERS.into_iter().filter_map(member).collect();
        let jwk: Jwk = serde_json::from_value(members.into()).ok()?;
        let decoding = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self { jwk, decoding })
    }

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_odd_key_spoils_no_other() {
        let n = "sXchDaQebHnPiGvyDOAT4saGEUetSyo9MKLOoWFsueri23bOdgWp4Dy1WlUzewbgBHod5pcM9H95GQRV3JDXboIRROSBigeC5yjU1hGzHHyXss8UDprecbAYxknTcQkhslANGRUZmdTOQ5qTRsLAt6BTYuyvVRdhS8exSZEy_c4gs_7svlJJQ4H9_NxsiIoLwAEk7-Q3UXERGYw_75IDrGA84-lA_-Ct4eTlXHBIY2EaV7t7LjJaynVJCpkv4LKjTTAumiGUIuQhrNhZLuF_RJLqHpM2kgWFLU7-VTdL1VbC2tejvcI2BlMkEpk1BzBZI0KQB0GaDWFLN-aEAw3vRw";
        let good = json!({"kty": "RSA", "n": n, "e": "AQAB", "kid": "good", "use": "sig",
            "alg": null, "x5c": "no list", "x5t": 7, "key_ops": {}, "issuer": "https://id.example"});
        let set = |keys: Value| KeySet::parse(&json!({"keys": keys, "next": null}));
        let keys = set(json!([
            {"kty": "AKP", "alg": "ML-DSA-44", "pub": "x", "kid": "new"},
            {"kty": "EC", "crv": "brainpoolP256r1", "x": "a", "y": "b", "kid": "curve"},
            {"kty": "RSA", "kid": "lacks n"},
            {"kid": 7},
            "text",
            null,
            good,
        ]))
        .unwrap();
        assert_eq!(keys.ids(), "good");
        assert!(keys.find(Some("good"), Algorithm::RS256).is_some());
        assert!(keys.find(None, Algorithm::RS256).is_some());
        let none = |document: Value| KeySet::parse(&document).err().unwrap();
        assert_eq!(none(json!({"keys": [{"kty": "x"}, {}]})), "none of its 2 keys can be used");
        assert!(none(json!({"error": "x"})).contains("no list `keys`"));
    }
}
