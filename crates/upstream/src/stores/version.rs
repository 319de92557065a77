//! Converts a store's prompt version into a served prompt.

use serde::{Deserialize, Serialize};

use super::template::{Format, pieces};
use domain::fault::excerpt;
use domain::json::Json;
use domain::json::object::write_object;
use library::{MessageRole, StoredMessage, StoredPrompt};

/// A version of a prompt.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct StoreVersion {
    /// The version number or name in the store.
    pub number: String,
    pub format: Format,
    /// The role and the template of each message.
    pub messages: Vec<(String, String)>,
    /// Whether the version embeds other prompts, which may change without it.
    pub is_composed: bool,
    pub config: StoreConfig,
}

/// Model parameters and response formats, as a JSON object with the members in the store; or why
/// they cannot be read.
pub(super) type StoreConfig = Result<Option<String>, String>;

/// Largest configuration of a prompt, in bytes.
const MAX_CONFIG: usize = 64 << 10;

/// Makes an object of the present members, each given as JSON text.
pub(super) fn config_of(members: &[(&str, Option<&str>)]) -> StoreConfig {
    let mut object = String::new();
    let is_there = members.iter().any(|(_, value)| value.is_some());
    write_object(&mut object, |object| {
        for (name, value) in members {
            if let Some(value) = value {
                object.json(name, value);
            }
        }
    });
    if object.len() > MAX_CONFIG {
        return Err(format!("its configuration has more than {MAX_CONFIG} bytes"));
    }
    Ok(is_there.then_some(object))
}

/// Most messages of one prompt, as in a library.
const MAX_MESSAGES: usize = 1_000;

/// The roles in the words of the stores.
const ROLES: [(&str, MessageRole); 6] = [
    ("user", MessageRole::User),
    ("human", MessageRole::User),
    ("assistant", MessageRole::Assistant),
    ("model", MessageRole::Assistant),
    ("ai", MessageRole::Assistant),
    ("bot", MessageRole::Assistant),
];

impl StoreVersion {
    /// Reads the version as a prompt of a library.
    pub(super) fn prompt(
        &self,
        name: &str,
        description: Option<String>,
        has_system_as_user: bool,
    ) -> Result<StoredPrompt, String> {
        if self.messages.is_empty() {
            return Err("it has no messages".to_owned());
        } else if self.messages.len() > MAX_MESSAGES {
            return Err(format!("it has more than {MAX_MESSAGES} messages"));
        }
        let message = |(role, template): &(String, String)| {
            let role = role_of(role, has_system_as_user)?;
            let pieces = pieces(self.format, template)?;
            Ok(StoredMessage { role, template: template.clone(), pieces })
        };
        let messages: Result<_, String> = self.messages.iter().map(message).collect();
        Ok(StoredPrompt {
            name: name.to_owned(),
            of: name.to_owned(),
            label: None,
            config: None,
            description,
            version: self.number.clone(),
            format: self.format.name(),
            messages: messages?,
        })
    }
}

fn role_of(name: &str, has_system_as_user: bool) -> Result<MessageRole, String> {
    let known = ROLES.into_iter().find(|(role, _)| role.eq_ignore_ascii_case(name));
    match (known, name.to_ascii_lowercase().as_str()) {
        (Some((_, role)), _) => Ok(role),
        (None, "system" | "developer") if has_system_as_user => Ok(MessageRole::User),
        (None, role @ ("system" | "developer")) => Err(format!(
            "it has a message of the role {role:?}, which MCP lacks; `system = \"as_user\"` makes it a \
             message of the user"
        )),
        (None, _) => {
            Err(format!("it has a message of the role {:?}, which MCP lacks", excerpt(name)))
        }
    }
}

/// Reads the messages of a chat prompt: objects with a role, and a text or text parts. Each part
/// becomes a separate message.
pub(super) fn chat(messages: Json<'_>) -> Result<Vec<(String, String)>, String> {
    let odd = |message: Json<'_>| {
        let message = excerpt(message.text());
        format!("it has a message that is no text: {message}")
    };
    let mut read = Vec::new();
    for message in messages.elements().take(MAX_MESSAGES + 1) {
        let role = message.get("role").and_then(Json::as_str).ok_or_else(|| odd(message))?;
        let content = message.get("content").ok_or_else(|| odd(message))?;
        if let Some(text) = content.as_str() {
            read.push((role.into_owned(), text.into_owned()));
            continue;
        }
        let before = read.len();
        for part in content.elements().take(MAX_MESSAGES + 1) {
            let is_text = part.get("type").is_some_and(|kind| kind.is("text"));
            let text = part.get("text").and_then(Json::as_str).filter(|_| is_text);
            read.push((role.to_string(), text.ok_or_else(|| odd(part))?.into_owned()));
        }
        if read.len() == before {
            return Err(odd(message));
        } else if read.len() > MAX_MESSAGES {
            break;
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::json::Json;

    fn version(messages: &[(&str, &str)]) -> StoreVersion {
        let owned = |(role, text): &(&str, &str)| ((*role).to_owned(), (*text).to_owned());
        let messages = messages.iter().map(owned).collect();
        StoreVersion {
            number: "1".to_owned(),
            format: Format::Braces,
            messages,
            is_composed: false,
            config: Ok(None),
        }
    }

    #[test]
    fn roles_that_mcp_lacks_are_refused_by_name_or_become_the_user() {
        let system = version(&[("system", "Be {{ tone }}."), ("AI", "Yes.")]);
        let refused = system.prompt("a", None, false).unwrap_err();
        assert!(refused.contains("\"system\"") && refused.contains("as_user"), "{refused}");
        let served = system.prompt("a", None, true).unwrap();
        let roles: Vec<_> = served.messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [MessageRole::User, MessageRole::Assistant]);
        for role in ["tool", "function", ""] {
            assert!(version(&[(role, "x")]).prompt("a", None, true).is_err(), "{role}");
        }
        assert!(version(&[]).prompt("a", None, true).is_err());
        let many = vec![("user", "x"); MAX_MESSAGES + 1];
        assert!(version(&many).prompt("a", None, true).unwrap_err().contains("1000"));
    }

    #[test]
    fn messages_that_are_no_texts_are_refused_with_their_beginning() {
        let read = |text| chat(Json::parse_text(text, 16).unwrap());
        let parts = r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]"#;
        let user = |text: &str| ("user".to_owned(), text.to_owned());
        assert_eq!(read(parts), Ok(vec![user("a"), user("b")]));
        for odd in [
            r#"[{"role":"user","content":7}]"#,
            r#"[{"role":"user","content":[]}]"#,
            r#"[{"role":"user","content":[{"type":"tool_call","tool_call_id":"1"}]}]"#,
            r#"[{"role":["user"],"content":"a"}]"#,
            r#"[{"type":"placeholder","name":"history"}]"#,
            r#"["text"]"#,
        ] {
            let refused = read(odd).unwrap_err();
            assert!(refused.contains("no text"), "{odd}: {refused}");
        }
        assert_eq!(read("{}"), Ok(Vec::new()));
    }
}
