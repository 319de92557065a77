//! Messages for the calls and sessions of other replicas, and those of other replicas for the calls
//! here.

use super::token::Nonce;
use super::{MAX_DEPTH, RequestContext, Sessions};
use crate::cluster::{Handling, RelayError, RelayMessage, ReplicaId};
use domain::fair_share::Holder;
use domain::fault::{Fault, TransportFault};
use domain::json::Json;
use domain::jsonrpc::{Frame, Id};

impl Sessions {
    /// Hands a client's response to the replica that sent the server request.
    ///
    /// # Errors
    /// The replica did not acknowledge it.
    pub(super) async fn hand_response_over(
        &self,
        context: &RequestContext<'_>,
        sender: ReplicaId,
        session: Nonce,
        response: Json<'_>,
    ) -> Result<(), Fault> {
        let Some(cluster) = self.cluster().filter(|cluster| cluster.id() != sender) else {
            return Ok(());
        };
        let body = response.text().as_bytes().to_vec();
        let message = RelayMessage::Response { session: *session.as_bytes(), body };
        let holder = Holder::of(context.caller, context.address);
        // `NotFound` is no error: the call that waited for the response has ended.
        cluster.hand_over(&holder, sender, message).await.map(drop).map_err(|e| fault(e).into())
    }

    /// Cancels a call that another replica may have.
    ///
    /// # Errors
    /// The caller has sent too many cancellations; or not all replicas have acknowledged the
    /// message, and none of those that have has the call.
    pub(super) async fn cancel_elsewhere(
        &self,
        context: &RequestContext<'_>,
        session: Nonce,
        id: &Id,
    ) -> Result<(), TransportFault> {
        let Some(cluster) = self.cluster() else {
            return Ok(());
        };
        let request = id.text().to_owned();
        let message = RelayMessage::Cancelled { session: *session.as_bytes(), request };
        let holder = Holder::of(context.caller, context.address);
        self.gate.take_cancellation(&holder)?;
        cluster.send_to_all(&holder, message).await.map(drop).map_err(fault)
    }

    /// Publishes the termination of a session to the other replicas.
    pub(super) async fn publish_terminated(&self, holder: &Holder, session: Nonce) {
        if let Some(cluster) = self.cluster() {
            cluster.publish_terminated(holder, *session.as_bytes()).await;
        }
    }

    /// Terminates a session, as another replica was asked to.
    pub fn terminated_elsewhere(&self, holder: &Holder, session: [u8; 16]) {
        self.shared.terminated.insert(holder, Nonce::from_bytes(session));
    }

    /// Takes a message that another replica hands over: a response, or the cancellation of a call.
    pub fn receive(&self, message: &RelayMessage) -> Handling {
        let is_found = match message {
            RelayMessage::Response { session, body } => {
                self.resolve(Nonce::from_bytes(*session), body)
            }
            RelayMessage::Cancelled { session, request } => {
                let request = Json::parse(request.as_bytes(), 1).ok();
                let id = request.and_then(Id::read);
                let cancel = |id| self.shared.in_flight.cancel(Nonce::from_bytes(*session), id);
                id.is_some_and(cancel)
            }
            // Of a connection, which the transport holds.
            RelayMessage::Post { .. } | RelayMessage::Question { .. } => false,
        };
        if is_found { Handling::Handled } else { Handling::NotFound }
    }

    fn resolve(&self, session: Nonce, body: &[u8]) -> bool {
        let message = Json::parse(body, MAX_DEPTH).ok();
        match message.map(Frame::read_strict) {
            Some(Ok(Frame::Response { id: Some(id), outcome })) => {
                self.shared.server_requests.resolve(session, id, outcome)
            }
            _ => false,
        }
    }
}

/// The fault that a client gets for a message that was not handed over.
pub(crate) fn fault(error: RelayError) -> TransportFault {
    match error {
        RelayError::TooLarge { limit } => TransportFault::RelayTooLarge { limit },
        RelayError::Unreachable | RelayError::OtherVersion => TransportFault::ReplicaUnreachable,
        RelayError::Overloaded => TransportFault::Overloaded,
    }
}
