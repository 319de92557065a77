//! The downstream side: bytes to messages and back, within bounds, for whoever connects.

mod body;
mod connection;
mod guard;
mod http;
mod listener;
mod respond;
mod sse;
mod watched;

pub use http::Endpoint;
pub use listener::Listener;
