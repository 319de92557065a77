//! Responses that were accepted before: the same response to another request is compared, and
//! neither kept nor scanned again.

use std::ops::Range;

use super::document::Document;
use super::jsonrpc::Id;

/// A response that the strict scan accepted, with the result that was read from it. Another
/// response that differs from it only in the id is accepted, too, and has the same result. Clones
/// share the text.
#[derive(Clone, Debug)]
pub struct KnownResponse {
    result: Document,
    /// Range of the id in the text of the response, in bytes.
    id: Range<usize>,
}

/// The comparison of a response with a known one, chunk by chunk.
pub struct Comparison<'a> {
    result: &'a Document,
    /// The text that is expected: before the id, the id of the request, and behind it.
    expected: [&'a [u8]; 3],
    /// Bytes of it that have come.
    matched: usize,
}

impl KnownResponse {
    /// The response that a result is from; `None` where the text of the result is no response as it
    /// was received.
    pub fn of(result: &Document) -> Option<Self> {
        let id = result.range_of("id")?;
        Some(Self { result: result.clone(), id })
    }

    /// The result, which all responses that compare equal share.
    pub fn result(&self) -> &Document {
        &self.result
    }

    /// The result, if the response to the request with this id differs from the known one only in
    /// the id.
    pub fn result_of(&self, id: &Id, response: &[u8]) -> Option<&Document> {
        let mut comparison = self.compare(id);
        let is_known = comparison.matches(response) && comparison.result().is_some();
        is_known.then_some(&self.result)
    }

    /// Begins the comparison of the response to a request with this id.
    pub fn compare<'a>(&'a self, id: &'a Id) -> Comparison<'a> {
        let text = self.result.text();
        let expected = [&text[..self.id.start], id.text(), &text[self.id.end..]].map(str::as_bytes);
        Comparison { result: &self.result, expected, matched: 0 }
    }
}

impl<'a> Comparison<'a> {
    /// Compares the next bytes of the response. Bytes that do not match, or go beyond the known
    /// response, do not count as come.
    pub fn matches(&mut self, chunk: &[u8]) -> bool {
        let mut left = chunk;
        for (_, part) in self.halves() {
            let (next, after) = left.split_at(left.len().min(part.len()));
            if !part.starts_with(next) {
                return false;
            }
            left = after;
        }
        let is_within = left.is_empty();
        if is_within {
            self.matched += chunk.len();
        }
        is_within
    }

    /// Appends the bytes that have matched.
    pub fn write_matched(&self, out: &mut Vec<u8>) {
        for (part, _) in self.halves() {
            out.extend_from_slice(part);
        }
    }

    /// The known result, if the response has matched to its end.
    pub fn result(&self) -> Option<&'a Document> {
        self.halves().iter().all(|(_, rest)| rest.is_empty()).then_some(self.result)
    }

    /// The received bytes of each part of the expected text, and those still to come.
    fn halves(&self) -> [(&'a [u8], &'a [u8]); 3] {
        let mut matched = self.matched;
        self.expected.map(|part| {
            let (came, rest) = part.split_at(matched.min(part.len()));
            matched -= came.len();
            (came, rest)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(text: &str) -> Option<KnownResponse> {
        let mut response = Document::parse(text.as_bytes().to_vec(), 8).unwrap();
        response.narrow(|json| json.get("result"))?;
        KnownResponse::of(&response)
    }

    #[test]
    fn only_a_single_response_as_it_was_received_is_known() {
        assert!(known(r#" {"result":{"a":"x"},"id":1} "#).is_some());
        // Rewritten without its null, and a result that was never in a response.
        assert!(known(r#"{"id":1,"result":{"a":null}}"#).is_none());
        assert!(known(r#"{"result":{}}"#).is_none());
        let mut batch = Document::parse(br#"[{"id":1,"result":{}}]"#.to_vec(), 8).unwrap();
        batch.narrow(|json| json.elements().next()?.get("result")).unwrap();
        assert!(KnownResponse::of(&batch).is_none());
    }

    #[test]
    fn the_same_response_with_the_id_of_another_request_has_the_known_result() {
        let known = known(r#"{"jsonrpc":"2.0","id":7,"result":{"id":7}}"#).unwrap();
        let id = Id::number(12);
        for (text, is_known) in [
            (r#"{"jsonrpc":"2.0","id":12,"result":{"id":7}}"#, true),
            (r#"{"jsonrpc":"2.0","id":7,"result":{"id":7}}"#, false),
            (r#"{"jsonrpc":"2.0","id":12,"result":{"id":12}}"#, false),
            (r#"{"jsonrpc":"2.0","id":12,"result":{"id":7}} "#, false),
            (r#"{"jsonrpc":"2.0","id":12,"result":{"id":7}"#, false),
            ("", false),
        ] {
            assert_eq!(known.result_of(&id, text.as_bytes()).is_some(), is_known, "{text}");
        }
    }

    proptest! {
        #[test]
        fn chunks_match_as_the_whole_does_and_what_matched_can_be_written_again(
            cuts in prop::collection::vec(0..80_usize, 0..5),
            changed in prop::option::of(0..80_usize),
            added in "[ x]{0,3}",
            id in 0..2_000_u64,
        ) {
            let text = |id: u64| format!(r#" {{"id":{id},"result":{{"text":"{}"}}}} "#, "x".repeat(30));
            let known = known(&text(1)).unwrap();
            let mut received = (text(id) + &added).into_bytes();
            let changed = changed.filter(|at| *at < received.len());
            if let Some(at) = changed {
                received[at] ^= 1;
            }
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(received.len())).collect();
            cuts.extend([0, received.len()]);
            cuts.sort_unstable();
            let id = Id::number(id);
            let mut comparison = known.compare(&id);
            let mut matched = 0;
            let matches = cuts.windows(2).all(|cut| {
                let matches = comparison.matches(&received[cut[0]..cut[1]]);
                matched = if matches { cut[1] } else { matched };
                matches
            });
            prop_assert_eq!(matches && comparison.result().is_some(), changed.is_none() && added.is_empty());
            let mut written = Vec::new();
            comparison.write_matched(&mut written);
            prop_assert_eq!(written, &received[..matched]);
        }
    }
}
