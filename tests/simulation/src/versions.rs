//! Versions in the calm: a reader at each replica gets a prompt by its names while author and
//! approver change its versions, labels and approvals.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;

use crate::client::{Client, Outcome};
use crate::plan::VERSIONS_VIEW;
use crate::upstream::Upstream;
use crate::upstream::versions::{LABELS, MAX_VERSION, VERSIONED, version_name};
use crate::world::World;

/// The time after which a bucket is full again.
const REFILL: Duration = Duration::from_secs(31);

/// A caller that may use everything.
pub struct Reader<'a> {
    world: &'a Arc<World>,
    upstream: &'a Upstream,
    client: Client,
    /// At the view with the names of versions.
    visitor: Client,
    rng: Rng,
}

impl<'a> Reader<'a> {
    pub fn new(world: &'a Arc<World>, upstream: &'a Upstream, mut rng: Rng) -> Self {
        let mut client = |name: &str| Client::idle(world.clone(), rng.fork(), name.to_owned(), 0);
        let (client, mut visitor) = (client("reader"), client("visitor"));
        visitor.enter(VERSIONS_VIEW);
        Self { world, upstream, client, visitor, rng }
    }

    /// Gets the plain name and some others at each replica. What comes is checked, and an approved
    /// version must come where the author has made no mistake.
    pub async fn read(&mut self) {
        let id = self.upstream.plan().id.clone();
        let offered = self.upstream.offered_version().filter(|offered| {
            let rules = self.world.newest_rules();
            let approved = rules.approval(&id, &offered.name);
            approved.is_some_and(|own| own.template.as_ref() == Some(&offered.description))
        });
        let plain = format!("{id}__{VERSIONED}");
        for replica in 0..self.world.scenario.replicas {
            self.client.move_to(replica).await;
            let mut got = self.client.get(&plain).await;
            if !matches!(got, Outcome::Result(_)) {
                sleep(REFILL).await;
                got = self.client.get(&plain).await;
            }
            let is_served = |description: &str| {
                let Outcome::Result(result) = &got else { return false };
                let text = result["messages"][0]["content"]["text"].as_str().unwrap_or_default();
                text.starts_with(&format!("{id} says {description} for "))
            };
            if let Some(offered) = offered.as_ref().filter(|own| !is_served(&own.description)) {
                let why =
                    format!("{plain} is {offered:?}, which is approved, and {got:?} at {replica}");
                self.world.violation(why);
            }
            self.visitor.move_to(replica).await;
            for _ in 0..2 {
                let name = match self.rng.u8(..3) {
                    0 => format!("{VERSIONED}@{}", LABELS[self.rng.usize(..LABELS.len())]),
                    _ => version_name(self.rng.u32(1..=MAX_VERSION)),
                };
                self.visitor.get(&format!("{id}__{name}")).await;
            }
        }
    }
}
