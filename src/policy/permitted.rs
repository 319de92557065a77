//! Proof that the gates were passed.

/// A value that policy has let through. Only `policy` can make one, so what demands it cannot be
/// reached around the gate.
#[derive(Debug)]
pub struct Permitted<T>(T);

impl<T> Permitted<T> {
    pub(super) fn new(value: T) -> Self {
        Self(value)
    }

    pub fn into_inner(self) -> T {
        self.0
    }
}
