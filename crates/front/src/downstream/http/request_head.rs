//! Reads the head of a request: media types (`Content-Type`, `Accept`), the headers of MCP,
//! credentials, and the client address behind proxies (`X-Forwarded-For`).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, Method};

use crate::session::headers::{Field, Headers, ParamFields};
use domain::fault::TransportFault;
use domain::protocol::trace;
use domain::trusted_proxies::TrustedProxies;
use policy::{CredentialHeader, RequestCredentials};

const NOT_ACCEPTABLE: TransportFault =
    TransportFault::NotAcceptable { accept: "application/json or text/event-stream" };

const SESSION_ID: &str = "mcp-session-id";
const PROTOCOL_VERSION: &str = "mcp-protocol-version";

/// The response media types that a client accepts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Accepts {
    Both,
    JsonOnly,
    StreamOnly,
}

/// Checks that a request body is JSON without a content coding.
pub(crate) fn check_media_type(headers: &HeaderMap) -> Result<(), TransportFault> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let only = types.next().filter(|_| types.next().is_none());
    let essence = only.and_then(|t| t.to_str().ok()?.split(';').next());
    let is_json = essence.is_some_and(|e| e.trim().eq_ignore_ascii_case("application/json"));
    if !is_json || headers.contains_key(CONTENT_ENCODING) {
        return Err(TransportFault::UnsupportedMediaType);
    }
    Ok(())
}

/// Reads `Accept` (RFC 9110, section 12.5.1). Without the header, or with an empty one, every media
/// type is accepted. For each media type the most specific media range decides, and a weight of 0
/// refuses it. Weights above 0 do not matter: the response decides the type.
pub(crate) fn read_accept(headers: &HeaderMap) -> Result<Accepts, TransportFault> {
    let mut values = headers.get_all(ACCEPT).iter();
    if values.next().is_some_and(|value| value == USUAL_ACCEPT) && values.next().is_none() {
        return Ok(Accepts::Both);
    }
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges: Vec<MediaRange> = values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|range| !range.is_empty())
        .map(MediaRange::read)
        .collect();
    let json = accepts(&ranges, "application/json", "application/*");
    let stream = accepts(&ranges, "text/event-stream", "text/*");
    match (json, stream) {
        (true, true) => Ok(Accepts::Both),
        (true, false) => Ok(Accepts::JsonOnly),
        (false, true) => Ok(Accepts::StreamOnly),
        (false, false) => Err(NOT_ACCEPTABLE),
    }
}

/// The `Accept` that nearly all clients send.
const USUAL_ACCEPT: &str = "application/json, text/event-stream";

/// Whether a request comes from a person who opens its URL in a browser: a GET that names HTML, and
/// no type and no header of MCP.
pub(crate) fn is_of_browser(method: &Method, headers: &HeaderMap) -> bool {
    if *method != Method::GET {
        return false;
    }
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges =
        values.flat_map(|value| value.split(',')).map(|range| MediaRange::read(range.trim()));
    let is_mcp = |range: &MediaRange| {
        ["application/json", "text/event-stream"].iter().any(|essence| range.names(essence))
    };
    let mut names_html = false;
    let names_mcp = ranges.any(|range| {
        names_html |= range.names("text/html") && !range.is_refused;
        is_mcp(&range)
    });
    let has_mcp = headers.contains_key(SESSION_ID) || headers.contains_key(PROTOCOL_VERSION);
    names_html && !names_mcp && !has_mcp
}

/// One media range of `Accept`.
struct MediaRange<'a> {
    /// Without parameters, in upper or lower case.
    essence: &'a str,
    /// Whether its weight is 0.
    is_refused: bool,
}

impl<'a> MediaRange<'a> {
    /// Parameters other than the weight are ignored: JSON and event streams have one form each. A
    /// malformed weight is ignored, too.
    fn read(range: &'a str) -> Self {
        let mut parts = range.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default();
        let is_refused = parts.any(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            name.eq_ignore_ascii_case("q") && is_zero(value)
        });
        Self { essence, is_refused }
    }

    fn names(&self, essence: &str) -> bool {
        self.essence.eq_ignore_ascii_case(essence)
    }
}

/// Whether a weight is 0: `0`, optionally with up to three zeros behind a point (RFC 9110, section
/// 12.4.2).
fn is_zero(weight: &str) -> bool {
    matches!(weight, "0" | "0." | "0.0" | "0.00" | "0.000")
}

/// Whether these ranges accept a media type, named from the most specific range to the least.
fn accepts(ranges: &[MediaRange], media_type: &str, all_subtypes: &str) -> bool {
    let by_specificity = [media_type, all_subtypes, "*/*"];
    let mut named = by_specificity.map(|name| ranges.iter().filter(move |range| range.names(name)));
    let decisive = named.iter_mut().find_map(|ranges| {
        let first = ranges.next()?;
        Some(!first.is_refused || ranges.any(|range| !range.is_refused))
    });
    decisive.unwrap_or(ranges.is_empty())
}

/// Reads the headers of MCP (MCP 2025-11-25 and 2026-07-28, transports) and of W3C Trace Context.
pub(crate) fn read_headers(headers: &HeaderMap) -> Headers<'_> {
    let mut read = Headers { params: ParamFields(Some(headers)), ..Headers::default() };
    // A request has few headers: comparing each name takes less time than seven look-ups.
    for (name, value) in headers {
        let field = match name.as_str() {
            SESSION_ID => &mut read.session,
            PROTOCOL_VERSION => &mut read.version,
            "mcp-method" => &mut read.method,
            "mcp-name" => &mut read.name,
            trace::PARENT => &mut read.trace[0],
            trace::STATE => &mut read.trace[1],
            trace::BAGGAGE => &mut read.trace[2],
            _ => continue,
        };
        *field = if field.is_absent() { Field::once(value) } else { Field::Unreadable };
    }
    read
}

/// Reads the credentials of a request: its headers, and the subject of the connection's client
/// certificate.
pub(crate) fn read_credentials<'a>(
    headers: &'a HeaderMap,
    subject: Option<&'a str>,
) -> RequestCredentials<'a> {
    let given = |name| match Field::read(headers, &name) {
        Field::Absent => CredentialHeader::Nothing,
        Field::Once(value) => CredentialHeader::Once(value),
        Field::Unreadable => CredentialHeader::Unreadable,
    };
    let api_key = given(HeaderName::from_static("x-api-key"));
    RequestCredentials { authorization: given(AUTHORIZATION), api_key, subject }
}

/// Returns the client address of a request: the peer of its connection, or, behind trusted proxies,
/// the last address in `X-Forwarded-For` that is not a trusted proxy. A hop that cannot be read as
/// an address ends the search at the trusted proxy behind it, as nothing before that hop can be
/// trusted.
pub(crate) fn client_address(
    peer: IpAddr,
    headers: &HeaderMap,
    trusted: &TrustedProxies,
) -> IpAddr {
    if !trusted.contains(peer) {
        return peer;
    }
    // From the last hop to the first. As bytes: a value that is not text has hops, too.
    let values = headers.get_all("x-forwarded-for").iter().rev();
    let hops = values.flat_map(|value| value.as_bytes().rsplit(|&byte| byte == b','));
    // An empty element of a list does not count (RFC 9110, section 5.6.1.2).
    let hops = hops.filter(|hop| !hop.trim_ascii().is_empty());
    let mut client = peer;
    for hop in hops {
        let Some(address) = hop_address(hop) else {
            return client;
        };
        client = address;
        if !trusted.contains(address) {
            return client;
        }
    }
    client
}

/// Reads one hop of `X-Forwarded-For`: an address, or, as some load balancers write it,
/// `address:port`, `[v6]` or `[v6]:port`.
fn hop_address(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop).ok()?.trim();
    let bracketed = || hop.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let address = hop.parse::<IpAddr>().ok();
    let address = address.or_else(|| hop.parse().ok().map(|with_port: SocketAddr| with_port.ip()));
    let address = address.or_else(|| bracketed().map(IpAddr::V6));
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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
    fn w3_only_json_without_a_content_coding_is_accepted() {
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
    fn accept_is_read_by_specificity_and_weight() {
        for (values, expected) in [
            (&[][..], Some(Accepts::Both)),
            (&[""], Some(Accepts::Both)),
            (&["*/*"], Some(Accepts::Both)),
            (&["text/event-stream, application/json;q=0.9"], Some(Accepts::Both)),
            (&["application/json", "text/event-stream"], Some(Accepts::Both)),
            (&["Application/JSON; charset=utf-8"], Some(Accepts::JsonOnly)),
            (&["application/*"], Some(Accepts::JsonOnly)),
            (&["text/event-stream"], Some(Accepts::StreamOnly)),
            (&["text/html"], None),
            // A weight of 0 refuses, in each of its forms.
            (&["application/json, text/event-stream;q=0"], Some(Accepts::JsonOnly)),
            (&["application/json, text/event-stream ; Q=0.000"], Some(Accepts::JsonOnly)),
            (&["application/json;q=0.0, text/event-stream"], Some(Accepts::StreamOnly)),
            (&["application/json;q=0"], None),
            (&["*/*;q=0"], None),
            (&["application/json;q=0.001"], Some(Accepts::JsonOnly)),
            // The most specific range decides, in any order.
            (&["*/*, text/event-stream;q=0"], Some(Accepts::JsonOnly)),
            (&["text/event-stream;q=0", "*/*"], Some(Accepts::JsonOnly)),
            (&["*/*;q=0, application/json"], Some(Accepts::JsonOnly)),
            (&["application/*;q=0, */*"], Some(Accepts::StreamOnly)),
            (&["application/*;q=0, application/json, */*;q=0.1"], Some(Accepts::Both)),
            // A range that is given twice is accepted if it is accepted once.
            (&["application/json;q=0, application/json"], Some(Accepts::JsonOnly)),
            (&["application/json;q=x"], Some(Accepts::JsonOnly)),
        ] {
            let accepts = read_accept(&with(ACCEPT, values));
            assert_eq!(accepts, expected.ok_or(NOT_ACCEPTABLE), "{values:?}");
        }
    }

    fn proxies(texts: &[&str]) -> TrustedProxies {
        let mut proxies = TrustedProxies::default();
        assert!(texts.iter().all(|text| proxies.add(text)));
        proxies
    }

    #[test]
    fn a13_a_forwarded_address_counts_only_behind_trusted_proxies() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let forwarded =
            with(HeaderName::from_static("x-forwarded-for"), &["6.6.6.6, 1.2.3.4", "10.0.0.2"]);
        let client = |peer: &str, trusted: &[&str]| {
            client_address(ip(peer), &forwarded, &proxies(trusted)).to_string()
        };
        assert_eq!(client("10.0.0.1", &[]), "10.0.0.1", "no proxy is trusted");
        assert_eq!(client("10.0.0.1", &["10.0.0.2"]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &["10.0.0.1"]), "10.0.0.2");
        assert_eq!(client("10.0.0.1", &["10.0.0.1", "10.0.0.2"]), "1.2.3.4");
        assert_eq!(client("10.0.0.1", &["10.0.0.0/30"]), "1.2.3.4");
        assert_eq!(client("10.0.0.1", &["10.0.1.0/24"]), "10.0.0.1");
        let odd = with(HeaderName::from_static("x-forwarded-for"), &["1.2.3.4, unknown"]);
        assert_eq!(client_address(ip("10.0.0.1"), &odd, &proxies(&["10.0.0.1"])), ip("10.0.0.1"));
    }

    #[test]
    fn f8_forwarded_hops_are_read_from_the_right_to_the_first_that_is_untrusted_or_unreadable() {
        let proxy: IpAddr = [10, 0, 0, 1].into();
        let client = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-forwarded-for", HeaderValue::from_bytes(value).unwrap());
            }
            client_address(proxy, &headers, &proxies(&["10.0.0.1"])).to_string()
        };
        // The proxy appends to the last line, or joins the lines: the stranger's own bytes are a
        // hop.
        assert_eq!(client(&[b"5.5.5.5", b"\xff, 6.6.6.6"]), "6.6.6.6");
        assert_eq!(client(&[b"5.5.5.5, \xff, 6.6.6.6"]), "6.6.6.6");
        assert_eq!(client(&[b"6.6.6.6", b"\xff"]), "10.0.0.1", "an unreadable hop ends the search");
        assert_eq!(client(&[b"5.5.5.5", b"\xff, 10.0.0.1"]), "10.0.0.1");
        for empty in [&b"6.6.6.6, "[..], b"6.6.6.6,,\t, 10.0.0.1", b" , 6.6.6.6 ,"] {
            assert_eq!(client(&[b"5.5.5.5", empty]), "6.6.6.6", "an empty element is no hop");
        }
        assert_eq!(client(&[b"6.6.6.6", b""]), "6.6.6.6");
        assert_eq!(client(&[b" , "]), "10.0.0.1");
        for (hop, expected) in [
            ("6.6.6.6:1234", "6.6.6.6"),
            ("[2001:db8::6]:1234", "2001:db8::6"),
            ("[2001:db8::6]", "2001:db8::6"),
            ("2001:db8::6", "2001:db8::6"),
            ("::ffff:6.6.6.6", "6.6.6.6"),
            ("[::ffff:6.6.6.6]:1", "6.6.6.6"),
            ("[6.6.6.6]", "10.0.0.1"),
            ("6.6.6.6:", "10.0.0.1"),
            ("6.6.6.6:65536", "10.0.0.1"),
            ("unknown", "10.0.0.1"),
            ("_hidden", "10.0.0.1"),
            ("06.6.6.6", "10.0.0.1"),
        ] {
            assert_eq!(client(&[b"5.5.5.5", hop.as_bytes()]), expected, "{hop}");
            assert_eq!(client(&[format!("5.5.5.5,{hop} , 10.0.0.1:80").as_bytes()]), expected);
        }
    }

    #[test]
    fn w8_a_repeated_header_is_unreadable() {
        let name = || HeaderName::from_static("mcp-method");
        assert_eq!(Field::read(&with(name(), &[" a\t"]), name()), Field::Once("a"));
        assert_eq!(Field::read(&with(name(), &["a", "a"]), name()), Field::Unreadable);
        assert_eq!(Field::read(&with(name(), &[]), name()), Field::Absent);
        assert_eq!(read_headers(&with(name(), &[" a\t"])).method, Field::Once("a"));
        assert_eq!(read_headers(&with(name(), &["a", "a"])).method, Field::Unreadable);
        assert_eq!(read_headers(&with(name(), &["a", "a", "a"])).method, Field::Unreadable);
        assert_eq!(read_headers(&with(name(), &[])).method, Field::Absent);
    }
}
