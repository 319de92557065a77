//! Skills of a library: each folder with a `SKILL.md`, with all files in it (Agent Skills format).
//! The files are served unchanged, so nothing is rendered.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::embed::mime_type;
use super::files::{self, PromptFile};
use super::place::Remark;
use super::reader::LibraryReader;
use super::source::front_matter_value;
use crate::prompt_list::PromptList;
use base::platform::blocking;
use base::platform::disk::{self, FileKind};
use base::seal;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::Json;
use domain::json::document::Document;
use domain::json::object::write_object;
use domain::prompts::skill::{MAX_FILES, SCHEME, SKILL_FILE, Skill};
use domain::text::percent;

/// Deepest level of folders in a skill.
const MAX_DEPTH: usize = 8;

/// The files of all skills of a library, by their URIs.
#[derive(Debug, Default)]
pub(super) struct SkillFiles {
    folder: PathBuf,
    /// Longest file, in bytes.
    limit: usize,
    /// The resolved paths of the files.
    files: HashMap<Arc<str>, PathBuf>,
}

impl SkillFiles {
    /// Moves the files of skills out of `markdown`, and reads the skills into `listed`. An invalid
    /// skill is omitted with a reason.
    pub(super) fn take(
        folder: &Path,
        markdown: &mut Vec<PromptFile>,
        reader: &mut LibraryReader<'_>,
        listed: &mut PromptList,
    ) -> Self {
        let is_skill = |file: &PromptFile| file.path.file_name().is_some_and(|n| n == SKILL_FILE);
        let roots: BTreeSet<PathBuf> = markdown
            .iter()
            .filter(|file| is_skill(file))
            .filter_map(|file| file.path.parent().map(Path::to_path_buf))
            .collect();
        // The files of a skill are not prompts.
        let is_root = |above: &&Path| *above != folder && roots.contains(*above);
        let in_skill = |path: &Path| path.ancestors().skip(1).any(|above| is_root(&above));
        markdown.retain(|file| !is_skill(file) && !in_skill(&file.path));
        // A file that is not text is sent as base64: four characters for three bytes.
        let limit = reader.max_message() / 4 * 3;
        let mut skills = Self { folder: folder.to_path_buf(), limit, files: HashMap::new() };
        for root in roots {
            match skills.read(&root, reader) {
                Ok(skill) => listed.skills.push(Arc::new(skill)),
                Err(why) => listed.malformed.push(why.on(&root.join(SKILL_FILE)).into()),
            }
        }
        skills
    }

    fn read(&mut self, root: &Path, reader: &mut LibraryReader<'_>) -> Result<Skill, Remark> {
        let at = root.strip_prefix(&self.folder).map_err(|error| error.to_string())?;
        let at = at.to_str().ok_or("the name of its folder is not UTF-8")?;
        if at.is_empty() {
            return Err("a skill is in a folder of its own, which has its name".into());
        }
        let library = disk::canonicalize(&self.folder).map_err(|error| error.to_string())?;
        let resolved = disk::canonicalize(root).map_err(|error| error.to_string())?;
        if resolved != library.join(at) {
            return Err("its folder is reached through a link; a skill has none".into());
        }
        let mut paths = Vec::new();
        collect(&resolved, "", 0, &mut paths)?;
        let base = format!("{SCHEME}{}/", percent::encoded_path(at));
        let mut found = Vec::new();
        let mut resources = Vec::new();
        let mut front = None;
        for path in paths {
            let resolved = resolved.join(&path);
            let content = files::read(&self.folder, &resolved, self.limit);
            let content = content.map_err(|why| format!("{path}: {why}"))?;
            reader.take(content.len())?;
            if path == SKILL_FILE {
                let text = std::str::from_utf8(&content).map_err(|_| "is not UTF-8")?;
                front = Some(front_matter_value(text)?);
            }
            let uri = [&base, percent::encoded_path(&path).as_str()].concat();
            let digest = seal::sha256_text(&content);
            resources.push(json!({"uri": uri, "digest": digest, "size": content.len()}));
            found.push((uri.into(), resolved));
        }
        let uri = [&base, SKILL_FILE].concat();
        let entry = json!({"uri": uri, "frontmatter": front, "resources": resources}).to_string();
        let entry = Json::parse_text(&entry, 64).map_err(|error| error.to_string())?;
        let skill = Skill::read(entry).map_err(|error| error.to_string())?;
        self.files.extend(found);
        Ok(skill)
    }

    /// Reads the current content of a file, as the result of `resources/read`.
    ///
    /// # Errors
    /// [`Kind::Error`] with -32602 for an unknown file, [`Kind::Unavailable`] for one that cannot
    /// be read.
    pub(super) async fn read_file(&self, uri: &str) -> Result<Document, Kind> {
        // The catalog may be older than this snapshot.
        let gone = || Kind::Error { code: -32602, message: "no such file".into(), data: None };
        let resolved = self.files.get(uri).cloned().ok_or_else(gone)?;
        let folder = self.folder.clone();
        let limit = self.limit;
        let uri = uri.to_owned();
        let reading = blocking(move || {
            let bytes = files::read(&folder, &resolved, limit)?;
            Document::parse(file_contents(&uri, bytes).into_bytes(), 64).map_err(|e| e.to_string())
        });
        let read = reading.await.map_err(|failure| Kind::Internal(failure.to_string()))?;
        read.map_err(|_| Kind::Unavailable("a file of the skill cannot be read".to_owned()))
    }
}

/// Collects the paths of all files in a folder, in order. Dot-files are not part of a skill.
fn collect(folder: &Path, at: &str, depth: usize, paths: &mut Vec<String>) -> Result<(), String> {
    let reading = |error: std::io::Error| format!("its folder cannot be read: {error}");
    let mut names = disk::read_dir(folder).map_err(reading)?;
    names.sort();
    for name in names {
        let name = name.to_str().ok_or("the name of one of its files is not UTF-8")?;
        if name.starts_with('.') {
            continue;
        }
        let path = folder.join(name);
        let below = [at, name].concat();
        match disk::symlink_metadata(&path).map_err(reading)?.kind {
            FileKind::Link => return Err(format!("{below} is a link; a skill has none")),
            _ if disk::is_folder(&path) && depth < MAX_DEPTH => {
                collect(&path, &(below + "/"), depth + 1, paths)?;
            }
            _ => paths.push(below),
        }
        if paths.len() > MAX_FILES {
            return Err(format!("it has more than {MAX_FILES} files"));
        }
    }
    Ok(())
}

/// Writes a `ReadResourceResult` with one file.
pub fn file_contents(uri: &str, bytes: Vec<u8>) -> String {
    let mut out = String::with_capacity(bytes.len() / 3 * 4 + 256);
    write_object(&mut out, |result| {
        result.array("contents", [bytes], |bytes, out| {
            write_object(out, |content| {
                content.text("uri", uri);
                let mime = mime_type(uri);
                match String::from_utf8(bytes) {
                    Ok(text) if mime == "application/octet-stream" => {
                        content.text("mimeType", "text/plain").text("text", &text)
                    }
                    Ok(text) => content.text("mimeType", mime).text("text", &text),
                    Err(error) => {
                        let blob = BASE64_STANDARD.encode(error.as_bytes());
                        content.text("mimeType", mime).text("blob", &blob)
                    }
                };
            });
        });
    });
    out
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::path::Path;

    use super::super::{LibraryLabels, LibrarySnapshot};
    use super::Kind;
    use config::Settings;

    const REFUNDS: &str =
        "---\nname: refunds\ndescription: Refund a customer\nmetadata: {version: 2}\n---\nDo.";

    fn load_folder(folder: &Path) -> Result<LibrarySnapshot, Kind> {
        LibrarySnapshot::load(folder, "lib", &Settings::default(), &LibraryLabels::default())
    }

    fn load(files: &[(&str, &[u8])]) -> (LibrarySnapshot, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let snapshot = load_folder(folder.path()).unwrap();
        (snapshot, folder)
    }

    fn refusal(files: &[(&str, &[u8])]) -> String {
        let (snapshot, _folder) = load(files);
        assert!(snapshot.listed.skills.is_empty() && snapshot.listed.prompts.is_empty());
        let reasons = snapshot.listed.malformed;
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        reasons[0].reason.clone()
    }

    #[tokio::test]
    async fn a_folder_with_a_skill_file_is_a_skill_with_all_its_files() {
        let nested = "---\nname: inner\ndescription: d\n---\n";
        let (snapshot, _folder) = load(&[
            ("acme/refunds/SKILL.md", REFUNDS.as_bytes()),
            ("acme/refunds/a b/run.py", b"print()"),
            ("acme/refunds/logo.bin", b"\xff\x00"),
            ("acme/refunds/note.md", b"---\nname: note\n---\nno prompt"),
            ("acme/refunds/.hidden", b"x"),
            ("acme/refunds/inner/SKILL.md", nested.as_bytes()),
            ("acme/prompt.md", b"---\nname: prompt\n---\nhi"),
        ]);
        assert_eq!(snapshot.listed.malformed, []);
        let paths: Vec<_> = snapshot.listed.skills.iter().map(|skill| &*skill.path).collect();
        assert_eq!(paths, ["acme/refunds", "acme/refunds/inner"]);
        let files: Vec<_> = snapshot.listed.skills[0].files.iter().map(|file| &*file.uri).collect();
        let base = "skill://acme/refunds/";
        let expected = ["SKILL.md", "a%20b/run.py", "inner/SKILL.md", "logo.bin", "note.md"];
        assert_eq!(files, expected.map(|file| format!("{base}{file}")));
        let prompts: Vec<_> = snapshot.listed.prompts.iter().map(|prompt| &*prompt.name).collect();
        assert_eq!(prompts, ["prompt"], "files of a skill are no prompts");
        let read = async |file: &str| {
            let read = snapshot.read_file(&format!("{base}{file}")).await;
            read.map(|read| read.json().text().to_owned())
        };
        assert!(
            read("a%20b/run.py")
                .await
                .unwrap()
                .contains(r#""mimeType":"text/plain","text":"print()""#)
        );
        assert!(read("logo.bin").await.unwrap().contains(r#""blob":"/wA=""#));
        for unknown in [".hidden", "../prompt.md", "", "a b/run.py"] {
            assert!(read(unknown).await.is_err(), "{unknown}");
        }
    }

    #[test]
    fn a_skill_that_hosts_reject_is_named_with_its_reason() {
        let refunds = REFUNDS.as_bytes();
        assert!(refusal(&[("SKILL.md", refunds)]).contains("folder of its own"));
        assert!(refusal(&[("other/SKILL.md", refunds)]).contains("must be equal"));
        let no_description = b"---\nname: refunds\n---\nx";
        assert!(refusal(&[("refunds/SKILL.md", no_description)]).contains("`description`"));
        let open = b"---\nname: refunds\n";
        assert!(refusal(&[("refunds/SKILL.md", open)]).contains("no closing ---"));
        assert!(refusal(&[("refunds/SKILL.md", b"# Refunds")]).contains("front matter"));
        let broken = b"---\nname: [\n---\n";
        assert!(refusal(&[("refunds/SKILL.md", broken)]).contains("SKILL.md:2:"));
        let many: Vec<String> = (0..600).map(|n| format!("refunds/{n}.txt")).collect();
        let mut files: Vec<(&str, &[u8])> = many.iter().map(|name| (&**name, &b"x"[..])).collect();
        files.push(("refunds/SKILL.md", refunds));
        assert!(refusal(&files).contains("more than 512 files"));
        let big = vec![b'x'; 9 << 20];
        let files: [(&str, &[u8]); 3] =
            [("refunds/SKILL.md", refunds), ("refunds/a", &big), ("refunds/b", &big)];
        assert!(refusal(&files).contains("16 MiB"));
    }

    #[cfg(unix)]
    #[test]
    fn links_make_no_skill() {
        use std::os::unix::fs::symlink;
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "x").unwrap();
        let (_, folder) = load(&[("refunds/SKILL.md", REFUNDS.as_bytes())]);
        symlink(outside.path().join("secret"), folder.path().join("refunds/secret")).unwrap();
        let reloaded = || load_folder(folder.path()).unwrap();
        let listed = reloaded().listed;
        assert!(listed.skills.is_empty());
        assert!(listed.malformed[0].reason.contains("secret is a link"), "{listed:?}");
        fs::remove_file(folder.path().join("refunds/secret")).unwrap();
        symlink(outside.path(), folder.path().join("refunds/sub")).unwrap();
        let malformed = reloaded().listed.malformed;
        assert!(malformed.iter().any(|m| m.reason.contains("sub is a link")), "{malformed:?}");
        fs::remove_file(folder.path().join("refunds/sub")).unwrap();
        assert_eq!(reloaded().listed.skills.len(), 1);
    }
}
