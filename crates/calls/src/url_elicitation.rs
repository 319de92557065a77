//! URL elicitations: pages that a client shows to its user, such as the page at which a caller
//! signs in to an upstream.

use serde_json::json;

use super::admitted::DEPTH;
use catalog::reply::{InputRequired, Reply, RequestOrigin};
use domain::calls::call::{ClientMessages, ServerRequestMode};
use domain::fault::{Fault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::json::Json;
use domain::protocol::server_request::{
    ClientCapabilities, ELICIT, ServerRequest, ServerRequestKind,
};

/// Returns a fault as a client can show it: the page becomes a URL elicitation (MCP 2025-11-25) for
/// clients that have declared these. For others it stays in the message of the error.
pub(super) fn shown_to(client: ClientCapabilities, fault: Fault) -> Fault {
    let Fault::Upstream(UpstreamFault {
        kind: Kind::SignInNeeded { url, code, id }, upstream, ..
    }) = &fault
    else {
        return fault;
    };
    if !client.contains(ClientCapabilities::URL) {
        return fault;
    }
    let message = format!("Sign in to {upstream}. If the page asks for a code, it is {code}.");
    let page = json!({"mode": "url", "elicitationId": **id, "url": **url, "message": message});
    let data = json!({"reason": "sign_in_needed", "elicitations": [page]}).to_string();
    Fault::upstream(upstream, Kind::UrlElicitationRequired { message, data })
}

/// The same for the error of a request that has no input-required result. MCP 2026-07-28 has URL
/// elicitations in such results only.
pub(super) fn shown_in_error(client: ClientMessages, fault: Fault) -> Fault {
    match client.mode {
        ServerRequestMode::MidCall => shown_to(client.capabilities, fault),
        ServerRequestMode::InputRequired => fault,
    }
}

/// The same for a get that has not reached its upstream. The input-required result (MCP 2026-07-28)
/// has no state: the retry is a get like the first one.
pub(super) fn shown_before_get(client: ClientMessages, fault: Fault) -> Result<Reply, Fault> {
    let shown = shown_to(client.capabilities, fault);
    if client.mode == ServerRequestMode::InputRequired
        && let Fault::Upstream(UpstreamFault { kind, upstream, .. }) = &shown
        && let Kind::UrlElicitationRequired { data, .. } = kind
        && let Some(server_requests) = url_elicitations(data)
    {
        // The gateway itself asks: its message names the upstream.
        let origin = RequestOrigin { upstream: upstream.to_string(), label: false };
        return Ok(Reply::InputRequired(InputRequired { server_requests, state: None, origin }));
    }
    Err(shown)
}

/// Returns the URL elicitations of the data of an error (MCP 2025-11-25, -32042), by their keys in
/// an input-required result; `None` if they are malformed.
pub(super) fn url_elicitations(data: &str) -> Option<Vec<(String, ServerRequest)>> {
    let data = Json::parse_text(data, DEPTH).ok()?;
    let elicitations = data.get("elicitations");
    let mut requests = Vec::new();
    for (index, request) in elicitations.iter().flat_map(|e| e.elements()).enumerate() {
        let request = ServerRequest::read(ELICIT, Some(request)).ok();
        let request = request.filter(|request| request.kind() == ServerRequestKind::Url)?;
        requests.push((format!("page-{index}"), request));
    }
    Some(requests)
}
