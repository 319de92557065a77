//! `/api/v1/grants`: the accounts of callers at upstreams, and their revocation.

use serde::Deserialize;
use serde_json::{Value, json};

use super::State;
use super::sign_in::Visitor;
use audit::record::Event;
use gateway::upstream::accounts::{AccountStatus, RevokedAccount};

/// The accounts to revoke, as the body of a POST. A member that is left out means all.
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

    /// Revokes accounts at once, with the calls that use them, and records it, even if the client
    /// does not wait for the end.
    pub(super) async fn revoke(&self, revocation: Revocation, visitor: &Visitor) -> Value {
        let (router, audit, by) = (self.router.clone(), self.audit.clone(), visitor.id.clone());
        let revoking = self.tasks.spawn(async move {
            let Revocation { caller, upstream } = revocation;
            let ended = router.revoke_accounts(caller.as_deref(), upstream.as_deref()).await;
            let revoked = ended.iter().map(|RevokedAccount { account, is_told }| {
                let event = Event::new("grant_revoked").text("upstream", &account.upstream);
                let event = event.text("caller", account.caller.id()).text("by", &by);
                let told = if *is_told { "told" } else { "not_told" };
                audit.note(event.text("provider", told));
                let mut row = grant(account);
                row["endedAtProvider"] = json!(is_told);
                row
            });
            json!({ "revoked": revoked.collect::<Vec<_>>() })
        });
        revoking.await.unwrap_or_default()
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
