//! Prompts of prompt stores, in the form in which a library serves them.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::source::MessageRole;
use domain::json::Json;
use domain::json::canonical::canonical;
use domain::json::object::write_object;
use domain::prompts::prompt_version::PromptVersion;

/// One version of a prompt of a prompt store.
#[derive(Debug)]
pub struct StoredPrompt {
    pub name: String,
    /// The name of the prompt without a version.
    pub of: String,
    /// The label that chose the version. Clients get it as `_meta.label`.
    pub label: Option<String>,
    /// The configuration of the prompt: a JSON object for clients.
    pub config: Option<String>,
    pub description: Option<String>,
    /// The version in the words of the store. Clients get it as `_meta.version`.
    pub version: String,
    /// The name of the template language: the same text has another meaning in another language.
    pub format: &'static str,
    pub messages: Vec<StoredMessage>,
}

/// A message of a prompt store's prompt.
#[derive(Debug, Eq, PartialEq)]
pub struct StoredMessage {
    pub role: MessageRole,
    /// The original template of the store.
    pub template: String,
    /// The parsed template.
    pub pieces: Vec<TemplatePiece>,
}

/// A part of a template of a prompt store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TemplatePiece {
    Text(String),
    /// The unchanged value of an argument.
    Argument(String),
}

impl StoredPrompt {
    /// Returns the version for the prompt list.
    pub(super) fn mark(&self) -> PromptVersion {
        let of = self.of.as_str().into();
        let version = self.version.as_str().into();
        PromptVersion::new(of, version, self.label.as_deref().map(Into::into))
    }

    /// Returns the source as canonical JSON (RFC 8785), on which people decide. Its text is for
    /// readers; `parts` makes the source unambiguous, whatever headings a message contains.
    pub(super) fn object(&self) -> String {
        let mut text = String::new();
        let mut parts = String::new();
        for StoredMessage { role, template, .. } in &self.messages {
            let (gap, comma) = if text.is_empty() { ("", "") } else { ("\n\n", ",") };
            let role = role.as_str();
            let _ = write!(text, "{gap}## {role}\n{template}");
            let _ = write!(parts, "{comma}[\"{role}\",{}]", template.len());
        }
        let mut object = String::with_capacity(text.len() + parts.len() + 128);
        write_object(&mut object, |object| {
            if let Some(config) = &self.config {
                object.json("config", config);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LibrarySnapshot;
    use crate::prompt_list::PromptList;
    use config::Settings;
    use domain::fault::UpstreamFaultKind as Kind;

    fn message(role: MessageRole, template: &str) -> StoredMessage {
        let pieces = vec![TemplatePiece::Text(template.to_owned())];
        StoredMessage { role, template: template.to_owned(), pieces }
    }

    fn prompt(name: &str, messages: Vec<StoredMessage>) -> StoredPrompt {
        let version = "1".to_owned();
        let format = "braces";
        let (name, of) = (name.to_owned(), name.to_owned());
        let label = None;
        let config = None;
        let description = None;
        StoredPrompt { name, of, label, config, description, version, format, messages }
    }

    fn snapshot(prompts: Vec<StoredPrompt>) -> LibrarySnapshot {
        snapshot_after(prompts, None)
    }

    fn snapshot_after(
        prompts: Vec<StoredPrompt>,
        before: Option<&LibrarySnapshot>,
    ) -> LibrarySnapshot {
        let listed = PromptList { pages: 1, ..PromptList::default() };
        let settings = Settings::default();
        LibrarySnapshot::of_store("mlflow", prompts.into_iter(), listed, &settings, before)
    }

    #[test]
    fn no_text_of_a_store_looks_like_other_messages_to_an_approval() {
        let user = |text| message(MessageRole::User, text);
        let two = prompt("a", vec![user("Hi"), message(MessageRole::Assistant, "Yes")]);
        let one = prompt("a", vec![user("Hi\n\n## assistant\nYes")]);
        let text = |object: &str| Json::accepted(object).get("source").unwrap().text().to_owned();
        let two_read = two.object();
        let one_read = one.object();
        assert_eq!(text(&two_read), text(&one_read), "people read the same");
        assert_ne!(two_read, one_read);
        let described = StoredPrompt { description: Some("d".to_owned()), ..prompt("a", vec![]) };
        assert_ne!(described.object(), prompt("a", vec![]).object());
        let format = StoredPrompt { format: "f-string", ..prompt("a", vec![]) };
        assert_ne!(format.object(), prompt("a", vec![]).object());
    }

    #[test]
    fn a_configuration_is_approved_with_the_text_and_is_in_the_result_only() {
        let with = |config: Option<&str>| StoredPrompt {
            config: config.map(str::to_owned),
            ..prompt("a", vec![message(MessageRole::User, "Hi")])
        };
        let configured = with(Some(r#"{"model_config":{"temperature":0}}"#));
        assert_ne!(configured.object(), with(None).object());
        let snapshot = snapshot(vec![configured]);
        let result = snapshot.get("a", None, None).unwrap();
        let config = result.json().get("_meta").unwrap().get("promptgate/config").unwrap();
        assert_eq!(config.text(), r#"{"model_config":{"temperature":0}}"#);
        assert!(!snapshot.listed.prompts[0].canonical().contains("temperature"));
    }

    #[test]
    fn only_the_approved_source_is_served_and_a_missing_argument_is_an_error() {
        let argument = TemplatePiece::Argument("who".to_owned());
        let pieces = vec![TemplatePiece::Text("Hi ".to_owned()), argument];
        let template = "Hi {{ who }}".to_owned();
        let greeting = StoredMessage { role: MessageRole::User, template, pieces };
        let snapshot = snapshot(vec![prompt("greet", vec![greeting])]);
        let digest = snapshot.listed.prompts[0].source.as_ref().unwrap().digest.clone();
        let arguments = r#"{"who":"Ada"}"#;
        let get = |approved| snapshot.get("greet", Some(Json::accepted(arguments)), approved);
        assert!(get(Some(&*digest)).unwrap().json().text().contains("Hi Ada"));
        assert!(matches!(get(Some("sha256:0")), Err(Kind::NotApproved { .. })));
        assert!(matches!(snapshot.get("greet", None, None), Err(Kind::Protocol(_))));
        assert!(matches!(snapshot.get("gone", None, None), Err(Kind::Error { code: -32602, .. })));
    }

    #[test]
    fn a_version_of_before_is_served_to_those_who_approved_it() {
        let of = |version: &str| {
            let mut prompt = prompt("refund", vec![message(MessageRole::User, version)]);
            prompt.version = version.to_owned();
            prompt
        };
        let four = snapshot(vec![of("4")]);
        let digest = four.listed.prompts[0].source.as_ref().unwrap().digest.clone();
        let mut last = snapshot_after(vec![of("5")], Some(&four));
        let get = |snapshot: &LibrarySnapshot| {
            let result = snapshot.get("refund", None, Some(&digest))?;
            Ok::<_, Kind>(result.json().text().to_owned())
        };
        assert!(get(&last).unwrap().contains(r#""text":"4""#));
        for version in 6..=36 {
            last = snapshot_after(vec![of(&version.to_string())], Some(&last));
        }
        assert!(get(&last).unwrap().contains(r#""text":"4""#), "32 texts are kept");
        last = snapshot_after(vec![of("37")], Some(&last));
        assert!(matches!(get(&last), Err(Kind::NotApproved { .. })), "and no more");
        let gone = snapshot_after(Vec::new(), Some(&four));
        assert!(matches!(get(&gone), Err(Kind::Error { .. })), "what is removed is removed");
    }

    #[test]
    fn ten_thousand_prompts_are_read_and_one_with_too_many_arguments_is_left_out() {
        let argument = |n: usize| TemplatePiece::Argument(format!("a{n}"));
        let mut many = message(MessageRole::User, "x");
        many.pieces = (0..300).map(argument).collect();
        let user = |text: &str| vec![message(MessageRole::User, text)];
        let prompts = (0..10_000).map(|n| prompt(&format!("p{n}"), user("text")));
        let read = snapshot(prompts.chain([prompt("many", vec![many])]).collect());
        assert_eq!(read.listed.prompts.len(), 10_000);
        assert_eq!(read.listed.malformed.len(), 1);
        assert_eq!(read.listed.malformed[0].name, "many");
        assert!(!read.is_watched());
    }
}
