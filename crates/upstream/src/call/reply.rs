//! Codec of replies: the responses of upstreams to the gateway's requests, and the gateway's
//! responses to server requests.

use std::borrow::Cow;

use domain::fault::{EXCERPT, UpstreamFaultKind as Kind, excerpt, sanitised};
use domain::json::document::{Document, RefusedText};
use domain::json::jsonrpc::{self, Frame, Id, ResponseOutcome};
use domain::json::object::ObjectWriter;
use domain::json::repair::RepairKind;
use domain::json::salvage::response_id;
use domain::json::{Json, JsonKind};
use domain::name::is_hidden;
use domain::protocol::method::{CANCELLED, PING};
use domain::protocol::server_request::Answer;

/// Most nested arrays and objects in a message of an upstream. Definitions and results are shallow;
/// the depth of `_meta` is the upstream's choice.
const DEPTH: usize = 64;

/// Most messages in a batch of an upstream: each is delivered by itself, and takes more memory than
/// its shortest text.
const BATCH_ITEMS: usize = 1_000;

/// An unreadable message of an upstream, or a text that is not a message.
#[derive(Debug)]
pub struct Unreadable {
    /// The id of the answered request, if it can be found.
    pub id: Option<Id>,
    /// Whether the text may be a response whose id cannot be found.
    pub may_be_response: bool,
    /// Why the message cannot be read.
    pub why: Cow<'static, str>,
    /// The beginning of a text that is not a message, for operators.
    noise: Option<String>,
}

/// Why a text is not a message.
const NO_MESSAGE: &str = "a text that is no message";

impl Unreadable {
    fn new(RefusedText { text, error }: RefusedText) -> Self {
        // A log line or a page begins otherwise.
        let is_message = text.trim_start().starts_with(['{', '[']);
        let (why, noise) = match text.trim() {
            "" => ("an empty text instead of a message".into(), None),
            // The content of a message is not for logs.
            _ if is_message => (error.to_string().into(), None),
            noise => (NO_MESSAGE.into(), Some(excerpt(noise))),
        };
        let (id, has_method) = response_id(&text);
        let id = id.and_then(|id| Id::read_echo(Json::accepted(id)));
        Self { id, may_be_response: is_message && !has_method, why, noise }
    }

    /// Whether this may be the response to `id`, for a text on the request's own response stream.
    pub(crate) fn is_response_to(&self, id: &Id) -> bool {
        self.id.as_ref().map_or(self.may_be_response, |found| found == id)
    }
}

impl From<Unreadable> for Kind {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable.noise {
            Some(shown) => Self::NoMessage { what: NO_MESSAGE, shown },
            None => Self::Protocol(unreadable.why.into_owned()),
        }
    }
}

/// Parses the bytes of one message, and repairs its text; see [`Document::parse_repaired`].
///
/// # Errors
/// If the bytes are not strict JSON.
pub fn document(bytes: Vec<u8>) -> Result<Document, Unreadable> {
    Document::parse_repaired(bytes, DEPTH).map_err(Unreadable::new)
}

/// Parses one message, or the messages of a batch.
///
/// # Errors
/// If the bytes are not strict JSON, or a batch has more than [`BATCH_ITEMS`] messages.
pub fn messages(bytes: Vec<u8>) -> Result<Vec<Document>, Unreadable> {
    let message = document(bytes)?;
    if message.json().kind() != JsonKind::Array {
        return Ok(vec![message]);
    }
    let batch = message.json();
    if batch.elements().nth(BATCH_ITEMS).is_some() {
        let why = format!("a batch has more than {BATCH_ITEMS} messages");
        return Err(Unreadable { id: None, may_be_response: true, why: why.into(), noise: None });
    }
    Ok(batch.elements().map(Document::copy_of).collect())
}

/// Returns the outcome of the request `id` if the message is its response, or a batch that contains
/// the response (legacy upstreams); `None` for all other messages. An error without an id is that
/// of a request whose id the upstream could not read: the message must be from the request's own
/// HTTP response, or for the only request in flight.
pub(crate) fn read_response(id: &Id, mut message: Document) -> Option<Result<Document, Kind>> {
    if message.json().kind() == JsonKind::Array {
        let is_ours = |m: &Json<'_>| answers(*m, id);
        message.narrow(|batch| batch.elements().take(BATCH_ITEMS).find(is_ours))?;
    }
    match Frame::read(message.json()) {
        Err(error) => Some(Err(Kind::Protocol(error.to_string()))),
        Ok(Frame::Response { id: of, outcome }) if of.as_ref().is_none_or(|of| of == id) => {
            match outcome {
                ResponseOutcome::Result(result) if result.is_object() => {
                    if message.json().get("id").is_some_and(|echo| echo.text() != id.text()) {
                        message.add_repair(RepairKind::Id);
                    }
                    let lost = || Kind::Internal("a response lost its result".into());
                    let narrowed = message.narrow(|m| m.get("result")).ok_or_else(lost);
                    Some(narrowed.map(|()| message.with_empty_lists().unwrap_or(message)))
                }
                ResponseOutcome::Result(_) => {
                    Some(Err(Kind::Protocol("the result is not an object".into())))
                }
                ResponseOutcome::Error { code, message, data } => {
                    Some(Err(error(code, message, data)))
                }
            }
        }
        Ok(_) => None,
    }
}

/// Returns whether a message is meant as the response to `id`, also if it is malformed.
pub(crate) fn answers(message: Json<'_>, id: &Id) -> bool {
    jsonrpc::is_response(message) && message.get("id").and_then(Id::read_echo).as_ref() == Some(id)
}

/// Returns the fault of a response that fits no request.
pub(crate) fn misfit(message: Json<'_>) -> Kind {
    let id = message.get("id").map_or("none", Json::text);
    Kind::NoMessage { what: "the id of the response fits no request", shown: excerpt(id) }
}

/// Returns the response to a request of an upstream that is not a server request: an empty result
/// for `ping`, -32601 (method not found) for other methods.
pub(crate) fn to_other_request(id: &Id, method: &str) -> String {
    match method {
        PING => response(id, |out| {
            out.object("result", |_| {});
        }),
        _ => refusal(id, METHOD_NOT_FOUND, "method not found"),
    }
}

/// Returns the response (-32601) to a server request whose capability the client has not declared,
/// or that belongs to no call.
pub(crate) fn not_declared(id: &Id) -> String {
    refusal(id, METHOD_NOT_FOUND, "the client has not declared this capability")
}

/// Returns the response (-32602) to a malformed server request; `what` is the reason.
pub fn invalid_params(id: &Id, what: &str) -> String {
    refusal(id, INVALID_PARAMS, what)
}

/// Returns the response (-32603) to a server request that the client did not answer.
pub(crate) fn no_answer(id: &Id) -> String {
    refusal(id, INTERNAL_ERROR, "the client did not answer")
}

/// Returns the response to a server request with the client's answer.
pub fn client_answer(id: &Id, answer: &Answer) -> String {
    match answer {
        Answer::Result(result) => response(id, |out| {
            out.json("result", result.json().text());
        }),
        Answer::Error { code, message } => refusal(id, *code, message),
    }
}

fn refusal(id: &Id, code: i64, message: &str) -> String {
    response(id, |out| {
        out.object("error", |error| {
            error.display("code", code).text("message", message);
        });
    })
}

fn response(id: &Id, outcome: impl FnOnce(&mut ObjectWriter<'_>)) -> String {
    jsonrpc::message(128, |response| {
        outcome(response.json("id", id.text()));
    })
}

const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;

/// The id of `initialize` on each connection.
pub(crate) const INITIALIZE_ID: u64 = 1;

/// Returns `notifications/cancelled` for a request whose client no longer waits; `None` for
/// `initialize`, which must not be cancelled (MCP 2025-11-25, cancellation).
pub fn cancellation(id: &Id) -> Option<String> {
    (*id != Id::number(INITIALIZE_ID)).then(|| {
        jsonrpc::notification(CANCELLED, |params| {
            params.json("requestId", id.text());
        })
    })
}

fn error(code: i64, message: Option<Json<'_>>, data: Option<Json<'_>>) -> Kind {
    let message = message.and_then(Json::as_str).unwrap_or_default();
    // The `data` of `URLElicitationRequiredError` has the URLs to visit, so it may be longer.
    let most = if code == URL_ELICITATION_REQUIRED { MAX_ELICITATIONS } else { EXCERPT };
    let data = data.filter(|d| d.text().len() <= most && is_plain(*d));
    let data = data.map(|d| d.text().to_owned());
    Kind::Error { code, message: sanitised(&message, MAX_MESSAGE), data }
}

/// Code of `URLElicitationRequiredError` (MCP 2025-11-25, elicitation): its `data` names the URLs
/// that the user must visit first.
pub const URL_ELICITATION_REQUIRED: i64 = -32042;
/// Longest `message` of an error that is read, in bytes. Secrets are removed from it before callers
/// get an excerpt, since a truncated secret is not recognized.
const MAX_MESSAGE: usize = 16 << 10;
/// Longest `data` of a `URLElicitationRequiredError`, in bytes: enough for some dozens of URLs.
const MAX_ELICITATIONS: usize = 16 << 10;

/// Returns whether no string in the value contains hidden characters.
fn is_plain(value: Json<'_>) -> bool {
    value.as_str().is_none_or(|text| !text.chars().any(is_hidden))
        && value.members().all(|(key, value)| is_plain(key) && is_plain(value))
        && value.elements().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Option<Result<String, Kind>> {
        let message = document(text.as_bytes().to_vec()).unwrap();
        let answer = read_response(&Id::number(1), message);
        answer.map(|a| a.map(|d| d.json().text().to_owned()))
    }

    #[test]
    fn u6_responses_that_violate_json_rpc_are_protocol_errors() {
        let ok = r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#;
        assert_eq!(answer(ok), Some(Ok(r#"{"a":1}"#.to_owned())));
        for broken in [
            "7",
            r#"{"jsonrpc":"1.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":[]}"#,
        ] {
            assert!(matches!(answer(broken), Some(Err(Kind::Protocol(_)))), "{broken}");
        }
    }

    #[test]
    fn u7_messages_that_are_not_the_response_are_ignored() {
        for other in [
            r#"{"jsonrpc":"2.0","id":"x","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":2,"result":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#,
            r#"[{"jsonrpc":"2.0","id":2,"result":{}}]"#,
        ] {
            assert_eq!(answer(other), None, "{other}");
        }
        let batch = r#"[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"result":{}}]"#;
        assert_eq!(answer(batch), Some(Ok("{}".to_owned())));
        let batch = r#"[{"level":30,"id":1},{"jsonrpc":"2.0","id":"1","result":{}}]"#;
        assert_eq!(answer(batch), Some(Ok("{}".to_owned())));
    }

    #[test]
    fn an_error_without_an_id_is_the_response_and_a_result_is_not() {
        for id in [r#""id":null,"#, ""] {
            let text =
                format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-32602,"message":"x"}}}}"#);
            let Some(Err(Kind::Error { code: -32602, message, .. })) = answer(&text) else {
                panic!("{text}")
            };
            assert_eq!(message, "x");
        }
        let result = r#"{"jsonrpc":"2.0","id":null,"result":{}}"#;
        assert!(matches!(answer(result), Some(Err(Kind::Protocol(_)))));
    }

    #[test]
    fn what_cannot_be_read_says_why_and_repeats_no_message() {
        let why = |text: &str| document(text.as_bytes().to_vec()).unwrap_err().why;
        assert_eq!(why(r#"{"id":7,"a":"SECRET","a":1}"#), "duplicate member at byte 21");
        let noise = Kind::from(document(b"<h1>Bad\x1b gateway".to_vec()).unwrap_err());
        assert_eq!(noise.to_string(), format!("the response violates the protocol: {NO_MESSAGE}"));
        assert!(noise.diagnosis().ends_with("a text that is no message: <h1>Bad  gateway"));
        assert_eq!(why(" "), "an empty text instead of a message");
        let broken = document(br#"{"id":7,"result":"#.to_vec()).unwrap_err();
        assert_eq!(broken.id, Some(Id::number(7)));
        for (text, is_response) in [
            (r#"{"id":7,"result":}"#, true),
            (r#"{"id":8,"result":}"#, false),
            (r#"{"a":}"#, true),
            (r#"{"method":"x","a":}"#, false),
            ("ping", false),
        ] {
            let unreadable = document(text.as_bytes().to_vec()).unwrap_err();
            assert_eq!(unreadable.is_response_to(&Id::number(7)), is_response, "{text}");
        }
    }

    #[test]
    fn u8_a_batch_of_very_many_messages_is_refused() {
        let batch = |items: usize| format!("[{}1]", "1,".repeat(items - 1)).into_bytes();
        assert_eq!(messages(batch(BATCH_ITEMS)).unwrap().len(), BATCH_ITEMS);
        assert!(messages(batch(BATCH_ITEMS + 1)).is_err());

        let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let last_of = |items: usize| format!("[{}{response}]", "1,".repeat(items - 1));
        assert_eq!(answer(&last_of(BATCH_ITEMS)), Some(Ok("{}".to_owned())));
        assert_eq!(answer(&last_of(BATCH_ITEMS + 1)), None);
    }

    #[test]
    fn an_error_is_cut_and_cleaned() {
        let long = "x".repeat(MAX_MESSAGE);
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32602,"message":"a\u001b{long}","data":"{long}"}}}}"#
        );
        let Some(Err(Kind::Error { code: -32602, message, data: None })) = answer(&text) else {
            panic!()
        };
        assert!(message.starts_with("a x") && message.len() == MAX_MESSAGE);
    }
}
