//! Reads texts that the strict scan refuses: repairs parts of them, and finds the request that they
//! answer. The results are not validated: repaired texts are scanned again.

use std::ops::Range;

use memchr::memchr;

use super::Json;
use super::scan::{JsonError, string_stop};

/// A prompt that the strict scan refuses on its own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RefusedPrompt {
    /// Empty if the name cannot be read.
    pub name: String,
    pub error: JsonError,
}

/// The limit of prompts that are left out of one message: their reasons are kept in memory.
const MOST_REFUSED: usize = 1_000;

/// Levels above a prompt: the response, its `result` and the list.
const ABOVE: usize = 3;

/// Bytes of an escape such as `\ud83d`.
const ESCAPE: usize = 6;

/// Replaces each escape of a lone surrogate by U+FFFD, as the decoders of clients do.
pub(crate) fn without_lone_surrogates(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut kept = 0;
    let mut at = 0;
    while let Some(offset) = text.as_bytes().get(at..).and_then(|rest| memchr(b'\\', rest)) {
        let escape = at + offset;
        at = match (code_unit(text, escape), code_unit(text, escape + ESCAPE)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => escape + 2 * ESCAPE,
            (Some(0xD800..=0xDFFF), _) => {
                out.push_str(&text[kept..escape]);
                out.push(char::REPLACEMENT_CHARACTER);
                kept = escape + ESCAPE;
                kept
            }
            (Some(_), _) => escape + ESCAPE,
            // A backslash escapes the byte after it.
            (None, _) => escape + 2,
        };
    }
    out.push_str(&text[kept..]);
    out
}

/// Returns the UTF-16 code unit of the escape `\uXXXX` at an offset.
fn code_unit(text: &str, at: usize) -> Option<u32> {
    let digits = text.as_bytes().get(at..at + ESCAPE)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | (*digit as char).to_digit(16)?))
}

/// Returns a response without the elements of its `result.prompts` that the strict scan refuses on
/// their own, and these elements; `None` if there are none or too many.
pub(crate) fn without_refused_prompts(
    text: &str,
    max_depth: usize,
) -> Option<(String, Vec<RefusedPrompt>)> {
    let bytes = text.as_bytes();
    let result = member(text, skip_space(bytes, 0), "result")?;
    let list = member(text, result.start, "prompts")?.start;
    let mut kept = text.get(..=list)?.strip_suffix('[')?.to_owned();
    let mut separator = '[';
    let mut refused = Vec::new();
    let mut at = skip_space(bytes, list + 1);
    while *bytes.get(at)? != b']' {
        let end = value_end(bytes, at)?;
        let element = text.get(at..end)?;
        match Json::parse_text(element, max_depth.saturating_sub(ABOVE)) {
            Ok(_) => {
                kept.push(separator);
                kept.push_str(element);
                separator = ',';
            }
            Err(_) if refused.len() == MOST_REFUSED => return None,
            Err(error) => refused.push(RefusedPrompt { name: name(element), error }),
        }
        at = skip_space(bytes, end);
        if *bytes.get(at)? == b',' {
            at = skip_space(bytes, at + 1);
        }
    }
    if separator == '[' {
        kept.push('[');
    }
    kept.push_str(text.get(at..)?);
    (!refused.is_empty()).then_some((kept, refused))
}

/// Returns the `name` of an element; empty if it cannot be read.
fn name(element: &str) -> String {
    let name = member(element, 0, "name").and_then(|name| element.get(name));
    let name = name.and_then(|name| Json::parse_text(name, 1).ok()?.as_str());
    name.unwrap_or_default().into_owned()
}

/// Returns the text of the `id` of a response that the strict scan refuses, if it can be found, and
/// whether the text is a request or notification instead. A line of a log in JSON, which may have
/// an `id`, too, answers nothing.
pub fn response_id(text: &str) -> (Option<&str>, bool) {
    let start = skip_space(text.as_bytes(), 0);
    let has = |name| value_start(text, start, name).is_some();
    let is_response = has("jsonrpc") || has("result");
    let id = member(text, start, "id").filter(|_| is_response && !has("method"));
    (id.and_then(|id| text.get(id)), has("method"))
}

/// Finds the first member of this name in the object that begins at an offset.
fn member(text: &str, object: usize, name: &str) -> Option<Range<usize>> {
    let start = value_start(text, object, name)?;
    Some(start..value_end(text.as_bytes(), start)?)
}

/// Finds the value of the first member of this name in the object that begins at an offset. The
/// value may be incomplete.
fn value_start(text: &str, object: usize, name: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if *bytes.get(object)? != b'{' {
        return None;
    }
    let mut at = skip_space(bytes, object + 1);
    while *bytes.get(at)? == b'"' {
        let key_end = value_end(bytes, at)?;
        let colon = skip_space(bytes, key_end);
        if *bytes.get(colon)? != b':' {
            return None;
        }
        let start = skip_space(bytes, colon + 1);
        if text.get(at + 1..key_end - 1)? == name {
            return Some(start);
        }
        let end = value_end(bytes, start)?;
        let comma = skip_space(bytes, end);
        if *bytes.get(comma)? != b',' {
            return None;
        }
        at = skip_space(bytes, comma + 1);
    }
    None
}

fn skip_space(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count()
}

/// Returns the end of the value that begins at an offset; `None` if the text ends before it.
fn value_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut depth = 0;
    let mut at = start;
    loop {
        match bytes.get(at)? {
            b'"' => at = string_end(bytes, at)?,
            b'{' | b'[' => (depth, at) = (depth + 1, at + 1),
            b'}' | b']' => (depth, at) = (usize::checked_sub(depth, 1)?, at + 1),
            _ => {
                let rest = bytes.get(at..)?;
                let is_end = |byte: &u8| {
                    matches!(byte, b'"' | b'{' | b'[' | b'}' | b']')
                        || depth == 0 && is_between(*byte)
                };
                let length = rest.iter().position(is_end).unwrap_or(rest.len());
                if length == 0 {
                    return None;
                }
                at += length;
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

fn is_between(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':')
}

/// Returns the end of the string literal that begins at an offset.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        let (offset, stop) = string_stop(bytes.get(at..)?)?;
        at += offset + 1;
        match stop {
            b'"' => return Some(at),
            b'\\' => at += 1,
            // A control character, which the scan has refused.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lone_surrogates_become_replacement_characters() {
        for (text, repaired) in [
            (r#""x \ud83d""#, "\"x \u{fffd}\""),
            (r#""\ude00\ud83d\ude00\uD83D""#, "\"\u{fffd}\\ud83d\\ude00\u{fffd}\""),
            (r#""\ud83d\ud83d\ude00""#, "\"\u{fffd}\\ud83d\\ude00\""),
            (r#""\\ud83d \u0041\"\\""#, r#""\\ud83d \u0041\"\\""#),
            (r#""\ud83""#, r#""\ud83""#),
            (r"\", r"\"),
        ] {
            assert_eq!(without_lone_surrogates(text), repaired, "{text}");
        }
    }

    #[test]
    fn a_prompt_that_is_refused_by_itself_is_left_out_of_its_list() {
        let list = |prompts: &str| {
            format!(r#" {{"id":1, "result" : {{"prompts": [{prompts}],"x":"]"}}}}"#)
        };
        for (prompts, kept, names) in [
            (
                r#"{"name":"a"},{"name":"b","x":1,"x":2} ,{"name":"c"}"#,
                r#"{"name":"a"},{"name":"c"}"#,
                &["b"][..],
            ),
            (r#"{"name":"b","n":1e999}"#, "", &["b"]),
            (r#"{"n":NaN},{"name":"a ]}\""}"#, r#"{"name":"a ]}\""}"#, &[""]),
            (r#"{"name":"a"},{"name":"d","x":[[[[[[1]]]]]]}"#, r#"{"name":"a"}"#, &["d"]),
        ] {
            let (text, refused) = without_refused_prompts(&list(prompts), 4).unwrap();
            assert_eq!(text, list(kept));
            let found: Vec<_> = refused.iter().map(|refused| refused.name.as_str()).collect();
            assert_eq!(found, names);
        }
        for whole in [&list(r#"{"name":"a"}"#), &list(""), "{}", r#"{"result":{"prompts":[{"#] {
            assert_eq!(without_refused_prompts(whole, 8), None, "{whole}");
        }
        assert_eq!(without_refused_prompts(&list(&["{]"; 1_002].join(",")), 8), None);
    }

    #[test]
    fn the_id_of_a_broken_response_is_found() {
        for (text, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"a":1,"a":2}}"#, Some("7")),
            (r#" { "x" : [tru, "]"], "id" : "s" , "result" "#, None),
            (r#" { "x" : [tru, "]"], "id" : "s" , "result" : "#, Some("\"s\"")),
            (r#"{"id":7,"result":{"a":"#, Some("7")),
            (r#"{"result":{"a":"#, None),
            (r#"{"id":7,"method":"ping","params":{"a":1,"a":2}}"#, None),
            (r#"{"id":7,"method":"#, None),
            (r#"{"id":7,"result":"#, Some("7")),
            (r#"{"jsonrpc":"2.0","id":7,"error":{"a":1,"a":2}}"#, Some("7")),
            (r#"{"level":50,"id":7,"error":"a","error":"b"}"#, None),
            (r#"{"id":7,"#, None),
            ("[7]", None),
            ("usage: id", None),
        ] {
            assert_eq!(response_id(text).0, id, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in r#"[\[\]{}",:\\ux0-9d8a-f é\n]{0,60}|\{"(id|result)":[\[\]{}",: nampros0-9]{0,40}"#) {
            let _ = without_lone_surrogates(&text);
            let _ = without_refused_prompts(&text, 4);
            let _ = response_id(&text);
        }
    }
}
