//! Prompt definitions from an upstream's `prompts/list`. Each one is checked separately, so that a
//! malformed definition does not affect other prompts.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fault::excerpt;
use crate::json::canonical::canonical;
use crate::json::object::{ObjectWriter, append_members, write_array, write_members};
use crate::json::salvage::RefusedPrompt;
use crate::json::{Json, JsonError, JsonKind};
use crate::prompts::call_overlay::CallOverlay;
use crate::prompts::hidden_text;
use crate::prompts::prompt_shape::{array_of, conforming, is_argument, is_icon, is_string};
use crate::prompts::prompt_version::{PromptVersion, write_with_label};
use crate::protocol::meta;
use crate::protocol::via::Via;
use crate::uri::is_unsafe;

/// A checked prompt definition.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Prompt {
    /// The raw name, unchecked: [`Naming`](crate::name::Naming) decides whether it can be listed.
    pub name: String,
    /// The name that an overlay gives to the prompt.
    renamed: Option<Box<str>>,
    /// The listed title, without hidden text.
    pub title: Option<String>,
    pub arguments: Vec<Argument>,
    /// All members except `name` as JSON text, with a comma before each:
    /// `,"title":"…","arguments":[…]`.
    rest: String,
    /// Changes by overlays to calls of the prompt; `None` if no overlay matches it.
    pub overlay: Option<Arc<CallOverlay>>,
    /// The source of a library prompt.
    pub source: Option<Arc<PromptSource>>,
    /// The version behind a library prompt, if it has one.
    pub version: Option<Arc<PromptVersion>>,
    /// The gateways between this gateway and the prompt's server.
    pub via: Via,
    /// The result of a get without arguments as JSON text, if a library knows it in advance.
    pub result: Option<Arc<str>>,
}

/// The source of a library prompt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PromptSource {
    /// `sha256:…` of the file with the files that it embeds, or of the version in a prompt store.
    pub digest: Arc<str>,
    pub place: SourcePlace,
}

/// The place where the source of a library prompt is read again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SourcePlace {
    /// A file, in a folder of a library when it was read.
    File { folder: Arc<Path>, path: PathBuf },
    /// The source itself as canonical JSON (RFC 8785), from a prompt store.
    Kept(Arc<str>),
}

/// A declared argument of a prompt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Argument {
    pub name: String,
    pub required: bool,
}

/// The maximum number of arguments of one prompt. Users fill them in; even a hundred are more than
/// any form shows.
pub(crate) const MAX_ARGUMENTS: usize = 256;

/// The reason why a prompt is left out: the malformed member and its expected form.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PromptError {
    #[error("a prompt must be an object with a string `name`")]
    NoName,
    #[error("`{member}` of prompt {name:?} must be {expected}")]
    Shape { name: String, member: &'static str, expected: &'static str },
    #[error("prompt {name:?} declares the same argument twice")]
    ArgumentTwice { name: String },
    #[error("prompt {name:?} has more than {MAX_ARGUMENTS} arguments")]
    TooManyArguments { name: String },
    #[error("prompt {name:?} cannot be read: {error}")]
    Refused { name: String, error: JsonError },
}

impl PromptError {
    /// The reason for a prompt that the strict scan refuses.
    pub fn refused(prompt: &RefusedPrompt) -> Self {
        Self::Refused { name: excerpt(&prompt.name), error: prompt.error }
    }

    /// Whether the prompt can be read without its malformed members.
    fn is_of_member(&self) -> bool {
        matches!(self, Self::Shape { .. } | Self::ArgumentTwice { .. })
    }
}

impl Prompt {
    /// Reads one element of `prompts`. Clients reject a whole list for one member of a wrong type,
    /// so each member whose type any revision defines is checked; unknown members are passed on
    /// unchanged.
    ///
    /// # Errors
    /// If the name is missing, a member has a wrong type, an argument is declared twice or has
    /// hidden characters in its name, or there are more than [`MAX_ARGUMENTS`] arguments.
    pub fn read(value: Json<'_>) -> Result<Self, PromptError> {
        let name = value.get("name").and_then(Json::as_str);
        let name = name.ok_or(PromptError::NoName)?.into_owned();
        let mut rest = String::with_capacity(value.text().len());
        let mut title = None;
        let mut arguments = Vec::new();
        for (key, member) in value.members() {
            match key.as_str().as_deref() {
                _ if member.kind() == JsonKind::Null => continue,
                Some("name") => continue,
                Some("title") => {
                    shape(&name, "title", "a string", is_string(member))?;
                    title = member.as_str().map(|title| hidden_text::visible(&title));
                }
                Some("description") => shape(&name, "description", "a string", is_string(member))?,
                Some("icons") => {
                    let ok = array_of(member, is_icon);
                    shape(
                        &name,
                        "icons",
                        "an array of {src, mimeType?, sizes?: [string], theme?}",
                        ok,
                    )?;
                }
                Some("arguments") => arguments = read_arguments(&name, member)?,
                Some("_meta") => {
                    shape(&name, "_meta", "an object", member.is_object())?;
                }
                _ => {}
            }
            append_members(&mut rest, |rest| write_member(key, member, rest));
        }
        Ok(Self { title, arguments, rest, ..Self::named(&name) })
    }

    /// Reads one element of `prompts` as [`Prompt::read`] does, leaving out malformed members
    /// except the name. Also returns why the first of them was left out.
    ///
    /// # Errors
    /// As [`Prompt::read`], for mistakes that cannot be left out.
    pub fn read_repaired(value: Json<'_>) -> Result<(Self, Option<PromptError>), PromptError> {
        match Self::read(value) {
            Err(error) if error.is_of_member() => {
                let text = conforming(value);
                Self::read(Json::accepted(&text)).map(|prompt| (prompt, Some(error)))
            }
            read => read.map(|prompt| (prompt, None)),
        }
    }

    /// Returns a prompt that is known by its raw name only.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            renamed: None,
            title: None,
            arguments: Vec::new(),
            rest: String::new(),
            overlay: None,
            source: None,
            version: None,
            via: Via::NONE,
            result: None,
        }
    }

    /// Reads a definition that [`Prompt::canonical`] wrote, as another form of the prompt
    /// `offered`. `None` if the definition has no name.
    pub fn approved(definition: Json<'_>, offered: &Self) -> Option<Self> {
        let listed_name = definition.get("name").and_then(Json::as_str)?;
        let mut prompt = offered.with_members(|out| {
            for (key, value) in definition.members().filter(|(key, _)| !key.is("name")) {
                out.member(key, value);
            }
        });
        prompt.renamed = (listed_name != prompt.name).then(|| listed_name.into());
        prompt.version = offered.version.as_ref().map(|version| version.as_in(definition).into());
        Some(prompt)
    }

    /// Returns the form on which people decide if the prompt has versions: all names of a version
    /// (`NAME`, `NAME@LABEL`, `NAME@3`) have the form of `NAME@3`, without a label.
    pub fn content(&self) -> Option<Self> {
        let version = self.version.as_ref()?;
        let mut definition = String::new();
        self.write(&self.name, &mut definition);
        let mut content =
            self.with_members(|out| write_with_label(Json::accepted(&definition), None, out));
        content.name = version.content_name();
        content.renamed = None;
        let version = PromptVersion { label: None, rollout: None, ..(**version).clone() };
        content.version = Some(version.into());
        Some(content)
    }

    /// Reads a definition that [`Self::content`] has made, as the form that serves this version
    /// under the name and label of the prompt `named`.
    pub fn of_content(definition: Json<'_>, named: &Self) -> Option<Self> {
        let version = named.version.as_ref()?;
        let label = version.label.clone();
        let mut prompt =
            named.with_members(|out| write_with_label(definition, label.as_deref(), out));
        prompt.version = Some(PromptVersion { label, ..version.as_in(definition) }.into());
        Some(prompt)
    }

    /// Returns the effective definition: under the name that an overlay gives, with the members
    /// that `write` writes from the original definition. `write` must add no `name`.
    pub(crate) fn overlaid(
        &self,
        name: Option<String>,
        overlay: Arc<CallOverlay>,
        write: impl FnOnce(Json<'_>, &mut ObjectWriter<'_>),
    ) -> Self {
        let mut definition = String::new();
        self.write(&self.name, &mut definition);
        let mut prompt = self.with_members(|out| write(Json::accepted(&definition), out));
        prompt.renamed = name.map(String::into_boxed_str);
        prompt.overlay = Some(overlay);
        prompt
    }

    /// Returns the prompt with other members, which must have the types of a prompt's members.
    fn with_members(&self, write: impl FnOnce(&mut ObjectWriter<'_>)) -> Self {
        let mut rest = String::new();
        append_members(&mut rest, write);
        let text = format!("{{\"name\":\"\"{rest}}}");
        let definition = Json::accepted(&text);
        let title = definition.get("title").and_then(Json::as_str).map(|title| title.into_owned());
        let arguments = definition.get("arguments").into_iter().flat_map(Json::elements);
        let arguments = arguments.map(|argument| Argument {
            name: argument.get("name").and_then(Json::as_str).unwrap_or_default().into_owned(),
            required: argument.get("required").and_then(Json::as_bool) == Some(true),
        });
        let arguments = arguments.collect();
        Self { title, arguments, rest, ..self.clone() }
    }

    /// Whether the prompt is a version of another prompt (`NAME@LABEL`, `NAME@3`).
    pub fn is_version(&self) -> bool {
        self.version.as_ref().is_some_and(|version| version.is_apart(&self.name))
    }

    /// Returns the name from which public names are made: the raw name, or the name that an overlay
    /// gives to the prompt.
    pub fn listed_name(&self) -> &str {
        self.renamed.as_deref().unwrap_or(&self.name)
    }

    /// Appends the definition under its public name, as one element of `prompts`.
    pub fn write(&self, public_name: &str, out: &mut String) {
        out.push('{');
        write_members(out, |prompt| {
            prompt.text("name", public_name);
        });
        out.push_str(&self.rest);
        out.push('}');
    }

    /// Returns the canonical text (RFC 8785) of the effective definition, before prefixes: equal
    /// definitions have equal texts, however their upstream writes them.
    pub fn canonical(&self) -> String {
        let mut definition = String::with_capacity(self.rest.len() + 64);
        self.write(self.listed_name(), &mut definition);
        canonical(Json::accepted(&definition))
    }

    /// Bytes of the definition, approximately.
    pub fn size(&self) -> usize {
        self.name.len() + self.rest.len()
    }
}

fn read_arguments(prompt: &str, value: Json<'_>) -> Result<Vec<Argument>, PromptError> {
    let ok = array_of(value, is_argument);
    shape(prompt, "arguments", "an array of {name, title?, description?, required?}", ok)?;
    let mut arguments: Vec<Argument> = Vec::new();
    let mut names = HashSet::new();
    for element in value.elements() {
        let name = element.get("name").and_then(Json::as_str).unwrap_or_default();
        if hidden_text::count(&name) > 0 {
            let expected = "named without hidden characters";
            shape(prompt, "arguments", expected, false)?;
        }
        if !names.insert(name.clone()) {
            return Err(PromptError::ArgumentTwice { name: excerpt(prompt) });
        }
        if names.len() > MAX_ARGUMENTS {
            return Err(PromptError::TooManyArguments { name: excerpt(prompt) });
        }
        arguments.push(Argument {
            name: name.into_owned(),
            required: element.get("required").and_then(Json::as_bool) == Some(true),
        });
    }
    Ok(arguments)
}

/// Copies a member in its listed form. Text for the user is copied without hidden characters, so it
/// has neither escape sequences for terminals nor text that only a model sees.
fn write_member(key: Json<'_>, value: Json<'_>, rest: &mut ObjectWriter<'_>) {
    match key.as_str().as_deref() {
        Some("title" | "description") => {
            rest.rewritten(key, |out| hidden_text::write_visible(value, out));
        }
        Some("arguments") => {
            rest.rewritten(key, |out| hidden_text::write_listed(value, out));
        }
        Some("icons") => write_icons(key, value, rest),
        Some("_meta") => {
            rest.object_unless_empty("_meta", |meta| meta::write_foreign(value, meta));
        }
        _ => {
            rest.member(key, value);
        }
    }
}

/// Copies the icons with a safe URI. Omits the member if it has icons and none of them is safe.
fn write_icons(key: Json<'_>, icons: Json<'_>, rest: &mut ObjectWriter<'_>) {
    let is_safe = |icon: &Json<'_>| {
        icon.get("src").and_then(Json::as_str).is_some_and(|src| !is_unsafe(&src))
    };
    let is_empty = icons.elements().next().is_none();
    let mut safe = icons.elements().filter(is_safe).peekable();
    if is_empty || safe.peek().is_some() {
        rest.rewritten(key, |out| write_array(out, safe, |icon, out| out.push_str(icon.text())));
    }
}

fn shape(
    name: &str,
    member: &'static str,
    expected: &'static str,
    ok: bool,
) -> Result<(), PromptError> {
    let name = excerpt(name);
    ok.then_some(()).ok_or(PromptError::Shape { name, member, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_of_a_version_have_one_content_and_serve_it_with_their_own_label() {
        let named = |name: &str, label: Option<&str>| {
            let meta = serde_json::json!({"version": "3", "label": label});
            let text = serde_json::json!({"name": name, "description": "d", "_meta": meta});
            let mut prompt = read(&text.to_string()).unwrap();
            let of: Arc<str> = "refund".into();
            let version = PromptVersion::new(of, "3".into(), label.map(Into::into));
            prompt.version = Some(version.into());
            prompt
        };
        let version = named("refund@3", None);
        let content = version.content().unwrap().canonical();
        assert_eq!(content, r#"{"_meta":{"version":"3"},"description":"d","name":"refund@3"}"#);
        for alias in [named("refund", Some("production")), named("refund@beta", Some("beta"))] {
            assert_eq!(alias.content().unwrap().canonical(), content);
            let served = Prompt::of_content(Json::accepted(&content), &alias).unwrap();
            assert_eq!((served.canonical(), &served.version), (alias.canonical(), &alias.version));
        }
        assert!(read(r#"{"name":"refund"}"#).unwrap().content().is_none());
    }

    fn read(text: &str) -> Result<Prompt, PromptError> {
        Prompt::read(Json::parse(text.as_bytes(), 64).unwrap())
    }

    #[test]
    fn unknown_members_pass_and_the_name_is_replaced() {
        let prompt = read(
            r#"{"x-team":[1, {"k":"v"}],"name":"greet","title":"Greet",
            "arguments":[{"name":"who","required":true},{"name":"tone","extra":1}]}"#,
        )
        .unwrap();
        let required: Vec<_> =
            prompt.arguments.iter().map(|a| (a.name.as_str(), a.required)).collect();
        assert_eq!(required, [("who", true), ("tone", false)]);
        let mut out = String::new();
        prompt.write("up__greet", &mut out);
        assert_eq!(
            out,
            r#"{"name":"up__greet","x-team":[1, {"k":"v"}],"title":"Greet","arguments":[{"name":"who","required":true},{"name":"tone","extra":1}]}"#
        );
    }

    #[test]
    fn u13_u17_listed_prompts_have_no_hidden_text_and_no_unsafe_icons() {
        let prompt = read(
            r#"{"name":"a","title":"T\u001b[31m","description":"one\ntwo\u202e\udb40\udc41",
            "arguments":[{"name":"b","description":"\u200bx","extra":{"description":"\u200by"}}],
            "icons":[{"src":"JavaScript:alert(1)"},{"src":"https://example.com/i.png"}]}"#,
        )
        .unwrap();
        let mut out = String::new();
        prompt.write("up__a", &mut out);
        let listed: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(listed["title"], "T[31m");
        assert_eq!(listed["description"], "one\ntwo");
        assert_eq!(listed["arguments"][0]["description"], "x");
        assert_eq!(listed["icons"], serde_json::json!([{"src": "https://example.com/i.png"}]));
        let all = read(r#"{"name":"a","icons":[{"src":"data:text/html,x"}],"x":1}"#).unwrap();
        assert_eq!(all.rest, ",\"x\":1");
        assert!(read(r#"{"name":"a","arguments":[{"name":"b\u200b"}]}"#).is_err());
    }

    #[test]
    fn reserved_meta_keys_are_stripped() {
        let prompt = read(r#"{"name":"a","_meta":{"promptgate/upstream":"x","k":1}}"#).unwrap();
        assert_eq!(prompt.rest, r#","_meta":{"k":1}"#);
        let prompt = read(r#"{"name":"a","_meta":{"promptgate/upstream":"x"}}"#).unwrap();
        assert_eq!(prompt.rest, "");
    }

    #[test]
    fn malformed_members_are_left_out_one_by_one() {
        let repaired = |text: &str| {
            let (prompt, error) =
                Prompt::read_repaired(Json::parse(text.as_bytes(), 64).unwrap()).unwrap();
            (prompt.rest, error.is_some())
        };
        let arguments =
            r#"{"name":"b","required":"yes","title":1},{"required":true},7,{"name":"b"}"#;
        for (members, rest) in [
            (r#""title":1,"description":[],"x":1"#, r#","x":1"#),
            (
                r#""icons":[{"src":"i"},{"src":"j","sizes":"48x48"},"k"]"#,
                r#","icons":[{"src":"i"}]"#,
            ),
            (r#""icons":{},"arguments":{},"_meta":[]"#, ""),
            (&format!(r#""arguments":[{arguments}]"#), r#","arguments":[{"name":"b"}]"#),
        ] {
            let expected = (rest.to_owned(), true);
            assert_eq!(repaired(&format!(r#"{{{members},"name":"a"}}"#)), expected, "{members}");
        }
        assert!(!repaired(r#"{"name":"a","title":null}"#).1);
        for lost in [r#"{"name":5}"#, "[]", r#"{"name":"a","arguments":[{"name":"b\u200b"}]}"#] {
            assert!(Prompt::read_repaired(Json::parse(lost.as_bytes(), 64).unwrap()).is_err());
        }
    }

    #[test]
    fn a_wrong_type_names_its_member() {
        for (text, member) in [
            (r#"{"name":"a","title":1}"#, "title"),
            (r#"{"name":"a","description":[]}"#, "description"),
            (r#"{"name":"a","icons":[{"src":"x","sizes":"48x48"}]}"#, "icons"),
            (r#"{"name":"a","icons":{}}"#, "icons"),
            (r#"{"name":"a","arguments":[{"required":true}]}"#, "arguments"),
            (r#"{"name":"a","arguments":[{"name":"b","required":"yes"}]}"#, "arguments"),
            (r#"{"name":"a","_meta":1}"#, "_meta"),
        ] {
            let Err(PromptError::Shape { member: at, .. }) = read(text) else { panic!("{text}") };
            assert_eq!(at, member);
        }
        assert_eq!(read(r#"{"name":1}"#), Err(PromptError::NoName));
        assert_eq!(read("[]"), Err(PromptError::NoName));
        assert!(read(r#"{"name":"a","arguments":[{"name":"b"},{"name":"b"}]}"#).is_err());
    }
}
