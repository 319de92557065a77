//! Reader of a response body as server-sent events.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http_body_util::BodyExt;

use crate::call::reply::{self, Unreadable};
use crate::call::result_memory;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::document::Document;
use domain::text::sse_decoder;
use net::egress::{ResponseBody, reset};

/// Bytes that a stream may carry between two events, as a multiple of the largest message: permits
/// keep-alive comments, but not endless ones.
const STREAM_FACTOR: usize = 4;

/// Reader of an event stream. `limit`, in bytes, bounds each event.
pub struct SseReader {
    body: ResponseBody,
    decoder: sse_decoder::SseDecoder,
    /// Decoded events that were not returned yet.
    events: VecDeque<sse_decoder::SseEvent>,
    /// Messages of a batch that were not returned yet (2025-03-26, batching).
    messages: VecDeque<Document>,
    /// Bytes that may still come before the next event.
    budget: usize,
    /// Bytes of the largest message.
    limit: usize,
}

impl SseReader {
    pub fn new(body: ResponseBody, limit: usize) -> Self {
        let decoder = sse_decoder::SseDecoder::new(limit);
        let budget = limit.saturating_mul(STREAM_FACTOR);
        let events = VecDeque::new();
        Self { body, decoder, events, messages: VecDeque::new(), budget, limit }
    }

    /// Returns the next JSON-RPC message, or an unreadable message; `None` at the end of the
    /// stream. Cancel safe.
    ///
    /// # Errors
    /// When the connection breaks, or an event exceeds the limit.
    pub async fn next(&mut self) -> Result<Option<Result<Document, Unreadable>>, Kind> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(Some(Ok(message)));
            }
            let Some(event) = self.next_event().await? else {
                return Ok(None);
            };
            if event.name == "message" {
                match reply::messages(event.data) {
                    Ok(messages) => self.messages.extend(messages),
                    Err(unreadable) => return Ok(Some(Err(unreadable))),
                }
            }
        }
    }

    /// Skips the rest of the stream, at most `most` bytes.
    pub(super) async fn skip_to_end(mut self, mut most: usize) {
        while let Ok(Some(chunk)) = next_chunk(&mut self.body).await {
            let Some(left) = most.checked_sub(chunk.len()) else { return };
            most = left;
        }
    }

    /// Returns the event id for resuming the stream (MCP 2025-11-25, transports, resumability);
    /// `None` if the upstream has sent no id.
    pub(super) fn last_event_id(&self) -> Option<HeaderValue> {
        let id = Some(self.decoder.last_id()).filter(|id| !id.is_empty());
        id.and_then(|id| HeaderValue::from_bytes(id).ok())
    }

    /// The upstream's delay before the stream is reopened (MCP 2025-11-25, transports).
    pub(super) fn retry(&self) -> Option<Duration> {
        self.decoder.retry()
    }

    /// Returns the next event, whatever its name; nothing at the end of the stream. Cancel safe.
    ///
    /// # Errors
    /// When the connection breaks, an event exceeds the limit, or a call has no room for it.
    pub async fn next_event(&mut self) -> Result<Option<sse_decoder::SseEvent>, Kind> {
        loop {
            if let Some(event) = self.events.pop_front() {
                self.budget = self.limit.saturating_mul(STREAM_FACTOR);
                return Ok(Some(event));
            }
            let Some(chunk) = next_chunk(&mut self.body).await? else {
                return Ok(None);
            };
            let too_large = Kind::TooLarge { limit: self.limit };
            self.budget = self.budget.checked_sub(chunk.len()).ok_or(too_large.clone())?;
            result_memory::grow_to(self.limit.saturating_mul(STREAM_FACTOR) - self.budget)?;
            let mut events = Vec::new();
            self.decoder.feed(&chunk, &mut events).map_err(|_| too_large)?;
            self.events.extend(events);
        }
    }
}

/// Returns the next bytes of a body; nothing at its end. Cancel safe.
pub(crate) async fn next_chunk(body: &mut ResponseBody) -> Result<Option<Bytes>, Kind> {
    while let Some(frame) = body.frame().await {
        if let Ok(chunk) = frame.map_err(|error| reset(&error))?.into_data() {
            return Ok(Some(chunk));
        }
    }
    Ok(None)
}
