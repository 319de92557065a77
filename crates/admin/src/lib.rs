//! The admin side: liveness, readiness, metrics, the state of the gateway as JSON, and the console
//! for people. It reads state; only decisions on prompts, removals and rollouts, moves of labels
//! and revocations of accounts change any.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod actions;
mod answer;
mod console;
mod documents;
mod evidence;
mod accounts;
pub mod hosts;
mod pages;
mod readiness;
mod removals;
mod approvals;
mod labels;
mod openapi;
mod reloads;
mod request;
mod rollouts;
mod routes;
mod sign_in;
mod state;
pub mod table;
mod upstream_row;
pub mod usage_columns;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use answer::AdminAnswer;
use base::platform::wall_clock;
use base::seal::Sealer;
use catalog::blocking::run_blocking;
use config::{Config, Limits};
use console::{ConsoleFrame, asset};
use documents::{Liveness, Readiness};
use front::downstream::clock::now;
use front::downstream::{Body, OriginGuard, Peer, RequestGuard, Serve, TlsServer};
use openapi::OPENAPI;
use pages::{AnyPage, PageError, PageResult};
pub use reloads::{Reloads, RequestedReload};
use request::{PageRequest, Params};
use routes::{ConsolePage, FoundRoutes, Handler, Route, RoutePart};
pub use sign_in::ConsolePeople;
use sign_in::{LocalPath, Role, SignIn, Site, Visitor, is_foreign_subresource, is_same_site_post};
pub use state::AdminState;

/// The limits of the admin API are its own, so that probes are answered whatever the clients of the
/// endpoint do. Probes and scrapers are few, send small requests, and reconnect or reuse their
/// connections at once: a connection without a request is closed soon, and the longest idle one at
/// once when a new one needs its place. This is the maximum number of connections.
const MAX_CONNECTIONS: usize = 64;

/// Idle time between two requests on a connection; see [`MAX_CONNECTIONS`].
const IDLE: Duration = Duration::from_secs(5);

/// Time for the first byte, and for the head of a request.
const HEAD: Duration = Duration::from_secs(2);

/// Requests at once on an HTTP/2 connection: a browser that loads a page needs no more.
const H2_STREAMS: usize = 16;

/// Bounds on reading the body of a request.
#[derive(Clone, Copy)]
struct BodyBounds {
    size: usize,
    time: Duration,
}

/// Bounds of a form that anyone may send: a token, and the page to return to.
const LOGIN_FORM: BodyBounds = BodyBounds { size: 16 << 10, time: Duration::from_secs(5) };

/// Pages that are made at once, so that they leave the processor to calls.
const PAGES_AT_ONCE: usize = 4;

/// Prompts that are tried at once. They wait for upstreams, so pages do not wait for them.
const TRIALS_AT_ONCE: usize = 8;

/// The admin API and the console, over HTTP.
pub struct AdminServer {
    guard: OriginGuard,
    config: config::Admin,
    /// The name of the gateway.
    gateway: Arc<str>,
    state: Arc<AdminState>,
    sign_in: SignIn,
    limits: Arc<Limits>,
    permits: Permits,
}

/// Permits for pages and trials that run at once; they outlive a configuration.
#[derive(Clone)]
struct Permits {
    pages: Arc<Semaphore>,
    trials: Arc<Semaphore>,
}

/// Content from this size on, in bytes, is hashed and compressed on a blocking thread: less takes
/// far below a millisecond.
const LARGE: usize = 16 << 10;

impl AdminServer {
    pub fn new(
        admin: &config::Admin,
        config: &Config,
        state: AdminState,
        sealer: Arc<Sealer>,
    ) -> Self {
        let sign_in = SignIn::new(admin, sealer, state.audit.clone());
        let permits = |at_once| Arc::new(Semaphore::new(at_once));
        let permits = Permits { pages: permits(PAGES_AT_ONCE), trials: permits(TRIALS_AT_ONCE) };
        Self::with(admin, config, state, sign_in, permits)
    }

    /// The admin side of another configuration.
    pub fn renew(
        &self,
        admin: &config::Admin,
        config: &Config,
        state: AdminState,
        sealer: Arc<Sealer>,
    ) -> Self {
        let sign_in = self.sign_in.renew(admin, sealer);
        Self::with(admin, config, state, sign_in, self.permits.clone())
    }

    fn with(
        admin: &config::Admin,
        config: &Config,
        state: AdminState,
        sign_in: SignIn,
        permits: Permits,
    ) -> Self {
        let guard = OriginGuard::at(admin.listen.ip(), &config.server.allowed_hosts);
        let limits = Limits {
            connections: MAX_CONNECTIONS,
            first_byte: HEAD,
            head: HEAD,
            idle: IDLE,
            h2_streams: H2_STREAMS,
            ..config.server.limits.clone()
        };
        let gateway = config.server.name.as_str().into();
        Self {
            guard,
            config: admin.clone(),
            gateway,
            state: Arc::new(state),
            sign_in,
            limits: limits.into(),
            permits,
        }
    }

    /// Returns the answer to a request.
    async fn answer(
        &self,
        request: Request<Incoming>,
        address: IpAddr,
        guard: &RequestGuard,
    ) -> AdminAnswer {
        // Visitors without a credential must not take the places of probes.
        guard.yield_place();
        let (head, body) = request.into_parts();
        let site = Site::of(&head.uri, &head.headers);
        // Behind a proxy with TLS the console has another origin than loopback: its own.
        let is_own = || site.as_ref().is_some_and(|site| is_same_site_post(site, &head.headers));
        let is_allowed = self.guard.check_host(&head.uri, &head.headers).is_ok()
            && (self.guard.check_origin(&head.headers).is_ok() || is_own());
        if !is_allowed {
            return AdminAnswer::error(
                StatusCode::FORBIDDEN,
                "Host or Origin is not allowed for the admin API; see server.allowed_hosts",
            );
        }
        if is_foreign_subresource(&head.headers) {
            return AdminAnswer::error(StatusCode::FORBIDDEN, FOREIGN);
        }
        let path = head.uri.path();
        let found = routes::find(path);
        // Probes of an orchestrator have no token, and learn nothing but liveness and readiness.
        if let Some(probe) = found.as_ref().filter(|found| found.part == RoutePart::Probe) {
            return match probe.of(&head.method) {
                Ok(route) => self.probe(&route.handler),
                Err(allowed) => AdminAnswer::not_allowed(&allowed),
            };
        }
        let Some(site) = site else {
            return AdminAnswer::error(StatusCode::BAD_REQUEST, "the request names no host");
        };
        let visitor = self.sign_in.visitor(&site, &head.headers, now());
        if visitor.is_some() {
            guard.keep_place().await;
        }
        if path == "/metrics" || path.starts_with("/api/") {
            return match visitor {
                Some(visitor) => self.api(found, &head, body, &visitor, &site).await,
                None => AdminAnswer::error(StatusCode::UNAUTHORIZED, UNAUTHORIZED),
            };
        }
        if !self.config.console {
            return AdminAnswer::error(StatusCode::NOT_FOUND, NO_CONSOLE);
        }
        if let Some(asset) = asset::at(path) {
            return AdminAnswer::asset(asset);
        }
        let from = ClientOrigin { site, address };
        match (visitor, found) {
            (_, Some(found)) if found.part == RoutePart::Login => {
                self.login(&found, &head, body, &from).await
            }
            (Some(visitor), found) => self.console(found, &head, body, &visitor, &from).await,
            (None, _) => {
                let to = head.uri.path_and_query().map_or("/", |to| to.as_str());
                let query = url::form_urlencoded::Serializer::new(String::new())
                    .append_pair("to", LocalPath::or_root(to).as_str())
                    .finish();
                AdminAnswer::moved(&format!("/login?{query}"))
            }
        }
    }

    fn probe(&self, handler: &Handler) -> AdminAnswer {
        if matches!(handler, Handler::Readyz) {
            let readiness = Readiness::of(self.state.unready_reasons());
            let status =
                if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            return AdminAnswer::json(status, &readiness);
        }
        AdminAnswer::json(StatusCode::OK, &Liveness { status: "ok" })
    }

    /// The admin API.
    async fn api(
        &self,
        found: Option<FoundRoutes>,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
        site: &Site,
    ) -> AdminAnswer {
        if !head.method.is_safe() && visitor.has_cookie() && !is_same_site_post(site, &head.headers)
        {
            return AdminAnswer::error(StatusCode::FORBIDDEN, FOREIGN);
        }
        let Some(found) = found.filter(|found| found.part == RoutePart::Api) else {
            return AdminAnswer::error(StatusCode::NOT_FOUND, NOT_FOUND);
        };
        let route = match found.of(&head.method) {
            Ok(route) => route,
            Err(allowed) => return AdminAnswer::not_allowed(&allowed),
        };
        if let Err(error) = self.check_role(route, visitor) {
            return AdminAnswer::error(error.status, &error.message);
        }
        let name = found.names.first().map_or("", String::as_str);
        let made = match &route.handler {
            Handler::Metrics => return AdminAnswer::metrics(self.state.telemetry.prometheus()),
            Handler::OpenApi => return AdminAnswer::document(OPENAPI.into()),
            Handler::Document(document) => {
                // Some documents have as many rows as there are prompts.
                let (document, state) = (*document, self.state.clone());
                return run_blocking(move || document(&state)).await;
            }
            Handler::Approval => self.examined_over_api(name).await,
            Handler::Decide(action) => self.decide(action.clone(), head, body, visitor).await,
            Handler::MoveLabel => {
                let label = found.names.get(1).map_or("", String::as_str);
                self.move_label([name, label], head, body, visitor).await
            }
            Handler::RemoveLabel => {
                let label = found.names.get(1).map_or("", String::as_str);
                self.remove_label([name, label], head, body, visitor).await
            }
            Handler::Accounts => {
                return AdminAnswer::json(StatusCode::OK, &accounts::all(&self.state).await);
            }
            Handler::Revoke => self.revoke(head, body, visitor).await,
            Handler::AcceptRemoval => self.accept_removal(name, head, body, visitor).await,
            Handler::ChangeRollout => self.change_rollout(name, head, body, visitor).await,
            Handler::Reload => self.reload(head, body, visitor).await,
            Handler::Evidence => self.evidence(head, body).await,
            Handler::Try => self.try_over_api(head, body, visitor, name).await,
            Handler::Complete => self.complete_over_api(head, body, visitor, name).await,
            _ => Err(PageError::not_found("document at this address")),
        };
        made.unwrap_or_else(|error| AdminAnswer::error(error.status, &error.message))
    }

    /// The pages of the console, for a signed-in visitor.
    async fn console(
        &self,
        found: Option<FoundRoutes>,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
        from: &ClientOrigin,
    ) -> AdminAnswer {
        let answer = match found {
            None => Err(PageError::not_found("page at this address")),
            Some(found) => match found.of(&head.method) {
                Ok(route) => self.visit(route, found, head, body, visitor, from).await,
                // A visitor reloads the answer to a form, or returns to it after a sign-in.
                Err(_) if matches!(head.method, Method::GET | Method::HEAD) => {
                    Ok(AdminAnswer::moved(&found.parent()))
                }
                Err(allowed) => return AdminAnswer::not_allowed(&allowed),
            },
        };
        answer.unwrap_or_else(|error| {
            if reads_html(&head.headers) {
                self.error_page(&error, Some(visitor))
            } else {
                AdminAnswer::error(error.status, &error.message)
            }
        })
    }

    async fn visit(
        &self,
        route: &Route,
        FoundRoutes { names, .. }: FoundRoutes,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
        from: &ClientOrigin,
    ) -> PageResult<AdminAnswer> {
        self.check_role(route, visitor)?;
        match route.handler {
            Handler::Page(page) => {
                let params = Params::read(head.uri.query().unwrap_or_default().as_bytes());
                self.page(page, names, params, visitor).await
            }
            Handler::Form(form) => self.action(form, names, head, body, visitor, from).await,
            _ => Err(PageError::not_found("page at this address")),
        }
    }

    fn check_role(&self, route: &Route, visitor: &Visitor) -> PageResult<()> {
        let needed = route.role.unwrap_or(Role::Viewer);
        if visitor.role >= needed {
            return Ok(());
        }
        let message = match needed {
            Role::Approver if self.config.write => {
                "you are no approver: sign in with admin.token, or ask for a group of admin.oidc.approvers"
            }
            Role::Approver if route.is_of_approvals() => {
                "the admin API is read-only; set admin.write = true and admin.token (versions of \
                 prompts can also be decided on with `promptgate approvals`)"
            }
            Role::Approver => "the admin API is read-only; set admin.write = true and admin.token",
            Role::Viewer | Role::Tester => {
                "you are no tester: sign in with admin.token, or ask for a group of admin.oidc.testers"
            }
        };
        Err(PageError::new(StatusCode::FORBIDDEN, message))
    }

    /// Makes and writes a page on a thread that may block, within `admin.render_timeout`.
    async fn page(
        &self,
        page: ConsolePage,
        names: Vec<String>,
        params: Params,
        visitor: &Visitor,
    ) -> PageResult<AdminAnswer> {
        let is_csv = params.get("format") == "csv";
        let page_request = self.page_request(params);
        let (state, visitor, gateway) = (self.state.clone(), visitor.clone(), self.gateway.clone());
        let until = page_request.until;
        let begin = Instant::now();
        let making = async move {
            let name = names.first().map_or("", String::as_str);
            let page = pages::make(page, name, &state, &visitor, &page_request).await?;
            match is_csv.then(|| page.csv()).flatten() {
                Some(table) => Ok(AdminAnswer::csv(table, "usage.csv")),
                None => html(&*page, &visitor, &gateway),
            }
        };
        let answer = beside_calls_within(&self.permits.pages, until, making).await?;
        let took = begin.elapsed().as_secs_f64() * 1_000.0;
        Ok(answer.with(SERVER_TIMING, &format!("page;dur={took:.1}")))
    }

    fn page_request(&self, params: Params) -> PageRequest {
        PageRequest {
            params,
            until: Instant::now() + self.config.render_timeout,
            rows: self.config.page_rows,
            now: wall_clock(),
        }
    }

    /// A page that gives the reason of an error.
    fn error_page(&self, error: &PageError, visitor: Option<&Visitor>) -> AdminAnswer {
        let page = console::ErrorPage { message: &error.message };
        let frame = ConsoleFrame {
            title: error.status.canonical_reason().unwrap_or("Error"),
            gateway: &self.gateway,
            section: None,
            visitor,
            csrf: &visitor.map(signed_out_by).unwrap_or_default(),
            main: console::text::Html(askama::Template::render(&page).unwrap_or_default()),
        };
        AdminAnswer::html(error.status, askama::Template::render(&frame).unwrap_or_default())
    }

    /// Bounds of the bodies of visitors with a credential.
    fn bounds(&self) -> BodyBounds {
        BodyBounds { size: self.limits.body_size, time: self.limits.body }
    }

    /// Reads a body within its size and time.
    async fn body(&self, body: Incoming, bounds: BodyBounds) -> PageResult<Bytes> {
        let body = Limited::new(body, bounds.size).collect();
        match timeout(bounds.time, body).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(_)) => Err(PageError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is too large, or was broken off",
            )),
            Err(_) => {
                Err(PageError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"))
            }
        }
    }

    /// Reads the form of a POST.
    async fn form(&self, head: &Parts, body: Incoming, bounds: BodyBounds) -> PageResult<Params> {
        if !has_type(&head.headers, "application/x-www-form-urlencoded") {
            let message = "The form was not sent as application/x-www-form-urlencoded.";
            return Err(PageError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        Ok(Params::read_form(&self.body(body, bounds).await?))
    }
}

/// Makes a page outside the threads of calls, with one of `permits`, and not longer than `until`.
async fn beside_calls_within<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    until: Instant,
    making: impl Future<Output = PageResult<T>> + Send + 'static,
) -> PageResult<T> {
    let permit = timeout_at(until, permits.clone().acquire_owned()).await;
    let Ok(Ok(permit)) = permit else {
        let message =
            "Too many pages are being made, or prompts tried, at once. Try again in a moment.";
        return Err(PageError::new(StatusCode::SERVICE_UNAVAILABLE, message));
    };
    let runtime = tokio::runtime::Handle::current();
    // A visitor who has gone drops this future, and must not hold the permit until `until`.
    let gone = CancellationToken::new();
    let _gone = gone.clone().drop_guard();
    let made = run_blocking(move || {
        let made = runtime.block_on(gone.run_until_cancelled_owned(making));
        drop(permit);
        made.unwrap_or_else(|| Err(PageError::late()))
    });
    // A late page runs until it next checks the clock, and is dropped.
    timeout_at(until + GRACE, made).await.unwrap_or_else(|_| Err(PageError::late()))
}

/// Writes a page into its frame.
fn html(page: &dyn AnyPage, visitor: &Visitor, gateway: &str) -> PageResult<AdminAnswer> {
    let frame = ConsoleFrame {
        title: &page.title(),
        gateway,
        section: Some(page.section()),
        visitor: Some(visitor),
        csrf: &signed_out_by(visitor),
        main: console::text::Html(page.html().map_err(|error| internal(&error))?),
    };
    let page = askama::Template::render(&frame).map_err(|error| internal(&error))?;
    Ok(AdminAnswer::html(StatusCode::OK, page))
}

/// The time in which a late page notices its deadline.
const GRACE: Duration = Duration::from_millis(500);

/// Where a request comes from.
struct ClientOrigin {
    site: Site,
    address: IpAddr,
}

/// Whether the content of a request has a media type.
fn has_type(headers: &HeaderMap, media_type: &str) -> bool {
    let sent = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let sent = sent.and_then(|sent| sent.split(';').next()).unwrap_or_default();
    sent.trim().eq_ignore_ascii_case(media_type)
}

/// Whether the client is a browser, or another reader of pages (RFC 9110, section 12.5.1).
fn reads_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|range| range.trim().starts_with("text/html"))
}

/// The form token of the session, for the sign-out form; empty for visitors without a session.
fn signed_out_by(visitor: &Visitor) -> String {
    if visitor.expires.is_some() { visitor.csrf_token() } else { String::new() }
}

pub(crate) fn internal(error: &dyn std::error::Error) -> PageError {
    tracing::error!(%error, "a page of the console cannot be written; please report this line");
    PageError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "The page cannot be written; the log says why.",
    )
}

/// The milliseconds that a page took (Server Timing, section 2): the script reloads an expensive
/// page less often.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

const NOT_FOUND: &str = "not found; GET /api/v1/openapi.json describes the admin API, beside /livez, /readyz and \
    /metrics";

const FOREIGN: &str = "a page of another site has sent this request: open the console itself (a program sends \
     admin.token, or for a session of the console its Origin)";
const NO_CONSOLE: &str =
    "not found; the console is switched off (admin.console), the admin API is at /api/v1/";

const UNAUTHORIZED: &str = "send the header Authorization: Bearer with the value of admin.token";

impl Serve for AdminServer {
    fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    fn tls(&self) -> Option<&Arc<TlsServer>> {
        None
    }

    async fn serve(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        guard: &RequestGuard,
    ) -> Response<Body> {
        let headers = request.headers().clone();
        let answer = Box::pin(self.answer(request, peer.address, guard)).await;
        if answer.content.len() < LARGE {
            return answer.into_response(&headers);
        }
        run_blocking(move || answer.into_response(&headers)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_page_ends_when_its_visitor_has_gone() {
        let permits = Arc::new(Semaphore::new(1));
        let until = Instant::now() + Duration::from_secs(600);
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let making = beside_calls_within(&permits, until, async move {
            let _ = begun.send(());
            std::future::pending::<PageResult<()>>().await
        });
        tokio::select! {
            _ = making => panic!("it never ends by itself"),
            begun = has_begun => begun.unwrap(),
        }
        let next = beside_calls_within(&permits, until, async { Ok(1) });
        let next = timeout(Duration::from_secs(60), next).await;
        assert!(next.is_ok_and(|made| made.is_ok()), "the permit is free again");
    }
}
