//! A view: the list that callers with the same rights see, in order, already serialised.

use std::ops::Range;

use super::Digest;
use crate::domain::merge::Entry;
use crate::domain::prompt::Prompt;
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
    public_name: String,
    /// The range of the element in the text.
    range: Range<usize>,
}

/// One page of a view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Page<'a> {
    /// Elements of `prompts`, separated by commas.
    pub elements: &'a str,
    /// The last public name on the page, if more follow.
    pub more_after: Option<&'a str>,
}

impl View {
    /// Serialises `entries`, which are in byte order of their public names.
    pub fn new<'a>(entries: impl IntoIterator<Item = (&'a Entry, &'a Prompt)>) -> Self {
        let mut view = Self::default();
        for (entry, prompt) in entries {
            if !view.items.is_empty() {
                view.text.push(',');
            }
            let start = view.text.len();
            prompt.write(&entry.public_name, &mut view.text);
            let range = start..view.text.len();
            view.items.push(Item { public_name: entry.public_name.clone(), range });
        }
        view.digest = seal::digest([view.text.as_str()]);
        view
    }

    /// A view of the items whose entry in `visible` is true.
    pub fn part(&self, visible: &[bool]) -> Self {
        let mut part = Self::default();
        for (item, _) in self.items.iter().zip(visible).filter(|(_, visible)| **visible) {
            if !part.items.is_empty() {
                part.text.push(',');
            }
            let start = part.text.len();
            part.text.push_str(&self.text[item.range.clone()]);
            let range = start..part.text.len();
            part.items.push(Item { public_name: item.public_name.clone(), range });
        }
        part.digest = seal::digest([part.text.as_str()]);
        part
    }

    /// Whether a name is listed.
    pub fn contains(&self, public_name: &str) -> bool {
        let by_name = |item: &Item| item.public_name.as_str().cmp(public_name);
        self.items.binary_search_by(by_name).is_ok()
    }

    /// The page of at most `size` prompts after the name `after`, whether or not that is still listed.
    pub fn page(&self, after: Option<&str>, size: usize) -> Page<'_> {
        let start = after.map_or(0, |after| {
            self.items.partition_point(|item| item.public_name.as_str() <= after)
        });
        let end = self.items.len().min(start.saturating_add(size));
        let items = &self.items[start..end];
        let (Some(first), Some(last)) = (items.first(), items.last()) else {
            return Page { elements: "", more_after: None };
        };
        let more = end < self.items.len();
        Page {
            elements: &self.text[first.range.start..last.range.end],
            more_after: more.then_some(last.public_name.as_str()),
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
        let names: usize = self.items.iter().map(|item| item.public_name.capacity()).sum();
        let items = self.items.capacity() * size_of::<Item>();
        size_of::<Self>() + self.text.capacity() + items + names
    }

    /// SHA-256 of the serialised list.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::json::Json;

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
