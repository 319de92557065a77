//! `[views.…]`: named endpoints that serve a part of the catalog.

use super::reader::Section;
use super::server::Server;
use super::upstream::Upstream;
use crate::domain::glob::{Glob, MAX_PATTERN};
use crate::domain::name::UpstreamId;

/// An endpoint of its own, below the path of the main one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct View {
    /// Characters of a-z, 0-9 and -.
    pub name: String,
    /// Whose prompts it serves.
    pub upstreams: Vec<UpstreamId>,
    /// Over public names; one of them must match.
    pub prompts: Vec<Glob>,
}

pub(super) fn read_all(
    root: &mut Section<'_>,
    server: &Server,
    upstreams: &[Upstream],
) -> Vec<View> {
    let mut views = Vec::new();
    for (name, mut section) in root.sections("views") {
        if UpstreamId::parse(&name).is_none() {
            section.mistake("", "the name of a view has 1 to 64 characters of a-z, 0-9 and -");
        }
        let mut ids = Vec::new();
        for id in section.texts("upstreams") {
            match upstreams.iter().find(|upstream| upstream.id.as_str() == id) {
                Some(upstream) => ids.push(upstream.id.clone()),
                None => section.mistake("upstreams", format!("there is no upstream {id:?}")),
            }
        }
        if !section.was_read("upstreams") {
            ids = upstreams.iter().map(|upstream| upstream.id.clone()).collect();
        }
        if server.sse_path.as_ref() == Some(&server.view_path(&name)) {
            section.mistake("", "server.sse_path is its path already");
        }
        let prompts = globs(&mut section, "prompts").unwrap_or_else(all);
        section.finish();
        views.push(View { name, upstreams: ids, prompts });
    }
    views
}

/// Patterns over names; nothing where there is no such key.
pub(super) fn globs(section: &mut Section<'_>, key: &'static str) -> Option<Vec<Glob>> {
    let texts = section.texts(key);
    let globs: Vec<_> = texts.iter().filter_map(|text| Glob::parse(text)).collect();
    if globs.len() < texts.len() {
        let rule = format!("each pattern has 1 to {MAX_PATTERN} bytes, in which * is any text");
        section.mistake(key, rule);
    }
    section.was_read(key).then_some(globs)
}

/// The pattern that every name matches.
pub(super) fn all() -> Vec<Glob> {
    Glob::parse("*").into_iter().collect()
}
