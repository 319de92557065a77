//! Results of tools that represent prompts (MCP 2025-11-25, tools, tool result).

use super::definition::{choices, listed_choices, shortened};
use crate::json::object::{ObjectWriter, write_object};
use crate::json::{Json, write_str};
use crate::prompts::skill::{SCHEME, SKILL_FILE};
use crate::protocol::revision::Revision;
use crate::protocol::translate;

/// Appends the array `content` for the messages of a checked `prompts/get` result: the content of
/// each message, unchanged except for content types that `revision` does not define, and a text
/// block such as `[user]` before each message whose role differs from the message before. `name` is
/// the prompt's public name.
pub fn write_content<'a>(
    messages: impl Iterator<Item = Json<'a>>,
    name: &str,
    revision: Revision,
    out: &mut String,
) {
    let mut role = String::new();
    let mut is_first = true;
    out.push('[');
    for (index, message) in messages.enumerate() {
        let Some(content) = message.get("content") else { continue };
        let own = message.get("role").and_then(Json::as_str).unwrap_or_default();
        if own != role.as_str() {
            role = own.into_owned();
            separate(&mut is_first, out);
            write_text_block(&format!("[{role}]"), out);
        }
        separate(&mut is_first, out);
        match translate::translated(content, index, name, revision) {
            Some(translated) => out.push_str(&translated),
            None => out.push_str(content.text()),
        }
    }
    out.push(']');
}

fn separate(is_first: &mut bool, out: &mut String) {
    if !std::mem::replace(is_first, false) {
        out.push(',');
    }
}

/// Appends a block of text content.
pub fn write_text_block(text: &str, out: &mut String) {
    write_object(out, |block| {
        block.text("type", "text").text("text", text);
    });
}

/// Appends one prompt as a result of `find_prompt`: the members that a model needs to choose a
/// prompt and to fill in its arguments.
pub fn write_found(prompt: Json<'_>, out: &mut String) {
    let copied = ["name", "title", "arguments"];
    write_object(out, |found| {
        for (key, value) in prompt.members() {
            if copied.iter().any(|name| key.is(name)) {
                found.member(key, value);
            }
        }
        if let Some(description) = prompt.get("description").and_then(Json::as_str) {
            found.text("description", shortened(&description));
        }
        let listed = listed_choices(prompt);
        found.object_unless_empty("choices", |choices_of| {
            for argument in prompt.get("arguments").into_iter().flat_map(Json::elements) {
                let name = argument.get("name").and_then(Json::as_str).unwrap_or_default();
                if let Some(choices) = choices(&listed, &name) {
                    choices_of.array(&name, choices, |choice, out| write_str(&choice, out));
                }
            }
        });
    });
}

/// Appends one skill as a result of `find_skill`: its front matter and its `SKILL.md` URI.
pub fn write_found_skill(uri: &str, front_matter: Json<'_>, out: &mut String) {
    let folder = uri.strip_suffix(SKILL_FILE).unwrap_or(uri).trim_end_matches('/');
    let description = front_matter.get("description").and_then(Json::as_str);
    write_object(out, |found| {
        found.text("name", folder.strip_prefix(SCHEME).unwrap_or(folder));
        found.text("description", shortened(description.as_deref().unwrap_or_default()));
    });
}

/// Adds the members of a result that reports a fault to the model.
pub fn write_error(text: &str, result: &mut ObjectWriter<'_>) {
    result.array("content", [text], write_text_block);
    result.display("isError", true);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn content(messages: &Value, revision: Revision) -> Value {
        let text = messages.to_string();
        let mut out = String::new();
        let messages = Json::parse(text.as_bytes(), 64).unwrap().elements();
        write_content(messages, "up__p", revision, &mut out);
        serde_json::from_str(&out).unwrap()
    }

    #[test]
    fn messages_keep_their_order_their_roles_and_their_content() {
        let image = json!({"type": "image", "data": "AAAA", "mimeType": "image/png"});
        let link = json!({"type": "resource_link", "uri": "a:b", "name": "x"});
        let text = |text: &str| json!({"type": "text", "text": text});
        let messages = json!([
            {"role": "user", "content": text("Look:")},
            {"role": "user", "content": image},
            {"role": "assistant", "content": text("I see.")},
            {"role": "user", "content": link},
        ]);
        let expected = json!([
            text("[user]"),
            text("Look:"),
            image,
            text("[assistant]"),
            text("I see."),
            text("[user]"),
            link,
        ]);
        assert_eq!(content(&messages, Revision::V2025_11_25), expected);
        let older = content(&messages, Revision::V2025_03_26);
        assert_eq!(older[6], text("x: a:b"), "links became content in 2025-06-18");
        assert_eq!(content(&json!([]), Revision::V2025_11_25), json!([]));
    }
}
