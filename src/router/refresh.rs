//! The only writer of the catalog: takes what the drivers report and publishes a new snapshot.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use unicode_normalization::UnicodeNormalization;

use super::catalog::{Catalog, Content, Incomplete, LeftOut, Owner, Walk};
use super::pins::Pins;
use super::settle::Settle;
use super::view::View;
use crate::audit::Audit;
use crate::audit::record::Event;
use crate::config::{self, OnFailure};
use crate::domain::fault::{Fault, UpstreamFaultKind as Kind, excerpt};
use crate::domain::merge::{Source, merge};
use crate::domain::name::{Naming, Prefix, UpstreamId};
use crate::seal;
use crate::upstream::driver::{Report, Walked};

/// Puts together what is known of all upstreams. Pure: the clock is handed in.
pub struct Refresh {
    upstreams: Vec<Known>,
    naming: Naming,
    on_failure: OnFailure,
    content: Arc<Content>,
    /// What has changed since it was last asked for.
    redefined: Vec<Redefined>,
}

/// Where snapshots and changes are told.
pub struct Announce {
    /// Marked with every snapshot.
    pub published: watch::Sender<()>,
    /// What there is, once it has settled; nothing before it is whole.
    pub changes: watch::Sender<Option<Arc<Content>>>,
    pub settle: Settle,
    pub audit: Audit,
}

impl Announce {
    /// Takes note of what a snapshot makes visible: the first whole list is there at once, later
    /// ones once they have settled. Half a list is no news.
    fn observe(&mut self, snapshot: &Catalog, now: Instant) {
        let told = self.changes.borrow().as_ref().map(|told| *told.everyone.digest());
        match told {
            _ if snapshot.pending => {}
            None => self.tell(&snapshot.content),
            Some(told) if told != *snapshot.content.everyone.digest() => self.settle.note(now),
            Some(_) => {}
        }
    }

    /// Waits until there is something to tell.
    async fn due(&self) {
        match self.settle.due() {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    fn tell(&mut self, content: &Arc<Content>) {
        self.settle.done();
        let is_other = self.changes.send_if_modified(|told| {
            let before = told.replace(content.clone());
            before.is_none_or(|before| before.everyone.digest() != content.everyone.digest())
        });
        if is_other {
            let digest = seal::digest_text(content.everyone.digest());
            let event = Event::new("list_changed").text("list", &digest);
            self.audit.note(event.number("prompts", content.everyone.len() as u64));
        }
    }

    /// Records prompts that are other ones than they were under the same names.
    fn record(&self, redefined: &[Redefined]) {
        for Redefined { upstream, raw_name, before, now } in redefined.iter().take(RECORDED) {
            warn!(upstream, name = excerpt(raw_name), "a prompt's definition has changed");
            let event = Event::new("definition_changed").text("upstream", upstream);
            let event = event.text("prompt", raw_name).text("before", before);
            self.audit.note(event.text("now", now));
        }
        if let Some(more) = redefined.len().checked_sub(RECORDED).filter(|more| *more > 0) {
            self.audit.note(Event::new("definitions_changed").number("more", more as u64));
        }
    }
}

/// A prompt that has another definition than before.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Redefined {
    upstream: String,
    raw_name: String,
    before: String,
    now: String,
}

/// Definitions that are recorded one by one after one merge.
const RECORDED: usize = 1_000;

/// Who an upstream is, its last good list, and its last word.
struct Known {
    id: UpstreamId,
    prefix: Prefix,
    list: Option<(Walked, Instant)>,
    state: State,
    pins: Pins,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing was heard yet.
    Unseen,
    Good,
    Failed(Kind),
}

impl Refresh {
    pub fn new<'a>(
        upstreams: impl IntoIterator<Item = &'a config::Upstream>,
        naming: Naming,
        on_failure: OnFailure,
    ) -> Self {
        let known = |upstream: &config::Upstream| Known {
            id: upstream.id.clone(),
            prefix: upstream.prefix.clone(),
            list: None,
            state: State::Unseen,
            pins: Pins::new(upstream.settings.on_changed_definition),
        };
        let upstreams = upstreams.into_iter().map(known).collect();
        Self { upstreams, naming, on_failure, content: Arc::default(), redefined: Vec::new() }
    }

    /// Runs until shutdown: publishes a snapshot after each report, and one more at `deadline`,
    /// from when on lists no longer wait for upstreams that were never seen.
    pub async fn run(
        mut self,
        mut reports: mpsc::Receiver<Report>,
        catalog: Arc<ArcSwap<Catalog>>,
        mut announce: Announce,
        deadline: Instant,
        shutdown: CancellationToken,
    ) {
        let (mut waiting, mut reporting) = (true, true);
        announce.observe(&self.snapshot(), Instant::now());
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = announce.due() => {
                    announce.tell(&self.content);
                    continue;
                }
                () = sleep_until(deadline), if waiting => {
                    waiting = false;
                    self.give_up_waiting();
                }
                report = reports.recv(), if reporting => match report {
                    Some(report) => self.take(report, Instant::now()),
                    // No driver is left; who listens for changes still listens to us.
                    None => reporting = false,
                },
            }
            announce.record(&std::mem::take(&mut self.redefined));
            let snapshot = self.snapshot();
            announce.observe(&snapshot, Instant::now());
            catalog.store(Arc::new(snapshot));
            announce.published.send_replace(());
        }
    }

    /// Takes in one report.
    pub fn take(&mut self, report: Report, now: Instant) {
        let known = &mut self.upstreams[report.upstream];
        let changed = match report.outcome {
            Ok(mut walked) => {
                let changed = known.pins.apply(&mut walked.listed.prompts);
                let redefined = changed.into_iter().map(|changed| Redefined {
                    upstream: known.id.to_string(),
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
        for known in &mut self.upstreams {
            if matches!(known.state, State::Unseen) {
                known.state = State::Failed(not_heard_of());
            }
        }
    }

    /// What is known by now.
    pub fn snapshot(&self) -> Catalog {
        let mut catalog = Catalog { content: self.content.clone(), ..Catalog::default() };
        for known in &self.upstreams {
            catalog.pending |= matches!(known.state, State::Unseen);
            catalog.walks.push(known.list.as_ref().map(|(Walked { listed, .. }, at)| Walk {
                pages: listed.pages,
                prompts: listed.prompts.len() + listed.malformed.len(),
                at: *at,
            }));
            let served = self.served(known);
            if let Some((walked, walked_at)) = served {
                catalog.scope = catalog.scope.max(walked.listed.scope);
                let until = walked.fresh_for.map(|fresh| *walked_at + fresh);
                catalog.fresh_until = catalog.fresh_until.into_iter().chain(until).min();
            }
            let failure = match &known.state {
                State::Good => None,
                State::Unseen => Some(not_heard_of()),
                State::Failed(kind) => Some(kind.clone()),
            };
            if let Some(kind) = failure {
                if self.on_failure == OnFailure::Fail {
                    let fault = || Fault::upstream(&known.id, kind.clone());
                    catalog.list_fault.get_or_insert_with(fault);
                }
                catalog.incomplete.push(Incomplete {
                    upstream: known.id.to_string(),
                    kind,
                    walked_at: served.map(|(_, at)| *at),
                });
            }
        }
        let nobody = self.upstreams.iter().all(|known| self.served(known).is_none());
        if nobody && !self.upstreams.is_empty() {
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

    fn merge(&self) -> Content {
        let sources: Vec<_> = self
            .upstreams
            .iter()
            .map(|known| Source {
                prefix: &known.prefix,
                prompts: self.served(known).map_or(&[][..], |(walked, _)| &walked.listed.prompts),
            })
            .collect();
        let merged = merge(&sources, &self.naming, |name| name.nfc().collect());
        let prompt = |source: usize, prompt: usize| &sources[source].prompts[prompt];
        let view = View::new(merged.entries.iter().map(|e| (e, prompt(e.source, e.prompt))));
        let owners = merged.entries.iter().map(|entry| {
            let definition = prompt(entry.source, entry.prompt);
            Owner {
                public_name: entry.public_name.clone(),
                upstream: entry.source,
                raw_name: definition.name.clone(),
                arguments: definition.arguments.clone(),
                digest: seal::digest_text(&seal::digest(definition.definition())),
            }
        });
        let named = merged.left_out.into_iter().map(|left_out| LeftOut {
            upstream: self.upstreams[left_out.source].id.to_string(),
            raw_name: left_out.raw_name,
            reason: left_out.reason,
        });
        let left_out: Vec<_> = named.chain(self.malformed()).chain(self.blocked()).collect();
        let generation = self.content.generation + 1;
        let content = Content::new(generation, owners.collect(), view, left_out);
        self.log(&content);
        content
    }

    /// Prompts that are there under the same names as before, and are other ones.
    fn redefined_in(&self, content: &Content) -> Vec<Redefined> {
        let redefined = |now: &Owner| {
            let before = self.content.owner(&now.public_name)?;
            let is_same = before.upstream != now.upstream || before.digest == now.digest;
            (!is_same).then(|| Redefined {
                upstream: self.upstreams[now.upstream].id.to_string(),
                raw_name: now.raw_name.clone(),
                before: before.digest.clone(),
                now: now.digest.clone(),
            })
        };
        content.owners().iter().filter_map(redefined).collect()
    }

    fn malformed(&self) -> impl Iterator<Item = LeftOut> {
        self.upstreams.iter().flat_map(|known| {
            let walked = self.served(known).map(|(walked, _)| walked);
            let reasons = walked.into_iter().flat_map(|w| &w.listed.malformed);
            reasons.map(|reason| LeftOut {
                upstream: known.id.to_string(),
                raw_name: String::new(),
                reason: reason.clone(),
            })
        })
    }

    fn blocked(&self) -> impl Iterator<Item = LeftOut> {
        self.upstreams.iter().flat_map(|known| {
            known.pins.blocked().map(|raw_name| LeftOut {
                upstream: known.id.to_string(),
                raw_name: raw_name.to_owned(),
                reason: "its definition has changed, or there are too many to remember \
                         (on_changed_definition)"
                    .to_owned(),
            })
        })
    }

    /// Says what changed, and loudly what is newly left out.
    fn log(&self, content: &Content) {
        let before: HashSet<_> = self.content.left_out.iter().collect();
        let news: Vec<_> = content.left_out.iter().filter(|l| !before.contains(l)).collect();
        for LeftOut { upstream, raw_name, reason } in news.iter().take(LOGGED) {
            warn!(upstream, name = excerpt(raw_name), reason, "a prompt is left out");
        }
        if news.len() > LOGGED {
            warn!(more = news.len() - LOGGED, "and more prompts are left out");
        }
        if content.everyone.digest() != self.content.everyone.digest() {
            info!(prompts = content.everyone.len(), "the catalog has changed");
        }
    }
}

fn not_heard_of() -> Kind {
    Kind::Unavailable("it has not answered since the start".to_owned())
}

/// Prompts that are named in the log after one merge: an upstream full of bad names must not
/// drown what else there is to read.
const LOGGED: usize = 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::OnChangedDefinition;
    use crate::domain::json::Json;
    use crate::domain::prompt::Prompt;
    use crate::upstream::walk::Listed;

    fn refresh(ids: &[&str], on_failure: OnFailure) -> Refresh {
        let known = |id: &&str| Known {
            id: UpstreamId::parse(id).unwrap(),
            prefix: Prefix::parse(id).unwrap(),
            list: None,
            state: State::Unseen,
            pins: Pins::new(OnChangedDefinition::Allow),
        };
        let upstreams = ids.iter().map(known).collect();
        let naming = Naming::new("__", 128);
        Refresh { upstreams, naming, on_failure, content: Arc::default(), redefined: Vec::new() }
    }

    fn good(upstream: usize, names: &[&str]) -> Report {
        let prompt = |name: &&str| {
            let text = serde_json::json!({"name": name}).to_string();
            Prompt::read(Json::parse(text.as_bytes(), 8).unwrap()).unwrap()
        };
        let prompts = names.iter().map(prompt).collect();
        let listed = Listed { prompts, ..Listed::default() };
        Report { upstream, outcome: Ok(Walked { listed, fresh_for: Some(Duration::from_secs(9)) }) }
    }

    fn bad(upstream: usize) -> Report {
        Report { upstream, outcome: Err(Kind::Timeout) }
    }

    fn count(catalog: &Catalog) -> usize {
        catalog.content.everyone.len()
    }

    #[tokio::test]
    async fn a_failing_upstream_keeps_its_last_good_list_and_is_named() {
        let (mut refresh, now) = (refresh(&["a", "b"], OnFailure::Stale), Instant::now());
        assert!(refresh.snapshot().pending);
        refresh.take(good(0, &["x"]), now);
        refresh.take(bad(1), now);
        let catalog = refresh.snapshot();
        assert!(!catalog.pending && catalog.list_fault.is_none());
        assert_eq!(catalog.incomplete[0].upstream, "b");
        assert_eq!(catalog.incomplete[0].walked_at, None);

        refresh.take(good(1, &["y"]), now);
        let before = refresh.snapshot();
        assert_eq!((count(&before), before.incomplete.len()), (2, 0));
        refresh.take(bad(1), now + Duration::from_secs(5));
        let stale = refresh.snapshot();
        assert!(Arc::ptr_eq(&stale.content, &before.content), "nothing is merged anew");
        assert_eq!(stale.incomplete[0].walked_at, Some(now));
    }

    #[tokio::test]
    async fn omit_and_fail_do_what_they_say() {
        let now = Instant::now();
        let mut omit = refresh(&["a", "b"], OnFailure::Omit);
        omit.take(good(0, &["x"]), now);
        omit.take(good(1, &["y"]), now);
        omit.take(bad(1), now);
        assert_eq!(count(&omit.snapshot()), 1);
        omit.take(good(1, &["y"]), now);
        assert_eq!(count(&omit.snapshot()), 2);

        let mut fail = refresh(&["a", "b"], OnFailure::Fail);
        fail.take(good(0, &["x"]), now);
        fail.take(bad(1), now);
        assert_eq!(fail.snapshot().list_fault, Some(Fault::upstream("b", Kind::Timeout)));
        fail.take(good(1, &[]), now);
        assert_eq!(fail.snapshot().list_fault, None);
    }

    #[tokio::test]
    async fn u2_all_down_is_an_error_and_not_an_empty_list() {
        let (mut refresh, now) = (refresh(&["a", "b"], OnFailure::Stale), Instant::now());
        refresh.take(bad(0), now);
        refresh.give_up_waiting();
        assert_eq!(refresh.snapshot().list_fault, Some(Fault::none_available()));
        refresh.take(good(0, &[]), now);
        assert_eq!(refresh.snapshot().list_fault, None, "one that has no prompts has answered");
        let none = super::Refresh::new([], Naming::new("__", 128), OnFailure::Stale);
        assert_eq!(none.snapshot().list_fault, None, "no upstreams are an empty list");
    }

    #[tokio::test]
    async fn the_first_list_to_grow_old_decides() {
        let (mut refresh, now) = (refresh(&["a", "b"], OnFailure::Stale), Instant::now());
        refresh.take(good(0, &["x"]), now);
        refresh.take(good(1, &["y"]), now + Duration::from_secs(3));
        assert_eq!(refresh.snapshot().fresh_until, Some(now + Duration::from_secs(9)));
    }

    #[tokio::test]
    async fn u11_composed_and_decomposed_twins_are_one_name() {
        let (mut refresh, now) = (refresh(&["a"], OnFailure::Stale), Instant::now());
        refresh.take(good(0, &["caf\u{e9}", "cafe\u{301}", "tea"]), now);
        let catalog = refresh.snapshot();
        assert_eq!(count(&catalog), 1);
        assert_eq!(catalog.content.left_out.len(), 2);
    }
}
