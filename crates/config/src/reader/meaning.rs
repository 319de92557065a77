//! Meanings of keys. Each reader of a table has a constant `KEYS`, a text with an entry for each
//! key:
//!
//! ```text
//! sse_path = "/sse": Path of the older transport. `""` disables it. Lines that
//!     go on are indented.
//! allowed_hosts = [], such as ["prompts.example.com"]: Host names that are accepted.
//! ```
//!
//! An entry gives a default only if the call that reads the key does not state it, and an example
//! only if the key has no default.

use serde_json::Value;

/// The meaning of one key.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Meaning {
    /// One or a few sentences.
    pub text: String,
    pub default: Option<Value>,
    /// A value as in TOML.
    pub example: Option<String>,
}

impl Meaning {
    /// Adds the meaning to the schema of its key, before a rule for values.
    pub(super) fn describe(&self, schema: &mut Value) {
        let description = match schema["description"].as_str() {
            Some(rule) => format!("{} Must be {rule}.", self.text),
            None => self.text.clone(),
        };
        schema["description"] = description.into();
        if let Some(default) = &self.default {
            schema["default"] = default.clone();
        }
    }
}

/// Parses a text of entries. An entry without a colon, or with an invalid default, is skipped, so
/// that its key has no meaning, which a test reports.
pub(super) fn meanings(text: &str) -> impl Iterator<Item = (&str, Meaning)> {
    let mut rest = text.trim();
    std::iter::from_fn(move || {
        let end = rest.match_indices('\n').map(|(at, _)| at).find(|at| is_entry(&rest[at + 1..]));
        let entry = &rest[..end.unwrap_or(rest.len())];
        rest = end.map_or("", |at| &rest[at + 1..]);
        (!entry.is_empty()).then(|| parse(entry))
    })
    .flatten()
}

/// Whether a line begins an entry.
fn is_entry(line: &str) -> bool {
    !line.starts_with(' ')
}

fn parse(entry: &str) -> Option<(&str, Meaning)> {
    let (head, text) = entry.split_once(": ")?;
    let (head, example) = match head.split_once(", such as ") {
        Some((head, example)) => (head, Some(example.to_owned())),
        None => (head, None),
    };
    let (key, default) = match head.split_once(" = ") {
        Some((key, default)) => (key, Some(serde_json::from_str(default).ok()?)),
        None => (head, None),
    };
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Some((key, Meaning { text, default, example }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_has_a_key_a_meaning_and_perhaps_a_default_and_an_example() {
        let text = "\nname: Its name.\nlisten = \"[::1]:80\": An address,\n    with a port.\n\
                    hosts = [], such as [\"a\"]: Hosts: their names.\nurl, such as \"http://a\": Where.\n";
        let meaning = |text: &str, default, example: Option<&str>| Meaning {
            text: text.to_owned(),
            default,
            example: example.map(str::to_owned),
        };
        let expected = [
            ("name", meaning("Its name.", None, None)),
            ("listen", meaning("An address, with a port.", Some(json!("[::1]:80")), None)),
            ("hosts", meaning("Hosts: their names.", Some(json!([])), Some("[\"a\"]"))),
            ("url", meaning("Where.", None, Some("\"http://a\""))),
        ];
        assert_eq!(meanings(text).collect::<Vec<_>>(), expected);
        assert_eq!(meanings("").count(), 0);
    }
}
