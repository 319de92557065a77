//! What goes down an open stream: that the visible list is another one, dressed for its client.
//!
//! A stream holds the digest of the list that its client was last told of, and nothing else:
//! however many changes a slow client misses, it is told once.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::streams::{StreamEnd, StreamRegistration};
use super::terminated::SessionTermination;
use super::url_elicitations::PendingUrlElicitations;
use crate::domain::jsonrpc::Id;
use crate::policy::StreamRecord;
use crate::router::Digest;
use crate::router::view_cache::Changes;
use crate::seal::{Kind, Sealer, random};
use crate::session::call::in_flight::InFlightCall;
use crate::session::dialect::Dialect;
use crate::session::token::Nonce;
use crate::telemetry::Telemetry;
use crate::upstream::call::correlator::UrlElicitationComplete;

/// One event of a stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StreamEvent {
    /// The event id.
    pub id: Option<String>,
    /// The JSON-RPC message; empty in an event that only carries an id.
    pub message: String,
}

/// The notices of one stream.
pub struct NotificationStream {
    changes: Changes,
    /// Nothing until the first whole list is there.
    announced: Option<Digest>,
    dialect: Dialect,
    subscriber: Subscriber,
    /// What is sent before anything happens.
    opening: VecDeque<StreamEvent>,
    drain: CancellationToken,
    end: StreamEnd,
    /// Pages that users were sent to; absent where nobody can be told of them.
    elicitations:
        Option<(broadcast::Receiver<UrlElicitationComplete>, PendingUrlElicitations, Nonce)>,
    is_over: bool,
    /// Of a stream of its own.
    record: Option<StreamRecord>,
    telemetry: Option<Telemetry>,
}

/// Who listens, and how they asked to be told.
pub(crate) enum Subscriber {
    /// A legacy GET stream.
    Session { ids: EventIds, place: StreamRegistration, termination: SessionTermination },
    /// A connection that lasts (stdio, HTTP+SSE): everything goes down the same way.
    Connection,
    /// `subscriptions/listen`; `wants` is false when nothing that we have was asked for.
    Subscription {
        id: Id,
        wants: bool,
        result: String,
        /// Present where no stream of its own can be closed: the end is told by a message of its
        /// own, and the client cancels by one.
        in_flight: Option<InFlightCall>,
    },
}

/// Makes event ids: unique by a nonce of the stream and a counter, carrying the digest of the list
/// that the client knows once it has the event.
pub(crate) struct EventIds {
    sealer: Arc<Sealer>,
    endpoint: String,
    nonce: [u8; 8],
    count: u64,
}

impl NotificationStream {
    /// `known` is the digest of the list that the client says it knows.
    pub(crate) fn new(
        mut changes: Changes,
        known: Option<Digest>,
        dialect: Dialect,
        subscriber: Subscriber,
        drain: CancellationToken,
        end: StreamEnd,
    ) -> Self {
        let now = changes.digest();
        let announced = known.or(now);
        let mut notifications = Self {
            announced,
            changes,
            dialect,
            subscriber,
            opening: VecDeque::new(),
            drain,
            end,
            elicitations: None,
            is_over: false,
            record: None,
            telemetry: None,
        };
        notifications.open();
        notifications
    }

    /// Tells of pages that the session was sent to, too, if its client's revision knows of that.
    pub(crate) fn with_url_elicitations(
        mut self,
        elicitations: broadcast::Receiver<UrlElicitationComplete>,
        url_elicitations: PendingUrlElicitations,
        session: Nonce,
    ) -> Self {
        self.elicitations = self.dialect.has_elicitation_complete().then_some((
            elicitations,
            url_elicitations,
            session,
        ));
        self
    }

    /// The same stream on record.
    pub(crate) fn recorded(mut self, record: StreamRecord) -> Self {
        self.record = Some(record);
        self
    }

    /// The same, and what it tells is counted.
    pub(crate) fn counted(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = Some(telemetry);
        self
    }

    /// The request that opened the stream, if one did.
    pub fn request(&self) -> Option<&Id> {
        match &self.subscriber {
            Subscriber::Subscription { id, .. } => Some(id),
            Subscriber::Session { .. } | Subscriber::Connection => None,
        }
    }

    /// The next event; nothing once the stream is over.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        if let Some(notice) = self.opening.pop_front() {
            return Some(notice);
        }
        if self.is_over {
            return None;
        }
        loop {
            let digest = self.changes.digest();
            if let Some(notice) = digest.and_then(|digest| self.tell(digest)) {
                if let Some(telemetry) = &self.telemetry {
                    telemetry.metrics().change_told();
                }
                return Some(notice);
            }
            let session_ended = async {
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
                page = elicitation_complete(&mut self.elicitations) => return Some(self.tell_of_page(&page)),
                changed = self.changes.changed() => changed?,
                () = self.drain.cancelled() => return self.close(),
                () = self.end.reached() => return self.close(),
                () = session_ended => return None,
            }
        }
    }

    fn open(&mut self) {
        match &mut self.subscriber {
            // An event to come back to, before anything has happened.
            Subscriber::Session { ids, .. } if self.dialect.primes_streams() => {
                let id = Some(ids.next(&self.announced.unwrap_or_default()));
                self.opening.push_back(StreamEvent { id, message: String::new() });
            }
            Subscriber::Session { .. } | Subscriber::Connection => {}
            Subscriber::Subscription { id, wants, .. } => {
                let message = self.dialect.acknowledged(id, *wants);
                self.opening.push_back(StreamEvent { id: None, message });
            }
        }
    }

    fn tell_of_page(&mut self, page: &UrlElicitationComplete) -> StreamEvent {
        let message = self.dialect.elicitation_complete(&page.id);
        let announced = self.announced.unwrap_or_default();
        let id = match &mut self.subscriber {
            Subscriber::Session { ids, .. } => Some(ids.next(&announced)),
            Subscriber::Connection | Subscriber::Subscription { .. } => None,
        };
        StreamEvent { id, message }
    }

    /// The notice that the list is this one now, if the client has to be told.
    fn tell(&mut self, digest: Digest) -> Option<StreamEvent> {
        // The first whole list is what its client got, not a change.
        if self.announced.replace(digest).is_none_or(|announced| announced == digest) {
            return None;
        }
        match &mut self.subscriber {
            Subscriber::Session { place, .. } if !place.is_newest() => None,
            Subscriber::Session { ids, .. } => {
                let message = self.dialect.list_changed(None);
                Some(StreamEvent { id: Some(ids.next(&digest)), message })
            }
            Subscriber::Connection => {
                Some(StreamEvent { id: None, message: self.dialect.list_changed(None) })
            }
            Subscriber::Subscription { id, wants, .. } => wants
                .then(|| StreamEvent { id: None, message: self.dialect.list_changed(Some(id)) }),
        }
    }

    /// The end at drain, or of the stream's time: a subscription gets its result, a legacy stream
    /// just ends.
    fn close(&mut self) -> Option<StreamEvent> {
        self.is_over = true;
        let Subscriber::Subscription { id, result, in_flight, .. } = &self.subscriber else {
            return None;
        };
        let notice = |message| StreamEvent { id: None, message };
        let result = notice(result.clone());
        match in_flight {
            None => Some(result),
            Some(_) => {
                self.opening.push_back(result);
                Some(notice(self.dialect.cancelled(id)))
            }
        }
    }
}

/// The next page that the session was sent to and that is done.
async fn elicitation_complete(
    elicitations: &mut Option<(
        broadcast::Receiver<UrlElicitationComplete>,
        PendingUrlElicitations,
        Nonce,
    )>,
) -> UrlElicitationComplete {
    let Some((elicitations, url_elicitations, session)) = elicitations else {
        return std::future::pending().await;
    };
    loop {
        match elicitations.recv().await {
            Ok(page) if url_elicitations.take(&page, *session) => return page,
            // What was missed, the user knows.
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

impl EventIds {
    pub(crate) fn new(sealer: Arc<Sealer>, endpoint: &str) -> Self {
        Self { sealer, endpoint: endpoint.to_owned(), nonce: random(), count: 0 }
    }

    /// The digest in an event id of ours.
    pub(crate) fn digest(sealer: &Sealer, endpoint: &str, id: &str) -> Option<Digest> {
        let plain = sealer.open(Kind::Event, endpoint, id)?;
        plain.get(16..)?.try_into().ok()
    }

    fn next(&mut self, digest: &Digest) -> String {
        self.count += 1;
        let plain = [&self.nonce[..], &self.count.to_be_bytes(), digest].concat();
        self.sealer.seal(Kind::Event, &self.endpoint, &plain)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake};
    use std::time::Duration;

    use crate::session::call::in_flight::InFlightCalls;
    use crate::session::notify::streams::Streams;
    use crate::session::notify::terminated::TerminatedSessions;
    use tokio::sync::watch;

    use super::*;
    use crate::config::Config;
    use crate::domain::caller::Caller;
    use crate::domain::json::Json;
    use crate::domain::merge::Entry;
    use crate::domain::prompt::Prompt;
    use crate::domain::revision::Revision;
    use crate::domain::rights::Everything;
    use crate::router::catalog::Content;
    use crate::router::view::View;
    use crate::router::view_cache::{Published, ViewCache};
    use crate::seal::SealKeys;

    fn sealer() -> Arc<Sealer> {
        Arc::new(Sealer::new(&SealKeys::ephemeral()))
    }

    #[tokio::test(start_paused = true)]
    async fn l7_where_no_stream_can_be_closed_the_end_is_told_before_the_result() {
        let (changes, _) = contents(0);
        let in_flight = InFlightCalls::default();
        let subscription = |id: u64| Subscriber::Subscription {
            id: Id::number(id),
            wants: true,
            result: "the result".to_owned(),
            in_flight: in_flight.start([1; 16], Id::number(id)),
        };
        let revision = Revision::V2026_07_28;
        let mut drained = notifications(&changes, None, revision, subscription(7));
        let mut cancelled = notifications(&changes, None, revision, subscription(8));
        for notifications in [&mut drained, &mut cancelled] {
            assert!(notifications.next().await.unwrap().message.contains("acknowledged"));
        }
        in_flight.cancel([1; 16], Id::number(8));
        assert_eq!(cancelled.next().await, None, "nothing more for one that is not wanted");
        drained.drain.cancel();
        let announced = drained.next().await.unwrap().message;
        assert!(
            announced.contains("notifications/cancelled") && announced.contains("\"requestId\":7")
        );
        assert_eq!(drained.next().await.unwrap().message, "the result");
        assert_eq!(drained.next().await, None);
    }

    fn session(sealer: &Arc<Sealer>, terminated: &Arc<TerminatedSessions>) -> Subscriber {
        session_of([1; 16], sealer, terminated)
    }

    fn session_of(
        nonce: Nonce,
        sealer: &Arc<Sealer>,
        terminated: &Arc<TerminatedSessions>,
    ) -> Subscriber {
        Subscriber::Session {
            ids: EventIds::new(sealer.clone(), "/mcp"),
            place: Streams::default().open(nonce),
            termination: terminated.watch(nonce),
        }
    }

    /// A list of one prompt of this name.
    fn content(n: u8) -> Published {
        let prompt = format!("{{\"name\":\"{n}\"}}");
        let prompt = Prompt::read(Json::parse(prompt.as_bytes(), 8).unwrap()).unwrap();
        let entry = Entry { public_name: n.to_string(), source: 0, prompt: 0 };
        let view = View::new([(&entry, &prompt)]);
        let content = Arc::new(Content::new(n.into(), Vec::new(), view, Vec::new()));
        let config = Config::parse("g", "", Path::new(""), &[]).unwrap();
        Published { content, views: Arc::new(ViewCache::new(&config, Arc::new(Everything))) }
    }

    fn digest(n: u8) -> Digest {
        *content(n).content.everyone.digest()
    }

    type Contents = (watch::Sender<Option<Published>>, watch::Receiver<Option<Published>>);

    fn contents(n: u8) -> Contents {
        watch::channel(Some(content(n)))
    }

    fn digests(changes: &watch::Sender<Option<Published>>) -> Changes {
        Changes::new(changes.subscribe(), Caller::anonymous(), "/mcp".to_owned())
    }

    fn notifications(
        changes: &watch::Sender<Option<Published>>,
        known: Option<Digest>,
        revision: Revision,
        subscriber: Subscriber,
    ) -> NotificationStream {
        let (drain, dialect) = (CancellationToken::new(), Dialect::new(revision));
        NotificationStream::new(
            digests(changes),
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
    async fn l2_only_another_list_is_told_and_many_changes_are_told_once() {
        let (changes, _) = contents(0);
        let (sealer, terminated) = (sealer(), Arc::new(TerminatedSessions::default()));
        let subscriber = session(&sealer, &terminated);
        let mut notifications = notifications(&changes, None, Revision::V2025_06_18, subscriber);
        assert!(silent(&mut notifications).await);
        changes.send_replace(Some(content(0)));
        assert!(silent(&mut notifications).await, "the same list");
        for n in [1, 2] {
            changes.send_replace(Some(content(n)));
        }
        let notice = notifications.next().await.unwrap();
        assert!(notice.message.contains("notifications/prompts/list_changed"));
        let known = EventIds::digest(&sealer, "/mcp", notice.id.as_deref().unwrap());
        assert_eq!(known, Some(digest(2)));
        assert!(silent(&mut notifications).await);
    }

    #[tokio::test(start_paused = true)]
    async fn l3_a_change_of_one_view_is_told_to_those_who_see_it() {
        let (mine, _) = contents(0);
        let (theirs, _) = contents(0);
        let (sealer, terminated, revision) =
            (sealer(), Arc::new(TerminatedSessions::default()), Revision::V2025_06_18);
        let mut me = notifications(&mine, None, revision, session(&sealer, &terminated));
        let mut they = notifications(&theirs, None, revision, session(&sealer, &terminated));
        mine.send_replace(Some(content(1)));
        assert!(me.next().await.is_some());
        assert!(silent(&mut they).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_comes_back_is_told_at_once_if_its_list_is_another_one() {
        let (changes, _) = contents(7);
        let (sealer, terminated) = (sealer(), Arc::new(TerminatedSessions::default()));
        for (known, announced) in [(digest(7), false), (digest(6), true)] {
            let subscriber = session(&sealer, &terminated);
            let mut notifications =
                notifications(&changes, Some(known), Revision::V2025_06_18, subscriber);
            assert_ne!(silent(&mut notifications).await, announced);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_legacy_revision_is_primed_with_an_id() {
        let (changes, _) = contents(7);
        let (sealer, terminated) = (sealer(), Arc::new(TerminatedSessions::default()));
        let subscriber = session(&sealer, &terminated);
        let mut notifications = notifications(&changes, None, Revision::V2025_11_25, subscriber);
        let notice = notifications.next().await.unwrap();
        assert!(notice.id.is_some() && notice.message.is_empty());
        terminated.insert([1; 16], 9);
        assert_eq!(notifications.next().await, None, "the session was ended");
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
        let (sealer, terminated) = (sealer(), Arc::new(TerminatedSessions::default()));
        let revision = Revision::V2025_06_18;
        let mut streams: Vec<_> = [1, 1, 2, 3, 4, 5]
            .map(|n| {
                let subscriber = session_of([n; 16], &sealer, &terminated);
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
        terminated.insert([1; 16], 9);
        for ((n, mut next), counted) in waiting.into_iter().zip(&wakers) {
            let waker = counted.clone().into();
            let polled = next.as_mut().poll(&mut Context::from_waker(&waker));
            assert_eq!(polled == Poll::Ready(None), n == 1, "session {n}");
            assert_eq!(counted.0.load(Ordering::Relaxed), usize::from(n == 1), "session {n}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscription_is_acknowledged_first_tagged_and_ends_with_a_result() {
        let (changes, _) = contents(0);
        let subscription = |wants| Subscriber::Subscription {
            id: Id::number(7),
            wants,
            result: "the result".to_owned(),
            in_flight: None,
        };
        let revision = Revision::V2026_07_28;
        let mut all = notifications(&changes, None, revision, subscription(true));
        let mut none = notifications(&changes, None, revision, subscription(false));
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
}
