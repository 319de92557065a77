//! Requests of commands to the admin API of a running gateway.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, IF_MATCH};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use serde_json::Value;

use super::failure::Failure;
use config::{Proxies, is_https_or_loopback};
use domain::address_policy::AddressPolicy;
use net::egress::{CONNECT, Egress, FetchError};

/// Environment variable with the admin token. It is no argument, because every user of the machine
/// can read the arguments of a process.
const TOKEN_VARIABLE: &str = "PROMPTGATE_ADMIN_TOKEN";

/// Returns one document of the admin API.
pub(crate) async fn fetch_once(url: &str, path: &str) -> Result<Value, Failure> {
    fetch(&egress()?, url, path).await
}

/// Posts a JSON document to the admin API, and returns the answer.
pub(crate) async fn send_once(url: &str, path: &str, body: &Value) -> Result<Value, Failure> {
    request_once(&egress()?, url, path, post(path, body)).await
}

/// Sends a JSON document with `If-Match: tag`, and returns the answer.
pub(crate) async fn request_if_match(
    method: Method,
    url: &str,
    path: &str,
    tag: &str,
    body: &Value,
) -> Result<Value, Failure> {
    let mut request = post(path, body);
    *request.method_mut() = method;
    request.headers_mut().insert(IF_MATCH, tag_header(tag)?);
    request_once(&egress()?, url, path, request).await
}

fn tag_header(tag: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(tag).map_err(|_| Failure::new("the gateway has sent a tag that is none"))
}

fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let mut request = Request::post(path).body(Full::from(body.to_string())).unwrap_or_default();
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    request
}

/// Whether the environment has the admin token.
pub(crate) fn has_token() -> bool {
    std::env::var_os(TOKEN_VARIABLE).is_some_and(|token| !token.is_empty())
}

/// Returns a client for the admin API, with the proxies of the environment.
pub(crate) fn egress() -> Result<Egress, Failure> {
    let proxies = Proxies::of_environment();
    let egress = Egress::new(CONNECT, None, AddressPolicy::NotLinkLocal, Some(&proxies));
    egress.map_err(Failure::new)
}

/// Largest document of the admin API, in bytes. A skill has up to 16 MiB of files, the document has
/// offered and approved files, and a byte takes up to six in JSON.
const MAX_DOCUMENT: usize = 256 << 20;

/// Longest wait for an answer: decisions on hundreds of prompts write a file for each.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn fetch(egress: &Egress, url: &str, path: &str) -> Result<Value, Failure> {
    request_once(egress, url, path, Request::new(Full::default())).await
}

async fn request_once(
    egress: &Egress,
    url: &str,
    path: &str,
    mut request: Request<Full<Bytes>>,
) -> Result<Value, Failure> {
    let full = format!("{url}{path}");
    let uri: Uri = full.parse().map_err(|_| Failure::usage(format!("{url} is not a URL")))?;
    if let Ok(token) = std::env::var(TOKEN_VARIABLE) {
        if !is_https_or_loopback(&uri) {
            return Err(Failure::usage(format!(
                "{TOKEN_VARIABLE} is not sent to {url}, because the connection is not encrypted: \
                 use https, or a tunnel to loopback"
            )));
        }
        let invalid =
            format!("{TOKEN_VARIABLE} contains characters that an HTTP header must not contain");
        let value = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
        let value = value.map_err(|_| Failure::usage(invalid))?;
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    *request.uri_mut() = uri;
    egress.json_within(request, MAX_DOCUMENT, PATIENCE).await.map_err(|error| {
        let hint = match &error {
            // An admin API gives the reason in `error`; this server gives none.
            FetchError::Status { status, error: None, .. } if status.is_client_error() => {
                "; this is no admin API, perhaps the port of clients. Use the port of admin.listen, such as \
                 --url http://127.0.0.1:9877"
                    .to_owned()
            }
            // A visitor without a token may have too low a role.
            FetchError::Status { status, error: Some(why), .. }
                if status.as_u16() == 401 || (why.contains("admin.token") && !has_token()) =>
            {
                format!("; set {TOKEN_VARIABLE} to the value of admin.token")
            }
            FetchError::Status { .. } | FetchError::NotJson => String::new(),
            FetchError::Broken(_) | FetchError::Timeout => {
                "; check that `promptgate serve` runs with this admin.listen".to_owned()
            }
        };
        Failure::new(format!("{full}: {error}{hint}"))
    })
}
