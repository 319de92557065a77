//! Futures on the heap.

use std::pin::Pin;

/// Returns a large future on the heap, for an `await` that few calls reach: otherwise the outer
/// future would have room for its kilobytes in every call.
pub fn boxed<F: Future>(future: F) -> Pin<Box<F>> {
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
