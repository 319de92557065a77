//! The memory of the result of a call: counts for the caller from the first bytes of the result
//! until the client has received it.

use std::cell::Cell;
use std::sync::Arc;

use domain::fault::UpstreamFaultKind as Kind;

/// The memory of a message and of the results of its calls; released on drop.
pub trait MessageMemory: Send + Sync {
    /// Reserves additional bytes. Returns whether memory is available.
    fn grow(&self, bytes: usize) -> bool;
}

/// Memory of a message whose results have another bound.
pub struct Unbounded;

impl MessageMemory for Unbounded {
    fn grow(&self, _bytes: usize) -> bool {
        true
    }
}

/// The memory of the result of one call, part of the memory of its message.
struct ResultMemory {
    message: Arc<dyn MessageMemory>,
    /// Bytes that are reserved.
    reserved: Cell<usize>,
    is_refused: Cell<bool>,
}

// One task at a time polls a call together with the code that reads its result, even after another
// request has resumed the call: the result counts for the request that polls.
tokio::task_local! {
    static RESULT: ResultMemory;
}

/// Bytes by which the memory of a result grows.
const STEP: usize = 1 << 10;

impl ResultMemory {
    fn grow_to(&self, bytes: usize) -> bool {
        let needed = bytes.div_ceil(STEP).saturating_mul(STEP);
        let missing = needed.saturating_sub(self.reserved.get());
        let has_room = missing == 0 || self.message.grow(missing);
        if has_room {
            self.reserved.set(self.reserved.get() + missing);
        } else {
            self.is_refused.set(true);
        }
        has_room
    }
}

/// Runs a call whose result counts for `message`.
pub fn counting<F: Future>(
    message: Arc<dyn MessageMemory>,
    call: F,
) -> impl Future<Output = F::Output> {
    let reserved = Cell::new(0);
    let is_refused = Cell::new(false);
    RESULT.scope(ResultMemory { message, reserved, is_refused }, call)
}

/// Reserves the memory of a result of `bytes` in total. Outside a call, as for a list, no memory is
/// counted.
///
/// # Errors
/// [`Kind::Busy`] when the caller has no room; see [`is_refused`].
pub fn grow_to(bytes: usize) -> Result<(), Kind> {
    let has_room = RESULT.try_with(|result| result.grow_to(bytes)).unwrap_or(true);
    if has_room { Ok(()) } else { Err(Kind::Busy) }
}

/// Whether the running call has failed for lack of memory for its result.
pub fn is_refused() -> bool {
    RESULT.try_with(|result| result.is_refused.get()).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Room for this many bytes.
    struct Room(Mutex<usize>);

    impl MessageMemory for Room {
        fn grow(&self, bytes: usize) -> bool {
            let mut left = self.0.lock().unwrap();
            let has_room = bytes <= *left;
            *left -= if has_room { bytes } else { 0 };
            has_room
        }
    }

    #[tokio::test]
    async fn each_byte_of_a_result_counts_once() {
        let room = Arc::new(Room(Mutex::new(10 << 10)));
        let left = || *room.0.lock().unwrap();
        let run = async |sizes: &[usize]| {
            let call =
                async { sizes.iter().map(|size| grow_to(*size).is_ok()).collect::<Vec<_>>() };
            counting(room.clone(), async { (call.await, is_refused()) }).await
        };
        assert_eq!(run(&[1, 700, STEP]).await, (vec![true; 3], false));
        assert_eq!(left(), 9 * STEP);
        assert_eq!(run(&[3_000, 6_000, 5_000]).await, (vec![true; 3], false));
        assert_eq!(left(), 3 * STEP);
        assert_eq!(run(&[3 * STEP + 1, 3 * STEP]).await, (vec![false, true], true));
        assert_eq!(left(), 0);
        assert!(grow_to(usize::MAX).is_ok() && !is_refused(), "outside of a call");
    }
}
