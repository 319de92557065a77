//! Removal of secrets from texts that others have written: an upstream may repeat the credential that it was called
//! with, as error messages for developers do.

use std::borrow::Cow;

/// Takes the place of a secret.
const REDACTED: &str = "[redacted]";

/// Shortest secret that is looked for, in bytes. A shorter one would be found in ordinary words, and protects
/// nothing.
const MIN_SECRET: usize = 6;

/// Shortest beginning of a secret that is removed from the end of a text that was truncated, in bytes.
const MIN_BEGINNING: usize = 4;

/// Returns a text without the secrets in it. Where the text ends with the beginning of a secret, as a text does that
/// was truncated, that is removed, too.
pub(crate) fn redact<'a>(text: &'a str, secrets: &[&str]) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(text);
    for secret in secrets.iter().filter(|secret| secret.len() >= MIN_SECRET) {
        if text.contains(secret) {
            text = Cow::Owned(text.replace(secret, REDACTED));
        }
        if let Some(length) = beginning_at_end(&text, secret) {
            let kept = &text[..text.len() - length];
            text = Cow::Owned(format!("{kept}{REDACTED}"));
        }
    }
    text
}

/// Whether a text has one of the secrets in it.
pub(crate) fn holds_secret(text: &str, secrets: &[&str]) -> bool {
    matches!(redact(text, secrets), Cow::Owned(_))
}

/// Returns the length of the longest beginning of `secret` with which `text` ends, in bytes.
fn beginning_at_end(text: &str, secret: &str) -> Option<usize> {
    let longest = text.len().min(secret.len() - 1);
    (MIN_BEGINNING..=longest)
        .rev()
        .find(|length| secret.is_char_boundary(*length) && text.ends_with(&secret[..*length]))
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
            ("truncated s3cret-tok", "truncated [redacted]"),
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
            before in ".{0,20}", secret in "[a-zé]{6,12}", after in ".{0,20}", cut in any::<prop::sample::Index>(),
        ) {
            let text = format!("{before}{secret}{after}");
            let mut end = cut.index(text.len() + 1);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            let secrets = [secret.as_str()];
            prop_assert!(!redact(&text, &secrets).contains(&secret));
            let cut = redact(&text[..end], &secrets).into_owned();
            prop_assert!(beginning_at_end(&cut, &secret).is_none(), "{}", cut);
        }
    }
}
