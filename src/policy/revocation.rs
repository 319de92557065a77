//! Whether a caller whose stream is open is still the one that was let in.

use std::sync::Arc;

use tokio::sync::watch;

use super::authn::Authenticator;
use crate::config;
use crate::domain::caller::Caller;

/// The standing of one caller.
pub struct CallerRevocation {
    caller: Caller,
    /// By what it was let in.
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

    /// Waits until the caller is not known any more, or as another one. It comes back to be let in
    /// anew, if it is.
    pub async fn lost(&mut self) {
        let (caller, auth) = (&self.caller, &self.auth);
        let is_lost = |now: &Arc<Authenticator>| !now.still_knows(caller, auth);
        if self.now.wait_for(is_lost).await.is_err() {
            // The gateway ends, which streams hear of in another way.
            std::future::pending::<()>().await;
        }
    }
}
