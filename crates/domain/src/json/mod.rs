//! JSON from untrusted peers: one strict scan, then borrowed views of the accepted text.
//!
//! The scan accepts RFC 8259 text that all later parsers understand in the same way: valid UTF-8,
//! bounded depth, no duplicate member in an object (compared after decoding), no lone surrogate, no
//! number beyond the range of a double. After the scan, [`Json`] returns slices of the same bytes
//! and allocates only for decoded strings that contain escapes, so a large image is never copied
//! into a tree.

pub mod document;
pub mod edits;
pub mod jsonrpc;
pub mod repair;
pub mod canonical;
pub mod object;
mod outline;
pub mod salvage;
mod scan;

use std::borrow::Cow;
use std::fmt;

use object::{write_array, write_object};
pub use outline::Outline;
use outline::ValueSpan;
pub use scan::JsonError;
use scan::{decode, string_stop};

/// One JSON value: a slice of text that the strict scan accepted.
#[derive(Clone, Copy)]
pub struct Json<'a> {
    text: &'a str,
    /// The spans from that of this value on in the outline; empty without an outline.
    spans: &'a [ValueSpan],
}

/// The six kinds of JSON value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JsonKind {
    Array,
    Bool,
    Null,
    Number,
    Object,
    String,
}

impl<'a> Json<'a> {
    /// Scans `bytes` as one JSON value with at most `max_depth` levels of nested arrays and
    /// objects.
    ///
    /// # Errors
    /// [`JsonError`] with the position of the first violation.
    pub fn parse(bytes: &'a [u8], max_depth: usize) -> Result<Self, JsonError> {
        Self::parse_text(utf8(bytes)?, max_depth)
    }

    /// Scans text in the same way as [`Json::parse`].
    ///
    /// # Errors
    /// As [`Json::parse`].
    pub fn parse_text(text: &'a str, max_depth: usize) -> Result<Self, JsonError> {
        let range = scan::value(text, max_depth, &mut Outline::default())?;
        Ok(Self::accepted(&text[range]))
    }

    /// Scans text in the same way as [`Json::parse`], for a value that is read more than once:
    /// `outline` becomes the outline of the text, so that readers find its values at once.
    ///
    /// # Errors
    /// As [`Json::parse`].
    pub fn parse_outlined(
        text: &'a str,
        max_depth: usize,
        outline: &'a mut Outline,
    ) -> Result<Self, JsonError> {
        outline.begin(text.len());
        let range = scan::value(text, max_depth, outline)?;
        Ok(Self { text: &text[range], spans: outline.from(0) })
    }

    /// Wraps the text of one value that the scan accepted before, without a check.
    pub fn accepted(text: &'a str) -> Self {
        Self { text, spans: &[] }
    }

    /// Wraps a part of an accepted text without a check: `first` is the result of
    /// [`Json::first_span`] for this part.
    pub(crate) fn outlined(text: &'a str, outline: &'a Outline, first: usize) -> Self {
        Self { text, spans: outline.from(first) }
    }

    /// Returns the number of the value's span in the outline of the text that contains it.
    pub(crate) fn first_span(self, outline: &Outline) -> usize {
        outline.first_of(self.spans)
    }

    /// Returns the JSON text of this value, without surrounding white space.
    pub fn text(self) -> &'a str {
        self.text
    }

    pub fn kind(self) -> JsonKind {
        match self.text.as_bytes()[0] {
            b'{' => JsonKind::Object,
            b'[' => JsonKind::Array,
            b'"' => JsonKind::String,
            b't' | b'f' => JsonKind::Bool,
            b'n' => JsonKind::Null,
            _ => JsonKind::Number,
        }
    }

    pub fn is_object(self) -> bool {
        self.kind() == JsonKind::Object
    }

    pub fn is_empty_array(self) -> bool {
        self.kind() == JsonKind::Array && self.elements().next().is_none()
    }

    /// Returns an object. An empty array counts as an empty object: PHP writes both alike. `None`
    /// for any other value.
    pub fn object(self) -> Option<Self> {
        match self {
            object if object.is_object() => Some(object),
            array if array.is_empty_array() => Some(Json::accepted("{}")),
            _ => None,
        }
    }

    /// Iterates over the members of an object in their order; empty for any other kind.
    pub fn members(self) -> Members<'a> {
        Members(Pieces::of(self, JsonKind::Object))
    }

    /// Iterates over the elements of an array in their order; empty for any other kind.
    pub fn elements(self) -> Elements<'a> {
        Elements(Pieces::of(self, JsonKind::Array))
    }

    /// Returns the member with this name. A member that is `null` counts as absent: no MCP field
    /// distinguishes the two.
    pub fn get(self, name: &str) -> Option<Json<'a>> {
        self.members()
            .find(|(key, _)| key.is(name))
            .map(|(_, value)| value)
            .filter(|value| value.kind() != JsonKind::Null)
    }

    /// Returns the decoded string, borrowed if it contains no escape; `None` for any other kind.
    pub fn as_str(self) -> Option<Cow<'a, str>> {
        (self.kind() == JsonKind::String).then(|| decode(&self.text[1..self.text.len() - 1]))
    }

    /// Returns the inside of a string literal, undecoded; `None` for any other kind.
    pub fn raw_str(self) -> Option<&'a str> {
        (self.kind() == JsonKind::String).then(|| &self.text[1..self.text.len() - 1])
    }

    /// Returns an integer that fits into 64 bits; `None` for any other value, also for `1.0` and
    /// `1e2`.
    pub fn as_i64(self) -> Option<i64> {
        self.text.parse().ok()
    }

    /// Returns an integer as decoders of doubles read it, also from `1.0` and `1e2`; `None` for a
    /// fraction and beyond 2^53, where a double does not name a single integer.
    pub fn as_whole(self) -> Option<i64> {
        let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() < 2f64.powi(53);
        let double = || self.text.parse().ok().filter(is_whole).map(|number| number as i64);
        self.as_i64().or_else(double)
    }

    pub fn as_bool(self) -> Option<bool> {
        self.text.parse().ok()
    }

    /// Whether this value is a string that equals `other` after decoding.
    pub fn is(self, other: &str) -> bool {
        let Some(raw) = self.raw_str() else { return false };
        // An escape takes more bytes than its character. Most other names differ in the first byte.
        let may_be_escaped = |raw: &str| {
            raw.len() > other.len()
                && (raw.starts_with('\\') || raw.as_bytes().first() == other.as_bytes().first())
        };
        raw == other || (may_be_escaped(raw) && decode(raw) == other)
    }

    /// Appends this value without members and elements that are `null`, at any level.
    pub fn write_without_nulls(self, out: &mut String) {
        match self.kind() {
            JsonKind::Object => write_object(out, |object| {
                for (key, value) in
                    self.members().filter(|(_, value)| value.kind() != JsonKind::Null)
                {
                    object.rewritten(key, |out| value.write_without_nulls(out));
                }
            }),
            JsonKind::Array => {
                let kept = self.elements().filter(|value| value.kind() != JsonKind::Null);
                write_array(out, kept, Json::write_without_nulls);
            }
            _ => out.push_str(self.text),
        }
    }
}

/// Appends `text` as a JSON string literal.
pub fn write_str(text: &str, out: &mut String) {
    if !scan::is_plain(text.as_bytes()) {
        // A string always serialises; the error type exists for other implementations of Serialize.
        out.push_str(&serde_json::to_string(text).unwrap_or_default());
        return;
    }
    out.reserve(text.len() + 2);
    out.push('"');
    out.push_str(text);
    out.push('"');
}

/// Whether a text stands in a JSON string as it is, without an escape.
pub(crate) fn is_plain(text: &str) -> bool {
    scan::is_plain(text.as_bytes())
}

/// Iterator over the `(key, value)` pairs of an object. A key is a string value.
pub struct Members<'a>(Pieces<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = (Json<'a>, Json<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Pieces::Outlined(parts) => parts.next(),
            Pieces::Text(rest) => {
                let key = next_value(rest)?;
                Some((key, next_value(rest)?))
            }
        }
    }
}

/// Iterator over the values of an array.
pub struct Elements<'a>(Pieces<'a>);

impl<'a> Iterator for Elements<'a> {
    type Item = Json<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Pieces::Outlined(parts) => parts.next().map(|(_, element)| element),
            Pieces::Text(rest) => next_value(rest),
        }
    }
}

/// The unread rest of an accepted array or object.
enum Pieces<'a> {
    Outlined(OutlinedPieces<'a>),
    /// The text behind the last value.
    Text(&'a str),
}

/// The unread rest of an array or object whose values are in an outline.
struct OutlinedPieces<'a> {
    /// The text of the array or object.
    text: &'a str,
    /// The offset of the array or object in the text of the outline.
    offset: usize,
    /// The spans of the remaining values, and all later spans.
    spans: &'a [ValueSpan],
    /// The number of spans of the remaining values.
    left: usize,
}

impl<'a> Pieces<'a> {
    fn of(value: Json<'a>, kind: JsonKind) -> Self {
        let Json { text, spans } = value;
        match spans {
            _ if value.kind() != kind => Self::Text(""),
            [] => Self::Text(&text[1..text.len() - 1]),
            [own, spans @ ..] => Self::Outlined(OutlinedPieces {
                text,
                offset: own.start as usize,
                spans,
                left: own.count as usize - 1,
            }),
        }
    }
}

impl<'a> OutlinedPieces<'a> {
    /// Returns the next value with its key; the key of an element is empty text.
    fn next(&mut self) -> Option<(Json<'a>, Json<'a>)> {
        let spans = self.spans;
        let own = spans.first().filter(|_| self.left > 0)?;
        self.left -= own.count as usize;
        self.spans = &spans[own.count as usize..];
        let key = own.key as usize - self.offset;
        let start = own.start as usize - self.offset;
        let value = Json { text: &self.text[start..start + own.len as usize], spans };
        let mut key_end = start;
        // Only white space and the colon are between the closing quote and the value.
        while key_end > key && self.text.as_bytes()[key_end - 1] != b'"' {
            key_end -= 1;
        }
        Some((Json::accepted(&self.text[key..key_end]), value))
    }
}

/// Takes the first value off the text inside an accepted array or object, keys included; `None`
/// without further values. The text must be accepted: the end of a string is found by a search for
/// the closing quote, the end of an array or object by counting brackets.
fn next_value<'a>(rest: &mut &'a str) -> Option<Json<'a>> {
    let is_between = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':');
    let start = rest.bytes().position(|byte| !is_between(&byte))?;
    let value = &rest[start..];
    let (text, after) = value.split_at(value_len(value.as_bytes()));
    *rest = after;
    Some(Json::accepted(text))
}

impl PartialEq for Json<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Json<'_> {}

impl fmt::Debug for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Json").field(&self.text).finish()
    }
}

/// Returns bytes as text.
///
/// # Errors
/// [`JsonError::NotUtf8`].
pub fn utf8(bytes: &[u8]) -> Result<&str, JsonError> {
    std::str::from_utf8(bytes).map_err(|error| JsonError::NotUtf8 { at: error.valid_up_to() })
}

/// Returns the length, in bytes, of the value at the start of accepted text.
fn value_len(bytes: &[u8]) -> usize {
    match bytes[0] {
        b'"' => string_len(bytes),
        b'{' | b'[' => {
            let mut at = 0;
            let mut depth = 0;
            loop {
                match bytes[at] {
                    b'"' => {
                        at += string_len(&bytes[at..]);
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    return at;
                }
            }
        }
        _ => bytes
            .iter()
            .position(|b| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r'))
            .unwrap_or(bytes.len()),
    }
}

/// Returns the length, in bytes, of an accepted string literal, quotes included.
fn string_len(bytes: &[u8]) -> usize {
    let mut at = 1;
    loop {
        match string_stop(&bytes[at..]) {
            Some((offset, b'"')) => return at + offset + 1,
            Some((offset, _)) => at += offset + 2,
            None => return bytes.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Json<'_>, JsonError> {
        Json::parse(text.as_bytes(), 64)
    }

    #[test]
    fn w6_duplicate_members_are_refused_in_every_spelling() {
        for text in
            [r#"{"a":1,"a":2}"#, r#"{"a":1,"\u0061":2}"#, r#"{"x":{"params":1,"params":1}}"#]
        {
            assert!(matches!(parse(text), Err(JsonError::DuplicateMember { .. })), "{text}");
        }
        let many: Vec<String> = (0..100).map(|i| format!("\"k{i}\":0")).collect();
        assert!(parse(&format!("{{{}}}", many.join(","))).is_ok());
        let twice = format!("{{{},\"k3\":1}}", many.join(","));
        assert!(matches!(parse(&twice), Err(JsonError::DuplicateMember { .. })));
        assert!(parse(r#"[{"a":1},{"a":1}]"#).is_ok());
    }

    #[test]
    fn w7_the_depth_limit_is_exact() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(&nested(64)).is_ok());
        assert!(matches!(parse(&nested(65)), Err(JsonError::TooDeep { limit: 64, .. })));
        assert!(matches!(parse(&"[".repeat(1_000_000)), Err(JsonError::TooDeep { .. })));
        let hidden = format!(r#"{{"unknown":{{"_meta":{}}}}}"#, nested(63));
        assert!(matches!(parse(&hidden), Err(JsonError::TooDeep { .. })));
    }

    #[test]
    fn w5_invalid_json_is_refused() {
        for text in [
            "",
            " ",
            "NaN",
            "{",
            "[1,]",
            "{\"a\":}",
            "01",
            "1.",
            "-",
            "1e",
            "\u{feff}{}",
            "tru",
            "\"\n\"",
            r#""\x""#,
            "{} {}",
        ] {
            assert!(matches!(parse(text), Err(JsonError::Syntax { .. })), "{text:?}");
        }
        assert_eq!(Json::parse(b"\"a\xff\"", 64), Err(JsonError::NotUtf8 { at: 2 }));
        for text in [r#""\ud800""#, r#""\udc00""#, r#""\ud800A""#, r#""\ud800\u0041""#] {
            assert!(matches!(parse(text), Err(JsonError::LoneSurrogate { .. })), "{text}");
        }
        assert_eq!(parse("[1e400]"), Err(JsonError::NumberRange { at: 1 }));
    }

    #[test]
    fn views_borrow_members_and_elements() {
        let json = parse(r#" { "a" : [1, {"b":"]\""}, "x\u0041"], "c":null, "d":true } "#).unwrap();
        let list: Vec<&str> = json.get("a").unwrap().elements().map(Json::text).collect();
        assert_eq!(list, ["1", r#"{"b":"]\""}"#, r#""x\u0041""#]);
        assert_eq!(json.get("a").unwrap().elements().nth(2).unwrap().as_str().unwrap(), "xA");
        assert_eq!(json.get("c"), None);
        assert_eq!(json.get("d").unwrap().as_bool(), Some(true));
        assert_eq!(json.get("e"), None);
        assert_eq!(json.members().count(), 3);
        assert_eq!(parse("{}").unwrap().members().count(), 0);
    }

    #[test]
    fn a_name_is_found_in_every_spelling() {
        for (text, name, is_equal) in [
            (r#""name""#, "name", true),
            (r#""\u006eame""#, "name", true),
            (r#""nam\u0065""#, "name", true),
            (r#""names""#, "name", false),
            (r#""nam\u0066""#, "name", false),
            (r#""\u006fame""#, "name", false),
            (r#""""#, "", true),
            (r#""\u0061""#, "", false),
            (r#""\\""#, "\\", true),
            ("7", "7", false),
        ] {
            assert_eq!(parse(text).unwrap().is(name), is_equal, "{text} {name}");
        }
    }

    #[test]
    fn nulls_are_omitted_at_every_level() {
        let mut outline = Outline::default();
        Json::parse_outlined(r#"{"a":1,"d":"null"}"#, 64, &mut outline).unwrap();
        assert!(!outline.has_null());
        let text = r#"{"a":null,"b":[null,1,{"c":null}],"d":"null"}"#;
        Json::parse_outlined(text, 64, &mut outline).unwrap();
        assert!(outline.has_null());
        let json = Json::parse_outlined(text, 64, &mut outline).unwrap();
        let mut out = String::new();
        json.write_without_nulls(&mut out);
        assert_eq!(out, r#"{"b":[1,{}],"d":"null"}"#);
    }

    /// All arrays and objects in a value, itself included, and its other values.
    fn walk<'a>(json: Json<'a>, out: &mut Vec<&'a str>) {
        out.push(json.text());
        json.elements().for_each(|element| walk(element, out));
        for (key, value) in json.members() {
            out.push(key.text());
            walk(value, out);
        }
    }

    #[test]
    fn a_text_of_too_many_values_is_read_without_an_outline() {
        // The border: one span for each eight bytes, and sixteen more.
        let text = |arrays: usize| format!("[\"{}\"{}]", "x".repeat(160), ",[]".repeat(arrays));
        for (arrays, has_outline) in [(55, true), (56, false)] {
            let text = text(arrays);
            let mut outline = Outline::default();
            let json = Json::parse_outlined(&text, 64, &mut outline).unwrap();
            assert_eq!(json.elements().count(), arrays + 1);
            assert!(json.elements().skip(1).all(|element| element.text() == "[]"));
            assert_eq!(!json.spans.is_empty(), has_outline, "{arrays} in {}", text.len());
            assert!(outline.size() <= 2 * text.len() + 16 * size_of::<ValueSpan>());
        }
    }

    /// Any JSON value.
    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i32>().prop_map(Into::into),
            "[a\"\\\\{}\\[\\], ]{0,6}".prop_map(Into::into),
            "[a\"\\\\]{100,140}".prop_map(Into::into),
        ];
        leaf.prop_recursive(6, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                prop::collection::btree_map("[a-c{\"]{0,2}", inner, 0..6)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_value_reads_the_same_with_an_outline_and_without(value in value(), is_pretty: bool, room in 0..400_usize) {
            let text = if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            // White space makes room for more spans.
            let text = " ".repeat(room) + &text.unwrap();
            let mut outline = Outline::default();
            let mut with = Vec::new();
            let mut without = Vec::new();
            walk(Json::parse_outlined(&text, 64, &mut outline).unwrap(), &mut with);
            walk(Json::parse_text(&text, 64).unwrap(), &mut without);
            prop_assert_eq!(with, without);
        }

        #[test]
        fn the_scan_agrees_with_serde_json(bytes in prop::collection::vec(
            prop::sample::select(b"{}[]\",:0123456789.eE+-truefalsn \\u\xc3\xa9".to_vec()), 0..40)
        ) {
            let theirs = serde_json::from_slice::<serde_json::Value>(&bytes);
            match Json::parse(&bytes, 64) {
                Ok(json) => {
                    let again: serde_json::Value = serde_json::from_str(json.text()).unwrap();
                    prop_assert_eq!(theirs.unwrap(), again);
                }
                Err(JsonError::DuplicateMember { .. }) => {}
                Err(error) => prop_assert!(theirs.is_err(), "{} but serde_json reads it", error),
            }
        }

        #[test]
        fn members_of_an_object_are_complete(map in prop::collection::btree_map(".{0,8}", ".{0,20}", 0..30)) {
            let text = serde_json::to_string(&map).unwrap();
            let json = parse(&text).unwrap();
            let read: std::collections::BTreeMap<String, String> = json
                .members()
                .map(|(k, v)| (k.as_str().unwrap().into_owned(), v.as_str().unwrap().into_owned()))
                .collect();
            prop_assert_eq!(read, map);
        }
    }
}
