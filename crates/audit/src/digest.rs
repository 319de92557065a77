//! Digests of arguments: for each value its path, its length and a keyed digest. Numbers and
//! booleans are digested, too: a value that is easily guessed needs the protection most.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::keys::Keys;
use super::record::{AuditEvent, write_text};
use base::seal::hex::hex;
use domain::json::{Json, JsonKind};

/// The limit of values of one call; more are left out, and the record is marked as truncated.
const MAX_VALUES: usize = 64;

/// The limit of a path, in bytes as written.
const MAX_PATH: usize = 128;

/// The limit of a raw value, in bytes as written.
const MAX_RAW: usize = 2048;

/// Bytes that are reserved for the members after the arguments: the prompt and the decision must
/// not be pushed out.
const RESERVED_BYTES: usize = 4 << 10;

/// Adds the arguments as the member `name`, by the path of each value:
/// `{"who":{"bytes":5,"hmac":"…"}}`. Values are written only if `raw`.
pub(super) fn add_arguments(
    event: AuditEvent,
    name: &'static str,
    keys: &Keys,
    arguments: Json<'_>,
    raw: bool,
) -> AuditEvent {
    let limit = event.room().saturating_sub(RESERVED_BYTES);
    let out = String::from("{");
    let names = HashSet::new();
    let mut values = Digests { keys, raw, limit, out, names, truncated: false };
    values.walk(arguments, &mut String::new());
    values.out.push('}');
    let event = event.json(name, &values.out);
    if values.truncated { event.mark_truncated() } else { event }
}

/// Returns the digest of a value, in hexadecimal, as `promptgate audit hash` prints it.
pub fn value_digest(keys: &Keys, value: &[u8]) -> String {
    hex(&keys.digest(value))
}

struct Digests<'a> {
    keys: &'a Keys,
    raw: bool,
    /// The limit of `out`, in bytes.
    limit: usize,
    out: String,
    /// The names in `out`: a member must not occur twice.
    names: HashSet<String>,
    truncated: bool,
}

impl Digests<'_> {
    fn walk(&mut self, value: Json<'_>, path: &mut String) {
        let length = path.len();
        let dot = if path.is_empty() { "" } else { "." };
        match value.kind() {
            JsonKind::Object => {
                for (key, member) in value.members() {
                    let _ = write!(path, "{dot}{}", key.as_str().unwrap_or_default());
                    self.walk(member, path);
                    path.truncate(length);
                }
            }
            JsonKind::Array => {
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
            self.truncated = true;
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
        self.truncated |= cut;
        if self.out.len() < self.limit {
            self.names.insert(name);
        } else {
            self.out.truncate(before);
            self.truncated = true;
        }
    }

    /// Returns a JSON string that names a path uniquely among the values, and whether the name
    /// differs from the path.
    fn name(&self, path: &str) -> (String, bool) {
        let mut name = String::new();
        let mut cut = write_text(path, MAX_PATH, &mut name);
        let mut number = self.names.len();
        while self.names.contains(&name) {
            let plain = name.trim_end_matches('"');
            name = format!("{plain}#{number}\"");
            number += 1;
            cut = true;
        }
        (name, cut)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use serde_json::Value;

    use super::super::record::{Head, MAX_LINE, Stamp, WriterId};
    use super::*;
    use base::seal::AuditKey;

    fn recorded(keys: &Keys, arguments: &str, raw: bool) -> (String, Value) {
        let json = Json::parse(arguments.as_bytes(), 64).unwrap();
        let event = add_arguments(AuditEvent::new("received"), "arguments", keys, json, raw);
        let stamp = Stamp { wall: SystemTime::now(), up: Duration::ZERO };
        let writer = WriterId { instance: "a".into(), boot: "b".into() };
        let mut out = Vec::new();
        Head::default().write(&event, stamp, &writer, keys, &mut out);
        assert!(out.len() <= MAX_LINE);
        let line = String::from_utf8(out).unwrap();
        let value = serde_json::from_str(&line).unwrap();
        (line, value)
    }

    #[test]
    fn d7_values_of_every_type_are_digested_and_never_written() {
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
    fn d8_names_that_are_equal_after_truncation_stay_distinct() {
        let keys = Keys::new(&AuditKey::generate().0);
        let long = "n".repeat(MAX_PATH);
        let given = format!(
            "{{\"{long}1\":\"a\",\"{long}2\":\"b\",\"{long}\":\"c\",\"a.b\":{{\"c\":\"\"}},\"a\":{{\"b\":{{\"c\":\"\"}}}}}}"
        );
        let (line, value) = recorded(&keys, &given, false);
        let read = super::super::record::RecordLine::read(line.trim_end().as_bytes());
        assert!(read.is_some(), "no member occurs twice: {line}");
        assert_eq!(value["arguments"].as_object().unwrap().len(), 5);
        assert_eq!(value["truncated"], true);
    }

    #[test]
    fn arguments_leave_room_for_the_members_after_them() {
        let keys = Keys::new(&AuditKey::generate().0);
        let many: Vec<String> =
            (0..60).map(|i| format!("\"{}{i}\":\"v\"", "p".repeat(120))).collect();
        let text = format!("{{{}}}", many.join(","));
        let json = Json::parse(text.as_bytes(), 64).unwrap();
        let mut event = AuditEvent::new("received");
        for name in ["arguments", "responses"] {
            event = add_arguments(event, name, &keys, json, true);
        }
        for name in ["upstream", "prompt", "definition"] {
            event = event.text(name, &"x".repeat(1000));
        }
        assert!(event.room() > 100, "{}", event.room());
    }

    #[test]
    fn raw_values_are_written_if_allowed_and_many_values_are_truncated() {
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
