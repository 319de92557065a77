//! A prompt as a skill, for models that start skills by themselves: the entry, and a `SKILL.md`
//! with the text of the prompt.

use std::fmt::Write as _;

use crate::fault::excerpt;
use crate::json::object::write_object;
use crate::json::{Json, write_str};
use crate::prompts::skill::{SCHEME, SKILL_FILE, Skill, SkillError, is_name};

/// A skill derived from a prompt. Its only file is its `SKILL.md`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PromptSkill {
    pub skill: Skill,
    /// The text of `SKILL.md`.
    pub text: String,
}

/// The reason why a prompt cannot become a skill.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PromptSkillError {
    #[error("it requires arguments, and a skill takes none")]
    Arguments,
    #[error(
        "its name {0:?} makes no name of a skill, which has 1 to 64 characters of a-z, 0-9 and \
         single hyphens: rename it by an overlay"
    )]
    Name(String),
    #[error("its messages must be text of the user alone")]
    Messages,
    #[error("{0}")]
    Entry(#[from] SkillError),
}

/// The limit of the JSON depth of an entry.
const DEPTH: usize = 8;

/// Returns the name of the skill for a prompt of this name: the same, or with lower-case letters
/// and with hyphens for `_`, `.`, `/` and spaces, if the result is a valid name of a skill.
///
/// # Errors
/// [`PromptSkillError::Name`].
pub fn skill_name(name: &str) -> Result<String, PromptSkillError> {
    let mapped = name.chars().map(|c| match c {
        '_' | '.' | '/' | ' ' => '-',
        other => other.to_ascii_lowercase(),
    });
    let mapped: String = mapped.collect();
    let wrong = || PromptSkillError::Name(excerpt(name));
    is_name(&mapped).then_some(mapped).ok_or_else(wrong)
}

impl PromptSkill {
    /// Builds the skill of this name, which [`skill_name`] returned, from the messages of a checked
    /// `prompts/get` result. `digest` returns `sha256:…` of a text.
    ///
    /// # Errors
    /// A message that is not text, or not from the user; a description without 1 to 1,024
    /// characters; more than 16 MiB.
    pub fn new<'a>(
        name: &str,
        description: &str,
        messages: impl Iterator<Item = Json<'a>>,
        digest: impl FnOnce(&str) -> String,
    ) -> Result<Self, PromptSkillError> {
        let body = body(messages).ok_or(PromptSkillError::Messages)?;
        let mut text = String::with_capacity(body.len() + description.len() + 128);
        text.push_str("---\nname: ");
        write_yaml(name, &mut text);
        text.push_str("\ndescription: ");
        write_yaml(description, &mut text);
        let _ = write!(text, "\n---\n\n{body}\n");
        let uri = [SCHEME, name, "/", SKILL_FILE].concat();
        let mut entry = String::new();
        write_object(&mut entry, |entry| {
            entry.text("uri", &uri).object("frontmatter", |front| {
                front.text("name", name).text("description", description);
            });
            entry.array("resources", [digest(&text)], |digest, out| {
                write_object(out, |file| {
                    file.text("uri", &uri).text("digest", &digest).display("size", text.len());
                });
            });
        });
        let entry = Json::parse_text(&entry, DEPTH).map_err(|_| PromptSkillError::Messages)?;
        Ok(Self { skill: Skill::read(entry)?, text })
    }
}

/// Returns the texts of messages in their order, with an empty line between them; `None` if a
/// message is not a text of the user. The text of an embedded resource counts as text.
fn body<'a>(messages: impl Iterator<Item = Json<'a>>) -> Option<String> {
    let mut body = String::new();
    for message in messages {
        message.get("role").filter(|role| role.is("user"))?;
        let content = message.get("content")?;
        let kind = content.get("type")?;
        let text = match &*kind.as_str()? {
            "text" => content.get("text"),
            "resource" => content.get("resource").and_then(|resource| resource.get("text")),
            _ => None,
        };
        let text = text?.as_str()?;
        if !body.is_empty() {
            body.push_str("\n\n");
        }
        body.push_str(text.trim());
    }
    (!body.is_empty()).then_some(body)
}

/// Writes a text as a double-quoted scalar of YAML: JSON, with additional escapes for characters
/// that YAML does not allow in text, or takes for line breaks.
fn write_yaml(text: &str, out: &mut String) {
    let mut quoted = String::with_capacity(text.len() + 2);
    write_str(text, &mut quoted);
    for c in quoted.chars() {
        match c {
            '\u{7f}'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn made(description: &str, messages: Value) -> Result<PromptSkill, PromptSkillError> {
        let text = messages.to_string();
        let messages = Json::parse_text(&text, 16).unwrap();
        let digest = |_: &str| format!("sha256:{}", "0".repeat(64));
        PromptSkill::new("tea", description, messages.elements(), digest)
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": {"type": "text", "text": text}})
    }

    #[test]
    fn the_file_has_the_front_matter_of_the_entry_and_the_texts_in_order() {
        let embedded = json!({"role": "user", "content": {"type": "resource",
            "resource": {"uri": "promptgate://lib/a.md", "mimeType": "text/markdown", "text": "A"}}});
        let tea = made("Makes: \"tea\"\nnow", json!([user("Boil. \n"), embedded])).unwrap();
        let expected =
            "---\nname: \"tea\"\ndescription: \"Makes: \\\"tea\\\"\\nnow\"\n---\n\nBoil.\n\nA\n";
        assert_eq!(tea.text, expected);
        assert_eq!((tea.skill.name(), tea.skill.description().lines().count()), ("tea", 2));
        let [own] = tea.skill.files.as_slice() else { panic!("{:?}", tea.skill.files) };
        assert_eq!((&*own.uri, own.size), ("skill://tea/SKILL.md", expected.len() as u64));
        let odd = made("a\u{85}b\u{2028}c", json!([user("x")])).unwrap();
        assert!(odd.text.contains("\"a\\u0085b\\u2028c\""), "{}", odd.text);
    }

    #[test]
    fn what_is_not_text_of_the_user_makes_no_skill() {
        let content = |content: Value| json!([user("x"), {"role": "user", "content": content}]);
        for messages in [
            json!([]),
            json!([user(" ")]),
            json!([user("x"), {"role": "assistant", "content": {"type": "text", "text": "y"}}]),
            content(json!({"type": "image", "data": "eA==", "mimeType": "image/png"})),
            content(json!({"type": "audio", "data": "eA==", "mimeType": "audio/wav"})),
            content(json!({"type": "resource", "resource": {"uri": "a:b", "blob": "eA=="}})),
            content(json!({"type": "resource_link", "uri": "https://a/b", "name": "b"})),
            content(json!("x")),
        ] {
            assert_eq!(made("d", messages.clone()), Err(PromptSkillError::Messages), "{messages}");
        }
        for description in ["", " ", &"d".repeat(1_025)] {
            let error = made(description, json!([user("x")])).unwrap_err();
            assert!(error.to_string().contains("`description`"), "{error}");
        }
    }

    #[test]
    fn a_name_is_that_of_a_skill_or_close_to_one_or_none() {
        for (name, expected) in [
            ("explain-code", Some("explain-code")),
            ("Explain_Code", Some("explain-code")),
            ("a.b c/d", Some("a-b-c-d")),
            ("a__b", None),
            ("_a", None),
            ("café", None),
            ("a@3", None),
            ("", None),
        ] {
            assert_eq!(skill_name(name).ok().as_deref(), expected, "{name}");
        }
        assert!(skill_name(&"a".repeat(65)).is_err());
    }
}
