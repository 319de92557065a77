//! Skills as prompts and as tools: other doors to the same files, behind the same rules.

use serde_json::{Value, json};

use super::skills::{REFUNDS, discovered, file, listed, reads, refused, simple, skill, upstream};
use crate::support::client::modern;
use crate::support::gateway::api_key;
use crate::support::upstream::Received;
use crate::support::{Client, ClientMode, Gateway, ModeClient, Upstream, eventually};

mod prompts_as_skills;

const AS_PROMPTS: &str = "expose_skills = [\"prompts\"]\n";
const TOOLS: &str = "[server]\nexpose = [\"prompts\", \"tools\"]\n";

/// An upstream whose one skill has a file beside its `SKILL.md`.
async fn with_form() -> Upstream {
    let entry = skill("skill://acme/refunds", &[("SKILL.md", REFUNDS), ("forms/eu.md", "form")]);
    upstream(json!([entry]), |asked| {
        let is_form = asked.message["params"]["uri"].as_str().unwrap().ends_with("eu.md");
        file(asked, if is_form { "form" } else { REFUNDS })
    })
    .await
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

async fn call(client: &Client, tool: &str, arguments: Value) -> Value {
    client.ask("tools/call", json!({"name": tool, "arguments": arguments})).await
}

fn contents(result: &Value) -> Vec<Value> {
    result["messages"].as_array().unwrap().iter().map(|m| m["content"].clone()).collect()
}

#[tokio::test]
async fn a_skill_is_a_prompt_for_clients_of_both_eras() {
    let crm = with_form().await;
    let gateway = Gateway::start(&(crm.table("crm") + AS_PROMPTS)).await;
    for client_mode in [
        ClientMode::Http("2025-03-26"),
        ClientMode::Http("2025-11-25"),
        ClientMode::Modern,
        ClientMode::ModernStdio,
    ] {
        let is_modern = matches!(client_mode, ClientMode::Modern | ClientMode::ModernStdio);
        let mut client = ModeClient::connect(&gateway, client_mode).await;
        let prompts = client.ask("prompts/list", json!({})).await;
        let prompts = prompts["prompts"].as_array().unwrap();
        let prompt = prompts.iter().find(|prompt| prompt["name"] == "crm__refunds").unwrap();
        assert_eq!(prompt["description"], "d", "{prompt}");
        assert_eq!(names(&prompt["arguments"]), ["task"], "{prompt}");
        let asked = json!({"name": "crm__refunds", "arguments": {"task": "Refund Ann"}});
        let result = client.ask("prompts/get", asked).await;
        let contents = contents(&result);
        assert_eq!(contents[0]["text"], "Read [limits](limits.md).", "{result}");
        assert_eq!(contents[2]["text"], "Refund Ann", "{result}");
        if is_modern {
            assert_eq!(contents[1]["type"], "resource_link", "{result}");
            let uri = contents[1]["uri"].clone();
            assert_eq!(uri, "skill://crm/acme/refunds/forms/eu.md");
            let read = client.ask("resources/read", json!({"uri": uri})).await;
            assert_eq!(read["contents"][0]["text"], "form");
        } else {
            assert_eq!(contents[1]["text"], "Files of this skill:\n- forms/eu.md", "{result}");
        }
        let bad = json!({"name": "crm__refunds", "arguments": {"other": "x"}});
        let answer = client.answer("prompts/get", bad).await;
        assert_eq!(answer["error"]["data"]["reason"], "invalid_params", "{answer}");
        let completing = json!({"ref": {"type": "ref/prompt", "name": "crm__refunds"},
            "argument": {"name": "task", "value": "R"}});
        let completion = client.ask("completion/complete", completing).await;
        assert_eq!(completion["completion"]["values"], json!([]));
    }
    let methods = crm.methods();
    assert!(!methods.iter().any(|m| m == "prompts/get" || m == "completion/complete"));
    // Off by default, and by a reload.
    gateway.reload(&crm.table("crm")).await;
    let client = gateway.client();
    let listed = async || client.names().await.0;
    eventually(listed, |names| !names.contains(&"crm__refunds".to_owned())).await;
    let error = client.ask_error("prompts/get", json!({"name": "crm__refunds"})).await;
    assert_eq!(error["data"]["reason"], "unknown_prompt");
}

#[tokio::test]
async fn a_prompt_keeps_its_name_from_a_skill_and_that_is_said() {
    let script = |asked: &Received| {
        let two = [
            skill("skill://a/tea", &[("SKILL.md", "x")]),
            skill("skill://b/tea", &[("SKILL.md", "x")]),
        ];
        let own = skill("skill://refunds", &[("SKILL.md", REFUNDS)]);
        match asked.method() {
            "server/discover" => Some(discovered(asked)),
            "prompts/list" => Some(asked.list(&json!([{"name": "refunds", "title": "Real"}]))),
            "skills/list" => Some(listed(asked, &json!([own, two[0], two[1]]))),
            _ => None,
        }
    };
    let crm = Upstream::modern(script).await;
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned() + &crm.table("crm") + AS_PROMPTS;
    let gateway = Gateway::start(&toml).await;
    let prompts = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(names(&prompts["prompts"]), ["crm__refunds"]);
    assert_eq!(prompts["prompts"][0]["title"], "Real");
    let skills = gateway.client().ask("skills/list", json!({})).await;
    assert_eq!(skills["skills"].as_array().unwrap().len(), 3, "they stay skills");
    let status = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await;
    let text = String::from_utf8_lossy(&status.body).into_owned();
    assert_eq!(text.matches("no prompt stands for the skill").count(), 3, "{text}");
}

#[tokio::test]
async fn what_a_rule_denies_is_unknown_at_each_door() {
    let git = simple("skill://review").await;
    let keys = api_key("alice", "alice") + "groups = [\"sales\"]\n" + &api_key("bob", "bob");
    let rules = "[[access.rules]]\nallow = [\"list\", \"get\"]\n[[access.rules]]\n\
        deny = [\"list\", \"get\"]\ngroups = [\"sales\"]\nprompts = [\"review\"]\n";
    let toml = TOOLS.to_owned() + &keys + rules + &git.table("git") + AS_PROMPTS;
    let gateway = Gateway::start(&toml).await;
    let (alice, bob) =
        (gateway.client().with("X-API-Key", "alice"), gateway.client().with("X-API-Key", "bob"));
    let doors = |name: &str| {
        let uri = format!("skill://git/{name}/SKILL.md");
        let used = json!({"name": "use_prompt", "arguments": {"name": format!("git__{name}")}});
        let read = json!({"name": "read_skill", "arguments": {"name": format!("git/{name}")}});
        [
            ("skills/get", json!({"uri": uri})),
            ("resources/read", json!({"uri": uri})),
            ("resources/directory/read", json!({"uri": format!("skill://git/{name}")})),
            ("prompts/get", json!({"name": format!("git__{name}")})),
            ("tools/call", used),
            ("tools/call", read),
        ]
    };
    for ((method, denied), (_, unknown)) in doors("review").into_iter().zip(doors("absent")) {
        let got = alice.modern(method, denied.clone()).await;
        let expected = alice.modern(method, unknown).await;
        let text = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
        assert_eq!(text(&got.body).replace("review", "absent"), text(&expected.body), "{method}");
        assert!(text(&got.body).contains("unknown"), "{method}");
        let given = bob.modern(method, denied).await.json();
        assert!(given.get("result").is_some_and(|r| r.get("isError").is_none()), "{given}");
    }
    assert_eq!(reads(&git), 4, "a file, a prompt and two tools for bob alone");
    let found = async |client: &Client| {
        call(client, "find_skill", json!({})).await["structuredContent"]["skills"].take()
    };
    assert_eq!(found(&alice).await, json!([]));
    assert_eq!(names(&found(&bob).await), ["git/review"]);
    assert!(!alice.names().await.0.contains(&"git__review".to_owned()));
    assert!(bob.names().await.0.contains(&"git__review".to_owned()));
}

#[tokio::test]
async fn a_changed_file_is_served_by_no_door() {
    let entry = skill("skill://a", &[("SKILL.md", &"x".repeat(30))]);
    let secret = "another text, of the same size";
    let lying = upstream(json!([entry]), move |asked| file(asked, secret)).await;
    let gateway = Gateway::start(&(TOOLS.to_owned() + &lying.table("up") + AS_PROMPTS)).await;
    let client = gateway.client();
    let (reason, all) = refused(&client, "resources/read", "skill://up/a/SKILL.md").await;
    assert!(reason == "upstream_protocol_error" && !all.contains(secret), "{all}");
    for (method, params) in [
        ("prompts/get", json!({"name": "up__a"})),
        ("tools/call", json!({"name": "use_prompt", "arguments": {"name": "up__a"}})),
        ("tools/call", json!({"name": "read_skill", "arguments": {"name": "up/a"}})),
    ] {
        let reply = client.modern(method, params).await.json().to_string();
        assert!(reply.contains("upstream_protocol_error"), "{reply}");
        assert!(!reply.contains(secret), "{reply}");
    }
}

#[tokio::test]
async fn a_withheld_skill_has_no_prompt_and_no_tool() {
    let crm = simple("skill://refunds").await;
    let folder = tempfile::tempdir().unwrap();
    let lock = folder.path().join("promptgate.lock");
    let toml = TOOLS.to_owned()
        + &format!("[approvals]\nmode = \"enforce\"\nlock = {lock:?}\n")
        + &crm.table("crm")
        + AS_PROMPTS;
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    assert!(!client.names().await.0.contains(&"crm__refunds".to_owned()));
    let tools = client.ask("tools/list", json!({})).await;
    assert_eq!(names(&tools["tools"]), ["find_prompt", "use_prompt"], "there are no skills");
    let error = client.ask_error("prompts/get", json!({"name": "crm__refunds"})).await;
    assert_eq!(error["data"]["reason"], "unknown_prompt");
    let reply = client.modern("tools/call", json!({"name": "find_skill"})).await;
    assert_eq!(reply.json()["error"]["data"]["reason"], "unknown_tool");
    assert_eq!(reads(&crm), 0);
}

#[tokio::test]
async fn skills_are_found_and_read_with_tools_in_both_eras() {
    let crm = with_form().await;
    for (form, listed) in [
        ("", vec!["find_prompt", "find_skill", "read_skill", "use_prompt"]),
        ("tools = \"each\"\n", vec!["crm__p", "find_skill", "read_skill"]),
    ] {
        let gateway = Gateway::start(&(TOOLS.to_owned() + form + &crm.table("crm"))).await;
        for client_mode in [ClientMode::Http("2025-06-18"), ClientMode::Modern] {
            let mut client = ModeClient::connect(&gateway, client_mode).await;
            client.ask("prompts/list", json!({})).await;
            let tools = client.ask("tools/list", json!({})).await;
            let tools = names(&tools["tools"]);
            let own = tools.iter().filter(|name| !name.starts_with("crm__"));
            let expected = listed.iter().filter(|name| !name.starts_with("crm__"));
            assert!(own.eq(expected), "{client_mode:?} {tools:?}");
            let mut called = async |tool: &str, arguments: Value| {
                client.ask("tools/call", json!({"name": tool, "arguments": arguments})).await
            };
            let found = called("find_skill", json!({"query": "refunds"})).await;
            let one = json!({"skills": [{"name": "crm/acme/refunds", "description": "d"}]});
            assert_eq!(found["structuredContent"], one, "{client_mode:?}");
            let none = called("find_skill", json!({"query": "zebra"})).await;
            assert_eq!(none["structuredContent"], json!({"skills": []}));
            let name = "crm/acme/refunds";
            let read = called("read_skill", json!({"name": name})).await;
            assert_eq!(read["content"][0], json!({"type": "text", "text": REFUNDS}), "{read}");
            assert_eq!(read["content"][1]["text"], "Files of this skill:\n- forms/eu.md");
            let form = called("read_skill", json!({"name": name, "file": "forms/eu.md"})).await;
            assert_eq!(form["content"], json!([{"type": "text", "text": "form"}]));
            for (arguments, reason) in [
                (json!({"name": "crm/acme/none"}), "unknown_resource"),
                (json!({"name": name, "file": "../x"}), "unknown_resource"),
                (json!({"file": "x"}), "invalid_params"),
            ] {
                let refused = called("read_skill", arguments).await;
                assert_eq!(refused["isError"], true, "{refused}");
                assert_eq!(refused["_meta"]["promptgate/reason"], reason, "{refused}");
                let said = refused["content"][0]["text"].as_str().unwrap();
                let leads_on = reason != "unknown_resource" || said.contains("find_skill");
                assert!(leads_on, "a model has tools: {said}");
            }
        }
    }
}

#[tokio::test]
async fn a_tool_reads_a_file_by_its_name_as_links_and_as_uris_write_it() {
    let files = [("SKILL.md", REFUNDS), ("forms/caf%C3%A9%20menu.txt", "tea")];
    let crm = upstream(json!([skill("skill://acme/refunds", &files)]), |asked| {
        let is_menu = asked.message["params"]["uri"].as_str().unwrap().ends_with("menu.txt");
        file(asked, if is_menu { "tea" } else { REFUNDS })
    })
    .await;
    let gateway = Gateway::start(&(TOOLS.to_owned() + &crm.table("crm"))).await;
    let client = gateway.client();
    for name in ["forms/café menu.txt", "forms/caf%C3%A9%20menu.txt"] {
        let arguments = json!({"name": "crm/acme/refunds", "file": name});
        let read = call(&client, "read_skill", arguments).await;
        assert_eq!(read["content"], json!([{"type": "text", "text": "tea"}]), "{name}");
    }
    // Only a tool takes names; a URI is one.
    let name = "skill://crm/acme/refunds/forms/café menu.txt";
    assert_eq!(refused(&client, "resources/read", name).await.0, "unknown_resource");
}

#[tokio::test]
async fn tools_for_skills_are_limited_and_seen_as_the_methods_they_stand_for() {
    let (crm, git) = (simple("skill://refunds").await, simple("skill://review").await);
    let toml = TOOLS.to_owned()
        + "[[limits]]\nname = \"reads\"\nper = [\"prompt\"]\nmethods = [\"resources/read\"]\nrate = \"1/h\"\n\
           [views.sales]\nprompts = [\"skill://crm/*\"]\n[views.few]\nprompts = [\"git__review\"]\n"
        + &crm.table("crm")
        + &git.table("git")
        + AS_PROMPTS;
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let at = async |view: &str, method: &str, params: Value| {
        let (body, headers) = modern(1, method, params);
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let body = body.to_string();
        client.send("POST", &format!("/mcp/{view}"), &headers, body.as_bytes()).await.json()
    };
    let found = at("sales", "tools/call", json!({"name": "find_skill"})).await;
    let found = &found["result"]["structuredContent"]["skills"];
    assert_eq!(names(found), ["crm/refunds"]);
    let other = json!({"name": "read_skill", "arguments": {"name": "git/review"}});
    let refused = at("sales", "tools/call", other).await;
    assert_eq!(refused["result"]["_meta"]["promptgate/reason"], "unknown_resource", "{refused}");
    // A view that names the prompt and not the skill has the prompt alone.
    let tools = at("few", "tools/list", json!({})).await;
    assert_eq!(names(&tools["result"]["tools"]), ["find_prompt", "use_prompt"]);
    let got = at("few", "prompts/get", json!({"name": "git__review"})).await;
    assert_eq!(got["result"]["messages"].as_array().unwrap().len(), 1, "{got}");

    call(&client, "read_skill", json!({"name": "crm/refunds"})).await;
    let read = json!({"name": "read_skill", "arguments": {"name": "crm/refunds"}});
    assert_eq!(client.modern("tools/call", read).await.refusal().2, "rate_limited");
}
