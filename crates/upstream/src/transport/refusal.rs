//! Refusals: the faults for HTTP responses without the expected result.

use std::time::{Duration, SystemTime};

use http::header::{CONTENT_TYPE, LOCATION};
use http::response::Parts;
use http::{HeaderMap, StatusCode, Uri};
use tokio::time::timeout;

use super::sse_reader::next_chunk;
use domain::fault::{UpstreamFaultKind as Kind, excerpt, sanitised};
use net::egress::{ResponseBody, check_encoding};
use net::{origin, retry_after};

/// Returns the fault for an error status of a response from `url`.
pub(super) fn refusal(url: &Uri, status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Kind {
    let retry_after_secs = retry_after(headers, now);
    let location = headers.get(LOCATION).filter(|_| status.is_redirection());
    match (status, retry_after_secs, location) {
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, ..) => {
            Kind::AuthFailed { status: status.as_u16() }
        }
        (StatusCode::TOO_MANY_REQUESTS, retry_after_secs, _) => {
            Kind::RateLimited { retry_after_secs }
        }
        (StatusCode::SERVICE_UNAVAILABLE, Some(retry_after_secs), _) => {
            Kind::Paused { retry_after_secs }
        }
        (_, _, Some(location)) => {
            let location = origin::shown(url, &String::from_utf8_lossy(location.as_bytes()));
            Kind::Moved { status: status.as_u16(), location }
        }
        _ => Kind::Status { status: status.as_u16(), shown: String::new() },
    }
}

/// The beginning of a body that an operator reads, in bytes.
const MAX_SHOWN: usize = 1024;

/// Time limit for reading that beginning: the call has already failed, and its caller waits.
const SHOWN_TIMEOUT: Duration = Duration::from_millis(250);

/// Returns the refusal with the beginning of the body, if it is a status with a readable one.
pub(super) async fn with_beginning(refusal: Kind, head: &Parts, mut body: ResponseBody) -> Kind {
    if !matches!(refusal, Kind::Status { .. }) || check_encoding(&head.headers).is_err() {
        return refusal;
    }
    let mut beginning = Vec::new();
    let _ = timeout(SHOWN_TIMEOUT, async {
        while let Ok(Some(chunk)) = next_chunk(&mut body).await {
            let room = MAX_SHOWN - beginning.len();
            beginning.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if beginning.len() == MAX_SHOWN {
                break;
            }
        }
    })
    .await;
    showing(refusal, &beginning)
}

/// Returns the refusal with the beginning of its body in one line, if it is a status.
pub(super) fn showing(refusal: Kind, body: &[u8]) -> Kind {
    match refusal {
        Kind::Status { status, .. } => {
            let text = String::from_utf8_lossy(&body[..body.len().min(MAX_SHOWN)]);
            Kind::Status { status, shown: sanitised(text.trim(), MAX_SHOWN) }
        }
        other => other,
    }
}

/// The fault of a response of another media type.
pub(super) fn other_media(headers: &HeaderMap) -> Kind {
    let media = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let shown =
        media.map_or("no Content-Type".to_owned(), |m| format!("Content-Type {:?}", excerpt(&m)));
    Kind::NoMessage { what: "the response is neither JSON nor an event stream", shown }
}

/// The fault of a response with a content coding.
pub(super) fn encoded(shown: String) -> Kind {
    Kind::NoMessage { what: "the response is encoded, which was not asked for", shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::RETRY_AFTER;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn what_a_server_says_with_a_status_is_in_the_fault() {
        let url = Uri::from_static("https://a.example/mcp");
        let at = |text: &str| httpdate::parse_http_date(text).unwrap();
        let now = at("Sun, 06 Nov 1994 08:49:37 GMT");
        let fault = |status: u16, name: HeaderName, value: &'static str| {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            refusal(&url, StatusCode::from_u16(status).unwrap(), &headers, now)
        };
        let limited = |retry_after_secs| Kind::RateLimited { retry_after_secs };
        for (value, expected) in [
            ("120", Some(120)),
            ("1.5", Some(2)),
            ("-1", None),
            ("inf", None),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sunday, 06-Nov-94 08:48:37 GMT", Some(0)),
            ("soon", None),
        ] {
            assert_eq!(fault(429, RETRY_AFTER, value), limited(expected), "{value}");
        }
        assert_eq!(fault(503, RETRY_AFTER, "7"), Kind::Paused { retry_after_secs: 7 });
        assert_eq!(
            fault(503, RETRY_AFTER, "soon"),
            Kind::Status { status: 503, shown: String::new() }
        );
        for (value, expected) in [
            ("/mcp/", "https://a.example/mcp/"),
            ("https://u:p@login.example/in?token=x#y", "https://login.example/in"),
            ("//[", "//["),
        ] {
            let moved = Kind::Moved { status: 301, location: expected.to_owned() };
            assert_eq!(fault(301, LOCATION, value), moved);
            assert!(moved.diagnosis().contains("set url"), "{}", moved.diagnosis());
            assert!(!moved.to_string().contains("login"), "callers are not told");
        }
        assert_eq!(fault(400, LOCATION, "/x"), Kind::Status { status: 400, shown: String::new() });
    }

    #[test]
    fn a_response_without_a_media_type_says_so() {
        let none = other_media(&HeaderMap::new());
        assert!(none.diagnosis().ends_with("no Content-Type"), "{none}");
    }
}
