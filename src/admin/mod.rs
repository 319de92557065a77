//! What the operator sees: whether the gateway lives, whether it is ready, and how its upstreams
//! are. Read only.

mod reloads;
mod state;

use std::sync::Arc;

use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use crate::config::{self, Config, Limits};
use crate::downstream::{Body, OriginGuard, Peer, Serve, TlsServer};
pub(crate) use reloads::Reloads;
pub(crate) use state::State;

/// Connections of those who watch: few, and the same ones again and again.
const CONNECTIONS: usize = 64;

/// The admin side over HTTP.
pub(crate) struct Admin {
    guard: OriginGuard,
    /// SHA-256 of the token; absent: none is needed.
    token: Option<[u8; 32]>,
    state: State,
    limits: Limits,
}

impl Admin {
    pub(crate) fn new(admin: &config::Admin, config: &Config, state: State) -> Self {
        let guard = OriginGuard::at(admin.listen.ip(), &config.server.allowed_hosts);
        let limits = Limits { connections: CONNECTIONS, ..config.server.limits.clone() };
        Self { guard, token: admin.token, state, limits }
    }

    /// The answer to a request whose head is this.
    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> (StatusCode, Page) {
        let refused = |status: StatusCode, why: &str| (status, Page::Json(json!({"error": why})));
        let page: fn(&State) -> (StatusCode, Page) = match path {
            "/livez" => |_| (StatusCode::OK, Page::Json(json!({"status": "ok"}))),
            "/readyz" => |state| {
                let (status, why) = state.readiness();
                (status, Page::Json(why))
            },
            "/metrics" => |state| (StatusCode::OK, Page::Metrics(state.telemetry.prometheus())),
            "/api/v1/status" => |state| (StatusCode::OK, Page::Json(state.status())),
            "/api/v1/upstreams" => |state| (StatusCode::OK, Page::Json(state.upstreams())),
            "/api/v1/catalog" => |state| (StatusCode::OK, Page::Json(state.catalog())),
            _ => return refused(StatusCode::NOT_FOUND, PAGES),
        };
        // Whoever keeps the process alive has no token, and learns nothing but that.
        let is_probe = matches!(path, "/livez" | "/readyz");
        if !is_probe && !self.knows(headers) {
            return refused(StatusCode::UNAUTHORIZED, "send Authorization: Bearer and admin.token");
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            return refused(
                StatusCode::METHOD_NOT_ALLOWED,
                "nothing can be changed here: GET only",
            );
        }
        page(&self.state)
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let shown = shown.and_then(|value| value.strip_prefix("Bearer "));
        shown.is_some_and(|shown| crate::seal::sha256(shown.as_bytes()).ct_eq(token).into())
    }
}

/// What is shown.
enum Page {
    Json(Value),
    /// As Prometheus reads them.
    Metrics(String),
}

const PAGES: &str =
    "there are /livez, /readyz, /metrics, /api/v1/status, /api/v1/upstreams and /api/v1/catalog";

impl Serve for Admin {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn secure(&self) -> Option<&Arc<TlsServer>> {
        None
    }

    async fn serve(&self, request: Request<Incoming>, _: &Peer) -> Response<Body> {
        let is_known = self.guard.check_host(request.uri(), request.headers()).is_ok()
            && self.guard.check_origin(request.headers()).is_ok();
        let (status, page) = match is_known {
            true => self.answer(request.method(), request.uri().path(), request.headers()),
            false => {
                let why = "Host or Origin is not one of the admin side's";
                (StatusCode::FORBIDDEN, Page::Json(json!({"error": why})))
            }
        };
        let (text, media_type) = match page {
            Page::Json(document) => (document.to_string(), "application/json"),
            Page::Metrics(text) => (text, "text/plain; version=0.0.4; charset=utf-8"),
        };
        let mut response = Response::new(Either::Left(Full::from(text)));
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
