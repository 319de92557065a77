//! The text of a prompt: the part of a get's result that a model follows.

use crate::json::Json;
use crate::json::canonical::write_canonical;
use crate::json::object::write_object;

/// Returns the canonical text (RFC 8785) of a checked `prompts/get` result: its description and
/// messages, without metadata of the result.
pub fn canonical_text(result: Json<'_>) -> String {
    let mut out = String::with_capacity(result.text().len());
    // In the order of RFC 8785.
    write_object(&mut out, |text| {
        for name in ["description", "messages"] {
            if let Some(value) = result.get(name) {
                text.written(name, |out| write_canonical(value, out));
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_spellings_of_one_text_are_the_same() {
        let canonical = |text: &str| canonical_text(Json::parse(text.as_bytes(), 16).unwrap());
        let one = canonical(
            r#"{"_meta":{"t":1},"messages":[{"role":"user","content":{"type":"text","text":"é"}}],"description":"d"}"#,
        );
        let other = canonical(
            r#"{ "description": "d", "messages": [ {"content":{"text":"\u00e9","type":"text"}, "role":"user"} ], "resultType": "complete" }"#,
        );
        assert_eq!(one, other);
        assert_ne!(one, canonical(r#"{"messages":[]}"#));
    }
}
