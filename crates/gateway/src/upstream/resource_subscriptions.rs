//! Subscriptions of clients to resources of the upstream of `[rest]`: how many want each resource,
//! and the updates that their streams have not sent yet.
//!
//! An update costs the connection of the upstream a lookup. It waits in a set, in which a flood of
//! the same is one, and is handed to the subscribers at most once a second.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use domain::fair_share::{FairShare, Holder, Share};
use domain::fault::UpstreamFaultKind as Kind;

/// A session or stream of a client: 16 random bytes.
pub(crate) type SubscriberId = [u8; 16];

/// The subscriptions to resources of one upstream.
#[derive(Debug)]
pub(crate) struct ResourceSubscriptions {
    subscribed: Mutex<Subscribed>,
    /// Marked when other resources are wanted than before.
    changes: watch::Sender<()>,
    /// Marked when a resource was updated.
    updated: watch::Sender<()>,
    /// Marked when the upstream has answered.
    answers: watch::Sender<()>,
}

#[derive(Debug)]
struct Subscribed {
    resources: HashMap<Arc<str>, Resource>,
    subscribers: HashMap<SubscriberId, Subscriber>,
    /// One unit for each resource of each subscriber.
    shares: FairShare<Holder>,
    /// Subscribed resources, each with the updated one: itself or one below it.
    updates: HashSet<(Arc<str>, Arc<str>)>,
}

#[derive(Debug)]
struct Resource {
    subscribers: HashSet<SubscriberId>,
    state: ResourceState,
    /// Whether the upstream ever was subscribed to: updates may be missed until it is again.
    was_held: bool,
    /// How often it was asked for in vain on this connection, alone or with others.
    failures: u32,
}

/// The state of a subscription at the upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
enum ResourceState {
    /// It is not subscribed to yet, or its connection has ended.
    Wanted,
    Held,
    Refused(Kind),
}

#[derive(Debug, Default)]
struct Subscriber {
    /// Its resources, with the holder of each unit.
    resources: HashMap<Arc<str>, Holder>,
    /// Updates that no stream has sent yet, and the last one that was sent: those behind it are
    /// next, so that none is sent again and again before others.
    updates: BTreeSet<Arc<str>>,
    last: Option<Arc<str>>,
    /// Marked when there is one.
    updated: watch::Sender<()>,
    streams: usize,
    /// When the last stream ended, or the first resource was subscribed to without one.
    alone_since: Option<Instant>,
}

/// Why a subscription is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SubscriptionRefusal {
    TooLong,
    /// The session, the caller, or all callers have too many.
    TooMany,
}

/// Most resources of one session or stream.
const MAX_OF_SUBSCRIBER: usize = 256;

/// Most resources of all sessions and streams: what is subscribed to at a modern upstream is one
/// message.
const MAX_IN_ALL: usize = 4_096;

/// Longest URI, in bytes.
const MAX_URI: usize = 1_024;

/// Updates of resources below subscribed ones that may wait, in all and for each subscriber. Beyond
/// that the subscribed one stands for those below it.
const MAX_BELOW: usize = 64;

/// Most resources above an updated one that may be subscribed to.
const MAX_ABOVE: usize = 16;

/// Shortest time between two updates of one resource.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time for which subscriptions of a session without a stream are kept: proxies close quiet
/// streams, and clients open them again.
const KEPT: Duration = Duration::from_secs(60);

impl Default for ResourceSubscriptions {
    fn default() -> Self {
        let subscribed = Subscribed {
            resources: HashMap::new(),
            subscribers: HashMap::new(),
            shares: FairShare::new(MAX_IN_ALL, MAX_IN_ALL),
            updates: HashSet::new(),
        };
        let [changes, updated, answers] = std::array::from_fn(|_| watch::Sender::default());
        Self { subscribed: Mutex::new(subscribed), changes, updated, answers }
    }
}

impl ResourceSubscriptions {
    fn lock(&self) -> MutexGuard<'_, Subscribed> {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes a session or stream of a holder, each of which may have `share` of all.
    ///
    /// # Errors
    /// [`SubscriptionRefusal`]; then nothing has changed.
    pub(crate) fn subscribe(
        &self,
        id: SubscriberId,
        holder: &Holder,
        share: Share,
        uri: &str,
    ) -> Result<(), SubscriptionRefusal> {
        if uri.len() > MAX_URI {
            return Err(SubscriptionRefusal::TooLong);
        }
        self.lock().subscribe(id, holder, share, uri)?;
        self.changes.send_replace(());
        Ok(())
    }

    pub(crate) fn unsubscribe(&self, id: SubscriberId, uri: &str) {
        self.lock().unsubscribe(id, uri);
        self.changes.send_replace(());
    }

    /// Waits until the upstream has answered to a subscription.
    ///
    /// # Errors
    /// Its refusal, or why it could not be asked.
    pub(crate) async fn answered(&self, uri: &str) -> Result<(), Kind> {
        let mut answers = self.answers.subscribe();
        loop {
            answers.mark_unchanged();
            match self.lock().resources.get(uri).map(|resource| resource.state.clone()) {
                Some(ResourceState::Refused(kind)) => return Err(kind),
                Some(ResourceState::Wanted) => {}
                // It was unsubscribed from meanwhile, by the same session.
                Some(ResourceState::Held) | None => return Ok(()),
            }
            if answers.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Attaches a stream to a subscriber, whose subscriptions are kept for [`KEPT`] without one if
    /// it is a session.
    pub(crate) fn attach(self: &Arc<Self>, id: SubscriberId, is_session: bool) -> ResourceUpdates {
        let mut subscribed = self.lock();
        let subscriber = subscribed.subscribers.entry(id).or_default();
        subscriber.streams += 1;
        subscriber.alone_since = None;
        let updated = subscriber.updated.subscribe();
        drop(subscribed);
        ResourceUpdates { subscriptions: self.clone(), id, updated, is_session }
    }

    /// Whether a session has an open stream here.
    pub(crate) fn has_stream(&self, id: &SubscriberId) -> bool {
        self.lock().subscribers.get(id).is_some_and(|subscriber| subscriber.streams > 0)
    }

    /// Notes an update of a resource, which may be one below a subscribed one.
    pub(crate) fn note_updated(&self, uri: &str) {
        if uri.len() <= MAX_URI && self.lock().note_updated(uri) {
            self.updated.send_replace(());
        }
    }

    /// Hands updates to their subscribers, at most once a second. Never returns. Cancel safe.
    pub(super) async fn keep_handing_over(&self) {
        let mut updated = self.updated.subscribe();
        loop {
            updated.mark_unchanged();
            let again = Instant::now() + INTERVAL;
            if self.lock().hand_over() {
                sleep_until(again).await;
            } else {
                // Without changes, sessions that have no stream are still forgotten.
                let _ = timeout(KEPT, updated.changed()).await;
                if self.lock().forget_alone(Instant::now()) {
                    self.changes.send_replace(());
                }
            }
        }
    }

    /// A receiver that is marked when other resources are wanted.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Begins with a new connection, which has no subscriptions.
    pub(super) fn connected(&self) {
        for resource in self.lock().resources.values_mut() {
            resource.state = ResourceState::Wanted;
            resource.failures = 0;
        }
    }

    /// Notes that the stream of all that is held has ended.
    pub(super) fn lost(&self) {
        for resource in self.lock().resources.values_mut() {
            if resource.state == ResourceState::Held {
                resource.state = ResourceState::Wanted;
            }
        }
    }

    /// The resources that are held or wanted.
    pub(super) fn wanted(&self) -> BTreeSet<Arc<str>> {
        let subscribed = self.lock();
        let is_refused = |resource: &Resource| matches!(resource.state, ResourceState::Refused(_));
        let wanted = subscribed.resources.iter().filter(|(_, resource)| !is_refused(resource));
        wanted.map(|(uri, _)| uri.clone()).collect()
    }

    /// The resources that are held, and those to ask for with them: of those that failed least,
    /// fewer after each failure, and at last one. So a refused one is found, and keeps no other
    /// waiting.
    pub(super) fn wanted_next(&self) -> BTreeSet<Arc<str>> {
        let subscribed = self.lock();
        let of = |state: ResourceState| {
            subscribed.resources.iter().filter(move |(_, resource)| resource.state == state)
        };
        let least = of(ResourceState::Wanted).map(|(_, resource)| resource.failures).min();
        let least = least.unwrap_or_default();
        let most = MAX_IN_ALL.checked_shr(4 * least).unwrap_or_default().max(1);
        let next = of(ResourceState::Wanted).filter(|(_, resource)| resource.failures == least);
        of(ResourceState::Held).chain(next.take(most)).map(|(uri, _)| uri.clone()).collect()
    }

    /// Notes that the upstream has refused one of these resources: it is not known which.
    pub(super) fn doubt(&self, uris: &BTreeSet<Arc<str>>) {
        let mut subscribed = self.lock();
        for uri in uris {
            if let Some(resource) = subscribed.resources.get_mut(uri) {
                resource.failures = resource.failures.saturating_add(1);
            }
        }
    }

    /// Notes the answer of the upstream to the subscription to a resource. One that was held before
    /// may have been updated meanwhile.
    pub(super) fn settle(&self, uri: &Arc<str>, answer: Result<(), Kind>) {
        let mut subscribed = self.lock();
        let Some(resource) = subscribed.resources.get_mut(uri) else { return };
        let state = answer.map_or_else(ResourceState::Refused, |()| ResourceState::Held);
        let before = std::mem::replace(&mut resource.state, state);
        if resource.state == ResourceState::Held {
            let was_held = std::mem::replace(&mut resource.was_held, true);
            if was_held && before != ResourceState::Held {
                subscribed.updates.insert((uri.clone(), uri.clone()));
                self.updated.send_replace(());
            }
        } else {
            resource.failures = resource.failures.saturating_add(1);
        }
        drop(subscribed);
        self.answers.send_replace(());
    }

    pub(super) fn is_held(&self, uri: &str) -> bool {
        let subscribed = self.lock();
        subscribed.resources.get(uri).is_some_and(|r| r.state == ResourceState::Held)
    }

    /// Asks again for what could not be asked for.
    pub(super) fn ask_again(&self) {
        for resource in self.lock().resources.values_mut() {
            if matches!(&resource.state, ResourceState::Refused(kind) if !kind.refuses_streams()) {
                resource.state = ResourceState::Wanted;
            }
        }
    }

    fn detach(&self, id: SubscriberId, is_session: bool) {
        let mut subscribed = self.lock();
        let Some(subscriber) = subscribed.subscribers.get_mut(&id) else { return };
        subscriber.streams -= 1;
        if subscriber.streams > 0 {
            // An older stream of the session may send what this one has not.
            subscriber.updated.send_replace(());
        } else if is_session && !subscriber.resources.is_empty() {
            subscriber.alone_since = Some(Instant::now());
        } else {
            subscribed.remove(id);
            drop(subscribed);
            self.changes.send_replace(());
        }
    }

    fn take_update(&self, id: &SubscriberId) -> Option<Arc<str>> {
        self.lock().subscribers.get_mut(id)?.take_update()
    }
}

impl Subscriber {
    fn take_update(&mut self) -> Option<Arc<str>> {
        let behind = self.last.take().and_then(|last| {
            let behind = (Bound::Excluded(&*last), Bound::Unbounded);
            self.updates.range::<str, _>(behind).next().cloned()
        });
        let next = behind.or_else(|| self.updates.first().cloned())?;
        self.updates.remove(&next);
        self.last = Some(next.clone());
        Some(next)
    }
}

impl Subscribed {
    fn subscribe(
        &mut self,
        id: SubscriberId,
        holder: &Holder,
        share: Share,
        uri: &str,
    ) -> Result<(), SubscriptionRefusal> {
        let own = self.subscribers.get(&id).map(|subscriber| &subscriber.resources);
        let is_known = own.is_some_and(|own| own.contains_key(uri));
        if !is_known {
            if own.is_some_and(|own| own.len() >= MAX_OF_SUBSCRIBER) {
                return Err(SubscriptionRefusal::TooMany);
            }
            self.shares.resize(MAX_IN_ALL, share.of(MAX_IN_ALL));
            if self.shares.take(holder, 1).is_err() {
                self.forget_alone(Instant::now());
                self.shares.take(holder, 1).map_err(|_| SubscriptionRefusal::TooMany)?;
            }
        }
        let uri: Arc<str> = match self.resources.get_key_value(uri) {
            Some((uri, _)) => uri.clone(),
            None => uri.into(),
        };
        let resource = self.resources.entry(uri.clone()).or_insert_with(|| Resource {
            subscribers: HashSet::new(),
            state: ResourceState::Wanted,
            was_held: false,
            failures: 0,
        });
        resource.subscribers.insert(id);
        if matches!(resource.state, ResourceState::Refused(_)) {
            resource.state = ResourceState::Wanted;
        }
        let subscriber = self.subscribers.entry(id).or_default();
        if !is_known {
            subscriber.resources.insert(uri, holder.clone());
        }
        if subscriber.streams == 0 {
            subscriber.alone_since = Some(Instant::now());
        }
        Ok(())
    }

    fn unsubscribe(&mut self, id: SubscriberId, uri: &str) {
        let Some(subscriber) = self.subscribers.get_mut(&id) else { return };
        let Some(holder) = subscriber.resources.remove(uri) else { return };
        let is_unused = subscriber.resources.is_empty() && subscriber.streams == 0;
        self.shares.put_back(&holder, 1);
        self.leave(id, uri);
        if is_unused {
            self.subscribers.remove(&id);
        }
    }

    /// Removes a subscriber with all of its subscriptions.
    fn remove(&mut self, id: SubscriberId) {
        let Some(subscriber) = self.subscribers.remove(&id) else { return };
        for (uri, holder) in subscriber.resources {
            self.shares.put_back(&holder, 1);
            self.leave(id, &uri);
        }
    }

    fn leave(&mut self, id: SubscriberId, uri: &str) {
        let Some(resource) = self.resources.get_mut(uri) else { return };
        resource.subscribers.remove(&id);
        if resource.subscribers.is_empty() {
            self.resources.remove(uri);
        }
    }

    /// Forgets sessions that have had no stream for [`KEPT`]. Returns whether there were any.
    fn forget_alone(&mut self, now: Instant) -> bool {
        let is_over = |alone: Instant| now.saturating_duration_since(alone) >= KEPT;
        let over = self.subscribers.iter().filter(|(_, s)| s.alone_since.is_some_and(is_over));
        let over: Vec<SubscriberId> = over.map(|(id, _)| *id).collect();
        over.iter().for_each(|id| self.remove(*id));
        !over.is_empty()
    }

    /// Notes an update for the subscribed resources that it is of. Returns whether that is new.
    fn note_updated(&mut self, uri: &str) -> bool {
        let above = above(uri).filter_map(|above| self.resources.get_key_value(above));
        let subscribed: Vec<Arc<str>> = above.map(|(uri, _)| uri.clone()).collect();
        let mut is_new = false;
        for subscribed in subscribed {
            let is_below = *subscribed != *uri && self.updates.len() < MAX_BELOW;
            let updated = if is_below { uri.into() } else { subscribed.clone() };
            is_new |= self.updates.insert((subscribed, updated));
        }
        is_new
    }

    /// Hands the waiting updates to the subscribers. Returns whether there were any.
    fn hand_over(&mut self) -> bool {
        let updates = std::mem::take(&mut self.updates);
        for (uri, updated) in &updates {
            let Some(resource) = self.resources.get(uri) else { continue };
            for id in &resource.subscribers {
                let Some(subscriber) = self.subscribers.get_mut(id) else { continue };
                let has_room = subscriber.updates.len() < MAX_BELOW;
                subscriber.updates.insert(if has_room { updated } else { uri }.clone());
                subscriber.updated.send_replace(());
            }
        }
        !updates.is_empty()
    }
}

/// A URI and those above it in its path, with and without a slash at the end; the longest first.
fn above(uri: &str) -> impl Iterator<Item = &str> {
    let cuts = uri.rmatch_indices(['/', '?', '#']).take(MAX_ABOVE);
    let above = cuts.flat_map(|(at, cut)| [&uri[..at + cut.len()], &uri[..at]]);
    std::iter::once(uri).chain(above.filter(move |above| above.len() < uri.len()))
}

/// The updates for one stream of a subscriber. Without streams, the subscriptions of a stream end
/// at once, those of a session after [`KEPT`].
#[derive(Debug)]
pub(crate) struct ResourceUpdates {
    subscriptions: Arc<ResourceSubscriptions>,
    id: SubscriberId,
    updated: watch::Receiver<()>,
    is_session: bool,
}

impl ResourceUpdates {
    /// Waits for an update and returns the URI. While `is_newest` does not hold, updates are left
    /// to another stream of the session. Cancel safe.
    pub(crate) async fn next(&mut self, is_newest: impl Fn() -> bool) -> Arc<str> {
        loop {
            self.updated.mark_unchanged();
            if is_newest()
                && let Some(uri) = self.subscriptions.take_update(&self.id)
            {
                return uri;
            }
            if self.updated.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

impl Drop for ResourceUpdates {
    fn drop(&mut self) {
        self.subscriptions.detach(self.id, self.is_session);
    }
}

#[cfg(test)]
mod tests {
    use domain::caller::Caller;

    use super::*;

    fn holder(name: &str) -> Holder {
        Holder::Caller(Caller::new(name))
    }

    fn subscriptions() -> Arc<ResourceSubscriptions> {
        Arc::default()
    }

    fn subscribe(
        subscriptions: &ResourceSubscriptions,
        id: u8,
        uri: &str,
    ) -> Result<(), SubscriptionRefusal> {
        subscriptions.subscribe([id; 16], &holder("ada"), Share::WHOLE, uri)
    }

    fn wanted(subscriptions: &ResourceSubscriptions) -> Vec<String> {
        subscriptions.wanted().iter().map(|uri| uri.to_string()).collect()
    }

    #[test]
    fn a_resource_is_wanted_from_its_first_to_its_last_subscriber() {
        let all = subscriptions();
        for id in [1, 2] {
            let again = [subscribe(&all, id, "a:1"), subscribe(&all, id, "a:1")];
            assert_eq!(again, [Ok(()), Ok(())]);
        }
        assert_eq!(wanted(&all), ["a:1"]);
        all.unsubscribe([1; 16], "a:1");
        all.unsubscribe([1; 16], "a:1");
        assert_eq!(wanted(&all), ["a:1"], "the other still wants it");
        all.unsubscribe([2; 16], "a:1");
        assert!(wanted(&all).is_empty());
        assert_eq!(all.lock().shares.used(), 0);
        assert!(all.lock().subscribers.is_empty());
    }

    #[test]
    fn no_caller_takes_the_room_of_others() {
        let all = subscriptions();
        let taken = |name: &str, first: u8| {
            let mut taken = 0;
            for id in first..first + 100 {
                for n in 0..MAX_OF_SUBSCRIBER + 1 {
                    let uri = format!("{name}:{n}");
                    let share = Share::QUARTER;
                    taken +=
                        usize::from(all.subscribe([id; 16], &holder(name), share, &uri).is_ok());
                }
            }
            taken
        };
        let greedy = taken("greedy", 0);
        assert!((MAX_IN_ALL / 4..=MAX_IN_ALL / 2 + 1).contains(&greedy), "{greedy}");
        assert!(taken("other", 100) >= MAX_IN_ALL / 4);
        let long = "x".repeat(MAX_URI + 1);
        assert_eq!(subscribe(&all, 250, &long), Err(SubscriptionRefusal::TooLong));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_updates_is_one_a_second_and_blocks_nothing() {
        let all = subscriptions();
        subscribe(&all, 1, "a:1").unwrap();
        let mut updates = all.attach([1; 16], true);
        let began = Instant::now();
        let flood = async {
            loop {
                (0..100).for_each(|_| all.note_updated("a:1"));
                all.note_updated("a:2");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let sent = async {
            for _ in 0..4 {
                assert_eq!(&*updates.next(|| true).await, "a:1");
            }
        };
        tokio::select! {
            () = flood => {}
            () = all.keep_handing_over() => {}
            () = sent => {}
        }
        assert!(began.elapsed() >= 3 * INTERVAL, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_update_below_a_subscribed_resource_is_one_of_it_and_many_are_bounded() {
        let all = subscriptions();
        for uri in ["file:///docs", "file:///docs/", "file:///d"] {
            subscribe(&all, 1, uri).unwrap();
        }
        let mut updates = all.attach([1; 16], false);
        all.note_updated("file:///docs/a.md#top");
        assert!(all.lock().hand_over());
        assert_eq!(&*updates.next(|| true).await, "file:///docs/a.md#top");
        assert_eq!(all.take_update(&[1; 16]), None, "once, although two are above it");
        for n in 0..10 * MAX_BELOW {
            all.note_updated(&format!("file:///docs/{n}"));
        }
        assert!(all.lock().updates.len() <= MAX_BELOW + 3);
        all.lock().hand_over();
        for n in 0..MAX_BELOW {
            all.note_updated(&format!("file:///docs/other/{n}"));
        }
        all.lock().hand_over();
        assert!(all.lock().subscribers[&[1; 16]].updates.len() <= MAX_BELOW + 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_stream_gets_an_update_and_an_older_one_takes_over() {
        let all = subscriptions();
        subscribe(&all, 1, "a:1").unwrap();
        let (mut older, mut newer) = (all.attach([1; 16], true), all.attach([1; 16], true));
        all.note_updated("a:1");
        all.lock().hand_over();
        let waits = timeout(INTERVAL, older.next(|| false)).await;
        assert!(waits.is_err());
        assert_eq!(&*newer.next(|| true).await, "a:1");
        all.note_updated("a:1");
        all.lock().hand_over();
        drop(newer);
        assert_eq!(&*older.next(|| true).await, "a:1");
    }

    #[tokio::test(start_paused = true)]
    async fn subscriptions_of_a_session_outlive_its_stream_for_a_while() {
        let all = subscriptions();
        let handing_over = async {
            subscribe(&all, 1, "a:1").unwrap();
            drop(all.attach([1; 16], true));
            assert_eq!(wanted(&all), ["a:1"]);
            let again = all.attach([1; 16], true);
            tokio::time::sleep(2 * KEPT).await;
            assert_eq!(wanted(&all), ["a:1"]);
            drop(again);
            tokio::time::sleep(2 * KEPT + INTERVAL).await;
            assert!(wanted(&all).is_empty());
        };
        tokio::select! {
            () = all.keep_handing_over() => {}
            () = handing_over => {}
        }
        let own = all.attach([2; 16], false);
        subscribe(&all, 2, "a:2").unwrap();
        drop(own);
        assert!(wanted(&all).is_empty(), "those of a stream end with it");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_reconnect_each_resource_counts_as_updated_once() {
        let all = subscriptions();
        let uri: Arc<str> = "a:1".into();
        subscribe(&all, 1, &uri).unwrap();
        all.connected();
        all.settle(&uri, Ok(()));
        assert!(all.lock().updates.is_empty(), "the first subscription missed nothing");
        assert_eq!(all.answered(&uri).await, Ok(()));
        all.connected();
        all.settle(&uri, Ok(()));
        assert_eq!(all.lock().updates.len(), 1);
        all.connected();
        all.settle(&uri, Err(Kind::Timeout));
        assert_eq!(all.answered(&uri).await, Err(Kind::Timeout));
        subscribe(&all, 2, &uri).unwrap();
        assert_eq!(wanted(&all), ["a:1"], "a new subscriber asks again");
        all.lock().hand_over();
        all.settle(&uri, Ok(()));
        assert_eq!(all.lock().updates.len(), 1, "also after a refusal in between");
    }

    #[test]
    fn a_resource_that_fails_again_and_again_keeps_no_other_waiting() {
        let all = subscriptions();
        let uris: Vec<_> = (0..100).map(|n| format!("a:{n}")).collect();
        uris.iter().for_each(|uri| subscribe(&all, 1, uri).unwrap());
        let is_bad = |uri: &Arc<str>| ["a:7", "a:70"].contains(&&**uri);
        for asked in 0.. {
            let wanted = all.wanted_next();
            let held: BTreeSet<_> = wanted.iter().filter(|uri| all.is_held(uri)).cloned().collect();
            let new: BTreeSet<_> = wanted.difference(&held).cloned().collect();
            if new.is_empty() {
                assert!(held.len() == 98 && asked < 60, "{} after {asked}", held.len());
                return;
            }
            match (new.iter().any(is_bad), new.len()) {
                (false, _) => new.iter().for_each(|uri| all.settle(uri, Ok(()))),
                (true, 1) => new.iter().for_each(|uri| {
                    all.settle(uri, Err(Kind::Status { status: 404, shown: String::new() }));
                }),
                // Taken at first, as over standard streams, and refused then.
                (true, _) => {
                    wanted.iter().for_each(|uri| all.settle(uri, Ok(())));
                    all.lost();
                    all.doubt(&new);
                }
            }
            all.ask_again();
        }
    }
}
