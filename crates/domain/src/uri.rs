//! Unsafe URIs in prompts: URIs that can run code in a client that opens them.

use super::document::Document;
use super::json::Json;
use super::json::object::write_object;
use super::name::is_hidden;

/// The media types that a `data:` URI may have: types that clients display and do not run.
const SAFE_DATA: [&str; 4] = ["image/", "audio/", "video/", "text/plain"];

/// The number of leading characters that are inspected: enough for the scheme and the media type.
const INSPECTED: usize = 64;

/// The maximum number of message indices that one result names.
const MAX_PLACES: usize = 100;

/// Returns whether the text is the scheme of a URI (RFC 3986, section 3.1).
pub fn is_scheme(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

/// Returns whether a client that opens the URI might run its content: a script, or a page in a
/// `data:` URI.
pub fn is_unsafe(uri: &str) -> bool {
    // URL parsers ignore spaces and control characters at the start, and tabs and line ends
    // anywhere (WHATWG URL, section 4.4). This check ignores all of them anywhere, and hidden text,
    // which `content = "strip"` removes.
    let uri: String = uri.chars().filter(|c| *c > ' ' && !is_hidden(*c)).take(INSPECTED).collect();
    let Some((scheme, rest)) = uri.split_once(':') else {
        return false;
    };
    match scheme.to_ascii_lowercase().as_str() {
        "javascript" | "vbscript" => true,
        "data" => {
            let kind = rest.to_ascii_lowercase();
            let is_safe =
                SAFE_DATA.iter().any(|safe| kind.starts_with(safe)) || kind.starts_with(',');
            // An SVG image may contain a script.
            !is_safe || kind.starts_with("image/svg")
        }
        _ => false,
    }
}

/// Reports the indices of messages with an unsafe URI as JSON (`[0,2]`), at most [`MAX_PLACES`];
/// `None` if there are none.
pub fn report(messages: &[usize]) -> Option<String> {
    let places: Vec<_> = messages.iter().take(MAX_PLACES).map(usize::to_string).collect();
    (!places.is_empty()).then(|| format!("[{}]", places.join(",")))
}

/// Returns the result without the messages at these indices, which are in order.
pub fn without(result: Json<'_>, messages: &[usize]) -> Document {
    let mut out = String::with_capacity(result.text().len());
    write_object(&mut out, |out| {
        for (key, member) in result.members() {
            if !key.is("messages") {
                out.member(key, member);
                continue;
            }
            let all = member.elements().enumerate();
            let kept = all.filter(|(index, _)| messages.binary_search(index).is_err());
            out.array("messages", kept, |(_, message), out| out.push_str(message.text()));
        }
    });
    Document::copy_of(Json::accepted(&out))
}

#[cfg(test)]
mod tests {
    use super::super::content::inspect_result;
    use super::*;

    #[test]
    fn u17_uris_that_run_code_are_unsafe_in_every_spelling() {
        for bad in [
            "javascript:alert(1)",
            " JAVAscript:x",
            "vbscript:x",
            "data:text/html,<script>",
            "data:application/xhtml+xml;base64,AA",
            "java\nscript:alert(1)",
            "\u{1}javascript:x",
            "data:image/svg+xml,<svg onload=x>",
            "data:image/\u{200b}svg+xml,<svg onload=x>",
        ] {
            assert!(is_unsafe(bad), "{bad}");
        }
        for good in ["https://a/b", "file:///a", "a:b", "data:image/png;base64,AA", "data:,x", "x"]
        {
            assert!(!is_unsafe(good), "{good}");
        }
    }

    #[test]
    fn u17_messages_with_unsafe_uris_are_found_and_omitted() {
        let text = r#"{"messages":[
            {"role":"user","content":{"type":"resource_link","uri":"javascript:x","name":"n"}},
            {"role":"user","content":{"type":"text","text":"javascript:x"}},
            {"role":"user","content":{"type":"resource","resource":{"uri":"DATA:text/html,x","text":"x"}}},
            {"role":"user","content":{"type":"resource_link","uri":"a:b","name":"n","icons":[{"src":"javascript:x"}]}}],
            "description":"d"}"#;
        let json = Json::parse(text.as_bytes(), 16).unwrap();
        let found = inspect_result(json).unwrap().unsafe_uris;
        assert_eq!(report(&found).as_deref(), Some("[0,2,3]"));
        let rest = without(json, &found);
        let rest = Json::parse(rest.json().text().as_bytes(), 16).unwrap();
        assert_eq!(inspect_result(rest).unwrap(), Default::default());
        assert_eq!(report(&[]), None);
        assert_eq!(rest.get("messages").unwrap().elements().count(), 1);
        assert_eq!(rest.get("description").and_then(Json::as_str).as_deref(), Some("d"));
    }
}
