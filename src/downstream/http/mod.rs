//! What the HTTP side is made of: for one configuration, and what is handed on to the next.

pub(crate) mod route;
pub(crate) mod origin;
pub(crate) mod body;
pub(crate) mod respond;
pub(crate) mod event_stream;
pub(crate) mod http_sse;
pub(crate) mod protected_resource;

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use tokio_util::sync::CancellationToken;

use super::TlsServer;
use super::admission::{Admission, AdmissionUsage};
use super::channel::ClientChannel;
use super::conn::Peer;
use super::http::http_sse::HttpSse;
use super::http::origin::OriginGuard;
use super::http::protected_resource::ProtectedResources;
use crate::config::{Config, Limits};
use crate::session::Sessions;

/// The HTTP side of the gateway.
pub(crate) struct Endpoint {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) guard: OriginGuard,
    pub(crate) protected_resources: ProtectedResources,
    /// Of the main endpoint and of the views.
    pub(crate) paths: Vec<String>,
    pub(crate) limits: Limits,
    pub(crate) trusted_proxies: Vec<IpAddr>,
    pub(crate) admission: Arc<Admission>,
    /// The older transport, if it is served.
    pub(crate) http_sse: Option<HttpSse>,
    shared: SharedState,
    pub(crate) secure: Option<Arc<TlsServer>>,
}

/// What all endpoints of one gateway share, whatever its configuration is by now.
#[derive(Clone)]
struct SharedState {
    /// Those of the newest configuration.
    sessions: Arc<ArcSwap<Sessions>>,
    open_lines: Arc<DashMap<String, ClientChannel>>,
    drain: CancellationToken,
}

impl Endpoint {
    /// `sessions` are those of the newest configuration, `drain` ends the streams of the older
    /// transport.
    pub(crate) fn new(
        config: &Config,
        sessions: Arc<ArcSwap<Sessions>>,
        secure: Option<Arc<TlsServer>>,
        drain: CancellationToken,
    ) -> Self {
        let admission = Admission::new(&config.server.limits);
        let newest = sessions.load_full();
        let shared = SharedState { sessions, open_lines: Arc::default(), drain };
        Self::with(config, newest, secure, admission, shared)
    }

    /// The endpoint of another configuration, which keeps what is open.
    pub(crate) fn renew(
        &self,
        config: &Config,
        sessions: Arc<Sessions>,
        secure: Option<Arc<TlsServer>>,
    ) -> Self {
        let admission = self.admission.renew(&config.server.limits);
        Self::with(config, sessions, secure, admission, self.shared.clone())
    }

    fn with(
        config: &Config,
        sessions: Arc<Sessions>,
        secure: Option<Arc<TlsServer>>,
        admission: Admission,
        shared: SharedState,
    ) -> Self {
        let server = &config.server;
        let (path, limits, admission) =
            (server.path.clone(), server.limits.clone(), Arc::new(admission));
        let http_sse = server.sse_path.as_ref().map(|sse_path| {
            let SharedState { sessions, open_lines, drain } = shared.clone();
            HttpSse::new(sse_path, &path, &limits, sessions, admission.clone(), open_lines, drain)
        });
        let views = config.views.iter().map(|view| server.view_path(&view.name));
        let paths = std::iter::once(path).chain(views).collect();
        Self {
            sessions,
            guard: OriginGuard::new(server),
            protected_resources: ProtectedResources::new(config),
            paths,
            limits,
            trusted_proxies: server.trusted_proxies.clone(),
            admission,
            http_sse,
            shared,
            secure,
        }
    }

    /// How much is being worked on.
    pub(crate) fn usage(&self) -> AdmissionUsage {
        self.admission.now()
    }

    /// The subject of the certificate that the other end has shown, if that counts by now.
    pub(crate) fn subject<'a>(&self, peer: &'a Peer) -> Option<&'a str> {
        let shown = peer.shown.as_ref()?;
        let counts = self.secure.as_ref().is_some_and(|secure| secure.trusts_as(&shown.to));
        counts.then_some(shown.subject.as_str())
    }
}
