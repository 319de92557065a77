//! `/api/v1/accounts`: lists and revokes the accounts of callers at upstreams.

use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminState;
use super::sign_in::Visitor;
use audit::record::AuditEvent;
use upstream::accounts::{AccountStatus, RevokedAccount};

/// Names the accounts to revoke, as the body of a POST. An omitted field matches all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RevocationRequest {
    /// Id of the caller.
    pub caller: Option<String>,
    /// Id of the upstream.
    pub upstream: Option<String>,
}

/// Returns the document of `/api/v1/accounts`, the most recently used first.
pub(super) fn all(state: &AdminState) -> Value {
    let accounts: Vec<_> = state.router.accounts().list().iter().map(account_json).collect();
    json!({ "accounts": accounts })
}

/// Revokes accounts at once, cancels the calls that use them, and records each revocation, even if
/// the client disconnects.
pub(super) async fn revoke(
    state: &AdminState,
    revocation: RevocationRequest,
    visitor: &Visitor,
) -> Value {
    let (router, audit, by) = (state.router.clone(), state.audit.clone(), visitor.id.clone());
    let revoking = state.supervisor.tasks().spawn(async move {
        let RevocationRequest { caller, upstream } = revocation;
        let ended = router.revoke_accounts(caller.as_deref(), upstream.as_deref()).await;
        let revoked = ended.iter().map(|RevokedAccount { account, revoked_at_provider }| {
            let event = AuditEvent::new("account_revoked").text("upstream", &account.upstream);
            let event = event.text("caller", account.caller.id()).text("by", &by);
            let provider = if *revoked_at_provider { "revoked" } else { "not_revoked" };
            audit.note(event.text("provider", provider));
            let mut row = account_json(account);
            row["revokedAtProvider"] = json!(revoked_at_provider);
            row
        });
        json!({ "revoked": revoked.collect::<Vec<_>>() })
    });
    revoking.await.unwrap_or_default()
}

fn account_json(account: &AccountStatus) -> Value {
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
