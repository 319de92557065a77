//! Pass-through requests (tools, resources, …), which go to the upstream named in `[passthrough]`,
//! and the capabilities that this upstream has declared.

use std::sync::Arc;

use crate::fault::{Fault, RequestFault};
use crate::json::object::write_members;
use crate::json::{Json, write_str};
use crate::prompts::skill;
use crate::protocol::log_level::LogLevel;
use crate::protocol::method::{ForeignMethod, Method, SET_LOG_LEVEL, named_member};
use crate::protocol::params::{InputRetry, cursor, required, retry};
use crate::uri::normal_form::normal;

/// A request for the upstream of `[passthrough]`. Its parameters are forwarded unchanged, nulls
/// included.
#[derive(Clone, Debug)]
pub struct PassthroughRequest {
    /// The method on the wire.
    pub method: Arc<str>,
    /// `None` for a method that is not a [`ForeignMethod`].
    pub kind: Option<ForeignMethod>,
    /// The name of the tool, the [normal] URI of the resource, or else the method: access rules
    /// match this name, limits count by it, and records show it.
    pub name: Arc<str>,
    /// The name as the client has sent it.
    pub sent_name: Arc<str>,
    /// Whether the name is a URI that servers could read differently.
    pub is_ambiguous: bool,
    /// Members of `params` as JSON text without braces, except `_meta`, `cursor`, and the answers
    /// of a retry.
    pub params: Arc<str>,
    /// `cursor` of a list: a sealed token of the gateway.
    pub cursor: Option<String>,
    /// `Some` when the client calls again with the user's answers.
    pub retry: Option<InputRetry>,
    /// The level of `logging/setLevel`, a request of a legacy client about its own session. The
    /// upstream has one session for many clients, so the gateway keeps the level of each client and
    /// answers the request itself.
    pub log_level: Option<LogLevel>,
    /// The header that differs from the parameters. The call is refused only after the access
    /// check, so that the refusal does not reveal which tools exist.
    pub mismatch: Option<String>,
    /// The headers that repeat parameters for the upstream, as pairs of name and value.
    pub headers: Vec<(String, String)>,
}

/// A list of the upstream of `[passthrough]`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PassthroughList {
    /// The member of the result that has the elements.
    pub member: &'static str,
    /// The member that holds the name of an element.
    pub name: &'static str,
}

impl PassthroughRequest {
    /// Reads the parameters of a method.
    ///
    /// # Errors
    /// -32602 that names the invalid member.
    pub fn read(method: &str, params: Option<Json<'_>>) -> Result<Self, Fault> {
        let member = |name: &str| params.and_then(|p| p.get(name));
        let kind = ForeignMethod::parse(method);
        let name = match named_member(method) {
            _ if is_completion(method) => {
                required(member("ref").and_then(|r| r.get("uri")), "ref.uri")?
            }
            Some(key) => required(member(key), key)?,
            None => method.to_owned(),
        };
        let is_uri = kind == Some(ForeignMethod::ReadResource) || is_completion(method);
        let normal = if is_uri { normal(&name) } else { Some(name.clone()) };
        let is_list = kind.and_then(list_of).is_some();
        let mut kept = String::new();
        write_members(&mut kept, |out| {
            for (key, value) in params.iter().flat_map(|params| params.members()) {
                let is_cursor = is_list && key.is("cursor");
                let own = ["_meta", "requestState", "inputResponses"];
                if !is_cursor && !own.iter().any(|own| key.is(own)) {
                    out.rewritten(key, |out| out.push_str(value.text()));
                }
            }
        });
        Ok(Self {
            method: method.into(),
            kind,
            is_ambiguous: normal.is_none(),
            name: normal.unwrap_or_else(|| name.clone()).into(),
            sent_name: name.into(),
            params: kept.into(),
            cursor: if is_list { cursor(member("cursor"))? } else { None },
            retry: retry(member("requestState"), member("inputResponses"))?,
            log_level: match method {
                SET_LOG_LEVEL => {
                    let level = member("level").and_then(LogLevel::read);
                    Some(level.ok_or(RequestFault::LogLevelUnknown)?)
                }
                _ => None,
            },
            mismatch: None,
            headers: Vec::new(),
        })
    }

    /// Returns the requested list; `None` if the request is not for a list.
    pub fn list(&self) -> Option<PassthroughList> {
        self.kind.and_then(list_of)
    }

    /// Whether the request is for a resource, by its URI.
    pub fn is_of_resource(&self) -> bool {
        self.kind == Some(ForeignMethod::ReadResource)
    }

    /// Returns the value of the header `Mcp-Name`.
    pub fn mcp_name(&self) -> Option<&str> {
        named_member(&self.method).map(|_| &*self.sent_name)
    }

    /// Returns the method as metrics are labelled.
    pub fn label(&self) -> &'static str {
        self.kind.map_or("_OTHER", ForeignMethod::as_str)
    }

    /// Returns the key of a telemetry attribute for the name; `None` if the name is the method.
    pub fn attribute(&self) -> Option<&'static str> {
        match self.kind? {
            ForeignMethod::CallTool => Some("gen_ai.tool.name"),
            ForeignMethod::ReadResource => Some("mcp.resource.uri"),
            _ => None,
        }
    }

    /// Returns the members of `params` for the upstream, with the upstream's cursor.
    pub fn params_with(&self, cursor: Option<&str>) -> Arc<str> {
        let Some(cursor) = cursor else { return self.params.clone() };
        let mut params = self.params.to_string();
        if !params.is_empty() {
            params.push(',');
        }
        params.push_str("\"cursor\":");
        write_str(cursor, &mut params);
        params.into()
    }
}

fn list_of(method: ForeignMethod) -> Option<PassthroughList> {
    let (member, name) = match method {
        ForeignMethod::ListTools => ("tools", "name"),
        ForeignMethod::ListResources => ("resources", "uri"),
        ForeignMethod::ListTemplates => ("resourceTemplates", "uriTemplate"),
        ForeignMethod::CallTool | ForeignMethod::ReadResource => return None,
    };
    Some(PassthroughList { member, name })
}

fn is_completion(method: &str) -> bool {
    method == Method::Complete.as_str()
}

/// The capabilities of an upstream that do not concern prompts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PassthroughCapabilities {
    /// Whether the upstream has tools, and announces changes of their list.
    pub tools: Option<bool>,
    /// Whether the upstream has resources, and announces changes of their list.
    pub resources: Option<bool>,
    /// Whether the upstream sends log messages before the response to a call.
    pub logging: bool,
    pub completions: bool,
    /// Whether the upstream has skills, which are served like those of all upstreams.
    pub skills: bool,
    /// Extensions of the upstream, members of an object as JSON text without braces.
    pub extensions: String,
    /// The first segments of the methods of the upstream's other capabilities.
    namespaces: Vec<String>,
}

/// Capabilities that the gateway handles itself, including skills. `tasks` are excluded because
/// task ids belong to a session: callers that share a session would see each other's tasks.
const NOT_PASSED: [&str; 10] = [
    "prompts",
    "completions",
    "completion",
    "tools",
    "resources",
    "logging",
    "experimental",
    "extensions",
    "tasks",
    "skills",
];

/// First segments of the base protocol's methods.
const PROTOCOL: [&str; 7] =
    ["initialize", "ping", "server", "subscriptions", "notifications", "elicitation", "sampling"];

/// The limit of capabilities and extensions that are read: more would be a flood.
const MAX_NAMESPACES: usize = 64;

/// Longest text of all extensions, in bytes.
const MAX_EXTENSIONS: usize = 16 << 10;

impl PassthroughCapabilities {
    /// Reads the capabilities of an upstream.
    pub fn read(declared: Option<Json<'_>>) -> Self {
        let member = |name: &str| declared.and_then(|d| d.get(name)).filter(|c| c.is_object());
        let flag = |of: Json<'_>, name: &str| of.get(name).and_then(Json::as_bool) == Some(true);
        let all = declared.iter().flat_map(|d| d.members());
        let names = all.filter_map(|(key, _)| key.as_str()).map(|key| key.into_owned());
        let names = names.filter(|name| !NOT_PASSED.contains(&name.as_str()));
        let mut namespaces: Vec<String> = names.collect();
        let extension = |name| member("extensions").and_then(|e| e.get(name));
        let mut extensions = String::new();
        write_members(&mut extensions, |out| {
            for (key, value) in member("extensions").iter().flat_map(|e| e.members()) {
                let name = key.as_str().unwrap_or_default();
                let last = name.rsplit('/').next().unwrap_or_default();
                if !NOT_PASSED.contains(&last) {
                    namespaces.push(last.to_owned());
                    out.member(key, value);
                }
            }
        });
        if extensions.len() > MAX_EXTENSIONS {
            extensions.clear();
        }
        namespaces.retain(|name| !PROTOCOL.contains(&name.as_str()));
        namespaces.truncate(MAX_NAMESPACES);
        Self {
            tools: member("tools").map(|tools| flag(tools, "listChanged")),
            resources: member("resources").map(|resources| flag(resources, "listChanged")),
            logging: member("logging").is_some(),
            completions: member("completions").is_some(),
            skills: extension(skill::EXTENSION).is_some(),
            extensions,
            namespaces,
        }
    }

    /// Returns the typical declaration, for an upstream that was not reached yet.
    pub fn assumed() -> Self {
        Self { tools: Some(true), resources: Some(true), ..Self::default() }
    }

    /// Whether requests with this method go to the upstream. Requests for tools and resources
    /// always do: hosts send them to every server.
    pub fn takes(&self, method: &str, params: Option<Json<'_>>) -> bool {
        if ForeignMethod::parse(method).is_some() {
            return true;
        }
        let is_of_resource = || {
            let reference = params.and_then(|p| p.get("ref")?.get("type"));
            reference.is_some_and(|kind| kind.is("ref/resource"))
        };
        match method {
            SET_LOG_LEVEL => self.logging,
            method if is_completion(method) => self.completions && is_of_resource(),
            method => {
                let first = method.split('/').next().unwrap_or_default();
                self.namespaces.iter().any(|name| name == first)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json<'_> {
        Json::parse(text.as_bytes(), 16).unwrap()
    }

    #[test]
    fn parameters_are_kept_as_they_came_but_for_what_the_gateway_owns() {
        let params = r#"{"name":"t","arguments":{"x":null,"y":1.50},"_meta":{"a":1},"cursor":"c"}"#;
        let request = PassthroughRequest::read("tools/call", Some(json(params))).unwrap();
        assert_eq!(&*request.name, "t");
        let kept = r#""name":"t","arguments":{"x":null,"y":1.50},"cursor":"c""#;
        assert_eq!(&*request.params, kept);
        let list = PassthroughRequest::read("tools/list", Some(json(r#"{"cursor":"c"}"#))).unwrap();
        assert_eq!((&*list.params, list.cursor.as_deref()), ("", Some("c")));
        assert_eq!(&*list.params_with(Some("up\"")), r#""cursor":"up\"""#);
        assert!(PassthroughRequest::read("tools/call", Some(json("{}"))).is_err());
    }

    #[test]
    fn only_declared_methods_go_to_the_upstream_and_none_of_the_protocol() {
        let declared = r#"{"tools":{"listChanged":true},"logging":{},"tasks":{},"ping":{},
            "prompts":{},"audits":{},"extensions":{"com.example/ext":{"x":1},"io.x/tasks":{}}}"#;
        let read = PassthroughCapabilities::read(Some(json(declared)));
        let takes = |method| read.takes(method, None);
        for method in ["tools/call", "resources/read", "logging/setLevel", "audits/run", "ext/go"] {
            assert!(takes(method), "{method}");
        }
        for method in [
            "tasks/get",
            "ping",
            "prompts/get",
            "prompts/x",
            "completion/complete",
            "resources/subscribe",
            "x/y",
            "",
        ] {
            assert!(!takes(method), "{method}");
        }
        assert_eq!(read.extensions, r#""com.example/ext":{"x":1}"#);
        assert_eq!((read.tools, read.resources), (Some(true), None));
        let declared = r#"{"resources":{"subscribe":true}}"#;
        let read = PassthroughCapabilities::read(Some(json(declared)));
        assert!(!read.takes("resources/subscribe", None), "the gateway subscribes to nothing");
    }
}
