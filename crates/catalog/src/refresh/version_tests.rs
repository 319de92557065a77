//! The catalog while labels move and versions change under approvals: a move takes no prompt from
//! its callers, and no unapproved text is served.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use tempfile::TempDir;

use super::*;
use crate::approval::{ApprovalRow, ApprovalSettings};
use base::seal;
use config::lock::{LockFile, Object, Objects};
use domain::approval::{Approval, ApprovalKind, ApprovalState, Attribution, Version};
use domain::json::Json;
use domain::name::{DEFAULT_SEPARATOR, Prefix};
use domain::prompts::prompt::{PromptSource, SourcePlace};
use domain::prompts::prompt_version::PromptVersion;
use library::prompt_list::PromptList;
use upstream::driver::DriverId;

/// An upstream with versions of the prompt `refund`, and its lock file.
struct World {
    refresh: Refresh,
    driver: DriverId,
    store: LockFile,
    /// The texts of the versions by their numbers.
    versions: BTreeMap<u32, String>,
    labels: BTreeMap<&'static str, u32>,
    approvals: u32,
    _folder: TempDir,
}

fn source_of(text: &str) -> Arc<str> {
    seal::sha256_text(text.as_bytes()).into()
}

fn prompt(name: &str, number: u32, label: Option<&str>, text: &str) -> Prompt {
    let mut meta = serde_json::json!({"version": number.to_string()});
    if let Some(label) = label {
        meta["label"] = label.into();
    }
    let definition = serde_json::json!({"name": name, "_meta": meta}).to_string();
    let mut prompt = Prompt::read(Json::parse(definition.as_bytes(), 8).unwrap()).unwrap();
    let version: Arc<str> = number.to_string().into();
    let label = label.map(Into::into);
    prompt.version = Some(PromptVersion::new("refund".into(), version, label).into());
    let place = SourcePlace::Kept(text.into());
    prompt.source = Some(PromptSource { digest: source_of(text), place }.into());
    prompt
}

fn upstream_source(driver: DriverId, store: &LockFile) -> UpstreamSource {
    UpstreamSource {
        driver,
        id: UpstreamId::parse("up").unwrap(),
        prefix: Prefix::parse("up").unwrap(),
        overlays: Arc::default(),
        approvals: ApprovalSettings {
            mode: Mode::Enforce,
            lock: Arc::new(store.read().unwrap()),
            store: Arc::new(store.clone()),
            snapshot: true,
        },
        skills_as_prompts: false,
        prompts_as_skills: None,
        labels_via: "file",
    }
}

impl World {
    /// A world with the label `production` at version 1, which is approved.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let driver = DriverId::fresh();
        let source = upstream_source(driver, &store);
        let refresh = Refresh::new(vec![source], Naming::new(DEFAULT_SEPARATOR, 128));
        let refresh = refresh.with_effective_lists();
        let versions = BTreeMap::from([(1, "one".to_owned()), (2, "two".to_owned())]);
        let labels = BTreeMap::from([("production", 1)]);
        let approvals = 0;
        let mut world =
            Self { refresh, driver, store, versions, labels, approvals, _folder: folder };
        world.walk();
        world.approve(1);
        world
    }

    fn walk(&mut self) {
        let text = |number: &u32| &self.versions[number];
        let mut prompts = Vec::new();
        for number in self.versions.keys() {
            prompts.push(prompt(&format!("refund@{number}"), *number, None, text(number)));
        }
        for (label, number) in &self.labels {
            let name = format!("refund@{label}");
            prompts.push(prompt(&name, *number, Some(label), text(number)));
        }
        if let Some(number) = self.labels.get("production") {
            prompts.push(prompt("refund", *number, Some("production"), text(number)));
        }
        let listed = PromptList { prompts, ..PromptList::default() };
        let outcome = Ok(FetchedList { listed, fresh_for: None });
        self.refresh.take([DriverReport { driver: self.driver, outcome }], Instant::now());
    }

    fn restart(&mut self) {
        let source = upstream_source(self.driver, &self.store);
        let refresh = Refresh::new(vec![source], Naming::new(DEFAULT_SEPARATOR, 128));
        self.refresh = refresh.with_effective_lists();
        self.walk();
    }

    fn decide(&mut self, name: &str, prompt: &Prompt, change: impl FnOnce(&mut Approval, Version)) {
        let before = self.store.read().unwrap();
        let mut lock = before.clone();
        let definition = prompt.canonical();
        let version = Version {
            definition: seal::definition_digest(prompt).into(),
            source: prompt.source.as_ref().map(|source| source.digest.clone()),
            texts: BTreeMap::new(),
            variants: Default::default(),
            files: Default::default(),
        };
        let SourcePlace::Kept(text) = &prompt.source.as_ref().unwrap().place else {
            unreachable!()
        };
        let objects = Objects::from([
            (version.definition.clone(), Object::Json(definition)),
            (source_of(text), Object::Json(text.to_string())),
        ]);
        change(lock.approval_mut(ApprovalKind::Prompt, "up", name), version);
        self.store.replace(&before.digest, &lock, &objects).unwrap();
        let source = upstream_source(self.driver, &self.store);
        let empty = Refresh::new(Vec::new(), Naming::new(DEFAULT_SEPARATOR, 128));
        self.refresh = std::mem::replace(&mut self.refresh, empty).renewed(vec![source]);
        self.walk();
    }

    fn attribution(&mut self) -> Attribution {
        self.approvals += 1;
        let at = format!("2026-11-28T00:{:02}:00Z", self.approvals);
        Attribution { by: "alice".to_owned(), at, ..Attribution::default() }
    }

    fn content(&self, number: u32) -> Prompt {
        prompt(&format!("refund@{number}"), number, None, &self.versions[&number])
    }

    fn approve(&mut self, number: u32) {
        let content = self.content(number);
        let attribution = self.attribution();
        self.decide(&content.name.clone(), &content, |approval, version| {
            approval.approve(version, attribution);
        });
    }

    fn reject(&mut self, number: u32) {
        let content = self.content(number);
        let attribution = self.attribution();
        self.decide(&content.name.clone(), &content, |approval, version| {
            approval.reject(version, attribution);
        });
    }

    /// The source that a name serves, and whether the lock file approves it.
    fn served(&self, name: &str) -> Option<(Arc<str>, bool)> {
        let snapshot = self.refresh.snapshot();
        let public = format!("up{DEFAULT_SEPARATOR}{name}");
        let plain = snapshot.content.item(&format!("up{DEFAULT_SEPARATOR}refund"));
        let item = match name.strip_prefix("refund@") {
            Some(label) => plain.and_then(|plain| snapshot.content.version(plain, label))?,
            None => snapshot.content.item(&public)?,
        };
        let source = item.approval.approved.as_ref()?.version.source.clone()?;
        let lock = self.store.read().unwrap();
        let approvals = lock.of_upstream(ApprovalKind::Prompt, "up").unwrap();
        let mut approved = approvals.values().filter_map(|approval| approval.approved.as_ref());
        let is_approved = approved.any(|decided| decided.version.source.as_ref() == Some(&source));
        Some((source, is_approved))
    }

    fn serves(&self, name: &str, text: &str) -> bool {
        self.served(name) == Some((source_of(text), true))
    }

    fn rows(&self) -> Vec<ApprovalRow> {
        self.refresh.upstreams[0].effective.as_ref().unwrap().rows.to_vec()
    }

    fn state(&self, number: u32) -> ApprovalState {
        let name = format!("refund@{number}");
        self.rows().iter().find(|row| *row.raw_name == *name).unwrap().decision.state
    }
}

fn in_runtime(test: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    test();
}

#[test]
fn a_decision_on_a_version_counts_for_all_its_names() {
    in_runtime(|| {
        let mut world = World::new();
        assert!(
            ["refund", "refund@production", "refund@1"]
                .iter()
                .all(|name| world.serves(name, "one"))
        );
        let rows = world.rows();
        let names: Vec<_> = rows.iter().map(|row| &*row.raw_name).collect();
        assert_eq!(names, ["refund@1", "refund@2"], "one row for each version");
        let aliases: Vec<String> = ["refund", "refund@production"]
            .map(|name| format!("up{DEFAULT_SEPARATOR}{name}"))
            .into();
        let mut found = rows[0].aliases.clone();
        found.sort();
        assert_eq!(found, aliases);
        world.approve(2);
        world.labels.insert("production", 2);
        world.walk();
        assert!(
            ["refund", "refund@production", "refund@2"]
                .iter()
                .all(|name| world.serves(name, "two"))
        );
        world.labels.insert("production", 1);
        world.walk();
        assert!(world.serves("refund", "one"), "the way back is open");
    });
}

#[test]
fn a_name_that_moves_to_an_unapproved_version_serves_the_version_before() {
    in_runtime(|| {
        let mut world = World::new();
        world.approve(2);
        world.versions.insert(3, "three".to_owned());
        world.labels.insert("production", 3);
        world.walk();
        assert_eq!(world.state(3), ApprovalState::Pending);
        assert!(world.serves("refund", "one"), "not version 2, which was approved last");
        assert!(world.served("refund@3").is_none());
        world.reject(3);
        assert!(world.serves("refund", "one"));
        world.restart();
        assert!(world.serves("refund", "two"), "the version that was approved last");
        world.approve(3);
        assert!(world.serves("refund", "three") && world.serves("refund@3", "three"));
    });
}

#[test]
fn an_edited_version_serves_its_approved_text_at_all_its_names() {
    in_runtime(|| {
        let mut world = World::new();
        world.approve(2);
        world.versions.insert(1, "one, edited".to_owned());
        world.walk();
        assert_eq!(world.state(1), ApprovalState::Changed);
        assert!(world.serves("refund", "one") && world.serves("refund@1", "one"));
    });
}

#[test]
fn a_withdrawn_version_is_withdrawn_at_all_its_names() {
    in_runtime(|| {
        let mut world = World::new();
        world.approve(2);
        let content = world.content(1);
        let attribution = world.attribution();
        world.decide("refund@1", &content, |approval, _| drop(approval.withdraw(attribution)));
        assert!(["refund", "refund@1"].iter().all(|name| world.served(name).is_none()));
    });
}

#[test]
fn approvals_of_names_in_an_earlier_lock_file_count_for_the_version() {
    in_runtime(|| {
        let mut world = World::new();
        let attribution = world.attribution();
        world.labels.insert("production", 2);
        let named = prompt("refund", 2, Some("production"), "two");
        world.decide("refund", &named, |approval, version| approval.approve(version, attribution));
        assert_eq!(world.state(2), ApprovalState::Approved);
        assert!(world.serves("refund", "two") && world.serves("refund@2", "two"));
        // Withdrawn, it comes back under no name.
        world.approve(2);
        let content = world.content(2);
        let attribution = world.attribution();
        world.decide("refund@2", &content, |approval, _| drop(approval.withdraw(attribution)));
        world.versions.insert(3, "three".to_owned());
        world.labels.insert("production", 3);
        world.restart();
        assert!(world.serves("refund", "one"));
    });
}

#[derive(Clone, Debug)]
enum Step {
    Add(u32),
    Edit(u32, &'static str),
    Move(&'static str, u32),
    Approve(u32),
    Reject(u32),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 1..5_u32;
    prop_oneof![
        2 => number().prop_map(Step::Add),
        1 => (number(), select(&["a", "b"][..])).prop_map(|(number, text)| Step::Edit(number, text)),
        4 => (select(&["production", "beta"][..]), number())
            .prop_map(|(label, number)| Step::Move(label, number)),
        3 => number().prop_map(Step::Approve),
        1 => number().prop_map(Step::Reject),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_move_takes_a_prompt_from_its_callers_and_no_unapproved_text_is_served(
        steps in prop::collection::vec(step(), 1..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Add(number) => {
                    world.versions.entry(number).or_insert_with(|| format!("text {number}"));
                }
                Step::Edit(number, text) => {
                    let known = world.versions.get_mut(&number);
                    known.into_iter().for_each(|known| *known = format!("{number} {text}"));
                }
                Step::Move(label, number) if world.versions.contains_key(&number) => {
                    world.labels.insert(label, number);
                }
                Step::Approve(number) if world.versions.contains_key(&number) => world.approve(number),
                // The rejection of an approved version would withdraw it.
                Step::Reject(number)
                    if world.versions.contains_key(&number)
                        && matches!(world.state(number), ApprovalState::Pending | ApprovalState::Changed) =>
                {
                    world.reject(number);
                }
                Step::Restart => world.restart(),
                _ => continue,
            }
            world.walk();
            prop_assert!(world.served("refund").is_some(), "no step withdraws the prompt");
            for name in ["refund", "refund@production", "refund@beta", "refund@1", "refund@2"] {
                prop_assert!(world.served(name).is_none_or(|(_, is_approved)| is_approved), "{name}");
            }
        }
    }
}
