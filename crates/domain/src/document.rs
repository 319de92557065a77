//! Owned JSON texts that passed the strict scan, such as responses of upstreams.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::chunks;
use super::json::{Json, JsonError, Outline};

/// A scanned JSON text without any `null`, and the range of the value of interest in it. Clones
/// share the text.
#[derive(Clone, Debug)]
pub struct Document {
    text: Arc<String>,
    /// Of `text`; empty for a copy.
    outline: Arc<Outline>,
    /// Range of the value in `text`, in bytes.
    value: Range<usize>,
    /// The number of its span in `outline`.
    first_span: usize,
}

/// The only ASCII character above the space that is not visible.
const DELETE: u8 = 0x7f;

impl Document {
    /// Scans `bytes` (see [`Json::parse`]) and keeps them without a copy. Only a text that contains
    /// a `null` is rewritten, without it.
    ///
    /// # Errors
    /// As [`Json::parse`].
    pub fn parse(bytes: Vec<u8>, max_depth: usize) -> Result<Self, JsonError> {
        let text = String::from_utf8(bytes)
            .map_err(|error| JsonError::NotUtf8 { at: error.utf8_error().valid_up_to() })?;
        let mut outline = Outline::default();
        Json::parse_outlined(&text, max_depth, &mut outline)?;
        Ok(if outline.has_null() {
            Self::copy_of(Json::accepted(text.trim()))
        } else {
            Self::whole(text, outline)
        })
    }

    /// Copies a value, without its nulls, out of the text that contains it.
    pub fn copy_of(json: Json<'_>) -> Self {
        let mut text = String::with_capacity(json.text().len());
        json.write_without_nulls(&mut text);
        Self::whole(text, Outline::default())
    }

    /// Bytes that the document keeps: the memory of its text, and where its arrays and objects are.
    pub fn size(&self) -> usize {
        self.text.capacity() + self.outline.size()
    }

    /// Returns a view of the value.
    pub fn json(&self) -> Json<'_> {
        Json::outlined(&self.text[self.value.clone()], &self.outline, self.first_span)
    }

    /// Returns whether all strings of the value are known to be visible ASCII with line ends and
    /// tabs: then no text in it is hidden.
    pub fn is_plain(&self) -> bool {
        let bytes = self.text[self.value.clone()].as_bytes();
        // Without a branch for each byte, so that the compiler can vectorise it. Control characters
        // are escaped.
        self.outline.has_visible_escapes()
            && bytes.iter().fold(true, |is_plain, byte| is_plain & (*byte < DELETE))
    }

    /// Returns the bytes of a value within this document, which share its text.
    pub fn slice(&self, part: Json<'_>) -> Bytes {
        let start = self.offset(part);
        chunks::shared(&self.text).slice(start..start + part.text().len())
    }

    /// The offset of a value in the text. Both are slices of the same text, so it is the difference
    /// of their addresses.
    fn offset(&self, part: Json<'_>) -> usize {
        part.text().as_ptr() as usize - self.text.as_ptr() as usize
    }

    /// Narrows the value to the part that `pick` selects, without a copy. Returns `None`, and
    /// changes nothing, if `pick` selects none.
    pub fn narrow(&mut self, pick: impl FnOnce(Json<'_>) -> Option<Json<'_>>) -> Option<()> {
        let part = pick(self.json())?;
        let (start, first_span) = (self.offset(part), part.first_span(&self.outline));
        self.value = start..start + part.text().len();
        self.first_span = first_span;
        Some(())
    }

    fn whole(text: String, outline: Outline) -> Self {
        let end = text.trim_end().len();
        let value = text.len() - text.trim_start().len()..end;
        Self { text: Arc::new(text), outline: Arc::new(outline), value, first_span: 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hidden_text;
    use super::*;

    #[test]
    fn a_document_counts_the_memory_of_its_text() {
        let mut bytes = Vec::with_capacity(4_096);
        bytes.extend_from_slice(b"{}");
        assert!(Document::parse(bytes, 1).unwrap().size() >= 4_096);
    }

    proptest! {
        #[test]
        fn u13_a_plain_document_has_no_hidden_text(
            text in prop::collection::vec(r#"[ -~\u{7f}é]|\\(["/bfnrt]|u00[0-9a-f]{2}|u200b)"#, 0..4),
        ) {
            let text = format!(r#"{{"text":"{}"}}"#, text.concat().replace('"', "").replace("\\\\", ""));
            let Ok(document) = Document::parse(text.into_bytes(), 8) else { return Ok(()) };
            let decoded = document.json().get("text").and_then(Json::as_str).unwrap();
            let is_visible = decoded.chars().all(|c| matches!(c, ' '..='~' | '\n' | '\r' | '\t'));
            prop_assert!(is_visible || !document.is_plain());
            prop_assert!(!document.is_plain() || hidden_text::count(&decoded) == 0);
        }
    }

    #[test]
    fn only_what_was_scanned_and_is_visible_is_plain() {
        let is_plain =
            |text: &str| Document::parse(text.as_bytes().to_vec(), 8).unwrap().is_plain();
        assert!(is_plain(r#"{"text":"a\"\\\/\n\r\t~"}"#));
        for hidden in [r"\u200b", r"\u0041", r"\b", r"\f", "\u{7f}", "\u{200b}", "é"] {
            assert!(!is_plain(&format!(r#"{{"text":"a{hidden}"}}"#)), "{hidden}");
        }
        // It is written anew without its null, and was not scanned as it is.
        assert!(!is_plain(r#"{"text":"a","none":null}"#));
    }

    #[test]
    fn a_document_is_narrowed_without_a_copy_and_nulls_are_removed() {
        let text = br#" {"id":1,"result":{"a":"x"}} "#.to_vec();
        let mut document = Document::parse(text, 8).unwrap();
        assert_eq!(document.json().get("id").unwrap().text(), "1");
        document.narrow(|json| json.get("result")).unwrap();
        assert_eq!(document.json().text(), r#"{"a":"x"}"#);
        assert_eq!(document.narrow(|json| json.get("b")), None);
        assert_eq!(document.json().text(), r#"{"a":"x"}"#);
        let document = Document::parse(br#"{"a":null,"b":1}"#.to_vec(), 8).unwrap();
        assert_eq!(document.json().text(), r#"{"b":1}"#);
    }
}
