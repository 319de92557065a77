//! Reader of secrets: from an environment variable, from a file, or, for tests, in plain text.

use config::{Map, Value, ValueKind};
use serde_json::json;

use super::placeholder::placeholder;
use super::secret::Secret;
use super::{Section, into_text};

const ALLOWED: &str = "{ env = \"NAME\" }, { file = \"path\" } or { value = \"…\" }";

impl Section<'_> {
    /// Reads every key of this table as a secret: a string, or a table as in [`secret`]. Sorted by
    /// key.
    ///
    /// [`secret`]: Section::secret
    pub(crate) fn secrets(mut self) -> Vec<(String, Secret)> {
        if let Some(recorder) = &self.context.recorder {
            recorder.borrow_mut().open(&self.place);
        }
        let mut entries: Vec<_> = std::mem::take(&mut self.table).into_iter().collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let mut secrets = Vec::with_capacity(entries.len());
        for (name, value) in entries {
            let secret = match value.kind {
                ValueKind::Table(table) => self.secret_table(&name, table),
                ValueKind::String(text) => Some(self.plain(&name, text)),
                _ => {
                    self.mistake(&name, format!("must be a string, {ALLOWED}"));
                    None
                }
            };
            secrets.extend(secret.map(|secret| (name, secret)));
        }
        secrets
    }

    /// Reads a secret: `{ env = "NAME" }`, `{ file = "path" }` or `{ value = "…" }`. A variable
    /// that is not set is a mistake.
    pub(crate) fn secret(&mut self, key: &'static str) -> Option<Secret> {
        self.record(key, || json!({"$ref": "#/$defs/secret"}));
        let table = self.read(key, ALLOWED, |value, _| value.into_table().ok())?;
        self.secret_table(key, table)
    }

    /// Reads a string, or a secret as in [`secret`](Section::secret).
    pub(crate) fn text_or_secret(&mut self, key: &'static str) -> Option<Secret> {
        self.record(key, || json!({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/secret"}]}));
        let allowed = format!("a string, {ALLOWED}");
        match self.read(key, &allowed, |value, _| Some(value.kind))? {
            ValueKind::String(text) => Some(self.plain(key, text)),
            ValueKind::Table(table) => self.secret_table(key, table),
            _ => {
                self.mistake(key, format!("must be {allowed}"));
                None
            }
        }
    }

    /// Reads a [`secret`](Section::secret), by default from the variable `default`. This variable
    /// may be unset, also if the file names it.
    pub(crate) fn secret_or_variable(
        &mut self,
        key: &'static str,
        default: &str,
    ) -> Option<Secret> {
        self.record(key, || json!({"$ref": "#/$defs/secret"}));
        let variable = self.variable(default).map(Secret::new);
        let Some(table) = self.read(key, ALLOWED, |value, _| value.into_table().ok()) else {
            return variable;
        };
        let named = table.get("env").and_then(|value| into_text(value.kind.clone()));
        if table.len() == 1 && named.as_deref() == Some(default) {
            return variable;
        }
        self.secret_table(key, table).or(variable)
    }

    fn plain(&self, key: &str, text: String) -> Secret {
        self.check_plain(key, &text);
        Secret::plain(text)
    }

    /// Adds a mistake for a text with a placeholder that another program would expand.
    fn check_plain(&self, key: &str, text: &str) {
        if let Some(name) = placeholder(text) {
            let message = format!(
                "has a place for the variable {name}, which is not expanded in this file: write \
                 {{ env = \"{name}\" }}, with the whole value in the variable"
            );
            self.mistake(key, message);
        }
    }

    /// Reads the table of a secret; an empty table means no secret.
    fn secret_table(&self, key: &str, table: Map<String, Value>) -> Option<Secret> {
        if table.is_empty() {
            return None;
        }
        let fields: Vec<_> =
            table.into_iter().map(|(field, value)| (field, into_text(value.kind))).collect();
        let [(field, Some(text))] = fields.as_slice() else {
            self.mistake(key, format!("must be {ALLOWED}"));
            return None;
        };
        let found = match field.as_str() {
            "value" => {
                self.check_plain(key, text);
                Ok(Secret::new(text))
            }
            "env" => self.variable(text).map(Secret::new).ok_or_else(|| {
                format!(
                    "environment variable {text} is not set. Set it and restart the gateway, or use \
                     {{ file = \"path\" }}, which is read again at each change"
                )
            }),
            "file" => {
                let path = self.context.base.join(text);
                self.read_file(path.clone())
                    .map(|content| Secret::of_file(&content, path, ""))
                    .map_err(|error| format!("cannot read {text}: {error}"))
            }
            _ => {
                self.mistake(key, format!("must be {ALLOWED}"));
                return None;
            }
        };
        let unset = |message: String| self.context.mistakes.add_unset(&self.path(key), message);
        found.map_err(unset).ok()
    }

    /// Removes the mistakes of unset secrets in this table and its subtables.
    pub(crate) fn excuse_unset_secrets(&self) {
        self.context.mistakes.excuse_unset(&self.path);
    }
}
