//! Execution of calls: each in a task of its own, with cancellation by the rules of its era and with the
//! messages before its response.

use std::sync::Arc;

use opentelemetry::context::FutureExt;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::info;

use super::client_events::ClientEventSender;
use crate::domain::fault::{CorrelationId, Fault, TransportFault, UpstreamFault};
use crate::domain::unix_time::UnixSeconds;
use crate::policy::Outcome;
use crate::router::call_channel::CallChannel;
use crate::router::reply::Reply;
use crate::seal::random;
use crate::session::dialect::ResultForm;
use crate::session::tools::is_tool_result;
use crate::session::{CallOutcome, CallPermit, CallPermits, PreparedCall, Sessions};
use crate::telemetry::{End, ServerAttributes, ServerOperation};

impl Sessions {
    /// Runs a call in a task of its own, so that its deadline holds even if the returned future is not
    /// polled. Dropping the future cancels the call where a client cancels by disconnecting (modern era
    /// over HTTP); otherwise the call continues. `permits` are held until the call has ended. Messages
    /// before the response go to `outgoing`. `now` is the wall-clock time.
    pub fn perform(
        self: Arc<Self>,
        mut pending: PreparedCall,
        permits: CallPermits,
        outgoing: mpsc::Sender<String>,
        now: UnixSeconds,
    ) -> impl Future<Output = CallOutcome> + Send + 'static {
        let cancels = pending.dialect.cancels_on_disconnect() && pending.nonce.is_none();
        let operation = self.begin(&mut pending);
        let context = operation.context().unwrap_or_default();
        let tasks = self.shared.tasks.clone();
        let gate = self.gate.clone();
        let performing = async move {
            let CallPermits { call, budget } = permits;
            let outcome = self.run(pending, operation, outgoing, &*call, now).await;
            drop(budget);
            outcome
        };
        // Log records of the task belong to the trace of the call.
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

    /// Begins the server span of the call. Requests to upstreams become its children.
    fn begin(&self, pending: &mut PreparedCall) -> ServerOperation {
        let PreparedCall { id, dialect, call, nonce, transport_kind, .. } = pending;
        let attributes = ServerAttributes {
            method: call.request.method().as_str(),
            revision: dialect.revision().as_str(),
            transport: *transport_kind,
            session: nonce.as_ref().map(|nonce| nonce.as_bytes().as_slice()),
            id: id.text(),
            prompt: call.request.prompt_name(),
            client: call.address,
        };
        ServerOperation::begin(self.telemetry(), attributes, &mut call.forwarded.trace)
    }

    async fn run(
        &self,
        pending: PreparedCall,
        operation: ServerOperation,
        outgoing: mpsc::Sender<String>,
        permit: &dyn CallPermit,
        now: UnixSeconds,
    ) -> CallOutcome {
        let PreparedCall { dialect, form, call, nonce, in_flight, progress_token, gone, .. } =
            pending;
        let deadline = Instant::now() + self.limits.request;
        let (channel, mut call_events) = CallChannel::new();
        let record = self.gate.record(&call);
        let mut list = None;
        let answer = async {
            let reply = self.router.route(&call, &record, &channel, deadline, now).await?;
            if let Reply::List(reply) = &reply {
                list = Some(*reply.view.digest());
            }
            // No event can follow: the receiver gets the end of the channel.
            drop(channel);
            Ok(dialect.reply(&reply, form, &self.identity))
        };
        let cancelled = async {
            match &in_flight {
                Some(in_flight) => in_flight.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let mut events =
            ClientEventSender::new(self, dialect, outgoing, permit, nonce, progress_token);
        let outcome = tokio::select! {
            biased;
            () = events.forward(&mut call_events, &gone) => CallOutcome::Fault(Fault::Internal),
            // Before the answer, which at shutdown is only the fault that the upstream's driver has ended.
            () = self.shared.stop.cancelled() => CallOutcome::Fault(TransportFault::ShuttingDown.into()),
            answer = answer => answer.map_or_else(CallOutcome::Fault, CallOutcome::Result),
            () = cancelled => CallOutcome::Cancelled,
        };
        events.finish(&mut call_events);
        let outcome = correlated(outcome);
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
        match outcome {
            // On record and in the metrics it is the fault that it is.
            CallOutcome::Fault(fault) if form == ResultForm::Tool && is_tool_result(&fault) => {
                CallOutcome::Result(dialect.tool_error(&fault, &self.identity))
            }
            outcome => outcome,
        }
    }
}

/// Logs the details of a fault that callers must not learn, under an id that its error has.
fn correlated(outcome: CallOutcome) -> CallOutcome {
    match outcome {
        CallOutcome::Fault(Fault::Upstream(fault)) if fault.kind.has_details() => {
            let id = CorrelationId(random());
            let UpstreamFault { upstream, kind, .. } = &fault;
            info!(upstream, correlation = %id, error = kind.diagnosis(), "call failed");
            CallOutcome::Fault(UpstreamFault { correlation: Some(id), ..fault }.into())
        }
        outcome => outcome,
    }
}

/// Aborts a task when the future that waits for it is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
