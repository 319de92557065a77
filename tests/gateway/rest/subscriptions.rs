//! Subscriptions to resources of the upstream of `[rest]`, in all four cells.

use std::sync::Mutex;

use tokio::sync::Notify;

use super::*;
use crate::support::client::Stream;

const GET: &[(&str, &str)] = &[("Accept", "text/event-stream")];

/// A server of either era that sends updates to all of its streams.
struct Watched {
    upstream: Upstream,
    streams: Arc<Mutex<Vec<OpenStream>>>,
}

impl Watched {
    async fn start(is_modern: bool) -> Self {
        Self::scripted(is_modern, |_| None).await
    }

    async fn scripted(
        is_modern: bool,
        script: impl Fn(&Received) -> Option<Scripted> + Send + Sync + 'static,
    ) -> Self {
        let streams: Arc<Mutex<Vec<OpenStream>>> = Arc::default();
        let opened = streams.clone();
        let upstream = server(is_modern, move |asked| {
            let is_stream = asked.method() == "subscriptions/listen" || asked.http_method == "GET";
            script(asked).or_else(|| match asked.method() {
                _ if is_stream => {
                    let (live, scripted) = OpenStream::new();
                    opened.lock().unwrap().push(live);
                    Some(scripted)
                }
                "resources/subscribe" | "resources/unsubscribe" => Some(asked.result(json!({}))),
                _ => tool_server(asked),
            })
        })
        .await;
        Self { upstream, streams }
    }

    fn streams(&self) -> Vec<OpenStream> {
        self.streams.lock().unwrap().clone()
    }

    fn update(&self, uri: &str) {
        let message = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated",
            "params": {"uri": uri}});
        self.streams().iter().for_each(|stream| stream.send(&message));
    }

    /// The resources that it was asked for last, and how often it was asked for each.
    fn held(&self) -> Vec<(String, i64)> {
        let mut held = std::collections::BTreeMap::new();
        for asked in self.upstream.received() {
            let params = &asked.message["params"];
            let uri = || params["uri"].as_str().unwrap_or_default().to_owned();
            match asked.method() {
                "resources/subscribe" => *held.entry(uri()).or_insert(0) += 1,
                "resources/unsubscribe" => *held.entry(uri()).or_insert(0) -= 1,
                "subscriptions/listen" => {
                    let Some(named) = params["notifications"]["resourceSubscriptions"].as_array()
                    else {
                        continue;
                    };
                    held.clear();
                    for uri in named {
                        *held.entry(uri.as_str().unwrap().to_owned()).or_insert(0) += 1;
                    }
                }
                _ => {}
            }
        }
        held.into_iter().filter(|(_, count)| *count != 0).collect()
    }

    /// Waits until it is asked for these, each once, and a stream is open.
    async fn holds(&self, uris: &[&str]) {
        let expected: Vec<_> = uris.iter().map(|uri| ((*uri).to_owned(), 1)).collect();
        eventually(async || self.held(), |held| *held == expected).await;
        self.until_open(1).await;
    }

    async fn until_open(&self, count: usize) {
        eventually(async || self.streams().len(), |open| *open >= count).await;
    }
}

async fn subscribed(gateway: &Gateway, uris: &[&str]) -> (Client, Stream) {
    let client = gateway.client().legacy("2025-11-25").await;
    let stream = client.stream("GET", GET, b"").await;
    for uri in uris {
        let body = request(1, "resources/subscribe", json!({"uri": uri}));
        assert_eq!(client.post(&body).await.json()["result"], json!({}));
    }
    (client, stream)
}

/// The next update of a stream, without the event that primes it.
async fn updated(stream: &mut Stream) -> Value {
    loop {
        let event = stream.event().await.expect("an event");
        if !event.data.is_empty() && event.json()["method"] == "notifications/resources/updated" {
            return event.json()["params"].clone();
        }
    }
}

fn named(uris: &[&str]) -> Value {
    json!({"resourceSubscriptions": uris})
}

#[tokio::test]
async fn updates_reach_the_subscribers_of_a_resource_in_every_cell() {
    for is_modern in [false, true] {
        let watched = Watched::start(is_modern).await;
        let gateway = before(&watched.upstream, "").await;
        watched.until_open(1).await;
        let declared = gateway.client().ask("server/discover", json!({})).await;
        assert_eq!(declared["capabilities"]["resources"]["subscribe"], true);

        let (legacy, mut legacy_stream) = subscribed(&gateway, &["a:1"]).await;
        let mut modern_stream = listen(&gateway, named(&["a:1", "a:2"])).await;
        let mut others = Vec::new();
        for mode in [ClientMode::Sse("2024-11-05"), ClientMode::Stdio("2025-11-25")] {
            let mut client = ModeClient::connect(&gateway, mode).await;
            assert_eq!(client.ask("resources/subscribe", json!({"uri": "a:1"})).await, json!({}));
            others.push(client);
        }
        let mut stdio = ModeClient::connect(&gateway, ClientMode::ModernStdio).await;
        let request =
            stdio.request("subscriptions/listen", json!({"notifications": named(&["a:1"])}));
        stdio.send(&request).await;
        let ack = stdio.next_message().await;
        assert_eq!(ack["params"]["notifications"], named(&["a:1"]), "{ack}");
        others.push(stdio);
        watched.holds(&["a:1", "a:2"]).await;

        watched.update("a:3");
        watched.update("a:1");
        assert_eq!(updated(&mut legacy_stream).await, json!({"uri": "a:1"}));
        let told = updated(&mut modern_stream).await;
        let key = "io.modelcontextprotocol/subscriptionId";
        assert_eq!(told, json!({"uri": "a:1", "_meta": {key: 9}}));
        for client in &mut others {
            let message = client.next_message().await;
            assert_eq!(message["method"], "notifications/resources/updated", "{message}");
            assert_eq!(message["params"]["uri"], "a:1");
        }
        watched.update("a:2");
        // Where one stream of the upstream takes over from another, both may tell of `a:1`.
        let mut told = updated(&mut modern_stream).await;
        while told["uri"] == "a:1" {
            told = updated(&mut modern_stream).await;
        }
        assert_eq!(told["uri"], "a:2", "nothing of a:3");

        drop((modern_stream, others));
        watched.holds(&["a:1"]).await;
        let body = super::request(2, "resources/unsubscribe", json!({"uri": "a:1"}));
        assert_eq!(legacy.post(&body).await.json()["result"], json!({}));
        if is_modern {
            for stream in &watched.streams()[1..] {
                // That of the lists, the first one, goes on.
                stream.closed().await;
            }
        } else {
            watched.holds(&[]).await;
        }
    }
}

#[tokio::test]
async fn a_reconnect_subscribes_again_and_tells_that_updates_may_be_missed() {
    for is_modern in [false, true] {
        let is_lost = Arc::new(AtomicBool::new(false));
        let ends: Arc<Mutex<Vec<Arc<Notify>>>> = Arc::default();
        let (loses, ended) = (is_lost.clone(), ends.clone());
        let watched = Watched::scripted(is_modern, move |asked| {
            let wanted = &asked.message["params"]["notifications"];
            match asked.method() {
                "tools/call" if loses.swap(false, Ordering::SeqCst) => {
                    Some(Scripted::Http(404, vec![], vec![]))
                }
                // Its stream ends when it is told to.
                "subscriptions/listen" if wanted.get("resourceSubscriptions").is_some() => {
                    let end = Arc::new(Notify::new());
                    ended.lock().unwrap().push(end.clone());
                    Some(Scripted::LateEnd(b": open\n\n".to_vec(), end))
                }
                _ => None,
            }
        })
        .await;
        let gateway = before(&watched.upstream, "").await;
        let (client, mut stream) = subscribed(&gateway, &["a:1"]).await;
        if is_modern {
            ends.lock().unwrap().iter().for_each(|end| end.notify_one());
        } else {
            is_lost.store(true, Ordering::SeqCst);
            let body = request(2, "tools/call", json!({"name": "search"}));
            assert!(client.post(&body).await.json()["result"].is_object());
        }
        assert_eq!(updated(&mut stream).await["uri"], "a:1");
        let asked = watched.upstream.received();
        let asked = asked.iter().filter(|asked| match asked.method() {
            "resources/subscribe" => true,
            _ => asked.message["params"]["notifications"].get("resourceSubscriptions").is_some(),
        });
        assert_eq!(asked.count(), 2, "once for each connection or stream");
    }
}

#[tokio::test]
async fn the_refusal_of_the_upstream_is_that_of_the_client_and_others_go_on() {
    for is_modern in [false, true] {
        let watched = Watched::scripted(is_modern, |asked| {
            let of_listen = &asked.message["params"]["notifications"]["resourceSubscriptions"];
            let uris = of_listen.as_array().cloned().unwrap_or_default();
            let is_refused =
                asked.message["params"]["uri"] == "bad:1" || uris.contains(&json!("bad:1"));
            let subscribes =
                ["resources/subscribe", "subscriptions/listen"].contains(&asked.method());
            (is_refused && subscribes).then(|| asked.error(-32602, "no such resource"))
        })
        .await;
        let gateway = before(&watched.upstream, "").await;
        let (client, mut stream) = subscribed(&gateway, &["a:1"]).await;
        let body = request(2, "resources/subscribe", json!({"uri": "bad:1"}));
        let refused = client.post(&body).await.json();
        // A stream has no error of its own.
        let code = if is_modern { -32603 } else { -32602 };
        assert_eq!(refused["error"]["code"], code, "{refused}");
        let body = request(3, "resources/subscribe", json!({"uri": "a:2"}));
        assert_eq!(client.post(&body).await.json()["result"], json!({}));
        watched.until_open(1).await;
        watched.update("a:2");
        watched.update("a:1");
        let mut told = [updated(&mut stream).await, updated(&mut stream).await];
        told.sort_by_key(|told| told.to_string());
        assert_eq!(told, [json!({"uri": "a:1"}), json!({"uri": "a:2"})]);
    }
}

#[tokio::test]
async fn updates_are_for_those_who_may_read_the_resource_at_an_endpoint_that_has_it() {
    let watched = Watched::start(true).await;
    let rules = "[[access.rules]]\nallow = [\"list\"]\n[[access.rules]]\nallow = [\"rest\"]\n\
        groups = [\"alice\"]\nprompts = [\"a:docs\", \"a:docs/open\"]\n";
    let view = "[views.none]\nupstreams = [\"other\"]\n";
    let other = Upstream::with_prompts(&["q"]).await;
    let toml = keys() + rules + view + REST + &other.table("other");
    let table = watched.upstream.patient_table("tools");
    let gateway = Gateway::start(&(toml + &table)).await;
    let (alice, bob) = (as_caller(&gateway, "alice"), as_caller(&gateway, "bob"));
    alice.names().await;
    let all = ["a:docs", "b:secret"];
    let (body, headers) = modern(9, "subscriptions/listen", json!({"notifications": named(&all)}));
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let body = body.to_string();
    let mut granted = Vec::new();
    for (caller, path) in [(&alice, "/mcp"), (&bob, "/mcp"), (&alice, "/mcp/none")] {
        let mut stream = caller.stream_at("POST", path, &headers, body.as_bytes()).await;
        let ack = stream.event().await.expect("an acknowledgement").json();
        granted.push((ack["params"]["notifications"].clone(), stream));
    }
    let subsets: Vec<_> = granted.iter().map(|(subset, _)| subset.clone()).collect();
    assert_eq!(subsets, [named(&["a:docs"]), json!({}), json!({})]);
    watched.holds(&["a:docs"]).await;

    let legacy = as_caller(&gateway, "bob").legacy("2025-11-25").await;
    let body = request(1, "resources/subscribe", json!({"uri": "a:docs"}));
    let refused = legacy.post(&body).await.json();
    assert_eq!(refused["error"]["code"], -32002, "as an unknown resource: {refused}");

    watched.update("b:secret");
    watched.update("a:docs/closed");
    watched.update("a:docs/open");
    let (_, stream) = &mut granted[0];
    assert_eq!(updated(stream).await["uri"], "a:docs/open", "one below it that she may read");
}

#[tokio::test]
async fn ten_thousand_resources_of_one_caller_take_no_room_of_others() {
    let watched = Watched::start(true).await;
    let gateway = Gateway::start(&(keys() + REST + &watched.upstream.patient_table("tools"))).await;
    let (alice, bob) = (as_caller(&gateway, "alice"), as_caller(&gateway, "bob"));
    alice.names().await;
    let listen = async |caller: &Client, uris: Vec<String>| {
        let params = json!({"notifications": {"resourceSubscriptions": uris}});
        let (body, headers) = modern(9, "subscriptions/listen", params);
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let mut stream = caller.stream("POST", &headers, body.to_string().as_bytes()).await;
        let ack = stream.event().await.expect("an acknowledgement").json();
        let granted = &ack["params"]["notifications"]["resourceSubscriptions"];
        (granted.as_array().map_or(0, Vec::len), stream)
    };
    let mut greedy = Vec::new();
    for stream in 0..10 {
        let uris = (0..1_000).map(|n| format!("a:{stream}/{n}")).collect();
        greedy.push(listen(&alice, uris).await);
    }
    let counts: Vec<_> = greedy.iter().map(|(count, _)| *count).collect();
    assert!(counts.iter().all(|count| *count <= 256), "{counts:?}");
    let (count, _stream) = listen(&bob, vec!["a:1".to_owned(), "x".repeat(2_000)]).await;
    assert_eq!(count, 1, "all but the one that is too long");

    let legacy = as_caller(&gateway, "bob").legacy("2025-11-25").await;
    let _stream = legacy.stream("GET", GET, b"").await;
    let mut answers = Vec::new();
    for n in 0..300 {
        let body = request(n, "resources/subscribe", json!({"uri": format!("b:{n}")}));
        answers.push(legacy.post(&body).await.json());
    }
    let taken = answers.iter().filter(|answer| answer["result"] == json!({})).count();
    assert_eq!(taken, 256);
    let message = answers[299]["error"]["message"].as_str().unwrap();
    assert!(message.contains("unsubscribe from some"), "{message}");
}

#[tokio::test]
async fn a_flood_of_updates_is_few_events_and_stops_no_call() {
    for is_modern in [false, true] {
        let watched = Watched::start(is_modern).await;
        let gateway = before(&watched.upstream, "").await;
        let (client, mut stream) = subscribed(&gateway, &["a:1", "a:2"]).await;
        watched.holds(&["a:1", "a:2"]).await;
        for n in 0..20_000 {
            watched.update("a:1");
            watched.update(&format!("a:1/{n}"));
        }
        let body = request(2, "tools/call", json!({"name": "search"}));
        assert!(client.post(&body).await.json()["result"].is_object());
        watched.update("a:2");
        let mut count = 0;
        while updated(&mut stream).await["uri"] != "a:2" {
            count += 1;
        }
        assert!(count <= 5_000, "{count} events for 40,000 updates");
    }
}

#[tokio::test]
async fn a_session_ends_its_own_subscriptions_only() {
    let watched = Watched::start(false).await;
    let gateway = before(&watched.upstream, "").await;
    let (_alice, mut stream) = subscribed(&gateway, &["a:1"]).await;
    let bob = gateway.client().legacy("2025-11-25").await;
    let body = request(1, "resources/unsubscribe", json!({"uri": "a:1"}));
    assert_eq!(bob.post(&body).await.json()["result"], json!({}));
    watched.holds(&["a:1"]).await;
    watched.update("a:1");
    assert_eq!(updated(&mut stream).await["uri"], "a:1");
}

#[tokio::test]
async fn subscriptions_go_on_after_a_reload_that_renews_the_upstream() {
    let watched = Watched::start(false).await;
    let gateway = before(&watched.upstream, "").await;
    let (_client, mut stream) = subscribed(&gateway, &["a:1"]).await;
    let renewed = format!("{}timeout = \"7s\"\n", watched.upstream.patient_table("tools"));
    gateway.reload(&(REST.to_owned() + &renewed)).await;
    let told = updated(&mut stream).await;
    assert_eq!(told["uri"], "a:1", "by the new connection, as it may have been missed");
    watched.until_open(2).await;
    watched.update("a:1");
    assert_eq!(updated(&mut stream).await["uri"], "a:1");
}

#[tokio::test]
async fn a_reload_that_names_another_upstream_ends_streams_so_that_clients_attach_anew() {
    let (first, second) = (Watched::start(false).await, Watched::start(false).await);
    let both = first.upstream.patient_table("tools") + &second.upstream.patient_table("other");
    let gateway = Gateway::start(&(REST.to_owned() + &both)).await;
    gateway.summary().await;
    let (client, mut stream) = subscribed(&gateway, &["a:1"]).await;
    gateway.reload(&("[rest]\nupstream = \"other\"\n".to_owned() + &both)).await;
    // What is announced before the end is not of interest.
    while stream.event().await.is_some() {}
    let mut stream = client.stream("GET", GET, b"").await;
    let body = request(2, "resources/subscribe", json!({"uri": "a:1"}));
    assert_eq!(client.post(&body).await.json()["result"], json!({}));
    second.until_open(1).await;
    second.update("a:1");
    assert_eq!(updated(&mut stream).await["uri"], "a:1");
}
