//! The catalog: an immutable snapshot of who serves what, and of how good that knowledge is.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::view::View;
use crate::domain::cursor::CacheScope;
use crate::domain::fault::{Fault, UpstreamFaultKind as Kind};
use crate::domain::name::UpstreamId;
use crate::domain::prompt::Argument;

/// A snapshot. Readers keep one for the whole request.
#[derive(Debug, Default)]
pub struct Catalog {
    /// What changes only when a list does.
    pub content: Arc<Content>,
    /// Upstreams whose list is old or missing.
    pub incomplete: Vec<Incomplete>,
    /// Some upstream has not been heard of since the start, and there is still time to wait.
    pub pending: bool,
    /// When the first of the lists should be asked for again; absent where none says so.
    pub fresh_until: Option<Instant>,
    pub scope: CacheScope,
    /// The last good walk of each upstream that has had one.
    pub walks: HashMap<UpstreamId, WalkInfo>,
    /// Why lists fail at present, if they do.
    pub list_fault: Option<Fault>,
}

/// The prompts themselves.
#[derive(Debug, Default)]
pub struct Content {
    /// Another one for each content.
    pub generation: u64,
    /// In byte order of the public names.
    owners: Vec<Owner>,
    /// All of them, as whoever may see everything does.
    pub everyone: Arc<View>,
    pub left_out: Vec<LeftOut>,
}

/// Who answers for a public name.
#[derive(Debug)]
pub struct Owner {
    pub public_name: String,
    pub upstream: UpstreamId,
    pub raw_name: String,
    pub arguments: Vec<Argument>,
    /// `sha256:…` of the definition as listed.
    pub digest: String,
}

/// An upstream whose prompts may be out of date, or are not there.
#[derive(Clone, Debug)]
pub struct Incomplete {
    pub upstream: UpstreamId,
    pub kind: Kind,
    /// When the list that is still served was walked; absent where none is served.
    pub walked_at: Option<Instant>,
}

/// What a walk has brought.
#[derive(Clone, Copy, Debug)]
pub struct WalkInfo {
    pub pages: usize,
    /// As the upstream lists them, whether or not they are listed here.
    pub prompts: usize,
    pub at: Instant,
}

/// A prompt that an upstream lists and the gateway does not.
#[derive(Clone, Debug, Eq, Hash, PartialEq, Serialize)]
pub struct LeftOut {
    pub upstream: String,
    /// Empty where not even a name could be read.
    #[serde(rename = "name")]
    pub raw_name: String,
    pub reason: String,
}

impl Content {
    /// `owners` come in byte order of their public names.
    pub fn new(
        generation: u64,
        owners: Vec<Owner>,
        everyone: View,
        left_out: Vec<LeftOut>,
    ) -> Self {
        Self { generation, owners, everyone: Arc::new(everyone), left_out }
    }

    /// Who serves what, in the order of the view of everyone.
    pub fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// How many prompts are listed of each upstream that has any.
    pub fn counts(&self) -> HashMap<&UpstreamId, usize> {
        let mut counts = HashMap::new();
        for owner in &self.owners {
            *counts.entry(&owner.upstream).or_default() += 1;
        }
        counts
    }

    pub fn owner(&self, public_name: &str) -> Option<&Owner> {
        let found = self.owners.binary_search_by(|o| o.public_name.as_str().cmp(public_name));
        found.ok().map(|index| &self.owners[index])
    }
}

impl Catalog {
    /// The `ttlMs` to hand out: the least time left, at most `most`, and nothing while a part is
    /// missing or old.
    pub fn ttl(&self, now: Instant, most: Duration) -> Duration {
        match self.incomplete.is_empty() {
            false => Duration::ZERO,
            true => self.fresh_until.map_or(most, |until| until.duration_since(now).min(most)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ttl_is_the_least_time_left_and_capped() {
        let (now, most) = (Instant::now(), Duration::from_secs(300));
        let mut catalog = Catalog::default();
        assert_eq!(catalog.ttl(now, most), most);
        catalog.fresh_until = Some(now + Duration::from_secs(7));
        assert_eq!(catalog.ttl(now, most), Duration::from_secs(7));
        assert_eq!(catalog.ttl(now + Duration::from_secs(9), most), Duration::ZERO);
        let kind = Kind::Timeout;
        catalog.incomplete.push(Incomplete {
            upstream: UpstreamId::parse("a").unwrap(),
            kind,
            walked_at: None,
        });
        assert_eq!(catalog.ttl(now, most), Duration::ZERO);
    }
}
