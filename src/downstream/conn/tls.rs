//! TLS: the handshake within time, with the certificate that stands in the files by now, and the
//! subject of the one that a caller shows.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::X509Name;

use crate::config::{Tls, TlsFiles};

/// Turns connections into encrypted ones.
pub(crate) struct TlsServer {
    tls: Tls,
    /// Of new connections; those that are open keep theirs.
    config: ArcSwap<ServerConfig>,
    handshake: Duration,
}

/// How often the files are looked at. They are small, and links to them are swapped in ways that no
/// watch of a folder sees on every file system.
const LOOK: Duration = Duration::from_secs(1);

impl TlsServer {
    /// # Errors
    /// When the files cannot be used.
    pub(crate) fn new(tls: &Tls, handshake: Duration) -> io::Result<Self> {
        let config = tls.read().and_then(|files| files.config()).map_err(io::Error::other)?;
        Ok(Self { tls: tls.clone(), config: ArcSwap::from_pointee(config), handshake })
    }

    /// Whether it is about the same files in the same way.
    pub(crate) fn is_for(&self, tls: &Tls, handshake: Duration) -> bool {
        self.tls == *tls && self.handshake == handshake
    }

    /// Whether certificates are checked by the same authorities.
    pub(crate) fn trusts_as(&self, other: &Self) -> bool {
        self.tls.client_ca == other.tls.client_ca
    }

    /// Shakes hands; returns the stream, and the subject of the certificate that the caller showed.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Option<String>)> {
        let accepting = TlsAcceptor::from(self.config.load_full()).accept(stream);
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let stream = timeout(self.handshake, accepting).await.map_err(late)??;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let subject = shown.map(|der| {
            subject(der).ok_or_else(|| io::Error::other("the subject is not plain text"))
        });
        Ok((stream, subject.transpose()?))
    }

    /// Takes the files as they change, until nobody needs them, or `stop`. What cannot be used is told once, and what was
    /// used before stays.
    pub(crate) async fn watch(this: Weak<Self>, stop: CancellationToken) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let Some(secure) = this.upgrade() else {
                return;
            };
            let tls = secure.tls.clone();
            let Ok(files) = spawn_blocking(move || tls.read()).await else {
                return;
            };
            if last.as_ref() != Some(&files) {
                secure.take(&files, last.is_none());
                last = Some(files);
            }
        }
    }

    fn take(&self, files: &Result<TlsFiles, String>, is_first: bool) {
        match files.as_ref().map_err(Clone::clone).and_then(TlsFiles::config) {
            Ok(config) => {
                self.config.store(Arc::new(config));
                if !is_first {
                    info!("the certificates of server.tls were read again");
                }
            }
            Err(problem) => {
                warn!(%problem, "server.tls cannot be used; what was read before stays");
            }
        }
    }
}

/// Attributes by their short names (RFC 4514, section 3).
const NAMES: [(&[u64], &str); 9] = [
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

/// The subject of a certificate as RFC 4514 writes it, the most specific part first. Nothing where
/// it is empty or holds what is no text.
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
    let known =
        NAMES.iter().find(|(path, _)| oid.iter().is_some_and(|it| it.eq(path.iter().copied())));
    known.map_or_else(|| oid.to_id_string(), |(_, name)| (*name).to_owned())
}

/// RFC 4514, section 2.4. Control characters have no place in the id of a caller.
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
    fn what_breaks_does_not_replace_what_works() {
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
        let secure = TlsServer::new(&tls, Duration::from_secs(5)).unwrap();
        let first = secure.config.load_full();
        write("key.pem", &KeyPair::generate().unwrap().serialize_pem());
        secure.take(&tls.read(), false);
        std::fs::remove_file(&tls.cert).unwrap();
        secure.take(&tls.read(), false);
        assert!(Arc::ptr_eq(&first, &secure.config.load_full()));
        renew();
        secure.take(&tls.read(), false);
        assert!(!Arc::ptr_eq(&first, &secure.config.load_full()));
    }

    #[test]
    fn subjects_are_written_as_rfc_4514_says() {
        let cn = |value| (DnType::CommonName, value);
        assert_eq!(subject_of(&[cn("ci")]).as_deref(), Some("CN=ci"));
        let long =
            [(DnType::CountryName, "DE"), (DnType::OrganizationName, "Acme, Inc."), cn(" a+b ")];
        assert_eq!(subject_of(&long).as_deref(), Some("CN=\\ a\\+b\\ ,O=Acme\\, Inc.,C=DE"));
        let forged = [cn("ci,O=Acme")];
        assert_eq!(subject_of(&forged).as_deref(), Some("CN=ci\\,O=Acme"));
        assert_eq!(subject_of(&[]), None);
        assert_eq!(subject_of(&[cn("a\nb")]), None);
        assert_eq!(subject(b"no certificate"), None);
    }
}
