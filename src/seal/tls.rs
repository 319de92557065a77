//! Encryption of connections that the gateway opens itself.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Trusts what the system trusts, or else the public authorities, and the PEM certificates in `ca`.
///
/// # Errors
/// When `ca` cannot be read or holds no certificate.
pub fn client(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots(ca)?)
        .with_no_client_auth();
    Ok(config)
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    if let Some(path) = ca {
        let unreadable = |e| format!("cannot read certificates from {}: {e}", path.display());
        for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
            let certificate = certificate.map_err(unreadable)?;
            roots.add(certificate).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    Ok(roots)
}
