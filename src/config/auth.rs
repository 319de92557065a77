//! `[auth]`: who callers are, and how they prove it.

use std::path::PathBuf;

use super::jwt::{self, Jwt};
use super::reader::Section;
use crate::domain::caller::{ANONYMOUS, is_id};
use crate::seal::hex::from_hex;

/// How callers prove who they are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Auth {
    /// Whether a request without a credential is refused.
    pub required: bool,
    pub api_keys: Vec<ApiKey>,
    /// Tokens of an identity provider.
    pub jwt: Option<Jwt>,
    /// Whether certificates of callers are looked at.
    pub takes_certificates: bool,
    /// Whose certificates those are.
    pub client_ca: Option<PathBuf>,
    /// If there is any: the only subjects that are callers.
    pub certificates: Vec<Certificate>,
    /// Who the caller is over standard streams.
    pub stdio: Identity,
}

/// A key that was handed out. Only its hash is known here.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ApiKey {
    /// SHA-256 of the key.
    pub hash: [u8; 32],
    pub caller: Identity,
}

/// A subject of certificates, and the caller that it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Certificate {
    /// As RFC 4514 writes it, such as `CN=ci,O=Example`.
    pub subject: String,
    pub caller: Identity,
}

impl Auth {
    /// Whether callers can prove who they are.
    pub fn has_method(&self) -> bool {
        !self.api_keys.is_empty() || self.jwt.is_some() || self.takes_certificates
    }

    /// The callers that the file names, beside whoever calls over standard streams.
    pub fn named(&self) -> impl Iterator<Item = &Identity> {
        let keys = self.api_keys.iter().map(|key| &key.caller);
        keys.chain(self.certificates.iter().map(|certificate| &certificate.caller))
    }
}

/// A caller as the file names it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// 1 to 128 visible characters.
    pub id: String,
    pub groups: Vec<String>,
}

pub(super) fn read(mut section: Section<'_>, client_ca: Option<PathBuf>) -> Auth {
    let takes_certificates = client_ca.is_some();
    let choices = [("auto", None), ("true", Some(true)), ("false", Some(false))];
    let required = section.flag_or("required", None, &choices);
    let mut api_keys: Vec<ApiKey> = Vec::new();
    for mut table in section.tables("api_keys") {
        let key = api_key(&mut table);
        if let Some(key) = key {
            match api_keys.iter().any(|other| other.hash == key.hash) {
                true => table.mistake("hash", "another caller has this key already"),
                false => api_keys.push(key),
            }
        }
        table.finish();
    }
    let certificates = certificates(&mut section, takes_certificates);
    let mut stdio = section.section("stdio");
    let caller = identity(&mut stdio, "local");
    stdio.finish();
    let jwt = jwt::read(&mut section);
    let mut auth = Auth {
        required: true,
        api_keys,
        jwt,
        takes_certificates,
        client_ca,
        certificates,
        stdio: caller,
    };
    auth.required = required.unwrap_or(auth.has_method());
    if auth.required && !auth.has_method() {
        let message = "nobody could call: set auth.api_keys, auth.jwt or server.tls.client_ca too";
        section.mistake("required", message);
    }
    section.finish();
    auth
}

fn api_key(table: &mut Section<'_>) -> Option<ApiKey> {
    let rule = "\"sha256:\" and 64 hexadecimal digits, as `promptgate key new` prints it";
    let hash = table.required("hash", rule, hash);
    let caller = named(table);
    Some(ApiKey { hash: hash?, caller })
}

fn certificates(section: &mut Section<'_>, takes_certificates: bool) -> Vec<Certificate> {
    let mut certificates: Vec<Certificate> = Vec::new();
    for mut table in section.tables("mtls") {
        if !takes_certificates {
            table.mistake("", "no certificate is looked at: set server.tls.client_ca too");
        }
        let subject = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let subject = table.required("subject", "a subject such as \"CN=ci,O=Example\"", subject);
        let caller = named(&mut table);
        if let Some(subject) = subject {
            match certificates.iter().any(|other| other.subject == subject) {
                true => table.mistake("subject", "another caller has this subject already"),
                false => certificates.push(Certificate { subject, caller }),
            }
        }
        table.finish();
    }
    certificates
}

/// A caller that must have a name.
fn named(table: &mut Section<'_>) -> Identity {
    if !table.has("id") {
        table.mistake("id", "is required: the name of the caller");
    }
    identity(table, "")
}

fn identity(table: &mut Section<'_>, default: &str) -> Identity {
    let rule = "1 to 128 visible characters, and not \"anonymous\"";
    let id = table
        .parsed("id", rule, |text| (is_id(text) && text != ANONYMOUS).then(|| text.to_owned()));
    Identity { id: id.unwrap_or_else(|| default.to_owned()), groups: table.texts("groups") }
}

/// Reads `sha256:` and 64 hexadecimal digits, in any case.
fn hash(text: &str) -> Option<[u8; 32]> {
    from_hex(&text.strip_prefix("sha256:")?.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    fn mistakes(text: &str) -> Vec<String> {
        let error = Config::parse("g", text, Path::new(""), &[]).unwrap_err().to_string();
        error.lines().map(str::to_owned).collect()
    }

    #[test]
    fn k1_every_mistake_about_callers_is_told() {
        let hash = format!("sha256:{}", "0".repeat(64));
        let found = mistakes(&format!(
            "[[auth.api_keys]]\nhash = \"{hash}\"\n\
             [[auth.api_keys]]\nid = \"a b\"\nhash = \"md5:00\"\n\
             [[auth.api_keys]]\nid = \"c\"\nhash = \"{hash}\"\ngroup = []\n"
        ));
        let starts = [
            "g:1: auth.api_keys.0.id: is required",
            "g:4: auth.api_keys.1.id: must be 1 to 128 visible characters",
            "g:5: auth.api_keys.1.hash: must be \"sha256:\" and 64",
            "g:8: auth.api_keys.2.hash: another caller has this key already",
            "g:9: auth.api_keys.2.group: unknown key; did you mean `groups`?",
        ];
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        for (line, start) in found.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}\n{start}");
        }
        let none = mistakes("[auth]\nrequired = true\n");
        assert!(none[0].contains("nobody could call"), "{none:?}");
    }

    #[test]
    fn k6_beyond_loopback_callers_must_be_known() {
        let hash = format!("sha256:{}", "0".repeat(64));
        let key = format!("[[auth.api_keys]]\nid = \"c\"\nhash = \"{hash}\"\n");
        let open = format!("[server]\nlisten = \"0.0.0.0:8080\"\n{key}");
        assert!(Config::parse("g", &open, Path::new(""), &[]).unwrap().auth.required);
        let lax = format!("{open}[auth]\nrequired = false\n");
        assert!(mistakes(&lax)[0].contains("beyond loopback"));
    }
}
