//! The body of an upstream's answer as it arrives: pieces, and the events that they make up.

use std::collections::VecDeque;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::sse_decoder;
use crate::net::egress::reset;
use crate::upstream::call::reply;

/// A stream may carry this many times the largest message between two messages: comments that keep
/// it alive are fine, endless ones are not.
const STREAM_FACTOR: usize = 4;

/// The events of a stream, within bounds.
pub struct SseReader {
    body: Incoming,
    decoder: sse_decoder::Decoder,
    reader: VecDeque<sse_decoder::Event>,
    /// The rest of a batch.
    messages: VecDeque<Document>,
    budget: usize,
    limit: usize,
}

impl SseReader {
    pub(crate) fn new(body: Incoming, limit: usize) -> Self {
        let decoder = sse_decoder::Decoder::new(limit);
        let budget = limit.saturating_mul(STREAM_FACTOR);
        let (reader, messages) = (VecDeque::new(), VecDeque::new());
        Self { body, decoder, reader, messages, budget, limit }
    }

    /// The next message; nothing at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Document>, Kind> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(Some(message));
            }
            match self.next_event().await? {
                None => return Ok(None),
                Some(event) if event.name == "message" => {
                    self.messages.extend(reply::messages(event.data)?);
                }
                Some(_) => {}
            }
        }
    }

    /// The next event of any name; nothing at the end of the stream.
    pub async fn next_event(&mut self) -> Result<Option<sse_decoder::Event>, Kind> {
        loop {
            if let Some(event) = self.reader.pop_front() {
                self.budget = self.limit.saturating_mul(STREAM_FACTOR);
                return Ok(Some(event));
            }
            let Some(piece) = next_piece(&mut self.body).await? else {
                return Ok(None);
            };
            let too_large = Kind::TooLarge { limit: self.limit };
            self.budget = self.budget.checked_sub(piece.len()).ok_or(too_large.clone())?;
            let mut reader = Vec::new();
            self.decoder.feed(&piece, &mut reader).map_err(|_| too_large)?;
            self.reader.extend(reader);
        }
    }
}

/// The next bytes; nothing at the end.
pub(crate) async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, Kind> {
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.map_err(|error| reset(&error))?.into_data() {
            return Ok(Some(piece));
        }
    }
    Ok(None)
}
