//! One key of the configuration file, for display: its meaning, allowed values and default.

use serde_json::{Value, json};

use super::raw::join;

/// The place of the elements of an array of tables, below the place of the array.
pub(crate) const ELEMENTS: &str = "[]";

/// The place of the tables of a table of tables.
pub(crate) const NAMED: &str = "*";

/// One key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Place of the table: dotted, `*` for any name, `[]` for the tables of an array.
    pub place: String,
    pub name: String,
    /// One or a few sentences.
    pub meaning: String,
    /// `None` if the value has no default.
    pub default: Option<Value>,
    /// A value as in TOML, for keys whose default is not an example.
    pub example: Option<String>,
    /// JSON Schema of the value.
    pub schema: Value,
    /// Whether every table at the place must have the key.
    pub is_required: bool,
    /// The key elsewhere whose value is the default of this key.
    pub inherits: Option<String>,
}

impl Key {
    /// Returns the dotted key, with `NAME` for the name of a table: `upstreams.NAME.timeout`. The
    /// numbers of tables in arrays are left out.
    pub fn path(&self) -> String {
        let parts = self.place.split('.').filter(|part| *part != ELEMENTS);
        let table = parts.map(|part| if part == NAMED { "NAME" } else { part });
        join(&table.collect::<Vec<_>>().join("."), &self.name)
    }

    /// Returns the first sentence of the meaning.
    pub fn summary(&self) -> String {
        match self.meaning.split_once(". ") {
            Some((sentence, _)) => format!("{sentence}."),
            None => self.meaning.clone(),
        }
    }

    /// Returns the parts of the dotted key, without names and numbers of tables.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        let table = self.place.split('.').filter(|part| ![ELEMENTS, NAMED, ""].contains(part));
        table.chain([self.name.as_str()])
    }

    /// Whether the parts name this key, with the names of its tables.
    pub(crate) fn is_at(&self, parts: &[&str]) -> bool {
        parts.split_last().is_some_and(|(name, table)| *name == self.name && self.is_in(table))
    }

    /// Whether the parts name the table of this key.
    pub(crate) fn is_in(&self, parts: &[&str]) -> bool {
        let own = self.place.split('.').filter(|part| ![ELEMENTS, ""].contains(part));
        let own: Vec<_> = own.collect();
        own.len() == parts.len()
            && own.iter().zip(parts).all(|(own, part)| *own == NAMED || own == part)
    }

    /// Whether another key is in this table, or in its tables with names or numbers.
    pub(crate) fn holds(&self, other: &Self) -> bool {
        let own = join(&self.place, &self.name);
        let places = [join(&own, ELEMENTS), join(&own, NAMED), own];
        places.contains(&other.place)
    }

    /// Returns the heading of the key's table in the file, such as `[upstreams.NAME]`; `None` for
    /// the tables of the file itself.
    pub fn table(&self) -> Option<String> {
        let (place, is_array) = match self.place.strip_suffix(ELEMENTS) {
            Some(array) => (array.trim_end_matches('.'), true),
            None => (self.place.as_str(), false),
        };
        let parts = place.split('.').filter(|part| ![ELEMENTS, ""].contains(part));
        let parts: Vec<_> = parts.map(|part| if part == NAMED { "NAME" } else { part }).collect();
        let name = parts.join(".");
        match (name.is_empty(), is_array) {
            (true, _) => None,
            (false, true) => Some(format!("[[{name}]]")),
            (false, false) => Some(format!("[{name}]")),
        }
    }

    /// Returns the kind of the key's values with their bounds, such as `a size from 1KiB to 1GiB`.
    pub fn kind(&self) -> String {
        let schema = &self.schema;
        let text = |member: &str| schema[member].as_str();
        let bounds = || format!("from {} to {}", schema["minimum"], schema["maximum"]);
        match (text("type"), text("description")) {
            (Some("boolean"), _) => "true or false".to_owned(),
            (Some("integer"), _) => format!("a whole number {}", bounds()),
            (Some("number"), _) => format!("a number {}", bounds()),
            (Some("object"), _) => "a table".to_owned(),
            (Some("array"), _) if schema["items"]["enum"].is_array() => {
                format!("a list of {}", choices(&schema["items"]["enum"]))
            }
            (Some("array"), _) if schema["items"]["type"] == "object" => {
                "an array of tables".to_owned()
            }
            (Some("array"), _) => "a list of strings".to_owned(),
            (Some(_), Some(rule)) if schema["pattern"].is_string() => rule.to_owned(),
            (Some(_), Some(rule)) => format!("a string: {rule}"),
            (Some(_), None) => "a string".to_owned(),
            (None, _) if schema["enum"].is_array() => {
                format!("one of {}", choices(&schema["enum"]))
            }
            (None, _) if schema["anyOf"][1]["type"] == "array" => {
                "a string or a list of strings".to_owned()
            }
            (None, _) if schema["anyOf"].is_array() => "a string or a secret".to_owned(),
            (None, _) => "a secret: { env = \"NAME\" } or { file = \"path\" }".to_owned(),
        }
    }

    /// Returns the default of the key, as in TOML; `None` without a default.
    pub fn default_text(&self) -> Option<String> {
        match &self.inherits {
            Some(key) => Some(format!("that of {key}")),
            None => self.default.as_ref().map(toml),
        }
    }

    /// Returns a line of the file that sets the key; `None` for a table.
    pub fn example(&self) -> Option<String> {
        let is_table = self.schema["type"] == "object" || self.schema["items"]["type"] == "object";
        if is_table && self.example.is_none() {
            return None;
        }
        let default = self.default.as_ref().filter(|default| !is_empty(default));
        let value = match (&self.example, default) {
            (Some(example), _) => example.clone(),
            (None, Some(Value::Bool(flag))) => (!flag).to_string(),
            (None, Some(default)) => toml(default),
            (None, None) => self.value_of_kind(),
        };
        Some(format!("{} = {value}", self.name))
    }

    /// Returns a value that is allowed.
    fn value_of_kind(&self) -> String {
        let schema = &self.schema;
        let first = [&schema["enum"][0], &schema["items"]["enum"][0], &schema["minimum"]];
        let first = first.into_iter().find(|value| !value.is_null());
        match (schema["type"].as_str(), first) {
            (Some("array"), Some(first)) => toml(&json!([first])),
            (Some("array"), None) => "[\"…\"]".to_owned(),
            (_, Some(first)) => toml(first),
            (None, None) if schema["anyOf"].is_null() => "{ env = \"NAME\" }".to_owned(),
            (_, None) => "\"…\"".to_owned(),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::String(text) if text.is_empty())
        || matches!(value, Value::Array(items) if items.is_empty())
}

/// Returns the choices of a schema, each once: some choices may also be written as booleans.
fn choices(choices: &Value) -> String {
    let texts = choices.as_array().into_iter().flatten().filter(|choice| choice.is_string());
    texts.map(toml).collect::<Vec<_>>().join(", ")
}

/// Returns a value as in TOML.
pub(crate) fn toml(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let members = members.iter().map(|(key, value)| format!("{key} = {}", toml(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}
