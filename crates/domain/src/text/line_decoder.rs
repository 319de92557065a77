//! A decoder for newline-delimited messages (MCP 2025-11-25, stdio). It accepts chunks of any size
//! and its memory is bounded.

/// An incremental decoder from bytes to lines.
#[derive(Debug)]
pub struct LineDecoder {
    /// The received bytes of the incomplete line.
    line: Vec<u8>,
    /// Whether the decoder discards the rest of a line that exceeded the limit.
    skipping: bool,
    /// The maximum length of a line in bytes, without its line end.
    limit: usize,
}

/// One decoded line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DecodedLine {
    /// A complete line, without its line end and surrounding white space; never empty.
    Whole(Vec<u8>),
    /// A line that exceeds the limit, reported at once. The next line is decoded normally.
    TooLong,
}

impl LineDecoder {
    /// Returns a decoder for lines of at most `limit` bytes, without their line ends.
    pub fn new(limit: usize) -> Self {
        Self { line: Vec::new(), skipping: false, limit }
    }

    /// Decodes the next chunk and appends the lines that it completes to `lines`.
    pub fn feed(&mut self, piece: &[u8], lines: &mut Vec<DecodedLine>) {
        let mut parts = piece.split(|&byte| byte == b'\n');
        let last = parts.next_back().unwrap_or_default();
        for part in parts {
            self.extend(part, lines);
            self.end_line(lines);
        }
        self.extend(last, lines);
    }

    /// Appends the last line of a stream, which may lack its line end.
    pub fn end_line(&mut self, lines: &mut Vec<DecodedLine>) {
        let line = std::mem::take(&mut self.line);
        let text = line.trim_ascii();
        match text.len() {
            0 => {}
            length if length == line.len() => lines.push(DecodedLine::Whole(line)),
            _ => lines.push(DecodedLine::Whole(text.to_vec())),
        }
        self.skipping = false;
    }

    fn extend(&mut self, part: &[u8], lines: &mut Vec<DecodedLine>) {
        if self.skipping || part.is_empty() {
            return;
        }
        // A carriage return may belong to the line end.
        let text = self.line.len() + part.len();
        if text > self.limit && !(text == self.limit + 1 && part.last() == Some(&b'\r')) {
            self.line = Vec::new();
            self.skipping = true;
            lines.push(DecodedLine::TooLong);
            return;
        }
        self.line.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(pieces: &[&[u8]]) -> Vec<String> {
        let mut decoder = LineDecoder::new(8);
        let mut lines = Vec::new();
        for piece in pieces {
            decoder.feed(piece, &mut lines);
        }
        let text = |line| match line {
            DecodedLine::Whole(line) => String::from_utf8_lossy(&line).into_owned(),
            DecodedLine::TooLong => "too long".to_owned(),
        };
        lines.into_iter().map(text).collect()
    }

    #[test]
    fn s5_blank_lines_and_crlf_are_accepted() {
        let lines = decode(&[b"{}\r\n\n  \n [1]", b" \r\n\0\n{", b"}\nhalf"]);
        assert_eq!(lines, ["{}", "[1]", "\0", "{}"]);
    }

    #[test]
    fn w19_a_line_over_the_limit_is_reported_once_and_the_next_line_is_read() {
        assert_eq!(decode(&[b"12345678\n"]), ["12345678"]);
        assert_eq!(decode(&[b"12345678\r\n"]), ["12345678"]);
        assert_eq!(decode(&[b"12345678", b"\r", b"\n"]), ["12345678"]);
        assert_eq!(decode(&[b"12345678\r", b"9\n{}\n"]), ["too long", "{}"]);
        assert_eq!(decode(&[b"123456789\n{}\n"]), ["too long", "{}"]);
        assert_eq!(decode(&[b"1234", b"56789", b"0000000000000", b"0\n{}\n"]), ["too long", "{}"]);
    }

    #[test]
    fn the_last_line_needs_no_end() {
        let mut decoder = LineDecoder::new(8);
        let mut lines = Vec::new();
        for (piece, last) in
            [(&b"{}\n[1]\r"[..], Some("[1]")), (b"{}\n", None), (b"123456789", None)]
        {
            decoder.feed(piece, &mut lines);
            lines.clear();
            decoder.end_line(&mut lines);
            let last = last.map(|last| DecodedLine::Whole(last.into()));
            assert_eq!(lines.drain(..).next(), last, "{piece:?}");
        }
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_the_lines(
            text in "[a-c \n\r]{0,40}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|w| &text.as_bytes()[w[0]..w[1]]).collect();
            prop_assert_eq!(decode(&pieces), decode(&[text.as_bytes()]));
        }
    }
}
