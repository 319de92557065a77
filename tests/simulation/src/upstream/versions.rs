//! A prompt of a library with versions and labels, which its author adds, edits, breaks and moves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use fastrand::Rng;

use super::author::broken_file;
use super::{Plan, Prompt, Upstream};
use crate::machine::trace;

/// The prompt that has versions.
pub const VERSIONED: &str = "open-versioned";

/// The labels that move; the plain name is served by the first.
pub const LABELS: [&str; 2] = ["production", "candidate"];

/// The highest number of a version.
pub const MAX_VERSION: u32 = 8;

/// The texts that a version can have: edits come back to earlier texts.
const TEXTS: u64 = 4;

/// A file of labels that is not valid.
const BROKEN_LABELS: &[u8] = b"[open-versioned\n";

/// The versions and labels in the folder of a library.
pub(super) struct Versions {
    files: BTreeMap<u32, VersionFile>,
    labels: BTreeMap<&'static str, u32>,
    are_labels_valid: bool,
    /// The versions that the plain name has stood for.
    offered: BTreeSet<u32>,
}

/// The last valid text of a version, and whether the file has it.
struct VersionFile {
    text: u64,
    is_valid: bool,
}

/// What an author has changed.
enum Changed {
    File(u32),
    Labels,
}

impl Versions {
    pub(super) fn new() -> Self {
        let file = |number| (number, VersionFile { text: 0, is_valid: true });
        let labels = BTreeMap::from(LABELS.map(|label| (label, 1)));
        let offered = BTreeSet::from([1]);
        let files = [1, 2].map(file).into();
        Self { files, labels, are_labels_valid: true, offered }
    }

    fn change(&mut self, rng: &mut Rng) -> Changed {
        let known: Vec<u32> = self.files.keys().copied().collect();
        let number = known[rng.usize(..known.len())];
        match rng.u8(..20) {
            0..4 => {
                let number = MAX_VERSION.min(known.len() as u32 + 1);
                self.files.entry(number).or_insert(VersionFile { text: 0, is_valid: true });
                Changed::File(number)
            }
            4..7 => {
                let text = rng.u64(..TEXTS);
                self.files.insert(number, VersionFile { text, is_valid: true });
                Changed::File(number)
            }
            7..10 => {
                self.files.entry(number).and_modify(|file| file.is_valid = false);
                Changed::File(number)
            }
            10..12 => {
                self.files.entry(number).and_modify(|file| file.is_valid = true);
                Changed::File(number)
            }
            12 => {
                self.are_labels_valid = false;
                Changed::Labels
            }
            drawn => {
                self.labels.insert(LABELS[usize::from(drawn > 17)], number);
                self.are_labels_valid = true;
                self.offered.insert(self.labels[LABELS[0]]);
                Changed::Labels
            }
        }
    }

    fn labels_file(&self) -> Vec<u8> {
        if !self.are_labels_valid {
            return BROKEN_LABELS.to_vec();
        }
        let mut toml = format!("[{VERSIONED}]\n");
        for (label, number) in &self.labels {
            let _ = writeln!(toml, "{label} = {number}");
        }
        toml.into_bytes()
    }
}

impl Upstream {
    /// Adds, edits, breaks or repairs a version, or moves a label.
    pub fn change_versions(&self, rng: &mut Rng) {
        let changed = self.lock().versions.as_mut().map(|versions| versions.change(rng));
        match changed {
            Some(Changed::File(number)) => self.write_version(number, rng),
            Some(Changed::Labels) => self.write_labels(),
            None => {}
        }
    }

    /// Makes the files of all versions and the labels valid.
    pub fn restore_versions(&self) {
        let numbers: Vec<u32> = {
            let mut state = self.lock();
            let Some(versions) = &mut state.versions else { return };
            versions.are_labels_valid = true;
            versions.files.values_mut().for_each(|file| file.is_valid = true);
            versions.files.keys().copied().collect()
        };
        // Valid files are written without numbers.
        numbers.into_iter().for_each(|number| self.write_version(number, &mut Rng::with_seed(0)));
        self.write_labels();
    }

    /// The version that the plain name stands for, as an approval names it; `None` while a mistake
    /// of the author may keep an earlier version.
    pub fn offered_version(&self) -> Option<Prompt> {
        let state = self.lock();
        let versions = state.versions.as_ref().filter(|versions| versions.are_labels_valid)?;
        let number = versions.labels[LABELS[0]];
        let file = versions.files.get(&number).filter(|file| file.is_valid)?;
        Some(self.plan().version(number, file.text))
    }

    /// Whether the plain name has stood for a version, by the name of its approval.
    pub fn has_offered_version(&self, name: &str) -> bool {
        let state = self.lock();
        let offered = state.versions.iter().flat_map(|versions| &versions.offered);
        offered.into_iter().any(|number| version_name(*number) == name)
    }

    fn write_version(&self, number: u32, rng: &mut Rng) {
        let Some(disk) = self.0.disk.get() else { return };
        let (text, is_valid) = {
            let state = self.lock();
            let Some(file) = state.versions.as_ref().and_then(|own| own.files.get(&number)) else {
                return;
            };
            (file.text, file.is_valid)
        };
        let Prompt { description, .. } = self.plan().version(number, text);
        let valid = self.file_of(&Prompt { name: VERSIONED.to_owned(), description });
        let bytes = match is_valid {
            true => valid.into_bytes(),
            false => broken_file(rng.u8(..4), VERSIONED, &valid, rng),
        };
        let state = if is_valid { "valid" } else { "broken" };
        trace::note(&self.plan().id, &format!("version {number} is text {text}, {state}"));
        let folder = self.plan().folder().join(VERSIONED).join("versions");
        disk.create_folder(&folder);
        disk.write(&folder.join(format!("{number}.md")), &bytes);
    }

    fn write_labels(&self) {
        let Some(disk) = self.0.disk.get() else { return };
        let Some(bytes) = self.lock().versions.as_ref().map(Versions::labels_file) else { return };
        trace::note(&self.plan().id, &String::from_utf8_lossy(&bytes).replace('\n', " "));
        disk.write(&self.plan().folder().join("labels.toml"), &bytes);
    }
}

impl Plan {
    /// Whether such an upstream can have a prompt with versions, whose texts are approved.
    pub fn can_have_versions(&self) -> bool {
        self.transport == super::Transport::Library && self.needs_approval
    }

    fn version(&self, number: u32, text: u64) -> Prompt {
        let name = version_name(number);
        let description = format!("{name} of {} in version {text}", self.id);
        Prompt { name, description }
    }
}

/// The name of a version, which is that of its approval.
pub fn version_name(number: u32) -> String {
    format!("{VERSIONED}@{number}")
}

/// Whether a raw name is that of the prompt with versions, or of a version or label of it.
pub fn is_versioned(name: &str) -> bool {
    let rest = name.strip_prefix(VERSIONED);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
}
