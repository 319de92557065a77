//! Links in prompts: whoever reads one must be the caller that got it, and must still be allowed to
//! get the prompt.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Client, Outcome};
use crate::upstream::NOTES;
use crate::world::GivenLink;

/// Remembers the links in the result of a get, and checks that none is the upstream's own.
pub(super) fn keep(client: &Client, public: &str, result: &Value) {
    let (upstream, name) = public.split_once("__").unwrap_or_default();
    let messages = result["messages"].as_array().into_iter().flatten();
    let links = messages.map(|message| &message["content"]);
    for link in links.filter(|content| content["type"] == "resource_link") {
        let uri = link["uri"].as_str().unwrap_or_default().to_owned();
        if uri.starts_with(NOTES) {
            client.world.violation(format!("{} got the link {uri} as it is", client.plan.name));
        }
        let caller = client.caller.id.clone();
        let (upstream, name) = (upstream.to_owned(), name.to_owned());
        client.world.keep_link(GivenLink { uri, caller, upstream, name });
    }
}

/// Reads one of the links that any client got, perhaps with a change, and checks what comes.
pub(super) async fn follow(client: &mut Client) {
    let Some(link) = client.world.clone().any_link(&mut client.rng) else { return };
    let mut uri = link.uri.clone();
    let is_changed = client.rng.u8(..) < 30;
    if is_changed {
        let last = uri.pop();
        uri.push(if last == Some('A') { 'E' } else { 'A' });
    }
    let sent = Instant::now();
    let outcome = client.ask("resources/read", json!({"uri": uri})).await;
    let Outcome::Result(result) = outcome else { return };
    let Client { world, caller, plan, .. } = &*client;
    let now = Instant::now();
    let may_read = caller.id == link.caller
        && !is_changed
        && world.may_use(caller, &link.upstream, &link.name, sent, now);
    if !may_read {
        world.violation(format!("{} read {link:?}, which it may not", plan.name));
    }
    let mut plans = world.scenario.upstreams.iter();
    let Some(upstream) = plans.find(|upstream| upstream.id == link.upstream) else { return };
    let of = upstream.lists_per_caller.then_some(caller.id.as_str());
    let content = &result["contents"][0];
    if content["text"] != upstream.note(&link.name, of) || content["uri"] != uri {
        world.violation(format!("{} got {result} for {link:?}", plan.name));
    }
}
