//! Unsafe URIs: URIs in prompts that can run code in a client, and URIs that servers resolve to
//! other URIs.

pub mod normal_form;

use crate::json::Json;
use crate::json::document::Document;
use crate::json::object::write_object;
use crate::name::is_hidden;
use crate::text::percent;

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

/// Returns whether the text has the form `scheme:rest`, without ASCII characters that a URI cannot
/// contain (RFC 3986, section 2). Characters beyond ASCII are allowed, as in an IRI (RFC 3987). The
/// path of a file on a drive, such as `C:/x`, is not a URI.
pub fn is_valid(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let is_character = |(at, byte): (usize, u8)| match byte {
        b'%' => is_encoded(&rest[at..]),
        byte => byte >= 0x80 || !is_foreign(byte),
    };
    is_scheme(scheme)
        && drive(text).is_none()
        && !rest.is_empty()
        && rest.bytes().enumerate().all(is_character)
        && !rest.contains(char::is_control)
}

/// Whether a server may resolve a URI to a different URI, which access rules did not see: because
/// of a segment `.` or `..` of its path (RFC 3986, section 5.2.4), also if encoded, or of controls
/// and outer spaces, which parsers drop (WHATWG URL, section 4.4).
pub fn is_resolved(text: &str) -> bool {
    let path = text.split(['?', '#']).next().unwrap_or_default();
    // Broken encodings are kept, as in parsers.
    let (decoded, _) = percent::decoded_bytes(path);
    let mut parts = decoded.split(|byte| matches!(byte, b'/' | b'\\'));
    parts.any(|part| matches!(part, b"." | b".."))
        || decoded.iter().any(u8::is_ascii_control)
        || text.trim_matches(' ') != text
        || text.contains(char::is_control)
}

/// Whether no URI contains an ASCII byte.
fn is_foreign(byte: u8) -> bool {
    byte <= b' '
        || matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x7f)
}

/// Whether the text begins with a percent-encoded byte.
pub(crate) fn is_encoded(text: &str) -> bool {
    let digits = text.as_bytes().get(1..3);
    digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Splits the absolute path of a file on a drive, such as `C:\x`, into the drive and the rest.
fn drive(path: &str) -> Option<(&str, &str)> {
    let (drive, rest) = path.split_once(':')?;
    let is_letter = drive.len() == 1 && drive.starts_with(|c: char| c.is_ascii_alphabetic());
    (is_letter && rest.starts_with(['/', '\\'])).then_some((drive, rest))
}

/// Returns the valid URI that a text means: a URI with characters that must be percent-encoded, or
/// the absolute path of a file (RFC 8089). `None` for other texts, such as a relative path.
pub fn repaired(text: &str) -> Option<String> {
    // URL parsers ignore these characters (WHATWG URL, section 4.4), and must not read another URI
    // than `is_unsafe`.
    let text: String = text.chars().filter(|c| !matches!(c, '\t' | '\n' | '\r')).collect();
    let text = text.trim();
    let path = |path: &str| percent::encoded_path(&path.replace('\\', "/"));
    let uri = if let Some((drive, rest)) = drive(text) {
        format!("file:///{drive}:{}", path(rest))
    } else if text.starts_with("\\\\") {
        format!("file:{}", path(text))
    } else if text.starts_with('/') && !text.starts_with("//") {
        format!("file://{}", path(text))
    } else {
        escaped(text)
    };
    is_valid(&uri).then_some(uri)
}

/// Returns a URI with its invalid characters percent-encoded, except hidden characters, which
/// `content` treats. In the URI of a file, backslashes separate segments.
fn escaped(uri: &str) -> String {
    let is_file = uri.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"));
    let mut out = String::with_capacity(uri.len() + 16);
    for (at, character) in uri.char_indices() {
        match character {
            '\\' if is_file => out.push('/'),
            '%' if is_encoded(&uri[at..]) => out.push('%'),
            ' '..='\x7e' if character != '%' && !is_foreign(character as u8) => out.push(character),
            character if is_hidden(character) => out.push(character),
            _ => out.push_str(&percent::encoded(&uri[at..at + character.len_utf8()])),
        }
    }
    out
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

/// Reports the indices of elements with an unsafe URI as JSON (`[0,2]`), at most [`MAX_PLACES`];
/// `None` without indices.
pub fn report(messages: &[usize]) -> Option<String> {
    let places: Vec<_> = messages.iter().take(MAX_PLACES).map(usize::to_string).collect();
    (!places.is_empty()).then(|| format!("[{}]", places.join(",")))
}

/// Returns the result without the elements of its list `name` at these sorted indices.
pub fn without(result: Json<'_>, name: &str, omitted: &[usize]) -> Document {
    let mut out = String::with_capacity(result.text().len());
    write_object(&mut out, |out| {
        for (key, member) in result.members() {
            if !key.is(name) {
                out.member(key, member);
                continue;
            }
            let all = member.elements().enumerate();
            let kept = all.filter(|(index, _)| omitted.binary_search(index).is_err());
            out.array(name, kept, |(_, element), out| out.push_str(element.text()));
        }
    });
    Document::copy_of(Json::accepted(&out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompts::content::inspect_result;

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
    fn a_text_that_means_a_uri_becomes_a_valid_one() {
        for (text, expected) in [
            ("file:///home/me/My Notes/todo.md", "file:///home/me/My%20Notes/todo.md"),
            ("/home/me/100% of it?#1.md", "file:///home/me/100%25%20of%20it%3F%231.md"),
            ("/home/x", "file:///home/x"),
            (r"C:\x\y z.md", "file:///C:/x/y%20z.md"),
            ("c:/x", "file:///c:/x"),
            (r"file:///C:\x\y.md", "file:///C:/x/y.md"),
            (r"\\server\share\x", "file://server/share/x"),
            ("https://a.example/{x}?q=a b#c|d", "https://a.example/%7Bx%7D?q=a%20b#c%7Cd"),
            ("https://a.example/100%", "https://a.example/100%25"),
            ("https://a.example/a%20b c", "https://a.example/a%20b%20c"),
            ("note://é b", "note://%C3%A9%20b"),
            (" https://a.example/x\n", "https://a.example/x"),
        ] {
            assert!(!is_valid(text), "{text}");
            assert_eq!(repaired(text).as_deref(), Some(expected));
            assert!(is_valid(expected), "{expected}");
        }
        for valid in ["https://é.example/é", "a:b", "urn:x:%20", "file:///C:/x", "data:,[x]"] {
            assert!(is_valid(valid), "{valid}");
        }
        for neither in
            ["", "notes/todo.md", "no scheme", "//a.example/x", "a:", "a:\u{1}", "java script:x"]
        {
            assert_eq!(repaired(neither), None, "{neither}");
        }
    }

    #[test]
    fn u17_a_repair_hides_no_unsafe_uri() {
        for bad in [
            "javascript:alert( 1 )",
            " java\nscript:alert(1)",
            "data:text/ht\tml,<script>",
            "data:image/\u{200b}svg+xml,<svg onload=x>",
            "data:image/sv\ng+xml,<svg>",
        ] {
            let repaired = repaired(bad).unwrap();
            assert!(is_unsafe(&repaired), "{bad}: {repaired}");
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
        let rest = without(json, "messages", &found);
        let rest = Json::parse(rest.json().text().as_bytes(), 16).unwrap();
        assert_eq!(inspect_result(rest).unwrap(), Default::default());
        assert_eq!(report(&[]), None);
        assert_eq!(rest.get("messages").unwrap().elements().count(), 1);
        assert_eq!(rest.get("description").and_then(Json::as_str).as_deref(), Some("d"));
    }

    #[test]
    fn uris_that_a_server_resolves_to_others_are_known() {
        for resolved in [
            "file:///docs/../secret",
            "file:///docs/%2e%2E/secret",
            "file:///docs/..%2fsecret",
            "file:///docs\\..\\secret",
            "file:///docs/.",
            "file:///docs/.\t./secret",
            "file:///docs/%00x",
            "file:///docs/100%/%2e%2e/secret",
            "file:///docs/%ff/%2e%2e/secret",
            " file:///docs/x",
        ] {
            assert!(is_resolved(resolved), "{resolved:?}");
        }
        for plain in [
            "file:///docs/a.b/..c/...",
            "file:///C:\\docs\\x",
            "test://a?path=../b#./c",
            "demo://a/100%",
            "memo:insights",
            "file:///docs/a b",
            "",
        ] {
            assert!(!is_resolved(plain), "{plain:?}");
        }
    }
}
