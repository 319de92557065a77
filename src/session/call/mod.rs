//! A call while it runs: its task, what its client is sent before the response, and how it is
//! cancelled or answered by its client.

pub(crate) mod client_events;
pub(crate) mod in_flight;
pub(crate) mod run;
pub(crate) mod server_requests;
