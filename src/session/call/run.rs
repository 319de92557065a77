//! Calls as they run: in tasks of their own, cancelled in the way of each era, with what is said
//! before their answers.

use std::sync::Arc;

use opentelemetry::context::FutureExt;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::client_events::ClientEventSender;
use crate::domain::fault::{Fault, TransportFault};
use crate::policy::Outcome;
use crate::router::call_channel::CallChannel;
use crate::router::reply::Reply;
use crate::session::{CallOutcome, CallPermit, CallPermits, PreparedCall, Sessions};
use crate::telemetry::{End, ServerAttributes, ServerOperation};

impl Sessions {
    /// Performs a call, in a task of its own, so that its deadline counts whether or not anybody
    /// looks after it. Dropping what is returned cancels it in the eras where going away means
    /// that; otherwise it goes on by itself. `slot` is held as long as it runs; messages that come
    /// before the answer go to `told`.
    pub fn perform(
        self: Arc<Self>,
        mut pending: PreparedCall,
        permits: CallPermits,
        outgoing: mpsc::Sender<String>,
        now_secs: u64,
    ) -> impl Future<Output = CallOutcome> + Send + 'static {
        let cancels = pending.dialect.cancels_on_disconnect() && pending.nonce.is_none();
        let operation = self.begin(&mut pending);
        let context = operation.context().unwrap_or_default();
        let (tasks, gate) = (self.shared.tasks.clone(), self.gate.clone());
        let performing = async move {
            let CallPermits { call, budget } = permits;
            let outcome = self.run(pending, operation, outgoing, &*call, now_secs).await;
            drop(budget);
            outcome
        };
        // What is logged on the way belongs to the call's trace.
        let task = tasks.spawn(performing.with_context(context));
        let abort = cancels.then(|| AbortOnDrop(task.abort_handle()));
        async move {
            let outcome = task.await;
            drop(abort);
            outcome.unwrap_or_else(|error| {
                if error.is_panic() {
                    gate.note_panic();
                }
                CallOutcome::Fault(Fault::Internal)
            })
        }
    }

    /// The call as it is measured; whoever is asked on its way stands below it in the trace.
    fn begin(&self, pending: &mut PreparedCall) -> ServerOperation {
        let PreparedCall { id, dialect, call, nonce, transport_kind, .. } = pending;
        let asked = ServerAttributes {
            method: call.request.method().as_str(),
            revision: dialect.revision().as_str(),
            transport: *transport_kind,
            session: nonce.as_ref().map(|nonce| &nonce[..]),
            id: id.text(),
            prompt: call.request.prompt_name(),
            client: call.address,
        };
        ServerOperation::begin(self.telemetry(), asked, &mut call.forwarded.trace)
    }

    async fn run(
        &self,
        pending: PreparedCall,
        operation: ServerOperation,
        outgoing: mpsc::Sender<String>,
        place: &dyn CallPermit,
        now_secs: u64,
    ) -> CallOutcome {
        let PreparedCall { dialect, call, nonce, in_flight, progress_token, gone, .. } = pending;
        let deadline = Instant::now() + self.limits.request;
        let (channel, mut news) = CallChannel::new();
        let record = self.gate.record(&call);
        let mut list = None;
        let answer = async {
            let reply = self.router.route(&call, &record, &channel, deadline, now_secs).await?;
            if let Reply::List(reply) = &reply {
                list = Some(*reply.view.digest());
            }
            // Nothing more is said to the client before its answer.
            drop(channel);
            Ok(dialect.reply(&reply, &self.identity))
        };
        let cancelled = async {
            match &in_flight {
                Some(in_flight) => in_flight.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let mut events =
            ClientEventSender::new(self, dialect, outgoing, place, nonce, progress_token);
        let outcome = tokio::select! {
            biased;
            () = events.forward(&mut news, &gone) => CallOutcome::Fault(Fault::Internal),
            // Before the answer, which then is only that nobody is left to give one.
            () = self.shared.stop.cancelled() => CallOutcome::Fault(TransportFault::ShuttingDown.into()),
            answer = answer => answer.map_or_else(CallOutcome::Fault, CallOutcome::Result),
            () = cancelled => CallOutcome::Cancelled,
        };
        events.finish(&mut news);
        let recorded = match &outcome {
            CallOutcome::Result(result) => Outcome::Result { result, list: list.as_ref() },
            CallOutcome::Fault(fault) => Outcome::Fault(fault),
            CallOutcome::Cancelled => Outcome::Cancelled,
        };
        let outcome = match self.gate.complete(&record, &call.caller, recorded).await {
            Ok(()) => outcome,
            Err(fault) => CallOutcome::Fault(fault.into()),
        };
        operation.end(match &outcome {
            CallOutcome::Result(_) => End::Well,
            CallOutcome::Fault(fault) => End::Fault(fault),
            CallOutcome::Cancelled => End::Cancelled,
        });
        if let (CallOutcome::Fault(fault), Some(nonce)) = (&outcome, nonce) {
            self.shared.url_elicitations.note_all(fault, nonce, self.limits.json_depth);
        }
        outcome
    }
}

/// Ends a task with whoever waits for it.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
