//! What an upstream says in the middle of a call, and who hears it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dashmap::DashMap;
use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tracing::debug;

use super::reply;
use crate::audit::Audit;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::Json;
use crate::domain::jsonrpc::{Frame, Id};
use crate::domain::method::{ELICITATION_COMPLETE, LIST_CHANGED, PROGRESS};
use crate::domain::server_request::{
    Answer, ClientCapabilities, ServerRequest, ServerRequestError,
};
use crate::telemetry::Telemetry;
use crate::upstream::transport::stderr_tail::StderrTail;

/// Something that is said before the answer.
#[derive(Debug)]
pub enum InterimMessage {
    /// `params` of `notifications/progress`.
    Progress(Document),
    /// `params` of `notifications/elicitation/complete`.
    UrlElicitationComplete(Document),
    ServerRequest {
        server_request: ServerRequest,
        answer: oneshot::Sender<Answer>,
    },
}

/// The ear of one call.
#[derive(Clone, Debug)]
pub struct InterimSender {
    sender: mpsc::Sender<InterimMessage>,
    /// What this call's client may be asked by this upstream.
    capabilities: ClientCapabilities,
    progress: bool,
}

/// Asides that wait to be heard. Progress beyond that is dropped, questions are refused: whoever
/// listens takes them at once, unless a user is thinking.
const WAITING: usize = 16;

/// Who hears what an upstream says to nobody in particular.
#[derive(Clone, Debug)]
pub struct NotificationSinks {
    /// Id of the upstream.
    pub upstream: Arc<str>,
    /// Told of `list_changed`; absent where that only repeats what another connection says.
    pub changed: Option<Arc<Notify>>,
    pub pages: broadcast::Sender<UrlElicitationComplete>,
    pub audit: Audit,
    pub telemetry: Telemetry,
    /// Of a child, on standard error.
    pub stderr_tail: Arc<StderrTail>,
}

/// A user has done what a page was for (2025-11-25, `notifications/elicitation/complete`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UrlElicitationComplete {
    /// Id of the upstream.
    pub upstream: Arc<str>,
    /// `elicitationId`
    pub id: String,
}

/// Pages done that wait to be told to whoever visited them. They are few, and each may be missed:
/// its user knows it, too.
const PAGES: usize = 64;

impl NotificationSinks {
    /// Those of an upstream whose notices nobody else hears.
    pub fn new(upstream: &str) -> Self {
        let (pages, _) = broadcast::channel(1);
        let (upstream, audit) = (upstream.into(), Audit::default());
        let (telemetry, stderr_tail) = (Telemetry::silent(), Arc::default());
        Self { upstream, changed: None, pages, audit, telemetry, stderr_tail }
    }

    /// Where all upstreams tell of pages.
    pub fn pages() -> broadcast::Sender<UrlElicitationComplete> {
        broadcast::channel(PAGES).0
    }

    /// The same, for a connection whose `list_changed` only repeats another one's.
    pub fn without_changes(&self) -> Self {
        Self { changed: None, ..self.clone() }
    }
}

/// What is to be said back.
pub enum Followup {
    Nothing,
    Now(String),
    /// The answer to the upstream's request of this id, once there is one.
    Later(Id, oneshot::Receiver<Answer>),
}

impl InterimSender {
    pub fn channel(
        capabilities: ClientCapabilities,
        progress: bool,
    ) -> (Self, mpsc::Receiver<InterimMessage>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { sender, capabilities, progress }, receiver)
    }

    fn server_request(&self, id: Id, server_request: ServerRequest) -> Followup {
        if !self.capabilities.contains(server_request.needs()) {
            return Followup::Now(reply::not_offered(&id));
        }
        let (answer, later) = oneshot::channel();
        match self.sender.try_send(InterimMessage::ServerRequest { server_request, answer }) {
            Ok(()) => Followup::Later(id, later),
            Err(_) => Followup::Now(reply::unanswered(&id)),
        }
    }

    /// The same ear, for one that may not ask.
    pub fn without_server_requests(mut self) -> Self {
        self.capabilities = ClientCapabilities::NONE;
        self
    }

    fn progress(&self, params: Json<'_>) {
        if self.progress {
            let _ = self.sender.try_send(InterimMessage::Progress(Document::copy_of(params)));
        }
    }

    fn page_done(&self, params: Json<'_>) {
        if self.capabilities.contains(ClientCapabilities::URL) {
            let _ = self
                .sender
                .try_send(InterimMessage::UrlElicitationComplete(Document::copy_of(params)));
        }
    }
}

/// Who waits for what on one connection. Entries are as many as calls are in flight on it.
#[derive(Debug)]
pub struct Correlator {
    /// Requests whose answers come on a stream that all share.
    answers: DashMap<Id, oneshot::Sender<Result<Document, Kind>>>,
    /// Calls that hear what is said before their answer.
    interim: DashMap<Id, InterimSender>,
    /// Whether the upstream may send requests: legacy ones may, modern ones may not.
    accepts_requests: AtomicBool,
    /// A question came of which nobody could tell whose it was.
    is_ambiguous: AtomicBool,
    /// A question came that was tied to no call.
    has_unassociated_requests: AtomicBool,
    /// A call that could be asked was given up before its answer.
    has_orphans: AtomicBool,
    sinks: NotificationSinks,
}

impl Correlator {
    pub fn new(sinks: NotificationSinks) -> Arc<Self> {
        Arc::new(Self {
            answers: DashMap::new(),
            interim: DashMap::new(),
            accepts_requests: AtomicBool::new(false),
            is_ambiguous: AtomicBool::new(false),
            has_unassociated_requests: AtomicBool::new(false),
            has_orphans: AtomicBool::new(false),
            sinks,
        })
    }

    /// Says whether requests of the upstream are answered; the others are dropped.
    pub fn set_accepts_requests(&self, accepts_requests: bool) {
        self.accepts_requests.store(accepts_requests, Ordering::Relaxed);
    }

    /// Whether calls have to go one at a time, lest their questions be mixed up.
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous.load(Ordering::Relaxed)
    }

    /// Whether questions come that are tied to no call.
    pub fn has_unassociated_requests(&self) -> bool {
        self.has_unassociated_requests.load(Ordering::Relaxed)
    }

    /// Whether a call that nobody waits for any more might still ask.
    pub fn has_orphans(&self) -> bool {
        self.has_orphans.load(Ordering::Relaxed)
    }

    /// Lets a call hear what is said before its answer, as long as the guard lives.
    pub fn register(self: &Arc<Self>, id: &Id, interim: Option<InterimSender>) -> Registration {
        Registration(interim.map(|interim| {
            let capabilities = !interim.capabilities.is_none();
            self.interim.insert(id.clone(), interim);
            Entry { correlator: self.clone(), id: id.clone(), may_be_orphan: capabilities }
        }))
    }

    /// Waits for an answer that comes on the shared stream.
    pub fn expect(&self, id: &Id) -> oneshot::Receiver<Result<Document, Kind>> {
        let (sender, answer) = oneshot::channel();
        self.answers.insert(id.clone(), sender);
        answer
    }

    /// Takes a request back; whether it was still waiting.
    pub fn forget(&self, id: &Id) -> bool {
        self.answers.remove(id).is_some()
    }

    /// Nothing will be answered any more: whoever waits is told at once, not at its deadline.
    pub fn close(&self) {
        self.answers.clear();
    }

    /// Takes in a message of the shared stream.
    pub fn deliver(&self, message: Document) -> Followup {
        match Frame::read(message.json()) {
            Ok(Frame::Response { .. }) | Err(_) => {
                let id = message.json().get("id").and_then(Id::read);
                if let Some((id, waiting)) = id.and_then(|id| self.answers.remove(&id))
                    && let Some(answer) = reply::read(&id, message)
                {
                    // Nobody may wait any more.
                    let _ = waiting.send(answer);
                }
                Followup::Nothing
            }
            Ok(frame) => self.dispatch(frame, None),
        }
    }

    /// Takes in what is no response. `call` is the request on whose own stream it came.
    pub fn dispatch(&self, frame: Frame<'_>, call: Option<&Id>) -> Followup {
        match frame {
            Frame::Request { id, method, params } => self.request(id, &method, params, call),
            Frame::Notification { method, params } => {
                self.notification(&method, params, call);
                Followup::Nothing
            }
            Frame::Response { .. } => Followup::Nothing,
        }
    }

    fn request(
        &self,
        id: Id,
        method: &str,
        params: Option<Json<'_>>,
        call: Option<&Id>,
    ) -> Followup {
        if !self.accepts_requests.load(Ordering::Relaxed) {
            debug!(method = method.escape_debug().to_string(), "a request that is not its to send");
            return Followup::Nothing;
        }
        let server_request = ServerRequest::read(method, params);
        if server_request.is_ok() && call.is_none() {
            self.has_unassociated_requests.store(true, Ordering::Relaxed);
        }
        match (server_request, self.sender_of(call)) {
            (Ok(server_request), Some(interim)) => interim.server_request(id, server_request),
            (Ok(_), None) => Followup::Now(reply::not_offered(&id)),
            (Err(ServerRequestError::Malformed(what)), _) => {
                Followup::Now(reply::malformed(&id, what))
            }
            (Err(ServerRequestError::Unknown), _) => Followup::Now(reply::to_request(&id, method)),
        }
    }

    fn notification(&self, method: &str, params: Option<Json<'_>>, call: Option<&Id>) {
        match (method, params) {
            (LIST_CHANGED, _) => {
                if let Some(changed) = &self.sinks.changed {
                    self.sinks.telemetry.metrics().list_changed_received(&self.sinks.upstream);
                    changed.notify_one();
                }
            }
            (PROGRESS, Some(params)) => {
                // The token of a call is its id.
                let token = params.get("progressToken").and_then(Id::read);
                if let Some(interim) = token.and_then(|token| self.interim.get(&token)) {
                    interim.progress(params);
                }
            }
            // What is tied to no call may be about one that has ended.
            (ELICITATION_COMPLETE, Some(params)) => {
                match call.and_then(|id| self.interim.get(id)) {
                    Some(interim) => interim.page_done(params),
                    None => {
                        if let Some(id) = params.get("elicitationId").and_then(Json::as_str) {
                            let (upstream, id) = (self.sinks.upstream.clone(), id.into_owned());
                            // Nobody may be listening.
                            let _ = self.sinks.pages.send(UrlElicitationComplete { upstream, id });
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// The call that something belongs to: the one on whose stream it came, or the only one.
    fn sender_of(&self, call: Option<&Id>) -> Option<InterimSender> {
        match call {
            Some(id) => self.interim.get(id).map(|interim| interim.clone()),
            None if self.interim.len() > 1 || self.has_orphans() => {
                self.is_ambiguous.store(true, Ordering::Relaxed);
                None
            }
            None => self.interim.iter().next().map(|entry| entry.clone()),
        }
    }
}

/// A call hears as long as this lives. Dropped before the call is over, it leaves an orphan.
pub struct Registration(Option<Entry>);

struct Entry {
    correlator: Arc<Correlator>,
    id: Id,
    may_be_orphan: bool,
}

impl Registration {
    /// The upstream has nothing more to say to the call.
    pub fn is_over(mut self) {
        if let Some(entry) = &mut self.0 {
            entry.may_be_orphan = false;
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.correlator.interim.remove(&self.id);
        if self.may_be_orphan {
            self.correlator.has_orphans.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: &str = r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"x","requestedSchema":{}}}"#;

    fn message(text: &str) -> Document {
        Document::parse(text.as_bytes().to_vec(), 16).unwrap()
    }

    fn accepting() -> Arc<Correlator> {
        let correlator = Correlator::new(NotificationSinks::new("up"));
        correlator.set_accepts_requests(true);
        correlator
    }

    fn said(heard: Followup) -> String {
        match heard {
            Followup::Now(text) => text,
            Followup::Nothing => "nothing".to_owned(),
            Followup::Later(..) => "later".to_owned(),
        }
    }

    #[test]
    fn u18_a_question_that_was_not_offered_is_refused_and_nobody_is_asked() {
        let correlator = accepting();
        assert!(said(correlator.deliver(message(QUESTION))).contains("-32601"));
        let (interim, mut heard) = InterimSender::channel(ClientCapabilities::ROOTS, false);
        let _listening = correlator.register(&Id::number(1), Some(interim));
        assert!(said(correlator.deliver(message(QUESTION))).contains("-32601"));
        assert!(heard.try_recv().is_err());
        correlator.set_accepts_requests(false);
        assert_eq!(said(correlator.deliver(message(QUESTION))), "nothing");
    }

    #[test]
    fn a_question_goes_to_the_only_call_or_to_nobody() {
        let correlator = accepting();
        let (one, mut heard) = InterimSender::channel(ClientCapabilities::FORM, false);
        let (two, mut unheard) = InterimSender::channel(ClientCapabilities::FORM, false);
        let listening = correlator.register(&Id::number(1), Some(one));
        assert_eq!(said(correlator.deliver(message(QUESTION))), "later");
        assert!(matches!(heard.try_recv(), Ok(InterimMessage::ServerRequest { .. })));
        let also = correlator.register(&Id::number(2), Some(two));
        assert!(!correlator.is_ambiguous());
        assert!(said(correlator.deliver(message(QUESTION))).contains("-32601"));
        assert!(correlator.is_ambiguous());
        let text = message(QUESTION);
        let own = correlator.dispatch(Frame::read(text.json()).unwrap(), Some(&Id::number(2)));
        assert_eq!(said(own), "later", "on its own stream there is no doubt");
        assert!(unheard.try_recv().is_ok());
        listening.is_over();
        also.is_over();
        assert!(correlator.interim.is_empty() && !correlator.has_orphans());
    }

    #[test]
    fn a_question_of_a_call_that_was_given_up_goes_to_nobody() {
        let correlator = accepting();
        let (gone, _) = InterimSender::channel(ClientCapabilities::FORM, false);
        let (other, mut heard) = InterimSender::channel(ClientCapabilities::FORM, false);
        drop(correlator.register(&Id::number(1), Some(gone)));
        let _other = correlator.register(&Id::number(2), Some(other));
        assert!(correlator.has_orphans());
        assert!(said(correlator.deliver(message(QUESTION))).contains("-32601"));
        assert!(heard.try_recv().is_err());
    }

    #[test]
    fn progress_goes_to_the_call_that_it_names() {
        let correlator = accepting();
        let (interim, mut heard) = InterimSender::channel(ClientCapabilities::NONE, true);
        let _listening = correlator.register(&Id::number(7), Some(interim));
        let progress = |token: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
            );
            correlator.deliver(message(&text))
        };
        progress("8");
        progress("\"7\"");
        assert!(heard.try_recv().is_err());
        progress("7");
        assert!(matches!(heard.try_recv(), Ok(InterimMessage::Progress(_))));
        for _ in 0..1000 {
            progress("7");
        }
        assert_eq!(heard.len(), WAITING, "a flood is bounded");
    }
}
