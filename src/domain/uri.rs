//! Unsafe URIs in prompts: URIs that can run code in a client that opens them.

use super::document::Document;
use super::json::Json;
use super::json::object::write_object;

/// The media types that a `data:` URI may have: types that clients display and do not run.
const SAFE_DATA: [&str; 4] = ["image/", "audio/", "video/", "text/plain"];

/// The number of leading characters that are inspected: enough for the scheme and the media type.
const INSPECTED: usize = 64;

/// The maximum number of message indices that one result names.
const MAX_PLACES: usize = 100;

/// Returns whether a client that opens the URI might run its content: a script, or a page in a `data:` URI.
pub(crate) fn is_unsafe(uri: &str) -> bool {
    // URL parsers ignore spaces and control characters at the start, and tabs and line ends anywhere
    // (WHATWG URL, section 4.4). This check ignores all of them anywhere.
    let uri: String = uri.chars().filter(|c| *c > ' ' && *c != '\u{7f}').take(INSPECTED).collect();
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

/// Returns the indices of the messages of a checked `prompts/get` result that have an unsafe URI.
fn unsafe_messages(result: Json<'_>) -> Vec<usize> {
    let messages = result.get("messages");
    let messages = messages.iter().flat_map(|messages| messages.elements()).enumerate();
    let holds = |message: Json<'_>| {
        let content = message.get("content")?;
        let uris = [content.get("uri"), content.get("resource").and_then(|r| r.get("uri"))];
        let icons = content.get("icons");
        let icons = icons.iter().flat_map(|icons| icons.elements()).map(|icon| icon.get("src"));
        let mut all = uris.into_iter().chain(icons).flatten().filter_map(Json::as_str);
        all.any(|uri| is_unsafe(&uri)).then_some(())
    };
    messages.filter_map(|(index, message)| holds(message).map(|()| index)).collect()
}

/// Returns the indices of the messages with an unsafe URI in a checked `prompts/get` result, as JSON (`[0,2]`),
/// at most [`MAX_PLACES`]; `None` if there are none.
pub(crate) fn places(result: Json<'_>) -> Option<String> {
    let places = unsafe_messages(result);
    let places: Vec<_> = places.iter().take(MAX_PLACES).map(usize::to_string).collect();
    (!places.is_empty()).then(|| format!("[{}]", places.join(",")))
}

/// Returns the result without the messages that have an unsafe URI.
pub(crate) fn without(result: Json<'_>) -> Document {
    let unsafe_ones = unsafe_messages(result);
    let mut out = String::with_capacity(result.text().len());
    write_object(&mut out, |out| {
        for (key, member) in result.members() {
            if !key.is("messages") {
                out.member(key, member);
                continue;
            }
            let messages = member.elements().enumerate();
            let kept = messages.filter(|(index, _)| unsafe_ones.binary_search(index).is_err());
            out.array("messages", kept, |(_, message), out| out.push_str(message.text()));
        }
    });
    Document::copy_of(Json::accepted(&out))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(places(json).as_deref(), Some("[0,2,3]"));
        let rest = without(json);
        let rest = Json::parse(rest.json().text().as_bytes(), 16).unwrap();
        assert_eq!(places(rest), None);
        assert_eq!(rest.get("messages").unwrap().elements().count(), 1);
        assert_eq!(rest.get("description").and_then(Json::as_str).as_deref(), Some("d"));
    }
}
