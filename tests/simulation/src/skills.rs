//! The skills of a scripted upstream: their entries and files, and what is wrong with these.

use std::collections::BTreeMap;
use std::path::Path;

use base::seal::sha256_text;
use fastrand::Rng;
use serde_json::{Value, json};

use crate::disk::SimDisk;

/// The file that makes a folder a skill.
pub const SKILL_FILE: &str = "SKILL.md";

/// The names that skills of an upstream can have; rules name them as they name prompts.
pub const NAMES: [&str; 4] = ["open-skill-0", "open-skill-1", "secret-skill-0", "secret-skill-1"];

/// The files that a skill can have.
pub const FILES: [&str; 3] = [SKILL_FILE, "a.md", "b/c.md"];

/// Whether the raw name of a prompt is that of a skill.
pub fn is_skill(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Returns a URI of an upstream as the gateway serves it.
pub fn public(upstream: &str, uri: &str) -> String {
    uri.replacen("skill://", &format!("skill://{upstream}/"), 1)
}

/// Returns the upstream of a public URI, and the URI as the upstream has it.
pub fn parse(public: &str) -> Option<(&str, String)> {
    let (upstream, path) = public.strip_prefix("skill://")?.split_once('/')?;
    Some((upstream, format!("skill://{path}")))
}

/// Returns the name of the skill that a URI of an upstream belongs to.
pub fn name_of(uri: &str) -> &str {
    let path = uri.strip_prefix("skill://").unwrap_or_default();
    path.split('/').next().unwrap_or_default()
}

/// Returns the lines of a `SKILL.md` before its instructions.
pub fn front_matter(name: &str) -> String {
    format!("---\nname: {name}\ndescription: how to {name}\n---\n")
}

/// The part of an entry that says what one of its files is: `uri`, `digest` and `size`.
pub fn resource(uri: &str, text: &str) -> Value {
    json!({"uri": uri, "digest": sha256_text(text.as_bytes()), "size": text.len()})
}

/// The files that an entry promises.
pub fn resources(entry: &Value) -> &[Value] {
    entry["resources"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A skill in one version.
#[derive(Clone, Debug)]
struct Skill {
    name: &'static str,
    version: u64,
    lie: Option<Lie>,
}

/// The difference between the entry of a skill and its files.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// The entry has the digest of another text.
    Digest,
    /// The entry has another size.
    Size,
    /// A file has another text of the same size.
    Text,
    /// A file has more text.
    Length,
    /// A file of the entry does not exist.
    Gone,
    /// A file comes under the URI of another one.
    Uri,
    /// A file comes together with another one.
    Two,
}

const LIES: [Lie; 7] =
    [Lie::Digest, Lie::Size, Lie::Text, Lie::Length, Lie::Gone, Lie::Uri, Lie::Two];

/// The file that a lie is about.
const LIED_ABOUT: &str = "a.md";

impl Skill {
    fn uri(&self, file: &str) -> String {
        format!("skill://{}/{file}", self.name)
    }

    /// Every second version has all files.
    fn files(&self) -> &'static [&'static str] {
        if self.version.is_multiple_of(2) { &FILES } else { &FILES[..2] }
    }

    /// The text of a file. That of all but `SKILL.md` stays for two versions.
    fn text(&self, upstream: &str, file: &str) -> String {
        let Self { name, version, .. } = self;
        match file {
            SKILL_FILE => {
                let front = front_matter(name);
                format!("{front}{upstream} keeps {name} in version {version}")
            }
            file => format!("{upstream} keeps {file} of {name} in version {}", version / 2),
        }
    }

    fn entry(&self, upstream: &str) -> Value {
        let resource = |file: &&str| {
            let text = self.text(upstream, file);
            let mut resource = resource(&self.uri(file), &text);
            match self.lie.filter(|_| *file == LIED_ABOUT) {
                Some(Lie::Digest) => {
                    resource["digest"] = sha256_text(text.to_uppercase().as_bytes()).into();
                }
                Some(Lie::Size) => resource["size"] = (text.len() + 1).into(),
                _ => {}
            }
            resource
        };
        json!({
            "uri": self.uri(SKILL_FILE),
            "frontmatter": {"name": self.name, "description": format!("how to {}", self.name)},
            "resources": self.files().iter().map(resource).collect::<Vec<_>>(),
        })
    }

    /// The `contents` of one of its files; `None` if it has no such file.
    fn contents(&self, upstream: &str, uri: &str) -> Option<Value> {
        let file = *self.files().iter().find(|file| self.uri(file) == uri)?;
        let text = self.text(upstream, file);
        let content = |uri: &str, text: &str| json!({"uri": uri, "text": text});
        Some(match self.lie.filter(|_| file == LIED_ABOUT) {
            Some(Lie::Text) => json!([content(uri, &text.to_uppercase())]),
            Some(Lie::Length) => json!([content(uri, &format!("{text} and more"))]),
            Some(Lie::Uri) => json!([content(&self.uri(SKILL_FILE), &text)]),
            Some(Lie::Two) => json!([content(uri, &text), content(uri, &text)]),
            Some(Lie::Gone) => return None,
            Some(Lie::Digest | Lie::Size) | None => json!([content(uri, &text)]),
        })
    }
}

/// All skills of an upstream.
pub struct Shelf {
    upstream: String,
    rng: Rng,
    skills: BTreeMap<&'static str, Skill>,
    version: u64,
    /// The entries that were offered, in the order of time.
    offered: Vec<Value>,
}

impl Shelf {
    pub fn new(upstream: &str, mut rng: Rng) -> Self {
        let names = NAMES.iter().filter(|_| rng.u8(..) < 180);
        let skills = names.map(|name| (*name, Skill { name, version: 0, lie: None })).collect();
        Self { upstream: upstream.to_owned(), rng, skills, version: 0, offered: Vec::new() }
    }

    /// Changes, adds or removes a skill, which may lie from now on. Returns its name.
    pub fn change(&mut self, may_lie: bool) -> &'static str {
        self.version += 1;
        let name = *self.rng.choice(&NAMES).expect("one of them");
        if self.rng.u8(..) < 50 && self.skills.remove(name).is_some() {
            return name;
        }
        let lie = self.rng.choice(LIES).filter(|_| may_lie && self.rng.u8(..) < 100);
        self.skills.insert(name, Skill { name, version: self.version, lie });
        name
    }

    /// Tells the truth from now on.
    pub fn stop_lying(&mut self) {
        self.skills.values_mut().for_each(|skill| skill.lie = None);
    }

    /// The entries of all skills.
    pub fn entries(&self) -> Vec<Value> {
        self.skills.values().map(|skill| skill.entry(&self.upstream)).collect()
    }

    /// A page of entries, and the name that the next one begins behind.
    pub fn page(&mut self, after: Option<&str>, size: usize) -> (Vec<Value>, Option<String>) {
        let rest =
            self.skills.values().filter(|skill| after.is_none_or(|after| skill.name > after));
        let (mut page, mut last) = (Vec::new(), None);
        for skill in rest {
            if page.len() == size {
                self.offered.extend(page.iter().cloned());
                return (page, last);
            }
            page.push(skill.entry(&self.upstream));
            last = Some(skill.name.to_owned());
        }
        self.offered.extend(page.iter().cloned());
        (page, None)
    }

    /// The `contents` of a file; `None` for an unknown one.
    pub fn contents(&self, uri: &str) -> Option<Value> {
        self.skills.get(name_of(uri))?.contents(&self.upstream, uri)
    }

    /// Writes the files of a skill into a library, or removes them.
    pub fn write(&mut self, name: &str, library: &Path, disk: &SimDisk) {
        disk.remove(&library.join(name));
        let Some(skill) = self.skills.get(name) else { return };
        for file in skill.files() {
            let path = library.join(name).join(file);
            disk.create_folder(path.parent().expect("it is in a folder"));
            disk.write(&path, skill.text(&self.upstream, file).as_bytes());
        }
        self.offered.push(skill.entry(&self.upstream));
    }

    /// Whether an entry was offered.
    pub fn has_offered(&self, entry: &Value) -> bool {
        self.offered.contains(entry)
    }

    /// Whether an entry that was offered has this file, and no older one than `known` has, which is
    /// the same file of another entry.
    pub fn has_promised(&self, resource: &Value, known: Option<&Value>) -> bool {
        let has = |wanted: &Value| {
            let wanted = wanted.clone();
            move |entry: &Value| resources(entry).contains(&wanted)
        };
        let since = known.and_then(|known| self.offered.iter().position(has(known)));
        self.offered[since.unwrap_or_default()..].iter().any(has(resource))
    }
}
