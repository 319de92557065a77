//! What the file and the environment say, as one tree, before any meaning is given to it.

use std::collections::HashMap;

use config::{FileFormat, Map, Value, ValueKind};
use toml_edit::{Document, Item, TableLike};

use super::error::{ConfigError, Mistake, Origin};

/// Start of the names of environment variables that override the file; two underscores separate
/// the levels, as in `PROMPTGATE__SERVER__LISTEN`.
pub(crate) const ENV_PREFIX: &str = "PROMPTGATE__";

/// The merged tree, and where each key was written.
pub(crate) struct Raw {
    pub root: Map<String, Value>,
    pub origins: HashMap<String, Origin>,
}

impl Raw {
    /// Reads TOML `text` and lays the overrides of `env` over it.
    ///
    /// # Errors
    /// When the text is no TOML; nothing else can be told then.
    pub(crate) fn read(
        file: &str,
        text: &str,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let document = Document::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let origin = Origin::Line(line_of(text, at));
            whole_file(file, origin, error.message().trim().to_owned())
        })?;
        let mut origins = HashMap::new();
        note_lines(document.as_table(), "", text, &mut origins);

        let mut builder =
            config::Config::builder().add_source(config::File::from_str(text, FileFormat::Toml));
        let mut overrides: Vec<_> =
            env.into_iter().filter(|(name, _)| name.starts_with(ENV_PREFIX)).collect();
        overrides.sort();
        for (name, value) in overrides {
            let key = key_of(&name);
            let laid = builder.set_override(&key, env_value(&value));
            builder = laid.map_err(|e| {
                whole_file(file, Origin::Environment(name.clone()), format!("not a key: {e}"))
            })?;
            origins.insert(key, Origin::Environment(name));
        }
        let merged = builder.build().and_then(config::Config::try_deserialize);
        let root = merged.map_err(|e| whole_file(file, Origin::Unknown, e.to_string()))?;
        Ok(Self { root, origins })
    }
}

fn whole_file(file: &str, origin: Origin, message: String) -> ConfigError {
    let mistake = Mistake { key: String::new(), origin, message };
    ConfigError { file: file.to_owned(), mistakes: vec![mistake] }
}

/// The dotted key of a variable. Keys are lower case, but what stands inside `headers` and `env`
/// keeps its case.
fn key_of(variable: &str) -> String {
    let mut verbatim = false;
    let segments = variable[ENV_PREFIX.len()..].split("__").map(|segment| {
        let lower = segment.to_lowercase();
        let key = if verbatim { segment.to_owned() } else { lower };
        verbatim |= key == "headers" || key == "env";
        key
    });
    segments.collect::<Vec<_>>().join(".")
}

/// Arrays and inline tables are written as in TOML; everything else is text, which the reader of
/// the key turns into what it needs.
fn env_value(text: &str) -> Value {
    let structured = text.starts_with(['[', '{']);
    let parsed = structured.then(|| format!("v = {text}")).and_then(|toml| {
        let source = config::File::from_str(&toml, FileFormat::Toml);
        let tree = config::Config::builder().add_source(source).build().ok()?;
        tree.get::<Value>("v").ok()
    });
    parsed.unwrap_or_else(|| Value::new(None, ValueKind::String(text.to_owned())))
}

fn note_lines(
    table: &dyn TableLike,
    path: &str,
    text: &str,
    origins: &mut HashMap<String, Origin>,
) {
    for (name, item) in table.iter() {
        let key = join(path, name);
        let span = table.key(name).and_then(toml_edit::Key::span).or(item.span());
        if let Some(span) = span {
            origins.insert(key.clone(), Origin::Line(line_of(text, span.start)));
        }
        match item {
            Item::ArrayOfTables(tables) => {
                for (index, table) in tables.iter().enumerate() {
                    let key = join(&key, &index.to_string());
                    if let Some(span) = table.span() {
                        origins.insert(key.clone(), Origin::Line(line_of(text, span.start)));
                    }
                    note_lines(table, &key, text, origins);
                }
            }
            _ => {
                if let Some(table) = item.as_table_like() {
                    note_lines(table, &key, text, origins);
                }
            }
        }
    }
}

/// The dotted key of `key` inside `path`; either may be empty.
pub(super) fn join(path: &str, key: &str) -> String {
    match (path, key) {
        ("", _) => key.to_owned(),
        (_, "") => path.to_owned(),
        _ => format!("{path}.{key}"),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_overrides_the_file_and_keeps_the_case_of_headers() {
        let env = [
            ("PROMPTGATE__SERVER__LISTEN", "127.0.0.1:1"),
            ("PROMPTGATE__UPSTREAMS__A__HEADERS__X_Team", "t"),
            ("PROMPTGATE__SERVER__ALLOWED_HOSTS", "[\"a\"]"),
            ("PROMPTGATE_SEAL_KEY", "not an override"),
        ];
        let env = env.map(|(k, v)| (k.to_owned(), v.to_owned()));
        let raw = Raw::read("g", "[server]\nlisten = \"x\"\n[Upper.Case]\nKey = 1\n", env).unwrap();
        let server = raw.root["server"].clone().into_table().unwrap();
        assert_eq!(server["listen"].clone().into_string().unwrap(), "127.0.0.1:1");
        assert_eq!(server["allowed_hosts"].clone().into_array().unwrap().len(), 1);
        let upstreams = raw.root["upstreams"].clone().into_table().unwrap();
        let a = upstreams["a"].clone().into_table().unwrap();
        assert!(a["headers"].clone().into_table().unwrap().contains_key("X_Team"));
        assert!(raw.root["Upper"].clone().into_table().unwrap().contains_key("Case"));
        assert_eq!(raw.origins["Upper.Case.Key"], Origin::Line(4));
        let variable = Origin::Environment("PROMPTGATE__SERVER__LISTEN".into());
        assert_eq!(raw.origins["server.listen"], variable);
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        let error = Raw::read("g.toml", "[server]\nlisten = \n", []).err().unwrap();
        assert!(error.to_string().starts_with("g.toml:2: "), "{error}");
    }
}
