//! The secrets that an upstream is called with, which its error texts must not tell to callers.

use std::sync::Arc;

use super::connection::connect::Connector;
use crate::config;
use crate::domain::fault::{ChildReport, UpstreamFaultKind as Kind, excerpt};
use crate::domain::json::Json;
use crate::domain::redaction::{holds_secret, redact};

/// The secrets of one upstream: those of its configuration, and its access token.
pub(crate) struct HeldSecrets {
    configured: Vec<String>,
    /// Has the access token, if there is one.
    connector: Option<Arc<Connector>>,
}

/// Nesting within which `error.data` is searched; deeper data is dropped.
const MAX_DEPTH: usize = 64;

impl HeldSecrets {
    pub(crate) fn new(upstream: &config::Upstream, connector: Option<Arc<Connector>>) -> Self {
        Self { configured: upstream.secrets(), connector }
    }

    /// Removes the secrets from the texts of a fault, and truncates the message of an upstream's error. `error.data`
    /// with a secret in it is left out.
    pub(crate) fn remove_from(&self, kind: Kind) -> Kind {
        let token = self.connector.as_ref().and_then(|connector| connector.last_token());
        let token = token.as_ref().and_then(|value| value.to_str().ok());
        let token = token.map(|value| value.strip_prefix("Bearer ").unwrap_or(value));
        let mut secrets: Vec<&str> =
            self.configured.iter().map(String::as_str).chain(token).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
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
            Kind::Unavailable(detail) => Kind::Unavailable(clean(detail)),
            Kind::Reset(detail) => Kind::Reset(clean(detail)),
            Kind::NoToken(detail) => Kind::NoToken(clean(detail)),
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
}

/// Whether a string in the value, or the name of a member, has a secret in it.
fn has_secret(value: Json<'_>, secrets: &[&str]) -> bool {
    value.as_str().is_some_and(|text| holds_secret(&text, secrets))
        || value
            .members()
            .any(|(name, value)| has_secret(name, secrets) || has_secret(value, secrets))
        || value.elements().any(|value| has_secret(value, secrets))
}
