//! Messages to the client before the response to its call: progress, log messages, server requests,
//! and completed URL elicitations.

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::server_requests::{PendingServerRequest, PendingServerRequests};
use crate::session::call::url_elicitations::PendingUrlElicitations;
use crate::session::dialect::Dialect;
use crate::session::token::Nonce;
use crate::session::{CallPermit, SessionSharedState};
use calls::call_channel::CallEvent;
use catalog::reply::RequestOrigin;
use domain::json::Json;
use domain::json::jsonrpc::Id;
use domain::protocol::server_request::{Answer, ServerRequest};
use upstream::call::correlator::UrlElicitationComplete;

/// Sender of the messages before the response to one call.
pub(crate) struct ClientEventSender<'a> {
    dialect: Dialect,
    events: mpsc::Receiver<CallEvent>,
    outgoing: mpsc::Sender<String>,
    permit: &'a dyn CallPermit,
    /// The session or connection of the call; `None` where the gateway cannot send requests to the
    /// client.
    session: Option<Nonce>,
    progress_token: Option<Id>,
    /// The last progress value that was sent: it must increase with each notification (MCP
    /// 2025-11-25, progress).
    progress: f64,
    /// Whether the client can send no more messages, such as an answer.
    is_input_closed: bool,
    server_requests: &'a PendingServerRequests,
    url_elicitations: &'a PendingUrlElicitations,
    /// The server requests that were sent for this call.
    pending: Vec<PendingServerRequest>,
}

impl<'a> ClientEventSender<'a> {
    /// Messages about `events` are sent to `outgoing`. `session` is the session or connection of
    /// the call; `progress_token` is the client's token.
    pub(crate) fn new(
        shared: &'a SessionSharedState,
        dialect: Dialect,
        events: mpsc::Receiver<CallEvent>,
        outgoing: mpsc::Sender<String>,
        permit: &'a dyn CallPermit,
        session: Option<Nonce>,
        progress_token: Option<Id>,
    ) -> Self {
        Self {
            dialect,
            events,
            outgoing,
            permit,
            session,
            progress_token,
            progress: f64::NEG_INFINITY,
            is_input_closed: false,
            server_requests: &shared.server_requests,
            url_elicitations: &shared.url_elicitations,
            pending: Vec::new(),
        }
    }

    /// Forwards events until the future is dropped; never completes. When the client no longer
    /// reads the messages, or can send no more messages (`input_closed`), pending server requests
    /// are withdrawn and later ones are refused at once, so that the upstream does not wait.
    ///
    /// # Cancel safety
    /// Cancel safe: until the input is closed, an event is received from the channel only when
    /// there is room to send its message.
    pub(crate) async fn forward(&mut self, input_closed: &CancellationToken) {
        match input_closed.run_until_cancelled(self.forward_events()).await {
            None => self.withdraw_all(),
            // The client no longer reads.
            Some(()) => self.pending.clear(),
        }
        self.is_input_closed = true;
        while let Some(event) = self.events.recv().await {
            if let Some(message) = self.message(event) {
                // Without room the notification is dropped: later progress replaces it. No server
                // request waits for room.
                let _ = self.outgoing.try_send(message);
            }
        }
        std::future::pending().await
    }

    /// Forwards events until the client no longer reads the messages. Cancel safe.
    async fn forward_events(&mut self) {
        let outgoing = self.outgoing.clone();
        while let Ok(room) = outgoing.reserve().await {
            let event = tokio::select! {
                Some(event) = self.events.recv() => event,
                // After the last event only the client's end is left to wait for.
                () = outgoing.closed() => return,
            };
            if let Some(message) = self.message(event) {
                room.send(message);
            }
        }
    }

    /// Sends the remaining events before the response, and withdraws the server requests that were
    /// not answered.
    pub(crate) fn finish(mut self) {
        while let Ok(event) = self.events.try_recv() {
            if !matches!(event, CallEvent::ServerRequest { .. })
                && let Some(message) = self.message(event)
            {
                let _ = self.outgoing.try_send(message);
            }
        }
        self.withdraw_all();
    }

    /// Withdraws all server requests that were not answered (`notifications/cancelled`), as far as
    /// there is room.
    fn withdraw_all(&mut self) {
        for pending in self.pending.drain(..).filter(PendingServerRequest::is_open) {
            let _ = self.outgoing.try_send(self.dialect.cancelled(pending.id()));
        }
    }

    /// Returns the message for an event, if the client gets one.
    fn message(&mut self, event: CallEvent) -> Option<String> {
        let dialect = self.dialect;
        match event {
            CallEvent::Progress(params) => self.progress(params.json()),
            CallEvent::Log(params) => Some(dialect.log_message(params.json())),
            CallEvent::UrlElicitationComplete(params) => {
                let id = params.json().get("elicitationId").and_then(Json::as_str)?.into_owned();
                dialect.has_elicitation_complete().then(|| dialect.elicitation_complete(&id))
            }
            CallEvent::ServerRequest { server_request, origin, answer } => {
                self.server_request(server_request, &origin, answer)
            }
            CallEvent::ServerRequestEnded => self.withdraw(),
        }
    }

    /// Registers a server request and returns its message. Returns `None` and drops `answer`, so
    /// that the upstream gets an error, when the call has no session to which a response could
    /// belong, when the upstream no longer waits, or when too many calls wait for input already.
    fn server_request(
        &mut self,
        server_request: ServerRequest,
        origin: &RequestOrigin,
        answer: oneshot::Sender<Answer>,
    ) -> Option<String> {
        let session = self.session?;
        if self.is_input_closed || answer.is_closed() || !self.permit.suspend() {
            return None;
        }
        if let Some(id) = server_request.elicitation_id() {
            let upstream = origin.upstream.as_str().into();
            self.url_elicitations.add(UrlElicitationComplete { upstream, id }, session);
        }
        let sent = server_request.clone();
        let pending = self.server_requests.register(session, server_request, answer);
        let message = self.dialect.server_request(pending.id(), &sent, origin);
        self.pending.push(pending);
        Some(message)
    }

    /// Withdraws a server request that has ended without an answer, and returns its
    /// `notifications/cancelled`. A late answer would be lost, and the user would see two questions
    /// (MCP 2025-11-25, lifecycle, timeouts).
    fn withdraw(&mut self) -> Option<String> {
        let at = self.pending.iter().position(PendingServerRequest::is_abandoned)?;
        let pending = self.pending.swap_remove(at);
        Some(self.dialect.cancelled(pending.id()))
    }

    /// Returns the progress notification, if the value has increased and the client has sent a
    /// progress token.
    fn progress(&mut self, params: Json<'_>) -> Option<String> {
        let progress: f64 = params.get("progress")?.text().parse().ok()?;
        let token = self.progress_token.as_ref()?;
        let is_more = progress > self.progress;
        self.progress = self.progress.max(progress);
        is_more.then(|| self.dialect.progress(token, params))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::protocol::revision::Revision;

    struct Unlimited;

    impl CallPermit for Unlimited {
        fn suspend(&self) -> bool {
            true
        }
    }

    fn sender<'a>(
        events: mpsc::Receiver<CallEvent>,
        outgoing: mpsc::Sender<String>,
        server_requests: &'a PendingServerRequests,
        url_elicitations: &'a PendingUrlElicitations,
    ) -> ClientEventSender<'a> {
        ClientEventSender {
            dialect: Dialect::new(Revision::V2025_11_25),
            events,
            outgoing,
            permit: &Unlimited,
            session: None,
            progress_token: None,
            progress: f64::NEG_INFINITY,
            is_input_closed: false,
            server_requests,
            url_elicitations,
            pending: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_last_event_a_call_waits_without_a_busy_loop() {
        let (server_requests, url_elicitations) =
            (PendingServerRequests::new(), PendingUrlElicitations::default());
        let (outgoing, _sent) = mpsc::channel(1);
        let (channel, events) = mpsc::channel(1);
        let mut events = sender(events, outgoing, &server_requests, &url_elicitations);
        drop(channel);
        let input_closed = CancellationToken::new();
        let mut forwarding = std::pin::pin!(events.forward(&input_closed));
        let mut polls = 0;
        let counted = std::future::poll_fn(|context| {
            polls += 1;
            forwarding.as_mut().poll(context)
        });
        // The clock only moves on while no task can run.
        let ended = tokio::time::timeout(std::time::Duration::from_secs(1), counted).await;
        assert!(ended.is_err());
        assert!(polls < 10, "{polls}");
    }

    #[tokio::test]
    async fn a_server_request_for_a_call_without_session_is_not_sent() {
        let (server_requests, url_elicitations) =
            (PendingServerRequests::new(), PendingUrlElicitations::default());
        let (outgoing, mut sent) = mpsc::channel(1);
        let (channel, events) = mpsc::channel(1);
        let mut events = sender(events, outgoing, &server_requests, &url_elicitations);
        let (answer, answered) = oneshot::channel();
        let server_request = ServerRequest::read("roots/list", None).unwrap();
        let origin = RequestOrigin { upstream: "up".to_owned(), label: false };
        let event = CallEvent::ServerRequest { server_request, origin, answer };
        channel.send(event).await.unwrap();
        let input_closed = CancellationToken::new();
        tokio::select! {
            () = events.forward(&input_closed) => {}
            answer = answered => assert!(answer.is_err()),
            message = sent.recv() => panic!("sent without a session: {message:?}"),
        }
    }
}
