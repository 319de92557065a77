//! Segments: the catalog in pieces that are shared between snapshots and views. A change of one
//! upstream replaces its own segment only.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::approval::PromptApproval;
use super::listed_item::{ListedItem, StandsFor};
use base::seal;
use domain::calls::rights::Allowed;
use domain::json::Json;
use domain::name::UpstreamId;
use domain::prompts::merge::MergedPrompt;
use domain::prompts::prompt::{Argument, Prompt};
use domain::text::chunks;
use domain::tool::name::tool_name;

/// SHA-256 of a serialised list: equal digests are equal lists.
pub type Digest = [u8; 32];

/// Consecutive elements of a list, in byte order of their names, already serialised. No name of
/// another segment lies between them.
#[derive(Default)]
pub struct Segment {
    /// The elements, each followed by a comma.
    text: Arc<String>,
    /// The same text as shared bytes.
    bytes: Bytes,
    elements: Vec<Element>,
    /// The items behind the elements; empty if the elements are no prompts.
    items: Vec<ListedItem>,
    /// The upstream of all elements; `None` if several upstreams share the segment.
    upstream: Option<UpstreamId>,
    /// The positions of the versions of prompts, in the order of their raw names.
    versions: Box<[u32]>,
    /// All positions, as one range.
    all: Arc<[Range<u32>]>,
    /// The positions of the prompts with derived tool names, by these names.
    derived_names: OnceLock<HashMap<String, usize>>,
}

/// One element of a list.
struct Element {
    /// The public name of a prompt, or the name of a tool.
    name: Arc<str>,
    /// The end of the element in the text, before its comma.
    end: usize,
    digest: Digest,
}

/// A segment that is being written.
#[derive(Default)]
pub struct SegmentWriter {
    text: String,
    segment: Segment,
}

impl SegmentWriter {
    /// A segment of the prompts of one upstream; `None` for several upstreams.
    pub fn new(upstream: Option<UpstreamId>) -> Self {
        Self { segment: Segment { upstream, ..Segment::default() }, ..Self::default() }
    }

    /// Appends an element that `write` serialises.
    pub fn push(&mut self, name: Arc<str>, write: impl FnOnce(&mut String)) {
        let start = self.text.len();
        write(&mut self.text);
        let digest = seal::sha256(&self.text.as_bytes()[start..]);
        let last = self.segment.elements.last();
        debug_assert!(last.is_none_or(|last| last.name < name), "{name} is out of order");
        self.segment.elements.push(Element { name, end: self.text.len(), digest });
        self.text.push(',');
    }

    /// Appends a prompt.
    pub fn push_prompt(&mut self, item: ListedItem, write: impl FnOnce(&mut String)) {
        self.push(item.public_name.clone(), write);
        self.segment.items.push(item);
    }

    /// Appends a prompt of a merged list.
    pub fn push_merged(
        &mut self,
        upstream: &UpstreamId,
        entry: &MergedPrompt,
        prompt: &Prompt,
        approval: PromptApproval,
    ) {
        let item = ListedItem {
            public_name: entry.public_name.as_str().into(),
            upstream: upstream.clone(),
            raw_name: prompt.name.as_str().into(),
            arguments: prompt.arguments.as_slice().into(),
            digest: seal::definition_digest(prompt).into(),
            overlay: prompt.overlay.clone(),
            approval,
            version: prompt.version.clone(),
            stands_for: StandsFor::Itself,
        };
        self.push_prompt(item, |out| {
            prompt.via.write_element(out, |out| prompt.write(&entry.public_name, out));
        });
    }

    pub fn finish(mut self) -> Segment {
        self.text.shrink_to_fit();
        let segment = &mut self.segment;
        segment.text = Arc::new(self.text);
        segment.bytes = chunks::shared(&segment.text);
        segment.elements.shrink_to_fit();
        segment.items.shrink_to_fit();
        let len = segment.len();
        // A list has fewer elements than 2^32: `max_prompts` is at most a million.
        segment.versions = versions(&segment.items);
        segment.all = std::iter::once(0..len as u32).filter(|all| !all.is_empty()).collect();
        self.segment
    }
}

impl Segment {
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// All positions, as one range.
    pub fn all(&self) -> &Arc<[Range<u32>]> {
        &self.all
    }

    pub fn items(&self) -> &[ListedItem] {
        &self.items
    }

    /// The upstream of all elements; `None` if several upstreams share the segment.
    pub fn upstream(&self) -> Option<&UpstreamId> {
        self.upstream.as_ref()
    }

    /// Whether an element is a version of another prompt.
    pub(crate) fn has_versions(&self) -> bool {
        !self.versions.is_empty()
    }

    /// The elements that are not versions of another prompt.
    pub fn plain(&self) -> Allowed {
        if self.has_versions() {
            Allowed::of(self.items.iter().map(|item| !item.is_version()).collect())
        } else {
            Allowed::All
        }
    }

    /// The number of elements that are not versions of another prompt.
    pub(crate) fn plain_len(&self) -> usize {
        self.len() - self.versions.len()
    }

    /// The version with this raw name.
    pub fn version(&self, upstream: &UpstreamId, raw_name: &str) -> Option<&ListedItem> {
        let at = self.versions.partition_point(|at| *self.items[*at as usize].raw_name < *raw_name);
        let items = self.versions[at..].iter().map(|at| &self.items[*at as usize]);
        let mut same = items.take_while(|item| *item.raw_name == *raw_name);
        same.find(|item| item.upstream == *upstream)
    }

    pub fn name(&self, position: usize) -> &Arc<str> {
        &self.elements[position].name
    }

    pub fn digest(&self, position: usize) -> &Digest {
        &self.elements[position].digest
    }

    /// The last name in byte order; empty if there are no elements.
    pub(crate) fn last_name(&self) -> &str {
        self.elements.last().map_or("", |element| &element.name)
    }

    /// The number of names up to and including `name`.
    pub(crate) fn count_to(&self, name: &str) -> usize {
        self.elements.partition_point(|element| &*element.name <= name)
    }

    /// The position of a name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.elements.binary_search_by(|element| (*element.name).cmp(name)).ok()
    }

    /// The position of the prompt with this derived tool name.
    pub(crate) fn position_of_derived(&self, tool: &str) -> Option<usize> {
        let names = self.derived_names.get_or_init(|| {
            let derived = |element: &Element| {
                let name = name_of_tool(&element.name);
                (name != *element.name).then_some(name)
            };
            let elements = self.elements.iter().enumerate();
            elements.filter_map(|(at, element)| Some((derived(element)?, at))).collect()
        });
        names.get(tool).copied()
    }

    /// The serialised elements at these positions, each followed by a comma.
    pub fn slice(&self, positions: Range<usize>) -> Bytes {
        let start = self.start(positions.start);
        let end = self.start(positions.end);
        self.bytes.slice(start..end)
    }

    /// One element.
    pub fn element(&self, position: usize) -> Json<'_> {
        Json::accepted(&self.text[self.start(position)..self.elements[position].end])
    }

    fn start(&self, position: usize) -> usize {
        position.checked_sub(1).map_or(0, |before| self.elements[before].end + 1)
    }

    /// Bytes of the serialised elements.
    pub(crate) fn text_size(&self, positions: Range<usize>) -> usize {
        self.start(positions.end) - self.start(positions.start)
    }

    /// Bytes that the segment takes in memory, with its items.
    pub(crate) fn size_with_items(&self) -> usize {
        let item = |item: &ListedItem| {
            let texts = item.raw_name.len() + item.public_name.len() + item.digest.len();
            let argument = |argument: &Argument| argument.name.len() + size_of::<Argument>();
            size_of::<ListedItem>() + texts + item.arguments.iter().map(argument).sum::<usize>()
        };
        self.size() + self.items.iter().map(item).sum::<usize>()
    }

    /// Bytes that the segment takes in memory, without its items.
    pub fn size(&self) -> usize {
        let names: usize = self.elements.iter().map(|element| element.name.len()).sum();
        self.text.len() + names + self.elements.capacity() * size_of::<Element>()
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("upstream", &self.upstream)
            .field("len", &self.len())
            .finish()
    }
}

/// The positions of versions, in the order of their raw names.
fn versions(items: &[ListedItem]) -> Box<[u32]> {
    let mut versions: Vec<u32> =
        (0_u32..).zip(items).filter(|(_, item)| item.is_version()).map(|(at, _)| at).collect();
    versions.sort_unstable_by_key(|at| &items[*at as usize].raw_name);
    versions.into()
}

/// Returns the name of the tool for a prompt, or of the property for an argument.
pub fn name_of_tool(name: &str) -> String {
    tool_name(name, |name| seal::sha256(name.as_bytes())).into_owned()
}
