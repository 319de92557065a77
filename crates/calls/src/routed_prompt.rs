//! Gets and completions behind the gate.

use super::admitted::Admitted;
use super::rollouts::ChosenVersion;
use catalog::listed_item::ListedItem;
use catalog::reply::ResultOrigin;

/// A get, a completion or a read of a link behind the gate, and the prompt that it is for.
pub(super) struct RoutedPrompt<'a> {
    pub admitted: Admitted<'a>,
    pub item: &'a ListedItem,
    /// The version that a rollout has chosen; `item` is then that version.
    pub version: Option<ChosenVersion<'a>>,
}

impl RoutedPrompt<'_> {
    /// The prompt as the caller sees it in lists.
    pub(super) fn listed(&self) -> &ListedItem {
        self.version.map_or(self.item, |version| version.listed)
    }

    pub(super) fn origin(&self) -> ResultOrigin {
        let rollout = self.version.map(|version| version.label().clone());
        ResultOrigin { rollout, ..origin(self.item) }
    }
}

/// The origin of a result of the version that is listed.
pub(super) fn origin(item: &ListedItem) -> ResultOrigin {
    ResultOrigin {
        upstream: item.upstream.clone(),
        digest: item.digest.clone(),
        name: item.public_name.clone(),
        version: item.version.clone(),
        rollout: None,
    }
}
