//! Names that the fields of a form suggest.

use super::rights::known;
use crate::state::AdminState;

/// Names by the id of their list.
pub(super) type KnownNames = [(&'static str, Vec<String>); 3];

/// More names of a kind are no help, and make the page large.
const MAX_NAMES: usize = 200;

/// Returns the names of prompts, callers and upstreams.
pub(super) fn known_names(state: &AdminState) -> KnownNames {
    let catalog = state.router.catalog();
    let prompts = catalog.content.items().map(|item| item.counted_name().to_string());
    let callers = known(&state.config).into_iter().map(|who| who.label);
    let callers = callers.filter(|label| !label.starts_with("group "));
    let upstreams = state.config.upstreams.iter().map(|upstream| upstream.id.to_string());
    [
        ("prompts", prompts.take(MAX_NAMES).collect()),
        ("callers", callers.take(MAX_NAMES).collect()),
        ("upstreams", upstreams.take(MAX_NAMES).collect()),
    ]
}
