//! The available parts of a version: its definition, its source and its texts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::diff::{ChangedPart, write_diff};
use super::examined::Examined;
use super::probe::ProbedText;
use config::lock::LockFile;
use domain::approval::{DigestText, NO_ARGUMENTS, Version};

/// A version of a prompt, in canonical JSON.
#[derive(Clone, Debug, Default)]
pub struct VersionParts {
    pub definition: Option<VersionPart>,
    /// The source of a library prompt: an object with its file, and the files that it embeds.
    pub source: Option<VersionPart>,
    /// The texts by arguments in canonical form.
    pub texts: BTreeMap<Arc<str>, VersionPart>,
    /// The files of a skill by paths: JSON strings, which state whether a file is not text.
    pub files: BTreeMap<Arc<str>, VersionPart>,
}

/// One part of a version.
#[derive(Clone, Debug)]
pub struct VersionPart {
    /// `None` if the part is unavailable.
    pub digest: Option<DigestText>,
    /// The canonical JSON, or why the part is unavailable.
    pub text: Result<String, String>,
}

impl VersionPart {
    fn missing(why: String) -> Self {
        Self { digest: None, text: Err(why) }
    }
}

impl VersionParts {
    /// Reads the parts of a version in the lock file. Blocks.
    pub(super) fn read(store: &LockFile, version: &Version) -> Self {
        let part = |digest: &DigestText| {
            let text = store.object(digest);
            let text = text.map_err(|error| error.to_string());
            VersionPart { digest: Some(digest.clone()), text }
        };
        Self {
            definition: Some(part(&version.definition)),
            source: version.source.as_ref().map(part),
            texts: version.texts.iter().map(|(key, digest)| (key.clone(), part(digest))).collect(),
            files: version.files.iter().map(|(key, digest)| (key.clone(), part(digest))).collect(),
        }
    }
}

impl Examined {
    /// The parts of the offered version; empty if the upstream does not offer the prompt.
    pub fn offered_parts(&self) -> VersionParts {
        let Some(offered) = &self.offered else {
            return VersionParts::default();
        };
        let part = |digest: &DigestText| {
            let text = offered.objects.get(digest).map(|object| object.json().into_owned());
            let text = text.ok_or_else(|| "it was not fetched".to_owned());
            VersionPart { digest: Some(digest.clone()), text }
        };
        let text = |(key, probed): (&Arc<str>, &ProbedText)| {
            let part = match probed {
                ProbedText::Stable { digest, .. } => part(digest),
                ProbedText::Failed(why) => VersionPart::missing(format!("cannot be had: {why}")),
                ProbedText::Unstable => VersionPart::missing("unstable".to_owned()),
            };
            (key.clone(), part)
        };
        let file = |(path, digest): (&Arc<str>, &DigestText)| {
            let unread = offered.unread.iter().find(|(own, _)| own == path);
            let part = unread.map_or_else(
                || part(digest),
                |(_, why)| VersionPart::missing(format!("cannot be had: {why}")),
            );
            (path.clone(), part)
        };
        VersionParts {
            definition: Some(part(&offered.version.definition)),
            source: offered.version.source.as_ref().map(part),
            texts: offered.texts.iter().map(text).collect(),
            files: offered.version.files.iter().map(file).collect(),
        }
    }
}

impl VersionParts {
    /// A version with only the source of a library prompt.
    pub(crate) fn of_source(source: Result<String, String>) -> Self {
        Self { source: Some(VersionPart { digest: None, text: source }), ..Self::default() }
    }

    /// Returns the difference to a later version as a unified diff; empty without a difference.
    /// `name` is the public name of the prompt.
    pub fn diff(&self, later: &Self, name: &str) -> String {
        let mut out = String::new();
        let mut unknown = Vec::new();
        let mut add = |what: &str, old: Option<&VersionPart>, new: Option<&VersionPart>| {
            let what = format!("{name} ({what})");
            if let Some(VersionPart { digest: None, text: Err(why) }) = new {
                return unknown.push(format!("{what}: {why}\n"));
            }
            let digest = |part: Option<&VersionPart>| part.and_then(|part| part.digest.clone());
            if digest(old) == digest(new) {
                return;
            }
            let [old, new] = [old, new].map(text);
            write_diff(&ChangedPart { what, approved: &old, offered: &new }, &mut out);
        };
        add("source", self.source.as_ref(), later.source.as_ref());
        let arguments: BTreeSet<_> = self.texts.keys().chain(later.texts.keys()).collect();
        for key in arguments {
            let what = match &**key {
                NO_ARGUMENTS => "text".to_owned(),
                arguments => format!("text with {arguments}"),
            };
            add(&what, self.texts.get(key), later.texts.get(key));
        }
        let paths: BTreeSet<_> = self.files.keys().chain(later.files.keys()).collect();
        for path in paths {
            add(&format!("file {path}"), self.files.get(path), later.files.get(path));
        }
        // The digests in a definition follow from its files.
        add("definition", self.definition.as_ref(), later.definition.as_ref());
        out + &unknown.concat()
    }
}

/// The text of a part; empty if there is no such part.
fn text(part: Option<&VersionPart>) -> String {
    match part.map(|part| &part.text) {
        None => String::new(),
        Some(Ok(text)) => text.clone(),
        Some(Err(why)) => serde_json::json!(format!("({why})")).to_string(),
    }
}
