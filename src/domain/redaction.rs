//! Removal of secrets from texts that others have written: an upstream may repeat the credential that it was called
//! with, as error messages for developers do.

use std::borrow::Cow;

/// Takes the place of a secret.
const REDACTED: &str = "[redacted]";

/// Shortest secret that is looked for, in bytes. A shorter one would be found in ordinary words, and protects
/// nothing.
const MIN_SECRET: usize = 6;

/// Returns a text without the secrets in it. Of two secrets the longer one comes first, so that no rest of it stays.
/// A part of a secret is not looked for: a caller whose arguments come back could guess it byte by byte.
pub(crate) fn redact<'a>(text: &'a str, secrets: &[&str]) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(text);
    for secret in secrets.iter().filter(|secret| secret.len() >= MIN_SECRET) {
        if text.contains(secret) {
            text = Cow::Owned(text.replace(secret, REDACTED));
        }
    }
    text
}

/// Whether a text has one of the secrets in it.
pub(crate) fn holds_secret(text: &str, secrets: &[&str]) -> bool {
    matches!(redact(text, secrets), Cow::Owned(_))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn f10_secrets_are_removed_wherever_they_stand() {
        let secrets = ["s3cret-token", "pg_other", "abc"];
        for (text, expected) in [
            ("bad key: Bearer s3cret-token", "bad key: Bearer [redacted]"),
            ("s3cret-tokens3cret-token pg_other", "[redacted][redacted] [redacted]"),
            ("a part s3cret-tok", "a part s3cret-tok"),
            ("abc is too short", "abc is too short"),
            ("the secret is safe", "the secret is safe"),
        ] {
            assert_eq!(redact(text, &secrets), expected);
            assert_eq!(holds_secret(text, &secrets), text != expected);
        }
    }

    proptest! {
        #[test]
        fn no_text_holds_a_secret_afterwards(
            before in ".{0,20}", secret in "[a-zé]{6,12}", after in ".{0,20}",
        ) {
            let secrets = [secret.as_str()];
            let text = format!("{before}{secret}{after}{secret}");
            prop_assert!(!redact(&text, &secrets).contains(&secret));
            prop_assert!(holds_secret(&text, &secrets));
        }
    }
}
