//! The texts of the reading before, which stay served while their files are not valid.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::files::PromptFile;
use super::place::Remark;
use super::reader::{LibraryPrompt, LibraryReader};

/// The texts of the reading before.
pub(super) struct EarlierTexts<'a> {
    /// By the names of prompts.
    prompts: Option<&'a BTreeMap<String, LibraryPrompt>>,
    /// By the paths of files.
    files: BTreeMap<&'a Path, &'a LibraryPrompt>,
}

/// The text of a file, with the outcome of its check. With a mistake, the text is that of the
/// reading before.
pub(super) struct ReadFile<T> {
    pub text: Option<(LibraryPrompt, T)>,
    pub mistake: Option<Remark>,
}

/// The files that claim each name. The file that has served the name is the first.
pub(super) struct Claims(BTreeMap<String, Vec<PathBuf>>);

/// Why a file does not get the name that it claims.
pub(super) struct Rival {
    /// Another file of this name.
    pub path: PathBuf,
    /// Whether that file has the name.
    pub is_served: bool,
}

impl<'a> EarlierTexts<'a> {
    /// `prompts` are those of the reading before, if there was a reading.
    pub(super) fn of(prompts: Option<&'a BTreeMap<String, LibraryPrompt>>) -> Self {
        let all = prompts.into_iter().flat_map(BTreeMap::values);
        Self { prompts, files: all.map(|prompt| (prompt.path.as_path(), prompt)).collect() }
    }

    /// Whether a file was served.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    /// Returns the text that a file had, unless the reader has no bytes left for it.
    pub(super) fn text(
        &self,
        path: &Path,
        reader: &mut LibraryReader<'_>,
    ) -> Option<LibraryPrompt> {
        let text = *self.files.get(path)?;
        reader.take(text.size).ok().map(|()| text.clone())
    }

    /// Reads a file.
    pub(super) fn read<T>(
        &self,
        reader: &mut LibraryReader<'_>,
        file: &PromptFile,
        check: impl Fn(&LibraryPrompt) -> Result<T, Remark>,
    ) -> ReadFile<T> {
        let path = reader.below(&file.path);
        let read = reader.prompt(file).and_then(|text| match text {
            Some(text) => check(&text).map(|checked| Some((text, checked))),
            None if self.has(path) => {
                Err("has no front matter any more; restore it, or remove the file".into())
            }
            None => Ok(None),
        });
        match read {
            Ok(text) => ReadFile { text, mistake: None },
            Err(why) => {
                let text = self.text(path, reader);
                let text = text.and_then(|text| check(&text).ok().map(|checked| (text, checked)));
                ReadFile { text, mistake: Some(why) }
            }
        }
    }

    /// Whether a file has served the prompt of this name.
    fn is_holder(&self, name: &str, path: &Path) -> bool {
        self.prompts.and_then(|prompts| prompts.get(name)).is_some_and(|text| text.path == path)
    }

    /// Returns the claims of texts on their names.
    pub(super) fn claims<'t>(&self, texts: impl Iterator<Item = &'t LibraryPrompt>) -> Claims {
        let mut claims = BTreeMap::<String, Vec<PathBuf>>::new();
        for LibraryPrompt { compiled, path, .. } in texts {
            let files = claims.entry(compiled.name.clone()).or_default();
            files.push(path.clone());
            if self.is_holder(&compiled.name, path) {
                let last = files.len() - 1;
                files.swap(0, last);
            }
        }
        Claims(claims)
    }
}

impl Claims {
    /// Returns why a text does not get its name; `None` if it does.
    pub(super) fn rival(&self, text: &LibraryPrompt, earlier: &EarlierTexts<'_>) -> Option<Rival> {
        let name = &text.compiled.name;
        let [first, second, ..] = self.0.get(name)?.as_slice() else { return None };
        let is_served = earlier.is_holder(name, first);
        let is_first = text.path == *first;
        let path = if is_first { second } else { first }.clone();
        (!is_first || !is_served).then_some(Rival { path, is_served })
    }
}
