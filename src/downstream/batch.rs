//! JSON-RPC batches (MCP 2025-03-26 only): the calls of one array, and their responses as one array.

use std::collections::VecDeque;
use std::sync::Arc;

use super::admission::{Admission, BodyBudget};
use super::calls::PendingCall;
use super::error_message::refusal_message;
use crate::domain::fault::TransportFault;
use crate::domain::jsonrpc::Id;
use crate::session::dialect::Dialect;
use crate::session::{CallPermits, Dispatch, Refusal, Sessions};

/// Bytes of all answers of one batch: a small request must not make the gateway hold gigabytes.
const BATCH_ANSWER: usize = 64 << 20;

/// Items of a batch that are worked on at once.
const AT_ONCE: usize = 8;

/// The answers of a batch as one array; nothing if none of its messages has an answer. Each item is
/// refused by itself. A few run at once: their answers wait for those before them.
pub(crate) async fn batch(
    sessions: Arc<Sessions>,
    admission: Arc<Admission>,
    items: Vec<Result<Dispatch, Refusal>>,
    budget: Arc<BodyBudget>,
) -> Option<String> {
    let start = |item| start_item(&sessions, &admission, &budget, item);
    let mut waiting = items.into_iter();
    let mut started: VecDeque<_> = waiting.by_ref().take(AT_ONCE).map(start).collect();
    let (mut messages, mut left) = (Vec::new(), BATCH_ANSWER);
    while let Some(item) = started.pop_front() {
        let message = match item {
            Item::There(message) => message,
            Item::Running(id, dialect, mut pending) => {
                let message = pending.answer().await.into_message();
                let size = message.as_ref().map_or(0, String::len);
                match left.checked_sub(size) {
                    Some(rest) => {
                        left = rest;
                        message
                    }
                    None => {
                        let fault = TransportFault::Overloaded.into();
                        let refusal = Refusal { fault, id: Some(id), dialect };
                        Some(refusal_message(&refusal))
                    }
                }
            }
        };
        messages.extend(message);
        started.extend(waiting.next().map(start));
    }
    (!messages.is_empty()).then(|| format!("[{}]", messages.join(",")))
}

fn start_item(
    sessions: &Arc<Sessions>,
    admission: &Admission,
    budget: &Arc<BodyBudget>,
    item: Result<Dispatch, Refusal>,
) -> Item {
    let refused = |refusal: Refusal| Item::There(Some(refusal_message(&refusal)));
    match item {
        Ok(Dispatch::Answer { message, .. } | Dispatch::Opened { message, .. }) => {
            Item::There(Some(message))
        }
        Ok(Dispatch::Call(pending)) => match admission.call() {
            Ok(call) => {
                let permits = CallPermits { call, budget: budget.clone() };
                let (id, dialect) = (pending.id.clone(), pending.dialect);
                Item::Running(id, dialect, PendingCall::start(sessions.clone(), pending, permits))
            }
            Err(fault) => {
                let (id, dialect) = (Some(pending.id), pending.dialect);
                refused(Refusal { fault: fault.into(), id, dialect })
            }
        },
        Ok(Dispatch::Accepted | Dispatch::Listen(_) | Dispatch::Batch(_)) => Item::There(None),
        Err(refusal) => refused(refusal),
    }
}

/// One item of a batch.
enum Item {
    There(Option<String>),
    Running(Id, Dialect, PendingCall),
}
