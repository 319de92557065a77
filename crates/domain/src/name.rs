//! Upstream ids, prefixes and the public names of prompts, with the checks of raw names.
//!
//! Public name = prefix + separator + raw name. Prefixes consist of `[a-z0-9-]` only and the
//! separator has a character outside that set, so a public name splits at its first separator and
//! the join is injective. Only this file knows the separator.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock};

use icu_properties::props::{
    DefaultIgnorableCodePoint, GeneralCategory, PrependedConcatenationMark,
};
use icu_properties::{CodePointMapData, CodePointSetData};

/// The id of an upstream: `[a-z0-9][a-z0-9-]*`, at most [`MAX_PREFIX`] bytes.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct UpstreamId(Arc<str>);

/// The prefix of the public names of one upstream, before the separator. With an empty prefix the
/// public names are bare: they are the raw names.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Prefix(Arc<str>);

/// The rules that map raw names to public names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Naming {
    separator: Arc<str>,
    max_length: usize,
}

/// The reason why a raw name is left out of the catalog.
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
    #[error("the public name begins with {SKILL_SCHEME}, as those of skills do")]
    Skill,
}

/// The beginning of the public names of skills, which are URIs. No prompt's name begins so.
pub(crate) const SKILL_SCHEME: &str = "skill://";

/// The maximum length of an upstream id or a prefix, in bytes: each name, metric and log line
/// repeats it.
pub(crate) const MAX_PREFIX: usize = 64;

/// The maximum of `naming.max_length`, in characters. With four bytes per character, a sealed
/// cursor with the longest name, caller and owner still fits into 2 KiB.
pub const MAX_LENGTH_LIMIT: usize = 128;

/// The default separator between prefix and raw name.
pub const DEFAULT_SEPARATOR: &str = "__";

/// The character between the name of a library prompt and the label or number of a version.
pub const VERSION_MARK: char = '@';

/// Returns the raw name of a version of a prompt, by its label or number: `refund@production`,
/// `refund@3`.
pub fn version_name(raw: &str, version: &str) -> String {
    format!("{raw}{VERSION_MARK}{version}")
}

/// Returns the name of the prompt that a name such as `refund@3` is a version of; `None` for other
/// names.
pub fn prompt_of_version(name: &str) -> Option<&str> {
    let (prompt, version) = name.rsplit_once(VERSION_MARK)?;
    let is_version = !prompt.is_empty() && !version.is_empty();
    (is_version && !prompt.starts_with(SKILL_SCHEME)).then_some(prompt)
}

/// Returns whether `text` is a valid upstream id or non-empty prefix.
pub(crate) fn is_prefix(text: &str) -> bool {
    let in_set = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut bytes = text.bytes();
    text.len() <= MAX_PREFIX
        && bytes.next().is_some_and(in_set)
        && bytes.all(|b| in_set(b) || b == b'-')
}

/// Returns whether `text` is a valid separator: 1 to 8 visible ASCII characters, with at least one
/// that prefixes cannot have.
pub fn is_separator(text: &str) -> bool {
    let is_outside = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    (1..=8).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_graphic())
        && text.chars().any(is_outside)
}

/// Returns whether a public name is the raw name of a prompt behind the id of its upstream and any
/// separator without letters and digits, which could belong to another id: records have both names,
/// but not the configuration of their time.
pub fn joins(public: &str, upstream: &str, raw: &str) -> bool {
    let separator = public.strip_prefix(upstream).and_then(|rest| rest.strip_suffix(raw));
    let is_clear = |text: &str| !text.contains(|c: char| c.is_ascii_alphanumeric());
    separator.is_some_and(|separator| is_separator(separator) && is_clear(separator))
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

    /// Returns whether the prefix is empty: public names then have neither prefix nor separator.
    pub fn is_bare(&self) -> bool {
        self.0.is_empty()
    }
}

impl Naming {
    /// Returns the rules for a `separator` that [`is_separator`] accepts, and public names of at
    /// most `max_length` characters.
    pub fn new(separator: &str, max_length: usize) -> Self {
        Self { separator: separator.into(), max_length }
    }

    /// Returns the public name of a raw name.
    ///
    /// # Errors
    /// If the raw name is empty, has hidden characters or surrounding white space, or if the public
    /// name exceeds `max_length` or looks like the name of a skill.
    pub fn public(&self, prefix: &Prefix, raw: &str) -> Result<String, NameError> {
        check_raw(raw)?;
        let public = if prefix.is_bare() {
            raw.to_owned()
        } else {
            [prefix.as_str(), &self.separator, raw].concat()
        };
        let length = public.chars().count();
        if length > self.max_length {
            return Err(NameError::TooLong { length, limit: self.max_length });
        }
        if public.starts_with(SKILL_SCHEME) {
            return Err(NameError::Skill);
        }
        Ok(public)
    }

    /// Returns the text that all public names of a prefix begin with; empty for a bare prefix.
    pub fn beginning(&self, prefix: &Prefix) -> String {
        if prefix.is_bare() { String::new() } else { [prefix.as_str(), &self.separator].concat() }
    }

    /// Splits a public name at its first separator into the prefix that it claims and the raw name
    /// under that prefix. Returns `None` if the name has no separator.
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
    if raw.trim() == raw { Ok(()) } else { Err(NameError::Padded) }
}

/// Returns whether a character is invisible or only changes how its neighbours look: controls, line
/// and paragraph separators, format characters (general category Cf) and default ignorables, such
/// as soft hyphens, bidirectional and zero-width characters, fillers, variation selectors and tags.
/// Prepended concatenation marks are format characters, too, but visible.
pub fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    let c = u32::from(c);
    let at = HIDDEN.partition_point(|range| *range.end() < c);
    HIDDEN.get(at).is_some_and(|range| *range.start() <= c)
}

/// The sorted, disjoint ranges of hidden characters, derived from Unicode data. A binary search in
/// about twenty ranges takes half the time of a lookup of the character's properties.
static HIDDEN: LazyLock<Vec<RangeInclusive<u32>>> = LazyLock::new(|| {
    let category = CodePointMapData::<GeneralCategory>::new();
    let seen = CodePointSetData::new::<PrependedConcatenationMark>();
    let ignorable = CodePointSetData::new::<DefaultIgnorableCodePoint>();
    let categories = [
        GeneralCategory::Control,
        GeneralCategory::Format,
        GeneralCategory::LineSeparator,
        GeneralCategory::ParagraphSeparator,
    ];
    let mut ranges: Vec<_> = categories
        .into_iter()
        .flat_map(|of| category.iter_ranges_for_value(of))
        .filter(|range| !seen.contains32(*range.start()))
        .chain(ignorable.iter_ranges())
        .collect();
    ranges.sort_unstable_by_key(|range| *range.start());
    ranges.dedup_by(|next, last| {
        let meets = *next.start() <= *last.end() + 1;
        if meets {
            *last = *last.start()..=*last.end().max(next.end());
        }
        meets
    });
    ranges
});

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
    fn a_public_name_joins_the_id_of_an_upstream_and_a_raw_name() {
        assert!(joins("up__greet", "up", "greet") && joins("up/a__b", "up", "a__b"));
        for (public, upstream, raw) in [
            ("greet", "up", "greet"),
            ("upgreet", "up", "greet"),
            ("up__greet", "u", "greet"),
            ("up__greet", "up", "reet"),
            ("other__greet", "up", "greet"),
        ] {
            assert!(!joins(public, upstream, raw), "{public} {upstream} {raw}");
        }
    }

    #[test]
    fn u11_deceptive_names_are_refused() {
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

    #[test]
    fn no_prompt_has_the_public_name_of_a_skill() {
        let naming = Naming::new(DEFAULT_SEPARATOR, 128);
        let [bare, up] = ["", "up"].map(|prefix| Prefix::parse(prefix).unwrap());
        let raw = "skill://crm/refunds/SKILL.md";
        assert_eq!(naming.public(&bare, raw), Err(NameError::Skill));
        assert_eq!(naming.public(&up, raw).as_deref(), Ok("up__skill://crm/refunds/SKILL.md"));
    }

    #[test]
    fn hidden_characters_are_invisible_or_change_their_neighbours() {
        for (range, hidden, reason) in [
            ('\0'..='\u{1f}', true, "controls"),
            (' '..='~', false, "ASCII"),
            ('\u{7f}'..='\u{9f}', true, "controls"),
            ('\u{a0}'..='\u{a0}', false, "a no-break space is as wide as a space"),
            ('\u{ad}'..='\u{ad}', true, "a soft hyphen shows at line ends only"),
            ('\u{300}'..='\u{34e}', false, "combining marks are drawn"),
            ('\u{34f}'..='\u{34f}', true, "the grapheme joiner is never drawn"),
            ('\u{600}'..='\u{605}', false, "Arabic number signs are drawn around their digits"),
            ('\u{61c}'..='\u{61c}', true, "a bidirectional mark reorders its neighbours"),
            ('\u{6dd}'..='\u{6dd}', false, "the end of an ayah is drawn around its number"),
            ('\u{70f}'..='\u{70f}', false, "the Syriac abbreviation mark is a line above"),
            ('\u{890}'..='\u{891}', false, "Arabic pound and piastre marks are drawn"),
            ('\u{8e2}'..='\u{8e2}', false, "the disputed end of an ayah is drawn"),
            ('\u{115f}'..='\u{1160}', true, "Hangul fillers stand for letters that are not there"),
            ('\u{17b4}'..='\u{17b5}', true, "inherent Khmer vowels are not drawn"),
            ('\u{180b}'..='\u{180f}', true, "Mongolian variation selectors and vowel separator"),
            ('\u{2000}'..='\u{200a}', false, "spaces have a width"),
            ('\u{200b}'..='\u{200f}', true, "zero width, joiners, bidirectional marks"),
            ('\u{2028}'..='\u{202e}', true, "line and paragraph separators, embeddings, overrides"),
            (
                '\u{2060}'..='\u{206f}',
                true,
                "word joiner, invisible operators, isolates, deprecated",
            ),
            (
                '\u{2800}'..='\u{2800}',
                false,
                "the empty Braille cell is a symbol as wide as others",
            ),
            ('\u{3164}'..='\u{3164}', true, "the Hangul filler"),
            ('\u{4e00}'..='\u{9fff}', false, "ideographs"),
            ('\u{fe00}'..='\u{fe0f}', true, "variation selectors"),
            ('\u{feff}'..='\u{feff}', true, "the byte order mark has no width"),
            ('\u{ffa0}'..='\u{ffa0}', true, "the halfwidth Hangul filler"),
            ('\u{fff0}'..='\u{fff8}', true, "not assigned, and ignorable once it is"),
            ('\u{fff9}'..='\u{fffb}', true, "interlinear annotation hides text behind text"),
            ('\u{fffc}'..='\u{fffd}', false, "the replacement characters are drawn"),
            ('\u{110bd}'..='\u{110bd}', false, "the Kaithi number sign is drawn below its digits"),
            ('\u{110cd}'..='\u{110cd}', false, "the Kaithi number sign above its digits, too"),
            ('\u{13430}'..='\u{1343f}', true, "hieroglyph controls only arrange their neighbours"),
            ('\u{1bca0}'..='\u{1bca3}', true, "shorthand controls only arrange their neighbours"),
            ('\u{1d173}'..='\u{1d17a}', true, "beginnings and ends of beams, ties, slurs, phrases"),
            ('\u{1f300}'..='\u{1f5ff}', false, "pictographs"),
            ('\u{e0000}'..='\u{e0fff}', true, "tags, variation selectors, and room for more"),
        ] {
            for c in range {
                assert_eq!(is_hidden(c), hidden, "U+{:04X}: {reason}", u32::from(c));
            }
        }
    }

    #[test]
    fn hidden_ranges_are_sorted_and_not_adjacent() {
        assert!(HIDDEN.len() > 10, "{HIDDEN:X?}");
        assert!(HIDDEN.windows(2).all(|pair| *pair[0].end() + 1 < *pair[1].start()), "{HIDDEN:X?}");
    }

    proptest! {
        #[test]
        fn the_join_is_injective(
            a in "[a-z0-9][a-z0-9-]{0,5}", b in "[a-z0-9][a-z0-9-]{0,5}",
            x in "[a-z_-]{1,8}", y in "[a-z_-]{1,8}",
            separator in prop::sample::select(vec!["__", "_", "/", "-_", "_-"]),
        ) {
            let naming = Naming::new(separator, 128);
            let p = Prefix::parse(&a).unwrap();
            let q = Prefix::parse(&b).unwrap();
            let left = naming.public(&p, &x).unwrap();
            let right = naming.public(&q, &y).unwrap();
            prop_assert_eq!(left == right, (&a, &x) == (&b, &y), "{} {}", left, right);
        }
    }
}
