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
use crate::upstream::transport::stderr_tail::LastWords;

/// Something that is said before the answer.
#[derive(Debug)]
pub enum Aside {
    /// `params` of `notifications/progress`.
    Progress(Document),
    /// `params` of `notifications/elicitation/complete`.
    PageDone(Document),
    ServerRequest {
        server_request: ServerRequest,
        answer: oneshot::Sender<Answer>,
    },
}

/// The ear of one call.
#[derive(Clone, Debug)]
pub struct Asides {
    sender: mpsc::Sender<Aside>,
    /// What this call's client may be asked by this upstream.
    capabilities: ClientCapabilities,
    progress: bool,
}

/// Asides that wait to be heard. Progress beyond that is dropped, questions are refused: whoever
/// listens takes them at once, unless a user is thinking.
const WAITING: usize = 16;

/// Who hears what an upstream says to nobody in particular.
#[derive(Clone, Debug)]
pub struct Ears {
    /// Id of the upstream.
    pub upstream: Arc<str>,
    /// Told of `list_changed`; absent where that only repeats what another connection says.
    pub changed: Option<Arc<Notify>>,
    pub pages: broadcast::Sender<PageDone>,
    pub audit: Audit,
    pub telemetry: Telemetry,
    /// Of a child, on standard error.
    pub last_words: Arc<LastWords>,
}

/// A user has done what a page was for (2025-11-25, `notifications/elicitation/complete`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PageDone {
    /// Id of the upstream.
    pub upstream: Arc<str>,
    /// `elicitationId`
    pub id: String,
}

/// Pages done that wait to be told to whoever visited them. They are few, and each may be missed:
/// its user knows it, too.
const PAGES: usize = 64;

impl Ears {
    /// Those of an upstream whose notices nobody else hears.
    pub fn new(upstream: &str) -> Self {
        let (pages, _) = broadcast::channel(1);
        let (upstream, audit) = (upstream.into(), Audit::default());
        let (telemetry, last_words) = (Telemetry::silent(), Arc::default());
        Self { upstream, changed: None, pages, audit, telemetry, last_words }
    }

    /// Where all upstreams tell of pages.
    pub fn pages() -> broadcast::Sender<PageDone> {
        broadcast::channel(PAGES).0
    }

    /// The same, for a connection whose `list_changed` only repeats another one's.
    pub fn without_changes(&self) -> Self {
        Self { changed: None, ..self.clone() }
    }
}

/// What is to be said back.
pub enum Heard {
    Nothing,
    Now(String),
    /// The answer to the upstream's request of this id, once there is one.
    Later(Id, oneshot::Receiver<Answer>),
}

impl Asides {
    pub fn channel(
        capabilities: ClientCapabilities,
        progress: bool,
    ) -> (Self, mpsc::Receiver<Aside>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { sender, capabilities, progress }, receiver)
    }

    fn server_request(&self, id: Id, server_request: ServerRequest) -> Heard {
        if !self.capabilities.contains(server_request.needs()) {
            return Heard::Now(reply::not_offered(&id));
        }
        let (answer, later) = oneshot::channel();
        match self.sender.try_send(Aside::ServerRequest { server_request, answer }) {
            Ok(()) => Heard::Later(id, later),
            Err(_) => Heard::Now(reply::unanswered(&id)),
        }
    }

    /// The same ear, for one that may not ask.
    pub fn without_questions(mut self) -> Self {
        self.capabilities = ClientCapabilities::NONE;
        self
    }

    fn progress(&self, params: Json<'_>) {
        if self.progress {
            let _ = self.sender.try_send(Aside::Progress(Document::copy_of(params)));
        }
    }

    fn page_done(&self, params: Json<'_>) {
        if self.capabilities.contains(ClientCapabilities::URL) {
            let _ = self.sender.try_send(Aside::PageDone(Document::copy_of(params)));
        }
    }
}

/// Who waits for what on one connection. Entries are as many as calls are in flight on it.
#[derive(Debug)]
pub struct Mailbox {
    /// Requests whose answers come on a stream that all share.
    answers: DashMap<Id, oneshot::Sender<Result<Document, Kind>>>,
    /// Calls that hear what is said before their answer.
    asides: DashMap<Id, Asides>,
    /// Whether the upstream may send requests: legacy ones may, modern ones may not.
    accepts_requests: AtomicBool,
    /// A question came of which nobody could tell whose it was.
    is_ambiguous: AtomicBool,
    /// A question came that was tied to no call.
    has_unassociated_requests: AtomicBool,
    /// A call that could be asked was given up before its answer.
    has_orphans: AtomicBool,
    ears: Ears,
}

impl Mailbox {
    pub fn new(ears: Ears) -> Arc<Self> {
        Arc::new(Self {
            answers: DashMap::new(),
            asides: DashMap::new(),
            accepts_requests: AtomicBool::new(false),
            is_ambiguous: AtomicBool::new(false),
            has_unassociated_requests: AtomicBool::new(false),
            has_orphans: AtomicBool::new(false),
            ears,
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
    pub fn listen(self: &Arc<Self>, id: &Id, asides: Option<Asides>) -> Listening {
        Listening(asides.map(|asides| {
            let capabilities = !asides.capabilities.is_none();
            self.asides.insert(id.clone(), asides);
            Entry { mailbox: self.clone(), id: id.clone(), may_be_orphan: capabilities }
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
    pub fn deliver(&self, message: Document) -> Heard {
        match Frame::read(message.json()) {
            Ok(Frame::Response { .. }) | Err(_) => {
                let id = message.json().get("id").and_then(Id::read);
                if let Some((id, waiting)) = id.and_then(|id| self.answers.remove(&id))
                    && let Some(answer) = reply::read(&id, message)
                {
                    // Nobody may wait any more.
                    let _ = waiting.send(answer);
                }
                Heard::Nothing
            }
            Ok(frame) => self.hear(frame, None),
        }
    }

    /// Takes in what is no response. `call` is the request on whose own stream it came.
    pub fn hear(&self, frame: Frame<'_>, call: Option<&Id>) -> Heard {
        match frame {
            Frame::Request { id, method, params } => self.request(id, &method, params, call),
            Frame::Notification { method, params } => {
                self.notification(&method, params, call);
                Heard::Nothing
            }
            Frame::Response { .. } => Heard::Nothing,
        }
    }

    fn request(&self, id: Id, method: &str, params: Option<Json<'_>>, call: Option<&Id>) -> Heard {
        if !self.accepts_requests.load(Ordering::Relaxed) {
            debug!(method = method.escape_debug().to_string(), "a request that is not its to send");
            return Heard::Nothing;
        }
        let server_request = ServerRequest::read(method, params);
        if server_request.is_ok() && call.is_none() {
            self.has_unassociated_requests.store(true, Ordering::Relaxed);
        }
        match (server_request, self.asides_of(call)) {
            (Ok(server_request), Some(asides)) => asides.server_request(id, server_request),
            (Ok(_), None) => Heard::Now(reply::not_offered(&id)),
            (Err(ServerRequestError::Malformed(what)), _) => {
                Heard::Now(reply::malformed(&id, what))
            }
            (Err(ServerRequestError::Unknown), _) => Heard::Now(reply::to_request(&id, method)),
        }
    }

    fn notification(&self, method: &str, params: Option<Json<'_>>, call: Option<&Id>) {
        match (method, params) {
            (LIST_CHANGED, _) => {
                if let Some(changed) = &self.ears.changed {
                    self.ears.telemetry.metrics().change_heard(&self.ears.upstream);
                    changed.notify_one();
                }
            }
            (PROGRESS, Some(params)) => {
                // The token of a call is its id.
                let token = params.get("progressToken").and_then(Id::read);
                if let Some(asides) = token.and_then(|token| self.asides.get(&token)) {
                    asides.progress(params);
                }
            }
            // What is tied to no call may be about one that has ended.
            (ELICITATION_COMPLETE, Some(params)) => match call.and_then(|id| self.asides.get(id)) {
                Some(asides) => asides.page_done(params),
                None => {
                    if let Some(id) = params.get("elicitationId").and_then(Json::as_str) {
                        let (upstream, id) = (self.ears.upstream.clone(), id.into_owned());
                        // Nobody may be listening.
                        let _ = self.ears.pages.send(PageDone { upstream, id });
                    }
                }
            },
            _ => {}
        }
    }

    /// The call that something belongs to: the one on whose stream it came, or the only one.
    fn asides_of(&self, call: Option<&Id>) -> Option<Asides> {
        match call {
            Some(id) => self.asides.get(id).map(|asides| asides.clone()),
            None if self.asides.len() > 1 || self.has_orphans() => {
                self.is_ambiguous.store(true, Ordering::Relaxed);
                None
            }
            None => self.asides.iter().next().map(|entry| entry.clone()),
        }
    }
}

/// A call hears as long as this lives. Dropped before the call is over, it leaves an orphan.
pub struct Listening(Option<Entry>);

struct Entry {
    mailbox: Arc<Mailbox>,
    id: Id,
    may_be_orphan: bool,
}

impl Listening {
    /// The upstream has nothing more to say to the call.
    pub fn is_over(mut self) {
        if let Some(entry) = &mut self.0 {
            entry.may_be_orphan = false;
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.mailbox.asides.remove(&self.id);
        if self.may_be_orphan {
            self.mailbox.has_orphans.store(true, Ordering::Relaxed);
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

    fn accepting() -> Arc<Mailbox> {
        let mailbox = Mailbox::new(Ears::new("up"));
        mailbox.set_accepts_requests(true);
        mailbox
    }

    fn said(heard: Heard) -> String {
        match heard {
            Heard::Now(text) => text,
            Heard::Nothing => "nothing".to_owned(),
            Heard::Later(..) => "later".to_owned(),
        }
    }

    #[test]
    fn u18_a_question_that_was_not_offered_is_refused_and_nobody_is_asked() {
        let mailbox = accepting();
        assert!(said(mailbox.deliver(message(QUESTION))).contains("-32601"));
        let (asides, mut heard) = Asides::channel(ClientCapabilities::ROOTS, false);
        let _listening = mailbox.listen(&Id::number(1), Some(asides));
        assert!(said(mailbox.deliver(message(QUESTION))).contains("-32601"));
        assert!(heard.try_recv().is_err());
        mailbox.set_accepts_requests(false);
        assert_eq!(said(mailbox.deliver(message(QUESTION))), "nothing");
    }

    #[test]
    fn a_question_goes_to_the_only_call_or_to_nobody() {
        let mailbox = accepting();
        let (one, mut heard) = Asides::channel(ClientCapabilities::FORM, false);
        let (two, mut unheard) = Asides::channel(ClientCapabilities::FORM, false);
        let listening = mailbox.listen(&Id::number(1), Some(one));
        assert_eq!(said(mailbox.deliver(message(QUESTION))), "later");
        assert!(matches!(heard.try_recv(), Ok(Aside::ServerRequest { .. })));
        let also = mailbox.listen(&Id::number(2), Some(two));
        assert!(!mailbox.is_ambiguous());
        assert!(said(mailbox.deliver(message(QUESTION))).contains("-32601"));
        assert!(mailbox.is_ambiguous());
        let text = message(QUESTION);
        let own = mailbox.hear(Frame::read(text.json()).unwrap(), Some(&Id::number(2)));
        assert_eq!(said(own), "later", "on its own stream there is no doubt");
        assert!(unheard.try_recv().is_ok());
        listening.is_over();
        also.is_over();
        assert!(mailbox.asides.is_empty() && !mailbox.has_orphans());
    }

    #[test]
    fn a_question_of_a_call_that_was_given_up_goes_to_nobody() {
        let mailbox = accepting();
        let (gone, _) = Asides::channel(ClientCapabilities::FORM, false);
        let (other, mut heard) = Asides::channel(ClientCapabilities::FORM, false);
        drop(mailbox.listen(&Id::number(1), Some(gone)));
        let _other = mailbox.listen(&Id::number(2), Some(other));
        assert!(mailbox.has_orphans());
        assert!(said(mailbox.deliver(message(QUESTION))).contains("-32601"));
        assert!(heard.try_recv().is_err());
    }

    #[test]
    fn progress_goes_to_the_call_that_it_names() {
        let mailbox = accepting();
        let (asides, mut heard) = Asides::channel(ClientCapabilities::NONE, true);
        let _listening = mailbox.listen(&Id::number(7), Some(asides));
        let progress = |token: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
            );
            mailbox.deliver(message(&text))
        };
        progress("8");
        progress("\"7\"");
        assert!(heard.try_recv().is_err());
        progress("7");
        assert!(matches!(heard.try_recv(), Ok(Aside::Progress(_))));
        for _ in 0..1000 {
            progress("7");
        }
        assert_eq!(heard.len(), WAITING, "a flood is bounded");
    }
}
