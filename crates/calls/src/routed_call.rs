//! Calls behind the gate.

use std::sync::Arc;

use super::rollouts::ChosenVersion;
use catalog::owner::Owner;
use catalog::reply::ResultOrigin;
use domain::call::Call;
use policy::Authorized;
use upstream::Upstream;

/// A call behind the gate, and the upstream that it goes to.
pub(super) struct RoutedCall<'a> {
    pub call: &'a Call,
    pub authorized: Authorized<'a>,
    pub owner: &'a Owner,
    /// The version that a rollout has chosen, whose owner this is then.
    pub version: Option<ChosenVersion<'a>>,
    pub upstream: &'a Arc<Upstream>,
}

impl RoutedCall<'_> {
    /// The prompt as the caller sees it in lists.
    pub(super) fn listed(&self) -> &Owner {
        self.version.map_or(self.owner, |version| version.listed)
    }

    pub(super) fn origin(&self) -> ResultOrigin {
        let rollout = self.version.map(|version| version.label().clone());
        ResultOrigin { rollout, ..origin(self.owner) }
    }
}

/// The origin of a result of the version that is listed.
pub(super) fn origin(owner: &Owner) -> ResultOrigin {
    ResultOrigin {
        upstream: owner.upstream.clone(),
        digest: owner.digest.clone(),
        name: owner.public_name.clone(),
        version: owner.version.clone(),
        rollout: None,
    }
}
