//! Where the values of an accepted text are, as the scan has found them: readers find one without
//! reading those before it.

/// The values of a text in the order in which they begin, and whether it has a `null`.
///
/// A text of very short values would have an outline much larger than itself. It has none, and
/// readers look for the end of each value.
#[derive(Debug, Default)]
pub struct Outline {
    spans: Vec<ValueSpan>,
    /// The most spans that are kept.
    most: usize,
    pub(super) has_null: bool,
    /// Whether all escapes stand for characters that are seen: quotes, slashes, line ends and tabs.
    /// `false` for a text that was not scanned.
    pub(super) has_visible_escapes: bool,
}

/// A value: the whole, an element of an array or a member of an object. Offsets are in the text, in
/// bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueSpan {
    /// Offset of its key; `start` where it has none.
    pub key: u32,
    /// Offset of the value.
    pub start: u32,
    /// Bytes of the value.
    pub len: u32,
    /// Spans in it, itself included.
    pub count: u32,
}

/// Bytes of text for each span that is kept: an outline takes at most twice the memory of its text.
const BYTES_PER_SPAN: usize = size_of::<ValueSpan>() / 2;

/// Spans that are kept of the shortest texts.
const FEW_SPANS: usize = 16;

impl Outline {
    /// Returns whether a `null` occurs anywhere in the text.
    pub(crate) fn has_null(&self) -> bool {
        self.has_null
    }

    /// Returns whether all escapes are known to stand for characters that are seen.
    pub(crate) fn has_visible_escapes(&self) -> bool {
        self.has_visible_escapes
    }

    /// Bytes in memory.
    pub(crate) fn size(&self) -> usize {
        self.spans.capacity() * size_of::<ValueSpan>()
    }

    /// Empties it, and makes room for the spans of a text of this length.
    pub(super) fn begin(&mut self, text_len: usize) {
        // All offsets and numbers then fit into 32 bits.
        let is_short = u32::try_from(text_len).is_ok();
        self.most = if is_short { FEW_SPANS + text_len / BYTES_PER_SPAN } else { 0 };
        self.has_null = false;
        self.has_visible_escapes = true;
        self.spans.clear();
        self.spans.reserve_exact(FEW_SPANS.min(self.most));
    }

    /// Notes the beginning of a value, and that of its key. Returns its number.
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

    /// Notes the end of the value of this number.
    pub(super) fn close(&mut self, number: usize, end: usize) {
        let count = self.spans.len().wrapping_sub(number);
        if let Some(span) = self.spans.get_mut(number) {
            span.len = end as u32 - span.start;
            span.count = count as u32;
        }
    }

    /// The spans from this number on.
    pub(super) fn from(&self, first: usize) -> &[ValueSpan] {
        self.spans.get(first..).unwrap_or_default()
    }

    /// The number of the first of these spans, which [`Outline::from`] has returned.
    pub(super) fn first_of(&self, spans: &[ValueSpan]) -> usize {
        self.spans.len() - spans.len()
    }
}
