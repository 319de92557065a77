//! The types of the members of a prompt's definition (MCP 2025-11-25, schema, `Prompt`), and the
//! removal of members of other types.

use std::collections::HashSet;

use crate::json::object::{ObjectWriter, write_array, write_object};
use crate::json::{Json, JsonKind};

pub(crate) fn array_of(value: Json<'_>, is: fn(Json<'_>) -> bool) -> bool {
    value.kind() == JsonKind::Array && value.elements().all(is)
}

pub(crate) fn is_string(value: Json<'_>) -> bool {
    value.kind() == JsonKind::String
}

pub(crate) fn is_argument(value: Json<'_>) -> bool {
    value.get("name").is_some_and(is_string)
        && value.get("title").is_none_or(is_string)
        && value.get("description").is_none_or(is_string)
        && value.get("required").is_none_or(|r| r.kind() == JsonKind::Bool)
}

pub(crate) fn is_icon(value: Json<'_>) -> bool {
    value.get("src").is_some_and(is_string)
        && value.get("mimeType").is_none_or(is_string)
        && value.get("sizes").is_none_or(|s| array_of(s, is_string))
        && value.get("theme").is_none_or(|t| t.is("light") || t.is("dark"))
}

/// Returns the text of a definition without the malformed members that clients can do without.
pub(crate) fn conforming(definition: Json<'_>) -> String {
    let mut text = String::with_capacity(definition.text().len());
    write_object(&mut text, |out| {
        for (key, member) in definition.members() {
            write_conforming(key, member, out);
        }
    });
    text
}

fn write_conforming(key: Json<'_>, member: Json<'_>, out: &mut ObjectWriter<'_>) {
    let is_array = member.kind() == JsonKind::Array;
    match key.as_str().as_deref() {
        Some("title" | "description") if !is_string(member) => {}
        Some("_meta") if !member.is_object() => {}
        Some("icons" | "arguments") if !is_array => {}
        Some("icons") => {
            let mut icons = member.elements().filter(|icon| is_icon(*icon)).peekable();
            if icons.peek().is_none() {
                return;
            }
            out.rewritten(key, |out| {
                write_array(out, icons, |icon, out| out.push_str(icon.text()))
            });
        }
        Some("arguments") => {
            out.rewritten(key, |out| write_arguments(member, out));
        }
        _ => {
            out.member(key, member);
        }
    }
}

/// Writes the arguments that have a name, each name once, without malformed members.
fn write_arguments(arguments: Json<'_>, out: &mut String) {
    let mut names = HashSet::new();
    let named = arguments.elements().filter(|argument| {
        let name = argument.get("name").and_then(Json::as_str);
        name.is_some_and(|name| names.insert(name.into_owned()))
    });
    write_array(out, named, |argument, out| {
        write_object(out, |out| {
            for (key, member) in argument.members() {
                let is_well_formed = match key.as_str().as_deref() {
                    Some("title" | "description") => is_string(member),
                    Some("required") => member.kind() == JsonKind::Bool,
                    _ => true,
                };
                if is_well_formed {
                    out.member(key, member);
                }
            }
        });
    });
}
