//! The router: answers lists from the catalog and takes gets and completions to their owner.

mod bridge;
pub mod catalog;
pub mod line;
mod parked;
mod pins;
pub mod refresh;
pub mod reply;
pub mod settle;
mod status;
pub mod view;
pub mod views;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::Audit;
use crate::config::{Config, Limits, Listing};
use crate::domain::call::{Call, Request};
use crate::domain::caller::Caller;
use crate::domain::cursor::{CacheScope, Place};
use crate::domain::document::Document;
use crate::domain::fault::{Fault, RequestFault};
use crate::domain::name::Naming;
use crate::domain::question::Asks;
use crate::domain::rights::Rights;
use crate::policy::Permitted;
use crate::seal::{Kind, Sealer};
use crate::upstream::Upstream;
use crate::upstream::asides::{Aside, Ears, PageDone};
use crate::upstream::exchange::Step;
use crate::upstream::peer::{Outgoing, Wanted};
use bridge::Bridge;
use catalog::{Catalog, Content, Incomplete, Owner};
use line::{Line, News};
use parked::Parked;
use refresh::{Announce, Refresh};
use reply::{ListReply, Origin, Reply};
use settle::Settle;
use view::View;
use views::{Changes, Views};

pub use status::UpstreamStatus;

/// SHA-256 of a visible list: equal digests are equal lists.
pub type Digest = [u8; 32];

/// Answers permitted calls.
pub struct Router {
    catalog: Arc<ArcSwap<Catalog>>,
    /// Marked whenever a snapshot is published.
    published: watch::Receiver<()>,
    changes: watch::Receiver<Option<Arc<Content>>>,
    views: Views,
    /// Told of pages that users have visited, by all upstreams.
    pages: broadcast::Sender<PageDone>,
    upstreams: Vec<Arc<Upstream>>,
    sealer: Arc<Sealer>,
    naming: Naming,
    listing: Listing,
    limits: Limits,
    parked: Parked,
}

/// Reports that may wait for the refresh at once. Drivers wait their turn beyond that: each has
/// only one to make.
const REPORTS: usize = 64;

impl Router {
    /// `rights` decide who sees and uses what. Starts a driver for every upstream and the task that
    /// keeps the catalog.
    pub fn start(
        config: &Config,
        rights: Arc<dyn Rights>,
        sealer: Arc<Sealer>,
        audit: Audit,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Self {
        let catalog = Arc::new(ArcSwap::from_pointee(Catalog {
            pending: !config.upstreams.is_empty(),
            ..Catalog::default()
        }));
        let (publish, published) = watch::channel(());
        let (change, changes) = watch::channel(None);
        let settle = Settle::new(config.listing.settle, config.listing.settle_max);
        let audited = audit.clone();
        let announce = Announce { published: publish, changes: change, settle, audit };
        let (report, reports) = mpsc::channel(REPORTS);
        let pages = Ears::pages();
        let start = |(index, upstream): (usize, &crate::config::Upstream)| {
            let (upstream, report) = (upstream.clone(), report.clone());
            let (pages, audit, shutdown) = (pages.clone(), audited.clone(), shutdown.clone());
            Arc::new(Upstream::start(index, upstream, report, pages, audit, tasks, shutdown))
        };
        let upstreams = config.upstreams.iter().enumerate().map(start).collect();
        let refresh =
            Refresh::new(&config.upstreams, config.naming.clone(), config.listing.on_failure);
        let deadline = Instant::now() + config.listing.deadline;
        let refreshing =
            refresh.run(reports, catalog.clone(), announce, deadline, shutdown.clone());
        tasks.spawn(refreshing);
        let (naming, listing) = (config.naming.clone(), config.listing.clone());
        let limits = config.server.limits.clone();
        let views = Views::new(config, rights);
        let parking =
            parked::Limits { all: limits.parked_calls, per_caller: limits.parked_per_caller };
        let parked = Parked::new(parking, tasks.clone(), shutdown.clone());
        Self {
            catalog,
            published,
            changes,
            views,
            pages,
            upstreams,
            sealer,
            naming,
            listing,
            limits,
            parked,
        }
    }

    /// Answers a call before `deadline`, which stands still while a user thinks; what is said before
    /// the answer goes to `line`. `now_secs` is the time since the Unix epoch, for cursors and states.
    pub async fn route(
        &self,
        call: Permitted<Call>,
        line: &Line,
        deadline: Instant,
        now_secs: u64,
    ) -> Result<Reply, Fault> {
        let (permitted, call) = (&call, call.get());
        match &call.request {
            Request::List { cursor } => {
                self.list(call, cursor.as_deref(), deadline, now_secs).await
            }
            Request::Get { name, arguments, back } => {
                let catalog = self.catalog_with(name, deadline).await;
                let owner = self.owner(&catalog, permitted, name)?;
                let upstream = &self.upstreams[owner.upstream];
                let id = upstream.config().id.as_str();
                permitted.reach(id, &owner.raw_name, &owner.digest).await?;
                if upstream.config().settings.validate_arguments {
                    check_arguments(owner, arguments.as_ref())?;
                }
                let bridge = Bridge {
                    router: self,
                    call,
                    line,
                    owner,
                    upstream,
                    arguments: arguments.as_ref(),
                    deadline,
                    now_secs,
                    rounds: 0,
                };
                bridge.run(back.as_ref()).await
            }
            Request::Complete { name, argument, value, context } => {
                let catalog = self.catalog_with(name, deadline).await;
                let owner = self.owner(&catalog, permitted, name)?;
                let id = self.upstreams[owner.upstream].config().id.as_str();
                permitted.reach(id, &owner.raw_name, &owner.digest).await?;
                let wanted = Wanted::Complete {
                    prompt: owner.raw_name.clone(),
                    argument: argument.clone(),
                    value: value.clone(),
                    context: context.clone(),
                };
                self.complete(call, owner, wanted, line, deadline).await
            }
        }
    }

    /// Tells when the list that the caller sees at the endpoint has become another one, and has
    /// settled.
    pub fn changes(self: &Arc<Self>, caller: &Caller, endpoint: &str) -> Changes {
        let (router, caller) = (self.clone(), caller.clone());
        let endpoint = endpoint.to_owned();
        Changes::new(self.changes.clone(), move |content| {
            *router.views.view(content, &caller, &endpoint).digest()
        })
    }

    /// Pages that users have visited, as their upstreams tell it.
    pub fn pages(&self) -> broadcast::Receiver<PageDone> {
        self.pages.subscribe()
    }

    /// The newest snapshot.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// A snapshot that no upstream is missing from merely because it was not asked yet.
    pub async fn settled(&self, deadline: Instant) -> Arc<Catalog> {
        let mut published = self.published.clone();
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
            let owner = catalog.content.owner(last).map(|o| self.upstream_id(o));
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
            let upstream =
                self.upstreams.iter().position(|u| u.config().id.as_str() == part.upstream);
            let owners = catalog.content.owners().iter();
            let sees_some = || {
                let mut theirs = owners.filter(|owner| Some(owner.upstream) == upstream);
                theirs.any(|owner| view.contains(&owner.public_name))
            };
            let is_served = upstream.is_some_and(|u| self.views.serves_some(endpoint, u));
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

    async fn complete(
        &self,
        call: &Call,
        owner: &Owner,
        wanted: Wanted,
        line: &Line,
        deadline: Instant,
    ) -> Result<Reply, Fault> {
        let (along, progress) = (call.along.clone(), call.client.progress);
        let outgoing = Outgoing { wanted, along, asks: Asks::NONE, progress };
        let upstream = &self.upstreams[owner.upstream];
        let mut exchange = upstream.exchange(&call.caller, outgoing, deadline);
        loop {
            match exchange.next().await? {
                Step::Said(Aside::Progress(params)) => line.tell(News::Progress(params)),
                Step::Said(_) => {}
                Step::Answered(result) => return reply::completion(result, self.origin(owner)),
            }
        }
    }

    fn origin(&self, owner: &Owner) -> Origin {
        Origin {
            upstream: self.upstream_id(owner),
            digest: owner.digest.clone(),
            name: owner.public_name.clone(),
        }
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
        &self,
        catalog: &'a Catalog,
        permitted: &Permitted<Call>,
        name: &str,
    ) -> Result<&'a Owner, Fault> {
        let call = permitted.get();
        let (caller, endpoint, method) = (&call.caller, &call.endpoint, call.request.method());
        let unknown = || Fault::from(RequestFault::UnknownPrompt);
        if let Some(owner) = catalog.content.owner(name) {
            if !self.views.allows(caller, method, endpoint, owner) {
                permitted
                    .deny(self.upstreams[owner.upstream].config().id.as_str(), &owner.raw_name);
                return Err(unknown());
            }
            return Ok(owner);
        }
        let unheard = self.naming.claimed(name).and_then(|(prefix, raw_name)| {
            let index = self.upstreams.iter().position(|upstream| {
                let own = &upstream.config().prefix;
                !own.is_bare() && own.as_str() == prefix
            })?;
            let allows = self.views.would_allow(caller, method, endpoint, (index, name, raw_name));
            let id = &self.upstreams[index].config().id;
            let unheard =
                |part: &&Incomplete| part.walked_at.is_none() && part.upstream == id.as_str();
            catalog.incomplete.iter().find(unheard).filter(|_| allows)
        });
        Err(unheard.map_or_else(unknown, |part| Fault::upstream(&part.upstream, part.kind.clone())))
    }

    fn upstream_id(&self, owner: &Owner) -> String {
        self.upstreams[owner.upstream].config().id.to_string()
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
