//! Visitors: people and programs that use the console or the admin API.

use subtle::ConstantTimeEq;

use super::role::Role;
use super::session::SessionId;
use base::platform::wall_clock;
use domain::approval::{ApproverProof, Decider};
use domain::time::unix_time::UnixSeconds;

/// How a visitor is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SignInMethod {
    /// By the loopback address alone: no sign-in is configured.
    Local,
    /// By `admin.token`, or a token of `admin.tokens`, in the header `Authorization`.
    Bearer,
    /// By a session that began with such a token.
    Token,
    /// By a session that began at the OpenID provider.
    Oidc,
}

/// An authenticated visitor of the admin side, for one request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Visitor {
    /// The subject (`sub`) of a person, the name of a token, or else [`LOCAL`] or [`TOKEN`], which
    /// no token with a name has.
    pub id: String,
    /// The display name that the provider has for the person. It is no identity: people may change
    /// it, and two may have the same.
    pub name: Option<String>,
    /// The groups of the person, of which those without a role may be missing ([`super::session`]).
    pub groups: Vec<String>,
    pub role: Role,
    pub via: SignInMethod,
    /// End of the session; `None` without one.
    pub expires: Option<UnixSeconds>,
    /// Begin of the session.
    pub(super) began: Option<UnixSeconds>,
    /// The session that forms are bound to; `None` for [`SignInMethod::Bearer`], which no browser
    /// sends by itself.
    pub(super) session: Option<SessionId>,
}

/// The id of a visitor on loopback, where no sign-in is configured.
pub(crate) const LOCAL: &str = "local";

/// The id of everyone who has `admin.token`.
pub(crate) const TOKEN: &str = "token";

impl SignInMethod {
    /// Returns the name of the way in records and documents.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Bearer => "bearer",
            Self::Token => "token",
            Self::Oidc => "oidc",
        }
    }
}

impl Visitor {
    /// Returns a visitor on loopback, who has no session: `process` stands for it.
    pub(super) fn local(process: SessionId, role: Role) -> Self {
        Self {
            id: LOCAL.to_owned(),
            name: None,
            groups: Vec::new(),
            role,
            via: SignInMethod::Local,
            expires: None,
            began: None,
            session: Some(process),
        }
    }

    /// Returns the visitor who sent a token in a header.
    pub(super) fn bearer(id: &str, role: Role) -> Self {
        Self {
            id: id.to_owned(),
            name: None,
            groups: Vec::new(),
            role,
            via: SignInMethod::Bearer,
            expires: None,
            began: None,
            session: None,
        }
    }

    /// Whether the visitor is known by the cookie of a session, which the browser adds to requests
    /// of any page.
    pub(crate) fn has_cookie(&self) -> bool {
        self.expires.is_some()
    }

    /// The proof of the identity that takes a decision.
    pub(crate) fn proof(&self) -> ApproverProof {
        match self.via {
            SignInMethod::Oidc => ApproverProof::SignIn,
            SignInMethod::Bearer | SignInMethod::Token if self.id != TOKEN => {
                ApproverProof::NamedToken
            }
            _ => ApproverProof::SharedToken,
        }
    }

    /// Returns the name for records. A holder of the shared token is recorded as `claimed`, since
    /// that token identifies no person.
    pub(crate) fn recorded(&self, claimed: Option<String>) -> String {
        match self.proof() {
            ApproverProof::SharedToken => claimed.unwrap_or_else(|| "admin".to_owned()),
            _ => self.id.clone(),
        }
    }

    /// Returns the decider for a decision, named as by [`Visitor::recorded`].
    pub(crate) fn decider(&self, claimed: Option<String>, why: Option<String>) -> Decider {
        let (by, known_as, proof) = (self.recorded(claimed), self.name.clone(), self.proof());
        Decider { by, known_as, proof, why, via: "admin", at: wall_clock() }
    }

    /// Returns the name for people: the one that the provider gives, or else the id.
    pub(crate) fn shown(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    /// Returns the text that the forms of this visitor carry in a hidden field, against requests
    /// that other sites forge (CSRF); empty for [`SignInMethod::Bearer`]. Visible ASCII.
    pub(crate) fn csrf_token(&self) -> String {
        self.session.as_ref().map(SessionId::form_token).unwrap_or_default()
    }

    /// Returns whether a form with this text was made for this visitor. Always true for
    /// [`SignInMethod::Bearer`]: a browser adds cookies to the requests of other sites, but no such
    /// header. Takes the same time for all texts of one length.
    #[must_use]
    pub(crate) fn check_csrf(&self, sent: &str) -> bool {
        self.session.is_none() || bool::from(self.csrf_token().as_bytes().ct_eq(sent.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_belongs_to_its_session() {
        let local = || Visitor::local(SessionId::random(), Role::Viewer);
        let (own, other) = (local(), local());
        assert!(own.check_csrf(&own.csrf_token()));
        for wrong in ["", "x", &other.csrf_token(), &own.csrf_token()[1..]] {
            assert!(!own.check_csrf(wrong), "{wrong}");
        }
        let bearer = Visitor::bearer(TOKEN, Role::Tester);
        assert!(bearer.check_csrf("") && bearer.csrf_token().is_empty());
    }
}
