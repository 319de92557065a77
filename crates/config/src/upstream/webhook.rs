//! Receivers of signed messages: `[approvals.notify]`, which reports prompts that wait, and hooks
//! of guards. Also the secret of incoming webhooks.

use http::Uri;

use crate::auth::jwt::{URL_RULE, url};
use crate::net::Proxies;
use crate::reader::Section;
use crate::reader::secret::Secret;
use crate::telemetry::TelemetrySettings;
use base::seal::WebhookKey;

/// A receiver of signed messages.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Webhook {
    /// A URL that [`Webhook::uri`] accepts. The paths of some receivers are credentials.
    pub url: Secret,
    pub key: WebhookKey,
    /// The name of this gateway, for the receiver: `telemetry.service_name`.
    pub gateway: String,
    pub proxies: Proxies,
}

impl Webhook {
    /// Returns the URL; `None` if it is not acceptable.
    pub fn uri(&self) -> Option<Uri> {
        url(self.url.expose())
    }
}

/// The keys of a receiver.
const KEYS: &str = r#"
url: URL (`https`, or `http` on loopback), or a secret that holds it.
secret: Key of the signatures: `whsec_` and 24 to 64 bytes in base64.
"#;

const KEY_RULE: &str =
    "whsec_ and 24 to 64 bytes in base64; create one with `printf whsec_; openssl rand -base64 32`";

/// Returns `None` without the table.
pub(crate) fn read(section: &mut Section<'_>, telemetry: &TelemetrySettings) -> Option<Webhook> {
    if !section.has("notify") {
        return None;
    }
    let mut section = section.section("notify");
    let receiver = receiver(&mut section, telemetry);
    section.finish();
    receiver
}

/// Reads the keys of a receiver. Returns `None` for a receiver with a mistake.
pub(crate) fn receiver(
    section: &mut Section<'_>,
    telemetry: &TelemetrySettings,
) -> Option<Webhook> {
    section.explain(KEYS);
    let address = section.text_or_secret("url");
    let secret = section.secret("secret");
    for (key, is_set, rule) in
        [("url", address.is_some(), URL_RULE), ("secret", secret.is_some(), KEY_RULE)]
    {
        if !is_set && !section.is_rejected(key) {
            section.mistake(key, format!("is required: {rule}"));
        }
    }
    if address.as_ref().is_some_and(|address| url(address.expose()).is_none()) {
        section.mistake("url", format!("must be {URL_RULE}"));
    }
    let key = secret.as_ref().and_then(|secret| WebhookKey::parse(secret.expose()));
    if secret.is_some() && key.is_none() {
        section.mistake("secret", format!("must be {KEY_RULE}"));
    }
    let TelemetrySettings { service_name: gateway, proxies, .. } = telemetry;
    Some(Webhook { url: address?, key: key?, gateway: gateway.clone(), proxies: proxies.clone() })
}

/// Least length of a secret, in bytes: in some stores people choose the secret.
const LEAST_SECRET: usize = 8;

/// Reads `webhook_secret` of an upstream.
pub(crate) fn incoming(section: &mut Section<'_>) -> Option<Secret> {
    let secret = section.secret("webhook_secret")?;
    if secret.expose().len() < LEAST_SECRET {
        let rule = "must have at least 8 characters; create one with `openssl rand -hex 32`";
        section.mistake("webhook_secret", rule);
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::schema_check;

    const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn read(toml: &str) -> Result<crate::Config, String> {
        let toml = format!("[telemetry]\nservice_name = \"house\"\n[approvals.notify]\n{toml}");
        let env = [("HOOK".to_owned(), "https://hooks.example/T0/p4th".to_owned())];
        schema_check::parse("g", &toml, Path::new(""), &env).map_err(|error| error.to_string())
    }

    #[test]
    fn a_webhook_has_a_url_that_may_be_a_secret_and_a_key() {
        let toml = format!("url = {{ env = \"HOOK\" }}\nsecret = {{ value = \"{KEY}\" }}\n");
        let config = read(&toml).unwrap();
        let shown = format!("{config:?}");
        assert!(!shown.contains("p4th") && !shown.contains("MfKQ9r8GKYqrTwjU"), "{shown}");
        let webhook = config.approvals.notify.unwrap();
        assert_eq!(webhook.uri().unwrap().host(), Some("hooks.example"));
        assert_eq!(webhook.gateway, "house");
        let none = schema_check::parse("g", "[approvals]\n", Path::new(""), &[]).unwrap();
        assert_eq!(none.approvals.notify, None);
    }

    #[test]
    fn k5_what_is_missing_or_cannot_be_used_is_a_mistake_without_the_key() {
        let error = read("").unwrap_err();
        assert!(error.contains("approvals.notify.url: is required: a URL with https"), "{error}");
        assert!(error.contains("approvals.notify.secret: is required: whsec_"), "{error}");
        let key = format!("secret = {{ value = \"{KEY}\" }}\n");
        for url in ["http://hooks.example/", "ftp://127.0.0.1/", "https://u:p@hooks.example/", ""] {
            let error = read(&format!("url = \"{url}\"\n{key}")).unwrap_err();
            assert!(error.contains("approvals.notify.url: must be a URL with https"), "{error}");
        }
        let url = "url = \"http://127.0.0.1:9/\"\n";
        let error = read(&format!("{url}secret = {{ value = \"hunter2\" }}\n")).unwrap_err();
        assert!(error.contains("approvals.notify.secret: must be whsec_ and 24"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        let error = read(&format!("{url}secret = {{ env = \"UNSET\" }}\n")).unwrap_err();
        assert!(error.contains("UNSET is not set") && !error.contains("required"), "{error}");
        assert!(read(&format!("{url}{key}events = []\n")).is_err(), "an unknown key");
    }

    #[test]
    fn k5_the_secret_of_webhooks_is_for_upstreams_that_send_some_and_is_not_shown() {
        let read = |transport: &str, secret: &str| {
            let toml = format!(
                "[upstreams.a]\ntransport = \"{transport}\"\nurl = \"https://a.example/p\"\n\
                 webhook_secret = {{ value = \"{secret}\" }}\n"
            );
            let read = crate::Config::parse("g", &toml, Path::new(""), &[]);
            read.map_err(|error| error.to_string())
        };
        for transport in ["mlflow", "langfuse", "git"] {
            let upstream = read(transport, "tops3cret").unwrap().upstreams.remove(0);
            assert!(upstream.webhook_secret().is_some(), "{transport}");
            assert_eq!(upstream.secrets(), ["tops3cret"], "{transport}");
            assert!(!format!("{upstream:?}").contains("tops3cret"));
            let error = read(transport, "short").unwrap_err();
            assert!(error.contains("at least 8 characters") && !error.contains("short"), "{error}");
        }
        let error = read("phoenix", "tops3cret").unwrap_err();
        assert!(error.contains("Phoenix, which sends no webhooks"), "{error}");
        assert!(read("http", "tops3cret").is_err());
    }
}
