//! The admin API: liveness, readiness, metrics, and the state of the gateway and its upstreams.
//! Read-only.

mod reloads;
mod state;

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Either;
use hyper::body::Incoming;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use crate::config::{self, Config, Limits};
use crate::domain::chunks::Chunks;
use crate::downstream::{Body, OriginGuard, Peer, Serve, TlsServer};
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
    state: State,
    limits: Limits,
}

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
        Self { guard, token: admin.token, state, limits }
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
            "/api/v1/catalog" => |state| (StatusCode::OK, Content::Json(state.catalog())),
            _ => return error(StatusCode::NOT_FOUND, NOT_FOUND),
        };
        // Probes of an orchestrator have no token, and learn nothing but liveness and readiness.
        let is_probe = matches!(path, "/livez" | "/readyz");
        if !is_probe && !self.is_authorized(headers) {
            return error(
                StatusCode::UNAUTHORIZED,
                "send the header Authorization: Bearer with the value of admin.token",
            );
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            return error(StatusCode::METHOD_NOT_ALLOWED, "the admin API is read-only; use GET");
        }
        content(&self.state)
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
    /api/v1/upstreams, /api/v1/replicas and /api/v1/catalog";

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
        let (status, content) = if is_allowed {
            self.answer(request.method(), request.uri().path(), request.headers())
        } else {
            error(
                StatusCode::FORBIDDEN,
                "Host or Origin is not allowed for the admin API; see server.allowed_hosts",
            )
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
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
