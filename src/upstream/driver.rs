//! One task per upstream: connects, walks the list, waits for a reason to walk it again.
//!
//! The driver is the only one that opens connections. Calls share what it opened and tell it when
//! that is lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::backoff::{Backoff, jittered};
use super::http::Endpoint;
use super::library::{Snapshot, Watch};
use super::peer::Peer;
use super::walk::Listed;
use crate::config::{Transport, Upstream};
use crate::domain::fault::UpstreamFaultKind as Kind;

/// What a driver has to say to the catalog.
#[derive(Debug)]
pub struct Report {
    /// Index of the upstream in the configuration.
    pub upstream: usize,
    pub outcome: Result<Walked, Kind>,
}

/// A list, and what it is worth.
#[derive(Clone, Debug)]
pub struct Walked {
    pub listed: Listed,
    /// How long nobody needs to ask again; absent where changes are noticed at once.
    pub fresh_for: Option<Duration>,
}

/// Whether an upstream can be called right now.
#[derive(Clone)]
pub enum Link {
    /// Not yet known.
    Connecting,
    Up(Arc<Peer>),
    Down(Kind),
}

/// What wakes a driver before its time.
#[derive(Default)]
pub struct Wake {
    /// The list may be another one.
    pub(super) changed: Arc<Notify>,
    /// The connection is of no more use.
    pub(super) lost: Notify,
}

pub(super) struct Driver {
    pub index: usize,
    pub upstream: Arc<Upstream>,
    pub link: watch::Sender<Link>,
    pub wake: Arc<Wake>,
    pub reports: mpsc::Sender<Report>,
    pub shutdown: CancellationToken,
}

/// Edits often come several at once (an editor writes, renames, touches): one look at their end.
const EDIT_SETTLE: Duration = Duration::from_millis(100);

/// An upstream that says "stale at once" is believed at most this often.
const LEAST_TTL: Duration = Duration::from_secs(1);

/// How long a farewell may hold up the end.
const FAREWELL: Duration = Duration::from_millis(500);

impl Driver {
    /// Runs until shutdown.
    pub async fn run(self) {
        let shutdown = self.shutdown.clone();
        shutdown.run_until_cancelled(self.drive()).await;
        let link = self.link.borrow().clone();
        if let Link::Up(peer) = link {
            let _ = timeout(FAREWELL, peer.close()).await;
        }
    }

    async fn drive(&self) {
        let mut backoff = Backoff::default();
        let connector = match Connector::new(&self.upstream, &self.wake) {
            Ok(connector) => connector,
            Err(reason) => return self.give_up(Kind::Unavailable(reason)).await,
        };
        loop {
            match connector.connect(&self.upstream).await {
                Ok(peer) => {
                    self.replace(Arc::new(peer)).await;
                    self.stay(&mut backoff).await;
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

    /// Makes a new connection the one that calls use, and leaves the old one if nobody else does.
    async fn replace(&self, peer: Arc<Peer>) {
        let (revision, transport) = peer.describe();
        debug!(upstream = %self.upstream.id, ?revision, transport, "connected");
        let old = self.link.send_replace(Link::Up(peer));
        // Whoever called for a new connection has it now.
        let _ = timeout(Duration::ZERO, self.wake.lost.notified()).await;
        if let Link::Up(old) = old
            && let Some(old) = Arc::into_inner(old)
        {
            let _ = timeout(FAREWELL, old.close()).await;
        }
    }

    /// Walks and waits, as long as the connection is good.
    async fn stay(&self, backoff: &mut Backoff) {
        let Link::Up(peer) = self.link.borrow().clone() else {
            return;
        };
        let mut walked = false;
        loop {
            let wait = match peer.walk(&self.upstream.settings).await {
                Ok(listed) => {
                    backoff.reset();
                    walked = true;
                    let wait = self.next_walk(listed.ttl);
                    let fresh_for = listed.ttl.or((!peer.is_snapshot()).then_some(wait));
                    self.report_list(Walked { listed, fresh_for }).await;
                    wait
                }
                // A session that has served its time is no failure: open another at once.
                Err(Kind::SessionLost) if walked => return,
                Err(kind) => {
                    let reconnect = questions_connection(&kind);
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
                () = self.wake.changed.notified() => sleep(EDIT_SETTLE).await,
                () = self.wake.lost.notified() => return,
            }
            if peer.is_snapshot() {
                return;
            }
        }
    }

    /// How long a good list is kept before it is walked again.
    fn next_walk(&self, ttl: Option<Duration>) -> Duration {
        let settings = &self.upstream.settings;
        let poll = Some(settings.poll).filter(|p| !p.is_zero());
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
        let asked = match &kind {
            Kind::RateLimited { retry_after_secs } => retry_after_secs.map(Duration::from_secs),
            _ => None,
        };
        let wait = backoff.next(fastrand::f64()).max(asked.unwrap_or_default().min(MOST_PATIENT));
        info!(upstream = %self.upstream.id, error = %kind, retry_in = ?wait, "no list");
        self.report(Err(kind)).await;
        tokio::select! {
            () = sleep(wait) => {}
            () = self.wake.changed.notified() => {}
            () = self.wake.lost.notified() => {}
        }
    }

    async fn give_up(&self, kind: Kind) {
        warn!(upstream = %self.upstream.id, error = %kind, "cannot be used");
        self.link.send_replace(Link::Down(kind.clone()));
        self.report(Err(kind)).await;
    }

    async fn report(&self, outcome: Result<Walked, Kind>) {
        // The receiver is gone only when the gateway ends.
        let _ = self.reports.send(Report { upstream: self.index, outcome }).await;
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
            // Its own words about the request; the reserved codes are about the conversation.
            | Kind::Error { code: -32602 | -32603, .. }
    )
}

/// Longest `Retry-After` that is obeyed: an upstream must not be able to switch itself off.
const MOST_PATIENT: Duration = Duration::from_secs(300);

/// What is kept between two connections.
enum Connector {
    Http(Arc<Endpoint>),
    /// The watch lives as long as the driver.
    Library {
        _watch: Option<Watch>,
    },
}

impl Connector {
    fn new(upstream: &Upstream, wake: &Wake) -> Result<Self, String> {
        match &upstream.transport {
            Transport::Http(http) => {
                let endpoint = Endpoint::new(http, &upstream.settings)?;
                Ok(Self::Http(Arc::new(endpoint)))
            }
            Transport::Library(folder) => {
                let watch = Watch::new(folder, wake.changed.clone());
                if let Err(error) = &watch {
                    warn!(upstream = %upstream.id, %error, "edits are found by polling only");
                }
                Ok(Self::Library { _watch: watch.ok() })
            }
        }
    }

    async fn connect(&self, upstream: &Arc<Upstream>) -> Result<Peer, Kind> {
        match (self, &upstream.transport) {
            (Self::Http(endpoint), Transport::Http(http)) => {
                let connecting = Peer::http(endpoint.clone(), http);
                let bound = upstream.settings.walk_timeout;
                timeout(bound, connecting).await.unwrap_or(Err(Kind::Timeout))
            }
            (_, Transport::Library(folder)) => {
                let (folder, upstream) = (folder.clone(), upstream.clone());
                let load =
                    move || Snapshot::load(&folder, upstream.id.as_str(), &upstream.settings);
                let loaded = tokio::task::spawn_blocking(load).await;
                loaded.unwrap_or(Err(Kind::Reset)).map(Peer::Library)
            }
            (Self::Library { .. }, Transport::Http(_)) => Err(Kind::Reset),
        }
    }
}
