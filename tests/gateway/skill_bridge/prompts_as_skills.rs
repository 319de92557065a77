//! Prompts as skills: another door to the same text, with the rules of the prompt.

use std::fs;

use base::seal::sha256_text;
use serde_json::{Value, json};

use super::{AS_PROMPTS, call, names};
use crate::approvals::{Folder, enforced, short_list};
use crate::audit::Log;
use crate::skills::{discovered, library, listed, post_at, refused, skill, uris};
use crate::support::gateway::api_key;
use crate::support::upstream::Received;
use crate::support::{Client, Gateway, Process, Upstream, eventually};

const AS_SKILLS: &str = "[server]\nexpose = [\"prompts\", \"skills\"]\n";
const EXPLAIN: &str = "---\nname: Explain_Code\ndescription: \"Explains: code\"\narguments: [code]\n---\n\
    Explain {{ code | default(\"it\") }}.\n{{ embed(\"style.txt\") }}";
const URI: &str = "skill://lib/explain-code/SKILL.md";

fn prompt(name: &str) -> String {
    format!("---\nname: {name}\ndescription: d\n---\nDo.")
}

async fn text(client: &Client, uri: &str) -> String {
    let read = client.ask("resources/read", json!({"uri": uri})).await;
    read["contents"][0]["text"].as_str().unwrap().to_owned()
}

/// Each prompt that is no skill, with the reason.
async fn left_out(gateway: &Gateway) -> Vec<(String, String)> {
    let reply = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = reply["leftOut"].as_array().unwrap().iter();
    all.map(|own| (text(&own["name"]), text(&own["reason"]))).collect()
}

#[tokio::test]
async fn a_prompt_of_a_library_is_a_skill_that_hosts_find_and_verify() {
    let (toml, folder) = library(&[("explain.md", EXPLAIN), ("style.txt", "Be brief.")]);
    let gateway =
        Gateway::start(&(AS_SKILLS.to_owned() + "[views.plain]\nexpose = [\"prompts\"]\n" + &toml))
            .await;
    let client = gateway.client();
    assert_eq!(uris(&client).await, [URI]);
    let declared = client.ask("server/discover", json!({})).await["capabilities"].take();
    let extension = json!({"io.modelcontextprotocol/skills": {"directoryRead": true}});
    assert_eq!((&declared["extensions"], &declared["resources"]), (&extension, &json!({})));
    let entry = client.ask("skills/get", json!({"uri": URI})).await["skill"].take();
    let front = json!({"name": "explain-code", "description": "Explains: code"});
    assert_eq!(entry["frontmatter"], front);
    let body = "Explain it.\n\nBe brief.\n";
    let expected =
        format!("---\nname: \"explain-code\"\ndescription: \"Explains: code\"\n---\n\n{body}");
    assert_eq!(text(&client, URI).await, expected);
    let files =
        json!([{"uri": URI, "digest": sha256_text(expected.as_bytes()), "size": expected.len()}]);
    assert_eq!(entry["resources"], files);
    let folder_of = json!({"uri": "skill://lib/explain-code"});
    let children = client.ask("resources/directory/read", folder_of).await;
    assert_eq!(names(&children["resources"]), ["SKILL.md"]);
    for unknown in ["skill://lib/explain-code/x", "skill://lib/Explain_Code/SKILL.md"] {
        assert_eq!(refused(&client, "resources/read", unknown).await.0, "unknown_resource");
    }
    // Where the endpoint does not offer them, there are none.
    assert_eq!(post_at(&client, "/mcp/plain", "skills/list", json!({})).await.status, 404);
    assert_eq!(
        names(&client.ask("prompts/list", json!({})).await["prompts"]),
        ["lib__Explain_Code"]
    );

    fs::write(folder.path().join("style.txt"), "Be long.").unwrap();
    let now = async || text(&client, URI).await;
    let edited = eventually(now, |text| text.ends_with("Be long.\n")).await;
    let entry = client.ask("skills/get", json!({"uri": URI})).await;
    assert_eq!(entry["skill"]["resources"][0]["digest"], sha256_text(edited.as_bytes()));
    // A reload closes the door, and opens it.
    gateway.reload(&toml).await;
    assert_eq!(client.modern("skills/list", json!({})).await.status, 404);
    gateway.reload(&(AS_SKILLS.to_owned() + &toml)).await;
    let status = async || client.modern("skills/list", json!({})).await.status;
    eventually(status, |status| *status == 200).await;
}

#[tokio::test]
async fn a_prompt_that_is_no_skill_is_said_with_its_reason() {
    let image = "{{ embed(\"a.png\") }}";
    let (toml, _folder) = library(&[
        ("a.png", "x"),
        ("good.md", &prompt("good")),
        ("twin.md", &prompt("Good")),
        ("one.md", &prompt("a_b")),
        ("other.md", &prompt("a.b")),
        (
            "needs.md",
            "---\nname: needs\ndescription: d\narguments: [{name: x, required: true}]\n---\n{{ x }}",
        ),
        ("silent.md", "---\nname: silent\n---\nDo."),
        ("image.md", &(prompt("image") + image)),
        ("reply.md", "---\nname: reply\ndescription: d\n---\n## user\nHi\n## assistant\nHello"),
        ("name.md", &prompt("café")),
        ("taken.md", &prompt("taken")),
        ("taken/SKILL.md", "---\nname: taken\ndescription: own\n---\nOwn."),
        ("around.md", &prompt("around")),
        ("around/inner/SKILL.md", "---\nname: inner\ndescription: own\n---\nOwn."),
    ]);
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let far = Upstream::with_prompts(&["far"]).await;
    let gateway = Gateway::start(&(AS_SKILLS.to_owned() + admin + &toml + &far.table("up"))).await;
    let client = gateway.client();
    let own = [
        "skill://lib/around/inner/SKILL.md",
        "skill://lib/good/SKILL.md",
        "skill://lib/taken/SKILL.md",
    ];
    assert_eq!(uris(&client).await, own);
    assert!(
        text(&client, own[2]).await.ends_with("Own."),
        "the skill has its name before a prompt"
    );
    let left_out = left_out(&gateway).await;
    for (name, reason) in [
        ("Good", "another prompt makes the name"),
        ("a_b", "another prompt makes the name"),
        ("a.b", "another prompt makes the name"),
        ("needs", "requires arguments"),
        ("silent", "`description`"),
        ("image", "text of the user alone"),
        ("reply", "text of the user alone"),
        ("café", "makes no name of a skill"),
        ("taken", "a skill of an upstream has the name"),
        ("around", "or is inside of it"),
        ("far", "not known before a get"),
    ] {
        let found = left_out.iter().find(|(own, _)| own == name);
        let said = found.is_some_and(|(_, said)| {
            said.starts_with("no skill stands for the prompt: ") && said.contains(reason)
        });
        assert!(said, "{name}: {found:?}");
    }
    assert_eq!(left_out.len(), 11, "{left_out:?}");
    assert!(!far.methods().contains(&"prompts/get".to_owned()));
}

#[tokio::test]
async fn a_skill_has_the_rights_limits_views_and_records_of_its_prompt() {
    let (toml, _folder) = library(&[("a.md", &prompt("a_b")), ("c.md", &prompt("c"))]);
    let keys = api_key("alice", "alice") + "groups = [\"sales\"]\n" + &api_key("bob", "bob");
    let rules = "[[access.rules]]\nallow = [\"list\", \"get\"]\n[[access.rules]]\n\
        deny = [\"list\", \"get\"]\ngroups = [\"sales\"]\nprompts = [\"a_b\"]\n\
        [[limits]]\nname = \"each\"\nper = [\"prompt\"]\nmethods = [\"prompts/get\", \"resources/read\"]\n\
        rate = \"1/h\"\n[views.few]\nprompts = [\"lib__c\"]\n[views.uris]\nprompts = [\"skill://*\"]\n";
    let log = Log::new();
    let all = "[server]\nexpose = [\"prompts\", \"skills\", \"tools\"]\n".to_owned()
        + &keys
        + rules
        + &log.table()
        + &toml;
    let gateway = Gateway::start(&all).await;
    let (alice, bob) =
        (gateway.client().with("X-API-Key", "alice"), gateway.client().with("X-API-Key", "bob"));
    let (denied, other) = ("skill://lib/a-b/SKILL.md", "skill://lib/c/SKILL.md");
    assert_eq!(uris(&alice).await, [other]);
    assert_eq!(uris(&bob).await, [denied, other]);
    for (method, uri, unknown) in [
        ("skills/get", denied, "skill://lib/no/SKILL.md"),
        ("resources/read", denied, "skill://lib/no/SKILL.md"),
        ("resources/directory/read", "skill://lib/a-b", "skill://lib/no"),
    ] {
        let (reason, got) = refused(&alice, method, uri).await;
        assert_eq!(reason, "unknown_resource");
        let expected = refused(&alice, method, unknown).await.1;
        assert_eq!(got.replace("a-b", "no"), expected, "{method}");
    }
    let found = call(&alice, "find_skill", json!({})).await["structuredContent"]["skills"].take();
    assert_eq!(names(&found), ["lib/c"]);
    text(&bob, denied).await;
    // The limit of the prompt has counted it.
    let got = bob.modern("prompts/get", json!({"name": "lib__a_b"})).await;
    assert_eq!(got.refusal().2, "rate_limited");
    let read = call(&bob, "read_skill", json!({"name": "lib/c"})).await;
    assert!(read["content"][0]["text"].as_str().unwrap().ends_with("Do.\n"), "{read}");
    let is_read = |own: &&Value| own["method"] == "resources/read" && own["caller"] == "bob";
    let received = log.of("received");
    let record = received.iter().find(is_read).unwrap();
    assert_eq!(
        (&record["name"], &record["prompt"], &record["served"]),
        (&json!(denied), &json!("a_b"), &json!("lib__a_b"))
    );
    // Views name prompts.
    let at = async |view: &str| {
        let reply = post_at(&bob, &format!("/mcp/{view}"), "skills/list", json!({})).await;
        (reply.status, reply.json()["result"]["skills"][0]["uri"].clone())
    };
    assert_eq!(at("few").await, (200, json!(other)));
    assert_eq!(at("uris").await.0, 404);
}

#[tokio::test]
async fn there_is_no_bridge_of_a_bridge() {
    let (toml, _folder) = library(&[
        ("a.md", &prompt("a")),
        ("own/SKILL.md", "---\nname: own\ndescription: d\n---\nOwn."),
    ]);
    let gateway = Gateway::start(&(AS_SKILLS.to_owned() + &toml + AS_PROMPTS)).await;
    let client = gateway.client();
    assert_eq!(uris(&client).await, ["skill://lib/a/SKILL.md", "skill://lib/own/SKILL.md"]);
    assert_eq!(client.names().await.0, ["lib__a", "lib__own"]);
}

#[tokio::test]
async fn skills_for_prompts_of_upstreams_without_a_prefix_take_no_name() {
    let (one, _one) = library(&[
        ("crm.md", &prompt("crm")),
        ("tea.md", &prompt("tea")),
        ("b.md", &prompt("b_c")),
    ]);
    let (two, _two) = library(&[("zoo.md", &prompt("zoo")), ("b.md", &prompt("b.c"))]);
    let bare = |toml: &str, id: &str| {
        toml.replace("lib", id)
            .replace("transport", "prefix = \"\"\ntransport")
            .replace(&format!("\"{id}rary\""), "\"library\"")
    };
    let crm = Upstream::modern(|asked: &Received| match asked.method() {
        "server/discover" => Some(discovered(asked)),
        "skills/list" => Some(listed(asked, &json!([skill("skill://m", &[("SKILL.md", "x")])]))),
        _ => None,
    })
    .await;
    let toml = AS_SKILLS.to_owned() + &bare(&one, "one") + &bare(&two, "two") + &crm.table("crm");
    let gateway = Gateway::start(&toml).await;
    let expected = ["skill://crm/m/SKILL.md", "skill://tea/SKILL.md", "skill://zoo/SKILL.md"];
    assert_eq!(uris(&gateway.client()).await, expected);
}

#[tokio::test]
async fn a_withheld_prompt_is_no_skill_and_an_approved_text_is_one_of_any_upstream() {
    let up = Upstream::modern(|asked: &Received| match asked.method() {
        "prompts/list" => Some(short_list(asked, &json!([{"name": "p", "description": "d"}]))),
        "prompts/get" => Some(asked.content(json!({"type": "text", "text": "approved text"}))),
        _ => None,
    })
    .await;
    let folder = Folder::new(&(enforced("") + AS_SKILLS + &up.table("up")));
    let (process, _admin) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    assert_eq!(client.modern("skills/list", json!({})).await.status, 404);
    folder.approve().await;
    let listed = async || client.modern("skills/list", json!({})).await.status;
    eventually(listed, |status| *status == 200).await;
    let gets = up.methods().iter().filter(|method| *method == "prompts/get").count();
    let read = text(&client, "skill://up/p/SKILL.md").await;
    assert!(read.ends_with("---\n\napproved text\n"), "{read}");
    let now = up.methods().iter().filter(|method| *method == "prompts/get").count();
    assert_eq!(gets, now, "it is read from memory");
    let said = folder.approvals(&["withdraw", "up__p", "--yes", "--why", "no"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    eventually(listed, |status| *status == 404).await;
    process.stop().await;
}

#[tokio::test]
async fn a_withheld_skill_keeps_its_uri_before_a_prompt() {
    let (toml, _library) = library(&[
        ("taken.md", &prompt("taken")),
        ("taken/SKILL.md", "---\nname: taken\ndescription: own\n---\nOwn."),
        ("free.md", &prompt("free")),
    ]);
    let folder = Folder::new(&(enforced("") + AS_SKILLS + &toml));
    let (process, _admin) = Process::serve_admin(folder.path(), &[]).await;
    for name in ["lib__taken", "lib__free"] {
        let said = folder.approvals(&["approve", name, "--yes", "--why", "first"]).await;
        assert_eq!(said.code, Some(0), "{said:?}");
    }
    let client = process.client();
    let listed = async || client.modern("skills/list", json!({})).await.json();
    let listed = eventually(listed, |listed| listed["result"]["skills"].is_array()).await;
    let skills = listed["result"]["skills"].as_array().unwrap().iter();
    let uris: Vec<_> = skills.map(|skill| skill["uri"].as_str().unwrap()).collect();
    assert_eq!(uris, ["skill://lib/free/SKILL.md"], "what is held is not served as another");
    process.stop().await;
}
