//! What goes down an open stream: that the visible list is another one, dressed for its client.
//!
//! A stream holds the digest of the list that its client was last told of, and nothing else:
//! however many changes a slow client misses, it is told once.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::streams::{StreamEnd, StreamPlace};
use super::terminated::Ended;
use super::url_elicitations::Visits;
use crate::domain::jsonrpc::Id;
use crate::policy::StreamRecord;
use crate::router::Digest;
use crate::router::view_cache::Changes;
use crate::seal::{Kind, Sealer, random};
use crate::session::call::in_flight::RunningCall;
use crate::session::dialect::Dialect;
use crate::session::token::Nonce;
use crate::telemetry::Telemetry;
use crate::upstream::call::correlator::UrlElicitationComplete;

/// One event of a stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notice {
    /// The event id.
    pub id: Option<String>,
    /// The JSON-RPC message; empty in an event that only carries an id.
    pub message: String,
}

/// The notices of one stream.
pub struct Notices {
    changes: Changes,
    /// Nothing until the first whole list is there.
    told: Option<Digest>,
    dialect: Dialect,
    audience: Audience,
    /// What is sent before anything happens.
    opening: VecDeque<Notice>,
    drain: CancellationToken,
    end: StreamEnd,
    /// Pages that users were sent to; absent where nobody can be told of them.
    pages: Option<(broadcast::Receiver<UrlElicitationComplete>, Visits, Nonce)>,
    is_over: bool,
    /// Of a stream of its own.
    record: Option<StreamRecord>,
    telemetry: Option<Telemetry>,
}

/// Who listens, and how they asked to be told.
pub(crate) enum Audience {
    /// A legacy GET stream.
    Session { ids: EventIds, place: StreamPlace, nonce: Nonce, ended: Arc<Ended> },
    /// A connection that lasts (stdio, HTTP+SSE): everything goes down the same way.
    Connection,
    /// `subscriptions/listen`; `wants` is false when nothing that we have was asked for.
    Subscription {
        id: Id,
        wants: bool,
        result: String,
        /// Present where no stream of its own can be closed: the end is told by a message of its
        /// own, and the client cancels by one.
        running: Option<RunningCall>,
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

impl Notices {
    /// `known` is the digest of the list that the client says it knows.
    pub(crate) fn new(
        mut changes: Changes,
        known: Option<Digest>,
        dialect: Dialect,
        audience: Audience,
        drain: CancellationToken,
        end: StreamEnd,
    ) -> Self {
        let now = changes.digest();
        let told = known.or(now);
        let mut notices = Self {
            told,
            changes,
            dialect,
            audience,
            opening: VecDeque::new(),
            drain,
            end,
            pages: None,
            is_over: false,
            record: None,
            telemetry: None,
        };
        notices.open();
        notices
    }

    /// Tells of pages that the session was sent to, too, if its client's revision knows of that.
    pub(crate) fn with_pages(
        mut self,
        pages: broadcast::Receiver<UrlElicitationComplete>,
        visits: Visits,
        session: Nonce,
    ) -> Self {
        self.pages = self.dialect.hears_of_pages().then_some((pages, visits, session));
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
        match &self.audience {
            Audience::Subscription { id, .. } => Some(id),
            Audience::Session { .. } | Audience::Connection => None,
        }
    }

    /// The next event; nothing once the stream is over.
    pub async fn next(&mut self) -> Option<Notice> {
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
                match &self.audience {
                    Audience::Session { nonce, ended, .. } => ended.wait_for(nonce).await,
                    Audience::Subscription { running: Some(running), .. } => {
                        running.cancelled().await;
                    }
                    Audience::Connection | Audience::Subscription { running: None, .. } => {
                        std::future::pending::<()>().await;
                    }
                }
            };
            tokio::select! {
                page = page_done(&mut self.pages) => return Some(self.tell_of_page(&page)),
                changed = self.changes.changed() => changed?,
                () = self.drain.cancelled() => return self.close(),
                () = self.end.reached() => return self.close(),
                () = session_ended => return None,
            }
        }
    }

    fn open(&mut self) {
        match &mut self.audience {
            // An event to come back to, before anything has happened.
            Audience::Session { ids, .. } if self.dialect.primes_streams() => {
                let id = Some(ids.next(&self.told.unwrap_or_default()));
                self.opening.push_back(Notice { id, message: String::new() });
            }
            Audience::Session { .. } | Audience::Connection => {}
            Audience::Subscription { id, wants, .. } => {
                let message = self.dialect.acknowledged(id, *wants);
                self.opening.push_back(Notice { id: None, message });
            }
        }
    }

    fn tell_of_page(&mut self, page: &UrlElicitationComplete) -> Notice {
        let message = self.dialect.page_done(&page.id);
        let told = self.told.unwrap_or_default();
        let id = match &mut self.audience {
            Audience::Session { ids, .. } => Some(ids.next(&told)),
            Audience::Connection | Audience::Subscription { .. } => None,
        };
        Notice { id, message }
    }

    /// The notice that the list is this one now, if the client has to be told.
    fn tell(&mut self, digest: Digest) -> Option<Notice> {
        // The first whole list is what its client got, not a change.
        if self.told.replace(digest).is_none_or(|told| told == digest) {
            return None;
        }
        match &mut self.audience {
            Audience::Session { place, .. } if !place.is_told() => None,
            Audience::Session { ids, .. } => {
                let message = self.dialect.list_changed(None);
                Some(Notice { id: Some(ids.next(&digest)), message })
            }
            Audience::Connection => {
                Some(Notice { id: None, message: self.dialect.list_changed(None) })
            }
            Audience::Subscription { id, wants, .. } => {
                wants.then(|| Notice { id: None, message: self.dialect.list_changed(Some(id)) })
            }
        }
    }

    /// The end at drain, or of the stream's time: a subscription gets its result, a legacy stream
    /// just ends.
    fn close(&mut self) -> Option<Notice> {
        self.is_over = true;
        let Audience::Subscription { id, result, running, .. } = &self.audience else {
            return None;
        };
        let notice = |message| Notice { id: None, message };
        let result = notice(result.clone());
        match running {
            None => Some(result),
            Some(_) => {
                self.opening.push_back(result);
                Some(notice(self.dialect.cancelled(id)))
            }
        }
    }
}

/// The next page that the session was sent to and that is done.
async fn page_done(
    pages: &mut Option<(broadcast::Receiver<UrlElicitationComplete>, Visits, Nonce)>,
) -> UrlElicitationComplete {
    let Some((pages, visits, session)) = pages else {
        return std::future::pending().await;
    };
    loop {
        match pages.recv().await {
            Ok(page) if visits.take(&page, *session) => return page,
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
    use std::time::Duration;

    use crate::session::call::in_flight::Running;
    use crate::session::notify::streams::Streams;
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
    use crate::router::view_cache::{Seen, Views};
    use crate::seal::SealKeys;

    fn sealer() -> Arc<Sealer> {
        Arc::new(Sealer::new(&SealKeys::ephemeral()))
    }

    #[tokio::test(start_paused = true)]
    async fn l7_where_no_stream_can_be_closed_the_end_is_told_before_the_result() {
        let (changes, _) = contents(0);
        let running = Running::default();
        let subscription = |id: u64| Audience::Subscription {
            id: Id::number(id),
            wants: true,
            result: "the result".to_owned(),
            running: running.start([1; 16], Id::number(id)),
        };
        let revision = Revision::V2026_07_28;
        let mut drained = notices(&changes, None, revision, subscription(7));
        let mut cancelled = notices(&changes, None, revision, subscription(8));
        for notices in [&mut drained, &mut cancelled] {
            assert!(notices.next().await.unwrap().message.contains("acknowledged"));
        }
        running.cancel([1; 16], Id::number(8));
        assert_eq!(cancelled.next().await, None, "nothing more for one that is not wanted");
        drained.drain.cancel();
        let told = drained.next().await.unwrap().message;
        assert!(told.contains("notifications/cancelled") && told.contains("\"requestId\":7"));
        assert_eq!(drained.next().await.unwrap().message, "the result");
        assert_eq!(drained.next().await, None);
    }

    fn session(sealer: &Arc<Sealer>, ended: &Arc<Ended>) -> Audience {
        Audience::Session {
            ids: EventIds::new(sealer.clone(), "/mcp"),
            place: Streams::default().open([1; 16]),
            nonce: [1; 16],
            ended: ended.clone(),
        }
    }

    /// A list of one prompt of this name.
    fn content(n: u8) -> Seen {
        let prompt = format!("{{\"name\":\"{n}\"}}");
        let prompt = Prompt::read(Json::parse(prompt.as_bytes(), 8).unwrap()).unwrap();
        let entry = Entry { public_name: n.to_string(), source: 0, prompt: 0 };
        let view = View::new([(&entry, &prompt)]);
        let content = Arc::new(Content::new(n.into(), Vec::new(), view, Vec::new()));
        let config = Config::parse("g", "", Path::new(""), &[]).unwrap();
        Seen { content, views: Arc::new(Views::new(&config, Arc::new(Everything))) }
    }

    fn digest(n: u8) -> Digest {
        *content(n).content.everyone.digest()
    }

    type Contents = (watch::Sender<Option<Seen>>, watch::Receiver<Option<Seen>>);

    fn contents(n: u8) -> Contents {
        watch::channel(Some(content(n)))
    }

    fn digests(changes: &watch::Sender<Option<Seen>>) -> Changes {
        Changes::new(changes.subscribe(), Caller::anonymous(), "/mcp".to_owned())
    }

    fn notices(
        changes: &watch::Sender<Option<Seen>>,
        known: Option<Digest>,
        revision: Revision,
        audience: Audience,
    ) -> Notices {
        let (drain, dialect) = (CancellationToken::new(), Dialect::new(revision));
        Notices::new(digests(changes), known, dialect, audience, drain, StreamEnd::default())
    }

    async fn silent(notices: &mut Notices) -> bool {
        tokio::time::timeout(Duration::from_secs(3600), notices.next()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn l2_only_another_list_is_told_and_many_changes_are_told_once() {
        let (changes, _) = contents(0);
        let (sealer, ended) = (sealer(), Arc::new(Ended::default()));
        let audience = session(&sealer, &ended);
        let mut notices = notices(&changes, None, Revision::V2025_06_18, audience);
        assert!(silent(&mut notices).await);
        changes.send_replace(Some(content(0)));
        assert!(silent(&mut notices).await, "the same list");
        for n in [1, 2] {
            changes.send_replace(Some(content(n)));
        }
        let notice = notices.next().await.unwrap();
        assert!(notice.message.contains("notifications/prompts/list_changed"));
        let known = EventIds::digest(&sealer, "/mcp", notice.id.as_deref().unwrap());
        assert_eq!(known, Some(digest(2)));
        assert!(silent(&mut notices).await);
    }

    #[tokio::test(start_paused = true)]
    async fn l3_a_change_of_one_view_is_told_to_those_who_see_it() {
        let (mine, _) = contents(0);
        let (theirs, _) = contents(0);
        let (sealer, ended, revision) =
            (sealer(), Arc::new(Ended::default()), Revision::V2025_06_18);
        let mut me = notices(&mine, None, revision, session(&sealer, &ended));
        let mut they = notices(&theirs, None, revision, session(&sealer, &ended));
        mine.send_replace(Some(content(1)));
        assert!(me.next().await.is_some());
        assert!(silent(&mut they).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_comes_back_is_told_at_once_if_its_list_is_another_one() {
        let (changes, _) = contents(7);
        let (sealer, ended) = (sealer(), Arc::new(Ended::default()));
        for (known, told) in [(digest(7), false), (digest(6), true)] {
            let audience = session(&sealer, &ended);
            let mut notices = notices(&changes, Some(known), Revision::V2025_06_18, audience);
            assert_ne!(silent(&mut notices).await, told);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_legacy_revision_is_primed_with_an_id() {
        let (changes, _) = contents(7);
        let (sealer, ended) = (sealer(), Arc::new(Ended::default()));
        let audience = session(&sealer, &ended);
        let mut notices = notices(&changes, None, Revision::V2025_11_25, audience);
        let notice = notices.next().await.unwrap();
        assert!(notice.id.is_some() && notice.message.is_empty());
        ended.insert([1; 16], 9);
        assert_eq!(notices.next().await, None, "the session was ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscription_is_acknowledged_first_tagged_and_ends_with_a_result() {
        let (changes, _) = contents(0);
        let subscription = |wants| Audience::Subscription {
            id: Id::number(7),
            wants,
            result: "the result".to_owned(),
            running: None,
        };
        let revision = Revision::V2026_07_28;
        let mut all = notices(&changes, None, revision, subscription(true));
        let mut none = notices(&changes, None, revision, subscription(false));
        for notices in [&mut all, &mut none] {
            let first = notices.next().await.unwrap().message;
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
