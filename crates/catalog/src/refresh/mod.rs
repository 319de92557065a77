//! The refresh: the only writer of the catalog. Applies the reports of the drivers, and publishes
//! snapshots.

mod merging;
#[cfg(test)]
mod approval_tests;
#[cfg(test)]
mod version_tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use merging::Groups;

use crate::announce::announcement_debounce::Debounce;
use crate::announce::label_moves::SeenMove;
use crate::announce::{Announcer, PromptTransition, Redefined};
use crate::approval::ApprovalRow;
use crate::blocking::{MERGED_AT_ONCE, run_blocking};
use crate::caller_lists::CallerLists;
use crate::effective::{Effective, KnownTexts, Maker, TextReport};
use crate::snapshot::{
    Catalog, CatalogContent, Incomplete, SkillCatalog, WalkInfo, next_number, not_reported_yet,
};
use crate::source::UpstreamSource;
use crate::view_cache::ViewCache;
use domain::approval::{self, Mode};
use domain::fault::{Fault, UpstreamFaultKind as Kind};
use domain::name::{Naming, UpstreamId};
use domain::prompts::prompt::Prompt;
use domain::prompts::skill::Skill;
use library::prompt_list::PromptList;
use upstream::driver::{DriverReport, FetchedList};

/// The known state of all upstreams. Pure: the clock is an argument.
pub struct Refresh {
    upstreams: Vec<KnownUpstream>,
    naming: Naming,
    groups: Groups,
    content: Arc<CatalogContent>,
    skills: Arc<SkillCatalog>,
    /// Changed definitions since they were last taken.
    redefined: Vec<Redefined>,
    /// Moved labels since they were last taken.
    moves: Vec<SeenMove>,
    /// Changed states since they were last taken.
    transitions: Vec<PromptTransition>,
}

/// The inputs that change the catalog.
pub struct Inputs {
    pub reports: mpsc::Receiver<DriverReport>,
    pub texts: mpsc::Receiver<Vec<TextReport>>,
    pub renewals: mpsc::Receiver<Renewal>,
}

/// A configuration that takes over the catalog.
pub struct Renewal {
    pub sources: Vec<UpstreamSource>,
    pub naming: Naming,
    pub debounce: Debounce,
    pub views: Arc<ViewCache>,
    pub caller_lists: Option<Arc<CallerLists>>,
    /// Storage for new snapshots; the previous router keeps its storage.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// How long lists wait while no upstream has a list.
    pub deadline: Instant,
    /// Signalled or dropped once the new edition serves. Earlier announcements would make clients
    /// query the previous edition.
    pub serves: oneshot::Receiver<()>,
    /// Signalled once the first snapshot is stored.
    pub done: oneshot::Sender<()>,
}

/// An upstream, its last good list, and its last report.
struct KnownUpstream {
    source: UpstreamSource,
    list: Option<(FetchedList, Instant)>,
    /// When the skills of the list were walked; `None` before the first successful walk.
    skills_walked_at: Option<Instant>,
    version: ListVersion,
    state: ReportState,
    /// The list after overlays and approvals; `None` without overlays and approvals, when the list
    /// is served unchanged.
    effective: Option<Effective>,
    /// The texts that probes have found.
    texts: KnownTexts,
}

/// One version of the list of an upstream. No two versions have the same number.
#[derive(Clone, Debug, Eq, PartialEq)]
struct ListVersion {
    upstream: UpstreamId,
    /// 0 if no list is served.
    number: u64,
}

#[derive(Clone, Debug)]
enum ReportState {
    /// No report since the start; lists wait for it.
    Unseen,
    /// No report since a reload added the upstream; lists wait for it only while no other upstream
    /// has a list.
    Joining,
    Good,
    Failed(Kind),
}

impl Refresh {
    pub fn new(sources: Vec<UpstreamSource>, naming: Naming) -> Self {
        let known = |source| KnownUpstream::new(source, ReportState::Unseen);
        let upstreams = sources.into_iter().map(known).collect();
        Self {
            upstreams,
            naming,
            groups: Groups::default(),
            content: Arc::default(),
            skills: Arc::default(),
            redefined: Vec::new(),
            moves: Vec::new(),
            transitions: Vec::new(),
        }
    }

    /// Runs until shutdown: publishes a snapshot after each report and renewal, and one at
    /// `deadline`, from when on lists no longer wait for upstreams that never answered.
    pub async fn run(
        mut self,
        mut inputs: Inputs,
        mut catalog: Arc<ArcSwap<Catalog>>,
        mut announce: Announcer,
        mut deadline: Instant,
        shutdown: CancellationToken,
    ) {
        let mut waiting = true;
        let mut held = None::<oneshot::Receiver<()>>;
        if self.upstreams.iter().any(|known| known.source.approvals.mode != Mode::Off) {
            // Approved snapshots, before any upstream has reported.
            self = run_blocking(move || self.with_effective_lists()).await;
        }
        announce.observe(&self.snapshot(), Instant::now()).await;
        loop {
            let mut done = None;
            tokio::select! {
                () = shutdown.cancelled() => {
                    announce.record_rest();
                    return;
                }
                () = announce.counts_due() => {
                    announce.record_counts();
                    continue;
                }
                () = announce.due(), if held.is_none() => {
                    announce.tell(&self.content, &self.skills).await;
                    continue;
                }
                () = edition_serves(&mut held), if held.is_some() => {
                    held = None;
                    // For readers of the newest edition, which has changed since the renewal.
                    announce.published.send_replace(());
                    continue;
                }
                () = sleep_until(deadline), if waiting => {
                    waiting = false;
                    self = run_blocking(move || self.without_waiting()).await;
                }
                Some(report) = inputs.reports.recv() => {
                    let mut waiting = vec![report];
                    while let Ok(report) = inputs.reports.try_recv() {
                        waiting.push(report);
                    }
                    self = self.take_beside_calls(waiting).await;
                }
                Some(texts) = inputs.texts.recv() => {
                    let mut waiting = texts;
                    while let Ok(texts) = inputs.texts.try_recv() {
                        waiting.extend(texts);
                    }
                    self = run_blocking(move || self.record_probe_results(waiting)).await;
                }
                Some(renewal) = inputs.renewals.recv() => {
                    // Calls of the edition before must not wait for a snapshot that will never
                    // come.
                    let mut last = self.snapshot();
                    if std::mem::take(&mut last.pending) && last.content.everyone.is_empty() {
                        last.list_fault.get_or_insert_with(Fault::none_available);
                    }
                    catalog.store(Arc::new(last));
                    // Destructured, so that the compiler names a field that is forgotten.
                    let Renewal {
                        sources,
                        naming,
                        debounce,
                        views,
                        caller_lists,
                        catalog: next_catalog,
                        deadline: next_deadline,
                        serves,
                        done: ready,
                    } = renewal;
                    announce.debounce = debounce;
                    announce.views = views;
                    announce.caller_lists = caller_lists;
                    catalog = next_catalog;
                    deadline = next_deadline;
                    waiting = true;
                    held = Some(serves);
                    done = Some(ready);
                    self.naming = naming;
                    self = run_blocking(move || self.renewed(sources)).await;
                }
            }
            announce.record(&std::mem::take(&mut self.redefined));
            announce.record_moves(&std::mem::take(&mut self.moves));
            announce.record_transitions(&std::mem::take(&mut self.transitions));
            let snapshot = self.snapshot();
            announce.observe(&snapshot, Instant::now()).await;
            catalog.store(Arc::new(snapshot));
            announce.published.send_replace(());
            if let Some(done) = done {
                // The reload waits for this, except at shutdown.
                let _ = done.send(());
            }
        }
    }

    /// Applies another set of upstreams. The state of kept drivers stays; the last list of an
    /// upstream with a new driver is served until its first report.
    fn renewed(mut self, sources: Vec<UpstreamSource>) -> Self {
        let mut before = std::mem::take(&mut self.upstreams);
        let known = |source: UpstreamSource| {
            let at = before.iter().position(|known| known.source.id == source.id);
            let old = at.map(|at| before.swap_remove(at));
            let mut known = KnownUpstream::new(source, ReportState::Joining);
            if let Some(old) = old {
                if old.source.driver == known.source.driver {
                    known.state = old.state;
                }
                known.list = old.list;
                known.skills_walked_at = old.skills_walked_at;
                known.version = old.version;
                known.texts = old.texts;
                known.effective = old.effective;
                if old.source.skills_as_prompts != known.source.skills_as_prompts
                    || old.source.prompts_as_skills != known.source.prompts_as_skills
                {
                    // Skills may no longer be prompts, nor prompts skills.
                    known.version.number = next_number();
                }
            }
            known
        };
        self.upstreams = sources.into_iter().map(known).collect();
        self.with_effective_lists()
    }

    /// Makes the effective lists of all upstreams.
    fn with_effective_lists(mut self) -> Self {
        for at in 0..self.upstreams.len() {
            self.make_effective(at);
        }
        self.merge();
        self.debug_assert_invariants();
        self
    }

    /// Takes over the texts that probes have found.
    fn record_probe_results(mut self, reports: Vec<TextReport>) -> Self {
        let mut changed: Vec<usize> = Vec::new();
        for TextReport { upstream, raw_name, mut texts, failed } in reports {
            let mut upstreams = self.upstreams.iter_mut().enumerate();
            let found = upstreams.find(|(_, known)| known.source.id == upstream);
            let Some((at, known)) = found else { continue };
            let before = known.texts.get(&raw_name);
            if let Some(before) = before.filter(|before| before.definition == texts.definition) {
                let kept =
                    failed.iter().filter_map(|arguments| before.texts.get_key_value(arguments));
                texts.texts.extend(kept.map(|(arguments, text)| (arguments.clone(), text.clone())));
            }
            if !before.is_some_and(|before| before.is_same(&texts)) {
                known.texts.insert(raw_name, texts);
                changed.push(at);
            }
        }
        changed.sort_unstable();
        changed.dedup();
        if changed.into_iter().fold(false, |any, at| self.make_effective(at) | any) {
            self.merge();
        }
        self.debug_assert_invariants();
        self
    }

    /// Makes the effective list of an upstream; returns whether it has changed.
    fn make_effective(&mut self, at: usize) -> bool {
        let known = &mut self.upstreams[at];
        let maker = Maker {
            upstream: &known.source.id,
            prefix: &known.source.prefix,
            naming: &self.naming,
            overlays: &known.source.overlays,
            approvals: &known.source.approvals,
            texts: &known.texts,
            before: known.effective.as_ref(),
        };
        let list = known.list.as_ref();
        let offered = list.map(|(list, _)| list.listed.prompts.as_slice());
        let skills = list.and_then(|(list, _)| known.known_skills(&list.listed));
        let effective = (!maker.is_idle()).then(|| maker.make(offered, skills));
        let is_same = match (&effective, &known.effective) {
            (Some(now), Some(before)) => now.serves_as(before),
            (None, None) => true,
            _ => false,
        };
        let rows = |effective: &Option<Effective>| {
            effective.as_ref().map(|effective| effective.rows.clone()).unwrap_or_default()
        };
        self.transitions.extend(transitions(&rows(&known.effective), &rows(&effective)));
        if let Some(effective) = &effective
            && known.texts.len() > effective.rows.len()
        {
            let is_offered: HashSet<&str> =
                effective.rows.iter().map(|row| &*row.raw_name).collect();
            known.texts.retain(|raw_name, _| is_offered.contains(&**raw_name));
        }
        known.effective = effective;
        if !is_same {
            known.version.number = next_number();
        }
        !is_same
    }

    /// Applies reports; long lists are merged on a thread that may block.
    async fn take_beside_calls(mut self, reports: Vec<DriverReport>) -> Self {
        let listed = |report: &DriverReport| {
            let listed = report.outcome.as_ref().map(|list| &list.listed);
            listed.map_or(0, |listed| listed.len())
        };
        // The work grows with all listed prompts and with all omitted prompts, which are compared
        // with the previously omitted prompts.
        let known = self.content.prompt_count() + self.content.left_out.len();
        let now = Instant::now();
        // Approvals read objects, which blocks.
        let has_approvals =
            self.upstreams.iter().any(|known| known.source.approvals.mode != Mode::Off);
        if !has_approvals && known + reports.iter().map(listed).sum::<usize>() <= MERGED_AT_ONCE {
            self.take(reports, now);
            return self;
        }
        run_blocking(move || {
            self.take(reports, now);
            self
        })
        .await
    }

    /// Applies reports.
    pub fn take(&mut self, reports: impl IntoIterator<Item = DriverReport>, now: Instant) {
        let mut is_changed = false;
        for report in reports {
            is_changed |= self.apply(report, now);
        }
        if is_changed {
            self.merge();
        }
        self.debug_assert_invariants();
    }

    /// Applies one report; returns whether the content must be merged again.
    fn apply(&mut self, report: DriverReport, now: Instant) -> bool {
        let mut upstreams = self.upstreams.iter_mut().enumerate();
        let Some((at, known)) = upstreams.find(|(_, known)| known.source.driver == report.driver)
        else {
            // This is the last report of a removed upstream.
            return false;
        };
        match report.outcome {
            Ok(mut walked) => {
                known.keep_skills(&mut walked.listed, now);
                let before = known.list.as_ref().map(|(old, _)| &old.listed);
                let same = before.is_some_and(|before| *before == walked.listed);
                // A driver of another configuration may choose by another label.
                let is_of_driver = !matches!(known.state, ReportState::Joining);
                if let Some(before) = before.filter(|_| !same && is_of_driver) {
                    let UpstreamSource { id, labels_via, .. } = &known.source;
                    let seen = SeenMove::between(before, &walked.listed, id.as_str(), labels_via);
                    self.moves.extend(seen);
                }
                if !same {
                    known.version.number = next_number();
                }
                // A list from the disk is as old as its file, and its source was not read.
                let age = walked.listed.kept_age;
                let walked_at = now.checked_sub(age.unwrap_or_default()).unwrap_or(now);
                known.list = Some((walked, walked_at));
                known.state = age.map_or(ReportState::Good, |_| ReportState::Failed(only_kept()));
                let has_problem =
                    known.effective.as_ref().is_some_and(|effective| effective.has_problem());
                // A missing object may exist again.
                let is_other = (!same || has_problem) && self.make_effective(at);
                is_other || !same
            }
            Err(kind) => {
                // The last good list is still served.
                known.state = ReportState::Failed(kind);
                false
            }
        }
    }

    /// Upstreams without a report count as failed from now on, until they report.
    fn without_waiting(mut self) -> Self {
        for known in &mut self.upstreams {
            if matches!(known.state, ReportState::Unseen | ReportState::Joining) {
                known.state = ReportState::Failed(not_reported_yet());
            }
        }
        self.debug_assert_invariants();
        self
    }

    /// The snapshot of the present state.
    pub fn snapshot(&self) -> Catalog {
        let content = self.content.clone();
        let skills = self.skills.clone();
        let mut catalog = Catalog { content, skills, ..Catalog::default() };
        for known in &self.upstreams {
            catalog.pending |= matches!(known.state, ReportState::Unseen);
            if let Some((FetchedList { listed, .. }, at)) = &known.list {
                let pages = listed.pages;
                let skills = listed.skills.len();
                let walk = WalkInfo { pages, prompts: listed.len() - skills, skills, at: *at };
                catalog.walks.insert(known.source.id.clone(), walk);
            }
            catalog
                .approvals
                .extend(known.effective.as_ref().map(|effective| effective.rows.clone()));
            let served = known.list.as_ref();
            if let Some((walked, walked_at)) = served {
                catalog.scope = catalog.scope.max(walked.listed.scope);
                if let Some(fresh_for) = walked.fresh_for {
                    catalog.note_fresh(*walked_at + fresh_for, &known.source.id);
                }
            }
            let of_skills = served.and_then(|(walked, _)| walked.listed.skills_failure.clone());
            let is_of_skills = of_skills.is_some() && matches!(known.state, ReportState::Good);
            let has_prompts = is_of_skills && !known.source.skills_as_prompts;
            let failure = match &known.state {
                ReportState::Good => of_skills,
                ReportState::Unseen | ReportState::Joining => Some(not_reported_yet()),
                ReportState::Failed(kind) => Some(kind.clone()),
            };
            if let Some(kind) = failure {
                catalog.incomplete.push(Incomplete {
                    upstream: known.source.id.clone(),
                    kind,
                    walked_at: match is_of_skills {
                        true => known.skills_walked_at,
                        false => served.map(|(_, at)| *at),
                    },
                    has_prompts,
                });
            }
        }
        let nobody = !self.upstreams.iter().any(|known| self.is_part(known));
        let is_joining = |known: &KnownUpstream| matches!(known.state, ReportState::Joining);
        if nobody && self.upstreams.iter().any(is_joining) {
            catalog.pending = true;
        } else if nobody && !self.upstreams.is_empty() {
            catalog.list_fault = Some(Fault::none_available());
        }
        catalog
    }

    /// The prompts of an upstream that are part of the catalog.
    fn prompts<'a>(&self, known: &'a KnownUpstream) -> &'a [Prompt] {
        match (&known.effective, &known.list) {
            // Includes approved snapshots of an upstream without a list.
            (Some(effective), _) => &effective.prompts,
            (None, Some((list, _))) => &list.listed.prompts,
            (None, None) => &[],
        }
    }

    /// Whether the catalog has a list of the upstream. Approved snapshots count as a list.
    fn is_part(&self, known: &KnownUpstream) -> bool {
        let has_skills = known.effective.as_ref().is_some_and(|own| !own.skills.is_empty());
        known.list.is_some() || !self.prompts(known).is_empty() || has_skills
    }

    /// Panics in debug builds if two upstreams share an id, a driver or a version, or if the
    /// content differs from the current lists.
    fn debug_assert_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let mut ids = HashSet::new();
        let mut drivers = HashSet::new();
        let mut versions = HashSet::new();
        for KnownUpstream { source, list, state, version, .. } in &self.upstreams {
            assert!(ids.insert(&source.id), "{} is there twice", source.id.as_str());
            assert!(drivers.insert(source.driver), "a driver serves one upstream");
            assert!(versions.insert(version.number), "no two versions have one number");
            let is_known = list.is_some() || !matches!(state, ReportState::Good);
            assert!(is_known, "{} is good without a list", source.id.as_str());
        }
        self.debug_assert_merged();
    }
}

/// Why the list of an upstream is stale that was only read from the disk.
fn only_kept() -> Kind {
    let why = "it was not read since the start; its list from before is served";
    Kind::Unavailable(why.to_owned())
}

/// Resolves when the sender signals, or is dropped.
async fn edition_serves(serves: &mut Option<oneshot::Receiver<()>>) {
    if let Some(serves) = serves {
        let _ = serves.await;
    }
}

impl KnownUpstream {
    fn new(source: UpstreamSource, state: ReportState) -> Self {
        let version = ListVersion { upstream: source.id.clone(), number: next_number() };
        let effective = None;
        let texts = KnownTexts::new();
        let skills_walked_at = None;
        let list = None;
        Self { source, list, skills_walked_at, version, state, effective, texts }
    }

    /// The skills of the upstream's list; `None` before the first successful walk of skills.
    fn known_skills<'l>(&self, listed: &'l PromptList) -> Option<&'l [Arc<Skill>]> {
        let is_unknown = listed.skills_failure.is_some() && self.skills_walked_at.is_none();
        (!is_unknown).then_some(listed.skills.as_slice())
    }

    /// Copies the previous skills into a list whose skills could not be walked.
    fn keep_skills(&mut self, walked: &mut PromptList, now: Instant) {
        if walked.skills_failure.is_none() {
            self.skills_walked_at = Some(now);
        } else if let Some((before, _)) = &self.list {
            walked.skills.clone_from(&before.listed.skills);
        }
    }
}

/// The prompts whose state, reason or offered version has changed. Prompts that are approved when
/// they are first seen are not reported.
fn transitions(before: &[ApprovalRow], now: &[ApprovalRow]) -> Vec<PromptTransition> {
    let definition = |row: &ApprovalRow| Some(row.offered.as_ref()?.version.definition.clone());
    let key = |row: &ApprovalRow| (row.kind, row.raw_name.clone());
    let known: HashMap<_, &ApprovalRow> = before.iter().map(|row| (key(row), row)).collect();
    let news = now.iter().filter(|row| row.offered.is_some()).filter(|row| {
        let known = known.get(&key(row)).filter(|known| known.offered.is_some());
        match known {
            Some(known) => {
                known.decision.state != row.decision.state
                    || known.decision.reason != row.decision.reason
                    || definition(known) != definition(row)
            }
            None => row.decision.state != approval::ApprovalState::Approved,
        }
    });
    news.map(|row| {
        let approved = row.approved();
        let offered = row.offered.as_ref();
        PromptTransition {
            upstream: row.upstream.to_string(),
            raw_name: row.raw_name.to_string(),
            public_name: row.public_name.clone(),
            before: known.get(&key(row)).map(|known| known.decision.state),
            now: row.decision.state,
            reason: row.decision.reason.as_str(),
            offered: offered.map(|offered| offered.version.definition.to_string()),
            approved: approved.map(|approved| approved.version.definition.to_string()),
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::approval::ApprovalSettings;
    use config::lock::LockFile;
    use domain::json::Json;
    use domain::name::Prefix;
    use library::prompt_list::PromptList;
    use upstream::driver::DriverId;

    fn refresh(ids: &[&str]) -> Refresh {
        let sources = ids.iter().map(|id| source(id)).collect();
        Refresh::new(sources, Naming::new("__", 128))
    }

    fn source(id: &str) -> UpstreamSource {
        UpstreamSource {
            driver: DriverId::fresh(),
            id: UpstreamId::parse(id).unwrap(),
            prefix: Prefix::parse(id).unwrap(),
            overlays: Arc::default(),
            approvals: ApprovalSettings {
                mode: Mode::Off,
                lock: Arc::default(),
                store: Arc::new(LockFile::at("promptgate.lock".into())),
                snapshot: false,
            },
            skills_as_prompts: false,
            prompts_as_skills: None,
            labels_via: "file",
        }
    }

    fn good(refresh: &Refresh, upstream: usize, names: &[&str]) -> DriverReport {
        let prompt = |name: &&str| {
            let text = serde_json::json!({"name": name}).to_string();
            Prompt::read(Json::parse(text.as_bytes(), 8).unwrap()).unwrap()
        };
        let prompts = names.iter().map(prompt).collect();
        let listed = PromptList { prompts, ..PromptList::default() };
        let driver = refresh.upstreams[upstream].source.driver;
        DriverReport {
            driver,
            outcome: Ok(FetchedList { listed, fresh_for: Some(Duration::from_secs(9)) }),
        }
    }

    fn bad(refresh: &Refresh, upstream: usize) -> DriverReport {
        let driver = refresh.upstreams[upstream].source.driver;
        DriverReport { driver, outcome: Err(Kind::Timeout) }
    }

    fn count(catalog: &Catalog) -> usize {
        catalog.content.everyone.len()
    }

    #[tokio::test]
    async fn a_failing_upstream_keeps_its_last_good_list_and_is_named() {
        let mut refresh = refresh(&["a", "b"]);
        let now = Instant::now();
        assert!(refresh.snapshot().pending);
        refresh.take([good(&refresh, 0, &["x"])], now);
        refresh.take([bad(&refresh, 1)], now);
        let catalog = refresh.snapshot();
        assert!(!catalog.pending && catalog.list_fault.is_none());
        assert_eq!(catalog.incomplete[0].upstream.as_str(), "b");
        assert_eq!(catalog.incomplete[0].walked_at, None);

        refresh.take([good(&refresh, 1, &["y"])], now);
        let before = refresh.snapshot();
        assert_eq!((count(&before), before.incomplete.len()), (2, 0));
        refresh.take([bad(&refresh, 1)], now + Duration::from_secs(5));
        let stale = refresh.snapshot();
        assert!(Arc::ptr_eq(&stale.content, &before.content), "nothing is merged anew");
        assert_eq!(stale.incomplete[0].walked_at, Some(now));
    }

    #[tokio::test]
    async fn u2_all_down_is_an_error_and_not_an_empty_list() {
        let mut refresh = refresh(&["a", "b"]);
        let now = Instant::now();
        refresh.take([bad(&refresh, 0)], now);
        refresh = refresh.without_waiting();
        assert_eq!(refresh.snapshot().list_fault, Some(Fault::none_available()));
        refresh.take([good(&refresh, 0, &[])], now);
        assert_eq!(refresh.snapshot().list_fault, None, "one that has no prompts has answered");
        let none = super::Refresh::new(vec![], Naming::new("__", 128));
        assert_eq!(none.snapshot().list_fault, None, "no upstreams are an empty list");
    }

    proptest! {
        /// The refresh itself checks after each step that the content is that of the lists.
        #[test]
        fn the_content_is_that_of_the_served_lists_whatever_upstreams_report(
            steps in prop::collection::vec(
                (0..8_u8, 0..3_usize, prop::collection::btree_set("[a-c]{1,2}", 0..4)), 1..40,
            ),
        ) {
            let mut refresh = refresh(&["a", "b", "c"]);
            // Two without a prefix, of which names can collide, and be cut by the third.
            for known in &mut refresh.upstreams[..2] {
                known.source.prefix = Prefix::parse("").unwrap();
            }
            for (step, at, names) in steps {
                let at = at % refresh.upstreams.len().max(1);
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                match step {
                    _ if refresh.upstreams.is_empty() => {}
                    0..=3 => refresh.take([good(&refresh, at, &names)], Instant::now()),
                    4 | 5 => refresh.take([bad(&refresh, at)], Instant::now()),
                    6 => refresh = refresh.without_waiting(),
                    _ => {
                        let mut sources: Vec<_> =
                            refresh.upstreams.iter().map(|known| known.source.clone()).collect();
                        sources.rotate_left(at);
                        sources[0].driver = DriverId::fresh();
                        sources.truncate(3 - names.len() / 3);
                        refresh = refresh.renewed(sources);
                    }
                }
                let served = refresh.upstreams.iter().map(|known| refresh.prompts(known).len());
                let listed = count(&refresh.snapshot()) + refresh.content.left_out.len();
                prop_assert_eq!(listed, served.sum::<usize>());
            }
        }
    }

    #[tokio::test]
    async fn the_first_list_to_grow_old_decides() {
        let mut refresh = refresh(&["a", "b"]);
        let now = Instant::now();
        refresh.take([good(&refresh, 0, &["x"])], now);
        refresh.take([good(&refresh, 1, &["y"])], now + Duration::from_secs(3));
        let (first, upstream) = &refresh.snapshot().fresh_until[0];
        assert_eq!((*first, upstream.as_str()), (now + Duration::from_secs(9), "a"));
    }

    #[tokio::test]
    async fn u11_look_alikes_of_two_upstreams_are_listed_and_named() {
        let mut refresh = refresh(&["a", "b", "c"]);
        let now = Instant::now();
        refresh.take([good(&refresh, 0, &["review", "tea", "st\u{430}ff", "staff"])], now);
        refresh.take([good(&refresh, 1, &["r\u{435}view", "tea"])], now);
        let titled = serde_json::json!({"name": "x", "title": "rev\u{456}ew"}).to_string();
        let titled = Prompt::read(Json::parse(titled.as_bytes(), 8).unwrap()).unwrap();
        let listed = PromptList { prompts: vec![titled], ..PromptList::default() };
        let driver = refresh.upstreams[2].source.driver;
        let outcome = Ok(FetchedList { listed, fresh_for: None });
        refresh.take([DriverReport { driver, outcome }], now);
        let catalog = refresh.snapshot();
        assert_eq!(count(&catalog), 7);
        let names = |pair: &super::super::snapshot::LookAlike| {
            [&pair.one, &pair.other].map(|prompt| (prompt.name.clone(), prompt.text.clone()))
        };
        let found: Vec<_> = catalog.content.look_alikes.iter().map(names).collect();
        let a = ("a__review", "review");
        let b = ("b__r\u{435}view", "r\u{435}view");
        let c = ("c__x", "rev\u{456}ew");
        let pairs = [[a, b], [a, c], [b, c]];
        assert_eq!(found, pairs.map(|pair| pair.map(|(n, t)| (n.to_owned(), t.to_owned()))));
    }

    #[tokio::test]
    async fn u11_composed_and_decomposed_twins_are_one_name() {
        let mut refresh = refresh(&["a"]);
        let now = Instant::now();
        refresh.take([good(&refresh, 0, &["caf\u{e9}", "cafe\u{301}", "tea"])], now);
        let catalog = refresh.snapshot();
        assert_eq!(count(&catalog), 1);
        assert_eq!(catalog.content.left_out.len(), 2);
    }
}
