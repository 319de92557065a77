//! Keeps the private lists of a caller fresh while a stream of the caller waits for changes.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::DropGuard;

use super::list::{List, ListsOf};
use super::{CallerLists, Cause, Place};
use crate::blocking::run_blocking;
use crate::segment::Digest;
use crate::view_cache::{DECIDED_AT_ONCE, ViewCache};
use base::platform::Locked;
use domain::calls::caller::{Caller, Principal};
use domain::time::backoff::Backoff;
use upstream::Upstream;
use upstream::accounts::account::Account;

/// The callers with open streams.
#[derive(Default)]
pub(super) struct Watchers(Mutex<HashMap<Principal, Weak<WatchedCaller>>>);

/// State that the streams of one caller share. The gateway listens to the upstreams until the
/// caller's last stream ends.
struct WatchedCaller {
    changed: watch::Sender<()>,
    lists: Weak<CallerLists>,
    caller: Principal,
    _listening: DropGuard,
}

impl Drop for WatchedCaller {
    fn drop(&mut self) {
        let Some(lists) = self.lists.upgrade() else { return };
        let mut watchers = lists.watchers.0.locked();
        // The caller may have opened another stream meanwhile.
        if watchers.get(&self.caller).is_some_and(|watched| watched.strong_count() == 0) {
            watchers.remove(&self.caller);
        }
    }
}

/// A stream that waits for changes of its caller's private lists.
pub struct Watching {
    lists: Arc<CallerLists>,
    _watched: Arc<WatchedCaller>,
    changed: watch::Receiver<()>,
    caller: Principal,
    /// The digest of the lists that the client knows; `None` before the lists are known.
    seen: Option<SeenLists>,
}

/// The digest of the private lists that a caller sees at an endpoint.
struct SeenLists {
    digest: Digest,
    /// The lists and views behind `digest`.
    lists: Weak<ListsOf>,
    views: Weak<ViewCache>,
}

/// Shortest time between two fetches of a list whose upstream announces changes.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

impl Watchers {
    /// Whether a stream of a caller is open.
    pub(super) fn has(&self, caller: &Principal) -> bool {
        self.0.locked().get(caller).is_some_and(|watched| watched.strong_count() > 0)
    }

    /// Notifies the streams of a caller that one of its lists was fetched.
    pub(super) fn notify(&self, caller: &Principal) {
        let watched = self.0.locked().get(caller).and_then(Weak::upgrade);
        // The lock is released first: dropping the last reference takes the lock.
        if let Some(watched) = watched {
            watched.changed.send_replace(());
        }
    }
}

impl CallerLists {
    /// Waits for changes of a caller's lists, and keeps them fresh meanwhile.
    pub fn watch(self: &Arc<Self>, caller: &Caller) -> Watching {
        let caller = Principal::new(caller);
        let mut watchers = self.watchers.0.locked();
        let known = watchers.get(&caller).and_then(Weak::upgrade);
        let watched = known.unwrap_or_else(|| {
            let stop = self.shutdown.child_token();
            let (changed, _) = watch::channel(());
            for at in 0..self.sources.len() {
                let keeping = keep_fresh(self.clone(), (caller.clone(), at), changed.subscribe());
                let stop = stop.clone();
                self.tasks.spawn(async move { stop.run_until_cancelled(Box::pin(keeping)).await });
            }
            let watched = Arc::new(WatchedCaller {
                changed,
                lists: Arc::downgrade(self),
                caller: caller.clone(),
                _listening: stop.drop_guard(),
            });
            watchers.insert(caller.clone(), Arc::downgrade(&watched));
            watched
        });
        drop(watchers);
        let changed = watched.changed.subscribe();
        Watching { lists: self.clone(), _watched: watched, changed, caller, seen: None }
    }
}

impl Watching {
    /// Continues with the lists of another configuration. The client keeps the previous lists until
    /// the new lists are known.
    pub(crate) fn renew(&mut self, lists: &Arc<CallerLists>) {
        if Arc::ptr_eq(&self.lists, lists) {
            self.changed.borrow_and_update();
        } else {
            let mut next = lists.watch(self.caller.caller());
            next.seen = self.seen.take();
            *self = next;
        }
    }

    /// Returns the digest of the private lists that the caller sees at an endpoint, and whether it
    /// became known in this call. Zero if the lists are empty or unknown.
    pub(crate) async fn digest(
        &mut self,
        views: &Arc<ViewCache>,
        endpoint: &str,
    ) -> (Digest, bool) {
        let known = self.lists.known(&self.caller, views, endpoint);
        let Some(lists) = known else {
            // The cache may have evicted the lists, or the lists may belong to another
            // configuration: the client still knows the previous lists.
            return (self.seen.as_ref().map(|seen| seen.digest).unwrap_or_default(), false);
        };
        let is_same = |seen: &SeenLists| {
            seen.lists.as_ptr() == Arc::as_ptr(&lists) && seen.views.as_ptr() == Arc::as_ptr(views)
        };
        if let Some(seen) = self.seen.as_ref().filter(|seen| is_same(seen)) {
            return (seen.digest, false);
        }
        let is_learned = self.seen.is_none();
        let owned = lists.clone();
        let deciding = views.clone();
        let caller = self.caller.clone();
        let endpoint = endpoint.to_owned();
        let decide = move || {
            owned.visible_digest(|segment| deciding.visible(caller.caller(), &endpoint, segment))
        };
        let are_few = lists.len() <= DECIDED_AT_ONCE;
        let digest = if are_few { decide() } else { run_blocking(decide).await };
        self.seen =
            Some(SeenLists { digest, lists: Arc::downgrade(&lists), views: Arc::downgrade(views) });
        (digest, is_learned)
    }

    /// Resolves when a list of the caller has been fetched again. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        if self.changed.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Fetches a list again when its upstream announces a change, and when the list is due. A fetch
/// uses the access token in the caller's account: after its expiry, only a call of the caller
/// brings another token.
async fn keep_fresh(lists: Arc<CallerLists>, place: Place, mut fetched: watch::Receiver<()>) {
    let (caller, at) = &place;
    let mut backoff = Backoff::default();
    loop {
        let mut again = None;
        if let Some(upstream) = lists.upstream(*at)
            && let Some(account) = upstream.account_of(caller.caller())
        {
            // The client may know lists of the previous configuration.
            if lists.lists_of(caller).get(*at).is_none() && account.has_access() {
                lists.clone().renew(place.clone(), Cause::Age).await;
            }
            let started = Instant::now();
            listen(&lists, &place, &upstream, account, &mut fetched).await;
            if started.elapsed() > LEAST_PAUSE {
                backoff.reset();
            }
            // Only a call restarts a child process.
            again = Some(started + backoff.next(fastrand::f64()))
                .filter(|_| !upstream.has_child_per_caller());
        }
        tokio::select! {
            // A call has fetched the list on a connection that is open now.
            changed = fetched.changed() => if changed.is_err() { return },
            () = until(again) => {}
        }
    }
}

/// Keeps a list fresh until the connection of its caller ends.
async fn listen(
    lists: &Arc<CallerLists>,
    place: &Place,
    upstream: &Upstream,
    account: Arc<Account>,
    fetched: &mut watch::Receiver<()>,
) {
    let (caller, at) = place;
    let turn = account.listening.clone();
    let weak = Arc::downgrade(&account);
    drop(account);
    // Streams of the previous configuration may still listen.
    let _one = turn.lock().await;
    let Some(account) = weak.upgrade() else { return };
    let list_changed = account.list_changed.clone();
    let has_access = || weak.upgrade().is_some_and(|account| account.has_access());
    let mut backoff = Backoff::default();
    let mut listening = pin!(upstream.listen_as_caller(account));
    // Time of an unfetched change: without access, the fetch may take a while.
    let mut changed_at = None;
    loop {
        fetched.borrow_and_update();
        let list = lists.lists_of(caller).get(*at).cloned();
        let due = match list.as_deref().filter(|list| is_fresh(list, changed_at)) {
            Some(list) => {
                backoff.reset();
                changed_at = None;
                list.renew_at
            }
            // The list is due, has changed, could not be fetched, or was evicted.
            None => Instant::now() + backoff.next(fastrand::f64()),
        };
        // A notification may also concern another list of the caller.
        let fetched_again = async {
            while fetched.changed().await.is_ok() {
                let known = lists.lists_of(caller).get(*at).map(Arc::as_ptr);
                if known != list.as_ref().map(Arc::as_ptr) {
                    return ControlFlow::Continue(());
                }
            }
            ControlFlow::Break(())
        };
        tokio::select! {
            () = &mut listening => return,
            fetched = fetched_again => match fetched {
                ControlFlow::Continue(()) => continue,
                ControlFlow::Break(()) => return,
            },
            () = list_changed.notified() => changed_at = Some(Instant::now()),
            () = sleep_until(due), if !upstream.has_child_per_caller() => {}
        }
        if !has_access() {
            continue;
        }
        let cause = changed_at.map_or(Cause::Age, Cause::Change);
        let renewing = async {
            if let Cause::Change(changed_at) = cause {
                sleep_until(list.map_or(changed_at, |list| list.began_at + LEAST_PAUSE)).await;
            }
            if has_access() {
                lists.clone().renew(place.clone(), cause).await;
            }
        };
        if finish_beside(renewing, listening.as_mut()).await.is_break() {
            return;
        }
    }
}

/// Whether a list was fetched after the last change, and is not due yet.
fn is_fresh(list: &List, changed_at: Option<Instant>) -> bool {
    list.failure.is_none()
        && list.renew_at > Instant::now()
        && changed_at.is_none_or(|changed_at| list.began_at >= changed_at)
}

/// Runs `work` to its end while polling `listening`; breaks if `listening` has ended, too. Both
/// futures wait in a queue for the caller's connection: if the first in the queue were not polled,
/// the other would wait forever.
async fn finish_beside(
    work: impl Future<Output = ()>,
    listening: Pin<&mut impl Future<Output = ()>>,
) -> ControlFlow<()> {
    let mut work = pin!(work);
    tokio::select! {
        () = &mut work => ControlFlow::Continue(()),
        () = listening => {
            work.await;
            ControlFlow::Break(())
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use tokio::sync::Mutex as AsyncMutex;

    use super::*;

    fn is_pending<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn a_list_is_renewed_although_the_listener_waits_for_the_connection_before_it() {
        let connection = AsyncMutex::new(());
        let opening = connection.lock().await;
        let mut listening = pin!(async {
            drop(connection.lock().await);
            std::future::pending().await
        });
        assert!(is_pending(listening.as_mut()));
        let renewing = async {
            // It waits behind the listener, and then the connection is open.
            let mut turn = pin!(connection.lock());
            assert!(is_pending(turn.as_mut()));
            drop(opening);
            drop(turn.await);
        };
        let finished = finish_beside(renewing, listening.as_mut());
        let finished = tokio::time::timeout(Duration::from_secs(10), finished).await;
        assert!(finished.expect("it has its turn").is_continue());
    }

    #[tokio::test]
    async fn a_renewal_is_finished_after_the_listener_has_ended() {
        let mut is_renewed = false;
        let mut listening = pin!(async {});
        let renewing = async {
            tokio::task::yield_now().await;
            is_renewed = true;
        };
        assert!(finish_beside(renewing, listening.as_mut()).await.is_break());
        assert!(is_renewed);
    }
}
