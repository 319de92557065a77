//! The downstream side: bytes to messages and back, within bounds, for whoever connects.

mod conn;
mod http;
mod stdio;
mod channel;
mod calls;
mod batch;
mod error_message;
mod clock;
mod admission;

pub(crate) use admission::AdmissionUsage;
pub(crate) use conn::Peer;
pub(crate) use conn::listener::{Listener, Open};
pub(crate) use conn::tls::TlsServer;
pub(crate) use http::Endpoint;
pub(crate) use http::origin::OriginGuard;
pub(crate) use http::respond::Body;
pub use stdio::Streams;

use std::sync::Arc;

use ::http::{Request, Response};
use hyper::body::Incoming;

use crate::config::Limits;

/// Whoever answers requests, as one configuration says.
pub(crate) trait Serve: Send + Sync + 'static {
    /// Within which bounds connections are served.
    fn limits(&self) -> &Limits;

    /// How connections are encrypted; absent: they are not.
    fn secure(&self) -> Option<&Arc<TlsServer>>;

    /// Answers one request, whatever it is, of whoever is at the other end of the connection.
    fn serve(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
    ) -> impl Future<Output = Response<Body>> + Send;
}
