//! What goes to a client before its answer: progress, questions, and that a page is done.

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::server_requests::{PendingServerRequest, PendingServerRequests};
use crate::domain::json::Json;
use crate::domain::jsonrpc::Id;
use crate::domain::server_request::{Answer, ServerRequest};
use crate::router::call_channel::{CallEvent, RequestOrigin};
use crate::session::dialect::Dialect;
use crate::session::notify::url_elicitations::PendingUrlElicitations;
use crate::session::token::Nonce;
use crate::session::{CallPermit, Sessions};
use crate::upstream::call::correlator::UrlElicitationComplete;

/// Writes what is said before an answer.
pub(crate) struct ClientEventSender<'a> {
    dialect: Dialect,
    outgoing: mpsc::Sender<String>,
    place: &'a dyn CallPermit,
    /// The session or connection of the call; `None` where the client cannot be sent requests.
    session: Option<Nonce>,
    progress_token: Option<Id>,
    /// The last that was told: it must increase with each notification (2025-11-25, progress).
    progress: f64,
    server_requests: &'a PendingServerRequests,
    url_elicitations: &'a PendingUrlElicitations,
    pending: Vec<PendingServerRequest>,
}

impl<'a> ClientEventSender<'a> {
    /// Tells the client of the session or connection `session`, which calls its progress
    /// `progress_token`.
    pub(crate) fn new(
        sessions: &'a Sessions,
        dialect: Dialect,
        outgoing: mpsc::Sender<String>,
        place: &'a dyn CallPermit,
        session: Option<Nonce>,
        progress_token: Option<Id>,
    ) -> Self {
        Self {
            dialect,
            outgoing,
            place,
            session,
            progress_token,
            progress: f64::NEG_INFINITY,
            server_requests: &sessions.shared.server_requests,
            url_elicitations: &sessions.shared.url_elicitations,
            pending: Vec::new(),
        }
    }

    /// Tells as long as the call runs. Once nobody reads, or nothing comes back, whoever waits for
    /// an answer is told so at once.
    pub(crate) async fn forward(
        &mut self,
        news: &mut mpsc::Receiver<CallEvent>,
        gone: &CancellationToken,
    ) {
        let outgoing = self.outgoing.clone();
        let telling = async {
            // A place first: what was taken off the line is never lost.
            while let Ok(place) = outgoing.reserve().await {
                let next = tokio::select! {
                    next = news.recv() => next,
                    () = outgoing.closed() => return,
                };
                if let Some(message) = next.and_then(|next| self.dress(next)) {
                    place.send(message);
                }
            }
        };
        gone.run_until_cancelled(telling).await;
        self.pending.clear();
        while news.recv().await.is_some() {}
        std::future::pending().await
    }

    /// What was said right before the answer goes out before it, and questions that nobody needs an
    /// answer to any more are taken back, as far as there is room.
    pub(crate) fn finish(mut self, news: &mut mpsc::Receiver<CallEvent>) {
        while let Ok(last) = news.try_recv() {
            if !matches!(last, CallEvent::ServerRequest { .. })
                && let Some(message) = self.dress(last)
            {
                let _ = self.outgoing.try_send(message);
            }
        }
        for pending in self.pending.iter().filter(|pending| pending.is_open()) {
            let _ = self.outgoing.try_send(self.dialect.cancelled(pending.id()));
        }
    }

    fn dress(&mut self, news: CallEvent) -> Option<String> {
        let dialect = self.dialect;
        match news {
            CallEvent::Progress(params) => self.progress(params.json()),
            CallEvent::UrlElicitationComplete(params) => {
                let id = params.json().get("elicitationId").and_then(Json::as_str)?.into_owned();
                dialect.has_elicitation_complete().then(|| dialect.elicitation_complete(&id))
            }
            CallEvent::ServerRequest { server_request, origin, answer } => {
                self.server_request(server_request, &origin, answer)
            }
        }
    }

    /// Nothing is sent, and the upstream gets no answer, where nobody could answer: the call has no
    /// session, does not wait any more, or too many users think already.
    fn server_request(
        &mut self,
        server_request: ServerRequest,
        origin: &RequestOrigin,
        answer: oneshot::Sender<Answer>,
    ) -> Option<String> {
        let session = self.session?;
        if answer.is_closed() || !self.place.suspend() {
            return None;
        }
        if let Some(id) = server_request.page_id() {
            let upstream = origin.upstream.as_str().into();
            self.url_elicitations.note(UrlElicitationComplete { upstream, id }, session);
        }
        let text = server_request.clone();
        let pending = self.server_requests.register(session, server_request, answer);
        let message = self.dialect.server_request(pending.id(), &text, origin);
        self.pending.push(pending);
        Some(message)
    }

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
    use crate::domain::revision::Revision;

    struct Unlimited;

    impl CallPermit for Unlimited {
        fn suspend(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn a_server_request_for_a_call_without_session_is_not_sent() {
        let (server_requests, url_elicitations) = Default::default();
        let (outgoing, mut sent) = mpsc::channel(1);
        let mut events = ClientEventSender {
            dialect: Dialect::new(Revision::V2025_11_25),
            outgoing,
            place: &Unlimited,
            session: None,
            progress_token: None,
            progress: f64::NEG_INFINITY,
            server_requests: &server_requests,
            url_elicitations: &url_elicitations,
            pending: Vec::new(),
        };
        let (answer, answered) = oneshot::channel();
        let server_request = ServerRequest::read("roots/list", None).unwrap();
        let origin = RequestOrigin { upstream: "up".to_owned(), label: false };
        let (channel, mut received) = mpsc::channel(1);
        let event = CallEvent::ServerRequest { server_request, origin, answer };
        channel.send(event).await.unwrap();
        let gone = CancellationToken::new();
        tokio::select! {
            () = events.forward(&mut received, &gone) => {}
            answer = answered => assert!(answer.is_err()),
            message = sent.recv() => panic!("sent to an unknown client: {message:?}"),
        }
    }
}
