//! Translation of content for clients of older revisions: content types that a revision does not
//! define become types that it defines, keeping as much information as possible.

use crate::json::object::{ObjectWriter, write_array, write_object};
use crate::json::{Json, JsonKind};
use crate::protocol::revision::Revision;
use crate::text::percent;

/// Returns whether a checked `prompts/get` result can have content types that this revision does
/// not define.
fn is_needed(revision: Revision) -> bool {
    revision < Revision::V2025_06_18
}

/// Returns whether any message of a checked `prompts/get` result must be translated for a client of
/// this revision.
pub fn applies(messages: Json<'_>, revision: Revision) -> bool {
    let is_translated = |message: Json<'_>| {
        let kind = message.get("content").and_then(|content| content.get("type"));
        kind.is_some_and(|kind| is_unknown(kind, revision))
    };
    is_needed(revision) && messages.elements().any(is_translated)
}

/// Whether this revision does not define a content type.
fn is_unknown(kind: Json<'_>, revision: Revision) -> bool {
    (kind.is("audio") && revision < Revision::V2025_03_26)
        || (kind.is("resource_link") && revision < Revision::V2025_06_18)
}

/// Appends the array `messages` of a checked `prompts/get` result, translated for a client of this
/// revision. `name` is the prompt's public name.
pub fn write_messages<'a>(
    messages: impl Iterator<Item = Json<'a>>,
    name: &str,
    revision: Revision,
    out: &mut String,
) {
    write_array(out, messages.enumerate(), |(index, message), out| {
        let content = message.get("content");
        match content.and_then(|content| translated(content, index, name, revision)) {
            None => out.push_str(message.text()),
            Some(content) => with_content(message, &content, out),
        }
    });
}

/// Returns the content of the message `index` of a prompt in a form for a client of this revision;
/// `None` if no translation is needed.
pub(crate) fn translated(
    content: Json<'_>,
    index: usize,
    name: &str,
    revision: Revision,
) -> Option<String> {
    let kind = content.get("type").filter(|kind| is_unknown(*kind, revision))?;
    if kind.is("audio") {
        let uri = format!("promptgate://{}/{index}", percent::encoded(name));
        Some(audio_as_resource(content, &uri))
    } else {
        Some(link_as_text(content))
    }
}

fn with_content(message: Json<'_>, content: &str, out: &mut String) {
    write_object(out, |out| {
        for (key, value) in message.members().filter(|(key, _)| !key.is("content")) {
            out.member(key, value);
        }
        out.json("content", content);
    });
}

/// Returns audio content as an embedded resource with the same data.
fn audio_as_resource(content: Json<'_>, uri: &str) -> String {
    let mut out = String::new();
    write_object(&mut out, |out| {
        out.text("type", "resource").object("resource", |resource| {
            resource.text("uri", uri);
            for (key, value) in content.members() {
                match key.as_str().as_deref() {
                    Some("data") => resource.json("blob", value.text()),
                    Some("mimeType") => resource.json("mimeType", value.text()),
                    _ => continue,
                };
            }
        });
        copy_others(content, &["type", "data", "mimeType", "resource"], out);
    });
    out
}

/// Returns a resource link as text content that a user can read: title, URI and description.
fn link_as_text(content: Json<'_>) -> String {
    let text = |name: &str| content.get(name).and_then(Json::as_str);
    let title = text("title").or_else(|| text("name")).unwrap_or_default();
    let mut readable = format!("{title}: {}", text("uri").unwrap_or_default());
    if let Some(description) = text("description") {
        readable.extend(["\n", &description]);
    }
    let mut out = String::new();
    write_object(&mut out, |out| {
        out.text("type", "text").text("text", &readable);
        let replaced =
            ["type", "text", "uri", "name", "title", "description", "mimeType", "size", "icons"];
        copy_others(content, &replaced, out);
    });
    out
}

/// Copies the members of `content` that are neither `null` nor among `replaced`.
fn copy_others(content: Json<'_>, replaced: &[&str], out: &mut ObjectWriter<'_>) {
    for (key, value) in content.members().filter(|(_, value)| value.kind() != JsonKind::Null) {
        if !replaced.iter().any(|known| key.is(known)) {
            out.member(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::prompts::content;

    fn translated(content: &Value, revision: Revision) -> Value {
        let text = json!([{"role": "user", "content": content}]).to_string();
        let mut out = String::new();
        let messages = Json::parse(text.as_bytes(), 64).unwrap();
        write_messages(messages.elements(), "up__p", revision, &mut out);
        let checked = format!("{{\"messages\":{out}}}");
        let result = Json::parse(checked.as_bytes(), 64).unwrap();
        assert_eq!(content::check_result(result), Ok(()));
        let message = &serde_json::from_str::<Value>(&out).unwrap()[0];
        assert_eq!(message["role"], "user");
        message["content"].clone()
    }

    #[test]
    fn audio_becomes_a_resource_for_the_oldest_clients() {
        let audio = json!({"type": "audio", "data": "AAAA", "mimeType": "audio/wav",
            "annotations": {"priority": 1}, "_meta": {"k": 1}});
        let expected = json!({"type": "resource", "annotations": {"priority": 1}, "_meta": {"k": 1},
            "resource": {"uri": "promptgate://up__p/0", "mimeType": "audio/wav", "blob": "AAAA"}});
        assert_eq!(translated(&audio, Revision::V2024_11_05), expected);
        assert_eq!(translated(&audio, Revision::V2025_03_26), audio);
    }

    #[test]
    fn what_an_upstream_adds_does_not_stand_beside_what_is_written() {
        let link = json!({"type": "resource_link", "uri": "a:b", "name": "x", "text": "another"});
        let text = json!({"type": "text", "text": "x: a:b"});
        assert_eq!(translated(&link, Revision::V2025_03_26), text);
        let audio = json!({"type": "audio", "data": "AAAA", "mimeType": "audio/wav",
            "resource": {"uri": "a:b", "text": "another"}});
        let resource = translated(&audio, Revision::V2024_11_05)["resource"].take();
        assert_eq!(resource["blob"], "AAAA");
        assert_eq!(resource.get("text"), None);
    }

    #[test]
    fn links_become_text_with_title_uri_and_description() {
        let link = json!({"type": "resource_link", "uri": "https://a.example/x", "name": "x",
            "title": "The \"x\"", "description": "All\nof it", "size": 3,
            "annotations": {"audience": ["user"]}});
        let expected = json!({"type": "text", "annotations": {"audience": ["user"]},
            "text": "The \"x\": https://a.example/x\nAll\nof it"});
        for revision in [Revision::V2024_11_05, Revision::V2025_03_26] {
            assert_eq!(translated(&link, revision), expected);
        }
        assert_eq!(translated(&link, Revision::V2025_06_18), link);
        let bare = json!({"type": "resource_link", "uri": "a:b", "name": "x"});
        assert_eq!(
            translated(&bare, Revision::V2024_11_05),
            json!({"type": "text", "text": "x: a:b"})
        );
    }

    #[test]
    fn content_that_every_revision_knows_is_unchanged() {
        for content in [
            json!({"type": "text", "text": "x", "y": {"z": 1}}),
            json!({"type": "image", "data": "AAAA", "mimeType": "image/png"}),
            json!({"type": "resource", "resource": {"uri": "a:b", "text": "x"}}),
        ] {
            assert_eq!(translated(&content, Revision::V2024_11_05), content);
        }
    }
}
