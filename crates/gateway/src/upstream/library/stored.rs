//! Prompts of stores, in the form in which a library serves them.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::source::MessageRole;
use domain::json::Json;
use domain::json::canonical::canonical;
use domain::json::object::write_object;

/// One version of a prompt of a store.
#[derive(Debug)]
pub(crate) struct StoredPrompt {
    pub name: String,
    pub description: Option<String>,
    /// As the store names it. Clients get it as `_meta.version`.
    pub version: String,
    /// The name of the template language: the same text has another meaning in another one.
    pub format: &'static str,
    pub messages: Vec<StoredMessage>,
}

/// A message of a store's prompt.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct StoredMessage {
    pub role: MessageRole,
    /// The template as the store has it.
    pub template: String,
    /// The same, read.
    pub pieces: Vec<TemplatePiece>,
}

/// A part of a template of a store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum TemplatePiece {
    Text(String),
    /// The value of an argument, as it is.
    Argument(String),
}

impl StoredPrompt {
    /// Returns the source as canonical JSON (RFC 8785), on which people decide. The text in it is
    /// for them; `parts` makes it unambiguous, whatever headings a message contains.
    pub(super) fn object(&self) -> String {
        let (mut text, mut parts) = (String::new(), String::new());
        for StoredMessage { role, template, .. } in &self.messages {
            let (gap, comma) = if text.is_empty() { ("", "") } else { ("\n\n", ",") };
            let role = role.as_str();
            let _ = write!(text, "{gap}## {role}\n{template}");
            let _ = write!(parts, "{comma}[\"{role}\",{}]", template.len());
        }
        let mut object = String::with_capacity(text.len() + parts.len() + 128);
        write_object(&mut object, |object| {
            if let Some(description) = &self.description {
                object.text("description", description);
            }
            object.text("format", self.format).json("parts", &format!("[{parts}]"));
            object.text("source", &text);
        });
        canonical(Json::accepted(&object))
    }
}

/// Returns the arguments of messages in the order of their first use.
pub(super) fn arguments_of(messages: &[StoredMessage]) -> impl Iterator<Item = &str> {
    let mut seen = HashSet::new();
    let pieces = messages.iter().flat_map(|message| &message.pieces);
    pieces.filter_map(move |piece| match piece {
        TemplatePiece::Argument(name) => seen.insert(name.as_str()).then_some(name.as_str()),
        TemplatePiece::Text(_) => None,
    })
}
