//! JSON-RPC batches (only MCP 2025-03-26): several messages in one array, and their responses in
//! one array.

use std::collections::VecDeque;
use std::sync::Arc;

use super::admission::{Admission, BodyBudget};
use super::calls::PendingCall;
use super::error_message::refusal_message;
use crate::session::dialect::Dialect;
use crate::session::{CallPermits, Dispatch, MessageRefusal, Sessions};
use domain::calls::fair_share::Holder;
use domain::fault::TransportFault;
use domain::json::jsonrpc::Id;

/// Most bytes of all responses of one batch: a small request must not make the gateway hold
/// gigabytes.
const MAX_RESPONSES: usize = 64 << 20;

/// Most calls of one batch in flight at once: enough to use several upstreams, and a small part of
/// `in_flight`, which all clients share.
const MAX_CONCURRENT: usize = 8;

/// Processes the items of a batch, and returns their responses as one array; `None` if no item has
/// a response. A refused item does not affect the other items. Dropping the future drops the calls
/// in flight.
pub(crate) async fn batch(
    sessions: Arc<Sessions>,
    admission: Arc<Admission>,
    holder: Holder,
    items: Vec<Result<Dispatch, MessageRefusal>>,
    budget: Arc<BodyBudget>,
) -> Option<String> {
    let start = |item| start_item(&sessions, &admission, &holder, &budget, item);
    let mut waiting = items.into_iter();
    // In the order of the batch: a response waits for the calls before it.
    let mut started: VecDeque<_> = waiting.by_ref().take(MAX_CONCURRENT).map(start).collect();
    let mut responses = Vec::new();
    let mut bytes_left = MAX_RESPONSES;
    while let Some(item) = started.pop_front() {
        let response = match item {
            Item::Done(response) => response,
            Item::Running(id, dialect, call) => finish(id, dialect, *call, &mut bytes_left).await,
        };
        responses.extend(response);
        started.extend(waiting.next().map(start));
    }
    (!responses.is_empty()).then(|| format!("[{}]", responses.join(",")))
}

fn start_item(
    sessions: &Arc<Sessions>,
    admission: &Admission,
    holder: &Holder,
    budget: &Arc<BodyBudget>,
    item: Result<Dispatch, MessageRefusal>,
) -> Item {
    let refused = |refusal: MessageRefusal| Item::Done(Some(refusal_message(&refusal)));
    match item {
        Ok(Dispatch::Answer { message, .. } | Dispatch::Opened { message, .. }) => {
            Item::Done(Some(message))
        }
        Ok(Dispatch::Call(prepared)) => {
            let id = prepared.id.clone();
            let dialect = prepared.dialect;
            match admission.call(holder) {
                Ok(call) => {
                    let permits = CallPermits { call, budget: budget.clone() };
                    let call = PendingCall::new(sessions.clone(), prepared, permits).in_task();
                    Item::Running(id, dialect, Box::new(call))
                }
                Err(fault) => {
                    refused(MessageRefusal { fault: fault.into(), id: Some(id), dialect })
                }
            }
        }
        Ok(Dispatch::Accepted | Dispatch::Listen(_) | Dispatch::Batch(_)) => Item::Done(None),
        Err(refusal) => refused(refusal),
    }
}

/// Waits for the response of a call. A response larger than `bytes_left` becomes an error response.
async fn finish(
    id: Id,
    dialect: Dialect,
    mut call: PendingCall,
    bytes_left: &mut usize,
) -> Option<String> {
    let response = call.response().await;
    let response = call.text_of(response)?;
    if let Some(rest) = bytes_left.checked_sub(response.len()) {
        *bytes_left = rest;
        Some(response)
    } else {
        let fault = TransportFault::BatchTooLarge { limit: MAX_RESPONSES }.into();
        Some(refusal_message(&MessageRefusal { fault, id: Some(id), dialect }))
    }
}

/// One item of a batch.
enum Item {
    /// A processed item, with its response if it has one.
    Done(Option<String>),
    /// A call in flight, with the id and the dialect of its request.
    Running(Id, Dialect, Box<PendingCall>),
}
