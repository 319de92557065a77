//! Removal of secrets from texts that others have written: an upstream may repeat the credential
//! that it was called with, as error messages for developers do, and write it as a URL, a form,
//! JSON or HTML has it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::document::Document;
use super::fault::{ChildReport, UpstreamFaultKind as Kind, excerpt};

/// Takes the place of a secret.
const REDACTED: &str = "[redacted]";

/// Shortest secret that is looked for in other writings, in bytes. A shorter one is found as it
/// stands only: its other writings are in ordinary words.
const MIN_WRITTEN: usize = 6;

/// JSON depth of documents, which were accepted before.
const DEPTH: usize = 64;

/// Secrets, prepared to be found in texts. `Debug` shows none.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Secrets {
    forms: Vec<Form>,
    /// A bit for each byte with which a form may begin.
    first: [u64; 4],
}

/// One form of a secret.
#[derive(Clone, Eq, PartialEq)]
struct Form {
    text: Box<[u8]>,
    writing: Writing,
}

/// How a form may be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Writing {
    /// As it stands.
    Exact,
    /// In any case, percent-encoded (RFC 3986), as in a form, and escaped as in JSON or HTML; also
    /// in part.
    Any,
    /// As [`Writing::Any`], but in its own case: base64 of both alphabets (RFC 4648).
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
        let written = [own, own.to_ascii_lowercase(), own.to_ascii_uppercase(), b'%', b'\\', b'&'];
        let written = if writing == Writing::Exact { &[own][..] } else { &written };
        // A space of a form, and the alphabet of URLs.
        let others: &[u8] = match own {
            b' ' => b"+",
            b'+' => b"-",
            b'/' => b"_",
            _ => b"",
        };
        for byte in [written, others].concat() {
            self.first[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
        self.forms.push(Form { text: text.into(), writing });
    }

    /// Returns the end of the longest form at the beginning of a text, in bytes.
    fn length_at(&self, text: &[u8]) -> Option<usize> {
        let first = *text.first()?;
        if self.first[usize::from(first >> 6)] & 1 << (first & 63) == 0 {
            return None;
        }
        self.forms.iter().filter_map(|form| form.length_at(text)).max()
    }

    /// Whether a text has one of the secrets in it. A part of a secret is not looked for: a caller
    /// whose arguments come back could guess it byte by byte.
    pub fn is_in(&self, text: &str) -> bool {
        let text = text.as_bytes();
        !self.forms.is_empty() && (0..text.len()).any(|at| self.length_at(&text[at..]).is_some())
    }

    /// Returns a text without the secrets in it. Secrets that overlap are removed together.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.is_in(text) {
            return text.into();
        }
        let bytes = text.as_bytes();
        let (mut out, mut kept, mut end) = (String::with_capacity(text.len()), 0, 0);
        for at in 0..bytes.len() {
            let Some(length) = self.length_at(&bytes[at..]) else { continue };
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

    /// Returns a document without the secrets in it; `None` if it is no JSON without them.
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

impl Form {
    /// Returns the end of this form at the beginning of a text, in bytes.
    fn length_at(&self, text: &[u8]) -> Option<usize> {
        let whole = text.get(..self.text.len());
        if whole.is_some_and(|whole| whole.iter().zip(&self.text).all(|(a, b)| self.is(*a, *b))) {
            return whole.map(<[u8]>::len);
        }
        if self.writing == Writing::Exact {
            return None;
        }
        let (mut at, mut expected) = (0, &*self.text);
        while let Some(&byte) = expected.first() {
            let rest = text.get(at..)?;
            let escape = Escape::read(rest).filter(|escape| {
                let decoded = escape.decoded();
                decoded.len() <= expected.len()
                    && decoded.iter().zip(expected).all(|(a, b)| self.is(*a, *b))
            });
            let (length, decoded) = match escape {
                Some(escape) => (escape.length, escape.decoded().len()),
                None if self.is(*rest.first()?, byte) => (1, 1),
                None => return None,
            };
            (at, expected) = (at + length, &expected[decoded..]);
        }
        Some(at)
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

/// A character, or a byte of one, as an encoding writes it.
struct Escape {
    bytes: [u8; 4],
    count: usize,
    /// Bytes of the writing.
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

    /// Reads the escape at the beginning of a text.
    fn read(text: &[u8]) -> Option<Self> {
        match text {
            [b'%', digits @ ..] => {
                let byte = u8::try_from(number(digits.get(..2)?, 16)?).ok()?;
                Some(Self { bytes: [byte, 0, 0, 0], count: 1, length: 3 })
            }
            [b'+', ..] => Some(Self::new(' ', 1)),
            [b'&', ..] => Self::of_html(text),
            [b'\\', ..] => Self::of_json(text),
            _ => None,
        }
    }

    /// Reads an escape of JSON or of another string literal, also one within another literal.
    fn of_json(text: &[u8]) -> Option<Self> {
        let marks = text.iter().take_while(|byte| **byte == b'\\').count();
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
/// truncated. `error.data` with a secret in it is left out.
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
        // Without its pages it is an error like any other.
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
mod tests {
    use base64::prelude::BASE64_URL_SAFE;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn secrets_are_removed_wherever_they_stand() {
        let secrets = Secrets::new(["s3cret-token", "pg_other", "key", ""]);
        for (text, expected) in [
            ("bad key: Bearer s3cret-token", "bad [redacted]: Bearer [redacted]"),
            ("s3cret-tokens3cret-token pg_other", "[redacted][redacted] [redacted]"),
            ("a part s3cret-tok", "a part s3cret-tok"),
            ("the secret is safe, KEY", "the secret is safe, KEY"),
            ("S3CRET-TOKEN", "[redacted]"),
        ] {
            assert_eq!(secrets.redact(text), expected);
            assert_eq!(secrets.is_in(text), text != expected);
        }
        let overlapping = Secrets::new(["abcdef", "cdefghij"]);
        assert_eq!(overlapping.redact("-abcdefghij-"), "-[redacted]-");
        assert_eq!(format!("{overlapping:?}"), "Secrets(redacted)");
    }

    #[test]
    fn secrets_are_removed_in_other_clothes() {
        let secrets = Secrets::new(["sk/live+key==", "p\"w &<é😀>\n'x"]);
        for text in [
            "sk%2Flive%2Bkey%3D%3D",
            "sk%2flive+key==",
            "GET https://a/?k=SK%2FLIVE%2BKEY%3D%3D",
            "sk\\/live+key==",
            "sk\\u002flive\\u002Bkey\\x3d=",
            "sk&#x2F;live&#43;key&#61;=",
            "p%22w+%26%3C%C3%A9%F0%9F%98%80%3E%0A%27x",
            "p\\\"w &<é😀>\\n'x",
            "p\\\\\\\"w \\u0026<\\u00e9\\ud83d\\ude00>\\\\n'x",
            "p&quot;w &amp;&lt;é&#128512;&gt;\n&#39;x",
        ] {
            let redacted = secrets.redact(text);
            assert!(redacted.ends_with(REDACTED), "{text}: {redacted}");
        }
        for (text, is_secret) in [("sk%2Flive%2Bkey%3D%3", false), ("sk/live key==", false)] {
            assert_eq!(secrets.is_in(text), is_secret, "{text}");
        }
    }

    #[test]
    fn a_document_without_its_secrets_is_json() {
        let secrets = Secrets::new(["new-key"]);
        let clean = |text: &str| {
            let document = Document::parse(text.as_bytes().to_vec(), DEPTH).unwrap();
            secrets.redact_document(document).map(|document| document.json().text().to_owned())
        };
        assert_eq!(clean("{\"a\":\"b\"}").unwrap(), "{\"a\":\"b\"}");
        assert_eq!(clean("[\"new\\u002dkey\"]").unwrap(), "[\"[redacted]\"]");
        assert_eq!(clean("[\"\\new-key\"]"), None, "a line feed, and no secret");
    }

    proptest! {
        #[test]
        fn no_text_holds_a_secret_afterwards(
            before in ".{0,20}", secret in "[a-zé]{6,12}", after in ".{0,20}",
        ) {
            let secrets = Secrets::new([secret.as_str()]);
            let text = format!("{before}{secret}{after}{secret}");
            prop_assert!(!secrets.redact(&text).contains(&secret));
            prop_assert!(secrets.is_in(&text));
        }

        #[test]
        fn a_secret_in_base64_is_found_at_each_place(
            before in prop::collection::vec(any::<u8>(), 0..8),
            secret in "[ -~]{6,12}",
            after in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let bytes = [&before, secret.as_bytes(), &after].concat();
            let secrets = Secrets::new([secret.as_str()]);
            for encoded in [BASE64_STANDARD.encode(&bytes), BASE64_URL_SAFE.encode(&bytes)] {
                prop_assert!(secrets.is_in(&encoded), "{encoded}");
            }
        }

        #[test]
        fn any_text_is_redacted_at_its_borders(text in ".{0,40}", secret in ".{1,9}") {
            let secrets = Secrets::new([secret.as_str()]);
            let redacted = secrets.redact(&text);
            prop_assert_eq!(matches!(redacted, Cow::Owned(_)), secrets.is_in(&text));
        }
    }
}
