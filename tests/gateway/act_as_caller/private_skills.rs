//! Skills of upstreams that list for each caller: each caller has its own, and no other.

use super::private_lists::{LASTING, Scene};
use super::*;
use crate::skills::{post_at, refused};

impl World {
    /// Offers an owner skills, by name, with the texts of their files.
    fn teach(&self, owner: &str, skills: &[(&str, &str)]) {
        let skills = skills.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        self.state().skills.insert(owner.to_owned(), skills.collect());
    }

    /// The files that were read with the token of an owner.
    fn reads(&self, owner: &str) -> Vec<String> {
        let state = self.state();
        let own = state.reads.iter().filter(|(of, _)| of == owner);
        own.map(|(_, uri)| uri.clone()).collect()
    }
}

async fn taught() -> Scene {
    let scene = Scene::new().await;
    scene.world.teach("ada", &[("notes", "notes of ada"), ("diary", "dear diary")]);
    scene.world.teach("bob", &[("notes", "notes of bob")]);
    scene
}

async fn uris(client: &Client) -> Vec<String> {
    let result = client.ask("skills/list", json!({})).await;
    let skills = result["skills"].as_array().unwrap().iter();
    skills.map(|skill| skill["uri"].as_str().unwrap().to_owned()).collect()
}

async fn text(client: &Client, uri: &str) -> Value {
    client.ask("resources/read", json!({"uri": uri})).await["contents"][0]["text"].take()
}

const NOTES: &str = "skill://wiki/notes/SKILL.md";
const DIARY: &str = "skill://wiki/diary/SKILL.md";

#[tokio::test]
async fn each_caller_has_the_skills_that_it_alone_is_offered() {
    let scene = taught().await;
    let gateway = scene.gateway(LASTING).await;
    let (ada, bob) = (scene.issuer.client(&gateway, "ada"), scene.issuer.client(&gateway, "bob"));
    ready(&ada, 3).await;
    assert_eq!(uris(&ada).await, [DIARY, NOTES]);
    assert_eq!(uris(&bob).await, [NOTES]);
    assert_eq!(text(&ada, NOTES).await, "notes of ada");
    assert_eq!(text(&bob, NOTES).await, "notes of bob");
    assert_eq!(text(&ada, DIARY).await, "dear diary");
    let listed = ada.ask("skills/list", json!({})).await;
    let entry = ada.ask("skills/get", json!({"uri": NOTES})).await;
    assert_eq!(entry["skill"], listed["skills"][1]);
    let folder = ada.ask("resources/directory/read", json!({"uri": "skill://wiki/notes"})).await;
    assert_eq!(folder["resources"][0]["uri"], NOTES);
    let file = ada.ask("resources/read", json!({"uri": NOTES})).await;
    for result in [&listed, &entry, &file] {
        assert_eq!(result["cacheScope"], "private", "{result}");
    }
    // What another has is as unknown as what nobody has.
    for (method, uri, unknown) in [
        ("skills/get", DIARY, "skill://wiki/nobody/SKILL.md"),
        ("resources/read", DIARY, "skill://wiki/nobody/SKILL.md"),
        ("resources/directory/read", "skill://wiki/diary", "skill://wiki/nobody"),
    ] {
        let (reason, got) = refused(&bob, method, uri).await;
        assert_eq!(reason, "unknown_resource");
        let (_, expected) = refused(&bob, method, unknown).await;
        assert_eq!(got.replace("diary", "nobody"), expected, "{method}");
    }
    // One walk reads both lists, and each file is read with its caller's own token.
    assert_eq!((scene.world.walks("ada"), scene.world.walks("bob")), (1, 1));
    let own = |name: &str| format!("skill://{name}/SKILL.md");
    assert_eq!(scene.world.reads("bob"), [own("notes")]);
    assert_eq!(scene.world.reads("ada"), [own("notes"), own("diary"), own("notes")]);
    assert_eq!(scene.world.state().violations, Vec::<String>::new());
}

#[tokio::test]
async fn a_read_lists_the_skills_of_its_caller_first_if_they_are_not_known() {
    let scene = taught().await;
    let gateway = scene.gateway(LASTING).await;
    let ada = scene.issuer.client(&gateway, "ada");
    let reading = async || ada.modern("resources/read", json!({"uri": DIARY})).await.json();
    let read = eventually(reading, |message| message.get("result").is_some()).await;
    assert_eq!(read["result"]["contents"][0]["text"], "dear diary");
    assert_eq!((scene.world.walks("ada"), scene.world.walks("bob")), (1, 0));
}

#[tokio::test]
async fn private_skills_are_prompts_and_tools_for_their_caller_only() {
    let scene = taught().await;
    scene.world.teach("bob", &[]);
    let toml = scene.toml(&(LASTING.to_owned() + "expose_skills = [\"prompts\"]\n"));
    let expose = "[server]\nexpose = [\"prompts\", \"tools\"]\ntools = \"each\"\n";
    let gateway = Gateway::start(&toml.replace("[server]\n", expose)).await;
    let (ada, bob) = (scene.issuer.client(&gateway, "ada"), scene.issuer.client(&gateway, "bob"));
    ready(&ada, 5).await;
    ready(&bob, 2).await;
    assert!(ada.names().await.0.contains(&"wiki__diary".to_owned()));
    let asked = json!({"name": "wiki__diary", "arguments": {"task": "today"}});
    let got = ada.ask("prompts/get", asked.clone()).await;
    assert_eq!(got["messages"][0]["content"]["text"], "dear diary", "{got}");
    let error = bob.ask_error("prompts/get", asked).await;
    assert_eq!(error["data"]["reason"], "unknown_prompt");
    let call = |tool: &str, arguments: Value| json!({"name": tool, "arguments": arguments});
    let found = ada.ask("tools/call", call("find_skill", json!({"query": "diary"}))).await;
    assert!(found.to_string().contains("wiki/diary"), "{found}");
    let found = bob.ask("tools/call", call("find_skill", json!({"query": "diary"}))).await;
    assert!(!found.to_string().contains("wiki/diary"), "{found}");
    let read = call("read_skill", json!({"name": "wiki/diary"}));
    let text = ada.ask("tools/call", read.clone()).await;
    assert_eq!(text["content"][0]["text"], "dear diary", "{text}");
    let refused = bob.modern("tools/call", read).await.json();
    assert!(!refused.to_string().contains("dear"), "{refused}");
    assert_eq!(scene.world.reads("bob"), Vec::<String>::new());
}

#[tokio::test]
async fn a_private_skill_that_has_changed_is_served_once_its_new_entry_is_known() {
    let scene = taught().await;
    let gateway = scene.gateway(LASTING).await;
    let ada = scene.issuer.client(&gateway, "ada");
    ready(&ada, 3).await;
    assert_eq!(text(&ada, DIARY).await, "dear diary");
    scene.world.teach("ada", &[("diary", "another diary")]);
    let (reason, all) = refused(&ada, "resources/read", DIARY).await;
    assert_eq!(reason, "upstream_protocol_error", "{all}");
    let reading = async || ada.modern("resources/read", json!({"uri": DIARY})).await.json();
    let read = eventually(reading, |message| message.get("result").is_some()).await;
    assert_eq!(read["result"]["contents"][0]["text"], "another diary");
    assert_eq!(uris(&ada).await, [DIARY], "the other one is gone");
    assert_eq!(scene.world.walks("ada"), 2);
}

#[tokio::test]
async fn a_list_without_the_skills_of_its_caller_says_so() {
    let scene = taught().await;
    let gateway = scene.gateway(LASTING).await;
    let listed = by_key(&gateway, "robot").ask("skills/list", json!({})).await;
    assert_eq!(listed["skills"], json!([]));
    assert_eq!((&listed["cacheScope"], &listed["ttlMs"]), (&json!("private"), &json!(0)));
    let incomplete = &listed["_meta"]["promptgate/incomplete"][0];
    assert_eq!(incomplete["upstream"], "wiki", "{listed}");
    assert_eq!(incomplete["reason"], "no_subject_token", "{listed}");
    let (reason, _) = refused(&by_key(&gateway, "robot"), "skills/get", NOTES).await;
    assert_eq!(reason, "unknown_resource");
}

#[tokio::test]
async fn skills_are_declared_until_it_is_known_that_a_private_upstream_has_none() {
    let declared = async |client: &Client| {
        let discovered = client.ask("server/discover", json!({})).await;
        discovered["capabilities"]["extensions"].is_object()
    };
    for has_skills in [true, false] {
        let scene = if has_skills { taught().await } else { Scene::new().await };
        let expose = "[server]\nexpose = [\"prompts\", \"tools\"]\ntools = \"pair\"\n";
        let toml = scene.toml(LASTING).replace("[server]\n", expose)
            + &format!(
                "[views.all]\nupstreams = [\"all\"]\n[views.bare]\nprompts = [\"{}\"]\n",
                "skill://wiki/*"
            );
        let gateway = Gateway::start(&toml).await;
        let robot = by_key(&gateway, "robot");
        assert!(declared(&robot).await, "nobody has connected");
        ready(&scene.issuer.client(&gateway, "ada"), 3).await;
        assert_eq!(declared(&robot).await, has_skills, "whatever the robot itself has");
        let tools = robot.ask("tools/list", json!({})).await.to_string();
        assert_eq!(tools.contains("find_skill"), has_skills, "{tools}");
        // A view that serves none of its prompts serves its skills.
        let token = scene.issuer.token("ada", |claims| {
            claims["aud"] = json!([format!("{RESOURCE}/all"), format!("{RESOURCE}/bare")]);
        });
        let ada = bearer(&gateway, &token);
        let bare = post_at(&ada, "/mcp/bare", "skills/list", json!({})).await;
        let bare = String::from_utf8_lossy(&bare.body);
        assert_eq!(bare.contains(NOTES), has_skills, "{bare}");
        let all = post_at(&ada, "/mcp/all", "skills/list", json!({})).await;
        assert_eq!(all.status, 404, "its upstream has none");
    }
}

#[tokio::test]
async fn private_skills_are_bounded_by_bytes_and_those_used_least_are_read_again() {
    let scene = Scene::new().await;
    let long = "x".repeat(60);
    let names: Vec<String> = (0..400).map(|n| format!("{long}{n:0>3}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "text")).collect();
    let callers: Vec<String> = (0..10).map(|n| format!("caller-{n}")).collect();
    for caller in &callers {
        scene.world.offer(caller, &[]);
        scene.world.teach(caller, &many);
    }
    let small = "[listing]\nviews_size = \"1MiB\"\npage_size = 1000\n";
    let gateway = Gateway::start(&scene.toml(LASTING).replace("[listing]\n", small)).await;
    ready(&scene.issuer.client(&gateway, &callers[0]), 1).await;
    for caller in &callers {
        let client = scene.issuer.client(&gateway, caller);
        for _ in 0..2 {
            assert_eq!(uris(&client).await.len(), 400);
        }
        assert_eq!(scene.world.walks(caller), 1, "the newest is kept");
    }
    uris(&scene.issuer.client(&gateway, &callers[0])).await;
    assert_eq!(scene.world.walks(&callers[0]), 2, "ten lists of half a MB are no MiB");
}

#[tokio::test]
async fn a_revoked_account_takes_the_skills_with_it() {
    let scene = taught().await;
    let gateway = scene.gateway(LASTING).await;
    let (ada, bob) = (scene.issuer.client(&gateway, "ada"), scene.issuer.client(&gateway, "bob"));
    ready(&ada, 3).await;
    assert_eq!((uris(&ada).await.len(), uris(&bob).await.len()), (2, 1));
    scene.world.teach("ada", &[]);
    assert_eq!(revoke(&gateway, json!({"caller": "ada"})).await.0, 200);
    assert_eq!(uris(&ada).await, Vec::<String>::new());
    assert_eq!(uris(&bob).await, [NOTES]);
    assert_eq!((scene.world.walks("ada"), scene.world.walks("bob")), (2, 1));
}
