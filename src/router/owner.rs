//! The owner of a listed prompt.

use std::sync::Arc;

use crate::domain::name::UpstreamId;
use crate::domain::prompt::Argument;

/// The upstream and raw name behind a public name.
#[derive(Debug)]
pub struct Owner {
    pub public_name: Arc<str>,
    pub upstream: UpstreamId,
    pub raw_name: Arc<str>,
    pub arguments: Box<[Argument]>,
    /// `sha256:…` of the definition as listed.
    pub digest: Arc<str>,
}
