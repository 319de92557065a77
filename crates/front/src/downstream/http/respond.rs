//! HTTP responses to MCP clients: status, headers and bodies. The status of an error is decided
//! here only.

use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::event_stream::EventStream;
use crate::downstream::chunk_buf::ChunkBuf;
use crate::downstream::error_message::error_message;
use crate::session::MessageRefusal;
use crate::session::dialect::Dialect;
use domain::fault::{
    Fault, RequestFault, TransportFault, UpstreamFault, UpstreamFaultKind as Kind,
};
use domain::text::chunks::Chunks;

/// A response body.
pub enum Body {
    /// A body of known length.
    Complete(ChunkBuf),
    Events(EventStream),
}

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

/// `Retry-After` of an overloaded gateway, in seconds: short, since calls are short.
const RETRY_AFTER_OVERLOAD: &str = "1";

/// Returns 202 without a body: a notification or a response was accepted.
pub(crate) fn accepted() -> Response<Body> {
    empty(StatusCode::ACCEPTED)
}

/// Returns a response without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Complete(ChunkBuf::default()));
    *response.status_mut() = status;
    response
}

/// Returns 200 with a JSON-RPC message.
pub(crate) fn json(message: impl Into<Chunks>) -> Response<Body> {
    with_json(StatusCode::OK, message.into())
}

/// Adds `Mcp-Session-Id` to the response that opens a session (MCP 2025-11-25, transports).
pub(crate) fn with_session(mut response: Response<Body>, session: Option<&str>) -> Response<Body> {
    if let Some(id) = session.and_then(|id| HeaderValue::from_str(id).ok()) {
        response.headers_mut().insert(SESSION_ID, id);
    }
    response
}

/// Returns 200 with a stream of events.
pub(crate) fn events(stream: EventStream) -> Response<Body> {
    let mut response = Response::new(Body::Events(stream));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // MCP 2026-07-28, Streamable HTTP: a reverse proxy must not keep events back until a buffer is
    // full.
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// Tells a reverse proxy such as nginx whether it may buffer a response.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Returns 200 with a page for a person who opens the gateway in a browser. The page names the path
/// of one endpoint, which the configuration has checked, and nothing that the endpoint serves.
pub(crate) fn page(endpoint: &str) -> Response<Body> {
    html(PAGE.replace("PATH", endpoint), PAGE_POLICY)
}

/// Returns 200 with a page for a person, with this `Content-Security-Policy`.
pub(crate) fn html(page: String, policy: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::Complete(Chunks::from(page).into()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The page loads nothing, sends nothing, and cannot be framed.
const PAGE_POLICY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const PAGE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
    <meta name=\"viewport\" content=\"width=device-width\"><title>promptgate</title>\n\
    <h1>promptgate</h1>\n<p>This is an MCP endpoint: a server of prompts for programs, not a website.</p>\n\
    <p>To use it, give the address of this host with the path <code>PATH</code> to an MCP client; \
    <code>promptgate connect</code> prints the entry for yours.</p>\n</html>\n";

/// Returns 200 with a JSON document that caches may keep for an hour: it changes only with the
/// configuration.
pub(crate) fn document(text: String) -> Response<Body> {
    let mut response = with_json(StatusCode::OK, text.into());
    let hour = HeaderValue::from_static("max-age=3600");
    response.headers_mut().insert(CACHE_CONTROL, hour);
    response
}

/// Adds `WWW-Authenticate` with this challenge (RFC 6750, section 3).
pub(crate) fn with_challenge(mut response: Response<Body>, challenge: &str) -> Response<Body> {
    if let Ok(value) = HeaderValue::from_str(challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, value);
    }
    response
}

/// Returns the response to a message that was refused, or whose call failed.
pub(crate) fn refusal(refusal: &MessageRefusal) -> Response<Body> {
    let MessageRefusal { fault, id, dialect } = refusal;
    let mut response =
        with_json(status(fault, *dialect), error_message(fault, id.as_ref(), *dialect).into());
    let headers = response.headers_mut();
    match fault {
        Fault::Transport(TransportFault::MethodNotAllowed { allow }) => {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        Fault::Transport(TransportFault::RateLimited { retry_after, .. }) => {
            let seconds = retry_after.as_millis().div_ceil(1000);
            headers.insert(RETRY_AFTER, HeaderValue::from(u64::try_from(seconds).unwrap_or(1)));
        }
        Fault::Transport(
            TransportFault::Overloaded
            | TransportFault::ShuttingDown
            | TransportFault::TooManyStreams
            | TransportFault::AuditUnavailable
            | TransportFault::AuthUnavailable
            | TransportFault::ClusterUnavailable
            | TransportFault::ReplicaUnreachable,
        )
        | Fault::Upstream(UpstreamFault { kind: Kind::Busy, .. }) => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_OVERLOAD));
        }
        _ => {}
    }
    response
}

fn with_json(status: StatusCode, message: Chunks) -> Response<Body> {
    let mut response = Response::new(Body::Complete(message.into()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Returns the status of an error. A message that was refused before its dispatch gets the status
/// of the fault. A call that failed gets 200 with a JSON-RPC error, because clients take other
/// statuses for a broken transport.
fn status(fault: &Fault, dialect: Dialect) -> StatusCode {
    use RequestFault as R;
    use TransportFault as T;
    match fault {
        Fault::Transport(transport) => match transport {
            T::HostRejected | T::OriginRejected | T::InsufficientScope => StatusCode::FORBIDDEN,
            T::Unauthenticated { .. } | T::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
            T::NotFound { .. } | T::SessionUnknown => StatusCode::NOT_FOUND,
            T::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            T::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            T::NotAcceptable { .. } => StatusCode::NOT_ACCEPTABLE,
            T::BodyTooLarge { .. } | T::RelayTooLarge { .. } | T::BatchTooLarge { .. } => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            T::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            T::BodyBroken | T::SessionRequired => StatusCode::BAD_REQUEST,
            T::UriTooLong { .. } => StatusCode::URI_TOO_LONG,
            T::Overloaded
            | T::AuditUnavailable
            | T::AuthUnavailable
            | T::ClusterUnavailable
            | T::ReplicaUnreachable
            | T::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            T::TooManyStreams | T::RateLimited { .. } => StatusCode::TOO_MANY_REQUESTS,
        },
        Fault::Request(request) => match request {
            R::MethodNotFound if dialect.has_error_status() => StatusCode::NOT_FOUND,
            R::MethodNotFound
            | R::InvalidParams { .. }
            | R::MissingArgument { .. }
            | R::PresetArgument { .. }
            | R::NoChoice { .. }
            | R::DeniedByGuard { .. }
            | R::UnknownPrompt
            | R::UnknownTool
            | R::UnknownResource { .. }
            | R::Loop
            | R::InvalidCursor
            | R::InvalidState => StatusCode::OK,
            R::CapabilityMissing { .. } | R::LogLevelUnknown if !dialect.has_error_status() => {
                StatusCode::OK
            }
            R::NotJson(_)
            | R::UnsafeJson(_)
            | R::NotJsonRpc(_)
            | R::BatchUnsupported
            | R::EraUnknown
            | R::IdInUse
            | R::MetaMissing { .. }
            | R::LogLevelUnknown
            | R::HeaderMismatch { .. }
            | R::LegacyVersionUnknown
            | R::CapabilityMissing { .. }
            | R::UnsupportedVersion { .. } => StatusCode::BAD_REQUEST,
        },
        // The request was not sent to the upstream.
        Fault::Upstream(UpstreamFault { kind: Kind::Busy, .. }) => StatusCode::SERVICE_UNAVAILABLE,
        Fault::Upstream(_) => StatusCode::OK,
        Fault::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
