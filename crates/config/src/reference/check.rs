//! For tests: every key is explained, and the documents have the keys as they are explained.

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::path::{Path, PathBuf};

    use serde_json::Value;

    use crate::Config;
    use crate::reader::key::{ELEMENTS, Key, NAMED, toml};
    use crate::reader::raw::join;
    use crate::reference::keys;
    use domain::time::millis::whole_millis;

    /// The environment variable with which the tests write the tables of keys into the documents.
    const RENEW: &str = "PROMPTGATE_RENEW";

    /// Tables that a document beside the reference explains.
    const ELSEWHERE: [&str; 4] =
        ["access.rules", "cluster", "upstreams.NAME.credential", "overlays.icons"];

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    /// Writes the rows of each `<!-- keys: PLACE -->` in a document anew. A place has the keys of
    /// the tables in it, too, unless they have a marker of their own.
    fn renewed(document: &str, keys: &[Key], shown: &mut BTreeSet<String>) -> String {
        let places: Vec<_> = document.split("<!-- keys: ").skip(1).map(first).collect();
        let mut parts = document.split("<!-- keys: ");
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let place = first(part);
            let (_, after) = part.split_once("<!-- /keys -->").expect("each marker has an end");
            let rows = keys.iter().filter(|key| is_shown(key, place, &places));
            let _ = writeln!(out, "<!-- keys: {place} -->");
            out += "| key | default, bounds | meaning |\n|---|---|---|\n";
            for key in rows {
                shown.insert(key.path());
                out += &row(key, place);
            }
            out += "<!-- /keys -->";
            out += after;
        }
        out
    }

    fn first(text: &str) -> &str {
        text.split(" -->").next().unwrap_or_default()
    }

    /// The place of the table, as markers and paths write it.
    fn table_of(key: &Key) -> String {
        let path = key.path();
        path.rsplit_once('.').map_or(String::new(), |(table, _)| table.to_owned())
    }

    /// Whether a marker's table has a row for the key: not for a table whose keys follow or stand
    /// elsewhere, nor for a key that is the same in the table whose value it has by default.
    fn is_shown(key: &Key, place: &str, places: &[&str]) -> bool {
        let path = key.path();
        let table = table_of(key);
        let is_in = |place: &str| table == place || table.starts_with(&format!("{place}."));
        let nearest = places.iter().filter(|other| is_in(other)).max_by_key(|other| other.len());
        let is_elsewhere = ELSEWHERE.contains(&table.as_str())
            || ELSEWHERE.iter().any(|other| table.starts_with(&format!("{other}.")));
        let has_marker =
            places.contains(&path.as_str()) || places.contains(&format!("{path}.NAME").as_str());
        let is_same =
            key.inherits.as_ref().is_some_and(|from| from.ends_with(&format!(".{}", key.name)));
        nearest == Some(&place) && !is_same && !has_marker && (!is_elsewhere || place == table)
    }

    /// One row. Rules of texts are left to `promptgate config explain`.
    fn row(key: &Key, place: &str) -> String {
        let path = key.path();
        let name = path.strip_prefix(&format!("{place}.")).unwrap_or(&path);
        let default = match (&key.inherits, &key.default) {
            _ if key.is_required => Some("required".to_owned()),
            (Some(from), _) => Some(format!("`{from}`")),
            (None, Some(default)) => Some(format!("`{}`", toml(default))),
            (None, None) => None,
        };
        let value: Vec<_> = default.into_iter().chain(bounds(key)).collect();
        format!("| `{name}` | {} | {} |\n", value.join(", "), linked(&key.meaning))
    }

    /// Makes links of the documents that a meaning names.
    fn linked(meaning: &str) -> String {
        let link = |word: &str| match word.strip_prefix("docs/") {
            Some(rest) => {
                let target = rest.trim_end_matches('.');
                let (file, end) =
                    (target.split('#').next().unwrap_or(target), &rest[target.len()..]);
                format!("[{file}]({target}){end}")
            }
            None => word.to_owned(),
        };
        meaning.split(' ').map(link).collect::<Vec<_>>().join(" ")
    }

    /// The bounds of numbers, sizes and durations; not the least duration of most keys.
    fn bounds(key: &Key) -> Option<String> {
        let schema = &key.schema;
        let rule = schema["description"].as_str().filter(|_| schema["pattern"].is_string());
        let number = |member: &str| schema[member].as_u64().map(thousands);
        match (number("minimum").zip(number("maximum")), rule) {
            (Some((least, most)), _) => Some(format!("{least} to {most}")),
            (None, Some(rule)) => {
                let size = rule.strip_prefix("a size from ").map(str::to_owned);
                let least = rule.strip_prefix("a duration, at least ");
                let least = least.filter(|least| *least != "1ms");
                size.or_else(|| least.map(|least| format!("at least `\"{least}\"`")))
            }
            (None, None) => None,
        }
    }

    /// Writes a number with separators.
    fn thousands(number: u64) -> String {
        let digits = number.to_string();
        let mut out = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                out.push(',');
            }
            out.push(digit);
        }
        out
    }

    /// The documents that have tables of keys.
    fn documents() -> Vec<(PathBuf, String)> {
        let entries = std::fs::read_dir(root().join("docs")).unwrap();
        let read = |path: PathBuf| (path.clone(), std::fs::read_to_string(path).unwrap());
        let paths = entries.map(|entry| entry.unwrap().path());
        let documents =
            paths.filter(|path| path.extension().is_some_and(|end| end == "md")).map(read);
        documents.filter(|(_, text)| text.contains("<!-- keys: ")).collect()
    }

    #[test]
    fn every_key_has_a_meaning_and_every_meaning_has_a_key() {
        let explained: BTreeSet<_> = keys().iter().map(|key| join(&key.place, &key.name)).collect();
        let mut known = BTreeSet::new();
        collect(&Config::schema(), "", &mut known);
        let missing: Vec<_> = known.difference(&explained).collect();
        assert!(missing.is_empty(), "keys without a meaning: {missing:#?}");
        let stale: Vec<_> = explained.difference(&known).collect();
        assert!(stale.is_empty(), "meanings without a key: {stale:#?}");
        assert!(known.len() > 250, "{}", known.len());
    }

    /// Collects the places of all keys of a schema, which all have descriptions.
    fn collect(schema: &Value, place: &str, known: &mut BTreeSet<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = join(place, name);
            assert!(property["description"].is_string(), "{path} has no description");
            collect(property, &path, known);
            collect(&property["items"], &join(&path, ELEMENTS), known);
            collect(&property["additionalProperties"], &join(&path, NAMED), known);
            known.insert(path);
        }
    }

    #[test]
    fn meanings_are_short_sentences() {
        for key in keys() {
            let path = key.path();
            let meaning = &key.meaning;
            assert!(meaning.ends_with('.') && !meaning.contains('|'), "{path}: {meaning}");
            assert!(meaning.split(' ').count() <= 75, "{path}: {meaning}");
        }
    }

    #[test]
    fn defaults_and_examples_are_of_the_kind_of_their_key() {
        let schema = Config::schema();
        let mut looked_at = 0;
        for key in keys() {
            let value = |text: &str| {
                let source =
                    config::File::from_str(&format!("v = {text}"), config::FileFormat::Toml);
                let tree = config::Config::builder().add_source(source).build().ok();
                tree.and_then(|tree| tree.get::<Value>("v").ok())
            };
            let example = key.example().map(|line| {
                let (_, text) = line.split_once(" = ").unwrap();
                value(text).unwrap_or_else(|| panic!("{}: {line}", key.path()))
            });
            let mut own = key.schema.clone();
            own["$defs"] = schema["$defs"].clone();
            let validator = jsonschema::validator_for(&own).unwrap();
            for value in key.default.iter().chain(&example) {
                looked_at += 1;
                assert!(validator.is_valid(value), "{}: {value}", key.path());
            }
        }
        assert!(looked_at > 400, "{looked_at}");
    }

    /// The defaults of fixed tables, as a file that sets each of them.
    fn file_of_defaults() -> String {
        let mut tables = std::collections::BTreeMap::<String, String>::new();
        // They need certificates, a provider, a store or another file.
        let left_out = ["auth.jwt", "auth.stdio", "releases.probes"];
        for key in keys() {
            let Some(default) = key.default.as_ref().filter(|_| key.inherits.is_none()) else {
                continue;
            };
            let is_fixed =
                ![NAMED, ELEMENTS].iter().any(|part| key.place.split('.').any(|p| p == *part));
            if is_fixed && !key.place.is_empty() && !left_out.contains(&key.place.as_str()) {
                let line = format!("{} = {}\n", key.name, toml(default));
                tables.entry(key.place.clone()).or_default().push_str(&line);
            }
        }
        tables.iter().map(|(place, lines)| format!("[{place}]\n{lines}")).collect()
    }

    #[test]
    fn defaults_are_what_holds_without_them() {
        let parse = |text: &str| {
            Config::parse("g", text, root(), &[]).unwrap_or_else(|e| panic!("{e}\n{text}"))
        };
        let set = parse(&file_of_defaults());
        let not_set = parse("");
        let admin = |config: &Config| {
            let mut admin = config.admin.clone().unwrap();
            admin.is_default = true;
            admin
        };
        let server = |config: &Config| {
            let mut server = config.server.clone();
            server.is_plain_by_choice = false;
            format!("{server:?}")
        };
        assert_eq!(server(&set), server(&not_set));
        assert_eq!(admin(&set), admin(&not_set));
        assert_eq!(set.auth.required, not_set.auth.required);
        assert_eq!(set.audit, not_set.audit);
        assert_eq!(set.cluster, not_set.cluster);
        assert_eq!(set.listing, not_set.listing);
        assert_eq!(set.naming, not_set.naming);
        assert_eq!(set.accounts, not_set.accounts);
        assert_eq!(set.telemetry, not_set.telemetry);
        let seconds = |config: &Config| whole_millis(config.approvals.probe_every);
        assert_eq!(seconds(&set), seconds(&not_set));
    }

    #[test]
    fn documents_have_the_keys_as_they_are_explained() {
        let keys = keys();
        let mut shown = BTreeSet::new();
        let documents = documents();
        for (path, document) in &documents {
            let renewed = renewed(document, &keys, &mut shown);
            if *document != renewed && std::env::var_os(RENEW).is_some() {
                std::fs::write(path, renewed).unwrap();
                continue;
            }
            assert!(
                *document == renewed,
                "the tables of keys in {} differ from what the readers say: \
             {RENEW}=1 cargo test -p promptgate-config --lib reference writes them anew",
                path.display()
            );
        }
        assert!(!documents.is_empty(), "the documents were found");
        let is_elsewhere =
            |path: &str| ELSEWHERE.iter().any(|other| path.starts_with(&format!("{other}.")));
        let is_table = |key: &&Key| key.kind() == "a table" || key.kind() == "an array of tables";
        let same = |key: &Key| {
            key.inherits.as_ref().is_some_and(|from| from.ends_with(&format!(".{}", key.name)))
        };
        let missing: Vec<_> = keys
            .iter()
            .filter(|key| !is_table(key) && !same(key) && !is_elsewhere(&key.path()))
            .map(Key::path)
            .filter(|path| !shown.contains(path))
            .collect();
        assert!(missing.is_empty(), "keys without a row: {missing:#?}");
    }
}
