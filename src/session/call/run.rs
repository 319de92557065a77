//! Calls as they run: in tasks of their own, cancelled in the way of each era, with what is said
//! before their answers.

use std::sync::Arc;

use opentelemetry::context::FutureExt;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::client_events::Teller;
use crate::domain::fault::{Fault, TransportFault};
use crate::policy::Outcome;
use crate::router::call_channel::Line;
use crate::router::reply::Reply;
use crate::session::{CallPlace, Ending, Pending, Sessions, Slot};
use crate::telemetry::{End, ServerAttributes, ServerOperation};

impl Sessions {
    /// Performs a call, in a task of its own, so that its deadline counts whether or not anybody
    /// looks after it. Dropping what is returned cancels it in the eras where going away means
    /// that; otherwise it goes on by itself. `slot` is held as long as it runs; messages that come
    /// before the answer go to `told`.
    pub fn perform(
        self: Arc<Self>,
        mut pending: Pending,
        slot: Slot,
        told: mpsc::Sender<String>,
        now_secs: u64,
    ) -> impl Future<Output = Ending> + Send + 'static {
        let cancels = pending.dialect.cancels_on_disconnect() && pending.nonce.is_none();
        let operation = self.begin(&mut pending);
        let context = operation.context().unwrap_or_default();
        let (tasks, gate) = (self.lasting.tasks.clone(), self.gate.clone());
        let performing = async move {
            let Slot { call, room } = slot;
            let ending = self.run(pending, operation, told, &*call, now_secs).await;
            drop(room);
            ending
        };
        // What is logged on the way belongs to the call's trace.
        let task = tasks.spawn(performing.with_context(context));
        let abort = cancels.then(|| AbortOnDrop(task.abort_handle()));
        async move {
            let ending = task.await;
            drop(abort);
            ending.unwrap_or_else(|error| {
                if error.is_panic() {
                    gate.note_panic();
                }
                Ending::Fault(Fault::Internal)
            })
        }
    }

    /// The call as it is measured; whoever is asked on its way stands below it in the trace.
    fn begin(&self, pending: &mut Pending) -> ServerOperation {
        let Pending { id, dialect, call, nonce, wire, .. } = pending;
        let asked = ServerAttributes {
            method: call.request.method().as_str(),
            revision: dialect.revision().as_str(),
            wire: *wire,
            session: nonce.as_ref().map(|nonce| &nonce[..]),
            id: id.text(),
            prompt: call.request.prompt_name(),
            client: call.address,
        };
        ServerOperation::begin(self.telemetry(), asked, &mut call.along.trace)
    }

    async fn run(
        &self,
        pending: Pending,
        operation: ServerOperation,
        told: mpsc::Sender<String>,
        place: &dyn CallPlace,
        now_secs: u64,
    ) -> Ending {
        let Pending { dialect, call, nonce, running, progress_token, gone, .. } = pending;
        let deadline = Instant::now() + self.limits.request;
        let (line, mut news) = Line::new();
        let (record, caller) = (self.gate.record(&call), call.caller.clone());
        let (admitted, mut list) = (record.clone(), None);
        let answer = async {
            let permitted = self.gate.admit(call, &admitted)?;
            let reply = self.router.route(permitted, &line, deadline, now_secs).await?;
            if let Reply::List(reply) = &reply {
                list = Some(*reply.view.digest());
            }
            // Nothing more is said to the client before its answer.
            drop(line);
            Ok(dialect.reply(&reply, &self.identity))
        };
        let cancelled = async {
            match &running {
                Some(running) => running.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let mut teller = Teller::new(self, dialect, told, place, nonce, progress_token);
        let ending = tokio::select! {
            biased;
            () = teller.tell_all(&mut news, &gone) => Ending::Fault(Fault::Internal),
            // Before the answer, which then is only that nobody is left to give one.
            () = self.lasting.stop.cancelled() => Ending::Fault(TransportFault::ShuttingDown.into()),
            answer = answer => answer.map_or_else(Ending::Fault, Ending::Result),
            () = cancelled => Ending::Cancelled,
        };
        teller.finish(&mut news);
        let outcome = match &ending {
            Ending::Result(result) => Outcome::Result { result, list: list.as_ref() },
            Ending::Fault(fault) => Outcome::Fault(fault),
            Ending::Cancelled => Outcome::Cancelled,
        };
        let ending = match self.gate.complete(&record, &caller, outcome).await {
            Ok(()) => ending,
            Err(fault) => Ending::Fault(fault.into()),
        };
        operation.end(match &ending {
            Ending::Result(_) => End::Well,
            Ending::Fault(fault) => End::Fault(fault),
            Ending::Cancelled => End::Cancelled,
        });
        if let (Ending::Fault(fault), Some(nonce)) = (&ending, nonce) {
            self.lasting.visits.note_all(fault, nonce, self.limits.json_depth);
        }
        ending
    }
}

/// Ends a task with whoever waits for it.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
