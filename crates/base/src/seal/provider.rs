//! The cryptographic library for TLS, JSON Web Signatures, and the hash chains and signatures of
//! the audit log: ring, or AWS-LC with the cargo feature `aws-lc-rs`. Only this file selects the
//! library.

use std::sync::Arc;

#[cfg(feature = "aws-lc-rs")]
pub(crate) use aws_lc_rs::{error, hmac, rand, signature};
#[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
pub use ring::{error, hmac, rand, signature};
use rustls::crypto::CryptoProvider;

#[cfg(not(any(feature = "ring", feature = "aws-lc-rs")))]
compile_error!("a cryptographic library is needed: enable the feature `ring` or `aws-lc-rs`");

/// Returns the cryptographic provider of TLS, for clients and servers.
pub fn tls() -> Arc<CryptoProvider> {
    #[cfg(feature = "aws-lc-rs")]
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    #[cfg(not(feature = "aws-lc-rs"))]
    let provider = rustls::crypto::ring::default_provider();
    Arc::new(provider)
}

/// Reads an ECDSA key: PKCS #8 in DER.
pub(crate) fn ecdsa_key(
    curve: &'static signature::EcdsaSigningAlgorithm,
    der: &[u8],
) -> Result<signature::EcdsaKeyPair, error::KeyRejected> {
    #[cfg(feature = "aws-lc-rs")]
    return signature::EcdsaKeyPair::from_pkcs8(curve, der);
    #[cfg(not(feature = "aws-lc-rs"))]
    signature::EcdsaKeyPair::from_pkcs8(curve, der, &rand::SystemRandom::new())
}

/// Returns the length of the signatures of an RSA key, in bytes.
pub(crate) fn signature_len(key: &signature::RsaKeyPair) -> usize {
    #[cfg(feature = "aws-lc-rs")]
    return key.public_modulus_len();
    #[cfg(not(feature = "aws-lc-rs"))]
    key.public().modulus_len()
}
