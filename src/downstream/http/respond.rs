//! The one place where answers get their HTTP form, and errors their code, status and reason.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::{Either, Full};

use super::event_stream::EventStream;
use crate::domain::fault::{
    Fault, RequestFault, TransportFault, UpstreamFault, UpstreamFaultKind as Kind,
};
use crate::downstream::error_message::error_message;
use crate::session::Refusal;
use crate::session::dialect::Dialect;

/// A whole body, or a stream of events.
pub(crate) type Body = Either<Full<Bytes>, EventStream>;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

/// Seconds that a client is asked to stay away when the gateway has too much to do: short, since
/// calls are short.
const OVERLOADED_RETRY_SECS: &str = "1";

/// 202 without a body: a notification or a response was taken in.
pub(crate) fn accepted() -> Response<Body> {
    plain(StatusCode::ACCEPTED)
}

/// An empty answer of this status.
pub(crate) fn plain(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::default()));
    *response.status_mut() = status;
    response
}

/// 200 with a JSON-RPC message.
pub(crate) fn json(message: String) -> Response<Body> {
    with_json(StatusCode::OK, message)
}

/// The same answer with the id of the session that it opens, if it does.
pub(crate) fn with_session(mut response: Response<Body>, session: Option<&str>) -> Response<Body> {
    if let Some(id) = session.and_then(|id| HeaderValue::from_str(id).ok()) {
        response.headers_mut().insert(SESSION_ID, id);
    }
    response
}

/// 200 with a stream of events.
pub(crate) fn events(stream: EventStream) -> Response<Body> {
    let mut response = Response::new(Either::Right(stream));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// 200 with a JSON document that may be kept for a while.
pub(crate) fn document(text: String) -> Response<Body> {
    let mut response = with_json(StatusCode::OK, text);
    let hour = HeaderValue::from_static("max-age=3600");
    response.headers_mut().insert(CACHE_CONTROL, hour);
    response
}

/// The same answer with what would be let in (RFC 6750, section 3).
pub(crate) fn challenged(mut response: Response<Body>, challenge: &str) -> Response<Body> {
    if let Ok(value) = HeaderValue::from_str(challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, value);
    }
    response
}

/// The answer to a message that is refused, or whose call failed.
pub(crate) fn refusal(refusal: &Refusal) -> Response<Body> {
    let Refusal { fault, id, dialect } = refusal;
    let mut response =
        with_json(status(fault, *dialect), error_message(fault, id.as_ref(), *dialect));
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
            | TransportFault::AuthUnavailable,
        )
        | Fault::Upstream(UpstreamFault { kind: Kind::Busy, .. }) => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(OVERLOADED_RETRY_SECS));
        }
        _ => {}
    }
    response
}

fn with_json(status: StatusCode, message: String) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(message)));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// What was refused before dispatch has its real status; what failed after it is 200, because
/// clients take other statuses for a broken transport.
fn status(fault: &Fault, dialect: Dialect) -> StatusCode {
    use RequestFault as R;
    use TransportFault as T;
    match fault {
        Fault::Transport(transport) => match transport {
            T::HostRejected | T::OriginRejected | T::InsufficientScope => StatusCode::FORBIDDEN,
            T::Unauthenticated { .. } | T::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
            T::NotFound | T::SessionUnknown => StatusCode::NOT_FOUND,
            T::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            T::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            T::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            T::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            T::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            T::BodyBroken | T::SessionRequired => StatusCode::BAD_REQUEST,
            T::UriTooLong { .. } => StatusCode::URI_TOO_LONG,
            T::Overloaded | T::AuditUnavailable | T::AuthUnavailable | T::ShuttingDown => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            T::TooManyStreams | T::RateLimited { .. } => StatusCode::TOO_MANY_REQUESTS,
        },
        Fault::Request(request) => match request {
            R::MethodNotFound if dialect.has_error_status() => StatusCode::NOT_FOUND,
            R::MethodNotFound
            | R::InvalidParams { .. }
            | R::MissingArgument { .. }
            | R::UnknownPrompt
            | R::InvalidCursor
            | R::InvalidState => StatusCode::OK,
            R::CapabilityMissing { .. } if !dialect.has_error_status() => StatusCode::OK,
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
        // It was not asked.
        Fault::Upstream(UpstreamFault { kind: Kind::Busy, .. }) => StatusCode::SERVICE_UNAVAILABLE,
        Fault::Upstream(_) => StatusCode::OK,
        Fault::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
