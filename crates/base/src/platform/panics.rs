//! Panics for tests, which no input of a correct gateway causes.

/// Panics if a test has given a prompt the name that stands for a panic at `point`:
/// `panic-in-POINT`. Outside of tests it does nothing.
#[cfg(any(test, feature = "test-util"))]
pub fn at(point: &str, name: &str) {
    let is_meant = name.strip_prefix("panic-in-") == Some(point);
    assert!(!is_meant, "a test wants a panic in {point}");
}

/// Does nothing outside of tests.
#[cfg(not(any(test, feature = "test-util")))]
pub fn at(_point: &str, _name: &str) {}
