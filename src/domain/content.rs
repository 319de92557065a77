//! What a `prompts/get` may bring back: roles, content types, and the members they need.

use super::json::{Json, Kind};
use super::meta;

/// Why a result is refused. It names the place and never repeats the content.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ContentError {
    #[error("the result has no array `messages`")]
    NoMessages,
    #[error("message {index}: {what}")]
    Message { index: usize, what: &'static str },
    #[error("{0}")]
    Result(&'static str),
}

/// Checks a whole get result. No half prompt is ever handed on: one bad message fails it.
pub fn check_result(result: Json<'_>) -> Result<(), ContentError> {
    check_members(result, &["messages", "description"]).map_err(ContentError::Result)?;
    if result.get("description").is_some_and(|d| d.kind() != Kind::String) {
        return Err(ContentError::Result("`description` must be a string"));
    }
    if result.get("_meta").is_some_and(|m| !m.is_object()) {
        return Err(ContentError::Result("`_meta` must be an object"));
    }
    let messages = result.get("messages").filter(|m| m.kind() == Kind::Array);
    let messages = messages.ok_or(ContentError::NoMessages)?;
    for (index, message) in messages.elements().enumerate() {
        check_message(message).map_err(|what| ContentError::Message { index, what })?;
    }
    Ok(())
}

fn check_message(message: Json<'_>) -> Result<(), &'static str> {
    check_members(message, &["role", "content"])?;
    let role = message.get("role");
    if !role.is_some_and(|r| r.is("user") || r.is("assistant")) {
        return Err("`role` must be \"user\" or \"assistant\"");
    }
    match message.get("content").filter(|c| c.is_object()) {
        Some(content) => check_content(content),
        None => Err("`content` must be an object"),
    }
}

fn check_content(content: Json<'_>) -> Result<(), &'static str> {
    check_members(content, &["type", "text", "data", "mimeType", "resource", "uri", "name"])?;
    check_meta(content)?;
    let kind = content.get("type").and_then(Json::as_str);
    match kind.as_deref() {
        Some("text") => text(content, "text").ok_or("text content needs `text`")?,
        Some("image" | "audio") => {
            base64(content, "data")?;
            mime_type(content, Presence::Required)?;
        }
        Some("resource") => check_resource(content)?,
        Some("resource_link") => {
            uri(content)?;
            text(content, "name").ok_or("a resource link needs `name`")?;
            mime_type(content, Presence::Optional)?;
        }
        _ => return Err("unknown content type"),
    }
    check_annotations(content)
}

fn check_resource(content: Json<'_>) -> Result<(), &'static str> {
    let resource = content.get("resource").filter(|r| r.is_object());
    let resource = resource.ok_or("resource content needs `resource`")?;
    check_members(resource, &["uri", "mimeType", "text", "blob"])?;
    check_meta(resource)?;
    uri(resource)?;
    mime_type(resource, Presence::Optional)?;
    match (resource.get("text"), resource.get("blob")) {
        (Some(text), None) if text.kind() == Kind::String => Ok(()),
        (None, Some(_)) => base64(resource, "blob"),
        _ => Err("a resource needs either `text` or `blob`, a string"),
    }
}

fn check_annotations(content: Json<'_>) -> Result<(), &'static str> {
    let Some(annotations) = content.get("annotations") else {
        return Ok(());
    };
    let audience = annotations.get("audience").is_none_or(|a| {
        a.kind() == Kind::Array && a.elements().all(|r| r.is("user") || r.is("assistant"))
    });
    let priority = annotations.get("priority").is_none_or(|p| {
        p.kind() == Kind::Number && p.text().parse().is_ok_and(|p: f64| (0.0..=1.0).contains(&p))
    });
    let modified = annotations.get("lastModified").is_none_or(|m| m.kind() == Kind::String);
    match annotations.is_object() && audience && priority && modified {
        true => Ok(()),
        false => Err("`annotations` must be {audience?: [role], priority?: 0..1, lastModified?}"),
    }
}

/// Members that differ from a known one in case only would be read as that by readers that fold
/// case, unchecked.
fn check_members(object: Json<'_>, known: &[&str]) -> Result<(), &'static str> {
    let alike = |key: &str| known.iter().any(|k| *k != key && k.eq_ignore_ascii_case(key));
    let clean = object.members().all(|(key, _)| !key.as_str().is_some_and(|key| alike(&key)));
    clean.then_some(()).ok_or("a member differs from a known one in case only")
}

/// What we say of an answer's origin nobody else may say, wherever it stands.
fn check_meta(object: Json<'_>) -> Result<(), &'static str> {
    let Some(meta) = object.get("_meta") else {
        return Ok(());
    };
    let ours = |key: Json<'_>| key.as_str().is_some_and(|key| key.starts_with(meta::OURS));
    match meta.is_object() && !meta.members().any(|(key, _)| ours(key)) {
        true => Ok(()),
        false => Err("`_meta` must be an object without keys of the gateway"),
    }
}

enum Presence {
    Optional,
    Required,
}

fn text(value: Json<'_>, member: &str) -> Option<()> {
    value.get(member).filter(|m| m.kind() == Kind::String).map(drop)
}

fn uri(value: Json<'_>) -> Result<(), &'static str> {
    let uri = value.get("uri").and_then(Json::as_str);
    match uri.is_some_and(|u| is_uri(&u)) {
        true => Ok(()),
        false => Err("`uri` must be a URI with a scheme"),
    }
}

/// Whether the text has the shape `scheme:rest` of RFC 3986, without white space or controls.
fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let mut letters = scheme.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        && !rest.is_empty()
        && !rest.contains(|c: char| c.is_control() || c == ' ')
}

fn mime_type(value: Json<'_>, presence: Presence) -> Result<(), &'static str> {
    match (value.get("mimeType").map(Json::as_str), presence) {
        (None, Presence::Optional) => Ok(()),
        (Some(Some(text)), _) if is_mime_type(&text) => Ok(()),
        _ => Err("`mimeType` must have the form type/subtype"),
    }
}

/// Whether the text is `type/subtype` of RFC 9110 tokens, parameters allowed after a semicolon.
pub fn is_mime_type(text: &str) -> bool {
    let token = |t: &str| {
        !t.is_empty()
            && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
    };
    let essence = text.split(';').next().unwrap_or_default().trim_end();
    essence.split_once('/').is_some_and(|(kind, subtype)| token(kind) && token(subtype))
}

fn base64(value: Json<'_>, member: &'static str) -> Result<(), &'static str> {
    let raw = value.get(member).and_then(Json::raw_str);
    match raw.is_some_and(is_base64) {
        true => Ok(()),
        false => Err("`data` or `blob` must be base64 with padding (RFC 4648, section 4)"),
    }
}

/// Whether the text is padded base64 of the standard alphabet. JSON may write `/` as `\/`.
fn is_base64(raw: &str) -> bool {
    if raw.contains('\\') {
        return !raw.replace("\\/", "").contains('\\') && is_base64(&raw.replace("\\/", "/"));
    }
    let body = raw.strip_suffix("==").or(raw.strip_suffix('=')).unwrap_or(raw);
    let in_alphabet = |b: u8| b.is_ascii_alphanumeric() | (b == b'+') | (b == b'/');
    // Without short-circuit, so that the compiler checks many bytes at a time.
    raw.len().is_multiple_of(4) && body.bytes().fold(true, |ok, b| ok & in_alphabet(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content: &str) -> Result<(), ContentError> {
        let result = format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#);
        check_result(Json::parse(result.as_bytes(), 64).unwrap())
    }

    #[test]
    fn every_content_type_passes_with_unknown_fields() {
        for content in [
            r#"{"type":"text","text":"","x":{"y":1}}"#,
            r#"{"type":"image","data":"iVBORw==","mimeType":"image/png"}"#,
            r#"{"type":"image","data":"\/\/8=","mimeType":"image/png"}"#,
            r#"{"type":"audio","data":"","mimeType":"audio/wav","annotations":{"audience":["user"],"priority":0.5}}"#,
            r#"{"type":"resource","resource":{"uri":"file:///a","text":"x"}}"#,
            r#"{"type":"resource","resource":{"uri":"a:b","blob":"AAAA","mimeType":"text/plain; charset=utf-8"}}"#,
            r#"{"type":"resource_link","uri":"https://example.com/x","name":"x","size":3}"#,
        ] {
            assert_eq!(check(content), Ok(()), "{content}");
        }
    }

    #[test]
    fn what_a_client_would_choke_on_is_refused() {
        for content in [
            r#"{"type":"video","data":"AAAA","mimeType":"video/mp4"}"#,
            r#"{"type":"text"}"#,
            r#"{"type":"text","text":1}"#,
            r#"{"type":"image","data":"AAAA"}"#,
            r#"{"type":"image","data":"AAA","mimeType":"image/png"}"#,
            r#"{"type":"image","data":"AA=A","mimeType":"image/png"}"#,
            r#"{"type":"image","data":"AA-_","mimeType":"image/png"}"#,
            r#"{"type":"image","data":"AAAA","mimeType":"png"}"#,
            r#"{"type":"image","data":"A\n==","mimeType":"image/png"}"#,
            r#"{"type":"resource","resource":{"uri":"file:///a"}}"#,
            r#"{"type":"resource","resource":{"uri":"file:///a","text":"x","blob":"AAAA"}}"#,
            r#"{"type":"resource","resource":{"uri":"no scheme","text":"x"}}"#,
            r#"{"type":"resource_link","uri":"a:b"}"#,
            r#"{"type":"text","text":"x","annotations":{"priority":2}}"#,
            r#"{"type":"text","text":"x","Text":"y"}"#,
            r#"{"type":"text","text":"x","_meta":{"promptgate/upstream":"z"}}"#,
            r#"{"type":"text","text":"x","_meta":1}"#,
            r#""text""#,
        ] {
            assert!(
                matches!(check(content), Err(ContentError::Message { index: 0, .. })),
                "{content}"
            );
        }
        let system = r#"{"messages":[{"role":"system","content":{"type":"text","text":"x"}}]}"#;
        assert!(check_result(Json::parse(system.as_bytes(), 64).unwrap()).is_err());
        let none = check_result(Json::parse(b"{}", 64).unwrap());
        assert_eq!(none, Err(ContentError::NoMessages));
    }
}
