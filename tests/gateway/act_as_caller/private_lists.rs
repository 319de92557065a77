//! Upstreams that list for each caller (`list_as = "caller"`): each caller sees its own list, and
//! no other.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::support::metrics;

/// A table of an upstream that lists for each caller.
pub(super) fn private(upstream: &Upstream, id: &str, provider: &Upstream, more: &str) -> String {
    upstream.patient_table(id)
        + &format!(
            "act_as = \"caller\"\nlist_as = \"caller\"\n{more}credential = {{ exchange = {{ \
             token_url = \"http://{}/token\", client_id = \"gate\", audience = \"{id}\" }} }}\n",
            provider.addr
        )
}

/// No list is fetched again because of its age.
pub(super) const LASTING: &str = "poll = \"0s\"\nmax_age = \"1h\"\n";

impl World {
    pub(super) fn offer(&self, owner: &str, names: &[&str]) {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        self.state().offers.insert(owner.to_owned(), names);
    }

    /// How often the list of a caller was read.
    pub(super) fn walks(&self, owner: &str) -> usize {
        self.state().walks.iter().filter(|(_, of)| of == owner).count()
    }

    /// Says that the list of a caller has changed.
    async fn announce(&self, owner: &str) {
        let listening = || self.state().streams.get(owner).cloned();
        let stream = eventually(async || listening(), Option::is_some).await.unwrap();
        stream.send(&json!({"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"}));
    }
}

/// A gateway with one upstream that lists for each caller, and one that lists for all.
pub(super) struct Scene {
    pub world: World,
    pub issuer: Issuer,
    provider: Upstream,
    upstream: Upstream,
    pub shared: Upstream,
}

impl Scene {
    pub async fn new() -> Self {
        let (world, issuer) = (World::lasting(3600), Issuer::start().await);
        world.offer("ada", &["a1", "a2"]);
        world.offer("bob", &["b1"]);
        let (provider, upstream) = (world.provider().await, world.upstream("wiki", false).await);
        let shared = Upstream::with_prompts(&["s"]).await;
        Self { world, issuer, provider, upstream, shared }
    }

    pub fn toml(&self, more: &str) -> String {
        server()
            + ADMIN
            + "[listing]\ndebounce = \"20ms\"\ndebounce_max = \"200ms\"\n"
            + &private(&self.upstream, "wiki", &self.provider, more)
            + &self.shared.patient_table("all")
            + &self.issuer.provider.table()
            + &api_key("robot", "key-of-robot")
    }

    pub async fn gateway(&self, more: &str) -> Gateway {
        let gateway = Gateway::start(&self.toml(more)).await;
        // The keys of the issuer, and the list for all.
        eventually(
            async || match by_key(&gateway, "robot").try_modern("prompts/list", json!({})).await {
                Some(reply) => reply.body.len(),
                None => 0,
            },
            |size| *size > 0,
        )
        .await;
        gateway
    }
}

async fn names(client: &Client) -> Vec<String> {
    client.names().await.0
}

#[tokio::test]
async fn each_caller_lists_what_it_alone_is_offered() {
    let scene = Scene::new().await;
    let gateway = scene.gateway(LASTING).await;
    let (ada, bob) = (scene.issuer.client(&gateway, "ada"), scene.issuer.client(&gateway, "bob"));
    ready(&ada, 3).await;
    let lists = (0..30).map(|n| {
        let client = if n % 2 == 0 { ada.clone() } else { bob.clone() };
        tokio::spawn(async move { names(&client).await })
    });
    for (n, list) in lists.collect::<Vec<_>>().into_iter().enumerate() {
        let expected: &[&str] =
            if n % 2 == 0 { &["all__s", "wiki__a1", "wiki__a2"] } else { &["all__s", "wiki__b1"] };
        assert_eq!(list.await.unwrap(), expected);
    }
    // Each was read once, however many calls waited, and with its caller's own token.
    assert_eq!((scene.world.walks("ada"), scene.world.walks("bob")), (1, 1));
    assert_eq!(ada.ask("prompts/list", json!({})).await["cacheScope"], "private");
    // Each gets its own, and the other's is not there.
    ada.ask("prompts/get", named("wiki__a1", "ada")).await;
    bob.ask("prompts/get", named("wiki__b1", "bob")).await;
    let other = bob.ask_error("prompts/get", named("wiki__a1", "bob")).await;
    let unknown = bob.ask_error("prompts/get", named("wiki__nothing", "bob")).await;
    assert_eq!(other["code"], unknown["code"]);
    assert_eq!(other["data"]["reason"], "unknown_prompt");
    assert_eq!(scene.world.walks("bob"), 1, "an unknown name reads no list anew");
    assert_eq!(scene.world.state().violations, Vec::<String>::new());
}

#[tokio::test]
async fn a_get_reads_the_list_of_its_caller_first_if_it_is_not_known() {
    let scene = Scene::new().await;
    let gateway = scene.gateway(LASTING).await;
    let ada = scene.issuer.client(&gateway, "ada");
    eventually(
        async || ada.modern("prompts/get", named("wiki__a2", "ada")).await.json(),
        |message| message.get("result").is_some(),
    )
    .await;
    assert_eq!(scene.world.walks("ada"), 1);
    let bob = scene.issuer.client(&gateway, "bob");
    bob.ask("prompts/get", json!({"name": "all__s"})).await;
    assert_eq!(scene.world.walks("bob"), 0, "a prompt for all needs no list of its caller");
}

#[tokio::test]
async fn callers_without_a_token_see_what_is_for_all_and_why_the_rest_is_missing() {
    let scene = Scene::new().await;
    let gateway = scene.gateway(LASTING).await;
    let robot = by_key(&gateway, "robot");
    let listed = robot.ask("prompts/list", json!({})).await;
    assert_eq!(listed["prompts"].as_array().unwrap().len(), 1);
    assert_eq!(listed["cacheScope"], "private");
    let incomplete = &listed["_meta"]["promptgate/incomplete"];
    assert_eq!(incomplete[0]["upstream"], "wiki", "{listed}");
    assert_eq!(incomplete[0]["reason"], "no_subject_token", "{listed}");
    let error = robot.ask_error("prompts/get", json!({"name": "wiki__a1"})).await;
    assert_eq!(error["data"]["reason"], "no_subject_token");
    assert_eq!(scene.world.state().walks, []);
    // The gateway itself has nothing there, and says so.
    let rows = admin(&gateway).send("GET", "/api/v1/upstreams", &[], b"").await.json();
    let row = rows["upstreams"].as_array().unwrap().iter().find(|row| row["upstream"] == "wiki");
    assert_eq!(row.unwrap()["state"], "per_caller", "{rows}");
}

#[tokio::test]
async fn a_private_list_is_kept_by_age_and_read_again_when_it_is_asked_for() {
    let scene = Scene::new().await;
    let gateway = scene.gateway("poll = \"100ms\"\n").await;
    let ada = scene.issuer.client(&gateway, "ada");
    ready(&ada, 3).await;
    scene.world.offer("ada", &["a3"]);
    eventually(async || names(&ada).await, |names| *names == ["all__s", "wiki__a3"]).await;
    assert_eq!(scene.world.walks("bob"), 0, "nothing is read that is not asked for");
}

#[tokio::test]
async fn a_change_is_announced_to_its_caller_only() {
    let scene = Scene::new().await;
    let gateway = scene.gateway(LASTING).await;
    let (ada, bob) = (scene.issuer.client(&gateway, "ada"), scene.issuer.client(&gateway, "bob"));
    ready(&ada, 3).await;
    // One that knew its list when it opened the stream, and one that did not.
    let (mut adas, mut bobs) = (ada.listen().await, bob.listen().await);
    assert_eq!(names(&bob).await, ["all__s", "wiki__b1"]);
    scene.world.offer("ada", &["a1", "a3"]);
    scene.world.announce("ada").await;
    let event = adas.event().await.unwrap().json();
    assert_eq!(event["method"], "notifications/prompts/list_changed");
    assert_eq!(names(&ada).await, ["all__s", "wiki__a1", "wiki__a3"]);
    let sent = async || {
        let counted = metrics(&admin(&gateway), &["promptgate_list_changed_sent"]).await;
        counted.values().sum::<f64>()
    };
    assert_eq!(sent().await, 1.0);
    scene.world.offer("bob", &["b2"]);
    scene.world.announce("bob").await;
    bobs.event().await.unwrap();
    assert_eq!(names(&bob).await, ["all__s", "wiki__b2"]);
    assert_eq!(sent().await, 2.0);
    // A list that is announced as changed but is the same is no change for the client.
    let walks = scene.world.walks("ada");
    scene.world.announce("ada").await;
    eventually(async || scene.world.walks("ada"), |count| *count > walks).await;
    scene.world.offer("ada", &["a4"]);
    scene.world.announce("ada").await;
    adas.event().await.unwrap();
    assert_eq!(names(&ada).await, ["all__s", "wiki__a4"]);
    assert_eq!(sent().await, 3.0);
    // With its streams, a caller stops to listen.
    drop((adas, bobs));
    let streams = scene.world.state().streams.clone();
    streams["ada"].closed().await;
    streams["bob"].closed().await;
}

#[tokio::test]
async fn a_list_is_kept_fresh_again_once_its_caller_has_another_token() {
    let scene = Scene::new().await;
    scene.world.state().lifetime = 2;
    let gateway = scene.gateway("poll = \"0s\"\nmax_age = \"50ms\"\n").await;
    let ada = scene.issuer.client(&gateway, "ada");
    ready(&ada, 3).await;
    let mut stream = ada.listen().await;
    // Without a call of hers the gateway gets no other token, so it reads her list no more.
    let mut last = (scene.world.walks("ada"), Instant::now());
    let quiet = async || {
        let walks = scene.world.walks("ada");
        if walks != last.0 {
            last = (walks, Instant::now());
        }
        last.1.elapsed()
    };
    eventually(quiet, |quiet| *quiet > Duration::from_millis(500)).await;
    scene.world.offer("ada", &["a1", "a3"]);
    ada.ask("prompts/get", named("wiki__a1", "ada")).await;
    let event = stream.event().await.unwrap().json();
    assert_eq!(event["method"], "notifications/prompts/list_changed");
}

#[tokio::test]
async fn a_change_for_all_is_announced_to_callers_whose_own_lists_are_not_known() {
    let scene = Scene::new().await;
    let folder = tempfile::tempdir().unwrap();
    let add = |name: &str| {
        let text = format!("---\nname: {name}\n---\nx");
        std::fs::write(folder.path().join(format!("{name}.md")), text).unwrap();
    };
    add("one");
    let library = format!(
        "[upstreams.lib]\ntransport = \"library\"\npath = \"{}\"\n",
        folder.path().display()
    );
    let gateway = Gateway::start(&(scene.toml(LASTING) + &library)).await;
    ready(&scene.issuer.client(&gateway, "ada"), 4).await;
    let bob = scene.issuer.client(&gateway, "bob");
    let mut stream = bob.listen().await;
    add("two");
    stream.event().await.unwrap();
    assert_eq!(scene.world.walks("bob"), 0);
    // Prompts that become known with the first list are no change; the next difference is one.
    assert_eq!(names(&bob).await, ["all__s", "lib__one", "lib__two", "wiki__b1"]);
    add("three");
    stream.event().await.unwrap();
    assert!(names(&bob).await.contains(&"lib__three".to_owned()));
    scene.world.offer("bob", &[]);
    scene.world.announce("bob").await;
    stream.event().await.unwrap();
    assert_eq!(names(&bob).await.len(), 4);
    let counted = metrics(&admin(&gateway), &["promptgate_list_changed_sent"]).await;
    assert_eq!(counted.values().sum::<f64>(), 3.0);
}

#[tokio::test]
async fn a_list_that_cannot_be_read_is_served_as_it_was_and_said_to_be_stale() {
    let scene = Scene::new().await;
    let gateway = scene.gateway("poll = \"50ms\"\n").await;
    let ada = scene.issuer.client(&gateway, "ada");
    ready(&ada, 3).await;
    scene.world.state().list_failure = Some(Scripted::Http(500, vec![], vec![]));
    let listed = eventually(
        async || ada.ask("prompts/list", json!({})).await,
        |listed| listed["_meta"]["promptgate/incomplete"].is_array(),
    )
    .await;
    assert_eq!(listed["prompts"].as_array().unwrap().len(), 3, "{listed}");
    assert_eq!(listed["_meta"]["promptgate/incomplete"][0]["upstream"], "wiki");
    scene.world.state().list_failure = None;
    eventually(
        async || ada.ask("prompts/list", json!({})).await,
        |listed| listed["_meta"]["promptgate/incomplete"].is_null(),
    )
    .await;
}

#[tokio::test]
async fn a_revoked_account_takes_the_list_with_it() {
    let scene = Scene::new().await;
    let gateway = scene.gateway(LASTING).await;
    let (ada, bob) = (scene.issuer.client(&gateway, "ada"), scene.issuer.client(&gateway, "bob"));
    ready(&ada, 3).await;
    let mut stream = ada.listen().await;
    assert_eq!(names(&bob).await.len(), 2);
    assert_eq!(revoke(&gateway, json!({"caller": "ada"})).await.0, 200);
    stream.event().await.unwrap();
    // The next list needs another token.
    let exchanges = scene.world.state().exchanges.len();
    assert_eq!(names(&ada).await.len(), 3);
    assert_eq!(scene.world.state().exchanges.len(), exchanges + 1);
    assert_eq!((scene.world.walks("ada"), scene.world.walks("bob")), (2, 1));
}

#[tokio::test]
async fn a_reload_keeps_private_lists_and_presents_them_as_it_says() {
    let scene = Scene::new().await;
    let gateway = scene.gateway(LASTING).await;
    let ada = scene.issuer.client(&gateway, "ada");
    ready(&ada, 3).await;
    let mut stream = ada.listen().await;
    gateway.reload(&(scene.toml(LASTING) + &api_key("another", "key-of-another"))).await;
    assert_eq!(names(&ada).await.len(), 3);
    assert_eq!(scene.world.walks("ada"), 1);
    let overlay = "[[overlays]]\nupstream = \"wiki\"\nprompt = \"a*\"\nrename = \"page-{1}\"\n";
    gateway.reload(&(scene.toml(LASTING) + overlay)).await;
    stream.event().await.unwrap();
    assert_eq!(names(&ada).await, ["all__s", "wiki__page-1", "wiki__page-2"]);
    ada.ask("prompts/get", named("wiki__page-1", "ada")).await;
    let (_, raw, _) = scene.world.state().seen.last().cloned().unwrap();
    assert_eq!(raw, "ada");
}

#[tokio::test]
async fn private_lists_are_bounded_by_bytes_and_the_least_recently_used_is_read_again() {
    let scene = Scene::new().await;
    let many: Vec<String> = (0..600).map(|n| format!("{n:0>100}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let callers: Vec<String> = (0..20).map(|n| format!("caller-{n}")).collect();
    callers.iter().for_each(|caller| scene.world.offer(caller, &many));
    let small = "[listing]\nviews_size = \"1MiB\"\npage_size = 1000\n";
    let toml = scene.toml(LASTING).replace("[listing]\n", small);
    let gateway = Gateway::start(&toml).await;
    ready(&scene.issuer.client(&gateway, &callers[0]), 601).await;
    for caller in &callers {
        let client = scene.issuer.client(&gateway, caller);
        assert_eq!(names(&client).await.len(), 601);
        // The newest is kept.
        assert_eq!(names(&client).await.len(), 601);
        assert_eq!(scene.world.walks(caller), 1);
    }
    names(&scene.issuer.client(&gateway, &callers[0])).await;
    assert_eq!(scene.world.walks(&callers[0]), 2, "twenty lists of 130 KB are no MiB");
}

#[tokio::test]
async fn private_prompts_are_tools_and_found_by_their_caller_only() {
    let scene = Scene::new().await;
    scene.world.offer("ada", &["dotted.name", "plain"]);
    let toml = scene
        .toml(LASTING)
        .replace("[server]\n", "[server]\nexpose = [\"prompts\", \"tools\"]\ntools = \"each\"\n");
    let gateway = Gateway::start(&toml).await;
    let (ada, bob) = (scene.issuer.client(&gateway, "ada"), scene.issuer.client(&gateway, "bob"));
    ready(&ada, 3).await;
    let tools = |listed: Value| -> Vec<String> {
        let tools = listed["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let adas = tools(ada.ask("tools/list", json!({})).await);
    assert_eq!(adas.len(), 3, "{adas:?}");
    let derived = adas.iter().find(|name| name.contains("dotted")).unwrap();
    let call = json!({"name": derived, "arguments": {}});
    let called = ada.ask("tools/call", call.clone()).await;
    assert_ne!(called["isError"], true, "{called}");
    let refused = bob.modern("tools/call", call).await.json();
    assert!(refused["result"]["isError"] == true || refused.get("error").is_some(), "{refused}");
    assert_eq!(tools(bob.ask("tools/list", json!({})).await).len(), 2);
}

#[cfg(unix)]
#[tokio::test]
async fn a_child_of_each_caller_lists_for_that_caller() {
    let toml = children("list_as = \"caller\"\nenv = { WHO = \"{caller}\" }\n")
        .replace(r#"\"name\": \"who\""#, r#"\"name\": os.environ[\"WHO\"]"#);
    let gateway = Gateway::start(&toml).await;
    ready(&by_key(&gateway, "ada"), 1).await;
    assert_eq!(names(&by_key(&gateway, "ada")).await, ["tool__ada"]);
    assert_eq!(names(&by_key(&gateway, "bob")).await, ["tool__bob"]);
    by_key(&gateway, "bob").ask("prompts/get", json!({"name": "tool__bob"})).await;
    assert_eq!(holders(&gateway).await, ["bob at tool", "ada at tool"]);
    gateway.drain().await;
}

#[cfg(unix)]
#[tokio::test]
async fn an_open_stream_keeps_no_child_of_its_caller() {
    let toml =
        children("list_as = \"caller\"\nchild_idle = \"300ms\"\nenv = { WHO = \"{caller}\" }\n")
            .replace(r#"\"name\": \"who\""#, r#"\"name\": os.environ[\"WHO\"]"#);
    let gateway = Gateway::start(&toml).await;
    let ada = by_key(&gateway, "ada");
    ready(&ada, 1).await;
    let _stream = ada.listen().await;
    assert_eq!(names(&ada).await, ["tool__ada"]);
    eventually(async || holders(&gateway).await, Vec::is_empty).await;
    let got = async || {
        ada.ask("prompts/get", json!({"name": "tool__ada"})).await;
        holders(&gateway).await
    };
    eventually(got, |seen| *seen == ["ada at tool"]).await;
}
