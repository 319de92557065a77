//! The gate: authentication, rate limits and authorization of calls.
//!
//! A caller is authenticated before the body of its request is read. Once the target of a call is
//! known, [`Gate::authorize`] decides, and makes the proof that an upstream demands.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod authn;
mod authorize;
mod jwt;
mod rate_limit;
mod record;
mod revocation;
mod streams;
mod tallies;
mod target;

pub use authn::{Authenticated, CredentialHeader, RequestCredentials};
pub use authorize::Authorized;
pub use authorize::{Pass, Resolution};
pub use jwt::TakenIds;
pub use rate_limit::{gcra, limiter};
pub use record::{CallRecord, RecordOutcome, ResultDigest};
pub use revocation::CallerRevocation;
pub use streams::StreamRecord;
pub use tallies::Tallies;
pub use target::{CallTarget, ServedVersion};

use std::net::IpAddr;
use std::sync::Arc;

use access::Decisions;
use authn::Authenticator;
use rate_limit::{Counted, RateLimits, network};
use streams::RecordedStreams;
use tallies::{Occurrence, OccurrenceKind, OccurrenceOrigin};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::error;

use audit::record::AuditEvent;
use audit::{Audit, Ledger};
use cluster::ClusterMember;
use config::Config;
use domain::calls::call::Call;
use domain::calls::caller::{Caller, Proof};
use domain::calls::fair_share::Holder;
use domain::calls::rights::{Everything, Rights};
use domain::calls::subject_token::SubjectToken;
use domain::fault::{Fault, TransportFault};
use domain::protocol::method::Countable;
use domain::text::glob::Glob;
use domain::time::unix_time::UnixSeconds;
use telemetry::Telemetry;

/// Authenticates callers, authorizes their calls, and records both.
pub struct Gate {
    authenticator: Arc<Authenticator>,
    /// The authenticator of the newest configuration.
    newest: watch::Sender<Arc<Authenticator>>,
    rights: Arc<dyn Rights>,
    limits: RateLimits,
    audit: Audit,
    /// The log of this gate's calls, from the first record of a call to its last.
    ledger: Option<Arc<Ledger>>,
    telemetry: Telemetry,
    recording: Recording,
    /// The digest of the configuration.
    config: Arc<str>,
    tallies: Arc<Tallies>,
    recorded_streams: Arc<RecordedStreams>,
    /// Whether calls need the tokens of their callers.
    exchanges_tokens: bool,
}

/// Optional content of the audit log, besides the calls themselves.
struct Recording {
    lists: bool,
    /// Patterns over public names: prompts whose argument values are recorded.
    raw_arguments: Vec<Glob>,
}

impl Recording {
    fn new(config: &Config) -> Self {
        let audit = config.audit.as_ref();
        Self {
            lists: audit.is_some_and(|audit| audit.list),
            raw_arguments: audit.map(|audit| audit.raw_arguments.clone()).unwrap_or_default(),
        }
    }
}

/// The access rules of a configuration.
pub fn rights(config: &Config) -> Arc<dyn Rights> {
    match &config.access {
        Some(access) => Arc::new(Decisions::new(&access.rules)),
        None => Arc::new(Everything),
    }
}

fn exchanges_tokens(config: &Config) -> bool {
    config.upstreams.iter().any(config::UpstreamSettings::exchanges_tokens)
}

impl Gate {
    pub fn new(
        config: &Config,
        rights: Arc<dyn Rights>,
        audit: Audit,
        telemetry: Telemetry,
    ) -> Self {
        let authenticator = Arc::new(Authenticator::new(&config.auth));
        Self {
            newest: watch::Sender::new(authenticator.clone()),
            authenticator,
            rights,
            limits: RateLimits::new(&config.limits),
            ledger: audit.ledger(),
            audit,
            telemetry,
            recording: Recording::new(config),
            config: config.digest.as_str().into(),
            tallies: Arc::default(),
            recorded_streams: Arc::default(),
            exchanges_tokens: exchanges_tokens(config),
        }
    }

    /// The gate with the limits of all replicas together.
    pub fn in_cluster(self, cluster: Arc<ClusterMember>) -> Self {
        Self { limits: self.limits.in_cluster(cluster), ..self }
    }

    /// The gate of another configuration, which keeps the counts of this one.
    pub fn renew(&self, config: &Config) -> Self {
        Self {
            newest: self.newest.clone(),
            authenticator: Arc::new(self.authenticator.renew(&config.auth)),
            rights: rights(config),
            limits: self.limits.renew(&config.limits),
            ledger: self.audit.ledger(),
            audit: self.audit.clone(),
            telemetry: self.telemetry.clone(),
            recording: Recording::new(config),
            config: config.digest.as_str().into(),
            tallies: self.tallies.clone(),
            recorded_streams: self.recorded_streams.clone(),
            exchanges_tokens: exchanges_tokens(config),
        }
    }

    /// The rights of callers under this configuration.
    pub fn rights(&self) -> &Arc<dyn Rights> {
        &self.rights
    }

    /// Whether rules or limits depend on URIs, so that each URI must mean one resource.
    pub fn tells_resources_apart(&self, caller: &Caller) -> bool {
        self.rights.entitlement(caller).is_some() || self.limits.tell_resources_apart()
    }

    /// Makes this gate the newest; streams of callers that this gate does not know end.
    pub fn publish(&self) {
        self.newest.send_replace(self.authenticator.clone());
    }

    /// A future that resolves when the caller's credential is no longer valid under the newest
    /// configuration.
    pub fn revocation(&self, caller: &Caller) -> CallerRevocation {
        let auth = self.authenticator.auth().clone();
        CallerRevocation::new(caller.clone(), auth, self.newest.subscribe())
    }

    /// Counts a request by its address, before authentication.
    ///
    /// # Errors
    /// [`TransportFault::RateLimited`].
    pub fn check_address(&self, address: IpAddr) -> Result<(), TransportFault> {
        let checked = self.limits.take_address(address);
        checked
            .inspect_err(|fault| self.refused(OccurrenceOrigin::Address(network(address)), fault))
    }

    /// Counts the cancellation of a call that another replica may have.
    ///
    /// # Errors
    /// [`TransportFault::RateLimited`].
    pub fn take_cancellation(&self, holder: &Holder) -> Result<(), TransportFault> {
        let who = || match holder {
            Holder::Caller(caller) => OccurrenceOrigin::Caller(caller.id().to_owned()),
            Holder::Network(address) => OccurrenceOrigin::Address(network(*address)),
        };
        self.limits.take_cancellation(holder).inspect_err(|fault| self.refused(who(), fault))
    }

    /// Authenticates a request to the resource `audience`, before its body is read.
    ///
    /// # Errors
    /// `Unauthenticated`, `Unauthorized`, `InsufficientScope` or `AuthUnavailable`.
    pub async fn authenticate(
        &self,
        credentials: &RequestCredentials<'_>,
        audience: &str,
        address: IpAddr,
        now: UnixSeconds,
    ) -> Result<Authenticated, TransportFault> {
        let caller = self.authenticator.authenticate(credentials, audience, now).await;
        let refused = |fault: &_| self.refused(OccurrenceOrigin::Address(network(address)), fault);
        let caller = caller.inspect_err(refused)?;
        let token = self.subject_token(&caller, credentials);
        Ok(Authenticated { caller, token })
    }

    /// Returns the token that has authenticated a caller, if an upstream needs it.
    fn subject_token(
        &self,
        caller: &Caller,
        given: &RequestCredentials<'_>,
    ) -> Option<SubjectToken> {
        let Proof::Token(proof) = caller.proof() else { return None };
        let jwt = self.authenticator.auth().jwt.as_ref().filter(|_| self.exchanges_tokens)?;
        // The authorization server, too, has a clock: without the leeway.
        let expires = UnixSeconds(proof.expires.0.saturating_sub(jwt.leeway.as_secs()));
        Some(SubjectToken::new(given.bearer()?, expires))
    }

    /// The caller of standard streams.
    pub fn stdio_caller(&self) -> Caller {
        self.authenticator.of_stdio()
    }

    /// The record of a call, to be completed before its response is sent.
    pub fn record(&self, call: &Call) -> Arc<CallRecord> {
        let is_recorded = self.recording.lists || !call.request.method().is_list();
        let Some(ledger) = self.ledger.clone().filter(|_| is_recorded) else {
            return Arc::new(CallRecord::none());
        };
        let name = call.request.prompt_name().unwrap_or_default();
        let raw = self.recording.raw_arguments.iter().any(|glob| glob.matches(name));
        Arc::new(CallRecord::open(ledger, self.audit.next_call(), call, raw))
    }

    /// Counts a request that concerns the session alone: it is answered here, and reaches no
    /// upstream.
    ///
    /// # Errors
    /// [`TransportFault::RateLimited`].
    pub async fn take_session_request(
        &self,
        caller: &Caller,
        address: Option<IpAddr>,
        request: Countable,
    ) -> Result<(), TransportFault> {
        let taken = self.limits.take(Counted { caller, address, request }, None).await;
        taken.inspect_err(|fault| {
            self.refused(OccurrenceOrigin::Caller(caller.id().to_owned()), fault)
        })
    }

    /// Records the outcome of a call, before its response is sent. Calls refused by a limit, or
    /// because nothing can be recorded, are counted and aggregated instead.
    ///
    /// # Errors
    /// `AuditUnavailable` if the record cannot be written: then the response must not be sent.
    pub async fn complete(
        &self,
        record: &CallRecord,
        caller: &Caller,
        outcome: RecordOutcome<'_>,
    ) -> Result<(), TransportFault> {
        use TransportFault::{AuditUnavailable, ClusterUnavailable, RateLimited};
        if let RecordOutcome::Fault(Fault::Transport(
            fault @ (RateLimited { .. } | AuditUnavailable | ClusterUnavailable),
        )) = outcome
            && !record.is_written()
        {
            record.forget();
            self.refused(OccurrenceOrigin::Caller(caller.id().to_owned()), fault);
            return Ok(());
        }
        let recorded = record.complete(outcome, &self.config).await;
        recorded.map_err(|_| TransportFault::AuditUnavailable)
    }

    /// Records the start of a stream, and waits until that is written; dropping the record records
    /// the end. Streams that a caller opens in quick succession are counted instead: by default no
    /// limit counts streams, and their records must not fill the disk.
    ///
    /// # Errors
    /// `AuditUnavailable` if the start cannot be recorded.
    pub async fn stream(
        &self,
        caller: &Caller,
        address: Option<IpAddr>,
        endpoint: &str,
    ) -> Result<StreamRecord, TransportFault> {
        if self.audit.refuses() {
            return Err(TransportFault::AuditUnavailable);
        }
        let holder = Holder::of(caller, address);
        if self.audit.is_on() && !self.recorded_streams.takes(&holder, Instant::now()) {
            let what = OccurrenceKind::Stream { endpoint: endpoint.to_owned() };
            self.tally(Occurrence { who: OccurrenceOrigin::Caller(caller.id().to_owned()), what });
            return Ok(StreamRecord::none());
        }
        let record = StreamRecord::open(&self.audit, caller, &holder, endpoint).await;
        record.map_err(|_| TransportFault::AuditUnavailable)
    }

    /// Records that a caller presented a session or state of another caller.
    pub fn suspect(&self, caller: &Caller, fault: &TransportFault) {
        self.refused(OccurrenceOrigin::Caller(caller.id().to_owned()), fault);
    }

    /// Records that the task of a call panicked.
    pub fn note_panic(&self) {
        error!("the task of a call panicked; please report it with the lines above");
        self.audit.note(AuditEvent::new("panic"));
    }

    /// Keeps the issuer's keys fresh, until `stop`.
    pub async fn keep_keys(self: Arc<Self>, stop: CancellationToken) {
        if let Some(tokens) = self.authenticator.tokens() {
            tokens.clone().keep(stop).await;
        } else {
            stop.cancelled().await;
        }
    }

    /// The aggregated refusals and streams.
    pub fn tallies(&self) -> Arc<Tallies> {
        self.tallies.clone()
    }

    /// The telemetry of this gateway.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    fn refused(&self, who: OccurrenceOrigin, fault: &TransportFault) {
        if !self.audit.is_on() {
            return;
        }
        let by = match fault {
            TransportFault::RateLimited { limit, .. } => limit.clone(),
            TransportFault::Unauthorized { why } => why.clone().into_owned(),
            TransportFault::Unauthenticated { .. } => "no credential".to_owned(),
            _ => String::new(),
        };
        self.tally(Occurrence {
            who,
            what: OccurrenceKind::Refused {
                reason: fault.reason(),
                by,
                config: self.config.clone(),
            },
        });
    }

    fn tally(&self, occurrence: Occurrence) {
        let due = self.tallies.count(occurrence, Instant::now());
        due.into_iter().for_each(|event| self.audit.note(event));
    }
}

/// Counts a refusal by a limit, or because the store of the cluster cannot count.
fn count_limited(telemetry: &Telemetry, fault: &TransportFault) {
    if fault.limit().is_some() || *fault == TransportFault::ClusterUnavailable {
        telemetry.metrics().refused(fault.reason(), fault.limit());
    }
}
