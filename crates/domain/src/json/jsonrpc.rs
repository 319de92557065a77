//! JSON-RPC 2.0 messages as MCP uses them: requests, notifications and responses.

use std::borrow::Cow;
use std::fmt;

use crate::json::object::{ObjectWriter, write_object};
use crate::json::{Json, JsonKind, write_str};

/// A request id as the JSON text of its sender, so that a response echoes it byte for byte: a
/// string literal with its quotes, or an integer within 64 bits.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Id(Box<str>);

/// One JSON-RPC message. Its parts borrow from the accepted text.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame<'a> {
    Request {
        id: Id,
        method: Cow<'a, str>,
        params: Option<Json<'a>>,
    },
    Notification {
        method: Cow<'a, str>,
        params: Option<Json<'a>>,
    },
    Response {
        /// The id of the request, as [`Id::read_echo`] reads it; `None` on an error response to a
        /// request whose id could not be read.
        id: Option<Id>,
        outcome: ResponseOutcome<'a>,
    },
}

/// The outcome in a response: a result or an error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResponseOutcome<'a> {
    Result(Json<'a>),
    Error {
        code: i64,
        /// A JSON string; `None` if it is absent or has another type.
        message: Option<Json<'a>>,
        data: Option<Json<'a>>,
    },
}

/// The reason why a JSON value is not a JSON-RPC message. The error has the request's id if it
/// could be read, so that the error response can name the request.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{what}")]
pub struct FrameError {
    pub id: Option<Id>,
    pub what: &'static str,
}

/// The maximum length of a request id, in bytes of JSON text. Each response repeats the id, and the
/// gateway keeps it while a call runs; real clients use a few digits or a UUID.
pub(crate) const MAX_ID: usize = 1024;

impl Id {
    /// Reads an id: a string, or an integer within 64 bits (MCP 2025-11-25, basic: "MUST be a
    /// string or integer", never null). Returns `None` for any other value, and above [`MAX_ID`]
    /// bytes.
    pub fn read(value: Json<'_>) -> Option<Self> {
        let valid = match value.kind() {
            JsonKind::String => true,
            JsonKind::Number => value.as_i64().is_some(),
            _ => false,
        };
        (valid && value.text().len() <= MAX_ID).then(|| Self(value.text().into()))
    }

    /// Reads the id by which a peer names a request of the gateway. The gateway generates integers;
    /// some peers repeat them as `"1"` or `1.0`, which denotes the same request (the official SDKs
    /// for Python and TypeScript compare by value).
    pub fn read_echo(value: Json<'_>) -> Option<Self> {
        let digits = value.raw_str().and_then(|digits| digits.parse().ok());
        let number: Option<i64> = digits.or_else(|| value.as_whole());
        number.map_or_else(|| Self::read(value), |number| Some(Self(number.to_string().into())))
    }

    /// Returns an integer id that the gateway generates.
    pub fn number(n: u64) -> Self {
        Self(n.to_string().into())
    }

    /// Returns a string id that the gateway generates.
    pub fn of_text(text: &str) -> Self {
        let mut literal = String::with_capacity(text.len() + 2);
        write_str(text, &mut literal);
        Self(literal.into())
    }

    /// Returns the JSON text of the id.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns a JSON-RPC message with the members that `write` adds after `jsonrpc`. `size` is the
/// approximate length of these members in bytes.
pub fn message(size: usize, write: impl FnOnce(&mut ObjectWriter<'_>)) -> String {
    let mut out = String::with_capacity(size + 32);
    write_object(&mut out, |message| {
        message.text("jsonrpc", "2.0");
        write(message);
    });
    out
}

/// Returns a request whose `params` object has the members that `params` adds. `size` is the
/// approximate length of these members in bytes.
pub fn request(
    id: &Id,
    method: &str,
    size: usize,
    params: impl FnOnce(&mut ObjectWriter<'_>),
) -> String {
    message(size + 64, |request| {
        request.json("id", id.text()).text("method", method).object("params", params);
    })
}

/// Returns a notification. The member `params` is absent if `params` adds no members.
pub fn notification(method: &str, params: impl FnOnce(&mut ObjectWriter<'_>)) -> String {
    message(128, |notification| {
        notification.text("method", method).object_unless_empty("params", params);
    })
}

impl<'a> Frame<'a> {
    /// Reads a message like [`Frame::read`], but refuses members that JSON-RPC does not define: a
    /// parser that ignores case or truncates at NUL would accept `Method` or `params\u0000`, which
    /// the gateway ignores.
    ///
    /// # Errors
    /// If the value is not a JSON-RPC message, or has an unknown member.
    pub fn read_strict(value: Json<'a>) -> Result<Self, FrameError> {
        let parts = Parts::of(value)?;
        if parts.has_unknown {
            let what =
                "a message may only have the members jsonrpc, id, method, params, result, error";
            return Err(parts.error(what));
        }
        parts.frame()
    }

    /// Reads one JSON value as a request, a notification or a response. Unknown members are
    /// ignored.
    ///
    /// # Errors
    /// If the value is not a JSON-RPC 2.0 message.
    pub fn read(value: Json<'a>) -> Result<Self, FrameError> {
        Parts::of(value)?.frame()
    }
}

/// Returns whether a value is meant as a response, also as a malformed response: it is no request,
/// and says that it is a message, or has nothing but an outcome. A line of a log in JSON, which may
/// have an `id` and an `error`, too, is none.
pub fn is_response(value: Json<'_>) -> bool {
    Parts::of(value).is_ok_and(|parts| {
        let has_outcome = parts.result.is_some() || parts.error.is_some();
        parts.method.is_none() && (parts.version.is_some() || has_outcome && !parts.has_unknown)
    })
}

#[derive(Default)]
struct Parts<'a> {
    version: Option<Json<'a>>,
    id: Option<Json<'a>>,
    method: Option<Json<'a>>,
    params: Option<Json<'a>>,
    result: Option<Json<'a>>,
    error: Option<Json<'a>>,
    /// Whether the message has a member that JSON-RPC does not define.
    has_unknown: bool,
}

impl<'a> Parts<'a> {
    fn of(value: Json<'a>) -> Result<Self, FrameError> {
        let mut parts = Self::default();
        if !value.is_object() {
            return Err(parts.error("a message must be a JSON object"));
        }
        for (key, member) in value.members() {
            let is_null = member.kind() == JsonKind::Null;
            match key.as_str().as_deref() {
                // Some peers always write all three members.
                Some("params" | "result" | "error") if is_null => {}
                // PHP writes an empty object as an empty array.
                Some("params") if member.is_empty_array() => {}
                Some("jsonrpc") => parts.version = Some(member),
                Some("id") => parts.id = Some(member),
                Some("method") => parts.method = Some(member),
                Some("params") => parts.params = Some(member),
                Some("result") => parts.result = Some(member),
                Some("error") => parts.error = Some(member),
                _ => parts.has_unknown = true,
            }
        }
        Ok(parts)
    }

    fn frame(self) -> Result<Frame<'a>, FrameError> {
        if !self.version.is_some_and(|v| v.is("2.0")) {
            return Err(self.error("`jsonrpc` must be \"2.0\""));
        }
        match self.method {
            Some(method) => self.request(method),
            None => self.response(),
        }
    }

    fn request(self, method: Json<'a>) -> Result<Frame<'a>, FrameError> {
        if self.result.is_some() || self.error.is_some() {
            return Err(self.error("a message is either a request or a response"));
        }
        let Some(method) = method.as_str() else {
            return Err(self.error("`method` must be a string"));
        };
        if self.params.is_some_and(|p| !p.is_object()) {
            return Err(self.error("`params` must be an object"));
        }
        let Some(id) = self.id else {
            let params = self.params;
            return Ok(Frame::Notification { method, params });
        };
        match Id::read(id) {
            Some(id) => Ok(Frame::Request { id, method, params: self.params }),
            None => Err(self.error("`id` must be a string or an integer within 64 bits")),
        }
    }

    fn response(self) -> Result<Frame<'a>, FrameError> {
        let outcome = match (self.result, self.error) {
            (Some(result), None) => ResponseOutcome::Result(result),
            (None, Some(error)) => match error.get("code").and_then(Json::as_whole) {
                Some(code) => ResponseOutcome::Error {
                    code,
                    message: error.get("message").filter(|m| m.kind() == JsonKind::String),
                    data: error.get("data"),
                },
                None => return Err(self.error("`error.code` must be an integer")),
            },
            (Some(_), Some(_)) => return Err(self.error("a message has both `result` and `error`")),
            (None, None) => return Err(self.error("`method`, `result` or `error` is missing")),
        };
        let id = self.id.and_then(Id::read_echo);
        if id.is_none() && matches!(outcome, ResponseOutcome::Result(_)) {
            return Err(self.error("a result must have the `id` of its request"));
        }
        Ok(Frame::Response { id, outcome })
    }

    fn error(&self, what: &'static str) -> FrameError {
        FrameError { id: self.id.and_then(Id::read), what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Frame<'_>, FrameError> {
        Frame::read_strict(Json::parse(text.as_bytes(), 64).unwrap())
    }

    #[test]
    fn w7_ids_are_kept_byte_for_byte_with_their_type() {
        for id in ["1", "-1", "0", "\"1\"", "\"\\u0041\"", "9223372036854775807", "\"\""] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
            let Ok(Frame::Request { id: read, .. }) = read(&text) else { panic!("{id}") };
            assert_eq!(read.text(), id);
        }
    }

    #[test]
    fn w7_invalid_ids_are_refused() {
        for id in ["1.5", "null", "{}", "[1]", "true", "9223372036854775808", "1e3", "1.0"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
            assert_eq!(read(&text).unwrap_err().id, None, "{id}");
        }
        let long =
            format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(MAX_ID - 1));
        assert!(read(&long).is_err());
    }

    #[test]
    fn an_id_of_the_gateway_is_the_same_in_another_json_type() {
        for (echo, id) in [
            ("7", Some("7")),
            ("\"7\"", Some("7")),
            ("7.0", Some("7")),
            ("7e0", Some("7")),
            ("7.5", None),
            ("1e300", None),
            ("\"7.0\"", Some("\"7.0\"")),
            ("\"x\"", Some("\"x\"")),
            ("null", None),
            ("[7]", None),
        ] {
            let read = Id::read_echo(Json::parse(echo.as_bytes(), 8).unwrap());
            assert_eq!(read.as_ref().map(Id::text), id, "{echo}");
            let text = format!(r#"{{"jsonrpc":"2.0","id":{echo},"result":{{}}}}"#);
            assert_eq!(Frame::read(Json::parse(text.as_bytes(), 8).unwrap()).is_ok(), id.is_some());
        }
    }

    #[test]
    fn a_line_of_a_log_is_no_response() {
        for (text, is_meant) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":[]}"#, true),
            (r#"{"jsonrpc":"2.0","id":1}"#, true),
            (r#"{"id":1,"result":{}}"#, true),
            (r#"{"level":30,"msg":"request","id":1}"#, false),
            (r#"{"level":50,"error":{"code":7},"id":1}"#, false),
            (r#"{"id":1}"#, false),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, false),
            ("[1]", false),
        ] {
            assert_eq!(is_response(Json::parse(text.as_bytes(), 8).unwrap()), is_meant, "{text}");
        }
    }

    #[test]
    fn w6_look_alike_members_are_refused() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"Method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","paramſ":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method\u0000":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":1}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
        ] {
            assert_eq!(read(text).unwrap_err().id, Some(Id::number(1)), "{text}");
        }
    }

    #[test]
    fn an_empty_array_of_params_is_an_empty_object() {
        let read = read(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#);
        assert!(matches!(read, Ok(Frame::Request { params: None, .. })), "{read:?}");
    }

    #[test]
    fn responses_are_distinguished_from_requests() {
        let ok = read(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#).unwrap();
        assert!(matches!(ok, Frame::Response { id: Some(_), outcome: ResponseOutcome::Result(_) }));
        let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#;
        let error = read(error).unwrap();
        let Frame::Response { id: None, outcome: ResponseOutcome::Error { code, .. } } = error
        else {
            panic!()
        };
        assert_eq!(code, -32700);
        assert!(read(r#"{"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1}}"#).is_err());
        assert!(read(r#"{"jsonrpc":"2.0","result":{}}"#).is_err());
        let both = read(r#"{"jsonrpc":"2.0","id":7,"result":{},"error":null}"#).unwrap();
        assert!(matches!(both, Frame::Response { outcome: ResponseOutcome::Result(_), .. }));
    }
}
