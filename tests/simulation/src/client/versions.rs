//! Prompts with versions: whatever their author and their approver do, the plain name stays served,
//! and each name serves approved versions only.

use serde_json::Value;
use tokio::time::Instant;

use super::{Client, Outcome};
use crate::upstream::Prompt;
use crate::upstream::versions::{VERSIONED, is_versioned};

/// The reasons with which a prompt is refused that is not served.
const NOT_SERVED: [&str; 3] = ["unknown_prompt", "not_approved", "upstream_error"];

/// Gets the plain name of a prompt with versions.
pub(super) async fn get(client: &mut Client) {
    let upstreams = client.world.scenario.upstreams.iter().filter(|plan| plan.has_versions);
    let names: Vec<_> = upstreams.map(|plan| format!("{}__{VERSIONED}", plan.id)).collect();
    if let Some(name) = client.rng.choice(names) {
        client.get(&name).await;
    }
}

/// Whether an element of a list of prompts is a prompt with versions.
pub(super) fn stands_for_version(prompt: &Value) -> bool {
    let name = prompt["name"].as_str().unwrap_or_default();
    name.split_once("__").is_some_and(|(_, name)| is_versioned(name))
}

/// The version whose text this is.
pub(super) fn version_in(text: &str, upstream: &str) -> Option<Prompt> {
    let description = text.strip_prefix(&format!("{upstream} says "))?;
    let (name, _) = description.split_once(" of ")?;
    Some(Prompt { name: name.to_owned(), description: description.to_owned() })
}

/// Checks the prompts with versions of a list.
pub(super) fn check_prompts(client: &Client, prompts: &[Value], sent: Instant) {
    let Client { world, caller, plan, .. } = client;
    let now = Instant::now();
    for prompt in prompts {
        let public = prompt["name"].as_str().unwrap_or_default();
        let (id, name) = public.split_once("__").unwrap_or_default();
        let description = prompt["description"].as_str().unwrap_or_default().to_owned();
        let own = description.split_once(" of ").map_or("", |(name, _)| name).to_owned();
        let version = Prompt { name: own, description };
        let mut upstreams = world.scenario.upstreams.iter();
        let is_approved = upstreams.find(|plan| plan.id == id).is_some_and(|upstream| {
            is_versioned(&version.name) && world.may_list(upstream, &version, sent, now)
        });
        if !is_approved || !world.may_use(caller, id, name, sent, now) {
            world.violation(format!("{} has listed {prompt}, which it may not see", plan.name));
        }
    }
}

/// Checks what a get of a prompt with versions was answered with, apart from its text.
pub(super) fn check_get(client: &Client, public: &str, outcome: &Outcome, sent: Instant) {
    let Client { world, caller, plan, .. } = client;
    let (id, name) = public.split_once("__").unwrap_or_default();
    let Some(replica) = client.replica().filter(|_| is_versioned(name)) else { return };
    let mut upstreams = world.upstreams().iter();
    let Some(upstream) = upstreams.find(|upstream| upstream.plan().id == id) else { return };
    match outcome {
        Outcome::Result(_) if name == VERSIONED => world.serves_version(replica, id, sent),
        Outcome::Result(result) => {
            let text = result["messages"][0]["content"]["text"].as_str().unwrap_or_default();
            let version = version_in(text, id).map(|version| version.name).unwrap_or_default();
            let number = name.rsplit_once('@').and_then(|(_, last)| last.parse::<u32>().ok());
            if number.is_some() && version != name {
                world.violation(format!("{} got {text:?} for {public}", plan.name));
            }
        }
        Outcome::Error(_, reason) if name == VERSIONED && NOT_SERVED.contains(&reason.as_str()) => {
            world.refuses_version(replica, upstream, caller, reason, sent);
        }
        Outcome::Error(..) | Outcome::Status(_) | Outcome::Lost => {}
    }
}
