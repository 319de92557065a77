//! Names that an overlay gives to prompts: `summary-{1}`, where `{1}` is the text that the first
//! `*` of its pattern matched.

use crate::text::glob::Glob;

/// A template of names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rename(Vec<RenamePiece>);

#[derive(Clone, Debug, Eq, PartialEq)]
enum RenamePiece {
    Literal(String),
    /// The index of a star, from 0.
    Captured(usize),
}

impl Rename {
    /// Parses a template for a pattern. A brace without the number of a star is literal.
    ///
    /// # Errors
    /// The mistake, as the end of a sentence: the template refers to a star that the pattern does
    /// not have, or gives several prompts one name.
    pub fn parse(text: &str, pattern: &Glob) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let number = rest[open + 1..].split_once('}').and_then(|(number, after)| {
                let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
                is_number.then_some((number, after))
            });
            let Some((number, after)) = number else {
                literal.push_str(&rest[..=open]);
                rest = &rest[open + 1..];
                continue;
            };
            let star: usize = number.parse().unwrap_or(usize::MAX);
            if !(1..=pattern.stars()).contains(&star) {
                let stars = pattern.stars();
                return Err(format!("refers to {{{number}}}, but the pattern has {stars} *"));
            }
            literal.push_str(&rest[..open]);
            if !literal.is_empty() {
                pieces.push(RenamePiece::Literal(std::mem::take(&mut literal)));
            }
            pieces.push(RenamePiece::Captured(star - 1));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(RenamePiece::Literal(literal));
        }
        let rename = Self(pieces);
        if pattern.stars() > 0 && rename.captured().next().is_none() {
            return Err(
                "must hold {1}: a pattern with * can match several prompts, which would all \
                        get one name"
                    .to_owned(),
            );
        }
        Ok(rename)
    }

    /// Returns the name for the texts that the stars matched.
    pub(super) fn name(&self, captures: &[&str]) -> String {
        let piece = |piece: &RenamePiece| match piece {
            RenamePiece::Literal(text) => text.clone(),
            RenamePiece::Captured(star) => {
                captures.get(*star).copied().unwrap_or_default().to_owned()
            }
        };
        self.0.iter().map(piece).collect()
    }

    /// Returns a raw name that is renamed to `name`; `None` if no raw name is, or if it is unknown
    /// because the template does not use all stars.
    pub(super) fn reversed(&self, pattern: &Glob, name: &str) -> Option<String> {
        let template: String = self.0.iter().fold(String::new(), |template, piece| match piece {
            RenamePiece::Literal(text) => template + text,
            RenamePiece::Captured(_) => template + "*",
        });
        let found = Glob::parse(&template)?.captures(name)?;
        let mut captures = vec![None; pattern.stars()];
        for (star, text) in self.captured().zip(found) {
            captures[star] = Some(text);
        }
        let captures: Option<Vec<&str>> = captures.into_iter().collect();
        Some(pattern.filled_in(&captures?))
    }

    fn captured(&self) -> impl Iterator<Item = usize> {
        self.0.iter().filter_map(|piece| match piece {
            RenamePiece::Captured(star) => Some(*star),
            RenamePiece::Literal(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(pattern: &str) -> Glob {
        Glob::parse(pattern).unwrap()
    }

    #[test]
    fn a_template_takes_what_the_stars_matched_and_is_reversed() {
        for (pattern, template, raw_name, name) in [
            ("summarize_*", "summary-{1}", "summarize_de", "summary-de"),
            ("*_to_*", "{2}-from-{1}", "de_to_en", "en-from-de"),
            ("plain", "other", "plain", "other"),
            ("a*", "{x}{1}{", "ab", "{x}b{"),
        ] {
            let pattern = glob(pattern);
            let rename = Rename::parse(template, &pattern).unwrap();
            assert_eq!(rename.name(&pattern.captures(raw_name).unwrap()), name);
            assert_eq!(rename.reversed(&pattern, name).as_deref(), Some(raw_name));
        }
        let pattern = glob("*-*");
        let rename = Rename::parse("x-{2}", &pattern).unwrap();
        assert_eq!(rename.reversed(&pattern, "x-b"), None, "the first star is lost");
    }

    #[test]
    fn a_template_must_fit_its_pattern() {
        for (pattern, template, why) in [
            ("a*", "b", "must hold {1}"),
            ("a*", "{2}", "the pattern has 1 *"),
            ("a", "{1}", "the pattern has 0 *"),
            ("a*", "{0}", "refers to {0}"),
        ] {
            let error = Rename::parse(template, &glob(pattern)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
