//! `promptgate key new`: generates an API key and its entry for the configuration file.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::failure::Failure;
use super::output::print;
use base::seal::{random, sha256_text};

/// Prints a new key and its hash. The key is not stored: the configuration holds the hash only.
pub(super) fn new() -> Result<(), Failure> {
    let key = format!("pg_{}", BASE64_URL_SAFE_NO_PAD.encode(random::<32>()));
    let hash = sha256_text(key.as_bytes());
    print(&format!(
        "API key, for the caller. It is not shown again. Send it as Authorization: Bearer KEY\n  {key}\n\n\
         Entry for gateway.toml, with the hash of the key\n  [[auth.api_keys]]\n  id = \"id-of-the-caller\"\n  \
         hash = \"{hash}\"\n  groups = []"
    ))
}
