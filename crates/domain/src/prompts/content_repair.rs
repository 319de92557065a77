//! Repair of `prompts/get` results whose content is spelled in a way that some libraries write and
//! others refuse. Repair runs only after [`content`] has refused a result, so that valid content,
//! which may be large, is never copied.

use std::borrow::Cow;
use std::cell::Cell;

use crate::json::document::Document;
use crate::json::object::{ObjectWriter, write_array, write_object};
use crate::json::repair::{RepairKind, RepairKinds};
use crate::json::{Json, JsonKind, write_str};
use crate::prompts::content::{is_base64, is_mime_type};
use crate::uri;

#[cfg(doc)]
use crate::prompts::content;

/// The kinds of repair made while a result is rewritten.
#[derive(Default)]
struct Repairer(Cell<RepairKinds>);

/// Returns a repaired copy of a result, and the kinds of repair; `None` if no repair applies. The
/// copy may still be invalid.
pub fn repaired(result: Json<'_>) -> Option<(Document, RepairKinds)> {
    let repairer = Repairer::default();
    let mut out = String::with_capacity(result.text().len());
    write_object(&mut out, |out| {
        for (key, value) in result.members() {
            if key.is("messages") && value.kind() == JsonKind::Array {
                out.rewritten(key, |out| {
                    write_array(out, value.elements(), |message, out| {
                        repairer.write_message(message, out);
                    });
                });
            } else {
                repairer.write_member(key, value, out);
            }
        }
    });
    let kinds = repairer.0.get();
    // The copy is no deeper than the accepted text.
    let document = Document::parse(out.into_bytes(), usize::MAX).ok()?;
    kinds.iter().next().map(|_| (document, kinds))
}

impl Repairer {
    fn count(&self, kind: RepairKind) {
        let mut kinds = self.0.get();
        kinds.add(kind);
        self.0.set(kinds);
    }

    fn write_message(&self, message: Json<'_>, out: &mut String) {
        if !message.is_object() {
            out.push_str(message.text());
            return;
        }
        write_object(out, |out| {
            for (key, value) in message.members() {
                if key.is("content") && value.is_object() {
                    out.rewritten(key, |out| self.write_content(value, out));
                } else {
                    self.write_member(key, value, out);
                }
            }
        });
    }

    fn write_content(&self, content: Json<'_>, out: &mut String) {
        let kind = content.get("type").and_then(Json::as_str).unwrap_or_default();
        let has_data = matches!(&*kind, "image" | "audio");
        write_object(out, |out| {
            for (key, value) in content.members() {
                match key.as_str().as_deref() {
                    Some("data") if has_data => self.write_base64(key, value, out),
                    // Skipped: the MIME type is replaced afterwards.
                    Some("mimeType") if has_data && !is_valid_mime_type(value) => {}
                    Some("uri" | "mimeType") if kind == "resource_link" => {
                        self.write_resource_member(key, value, out);
                    }
                    Some("resource") if kind == "resource" && value.is_object() => {
                        out.rewritten(key, |out| self.write_resource(value, out));
                    }
                    _ => self.write_member(key, value, out),
                }
            }
            let is_typed = content.get("mimeType").is_some_and(is_valid_mime_type);
            if has_data && !is_typed {
                self.count(RepairKind::MimeType);
                out.text("mimeType", &guessed_mime_type(&kind, content));
            }
        });
    }

    /// Writes a resource. Of `text` and `blob`, the non-empty member is its content.
    fn write_resource(&self, resource: Json<'_>, out: &mut String) {
        let content = |name: &str| resource.get(name).and_then(Json::raw_str);
        let left_out = match (content("text"), content("blob")) {
            (Some(_), Some("")) => Some("blob"),
            (Some(""), Some(_)) => Some("text"),
            _ => None,
        };
        write_object(out, |out| {
            for (key, value) in resource.members() {
                if left_out.is_some_and(|name| key.is(name)) {
                    self.count(RepairKind::EmptyMember);
                } else if key.is("blob") {
                    self.write_base64(key, value, out);
                } else {
                    self.write_resource_member(key, value, out);
                }
            }
        });
    }

    /// Writes a member of a resource or of a resource link, where the MIME type is optional.
    fn write_resource_member(&self, key: Json<'_>, value: Json<'_>, out: &mut ObjectWriter<'_>) {
        match key.as_str().as_deref() {
            Some("uri") => {
                let text = value.as_str().filter(|text| !uri::is_valid(text));
                self.write_repaired(
                    RepairKind::Uri,
                    text.and_then(|text| uri::repaired(&text)),
                    key,
                    value,
                    out,
                );
            }
            Some("mimeType") if !is_valid_mime_type(value) => self.count(RepairKind::MimeType),
            _ => self.write_member(key, value, out),
        }
    }

    /// Writes a member that any object may have.
    fn write_member(&self, key: Json<'_>, value: Json<'_>, out: &mut ObjectWriter<'_>) {
        // PHP writes an empty object as an empty array. Both members are optional.
        let is_object = key.is("_meta") || key.is("annotations");
        if is_object && value.is_empty_array() {
            self.count(RepairKind::EmptyObject);
        } else {
            out.member(key, value);
        }
    }

    fn write_base64(&self, key: Json<'_>, value: Json<'_>, out: &mut ObjectWriter<'_>) {
        let is_standard = value.raw_str().is_none_or(is_base64);
        let text = value.as_str().filter(|_| !is_standard);
        let repaired = text.and_then(|text| standard_base64(&text));
        self.write_repaired(RepairKind::Base64, repaired, key, value, out);
    }

    fn write_repaired(
        &self,
        kind: RepairKind,
        repaired: Option<String>,
        key: Json<'_>,
        value: Json<'_>,
        out: &mut ObjectWriter<'_>,
    ) {
        match repaired {
            None => out.member(key, value),
            Some(repaired) => {
                self.count(kind);
                out.rewritten(key, |out| write_str(&repaired, out))
            }
        };
    }
}

fn is_valid_mime_type(value: Json<'_>) -> bool {
    value.as_str().is_some_and(|text| is_mime_type(&text))
}

/// Returns base64 in its standard form with padding (RFC 4648, section 4). The text may have white
/// space, no padding, the alphabet for URLs (section 5), or the form of a `data:` URL (RFC 2397).
/// `None` for any other text.
fn standard_base64(text: &str) -> Option<String> {
    let data_url = text.strip_prefix("data:").and_then(|url| url.split_once(";base64,"));
    let text = data_url.map_or(text, |(_, data)| data);
    let mut out = String::with_capacity(text.len() + 2);
    let mut is_padded = false;
    for letter in text.chars() {
        match letter {
            ' ' | '\t' | '\n' | '\r' => {}
            '=' => is_padded = true,
            _ if is_padded => return None,
            '-' => out.push('+'),
            '_' => out.push('/'),
            '+' | '/' => out.push(letter),
            _ if letter.is_ascii_alphanumeric() => out.push(letter),
            _ => return None,
        }
    }
    let padding = match out.len() % 4 {
        0 => "",
        2 => "==",
        3 => "=",
        _ => return None,
    };
    out.push_str(padding);
    Some(out)
}

/// The first characters of base64 that identify a format (the magic numbers of its files), with the
/// kind of content and its MIME type.
const FORMATS: [(&str, &str, &str); 10] = [
    ("image", "iVBORw0KGgo", "image/png"),
    ("image", "/9j/", "image/jpeg"),
    ("image", "R0lGOD", "image/gif"),
    ("image", "UklGR", "image/webp"),
    ("audio", "UklGR", "audio/wav"),
    ("audio", "SUQz", "audio/mpeg"),
    ("audio", "//s", "audio/mpeg"),
    ("audio", "//u", "audio/mpeg"),
    ("audio", "T2dnUw", "audio/ogg"),
    ("audio", "ZkxhQw", "audio/flac"),
];

/// Returns the MIME type of an image or audio without a valid one: by its first bytes, else by the
/// word in place of the MIME type, such as `png`.
fn guessed_mime_type(kind: &str, content: Json<'_>) -> Cow<'static, str> {
    let data = content.get("data").and_then(Json::as_str).unwrap_or_default();
    let is_format = |(of, magic, _): &&(&str, &str, &str)| *of == kind && data.starts_with(magic);
    if let Some((_, _, mime_type)) = FORMATS.iter().find(is_format) {
        return (*mime_type).into();
    }
    let word = content.get("mimeType").and_then(Json::as_str).unwrap_or_default();
    let word = match word.trim().to_ascii_lowercase() {
        word if word == "jpg" => "jpeg".to_owned(),
        word if word == "mp3" => "mpeg".to_owned(),
        word => word,
    };
    let mime_type = format!("{kind}/{word}");
    if is_mime_type(&mime_type) { mime_type.into() } else { "application/octet-stream".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompts::content::check_result;

    /// The content of a result with one message after its repair, which made it valid.
    fn repair(content: &str) -> (serde_json::Value, Vec<&'static str>) {
        let text = format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#);
        let result = Json::parse(text.as_bytes(), 64).unwrap();
        assert!(check_result(result).is_err(), "{content}");
        let (document, kinds) = repaired(result).unwrap_or_else(|| panic!("{content}"));
        assert_eq!(check_result(document.json()), Ok(()), "{}", document.json().text());
        let read: serde_json::Value = serde_json::from_str(document.json().text()).unwrap();
        let kinds = kinds.iter().map(RepairKind::as_str).collect();
        (read["messages"][0]["content"].clone(), kinds)
    }

    #[test]
    fn base64_in_other_forms_is_written_in_its_standard_form() {
        for (given, expected) in [
            (r"iVBO\nRw0K\r\nGgo=", "iVBORw0KGgo="),
            (" iVBO Rw0K\\tGgo= ", "iVBORw0KGgo="),
            (r"iVBO\u000aRw0KGgo", "iVBORw0KGgo="),
            ("_-8", "/+8="),
            ("AA", "AA=="),
            ("AA=", "AA=="),
            ("AA====", "AA=="),
            ("data:image/png;base64,AA==", "AA=="),
        ] {
            let image = format!(r#"{{"type":"image","mimeType":"image/png","data":"{given}"}}"#);
            let (read, kinds) = repair(&image);
            assert_eq!((read["data"].as_str(), kinds), (Some(expected), vec!["base64"]), "{given}");
            let blob =
                format!(r#"{{"type":"resource","resource":{{"uri":"a:b","blob":"{given}"}}}}"#);
            assert_eq!(repair(&blob).0["resource"]["blob"], expected, "{given}");
        }
        for bad in ["A", "AAAAA", "AA==AA==", "A*==", "data:text/plain,AA", "Ä"] {
            assert_eq!(standard_base64(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_mime_type_that_is_none_is_left_out_or_guessed_where_it_is_required() {
        for (kind, given, data, expected) in [
            ("image", r#""""#, "iVBORw0KGgo=", "image/png"),
            ("image", r#""png""#, "/9j/4AAQ", "image/jpeg"),
            ("image", r#""jpg""#, "AAAA", "image/jpeg"),
            ("audio", r#""mp3""#, "AAAA", "audio/mpeg"),
            ("audio", r#""""#, "UklGRgAA", "audio/wav"),
            ("audio", "1", "AAAA", "application/octet-stream"),
            ("image", r#""a b""#, "AAAA", "application/octet-stream"),
        ] {
            let text = format!(r#"{{"type":"{kind}","data":"{data}","mimeType":{given}}}"#);
            let (read, kinds) = repair(&text);
            assert_eq!((read["mimeType"].as_str(), kinds), (Some(expected), vec!["mime_type"]));
        }
        let absent = repair(r#"{"type":"image","data":"R0lGODlh"}"#).0;
        assert_eq!(absent["mimeType"], "image/gif");
        for text in [
            r#"{"type":"resource_link","uri":"a:b","name":"n","mimeType":""}"#,
            r#"{"type":"resource","resource":{"uri":"a:b","text":"t","mimeType":"markdown"}}"#,
        ] {
            let (read, kinds) = repair(text);
            assert_eq!(kinds, ["mime_type"]);
            assert!(!read.to_string().contains("mimeType"), "{read}");
        }
    }

    #[test]
    fn of_text_and_blob_the_one_that_holds_something_stays() {
        let resource = |members: &str| {
            let (read, kinds) =
                repair(&format!(r#"{{"type":"resource","resource":{{"uri":"a:b",{members}}}}}"#));
            assert_eq!(kinds, ["empty_member"]);
            read["resource"].clone()
        };
        let expected = serde_json::json!({"uri": "a:b", "text": "t"});
        assert_eq!(resource(r#""text":"t","blob":"""#), expected);
        let expected = serde_json::json!({"uri": "a:b", "blob": "AAAA"});
        assert_eq!(resource(r#""text":"","blob":"AAAA""#), expected);
        let expected = serde_json::json!({"uri": "a:b", "text": ""});
        assert_eq!(resource(r#""blob":"","text":"""#), expected);
    }

    #[test]
    fn uris_and_empty_arrays_for_objects_become_valid_and_the_rest_stays() {
        let link = r#"{"type":"resource_link","uri":"file:///home/me/My Notes/todo.md","name":"n",
            "annotations":[],"_meta":[],"x":[{"_meta":[]}]}"#;
        let (read, kinds) = repair(link);
        assert_eq!(read["uri"], "file:///home/me/My%20Notes/todo.md");
        assert_eq!(kinds, ["uri", "empty_object"]);
        assert_eq!(read["x"], serde_json::json!([{"_meta": []}]));
        assert!(read.get("annotations").is_none() && read.get("_meta").is_none());
        let text = r#"{"_meta":[],"description":"d","messages":[]}"#;
        let (document, _) = repaired(Json::parse(text.as_bytes(), 8).unwrap()).unwrap();
        assert_eq!(document.json().text(), r#"{"description":"d","messages":[]}"#);
    }

    #[test]
    fn what_cannot_be_repaired_stays_as_it_is() {
        for content in [
            r#"{"type":"text","text":1,"data":"A A","uri":"a b","mimeType":"x"}"#,
            r#"{"type":"image","data":"A","mimeType":"image/png"}"#,
            r#"{"type":"resource","resource":{"uri":"no scheme","text":"x","blob":"AAAA"}}"#,
            r#"["_meta",[]]"#,
        ] {
            let text = format!(r#"{{"messages":[{{"role":"user","content":{content}}},1]}}"#);
            assert!(repaired(Json::parse(text.as_bytes(), 8).unwrap()).is_none(), "{content}");
        }
    }
}
