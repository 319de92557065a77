//! The view cache: one view for each content, endpoint and entitlement, shared by the callers who have the
//! same rights.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, PoisonError};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Options, OptionsBuilder, Weighter};
use tokio::sync::watch;

use super::Digest;
use super::catalog::{Content, Owner};
use super::view::View;
use crate::config::{self, Exposure, ToolForm};
use crate::domain::caller::Caller;
use crate::domain::glob::Glob;
use crate::domain::method::Method;
use crate::domain::name::UpstreamId;
use crate::domain::rights::Rights;

/// Makes and caches views.
pub struct ViewCache {
    rights: Arc<dyn Rights>,
    /// The path of the main endpoint, and what it offers.
    main: (String, Exposure),
    /// The parts of the catalog that named endpoints serve, by path.
    parts: HashMap<String, Part>,
    /// `find_prompt` and `use_prompt`.
    pair: Arc<View>,
    /// Bounded by bytes, least recently used first.
    views: Cache<Key, Arc<View>, ViewSize, RandomState>,
    /// The views that each caller had made.
    made: Mutex<HashMap<Caller, Vec<Key>>>,
    /// The memory for views, and the part of it that the views of one caller may take, in bytes.
    views_size: u64,
    share: u64,
}

/// A part of the catalog.
struct Part {
    upstreams: Vec<UpstreamId>,
    /// Patterns over public names.
    prompts: Vec<Glob>,
    exposure: Exposure,
    /// The generation of a content, and how many of its prompts the part has.
    counted: Mutex<Option<(u64, usize)>>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Key {
    list: ListKind,
    generation: u64,
    endpoint: Box<str>,
    entitlement: Option<String>,
}

/// The list that a view is of.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ListKind {
    Prompts,
    /// The tools that stand for prompts.
    Tools,
}

/// A choice of lists.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListKinds {
    pub prompts: bool,
    pub tools: bool,
}

/// The digests of the lists that a caller sees at an endpoint. Zero for a list that is not served or that
/// the caller did not request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListDigests {
    pub prompts: Digest,
    pub tools: Digest,
}

/// Bytes of a cached view: the view, and its key.
#[derive(Clone)]
struct ViewSize;

impl Weighter<Key, Arc<View>> for ViewSize {
    fn weight(&self, key: &Key, view: &Arc<View>) -> u64 {
        let entitlement = key.entitlement.as_ref().map_or(0, String::len);
        let key = size_of::<Key>() + key.endpoint.len() + entitlement;
        (key + view.size()) as u64
    }
}

/// One shard, since an entry must fit into its shard: a single view may need most of the memory.
fn options(views_size: u64) -> Options {
    let mut options = OptionsBuilder::new();
    options.shards(1).estimated_items_capacity(EXPECTED_VIEWS).weight_capacity(views_size);
    // Both capacities are set, which is all that can be missing.
    options.build().expect("both capacities are set")
}

/// Callers whose views are known, from which on those without a cached view are forgotten.
const MAX_MAKERS: usize = 4096;

/// About how many views there are: callers with the same rights share one. More only cost a resize.
const EXPECTED_VIEWS: usize = 256;

impl ViewCache {
    pub fn new(config: &config::Config, rights: Arc<dyn Rights>) -> Self {
        let part = |view: &config::View| {
            let part = Part {
                upstreams: view.upstreams.clone(),
                prompts: view.prompts.clone(),
                exposure: view.exposure,
                counted: Mutex::default(),
            };
            (config.server.view_path(&view.name), part)
        };
        let parts = config.views.iter().map(part).collect();
        let views = Cache::with_options(
            options(config.listing.views_size as u64),
            ViewSize,
            RandomState::default(),
            DefaultLifecycle::default(),
        );
        let views_size = config.listing.views_size;
        Self {
            rights,
            main: (config.server.path.clone(), config.server.exposure),
            parts,
            pair: Arc::new(View::pair()),
            views,
            made: Mutex::default(),
            views_size: views_size as u64,
            share: config.server.limits.share.of(views_size) as u64,
        }
    }

    /// What an endpoint offers to its clients.
    pub fn exposure(&self, endpoint: &str) -> &Exposure {
        self.parts.get(endpoint).map_or(&self.main.1, |part| &part.exposure)
    }

    /// The form of an endpoint's tools; `None` if prompts are not offered as tools there. It depends on how
    /// many prompts the endpoint has, and not on its caller: rights must not show in the form.
    pub(crate) fn tool_form(&self, content: &Content, endpoint: &str) -> Option<ToolForm> {
        let exposure = self.exposure(endpoint);
        exposure.tools.then(|| match exposure.form {
            ToolForm::Each if self.count(content, endpoint) > exposure.tools_max => ToolForm::Pair,
            form => form,
        })
    }

    /// The endpoints that have more prompts than `tools_max` allows for one tool each.
    pub(crate) fn beyond_tools_max(&self, content: &Content) -> Vec<&str> {
        let endpoints = self.parts.keys().chain([&self.main.0]).map(String::as_str);
        let is_beyond = |endpoint: &&str| {
            self.exposure(endpoint).form == ToolForm::Each
                && self.tool_form(content, endpoint) == Some(ToolForm::Pair)
        };
        endpoints.filter(is_beyond).collect()
    }

    /// The number of prompts of an endpoint, before rights.
    fn count(&self, content: &Content, endpoint: &str) -> usize {
        let Some(part) = self.parts.get(endpoint) else {
            return content.owners().len();
        };
        let counted = || part.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = counted().filter(|(of, _)| *of == content.generation) {
            return count;
        }
        let is_served = |owner: &&Owner| self.serves(endpoint, &owner.upstream, &owner.public_name);
        let count = content.owners().iter().filter(is_served).count();
        *counted() = Some((content.generation, count));
        count
    }

    /// `find_prompt` and `use_prompt`.
    pub fn pair(&self) -> &Arc<View> {
        &self.pair
    }

    /// The tools that each stand for one prompt of a caller at an endpoint.
    pub fn tools(&self, content: &Content, caller: &Caller, endpoint: &str) -> Arc<View> {
        let key = Key {
            list: ListKind::Tools,
            generation: content.generation,
            endpoint: endpoint.into(),
            entitlement: self.rights.entitlement(caller),
        };
        self.cached(caller, &key, || self.view(content, caller, endpoint).tools())
    }

    /// The digests of the lists of a caller at an endpoint.
    pub(crate) fn digests(
        &self,
        content: &Content,
        caller: &Caller,
        endpoint: &str,
        kinds: ListKinds,
    ) -> ListDigests {
        let view = || *self.view(content, caller, endpoint).digest();
        let form = kinds.tools.then(|| self.tool_form(content, endpoint)).flatten();
        ListDigests {
            prompts: if kinds.prompts { view() } else { Digest::default() },
            tools: match form {
                None => Digest::default(),
                Some(ToolForm::Pair) => *self.pair.digest(),
                // The tools are made of the prompts, and change with them.
                Some(ToolForm::Each) => view(),
            },
        }
    }

    fn cached(&self, caller: &Caller, key: &Key, make: impl FnOnce() -> View) -> Arc<View> {
        let mut is_new = false;
        let make = || {
            is_new = true;
            Ok::<_, Infallible>(Arc::new(make()))
        };
        let view = match self.views.get_or_insert_with(key, make) {
            Ok(view) => view,
            Err(never) => match never {},
        };
        if is_new {
            self.make_room(caller, key);
        }
        view
    }

    /// Drops the oldest views that a caller had made, if they take more than its share and others use the cache,
    /// too: a caller whose rights differ from request to request must not push out the views of others.
    fn make_room(&self, caller: &Caller, newest: &Key) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.len() >= MAX_MAKERS && !made.contains_key(caller) {
            made.retain(|_, keys| keys.iter().any(|key| self.views.peek(key).is_some()));
        }
        let keys = made.entry(caller.clone()).or_default();
        keys.push(newest.clone());
        let size = |key: &Key| self.views.peek(key).map(|view| ViewSize.weight(key, &view));
        keys.retain(|key| size(key).is_some());
        let mut own: u64 = keys.iter().filter_map(size).sum();
        while own > self.share && self.views.weight() > self.views_size / 2 && keys.len() > 1 {
            let oldest = keys.remove(0);
            own -= size(&oldest).unwrap_or_default().min(own);
            self.views.remove(&oldest);
        }
    }

    /// The view of a caller at an endpoint.
    pub fn view(&self, content: &Content, caller: &Caller, endpoint: &str) -> Arc<View> {
        let entitlement = self.rights.entitlement(caller);
        if entitlement.is_none() && !self.parts.contains_key(endpoint) {
            return content.everyone.clone();
        }
        let key = Key {
            list: ListKind::Prompts,
            generation: content.generation,
            endpoint: endpoint.into(),
            entitlement,
        };
        self.cached(caller, &key, || {
            let sees = |owner: &Owner| self.allows(caller, Method::List, endpoint, owner);
            let visible: Vec<bool> = content.owners().iter().map(sees).collect();
            content.everyone.part(&visible)
        })
    }

    /// Drops the views of contents before this one: only calls that began before it still ask for them.
    pub(crate) fn drop_before(&self, content: &Content) {
        self.views.retain(|key, _| key.generation >= content.generation);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|_, keys| {
            keys.retain(|key| key.generation >= content.generation);
            !keys.is_empty()
        });
    }

    /// Whether a caller may use a prompt at an endpoint in this way.
    pub(crate) fn allows(
        &self,
        caller: &Caller,
        method: Method,
        endpoint: &str,
        owner: &Owner,
    ) -> bool {
        let upstream = owner.upstream.as_str();
        let raw_name = &owner.raw_name;
        self.serves(endpoint, &owner.upstream, &owner.public_name)
            && self.rights.allows(caller, method, upstream, raw_name)
    }

    /// Whether lists differ by caller.
    pub fn differ(&self, caller: &Caller) -> bool {
        self.rights.entitlement(caller).is_some()
    }

    /// Whether an endpoint serves all prompts.
    pub(crate) fn serves_all(&self, endpoint: &str) -> bool {
        !self.parts.contains_key(endpoint)
    }

    /// Whether an endpoint would serve any prompt of an upstream whose public names begin like this.
    pub(crate) fn could_serve(
        &self,
        endpoint: &str,
        upstream: &UpstreamId,
        beginning: &str,
    ) -> bool {
        self.parts.get(endpoint).is_none_or(|part| {
            part.upstreams.contains(upstream)
                && part.prompts.iter().any(|glob| glob.matches_some_with(beginning))
        })
    }

    /// Whether an endpoint serves a prompt, regardless of the caller.
    pub(crate) fn serves(&self, endpoint: &str, upstream: &UpstreamId, public_name: &str) -> bool {
        self.parts.get(endpoint).is_none_or(|part| {
            part.upstreams.contains(upstream)
                && part.prompts.iter().any(|glob| glob.matches(public_name))
        })
    }
}

/// An announced content, with the views of its configuration.
#[derive(Clone)]
pub struct Published {
    pub content: Arc<Content>,
    pub views: Arc<ViewCache>,
}

/// A subscription to changes of the lists that one caller sees at one endpoint.
pub struct Changes {
    published: watch::Receiver<Option<Published>>,
    caller: Caller,
    endpoint: String,
    kinds: ListKinds,
}

impl Changes {
    pub fn new(
        published: watch::Receiver<Option<Published>>,
        caller: Caller,
        endpoint: String,
        kinds: ListKinds,
    ) -> Self {
        Self { published, caller, endpoint, kinds }
    }

    /// The digests of the visible lists; `None` until the first list is whole. Marks the newest change as
    /// seen.
    pub fn digests(&mut self) -> Option<ListDigests> {
        let published = self.published.borrow_and_update().clone();
        published.map(|published| {
            let Published { content, views } = published;
            views.digests(&content, &self.caller, &self.endpoint, self.kinds)
        })
    }

    /// Resolves when the list may have changed; `None` at shutdown. Cancel safe.
    pub async fn changed(&mut self) -> Option<()> {
        self.published.changed().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use crate::domain::json::Json;
    use crate::domain::merge::Entry;
    use crate::domain::prompt::Prompt;

    /// Every caller sees every prompt, in a view of its own.
    struct ViewPerCaller;

    impl Rights for ViewPerCaller {
        fn entitlement(&self, caller: &Caller) -> Option<String> {
            Some(caller.id().to_owned())
        }

        fn allows(&self, _: &Caller, _: Method, _: &str, _: &str) -> bool {
            true
        }
    }

    fn cache(toml: &str) -> ViewCache {
        let config = Config::parse("g", toml, Path::new(""), &[]).unwrap();
        ViewCache::new(&config, Arc::new(ViewPerCaller))
    }

    /// A catalog of one prompt whose description has this many bytes.
    fn content(generation: u64, size: usize) -> Content {
        let text = format!(r#"{{"name":"p","description":"{}"}}"#, "x".repeat(size));
        let prompt = Prompt::read(Json::parse(text.as_bytes(), 8).unwrap()).unwrap();
        let entry = Entry { public_name: "up__p".to_owned(), source: 0, prompt: 0 };
        let everyone = View::new([(&entry, &prompt)]);
        let owner = Owner {
            public_name: "up__p".to_owned(),
            upstream: UpstreamId::parse("up").unwrap(),
            raw_name: "p".to_owned(),
            arguments: Vec::new(),
            digest: String::new(),
        };
        Content::new(generation, vec![owner], everyone, Vec::new(), Vec::new())
    }

    #[test]
    fn views_of_many_callers_stay_within_views_size() {
        let views = cache("[listing]\nviews_size = \"1MiB\"\n");
        let content = content(1, 64 << 10);
        for caller in 0..100 {
            let view = views.view(&content, &Caller::new(&caller.to_string()), "/mcp");
            assert_eq!(view.len(), 1);
            assert!(views.views.weight() <= 1 << 20, "{} bytes", views.views.weight());
        }
        assert!(views.views.len() > 8, "{} views are kept", views.views.len());
    }

    #[test]
    fn f3_a_caller_whose_rights_vary_keeps_the_views_of_others_in_the_cache() {
        struct ViewPerGroup;
        impl Rights for ViewPerGroup {
            fn entitlement(&self, caller: &Caller) -> Option<String> {
                Some(format!("{} {:?}", caller.id(), caller.groups()))
            }

            fn allows(&self, _: &Caller, _: Method, _: &str, _: &str) -> bool {
                true
            }
        }
        let config = "[listing]\nviews_size = \"1MiB\"\n";
        let config = Config::parse("g", config, Path::new(""), &[]).unwrap();
        let views = ViewCache::new(&config, Arc::new(ViewPerGroup));
        let content = content(1, 64 << 10);
        let made = |caller: &Caller| {
            let key = Key {
                list: ListKind::Prompts,
                generation: 1,
                endpoint: "/mcp".into(),
                entitlement: views.rights.entitlement(caller),
            };
            views.views.peek(&key).is_some()
        };
        let others: Vec<_> = ["a", "b", "c"].map(Caller::new).into_iter().collect();
        others.iter().for_each(|caller| drop(views.view(&content, caller, "/mcp")));
        for n in 0..100 {
            let varying = Caller::in_groups("varying", &[n.to_string()]);
            views.view(&content, &varying, "/mcp");
            assert!(made(&varying), "the newest is kept");
        }
        assert!(others.iter().all(made));
    }

    #[test]
    fn a_view_larger_than_views_size_is_served_and_not_kept() {
        let views = cache("[listing]\nviews_size = \"1MiB\"\n");
        let caller = Caller::new("ci");
        assert_eq!(views.view(&content(1, 2 << 20), &caller, "/mcp").len(), 1);
        assert_eq!(views.views.weight(), 0);
    }

    #[test]
    fn views_of_earlier_contents_are_dropped_when_a_content_is_published() {
        let views = cache("");
        let before = content(1, 10);
        let after = content(2, 10);
        for caller in ["a", "b"] {
            views.view(&before, &Caller::new(caller), "/mcp");
        }
        views.view(&after, &Caller::new("a"), "/mcp");
        views.drop_before(&after);
        assert_eq!(views.views.len(), 1);
    }
}
