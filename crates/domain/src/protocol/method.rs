//! The MCP methods that the gateway knows, with their names on the wire.

use std::fmt;

/// The method of a call. The session layer answers the methods that concern one connection only
/// (`initialize`, `ping`, `server/discover`); they are not calls.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Method {
    List,
    Get,
    Complete,
    ListSkills,
    GetSkill,
    /// `resources/read` of a file of a skill.
    ReadFile,
    /// `resources/directory/read` of a folder of a skill.
    ReadDirectory,
    /// `resources/read` of a link in a prompt.
    ReadLink,
    /// Any method of the upstream that `[passthrough]` names.
    Passthrough,
}

impl Method {
    /// The methods for prompts and skills, each with its wire name.
    pub const ALL: [Method; 7] = [
        Method::List,
        Method::Get,
        Method::Complete,
        Method::ListSkills,
        Method::GetSkill,
        Method::ReadFile,
        Method::ReadDirectory,
    ];

    /// The methods for prompts. Each is an action of access rules, which cover skills, too: listing
    /// them, and getting them with their files.
    pub const OF_PROMPTS: [Method; 3] = [Method::List, Method::Get, Method::Complete];

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.as_str() == name)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Method::List => "prompts/list",
            Method::Get => "prompts/get",
            Method::Complete => "completion/complete",
            Method::ListSkills => "skills/list",
            Method::GetSkill => "skills/get",
            Method::ReadFile | Method::ReadLink => "resources/read",
            Method::ReadDirectory => "resources/directory/read",
            Method::Passthrough => PASSTHROUGH,
        }
    }

    /// Whether the method is for a list, which names no prompt or skill.
    pub const fn is_list(self) -> bool {
        matches!(self, Method::List | Method::ListSkills)
    }

    /// Whether the method is for skills.
    pub fn is_of_skills(self) -> bool {
        !Self::OF_PROMPTS.contains(&self) && !matches!(self, Method::ReadLink | Method::Passthrough)
    }
}

/// A method for tools or resources. Only the upstream of `[passthrough]` receives it: the gateway's
/// only resources are files of skills and links in prompts, and its tools represent prompts.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ForeignMethod {
    ListTools,
    CallTool,
    ListResources,
    ListTemplates,
    ReadResource,
}

impl ForeignMethod {
    pub const ALL: [Self; 5] = [
        Self::ListTools,
        Self::CallTool,
        Self::ListResources,
        Self::ListTemplates,
        Self::ReadResource,
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ListTools => "tools/list",
            Self::CallTool => "tools/call",
            Self::ListResources => "resources/list",
            Self::ListTemplates => "resources/templates/list",
            Self::ReadResource => "resources/read",
        }
    }

    /// Returns the corresponding method for prompts: rate limits count both alike.
    pub fn counted_as(self) -> Method {
        match self {
            Self::ListTools | Self::ListResources | Self::ListTemplates => Method::List,
            Self::CallTool | Self::ReadResource => Method::Get,
        }
    }
}

/// Returns the member of `params` that a modern client repeats in the header `Mcp-Name` (MCP
/// 2026-07-28, Streamable HTTP, standard headers); `None` for methods without one.
pub fn named_member(method: &str) -> Option<&'static str> {
    match ForeignMethod::parse(method) {
        Some(ForeignMethod::CallTool) => Some("name"),
        Some(ForeignMethod::ReadResource) => Some("uri"),
        Some(_) => None,
        None => (Method::parse(method) == Some(Method::Get)).then_some("name"),
    }
}

/// A request that a rate limit can count: a call, or a request that concerns the session alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Countable {
    Call(Method),
    /// A call of the upstream of `[passthrough]`; `None` for all methods that are not a
    /// [`ForeignMethod`].
    Passthrough(Option<ForeignMethod>),
    /// `initialize`
    Initialize,
    /// `ping`
    Ping,
    /// `subscriptions/listen` (2026-07-28)
    Listen,
    /// A GET that opens a notification stream, or an HTTP+SSE session.
    Stream,
    /// A DELETE that terminates a session.
    Delete,
}

impl Countable {
    /// The calls of the upstream of `[passthrough]`.
    pub const PASSTHROUGH: [Self; 6] = [
        Self::Passthrough(Some(ForeignMethod::ListTools)),
        Self::Passthrough(Some(ForeignMethod::CallTool)),
        Self::Passthrough(Some(ForeignMethod::ListResources)),
        Self::Passthrough(Some(ForeignMethod::ListTemplates)),
        Self::Passthrough(Some(ForeignMethod::ReadResource)),
        Self::Passthrough(None),
    ];

    pub const ALL: [Self; 12] = [
        Self::Call(Method::List),
        Self::Call(Method::Get),
        Self::Call(Method::Complete),
        Self::Call(Method::ListSkills),
        Self::Call(Method::GetSkill),
        Self::Call(Method::ReadFile),
        Self::Call(Method::ReadDirectory),
        Self::Initialize,
        Self::Ping,
        Self::Listen,
        Self::Stream,
        Self::Delete,
    ];

    /// Returns the name of the method, or of the HTTP request if it has no method.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Call(method) => method.as_str(),
            Self::Passthrough(method) => method.map_or(PASSTHROUGH, ForeignMethod::as_str),
            Self::Initialize => INITIALIZE,
            Self::Ping => PING,
            Self::Listen => LISTEN,
            Self::Stream => "stream",
            Self::Delete => "delete",
        }
    }

    /// Returns the requests that a limit means by this name: `resources/read` covers files of
    /// skills, links in prompts, and the upstream of `[passthrough]`.
    pub fn named(name: &str) -> impl Iterator<Item = Self> {
        let known = Self::ALL.into_iter().chain(Self::PASSTHROUGH);
        known.filter(move |countable| countable.as_str() == name)
    }

    /// Returns the request for a JSON-RPC method that concerns only the session; `None` for other
    /// methods.
    pub fn of_session(method: &str) -> Option<Self> {
        [Self::Initialize, Self::Ping, Self::Listen].into_iter().find(|own| own.as_str() == method)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name for the methods of the upstream of `[passthrough]`.
const PASSTHROUGH: &str = "passthrough";
pub const INITIALIZE: &str = "initialize";
pub const INITIALIZED: &str = "notifications/initialized";
pub const PING: &str = "ping";
pub const DISCOVER: &str = "server/discover";
pub const LISTEN: &str = "subscriptions/listen";
pub const SUBSCRIPTION_ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
pub const CANCELLED: &str = "notifications/cancelled";
pub const PROGRESS: &str = "notifications/progress";
pub const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";
pub const LIST_CHANGED: &str = "notifications/prompts/list_changed";
pub const TOOLS_LIST_CHANGED: &str = "notifications/tools/list_changed";
pub const RESOURCES_LIST_CHANGED: &str = "notifications/resources/list_changed";
pub const MESSAGE: &str = "notifications/message";
pub const SUBSCRIBE: &str = "resources/subscribe";
pub const UNSUBSCRIBE: &str = "resources/unsubscribe";
pub const SET_LOG_LEVEL: &str = "logging/setLevel";
