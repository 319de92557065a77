//! `[auth]`: authentication of callers.

pub(crate) mod jwt;

use std::path::{Path, PathBuf};

use crate::net::Proxies;
use crate::reader::Section;
use base::seal::hex::from_hex;
use domain::calls::caller::{Caller, Proof, is_id, is_reserved};
use jwt::Jwt;

/// The authentication methods.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Auth {
    /// Whether a request without a credential is refused rather than admitted as `anonymous`.
    pub required: bool,
    /// Whether the file itself says that no credential is required (`required = false`).
    pub is_open_by_choice: bool,
    pub api_keys: Vec<ApiKey>,
    /// Tokens of an identity provider.
    pub jwt: Option<Jwt>,
    /// Whether client certificates are accepted (mTLS): `server.tls.client_ca` is set.
    pub takes_certificates: bool,
    /// Certificate authorities of the client certificates, in PEM.
    pub client_ca: Option<PathBuf>,
    /// Identities of certificate subjects. If the list is not empty, other subjects are refused.
    pub certificates: Vec<Certificate>,
    /// Whether `mtls` is set and names no subject.
    pub takes_all_by_choice: bool,
    /// Identity of the client over standard streams.
    pub stdio: Identity,
}

/// An API key of a caller. The configuration holds its hash only.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ApiKey {
    /// SHA-256 of the key.
    pub hash: [u8; 32],
    pub caller: Identity,
}

/// The identity of a certificate subject.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Certificate {
    /// Distinguished name as in RFC 4514, such as `CN=ci,O=Example`.
    pub subject: String,
    pub caller: Identity,
}

impl Auth {
    /// Returns whether any authentication method is configured.
    pub fn has_method(&self) -> bool {
        !self.api_keys.is_empty() || self.jwt.is_some() || self.takes_certificates
    }

    /// Returns the identities of all API keys and certificates; not `stdio`, and not callers of
    /// JWTs, which only the identity provider knows.
    pub fn named(&self) -> impl Iterator<Item = &Identity> {
        let keys = self.api_keys.iter().map(|key| &key.caller);
        keys.chain(self.certificates.iter().map(|certificate| &certificate.caller))
    }
}

/// The identity of a caller in the configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// 1 to 128 visible characters; not `anonymous`.
    pub id: String,
    pub groups: Vec<String>,
}

impl Identity {
    /// Returns the caller with this identity and the given proof.
    pub fn caller(&self, proof: Proof) -> Caller {
        Caller::in_groups(&self.id, &self.groups).proved_by(proof)
    }
}

/// The keys of `[auth]`.
const KEYS: &str = r#"
required: Whether a request without a credential is refused. `"auto"`: as soon as one method is
    configured. `false` admits it as `anonymous`. An invalid credential is refused in any case.
api_keys: API keys of callers.
mtls: Callers by the subject of their client certificate.
stdio: The caller over `serve --stdio`, where no credential is checked.
jwt: Tokens (JWT) of an identity provider. The caller's id is `sub`.
"#;

pub(crate) fn read(
    mut section: Section<'_>,
    client_ca: Option<PathBuf>,
    proxies: &Proxies,
) -> Auth {
    section.explain(KEYS);
    let choices = [("auto", None), ("true", Some(true)), ("false", Some(false))];
    let required = section.flag_or("required", None, &choices);
    let mut api_keys: Vec<ApiKey> = Vec::new();
    for mut table in section.tables("api_keys") {
        if let Some(key) = api_key(&mut table) {
            if api_keys.iter().any(|other| other.hash == key.hash) {
                let message = "another entry already has this hash: generate another key with \
                               `promptgate key new`";
                table.mistake("hash", message);
            } else {
                api_keys.push(key);
            }
        }
        table.finish();
    }
    let certificates = certificates(&mut section, client_ca.as_deref());
    let takes_all_by_choice = section.was_read("mtls") && certificates.is_empty();
    let stdio = stdio(section.section("stdio"));
    let jwt = jwt::read(&mut section, proxies);
    let mut auth = Auth {
        required: true,
        is_open_by_choice: required == Some(false),
        api_keys,
        jwt,
        takes_certificates: client_ca.is_some(),
        client_ca,
        certificates,
        takes_all_by_choice,
        stdio,
    };
    auth.required = required.unwrap_or(auth.has_method());
    if auth.required && !auth.has_method() && !section.is_broken("auth") {
        let message = "every request would be refused, because no authentication method is \
                       configured: set auth.api_keys, auth.jwt or server.tls.client_ca";
        section.mistake("required", message);
    }
    section.finish();
    auth
}

/// The keys of `[[auth.api_keys]]` in addition to those of the identity.
const KEY_KEYS: &str = r#"
hash: Hash of the key, as `promptgate key new` prints it.
"#;

fn api_key(table: &mut Section<'_>) -> Option<ApiKey> {
    table.explain(KEY_KEYS);
    let rule = "\"sha256:\" followed by 64 hexadecimal digits, as `promptgate key new` prints it";
    let hash = table.required("hash", rule, hash);
    let caller = required_identity(table);
    Some(ApiKey { hash: hash?, caller })
}

/// The keys of `[[auth.mtls]]` in addition to those of the identity.
const CERTIFICATE_KEYS: &str = r#"
subject, such as "CN=ci,O=Example": Subject of the certificate, written as in RFC 4514.
"#;

fn certificates(section: &mut Section<'_>, client_ca: Option<&Path>) -> Vec<Certificate> {
    let mut certificates: Vec<Certificate> = Vec::new();
    for mut table in section.tables("mtls") {
        table.explain(CERTIFICATE_KEYS);
        if client_ca.is_none() {
            table.mistake("", "client certificates are not accepted: set server.tls.client_ca too");
        }
        let subject = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let rule = "the subject of a certificate, such as \"CN=ci,O=Example\"";
        let subject = table.required("subject", rule, subject);
        let caller = required_identity(&mut table);
        if let Some(subject) = subject {
            if certificates.iter().any(|other| other.subject == subject) {
                table.mistake(
                    "subject",
                    "another entry already has this subject; remove one of them",
                );
            } else {
                certificates.push(Certificate { subject, caller });
            }
        }
        table.finish();
    }
    certificates
}

/// The keys of an identity.
const IDENTITY_KEYS: &str = r#"
id, such as "ci": Id of the caller. Two credentials may have the same, for rotation.
groups = [], such as ["engineering"]: Groups of the caller, for access rules.
"#;

/// Reads an identity whose `id` must be set.
fn required_identity(table: &mut Section<'_>) -> Identity {
    table.explain(IDENTITY_KEYS);
    let id = table.required("id", ID_RULE, id);
    Identity { id: id.unwrap_or_default(), groups: table.texts("groups") }
}

/// The key of `[auth.stdio]` that differs from the other identities.
const STDIO_KEYS: &str = r#"
id = "local": Id of the caller.
"#;

fn stdio(mut section: Section<'_>) -> Identity {
    section.explain(STDIO_KEYS);
    section.explain(IDENTITY_KEYS);
    let id = section.parsed("id", ID_RULE, id).unwrap_or_else(|| "local".to_owned());
    let identity = Identity { id, groups: section.texts("groups") };
    section.finish();
    identity
}

const ID_RULE: &str = "1 to 128 visible characters without spaces, none of \"anonymous\", \"promptgate\" and \"console\", and not beginning with \"console/\"";

fn id(text: &str) -> Option<String> {
    (is_id(text) && !is_reserved(text)).then(|| text.to_owned())
}

/// Parses `sha256:` followed by 64 hexadecimal digits, in upper or lower case.
fn hash(text: &str) -> Option<[u8; 32]> {
    from_hex(&text.strip_prefix("sha256:")?.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::schema_check;

    fn mistakes(text: &str) -> Vec<String> {
        let error = schema_check::parse("g", text, Path::new(""), &[]).unwrap_err().to_string();
        error.lines().map(str::to_owned).collect()
    }

    #[test]
    fn k1_every_mistake_in_auth_is_reported() {
        let hash = format!("sha256:{}", "0".repeat(64));
        let found = mistakes(&format!(
            "[[auth.api_keys]]\nhash = \"{hash}\"\n\
             [[auth.api_keys]]\nid = \"a b\"\nhash = \"md5:00\"\n\
             [[auth.api_keys]]\nid = \"c\"\nhash = \"{hash}\"\ngroup = []\n"
        ));
        let starts = [
            "g:1: auth.api_keys.1.id: is required",
            "g:4: auth.api_keys.2.id: must be 1 to 128 visible characters",
            "g:5: auth.api_keys.2.hash: must be \"sha256:\" followed by 64",
            "g:8: auth.api_keys.3.hash: another entry already has this hash",
            "g:9: auth.api_keys.3.group: unknown key; did you mean `groups`?",
        ];
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        for (line, start) in found.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}\n{start}");
        }
        let none = mistakes("[auth]\nrequired = true\n");
        assert!(none[0].contains("no authentication method"), "{none:?}");
    }

    #[test]
    fn no_caller_has_an_id_of_the_console() {
        let hash = format!("sha256:{}", "0".repeat(64));
        for id in ["console", "console/ada"] {
            let found = mistakes(&format!(
                "[[auth.api_keys]]\nid = \"{id}\"\nhash = \"{hash}\"\n\
                 [[auth.mtls]]\nid = \"{id}\"\nsubject = \"CN=a\"\n\
                 [auth.stdio]\nid = \"{id}\"\n"
            ));
            let named =
                found.iter().filter(|line| line.contains("not beginning with \"console/\""));
            assert_eq!(named.count(), 3, "{found:#?}");
        }
    }

    #[test]
    fn k6_a_listener_beyond_loopback_requires_credentials() {
        let hash = format!("sha256:{}", "0".repeat(64));
        let key = format!("[[auth.api_keys]]\nid = \"c\"\nhash = \"{hash}\"\n");
        let open = format!("[server]\nlisten = \"0.0.0.0:8080\"\n{key}");
        assert!(schema_check::parse("g", &open, Path::new(""), &[]).unwrap().auth.required);
        let lax = format!("{open}[auth]\nrequired = false\n");
        assert!(mistakes(&lax)[0].contains("beyond loopback"));
    }
}
