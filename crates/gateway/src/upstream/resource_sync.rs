//! Keeps the upstream of `[rest]` subscribed to what clients want: one subscription for each
//! resource, made again on each connection. It needs no proof of a call: rights were decided for
//! each client before its subscription was noted.

use std::collections::BTreeSet;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::connection::Connection;
use super::resource_subscriptions::ResourceSubscriptions;
use domain::backoff::Backoff;
use domain::fault::UpstreamFaultKind as Kind;
use domain::method::{SUBSCRIBE, UNSUBSCRIBE};

/// Longest wait for the answer to one subscription: others wait behind it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time in which subscriptions are collected, before a modern upstream is asked for all of them.
const DEBOUNCE: Duration = Duration::from_millis(20);

type Uris = BTreeSet<Arc<str>>;

/// The stream of updates of a modern upstream.
struct OpenStream<'a> {
    /// Ends with the stream.
    listening: Pin<Box<dyn Future<Output = Result<(), Kind>> + Send + 'a>>,
    uris: Uris,
    /// The resources of `uris` that no earlier stream had: the upstream may still refuse them.
    new: Uris,
    since: Instant,
}

/// A stream that lasts longer counts as stable: the next one is opened at once.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Keeps a connection subscribed, and hands its updates over. Returns when its session is lost;
/// never for an upstream without such subscriptions.
pub(super) async fn keep_subscribed(
    connection: &Connection,
    subscriptions: &ResourceSubscriptions,
) {
    subscriptions.connected();
    let keeping = async {
        if !connection.rest_capabilities().is_some_and(|rest| rest.has_subscriptions()) {
            std::future::pending::<()>().await;
        } else if connection.subscribes_by_request() {
            one_by_one(connection, subscriptions).await;
        } else {
            all_at_once(connection, subscriptions).await;
        }
    };
    tokio::select! {
        () = keeping => {}
        () = subscriptions.keep_handing_over() => {}
    }
}

/// Sends a request for each resource (MCP 2025-11-25, resources, subscriptions).
async fn one_by_one(connection: &Connection, subscriptions: &ResourceSubscriptions) {
    let mut changes = subscriptions.changes();
    let mut held = Uris::new();
    let mut backoff = Backoff::default();
    loop {
        changes.mark_unchanged();
        let wanted = subscriptions.wanted();
        let mut has_failed = false;
        settle_held(&wanted, &held, subscriptions);
        for uri in wanted.difference(&held.clone()) {
            let answer = request(connection, SUBSCRIBE, uri).await;
            match &answer {
                Ok(()) => drop(held.insert(uri.clone())),
                Err(Kind::SessionLost) => return,
                Err(kind) => has_failed |= note_failure(kind),
            }
            subscriptions.settle(uri, answer);
        }
        let unwanted: Vec<_> = held.difference(&wanted).cloned().collect();
        for uri in unwanted {
            held.remove(&uri);
            if request(connection, UNSUBSCRIBE, &uri).await == Err(Kind::SessionLost) {
                return;
            }
        }
        if !has_failed {
            backoff.reset();
        }
        wait(&mut changes, has_failed.then(|| backoff.next(fastrand::f64()))).await;
        subscriptions.ask_again();
    }
}

async fn request(connection: &Connection, method: &'static str, uri: &str) -> Result<(), Kind> {
    let asking = connection.about_resource(method, uri);
    timeout(PATIENCE, asking).await.unwrap_or(Err(Kind::Timeout))
}

/// Opens one stream for all resources (MCP 2026-07-28, subscriptions). The next one is open before
/// the one before it is closed, so that no update is missed between the two.
async fn all_at_once(connection: &Connection, subscriptions: &ResourceSubscriptions) {
    let mut changes = subscriptions.changes();
    let mut open: Option<OpenStream<'_>> = None;
    let mut backoff = Backoff::default();
    loop {
        changes.mark_unchanged();
        let wanted = subscriptions.wanted_next();
        let mut pause = None;
        if let Some(open) = &open {
            settle_held(&wanted, &open.uris, subscriptions);
        }
        if wanted.is_empty() {
            open = None;
        } else if open.as_ref().is_none_or(|open| open.uris != wanted) {
            let new = wanted.iter().filter(|uri| !subscriptions.is_held(uri)).cloned();
            let new: Uris = new.collect();
            match reopened(connection, (&wanted, &new), &mut open).await {
                Ok(next) => {
                    open = Some(next);
                    wanted.iter().for_each(|uri| subscriptions.settle(uri, Ok(())));
                    continue;
                }
                Err(kind) => {
                    if note_failure(&kind) {
                        new.iter().for_each(|uri| subscriptions.settle(uri, Err(kind.clone())));
                    } else {
                        refuse(&new, &kind, subscriptions);
                    }
                    pause = Some(backoff.next(fastrand::f64()));
                }
            }
        }
        tokio::select! {
            outcome = ended(&mut open) => {
                let Some(was) = open.take() else { continue };
                let lasted = was.since.elapsed();
                if lasted > STABLE_AFTER {
                    backoff.reset();
                }
                // Updates may be missed until it is open again.
                subscriptions.lost();
                // A stream counts as open before the upstream has taken the request.
                match outcome {
                    Err(kind) if lasted < PATIENCE && !note_failure(&kind) => {
                        refuse(&was.new, &kind, subscriptions);
                    }
                    _ => {}
                }
                sleep(backoff.next(fastrand::f64())).await;
            }
            () = wait(&mut changes, pause) => sleep(DEBOUNCE).await,
        }
        subscriptions.ask_again();
    }
}

/// Notes the refusal of a stream with new resources: of several it is not known which one is
/// refused.
fn refuse(new: &Uris, kind: &Kind, subscriptions: &ResourceSubscriptions) {
    match new.first().filter(|_| new.len() == 1) {
        Some(uri) => subscriptions.settle(uri, Err(kind.clone())),
        None => subscriptions.doubt(new),
    }
}

/// Opens the stream of these resources, while the one before it goes on.
async fn reopened<'a>(
    connection: &'a Connection,
    (wanted, new): (&Uris, &Uris),
    before: &mut Option<OpenStream<'a>>,
) -> Result<OpenStream<'a>, Kind> {
    let is_open = Arc::new(Notify::new());
    let listening = connection.listen_to_resources(wanted.clone(), is_open.clone());
    let mut next = OpenStream {
        listening: Box::pin(listening),
        uris: wanted.clone(),
        new: new.clone(),
        since: Instant::now(),
    };
    let mut patience = pin!(sleep(PATIENCE));
    loop {
        tokio::select! {
            biased;
            ended = &mut next.listening => {
                let ended = ended.err();
                return Err(ended.unwrap_or_else(|| Kind::Reset("it has ended at once".to_owned())));
            }
            () = is_open.notified() => return Ok(next),
            () = &mut patience => return Err(Kind::Timeout),
            _ = ended(before) => *before = None,
        }
    }
}

/// Waits for the end of the stream; never returns without one. Cancel safe.
async fn ended(open: &mut Option<OpenStream<'_>>) -> Result<(), Kind> {
    match open {
        Some(open) => (&mut open.listening).await,
        None => std::future::pending().await,
    }
}

/// Answers for what is subscribed to already: by a client that has left meanwhile.
fn settle_held(wanted: &Uris, held: &Uris, subscriptions: &ResourceSubscriptions) {
    let unsettled = wanted.intersection(held).filter(|uri| !subscriptions.is_held(uri));
    unsettled.for_each(|uri| subscriptions.settle(uri, Ok(())));
}

/// Notes why subscriptions were not made. Returns whether another attempt may succeed.
fn note_failure(kind: &Kind) -> bool {
    let is_transient = !kind.refuses_streams();
    debug!(reason = kind.reason(), is_transient, "the upstream has not subscribed to a resource");
    is_transient
}

/// Waits for a change of what is wanted, at most for a time if there is one. Cancel safe.
async fn wait(changes: &mut watch::Receiver<()>, at_most: Option<Duration>) {
    let changed = changes.changed();
    let _ = match at_most {
        Some(at_most) => timeout(at_most, changed).await.is_ok(),
        None => changed.await.is_ok(),
    };
}
