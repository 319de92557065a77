//! Writing of JSON objects, member by member.

use super::write_str;

/// Appends `"key":"text",`.
pub(crate) fn write_text(key: &str, text: &str, out: &mut String) {
    let mut value = String::with_capacity(text.len() + 2);
    write_str(text, &mut value);
    write_json(key, &value, out);
}

/// Appends `"key":value,` for a value that is JSON text.
pub(crate) fn write_json(key: &str, value: &str, out: &mut String) {
    write_str(key, out);
    for part in [":", value, ","] {
        out.push_str(part);
    }
}

/// Appends `key:value,` for a key and a value that are JSON text.
pub(crate) fn write_member(key: &str, value: &str, out: &mut String) {
    for part in [key, ":", value, ","] {
        out.push_str(part);
    }
}
