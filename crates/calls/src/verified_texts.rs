//! Compares the text of a result with the approved text. Results with approved texts are cached, so
//! that the next get of the same text is compared without a hash.

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use base::seal;
use catalog::approval::{DEPTH, ExpectedText};
use domain::approval::template::{fill, is_filled};
use domain::approval::{DigestText, Form, canonical_text};
use domain::json::Json;
use domain::json::document::Document;

/// Cache of results with approved texts, keyed by the digests of the texts. Evicts the least
/// recently used results.
pub(super) struct VerifiedTexts(Cache<DigestText, Document, VerifiedSize>);

/// Memory for results, in bytes. A forgotten text is hashed again.
const MEMORY: u64 = 16 << 20;

/// Estimated number of results. More results only cost a resize.
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
    /// Compares the text of a checked result with the approved text. `treat` applies the repairs of
    /// a result to a filled template, such as percent-encoding an argument in a URI. Texts of more
    /// than `most` bytes are not approved.
    pub(super) fn verify(
        &self,
        expected: &ExpectedText<'_>,
        result: &Document,
        most: usize,
        treat: impl Fn(Document) -> Option<Document>,
    ) -> Result<(), OtherText> {
        if let ExpectedText::Text { key, digest, version } = expected {
            let compared = self.verify_text(digest, result);
            let is_variant = |other: &OtherText| version.is_variant(key, &other.digest);
            return compared.or_else(|other| if is_variant(&other) { Ok(()) } else { Err(other) });
        }
        if let ExpectedText::Template { forms, values, .. } = expected
            // Fast path: the result is spelled as most upstreams spell it.
            && forms.iter().any(|form| form.is_alike(values, result.json()))
        {
            return Ok(());
        }
        let text = canonical_text(result.json());
        if let ExpectedText::Template { forms, arguments, .. } = expected {
            let arguments = Json::accepted(arguments);
            let is_same = |form: &Form| is_filled(form.text(), arguments, &text);
            let is_filled_and_treated = |form: &Form| {
                let filled = fill(form.text(), arguments, most);
                let parse = |filled: String| Document::parse(filled.into_bytes(), DEPTH).ok();
                let treated = filled.and_then(parse).and_then(&treat);
                treated.is_some_and(|treated| canonical_text(treated.json()) == text)
            };
            if forms.iter().any(is_same) || forms.iter().any(is_filled_and_treated) {
                return Ok(());
            }
        }
        Err(OtherText::new(text))
    }

    fn verify_text(&self, approved: &DigestText, result: &Document) -> Result<(), OtherText> {
        let known = self.0.get(approved);
        if known.is_some_and(|known| is_same_text(known.json(), result.json())) {
            return Ok(());
        }
        let offered = OtherText::new(canonical_text(result.json()));
        if offered.digest != *approved {
            return Err(offered);
        }
        self.0.insert(approved.clone(), result.clone());
        Ok(())
    }
}

/// A text that is not approved.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct OtherText {
    pub digest: DigestText,
    /// The canonical text.
    pub text: String,
}

impl OtherText {
    /// The text of a result for which no approved text is known.
    pub(super) fn of_result(result: &Document) -> Self {
        Self::new(canonical_text(result.json()))
    }

    fn new(text: String) -> Self {
        Self { digest: seal::prompt_text_digest(&text).into(), text }
    }
}

/// Whether two results have the same text in the same spelling.
fn is_same_text(one: Json<'_>, other: Json<'_>) -> bool {
    // Compares raw JSON: a cached result that is repeated byte for byte needs no canonical form.
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
        let approved: DigestText = seal::prompt_text_digest(&text).into();
        for _ in 0..3 {
            assert_eq!(texts.verify_text(&approved, &good), Ok(()));
            assert_eq!(texts.verify_text(&approved, &spelled), Ok(()));
            for other in [&described, &evil] {
                assert_ne!(texts.verify_text(&approved, other).unwrap_err().digest, approved);
            }
        }
    }

    #[test]
    fn a_template_that_would_be_too_large_is_not_filled_in() {
        let key: std::sync::Arc<str> = r#"{"who":"{{ who }}"}"#.into();
        let digest = DigestText::from("sha256:0");
        let value = "v".repeat(1 << 20);
        let arguments = format!(r#"{{"who":"{value}"}}"#);
        let text = |text: &str| {
            format!(
                r#"{{"messages":[{{"content":{{"text":"{text}","type":"text"}},"role":"user"}}]}}"#
            )
        };
        let form = |places: usize| {
            let places = text(&"{{ who }}".repeat(places));
            Form::new(places, &domain::approval::TemplateArguments::read(&key).unwrap())
        };
        let verify = |places: usize, made: &str, treat: fn(Document) -> Option<Document>| {
            let expected = ExpectedText::Template {
                key: &key,
                digest: &digest,
                forms: [form(places)].into(),
                arguments: &arguments,
                values: vec![&value],
            };
            VerifiedTexts::default().verify(&expected, &result(&text(made)), 2 << 20, treat).is_ok()
        };
        assert!(verify(2, &value.repeat(2), |_| panic!("it is alike")));
        assert!(verify(2, &value.repeat(2).replacen('v', "\\u0076", 1), |_| panic!("it is alike")));
        assert!(!verify(1 << 15, &value, |_| panic!("it is too large")));
        assert!(!verify(1, "other", Some));
    }
}
