//! Changes of the lists that one caller sees at one endpoint.

use std::sync::Arc;

use tokio::sync::watch;

use crate::caller_lists::CallerLists;
use crate::caller_lists::watching::Watching;
use crate::segment::Digest;
use crate::snapshot::{CatalogContent, SkillCatalog};
use crate::view_cache::{ListDigests, ListKinds, ViewCache};
use config::ToolForm;
use domain::calls::caller::Caller;
use domain::name::UpstreamId;

/// An announced content, with the views of its configuration.
#[derive(Clone)]
pub struct Published {
    pub content: Arc<CatalogContent>,
    pub skills: Arc<SkillCatalog>,
    pub views: Arc<ViewCache>,
    /// The private lists; `None` if every upstream lists the same for all callers.
    pub caller_lists: Option<Arc<CallerLists>>,
}

/// A subscription to changes of the lists that one caller sees at one endpoint.
pub struct Changes {
    published: watch::Receiver<Option<Published>>,
    caller: Caller,
    endpoint: String,
    kinds: ListKinds,
    /// The private lists of the caller, if the configuration has private lists.
    private: Option<Box<Watching>>,
    /// Whether the endpoint is known to be a view.
    is_view: bool,
    /// The upstream of `[passthrough]` at the endpoint in the first announced content.
    passthrough: Option<Option<UpstreamId>>,
}

/// The digests of the visible lists at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Visible {
    pub digests: ListDigests,
    /// The part of `digests` that is new although no list has changed, because the caller's private
    /// lists were not known before. [`ListDigests::combined`] with this part makes earlier digests
    /// comparable.
    pub learned: Option<ListDigests>,
}

impl Changes {
    pub fn new(
        published: watch::Receiver<Option<Published>>,
        caller: Caller,
        endpoint: String,
        kinds: ListKinds,
    ) -> Self {
        Self {
            published,
            caller,
            endpoint,
            kinds,
            private: None,
            is_view: false,
            passthrough: None,
        }
    }

    /// Whether the endpoint still exists: a reload may have removed the view. A view that is not
    /// yet announced counts as existing.
    pub fn has_endpoint(&mut self) -> bool {
        let published = self.published.borrow();
        let is_served =
            published.as_ref().map(|now| !now.views.endpoints.serves_all(&self.endpoint));
        self.is_view |= is_served == Some(true);
        !self.is_view || is_served != Some(false)
    }

    /// Whether a reload has changed or removed the upstream of `[passthrough]` at the endpoint.
    pub fn has_other_passthrough(&mut self) -> bool {
        let published = self.published.borrow();
        let Some(now) =
            published.as_ref().map(|now| now.views.endpoints.passthrough_at(&self.endpoint))
        else {
            return false;
        };
        self.passthrough.get_or_insert_with(|| now.cloned()).as_ref() != now
    }

    /// The visible lists; `None` until the first list is whole. Marks the newest change as seen. A
    /// dropped future loses no change: the next call returns the same digests.
    pub async fn visible(&mut self) -> Option<Visible> {
        let published = self.published.borrow_and_update().clone()?;
        Some(self.visible_then(&published).await)
    }

    /// The announced content.
    pub fn published(&self) -> Option<Published> {
        self.published.borrow().clone()
    }

    /// The lists that are visible in `published`. Cancel safe.
    pub async fn visible_then(&mut self, published: &Published) -> Visible {
        let Published { content, skills, views, caller_lists } = published;
        if let Some(caller) = views.renamed(&self.caller) {
            self.caller = caller.clone();
            self.private = None;
        }
        let private = caller_lists.as_ref();
        let has_skills = self.kinds.tools
            && (views.endpoints.has_skills(skills, &self.endpoint)
                || private.is_some_and(|lists| lists.has_skills(views, &self.endpoint)));
        let lists = (self.kinds, has_skills);
        let shared = views.digests(content, &self.caller, &self.endpoint, lists).await;
        self.watch_private(published);
        let Some(private) = &mut self.private else {
            return Visible { digests: shared, learned: None };
        };
        let has_tools = self.kinds.tools
            && views.endpoints.tool_form(content, &self.endpoint) == Some(ToolForm::Each);
        // No await may follow: a cancellation there would lose `is_learned`.
        let (own, is_learned) = private.digest(views, &self.endpoint).await;
        let part = |is_served: bool| if is_served { own } else { Digest::default() };
        let own = ListDigests { prompts: part(self.kinds.prompts), tools: part(has_tools) };
        Visible { digests: shared.combined(own), learned: is_learned.then_some(own) }
    }

    /// Keeps the private lists of the caller fresh, by the newest configuration.
    fn watch_private(&mut self, Published { views, caller_lists, .. }: &Published) {
        let lists = caller_lists.as_ref().filter(|lists| lists.has_any(views, &self.endpoint));
        match (&mut self.private, lists) {
            (Some(private), Some(lists)) => private.renew(lists),
            (private, Some(lists)) => *private = Some(Box::new(lists.watch(&self.caller))),
            (private, None) => *private = None,
        }
    }

    /// Resolves when the list may have changed; `None` at shutdown. Cancel safe.
    pub async fn changed(&mut self) -> Option<()> {
        match &mut self.private {
            None => self.published.changed().await.ok(),
            Some(private) => tokio::select! {
                changed = self.published.changed() => changed.ok(),
                () = private.changed() => Some(()),
            },
        }
    }
}
