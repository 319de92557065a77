//! Changes to the text of a document, applied while it is written: the unchanged parts stay shared.

use std::collections::BTreeMap;

use crate::json::document::Document;
use crate::json::object::write_members;
use crate::json::{Json, write_str};
use crate::text::chunks::Splices;

/// Changes to one document that do not overlap.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Edits(BTreeMap<usize, Edit>);

/// A text that replaces the bytes from an offset on.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Edit {
    replaced: usize,
    text: String,
}

impl Edits {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts a text in place of a value of the document.
    pub fn set(&mut self, document: &Document, value: Json<'_>, text: &str) {
        let mut quoted = String::with_capacity(text.len() + 2);
        write_str(text, &mut quoted);
        self.edit(document, value.text(), value.text().len(), quoted);
    }

    /// Sets a text in the `_meta` of a non-empty object of the document.
    pub fn set_meta(&mut self, document: &Document, object: Json<'_>, key: &str, text: &str) {
        let mut member = String::with_capacity(key.len() + text.len() + 16);
        write_members(&mut member, |out| {
            out.text(key, text);
        });
        let Some(meta) = object.get("_meta") else {
            return self.edit(document, &object.text()[1..], 0, format!("\"_meta\":{{{member}}},"));
        };
        if let Some(value) = meta.get(key) {
            return self.set(document, value, text);
        }
        if meta.members().next().is_some() {
            member.push(',');
        }
        self.edit(document, &meta.text()[1..], 0, member);
    }

    fn edit(&mut self, document: &Document, place: &str, replaced: usize, text: String) {
        self.0.insert(document.offset(place), Edit { replaced, text });
    }

    /// Writes a piece of the document with the changes in it.
    pub fn write(&self, document: &Document, piece: &str, splices: &mut Splices, out: &mut String) {
        let start = document.offset(piece);
        let mut copied = 0;
        for (at, edit) in self.0.range(start..start + piece.len()) {
            let kept = &piece[copied..at - start];
            splices.add(out, kept, || document.share(kept));
            out.push_str(&edit.text);
            copied = at - start + edit.replaced;
        }
        let kept = &piece[copied..];
        splices.add(out, kept, || document.share(kept));
    }

    /// Returns a copy of a value of the document, as JSON text, with the changes in it.
    pub fn applied(&self, document: &Document, value: Json<'_>) -> String {
        let mut splices = Splices::default();
        let mut out = String::new();
        self.write(document, value.text(), &mut splices, &mut out);
        splices.into_chunks(out).into_text()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn edited(text: &str) -> Value {
        let document = Document::parse(text.as_bytes().to_vec(), 8).unwrap();
        let mut edits = Edits::default();
        for element in document.json().get("a").unwrap().elements() {
            edits.set_meta(&document, element, "k", "\"v\"");
            edits.set(&document, element.get("uri").unwrap(), "c:d");
        }
        let whole = edits.applied(&document, document.json());
        let inner = document.json().get("a").unwrap();
        assert!(whole.contains(&edits.applied(&document, inner)), "a piece is a part of the whole");
        serde_json::from_str(&whole).unwrap_or_else(|error| panic!("{error}: {whole}"))
    }

    #[test]
    fn members_are_set_wherever_they_stand() {
        for (before, after) in [
            (r#"{"uri":"a:b"}"#, json!({"_meta": {"k": "\"v\""}, "uri": "c:d"})),
            (
                r#"{ "uri" : "a:b" , "_meta" : { } }"#,
                json!({"_meta": {"k": "\"v\""}, "uri": "c:d"}),
            ),
            (
                r#"{"_meta":{ "x":1},"uri":"a:b"}"#,
                json!({"_meta": {"k": "\"v\"", "x": 1}, "uri": "c:d"}),
            ),
            (r#"{"_meta":{"k":"w"},"uri":"a:b"}"#, json!({"_meta": {"k": "\"v\""}, "uri": "c:d"})),
        ] {
            let text = format!(r#"{{"b":"é","a":[{before},{before}],"c":null}}"#);
            assert_eq!(edited(&text), json!({"b": "é", "a": [after, after]}), "{before}");
        }
    }

    #[test]
    fn what_is_large_is_shared() {
        let large = "x".repeat(8 << 10);
        let text = format!(r#"{{"blob":"{large}","uri":"a:b","text":"{large}"}}"#);
        let document = Document::parse(text.clone().into_bytes(), 8).unwrap();
        let mut edits = Edits::default();
        edits.set(&document, document.json().get("uri").unwrap(), "c:d");
        let mut splices = Splices::default();
        let mut out = String::new();
        edits.write(&document, document.json().text(), &mut splices, &mut out);
        assert!(splices.size() > 2 * large.len() && out.len() < 16, "{out}");
        assert_eq!(splices.into_chunks(out).into_text(), text.replace("a:b", "c:d"));
    }
}
