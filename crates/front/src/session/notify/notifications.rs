//! Notification streams: `list_changed` and `elicitation/complete`, written
//! for the client of the stream.
//!
//! A stream holds the digest of the list that its client was last notified of, and no queue of
//! changes: a slow client that misses several changes is notified once.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::passthrough::PassthroughNotices;
use super::streams::{NewestStreams, StreamEnd, StreamRegistration};
use super::terminated::SessionTermination;
use crate::session::call::in_flight::InFlightCall;
use crate::session::call::url_elicitations::PendingUrlElicitations;
use crate::session::dialect::Dialect;
use crate::session::token::Nonce;
use base::seal::{Sealer, TokenKind, random};
use catalog::announce::changes::{Changes, Published, Visible};
use catalog::segment::Digest;
use catalog::view_cache::{ListDigests, ListKinds};
use domain::json::jsonrpc::Id;
use domain::protocol::method::{LIST_CHANGED, TOOLS_LIST_CHANGED};
use policy::StreamRecord;
use telemetry::Telemetry;
use upstream::call::correlator::UrlElicitationComplete;

/// One event of a stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StreamEvent {
    /// The event id, on streams that can be resumed.
    pub id: Option<String>,
    /// The JSON-RPC message; empty in a priming event.
    pub message: String,
}

/// The notifications of one stream.
pub struct NotificationStream {
    changes: Changes,
    /// The digests of the lists that the client was last notified of, or read first. `None` until
    /// the first complete list.
    announced: Option<ListDigests>,
    /// Whether the client named known digests when it opened the stream, and no notification was
    /// sent since.
    is_resumed: bool,
    /// The content that was published when the client opened the stream, until the first event: the
    /// client knows no earlier list.
    opened_at: Option<Option<Published>>,
    dialect: Dialect,
    subscriber: Subscriber,
    /// Events that are sent before the stream waits for changes.
    opening: VecDeque<StreamEvent>,
    drain: CancellationToken,
    end: StreamEnd,
    /// `None` if the client's revision does not have `notifications/elicitation/complete`.
    elicitations: Option<CompletedElicitations>,
    /// `None` where the endpoint does not serve the upstream of `[passthrough]`.
    passthrough: Option<PassthroughNotices>,
    is_closed: bool,
    /// The audit record of a stream; a connection has none.
    record: Option<StreamRecord>,
    telemetry: Option<Telemetry>,
}

/// The client of a stream, by the way in which it subscribed.
pub(crate) enum Subscriber {
    /// A legacy GET stream (MCP 2025-11-25, Streamable HTTP).
    Session {
        ids: EventIds,
        session: Nonce,
        streams: NewestStreams,
        /// `None` until the stream is admitted: until then the notifications go to the stream
        /// before it.
        registration: Option<StreamRegistration>,
        termination: SessionTermination,
    },
    /// A connection (stdio, HTTP+SSE), which carries all messages to the client.
    Connection,
    /// `subscriptions/listen` (MCP 2026-07-28, subscriptions).
    Subscription {
        id: Id,
        /// The announced lists: lists that the client named and the endpoint serves.
        kinds: ListKinds,
        /// The response that ends the subscription at a drain.
        result: String,
        /// Present on a connection, where there is no stream to close: the gateway announces the
        /// end by `notifications/cancelled`, and so does the client.
        in_flight: Option<InFlightCall>,
    },
}

impl Subscriber {
    /// Whether the notifications go to this stream of the session, and not to one that was opened
    /// later.
    fn is_newest(&self) -> bool {
        match self {
            Self::Session { registration: Some(registration), .. } => registration.is_newest(),
            Self::Session { .. } | Self::Connection | Self::Subscription { .. } => true,
        }
    }
}

/// Generates event ids. An id is unique by a nonce of the stream and a counter, and contains,
/// sealed, the digests of the lists that the client knows after the event.
pub(crate) struct EventIds {
    sealer: Arc<Sealer>,
    endpoint: String,
    nonce: [u8; 8],
    count: u64,
}

/// The completed URL elicitations of all upstreams, and the session whose elicitations are sent.
struct CompletedElicitations {
    completed: broadcast::Receiver<UrlElicitationComplete>,
    pending: PendingUrlElicitations,
    session: Nonce,
}

impl NotificationStream {
    /// Opens a stream. `known` is the digest in the client's `Last-Event-ID`.
    pub(crate) fn new(
        changes: Changes,
        known: Option<ListDigests>,
        dialect: Dialect,
        subscriber: Subscriber,
        drain: CancellationToken,
        end: StreamEnd,
    ) -> Self {
        let opened_at = Some(changes.published());
        Self {
            announced: known,
            opened_at,
            is_resumed: false,
            changes,
            dialect,
            subscriber,
            opening: VecDeque::new(),
            drain,
            end,
            elicitations: None,
            passthrough: None,
            is_closed: false,
            record: None,
            telemetry: None,
        }
    }

    /// Adds `notifications/elicitation/complete` for the URL elicitations of the session, if the
    /// client's revision has it.
    pub(crate) fn with_url_elicitations(
        mut self,
        completed: broadcast::Receiver<UrlElicitationComplete>,
        pending: PendingUrlElicitations,
        session: Nonce,
    ) -> Self {
        let elicitations = CompletedElicitations { completed, pending, session };
        self.elicitations = self.dialect.has_elicitation_complete().then_some(elicitations);
        self
    }

    /// Adds the changes of the upstream of `[passthrough]`.
    pub(crate) fn with_passthrough(mut self, passthrough: Option<PassthroughNotices>) -> Self {
        self.passthrough = passthrough;
        self
    }

    /// Adds the audit record of an admitted stream, which is completed when the stream is dropped,
    /// and the signal that its place is given to another stream.
    pub(crate) fn admitted(mut self, record: StreamRecord, displaced: CancellationToken) -> Self {
        self.register();
        self.record = Some(record);
        self.end = self.end.or_revoked(displaced);
        self
    }

    fn register(&mut self) {
        if let Subscriber::Session { session, streams, registration, .. } = &mut self.subscriber {
            *registration = Some(streams.open(*session));
        }
    }

    /// Counts the `list_changed` notifications of the stream.
    pub(crate) fn counted(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = Some(telemetry);
        self
    }

    /// Returns the id of the request that opened the stream, for a subscription.
    pub fn request(&self) -> Option<&Id> {
        match &self.subscriber {
            Subscriber::Subscription { id, .. } => Some(id),
            Subscriber::Session { .. } | Subscriber::Connection => None,
        }
    }

    /// Returns the next event, or `None` when the stream has ended.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is taken before the future completes.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        if let Some(opened_at) = &self.opened_at {
            if let Some(published) = opened_at {
                let visible = self.changes.visible_then(published).await;
                self.is_resumed = self.announced.is_some();
                self.announced.get_or_insert(visible.digests);
            }
            self.opened_at = None;
            self.open();
        }
        if let Some(event) = self.opening.pop_front() {
            return Some(event);
        }
        if self.is_closed {
            return None;
        }
        loop {
            let visible = self.changes.visible().await;
            // Notifications of `[passthrough]` come from the upstream to which the stream is
            // attached.
            let is_of_other = self.changes.has_other_passthrough()
                && !matches!(self.subscriber, Subscriber::Connection);
            if !self.changes.has_endpoint() || is_of_other {
                return self.cut();
            }
            if let Some(event) = visible.and_then(|visible| self.list_changed(visible)) {
                if let Some(telemetry) = &self.telemetry {
                    telemetry.metrics().list_changed_sent();
                }
                return Some(event);
            }
            let ended_by_client = async {
                match &self.subscriber {
                    Subscriber::Session { termination, .. } => termination.wait().await,
                    Subscriber::Subscription { in_flight: Some(in_flight), .. } => {
                        in_flight.cancelled().await;
                    }
                    Subscriber::Connection | Subscriber::Subscription { in_flight: None, .. } => {
                        std::future::pending::<()>().await;
                    }
                }
            };
            tokio::select! {
                elicitation = next_completed(&mut self.elicitations, &self.subscriber) => {
                    return Some(self.elicitation_complete(&elicitation));
                }
                method = next_of_passthrough(&mut self.passthrough) => {
                    if self.subscriber.is_newest() {
                        return Some(self.rest_changed(method));
                    }
                }
                changed = self.changes.changed() => changed?,
                () = self.drain.cancelled() => return self.close(),
                () = self.end.reached() => return self.cut(),
                () = ended_by_client => return None,
            }
        }
    }

    fn open(&mut self) {
        match &mut self.subscriber {
            Subscriber::Session { ids, .. } if self.dialect.has_priming_event() => {
                let id = Some(ids.next(self.announced.unwrap_or_default()));
                self.opening.push_back(StreamEvent { id, message: String::new() });
            }
            Subscriber::Session { .. } | Subscriber::Connection => {}
            Subscriber::Subscription { id, kinds, .. } => {
                let passthrough =
                    self.passthrough.as_ref().map(PassthroughNotices::lists).unwrap_or_default();
                let message = self.dialect.acknowledged(id, *kinds, passthrough);
                self.opening.push_back(StreamEvent { id: None, message });
            }
        }
    }

    /// Returns the notification of a change of the upstream of `[passthrough]`.
    fn rest_changed(&mut self, method: &str) -> StreamEvent {
        self.event(|dialect, subscription| dialect.list_changed(method, subscription))
    }

    /// Returns an event that tells of no change of the lists of prompts. `write` gets the id of the
    /// subscription, if the stream is one.
    fn event(&mut self, write: impl FnOnce(Dialect, Option<&Id>) -> String) -> StreamEvent {
        let announced = self.announced.unwrap_or_default();
        let (id, subscription) = match &mut self.subscriber {
            Subscriber::Session { ids, .. } => (Some(ids.next(announced)), None),
            Subscriber::Connection => (None, None),
            Subscriber::Subscription { id, .. } => (None, Some(&*id)),
        };
        StreamEvent { id, message: write(self.dialect, subscription) }
    }

    fn elicitation_complete(&mut self, elicitation: &UrlElicitationComplete) -> StreamEvent {
        self.event(|dialect, _| dialect.elicitation_complete(&elicitation.id))
    }

    /// Returns the notification that a list now has another digest, if the client must get one.
    /// Where both lists have changed, the other notification follows.
    fn list_changed(&mut self, Visible { digests: now, learned }: Visible) -> Option<StreamEvent> {
        // A client that resumed its stream knows the lists of that time.
        let learned = learned.filter(|_| !self.is_resumed);
        if let (Some(announced), Some(learned)) = (&mut self.announced, learned) {
            *announced = announced.combined(learned);
        }
        // The first complete list is no change: it is the list that the client got.
        let announced = self.announced.get_or_insert(now);
        let method = if announced.prompts != now.prompts {
            announced.prompts = now.prompts;
            LIST_CHANGED
        } else if announced.tools != now.tools {
            announced.tools = now.tools;
            TOOLS_LIST_CHANGED
        } else {
            return None;
        };
        self.is_resumed = false;
        let announced = *announced;
        let event = |id, subscription| {
            let message = self.dialect.list_changed(method, subscription);
            StreamEvent { id, message }
        };
        match &mut self.subscriber {
            subscriber if !subscriber.is_newest() => {
                self.announced = Some(now);
                None
            }
            Subscriber::Session { ids, .. } => Some(event(Some(ids.next(announced)), None)),
            Subscriber::Connection => Some(event(None, None)),
            Subscriber::Subscription { id, .. } => Some(event(None, Some(id))),
        }
    }

    /// Ends the stream at the end of its lifetime, with its caller's credential, or because another
    /// stream gets its place. A stream is cut without a result: clients do not subscribe again
    /// after one. On a connection there is nothing to cut.
    fn cut(&mut self) -> Option<StreamEvent> {
        self.is_closed = true;
        match &self.subscriber {
            Subscriber::Subscription { in_flight: Some(_), .. } => self.close(),
            Subscriber::Subscription { in_flight: None, .. }
            | Subscriber::Session { .. }
            | Subscriber::Connection => None,
        }
    }

    /// Ends the stream at a drain: a subscription gets its result, a legacy stream gets nothing
    /// more.
    fn close(&mut self) -> Option<StreamEvent> {
        self.is_closed = true;
        let Subscriber::Subscription { id, result, in_flight, .. } = &self.subscriber else {
            return None;
        };
        let event = |message| StreamEvent { id: None, message };
        let result = event(result.clone());
        match in_flight {
            None => Some(result),
            Some(_) => {
                self.opening.push_back(result);
                Some(event(self.dialect.cancelled(id)))
            }
        }
    }
}

/// Waits for the next change of the upstream of `[passthrough]`. Cancel safe.
async fn next_of_passthrough(passthrough: &mut Option<PassthroughNotices>) -> &'static str {
    match passthrough {
        Some(passthrough) => passthrough.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for the next completed URL elicitation of the session. Cancel safe.
async fn next_completed(
    elicitations: &mut Option<CompletedElicitations>,
    subscriber: &Subscriber,
) -> UrlElicitationComplete {
    let Some(CompletedElicitations { completed, pending, session }) = elicitations else {
        return std::future::pending().await;
    };
    loop {
        match completed.recv().await {
            Ok(elicitation) if subscriber.is_newest() && pending.take(&elicitation, *session) => {
                return elicitation;
            }
            // A missed completion needs no repair: the page has told the user.
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

impl EventIds {
    /// Creates the ids of one stream at an endpoint.
    pub(crate) fn new(sealer: Arc<Sealer>, endpoint: &str) -> Self {
        Self { sealer, endpoint: endpoint.to_owned(), nonce: random(), count: 0 }
    }

    /// Returns the digests in an event id. `None` if the id was not sealed with one of the keys for
    /// this endpoint.
    pub(crate) fn digests(sealer: &Sealer, endpoint: &str, id: &str) -> Option<ListDigests> {
        let plain = sealer.open(TokenKind::Event, endpoint, id)?;
        let (_, digests) = plain.split_first_chunk::<16>()?;
        let (prompts, tools) = digests.split_first_chunk::<32>()?;
        // Ids of earlier releases have no digest of the tools, which they did not serve.
        let tools = if tools.is_empty() { Digest::default() } else { tools.try_into().ok()? };
        Some(ListDigests { prompts: *prompts, tools })
    }

    fn next(&mut self, digests: ListDigests) -> String {
        self.count += 1;
        let ListDigests { prompts, tools } = digests;
        let plain = [&self.nonce[..], &self.count.to_be_bytes(), &prompts, &tools].concat();
        self.sealer.seal(TokenKind::Event, &self.endpoint, &plain)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake};
    use std::time::Duration;

    use crate::session::call::in_flight::InFlightCalls;
    use crate::session::notify::streams::NewestStreams;
    use crate::session::notify::terminated::TerminatedSessions;
    use tokio::sync::watch;

    use super::*;
    use base::seal::SealKeys;
    use catalog::segment::SegmentWriter;
    use catalog::snapshot::CatalogContent;
    use catalog::view_cache::ViewCache;
    use config::Config;
    use domain::calls::caller::Caller;
    use domain::calls::fair_share::{Holder, Share};
    use domain::calls::rights::Everything;
    use domain::json::Json;
    use domain::prompts::prompt::Prompt;
    use domain::protocol::revision::Revision;

    fn sealer() -> Arc<Sealer> {
        Arc::new(Sealer::new(&SealKeys::ephemeral()))
    }

    #[tokio::test(start_paused = true)]
    async fn l7_on_a_connection_a_subscription_ends_with_cancelled_and_then_its_result() {
        let (changes, _) = contents(0);
        let in_flight = InFlightCalls::default();
        let subscription = |id: u64| Subscriber::Subscription {
            id: Id::number(id),
            kinds: PROMPTS,
            result: "the result".to_owned(),
            in_flight: in_flight.start(Nonce::from_bytes([1; 16]), Id::number(id)),
        };
        let revision = Revision::V2026_07_28;
        let mut drained = notifications(&changes, None, revision, subscription(7));
        let mut cancelled = notifications(&changes, None, revision, subscription(8));
        for notifications in [&mut drained, &mut cancelled] {
            assert!(notifications.next().await.unwrap().message.contains("acknowledged"));
        }
        in_flight.cancel(Nonce::from_bytes([1; 16]), Id::number(8));
        assert_eq!(cancelled.next().await, None, "a cancelled subscription gets no result");
        drained.drain.cancel();
        let announced = drained.next().await.unwrap().message;
        assert!(
            announced.contains("notifications/cancelled") && announced.contains("\"requestId\":7")
        );
        assert_eq!(drained.next().await.unwrap().message, "the result");
        assert_eq!(drained.next().await, None);
    }

    fn session(sealer: &Arc<Sealer>, terminated: &Arc<TerminatedSessions>) -> Subscriber {
        session_of(Nonce::from_bytes([1; 16]), sealer, terminated)
    }

    fn session_of(
        nonce: Nonce,
        sealer: &Arc<Sealer>,
        terminated: &Arc<TerminatedSessions>,
    ) -> Subscriber {
        Subscriber::Session {
            ids: EventIds::new(sealer.clone(), "/mcp"),
            session: nonce,
            streams: NewestStreams::default(),
            registration: None,
            termination: terminated.watch(nonce),
        }
    }

    /// Content with one prompt of this name.
    fn content(n: u8) -> Published {
        let prompt = format!("{{\"name\":\"{n}\"}}");
        let prompt = Prompt::read(Json::parse(prompt.as_bytes(), 8).unwrap()).unwrap();
        let mut segment = SegmentWriter::default();
        segment.push(prompt.name.as_str().into(), |out| prompt.write(&prompt.name, out));
        let segments = vec![Arc::new(segment.finish())];
        let content = Arc::new(CatalogContent::new(n.into(), segments, Vec::new(), Vec::new()));
        let config = Config::parse("g", "", Path::new(""), &[]).unwrap();
        let views = Arc::new(ViewCache::new(&config, Arc::new(Everything)));
        Published { content, skills: Arc::default(), views, caller_lists: None }
    }

    fn digests_of(n: u8) -> ListDigests {
        let prompts = *content(n).content.everyone.digest();
        ListDigests { prompts, ..ListDigests::default() }
    }

    type Contents = (watch::Sender<Option<Published>>, watch::Receiver<Option<Published>>);

    fn contents(n: u8) -> Contents {
        watch::channel(Some(content(n)))
    }

    fn digests_for(changes: &watch::Sender<Option<Published>>, kinds: ListKinds) -> Changes {
        Changes::new(changes.subscribe(), Caller::anonymous(), "/mcp".to_owned(), kinds)
    }

    const PROMPTS: ListKinds = ListKinds { prompts: true, tools: false };

    fn notifications(
        changes: &watch::Sender<Option<Published>>,
        known: Option<ListDigests>,
        revision: Revision,
        subscriber: Subscriber,
    ) -> NotificationStream {
        let drain = CancellationToken::new();
        let dialect = Dialect::new(revision);
        let kinds = match &subscriber {
            Subscriber::Subscription { kinds, .. } => *kinds,
            Subscriber::Session { .. } | Subscriber::Connection => PROMPTS,
        };
        NotificationStream::new(
            digests_for(changes, kinds),
            known,
            dialect,
            subscriber,
            drain,
            StreamEnd::default(),
        )
    }

    async fn silent(notifications: &mut NotificationStream) -> bool {
        tokio::time::timeout(Duration::from_secs(3600), notifications.next()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn l2_only_a_different_list_is_notified_and_several_changes_once() {
        let (changes, _) = contents(0);
        let sealer = sealer();
        let terminated = Arc::new(TerminatedSessions::new(10, Share::WHOLE));
        let subscriber = session(&sealer, &terminated);
        let mut notifications = notifications(&changes, None, Revision::V2025_06_18, subscriber);
        assert!(silent(&mut notifications).await);
        changes.send_replace(Some(content(0)));
        assert!(silent(&mut notifications).await, "the same list");
        for n in [1, 2] {
            changes.send_replace(Some(content(n)));
        }
        let event = notifications.next().await.unwrap();
        assert!(event.message.contains("notifications/prompts/list_changed"));
        let known = EventIds::digests(&sealer, "/mcp", event.id.as_deref().unwrap());
        assert_eq!(known, Some(digests_of(2)));
        assert!(silent(&mut notifications).await);
    }

    #[tokio::test(start_paused = true)]
    async fn l3_a_change_of_one_view_is_notified_to_its_callers_only() {
        let (own, _) = contents(0);
        let (other, _) = contents(0);
        let (sealer, terminated, revision) =
            (sealer(), Arc::new(TerminatedSessions::new(10, Share::WHOLE)), Revision::V2025_06_18);
        let mut own_stream = notifications(&own, None, revision, session(&sealer, &terminated));
        let mut other_stream = notifications(&other, None, revision, session(&sealer, &terminated));
        own.send_replace(Some(content(1)));
        assert!(own_stream.next().await.is_some());
        assert!(silent(&mut other_stream).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resuming_client_is_notified_at_once_if_its_list_is_different() {
        let (changes, _) = contents(7);
        let sealer = sealer();
        let terminated = Arc::new(TerminatedSessions::new(10, Share::WHOLE));
        for (known, announced) in [(digests_of(7), false), (digests_of(6), true)] {
            let subscriber = session(&sealer, &terminated);
            let mut notifications =
                notifications(&changes, Some(known), Revision::V2025_06_18, subscriber);
            assert_ne!(silent(&mut notifications).await, announced);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_not_admitted_takes_no_messages_from_another_one() {
        let (changes, _) = contents(0);
        let sealer = sealer();
        let terminated = Arc::new(TerminatedSessions::new(10, Share::WHOLE));
        let (streams, nonce) = (NewestStreams::default(), Nonce::from_bytes([1; 16]));
        let stream = || {
            let subscriber = Subscriber::Session {
                ids: EventIds::new(sealer.clone(), "/mcp"),
                session: nonce,
                streams: streams.clone(),
                registration: None,
                termination: terminated.watch(nonce),
            };
            notifications(&changes, None, Revision::V2025_06_18, subscriber)
        };
        let mut first = stream();
        first.register();
        assert!(silent(&mut first).await);
        let mut second = stream();
        changes.send_replace(Some(content(1)));
        assert!(first.next().await.is_some());
        second.register();
        changes.send_replace(Some(content(2)));
        assert!(silent(&mut first).await);
        assert!(second.next().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_legacy_revision_gets_a_priming_event() {
        let (changes, _) = contents(7);
        let sealer = sealer();
        let terminated = Arc::new(TerminatedSessions::new(10, Share::WHOLE));
        let subscriber = session(&sealer, &terminated);
        let mut notifications = notifications(&changes, None, Revision::V2025_11_25, subscriber);
        let event = notifications.next().await.unwrap();
        assert!(event.id.is_some() && event.message.is_empty());
        terminated.insert(&Holder::Caller(Caller::new("ci")), Nonce::from_bytes([1; 16]));
        assert_eq!(notifications.next().await, None, "the session was terminated");
    }

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn a_terminated_session_wakes_only_its_own_streams() {
        let (changes, _) = contents(7);
        let sealer = sealer();
        let terminated = Arc::new(TerminatedSessions::new(10, Share::WHOLE));
        let revision = Revision::V2025_06_18;
        let mut streams: Vec<_> = [1, 1, 2, 3, 4, 5]
            .map(|n| {
                let subscriber = session_of(Nonce::from_bytes([n; 16]), &sealer, &terminated);
                (n, notifications(&changes, None, revision, subscriber))
            })
            .into();
        let wakers: Vec<_> = streams.iter().map(|_| Arc::new(CountingWaker::default())).collect();
        let mut waiting: Vec<_> =
            streams.iter_mut().map(|(n, stream)| (*n, Box::pin(stream.next()))).collect();
        for ((_, next), waker) in waiting.iter_mut().zip(&wakers) {
            let waker = waker.clone().into();
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        terminated.insert(&Holder::Caller(Caller::new("ci")), Nonce::from_bytes([1; 16]));
        for ((n, mut next), counted) in waiting.into_iter().zip(&wakers) {
            let waker = counted.clone().into();
            let polled = next.as_mut().poll(&mut Context::from_waker(&waker));
            assert_eq!(polled == Poll::Ready(None), n == 1, "session {n}");
            assert_eq!(counted.0.load(Ordering::Relaxed), usize::from(n == 1), "session {n}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscription_starts_with_an_acknowledgement_and_ends_with_a_result() {
        let (changes, _) = contents(0);
        let subscription = |kinds| Subscriber::Subscription {
            id: Id::number(7),
            kinds,
            result: "the result".to_owned(),
            in_flight: None,
        };
        let revision = Revision::V2026_07_28;
        let mut all = notifications(&changes, None, revision, subscription(PROMPTS));
        let mut none = notifications(&changes, None, revision, subscription(ListKinds::default()));
        for notifications in [&mut all, &mut none] {
            let first = notifications.next().await.unwrap().message;
            assert!(first.contains("subscriptions/acknowledged"));
            assert!(first.contains("\"io.modelcontextprotocol/subscriptionId\":7"));
        }
        changes.send_replace(Some(content(1)));
        let changed = all.next().await.unwrap().message;
        assert!(changed.contains("list_changed") && changed.contains("subscriptionId\":7"));
        assert!(silent(&mut none).await);
        all.drain.cancel();
        assert_eq!(all.next().await.unwrap().message, "the result");
        assert_eq!(all.next().await, None);
    }

    #[test]
    fn event_ids_of_earlier_releases_open() {
        let sealer = Arc::new(Sealer::new(&SealKeys::new(vec![[7; 32]]).unwrap()));
        let digests = ListDigests { prompts: [1; 32], tools: [2; 32] };
        let id = include_str!("../../../../../tests/formats/event-1");
        assert_eq!(EventIds::digests(&sealer, "/mcp", id), Some(digests));
    }
}
