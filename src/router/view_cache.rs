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
use crate::domain::name::UpstreamId;
use crate::domain::rights::Rights;

/// Puts views together, and decides single prompts in the same way.
pub struct ViewCache {
    rights: Arc<dyn Rights>,
    /// The parts of the catalog that named endpoints serve, by their paths.
    parts: HashMap<String, Part>,
    published: Cache<Key, Arc<View>>,
}

/// A part of the catalog.
struct Part {
    upstreams: Vec<UpstreamId>,
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

impl ViewCache {
    pub fn new(config: &config::Config, rights: Arc<dyn Rights>) -> Self {
        let part = |view: &config::View| {
            let part = Part { upstreams: view.upstreams.clone(), prompts: view.prompts.clone() };
            (config.server.view_path(&view.name), part)
        };
        let parts = config.views.iter().map(part).collect();
        Self { rights, parts, published: Cache::new(VIEWS) }
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
        match self.published.get_or_insert_with(&key, make) {
            Ok(view) => view,
            Err(never) => match never {},
        }
    }

    /// Whether a caller may use a prompt at an endpoint in this way.
    pub(crate) fn allows(
        &self,
        caller: &Caller,
        method: Method,
        endpoint: &str,
        owner: &Owner,
    ) -> bool {
        let (upstream, raw_name) = (owner.upstream.as_str(), &owner.raw_name);
        self.serves(endpoint, &owner.upstream, &owner.public_name)
            && self.rights.allows(caller, method, upstream, raw_name)
    }

    /// Whether what is seen differs by caller.
    pub fn differ(&self, caller: &Caller) -> bool {
        self.rights.entitlement(caller).is_some()
    }

    /// Whether anything of an upstream may be served at an endpoint.
    pub fn serves_some(&self, endpoint: &str, upstream: &UpstreamId) -> bool {
        self.parts.get(endpoint).is_none_or(|part| part.upstreams.contains(upstream))
    }

    /// Whether an endpoint serves a prompt, whoever calls.
    pub(crate) fn serves(&self, endpoint: &str, upstream: &UpstreamId, public_name: &str) -> bool {
        self.parts.get(endpoint).is_none_or(|part| {
            part.upstreams.contains(upstream)
                && part.prompts.iter().any(|glob| glob.matches(public_name))
        })
    }
}

/// A snapshot, and who may see what of it.
#[derive(Clone)]
pub struct Published {
    pub content: Arc<Content>,
    pub views: Arc<ViewCache>,
}

/// Tells when the list that one caller sees at one endpoint has become another one, and has settled.
pub struct Changes {
    published: watch::Receiver<Option<Published>>,
    caller: Caller,
    endpoint: String,
}

impl Changes {
    pub fn new(
        published: watch::Receiver<Option<Published>>,
        caller: Caller,
        endpoint: String,
    ) -> Self {
        Self { published, caller, endpoint }
    }

    /// The digest of what is seen by now; nothing as long as upstreams have not been heard of.
    pub fn digest(&mut self) -> Option<Digest> {
        let published = self.published.borrow_and_update().clone();
        published.map(|published| {
            *published.views.view(&published.content, &self.caller, &self.endpoint).digest()
        })
    }

    /// Waits until something may have changed; nothing at the end of the gateway.
    pub async fn changed(&mut self) -> Option<()> {
        self.published.changed().await.ok()
    }
}
