//! What is recorded of arguments: which there were, how long, and a keyed digest of each value.
//! Numbers and flags are digested as well: a value that is easily guessed is worth hiding most.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::keys::Keys;
use super::record::{Event, write_text};
use crate::domain::json::{Json, Kind};
use crate::seal::hex::hex;

/// Values of one call that are told of.
const MAX_VALUES: usize = 64;

/// Longest path of a value, and longest value where values may be written, in bytes as written.
const MAX_PATH: usize = 128;
const MAX_RAW: usize = 2048;

/// Kept for the members that come after them: what a call was for and what was decided must not be
/// pushed out.
const REST: usize = 4 << 10;

/// Adds them under `name`, by the path of each value: `{"who":{"bytes":5,"hmac":"…"}}`.
pub(super) fn add(
    event: Event,
    name: &'static str,
    keys: &Keys,
    arguments: Json<'_>,
    raw: bool,
) -> Event {
    let limit = event.room().saturating_sub(REST);
    let (out, names) = (String::from("{"), HashSet::new());
    let mut values = Values { keys, raw, limit, out, names, cut: false };
    values.walk(arguments, &mut String::new());
    values.out.push('}');
    event.json(name, &values.out).cut(values.cut)
}

/// The digest of a value, as `promptgate audit hash` tells it.
pub fn value_digest(keys: &Keys, value: &[u8]) -> String {
    hex(&keys.digest(value))
}

struct Values<'a> {
    keys: &'a Keys,
    raw: bool,
    /// Bytes that they may take.
    limit: usize,
    out: String,
    /// As they are written: a member must not be there twice.
    names: HashSet<String>,
    cut: bool,
}

impl Values<'_> {
    fn walk(&mut self, value: Json<'_>, path: &mut String) {
        let length = path.len();
        let dot = if path.is_empty() { "" } else { "." };
        match value.kind() {
            Kind::Object => {
                for (key, member) in value.members() {
                    let _ = write!(path, "{dot}{}", key.as_str().unwrap_or_default());
                    self.walk(member, path);
                    path.truncate(length);
                }
            }
            Kind::Array => {
                for (index, element) in value.elements().enumerate() {
                    let _ = write!(path, "{dot}{index}");
                    self.walk(element, path);
                    path.truncate(length);
                }
            }
            _ => self.scalar(value, path),
        }
    }

    fn scalar(&mut self, value: Json<'_>, path: &str) {
        let text = value.as_str();
        let text = text.as_deref().unwrap_or(value.text());
        if self.names.len() == MAX_VALUES {
            self.cut = true;
            return;
        }
        let before = self.out.len();
        if !self.names.is_empty() {
            self.out.push(',');
        }
        let (name, mut cut) = self.name(path);
        self.out.push_str(&name);
        let digest = value_digest(self.keys, text.as_bytes());
        let _ = write!(self.out, ":{{\"bytes\":{},\"hmac\":\"{digest}\"", text.len());
        if self.raw {
            self.out.push_str(",\"value\":");
            cut |= write_text(text, MAX_RAW, &mut self.out);
        }
        self.out.push('}');
        self.cut |= cut;
        match self.out.len() < self.limit {
            true => drop(self.names.insert(name)),
            false => {
                self.out.truncate(before);
                self.cut = true;
            }
        }
    }

    /// A name for a path that no other value has, as a JSON string; whether it is another one than
    /// the path.
    fn name(&self, path: &str) -> (String, bool) {
        let mut name = String::new();
        let mut cut = write_text(path, MAX_PATH, &mut name);
        let mut number = self.names.len();
        while self.names.contains(&name) {
            let plain = name.trim_end_matches('"');
            name = format!("{plain}#{number}\"");
            (number, cut) = (number + 1, true);
        }
        (name, cut)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use serde_json::Value;

    use super::super::record::{Head, MAX_LINE, Stamp, Writer};
    use super::*;
    use crate::seal::AuditKey;

    fn recorded(keys: &Keys, arguments: &str, raw: bool) -> (String, Value) {
        let json = Json::parse(arguments.as_bytes(), 64).unwrap();
        let event = add(Event::new("received"), "arguments", keys, json, raw);
        let stamp = Stamp { wall: SystemTime::now(), up: Duration::ZERO };
        let writer = Writer { instance: "a".into(), boot: "b".into() };
        let mut out = Vec::new();
        Head::default().write(&event, stamp, &writer, keys, &mut out);
        assert!(out.len() <= MAX_LINE);
        let line = String::from_utf8(out).unwrap();
        let value = serde_json::from_str(&line).unwrap();
        (line, value)
    }

    #[test]
    fn d7_values_are_digested_whatever_they_are_and_never_written() {
        let keys = Keys::new(&AuditKey::generate().0);
        let given = r#"{"who":"canary-7","deep":{"n":[471100000000001,true]},"na\nme":""}"#;
        let (line, value) = recorded(&keys, given, false);
        assert!(!line.contains("canary") && !line.contains("471100000000001"), "{line}");
        let arguments = &value["arguments"];
        let digest = |path: &str| arguments[path]["hmac"].as_str().unwrap().to_owned();
        assert_eq!(digest("who"), value_digest(&keys, b"canary-7"));
        assert_eq!(digest("deep.n.0"), value_digest(&keys, b"471100000000001"));
        assert_eq!(digest("deep.n.1"), value_digest(&keys, b"true"));
        assert_eq!(arguments["who"]["bytes"], 8);
        assert_eq!(arguments["na\nme"]["bytes"], 0);
        assert_ne!(digest("who"), value_digest(&Keys::new(&AuditKey::generate().0), b"canary-7"));
    }

    #[test]
    fn d8_names_that_look_alike_once_they_are_cut_stay_apart() {
        let keys = Keys::new(&AuditKey::generate().0);
        let long = "n".repeat(MAX_PATH);
        let given = format!(
            "{{\"{long}1\":\"a\",\"{long}2\":\"b\",\"{long}\":\"c\",\"a.b\":{{\"c\":\"\"}},\"a\":{{\"b\":{{\"c\":\"\"}}}}}}"
        );
        let (line, value) = recorded(&keys, &given, false);
        let read = super::super::record::Line::read(line.trim_end().as_bytes());
        assert!(read.is_some(), "no member is there twice: {line}");
        assert_eq!(value["arguments"].as_object().unwrap().len(), 5);
        assert_eq!(value["truncated"], true);
    }

    #[test]
    fn what_comes_after_the_arguments_is_not_pushed_out() {
        let keys = Keys::new(&AuditKey::generate().0);
        let many: Vec<String> =
            (0..60).map(|i| format!("\"{}{i}\":\"v\"", "p".repeat(120))).collect();
        let text = format!("{{{}}}", many.join(","));
        let json = Json::parse(text.as_bytes(), 64).unwrap();
        let mut event = Event::new("received");
        for name in ["arguments", "responses"] {
            event = add(event, name, &keys, json, true);
        }
        for name in ["upstream", "prompt", "definition"] {
            event = event.text(name, &"x".repeat(1000));
        }
        assert!(event.room() > 100, "{}", event.room());
    }

    #[test]
    fn values_are_written_where_that_is_allowed_and_many_are_cut() {
        let keys = Keys::new(&AuditKey::generate().0);
        let (_, value) = recorded(&keys, r#"{"who":"me"}"#, true);
        assert_eq!(value["arguments"]["who"]["value"], "me");
        assert_eq!(value.get("truncated"), None);
        let long: Vec<String> =
            (0..100).map(|i| format!("\"{i}\":\"{}\"", "é".repeat(1000))).collect();
        for raw in [true, false] {
            let (_, value) = recorded(&keys, &format!("{{{}}}", long.join(",")), raw);
            assert_eq!(value["truncated"], true);
            assert!(value["arguments"]["0"]["hmac"].is_string());
        }
    }
}
