//! JSON as strangers send it: one strict scan, then borrowed views of the accepted text.
//!
//! The scan accepts RFC 8259 text that every reader after us understands in the same way: valid
//! UTF-8, bounded depth, no member twice in one object (escapes resolved), no lone surrogate, no
//! number beyond a double. Past it, [`Json`] hands out slices of the same bytes and allocates
//! nothing but decoded strings that hold escapes, so a large image is never copied into a tree.

use std::borrow::Cow;
use std::collections::HashSet;

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

/// Why a text is not accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JsonError {
    #[error("not valid UTF-8 at byte {at}")]
    NotUtf8 { at: usize },
    #[error("not valid JSON at byte {at}")]
    Syntax { at: usize },
    #[error("nested deeper than {limit} levels at byte {at}")]
    TooDeep { at: usize, limit: usize },
    #[error("the same member twice in one object at byte {at}")]
    DuplicateMember { at: usize },
    #[error("half a surrogate pair at byte {at}")]
    LoneSurrogate { at: usize },
    #[error("a number beyond the range of a double at byte {at}")]
    NumberRange { at: usize },
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
        let bytes = text.as_bytes();
        let mut scan = Scan { text, bytes, at: 0, max_depth, keys: Vec::new(), has_null: false };
        scan.space();
        let start = scan.at;
        scan.value(0)?;
        let end = scan.at;
        scan.space();
        if scan.at != bytes.len() {
            return Err(scan.syntax());
        }
        Ok((Self(&text[start..end]), scan.has_null))
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
            Kind::Object => {
                out.push('{');
                let kept = self.members().filter(|(_, v)| v.kind() != Kind::Null);
                for (i, (key, value)) in kept.enumerate() {
                    separate(out, i);
                    out.push_str(key.text());
                    out.push(':');
                    value.write_without_nulls(out);
                }
                out.push('}');
            }
            Kind::Array => {
                out.push('[');
                let kept = self.elements().filter(|v| v.kind() != Kind::Null);
                for (i, value) in kept.enumerate() {
                    separate(out, i);
                    value.write_without_nulls(out);
                }
                out.push(']');
            }
            _ => out.push_str(self.0),
        }
    }
}

/// Appends `text` as a JSON string literal.
pub fn write_str(text: &str, out: &mut String) {
    // A string always serialises; the error type only covers foreign Serialize impls.
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
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
        match value.kind() == kind {
            true => Self(&value.0[1..value.0.len() - 1]),
            false => Self(""),
        }
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
            let (mut at, mut depth) = (0, 0);
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

/// The first quote or backslash: vectorised, since base64 runs to megabytes.
fn string_stop(bytes: &[u8]) -> Option<(usize, u8)> {
    let at = memchr::memchr2(b'"', b'\\', bytes)?;
    Some((at, bytes[at]))
}

fn separate(out: &mut String, index: usize) {
    if index > 0 {
        out.push(',');
    }
}

/// Decodes the inside of an accepted string literal.
fn decode(inside: &str) -> Cow<'_, str> {
    if !inside.contains('\\') {
        return Cow::Borrowed(inside);
    }
    // The scan has checked every escape, so the decoder of serde_json cannot fail on it.
    serde_json::from_str::<String>(&format!("\"{inside}\""))
        .map_or(Cow::Borrowed(inside), Cow::Owned)
}

struct Scan<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    max_depth: usize,
    /// Keys of all objects that are open, innermost last.
    keys: Vec<Cow<'a, str>>,
    has_null: bool,
}

/// Up to this many keys a linear search beats hashing.
const FEW_KEYS: usize = 16;

impl<'a> Scan<'a> {
    fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => self.string().map(drop),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => {
                self.has_null = true;
                self.literal("null")
            }
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonError> {
        self.enter(depth)?;
        if self.eat(b'}') {
            return Ok(());
        }
        let first = self.keys.len();
        let mut many: Option<HashSet<Cow<'a, str>>> = None;
        loop {
            self.space();
            let at = self.at;
            let key = decode(self.string()?);
            if let Some(seen) = &mut many {
                if !seen.insert(key) {
                    return Err(JsonError::DuplicateMember { at });
                }
            } else {
                if self.keys[first..].contains(&key) {
                    return Err(JsonError::DuplicateMember { at });
                }
                self.keys.push(key);
                if self.keys.len() - first > FEW_KEYS {
                    many = Some(self.keys.drain(first..).collect());
                }
            }
            self.space();
            self.expect(b':')?;
            self.space();
            self.value(depth)?;
            self.space();
            if self.eat(b',') {
                continue;
            }
            self.expect(b'}')?;
            self.keys.truncate(first);
            return Ok(());
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonError> {
        self.enter(depth)?;
        if self.eat(b']') {
            return Ok(());
        }
        loop {
            self.space();
            self.value(depth)?;
            self.space();
            if !self.eat(b',') {
                return self.expect(b']');
            }
        }
    }

    fn enter(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth > self.max_depth {
            let (at, limit) = (self.at, self.max_depth);
            return Err(JsonError::TooDeep { at, limit });
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    /// Scans a string literal and returns its inside, undecoded.
    fn string(&mut self) -> Result<&'a str, JsonError> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            let Some((offset, stop)) = string_stop(&self.bytes[self.at..]) else {
                return Err(self.syntax());
            };
            let run = &self.bytes[self.at..self.at + offset];
            if run.iter().fold(false, |bad, &b| bad | (b < 0x20)) {
                return Err(self.syntax());
            }
            self.at += offset + 1;
            match stop {
                b'"' => return Ok(&self.text[start..self.at - 1]),
                _ => self.escape()?,
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                match self.hex4()? {
                    0xD800..=0xDBFF => {
                        let at = self.at;
                        let low = self.eat(b'\\') && self.eat(b'u');
                        if !low || !(0xDC00..=0xDFFF).contains(&self.hex4()?) {
                            return Err(JsonError::LoneSurrogate { at });
                        }
                    }
                    0xDC00..=0xDFFF => return Err(JsonError::LoneSurrogate { at: self.at }),
                    _ => {}
                }
            }
            _ => return Err(self.syntax()),
        }
        Ok(())
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let digits = self.bytes.get(self.at..self.at + 4);
        let digits = digits.filter(|d| d.iter().all(u8::is_ascii_hexdigit));
        let unit =
            digits.and_then(|_| u32::from_str_radix(&self.text[self.at..self.at + 4], 16).ok());
        let unit = unit.ok_or_else(|| self.syntax())?;
        self.at += 4;
        Ok(unit)
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if !self.eat(b'+') {
                self.eat(b'-');
            }
            self.digits()?;
        }
        let finite = |text: &str| text.parse::<f64>().is_ok_and(f64::is_finite);
        match finite(&self.text[start..self.at]) {
            true => Ok(()),
            false => Err(JsonError::NumberRange { at: start }),
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.syntax());
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Result<(), JsonError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.syntax());
        }
        self.at += word.len();
        Ok(())
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let hit = self.peek() == Some(byte);
        self.at += usize::from(hit);
        hit
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        match self.eat(byte) {
            true => Ok(()),
            false => Err(self.syntax()),
        }
    }

    fn syntax(&self) -> JsonError {
        JsonError::Syntax { at: self.at }
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
    fn w6_a_member_twice_is_refused_however_it_is_spelled() {
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
    fn w7_depth_is_counted_at_its_border() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(&nested(64)).is_ok());
        assert!(matches!(parse(&nested(65)), Err(JsonError::TooDeep { limit: 64, .. })));
        assert!(matches!(parse(&"[".repeat(1_000_000)), Err(JsonError::TooDeep { .. })));
        let hidden = format!(r#"{{"unknown":{{"_meta":{}}}}}"#, nested(63));
        assert!(matches!(parse(&hidden), Err(JsonError::TooDeep { .. })));
    }

    #[test]
    fn w5_what_is_not_json_is_refused() {
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
    fn nulls_are_left_out_at_every_level() {
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
