//! Texts that were found to be approved, so that the next get of the same text is compared without
//! a hash.

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::approval::ExpectedText;
use base::seal;
use domain::approval::template::fill;
use domain::approval::{DigestText, canonical_text};
use domain::document::Document;
use domain::json::Json;

/// Results whose texts are approved, by the digests of the texts; the least recently used are
/// forgotten.
pub(super) struct VerifiedTexts(Cache<DigestText, Document, VerifiedSize>);

/// Memory for results, in bytes. A forgotten text is hashed again.
const MEMORY: u64 = 16 << 20;

/// About how many results there are; more only cost a resize.
const EXPECTED: usize = 1_024;

#[derive(Clone)]
struct VerifiedSize;

impl Weighter<DigestText, Document> for VerifiedSize {
    fn weight(&self, digest: &DigestText, result: &Document) -> u64 {
        (digest.len() + result.size()) as u64
    }
}

impl Default for VerifiedTexts {
    fn default() -> Self {
        Self(Cache::with_weighter(EXPECTED, MEMORY, VerifiedSize))
    }
}

impl VerifiedTexts {
    /// Compares the text of a checked result with what is approved.
    ///
    /// # Errors
    /// The digest of the result's text, if the texts differ.
    pub(super) fn verify(
        &self,
        expected: &ExpectedText<'_>,
        result: &Document,
    ) -> Result<(), DigestText> {
        let filled = match expected {
            ExpectedText::Text(approved) => return self.verify_text(approved, result),
            ExpectedText::Template { template, arguments, .. } => {
                Some(fill(template, Json::accepted(arguments)))
            }
            ExpectedText::Nothing { .. } => None,
        };
        let text = canonical_text(result.json());
        if filled.is_some_and(|filled| filled == text) {
            return Ok(());
        }
        Err(seal::sha256_text(text.as_bytes()).into())
    }

    fn verify_text(&self, approved: &DigestText, result: &Document) -> Result<(), DigestText> {
        let known = self.0.get(approved);
        if known.is_some_and(|known| is_same_text(known.json(), result.json())) {
            return Ok(());
        }
        let text = canonical_text(result.json());
        let offered = seal::sha256_text(text.as_bytes());
        if offered != **approved {
            return Err(offered.into());
        }
        self.0.insert(approved.clone(), result.clone());
        Ok(())
    }
}

/// Whether two results have the same text in the same spelling.
fn is_same_text(one: Json<'_>, other: Json<'_>) -> bool {
    // The same result as a whole, as most upstreams send it: no member has to be found.
    let is_same = |name: &str| one.get(name).map(Json::text) == other.get(name).map(Json::text);
    one.text() == other.text() || ["messages", "description"].into_iter().all(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: &str) -> Document {
        Document::parse(text.as_bytes().to_vec(), 16).unwrap()
    }

    #[test]
    fn a_text_is_what_was_approved_or_not_however_often_it_is_asked() {
        let texts = VerifiedTexts::default();
        let good = result(r#"{"messages":[{"role":"user","content":{"type":"text","text":"a"}}]}"#);
        let spelled = result(
            r#"{"_meta":{"n":1},"messages":[{"content":{"text":"\u0061","type":"text"},"role":"user"}]}"#,
        );
        let described = result(
            r#"{"description":"d","messages":[{"role":"user","content":{"type":"text","text":"a"}}]}"#,
        );
        let evil = result(r#"{"messages":[{"role":"user","content":{"type":"text","text":"b"}}]}"#);
        let text = canonical_text(good.json());
        let approved: DigestText = seal::sha256_text(text.as_bytes()).into();
        for _ in 0..3 {
            assert_eq!(texts.verify_text(&approved, &good), Ok(()));
            assert_eq!(texts.verify_text(&approved, &spelled), Ok(()));
            for other in [&described, &evil] {
                assert_ne!(texts.verify_text(&approved, other).unwrap_err(), approved);
            }
        }
    }
}
