//! Overlays: changes of the operator to the prompts of an upstream, before their names are merged.
//! A definition goes in, the effective definition comes out.

mod composed;
mod contradiction;
mod rename;

use crate::name::UpstreamId;
use crate::prompts::call_overlay::{AddedMessage, Preset};
use crate::prompts::prompt::Prompt;
use crate::text::glob::Glob;

pub use rename::Rename;

use composed::Composed;

/// One overlay of the configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Overlay {
    /// The place of the overlay in the file, from 1: `overlays.1` is the first.
    pub number: usize,
    pub upstream: UpstreamId,
    /// Pattern of raw names.
    pub prompt: Glob,
    pub action: OverlayAction,
}

/// The action of an overlay on the prompts that it matches.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OverlayAction {
    /// Removes the prompt.
    Drop,
    Change(Box<Change>),
}

/// The changes of one overlay. A member that is `None` or empty changes nothing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Change {
    pub rename: Option<Rename>,
    pub title: Option<String>,
    pub description: Option<String>,
    /// An array of icons as JSON text.
    pub icons: Option<String>,
    /// Tags, which clients get as `_meta.tags`.
    pub tags: Vec<String>,
    pub arguments: Vec<(String, ArgumentChange)>,
    /// Messages before and after the messages of the upstream.
    pub before: Option<AddedMessage>,
    pub after: Option<AddedMessage>,
}

/// The changes of one argument.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ArgumentChange {
    /// The value if a client gives none.
    pub default: Option<String>,
    /// The value that the gateway sets: clients neither see the argument nor set it.
    pub preset: Option<Preset>,
    /// The only values that are accepted; completed by the gateway.
    pub choices: Option<Vec<String>>,
    /// Whether clients must give a value although the upstream does not require one.
    pub is_required: bool,
}

impl OverlayAction {
    /// Returns the keys of the configuration that change something, in their order; for arguments
    /// with their names.
    pub fn changed_keys(&self) -> Vec<String> {
        let Self::Change(change) = self else {
            return vec!["drop".to_owned()];
        };
        let Change { rename, title, description, icons, tags, arguments, before, after } =
            &**change;
        let arguments = arguments.iter().flat_map(|(name, change)| {
            let keys = [
                ("default", change.default.is_some()),
                ("preset", change.preset.is_some()),
                ("choices", change.choices.is_some()),
                ("required", change.is_required),
            ];
            let set = keys.into_iter().filter(|(_, is_set)| *is_set);
            set.map(move |(key, _)| format!("arguments.{name}.{key}"))
        });
        let first = [
            ("rename", rename.is_some()),
            ("title", title.is_some()),
            ("description", description.is_some()),
            ("icons", icons.is_some()),
            ("tags", !tags.is_empty()),
        ];
        let last = [("before", before.is_some()), ("after", after.is_some())];
        let set = |keys: Vec<(&'static str, bool)>| {
            keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key.to_owned())
        };
        set(first.to_vec()).chain(arguments).chain(set(last.to_vec())).collect()
    }
}

/// The outcome of the overlays on one prompt.
#[derive(Debug)]
pub enum Overlaid {
    /// No overlay matches.
    Unchanged,
    Changed(Prompt),
    /// The prompt is removed by the overlay with this number.
    Dropped(usize),
}

/// Applies the overlays of an upstream, in their order, to one of its prompts.
pub fn apply<'a>(overlays: impl IntoIterator<Item = &'a Overlay>, prompt: &Prompt) -> Overlaid {
    let mut composed = Composed::default();
    for overlay in overlays {
        let Some(captures) = overlay.prompt.captures(&prompt.name) else { continue };
        match &overlay.action {
            OverlayAction::Drop => return Overlaid::Dropped(overlay.number),
            OverlayAction::Change(change) => composed.add(overlay.number, change, &captures),
        }
    }
    if composed.is_empty() {
        Overlaid::Unchanged
    } else {
        Overlaid::Changed(composed.applied_to(prompt))
    }
}

/// Returns the raw name of the prompt that an upstream's overlays list under `listed_name`, as far
/// as the overlays determine it without the list of the upstream.
pub fn raw_name(overlays: &[Overlay], upstream: &UpstreamId, listed_name: &str) -> String {
    let own = || overlays.iter().filter(|overlay| overlay.upstream == *upstream);
    let candidates = own().filter_map(|overlay| match &overlay.action {
        OverlayAction::Change(change) => {
            change.rename.as_ref()?.reversed(&overlay.prompt, listed_name)
        }
        OverlayAction::Drop => None,
    });
    let is_listed_so = |raw_name: &String| match apply(own(), &Prompt::named(raw_name)) {
        Overlaid::Changed(prompt) => prompt.listed_name() == listed_name,
        Overlaid::Unchanged | Overlaid::Dropped(_) => false,
    };
    let mut renamed = candidates.filter(is_listed_so);
    renamed.next().unwrap_or_else(|| listed_name.to_owned())
}

/// Returns the key of an overlay in the configuration.
pub fn key(number: usize) -> String {
    format!("overlays.{number}")
}

#[cfg(test)]
mod tests;
