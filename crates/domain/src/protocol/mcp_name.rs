//! The encoding of the `Mcp-Name` header: the name itself where a header can hold it, otherwise
//! `=?base64?…?=` (MCP 2026-07-28, Streamable HTTP, standard headers).

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

const PREFIX: &str = "=?base64?";
const SUFFIX: &str = "?=";

/// Returns the header value for a name. A name is encoded if it has characters other than visible
/// ASCII and inner spaces, or if it looks like an encoded name.
pub fn encode(name: &str) -> Cow<'_, str> {
    let is_plain = name.bytes().all(|b| (b' '..=b'~').contains(&b))
        && name.trim() == name
        && !name.starts_with(PREFIX);
    if is_plain {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("{PREFIX}{}{SUFFIX}", BASE64_STANDARD.encode(name)))
}

/// Returns the name in a header value; `None` if the encoding is malformed. A value with only the
/// beginning or only the end of an encoded name is literal.
pub fn decode(value: &str) -> Option<Cow<'_, str>> {
    let value = value.trim_matches([' ', '\t']);
    let encoded = value.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    let Some(encoded) = encoded else { return Some(Cow::Borrowed(value)) };
    let bytes = BASE64_STANDARD.decode(encoded).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn w8_encoded_names_are_decoded_once() {
        assert_eq!(decode(" greet\t").as_deref(), Some("greet"));
        assert_eq!(decode("=?base64?bmFtw6k=?=").as_deref(), Some("namé"));
        assert_eq!(decode("=?base64?bmFtw6k?="), None);
        for literal in ["=?base64?bmFtw6k=", "bmFtw6k=?=", "=?base64?="] {
            assert_eq!(decode(literal).as_deref(), Some(literal));
        }
        assert_eq!(decode("=?base64?/w==?="), None);
        // A name that looks encoded is encoded again, and decoded only once.
        let tricky = "=?base64?YQ==?=";
        assert_eq!(decode(&encode(tricky)).as_deref(), Some(tricky));
    }

    proptest! {
        #[test]
        fn every_encoded_name_decodes_to_the_same_name(name in "\\PC{0,40}") {
            let header = encode(&name).into_owned();
            prop_assert!(header.is_ascii());
            let decoded = decode(&header);
            prop_assert_eq!(decoded.as_deref(), Some(name.as_str()));
        }
    }
}
