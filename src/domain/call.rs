//! What is asked, free of wire form: the one thing that policy and router see.

use std::net::IpAddr;

use super::caller::Caller;
use super::document::Document;
use super::fault::{Fault, RequestFault};
use super::json::object::write_members;
use super::json::{Json, Kind};
use super::meta;
use super::method::Method;
use super::server_request::ClientCapabilities;
use super::trace::Trace;

/// A request for prompts, and who makes it where.
#[derive(Clone, Debug)]
pub struct Call {
    pub caller: Caller,
    /// Path of the endpoint that was asked.
    pub endpoint: String,
    /// Where it comes from, where that is an address.
    pub address: Option<IpAddr>,
    pub client: Client,
    pub forwarded: ForwardedMeta,
    pub request: Request,
}

/// What the client behind a call can take before its answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Client {
    /// What it can be asked.
    pub capabilities: ClientCapabilities,
    pub mode: ServerRequestMode,
    /// Whether it wants to hear of progress.
    pub progress: bool,
}

/// How a client is asked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ServerRequestMode {
    /// By requests, while it waits for its answer.
    #[default]
    MidCall,
    /// By an answer that asks; it calls again with what the user said. Nothing is remembered here.
    InputRequired,
}

/// What travels along with a call, to be carried on.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ForwardedMeta {
    /// Members of the client's `_meta` that the client may set, as JSON text without braces.
    pub meta: String,
    pub trace: Trace,
}

impl ForwardedMeta {
    /// `header` looks up the headers of the request, where there are any.
    pub fn read<'a>(params: Option<Json<'_>>, header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let theirs = params.and_then(|p| p.get("_meta")).filter(|m| m.is_object());
        let mut kept = String::new();
        if let Some(theirs) = theirs {
            write_members(&mut kept, |out| meta::write_foreign(theirs, out));
        }
        Self { meta: kept, trace: Trace::read(theirs, header) }
    }
}

/// What a client brings when it calls again with answers.
#[derive(Clone, Debug)]
pub struct InputRetry {
    /// `requestState` as we gave it out.
    pub state: String,
    /// `inputResponses`: an object.
    pub responses: Option<Document>,
}

/// One of the three things that can be asked, with checked parameters.
#[derive(Clone, Debug)]
pub enum Request {
    List {
        cursor: Option<String>,
    },
    Get {
        /// Public name.
        name: String,
        /// An object of strings.
        arguments: Option<Document>,
        /// Present when it calls again with what the user said.
        retry: Option<InputRetry>,
    },
    Complete {
        /// Public name.
        name: String,
        argument: String,
        /// What was typed so far.
        value: String,
        /// `{arguments: {…}}` of what is known already.
        context: Option<Document>,
    },
}

impl Request {
    /// Reads the parameters of a method.
    ///
    /// # Errors
    /// -32602 that names the member at fault.
    pub fn read(method: Method, params: Option<Json<'_>>) -> Result<Self, Fault> {
        let member = |name: &str| params.and_then(|p| p.get(name));
        Ok(match method {
            Method::List => Self::List {
                cursor: match member("cursor") {
                    None => None,
                    Some(cursor) => Some(text(cursor).ok_or(RequestFault::InvalidCursor)?),
                },
            },
            Method::Get => Self::Get {
                name: required(member("name"), "name")?,
                arguments: strings(member("arguments"), "arguments")?,
                retry: retry(member("requestState"), member("inputResponses"))?,
            },
            Method::Complete => {
                let reference = member("ref").filter(|r| r.is_object());
                if !reference.and_then(|r| r.get("type")).is_some_and(|t| t.is("ref/prompt")) {
                    let what = "`ref` must be {type: \"ref/prompt\", name}: no other references are served";
                    return Err(Fault::invalid_params(what));
                }
                let argument = member("argument");
                let part = |name: &str| argument.and_then(|a| a.get(name));
                let context = member("context").filter(|c| c.is_object());
                strings(context.and_then(|c| c.get("arguments")), "context.arguments")?;
                Self::Complete {
                    name: required(reference.and_then(|r| r.get("name")), "ref.name")?,
                    argument: required(part("name"), "argument.name")?,
                    value: required(part("value"), "argument.value")?,
                    context: context.map(Document::copy_of),
                }
            }
        })
    }

    pub fn method(&self) -> Method {
        match self {
            Self::List { .. } => Method::List,
            Self::Get { .. } => Method::Get,
            Self::Complete { .. } => Method::Complete,
        }
    }

    /// The public name that is asked for; lists ask for none.
    pub fn prompt_name(&self) -> Option<&str> {
        match self {
            Self::List { .. } => None,
            Self::Get { name, .. } | Self::Complete { name, .. } => Some(name),
        }
    }
}

/// Answers without a state belong to no question of ours: they are asked for anew.
fn retry(
    state: Option<Json<'_>>,
    responses: Option<Json<'_>>,
) -> Result<Option<InputRetry>, RequestFault> {
    let Some(state) = state else {
        return Ok(None);
    };
    let state = text(state).ok_or(RequestFault::InvalidState)?;
    let what = "`inputResponses` must be an object of objects".to_owned();
    let objects = |r: &Json<'_>| r.is_object() && r.members().all(|(_, answer)| answer.is_object());
    match responses {
        Some(responses) if !objects(&responses) => Err(RequestFault::InvalidParams { what }),
        responses => Ok(Some(InputRetry { state, responses: responses.map(Document::copy_of) })),
    }
}

fn text(value: Json<'_>) -> Option<String> {
    value.as_str().map(|text| text.into_owned())
}

fn required(value: Option<Json<'_>>, name: &str) -> Result<String, Fault> {
    let text = value.and_then(text);
    text.ok_or_else(|| Fault::invalid_params(format!("`{name}` must be a string")))
}

fn strings(value: Option<Json<'_>>, name: &str) -> Result<Option<Document>, Fault> {
    let Some(value) = value else {
        return Ok(None);
    };
    let all = |v: Json<'_>| v.members().all(|(_, v)| v.kind() == Kind::String);
    if !value.is_object() || !all(value) {
        return Err(Fault::invalid_params(format!("`{name}` must be an object of strings")));
    }
    Ok(Some(Document::copy_of(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: Method, params: &str) -> Result<Request, Fault> {
        Request::read(method, Some(Json::parse(params.as_bytes(), 64).unwrap()))
    }

    #[test]
    fn parameters_are_checked() {
        let ok = read(Method::Get, r#"{"name":"a","arguments":{"x":"1"},"_meta":{}}"#).unwrap();
        assert_eq!(ok.prompt_name(), Some("a"));
        for (method, params) in [
            (Method::Get, "{}"),
            (Method::Get, r#"{"name":1}"#),
            (Method::Get, r#"{"name":"a","arguments":{"x":1}}"#),
            (Method::Get, r#"{"name":"a","arguments":["x"]}"#),
            (Method::Get, r#"{"name":"a","arguments":{"x":null}}"#),
            (Method::Complete, r#"{"ref":{"type":"ref/resource","uri":"a:b"}}"#),
            (Method::Complete, r#"{"ref":{"type":"ref/prompt","name":"a"}}"#),
            (
                Method::Complete,
                r#"{"ref":{"type":"ref/prompt","name":"a"},"argument":{"name":"x"}}"#,
            ),
        ] {
            let fault = read(method, params).unwrap_err();
            assert!(
                matches!(fault, Fault::Request(RequestFault::InvalidParams { .. })),
                "{params}"
            );
        }
        assert!(Request::read(Method::Get, None).is_err());
        assert!(Request::read(Method::List, None).is_ok());
    }

    #[test]
    fn c1_a_cursor_that_is_not_a_string_is_refused() {
        let fault = read(Method::List, r#"{"cursor":1}"#).unwrap_err();
        assert_eq!(fault, RequestFault::InvalidCursor.into());
        let Request::List { cursor } = read(Method::List, r#"{"cursor":""}"#).unwrap() else {
            panic!()
        };
        assert_eq!(cursor.as_deref(), Some(""));
    }
}
