//! A stream of the store: entries in nodes, of which trimming removes whole ones.

use std::collections::VecDeque;

use bytes::Bytes;

/// The number of an entry: milliseconds since the Unix epoch, and a number within them.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Id(u64, u64);

/// An entry, which has one field.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: Id,
    pub field: Bytes,
    pub value: Bytes,
}

/// A stream.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    nodes: VecDeque<Node>,
    last: Id,
}

/// Entries that are kept together: what a radix tree of the server has in one listpack.
#[derive(Clone, Debug)]
struct Node {
    entries: Vec<Entry>,
    /// The length of its listpack.
    bytes: usize,
}

/// The settings `stream-node-max-entries` and `stream-node-max-bytes` of a server, as they are by
/// default.
const NODE_ENTRIES: usize = 100;
const NODE_BYTES: usize = 4096;

/// Entries that are removed at once at most.
const TRIMMED: usize = 100 * NODE_ENTRIES;

impl Id {
    /// Reads `MILLISECONDS-NUMBER`, or the milliseconds alone.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (millis, number) = text.split_once('-').unwrap_or((text, "0"));
        let digits = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse().ok()).flatten()
        };
        Some(Self(digits(millis)?, digits(number)?))
    }

    pub fn text(self) -> String {
        format!("{}-{}", self.0, self.1)
    }

    /// The number of an entry that is added after `self`: no clock that is set back makes it
    /// smaller.
    fn next(self, now_ms: u64) -> Self {
        if now_ms > self.0 { Self(now_ms, 0) } else { Self(self.0, self.1 + 1) }
    }
}

impl Stream {
    /// Adds an entry, then removes the oldest nodes as long as at least `most` entries are left.
    pub fn add(&mut self, now_ms: u64, field: &Bytes, value: &Bytes, most: usize) -> Id {
        self.last = self.last.next(now_ms);
        let entry = Entry { id: self.last, field: field.clone(), value: value.clone() };
        match self.nodes.back_mut().filter(|node| node.has_room(&entry)) {
            Some(node) => node.add(entry),
            None => self.nodes.push_back(Node::new(entry)),
        }
        self.trim(most);
        self.last
    }

    fn trim(&mut self, most: usize) {
        let mut trimmed = 0;
        while let Some(first) = self.nodes.front() {
            let removed = first.entries.len();
            let is_kept = self.len() - removed < most || trimmed + removed > TRIMMED;
            if self.len() <= most || is_kept {
                return;
            }
            trimmed += removed;
            self.nodes.pop_front();
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.nodes.iter().map(|node| node.entries.len()).sum()
    }

    /// Returns the first entries after `id`, at most `count`; all for 0.
    pub fn after(&self, id: Id, count: usize) -> impl Iterator<Item = &Entry> {
        let count = if count == 0 { usize::MAX } else { count };
        let entries = self.nodes.iter().flat_map(|node| &node.entries);
        entries.filter(move |entry| entry.id > id).take(count)
    }
}

impl Node {
    fn new(first: Entry) -> Self {
        // Its header and end; then how many entries there are and were, the fields of the first
        // one, and a zero.
        let bytes = 7 + 3 * integer_size(0) + text_size(&first.field) + integer_size(0);
        let mut node = Self { entries: Vec::new(), bytes };
        node.add(first);
        node
    }

    fn has_room(&self, entry: &Entry) -> bool {
        let added = entry.field.len() + entry.value.len();
        self.bytes + added < NODE_BYTES && self.entries.len() < NODE_ENTRIES
    }

    fn add(&mut self, entry: Entry) {
        let first = self.entries.first().unwrap_or(&entry);
        let differs = |a: u64, b: u64| integer_size(a.wrapping_sub(b).cast_signed());
        self.bytes += differs(entry.id.0, first.id.0) + differs(entry.id.1, first.id.1);
        if entry.field != first.field {
            self.bytes += integer_size(1) + text_size(&entry.field);
        }
        // Flags before, and the number of elements behind.
        self.bytes += text_size(&entry.value) + 2 * integer_size(0);
        self.entries.push(entry);
    }
}

/// The bytes of an integer in a listpack.
fn integer_size(number: i64) -> usize {
    let encoded = match number {
        0..=127 => 1,
        -4096..=4095 => 2,
        -32_768..=32_767 => 3,
        -8_388_608..=8_388_607 => 4,
        -2_147_483_648..=2_147_483_647 => 5,
        _ => 9,
    };
    encoded + 1
}

/// The bytes of a text in a listpack, which has an integer in its place where it can.
fn text_size(text: &[u8]) -> usize {
    if let Some(number) = super::resp::integer(text) {
        return integer_size(number);
    }
    let encoded = text.len()
        + match text.len() {
            0..64 => 1,
            64..4096 => 2,
            _ => 5,
        };
    encoded
        + match encoded {
            0..=127 => 1,
            128..16_383 => 2,
            16_383..2_097_151 => 3,
            _ => 4,
        }
}
