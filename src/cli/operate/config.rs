//! `promptgate config explain`: the keys of the configuration file.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::cli::shared::args::Output;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{Column, table};
use config::key::Key;
use config::reference::{FoundKeys, find, keys};

/// Prints one key, the keys of a table, or the keys with a prefix; the tables of the file without a
/// query.
///
/// # Errors
/// With exit code 64 if there is no such key.
pub(crate) fn explain(query: Option<&str>, output: &Output) -> Result<(), Failure> {
    let (text, found) = match query.map(find) {
        None => {
            let tables: Vec<_> = keys().into_iter().filter(|key| key.place.is_empty()).collect();
            (list(&tables), tables)
        }
        Some(FoundKeys::Key(key, inner)) if inner.is_empty() => (one(&key), vec![*key]),
        Some(FoundKeys::Key(key, inner)) => {
            (format!("{}\n\n{}", one(&key), list(&inner)), [vec![*key], inner].concat())
        }
        Some(FoundKeys::Beginning(keys)) => (list(&keys), keys),
        Some(FoundKeys::Similar(similar)) => {
            return Err(unknown(query.unwrap_or_default(), &similar));
        }
    };
    output.print(&Value::from(found.iter().map(report).collect::<Vec<_>>()), &text)
}

fn unknown(query: &str, similar: &[String]) -> Failure {
    let similar: Vec<_> = similar.iter().map(|path| format!("`{path}`")).collect();
    let hint = match similar.is_empty() {
        true => "; `promptgate config explain` shows the tables of the file".to_owned(),
        false => format!("; did you mean {}?", similar.join(" or ")),
    };
    Failure::usage(format!("there is no key {query:?}{hint}"))
}

fn one(key: &Key) -> String {
    let mut out = format!("{}\n  {}\n", key.path(), key.meaning);
    let required = if key.is_required { " (required)" } else { "" };
    let mut line = |name: &str, text: &str| {
        let _ = write!(out, "\n  {name:7}  {text}");
    };
    line("value", &format!("{}{required}", key.kind()));
    if let Some(default) = key.default_text() {
        line("default", &default);
    }
    if let Some(table) = key.table() {
        line("table", &table);
    }
    if let Some(example) = key.example() {
        line("example", &example);
    }
    out
}

fn list(keys: &[Key]) -> String {
    let columns = [
        Column::new("KEY", "key"),
        Column::new("DEFAULT", "default"),
        Column::new("MEANING", "meaning"),
    ];
    let rows: Vec<_> = keys
        .iter()
        .map(|key| {
            json!({"key": key.path(), "default": key.default_text(), "meaning": key.summary()})
        })
        .collect();
    table(&columns, &rows)
}

fn report(key: &Key) -> Value {
    json!({
        "key": key.path(),
        "table": key.table(),
        "meaning": key.meaning,
        "value": key.kind(),
        "default": key.default,
        "defaultFrom": key.inherits,
        "required": key.is_required,
        "example": key.example(),
    })
}
