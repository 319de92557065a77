//! The interface of a store, as pure functions: request paths, and parsers of the responses.

use serde::{Deserialize, Serialize};

use super::version::StoreVersion;
use config::PromptStore;
use domain::fault::excerpt;
use domain::json::{Json, JsonKind};
use domain::name::{VERSION_MARK, version_name};

/// One kind of store.
pub(super) trait StoreApi: Sync {
    /// Returns the path and query of a page of the list; `next` is from the previous page.
    fn list_path(&self, store: &PromptStore, next: Option<&str>) -> String;

    /// Parses one page of the list; `None` if the response is not a page.
    fn page(&self, answer: Json<'_>, store: &PromptStore) -> Option<ListPage>;

    /// Parses the response to the request of [`Found::Elsewhere`].
    fn version(&self, answer: Json<'_>) -> Result<StoreVersion, String>;
}

/// A page of the list of a store.
#[derive(Debug)]
pub(super) struct ListPage {
    /// The prompts, or the errors of unreadable prompts.
    pub rows: Vec<Result<Row, String>>,
    /// The cursor of the following page; `None` on the last page.
    pub next: Option<String>,
}

/// A prompt in the list, under one label.
#[derive(Debug)]
pub(super) struct Row {
    /// `NAME`, or `NAME@LABEL` for labels other than the label of plain names.
    pub name: String,
    pub listed: Listed,
    pub found: Found,
}

/// The listed prompt under one label.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Listed {
    /// `NAME`.
    pub of: String,
    /// `None`: the label of plain names.
    pub label: Option<String>,
    pub description: Option<String>,
}

/// The version with the label, according to the list.
#[derive(Debug)]
pub(super) enum Found {
    /// The list contains the version itself.
    Here(Result<StoreVersion, String>),
    /// The version needs a separate request.
    Elsewhere {
        /// Path and query of the request.
        path: String,
        /// Changes with the version; `None` if the list shows no such value.
        stamp: Option<String>,
    },
    /// No version has the label.
    Nothing,
}

/// Reads the elements of a list, which have the members `name` and `description`: a row for each
/// label of the configuration. `find` finds the version of a name that has a label.
pub(super) fn rows<'a>(
    list: Json<'a>,
    store: &PromptStore,
    find: impl Fn(Json<'a>, &str, &str) -> Result<Found, String>,
) -> Vec<Result<Row, String>> {
    let mut rows = Vec::new();
    for element in list.elements() {
        match Row::read(element, store, |name, label| find(element, name, label)) {
            Ok(read) => rows.extend(read.into_iter().map(Ok)),
            Err(reason) => rows.push(Err(reason)),
        }
    }
    rows
}

impl Row {
    /// Reads an element.
    fn read(
        element: Json<'_>,
        store: &PromptStore,
        find: impl Fn(&str, &str) -> Result<Found, String>,
    ) -> Result<Vec<Self>, String> {
        let Some(name) = text(element, "name").filter(|name| !name.is_empty()) else {
            let element = excerpt(element.text());
            return Err(format!("an element of the list has no `name`: {element}"));
        };
        if !store.labels.is_empty() && name.contains(VERSION_MARK) {
            let what = "which stands before a label where `labels` is set; rename it";
            return Err(format!("{name:?}: its name has a {VERSION_MARK}, {what}"));
        }
        let description = text(element, "description").filter(|text| !text.trim().is_empty());
        let row = |label: Option<&String>| {
            let found = find(&name, label.unwrap_or(&store.label));
            let found = found.map_err(|why| format!("{name:?}: {why}"))?;
            let of = name.clone();
            let description = description.clone();
            let listed = Listed { of, label: label.cloned(), description };
            let name = label.map_or(name.clone(), |label| version_name(&name, label));
            Ok(Self { name, listed, found })
        };
        std::iter::once(None).chain(store.labels.iter().map(Some)).map(row).collect()
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
