//! Names: how an upstream's prompt is called in public, and which names are let in.
//!
//! Public name = prefix + separator + raw name. Prefixes hold only `[a-z0-9-]` and the separator
//! holds a character outside that set, so the first separator splits and the join is injective.
//! This is the only file that knows the separator.

use std::fmt;
use std::sync::Arc;

/// Identifies an upstream: `[a-z0-9][a-z0-9-]*`, at most [`MAX_PREFIX`] bytes.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct UpstreamId(Arc<str>);

/// What stands before the separator in the public names of one upstream; empty lists them bare.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Prefix(Arc<str>);

/// How raw names become public ones.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Naming {
    separator: Arc<str>,
    max_length: usize,
}

/// Why a raw name is left out of the catalog.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NameError {
    #[error("the name is empty")]
    Empty,
    #[error(
        "the public name has {length} characters, at most {limit} are allowed (naming.max_length)"
    )]
    TooLong { length: usize, limit: usize },
    #[error("the name holds the hidden or control character U+{:04X}", *.0 as u32)]
    Hidden(char),
    #[error("the name starts or ends with white space")]
    Padded,
}

/// Longest upstream id or prefix in bytes: it is repeated in every name, metric and log line.
pub(crate) const MAX_PREFIX: usize = 64;

/// Greatest `naming.max_length`. With four bytes a character, a cursor that holds the longest name
/// and an owner still seals within its 1 KiB.
pub(crate) const MAX_LENGTH_LIMIT: usize = 128;

/// What stands between prefix and raw name unless the operator says otherwise.
pub(crate) const DEFAULT_SEPARATOR: &str = "__";

/// Whether `text` may be an upstream id or a non-empty prefix.
pub(crate) fn is_prefix(text: &str) -> bool {
    let in_set = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut bytes = text.bytes();
    text.len() <= MAX_PREFIX
        && bytes.next().is_some_and(in_set)
        && bytes.all(|b| in_set(b) || b == b'-')
}

/// Whether `text` may be the separator: short, visible, and holding a character that no prefix has.
pub(crate) fn is_separator(text: &str) -> bool {
    let outside = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    (1..=8).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_graphic())
        && text.chars().any(outside)
}

impl UpstreamId {
    pub fn parse(text: &str) -> Option<Self> {
        is_prefix(text).then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UpstreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Prefix {
    pub fn parse(text: &str) -> Option<Self> {
        (text.is_empty() || is_prefix(text)).then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether names go without prefix and separator.
    pub fn is_bare(&self) -> bool {
        self.0.is_empty()
    }
}

impl Naming {
    /// `separator` as [`is_separator`] allows, `max_length` in characters of a public name.
    pub fn new(separator: &str, max_length: usize) -> Self {
        Self { separator: separator.into(), max_length }
    }

    /// The public name of a raw name, or why it has none.
    pub fn public(&self, prefix: &Prefix, raw: &str) -> Result<String, NameError> {
        check_raw(raw)?;
        let public = match prefix.is_bare() {
            true => raw.to_owned(),
            false => [prefix.as_str(), &self.separator, raw].concat(),
        };
        let length = public.chars().count();
        match length > self.max_length {
            true => Err(NameError::TooLong { length, limit: self.max_length }),
            false => Ok(public),
        }
    }

    /// What stands before the first separator, and behind it: the prefix that a public name would
    /// belong to, and the name that it would have there.
    pub fn claimed<'a>(&self, public: &'a str) -> Option<(&'a str, &'a str)> {
        public.split_once(&*self.separator)
    }
}

fn check_raw(raw: &str) -> Result<(), NameError> {
    if raw.is_empty() {
        return Err(NameError::Empty);
    }
    if let Some(hidden) = raw.chars().find(|&c| is_hidden(c)) {
        return Err(NameError::Hidden(hidden));
    }
    match raw.trim() == raw {
        true => Ok(()),
        false => Err(NameError::Padded),
    }
}

/// Characters that a reader does not see, or that change how its neighbours look: controls, soft
/// hyphen, bidirectional marks, zero-width and other format characters, variation selectors, tags
/// and the interlinear marks (Unicode general category Cf and the default ignorables).
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prefixes_and_separators_keep_their_alphabets() {
        for good in ["a", "github", "a-b", "7", &"x".repeat(MAX_PREFIX)] {
            assert!(is_prefix(good), "{good}");
        }
        for bad in ["", "-a", "A", "a_b", "a b", "ä", &"x".repeat(MAX_PREFIX + 1)] {
            assert!(!is_prefix(bad), "{bad}");
        }
        for good in ["__", "/", ".", "-_", "::"] {
            assert!(is_separator(good), "{good}");
        }
        for bad in ["", "-", "--", "a", "_ _", "·", "_________"] {
            assert!(!is_separator(bad), "{bad}");
        }
    }

    #[test]
    fn u11_names_that_deceive_are_left_out() {
        let naming = Naming::new("__", 20);
        let prefix = Prefix::parse("up").unwrap();
        let public = |raw: &str| naming.public(&prefix, raw);
        assert_eq!(public("greet"), Ok("up__greet".to_owned()));
        assert_eq!(public("a__b"), Ok("up__a__b".to_owned()));
        assert_eq!(public("naïve 名前"), Ok("up__naïve 名前".to_owned()));
        assert_eq!(public(""), Err(NameError::Empty));
        assert_eq!(public(" a"), Err(NameError::Padded));
        for hidden in ['\0', '\u{1b}', '\u{7f}', '\u{202e}', '\u{200b}', '\u{e0041}', '\u{feff}'] {
            assert_eq!(public(&format!("a{hidden}b")), Err(NameError::Hidden(hidden)));
        }
        assert!(public(&"x".repeat(16)).is_ok());
        let too_long = NameError::TooLong { length: 21, limit: 20 };
        assert_eq!(public(&"x".repeat(17)), Err(too_long));
    }

    proptest! {
        #[test]
        fn the_join_is_injective(
            a in "[a-z0-9][a-z0-9-]{0,5}", b in "[a-z0-9][a-z0-9-]{0,5}",
            x in "[a-z_-]{1,8}", y in "[a-z_-]{1,8}",
            separator in prop::sample::select(vec!["__", "_", "/", "-_", "_-"]),
        ) {
            let naming = Naming::new(separator, 128);
            let (p, q) = (Prefix::parse(&a).unwrap(), Prefix::parse(&b).unwrap());
            let (left, right) = (naming.public(&p, &x).unwrap(), naming.public(&q, &y).unwrap());
            prop_assert_eq!(left == right, (&a, &x) == (&b, &y), "{} {}", left, right);
        }
    }
}
