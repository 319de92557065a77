//! The reference of the configuration keys, which users can search.

#[cfg(test)]
mod check;

use std::sync::LazyLock;

use crate::Config;
use crate::reader::key::Key;
use domain::text::similar::{is_typing_error, nearest};

/// The result of a search for keys.
pub enum FoundKeys {
    /// One key; for a table with the keys in it.
    Key(Box<Key>, Vec<Key>),
    /// The keys with the searched prefix; at least one.
    Beginning(Vec<Key>),
    /// No key; the names with similar spelling.
    Similar(Vec<String>),
}

/// Returns all keys, each table in the order in which its reader explains them.
pub fn keys() -> Vec<Key> {
    Config::recorded().keys()
}

/// Returns the key of a setting in use, such as `upstreams.a.timeout`, or the table that it is in.
pub fn of_setting(setting: &str) -> Option<&'static Key> {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(keys);
    let parts: Vec<_> = setting.split('.').filter(|part| !is_number(part)).collect();
    let shorter = (1..=parts.len()).rev().map(|length| &parts[..length]);
    shorter.filter_map(|parts| KEYS.iter().find(|key| key.is_at(parts))).next()
}

/// Finds a key, a table or the keys with a prefix. Names and numbers of tables may be given as in a
/// file, as `NAME`, or left out.
pub fn find(query: &str) -> FoundKeys {
    let keys = keys();
    let wanted: Vec<_> = query.split('.').filter(|part| !is_number(part)).collect();
    let has_path = |key: &&Key| key.parts().eq(wanted.iter().copied());
    let found = keys.iter().find(has_path).or_else(|| keys.iter().find(|key| key.is_at(&wanted)));
    if let Some(key) = found {
        let inner = keys.iter().filter(|inner| key.holds(inner)).cloned().collect();
        return FoundKeys::Key(Box::new(key.clone()), inner);
    }
    let begins = |key: &&Key| key.path().starts_with(query) || key.is_in(&wanted);
    let beginning: Vec<_> = keys.iter().filter(begins).cloned().collect();
    if !query.is_empty() && !beginning.is_empty() {
        return FoundKeys::Beginning(beginning);
    }
    FoundKeys::Similar(similar(query, &keys))
}

/// Most keys that are suggested for a nonexistent key.
const SUGGESTIONS: usize = 3;

/// Returns the paths of keys that a person may have meant.
fn similar(query: &str, keys: &[Key]) -> Vec<String> {
    let name = query.rsplit('.').next().unwrap_or(query);
    let is_misspelt = |key: &&Key| is_typing_error(&key.name, name);
    let mut paths: Vec<_> = keys.iter().filter(|key| key.name == name).map(Key::path).collect();
    if paths.is_empty() {
        paths = keys.iter().filter(is_misspelt).map(Key::path).collect();
    }
    if !paths.is_empty() {
        let mut near: Vec<_> = nearest(query, paths.iter().map(String::as_str));
        near.extend(paths.iter().map(String::as_str));
        let mut seen = std::collections::HashSet::new();
        near.retain(|path| seen.insert(*path));
        return near.into_iter().take(SUGGESTIONS).map(str::to_owned).collect();
    }
    let paths: Vec<_> = keys.iter().map(Key::path).collect();
    nearest(query, paths.iter().map(String::as_str)).into_iter().map(str::to_owned).collect()
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_a_key_elsewhere_means_no_other_name() {
        assert!(matches!(find("rate"), FoundKeys::Similar(found) if found == ["limits.rate"]));
    }

    #[test]
    fn a_setting_in_use_has_the_key_of_the_reference() {
        for (setting, path) in [
            ("server.name", "server.name"),
            ("upstreams.far.headers.X-Key.value", "upstreams.NAME.headers"),
            ("auth.api_keys.1.id", "auth.api_keys.id"),
            ("admin.token.value", "admin.token"),
        ] {
            assert_eq!(of_setting(setting).map(Key::path).as_deref(), Some(path), "{setting}");
        }
        assert!(of_setting("").is_none() && of_setting("no.such").is_none());
    }
}
