//! Names of the tools that represent one prompt each. Hosts accept letters, digits, `_` and `-`, at
//! most 64 of them; public names of prompts may be longer and have other characters.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::RESERVED;

/// Most characters of a tool's name.
const MAX_LENGTH: usize = 64;

/// Bytes of the digest in a derived name, written in hexadecimal.
const DIGEST_LENGTH: usize = 8;

/// Characters of a derived name before its digest, without the hyphen between them.
const READABLE: usize = MAX_LENGTH - 2 * DIGEST_LENGTH - 1;

/// Returns the name of the tool for a prompt: its public name if hosts accept it, else a derived
/// name of a readable part, a hyphen and 16 hexadecimal digits of `digest`, which must be a
/// cryptographic hash. A public name that has the form of a derived name, or is in [`RESERVED`], is
/// never used directly, so that two tools share a name only if their digests collide.
pub fn tool_name(public_name: &str, digest: impl FnOnce(&str) -> [u8; 32]) -> Cow<'_, str> {
    let is_reserved = RESERVED.contains(&public_name);
    if is_acceptable(public_name) && !is_derived(public_name) && !is_reserved {
        return Cow::Borrowed(public_name);
    }
    let mut name: String =
        public_name.chars().map(|c| if is_name_character(c) { c } else { '_' }).collect();
    name.truncate(READABLE);
    name.push('-');
    for byte in &digest(public_name)[..DIGEST_LENGTH] {
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    Cow::Owned(name)
}

/// Whether a tool's name has the form of a derived name, and therefore is not a public name.
pub fn is_derived(name: &str) -> bool {
    let digest = name.len().checked_sub(2 * DIGEST_LENGTH).and_then(|at| name.split_at_checked(at));
    digest.is_some_and(|(readable, digest)| {
        readable.ends_with('-') && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn is_acceptable(name: &str) -> bool {
    (1..=MAX_LENGTH).contains(&name.len()) && name.chars().all(is_name_character)
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// A hash that is good enough to distinguish the names of a test.
    fn digest(name: &str) -> [u8; 32] {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&hash.to_be_bytes());
        digest
    }

    fn name(public: &str) -> String {
        tool_name(public, digest).into_owned()
    }

    #[test]
    fn a_public_name_that_hosts_accept_is_the_name_of_its_tool() {
        for public in ["a", "library__review-code", &"x".repeat(64)] {
            assert_eq!(name(public), public);
        }
    }

    #[test]
    fn other_names_get_a_readable_part_and_a_digest() {
        let derived = name("docs__r\u{e9}sum\u{e9} v1.2");
        assert!(derived.starts_with("docs__r_sum__v1_2-") && derived.len() == 34, "{derived}");
        let long = name(&"x".repeat(65));
        assert_eq!(long.len(), 64);
        assert!(long.starts_with(&"x".repeat(47)) && is_derived(&long));
        for tool in RESERVED {
            assert!(is_derived(&name(tool)), "no prompt takes the place of {tool}");
        }
        // An upstream cannot choose the derived name of another prompt as the name of its own.
        let imitation = name(&derived);
        assert_ne!(imitation, derived);
        assert!(is_derived(&imitation));
    }

    proptest! {
        #[test]
        fn tool_names_are_acceptable_and_distinct(
            names in prop::collection::btree_set("[a-b\u{e9}. -]{1,4}|[a-z_]{60,70}|a-[0-9a-f]{16}", 1..50),
        ) {
            let mut seen = HashMap::new();
            for public in &names {
                let tool = name(public);
                prop_assert!(is_acceptable(&tool), "{}", tool);
                prop_assert_eq!(is_derived(&tool), tool != *public);
                prop_assert_eq!(seen.insert(tool, public), None);
            }
        }
    }
}
