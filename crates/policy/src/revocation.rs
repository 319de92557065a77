//! Revocation: the end of streams whose caller's credential is no longer valid.

use std::sync::Arc;

use tokio::sync::watch;

use super::authn::Authenticator;
use domain::calls::caller::Caller;

/// Resolves when the credential of one caller is no longer valid under the newest configuration.
pub struct CallerRevocation {
    caller: Caller,
    /// The configuration that authenticated the caller.
    auth: Arc<config::Auth>,
    now: watch::Receiver<Arc<Authenticator>>,
}

impl CallerRevocation {
    pub(super) fn new(
        caller: Caller,
        auth: Arc<config::Auth>,
        now: watch::Receiver<Arc<Authenticator>>,
    ) -> Self {
        Self { caller, auth, now }
    }

    /// Resolves when the caller is unknown, or has other groups or another proof. The client then
    /// reconnects to be authenticated anew. Cancel safe.
    pub async fn lost(&mut self) {
        let caller = &self.caller;
        let auth = &self.auth;
        let is_lost = |now: &Arc<Authenticator>| !now.still_knows(caller, auth);
        if self.now.wait_for(is_lost).await.is_err() {
            // At shutdown streams end by the drain signal.
            std::future::pending::<()>().await;
        }
    }
}
