//! The strict scan of JSON text (RFC 8259): validation in one pass, without a tree.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use super::outline::Outline;

/// The reason why the scan refuses a text. `at` is an offset from the start of the text, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JsonError {
    #[error("not valid UTF-8 at byte {at}")]
    NotUtf8 { at: usize },
    #[error("not valid JSON at byte {at}")]
    Syntax { at: usize },
    #[error("nested deeper than {limit} levels at byte {at}")]
    TooDeep { at: usize, limit: usize },
    #[error("duplicate member at byte {at}")]
    DuplicateMember { at: usize },
    #[error("lone surrogate at byte {at}")]
    LoneSurrogate { at: usize },
    #[error("number beyond the range of a double at byte {at}")]
    NumberRange { at: usize },
}

/// Scans `text` as one value with at most `max_depth` levels of nested arrays and objects. Returns
/// the range of the value in the text, in bytes, without surrounding white space, and adds its
/// spans to an outline that has begun.
pub(super) fn value(
    text: &str,
    max_depth: usize,
    outline: &mut Outline,
) -> Result<Range<usize>, JsonError> {
    let bytes = text.as_bytes();
    let keys = Vec::with_capacity(FEW_KEYS);
    let mut scan = Scan { text, bytes, at: 0, max_depth, keys, outline };
    scan.space();
    let start = scan.at;
    scan.value(start, 0)?;
    let range = start..scan.at;
    scan.space();
    if scan.at < bytes.len() {
        return Err(scan.syntax());
    }
    Ok(range)
}

/// Returns the offset of the first byte that cannot occur unescaped in a string literal (a quote, a
/// backslash or a control character), and this byte.
#[inline]
pub(super) fn string_stop(bytes: &[u8]) -> Option<(usize, u8)> {
    // Most strings are names of members: shorter than the setup cost of the vectorised search.
    let (words, _) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().take(SHORT_WORDS).enumerate() {
        let found = stops(u64::from_le_bytes(*word));
        if found != 0 {
            let at = index * 8 + found.trailing_zeros() as usize / 8;
            return Some((at, bytes[at]));
        }
    }
    long_string_stop(bytes, words.len().min(SHORT_WORDS) * 8)
}

/// As [`string_stop`], from an offset on. Vectorised, because base64 strings can have megabytes.
fn long_string_stop(bytes: &[u8], from: usize) -> Option<(usize, u8)> {
    let stop = memchr::memchr2(b'"', b'\\', &bytes[from..]).map(|at| from + at);
    let run = &bytes[from..stop.unwrap_or(bytes.len())];
    let at = if run.iter().fold(false, |found, byte| found | (*byte < b' ')) {
        from + run.iter().position(|byte| *byte < b' ')?
    } else {
        stop?
    };
    Some((at, bytes[at]))
}

/// Whether a text has no byte at which [`string_stop`] would stop.
pub(super) fn is_plain(text: &[u8]) -> bool {
    all_words(text, |word| stops(word) == 0)
}

/// Whether `holds` for all words of eight bytes that make up a text. The last may share bytes with
/// the one before, or be filled up with spaces.
fn all_words(text: &[u8], holds: impl Fn(u64) -> bool) -> bool {
    let (words, rest) = text.as_chunks::<8>();
    let last = match text.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => {
            rest.iter().fold(REPEATED * u64::from(b' '), |word, byte| word << 8 | u64::from(*byte))
        }
    };
    words.iter().all(|word| holds(u64::from_le_bytes(*word))) && holds(last)
}

/// Returns a word with the highest bit set for each byte that is a quote, a backslash or a control
/// character, exact up to the first such byte.
fn stops(word: u64) -> u64 {
    let is_control = word.wrapping_sub(REPEATED * u64::from(b' ')) & !word & (REPEATED << 7);
    let is_quote = zero_bytes(word ^ (REPEATED * u64::from(b'"')));
    is_control | is_quote | zero_bytes(word ^ (REPEATED * u64::from(b'\\')))
}

/// The number of words of eight bytes that are searched one by one.
const SHORT_WORDS: usize = 4;

/// A one in each byte of a word.
const REPEATED: u64 = 0x0101_0101_0101_0101;

/// Returns a word with the highest bit set for each zero byte, exact up to the first one (H. S.
/// Warren, Hacker's Delight, section 6-1).
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(REPEATED) & !word & (REPEATED << 7)
}

/// Whether a string literal contains an escape. Most strings are names of members: shorter than the
/// setup cost of the vectorised search.
fn has_escape(inside: &[u8]) -> bool {
    if inside.len() <= SHORT_WORDS * 8 {
        return !all_words(inside, |word| zero_bytes(word ^ (REPEATED * u64::from(b'\\'))) == 0);
    }
    memchr::memchr(b'\\', inside).is_some()
}

/// Decodes the inside of an accepted string literal.
pub(super) fn decode(inside: &str) -> Cow<'_, str> {
    if !has_escape(inside.as_bytes()) {
        return Cow::Borrowed(inside);
    }
    // The scan has checked every escape, so the decoder of serde_json cannot fail on it.
    serde_json::from_str::<String>(&format!("\"{inside}\""))
        .map_or(Cow::Borrowed(inside), Cow::Owned)
}

/// The state of a scan.
struct Scan<'a> {
    text: &'a str,
    bytes: &'a [u8],
    /// Offset of the next byte.
    at: usize,
    max_depth: usize,
    /// Keys of all objects that are not closed yet, innermost last.
    keys: Vec<Cow<'a, str>>,
    outline: &'a mut Outline,
}

/// A scanned string literal.
struct Literal<'a> {
    /// The text between the quotes, undecoded.
    inside: &'a str,
    has_escapes: bool,
}

/// The number of keys of an object that are searched linearly: up to this number a linear search is
/// faster than hashing.
const FEW_KEYS: usize = 16;

impl<'a> Scan<'a> {
    /// Scans a value whose key begins at `key`; without a key, `key` is the offset of the value.
    fn value(&mut self, key: usize, depth: usize) -> Result<(), JsonError> {
        let number = self.outline.open(key, self.at);
        match self.peek() {
            Some(b'{') => self.container(depth + 1, Self::object)?,
            Some(b'[') => self.container(depth + 1, Self::array)?,
            Some(b'"') => self.string().map(drop)?,
            Some(b't') => self.literal("true")?,
            Some(b'f') => self.literal("false")?,
            Some(b'n') => {
                self.outline.has_null = true;
                self.literal("null")?;
            }
            _ => self.number()?,
        }
        self.outline.close(number, self.at);
        Ok(())
    }

    /// Scans an array or object at this depth with `inside`, from the opening bracket on.
    fn container(
        &mut self,
        depth: usize,
        inside: impl FnOnce(&mut Self, usize) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        if depth > self.max_depth {
            return Err(JsonError::TooDeep { at: self.at, limit: self.max_depth });
        }
        self.at += 1;
        self.space();
        inside(self, depth)
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonError> {
        if self.eat(b'}') {
            return Ok(());
        }
        let first = self.keys.len();
        let mut hashed: Option<HashSet<Cow<'a, str>>> = None;
        loop {
            self.space();
            let at = self.at;
            let key = match self.string()? {
                Literal { inside, has_escapes: false } => Cow::Borrowed(inside),
                Literal { inside, has_escapes: true } => decode(inside),
            };
            if let Some(seen) = &mut hashed {
                if !seen.insert(key) {
                    return Err(JsonError::DuplicateMember { at });
                }
            } else {
                if self.keys[first..].contains(&key) {
                    return Err(JsonError::DuplicateMember { at });
                }
                self.keys.push(key);
                if self.keys.len() - first > FEW_KEYS {
                    hashed = Some(self.keys.drain(first..).collect());
                }
            }
            self.space();
            self.expect(b':')?;
            self.space();
            self.value(at, depth)?;
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
        if self.eat(b']') {
            return Ok(());
        }
        loop {
            self.space();
            self.value(self.at, depth)?;
            self.space();
            if !self.eat(b',') {
                return self.expect(b']');
            }
        }
    }

    fn string(&mut self) -> Result<Literal<'a>, JsonError> {
        self.expect(b'"')?;
        let start = self.at;
        let mut has_escapes = false;
        loop {
            let Some((offset, stop)) = string_stop(&self.bytes[self.at..]) else {
                return Err(self.syntax());
            };
            match stop {
                b'"' => {
                    let end = self.at + offset;
                    self.at = end + 1;
                    return Ok(Literal { inside: &self.text[start..end], has_escapes });
                }
                b'\\' => {
                    self.at += offset + 1;
                    has_escapes = true;
                    self.escape()?;
                }
                _ => return Err(self.syntax()),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'b' | b'f') => {
                self.outline.has_visible_escapes = false;
                self.at += 1;
            }
            Some(b'u') => {
                self.outline.has_visible_escapes = false;
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
        if self.text[start..self.at].parse::<f64>().is_ok_and(f64::is_finite) {
            return Ok(());
        }
        Err(JsonError::NumberRange { at: start })
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
        if self.eat(byte) { Ok(()) } else { Err(self.syntax()) }
    }

    fn syntax(&self) -> JsonError {
        JsonError::Syntax { at: self.at }
    }
}
