//! What goes to a client before its answer: progress, questions, and that a page is done.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::server_requests::{PendingServerRequest, PendingServerRequests};
use crate::domain::json::Json;
use crate::domain::jsonrpc::Id;
use crate::router::call_channel::News;
use crate::session::dialect::Dialect;
use crate::session::notify::url_elicitations::Visits;
use crate::session::token::Nonce;
use crate::session::{CallPlace, Sessions};
use crate::upstream::call::correlator::UrlElicitationComplete;

/// Writes what is said before an answer.
pub(crate) struct Teller<'a> {
    dialect: Dialect,
    told: mpsc::Sender<String>,
    place: &'a dyn CallPlace,
    nonce: Nonce,
    progress_token: Option<Id>,
    /// The last that was told: it must increase with each notification (2025-11-25, progress).
    progress: f64,
    server_requests: &'a PendingServerRequests,
    visits: &'a Visits,
    pending: Vec<PendingServerRequest>,
}

impl<'a> Teller<'a> {
    /// Tells the client of the session or connection `nonce`, which calls its progress
    /// `progress_token`.
    pub(crate) fn new(
        sessions: &'a Sessions,
        dialect: Dialect,
        told: mpsc::Sender<String>,
        place: &'a dyn CallPlace,
        nonce: Option<Nonce>,
        progress_token: Option<Id>,
    ) -> Self {
        Self {
            dialect,
            told,
            place,
            nonce: nonce.unwrap_or_default(),
            progress_token,
            progress: f64::NEG_INFINITY,
            server_requests: &sessions.lasting.server_requests,
            visits: &sessions.lasting.visits,
            pending: Vec::new(),
        }
    }

    /// Tells as long as the call runs. Once nobody reads, or nothing comes back, whoever waits for
    /// an answer is told so at once.
    pub(crate) async fn tell_all(
        &mut self,
        news: &mut mpsc::Receiver<News>,
        gone: &CancellationToken,
    ) {
        let told = self.told.clone();
        let telling = async {
            // A place first: what was taken off the line is never lost.
            while let Ok(place) = told.reserve().await {
                let next = tokio::select! {
                    next = news.recv() => next,
                    () = told.closed() => return,
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
    pub(crate) fn finish(mut self, news: &mut mpsc::Receiver<News>) {
        while let Ok(last) = news.try_recv() {
            if !matches!(last, News::ServerRequest { .. })
                && let Some(message) = self.dress(last)
            {
                let _ = self.told.try_send(message);
            }
        }
        for pending in self.pending.iter().filter(|pending| pending.is_open()) {
            let _ = self.told.try_send(self.dialect.cancelled(pending.id()));
        }
    }

    fn dress(&mut self, news: News) -> Option<String> {
        let dialect = self.dialect;
        match news {
            News::Progress(params) => self.progress(params.json()),
            News::UrlElicitationComplete(params) => {
                let id = params.json().get("elicitationId").and_then(Json::as_str)?.into_owned();
                dialect.hears_of_pages().then(|| dialect.page_done(&id))
            }
            // Nobody waits for the answer any more.
            News::ServerRequest { answer, .. } if answer.is_closed() => None,
            // Too many users think: whoever asks hears that nobody answers.
            News::ServerRequest { .. } if !self.place.think() => None,
            News::ServerRequest { server_request, origin, answer } => {
                if let Some(id) = server_request.page_id() {
                    let upstream = origin.upstream.as_str().into();
                    self.visits.note(UrlElicitationComplete { upstream, id }, self.nonce);
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
