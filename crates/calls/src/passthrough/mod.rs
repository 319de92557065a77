//! Routes pass-through requests. Requests for tools, resources and other methods go to one
//! designated upstream (`[passthrough]`), unmerged and unrenamed, through the same gate and the
//! same bridge as gets.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tracing::warn;

use super::Router;
use super::admitted::{Admitted, CallContext, DEPTH};
use super::bridge::Bridge;
use super::bridged_request::BridgedRequest;
use super::guards::Passing;
use super::skills::is_file;
use base::seal::TokenKind;
use catalog::list_cursor::ListCursors;
use catalog::listed_item::ListedItem;
use catalog::passthrough_reply::{PassthroughPage, PassthroughReply, elements};
use catalog::reply::{ListReply, Reply};
use catalog::snapshot::{Catalog, Incomplete};
use config::{GuardEvent, ToolForm};
use domain::approval::ApprovalState;
use domain::calls::call::{Call, NameKind, ServerRequestMode};
use domain::calls::caller::Caller;
use domain::calls::cursor::CacheScope;
use domain::calls::passthrough::{PassthroughCapabilities, PassthroughList, PassthroughRequest};
use domain::calls::rights::{Allowed, PromptRef};
use domain::fault::{Fault, RequestFault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::guards::text_guard::Texts;
use domain::json::Json;
use domain::json::document::Document;
use domain::protocol::method::{ForeignMethod, Method};
use domain::protocol::param_headers::ParamHeaders;
use domain::tool::{FIND_PROMPT, FIND_SKILL, READ_SKILL, USE_PROMPT};
use domain::uri::normal_form::normal;
use domain::{prompts::skill, uri};
use policy::{CallTarget, Resolution};
use upstream::Upstream;
use upstream::passthrough_signals::PassthroughChanges;

/// The upstream of `[passthrough]`, as an endpoint serves it.
#[derive(Clone, Copy)]
pub struct PassthroughUpstream<'a> {
    pub(super) router: &'a Router,
    pub(super) upstream: &'a Arc<Upstream>,
}

const METHOD_NOT_FOUND: i64 = -32601;
const RESOURCE_NOT_FOUND: i64 = -32002;

impl PassthroughUpstream<'_> {
    /// Returns the capabilities that the upstream declares in addition to prompts.
    pub fn capabilities(self) -> Arc<PassthroughCapabilities> {
        self.upstream.passthrough_capabilities()
    }

    /// Subscribes to changes of the upstream's tools and resources.
    pub fn changes(self) -> watch::Receiver<PassthroughChanges> {
        self.upstream.passthrough_signals().changes()
    }

    /// Whether a `tools/call` with this name is for a tool derived from a prompt. A tool of the
    /// upstream with the same name takes precedence.
    pub fn is_of_prompt(self, name: &str, caller: &Caller, endpoint: &str) -> bool {
        let lists = &self.router.lists;
        let exposure = lists.views.endpoints.exposure(endpoint);
        if !exposure.tools || self.upstream.passthrough_signals().tools.load().contains_key(name) {
            return false;
        }
        // An answer about an unknown name must not reveal the prompts of other callers.
        let may_get = |owner: &ListedItem| lists.views.allows(caller, Method::Get, endpoint, owner);
        let is_listed = || {
            let private = lists.caller_lists.as_ref();
            lists.catalog.load().content.item_of_tool(name).is_some_and(may_get)
                || private.and_then(|own| own.find(caller, name, NameKind::Tool, may_get))
                    == Some(true)
        };
        match name {
            FIND_PROMPT | USE_PROMPT => true,
            FIND_SKILL | READ_SKILL => self.router.has_skills(endpoint),
            _ => exposure.form == ToolForm::Each && is_listed(),
        }
    }

    /// Takes a call through the gate to the upstream.
    pub(super) async fn route(
        self,
        request: &PassthroughRequest,
        context: CallContext<'_>,
    ) -> Result<Reply, Fault> {
        let target = CallTarget {
            upstream: self.upstream.config().id.as_str(),
            raw_name: &request.name,
            definition: "",
            state: ApprovalState::Unchecked,
            number: None,
            version: None,
        };
        let CallContext { call, record, .. } = context;
        let is_foreign = (request.is_of_resource()
            && !self.may_have(&self.router.catalog(), &request.sent_name))
            || (request.is_ambiguous && self.router.gate.tells_resources_apart(&call.caller));
        let resolution = if is_foreign { Resolution::Unknown } else { Resolution::Listed(target) };
        let authorized = self.router.gate.authorize(call, record, resolution).await;
        let authorized = authorized.map_err(|fault| as_unknown(fault, request, call))?;
        if let Some(header) = &request.mismatch {
            return Err(RequestFault::HeaderMismatch { header: header.clone().into() }.into());
        }
        if request.log_level.is_some() {
            // The gateway keeps the level, with which it calls the upstream for this client.
            let nothing = Document::copy_of(Json::accepted("{}"));
            return Ok(Reply::Passthrough(Box::new(PassthroughReply::of(
                nothing,
                self.upstream.config().id.clone(),
            ))));
        }
        let admitted = Admitted { call, authorized, upstream: self.upstream };
        match request.list() {
            Some(list) => self.list(request, list, &admitted, context).await,
            None => {
                let reply = self.run(&admitted, request, None, context).await;
                let reply = reply.map_err(|fault| as_unknown(fault, request, call))?;
                Ok(self.with_caching(reply, request, call))
            }
        }
    }

    async fn run(
        self,
        admitted: &Admitted<'_>,
        request: &PassthroughRequest,
        cursor: Option<&str>,
        context: CallContext<'_>,
    ) -> Result<Reply, Fault> {
        let upstream = &self.upstream.config().id;
        let (event, texts) = (GuardEvent::Passthrough, Texts::Arguments);
        let passing = Passing { event, texts, upstream, name: &request.name };
        let guarded = self.guarded(request, passing, context).await?;
        let request = guarded.as_ref().unwrap_or(request);
        let params = request.params_with(cursor);
        let headers = self.headers(request);
        let sent =
            PassthroughRequest { params, headers, cursor: None, retry: None, ..request.clone() };
        let bridge = Bridge {
            router: self.router,
            admitted,
            channel: context.channel,
            request: BridgedRequest::Passthrough(&sent),
            deadline: context.deadline,
            now: context.now,
            rounds: 0,
        };
        let mut reply = bridge.run(request.retry.as_ref()).await?;
        if let Reply::Passthrough(passed) = &mut reply {
            let received = Passing { texts: Texts::Foreign, ..passing };
            passed.result =
                self.router.guards.pass(received, context, passed.result.clone()).await?;
        }
        Ok(reply)
    }

    /// Takes the parameters past the guards. `None`: they are not examined.
    async fn guarded(
        self,
        request: &PassthroughRequest,
        passing: Passing<'_>,
        context: CallContext<'_>,
    ) -> Result<Option<PassthroughRequest>, Fault> {
        if !self.router.guards.examine(GuardEvent::Passthrough) {
            return Ok(None);
        }
        let params = format!("{{{}}}", request.params);
        let params = Document::parse(params.into_bytes(), DEPTH)
            .map_err(|_| Fault::invalid_params("`params` are nested too deep to be examined"))?;
        let masked = self.router.guards.pass(passing, context, params).await?;
        let text = &masked.json().text()[1..masked.json().text().len() - 1];
        let changes = |key| masked.json().get(key).is_some_and(|now| !now.is(&request.sent_name));
        if *text != *request.params && (changes("name") || changes("uri")) {
            // The caller may use what it has named, and nothing else.
            return Err(Fault::invalid_params("a guard masks the name; use another one"));
        }
        Ok(Some(PassthroughRequest { params: text.into(), ..request.clone() }))
    }

    /// Returns the headers that repeat arguments of a tool.
    pub fn param_headers(self, name: &str) -> Option<Arc<ParamHeaders>> {
        self.upstream.passthrough_signals().tools.load().get(name)?.clone()
    }

    /// The headers for the upstream, from the arguments that it gets.
    fn headers(self, request: &PassthroughRequest) -> Vec<(String, String)> {
        let is_call = request.kind == Some(ForeignMethod::CallTool);
        let Some(known) = self.param_headers(&request.name).filter(|_| is_call) else {
            return Vec::new();
        };
        let params = format!("{{{}}}", request.params);
        let arguments = Json::parse_text(&params, DEPTH).ok().and_then(|p| p.get("arguments"));
        known.of_call(arguments)
    }

    /// Answers a page of a list. Tools derived from prompts come before the tools of the upstream.
    async fn list(
        self,
        request: &PassthroughRequest,
        list: PassthroughList,
        admitted: &Admitted<'_>,
        context: CallContext<'_>,
    ) -> Result<Reply, Fault> {
        let CallContext { call, deadline, now, .. } = context;
        let lists = &self.router.lists;
        let cursors = ListCursors::of_passthrough(&self.router.sealer, call, &request.method, now);
        let cursor = request.cursor.as_deref();
        let place = cursor.map(|token| cursors.open(token)).transpose();
        let has_ours = request.kind == Some(ForeignMethod::ListTools)
            && lists.views.endpoints.exposure(&call.endpoint).tools;
        let (ours, after) = match place {
            Ok(Some(place)) => (None, Some(place.last)),
            Err(fault) if !has_ours => return Err(fault),
            _ if has_ours => {
                let ours = self.router.list_tools(call, cursor, deadline, now).await?;
                let ours = self.without_hidden(ours);
                if ours.next_cursor.is_some() {
                    return Ok(Reply::List(ours));
                }
                (Some(ours), None)
            }
            _ => (None, None),
        };
        let mut page = PassthroughPage::of(list);
        let result = match self.page(admitted, request, after.as_deref(), context).await {
            Ok(result) => result,
            Err(Fault::Upstream(UpstreamFault { kind, .. })) if ours.is_some() => {
                let upstream = self.upstream.config().id.clone();
                page.incomplete =
                    Some(Incomplete { upstream, kind, walked_at: None, has_prompts: true });
                nothing(list)
            }
            Err(fault) => return Err(fault),
        };
        page.ours = ours.map(|ours| ours.elements).unwrap_or_default();
        page.allowed = self.allowed(result.json(), list, call);
        page.next_cursor = self.sealed_next(result.json(), &cursors)?;
        let mut reply = PassthroughReply::of(result, self.upstream.config().id.clone());
        reply.caching = Some(lists.hints_of(reply.result.json(), call));
        reply.page = Some(page);
        Ok(Reply::Passthrough(Box::new(reply)))
    }

    /// Fetches one page of a list from the upstream. A list without support is empty.
    async fn page(
        self,
        admitted: &Admitted<'_>,
        request: &PassthroughRequest,
        cursor: Option<&str>,
        context: CallContext<'_>,
    ) -> Result<Document, Fault> {
        let list = request.list().ok_or(Fault::Internal)?;
        let has_list = match request.kind {
            Some(ForeignMethod::ListTools) => self.capabilities().tools.is_some(),
            _ => self.capabilities().resources.is_some(),
        };
        if !has_list {
            return Ok(nothing(list));
        }
        match self.run(admitted, request, cursor, context).await {
            Ok(Reply::Passthrough(reply)) if elements(reply.result.json(), list).is_some() => {
                if request.kind == Some(ForeignMethod::ListTools) {
                    let most = self.upstream.config().settings.max_prompts;
                    self.upstream.passthrough_signals().note_listed(reply.result.json(), most);
                }
                Ok(reply.result)
            }
            Ok(_) => {
                let what = format!("the list result has no array `{}`", list.member);
                Err(Fault::upstream(self.upstream.config().id.as_str(), Kind::Protocol(what)))
            }
            Err(fault) if code(&fault) == Some(METHOD_NOT_FOUND) => Ok(nothing(list)),
            Err(fault) => Err(fault),
        }
    }

    /// Whether a URI may name a resource of the upstream. Excluded are URIs that a server may
    /// resolve to a different URI, and files of skills, whose reads are checked as skill reads.
    fn may_have(self, catalog: &Catalog, uri: &str) -> bool {
        !uri::is_resolved(uri) && !self.is_of_skill(catalog, uri)
    }

    fn is_of_skill(self, catalog: &Catalog, uri: &str) -> bool {
        let upstream = &self.upstream.config().id;
        self.capabilities().skills
            && (skill::has_scheme(uri) || is_file(self.router, catalog, upstream, uri))
    }

    /// Which elements are served to the caller; `None` for all. Files of skills are never served
    /// here: skill reads serve them for all upstreams.
    fn allowed(self, result: Json<'_>, list: PassthroughList, call: &Call) -> Option<Vec<bool>> {
        let permitted = self.permitted(result, list, call);
        if list.member != "resources" || !self.capabilities().skills {
            return permitted;
        }
        let elements = elements(result, list)?.elements().enumerate();
        let catalog = self.router.catalog();
        let is_of_skill = |element: Json<'_>| {
            let uri = element.get(list.name).and_then(Json::as_str);
            uri.is_some_and(|uri| self.is_of_skill(&catalog, &uri))
        };
        let is_permitted =
            |at: usize| permitted.as_ref().is_none_or(|each| each.get(at) == Some(&true));
        Some(elements.map(|(at, element)| is_permitted(at) && !is_of_skill(element)).collect())
    }

    /// Which elements the access rules permit; `None` for all.
    fn permitted(self, result: Json<'_>, list: PassthroughList, call: &Call) -> Option<Vec<bool>> {
        let rights = self.router.gate.rights();
        rights.entitlement(&call.caller)?;
        let upstream = self.upstream.config().id.as_str();
        let elements = elements(result, list)?;
        let names = elements.elements().map(|element| {
            let name = element.get(list.name).and_then(Json::as_str).unwrap_or_default();
            if list.member == "tools" { Some(name.into_owned()) } else { normal(&name) }
        });
        let names: Vec<Option<String>> = names.collect();
        let mut refs = names.iter().map(|name| PromptRef {
            upstream,
            raw_name: name.as_deref().unwrap_or_default(),
            state: ApprovalState::Unchecked,
        });
        let allowed = rights.allowed(&call.caller, Method::Passthrough, &mut refs);
        let is_clear = names.iter().map(Option::is_some);
        match allowed {
            Allowed::All => Some(is_clear.collect()),
            Allowed::None => Some(Vec::new()),
            Allowed::Some(each) => Some(each.iter().zip(is_clear).map(|(a, b)| *a && b).collect()),
        }
    }

    /// Seals the upstream's cursor for this caller: another caller cannot open the cursor.
    fn sealed_next(
        self,
        result: Json<'_>,
        cursors: &ListCursors<'_>,
    ) -> Result<Option<String>, Fault> {
        let next = result.get("nextCursor").and_then(Json::as_str);
        let is_end = |cursor: &str| cursor.is_empty() && self.empty_cursor_ends();
        let Some(last) = next.filter(|cursor| !is_end(cursor)) else { return Ok(None) };
        let owner = self.upstream.config().id.as_str();
        let sealed = cursors.seal(CacheScope::Private, last.into_owned(), owner.to_owned());
        let limit = TokenKind::Cursor.max_len();
        if sealed.len() > limit {
            return Err(Fault::upstream(owner, Kind::TooLarge { limit }));
        }
        Ok(Some(sealed))
    }

    fn empty_cursor_ends(self) -> bool {
        // Upstreams that declare capabilities in a handshake end a list with an empty cursor.
        !self.upstream.declares_capabilities_per_request()
    }

    /// Adds the caching hints to the result of `resources/read`.
    fn with_caching(self, reply: Reply, request: &PassthroughRequest, call: &Call) -> Reply {
        match reply {
            Reply::Passthrough(mut reply) if request.kind == Some(ForeignMethod::ReadResource) => {
                reply.caching = Some(self.router.lists.hints_of(reply.result.json(), call));
                Reply::Passthrough(reply)
            }
            reply => reply,
        }
    }

    /// Removes derived tools whose names the upstream's tools have.
    fn without_hidden(self, mut ours: ListReply) -> ListReply {
        let signals = self.upstream.passthrough_signals();
        let theirs = signals.tools.load();
        if theirs.is_empty() {
            return ours;
        }
        let text = format!("[{}]", pieces(&ours.elements));
        let Ok(list) = Json::parse_text(&text, DEPTH) else { return ours };
        let is_hidden = |tool: &Json<'_>| {
            let name = tool.get("name").and_then(Json::as_str);
            let name = name.filter(|name| theirs.contains_key(&**name));
            if let Some(name) = name.as_deref().filter(|name| signals.note_hiding(name)) {
                let upstream = self.upstream.config().id.as_str();
                warn!(upstream, name, "a tool of the upstream hides the tool of a prompt");
            }
            name.is_some()
        };
        if list.elements().any(|tool| is_hidden(&tool)) {
            let kept: Vec<_> =
                list.elements().filter(|tool| !is_hidden(tool)).map(Json::text).collect();
            ours.elements = vec![Bytes::from(kept.join(","))];
        }
        ours
    }
}

fn pieces(elements: &[Bytes]) -> String {
    String::from_utf8_lossy(&elements.concat()).into_owned()
}

/// An empty list.
fn nothing(list: PassthroughList) -> Document {
    let text = format!("{{\"{}\":[]}}", list.member);
    Document::copy_of(Json::accepted(&text))
}

fn code(fault: &Fault) -> Option<i64> {
    match fault {
        Fault::Upstream(UpstreamFault { kind: Kind::Error { code, .. }, .. }) => Some(*code),
        _ => None,
    }
}

/// Turns denials by the rules, and the upstream's codes for unknown names, into the error of the
/// client's era.
fn as_unknown(fault: Fault, request: &PassthroughRequest, call: &Call) -> Fault {
    let is_denied = fault == RequestFault::UnknownPrompt.into();
    let of_resource = request.is_of_resource();
    match code(&fault) {
        _ if is_denied => {}
        Some(METHOD_NOT_FOUND) if !of_resource => {}
        Some(RESOURCE_NOT_FOUND) if of_resource => {}
        _ => return fault,
    }
    match request.kind {
        Some(ForeignMethod::CallTool) => RequestFault::UnknownTool.into(),
        _ if of_resource => {
            let is_modern = call.client.mode == ServerRequestMode::InputRequired;
            RequestFault::unknown_resource(is_modern, &request.sent_name).into()
        }
        _ => RequestFault::MethodNotFound.into(),
    }
}
