//! A call while it runs: its task, what its client is sent before the response, and how it is
//! cancelled or answered by its client.

pub mod client_events;
pub mod in_flight;
pub mod run;
pub mod server_requests;
