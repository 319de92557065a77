//! The skills of all upstreams. Skills form a content of the catalog like prompts and share the
//! code for views, rights and pages: a skill's public name is the URI of its `SKILL.md`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::approval::PromptApproval;
use crate::listed_item::{ListedItem, ListedSkill, StandsFor};
use crate::segment::{Segment, SegmentWriter};
use crate::snapshot::{CatalogContent, LeftOut, LeftOutBy, PrivatePart, SkillCatalog, next_number};
use crate::source::UpstreamSource;
use base::seal;
use domain::calls::call::SkillPart;
use domain::calls::caller::Principal;
use domain::json::document::Document;
use domain::name::{Prefix, UpstreamId};
use domain::prompts::prompt_version::PromptVersion;
use domain::prompts::skill::{SKILL_FILE, Skill, SkillFile, public_path};

/// A skill with the part that a call requests.
pub struct FoundSkill<'a> {
    pub item: &'a ListedItem,
    pub part: FoundPart<'a>,
}

/// The part that a call requests.
pub enum FoundPart<'a> {
    /// The entry in its listed form.
    Entry(&'a str),
    File(&'a SkillFile, &'a ListedSkill),
    /// The upstream's URI of a file of a dynamic skill.
    DynamicFile(String),
    /// The elements of `resources`.
    Directory(String),
}

/// The skills of one upstream, for the merge.
#[derive(Clone, Copy)]
pub struct SkillSource<'a> {
    pub upstream: &'a UpstreamId,
    pub prefix: &'a Prefix,
    pub skills: &'a [Arc<Skill>],
    /// The approvals of `skills`, by position; empty while approvals are off.
    pub approvals: &'a [PromptApproval],
    /// The prompts behind derived skills, by position; empty for the upstream's skills.
    pub(super) prompts: &'a [PromptOfSkill],
}

/// The prompt behind a derived skill.
pub(super) struct PromptOfSkill {
    pub public_name: Arc<str>,
    pub raw_name: Arc<str>,
    /// The digest of the prompt's definition.
    pub digest: Arc<str>,
    pub version: Option<Arc<PromptVersion>>,
    /// The result of reading the `SKILL.md`.
    pub text: Document,
}

/// The skills of one upstream with a prefix, or of all upstreams without a prefix.
#[derive(Default)]
pub struct SkillGroup {
    segments: Vec<Arc<Segment>>,
    skills: Vec<(Arc<str>, ListedSkill)>,
}

/// Longest public URI to look up, in bytes: the URIs of served files are not longer.
const MAX_PUBLIC_URI: usize = 1024;

impl SkillCatalog {
    pub fn of<'a>(groups: impl Iterator<Item = &'a SkillGroup>) -> Self {
        let mut segments = Vec::new();
        let mut skills = HashMap::new();
        for group in groups {
            segments.extend(group.segments.iter().cloned());
            skills.extend(group.skills.iter().cloned());
        }
        segments.sort_unstable_by(|a, b| a.last_name().cmp(b.last_name()));
        let content = CatalogContent::new(next_number(), segments, Vec::new(), Vec::new());
        Self { content: Arc::new(content), skills, shared: None, with_prompts: None }
    }

    /// The skills of an endpoint; `with_prompts` includes the skills derived from prompts.
    pub fn exposed(&self, with_prompts: bool) -> &Self {
        self.with_prompts.as_deref().filter(|_| with_prompts).unwrap_or(self)
    }

    /// The skill derived from a prompt, if prompts are offered as skills.
    pub fn of_prompt(&self, public_name: &str) -> Option<&ListedItem> {
        let mut items = self.with_prompts.as_ref()?.content.items();
        items.find(|item| item.prompt_name().map(|name| &**name) == Some(public_name))
    }

    /// The shared skills with the skills that only `audience` sees. Private skills have separate
    /// URI prefixes.
    pub(crate) fn with_private(
        generation: u64,
        shared: Arc<Self>,
        groups: &[Arc<SkillGroup>],
        audience: Principal,
    ) -> Self {
        let with_prompts = shared.with_prompts.clone().map(|shared| {
            Arc::new(Self::with_private(next_number(), shared, groups, audience.clone()))
        });
        let segments = groups.iter().flat_map(|group| group.segments.iter().cloned()).collect();
        let part = PrivatePart { audience, shared: shared.content.clone(), segments };
        let content = Arc::new(CatalogContent::with_private(generation, part));
        let skills = groups.iter().flat_map(|group| group.skills.iter().cloned()).collect();
        Self { content, skills, shared: Some(shared), with_prompts }
    }

    /// The skill whose `SKILL.md` has this public URI.
    fn listed(&self, uri: &str) -> Option<&ListedSkill> {
        self.skills.get(uri).or_else(|| self.shared.as_ref()?.listed(uri))
    }

    /// Finds the part of a skill that has this URI. A file of a nested skill also belongs to the
    /// skills around it: returns the first skill that the caller may use, or else the innermost
    /// skill.
    pub fn find(
        &self,
        uri: &str,
        part: SkillPart,
        may_use: impl Fn(&ListedItem) -> bool,
    ) -> Option<FoundSkill<'_>> {
        if uri.len() > MAX_PUBLIC_URI {
            return None;
        }
        if part == SkillPart::Entry {
            let item = self.content.item(uri)?;
            return Some(FoundSkill {
                item,
                part: FoundPart::Entry(self.content.listed(uri)?.text()),
            });
        }
        let mut found = folders(uri).filter_map(|folder| {
            let own = [folder, "/", SKILL_FILE].concat();
            let item = self.content.item(&own)?;
            let listed = self.listed(&own)?;
            Some(FoundSkill { item, part: listed.part(uri, part)? })
        });
        let innermost = found.next()?;
        if may_use(innermost.item) {
            return Some(innermost);
        }
        Some(found.find(|found| may_use(found.item)).unwrap_or(innermost))
    }
}

impl ListedSkill {
    fn part(&self, uri: &str, part: SkillPart) -> Option<FoundPart<'_>> {
        match part {
            SkillPart::Directory => {
                self.skill.directory(&self.prefix, uri).map(FoundPart::Directory)
            }
            SkillPart::Entry | SkillPart::File if self.skill.is_dynamic() => {
                self.skill.dynamic_file(&self.prefix, uri).map(FoundPart::DynamicFile)
            }
            SkillPart::Entry | SkillPart::File => {
                let path = public_path(&self.prefix, uri)?;
                let file = self.skill.files.iter().find(|file| &*file.path == path)?;
                Some(FoundPart::File(file, self))
            }
        }
    }
}

impl<'a> SkillSource<'a> {
    /// The skills that an upstream lists, without derived skills.
    pub(crate) fn own(
        source: &'a UpstreamSource,
        skills: &'a [Arc<Skill>],
        approvals: &'a [PromptApproval],
    ) -> Self {
        let upstream = &source.id;
        let prefix = &source.prefix;
        Self { upstream, prefix, skills, approvals, prompts: &[] }
    }
}

impl SkillGroup {
    pub(crate) fn len(&self) -> usize {
        self.skills.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.skills.is_empty()
    }

    /// Whether both groups serve the same skills.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.skills == other.skills
    }

    /// Bytes that the group takes in memory.
    pub(crate) fn size(&self) -> usize {
        let segments = self.segments.iter().map(|segment| segment.size_with_items());
        let skill = |(uri, listed): &(Arc<str>, ListedSkill)| {
            size_of::<(Arc<str>, ListedSkill)>() + uri.len() + listed.skill.size()
        };
        segments.sum::<usize>() + self.skills.iter().map(skill).sum::<usize>()
    }

    /// The skills that are served, with their items.
    pub(super) fn served(&self) -> impl Iterator<Item = (&ListedItem, &ListedSkill)> {
        let items = self.segments.iter().flat_map(|segment| segment.items());
        items.zip(self.skills.iter().map(|(_, listed)| listed))
    }

    /// Merges the skills of upstreams with one prefix. Also returns the skills that are left out.
    pub(crate) fn merge(
        sources: &[SkillSource<'_>],
        prefixes: &HashSet<&str>,
    ) -> (Self, Vec<LeftOut>) {
        let mut left_out = Vec::new();
        let mut omit = |source: &SkillSource<'_>, skill: &Skill, reason: String| {
            let upstream = source.upstream.to_string();
            let by = LeftOutBy::Name;
            left_out.push(LeftOut { upstream, raw_name: skill.path.to_string(), reason, by });
        };
        let claims = Claims::of(sources, prefixes);
        for (at, place) in &claims.foreign {
            let source = &sources[*at];
            let skill = &sources[*at].skills[*place];
            let first = first_segment(skill);
            let reason =
                format!("the skill's URI begins with the prefix {first:?} of another upstream");
            omit(source, skill, reason);
        }
        let mut group = Self::default();
        let mut writer = SegmentWriter::default();
        for (uri, claimed) in &claims.by_uri {
            let (at, place) = claimed[0];
            let source = &sources[at];
            if claimed.len() > 1 || claims.is_inside_another(uri, Some(at)) {
                for (at, place) in claimed {
                    let reason = format!("another skill claims {uri:?}; none of them is served");
                    omit(&sources[*at], &sources[*at].skills[*place], reason);
                }
                continue;
            }
            let uri: Arc<str> = uri.as_str().into();
            writer = group.push(writer, source, place, &uri);
        }
        let last = writer.finish();
        group.segments.extend((!last.is_empty()).then(|| Arc::new(last)));
        (group, left_out)
    }

    /// Adds a skill. Skills of upstreams without a prefix get separate segments, because other
    /// skills may belong between them.
    fn push(
        &mut self,
        mut writer: SegmentWriter,
        source: &SkillSource<'_>,
        place: usize,
        uri: &Arc<str>,
    ) -> SegmentWriter {
        let skill = &source.skills[place];
        if self.skills.is_empty() || source.prefix.is_bare() {
            let next = SegmentWriter::new(Some(source.upstream.clone()));
            let full = std::mem::replace(&mut writer, next).finish();
            self.segments.extend((!full.is_empty()).then(|| Arc::new(full)));
        }
        let mut entry = String::new();
        skill.write(source.prefix, &mut entry);
        let prompt = source.prompts.get(place);
        let own_digest = || seal::sha256_text(entry.as_bytes()).into();
        let item = ListedItem {
            public_name: uri.clone(),
            upstream: source.upstream.clone(),
            raw_name: prompt.map_or(&skill.path, |prompt| &prompt.raw_name).clone(),
            arguments: Box::default(),
            digest: prompt.map_or_else(own_digest, |prompt| prompt.digest.clone()),
            overlay: None,
            approval: source.approvals.get(place).cloned().unwrap_or_default(),
            version: prompt.and_then(|prompt| prompt.version.clone()),
            stands_for: prompt
                .map_or(StandsFor::Itself, |prompt| StandsFor::Prompt(prompt.public_name.clone())),
        };
        writer.push_prompt(item, |out| {
            skill.via.write_element(out, |out| out.push_str(&entry));
        });
        let prefix = source.prefix.clone();
        let text = prompt.map(|prompt| prompt.text.clone());
        let listed = ListedSkill { uri: uri.clone(), prefix, skill: skill.clone(), text };
        self.skills.push((uri.clone(), listed));
        writer
    }
}

/// The public URIs that skills of several sources claim. A place is the index of a source with the
/// index of a skill in that source.
#[derive(Default)]
pub(super) struct Claims {
    by_uri: BTreeMap<String, Vec<(usize, usize)>>,
    /// Skills within the prefix of another upstream; these skills claim no URI.
    foreign: Vec<(usize, usize)>,
}

impl Claims {
    pub(super) fn of(sources: &[SkillSource<'_>], prefixes: &HashSet<&str>) -> Self {
        let mut claims = Self::default();
        for (at, source) in sources.iter().enumerate() {
            for (place, skill) in source.skills.iter().enumerate() {
                if source.prefix.is_bare() && prefixes.contains(first_segment(skill)) {
                    claims.foreign.push((at, place));
                } else {
                    let uri = skill.public_uri(source.prefix);
                    claims.by_uri.entry(uri).or_default().push((at, place));
                }
            }
        }
        claims
    }

    /// Whether a skill with this URI would equal, contain or lie within another skill.
    pub(super) fn are_near(&self, uri: &str) -> bool {
        self.is_inside_another(uri, None)
    }

    /// Whether a skill contains or lies within the folder of a skill of another source: the
    /// upstreams would disagree about the files there.
    fn is_inside_another(&self, uri: &str, source: Option<usize>) -> bool {
        let is_other =
            |claimed: &[(usize, usize)]| claimed.iter().any(|(at, _)| Some(*at) != source);
        let folder = uri.strip_suffix(SKILL_FILE).unwrap_or(uri);
        let mut inside =
            self.by_uri.range(folder.to_owned()..).take_while(|(uri, _)| uri.starts_with(folder));
        inside.any(|(_, claimed)| is_other(claimed))
            || folders(folder.trim_end_matches('/')).skip(1).any(|outer| {
                let claimed = self.by_uri.get(&[outer, "/", SKILL_FILE].concat());
                claimed.is_some_and(|claimed| is_other(claimed))
            })
    }
}

fn first_segment(skill: &Skill) -> &str {
    skill.path.split('/').next().unwrap_or_default()
}

/// The prefixes of a URI that end before a slash, preceded by the whole URI; longest first.
fn folders(uri: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(uri), |folder| Some(folder.rsplit_once('/')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::json::Json;

    fn skill(uri: &str, files: &[&str]) -> Arc<Skill> {
        let base = uri.strip_suffix(SKILL_FILE).unwrap();
        let name = base.trim_end_matches('/').rsplit('/').next().unwrap();
        let digest = format!("sha256:{}", "0".repeat(64));
        let files = files.iter().map(
            |file| serde_json::json!({"uri": format!("{base}{file}"), "digest": digest, "size": 1}),
        );
        let resources: Vec<_> = files.collect();
        let entry = serde_json::json!({"uri": uri, "resources": resources,
            "frontmatter": {"name": name, "description": "d"}});
        let entry = entry.to_string();
        Arc::new(Skill::read(Json::parse_text(&entry, 8).unwrap()).unwrap())
    }

    fn merged(sources: &[(&str, &str, Vec<Arc<Skill>>)]) -> (SkillCatalog, Vec<String>) {
        let ids: Vec<_> = sources.iter().map(|(id, ..)| UpstreamId::parse(id).unwrap()).collect();
        let all: Vec<_> =
            sources.iter().map(|(_, prefix, _)| Prefix::parse(prefix).unwrap()).collect();
        let taken: HashSet<&str> =
            all.iter().map(Prefix::as_str).filter(|p| !p.is_empty()).collect();
        let mut groups: BTreeMap<&str, Vec<SkillSource<'_>>> = BTreeMap::new();
        for ((upstream, prefix), (_, name, skills)) in ids.iter().zip(&all).zip(sources) {
            let source = SkillSource { upstream, prefix, skills, approvals: &[], prompts: &[] };
            groups.entry(name).or_default().push(source);
        }
        let merged = groups.values().map(|sources| SkillGroup::merge(sources, &taken));
        let (groups, left_out): (Vec<_>, Vec<_>) = merged.unzip();
        let reasons = left_out.into_iter().flatten();
        let reasons = reasons.map(|l| format!("{} {}: {}", l.upstream, l.raw_name, l.reason));
        (SkillCatalog::of(groups.iter()), reasons.collect())
    }

    fn names(catalog: &SkillCatalog) -> Vec<&str> {
        catalog.content.items().map(|item| &*item.public_name).collect()
    }

    #[test]
    fn no_upstream_takes_the_uri_of_another() {
        let own = "skill://tea/SKILL.md";
        let (catalog, left_out) = merged(&[
            (
                "one",
                "",
                vec![skill(own, &["SKILL.md"]), skill("skill://two/a/SKILL.md", &["SKILL.md"])],
            ),
            (
                "three",
                "",
                vec![skill(own, &["SKILL.md"]), skill("skill://zoo/SKILL.md", &["SKILL.md"])],
            ),
            ("two", "two", vec![skill("skill://a/SKILL.md", &["SKILL.md"])]),
        ]);
        assert_eq!(names(&catalog), ["skill://two/a/SKILL.md", "skill://zoo/SKILL.md"]);
        assert_eq!(
            catalog.content.item("skill://two/a/SKILL.md").unwrap().upstream.as_str(),
            "two"
        );
        assert_eq!(left_out.len(), 3, "{left_out:?}");
        let nested = [
            ("one", "", vec![skill("skill://x/a/SKILL.md", &["SKILL.md", "b/SKILL.md"])]),
            ("two", "", vec![skill("skill://x/a/b/SKILL.md", &["SKILL.md"])]),
        ];
        let (catalog, left_out) = merged(&nested);
        assert!(names(&catalog).is_empty());
        assert_eq!(left_out.len(), 2, "{left_out:?}");
    }

    #[test]
    fn a_file_of_a_nested_skill_is_found_by_who_may_use_either() {
        let skills = vec![
            skill("skill://a/SKILL.md", &["SKILL.md", "b/SKILL.md", "c"]),
            skill("skill://a/b/SKILL.md", &["SKILL.md"]),
        ];
        let (catalog, _) = merged(&[("one", "p", skills)]);
        let nested = "skill://p/a/b/SKILL.md";
        let by = |uri: &str, part, raw_name: &str| {
            let found = catalog.find(uri, part, |item| &*item.raw_name == raw_name)?;
            Some(found.item.raw_name.to_string())
        };
        let by_file = |uri, raw_name| by(uri, SkillPart::File, raw_name);
        assert_eq!(by_file(nested, "a/b").as_deref(), Some("a/b"));
        assert_eq!(by_file(nested, "a").as_deref(), Some("a"));
        assert_eq!(by_file(nested, "nothing").as_deref(), Some("a/b"));
        assert_eq!(by_file("skill://p/a/c", "").as_deref(), Some("a"));
        assert_eq!(by("skill://p/a/b", SkillPart::Directory, "a").as_deref(), Some("a"));
        for unknown in [
            "skill://p/a/d",
            "skill://p/a/../a/c",
            "skill://p/a/%63",
            "skill://a/c",
            "SKILL://p/a/c",
            "skill://p/a",
            "skill://p/a/c/",
            "skill://p//a/c",
            "file:///etc/passwd",
            "",
            "/",
        ] {
            assert_eq!(by_file(unknown, "a"), None, "{unknown}");
            assert_eq!(by(unknown, SkillPart::Entry, "a"), None, "{unknown}");
        }
        let long = format!("skill://p/a{}", "/".repeat(2_000));
        assert_eq!(by_file(&long, "a"), None);
    }
}
