//! What each caller sees at each endpoint: views of the newest snapshots, put together once for all
//! callers who see the same.

use std::collections::HashMap;
use std::sync::Arc;

use quick_cache::sync::Cache;
use tokio::sync::watch;

use super::Digest;
use super::catalog::{Content, Owner};
use super::view::View;
use crate::config;
use crate::domain::caller::Caller;
use crate::domain::glob::Glob;
use crate::domain::method::Method;
use crate::domain::rights::Rights;

/// Puts views together, and decides single prompts in the same way.
pub struct Views {
    rights: Arc<dyn Rights>,
    /// Ids of the upstreams, by their index.
    upstreams: Vec<String>,
    /// The parts of the catalog that named endpoints serve, by their paths.
    parts: HashMap<String, Part>,
    seen: Cache<Key, Arc<View>>,
}

/// A part of the catalog.
struct Part {
    /// Whether an upstream belongs to it, by its index.
    upstreams: Vec<bool>,
    /// Over public names.
    prompts: Vec<Glob>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Key {
    generation: u64,
    endpoint: Box<str>,
    entitlement: Option<String>,
}

/// Views that are kept: each may be as large as the catalog.
const VIEWS: usize = 1024;

impl Views {
    pub fn new(config: &config::Config, rights: Arc<dyn Rights>) -> Self {
        let upstreams: Vec<_> = config.upstreams.iter().map(|u| u.id.to_string()).collect();
        let part = |view: &config::View| {
            let belongs = |id: &String| view.upstreams.iter().any(|known| known.as_str() == id);
            let part = Part {
                upstreams: upstreams.iter().map(belongs).collect(),
                prompts: view.prompts.clone(),
            };
            (config.server.view_path(&view.name), part)
        };
        let parts = config.views.iter().map(part).collect();
        Self { rights, upstreams, parts, seen: Cache::new(VIEWS) }
    }

    /// What a caller sees of a snapshot at an endpoint.
    pub fn view(&self, content: &Content, caller: &Caller, endpoint: &str) -> Arc<View> {
        let entitlement = self.rights.entitlement(caller);
        if entitlement.is_none() && !self.parts.contains_key(endpoint) {
            return content.everyone.clone();
        }
        let generation = content.generation;
        let key = Key { generation, endpoint: endpoint.into(), entitlement };
        let make = || {
            let sees = |owner: &Owner| self.allows(caller, Method::List, endpoint, owner);
            let visible: Vec<bool> = content.owners().iter().map(sees).collect();
            Ok::<_, std::convert::Infallible>(Arc::new(content.everyone.part(&visible)))
        };
        match self.seen.get_or_insert_with(&key, make) {
            Ok(view) => view,
            Err(never) => match never {},
        }
    }

    /// Whether a caller may use a prompt at an endpoint in this way.
    pub fn allows(&self, caller: &Caller, method: Method, endpoint: &str, owner: &Owner) -> bool {
        self.serves(endpoint, owner.upstream, &owner.public_name)
            && self.permits(caller, method, owner.upstream, &owner.raw_name)
    }

    /// The same for a prompt of which only its name is known.
    pub fn would_allow(
        &self,
        caller: &Caller,
        method: Method,
        endpoint: &str,
        (upstream, public_name, raw_name): (usize, &str, &str),
    ) -> bool {
        self.serves(endpoint, upstream, public_name)
            && self.permits(caller, method, upstream, raw_name)
    }

    /// Whether what is seen differs by caller.
    pub fn differ(&self, caller: &Caller) -> bool {
        self.rights.entitlement(caller).is_some()
    }

    /// Whether anything of an upstream may be served at an endpoint.
    pub fn serves_some(&self, endpoint: &str, upstream: usize) -> bool {
        self.parts.get(endpoint).is_none_or(|part| part.upstreams[upstream])
    }

    fn permits(&self, caller: &Caller, method: Method, upstream: usize, raw_name: &str) -> bool {
        self.rights.allows(caller, method, &self.upstreams[upstream], raw_name)
    }

    fn serves(&self, endpoint: &str, upstream: usize, public_name: &str) -> bool {
        self.parts.get(endpoint).is_none_or(|part| {
            part.upstreams[upstream] && part.prompts.iter().any(|glob| glob.matches(public_name))
        })
    }
}

/// Tells when the list that one caller sees has become another one, and has settled.
pub struct Changes {
    contents: watch::Receiver<Option<Arc<Content>>>,
    digest_of: Box<dyn Fn(&Content) -> Digest + Send + Sync>,
}

impl Changes {
    pub fn new(
        contents: watch::Receiver<Option<Arc<Content>>>,
        digest_of: impl Fn(&Content) -> Digest + Send + Sync + 'static,
    ) -> Self {
        Self { contents, digest_of: Box::new(digest_of) }
    }

    /// The digest of what is seen by now; nothing as long as upstreams have not been heard of.
    pub fn digest(&mut self) -> Option<Digest> {
        let content = self.contents.borrow_and_update().clone();
        content.map(|content| (self.digest_of)(&content))
    }

    /// Waits until something may have changed; nothing at the end of the gateway.
    pub async fn changed(&mut self) -> Option<()> {
        self.contents.changed().await.ok()
    }
}
