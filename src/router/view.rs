//! A view: the list that callers with the same rights see, in order, already serialised.

use std::ops::Range;

use super::Digest;
use crate::domain::json::Json;
use crate::domain::merge::Entry;
use crate::domain::prompt::Prompt;
use crate::domain::tool::definition::{write_find_prompt, write_prompt_tool, write_use_prompt};
use crate::domain::tool::name::tool_name;
use crate::domain::tool::{FIND_PROMPT, USE_PROMPT};
use crate::seal;

/// A list ready to be cut into pages. Pages are slices of one text: a list costs two binary
/// searches and one copy, whatever the page size.
#[derive(Debug, Default)]
pub struct View {
    /// All elements, separated by commas.
    text: String,
    items: Vec<Item>,
    digest: Digest,
}

#[derive(Debug)]
struct Item {
    /// The public name of a prompt, or the name of a tool.
    name: String,
    /// The range of the element in the text.
    range: Range<usize>,
}

/// One page of a view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Page<'a> {
    /// Elements of the list, separated by commas.
    pub elements: &'a str,
    /// The last public name on the page, if more follow.
    pub more_after: Option<&'a str>,
}

impl View {
    /// Serialises `entries`, which are in byte order of their public names.
    pub fn new<'a>(entries: impl IntoIterator<Item = (&'a Entry, &'a Prompt)>) -> Self {
        let mut view = Self::default();
        for (entry, prompt) in entries {
            view.push(&entry.public_name, |out| prompt.write(&entry.public_name, out));
        }
        view.seal()
    }

    /// A view of the items whose entry in `visible` is true.
    pub fn part(&self, visible: &[bool]) -> Self {
        let mut part = Self::default();
        for (item, _) in self.items.iter().zip(visible).filter(|(_, visible)| **visible) {
            part.push(&item.name, |out| out.push_str(&self.text[item.range.clone()]));
        }
        part.seal()
    }

    /// The view of the tools that stand for the prompts of this view.
    pub fn tools(&self) -> Self {
        let mut named: Vec<_> =
            self.elements().map(|(name, prompt)| (name_of_tool(name), prompt)).collect();
        named.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut tools = Self::default();
        for (name, prompt) in named {
            tools.push(&name, |out| write_prompt_tool(prompt, &name, &name_of_tool, out));
        }
        tools.seal()
    }

    /// The view of `find_prompt` and `use_prompt`, whatever the prompts.
    pub fn pair() -> Self {
        let mut pair = Self::default();
        pair.push(FIND_PROMPT, write_find_prompt);
        pair.push(USE_PROMPT, write_use_prompt);
        pair.seal()
    }

    /// The listed names with their elements, in order.
    pub fn elements(&self) -> impl Iterator<Item = (&str, Json<'_>)> {
        self.items
            .iter()
            .map(|item| (item.name.as_str(), Json::accepted(&self.text[item.range.clone()])))
    }

    /// Appends an element that `write` serialises.
    fn push(&mut self, name: &str, write: impl FnOnce(&mut String)) {
        if !self.items.is_empty() {
            self.text.push(',');
        }
        let start = self.text.len();
        write(&mut self.text);
        self.items.push(Item { name: name.to_owned(), range: start..self.text.len() });
    }

    /// Computes the digest once all elements are there.
    fn seal(mut self) -> Self {
        self.digest = seal::digest([self.text.as_str()]);
        self
    }

    /// Whether a name is listed.
    pub fn contains(&self, public_name: &str) -> bool {
        let by_name = |item: &Item| item.name.as_str().cmp(public_name);
        self.items.binary_search_by(by_name).is_ok()
    }

    /// The page of at most `size` prompts after the name `after`, whether or not that is still listed.
    pub fn page(&self, after: Option<&str>, size: usize) -> Page<'_> {
        let start =
            after.map_or(0, |after| self.items.partition_point(|item| item.name.as_str() <= after));
        let end = self.items.len().min(start.saturating_add(size));
        let items = &self.items[start..end];
        let (Some(first), Some(last)) = (items.first(), items.last()) else {
            return Page { elements: "", more_after: None };
        };
        let more = end < self.items.len();
        Page {
            elements: &self.text[first.range.start..last.range.end],
            more_after: more.then_some(last.name.as_str()),
        }
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes that the view takes in memory.
    pub(crate) fn size(&self) -> usize {
        let names: usize = self.items.iter().map(|item| item.name.capacity()).sum();
        let items = self.items.capacity() * size_of::<Item>();
        size_of::<Self>() + self.text.capacity() + items + names
    }

    /// SHA-256 of the serialised list.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }
}

/// Returns the name of the tool for a prompt, or of the property for an argument.
pub(super) fn name_of_tool(name: &str) -> String {
    tool_name(name, |name| seal::sha256(name.as_bytes())).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn view(names: &[String]) -> View {
        let prompt = Prompt::read(Json::parse(br#"{"name":"x"}"#, 8).unwrap()).unwrap();
        let entries: Vec<_> =
            names.iter().map(|n| Entry { public_name: n.clone(), source: 0, prompt: 0 }).collect();
        View::new(entries.iter().map(|e| (e, &prompt)))
    }

    fn names(page: Page<'_>) -> Vec<String> {
        let list = format!("[{}]", page.elements);
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
            let (mut walked, mut after) = (Vec::new(), None);
            loop {
                let page = view.page(after.as_deref(), size);
                walked.extend(names(page));
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
            let mut seen = names(page);
            if let Some(last) = page.more_after {
                let changed = view(&after.iter().cloned().collect::<Vec<_>>());
                seen.extend(names(changed.page(Some(last), usize::MAX)));
                for stayed in before.intersection(&after) {
                    prop_assert_eq!(seen.iter().filter(|n| *n == stayed).count(), 1);
                }
            }
        }
    }
}
