//! Messages for the calls of other replicas.

use std::sync::Arc;

use super::RequestContext;
use super::token::Nonce;
use cluster::{ClusterMember, RelayError, RelayMessage, ReplicaId};
use domain::calls::fair_share::Holder;
use domain::fault::{Fault, TransportFault};
use domain::json::Json;
use domain::json::jsonrpc::Id;
use policy::Gate;

/// Hands a client's response to the replica that sent the server request.
pub(super) async fn hand_response_over(
    cluster: Option<&Arc<ClusterMember>>,
    context: &RequestContext<'_>,
    sender: ReplicaId,
    session: Nonce,
    response: Json<'_>,
) -> Result<(), Fault> {
    let Some(cluster) = cluster.filter(|cluster| cluster.id() != sender) else {
        return Ok(());
    };
    let body = response.text().as_bytes().to_vec();
    let message = RelayMessage::Response { session: *session.as_bytes(), body };
    let holder = Holder::of(context.caller, context.address);
    // `NotFound` is no error: the call that waited for the response has ended.
    cluster.relay().deliver(&holder, sender, message).await.map(drop).map_err(|e| fault(e).into())
}

/// Cancels a call that another replica may have.
pub(super) async fn cancel_elsewhere(
    gate: &Gate,
    cluster: &ClusterMember,
    context: &RequestContext<'_>,
    session: Nonce,
    id: &Id,
) -> Result<(), TransportFault> {
    let request = id.text().to_owned();
    let message = RelayMessage::Cancelled { session: *session.as_bytes(), request };
    let holder = Holder::of(context.caller, context.address);
    gate.take_cancellation(&holder)?;
    cluster.relay().send_to_all(&holder, message).await.map(drop).map_err(fault)
}

/// The fault that a client gets for a message that was not handed over.
pub(crate) fn fault(error: RelayError) -> TransportFault {
    match error {
        RelayError::TooLarge { limit } => TransportFault::RelayTooLarge { limit },
        RelayError::Unreachable | RelayError::OtherVersion => TransportFault::ReplicaUnreachable,
        RelayError::Overloaded => TransportFault::Overloaded,
    }
}
