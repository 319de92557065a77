//! Work on texts that a caller, an upstream or an author chose. It takes time in proportion to the
//! text, so that of a large text is done outside the threads of calls.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::concurrency::ConcurrencyLimit;
use base::platform::beside_calls;
use domain::fair_share::{Holder, Share};

/// The largest text that is worked on where its call runs, in bytes: well below a millisecond.
pub const AT_ONCE: usize = 16 << 10;

/// Most large texts that are worked on at once, so that processors are left to calls.
const PLACES: usize = 4;

/// The places of the process, whose processors they are for. A caller has one of them, or two
/// while half are free.
static TEXTS: LazyLock<Arc<ConcurrencyLimit>> = LazyLock::new(|| {
    let texts = ConcurrencyLimit::new(PLACES, 0, Duration::ZERO);
    texts.set_share(Share::QUARTER);
    texts
});

/// Does work on texts of so many bytes. That on large ones waits for a place within the share of
/// the holder: the deadline of the call ends the wait.
///
/// # Cancel safety
/// Dropping the future does not end work that has begun; it keeps its place to its own end.
pub async fn work_on<T: Send + 'static>(
    bytes: usize,
    holder: &Holder,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= AT_ONCE {
        return work();
    }
    // On the heap: few calls come here.
    Box::pin(async {
        let place = TEXTS.turn(holder).await;
        beside_calls(move || {
            let _place = place;
            work()
        })
        .await
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::thread::{self, ThreadId};

    use super::*;
    use domain::caller::Caller;

    #[tokio::test]
    async fn large_texts_of_one_caller_leave_a_place_to_others() {
        let holder = |id: &str| Holder::Caller(Caller::new(id));
        let (one, other) = (holder("a"), holder("b"));
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let working = (0..2 * PLACES).map(|_| {
            let (one, released) = (one.clone(), released.clone());
            let wait = move || drop(released.lock().map(|released| released.recv()));
            tokio::spawn(async move { work_on(AT_ONCE + 1, &one, wait).await })
        });
        let working: Vec<_> = working.collect();
        tokio::task::yield_now().await;
        let thread = || -> ThreadId { thread::current().id() };
        assert_ne!(work_on(AT_ONCE + 1, &other, thread).await, thread());
        assert_eq!(work_on(AT_ONCE, &one, thread).await, thread());
        drop(release);
        for work in working {
            work.await.unwrap();
        }
    }
}
