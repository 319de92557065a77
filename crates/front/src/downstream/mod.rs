//! The downstream side: connections, HTTP and standard streams of clients. Turns bytes into
//! messages and messages into bytes, within the limits of the configuration.

mod conn;
mod http;
mod stdio;
mod channel;
mod calls;
mod batch;
mod error_message;
pub mod clock;
mod admission;
mod pool;
pub(crate) mod chunk_buf;

pub use admission::AdmissionUsage;
pub use conn::Peer;
pub use conn::listener::{Listener, OpenConnections};
pub use conn::state::RequestGuard;
pub use conn::tls::TlsServer;
pub use http::Endpoint;
pub use http::hook_signature::HookKey;
pub use http::origin::OriginGuard;
pub use http::respond::Body;
pub use stdio::StdioStreams;

use std::net::IpAddr;
use std::sync::Arc;

use ::http::{Request, Response};
use hyper::body::Incoming;

use config::Limits;

/// An HTTP service under one configuration: the gateway's endpoints, or the admin API.
pub trait Serve: Send + Sync + 'static {
    /// The limits of connections and requests.
    fn limits(&self) -> &Arc<Limits>;

    /// The TLS server side; absent where connections are not encrypted.
    fn tls(&self) -> Option<&Arc<TlsServer>>;

    /// Whether connections from this address carry the requests of many clients.
    fn trusts(&self, _proxy: IpAddr) -> bool {
        false
    }

    /// Returns the response to one request of `peer`, which holds the place of its connection by
    /// `guard`. Every failure is a response.
    fn serve(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        guard: &RequestGuard,
    ) -> impl Future<Output = Response<Body>> + Send;
}
