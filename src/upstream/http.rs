//! Streamable HTTP towards an upstream: one POST, one answer, as JSON or as the event of a stream.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use super::egress::Egress;
use super::sse;
use crate::config;
use crate::domain::document::Document;
use crate::domain::fault::{EXCERPT, UpstreamFaultKind as Kind, excerpt};
use crate::domain::json::{Json, Kind as JsonKind};
use crate::domain::jsonrpc::{Frame, Id, Outcome};
use crate::domain::name::is_hidden;

/// An endpoint that messages are posted to.
pub struct Endpoint {
    egress: Egress,
    url: Uri,
    /// The operator's headers, the credential among them.
    headers: HeaderMap,
    /// Bytes of one message.
    max_message: usize,
}

/// What an answer brought beside its result.
pub struct Answer {
    pub result: Document,
    pub headers: HeaderMap,
}

pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Redirects followed, within the same origin only: enough for a server that adds a slash.
const REDIRECTS: usize = 2;

/// A stream may carry this many times the largest message: notices before the answer are fine,
/// endless comments are not.
const STREAM_FACTOR: usize = 4;

/// Depth of what upstreams send. Definitions and results are shallow; `_meta` is theirs to nest.
const DEPTH: usize = 64;

impl Endpoint {
    pub fn new(http: &config::Http, settings: &config::Settings) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        for (name, secret) in &http.headers {
            let mut value = HeaderValue::from_str(secret.expose()).map_err(|e| e.to_string())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(Self {
            egress: Egress::new(settings.connect, http.ca.as_deref())?,
            url: http.url.clone(),
            headers,
            max_message: settings.max_message,
        })
    }

    /// Posts a request and waits for the answer to `id`.
    pub async fn request(&self, id: &Id, headers: HeaderMap, body: String) -> Result<Answer, Kind> {
        let has_session = headers.contains_key(SESSION_ID);
        let response = self.send(Method::POST, headers, Bytes::from(body)).await?;
        let (head, body) = response.into_parts();
        if head.headers.get(CONTENT_ENCODING).is_some_and(|e| e != "identity") {
            return Err(Kind::Protocol("the answer is compressed, which was not asked for".into()));
        }
        let result = match (head.status, media_type(&head.headers)) {
            (StatusCode::ACCEPTED | StatusCode::NO_CONTENT, _) => {
                Err(Kind::Protocol(format!("HTTP {} to a request", head.status.as_u16())))
            }
            (status, Some("text/event-stream")) if status.is_success() => {
                self.read_stream(id, body).await
            }
            (status, Some("application/json")) if status.is_success() => {
                read_answer(id, self.read_body(body).await?)
                    .ok_or_else(|| Kind::Protocol("the answer is to another request".into()))?
            }
            (status, _) if status.is_success() => {
                Err(Kind::Protocol("the answer is neither JSON nor an event stream".into()))
            }
            (StatusCode::NOT_FOUND, _) if has_session => Err(Kind::SessionLost),
            (status, media) => {
                let refusal = refusal(status, &head.headers);
                // A JSON-RPC error says more than a 4xx; what a 5xx says is not about us.
                match media {
                    Some("application/json")
                        if status.is_client_error() && matches!(refusal, Kind::Status { .. }) =>
                    {
                        let body = self.read_body(body).await.ok();
                        Err(body.and_then(|body| read_refusal(id, body)).unwrap_or(refusal))
                    }
                    _ => Err(refusal),
                }
            }
        };
        Ok(Answer { result: result?, headers: head.headers })
    }

    /// Posts a notification or a response; there is nothing to wait for but its acceptance.
    pub async fn notify(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        self.send(Method::POST, headers, Bytes::from(body)).await.map(drop)
    }

    /// Ends a session.
    pub async fn delete(&self, headers: HeaderMap) -> Result<(), Kind> {
        self.send(Method::DELETE, headers, Bytes::new()).await.map(drop)
    }

    async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Kind> {
        let mut url = self.url.clone();
        for _ in 0..=REDIRECTS {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = url.clone();
            let all = request.headers_mut();
            all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let accept = HeaderValue::from_static("application/json, text/event-stream");
            all.insert(ACCEPT, accept);
            all.extend(self.headers.clone());
            all.extend(headers.clone());
            let response = self.egress.send(request).await?;
            match same_origin_redirect(&url, &response) {
                Some(next) => url = next,
                None => return Ok(response),
            }
        }
        Err(Kind::Protocol("redirects without end".into()))
    }

    async fn read_body(&self, mut body: Incoming) -> Result<Document, Kind> {
        let mut bytes = Vec::new();
        while let Some(piece) = next_piece(&mut body).await? {
            if bytes.len() + piece.len() > self.max_message {
                return Err(Kind::TooLarge { limit: self.max_message });
            }
            bytes.extend_from_slice(&piece);
        }
        document(bytes)
    }

    /// Reads events until one answers `id`; notices and answers to others pass by.
    async fn read_stream(&self, id: &Id, mut body: Incoming) -> Result<Document, Kind> {
        let mut decoder = sse::Decoder::new(self.max_message);
        let mut events = Vec::new();
        let mut budget = self.max_message.saturating_mul(STREAM_FACTOR);
        while let Some(piece) = next_piece(&mut body).await? {
            let too_large = Kind::TooLarge { limit: self.max_message };
            budget = budget.checked_sub(piece.len()).ok_or(too_large.clone())?;
            decoder.feed(&piece, &mut events).map_err(|_| too_large)?;
            for event in events.drain(..).filter(|e| e.name == "message") {
                let message = document(event.data)?;
                // What is not for us may be as odd as it likes.
                let odd = Frame::read(message.json()).is_err()
                    && message.json().get("id").and_then(Id::read).as_ref() != Some(id);
                if let Some(answer) = read_answer(id, message).filter(|_| !odd) {
                    return answer;
                }
            }
        }
        Err(Kind::Reset)
    }
}

/// What a message says to the request `id`, if it speaks of it. A legacy upstream may send a
/// batch, in which one element does.
fn read_answer(id: &Id, mut message: Document) -> Option<Result<Document, Kind>> {
    if message.json().kind() == JsonKind::Array {
        let is_ours = |m: &Json<'_>| {
            m.get("method").is_none() && m.get("id").and_then(Id::read).as_ref() == Some(id)
        };
        message.narrow(|batch| batch.elements().find(is_ours))?;
    }
    match Frame::read(message.json()) {
        Err(error) => Some(Err(Kind::Protocol(error.to_string()))),
        Ok(Frame::Response { id: Some(answered), outcome }) if answered == *id => match outcome {
            Outcome::Result(result) if result.is_object() => {
                Some(message.narrow(|m| m.get("result")).ok_or(Kind::Reset).map(|()| message))
            }
            Outcome::Result(_) => Some(Err(Kind::Protocol("the result is not an object".into()))),
            Outcome::Error { code, message, data } => Some(Err(error(code, message, data))),
        },
        Ok(_) => None,
    }
}

/// The JSON-RPC error in the body of an HTTP error. Its id may be missing or null where the
/// upstream could not tell it.
fn read_refusal(id: &Id, message: Document) -> Option<Kind> {
    match Frame::read(message.json()) {
        Ok(Frame::Response { id: answered, outcome: Outcome::Error { code, message, data } }) => {
            answered.is_none_or(|a| a == *id).then(|| error(code, message, data))
        }
        _ => None,
    }
}

fn error(code: i64, message: Option<Json<'_>>, data: Option<Json<'_>>) -> Kind {
    let message = message.and_then(Json::as_str).unwrap_or_default();
    let data = data.map(|d| d.text().to_owned()).filter(|d| d.len() <= EXCERPT && is_plain(d));
    Kind::Error { code, message: excerpt(&message), data }
}

/// Whether JSON text holds nothing that a reader would not see, escaped or not.
fn is_plain(text: &str) -> bool {
    !text.contains("\\u") && !text.chars().any(is_hidden)
}

fn refusal(status: StatusCode, headers: &HeaderMap) -> Kind {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Kind::AuthFailed { status: status.as_u16() }
        }
        StatusCode::TOO_MANY_REQUESTS => {
            let value = headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok());
            Kind::RateLimited { retry_after_secs: value.and_then(|v| v.trim().parse().ok()) }
        }
        _ => Kind::Status { status: status.as_u16() },
    }
}

fn document(bytes: Vec<u8>) -> Result<Document, Kind> {
    Document::parse(bytes, DEPTH).map_err(|e| Kind::Protocol(e.to_string()))
}

async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, Kind> {
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.map_err(|_| Kind::Reset)?.into_data() {
            return Ok(Some(piece));
        }
    }
    Ok(None)
}

/// The media type without parameters, if it is one of the two that MCP uses.
fn media_type(headers: &HeaderMap) -> Option<&'static str> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let essence = value.split(';').next()?.trim();
    let known = ["application/json", "text/event-stream"];
    known.into_iter().find(|known| essence.eq_ignore_ascii_case(known))
}

/// Where a 307 or 308 leads, if that is the same origin: the credential goes nowhere else.
fn same_origin_redirect(url: &Uri, response: &Response<Incoming>) -> Option<Uri> {
    let status = response.status();
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return None;
    }
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let target: Uri = location.parse().ok()?;
    let same = match (target.scheme(), target.authority()) {
        (None, None) => location.starts_with('/'),
        (scheme, authority) => scheme == url.scheme() && authority == url.authority(),
    };
    let mut parts = url.clone().into_parts();
    parts.path_and_query = target.into_parts().path_and_query;
    Uri::from_parts(parts).ok().filter(|_| same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Option<Result<String, Kind>> {
        let message = document(text.as_bytes().to_vec()).unwrap();
        let answer = read_answer(&Id::number(1), message);
        answer.map(|a| a.map(|d| d.json().text().to_owned()))
    }

    #[test]
    fn u6_answers_that_break_json_rpc_are_told() {
        let ok = r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#;
        assert_eq!(answer(ok), Some(Ok(r#"{"a":1}"#.to_owned())));
        for broken in [
            "7",
            r#"{"jsonrpc":"1.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":[]}"#,
        ] {
            assert!(matches!(answer(broken), Some(Err(Kind::Protocol(_)))), "{broken}");
        }
    }

    #[test]
    fn u7_messages_to_nobody_pass_by() {
        for other in [
            r#"{"jsonrpc":"2.0","id":"1","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":2,"result":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#,
            r#"[{"jsonrpc":"2.0","id":2,"result":{}}]"#,
        ] {
            assert_eq!(answer(other), None, "{other}");
        }
        let batch = r#"[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"result":{}}]"#;
        assert_eq!(answer(batch), Some(Ok("{}".to_owned())));
    }

    #[test]
    fn an_error_is_cut_and_cleaned() {
        let long = "x".repeat(1000);
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32602,"message":"a\u001b{long}","data":"{long}"}}}}"#
        );
        let Some(Err(Kind::Error { code: -32602, message, data: None })) = answer(&text) else {
            panic!()
        };
        assert!(message.starts_with("a x") && message.len() <= EXCERPT);
    }
}
