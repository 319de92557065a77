//! Futures on the heap.

use std::pin::Pin;

/// Returns a large future on the heap, where few that await it come to it: the future that holds it
/// in its place would have its kilobytes each time.
pub fn rare<F: Future>(future: F) -> Pin<Box<F>> {
    Box::pin(future)
}

/// Returns the future that `make` returns, pinned on the heap.
///
/// `Box::pin` takes a future that has been made on the stack, and copies all of it, including the
/// kilobytes that stay uninitialized until its first poll. Here the memory is allocated first, and
/// only what `make` has moved into the future is written.
pub fn pin_in_place<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}
