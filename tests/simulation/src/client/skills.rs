//! The doors to the skills of the gateway. Whatever comes through one of them is checked: its
//! caller may use the skill, and the bytes are those of an entry that was offered, and approved
//! where that is needed.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Client, Outcome};
use crate::plan::{CallerPlan, Rules};
use crate::skills::{self, FILES, NAMES, SKILL_FILE, front_matter, is_skill, name_of};
use crate::upstream::{Transport, Upstream};
use crate::world::World;

/// A way to a skill or its files. Another one is an arm of [`Visitor::enter`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Door {
    Entry,
    File,
    Folder,
    /// The prompt that stands for the skill.
    Prompt,
    FindTool,
    ReadTool,
}

pub const DOORS: [Door; 6] =
    [Door::Entry, Door::File, Door::Folder, Door::Prompt, Door::FindTool, Door::ReadTool];

impl Door {
    /// Whether clients of before 2026-07-28 have it.
    fn is_legacy(self) -> bool {
        matches!(self, Self::Prompt | Self::FindTool | Self::ReadTool)
    }
}

/// The entries that a client has listed last.
#[derive(Default)]
pub(super) struct ListedSkills {
    replica: Option<usize>,
    entries: Vec<Value>,
}

impl ListedSkills {
    /// The file with this public URI, as it was listed.
    fn file(&self, uri: &str) -> Option<&Value> {
        let mut files = self.entries.iter().flat_map(skills::resources);
        files.find(|file| file["uri"] == uri)
    }
}

/// A client at the doors.
pub struct Visitor<'a>(pub &'a mut Client);

impl Visitor<'_> {
    /// Lists the skills, and tries some of the doors.
    pub async fn visit(&mut self) {
        self.list().await;
        for _ in 0..3 {
            let rng = &mut self.0.rng;
            let upstream = format!("u{}", rng.u8(..4));
            let choice = (rng.choice(DOORS), rng.choice(NAMES), rng.choice(FILES));
            let (Some(door), Some(name), Some(file)) = choice else { return };
            self.enter(door, &upstream, name, file).await;
        }
    }

    /// Lists all skills, page by page. Returns their public URIs; `None` where a page fails, or the
    /// client knows no skills.
    pub async fn list(&mut self) -> Option<Vec<String>> {
        if !self.0.is_modern() {
            return None;
        }
        let (mut entries, mut cursor) = (Vec::new(), None);
        let sent = Instant::now();
        loop {
            let params = cursor.map_or(json!({}), |cursor: String| json!({"cursor": cursor}));
            let Outcome::Result(result) = self.0.ask("skills/list", params).await else {
                return None;
            };
            entries.extend(result["skills"].as_array().cloned().unwrap_or_default());
            cursor = result["nextCursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        let replica = self.0.replica();
        entries.iter().for_each(|entry| self.check("skills/list", sent).entry(entry));
        let uris = entries.iter().filter_map(|entry| entry["uri"].as_str().map(str::to_owned));
        let uris = uris.collect();
        self.0.skills = ListedSkills { replica, entries };
        Some(uris)
    }

    /// Asks for a skill or a file of it, and checks what comes. Returns whether it was given.
    pub async fn enter(&mut self, door: Door, upstream: &str, name: &str, file: &str) -> bool {
        if !self.0.is_modern() && !door.is_legacy() {
            return false;
        }
        let folder = format!("skill://{upstream}/{name}");
        let path = folder.trim_start_matches("skill://");
        let (method, params) = match door {
            Door::Entry => ("skills/get", json!({"uri": format!("{folder}/{SKILL_FILE}")})),
            Door::File => ("resources/read", json!({"uri": format!("{folder}/{file}")})),
            Door::Folder => ("resources/directory/read", json!({"uri": folder})),
            Door::Prompt => ("prompts/get", json!({"name": format!("{upstream}__{name}")})),
            Door::FindTool => (
                "tools/call",
                json!({"name": "find_skill", "arguments": {"query": name, "limit": 20}}),
            ),
            Door::ReadTool => (
                "tools/call",
                json!({"name": "read_skill", "arguments": {"name": path, "file": file}}),
            ),
        };
        let sent = Instant::now();
        let Outcome::Result(result) = self.0.ask(method, params).await else { return false };
        let check = self.check(method, sent);
        if result["isError"] == true {
            check.refusal(&result);
            return false;
        }
        let uri = |file: &str| format!("{folder}/{file}");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match door {
            Door::Entry => check.entry(&result["skill"]),
            Door::File => {
                let content = &result["contents"][0];
                check.is_equal(&content["uri"], &uri(file));
                check.file(&uri(file), &text(&content["text"]));
            }
            Door::Folder => check.folder(&folder, &result),
            Door::Prompt => {
                let instructions = text(&result["messages"][0]["content"]["text"]);
                check.file(&uri(SKILL_FILE), &(front_matter(name) + &instructions));
            }
            Door::FindTool => {
                let found = result["structuredContent"]["skills"].as_array();
                for found in found.into_iter().flatten() {
                    check.access(&format!("skill://{}", text(&found["name"])));
                }
            }
            Door::ReadTool => check.file(&uri(file), &text(&result["content"][0]["text"])),
        }
        true
    }

    fn check(&self, method: &'static str, sent: Instant) -> Check<'_> {
        let Client { world, caller, skills, .. } = &*self.0;
        // Another replica may have an older list.
        let listed = Some(skills).filter(|skills| skills.replica == self.0.replica());
        Check { world, caller, listed, method, sent }
    }
}

/// Checks the skill prompts of a list.
pub(super) fn check_prompts(client: &Client, prompts: &[Value], sent: Instant) {
    let check = Check {
        world: &client.world,
        caller: &client.caller,
        listed: None,
        method: "prompts/list",
        sent,
    };
    for name in prompts.iter().filter_map(|prompt| prompt["name"].as_str()) {
        check.access(&format!("skill://{}", name.replacen("__", "/", 1)));
    }
}

/// Whether an element of a list of prompts stands for a skill.
pub(super) fn stands_for_skill(prompt: &Value) -> bool {
    let name = prompt["name"].as_str().unwrap_or_default();
    name.split_once("__").is_some_and(|(_, name)| is_skill(name))
}

/// The check of what a caller has received.
struct Check<'a> {
    world: &'a World,
    caller: &'a CallerPlan,
    /// What the same replica has listed before.
    listed: Option<&'a ListedSkills>,
    method: &'static str,
    sent: Instant,
}

impl Check<'_> {
    fn violation(&self, what: &str) {
        let Self { world, caller, method, .. } = self;
        world.violation(format!("{} got {what} by {method}", caller.id));
    }

    fn is_equal(&self, found: &Value, expected: &str) {
        if found != expected {
            self.violation(&format!("{found} instead of {expected}"));
        }
    }

    /// The rules that may have held.
    fn rules(&self) -> Vec<Rules> {
        self.world.rules_at(self.sent, Instant::now())
    }

    /// The caller may use the skill of a public URI, of which it has received something. Returns
    /// the upstream, and the URI there.
    fn access(&self, public: &str) -> Option<(&Upstream, String)> {
        let parsed = skills::parse(public).and_then(|(id, uri)| {
            let mut upstreams = self.world.upstreams().iter();
            Some((upstreams.find(|upstream| upstream.plan().id == id)?, uri))
        });
        let may_use = parsed.as_ref().is_some_and(|(upstream, uri)| {
            let (id, now) = (&upstream.plan().id, Instant::now());
            self.world.may_use(self.caller, id, name_of(uri), self.sent, now)
        });
        if !may_use {
            self.violation(&format!("{public}, which it may not use,"));
        }
        parsed
    }

    /// An entry is one that was offered, and approved where that is needed.
    fn entry(&self, entry: &Value) {
        let public = entry["uri"].as_str().unwrap_or_default();
        let Some((upstream, uri)) = self.access(public) else { return };
        let id = &upstream.plan().id;
        let mut own = entry.clone();
        own["uri"] = uri.clone().into();
        for file in own["resources"].as_array_mut().into_iter().flatten() {
            let uri = skills::parse(file["uri"].as_str().unwrap_or_default());
            file["uri"] = uri.filter(|(of, _)| of == id).map_or(Value::Null, |(_, uri)| uri.into());
        }
        let is_known = if upstream.plan().needs_approval {
            let is_approved = |rules: &Rules| rules.approved_skill(id, name_of(&uri)) == Some(&own);
            self.rules().iter().any(is_approved)
        } else if upstream.plan().transport == Transport::Library {
            // Its files may have changed while they were read.
            let is_promised = |file| is_promised(upstream, file, None);
            skills::resources(&own).iter().all(is_promised)
        } else {
            upstream.with_skills(|skills| skills.has_offered(&own)).unwrap_or_default()
        };
        if !is_known {
            self.violation(&format!(
                "the entry {entry}, which {id} has never had or was not approved,"
            ));
        }
    }

    /// A file has exactly the bytes of an entry: of an approved one, or of one that is not older
    /// than what was listed before.
    fn file(&self, public: &str, text: &str) {
        let Some((upstream, uri)) = self.access(public) else { return };
        let id = &upstream.plan().id;
        let file = skills::resource(&uri, text);
        let is_known = if upstream.plan().needs_approval {
            let is_approved = |rules: &Rules| {
                let entry = rules.approved_skill(id, name_of(&uri));
                entry.is_some_and(|entry| skills::resources(entry).contains(&file))
            };
            self.rules().iter().any(is_approved)
        } else {
            let listed = self.listed.and_then(|listed| listed.file(public)).cloned();
            let listed = listed.map(|mut listed| {
                listed["uri"] = uri.into();
                listed
            });
            is_promised(upstream, &file, listed.as_ref())
        };
        if !is_known {
            self.violation(&format!("{text:?} for {public}, which no entry has,"));
        }
    }

    /// A folder has children of its own.
    fn folder(&self, folder: &str, result: &Value) {
        self.access(folder);
        for child in result["resources"].as_array().into_iter().flatten() {
            let uri = child["uri"].as_str().unwrap_or_default();
            let path = uri.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
            if !path.is_some_and(|path| ["SKILL.md", "a.md", "b"].contains(&path)) {
                self.violation(&format!("the child {uri} of {folder}"));
            }
        }
    }

    /// A refusal has no text of a file in it.
    fn refusal(&self, result: &Value) {
        if result.to_string().contains(" keeps ") {
            self.violation(&format!("a text with the refusal {result}"));
        }
    }
}

fn is_promised(upstream: &Upstream, file: &Value, known: Option<&Value>) -> bool {
    upstream.with_skills(|skills| skills.has_promised(file, known)).unwrap_or_default()
}
