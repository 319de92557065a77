//! Reading the body of a request, within its size and time limits.

use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::config::Limits;
use crate::domain::fault::TransportFault;
use crate::downstream::admission::{Admission, BodyBudget};

/// Reads a body to its end, within `body_size` bytes and the time `body`, and reserves memory for it.
///
/// # Errors
/// `body_too_large`, `body_timeout`, `body_broken`, or `overloaded` when `in_flight_bytes` is exhausted.
pub(crate) async fn read(
    body: Incoming,
    headers: &HeaderMap,
    limits: &Limits,
    admission: &Admission,
) -> Result<(Vec<u8>, BodyBudget), TransportFault> {
    let too_large = TransportFault::BodyTooLarge { limit: limits.body_size };
    let announced = content_length(headers);
    if announced.is_some_and(|length| length > limits.body_size) {
        return Err(too_large);
    }
    let capacity = announced.unwrap_or(0);
    let reading = async {
        let mut body = body;
        let mut budget = admission.budget(0)?;
        let mut bytes = Vec::with_capacity(capacity.min(MAX_FIRST_BUFFER));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| TransportFault::BodyBroken)?;
            if let Some(piece) = frame.data_ref() {
                if bytes.len() + piece.len() > limits.body_size {
                    return Err(too_large);
                }
                budget.grow_to(bytes.len() + piece.len())?;
                if bytes.len() + piece.len() > bytes.capacity() {
                    // Doubled, but not beyond the announced length: memory is bounded for large bodies.
                    let more = bytes.len().min(capacity.saturating_sub(bytes.len()));
                    bytes.reserve_exact(more.max(piece.len()));
                }
                bytes.extend_from_slice(piece);
            }
        }
        Ok((bytes, budget))
    };
    timeout(limits.body, reading).await.unwrap_or(Err(TransportFault::BodyTimeout))
}

/// Returns the value of `Content-Length` in bytes.
fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Bytes allocated at most because of `Content-Length`. Beyond that the buffer grows with the bytes received.
const MAX_FIRST_BUFFER: usize = 64 << 10;
