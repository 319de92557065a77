//! Work on texts that a caller, an upstream or an author chose. The work takes time in proportion
//! to the text, so large texts are processed outside the threads of calls.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::concurrency::ConcurrencyLimit;
use base::platform::run_blocking;
use domain::calls::fair_share::{Holder, Share};

/// The largest text that is processed on the call's thread, in bytes: well below a millisecond.
pub const AT_ONCE: usize = 16 << 10;

/// Most large texts that are processed at once, so that calls keep some processors.
const PLACES: usize = 4;

/// The places of the process, which protect its processors. A caller gets one place, or two places
/// while half are free.
static TEXTS: LazyLock<Arc<ConcurrencyLimit>> = LazyLock::new(|| {
    let texts = ConcurrencyLimit::new(PLACES, 0, Duration::ZERO);
    texts.set_share(Share::QUARTER);
    texts
});

/// Runs work on texts of `bytes` in total. Work on large texts waits for a place within the share
/// of the holder: the deadline of the call ends the wait.
///
/// # Cancel safety
/// Dropping the future does not end work that has begun; the work keeps its place until it ends.
pub async fn work_on<T: Send + 'static>(
    bytes: usize,
    holder: &Holder,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= AT_ONCE {
        return work();
    }
    // Boxed: few calls reach this path.
    Box::pin(async {
        let place = TEXTS.turn(holder).await;
        run_blocking(move || {
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
    use domain::calls::caller::Caller;

    #[tokio::test]
    async fn large_texts_of_one_caller_leave_a_place_to_others() {
        let holder = |id: &str| Holder::Caller(Caller::new(id));
        let one = holder("a");
        let other = holder("b");
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let working = (0..2 * PLACES).map(|_| {
            let one = one.clone();
            let released = released.clone();
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
