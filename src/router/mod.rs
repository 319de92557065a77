//! The router: answers lists from the catalog and takes gets and completions to their owner.

pub(crate) mod announce;
mod build;
mod bridge;
pub(crate) mod catalog;
pub(crate) mod call_channel;
mod suspended_calls;
mod definition_pins;
pub(crate) mod refresh;
pub(crate) mod reply;
pub(crate) mod debounce;
mod status;
pub(crate) mod view;
pub(crate) mod view_cache;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::broadcast;
use tokio::time::{Instant, timeout_at};

use crate::config::{Limits, Listing};
use crate::domain::call::{Call, Request};
use crate::domain::caller::Caller;
use crate::domain::cursor::{CacheScope, Place};
use crate::domain::document::Document;
use crate::domain::fault::{Fault, RequestFault};
use crate::domain::name::{Naming, UpstreamId};
use crate::domain::server_request::ClientCapabilities;
use crate::policy::Permitted;
use crate::seal::{Kind, Sealer};
use crate::upstream::Upstream;
use crate::upstream::call::correlator::{InterimMessage, UrlElicitationComplete};
use crate::upstream::call::exchange::ExchangeEvent;
use crate::upstream::call::request::{RequestParams, UpstreamRequest};
use bridge::Bridge;
use build::SharedState;
use call_channel::{CallChannel, CallEvent};
use catalog::{Catalog, Incomplete, Owner};
use reply::{ListReply, Origin, Reply};
use view::View;
use view_cache::{Changes, ViewCache};

pub use crate::upstream::UpstreamDeps;
pub use build::RouterDeps;
pub(crate) use status::UpstreamStatus;

/// SHA-256 of a visible list: equal digests are equal lists.
pub(crate) type Digest = [u8; 32];

/// Answers permitted calls, as one configuration says.
pub struct Router {
    catalog: Arc<ArcSwap<Catalog>>,
    views: Arc<ViewCache>,
    /// By their ids.
    upstreams: BTreeMap<UpstreamId, Arc<Upstream>>,
    sealer: Arc<Sealer>,
    naming: Naming,
    listing: Listing,
    limits: Limits,
    shared: Arc<SharedState>,
}

impl Router {
    /// Answers a call before `deadline`, which stands still while a user thinks; what is said before
    /// the answer goes to `line`. `now_secs` is the time since the Unix epoch, for cursors and states.
    pub async fn route(
        &self,
        call: Permitted<Call>,
        channel: &CallChannel,
        deadline: Instant,
        now_secs: u64,
    ) -> Result<Reply, Fault> {
        let (permitted, call) = (&call, call.get());
        match &call.request {
            Request::List { cursor } => {
                self.list(call, cursor.as_deref(), deadline, now_secs).await
            }
            Request::Get { name, arguments, retry } => {
                let catalog = self.catalog_with(name, deadline).await;
                let (owner, upstream) = self.owner(&catalog, permitted, name)?;
                permitted.reach(owner.upstream.as_str(), &owner.raw_name, &owner.digest).await?;
                if upstream.config().settings.validate_arguments {
                    check_arguments(owner, arguments.as_ref())?;
                }
                let bridge = Bridge {
                    router: self,
                    call,
                    channel,
                    owner,
                    upstream,
                    arguments: arguments.as_ref(),
                    deadline,
                    now_secs,
                    rounds: 0,
                };
                let reply = bridge.run(retry.as_ref()).await?;
                self.count_use(call, owner);
                Ok(reply)
            }
            Request::Complete { name, argument, value, context } => {
                let catalog = self.catalog_with(name, deadline).await;
                let (owner, upstream) = self.owner(&catalog, permitted, name)?;
                permitted.reach(owner.upstream.as_str(), &owner.raw_name, &owner.digest).await?;
                let params = RequestParams::Complete {
                    prompt: owner.raw_name.clone(),
                    argument: argument.clone(),
                    value: value.clone(),
                    context: context.clone(),
                };
                let reply = complete(call, (owner, upstream), params, channel, deadline).await?;
                self.count_use(call, owner);
                Ok(reply)
            }
        }
    }

    fn count_use(&self, call: &Call, owner: &Owner) {
        let (method, upstream) = (call.request.method().as_str(), owner.upstream.as_str());
        self.shared.telemetry.metrics().used(method, upstream, &owner.public_name);
    }

    /// Tells when the list that the caller sees at the endpoint has become another one, and has
    /// settled.
    pub fn changes(&self, caller: &Caller, endpoint: &str) -> Changes {
        Changes::new(self.shared.changes.clone(), caller.clone(), endpoint.to_owned())
    }

    /// Pages that users have visited, as their upstreams tell it.
    pub fn pages(&self) -> broadcast::Receiver<UrlElicitationComplete> {
        self.shared.pages.subscribe()
    }

    /// The newest snapshot.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// A snapshot that no upstream is missing from merely because it was not asked yet.
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

    async fn list(
        &self,
        call: &Call,
        cursor: Option<&str>,
        deadline: Instant,
        now_secs: u64,
    ) -> Result<Reply, Fault> {
        let place = cursor.map(|token| self.open_cursor(token, call, now_secs)).transpose()?;
        let catalog = self.settled(deadline).await;
        if let Some(fault) = &catalog.list_fault {
            return Err(fault.clone());
        }
        // What one caller sees, others may not.
        let scope = match self.views.differ(&call.caller) {
            true => CacheScope::Private,
            false => catalog.scope,
        };
        // All pages of one list have one scope (2026-07-28, caching).
        if place.as_ref().is_some_and(|place| place.scope != scope) {
            return Err(RequestFault::InvalidCursor.into());
        }
        let view = self.views.view(&catalog.content, &call.caller, &call.endpoint);
        let after = place.as_ref().map(|place| place.last.as_str());
        let next_cursor = view.page(after, self.listing.page_size).more_after.map(|last| {
            let owner = catalog.content.owner(last).map(|owner| owner.upstream.to_string());
            let place = Place {
                caller: call.caller.id().to_owned(),
                scope,
                issued_at: now_secs,
                last: last.to_owned(),
                owner: owner.unwrap_or_default(),
            };
            self.sealer.seal(Kind::Cursor, &call.endpoint, &place.encode())
        });
        let now = Instant::now();
        let ttl = catalog.ttl(now, self.listing.ttl_max);
        let incomplete = self.incomplete(&catalog, &view, &call.caller, &call.endpoint);
        let (after, page_size) = (place.map(|place| place.last), self.listing.page_size);
        Ok(Reply::List(ListReply {
            view,
            scope,
            incomplete,
            after,
            page_size,
            next_cursor,
            ttl,
            now,
        }))
    }

    /// The upstreams that are old or missing; to a caller with rights of its own only those of which
    /// it sees something, or would if they had nothing to hide.
    fn incomplete(
        &self,
        catalog: &Catalog,
        view: &View,
        caller: &Caller,
        endpoint: &str,
    ) -> Vec<Incomplete> {
        let is_part = |part: &&Incomplete| {
            let sees_some = || {
                let owners = catalog.content.owners().iter();
                let mut theirs = owners.filter(|owner| owner.upstream == part.upstream);
                theirs.any(|owner| view.contains(&owner.public_name))
            };
            let is_served = self.views.serves_some(endpoint, &part.upstream);
            is_served && (!self.views.differ(caller) || sees_some())
        };
        catalog.incomplete.iter().filter(is_part).cloned().collect()
    }

    fn open_cursor(&self, token: &str, call: &Call, now_secs: u64) -> Result<Place, Fault> {
        let plain = self.sealer.open(Kind::Cursor, &call.endpoint, token);
        let place = plain
            .and_then(|bytes| Place::decode(&bytes))
            .filter(|place| place.caller == call.caller.id() && place.is_fresh(now_secs));
        place.ok_or_else(|| RequestFault::InvalidCursor.into())
    }

    /// A snapshot that knows the name, or one that is settled without it.
    async fn catalog_with(&self, name: &str, deadline: Instant) -> Arc<Catalog> {
        let catalog = self.catalog();
        match catalog.content.owner(name).is_some() {
            true => catalog,
            false => self.settled(deadline).await,
        }
    }

    /// Who answers for a name that the caller may use. One that it may not use is as unknown as one
    /// that nobody has. A name that an upstream may well have whose list was never seen is not
    /// unknown: that would tell clients to forget it.
    fn owner<'a>(
        &'a self,
        catalog: &'a Catalog,
        permitted: &Permitted<Call>,
        name: &str,
    ) -> Result<(&'a Owner, &'a Arc<Upstream>), Fault> {
        let call = permitted.get();
        let (caller, endpoint, method) = (&call.caller, &call.endpoint, call.request.method());
        let unknown = || Fault::from(RequestFault::UnknownPrompt);
        if let Some(owner) = catalog.content.owner(name) {
            if !self.views.allows(caller, method, endpoint, owner) {
                permitted.deny(owner.upstream.as_str(), &owner.raw_name);
                return Err(unknown());
            }
            let upstream = self.upstreams.get(&owner.upstream).ok_or_else(unknown)?;
            return Ok((owner, upstream));
        }
        let unheard = self.naming.claimed(name).and_then(|(prefix, raw_name)| {
            let claims = |upstream: &&Arc<Upstream>| {
                let own = &upstream.config().prefix;
                !own.is_bare() && own.as_str() == prefix
            };
            let id = &self.upstreams.values().find(claims)?.config().id;
            let allows = self.views.would_allow(caller, method, endpoint, (id, name, raw_name));
            let unheard = |part: &&Incomplete| part.walked_at.is_none() && part.upstream == *id;
            catalog.incomplete.iter().find(unheard).filter(|_| allows)
        });
        let missing =
            |part: &Incomplete| Fault::upstream(part.upstream.as_str(), part.kind.clone());
        Err(unheard.map_or_else(unknown, missing))
    }
}

async fn complete(
    call: &Call,
    (owner, upstream): (&Owner, &Arc<Upstream>),
    params: RequestParams,
    channel: &CallChannel,
    deadline: Instant,
) -> Result<Reply, Fault> {
    let (forwarded, progress) = (call.forwarded.clone(), call.client.progress);
    let request =
        UpstreamRequest { params, forwarded, capabilities: ClientCapabilities::NONE, progress };
    let mut exchange = upstream.exchange(&call.caller, request, deadline);
    loop {
        match exchange.next().await? {
            ExchangeEvent::Interim(InterimMessage::Progress(params)) => {
                channel.tell(CallEvent::Progress(params))
            }
            ExchangeEvent::Interim(_) => {}
            ExchangeEvent::Response(result) => return reply::completion(result, origin(owner)),
        }
    }
}

fn origin(owner: &Owner) -> Origin {
    Origin {
        upstream: owner.upstream.to_string(),
        digest: owner.digest.clone(),
        name: owner.public_name.clone(),
    }
}

fn check_arguments(owner: &Owner, arguments: Option<&Document>) -> Result<(), Fault> {
    let is_given = |name: &str| arguments.is_some_and(|a| a.json().get(name).is_some());
    let missing = owner.arguments.iter().find(|a| a.required && !is_given(&a.name));
    match missing {
        Some(argument) => {
            Err(RequestFault::MissingArgument { argument: argument.name.clone() }.into())
        }
        None => Ok(()),
    }
}
