//! `[views.NAME]`: endpoints that serve a part of the catalog.

use super::Server;
use super::exposure::{self, Exposure};
use crate::reader::Section;
use crate::upstream::UpstreamSettings;
use domain::name::UpstreamId;
use domain::text::glob::{Glob, MAX_PATTERN};

/// A named endpoint below the path of the main endpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct View {
    /// 1 to 64 characters of `a-z`, `0-9` and `-`; last segment of the path.
    pub name: String,
    /// The upstreams whose prompts the view serves.
    pub upstreams: Vec<UpstreamId>,
    /// Patterns of public names; a prompt is served if one matches.
    pub prompts: Vec<Glob>,
    /// Whether the view serves versions of library prompts as prompts.
    pub has_versions: bool,
    pub exposure: Exposure,
}

impl View {
    /// Whether the view serves a prompt or skill with this public name, or URI, of an upstream.
    pub fn serves(&self, upstream: &UpstreamId, public_name: &str) -> bool {
        self.upstreams.contains(upstream)
            && self.prompts.iter().any(|glob| glob.matches(public_name))
    }
}

/// The keys of `[views.NAME]` in addition to those of [`exposure`].
const KEYS: &str = r#"
upstreams, such as ["library"]: Upstreams whose prompts the view serves. Not set: all.
prompts, such as ["library__*"]: Patterns of public names, and of the URIs of skills, where `*`
    matches any text. Other prompts do not exist at this endpoint. Not set: all.
versions: Also lists and serves the versions of library prompts (`NAME@LABEL`, `NAME@3`), which
    exist nowhere else. See docs/versions.md.
"#;

pub(crate) fn read_all(
    root: &mut Section<'_>,
    server: &Server,
    upstreams: &[UpstreamSettings],
    disabled: &[UpstreamId],
) -> Vec<View> {
    let mut views = Vec::new();
    for (name, mut section) in root.sections("views") {
        if UpstreamId::parse(&name).is_none() {
            let rule = "the name of a view must have 1 to 64 characters of a-z, 0-9 and -, and start \
                        with a letter or a digit";
            section.mistake("", rule);
        }
        section.explain(KEYS);
        let every = || upstreams.iter().map(|upstream| upstream.id.clone()).collect();
        let ids = upstream_ids(&mut section, upstreams, disabled).unwrap_or_else(every);
        let path = server.view_path(&name);
        if server.sse_path.as_ref() == Some(&path) {
            section.mistake("", format!("its path {path} is server.sse_path: change one of them"));
        }
        let prompts = globs(&mut section, "prompts").unwrap_or_else(all);
        let has_versions = section.flag("versions", false);
        let exposure = exposure::read(&mut section, &server.exposure);
        section.finish();
        views.push(View { name, upstreams: ids, prompts, has_versions, exposure });
    }
    views
}

/// Returns the id of an upstream, even if it is not enabled: an upstream can be switched off
/// without a change elsewhere.
pub(crate) fn known_id(
    id: &str,
    upstreams: &[UpstreamSettings],
    disabled: &[UpstreamId],
) -> Option<UpstreamId> {
    let enabled = upstreams.iter().map(|upstream| &upstream.id);
    enabled.chain(disabled).find(|known| known.as_str() == id).cloned()
}

/// Reads the key `upstreams`, a list of upstream ids; `None` if it is not set.
pub(crate) fn upstream_ids(
    section: &mut Section<'_>,
    upstreams: &[UpstreamSettings],
    disabled: &[UpstreamId],
) -> Option<Vec<UpstreamId>> {
    let mut ids = Vec::new();
    for id in section.texts("upstreams") {
        match known_id(&id, upstreams, disabled) {
            Some(known) => ids.push(known),
            None if section.is_broken(&format!("upstreams.{id}")) => {}
            None => {
                let enabled: Vec<_> = upstreams.iter().map(|other| other.id.as_str()).collect();
                let enabled =
                    if enabled.is_empty() { "none is".to_owned() } else { enabled.join(", ") };
                let message = format!("there is no upstream {id:?}; enabled: {enabled}");
                section.mistake("upstreams", message);
            }
        }
    }
    section.was_read("upstreams").then_some(ids)
}

/// Reads a list of patterns; `None` if the key is not set.
pub(crate) fn globs(section: &mut Section<'_>, key: &'static str) -> Option<Vec<Glob>> {
    let texts = section.texts(key);
    let globs: Vec<_> = texts.iter().filter_map(|text| Glob::parse(text)).collect();
    if globs.len() < texts.len() {
        let rule =
            format!("each pattern must have 1 to {MAX_PATTERN} bytes; * stands for any characters");
        section.mistake(key, rule);
    }
    section.was_read(key).then_some(globs)
}

/// Returns the pattern that matches every name.
pub(crate) fn all() -> Vec<Glob> {
    Glob::parse("*").into_iter().collect()
}
