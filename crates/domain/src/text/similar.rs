//! Names that a person may have meant: spelling suggestions for mistakes.

use strsim::{damerau_levenshtein, jaro_winkler};

/// Suggestions for one name.
const SUGGESTIONS: usize = 3;

/// Least similarity of a suggestion, from 0 to 1 (Jaro-Winkler).
const LEAST_SIMILAR: f64 = 0.8;

/// Whether two names differ by a typing error: at most two inserted, deleted, replaced or swapped
/// characters. Never for names of up to three characters.
pub fn is_typing_error(a: &str, b: &str) -> bool {
    a.chars().count().min(b.chars().count()) > 3 && damerau_levenshtein(a, b) <= 2
}

/// Returns the candidates that are nearest to a name, the best first. A candidate that contains the
/// name, or whose part after a separator is similar, is near, too: people leave prefixes out.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let name = name.to_lowercase();
    let similarity = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        if !name.is_empty() && candidate.contains(&name) {
            return 1.0;
        }
        let parts = candidate.split('_').map(|part| jaro_winkler(part, &name));
        parts.fold(jaro_winkler(&candidate, &name), f64::max)
    };
    let mut near: Vec<_> = candidates
        .map(|candidate| (similarity(candidate), candidate))
        .filter(|(similarity, _)| *similarity >= LEAST_SIMILAR)
        .collect();
    near.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
    near.into_iter().take(SUGGESTIONS).map(|(_, candidate)| candidate).collect()
}

/// Returns `; did you mean …?` for the nearest candidates; a full stop without candidates.
pub fn suggestion<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    let near: Vec<_> = nearest(name, candidates).iter().map(|near| format!("`{near}`")).collect();
    if near.is_empty() { ".".to_owned() } else { format!("; did you mean {}?", near.join(" or ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_found() {
        for (a, b) in [("listen", "lisen"), ("listen", "listne"), ("page_size", "page_sise")] {
            assert!(is_typing_error(a, b), "{a} {b}");
        }
        for (a, b) in [("path", "name"), ("poll", "url"), ("url", "uri")] {
            assert!(!is_typing_error(a, b), "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_names_come_first() {
        let names = ["library__review-code", "library__explain-code", "support__reply"];
        let near = |name| nearest(name, names.into_iter());
        assert_eq!(near("library__reveiw-code")[0], "library__review-code");
        assert_eq!(near("review-code"), ["library__review-code"]);
        assert_eq!(near("reply"), ["support__reply"]);
        assert_eq!(near("zzz"), [""; 0]);
        assert_eq!(suggestion("zzz", names.into_iter()), ".");
        assert_eq!(suggestion("reply", names.into_iter()), "; did you mean `support__reply`?");
    }
}
