//! Owned JSON texts that passed the strict scan, such as responses of upstreams.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::chunks;
use super::json::{Json, JsonError, Outline};

/// A scanned JSON text without any `null`, and the range of the value of interest in it. Clones share the text.
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

impl Document {
    /// Scans `bytes` (see [`Json::parse`]) and keeps them without a copy. Only a text that contains a `null` is
    /// rewritten, without it.
    ///
    /// # Errors
    /// Those of [`Json::parse`].
    pub fn parse(bytes: Vec<u8>, max_depth: usize) -> Result<Self, JsonError> {
        let text = String::from_utf8(bytes)
            .map_err(|error| JsonError::NotUtf8 { at: error.utf8_error().valid_up_to() })?;
        let mut outline = Outline::default();
        Json::parse_outlined(&text, max_depth, &mut outline)?;
        Ok(match outline.has_null() {
            true => Self::copy_of(Json::accepted(text.trim())),
            false => Self::whole(text, outline),
        })
    }

    /// Copies a value, without its nulls, out of the text that contains it.
    pub fn copy_of(json: Json<'_>) -> Self {
        let mut text = String::with_capacity(json.text().len());
        json.write_without_nulls(&mut text);
        Self::whole(text, Outline::default())
    }

    /// Bytes that the document keeps: its text, and where its arrays and objects are.
    pub fn size(&self) -> usize {
        self.text.len() + self.outline.size()
    }

    /// Returns a view of the value.
    pub fn json(&self) -> Json<'_> {
        Json::outlined(&self.text[self.value.clone()], &self.outline, self.first_span)
    }

    /// Returns the bytes of a value within this document, which share its text.
    pub fn slice(&self, part: Json<'_>) -> Bytes {
        let start = self.offset(part);
        chunks::shared(&self.text).slice(start..start + part.text().len())
    }

    /// The offset of a value in the text. Both are slices of the same text, so it is the difference of their addresses.
    fn offset(&self, part: Json<'_>) -> usize {
        part.text().as_ptr() as usize - self.text.as_ptr() as usize
    }

    /// Narrows the value to the part that `pick` selects, without a copy. Returns `None`, and changes nothing, if
    /// `pick` selects none.
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
    use super::*;

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
