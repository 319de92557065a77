//! `/api/v1/accounts`: lists and revokes the accounts of callers at upstreams.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::AdminState;
use super::rollouts;
use super::sign_in::Visitor;
use audit::record::AuditEvent;
use logins::caller::CallerName;
use upstream::accounts::{AccountStatus, RevokedAccount};

/// Names the accounts to revoke, as the body of a POST. An omitted field matches all.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct RevocationRequest {
    /// Id of the caller.
    pub caller: Option<String>,
    /// Id of the upstream.
    pub upstream: Option<String>,
}

/// The document of `/api/v1/accounts`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct AccountsDocument {
    accounts: Vec<AccountRow>,
    /// The sign-ins that have ended, until they are forgotten.
    ended: Vec<EndedSignIn>,
}

/// A sign-in of a caller that has ended.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct EndedSignIn {
    upstream: Arc<str>,
    caller: String,
    /// Issuer of the caller's token; empty for other credentials.
    issuer: String,
    signed_in_at: Option<String>,
    /// `revoked`, or the error of the authorization server.
    why: Option<String>,
}

/// An account of a caller at an upstream.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct AccountRow {
    upstream: Arc<str>,
    pub caller: String,
    /// The kind of credential of the caller.
    #[cfg_attr(test, schemars(extend("enum" = ["none", "api_key", "certificate", "token", "stdio"])))]
    method: String,
    /// Issuer of the caller's token; empty for other credentials.
    pub issuer: String,
    /// How the caller gets access.
    #[cfg_attr(test, schemars(extend("enum" = ["exchange", "id_jag", "sign_in", "vault", "process"])))]
    pub way: &'static str,
    /// When the caller signed in (RFC 3339); null for other ways.
    pub signed_in_at: Option<String>,
    /// Seconds until its access token expires, or would have expired; null without one.
    pub expires_in_secs: Option<u64>,
    /// Seconds since its last call; null without a call through this replica.
    pub idle_secs: Option<u64>,
}

/// The accounts that were revoked.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct RevokedAccounts {
    revoked: Vec<RevokedRow>,
}

/// A revoked account.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "RevokedAccount"))]
#[serde(rename_all = "camelCase")]
struct RevokedRow {
    #[serde(flatten)]
    account: AccountRow,
    /// Whether the authorization server has revoked the access token (RFC 7009).
    revoked_at_provider: bool,
}

/// Returns the document of `/api/v1/accounts`, the most recently used first.
pub(super) async fn all(state: &AdminState) -> AccountsDocument {
    let accounts = state.router.list_accounts(None).await.into_iter();
    let (ended, open): (Vec<_>, Vec<_>) = accounts.partition(|account| account.ended.is_some());
    AccountsDocument {
        accounts: open.iter().map(AccountRow::of).collect(),
        ended: ended.into_iter().map(EndedSignIn::of).collect(),
    }
}

/// Revokes accounts at once, cancels the calls that use them, and records each revocation, even if
/// the client disconnects.
pub(super) async fn revoke(
    state: &AdminState,
    revocation: RevocationRequest,
    visitor: &Visitor,
) -> RevokedAccounts {
    let (router, audit, by) = (state.router.clone(), state.audit.clone(), visitor.id.clone());
    let revoking = state.supervisor.tasks().spawn(async move {
        let RevocationRequest { caller, upstream } = revocation;
        let ended = router.revoke_accounts(caller.as_deref(), upstream.as_deref()).await;
        let revoked = ended.iter().map(|RevokedAccount { account, revoked_at_provider }| {
            let event = AuditEvent::new("account_revoked").text("upstream", &account.upstream);
            let event = event.text("caller", &account.caller.id).text("by", &by);
            let provider = if *revoked_at_provider { "revoked" } else { "not_revoked" };
            audit.note(event.text("provider", provider));
            RevokedRow {
                account: AccountRow::of(account),
                revoked_at_provider: *revoked_at_provider,
            }
        });
        RevokedAccounts { revoked: revoked.collect() }
    });
    revoking.await.unwrap_or_default()
}

impl EndedSignIn {
    fn of(account: AccountStatus) -> Self {
        let AccountStatus { upstream, caller, signed_in_at, ended: why, .. } = account;
        let CallerName { id: caller, issuer, .. } = caller;
        Self { upstream, caller, issuer, signed_in_at: signed_in_at.map(rollouts::time), why }
    }
}

impl AccountRow {
    pub(crate) fn of(account: &AccountStatus) -> Self {
        let AccountStatus { upstream, caller, way, signed_in_at, expires_in, idle, .. } = account;
        let CallerName { method, issuer, id } = caller.clone();
        Self {
            upstream: upstream.clone(),
            caller: id,
            method,
            issuer,
            way,
            signed_in_at: signed_in_at.map(rollouts::time),
            expires_in_secs: expires_in.map(|left| left.as_secs()),
            idle_secs: idle.map(|idle| idle.as_secs()),
        }
    }
}
