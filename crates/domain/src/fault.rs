//! Faults: errors by their cause (transport, request, upstream, gateway). Only `downstream` writes
//! them as HTTP statuses and JSON-RPC errors.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::json::JsonError;
use crate::json::jsonrpc::FrameError;

/// The error of one request, by the side that caused it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Transport(#[from] TransportFault),
    #[error(transparent)]
    Request(#[from] RequestFault),
    #[error(transparent)]
    Upstream(#[from] UpstreamFault),
    /// The gateway itself failed.
    #[error("internal error; the gateway's log has the cause")]
    Internal,
}

/// A refusal that HTTP reports by its status: of the connection, the credential, the headers or the
/// body, or for lack of capacity.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TransportFault {
    #[error("the host in the Host header is not allowed; add it to server.allowed_hosts")]
    HostRejected,
    #[error("the origin in the Origin header is not allowed; add it to server.allowed_origins")]
    OriginRejected,
    #[error("authentication required: {wanted}")]
    Unauthenticated {
        /// The credential to send, as an instruction.
        wanted: &'static str,
    },
    #[error("authentication failed: {why}")]
    Unauthorized { why: Cow<'static, str> },
    #[error("the token lacks scopes; WWW-Authenticate names the scopes that are needed")]
    InsufficientScope,
    #[error("tokens cannot be verified at present; try again later")]
    AuthUnavailable,
    #[error("there is no endpoint at this path{}", listed(.endpoints))]
    NotFound {
        /// The paths that the caller may know, separated by commas; empty if there are none.
        endpoints: String,
    },
    #[error("this HTTP method is not allowed at this path")]
    MethodNotAllowed { allow: &'static str },
    #[error("send Content-Type: application/json, without Content-Encoding")]
    UnsupportedMediaType,
    #[error("Accept must name {accept}")]
    NotAcceptable { accept: &'static str },
    #[error("the body is larger than {limit} bytes (server.limits.body_size)")]
    BodyTooLarge { limit: usize },
    #[error("the body did not arrive in time (server.limits.body, and 8 KiB in each second)")]
    BodyTimeout,
    #[error("the body ended before it was complete; send the request again")]
    BodyBroken,
    #[error("the URI is longer than {limit} bytes")]
    UriTooLong { limit: usize },
    #[error("the session id is missing; send the Mcp-Session-Id of the initialize response")]
    SessionRequired,
    #[error("the session is unknown or has ended; send initialize again")]
    SessionUnknown,
    #[error("too many concurrent requests; try again later")]
    Overloaded,
    #[error("rate limited by {limit:?}; try again later")]
    RateLimited {
        /// Name of the limit.
        limit: String,
        retry_after: Duration,
    },
    #[error(
        "the audit log cannot be written, and no call is served without a record; try again later"
    )]
    AuditUnavailable,
    #[error("shared rate limits are unavailable; try again later (cluster.on_failure)")]
    ClusterUnavailable,
    /// A message was for a call or session of another replica, which did not acknowledge it.
    #[error("the replica that holds this call did not acknowledge the message; send it again")]
    ReplicaUnreachable,
    #[error(
        "the message is for a call of another replica, and larger than {limit} bytes (cluster.relay_size)"
    )]
    RelayTooLarge { limit: usize },
    #[error(
        "the responses of the batch are larger than {limit} bytes together; send fewer messages in one batch"
    )]
    BatchTooLarge { limit: usize },
    #[error("the caller has too many open streams (server.limits.streams_per_caller); close one")]
    TooManyStreams,
    #[error(
        "the gateway is shutting down, and the call did not end within its grace period; try again"
    )]
    ShuttingDown,
}

/// Returns the endpoints of [`TransportFault::NotFound`] as a part of its message.
fn listed(endpoints: &str) -> String {
    if endpoints.is_empty() { String::new() } else { format!("; there is one at: {endpoints}") }
}

impl TransportFault {
    /// Returns `not_found` without endpoints, for callers that may know none.
    pub fn not_found() -> Self {
        Self::NotFound { endpoints: String::new() }
    }

    /// See [`Fault::reason`].
    pub fn reason(&self) -> &'static str {
        match self {
            Self::HostRejected => "host_rejected",
            Self::OriginRejected => "origin_rejected",
            Self::Unauthenticated { .. } | Self::Unauthorized { .. } => "unauthorized",
            Self::InsufficientScope => "insufficient_scope",
            Self::AuthUnavailable => "auth_unavailable",
            Self::NotFound { .. } => "not_found",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::NotAcceptable { .. } => "not_acceptable",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::BodyTimeout => "body_timeout",
            Self::BodyBroken => "body_broken",
            Self::UriTooLong { .. } => "uri_too_long",
            Self::SessionRequired => "session_required",
            Self::SessionUnknown => "session_unknown",
            Self::Overloaded => "overloaded",
            Self::ClusterUnavailable => "cluster_unavailable",
            Self::ReplicaUnreachable => "replica_unreachable",
            Self::RelayTooLarge { .. } => "relay_too_large",
            Self::BatchTooLarge { .. } => "batch_too_large",
            Self::TooManyStreams => "too_many_streams",
            Self::RateLimited { .. } => "rate_limited",
            Self::AuditUnavailable => "audit_unavailable",
            Self::ShuttingDown => "shutting_down",
        }
    }

    /// Returns the name of the rate limit that refused the request; `None` for other faults.
    pub fn limit(&self) -> Option<&str> {
        match self {
            Self::RateLimited { limit, .. } => Some(limit),
            _ => None,
        }
    }
}

/// An invalid or unsupported request: the client is at fault.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RequestFault {
    #[error("the message is not JSON: {0}")]
    NotJson(JsonError),
    #[error("the message is not acceptable JSON: {0}")]
    UnsafeJson(JsonError),
    #[error("the message is not JSON-RPC 2.0: {0}")]
    NotJsonRpc(&'static str),
    #[error("batches are supported in 2025-03-26 only, without initialize, up to 100 messages")]
    BatchUnsupported,
    #[error(
        "the protocol revision is unknown; send initialize first, or the metadata of a modern request"
    )]
    EraUnknown,
    #[error("a request with this id is still running")]
    IdInUse,
    /// The upstreams of the gateway lead back to it.
    #[error(
        "the request came back to this gateway, or has passed too many; `promptgate check --dial` names the upstream that leads back"
    )]
    Loop,
    #[error("method not found")]
    MethodNotFound,
    #[error("{what}")]
    InvalidParams { what: String },
    /// A modern request without a member that every modern request must have (MCP 2026-07-28,
    /// basic).
    #[error("params._meta must hold `{key}`")]
    MetaMissing { key: &'static str },
    #[error("`logLevel` must be one of the eight levels of RFC 5424")]
    LogLevelUnknown,
    #[error("required argument `{argument}` is missing")]
    MissingArgument { argument: String },
    #[error("argument `{argument}` is set by the gateway; leave it out")]
    PresetArgument { argument: String },
    #[error("argument `{argument}` must be one of: {choices}")]
    NoChoice {
        argument: String,
        /// Separated by commas.
        choices: String,
    },
    #[error("the guard {guard:?} refuses a text of this call ({code}): {advice}")]
    DeniedByGuard { guard: String, code: Cow<'static, str>, advice: Cow<'static, str> },
    #[error("unknown prompt; list the prompts again")]
    UnknownPrompt,
    #[error("unknown tool; list the tools again")]
    UnknownTool,
    #[error("unknown resource; list the resources again")]
    UnknownResource {
        /// The JSON-RPC error code, which differs between the eras.
        code: i64,
        /// The requested URI; empty if it is too long to repeat.
        uri: String,
    },
    #[error("the cursor is not valid; list again without one")]
    InvalidCursor,
    #[error("the requestState is not valid; get the prompt again without it")]
    InvalidState,
    /// The upstream needs a client capability that the client has not declared.
    #[error("the prompt needs a capability that the client has not declared")]
    CapabilityMissing {
        /// `requiredCapabilities` as JSON text.
        required: String,
    },
    #[error("header `{header}` is missing or differs from the body")]
    HeaderMismatch { header: Cow<'static, str> },
    #[error("the revision in MCP-Protocol-Version is not supported")]
    LegacyVersionUnknown,
    #[error("this protocol version is not supported")]
    UnsupportedVersion { requested: String },
}

/// Longest URI that an error repeats, in bytes.
const LONGEST_URI: usize = 2048;

impl RequestFault {
    /// A resource that does not exist for the caller: -32602 in the modern era, -32002 in the
    /// legacy era (MCP 2025-11-25 and 2026-07-28, resources, error handling).
    pub fn unknown_resource(is_modern: bool, uri: &str) -> Self {
        let uri = if uri.len() <= LONGEST_URI { uri.to_owned() } else { String::new() };
        Self::UnknownResource { code: if is_modern { -32602 } else { -32002 }, uri }
    }

    /// See [`Fault::reason`].
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotJson(_) => "not_json",
            Self::UnsafeJson(JsonError::DuplicateMember { .. }) => "duplicate_member",
            Self::UnsafeJson(JsonError::TooDeep { .. }) => "too_deep",
            Self::UnsafeJson(_) => "ambiguous_value",
            Self::NotJsonRpc(_) => "not_json_rpc",
            Self::BatchUnsupported => "batch_unsupported",
            Self::EraUnknown => "era_unknown",
            Self::IdInUse => "id_in_use",
            Self::Loop => "loop",
            Self::MethodNotFound => "method_not_found",
            Self::InvalidParams { .. } => "invalid_params",
            Self::MetaMissing { .. } => "meta_missing",
            Self::LogLevelUnknown => "log_level_unknown",
            Self::MissingArgument { .. } => "missing_argument",
            Self::PresetArgument { .. } => "preset_argument",
            Self::NoChoice { .. } => "no_choice",
            Self::DeniedByGuard { .. } => "guard_denied",
            Self::UnknownPrompt => "unknown_prompt",
            Self::UnknownTool => "unknown_tool",
            Self::UnknownResource { .. } => "unknown_resource",
            Self::InvalidCursor => "invalid_cursor",
            Self::InvalidState => "invalid_request_state",
            Self::CapabilityMissing { .. } => "capability_missing",
            Self::HeaderMismatch { .. } => "header_mismatch",
            Self::LegacyVersionUnknown | Self::UnsupportedVersion { .. } => "unsupported_version",
        }
    }
}

/// The failure of a request to an upstream.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("upstream `{upstream}`: {kind}")]
pub struct UpstreamFault {
    /// Id of the upstream; "" if no single upstream is the cause.
    pub upstream: String,
    pub kind: UpstreamFaultKind,
    /// The id of the details in the log and the audit log; `None` until the details are reported,
    /// and for faults without details.
    pub correlation: Option<CorrelationId>,
}

/// The random id under which the details of a fault are reported to operators.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CorrelationId(pub [u8; 8]);

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// The kind of failure of a request to an upstream. `Display` is for callers: a fixed sentence, the
/// rule of the protocol that a response violates, or the message of an upstream's own error, its
/// answer to the caller. [`UpstreamFaultKind::diagnosis`] adds the details for operators, and
/// [`UpstreamFaultKind::recorded`] leaves out details that may contain arguments of the caller.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UpstreamFaultKind {
    #[error("not reachable at present")]
    Unavailable(String),
    /// The transport failed after the connection was established. The text is the cause.
    #[error("the connection broke before the response was complete")]
    Reset(String),
    /// A child process exited, or closed its input or output.
    #[error("the child process exited before the response was complete")]
    ChildExited(Arc<ChildReport>),
    /// A child process is running, but has not answered its first request.
    #[error("no response within the deadline")]
    ChildSilent {
        /// `startup` of the upstream.
        startup: Duration,
        report: Arc<ChildReport>,
    },
    /// The account of the caller at the upstream was ended while the call was under way.
    #[error("not reachable at present")]
    AccessEnded,
    /// The gateway itself failed; its log has the details.
    #[error("the gateway failed")]
    Internal(String),
    #[error("no response within the deadline")]
    Timeout,
    #[error("the upstream limits the rate of calls (HTTP 429)")]
    RateLimited {
        /// Seconds until the time in `Retry-After`; `None` without one.
        retry_after_secs: Option<u64>,
    },
    #[error("too many concurrent calls (in_flight, queue, queue_wait)")]
    Busy,
    #[error("the upstream refuses the gateway's credential (HTTP {status})")]
    AuthFailed { status: u16 },
    #[error("{fault}")]
    NoToken {
        fault: TokenFault,
        /// The detail, for operators.
        detail: String,
    },
    /// The upstream lets in users only, and the caller has not signed in to it.
    #[error(
        "you have not signed in to it: open {url} in a browser, type the code {code} if the page asks for it, and try again"
    )]
    SignInNeeded {
        /// The gateway's page, for this caller only.
        url: Arc<str>,
        code: Arc<str>,
        /// The id of the link.
        id: Arc<str>,
    },
    #[error("the upstream responded with HTTP {status}")]
    Status {
        status: u16,
        /// The beginning of the response, for operators; sanitised, and truncated by [`excerpt`]
        /// once the secrets are removed. Often empty.
        shown: String,
    },
    /// The upstream is unavailable for a time that it states (RFC 9110, section 10.2.3).
    #[error("the upstream is unavailable for {retry_after_secs} s (HTTP 503)")]
    Paused { retry_after_secs: u64 },
    /// A redirect that is not followed.
    #[error("the upstream responded with HTTP {status}")]
    Moved {
        status: u16,
        /// The target of the redirect, without parts that may be secret. For operators.
        location: String,
    },
    #[error("the response is larger than {limit} bytes")]
    TooLarge { limit: usize },
    /// The text names the member or the rule that is violated, and never repeats content.
    #[error("the response violates the protocol: {0}")]
    Protocol(String),
    /// A template of a library takes too many steps, or reads too much text, with the arguments of
    /// the call.
    #[error("rendering takes too long with these arguments")]
    TooCostly,
    /// The operator's settings forbid serving the content of a source (a git repository, a prompt
    /// store), such as an unsigned commit. The text is for operators.
    #[error("has nothing that may be served at present")]
    NotServed(String),
    /// As [`Self::Protocol`]; `shown` is the text that the upstream sent, for operators only.
    #[error("the response violates the protocol: {what}")]
    NoMessage { what: &'static str, shown: String },
    #[error("the list exceeds a limit")]
    PaginationLimit(String),
    /// The text differs from the approved text; the digests of both.
    #[error("offers a text that was not approved")]
    NotApproved {
        approved: Arc<str>,
        offered: Arc<str>,
        /// `false` if texts are approved only for other arguments: `approved` is then the digest of
        /// one of them.
        are_arguments_approved: bool,
    },
    /// The upstream's own JSON-RPC error.
    #[error("error {code}: {message}")]
    Error {
        code: i64,
        /// Sanitised; truncated by [`excerpt`] once the secrets are removed.
        message: String,
        /// JSON text of `error.data`; `None` if it is absent or too long.
        data: Option<String>,
    },
    /// The user must first visit the pages that `data` names (MCP 2025-11-25, elicitation: -32042).
    #[error("error -32042: {message}")]
    UrlElicitationRequired {
        message: String,
        /// JSON text of `error.data`.
        data: String,
    },
    /// The upstream sent a server request that its `server_requests` setting does not allow.
    #[error("sent a server request that its `server_requests` do not allow")]
    ServerRequestNotAllowed,
    /// The client's response to a server request did not arrive, or was not usable.
    #[error("a server request was not answered: {0}")]
    Unanswered(&'static str),
    /// The upstream has ended the session (HTTP 404; MCP 2025-11-25, Streamable HTTP): open a new
    /// session and repeat the request.
    #[error("the session has ended")]
    SessionLost,
}

/// The exit status and last output of a child process, for operators only: the output may contain
/// paths and secrets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ChildReport {
    /// `None` while the child runs, and if the system does not report it.
    pub exit: Option<ChildExit>,
    /// The last lines that the child wrote to standard error, the newest last.
    pub stderr: Vec<String>,
}

/// The exit status of a child process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChildExit {
    Code(i32),
    /// The number of the signal that ended the child.
    Signal(i32),
}

impl ChildReport {
    /// Returns the most informative line of the output: the last line that names an error and is
    /// not indented, as stack frames are, or else the last line.
    fn telling_line(&self) -> Option<&str> {
        let names_error = |line: &&String| {
            let lower = line.to_lowercase();
            let words = ["error", "exception", "panic", "not found", "cannot", "no such"];
            !line.starts_with([' ', '\t']) && words.iter().any(|word| lower.contains(word))
        };
        let line = self.stderr.iter().rfind(names_error).or(self.stderr.last());
        line.map(|line| line.trim())
    }
}

/// The reason why the gateway has no access token for an upstream.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TokenFault {
    /// There is no login.
    #[error("it needs a sign-in by its operator")]
    NoLogin,
    /// The provider refuses the refresh token: it was revoked, or has expired (RFC 6749, section
    /// 5.2, `invalid_grant`).
    #[error("its authorization server has ended the operator's sign-in")]
    LoginRefused,
    /// The lifetime that the provider gave for the refresh token is over.
    #[error("the operator's sign-in has expired")]
    LoginExpired,
    /// The scope was refused, or does not suffice (RFC 6750, section 3.1, `insufficient_scope`).
    #[error("the scope of the gateway's access token does not suffice")]
    ScopeRefused,
    /// The upstream is called with each caller's own token, and this caller has brought no token to
    /// exchange.
    #[error(
        "it is called with the caller's own credential, and this caller has none that it could be had with"
    )]
    NoSubjectToken,
    /// The authorization server issues no token for this caller (RFC 8693, section 2.2.2).
    #[error("its authorization server issues no token for this caller")]
    ExchangeRefused,
    /// The vault has no secret of this caller.
    #[error("there is no secret of this caller for it")]
    NoSecret,
    #[error("its authorization server is not available")]
    ProviderUnavailable,
    #[error("its authorization server has not answered in time")]
    ProviderTimeout,
    /// Any other reason.
    #[error("the gateway has no access token for it")]
    Failed,
}

impl TokenFault {
    /// Returns the stable name of the fault.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoLogin => "no_login",
            Self::LoginRefused => "login_refused",
            Self::LoginExpired => "login_expired",
            Self::ScopeRefused => "scope_refused",
            Self::NoSubjectToken => "no_subject_token",
            Self::ExchangeRefused => "exchange_refused",
            Self::NoSecret => "no_secret",
            Self::ProviderUnavailable => "provider_unavailable",
            Self::ProviderTimeout => "provider_timeout",
            Self::Failed => "upstream_auth_failed",
        }
    }

    /// Whether the operator must sign in again.
    pub fn needs_login(self) -> bool {
        matches!(self, Self::NoLogin | Self::LoginRefused | Self::LoginExpired)
    }
}

impl UpstreamFaultKind {
    /// Whether opening a notification stream would fail each time with this fault: the upstream has
    /// no such stream. After a redirect, 408 (timeout), 409 (another stream is still open), 425
    /// (too early), and statuses from 500 on except 501, opening may succeed later.
    pub fn refuses_streams(&self) -> bool {
        match self {
            Self::Status { status, .. } => {
                !matches!(status, 300..400 | 408 | 409 | 425 | 500 | 502..)
            }
            Self::Error { .. } => true,
            _ => false,
        }
    }

    /// Describes the fault to an operator: like `Display`, with the details that clients must not
    /// learn.
    pub fn diagnosis(&self) -> String {
        let (what, report) = match self {
            Self::Unavailable(detail) => return format!("not reachable: {detail}"),
            Self::AccessEnded => return "the caller's access to the upstream was ended".to_owned(),
            Self::NoToken { fault, detail } => return format!("{fault}: {detail}"),
            Self::SignInNeeded { .. } => return "the caller has not signed in".to_owned(),
            Self::NotApproved { approved, offered, .. } => {
                return format!("{self}: approved {approved}, offered {offered}");
            }
            Self::Status { shown, .. } if !shown.is_empty() => {
                return format!("{self}: {}", excerpt(shown));
            }
            Self::Protocol(detail) => return format!("protocol violation: {detail}"),
            Self::NotServed(detail) => return detail.clone(),
            Self::NoMessage { what, shown } => {
                return format!("protocol violation: {what}: {shown}");
            }
            Self::Moved { location, .. } => {
                return format!(
                    "{self}, which leads to {location:?}: only 307 and 308 to the same origin are followed; set url \
                     to where the server is"
                );
            }
            Self::Reset(detail) | Self::Internal(detail) | Self::PaginationLimit(detail) => {
                return format!("{self}: {detail}");
            }
            Self::ChildExited(report) => {
                let what = match report.exit {
                    Some(ChildExit::Code(code)) => format!("exited with code {code}"),
                    Some(ChildExit::Signal(signal)) => format!("was ended by signal {signal}"),
                    None => "closed its input or output".to_owned(),
                };
                (what, report)
            }
            Self::ChildSilent { startup, report } => {
                let secs = startup.as_secs_f64();
                (format!("has not answered within startup = {secs} s"), report)
            }
            other => return other.to_string(),
        };
        match report.telling_line() {
            Some(line) => format!("{what}: {line}"),
            None => format!("{what}, and wrote nothing that says why"),
        }
    }

    /// Describes the fault in the log and in records of calls: like [`Self::diagnosis`], without
    /// texts of the upstream, which may repeat values of the caller's arguments.
    pub fn recorded(&self) -> String {
        match self {
            Self::Error { code, .. } => format!("error {code}"),
            Self::UrlElicitationRequired { .. } => "error -32042".to_owned(),
            Self::Status { .. } => self.to_string(),
            Self::NoMessage { what, shown } => {
                format!("protocol violation: {what}, of {} bytes", shown.len())
            }
            other => other.diagnosis(),
        }
    }

    /// Whether the upstream did not answer: it cannot be reached, or has not responded in time.
    pub fn is_no_answer(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_)
                | Self::Reset(_)
                | Self::ChildExited(_)
                | Self::ChildSilent { .. }
                | Self::Timeout
        )
    }

    /// Whether the connection or its session may have failed, not only the request.
    pub fn is_of_connection(&self) -> bool {
        !matches!(
            self,
            Self::Timeout
                | Self::RateLimited { .. }
                | Self::PaginationLimit(_)
                | Self::TooLarge { .. }
                | Self::AuthFailed { .. }
                | Self::NoToken { .. }
                | Self::SignInNeeded { .. }
                // These codes are about the request; any other may be about the session.
                | Self::Error { code: -32602 | -32603, .. }
        )
    }

    /// Returns the pause that the upstream has asked for (RFC 9110, section 10.2.3).
    pub fn retry_after(&self) -> Option<Duration> {
        let secs = match self {
            Self::RateLimited { retry_after_secs } => (*retry_after_secs)?,
            Self::Paused { retry_after_secs } => *retry_after_secs,
            _ => return None,
        };
        Some(Duration::from_secs(secs))
    }

    /// Returns the HTTP status with which the upstream has refused the request.
    pub fn http_status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. }
            | Self::AuthFailed { status }
            | Self::Moved { status, .. } => Some(*status),
            Self::RateLimited { .. } => Some(429),
            Self::Paused { .. } => Some(503),
            _ => None,
        }
    }

    /// Whether the fault is logged with an id that is shown to the caller: a fault of the upstream,
    /// not of the gateway or the client.
    pub fn is_logged(&self) -> bool {
        match self {
            Self::Unavailable(_)
            | Self::AccessEnded
            | Self::Reset(_)
            | Self::ChildExited(_)
            | Self::ChildSilent { .. }
            | Self::Internal(_)
            | Self::NoToken { .. }
            | Self::Protocol(_)
            | Self::NotServed(_)
            | Self::TooCostly
            | Self::NoMessage { .. }
            | Self::Moved { .. }
            | Self::NotApproved { .. }
            | Self::PaginationLimit(_)
            | Self::Timeout
            | Self::RateLimited { .. }
            | Self::AuthFailed { .. }
            | Self::Status { .. }
            | Self::Paused { .. }
            | Self::TooLarge { .. }
            | Self::Error { .. }
            | Self::SessionLost => true,
            Self::Busy
            | Self::SignInNeeded { .. }
            | Self::UrlElicitationRequired { .. }
            | Self::ServerRequestNotAllowed
            | Self::Unanswered(_) => false,
        }
    }

    /// Returns the last lines that the child process of this attempt wrote to standard error.
    pub fn stderr(&self) -> &[String] {
        match self {
            Self::ChildExited(report) | Self::ChildSilent { report, .. } => &report.stderr,
            _ => &[],
        }
    }

    /// Returns the stable name of the fault for `error.data.reason` and `promptgate/incomplete`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unavailable(_) | Self::AccessEnded | Self::SessionLost => "upstream_unavailable",
            Self::Reset(_) | Self::ChildExited(_) => "upstream_reset",
            Self::Internal(_) => "internal",
            Self::Timeout | Self::ChildSilent { .. } => "upstream_timeout",
            Self::Busy => "upstream_busy",
            Self::RateLimited { .. } => "upstream_rate_limited",
            Self::AuthFailed { .. } => "upstream_auth_failed",
            Self::NoToken { fault, .. } => fault.reason(),
            Self::SignInNeeded { .. } => "sign_in_needed",
            Self::Status { .. } | Self::Paused { .. } | Self::Moved { .. } => "upstream_http_error",
            Self::TooLarge { .. } => "upstream_too_large",
            Self::Protocol(_) | Self::NotServed(_) | Self::TooCostly | Self::NoMessage { .. } => {
                "upstream_protocol_error"
            }
            Self::PaginationLimit(_) => "pagination_limit",
            Self::NotApproved { .. } => "not_approved",
            Self::Error { .. } => "upstream_error",
            Self::UrlElicitationRequired { .. } => "url_elicitation_required",
            Self::ServerRequestNotAllowed => "server_request_not_allowed",
            Self::Unanswered(_) => "server_request_unanswered",
        }
    }
}

/// Longest text of an upstream that an error repeats, in bytes.
pub const EXCERPT: usize = 256;

/// Sanitises a text of an upstream: replaces control and hidden characters by spaces, and truncates
/// it to [`EXCERPT`] bytes.
pub fn excerpt(text: &str) -> String {
    sanitised(text, EXCERPT)
}

/// Replaces control and hidden characters by spaces, and truncates the text to `most` bytes.
pub fn sanitised(text: &str, most: usize) -> String {
    let mut out: String =
        text.chars().take(most).map(|c| if crate::name::is_hidden(c) { ' ' } else { c }).collect();
    out.truncate(out.floor_char_boundary(most));
    out
}

impl Fault {
    /// Returns the id under which the log has the details of the fault.
    pub fn correlation(&self) -> Option<CorrelationId> {
        match self {
            Fault::Upstream(fault) => fault.correlation,
            _ => None,
        }
    }

    /// Describes the fault to an operator: like `Display`, with the details that clients must not
    /// learn.
    pub fn diagnosis(&self) -> String {
        match self {
            Fault::Upstream(UpstreamFault { upstream, kind, .. }) => {
                format!("upstream `{upstream}`: {}", kind.diagnosis())
            }
            other => other.to_string(),
        }
    }

    /// Returns the check that has refused an allowed call, for the audit log: `arguments.NAME`, or
    /// `approvals.text`; `None` if the call failed for another reason.
    pub fn refused_by(&self) -> Option<String> {
        match self {
            Fault::Request(
                RequestFault::MissingArgument { argument }
                | RequestFault::PresetArgument { argument }
                | RequestFault::NoChoice { argument, .. },
            ) => Some(format!("arguments.{argument}")),
            Fault::Request(RequestFault::DeniedByGuard { guard, .. }) => {
                Some(format!("guards.{guard}"))
            }
            Fault::Upstream(UpstreamFault {
                kind: UpstreamFaultKind::NotApproved { .. }, ..
            }) => Some("approvals.text".to_owned()),
            _ => None,
        }
    }

    /// Returns the stable name of the fault for `error.data.reason`; `docs/errors.md` lists all
    /// names.
    pub fn reason(&self) -> &'static str {
        match self {
            Fault::Transport(fault) => fault.reason(),
            Fault::Request(fault) => fault.reason(),
            Fault::Upstream(fault) => fault.kind.reason(),
            Fault::Internal => "internal",
        }
    }

    pub fn invalid_params(what: impl Into<String>) -> Self {
        RequestFault::InvalidParams { what: what.into() }.into()
    }

    pub fn upstream(upstream: impl ToString, kind: UpstreamFaultKind) -> Self {
        UpstreamFault { upstream: upstream.to_string(), kind, correlation: None }.into()
    }

    /// Returns the fault of a list to which no upstream could contribute.
    pub fn none_available() -> Self {
        let what = "no upstream can be reached, or none has answered yet";
        Self::upstream("", UpstreamFaultKind::Unavailable(what.to_owned()))
    }
}

impl From<JsonError> for Fault {
    /// Text that is not JSON becomes -32700 (parse error; JSON-RPC 2.0, section 5.1). JSON that is
    /// valid but unsafe becomes -32600 (invalid request).
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::NotUtf8 { .. } | JsonError::Syntax { .. } => RequestFault::NotJson(error),
            JsonError::DuplicateMember { .. }
            | JsonError::LoneSurrogate { .. }
            | JsonError::NumberRange { .. }
            | JsonError::TooDeep { .. } => RequestFault::UnsafeJson(error),
        }
        .into()
    }
}

impl From<FrameError> for Fault {
    fn from(error: FrameError) -> Self {
        RequestFault::NotJsonRpc(error.what).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_refused_for_good_by_what_says_so() {
        for (status, is_refused) in [
            (200, true),
            (302, false),
            (400, true),
            (404, true),
            (405, true),
            (408, false),
            (409, false),
            (425, false),
            (500, false),
            (501, true),
            (503, false),
        ] {
            let kind = UpstreamFaultKind::Status { status, shown: String::new() };
            assert_eq!(kind.refuses_streams(), is_refused, "{status}");
        }
        assert!(!UpstreamFaultKind::Timeout.refuses_streams());
    }

    #[test]
    fn u13_operators_read_why_a_child_ended_and_clients_do_not() {
        let exited = |exit, stderr: &[&str]| {
            let stderr = stderr.iter().map(|line| (*line).to_owned()).collect();
            UpstreamFaultKind::ChildExited(Arc::new(ChildReport { exit, stderr }))
        };
        let python = [
            "Traceback (most recent call last):",
            "  File \"x\"",
            "ModuleNotFoundError: No module named 'x'",
        ];
        let node =
            ["Error: Cannot find module '/x'", "    at error (node:1:1)", "", "Node.js v20.20.2"];
        for (fault, expected) in [
            (
                exited(Some(ChildExit::Code(3)), &python),
                "exited with code 3: ModuleNotFoundError: No module named 'x'",
            ),
            (
                exited(Some(ChildExit::Code(1)), &node),
                "exited with code 1: Error: Cannot find module '/x'",
            ),
            (exited(Some(ChildExit::Signal(9)), &["bye"]), "was ended by signal 9: bye"),
            (exited(None, &[]), "closed its input or output, and wrote nothing that says why"),
        ] {
            assert_eq!(fault.diagnosis(), expected);
            assert_eq!(
                fault.to_string(),
                "the child process exited before the response was complete"
            );
        }
        assert_eq!(UpstreamFaultKind::Timeout.diagnosis(), UpstreamFaultKind::Timeout.to_string());
    }

    /// One fault of each kind, with a mark in each text that it carries.
    fn marked() -> Vec<UpstreamFaultKind> {
        use UpstreamFaultKind as Kind;
        let mark = || MARK.to_owned();
        let report = Arc::new(ChildReport { exit: None, stderr: vec![mark()] });
        let all = vec![
            Kind::Unavailable(mark()),
            Kind::Reset(mark()),
            Kind::ChildExited(report.clone()),
            Kind::ChildSilent { startup: Duration::ZERO, report },
            Kind::AccessEnded,
            Kind::Internal(mark()),
            Kind::Timeout,
            Kind::RateLimited { retry_after_secs: None },
            Kind::Busy,
            Kind::AuthFailed { status: 401 },
            Kind::NoToken { fault: TokenFault::Failed, detail: mark() },
            Kind::Status { status: 500, shown: mark() },
            Kind::Paused { retry_after_secs: 1 },
            Kind::Moved { status: 302, location: mark() },
            Kind::TooLarge { limit: 1 },
            Kind::Protocol(mark()),
            Kind::NoMessage { what: "a text that is no message", shown: mark() },
            Kind::PaginationLimit(mark()),
            Kind::NotApproved {
                approved: MARK.into(),
                offered: MARK.into(),
                are_arguments_approved: true,
            },
            Kind::Error { code: 1, message: mark(), data: None },
            Kind::UrlElicitationRequired { message: mark(), data: mark() },
            Kind::ServerRequestNotAllowed,
            Kind::Unanswered("the client has left"),
            Kind::SessionLost,
            Kind::NotServed(mark()),
            Kind::TooCostly,
            Kind::SignInNeeded { url: MARK.into(), code: MARK.into(), id: MARK.into() },
        ];
        // A new kind belongs into the list, too.
        let place = |kind: &Kind| match kind {
            Kind::Unavailable(_) => 0,
            Kind::Reset(_) => 1,
            Kind::ChildExited(_) => 2,
            Kind::ChildSilent { .. } => 3,
            Kind::AccessEnded => 4,
            Kind::Internal(_) => 5,
            Kind::Timeout => 6,
            Kind::RateLimited { .. } => 7,
            Kind::Busy => 8,
            Kind::AuthFailed { .. } => 9,
            Kind::NoToken { .. } => 10,
            Kind::Status { .. } => 11,
            Kind::Paused { .. } => 12,
            Kind::Moved { .. } => 13,
            Kind::TooLarge { .. } => 14,
            Kind::Protocol(_) => 15,
            Kind::NoMessage { .. } => 16,
            Kind::PaginationLimit(_) => 17,
            Kind::NotApproved { .. } => 18,
            Kind::Error { .. } => 19,
            Kind::UrlElicitationRequired { .. } => 20,
            Kind::ServerRequestNotAllowed => 21,
            Kind::Unanswered(_) => 22,
            Kind::SessionLost => 23,
            Kind::NotServed(_) => 24,
            Kind::TooCostly => 25,
            Kind::SignInNeeded { .. } => 26,
        };
        assert!(all.iter().map(place).eq(0..27));
        all
    }

    const MARK: &str = "operators only";

    #[test]
    fn callers_hear_a_fixed_sentence_a_violated_rule_or_the_upstreams_own_answer() {
        use UpstreamFaultKind as Kind;
        for kind in marked() {
            let is_own_answer =
                matches!(kind, Kind::Error { .. } | Kind::UrlElicitationRequired { .. });
            let told = Fault::upstream("up", kind.clone()).to_string();
            if matches!(kind, Kind::SignInNeeded { .. }) {
                // A link is for its caller only.
                assert!(told.contains(MARK) && !kind.recorded().contains(MARK));
                assert!(!kind.diagnosis().contains(MARK));
                continue;
            }
            // The gateway's own words on a rule, without content.
            let names_rule = matches!(kind, Kind::Protocol(_));
            assert_eq!(told.contains(MARK), is_own_answer || names_rule, "{kind:?}: {told}");
            let is_of_upstream =
                is_own_answer || matches!(kind, Kind::Status { .. } | Kind::NoMessage { .. });
            let has_mark = format!("{kind:?}").contains(MARK);
            // A text of the upstream may repeat arguments.
            let is_recorded = has_mark && !is_of_upstream;
            assert_eq!(kind.recorded().contains(MARK), is_recorded, "{kind:?}");
            assert_eq!(kind.diagnosis().contains(MARK), has_mark, "{kind:?}");
        }
    }

    #[test]
    fn an_excerpt_is_truncated_and_sanitised() {
        assert_eq!(excerpt("a\u{1b}[31m\r\nb\u{202e}c"), "a [31m  b c");
        let long = excerpt(&"é".repeat(1000));
        assert!(long.len() <= EXCERPT && long.len() > EXCERPT - 4);
    }
}
