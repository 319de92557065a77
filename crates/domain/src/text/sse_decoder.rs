//! A decoder for server-sent events from an upstream (WHATWG HTML, section 9.2). It accepts chunks
//! of any size and its memory is bounded.

use std::time::Duration;

/// An incremental decoder from bytes to events. The decoder keeps only the fields that MCP uses:
/// name, data, the last event id and the last reconnection time.
#[derive(Debug)]
pub struct SseDecoder {
    /// The received bytes of the incomplete line.
    line: Vec<u8>,
    name: String,
    data: Vec<u8>,
    has_data: bool,
    /// The id of the event that is being received; `None` if it has no id.
    id: Option<Vec<u8>>,
    /// The last event id of the stream; empty without one.
    last_id: Vec<u8>,
    retry: Option<Duration>,
    /// Whether the last byte was a CR, so that an LF directly after it belongs to the same line
    /// end.
    after_cr: bool,
    /// Whether no line has ended yet: the first line may start with a byte order mark.
    at_start: bool,
    /// The maximum size of one event, and of one line of any kind, in bytes.
    limit: usize,
}

/// One event with data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SseEvent {
    /// The event name; "message" if the stream gives none.
    pub name: String,
    /// The data, with a line feed between its lines; never empty.
    pub data: Vec<u8>,
}

/// The error for an event or a line above the limit, which is in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("an event is larger than {limit} bytes")]
pub struct TooLarge {
    pub limit: usize,
}

/// Longest event id that is kept, in bytes: the id is sent as a header.
const MAX_ID: usize = 1024;

impl SseDecoder {
    /// Returns a decoder for events and lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            line: Vec::new(),
            name: String::new(),
            data: Vec::new(),
            has_data: false,
            id: None,
            last_id: Vec::new(),
            retry: None,
            after_cr: false,
            at_start: true,
            limit,
        }
    }

    /// Decodes the next chunk and appends the events that it completes to `events`.
    ///
    /// # Errors
    /// If an event or a line exceeds the limit.
    pub fn feed(&mut self, mut piece: &[u8], events: &mut Vec<SseEvent>) -> Result<(), TooLarge> {
        if self.after_cr && !piece.is_empty() {
            self.after_cr = false;
            piece = piece.strip_prefix(b"\n").unwrap_or(piece);
        }
        while let Some(end) = piece.iter().position(|b| matches!(b, b'\n' | b'\r')) {
            self.extend_line(&piece[..end])?;
            let was_cr = piece[end] == b'\r';
            piece = &piece[end + 1..];
            if was_cr {
                self.after_cr = piece.is_empty();
                piece = piece.strip_prefix(b"\n").unwrap_or(piece);
            }
            self.end_line(events)?;
        }
        self.extend_line(piece)
    }

    /// Returns the time after which the stream is reopened once it has ended; `None` if the
    /// upstream did not state it.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Returns the id after which the stream is resumed; empty if the upstream has given no id.
    pub fn last_id(&self) -> &[u8] {
        &self.last_id
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), TooLarge> {
        if self.line.len() + self.data.len() + bytes.len() > self.limit {
            return Err(TooLarge { limit: self.limit });
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<SseEvent>) -> Result<(), TooLarge> {
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.at_start) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        if line.is_empty() {
            self.dispatch(events);
            return Ok(());
        }
        let colon = line.iter().position(|&b| b == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" if !self.has_data && self.data.is_empty() => {
                // Most events have one line of data: its buffer becomes the event without a copy.
                let start = line.len() - value.len();
                line.drain(..start);
                self.data = line;
                self.has_data = true;
            }
            b"data" => {
                self.data.push(b'\n');
                self.data.extend_from_slice(value);
            }
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"id" if value.len() <= MAX_ID && !value.contains(&0) => self.id = Some(value.to_vec()),
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                let millis = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                self.retry = millis.map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
        Ok(())
    }

    fn dispatch(&mut self, events: &mut Vec<SseEvent>) {
        // A priming event has no data, but may have an id.
        self.last_id = self.id.take().unwrap_or(std::mem::take(&mut self.last_id));
        let name = std::mem::take(&mut self.name);
        let data = std::mem::take(&mut self.data);
        // An event without data is a priming event or a comment block, and not reported.
        if std::mem::take(&mut self.has_data) && !data.is_empty() {
            let name = if name.is_empty() { "message".to_owned() } else { name };
            events.push(SseEvent { name, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(pieces: &[&[u8]]) -> Result<Vec<(String, String)>, TooLarge> {
        let mut decoder = SseDecoder::new(64);
        let mut events = Vec::new();
        for piece in pieces {
            decoder.feed(piece, &mut events)?;
        }
        let text = |data| String::from_utf8(data).unwrap();
        Ok(events.into_iter().map(|e| (e.name, text(e.data))).collect())
    }

    #[test]
    fn fields_comments_and_line_ends() {
        let stream =
            b"\xef\xbb\xbfid: 1\r\ndata:\r\n\r\n: ping\n\nevent: message\ndata: {\"a\":1}\n\n\
                       event: endpoint\rdata: /post\rdata:  x\r\rdata: lost";
        let events = decode(&[stream]).unwrap();
        let expected = [("message", "{\"a\":1}"), ("endpoint", "/post\n x")];
        assert_eq!(events, expected.map(|(n, d)| (n.to_owned(), d.to_owned())));
    }

    #[test]
    fn the_last_valid_reconnection_time_counts() {
        let mut decoder = SseDecoder::new(64);
        assert_eq!(decoder.retry(), None);
        let stream = b"retry: 3000\n\nretry:250\nretry: -1\nretry: 1s\nretry\n\n";
        decoder.feed(stream, &mut Vec::new()).unwrap();
        assert_eq!(decoder.retry(), Some(Duration::from_millis(250)));
    }

    #[test]
    fn the_last_id_counts_once_its_event_is_complete() {
        let mut decoder = SseDecoder::new(4096);
        let mut last_id_after = |stream: &str| {
            decoder.feed(stream.as_bytes(), &mut Vec::new()).unwrap();
            String::from_utf8(decoder.last_id().to_vec()).unwrap()
        };
        assert_eq!(last_id_after("data: {}\n\nid: 1\n"), "");
        assert_eq!(last_id_after("data:\n\n"), "1");
        assert_eq!(last_id_after("data: {}\n\nid: a\0b\n\n"), "1");
        assert_eq!(last_id_after(&format!("id: {}\n\n", "x".repeat(MAX_ID + 1))), "1");
        assert_eq!(last_id_after("id: 2\ndata: {}\n\nid: 3\ndata: {"), "2");
        assert_eq!(last_id_after("\n\nid\n\n"), "");
    }

    #[test]
    fn u8_the_limit_of_an_event_is_exact() {
        let exact = format!("data: {}\n\n", "x".repeat(58));
        assert_eq!(decode(&[exact.as_bytes()]).unwrap().len(), 1);
        let over = format!("data: {}\n\n", "x".repeat(59));
        assert_eq!(decode(&[over.as_bytes()]), Err(TooLarge { limit: 64 }));
        let lines = "data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n".repeat(3);
        assert_eq!(decode(&[lines.as_bytes()]), Err(TooLarge { limit: 64 }));
        let comments = ": xxxxxxxxxxxxxxxxxxxx\n".repeat(1000);
        assert_eq!(decode(&[comments.as_bytes()]), Ok(vec![]));
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_the_events(
            lines in prop::collection::vec("(data: [a-z]{0,6}|event: [a-z]{1,3}|: c|)", 0..12),
            end in prop::sample::select(vec!["\n", "\r", "\r\n"]),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let stream = lines.join(end) + end + end;
            let mut cuts: Vec<_> = cuts.iter().map(|c| c.index(stream.len())).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|w| &stream.as_bytes()[w[0]..w[1]]).collect();
            prop_assert_eq!(decode(&pieces), decode(&[stream.as_bytes()]));
        }
    }
}
