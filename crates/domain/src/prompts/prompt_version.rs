//! Versions of a library prompt: the version and label behind a listed prompt.

use std::sync::Arc;

use crate::json::Json;
use crate::json::object::ObjectWriter;
use crate::name::version_name;
use crate::prompts::rollout::Rollout;

/// The version behind a library prompt: of `NAME` itself, or of `NAME@LABEL` or `NAME@3`, which are
/// listed as separate prompts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PromptVersion {
    /// The raw name `NAME`.
    pub of: Arc<str>,
    /// The version, which clients get as `_meta.version`.
    pub version: Arc<str>,
    /// The label that chose the version; clients get it as `_meta.label`.
    pub label: Option<Arc<str>>,
    /// The rollout that a person has started for `NAME`; no member of the definition.
    pub rollout: Option<Arc<Rollout>>,
}

impl PromptVersion {
    /// Creates a version without a rollout.
    pub fn new(of: Arc<str>, version: Arc<str>, label: Option<Arc<str>>) -> Self {
        Self { of, version, label, rollout: None }
    }

    /// Whether a prompt with this raw name is one of the versions, not `NAME` itself.
    pub fn is_apart(&self, raw_name: &str) -> bool {
        *self.of != *raw_name
    }

    /// Returns the raw name under which people decide on the version: `NAME@3`, whichever name
    /// serves it.
    pub fn content_name(&self) -> String {
        version_name(&self.of, &self.version)
    }

    /// Returns the same prompt's version and label as another definition of it states them.
    pub(crate) fn as_in(&self, definition: Json<'_>) -> Self {
        let meta = definition.get("_meta");
        let member = |key: &str| {
            let text = meta.and_then(|meta| meta.get(key)).and_then(Json::as_str);
            text.map(|text| Arc::from(&*text))
        };
        let version = member("version").unwrap_or_else(|| "".into());
        Self { version, label: member("label"), ..self.clone() }
    }
}

/// Writes the members of a definition except its name, with another label in `_meta`.
pub fn write_with_label(definition: Json<'_>, label: Option<&str>, out: &mut ObjectWriter<'_>) {
    for (key, value) in definition.members().filter(|(key, _)| !key.is("name")) {
        if !key.is("_meta") {
            out.member(key, value);
            continue;
        }
        out.object("_meta", |meta| {
            for (key, value) in value.members().filter(|(key, _)| !key.is("label")) {
                meta.member(key, value);
            }
            if let Some(label) = label {
                meta.text("label", label);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approved_form_says_its_own_version() {
        let text = |text: &str| Arc::from(text);
        let offered = PromptVersion::new(text("a"), text("4"), Some(text("production")));
        let before = r#"{"name":"a","_meta":{"version":"3"}}"#;
        let before = offered.as_in(Json::accepted(before));
        assert_eq!(before, PromptVersion::new(text("a"), text("3"), None));
        assert!(offered.is_apart("a@4") && !offered.is_apart("a"));
    }
}
