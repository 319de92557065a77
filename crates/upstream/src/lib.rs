//! Upstreams: one driver per upstream keeps a connection and a prompt list; calls go through a
//! handle that shares the connection.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod driver;
pub mod connection;
pub mod accounts;
pub mod call;
pub mod guard;
pub mod upstream_secrets;
pub mod auth;
pub mod transport;
pub mod stores;
pub mod stderr_tail;
pub mod recent_calls;
pub mod repairs;
pub mod passthrough_signals;
mod build;
pub mod held_removal;
mod list_refetch;
mod walk_pace;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use accounts::account::{Account, WatchedRequest};
use accounts::{IDLE, LoginChange, UpstreamAccounts};
use auth::caller_token_provider::CallerTokenProvider;
use base::platform::heap::{boxed, pin_in_place};
use call::call_secrets::CallSecrets;
use call::correlator::InterimSender;
use call::exchange::{CallExchange, ConcurrencyPermit, RecentCall};
use call::request::UpstreamRequest;
use config::Transport;
use connection::connect::DriverSignals;
use connection::dedicated::DedicatedPool;
use connection::handshake::ListenEvent;
use connection::{Connection, Negotiated};
use domain::calls::caller::Caller;
use domain::calls::fair_share::{Holder, Share};
use domain::calls::passthrough::PassthroughCapabilities;
use domain::calls::subject_token::SubjectToken;
use domain::fault::{TokenFault, UpstreamFaultKind as Kind};
use domain::json::document::Document;
use domain::prompts::prompt::SourcePlace;
use domain::protocol::revision::Revision;
use domain::protocol::server_request::ClientCapabilities;
use domain::protocol::via::Via;
use driver::{ConnectionState, DriverId, FetchedList, Outage};
use guard::circuit_breaker::CircuitBreaker;
use guard::concurrency::ConcurrencyLimit;
use held_removal::{HeldRemoval, RemovalGuard};
use library::{LibrarySnapshot, LibraryVersions};
use passthrough_signals::PassthroughSignals;
use policy::{Authorized, Pass};
use recent_calls::{RecentCalls, RecentSummary};
use repairs::Repairs;
use stderr_tail::StderrTail;
use telemetry::{self, ClientOperation, Telemetry, TransportKind};
use upstream_secrets::UpstreamSecrets;

pub use build::UpstreamDeps;

/// The router's handle on one upstream. Its driver ends when the last reference is dropped: an
/// upstream that was removed from the configuration still finishes its calls in flight.
pub struct Upstream {
    config: Arc<config::UpstreamSettings>,
    /// The identity of this gateway.
    own: Via,
    driver: DriverId,
    connection_state: watch::Receiver<ConnectionState>,
    signals: DriverSignals,
    /// Limit of the calls in flight.
    concurrency: Arc<ConcurrencyLimit>,
    breaker: Arc<CircuitBreaker>,
    /// The dedicated connections; `None` if the configuration permits no connection at all.
    dedicated: Option<Arc<DedicatedPool>>,
    /// The accounts of callers; `None` if all callers share the gateway's connections.
    accounts: Option<UpstreamAccounts>,
    /// The last negotiated properties of a caller's connection, if no shared connection exists.
    of_callers: Mutex<Option<Negotiated>>,
    /// The last declared capabilities in addition to prompts.
    passthrough_capabilities: Mutex<Arc<PassthroughCapabilities>>,
    telemetry: Telemetry,
    stderr_tail: Arc<StderrTail>,
    repairs: Arc<Repairs>,
    restarts: Arc<AtomicU64>,
    outage: Arc<Mutex<Option<Outage>>>,
    walk_pause: Arc<AtomicU64>,
    removals: Arc<RemovalGuard>,
    recent_calls: Arc<RecentCalls>,
    /// The secrets in requests to the upstream, which callers must not see.
    secrets: Arc<UpstreamSecrets>,
    was_called: AtomicBool,
    /// Ends the driver and the dedicated connections when the handle is dropped.
    _needed: DropGuard,
}

impl Upstream {
    /// Returns the configuration of the upstream.
    pub fn config(&self) -> &config::UpstreamSettings {
        &self.config
    }

    /// Returns the id under which the driver reports.
    pub fn driver(&self) -> DriverId {
        self.driver
    }

    /// Returns the last standard-error lines of the upstream's child processes.
    pub fn stderr_tail(&self) -> &Arc<StderrTail> {
        &self.stderr_tail
    }

    /// Returns the counters of the repairs to the upstream's messages.
    pub fn repairs(&self) -> &Repairs {
        &self.repairs
    }

    /// Returns how often the driver failed and was restarted.
    pub fn driver_restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Returns since when the upstream cannot be reached; `None` while it can.
    pub fn outage(&self) -> Option<Outage> {
        *self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the seconds by which walks are delayed because the list changes again and again.
    pub fn walk_pause(&self) -> u64 {
        self.walk_pause.load(Ordering::Relaxed)
    }

    /// Returns the removal of many prompts that is held back.
    pub fn held_removal(&self) -> Option<HeldRemoval> {
        self.removals.current()
    }

    /// Accepts the removal that leaves `listed` prompts, and has the source read again at once.
    pub fn accept_removal(&self, listed: usize) {
        self.removals.accept(listed);
        self.doubt_list();
    }

    /// Returns the numbers of the last hour.
    pub fn recent(&self) -> RecentSummary {
        self.recent_calls.summary(Instant::now())
    }

    /// When the open circuit breaker admits its next probe; `None` while closed.
    pub fn breaker_open_until(&self) -> Option<Instant> {
        self.breaker.open_until()
    }

    /// Whether the upstream was called since the start.
    pub fn was_called(&self) -> bool {
        self.was_called.load(Ordering::Relaxed)
    }

    fn note_call(&self) {
        // A write at each call would invalidate the cache line of the other cores.
        if !self.was_called() {
            self.was_called.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the number of calls in flight and the number of queued calls.
    pub fn load(&self) -> (usize, usize) {
        (self.config.settings.in_flight - self.concurrency.free(), self.concurrency.waiting())
    }

    /// Sets the part of the calls in flight and of the queue that one caller may hold while other
    /// callers need places.
    pub fn set_share(&self, share: Share) {
        self.concurrency.set_share(share);
        if let Some(accounts) = &self.accounts {
            accounts.set_share(share);
        }
    }

    /// Returns the state of the shared connection.
    pub fn connection_state(&self) -> ConnectionState {
        self.connection_state.borrow().clone()
    }

    /// Returns the place of the source of a library prompt.
    pub fn library_source(&self, raw_name: &str) -> Option<SourcePlace> {
        self.of_library(|library| library.source(raw_name))
    }

    /// Returns the versions and labels of a library.
    pub fn library_versions(&self) -> Option<Arc<LibraryVersions>> {
        self.of_library(|library| Some(library.versions.clone()))
    }

    /// Waits until `holds` accepts the versions and labels of a library.
    pub async fn until_library_versions(&self, holds: impl Fn(&LibraryVersions) -> bool) {
        let is_so = |state: &ConnectionState| {
            library_of(state).is_some_and(|library| holds(&library.versions))
        };
        // An upstream that ends has nothing to wait for.
        let _ = self.connection_state.clone().wait_for(is_so).await;
    }

    /// Returns the commit whose files are served, for a library in a git repository.
    pub fn commit(&self) -> Option<Arc<str>> {
        self.of_library(|library| library.listed.commit.clone())
    }

    fn of_library<T>(&self, pick: impl FnOnce(&LibrarySnapshot) -> Option<T>) -> Option<T> {
        library_of(&self.connection_state.borrow()).and_then(pick)
    }

    /// Starts an authorized call. It ends at `deadline` or after the upstream's `timeout`,
    /// whichever is earlier; the time in which the client answers a server request does not count.
    /// An open circuit breaker refuses the call.
    ///
    /// Without the proof of the gate, the call does not compile:
    ///
    /// ```compile_fail,E0061
    /// use std::sync::Arc;
    /// use promptgate_upstream::Upstream;
    /// use promptgate_upstream::call::request::UpstreamRequest;
    /// use tokio::time::Instant;
    ///
    /// fn around(upstream: &Arc<Upstream>, request: UpstreamRequest, deadline: Instant) {
    ///     upstream.call(request, deadline);
    /// }
    /// ```
    ///
    /// With it, the same lines compile:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use policy::Authorized;
    /// use promptgate_upstream::Upstream;
    /// use promptgate_upstream::call::request::UpstreamRequest;
    /// use tokio::time::Instant;
    ///
    /// fn through(
    ///     upstream: &Arc<Upstream>,
    ///     authorized: &Authorized<'_>,
    ///     request: UpstreamRequest,
    ///     deadline: Instant,
    /// ) {
    ///     upstream.call(authorized, request, deadline);
    /// }
    /// ```
    ///
    /// # Panics
    /// If the authorization is for another prompt or method than the request: a bug in the gateway,
    /// which ends only this call.
    pub fn call(
        self: &Arc<Self>,
        authorized: &Authorized<'_>,
        mut request: UpstreamRequest,
        deadline: Instant,
    ) -> CallExchange {
        self.note_call();
        let id = self.config.id.as_str();
        let params = &request.params;
        assert!(
            authorized.covers(id, params.method(), params.prompt(), params.linked()),
            "the proof is for another call"
        );
        let method = params.method();
        let receives_interim =
            !request.capabilities.is_none() || request.progress || request.log_level.is_some();
        let (interim, messages) = receives_interim
            .then(|| InterimSender::channel(request.capabilities, request.progress))
            .unzip();
        let interim = interim.map(|interim: InterimSender| interim.with_log(request.log_level));
        let pass = authorized.pass();
        let concurrency = ConcurrencyPermit::new(self.concurrency.clone(), pass.holder().clone());
        let now = Instant::now();
        let upstream = self.clone();
        let held = concurrency.clone();
        // One caller's child process says nothing about the children of other callers.
        let prompt = params.prompt();
        let admitted = (!self.has_child_per_caller())
            .then(|| self.breaker.admit(pass.holder(), prompt, now))
            .transpose();
        // The circuit and the numbers of the last hour are about the calls of callers.
        let is_own = pass.caller().is_gateway();
        let (permit, breaker_open) = match admitted {
            Ok(permit) => (permit.filter(|_| !is_own), None),
            Err(kind) => (None, Some(kind)),
        };
        let is_sent = breaker_open.is_none();
        let operation = is_sent.then(|| self.operation(&mut request)).flatten();
        let speaks_http = matches!(self.config.transport, Transport::Http(_) | Transport::Sse(_));
        let recent = RecentCall { calls: self.recent_calls.clone(), began: now, speaks_http };
        let secrets = self.secrets.clone();
        let overlay = request.overlay.clone();
        let secrets = CallSecrets { held: secrets, overlay, method };
        let call = pin_in_place(|| async move {
            match breaker_open {
                Some(kind) => Err(kind),
                None => {
                    let response = match &upstream.accounts {
                        None => {
                            let line = CallConnections::Shared(&upstream);
                            upstream.perform(&line, &pass, &request, interim, &held).await
                        }
                        Some(accounts) => {
                            boxed(
                                upstream
                                    .perform_as_caller(accounts, &pass, &request, interim, &held),
                            )
                            .await
                        }
                    };
                    response.map_err(|kind| upstream.secrets.remove_from(kind))
                }
            }
        });
        let deadline = deadline.min(now + self.config.settings.timeout);
        let id = self.config.id.to_string();
        let exchange = CallExchange::new(id, call, messages, concurrency, permit, deadline);
        exchange.measured(operation, (is_sent && !is_own).then_some(recent)).without(secrets)
    }

    /// Has the list fetched again soon, because it may be out of date.
    pub fn doubt_list(&self) {
        self.signals.list_changed.notify_one();
    }

    /// Has the list fetched again soon, because the upstream reports a change.
    pub fn take_hint(&self) {
        self.telemetry.metrics().list_changed_received(self.config.id.as_str());
        self.doubt_list();
    }

    /// Whether a text contains a credential with which the gateway calls the upstream.
    pub fn has_secret_in(&self, text: &str) -> bool {
        self.secrets.are_in(text)
    }

    /// Begins the client span and metrics of a call; `None` for a library, whose prompts the
    /// gateway serves itself.
    fn operation(&self, request: &mut UpstreamRequest) -> Option<ClientOperation> {
        let method = request.params.method_label();
        let target = request.params.attribute();
        let negotiated = self.negotiated();
        let revision = negotiated.and_then(|negotiated| negotiated.revision).map(Revision::as_str);
        let attributes = client_attributes(&self.config, method, revision, target)?;
        Some(ClientOperation::begin(&self.telemetry, attributes, &mut request.forwarded.trace))
    }

    /// Returns which server requests the upstream may send. Where all messages share one stream, a
    /// server request may not be correlated with its call, so it is allowed only if
    /// `server_requests` is configured.
    pub fn allowed_server_requests(&self) -> ClientCapabilities {
        let settings = &self.config.settings;
        let is_shared = self.negotiated().is_some_and(|negotiated| negotiated.is_shared);
        if is_shared && settings.server_requests_by_default {
            ClientCapabilities::NONE
        } else {
            settings.server_requests
        }
    }

    /// Whether each request declares the client capabilities to the upstream (modern era).
    pub fn declares_capabilities_per_request(&self) -> bool {
        self.negotiated().is_some_and(|negotiated| !negotiated.declares_at_open)
    }

    /// Returns the last capabilities that the upstream has declared in addition to prompts, or
    /// common capabilities before the first declaration.
    pub fn passthrough_capabilities(&self) -> Arc<PassthroughCapabilities> {
        if let ConnectionState::Up(connection) = &*self.connection_state.borrow() {
            self.note_capabilities(connection);
        }
        self.known_capabilities().clone()
    }

    fn known_capabilities(&self) -> MutexGuard<'_, Arc<PassthroughCapabilities>> {
        self.passthrough_capabilities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the capabilities that a connection has shown.
    fn note_capabilities(&self, connection: &Connection) {
        let Some(declared) = connection.passthrough_capabilities() else { return };
        *self.known_capabilities() = declared.clone();
    }

    /// Returns the gateways behind the upstream, according to the shared connection.
    pub fn behind(&self) -> Option<Via> {
        match &*self.connection_state.borrow() {
            ConnectionState::Up(connection) => connection.behind().cloned(),
            _ => None,
        }
    }

    /// Returns the upstream's announcements about tools and resources.
    pub fn passthrough_signals(&self) -> &Arc<PassthroughSignals> {
        &self.signals.passthrough
    }

    /// Returns the negotiated properties of the shared connection, or the last ones of a caller's
    /// connection; `None` before the first handshake.
    pub fn negotiated(&self) -> Option<Negotiated> {
        match &*self.connection_state.borrow() {
            ConnectionState::Up(connection) => Some(connection.negotiated()),
            ConnectionState::PerCaller => *self.of_callers(),
            ConnectionState::Connecting | ConnectionState::Down(_) => None,
        }
    }

    fn of_callers(&self) -> MutexGuard<'_, Option<Negotiated>> {
        self.of_callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches the caller's private list over the caller's account. Also returns a token that is
    /// cancelled when an operator revokes the account.
    ///
    /// # Errors
    /// See [`Upstream::perform_as_caller`] and [`Connection::walk`].
    pub async fn walk_as_caller(
        &self,
        caller: &Caller,
        access: TokenAccess<'_>,
    ) -> Result<(FetchedList, CancellationToken), Kind> {
        let Some(accounts) = &self.accounts else {
            return Err(Kind::Internal("the upstream has one list for all callers".to_owned()));
        };
        let account = accounts.of(caller).await?;
        let walking = as_caller(&account, access, || async {
            let connection = account.connected().await.map_err(unreachable_because)?;
            *self.of_callers() = Some(connection.negotiated());
            self.note_capabilities(&connection);
            // The limit prevents a thousand concurrent callers from flooding the upstream.
            let _permit = self.concurrency.acquire(&Holder::of(caller, None)).await?;
            let watched = account.watch(&connection, self.config.settings.patience());
            let walk = |connection| {
                list_refetch::walk(&self.config, connection, &self.own, &self.telemetry)
            };
            let walked = walk(&connection).await;
            watched.end(&walked);
            match walked {
                Err(Kind::SessionLost) => {
                    account.lose(&connection).await;
                    let next = account.connected().await.map_err(unreachable_because)?;
                    walk(&next).await
                }
                walked => walked,
            }
        });
        let listed = walking.await.map_err(|kind| self.secrets.remove_from(kind))?;
        let fresh_for = list_refetch::next_walk(&self.config.settings, listed.ttl, false);
        Ok((FetchedList { listed, fresh_for: Some(fresh_for) }, account.revoked.clone()))
    }

    /// The source of the callers' tokens, if they have some.
    pub fn caller_credential(&self) -> Option<&Arc<CallerTokenProvider>> {
        self.accounts.as_ref()?.credential()
    }

    /// Takes up the login of a caller that is kept under a name now. `None` if nothing is known of
    /// it.
    pub async fn take_up_login(&self, name: &str) -> Option<LoginChange> {
        self.accounts.as_ref()?.take_up_login(name).await
    }

    /// Returns the account of a caller, if present.
    pub fn account_of(&self, caller: &Caller) -> Option<Arc<Account>> {
        self.accounts.as_ref()?.existing(caller)
    }

    /// Notifies `list_changed` of the account whenever the list of its caller may have changed,
    /// until its connection ends.
    pub async fn listen_as_caller(&self, account: Arc<Account>) {
        let Ok((connection, lost)) = account.connected_until().await else { return };
        let list_changed = account.list_changed.clone();
        let ended = account.ended.clone();
        let held = Arc::downgrade(&account);
        let is_kept = !self.has_child_per_caller();
        // The account must still end when accounts exceed a limit.
        drop(account);
        let keeping = async {
            while let Some(account) = held.upgrade().filter(|_| is_kept) {
                account.touch();
                drop(account);
                sleep(IDLE / 2).await;
            }
            std::future::pending::<()>().await;
        };
        let listening = driver::keep_open(|| {
            connection.listen(|event| {
                // The list may have changed before the stream was open.
                if event != ListenEvent::Closed {
                    list_changed.notify_one();
                }
                if event == ListenEvent::ListChanged {
                    self.telemetry.metrics().list_changed_received(self.config.id.as_str());
                }
            })
        });
        tokio::select! {
            () = listening => {}
            () = keeping => {}
            () = connection.closed() => {}
            () = lost.cancelled() => {}
            () = ended.cancelled() => {}
        }
    }

    /// Whether each caller has a separate child process. A child process without calls ends even if
    /// streams wait for its changes, because the places for child processes are few.
    pub fn has_child_per_caller(&self) -> bool {
        self.accounts.as_ref().is_some_and(UpstreamAccounts::are_children)
    }

    /// Sends the request over the account of its caller, with the caller's token. A request that is
    /// refused because of its token was not processed: it is retried once with another token.
    async fn perform_as_caller(
        &self,
        accounts: &UpstreamAccounts,
        pass: &Pass,
        request: &UpstreamRequest,
        interim: Option<InterimSender>,
        concurrency: &ConcurrencyPermit,
    ) -> Result<Document, Kind> {
        if pass.is_trial() {
            let detail =
                "a prompt is tried with the rights of a caller, not with its credential".to_owned();
            return Err(Kind::NoToken { fault: TokenFault::NoSubjectToken, detail });
        }
        let account = accounts.of(pass.caller()).await?;
        let line = CallConnections::Own(&account);
        as_caller(&account, TokenAccess::Obtained(pass.subject_token()), || async {
            concurrency.release();
            self.perform(&line, pass, request, interim.clone(), concurrency).await
        })
        .await
    }

    /// Sends the request over a dedicated connection where its client accepts server requests and
    /// capabilities are declared per session, else over the shared connection. A lost session is
    /// retried once: the upstream reports the loss before any processing, so the retry is safe.
    async fn perform(
        &self,
        line: &CallConnections<'_>,
        pass: &Pass,
        request: &UpstreamRequest,
        mut interim: Option<InterimSender>,
        concurrency: &ConcurrencyPermit,
    ) -> Result<Document, Kind> {
        let connection = line.connected().await?;
        let watched = line.watch(&connection, self.config.settings.patience());
        if let Some(dedicated) = line.dedicated()
            && connection.declares_at_open()
            && !request.capabilities.is_none()
        {
            let performing =
                perform_dedicated(dedicated, &connection, pass, request, &interim, concurrency);
            if let Some(answer) = boxed(performing).await {
                if let Some(watched) = watched {
                    watched.end(&answer);
                }
                return answer;
            }
            // Other calls still wait for their users: this call continues without server requests.
            interim = interim.map(InterimSender::without_server_requests);
        }
        concurrency.acquire().await?;
        let answer = connection.perform(pass, request, interim.clone()).await;
        if let Some(watched) = watched {
            watched.end(&answer);
        }
        match answer {
            Err(Kind::SessionLost) => {
                let repeating = async {
                    line.reconnected(&connection).await?.perform(pass, request, interim).await
                };
                Box::pin(repeating).await
            }
            Err(kind @ Kind::NoToken { fault, .. }) if fault.needs_login() => {
                // The driver finds the same fault, and reports it in the status.
                self.signals.session_lost.notify_one();
                Err(kind)
            }
            answer => answer,
        }
    }

    /// Returns the shared connection; waits while it is being opened.
    async fn connected(&self) -> Result<Arc<Connection>, Kind> {
        self.wait_for_connection(|connection_state| {
            !matches!(connection_state, ConnectionState::Connecting)
        })
        .await
    }

    /// Requests a reconnect if `lost` is still the shared connection, and waits for the next
    /// connection.
    async fn reconnected(&self, lost: &Arc<Connection>) -> Result<Arc<Connection>, Kind> {
        let is_lost = |connection_state: &ConnectionState| matches!(connection_state, ConnectionState::Up(connection) if Arc::ptr_eq(connection, lost));
        if is_lost(&self.connection_state.borrow()) {
            self.signals.session_lost.notify_one();
        }
        self.wait_for_connection(|connection_state| !is_lost(connection_state)).await
    }

    async fn wait_for_connection(
        &self,
        is_awaited: impl Fn(&ConnectionState) -> bool,
    ) -> Result<Arc<Connection>, Kind> {
        let mut connection_state = self.connection_state.clone();
        let found = connection_state
            .wait_for(is_awaited)
            .await
            .map(|connection_state| connection_state.clone());
        match found {
            Ok(ConnectionState::Up(connection)) => Ok(connection),
            Ok(ConnectionState::Down(kind)) => Err(unreachable_because(kind)),
            // If callers have separate connections, no call waits for a shared connection.
            Ok(ConnectionState::Connecting | ConnectionState::PerCaller) | Err(_) => {
                Err(driver::driver_has_failed())
            }
        }
    }
}

/// The access token for a request of a caller.
#[derive(Clone, Copy)]
pub enum TokenAccess<'a> {
    /// A token that is obtained with the caller's subject token, if none is present.
    Obtained(Option<&'a SubjectToken>),
    /// The token that is already present.
    Present,
}

/// Runs `attempt` with the token of a caller, until the account ends. An attempt that is refused
/// because of its token was not processed: it is retried once with another token.
async fn as_caller<T, F: Future<Output = Result<T, Kind>>>(
    account: &Account,
    access: TokenAccess<'_>,
    attempt: impl Fn() -> F,
) -> Result<T, Kind> {
    let performing = async {
        let TokenAccess::Obtained(subject) = access else { return attempt().await };
        account.obtain_token(subject).await?;
        let sent = account.authorization();
        match attempt().await {
            // Another call may have renewed the token meanwhile.
            Err(Kind::AuthFailed { .. }) if account.authorization() != sent => {
                account.obtain_token(subject).await?;
                attempt().await
            }
            answer => answer,
        }
    };
    let performed = account.ended.run_until_cancelled(performing).await;
    let outcome = match performed {
        Some(Err(_)) if account.ended.is_cancelled() => Err(Kind::AccessEnded),
        Some(outcome) => outcome,
        None => Err(Kind::AccessEnded),
    };
    outcome.map_err(|kind| account.secrets.remove_from(kind))
}

/// Sends the request over a dedicated connection; retries once over another connection if the
/// session is lost. `None` while other calls use all dedicated connections.
async fn perform_dedicated(
    dedicated: &Arc<DedicatedPool>,
    shared: &Arc<Connection>,
    pass: &Pass,
    request: &UpstreamRequest,
    interim: &Option<InterimSender>,
    concurrency: &ConcurrencyPermit,
) -> Option<Result<Document, Kind>> {
    for _ in 0..2 {
        let lease = match dedicated.lease(pass.caller(), request.capabilities, shared).await {
            Ok(lease) => lease?,
            Err(kind) => return Some(Err(unreachable_because(kind))),
        };
        if let Err(kind) = concurrency.acquire().await {
            return Some(Err(kind));
        }
        match lease.connection.perform(pass, request, interim.clone()).await {
            Err(Kind::SessionLost) => lease.discard(),
            answer => {
                lease.end(&answer);
                return Some(answer);
            }
        }
        concurrency.release();
    }
    Some(Err(Kind::SessionLost))
}

/// The connections that a call may use.
enum CallConnections<'a> {
    /// The connections of the gateway, for all callers.
    Shared(&'a Upstream),
    /// The connections of the caller.
    Own(&'a Account),
}

impl CallConnections<'_> {
    async fn connected(&self) -> Result<Arc<Connection>, Kind> {
        match self {
            Self::Shared(upstream) => upstream.connected().await,
            Self::Own(account) => account.connected().await.map_err(unreachable_because),
        }
    }

    /// Returns the next connection after the session of `lost` has ended.
    async fn reconnected(&self, lost: &Arc<Connection>) -> Result<Arc<Connection>, Kind> {
        match self {
            Self::Shared(upstream) => upstream.reconnected(lost).await,
            Self::Own(account) => {
                account.lose(lost).await;
                self.connected().await
            }
        }
    }

    /// Begins a request. The driver finds out whether the shared connection can still be used.
    fn watch<'a>(
        &'a self,
        connection: &'a Arc<Connection>,
        patience: Duration,
    ) -> Option<WatchedRequest<'a>> {
        match self {
            Self::Shared(_) => None,
            Self::Own(account) => Some(account.watch(connection, patience)),
        }
    }

    fn dedicated(&self) -> Option<&Arc<DedicatedPool>> {
        match self {
            Self::Shared(upstream) => upstream.dedicated.as_ref(),
            Self::Own(account) => Some(&account.dedicated),
        }
    }
}

/// The library that is served, if the upstream is one.
fn library_of(state: &ConnectionState) -> Option<&LibrarySnapshot> {
    match state {
        ConnectionState::Up(connection) => connection.library(),
        ConnectionState::Connecting | ConnectionState::Down(_) | ConnectionState::PerCaller => None,
    }
}

/// Returns the attributes of a client span; `None` for a library or a prompt store, whose prompts
/// the gateway itself serves.
fn client_attributes<'a>(
    upstream: &'a config::UpstreamSettings,
    method: &'static str,
    revision: Option<&'static str>,
    target: Option<(&'static str, &'a str)>,
) -> Option<telemetry::ClientAttributes<'a>> {
    let (transport, server) = match &upstream.transport {
        Transport::Library(_) | Transport::Git(_) | Transport::Store(_) => return None,
        Transport::Stdio(_) => (TransportKind::Pipe, None),
        Transport::Http(http) | Transport::Sse(http) => {
            let port = if http.url.scheme_str() == Some("https") { 443 } else { 80 };
            let port = http.url.port_u16().unwrap_or(port);
            (TransportKind::Http, http.url.host().map(|host| (host, port)))
        }
    };
    let id = upstream.id.as_str();
    Some(telemetry::ClientAttributes { method, upstream: id, revision, transport, server, target })
}

/// Returns the failure of a call from the reason why the driver could not connect.
fn unreachable_because(kind: Kind) -> Kind {
    match kind {
        Kind::Unavailable(_)
        | Kind::AccessEnded
        | Kind::AuthFailed { .. }
        | Kind::NoToken { .. }
        | Kind::SignInNeeded { .. }
        | Kind::RateLimited { .. } => kind,
        other => Kind::Unavailable(other.diagnosis()),
    }
}
