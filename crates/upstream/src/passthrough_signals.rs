//! Announcements of the upstream of `[passthrough]` about its tools and resources.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use domain::json::Json;
use domain::protocol::method::{RESOURCES_LIST_CHANGED, TOOLS_LIST_CHANGED};
use domain::protocol::param_headers::ParamHeaders;

/// The tools of an upstream by their names, with the headers that repeat their arguments.
pub(crate) type KnownTools = HashMap<String, Option<Arc<ParamHeaders>>>;

/// The announcements of one upstream, kept across reloads so that streams continue. A flood costs
/// two counters: streams read the newest values at their own pace.
#[derive(Debug)]
pub struct PassthroughSignals {
    /// The last listed tools; empty if the gateway does not need them.
    pub tools: ArcSwap<KnownTools>,
    /// The logged names of tools that hide a prompt's tool.
    hiding: Mutex<HashSet<String>>,
    changes: watch::Sender<PassthroughChanges>,
}

/// The lists of the upstream of `[passthrough]` whose changes a stream announces.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PassthroughLists {
    pub tools: bool,
    pub resources: bool,
}

/// How often each list has changed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PassthroughChanges {
    pub tools: u64,
    pub resources: u64,
}

/// The tools on a page of `tools/list`, with their names.
pub fn tools_of(page: Json<'_>) -> impl Iterator<Item = (Cow<'_, str>, Json<'_>)> {
    let tools = page.get("tools").into_iter().flat_map(|tools| tools.elements());
    tools.filter_map(|tool| Some((tool.get("name")?.as_str()?, tool)))
}

/// The headers that repeat arguments of a tool; `None` without such headers.
pub(crate) fn headers_of(tool: Json<'_>) -> Option<Arc<ParamHeaders>> {
    tool.get("inputSchema").and_then(ParamHeaders::read).map(Arc::new)
}

impl Default for PassthroughSignals {
    fn default() -> Self {
        let (changes, _) = watch::channel(PassthroughChanges::default());
        Self { tools: ArcSwap::default(), hiding: Mutex::default(), changes }
    }
}

impl PassthroughSignals {
    /// Notes a notification. Returns whether the tools have changed.
    pub fn note(&self, method: &str) -> bool {
        match method {
            TOOLS_LIST_CHANGED => self.changes.send_modify(|changes| changes.tools += 1),
            RESOURCES_LIST_CHANGED => self.changes.send_modify(|changes| changes.resources += 1),
            _ => {}
        }
        method == TOOLS_LIST_CHANGED
    }

    /// Notes the tools on a page for a client, which may call these tools before the next listing.
    /// Notes no more than `most` tools.
    pub fn note_listed(&self, page: Json<'_>, most: usize) {
        let known = self.tools.load();
        let new = tools_of(page).filter(|(name, _)| !known.contains_key(&**name));
        let new = new.take(most.saturating_sub(known.len()));
        let new: Vec<_> = new.map(|(name, tool)| (name, headers_of(tool))).collect();
        if new.is_empty() {
            return;
        }
        self.tools.rcu(|known| {
            let mut known = KnownTools::clone(known);
            known.extend(new.iter().map(|(name, headers)| (name.to_string(), headers.clone())));
            known
        });
    }

    /// Notes a tool that hides a prompt's tool. Returns whether the hiding is new.
    pub fn note_hiding(&self, name: &str) -> bool {
        let mut hiding = self.hiding.lock().unwrap_or_else(PoisonError::into_inner);
        // A removed tool is logged again if it returns and hides again.
        hiding.retain(|name| self.tools.load().contains_key(name));
        hiding.insert(name.to_owned())
    }

    /// Notes a new connection, whose capabilities and lists may differ.
    pub(crate) fn reconnected(&self) {
        self.changes.send_modify(|changes| {
            changes.tools += 1;
            changes.resources += 1;
        });
    }

    /// A subscription to the changes of the lists.
    pub fn changes(&self) -> watch::Receiver<PassthroughChanges> {
        self.changes.subscribe()
    }
}
