//! Signatures of webhooks, as MLflow, Langfuse and git servers make them. Pure: the clock is an
//! argument.

use base64::prelude::{BASE64_STANDARD, Engine};
use http::HeaderMap;

use base::seal::hex;
use base::seal::provider::hmac;
use config::{Secret, StoreKind, Transport};
use domain::time::unix_time::UnixSeconds;

/// The secret of one upstream, with the rules by which it signs.
pub struct HookKey {
    scheme: Scheme,
    key: hmac::Key,
    /// The HMAC of the secret under `key`, so that a sent secret is compared in constant time.
    secret: hmac::Tag,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Scheme {
    /// `X-MLflow-Signature: v1,BASE64` of id, time and body, with full stops between them.
    Mlflow,
    /// `x-langfuse-signature: t=TIME,v1=HEX` of time and body.
    Langfuse,
    /// `X-Hub-Signature-256: sha256=HEX` of the body (GitHub, Gitea, Forgejo), the same in
    /// `X-Hub-Signature` (Bitbucket), or the secret itself in `X-Gitlab-Token` (GitLab).
    Git,
}

/// The signature that a request has, and the text that is signed before its body.
#[derive(Debug, Default, Eq, PartialEq)]
struct Claim {
    before_body: String,
    signature: Vec<u8>,
}

const GITLAB_TOKEN: &str = "x-gitlab-token";

/// Largest difference between the time of a signature and the clock, in seconds: a request that is
/// sent again later has no effect. git servers sign no time.
const TOLERANCE: u64 = 300;

impl HookKey {
    /// `None` for a transport that takes no webhooks.
    pub(super) fn new(transport: &Transport, secret: &Secret) -> Option<Self> {
        let scheme = match transport {
            Transport::Git(_) => Scheme::Git,
            Transport::Store(store) => match store.kind {
                StoreKind::Mlflow => Scheme::Mlflow,
                StoreKind::Langfuse => Scheme::Langfuse,
                StoreKind::Phoenix => return None,
            },
            Transport::Http(_)
            | Transport::Sse(_)
            | Transport::Stdio(_)
            | Transport::Library(_) => return None,
        };
        Some(Self::of(scheme, secret.expose().as_bytes()))
    }

    /// A key of each scheme with one secret. For fuzzing.
    pub fn of_each_scheme(secret: &[u8]) -> [Self; 3] {
        [Scheme::Mlflow, Scheme::Langfuse, Scheme::Git].map(|scheme| Self::of(scheme, secret))
    }

    /// A random key, which signs no request.
    pub(super) fn random() -> Self {
        Self::of(Scheme::Git, &base::seal::random::<32>())
    }

    fn of(scheme: Scheme, secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let secret = hmac::sign(&key, secret);
        Self { scheme, key, secret }
    }

    /// Whether a request has a secret in it instead of a signature (GitLab).
    pub fn is_sent_itself(&self, headers: &HeaderMap) -> bool {
        self.scheme == Scheme::Git && headers.contains_key(GITLAB_TOKEN)
    }

    /// Whether this key signed a request. The check of an unsigned request takes as long.
    pub fn has_signed(&self, headers: &HeaderMap, body: &[u8], now: UnixSeconds) -> bool {
        let Claim { before_body, signature } = self.scheme.claim(headers, now).unwrap_or_default();
        let signed = [before_body.as_bytes(), body].concat();
        let sent = text(headers, GITLAB_TOKEN).filter(|_| self.scheme == Scheme::Git);
        let sent = sent.unwrap_or_default().as_bytes();
        let is_secret = hmac::verify(&self.key, sent, self.secret.as_ref()).is_ok();
        hmac::verify(&self.key, &signed, &signature).is_ok() || is_secret
    }
}

impl Scheme {
    /// Reads the signature of a request; `None` without a signature, or if its time is not current.
    fn claim(self, headers: &HeaderMap, now: UnixSeconds) -> Option<Claim> {
        match self {
            Self::Mlflow => {
                let id = text(headers, "x-mlflow-delivery-id")?;
                let at = text(headers, "x-mlflow-timestamp")?;
                let signature = text(headers, "x-mlflow-signature")?.strip_prefix("v1,")?;
                let signature = BASE64_STANDARD.decode(signature).ok()?;
                is_recent(at, now).then(|| Claim { before_body: format!("{id}.{at}."), signature })
            }
            Self::Langfuse => {
                let parts = || text(headers, "x-langfuse-signature").into_iter();
                let parts = || parts().flat_map(|all| all.split(','));
                let part = |name: &str| {
                    parts().find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='))
                };
                let at = part("t")?;
                let signature = hex_bytes(part("v1")?)?;
                is_recent(at, now).then(|| Claim { before_body: format!("{at}."), signature })
            }
            Self::Git => {
                let names = ["x-hub-signature-256", "x-hub-signature"];
                let found = names.into_iter().filter_map(|name| text(headers, name));
                let mut found = found.filter_map(|text| text.strip_prefix("sha256="));
                let signature = hex_bytes(found.next()?)?;
                Some(Claim { before_body: String::new(), signature })
            }
        }
    }
}

/// Returns the value of a header that is there once.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let only = values.next().filter(|_| values.next().is_none());
    only?.to_str().ok()
}

fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    hex::from_hex::<32>(text).map(Vec::from)
}

fn is_recent(at: &str, now: UnixSeconds) -> bool {
    at.parse::<u64>().is_ok_and(|at| at.abs_diff(now.0) <= TOLERANCE)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_795_710_400);

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        pairs.collect()
    }

    fn signed_by(
        scheme: Scheme,
        pairs: &[(&'static str, &str)],
        body: &str,
        now: UnixSeconds,
    ) -> bool {
        HookKey::of(scheme, b"lab-secret").has_signed(&headers(pairs), body.as_bytes(), now)
    }

    #[test]
    fn a_delivery_of_mlflow_is_known_by_its_signature_and_its_time() {
        let body = r#"{"entity": "prompt_alias"}"#;
        let (id, at) = ("f43efadd-ee82-475f-88ef-6c49b46d46c9", NOW.0.to_string());
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"lab-secret");
        let tag = hmac::sign(&key, format!("{id}.{at}.{body}").as_bytes());
        let signature = format!("v1,{}", BASE64_STANDARD.encode(tag.as_ref()));
        let good = [
            ("x-mlflow-delivery-id", id),
            ("x-mlflow-timestamp", at.as_str()),
            ("x-mlflow-signature", signature.as_str()),
        ];
        let is_known = |pairs: &[_], body, now| signed_by(Scheme::Mlflow, pairs, body, now);
        assert!(is_known(&good, body, NOW));
        for later in [0, 300] {
            assert!(is_known(&good, body, UnixSeconds(NOW.0 + later)));
            assert!(is_known(&good, body, UnixSeconds(NOW.0 - later)));
        }
        assert!(!is_known(&good, body, UnixSeconds(NOW.0 + 301)), "too late");
        assert!(!is_known(&good, body, UnixSeconds(NOW.0 - 301)), "too early");
        assert!(!is_known(&good, "{}", NOW), "another body");
        for missing in 0..3 {
            let mut some = good.to_vec();
            some.remove(missing);
            assert!(!is_known(&some, body, NOW), "without {}", good[missing].0);
        }
        for wrong in ["", "v1,", "v1,AAAA", "v2,AAAA", "not base64"] {
            let mut pairs = good;
            pairs[2].1 = wrong;
            assert!(!is_known(&pairs, body, NOW), "{wrong}");
        }
        let mut another_id = good;
        another_id[0].1 = "f43efadd";
        assert!(!is_known(&another_id, body, NOW));
        let twice = [&good[..], &good[2..]].concat();
        let mut both = HeaderMap::new();
        for (name, value) in twice {
            both.append(name, HeaderValue::from_str(value).unwrap());
        }
        let key = HookKey::of(Scheme::Mlflow, b"lab-secret");
        assert!(!key.has_signed(&both, body.as_bytes(), NOW), "two signatures");
    }

    #[test]
    fn a_delivery_of_langfuse_is_known_by_its_signature_and_its_time() {
        let (body, at) = (r#"{"type":"prompt-version"}"#, NOW.0);
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"lab-secret");
        let tag = hex::hex(hmac::sign(&key, format!("{at}.{body}").as_bytes()).as_ref());
        let is_known = |value: &str, body, now| {
            signed_by(Scheme::Langfuse, &[("x-langfuse-signature", value)], body, now)
        };
        let good = format!("t={at},v1={tag}");
        assert!(is_known(&good, body, NOW));
        assert!(is_known(&format!("v1={tag}, t={at}"), body, NOW), "in another order");
        assert!(!is_known(&good, body, UnixSeconds(at + 301)));
        assert!(!is_known(&good, "{}", NOW));
        assert!(!is_known(&format!("t={},v1={tag}", at + 1), body, NOW));
        for wrong in ["", "t=,v1=", "t=1", &tag, &format!("t={at},v0={tag}")] {
            assert!(!is_known(wrong, body, NOW), "{wrong}");
        }
    }

    #[test]
    fn a_push_is_known_by_the_signature_of_its_body_or_by_the_secret_itself() {
        // The example in the documentation of GitHub.
        let key = HookKey::of(Scheme::Git, b"It's a Secret to Everybody");
        let tag = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let good = format!("sha256={tag}");
        let is_known =
            |pairs: &[_], body: &str| key.has_signed(&headers(pairs), body.as_bytes(), NOW);
        assert!(is_known(&[("x-hub-signature-256", &good)], "Hello, World!"));
        assert!(is_known(&[("x-hub-signature", &good)], "Hello, World!"), "Bitbucket");
        let old = [("x-hub-signature", "sha1=0"), ("x-hub-signature-256", &good)];
        assert!(is_known(&old, "Hello, World!"), "beside an older signature");
        assert!(!is_known(&[("x-hub-signature-256", &good)], "Hello, World"));
        assert!(!is_known(&[("x-hub-signature-256", tag)], "Hello, World!"), "no algorithm");
        assert!(is_known(&[("x-gitlab-token", "It's a Secret to Everybody")], "{}"));
        for wrong in ["", "It's a Secret to Everybod", "it's a secret to everybody"] {
            assert!(!is_known(&[("x-gitlab-token", wrong)], "{}"), "{wrong}");
        }
        assert!(!is_known(&[], "Hello, World!"));
        let token = [("x-gitlab-token", "lab-secret")];
        assert!(!signed_by(Scheme::Mlflow, &token, "{}", NOW), "of git only");
        assert!(!HookKey::random().has_signed(&headers(&[("x-gitlab-token", "")]), b"", NOW));
    }
}
