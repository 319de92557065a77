//! Removal of secrets from texts of others: an upstream may repeat the credential that it was
//! called with, as error messages for developers do, in the encoding of a URL, a form, JSON or
//! HTML.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::fault::{ChildReport, UpstreamFaultKind as Kind, excerpt};
use crate::json::document::Document;

/// The replacement of a secret.
const REDACTED: &str = "[redacted]";

/// Shortest secret that is also searched for in encoded forms, in bytes. A shorter secret is only
/// found verbatim: its encoded forms occur in ordinary words.
const MIN_WRITTEN: usize = 6;

/// JSON depth of documents, which were accepted before.
const DEPTH: usize = 64;

/// Secrets, prepared for the search in texts. `Debug` shows no secret.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Secrets {
    forms: Vec<Form>,
    /// A bit for each byte with which a form may begin.
    first: [u64; 4],
}

/// A searched form of a secret.
#[derive(Clone, Eq, PartialEq)]
struct Form {
    text: Box<[u8]>,
    writing: Writing,
}

/// The encodings in which a form is found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Writing {
    /// Verbatim.
    Exact,
    /// In any case, percent-encoded (RFC 3986), form-encoded, or escaped as in JSON or HTML; also
    /// partly encoded.
    Any,
    /// As [`Writing::Any`], but case-sensitive: base64 of both alphabets (RFC 4648).
    Base64,
}

impl Secrets {
    /// Prepares secrets; empty ones are left out.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut prepared = Self::default();
        secrets.into_iter().for_each(|secret| prepared.add(secret));
        prepared
    }

    pub fn add(&mut self, secret: &str) {
        if secret.len() < MIN_WRITTEN {
            if !secret.is_empty() {
                self.add_form(secret.as_bytes(), Writing::Exact);
            }
            return;
        }
        self.add_form(secret.as_bytes(), Writing::Any);
        // The characters that depend on the secret alone, for each of the three places in a group.
        for (ahead, begin) in [(0, 0), (1, 2), (2, 3)] {
            let bytes = [&[0; 2][..ahead], secret.as_bytes()].concat();
            let encoded = BASE64_STANDARD.encode(&bytes);
            self.add_form(&encoded.as_bytes()[begin..bytes.len() * 8 / 6], Writing::Base64);
        }
    }

    fn add_form(&mut self, text: &[u8], writing: Writing) {
        let own = text[0];
        let written = match writing {
            Writing::Exact => [own; 3],
            Writing::Any => [own, own.to_ascii_lowercase(), own.to_ascii_uppercase()],
            // The URL-safe alphabet.
            Writing::Base64 if own == b'+' => [own, own, b'-'],
            Writing::Base64 if own == b'/' => [own, own, b'_'],
            Writing::Base64 => [own; 3],
        };
        for byte in written {
            self.first[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
        self.forms.push(Form { text: text.into(), writing });
    }

    /// Whether a form may begin with a byte.
    fn may_begin(&self, byte: u8) -> bool {
        self.first[usize::from(byte >> 6)] & 1 << (byte & 63) != 0
    }

    /// Returns the length of the longest form at a place of a text, in bytes; the rest of the text
    /// once the search has used up its steps.
    fn length_at(&self, text: &Searched<'_>, at: usize) -> Option<usize> {
        let first = *text.bytes.get(at)?;
        if text.steps.get() == 0 {
            return Some(text.bytes.len() - at);
        }
        let escape = Escape::read(text, at);
        let begins = self.may_begin(first)
            || escape.is_some_and(|escape| self.may_begin(escape.decoded()[0]));
        if !begins {
            return None;
        }
        let forms = self.forms.iter().map(|form| form.length_at(text, at));
        forms.max()?.or_else(|| (text.steps.get() == 0).then(|| text.bytes.len() - at))
    }

    /// Whether a text contains one of the secrets, or the search used up its steps. Parts of a
    /// secret are not searched for: a caller whose arguments are returned could guess the secret
    /// byte by byte.
    pub fn is_in(&self, text: &str) -> bool {
        let text = Searched::new(text);
        !self.forms.is_empty()
            && (0..text.bytes.len()).any(|at| self.length_at(&text, at).is_some())
    }

    /// Returns a text without the secrets in it. Secrets that overlap are removed together. If the
    /// search uses up its steps, the rest of the text is removed.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.is_in(text) {
            return text.into();
        }
        let searched = Searched::new(text);
        let mut out = String::with_capacity(text.len());
        let mut kept = 0;
        let mut end = 0;
        for at in 0..text.len() {
            let Some(length) = self.length_at(&searched, at) else { continue };
            if at >= end {
                out.push_str(text.get(kept..at).unwrap_or_default());
                out.push_str(REDACTED);
            }
            end = end.max(at + length);
            kept = end;
        }
        out.push_str(text.get(kept..).unwrap_or_default());
        out.into()
    }

    /// Returns a document without the secrets in it; `None` if the rest is not JSON.
    pub fn redact_document(&self, document: Document) -> Option<Document> {
        match self.redact(document.json().text()) {
            Cow::Borrowed(_) => Some(document),
            Cow::Owned(text) => Document::parse(text.into_bytes(), DEPTH).ok(),
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(redacted)")
    }
}

/// A text that is searched, in time proportional to its length.
struct Searched<'a> {
    bytes: &'a [u8],
    /// The ends of the long runs of backslashes, in order, so that no place in a run counts the
    /// rest of the run.
    run_ends: Vec<usize>,
    /// The remaining steps: comparisons of bytes with a form.
    steps: Cell<usize>,
}

/// Steps for each byte of a text. An ordinary text needs a few; a text that repeats the beginning
/// of a long secret, such as one letter, would need as many as the secret has bytes.
const STEPS: usize = 256;

/// The minimum number of steps.
const STEPS_AT_LEAST: usize = 1 << 20;

/// The number of backslashes that are counted one by one.
const SHORT_RUN: usize = 16;

impl<'a> Searched<'a> {
    fn new(text: &'a str) -> Self {
        let bytes = text.as_bytes();
        let mut run_ends = Vec::new();
        let mut begin = 0;
        for at in memchr::memchr_iter(b'\\', bytes) {
            if bytes.get(at.wrapping_sub(1)) != Some(&b'\\') {
                begin = at;
            }
            if bytes.get(at + 1) != Some(&b'\\') && at + 1 - begin >= SHORT_RUN {
                run_ends.push(at + 1);
            }
        }
        let steps = bytes.len().saturating_mul(STEPS).max(STEPS_AT_LEAST);
        Self { bytes, run_ends, steps: Cell::new(steps) }
    }

    /// Returns the number of backslashes at a place.
    fn marks(&self, at: usize) -> usize {
        let next = self.bytes[at..].iter().take(SHORT_RUN);
        let marks = next.take_while(|byte| **byte == b'\\').count();
        if marks < SHORT_RUN {
            return marks;
        }
        let run = self.run_ends.partition_point(|end| *end <= at);
        self.run_ends.get(run).map_or(marks, |end| end - at)
    }

    /// Takes steps. Returns whether enough steps were left.
    fn take(&self, steps: usize) -> bool {
        let left = self.steps.get().checked_sub(steps);
        self.steps.set(left.unwrap_or(0));
        left.is_some()
    }
}

impl Form {
    /// Returns the length of this form at a place of a text, in bytes.
    fn length_at(&self, text: &Searched<'_>, at: usize) -> Option<usize> {
        let rest = text.bytes.get(at..)?;
        let whole = rest.iter().zip(&self.text).take_while(|(a, b)| self.is(**a, **b)).count();
        if !text.take(whole) {
            return None;
        }
        if whole == self.text.len() {
            return Some(whole);
        }
        if self.writing == Writing::Exact {
            return None;
        }
        let mut end = at;
        let mut expected = &*self.text;
        while let Some(&byte) = expected.first() {
            let escape = Escape::read(text, end).filter(|escape| {
                let decoded = escape.decoded();
                decoded.len() <= expected.len()
                    && decoded.iter().zip(expected).all(|(a, b)| self.is(*a, *b))
            });
            let (length, decoded) = match escape {
                Some(escape) => (escape.length, escape.decoded().len()),
                None if self.is(*text.bytes.get(end)?, byte) => (1, 1),
                None => return None,
            };
            (end, expected) = (end + length, &expected[decoded..]);
            if !text.take(1) {
                return None;
            }
        }
        Some(end - at)
    }

    fn is(&self, byte: u8, expected: u8) -> bool {
        match self.writing {
            Writing::Any => byte.eq_ignore_ascii_case(&expected),
            Writing::Exact => byte == expected,
            Writing::Base64 => {
                byte == expected || matches!((byte, expected), (b'-', b'+') | (b'_', b'/'))
            }
        }
    }
}

/// An encoded character, or an encoded byte of one.
#[derive(Clone, Copy)]
struct Escape {
    bytes: [u8; 4],
    count: usize,
    /// The length of the encoded form, in bytes.
    length: usize,
}

impl Escape {
    fn new(char: char, length: usize) -> Self {
        let mut bytes = [0; 4];
        let count = char.encode_utf8(&mut bytes).len();
        Self { bytes, count, length }
    }

    fn decoded(&self) -> &[u8] {
        &self.bytes[..self.count]
    }

    /// Reads the escape at a place of a text.
    fn read(text: &Searched<'_>, at: usize) -> Option<Self> {
        let rest = text.bytes.get(at..)?;
        match rest {
            [b'%', digits @ ..] => {
                let byte = u8::try_from(number(digits.get(..2)?, 16)?).ok()?;
                Some(Self { bytes: [byte, 0, 0, 0], count: 1, length: 3 })
            }
            [b'+', ..] => Some(Self::new(' ', 1)),
            [b'&', ..] => Self::of_html(rest),
            [b'\\', ..] => Self::of_json(rest, text.marks(at)),
            _ => None,
        }
    }

    /// Reads an escape of JSON or of another string literal, also of a nested literal, that begins
    /// with `marks` backslashes.
    fn of_json(text: &[u8], marks: usize) -> Option<Self> {
        let code = |begin: usize, digits: usize| number(text.get(begin..begin + digits)?, 16);
        let (char, length) = match text.get(marks) {
            Some(b'u') => match code(marks + 1, 4)? {
                high @ 0xd800..0xdc00 => {
                    let low =
                        code(2 * marks + 6, 4).filter(|low| (0xdc00..0xe000).contains(low))?;
                    let pair = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                    (char::from_u32(pair)?, 2 * marks + 10)
                }
                unit => (char::from_u32(unit)?, marks + 5),
            },
            Some(b'x') => (char::from_u32(code(marks + 1, 2)?)?, marks + 3),
            Some(b'n') => ('\n', marks + 1),
            Some(b't') => ('\t', marks + 1),
            Some(b'r') => ('\r', marks + 1),
            Some(byte) if marks % 2 == 1 && byte.is_ascii() => (char::from(*byte), marks + 1),
            _ if marks >= 2 => ('\\', 2),
            _ => return None,
        };
        Some(Self::new(char, length))
    }

    /// Reads a character reference of HTML.
    fn of_html(text: &[u8]) -> Option<Self> {
        let end = text.iter().take(10).position(|byte| *byte == b';')?;
        let char = match &text[1..end] {
            b"amp" => '&',
            b"lt" => '<',
            b"gt" => '>',
            b"quot" => '"',
            b"apos" => '\'',
            [b'#', b'x' | b'X', digits @ ..] => char::from_u32(number(digits, 16)?)?,
            [b'#', digits @ ..] => char::from_u32(number(digits, 10)?)?,
            _ => return None,
        };
        Some(Self::new(char, end + 1))
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Returns a fault without the secrets in its texts, and with the message of an upstream's error
/// truncated. `error.data` that contains a secret is left out.
pub fn without_secrets(kind: Kind, secrets: &Secrets) -> Kind {
    let clean_report = |report: &ChildReport| {
        let lines = report.stderr.iter().map(|line| secrets.redact(line).into_owned());
        Arc::new(ChildReport { stderr: lines.collect(), ..report.clone() })
    };
    let clean = |text: String| secrets.redact(&text).into_owned();
    match kind {
        Kind::Error { code, message, data } => {
            let data = data.filter(|data| !secrets.is_in(data));
            Kind::Error { code, message: excerpt(&clean(message)), data }
        }
        // Without its pages the fault is an ordinary error.
        Kind::UrlElicitationRequired { message, data } if secrets.is_in(&data) => {
            Kind::Error { code: -32042, message: excerpt(&clean(message)), data: None }
        }
        Kind::UrlElicitationRequired { message, data } => {
            Kind::UrlElicitationRequired { message: clean(message), data }
        }
        Kind::Status { status, shown } => Kind::Status { status, shown: excerpt(&clean(shown)) },
        Kind::NoMessage { what, shown } => Kind::NoMessage { what, shown: clean(shown) },
        Kind::Unavailable(detail) => Kind::Unavailable(clean(detail)),
        Kind::Reset(detail) => Kind::Reset(clean(detail)),
        Kind::NoToken { fault, detail } => Kind::NoToken { fault, detail: clean(detail) },
        Kind::Protocol(detail) => Kind::Protocol(clean(detail)),
        Kind::NotServed(detail) => Kind::NotServed(clean(detail)),
        Kind::Moved { status, location } => Kind::Moved { status, location: clean(location) },
        Kind::PaginationLimit(detail) => Kind::PaginationLimit(clean(detail)),
        Kind::Internal(detail) => Kind::Internal(clean(detail)),
        Kind::ChildExited(report) => Kind::ChildExited(clean_report(&report)),
        Kind::ChildSilent { startup, report } => {
            Kind::ChildSilent { startup, report: clean_report(&report) }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
