//! Validation of `prompts/get` results: roles, content types and their required members (MCP
//! 2025-11-25, prompts).

use crate::json::{Json, JsonKind};
use crate::prompts::hidden_text;
use crate::protocol::meta;
use crate::uri::{self, is_unsafe};

/// The reason why a result is refused. The text names the message and never repeats its content.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ContentError {
    #[error("the result has no array `messages`")]
    NoMessages,
    #[error("the result has no array `contents`")]
    NoContents,
    #[error("message {index}: {what}")]
    Message { index: usize, what: &'static str },
    #[error("content {index}: {what}")]
    Content { index: usize, what: &'static str },
    #[error("{0}")]
    Result(&'static str),
}

/// Findings in the messages of a result that readers do not see or expect. Messages are given by
/// their indices.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Findings {
    /// Messages with hidden text, and how many hidden characters each has.
    pub hidden_text: Vec<(usize, usize)>,
    /// Messages with URIs that can run code.
    pub unsafe_uris: Vec<usize>,
}

/// Checks the result of a `prompts/get`. One invalid message fails the whole result: a part of a
/// prompt is never passed on.
///
/// # Errors
/// [`ContentError`] for the first violation.
pub fn check_result(result: Json<'_>) -> Result<(), ContentError> {
    check_each(result, |_, _| {})
}

/// Checks the result of a `prompts/get`, and looks for hidden text and unsafe URIs in the same
/// pass.
///
/// # Errors
/// As [`check_result`].
pub fn inspect_result(result: Json<'_>) -> Result<Findings, ContentError> {
    let mut findings = Findings::default();
    check_each(result, |index, content| {
        findings.add_hidden_text(index, content);
        findings.add_unsafe_uris(index, content);
    })?;
    Ok(findings)
}

/// Checks a result whose text is known to be visible, and looks for unsafe URIs in the same pass.
///
/// # Errors
/// As [`check_result`].
pub fn inspect_visible_result(result: Json<'_>) -> Result<Findings, ContentError> {
    let mut findings = Findings::default();
    check_each(result, |index, content| findings.add_unsafe_uris(index, content))?;
    Ok(findings)
}

/// Checks the result of a `resources/read` (MCP 2025-11-25, resources), and looks for hidden text
/// and unsafe URIs in its contents.
///
/// # Errors
/// [`ContentError`] for the first violation.
pub fn inspect_contents(result: Json<'_>) -> Result<Findings, ContentError> {
    let contents = result.get("contents").filter(|contents| contents.kind() == JsonKind::Array);
    let mut findings = Findings::default();
    for (index, content) in contents.ok_or(ContentError::NoContents)?.elements().enumerate() {
        let fields = check_resource(Some(content));
        let fields = fields.map_err(|what| ContentError::Content { index, what })?;
        findings.add_hidden_text(index, &fields);
        findings.add_unsafe_uris(index, &fields);
    }
    Ok(findings)
}

/// Checks a result, and gives the content of each message with its index to `inspect`.
fn check_each<'a>(
    result: Json<'a>,
    mut inspect: impl FnMut(usize, &Fields<'a>),
) -> Result<(), ContentError> {
    let mut messages = None;
    for (key, value) in result.members().filter(|(_, value)| value.kind() != JsonKind::Null) {
        let key = key.as_str().unwrap_or_default();
        match &*key {
            "messages" if value.kind() == JsonKind::Array => messages = Some(value),
            "messages" => return Err(ContentError::NoMessages),
            "description" if value.kind() != JsonKind::String => {
                return Err(ContentError::Result("`description` must be a string"));
            }
            "_meta" if !value.is_object() => {
                return Err(ContentError::Result("`_meta` must be an object"));
            }
            other if is_look_alike(other, &["messages", "description"]) => {
                return Err(ContentError::Result(LOOK_ALIKE));
            }
            _ => {}
        }
    }
    let messages = messages.ok_or(ContentError::NoMessages)?;
    for (index, message) in messages.elements().enumerate() {
        let content = check_message(message);
        inspect(index, &content.map_err(|what| ContentError::Message { index, what })?);
    }
    Ok(())
}

impl Findings {
    /// Adds the hidden text of a message: in its content, in the members of a link, and in an
    /// embedded resource, whatever type the content has.
    fn add_hidden_text(&mut self, index: usize, content: &Fields<'_>) {
        let of_resource = |name| content.resource.and_then(|resource| resource.get(name));
        let Fields { text, uri, name, title, description, .. } = *content;
        let of_resource = [of_resource("text"), of_resource("uri")];
        let texts = [text, uri, name, title, description].into_iter().chain(of_resource);
        let hidden = |text: Json<'_>| text.as_str().map_or(0, |text| hidden_text::count(&text));
        let characters: usize = texts.flatten().map(hidden).sum();
        if characters > 0 {
            self.hidden_text.push((index, characters));
        }
    }

    /// Adds the unsafe URIs of a message, in the same members.
    fn add_unsafe_uris(&mut self, index: usize, content: &Fields<'_>) {
        let of_resource = content.resource.and_then(|resource| resource.get("uri"));
        let icons = content.icons.iter().flat_map(|icons| icons.elements());
        let sources = icons.map(|icon| icon.get("src"));
        let mut uris = [content.uri, of_resource].into_iter().chain(sources).flatten();
        if uris.any(|uri| uri.as_str().is_some_and(|uri| is_unsafe(&uri))) {
            self.unsafe_uris.push(index);
        }
    }
}

fn check_message(message: Json<'_>) -> Result<Fields<'_>, &'static str> {
    let mut has_role = false;
    let mut content = None;
    for (key, value) in message.members() {
        let key = key.as_str().unwrap_or_default();
        match &*key {
            "role" => has_role = value.is("user") || value.is("assistant"),
            "content" => content = Some(value),
            other if is_look_alike(other, &["role", "content"]) => return Err(LOOK_ALIKE),
            _ => {}
        }
    }
    match (has_role, content.filter(|c| c.is_object())) {
        (false, _) => Err("`role` must be \"user\" or \"assistant\""),
        (true, None) => Err("`content` must be an object"),
        (true, Some(content)) => check_content(content),
    }
}

fn check_content(content: Json<'_>) -> Result<Fields<'_>, &'static str> {
    let fields = Fields::read(content)?;
    match fields.kind.and_then(Json::as_str).as_deref() {
        Some("text") => is_string(fields.text, "text content needs `text`")?,
        Some("image" | "audio") => {
            base64(fields.data)?;
            mime_type(fields.mime_type, MemberPresence::Required)?;
        }
        Some("resource") => {
            check_resource(fields.resource)?;
        }
        Some("resource_link") => {
            check_uri(fields.uri)?;
            is_string(fields.name, "a resource link needs `name`")?;
            mime_type(fields.mime_type, MemberPresence::Optional)?;
        }
        _ => return Err("`type` must be text, image, audio, resource or resource_link"),
    }
    fields.annotations.map_or(Ok(()), check_annotations)?;
    Ok(fields)
}

fn check_resource(resource: Option<Json<'_>>) -> Result<Fields<'_>, &'static str> {
    let resource = resource.filter(|r| r.is_object());
    let fields = Fields::read(resource.ok_or("resource content needs `resource`")?)?;
    check_uri(fields.uri)?;
    mime_type(fields.mime_type, MemberPresence::Optional)?;
    match (fields.text, fields.blob) {
        (Some(text), None) if text.kind() == JsonKind::String => Ok(fields),
        (None, Some(blob)) => base64(Some(blob)).map(|()| fields),
        _ => Err("a resource needs either `text` or `blob`, a string"),
    }
}

/// The members of a content object or resource, collected in one pass. Each lookup by name would
/// scan the megabytes of the other members again.
#[derive(Default)]
struct Fields<'a> {
    kind: Option<Json<'a>>,
    text: Option<Json<'a>>,
    data: Option<Json<'a>>,
    blob: Option<Json<'a>>,
    mime_type: Option<Json<'a>>,
    uri: Option<Json<'a>>,
    name: Option<Json<'a>>,
    title: Option<Json<'a>>,
    description: Option<Json<'a>>,
    resource: Option<Json<'a>>,
    annotations: Option<Json<'a>>,
    icons: Option<Json<'a>>,
}

impl<'a> Fields<'a> {
    fn read(object: Json<'a>) -> Result<Self, &'static str> {
        let mut fields = Self::default();
        for (key, value) in object.members().filter(|(_, value)| value.kind() != JsonKind::Null) {
            let key = key.as_str().unwrap_or_default();
            let field = match &*key {
                "type" => &mut fields.kind,
                "text" => &mut fields.text,
                "data" => &mut fields.data,
                "blob" => &mut fields.blob,
                "mimeType" => &mut fields.mime_type,
                "uri" => &mut fields.uri,
                "name" => &mut fields.name,
                "title" => &mut fields.title,
                "description" => &mut fields.description,
                "resource" => &mut fields.resource,
                "annotations" => &mut fields.annotations,
                "icons" => &mut fields.icons,
                "_meta" => {
                    check_meta(value)?;
                    continue;
                }
                other if is_look_alike(other, &CONTENT_MEMBERS) => return Err(LOOK_ALIKE),
                _ => continue,
            };
            *field = Some(value);
        }
        Ok(fields)
    }
}

const CONTENT_MEMBERS: [&str; 12] = [
    "type",
    "text",
    "data",
    "blob",
    "mimeType",
    "uri",
    "name",
    "title",
    "description",
    "resource",
    "annotations",
    "icons",
];

fn check_annotations(annotations: Json<'_>) -> Result<(), &'static str> {
    let audience = annotations.get("audience").is_none_or(|a| {
        a.kind() == JsonKind::Array && a.elements().all(|r| r.is("user") || r.is("assistant"))
    });
    let priority = annotations.get("priority").is_none_or(|p| {
        p.kind() == JsonKind::Number
            && p.text().parse().is_ok_and(|p: f64| (0.0..=1.0).contains(&p))
    });
    let modified = annotations.get("lastModified").is_none_or(|m| m.kind() == JsonKind::String);
    if annotations.is_object() && audience && priority && modified {
        return Ok(());
    }
    Err("`annotations` must be {audience?: [role], priority?: 0..1, lastModified?}")
}

const LOOK_ALIKE: &str = "a member differs from a known one in case only";

/// Whether a member differs from a known member in letter case only. A parser that ignores case
/// would read it as the known member, unchecked.
fn is_look_alike(key: &str, known: &[&str]) -> bool {
    known.iter().any(|known| *known != key && known.eq_ignore_ascii_case(key))
}

/// Checks that the `_meta` of a content object or resource has no key with the gateway's own
/// prefix: only the gateway may state the origin of a response. The sealed link of another gateway
/// behind this one is an exception.
fn check_meta(meta: Json<'_>) -> Result<(), &'static str> {
    let is_own = |key: Json<'_>| {
        key.as_str().is_some_and(|key| key.starts_with(meta::OWN_PREFIX) && key != meta::URI)
    };
    if meta.is_object() && !meta.members().any(|(key, _)| is_own(key)) {
        return Ok(());
    }
    Err("`_meta` must be an object without keys of the gateway")
}

enum MemberPresence {
    Optional,
    Required,
}

fn is_string(value: Option<Json<'_>>, error: &'static str) -> Result<(), &'static str> {
    value.filter(|v| v.kind() == JsonKind::String).map(drop).ok_or(error)
}

fn check_uri(value: Option<Json<'_>>) -> Result<(), &'static str> {
    let text = value.and_then(Json::as_str);
    text.filter(|text| uri::is_valid(text)).map(drop).ok_or("`uri` must be a URI with a scheme")
}

fn mime_type(value: Option<Json<'_>>, presence: MemberPresence) -> Result<(), &'static str> {
    match (value.map(Json::as_str), presence) {
        (None, MemberPresence::Optional) => Ok(()),
        (Some(Some(text)), _) if is_mime_type(&text) => Ok(()),
        _ => Err("`mimeType` must have the form type/subtype"),
    }
}

/// Whether the text is `type/subtype`, both tokens, with optional parameters after a semicolon (RFC
/// 9110, section 8.3.1). Parameters are not checked.
pub fn is_mime_type(text: &str) -> bool {
    let token = |t: &str| {
        !t.is_empty()
            && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
    };
    let essence = text.split(';').next().unwrap_or_default().trim_end();
    essence.split_once('/').is_some_and(|(kind, subtype)| token(kind) && token(subtype))
}

fn base64(value: Option<Json<'_>>) -> Result<(), &'static str> {
    let raw = value.and_then(Json::raw_str).filter(|raw| is_base64(raw));
    raw.map(drop).ok_or("`data` or `blob` must be base64 with padding (RFC 4648, section 4)")
}

/// Whether the undecoded JSON string is padded base64 of the standard alphabet (RFC 4648, section
/// 4). JSON may spell `/` as `\/`.
pub(crate) fn is_base64(raw: &str) -> bool {
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
            r#"{"type":"resource_link","uri":"a:b","name":"x","_meta":{"promptgate/uri":"c:d"}}"#,
        ] {
            assert_eq!(check(content), Ok(()), "{content}");
        }
    }

    #[test]
    fn malformed_content_is_refused() {
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

    #[test]
    fn contents_of_a_resource_are_checked_as_resources_in_messages_are() {
        let inspect = |contents: &str| {
            let result = format!(r#"{{"contents":{contents}}}"#);
            inspect_contents(Json::parse(result.as_bytes(), 16).unwrap())
        };
        assert_eq!(inspect("[]"), Ok(Findings::default()));
        let found = inspect(
            r#"[{"uri":"a:b","text":"a\u200bb"},{"uri":"javascript:x","blob":"AAAA"},
                {"uri":"a:b","text":"","mimeType":"text/plain"}]"#,
        );
        assert_eq!(found, Ok(Findings { hidden_text: vec![(0, 1)], unsafe_uris: vec![1] }));
        assert_eq!(inspect("{}"), Err(ContentError::NoContents));
        for bad in [
            "7",
            r#"{"text":"x"}"#,
            r#"{"uri":"a:b"}"#,
            r#"{"uri":"b","text":"x"}"#,
            r#"{"uri":"a:b","blob":"A"}"#,
            r#"{"uri":"a:b","text":"x","_meta":{"promptgate/upstream":"z"}}"#,
        ] {
            let refused = inspect(&format!(r#"[{{"uri":"a:b","text":"x"}},{bad}]"#));
            assert!(matches!(refused, Err(ContentError::Content { index: 1, .. })), "{bad}");
        }
    }

    #[test]
    fn u13_u17_a_resource_is_inspected_whichever_type_the_content_has() {
        let text = r#"{"messages":[{"role":"user","content":{"type":"text","text":"t",
            "resource":{"uri":"javascript:x","text":"a\u200bb"}}}]}"#;
        let found = inspect_result(Json::parse(text.as_bytes(), 16).unwrap()).unwrap();
        assert_eq!(found, Findings { hidden_text: vec![(0, 1)], unsafe_uris: vec![0] });
    }
}
