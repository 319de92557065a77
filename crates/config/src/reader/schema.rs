//! JSON Schema of the configuration file, recorded while the sections are read: the code that reads
//! a key also describes it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::key::{ELEMENTS, Key, NAMED};
use super::meaning::{Meaning, meanings};

/// The tables that were read so far, by their place.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    tables: BTreeMap<String, Table>,
}

/// The schema of one place: a table, or all tables of an array or of a table of tables.
#[derive(Debug, Default)]
struct Table {
    keys: BTreeMap<String, Value>,
    /// The meanings in the order in which the reader explains them.
    meanings: Vec<(String, Meaning)>,
    /// Keys that every table at this place requires. `None` before the first table was read.
    required: Option<BTreeSet<String>>,
    /// Keys of lists that must hold a value if they are set.
    not_empty: BTreeSet<String>,
    /// Whether other keys are allowed, with any value.
    is_open: bool,
}

impl Recorder {
    /// Records a key. The first record counts: the methods of a section call each other, the most
    /// specific first.
    pub(super) fn key(&mut self, place: &str, key: &str, schema: Value) {
        let keys = &mut self.tables.entry(place.to_owned()).or_default().keys;
        keys.entry(key.to_owned()).or_insert(schema);
    }

    /// Records the meanings of keys. All tables at one place have the same meanings.
    pub(super) fn explain(&mut self, place: &str, keys: &str) {
        let table = self.tables.entry(place.to_owned()).or_default();
        for (key, meaning) in meanings(keys) {
            if !table.meanings.iter().any(|(known, _)| known == key) {
                table.meanings.push((key.to_owned(), meaning));
            }
        }
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

    /// Returns the key whose value is the default of a key; JSON Schema cannot express that.
    fn inherited_from(&self, place: &str, key: &str) -> Option<String> {
        let has_key =
            |base: &str| self.tables.get(base).is_some_and(|table| table.keys.contains_key(key));
        let base = INHERITED.iter().find(|(of, base)| *of == place && has_key(base));
        let same = base.map(|(_, base)| super::join(base, key));
        same.or_else(|| ((place, key) == APPROVAL).then(|| MODE.to_owned()))
    }

    /// Returns all keys, each table in the order in which its reader explains them.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        self.add_keys("", &mut keys);
        keys
    }

    fn add_keys(&self, place: &str, keys: &mut Vec<Key>) {
        for (name, meaning) in self.tables.get(place).into_iter().flat_map(|table| &table.meanings)
        {
            keys.push(self.key_at(place, name, meaning));
            let inner = super::join(place, name);
            for inner in [super::join(&inner, NAMED), super::join(&inner, ELEMENTS), inner] {
                self.add_keys(&inner, keys);
            }
        }
    }

    fn key_at(&self, place: &str, name: &str, meaning: &Meaning) -> Key {
        let table = self.tables.get(place);
        let schema = table.and_then(|table| table.keys.get(name)).cloned().unwrap_or_default();
        let required = table.and_then(|table| table.required.as_ref());
        Key {
            place: place.to_owned(),
            name: name.to_owned(),
            meaning: meaning.text.clone(),
            default: schema.get("default").or(meaning.default.as_ref()).cloned(),
            example: meaning.example.clone(),
            is_required: required.is_some_and(|keys| keys.contains(name)),
            inherits: self.inherited_from(place, name),
            schema,
        }
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
            let meaning = table.meanings.iter().find(|(known, _)| known == key);
            if let Some((_, meaning)) = meaning {
                meaning.describe(&mut schema);
            }
            if self.inherited_from(place, key).is_some()
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

/// Places that inherit unset keys from another place.
const INHERITED: [(&str, &str); 3] = [
    ("upstreams.*", "defaults"),
    ("upstreams.*.breaker", "defaults.breaker"),
    ("views.*", "server"),
];

/// The key that inherits from a key with another name.
const APPROVAL: (&str, &str) = ("upstreams.*", "approval");

/// The key whose value is the default of [`APPROVAL`].
const MODE: &str = "approvals.mode";

fn secret_schema() -> Value {
    let one = |key: &str| {
        json!({"type": "object", "properties": {key: {"type": "string"}}, "required": [key],
            "additionalProperties": false})
    };
    json!({"anyOf": [one("env"), one("file"), one("value"), {"type": "object", "maxProperties": 0}]})
}
