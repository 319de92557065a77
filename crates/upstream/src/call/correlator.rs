//! Correlation of the messages of one connection with the calls in flight: responses, progress
//! notifications and server requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dashmap::DashMap;
use http::HeaderValue;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot};
use tracing::{debug, warn};

use super::reply::{self, Unreadable};
use crate::passthrough_signals::PassthroughSignals;
use crate::repairs::Repairs;
use crate::stderr_tail::StderrTail;
use audit::Audit;
use base::platform::Locked;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::Json;
use domain::json::document::Document;
use domain::json::jsonrpc::{Frame, Id, is_response};
use domain::json::repair::RepairKind;
use domain::protocol::log_level::LogLevel;
use domain::protocol::method::{
    CANCELLED, ELICITATION_COMPLETE, LIST_CHANGED, MESSAGE, PING, PROGRESS, RESOURCES_LIST_CHANGED,
};
use domain::protocol::server_request::{
    Answer, ClientCapabilities, ServerRequest, ServerRequestError,
};
use telemetry::Telemetry;

/// A message of an upstream before its response to a call.
#[derive(Debug)]
pub enum InterimMessage {
    /// `params` of `notifications/progress`.
    Progress(Document),
    /// `params` of `notifications/message`.
    Log(Document),
    /// `params` of `notifications/elicitation/complete`.
    UrlElicitationComplete(Document),
    /// A server request: elicitation, sampling or roots.
    ServerRequest {
        server_request: ServerRequest,
        /// Carries the client's answer. If it is dropped unanswered, the upstream gets an error.
        answer: oneshot::Sender<Answer>,
    },
}

/// Sending half of the interim messages of one call.
#[derive(Clone, Debug)]
pub struct InterimSender {
    sender: mpsc::Sender<Queued>,
    /// The size of the messages that may be queued, in KiB.
    room: Arc<Semaphore>,
    /// Which server requests the upstream may send to this call's client.
    capabilities: ClientCapabilities,
    /// Whether the client requested progress.
    progress: bool,
    /// The least severe log messages that the client gets; `None` for none.
    log_level: Option<LogLevel>,
}

/// Receiving half of the interim messages of one call.
#[derive(Debug)]
pub struct InterimReceiver(mpsc::Receiver<Queued>);

/// A message with its part of [`MAX_QUEUED_KIB`].
type Queued = (InterimMessage, OwnedSemaphorePermit);

/// Most interim messages in the queue of one call. When it is full, progress is dropped and server
/// requests are refused: the receiver reads messages at once, unless it waits for a user's answer.
const MAX_QUEUED: usize = 16;

/// Size of the messages in the queue of one call, in KiB. A single message may be larger.
const MAX_QUEUED_KIB: u32 = 1024;

/// Largest parameters of a notification, in bytes. A larger notification is dropped: typical
/// notifications have a number and a sentence.
const MAX_NOTIFICATION: usize = 64 << 10;

/// Receivers of the messages of an upstream that belong to no call in flight.
#[derive(Clone, Debug)]
pub struct NotificationSinks {
    /// Id of the upstream.
    pub upstream: Arc<str>,
    /// Notified of `list_changed`; `None` if another connection already reports the changes.
    pub list_changed: Option<Arc<Notify>>,
    /// Notified of changes of tools and resources, where `[passthrough]` names the upstream.
    pub passthrough: Option<Arc<PassthroughSignals>>,
    /// Receives URL elicitations that ended outside of the stream of a call.
    pub url_completions: broadcast::Sender<UrlElicitationComplete>,
    pub audit: Audit,
    pub telemetry: Telemetry,
    /// The last lines of a child process on standard error.
    pub stderr_tail: Arc<StderrTail>,
    /// The counters of the repairs to the upstream's messages.
    pub repairs: Arc<Repairs>,
}

/// A completed URL elicitation: the user has finished the interaction on the page (MCP 2025-11-25,
/// elicitation, `notifications/elicitation/complete`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UrlElicitationComplete {
    /// Id of the upstream.
    pub upstream: Arc<str>,
    /// `elicitationId`, the upstream's id of the elicitation.
    pub id: String,
}

/// Most completed URL elicitations in the queue of a slow receiver. A lost notification does little
/// harm: its user has seen the completion on the page.
const MAX_COMPLETIONS: usize = 64;

impl NotificationSinks {
    /// Returns sinks that drop all messages.
    pub fn new(upstream: &str) -> Self {
        let (url_completions, _) = broadcast::channel(1);
        let telemetry = Telemetry::silent();
        let repairs = Repairs::new(upstream, telemetry.clone());
        Self {
            upstream: upstream.into(),
            list_changed: None,
            passthrough: None,
            url_completions,
            audit: Audit::default(),
            telemetry,
            stderr_tail: Arc::default(),
            repairs,
        }
    }

    /// Opens the channel on which all upstreams announce completed URL elicitations.
    pub fn url_completions() -> broadcast::Sender<UrlElicitationComplete> {
        broadcast::channel(MAX_COMPLETIONS).0
    }

    /// Returns the sinks of a connection whose `list_changed` another connection already reports.
    pub fn without_list_changed(&self) -> Self {
        Self { list_changed: None, passthrough: None, ..self.clone() }
    }
}

/// The response that the transport sends back for a message.
pub enum Followup {
    None,
    /// A response that is complete already.
    Reply(String),
    /// A response that fits no request came during the handshake: the upstream confuses ids.
    Misfit(Kind),
    /// The response to the server request of this id, which follows the client's answer.
    ReplyLater(Id, oneshot::Receiver<Answer>),
}

impl InterimSender {
    /// Opens the channel for the interim messages of one call.
    pub fn channel(capabilities: ClientCapabilities, progress: bool) -> (Self, InterimReceiver) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED);
        let room = Arc::new(Semaphore::new(MAX_QUEUED_KIB as usize));
        let log_level = None;
        (Self { sender, room, capabilities, progress, log_level }, InterimReceiver(receiver))
    }

    /// Returns a sender for the same call whose client gets log messages from this level on.
    pub(crate) fn with_log(mut self, log_level: Option<LogLevel>) -> Self {
        self.log_level = log_level;
        self
    }

    /// Returns a sender for the same call that refuses server requests.
    pub(crate) fn without_server_requests(mut self) -> Self {
        self.capabilities = ClientCapabilities::NONE;
        self
    }

    /// Queues a message whose parameters have this many bytes. Returns whether there is room.
    fn queue(&self, message: InterimMessage, size: usize) -> bool {
        let size = u32::try_from(size.div_ceil(1024)).unwrap_or(MAX_QUEUED_KIB);
        let room = self.room.clone().try_acquire_many_owned(size.min(MAX_QUEUED_KIB));
        room.is_ok_and(|room| self.sender.try_send((message, room)).is_ok())
    }

    fn server_request(&self, id: Id, server_request: ServerRequest, size: usize) -> Followup {
        if !self.capabilities.contains(server_request.required_capabilities()) {
            return Followup::Reply(reply::not_declared(&id));
        }
        let (answer, receiver) = oneshot::channel();
        if self.queue(InterimMessage::ServerRequest { server_request, answer }, size) {
            Followup::ReplyLater(id, receiver)
        } else {
            Followup::Reply(reply::no_answer(&id))
        }
    }

    /// Queues a notification, unless it is too large or there is no room.
    fn notify(&self, message: impl FnOnce(Document) -> InterimMessage, params: Json<'_>) {
        let size = params.text().len();
        if size <= MAX_NOTIFICATION {
            self.queue(message(Document::copy_of(params)), size);
        }
    }

    fn progress(&self, params: Json<'_>) {
        if self.progress {
            self.notify(InterimMessage::Progress, params);
        }
    }

    fn log(&self, params: Json<'_>) {
        let level = params.get("level").and_then(LogLevel::read);
        if self.log_level.is_some_and(|least| level.is_some_and(|level| level >= least)) {
            self.notify(InterimMessage::Log, params);
        }
    }

    fn url_elicitation_complete(&self, params: Json<'_>) {
        if self.capabilities.contains(ClientCapabilities::URL) {
            self.notify(InterimMessage::UrlElicitationComplete, params);
        }
    }
}

impl InterimReceiver {
    /// Returns the next message; `None` if no more can come. Cancel safe.
    pub(crate) async fn recv(&mut self) -> Option<InterimMessage> {
        self.0.recv().await.map(|(message, _room)| message)
    }

    /// Returns the next message, if it is there.
    pub(crate) fn try_recv(&mut self) -> Option<InterimMessage> {
        self.0.try_recv().ok().map(|(message, _room)| message)
    }
}

/// The calls in flight on one connection, by the ids of their requests.
#[derive(Debug)]
pub struct Correlator {
    /// Requests whose response comes on the stream that all requests share.
    responses: DashMap<Id, oneshot::Sender<Result<Document, Kind>>>,
    /// Calls that receive interim messages.
    interim: DashMap<Id, InterimSender>,
    /// Whether the upstream may send requests: legacy upstreams may, modern ones may not.
    accepts_requests: AtomicBool,
    /// Whether the handshake has not ended: the upstream may ping then (MCP 2025-11-25, lifecycle).
    is_opening: AtomicBool,
    /// The requests whose notifications come on the shared stream (MCP 2026-07-28, subscriptions).
    subscriptions: Mutex<Vec<Id>>,
    /// A server request could not be correlated with exactly one call in flight.
    is_ambiguous: AtomicBool,
    /// A server request came outside of the stream of a call.
    has_unassociated_requests: AtomicBool,
    /// A call with server requests enabled was abandoned before its response.
    has_abandoned_calls: AtomicBool,
    /// Requests were outstanding when the connection was closed.
    was_in_use: AtomicBool,
    /// Files of skills are among the resources whose changes are announced.
    resources_are_skills: AtomicBool,
    session: SessionUse,
    sinks: NotificationSinks,
}

impl Correlator {
    /// Returns the correlator of a new connection, which drops requests of the upstream until
    /// [`Correlator::set_accepts_requests`].
    pub fn new(sinks: NotificationSinks) -> Arc<Self> {
        Arc::new(Self {
            responses: DashMap::new(),
            interim: DashMap::new(),
            accepts_requests: AtomicBool::new(false),
            is_opening: AtomicBool::new(true),
            subscriptions: Mutex::default(),
            is_ambiguous: AtomicBool::new(false),
            has_unassociated_requests: AtomicBool::new(false),
            has_abandoned_calls: AtomicBool::new(false),
            was_in_use: AtomicBool::new(false),
            resources_are_skills: AtomicBool::new(false),
            session: SessionUse::default(),
            sinks,
        })
    }

    /// Sets, at the end of the handshake, whether requests of the upstream get a response;
    /// otherwise they are dropped.
    pub fn set_accepts_requests(&self, accepts_requests: bool) {
        self.is_opening.store(false, Ordering::Relaxed);
        self.accepts_requests.store(accepts_requests, Ordering::Relaxed);
    }

    /// Returns the counters of the repairs to the messages of the upstream.
    pub fn repairs(&self) -> &Arc<Repairs> {
        &self.sinks.repairs
    }

    /// Whether the upstream may send requests, as in the legacy era.
    pub(crate) fn accepts_requests(&self) -> bool {
        self.accepts_requests.load(Ordering::Relaxed)
    }

    /// Notes that the upstream has reported a lost session by other means than a 404.
    pub(crate) fn note_lost_session(&self) {
        if self.session.lose() {
            self.repairs().note(RepairKind::SessionRenewed, "it has lost the session");
        }
    }

    /// Returns the use of the session of the connection.
    pub fn session(&self) -> &SessionUse {
        &self.session
    }

    /// Whether calls must run one at a time, so that each server request belongs to exactly one
    /// call.
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous.load(Ordering::Relaxed)
    }

    /// Whether the upstream sends server requests outside of the streams of calls.
    pub fn has_unassociated_requests(&self) -> bool {
        self.has_unassociated_requests.load(Ordering::Relaxed)
    }

    /// Whether an abandoned call may still send server requests.
    pub fn has_abandoned_calls(&self) -> bool {
        self.has_abandoned_calls.load(Ordering::Relaxed)
    }

    /// Registers a call for interim messages until the returned guard is dropped.
    pub fn register(self: &Arc<Self>, id: &Id, interim: Option<InterimSender>) -> Registration {
        Registration(interim.map(|interim| {
            let is_open = !interim.capabilities.is_none();
            self.interim.insert(id.clone(), interim);
            RegisteredCall { correlator: self.clone(), id: id.clone(), is_open }
        }))
    }

    /// Registers a request whose response comes on the shared stream. The receiver fails when the
    /// connection closes.
    pub fn expect_response(&self, id: &Id) -> oneshot::Receiver<Result<Document, Kind>> {
        let (sender, response) = oneshot::channel();
        self.responses.insert(id.clone(), sender);
        response
    }

    /// Notes a request whose notifications come on the shared stream, and forgets ended requests.
    pub fn add_subscription(&self, id: &Id) {
        let mut subscriptions = self.subscriptions.locked();
        subscriptions.retain(|open| self.responses.contains_key(open));
        subscriptions.push(id.clone());
    }

    /// Removes a request; returns whether its response was outstanding.
    pub fn forget_response(&self, id: &Id) -> bool {
        self.responses.remove(id).is_some()
    }

    /// Fails all outstanding requests at once rather than at their deadlines: the connection is
    /// closed.
    pub fn close(&self) {
        self.was_in_use.store(!self.responses.is_empty(), Ordering::Relaxed);
        self.responses.clear();
    }

    /// Whether requests were outstanding when the connection closed: one of these requests may have
    /// ended the upstream.
    pub fn was_in_use(&self) -> bool {
        self.was_in_use.load(Ordering::Relaxed)
    }

    /// Processes a message of the shared stream.
    pub fn deliver(&self, message: Document) -> Followup {
        match Frame::read(message.json()) {
            Ok(Frame::Response { .. }) => self.respond(message),
            Err(_) if is_response(message.json()) => self.respond(message),
            Err(_) => Followup::None,
            Ok(frame) => self.dispatch(frame, None),
        }
    }

    /// Hands a response of the shared stream to its request.
    fn respond(&self, message: Document) -> Followup {
        let id = message.json().get("id").and_then(Id::read_echo);
        let id = id.or_else(|| self.request_of_error(message.json()));
        let Some((id, caller)) = id.and_then(|id| self.responses.remove(&id)) else {
            // After the handshake, the request may have been cancelled.
            if !self.is_opening.load(Ordering::Relaxed) {
                return Followup::None;
            }
            let misfit = reply::misfit(message.json());
            warn!(
                upstream = &*self.sinks.upstream,
                error = misfit.diagnosis(),
                "an answer of an upstream fits no request"
            );
            return Followup::Misfit(misfit);
        };
        if let Some(response) = reply::read_response(&id, message) {
            // The call may have been cancelled.
            let _ = caller.send(response);
        }
        Followup::None
    }

    /// Fails at once the request whose response on the shared stream cannot be read.
    pub(crate) fn deliver_unreadable(&self, unreadable: Unreadable) {
        let caller = unreadable.id.as_ref().and_then(|id| self.responses.remove(id));
        if let Some((_, caller)) = caller {
            let _ = caller.send(Err(unreadable.into()));
        }
    }

    /// Returns the only request in flight, if the message is an error without an id.
    fn request_of_error(&self, message: Json<'_>) -> Option<Id> {
        message.get("error")?;
        let subscriptions = self.subscriptions.locked().clone();
        let requests = self.responses.iter().map(|entry| entry.key().clone());
        let mut requests = requests.filter(|id| !subscriptions.contains(id));
        requests.next().filter(|_| requests.next().is_none())
    }

    /// Processes a request or notification of the upstream. `call` is the id of the request whose
    /// response stream carried the message; `None` for the shared stream.
    pub fn dispatch(&self, frame: Frame<'_>, call: Option<&Id>) -> Followup {
        match frame {
            Frame::Request { id, method, params } => self.request(id, &method, params, call),
            Frame::Notification { method, params } => {
                self.notification(&method, params, call);
                Followup::None
            }
            Frame::Response { .. } => Followup::None,
        }
    }

    fn request(
        &self,
        id: Id,
        method: &str,
        params: Option<Json<'_>>,
        call: Option<&Id>,
    ) -> Followup {
        if method == PING && self.is_opening.load(Ordering::Relaxed) {
            return Followup::Reply(reply::to_other_request(&id, method));
        }
        if !self.accepts_requests() {
            debug!(
                upstream = &*self.sinks.upstream,
                method = method.escape_debug().to_string(),
                "dropped a request of an upstream that must not send requests"
            );
            return Followup::None;
        }
        let size = params.map_or(0, |params| params.text().len());
        let server_request = match ServerRequest::read(method, params) {
            Ok(server_request) => server_request,
            Err(ServerRequestError::Malformed(what)) => {
                return Followup::Reply(reply::invalid_params(&id, what));
            }
            Err(ServerRequestError::Unknown) => {
                return Followup::Reply(reply::to_other_request(&id, method));
            }
        };
        if call.is_none() {
            self.has_unassociated_requests.store(true, Ordering::Relaxed);
        }
        match self.correlate(call) {
            Some(interim) => interim.server_request(id, server_request, size),
            None => Followup::Reply(reply::not_declared(&id)),
        }
    }

    fn notification(&self, method: &str, params: Option<Json<'_>>, call: Option<&Id>) {
        match (method, params) {
            (LIST_CHANGED, _) => {
                if let Some(list_changed) = &self.sinks.list_changed {
                    self.sinks.telemetry.metrics().list_changed_received(&self.sinks.upstream);
                    list_changed.notify_one();
                }
            }
            (PROGRESS, Some(params)) => {
                // The progress token of a call is the id of its request.
                let token = params.get("progressToken").and_then(Id::read_echo);
                if let Some(interim) = token.and_then(|token| self.interim.get(&token)) {
                    interim.progress(params);
                }
            }
            (ELICITATION_COMPLETE, Some(params)) => {
                match call.and_then(|id| self.interim.get(id)) {
                    Some(interim) => interim.url_elicitation_complete(params),
                    // On the shared stream, the elicitation may belong to a call that has ended.
                    None => self.announce_completion(params),
                }
            }
            (MESSAGE, Some(params)) => {
                // On the shared stream, a log message may belong to the call of another client.
                if let Some(interim) = call.and_then(|id| self.interim.get(id)) {
                    interim.log(params);
                }
            }
            (CANCELLED, Some(params)) => self.end_subscription(params),
            _ => self.note_rest(method),
        }
    }

    /// Notes a change of tools or resources, if `[passthrough]` names the upstream or if its
    /// resources include files of skills.
    pub(crate) fn note_rest(&self, method: &str) {
        let has_other_tools =
            self.sinks.passthrough.as_ref().is_some_and(|passthrough| passthrough.note(method));
        let may_have_other_skills =
            method == RESOURCES_LIST_CHANGED && self.resources_are_skills.load(Ordering::Relaxed);
        if (has_other_tools || may_have_other_skills)
            && let Some(list_changed) = &self.sinks.list_changed
        {
            // The driver fetches the skills and the names of the tools again.
            list_changed.notify_one();
        }
    }

    /// Has the list fetched again at changes of resources: files of skills are among them.
    pub(crate) fn set_resources_are_skills(&self) {
        self.resources_are_skills.store(true, Ordering::Relaxed);
    }

    /// Whether the gateway needs notifications about tools and resources.
    pub(crate) fn wants_passthrough(&self) -> bool {
        self.sinks.passthrough.is_some()
    }

    /// Ends the subscription that the upstream cancels; other cancellations are not allowed (MCP
    /// 2026-07-28, schema, `CancelledNotification`).
    fn end_subscription(&self, params: Json<'_>) {
        let Some(id) = params.get("requestId").and_then(Id::read_echo) else { return };
        let is_meant = self.subscriptions.locked().contains(&id);
        if let Some((_, subscriber)) = self.responses.remove_if(&id, |_, _| is_meant) {
            let ended = Kind::Reset("the upstream ended the subscription".to_owned());
            let _ = subscriber.send(Err(ended));
        }
    }

    fn announce_completion(&self, params: Json<'_>) {
        if let Some(id) = params.get("elicitationId").and_then(Json::as_str) {
            let upstream = self.sinks.upstream.clone();
            let completion = UrlElicitationComplete { upstream, id: id.into_owned() };
            // Sending fails without a receiver.
            let _ = self.sinks.url_completions.send(completion);
        }
    }

    /// Returns the call to which a server request belongs: the call on whose stream it came, or the
    /// only call in flight.
    fn correlate(&self, call: Option<&Id>) -> Option<InterimSender> {
        match call {
            Some(id) => self.interim.get(id).map(|interim| interim.clone()),
            None if self.interim.len() > 1 || self.has_abandoned_calls() => {
                self.is_ambiguous.store(true, Ordering::Relaxed);
                None
            }
            None => self.interim.iter().next().map(|entry| entry.clone()),
        }
    }
}

/// The progress of the session of a connection.
#[derive(Debug, Default)]
pub struct SessionUse {
    /// A request with the session id has succeeded.
    has_worked: AtomicBool,
    is_lost: AtomicBool,
    /// `Last-Event-ID` for the next GET of the notification stream.
    last_event_id: Mutex<Option<HeaderValue>>,
}

impl SessionUse {
    /// Notes a request with the session id that has succeeded.
    pub(crate) fn note_success(&self) {
        // Most requests only read the flag, which many threads share.
        if !self.has_worked() {
            self.has_worked.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_worked(&self) -> bool {
        self.has_worked.load(Ordering::Relaxed)
    }

    /// Notes that the upstream has lost the session. Returns whether the loss is new.
    fn lose(&self) -> bool {
        !self.is_lost.swap(true, Ordering::Relaxed)
    }

    /// Returns the event id from which to resume the notification stream.
    pub(crate) fn last_event_id(&self) -> Option<HeaderValue> {
        self.last_event_id.locked().clone()
    }

    pub(crate) fn set_last_event_id(&self, id: HeaderValue) {
        *self.last_event_id.locked() = Some(id);
    }

    /// Notes that the notification stream cannot be resumed.
    pub(crate) fn forget_last_event_id(&self) {
        *self.last_event_id.locked() = None;
    }
}

/// The registration of a call for interim messages. When it is dropped before
/// [`Registration::finish`], a call with server requests enabled counts as abandoned.
#[must_use]
pub struct Registration(Option<RegisteredCall>);

struct RegisteredCall {
    correlator: Arc<Correlator>,
    id: Id,
    /// Whether the upstream may still send server requests for the call.
    is_open: bool,
}

impl Registration {
    /// Ends the registration after the response: the upstream sends no more messages for the call.
    pub fn finish(mut self) {
        if let Some(entry) = &mut self.0 {
            entry.is_open = false;
        }
    }
}

impl Drop for RegisteredCall {
    fn drop(&mut self) {
        self.correlator.interim.remove(&self.id);
        if self.is_open {
            self.correlator.has_abandoned_calls.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELICITATION: &str = r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"x","requestedSchema":{}}}"#;

    fn message(text: &str) -> Document {
        Document::parse(text.as_bytes().to_vec(), 16).unwrap()
    }

    fn accepting() -> Arc<Correlator> {
        let correlator = Correlator::new(NotificationSinks::new("up"));
        correlator.set_accepts_requests(true);
        correlator
    }

    fn reply(followup: Followup) -> String {
        match followup {
            Followup::Reply(text) => text,
            Followup::Misfit(_) => panic!("a misfit"),
            Followup::None => "nothing".to_owned(),
            Followup::ReplyLater(..) => "later".to_owned(),
        }
    }

    #[test]
    fn u18_a_server_request_without_the_capability_is_refused() {
        let correlator = accepting();
        assert!(reply(correlator.deliver(message(ELICITATION))).contains("-32601"));
        let (interim, mut messages) = InterimSender::channel(ClientCapabilities::ROOTS, false);
        let _registration = correlator.register(&Id::number(1), Some(interim));
        assert!(reply(correlator.deliver(message(ELICITATION))).contains("-32601"));
        assert!(messages.try_recv().is_none());
        correlator.set_accepts_requests(false);
        assert_eq!(reply(correlator.deliver(message(ELICITATION))), "nothing");
        let ping = || message(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
        assert_eq!(reply(correlator.deliver(ping())), "nothing", "the modern era has no ping");
        let opening = Correlator::new(NotificationSinks::new("up"));
        assert!(reply(opening.deliver(ping())).contains(r#""result":{}"#));
    }

    #[test]
    fn a_server_request_goes_to_the_only_call_or_is_refused() {
        let correlator = accepting();
        let (one, mut messages) = InterimSender::channel(ClientCapabilities::FORM, false);
        let (two, mut other_messages) = InterimSender::channel(ClientCapabilities::FORM, false);
        let first = correlator.register(&Id::number(1), Some(one));
        assert_eq!(reply(correlator.deliver(message(ELICITATION))), "later");
        assert!(matches!(messages.try_recv(), Some(InterimMessage::ServerRequest { .. })));
        let second = correlator.register(&Id::number(2), Some(two));
        assert!(!correlator.is_ambiguous());
        assert!(reply(correlator.deliver(message(ELICITATION))).contains("-32601"));
        assert!(correlator.is_ambiguous());
        let text = message(ELICITATION);
        let on_own_stream =
            correlator.dispatch(Frame::read(text.json()).unwrap(), Some(&Id::number(2)));
        assert_eq!(reply(on_own_stream), "later", "on its own stream there is no doubt");
        assert!(other_messages.try_recv().is_some());
        first.finish();
        second.finish();
        assert!(correlator.interim.is_empty() && !correlator.has_abandoned_calls());
    }

    #[test]
    fn a_ping_between_two_calls_makes_nothing_ambiguous() {
        let correlator = accepting();
        let (one, _first_messages) = InterimSender::channel(ClientCapabilities::FORM, false);
        let (two, _other_messages) = InterimSender::channel(ClientCapabilities::FORM, false);
        let _first = correlator.register(&Id::number(1), Some(one));
        let _second = correlator.register(&Id::number(2), Some(two));
        let ping = message(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
        assert!(reply(correlator.deliver(ping)).contains(r#""result":{}"#));
        assert!(!correlator.is_ambiguous(), "calls may still run at the same time");
    }

    #[test]
    fn a_server_request_of_an_abandoned_call_is_refused() {
        let correlator = accepting();
        let (abandoned, _) = InterimSender::channel(ClientCapabilities::FORM, false);
        let (other, mut messages) = InterimSender::channel(ClientCapabilities::FORM, false);
        drop(correlator.register(&Id::number(1), Some(abandoned)));
        let _other = correlator.register(&Id::number(2), Some(other));
        assert!(correlator.has_abandoned_calls());
        assert!(reply(correlator.deliver(message(ELICITATION))).contains("-32601"));
        assert!(messages.try_recv().is_none());
    }

    #[tokio::test]
    async fn an_upstream_ends_its_subscription_and_no_other_request() {
        let cancelled = || {
            message(
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#,
            )
        };
        let correlator = Correlator::new(NotificationSinks::new("up"));
        let mut response = correlator.expect_response(&Id::number(7));
        correlator.add_subscription(&Id::number(8));
        correlator.deliver(cancelled());
        assert!(response.try_recv().is_err() && correlator.forget_response(&Id::number(7)));
        let response = correlator.expect_response(&Id::number(7));
        correlator.add_subscription(&Id::number(7));
        correlator.deliver(cancelled());
        assert!(matches!(response.await, Ok(Err(Kind::Reset(_)))));
    }

    #[test]
    fn progress_goes_to_the_call_that_it_names() {
        let correlator = accepting();
        let (interim, mut messages) = InterimSender::channel(ClientCapabilities::NONE, true);
        let _registration = correlator.register(&Id::number(7), Some(interim));
        let progress = |token: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
            );
            correlator.deliver(message(&text))
        };
        progress("8");
        progress("\"x\"");
        assert!(messages.try_recv().is_none());
        for token in ["7", "\"7\"", "7.0"] {
            progress(token);
            assert!(matches!(messages.try_recv(), Some(InterimMessage::Progress(_))), "{token}");
        }
        for _ in 0..1000 {
            progress("7");
        }
        assert_eq!(messages.0.len(), MAX_QUEUED, "a flood is bounded");
    }

    #[test]
    fn the_bytes_of_queued_messages_are_bounded() {
        let correlator = accepting();
        let (interim, mut messages) = InterimSender::channel(ClientCapabilities::FORM, true);
        let _registration = correlator.register(&Id::number(7), Some(interim));
        let progress = |size: usize| {
            let params = r#"{"progressToken":7,"progress":1,"message":""}"#.len();
            let text = "x".repeat(size - params);
            correlator.deliver(message(&format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":7,"progress":1,"message":"{text}"}}}}"#
            )))
        };
        progress(MAX_NOTIFICATION + 1);
        assert!(messages.try_recv().is_none());
        progress(MAX_NOTIFICATION);
        assert!(messages.try_recv().is_some());
        let ask = |size: usize| {
            let text = "x".repeat(size);
            reply(
                correlator.deliver(message(&ELICITATION.replace("\"x\"", &format!("\"{text}\"")))),
            )
        };
        let large = 2 * 1024 * MAX_QUEUED_KIB as usize;
        assert_eq!(ask(large), "later", "a single one may be larger");
        assert!(ask(1).contains("-32603"), "there is no room for another");
        assert!(messages.try_recv().is_some());
        assert_eq!(ask(large / 8), "later");
        assert_eq!(ask(large / 8), "later");
        assert!(ask(large / 2).contains("-32603"));
    }
}
