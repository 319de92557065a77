//! The downstream side: bytes to messages and back, within bounds, for whoever connects.

mod answering;
mod body;
mod connection;
mod endpoint;
mod event_lines;
mod guard;
mod http;
mod line;
mod listener;
mod load;
mod phase;
mod resources;
mod respond;
mod sse;
mod stdio;
mod taken;
mod tls;
mod watched;

pub use connection::Peer;
pub use endpoint::Endpoint;
pub use guard::Guard;
pub use listener::{Listener, Open};
pub use load::LoadNow;
pub use respond::Body;
pub use stdio::Streams;
pub use tls::Secure;

use std::sync::Arc;

use ::http::{Request, Response};
use hyper::body::Incoming;

use crate::config::Limits;

/// Whoever answers requests, as one configuration says.
pub trait Serve: Send + Sync + 'static {
    /// Within which bounds connections are served.
    fn limits(&self) -> &Limits;

    /// How connections are encrypted; absent: they are not.
    fn secure(&self) -> Option<&Arc<Secure>>;

    /// Answers one request, whatever it is, of whoever is at the other end of the connection.
    fn serve(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
    ) -> impl Future<Output = Response<Body>> + Send;
}
