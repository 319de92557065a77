//! TLS of the listener: the handshake within its deadline, certificate rotation from files, and the
//! subject of the client certificate.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::X509Name;

use base::platform::{Stream, blocking, wall_clock};
use config::{Tls, TlsFiles};
use net::certificates::CertificateEnd;

/// The TLS server side of one listener.
pub struct TlsServer {
    tls: Tls,
    /// The configuration of new handshakes. An open connection keeps that of its handshake.
    config: ArcSwap<ServerConfig>,
    /// When the certificates of that configuration end.
    ends: ArcSwap<Vec<CertificateEnd>>,
    handshake_timeout: Duration,
}

/// How often the files are read. They are small, and certificate managers replace them through
/// symbolic links in ways that a folder watch does not report on every file system.
const FILE_POLL: Duration = Duration::from_secs(1);

impl TlsServer {
    /// Reads the certificate, its key and the client authorities.
    ///
    /// # Errors
    /// When a file cannot be read, or certificate and key cannot be used together.
    pub fn new(tls: &Tls, handshake_timeout: Duration) -> io::Result<Self> {
        let files = tls.read().map_err(io::Error::other)?;
        let config = ArcSwap::from_pointee(files.config().map_err(io::Error::other)?);
        let ends = ArcSwap::from_pointee(warned_of(&files));
        Ok(Self { tls: tls.clone(), config, ends, handshake_timeout })
    }

    /// When the certificates end: the server's, and those of the client authorities.
    pub fn certificate_ends(&self) -> Arc<Vec<CertificateEnd>> {
        self.ends.load_full()
    }

    /// Whether this TLS server was made from the configuration `tls`.
    pub fn is_for(&self, tls: &Tls, handshake_timeout: Duration) -> bool {
        self.tls == *tls && self.handshake_timeout == handshake_timeout
    }

    /// Whether this TLS server verifies client certificates by the same authorities as `other`.
    pub(crate) fn trusts_as(&self, other: &Self) -> bool {
        self.tls.client_ca == other.tls.client_ca
    }

    /// Performs the TLS handshake. Returns the encrypted stream and the subject of the client
    /// certificate (RFC 4514), if the client sent one. Cancel safe: the connection ends.
    pub(crate) async fn accept(
        &self,
        stream: Stream,
    ) -> io::Result<(TlsStream<Stream>, Option<String>)> {
        let accepting = TlsAcceptor::from(self.config.load_full()).accept(stream);
        let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
        let stream = timeout(self.handshake_timeout, accepting).await.map_err(timed_out)??;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let subject = certificate.map(|der| {
            let unreadable = || io::Error::other("the certificate's subject is empty or not text");
            subject(der).ok_or_else(unreadable)
        });
        Ok((stream, subject.transpose()?))
    }

    /// Loads the files whenever they change, until `stop` is cancelled or no endpoint uses this TLS
    /// server. Files that cannot be used are logged once; the previous certificate stays in use.
    pub async fn watch(this: Weak<Self>, stop: CancellationToken) {
        let mut ticks = interval(FILE_POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let Some(server) = this.upgrade() else {
                return;
            };
            let tls = server.tls.clone();
            let Ok(files) = blocking(move || tls.read()).await else {
                return;
            };
            if last.as_ref() != Some(&files) {
                let loaded = server.load(&files);
                // The first pass reads the files that `new` has read.
                if loaded && last.is_some() {
                    info!("server.tls certificates reloaded");
                }
                last = Some(files);
            }
        }
    }

    /// Uses these files for new handshakes, if they can be used. Returns whether they are in use.
    fn load(&self, files: &Result<TlsFiles, String>) -> bool {
        let read = files.as_ref().map_err(Clone::clone);
        match read.and_then(|files| Ok((files, files.config()?))) {
            Ok((files, config)) => {
                self.config.store(Arc::new(config));
                self.ends.store(Arc::new(warned_of(files)));
                true
            }
            Err(error) => {
                warn!(error, "server.tls files cannot be used; keeping the previous certificate");
                false
            }
        }
    }
}

/// Returns when the certificates end; logs certificates that end soon.
fn warned_of(files: &TlsFiles) -> Vec<CertificateEnd> {
    let ends = CertificateEnd::of_files(files);
    ends.iter().for_each(|end| end.warn(wall_clock()));
    ends
}

/// Object identifiers of attribute types and their short names (RFC 4514, section 3).
const SHORT_NAMES: [(&[u64], &str); 9] = [
    (&[2, 5, 4, 3], "CN"),
    (&[2, 5, 4, 6], "C"),
    (&[2, 5, 4, 7], "L"),
    (&[2, 5, 4, 8], "ST"),
    (&[2, 5, 4, 9], "STREET"),
    (&[2, 5, 4, 10], "O"),
    (&[2, 5, 4, 11], "OU"),
    (&[0, 9, 2342, 19_200_300, 100, 1, 25], "DC"),
    (&[0, 9, 2342, 19_200_300, 100, 1, 1], "UID"),
];

/// Returns the subject of a certificate as RFC 4514 writes it, the most specific name first. `None`
/// when it is empty or holds a value that is not text.
fn subject(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let text = distinguished_name(certificate.subject())?;
    (!text.is_empty()).then_some(text)
}

fn distinguished_name(name: &X509Name<'_>) -> Option<String> {
    let mut parts = Vec::new();
    for relative in name.iter_rdn() {
        let mut values = Vec::new();
        for attribute in relative.iter() {
            let value = escape(attribute.as_str().ok()?)?;
            values.push(format!("{}={value}", attribute_name(attribute.attr_type())));
        }
        parts.push(values.join("+"));
    }
    parts.reverse();
    Some(parts.join(","))
}

fn attribute_name(oid: &Oid<'_>) -> String {
    let known = SHORT_NAMES
        .iter()
        .find(|(path, _)| oid.iter().is_some_and(|it| it.eq(path.iter().copied())));
    known.map_or_else(|| oid.to_id_string(), |(_, name)| (*name).to_owned())
}

/// Escapes an attribute value (RFC 4514, section 2.4). `None` for an empty value, and for control
/// characters: the subject becomes the id of a caller, which is logged.
fn escape(value: &str) -> Option<String> {
    let mut escaped = String::with_capacity(value.len());
    let last = value.chars().count().checked_sub(1)?;
    for (index, c) in value.chars().enumerate() {
        let is_special = match c {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => true,
            '#' => index == 0,
            ' ' => index == 0 || index == last,
            c if c.is_control() => return None,
            _ => false,
        };
        if is_special {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    Some(escaped)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn subject_of(parts: &[(DnType, &str)]) -> Option<String> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        subject(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der())
    }

    #[test]
    fn unusable_files_keep_the_previous_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let renew = || {
            let key = KeyPair::generate().unwrap();
            let cert = CertificateParams::default().self_signed(&key).unwrap();
            write("cert.pem", &cert.pem());
            write("key.pem", &key.serialize_pem());
        };
        renew();
        let path = |name: &str| folder.path().join(name);
        let tls = Tls { cert: path("cert.pem"), key: path("key.pem"), client_ca: None };
        let server = TlsServer::new(&tls, Duration::from_secs(5)).unwrap();
        let first = server.config.load_full();
        write("key.pem", &KeyPair::generate().unwrap().serialize_pem());
        server.load(&tls.read());
        std::fs::remove_file(&tls.cert).unwrap();
        server.load(&tls.read());
        assert!(Arc::ptr_eq(&first, &server.config.load_full()));
        renew();
        server.load(&tls.read());
        assert!(!Arc::ptr_eq(&first, &server.config.load_full()));
    }

    #[test]
    fn subjects_are_written_by_rfc_4514() {
        let cn = |value| (DnType::CommonName, value);
        assert_eq!(subject_of(&[cn("ci")]).as_deref(), Some("CN=ci"));
        let long =
            [(DnType::CountryName, "DE"), (DnType::OrganizationName, "Acme, Inc."), cn(" a+b ")];
        assert_eq!(subject_of(&long).as_deref(), Some("CN=\\ a\\+b\\ ,O=Acme\\, Inc.,C=DE"));
        let forged = [cn("ci,O=Acme")];
        assert_eq!(subject_of(&forged).as_deref(), Some("CN=ci\\,O=Acme"));
        assert_eq!(subject_of(&[]), None);
        assert_eq!(subject_of(&[cn("a\nb")]), None);
        assert_eq!(subject(b"not a certificate"), None);
    }
}
