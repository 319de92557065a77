//! Approvers: the people who decide, and the proof of their identity.

/// Author, time and reason of a decision.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Attribution {
    /// The approver, as records name them.
    pub by: String,
    /// Another name of the approver, such as an email address.
    pub known_as: Option<String>,
    pub proof: ApproverProof,
    /// RFC 3339.
    pub at: String,
    pub why: Option<String>,
}

/// The proof of an approver's identity, the strongest first.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum ApproverProof {
    /// A sign-in at the provider of the console.
    SignIn,
    /// A token of this approver alone (`admin.tokens`).
    NamedToken,
    /// `admin.token`, which several people may have: the name is what its holder claims.
    SharedToken,
    /// Access to the lock file: the name is what the command line claims (`USER`).
    #[default]
    LockFile,
}

impl ApproverProof {
    const ALL: [Self; 4] = [Self::SignIn, Self::NamedToken, Self::SharedToken, Self::LockFile];

    /// Returns the word for the proof in the lock file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SignIn => "sign-in",
            Self::NamedToken => "named token",
            Self::SharedToken => "shared token",
            Self::LockFile => "lock file",
        }
    }

    /// Reads the word of the lock file.
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|proof| proof.as_str() == word)
    }
}

impl Attribution {
    /// Whether both decisions are, or may be, by the same person: the holders of the shared token
    /// count as one person, and names are compared without regard to case and surrounding spaces.
    pub fn is_by_same(&self, other: &Self) -> bool {
        let is_shared = |decision: &Self| decision.proof == ApproverProof::SharedToken;
        let is_named = |name: &str| other.names().any(|other| is_same_name(name, other));
        is_shared(self) && is_shared(other) || self.names().any(is_named)
    }

    /// Returns the decision of two people, with the weaker of both proofs.
    pub(super) fn with_second(&self, second: Self) -> Self {
        let by = format!("{}, {}", self.by, second.by);
        let proof = self.proof.max(second.proof);
        Self { by, known_as: None, proof, ..second }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.by.as_str()).chain(self.known_as.as_deref())
    }
}

/// Whether two names of people are the same, without regard to case and surrounding spaces.
pub fn is_same_name(one: &str, other: &str) -> bool {
    let [one, other] = [one.trim(), other.trim()];
    one == other || one.to_lowercase() == other.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(by: &str, known_as: Option<&str>, proof: ApproverProof) -> Attribution {
        let known_as = known_as.map(str::to_owned);
        Attribution { by: by.to_owned(), known_as, proof, ..Attribution::default() }
    }

    #[test]
    fn one_person_is_one_person_by_whichever_name_and_door() {
        use ApproverProof::{LockFile, NamedToken, SharedToken, SignIn};
        for (one, other, is_same) in [
            (decision("ada", None, LockFile), decision("Ada ", None, LockFile), true),
            (decision("ada", None, LockFile), decision("bob", None, LockFile), false),
            (decision("ÉVA", None, LockFile), decision("éva", None, SignIn), true),
            (decision("ada", None, SharedToken), decision("bob", None, SharedToken), true),
            (decision("ada", None, SharedToken), decision("bob", None, SignIn), false),
            (decision("0u7", Some("Ada"), SignIn), decision("ada", None, SharedToken), true),
            (decision("0u7", Some("Ada"), SignIn), decision("ada", None, LockFile), true),
            (decision("ada", None, NamedToken), decision("bob", None, NamedToken), false),
            (decision("ada", None, NamedToken), decision("0u7", Some(" ADA"), SignIn), true),
        ] {
            assert_eq!(one.is_by_same(&other), is_same, "{one:?} {other:?}");
            assert_eq!(other.is_by_same(&one), is_same, "{other:?} {one:?}");
        }
    }

    #[test]
    fn a_decision_of_two_is_as_well_proved_as_the_weaker() {
        let second = decision("bob", Some("Bob"), ApproverProof::SignIn);
        let both = decision("ada", None, ApproverProof::SharedToken).with_second(second);
        assert_eq!(both, decision("ada, bob", None, ApproverProof::SharedToken));
        assert!(
            ApproverProof::ALL
                .iter()
                .all(|proof| ApproverProof::read(proof.as_str()) == Some(*proof))
        );
    }
}
