//! Calls in flight: the task of a call, the messages before its response, cancellation, and server
//! requests that wait for the client.

pub(crate) mod client_events;
pub(crate) mod in_flight;
pub(crate) mod run;
pub(crate) mod server_requests;
pub(crate) mod url_elicitations;
