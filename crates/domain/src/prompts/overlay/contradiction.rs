//! Contradictions between overlays, found without the lists of upstreams.

use super::{ArgumentChange, Overlay, OverlayAction};

/// Two overlays, one of which would undo the other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Contradiction {
    /// The key of the later overlay, such as `title` or `arguments.language.preset`.
    pub key: String,
    /// The remedy, as the end of a sentence.
    pub why: String,
}

impl Overlay {
    /// Returns the contradictions of this overlay with an earlier one.
    ///
    /// Overlays with different patterns compose: the later overlay decides on a prompt that both
    /// match. With equal patterns, the earlier overlay would never have an effect. An argument
    /// cannot be both preset and offered to clients.
    pub fn contradictions(&self, earlier: &Self) -> Vec<Contradiction> {
        let mut found = Vec::new();
        if self.upstream != earlier.upstream || !self.prompt.overlaps(&earlier.prompt) {
            return found;
        }
        let has_one_pattern = self.prompt == earlier.prompt;
        let mut add = |key: String, why: &str| {
            let with = earlier.number;
            let why = format!("{why} (overlays.{with})");
            found.push(Contradiction { key, why });
        };
        let (OverlayAction::Change(ours), OverlayAction::Change(theirs)) =
            (&self.action, &earlier.action)
        else {
            if has_one_pattern {
                add(
                    String::new(),
                    "an earlier overlay has the same pattern, and one of both drops its prompts",
                );
            }
            return found;
        };
        let twice = "is set by an earlier overlay with the same pattern, too; remove one of them";
        if has_one_pattern {
            for (key, is_other) in [
                ("rename", is_other(&ours.rename, &theirs.rename)),
                ("title", is_other(&ours.title, &theirs.title)),
                ("description", is_other(&ours.description, &theirs.description)),
                ("icons", is_other(&ours.icons, &theirs.icons)),
            ] {
                if is_other {
                    add(key.to_owned(), twice);
                }
            }
        }
        for (name, ours) in &ours.arguments {
            let Some((_, theirs)) = theirs.arguments.iter().find(|(other, _)| other == name) else {
                continue;
            };
            let key = format!("arguments.{name}");
            if let Some(why) = ours.contradiction(theirs) {
                add(key, why);
            } else if has_one_pattern
                && (is_other(&ours.default, &theirs.default)
                    || is_other(&ours.preset, &theirs.preset)
                    || is_other(&ours.choices, &theirs.choices))
            {
                add(key, twice);
            }
        }
        found
    }
}

impl ArgumentChange {
    /// Returns why this change and another change of one argument exclude each other; `None` if
    /// they do not. `other` may be this change itself.
    pub fn contradiction(&self, other: &Self) -> Option<&'static str> {
        let is_for_clients = |change: &Self| {
            change.default.is_some() || change.choices.is_some() || change.is_required
        };
        let default = self.default.as_ref().or(other.default.as_ref());
        let choices = self.choices.as_ref().or(other.choices.as_ref());
        if (self.preset.is_some() || other.preset.is_some())
            && (is_for_clients(self) || is_for_clients(other))
        {
            Some(
                "a preset argument is not for clients: it can have no default and no choices, and cannot be required",
            )
        } else if default.is_some() && (self.is_required || other.is_required) {
            Some("a required argument needs no default; remove one of them")
        } else if let (Some(default), Some(choices)) = (default, choices)
            && !choices.contains(default)
        {
            Some("the default must be one of the choices")
        } else {
            None
        }
    }
}

/// Whether both options have a value, and the values differ.
fn is_other<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
    one.is_some() && other.is_some() && one != other
}
