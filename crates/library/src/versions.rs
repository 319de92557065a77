//! Versions of library prompts: files such as `refund/versions/3.md`. A label chooses the version
//! of the prompt `refund`; versions are also `refund@3`, and with a label `refund@LABEL`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::earlier::{EarlierTexts, ReadFile};
use super::files::PromptFile;
use super::labels::{PromptLabels, Served};
use super::place::Remark;
use super::prompt_list::MalformedPrompt;
use super::reader::{LibraryPrompt, LibraryReader};
use super::{LibraryLabels, LibrarySnapshot, document};
use config::labels::{LABELS_FILE, LabelFile, MAX_VERSION};
use config::rollouts::{ROLLOUTS_FILE, StartedRollouts};
use domain::calls::rollout::Rollout;
use domain::fault::UpstreamFaultKind as Kind;
use domain::name::{VERSION_MARK, version_name};
use domain::prompts::prompt::Prompt;
use domain::prompts::prompt_version::PromptVersion;
use domain::text::similar::is_typing_error;

/// The name of the folder of a prompt's versions, in the folder with the prompt's name.
const VERSIONS: &str = "versions";

/// Most tables of unknown prompts that are compared with the names of prompts.
const MAX_MISNAMED: usize = 20;

/// The versions and labels of a library, for the people who move labels.
#[derive(Clone, Debug, Default)]
pub struct LibraryVersions {
    /// The versions by the names of their prompts.
    pub prompts: BTreeMap<String, VersionsOfPrompt>,
    /// The labels that are in use.
    pub file: LabelFile,
    /// The rollouts that people have started.
    pub rollouts: StartedRollouts,
}

/// The versions of one prompt.
#[derive(Clone, Debug, Default)]
pub struct VersionsOfPrompt {
    pub numbers: BTreeSet<u32>,
    /// The served labels, each with its version.
    pub labels: BTreeMap<String, u32>,
    /// The version under the plain name; `None` without a version.
    pub served: Option<u32>,
}

/// The files of versions of a library, by the names of their prompts.
pub(super) type VersionFiles = BTreeMap<String, Vec<PromptFile>>;

/// Moves the files of versions out of `files`.
pub(super) fn take(folder: &Path, files: &mut Vec<PromptFile>) -> VersionFiles {
    let mut versions = VersionFiles::new();
    files.retain(|file| {
        let Some(name) = prompt_of(folder, &file.path) else { return true };
        versions.entry(name).or_default().push(file.clone());
        false
    });
    versions
}

/// Returns the name of the prompt of a version file: the name of the folder above `versions`.
fn prompt_of(folder: &Path, file: &Path) -> Option<String> {
    let of_prompt = file.parent().filter(|parent| parent.ends_with(VERSIONS))?.parent()?;
    let is_below = of_prompt != folder && of_prompt.starts_with(folder);
    is_below.then(|| of_prompt.file_name()?.to_str().map(str::to_owned)).flatten()
}

/// Returns the number of a version from the name of its file.
fn number_of(file: &Path) -> Result<u32, Remark> {
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let number = stem.parse().ok().filter(|number: &u32| number.to_string() == stem);
    let rule = || {
        format!(
            "the name of a version is its number, from 1 to {MAX_VERSION}: rename the file, such as to 3.md"
        )
    };
    number.filter(|number| (1..=MAX_VERSION).contains(number)).ok_or_else(|| rule().into())
}

/// Refuses a prompt whose name looks like that of a version.
pub(super) fn check_name(name: &str) -> Result<(), Remark> {
    if !name.contains(VERSION_MARK) {
        return Ok(());
    }
    let why = format!(
        "the name {name:?} has a {VERSION_MARK}, which stands before a version or label: a version is a file such as \
         NAME/{VERSIONS}/3.md, a label is in {LABELS_FILE}"
    );
    Err(why.into())
}

impl LibrarySnapshot {
    /// Adds all prompts that have versions.
    pub(super) fn add_versions(
        &mut self,
        reader: &mut LibraryReader<'_>,
        files: VersionFiles,
        earlier: &EarlierTexts<'_>,
        labels: &LibraryLabels,
        most: usize,
    ) -> Result<(), Kind> {
        let folder = reader.folder();
        let place = |problem: &String| folder.join(problem).display().to_string();
        let (read_file, problem) = labels.read(folder, !files.is_empty());
        self.listed.malformed.extend(problem.iter().map(|problem| place(problem).into()));
        let file = read_file.clone().unwrap_or_else(|| labels.last_file());
        let misnamed = misnamed(&files, &file);
        let (rollouts, problem) = labels.read_rollouts(folder);
        let mut prompts = BTreeMap::new();
        for (name, files) in files {
            let read = self.read_versions(reader, &name, files, earlier);
            if read.is_empty() {
                continue;
            }
            let numbers: BTreeSet<u32> = read.keys().copied().collect();
            let misnamed = misnamed.get(&name).copied();
            let chosen = labels.choose(&name, &numbers, read_file.as_ref(), misnamed);
            let is_served = chosen.served.is_some();
            self.listed.malformed.extend(chosen.problems.iter().map(|problem| MalformedPrompt {
                name: name.clone(),
                reason: place(problem),
                is_served,
            }));
            self.push_versions(folder, &name, &read, &chosen, rollouts.get(&name));
            self.check_count(most)?;
            let PromptLabels { labels, served, .. } = chosen;
            let served = served.map(|served| served.number);
            prompts.insert(name, VersionsOfPrompt { numbers, labels, served });
        }
        let is_misnamed = |name: &&String| {
            misnamed.iter().any(|(meant, table)| table == name && prompts.contains_key(meant))
        };
        let is_unknown = |name: &&String| !prompts.contains_key(*name) && !is_misnamed(name);
        let unknown = file.prompts.keys().filter(is_unknown).map(|name| {
            format!("{LABELS_FILE}: [{name}] has no versions: there is no file {name}/{VERSIONS}/1.md that is valid")
        });
        self.listed.malformed.extend(unknown.map(|problem| place(&problem).into()));
        let unknown = rollouts.keys().filter(|name| !prompts.contains_key(*name));
        let unknown = unknown.map(|name| format!("{ROLLOUTS_FILE}: [{name}] has no versions"));
        let problems = problem.into_iter().chain(unknown);
        self.listed.malformed.extend(problems.map(|problem| place(&problem).into()));
        self.versions = Arc::new(LibraryVersions { prompts, file, rollouts });
        Ok(())
    }

    /// Reads the versions of one prompt. Invalid files are left out with a reason, as is a file of
    /// the prompt without a version.
    fn read_versions(
        &mut self,
        reader: &mut LibraryReader<'_>,
        name: &str,
        files: Vec<PromptFile>,
        earlier: &EarlierTexts<'_>,
    ) -> BTreeMap<u32, LibraryPrompt> {
        let of: Arc<str> = name.into();
        let mut read = BTreeMap::new();
        let is_twice = files.iter().any(|file| file.path.parent() != files[0].path.parent());
        let mut served = files.iter().filter(|file| earlier.has(reader.below(&file.path)));
        let home = served.next().and_then(|file| file.path.parent());
        for file in &files {
            if is_twice && file.path.parent() != home {
                let then = home.map_or("none of them is served".to_owned(), |home| {
                    format!("those in {} are served", home.display())
                });
                let why = format!("the versions of {name:?} are in two folders; {then}");
                self.listed.malformed.push(Remark::from(why).on(&file.path).into());
                continue;
            }
            let ReadFile { text, mistake } =
                earlier.read(reader, file, |text| check_version(text, name, file));
            if let Some(why) = mistake {
                let number = number_of(&file.path).map(|number| number.to_string());
                let own_name = number.map(|number| version_name(name, &number));
                let reason = why.on(&file.path);
                self.leave_out_file(reason, own_name.unwrap_or_default(), text.is_some());
            }
            read.extend(
                text.map(|(text, number)| (number, LibraryPrompt { of: Some(of.clone()), ..text })),
            );
        }
        if !read.is_empty()
            && let Some(plain) = self.leave_out(name)
        {
            let why = format!(
                "the prompt {name:?} has versions in {name}/{VERSIONS}: make this file one of them"
            );
            let plain = reader.folder().join(plain.path);
            self.listed.malformed.push(Remark::from(why).on(&plain).into());
        }
        read
    }

    /// Adds the versions of one prompt, and the prompt itself.
    fn push_versions(
        &mut self,
        folder: &Path,
        name: &str,
        read: &BTreeMap<u32, LibraryPrompt>,
        chosen: &PromptLabels,
        rollout: Option<&Arc<Rollout>>,
    ) {
        let of: Arc<str> = name.into();
        let mut push = |raw_name: String, number: u32, label: Option<&str>| {
            let Some(version) = read.get(&number) else { return };
            let number = number.to_string().into();
            let mut mark = PromptVersion::new(of.clone(), number, label.map(Arc::from));
            mark.rollout = rollout.filter(|_| raw_name == name).cloned();
            if let Err(reason) = self.push_version(raw_name, version, mark) {
                let path = folder.join(&version.path);
                self.listed.malformed.push(Remark::from(reason).on(&path).into());
            }
        };
        for number in read.keys() {
            push(version_name(name, &number.to_string()), *number, None);
        }
        for (label, number) in &chosen.labels {
            push(version_name(name, label), *number, Some(label));
        }
        if let Some(Served { number, label }) = &chosen.served {
            push(name.to_owned(), *number, label.as_deref());
        }
    }

    /// Adds one version under a name.
    fn push_version(
        &mut self,
        raw_name: String,
        version: &LibraryPrompt,
        mark: PromptVersion,
    ) -> Result<(), String> {
        let LibraryPrompt { compiled, source, .. } = version;
        let mut definition: Value =
            serde_json::from_str(&compiled.definition).map_err(|error| error.to_string())?;
        definition["name"] = raw_name.as_str().into();
        definition["_meta"]["version"] = (*mark.version).into();
        if let Some(label) = &mark.label {
            definition["_meta"]["label"] = (**label).into();
        }
        let definition = document(definition.to_string()).map_err(|error| error.to_string())?;
        let mut prompt = Prompt::read(definition.json()).map_err(|error| error.to_string())?;
        prompt.source = Some(source.clone());
        prompt.version = Some(mark.into());
        prompt.result = self.rendered(&prompt, compiled);
        self.listed.prompts.push(prompt);
        self.prompts.insert(raw_name, version.clone());
        Ok(())
    }
}

/// Returns the number of the version in a file; refuses a file that says otherwise.
fn check_version(text: &LibraryPrompt, name: &str, file: &PromptFile) -> Result<u32, Remark> {
    let compiled = &text.compiled;
    let number = number_of(&file.path)?;
    check_name(name)?;
    if compiled.name != name {
        return Err(format!(
            "the name is {:?}, but the file is a version of {name:?}, as its folder says: correct `name`, or move the file",
            compiled.name
        )
        .into());
    }
    if let Some(said) = compiled.version.as_ref().filter(|said| **said != number.to_string()) {
        return Err(
            format!("`version` is {said}, but the file is version {number}: remove it").into()
        );
    }
    Ok(number)
}

/// Returns the tables of the labels file that name no prompt, by the prompts without labels that
/// may be meant.
fn misnamed<'a>(files: &VersionFiles, file: &'a LabelFile) -> BTreeMap<String, &'a str> {
    let unlabelled = || files.keys().filter(|name| !file.prompts.contains_key(*name));
    let unknown = file.prompts.keys().filter(|name| !files.contains_key(*name));
    let meant = |table: &'a String| {
        let is_near = |name: &&String| {
            name.len().abs_diff(table.len()) < MAX_MISNAMED && is_typing_error(name, table)
        };
        Some((unlabelled().find(is_near)?.clone(), table.as_str()))
    };
    unknown.take(MAX_MISNAMED).filter_map(meant).collect()
}
