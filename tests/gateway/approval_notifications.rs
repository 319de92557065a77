//! The webhook that says that prompts wait for approval.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::approvals::Changeable;
use crate::support::upstream::HANG;
use crate::support::{Gateway, Received, Scripted, Upstream, eventually, metrics};

pub(super) const KEY: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A receiver that answers its requests with these statuses, and all later ones with the last.
async fn receiver(statuses: &'static [u16]) -> Upstream {
    let next = AtomicUsize::new(0);
    Upstream::start(move |_| {
        let at = next.fetch_add(1, Ordering::SeqCst).min(statuses.len() - 1);
        Scripted::Http(statuses[at], vec![("Location", "/elsewhere".to_owned())], Vec::new())
    })
    .await
}

/// The configuration of a gateway whose prompts all wait, and that notifies this receiver.
fn notifying(folder: &Path, mode: &str, receiver: &Upstream, upstreams: &str) -> String {
    let lock = folder.join("promptgate.lock");
    format!(
        "[listing]\ndebounce = \"20ms\"\n[telemetry]\nservice_name = \"house\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n\
         [approvals]\nmode = \"{mode}\"\nlock = {lock:?}\n\
         [approvals.notify]\nurl = \"http://{}/hook?t=1\"\n\
         secret = {{ value = \"whsec_{KEY}\" }}\n{upstreams}",
        receiver.addr
    )
}

/// The message of a request, whose signature is verified as docs/approvals.md says.
pub(super) fn verified(request: &Received) -> Value {
    assert_eq!((&*request.http_method, &*request.path), ("POST", "/hook?t=1"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    let header = |name| request.header(name).unwrap_or_else(|| panic!("{name}: {request:?}"));
    let signed =
        format!("{}.{}.{}", header("webhook-id"), header("webhook-timestamp"), request.body_text());
    let signature = header("webhook-signature").strip_prefix("v1,").unwrap();
    let signature = BASE64_STANDARD.decode(signature).unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &BASE64_STANDARD.decode(KEY).unwrap());
    hmac::verify(&key, signed.as_bytes(), &signature).expect("the signature fits");
    serde_json::from_slice(&request.body).unwrap()
}

async fn received(receiver: &Upstream, count: usize) -> Vec<Received> {
    receiver.until(|received| received.len() >= count).await;
    receiver.received()
}

const COUNTED: &str = "promptgate_approval_notifications_total";

/// The attempts that the gateway has counted, by outcome.
async fn outcomes(gateway: &Gateway) -> Vec<(String, f64)> {
    let counted = metrics(&gateway.admin(), &[COUNTED]).await;
    let outcome = |name: String| {
        let (_, rest) = name.split_once("promptgate_outcome=\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    counted.into_iter().map(|(name, count)| (outcome(name), count)).collect()
}

#[tokio::test]
async fn what_waits_is_said_signed_and_again_after_a_failure_and_by_a_restart_under_the_same_id() {
    let folder = tempfile::tempdir().unwrap();
    let (up, receiver) =
        (Upstream::with_prompts(&["a", "b"]).await, receiver(&[500, 302, 204]).await);
    let toml = notifying(folder.path(), "enforce", &receiver, &up.table("up"));
    let gateway = Gateway::start(&toml).await;
    let requests = received(&receiver, 3).await;
    let mut message = verified(&requests[2]);
    assert!(message["timestamp"].take().as_str().unwrap().ends_with('Z'));
    for prompt in message["data"]["prompts"].as_array_mut().unwrap() {
        // By what is known of its text by then.
        let class = prompt.as_object_mut().unwrap().remove("class").unwrap();
        assert!(class == "text" || class == "definition", "{class}");
    }
    let prompt = |name: &str| {
        json!({"name": format!("up__{name}"), "rawName": name, "state": "pending",
            "reason": "no version of it was approved"})
    };
    let expected = json!({
        "type": "approvals.waiting",
        "timestamp": null,
        "text": "house: upstream up: 2 prompts wait for approval: `promptgate approvals review`",
        "data": {"gateway": "house", "upstream": "up", "waiting": 2,
            "prompts": [prompt("a"), prompt("b")]},
    });
    assert_eq!(message, expected);
    let seen = async || outcomes(&gateway).await;
    let seen = eventually(seen, |seen| seen.len() == 2).await;
    assert_eq!(seen, [("delivered".to_owned(), 1.0), ("failed".to_owned(), 2.0)]);
    gateway.drain().await;
    let gateway = Gateway::start(&toml).await;
    let ids: BTreeSet<_> = received(&receiver, 4).await.iter().map(id).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    gateway.drain().await;
}

fn id(request: &Received) -> String {
    request.header("webhook-id").unwrap().to_owned()
}

#[tokio::test]
async fn a_reload_says_nothing_again_but_to_another_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let (up, more) = (Upstream::with_prompts(&["a"]).await, Upstream::with_prompts(&["m"]).await);
    let (first, second) = (receiver(&[200]).await, receiver(&[200]).await);
    let both = up.table("up") + &more.table("more");
    let quiet = format!("[approvals]\nmode = \"enforce\"\nlock = {:?}\n", folder.path().join("l"));
    let gateway = Gateway::start(&(quiet + &up.table("up"))).await;
    gateway.reload(&notifying(folder.path(), "enforce", &first, &up.table("up"))).await;
    let upstreams = |requests: Vec<Received>| {
        let named = |request| verified(request)["data"]["upstream"].as_str().unwrap().to_owned();
        requests.iter().map(named).collect::<Vec<_>>()
    };
    assert_eq!(upstreams(received(&first, 1).await), ["up"]);
    gateway.reload(&notifying(folder.path(), "enforce", &first, &both)).await;
    assert_eq!(upstreams(received(&first, 2).await), ["up", "more"]);
    gateway.reload(&notifying(folder.path(), "enforce", &second, &both)).await;
    let mut told = upstreams(received(&second, 2).await);
    told.sort();
    assert_eq!(told, ["more", "up"]);
    assert_eq!(first.received().len(), 2);
    gateway.drain().await;
}

#[tokio::test]
async fn a_receiver_that_hangs_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let up = Upstream::with_prompts(&["a"]).await;
    let receiver = Upstream::start(|_| HANG).await;
    let toml = notifying(folder.path(), "warn", &receiver, &up.table("up"));
    let gateway = Gateway::start(&toml).await;
    received(&receiver, 1).await;
    assert_eq!(gateway.client().names().await.0, ["up__a"]);
    gateway.client().ask("prompts/get", json!({"name": "up__a"})).await;
    gateway.reload(&notifying(folder.path(), "warn", &receiver, "")).await;
    let ended = timeout(Duration::from_secs(6), gateway.drain()).await;
    assert!(ended.is_ok(), "the end waits for no receiver");
}

#[tokio::test]
async fn an_upstream_that_changes_again_and_again_makes_one_notification() {
    let folder = tempfile::tempdir().unwrap();
    let (up, receiver) = (Changeable::start().await, receiver(&[200]).await);
    let toml = notifying(folder.path(), "warn", &receiver, &up.upstream.table("up"));
    let gateway = Gateway::start(&toml).await;
    let described = async || {
        let list = gateway.client().ask("prompts/list", json!({})).await;
        list["prompts"][0]["description"].as_str().unwrap_or_default().to_owned()
    };
    let mut versions = 0;
    let mut change = async || {
        versions += 1;
        let description = format!("version {versions}");
        up.offer(|offer| offer.definition["description"] = json!(description));
        eventually(described, |seen| *seen == description).await;
    };
    while receiver.received().is_empty() {
        change().await;
    }
    for _ in 0..2 {
        change().await;
    }
    let requests = receiver.received();
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(verified(&requests[0])["data"]["waiting"], 1);
    gateway.drain().await;
}
