//! Glob patterns for prompt names: `*` matches any text.

use std::fmt;

/// A glob pattern. Matching takes time linear in the length of the name for each piece between two
/// stars.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Glob {
    /// The literal texts between the stars: one more than there are stars.
    pieces: Vec<String>,
}

/// Longest pattern, in bytes. Names are shorter.
pub const MAX_PATTERN: usize = 512;

impl fmt::Display for Glob {
    /// Writes the original pattern.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pieces.join("*"))
    }
}

impl Glob {
    /// Parses a pattern; `None` if it is empty or longer than `MAX_PATTERN` bytes.
    pub fn parse(pattern: &str) -> Option<Self> {
        let pieces = pattern.split('*').map(str::to_owned).collect();
        (1..=MAX_PATTERN).contains(&pattern.len()).then_some(Self { pieces })
    }

    pub fn matches(&self, name: &str) -> bool {
        let [first, inner @ .., last] = self.pieces.as_slice() else {
            return self.pieces.first().is_some_and(|piece| piece == name);
        };
        let Some(mut rest) = name.strip_prefix(first.as_str()) else {
            return false;
        };
        for piece in inner {
            // The first occurrence suffices: the text after it may have any length.
            let Some(at) = rest.find(piece.as_str()) else {
                return false;
            };
            rest = &rest[at + piece.len()..];
        }
        rest.ends_with(last.as_str())
    }

    /// Returns the text that each star matched, each the shortest possible from the left; `None` if
    /// the pattern does not match.
    pub(crate) fn captures<'a>(&self, name: &'a str) -> Option<Vec<&'a str>> {
        let [first, inner @ .., last] = self.pieces.as_slice() else {
            return self.matches(name).then(Vec::new);
        };
        let mut rest = name.strip_prefix(first.as_str())?;
        let mut captures = Vec::with_capacity(self.stars());
        for piece in inner {
            let (captured, after) = rest.split_once(piece.as_str())?;
            captures.push(captured);
            rest = after;
        }
        captures.push(rest.strip_suffix(last.as_str())?);
        Some(captures)
    }

    /// Returns the number of stars.
    pub fn stars(&self) -> usize {
        self.pieces.len() - 1
    }

    /// Returns the pattern with each star replaced by a text.
    pub(crate) fn filled_in(&self, texts: &[&str]) -> String {
        let mut texts = texts.iter();
        let mut name = String::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            if index > 0 {
                name.push_str(texts.next().copied().unwrap_or_default());
            }
            name.push_str(piece);
        }
        name
    }

    /// Returns whether a name exists that both patterns match. Takes time in the product of their
    /// lengths.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let ours = self.symbols();
        let theirs = other.symbols();
        // Whether the rests of both patterns match a common text, by the length of the rest of
        // `theirs`.
        let mut below = vec![false; theirs.len() + 1];
        for at in (0..=ours.len()).rev() {
            let mut row = vec![false; theirs.len() + 1];
            for other_at in (0..=theirs.len()).rev() {
                row[other_at] = match (ours.get(at), theirs.get(other_at)) {
                    (None, None) => true,
                    (Some(None), None) => below[other_at],
                    (None, Some(None)) => row[other_at + 1],
                    (None, Some(Some(_))) | (Some(Some(_)), None) => false,
                    (Some(None), Some(_)) | (Some(_), Some(None)) => {
                        below[other_at] || row[other_at + 1]
                    }
                    (Some(Some(one)), Some(Some(same))) => one == same && below[other_at + 1],
                };
            }
            below = row;
        }
        below[0]
    }

    /// Returns the characters of the pattern; `None` for a star.
    fn symbols(&self) -> Vec<Option<char>> {
        let mut symbols = Vec::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            if index > 0 {
                symbols.push(None);
            }
            symbols.extend(piece.chars().map(Some));
        }
        symbols
    }

    /// Returns whether the pattern matches any name that begins with `prefix`.
    pub fn matches_some_with(&self, prefix: &str) -> bool {
        let mut rest = prefix;
        let last = self.pieces.len() - 1;
        for (index, piece) in self.pieces.iter().enumerate() {
            // The prefix ends within this piece.
            if piece.starts_with(rest) {
                return true;
            }
            match (index, rest.find(piece.as_str())) {
                (0, Some(0)) => rest = &rest[piece.len()..],
                (0, _) => return false,
                // After a star, the rest of the prefix may be part of the star's text.
                _ => return true,
            }
            if index == last {
                return rest.is_empty();
            }
        }
        true
    }

    /// Returns the literal texts between the stars.
    pub fn pieces(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Glob::parse(pattern).unwrap().matches(name)
    }

    #[test]
    fn stars_match_any_text() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "a"),
            ("a*", "a"),
            ("a*c", "abc"),
            ("a*b*c", "a1b2b3c"),
            ("é*", "éa"),
            ("**", "x"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a", "ab"), ("a*a", "a"), ("a*b", "abc"), ("*b*b*", "ab"), ("A*", "a")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert_eq!(Glob::parse(""), None);
        assert!(Glob::parse(&"*".repeat(MAX_PATTERN)).is_some());
        assert_eq!(Glob::parse(&"*".repeat(MAX_PATTERN + 1)), None);
    }

    /// The definition of a match, in exponential time.
    fn by_definition(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (['*', rest @ ..], _) => (0..=name.len()).any(|n| by_definition(rest, &name[n..])),
            ([p, rest @ ..], [c, more @ ..]) => p == c && by_definition(rest, more),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_prefix_matches_where_a_name_with_it_does(pattern in "[ab*]{1,6}", prefix in "[ab]{0,5}") {
            let glob = Glob::parse(&pattern).unwrap();
            // A name that is longer than the pattern by the prefix needs no more letters.
            let mut names = vec![prefix.clone()];
            let mut found = false;
            for _ in 0..=pattern.len() {
                found |= names.iter().any(|name| glob.matches(name));
                names = names.iter().flat_map(|name| [format!("{name}a"), format!("{name}b")]).collect();
            }
            prop_assert_eq!(glob.matches_some_with(&prefix), found);
        }

        #[test]
        fn patterns_overlap_where_a_name_matches_both(one in "[ab*]{1,4}", other in "[ab*]{1,4}") {
            let one = Glob::parse(&one).unwrap();
            let other = Glob::parse(&other).unwrap();
            // A common name needs no more letters than both patterns have.
            let mut names = vec![String::new()];
            let mut found = false;
            for _ in 0..=8 {
                found |= names.iter().any(|name| one.matches(name) && other.matches(name));
                names = names.iter().flat_map(|name| [format!("{name}a"), format!("{name}b")]).collect();
            }
            prop_assert_eq!(one.overlaps(&other), found);
        }

        #[test]
        fn captures_fill_the_pattern_in(pattern in "[ab*]{1,7}", name in "[ab]{0,9}") {
            let glob = Glob::parse(&pattern).unwrap();
            let captures = glob.captures(&name);
            prop_assert_eq!(captures.is_some(), glob.matches(&name));
            if let Some(captures) = captures {
                prop_assert_eq!(captures.len(), glob.stars());
                prop_assert_eq!(glob.filled_in(&captures), name);
            }
        }

        #[test]
        fn matching_follows_the_definition(pattern in "[ab*]{1,7}", name in "[ab]{0,9}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = by_definition(&chars(&pattern), &chars(&name));
            prop_assert_eq!(matches(&pattern, &name), expected);
        }
    }
}
