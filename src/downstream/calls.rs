//! A call that was started: what is said before its answer, and the answer.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;

use super::admission::{Load, Room};
use super::http::respond;
use crate::domain::fault::TransportFault;
use crate::domain::jsonrpc::Id;
use crate::session::dialect::{Dialect, result_message};
use crate::session::{Ending, Pending, Refusal, Sessions, Slot, Turn};

/// A call under way. Dropped, it is cancelled where going away means that.
pub struct Answering {
    told: mpsc::Receiver<String>,
    answer: Pin<Box<dyn Future<Output = Answer> + Send>>,
}

/// What comes next.
pub enum Part {
    /// A message before the answer.
    Said(String),
    Answer(Answer),
}

/// What became of a call, ready to be sent.
pub enum Answer {
    Message(String),
    Refused(Refusal),
    /// The client asked for no answer any more.
    Cancelled,
}

/// Messages that wait for a client to read them, of one call.
const TOLD: usize = 16;

/// Bytes of all answers of one batch: a small request must not make the gateway hold gigabytes.
const BATCH_ANSWER: usize = 64 << 20;

/// Items of a batch that are worked on at once.
const AT_ONCE: usize = 8;

impl Answering {
    /// Starts a call.
    pub fn start(sessions: Arc<Sessions>, pending: Pending, slot: Slot) -> Self {
        let (id, dialect) = (pending.id.clone(), pending.dialect);
        let (tell, told) = mpsc::channel(TOLD);
        let ending = sessions.perform(pending, slot, tell, now_secs());
        // On the heap: the future of a call is large, and moves more than once.
        let answer = Box::pin(async move {
            match ending.await {
                Ending::Result(result) => Answer::Message(result_message(&id, &result)),
                Ending::Fault(fault) => Answer::Refused(Refusal { fault, id: Some(id), dialect }),
                Ending::Cancelled => Answer::Cancelled,
            }
        });
        Self { told, answer }
    }

    /// The next message, or the answer. Not to be called again behind the answer.
    pub async fn next(&mut self) -> Part {
        tokio::select! {
            biased;
            Some(message) = self.told.recv() => Part::Said(message),
            answer = self.answer.as_mut() => match self.told.try_recv() {
                // It was said before, and comes before.
                Ok(message) => {
                    self.answer = Box::pin(std::future::ready(answer));
                    Part::Said(message)
                }
                Err(_) => Part::Answer(answer),
            },
        }
    }

    /// The answer alone.
    pub async fn answer(&mut self) -> Answer {
        loop {
            if let Part::Answer(answer) = self.next().await {
                return answer;
            }
        }
    }
}

impl Answer {
    pub fn into_message(self) -> Option<String> {
        match self {
            Answer::Message(message) => Some(message),
            Answer::Refused(refusal) => Some(respond::refusal_message(&refusal)),
            Answer::Cancelled => None,
        }
    }
}

/// The answers of a batch as one array; nothing if none of its messages has an answer. Each item is
/// refused by itself. A few run at once: their answers wait for those before them.
pub async fn batch(
    sessions: Arc<Sessions>,
    load: Arc<Load>,
    items: Vec<Result<Turn, Refusal>>,
    room: Arc<Room>,
) -> Option<String> {
    let start = |item| start_item(&sessions, &load, &room, item);
    let mut waiting = items.into_iter();
    let mut started: VecDeque<_> = waiting.by_ref().take(AT_ONCE).map(start).collect();
    let (mut messages, mut left) = (Vec::new(), BATCH_ANSWER);
    while let Some(item) = started.pop_front() {
        let message = match item {
            Item::There(message) => message,
            Item::Running(id, dialect, mut answering) => {
                let message = answering.answer().await.into_message();
                let size = message.as_ref().map_or(0, String::len);
                match left.checked_sub(size) {
                    Some(rest) => {
                        left = rest;
                        message
                    }
                    None => {
                        let fault = TransportFault::Overloaded.into();
                        let refusal = Refusal { fault, id: Some(id), dialect };
                        Some(respond::refusal_message(&refusal))
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
    load: &Load,
    room: &Arc<Room>,
    item: Result<Turn, Refusal>,
) -> Item {
    let refused = |refusal: Refusal| Item::There(Some(respond::refusal_message(&refusal)));
    match item {
        Ok(Turn::Answer { message, .. } | Turn::Opened { message, .. }) => {
            Item::There(Some(message))
        }
        Ok(Turn::Pending(pending)) => match load.call() {
            Ok(call) => {
                let slot = Slot { call, room: room.clone() };
                let (id, dialect) = (pending.id.clone(), pending.dialect);
                Item::Running(id, dialect, Answering::start(sessions.clone(), pending, slot))
            }
            Err(fault) => {
                let (id, dialect) = (Some(pending.id), pending.dialect);
                refused(Refusal { fault: fault.into(), id, dialect })
            }
        },
        Ok(Turn::Accepted | Turn::Listen(_) | Turn::Batch(_)) => Item::There(None),
        Err(refusal) => refused(refusal),
    }
}

/// One item of a batch.
enum Item {
    There(Option<String>),
    Running(Id, Dialect, Answering),
}

/// Seconds since the Unix epoch; a clock before it counts as there.
pub fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
