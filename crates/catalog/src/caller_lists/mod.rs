//! The private lists of callers, for upstreams that list for each caller (`list_as = "caller"`). A
//! list is fetched on request with the caller's credential, kept by age, and served to that caller
//! only.

mod list;
mod presented;
pub mod watching;

use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::listed_item::ListedItem;
use crate::snapshot::{Catalog, Incomplete, not_reported_yet};
use crate::source::UpstreamSource;
use crate::view_cache::{ViewCache, options};
use base::platform::Locked;
use base::platform::heap::boxed;
use config::Config;
use domain::calls::call::{Call, NameKind};
use domain::calls::caller::{Caller, Principal};
use domain::calls::cursor::CacheScope;
use domain::calls::subject_token::SubjectToken;
use domain::fault::UpstreamFaultKind as Kind;
use domain::name::{Naming, UpstreamId};
use domain::prompts::skill::public_uri;
use domain::tool::name::is_derived;
use list::{List, ListsOf};
use presented::Presented;
use upstream::accounts::LoginChange;
use upstream::driver::FetchedList;
use upstream::{TokenAccess, Upstream};
use watching::Watchers;

/// The private lists of all callers, bounded by bytes (`listing.views_size`). Evicts the least
/// recently used lists first.
pub struct CallerLists {
    /// The upstreams that list for each caller.
    sources: Vec<Arc<UpstreamSource>>,
    naming: Naming,
    size: usize,
    /// `listing.deadline`: the longest wait of a request.
    patience: Duration,
    /// Set once the upstreams of the configuration have started.
    upstreams: OnceLock<HashMap<UpstreamId, Weak<Upstream>>>,
    lists: Cache<Principal, Arc<ListsOf>, ListSize, RandomState>,
    /// Serialises changes of `lists`.
    changing: Mutex<()>,
    /// Fetches in progress: each serves all waiting calls of its caller.
    turns: Mutex<HashMap<Place, ListFetches>>,
    watchers: Watchers,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

/// A caller, and the place of an upstream among the sources.
type Place = (Principal, usize);

/// Bytes of the lists of one caller.
#[derive(Clone)]
struct ListSize;

impl Weighter<Principal, Arc<ListsOf>> for ListSize {
    fn weight(&self, caller: &Principal, lists: &Arc<ListsOf>) -> u64 {
        (caller.size() + lists.size()) as u64
    }
}

/// The fetches of one list: one at a time.
#[derive(Default)]
struct ListFetches {
    /// The number of tasks that wait for `turn` or hold it.
    tasks: usize,
    turn: Arc<AsyncMutex<()>>,
}

/// Why a list is fetched.
pub(crate) enum Cause {
    /// A call requests the list, with its subject token.
    Call(Option<SubjectToken>),
    /// The list is due.
    Age,
    /// The upstream had announced a change by this time.
    Change(Instant),
    /// The caller had signed in by this time.
    SignIn(Instant),
}

/// The private lists that a request needs.
#[derive(Clone, Copy)]
pub enum PrivateListScope<'a> {
    /// The lists of all upstreams that the endpoint serves.
    All,
    /// The list of the upstream with the prefix of this name; all lists for a derived tool name.
    Of(&'a str, NameKind),
    /// The list of the upstream with the beginning of this skill URI.
    OfSkill(&'a str),
}

impl CallerLists {
    /// Returns the lists of a configuration. Reuses `before` if its inputs are unchanged. `None` if
    /// every upstream lists the same for all callers.
    pub fn new(
        config: &Config,
        sources: &[UpstreamSource],
        before: Option<&Arc<Self>>,
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Option<Arc<Self>> {
        let is_private = |source: &UpstreamSource| {
            let upstream = config.upstreams.iter().find(|upstream| upstream.id == source.id);
            upstream.is_some_and(|upstream| upstream.lists_per_caller())
        };
        let sources = sources.iter().filter(|source| is_private(source)).cloned().map(Arc::new);
        let sources: Vec<_> = sources.collect();
        if sources.is_empty() {
            return None;
        }
        let size = config.listing.views_size;
        let lists = Self {
            naming: config.naming.clone(),
            size,
            patience: config.listing.deadline,
            upstreams: OnceLock::new(),
            lists: Cache::with_options(
                options(size as u64),
                ListSize,
                RandomState::default(),
                DefaultLifecycle::default(),
            ),
            changing: Mutex::default(),
            turns: Mutex::default(),
            watchers: Watchers::default(),
            sources,
            tasks,
            shutdown,
        };
        Some(match before {
            Some(before) if before.makes_the_same(&lists) => before.clone(),
            _ => Arc::new(lists),
        })
    }

    fn makes_the_same(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&Arc<UpstreamSource>, &Arc<UpstreamSource>)| {
            one.driver == other.driver
                && one.prefix == other.prefix
                && one.overlays == other.overlays
                && one.skills_as_prompts == other.skills_as_prompts
        };
        self.sources.len() == other.sources.len()
            && self.sources.iter().zip(&other.sources).all(is_same)
            && self.naming == other.naming
            && self.size == other.size
            && self.patience == other.patience
    }

    /// Sets the upstreams of the sources.
    pub fn connect<'a>(
        &self,
        upstreams: impl Iterator<Item = (&'a UpstreamId, &'a Arc<Upstream>)>,
    ) {
        self.upstreams.get_or_init(|| {
            upstreams.map(|(id, upstream)| (id.clone(), Arc::downgrade(upstream))).collect()
        });
    }

    fn upstream(&self, at: usize) -> Option<Arc<Upstream>> {
        self.upstreams.get()?.get(&self.sources[at].id)?.upgrade()
    }

    /// Whether an endpoint serves an upstream that lists for each caller.
    pub(crate) fn has_any(&self, views: &ViewCache, endpoint: &str) -> bool {
        self.wanted(views, endpoint, PrivateListScope::All).next().is_some()
    }

    /// The places of the sources that a scope covers at an endpoint.
    fn wanted(
        &self,
        views: &ViewCache,
        endpoint: &str,
        wanted: PrivateListScope<'_>,
    ) -> impl Iterator<Item = usize> {
        self.sources.iter().enumerate().filter_map(move |(at, source)| {
            let could_serve =
                |beginning: &str| views.endpoints.could_serve(endpoint, &source.id, beginning);
            let names = || self.naming.beginning(&source.prefix);
            let is_wanted = match wanted {
                PrivateListScope::All => could_serve(&names()) || could_serve(&uris_of(source)),
                PrivateListScope::Of(name, NameKind::Tool) if is_derived(name) => {
                    could_serve(&names())
                }
                PrivateListScope::Of(name, _) => {
                    let names = names();
                    name.starts_with(&names) && could_serve(&names)
                }
                PrivateListScope::OfSkill(uri) => {
                    let uris = uris_of(source);
                    uri.starts_with(&uris) && could_serve(&uris)
                }
            };
            is_wanted.then_some(at)
        })
    }

    /// Whether an endpoint serves an upstream that has the extension for skills. Listed skills do
    /// not count: the answer must not reveal a caller's list to other callers.
    pub fn has_skills(&self, views: &ViewCache, endpoint: &str) -> bool {
        self.sources_at(views, endpoint).any(|at| self.declares_skills(at) == Some(true))
    }

    /// Like [`Self::has_skills`], or no caller has connected to an upstream yet.
    pub fn may_have_skills(&self, views: &ViewCache, endpoint: &str) -> bool {
        self.sources_at(views, endpoint).any(|at| self.declares_skills(at) != Some(false))
    }

    /// Whether a URI may belong to a skill of any caller.
    pub fn may_have_skill(&self, uri: &str) -> bool {
        let own = self.sources.iter().position(|source| uri.starts_with(&uris_of(source)));
        own.is_some_and(|at| self.declares_skills(at) != Some(false))
    }

    /// The places of the sources whose skills an endpoint would serve.
    fn sources_at(&self, views: &ViewCache, endpoint: &str) -> impl Iterator<Item = usize> {
        self.sources.iter().enumerate().filter_map(move |(at, source)| {
            views.endpoints.could_serve(endpoint, &source.id, &uris_of(source)).then_some(at)
        })
    }

    /// Whether an upstream has the extension for skills, according to the last caller's connection;
    /// `None` before the first connection.
    fn declares_skills(&self, at: usize) -> Option<bool> {
        Some(self.upstream(at)?.negotiated()?.has_skills)
    }

    fn lists_of(&self, caller: &Principal) -> Arc<ListsOf> {
        let known = self.lists.get(caller);
        known.unwrap_or_else(|| Arc::new(ListsOf::none(self.sources.len())))
    }

    /// Returns the catalog for the caller of a call: includes the caller's private lists, which are
    /// fetched if they are unknown or due.
    pub async fn catalog(
        self: &Arc<Self>,
        views: &ViewCache,
        call: &Call,
        wanted: PrivateListScope<'_>,
        shared: Arc<Catalog>,
        deadline: Instant,
    ) -> Arc<Catalog> {
        let places: Vec<_> = self.wanted(views, &call.endpoint, wanted).collect();
        if places.is_empty() {
            return shared;
        }
        let caller = Principal::new(&call.caller);
        let mut lists = self.lists_of(&caller);
        let is_known =
            matches!(wanted, PrivateListScope::Of(name, _) if lists.item(name).is_some());
        // Trying a prompt uses the caller's rights, not the caller's credential.
        if !is_known && call.tried_by.is_none() {
            let due = places.iter().copied();
            let now = Instant::now();
            let due: Vec<_> = due.filter(|at| lists.is_due(*at, now, None)).collect();
            if !due.is_empty() {
                let deadline = deadline.min(now + self.patience);
                let fetched = self.fetch(due, &caller, call.subject_token.as_ref(), deadline).await;
                let newest = self.lists_of(&caller);
                // Lists that exceed the memory for lists are served, but not kept.
                lists = if newest.has(&fetched) {
                    newest
                } else {
                    Arc::new(lists.with(newest.known().map(cloned).chain(fetched)))
                };
            }
        }
        let composed = lists.content(&shared, &caller).await;
        let mut catalog = Catalog {
            content: composed.prompts,
            skills: composed.skills,
            incomplete: shared.incomplete.clone(),
            pending: shared.pending,
            fresh_until: shared.fresh_until.clone(),
            scope: CacheScope::Private,
            list_fault: shared.list_fault.clone(),
            ..Catalog::default()
        };
        for at in places {
            self.note(&mut catalog, at, lists.get(at));
        }
        Arc::new(catalog)
    }

    /// Notes the freshness of one private list in the caller's catalog.
    fn note(&self, catalog: &mut Catalog, at: usize, list: Option<&Arc<List>>) {
        let upstream = &self.sources[at].id;
        let (failure, is_of_skills) = match list {
            Some(list) => {
                catalog.note_fresh(list.renew_at, upstream);
                let is_of_skills = list.failure.is_none();
                (list.failure.clone().or_else(|| list.skills_failure.clone()), is_of_skills)
            }
            None => (Some(not_reported_yet()), false),
        };
        let Some(kind) = failure else { return };
        catalog.incomplete.push(Incomplete {
            upstream: upstream.clone(),
            kind,
            walked_at: list.and_then(|list| {
                if is_of_skills { list.skills_listed_at() } else { list.fetched_at }
            }),
            has_prompts: is_of_skills && !self.sources[at].skills_as_prompts,
        });
    }

    /// Fetches the lists at these places concurrently until the deadline. Longer fetches continue
    /// in the background for the next call.
    async fn fetch(
        self: &Arc<Self>,
        due: Vec<usize>,
        caller: &Principal,
        subject: Option<&SubjectToken>,
        deadline: Instant,
    ) -> Vec<(usize, Arc<List>)> {
        let mut fetching = JoinSet::new();
        for at in due {
            let lists = self.clone();
            let place = (caller.clone(), at);
            let cause = Cause::Call(subject.cloned());
            fetching.spawn(self.tasks.track_future(async move {
                // The wait for a turn ends with the call, so that at most one task for each list
                // outlives its call.
                let turn = Turn::wait(lists.clone(), place).await;
                let renewing = lists.tasks.spawn(lists.clone().renew_in(turn, cause));
                Some((at, renewing.await.ok().flatten()?))
            }));
        }
        let mut fetched = Vec::with_capacity(fetching.len());
        while let Ok(Some(list)) = timeout_at(deadline, fetching.join_next()).await {
            fetched.extend(list.ok().flatten());
        }
        fetched
    }

    /// Fetches a list, unless another task has just fetched it. `None` at shutdown, and once the
    /// upstream is gone.
    async fn renew(self: Arc<Self>, place: Place, cause: Cause) -> Option<Arc<List>> {
        let turn = Turn::wait(self.clone(), place).await;
        self.renew_in(turn, cause).await
    }

    async fn renew_in(self: Arc<Self>, turn: Turn, cause: Cause) -> Option<Arc<List>> {
        let (caller, at) = &turn.place;
        let began_at = Instant::now();
        let changed_at = match cause {
            Cause::Change(at) | Cause::SignIn(at) => Some(at),
            Cause::Call(_) | Cause::Age => None,
        };
        let lists = self.lists_of(caller);
        if !lists.is_due(*at, began_at, changed_at) {
            return lists.get(*at).cloned();
        }
        let upstream = self.upstream(*at)?;
        let access = match &cause {
            Cause::Call(subject) => TokenAccess::Obtained(subject.as_ref()),
            Cause::SignIn(_) => TokenAccess::Obtained(None),
            Cause::Age | Cause::Change(_) => TokenAccess::Present,
        };
        let fetching = upstream.walk_as_caller(caller.caller(), access);
        let fetched = self.shutdown.run_until_cancelled(boxed(fetching)).await?;
        if let Err(Kind::NoToken { .. } | Kind::AuthFailed { .. }) = &fetched
            && matches!(access, TokenAccess::Present)
        {
            // The next call of the caller brings a fresh token.
            return lists.get(*at).cloned();
        }
        let (fetched, ended) = match fetched {
            Ok((fetched, ended)) => (Ok(fetched), Some(ended)),
            Err(kind) => (Err(kind), None),
        };
        // Read again: the cache may have evicted the list meanwhile.
        let before = self.lists_of(caller).get(*at).cloned();
        let list = self.made(*at, fetched, before, began_at).await;
        Some(self.keep(&turn.place, list, ended.as_ref()))
    }

    async fn made(
        &self,
        at: usize,
        fetched: Result<FetchedList, Kind>,
        before: Option<Arc<List>>,
        began_at: Instant,
    ) -> List {
        let before = before.as_deref();
        match fetched {
            Ok(FetchedList { mut listed, fresh_for }) => {
                if let Some(before) = before.filter(|_| listed.skills_failure.is_some()) {
                    before.lend_skills(&mut listed);
                }
                let source = self.sources[at].clone();
                let presented = Presented::of(source, self.naming.clone(), listed).await;
                List::fetched(presented, before, began_at, fresh_for)
            }
            Err(kind) => List::failed(kind, before, Instant::now()),
        }
    }

    /// Replaces the previous list, and notifies the streams of its caller. Discards the list if the
    /// access that fetched it has `ended`.
    fn keep(
        &self,
        (caller, at): &Place,
        list: List,
        ended: Option<&CancellationToken>,
    ) -> Arc<List> {
        let list = {
            let _changing = self.changing.locked();
            let is_over = ended.is_some_and(CancellationToken::is_cancelled);
            let list = if is_over { List::ended(Kind::AccessEnded, Instant::now()) } else { list };
            let list = Arc::new(list);
            let lists = self.lists_of(caller).with([(*at, list.clone())]);
            self.lists.insert(caller.clone(), Arc::new(lists));
            list
        };
        self.watchers.notify(caller);
        list
    }

    /// Releases objects that only contents before `generation` hold.
    pub(crate) fn release_before(&self, generation: u64) {
        self.lists.iter().for_each(|(_, lists)| lists.release_before(generation));
    }

    /// Empties the lists of a caller (by id; `None`: all) at an upstream (by id; `None`: all).
    pub fn forget(&self, caller: Option<&str>, upstream: Option<&str>, why: &Kind) {
        let is_meant = |known: &Principal| caller.is_none_or(|id| known.caller().id() == id);
        let meant: Vec<_> = self.lists.iter().filter(|(known, _)| is_meant(known)).collect();
        for (caller, lists) in meant {
            for (at, _) in lists.known() {
                if upstream.is_none_or(|id| self.sources[at].id.as_str() == id) {
                    let ended = List::ended(why.clone(), Instant::now());
                    self.keep(&(caller.clone(), at), ended, None);
                }
            }
        }
    }

    /// Takes up a changed login at an upstream, of the callers that `is_meant` selects: empties
    /// the lists of an earlier login, and fetches the lists that streams wait for.
    pub fn take_up_login(
        self: &Arc<Self>,
        upstream: &UpstreamId,
        is_meant: impl Fn(&Caller) -> bool,
        change: &LoginChange,
    ) {
        let Some(at) = self.sources.iter().position(|source| source.id == *upstream) else {
            return;
        };
        let is_waiting = |list: &List| matches!(list.failure, Some(Kind::SignInNeeded { .. }));
        let meant = self.lists.iter().filter(|(known, lists)| {
            lists.get(at).is_some_and(|list| change.is_new || is_waiting(list))
                && is_meant(known.caller())
        });
        for (caller, _) in meant.collect::<Vec<_>>() {
            let now = Instant::now();
            let place = (caller, at);
            self.keep(&place, List::ended(Kind::AccessEnded, now), None);
            if change.is_signed_in && self.watchers.has(&place.0) {
                self.tasks.spawn(self.clone().renew(place, Cause::SignIn(now)));
            }
        }
    }

    /// Has a caller's list fetched again soon, because it contradicts the upstream.
    pub fn doubt(&self, caller: &Caller, upstream: &UpstreamId) {
        let Some(at) = self.sources.iter().position(|source| source.id == *upstream) else {
            return;
        };
        let caller = Principal::new(caller);
        {
            let _changing = self.changing.locked();
            let lists = self.lists_of(&caller);
            let Some(list) = lists.get(at) else { return };
            let doubted = lists.with([(at, Arc::new(list.doubted()))]);
            self.lists.insert(caller.clone(), Arc::new(doubted));
        }
        self.watchers.notify(&caller);
    }

    /// Returns the lists of a caller if every list that the endpoint serves is known.
    fn known(&self, caller: &Principal, views: &ViewCache, endpoint: &str) -> Option<Arc<ListsOf>> {
        let lists = self.lists.get(caller)?;
        let mut wanted = self.wanted(views, endpoint, PrivateListScope::All);
        wanted.all(|at| lists.get(at).is_some()).then_some(lists)
    }

    /// Finds a prompt in the private lists of a caller.
    pub fn find<T>(
        &self,
        caller: &Caller,
        name: &str,
        kind: NameKind,
        found: impl FnOnce(&ListedItem) -> T,
    ) -> Option<T> {
        let lists = self.lists.get(&Principal::new(caller))?;
        let item = match kind {
            NameKind::Tool => lists.item_of_tool(name),
            NameKind::Public => lists.item(name),
        };
        item.map(found)
    }
}

/// The turn of a task to fetch a list: the tasks of one list take turns.
struct Turn {
    lists: Arc<CallerLists>,
    place: Place,
    /// `None` while the task waits.
    held: Option<OwnedMutexGuard<()>>,
}

impl Turn {
    /// Waits until no other task fetches the list. Cancel safe.
    async fn wait(lists: Arc<CallerLists>, place: Place) -> Self {
        let lock = {
            let mut turns = lists.turns.locked();
            let waiting = turns.entry(place.clone()).or_default();
            waiting.tasks += 1;
            waiting.turn.clone()
        };
        let mut turn = Self { lists, place, held: None };
        turn.held = Some(lock.lock_owned().await);
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = self.lists.turns.locked();
        if let Some(waiting) = turns.get_mut(&self.place) {
            waiting.tasks -= 1;
            if waiting.tasks == 0 {
                turns.remove(&self.place);
            }
        }
    }
}

/// The beginning of the URIs of an upstream's skills.
fn uris_of(source: &UpstreamSource) -> String {
    public_uri(&source.prefix, "")
}

fn cloned((at, list): (usize, &Arc<List>)) -> (usize, Arc<List>) {
    (at, list.clone())
}
