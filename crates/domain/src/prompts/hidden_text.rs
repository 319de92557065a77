//! Hidden text: characters that a display does not show. In a prompt, hidden text can give a model
//! instructions that a reader cannot see and would not accept.

use std::fmt::Write as _;
use std::ops::Range;

use crate::json::document::Document;
use crate::json::{Json, JsonKind, write_str};
use crate::name::is_hidden;

/// The policy for hidden text in the messages of a prompt (`content` in the configuration).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HiddenText {
    /// Passes the hidden text on.
    Allow,
    /// Passes the hidden text on, and reports its place in the result.
    Flag,
    /// Removes the hidden text, and reports its place in the result.
    Strip,
    /// Refuses the prompt.
    Reject,
}

/// The limit of messages that one report names.
const MAX_NAMED: usize = 100;

/// Counts the hidden characters of a text. Line feeds, carriage returns and tabs are visible; so
/// are a variation selector and a joiner directly after the character that they modify, as in
/// emoji.
pub fn count(text: &str) -> usize {
    // Without a branch for each byte, so that the compiler can vectorise it: texts can have
    // megabytes.
    let is_plain = |b: u8| (b' '..=b'~').contains(&b) | (b == b'\n') | (b == b'\t');
    if text.bytes().fold(true, |plain, byte| plain & is_plain(byte)) {
        return 0;
    }
    characters(text).filter(|(_, hidden)| *hidden).count()
}

/// Iterates over the places of hidden characters, in bytes.
pub(crate) fn places(text: &str) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    let text = if count(text) == 0 { "" } else { text };
    characters(text).filter_map(move |(c, hidden)| {
        end += c.len_utf8();
        hidden.then_some(end - c.len_utf8()..end)
    })
}

/// Returns the text without its hidden characters.
pub(crate) fn visible(text: &str) -> String {
    characters(text).filter(|(_, hidden)| !hidden).map(|(c, _)| c).collect()
}

/// Iterates over the characters of a text, each with the flag whether it is hidden.
fn characters(text: &str) -> impl Iterator<Item = (char, bool)> {
    // Whether a variation selector or a joiner would modify the character before it.
    let mut selector = false;
    let mut joiner = false;
    text.chars().map(move |c| {
        let belongs = (c == '\u{fe0f}' && selector) || (c == '\u{200d}' && joiner);
        let hidden = is_hidden(c) && !matches!(c, '\n' | '\r' | '\t') && !belongs;
        let is_base = !hidden && !belongs;
        selector = is_base && (!c.is_ascii() || matches!(c, '0'..='9' | '#' | '*'));
        joiner = (is_base && !c.is_ascii()) || (c == '\u{fe0f}' && belongs);
        (c, hidden)
    })
}

/// Reports messages with hidden text, each with its number of hidden characters, as JSON:
/// `[{"message":0,"characters":3}]`. At most [`MAX_NAMED`] messages are named; `None` without such
/// messages.
pub fn report(messages: &[(usize, usize)]) -> Option<String> {
    let mut out = String::from("[");
    for (index, characters) in messages.iter().take(MAX_NAMED) {
        let comma = if out.len() > 1 { "," } else { "" };
        let _ = write!(out, "{comma}{{\"message\":{index},\"characters\":{characters}}}");
    }
    (out.len() > 1).then(|| out + "]")
}

/// Returns a copy of the result without the hidden text in its messages.
pub fn stripped(result: Json<'_>) -> Document {
    let mut out = String::with_capacity(result.text().len());
    let texts = ["text", "uri", "name", "title", "description"];
    rewrite(result, &["messages", "content", "resource"], &texts, &mut out);
    Document::copy_of(Json::accepted(&out))
}

/// Returns a copy of the result of a `resources/read` without the hidden text in its contents.
pub fn stripped_contents(result: Json<'_>) -> Document {
    let mut out = String::with_capacity(result.text().len());
    rewrite(result, &["contents"], &["text", "uri"], &mut out);
    Document::copy_of(Json::accepted(&out))
}

/// Copies a value. Removes hidden text from the members named in `texts` of the values on the path
/// `keys`, in this order; keys may be skipped, and members are rewritten where at most the last key
/// is left.
fn rewrite(value: Json<'_>, keys: &[&str], texts: &[&str], out: &mut String) {
    match value.kind() {
        JsonKind::Object => {
            out.push('{');
            for (index, (key, member)) in value.members().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                out.push_str(key.text());
                out.push(':');
                match keys.iter().position(|known| key.is(known)) {
                    _ if keys.len() <= 1 && texts.iter().any(|text| key.is(text)) => {
                        write_visible(member, out);
                    }
                    Some(at) => rewrite(member, &keys[at + 1..], texts, out),
                    None => out.push_str(member.text()),
                }
            }
            out.push('}');
        }
        JsonKind::Array => {
            out.push('[');
            for (index, element) in value.elements().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                rewrite(element, keys, texts, out);
            }
            out.push(']');
        }
        _ => out.push_str(value.text()),
    }
}

/// Copies a member of a listed prompt, and removes hidden text from `title` and `description` in
/// it.
pub(crate) fn write_listed(value: Json<'_>, out: &mut String) {
    rewrite(value, &[], &["title", "description"], out);
}

/// Appends a JSON value; a string without its hidden characters.
pub(crate) fn write_visible(value: Json<'_>, out: &mut String) {
    match value.as_str() {
        Some(text) if count(&text) > 0 => write_str(&visible(&text), out),
        _ => out.push_str(value.text()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::prompts::content::inspect_result;

    #[test]
    fn u13_hidden_characters_are_counted_and_emoji_are_visible() {
        for seen in [
            "",
            "plain\r\n\ttext",
            "é ü 漢字",
            "❤\u{fe0f}",
            "👩\u{200d}🚀",
            "👩\u{200d}❤\u{fe0f}\u{200d}👩",
        ] {
            assert_eq!(count(seen), 0, "{seen:?}");
        }
        for (text, hidden) in [
            ("a\u{200b}b", 1),
            ("\u{e0041}\u{e0042}", 2),
            ("\u{1b}[31mred", 1),
            ("\u{202e}txt", 1),
            ("a\u{fe0f}", 1),
            ("❤\u{fe0f}\u{fe0f}\u{fe0f}", 2),
            ("👩\u{200d}\u{200d}", 1),
            ("❤\u{fe01}", 1),
            ("\u{feff}x\u{ad}", 2),
        ] {
            assert_eq!(count(text), hidden, "{text:?}");
        }
    }

    #[test]
    fn only_texts_of_messages_are_checked_and_rewritten() {
        let text = r#"{"description":"d\u200b","messages":[
            {"role":"user","content":{"type":"text","text":"a\u200bb\nc"}},
            {"role":"user","content":{"type":"text","text":"fine","_meta":{"text":"k\u200b"}}},
            {"role":"assistant","content":{"type":"resource","resource":{"uri":"a:b","text":"\u202ex"}}}]}"#;
        let json = Json::parse(text.as_bytes(), 16).unwrap();
        let found = r#"[{"message":0,"characters":1},{"message":2,"characters":1}]"#;
        let hidden = |json| report(&inspect_result(json).unwrap().hidden_text);
        assert_eq!(hidden(json).as_deref(), Some(found));
        let out = stripped(json);
        let again = Json::parse(out.json().text().as_bytes(), 16).unwrap();
        assert_eq!(hidden(again), None);
        let expected = text.replace("a\\u200bb", "ab").replace("\\u202e", "");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(out.json().text()), value(&expected));
    }

    proptest! {
        #[test]
        fn visible_text_has_no_hidden_characters(text in "[a❤👩\u{fe0f}\u{200d}\u{200b}\u{e0041}\n]{0,12}") {
            let once = visible(&text);
            prop_assert_eq!(count(&once), 0);
            prop_assert_eq!(once.chars().filter(|c| !is_hidden(*c)).count(), text.chars().filter(|c| !is_hidden(*c)).count());
        }
    }
}
