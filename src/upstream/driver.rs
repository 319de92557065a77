//! One task per upstream: connects, walks the list, waits for a reason to walk it again.
//!
//! The driver is the only one that opens connections. Calls share what it opened and tell it when
//! that is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::client_attributes;
use super::connection::Connection;
use super::connection::connect::{Connector, Wake};
use super::connection::list_pages::Listed;
use super::guard::backoff::{Backoff, jittered};
use super::guard::breaker::Breaker;
use crate::config::{Transport, Upstream};
use crate::domain::call::ForwardedMeta;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::method::Method;
use crate::domain::revision::Revision;
use crate::telemetry::{ClientOperation, Telemetry};

/// What a driver has to say to the catalog.
#[derive(Debug)]
pub(crate) struct Report {
    pub driver: DriverId,
    pub outcome: Result<Walked, Kind>,
}

/// Names a driver as long as the process lives: an upstream that is configured anew has another one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct DriverId(u64);

impl DriverId {
    /// One that nobody has had.
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A list, and what it is worth.
#[derive(Clone, Debug)]
pub(crate) struct Walked {
    pub listed: Listed,
    /// How long nobody needs to ask again; absent where changes are noticed at once.
    pub fresh_for: Option<Duration>,
}

/// Whether an upstream can be called right now.
#[derive(Clone)]
pub(crate) enum Link {
    /// Not yet known.
    Connecting,
    Up(Arc<Connection>),
    Down(Kind),
}

pub(super) struct Driver {
    pub telemetry: Telemetry,
    pub breaker: Arc<Breaker>,
    pub id: DriverId,
    pub upstream: Arc<Upstream>,
    /// Or why the upstream can never be reached as it is configured.
    pub connector: Result<Arc<Connector>, String>,
    pub link: watch::Sender<Link>,
    pub wake: Wake,
    pub reports: mpsc::Sender<Report>,
    /// Cancelled when nobody calls the upstream any more, or the gateway ends.
    pub shutdown: CancellationToken,
    /// Whether the upstream says when its list changes, at present.
    pub listening: AtomicBool,
}

/// Edits often come several at once (an editor writes, renames, touches): one look at their end.
const EDIT_SETTLE: Duration = Duration::from_millis(100);

/// A connection that lasts this long is a good one.
const STEADY: Duration = Duration::from_secs(10);

/// Notices of an upstream lead to at most one walk in this time, so that a storm of them costs it
/// and us no more than a change a second.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

/// An upstream that says "stale at once" is believed at most this often.
const LEAST_TTL: Duration = Duration::from_secs(1);

/// How long a farewell may hold up the end.
const FAREWELL: Duration = Duration::from_millis(500);

impl Driver {
    /// Runs until nobody needs it.
    pub(crate) async fn run(self) {
        let shutdown = self.shutdown.clone();
        shutdown.run_until_cancelled(self.drive()).await;
        let over = Kind::Unavailable("the gateway is shutting down".to_owned());
        if let Link::Up(connection) = self.link.send_replace(Link::Down(over)) {
            let _ = timeout(FAREWELL, connection.close()).await;
        }
    }

    async fn drive(&self) {
        let (mut backoff, mut flaps) = (Backoff::default(), Backoff::default());
        let connector = match &self.connector {
            Ok(connector) => connector,
            Err(reason) => return self.release(Kind::Unavailable(reason.clone())).await,
        };
        loop {
            match connector.connect().await {
                Ok(connection) => {
                    let (connected, flaps_matter) = (Instant::now(), !connection.is_snapshot());
                    self.replace(Arc::new(connection)).await;
                    tokio::select! {
                        () = Box::pin(self.keep_list(&mut backoff)) => {}
                        () = self.keep_listening() => {}
                    }
                    self.count_session(connected.elapsed());
                    // One that is lost again and again is not connected to again and again.
                    if connected.elapsed() > STEADY {
                        flaps.reset();
                    }
                    if flaps_matter {
                        sleep(flaps.next(fastrand::f64())).await;
                    }
                }
                Err(kind) => {
                    // A library that cannot be read any more still has what was read before.
                    let keeps = matches!(&*self.link.borrow(), Link::Up(p) if p.is_snapshot());
                    if !keeps {
                        self.link.send_replace(Link::Down(kind.clone()));
                    }
                    self.report_failure(kind, &mut backoff).await;
                }
            }
        }
    }

    fn count_session(&self, lasted: Duration) {
        if let Link::Up(connection) = &*self.link.borrow()
            && !connection.is_snapshot()
        {
            let revision = connection.describe().0.map(Revision::as_str);
            self.telemetry.metrics().upstream_session(self.upstream.id.as_str(), revision, lasted);
        }
    }

    /// Makes a new connection the one that calls use, and leaves the old one if nobody else does.
    async fn replace(&self, connection: Arc<Connection>) {
        let (revision, transport) = connection.describe();
        debug!(upstream = %self.upstream.id, ?revision, transport, "connected");
        let old = self.link.send_replace(Link::Up(connection));
        // What failed, failed on another connection.
        if self.breaker.close().is_some() {
            info!(upstream = %self.upstream.id, "connected anew, and asked again (breaker)");
        }
        // Whoever called for a new connection has it now.
        let _ = timeout(Duration::ZERO, self.wake.lost.notified()).await;
        if let Link::Up(old) = old
            && let Some(old) = Arc::into_inner(old)
        {
            let _ = timeout(FAREWELL, old.close()).await;
        }
    }

    /// Listens for notices, as long as the connection is good; for ever where there are none.
    async fn keep_listening(&self) {
        let Link::Up(connection) = self.link.borrow().clone() else {
            return;
        };
        let mut backoff = Backoff::default();
        loop {
            let started = Instant::now();
            // What happened before the stream was open was not told: its opening is a reason to
            // look as much as a notice is.
            let heard = connection.listen(|is_notice| {
                self.listening.store(true, Ordering::Relaxed);
                self.wake.changed.notify_one();
                if is_notice {
                    self.telemetry.metrics().list_changed_received(self.upstream.id.as_str());
                }
            });
            let ended = heard.await;
            if self.listening.swap(false, Ordering::Relaxed) {
                // Until it is open again polling takes over.
                self.wake.changed.notify_one();
            }
            if started.elapsed() > STEADY {
                backoff.reset();
            }
            match ended {
                Err(Kind::Error { .. } | Kind::Status { status: 400..500 }) => {
                    // It has no such stream: polling it is.
                    std::future::pending::<()>().await;
                }
                Err(Kind::SessionLost) => return,
                Ok(()) | Err(_) => sleep(backoff.next(fastrand::f64())).await,
            }
        }
    }

    /// Walks and waits, as long as the connection is good.
    async fn keep_list(&self, backoff: &mut Backoff) {
        let Link::Up(connection) = self.link.borrow().clone() else {
            return;
        };
        let mut walked = false;
        loop {
            let started = Instant::now();
            let wait = match self.walk(&connection).await {
                Ok(listed) => {
                    backoff.reset();
                    walked = true;
                    let wait = self.next_walk(listed.ttl);
                    let fresh_for = listed.ttl.or((!connection.is_snapshot()).then_some(wait));
                    self.report_list(Walked { listed, fresh_for }).await;
                    wait
                }
                // A session that has served its time is no failure: open another at once.
                Err(Kind::SessionLost) if walked => return,
                Err(kind) => {
                    let hangs = kind == Kind::Timeout && connection.is_stuck();
                    let reconnect = hangs || questions_connection(&kind);
                    self.report_failure(kind, backoff).await;
                    match reconnect {
                        // The era is found again, and a session opened again, on the way.
                        true => return,
                        false => continue,
                    }
                }
            };
            tokio::select! {
                () = sleep(wait) => {}
                () = self.wake.changed.notified() => {
                    let storm = if connection.is_snapshot() { Duration::ZERO } else { NOTICE_INTERVAL };
                    let settled = Instant::now() + EDIT_SETTLE;
                    sleep_until(settled.max(started + storm)).await;
                }
                () = self.wake.lost.notified() => return,
                () = connection.gone() => return,
            }
            if connection.is_snapshot() {
                return;
            }
        }
    }

    async fn walk(&self, connection: &Connection) -> Result<Listed, Kind> {
        let mut forwarded = ForwardedMeta::default();
        let revision = connection.describe().0.map(Revision::as_str);
        let attributes = client_attributes(&self.upstream, Method::List, revision, None);
        let operation = attributes.map(|attributes| {
            ClientOperation::begin(&self.telemetry, attributes, &mut forwarded.trace)
        });
        let walked = connection.walk(&self.upstream.settings, &forwarded).await;
        if let Some(operation) = operation {
            operation.end(walked.as_ref().err());
        }
        walked
    }

    /// How long a good list is kept before it is walked again.
    fn next_walk(&self, ttl: Option<Duration>) -> Duration {
        let settings = &self.upstream.settings;
        let listening = self.listening.load(Ordering::Relaxed);
        let poll = Some(settings.poll).filter(|p| !p.is_zero() && !listening);
        let ttl = ttl.filter(|t| !t.is_zero()).map(|t| t.max(LEAST_TTL));
        let waits = [poll, ttl, Some(settings.max_age)];
        let least = waits.into_iter().flatten().min().unwrap_or(settings.max_age);
        jittered(least, fastrand::f64())
    }

    async fn report_list(&self, walked: Walked) {
        let (prompts, pages) = (walked.listed.prompts.len(), walked.listed.pages);
        debug!(upstream = %self.upstream.id, prompts, pages, "list walked");
        self.report(Ok(walked)).await;
    }

    async fn report_failure(&self, kind: Kind, backoff: &mut Backoff) {
        let retry_after = match &kind {
            Kind::RateLimited { retry_after_secs } => retry_after_secs.map(Duration::from_secs),
            _ => None,
        };
        let wait =
            backoff.next(fastrand::f64()).max(retry_after.unwrap_or_default().min(MOST_PATIENT));
        info!(upstream = %self.upstream.id, error = %kind, retry_in = ?wait, "no list");
        self.report(Err(kind)).await;
        match self.upstream.transport {
            // An edit may be what mends it.
            Transport::Library(_) => {
                let _ = timeout(wait, self.wake.changed.notified()).await;
            }
            // What a failing upstream says must not shorten the wait.
            Transport::Http(_) | Transport::Sse(_) | Transport::Stdio(_) => sleep(wait).await,
        }
    }

    async fn release(&self, kind: Kind) {
        warn!(upstream = %self.upstream.id, error = %kind, "cannot be used");
        self.link.send_replace(Link::Down(kind.clone()));
        self.report(Err(kind)).await;
    }

    async fn report(&self, outcome: Result<Walked, Kind>) {
        // The receiver is gone only when the gateway ends.
        let _ = self.reports.send(Report { driver: self.id, outcome }).await;
    }
}

/// Whether a failed walk speaks against the connection, or only against the list.
fn questions_connection(kind: &Kind) -> bool {
    !matches!(
        kind,
        Kind::Timeout
            | Kind::RateLimited { .. }
            | Kind::PaginationLimit(_)
            | Kind::TooLarge { .. }
            | Kind::AuthFailed { .. }
            | Kind::NoToken(_)
            // Its own words about the request; the reserved codes are about the conversation.
            | Kind::Error { code: -32602 | -32603, .. }
    )
}

/// Longest `Retry-After` that is obeyed: an upstream must not be able to switch itself off.
const MOST_PATIENT: Duration = Duration::from_secs(300);
