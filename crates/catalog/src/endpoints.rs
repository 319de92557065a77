//! The endpoints: the prompts and skills that each offers, and their form, before callers' rights.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::listed_item::ListedItem;
use super::snapshot::{CatalogContent, SkillCatalog};
use config::{Config, Exposure, ToolForm, View};
use domain::name::UpstreamId;
use domain::prompts::skill::{SkillCount, exceeds_hosts};

/// The main endpoint, which offers the whole catalog, and the endpoints of views. A path without a
/// view belongs to the main endpoint.
pub struct EndpointScopes {
    /// The path of the main endpoint, and its exposure.
    main: (String, Exposure),
    /// The views by path.
    views: HashMap<String, EndpointView>,
    /// The upstream of `[passthrough]`.
    passthrough: Option<UpstreamId>,
}

/// A view with its cached counts.
struct EndpointView {
    view: View,
    /// The generation of a content, and the number of its prompts in the view.
    counted: Mutex<Option<(u64, usize)>>,
    /// The generation of a skill content, and whether the view has any of its skills.
    has_skills: Mutex<Option<(u64, bool)>>,
}

impl EndpointScopes {
    pub fn new(config: &Config) -> Self {
        let by_path = |view: &View| {
            let counted = EndpointView {
                view: view.clone(),
                counted: Mutex::default(),
                has_skills: Mutex::default(),
            };
            (config.server.view_path(&view.name), counted)
        };
        Self {
            main: (config.server.path.clone(), config.server.exposure),
            views: config.views.iter().map(by_path).collect(),
            passthrough: config.passthrough.clone(),
        }
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        self.views.keys().chain([&self.main.0]).map(String::as_str)
    }

    fn view(&self, endpoint: &str) -> Option<&View> {
        Some(&self.views.get(endpoint)?.view)
    }

    /// The exposure of an endpoint.
    pub fn exposure(&self, endpoint: &str) -> &Exposure {
        self.view(endpoint).map_or(&self.main.1, |view| &view.exposure)
    }

    /// The form of an endpoint's tools; `None` if the endpoint does not offer prompts as tools. The
    /// form depends on the endpoint's number of prompts, not on the caller, so that it does not
    /// reveal rights.
    pub(crate) fn tool_form(&self, content: &CatalogContent, endpoint: &str) -> Option<ToolForm> {
        let exposure = self.exposure(endpoint);
        exposure.tools.then(|| match exposure.form {
            ToolForm::Each if self.prompt_count(content, endpoint) > exposure.tools_max => {
                ToolForm::Pair
            }
            form => form,
        })
    }

    /// The endpoints that have more prompts than `tools_max` allows for one tool each.
    pub fn beyond_tools_max(&self, content: &CatalogContent) -> Vec<&str> {
        let is_beyond = |endpoint: &&str| {
            self.exposure(endpoint).form == ToolForm::Each
                && self.tool_form(content, endpoint) == Some(ToolForm::Pair)
        };
        self.paths().filter(is_beyond).collect()
    }

    /// The endpoints with more skills than hosts accept from one server, with their counts.
    pub fn beyond_hosts(&self, skills: &SkillCatalog) -> Vec<(&str, SkillCount)> {
        let counts = self.paths().map(|endpoint| (endpoint, self.skill_count(skills, endpoint)));
        counts.filter(|(_, count)| exceeds_hosts(*count)).collect()
    }

    /// The skills of an endpoint before its view is applied. Includes skills derived from prompts
    /// if the endpoint offers prompts as skills.
    pub fn skills_at<'a>(&self, skills: &'a SkillCatalog, endpoint: &str) -> &'a SkillCatalog {
        skills.exposed(self.exposure(endpoint).skills)
    }

    /// The number of skills of an endpoint, and the size of their list. If the whole catalog is
    /// within the limits of hosts, each view is, too: returns the count of the catalog.
    pub fn skill_count(&self, skills: &SkillCatalog, endpoint: &str) -> SkillCount {
        let content = &self.skills_at(skills, endpoint).content;
        let everyone = &content.everyone;
        let all = SkillCount { skills: everyone.len(), bytes: everyone.text_size() };
        let Some(view) = self.view(endpoint).filter(|_| exceeds_hosts(all)) else { return all };
        let mut count = SkillCount::default();
        let serves = |item: &&ListedItem| view.serves(&item.upstream, item.known_name());
        let served = content.items().filter(serves);
        let entries = served.filter_map(|item| content.listed(&item.public_name));
        entries.for_each(|entry| count.add(entry.text().len()));
        count
    }

    /// The number of prompts of an endpoint.
    pub fn prompt_count(&self, content: &CatalogContent, endpoint: &str) -> usize {
        if let Some(private) = &content.private {
            // Private prompts do not count: the form is the same for all callers.
            return self.prompt_count(&private.shared, endpoint);
        }
        let Some(of_view) = self.views.get(endpoint) else { return content.prompt_count() };
        let counted = || of_view.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = counted().filter(|(of, _)| *of == content.generation) {
            return count;
        }
        let serves = self.serving(endpoint);
        let count = content.items().filter(|item| serves(item)).count();
        *counted() = Some((content.generation, count));
        count
    }

    /// Whether an endpoint has any skill for any caller, so that the answer does not reveal rights.
    pub fn has_skills(&self, skills: &SkillCatalog, endpoint: &str) -> bool {
        let content = &self.skills_at(skills, endpoint).content;
        let Some(of_view) = self.views.get(endpoint) else { return content.prompt_count() > 0 };
        let known = || of_view.has_skills.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, has_skills)) = known().filter(|(of, _)| *of == content.generation) {
            return has_skills;
        }
        let has_skills = content.items().any(self.serving(endpoint));
        *known() = Some((content.generation, has_skills));
        has_skills
    }

    /// Whether an endpoint serves all prompts.
    pub(crate) fn serves_all(&self, endpoint: &str) -> bool {
        !self.views.contains_key(endpoint)
    }

    /// Whether an endpoint would serve a prompt of an upstream whose public names have this
    /// beginning.
    pub(crate) fn could_serve(
        &self,
        endpoint: &str,
        upstream: &UpstreamId,
        beginning: &str,
    ) -> bool {
        self.view(endpoint).is_none_or(|view| {
            view.upstreams.contains(upstream)
                && view.prompts.iter().any(|glob| glob.matches_some_with(beginning))
        })
    }

    /// Whether an endpoint serves prompts of an upstream.
    pub fn serves_upstream(&self, endpoint: &str, upstream: &UpstreamId) -> bool {
        self.view(endpoint).is_none_or(|view| view.upstreams.contains(upstream))
    }

    /// The upstream of `[passthrough]`, if the endpoint serves it.
    pub fn passthrough_at(&self, endpoint: &str) -> Option<&UpstreamId> {
        self.passthrough.as_ref().filter(|upstream| self.serves_upstream(endpoint, upstream))
    }

    /// Whether an endpoint serves a prompt.
    pub fn serves(&self, endpoint: &str, item: &ListedItem) -> bool {
        self.serving(endpoint)(item)
    }

    /// Returns a predicate: whether an endpoint serves a prompt.
    pub fn serving(&self, endpoint: &str) -> impl Fn(&ListedItem) -> bool {
        let view = self.view(endpoint);
        move |item| {
            (!item.is_version() || view.is_some_and(|view| view.has_versions))
                && view.is_none_or(|view| view.serves(&item.upstream, item.known_name()))
        }
    }

    /// Whether an endpoint would serve a prompt of this name that no list contains.
    pub fn serves_unlisted(&self, endpoint: &str, upstream: &UpstreamId, name: &str) -> bool {
        self.view(endpoint).is_none_or(|view| view.serves(upstream, name))
    }
}
