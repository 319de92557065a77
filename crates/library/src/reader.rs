//! Reads the files of a library: each embedded file once, and all within a bound.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::PromptFile;
use super::place::Remark;
use super::render::Compiled;
use super::source::{ParsedSource, front_matter_value, missed_prompt};
use super::{embed, files};
use base::platform::disk;
use base::seal;
use domain::json::Json;
use domain::json::canonical::canonical;
use domain::json::object::write_object;
use domain::prompts::prompt::{PromptSource, SourcePlace};

/// A prompt of a file, or of a prompt store.
#[derive(Clone, Debug)]
pub(super) struct LibraryPrompt {
    pub compiled: Arc<Compiled>,
    /// Path of the file below the folder of the library; empty for a prompt of a prompt store.
    pub path: PathBuf,
    pub source: Arc<PromptSource>,
    /// Bytes of the source, with the files that it embeds.
    pub size: usize,
    /// The name without a version, if the prompt has versions.
    pub of: Option<Arc<str>>,
}

/// One reading of a library.
pub(super) struct LibraryReader<'a> {
    folder: &'a Path,
    /// The first part of the URI of a resource.
    library: &'a str,
    /// Longest file and longest result, in bytes (`max_message`).
    max_message: usize,
    /// Remaining bytes for prompt files and embedded files, each counted once.
    left: usize,
    /// The content objects of embedded files by their names, which prompts share.
    embedded: BTreeMap<String, Arc<str>>,
    /// Remarks on files that are no prompts, but look as if they were meant to be.
    pub remarks: Vec<String>,
    /// The reasons for files that the folder lacks, by their paths below the folder.
    left_out: BTreeMap<PathBuf, String>,
}

/// A prompt, and its source as canonical JSON (RFC 8785).
pub(super) type PromptWithSource = (Compiled, String);

impl<'a> LibraryReader<'a> {
    /// Creates a reader; `most` is the limit of all files together, in bytes.
    pub(super) fn new(folder: &'a Path, library: &'a str, max_message: usize, most: usize) -> Self {
        let embedded = BTreeMap::new();
        let left_out = BTreeMap::new();
        let remarks = Vec::new();
        Self { folder, library, max_message, left: most, embedded, remarks, left_out }
    }

    /// Adds files that the folder lacks, each with the reason; they are read as invalid files.
    pub(super) fn with_left_out(self, left_out: BTreeMap<PathBuf, String>) -> Self {
        Self { left_out, ..self }
    }

    /// Returns the files of [`Self::with_left_out`].
    pub(super) fn left_out(&self) -> impl Iterator<Item = PromptFile> {
        let paths = self.left_out.keys().map(|path| self.folder.join(path));
        paths.map(|path| PromptFile { path: path.clone(), resolved: path })
    }

    pub(super) fn folder(&self) -> &'a Path {
        self.folder
    }

    pub(super) fn max_message(&self) -> usize {
        self.max_message
    }

    /// Returns the bytes that may still be read.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Returns a path below the folder.
    pub(super) fn below<'p>(&self, path: &'p Path) -> &'p Path {
        path.strip_prefix(self.folder).unwrap_or(path)
    }

    /// Returns the name in the front matter of an invalid file; empty if it cannot be read.
    pub(super) fn name_of(&self, file: &PromptFile) -> String {
        let bytes = files::read(self.folder, &file.resolved, self.max_message).unwrap_or_default();
        let front = front_matter_value(&String::from_utf8_lossy(&bytes));
        front.ok().and_then(|front| Some(front["name"].as_str()?.to_owned())).unwrap_or_default()
    }

    /// Reads the prompt of a file; `None` if it is not a prompt.
    pub(super) fn prompt(&mut self, file: &PromptFile) -> Result<Option<LibraryPrompt>, Remark> {
        let path = self.below(&file.path);
        if let Some(why) = self.left_out.get(path) {
            return Err(why.as_str().into());
        }
        let Some((compiled, object)) = self.read(&file.resolved)? else { return Ok(None) };
        let digest = seal::sha256_text(object.as_bytes()).into();
        let place = SourcePlace::File { folder: self.folder.into(), path: file.resolved.clone() };
        Ok(Some(LibraryPrompt {
            compiled: compiled.into(),
            path: path.to_owned(),
            source: PromptSource { digest, place }.into(),
            size: object.len(),
            of: None,
        }))
    }

    /// Reads one file; `None` if it is not a prompt.
    pub(super) fn read(&mut self, file: &Path) -> Result<Option<PromptWithSource>, Remark> {
        let text = files::read(self.folder, file, self.max_message)?;
        let text = String::from_utf8(text).map_err(|error| {
            let valid = error.as_bytes().utf8_chunks().next().map_or("", |chunk| chunk.valid());
            let why = "is not UTF-8; save the file in this encoding";
            Remark::at(valid, valid.len(), why)
        })?;
        let Some(source) = ParsedSource::read(&text) else {
            self.note_missed(file, &text);
            return Ok(None);
        };
        self.take(text.len())?;
        let mut names = Vec::new();
        let limit = self.max_message;
        let compiled = Compiled::new(source?, limit, |name| {
            let content = self.embed(name)?;
            names.push(name.to_owned());
            Ok(content)
        })?;
        names.sort();
        names.dedup();
        let mut object = String::with_capacity(text.len() + 64);
        write_object(&mut object, |object| {
            object.object("embeds", |embeds| {
                let content = |name: &String| self.embedded.get(name);
                for (name, content) in names.iter().filter_map(|name| Some((name, content(name)?)))
                {
                    embeds.json(name, content);
                }
            });
            object.text("source", &text);
        });
        Ok(Some((compiled, canonical(Json::accepted(&object)))))
    }

    fn note_missed(&mut self, file: &Path, text: &str) {
        let root = disk::canonicalize(self.folder).unwrap_or_default();
        let path = self.folder.join(file.strip_prefix(root).unwrap_or(file));
        self.remarks.extend(missed_prompt(text).map(|remark| remark.on(&path)));
    }

    fn embed(&mut self, name: &str) -> Result<Arc<str>, String> {
        if let Some(content) = self.embedded.get(name) {
            return Ok(content.clone());
        }
        let limit = self.max_message;
        let content: Arc<str> = embed::content(self.folder, self.library, name, limit)?.into();
        self.take(content.len())?;
        self.embedded.insert(name.to_owned(), content.clone());
        Ok(content)
    }

    /// Takes the bytes of a file from the remaining bytes.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or("the files of the library are larger than max_walk together")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{LibraryLabels, LibrarySnapshot};
    use config::Settings;

    /// Returns the mistakes and remarks of a library with the file `a.md`.
    fn said(text: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.md"), text).unwrap();
        let labels = LibraryLabels::default();
        let loaded =
            LibrarySnapshot::load(folder.path(), "lib", &Settings::default(), &labels).unwrap();
        let mistakes = loaded.listed.malformed.iter().map(|mistake| mistake.reason.as_str());
        let remarks = loaded.listed.remarks.iter().map(String::as_str);
        let lines: Vec<_> = mistakes.chain(remarks).collect();
        lines.join("\n").replace(&format!("{}/", folder.path().display()), "")
    }

    /// The parser's words stand in no message.
    const TERMS: [&str; 8] = [
        "mapping values",
        "scalar",
        "null",
        "block indentation",
        "syntax",
        "literal",
        "enum",
        "os error",
    ];

    #[test]
    fn an_author_who_knows_neither_yaml_nor_jinja_is_told_the_place_and_the_remedy() {
        let colon = "quote a text that has a colon: `description: \"…\"`";
        let sign = "a text that begins with a special sign needs quotation marks: `title: \"…\"`";
        let fence = "a.md:1:1: looks like front matter, but the first line is not `---`";
        let list = "expected a list, such as [code, language]";
        // The lines of front matter from line 4 on.
        for (front, place, remedy) in [
            ("description: Reviews: a change", "4:21", colon),
            ("arguments:\n  - name: code\n    description: Note: b", "6:22", colon),
            (" title: b", "4:7", "this line begins further right than the key above it"),
            ("arguments:\n\t- name: code", "5:2", "use spaces instead of tabs"),
            ("title: @you", "4:8", sign),
            ("title: %d", "4:8", sign),
            ("title: **Bold**", "4:8", sign),
            ("title: [Draft] Review", "4:8", sign),
            ("title: {{ code }}", "4:8", sign),
            ("title: 'it's'", "4:12", "write `title: \"…\"`"),
            ("title: \"Review", "5:1", "a quotation mark above is not closed"),
            ("arguments: [code", "4:12", "a bracket is not closed by `]`"),
            ("title:Review", "4:1", "a key ends with a colon and a space: `title: …`"),
            ("titel: Review", "4:1", "unknown key `titel`; did you mean `title`?"),
            ("name: y", "4:1", "duplicate mapping key `name`"),
            ("version: [1]", "4:10", "a version is a number or a text"),
            ("system: user", "4:9", "unknown value `user`, expected one of as_user"),
            ("arguments: code", "4:12", list),
            ("arguments:\n- name: code\n  choices: a, b", "6:12", list),
            ("arguments:\n- name: code\n  required: yes", "6:13", "write true or false"),
            ("arguments:\n- title: code", "5:3", "add a line such as `name: review-code`"),
            ("arguments: [code, code]", "4:13", "`code` is declared twice: remove one"),
            ("arguments: [code]", "4:13", "the text does not use the argument `code`"),
        ] {
            let text = format!("---\nname: x\ndescription: d\n{front}\n---\nText\n");
            let text = text.replacen("description: d\ndesc", "title: d\ndesc", 1);
            let said = said(text.as_bytes());
            assert!(said.contains(&format!("a.md:{place}: ")), "{front}: {said}");
            assert!(said.contains(remedy), "{front}: {said}");
            assert!(!TERMS.iter().any(|term| said.contains(term)), "{front}: {said}");
        }
        // The body begins in line 6.
        for (body, place, remedy) in [
            ("Hi\n\n{% if code %}\n{{ code }}", "8:4", "`{% if %}` has no `{% endif %}`"),
            (
                "{% for a in code %}{% if a %}{% endfor %}",
                "6:23",
                "`{% if %}` has no `{% endif %}`",
            ),
            ("{{ code }}{% endif %}", "6:13", "an end without its beginning"),
            ("{% if code %}{% elsif code %}{% endif %}", "6:17", "`{% elsif %}` is not available"),
            ("{% if code = 'x' %}{% endif %}", "6:3", "write `==` to compare"),
            ("Hi {{ code }\nBye", "6:4", "`{{` is not closed by `}}`"),
            ("Hi {{ code\nplease, don't", "6:4", "`{{` is not closed by `}}`"),
            ("Hi {{ code\nand {{ code }}", "6:4", "`{{` is not closed by `}}`"),
            ("{% if code }x{% endif %}", "6:1", "`{%` is not closed by `%}`"),
            ("Hi {# code", "6:4", "`{#` is not closed by `#}`"),
            ("Hi {{ the code }}", "6:6", "two words follow each other: a name has no spaces"),
            ("{{ code | default(\"x) }}", "6:19", "a quotation mark is not closed"),
            ("{{ code | default(“x”) }}", "6:19", "quotation marks must be straight"),
            ("{{ cod }}", "6:4", "which is no argument; did you mean `code`?"),
            ("{{ zebra }}", "6:4", "declare it, such as `arguments: [zebra]`"),
            ("{{ code | uper }}", "6:11", "there is no filter `uper`"),
            ("{code} {{ code }}", "6:1", "{code} stays as it is; write {{ code }}"),
            ("{{ embed(\"no.md\") }}", "6:1", "there is no such file; its name begins at"),
            ("{{ embed(no.md) }}", "6:1", "embed takes one quoted file name"),
            ("Intro\n## user\nHi", "6:1", "text before the first `## user`"),
            ("## system\nHi\n## user\nHi", "6:1", "`system: as_user` in the front matter"),
            ("## user\nHi\n## Asistant\nHo", "8:1", "write `## user` or `## assistant`"),
            ("## Human\nHi\n# AI:\nHo", "8:1", "`# AI:` starts no message"),
            ("", "6:1", "the prompt has no text: write it below"),
        ] {
            let front = "name: x\ndescription: d\narguments: [code, a-b]";
            let said = said(format!("---\n{front}\n---\n{body}").as_bytes());
            assert!(said.contains(&format!("a.md:{place}: ")), "{body}: {said}");
            assert!(said.contains(remedy), "{body}: {said}");
            assert!(!TERMS.iter().any(|term| said.contains(term)), "{body}: {said}");
        }
        let utf16: Vec<u8> = "\u{feff}---\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (text, expected) in [
            (&b"name: x\ndescription: d\n---\nText"[..], fence),
            (b"\n---\nname: x\n---\nText", fence),
            (b"----\nname: x\n----\nText", fence),
            (b"", "a.md: is empty, so it is no prompt"),
            (
                b"---\nname: x\n\nText",
                "a.md:1:1: the front matter, which begins here, has no closing",
            ),
            (b"---\ntitle: x\n---\nText", "a.md:2:1: front matter: has no `name`"),
            (b"---\nname:x\n---\nText", "a.md:2:1: front matter: expected keys with values"),
            (
                b"---\nname: M04 With Spaces\ntitle: t\n---\nText",
                "a.md:2:1: clients show the name as `M04 With Spaces`, and some cut it at a space; \
                 `m04-with-spaces` works in all",
            ),
            (b"---\nname: x\n---\ncaf\xe9", "a.md:4:4: is not UTF-8; save the file in this"),
            (&utf16, "a.md:1:1: is not UTF-8; save the file in this encoding"),
        ] {
            let said = said(text);
            assert!(said.starts_with(expected), "{said}");
        }
        for good in [
            "---\r\nname: x\r\ntitle: t\r\n---\r\nText\r\n",
            "\u{feff}---\nname: x\ntitle: t\n---\nText",
            "---\nname: x\ntitle: t\n---\nOn users:\n## Users\n## Model\n",
            "# Material\n\nname: x",
        ] {
            assert_eq!(said(good.as_bytes()), "", "{good:?}");
        }
    }
}
