//! A static credential of the gateway in a file, which is read again when the upstream refuses it:
//! a secret that is revoked when it is replaced fails no calls until the next reload.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::{HeaderName, HeaderValue};
use tokio::sync::Mutex;
use tokio::time::Instant;

use base::platform::blocking;
use config::Secret;
use oauth::client::sensitive;

/// A header of each request, whose value is in a file.
pub struct FileCredential {
    name: HeaderName,
    secret: Secret,
    /// The value when the configuration was read.
    configured: HeaderValue,
    /// The value that the file has had since.
    newer: ArcSwapOption<HeaderValue>,
    /// When the file was read last. Locked while it is read.
    read_at: Mutex<Option<Instant>>,
}

/// Shortest time between two reads: refused calls must not cause one each.
const READ_PAUSE: Duration = Duration::from_millis(100);

impl FileCredential {
    /// Returns the static credential of an upstream; `None` if it has none in a file.
    ///
    /// # Errors
    /// When a header cannot hold it.
    pub(crate) fn new(http: &config::Http) -> Result<Option<Self>, String> {
        let in_file = http.credentials.header.as_ref().filter(|(_, value)| value.is_in_file());
        let Some((name, secret)) = in_file.cloned() else { return Ok(None) };
        let configured = sensitive(secret.expose())?;
        let newer = ArcSwapOption::empty();
        Ok(Some(Self { name, secret, configured, newer, read_at: Mutex::default() }))
    }

    /// Returns the name of the header.
    pub(super) fn name(&self) -> &HeaderName {
        &self.name
    }

    /// Returns the value of the header.
    pub(super) fn header(&self) -> HeaderValue {
        self.newer().unwrap_or_else(|| self.configured.clone())
    }

    /// Returns the value that was read again, if there is one.
    pub(super) fn newer(&self) -> Option<HeaderValue> {
        self.newer.load().as_deref().cloned()
    }

    /// Returns another value after the upstream has refused `sent` with 401; `None` while the file
    /// has no other one.
    pub(super) async fn refused(&self, sent: Option<&HeaderValue>) -> Option<HeaderValue> {
        let mut read_at = self.read_at.lock().await;
        let is_due = read_at.is_none_or(|at| at.elapsed() >= READ_PAUSE);
        // Another call may have read it meanwhile.
        if is_due && sent == Some(&self.header()) {
            let secret = self.secret.clone();
            let read = blocking(move || secret.read_again()).await.ok().flatten();
            *read_at = Some(Instant::now());
            let value = read.and_then(|secret| sensitive(secret.expose()).ok())?;
            self.newer.store(Some(Arc::new(value)));
        }
        Some(self.header()).filter(|value| sent != Some(value))
    }
}
