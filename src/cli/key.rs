//! `promptgate key new`: an API key, and what to write into the file for it.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::Failure;
use super::text::print;
use crate::seal::{digest_text, random, sha256};

/// Prints a new key and its hash. The key is shown this once: the gateway keeps only the hash.
pub(super) fn new() -> Result<(), Failure> {
    let key = format!("pg_{}", BASE64_URL_SAFE_NO_PAD.encode(random::<32>()));
    let hash = digest_text(&sha256(key.as_bytes()));
    print(&format!(
        "The key, which the caller keeps secret and sends as Authorization: Bearer KEY\n  {key}\n\n\
         For gateway.toml, which needs only its hash\n  [[auth.api_keys]]\n  id = \"name-of-the-caller\"\n  \
         hash = \"{hash}\"\n  groups = []"
    ))
}
