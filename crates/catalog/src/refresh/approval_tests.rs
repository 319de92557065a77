//! The catalog while an upstream changes what it offers and people decide on it: repeated walks and
//! probes approve nothing.

use std::collections::BTreeMap;
use std::time::SystemTime;

use proptest::prelude::*;
use proptest::sample::select;
use tempfile::TempDir;

use super::*;
use crate::approval::ApprovalSettings;
use crate::effective::TextsOf;
use base::seal;
use config::lock::{Lock, LockFile, Object, Objects};
use domain::approval::{
    ApprovalKind, ApprovalState, Attribution, NO_ARGUMENTS, OfferedText, Version,
};
use domain::json::Json;
use domain::name::{DEFAULT_SEPARATOR, Prefix};
use library::prompt_list::PromptList;
use upstream::driver::DriverId;

/// A refresh before one upstream with one prompt, and its lock file.
struct World {
    refresh: Option<Refresh>,
    driver: DriverId,
    store: LockFile,
    _folder: TempDir,
}

fn prompt(description: &str, required: bool) -> Prompt {
    let text = serde_json::json!({"name": "p", "description": description,
        "arguments": [{"name": "who", "required": required}]});
    Prompt::read(Json::parse(text.to_string().as_bytes(), 8).unwrap()).unwrap()
}

fn digest(text: &str) -> Arc<str> {
    seal::prompt_text_digest(text).into()
}

fn attribution() -> Attribution {
    let (by, at) = ("alice".to_owned(), "2026-11-22T00:00:00Z".to_owned());
    Attribution { by, at, ..Attribution::default() }
}

fn version(prompt: &Prompt, text: &str) -> Version {
    let texts = BTreeMap::from([(NO_ARGUMENTS.into(), digest(text))]);
    Version {
        definition: seal::definition_digest(prompt).into(),
        source: None,
        texts,
        variants: Default::default(),
        files: Default::default(),
    }
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let driver = DriverId::fresh();
        let mut world = Self { refresh: None, driver, store, _folder: folder };
        let naming = Naming::new(DEFAULT_SEPARATOR, 128);
        let refresh = Refresh::new(vec![world.source()], naming);
        world.refresh = Some(refresh.with_effective_lists());
        world
    }

    fn source(&self) -> UpstreamSource {
        UpstreamSource {
            driver: self.driver,
            id: UpstreamId::parse("up").unwrap(),
            prefix: Prefix::parse("up").unwrap(),
            overlays: Arc::default(),
            approvals: ApprovalSettings {
                mode: Mode::Enforce,
                lock: Arc::new(self.store.read().unwrap()),
                store: Arc::new(self.store.clone()),
                snapshot: true,
            },
            skills_as_prompts: false,
            prompts_as_skills: None,
            labels_via: "file",
        }
    }

    fn refresh(&mut self) -> &mut Refresh {
        self.refresh.as_mut().unwrap()
    }

    fn walk(&mut self, prompt: &Prompt) {
        let listed = PromptList { prompts: vec![prompt.clone()], ..PromptList::default() };
        let outcome = Ok(FetchedList { listed, fresh_for: None });
        let driver = self.driver;
        self.refresh().take([DriverReport { driver, outcome }], Instant::now());
    }

    fn fail(&mut self) {
        let driver = self.driver;
        let report = DriverReport { driver, outcome: Err(Kind::Timeout) };
        self.refresh().take([report], Instant::now());
    }

    fn probe(&mut self, prompt: &Prompt, text: &str) {
        let texts = BTreeMap::from([(NO_ARGUMENTS.into(), OfferedText::Known(digest(text)))]);
        self.record_probe_results(prompt, texts, Vec::new());
    }

    fn probe_in_vain(&mut self, prompt: &Prompt) {
        self.record_probe_results(prompt, BTreeMap::new(), vec![NO_ARGUMENTS.into()]);
    }

    fn record_probe_results(
        &mut self,
        prompt: &Prompt,
        texts: BTreeMap<Arc<str>, OfferedText>,
        failed: Vec<Arc<str>>,
    ) {
        let definition = seal::definition_digest(prompt).into();
        let report = TextReport {
            upstream: UpstreamId::parse("up").unwrap(),
            raw_name: "p".into(),
            texts: TextsOf { definition, texts, since: SystemTime::UNIX_EPOCH },
            failed,
        };
        self.refresh =
            self.refresh.take().map(|refresh| refresh.record_probe_results(vec![report]));
    }

    /// Changes the lock file, and lets a configuration with it take over.
    fn decide(&mut self, prompt: &Prompt, text: &str, change: impl FnOnce(&mut Lock)) {
        let before = self.store.read().unwrap();
        let mut lock = before.clone();
        change(&mut lock);
        let definition = Object::Json(prompt.canonical());
        let objects = Objects::from([
            (seal::definition_digest(prompt).into(), definition),
            (digest(text), Object::Text(text.to_owned())),
        ]);
        self.store.replace(&before.digest, &lock, &objects).unwrap();
        let source = self.source();
        self.refresh = self.refresh.take().map(|refresh| refresh.renewed(vec![source]));
    }

    fn state(&self) -> ApprovalState {
        let effective = self.refresh.as_ref().unwrap().upstreams[0].effective.as_ref();
        effective.unwrap().rows[0].decision.state
    }

    /// The definition of the prompt as it is listed.
    fn listed(&self) -> Option<String> {
        let snapshot = self.refresh.as_ref().unwrap().snapshot();
        let item = snapshot.content.item(&format!("up{DEFAULT_SEPARATOR}p"))?;
        Some(item.digest.to_string())
    }
}

#[test]
fn a_merge_of_prompts_alone_keeps_the_skill_catalog_and_its_views() {
    let mut world = World::new();
    world.walk(&prompt("one", true));
    let before = world.refresh().skills.clone();
    world.walk(&prompt("two", true));
    assert!(Arc::ptr_eq(&before, &world.refresh().skills));
}

#[test]
fn a_probe_that_fails_changes_nothing_of_what_is_known() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let mut world = World::new();
    let offered = prompt("a", false);
    world.walk(&offered);
    world.probe(&offered, "x");
    let seen = version(&offered, "x");
    world.decide(&offered, "x", |lock| {
        lock.approval_mut(ApprovalKind::Prompt, "up", "p").approve(seen, attribution())
    });
    assert_eq!(world.state(), ApprovalState::Approved);
    world.probe(&offered, "y");
    assert_eq!(world.state(), ApprovalState::Changed);
    world.probe_in_vain(&offered);
    assert_eq!(world.state(), ApprovalState::Changed);
    world.probe(&offered, "x");
    assert_eq!(world.state(), ApprovalState::Approved);
    world.probe_in_vain(&offered);
    assert_eq!(world.state(), ApprovalState::Approved);
}

#[derive(Clone, Debug)]
enum Step {
    Walk { description: &'static str, required: bool },
    Probe(&'static str),
    Fail,
    Approve,
    Reject,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (select(&["a", "b", "c"][..]), any::<bool>())
            .prop_map(|(description, required)| Step::Walk { description, required }),
        2 => select(&["x", "y"][..]).prop_map(Step::Probe),
        1 => Just(Step::Fail),
        2 => Just(Step::Approve),
        1 => Just(Step::Reject),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn repeated_walks_and_probes_list_nothing_that_nobody_approved(
        steps in prop::collection::vec(step(), 1..16),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let mut world = World::new();
        let (mut offered, mut text) = (prompt("a", false), "x");
        let mut approved: Option<Version> = None;
        for step in steps {
            match step {
                Step::Walk { description, required } => {
                    offered = prompt(description, required);
                    // A change that was held back must not come in with the next pass.
                    for _ in 0..3 {
                        world.walk(&offered);
                        world.probe(&offered, text);
                    }
                }
                Step::Probe(now) => {
                    text = now;
                    world.probe(&offered, text);
                }
                Step::Fail => world.fail(),
                Step::Approve => {
                    let seen = version(&offered, text);
                    approved = Some(seen.clone());
                    world.decide(&offered, text, |lock| {
                        lock.approval_mut(ApprovalKind::Prompt, "up", "p").approve(seen, attribution());
                    });
                    world.walk(&offered);
                    prop_assert!(world.listed().is_some(), "what is approved is listed");
                }
                Step::Reject => {
                    let seen = version(&offered, text);
                    approved = approved.filter(|approved| *approved != seen);
                    world.decide(&offered, text, |lock| {
                        lock.approval_mut(ApprovalKind::Prompt, "up", "p").reject(seen, attribution());
                    });
                }
            }
            match (world.listed(), &approved) {
                (None, _) => {}
                (Some(_), None) => prop_assert!(false, "listed without an approval"),
                (Some(listed), Some(approved)) => prop_assert_eq!(listed, approved.definition.to_string()),
            }
        }
    }
}
