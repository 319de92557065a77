//! The router: answers lists from the catalog, and forwards gets and completions to the owner of
//! the prompt.

pub(crate) mod announce;
pub mod source;
mod caller_lists;
mod change_shares;
pub(crate) mod changes;
pub mod blocking;
mod build;
mod bridge;
pub mod catalog;
pub(crate) mod call_channel;
mod suspended_calls;
mod first_definitions;
pub mod refresh;
pub mod owner;
pub mod approval;
mod effective;
mod verified;
mod mismatches;
mod unapproved;
pub mod approvals;
pub mod reply;
pub mod segment;
mod search;
pub(crate) mod debounce;
mod status;
pub mod view;
pub mod view_cache;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::broadcast;
use tokio::time::{Instant, timeout_at};

use crate::policy::{Authorized, CallRecord, CallTarget, Gate, Resolution};
use crate::upstream::Upstream;
use crate::upstream::call::correlator::{InterimMessage, UrlElicitationComplete};
use crate::upstream::call::exchange::ExchangeEvent;
use crate::upstream::call::request::{RequestParams, UpstreamRequest};
use approval::{ApprovalRow, approval_arguments};
use audit::Audit;
use base::platform::heap::rare;
use base::seal::{self, Sealer};
use blocking::within;
use bridge::Bridge;
use build::RouterSharedState;
use call_channel::{CallChannel, CallEvent};
use caller_lists::{CallerLists, PrivateListScope};
use catalog::{Catalog, Incomplete};
use changes::Changes;
use config::{ApprovalRules, Exposure, Limits, Listing, ToolForm};
use domain::approval::ApprovalState;
use domain::call::{Call, InputRetry, NameKind, Request};
use domain::call_overlay::Validation;
use domain::caller::Caller;
use domain::cursor::{CacheScope, PagePosition};
use domain::document::Document;
use domain::fault::{Fault, RequestFault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::json::object::write_object;
use domain::name::{Naming, UpstreamId};
use domain::overlay::{self, Overlay};
use domain::redaction::without_secrets;
use domain::server_request::ClientCapabilities;
use domain::tool::name::is_derived;
use domain::unix_time::UnixSeconds;
use owner::Owner;
use reply::{Completion, ListReply, Reply, ResultOrigin};
use segment::name_of_tool;
use status::statuses;
use unapproved::{count_tolerated, snapshot_or};
use view::ListView;
use view_cache::{ListKind, ListKinds, ViewCache};

pub use crate::upstream::UpstreamDeps;
use crate::upstream::accounts::{Accounts, RevokedAccount};
pub use build::RefreshEnded;
pub use build::RouterDeps;
pub use status::{PER_CALLER, UpstreamStatus};

/// SHA-256 of a serialised list: equal digests are equal lists.
pub(crate) type Digest = [u8; 32];

/// Answers calls under one configuration.
pub struct Router {
    gate: Arc<Gate>,
    catalog: Arc<ArcSwap<Catalog>>,
    views: Arc<ViewCache>,
    /// `None` where all upstreams list for all callers.
    caller_lists: Option<Arc<CallerLists>>,
    /// Keyed by id.
    upstreams: BTreeMap<UpstreamId, Arc<Upstream>>,
    sealer: Arc<Sealer>,
    naming: Naming,
    listing: Listing,
    limits: Limits,
    /// Whether a method of authentication is configured, so that callers have different cursors.
    has_callers: bool,
    /// Whether lists are only for those who have a credential.
    needs_credential: bool,
    approvals: ApprovalRules,
    overlays: Vec<Overlay>,
    shared: Arc<RouterSharedState>,
}

impl Router {
    /// Answers a call before `deadline`, which is extended while a user answers a server request;
    /// messages before the response go to `channel`. `now` is the wall-clock time, for cursors and
    /// states.
    ///
    /// # Errors
    /// The refusals of [`Gate::authorize`], and the faults of the upstream.
    pub(crate) async fn route(
        &self,
        call: &Call,
        record: &CallRecord,
        channel: &CallChannel,
        deadline: Instant,
        now: UnixSeconds,
    ) -> Result<Reply, Fault> {
        let began = Instant::now();
        match &call.request {
            Request::List { cursor } => {
                self.gate.admit_list(call, record).await?;
                self.list(call, ListKind::Prompts, cursor.as_deref(), deadline, now).await
            }
            Request::ListTools { cursor } => {
                self.gate.admit_list(call, record).await?;
                if self.views.exposure(&call.endpoint).form == ToolForm::Pair {
                    // The same whatever the catalog holds, and while no upstream answers.
                    return self.pair(cursor.as_deref(), self.listing.ttl_max);
                }
                self.list(call, ListKind::Tools, cursor.as_deref(), deadline, now).await
            }
            Request::Find { query, cursor } => {
                self.gate.admit_list(call, record).await?;
                self.search(call, query, cursor.as_deref(), deadline, now).await
            }
            Request::Get { name, name_kind, arguments, retry } => {
                let catalog = self.catalog_for(call, record, name, *name_kind, deadline).await;
                let routed = self.authorize(&catalog, call, record, name, *name_kind).await?;
                let renamed = arguments.as_ref().filter(|_| *name_kind == NameKind::Tool);
                let renamed = match renamed {
                    Some(arguments) => renamed_arguments(routed.owner, arguments)?,
                    None => None,
                };
                let arguments = renamed.as_ref().or(arguments.as_ref());
                let reply = self.get(&routed, arguments, retry.as_ref(), channel, deadline, now);
                let reply = reply.await;
                let reply = reply.map_err(|fault| without_presets(routed.owner, fault))?;
                self.count_use(call, routed.owner, began);
                count_tolerated(&self.shared, routed.owner);
                Ok(reply)
            }
            Request::Complete { name, argument, value, context } => {
                let catalog =
                    self.catalog_for(call, record, name, NameKind::Public, deadline).await;
                let routed = self.authorize(&catalog, call, record, name, NameKind::Public).await?;
                let completion = Completing { argument, value, context: context.as_ref() };
                let reply = complete(&routed, completion, channel, deadline).await;
                let reply = reply.map_err(|fault| without_presets(routed.owner, fault))?;
                self.count_use(call, routed.owner, began);
                Ok(reply)
            }
        }
    }

    /// Gets a prompt from its upstream, or its approved snapshot.
    ///
    /// # Errors
    /// The faults of the upstream, and arguments that do not fit the effective definition.
    async fn get(
        &self,
        routed: &RoutedCall<'_>,
        arguments: Option<&Document>,
        retry: Option<&InputRetry>,
        channel: &CallChannel,
        deadline: Instant,
        now: UnixSeconds,
    ) -> Result<Reply, Fault> {
        let owner = routed.owner;
        let approved = owner.approval.approved.as_deref().map(|approved| {
            let given = arguments.map(Document::json);
            (approved, approval_arguments(&owner.arguments, owner.overlay.as_deref(), given))
        });
        let effective = effective_arguments(routed, arguments)?;
        let expected = match &approved {
            None => None,
            Some((approved, key)) => approved.expected(key).await.map_err(|error| {
                tracing::error!(%error, name = %owner.public_name, "approved text cannot be read");
                Fault::Internal
            })?,
        };
        if owner.approval.is_snapshot_only {
            let why = Kind::Unavailable("it has not been listed since the start".to_owned());
            let gone = Fault::upstream(owner.upstream.as_str(), why);
            return Box::pin(snapshot_or(&self.shared, routed, expected.as_ref(), gone)).await;
        }
        let arguments = effective.as_ref().or(arguments);
        let bridge = Bridge {
            router: self,
            routed,
            channel,
            arguments,
            expected: expected.as_ref(),
            deadline,
            now,
            rounds: 0,
        };
        match bridge.run(retry).await {
            Err(fault) => rare(snapshot_or(&self.shared, routed, expected.as_ref(), fault)).await,
            reply => reply,
        }
    }

    /// Takes a call through the gate, to the owner of its prompt.
    ///
    /// # Errors
    /// As [`Gate::authorize`].
    async fn authorize<'a>(
        &'a self,
        catalog: &'a Catalog,
        call: &'a Call,
        record: &CallRecord,
        name: &'a str,
        name_kind: NameKind,
    ) -> Result<RoutedCall<'a>, Fault> {
        let Some((owner, upstream)) = self.find(catalog, name, name_kind) else {
            let unlisted = self.unlisted(catalog, call, name);
            let resolution = match &unlisted {
                None => catalog.held(name).map_or(Resolution::Unknown, held),
                // The upstream of a derived name is not known before it is listed.
                Some(_) if name_kind == NameKind::Tool && is_derived(name) => Resolution::Unknown,
                Some(unlisted) => unlisted.resolution(),
            };
            let refused = self.gate.authorize(call, record, resolution).await.err();
            return Err(refused.unwrap_or_else(|| RequestFault::UnknownPrompt.into()));
        };
        let authorized = self.gate.authorize(call, record, self.listed(call, owner)).await?;
        Ok(RoutedCall { call, authorized, owner, upstream })
    }

    fn audit(&self) -> &Audit {
        &self.shared.upstream_deps.audit
    }

    /// Counts a use that began at this time.
    fn count_use(&self, call: &Call, owner: &Owner, began: Instant) {
        let (method, upstream) = (call.request.method(), owner.upstream.as_str());
        let metrics = self.shared.telemetry.metrics();
        metrics.used(method, upstream, &owner.public_name, began.elapsed());
    }

    /// A subscription to changes of the lists that the caller sees at the endpoint, debounced.
    pub fn changes(&self, caller: &Caller, endpoint: &str, kinds: ListKinds) -> Changes {
        Changes::new(self.shared.changes.clone(), caller.clone(), endpoint.to_owned(), kinds)
    }

    /// Completed URL elicitations, as their upstreams report them.
    pub fn url_completions(&self) -> broadcast::Receiver<UrlElicitationComplete> {
        self.shared.url_completions.subscribe()
    }

    /// Returns the accounts of callers at upstreams.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.shared.upstream_deps.accounts
    }

    /// Revokes accounts, as [`Accounts::revoke`], and drops the lists that were fetched with them.
    pub async fn revoke_accounts(
        &self,
        caller: Option<&str>,
        upstream: Option<&str>,
    ) -> Vec<RevokedAccount> {
        let revocation = self.accounts().revoke(caller, upstream);
        if let Some(lists) = &self.caller_lists {
            lists.forget(caller, upstream, &Kind::AccessEnded);
        }
        revocation.wait_for_providers().await
    }

    /// The public name behind a derived tool name; `None` for other names, and where the public
    /// name itself looks like a derived one.
    pub(crate) fn public_name_of_tool(&self, tool: &str, caller: &Caller) -> Option<String> {
        if !is_derived(tool) {
            return None;
        }
        let catalog = self.catalog();
        let shared = catalog.content.owner_of_tool(tool).map(|owner| owner.public_name.clone());
        let public_name = shared.or_else(|| {
            let lists = self.caller_lists.as_ref()?;
            lists.find(caller, tool, NameKind::Tool, |owner| owner.public_name.clone())
        })?;
        (!is_derived(&public_name)).then(|| public_name.to_string())
    }

    /// The newest snapshot.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Returns the public name and the upstream of the prompt that a call names; `None` if no
    /// prompt that its caller may know has the name.
    pub(crate) fn named(&self, call: &Call) -> Option<(Arc<str>, UpstreamId)> {
        let (name, kind) = match &call.request {
            Request::Get { name, name_kind, .. } => (name, *name_kind),
            Request::Complete { name, .. } => (name, NameKind::Public),
            Request::List { .. } | Request::ListTools { .. } | Request::Find { .. } => return None,
        };
        let names = |owner: &Owner| (owner.public_name.clone(), owner.upstream.clone());
        let catalog = self.catalog.load();
        owner(&catalog, name, kind)
            .map(names)
            .or_else(|| self.caller_lists.as_ref()?.find(&call.caller, name, kind, names))
    }

    /// The status of each upstream.
    pub fn status(&self) -> Vec<UpstreamStatus> {
        self.status_in(&self.catalog())
    }

    /// The status of each upstream, with the lists of one snapshot.
    pub fn status_in(&self, catalog: &Catalog) -> Vec<UpstreamStatus> {
        statuses(&self.upstreams, catalog)
    }

    /// The number of suspended calls.
    pub fn suspended(&self) -> usize {
        self.shared.suspended.count()
    }

    /// The first snapshot in which no upstream is pending, or the newest at `deadline`.
    pub async fn settled(&self, deadline: Instant) -> Arc<Catalog> {
        let mut published = self.shared.published.clone();
        loop {
            let catalog = self.catalog();
            let waiting = catalog.pending
                && timeout_at(deadline, published.changed()).await.is_ok_and(|c| c.is_ok());
            if !waiting {
                return catalog;
            }
        }
    }

    /// The same with the caller's private lists.
    async fn settled_for(&self, call: &Call, deadline: Instant) -> Arc<Catalog> {
        let catalog = self.settled(deadline).await;
        self.with_caller_lists(call, PrivateListScope::All, catalog, deadline).await
    }

    async fn with_caller_lists(
        &self,
        call: &Call,
        wanted: PrivateListScope<'_>,
        catalog: Arc<Catalog>,
        deadline: Instant,
    ) -> Arc<Catalog> {
        match &self.caller_lists {
            Some(lists) => rare(lists.catalog(&self.views, call, wanted, catalog, deadline)).await,
            None => catalog,
        }
    }

    /// Whether an endpoint serves a prompt, regardless of the caller.
    pub fn serves(&self, endpoint: &str, owner: &Owner) -> bool {
        self.views.serves(endpoint, &owner.upstream, &owner.public_name)
    }

    /// The exposure of an endpoint.
    pub(crate) fn exposure(&self, endpoint: &str) -> &Exposure {
        self.views.exposure(endpoint)
    }

    async fn list(
        &self,
        call: &Call,
        kind: ListKind,
        cursor: Option<&str>,
        deadline: Instant,
        now: UnixSeconds,
    ) -> Result<Reply, Fault> {
        // A cursor of one list is not valid for another.
        let bound_to = match kind {
            ListKind::Prompts => Cow::Borrowed(&*call.endpoint),
            ListKind::Tools => Cow::Owned(format!("{} tools", call.endpoint)),
        };
        let place =
            cursor.map(|token| self.open_cursor(token, &bound_to, call, now)).transpose()?;
        let catalog = self.settled_for(call, deadline).await;
        let viewing = self.views.view(&catalog.content, &call.caller, &call.endpoint);
        let prompts = within(deadline, viewing).await?;
        let incomplete = self.incomplete(&catalog, &prompts, &call.caller, &call.endpoint)?;
        let cut_at = Instant::now();
        // The ttl of an upstream whose prompts the caller does not see must not show in its list.
        let sees_all = !self.views.differ(&call.caller) && self.views.serves_all(&call.endpoint);
        let ttl = if incomplete.is_empty() {
            catalog.ttl(cut_at, self.listing.ttl_max, |id| sees_all || prompts.lists(id))
        } else {
            Duration::ZERO
        };
        if kind == ListKind::Tools
            && self.views.tool_form(&catalog.content, &call.endpoint) == Some(ToolForm::Pair)
        {
            return self.pair(cursor, ttl);
        }
        let view = match kind {
            ListKind::Prompts => prompts,
            ListKind::Tools => {
                let viewing = self.views.tools(&catalog.content, &call.caller, &call.endpoint);
                within(deadline, viewing).await?
            }
        };
        // A response that depends on the caller must not be cached for others, who may be nobody's
        // callers: its list does, and so does a cursor, which is sealed for its caller.
        let has_cursors = place.is_some() || view.len() > self.listing.page_size;
        let is_of_caller = self.needs_credential
            || self.views.differ(&call.caller)
            || has_cursors && self.has_callers;
        let scope = if is_of_caller { CacheScope::Private } else { catalog.scope };
        // All pages of one list have one scope (2026-07-28, caching).
        if place.as_ref().is_some_and(|place| place.scope != scope) {
            return Err(RequestFault::InvalidCursor.into());
        }
        let after = place.as_ref().map(|place| place.last.as_str());
        let page = view.page(after, self.listing.page_size);
        let next_cursor = page.more_after.map(|last| {
            let owner = catalog.content.owner(last).map(|owner| owner.upstream.to_string());
            let place = PagePosition {
                caller: call.caller.id().to_owned(),
                scope,
                issued_at: now,
                last: last.to_owned(),
                owner: owner.unwrap_or_default(),
            };
            self.sealer.seal(seal::TokenKind::Cursor, &bound_to, &place.encode())
        });
        Ok(Reply::List(ListReply {
            kind,
            digest: *view.digest(),
            scope,
            incomplete,
            elements: page.pieces,
            next_cursor,
            ttl,
            now: cut_at,
        }))
    }

    /// The list of `find_prompt` and `use_prompt`: one page, the same for all callers.
    fn pair(&self, cursor: Option<&str>, ttl: Duration) -> Result<Reply, Fault> {
        if cursor.is_some() {
            return Err(RequestFault::InvalidCursor.into());
        }
        let view = self.views.pair();
        Ok(Reply::List(ListReply {
            kind: ListKind::Tools,
            digest: *view.digest(),
            scope: if self.needs_credential { CacheScope::Private } else { CacheScope::Public },
            incomplete: Vec::new(),
            elements: view.page(None, view.len()).pieces,
            next_cursor: None,
            ttl,
            now: Instant::now(),
        }))
    }

    /// The stale and missing upstreams that belong to the list of a caller at an endpoint, so that
    /// the caller may know of them: those of which it sees a prompt. An upstream of which no prompt
    /// is known belongs to the list if the endpoint would serve one, and rights do not differ by
    /// caller.
    ///
    /// # Errors
    /// The fault of the list, if no upstream has one, or `listing.on_failure` is `fail` and one of
    /// these upstreams fails.
    fn incomplete(
        &self,
        catalog: &Catalog,
        view: &ListView,
        caller: &Caller,
        endpoint: &str,
    ) -> Result<Vec<Incomplete>, Fault> {
        let differ = self.views.differ(caller);
        let is_part = |part: &&Incomplete| {
            if !differ && self.views.serves_all(endpoint) {
                return true;
            }
            if catalog.content.everyone.lists(&part.upstream) {
                return view.lists(&part.upstream);
            }
            let prefix = self.upstreams.get(&part.upstream).map(|found| &found.config().prefix);
            let beginning = prefix.map(|prefix| self.naming.beginning(prefix)).unwrap_or_default();
            !differ && self.views.could_serve(endpoint, &part.upstream, &beginning)
        };
        if catalog.pending && view.is_empty() {
            // No upstream has reported in time, or the refresh has ended: nothing is known.
            return Err(Fault::none_available());
        }
        let parts: Vec<Incomplete> = catalog.incomplete.iter().filter(is_part).cloned().collect();
        match &catalog.list_fault {
            Some(fault) if *fault == Fault::none_available() => Err(fault.clone()),
            Some(_) => match parts.iter().find(|part| part.fails_lists) {
                Some(part) => Err(Fault::upstream(part.upstream.as_str(), part.kind.clone())),
                None => Ok(parts),
            },
            None => Ok(parts),
        }
    }

    /// Opens a cursor that was sealed for `bound_to`: an endpoint, and which of its lists.
    fn open_cursor(
        &self,
        token: &str,
        bound_to: &str,
        call: &Call,
        now: UnixSeconds,
    ) -> Result<PagePosition, Fault> {
        let plain = self.sealer.open(seal::TokenKind::Cursor, bound_to, token);
        let place = plain
            .and_then(|bytes| PagePosition::decode(&bytes))
            .filter(|place| place.caller == call.caller.id() && place.is_fresh(now));
        place.ok_or_else(|| RequestFault::InvalidCursor.into())
    }

    /// The snapshot to look a name up in. While upstreams are listed for the first time, only a
    /// name that the caller may use is looked up at once: denied, unknown and not yet known names
    /// wait alike.
    async fn catalog_for(
        &self,
        call: &Call,
        record: &CallRecord,
        name: &str,
        name_kind: NameKind,
        deadline: Instant,
    ) -> Arc<Catalog> {
        let catalog = self.catalog();
        let may_use = |owner: &Owner| {
            let method = call.request.method();
            self.views.allows(&call.caller, method, &call.endpoint, owner)
        };
        let is_settled = !catalog.pending || owner(&catalog, name, name_kind).is_some_and(may_use);
        let catalog = if is_settled { catalog } else { self.settled(deadline).await };
        // A call that cannot be recorded is refused, and nothing is done for it.
        let is_known = record.refuses() || owner(&catalog, name, name_kind).is_some();
        if self.caller_lists.is_none() || is_known {
            return catalog;
        }
        self.with_caller_lists(call, PrivateListScope::Of(name, name_kind), catalog, deadline).await
    }

    fn find<'a>(
        &'a self,
        catalog: &'a Catalog,
        name: &str,
        name_kind: NameKind,
    ) -> Option<(&'a Owner, &'a Arc<Upstream>)> {
        let owner = owner(catalog, name, name_kind)?;
        Some((owner, self.upstreams.get(&owner.upstream)?))
    }

    fn listed<'a>(&self, call: &Call, owner: &'a Owner) -> Resolution<'a> {
        let target = CallTarget {
            upstream: owner.upstream.as_str(),
            raw_name: &owner.raw_name,
            definition: &owner.digest,
            state: owner.approval.state,
        };
        if self.views.serves(&call.endpoint, &owner.upstream, &owner.public_name) {
            Resolution::Listed(target)
        } else {
            let view = call.endpoint.rsplit('/').next().unwrap_or_default();
            Resolution::NotServed { target, rule: format!("views.{view}") }
        }
    }

    /// Looks for the upstream that may have a name that no list contains. A name with the prefix of
    /// an upstream whose list was never received is not unknown: clients would forget it.
    fn unlisted<'a>(&'a self, catalog: &Catalog, call: &Call, name: &str) -> Option<Unlisted<'a>> {
        let (prefix, listed_name) = self.naming.claimed(name)?;
        let claims = |upstream: &&Arc<Upstream>| {
            let own = &upstream.config().prefix;
            !own.is_bare() && own.as_str() == prefix
        };
        let id = &self.upstreams.values().find(claims)?.config().id;
        let is_missing = |part: &&Incomplete| part.walked_at.is_none() && part.upstream == *id;
        let missing = catalog.incomplete.iter().find(is_missing)?;
        self.views.serves(&call.endpoint, id, name).then(|| {
            let raw_name = overlay::raw_name(&self.overlays, id, listed_name);
            let state = self.approvals.known_state(id, &raw_name);
            Unlisted { upstream: id, raw_name, state, kind: missing.kind.clone() }
        })
    }
}

/// A prompt that may exist, at an upstream that has no list.
struct Unlisted<'a> {
    upstream: &'a UpstreamId,
    raw_name: String,
    state: ApprovalState,
    /// Why there is no list.
    kind: Kind,
}

impl Unlisted<'_> {
    fn resolution(&self) -> Resolution<'_> {
        let Self { upstream, raw_name, state, kind } = self;
        let upstream = upstream.as_str();
        let target = CallTarget { upstream, raw_name, definition: "", state: *state };
        Resolution::Unlisted(target, Fault::upstream(upstream, kind.clone()))
    }
}

/// The resolution of a prompt that approvals hold back.
fn held(row: &ApprovalRow) -> Resolution<'_> {
    let (state, offered) = (row.decision.state, row.offered.as_ref());
    let target = CallTarget {
        upstream: row.upstream.as_str(),
        raw_name: &row.raw_name,
        definition: offered.map(|offered| &*offered.version.definition).unwrap_or_default(),
        state,
    };
    Resolution::NotServed { target, rule: format!("approvals.{}", state.as_str()) }
}

/// A call behind the gate, and the upstream that it goes to.
struct RoutedCall<'a> {
    call: &'a Call,
    authorized: Authorized<'a>,
    owner: &'a Owner,
    upstream: &'a Arc<Upstream>,
}

/// An argument that a client wants completed.
struct Completing<'a> {
    argument: &'a str,
    /// The input so far.
    value: &'a str,
    context: Option<&'a Document>,
}

/// Completes an argument: from the choices of an overlay, or by the upstream.
async fn complete(
    routed: &RoutedCall<'_>,
    completing: Completing<'_>,
    channel: &CallChannel,
    deadline: Instant,
) -> Result<Reply, Fault> {
    let RoutedCall { call, authorized, owner, upstream } = routed;
    let Completing { argument, value, context } = completing;
    let mut effective = None;
    if let Some(overlay) = &owner.overlay {
        effective = overlay.context(argument, context.map(Document::json))?;
        if let Some(choices) = overlay.completed(argument, value) {
            let completion = Completion::of(&choices);
            return Ok(Reply::Completion { completion, origin: origin(owner) });
        }
    }
    let request = UpstreamRequest {
        params: RequestParams::Complete {
            prompt: owner.raw_name.clone(),
            argument: argument.to_owned(),
            value: value.to_owned(),
            context: effective.or_else(|| context.cloned()),
        },
        forwarded: call.forwarded.clone(),
        overlay: owner.overlay.clone(),
        capabilities: ClientCapabilities::NONE,
        progress: call.client.progress,
    };
    let mut exchange = upstream.call(authorized, request, deadline);
    loop {
        match exchange.next().await? {
            ExchangeEvent::Interim(InterimMessage::Progress(params)) => {
                channel.tell(CallEvent::Progress(params));
            }
            ExchangeEvent::Interim(_) => {}
            ExchangeEvent::Response(result) => return reply::completion(result, origin(owner)),
        }
    }
}

fn owner<'a>(catalog: &'a Catalog, name: &str, name_kind: NameKind) -> Option<&'a Owner> {
    match name_kind {
        NameKind::Public => catalog.content.owner(name),
        NameKind::Tool => catalog.content.owner_of_tool(name),
    }
}

/// Returns the arguments of a tool under the names of the prompt's arguments; `None` where they are
/// the same.
///
/// # Errors
/// [`RequestFault::InvalidParams`] if an argument is given under both of its names.
fn renamed_arguments(
    owner: &Owner,
    arguments: &Document,
) -> Result<Option<Document>, RequestFault> {
    let derived: HashMap<String, &str> = owner
        .arguments
        .iter()
        .map(|argument| (name_of_tool(&argument.name), argument.name.as_str()))
        .filter(|(property, name)| property != name)
        .collect();
    if derived.is_empty() {
        return Ok(None);
    }
    let mut text = String::new();
    write_object(&mut text, |renamed| {
        for (key, value) in arguments.json().members() {
            let key = key.as_str().unwrap_or_default();
            renamed.json(derived.get(&*key).copied().unwrap_or(&key), value.text());
        }
    });
    let renamed = Document::parse(text.into_bytes(), ARGUMENTS_DEPTH).map_err(|_| {
        let what = "an argument is given twice, under its name and as a property".to_owned();
        RequestFault::InvalidParams { what }
    })?;
    Ok(Some(renamed))
}

/// An object of strings.
const ARGUMENTS_DEPTH: usize = 2;

fn origin(owner: &Owner) -> ResultOrigin {
    ResultOrigin {
        upstream: owner.upstream.clone(),
        digest: owner.digest.clone(),
        name: owner.public_name.clone(),
    }
}

/// Returns the arguments for the upstream where they are not those of the client.
///
/// # Errors
/// The arguments do not fit the effective definition.
fn effective_arguments(
    routed: &RoutedCall<'_>,
    arguments: Option<&Document>,
) -> Result<Option<Document>, Fault> {
    let mut validation = Validation::PresetsOnly;
    if routed.upstream.config().settings.validate_arguments {
        validation = Validation::Full;
        check_arguments(routed.owner, arguments)?;
    }
    match &routed.owner.overlay {
        Some(overlay) => Ok(overlay.arguments(arguments.map(Document::json), validation)?),
        None => Ok(None),
    }
}

/// Removes the values of preset arguments, which an upstream may repeat, from a fault.
fn without_presets(owner: &Owner, fault: Fault) -> Fault {
    match (fault, &owner.overlay) {
        (Fault::Upstream(fault), Some(overlay)) => {
            let kind = without_secrets(fault.kind, overlay.preset_values());
            UpstreamFault { kind, ..fault }.into()
        }
        (fault, _) => fault,
    }
}

/// Checks that all required arguments are given.
fn check_arguments(owner: &Owner, arguments: Option<&Document>) -> Result<(), Fault> {
    let required = || owner.arguments.iter().filter(|argument| argument.required);
    let mut missing: HashSet<&str> = required().map(|argument| argument.name.as_str()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    // One pass over the text, which may have megabytes, for all required arguments.
    for (name, _) in arguments.into_iter().flat_map(|arguments| arguments.json().members()) {
        if let Some(name) = name.as_str() {
            missing.remove(&*name);
        }
    }
    match required().find(|argument| missing.contains(argument.name.as_str())) {
        Some(argument) => {
            Err(RequestFault::MissingArgument { argument: argument.name.clone() }.into())
        }
        None => Ok(()),
    }
}
