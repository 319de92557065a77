//! Merges all known lists into one content, by groups: each upstream with a prefix is a group, and
//! all others form one group. A group whose lists are unchanged is kept.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, LazyLock};

use tracing::{info, warn};
use unicode_security::confusable_detection::skeleton;

use super::{KnownUpstream, ListVersion, Refresh};
use crate::announce::Redefined;
use crate::listed_item::ListedItem;
use crate::segment::{Segment, SegmentWriter};
use crate::skills::catalog::{SkillGroup, SkillSource};
use crate::skills::of_prompts::{self, ServedPrompt};
use crate::skills::prompts::{SkillPrompts, UpstreamPrompts};
use crate::snapshot::{
    CatalogContent, LeftOut, LeftOutBy, LookAlike, ShownPrompt, SkillCatalog, next_number,
};
use crate::source::composed;
use base::platform::panics;
use domain::fault::excerpt;
use domain::json::Json;
use domain::name::{Naming, Prefix};
use domain::prompts::merge::{self, UnmergedPrompt};
use domain::prompts::prompt::Prompt;
use domain::prompts::skill::Skill;
use domain::text::confusable::{DisplayedText, HashedText, SkeletonIndex, confusables};
use library::prompt_list::MalformedPrompt;

/// Most prompts, and pairs of prompts, that are logged after one merge: an upstream full of bad
/// names must not flood the log.
const LOGGED: usize = 20;

/// The merged groups, by prefix.
#[derive(Default)]
pub(super) struct Groups {
    groups: BTreeMap<Prefix, Group>,
    skeletons: SkeletonIndex,
    hasher: RandomState,
    /// Whether a group with skills was replaced since the skill catalog was made. The views of
    /// skills outlast merges of prompts alone.
    has_new_skills: bool,
}

/// The merged lists of one upstream with a prefix, or of all upstreams without a prefix.
#[derive(Default)]
struct Group {
    made_of: MadeOf,
    /// The segments in order. Segments without a prefix are split where the names of an upstream
    /// with a prefix belong.
    segments: Vec<Arc<Segment>>,
    skills: SkillGroup,
    /// `skills` with the skills derived from prompts, if any prompt is offered as a skill.
    with_prompts: Option<SkillGroup>,
    left_out: Vec<LeftOut>,
    /// The texts of the prompts, in the order of their hashes.
    texts: Vec<GroupText>,
}

/// All inputs of the merge of a group.
#[derive(Default, Eq, PartialEq)]
struct MadeOf {
    /// The upstreams with the versions of their lists.
    lists: Vec<ListVersion>,
    naming: Option<Naming>,
    /// The beginnings of all names with a prefix; only for the group without a prefix.
    beginnings: Vec<String>,
}

/// The place of a text that a client shows for a prompt of a group.
struct GroupText {
    hashed: HashedText,
    segment: u32,
    position: u32,
    kind: TextKind,
}

#[derive(Clone, Copy)]
enum TextKind {
    PublicName,
    RawName,
    Title,
}

impl Refresh {
    /// Merges all known lists. Also keeps the groups for the next merge, and the definitions that
    /// have changed since the previous content.
    pub(super) fn merge(&mut self) {
        let prefixes: HashSet<Prefix> =
            self.upstreams.iter().map(|known| known.source.prefix.clone()).collect();
        self.groups.retain(|prefix| prefixes.contains(prefix));
        let mut changed = Vec::new();
        for prefix in prefixes {
            let made_of = self.made_of(&prefix);
            if self.groups.is_current(&prefix, &made_of) {
                continue;
            }
            let group = self.group(&prefix, made_of);
            changed.extend(group.segments.iter().cloned());
            self.groups.replace(prefix, group);
        }
        let left_out = self.groups.groups.values().flat_map(|group| &group.left_out).cloned();
        let look_alikes = self.groups.look_alikes();
        let segments = self.groups.segments();
        let content = CatalogContent::new(next_number(), segments, left_out.collect(), look_alikes);
        let redefined: Vec<_> = changed
            .iter()
            .flat_map(|segment| segment.items())
            .filter_map(|item| self.redefined(item))
            .collect();
        self.redefined.extend(redefined);
        self.log(&content);
        self.content = Arc::new(content);
        if std::mem::take(&mut self.groups.has_new_skills) {
            self.skills = Arc::new(self.groups.skills());
        }
    }

    /// Panics in debug builds if a kept group differs from a new merge, or the content from the
    /// groups. Accepts the empty groups before the first merge.
    pub(super) fn debug_assert_merged(&self) {
        if !cfg!(debug_assertions) || self.groups.groups.is_empty() {
            return;
        }
        let has_group =
            |known: &KnownUpstream| self.groups.groups.contains_key(&known.source.prefix);
        assert!(self.upstreams.iter().all(has_group), "each upstream has a group");
        let mut prompts = 0;
        for (prefix, Group { made_of, segments, .. }) in &self.groups.groups {
            let is_current = *made_of == self.made_of(prefix);
            assert!(is_current, "a list of {:?} has changed without a merge", prefix.as_str());
            assert!(segments.iter().all(|segment| !segment.is_empty()), "a segment is empty");
            prompts += segments.iter().map(|segment| segment.plain_len()).sum::<usize>();
        }
        assert_eq!(prompts, self.content.prompt_count(), "the groups are the content");
    }

    fn made_of(&self, prefix: &Prefix) -> MadeOf {
        let lists = self.members(prefix).map(|known| ListVersion {
            number: if self.is_part(known) { known.version.number } else { 0 },
            ..known.version.clone()
        });
        MadeOf {
            lists: lists.collect(),
            naming: Some(self.naming.clone()),
            beginnings: if prefix.is_bare() { self.beginnings() } else { Vec::new() },
        }
    }

    /// The upstreams with this prefix: a single upstream, unless the prefix is empty.
    fn members<'a>(&'a self, prefix: &'a Prefix) -> impl Iterator<Item = &'a KnownUpstream> {
        self.upstreams.iter().filter(move |known| known.source.prefix == *prefix)
    }

    /// The beginnings of the names of each upstream with a prefix, in order.
    fn beginnings(&self) -> Vec<String> {
        let prefixes = self.upstreams.iter().map(|known| &known.source.prefix);
        let prefixed = prefixes.filter(|prefix| !prefix.is_bare());
        let mut beginnings: Vec<_> = prefixed.map(|prefix| self.naming.beginning(prefix)).collect();
        beginnings.sort_unstable();
        beginnings
    }

    /// Merges one group.
    fn group(&self, prefix: &Prefix, made_of: MadeOf) -> Group {
        let members: Vec<&KnownUpstream> = self.members(prefix).collect();
        let prefixes = self.upstreams.iter().map(|known| known.source.prefix.as_str());
        let prefixes: HashSet<&str> = prefixes.filter(|prefix| !prefix.is_empty()).collect();
        let own = self.skill_sources(&members);
        let (skills, mut left_out) = SkillGroup::merge(&own, &prefixes);
        let (skill_prompts, unnamed) = self.skill_prompts(&members, &skills);
        left_out.extend(unnamed);
        let lists = members.iter().zip(&skill_prompts);
        let lists: Vec<Cow<'_, [Prompt]>> = lists
            .map(|(known, of_skills)| match self.prompts(known) {
                own if of_skills.prompts.is_empty() => Cow::Borrowed(own),
                own => Cow::Owned([own, &of_skills.prompts].concat()),
            })
            .collect();
        let sources = lists.iter().map(|prompts| merge::MergeSource { prefix, prompts });
        let sources: Vec<_> = sources.collect();
        let merged = merge::merge(&sources, &prefixes, &self.naming, composed);
        let only = (!prefix.is_bare()).then(|| members[0].source.id.clone());
        let mut segments = Vec::new();
        let mut beginnings = made_of.beginnings.iter().peekable();
        let mut writer = SegmentWriter::new(only.clone());
        let mut served = Vec::new();
        for entry in merged.entries {
            let mut is_cut = false;
            while beginnings.next_if(|beginning| **beginning < entry.public_name).is_some() {
                is_cut = true;
            }
            if is_cut {
                let full = std::mem::replace(&mut writer, SegmentWriter::new(only.clone()));
                segments.push(Arc::new(full.finish()));
            }
            let prompt = &sources[entry.source].prompts[entry.prompt];
            panics::at("merge", &prompt.name);
            let known = members[entry.source];
            if let Some(at) = entry.prompt.checked_sub(self.prompts(known).len()) {
                let of_skills = &skill_prompts[entry.source];
                of_skills.write(at, &known.source.id, &entry.public_name, &mut writer);
                continue;
            }
            let approval =
                known.effective.as_ref().and_then(|served| served.approvals.get(entry.prompt));
            let approval = approval.cloned().unwrap_or_default();
            if known.source.prompts_as_skills.is_some() {
                let source = &known.source;
                let approval = approval.clone();
                let public_name = entry.public_name.as_str().into();
                served.push(ServedPrompt { source, prompt, public_name, approval });
            }
            writer.push_merged(&known.source.id, &entry, prompt, approval);
        }
        segments.push(Arc::new(writer.finish()));
        segments.retain(|segment| !segment.is_empty());
        left_out.extend(self.left_out(&members, merged.left_out));
        let skills_of = (&*own, &*self.offered_skills(&members));
        let (with_prompts, unbridged) = of_prompts::merge(skills_of, &served, &prefixes);
        left_out.extend(unbridged);
        let texts = self.groups.texts(&segments);
        Group { made_of, segments, skills, with_prompts, left_out, texts }
    }

    /// The prompts that a group leaves out.
    fn left_out(&self, members: &[&KnownUpstream], unmerged: Vec<UnmergedPrompt>) -> Vec<LeftOut> {
        let named = unmerged.into_iter().map(|left_out| LeftOut {
            upstream: members[left_out.source].source.id.to_string(),
            raw_name: left_out.raw_name,
            reason: left_out.reason,
            by: LeftOutBy::Name,
        });
        let unnamed = members.iter().flat_map(|known| {
            let served = known.list.as_ref().map(|(walked, _)| walked.listed.malformed.as_slice());
            let withheld = known.effective.iter().flat_map(|effective| effective.left_out.clone());
            known.malformed(served.unwrap_or_default()).chain(withheld)
        });
        named.chain(unnamed).collect()
    }

    /// The skills of a group, by its members.
    fn skill_sources<'a>(&self, members: &[&'a KnownUpstream]) -> Vec<SkillSource<'a>> {
        let source = |known: &&'a KnownUpstream| {
            let effective = known.effective.as_ref();
            let skills =
                effective.map_or_else(|| self.listed_skills(known), |effective| &effective.skills);
            let approvals = effective.map_or(&[][..], |effective| &effective.skill_approvals);
            SkillSource::own(&known.source, skills, approvals)
        };
        members.iter().map(source).collect()
    }

    /// The skills that members of a group list, including withheld skills.
    fn offered_skills<'a>(&self, members: &[&'a KnownUpstream]) -> Vec<SkillSource<'a>> {
        let source = |known: &&'a KnownUpstream| {
            SkillSource::own(&known.source, self.listed_skills(known), &[])
        };
        members.iter().map(source).collect()
    }

    fn listed_skills<'a>(&self, known: &'a KnownUpstream) -> &'a [Arc<Skill>] {
        known.list.as_ref().map_or(&[], |(walked, _)| &walked.listed.skills)
    }

    /// The prompts derived from skills of a group, by its members.
    fn skill_prompts(
        &self,
        members: &[&KnownUpstream],
        skills: &SkillGroup,
    ) -> (Vec<SkillPrompts>, Vec<LeftOut>) {
        let sources: Vec<_> = members
            .iter()
            .map(|known| UpstreamPrompts {
                upstream: &known.source.id,
                prompts: self.prompts(known),
                offered: known.list.as_ref().map_or(&[], |(walked, _)| &walked.listed.prompts),
                skills_as_prompts: known.source.skills_as_prompts,
            })
            .collect();
        SkillPrompts::of(skills, &sources)
    }

    /// The change of a definition since the previous content.
    fn redefined(&self, now: &ListedItem) -> Option<Redefined> {
        let before = self.content.item(&now.public_name)?;
        let is_same = before.upstream != now.upstream || before.digest == now.digest;
        (!is_same).then(|| Redefined {
            upstream: now.upstream.to_string(),
            raw_name: now.raw_name.to_string(),
            before: before.digest.to_string(),
            now: now.digest.to_string(),
            overlays: overlay_numbers(now),
        })
    }

    /// Logs the change, each newly omitted prompt, and each new pair of look-alikes.
    fn log(&self, content: &CatalogContent) {
        let news = added(&self.content.left_out, &content.left_out);
        // Overlays and approvals leave prompts out on purpose.
        let news: Vec<_> = news.into_iter().filter(|l| !l.by.is_wanted()).collect();
        for LeftOut { upstream, raw_name, reason, .. } in news.iter().take(LOGGED) {
            warn!(
                upstream,
                // A file of a library has none; its reason begins with its path.
                name = (!raw_name.is_empty()).then(|| excerpt(raw_name)),
                reason,
                "prompt left out of the list; correct its file, or its definition at the upstream"
            );
        }
        if news.len() > LOGGED {
            warn!(more = news.len() - LOGGED, "more prompts left out of the list");
        }
        let news = added(&self.content.look_alikes, &content.look_alikes);
        for LookAlike { one, other } in news.iter().take(LOGGED) {
            warn!(
                upstream = one.upstream,
                name = one.name,
                text = one.text,
                other_upstream = other.upstream,
                other_name = other.name,
                other_text = other.text,
                "prompts of two upstreams look alike; check that neither imitates the other"
            );
        }
        if news.len() > LOGGED {
            warn!(more = news.len() - LOGGED, "more prompts of two upstreams look alike");
        }
        if content.everyone.digest() != self.content.everyone.digest() {
            info!(prompts = content.everyone.len(), "catalog changed");
        }
    }
}

impl Group {
    fn has_skills(&self) -> bool {
        !self.skills.is_empty() || self.with_prompts.is_some()
    }
}

impl Groups {
    fn is_current(&self, prefix: &Prefix, made_of: &MadeOf) -> bool {
        self.groups.get(prefix).is_some_and(|group| group.made_of == *made_of)
    }

    fn retain(&mut self, is_kept: impl Fn(&Prefix) -> bool) {
        let gone: Vec<_> = self.groups.keys().filter(|prefix| !is_kept(prefix)).cloned().collect();
        for prefix in gone {
            self.replace(prefix.clone(), Group::default());
            self.groups.remove(&prefix);
        }
    }

    fn replace(&mut self, prefix: Prefix, group: Group) {
        group.texts.iter().for_each(|text| self.skeletons.add(text.hashed));
        self.has_new_skills |= group.has_skills();
        if let Some(before) = self.groups.insert(prefix, group) {
            self.has_new_skills |= before.has_skills();
            before.texts.iter().for_each(|text| self.skeletons.remove(text.hashed));
        }
    }

    /// All skills.
    fn skills(&self) -> SkillCatalog {
        let own = SkillCatalog::of(self.groups.values().map(|group| &group.skills));
        let has_others = self.groups.values().any(|group| group.with_prompts.is_some());
        let all =
            self.groups.values().map(|group| group.with_prompts.as_ref().unwrap_or(&group.skills));
        let with_prompts = has_others.then(|| Arc::new(SkillCatalog::of(all)));
        SkillCatalog { with_prompts, ..own }
    }

    /// All segments in the order of their names.
    fn segments(&self) -> Vec<Arc<Segment>> {
        let mut segments: Vec<_> =
            self.groups.values().flat_map(|group| &group.segments).cloned().collect();
        segments.sort_unstable_by(|a, b| a.last_name().cmp(b.last_name()));
        segments
    }

    /// The texts that clients may show for the prompts of a group.
    fn texts(&self, segments: &[Arc<Segment>]) -> Vec<GroupText> {
        let mut texts = Vec::new();
        for (index, segment) in (0_u32..).zip(segments) {
            // A version has the title of its prompt.
            let is_plain = |at: &u32| !segment.items()[*at as usize].is_version();
            for position in (0..segment.len() as u32).filter(is_plain) {
                for kind in [TextKind::PublicName, TextKind::RawName, TextKind::Title] {
                    if let Some(text) = shown(segment, position, kind) {
                        let hashed = HashedText {
                            skeleton: hash_of_skeleton(&self.hasher, &text),
                            text: self.hasher.hash_one(&*text),
                        };
                        texts.push(GroupText { hashed, segment: index, position, kind });
                    }
                }
            }
        }
        texts.sort_unstable_by_key(|text| text.hashed);
        texts
    }

    /// Prompts of different upstreams with names or titles that look alike.
    fn look_alikes(&self) -> Vec<LookAlike> {
        let mut prompts: Vec<&ListedItem> = Vec::new();
        let mut texts: Vec<(usize, Cow<'_, str>)> = Vec::new();
        for skeleton in self.skeletons.ambiguous() {
            for group in self.groups.values() {
                let start = group.texts.partition_point(|text| text.hashed.skeleton < *skeleton);
                let same = group.texts[start..].iter();
                for text in same.take_while(|text| text.hashed.skeleton == *skeleton) {
                    let segment = &group.segments[text.segment as usize];
                    if let Some(shown) = shown(segment, text.position, text.kind) {
                        texts.push((prompts.len(), shown));
                        prompts.push(&segment.items()[text.position as usize]);
                    }
                }
            }
        }
        let ids: BTreeMap<&str, usize> = {
            let ids: HashSet<&str> = prompts.iter().map(|item| item.upstream.as_str()).collect();
            let mut ids: Vec<_> = ids.into_iter().collect();
            ids.sort_unstable();
            ids.into_iter().zip(0..).collect()
        };
        // A prompt has several texts, so its index among all prompts identifies the prompt.
        let mut names: Vec<&str> = prompts.iter().map(|item| &*item.public_name).collect();
        names.sort_unstable();
        names.dedup();
        let texts = texts.iter().map(|(at, text)| DisplayedText {
            source: ids[prompts[*at].upstream.as_str()],
            entry: names.binary_search(&&*prompts[*at].public_name).unwrap_or_default(),
            text,
        });
        let upstreams: Vec<&str> = ids.keys().copied().collect();
        let described = |shown: DisplayedText<'_>| ShownPrompt {
            upstream: upstreams[shown.source].to_owned(),
            name: names[shown.entry].to_owned(),
            text: excerpt(shown.text),
        };
        confusables(texts, |text| skeleton(text).collect())
            .into_iter()
            .map(|pair| LookAlike { one: described(pair.one), other: described(pair.other) })
            .collect()
    }
}

/// A text of the prompt at a position.
fn shown(segment: &Segment, position: u32, kind: TextKind) -> Option<Cow<'_, str>> {
    let position = position as usize;
    match kind {
        TextKind::PublicName => Some(Cow::Borrowed(segment.name(position))),
        TextKind::RawName => Some(Cow::Borrowed(&*segment.items()[position].raw_name)),
        TextKind::Title => segment.element(position).get("title").and_then(Json::as_str),
    }
}

/// The overlays that made a definition, by their numbers in the file.
fn overlay_numbers(item: &ListedItem) -> Vec<usize> {
    item.overlay.as_ref().map(|overlay| overlay.numbers.clone()).unwrap_or_default()
}

/// A hash of the skeleton of a text (UTS 39, section 4).
fn hash_of_skeleton(hasher: &RandomState, text: &str) -> u64 {
    if text.is_ascii() {
        let skeleton: String =
            text.bytes().map(|byte| &*ASCII_SKELETONS[usize::from(byte)]).collect();
        hasher.hash_one(skeleton)
    } else {
        hasher.hash_one(skeleton(text).collect::<String>())
    }
}

/// The skeleton of each ASCII character. The skeleton of an ASCII text is their concatenation,
/// because ASCII characters do not compose.
static ASCII_SKELETONS: LazyLock<[String; 128]> = LazyLock::new(|| {
    std::array::from_fn(|byte| skeleton(char::from(byte as u8).encode_utf8(&mut [0; 4])).collect())
});

impl KnownUpstream {
    fn malformed<'a>(
        &'a self,
        malformed: &'a [MalformedPrompt],
    ) -> impl Iterator<Item = LeftOut> + 'a {
        malformed.iter().map(|malformed| LeftOut {
            upstream: self.source.id.to_string(),
            raw_name: malformed.name.clone(),
            reason: malformed.reason.clone(),
            by: if malformed.is_served { LeftOutBy::Stale } else { LeftOutBy::Defect },
        })
    }
}

/// Elements of `now` that are not in `before`.
fn added<'a, T: Eq + Hash>(before: &[T], now: &'a [T]) -> Vec<&'a T> {
    let before: HashSet<_> = before.iter().collect();
    now.iter().filter(|item| !before.contains(item)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_there_before_is_not_logged_again() {
        assert_eq!(added(&[1, 2], &[2, 3]), [&3]);
        assert_eq!(added(&[1, 2], &[2, 1]), [&0; 0]);
    }

    proptest! {
        #[test]
        fn u11_the_skeleton_of_an_ascii_text_is_made_of_those_of_its_characters(text in "[ -~]{0,20}") {
            let by_characters: String =
                text.bytes().map(|byte| &*ASCII_SKELETONS[usize::from(byte)]).collect();
            prop_assert_eq!(by_characters, skeleton(&text).collect::<String>());
        }
    }
}
