//! `server.tls`: the gateway's certificate, and the certificate authorities of client certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::reader::Section;
use base::platform::disk;
use base::seal::pem::certificates;

/// Paths of PEM files. The files are polled, and read again when they change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tls {
    /// Certificate chain, the gateway's own certificate first.
    pub cert: PathBuf,
    /// Private key: PKCS#8, PKCS#1 or SEC1.
    pub key: PathBuf,
    /// Certificate authorities of client certificates (mTLS). `None`: no client certificate is
    /// requested.
    pub client_ca: Option<PathBuf>,
}

/// Content of the files at one point in time.
#[derive(Clone, Eq, PartialEq)]
pub struct TlsFiles {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The keys of `server.tls`.
const KEYS: &str = r#"
cert = "", such as "tls/chain.pem": PEM file of the certificate chain, the gateway's own certificate
    first.
key = "", such as "tls/key.pem": PEM file of the private key.
client_ca = "", such as "tls/clients.pem": PEM file of the authorities that sign client certificates
    (mTLS). A subject signed by one of them is a caller.
"#;

/// Returns `None` without a certificate: plain HTTP.
pub(crate) fn read(server: &mut Section<'_>) -> Option<Tls> {
    let mut section = server.section("tls");
    section.explain(KEYS);
    let cert = section.file("cert");
    let key = section.file("key");
    let client_ca = section.file("client_ca");
    let tls = match (cert, key) {
        (Some(cert), Some(key)) => Some(Tls { cert, key, client_ca }),
        (None, None) if client_ca.is_none() => None,
        _ => {
            section.mistake("", "must have both cert and key, or neither of them and no client_ca");
            None
        }
    };
    if let Some(Err(problem)) = tls.as_ref().map(|tls| tls.read()?.config()) {
        section.mistake("", problem);
    }
    section.finish();
    tls
}

impl Tls {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// The path of the file that cannot be read, and the reason.
    pub fn read(&self) -> Result<TlsFiles, String> {
        let read = |path: &Path| {
            disk::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
        };
        let client_ca = self.client_ca.as_deref().map(read).transpose()?;
        Ok(TlsFiles { cert: read(&self.cert)?, key: read(&self.key)?, client_ca })
    }
}

impl TlsFiles {
    /// The text of the certificate chain (PEM).
    pub fn cert(&self) -> &[u8] {
        &self.cert
    }

    /// The text of the authorities of client certificates (PEM).
    pub fn client_ca(&self) -> Option<&[u8]> {
        self.client_ca.as_deref()
    }

    /// Builds a configuration for TLS 1.2 and 1.3, with HTTP/2 and HTTP/1.1 in ALPN. Client
    /// certificates are optional in the handshake: each request is checked for the credential that
    /// it needs.
    ///
    /// # Errors
    /// The key of the file that cannot be used, and the reason.
    pub fn config(&self) -> Result<ServerConfig, String> {
        let provider = base::seal::provider::tls();
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(pem).map_err(|e| format!("client_ca: {e}"))? {
                    roots.add(certificate).map_err(|e| format!("client_ca: {e}"))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.allow_unauthenticated().build();
                builder.with_client_cert_verifier(verifier.map_err(|e| format!("client_ca: {e}"))?)
            }
        };
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| "key: holds no private key in PEM".to_owned())?;
        let chain = certificates(&self.cert).map_err(|e| format!("cert: {e}"))?;
        let mut config =
            builder.with_single_cert(chain, key).map_err(|e| format!("cert and key: {e}"))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}
/// Reads the PEM file in `ca`.
pub(crate) fn certificate_authorities(section: &mut Section<'_>) -> Option<Arc<str>> {
    let path = section.file("ca")?;
    let file = path.display().to_string();
    let pem = section.read_file(path).map_err(|error| format!("cannot read {file}: {error}"));
    let checked = pem.and_then(|pem| match certificates(pem.as_bytes()) {
        Ok(_) => Ok(Arc::from(pem)),
        Err(problem) => Err(format!("{file} {problem}")),
    });
    checked.map_err(|message| section.mistake("ca", message)).ok()
}
