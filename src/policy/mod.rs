//! The gate: the only way from a call to the router.
//!
//! Who calls is decided first, then how often they may; what they may use, the router asks where it
//! knows what a call is for. [`Gate::admit`] is in front of the one constructor of [`Permitted`].

mod access;
mod authn;
mod jwt;
mod permitted;
mod rate_limit;
mod record;
mod refusals;
mod revocation;
mod streams;

pub(crate) use access::{Access, Verdict};
pub(crate) use authn::{Credentials, Given};
pub(crate) use permitted::Permitted;
pub(crate) use record::{CallRecord, Outcome};
pub(crate) use refusals::Refusals;
pub(crate) use revocation::CallerRevocation;
pub(crate) use streams::StreamRecord;

use std::net::IpAddr;
use std::sync::Arc;

use authn::Authenticator;
use governor::clock::DefaultClock;
use rate_limit::{RateLimits, network};
use refusals::{Refusal, Who};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::audit::record::Event;
use crate::audit::{Audit, Ledger};
use crate::config::Config;
use crate::domain::call::Call;
use crate::domain::caller::Caller;
use crate::domain::fault::{Fault, TransportFault};
use crate::domain::glob::Glob;
use crate::domain::method::Method;
use crate::domain::rights::{Everything, Rights};
use crate::telemetry::Telemetry;

/// Decides who may ask what, and keeps the record of it.
pub struct Gate {
    authenticator: Arc<Authenticator>,
    /// That of the newest configuration.
    newest: watch::Sender<Arc<Authenticator>>,
    limits: Arc<RateLimits>,
    audit: Audit,
    /// The log that its calls are recorded in, from their first record to their last.
    ledger: Option<Arc<Ledger>>,
    telemetry: Telemetry,
    /// Whether lists are recorded.
    records_lists: bool,
    /// Over public names: whose argument values are recorded.
    raw_arguments: Vec<Glob>,
    refusals: Arc<Refusals>,
}

/// Who may use which prompt, as the configuration says.
pub(crate) fn rights(config: &Config) -> Arc<dyn Rights> {
    match &config.access {
        Some(access) => Arc::new(Access::new(access)),
        None => Arc::new(Everything),
    }
}

impl Gate {
    pub fn new(config: &Config, audit: Audit, telemetry: Telemetry) -> Self {
        let limits = RateLimits::new(&config.limits, DefaultClock::default());
        let authenticator = Arc::new(Authenticator::new(&config.auth));
        let newest = watch::Sender::new(authenticator.clone());
        Self::with(config, authenticator, newest, limits, (audit, telemetry), Arc::default())
    }

    /// The gate of another configuration, which keeps what this one has counted.
    pub fn renew(&self, config: &Config) -> Self {
        let authenticator = Arc::new(self.authenticator.renew(&config.auth));
        let (newest, limits) = (self.newest.clone(), self.limits.renew(&config.limits));
        let told = (self.audit.clone(), self.telemetry.clone());
        Self::with(config, authenticator, newest, limits, told, self.refusals.clone())
    }

    fn with(
        config: &Config,
        authenticator: Arc<Authenticator>,
        newest: watch::Sender<Arc<Authenticator>>,
        limits: RateLimits,
        (audit, telemetry): (Audit, Telemetry),
        refusals: Arc<Refusals>,
    ) -> Self {
        let settings = config.audit.as_ref();
        Self {
            authenticator,
            newest,
            limits: Arc::new(limits),
            ledger: audit.ledger(),
            audit,
            telemetry,
            records_lists: settings.is_some_and(|audit| audit.list),
            raw_arguments: settings.map(|audit| audit.raw_arguments.clone()).unwrap_or_default(),
            refusals,
        }
    }

    /// From now on this is the gate: streams of callers that it does not know end.
    pub fn take_over(&self) {
        self.newest.send_replace(self.authenticator.clone());
    }

    /// Tells when a caller is not known any more.
    pub fn revocation(&self, caller: &Caller) -> CallerRevocation {
        let auth = self.authenticator.auth().clone();
        CallerRevocation::new(caller.clone(), auth, self.newest.subscribe())
    }

    /// Counts a request before anything is known of it but where it comes from.
    pub fn check_address(&self, address: IpAddr) -> Result<(), TransportFault> {
        let checked = self.limits.check_address(address);
        checked.inspect_err(|fault| self.refused(Who::Address(network(address)), fault))
    }

    /// Who a request comes from that was sent to what `audience` names; decided before its body is
    /// read.
    pub async fn authenticate(
        &self,
        credentials: &Credentials<'_>,
        audience: &str,
        address: IpAddr,
        now_secs: u64,
    ) -> Result<Caller, TransportFault> {
        let caller = self.authenticator.authenticate(credentials, audience, now_secs).await;
        caller.inspect_err(|fault| self.refused(Who::Address(network(address)), fault))
    }

    /// Who calls over standard streams.
    pub fn stdio_caller(&self) -> Caller {
        self.authenticator.of_stdio()
    }

    /// The record of a call, to be completed before its answer leaves.
    pub fn record(&self, call: &Call) -> Arc<CallRecord> {
        let is_recorded = self.records_lists || call.request.method() != Method::List;
        let Some(ledger) = self.ledger.clone().filter(|_| is_recorded) else {
            return Arc::new(CallRecord::none());
        };
        let name = call.request.prompt_name().unwrap_or_default();
        let raw = self.raw_arguments.iter().any(|glob| glob.matches(name));
        Arc::new(CallRecord::open(ledger, self.audit.next_call(), call, raw))
    }

    /// Lets a call through to the router, or says why not.
    pub fn admit(&self, call: Call, record: &Arc<CallRecord>) -> Result<Permitted<Call>, Fault> {
        if record.refuses() {
            return Err(TransportFault::AuditUnavailable.into());
        }
        let checked = self.limits.check_call(&call);
        checked.inspect_err(|fault| count_limited(&self.telemetry, fault))?;
        if call.request.method() == Method::List {
            record.listed();
        }
        let telemetry = self.telemetry.clone();
        Ok(Permitted::new(call, self.limits.clone(), record.clone(), telemetry))
    }

    /// Writes what became of a call of this caller, before its answer leaves. One that was stopped
    /// by a limit, or because nothing can be recorded, is counted instead.
    ///
    /// # Errors
    /// When that cannot be written: then the answer must not leave.
    pub async fn complete(
        &self,
        record: &CallRecord,
        caller: &Caller,
        outcome: Outcome<'_>,
    ) -> Result<(), TransportFault> {
        use TransportFault::{AuditUnavailable, RateLimited};
        if let Outcome::Fault(Fault::Transport(fault @ (RateLimited { .. } | AuditUnavailable))) =
            outcome
            && record.is_unwritten()
        {
            record.forget();
            self.refused(Who::Caller(caller.id().to_owned()), fault);
            return Ok(());
        }
        record.complete(outcome).await.map_err(|_| TransportFault::AuditUnavailable)
    }

    /// The record of a stream that is opened; its end is recorded when it is dropped.
    ///
    /// # Errors
    /// When nothing can be recorded at present.
    pub fn stream(&self, caller: &Caller, endpoint: &str) -> Result<StreamRecord, TransportFault> {
        match self.audit.refuses() {
            true => Err(TransportFault::AuditUnavailable),
            false => Ok(StreamRecord::open(&self.audit, caller, endpoint)),
        }
    }

    /// Takes note that a caller brought what belongs to somebody else.
    pub fn suspect(&self, caller: &Caller, fault: &TransportFault) {
        self.refused(Who::Caller(caller.id().to_owned()), fault);
    }

    /// A call has failed in a way that nobody thought of.
    pub fn note_panic(&self) {
        error!("a call has panicked; please report it with the lines above");
        self.audit.note(Event::new("panic"));
    }

    /// Whether callers can be known at present in all ways that are configured.
    pub fn can_know_callers(&self) -> bool {
        self.authenticator.tokens().is_none_or(|tokens| tokens.is_ready())
    }

    /// Keeps what is needed to know callers, until `stop`.
    pub async fn keep_keys(self: Arc<Self>, stop: CancellationToken) {
        if let Some(tokens) = self.authenticator.tokens() {
            tokens.clone().keep(stop).await;
        }
    }

    /// What was refused by now.
    pub fn refusals(&self) -> Arc<Refusals> {
        self.refusals.clone()
    }

    /// What is measured.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    fn refused(&self, who: Who, fault: &TransportFault) {
        if !self.audit.is_on() {
            return;
        }
        let by = match fault {
            TransportFault::RateLimited { limit, .. } => limit.clone(),
            TransportFault::Unauthorized { why } => (*why).to_owned(),
            TransportFault::Unauthenticated { .. } => "no credential".to_owned(),
            _ => String::new(),
        };
        let refusal = Refusal { who, reason: fault.reason(), by };
        let due = self.refusals.count(refusal, Instant::now());
        due.into_iter().for_each(|event| self.audit.note(event));
    }
}

/// Counts what a limit has stopped.
fn count_limited(telemetry: &Telemetry, fault: &TransportFault) {
    if fault.limit().is_some() {
        telemetry.metrics().refused(fault.reason(), fault.limit());
    }
}
