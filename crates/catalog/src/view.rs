//! A view: the list that callers with the same rights see, in order and already serialised.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::segment::{Digest, Segment, SegmentWriter, name_of_tool};
use base::seal;
use domain::calls::rights::Allowed;
use domain::json::Json;
use domain::name::UpstreamId;
use domain::tool::definition::{
    write_find_prompt, write_find_skill, write_prompt_tool, write_read_skill, write_use_prompt,
};
use domain::tool::{FIND_PROMPT, FIND_SKILL, READ_SKILL, USE_PROMPT};

/// A list ready to be cut into pages: parts of segments that all views share. A page costs two
/// binary searches, and copies no elements.
#[derive(Debug, Default)]
pub struct ListView {
    parts: Vec<ViewPart>,
    len: usize,
    digest: Digest,
    /// Bytes that this view takes in memory, without shared segments.
    size: usize,
}

/// The visible elements of one segment; empty if the segment is known and hidden.
#[derive(Clone, Debug)]
struct ViewPart {
    segment: Arc<Segment>,
    /// The positions of the visible elements: ranges that are in order and do not touch.
    ranges: Arc<[Range<u32>]>,
}

/// One page of a view.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewPage<'a> {
    /// The elements, separated by commas, in pieces of UTF-8.
    pub pieces: Vec<Bytes>,
    /// The last public name on the page, if more elements follow.
    pub more_after: Option<&'a str>,
}

impl ListView {
    /// The view of all elements of the ordered `segments`.
    pub fn whole<'a>(segments: impl IntoIterator<Item = &'a Arc<Segment>>) -> Self {
        let part = |segment: &Arc<Segment>| ViewPart {
            ranges: segment.all().clone(),
            segment: segment.clone(),
        };
        Self::of(segments.into_iter().map(part).collect())
    }

    /// The view of some elements. `visible` decides on the elements of a segment; reuses the ranges
    /// of `before` for unchanged segments.
    pub fn part<'a>(
        segments: impl IntoIterator<Item = &'a Arc<Segment>>,
        before: Option<&Self>,
        mut visible: impl FnMut(&Segment) -> Allowed,
    ) -> Self {
        let part = |segment: &'a Arc<Segment>| {
            let known = before.and_then(|before| before.known(segment));
            let ranges = known.unwrap_or_else(|| visible_ranges(visible(segment), segment));
            ViewPart { segment: segment.clone(), ranges }
        };
        Self::of(segments.into_iter().map(part).collect())
    }

    /// The remainder of a view after removed segments. A remainder is not served: the next view
    /// reuses its ranges.
    pub(crate) fn remainder(&self, is_left: impl Fn(&Arc<Segment>) -> bool) -> Self {
        let parts: Vec<ViewPart> =
            self.parts.iter().filter(|part| is_left(&part.segment)).cloned().collect();
        let size = own_size(&parts);
        Self { parts, size, ..Self::default() }
    }

    fn of(parts: Vec<ViewPart>) -> Self {
        let mut digests = Vec::new();
        let mut len = 0;
        for ViewPart { segment, ranges } in &parts {
            for position in ranges.iter().flat_map(positions) {
                digests.extend_from_slice(segment.digest(position));
                len += 1;
            }
        }
        // Empty parts are kept, too, so that the next view need not decide on their segments again.
        let view = Self { size: own_size(&parts), digest: seal::sha256(&digests), len, parts };
        view.debug_assert_invariants();
        view
    }

    /// Panics in debug builds if a name occurs twice, or a search would not find it.
    fn debug_assert_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for pair in self.parts.windows(2) {
            let [before, next] = [&pair[0].segment, &pair[1].segment];
            let is_in_order = next.is_empty() || before.last_name() < &**next.name(0);
            assert!(is_in_order, "segments overlap at {}", before.last_name());
        }
        for ViewPart { segment, ranges } in &self.parts {
            let is_of_segment = ranges.last().is_none_or(|last| last.end as usize <= segment.len());
            assert!(is_of_segment, "a range ends behind its segment");
            assert!(ranges.iter().all(|range| !range.is_empty()), "a range of nothing is left");
            let is_apart = ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
            assert!(is_apart, "ranges are not in order, or touch");
        }
        let visible = self.parts.iter().flat_map(|part| part.ranges.iter());
        let len: usize = visible.map(|range| positions(range).len()).sum();
        assert_eq!(len, self.len, "the ranges are the list");
    }

    /// The visible ranges of this segment, if the view knows the segment.
    fn known(&self, segment: &Arc<Segment>) -> Option<Arc<[Range<u32>]>> {
        let name = segment.last_name();
        let at = self.parts.partition_point(|part| part.segment.last_name() < name);
        let part = self.parts.get(at).filter(|part| Arc::ptr_eq(&part.segment, segment))?;
        Some(part.ranges.clone())
    }

    /// The number of elements in segments that are not in `before`.
    pub fn unknown(segments: &[Arc<Segment>], before: Option<&Self>) -> usize {
        let is_unknown =
            |segment: &&Arc<Segment>| before.is_none_or(|before| before.known(segment).is_none());
        segments.iter().filter(is_unknown).map(|segment| segment.len()).sum()
    }

    /// The view of the tools derived from the prompts of this view, with the tools for skills.
    pub fn tools(&self, has_skills: bool) -> Self {
        let prompts = self.elements().map(|(name, prompt)| (name_of_tool(name), Tool::Of(prompt)));
        let mut named: Vec<_> = prompts.collect();
        if has_skills {
            named.extend(OF_SKILLS.map(|(name, write)| (name.to_owned(), Tool::Fixed(write))));
        }
        Self::of_tools(named)
    }

    /// The view of `find_prompt` and `use_prompt`, which does not depend on the prompts, with the
    /// tools for skills.
    pub fn pair(has_skills: bool) -> Self {
        let of_skills = OF_SKILLS.into_iter().filter(|_| has_skills);
        let pair = [(FIND_PROMPT, write_find_prompt as WriteTool), (USE_PROMPT, write_use_prompt)];
        let tools = pair.into_iter().chain(of_skills);
        Self::of_tools(tools.map(|(name, write)| (name.to_owned(), Tool::Fixed(write))).collect())
    }

    fn of_tools(mut named: Vec<(String, Tool<'_>)>) -> Self {
        named.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut tools = SegmentWriter::default();
        for (name, tool) in named {
            tools.push(name.as_str().into(), |out| match tool {
                Tool::Of(prompt) => write_prompt_tool(prompt, &name, &name_of_tool, out),
                Tool::Fixed(write) => write(out),
            });
        }
        Self::own(tools)
    }

    /// A view that owns its segment.
    fn own(segment: SegmentWriter) -> Self {
        let segment = Arc::new(segment.finish());
        let view = Self::whole([&segment]);
        Self { size: view.size + segment.size(), ..view }
    }

    /// The listed names with their elements, in order.
    pub fn elements(&self) -> impl Iterator<Item = (&str, Json<'_>)> {
        self.parts.iter().flat_map(|ViewPart { segment, ranges }| {
            let positions = ranges.iter().flat_map(positions);
            positions.map(|position| (&**segment.name(position), segment.element(position)))
        })
    }

    /// Whether a prompt of an upstream is listed.
    pub fn lists(&self, upstream: &UpstreamId) -> bool {
        self.parts.iter().any(|ViewPart { segment, ranges }| match segment.upstream() {
            Some(only) => only == upstream && !ranges.is_empty(),
            None => {
                let mut items = ranges.iter().flat_map(positions).map(|at| &segment.items()[at]);
                items.any(|item| item.upstream == *upstream)
            }
        })
    }

    /// The page of at most `size` elements after the name `after`, which need not be listed any
    /// more.
    pub fn page(&self, after: Option<&str>, size: usize) -> ViewPage<'_> {
        let mut page = self.page_with_comma(after.unwrap_or_default(), size);
        if let Some(last) = page.pieces.last_mut() {
            last.truncate(last.len() - 1);
        }
        page
    }

    /// A page whose last element is followed by a comma.
    fn page_with_comma(&self, after: &str, size: usize) -> ViewPage<'_> {
        let first = self.parts.partition_point(|part| part.segment.last_name() <= after);
        let mut page = ViewPage { pieces: Vec::new(), more_after: None };
        let mut left = size;
        let mut last = None;
        for (at, ViewPart { segment, ranges }) in self.parts[first..].iter().enumerate() {
            let start = if at == 0 { segment.count_to(after) } else { 0 };
            for range in &ranges[first_range(ranges, start)..] {
                if left == 0 {
                    page.more_after = last;
                    return page;
                }
                let range = positions(range);
                let start = range.start.max(start);
                let end = range.end.min(start.saturating_add(left));
                page.pieces.push(segment.slice(start..end));
                left -= end - start;
                last = Some(&**segment.name(end - 1));
                if end < range.end {
                    page.more_after = last;
                    return page;
                }
            }
        }
        page
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the view takes in memory, without shared segments.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes of the serialised list.
    pub(crate) fn text_size(&self) -> usize {
        let size = |ViewPart { segment, ranges }: &ViewPart| -> usize {
            ranges.iter().map(|range| segment.text_size(positions(range))).sum()
        };
        self.parts.iter().map(size).sum()
    }

    /// SHA-256 of the digests of all elements: equal digests are equal lists.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }
}

/// A tool of a view.
enum Tool<'a> {
    /// A tool derived from a prompt.
    Of(Json<'a>),
    Fixed(WriteTool),
}

type WriteTool = fn(&mut String);

/// The tools for skills.
const OF_SKILLS: [(&str, WriteTool); 2] =
    [(FIND_SKILL, write_find_skill), (READ_SKILL, write_read_skill)];

/// The positions of the visible elements of a segment.
fn visible_ranges(visible: Allowed, segment: &Segment) -> Arc<[Range<u32>]> {
    let each = match visible {
        Allowed::All => return segment.all().clone(),
        Allowed::None => return Arc::default(),
        Allowed::Some(each) => each,
    };
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for (at, _) in (0_u32..).zip(&each).filter(|(_, visible)| **visible) {
        match ranges.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges.into()
}

/// Bytes of these parts, without their segments.
fn own_size(parts: &[ViewPart]) -> usize {
    let is_own = |part: &&ViewPart| !Arc::ptr_eq(&part.ranges, part.segment.all());
    let ranges: usize = parts.iter().filter(is_own).map(|part| size_of_val(&*part.ranges)).sum();
    size_of::<ListView>() + size_of_val(parts) + ranges
}

/// The index of the first range that ends after this position.
fn first_range(ranges: &[Range<u32>], position: usize) -> usize {
    ranges.partition_point(|range| positions(range).end <= position)
}

fn positions(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use domain::prompts::prompt::Prompt;

    fn view(names: &[String]) -> ListView {
        let prompt = Prompt::read(Json::parse(br#"{"name":"x"}"#, 8).unwrap()).unwrap();
        let mut segments = Vec::new();
        // Several segments, of which each page may begin and end in any.
        for names in names.chunks(7) {
            let mut segment = SegmentWriter::default();
            for name in names {
                segment.push(name.as_str().into(), |out| prompt.write(name, out));
            }
            segments.push(Arc::new(segment.finish()));
        }
        ListView::whole(&segments)
    }

    fn names(page: &ViewPage<'_>) -> Vec<String> {
        let list = format!("[{}]", String::from_utf8(page.pieces.concat()).unwrap());
        let list: Vec<serde_json::Value> = serde_json::from_str(&list).unwrap();
        list.iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect()
    }

    proptest! {
        #[test]
        fn c3_all_pages_together_are_the_list(
            all in prop::collection::btree_set("[a-e_é]{1,4}", 0..30), size in 1usize..12,
        ) {
            let all: Vec<String> = all.into_iter().collect();
            let view = view(&all);
            let mut walked = Vec::new();
            let mut after = None;
            loop {
                let page = view.page(after.as_deref(), size);
                walked.extend(names(&page));
                after = page.more_after.map(str::to_owned);
                if after.is_none() {
                    break;
                }
            }
            prop_assert_eq!(walked, all);
        }

        #[test]
        fn c2_what_stayed_is_neither_repeated_nor_lost(
            before in prop::collection::btree_set("[a-e]{1,3}", 1..20),
            after in prop::collection::btree_set("[a-e]{1,3}", 0..20),
            size in 1usize..8,
        ) {
            let list: Vec<String> = before.iter().cloned().collect();
            let first = view(&list);
            let page = first.page(None, size);
            let mut seen = names(&page);
            if let Some(last) = page.more_after {
                let changed = view(&after.iter().cloned().collect::<Vec<_>>());
                seen.extend(names(&changed.page(Some(last), usize::MAX)));
                for stayed in before.intersection(&after) {
                    prop_assert_eq!(seen.iter().filter(|n| *n == stayed).count(), 1);
                }
            }
        }

        #[test]
        fn a_part_is_the_list_of_the_visible_elements_however_it_was_made(
            all in prop::collection::btree_map("[a-e]{1,3}", any::<bool>(), 0..40),
            changed in 0usize..6,
            size in 1usize..9,
        ) {
            let names: Vec<String> = all.keys().cloned().collect();
            let whole = view(&names);
            let segments: Vec<_> = whole.parts.iter().map(|part| part.segment.clone()).collect();
            let visible = |segment: &Segment| {
                let each = (0..segment.len()).map(|at| all[&**segment.name(at)]);
                Allowed::Some(each.collect())
            };
            let part = ListView::part(&segments, None, visible);
            let expected: Vec<String> = all.iter().filter(|(_, v)| **v).map(|(n, _)| n.clone()).collect();
            prop_assert_eq!(part.len(), expected.len());
            prop_assert_eq!(*part.digest(), *view(&expected).digest());
            let listed: Vec<&str> = part.elements().map(|(name, _)| name).collect();
            prop_assert_eq!(&listed, &expected);
            let mut walked = Vec::new();
            let mut after = None;
            loop {
                let page = part.page(after.as_deref(), size);
                walked.extend(super::tests::names(&page));
                after = page.more_after.map(str::to_owned);
                if after.is_none() {
                    break;
                }
            }
            prop_assert_eq!(&walked, &expected);
            // With a view before it in which one segment was different, only that segment is
            // decided anew.
            let mut before = segments.clone();
            if let Some(other) = before.get_mut(changed) {
                *other = Arc::new(SegmentWriter::default().finish());
            }
            let before: Vec<_> = before.into_iter().filter(|segment| !segment.is_empty()).collect();
            let before = ListView::part(&before, None, visible).remainder(|segment| segments.iter().any(|left| Arc::ptr_eq(left, segment)));
            let unknown = ListView::unknown(&segments, Some(&before));
            let mut decided = 0;
            let again = ListView::part(&segments, Some(&before), |segment| {
                decided += segment.len();
                visible(segment)
            });
            prop_assert_eq!(decided, unknown);
            prop_assert_eq!(decided, segments.get(changed).map_or(0, |segment| segment.len()));
            prop_assert_eq!(again.digest(), part.digest());
        }
    }
}
