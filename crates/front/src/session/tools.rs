//! Requests for tools, resources and skills. The tools of the gateway stand for prompts and skills.
//! Its resources are the files of skills, and links in prompts. All other requests go to the
//! upstream of `[passthrough]`; without one, hosts that ask every server for all lists get empty
//! lists.

use std::borrow::Cow;

use super::RequestContext;
use super::dialect::{Dialect, Offer, ResultForm, ToolOffer};
use calls::passthrough::PassthroughUpstream;
use calls::{Router, links};
use catalog::view_cache::ListKinds;
use config::{Exposure, ToolForm};
use domain::calls::call::{NameKind, Request, Sought};
use domain::calls::caller::Caller;
use domain::calls::passthrough::PassthroughRequest;
use domain::fault::{Fault, RequestFault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::json::Json;
use domain::protocol::method::{Countable, ForeignMethod, Method};
use domain::tool::{FIND_PROMPT, FIND_SKILL, READ_SKILL, USE_PROMPT};
use domain::{calls::link, prompts::skill};

/// The purpose of a request that is not about the session.
pub(super) enum Purpose {
    /// A call, with the form of its result.
    Call(Request, ResultForm),
    /// A list without elements, by the name of its member.
    EmptyList(&'static str),
}

/// A request that the gateway refuses.
pub(super) struct ToolRefusal {
    pub fault: Fault,
    pub form: ResultForm,
}

impl ToolRefusal {
    fn new(fault: impl Into<Fault>) -> Self {
        Self { fault: fault.into(), form: ResultForm::Prompt }
    }
}

/// The methods and lists that an endpoint serves.
#[derive(Clone, Copy)]
pub(super) struct ServedMethods<'a> {
    pub exposure: &'a Exposure,
    /// `server.empty_lists`
    pub empty_lists: bool,
    pub router: &'a Router,
    pub endpoint: &'a str,
    /// The upstream of pass-through requests (`[passthrough]`).
    pub passthrough: Option<PassthroughUpstream<'a>>,
    /// The pseudonym of the installation.
    pub pseudonym: &'a str,
}

impl ServedMethods<'_> {
    /// Whether the endpoint has skills, or may have some once all upstreams have reported. A caller
    /// may see fewer skills, or no skill.
    fn may_have_skills(self) -> bool {
        self.router.catalog().pending || self.router.may_have_skills(self.endpoint)
    }

    /// Returns the offer that the capabilities of the endpoint declare.
    pub(super) fn offer(self) -> Offer {
        Offer {
            prompts: self.exposure.prompts,
            tools: self.tools(),
            skills: self.router.may_have_skills(self.endpoint),
            links: self.router.seals_links(self.endpoint),
            passthrough: self.passthrough.map(PassthroughUpstream::capabilities),
            via: self.router.via(self.pseudonym),
        }
    }

    fn tools(self) -> ToolOffer {
        match (self.exposure.tools, self.empty_lists) {
            (true, _) => ToolOffer::Prompts,
            (false, true) => ToolOffer::Empty,
            (false, false) => ToolOffer::None,
        }
    }

    /// Returns the lists of the endpoint.
    pub(super) fn lists(self) -> ListKinds {
        ListKinds { prompts: self.exposure.prompts, tools: self.exposure.tools }
    }

    /// Returns how a rate limit counts a request that does not become a call; `None` for a call,
    /// which is counted once its prompt is known.
    pub(super) fn counted_at_once(
        self,
        method: &str,
        params: Option<Json<'_>>,
        caller: &Caller,
    ) -> Option<Countable> {
        if self.goes_to_rest(method, params, caller) {
            return None;
        }
        let Some(foreign) = ForeignMethod::parse(method) else {
            return Countable::of_session(method);
        };
        let becomes_call = match foreign {
            ForeignMethod::ListTools => self.exposure.tools,
            // A call with a mistake in its arguments is answered at once.
            ForeignMethod::CallTool => self.exposure.tools && self.tool_call(params).is_ok(),
            ForeignMethod::ReadResource => self.is_of_skill(params) || self.is_link(params),
            ForeignMethod::ListResources | ForeignMethod::ListTemplates => false,
        };
        (!becomes_call).then_some(Countable::Call(foreign.counted_as()))
    }

    /// Reads the parameters of a request that is not about the session.
    pub(super) fn purpose(
        self,
        method: &str,
        params: Option<Json<'_>>,
        context: &RequestContext<'_>,
        dialect: Dialect,
    ) -> Result<Purpose, ToolRefusal> {
        if self.goes_to_rest(method, params, context.caller) && dialect.has_method(method) {
            let request = PassthroughRequest::read(method, params).map_err(ToolRefusal::new)?;
            return Ok(Purpose::Call(Request::Passthrough(Box::new(request)), ResultForm::Prompt));
        }
        let is_served = |method: &Method| match method {
            Method::ReadFile => self.is_of_skill(params),
            method if method.is_of_skills() => self.may_have_skills(),
            _ => self.exposure.prompts,
        };
        if let Some(method) = Method::parse(method).filter(is_served) {
            let request = Request::read(method, params).map_err(ToolRefusal::new)?;
            return Ok(Purpose::Call(request, ResultForm::Prompt));
        }
        let has_resources = || {
            let seals_links = || self.router.seals_links(self.endpoint);
            self.empty_lists
                || self.passthrough.is_some()
                || self.may_have_skills()
                || seals_links()
        };
        let has_tools = self.tools() != ToolOffer::None;
        let foreign = ForeignMethod::parse(method);
        match foreign.ok_or_else(|| ToolRefusal::new(RequestFault::MethodNotFound))? {
            ForeignMethod::ListTools if self.exposure.tools => {
                let request = Request::read_list_tools(params).map_err(ToolRefusal::new)?;
                Ok(Purpose::Call(request, ResultForm::Prompt))
            }
            ForeignMethod::ListTools if has_tools => empty_list("tools", params),
            ForeignMethod::CallTool if has_tools => self.tool_call(params),
            ForeignMethod::ListResources if has_resources() => empty_list("resources", params),
            ForeignMethod::ListTemplates if has_resources() => {
                empty_list("resourceTemplates", params)
            }
            ForeignMethod::ReadResource if has_resources() => {
                let uri = uri_of(params).unwrap_or_default();
                if !self.is_link(params) {
                    return Err(ToolRefusal::new(dialect.unknown_resource(&uri)));
                }
                let whose = (context.caller, self.endpoint);
                let request = links::request(self.router, &uri, whose, context.now);
                Ok(Purpose::Call(request, ResultForm::Prompt))
            }
            _ => Err(ToolRefusal::new(RequestFault::MethodNotFound)),
        }
    }

    /// Whether a request goes to the upstream of `[passthrough]`. Calls of tools that stand for
    /// prompts, and reads of skill files and links, stay at the gateway.
    fn goes_to_rest(self, method: &str, params: Option<Json<'_>>, caller: &Caller) -> bool {
        let Some(passthrough) = self.passthrough else { return false };
        let is_ours = match (Method::parse(method), ForeignMethod::parse(method)) {
            (_, Some(ForeignMethod::CallTool)) => {
                let name = params.and_then(|p| p.get("name")?.as_str());
                name.is_some_and(|name| passthrough.is_of_prompt(&name, caller, self.endpoint))
            }
            (_, Some(ForeignMethod::ReadResource)) => {
                self.is_of_skill(params) || has_own_uri(params)
            }
            (Some(method), _) => method != Method::Complete,
            (None, _) => false,
        };
        !is_ours && passthrough.capabilities().takes(method, params)
    }

    /// Whether a `resources/read` is for a file of a skill. If an upstream of `[passthrough]` has
    /// no skills, only listed skills count: other such URIs are resources of that upstream.
    fn is_of_skill(self, params: Option<Json<'_>>) -> bool {
        let uri = uri_of(params).filter(|uri| skill::has_scheme(uri));
        let Some(uri) = uri else { return false };
        let Some(passthrough) = self.passthrough else { return self.may_have_skills() };
        let router = self.router;
        passthrough.capabilities().skills
            || router.catalog().pending
            || router.is_of_skill(self.endpoint, &uri)
    }

    /// Whether a `resources/read` is for a link in a prompt, where links are sealed.
    fn is_link(self, params: Option<Json<'_>>) -> bool {
        has_own_uri(params) && self.router.seals_links(self.endpoint)
    }

    fn tool_call(self, params: Option<Json<'_>>) -> Result<Purpose, ToolRefusal> {
        let tool = self.prompt_tool(params);
        let arguments = || params.and_then(|params| params.get("arguments"));
        let request = match tool.ok_or_else(|| ToolRefusal::new(RequestFault::UnknownTool))? {
            PromptTool::Find(sought) => Request::read_find(sought, arguments()),
            PromptTool::ReadSkill => Request::read_read_skill(arguments()),
            PromptTool::Use => Request::read_use(params),
            PromptTool::Prompt(name) => Request::read_prompt_tool(name, params),
        };
        match request {
            Ok(request) => Ok(Purpose::Call(request, ResultForm::Tool)),
            Err(fault) => Err(ToolRefusal { fault, form: ResultForm::Tool }),
        }
    }

    /// Returns the tool that a `tools/call` names. Where each prompt has a tool, a name without a
    /// prompt is treated as an unknown prompt, so that callers cannot distinguish it from a prompt
    /// that they may not use. Finding and using by name stays callable there: a client may have
    /// listed these two tools while there were more prompts than `tools_max`.
    fn prompt_tool(self, params: Option<Json<'_>>) -> Option<PromptTool> {
        let Self { exposure, .. } = self;
        let name = params.filter(|_| exposure.tools)?.get("name")?.as_str()?;
        match &*name {
            FIND_PROMPT => Some(PromptTool::Find(Sought::Prompts)),
            USE_PROMPT => Some(PromptTool::Use),
            FIND_SKILL if self.may_have_skills() => Some(PromptTool::Find(Sought::Skills)),
            READ_SKILL if self.may_have_skills() => Some(PromptTool::ReadSkill),
            _ => (exposure.form == ToolForm::Each).then(|| PromptTool::Prompt(name.into_owned())),
        }
    }
}

/// Returns the URI that a request names.
fn uri_of(params: Option<Json<'_>>) -> Option<Cow<'_, str>> {
    params?.get("uri")?.as_str()
}

/// Whether the URI that a request names is one of the gateway's own.
fn has_own_uri(params: Option<Json<'_>>) -> bool {
    uri_of(params).is_some_and(|uri| link::is_own(&uri))
}

/// Returns the purpose of a request for a list that is always empty.
fn empty_list(member: &'static str, params: Option<Json<'_>>) -> Result<Purpose, ToolRefusal> {
    if params.is_some_and(|params| params.get("cursor").is_some()) {
        return Err(ToolRefusal::new(RequestFault::InvalidCursor));
    }
    Ok(Purpose::EmptyList(member))
}

/// Puts the public name in place of a derived tool name that is known already, for records and
/// patterns over public names.
pub(super) fn with_public_name(router: &Router, mut request: Request, caller: &Caller) -> Request {
    if let Request::Get { name, name_kind: NameKind::Tool, .. } = &mut request
        && let Some(public) = router.public_name_of_tool(name, caller)
    {
        *name = public;
    }
    request
}

/// A tool that stands for prompts or skills.
enum PromptTool {
    Find(Sought),
    ReadSkill,
    Use,
    /// Stands for one prompt, by the name of the tool.
    Prompt(String),
}

/// Whether a tool reports a fault as its result, for the model to read: a mistake in its arguments,
/// or a failure of the upstream. Faults for the client stay errors: credentials, limits, and the
/// pages that a user must visit first.
pub(super) fn is_tool_result(fault: &Fault) -> bool {
    match fault {
        Fault::Request(
            RequestFault::InvalidParams { .. }
            | RequestFault::MissingArgument { .. }
            | RequestFault::PresetArgument { .. }
            | RequestFault::NoChoice { .. }
            | RequestFault::DeniedByGuard { .. }
            | RequestFault::UnknownPrompt
            | RequestFault::UnknownResource { .. }
            | RequestFault::InvalidCursor,
        ) => true,
        Fault::Upstream(UpstreamFault { kind, .. }) => {
            !matches!(kind, Kind::UrlElicitationRequired { .. } | Kind::Busy)
        }
        Fault::Request(_) | Fault::Transport(_) | Fault::Internal => false,
    }
}
