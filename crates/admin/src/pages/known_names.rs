//! Names that the fields of a form suggest.

use super::rights::known;
use crate::state::AdminState;

/// The names of prompts, callers and upstreams, each at most [`MAX_NAMES`].
pub(super) struct KnownNames {
    pub lists: [(&'static str, Vec<String>); 3],
}

/// More are no help, and make the page large.
const MAX_NAMES: usize = 200;

impl KnownNames {
    pub(super) fn new(state: &AdminState) -> Self {
        let catalog = state.router.catalog();
        let prompts = catalog.content.items().map(|item| item.counted_name().to_string());
        let callers = known(&state.config).into_iter().filter(|who| !who.label.contains(' '));
        let upstreams = state.config.upstreams.iter().map(|upstream| upstream.id.to_string());
        Self {
            lists: [
                ("prompts", prompts.take(MAX_NAMES).collect()),
                ("callers", callers.map(|who| who.label).take(MAX_NAMES).collect()),
                ("upstreams", upstreams.take(MAX_NAMES).collect()),
            ],
        }
    }
}
