//! Reads the files of a library: each embedded file once, and all within a bound.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::place::{Remark, line};
use super::render::Compiled;
use super::source::ParsedSource;
use super::{embed, files};
use domain::json::Json;
use domain::json::canonical::canonical;
use domain::json::object::write_object;

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
}

/// A prompt, and its source as canonical JSON (RFC 8785).
pub(super) type PromptWithSource = (Compiled, String);

impl<'a> LibraryReader<'a> {
    /// Creates a reader; `most` is the limit of all files together, in bytes.
    pub(super) fn new(folder: &'a Path, library: &'a str, max_message: usize, most: usize) -> Self {
        Self { folder, library, max_message, left: most, embedded: BTreeMap::new() }
    }

    pub(super) fn folder(&self) -> &'a Path {
        self.folder
    }

    pub(super) fn max_message(&self) -> usize {
        self.max_message
    }

    /// Reads one file; `None` if it is not a prompt.
    pub(super) fn read(&mut self, file: &Path) -> Result<Option<PromptWithSource>, Remark> {
        let text = files::read(self.folder, file, self.max_message)?;
        let text = String::from_utf8(text).map_err(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            Remark::on_line(line(valid), "is not UTF-8; save the file in this encoding")
        })?;
        let Some(source) = ParsedSource::read(&text) else {
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
