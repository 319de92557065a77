//! The configuration file and its environment overrides, merged into one untyped tree.

use std::collections::HashMap;
use std::ops::Range;

use config::{FileFormat, Map, Value, ValueKind};
use toml_edit::{Document, Item, TableLike};

use crate::error::{ConfigError, Origin};

/// Prefix of the environment variables that override the file. Two underscores separate the levels,
/// as in `PROMPTGATE__SERVER__LISTEN`.
pub(crate) const ENV_PREFIX: &str = "PROMPTGATE__";

/// The separator of the levels of a key in the name of a variable.
pub(crate) const LEVELS: &str = "__";

/// The merged tree, with the origin of each key.
#[derive(Default)]
pub(crate) struct Raw {
    pub root: Map<String, Value>,
    /// By dotted key; for tables of an array the last part is their number, from 1.
    pub origins: HashMap<String, Origin>,
}

impl Raw {
    /// Parses TOML `text` and applies the overrides in `env`. `file` names the file in errors.
    pub(crate) fn read(
        file: &str,
        text: &str,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let document = Document::parse(text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            let origin = Origin::Line(LineOffsets::of(text).line_at(span.start));
            ConfigError::whole_file(
                file,
                origin,
                syntax_message(text, span, error.message().trim()),
            )
        })?;
        let mut origins = HashMap::new();
        record_lines(document.as_table(), "", &LineOffsets::of(text), &mut origins);

        let mut overrides: Vec<_> =
            env.into_iter().filter(|(name, _)| name.starts_with(ENV_PREFIX)).collect();
        overrides.sort();
        let overrides: Vec<_> = overrides
            .into_iter()
            .map(|(name, value)| (key_of(&name), env_value(&value), name))
            .collect();
        // An override would be merged with a table of the file, so that table is removed first.
        let mut tree = document.clone().into_mut();
        for (key, value, _) in &overrides {
            if is_table(value) {
                remove(tree.as_table_mut(), key);
            }
            origins.retain(|own, _| {
                !own.strip_prefix(key.as_str()).is_some_and(|rest| rest.starts_with('.'))
            });
        }
        let source = config::File::from_str(&tree.to_string(), FileFormat::Toml);
        let mut builder = config::Config::builder().add_source(source);
        for (key, value, name) in overrides {
            let overridden = builder.set_override(&key, value);
            builder = overridden.map_err(|error| {
                let message = format!("the name of the variable is not a valid key: {error}");
                ConfigError::whole_file(file, Origin::Environment(name.clone()), message)
            })?;
            origins.insert(key, Origin::Environment(name));
        }
        let merged = builder.build().and_then(config::Config::try_deserialize);
        let root = merged
            .map_err(|error| ConfigError::whole_file(file, Origin::Unknown, error.to_string()))?;
        Ok(Self { root, origins })
    }
}

/// Plain words for frequent mistakes, by the beginning of the parser's message.
/// They leave out the value, which may be a secret.
const PLAIN_WORDS: [(&str, &str); 9] = [
    ("invalid basic string, expected `\"`", "the text has no closing \" in its line"),
    ("invalid literal string, expected `'`", "the text has no closing ' in its line"),
    ("invalid multi-line basic string, expected `\"`", "the text has no closing \"\"\""),
    ("missing escaped value", "a \\ in a text stands alone; write it twice, or the text in '…'"),
    ("string values must be quoted", "the value is missing, or is a text without quotes"),
    ("invalid float", "the value is no number; a text stands in quotes"),
    ("invalid boolean", "write true or false, in small letters"),
    ("key with no value", "the key has no `=` with a value behind it"),
    ("unexpected key or value", "the line goes on behind its end; begin a new line"),
];

/// Returns the message for text that is not valid TOML. The parser does not name a duplicate key.
fn syntax_message(text: &str, span: Range<usize>, message: &str) -> String {
    if text.trim_start().starts_with('{') {
        return format!(
            "{message}: this looks like JSON; `promptgate import FILE` converts the configuration of a host"
        );
    }
    let line = LineOffsets::of(text).line_at(span.start);
    match text.get(span).map(str::trim).filter(|found| !found.is_empty()) {
        Some(found) if message.contains("duplicate key") => {
            let first =
                first_header(text, line).map(|first| format!(", which is in line {first} already"));
            format!("{message} `{found}`{}; remove one of them", first.unwrap_or_default())
        }
        _ => {
            let plain = PLAIN_WORDS.iter().find(|(begin, _)| message.starts_with(begin));
            plain.map_or(message, |(_, plain)| plain).to_owned()
        }
    }
}

/// Returns the line with the same header of a table as the given line.
fn first_header(text: &str, line: usize) -> Option<usize> {
    let header = text.lines().nth(line - 1).map(str::trim).filter(|line| line.starts_with('['))?;
    Some(1 + text.lines().take(line - 1).position(|line| line.trim() == header)?)
}

/// Returns the dotted key that an environment variable overrides. Keys are lower-cased, except
/// inside `headers` and `env`, where they are names of header fields and variables.
fn key_of(variable: &str) -> String {
    let mut verbatim = false;
    let segments = variable[ENV_PREFIX.len()..].split(LEVELS).map(|segment| {
        let lower = segment.to_lowercase();
        let key = if verbatim { segment.to_owned() } else { lower };
        verbatim |= key == "headers" || key == "env";
        key
    });
    segments.collect::<Vec<_>>().join(".")
}

/// Parses the value of a variable. Arrays and inline tables are written as in TOML; anything else
/// stays a string, which the reader of the key converts.
fn env_value(text: &str) -> Value {
    let text = text.trim();
    let structured = text.starts_with(['[', '{']);
    let parsed = structured.then(|| format!("v = {text}")).and_then(|toml| {
        let source = config::File::from_str(&toml, FileFormat::Toml);
        let tree = config::Config::builder().add_source(source).build().ok()?;
        tree.get::<Value>("v").ok()
    });
    parsed.unwrap_or_else(|| Value::new(None, ValueKind::String(text.to_owned())))
}

fn is_table(value: &Value) -> bool {
    matches!(value.kind, ValueKind::Table(_))
}

/// Removes the value of a dotted key.
fn remove(table: &mut dyn TableLike, key: &str) {
    match key.split_once('.') {
        None => {
            table.remove(key);
        }
        Some((first, rest)) => {
            if let Some(inner) = table.get_mut(first).and_then(Item::as_table_like_mut) {
                remove(inner, rest);
            }
        }
    }
}

/// Records the line of each key below `path`.
fn record_lines(
    table: &dyn TableLike,
    path: &str,
    lines: &LineOffsets,
    origins: &mut HashMap<String, Origin>,
) {
    for (name, item) in table.iter() {
        let key = join(path, name);
        let span = table.key(name).and_then(toml_edit::Key::span).or(item.span());
        if let Some(span) = span {
            origins.insert(key.clone(), Origin::Line(lines.line_at(span.start)));
        }
        match item {
            Item::ArrayOfTables(tables) => {
                for (index, table) in tables.iter().enumerate() {
                    let key = join(&key, &(index + 1).to_string());
                    if let Some(span) = table.span() {
                        origins.insert(key.clone(), Origin::Line(lines.line_at(span.start)));
                    }
                    record_lines(table, &key, lines, origins);
                }
            }
            _ => {
                if let Some(table) = item.as_table_like() {
                    record_lines(table, &key, lines, origins);
                }
            }
        }
    }
}

/// Joins two dotted keys; either may be empty.
pub(crate) fn join(path: &str, key: &str) -> String {
    match (path, key) {
        ("", _) => key.to_owned(),
        (_, "") => path.to_owned(),
        _ => format!("{path}.{key}"),
    }
}

/// Where the lines of a text end: offsets of the line feeds, in bytes.
struct LineOffsets(Vec<usize>);

impl LineOffsets {
    fn of(text: &str) -> Self {
        Self(
            text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect(),
        )
    }

    /// Returns the line of a byte offset, counted from 1.
    fn line_at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_override_the_file_and_keep_the_case_of_header_names() {
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
    fn a_table_in_a_variable_takes_the_place_of_the_one_in_the_file() {
        let text = "[admin]\ntoken = { file = \"x\" }\nwrite = true\n";
        let env = [("PROMPTGATE__ADMIN__TOKEN".to_owned(), "{ env = \"T\" }".to_owned())];
        let raw = Raw::read("g.toml", text, env).ok().unwrap();
        let admin = raw.root["admin"].clone().into_table().unwrap();
        let token = admin["token"].clone().into_table().unwrap();
        assert_eq!(token.keys().collect::<Vec<_>>(), ["env"]);
        assert!(admin["write"].clone().into_bool().unwrap());
        assert!(!raw.origins.contains_key("admin.token.file"));
    }

    #[test]
    fn invalid_toml_is_reported_with_its_line() {
        let error = Raw::read("g.toml", "[server]\nlisten = \n", []).err().unwrap();
        assert!(error.to_string().starts_with("g.toml:2: "), "{error}");
        let unquoted =
            Raw::read("g.toml", "[server]\nlisten = 127.0.0.1:8080\n", []).err().unwrap();
        assert!(unquoted.to_string().contains("; a text stands in quotes"), "{unquoted}");
        assert!(!unquoted.to_string().contains("127"), "it might be a secret");
    }
}
