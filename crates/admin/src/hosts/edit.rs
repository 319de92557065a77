//! Edits of the hosts' files that change one entry and keep everything else: comments, order and
//! white space.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstRootNode};
use serde_json::Value;
use toml_edit::{DocumentMut, Item, Table};

use super::{FileEntry, Format};

/// Returns `text` with the entry `name`. An entry of this name is replaced.
///
/// # Errors
/// The text is not of its format, or the entries are in a place that cannot be edited.
pub fn with_entry(text: &str, place: &FileEntry, name: &str) -> Result<String, String> {
    let edited = match place.format {
        Format::Json => return json(text, place, name),
        Format::Toml => toml(text, place, name)?,
        Format::Yaml => yaml(text, place, name)?,
    };
    // The TOML and YAML editors write line feeds only.
    let has_crlf = text.contains("\r\n");
    Ok(if has_crlf { edited.replace("\r\n", "\n").replace('\n', "\r\n") } else { edited })
}

fn json(text: &str, place: &FileEntry, name: &str) -> Result<String, String> {
    let root = CstRootNode::parse(text, &ParseOptions::default())
        .map_err(|error| format!("is not JSON: {error}"))?;
    let object = root.object_value_or_create().ok_or("is not a JSON object")?;
    let entries = object.object_value_or_create(place.container);
    let entries = entries.ok_or_else(|| format!("`{}` is not an object", place.container))?;
    // The content of the text, without its layout; the editor has no such view.
    let current: Value =
        jsonc_parser::parse_to_serde_value(text, &ParseOptions::default()).unwrap_or_default();
    if current[place.container].get(name) != Some(&place.entry) {
        match entries.get(name) {
            Some(property) => property.set_value(cst(&place.entry)),
            None => drop(entries.append(name, cst(&place.entry))),
        }
    }
    if let Some(input) = &place.input {
        let inputs = object.array_value_or_create("inputs").ok_or("`inputs` is not an array")?;
        let mut known = current["inputs"].as_array().into_iter().flatten();
        if !known.any(|known| known.get("id") == input.get("id")) {
            inputs.append(cst(input));
        }
    }
    let mut edited = root.to_string();
    if !edited.ends_with('\n') && text.is_empty() {
        edited.push('\n');
    }
    Ok(edited)
}

/// Returns a value as the editor takes it.
fn cst(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(flag) => CstInputValue::Bool(*flag),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(cst).collect()),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| (name.clone(), cst(value)));
            CstInputValue::Object(members.collect())
        }
    }
}

fn toml(text: &str, place: &FileEntry, name: &str) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        format!("is not TOML: {}", error.message().trim())
    })?;
    let container = document.entry(place.container).or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let container = container.as_table_like_mut();
    let container = container.ok_or_else(|| format!("`{}` is not a table", place.container))?;
    let mut table = Table::new();
    for (key, value) in place.entry.as_object().into_iter().flatten() {
        table[key] = toml_edit::value(value.as_str().unwrap_or_default());
    }
    if let Some(Item::Table(before)) = container.get(name) {
        let is_flat = before.iter().all(|(_, item)| item.is_value());
        if is_flat && before.to_string().trim() == table.to_string().trim() {
            return Ok(text.to_owned());
        }
        // The comments above it, and its place among the tables.
        *table.decor_mut() = before.decor().clone();
        table.set_position(before.position());
    }
    container.insert(name, Item::Table(table));
    Ok(document.to_string())
}

/// There is no YAML editor that keeps unchanged lines, so lines are inserted or replaced, and the
/// parsed result is compared with the expected one.
fn yaml(text: &str, place: &FileEntry, name: &str) -> Result<String, String> {
    // Neither error shows a line of the file: it may hold secrets.
    let parse = |text: &str| -> Option<Value> {
        let parsed: Option<Value> = if text.trim().is_empty() {
            Some(Value::Null)
        } else {
            serde_saphyr::from_str(text).ok()
        };
        parsed.map(|value| if value.is_null() { Value::Object(Default::default()) } else { value })
    };
    let mut meant = parse(text).ok_or("is not YAML")?;
    let root = meant.as_object_mut().ok_or("is not a YAML mapping")?;
    let entries = root.entry(place.container).or_insert_with(|| Value::Object(Default::default()));
    if entries.is_null() {
        *entries = Value::Object(Default::default());
    }
    let entries = entries.as_object_mut();
    let entries = entries.ok_or_else(|| format!("`{}` is not a mapping", place.container))?;
    if entries.insert(name.to_owned(), place.entry.clone()).as_ref() == Some(&place.entry) {
        return Ok(text.to_owned());
    }
    let heading = format!("{}:", place.container);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = match lines.iter().position(|line| line.trim_end() == heading) {
        Some(at) => at,
        None => {
            lines.push(heading);
            lines.len() - 1
        }
    };
    let below =
        |line: &String| line.starts_with(' ') || line.trim().is_empty() || line.starts_with('#');
    let end =
        lines[at + 1..].iter().position(|line| !below(line)).map_or(lines.len(), |n| at + 1 + n);
    let indent_of = |line: &String| line.len() - line.trim_start().len();
    let first = lines[at + 1..end]
        .iter()
        .find(|line| !line.trim().is_empty() && !line.trim().starts_with('#'));
    let indent = first.map_or(2, indent_of);
    let own = format!("{}{name}:", " ".repeat(indent));
    if let Some(old) = lines[at + 1..end].iter().position(|line| line.trim_end() == own) {
        let old = at + 1 + old;
        let rest = lines[old + 1..end]
            .iter()
            .position(|line| !line.trim().is_empty() && indent_of(line) <= indent);
        lines.drain(old..rest.map_or(end, |n| old + 1 + n));
    }
    let mut entry = vec![own];
    write_yaml(&place.entry, indent + 2, &mut entry);
    lines.splice(at + 1..at + 1, entry);
    let edited = lines.join("\n") + "\n";
    if parse(&edited).as_ref() == Some(&meant) {
        Ok(edited)
    } else {
        Err("its layout cannot be edited; add the entry by hand".to_owned())
    }
}

/// Appends the lines of a mapping. Texts are written as JSON strings, which YAML reads alike.
fn write_yaml(value: &Value, indent: usize, lines: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let lead = " ".repeat(indent);
        if value.is_object() {
            lines.push(format!("{lead}{key}:"));
            write_yaml(value, indent + 2, lines);
        } else {
            lines.push(format!("{lead}{key}: {value}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn place(format: Format, container: &'static str, entry: Value) -> FileEntry {
        FileEntry { file: None, format, container, entry, input: None }
    }

    #[test]
    fn json_keeps_its_comments_its_order_and_its_white_space() {
        let entry = json!({"type": "http", "url": "http://a/mcp"});
        let place = place(Format::Json, "servers", entry);
        let text = "{\n  // mine\n  \"z\": 1,\n  \"servers\": {\n    \"other\": {\"url\": \"x\"}, // stays\n  },\n}\n";
        let edited = with_entry(text, &place, "prompts").unwrap();
        for kept in ["  // mine\n  \"z\": 1,\n", "    \"other\": {\"url\": \"x\"},", "// stays"] {
            assert!(edited.contains(kept), "{kept}\n{edited}");
        }
        let value: Value =
            jsonc_parser::parse_to_serde_value(&edited, &ParseOptions::default()).unwrap();
        assert_eq!(value["servers"]["prompts"], place.entry);
        assert_eq!(value["servers"]["other"]["url"], "x");
        assert_eq!(with_entry(&edited, &place, "prompts").unwrap(), edited, "twice is once");
        let fresh = with_entry("", &place, "prompts").unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&fresh).unwrap()["servers"]["prompts"],
            place.entry
        );
        for bad in ["[1]", "{", "{\"servers\": 1}"] {
            assert!(with_entry(bad, &place, "prompts").is_err(), "{bad}");
        }
    }

    #[test]
    fn an_input_is_added_once() {
        let mut place = place(Format::Json, "servers", json!({"url": "x"}));
        place.input = Some(json!({"id": "key", "type": "promptString"}));
        let text = "{\"inputs\": [{\"id\": \"mine\"}]}";
        let edited = with_entry(text, &place, "prompts").unwrap();
        let edited = with_entry(&edited, &place, "prompts").unwrap();
        let value: Value = serde_json::from_str(&edited).unwrap();
        assert_eq!(value["inputs"].as_array().unwrap().len(), 2, "{edited}");
    }

    #[test]
    fn toml_keeps_everything_else() {
        let place = place(Format::Toml, "mcp_servers", json!({"url": "http://a/mcp"}));
        let text = "# mine\nmodel = \"x\"\n\n[mcp_servers.other]\ncommand = \"y\" # stays\n";
        let edited = with_entry(text, &place, "prompts").unwrap();
        assert!(edited.starts_with(text), "{edited}");
        assert!(edited.ends_with("[mcp_servers.prompts]\nurl = \"http://a/mcp\"\n"), "{edited}");
        assert_eq!(with_entry(&edited, &place, "prompts").unwrap(), edited, "twice is once");
        assert_eq!(
            with_entry("", &place, "prompts").unwrap(),
            "[mcp_servers.prompts]\nurl = \"http://a/mcp\"\n"
        );
        let before =
            "# by IT\n[mcp_servers.prompts]\nurl = \"http://old/mcp\"\n\n# mine\n[model]\nx = 1\n";
        let replaced = with_entry(before, &place, "prompts").unwrap();
        assert_eq!(replaced, before.replace("http://old", "http://a"));
        let header = "[mcp_servers.prompts]\nurl = \"http://a/mcp\"\n\n[mcp_servers.prompts.http_headers]\nA = \"old\"\n";
        assert!(!with_entry(header, &place, "prompts").unwrap().contains("old"));
        assert!(with_entry("mcp_servers = 1\n", &place, "prompts").is_err());
    }

    #[test]
    fn yaml_keeps_everything_else_or_is_left_alone() {
        let entry = json!({"type": "streamable_http", "uri": "http://a/mcp", "timeout": 300});
        let place = place(Format::Yaml, "extensions", entry);
        let text = "# mine\nextensions:\n  other:\n    type: stdio # stays\nGOOSE_MODEL: x\n";
        let edited = with_entry(text, &place, "prompts").unwrap();
        let added = "  prompts:\n    type: \"streamable_http\"\n    uri: \"http://a/mcp\"\n    timeout: 300\n";
        assert_eq!(edited, text.replace("extensions:\n", &format!("extensions:\n{added}")));
        assert_eq!(with_entry(&edited, &place, "prompts").unwrap(), edited, "twice is once");
        let changed = edited.replace("300", "20");
        assert_eq!(with_entry(&changed, &place, "prompts").unwrap(), edited, "replaced");
        assert_eq!(with_entry("", &place, "prompts").unwrap(), format!("extensions:\n{added}"));
        assert!(
            with_entry("extensions: {other: {}}\n", &place, "prompts").is_err(),
            "a layout of its own"
        );
        assert!(with_entry("[1\n", &place, "prompts").is_err());
        let crlf = with_entry("a: 1\r\n", &place, "prompts").unwrap();
        assert!(crlf.starts_with("a: 1\r\nextensions:\r\n"), "{crlf:?}");
        let comment = with_entry("# only a comment\n", &place, "prompts").unwrap();
        assert_eq!(comment, format!("# only a comment\nextensions:\n{added}"));
        let error = with_entry("k: [sk-secret\n", &place, "prompts").unwrap_err();
        assert!(!error.contains("secret"), "{error}");
    }
}
