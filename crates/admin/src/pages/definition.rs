//! The definition of a prompt as clients see it, with the origin of each part.

use config::Config;
use domain::json::Json;
use domain::overlay;
use gateway::router::owner::Owner;

/// A definition, read for people.
#[derive(Clone, Debug, Default)]
pub(super) struct Definition {
    pub title: String,
    pub description: String,
    pub arguments: Vec<ArgumentRow>,
    pub tags: Vec<String>,
    /// Where each part comes from: the upstream, the lock file, or an overlay.
    pub origins: Vec<PartOrigin>,
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

/// The origin of one part of a definition.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PartOrigin {
    pub part: String,
    pub from: String,
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
            origins: Vec::new(),
        }
    }

    /// Adds the origin of each part.
    pub(super) fn with_origins(mut self, config: &Config, owner: &Owner) -> Self {
        let numbers = owner.overlay.iter().flat_map(|overlay| overlay.numbers.iter().copied());
        let numbers: Vec<usize> = numbers.collect();
        let own = |number: usize| config.overlays.iter().find(|overlay| overlay.number == number);
        let changed: Vec<(String, String)> = numbers
            .into_iter()
            .flat_map(|number| {
                let keys = own(number).map(|overlay| overlay.action.changed_keys());
                keys.unwrap_or_default().into_iter().map(move |key| (key, overlay::key(number)))
            })
            .collect();
        let upstream = format!("upstream {}", owner.upstream);
        let origin = |part: &str| {
            let key = if part == "name" { "rename" } else { part };
            let last = changed.iter().rev().find(|(changed, _)| changed == key);
            last.map_or_else(|| upstream.clone(), |(_, overlay)| overlay.clone())
        };
        let mut parts = vec!["name".to_owned()];
        parts.extend((!self.title.is_empty()).then(|| "title".to_owned()));
        parts.extend((!self.description.is_empty()).then(|| "description".to_owned()));
        parts.extend((!self.tags.is_empty()).then(|| "tags".to_owned()));
        let arguments =
            self.arguments.iter().map(|argument| format!("arguments.{}", argument.name));
        parts.extend(arguments);
        let is_part = |key: &String| !parts.contains(key) && key != "rename";
        let more: Vec<String> =
            changed.iter().map(|(key, _)| key.clone()).filter(is_part).collect();
        parts.extend(more);
        parts.dedup();
        self.origins =
            parts.into_iter().map(|part| PartOrigin { from: origin(&part), part }).collect();
        self
    }
}

/// A member that is a string; `""` without one.
pub(super) fn text(json: Json<'_>, name: &str) -> String {
    json.get(name).and_then(Json::as_str).unwrap_or_default().into_owned()
}

fn texts(json: Json<'_>) -> Vec<String> {
    json.elements().filter_map(Json::as_str).map(|text| text.into_owned()).collect()
}
