//! The long parts of an accepted text, as the scan has found them: readers pass over one without reading it.

/// The arrays, objects and long strings of a text in the order in which they begin, and whether it has a `null`.
///
/// A text of many small arrays would have an outline larger than itself. It has none, and readers look for the end of
/// an array or object by counting brackets.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    spans: Vec<Span>,
    /// The most spans that are kept.
    most: usize,
    pub(super) has_null: bool,
    /// Whether all escapes stand for characters that are seen: quotes, slashes, line ends and tabs. `false` for a text that was
    /// not scanned.
    pub(super) has_visible_escapes: bool,
}

/// An array, object or long string.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    /// Offset in the text, in bytes.
    pub start: u32,
    /// Bytes of its text, brackets or quotes included.
    pub len: u32,
    /// Spans in it, itself included.
    pub count: u32,
}

/// Bytes of text for each span that is kept. A vector takes up to twice what is in it, so an outline takes no more memory
/// than its text.
const BYTES_PER_SPAN: usize = 2 * size_of::<Span>();

/// Spans that are kept of the shortest texts.
const FEW_SPANS: usize = 16;

/// Bytes of the shortest string that has a span: to find the end of a shorter one costs no more than to look it up.
const LONG_STRING: usize = 128;

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
        self.spans.capacity() * size_of::<Span>()
    }

    /// Empties it, and makes room for the spans of a text of this length.
    pub(super) fn begin(&mut self, text_len: usize) {
        // All offsets and numbers then fit into 32 bits.
        let is_short = u32::try_from(text_len).is_ok();
        self.most = if is_short { FEW_SPANS + text_len / BYTES_PER_SPAN } else { 0 };
        self.has_null = false;
        self.has_visible_escapes = true;
        self.spans.clear();
        self.spans.reserve(FEW_SPANS.min(self.most));
    }

    /// Notes a string value, from its opening quote to the closing one.
    pub(super) fn string(&mut self, start: usize, end: usize) {
        if end - start >= LONG_STRING {
            let number = self.open();
            self.close(number, start, end);
        }
    }

    /// Notes the beginning of an array or object. Returns its number.
    pub(super) fn open(&mut self) -> usize {
        if self.spans.len() < self.most {
            self.spans.push(Span::default());
        } else {
            self.most = 0;
            self.spans.clear();
        }
        self.spans.len().wrapping_sub(1)
    }

    /// Notes where the array or object of this number was.
    pub(super) fn close(&mut self, number: usize, start: usize, end: usize) {
        let count = self.spans.len().wrapping_sub(number);
        if let Some(span) = self.spans.get_mut(number) {
            *span = Span { start: start as u32, len: (end - start) as u32, count: count as u32 };
        }
    }

    /// The spans from this number on.
    pub(super) fn from(&self, first: usize) -> &[Span] {
        self.spans.get(first..).unwrap_or_default()
    }

    /// The number of the first of these spans, which [`Outline::from`] has returned.
    pub(super) fn first_of(&self, spans: &[Span]) -> usize {
        self.spans.len() - spans.len()
    }
}
