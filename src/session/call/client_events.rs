//! What goes to a client before its answer: progress, questions, and that a page is done.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::server_requests::{PendingServerRequest, PendingServerRequests};
use crate::domain::json::Json;
use crate::domain::jsonrpc::Id;
use crate::router::call_channel::CallEvent;
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
    nonce: Nonce,
    progress_token: Option<Id>,
    /// The last that was told: it must increase with each notification (2025-11-25, progress).
    progress: f64,
    server_requests: &'a PendingServerRequests,
    url_elicitations: &'a PendingUrlElicitations,
    pending: Vec<PendingServerRequest>,
}

impl<'a> ClientEventSender<'a> {
    /// Tells the client of the session or connection `nonce`, which calls its progress
    /// `progress_token`.
    pub(crate) fn new(
        sessions: &'a Sessions,
        dialect: Dialect,
        outgoing: mpsc::Sender<String>,
        place: &'a dyn CallPermit,
        nonce: Option<Nonce>,
        progress_token: Option<Id>,
    ) -> Self {
        Self {
            dialect,
            outgoing,
            place,
            nonce: nonce.unwrap_or_default(),
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
            // Nobody waits for the answer any more.
            CallEvent::ServerRequest { answer, .. } if answer.is_closed() => None,
            // Too many users think: whoever asks hears that nobody answers.
            CallEvent::ServerRequest { .. } if !self.place.suspend() => None,
            CallEvent::ServerRequest { server_request, origin, answer } => {
                if let Some(id) = server_request.page_id() {
                    let upstream = origin.upstream.as_str().into();
                    self.url_elicitations.note(UrlElicitationComplete { upstream, id }, self.nonce);
                }
                let text = server_request.clone();
                let pending = self.server_requests.register(self.nonce, server_request, answer);
                let message = dialect.server_request(pending.id(), &text, &origin);
                self.pending.push(pending);
                Some(message)
            }
        }
    }

    fn progress(&mut self, params: Json<'_>) -> Option<String> {
        let progress: f64 = params.get("progress")?.text().parse().ok()?;
        let token = self.progress_token.as_ref()?;
        let is_more = progress > self.progress;
        self.progress = self.progress.max(progress);
        is_more.then(|| self.dialect.progress(token, params))
    }
}
