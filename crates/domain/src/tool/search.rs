//! Search of prompts by words in their names, titles and descriptions.

use std::cmp::Reverse;

use crate::json::Json;

/// A query, split into lower-case words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SearchQuery {
    words: Vec<String>,
}

/// The rank of a prompt for a query; greater is better. Zero for a query without words, which every
/// prompt matches.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Score(pub u32);

/// The limit of words of a query: the rest of a long text adds nothing to the search.
const MAX_WORDS: usize = 16;

/// Shortest word that also matches inside other words, in characters.
const LEAST_PART: usize = 3;

impl SearchQuery {
    pub fn new(text: &str) -> Self {
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        Self { words: words.take(MAX_WORDS).map(str::to_lowercase).collect() }
    }

    /// Returns the score of a listed prompt; `None` if it contains none of the words.
    pub fn score(&self, prompt: Json<'_>) -> Option<Score> {
        if self.words.is_empty() {
            return Some(Score::default());
        }
        let field = |name| prompt.get(name).and_then(Json::as_str).unwrap_or_default();
        let name = field("name").to_lowercase();
        let title = field("title").to_lowercase();
        let description = field("description").to_lowercase();
        let has_word = |text: &str, word: &str| {
            text.split(|c: char| !c.is_alphanumeric()).any(|other| other == word)
        };
        let has = |text: &str, word: &str| {
            if word.chars().count() < LEAST_PART {
                has_word(text, word)
            } else {
                text.contains(word)
            }
        };
        let count = |matches: &dyn Fn(&str) -> bool| {
            self.words.iter().filter(|word| matches(word)).count() as u32
        };
        // A hit in one field counts more than all hits in the next.
        let hits = [
            count(&|word| has_word(&name, word)),
            count(&|word| has(&name, word)),
            count(&|word| has(&title, word)),
            count(&|word| has(&description, word)),
        ];
        let score = hits.into_iter().fold(0, |score, hits| score << 8 | hits);
        (score > 0).then_some(Score(score))
    }

    /// Ranks prompts that come in the order of their names: the best first, equally good ones in
    /// the order of their names. Returns the `size` prompts after the place `after`, and whether
    /// more follow.
    pub fn page<'a>(
        &self,
        prompts: impl Iterator<Item = (&'a str, Json<'a>)>,
        after: Option<(Score, &str)>,
        size: usize,
    ) -> (Vec<(Score, &'a str, Json<'a>)>, bool) {
        let mut found: Vec<_> = prompts
            .filter_map(|(name, prompt)| Some((self.score(prompt)?, name, prompt)))
            .filter(|(score, name, _)| {
                after.is_none_or(|(last, last_name)| {
                    (Reverse(*score), *name) > (Reverse(last), last_name)
                })
            })
            .collect();
        let by_rank = |(score, name, _): &(Score, &'a str, Json<'a>)| (Reverse(*score), *name);
        let has_more = found.len() > size;
        if has_more {
            found.select_nth_unstable_by(size, |a, b| by_rank(a).cmp(&by_rank(b)));
            found.truncate(size);
        }
        found.sort_unstable_by(|a, b| by_rank(a).cmp(&by_rank(b)));
        (found, has_more)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(prompts: &[serde_json::Value], query: &str) -> Vec<String> {
        let texts: Vec<_> = prompts.iter().map(ToString::to_string).collect();
        let query = SearchQuery::new(query);
        let items = || {
            texts.iter().zip(prompts).map(|(text, prompt)| {
                (prompt["name"].as_str().unwrap(), Json::parse(text.as_bytes(), 8).unwrap())
            })
        };
        // Pages of every size are the same list.
        let whole: Vec<_> = query.page(items(), None, usize::MAX).0;
        let whole: Vec<_> = whole.iter().map(|(_, name, _)| (*name).to_owned()).collect();
        for size in 1..4 {
            let mut paged = Vec::new();
            let mut after = None;
            loop {
                let (page, more) = query.page(items(), after, size);
                paged.extend(page.iter().map(|(_, name, _)| (*name).to_owned()));
                after = page.last().map(|(score, name, _)| (*score, *name));
                if !more {
                    break;
                }
            }
            assert_eq!(paged, whole, "pages of {size}");
        }
        whole
    }

    #[test]
    fn names_outrank_titles_and_titles_outrank_descriptions() {
        let prompts = [
            json!({"name": "a", "description": "Reviews a change"}),
            json!({"name": "b", "title": "Review"}),
            json!({"name": "c__review-code"}),
            json!({"name": "d__reviewer"}),
            json!({"name": "e"}),
        ];
        assert_eq!(names(&prompts, "REVIEW"), ["c__review-code", "d__reviewer", "b", "a"]);
        assert_eq!(names(&prompts, "review code"), ["c__review-code", "d__reviewer", "b", "a"]);
        assert_eq!(names(&prompts, "nothing"), [""; 0]);
        assert_eq!(names(&prompts, "a re"), ["a"], "short words match whole words only");
        let all = ["a", "b", "c__review-code", "d__reviewer", "e"];
        assert_eq!(names(&prompts, " ?! "), all, "without words, all prompts in their order");
    }
}
