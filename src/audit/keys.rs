//! The keys of one audit log, all derived from `audit.key`: chain, digests and signatures never
//! share one.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::seal::AuditKey;
use crate::seal::hex::hex;

/// What a log is written and checked with.
pub struct Keys {
    chain: hmac::Key,
    digest: hmac::Key,
    signing: Ed25519KeyPair,
    /// Tells which key digests were made with, and nothing else of it.
    digest_id: String,
}

/// An authentication code: HMAC-SHA256.
pub(crate) type Mac = [u8; 32];

impl Keys {
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

    /// The code of a text that follows `previous` in the chain.
    pub fn link(&self, previous: &Mac, text: &[u8]) -> Mac {
        let mut context = hmac::Context::with_key(&self.chain);
        context.update(previous);
        context.update(text);
        mac(context.sign())
    }

    /// The digest of a value that is not to be written down: whoever has the key can tell whether
    /// it was a certain one.
    pub fn digest(&self, value: &[u8]) -> Mac {
        mac(hmac::sign(&self.digest, value))
    }

    pub fn digest_id(&self) -> &str {
        &self.digest_id
    }

    /// Ed25519 (RFC 8032), in base64.
    pub fn sign(&self, text: &[u8]) -> String {
        BASE64_STANDARD.encode(self.signing.sign(text))
    }

    /// The public half of the signing key.
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

/// What signatures are checked with by whoever has no secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Reads base64 of exactly 32 bytes.
    pub fn parse(text: &str) -> Option<Self> {
        BASE64_STANDARD.decode(text.trim()).ok()?.try_into().ok().map(Self)
    }

    /// Whether this is a signature of the text, in base64.
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
    fn a_signature_is_checked_without_the_secret() {
        let keys = Keys::new(&AuditKey::generate().0);
        let public = PublicKey::parse(&keys.public().to_string()).unwrap();
        let signature = keys.sign(b"a");
        assert!(public.verify(b"a", &signature) && !public.verify(b"b", &signature));
        assert!(!Keys::new(&AuditKey::generate().0).public().verify(b"a", &signature));
    }
}
