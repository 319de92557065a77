//! Agent skills over MCP (extension `io.modelcontextprotocol/skills`, SEP-2640): the checked entry
//! of a skill, and its URIs with the prefix of its upstream.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use crate::approval::Files;
use crate::fault::excerpt;
use crate::json::canonical::canonical;
use crate::json::object::{ObjectWriter, write_object};
use crate::json::{Json, JsonKind};
use crate::name::{Prefix, SKILL_SCHEME};
use crate::protocol::via::Via;
use crate::text::percent;
use crate::uri;

/// The name of the extension, as capabilities declare it.
pub const EXTENSION: &str = "io.modelcontextprotocol/skills";

/// The scheme with which the URIs of all skills begin, as clients see them.
pub const SCHEME: &str = SKILL_SCHEME;

/// The name of the file that makes a folder a skill.
pub const SKILL_FILE: &str = "SKILL.md";

/// Most files of one skill, its `SKILL.md` included (extension, limits).
pub const MAX_FILES: usize = 512;

/// Most bytes of all files of one skill (extension, limits).
pub const MAX_SIZE: u64 = 16 << 20;

/// Most skills, and most bytes of their entries, that a host accepts from one server: the limits of
/// Claude Code, the only host with known limits.
const HOST_MAX: SkillCount = SkillCount { skills: 100, bytes: 512 << 10 };

/// The `resources` of a skill whose files have no digests.
const DYNAMIC: &str = "dynamic";

/// Longest URI of a file at its upstream, in bytes. A cursor contains a URI.
const MAX_URI: usize = 512;

/// Longest name of a skill (Agent Skills specification, name field).
const MAX_NAME: usize = 64;

/// Longest description of a skill, in characters (Agent Skills specification, description field).
const MAX_DESCRIPTION: usize = 1024;

/// Longest `compatibility` of a skill, in characters (Agent Skills specification).
const MAX_COMPATIBILITY: usize = 500;

/// A number of skills.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SkillCount {
    pub skills: usize,
    /// The bytes of the skills' entries in the list.
    pub bytes: usize,
}

impl SkillCount {
    /// Counts another entry.
    pub fn add(&mut self, bytes: usize) {
        self.skills += 1;
        self.bytes += bytes;
    }
}

/// Whether hosts drop some of these skills, if they come from one server.
pub fn exceeds_hosts(count: SkillCount) -> bool {
    count.skills > HOST_MAX.skills || count.bytes > HOST_MAX.bytes
}

/// A checked entry of `skills/list`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Skill {
    /// The path of the skill's folder, without prefix: its name in rules. For URIs of another
    /// scheme, the path begins with the scheme.
    pub path: Arc<str>,
    /// The front matter of `SKILL.md` as JSON text.
    frontmatter: String,
    /// All files; `SKILL.md` is one of them. Empty for a dynamic skill.
    pub files: Vec<SkillFile>,
    /// The upstream's URI of the `SKILL.md` of a dynamic skill, whose files have no digests.
    dynamic: Option<Arc<str>>,
    /// The gateways between this gateway and the skill's server.
    pub via: Via,
}

/// A file of a skill.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SkillFile {
    /// The upstream's URI of the file.
    pub uri: Arc<str>,
    /// The path of the file behind [`SCHEME`] and prefix.
    pub path: Box<str>,
    /// `sha256:…` of the content.
    pub digest: Box<str>,
    /// The size in bytes.
    pub size: u64,
}

/// The reason why a skill is left out.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SkillError {
    #[error("a skill must be an object with a string `uri`")]
    NoUri,
    #[error(
        "the URI {0:?} must be SCHEME://PATH/{SKILL_FILE} of at most {MAX_URI} bytes, without \
         empty segments, `.`, `..`, encoded slashes, query or fragment"
    )]
    Uri(String),
    #[error("{0}")]
    FrontMatter(String),
    #[error("its folder is {folder:?}, and its name {name:?}: they must be equal")]
    OtherName { folder: String, name: String },
    #[error(
        "`resources` must be \"dynamic\", or an array of {{uri, digest, size}}, with {SKILL_FILE} \
         among them"
    )]
    NoResources,
    #[error(
        "the file {0:?} must be inside the folder of the skill, with a digest and a size, once"
    )]
    File(String),
    #[error("it has more than {MAX_FILES} files")]
    TooManyFiles,
    #[error("its files have more than 16 MiB together")]
    TooLarge,
}

impl Skill {
    /// Reads an entry of `skills/list`.
    ///
    /// # Errors
    /// The first rule of the extension or of the Agent Skills format that the entry violates.
    pub fn read(entry: Json<'_>) -> Result<Self, SkillError> {
        let own = entry.get("uri").and_then(Json::as_str).ok_or(SkillError::NoUri)?;
        let malformed = || SkillError::Uri(excerpt(&own));
        let file_path = checked_path(&own).ok_or_else(malformed)?;
        let base = own.strip_suffix(SKILL_FILE).ok_or_else(malformed)?;
        let path = file_path.strip_suffix(SKILL_FILE).and_then(|path| path.strip_suffix('/'));
        let path = path.filter(|path| !path.is_empty()).ok_or_else(malformed)?;
        let frontmatter = entry.get("frontmatter");
        let name = checked_front_matter(frontmatter).map_err(SkillError::FrontMatter)?;
        let folder = path.rsplit('/').next().unwrap_or_default();
        if *folder != *name {
            return Err(SkillError::OtherName { folder: excerpt(folder), name });
        }
        let resources = entry.get("resources").ok_or(SkillError::NoResources)?;
        let dynamic: Option<Arc<str>> = resources.is(DYNAMIC).then(|| own.as_ref().into());
        let files = if dynamic.is_some() { Vec::new() } else { files(resources, base)? };
        if dynamic.is_none() && !files.iter().any(|file| *file.uri == *own) {
            return Err(SkillError::NoResources);
        }
        let frontmatter = frontmatter.map(|front| front.text().to_owned()).unwrap_or_default();
        Ok(Self { path: path.into(), frontmatter, files, dynamic, via: Via::NONE })
    }

    /// Returns the same skill with the gateways that its entry has passed.
    pub fn through(self, via: Via) -> Self {
        Self { via, ..self }
    }

    /// Whether the skill's files have no digests, and are read from the upstream unverified.
    pub fn is_dynamic(&self) -> bool {
        self.dynamic.is_some()
    }

    /// Returns the upstream's URI of a file of a dynamic skill, by its public URI; `None` for a
    /// file that is not below the folder of the skill, or a URI that is ambiguous.
    pub fn dynamic_file(&self, prefix: &Prefix, uri: &str) -> Option<String> {
        let own = self.dynamic.as_deref()?;
        let inside = uri.strip_prefix(&self.public_folder(prefix))?.strip_prefix('/')?;
        let uri = [own.strip_suffix(SKILL_FILE)?, inside].concat();
        checked_path(&uri).is_some().then_some(uri)
    }

    /// Returns the entry in canonical form (RFC 8785), with the URIs of the upstream and the files
    /// in the order of the URIs. The approval of a skill covers this form.
    pub fn canonical(&self) -> String {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable_by(|a, b| a.uri.cmp(&b.uri));
        let own = self.own_file().map(|file| &file.uri).or(self.dynamic.as_ref());
        let mut out = String::new();
        let own = own.map_or("", |uri| uri);
        self.write_entry(own, files.into_iter(), |file| (&*file.uri).into(), &mut out);
        canonical(Json::accepted(&out))
    }

    /// Returns the digests of the skill's files.
    pub fn digests(&self) -> Files {
        let file = |file: &SkillFile| (self.path_in_folder(file).into(), (&*file.digest).into());
        self.files.iter().map(file).collect()
    }

    /// Returns the name of the skill, which is the name of its folder.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the bytes that the skill takes in memory.
    pub fn size(&self) -> usize {
        let file = |file: &SkillFile| {
            size_of::<SkillFile>() + file.uri.len() + file.path.len() + file.digest.len()
        };
        let files: usize = self.files.iter().map(file).sum();
        size_of::<Self>() + self.path.len() + self.frontmatter.len() + files
    }

    /// Returns the description in the words of its author.
    pub fn description(&self) -> String {
        let front = Json::accepted(&self.frontmatter);
        front.get("description").and_then(Json::as_str).unwrap_or_default().into_owned()
    }

    /// Returns the public URI of the skill's `SKILL.md`.
    pub fn public_uri(&self, prefix: &Prefix) -> String {
        Self::uri_of(prefix, &self.path)
    }

    /// Returns the public URI of the `SKILL.md` of the skill with this path.
    pub fn uri_of(prefix: &Prefix, path: &str) -> String {
        [&public_uri(prefix, path), "/", SKILL_FILE].concat()
    }

    /// Returns the file `SKILL.md` of the skill.
    pub fn own_file(&self) -> Option<&SkillFile> {
        self.files.iter().find(|file| self.path_in_folder(file) == SKILL_FILE)
    }

    /// Returns the paths within the folder of all files except `SKILL.md`.
    pub fn other_files(&self) -> Vec<&str> {
        let own = self.own_file();
        let others = self.files.iter().filter(|file| Some(*file) != own);
        others.map(|file| self.path_in_folder(file)).collect()
    }

    /// Returns the path of a file in the folder of the skill.
    pub fn path_in_folder<'a>(&self, file: &'a SkillFile) -> &'a str {
        file.path.get(self.path.len() + 1..).unwrap_or_default()
    }

    /// Returns the public URI of the skill's folder, without a slash at its end.
    pub fn public_folder(&self, prefix: &Prefix) -> String {
        public_uri(prefix, &self.path)
    }

    /// Writes the entry for clients. Only the beginnings of URIs differ from the upstream's.
    pub fn write(&self, prefix: &Prefix, out: &mut String) {
        let uri_of = |file: &SkillFile| public_uri(prefix, &file.path).into();
        self.write_entry(&self.public_uri(prefix), self.files.iter(), uri_of, out);
    }

    fn write_entry<'a>(
        &self,
        uri: &str,
        files: impl Iterator<Item = &'a SkillFile>,
        uri_of: impl Fn(&'a SkillFile) -> Cow<'a, str>,
        out: &mut String,
    ) {
        write_object(out, |entry| {
            entry.text("uri", uri).json("frontmatter", &self.frontmatter);
            if self.is_dynamic() {
                entry.text("resources", DYNAMIC);
                return;
            }
            entry.array("resources", files, |file, out| {
                write_object(out, |out| {
                    out.text("uri", &uri_of(file)).text("digest", &file.digest);
                    out.display("size", file.size);
                });
            });
        });
    }

    /// Writes the files and folders that are directly in a folder of the skill, as `Resource`s;
    /// returns `None` if the skill has no such folder. `folder` is a public URI.
    pub fn directory(&self, prefix: &Prefix, folder: &str) -> Option<String> {
        let mut seen = HashSet::new();
        let mut out = String::new();
        for file in &self.files {
            let public = public_uri(prefix, &file.path);
            let rest = public.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
            let Some(rest) = rest else { continue };
            let (segment, is_folder) = match rest.split_once('/') {
                Some((segment, _)) => (segment, true),
                None => (rest, false),
            };
            if !seen.insert(segment.to_owned()) {
                continue;
            }
            if !out.is_empty() {
                out.push(',');
            }
            write_object(&mut out, |child| {
                write_child(folder, segment, is_folder.then_some(DIRECTORY), file, child);
            });
        }
        let is_inside = folder.len() >= self.public_folder(prefix).len();
        (is_inside && !out.is_empty()).then_some(out)
    }
}

/// The media type of a folder (extension, directory resources).
const DIRECTORY: &str = "inode/directory";

fn write_child(
    folder: &str,
    segment: &str,
    directory: Option<&str>,
    file: &SkillFile,
    child: &mut ObjectWriter<'_>,
) {
    let name = percent::decoded(segment).unwrap_or_else(|| segment.to_owned());
    child.text("uri", &[folder, "/", segment].concat()).text("name", &name);
    match directory {
        Some(mime) => child.text("mimeType", mime),
        None => child.display("size", file.size),
    };
}

/// Returns the public URI of a path that [`Skill::read`] has checked.
pub fn public_uri(prefix: &Prefix, path: &str) -> String {
    if prefix.is_bare() {
        [SCHEME, path].concat()
    } else {
        [SCHEME, prefix.as_str(), "/", path].concat()
    }
}

/// Returns the path from which [`public_uri`] made a URI of an upstream with this prefix.
pub fn public_path<'a>(prefix: &Prefix, uri: &'a str) -> Option<&'a str> {
    let path = uri.strip_prefix(SCHEME)?;
    if prefix.is_bare() {
        return Some(path);
    }
    path.strip_prefix(prefix.as_str())?.strip_prefix('/')
}

/// Whether a URI has the scheme of skills; schemes are case-insensitive (RFC 3986, section 3.1).
pub fn has_scheme(uri: &str) -> bool {
    uri.get(..SCHEME.len()).is_some_and(|own| own.eq_ignore_ascii_case(SCHEME))
}

/// Whether a text is the public URI of a `SKILL.md`, which is the public name of a skill.
pub fn is_skill_uri(text: &str) -> bool {
    let path = text.strip_prefix(SCHEME).and_then(|rest| rest.strip_suffix(SKILL_FILE));
    path.is_some_and(|path| path.ends_with('/'))
}

/// Checks the front matter of a skill against the Agent Skills format. Returns the name.
///
/// # Errors
/// The violated rule, for which hosts would reject the skill.
pub fn checked_front_matter(front: Option<Json<'_>>) -> Result<String, String> {
    let front = front.filter(|front| front.kind() == JsonKind::Object);
    let front = front.ok_or("the front matter must have a `name` and a `description`")?;
    let text = |key: &str| front.get(key).and_then(Json::as_str);
    let name = text("name").filter(|name| is_name(name)).ok_or_else(|| {
        format!(
            "`name` must have 1 to {MAX_NAME} characters of a-z, 0-9 and single hyphens between \
             them"
        )
    })?;
    let within = |value: Option<&str>, most| {
        value.is_some_and(|value| !value.trim().is_empty() && value.chars().count() <= most)
    };
    if !within(text("description").as_deref(), MAX_DESCRIPTION) {
        return Err(format!("`description` must be a text of 1 to {MAX_DESCRIPTION} characters"));
    }
    if front.get("compatibility").is_some()
        && !within(text("compatibility").as_deref(), MAX_COMPATIBILITY)
    {
        return Err(format!(
            "`compatibility` must be a text of 1 to {MAX_COMPATIBILITY} characters"
        ));
    }
    Ok(name.into_owned())
}

/// Whether a text is a name of the Agent Skills format.
pub(crate) fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=MAX_NAME).contains(&text.len())
        && text.chars().all(is_letter)
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.contains("--")
}

fn files(resources: Json<'_>, base: &str) -> Result<Vec<SkillFile>, SkillError> {
    if resources.kind() != JsonKind::Array {
        return Err(SkillError::NoResources);
    }
    let mut files = Vec::new();
    let mut seen = HashSet::new();
    let mut size = 0_u64;
    for element in resources.elements() {
        if files.len() == MAX_FILES {
            return Err(SkillError::TooManyFiles);
        }
        let file = file(element, base).filter(|file| seen.insert(file.path.clone()));
        let file = file.ok_or_else(|| {
            let uri = element.get("uri").and_then(Json::as_str).unwrap_or_default();
            SkillError::File(excerpt(&uri))
        })?;
        size = size.saturating_add(file.size);
        files.push(file);
    }
    if size > MAX_SIZE {
        return Err(SkillError::TooLarge);
    }
    Ok(files)
}

fn file(element: Json<'_>, base: &str) -> Option<SkillFile> {
    let uri = element.get("uri")?.as_str()?;
    let path = checked_path(&uri).filter(|_| uri.len() > base.len() && uri.starts_with(base))?;
    let digest = element.get("digest")?.as_str()?;
    let digits = digest.strip_prefix("sha256:")?;
    let is_lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_digest = digits.len() == 64 && digits.bytes().all(is_lower_hex);
    let size = u64::try_from(element.get("size")?.as_whole()?).ok()?;
    is_digest.then(|| SkillFile {
        uri: uri.as_ref().into(),
        path: path.into(),
        digest: digest.as_ref().into(),
        size,
    })
}

/// Returns the path of a URI behind scheme and prefix at the gateway; `None` for a URI that two
/// readers could take for different files.
pub fn checked_path(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let is_plain = text.len() <= MAX_URI
        && uri::is_valid(text)
        && rest.is_ascii()
        && !rest.contains(['?', '#', '@'])
        && rest.split('/').all(is_segment);
    is_plain.then(|| match scheme.to_ascii_lowercase().as_str() {
        "skill" => rest.to_owned(),
        other => [other, "/", rest].concat(),
    })
}

/// Whether a segment of a path names one file or folder, even after decoding.
fn is_segment(segment: &str) -> bool {
    percent::decoded(segment).is_some_and(|name| {
        !matches!(&*name, "" | "." | "..")
            && !name.contains(['/', '\\', '%'])
            && !name.contains(char::is_control)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn entry(uri: &str, name: &str, files: &[&str]) -> String {
        let files: Vec<_> = files
            .iter()
            .map(|uri| format!(r#"{{"uri":"{uri}","digest":"{DIGEST}","size":3}}"#))
            .collect();
        format!(
            r#"{{"uri":"{uri}","frontmatter":{{"name":"{name}","description":"d","x":[1]}},"resources":[{}]}}"#,
            files.join(",")
        )
    }

    fn read(text: &str) -> Result<Skill, SkillError> {
        Skill::read(Json::parse(text.as_bytes(), 16).unwrap())
    }

    fn prefix(text: &str) -> Prefix {
        Prefix::parse(text).unwrap()
    }

    #[test]
    fn the_path_behind_a_public_uri_is_the_one_it_was_written_with() {
        for prefix in ["", "pre"].map(|text| Prefix::parse(text).unwrap()) {
            for path in ["a/SKILL.md", "pre/a", "a b/%20"] {
                assert_eq!(public_path(&prefix, &public_uri(&prefix, path)), Some(path));
            }
        }
        let prefix = Prefix::parse("pre").unwrap();
        for foreign in ["skill://prea/b", "skill://pre", "SKILL://pre/a", "file:///pre/a", ""] {
            assert_eq!(public_path(&prefix, foreign), None, "{foreign}");
        }
    }

    #[test]
    fn only_the_beginning_of_uris_changes() {
        let files = ["skill://acme/refunds/SKILL.md", "skill://acme/refunds/a/b.md"];
        let text = entry(files[0], "refunds", &files);
        let skill = read(&text).unwrap();
        assert_eq!(&*skill.path, "acme/refunds");
        let mut out = String::new();
        skill.write(&prefix("crm"), &mut out);
        assert_eq!(out, text.replace("skill://", "skill://crm/"));
        let mut bare = String::new();
        skill.write(&prefix(""), &mut bare);
        assert_eq!(bare, text);
        let files = ["github://o/r/refunds/SKILL.md"];
        let other = read(&entry(files[0], "refunds", &files)).unwrap();
        assert_eq!(other.public_uri(&prefix("crm")), "skill://crm/github/o/r/refunds/SKILL.md");
        assert_eq!(&*other.files[0].uri, files[0]);
    }

    #[test]
    fn the_canonical_form_is_read_back_whatever_the_order_was() {
        for base in ["skill://acme/refunds", "github://o/r/refunds"] {
            let files = ["SKILL.md", "b.md", "a/c.md"].map(|file| format!("{base}/{file}"));
            let [own, b, c] = files.each_ref().map(String::as_str);
            let one = read(&entry(own, "refunds", &[own, b, c])).unwrap();
            let other = read(&entry(own, "refunds", &[c, own, b])).unwrap();
            assert_ne!(one, other);
            assert_eq!(one.canonical(), other.canonical());
            let again = read(&one.canonical()).unwrap();
            assert_eq!(again.canonical(), one.canonical());
            assert_eq!((again.path.clone(), again.digests()), (one.path.clone(), one.digests()));
            assert_eq!(
                one.digests().keys().map(|path| &**path).collect::<Vec<_>>(),
                ["SKILL.md", "a/c.md", "b.md"]
            );
        }
    }

    #[test]
    fn uris_that_two_readers_could_take_for_different_files_are_refused() {
        let good = "skill://a/SKILL.md";
        for bad in [
            "skill://a/../b/SKILL.md",
            "skill://a/./SKILL.md",
            "skill://a//SKILL.md",
            "skill:///a/SKILL.md",
            "skill://a/%2e%2e/SKILL.md",
            "skill://a%2Fa/SKILL.md",
            "skill://a%5Ca/SKILL.md",
            "skill://a%252Fa/SKILL.md",
            "skill://a/SKILL.md?x",
            "skill://a/SKILL.md#x",
            "skill://u@a/SKILL.md",
            "skill://a/%00/SKILL.md",
            "skill://SKILL.md",
            "a/SKILL.md",
            "skill:a/SKILL.md",
            "skill://a/skill.md",
        ] {
            assert!(matches!(read(&entry(bad, "a", &[bad])), Err(SkillError::Uri(_))), "{bad}");
            let is_inside = bad.starts_with("skill://a/") && bad != "skill://a/skill.md";
            if is_inside {
                let read = read(&entry(good, "a", &[good, bad]));
                assert!(matches!(read, Err(SkillError::File(_))), "{bad}");
            }
        }
        let foreign =
            ["skill://b/x", "skill://ab/x", "https://a/x", "file:///etc/passwd", "skill://a/"];
        for foreign in foreign {
            let read = read(&entry(good, "a", &[good, foreign]));
            assert!(matches!(read, Err(SkillError::File(_))), "{foreign}");
        }
        assert!(matches!(read(&entry(good, "a", &[good, good])), Err(SkillError::File(_))));
        assert_eq!(read(&entry(good, "a", &[])), Err(SkillError::NoResources));
    }

    #[test]
    fn the_bounds_of_the_extension_hold() {
        let own = "skill://a/SKILL.md".to_owned();
        let files = |count: usize| {
            let more = (1..count).map(|n| format!("skill://a/{n}"));
            std::iter::once(own.clone()).chain(more).collect::<Vec<_>>()
        };
        let with = |count| {
            let files = files(count);
            read(&entry(&own, "a", &files.iter().map(String::as_str).collect::<Vec<_>>()))
        };
        assert_eq!(with(512).unwrap().files.len(), 512);
        assert_eq!(with(513), Err(SkillError::TooManyFiles));
        let sized = |size: &str| read(&entry(&own, "a", &[&own]).replace("\"size\":3", size));
        assert!(sized("\"size\":16777216").is_ok());
        assert_eq!(sized("\"size\":16777217"), Err(SkillError::TooLarge));
        for bad in ["\"size\":-1", "\"size\":\"3\"", "\"size\":1.5", "\"size\":null", "\"x\":1"] {
            assert!(matches!(sized(bad), Err(SkillError::File(_))), "{bad}");
        }
        let upper = entry(&own, "a", &[&own]).replace("abcdef", "ABCDEF");
        assert!(matches!(read(&upper), Err(SkillError::File(_))));
    }

    #[test]
    fn a_dynamic_skill_keeps_its_entry_and_serves_what_is_strictly_below_its_folder() {
        let text = r#"{"uri":"github://o/a/SKILL.md","frontmatter":{"description":"d","name":"a"},"resources":"dynamic"}"#;
        let skill = read(text).unwrap();
        let mut out = String::new();
        skill.write(&prefix("p"), &mut out);
        assert_eq!(out, text.replace("github://", "skill://p/github/"));
        assert_eq!(read(&skill.canonical()).as_ref(), Ok(&skill));
        assert!(skill.is_dynamic() && skill.digests().is_empty());
        let file = |uri: &str| skill.dynamic_file(&prefix("p"), uri);
        assert_eq!(
            file("skill://p/github/o/a/x/y%20z.md").as_deref(),
            Some("github://o/a/x/y%20z.md")
        );
        let inside =
            ["", "/", "/.", "/..", "/x/../y", "//x", "/x/", "/x%2fy", "/%2e%2e", "/x?y", "/x#y"];
        for inside in inside {
            assert_eq!(file(&["skill://p/github/o/a", inside].concat()), None, "{inside}");
        }
        for other in ["skill://p/github/o/ab/x", "skill://github/o/a/x", "github://o/a/x", ""] {
            assert_eq!(file(other), None, "{other}");
        }
        assert_eq!(file(&format!("skill://p/github/o/a/{}", "x".repeat(512))), None);
    }

    #[test]
    fn front_matter_that_hosts_reject_is_refused() {
        let own = "skill://a/SKILL.md";
        let other = read(&entry(own, "b", &[own]));
        assert!(matches!(other, Err(SkillError::OtherName { .. })));
        let front = |text: &str| checked_front_matter(Some(Json::parse_text(text, 8).unwrap()));
        for name in ["", "A", "a b", "-a", "a-", "a--b", "a_b", &"a".repeat(65)] {
            let text = format!(r#"{{"name":"{name}","description":"d"}}"#);
            assert!(front(&text).unwrap_err().contains("`name`"), "{name}");
        }
        assert_eq!(front(r#"{"name":"a-1","description":"d","x":null}"#).as_deref(), Ok("a-1"));
        for description in ["", " ", &"d".repeat(1_025)] {
            let text = format!(r#"{{"name":"a","description":"{description}"}}"#);
            assert!(front(&text).unwrap_err().contains("`description`"));
        }
        let long =
            format!(r#"{{"name":"a","description":"d","compatibility":"{}"}}"#, "c".repeat(501));
        assert!(front(&long).unwrap_err().contains("`compatibility`"));
        assert!(checked_front_matter(None).is_err());
    }

    #[test]
    fn a_directory_has_its_direct_children() {
        let files = ["SKILL.md", "t/a.md", "t/b/c.md", "t/b/d%20e.md"];
        let files = files.map(|file| format!("skill://a/{file}"));
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let skill = read(&entry(files[0], "a", &files)).unwrap();
        let children = |folder: &str| {
            let list = format!("[{}]", skill.directory(&prefix("p"), folder)?);
            let list = Json::parse_text(&list, 8).unwrap();
            let name = |child: Json<'_>| child.get("name").unwrap().as_str().unwrap().into_owned();
            Some(list.elements().map(name).collect::<Vec<_>>())
        };
        assert_eq!(children("skill://p/a").unwrap(), ["SKILL.md", "t"]);
        assert_eq!(children("skill://p/a/t").unwrap(), ["a.md", "b"]);
        assert_eq!(children("skill://p/a/t/b").unwrap(), ["c.md", "d e.md"]);
        for none in
            ["skill://p", "skill:/", "skill://p/a/", "skill://p/a/t/a.md", "skill://p/b", ""]
        {
            assert_eq!(children(none), None, "{none}");
        }
    }
}
