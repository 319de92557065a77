//! Codec of replies: the responses of upstreams to the gateway's requests, and the gateway's
//! responses to server requests.

use domain::document::Document;
use domain::fault::{EXCERPT, UpstreamFaultKind as Kind, sanitised};
use domain::json::object::ObjectWriter;
use domain::json::{Json, JsonKind};
use domain::jsonrpc::{self, Frame, Id, ResponseOutcome};
use domain::method::{CANCELLED, PING};
use domain::name::is_hidden;
use domain::server_request::Answer;

/// Most nested arrays and objects in a message of an upstream. Definitions and results are shallow;
/// the depth of `_meta` is the upstream's choice.
const DEPTH: usize = 64;

/// Most messages in a batch of an upstream: each is delivered by itself, and takes more memory than
/// its shortest text.
const BATCH_ITEMS: usize = 1_000;

/// Parses the bytes of one message.
///
/// # Errors
/// [`Kind::Protocol`] if the bytes are not strict JSON.
pub(crate) fn document(bytes: Vec<u8>) -> Result<Document, Kind> {
    Document::parse(bytes, DEPTH).map_err(|e| Kind::Protocol(e.to_string()))
}

/// Parses one message, or the messages of a batch.
///
/// # Errors
/// [`Kind::Protocol`] if the bytes are not strict JSON, or a batch has more than [`BATCH_ITEMS`]
/// messages.
pub(crate) fn messages(bytes: Vec<u8>) -> Result<Vec<Document>, Kind> {
    let message = document(bytes)?;
    if message.json().kind() != JsonKind::Array {
        return Ok(vec![message]);
    }
    let batch = message.json();
    if batch.elements().nth(BATCH_ITEMS).is_some() {
        return Err(Kind::Protocol(format!("a batch has more than {BATCH_ITEMS} messages")));
    }
    Ok(batch.elements().map(Document::copy_of).collect())
}

/// Returns the outcome of the request `id` if the message is its response, or a batch that contains
/// the response (legacy upstreams); `None` for all other messages.
pub(crate) fn read_response(id: &Id, mut message: Document) -> Option<Result<Document, Kind>> {
    if message.json().kind() == JsonKind::Array {
        let is_ours = |m: &Json<'_>| {
            m.get("method").is_none() && m.get("id").and_then(Id::read).as_ref() == Some(id)
        };
        message.narrow(|batch| batch.elements().take(BATCH_ITEMS).find(is_ours))?;
    }
    match Frame::read(message.json()) {
        Err(error) => Some(Err(Kind::Protocol(error.to_string()))),
        Ok(Frame::Response { id: Some(answered), outcome }) if answered == *id => match outcome {
            ResponseOutcome::Result(result) if result.is_object() => Some(
                message
                    .narrow(|m| m.get("result"))
                    .ok_or_else(|| Kind::Internal("a response lost its result".into()))
                    .map(|()| message),
            ),
            ResponseOutcome::Result(_) => {
                Some(Err(Kind::Protocol("the result is not an object".into())))
            }
            ResponseOutcome::Error { code, message, data } => Some(Err(error(code, message, data))),
        },
        Ok(_) => None,
    }
}

/// Returns the JSON-RPC error in the body of an HTTP error response. Its `id` may be missing or
/// null, when the upstream could not read the id of the request.
pub(crate) fn read_error_body(id: &Id, message: &Document) -> Option<Kind> {
    match Frame::read(message.json()) {
        Ok(Frame::Response {
            id: answered,
            outcome: ResponseOutcome::Error { code, message, data },
        }) => answered.is_none_or(|a| a == *id).then(|| error(code, message, data)),
        _ => None,
    }
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
pub(crate) fn invalid_params(id: &Id, what: &str) -> String {
    refusal(id, INVALID_PARAMS, what)
}

/// Returns the response (-32603) to a server request that the client did not answer.
pub(crate) fn no_answer(id: &Id) -> String {
    refusal(id, INTERNAL_ERROR, "the client did not answer")
}

/// Returns the response to a server request with the client's answer.
pub(crate) fn client_answer(id: &Id, answer: &Answer) -> String {
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
pub(crate) fn cancellation(id: &Id) -> Option<String> {
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
pub(crate) const URL_ELICITATION_REQUIRED: i64 = -32042;
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
            r#"{"jsonrpc":"2.0","id":"1","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":2,"result":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#,
            r#"[{"jsonrpc":"2.0","id":2,"result":{}}]"#,
        ] {
            assert_eq!(answer(other), None, "{other}");
        }
        let batch = r#"[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"result":{}}]"#;
        assert_eq!(answer(batch), Some(Ok("{}".to_owned())));
    }

    #[test]
    fn u8_a_batch_of_very_many_messages_is_refused() {
        let batch = |items: usize| format!("[{}1]", "1,".repeat(items - 1)).into_bytes();
        assert_eq!(messages(batch(BATCH_ITEMS)).unwrap().len(), BATCH_ITEMS);
        assert!(matches!(messages(batch(BATCH_ITEMS + 1)), Err(Kind::Protocol(_))));

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
