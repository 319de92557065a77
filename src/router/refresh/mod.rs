//! The only writer of the catalog: takes what the drivers report and publishes a new snapshot.

mod merging;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::announce::{Announcer, Redefined};
use super::catalog::{Catalog, Content, Incomplete, WalkInfo};
use super::debounce::Debounce;
use super::definition_pins::DefinitionPins;
use super::view_cache::ViewCache;
use crate::config::{self, OnChangedDefinition, OnFailure};
use crate::domain::fault::{Fault, UpstreamFaultKind as Kind};
use crate::domain::name::{Naming, Prefix, UpstreamId};
use crate::upstream::driver::{DriverId, Report, Walked};

/// Puts together what is known of all upstreams. Pure: the clock is handed in.
pub(crate) struct Refresh {
    upstreams: Vec<Known>,
    naming: Naming,
    on_failure: OnFailure,
    content: Arc<Content>,
    /// What has changed since it was last asked for.
    redefined: Vec<Redefined>,
}

/// Who tells of an upstream, and how its prompts are named.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub driver: DriverId,
    pub id: UpstreamId,
    pub prefix: Prefix,
    pub on_changed_definition: OnChangedDefinition,
}

impl Source {
    pub(crate) fn new(driver: DriverId, upstream: &config::Upstream) -> Self {
        Self {
            driver,
            id: upstream.id.clone(),
            prefix: upstream.prefix.clone(),
            on_changed_definition: upstream.settings.on_changed_definition,
        }
    }
}

/// What the catalog is made by from now on.
pub(crate) struct Renewal {
    pub sources: Vec<Source>,
    pub naming: Naming,
    pub on_failure: OnFailure,
    pub debounce: Debounce,
    pub views: Arc<ViewCache>,
    /// Where snapshots go: the one before stays as it is for those who still look at it.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// Until when lists wait if nobody has anything to serve yet.
    pub deadline: Instant,
    /// Told, or dropped, once the new configuration serves: until then nobody is told of a change, lest it is looked
    /// for where it is not.
    pub serves: oneshot::Receiver<()>,
    /// Told once the first of them is there.
    pub done: oneshot::Sender<()>,
}

/// An upstream, its last good list, and its last word.
struct Known {
    source: Source,
    list: Option<(Walked, Instant)>,
    state: State,
    pins: DefinitionPins,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing was heard yet, and lists wait for it.
    Unseen,
    /// Nothing was heard since it was configured, while others were served: lists wait for it only where
    /// nobody else has anything to serve.
    Joining,
    Good,
    Failed(Kind),
}

impl Refresh {
    pub(crate) fn new(sources: Vec<Source>, naming: Naming, on_failure: OnFailure) -> Self {
        let known = |source| Known::new(source, State::Unseen);
        let upstreams = sources.into_iter().map(known).collect();
        Self { upstreams, naming, on_failure, content: Arc::default(), redefined: Vec::new() }
    }

    /// Runs until shutdown: publishes a snapshot after each report and renewal, and one more at
    /// `deadline`, from when on lists no longer wait for upstreams that were never seen.
    pub(crate) async fn run(
        mut self,
        mut reports: mpsc::Receiver<Report>,
        mut renewals: mpsc::Receiver<Renewal>,
        mut catalog: Arc<ArcSwap<Catalog>>,
        mut announce: Announcer,
        mut deadline: Instant,
        shutdown: CancellationToken,
    ) {
        let (mut waiting, mut held) = (true, None::<oneshot::Receiver<()>>);
        announce.observe(&self.snapshot(), Instant::now());
        loop {
            let mut done = None;
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = announce.due(), if held.is_none() => {
                    announce.tell(&self.content);
                    continue;
                }
                () = told(&mut held), if held.is_some() => {
                    held = None;
                    continue;
                }
                () = sleep_until(deadline), if waiting => {
                    waiting = false;
                    self.give_up_waiting();
                }
                Some(report) = reports.recv() => self.take(report, Instant::now()),
                Some(renewal) = renewals.recv() => {
                    // Whoever waits for the one before does not wait for what will never be in it.
                    let mut last = self.snapshot();
                    if std::mem::take(&mut last.pending) && last.content.everyone.is_empty() {
                        last.list_fault.get_or_insert_with(Fault::none_available);
                    }
                    catalog.store(Arc::new(last));
                    (done, held) = (Some(renewal.done), Some(renewal.serves));
                    (announce.debounce, announce.views) = (renewal.debounce, renewal.views);
                    (catalog, deadline, waiting) = (renewal.catalog, renewal.deadline, true);
                    (self.naming, self.on_failure) = (renewal.naming, renewal.on_failure);
                    self.renew(renewal.sources);
                }
            }
            announce.record(&std::mem::take(&mut self.redefined));
            let snapshot = self.snapshot();
            announce.observe(&snapshot, Instant::now());
            catalog.store(Arc::new(snapshot));
            announce.published.send_replace(());
            if let Some(done) = done {
                // Whoever renews waits for this, unless the gateway ends.
                let _ = done.send(());
            }
        }
    }

    /// Goes on with these upstreams: what is known of those whose driver stays is kept, and the list of
    /// one that is driven anew is served until it is heard of. Definitions that were held are let go.
    fn renew(&mut self, sources: Vec<Source>) {
        let mut before = std::mem::take(&mut self.upstreams);
        let known = |source: Source| {
            let at = before.iter().position(|known| known.source.id == source.id);
            let old = at.map(|at| before.swap_remove(at));
            let mut known = Known::new(source, State::Joining);
            if let Some(old) = old {
                if old.source.driver == known.source.driver {
                    known.state = old.state;
                }
                known.list = old.list;
            }
            known
        };
        self.upstreams = sources.into_iter().map(known).collect();
        self.content = Arc::new(self.merge());
    }

    /// Takes in one report.
    pub(crate) fn take(&mut self, report: Report, now: Instant) {
        let mut upstreams = self.upstreams.iter_mut();
        let Some(known) = upstreams.find(|known| known.source.driver == report.driver) else {
            // The last word of one that nobody needs any more.
            return;
        };
        let changed = match report.outcome {
            Ok(mut walked) => {
                let changed = known.pins.apply(&mut walked.listed.prompts);
                let redefined = changed.into_iter().map(|changed| Redefined {
                    upstream: known.source.id.to_string(),
                    raw_name: changed.raw_name,
                    before: changed.before,
                    now: changed.now,
                });
                self.redefined.extend(redefined);
                let same = known.list.as_ref().is_some_and(|(old, _)| old.listed == walked.listed);
                let was_served =
                    matches!(known.state, State::Good) || self.on_failure != OnFailure::Omit;
                known.list = Some((walked, now));
                known.state = State::Good;
                !(same && was_served)
            }
            Err(kind) => {
                known.state = State::Failed(kind);
                self.on_failure == OnFailure::Omit && known.list.is_some()
            }
        };
        if changed {
            let content = self.merge();
            self.redefined.extend(self.redefined_in(&content));
            self.content = Arc::new(content);
        }
    }

    /// Whoever was not heard of by now counts as failed until it is.
    fn give_up_waiting(&mut self) {
        let mut had_lists = false;
        for known in &mut self.upstreams {
            if matches!(known.state, State::Unseen | State::Joining) {
                known.state = State::Failed(not_heard_of());
                had_lists |= known.list.is_some();
            }
        }
        if had_lists && self.on_failure == OnFailure::Omit {
            self.content = Arc::new(self.merge());
        }
    }

    /// What is known by now.
    pub(crate) fn snapshot(&self) -> Catalog {
        let mut catalog = Catalog { content: self.content.clone(), ..Catalog::default() };
        for known in &self.upstreams {
            catalog.pending |= matches!(known.state, State::Unseen);
            if let Some((Walked { listed, .. }, at)) = &known.list {
                let prompts = listed.prompts.len() + listed.malformed.len();
                let walk = WalkInfo { pages: listed.pages, prompts, at: *at };
                catalog.walks.insert(known.source.id.clone(), walk);
            }
            let served = self.served(known);
            if let Some((walked, walked_at)) = served {
                catalog.scope = catalog.scope.max(walked.listed.scope);
                let until = walked.fresh_for.map(|fresh| *walked_at + fresh);
                catalog.fresh_until = catalog.fresh_until.into_iter().chain(until).min();
            }
            let failure = match &known.state {
                State::Good => None,
                State::Unseen | State::Joining => Some(not_heard_of()),
                State::Failed(kind) => Some(kind.clone()),
            };
            if let Some(kind) = failure {
                let is_new = matches!(known.state, State::Joining);
                if self.on_failure == OnFailure::Fail && !is_new {
                    let fault = || Fault::upstream(known.source.id.as_str(), kind.clone());
                    catalog.list_fault.get_or_insert_with(fault);
                }
                catalog.incomplete.push(Incomplete {
                    upstream: known.source.id.clone(),
                    kind,
                    walked_at: served.map(|(_, at)| *at),
                });
            }
        }
        let nobody = self.upstreams.iter().all(|known| self.served(known).is_none());
        let is_joining = |known: &Known| matches!(known.state, State::Joining);
        if nobody && self.upstreams.iter().any(is_joining) {
            catalog.pending = true;
        } else if nobody && !self.upstreams.is_empty() {
            catalog.list_fault.get_or_insert_with(Fault::none_available);
        }
        catalog
    }

    /// The list of an upstream that is part of the catalog at present.
    fn served<'a>(&self, known: &'a Known) -> Option<&'a (Walked, Instant)> {
        match (&known.state, self.on_failure) {
            (State::Failed(_), OnFailure::Omit) => None,
            _ => known.list.as_ref(),
        }
    }
}

/// Waits for a word, or for its sender to be gone.
async fn told(word: &mut Option<oneshot::Receiver<()>>) {
    if let Some(word) = word {
        let _ = word.await;
    }
}

impl Known {
    fn new(source: Source, state: State) -> Self {
        let pins = DefinitionPins::new(source.on_changed_definition);
        Self { source, list: None, state, pins }
    }
}

fn not_heard_of() -> Kind {
    Kind::Unavailable("it has not answered yet".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::json::Json;
    use crate::domain::prompt::Prompt;
    use crate::upstream::connection::list_pages::Listed;

    fn refresh(ids: &[&str], on_failure: OnFailure) -> Refresh {
        let sources = ids.iter().map(|id| source(id)).collect();
        Refresh::new(sources, Naming::new("__", 128), on_failure)
    }

    fn source(id: &str) -> Source {
        Source {
            driver: DriverId::fresh(),
            id: UpstreamId::parse(id).unwrap(),
            prefix: Prefix::parse(id).unwrap(),
            on_changed_definition: OnChangedDefinition::Allow,
        }
    }

    fn good(refresh: &Refresh, upstream: usize, names: &[&str]) -> Report {
        let prompt = |name: &&str| {
            let text = serde_json::json!({"name": name}).to_string();
            Prompt::read(Json::parse(text.as_bytes(), 8).unwrap()).unwrap()
        };
        let prompts = names.iter().map(prompt).collect();
        let listed = Listed { prompts, ..Listed::default() };
        let driver = refresh.upstreams[upstream].source.driver;
        Report { driver, outcome: Ok(Walked { listed, fresh_for: Some(Duration::from_secs(9)) }) }
    }

    fn bad(refresh: &Refresh, upstream: usize) -> Report {
        let driver = refresh.upstreams[upstream].source.driver;
        Report { driver, outcome: Err(Kind::Timeout) }
    }

    fn count(catalog: &Catalog) -> usize {
        catalog.content.everyone.len()
    }

    #[tokio::test]
    async fn a_failing_upstream_keeps_its_last_good_list_and_is_named() {
        let (mut refresh, now) = (refresh(&["a", "b"], OnFailure::Stale), Instant::now());
        assert!(refresh.snapshot().pending);
        refresh.take(good(&refresh, 0, &["x"]), now);
        refresh.take(bad(&refresh, 1), now);
        let catalog = refresh.snapshot();
        assert!(!catalog.pending && catalog.list_fault.is_none());
        assert_eq!(catalog.incomplete[0].upstream.as_str(), "b");
        assert_eq!(catalog.incomplete[0].walked_at, None);

        refresh.take(good(&refresh, 1, &["y"]), now);
        let before = refresh.snapshot();
        assert_eq!((count(&before), before.incomplete.len()), (2, 0));
        refresh.take(bad(&refresh, 1), now + Duration::from_secs(5));
        let stale = refresh.snapshot();
        assert!(Arc::ptr_eq(&stale.content, &before.content), "nothing is merged anew");
        assert_eq!(stale.incomplete[0].walked_at, Some(now));
    }

    #[tokio::test]
    async fn omit_and_fail_do_what_they_say() {
        let now = Instant::now();
        let mut omit = refresh(&["a", "b"], OnFailure::Omit);
        omit.take(good(&omit, 0, &["x"]), now);
        omit.take(good(&omit, 1, &["y"]), now);
        omit.take(bad(&omit, 1), now);
        assert_eq!(count(&omit.snapshot()), 1);
        omit.take(good(&omit, 1, &["y"]), now);
        assert_eq!(count(&omit.snapshot()), 2);

        let mut fail = refresh(&["a", "b"], OnFailure::Fail);
        fail.take(good(&fail, 0, &["x"]), now);
        fail.take(bad(&fail, 1), now);
        assert_eq!(fail.snapshot().list_fault, Some(Fault::upstream("b", Kind::Timeout)));
        fail.take(good(&fail, 1, &[]), now);
        assert_eq!(fail.snapshot().list_fault, None);
    }

    #[tokio::test]
    async fn u2_all_down_is_an_error_and_not_an_empty_list() {
        let (mut refresh, now) = (refresh(&["a", "b"], OnFailure::Stale), Instant::now());
        refresh.take(bad(&refresh, 0), now);
        refresh.give_up_waiting();
        assert_eq!(refresh.snapshot().list_fault, Some(Fault::none_available()));
        refresh.take(good(&refresh, 0, &[]), now);
        assert_eq!(refresh.snapshot().list_fault, None, "one that has no prompts has answered");
        let none = super::Refresh::new(vec![], Naming::new("__", 128), OnFailure::Stale);
        assert_eq!(none.snapshot().list_fault, None, "no upstreams are an empty list");
    }

    #[tokio::test]
    async fn the_first_list_to_grow_old_decides() {
        let (mut refresh, now) = (refresh(&["a", "b"], OnFailure::Stale), Instant::now());
        refresh.take(good(&refresh, 0, &["x"]), now);
        refresh.take(good(&refresh, 1, &["y"]), now + Duration::from_secs(3));
        assert_eq!(refresh.snapshot().fresh_until, Some(now + Duration::from_secs(9)));
    }

    #[tokio::test]
    async fn u11_composed_and_decomposed_twins_are_one_name() {
        let (mut refresh, now) = (refresh(&["a"], OnFailure::Stale), Instant::now());
        refresh.take(good(&refresh, 0, &["caf\u{e9}", "cafe\u{301}", "tea"]), now);
        let catalog = refresh.snapshot();
        assert_eq!(count(&catalog), 1);
        assert_eq!(catalog.content.left_out.len(), 2);
    }
}
