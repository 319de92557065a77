//! Calls: requests for prompts, free of their wire form. Policy and router see calls only.

use std::net::IpAddr;
use std::sync::Arc;

use crate::calls::caller::Caller;
use crate::calls::link::{Link, OWN};
use crate::calls::passthrough::PassthroughRequest;
use crate::calls::subject_token::SubjectToken;
use crate::fault::{Fault, RequestFault, excerpt};
use crate::json::document::Document;
use crate::json::object::write_members;
use crate::json::{Json, JsonKind};
use crate::prompts::skill::{SCHEME, SKILL_FILE};
use crate::protocol::log_level::LogLevel;
use crate::protocol::meta;
use crate::protocol::method::{Countable, Method};
use crate::protocol::params::{cursor, required, retry};
use crate::protocol::server_request::ClientCapabilities;
use crate::protocol::trace::Trace;
use crate::protocol::via::Via;
use crate::text::percent;

pub use crate::protocol::params::InputRetry;

/// A request for prompts with its caller, its endpoint and the abilities of its client.
#[derive(Clone, Debug)]
pub struct Call {
    pub caller: Caller,
    /// The token that the caller has brought; `None` for other credentials, and if no upstream
    /// needs it.
    pub subject_token: Option<SubjectToken>,
    /// Path of the endpoint that received the request.
    pub endpoint: Arc<str>,
    /// IP address of the client; `None` over standard streams.
    pub address: Option<IpAddr>,
    /// The visitor of the console who tries the prompt; `None` for calls of clients.
    pub tried_by: Option<Arc<str>>,
    pub client: ClientMessages,
    pub forwarded: ForwardedMeta,
    pub request: Request,
}

/// The messages that the client of a call accepts before the response.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ClientMessages {
    /// The server requests that the client can answer.
    pub capabilities: ClientCapabilities,
    pub mode: ServerRequestMode,
    /// Whether the request has a `progressToken`.
    pub progress: bool,
    /// The least severe log messages that the client gets; `None` for none.
    pub log_level: Option<LogLevel>,
    /// Whether the client can know about the skills of the gateway, whose files it reads.
    pub reads_skills: bool,
}

impl ClientMessages {
    /// Whether the client accepts any message before the response.
    pub fn accepts_messages(self) -> bool {
        self.progress || self.log_level.is_some() || !self.capabilities.is_none()
    }
}

/// The way in which a client receives server requests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ServerRequestMode {
    /// As JSON-RPC requests, while the client waits for the response (legacy era).
    #[default]
    MidCall,
    /// As an `InputRequiredResult` (MCP 2026-07-28, multi-round-trip requests): the client calls
    /// again with the user's answers. The gateway keeps no state in between.
    InputRequired,
}

/// The metadata of a call that the gateway forwards to the upstream.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ForwardedMeta {
    /// Members of the client's `_meta` that the client may set, as JSON text without braces.
    pub meta: String,
    pub trace: Trace,
    /// The gateways that the request has passed.
    pub via: Via,
}

impl ForwardedMeta {
    /// Reads `params._meta` and the trace headers. `header` looks up a request header by name; it
    /// returns `None` where the transport has no headers.
    pub fn read<'a>(params: Option<Json<'_>>, header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let theirs = params.and_then(|p| p.get("_meta")).filter(|m| m.is_object());
        let mut kept = String::new();
        if let Some(theirs) = theirs {
            write_members(&mut kept, |out| meta::write_foreign(theirs, out));
        }
        Self { meta: kept, trace: Trace::read(theirs, header), via: Via::read(theirs) }
    }
}

/// A request with checked parameters: one of the three methods for prompts, a request for the tools
/// that represent prompts, or a request for the upstream of `[passthrough]`.
#[derive(Clone, Debug)]
pub enum Request {
    List {
        cursor: Option<String>,
    },
    /// The list of the tools that represent prompts.
    ListTools {
        cursor: Option<String>,
    },
    /// A search for prompts (`find_prompt`) or skills (`find_skill`).
    Find {
        sought: Sought,
        /// Words to look for; empty for all prompts.
        query: String,
        cursor: Option<String>,
    },
    Get {
        /// Public name, or the name of the tool that represents the prompt.
        name: String,
        name_kind: NameKind,
        /// An object of strings.
        arguments: Option<Document>,
        /// `Some` when the client calls again with the user's answers.
        retry: Option<InputRetry>,
    },
    Complete {
        /// Public name.
        name: String,
        argument: String,
        /// The input so far, to be completed.
        value: String,
        /// `{arguments: {…}}`: the arguments that already have a value.
        context: Option<Document>,
    },
    ListSkills {
        cursor: Option<String>,
    },
    /// A request for a skill, or for a part of a skill.
    Skill {
        /// The URI of the skill as clients see it.
        uri: String,
        part: SkillPart,
    },
    /// A request for the resource behind a link in a prompt.
    ReadLink {
        /// The sealed URI as clients see it.
        uri: String,
        /// `None` for a link that is forged, expired, or of another caller or endpoint.
        link: Option<Box<Link>>,
    },
    /// A request for the upstream of `[passthrough]`.
    Passthrough(Box<PassthroughRequest>),
}

/// The list that a search covers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sought {
    Prompts,
    Skills,
}

/// The part of a skill that a call requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SkillPart {
    /// The entry of the skill, by the URI of its `SKILL.md`.
    Entry,
    File,
    /// The list of a folder of the skill.
    Directory,
}

/// The kind of name by which a call names its prompt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NameKind {
    /// The public name of the prompt.
    Public,
    /// The name of the prompt's tool. The arguments are then named as the properties of the tool.
    Tool,
}

/// The telemetry attribute for the name of a prompt.
pub const PROMPT_ATTRIBUTE: &str = "gen_ai.prompt.name";

/// Longest query of `find_prompt`, in bytes: each word is looked for in all prompts.
const MAX_QUERY: usize = 1024;

impl Request {
    /// Reads the parameters of a method.
    ///
    /// # Errors
    /// -32602 (invalid params) that names the invalid member. A `cursor` or `requestState` that is
    /// not a string is refused as [`RequestFault::InvalidCursor`] or
    /// [`RequestFault::InvalidState`].
    pub fn read(method: Method, params: Option<Json<'_>>) -> Result<Self, Fault> {
        let member = |name: &str| given(params?.get(name));
        Ok(match method {
            Method::ReadLink | Method::Passthrough => {
                return Err(RequestFault::MethodNotFound.into());
            }
            Method::List => Self::List { cursor: cursor(member("cursor"))? },
            Method::Get => Self::Get {
                name: required(member("name"), "name")?,
                name_kind: NameKind::Public,
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
            Method::ListSkills => Self::ListSkills { cursor: cursor(member("cursor"))? },
            Method::GetSkill => Self::of_skill(member("uri"), SkillPart::Entry)?,
            Method::ReadFile => Self::of_skill(member("uri"), SkillPart::File)?,
            Method::ReadDirectory if member("cursor").is_some() => {
                // The list of a folder has only one page.
                return Err(RequestFault::InvalidCursor.into());
            }
            Method::ReadDirectory => Self::of_skill(member("uri"), SkillPart::Directory)?,
        })
    }

    fn of_skill(uri: Option<Json<'_>>, part: SkillPart) -> Result<Self, Fault> {
        Ok(Self::Skill { uri: required(uri, "uri")?, part })
    }

    /// Reads the parameters of `tools/list`.
    ///
    /// # Errors
    /// [`RequestFault::InvalidCursor`] for a cursor that is not a string.
    pub fn read_list_tools(params: Option<Json<'_>>) -> Result<Self, Fault> {
        Ok(Self::ListTools { cursor: cursor(given(params.and_then(|p| p.get("cursor"))))? })
    }

    /// Reads the arguments of `find_prompt` and `find_skill`. Models send `null` or `""` for
    /// arguments that they leave out.
    ///
    /// # Errors
    /// -32602 that names the invalid argument, such as a query of more than 1,024 bytes.
    pub fn read_find(sought: Sought, arguments: Option<Json<'_>>) -> Result<Self, Fault> {
        let member = |name: &str| given(arguments?.get(name));
        let query = member("query").map(|query| required(Some(query), "query")).transpose()?;
        if query.as_ref().is_some_and(|query: &String| query.len() > MAX_QUERY) {
            return Err(Fault::invalid_params("`query` must have at most 1,024 bytes"));
        }
        let cursor = cursor(member("cursor"))?.filter(|cursor| !cursor.is_empty());
        Ok(Self::Find { sought, query: query.unwrap_or_default(), cursor })
    }

    /// Reads the arguments of `read_skill`: the name of a skill, as `find_skill` returns it, and
    /// the path of one of its files, which is `SKILL.md` if it is not given. A path may be written
    /// as in the entry of the skill, or as links in its texts do, with spaces and accents.
    ///
    /// # Errors
    /// -32602 that names the invalid argument.
    pub fn read_read_skill(arguments: Option<Json<'_>>) -> Result<Self, Fault> {
        let member = |name: &str| given(arguments?.get(name));
        let name = required(member("name"), "name")?;
        let file = member("file").map(|file| required(Some(file), "file")).transpose()?;
        let file = file.as_deref().filter(|file| !file.is_empty()).unwrap_or(SKILL_FILE);
        let uri = [SCHEME, &name, "/", &percent::encoded_foreign(file)].concat();
        Ok(Self::Skill { uri, part: SkillPart::File })
    }

    /// Reads the arguments of `use_prompt`; `params` are those of `tools/call`.
    ///
    /// # Errors
    /// -32602 that names the invalid argument.
    pub fn read_use(params: Option<Json<'_>>) -> Result<Self, Fault> {
        let arguments = params.and_then(|p| p.get("arguments"));
        let member = |name: &str| given(arguments?.get(name));
        let name = required(member("name"), "name")?;
        Self::of_tool(name, NameKind::Public, member("arguments"), params)
    }

    /// Reads a call of the tool that represents the prompt `name`; `params` are those of
    /// `tools/call`.
    ///
    /// # Errors
    /// -32602 that names the invalid argument.
    pub fn read_prompt_tool(name: String, params: Option<Json<'_>>) -> Result<Self, Fault> {
        let arguments = given(params.and_then(|p| p.get("arguments")));
        Self::of_tool(name, NameKind::Tool, arguments, params)
    }

    fn of_tool(
        name: String,
        name_kind: NameKind,
        arguments: Option<Json<'_>>,
        params: Option<Json<'_>>,
    ) -> Result<Self, Fault> {
        let member = |name: &str| params.and_then(|p| p.get(name));
        Ok(Self::Get {
            name,
            name_kind,
            arguments: strings(arguments, "arguments")?,
            retry: retry(member("requestState"), member("inputResponses"))?,
        })
    }

    pub fn method(&self) -> Method {
        match self {
            Self::List { .. }
            | Self::ListTools { .. }
            | Self::Find { sought: Sought::Prompts, .. } => Method::List,
            Self::Get { .. } => Method::Get,
            Self::Complete { .. } => Method::Complete,
            Self::ListSkills { .. } | Self::Find { sought: Sought::Skills, .. } => {
                Method::ListSkills
            }
            Self::Skill { part: SkillPart::Entry, .. } => Method::GetSkill,
            Self::Skill { part: SkillPart::File, .. } => Method::ReadFile,
            Self::Skill { part: SkillPart::Directory, .. } => Method::ReadDirectory,
            Self::ReadLink { .. } => Method::ReadLink,
            Self::Passthrough(_) => Method::Passthrough,
        }
    }

    /// Returns the upstream's URI of the resource behind a link.
    pub fn linked(&self) -> Option<&str> {
        match self {
            Self::ReadLink { link: Some(link), .. } => Some(&link.uri),
            _ => None,
        }
    }

    /// Returns how rate limits count the request.
    pub fn countable(&self) -> Countable {
        match self {
            Self::Passthrough(passthrough) => Countable::Passthrough(passthrough.kind),
            Self::ReadLink { .. } => Countable::Call(Method::ReadFile),
            request => Countable::Call(request.method()),
        }
    }

    /// Returns the method on the wire, for the audit log.
    pub fn wire_method(&self) -> &str {
        match self {
            Self::Passthrough(passthrough) => &passthrough.method,
            request => request.method().as_str(),
        }
    }

    /// Returns the method as a metric label, which has few values.
    pub fn method_label(&self) -> &'static str {
        match self {
            Self::Passthrough(passthrough) => passthrough.label(),
            request => request.method().as_str(),
        }
    }

    /// Whether the request contains values of the caller, which texts of upstreams may repeat.
    pub fn has_values(&self) -> bool {
        match self {
            Self::Get { arguments, retry, .. } => arguments.is_some() || retry.is_some(),
            Self::Complete { .. } | Self::Passthrough(_) => true,
            Self::List { .. }
            | Self::ListTools { .. }
            | Self::Find { .. }
            | Self::ListSkills { .. }
            | Self::Skill { .. }
            | Self::ReadLink { .. } => false,
        }
    }

    /// Returns the telemetry attribute for the name, and the name.
    pub fn attribute(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Passthrough(passthrough) => {
                passthrough.attribute().map(|key| (key, &*passthrough.name))
            }
            request => request.prompt_name().map(|name| (PROMPT_ATTRIBUTE, name)),
        }
    }

    /// Returns the name for records: the public name of the requested prompt or of the prompt with
    /// the link, the URI of a skill, file or folder, or the name of a request for the upstream of
    /// `[passthrough]`; `None` for a list. The URI of a link is a capability, so records never
    /// contain it.
    pub fn prompt_name(&self) -> Option<&str> {
        match self {
            Self::List { .. }
            | Self::ListTools { .. }
            | Self::Find { .. }
            | Self::ListSkills { .. } => None,
            Self::Get { name, .. }
            | Self::Complete { name, .. }
            | Self::Skill { uri: name, .. } => Some(name),
            Self::ReadLink { link, .. } => {
                Some(link.as_ref().map_or(OWN, |link| link.name.as_str()))
            }
            Self::Passthrough(passthrough) => {
                passthrough.list().is_none().then_some(&*passthrough.name)
            }
        }
    }
}

/// Returns a value unless it is `null`: models and client SDKs write an absent value as `null`.
fn given(value: Option<Json<'_>>) -> Option<Json<'_>> {
    value.filter(|value| value.kind() != JsonKind::Null)
}

/// Reads an object of strings. A member that is `null` counts as absent.
fn strings(value: Option<Json<'_>>, name: &str) -> Result<Option<Document>, Fault> {
    let Some(value) = value else {
        return Ok(None);
    };
    let not_object = || Fault::invalid_params(format!("`{name}` must be an object of strings"));
    let value = value.object().ok_or_else(not_object)?;
    let is_wrong = |value| given(Some(value)).is_some_and(|v| v.kind() != JsonKind::String);
    let wrong = value.members().find(|(_, value)| is_wrong(*value));
    if let Some((key, _)) = wrong {
        let key = excerpt(&key.as_str().unwrap_or_default());
        return Err(Fault::invalid_params(format!("`{name}.{key}` must be a string")));
    }
    // The copy contains no null.
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
            (Method::Get, r#"{"name":null}"#),
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
    fn a_null_counts_as_absent() {
        let params = r#"{"name":"a","arguments":{"flag":null,"x":"1"},"requestState":null}"#;
        let Ok(Request::Get { arguments: Some(arguments), retry: None, .. }) =
            read(Method::Get, params)
        else {
            panic!()
        };
        assert_eq!(arguments.json().text(), r#"{"x":"1"}"#);
        for (method, params) in [
            (Method::Get, r#"{"name":"a","arguments":null}"#),
            (Method::List, r#"{"cursor":null}"#),
            (
                Method::Complete,
                r#"{"ref":{"type":"ref/prompt","name":"a"},"argument":{"name":"x","value":""},"context":{"arguments":{"y":null}}}"#,
            ),
        ] {
            assert!(read(method, params).is_ok(), "{params}");
        }
        let Ok(Request::ListTools { cursor: None }) =
            Request::read_list_tools(Some(Json::parse(br#"{"cursor":null}"#, 8).unwrap()))
        else {
            panic!()
        };
    }

    #[test]
    fn an_argument_that_is_no_string_is_named() {
        let long = format!(r#"{{"name":"a","arguments":{{"{}":1}}}}"#, "x".repeat(1_000));
        for (method, params, expected) in [
            (
                Method::Get,
                r#"{"name":"a","arguments":{"x":"1","n":5}}"#,
                "`arguments.n` must be a string",
            ),
            (
                Method::Get,
                r#"{"name":"a","arguments":7}"#,
                "`arguments` must be an object of strings",
            ),
            (
                Method::Complete,
                r#"{"ref":{"type":"ref/prompt","name":"a"},"context":{"arguments":{"\u0007n":{}}}}"#,
                "`context.arguments. n` must be a string",
            ),
        ] {
            assert_eq!(read(method, params).unwrap_err().to_string(), expected);
        }
        assert!(read(Method::Get, &long).unwrap_err().to_string().len() < 400);
    }

    #[test]
    fn an_empty_array_of_arguments_is_an_empty_object() {
        let Ok(Request::Get { arguments, .. }) =
            read(Method::Get, r#"{"name":"a","arguments":[]}"#)
        else {
            panic!()
        };
        assert_eq!(arguments.unwrap().json().text(), "{}");
        let again = r#"{"name":"a","requestState":"s","inputResponses":[]}"#;
        assert!(read(Method::Get, again).is_ok());
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

    #[test]
    fn a_query_of_find_prompt_is_bounded() {
        let find = |bytes: usize| {
            let arguments = format!("{{\"query\":\"{}\"}}", "x".repeat(bytes));
            Request::read_find(Sought::Prompts, Some(Json::parse(arguments.as_bytes(), 8).unwrap()))
        };
        assert!(find(MAX_QUERY).is_ok());
        let fault = find(MAX_QUERY + 1).unwrap_err();
        assert!(fault.to_string().contains("1,024 bytes"), "{fault}");
    }
}
