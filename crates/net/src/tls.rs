//! TLS of the connections that the gateway opens.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use rustls::client::WebPkiServerVerifier;
use rustls::{ClientConfig, RootCertStore};

use crate::certificates::NotingVerifier;
use base::seal;
use base::seal::pem::certificates;
use base::seal::provider;

/// Returns a client configuration that trusts the system's certificates (where there are none, the
/// public web authorities) and the certificates in `ca` (PEM).
///
/// # Errors
/// When `ca` holds no usable certificate.
pub fn client(ca: Option<&str>) -> Result<ClientConfig, String> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(ca)?, provider::tls());
    let verifier = NotingVerifier(verifier.build().map_err(|e| e.to_string())?);
    let config = ClientConfig::builder_with_provider(provider::tls())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        // `NotingVerifier` verifies as the default verifier does, and notes the certificates.
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(config)
}

/// The certificates of the system, which all clients share: reading them takes milliseconds.
static SYSTEM: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    Arc::new(roots)
});

/// The certificates of the system with others, by the SHA-256 of the others: the connections of
/// many callers to one upstream share them.
static EXTENDED: LazyLock<Mutex<HashMap<[u8; 32], Weak<RootCertStore>>>> =
    LazyLock::new(Mutex::default);

fn roots(ca: Option<&str>) -> Result<Arc<RootCertStore>, String> {
    let Some(ca) = ca else {
        return Ok(SYSTEM.clone());
    };
    let digest = seal::sha256(ca.as_bytes());
    let mut extended = EXTENDED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(roots) = extended.get(&digest).and_then(Weak::upgrade) {
        return Ok(roots);
    }
    let mut roots = RootCertStore::clone(&SYSTEM);
    for certificate in certificates(ca.as_bytes())? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    let roots = Arc::new(roots);
    extended.retain(|_, roots| roots.strong_count() > 0);
    extended.insert(digest, Arc::downgrade(&roots));
    Ok(roots)
}
