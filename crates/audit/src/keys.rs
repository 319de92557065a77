//! The keys of one audit log, all derived from `audit.key`: one for the hash chain, one for digests
//! and one for signatures.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use base::seal::AuditKey;
use base::seal::hex::hex;
pub use base::seal::provider::hmac;
pub use base::seal::provider::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

/// The keys that write and verify a log.
pub struct Keys {
    chain: hmac::Key,
    digest: hmac::Key,
    signing: Ed25519KeyPair,
    /// Identifies the digest key without revealing it.
    digest_id: String,
}

/// A message authentication code: HMAC-SHA256.
pub(crate) type Mac = [u8; 32];

/// SHA-256.
pub(crate) type Digest = [u8; 32];

impl Keys {
    /// Derives all keys from the secret.
    pub fn new(key: &AuditKey) -> Self {
        let hmac_key = |label| hmac::Key::new(hmac::HMAC_SHA256, &key.subkey(label));
        let digest = hmac_key("promptgate audit digest v1");
        let id = hmac::sign(&digest, b"promptgate audit digest key id");
        let signing = Ed25519KeyPair::from_seed_unchecked(&key.subkey("promptgate audit sign v1"))
            .expect("any 32 bytes are a seed");
        Self {
            chain: hmac_key("promptgate audit chain v1"),
            digest_id: hex(&id.as_ref()[..4]),
            digest,
            signing,
        }
    }

    /// Returns the code of a text that follows `previous` in the hash chain.
    pub fn link(&self, previous: &Mac, text: &[u8]) -> Mac {
        let mut context = hmac::Context::with_key(&self.chain);
        context.update(previous);
        context.update(text);
        mac(context.sign())
    }

    /// Returns the keyed digest of a value that is not recorded itself. Comparing a known value
    /// with the digest needs the key.
    pub fn digest(&self, value: &[u8]) -> Mac {
        mac(hmac::sign(&self.digest, value))
    }

    /// Returns the id of the digest key, in hexadecimal.
    pub fn digest_id(&self) -> &str {
        &self.digest_id
    }

    /// Returns the Ed25519 signature of a text (RFC 8032), in base64.
    pub fn sign(&self, text: &[u8]) -> String {
        BASE64_STANDARD.encode(self.signing.sign(text))
    }

    /// Returns the public key of the signatures.
    pub fn public(&self) -> PublicKey {
        let bytes = self.signing.public_key().as_ref();
        PublicKey(bytes.try_into().expect("Ed25519 keys have 32 bytes"))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({}, redacted)", self.digest_id)
    }
}

/// The public key that verifies checkpoints without the secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Parses base64 of exactly 32 bytes.
    pub fn parse(text: &str) -> Option<Self> {
        BASE64_STANDARD.decode(text.trim()).ok()?.try_into().ok().map(Self)
    }

    /// Whether `signature`, in base64, is a signature of the text under this key.
    pub fn verify(&self, text: &[u8], signature: &str) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        BASE64_STANDARD.decode(signature).is_ok_and(|bytes| key.verify(text, &bytes).is_ok())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

fn mac(tag: hmac::Tag) -> Mac {
    tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_and_digests_of_earlier_releases_stay_valid() {
        let key = AuditKey::parse("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=").unwrap();
        let keys = Keys::new(&key);
        assert_eq!(keys.digest_id(), "d7501d60");
        assert_eq!(
            hex(&keys.digest(b"a value")),
            "c792b0f23aba22e8e8209d35889266f89925ad43f5bb5ed2c4619d1854a38918"
        );
        let first = keys.link(&[0; 32], br#"{"seq":1}"#);
        assert_eq!(hex(&first), "45c1a7e2a20c5ad7ad1c7a5198cd0f76d13a4a943ad979ee2b5bde7c79e607a3");
        assert_eq!(
            hex(&keys.link(&first, br#"{"seq":2}"#)),
            "62193ab8f5b183b6c37d4a162e103b2c99f8a66cee520f44cebb50b3240447f5"
        );
        assert_eq!(keys.public().to_string(), "A8itXinl8Wb6mTy5m1y1uqgW9mgwFgqV+mQnHZtFPBc=");
        assert_eq!(
            keys.sign(br#"{"seq":3}"#),
            "nPUG3IZ11MttqwOenl7L7CfHUQMt50YZ5me5Nen0EGBgQAYUoHNrP7WFvpkbyFMv+Xso60mMUjLe52cbhsrHBA=="
        );
    }

    #[test]
    fn a_signature_is_verified_without_the_secret() {
        let keys = Keys::new(&AuditKey::generate().0);
        let public = PublicKey::parse(&keys.public().to_string()).unwrap();
        let signature = keys.sign(b"a");
        assert!(public.verify(b"a", &signature) && !public.verify(b"b", &signature));
        assert!(!Keys::new(&AuditKey::generate().0).public().verify(b"a", &signature));
    }
}
