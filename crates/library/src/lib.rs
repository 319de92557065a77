//! Libraries: folders of Markdown files that the gateway serves as prompts, and folders that it
//! serves as skills. Prompts of a prompt store are served in the same way.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod budget;
mod earlier;
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

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::platform::disk;
use base::seal;
use config::Settings;
use config::labels::LABELS_FILE;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::Json;
use domain::json::document::Document;
use domain::prompts::prompt::{Prompt, PromptSource, SourcePlace};
use domain::prompts::prompt_version::PromptVersion;
use earlier::{EarlierTexts, ReadFile, Rival};
use files::{PromptFile, PromptFiles, Volume};
use place::Remark;
use reader::{LibraryPrompt, LibraryReader};
use render::{Compiled, RenderError};
use skills::SkillFiles;
pub use skills::file_contents;
use tracing::warn;

use git::GitTree;
pub use history::FileChange;
pub use labels::LibraryLabels;
pub use last::{Before, LastSnapshot};
use prompt_list::{EARLIER_SERVED, MalformedPrompt, PromptList};
pub use source::MessageRole;
pub use stored::{StoredMessage, StoredPrompt, TemplatePiece};
pub use versions::{LibraryVersions, VersionsOfPrompt};

/// Snapshot of all prompts of a library or of a prompt store.
#[derive(Debug)]
pub struct LibrarySnapshot {
    /// The name of the transport in the configuration.
    pub transport: &'static str,
    prompts: BTreeMap<String, LibraryPrompt>,
    /// Earlier texts by the names of their prompts, the newest first: an approval may be of them.
    superseded: BTreeMap<Arc<str>, Vec<LibraryPrompt>>,
    /// The prompt list of the library, with one reason for each invalid prompt file. Reasons and
    /// remarks begin with the path of the file, and the line and column in it.
    pub listed: PromptList,
    /// Longest result, in bytes (`max_message`).
    max_message: usize,
    skills: SkillFiles,
    /// Bytes that may still be rendered in advance (`max_walk`); `None` without such rendering.
    renderable: Option<usize>,
    /// The versions and labels of prompts.
    pub versions: Arc<LibraryVersions>,
}

/// Most earlier texts of a prompt: an approved text outlasts as many moves to unapproved versions.
const MAX_SUPERSEDED: usize = 32;

/// The transport of a folder.
const FOLDER: &str = "library";

/// The limit of repeated readings of a library whose volume was swapped during a reading.
const VOLUME_SWAPS: usize = 3;

impl LibrarySnapshot {
    /// Reads every `.md` file with front matter in `folder` and its subfolders, and every folder
    /// with a `SKILL.md`, at most `max_walk` bytes including embedded files. Dot-files are skipped;
    /// symbolic links are followed if their targets are inside `folder`. An invalid prompt file is
    /// omitted with a reason, as is a subfolder that cannot be read; the other files are served.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the folder cannot be read,
    /// [`Kind::PaginationLimit`] when it contains more than `max_prompts` prompts.
    pub fn load(
        folder: &Path,
        library: &str,
        settings: &Settings,
        labels: &LibraryLabels,
    ) -> Result<Self, Kind> {
        Self::load_after(folder, library, settings, labels, Before::default())
    }

    /// As [`Self::load`]; an invalid file stays served in its text of the snapshot before.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_after(
        folder: &Path,
        library: &str,
        settings: &Settings,
        labels: &LibraryLabels,
        before: Before<'_>,
    ) -> Result<Self, Kind> {
        let mut volume = Volume::of(folder);
        for _ in 0..VOLUME_SWAPS {
            let loaded = Self::load_once(folder, library, settings, labels, before);
            let before = std::mem::replace(&mut volume, Volume::of(folder));
            if before == volume {
                return loaded;
            }
        }
        Self::load_once(folder, library, settings, labels, before)
    }

    fn load_once(
        folder: &Path,
        library: &str,
        settings: &Settings,
        labels: &LibraryLabels,
        before: Before<'_>,
    ) -> Result<Self, Kind> {
        let mut files = PromptFiles::find(folder).map_err(|error| {
            // The path is for the operator, not for clients.
            warn!(library, folder = %folder.display(), %error, "the library cannot be read");
            Kind::Unavailable("the library's folder cannot be read".to_owned())
        })?;
        let unreadable = &files.unreadable;
        let reasons = unreadable.iter().map(|(path, why)| format!("{}: {why}", path.display()));
        let malformed = files.refused.into_iter().chain(reasons).map(Into::into).collect();
        let listed = PromptList { pages: 1, malformed, ..PromptList::default() };
        let mut snapshot = Self::empty(FOLDER, listed, settings);
        let Settings { max_message, max_walk, max_prompts, .. } = *settings;
        let left_out = before.left_out_prompts(folder, unreadable);
        let mut reader =
            LibraryReader::new(folder, library, max_message, max_walk).with_left_out(left_out);
        let listed = &mut snapshot.listed;
        snapshot.skills = SkillFiles::take(folder, &mut files.prompts, &mut reader, listed);
        files.prompts.extend(reader.left_out());
        let versions = versions::take(folder, &mut files.prompts);
        let earlier = EarlierTexts::of(before.snapshot.map(|snapshot| &snapshot.prompts));
        snapshot.add_files(&mut reader, &files.prompts, &earlier, max_prompts)?;
        snapshot.add_versions(&mut reader, versions, &earlier, labels, max_prompts)?;
        snapshot.keep_superseded(before.snapshot, reader.left());
        // Several prompt names may refer to one file.
        let mut seen = HashSet::new();
        let each = snapshot.prompts.values().filter(|prompt| seen.insert(&prompt.path));
        for LibraryPrompt { compiled, path, .. } in each {
            let remarks = compiled.remarks.iter().map(|remark| remark.on(&folder.join(path)));
            snapshot.listed.remarks.extend(remarks);
        }
        snapshot.listed.remarks.append(&mut reader.remarks);
        let ignored = files.ignored.iter().take(MAX_IGNORED);
        let ignored = ignored.filter(|file| has_front_matter(folder, file));
        snapshot.listed.remarks.extend(ignored.map(|file| {
            Remark::from("is not read: the name of a prompt file ends in .md").on(&file.path)
        }));
        let repeated = files.repeated.iter().take(MAX_IGNORED);
        let repeated = repeated
            .filter(|file| disk::is_folder(&file.resolved) || has_front_matter(folder, file));
        snapshot.listed.remarks.extend(repeated.map(|file| {
            Remark::from("is not read: the target of the link is in the library, too")
                .on(&file.path)
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
        let Some(text) = reader.prompt(&file).map_err(at_path)? else {
            return Err(at_path("is no prompt: its first line is not `---`".into()));
        };
        versions::check_name(&text.compiled.name).map_err(at_path)?;
        let prompt = definition(&text.compiled).map_err(|why| at_path(why.into()))?;
        snapshot.push(prompt, text);
        Ok(snapshot)
    }

    fn empty(transport: &'static str, listed: PromptList, settings: &Settings) -> Self {
        let max_message = settings.max_message;
        let renderable = settings.prompts_as_skills.then_some(settings.max_walk);
        Self {
            transport,
            prompts: BTreeMap::new(),
            superseded: BTreeMap::new(),
            listed,
            max_message,
            skills: SkillFiles::default(),
            renderable,
            versions: Arc::default(),
        }
    }

    fn check_count(&self, most: usize) -> Result<(), Kind> {
        if self.listed.prompts.len() <= most {
            return Ok(());
        }
        Err(Kind::PaginationLimit(format!("more than max_prompts = {most}")))
    }

    /// Creates the snapshot of a prompt store from its prompts, whose names must differ. `listed`
    /// has the malformed prompts, and gets the valid prompts. Texts of the snapshot `before` are
    /// kept for approvals. Blocks.
    pub fn of_store(
        transport: &'static str,
        prompts: impl Iterator<Item = StoredPrompt>,
        listed: PromptList,
        settings: &Settings,
        before: Option<&Self>,
    ) -> Self {
        let mut snapshot = Self::empty(transport, listed, settings);
        let mut left = settings.max_walk;
        for stored in prompts {
            let name = stored.name.clone();
            let object = stored.object();
            let mark = stored.mark();
            let compiled = Compiled::stored(stored);
            match definition(&compiled) {
                Ok(mut prompt) => {
                    let size = object.len();
                    let digest = seal::sha256_text(object.as_bytes()).into();
                    let place = SourcePlace::Kept(object.into());
                    let source = PromptSource { digest, place }.into();
                    let of = Some(mark.of.clone());
                    let content_name = mark.content_name();
                    prompt.version = Some(mark.into());
                    let compiled = compiled.into();
                    let path = PathBuf::new();
                    let text = LibraryPrompt { compiled, path, source, size, of };
                    // Not listed: approvals examine a version under its own name.
                    snapshot.prompts.entry(content_name).or_insert_with(|| text.clone());
                    snapshot.push(prompt, text);
                    left = left.saturating_sub(size);
                }
                Err(reason) => {
                    let is_served = false;
                    snapshot.listed.malformed.push(MalformedPrompt { name, reason, is_served });
                }
            }
        }
        snapshot.keep_superseded(before, left);
        snapshot
    }

    /// Returns the snapshot of the files of a commit. Paths become paths in the repository.
    pub fn of_commit(mut self, tree: &GitTree) -> Self {
        let folder = format!("{}/", tree.folder.display());
        let in_repository = |reason: &mut String| *reason = reason.replace(&folder, &tree.path);
        // The snapshot has the reasons for other files, from `Before::left_out`.
        let left_out = tree.left_out.iter().filter(|reason| reason.starts_with(LABELS_FILE));
        let left_out = left_out.map(|reason| format!("{}{reason}", tree.path).into());
        let PromptList { malformed, remarks, .. } = &mut self.listed;
        malformed.iter_mut().for_each(|prompt| in_repository(&mut prompt.reason));
        malformed.extend(left_out);
        remarks.iter_mut().for_each(in_repository);
        self.transport = "git";
        self.listed.commit = Some(tree.commit.clone());
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
    pub fn size_of_get(
        &self,
        name: &str,
        arguments: Option<&Document>,
        approved: Option<&str>,
    ) -> usize {
        let templates = self.text(name, approved).map_or(0, |prompt| prompt.compiled.size);
        templates + arguments.map_or(0, |arguments| arguments.json().text().len())
    }

    /// Returns the result of `prompts/get`; `arguments` is an object of strings. `approved` is the
    /// digest of the only source that may be served; `None` for any. A prompt that has versions
    /// serves that source even if its name stands for another version by now.
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
        let prompt = self.text(name, approved)?;
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

    /// Returns the text that a get of a prompt renders.
    fn text(&self, name: &str, approved: Option<&str>) -> Result<&LibraryPrompt, Kind> {
        let prompt = self.prompt(name)?;
        let offered = &prompt.source.digest;
        let Some(approved) = approved.filter(|approved| **approved != **offered) else {
            return Ok(prompt);
        };
        let is_approved = |text: &&LibraryPrompt| {
            text.of == prompt.of && text.of.is_some() && *text.source.digest == *approved
        };
        let of = prompt.of.as_deref().unwrap_or(name);
        let from_name = (Bound::Included(of), Bound::Unbounded);
        let versions = self.prompts.range::<str, _>(from_name);
        let mut versions = versions.take_while(|(name, _)| name.starts_with(of)).map(|(_, v)| v);
        let mut superseded = self.superseded.get(of).into_iter().flatten();
        let other = versions.find(is_approved).or_else(|| superseded.find(is_approved));
        other.ok_or_else(|| Kind::NotApproved {
            approved: approved.into(),
            offered: offered.clone(),
            are_arguments_approved: true,
        })
    }

    /// Keeps the last texts of prompts that have versions, in at most `left` bytes.
    fn keep_superseded(&mut self, before: Option<&Self>, mut left: usize) {
        let Some(before) = before else { return };
        let mut current = HashMap::<&str, HashSet<&str>>::new();
        for prompt in self.prompts.values() {
            let Some(of) = prompt.of.as_deref() else { continue };
            current.entry(of).or_default().insert(&prompt.source.digest);
        }
        for text in before.prompts.values().chain(before.superseded.values().flatten()) {
            let Some(of) = &text.of else { continue };
            let Some(served) = current.get_mut(&**of) else { continue };
            let kept = self.superseded.entry(of.clone()).or_default();
            let is_room = kept.len() < MAX_SUPERSEDED && text.size <= left;
            if is_room && served.insert(&text.source.digest) {
                left -= text.size;
                kept.push(text.clone());
            }
        }
    }

    /// Removes a prompt that has versions, too.
    fn leave_out(&mut self, name: &str) -> Option<LibraryPrompt> {
        self.listed.prompts.retain(|listed| &*listed.name != name);
        self.prompts.remove(name)
    }

    /// Adds the prompts of files. A file that is not valid keeps its earlier text; of several files
    /// with one name, the file that has served it keeps the name.
    fn add_files(
        &mut self,
        reader: &mut LibraryReader<'_>,
        files: &[PromptFile],
        earlier: &EarlierTexts<'_>,
        most: usize,
    ) -> Result<(), Kind> {
        let folder = reader.folder();
        let mut texts = Vec::new();
        for file in files {
            let ReadFile { text, mistake } = earlier.read(reader, file, |text| {
                versions::check_name(&text.compiled.name)?;
                Ok(definition(&text.compiled)?)
            });
            if let Some(why) = mistake {
                let kept = text.as_ref().map(|(text, _)| text.compiled.name.clone());
                let name = kept.unwrap_or_else(|| reader.name_of(file));
                self.leave_out_file(why.on(&file.path), name, text.is_some());
            }
            texts.extend(text);
        }
        let claims = earlier.claims(texts.iter().map(|(text, _)| text));
        let mut refused = Vec::new();
        for (text, prompt) in texts {
            match claims.rival(&text, earlier) {
                None => self.push(prompt, text),
                Some(rival) => refused.push((text, rival)),
            }
            self.check_count(most)?;
        }
        for (LibraryPrompt { compiled, path, .. }, rival) in refused {
            let before = earlier.text(&path, reader);
            let before = before.filter(|text| !self.prompts.contains_key(&text.compiled.name));
            let before = before.and_then(|text| Some((definition(&text.compiled).ok()?, text)));
            let why = rival_reason(&compiled.name, folder, &rival).on(&folder.join(path));
            match before {
                Some((prompt, text)) => {
                    self.leave_out_file(why, text.compiled.name.clone(), true);
                    self.push(prompt, text);
                }
                None => {
                    let name = compiled.name.clone();
                    let is_served = rival.is_served;
                    self.listed.malformed.push(MalformedPrompt { name, reason: why, is_served });
                }
            }
        }
        self.check_count(most)
    }

    /// Notes the mistake of a file, and whether its earlier text is served.
    fn leave_out_file(&mut self, mut reason: String, name: String, is_served: bool) {
        if is_served {
            reason += EARLIER_SERVED;
        }
        self.listed.malformed.push(MalformedPrompt { name, reason, is_served });
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

    fn push(&mut self, mut prompt: Prompt, text: LibraryPrompt) {
        prompt.source = Some(text.source.clone());
        prompt.result = self.rendered(&prompt, &text.compiled);
        let name = prompt.name.clone();
        self.listed.prompts.push(prompt);
        self.prompts.insert(name, text);
    }
}

/// Reads the definition of a compiled prompt.
fn definition(compiled: &Compiled) -> Result<Prompt, String> {
    let definition = document(compiled.definition.clone()).map_err(|e| e.to_string())?;
    let mut prompt = Prompt::read(definition.json()).map_err(|e| e.to_string())?;
    let mark = |version: &String| {
        PromptVersion::new(prompt.name.as_str().into(), version.as_str().into(), None)
    };
    prompt.version = compiled.version.as_ref().map(|version| mark(version).into());
    Ok(prompt)
}

fn rival_reason(name: &str, folder: &Path, rival: &Rival) -> Remark {
    let other = folder.join(&rival.path);
    let then = if rival.is_served {
        ", which is served; give this prompt another name"
    } else {
        "; none of them is served"
    };
    format!("prompt {name:?} is in {}, too{then}", other.display()).into()
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
        let names: Vec<_> = snapshot.listed.malformed.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["", "i", "l", "twin", "twin", "twin"]);
        let twin = |file, other| {
            format!("{file}: prompt \"twin\" is in {other}, too; none of them is served")
        };
        let expected = [("one.md", "triplet.md"), ("triplet.md", "one.md"), ("twin.md", "one.md")];
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

    /// A library that is read again and again.
    struct Folder {
        folder: tempfile::TempDir,
        settings: Settings,
        last: Option<LibrarySnapshot>,
    }

    impl Folder {
        fn new(files: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let settings = Settings { max_message: 10_000, ..Settings::default() };
            let mut new = Self { folder, settings, last: None };
            files.iter().for_each(|(name, text)| new.write(name, text));
            new.read(&[]);
            new
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.folder.path().join(name), text).unwrap();
        }

        fn read(&mut self, left_out: &[&str]) -> &LibrarySnapshot {
            let left_out: Vec<_> = left_out.iter().map(|reason| (*reason).to_owned()).collect();
            let before = Before { snapshot: self.last.as_ref(), left_out: &left_out };
            let labels = LibraryLabels::default();
            let folder = self.folder.path();
            let read = LibrarySnapshot::load_after(folder, "lib", &self.settings, &labels, before);
            self.last.insert(read.unwrap())
        }

        /// The names and texts of the prompts, and the mistakes.
        fn look(&mut self) -> (Vec<String>, Vec<String>) {
            let folder = format!("{}/", self.folder.path().display());
            let snapshot = self.read(&[]);
            let prompts = snapshot.listed.prompts.iter().map(|prompt| {
                let result = snapshot.get(&prompt.name, None, None).unwrap();
                let messages = result.json().get("messages").unwrap();
                let text = messages.elements().next().unwrap().get("content").unwrap();
                let text = text.get("text").unwrap().as_str().unwrap();
                format!("{}: {text}", prompt.name)
            });
            let reasons = malformed(snapshot).into_iter();
            (prompts.collect(), reasons.map(|reason| reason.replace(&folder, "")).collect())
        }
    }

    #[test]
    fn a_file_that_is_not_valid_any_more_stays_served_in_its_last_valid_text() {
        let valid = "---\nname: a\ndescription: d\n---\none";
        let mut folder = Folder::new(&[("a.md", valid), ("note.txt", "x")]);
        let long = "x".repeat(20_000);
        for (broken, said) in [
            ("---\nname: a\n---\n{{ cod }}", "a.md:4:4: "),
            ("---\nname: [\n---\nx", "a.md:2:7: "),
            ("---\nname: b\narguments: 7\n---\nx", "a.md:3:12: "),
            ("---\nname: a@1\n---\nx", "a.md: the name \"a@1\""),
            ("---\nname: a\nicons: [{src: x, sizes: 48x48}]\n---\nx", "a.md: `icons`"),
            ("---\nname: a\n---\n{{ embed('gone.txt') }}", "a.md:4:1: "),
            ("name: a\n", "a.md: has no front matter any more"),
            ("", "a.md: has no front matter any more"),
            (&format!("---\nname: a\n---\n{long}"), "a.md: larger than max_message"),
        ] {
            folder.write("a.md", broken);
            let (prompts, reasons) = folder.look();
            assert_eq!(prompts, ["a: one"], "{broken}");
            assert!(reasons[0].starts_with(said), "{reasons:?}");
            assert!(reasons[0].ends_with("; the text of before is served"), "{reasons:?}");
            let listed = &folder.last.as_ref().unwrap().listed;
            assert_eq!((listed.malformed.len(), listed.len()), (1, 1), "it counts as served");
            assert_eq!(listed.malformed[0].name, "a");
        }
        folder.write("a.md", &valid.replace("one", "two"));
        assert_eq!(folder.look(), (vec!["a: two".to_owned()], Vec::new()));
        folder.write("a.md", &valid.replace("name: a", "name: b"));
        assert_eq!(folder.look().0, ["b: one"], "a valid file renames its prompt");
        fs::remove_file(folder.folder.path().join("a.md")).unwrap();
        assert_eq!(folder.look(), (Vec::new(), Vec::new()), "what is removed is removed");
        folder.write("a.md", "---\nname: [\n---\nx");
        assert_eq!(folder.look().0, [""; 0], "it is another file");
    }

    #[test]
    fn a_second_file_of_a_name_takes_it_from_no_file_that_served_it() {
        let text =
            |name: &str, text: &str| format!("---\nname: {name}\ndescription: d\n---\n{text}");
        let mut folder = Folder::new(&[("b.md", &text("b", "B")), ("c.md", &text("c", "C"))]);
        folder.write("a.md", &text("b", "copy"));
        folder.write("b.md", &text("b", "edited"));
        folder.write("c.md", &text("b", "also"));
        let (prompts, reasons) = folder.look();
        assert_eq!(prompts, ["b: edited", "c: C"]);
        assert!(
            reasons[0].starts_with("a.md: prompt \"b\" is in ")
                && reasons[0].contains("b.md, too, which is served")
        );
        assert!(
            reasons[1].starts_with("c.md: ")
                && reasons[1].ends_with("; the text of before is served")
        );
        // Names that are swapped are valid.
        fs::remove_file(folder.folder.path().join("a.md")).unwrap();
        folder.write("c.md", &text("c", "C"));
        folder.look();
        folder.write("b.md", &text("c", "from b"));
        folder.write("c.md", &text("b", "from c"));
        assert_eq!(
            folder.look(),
            (vec!["c: from b".to_owned(), "b: from c".to_owned()], Vec::new())
        );
        fs::rename(folder.folder.path().join("b.md"), folder.folder.path().join("z.md")).unwrap();
        assert_eq!(folder.look().0, ["b: from c", "c: from b"], "the file has moved");
    }

    #[test]
    fn a_file_that_its_source_leaves_out_stays_served_and_earlier_texts_are_bounded() {
        let big = "x".repeat(6_000);
        let text = |name: &str| format!("---\nname: {name}\ndescription: d\n---\n{big}");
        let mut folder = Folder::new(&[("a.md", &text("a")), ("b.md", &text("b"))]);
        let names = |snapshot: &LibrarySnapshot| {
            let names = snapshot.listed.prompts.iter().map(|prompt| prompt.name.clone());
            names.collect::<Vec<_>>()
        };
        fs::remove_file(folder.folder.path().join("a.md")).unwrap();
        let read = folder.read(&["a.md: a symbolic link", "c.md: larger than max_message"]);
        assert_eq!(names(read), ["b", "a"]);
        let reasons = named(&malformed(read));
        assert!(
            reasons[0].ends_with("a.md: a symbolic link; the text of before is served"),
            "{reasons:?}"
        );
        assert!(reasons[1].ends_with("c.md: larger than max_message"), "{reasons:?}");
        folder.settings.max_walk = 10_000;
        folder.write("b.md", "---\nname: [\n---\nx");
        assert_eq!(names(folder.read(&["a.md: a symbolic link"])), ["b"]);
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
