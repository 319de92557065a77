//! Execution of calls, with cancellation by the rules of their eras and with the messages before
//! their responses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use opentelemetry::context::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::client_events::ClientEventSender;
use super::failure_lines::FailureLines;
use super::in_flight::InFlightCall;
use crate::session::dialect::{ResultForm, ServerIdentity};
use crate::session::token::Nonce;
use crate::session::tools::is_tool_result;
use crate::session::{
    CallOutcome, CallPermit, CallPermits, MAX_DEPTH, PreparedCall, SessionSharedState, Sessions,
};
use base::platform::heap::pin_in_place;
use base::seal::random;
use calls::Router;
use calls::call_channel::CallChannel;
use domain::calls::call::{Call, Request};
use domain::fault::{CorrelationId, Fault, TransportFault, UpstreamFault};
use domain::time::unix_time::UnixSeconds;
use policy::{CallRecord, Gate, RecordOutcome, ResultDigest};
use telemetry::{End, ServerAttributes, ServerOperation};
use upstream::call::result_memory;

/// Runs the calls of clients under one configuration.
pub(in crate::session) struct Calls {
    pub gate: Arc<Gate>,
    pub router: Arc<Router>,
    pub identity: Arc<ServerIdentity>,
    /// `server.limits.request`: the longest time of one call.
    pub timeout: Duration,
    pub shared: Arc<SessionSharedState>,
}

impl Calls {
    /// Begins the server span of the call. Requests to upstreams become its children.
    fn begin(&self, pending: &mut PreparedCall) -> ServerOperation {
        let PreparedCall { id, dialect, call, nonce, transport_kind, .. } = pending;
        let attributes = ServerAttributes {
            method: call.request.method_label(),
            revision: dialect.revision().as_str(),
            transport: *transport_kind,
            session: nonce.as_ref().map(|nonce| nonce.as_bytes().as_slice()),
            id: id.text(),
            target: call.request.attribute(),
            client: call.address,
        };
        ServerOperation::begin(self.gate.telemetry(), attributes, &mut call.forwarded.trace)
    }

    async fn run(
        &self,
        pending: &PreparedCall,
        operation: ServerOperation,
        outgoing: Option<mpsc::Sender<String>>,
        permit: &dyn CallPermit,
        now: UnixSeconds,
    ) -> CallOutcome {
        let PreparedCall { dialect, form, call, nonce, in_flight, progress_token, .. } = pending;
        let dialect = *dialect;
        let began = Instant::now();
        let deadline = began + self.timeout;
        let (channel, call_events) = CallChannel::of(call.client);
        let record = self.gate.record(call);
        let mut digest = ResultDigest::Text;
        let answer = async {
            let reply = self.router.route(call, &record, &channel, deadline, now).await?;
            digest = reply.digest();
            // No event can follow: the receiver gets the end of the channel.
            drop(channel);
            Ok(dialect.reply(&reply, *form, &self.identity))
        };
        let mut events = call_events.zip(outgoing).map(|(events, outgoing)| {
            let token = progress_token.clone();
            let shared = &self.shared;
            ClientEventSender::new(shared, dialect, events, outgoing, permit, *nonce, token)
        });
        // During a drain no request is accepted, and so no response to a server request.
        let gone = pending.input_closed.as_ref().unwrap_or(&self.shared.drain);
        let outcome = tokio::select! {
            biased;
            () = forward(&mut events, gone) => CallOutcome::Fault(Fault::Internal),
            // Checked before the answer, which at shutdown is only the fault that the upstream's
            // driver has ended.
            () = self.shared.stop.cancelled() => CallOutcome::Fault(TransportFault::ShuttingDown.into()),
            answer = answer => answer.map_or_else(CallOutcome::Fault, CallOutcome::Result),
            () = cancelled(in_flight.as_ref()) => CallOutcome::Cancelled,
        };
        if let Some(events) = events {
            events.finish();
        }
        self.complete(pending, &record, outcome, &digest, operation).await
    }

    /// Records the outcome of the call, ends its span, and returns the outcome for the client.
    async fn complete(
        &self,
        pending: &PreparedCall,
        record: &CallRecord,
        outcome: CallOutcome,
        digest: &ResultDigest,
        operation: ServerOperation,
    ) -> CallOutcome {
        let PreparedCall { dialect, form, call, nonce, .. } = pending;
        let outcome = with_room(outcome);
        let outcome = correlated(outcome, call, &self.shared.failure_lines);
        let recorded = match &outcome {
            CallOutcome::Result(result) => RecordOutcome::Result { result, digest },
            CallOutcome::Fault(fault) => RecordOutcome::Fault(fault),
            CallOutcome::Cancelled => RecordOutcome::Cancelled,
        };
        let outcome = match self.gate.complete(record, &call.caller, recorded).await {
            Ok(()) => outcome,
            Err(fault) => CallOutcome::Fault(fault.into()),
        };
        operation.end(match &outcome {
            CallOutcome::Result(_) => End::Well,
            CallOutcome::Fault(fault) => End::Fault(fault),
            CallOutcome::Cancelled => End::Cancelled,
        });
        if let Some(nonce) = *nonce {
            self.note(&outcome, &call.request, nonce);
        }
        match outcome {
            // Audit and metrics keep the fault; only the result of the tool hides it.
            CallOutcome::Fault(fault) if *form == ResultForm::Tool && is_tool_result(&fault) => {
                CallOutcome::Result(dialect.tool_error(&fault, &self.identity).into())
            }
            outcome => outcome,
        }
    }

    /// Keeps the state of a session or connection that the outcome changes: its log level, and the
    /// URL elicitations that its user must complete.
    fn note(&self, outcome: &CallOutcome, request: &Request, nonce: Nonce) {
        match (outcome, request) {
            (CallOutcome::Result(_), Request::Passthrough(passthrough)) => {
                if let Some(level) = passthrough.log_level {
                    self.shared.log_levels.insert(nonce, level);
                }
            }
            (CallOutcome::Fault(fault), _) => {
                self.shared.url_elicitations.note_all(fault, nonce, MAX_DEPTH);
            }
            _ => {}
        }
    }
}

/// Forwards events as [`ClientEventSender::forward`] does; without a sender it never completes.
async fn forward(events: &mut Option<ClientEventSender<'_>>, input_closed: &CancellationToken) {
    match events {
        Some(events) => events.forward(input_closed).await,
        None => std::future::pending().await,
    }
}

/// Waits until the client cancels the call, which never happens without a registration.
async fn cancelled(in_flight: Option<&InFlightCall>) {
    match in_flight {
        Some(in_flight) => in_flight.cancelled().await,
        None => std::future::pending().await,
    }
}

/// Counts the memory of a result. Without room, now or while it was received, the call is refused.
fn with_room(outcome: CallOutcome) -> CallOutcome {
    let has_room = match &outcome {
        CallOutcome::Result(result) => {
            result_memory::grow_to(result.size() - result.kept_elsewhere()).is_ok()
        }
        CallOutcome::Fault(_) => !result_memory::is_refused(),
        CallOutcome::Cancelled => true,
    };
    if has_room { outcome } else { CallOutcome::Fault(TransportFault::Overloaded.into()) }
}

/// Logs the details of a fault that callers must not learn, under an id that the error shows. The
/// audit log has the details of each call, the gateway's log only those of some calls.
fn correlated(outcome: CallOutcome, call: &Call, lines: &FailureLines) -> CallOutcome {
    match outcome {
        CallOutcome::Fault(Fault::Upstream(fault)) if fault.kind.is_logged() => {
            let id = CorrelationId(random());
            let UpstreamFault { upstream, kind, .. } = &fault;
            if let Some(count) = lines.due(upstream, kind.reason(), Instant::now()) {
                let caller = call.caller.id();
                let prompt = call.request.prompt_name();
                let trace_id = call.forwarded.trace.id();
                // A text of the upstream may repeat the arguments.
                let has_values = call.request.has_values();
                let error = if has_values { kind.recorded() } else { kind.diagnosis() };
                info!(upstream, prompt, caller, trace_id, correlation = %id, error, count, "call failed");
            }
            CallOutcome::Fault(UpstreamFault { correlation: Some(id), ..fault }.into())
        }
        outcome => outcome,
    }
}

/// A call in progress. Dropping it cancels the call in the modern era over HTTP, where the client
/// cancels by disconnecting. Otherwise a dropped call continues in a separate task.
pub struct RunningCall {
    /// `None` after the outcome.
    place: Option<CallPlace>,
    cancels_on_drop: bool,
    tasks: TaskTracker,
    gate: Arc<Gate>,
}

enum CallPlace {
    /// Polled with this future.
    Here(Performing),
    Task(JoinHandle<CallOutcome>),
}

type Performing = Pin<Box<dyn Future<Output = CallOutcome> + Send>>;

impl RunningCall {
    /// Returns a call that runs where it is polled, until it is moved to a separate task.
    /// `permits` are held until the call has ended. Messages before the response go to `outgoing`,
    /// where the client accepts any. `now` is the wall-clock time.
    pub fn new(
        sessions: Arc<Sessions>,
        mut pending: PreparedCall,
        permits: CallPermits,
        outgoing: Option<mpsc::Sender<String>>,
        now: UnixSeconds,
    ) -> Self {
        let cancels_on_drop = pending.dialect.cancels_on_disconnect() && pending.nonce.is_none();
        let operation = sessions.calls.begin(&mut pending);
        let context = operation.context();
        let tasks = sessions.shared.tasks.clone();
        let gate = sessions.gate.clone();
        let performing = || async move {
            let CallPermits { call, budget } = permits;
            let running = sessions.calls.run(&pending, operation, outgoing, &*call, now);
            result_memory::counting(budget, running).await
        };
        let place = CallPlace::Here(match context {
            // Log records of the call belong to its trace.
            Some(context) => pin_in_place(|| performing().with_context(context)),
            None => pin_in_place(performing),
        });
        Self { place: Some(place), cancels_on_drop, tasks, gate }
    }

    /// Moves the call to a separate task, so that the deadline holds even if this future is not
    /// polled.
    #[must_use]
    pub fn in_task(mut self) -> Self {
        self.place = self.place.take().map(|place| match place {
            CallPlace::Here(performing) => CallPlace::Task(self.tasks.spawn(performing)),
            task => task,
        });
        self
    }
}

impl Future for RunningCall {
    type Output = CallOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CallOutcome> {
        let outcome = match &mut self.place {
            None => return Poll::Pending,
            Some(CallPlace::Task(task)) => {
                ready!(Pin::new(task).poll(context)).map_err(|error| error.is_panic())
            }
            Some(CallPlace::Here(performing)) => {
                // A panic ends this call, and not the connection. The future is not polled again.
                let polled = AssertUnwindSafe(|| performing.as_mut().poll(context));
                match catch_unwind(polled) {
                    Ok(polled) => Ok(ready!(polled)),
                    Err(_) => Err(true),
                }
            }
        };
        self.place = None;
        Poll::Ready(outcome.unwrap_or_else(|has_panicked| {
            if has_panicked {
                self.gate.note_panic();
            }
            CallOutcome::Fault(Fault::Internal)
        }))
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        match self.place.take() {
            Some(CallPlace::Task(task)) if self.cancels_on_drop => task.abort(),
            // Without a runtime the process is about to end.
            Some(CallPlace::Here(performing))
                if !self.cancels_on_drop && Handle::try_current().is_ok() =>
            {
                self.tasks.spawn(performing);
            }
            _ => {}
        }
    }
}
