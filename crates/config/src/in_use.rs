//! The values in use, key by key, for display: each with its origin, and secrets hidden.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use config::{Map, Value, ValueKind};

use super::Config;
use super::error::Origin;
use super::reader::raw::join;

/// One key with the value in use.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Setting {
    /// Dotted; the tables of an array have their number, from 1.
    pub key: String,
    pub value: String,
    /// `None` for a default.
    pub origin: Option<Origin>,
}

/// A key whose value differs between two configurations.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct SettingChange {
    pub key: String,
    /// `None` where the key was not set and has no default.
    pub before: Option<String>,
    pub after: Option<String>,
}

/// Placeholder of a hidden value.
const HIDDEN: &str = "(hidden)";

/// Placeholder of a default that the schema does not contain.
const NOT_SET: &str = "(default)";

/// The tables with texts under arbitrary names, which often hold secrets.
const OPEN_TABLES: [&str; 2] = ["headers", "env"];

/// The keys whose values hold or may hold secrets.
const SECRET_KEYS: [&str; 3] = ["value", "hash", "preset"];

/// Returns the keys of a file and of the environment, and the defaults of the keys that neither
/// sets; sorted by key.
pub(super) fn settings(
    tree: &Map<String, Value>,
    origins: &HashMap<String, Origin>,
) -> Vec<Setting> {
    let mut found = BTreeMap::new();
    write_table(tree, "", SettingPlace::Known, &mut found);
    let origin = |key: &str| {
        let mut key = key;
        loop {
            match (origins.get(key), key.rsplit_once('.')) {
                (Some(origin), _) => return origin.clone(),
                (None, Some((parent, _))) => key = parent,
                (None, None) => return Origin::Unknown,
            }
        }
    };
    let set: Vec<Setting> = found
        .into_iter()
        .map(|(key, value)| Setting { origin: Some(origin(&key)), key, value })
        .collect();
    let is_set = |key: &str| {
        set.iter().any(|setting| {
            setting.key == key
                || setting.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
        })
    };
    let defaults = DEFAULTS.iter().filter(|(key, _)| !is_set(key));
    let defaults = defaults.map(|(key, value)| Setting {
        key: key.clone(),
        value: value.clone(),
        origin: None,
    });
    let mut all: Vec<_> = set.iter().cloned().chain(defaults).collect();
    all.sort_by(|a, b| a.key.cmp(&b.key));
    all
}

/// Returns the keys whose values differ between two configurations.
pub(super) fn changes(before: &[Setting], after: &[Setting]) -> Vec<SettingChange> {
    let by_key = |settings: &[Setting]| -> BTreeMap<String, String> {
        settings.iter().map(|setting| (setting.key.clone(), setting.value.clone())).collect()
    };
    let before = by_key(before);
    let after = by_key(after);
    let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    let change = |key: &String| SettingChange {
        key: key.clone(),
        before: before.get(key).cloned(),
        after: after.get(key).cloned(),
    };
    keys.into_iter().map(change).filter(|change| change.before != change.after).collect()
}

/// The place of a value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SettingPlace {
    /// Under a key of the reference.
    Known,
    /// In a table with texts under arbitrary names, which often hold secrets.
    Open,
}

fn write_table(
    table: &Map<String, Value>,
    path: &str,
    place: SettingPlace,
    out: &mut BTreeMap<String, String>,
) {
    for (name, value) in table {
        let key = join(path, name);
        match &value.kind {
            ValueKind::Table(entries)
                if place == SettingPlace::Known && OPEN_TABLES.contains(&name.as_str()) =>
            {
                write_table(entries, &key, SettingPlace::Open, out);
            }
            _ => write_value(value, &key, place, out),
        }
    }
}

fn write_value(value: &Value, key: &str, place: SettingPlace, out: &mut BTreeMap<String, String>) {
    let name = key.rsplit('.').next().unwrap_or(key);
    match &value.kind {
        // The source of a secret is shown, but not its value.
        ValueKind::Table(table) if is_source(table) => {
            write_table(table, key, SettingPlace::Known, out);
        }
        ValueKind::Table(table) if !table.is_empty() => write_table(table, key, place, out),
        ValueKind::Array(elements) if elements.iter().any(is_table) => {
            for (index, element) in elements.iter().enumerate() {
                write_value(element, &join(key, &(index + 1).to_string()), place, out);
            }
        }
        // The arguments of a program often hold keys.
        ValueKind::Array(words) if name == "command" => {
            let program = words.first().map(text).unwrap_or_default();
            let rest = if words.len() > 1 { format!(", {HIDDEN}") } else { String::new() };
            out.insert(key.to_owned(), format!("[{program}{rest}]"));
        }
        _ if SECRET_KEYS.contains(&name) || place == SettingPlace::Open => {
            out.insert(key.to_owned(), HIDDEN.to_owned());
        }
        _ => {
            out.insert(key.to_owned(), text(value));
        }
    }
}

/// Whether a table names the source of a secret.
fn is_source(table: &Map<String, Value>) -> bool {
    table.len() == 1
        && ["env", "file"].iter().any(|key| table.get(*key).is_some_and(|value| !is_table(value)))
}

fn is_table(value: &Value) -> bool {
    matches!(value.kind, ValueKind::Table(_))
}

fn text(value: &Value) -> String {
    match &value.kind {
        ValueKind::String(text) => match text.split_once("://") {
            Some((scheme, rest)) => format!("{scheme}://{}", without_keys(rest)),
            None => text.clone(),
        },
        ValueKind::Array(elements) => {
            let texts: Vec<_> = elements.iter().map(text).collect();
            format!("[{}]", texts.join(", "))
        }
        ValueKind::Table(_) => "{}".to_owned(),
        _ => value.to_string(),
    }
}

/// Returns a URL behind its scheme without user information and query, which often hold a key.
fn without_keys(url: &str) -> String {
    let (url, query) = match url.split_once('?') {
        Some((url, _)) => (url, format!("?{HIDDEN}")),
        None => (url, String::new()),
    };
    let (authority, path) = url.split_at(url.find('/').unwrap_or(url.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{HIDDEN}@{host}{path}{query}"),
        None => format!("{url}{query}"),
    }
}

/// The defaults of the keys in tables with fixed names, from the schema.
static DEFAULTS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let mut defaults = Vec::new();
    collect_defaults(&Config::schema(), "", &mut defaults);
    defaults
});

fn collect_defaults(schema: &serde_json::Value, path: &str, out: &mut Vec<(String, String)>) {
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let key = join(path, name);
        match &member["default"] {
            serde_json::Value::Null if member["properties"].is_object() => {
                collect_defaults(member, &key, out);
            }
            // Other tables have arbitrary names or are arrays, or hold secrets.
            serde_json::Value::Null if !is_value(member) => {}
            serde_json::Value::Null => out.push((key, NOT_SET.to_owned())),
            // The default names the source of a secret.
            serde_json::Value::Object(_) => {}
            serde_json::Value::String(text) => out.push((key, text.clone())),
            serde_json::Value::Array(items) => out.push((key, list(items))),
            other => out.push((key, other.to_string())),
        }
    }
}

/// Returns a list as [`text`] writes it.
fn list(items: &[serde_json::Value]) -> String {
    let texts = items.iter().map(|item| item.as_str().unwrap_or_default());
    format!("[{}]", texts.collect::<Vec<_>>().join(", "))
}

/// Whether a schema is that of a single value, or of a list of them.
fn is_value(schema: &serde_json::Value) -> bool {
    match schema["type"].as_str() {
        Some("string" | "integer" | "number" | "boolean") => true,
        Some("array") => !schema["items"]["properties"].is_object(),
        _ => schema["enum"].is_array(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &str, env: &[(&str, &str)]) -> Vec<Setting> {
        let env: Vec<_> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        Config::parse("g.toml", text, root, &env).unwrap().settings.to_vec()
    }

    fn get<'a>(settings: &'a [Setting], key: &str) -> Option<(&'a str, Option<&'a Origin>)> {
        let setting = settings.iter().find(|setting| setting.key == key)?;
        Some((&setting.value, setting.origin.as_ref()))
    }

    #[test]
    fn every_value_has_its_origin() {
        let settings = read(
            "[server]\ninstructions = \"gate\"\n[upstreams.a]\ntransport = \"library\"\npath = \"examples/library\"\n",
            &[("PROMPTGATE__LISTING__PAGE_SIZE", "7")],
        );
        let variable = Origin::Environment("PROMPTGATE__LISTING__PAGE_SIZE".to_owned());
        assert_eq!(get(&settings, "listing.page_size"), Some(("7", Some(&variable))));
        assert_eq!(get(&settings, "server.name"), Some(("promptgate", None)));
        assert_eq!(get(&settings, "audit.durability"), Some(("interval", None)));
        assert_eq!(get(&settings, "server.path"), Some(("/mcp", None)));
        assert_eq!(get(&settings, "server.allowed_hosts"), Some(("[]", None)));
        assert_eq!(get(&settings, "server.instructions"), Some(("gate", Some(&Origin::Line(2)))));
        assert_eq!(get(&settings, "telemetry.otlp_endpoint"), Some((NOT_SET, None)));
        assert_eq!(get(&settings, "server.expose"), Some(("[prompts]", None)));
        assert_eq!(get(&settings, "admin.token"), None);
        assert_eq!(
            get(&settings, "upstreams.a.path"),
            Some(("examples/library", Some(&Origin::Line(5))))
        );
        assert!(settings.is_sorted_by_key(|setting| &setting.key));
    }

    #[test]
    fn secrets_are_hidden_wherever_they_stand() {
        let settings = read(
            "[admin]\ntoken = { value = \"s3cret\" }\n\
             [[auth.api_keys]]\nid = \"ci\"\nhash = \"sha256:0000000000000000000000000000000000000000000000000000000000005ec2\"\n\
             [upstreams.a]\ntransport = \"http\"\nurl = \"https://a.example/mcp?key=s3cret\"\n\
             headers = { X-Key = { value = \"s3cret\" }, X-Other = { env = \"OTHER\" } }\n\
             [upstreams.b]\ntransport = \"stdio\"\ncommand = [\"b\", \"--key\", \"s3cret\"]\n\
             env = { KEY = { value = \"s3cret\" }, env = { value = \"s3cret\" } }\n",
            &[("OTHER", "s3cret")],
        );
        let all = format!("{settings:?}");
        assert!(!all.contains("s3cret") && !all.contains("5ec2"), "{all}");
        assert_eq!(get(&settings, "upstreams.a.headers.X-Other.env").unwrap().0, "OTHER");
        assert_eq!(get(&settings, "upstreams.a.url").unwrap().0, "https://a.example/mcp?(hidden)");
        assert_eq!(without_keys("me:s3cret@a.example/x@y?k"), "(hidden)@a.example/x@y?(hidden)");
        assert_eq!(without_keys("a.example"), "a.example");
        assert_eq!(get(&settings, "auth.api_keys.1.id").unwrap().0, "ci");
        assert_eq!(get(&settings, "upstreams.b.command").unwrap().0, "[b, (hidden)]");
    }

    #[test]
    fn changes_name_keys_that_come_go_and_differ() {
        let before = read("[server]\nname = \"one\"\n[views.v]\n", &[]);
        let after = read("[server]\nname = \"two\"\n", &[]);
        let changed = changes(&before, &after);
        let change = changed.iter().find(|change| change.key == "server.name").unwrap();
        assert_eq!((change.before.as_deref(), change.after.as_deref()), (Some("one"), Some("two")));
        assert_eq!(changes(&after, &after), []);
    }
}
