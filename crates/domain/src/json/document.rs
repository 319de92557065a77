//! Owned JSON texts that passed the strict scan, such as responses of upstreams.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::json::object::write_object;
use crate::json::repair::{RepairKind, RepairKinds};
use crate::json::salvage::{RefusedPrompt, without_lone_surrogates, without_refused_prompts};
use crate::json::{Json, JsonError, JsonKind, Outline};
use crate::text::chunks;

/// A scanned JSON text without any `null`, and the range of the value of interest in it. Clones
/// share the text.
#[derive(Clone, Debug)]
pub struct Document {
    text: Arc<String>,
    /// The outline of `text`; empty for a copy.
    outline: Arc<Outline>,
    /// Range of the value in `text`, in bytes.
    value: Range<usize>,
    /// The number of the value's span in `outline`.
    first_span: usize,
    /// `None` for a text that the scan accepted unchanged.
    repaired: Option<Arc<Repaired>>,
    /// The text before nulls were removed; `None` if it had none.
    with_nulls: Option<Arc<String>>,
}

/// The changes to a text that make the scan accept it.
#[derive(Clone, Debug, Default)]
struct Repaired {
    kinds: RepairKinds,
    left_out: Vec<RefusedPrompt>,
}

/// A text that the scan refuses, with the reason.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RefusedText {
    pub text: String,
    pub error: JsonError,
}

/// The only ASCII character above the space that is not visible.
const DELETE: u8 = 0x7f;

impl Document {
    /// Scans `bytes` (see [`Json::parse`]) and keeps them without a copy. Only a text with a `null`
    /// is rewritten, without it.
    ///
    /// # Errors
    /// As [`Json::parse`].
    pub fn parse(bytes: Vec<u8>, max_depth: usize) -> Result<Self, JsonError> {
        let text = String::from_utf8(bytes)
            .map_err(|error| JsonError::NotUtf8 { at: error.utf8_error().valid_up_to() })?;
        Self::scanned(text, max_depth).map_err(|refused| refused.error)
    }

    /// Scans `bytes` as [`Document::parse`] does, and repairs a refused text: bytes and escapes
    /// that stand for no character become U+FFFD, a byte order mark is removed, and prompts that
    /// are refused on their own are left out of the list in a response.
    ///
    /// # Errors
    /// The text, and the reason why it is refused after the repair.
    pub fn parse_repaired(bytes: Vec<u8>, max_depth: usize) -> Result<Self, RefusedText> {
        let mut repaired = Repaired::default();
        let text = String::from_utf8(bytes).unwrap_or_else(|error| {
            repaired.kinds.add(RepairKind::Text);
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        });
        let mut refused = match Self::scanned(text, max_depth) {
            Ok(document) => return Ok(document.after(repaired)),
            Err(refused) => refused,
        };
        let unmarked = refused.text.strip_prefix('\u{feff}').unwrap_or(&refused.text);
        let text = without_lone_surrogates(unmarked);
        if text.len() < refused.text.len() {
            repaired.kinds.add(RepairKind::Text);
            refused = match Self::scanned(text, max_depth) {
                Ok(document) => return Ok(document.after(repaired)),
                Err(refused) => refused,
            };
        }
        let Some((text, left_out)) = without_refused_prompts(&refused.text, max_depth) else {
            return Err(refused);
        };
        repaired.left_out = left_out;
        Self::scanned(text, max_depth).map(|document| document.after(repaired))
    }

    fn scanned(text: String, max_depth: usize) -> Result<Self, RefusedText> {
        let mut outline = Outline::default();
        if let Err(error) = Json::parse_outlined(&text, max_depth, &mut outline) {
            return Err(RefusedText { text, error });
        }
        Ok(if outline.has_null() {
            let without = Self::copy_of(Json::accepted(text.trim()));
            Self { with_nulls: Some(Arc::new(text)), ..without }
        } else {
            Self::whole(text, outline)
        })
    }

    fn after(mut self, repaired: Repaired) -> Self {
        let is_same = repaired.kinds == RepairKinds::default() && repaired.left_out.is_empty();
        self.repaired = (!is_same).then(|| Arc::new(repaired));
        self
    }

    /// Returns the kinds of repair that were made to the message, without prompts that were left
    /// out.
    pub fn repairs(&self) -> RepairKinds {
        self.repaired.as_ref().map(|repaired| repaired.kinds).unwrap_or_default()
    }

    /// Notes a repair to the message outside of its text.
    pub fn add_repair(&mut self, kind: RepairKind) {
        Arc::make_mut(self.repaired.get_or_insert_default()).kinds.add(kind);
    }

    /// Returns the prompts that were left out of the list in the text.
    pub fn left_out(&self) -> &[RefusedPrompt] {
        self.repaired.as_ref().map_or(&[], |repaired| &repaired.left_out)
    }

    /// Copies a value, without its nulls, out of the text that contains it.
    pub fn copy_of(json: Json<'_>) -> Self {
        let mut text = String::with_capacity(json.text().len());
        json.write_without_nulls(&mut text);
        Self::whole(text, Outline::default())
    }

    /// Returns the bytes that the document keeps: the memory of its text and of its outline.
    pub fn size(&self) -> usize {
        let with_nulls = self.with_nulls.as_ref().map_or(0, |text| text.capacity());
        self.text.capacity() + self.outline.size() + with_nulls
    }

    /// Returns the part of the whole text that `pick` selects, with the original nulls: they have a
    /// meaning in data of tools. Returns the document unchanged if the text had no nulls.
    #[must_use]
    pub fn with_nulls(self, pick: impl FnOnce(Json<'_>) -> Option<Json<'_>>) -> Self {
        let Some(text) = self.with_nulls.clone() else { return self };
        let mut whole = Self::shared(text, Outline::default());
        if whole.narrow(pick).is_some() { whole } else { self }
    }

    /// Returns the result of a response with its empty lists as `[]`: Go writes an empty list as
    /// `null`, Lua as `{}`. `None` if it has no such list.
    #[must_use]
    pub fn with_empty_lists(&self) -> Option<Self> {
        let original = self.clone().with_nulls(|message| message.get("result"));
        if !has_empty_lists(original.json()) {
            return None;
        }
        let mut text = String::with_capacity(original.json().text().len());
        write_lists(original.json(), &mut text);
        let mut document = Self::whole(text, Outline::default());
        document.repaired.clone_from(&self.repaired);
        document.with_nulls.clone_from(&self.with_nulls);
        document.add_repair(RepairKind::EmptyList);
        Some(document)
    }

    /// Returns a view of the value.
    pub fn json(&self) -> Json<'_> {
        Json::outlined(&self.text[self.value.clone()], &self.outline, self.first_span)
    }

    /// Returns whether all strings of the value are known to be visible ASCII with line ends and
    /// tabs: then no text in it is hidden.
    pub fn is_plain(&self) -> bool {
        let bytes = self.text[self.value.clone()].as_bytes();
        // Without a branch for each byte, so that the compiler can vectorise the loop. Control
        // characters are escaped in JSON.
        self.outline.has_visible_escapes()
            && bytes.iter().fold(true, |is_plain, byte| is_plain & (*byte < DELETE))
    }

    /// Returns the bytes of a value within this document, which share its text.
    pub fn slice(&self, part: Json<'_>) -> Bytes {
        self.share(part.text())
    }

    /// Returns the bytes of a piece of this document, which share its text.
    pub(crate) fn share(&self, piece: &str) -> Bytes {
        let start = self.offset(piece);
        chunks::shared(&self.text).slice(start..start + piece.len())
    }

    /// Returns the offset of a piece in the text. Both are slices of the same text, so the offset
    /// is the difference of their addresses.
    pub(crate) fn offset(&self, piece: &str) -> usize {
        piece.as_ptr() as usize - self.text.as_ptr() as usize
    }

    /// Narrows the value to the part that `pick` selects, without a copy. Returns `None`, and
    /// changes nothing, if `pick` returns `None`.
    pub fn narrow(&mut self, pick: impl FnOnce(Json<'_>) -> Option<Json<'_>>) -> Option<()> {
        let part = pick(self.json())?;
        let start = self.offset(part.text());
        let first_span = part.first_span(&self.outline);
        self.value = start..start + part.text().len();
        self.first_span = first_span;
        Some(())
    }

    fn whole(text: String, outline: Outline) -> Self {
        Self::shared(Arc::new(text), outline)
    }

    fn shared(text: Arc<String>, outline: Outline) -> Self {
        let end = text.trim_end().len();
        let value = text.len() - text.trim_start().len()..end;
        let outline = Arc::new(outline);
        Self { text, outline, value, first_span: 0, repaired: None, with_nulls: None }
    }
}

/// The lists in results; the last is in a completion.
const LISTS: &str = "prompts skills messages contents tools resources resourceTemplates values";

fn is_empty_list(key: Json<'_>, value: Json<'_>) -> bool {
    let is_null = value.kind() == JsonKind::Null;
    let is_empty = is_null || value.is_object() && value.members().next().is_none();
    is_empty && LISTS.split(' ').any(|list| key.is(list))
}

fn has_empty_lists(object: Json<'_>) -> bool {
    object.members().any(|(key, value)| {
        is_empty_list(key, value) || key.is("completion") && has_empty_lists(value)
    })
}

/// Appends an object without its nulls, and with its empty lists.
fn write_lists(object: Json<'_>, out: &mut String) {
    write_object(out, |out| {
        for (key, value) in object.members() {
            if is_empty_list(key, value) {
                out.json(&key.as_str().unwrap_or_default(), "[]");
            } else if key.is("completion") && value.is_object() {
                out.rewritten(key, |out| write_lists(value, out));
            } else if value.kind() != JsonKind::Null {
                out.rewritten(key, |out| value.write_without_nulls(out));
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::prompts::hidden_text;

    #[test]
    fn a_document_counts_the_memory_of_its_text() {
        let mut bytes = Vec::with_capacity(4_096);
        bytes.extend_from_slice(b"{}");
        assert!(Document::parse(bytes, 1).unwrap().size() >= 4_096);
    }

    #[test]
    fn what_stands_for_no_character_is_replaced_and_a_clean_text_stays_where_it_is() {
        let clean = br#"{"a":"\ud83d\ude00"}"#.to_vec();
        let address = clean.as_ptr();
        let document = Document::parse_repaired(clean, 8).unwrap();
        assert_eq!(document.json().text().as_ptr(), address);
        assert_eq!(document.repairs(), RepairKinds::default());
        for (bytes, expected) in [
            (&b"{\"a\":\"x\xff\"}"[..], "{\"a\":\"x\u{fffd}\"}"),
            (b"{\"a\":\"\\ud83d\xff\"}", "{\"a\":\"\u{fffd}\u{fffd}\"}"),
            (b"\xef\xbb\xbf{\"a\":1}", "{\"a\":1}"),
            (b"{\"a\":null,\"b\":\"\\udc00\"}", "{\"b\":\"\u{fffd}\"}"),
        ] {
            let document = Document::parse_repaired(bytes.to_vec(), 8).unwrap();
            assert_eq!(document.json().text(), expected);
            assert_eq!(document.repairs().iter().collect::<Vec<_>>(), [RepairKind::Text]);
        }
        for bytes in
            [&b"{\"a\":1}\xff"[..], b"{\"\xff\":1,\"\xfe\":2}", b"{\"\\ud83d\":1,\"\\ud83d\":2}"]
        {
            assert!(Document::parse_repaired(bytes.to_vec(), 8).is_err());
        }
    }

    #[test]
    fn a_refused_prompt_costs_itself() {
        let text =
            br#"{"result":{"prompts":[{"name":"a","a":1,"a":1},{"name":"b","d":"\ud83d"}]}}"#;
        let mut document = Document::parse_repaired(text.to_vec(), 8).unwrap();
        document.narrow(|json| json.get("result")).unwrap();
        assert_eq!(document.json().text(), "{\"prompts\":[{\"name\":\"b\",\"d\":\"\u{fffd}\"}]}");
        let left_out: Vec<_> =
            document.left_out().iter().map(|prompt| prompt.name.as_str()).collect();
        assert_eq!(left_out, ["a"]);
    }

    #[test]
    fn an_empty_list_may_be_null_or_an_empty_object() {
        let result = |text: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{text}}}"#);
            let mut document = Document::parse(text.into_bytes(), 8).unwrap();
            document.narrow(|message| message.get("result")).unwrap();
            document
        };
        for (text, repaired) in [
            (r#"{"prompts":null,"a":null,"b":[null]}"#, r#"{"prompts":[],"b":[]}"#),
            (r#"{"a":{"b":null},"messages":{}}"#, r#"{"a":{},"messages":[]}"#),
            (
                r#"{"completion":{"values":null,"total":0}}"#,
                r#"{"completion":{"values":[],"total":0}}"#,
            ),
        ] {
            let document = result(text).with_empty_lists().unwrap();
            assert_eq!(document.json().text(), repaired);
            assert_eq!(document.repairs().iter().collect::<Vec<_>>(), [RepairKind::EmptyList]);
            let original = document.with_nulls(|message| message.get("result"));
            assert!(!text.contains("null") || original.json().text() == text, "{text}");
        }
        for text in [
            "{}",
            r#"{"prompts":[],"other":null}"#,
            r#"{"prompts":{"a":1}}"#,
            r#"{"completion":null}"#,
        ] {
            assert!(result(text).with_empty_lists().is_none(), "{text}");
        }
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
        let mut document = Document::parse(br#" {"r":{"a":null}} "#.to_vec(), 8).unwrap();
        document.narrow(|json| json.get("r")).unwrap();
        assert_eq!(document.json().text(), "{}");
        let whole = document.with_nulls(|json| json.get("r"));
        assert_eq!(whole.json().text(), r#"{"a":null}"#);
        assert_eq!(&*whole.slice(whole.json()), br#"{"a":null}"#);
    }
}
