//! X.509 certificates in PEM (RFC 7468).

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Returns the certificates in a PEM text.
///
/// # Errors
/// If the text has no certificate, or a malformed one.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or("holds no certificate in PEM")
}
