//! Messages as lines: how a child process frames them (2025-11-25, stdio), decoded in pieces of any
//! size and bounded in memory.

/// Decodes a stream into lines.
#[derive(Debug)]
pub struct Decoder {
    /// The line that is not whole yet.
    line: Vec<u8>,
    /// Bytes that a line may have.
    limit: usize,
}

/// A line does not end within the limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a line is longer than {limit} bytes")]
pub struct TooLong {
    pub limit: usize,
}

impl Decoder {
    /// Accepts lines of at most `limit` bytes, their end aside.
    pub fn new(limit: usize) -> Self {
        Self { line: Vec::new(), limit }
    }

    /// Takes the next piece and appends the lines that it completes to `lines`: without their end
    /// and white space around them, and without empty ones. A line that the stream ends in is no
    /// message.
    pub fn feed(&mut self, piece: &[u8], lines: &mut Vec<Vec<u8>>) -> Result<(), TooLong> {
        let mut parts = piece.split(|&byte| byte == b'\n');
        let last = parts.next_back().unwrap_or_default();
        for part in parts {
            self.extend(part)?;
            let line = std::mem::take(&mut self.line);
            let text = line.trim_ascii();
            match text.len() {
                0 => {}
                length if length == line.len() => lines.push(line),
                _ => lines.push(text.to_vec()),
            }
        }
        self.extend(last)
    }

    fn extend(&mut self, part: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + part.len() > self.limit {
            return Err(TooLong { limit: self.limit });
        }
        self.line.extend_from_slice(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(pieces: &[&[u8]]) -> Result<Vec<String>, TooLong> {
        let mut decoder = Decoder::new(8);
        let mut lines = Vec::new();
        for piece in pieces {
            decoder.feed(piece, &mut lines)?;
        }
        Ok(lines.into_iter().map(|line| String::from_utf8_lossy(&line).into_owned()).collect())
    }

    #[test]
    fn s5_blank_lines_and_crlf_are_no_matter_and_half_a_line_is_no_message() {
        let lines = decode(&[b"{}\r\n\n  \n [1]", b" \r\n\0\n{", b"}\nhalf"]).unwrap();
        assert_eq!(lines, ["{}", "[1]", "\0", "{}"]);
    }

    #[test]
    fn s5_a_line_over_the_limit_is_refused_at_the_border() {
        assert_eq!(decode(&[b"12345678\n"]).unwrap(), ["12345678"]);
        assert_eq!(decode(&[b"123456789\n"]), Err(TooLong { limit: 8 }));
        assert_eq!(decode(&[b"1234", b"56789"]), Err(TooLong { limit: 8 }));
    }

    proptest! {
        #[test]
        fn how_the_stream_is_cut_changes_nothing(
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
