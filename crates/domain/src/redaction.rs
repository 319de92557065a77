//! Removal of secrets from texts that others have written: an upstream may repeat the credential
//! that it was called with, as error messages for developers do.

use std::borrow::Cow;
use std::sync::Arc;

use super::fault::{ChildReport, UpstreamFaultKind as Kind, excerpt};
use super::json::Json;

/// Takes the place of a secret.
const REDACTED: &str = "[redacted]";

/// Nesting within which `error.data` is searched; deeper data is dropped.
const MAX_DEPTH: usize = 64;

/// Returns a fault without the secrets in its texts, and with the message of an upstream's error
/// truncated. `error.data` with a secret in it is left out.
pub fn without_secrets(kind: Kind, mut secrets: Vec<&str>) -> Kind {
    secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    let clean_report = |report: &ChildReport| {
        let lines = report.stderr.iter().map(|line| redact(line, &secrets).into_owned());
        Arc::new(ChildReport { stderr: lines.collect(), ..report.clone() })
    };
    let clean = |text: String| redact(&text, &secrets).into_owned();
    match kind {
        Kind::Error { code, message, data } => {
            let data = data.filter(|data| {
                let json = Json::parse(data.as_bytes(), MAX_DEPTH);
                json.is_ok_and(|json| !has_secret(json, &secrets))
            });
            Kind::Error { code, message: excerpt(&clean(message)), data }
        }
        // Without its pages it is an error like any other.
        Kind::UrlElicitationRequired { message, data } => {
            let json = Json::parse(data.as_bytes(), MAX_DEPTH);
            if json.is_ok_and(|json| !has_secret(json, &secrets)) {
                Kind::UrlElicitationRequired { message: clean(message), data }
            } else {
                Kind::Error { code: -32042, message: excerpt(&clean(message)), data: None }
            }
        }
        Kind::Unavailable(detail) => Kind::Unavailable(clean(detail)),
        Kind::Reset(detail) => Kind::Reset(clean(detail)),
        Kind::NoToken { fault, detail } => Kind::NoToken { fault, detail: clean(detail) },
        Kind::Protocol(detail) => Kind::Protocol(clean(detail)),
        Kind::PaginationLimit(detail) => Kind::PaginationLimit(clean(detail)),
        Kind::Internal(detail) => Kind::Internal(clean(detail)),
        Kind::ChildExited(report) => Kind::ChildExited(clean_report(&report)),
        Kind::ChildSilent { startup, report } => {
            Kind::ChildSilent { startup, report: clean_report(&report) }
        }
        other => other,
    }
}

/// Whether a string in the value, or the name of a member, has a secret in it.
fn has_secret(value: Json<'_>, secrets: &[&str]) -> bool {
    value.as_str().is_some_and(|text| holds_secret(&text, secrets))
        || value
            .members()
            .any(|(name, value)| has_secret(name, secrets) || has_secret(value, secrets))
        || value.elements().any(|value| has_secret(value, secrets))
}

/// Returns a text without the secrets in it. Of two secrets the longer one comes first, so that no
/// rest of it stays. A part of a secret is not looked for: a caller whose arguments come back could
/// guess it byte by byte.
pub(crate) fn redact<'a>(text: &'a str, secrets: &[&str]) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(text);
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
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
        let secrets = ["s3cret-token", "pg_other"];
        for (text, expected) in [
            ("bad key: Bearer s3cret-token", "bad key: Bearer [redacted]"),
            ("s3cret-tokens3cret-token pg_other", "[redacted][redacted] [redacted]"),
            ("a part s3cret-tok", "a part s3cret-tok"),
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
