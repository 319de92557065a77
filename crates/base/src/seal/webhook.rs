//! Signatures of webhooks, as the Standard Webhooks specification (1.0) makes them.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::provider::hmac;
use domain::time::unix_time::UnixSeconds;

/// The key that signs webhooks. `Debug` redacts it.
#[derive(Clone, Eq, PartialEq)]
pub struct WebhookKey(Vec<u8>);

/// The beginning of a key as text; receivers and their libraries accept keys without it, too.
const PREFIX: &str = "whsec_";

/// Lengths of keys in bytes, as the specification demands.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

impl WebhookKey {
    /// Reads a key: `whsec_` and 24 to 64 bytes in base64; `None` for other texts.
    pub fn parse(text: &str) -> Option<Self> {
        let encoded = text.strip_prefix(PREFIX).unwrap_or(text);
        let key = BASE64_STANDARD.decode(encoded).ok()?;
        LENGTHS.contains(&key.len()).then_some(Self(key))
    }

    /// Returns the header `webhook-signature` of a message: HMAC-SHA256 of its id, the time of the
    /// attempt and the body, in base64. `id` has no full stop.
    pub fn sign(&self, id: &str, at: UnixSeconds, body: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let tag = hmac::sign(&key, format!("{id}.{}.{body}", at.0).as_bytes());
        format!("v1,{}", BASE64_STANDARD.encode(tag.as_ref()))
    }
}

impl fmt::Debug for WebhookKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookKey(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_libraries_of_receivers() {
        // The example of the libraries of svix, from which the specification was made.
        let key = WebhookKey::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let at = UnixSeconds(1_614_265_330);
        let signature = key.sign(id, at, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(Some(&key), WebhookKey::parse("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").as_ref());
        assert_eq!(format!("{key:?}"), "WebhookKey(redacted)");
    }

    #[test]
    fn k5_a_key_that_is_too_short_too_long_or_no_base64_is_refused() {
        let of = |length: usize| format!("whsec_{}", BASE64_STANDARD.encode(vec![7; length]));
        for (text, is_key) in [
            (of(23), false),
            (of(24), true),
            (of(64), true),
            (of(65), false),
            ("whsec_".to_owned(), false),
            ("correct horse battery staple".to_owned(), false),
        ] {
            assert_eq!(WebhookKey::parse(&text).is_some(), is_key, "{text}");
        }
    }
}
