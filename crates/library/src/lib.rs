//! Libraries: folders of Markdown files that the gateway serves as prompts, and folders that it
//! serves as skills. Prompts of a prompt store are served in the same way.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod budget;
mod embed;
mod files;
pub mod git;
mod history;
mod last;
mod labels;
mod place;
pub mod prompt_list;
mod reader;
mod render;
mod scan;
mod skills;
mod source;
mod stored;
mod template;
mod versions;
mod yaml_mistake;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::seal;
use config::Settings;
use config::labels::LABELS_FILE;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::Json;
use domain::json::document::Document;
use domain::prompts::prompt::{Prompt, PromptSource, SourcePlace};
use domain::prompts::prompt_version::PromptVersion;
use files::{PromptFile, PromptFiles, Volume};
use place::Remark;
use reader::LibraryReader;
use render::{Compiled, RenderError};
use skills::SkillFiles;
pub use skills::file_contents;
use tracing::warn;

use git::GitTree;
pub use history::FileChange;
pub use labels::LibraryLabels;
pub use last::LastSnapshot;
use prompt_list::{MalformedPrompt, PromptList};
pub use source::MessageRole;
pub use stored::{StoredMessage, StoredPrompt, TemplatePiece};
pub use versions::{LibraryVersions, VersionsOfPrompt};

/// Snapshot of all prompts of a library or of a prompt store.
#[derive(Debug)]
pub struct LibrarySnapshot {
    /// The name of the transport in the configuration.
    pub transport: &'static str,
    prompts: BTreeMap<String, LibraryPrompt>,
    /// The prompt list of the library, with one reason for each invalid prompt file. Reasons and
    /// remarks begin with the path of the file, and the line and column in it.
    pub listed: PromptList,
    /// The commit of the files, for a git repository.
    pub commit: Option<Arc<str>>,
    /// Longest result, in bytes (`max_message`).
    max_message: usize,
    skills: SkillFiles,
    /// Bytes that may still be rendered in advance (`max_walk`); `None` without such rendering.
    renderable: Option<usize>,
    /// The versions and labels of prompts.
    pub versions: Arc<LibraryVersions>,
}

#[derive(Debug)]
struct LibraryPrompt {
    compiled: Arc<Compiled>,
    /// Path of the file in the library; empty for a prompt of a prompt store.
    path: PathBuf,
    source: Arc<PromptSource>,
}

/// The transport of a folder.
const FOLDER: &str = "library";

/// The limit of repeated readings of a library whose volume was swapped during a reading.
const VOLUME_SWAPS: usize = 3;

impl LibrarySnapshot {
    /// Reads every `.md` file with front matter in `folder` and its subfolders, and every folder
    /// with a `SKILL.md`, at most `max_walk` bytes including embedded files. Dot-files are skipped;
    /// symbolic links are followed if their targets are inside `folder`. An invalid prompt file is
    /// omitted with a reason, and the other files are still served.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the folder or a subfolder cannot be read,
    /// [`Kind::PaginationLimit`] when it contains more than `max_prompts` prompts.
    pub fn load(
        folder: &Path,
        library: &str,
        settings: &Settings,
        labels: &LibraryLabels,
    ) -> Result<Self, Kind> {
        let mut volume = Volume::of(folder);
        for _ in 0..VOLUME_SWAPS {
            let loaded = Self::load_once(folder, library, settings, labels);
            let before = std::mem::replace(&mut volume, Volume::of(folder));
            if before == volume {
                return loaded;
            }
        }
        Self::load_once(folder, library, settings, labels)
    }

    fn load_once(
        folder: &Path,
        library: &str,
        settings: &Settings,
        labels: &LibraryLabels,
    ) -> Result<Self, Kind> {
        let mut files = PromptFiles::find(folder).map_err(|error| {
            // The path is for the operator, not for clients.
            warn!(library, folder = %folder.display(), %error, "the library cannot be read");
            Kind::Unavailable("the library's folder cannot be read".to_owned())
        })?;
        let malformed = files.refused.into_iter().map(Into::into).collect();
        let listed = PromptList { pages: 1, malformed, ..PromptList::default() };
        let mut snapshot = Self::empty(FOLDER, listed, settings);
        let mut contested = BTreeMap::new();
        let Settings { max_message, max_walk, .. } = *settings;
        let mut reader = LibraryReader::new(folder, library, max_message, max_walk);
        let listed = &mut snapshot.listed;
        snapshot.skills = SkillFiles::take(folder, &mut files.prompts, &mut reader, listed);
        let versions = versions::take(folder, &mut files.prompts);
        for file in &files.prompts {
            if let Err(reason) = snapshot.add(&mut reader, file, &mut contested) {
                snapshot.listed.malformed.push(reason.on(&file.path).into());
            }
            snapshot.check_count(settings.max_prompts)?;
        }
        for (name, other) in contested {
            let Some(prompt) = snapshot.leave_out(&name) else { continue };
            snapshot.listed.malformed.push(claimed_twice(&name, &other).on(&prompt.path).into());
        }
        snapshot.add_versions(&mut reader, versions, labels, settings.max_prompts)?;
        // Several prompt names may refer to one file.
        let mut seen = HashSet::new();
        let each = snapshot.prompts.values().filter(|prompt| seen.insert(&prompt.path));
        for LibraryPrompt { compiled, path, .. } in each {
            let remarks = compiled.remarks.iter().map(|remark| remark.on(path));
            snapshot.listed.remarks.extend(remarks);
        }
        snapshot.listed.remarks.append(&mut reader.remarks);
        let ignored = files.ignored.iter().take(MAX_IGNORED);
        let ignored = ignored.filter(|file| has_front_matter(folder, file));
        snapshot.listed.remarks.extend(ignored.map(|file| {
            Remark::from("is not read: the name of a prompt file ends in .md").on(&file.path)
        }));
        Ok(snapshot)
    }

    /// Reads one prompt file in `folder`, and the files that it embeds, but no other file. Blocks.
    ///
    /// # Errors
    /// The file is not a prompt; the reason begins with its path.
    pub fn of_file(folder: &Path, path: &Path, settings: &Settings) -> Result<Self, String> {
        let mut snapshot = Self::empty(FOLDER, PromptList::default(), settings);
        let Settings { max_message, max_walk, .. } = *settings;
        let mut reader = LibraryReader::new(folder, FOLDER, max_message, max_walk);
        let at_path = |why: Remark| why.on(path);
        let resolved = files::resolve_inside(folder, path).map_err(|why| at_path(why.into()))?;
        let file = PromptFile { path: path.into(), resolved };
        snapshot.add(&mut reader, &file, &mut BTreeMap::new()).map_err(at_path)?;
        if snapshot.prompts.is_empty() {
            return Err(at_path("is no prompt: its first line is not `---`".into()));
        }
        Ok(snapshot)
    }

    fn empty(transport: &'static str, listed: PromptList, settings: &Settings) -> Self {
        let max_message = settings.max_message;
        let prompts = BTreeMap::new();
        let skills = SkillFiles::default();
        let renderable = settings.prompts_as_skills.then_some(settings.max_walk);
        let commit = None;
        let versions = Arc::default();
        Self { transport, prompts, listed, commit, max_message, skills, renderable, versions }
    }

    fn check_count(&self, most: usize) -> Result<(), Kind> {
        if self.listed.prompts.len() <= most {
            return Ok(());
        }
        Err(Kind::PaginationLimit(format!("more than max_prompts = {most}")))
    }

    /// Creates the snapshot of a prompt store from its prompts, whose names must differ. `listed`
    /// has the malformed prompts, and gets the valid prompts. Blocks.
    pub fn of_store(
        transport: &'static str,
        prompts: impl Iterator<Item = StoredPrompt>,
        listed: PromptList,
        settings: &Settings,
    ) -> Self {
        let mut snapshot = Self::empty(transport, listed, settings);
        for stored in prompts {
            let name = stored.name.clone();
            let object = stored.object();
            let mark = stored.mark();
            let compiled = Compiled::stored(stored);
            match definition(&compiled) {
                Ok(mut prompt) => {
                    prompt.version = Some(mark.into());
                    let digest = seal::sha256_text(object.as_bytes()).into();
                    let place = SourcePlace::Kept(object.into());
                    let source = PromptSource { digest, place };
                    snapshot.push(prompt, compiled, PathBuf::new(), source);
                }
                Err(reason) => snapshot.listed.malformed.push(MalformedPrompt { name, reason }),
            }
        }
        snapshot
    }

    /// Returns the snapshot of the files of a commit. Paths become paths in the repository.
    pub fn of_commit(mut self, tree: &GitTree) -> Self {
        let folder = format!("{}/", tree.folder.display());
        let in_repository = |reason: &mut String| *reason = reason.replace(&folder, &tree.path);
        let is_read =
            |reason: &&String| reason.contains(".md: ") || reason.starts_with(LABELS_FILE);
        let left_out = tree.left_out.iter().filter(is_read);
        let left_out = left_out.map(|reason| format!("{}{reason}", tree.path).into());
        let PromptList { malformed, remarks, .. } = &mut self.listed;
        malformed.iter_mut().for_each(|prompt| in_repository(&mut prompt.reason));
        malformed.extend(left_out);
        remarks.iter_mut().for_each(in_repository);
        (self.transport, self.commit) = ("git", Some(tree.commit.clone()));
        self
    }

    /// Whether a folder is watched for changes; prompt stores are not watched.
    pub fn is_watched(&self) -> bool {
        self.transport == FOLDER
    }

    /// Returns the place of a prompt's source.
    pub fn source(&self, name: &str) -> Option<SourcePlace> {
        Some(self.prompts.get(name)?.source.place.clone())
    }

    /// Returns the bytes that a get reads: the templates and the arguments.
    pub fn size_of_get(&self, name: &str, arguments: Option<&Document>) -> usize {
        let templates = self.prompts.get(name).map_or(0, |prompt| prompt.compiled.size);
        templates + arguments.map_or(0, |arguments| arguments.json().text().len())
    }

    /// Returns the result of `prompts/get`; `arguments` is an object of strings. `approved` is the
    /// digest of the only source that may be served; `None` for any.
    ///
    /// # Errors
    /// [`Kind::Error`] with -32602 for an unknown prompt, [`Kind::NotApproved`] for another source,
    /// [`Kind::TooLarge`] when the result exceeds `max_message`, [`Kind::TooCostly`] or
    /// [`Kind::Protocol`] when rendering takes too long or fails.
    pub fn get(
        &self,
        name: &str,
        arguments: Option<Json<'_>>,
        approved: Option<&str>,
    ) -> Result<Document, Kind> {
        let prompt = self.prompt(name)?;
        let offered = &prompt.source.digest;
        if let Some(approved) = approved.filter(|approved| **approved != **offered) {
            let approved = approved.into();
            let offered = offered.clone();
            return Err(Kind::NotApproved { approved, offered, are_arguments_approved: true });
        }
        let members = arguments.into_iter().flat_map(Json::members);
        let arguments = members
            .filter_map(|(k, v)| Some((k.as_str()?.into_owned(), v.as_str()?.into_owned())))
            .collect();
        let rendered = prompt.compiled.render(&arguments, self.max_message);
        document(rendered.map_err(|error| match error {
            RenderError::TooLarge => Kind::TooLarge { limit: self.max_message },
            RenderError::OutOfFuel => Kind::TooCostly,
            RenderError::Failed => Kind::Protocol(error.to_string()),
        })?)
    }

    /// Reads the current content of a skill file; see [`SkillFiles::read_file`].
    ///
    /// # Errors
    /// [`Kind::Error`] with -32602 for an unknown file, [`Kind::Unavailable`] for one that cannot
    /// be read.
    pub async fn read_file(&self, uri: &str) -> Result<Document, Kind> {
        self.skills.read_file(uri).await
    }

    /// Returns the result of `completion/complete`: the choices of an argument that start with
    /// `typed`.
    ///
    /// # Errors
    /// [`Kind::Error`] with -32602 for an unknown prompt.
    pub fn complete(&self, name: &str, argument: &str, typed: &str) -> Result<Document, Kind> {
        document(self.prompt(name)?.compiled.complete(argument, typed))
    }

    fn prompt(&self, name: &str) -> Result<&LibraryPrompt, Kind> {
        // The catalog may be older than this snapshot.
        let gone = || Kind::Error { code: -32602, message: "no such prompt".into(), data: None };
        self.prompts.get(name).ok_or_else(gone)
    }

    /// Removes a prompt whose name several files have: no file takes precedence.
    fn leave_out(&mut self, name: &str) -> Option<LibraryPrompt> {
        self.listed.prompts.retain(|listed| &*listed.name != name);
        self.prompts.remove(name)
    }

    /// Adds the prompt of a file. If an earlier file has the same name, the name goes to
    /// `contested`, with the path of this file.
    fn add(
        &mut self,
        reader: &mut LibraryReader<'_>,
        file: &PromptFile,
        contested: &mut BTreeMap<String, PathBuf>,
    ) -> Result<(), Remark> {
        let path = file.path.clone();
        let Some((compiled, object)) = reader.read(&file.resolved)? else {
            return Ok(());
        };
        versions::check_name(&compiled.name)?;
        let prompt = definition(&compiled)?;
        if let Some(other) = self.prompts.get(&compiled.name) {
            let why = claimed_twice(&compiled.name, &other.path);
            contested.insert(compiled.name, path);
            return Err(why);
        }
        let digest = seal::sha256_text(object.as_bytes()).into();
        let folder = reader.folder().into();
        let place = SourcePlace::File { folder, path: file.resolved.clone() };
        self.push(prompt, compiled, path, PromptSource { digest, place });
        Ok(())
    }

    /// Returns the result of a get without arguments, if it is to be rendered in advance.
    fn rendered(&mut self, prompt: &Prompt, compiled: &Compiled) -> Option<Arc<str>> {
        let renderable = self.renderable.as_mut()?;
        if prompt.is_version() || prompt.arguments.iter().any(|argument| argument.required) {
            return None;
        }
        let result = compiled.render(&BTreeMap::new(), self.max_message.min(*renderable)).ok()?;
        *renderable -= result.len();
        Some(result.into())
    }

    fn push(&mut self, mut prompt: Prompt, compiled: Compiled, path: PathBuf, of: PromptSource) {
        let source = Arc::new(of);
        prompt.source = Some(source.clone());
        prompt.result = self.rendered(&prompt, &compiled);
        self.listed.prompts.push(prompt);
        let name = compiled.name.clone();
        let compiled = Arc::new(compiled);
        self.prompts.insert(name, LibraryPrompt { compiled, path, source });
    }
}

/// Reads the definition of a compiled prompt.
fn definition(compiled: &Compiled) -> Result<Prompt, String> {
    let definition = document(compiled.definition.clone()).map_err(|e| e.to_string())?;
    let mut prompt = Prompt::read(definition.json()).map_err(|e| e.to_string())?;
    let mark = |version: &String| PromptVersion {
        of: prompt.name.as_str().into(),
        version: version.as_str().into(),
        label: None,
    };
    prompt.version = compiled.version.as_ref().map(|version| mark(version).into());
    Ok(prompt)
}

fn claimed_twice(name: &str, other: &Path) -> Remark {
    let other = other.display();
    format!("prompt {name:?} is in {other}, too; none of them is served").into()
}

/// Whether a file begins like a prompt; false for a large or unreadable file.
fn has_front_matter(folder: &Path, file: &PromptFile) -> bool {
    let text = files::read(folder, &file.resolved, IGNORED_LENGTH);
    text.is_ok_and(|text| text.starts_with(b"---"))
}

/// The limit of files that are read only to report that they are ignored.
const MAX_IGNORED: usize = 20;

/// Largest of these files, in bytes.
const IGNORED_LENGTH: usize = 1 << 20;

/// Reads the source of a library prompt as canonical JSON (RFC 8785): the text of the file, and the
/// content of the files that it embeds. Its SHA-256 hash is [`PromptSource::digest`]. Blocks.
///
/// # Errors
/// The file is no longer a valid prompt.
pub fn source_object(
    folder: &Path,
    library: &str,
    file: &Path,
    limit: usize,
) -> Result<String, String> {
    let read = LibraryReader::new(folder, library, limit, usize::MAX).read(file);
    // The reason follows the path, which the caller knows.
    let read = read.map_err(|why| why.to_string().trim_start_matches([':', ' ']).to_owned())?;
    read.map(|(_, object)| object).ok_or_else(|| "the file is no prompt any more".to_owned())
}

fn document(text: String) -> Result<Document, Kind> {
    Document::parse(text.into_bytes(), 64).map_err(|e| Kind::Protocol(e.to_string()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the lines without the path of the library.
    fn named(lines: &[String]) -> Vec<String> {
        let temporary = std::env::temp_dir();
        let bare = |line: &String| {
            let parts = line.split(temporary.to_str().unwrap());
            parts.map(|part| part.split_once("/in/").map_or(part, |(_, rest)| rest)).collect()
        };
        lines.iter().map(bare).collect()
    }

    fn malformed(snapshot: &LibrarySnapshot) -> Vec<String> {
        snapshot.listed.malformed.iter().map(|prompt| prompt.reason.clone()).collect()
    }

    fn load(files: &[(&str, &str)], settings: &Settings) -> Result<LibrarySnapshot, Kind> {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("in");
        for (name, text) in files {
            let path = library.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            // Latin-1: what is not ASCII is one byte, which is not UTF-8.
            let latin: Vec<u8> = text.chars().map(|c| c as u8).collect();
            fs::write(path, latin).unwrap();
        }
        LibrarySnapshot::load(&library, "lib", settings, &LibraryLabels::default())
    }

    #[test]
    fn good_files_are_served_and_bad_ones_are_named() {
        let files = [
            ("b.md", "---\nname: b\ndescription: two\n---\nB"),
            ("sub/a.md", "---\nname: a\n---\nA"),
            ("one.md", "---\nname: twin\n---\nB1"),
            ("twin.md", "---\nname: twin\n---\nB2"),
            ("triplet.md", "---\nname: twin\n---\nB3"),
            ("bad.md", "---\nname: [\n---\nx"),
            ("plain.md", "# no front matter"),
            (".hidden.md", "---\nname: h\n---\nx"),
            ("note.txt", "---\nname: t\n---\nx"),
            ("latin.md", "---\nname: l\n---\nx\ncaf\u{e9}"),
            ("old.markdown", "---\nname: o\n---\nx"),
            ("README.MD", "# no front matter"),
            ("icon.md", "---\nname: i\nicons: [{src: x, sizes: 48x48}]\n---\nx"),
        ];
        let snapshot = load(&files, &Settings::default()).unwrap();
        let names: Vec<_> = snapshot.listed.prompts.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        let reasons = named(&malformed(&snapshot));
        assert_eq!(reasons.len(), 6, "{reasons:?}");
        assert!(reasons[0].starts_with("bad.md:2:7: front matter"), "{reasons:?}");
        assert!(reasons[1].starts_with("icon.md: `icons`"));
        assert_eq!(reasons[2], "latin.md:5:4: is not UTF-8; save the file in this encoding");
        let twin = |file, other| {
            format!("{file}: prompt \"twin\" is in {other}, too; none of them is served")
        };
        let expected = [("triplet.md", "one.md"), ("twin.md", "one.md"), ("one.md", "twin.md")];
        let expected = expected.map(|(file, other)| twin(file, other));
        assert_eq!(reasons[3..], expected, "none takes the name from the others");
        assert_eq!(
            named(&snapshot.listed.remarks),
            [
                "sub/a.md: has no description: lists show its name only",
                "old.markdown: is not read: the name of a prompt file ends in .md"
            ]
        );
        let result = snapshot.get("b", None, None).unwrap();
        assert!(result.json().get("description").unwrap().is("two"));
        assert!(matches!(snapshot.get("x", None, None), Err(Kind::Error { code: -32602, .. })));
    }

    #[test]
    fn files_that_many_prompts_embed_are_kept_once_and_all_are_bounded_together() {
        let names: Vec<String> = (0..60).map(|n| format!("{n}.md")).collect();
        let texts: Vec<String> = (0..60)
            .map(|n| format!("---\nname: p{n}\n---\n{{{{ embed(\"big.txt\") }}}}"))
            .collect();
        let big = "b".repeat(100_000);
        let mut files: Vec<(&str, &str)> =
            names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str())).collect();
        files.push(("big.txt", &big));
        let settings = Settings { max_walk: 110_000, ..Settings::default() };
        let snapshot = load(&files, &settings).unwrap();
        assert_eq!((snapshot.prompts.len(), snapshot.listed.malformed.len()), (60, 0));
        assert!(snapshot.get("p59", None, None).is_ok());
        let twice = "---\nname: q\n---\n{{ embed(\"other.txt\") }}";
        files.extend([("other.txt", &*big), ("q.md", twice)]);
        let snapshot = load(&files, &settings).unwrap();
        let reasons = named(&malformed(&snapshot));
        assert_eq!((snapshot.prompts.len(), reasons.len()), (60, 1), "the others stay");
        assert!(
            reasons[0].starts_with("q.md:4:1: ") && reasons[0].contains("max_walk"),
            "{reasons:?}"
        );
        let both = "---\nname: r\n---\n{{ embed(\"big.txt\") }}{{ embed(\"big.txt\") }}";
        let settings = Settings { max_message: 150_000, ..Settings::default() };
        let snapshot = load(&[("big.txt", &big), ("r.md", both)], &settings).unwrap();
        assert!(malformed(&snapshot)[0].contains("embeds more than max_message"));
    }

    #[test]
    fn a_library_is_bounded() {
        let files = [
            ("a.md", "---\nname: a\n---\nA"),
            ("b.md", "---\nname: b\n---\nB"),
            ("z.md", "What prompts embed is no prompt."),
        ];
        let settings = |max_prompts| Settings { max_prompts, ..Settings::default() };
        assert!(load(&files, &settings(2)).is_ok());
        assert!(matches!(load(&files, &settings(1)), Err(Kind::PaginationLimit(_))));
        assert!(matches!(
            LibrarySnapshot::load(
                Path::new("/nowhere"),
                "lib",
                &settings(1),
                &LibraryLabels::default()
            ),
            Err(Kind::Unavailable(_))
        ));
    }
}
