//! JSON Web Signatures (RFC 7515) for `jsonwebtoken`, on the cryptographic library that the gateway
//! already uses. Symmetric algorithms are not supported: a party that can verify a token must not
//! be able to issue one.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind, Result};
use jsonwebtoken::signature::{self, Signer, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};

use super::provider::rand::SystemRandom;
use super::provider::{self, error, signature as algorithms};

/// Installs the cryptographic provider of `jsonwebtoken` for this process. Idempotent.
pub fn install() {
    let _ = PROVIDER.install_default();
}

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

struct Verifying {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    // Otherwise the modulus of an RSA key could be used as a key of another family.
    if key.family() != algorithm.family() || algorithm.family() == AlgorithmFamily::Hmac {
        return Err(Error::from(ErrorKind::InvalidKeyFormat));
    }
    Ok(Box::new(Verifying { algorithm: *algorithm, key: key.clone() }))
}

impl Verifier<Vec<u8>> for Verifying {
    fn verify(
        &self,
        message: &[u8],
        signed: &Vec<u8>,
    ) -> std::result::Result<(), signature::Error> {
        let rsa = |parameters: &'static algorithms::RsaParameters| match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                algorithms::RsaPublicKeyComponents { n, e }.verify(parameters, message, signed)
            }
            DecodingKeyKind::SecretOrDer(_) => Err(error::Unspecified),
        };
        let raw = |algorithm: &'static dyn algorithms::VerificationAlgorithm| match self.key.kind()
        {
            DecodingKeyKind::SecretOrDer(key) => {
                algorithms::UnparsedPublicKey::new(algorithm, key).verify(message, signed)
            }
            DecodingKeyKind::RsaModulusExponent { .. } => Err(error::Unspecified),
        };
        let verified = match self.algorithm {
            Algorithm::RS256 => rsa(&algorithms::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => rsa(&algorithms::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => rsa(&algorithms::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => rsa(&algorithms::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => rsa(&algorithms::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => rsa(&algorithms::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => raw(&algorithms::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => raw(&algorithms::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => raw(&algorithms::ED25519),
            _ => Err(error::Unspecified),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Verifying {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

struct Signing {
    algorithm: Algorithm,
    key: PrivateKey,
}

enum PrivateKey {
    Rsa(algorithms::RsaKeyPair, &'static dyn algorithms::RsaEncoding),
    Ec(algorithms::EcdsaKeyPair),
    Ed(algorithms::Ed25519KeyPair),
}

/// Returns a signer. The key is PKCS #8 in DER, or for RSA also PKCS #1 in DER.
fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    let der = key.as_bytes();
    let rsa = |encoding| {
        // A key that was read from PEM is already unwrapped to PKCS #1.
        let pair = algorithms::RsaKeyPair::from_pkcs8(der);
        let key = pair.or_else(|_| algorithms::RsaKeyPair::from_der(der));
        let key = key.map_err(|e| Error::from(ErrorKind::InvalidRsaKey(e.to_string())))?;
        Ok::<_, Error>(PrivateKey::Rsa(key, encoding))
    };
    let ec = |curve| {
        let key = provider::ecdsa_key(curve, der);
        key.map(PrivateKey::Ec).map_err(|_| Error::from(ErrorKind::InvalidEcdsaKey))
    };
    if key.family() != algorithm.family() {
        return Err(Error::from(ErrorKind::InvalidKeyFormat));
    }
    let key = match algorithm {
        Algorithm::RS256 => rsa(&algorithms::RSA_PKCS1_SHA256)?,
        Algorithm::RS384 => rsa(&algorithms::RSA_PKCS1_SHA384)?,
        Algorithm::RS512 => rsa(&algorithms::RSA_PKCS1_SHA512)?,
        Algorithm::PS256 => rsa(&algorithms::RSA_PSS_SHA256)?,
        Algorithm::PS384 => rsa(&algorithms::RSA_PSS_SHA384)?,
        Algorithm::PS512 => rsa(&algorithms::RSA_PSS_SHA512)?,
        Algorithm::ES256 => ec(&algorithms::ECDSA_P256_SHA256_FIXED_SIGNING)?,
        Algorithm::ES384 => ec(&algorithms::ECDSA_P384_SHA384_FIXED_SIGNING)?,
        // Some tools write Ed25519 keys without the public key.
        Algorithm::EdDSA => {
            let key = algorithms::Ed25519KeyPair::from_pkcs8_maybe_unchecked(der);
            PrivateKey::Ed(key.map_err(|_| Error::from(ErrorKind::InvalidEddsaKey))?)
        }
        _ => return Err(Error::from(ErrorKind::UnsupportedAlgorithm)),
    };
    Ok(Box::new(Signing { algorithm: *algorithm, key }))
}

impl Signer<Vec<u8>> for Signing {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, signature::Error> {
        let random = SystemRandom::new();
        let failed = |_| signature::Error::new();
        match &self.key {
            PrivateKey::Rsa(key, encoding) => {
                let mut signed = vec![0; provider::signature_len(key)];
                key.sign(*encoding, &random, message, &mut signed).map_err(failed)?;
                Ok(signed)
            }
            PrivateKey::Ec(key) => {
                key.sign(&random, message).map(|signed| signed.as_ref().to_vec()).map_err(failed)
            }
            PrivateKey::Ed(key) => Ok(key.sign(message).as_ref().to_vec()),
        }
    }
}

impl JwtSigner for Signing {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
