//! Authentication: the credential of a request becomes a caller, or the request is refused.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::jwt::Tokens;
use base::seal;
use domain::calls::caller::{Caller, MAX_ID, Proof, is_reserved};
use domain::calls::subject_token::SubjectToken;
use domain::fault::TransportFault;
use domain::time::unix_time::UnixSeconds;

/// The credentials of a request.
#[derive(Clone, Copy, Default)]
pub struct RequestCredentials<'a> {
    /// `Authorization`
    pub authorization: CredentialHeader<'a>,
    /// `X-API-Key`
    pub api_key: CredentialHeader<'a>,
    /// Subject of the client certificate of the connection (RFC 4514).
    pub subject: Option<&'a str>,
}

/// A header that may carry a credential.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CredentialHeader<'a> {
    #[default]
    Nothing,
    Once(&'a str),
    /// Several values, or one that is not text: no credential is read from it.
    Unreadable,
}

impl<'a> RequestCredentials<'a> {
    /// Returns the credential in `Authorization: Bearer`.
    pub(super) fn bearer(&self) -> Option<&'a str> {
        match self.authorization {
            CredentialHeader::Once(value) => bearer(value),
            CredentialHeader::Nothing | CredentialHeader::Unreadable => None,
        }
    }
}

/// An authenticated request.
pub struct Authenticated {
    pub caller: Caller,
    /// The token that has authenticated it, where calls may need it.
    pub token: Option<SubjectToken>,
}

/// Redacted: a logged request must not show its credential.
impl fmt::Debug for RequestCredentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(redacted)")
    }
}

/// Turns credentials into callers. A credential that one method refuses is not tried with another,
/// and never becomes an anonymous caller.
pub(crate) struct Authenticator {
    auth: Arc<config::Auth>,
    /// The credential that an unauthenticated client is asked to send.
    wanted: &'static str,
    /// By the SHA-256 of the key. The time of a look-up depends on that digest alone, which reveals
    /// nothing about a key whose digest is in the file.
    api_keys: HashMap<[u8; 32], Caller>,
    tokens: Option<Arc<Tokens>>,
    /// If not empty: the only certificate subjects that are callers.
    subjects: HashMap<String, Caller>,
    stdio: Caller,
}

impl Authenticator {
    pub(crate) fn new(auth: &config::Auth) -> Self {
        Self {
            auth: Arc::new(auth.clone()),
            wanted: match (&auth.jwt, auth.api_keys.is_empty()) {
                (Some(_), _) => "send Authorization: Bearer TOKEN",
                (None, true) => "open the connection with a certificate",
                (None, false) => "send Authorization: Bearer KEY, or X-API-Key: KEY",
            },
            tokens: auth.jwt.as_ref().map(|jwt| Arc::new(Tokens::new(auth, jwt))),
            api_keys: auth
                .api_keys
                .iter()
                .map(|key| (key.hash, key.caller.caller(Proof::ApiKey { hash: key.hash })))
                .collect(),
            subjects: auth
                .certificates
                .iter()
                .map(|config::Certificate { subject, caller: who }| {
                    let proof = Proof::Certificate { subject: subject.clone() };
                    (subject.clone(), who.caller(proof))
                })
                .collect(),
            stdio: auth.stdio.caller(Proof::Stdio),
        }
    }

    /// The authenticator of another configuration, which keeps the fetched keys.
    pub(crate) fn renew(&self, auth: &config::Auth) -> Self {
        let mut renewed = Self::new(auth);
        if let (Some(old), Some(jwt)) = (&self.tokens, &auth.jwt) {
            renewed.tokens = Some(Arc::new(old.renew(auth, jwt)));
        }
        renewed
    }

    /// Whether a caller that was authenticated under the configuration `then` would be the same
    /// caller now.
    pub(crate) fn still_knows(&self, caller: &Caller, then: &config::Auth) -> bool {
        let is_same = |known: &Caller| {
            known.id() == caller.id()
                && known.groups() == caller.groups()
                && known.proof() == caller.proof()
        };
        match caller.proof() {
            Proof::None => !self.auth.required,
            Proof::ApiKey { hash } => self.api_keys.get(hash).is_some_and(is_same),
            Proof::Certificate { subject } => {
                self.auth.client_ca == then.client_ca
                    && self.by_subject(subject).is_ok_and(|known| is_same(&known))
            }
            Proof::Token(_) => self.auth.jwt == then.jwt,
            // The process that started the gateway keeps its access.
            Proof::Stdio => true,
        }
    }

    pub(crate) fn auth(&self) -> &Arc<config::Auth> {
        &self.auth
    }

    /// Validation of JSON Web Tokens, if configured.
    pub(crate) fn tokens(&self) -> Option<&Arc<Tokens>> {
        self.tokens.as_ref()
    }

    /// Authenticates a request to the resource `audience`. A credential in a header takes
    /// precedence over the certificate of the connection.
    pub(crate) async fn authenticate(
        &self,
        credentials: &RequestCredentials<'_>,
        audience: &str,
        now: UnixSeconds,
    ) -> Result<Caller, TransportFault> {
        match self.read(credentials)? {
            Claim::Known(caller) => Ok(caller),
            Claim::Token(tokens, token) => tokens.check(token, audience, now).await,
        }
    }

    fn read<'a>(
        &'a self,
        credentials: &RequestCredentials<'a>,
    ) -> Result<Claim<'a>, TransportFault> {
        let refused = |why: &'static str| TransportFault::Unauthorized { why: why.into() };
        let caller = match (credentials.authorization, credentials.api_key) {
            (CredentialHeader::Nothing, CredentialHeader::Nothing) => match credentials.subject {
                Some(subject) => self.by_subject(subject),
                None if self.auth.required => {
                    Err(TransportFault::Unauthenticated { wanted: self.wanted })
                }
                None => Ok(Caller::anonymous()),
            },
            (CredentialHeader::Once(value), CredentialHeader::Nothing) => {
                let token = bearer(value).ok_or_else(|| refused("Authorization is not Bearer"))?;
                match &self.tokens {
                    Some(tokens) if Tokens::is_token(token) => {
                        return Ok(Claim::Token(tokens, token));
                    }
                    _ => self.by_api_key(token),
                }
            }
            (CredentialHeader::Nothing, CredentialHeader::Once(key)) => self.by_api_key(key),
            _ => Err(refused("send one credential, once")),
        };
        caller.map(Claim::Known)
    }

    fn by_subject(&self, subject: &str) -> Result<Caller, TransportFault> {
        let refused = |why: &'static str| TransportFault::Unauthorized { why: why.into() };
        if !self.subjects.is_empty() {
            let known = self.subjects.get(subject).cloned();
            return known.ok_or(refused("the certificate's subject is not one of auth.mtls"));
        }
        match subject.chars().count() {
            _ if is_reserved(subject) => {
                Err(refused("the certificate's subject is reserved: give it an id in auth.mtls"))
            }
            0..=MAX_ID => {
                let proof = Proof::Certificate { subject: subject.to_owned() };
                Ok(Caller::new(subject).proved_by(proof))
            }
            _ => Err(refused("the certificate's subject is too long: give it an id in auth.mtls")),
        }
    }

    /// The caller of standard streams: the process that started the gateway.
    pub(crate) fn of_stdio(&self) -> Caller {
        self.stdio.clone()
    }

    fn by_api_key(&self, key: &str) -> Result<Caller, TransportFault> {
        let known = self.api_keys.get(&seal::sha256(key.as_bytes())).cloned();
        known.ok_or(TransportFault::Unauthorized { why: "the key is not known here".into() })
    }
}

/// The outcome of reading a credential.
enum Claim<'a> {
    Known(Caller),
    /// A token, to be checked with the keys of its issuer.
    Token(&'a Tokens, &'a str),
}

/// The token of `Bearer TOKEN` (RFC 6750, section 2.1; the scheme in any case).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && !token.contains(' '))
        .then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authenticator(required: bool) -> Authenticator {
        let caller = config::Identity { id: "ci".into(), groups: vec!["engineering".into()] };
        let hash = seal::sha256(b"pg_good");
        let stdio = config::Identity { id: "local".into(), groups: vec![] };
        let certificate =
            config::Certificate { subject: "CN=ci,O=Acme".into(), caller: caller.clone() };
        Authenticator::new(&config::Auth {
            takes_all_by_choice: false,
            is_open_by_choice: false,
            required,
            api_keys: vec![config::ApiKey { hash, caller }],
            jwt: None,
            takes_certificates: true,
            client_ca: None,
            certificates: vec![certificate],
            stdio,
        })
    }

    fn ask(
        required: bool,
        authorization: CredentialHeader<'_>,
        api_key: CredentialHeader<'_>,
    ) -> Option<String> {
        let credentials = RequestCredentials { authorization, api_key, subject: None };
        known(authenticator(required).read(&credentials))
    }

    fn known(claim: Result<Claim<'_>, TransportFault>) -> Option<String> {
        match claim {
            Ok(Claim::Known(caller)) => Some(caller.id().to_owned()),
            Ok(Claim::Token(..)) => panic!("nobody's tokens are believed"),
            Err(_) => None,
        }
    }

    #[test]
    fn a2_only_a_known_key_in_one_place_is_a_caller() {
        use CredentialHeader::{Nothing, Once, Unreadable};
        for required in [true, false] {
            let ask = |authorization, key| ask(required, authorization, key);
            let ci = Some("ci".to_owned());
            assert_eq!(ask(Once("Bearer pg_good"), Nothing), ci);
            assert_eq!(ask(Once("bearer  pg_good"), Nothing), ci);
            assert_eq!(ask(Nothing, Once("pg_good")), ci);
            for wrong in
                ["Bearer pg_bad", "Bearer ", "Bearer", "Basic cGc6", "pg_good", "Bearer a b"]
            {
                assert_eq!(ask(Once(wrong), Nothing), None, "{wrong}");
            }
            assert_eq!(ask(Once("Bearer pg_bad"), Once("pg_good")), None, "no other is tried");
            assert_eq!(ask(Once("Bearer pg_good"), Once("pg_good")), None);
            assert_eq!(ask(Unreadable, Nothing), None);
            assert_eq!(ask(Nothing, Unreadable), None);
            assert_eq!(ask(Nothing, Once("")), None);
        }
        assert_eq!(ask(true, Nothing, Nothing), None);
        assert_eq!(ask(false, Nothing, Nothing).as_deref(), Some("anonymous"));
    }

    #[test]
    fn no_certificate_names_a_person_of_the_console() {
        let open = Authenticator { subjects: HashMap::new(), ..authenticator(true) };
        assert_eq!(open.by_subject("CN=a").unwrap().id(), "CN=a");
        for reserved in ["console", "console/CN=a", "anonymous"] {
            assert!(open.by_subject(reserved).is_err(), "{reserved}");
        }
    }

    #[test]
    fn a2_a_certificate_counts_where_no_other_credential_comes() {
        let ask = |authorization, subject| {
            let credentials = RequestCredentials {
                authorization,
                api_key: CredentialHeader::Nothing,
                subject: Some(subject),
            };
            known(authenticator(false).read(&credentials))
        };
        assert_eq!(ask(CredentialHeader::Nothing, "CN=ci,O=Acme").as_deref(), Some("ci"));
        assert_eq!(ask(CredentialHeader::Nothing, "CN=ci"), None, "not even anonymous");
        assert_eq!(
            ask(CredentialHeader::Once("Bearer pg_bad"), "CN=ci,O=Acme"),
            None,
            "no other is tried"
        );
        assert_eq!(
            ask(CredentialHeader::Once("Bearer pg_good"), "CN=other").as_deref(),
            Some("ci")
        );
    }
}
