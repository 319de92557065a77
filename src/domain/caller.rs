//! Who asks.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::unix_time::UnixSeconds;

/// The authenticated origin of a request. Sessions, cursors and states belong to their caller; what it
/// may do depends on its groups and scopes, too.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    id: Box<str>,
    /// Sorted, each once.
    groups: Vec<String>,
    scopes: Vec<String>,
    proof: Proof,
}

/// How a caller has shown who it is, as far as that may be told: never the credential itself.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Proof {
    /// No credential.
    #[default]
    None,
    /// Known by the id of the caller.
    ApiKey {
        /// SHA-256 of the key: a caller may have several.
        hash: [u8; 32],
    },
    Certificate {
        /// As RFC 4514 writes it.
        subject: String,
    },
    Token(Box<TokenProof>),
    /// Whoever could start the gateway.
    Stdio,
}

/// What a token says about itself.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TokenProof {
    pub issuer: String,
    pub subject: String,
    pub client: Option<String>,
    /// `sha256:…` of `jti`.
    pub id_hash: Option<String>,
    /// From this time on the token proves nothing.
    pub expires: UnixSeconds,
}

/// Longest id of a caller, in characters: it is part of every session id and cursor.
pub(crate) const MAX_ID: usize = 128;

/// Whether a text can be the id of a caller: 1 to [`MAX_ID`] visible characters.
pub(crate) fn is_id(text: &str) -> bool {
    let visible = |c: char| !c.is_control() && !c.is_whitespace();
    (1..=MAX_ID).contains(&text.chars().count()) && text.chars().all(visible)
}

/// What nobody else may be called.
pub(crate) const ANONYMOUS: &str = "anonymous";

impl Caller {
    /// Whoever reaches the gateway without a credential where none is required.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS)
    }

    pub fn is_anonymous(&self) -> bool {
        self.id() == ANONYMOUS
    }

    pub fn new(id: &str) -> Self {
        Self::in_groups(id, &[])
    }

    /// A caller and the groups that it belongs to.
    pub fn in_groups(id: &str, groups: &[String]) -> Self {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        let (scopes, proof) = (Vec::new(), Proof::None);
        Self(Arc::new(Inner { id: id.into(), groups, scopes, proof }))
    }

    /// The same caller, and how it is known.
    pub fn proved_by(self, proof: Proof) -> Self {
        let Inner { id, groups, scopes, .. } = Arc::unwrap_or_clone(self.0);
        Self(Arc::new(Inner { id, groups, scopes, proof }))
    }

    /// The same caller, with what its token allows.
    pub fn with_scopes(self, mut scopes: Vec<String>) -> Self {
        scopes.sort_unstable();
        scopes.dedup();
        let Inner { id, groups, proof, .. } = Arc::unwrap_or_clone(self.0);
        Self(Arc::new(Inner { id, groups, scopes, proof }))
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

    /// Until when it is known to be itself, in seconds since the Unix epoch; nothing where that has
    /// no end.
    pub fn expires(&self) -> Option<UnixSeconds> {
        match self.proof() {
            Proof::Token(token) => Some(token.expires),
            _ => None,
        }
    }

    /// What its token allows, where it came with one.
    pub fn scopes(&self) -> &[String] {
        &self.0.scopes
    }
}

/// Two are the same if they have the same id: their groups may change in between.
impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}
