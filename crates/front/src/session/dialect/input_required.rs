//! Server requests as a result, for a client that retries its request with the answers.

use super::server_identity::ServerIdentity;
use catalog::reply::{InputRequired, RequestOrigin};
use domain::json::object::write_object;
use domain::protocol::meta;
use domain::protocol::revision::Revision;
use domain::protocol::server_request::Presentation;

/// Writes an `InputRequiredResult` with server requests (MCP 2026-07-28, multi-round-trip
/// requests).
pub(super) fn input_required_result(
    input_required: &InputRequired,
    revision: Revision,
    identity: &ServerIdentity,
) -> String {
    let InputRequired { server_requests, state, origin } = input_required;
    let mut out = String::with_capacity(state.as_ref().map_or(0, String::len) + 1024);
    write_object(&mut out, |result| {
        result.text("resultType", "input_required").object("_meta", |meta| {
            meta.json(meta::SERVER_INFO, &identity.server_info);
            meta.text("promptgate/upstream", &origin.upstream);
        });
        result.object("inputRequests", |requests| {
            for (key, server_request) in server_requests {
                let presentation = presentation(revision, origin, key);
                requests.object(key, |request| {
                    request.text("method", server_request.method()).written("params", |out| {
                        server_request.write_params(presentation, out);
                    });
                });
            }
        });
        if let Some(state) = state {
            result.text("requestState", state);
        }
    });
    out
}

pub(super) fn presentation<'a>(
    revision: Revision,
    origin: &'a RequestOrigin,
    id: &'a str,
) -> Presentation<'a> {
    Presentation { upstream: &origin.upstream, label: origin.label, revision, id }
}
