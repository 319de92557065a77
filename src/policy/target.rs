//! What a call is for, as limits and records see it.

/// The prompt that a call is for, as its upstream knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// Id of the upstream.
    pub(crate) upstream: &'a str,
    pub(crate) raw_name: &'a str,
    /// `sha256:…` of the definition as listed; empty where none is known.
    pub(crate) definition: &'a str,
}
