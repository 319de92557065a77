//! What is recorded of arguments: which there were, how long, and a keyed digest of each value. Numbers and flags are
//! digested as well: a value that is easily guessed is worth hiding most.

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

/// What the values of one call may take; the line has other members, too.
const MAX_ARGUMENTS: usize = 12 << 10;

/// Adds them under `name`, by the path of each value: `{"who":{"bytes":5,"hmac":"…"}}`.
pub(super) fn add(
    event: Event,
    name: &'static str,
    keys: &Keys,
    arguments: Json<'_>,
    raw: bool,
) -> Event {
    let mut values = Values { keys, raw, out: String::from("{"), count: 0, cut: false };
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
    out: String,
    count: usize,
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
        if self.count == MAX_VALUES {
            self.cut = true;
            return;
        }
        let before = self.out.len();
        if self.count > 0 {
            self.out.push(',');
        }
        let mut cut = write_text(path, MAX_PATH, &mut self.out);
        let digest = value_digest(self.keys, text.as_bytes());
        let _ = write!(self.out, ":{{\"bytes\":{},\"hmac\":\"{digest}\"", text.len());
        if self.raw {
            self.out.push_str(",\"value\":");
            cut |= write_text(text, MAX_RAW, &mut self.out);
        }
        self.out.push('}');
        self.cut |= cut;
        match self.out.len() <= MAX_ARGUMENTS {
            true => self.count += 1,
            false => {
                self.out.truncate(before);
                self.cut = true;
            }
        }
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
