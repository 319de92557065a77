//! Secrets: read from the environment, from files, or, for tests, as they stand.

use config::{Map, Value, ValueKind};

use super::{Section, into_text};
use crate::config::secret::Secret;

const SECRET: &str = "{ env = \"NAME\" }, { file = \"path\" } or { value = \"…\" }";

impl Section<'_> {
    /// Every key of this table with its value as a secret: `"text"` or a table as in [`secret`].
    ///
    /// [`secret`]: Section::secret
    pub(in crate::config) fn secrets(mut self) -> Vec<(String, Secret)> {
        let mut entries: Vec<_> = std::mem::take(&mut self.table).into_iter().collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let read = |(name, value): (String, Value)| {
            let path = self.path(&name);
            let secret = match value.kind {
                ValueKind::Table(table) => self.secret_table(&path, table),
                kind => into_text(kind).map(Secret::new),
            };
            if secret.is_none() {
                self.context.mistakes.add(&path, "must be a string or a secret");
            }
            Some((name, secret?))
        };
        entries.into_iter().filter_map(read).collect()
    }

    /// A secret: `{ env = "NAME" }`, `{ file = "path" }` or `{ value = "…" }`. The variable
    /// `default` may be named without being set.
    pub(in crate::config) fn secret(
        &mut self,
        key: &'static str,
        default: Option<&str>,
    ) -> Option<Secret> {
        let parse = |value: Value, _| value.into_table().ok();
        let table = self.read(key, SECRET, parse)?;
        let names_default = |variable: &str| {
            let named = table.get("env").and_then(|v| into_text(v.kind.clone()));
            named.as_deref() == Some(variable) && self.variable(variable).is_none()
        };
        if default.is_some_and(names_default) {
            return None;
        }
        self.secret_table(&self.path(key), table)
    }

    /// A secret whose default is an environment variable that may be unset.
    pub(in crate::config) fn secret_or_variable(
        &mut self,
        key: &'static str,
        name: &str,
    ) -> Option<Secret> {
        let given = self.secret(key, Some(name));
        given.or_else(|| self.variable(name).map(Secret::new))
    }

    fn secret_table(&self, path: &str, table: Map<String, Value>) -> Option<Secret> {
        let fields: Vec<_> =
            table.into_iter().map(|(field, value)| (field, into_text(value.kind))).collect();
        let [(field, Some(text))] = fields.as_slice() else {
            self.context.mistakes.add(path, format!("must be {SECRET}"));
            return None;
        };
        let secret = match field.as_str() {
            "value" => Ok(text.clone()),
            "env" => (self.context.env)(text)
                .ok_or_else(|| format!("environment variable {text} is not set")),
            "file" => self
                .context
                .read_file(self.context.base.join(text))
                .map(|content| content.trim_end().to_owned())
                .map_err(|e| format!("cannot read {text}: {e}")),
            _ => Err(format!("must be {SECRET}")),
        };
        secret.map(Secret::new).map_err(|message| self.context.mistakes.add(path, message)).ok()
    }
}
