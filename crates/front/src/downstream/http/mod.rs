//! The HTTP transports of the gateway: Streamable HTTP and HTTP+SSE, for one configuration.

pub(crate) mod route;
pub(crate) mod origin;
pub(crate) mod request_head;
pub(crate) mod body;
pub(crate) mod respond;
pub(crate) mod event_stream;
pub(crate) mod http_sse;
pub(crate) mod client_document;
pub(crate) mod hook_signature;
pub(crate) mod hooks;
pub(crate) mod protected_resource;
pub(crate) mod sign_in;

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use super::TlsServer;
use super::admission::{Admission, AdmissionUsage};
use super::channel::Sender;
use super::conn::Peer;
use super::http::client_document::ClientDocument;
use super::http::hooks::{HookFailures, Hooks};
use super::http::http_sse::{HttpSseEndpoint, OpenChannels};
use super::http::origin::OriginGuard;
use super::http::protected_resource::ProtectedResources;
use super::http::sign_in::SignInPage;
use crate::session::Sessions;
use cluster::Handling;
use config::{Config, Limits};
use domain::calls::caller::Caller;
use domain::trusted_proxies::TrustedProxies;
use logins::caller::PersonCheck;
use net::certificates::CertificateEnd;
use policy::Gate;

/// All HTTP endpoints of the gateway under one configuration.
pub struct Endpoint {
    pub(crate) gate: Arc<Gate>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) guard: OriginGuard,
    pub(crate) protected_resources: ProtectedResources,
    pub(crate) client_document: ClientDocument,
    pub(crate) hooks: Hooks,
    /// Absent where no caller signs in to an upstream.
    pub(crate) sign_in: Option<SignInPage>,
    /// The paths of the main endpoint and of the views, main endpoint first.
    pub(crate) paths: Vec<String>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) admission: Arc<Admission>,
    /// Absent where HTTP+SSE is not enabled.
    pub(crate) http_sse: Option<HttpSseEndpoint>,
    shared: HttpSharedState,
    pub(crate) tls: Option<Arc<TlsServer>>,
}

/// State that outlives a configuration.
#[derive(Clone)]
struct HttpSharedState {
    /// The sessions of the current configuration.
    sessions: Arc<ArcSwap<Sessions>>,
    channels: Arc<OpenChannels>,
    drain: CancellationToken,
    hook_failures: Arc<HookFailures>,
}

impl Endpoint {
    /// Creates the endpoint of the first configuration. `sessions` are those of the current
    /// configuration; `people` names callers in browsers; `drain` ends the streams of HTTP+SSE.
    pub fn new(
        config: &Config,
        sessions: Arc<ArcSwap<Sessions>>,
        tls: Option<Arc<TlsServer>>,
        people: Option<Arc<dyn PersonCheck>>,
        drain: CancellationToken,
    ) -> Self {
        let admission = Admission::new(&config.server.limits);
        let current = sessions.load_full();
        let hook_failures = Arc::default();
        let shared = HttpSharedState { sessions, channels: Arc::default(), drain, hook_failures };
        Self::build(config, current, tls, people, admission, shared)
    }

    /// Creates the endpoint of the next configuration. Open streams and admitted calls go on.
    pub fn renew(
        &self,
        config: &Config,
        sessions: Arc<Sessions>,
        tls: Option<Arc<TlsServer>>,
        people: Option<Arc<dyn PersonCheck>>,
    ) -> Self {
        let admission = self.admission.renew(&config.server.limits);
        Self::build(config, sessions, tls, people, admission, self.shared.clone())
    }

    /// When the certificates of the TLS server end; empty without TLS.
    pub fn certificate_ends(&self) -> Arc<Vec<CertificateEnd>> {
        self.tls.as_ref().map(|tls| tls.certificate_ends()).unwrap_or_default()
    }

    fn build(
        config: &Config,
        sessions: Arc<Sessions>,
        tls: Option<Arc<TlsServer>>,
        people: Option<Arc<dyn PersonCheck>>,
        admission: Admission,
        shared: HttpSharedState,
    ) -> Self {
        let server = &config.server;
        let path = server.path.clone();
        let limits = Arc::new(server.limits.clone());
        let admission = Arc::new(admission);
        let http_sse = server.sse_path.as_ref().map(|sse_path| {
            let HttpSharedState { sessions, channels, drain, .. } = shared.clone();
            HttpSseEndpoint::new(
                sse_path,
                &path,
                &limits,
                sessions,
                admission.clone(),
                channels,
                drain,
            )
        });
        let views = config.views.iter().map(|view| server.view_path(&view.name));
        let paths = std::iter::once(path).chain(views).collect();
        Self {
            gate: sessions.gate().clone(),
            guard: OriginGuard::new(server),
            protected_resources: ProtectedResources::new(config),
            client_document: ClientDocument::new(config),
            hooks: Hooks::new(config, shared.hook_failures.clone()),
            sign_in: SignInPage::new(config, sessions.router(), people),
            sessions,
            paths,
            limits,
            trusted_proxies: server.trusted_proxies.clone(),
            admission,
            http_sse,
            shared,
            tls,
        }
    }

    /// Takes a message that was posted to a session of HTTP+SSE at another replica.
    pub async fn receive(
        &self,
        session_id: &str,
        caller: &Caller,
        address: Option<IpAddr>,
        body: &[u8],
    ) -> Handling {
        let sender = Sender::new(caller.clone(), address);
        match &self.http_sse {
            Some(http_sse) => http_sse.receive(session_id, &sender, body).await,
            None => Handling::NotFound,
        }
    }

    /// Returns how many calls, bytes and streams are admitted.
    pub fn usage(&self) -> AdmissionUsage {
        self.admission.usage()
    }

    /// Returns the subject of the client certificate, if it was verified by the authorities that
    /// this configuration trusts.
    pub(crate) fn subject<'a>(&self, peer: &'a Peer) -> Option<&'a str> {
        let certificate = peer.certificate.as_ref()?;
        let tls = self.tls.as_ref()?;
        tls.trusts_as(&certificate.verified_by).then_some(certificate.subject.as_str())
    }
}
