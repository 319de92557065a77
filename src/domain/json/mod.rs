//! JSON as strangers send it: one strict scan, then borrowed views of the accepted text.
//!
//! The scan accepts RFC 8259 text that every reader after us understands in the same way: valid
//! UTF-8, bounded depth, no member twice in one object (escapes resolved), no lone surrogate, no
//! number beyond a double. Past it, [`Json`] hands out slices of the same bytes and allocates
//! nothing but decoded strings that hold escapes, so a large image is never copied into a tree.

pub(crate) mod object;
mod scan;

use std::borrow::Cow;

use object::{write_array, write_object};
pub use scan::JsonError;
use scan::{decode, string_stop};

/// One JSON value: a slice of text that the strict scan accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Json<'a>(&'a str);

/// The six kinds of JSON value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Array,
    Bool,
    Null,
    Number,
    Object,
    String,
}

impl<'a> Json<'a> {
    /// Scans `bytes` as one JSON value with at most `max_depth` nested arrays and objects.
    pub fn parse(bytes: &'a [u8], max_depth: usize) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| JsonError::NotUtf8 { at: error.valid_up_to() })?;
        Ok(Self::parse_text(text, max_depth)?.0)
    }

    /// Scans text as [`Json::parse`] does bytes; also tells whether a `null` occurs anywhere.
    pub fn parse_text(text: &'a str, max_depth: usize) -> Result<(Self, bool), JsonError> {
        let scanned = scan::value(text, max_depth)?;
        Ok((Self(&text[scanned.range]), scanned.has_null))
    }

    /// A value of a text that was scanned before.
    pub(super) fn accepted(text: &'a str) -> Self {
        Self(text)
    }

    /// The text of this value, without surrounding white space.
    pub fn text(self) -> &'a str {
        self.0
    }

    pub fn kind(self) -> Kind {
        match self.0.as_bytes()[0] {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' | b'f' => Kind::Bool,
            b'n' => Kind::Null,
            _ => Kind::Number,
        }
    }

    pub fn is_object(self) -> bool {
        self.kind() == Kind::Object
    }

    /// The members of an object in their order; nothing for any other kind.
    pub fn members(self) -> Members<'a> {
        Members(Pieces::of(self, Kind::Object))
    }

    /// The elements of an array in their order; nothing for any other kind.
    pub fn elements(self) -> Elements<'a> {
        Elements(Pieces::of(self, Kind::Array))
    }

    /// The member of that name. A member that is `null` counts as absent: no MCP field tells the
    /// two apart.
    pub fn get(self, name: &str) -> Option<Json<'a>> {
        self.members()
            .find(|(key, _)| key.is(name))
            .map(|(_, value)| value)
            .filter(|value| value.kind() != Kind::Null)
    }

    /// The decoded string, borrowed where it holds no escape.
    pub fn as_str(self) -> Option<Cow<'a, str>> {
        (self.kind() == Kind::String).then(|| decode(&self.0[1..self.0.len() - 1]))
    }

    /// The undecoded inside of a string literal.
    pub fn raw_str(self) -> Option<&'a str> {
        (self.kind() == Kind::String).then(|| &self.0[1..self.0.len() - 1])
    }

    /// An integer that fits; `1.0` and `1e2` are not integers here.
    pub fn as_i64(self) -> Option<i64> {
        self.0.parse().ok()
    }

    pub fn as_bool(self) -> Option<bool> {
        self.0.parse().ok()
    }

    /// Whether this string equals `other` once decoded.
    pub fn is(self, other: &str) -> bool {
        self.as_str().is_some_and(|s| s == other)
    }

    /// Writes this value without any `null`: such members and elements are left out.
    pub fn write_without_nulls(self, out: &mut String) {
        match self.kind() {
            Kind::Object => write_object(out, |object| {
                for (key, value) in self.members().filter(|(_, value)| value.kind() != Kind::Null) {
                    object.rewritten(key, |out| value.write_without_nulls(out));
                }
            }),
            Kind::Array => {
                let kept = self.elements().filter(|value| value.kind() != Kind::Null);
                write_array(out, kept, Json::write_without_nulls);
            }
            _ => out.push_str(self.0),
        }
    }
}

/// Appends `text` as a JSON string literal.
pub(crate) fn write_str(text: &str, out: &mut String) {
    if text.bytes().any(|byte| byte < b' ' || matches!(byte, b'"' | b'\\')) {
        // A string always serialises; the error type only covers foreign Serialize impls.
        out.push_str(&serde_json::to_string(text).unwrap_or_default());
        return;
    }
    out.reserve(text.len() + 2);
    out.push('"');
    out.push_str(text);
    out.push('"');
}

/// Iterator over `(key, value)` of an object; keys are string values.
pub struct Members<'a>(Pieces<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = (Json<'a>, Json<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.0.next()?;
        Some((key, self.0.next()?))
    }
}

/// Iterator over the values of an array.
pub struct Elements<'a>(Pieces<'a>);

impl<'a> Iterator for Elements<'a> {
    type Item = Json<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

/// The values directly inside an accepted array or object, keys and values alike. It trusts the
/// text: strings are skipped with `find`, nested values by counting brackets.
struct Pieces<'a>(&'a str);

impl<'a> Pieces<'a> {
    fn of(value: Json<'a>, kind: Kind) -> Self {
        Self(if value.kind() == kind { &value.0[1..value.0.len() - 1] } else { "" })
    }

    fn next(&mut self) -> Option<Json<'a>> {
        let rest = self.0.trim_start_matches([' ', '\t', '\n', '\r', ',', ':']);
        if rest.is_empty() {
            return None;
        }
        let (piece, rest) = rest.split_at(value_len(rest.as_bytes()));
        self.0 = rest;
        Some(Json(piece))
    }
}

/// Length of the value that accepted text starts with.
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

/// Length of an accepted string literal, quotes included.
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
    fn nulls_are_omitted_at_every_level() {
        let (json, has_null) =
            Json::parse_text(r#"{"a":null,"b":[null,1,{"c":null}],"d":"null"}"#, 64).unwrap();
        assert!(has_null);
        let mut out = String::new();
        json.write_without_nulls(&mut out);
        assert_eq!(out, r#"{"b":[1,{}],"d":"null"}"#);
    }

    proptest! {
        #[test]
        fn what_the_scan_accepts_serde_json_reads_alike(bytes in prop::collection::vec(
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
        fn members_put_together_again_are_the_object(map in prop::collection::btree_map(".{0,8}", ".{0,20}", 0..30)) {
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
