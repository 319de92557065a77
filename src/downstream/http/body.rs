//! Reading a request: its media types, and its body within size and time.

use std::net::IpAddr;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::config::Limits;
use crate::domain::fault::TransportFault;
use crate::domain::trace;
use crate::downstream::admission::{Admission, BodyBudget};
use crate::policy::{Credentials, Given};
use crate::session::headers::{Field, Headers};

/// In which form a client takes its answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Accepts {
    Both,
    JsonOnly,
    StreamOnly,
}

/// Checks that a body is plain JSON.
pub(crate) fn check_media_type(headers: &HeaderMap) -> Result<(), TransportFault> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let one = types.next().filter(|_| types.next().is_none());
    let essence = one.and_then(|t| t.to_str().ok()?.split(';').next());
    let is_json = essence.is_some_and(|e| e.trim().eq_ignore_ascii_case("application/json"));
    match is_json && !headers.contains_key(CONTENT_ENCODING) {
        true => Ok(()),
        false => Err(TransportFault::UnsupportedMediaType),
    }
}

/// Reads `Accept`; without one, or with `*/*`, a client takes both.
pub(crate) fn read_accept(headers: &HeaderMap) -> Result<Accepts, TransportFault> {
    let ranges: Vec<String> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| range.split(';').next())
        .map(|range| range.trim().to_ascii_lowercase())
        .collect();
    let names = |wanted: [&str; 2]| {
        ranges.iter().any(|range| range == "*/*" || wanted.contains(&range.as_str()))
    };
    let json = ranges.is_empty() || names(["application/json", "application/*"]);
    let stream = ranges.is_empty() || names(["text/event-stream", "text/*"]);
    match (json, stream) {
        (true, true) => Ok(Accepts::Both),
        (true, false) => Ok(Accepts::JsonOnly),
        (false, true) => Ok(Accepts::StreamOnly),
        (false, false) => Err(TransportFault::NotAcceptable),
    }
}

/// Reads the headers of MCP.
pub(crate) fn read_headers(headers: &HeaderMap) -> Headers<'_> {
    Headers {
        session: field(headers, &HeaderName::from_static("mcp-session-id")),
        version: field(headers, &HeaderName::from_static("mcp-protocol-version")),
        method: field(headers, &HeaderName::from_static("mcp-method")),
        name: field(headers, &HeaderName::from_static("mcp-name")),
        trace: [trace::PARENT, trace::STATE, trace::BAGGAGE]
            .map(|name| field(headers, &HeaderName::from_static(name))),
    }
}

/// Gathers what proves who sends a request: its headers, and the subject of its connection's
/// certificate.
pub(crate) fn read_credentials<'a>(
    headers: &'a HeaderMap,
    subject: Option<&'a str>,
) -> Credentials<'a> {
    let given = |name| match field(headers, &name) {
        Field::Absent => Given::Nothing,
        Field::Once(value) => Given::Once(value),
        Field::Unreadable => Given::Unreadable,
    };
    let api_key = given(HeaderName::from_static("x-api-key"));
    Credentials { authorization: given(AUTHORIZATION), api_key, subject }
}

/// Where a request comes from: the other end of its connection, or, behind proxies that are
/// trusted, the last address in `X-Forwarded-For` that is none of theirs.
pub(crate) fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpAddr]) -> IpAddr {
    if !trusted.contains(&peer) {
        return peer;
    }
    let values = headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
    let hops: Vec<_> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
    let mut client = peer;
    for hop in hops.into_iter().rev() {
        let Ok(address) = hop.parse::<IpAddr>().map(|address| address.to_canonical()) else {
            return client;
        };
        client = address;
        if !trusted.contains(&address) {
            return client;
        }
    }
    client
}

/// Reads a body to its end, at most `body_size` bytes within `body`, as long as there is room for it.
pub(crate) async fn read(
    body: Incoming,
    headers: &HeaderMap,
    limits: &Limits,
    admission: &Admission,
) -> Result<(Vec<u8>, BodyBudget), TransportFault> {
    let too_large = TransportFault::BodyTooLarge { limit: limits.body_size };
    let announced = announced(headers);
    if announced.is_some_and(|length| length > limits.body_size) {
        return Err(too_large);
    }
    let capacity = announced.unwrap_or(0);
    let reading = async {
        let mut body = body;
        let mut budget = admission.budget(0)?;
        let mut bytes = Vec::with_capacity(capacity.min(FIRST_BUFFER));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| TransportFault::BodyBroken)?;
            if let Some(piece) = frame.data_ref() {
                if bytes.len() + piece.len() > limits.body_size {
                    return Err(too_large);
                }
                budget.grow_to(bytes.len() + piece.len())?;
                if bytes.len() + piece.len() > bytes.capacity() {
                    // By doubling, but not beyond what is to come: large bodies are what memory is bounded for.
                    let more = bytes.len().min(capacity.saturating_sub(bytes.len()));
                    bytes.reserve_exact(more.max(piece.len()));
                }
                bytes.extend_from_slice(piece);
            }
        }
        Ok((bytes, budget))
    };
    timeout(limits.body, reading).await.unwrap_or(Err(TransportFault::BodyTimeout))
}

/// What `Content-Length` says.
fn announced(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// What is reserved on the word of `Content-Length`; more grows as it arrives.
const FIRST_BUFFER: usize = 64 << 10;

fn field<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Field<'a> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Field::Absent,
        (Some(value), None) => match value.to_str() {
            Ok(text) => Field::Once(text.trim_matches([' ', '\t'])),
            Err(_) => Field::Unreadable,
        },
        (Some(_), Some(_)) => Field::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|v| (name.clone(), v.parse().unwrap())).fold(
            HeaderMap::new(),
            |mut headers, (name, value)| {
                headers.append(name, value);
                headers
            },
        )
    }

    #[test]
    fn w3_only_plain_json_is_taken() {
        let check = |values: &[&str]| check_media_type(&with(CONTENT_TYPE, values));
        assert!(check(&["application/json"]).is_ok());
        assert!(check(&["Application/JSON; charset=utf-8"]).is_ok());
        for bad in [&[][..], &["text/plain"], &["application/jsonfoo"], &["application/json"; 2]] {
            assert_eq!(check(bad), Err(TransportFault::UnsupportedMediaType), "{bad:?}");
        }
        let mut zipped = with(CONTENT_TYPE, &["application/json"]);
        zipped.insert(CONTENT_ENCODING, "gzip".parse().unwrap());
        assert!(check_media_type(&zipped).is_err());
    }

    #[test]
    fn accept_names_what_a_client_can_read() {
        let accept = |values: &[&str]| read_accept(&with(ACCEPT, values));
        assert_eq!(accept(&[]), Ok(Accepts::Both));
        assert_eq!(accept(&["*/*"]), Ok(Accepts::Both));
        assert_eq!(accept(&["text/event-stream, application/json;q=0.9"]), Ok(Accepts::Both));
        assert_eq!(accept(&["application/json", "text/event-stream"]), Ok(Accepts::Both));
        assert_eq!(accept(&["application/json"]), Ok(Accepts::JsonOnly));
        assert_eq!(accept(&["text/event-stream"]), Ok(Accepts::StreamOnly));
        assert_eq!(accept(&["text/html"]), Err(TransportFault::NotAcceptable));
    }

    #[test]
    fn a13_a_forwarded_address_counts_only_behind_trusted_proxies() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let forwarded =
            with(HeaderName::from_static("x-forwarded-for"), &["6.6.6.6, 1.2.3.4", "10.0.0.2"]);
        let client = |peer: &str, trusted: &[&str]| {
            let trusted: Vec<_> = trusted.iter().map(|text| ip(text)).collect();
            client_address(ip(peer), &forwarded, &trusted).to_string()
        };
        assert_eq!(client("10.0.0.1", &[]), "10.0.0.1", "nobody is trusted");
        assert_eq!(client("10.0.0.1", &["10.0.0.2"]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &["10.0.0.1"]), "10.0.0.2");
        assert_eq!(client("10.0.0.1", &["10.0.0.1", "10.0.0.2"]), "1.2.3.4");
        let odd = with(HeaderName::from_static("x-forwarded-for"), &["1.2.3.4, unknown"]);
        assert_eq!(client_address(ip("10.0.0.1"), &odd, &[ip("10.0.0.1")]), ip("10.0.0.1"));
    }

    #[test]
    fn w8_a_header_that_comes_twice_says_nothing() {
        let name = || HeaderName::from_static("mcp-method");
        assert_eq!(field(&with(name(), &[" a\t"]), &name()), Field::Once("a"));
        assert_eq!(field(&with(name(), &["a", "a"]), &name()), Field::Unreadable);
        assert_eq!(field(&with(name(), &[]), &name()), Field::Absent);
    }
}
