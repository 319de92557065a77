//! The overlays that match one prompt, composed in their order: the last overlay that sets a member
//! decides, and tags and messages add up.

use std::borrow::Cow;
use std::sync::Arc;

use super::{ArgumentChange, Change};
use crate::json::object::{ObjectWriter, write_array, write_object};
use crate::json::{Json, write_str};
use crate::prompts::call_overlay::{AddedMessage, CallOverlay};
use crate::prompts::prompt::{Argument, Prompt};

/// All changes of one prompt.
#[derive(Default)]
pub(super) struct Composed<'a> {
    numbers: Vec<usize>,
    name: Option<String>,
    title: Option<&'a str>,
    description: Option<&'a str>,
    icons: Option<&'a str>,
    tags: Vec<&'a str>,
    arguments: Vec<(&'a str, ArgumentChange)>,
    before: Vec<&'a AddedMessage>,
    after: Vec<&'a AddedMessage>,
}

impl<'a> Composed<'a> {
    /// Adds the changes of the next overlay; `captures` are the texts that the stars of its pattern
    /// matched.
    pub(super) fn add(&mut self, number: usize, change: &'a Change, captures: &[&str]) {
        self.numbers.push(number);
        if let Some(rename) = &change.rename {
            self.name = Some(rename.name(captures));
        }
        self.title = change.title.as_deref().or(self.title);
        self.description = change.description.as_deref().or(self.description);
        self.icons = change.icons.as_deref().or(self.icons);
        for tag in &change.tags {
            if !self.tags.contains(&tag.as_str()) {
                self.tags.push(tag);
            }
        }
        for (name, change) in &change.arguments {
            match self.arguments.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => known.add(change),
                None => self.arguments.push((name, change.clone())),
            }
        }
        self.before.extend(&change.before);
        self.after.extend(&change.after);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Returns the effective definition of a prompt.
    pub(super) fn applied_to(self, prompt: &Prompt) -> Prompt {
        let calls = Arc::new(self.calls(&prompt.arguments));
        prompt.overlaid(self.name.clone(), calls, |definition, out| self.write(definition, out))
    }

    fn calls(&self, declared: &[Argument]) -> CallOverlay {
        let is_declared = |name: &str| declared.iter().any(|argument| argument.name == name);
        let added = |messages: &[&AddedMessage]| messages.iter().copied().cloned().collect();
        let mut calls =
            CallOverlay::new(self.numbers.clone(), added(&self.before), added(&self.after));
        for (name, change) in &self.arguments {
            if let Some(preset) = &change.preset {
                calls.add_preset(name, preset, is_declared(name));
            } else if is_declared(name) {
                calls.add_argument(name, change.default.as_deref(), change.choices.as_deref());
            }
        }
        calls
    }

    /// Writes the members of the effective definition.
    fn write(&self, definition: Json<'_>, out: &mut ObjectWriter<'_>) {
        if let Some(title) = self.title {
            out.text("title", title);
        }
        if let Some(description) = self.description {
            out.text("description", description);
        }
        if let Some(icons) = self.icons {
            out.json("icons", icons);
        }
        for (key, value) in definition.members() {
            match key.as_str().as_deref() {
                Some("title") if self.title.is_some() => {}
                Some("description") if self.description.is_some() => {}
                Some("icons") if self.icons.is_some() => {}
                Some("arguments") => {
                    out.written("arguments", |out| self.write_arguments(value, out));
                }
                Some("name" | "_meta") => {}
                _ => {
                    out.member(key, value);
                }
            }
        }
        let meta = definition.get("_meta");
        out.object_unless_empty("_meta", |out| self.write_meta(meta, definition, out));
    }

    fn write_arguments(&self, arguments: Json<'_>, out: &mut String) {
        let listed = arguments.elements().filter(|argument| {
            let change = self.change(*argument);
            change.is_none_or(|change| change.preset.is_none())
        });
        write_array(out, listed, |argument, out| match self.change(argument) {
            Some(change) if change.is_required || change.default.is_some() => {
                write_object(out, |out| {
                    for (key, value) in argument.members().filter(|(key, _)| !key.is("required")) {
                        out.member(key, value);
                    }
                    if change.is_required {
                        out.display("required", true);
                    }
                });
            }
            _ => out.push_str(argument.text()),
        });
    }

    /// Returns the change of an argument of the definition.
    fn change(&self, argument: Json<'_>) -> Option<&ArgumentChange> {
        let name = argument.get("name").and_then(Json::as_str)?;
        self.arguments.iter().find(|(changed, _)| *changed == name).map(|(_, change)| change)
    }

    fn write_meta(&self, meta: Option<Json<'_>>, definition: Json<'_>, out: &mut ObjectWriter<'_>) {
        let members = meta.into_iter().flat_map(Json::members);
        let is_ours =
            |key: &Json<'_>| key.is("choices") || (key.is("tags") && !self.tags.is_empty());
        for (key, value) in members.filter(|(key, _)| !is_ours(key)) {
            out.member(key, value);
        }
        if !self.tags.is_empty() {
            out.array("tags", &self.tags, |tag, out| write_str(tag, out));
        }
        let theirs = meta.and_then(|meta| meta.get("choices"));
        out.object_unless_empty("choices", |out| {
            for (name, choices) in theirs.into_iter().flat_map(Json::members) {
                let name = name.as_str().unwrap_or_default();
                if !self.arguments.iter().any(|(changed, change)| {
                    *changed == name && (change.choices.is_some() || change.preset.is_some())
                }) {
                    out.json(&name, choices.text());
                }
            }
            let declared: Vec<Cow<'_, str>> = definition
                .get("arguments")
                .into_iter()
                .flat_map(Json::elements)
                .filter_map(|argument| argument.get("name").and_then(Json::as_str))
                .collect();
            for (name, change) in &self.arguments {
                let choices =
                    change.choices.as_ref().filter(|_| declared.iter().any(|d| d == name));
                if let Some(choices) = choices {
                    out.array(name, choices, |choice, out| write_str(choice, out));
                }
            }
        });
    }
}

impl ArgumentChange {
    /// Adds the change of a later overlay.
    fn add(&mut self, later: &Self) {
        let Self { default, preset, choices, is_required } = later.clone();
        self.default = default.or(self.default.take());
        self.preset = preset.or(self.preset.take());
        self.choices = choices.or(self.choices.take());
        self.is_required |= is_required;
    }
}
