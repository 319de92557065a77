//! The secrets in requests to an upstream. Callers must not find them in the upstream's messages.

use std::borrow::Cow;
use std::sync::Arc;

use super::call::call_secrets::SecretSource;
use super::connection::connect::Connector;
use domain::fault::UpstreamFaultKind as Kind;
use domain::redaction::{Secrets, without_secrets};

/// The secrets of one upstream: the configured secrets, and the last tokens.
pub struct UpstreamSecrets {
    configured: Secrets,
    /// The source of the access tokens, if the upstream is called with tokens.
    connector: Option<Arc<Connector>>,
}

/// Shortest secret to search for, in bytes. A shorter secret would match ordinary words, and
/// protects nothing.
const MIN_SECRET: usize = 6;

impl UpstreamSecrets {
    pub(crate) fn new(
        upstream: &config::UpstreamSettings,
        connector: Option<Arc<Connector>>,
    ) -> Self {
        let configured = upstream.secrets();
        let configured = configured.iter().filter(|secret| secret.len() >= MIN_SECRET);
        Self { configured: Secrets::new(configured.map(String::as_str)), connector }
    }

    /// Removes the secrets from the texts of a fault; see [`without_secrets`].
    pub(crate) fn remove_from(&self, kind: Kind) -> Kind {
        without_secrets(kind, &self.secrets())
    }

    /// Whether a text contains one of the secrets.
    pub(crate) fn are_in(&self, text: &str) -> bool {
        self.secrets().is_in(text)
    }
}

impl SecretSource for UpstreamSecrets {
    fn secrets(&self) -> Cow<'_, Secrets> {
        let tokens = self.connector.as_ref().map(|connector| connector.last_tokens());
        let mut secrets = Cow::Borrowed(&self.configured);
        for token in tokens.iter().flatten().flatten().filter_map(|value| value.to_str().ok()) {
            let token = token.split_once(' ').map_or(token, |(_scheme, token)| token);
            if token.len() >= MIN_SECRET {
                secrets.to_mut().add(token);
            }
        }
        secrets
    }
}
