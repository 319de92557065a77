//! Overlays: changes of an operator to the prompts of an upstream.

use serde_json::{Value, json};

use super::audit::Log;
use crate::support::gateway::api_key;
use crate::support::process::{command, run};
use crate::support::{Client, Gateway, Process, Upstream, eventually};

/// An upstream with `summarize_de`, which echoes its arguments, and `other`.
async fn upstream() -> Upstream {
    let prompts = json!([
        {"name": "summarize_de", "title": "Old", "description": "old", "arguments": [
            {"name": "language", "required": true},
            {"name": "tenant", "required": true},
            {"name": "style"},
        ]},
        {"name": "other"},
    ]);
    Upstream::modern(move |asked| match asked.method() {
        "prompts/list" => Some(asked.list(&prompts)),
        "completion/complete" => {
            let context = asked.message["params"]["context"].to_string();
            Some(
                asked
                    .result(json!({"resultType": "complete", "completion": {"values": [context]}})),
            )
        }
        "prompts/get" if asked.message["params"]["arguments"]["language"] == "broken" => {
            let tenant = &asked.message["params"]["arguments"]["tenant"];
            Some(asked.error(-32000, &format!("tenant {tenant} has no such language")))
        }
        _ => None,
    })
    .await
}

const OVERLAY: &str = "[[overlays]]
upstream = \"up\"
prompt = \"summarize_*\"
rename = \"summary-{1}\"
title = \"Summary\"
tags = [\"text\"]
arguments.language = { default = \"en\" }
arguments.tenant = { preset = \"acme\" }
arguments.style = { choices = [\"short\", \"long\"], required = true }
before = { role = \"user\", text = \"Be kind.\" }
after = { role = \"assistant\", text = \"Done.\" }
";

fn texts(result: &Value) -> Vec<String> {
    let messages = result["messages"].as_array().expect("messages");
    let text = |message: &Value| {
        let (role, text) = (&message["role"], &message["content"]["text"]);
        format!("{}: {}", role.as_str().unwrap(), text.as_str().unwrap())
    };
    messages.iter().map(text).collect()
}

#[tokio::test]
async fn clients_see_the_effective_definition_and_the_upstream_gets_what_it_needs() {
    let up = upstream().await;
    let gateway = Gateway::start(&(up.table("up") + OVERLAY)).await;
    gateway.summary().await;
    let client = gateway.client();
    let list = client.ask("prompts/list", json!({})).await;
    let expected = json!({"name": "up__summary-de", "title": "Summary", "description": "old",
        "arguments": [{"name": "language"}, {"name": "style", "required": true}],
        "_meta": {"tags": ["text"], "choices": {"style": ["short", "long"]}}});
    assert_eq!(list["prompts"], json!([{"name": "up__other"}, expected]));
    let get = |arguments: Value| json!({"name": "up__summary-de", "arguments": arguments});
    let got = client.ask("prompts/get", get(json!({"style": "short"}))).await;
    let sent = r#"{"style":"short","language":"en","tenant":"acme"}"#;
    let expected = [
        "user: Be kind.".to_owned(),
        format!("user: \"summarize_de\" {sent}"),
        "assistant: Done.".to_owned(),
    ];
    assert_eq!(texts(&got), expected);
    for (arguments, reason) in [
        (json!({"style": "short", "tenant": "evil"}), "preset_argument"),
        (json!({"style": "wide"}), "no_choice"),
        (json!({}), "missing_argument"),
    ] {
        let error = client.ask_error("prompts/get", get(arguments)).await;
        assert_eq!(error["data"]["reason"], reason, "{error}");
        assert!(!error.to_string().contains("acme"), "{error}");
    }
    // The upstream repeats the preset in its error, to no avail.
    let echoed = get(json!({"style": "long", "language": "broken"}));
    let error = client.ask_error("prompts/get", echoed).await;
    assert_eq!(
        error["message"],
        "upstream `up`: error -32000: tenant \"[redacted]\" has no such language"
    );
    // Names of the upstream are no names of the gateway.
    let unknown = client.ask_error("prompts/get", json!({"name": "up__summarize_de"})).await;
    assert_eq!(unknown["data"]["reason"], "unknown_prompt");
    let legacy = gateway.client().legacy("2025-03-26").await;
    let got = legacy.ask("prompts/get", get(json!({"style": "short"}))).await;
    assert_eq!(texts(&got), expected);
}

fn completion(argument: &str, value: &str) -> Value {
    json!({"ref": {"type": "ref/prompt", "name": "up__summary-de"},
        "argument": {"name": argument, "value": value}})
}

#[tokio::test]
async fn choices_are_completed_by_the_gateway_and_others_by_the_upstream_with_the_presets() {
    let up = upstream().await;
    let gateway = Gateway::start(&(up.table("up") + OVERLAY)).await;
    gateway.summary().await;
    let client = gateway.client();
    let choices = client.ask("completion/complete", completion("style", "s")).await;
    assert_eq!(choices["completion"]["values"], json!(["short"]));
    assert!(!up.methods().contains(&"completion/complete".to_owned()));
    let language = client.ask("completion/complete", completion("language", "")).await;
    let context = json!({"arguments": {"tenant": "acme"}}).to_string();
    assert_eq!(language["completion"]["values"], json!([context]));
    // Other members of the context are passed on, however deep they are, and change nothing about
    // the presets.
    let mut deep = completion("language", "");
    deep["context"] = json!({"x": {"y": {"z": {}}}, "arguments": {"style": "short"}});
    let language = client.ask("completion/complete", deep).await;
    let sent: Value =
        serde_json::from_str(language["completion"]["values"][0].as_str().unwrap()).unwrap();
    let arguments = json!({"style": "short", "tenant": "acme"});
    assert_eq!(sent, json!({"x": {"y": {"z": {}}}, "arguments": arguments}));
    let error = client.ask_error("completion/complete", completion("tenant", "")).await;
    assert_eq!(error["data"]["reason"], "preset_argument");
}

#[tokio::test]
async fn tools_have_the_effective_definition_too() {
    let up = upstream().await;
    let toml = "[server]\nexpose = [\"prompts\", \"tools\"]\ntools = \"each\"\n".to_owned()
        + &up.table("up")
        + OVERLAY;
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let tools = gateway.client().ask("tools/list", json!({})).await;
    let schema = &tools["tools"][1]["inputSchema"];
    assert_eq!(tools["tools"][1]["name"], "up__summary-de");
    assert_eq!(schema["properties"]["style"]["enum"], json!(["short", "long"]));
    assert_eq!(schema["required"], json!(["style"]));
    assert!(schema["properties"].get("tenant").is_none(), "{schema}");
    let call = json!({"name": "up__summary-de", "arguments": {"style": "short"}});
    let result = gateway.client().ask("tools/call", call).await;
    let content = result["content"].as_array().unwrap();
    let texts: Vec<_> = content.iter().map(|block| block["text"].as_str().unwrap()).collect();
    assert_eq!(texts[..2], ["[user]", "Be kind."]);
    assert!(texts[2].contains("acme"), "{texts:?}");
    assert_eq!(texts[3..], ["[assistant]", "Done."]);
}

#[tokio::test]
async fn overlays_change_with_a_reload_and_clients_are_told() {
    let up = upstream().await;
    let log = Log::new();
    let quick = "[listing]\ndebounce = \"20ms\"\n".to_owned() + &log.table();
    let toml = quick.clone() + &up.table("up");
    let gateway = Gateway::start(&toml).await;
    assert_eq!(gateway.client().names().await.0, ["up__other", "up__summarize_de"]);
    let mut stream = gateway.client().listen().await;
    let dropped = "[[overlays]]\nupstream = \"up\"\nprompt = \"other\"\ndrop = true\n";
    gateway.reload(&(toml.clone() + OVERLAY + dropped)).await;
    let told = stream.event().await.expect("a notification").json();
    assert_eq!(told["method"], "notifications/prompts/list_changed");
    assert_eq!(gateway.client().names().await.0, ["up__summary-de"]);
    let titled = "[[overlays]]\nupstream = \"up\"\nprompt = \"o*\"\ntitle = \"Other\"\n";
    gateway.reload(&(toml.clone() + titled)).await;
    let list = eventually(
        async || gateway.client().ask("prompts/list", json!({})).await,
        |list| list["prompts"][0]["title"] == "Other",
    );
    assert_eq!(list.await["prompts"][1]["title"], "Old", "what overlays changed is undone");
    gateway.reload(&(toml.clone() + &titled.replace("\"Other\"", "\"Another\""))).await;
    let changed = log.wait_for("definition_changed").await;
    assert_eq!((&changed["prompt"], &changed["overlays"]), (&json!("other"), &json!("overlays.1")));
    // One walk is enough for all of it.
    let walks = up.methods().iter().filter(|method| *method == "prompts/list").count();
    assert_eq!(walks, 1);
}

#[tokio::test]
async fn rules_limits_and_records_keep_to_the_raw_name() {
    let up = upstream().await;
    let log = Log::new();
    let toml = log.table()
        + &api_key("ci", "k")
        + "[[access.rules]]\nallow = [\"list\", \"get\"]\nprompts = [\"summarize_*\"]\n"
        + &up.table("up")
        + OVERLAY;
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let client = gateway.client().with("authorization", "Bearer k");
    assert_eq!(client.names().await.0, ["up__summary-de"]);
    let get = json!({"name": "up__summary-de", "arguments": {"style": "short"}});
    client.ask("prompts/get", get).await;
    gateway.drain().await;
    let record = log.of("received").into_iter().find(|record| record["method"] == "prompts/get");
    let record = record.expect("a record");
    assert_eq!(
        (&record["name"], &record["prompt"]),
        (&json!("up__summary-de"), &json!("summarize_de"))
    );
    assert!(!log.text().contains("acme"), "presets are not recorded");
}

#[tokio::test]
async fn two_prompts_that_get_one_name_are_left_out_with_the_reason() {
    let up = Upstream::with_prompts(&["a1", "a2", "b"]).await;
    let overlays = "[[overlays]]\nupstream = \"up\"\nprompt = \"a1\"\nrename = \"x\"\n\
                    [[overlays]]\nupstream = \"up\"\nprompt = \"a2\"\nrename = \"x\"\n\
                    [[overlays]]\nupstream = \"up\"\nprompt = \"b\"\nrename = \"b\\u200b\"\n";
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let gateway = Gateway::start(&(admin.to_owned() + &up.table("up") + overlays)).await;
    gateway.summary().await;
    let catalog: Client = gateway.admin();
    let catalog = catalog.send("GET", "/api/v1/catalog", &[], b"").await.json();
    assert_eq!(catalog["prompts"], json!([]));
    let left_out = catalog["leftOut"].as_array().unwrap();
    let reasons: Vec<_> = left_out.iter().map(|l| l["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons.iter().filter(|r| r.contains("gives one name to two prompts")).count(), 2);
    assert_eq!(reasons.len(), 3, "{reasons:?}");
}

#[test]
fn explain_names_the_overlays_and_finds_the_prompt_by_its_new_name() {
    let folder = tempfile::tempdir().unwrap();
    let toml = "[upstreams.up]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n\
                [[access.rules]]\nallow = [\"get\"]\nprompts = [\"summarize_*\"]\n"
        .to_owned()
        + OVERLAY;
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let output = run(folder.path(), &["explain", "ci", "up__summary-de"]);
    let said = String::from_utf8(output.stdout).unwrap();
    for part in [
        "prompt summarize_de of upstream up",
        "get      allowed: by access.rules.1",
        "overlays.1: rename, title, tags, arguments.language.default, arguments.style.choices, \
         arguments.style.required, arguments.tenant.preset, before, after",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert!(!said.contains("acme"), "{said}");
}

#[tokio::test]
async fn list_long_shows_where_each_prompt_comes_from() {
    let up = upstream().await;
    let folder = tempfile::tempdir().unwrap();
    let toml = "[telemetry]\nlog = \"warn,promptgate::app=info\"\n[audit]\npath = \"\"\n"
        .to_owned()
        + &up.table("up")
        + OVERLAY;
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let (process, _admin) = Process::serve_admin(folder.path(), &[]).await;
    let said = async |arguments: &[&str]| {
        let mut command = tokio::process::Command::from(command(folder.path(), arguments));
        let output = command.env("XDG_RUNTIME_DIR", folder.path()).output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = said(&["list", "--long"]).await;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = text.lines().map(words).collect();
    assert_eq!(lines[1], ["up__other", "up", "other", "unchecked", "-", "-"]);
    let expected = ["up__summary-de", "up", "summarize_de", "unchecked", "overlays.1", "Summary"];
    assert_eq!(lines[2], expected);
    let json: Value = serde_json::from_str(&said(&["list", "--long", "--json"]).await).unwrap();
    assert_eq!(json[1]["origin"]["overlays"], json!(["overlays.1"]));
    process.stop().await;
}
