//! The definition of a prompt as clients see it, with the origin of each part.

use catalog::listed_item::ListedItem;
use config::Config;
use domain::json::Json;
use domain::prompts::overlay;

/// A definition, read for people.
#[derive(Clone, Debug, Default)]
pub(super) struct Definition {
    pub title: String,
    pub description: String,
    pub arguments: Vec<ArgumentRow>,
    pub tags: Vec<String>,
    /// The parts that overlays have changed, with the key of the overlay.
    changed: Vec<(String, String)>,
}

/// An argument of a prompt.
#[derive(Clone, Debug)]
pub(super) struct ArgumentRow {
    pub name: String,
    pub title: String,
    pub description: String,
    pub required: bool,
    /// The values that the gateway accepts; empty if it accepts any.
    pub choices: Vec<String>,
}

impl Definition {
    /// Reads a listed prompt.
    pub(super) fn read(prompt: Json<'_>) -> Self {
        let meta = prompt.get("_meta");
        let choices = meta.and_then(|meta| meta.get("choices"));
        let argument = |argument: Json<'_>| {
            let name = text(argument, "name");
            let choices = choices.and_then(|choices| choices.get(&name));
            ArgumentRow {
                title: text(argument, "title"),
                description: text(argument, "description"),
                required: argument.get("required").and_then(Json::as_bool) == Some(true),
                choices: choices.map(texts).unwrap_or_default(),
                name,
            }
        };
        let arguments = prompt.get("arguments").into_iter().flat_map(Json::elements);
        Self {
            title: text(prompt, "title"),
            description: text(prompt, "description"),
            arguments: arguments.map(argument).collect(),
            tags: meta.and_then(|meta| meta.get("tags")).map(texts).unwrap_or_default(),
            changed: Vec::new(),
        }
    }

    /// Adds the parts that overlays have changed.
    pub(super) fn with_origins(mut self, config: &Config, item: &ListedItem) -> Self {
        let numbers = item.overlay.iter().flat_map(|overlay| overlay.numbers.iter().copied());
        let own = |number: usize| config.overlays.iter().find(|overlay| overlay.number == number);
        self.changed = numbers
            .flat_map(|number| {
                let keys = own(number).map(|overlay| overlay.action.changed_keys());
                keys.unwrap_or_default().into_iter().map(move |key| (key, overlay::key(number)))
            })
            .collect();
        self
    }

    /// The names of the arguments, whose places in a text are marked.
    pub(super) fn places(&self) -> Vec<String> {
        self.arguments.iter().map(|argument| argument.name.clone()).collect()
    }

    /// The key of the overlay that has set a part last; `None` if the part is its upstream's.
    pub(super) fn overlay(&self, part: &str) -> Option<&str> {
        let mut changed = self.changed.iter().rev();
        changed.find(|(key, _)| key == part).map(|(_, overlay)| overlay.as_str())
    }

    /// The key of the overlay that has set a part of an argument last.
    pub(super) fn argument_overlay(&self, argument: &str) -> Option<&str> {
        let mut changed = self.changed.iter().rev();
        let found = changed.find(|(key, _)| is_of_argument(key, argument));
        found.map(|(_, overlay)| overlay.as_str())
    }

    /// The changed parts that the page does not show elsewhere, such as preset arguments.
    pub(super) fn other_changes(&self) -> impl Iterator<Item = &(String, String)> {
        self.changed.iter().filter(|(key, _)| {
            let is_shown = matches!(key.as_str(), "title" | "description" | "tags");
            let mut arguments = self.arguments.iter();
            !is_shown && !arguments.any(|argument| is_of_argument(key, &argument.name))
        })
    }
}

/// Whether a changed part is one of an argument: `arguments.NAME.PART`.
fn is_of_argument(key: &str, argument: &str) -> bool {
    let part = key.strip_prefix("arguments.").and_then(|key| key.strip_prefix(argument));
    part.is_some_and(|part| part.starts_with('.'))
}

/// A member that is a string; `""` without one.
pub(super) fn text(json: Json<'_>, name: &str) -> String {
    json.get(name).and_then(Json::as_str).unwrap_or_default().into_owned()
}

fn texts(json: Json<'_>) -> Vec<String> {
    json.elements().filter_map(Json::as_str).map(|text| text.into_owned()).collect()
}

/// Characters of a description that the two lines of a row can show.
const CLIPPED: usize = 240;

/// Returns a description for a row of a list.
pub(super) fn clipped(text: &str) -> String {
    match text.char_indices().nth(CLIPPED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_description_is_cut_between_characters() {
        let long = "é".repeat(CLIPPED + 1);
        assert_eq!(clipped(&long), "é".repeat(CLIPPED) + "…");
        assert_eq!(clipped("short"), "short");
    }
}
