//! `notifications/prompts/list_changed`, from any upstream to every client (fault matrix, L).

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tokio::sync::broadcast;

use crate::support::client::{Stream, modern};
use crate::support::upstream::{good_legacy, good_modern};
use crate::support::{
    Counter, Gateway, OpenStream, Received, Scripted, Upstream, eventually, metrics,
};

const QUICK: &str = "[listing]\ndebounce = \"20ms\"\ndebounce_max = \"200ms\"\n";
const STREAM: [(&str, &str); 1] = [("Accept", "text/event-stream")];

async fn library(name: &str) -> (Gateway, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    add(&folder, name);
    let path = folder.path().display();
    let toml = format!("{QUICK}[upstreams.lib]\ntransport = \"library\"\npath = \"{path}\"\n");
    let gateway = Gateway::start(&toml).await;
    settled(&gateway, &format!("lib__{name}")).await;
    (gateway, folder)
}

fn add(folder: &tempfile::TempDir, name: &str) {
    fs::write(folder.path().join(format!("{name}.md")), format!("---\nname: {name}\n---\nx"))
        .unwrap();
}

/// Waits until the first whole list is there: what comes next is a change.
async fn settled(gateway: &Gateway, name: &str) {
    let listed = gateway.client().names().await.0;
    assert!(listed.contains(&name.to_owned()), "{listed:?}");
}

/// Reads notices until the list holds `name`: many edits may be told at once, or one by one.
async fn hears_of(stream: &mut Stream, gateway: &Gateway, name: &str) {
    loop {
        let event = stream.event().await.expect("a notice").json();
        assert_eq!(event["method"], "notifications/prompts/list_changed");
        if gateway.client().names().await.0.contains(&name.to_owned()) {
            return;
        }
    }
}

#[tokio::test]
async fn clients_of_every_revision_hear_of_an_edit() {
    let (gateway, folder) = library("a").await;
    let mut streams = vec![gateway.client().listen().await];
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = gateway.client().legacy(revision).await;
        let mut stream = client.stream("GET", &STREAM, b"").await;
        if revision == "2025-11-25" {
            let priming = stream.event().await.unwrap();
            assert!(priming.id.is_some() && priming.data.is_empty(), "{priming:?}");
        }
        streams.push(stream);
    }
    add(&folder, "b");
    for stream in &mut streams {
        hears_of(stream, &gateway, "lib__b").await;
    }
}

#[tokio::test]
async fn an_edit_of_the_text_alone_is_told() {
    let (gateway, folder) = library("a").await;
    let mut stream = gateway.client().listen().await;
    fs::write(folder.path().join("a.md"), "---\nname: a\n---\nanother text").unwrap();
    stream.event().await.unwrap();
    let result = gateway.client().ask("prompts/get", json!({"name": "lib__a"})).await;
    assert_eq!(result["messages"][0]["content"]["text"], "another text");
}

#[tokio::test]
async fn l2_the_first_list_after_the_start_is_no_change() {
    let slow = NotifyingUpstream::modern().await;
    let gateway = Gateway::start(&(QUICK.to_owned() + &slow.upstream.patient_table("up"))).await;
    // Before anything is known, and listed right afterwards.
    let mut stream = gateway.client().listen().await;
    settled(&gateway, "up__p").await;
    slow.is_heard().await;
    slow.changed.store(true, Ordering::SeqCst);
    slow.tell();
    stream.event().await.unwrap();
    assert_eq!(
        gateway.client().names().await.0,
        ["up__p", "up__q"],
        "the first notice is this one"
    );
}

#[tokio::test]
async fn a_subscription_is_tagged_and_ends_with_a_result_at_drain() {
    let (gateway, folder) = library("a").await;
    let client = gateway.client();
    let mut stream = client.listen().await;
    add(&folder, "b");
    let event = stream.event().await.unwrap().json();
    assert_eq!(event["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 9);
    let (body, headers) =
        modern(3, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let mut other = client.stream("POST", &headers, body.to_string().as_bytes()).await;
    let ack = other.event().await.unwrap().json();
    assert_eq!(ack["params"]["notifications"], json!({}), "an empty subset is acknowledged too");
    let json_only = client.clone().with("Accept", "application/json");
    let reply = json_only.modern("subscriptions/listen", json!({"notifications": {}})).await;
    assert_eq!(reply.refusal(), (406, -32600, "not_acceptable".into()));
    let error = reply.json();
    assert!(error["id"].is_number(), "the id of the request: {error}");
    assert_eq!(error["error"]["message"], "Accept must name text/event-stream");

    tokio::join!(gateway.drain(), async {
        let mut last = other.event().await.unwrap().json();
        assert_eq!(last["id"], 3);
        let result = last["result"].take();
        assert_eq!(result["resultType"], "complete");
        assert_eq!(result["_meta"]["io.modelcontextprotocol/subscriptionId"], 3);
        assert!(other.event().await.is_none());
    });
}

#[tokio::test]
async fn a_client_that_comes_back_is_told_at_once_when_its_list_is_another_one() {
    let (gateway, folder) = library("a").await;
    let client = gateway.client().legacy("2025-11-25").await;
    let mut stream = client.stream("GET", &STREAM, b"").await;
    let first = stream.event().await.unwrap().id.unwrap();
    drop(stream);
    add(&folder, "b");
    // A client that listens all the time knows when the change was announced.
    let mut listener = gateway.client().listen().await;
    if !gateway.client().names().await.0.contains(&"lib__b".to_owned()) {
        hears_of(&mut listener, &gateway, "lib__b").await;
    }
    let back = client.clone().with("Last-Event-ID", &first);
    let mut stream = back.stream("GET", &STREAM, b"").await;
    let priming = stream.event().await.unwrap();
    assert!(priming.data.is_empty());
    hears_of(&mut stream, &gateway, "lib__b").await;
}

#[tokio::test]
async fn legacy_streams_need_a_session_and_end_with_it() {
    let (gateway, _folder) = library("a").await;
    let refused = gateway.client().send("GET", "/mcp", &STREAM, b"").await;
    assert_eq!(refused.refusal(), (400, -32600, "session_required".into()));
    let client = gateway.client().legacy("2025-06-18").await;
    let html = client.send("GET", "/mcp", &[("Accept", "text/html")], b"").await;
    assert_eq!(html.status, 406);
    let mut stream = client.stream("GET", &STREAM, b"").await;
    assert_eq!(client.send("DELETE", "/mcp", &[], b"").await.status, 200);
    assert!(stream.event().await.is_none(), "the stream has ended");
    assert_eq!(client.send("GET", "/mcp", &STREAM, b"").await.status, 404);
}

#[tokio::test]
async fn f5_open_streams_are_bounded_and_the_quietest_one_makes_room_for_a_new_one() {
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let gateway = Gateway::start(&format!("[server.limits]\nstreams = 2\n{admin}")).await;
    let client = gateway.client().legacy("2025-06-18").await;
    let mut first = client.stream("GET", &STREAM, b"").await;
    let mut second = gateway.client().listen().await;
    let _third = client.stream("GET", &STREAM, b"").await;
    assert!(first.event().await.is_none(), "the quietest one is closed");
    let _fourth = client.stream("GET", &STREAM, b"").await;
    assert!(
        second.event().await.is_none(),
        "a result would tell the client not to subscribe again"
    );
    let open = metrics(&gateway.admin(), &["promptgate_streams"]).await;
    assert_eq!(open.values().copied().collect::<Vec<_>>(), [2.0], "{open:?}");
}

#[tokio::test]
async fn legacy_streams_have_a_lifetime() {
    let gateway = Gateway::start("[server.limits]\nstream_lifetime = \"50ms\"\n").await;
    let client = gateway.client().legacy("2025-06-18").await;
    let mut stream = client.stream("GET", &STREAM, b"").await;
    assert!(stream.event().await.is_none(), "its time is over");
}

/// An upstream of either era that tells of changes: the list gets a second prompt when told so.
struct NotifyingUpstream {
    upstream: Upstream,
    changed: Arc<AtomicBool>,
    events: broadcast::Sender<String>,
    walks: Counter,
    /// The list changes while the next walk is under way, right after it was read.
    during_walk: Arc<AtomicBool>,
}

impl NotifyingUpstream {
    async fn start(answer: fn(&Received) -> Scripted, stream: fn(&Received) -> bool) -> Self {
        let changed = Arc::new(AtomicBool::new(false));
        let walks = Counter::new();
        let (events, _) = broadcast::channel(20_000);
        let (is_changed, walked, sender) = (changed.clone(), walks.clone(), events.clone());
        let during_walk = Arc::new(AtomicBool::new(false));
        let during = during_walk.clone();
        let upstream = Upstream::start(move |asked| {
            if stream(asked) {
                return Scripted::Events(sender.clone());
            }
            match asked.method() {
                "server/discover" | "initialize" => declaring(answer(asked)),
                "prompts/list" => {
                    walked.increment();
                    if during.swap(false, Ordering::SeqCst) {
                        let before = asked.list(&json!([{"name": "p"}]));
                        is_changed.store(true, Ordering::SeqCst);
                        sender.send(notice()).unwrap();
                        return before;
                    }
                    match is_changed.load(Ordering::SeqCst) {
                        false => asked.list(&json!([{"name": "p"}])),
                        true => asked.list(&json!([{"name": "p"}, {"name": "q"}])),
                    }
                }
                _ => answer(asked),
            }
        })
        .await;
        Self { upstream, changed, events, walks, during_walk }
    }

    async fn modern() -> Self {
        Self::start(good_modern, |asked| asked.method() == "subscriptions/listen").await
    }

    async fn legacy() -> Self {
        let answer = |asked: &Received| good_legacy(asked, "2025-06-18");
        Self::start(answer, |asked| asked.http_method == "GET").await
    }

    /// Waits until the gateway listens.
    async fn is_heard(&self) {
        eventually(async || self.events.receiver_count(), |seen| *seen > 0).await;
    }

    /// A gateway that has its list, and listens to it.
    async fn gateway(&self) -> Gateway {
        let toml = QUICK.to_owned() + &self.upstream.patient_table("up");
        let gateway = Gateway::start(&toml).await;
        settled(&gateway, "up__p").await;
        self.is_heard().await;
        gateway
    }

    fn tell(&self) {
        self.events.send(notice()).unwrap();
    }
}

fn notice() -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"}).to_string()
}

/// The same answer, declaring `listChanged`.
fn declaring(scripted: Scripted) -> Scripted {
    let with = |text: String| text.replace("\"prompts\":{}", "\"prompts\":{\"listChanged\":true}");
    match scripted {
        Scripted::Json(json) => {
            Scripted::Json(serde_json::from_str(&with(json.to_string())).unwrap())
        }
        Scripted::Http(status, headers, body) => {
            Scripted::Http(status, headers, with(String::from_utf8(body).unwrap()).into_bytes())
        }
        other => other,
    }
}

#[tokio::test]
async fn each_notification_counts_once_and_one_on_the_stream_of_a_call_is_heard() {
    let changed = Arc::new(AtomicBool::new(false));
    let is_changed = changed.clone();
    let (live, scripted) = OpenStream::new();
    let upstream = Upstream::start(move |asked| match asked.method() {
        _ if asked.http_method == "GET" => scripted.clone(),
        "initialize" => declaring(good_legacy(asked, "2025-11-25")),
        "prompts/list" if is_changed.load(Ordering::SeqCst) => {
            asked.list(&json!([{"name": "p"}, {"name": "q"}]))
        }
        "prompts/list" => asked.list(&json!([{"name": "p"}])),
        "prompts/get" => {
            is_changed.store(true, Ordering::SeqCst);
            let Scripted::Json(answer) = asked.content(json!({"type": "text", "text": "x"})) else {
                unreachable!()
            };
            Scripted::Stream(format!("data: {}\n\ndata: {answer}\n\n", notice()).into_bytes())
        }
        _ => good_legacy(asked, "2025-11-25"),
    })
    .await;
    let settings = "poll = \"0s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let toml = QUICK.to_owned() + &upstream.patient_table("up") + settings;
    let gateway = Gateway::start(&toml).await;
    settled(&gateway, "up__p").await;
    let received = async || {
        let name = "promptgate_list_changed_received";
        metrics(&gateway.admin(), &[name]).await.values().sum::<f64>()
    };
    live.send(&serde_json::from_str(&notice()).unwrap());
    eventually(received, |seen| *seen > 0.0).await;
    let result = gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    assert_eq!(result["messages"][0]["content"]["text"], "x");
    let names = async || gateway.client().names().await.0;
    eventually(names, |seen| *seen == ["up__p", "up__q"]).await;
    assert_eq!(received().await, 2.0);
}

#[tokio::test]
async fn a_change_in_an_upstream_of_either_era_reaches_the_client() {
    for telling in [NotifyingUpstream::modern().await, NotifyingUpstream::legacy().await] {
        let gateway = telling.gateway().await;
        let mut stream = gateway.client().listen().await;
        telling.changed.store(true, Ordering::SeqCst);
        telling.tell();
        hears_of(&mut stream, &gateway, "up__q").await;
    }
}

#[tokio::test]
async fn l1_a_storm_of_notices_costs_the_upstream_few_walks() {
    let telling = NotifyingUpstream::modern().await;
    let gateway = telling.gateway().await;
    let (before, started) = (telling.walks.get(), tokio::time::Instant::now());
    let mut stream = gateway.client().listen().await;
    for _ in 0..10_000 {
        telling.tell();
    }
    telling.changed.store(true, Ordering::SeqCst);
    telling.tell();
    hears_of(&mut stream, &gateway, "up__q").await;
    let walks = telling.walks.get() - before;
    let seconds = started.elapsed().as_secs() as usize;
    assert!(walks <= 2 + seconds, "{walks} walks in {seconds} s");
}

#[tokio::test]
async fn l4_a_change_during_a_walk_leads_to_one_more_walk() {
    let telling = NotifyingUpstream::modern().await;
    let gateway = telling.gateway().await;
    let mut stream = gateway.client().listen().await;
    let before = telling.walks.get();
    telling.during_walk.store(true, Ordering::SeqCst);
    telling.tell();
    hears_of(&mut stream, &gateway, "up__q").await;
    assert_eq!(telling.walks.get() - before, 2, "the walk, and one behind it");
}

#[tokio::test]
async fn l2_a_notice_without_a_change_is_not_passed_on() {
    let telling = NotifyingUpstream::modern().await;
    let gateway = telling.gateway().await;
    let mut stream = gateway.client().listen().await;
    let before = telling.walks.get();
    telling.tell();
    telling.walks.reaches(before + 1).await;
    telling.changed.store(true, Ordering::SeqCst);
    telling.tell();
    // The first notice that comes is already the one of the real change.
    stream.event().await.unwrap();
    assert_eq!(gateway.client().names().await.0, ["up__p", "up__q"]);
}

#[tokio::test]
async fn l6_a_change_that_nobody_tells_of_is_found_by_polling() {
    let telling = NotifyingUpstream::start(good_modern, |_| false).await;
    let table = telling.upstream.patient_table("up") + "poll = \"50ms\"\n";
    let gateway = Gateway::start(&(QUICK.to_owned() + &table)).await;
    settled(&gateway, "up__p").await;
    let mut stream = gateway.client().listen().await;
    telling.changed.store(true, Ordering::SeqCst);
    hears_of(&mut stream, &gateway, "up__q").await;
}

#[tokio::test]
async fn l6_after_a_reconnection_whose_stream_does_not_open_changes_are_found_by_polling() {
    let (streams, walks) = (Counter::new(), Counter::new());
    let (events, _) = broadcast::channel(16);
    let [fails, changed] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (opened, walked, sender) = (streams.clone(), walks.clone(), events.clone());
    let (is_failing, is_changed) = (fails.clone(), changed.clone());
    let upstream = Upstream::start(move |asked| match asked.method() {
        "subscriptions/listen" => match opened.increment() {
            0 => Scripted::Events(sender.clone()),
            _ => Scripted::Stall(Vec::new()),
        },
        "prompts/list" if is_failing.swap(false, Ordering::SeqCst) => {
            Scripted::Http(503, Vec::new(), Vec::new())
        }
        "prompts/list" => {
            walked.increment();
            let name = if is_changed.load(Ordering::SeqCst) { "q" } else { "p" };
            asked.result(json!({"resultType": "complete", "ttlMs": 3_600_000,
                "cacheScope": "public", "prompts": [{"name": name}]}))
        }
        _ => declaring(good_modern(asked)),
    })
    .await;
    let table = upstream.patient_table("up") + "poll = \"50ms\"\n";
    let gateway = Gateway::start(&(QUICK.to_owned() + &table)).await;
    settled(&gateway, "up__p").await;
    // The first walk, and the one that follows the opening of the stream.
    walks.reaches(2).await;
    fails.store(true, Ordering::SeqCst);
    events.send(notice()).unwrap();
    streams.reaches(2).await;
    walks.reaches(3).await;
    let mut stream = gateway.client().listen().await;
    changed.store(true, Ordering::SeqCst);
    hears_of(&mut stream, &gateway, "up__q").await;
}

#[tokio::test]
async fn l6_until_an_upstream_wants_its_stream_to_be_opened_again_changes_are_found_by_polling() {
    let (streams, walks) = (Counter::new(), Counter::new());
    let (opened, walked) = (streams.clone(), walks.clone());
    let upstream = Upstream::start(move |asked| match asked.method() {
        _ if asked.http_method == "GET" => {
            opened.increment();
            Scripted::Stream(b"retry: 3600000\n\n".to_vec())
        }
        "server/discover" | "initialize" => declaring(good_legacy(asked, "2025-11-25")),
        "prompts/list" => {
            walked.increment();
            good_legacy(asked, "2025-11-25")
        }
        _ => good_legacy(asked, "2025-11-25"),
    })
    .await;
    let table = upstream.patient_table("up") + "poll = \"50ms\"\n";
    let gateway = Gateway::start(&(QUICK.to_owned() + &table)).await;
    settled(&gateway, "up__p").await;
    // A stream that is opened again at once is so several times meanwhile.
    walks.reaches(20).await;
    assert_eq!(streams.get(), 1);
}

#[tokio::test]
async fn u19_many_lists_at_once_are_one_walk() {
    let telling = NotifyingUpstream::start(good_legacy_2025, |_| false).await;
    let gateway = Gateway::start(&telling.upstream.patient_table("up")).await;
    let lists = (0..50).map(|_| {
        let client = gateway.client();
        tokio::spawn(async move { client.names().await.0 })
    });
    for list in lists.collect::<Vec<_>>() {
        assert_eq!(list.await.unwrap(), ["up__p"]);
    }
    assert!(telling.walks.get() <= 2, "one walk, and one trailing at most");
}

fn good_legacy_2025(asked: &Received) -> Scripted {
    good_legacy(asked, "2025-11-25")
}
