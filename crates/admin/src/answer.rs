//! Answers of the admin side, with the headers that protect the browser that shows them.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, LOCATION,
    REFERRER_POLICY, RETRY_AFTER, SET_COOKIE, VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;

use super::console::asset::Asset;
use super::sign_in::SetCookie;
use base::seal;
use front::downstream::Body;

/// An answer before it is sent.
#[derive(Debug)]
pub(super) struct AdminAnswer {
    pub status: StatusCode,
    pub content: Vec<u8>,
    pub media_type: &'static str,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    caching: Caching,
}

/// Why a request of the API failed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Error"))]
pub(super) struct ErrorDocument {
    /// The mistake, and how to correct it.
    pub error: String,
    /// The change of a lock file that the gateway cannot write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
}

/// The caching that an answer permits to browsers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Caching {
    /// Nothing.
    None,
    /// The answer, which the browser revalidates by its entity tag.
    Revalidated,
    /// The answer, for good: other content has another URL.
    Immutable,
}

/// Scripts, styles and connections of this origin alone; images and sounds of a result come as
/// `data:` URLs. No page can be framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; media-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Pages that may load an answer (Fetch standard): only those of the console.
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

/// Content of this size and more is compressed.
const COMPRESSED_FROM: usize = 1024;

impl ErrorDocument {
    pub(super) fn new(error: impl Into<String>) -> Self {
        Self { error: error.into(), patch: None }
    }
}

impl AdminAnswer {
    fn new(status: StatusCode, content: impl Into<Vec<u8>>, media_type: &'static str) -> Self {
        let content = content.into();
        Self { status, content, media_type, headers: Vec::new(), caching: Caching::None }
    }

    pub(super) fn json(status: StatusCode, document: &impl Serialize) -> Self {
        let content = serde_json::to_vec(document).unwrap_or_default();
        Self::new(status, content, "application/json")
    }

    /// An error of the API.
    pub(super) fn error(status: StatusCode, message: &str) -> Self {
        Self::json(status, &ErrorDocument::new(message))
    }

    /// The answer to a method that the path does not support, with the supported ones (RFC 9110,
    /// section 15.5.6).
    pub(super) fn not_allowed(allowed: &str) -> Self {
        let message = format!("this path takes {allowed} only");
        Self::error(StatusCode::METHOD_NOT_ALLOWED, &message).with(ALLOW, allowed)
    }

    /// Metrics in the Prometheus text format.
    pub(super) fn metrics(text: String) -> Self {
        Self::new(StatusCode::OK, text, "text/plain; version=0.0.4; charset=utf-8")
    }

    pub(super) fn html(status: StatusCode, page: String) -> Self {
        let answer = Self::new(status, page, "text/html; charset=utf-8");
        Self { caching: Caching::Revalidated, ..answer }
    }

    /// JSON that the browser revalidates by its entity tag.
    pub(super) fn document(content: Vec<u8>) -> Self {
        let answer = Self::new(StatusCode::OK, content, "application/json");
        Self { caching: Caching::Revalidated, ..answer }
    }

    /// A table for spreadsheets (RFC 4180).
    pub(super) fn csv(text: String, file: &'static str) -> Self {
        let answer = Self::new(StatusCode::OK, text, "text/csv; charset=utf-8");
        answer.with(CONTENT_DISPOSITION, &format!("attachment; filename=\"{file}\""))
    }

    pub(super) fn asset(asset: &'static Asset) -> Self {
        let answer = Self::new(StatusCode::OK, asset.content, asset.media_type);
        Self { caching: Caching::Immutable, ..answer }
    }

    /// Leads to another page, which is read with GET (RFC 9110, section 15.4.4).
    pub(super) fn redirect(to: HeaderValue) -> Self {
        Self::new(StatusCode::SEE_OTHER, "", "text/plain").with_header(LOCATION, to)
    }

    /// Leads to a path of the console; to the overview if the text cannot be one.
    pub(super) fn moved(to: &str) -> Self {
        Self::redirect(HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/")))
    }

    /// Adds a header; a value that cannot be one is left out.
    pub(super) fn with(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
        self
    }

    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(super) fn with_cookie(mut self, cookie: SetCookie) -> Self {
        self.headers.push((SET_COOKIE, cookie.into()));
        self
    }

    pub(super) fn retry_after(self, seconds: u64) -> Self {
        self.with(RETRY_AFTER, &seconds.to_string())
    }

    /// Completes the answer to a request with these headers.
    pub(super) fn into_response(mut self, request: &HeaderMap) -> Response<Body> {
        let tag = self.entity_tag();
        let is_known = tag.as_ref().is_some_and(|tag| is_listed(request, tag));
        if is_known {
            self.status = StatusCode::NOT_MODIFIED;
            self.content.clear();
        }
        let is_compressed = self.content.len() >= COMPRESSED_FROM && accepts_gzip(request);
        if is_compressed {
            self.content = compressed(&self.content);
        }
        let mut response = Response::new(Body::Complete(Bytes::from(self.content).into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(self.caching.control()));
        headers.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding, Cookie"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
        headers.insert(CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        if is_compressed {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if self.status == StatusCode::UNAUTHORIZED && self.media_type == "application/json" {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(tag) = tag.and_then(|tag| HeaderValue::from_str(&tag).ok()) {
            headers.insert(ETAG, tag);
        }
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }

    fn entity_tag(&self) -> Option<String> {
        let is_tagged = self.status == StatusCode::OK
            && self.caching != Caching::None
            && !self.headers.iter().any(|(name, _)| name == ETAG);
        // Compression changes the bytes but not the content, so the tag is a weak one.
        is_tagged.then(|| format!("W/\"{}\"", &seal::sha256_text(&self.content)[7..39]))
    }
}

impl Caching {
    fn control(self) -> &'static str {
        match self {
            Self::None => "no-store",
            Self::Revalidated => "private, no-cache",
            Self::Immutable => "public, max-age=31536000, immutable",
        }
    }
}

/// Whether the browser has the content of the tag (RFC 9110, section 13.1.2).
fn is_listed(request: &HeaderMap, tag: &str) -> bool {
    let listed = request.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    listed.flat_map(|value| value.split(',')).any(|known| opaque(known) == opaque(tag))
}

fn accepts_gzip(request: &HeaderMap) -> bool {
    let accepted = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let weight = weight.trim().strip_prefix("q=").map(str::parse::<f32>);
        name.trim().eq_ignore_ascii_case("gzip") && !matches!(weight, Some(Ok(0.0)))
    })
}

fn compressed(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(content.len() / 4), Compression::fast());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(content);
    encoder.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn every_answer_forbids_frames_foreign_scripts_and_guessed_types() {
        for answer in [
            AdminAnswer::error(StatusCode::NOT_FOUND, "x"),
            AdminAnswer::html(StatusCode::OK, "<p>".to_owned()),
            AdminAnswer::moved("/"),
        ] {
            let response = answer.into_response(&HeaderMap::new());
            let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
            assert!(policy.starts_with("default-src 'none'"));
            assert_eq!(response.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(response.headers()[CROSS_ORIGIN_RESOURCE_POLICY], "same-origin");
        }
    }

    #[test]
    fn a_page_that_is_known_is_not_sent_again() {
        let page = || AdminAnswer::html(StatusCode::OK, "<p>".repeat(1000));
        let first = page().into_response(&request(ACCEPT_ENCODING, "br, gzip;q=0.5"));
        assert_eq!(first.headers()[CONTENT_ENCODING], "gzip");
        let tag = first.headers()[ETAG].clone();
        let known = HeaderMap::from_iter([(IF_NONE_MATCH, tag)]);
        assert_eq!(page().into_response(&known).status(), StatusCode::NOT_MODIFIED);
        let other = AdminAnswer::html(StatusCode::OK, "<b>".repeat(1000)).into_response(&known);
        assert_eq!(other.status(), StatusCode::OK);
        assert!(!accepts_gzip(&request(ACCEPT_ENCODING, "gzip;q=0")));
        let error = AdminAnswer::error(StatusCode::NOT_FOUND, "x").into_response(&HeaderMap::new());
        assert!(error.headers().get(ETAG).is_none());
        let refused = AdminAnswer::not_allowed("GET, HEAD").into_response(&HeaderMap::new());
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(refused.headers()[ALLOW], "GET, HEAD");
        assert_eq!(error.headers()[CACHE_CONTROL], "no-store");
    }
}
