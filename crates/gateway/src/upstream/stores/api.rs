//! The interface of a store, as pure functions: paths to ask for, and the meaning of the answers.

use super::version::StoreVersion;
use config::Store;
use domain::fault::excerpt;
use domain::json::{Json, JsonKind};

/// One kind of store.
pub(super) trait StoreApi: Sync {
    /// Returns the path and query of a page of the list; `next` is from the page before.
    fn list_path(&self, store: &Store, next: Option<&str>) -> String;

    /// Reads a page of the list; `None` if the answer is none.
    fn page(&self, answer: Json<'_>, store: &Store) -> Option<Page>;

    /// Reads the answer to [`Found::Elsewhere`].
    ///
    /// # Errors
    /// Why the version cannot be served.
    fn version(&self, answer: Json<'_>) -> Result<StoreVersion, String>;
}

/// A page of the list of a store.
#[derive(Debug)]
pub(super) struct Page {
    /// The prompts, or why one cannot be read.
    pub rows: Vec<Result<Row, String>>,
    /// Names the following page; `None` on the last one.
    pub next: Option<String>,
}

/// A prompt in the list.
#[derive(Debug)]
pub(super) struct Row {
    pub name: String,
    pub description: Option<String>,
    pub found: Found,
}

/// The version that has the label, as far as the list tells.
#[derive(Debug)]
pub(super) enum Found {
    /// The list has the version itself.
    Here(Result<StoreVersion, String>),
    /// There is another request for it.
    Elsewhere {
        /// Path and query.
        path: String,
        /// The same as long as the version is; `None` where the list does not tell.
        stamp: Option<String>,
    },
    /// There is none.
    Nothing,
}

impl Row {
    /// Reads an element of a list with the members `name` and `description`.
    ///
    /// # Errors
    /// It has no name.
    pub(super) fn read(
        element: Json<'_>,
        find: impl FnOnce(&str) -> Result<Found, String>,
    ) -> Result<Self, String> {
        let Some(name) = text(element, "name").filter(|name| !name.is_empty()) else {
            let element = excerpt(element.text());
            return Err(format!("an element of the list has no `name`: {element}"));
        };
        let found = find(&name).map_err(|why| format!("{name:?}: {why}"))?;
        let description = text(element, "description").filter(|text| !text.trim().is_empty());
        Ok(Self { name, description, found })
    }
}

/// Returns a member that is an array.
pub(super) fn array<'a>(object: Json<'a>, member: &str) -> Option<Json<'a>> {
    object.get(member).filter(|value| value.kind() == JsonKind::Array)
}

/// Returns a member that is a string.
pub(super) fn text(object: Json<'_>, member: &str) -> Option<String> {
    object.get(member)?.as_str().map(|text| text.into_owned())
}
