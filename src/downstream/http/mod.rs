//! What the HTTP side is made of: for one configuration, and what is handed on to the next.

pub mod route;
pub mod origin;
pub mod body;
pub mod respond;
pub mod event_stream;
pub mod http_sse;
pub mod protected_resource;

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use tokio_util::sync::CancellationToken;

use super::Secure;
use super::admission::{Load, LoadNow};
use super::channel::Line;
use super::conn::Peer;
use super::http::http_sse::EventLines;
use super::http::origin::Guard;
use super::http::protected_resource::Resources;
use crate::config::{Config, Limits};
use crate::session::Sessions;

/// The HTTP side of the gateway.
pub struct Endpoint {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) guard: Guard,
    pub(crate) resources: Resources,
    /// Of the main endpoint and of the views.
    pub(crate) paths: Vec<String>,
    pub(crate) limits: Limits,
    pub(crate) trusted_proxies: Vec<IpAddr>,
    pub(crate) load: Arc<Load>,
    /// The older transport, if it is served.
    pub(crate) event_lines: Option<EventLines>,
    lasting: Lasting,
    pub(crate) secure: Option<Arc<Secure>>,
}

/// What all endpoints of one gateway share, whatever its configuration is by now.
#[derive(Clone)]
struct Lasting {
    /// Those of the newest configuration.
    sessions: Arc<ArcSwap<Sessions>>,
    open_lines: Arc<DashMap<String, Line>>,
    drain: CancellationToken,
}

impl Endpoint {
    /// `sessions` are those of the newest configuration, `drain` ends the streams of the older
    /// transport.
    pub fn new(
        config: &Config,
        sessions: Arc<ArcSwap<Sessions>>,
        secure: Option<Arc<Secure>>,
        drain: CancellationToken,
    ) -> Self {
        let load = Load::new(&config.server.limits);
        let newest = sessions.load_full();
        let lasting = Lasting { sessions, open_lines: Arc::default(), drain };
        Self::with(config, newest, secure, load, lasting)
    }

    /// The endpoint of another configuration, which keeps what is open.
    pub fn renew(
        &self,
        config: &Config,
        sessions: Arc<Sessions>,
        secure: Option<Arc<Secure>>,
    ) -> Self {
        let load = self.load.renew(&config.server.limits);
        Self::with(config, sessions, secure, load, self.lasting.clone())
    }

    fn with(
        config: &Config,
        sessions: Arc<Sessions>,
        secure: Option<Arc<Secure>>,
        load: Load,
        lasting: Lasting,
    ) -> Self {
        let server = &config.server;
        let (path, limits, load) = (server.path.clone(), server.limits.clone(), Arc::new(load));
        let event_lines = server.sse_path.as_ref().map(|sse_path| {
            let Lasting { sessions, open_lines, drain } = lasting.clone();
            EventLines::new(sse_path, &path, &limits, sessions, load.clone(), open_lines, drain)
        });
        let views = config.views.iter().map(|view| server.view_path(&view.name));
        let paths = std::iter::once(path).chain(views).collect();
        Self {
            sessions,
            guard: Guard::new(server),
            resources: Resources::new(config),
            paths,
            limits,
            trusted_proxies: server.trusted_proxies.clone(),
            load,
            event_lines,
            lasting,
            secure,
        }
    }

    /// How much is being worked on.
    pub fn load(&self) -> LoadNow {
        self.load.now()
    }

    /// The subject of the certificate that the other end has shown, if that counts by now.
    pub(crate) fn subject<'a>(&self, peer: &'a Peer) -> Option<&'a str> {
        let shown = peer.shown.as_ref()?;
        let counts = self.secure.as_ref().is_some_and(|secure| secure.trusts_as(&shown.to));
        counts.then_some(shown.subject.as_str())
    }
}
