//! `/api/v1/grants`: what callers have of their own at upstreams, and its end.

use serde::Deserialize;
use serde_json::{Value, json};

use super::State;
use super::sign_in::Visitor;
use crate::audit::record::Event;
use crate::upstream::accounts::AccountStatus;

/// Whose grants end, as the body of a POST. What is left out means all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Revocation {
    /// Id of the caller.
    pub caller: Option<String>,
    /// Id of the upstream.
    pub upstream: Option<String>,
}

impl State {
    /// Returns the document of `/api/v1/grants`, the most recently used first.
    pub(super) fn grants(&self) -> Value {
        let grants: Vec<_> = self.router.accounts().list().iter().map(grant).collect();
        json!({ "grants": grants })
    }

    /// Ends grants at once, with the calls that use them, and records it.
    pub(super) fn revoke(&self, revocation: &Revocation, visitor: &Visitor) -> Value {
        let Revocation { caller, upstream } = revocation;
        let ended = self.router.revoke_accounts(caller.as_deref(), upstream.as_deref());
        for account in &ended {
            let event = Event::new("grant_revoked").text("upstream", &account.upstream);
            self.audit.note(event.text("caller", account.caller.id()).text("by", &visitor.id));
        }
        let revoked: Vec<_> = ended.iter().map(grant).collect();
        json!({ "revoked": revoked })
    }
}

fn grant(account: &AccountStatus) -> Value {
    let AccountStatus { upstream, caller, expires_in, idle } = account;
    let (method, issuer) = caller.authority();
    json!({
        "upstream": upstream,
        "caller": caller.id(),
        "method": method,
        "issuer": issuer,
        "expiresInSecs": expires_in.map(|left| left.as_secs()),
        "idleSecs": idle.as_secs(),
    })
}
