//! The one door to an upstream: [`Gate::authorize`] decides on a call, and makes the proof that
//! `Upstream::call` demands.

use super::rate_limit::Counted;
use super::record::CallRecord;
use super::target::CallTarget;
use super::{Gate, count_limited};
use domain::calls::call::{Call, Request};
use domain::calls::caller::Caller;
use domain::calls::fair_share::Holder;
use domain::calls::rights::NO_RULE;
use domain::calls::subject_token::SubjectToken;
use domain::fault::{Fault, RequestFault, TransportFault};
use domain::protocol::method::Method;

/// The result of looking up the name of a call in the catalog.
#[derive(Debug)]
pub enum Resolution<'a> {
    /// An upstream lists the prompt, and the endpoint serves it.
    Listed(CallTarget<'a>),
    /// An upstream lists the prompt, but the gateway does not serve it.
    NotServed {
        target: CallTarget<'a>,
        /// The reason, for the audit log: `views.NAME`, `versions` or
        /// `approvals.STATE`.
        rule: String,
    },
    /// The prefix belongs to an upstream whose list was never received, for the reason given: the
    /// prompt may exist.
    Unlisted(CallTarget<'a>, Fault),
    /// No upstream can own the name.
    Unknown,
}

/// Proof that a call passed the gate: its caller may use the prompt, every rate limit has counted
/// it, and it is on record. [`Gate::authorize`] alone constructs it.
///
/// Code outside cannot construct one:
///
/// ```compile_fail,E0451
/// use promptgate_policy::Authorized;
///
/// fn forge<'a>(authorized: Authorized<'a>) -> Authorized<'a> {
///     Authorized { ..authorized }
/// }
/// ```
pub struct Authorized<'a> {
    call: &'a Call,
    target: CallTarget<'a>,
}

/// The owned part of the proof, which goes with the call for as long as it runs.
pub struct Pass {
    caller: Caller,
    holder: Holder,
    subject_token: Option<SubjectToken>,
    is_trial: bool,
}

impl Authorized<'_> {
    /// Whether the proof is for this method of this prompt of this upstream, and for the linked
    /// resource, if the call reads one. A proof to get a prompt that stands for a skill also covers
    /// reads of the skill's files.
    pub fn covers(
        &self,
        upstream: &str,
        method: Method,
        raw_name: &str,
        linked: Option<&str>,
    ) -> bool {
        self.target.upstream == upstream
            && self.target.called_name() == raw_name
            && self.call.request.linked() == linked
            && match self.call.request.method() {
                Method::Get => matches!(method, Method::Get | Method::ReadFile),
                own => own == method,
            }
    }

    pub fn pass(&self) -> Pass {
        let Call { caller, address, subject_token, tried_by, .. } = self.call;
        Pass {
            caller: caller.clone(),
            holder: Holder::of(caller, *address),
            subject_token: subject_token.clone(),
            is_trial: tried_by.is_some(),
        }
    }
}

impl Pass {
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The token that the caller has brought with the call.
    pub fn subject_token(&self) -> Option<&SubjectToken> {
        self.subject_token.as_ref()
    }

    /// Whether a person tries the prompt in the console: the rights of the caller are used, but
    /// neither its credential nor its account.
    pub fn is_trial(&self) -> bool {
        self.is_trial
    }

    /// The holder for the shared resources that the call uses.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}

impl Gate {
    /// Decides on a get, a completion, a read, or a call of `[passthrough]`, in this order: rights,
    /// silently; all rate-limit buckets in one step, those of the caller and, only if it may use
    /// the prompt, those of the prompt; then the record on disk. Denied and unknown prompts take
    /// the same path.
    ///
    /// # Errors
    /// `RateLimited`; `UnknownPrompt` for an unknown or denied prompt; the reason of
    /// [`Resolution::Unlisted`] to a caller that could use the prompt; `AuditUnavailable` if the
    /// call cannot be recorded.
    pub async fn authorize<'a>(
        &self,
        call: &'a Call,
        record: &CallRecord,
        resolution: Resolution<'a>,
    ) -> Result<Authorized<'a>, Fault> {
        let method = call.request.method();
        // The gateway reads texts for approval under this id, which no other caller can have.
        let is_probe = call.caller.is_gateway();
        // A list is not denied as a whole: it holds only prompts that its caller may use.
        let is_list =
            matches!(&call.request, Request::Passthrough(request) if request.list().is_some());
        let denied_by = match &resolution {
            Resolution::Listed(_) | Resolution::Unlisted(..) if is_probe || is_list => None,
            Resolution::Listed(target) | Resolution::Unlisted(target, _) => {
                self.rights.denied_by(&call.caller, method, target.prompt())
            }
            Resolution::NotServed { rule, .. } => Some(rule.as_str().into()),
            Resolution::Unknown => Some(NO_RULE.into()),
        };
        let is_allowed = denied_by.is_none();
        let counted = match &resolution {
            Resolution::Listed(target) if is_allowed => Some(*target),
            _ => None,
        };
        self.count(call, record, counted).await?;
        match resolution {
            Resolution::Listed(target) if is_allowed => {
                let recorded = record.allowed(target).await;
                recorded.map_err(|_| TransportFault::AuditUnavailable)?;
                Ok(Authorized { call, target })
            }
            Resolution::Listed(target) | Resolution::NotServed { target, .. } => {
                self.telemetry.metrics().denied(method.as_str());
                record.denied(target, denied_by.as_deref().unwrap_or(NO_RULE), &self.config);
                Err(RequestFault::UnknownPrompt.into())
            }
            Resolution::Unlisted(_, fault) if is_allowed => Err(fault),
            Resolution::Unlisted(..) | Resolution::Unknown => {
                Err(RequestFault::UnknownPrompt.into())
            }
        }
    }

    /// Decides on a list, which calls no upstream: rights have made the view, limits count the
    /// call.
    ///
    /// # Errors
    /// `RateLimited`, or `AuditUnavailable`.
    pub async fn admit_list(&self, call: &Call, record: &CallRecord) -> Result<(), Fault> {
        self.count(call, record, None).await?;
        record.listed();
        Ok(())
    }

    /// Counts a call in all of its limits, unless it could not be recorded anyway. The gateway's
    /// own calls are paced where they are made.
    async fn count(
        &self,
        call: &Call,
        record: &CallRecord,
        target: Option<CallTarget<'_>>,
    ) -> Result<(), Fault> {
        if record.refuses() {
            return Err(TransportFault::AuditUnavailable.into());
        }
        if call.caller.is_gateway() {
            return Ok(());
        }
        let request = call.request.countable();
        let counted = Counted { caller: &call.caller, address: call.address, request };
        let taken = self.limits.take(counted, target).await;
        Ok(taken.inspect_err(|fault| count_limited(&self.telemetry, fault))?)
    }
}
