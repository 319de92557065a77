//! The lists of one configuration: snapshots of the catalog, and pages for callers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::blocking::within;
use super::caller_lists::{CallerLists, PrivateListScope};
use super::list_cursor::ListCursors;
use super::listed_item::ListedItem;
use super::reply::ListReply;
use super::snapshot::{Catalog, CatalogContent, Incomplete};
use super::view::ListView;
use super::view_cache::{ListKind, ViewCache};
use base::platform::heap::boxed;
use base::seal::Sealer;
use config::{Listing, ToolForm};
use domain::calls::call::{Call, NameKind, SkillPart};
use domain::calls::cursor::CacheScope;
use domain::fault::{Fault, RequestFault};
use domain::json::Json;
use domain::name::{Naming, Prefix, UpstreamId};
use domain::prompts::skill::public_uri;
use domain::time::unix_time::UnixSeconds;
use policy::CallRecord;
use upstream::guard::concurrency::ConcurrencyLimit;

/// The lists of one configuration in the view of callers.
pub struct Lists {
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// Marked changed whenever a snapshot is published.
    pub published: watch::Receiver<()>,
    pub views: Arc<ViewCache>,
    /// The private lists; `None` if every upstream lists the same for all callers.
    pub caller_lists: Option<Arc<CallerLists>>,
    pub naming: Naming,
    /// The prefixes of all upstreams.
    pub prefixes: BTreeMap<UpstreamId, Prefix>,
    /// `poll` of the upstreams that are polled.
    pub polls: BTreeMap<UpstreamId, Duration>,
    pub sealer: Arc<Sealer>,
    pub listing: Listing,
    /// Permits to search a large view (`find_prompt`).
    pub searches: Arc<ConcurrencyLimit>,
    /// Whether an authentication method is configured, so that callers have different cursors.
    pub has_callers: bool,
    /// Whether lists require a credential.
    pub needs_credential: bool,
}

impl Lists {
    /// The newest snapshot.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// The first snapshot in which no upstream is pending, or the newest at `deadline`.
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

    /// Like [`Self::settled`], with the caller's private lists.
    pub(crate) async fn settled_for(&self, call: &Call, deadline: Instant) -> Arc<Catalog> {
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
            Some(lists) => boxed(lists.catalog(&self.views, call, wanted, catalog, deadline)).await,
            None => catalog,
        }
    }

    pub async fn list(
        &self,
        call: &Call,
        kind: ListKind,
        cursor: Option<&str>,
        deadline: Instant,
        now: UnixSeconds,
    ) -> Result<ListReply, Fault> {
        let cursors = ListCursors::of_list(&self.sealer, call, kind, now);
        let place = cursor.map(|token| cursors.open(token)).transpose()?;
        let owned = if kind == ListKind::Tools { ListKind::Prompts } else { kind };
        let (catalog, prompts) = self.viewed(call, owned, deadline).await?;
        let content = self.content(&catalog, kind, &call.endpoint);
        let has_skills = kind == ListKind::Tools && self.has_skills(&call.endpoint);
        let incomplete = self.incomplete(&catalog, owned, &prompts, call)?;
        let cut_at = Instant::now();
        let ttl = if incomplete.is_empty() {
            self.ttl(&catalog, kind, &prompts, call, cut_at)
        } else {
            Duration::ZERO
        };
        if kind == ListKind::Tools
            && self.views.endpoints.tool_form(&catalog.content, &call.endpoint)
                == Some(ToolForm::Pair)
        {
            return self.pair(cursor, ttl, has_skills);
        }
        let view = match kind {
            ListKind::Prompts | ListKind::Skills => prompts,
            ListKind::Tools => {
                let Call { caller, endpoint, .. } = call;
                let viewing = self.views.tools(&catalog.content, caller, endpoint, has_skills);
                within(deadline, viewing).await?
            }
        };
        // A response that depends on the caller must not be cached for other clients. The list may
        // depend on the caller, and each cursor is sealed for its caller.
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
            let item = content.item(last).map(|item| item.upstream.to_string());
            cursors.seal(scope, last.to_owned(), item.unwrap_or_default())
        });
        Ok(ListReply {
            kind,
            digest: *view.digest(),
            scope,
            incomplete,
            elements: page.pieces,
            next_cursor,
            ttl,
            now: cut_at,
        })
    }

    /// The view of a caller on the prompts or the skills, and the snapshot behind the view.
    pub(crate) async fn viewed(
        &self,
        call: &Call,
        kind: ListKind,
        deadline: Instant,
    ) -> Result<(Arc<Catalog>, Arc<ListView>), Fault> {
        let catalog = self.settled_for(call, deadline).await;
        let content = self.content(&catalog, kind, &call.endpoint);
        let viewing = self.views.view_of(kind, content, &call.caller, &call.endpoint);
        let view = within(deadline, viewing).await?;
        Ok((catalog, view))
    }

    /// The content behind a list at an endpoint.
    fn content<'a>(
        &self,
        catalog: &'a Catalog,
        kind: ListKind,
        endpoint: &str,
    ) -> &'a Arc<CatalogContent> {
        match kind {
            ListKind::Prompts | ListKind::Tools => &catalog.content,
            ListKind::Skills => &self.views.endpoints.skills_at(&catalog.skills, endpoint).content,
        }
    }

    /// How long a client may keep a complete list. The ttl of an upstream whose prompts the caller
    /// does not see must not affect the caller's list.
    fn ttl(
        &self,
        catalog: &Catalog,
        kind: ListKind,
        prompts: &ListView,
        call: &Call,
        now: Instant,
    ) -> Duration {
        let sees_all =
            !self.views.differ(&call.caller) && self.views.endpoints.serves_all(&call.endpoint);
        let is_part = |id: &UpstreamId| sees_all || prompts.lists(id);
        let most = match kind {
            ListKind::Prompts | ListKind::Tools => self.listing.ttl_max,
            ListKind::Skills => self.skills_ttl_max(is_part),
        };
        catalog.ttl(now, most, is_part)
    }

    /// Upper bound of the `ttlMs` of skills. The extension has no notification of changes, so
    /// clients poll as often as the gateway does.
    fn skills_ttl_max(&self, is_part: impl Fn(&UpstreamId) -> bool) -> Duration {
        let polls = self.polls.iter().filter(|(id, _)| is_part(id)).map(|(_, poll)| *poll);
        polls.chain([self.listing.ttl_max]).min().unwrap_or_default()
    }

    /// How long, and for whom, a client may keep a part of an upstream's skill.
    pub fn hints(
        &self,
        catalog: &Catalog,
        call: &Call,
        upstream: &UpstreamId,
    ) -> (Duration, CacheScope) {
        let is_part = |id: &UpstreamId| id == upstream;
        let ttl = catalog.ttl(Instant::now(), self.skills_ttl_max(is_part), is_part);
        let is_of_caller = self.needs_credential || self.views.differ(&call.caller);
        (ttl, if is_of_caller { CacheScope::Private } else { catalog.scope })
    }

    /// How long, and for whom, a client may keep a result according to the upstream. A result that
    /// depends on the caller is for that caller alone.
    pub fn hints_of(&self, result: Json<'_>, call: &Call) -> (Duration, CacheScope) {
        let ttl = result.get("ttlMs").and_then(Json::as_whole);
        let ttl = ttl.and_then(|ttl| u64::try_from(ttl).ok()).unwrap_or_default();
        let is_public = result.get("cacheScope").is_some_and(|scope| scope.is("public"));
        let differs = self.has_callers || self.views.differ(&call.caller);
        let scope = if is_public && !differs { CacheScope::Public } else { CacheScope::Private };
        (Duration::from_millis(ttl), scope)
    }

    /// The list of `find_prompt` and `use_prompt`, with the tools for skills if skills exist: one
    /// page, the same for all callers.
    pub fn pair(
        &self,
        cursor: Option<&str>,
        ttl: Duration,
        has_skills: bool,
    ) -> Result<ListReply, Fault> {
        if cursor.is_some() {
            return Err(RequestFault::InvalidCursor.into());
        }
        let view = self.views.pair(has_skills);
        Ok(ListReply {
            kind: ListKind::Tools,
            digest: *view.digest(),
            scope: if self.needs_credential { CacheScope::Private } else { CacheScope::Public },
            incomplete: Vec::new(),
            elements: view.page(None, view.len()).pieces,
            next_cursor: None,
            ttl,
            now: Instant::now(),
        })
    }

    /// The stale and missing upstreams of a caller's list at an endpoint. An upstream belongs to
    /// the list if the caller sees one of its prompts. An upstream without known prompts belongs to
    /// the list if the endpoint would serve its prompts, and rights do not differ by caller.
    ///
    /// # Errors
    /// The fault of the list, if no upstream has a list.
    pub fn incomplete(
        &self,
        catalog: &Catalog,
        kind: ListKind,
        view: &ListView,
        call: &Call,
    ) -> Result<Vec<Incomplete>, Fault> {
        let Call { caller, endpoint, .. } = call;
        let differ = self.views.differ(caller);
        let is_part = |part: &&Incomplete| {
            if !differ && self.views.endpoints.serves_all(endpoint) {
                return true;
            }
            if self.content(catalog, kind, endpoint).everyone.lists(&part.upstream) {
                return view.lists(&part.upstream);
            }
            let prefix = self.prefixes.get(&part.upstream);
            let beginning = |prefix| match kind {
                ListKind::Prompts | ListKind::Tools => self.naming.beginning(prefix),
                ListKind::Skills => public_uri(prefix, ""),
            };
            let beginning = prefix.map(beginning).unwrap_or_default();
            !differ && self.views.endpoints.could_serve(endpoint, &part.upstream, &beginning)
        };
        let is_of_kind = |part: &&Incomplete| kind == ListKind::Skills || !part.has_prompts;
        if catalog.pending && view.is_empty() {
            // No upstream has reported in time, or the refresh has ended: no prompt is known.
            return Err(Fault::none_available());
        }
        let parts = catalog.incomplete.iter().filter(is_of_kind).filter(is_part);
        let parts: Vec<Incomplete> = parts.cloned().collect();
        match &catalog.list_fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(parts),
        }
    }

    /// The snapshot to look a name up in. While the first lists are pending, only a name that the
    /// caller may use is looked up at once: denied, unknown and not yet known names wait alike.
    pub async fn catalog_for(
        &self,
        call: &Call,
        record: &CallRecord,
        name: &str,
        name_kind: NameKind,
        deadline: Instant,
    ) -> Arc<Catalog> {
        let catalog = self.catalog();
        let may_use = |item: &ListedItem| {
            let method = call.request.method();
            self.views.allows(&call.caller, method, &call.endpoint, item)
        };
        let is_settled = !catalog.pending || item(&catalog, name, name_kind).is_some_and(may_use);
        let catalog = if is_settled { catalog } else { self.settled(deadline).await };
        // A call that cannot be recorded is refused, so no list is fetched for the call.
        let is_known = record.refuses() || item(&catalog, name, name_kind).is_some();
        if self.caller_lists.is_none() || is_known {
            return catalog;
        }
        self.with_caller_lists(call, PrivateListScope::Of(name, name_kind), catalog, deadline).await
    }

    /// The snapshot to look a part of a skill up in. Includes the private list of the upstream
    /// whose skill URIs have the beginning of `uri`.
    pub async fn catalog_for_skill(
        &self,
        call: &Call,
        record: &CallRecord,
        (uri, part): (&str, SkillPart),
        deadline: Instant,
    ) -> Arc<Catalog> {
        let catalog = self.settled(deadline).await;
        if self.caller_lists.is_none() || record.refuses() {
            return catalog;
        }
        let shared = self.views.endpoints.skills_at(&catalog.skills, &call.endpoint);
        if shared.find(uri, part, |_| true).is_some() {
            return catalog;
        }
        self.with_caller_lists(call, PrivateListScope::OfSkill(uri), catalog, deadline).await
    }

    /// Whether an endpoint serves any known skill, for any caller.
    pub fn has_skills(&self, endpoint: &str) -> bool {
        let private = self.caller_lists.as_ref();
        self.views.endpoints.has_skills(&self.catalog.load().skills, endpoint)
            || private.is_some_and(|lists| lists.has_skills(&self.views, endpoint))
    }

    /// Like [`Self::has_skills`], or the endpoint serves private lists that are not yet known.
    pub fn may_have_skills(&self, endpoint: &str) -> bool {
        let private = self.caller_lists.as_ref();
        self.has_skills(endpoint)
            || private.is_some_and(|lists| lists.may_have_skills(&self.views, endpoint))
    }
}

/// Finds the prompt with this name.
pub fn item<'a>(catalog: &'a Catalog, name: &str, name_kind: NameKind) -> Option<&'a ListedItem> {
    match name_kind {
        NameKind::Public => catalog.content.item(name),
        NameKind::Tool => catalog.content.item_of_tool(name),
    }
}
