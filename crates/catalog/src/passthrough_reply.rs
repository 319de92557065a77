//! Unchanged results of the upstream of `[passthrough]`, and the pages of its lists.

use std::time::Duration;

use bytes::Bytes;

use super::snapshot::Incomplete;
use domain::calls::cursor::CacheScope;
use domain::calls::passthrough::PassthroughList;
use domain::json::document::Document;
use domain::json::{Json, JsonKind};
use domain::name::UpstreamId;

/// A result of the upstream of `[passthrough]`.
#[derive(Debug)]
pub struct PassthroughReply {
    /// The result of the upstream, nulls included.
    pub result: Document,
    pub upstream: UpstreamId,
    /// The page, if the result is a list.
    pub page: Option<PassthroughPage>,
    /// How long, and for whom, a modern client may keep the result; `None` if the revision has no
    /// such members.
    pub caching: Option<(Duration, CacheScope)>,
}

/// The elements of one page of a list of the upstream.
#[derive(Debug)]
pub struct PassthroughPage {
    pub list: PassthroughList,
    /// The tools derived from prompts, which come before the upstream's: elements separated by
    /// commas, in pieces of UTF-8.
    pub ours: Vec<Bytes>,
    /// Which elements of the upstream the caller may use; `None` for all.
    pub allowed: Option<Vec<bool>>,
    /// The sealed cursor of the next page.
    pub next_cursor: Option<String>,
    /// The upstream, if it could not be called.
    pub incomplete: Option<Incomplete>,
}

impl PassthroughReply {
    /// A result without changes.
    pub fn of(result: Document, upstream: UpstreamId) -> Self {
        Self { result, upstream, page: None, caching: None }
    }
}

impl PassthroughPage {
    /// A page of one list without restrictions.
    pub fn of(list: PassthroughList) -> Self {
        Self { list, ours: Vec::new(), allowed: None, next_cursor: None, incomplete: None }
    }

    /// The elements of the upstream that the caller may use.
    pub fn elements<'a>(&self, result: Json<'a>) -> impl Iterator<Item = Json<'a>> {
        let all = elements(result, self.list).into_iter().flat_map(Json::elements).enumerate();
        let is_allowed =
            move |at: usize| self.allowed.as_ref().is_none_or(|each| each.get(at) == Some(&true));
        all.filter(move |(at, _)| is_allowed(*at)).map(|(_, element)| element)
    }
}

/// The array of a list.
pub fn elements(result: Json<'_>, list: PassthroughList) -> Option<Json<'_>> {
    result.get(list.member).filter(|elements| elements.kind() == JsonKind::Array)
}
