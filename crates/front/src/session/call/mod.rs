//! Calls in flight: the task of a call, the messages before its response, cancellation, and pending
//! server requests.

pub(crate) mod client_events;
pub(crate) mod console;
pub(crate) mod failure_lines;
pub(crate) mod in_flight;
pub(crate) mod run;
pub(crate) mod server_requests;
pub(crate) mod url_elicitations;
