//! The ends of certificates: of the gateway's own, of the authorities of client certificates, and
//! of the servers that were called.

use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use lru::LruCache;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use tracing::warn;
use x509_parser::prelude::{FromDer, X509Certificate};

use base::seal::pem;
use config::TlsFiles;
use domain::fault::excerpt;
use domain::time::unix_time::UnixSeconds;

/// The owner of a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CertificateOwner {
    /// `server.tls.cert`, with the rest of its chain.
    Gateway,
    /// `server.tls.client_ca`.
    ClientAuthority,
    /// A server that was called: of an upstream, a provider of sign-ins, or a proxy.
    Server,
}

/// The end of a certificate (RFC 5280, section 4.1.2.5, `notAfter`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificateEnd {
    pub owner: CertificateOwner,
    /// The name of the server, or the subject of the certificate.
    pub name: String,
    pub end: UnixSeconds,
}

/// A certificate that ends within this time is reported.
const SOON: Duration = Duration::from_secs(30 * DAY);

const DAY: u64 = 24 * 60 * 60;

/// Servers whose certificates are remembered.
const SERVERS: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// A server that has shown no certificate for this long is forgotten: resumed sessions show none,
/// and last a week at most (RFC 8446, section 4.6.1).
const FORGOTTEN: Duration = Duration::from_secs(8 * DAY);

impl CertificateOwner {
    /// The owner in the admin API and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::ClientAuthority => "client_authority",
            Self::Server => "server",
        }
    }
}

impl CertificateEnd {
    /// Parses a certificate; `None` if it is malformed, or has ended before the epoch.
    fn read(owner: CertificateOwner, name: Option<&str>, der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = || excerpt(&certificate.subject().to_string());
        let name = name.map_or_else(subject, str::to_owned);
        let end = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
        Some(Self { owner, name, end: UnixSeconds(end) })
    }

    /// Reads the certificates of a PEM file.
    fn of_pem(owner: CertificateOwner, text: &[u8]) -> Vec<Self> {
        let certificates = pem::certificates(text).unwrap_or_default();
        certificates.iter().filter_map(|der| Self::read(owner, None, der)).collect()
    }

    /// Reads the certificates of `server.tls`.
    pub fn of_files(files: &TlsFiles) -> Vec<Self> {
        let mut ends = Self::of_pem(CertificateOwner::Gateway, files.cert());
        let authorities = files.client_ca().unwrap_or_default();
        ends.extend(Self::of_pem(CertificateOwner::ClientAuthority, authorities));
        ends
    }

    /// The ends of the certificates that servers have shown, in the order of their names.
    pub fn of_servers(now: SystemTime) -> Vec<Self> {
        let now = UnixSeconds::from(now);
        let seen = seen();
        let live = seen.iter().filter(|(_, seen)| now.saturating_since(seen.at) < FORGOTTEN);
        let mut ends: Vec<_> = live.map(|(_, seen)| seen.end.clone()).collect();
        ends.sort_by(|a, b| a.name.cmp(&b.name));
        ends
    }

    /// The time until it ends, in seconds; negative once it has ended.
    pub fn remaining_secs(&self, now: SystemTime) -> i64 {
        let secs = |time: UnixSeconds| i64::try_from(time.0).unwrap_or(i64::MAX);
        secs(self.end) - secs(now.into())
    }

    /// Returns a warning for operators, if the certificate ends within 30 days or has ended.
    pub fn warning(&self, now: SystemTime) -> Option<String> {
        let secs = self.remaining_secs(now);
        let whose = match self.owner {
            CertificateOwner::Gateway => "server.tls.cert",
            CertificateOwner::ClientAuthority => "server.tls.client_ca",
            CertificateOwner::Server => "the certificate of",
        };
        let name = &self.name;
        let days = u64::try_from(secs).map(|secs| secs / DAY);
        match days {
            Err(_) => Some(format!("{whose} {name} has expired: renew it")),
            Ok(days) if days < SOON.as_secs() / DAY => {
                Some(format!("{whose} {name} expires in {days} days: renew it"))
            }
            Ok(_) => None,
        }
    }

    /// Logs a warning if the certificate ends soon.
    pub fn warn(&self, now: SystemTime) {
        if let Some(why) = self.warning(now) {
            warn!(why, "a certificate expires soon");
        }
    }
}

/// A certificate that a server has shown.
struct SeenCertificate {
    end: CertificateEnd,
    at: UnixSeconds,
}

fn seen() -> MutexGuard<'static, LruCache<String, SeenCertificate>> {
    static SEEN: LazyLock<Mutex<LruCache<String, SeenCertificate>>> =
        LazyLock::new(|| Mutex::new(LruCache::new(SERVERS)));
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Verifies as another verifier does, and remembers when the certificate of each server ends.
#[derive(Debug)]
pub(super) struct NotingVerifier(pub Arc<dyn ServerCertVerifier>);

impl ServerCertVerifier for NotingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.0.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        let name = server_name.to_str();
        if let Some(end) = CertificateEnd::read(CertificateOwner::Server, Some(&name), end_entity) {
            let at = UnixSeconds(now.as_secs());
            let before = seen().put(name.into_owned(), SeenCertificate { end: end.clone(), at });
            if before.is_none_or(|before| before.end != end) {
                end.warn(at.into());
            }
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_reported_from_thirty_days_before_its_end() {
        let end = CertificateEnd {
            owner: CertificateOwner::Server,
            name: "wiki.example".to_owned(),
            end: UnixSeconds(100 * DAY),
        };
        let at = |secs| SystemTime::from(UnixSeconds(secs));
        assert_eq!(end.warning(at(70 * DAY)), None);
        for (secs, expected) in [
            (70 * DAY + 1, "the certificate of wiki.example expires in 29 days: renew it"),
            (100 * DAY - 1, "the certificate of wiki.example expires in 0 days: renew it"),
            (100 * DAY + 1, "the certificate of wiki.example has expired: renew it"),
        ] {
            assert_eq!(end.warning(at(secs)).as_deref(), Some(expected));
        }
    }

    #[test]
    fn the_ends_of_a_chain_are_read_and_other_texts_have_none() {
        let mut params = rcgen::CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let ends =
            CertificateEnd::of_pem(CertificateOwner::Gateway, format!("{pem}{pem}").as_bytes());
        assert_eq!(ends.len(), 2);
        assert_eq!(ends[0].end, UnixSeconds(1_893_456_000));
        assert_eq!(CertificateEnd::of_pem(CertificateOwner::Gateway, b"none"), []);
    }
}
