//! The downstream side: bytes to messages and back, within bounds, for whoever connects.

mod answering;
mod body;
mod connection;
mod event_lines;
mod guard;
mod http;
mod line;
mod listener;
mod load;
mod resources;
mod respond;
mod sse;
mod stdio;
mod tls;
mod watched;

pub use http::Endpoint;
pub use listener::Listener;
pub use stdio::Streams;
pub use tls::Secure;
