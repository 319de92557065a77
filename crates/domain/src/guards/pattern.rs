//! Patterns: expressions of the operator and built-in ones, and their places in a text.

use std::ops::Range;

use regex::{Regex, RegexBuilder};

use super::built_in::{BUILT_INS, BuiltIn, FOREIGN_LINK};
use crate::prompts::hidden_text;
use crate::text::glob::Glob;

/// A pattern, compiled.
#[derive(Clone, Debug)]
pub struct Pattern {
    built_in: Option<&'static BuiltIn>,
    regex: Regex,
    /// Length of the shortest finding, in bytes: shorter texts are not searched.
    shortest: usize,
    /// The hosts of links that are not foreign.
    hosts: Vec<Glob>,
}

/// The place of a pattern in a text, in bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    pub place: Range<usize>,
    /// The reason code for callers: the name of the built-in pattern, or `pattern` for an
    /// expression of the operator, which callers do not learn.
    pub code: &'static str,
}

/// Largest compiled expression, in bytes: it bounds the memory of a guard and the time for each
/// byte of a text.
const MAX_COMPILED: usize = 1 << 20;

/// Most findings of a pattern in one text. The rest of the text then counts as found: an expression
/// may look at the whole rest of a text for each finding.
const MAX_FINDINGS: usize = 1_000;

impl Pattern {
    /// Reads the name of a built-in pattern, or an expression between slashes.
    ///
    /// # Errors
    /// The allowed patterns, or the mistake in the expression.
    pub fn parse(text: &str, hosts: &[Glob]) -> Result<Self, String> {
        let own = text.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
        let built_in = BUILT_INS.iter().find(|known| known.name == text);
        // The fast engine knows the word boundaries of ASCII only.
        let known = built_in.map(|known| known.expression.replace(r"\b", r"(?-u:\b)"));
        let expression = own.map(str::to_owned).or(known).ok_or_else(|| {
            let names = BUILT_INS.each_ref().map(|known| known.name).join(", ");
            format!(
                "{text:?} is neither a built-in pattern ({names}) nor an expression between slashes, such as \"/(?i)project x/\""
            )
        })?;
        let built = RegexBuilder::new(&expression).size_limit(MAX_COMPILED).build();
        let regex = built.map_err(|error| format!("{text:?} cannot be compiled: {error}"))?;
        if own.is_some() && regex.is_match("") {
            return Err(format!("{text:?} matches the empty text, and so every text: narrow it"));
        }
        let syntax = regex_syntax::parse(&expression);
        let shortest = syntax.ok().and_then(|syntax| syntax.properties().minimum_len());
        let shortest = shortest.unwrap_or_default();
        Ok(Self { built_in, regex, shortest, hosts: hosts.to_vec() })
    }

    /// Whether the pattern finds secrets, which are often encoded.
    pub(super) fn is_secret(&self) -> bool {
        let name = self.built_in.map(|known| known.name);
        matches!(name, Some("private_key" | "cloud_token" | "code_token"))
    }

    /// Appends the findings in a text.
    pub(super) fn find(&self, text: &str, found: &mut Vec<Finding>) {
        if text.len() < self.shortest {
            return;
        }
        let code = self.built_in.map_or("pattern", |known| known.name);
        if self.built_in.is_some_and(|known| known.expression.is_empty()) {
            return found.extend(hidden_text::places(text).map(|place| Finding { place, code }));
        }
        let before = found.len();
        let mut at = 0;
        while let Some(candidate) = self.regex.find_at(text, at) {
            let start = candidate.start();
            let length = match self.built_in {
                Some(known) => (known.check)(candidate.as_str(), &self.hosts),
                None => Some(candidate.len()).filter(|length| *length > 0),
            };
            let Some(length) = length else {
                at = start + text[start..].chars().next().map_or(1, char::len_utf8);
                if at > text.len() { return } else { continue }
            };
            at = if found.len() - before + 1 == MAX_FINDINGS { text.len() } else { start + length };
            if code == FOREIGN_LINK {
                let is_end = |c: char| c.is_whitespace() || "\"'<>()[]{}".contains(c);
                at += text[at..].find(is_end).unwrap_or(text.len() - at);
            }
            found.push(Finding { place: start..at, code });
        }
    }
}
