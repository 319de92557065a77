//! Calls of the console: a person tries a prompt. They run like the calls of clients.

use std::sync::Arc;

use super::run::RunningCall;
use crate::session::dialect::{Dialect, ResultForm};
use crate::session::{CallOutcome, CallPermit, CallPermits, PreparedCall, Sessions};
use domain::calls::call::Call;
use domain::json::jsonrpc::Id;
use domain::protocol::revision::Revision;
use domain::time::unix_time::UnixSeconds;
use telemetry::TransportKind;
use upstream::call::result_memory::Unbounded;

/// The console bounds its trials, so they take no place of `server.limits.in_flight`.
struct TrialAdmission;

impl CallPermit for TrialAdmission {
    fn suspend(&self) -> bool {
        true
    }
}

/// Performs a call as a client of the newest revision does that answers no server request:
/// through the gate, limited, recorded and counted.
pub async fn perform_for_console(
    sessions: Arc<Sessions>,
    call: Call,
    now: UnixSeconds,
) -> CallOutcome {
    let prepared = PreparedCall {
        id: Id::number(1),
        dialect: Dialect::new(Revision::NEWEST_MODERN),
        form: ResultForm::Prompt,
        call,
        nonce: None,
        in_flight: None,
        transport_kind: TransportKind::Http,
        progress_token: None,
        input_closed: None,
    };
    let permits = CallPermits { call: Arc::new(TrialAdmission), budget: Arc::new(Unbounded) };
    RunningCall::new(sessions, prepared, permits, None, now).await
}
