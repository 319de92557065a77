//! One private list: the list of one upstream for one caller, and when to fetch it again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::presented::Presented;
use crate::blocking::run_blocking;
use crate::listed_item::ListedItem;
use crate::segment::{Digest, Segment};
use crate::skills::catalog::SkillGroup;
use crate::snapshot::{Catalog, CatalogContent, PrivatePart, SkillCatalog, next_number};
use crate::view::ListView;
use base::platform::Locked;
use domain::calls::caller::Principal;
use domain::calls::rights::Allowed;
use domain::fault::UpstreamFaultKind as Kind;
use domain::prompts::skill::Skill;
use domain::tool::name::is_derived;
use library::prompt_list::PromptList;

/// The list of one upstream in the form that is served to one caller.
#[derive(Clone)]
pub(super) struct List {
    /// The listed prompts; `None` for an empty list.
    pub(super) segment: Option<Arc<Segment>>,
    skills: Arc<SkillGroup>,
    /// The last skills that the upstream listed, and when.
    listed_skills: (Arc<[Arc<Skill>]>, Option<Instant>),
    digest: Digest,
    /// When the segment was fetched; `None` before the first successful fetch.
    pub(super) fetched_at: Option<Instant>,
    /// When the last fetch began.
    pub(super) began_at: Instant,
    /// The time after which a request fetches the list again.
    pub(super) renew_at: Instant,
    /// Why the last fetch failed.
    pub(super) failure: Option<Kind>,
    /// Why the skills could not be fetched, although the prompts were.
    pub(super) skills_failure: Option<Kind>,
}

/// Time for which calls get the failure of the last fetch instead of fetching again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How long a list without a `ttlMs` is kept.
const KEPT: Duration = Duration::from_secs(60);

impl List {
    /// A list that was fetched from `began_at` on. Parts that are equal to those of `before` are
    /// reused, so that views of these parts stay valid.
    pub(super) fn fetched(
        presented: Presented,
        before: Option<&Self>,
        began_at: Instant,
        fresh_for: Option<Duration>,
    ) -> Self {
        let Presented { prompts, skills, listed_skills, skills_failure } = presented;
        let segment = (!prompts.is_empty()).then(|| Arc::new(prompts));
        let same_skills = before.map(|before| &before.skills).filter(|own| own.is_same(&skills));
        let skills = same_skills.cloned().unwrap_or_else(|| Arc::new(skills));
        let digest = *ListView::whole(&segment).digest();
        let same = before.filter(|before| before.digest == digest && is_same(before, &segment));
        let now = Instant::now();
        let skills_listed_at = match &skills_failure {
            None => Some(now),
            Some(_) => before.and_then(Self::skills_listed_at),
        };
        Self {
            segment: same.map_or(segment, |before| before.segment.clone()),
            skills,
            listed_skills: (listed_skills, skills_listed_at),
            digest,
            fetched_at: Some(now),
            began_at,
            renew_at: now + fresh_for.unwrap_or(KEPT),
            failure: None,
            skills_failure,
        }
    }

    /// The list that is served after a failed fetch.
    pub(super) fn failed(kind: Kind, before: Option<&Self>, now: Instant) -> Self {
        let renew_at = now + RETRY_PAUSE;
        match before {
            Some(before) => Self { renew_at, began_at: now, failure: Some(kind), ..before.clone() },
            None => Self { renew_at, ..Self::ended(kind, now) },
        }
    }

    /// When the skills were last listed; `None` before the first time.
    pub(super) fn skills_listed_at(&self) -> Option<Instant> {
        self.listed_skills.1
    }

    /// Copies the last listed skills into a list that was fetched without skills.
    pub(super) fn lend_skills(&self, listed: &mut PromptList) {
        listed.skills = self.listed_skills.0.to_vec();
    }

    /// The same list, to be fetched again soon because it contradicts the upstream.
    pub(super) fn doubted(&self) -> Self {
        Self { renew_at: self.renew_at.min(self.began_at + RETRY_PAUSE), ..self.clone() }
    }

    /// The list after the access of the caller has ended: empty, and fetched again on the next
    /// request.
    pub(super) fn ended(kind: Kind, now: Instant) -> Self {
        let digest = *ListView::whole(&None).digest();
        Self {
            segment: None,
            skills: Arc::default(),
            listed_skills: (Arc::new([]), None),
            digest,
            fetched_at: None,
            began_at: now,
            renew_at: now,
            failure: Some(kind),
            skills_failure: None,
        }
    }
}

/// Whether two lists with equal texts have equal items: gets and completions depend on members
/// that the texts do not show.
fn is_same(before: &List, segment: &Option<Arc<Segment>>) -> bool {
    match (&before.segment, segment) {
        (Some(one), Some(other)) => one.items().iter().zip(other.items()).all(|(one, other)| {
            one.raw_name == other.raw_name
                && one.digest == other.digest
                && one.arguments == other.arguments
                && one.overlay == other.overlay
        }),
        (None, None) => true,
        _ => false,
    }
}

/// The private lists of one caller, indexed like the sources.
pub(super) struct ListsOf {
    /// `None` for a list that was never fetched.
    lists: Box<[Option<Arc<List>>]>,
    /// The last composition, with the generation of the shared content.
    composed: Mutex<Option<(u64, Composed)>>,
}

/// The shared prompts and skills together with the private lists of one caller.
#[derive(Clone)]
pub(super) struct Composed {
    /// The generation of the composed contents.
    generation: u64,
    pub(super) prompts: Arc<CatalogContent>,
    pub(super) skills: Arc<SkillCatalog>,
}

impl ListsOf {
    /// Lists of a caller for whom no list was fetched.
    pub(super) fn none(sources: usize) -> Self {
        Self::of(vec![None; sources].into())
    }

    fn of(lists: Box<[Option<Arc<List>>]>) -> Self {
        Self { lists, composed: Mutex::default() }
    }

    pub(super) fn get(&self, at: usize) -> Option<&Arc<List>> {
        self.lists[at].as_ref()
    }

    /// The known lists with their places.
    pub(super) fn known(&self) -> impl Iterator<Item = (usize, &Arc<List>)> {
        let lists = self.lists.iter().enumerate();
        lists.filter_map(|(at, list)| Some((at, list.as_ref()?)))
    }

    /// The lists with replacements at some places. Keeps the composed content if the replacements
    /// list the same elements.
    pub(super) fn with(&self, others: impl IntoIterator<Item = (usize, Arc<List>)>) -> Self {
        let mut lists = self.lists.clone();
        for (at, list) in others {
            lists[at] = Some(list);
        }
        let with = Self::of(lists);
        if are_same(with.segments(), self.segments()) && are_same(with.skills(), self.skills()) {
            with.composed.locked().clone_from(&self.composed.locked());
        }
        with
    }

    /// Whether `others` are the current lists at their places.
    pub(super) fn has(&self, others: &[(usize, Arc<List>)]) -> bool {
        others.iter().all(|(at, list)| self.get(*at).is_some_and(|own| Arc::ptr_eq(own, list)))
    }

    /// Whether a list must be fetched again: `renew_at` has passed at `now`, or the last fetch
    /// began before `changed_at`.
    pub(super) fn is_due(&self, at: usize, now: Instant, changed_at: Option<Instant>) -> bool {
        self.get(at).is_none_or(|list| {
            list.renew_at <= now || changed_at.is_some_and(|changed| list.began_at < changed)
        })
    }

    /// The number of prompts of all lists.
    pub(super) fn len(&self) -> usize {
        self.segments().map(|segment| segment.len()).sum()
    }

    /// The prompt with this public name.
    pub(super) fn item(&self, public_name: &str) -> Option<&ListedItem> {
        self.segments().find_map(|segment| segment.items().get(segment.position(public_name)?))
    }

    /// The prompt behind the name of a tool, like [`CatalogContent::item_of_tool`].
    pub(super) fn item_of_tool(&self, tool: &str) -> Option<&ListedItem> {
        if !is_derived(tool) {
            return self.item(tool);
        }
        self.segments().find_map(|segment| segment.items().get(segment.position_of_derived(tool)?))
    }

    fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.lists.iter().flatten().filter_map(|list| list.segment.as_ref())
    }

    /// The skills of all lists with skills.
    fn skills(&self) -> impl Iterator<Item = &Arc<SkillGroup>> {
        let groups = self.lists.iter().flatten().map(|list| &list.skills);
        groups.filter(|group| !group.is_empty())
    }

    /// The digest of the part of the lists that `visible` admits; zero if it is empty.
    pub(super) fn visible_digest(&self, visible: impl FnMut(&Segment) -> Allowed) -> Digest {
        let view = ListView::part(self.segments(), None, visible);
        if view.is_empty() { Digest::default() } else { *view.digest() }
    }

    /// Bytes of all lists.
    pub(super) fn size(&self) -> usize {
        let list = size_of::<List>() * self.lists.len();
        let segments = self.segments().map(|segment| segment.size_with_items());
        list + segments.chain(self.skills().map(|group| group.size())).sum::<usize>()
    }

    /// The prompts and skills for the caller: the shared content with the caller's lists. Large
    /// contents are composed outside the threads of calls.
    pub(super) async fn content(&self, shared: &Catalog, caller: &Principal) -> Composed {
        let segments: Vec<_> = self.segments().cloned().collect();
        let groups: Vec<_> = self.skills().cloned().collect();
        let prompts = shared.content.clone();
        let skills = shared.skills.clone();
        let of = prompts.generation;
        if segments.is_empty() && groups.is_empty() {
            return Composed { generation: of, prompts, skills };
        }
        if let Some((known, composed)) = &*self.composed.locked()
            && *known == of
        {
            return composed.clone();
        }
        let own_skills: usize = groups.iter().map(|group| group.len()).sum();
        let elements = prompts.prompt_count() + self.len() + own_skills;
        let caller = caller.clone();
        let compose = move || Composed::new((prompts, segments), (skills, groups), caller);
        let composed =
            if elements <= COMPOSED_AT_ONCE { compose() } else { run_blocking(compose).await };
        let mut last = self.composed.locked();
        // Another call has composed the same lists meanwhile. Views of an older content would never
        // be kept.
        if let Some((known, other)) = &*last
            && *known == of
            && other.generation > composed.generation
        {
            return other.clone();
        }
        *last = Some((of, composed.clone()));
        composed
    }

    /// Releases a composed content that is based on an earlier generation.
    pub(super) fn release_before(&self, generation: u64) {
        let mut composed = self.composed.locked();
        if composed.as_ref().is_some_and(|(of, _)| *of < generation) {
            *composed = None;
        }
    }
}

impl Composed {
    fn new(
        (prompts, segments): (Arc<CatalogContent>, Vec<Arc<Segment>>),
        (skills, groups): (Arc<SkillCatalog>, Vec<Arc<SkillGroup>>),
        audience: Principal,
    ) -> Self {
        let generation = next_number();
        let prompts = if segments.is_empty() {
            prompts
        } else {
            let private = PrivatePart { audience: audience.clone(), shared: prompts, segments };
            Arc::new(CatalogContent::with_private(generation, private))
        };
        let skills = if groups.is_empty() {
            skills
        } else {
            Arc::new(SkillCatalog::with_private(generation, skills, &groups, audience))
        };
        Self { generation, prompts, skills }
    }
}

/// Whether both iterators yield the same objects.
fn are_same<'a, T: 'a>(
    mut one: impl Iterator<Item = &'a Arc<T>>,
    mut other: impl Iterator<Item = &'a Arc<T>>,
) -> bool {
    loop {
        match (one.next(), other.next()) {
            (Some(one), Some(other)) if Arc::ptr_eq(one, other) => {}
            (one, other) => return one.is_none() && other.is_none(),
        }
    }
}

/// Most elements of a content that is composed on a runtime thread: a fraction of a millisecond.
const COMPOSED_AT_ONCE: usize = 5_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::SegmentWriter;
    use domain::calls::caller::Caller;
    use domain::name::UpstreamId;

    fn listing(title: &str) -> Presented {
        let mut writer = SegmentWriter::new(UpstreamId::parse("wiki"));
        writer.push("wiki__a".into(), |out| out.push_str(title));
        let prompts = writer.finish();
        let skills = SkillGroup::default();
        Presented { prompts, skills, listed_skills: Arc::new([]), skills_failure: None }
    }

    #[tokio::test]
    async fn a_list_is_due_after_its_term_and_a_failed_one_after_a_pause() {
        let now = Instant::now();
        let term = Duration::from_secs(9);
        let fetched = List { renew_at: now + term, ..List::fetched(listing("1"), None, now, None) };
        let is_due = |list: List, after: Duration| {
            let lists = ListsOf::none(2).with([(1, Arc::new(list))]);
            assert!(lists.is_due(0, now, None), "it was never asked for");
            lists.is_due(1, now + after, None)
        };
        let moment = Duration::from_nanos(1);
        assert!(!is_due(fetched.clone(), term - moment));
        assert!(is_due(fetched.clone(), term));
        let lists = ListsOf::none(1).with([(0, Arc::new(fetched.clone()))]);
        assert!(!lists.is_due(0, now, Some(now)));
        assert!(lists.is_due(0, now, Some(now + moment)), "it changed after its fetch began");
        let gone = || Kind::Unavailable("gone".to_owned());
        let failed = List::failed(gone(), Some(&fetched), now);
        assert!(!is_due(failed.clone(), RETRY_PAUSE - moment));
        assert!(is_due(failed, RETRY_PAUSE));
        assert!(is_due(List::ended(gone(), now), Duration::ZERO));
    }

    #[tokio::test]
    async fn what_lists_the_same_keeps_its_segment_and_what_was_composed() {
        let now = Instant::now();
        let first = List::fetched(listing("1"), None, now, None);
        let same = List::fetched(listing("1"), Some(&first), now, None);
        let other = List::fetched(listing("2"), Some(&first), now, None);
        let segment = |list: &List| list.segment.clone().unwrap();
        assert!(Arc::ptr_eq(&segment(&first), &segment(&same)));
        assert!(!Arc::ptr_eq(&segment(&first), &segment(&other)));
        let lists = ListsOf::none(1).with([(0, Arc::new(first))]);
        let shared = Catalog::default();
        let caller = Principal::new(&Caller::new("ada"));
        let content = lists.content(&shared, &caller).await.prompts;
        assert_eq!(content.prompt_count(), 1);
        let again = lists.with([(0, Arc::new(same))]).content(&shared, &caller).await.prompts;
        assert!(Arc::ptr_eq(&content, &again));
        let changed = lists.with([(0, Arc::new(other))]).content(&shared, &caller).await.prompts;
        assert!(!Arc::ptr_eq(&content, &changed));
        assert!(changed.generation > content.generation);
    }

    #[tokio::test]
    async fn after_a_failure_the_last_list_is_served_on() {
        let now = Instant::now();
        let fetched = List::fetched(listing("1"), None, now, None);
        let gone = || Kind::Unavailable("gone".to_owned());
        let failed = List::failed(gone(), Some(&fetched), now);
        assert!(failed.segment.is_some() && failed.fetched_at.is_some());
        assert_eq!(failed.failure, Some(gone()));
        assert!(List::failed(gone(), None, now).segment.is_none());
        assert!(List::ended(gone(), now).segment.is_none());
    }
}
