//! The answer of a guard's hook: its decision on a document (docs/guards.md#hooks).

use std::borrow::Cow;

use super::text_guard::{Decision, LEAVE_OUT, MASKED_URI, Texts, edited};
use crate::fault::excerpt;
use crate::json::document::Document;
use crate::json::edits::Edits;
use crate::json::{Json, JsonKind};

/// Largest answer, in bytes: room for the replacements of some long texts.
pub const MAX_ANSWER: usize = 256 << 10;

/// Most replacements of an answer. Finding the place of each may take a walk over the document.
const MAX_REPLACEMENTS: usize = 256;

/// Levels of nesting of an answer: that of its form.
const MAX_DEPTH: usize = 3;

/// Reads the decision of a hook on a document that it was sent.
///
/// # Errors
/// The rule that the answer breaks, without its texts.
pub fn decision(answer: Vec<u8>, sent: &Document, texts: Texts) -> Result<Decision, &'static str> {
    let answer = Document::parse(answer, MAX_DEPTH)
        .map_err(|_| "the answer is not JSON with unique members and at most 3 levels")?;
    let answer = answer.json();
    let decision = answer.get("decision").and_then(Json::as_str).unwrap_or_default();
    let allowed: &[_] = match &*decision {
        "allow" => &["decision"],
        "deny" => &["decision", "reason", "message"],
        "mask" => &["decision", "reason", "replacements"],
        _ => return Err("`decision` is not \"allow\", \"deny\" or \"mask\""),
    };
    if !answer.members().all(|(key, _)| allowed.iter().any(|name| key.is(name))) {
        return Err("the answer has a member that does not belong to its `decision`");
    }
    let code = answer.get("reason").map_or(Some("hook".into()), |code| {
        code.as_str().filter(|code| is_code(code)).map(Cow::into_owned)
    });
    let code = code.ok_or("`reason` is not 1 to 64 lower-case letters, digits and underscores")?;
    let advice = answer
        .get("message")
        .map_or(Some(LEAVE_OUT.into()), |message| Some(excerpt(&message.as_str()?)));
    let advice = advice.ok_or("`message` is not a text")?;
    Ok(match &*decision {
        "allow" => Decision::Allowed,
        "deny" => Decision::Denied { code: code.into(), advice: advice.into() },
        _ => Decision::Masked(code.into(), masked(answer, sent, texts)?),
    })
}

fn is_code(text: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    (1..=64).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Returns the document with the replacements of an answer.
fn masked(answer: Json<'_>, document: &Document, texts: Texts) -> Result<Document, &'static str> {
    let list = answer.get("replacements").filter(|list| list.kind() == JsonKind::Array);
    let list = list.filter(|list| (1..=MAX_REPLACEMENTS).contains(&list.elements().count()));
    let mut edits = Edits::default();
    for element in list.ok_or("`replacements` is not a list of 1 to 256 elements")?.elements() {
        let text = |name| element.get(name).and_then(Json::as_str);
        let (Some(pointer), Some(value)) = (text("pointer"), text("value")) else {
            return Err("a replacement is not an object with the texts `pointer` and `value`");
        };
        let place = place(document.json(), &pointer, texts);
        let place = place.ok_or("a `pointer` names no text that may be replaced")?;
        let value = if pointer.ends_with("/uri") { MASKED_URI } else { &value };
        edits.set(document, place, value);
    }
    Ok(edited(document, &edits))
}

/// Returns the text at the place of a pointer (RFC 6901).
fn place<'a>(mut value: Json<'a>, pointer: &str, texts: Texts) -> Option<Json<'a>> {
    for token in pointer.strip_prefix('/')?.split('/') {
        value = if value.is_object() {
            let key = token.replace("~1", "/").replace("~0", "~");
            value.get(&key).filter(|_| !texts.leaves_out(value, &key))?
        } else {
            let at = token.parse().ok().filter(|at: &usize| at.to_string() == token)?;
            value.elements().nth(at)?
        };
    }
    Some(value).filter(|value| value.kind() == JsonKind::String)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn decide(answer: &str, document: &Value, texts: Texts) -> Result<Decision, &'static str> {
        let document = Document::parse(document.to_string().into_bytes(), 64).unwrap();
        decision(answer.as_bytes().to_vec(), &document, texts)
    }

    fn result() -> Value {
        json!({"messages": [
            {"role": "user", "content": {"type": "text", "text": "call \"Bo\""}},
            {"role": "user", "content": {"type": "resource", "resource":
                {"uri": "mailto:bo", "text": "a/b", "mimeType": "text/plain"}}},
            {"role": "user", "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}},
        ]})
    }

    fn mask(replacements: &[(&str, &str)]) -> String {
        let each = |(pointer, value): &(&str, &str)| json!({"pointer": pointer, "value": value});
        let replacements: Vec<_> = replacements.iter().map(each).collect();
        json!({"decision": "mask", "reason": "names", "replacements": replacements}).to_string()
    }

    #[test]
    fn a_hook_allows_denies_with_a_sentence_or_replaces_texts_alone() {
        let allowed = decide(r#"{"decision":"allow","reason":null}"#, &result(), Texts::Content);
        assert!(matches!(allowed, Ok(Decision::Allowed)));
        let denied = r#"{"decision":"deny","reason":"insults","message":"Be\u001b polite."}"#;
        let Ok(Decision::Denied { code, advice }) = decide(denied, &result(), Texts::Content)
        else {
            panic!("not denied");
        };
        assert_eq!((&*code, &*advice), ("insults", "Be  polite."));
        let Ok(Decision::Denied { code, advice }) =
            decide(r#"{"decision":"deny"}"#, &result(), Texts::Content)
        else {
            panic!("not denied");
        };
        assert_eq!((&*code, &*advice), ("hook", LEAVE_OUT));
        let answer = mask(&[
            ("/messages/0/content/text", "call \"<PERSON>\""),
            ("/messages/1/content/resource/uri", "no URI"),
        ]);
        let Ok(Decision::Masked(code, after)) = decide(&answer, &result(), Texts::Content) else {
            panic!("not masked");
        };
        let mut expected = result();
        expected["messages"][0]["content"]["text"] = json!("call \"<PERSON>\"");
        expected["messages"][1]["content"]["resource"]["uri"] = json!("about:masked");
        let after: Value = serde_json::from_str(after.json().text()).unwrap();
        assert_eq!((&*code, after), ("names", expected));
    }

    #[test]
    fn keys_with_slashes_and_tildes_are_named_as_rfc_6901_escapes_them() {
        let arguments = json!({"a/b~c": {"": ["x", "y"]}, "a": "z"});
        let answer = mask(&[("/a~1b~0c//1", "Y"), ("/a", "Z")]);
        let Ok(Decision::Masked(_, after)) = decide(&answer, &arguments, Texts::Arguments) else {
            panic!("not masked");
        };
        let after: Value = serde_json::from_str(after.json().text()).unwrap();
        assert_eq!(after, json!({"a/b~c": {"": ["x", "Y"]}, "a": "Z"}));
    }

    #[test]
    fn an_answer_that_breaks_a_rule_is_an_error_without_its_texts() {
        let long = "x".repeat(65);
        for (answer, rule) in [
            ("secret".to_owned(), "not JSON"),
            (r#"{"decision":"allow","decision":"deny"}"#.to_owned(), "unique members"),
            (r#"["secret"]"#.to_owned(), "`decision` is not"),
            (r#"{"decision":"block"}"#.to_owned(), "`decision` is not"),
            (r#"{"decision":"allow","replacements":[]}"#.to_owned(), "does not belong"),
            (r#"{"decision":"deny","reason":"Secret!"}"#.to_owned(), "`reason` is not"),
            (format!(r#"{{"decision":"deny","reason":"{long}"}}"#), "`reason` is not"),
            (r#"{"decision":"deny","message":["secret"]}"#.to_owned(), "`message` is not"),
            (r#"{"decision":"mask"}"#.to_owned(), "list of 1 to 256"),
            (mask(&[]), "list of 1 to 256"),
            (mask(&[("/messages", "secret"); 257]), "list of 1 to 256"),
            (r#"{"decision":"mask","replacements":["secret"]}"#.to_owned(), "not an object"),
            (
                r#"{"decision":"mask","replacements":[{"pointer":"/a"}]}"#.to_owned(),
                "not an object",
            ),
            (mask(&[("", "secret")]), "names no text"),
            (mask(&[("/messages/0/content/secret", "a")]), "names no text"),
            (mask(&[("/messages/00/content/text", "a")]), "names no text"),
            (mask(&[("/messages/0/content", "a")]), "names no text"),
            (mask(&[("/messages/0/role", "assistant")]), "names no text"),
            (mask(&[("/messages/1/content/resource/mimeType", "a/b")]), "names no text"),
            (mask(&[("/messages/2/content/data", "BBBB")]), "names no text"),
        ] {
            let error = decide(&answer, &result(), Texts::Content).unwrap_err();
            assert!(error.contains(rule) && !error.contains("ecret"), "{answer}: {error}");
        }
    }
}
