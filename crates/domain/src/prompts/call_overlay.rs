//! Changes by overlays to the calls of one prompt: to its arguments on their way to the upstream,
//! and to its messages on their way back.

use std::fmt;

use crate::fault::RequestFault;
use crate::json::Json;
use crate::json::document::Document;
use crate::json::object::{ObjectWriter, write_object};
use crate::redaction::Secrets;

/// The overlays of one prompt, prepared for its calls.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CallOverlay {
    /// The overlays that apply, by their numbers in the file.
    pub numbers: Vec<usize>,
    presets: Vec<PresetArgument>,
    /// The values of the preset arguments, and the secrets among them.
    preset_values: Secrets,
    secrets: Secrets,
    arguments: Vec<ChangedArgument>,
    before: Vec<AddedMessage>,
    after: Vec<AddedMessage>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct PresetArgument {
    name: String,
    value: Preset,
    /// Whether the upstream declares the argument. An undeclared argument is not sent, and clients
    /// cannot set it either.
    is_declared: bool,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct ChangedArgument {
    name: String,
    default: Option<String>,
    choices: Option<Vec<String>>,
}

/// The value of an argument that clients must not see. `Debug` redacts it.
#[derive(Clone, Eq, PartialEq)]
pub struct Preset {
    pub value: String,
    /// Whether the value is from outside the configuration file, and must not be written to another
    /// file.
    pub is_secret: bool,
}

impl fmt::Debug for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Preset(redacted)")
    }
}

/// A text message that an overlay adds, as JSON text of a `PromptMessage`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AddedMessage(String);

impl AddedMessage {
    /// Creates a message. `role` is `user` or `assistant` (MCP 2025-11-25, prompts).
    pub fn new(role: &str, text: &str) -> Self {
        let mut message = String::new();
        write_object(&mut message, |message| {
            message.text("role", role).object("content", |content| {
                content.text("type", "text").text("text", text);
            });
        });
        Self(message)
    }

    /// Returns the message as JSON text.
    pub fn json(&self) -> &str {
        &self.0
    }
}

/// Whether arguments are compared with the effective definition (`validate_arguments`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Validation {
    Full,
    /// Only preset arguments are refused.
    PresetsOnly,
}

impl CallOverlay {
    /// Creates overlays that add these messages and, so far, change no argument.
    pub(crate) fn new(
        numbers: Vec<usize>,
        before: Vec<AddedMessage>,
        after: Vec<AddedMessage>,
    ) -> Self {
        Self { numbers, before, after, ..Self::default() }
    }

    pub(crate) fn add_preset(&mut self, name: &str, value: &Preset, is_declared: bool) {
        self.preset_values.add(&value.value);
        if value.is_secret {
            self.secrets.add(&value.value);
        }
        let name = name.to_owned();
        let value = value.clone();
        self.presets.push(PresetArgument { name, value, is_declared });
    }

    pub(crate) fn add_argument(
        &mut self,
        name: &str,
        default: Option<&str>,
        choices: Option<&[String]>,
    ) {
        let default = default.map(str::to_owned);
        let choices = choices.map(<[String]>::to_vec);
        self.arguments.push(ChangedArgument { name: name.to_owned(), default, choices });
    }

    /// Returns the arguments for the upstream: the client's arguments, the defaults of missing
    /// arguments, and the preset arguments. `None` if the client's arguments stay unchanged.
    ///
    /// # Errors
    /// [`RequestFault::PresetArgument`] if the client gives a preset argument,
    /// [`RequestFault::NoChoice`] if a value is not among the choices.
    pub fn arguments(
        &self,
        given: Option<Json<'_>>,
        validation: Validation,
    ) -> Result<Option<Document>, RequestFault> {
        self.refuse_presets(given)?;
        let mut is_given = vec![false; self.arguments.len()];
        for (name, value) in given.into_iter().flat_map(Json::members) {
            let Some(at) = self.arguments.iter().position(|changed| name.is(&changed.name)) else {
                continue;
            };
            is_given[at] = true;
            let changed = &self.arguments[at];
            if let Some(choices) = &changed.choices
                && validation == Validation::Full
                && !choices.iter().any(|choice| value.is(choice))
            {
                let argument = changed.name.clone();
                let choices = choices.join(", ");
                return Err(RequestFault::NoChoice { argument, choices });
            }
        }
        let left_out = self.arguments.iter().zip(is_given).filter(|(_, is_given)| !is_given);
        let defaults: Vec<(&str, &str)> = left_out
            .filter_map(|(changed, _)| Some((changed.name.as_str(), changed.default.as_deref()?)))
            .collect();
        if defaults.is_empty() && self.declared_presets().next().is_none() {
            return Ok(None);
        }
        Ok(Some(with_members(given, |out| {
            for (name, value) in defaults.into_iter().chain(self.declared_presets()) {
                out.text(name, value);
            }
        })))
    }

    /// Returns the `context` of a completion for the upstream, with the preset arguments; `None` if
    /// the client's context stays unchanged.
    ///
    /// # Errors
    /// [`RequestFault::PresetArgument`] if the completion is for a preset argument, or the context
    /// has one.
    pub fn context(
        &self,
        argument: &str,
        context: Option<Json<'_>>,
    ) -> Result<Option<Document>, RequestFault> {
        if let Some(preset) = self.presets.iter().find(|preset| preset.name == argument) {
            return Err(preset.fault());
        }
        let arguments = context.and_then(|context| context.get("arguments"));
        self.refuse_presets(arguments)?;
        if self.declared_presets().next().is_none() {
            return Ok(None);
        }
        let arguments = with_members(arguments, |out| {
            for (name, value) in self.declared_presets() {
                out.text(name, value);
            }
        });
        let others = context.into_iter().flat_map(Json::members);
        let mut text = String::new();
        write_object(&mut text, |out| {
            for (key, value) in others.filter(|(key, _)| !key.is("arguments")) {
                out.member(key, value);
            }
            out.json("arguments", arguments.json().text());
        });
        Ok(Some(Document::copy_of(Json::accepted(&text))))
    }

    /// Returns the choices of an argument; `None` if it takes any value.
    pub fn choices(&self, argument: &str) -> Option<&[String]> {
        let mut changed = self.arguments.iter();
        changed.find(|changed| changed.name == argument)?.choices.as_deref()
    }

    /// Returns the choices of an argument that start with `typed`; `None` if the upstream completes
    /// the argument.
    pub fn completed(&self, argument: &str, typed: &str) -> Option<Vec<&str>> {
        let changed = self.arguments.iter().find(|changed| changed.name == argument)?;
        let choices = changed.choices.as_ref()?.iter().map(String::as_str);
        Some(choices.filter(|choice| choice.starts_with(typed)).collect())
    }

    /// Returns the values of the preset arguments, which no text of a fault may hold.
    pub fn preset_values(&self) -> &Secrets {
        &self.preset_values
    }

    /// Returns the preset values that are secrets.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Whether a value of an argument is its default.
    pub fn is_default(&self, name: Json<'_>, value: Json<'_>) -> bool {
        let changed = self.arguments.iter().find(|changed| name.is(&changed.name));
        changed.and_then(|changed| changed.default.as_ref()).is_some_and(|text| value.is(text))
    }

    /// Whether an argument is preset.
    pub fn is_preset(&self, name: &str) -> bool {
        self.presets.iter().any(|preset| preset.name == name)
    }

    /// Whether the upstream gets arguments that the client does not give.
    pub fn adds_arguments(&self) -> bool {
        let mut changed = self.arguments.iter();
        changed.any(|changed| changed.default.is_some()) || self.declared_presets().next().is_some()
    }

    /// Returns the messages before those of the upstream.
    pub fn before(&self) -> &[AddedMessage] {
        &self.before
    }

    /// Returns the messages after those of the upstream.
    pub fn after(&self) -> &[AddedMessage] {
        &self.after
    }

    fn declared_presets(&self) -> impl Iterator<Item = (&str, &str)> {
        let declared = self.presets.iter().filter(|preset| preset.is_declared);
        declared.map(|preset| (preset.name.as_str(), preset.value.value.as_str()))
    }

    fn refuse_presets(&self, given: Option<Json<'_>>) -> Result<(), RequestFault> {
        let names = given.into_iter().flat_map(Json::members).map(|(name, _)| name);
        for name in names {
            if let Some(preset) = self.presets.iter().find(|preset| name.is(&preset.name)) {
                return Err(preset.fault());
            }
        }
        Ok(())
    }
}

impl PresetArgument {
    fn fault(&self) -> RequestFault {
        RequestFault::PresetArgument { argument: self.name.clone() }
    }
}

/// Returns an object of strings with further members, which it must not have yet.
fn with_members(object: Option<Json<'_>>, write: impl FnOnce(&mut ObjectWriter<'_>)) -> Document {
    let mut text = String::new();
    write_object(&mut text, |out| {
        for (key, value) in object.into_iter().flat_map(Json::members) {
            out.member(key, value);
        }
        write(out);
    });
    Document::copy_of(Json::accepted(&text))
}

/// Returns a list of messages with those of the overlays around it: an iterator over JSON values.
pub fn with_messages<'a>(
    overlay: Option<&'a CallOverlay>,
    messages: Json<'a>,
) -> impl Iterator<Item = Json<'a>> {
    let added = |messages: Option<&'a [AddedMessage]>| {
        messages.unwrap_or_default().iter().map(|message| Json::accepted(message.json()))
    };
    let before = added(overlay.map(CallOverlay::before));
    before.chain(messages.elements()).chain(added(overlay.map(CallOverlay::after)))
}
