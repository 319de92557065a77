//! The view cache: one view for each endpoint and entitlement, shared by callers with the same
//! rights. A view of a new content is made from the previous view: rights are decided again for
//! changed segments only.

use std::collections::{HashMap, HashSet};
use std::hash::RandomState;
use std::sync::{Arc, Mutex, PoisonError};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Options, OptionsBuilder, Weighter};
use tokio::sync::Semaphore;

use super::blocking::{run_blocking, turn};
use super::endpoints::EndpointScopes;
use super::listed_item::ListedItem;
use super::segment::{Digest, Segment};
use super::snapshot::{CatalogContent, PrivatePart};
use super::view::ListView;
use config::ToolForm;
use domain::calls::caller::{Caller, Principal, Proof};
use domain::calls::rights::{Allowed, Rights};
use domain::protocol::method::Method;

/// Makes and caches views.
pub struct ViewCache {
    rights: Arc<dyn Rights>,
    /// The caller over standard streams.
    stdio: Caller,
    pub endpoints: EndpointScopes,
    /// The tools `find_prompt` and `use_prompt`, without and with the tools for skills.
    pair: [Arc<ListView>; 2],
    /// Cache of views, bounded by bytes. Evicts the least recently used views first.
    views: Cache<ViewKey, Cached, ViewSize, RandomState>,
    /// Permits for making large views.
    making: Arc<Semaphore>,
    /// The keys of the views that were made for each caller.
    made: Mutex<HashMap<Caller, Vec<ViewKey>>>,
    /// The memory for views, in bytes; `share` is the part for the views of one caller.
    views_size: u64,
    share: u64,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct ViewKey {
    list: ListKind,
    endpoint: Box<str>,
    entitlement: Option<Arc<str>>,
    /// `Some` for a view of a content that only this caller sees.
    audience: Option<Principal>,
    /// Whether the tools include the tools for skills.
    has_skills: bool,
}

impl ViewKey {
    fn new(
        list: ListKind,
        endpoint: &str,
        entitlement: Option<Arc<str>>,
        content: &CatalogContent,
    ) -> Self {
        let audience = content.private.as_ref().map(|private| private.audience.clone());
        Self { list, endpoint: endpoint.into(), entitlement, audience, has_skills: false }
    }
}

/// The newest view, and the generation of its content.
#[derive(Clone)]
struct Cached {
    generation: u64,
    view: Arc<ListView>,
    /// Whether the view covers its whole content. A remainder of an earlier view is not served.
    is_whole: bool,
    /// Bytes of the segments that only the view's audience sees.
    private: usize,
}

/// The list behind a view.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ListKind {
    Prompts,
    /// The tools derived from prompts.
    Tools,
    Skills,
}

/// A choice of lists.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListKinds {
    pub prompts: bool,
    pub tools: bool,
}

/// The digests of the lists that a caller sees at an endpoint. Zero for a list that is not served
/// or was not requested.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListDigests {
    pub prompts: Digest,
    pub tools: Digest,
}

impl ListDigests {
    /// Combines the digests of two parts of the same lists, in any order. An empty part has the
    /// digest zero.
    pub fn combined(self, other: Self) -> Self {
        Self { prompts: xor(self.prompts, other.prompts), tools: xor(self.tools, other.tools) }
    }
}

fn xor(one: Digest, other: Digest) -> Digest {
    std::array::from_fn(|at| one[at] ^ other[at])
}

/// Bytes of a cached view: the view, and its key.
#[derive(Clone)]
struct ViewSize;

impl Weighter<ViewKey, Cached> for ViewSize {
    fn weight(&self, key: &ViewKey, cached: &Cached) -> u64 {
        let entitlement = key.entitlement.as_ref().map_or(0, |entitlement| entitlement.len());
        let key = size_of::<ViewKey>() + key.endpoint.len() + entitlement;
        (key + cached.view.size() + cached.private) as u64
    }
}

/// Options of a cache with this many bytes. The cache has one shard, because an entry must fit into
/// its shard, and a single view may need most of the memory.
pub fn options(memory: u64) -> Options {
    let mut options = OptionsBuilder::new();
    options.shards(1).estimated_items_capacity(EXPECTED_VIEWS).weight_capacity(memory);
    // Building fails only without a capacity.
    options.build().expect("both capacities are set")
}

/// Most callers in `made`; beyond it, callers without a cached view are forgotten.
const MAX_MAKERS: usize = 4096;

/// Estimated number of views: callers with the same rights share a view. More only cost a resize.
const EXPECTED_VIEWS: usize = 256;

/// Most prompts whose rights are decided on a runtime thread: a fraction of a millisecond. Larger
/// views use a blocking thread.
pub(crate) const DECIDED_AT_ONCE: usize = 256;

/// Most views that are made concurrently outside the threads of calls.
const MAKERS: usize = 2;

impl ViewCache {
    pub fn new(config: &config::Config, rights: Arc<dyn Rights>) -> Self {
        let views = Cache::with_options(
            options(config.listing.views_size as u64),
            ViewSize,
            RandomState::default(),
            DefaultLifecycle::default(),
        );
        let views_size = config.listing.views_size;
        Self {
            rights,
            stdio: config.auth.stdio.caller(Proof::Stdio),
            endpoints: EndpointScopes::new(config),
            pair: [false, true].map(|has_skills| Arc::new(ListView::pair(has_skills))),
            views,
            making: Arc::new(Semaphore::new(MAKERS)),
            made: Mutex::default(),
            views_size: views_size as u64,
            share: config.server.limits.share.of(views_size) as u64,
        }
    }

    /// The tools `find_prompt` and `use_prompt`, with the tools for skills if skills exist.
    pub fn pair(&self, has_skills: bool) -> &Arc<ListView> {
        &self.pair[usize::from(has_skills)]
    }

    /// The view of a caller on the prompts at an endpoint. Cancel safe.
    pub async fn view(
        self: &Arc<Self>,
        content: &Arc<CatalogContent>,
        caller: &Caller,
        endpoint: &str,
    ) -> Arc<ListView> {
        self.view_of(ListKind::Prompts, content, caller, endpoint).await
    }

    /// The view of a caller on the prompts or the skills of a content. Cancel safe.
    pub(crate) async fn view_of(
        self: &Arc<Self>,
        kind: ListKind,
        content: &Arc<CatalogContent>,
        caller: &Caller,
        endpoint: &str,
    ) -> Arc<ListView> {
        let entitlement = self.rights.entitlement(caller);
        if entitlement.is_none() && self.endpoints.serves_all(endpoint) {
            return content.everyone.clone();
        }
        let key = ViewKey::new(kind, endpoint, entitlement, content);
        if let Some(view) = self.cached(&key, content) {
            return view;
        }
        let before = self.views.peek(&key);
        let before = before.as_ref().map(|before| &*before.view);
        if before.is_some() && ListView::unknown(content.segments(), before) <= DECIDED_AT_ONCE {
            return self.make(content, caller, key);
        }
        let making = self.clone();
        let owned = content.clone();
        let holder = caller.clone();
        let asked = key.clone();
        let make = move || making.make(&owned, &holder, key);
        // Boxed: each open stream holds this future, and seldom reaches this path.
        Box::pin(self.make_beside_calls(&asked, content, make)).await
    }

    /// The tools derived from a caller's prompts at an endpoint, with the tools for skills. Cancel
    /// safe.
    pub async fn tools(
        self: &Arc<Self>,
        content: &Arc<CatalogContent>,
        caller: &Caller,
        endpoint: &str,
        has_skills: bool,
    ) -> Arc<ListView> {
        let entitlement = self.rights.entitlement(caller);
        let key = ViewKey::new(ListKind::Tools, endpoint, entitlement, content);
        let key = ViewKey { has_skills, ..key };
        if let Some(view) = self.cached(&key, content) {
            return view;
        }
        let prompts = self.view(content, caller, endpoint).await;
        let making = self.clone();
        let owned = content.clone();
        let holder = caller.clone();
        let asked = key.clone();
        let make = move || {
            let view = Arc::new(prompts.tools(has_skills));
            making.store(&holder, key, &owned, &view);
            view
        };
        self.make_beside_calls(&asked, content, make).await
    }

    /// Makes a view outside the threads of calls, a few views at a time.
    async fn make_beside_calls(
        &self,
        key: &ViewKey,
        content: &CatalogContent,
        make: impl FnOnce() -> Arc<ListView> + Send + 'static,
    ) -> Arc<ListView> {
        let turn = turn(&self.making).await;
        // Another call may have made the view meanwhile.
        if let Some(view) = self.cached(key, content) {
            return view;
        }
        run_blocking(move || {
            let _turn = turn;
            make()
        })
        .await
    }

    fn cached(&self, key: &ViewKey, content: &CatalogContent) -> Option<Arc<ListView>> {
        let cached = self.views.get(key)?;
        (cached.is_whole && cached.generation == content.generation).then_some(cached.view)
    }

    /// Makes the view of a content from the previous view.
    fn make(&self, content: &CatalogContent, caller: &Caller, key: ViewKey) -> Arc<ListView> {
        let before = self.views.peek(&key);
        let before = before.as_ref().map(|before| &*before.view);
        let visible = |segment: &Segment| self.visible(caller, &key.endpoint, segment);
        let view = Arc::new(ListView::part(content.segments(), before, visible));
        self.store(caller, key, content, &view);
        view
    }

    /// Which prompts of a segment a caller sees at an endpoint.
    pub fn visible(&self, caller: &Caller, endpoint: &str, segment: &Segment) -> Allowed {
        let items = segment.items();
        let endpoints = &self.endpoints;
        let Some(upstream) = segment.upstream() else {
            let sees = |item: &ListedItem| self.allows(caller, Method::List, endpoint, item);
            return Allowed::of(items.iter().map(sees).collect());
        };
        if !endpoints.serves_upstream(endpoint, upstream) {
            return Allowed::None;
        }
        let mut prompts = items.iter().map(ListedItem::prompt);
        let allowed = self.rights.allowed(caller, Method::List, &mut prompts);
        let serves = endpoints.serving(endpoint);
        match allowed {
            Allowed::All if !endpoints.serves_all(endpoint) || segment.has_versions() => {
                Allowed::of(items.iter().map(serves).collect())
            }
            Allowed::Some(each) => {
                let both = items.iter().zip(each).map(|(item, allowed)| allowed && serves(item));
                Allowed::of(both.collect())
            }
            all_or_none => all_or_none,
        }
    }

    /// The configured caller over standard streams, if `caller` was this caller under another
    /// configuration: no credential identifies a caller over standard streams.
    pub fn renamed(&self, caller: &Caller) -> Option<&Caller> {
        let is_stdio = *caller.proof() == Proof::Stdio;
        let same = (caller.id(), caller.groups()) == (self.stdio.id(), self.stdio.groups());
        (is_stdio && !same).then_some(&self.stdio)
    }

    /// The digests of the lists of a caller at an endpoint. Cancel safe.
    pub async fn digests(
        self: &Arc<Self>,
        content: &Arc<CatalogContent>,
        caller: &Caller,
        endpoint: &str,
        (kinds, has_skills): (ListKinds, bool),
    ) -> ListDigests {
        let form = kinds.tools.then(|| self.endpoints.tool_form(content, endpoint)).flatten();
        let prompts = if kinds.prompts || form == Some(ToolForm::Each) {
            *self.view(content, caller, endpoint).await.digest()
        } else {
            Digest::default()
        };
        ListDigests {
            prompts: if kinds.prompts { prompts } else { Digest::default() },
            tools: match form {
                None => Digest::default(),
                Some(ToolForm::Pair) => *self.pair(has_skills).digest(),
                // Tools are derived from the prompts, and change with them.
                Some(ToolForm::Each) if has_skills => xor(prompts, *self.pair(true).digest()),
                Some(ToolForm::Each) => prompts,
            },
        }
    }

    /// Caches a view, unless a view of a later content is cached.
    fn store(&self, caller: &Caller, key: ViewKey, content: &CatalogContent, view: &Arc<ListView>) {
        let is_later = |cached: Cached| cached.generation > content.generation;
        if self.views.peek(&key).is_some_and(is_later) {
            return;
        }
        let cached = Cached {
            generation: content.generation,
            view: view.clone(),
            is_whole: true,
            private: content.private.as_ref().map_or(0, PrivatePart::size),
        };
        self.views.insert(key.clone(), cached);
        self.make_room(caller, key);
    }

    /// Drops a caller's oldest views if its views exceed its share and other callers use the cache,
    /// too. A caller whose rights differ from request to request must not evict the views of other
    /// callers.
    fn make_room(&self, caller: &Caller, newest: ViewKey) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.len() >= MAX_MAKERS && !made.contains_key(caller) {
            // A shared view that was made for several callers, one after another, is kept for a
            // single caller.
            let mut kept = HashSet::new();
            made.retain(|_, keys| {
                keys.retain(|key| self.views.peek(key).is_some() && kept.insert(key.clone()));
                !keys.is_empty()
            });
        }
        let keys = made.entry(caller.clone()).or_default();
        keys.retain(|key| *key != newest);
        keys.push(newest);
        let size = |key: &ViewKey| self.views.peek(key).map(|view| ViewSize.weight(key, &view));
        keys.retain(|key| size(key).is_some());
        let mut own: u64 = keys.iter().filter_map(size).sum();
        while own > self.share && self.views.weight() > self.views_size / 2 && keys.len() > 1 {
            let oldest = keys.remove(0);
            own -= size(&oldest).unwrap_or_default().min(own);
            self.views.remove(&oldest);
        }
        if keys.is_empty() {
            // The view is larger than the cache.
            made.remove(caller);
        }
        self.debug_assert_invariants(&made, caller);
    }

    /// Panics in debug builds if the cache exceeds its limit, or if `made` has a caller without
    /// views, or a view twice.
    fn debug_assert_invariants(&self, made: &HashMap<Caller, Vec<ViewKey>>, caller: &Caller) {
        if !cfg!(debug_assertions) {
            return;
        }
        let weight = self.views.weight();
        assert!(weight <= self.views_size, "{weight} bytes of {}", self.views_size);
        if let Some(keys) = made.get(caller) {
            assert!(!keys.is_empty(), "a caller without a view has no entry");
            let distinct: HashSet<&ViewKey> = keys.iter().collect();
            assert_eq!(distinct.len(), keys.len(), "a view is counted once");
        }
    }

    /// Releases objects that only earlier contents hold. Keeps remainders of their views, from
    /// which the next views are made.
    pub(crate) async fn release_before(self: &Arc<Self>, content: &Arc<CatalogContent>) {
        let views = self.clone();
        let content = content.clone();
        run_blocking(move || views.release(&content)).await;
    }

    fn release(&self, content: &CatalogContent) {
        let current: HashSet<_> = content.segments().iter().map(Arc::as_ptr).collect();
        let earlier =
            self.views.iter().filter(|(_, cached)| cached.generation < content.generation);
        let earlier: Vec<_> = earlier.collect();
        for (key, cached) in earlier {
            if key.list != ListKind::Prompts {
                self.views.remove(&key);
                continue;
            }
            let left = cached.view.remainder(|segment| current.contains(&Arc::as_ptr(segment)));
            let left = Cached { view: Arc::new(left), is_whole: false, private: 0, ..cached };
            // A view that was made meanwhile is kept.
            let is_same = |now: &Cached| now.generation == left.generation;
            if self.views.peek(&key).as_ref().is_some_and(is_same) {
                self.views.insert(key, left);
            }
        }
    }

    /// Whether a caller may call `method` for a prompt at an endpoint.
    pub fn allows(
        &self,
        caller: &Caller,
        method: Method,
        endpoint: &str,
        item: &ListedItem,
    ) -> bool {
        self.endpoints.serves(endpoint, item) && self.rights.allows(caller, method, item.prompt())
    }

    /// Whether lists differ by caller.
    pub fn differ(&self, caller: &Caller) -> bool {
        self.rights.entitlement(caller).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::announce::changes::{Changes, Published};
    use crate::approval::PromptApproval;
    use crate::listed_item::StandsFor;
    use crate::segment::SegmentWriter;
    use config::Config;
    use domain::calls::rights::PromptRef;
    use domain::name::UpstreamId;

    /// Every caller sees every other prompt, in a view of its own.
    struct ViewPerCaller;

    impl Rights for ViewPerCaller {
        fn entitlement(&self, caller: &Caller) -> Option<Arc<str>> {
            Some(format!("{} {:?}", caller.id(), caller.groups()).into())
        }

        fn allows(&self, _: &Caller, _: Method, prompt: PromptRef<'_>) -> bool {
            prompt.raw_name.ends_with(['0', '2', '4', '6', '8'])
        }
    }

    fn cache(toml: &str) -> Arc<ViewCache> {
        let config = Config::parse("g", toml, Path::new(""), &[]).unwrap();
        Arc::new(ViewCache::new(&config, Arc::new(ViewPerCaller)))
    }

    /// A segment of so many prompts of one upstream.
    fn segment(upstream: &str, prompts: usize, version: u64) -> Arc<Segment> {
        let id = UpstreamId::parse(upstream).unwrap();
        let mut segment = SegmentWriter::new(Some(id.clone()));
        for at in 0..prompts {
            let public_name: Arc<str> = format!("{upstream}__p{at:06}").into();
            let item = ListedItem {
                raw_name: format!("p{at:06}").into(),
                public_name: public_name.clone(),
                upstream: id.clone(),
                arguments: Box::default(),
                digest: "".into(),
                overlay: None,
                approval: PromptApproval::default(),
                version: None,
                stands_for: StandsFor::Itself,
            };
            let text = format!(r#"{{"name":"{public_name}","title":"{version}"}}"#);
            segment.push_prompt(item, |out| out.push_str(&text));
        }
        Arc::new(segment.finish())
    }

    /// 8 KiB of ranges in the view of each caller.
    const PROMPTS: usize = 2_048;

    fn content(generation: u64) -> Arc<CatalogContent> {
        let segments = vec![segment("up", PROMPTS, generation)];
        Arc::new(CatalogContent::new(generation, segments, Vec::new(), Vec::new()))
    }

    #[tokio::test]
    async fn views_of_many_callers_stay_within_views_size() {
        let views = cache("[listing]\nviews_size = \"1MiB\"\n");
        let content = content(1);
        for caller in 0..500 {
            let view = views.view(&content, &Caller::new(&caller.to_string()), "/mcp").await;
            assert_eq!(view.len(), PROMPTS / 2);
            assert!(views.views.weight() <= 1 << 20, "{} bytes", views.views.weight());
        }
        assert!(views.views.len() > 64, "{} views are kept", views.views.len());
    }

    #[tokio::test]
    async fn f3_a_caller_whose_rights_vary_keeps_the_views_of_others_in_the_cache() {
        let views = cache("[listing]\nviews_size = \"1MiB\"\n");
        let content = content(1);
        let made = |caller: &Caller| {
            let entitlement = views.rights.entitlement(caller);
            let key = ViewKey::new(ListKind::Prompts, "/mcp", entitlement, &content);
            views.views.peek(&key).is_some()
        };
        let others = ["a", "b", "c"].map(Caller::new);
        for caller in &others {
            views.view(&content, caller, "/mcp").await;
        }
        for n in 0..500 {
            let varying = Caller::in_groups("varying", &[n.to_string()]);
            views.view(&content, &varying, "/mcp").await;
            assert!(made(&varying), "the newest is kept");
        }
        assert!(others.iter().all(made));
    }

    #[tokio::test]
    async fn f3_callers_that_share_a_view_are_forgotten_but_for_one() {
        let views = cache("");
        let content = content(1);
        views.view(&content, &Caller::new("first"), "/mcp").await;
        let shared = ViewKey::new(
            ListKind::Prompts,
            "/mcp",
            views.rights.entitlement(&Caller::new("first")),
            &content,
        );
        for n in 0..2 * MAX_MAKERS {
            views.make_room(&Caller::new(&n.to_string()), shared.clone());
            assert!(views.made.lock().unwrap().len() <= MAX_MAKERS, "after {n}");
        }
    }

    #[tokio::test]
    async fn a_view_larger_than_views_size_is_served_and_not_kept() {
        let views = cache("[listing]\nviews_size = \"1MiB\"\n");
        let segments = vec![segment("up", 300_000, 0)];
        let content = Arc::new(CatalogContent::new(1, segments, Vec::new(), Vec::new()));
        let caller = Caller::new("ci");
        assert_eq!(views.view(&content, &caller, "/mcp").await.len(), 150_000);
        assert_eq!(views.views.weight(), 0);
        assert!(views.made.lock().unwrap().is_empty(), "nor is its caller");
    }

    /// Only the group `readers` may list.
    struct Readers;

    impl Rights for Readers {
        fn entitlement(&self, caller: &Caller) -> Option<Arc<str>> {
            Some(caller.groups().concat().into())
        }

        fn allows(&self, caller: &Caller, _: Method, _: PromptRef<'_>) -> bool {
            caller.groups() == ["readers"]
        }
    }

    #[tokio::test]
    async fn k1_a_reload_changes_whose_lists_are_announced_over_standard_streams() {
        let published = |groups: &str| {
            let toml = format!("[auth.stdio]\nid = \"ada\"\ngroups = [{groups}]\n");
            let config = Config::parse("g", &toml, Path::new(""), &[]).unwrap();
            let views = Arc::new(ViewCache::new(&config, Arc::new(Readers)));
            (
                config.auth.stdio.caller(Proof::Stdio),
                Published {
                    views,
                    content: content(1),
                    skills: Arc::default(),
                    caller_lists: None,
                },
            )
        };
        let prompts = ListKinds { prompts: true, tools: false };
        let (caller, before) = published("");
        let (changes, _) = tokio::sync::watch::channel(Some(before));
        let mut subscription =
            Changes::new(changes.subscribe(), caller, "/mcp".to_owned(), prompts);
        let nothing = subscription.visible().await.unwrap().digests;
        changes.send_replace(Some(published("\"readers\"").1));
        assert_ne!(subscription.visible().await.unwrap().digests, nothing);
        changes.send_replace(Some(published("").1));
        assert_eq!(subscription.visible().await.unwrap().digests, nothing);
    }

    #[tokio::test]
    async fn after_a_change_only_rights_on_what_has_changed_are_decided_again() {
        struct Counted(AtomicUsize);
        impl Rights for Counted {
            fn entitlement(&self, caller: &Caller) -> Option<Arc<str>> {
                ViewPerCaller.entitlement(caller)
            }

            fn allows(&self, caller: &Caller, method: Method, prompt: PromptRef<'_>) -> bool {
                self.0.fetch_add(1, Ordering::Relaxed);
                ViewPerCaller.allows(caller, method, prompt)
            }
        }
        let config = Config::parse("g", "", Path::new(""), &[]).unwrap();
        let rights = Arc::new(Counted(AtomicUsize::new(0)));
        let views = Arc::new(ViewCache::new(&config, rights.clone()));
        let caller = Caller::new("a");
        let kept = segment("a", 1_000, 0);
        let content = |generation| {
            let segments = vec![kept.clone(), segment("b", 10, generation)];
            Arc::new(CatalogContent::new(generation, segments, Vec::new(), Vec::new()))
        };
        let first = content(1);
        let second = content(2);
        let before = views.view(&first, &caller, "/mcp").await;
        assert_eq!(rights.0.swap(0, Ordering::Relaxed), 1_010);
        views.release_before(&second).await;
        // The release drops the objects that only the first content held: its own segment, and the
        // view.
        assert_eq!(Arc::strong_count(&first.segments()[1]), 3, "content, everyone, `before`");
        let after = views.view(&second, &caller, "/mcp").await;
        assert_eq!(rights.0.swap(0, Ordering::Relaxed), 10);
        assert_eq!((before.len(), after.len()), (505, 505));
        assert_ne!(before.digest(), after.digest());
        // A call that began before gets the view of its content, and the newest one stays.
        let again = views.view(&first, &caller, "/mcp").await;
        assert_eq!(again.digest(), before.digest());
        assert!(Arc::ptr_eq(&views.view(&second, &caller, "/mcp").await, &after));
    }
}
