//! The secrets that an upstream is called with. Callers must not find them in its error texts.

use std::sync::Arc;

use super::connection::connect::Connector;
use domain::fault::UpstreamFaultKind as Kind;
use domain::redaction::without_secrets;

/// The secrets of one upstream: those of its configuration, and its last access tokens.
pub(crate) struct HeldSecrets {
    configured: Vec<String>,
    /// Has the access tokens, if there are any.
    connector: Option<Arc<Connector>>,
}

/// Shortest secret that is looked for, in bytes. A shorter one would be found in ordinary words,
/// and protects nothing.
const MIN_SECRET: usize = 6;

impl HeldSecrets {
    pub(crate) fn new(
        upstream: &config::UpstreamSettings,
        connector: Option<Arc<Connector>>,
    ) -> Self {
        Self { configured: upstream.secrets(), connector }
    }

    /// Removes the secrets from the texts of a fault; see [`without_secrets`].
    pub(crate) fn remove_from(&self, kind: Kind) -> Kind {
        let tokens = self.connector.as_ref().map(|connector| connector.last_tokens());
        let tokens = tokens.iter().flatten().flatten().filter_map(|value| value.to_str().ok());
        let tokens = tokens.map(|value| value.strip_prefix("Bearer ").unwrap_or(value));
        let secrets = self.configured.iter().map(String::as_str).chain(tokens);
        without_secrets(kind, secrets.filter(|secret| secret.len() >= MIN_SECRET).collect())
    }
}
