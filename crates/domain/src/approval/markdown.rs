//! The text of a prompt as Markdown: the form that people read in a review, and whose SHA-256 hash
//! names the text.
//!
//! A section for the description and for each message, in their order: a block quote for a plain
//! text, else JSON. Each text has exactly one form, and each form belongs to one text.

use std::fmt::Write as _;
use std::str::Lines;

use crate::json::object::write_object;
use crate::json::{Json, write_str};

const DESCRIPTION: &str = "# description";

/// The heading of a message with more members than a role and a content.
const MESSAGE: &str = "## message";

/// The headings of messages, and their roles.
const ROLES: [(&str, &str); 2] = [("## user", "user"), ("## assistant", "assistant")];

const FENCE: &str = "```json";
const FENCE_END: &str = "```";

/// JSON depth of texts, which were accepted before.
const MAX_DEPTH: usize = 256;

/// Returns the Markdown form of a text that [`canonical_text`](super::canonical_text) returned, or
/// of a template of such a text.
pub fn write(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8 + 64);
    write_sections(Json::accepted(text), &mut out);
    if read_sections(&out).as_deref() == Some(text) {
        return out;
    }
    // A text from a result of a caller may have another shape.
    out.clear();
    write_fenced(text, &mut out);
    out
}

/// Returns the text with this form; `None` if no text has it.
pub fn read(form: &str) -> Option<String> {
    let text = match read_fenced(&mut form.lines()) {
        Some(text) => {
            Json::parse(text.as_bytes(), MAX_DEPTH).ok()?;
            text.to_owned()
        }
        None => read_sections(form)?,
    };
    (write(&text) == form).then_some(text)
}

fn write_sections(text: Json<'_>, out: &mut String) {
    if let Some(description) = text.get("description") {
        let plain = description.as_str().filter(|text| is_plain(text));
        write_section(DESCRIPTION, plain.as_deref(), description, out);
    }
    for message in text.get("messages").into_iter().flat_map(Json::elements) {
        let heading = ROLES.into_iter().find_map(|(heading, role)| {
            let has_role = message.get("role").is_some_and(|own| own.is(role));
            (has_role && message.members().count() == 2).then_some(heading)
        });
        match (heading, message.get("content")) {
            (Some(heading), Some(content)) => {
                write_section(heading, plain_text(content).as_deref(), content, out);
            }
            _ => write_section(MESSAGE, None, message, out),
        }
    }
}

/// Returns the text of a content that has no other members.
fn plain_text<'a>(content: Json<'a>) -> Option<std::borrow::Cow<'a, str>> {
    let is_text = content.get("type").is_some_and(|kind| kind.is("text"));
    let text = content.get("text")?.as_str()?;
    (is_text && content.members().count() == 2 && is_plain(&text)).then_some(text)
}

/// Whether a text can stand in a file unchanged: no control characters except line feeds and tabs,
/// since editors and version control would change or hide them.
fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t')
}

fn write_section(heading: &str, plain: Option<&str>, json: Json<'_>, out: &mut String) {
    if !out.is_empty() {
        out.push('\n');
    }
    // Writing to a string cannot fail.
    let _ = write!(out, "{heading}\n\n");
    let Some(text) = plain else { return write_fenced(json.text(), out) };
    for line in text.split('\n') {
        // No blank at the end of the line: editors remove it.
        let _ = if line.is_empty() { writeln!(out, ">") } else { writeln!(out, "> {line}") };
    }
}

fn write_fenced(json: &str, out: &mut String) {
    let _ = writeln!(out, "{FENCE}\n{json}\n{FENCE_END}");
}

fn read_fenced<'a>(lines: &mut Lines<'a>) -> Option<&'a str> {
    let mut ahead = lines.clone();
    let json = (ahead.next()? == FENCE).then(|| ahead.next())??;
    (ahead.next()? == FENCE_END).then(|| *lines = ahead)?;
    Some(json)
}

fn read_sections(form: &str) -> Option<String> {
    let mut lines = form.lines();
    // An empty file has no form.
    lines.clone().next()?;
    let mut description = None;
    let mut messages = String::new();
    while let Some(heading) = lines.next() {
        lines.next().filter(|line| line.is_empty())?;
        let role = ROLES.into_iter().find(|(own, _)| *own == heading).map(|(_, role)| role);
        let content = match read_fenced(&mut lines) {
            Some(json) => json.to_owned(),
            None if heading == MESSAGE => return None,
            None => {
                let mut text = String::new();
                write_str(&read_quote(&mut lines)?, &mut text);
                role.map_or_else(|| text.clone(), |_| text_content(&text))
            }
        };
        match role {
            None if heading == DESCRIPTION && messages.is_empty() && description.is_none() => {
                description = Some(content);
            }
            None if heading == MESSAGE => add_message(&content, &mut messages),
            None => return None,
            Some(role) => {
                add_message(&format!(r#"{{"content":{content},"role":"{role}"}}"#), &mut messages);
            }
        }
        // Skips the blank line before the next section.
        if lines.clone().next().is_some() {
            lines.next().filter(|line| line.is_empty())?;
        }
    }
    let mut text = String::with_capacity(form.len());
    write_object(&mut text, |text| {
        if let Some(description) = &description {
            text.written("description", |out| out.push_str(description));
        }
        text.written("messages", |out| out.extend(["[", &messages, "]"]));
    });
    Json::parse(text.as_bytes(), MAX_DEPTH).is_ok().then_some(text)
}

fn add_message(message: &str, messages: &mut String) {
    if !messages.is_empty() {
        messages.push(',');
    }
    messages.push_str(message);
}

fn text_content(text: &str) -> String {
    format!(r#"{{"text":{text},"type":"text"}}"#)
}

/// Returns the text of a block quote; `None` without a block quote.
fn read_quote(lines: &mut Lines<'_>) -> Option<String> {
    let mut text: Option<String> = None;
    while let Some(line) = lines.clone().next().and_then(|line| line.strip_prefix('>')) {
        lines.next();
        let line = line.strip_prefix(' ').unwrap_or(line);
        match &mut text {
            Some(text) => text.extend(["\n", line]),
            None => text = Some(line.to_owned()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::approval::canonical_text;
    use crate::json::document::Document;

    fn canonical(result: &serde_json::Value) -> String {
        let result = Document::parse(result.to_string().into_bytes(), 64).unwrap();
        canonical_text(result.json())
    }

    #[test]
    fn people_read_the_messages_of_a_text() {
        let text = canonical(&json!({"description": "Release notes", "messages": [
            {"role": "user", "content": {"type": "text", "text": "Notes for {{ version }}.\n\n> Be brief.\n"}},
            {"role": "assistant", "content": {"type": "image", "data": "aGk=", "mimeType": "image/png"}},
        ]}));
        let form = "# description\n\n> Release notes\n\n## user\n\n> Notes for {{ version }}.\n>\n> > Be brief.\n>\n\n\
                    ## assistant\n\n```json\n{\"data\":\"aGk=\",\"mimeType\":\"image/png\",\"type\":\"image\"}\n```\n";
        assert_eq!(write(&text), form);
        assert_eq!(read(form), Some(text));
    }

    #[test]
    fn each_form_is_one_text_and_others_are_none() {
        for text in [
            r#"{"messages":[]}"#,
            r#"{"description":"","messages":[]}"#,
            r#"{"description":7,"messages":[{"role":"user"},{"content":{},"role":"other"}]}"#,
            r#"{"messages":[{"content":{"text":"a\r\nb","type":"text"},"role":"user"}]}"#,
            r#"{"messages":[{"content":{"_meta":{},"text":"a","type":"text"},"role":"user"}]}"#,
            // As the form of a text that callers found may be.
            r#"{"messages":[{"content":{"text":"a","type":"{{ kind }}"},"{{ x }}":"user"}]}"#,
            r#"{"messages":"{{ x }}"}"#,
            r#"{"messages":[{"content":{"type":"text","text":"other order"},"role":"user"}]}"#,
            r"[]",
        ] {
            let form = write(text);
            assert_eq!(read(&form).as_deref(), Some(text), "{form}");
        }
        for form in [
            "",
            "\n",
            "## user\n",
            "## user\n\n",
            "## user\n\n> a",
            "## user\n\n>a\n",
            "## user\n\n> a\n\n",
            "## user\n\n> a\r\n",
            "## system\n\n> a\n",
            "## user\n\n> a\n\n# description\n\n> b\n",
            "## message\n\n> a\n",
            "## user\n\n```json\n{\"text\":\"a\",\"type\":\"text\"}\n```\n",
            "```json\n{\n```\n",
            "```json\n{\"description\":\"a\",\"messages\":[]}\n```\n",
        ] {
            assert_eq!(read(form), None, "{form:?}");
        }
    }

    fn content() -> impl Strategy<Value = serde_json::Value> {
        let text = "([a>#` {}\\\\\"\n\r\té\u{85}😀]|```json|## user|\n\n){0,12}";
        prop_oneof![
            text.prop_map(|text| json!({"type": "text", "text": text})),
            text.prop_map(|text| json!({"type": "resource", "resource": {"text": text}})),
            any::<f64>().prop_map(|size| json!({"type": "text", "text": "", "size": size})),
        ]
    }

    proptest! {
        #[test]
        fn a_text_is_read_back_from_its_form(
            description in proptest::option::of("([a>#\n]){0,5}"),
            messages in proptest::collection::vec(("user|assistant|x", content()), 0..4),
        ) {
            let messages: Vec<_> = messages
                .into_iter()
                .map(|(role, content)| json!({"role": role, "content": content}))
                .collect();
            let mut result = json!({"messages": messages});
            if let Some(description) = description {
                result["description"] = description.into();
            }
            let text = canonical(&result);
            prop_assert_eq!(read(&write(&text)), Some(text));
        }

        #[test]
        fn what_is_read_has_this_form(form in "(## user\n|# description\n|## message\n|\n|> a\n|>\n|```json\n|```\n|\\{\\}\n|a){0,9}") {
            if let Some(text) = read(&form) {
                prop_assert_eq!(write(&text), form);
            }
        }
    }
}
