//! Rollouts in the calm: a caller whose gets fail takes the new version from no other, failures of
//! two callers take it from all, until an operator begins again.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;

use crate::admin;
use crate::client::{Client, Outcome};
use crate::plan::PROVOKER;
use crate::upstream::{Plan, ROLLED_OUT, candidate};
use crate::world::World;

/// Longer than a breaker stays open, and than replicas need to tell each other.
const SETTLED: Duration = Duration::from_secs(4);

/// The rounds in which two callers fail until the version must be gone: enough for the failures
/// that any rule of a scenario takes.
const ROUNDS: usize = 8;

/// The time after which a bucket is full again.
const REFILL: Duration = Duration::from_secs(31);

/// A caller, with gets that succeed and with gets that fail.
struct Subject {
    id: String,
    good: Client,
    bad: Client,
}

/// The rollout of one prompt.
struct Rollout<'a> {
    world: &'a Arc<World>,
    /// The public name of the prompt.
    prompt: String,
    /// The callers that may get it: the first one fails alone, then together with the second one.
    subjects: Vec<Subject>,
}

/// Checks each rollout whose prompt at least two callers may get.
pub async fn check(world: &Arc<World>, rng: &mut Rng) {
    for upstream in world.upstreams().iter().filter(|upstream| upstream.plan().has_rollout) {
        let mut rollout = Rollout::new(world, upstream.plan(), rng);
        if rollout.subjects.len() > 1 {
            rollout.check(rng).await;
        }
    }
}

impl<'a> Rollout<'a> {
    fn new(world: &'a Arc<World>, plan: &Plan, rng: &mut Rng) -> Self {
        let rules = world.newest_rules();
        let callers = world.scenario.callers.iter();
        let may = callers.filter(|caller| rules.allow(caller, &plan.id, ROLLED_OUT));
        let mut subjects: Vec<_> = may
            .map(|caller| {
                let mut client = |kind: &str| {
                    let name = format!("{kind}{}", caller.number);
                    Client::idle(world.clone(), rng.fork(), name, caller.number)
                };
                let (good, bad) = (client("onlooker"), client(PROVOKER));
                Subject { id: caller.id.clone(), good, bad }
            })
            .collect();
        rng.shuffle(&mut subjects);
        Self { world, prompt: format!("{}__{ROLLED_OUT}", plan.id), subjects }
    }

    async fn check(&mut self, rng: &mut Rng) {
        let replica = rng.usize(..self.world.scenario.replicas);
        // The faults of the run may have taken the version back.
        self.begin_again(rng).await;
        for _ in 0..rng.usize(5..20) {
            self.fail(0, replica).await;
            if rng.bool() {
                sleep(SETTLED).await;
            }
        }
        self.expect(true, "one caller has failed").await;
        for _ in 0..ROUNDS {
            for subject in 0..2 {
                self.fail(subject, replica).await;
                // The replicas tell each other.
                sleep(SETTLED).await;
            }
        }
        self.expect(false, "two callers have failed").await;
        self.begin_again(rng).await;
    }

    async fn begin_again(&mut self, rng: &mut Rng) {
        admin::rearm(self.world, rng.usize(..self.world.scenario.replicas), &self.prompt).await;
        sleep(SETTLED).await;
        self.expect(true, "an operator has begun again").await;
    }

    /// Lets a get of a caller fail.
    async fn fail(&mut self, subject: usize, replica: usize) {
        let bad = &mut self.subjects[subject].bad;
        bad.move_to(replica).await;
        bad.get(&self.prompt).await;
    }

    /// Every caller gets the new version at all replicas, or none does.
    async fn expect(&mut self, is_new: bool, after: &str) {
        for Subject { id, good, .. } in &mut self.subjects {
            for replica in 0..self.world.scenario.replicas {
                let mut got = is_answered_with_new(good, replica, &self.prompt).await;
                if got.is_none() {
                    // Its limit, or the breaker.
                    sleep(REFILL).await;
                    got = is_answered_with_new(good, replica, &self.prompt).await;
                }
                if got != Some(is_new) {
                    let prompt = &self.prompt;
                    let got = match got {
                        Some(true) => "gets the new version",
                        Some(false) => "gets the old version",
                        None => "gets no version",
                    };
                    let why = format!("{after}, and {id} {got} of {prompt} at {replica}");
                    self.world.violation(why);
                }
            }
        }
    }
}

/// Whether a get is answered with the new version; `None` if it is not answered with a text.
async fn is_answered_with_new(client: &mut Client, replica: usize, prompt: &str) -> Option<bool> {
    client.move_to(replica).await;
    let Outcome::Result(result) = client.get(prompt).await else { return None };
    Some(result["messages"][0]["content"]["text"].as_str()?.contains(&candidate()))
}
