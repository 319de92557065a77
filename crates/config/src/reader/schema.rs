//! JSON Schema of the configuration file, recorded while the sections are read: the code that reads
//! a key is the one that describes it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// The tables that were read so far, by their place.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    tables: BTreeMap<String, Table>,
}

/// The schema of one place: a table, or all tables of an array or of a table of tables.
#[derive(Debug, Default)]
struct Table {
    keys: BTreeMap<String, Value>,
    /// Keys that every table at this place requires. `None` before the first one was read.
    required: Option<BTreeSet<String>>,
    /// Keys of lists that must hold a value if they are set.
    not_empty: BTreeSet<String>,
    /// Whether other keys are allowed, with any value.
    is_open: bool,
}

/// The place of the elements of an array of tables, below the place of the array.
pub(super) const ELEMENTS: &str = "[]";

/// The place of the tables of a table of tables.
pub(super) const NAMED: &str = "*";

impl Recorder {
    /// Records a key. The first record counts: the methods of a section call each other, the most
    /// specific first.
    pub(super) fn key(&mut self, place: &str, key: &str, schema: Value) {
        let keys = &mut self.tables.entry(place.to_owned()).or_default().keys;
        keys.entry(key.to_owned()).or_insert(schema);
    }

    /// Records that a list must hold a value if it is set.
    pub(super) fn not_empty(&mut self, place: &str, key: &str) {
        self.tables.entry(place.to_owned()).or_default().not_empty.insert(key.to_owned());
    }

    /// Records that one table at a place was read, with the keys that it requires.
    pub(super) fn table(&mut self, place: &str, required: BTreeSet<String>) {
        let table = self.tables.entry(place.to_owned()).or_default();
        table.required = Some(match table.required.take() {
            None => required,
            Some(before) => before.intersection(&required).cloned().collect(),
        });
    }

    /// Records that a table holds secrets or texts under any key.
    pub(super) fn open(&mut self, place: &str) {
        self.tables.entry(place.to_owned()).or_default().is_open = true;
    }

    /// Returns the schema (JSON Schema 2020-12) of the whole file.
    pub(crate) fn schema(&self) -> Value {
        let mut schema = self.table_schema("");
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
        schema["title"] = "promptgate configuration".into();
        schema["$defs"] = json!({"secret": secret_schema()});
        schema
    }

    /// Whether the default of a key is the value of a key elsewhere, which a schema cannot say.
    fn is_inherited(&self, place: &str, key: &str) -> bool {
        let has_key =
            |base: &str| self.tables.get(base).is_some_and(|table| table.keys.contains_key(key));
        (place, key) == APPROVAL || INHERITED.iter().any(|(of, base)| *of == place && has_key(base))
    }

    fn table_schema(&self, place: &str) -> Value {
        let Some(table) = self.tables.get(place) else {
            return json!({"type": "object"});
        };
        let mut properties = Map::new();
        for (key, schema) in &table.keys {
            let inner = super::join(place, key);
            let mut schema = if self.tables.contains_key(&inner) {
                self.table_schema(&inner)
            } else if self.tables.contains_key(&super::join(&inner, ELEMENTS)) {
                json!({"type": "array", "items": self.table_schema(&super::join(&inner, ELEMENTS))})
            } else {
                schema.clone()
            };
            if self.is_inherited(place, key)
                && let Some(schema) = schema.as_object_mut()
            {
                schema.remove("default");
            }
            if table.not_empty.contains(key) {
                schema["minItems"] = 1.into();
            }
            properties.insert(key.clone(), schema);
        }
        let mut schema = json!({"type": "object", "properties": properties});
        let named = super::join(place, NAMED);
        schema["additionalProperties"] = if self.tables.contains_key(&named) {
            self.table_schema(&named)
        } else if table.is_open {
            json!({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/secret"}]})
        } else {
            false.into()
        };
        let required: Vec<_> = table.required.iter().flatten().collect();
        if !required.is_empty() {
            schema["required"] = required.into_iter().cloned().collect::<Vec<_>>().into();
        }
        schema
    }
}

/// Places whose keys are those of another place, unless they are set.
const INHERITED: [(&str, &str); 3] = [
    ("upstreams.*", "defaults"),
    ("upstreams.*.breaker", "defaults.breaker"),
    ("views.*", "server"),
];

/// A key that is one of another place under another name.
const APPROVAL: (&str, &str) = ("upstreams.*", "approval");

fn secret_schema() -> Value {
    let one = |key: &str| {
        json!({"type": "object", "properties": {key: {"type": "string"}}, "required": [key],
            "additionalProperties": false})
    };
    json!({"anyOf": [one("env"), one("file"), one("value"), {"type": "object", "maxProperties": 0}]})
}
