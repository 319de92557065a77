//! Detects lost sessions. An upstream should answer 404 (MCP 2025-11-25, transports, session
//! management); many servers and balancers answer with other texts, which a ping confirms.

use std::sync::Arc;

use http::header::WWW_AUTHENTICATE;
use http::response::Parts;
use http::{HeaderMap, StatusCode};

use super::{HttpEndpoint, SESSION_ID};
use crate::call::correlator::Correlator;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::jsonrpc::{self, Id};
use domain::protocol::method::PING;

/// Bytes of an error text to search: such texts are one sentence.
const MOST: usize = 4 << 10;

/// Words that are ignored between the words of a phrase.
const FILLERS: [&str; 15] = [
    "a", "active", "an", "been", "for", "given", "has", "header", "id", "is", "mcp", "the", "this",
    "was", "with",
];

/// Phrases of lost-session texts, without fillers.
const PHRASES: [&[&str]; 20] = [
    &["no", "session"],
    &["no", "valid", "session"],
    &["invalid", "session"],
    &["unknown", "session"],
    &["missing", "session"],
    &["expired", "session"],
    &["find", "session"],
    &["transport", "found", "session"],
    &["session", "not", "found"],
    &["session", "not", "valid"],
    &["session", "invalid"],
    &["session", "unknown"],
    &["session", "expired"],
    &["session", "missing"],
    &["session", "required"],
    &["session", "closed"],
    &["session", "terminated"],
    &["session", "does", "not", "exist"],
    &["not", "initialized"],
    &["before", "initialization"],
];

impl HttpEndpoint {
    /// Whether an error means that the upstream has lost the session. `id` is the id of the failed
    /// request.
    pub(super) async fn tells_of_lost_session(
        self: &Arc<Self>,
        error: &Kind,
        id: &Id,
        headers: &HeaderMap,
        correlator: &Correlator,
    ) -> bool {
        let Kind::Error { code, message, .. } = error else { return false };
        may_be_of_session(*code)
            && has_working_session(headers, correlator)
            && is_said_by(message)
            && self.has_lost_session(id, headers, correlator).await
    }

    /// Whether a ping confirms that the upstream has lost the session: the text of the error may
    /// concern a session of the upstream's application. `id` is the id of the failed request.
    pub(super) async fn has_lost_session(
        self: &Arc<Self>,
        id: &Id,
        headers: &HeaderMap,
        correlator: &Correlator,
    ) -> bool {
        let id = Id::of_text(&format!("ping after {id}"));
        let ping = jsonrpc::request(&id, PING, 0, |_| {});
        match self.exchange(&id, headers, ping, correlator).await {
            Err(Kind::SessionLost) => true,
            Err(Kind::Error { message, .. }) => is_said_by(&message),
            _ => false,
        }
    }
}

/// Whether the request has a session with which another request has succeeded before.
pub(super) fn has_working_session(headers: &HeaderMap, correlator: &Correlator) -> bool {
    headers.contains_key(SESSION_ID) && correlator.session().has_worked()
}

/// Whether a status may mean a lost session, if the body says so. A 401 with a challenge concerns
/// the credential.
pub(super) fn may_be_meant(head: &Parts) -> bool {
    match head.status {
        StatusCode::BAD_REQUEST | StatusCode::SERVICE_UNAVAILABLE => true,
        StatusCode::UNAUTHORIZED => !head.headers.contains_key(WWW_AUTHENTICATE),
        _ => false,
    }
}

/// Whether a JSON-RPC error of this code may be about the session: invalid parameters and internal
/// errors are about the request, which may have acted.
fn may_be_of_session(code: i64) -> bool {
    !matches!(code, -32602 | -32603)
}

/// Whether the text of an answer to a request with a session id reports an unknown or uninitialized
/// session.
pub(super) fn is_said_by(text: &str) -> bool {
    let text = text[..text.floor_char_boundary(MOST)].to_lowercase();
    let text = text.replace("sessionid", "session id").replace("initialised", "initialized");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty() && !FILLERS.contains(word)).collect();
    PHRASES.iter().any(|phrase| words.windows(phrase.len()).any(|found| found == *phrase))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_servers_for_a_lost_session_are_known() {
        for text in [
            "Bad Request: No valid session ID provided",
            "Session not found",
            "Session with given ID not found",
            "Invalid session ID",
            "Invalid or expired session",
            "invalid_session",
            "Unknown sessionId",
            "No transport found for sessionId",
            "Could not find session for ID: 7",
            "Bad Request: Server not initialized",
            "Server has not been initialised",
            "Mcp-Session-Id header is required",
            "Missing session ID",
            "The session has expired.",
            "Session does not exist",
            "the session id is not valid",
            r#"{"error":"No active session"}"#,
        ] {
            assert!(is_said_by(text), "{text}");
        }
        for text in [
            "",
            "Unknown prompt: session-notes",
            "prompt \"session\" is not there",
            "argument `session` must be a number",
            "no such prompt in this session",
            "Service Unavailable",
            "not found",
        ] {
            assert!(!is_said_by(text), "{text}");
        }
    }
}
