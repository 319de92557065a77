//! Callers: the authenticated identities behind requests.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::time::unix_time::UnixSeconds;

/// The authenticated identity behind a request. Sessions, cursors and states are bound to the id of
/// their caller; its rights also depend on its groups and scopes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Caller(Arc<CallerParts>);

#[derive(Clone, Debug)]
struct CallerParts {
    id: Box<str>,
    /// Sorted, without duplicates.
    groups: Vec<String>,
    /// Sorted, without duplicates.
    scopes: Vec<String>,
    proof: Proof,
}

/// The kind of credential that authenticated a caller, with its loggable parts: never the
/// credential itself.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Proof {
    /// No credential.
    #[default]
    None,
    /// An API key. The audit log names the caller's id, not the key.
    ApiKey {
        /// SHA-256 of the key: one caller may have several keys.
        hash: [u8; 32],
    },
    /// A TLS client certificate.
    Certificate {
        /// Distinguished name of the subject, in the string form of RFC 4514.
        subject: String,
    },
    /// A JSON Web Token.
    Token(Box<TokenProof>),
    /// Standard streams: the client is the process that started the gateway.
    Stdio,
}

/// The claims of a JSON Web Token that identify it (RFC 7519, section 4.1).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TokenProof {
    /// `iss`
    pub issuer: String,
    /// `sub`
    pub subject: String,
    /// `client_id`, or else `azp`.
    pub client: Option<String>,
    /// `sha256:…` of `jti`.
    pub id_hash: Option<String>,
    /// `sha256:…` of `aud` and `acr`: an authorization server may exchange tokens for one resource,
    /// or of one strength, and refuse tokens for another.
    pub context_hash: Option<String>,
    /// End of validity: `exp` plus the configured leeway.
    pub expires: UnixSeconds,
}

/// Longest id of a caller, in characters. The id is part of every session id and cursor.
pub const MAX_ID: usize = 128;

/// Whether a text can be the id of a caller: 1 to [`MAX_ID`] visible characters.
pub fn is_id(text: &str) -> bool {
    let visible = |c: char| !c.is_control() && !c.is_whitespace();
    (1..=MAX_ID).contains(&text.chars().count()) && text.chars().all(visible)
}

/// The id of the caller without a credential. Reserved: no configured caller and no token's subject
/// may have it.
pub const ANONYMOUS: &str = "anonymous";

/// The id of the gateway itself, as the caller of probes and examinations.
pub const PROBER: &str = "promptgate";

/// The id of a console visitor who tries prompts with `admin.token`.
pub const CONSOLE: &str = "console";

/// Begin of the ids of console visitors who try prompts and are not callers otherwise.
pub const CONSOLE_PREFIX: &str = "console/";

/// Whether an id is reserved: no credential can name it.
pub fn is_reserved(id: &str) -> bool {
    [ANONYMOUS, PROBER, CONSOLE].contains(&id) || id.starts_with(CONSOLE_PREFIX)
}

impl Caller {
    /// Returns the caller of requests without a credential, where no credential is required.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS)
    }

    pub fn is_anonymous(&self) -> bool {
        self.id() == ANONYMOUS
    }

    /// Whether the caller is the gateway itself, whose calls no limit of callers counts.
    pub fn is_gateway(&self) -> bool {
        self.id() == PROBER
    }

    pub fn new(id: &str) -> Self {
        Self::in_groups(id, &[])
    }

    /// Returns a caller that is a member of `groups`, without scopes and without proof.
    pub fn in_groups(id: &str, groups: &[String]) -> Self {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        let scopes = Vec::new();
        let proof = Proof::None;
        Self(Arc::new(CallerParts { id: id.into(), groups, scopes, proof }))
    }

    /// Returns the same caller with this proof.
    pub fn proved_by(self, proof: Proof) -> Self {
        let CallerParts { id, groups, scopes, .. } = Arc::unwrap_or_clone(self.0);
        Self(Arc::new(CallerParts { id, groups, scopes, proof }))
    }

    /// Returns the same caller with the scopes of its token.
    pub fn with_scopes(self, mut scopes: Vec<String>) -> Self {
        scopes.sort_unstable();
        scopes.dedup();
        let CallerParts { id, groups, proof, .. } = Arc::unwrap_or_clone(self.0);
        Self(Arc::new(CallerParts { id, groups, scopes, proof }))
    }

    pub fn id(&self) -> &str {
        &self.0.id
    }

    pub fn groups(&self) -> &[String] {
        &self.0.groups
    }

    pub fn proof(&self) -> &Proof {
        &self.0.proof
    }

    /// Returns the end of the credential's validity, in seconds since the Unix epoch; `None` for
    /// credentials without an end.
    pub fn expires(&self) -> Option<UnixSeconds> {
        match self.proof() {
            Proof::Token(token) => Some(token.expires),
            _ => None,
        }
    }

    /// Returns the kind of the caller's credential, and the issuer of such credentials.
    pub fn authority(&self) -> (&'static str, &str) {
        match self.proof() {
            Proof::None => ("none", ""),
            Proof::ApiKey { .. } => ("api_key", ""),
            Proof::Certificate { .. } => ("certificate", ""),
            Proof::Token(token) => ("token", &token.issuer),
            Proof::Stdio => ("stdio", ""),
        }
    }

    /// Returns the scopes of the caller's token; empty for other credentials.
    pub fn scopes(&self) -> &[String] {
        &self.0.scopes
    }
}

/// Callers are equal if the same authority names them by the same id, in the same kind of
/// credential. Their groups and scopes may change between two requests.
impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id() && self.authority() == other.authority()
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

/// A caller with all rights of its token: a response to a token is never served to a token with
/// fewer scopes, of another client, for another audience or of another strength. Tokens that differ
/// only in `jti` are equal, since otherwise each renewal would repeat all requests.
#[derive(Clone, Debug)]
pub struct Principal(Caller);

impl Principal {
    pub fn new(caller: &Caller) -> Self {
        Self(caller.clone())
    }

    pub fn caller(&self) -> &Caller {
        &self.0
    }

    /// Returns the bytes that the caller's texts take in memory.
    pub fn size(&self) -> usize {
        let texts = self.0.groups().iter().chain(self.0.scopes());
        size_of::<CallerParts>()
            + self.0.id().len()
            + texts.map(|text| text.len() + size_of::<String>()).sum::<usize>()
    }

    /// Returns the client of the caller's token, and the hash of the token's other bindings.
    fn binding(&self) -> (Option<&str>, Option<&str>) {
        match self.0.proof() {
            Proof::Token(token) => (token.client.as_deref(), token.context_hash.as_deref()),
            _ => (None, None),
        }
    }
}

impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
            && self.binding() == other.binding()
            && self.0.scopes() == other.0.scopes()
            && self.0.groups() == other.0.groups()
    }
}

impl Eq for Principal {}

impl Hash for Principal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
        self.binding().hash(state);
        self.0.scopes().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_for_another_audience_or_of_another_strength_are_another_principal() {
        let principal = |jti: &str, context: &str| {
            let proof = TokenProof {
                id_hash: Some(jti.to_owned()),
                context_hash: Some(context.to_owned()),
                ..TokenProof::default()
            };
            Principal::new(&Caller::new("ada").proved_by(Proof::Token(Box::new(proof))))
        };
        assert_eq!(principal("1", "a"), principal("2", "a"), "a renewed token");
        assert_ne!(principal("1", "a"), principal("1", "b"));
    }
}
