//! Futures that are made where they stay.

use std::pin::Pin;

/// Returns the future that `make` returns, pinned on the heap.
///
/// `Box::pin` takes a future that has been made on the stack, and copies all of it, including the
/// kilobytes that stay uninitialized until its first poll. Here the memory is allocated first, and
/// only what `make` has moved into the future is written.
pub fn pin_in_place<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}
