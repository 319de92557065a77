//! Versions of library prompts: files such as `refund/versions/3.md`. A label chooses the version
//! of the prompt `refund`; versions are also `refund@3`, and with a label `refund@LABEL`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::files::PromptFile;
use super::labels::{PromptLabels, Served};
use super::place::Remark;
use super::reader::LibraryReader;
use super::render::Compiled;
use super::{LibraryLabels, LibraryPrompt, LibrarySnapshot, document};
use base::seal;
use config::labels::{LABELS_FILE, LabelFile, MAX_VERSION};
use domain::fault::UpstreamFaultKind as Kind;
use domain::name::{VERSION_MARK, version_name};
use domain::prompts::prompt::{Prompt, PromptSource, SourcePlace};
use domain::prompts::prompt_version::PromptVersion;

/// The name of the folder of a prompt's versions, in the folder with the prompt's name.
const VERSIONS: &str = "versions";

/// The versions and labels of a library, for the people who move labels.
#[derive(Clone, Debug, Default)]
pub struct LibraryVersions {
    /// The versions by the names of their prompts.
    pub prompts: BTreeMap<String, VersionsOfPrompt>,
    /// The labels that are in use.
    pub file: LabelFile,
    /// The mistakes in the labels.
    pub problems: Vec<String>,
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

/// A version with its source.
struct ReadVersion {
    compiled: Arc<Compiled>,
    path: PathBuf,
    source: Arc<PromptSource>,
}

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
        labels: &LibraryLabels,
        most: usize,
    ) -> Result<(), Kind> {
        let folder = reader.folder().to_path_buf();
        let (file, mut problems) = labels.read(&folder, !files.is_empty());
        let mut prompts = BTreeMap::new();
        for (name, files) in files {
            let read = self.read_versions(reader, &name, files);
            if read.is_empty() {
                continue;
            }
            let numbers: BTreeSet<u32> = read.keys().copied().collect();
            let chosen = labels.choose(&name, &numbers, file.as_ref());
            problems.extend(chosen.problems.iter().cloned());
            self.push_versions(&name, &read, &chosen);
            self.check_count(most)?;
            let PromptLabels { labels, served, .. } = chosen;
            let served = served.map(|served| served.number);
            prompts.insert(name, VersionsOfPrompt { numbers, labels, served });
        }
        let file = file.unwrap_or_else(|| labels.last_file());
        let unknown = file.prompts.keys().filter(|name| !prompts.contains_key(*name));
        problems.extend(unknown.map(|name| {
            format!("{LABELS_FILE}: [{name}] has no versions: there is no file {name}/{VERSIONS}/1.md that is valid")
        }));
        let place = |problem: &String| folder.join(problem).display().to_string();
        self.listed.malformed.extend(problems.iter().map(|problem| place(problem).into()));
        self.versions = Arc::new(LibraryVersions { prompts, file, problems });
        Ok(())
    }

    /// Reads the versions of one prompt. Invalid files are left out with a reason, as is a file of
    /// the prompt without a version.
    fn read_versions(
        &mut self,
        reader: &mut LibraryReader<'_>,
        name: &str,
        files: Vec<PromptFile>,
    ) -> BTreeMap<u32, ReadVersion> {
        let mut read: BTreeMap<u32, ReadVersion> = BTreeMap::new();
        let is_twice = files.iter().any(|file| file.path.parent() != files[0].path.parent());
        for file in &files {
            let version = if is_twice {
                let why =
                    format!("the versions of {name:?} are in two folders; none of them is served");
                Err(why.into())
            } else {
                read_version(reader, name, file)
            };
            match version {
                Ok(Some((number, version))) => drop(read.insert(number, version)),
                Ok(None) => {}
                Err(reason) => self.listed.malformed.push(reason.on(&file.path).into()),
            }
        }
        if !read.is_empty()
            && let Some(plain) = self.leave_out(name)
        {
            let why = format!(
                "the prompt {name:?} has versions in {name}/{VERSIONS}: make this file one of them"
            );
            self.listed.malformed.push(Remark::from(why).on(&plain.path).into());
        }
        read
    }

    /// Adds the versions of one prompt, and the prompt itself.
    fn push_versions(
        &mut self,
        name: &str,
        read: &BTreeMap<u32, ReadVersion>,
        chosen: &PromptLabels,
    ) {
        let of: Arc<str> = name.into();
        let mut push = |raw_name: String, number: u32, label: Option<&str>| {
            let Some(version) = read.get(&number) else { return };
            let number: Arc<str> = number.to_string().into();
            let mark =
                PromptVersion { of: of.clone(), version: number, label: label.map(Arc::from) };
            if let Err(reason) = self.push_version(raw_name, version, mark) {
                self.listed.malformed.push(Remark::from(reason).on(&version.path).into());
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
        version: &ReadVersion,
        mark: PromptVersion,
    ) -> Result<(), String> {
        let ReadVersion { compiled, path, source } = version;
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
        let compiled = compiled.clone();
        let path = path.clone();
        let source = source.clone();
        self.prompts.insert(raw_name, LibraryPrompt { compiled, path, source });
        Ok(())
    }
}

/// Reads the file of a version; `None` if it is not a prompt.
fn read_version(
    reader: &mut LibraryReader<'_>,
    name: &str,
    file: &PromptFile,
) -> Result<Option<(u32, ReadVersion)>, Remark> {
    let Some((compiled, object)) = reader.read(&file.resolved)? else { return Ok(None) };
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
    let digest = seal::sha256_text(object.as_bytes()).into();
    let place = SourcePlace::File { folder: reader.folder().into(), path: file.resolved.clone() };
    let source = Arc::new(PromptSource { digest, place });
    Ok(Some((number, ReadVersion { compiled: compiled.into(), path: file.path.clone(), source })))
}
