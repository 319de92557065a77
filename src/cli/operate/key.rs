//! `promptgate key new`: generates an API key and its entry for the configuration file.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::print;
use base::seal::{random, sha256_text};
use config::Config;

/// The id of an entry whose caller is not named.
const PLACEHOLDER: &str = "id-of-the-caller";

/// Prints a new key on standard error, and its entry on standard output, which may be appended to
/// the file. The key is not stored: the configuration holds the hash only.
///
/// # Errors
/// With exit code 64 if the id or a group cannot stand in a configuration.
pub(crate) fn new(id: Option<&str>, groups: &[String]) -> Result<(), Failure> {
    let key = format!("pg_{}", BASE64_URL_SAFE_NO_PAD.encode(random::<32>()));
    let entry = entry(id.unwrap_or(PLACEHOLDER), groups, &sha256_text(key.as_bytes()))?;
    eprintln!(
        "API key, for the caller. It is not shown again. Send it as Authorization: Bearer KEY\n  {key}\n\n\
         Entry for gateway.toml, with the hash of the key:\n"
    );
    print(entry.trim_end())
}

/// Returns the entry as the end of a file.
fn entry(id: &str, groups: &[String], hash: &str) -> Result<String, Failure> {
    let mut caller = Table::new();
    caller["id"] = value(id);
    caller["hash"] = value(hash);
    caller["groups"] = value(groups.iter().collect::<Array>());
    let mut callers = ArrayOfTables::new();
    callers.push(caller);
    let mut auth = Table::new();
    auth.set_implicit(true);
    auth["api_keys"] = Item::ArrayOfTables(callers);
    let mut document = DocumentMut::new();
    document["auth"] = Item::Table(auth);
    let entry = document.to_string();
    let valid = Config::parse("the entry", &entry, std::path::Path::new("."), &[]);
    valid.map(|_| entry).map_err(|error| Failure::usage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_can_be_pasted() {
        let hash = format!("sha256:{}", "0".repeat(64));
        let groups = ["engineering".to_owned(), "on \"call\"".to_owned()];
        let entry = entry("ada", &groups, &hash).unwrap();
        assert!(entry.starts_with("[[auth.api_keys]]\nid = \"ada\"\n"), "{entry}");
        let config = Config::parse("g", &entry, std::path::Path::new("."), &[]).unwrap();
        assert_eq!(config.auth.api_keys[0].caller.groups, groups);
        assert!(super::entry("a\nb", &[], &hash).is_err());
    }
}
