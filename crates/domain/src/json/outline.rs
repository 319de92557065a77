//! The offsets of the values of an accepted text, as the scan found them: readers find a value
//! without reading the values before it.

/// The values of a text in the order in which they begin, and whether it has a `null`.
///
/// A text of very short values would have an outline much larger than itself. Such a text gets no
/// outline, and readers search for the end of each value.
#[derive(Debug, Default)]
pub struct Outline {
    spans: Vec<ValueSpan>,
    /// The limit of spans.
    most: usize,
    pub(super) has_null: bool,
    /// Whether all escapes stand for visible characters: quotes, slashes, line ends and tabs.
    /// `false` for a text that was not scanned.
    pub(super) has_visible_escapes: bool,
}

/// A value: the whole, an element of an array or a member of an object. Offsets are in the text, in
/// bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueSpan {
    /// Offset of the key; equal to `start` without a key.
    pub key: u32,
    /// Offset of the value.
    pub start: u32,
    /// Bytes of the value.
    pub len: u32,
    /// The number of spans in the value, its own included.
    pub count: u32,
}

/// Bytes of text for each span: an outline takes at most twice the memory of its text.
const BYTES_PER_SPAN: usize = size_of::<ValueSpan>() / 2;

/// The limit of spans for the shortest texts.
const FEW_SPANS: usize = 16;

impl Outline {
    /// Returns whether a `null` occurs anywhere in the text.
    pub(crate) fn has_null(&self) -> bool {
        self.has_null
    }

    /// Returns whether all escapes are known to stand for visible characters.
    pub(crate) fn has_visible_escapes(&self) -> bool {
        self.has_visible_escapes
    }

    /// Bytes in memory.
    pub(crate) fn size(&self) -> usize {
        self.spans.capacity() * size_of::<ValueSpan>()
    }

    /// Clears the outline, and makes room for the spans of a text of this length.
    pub(super) fn begin(&mut self, text_len: usize) {
        // All offsets and numbers of a short text fit into 32 bits.
        let is_short = u32::try_from(text_len).is_ok();
        self.most = if is_short { FEW_SPANS + text_len / BYTES_PER_SPAN } else { 0 };
        self.has_null = false;
        self.has_visible_escapes = true;
        self.spans.clear();
        self.spans.reserve_exact(FEW_SPANS.min(self.most));
    }

    /// Notes the offsets of a value and of its key. Returns the number of the value's span.
    pub(super) fn open(&mut self, key: usize, start: usize) -> usize {
        let number = self.spans.len();
        if number < self.most {
            if number == self.spans.capacity() {
                self.spans.reserve_exact(number.clamp(1, self.most - number));
            }
            self.spans.push(ValueSpan { key: key as u32, start: start as u32, len: 0, count: 0 });
        } else {
            self.most = 0;
            self.spans = Vec::new();
        }
        number
    }

    /// Notes the end of the value with this span number.
    pub(super) fn close(&mut self, number: usize, end: usize) {
        let count = self.spans.len().wrapping_sub(number);
        if let Some(span) = self.spans.get_mut(number) {
            span.len = end as u32 - span.start;
            span.count = count as u32;
        }
    }

    /// Returns the spans from this number on.
    pub(super) fn from(&self, first: usize) -> &[ValueSpan] {
        self.spans.get(first..).unwrap_or_default()
    }

    /// Returns the number of the first of these spans, which [`Outline::from`] has returned.
    pub(super) fn first_of(&self, spans: &[ValueSpan]) -> usize {
        self.spans.len() - spans.len()
    }
}
