//! The admin API: liveness, readiness, metrics, and the state of the gateway and its upstreams.
//! Read-only, but for decisions on prompts.

mod pins;
mod reloads;
mod state;

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_MATCH, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tokio::time::timeout;

use crate::config::{self, Config, Limits};
use crate::domain::chunks::Chunks;
use crate::downstream::{Body, OriginGuard, Peer, Serve, TlsServer};
use crate::router::approvals::Action;
use pins::entity_tag;
pub(crate) use reloads::Reloads;
pub(crate) use state::State;

/// The limits of the admin API are its own, so that probes are answered whatever the clients of the endpoint do.
/// Probes and scrapers are few, send small requests, and reconnect or reuse their connections at once: a
/// connection without a request is closed soon, and the longest idle one at once when a new one needs its place.
/// This is the maximum number of connections.
const MAX_CONNECTIONS: usize = 64;

/// Idle time between two requests on a connection; see [`MAX_CONNECTIONS`].
const IDLE: Duration = Duration::from_secs(5);

/// Time for the first byte, and for the head of a request.
const HEAD: Duration = Duration::from_secs(2);

/// The admin API over HTTP.
pub(crate) struct Admin {
    guard: OriginGuard,
    /// The SHA-256 hash of `admin.token`; `None` if no token is required.
    token: Option<[u8; 32]>,
    /// Whether decisions are taken.
    write: bool,
    state: State,
    limits: Limits,
}

/// The paths of decisions.
const DECISIONS: [(&str, Action); 3] = [
    ("/api/v1/pins/approve", Action::Approve),
    ("/api/v1/pins/reject", Action::Reject),
    ("/api/v1/pins/rollback", Action::RollBack { to: None }),
];

impl Admin {
    pub(crate) fn new(admin: &config::Admin, config: &Config, state: State) -> Self {
        let guard = OriginGuard::at(admin.listen.ip(), &config.server.allowed_hosts);
        let limits = Limits {
            connections: MAX_CONNECTIONS,
            first_byte: HEAD,
            head: HEAD,
            idle: IDLE,
            ..config.server.limits.clone()
        };
        Self { guard, token: admin.token, write: admin.write, state, limits }
    }

    /// Returns the answer to a request.
    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> (StatusCode, Content) {
        let content: fn(&State) -> (StatusCode, Content) = match path {
            "/livez" => |_| (StatusCode::OK, Content::Json(json!({"status": "ok"}))),
            "/readyz" => |state| {
                let (status, why) = state.readiness();
                (status, Content::Json(why))
            },
            "/metrics" => |state| (StatusCode::OK, Content::Metrics(state.telemetry.prometheus())),
            "/api/v1/status" => |state| (StatusCode::OK, Content::Json(state.status())),
            "/api/v1/upstreams" => |state| (StatusCode::OK, Content::Json(state.upstreams())),
            "/api/v1/replicas" => |state| (StatusCode::OK, Content::Json(state.replicas())),
            "/api/v1/pins" => |state| (StatusCode::OK, Content::Json(state.pins())),
            "/api/v1/catalog" => |state| (StatusCode::OK, Content::Json(state.catalog())),
            _ => return error(StatusCode::NOT_FOUND, NOT_FOUND),
        };
        // Probes of an orchestrator have no token, and learn nothing but liveness and readiness.
        let is_probe = matches!(path, "/livez" | "/readyz");
        if !is_probe && !self.is_authorized(headers) {
            return error(StatusCode::UNAUTHORIZED, UNAUTHORIZED);
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            return error(StatusCode::METHOD_NOT_ALLOWED, "this path is read-only; use GET");
        }
        content(&self.state)
    }

    /// Takes a decision on prompts.
    async fn decide(&self, action: Action, request: Request<Incoming>) -> (StatusCode, Content) {
        let (head, body) = request.into_parts();
        if !self.is_authorized(&head.headers) {
            return error(StatusCode::UNAUTHORIZED, UNAUTHORIZED);
        }
        if head.method != Method::POST {
            return error(StatusCode::METHOD_NOT_ALLOWED, "decisions are sent by POST");
        }
        if !self.write {
            let why =
                "the admin API is read-only; set admin.write = true, or use `promptgate pins`";
            return error(StatusCode::FORBIDDEN, why);
        }
        let is_json = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !is_json.is_some_and(|value| value.starts_with("application/json")) {
            return error(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "send Content-Type: application/json",
            );
        }
        let body = Limited::new(body, self.limits.body_size).collect();
        let body = match timeout(self.limits.body, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => {
                return error(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "the body is too large, or was broken off",
                );
            }
            Err(_) => return error(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
        };
        let decision = match serde_json::from_slice(&body) {
            Ok(decision) => decision,
            Err(why) => {
                let what = r#"send {"prompts": ["NAME"], "by": "…", "why": "…"}"#;
                return error(StatusCode::BAD_REQUEST, &format!("{what}: {why}"));
            }
        };
        let if_match = head.headers.get(IF_MATCH).and_then(|value| value.to_str().ok());
        match self.state.decide(action, decision, if_match).await {
            Ok(document) => (StatusCode::OK, Content::Json(document)),
            Err((status, document)) => (status, Content::Json(document)),
        }
    }

    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let sent = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let sent = sent.and_then(|value| value.strip_prefix("Bearer "));
        sent.is_some_and(|sent| crate::seal::sha256(sent.as_bytes()).ct_eq(token).into())
    }
}

/// The content of an answer.
enum Content {
    Json(Value),
    /// Metrics in the Prometheus text format.
    Metrics(String),
}

const NOT_FOUND: &str = "not found; the admin API has /livez, /readyz, /metrics, /api/v1/status, \
    /api/v1/upstreams, /api/v1/replicas, /api/v1/catalog and /api/v1/pins";

const UNAUTHORIZED: &str = "send the header Authorization: Bearer with the value of admin.token";

fn error(status: StatusCode, message: &str) -> (StatusCode, Content) {
    (status, Content::Json(json!({"error": message})))
}

impl Serve for Admin {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn tls(&self) -> Option<&Arc<TlsServer>> {
        None
    }

    async fn serve(&self, request: Request<Incoming>, _: &Peer) -> Response<Body> {
        let is_allowed = self.guard.check_host(request.uri(), request.headers()).is_ok()
            && self.guard.check_origin(request.headers()).is_ok();
        let path = request.uri().path();
        let decision = DECISIONS.iter().find(|(own, _)| *own == path);
        let has_tag = path == "/api/v1/pins";
        let (status, content) = if let Some((_, action)) = decision.filter(|_| is_allowed) {
            self.decide(action.clone(), request).await
        } else if is_allowed {
            self.answer(request.method(), path, request.headers())
        } else {
            error(
                StatusCode::FORBIDDEN,
                "Host or Origin is not allowed for the admin API; see server.allowed_hosts",
            )
        };
        let tag = match &content {
            Content::Json(document) if has_tag && status == StatusCode::OK => {
                HeaderValue::from_str(&entity_tag(document)).ok()
            }
            _ => None,
        };
        let (text, media_type) = match content {
            Content::Json(document) => (document.to_string(), "application/json"),
            Content::Metrics(text) => (text, "text/plain; version=0.0.4; charset=utf-8"),
        };
        let mut response = Response::new(Either::Left(Chunks::from(text).into()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(tag) = tag {
            headers.insert(ETAG, tag);
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
