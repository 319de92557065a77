//! Guards: what goes into a prompt and what comes out is examined, by every door alike.

use serde_json::{Value, json};

use crate::approvals::{Changeable, Folder, enforced};
use crate::audit::Log;
use crate::links::{GUIDE, guided, messages};
use crate::support::process::command;
use crate::support::{Client, ClientMode, Gateway, ModeClient, Process, Upstream, metrics};

const CARD: &str = "4111 1111 1111 1111";

pub(super) const CLIENTS: [ClientMode; 5] = [
    ClientMode::Sse("2024-11-05"),
    ClientMode::Http("2025-11-25"),
    ClientMode::Modern,
    ClientMode::Stdio("2025-06-18"),
    ClientMode::ModernStdio,
];

pub(super) fn guard(name: &str, on: &str, keys: &str) -> String {
    format!("[[guards]]\nname = \"{name}\"\non = [\"{on}\"]\nmode = \"enforce\"\n{keys}\n")
}

pub(super) fn text(result: &Value) -> &str {
    result["messages"][0]["content"]["text"].as_str().unwrap_or_default()
}

pub(super) async fn get(client: &Client, argument: &str) -> Value {
    let params = json!({"name": "up__p", "arguments": {"a": argument}});
    client.modern("prompts/get", params).await.json()
}

pub(super) fn assert_denied(answer: &Value, code: &str) {
    let data = &answer["error"]["data"];
    assert_eq!(
        (&data["reason"], &data["code"]),
        (&json!("guard_denied"), &json!(code)),
        "{answer}"
    );
}

#[tokio::test]
async fn arguments_and_results_get_the_same_decision_in_both_eras_and_by_the_tools_door() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = "[server]\nexpose = [\"prompts\", \"tools\"]\n".to_owned()
        + &guard("cards", "arguments", "deny = [\"payment_card\"]")
        + &guard("mail", "results", "mask = [\"email\"]")
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    for client_mode in CLIENTS {
        let mut client = ModeClient::connect(&gateway, client_mode).await;
        let ask = |text: &str| json!({"name": "up__p", "arguments": {"a": text}});
        let refused = client.answer("prompts/get", ask(&format!("pay {CARD}"))).await;
        assert_denied(&refused, "payment_card");
        assert!(!refused.to_string().contains("4111"), "{refused}");
        let result = client.ask("prompts/get", ask("mail bo@x.org")).await;
        assert_eq!(text(&result), r#""p" {"a":"mail ***"}"#, "{client_mode:?}");
        let tool = json!({"name": "use_prompt", "arguments": ask(CARD)});
        let refused = client.ask("tools/call", tool).await;
        assert_eq!(refused["isError"], true, "{client_mode:?}: {refused}");
        let tool = json!({"name": "use_prompt", "arguments": ask("bo@x.org")});
        let result = client.ask("tools/call", tool).await.to_string();
        assert!(result.contains("***") && !result.contains("bo@x.org"), "{result}");
    }
    let sent = upstream.gets();
    assert!(sent.len() == 2 * CLIENTS.len() && !format!("{sent:?}").contains("4111"), "{sent:?}");
    gateway.drain().await;
}

#[tokio::test]
async fn sealed_links_and_completions_are_examined() {
    let upstream = guided(true, |asked| match asked.method() {
        "completion/complete" => {
            Some(asked.result(json!({"resultType": "complete",
            "completion": {"values": ["bo@x.org", asked.message["params"]["argument"]["value"]]}})))
        }
        "prompts/get" => {
            Some(messages(asked, &[json!({"type": "resource_link", "uri": GUIDE, "name": "n"})]))
        }
        _ => None,
    })
    .await;
    let toml = guard("guide", "results", "mask = [\"/guide$/\"]")
        + &guard("mail", "completions", "mask = [\"email\"]")
        + &guard("cards", "completions", "deny = [\"payment_card\"]")
        + &upstream.table("up")
        + "links = \"sealed\"\n";
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let complete = async |value: &str| {
        let params = json!({"ref": {"type": "ref/prompt", "name": "up__p"},
            "argument": {"name": "a", "value": value}});
        client.modern("completion/complete", params).await.json()
    };
    let answer = complete("ann@x.org").await;
    assert_eq!(answer["result"]["completion"]["values"], json!(["***", "***"]), "{answer}");
    assert_denied(&complete(CARD).await, "payment_card");
    let result = client.ask("prompts/get", json!({"name": "up__p"})).await;
    let uri = &result["messages"][0]["content"]["uri"];
    let read = client.ask("resources/read", json!({"uri": uri})).await;
    assert_eq!(read["contents"][0]["text"], "***", "{read}");
    gateway.drain().await;
}

#[tokio::test]
async fn skills_are_examined_as_prompts_and_as_files() {
    let upstream = crate::skills::simple("skill://refunds").await;
    let toml = guard("limits", "results", "mask = [\"/limits/\"]")
        + &guard("cards", "arguments", "deny = [\"payment_card\"]")
        + &upstream.table("up")
        + "expose_skills = [\"prompts\"]\n";
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let task = |text: &str| json!({"name": "up__refunds", "arguments": {"task": text}});
    let answer = client.modern("prompts/get", task(CARD)).await.json();
    assert_denied(&answer, "payment_card");
    let got = client.ask("prompts/get", task("Refund Ann")).await.to_string();
    assert!(got.contains("Read [***](***.md).") && got.contains("Refund Ann"), "{got}");
    let uris = crate::skills::uris(&client).await;
    let read = client.ask("resources/read", json!({"uri": uris[0]})).await;
    let text = read["contents"][0]["text"].as_str().unwrap();
    assert!(text.ends_with("Read [***](***.md)."), "{read}");
    gateway.drain().await;
}

#[tokio::test]
async fn requests_and_results_of_passthrough_are_examined_and_no_name_is_changed() {
    let upstream = Upstream::modern(|asked| match asked.method() {
        "server/discover" => Some(asked.result(json!({"resultType": "complete", "ttlMs": 0,
            "cacheScope": "public", "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}, "prompts": {}, "resources": {}}}))),
        "tools/call" => Some(asked.result(json!({"resultType": "complete", "content":
            [{"type": "text", "text": asked.message["params"]["arguments"]["a"]}, {"type": "text", "text": CARD}]}))),
        _ => None,
    })
    .await;
    let toml = "[passthrough]\nupstream = \"up\"\n".to_owned()
        + &guard("mail", "passthrough", "mask = [\"email\", \"payment_card\"]")
        + &guard("keys", "passthrough", "deny = [\"private_key\"]")
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let call = async |params: Value| client.modern("tools/call", params).await.json();
    let answer = call(json!({"name": "t", "arguments": {"a": "to bo@x.org"}})).await;
    let texts = json!([{"type": "text", "text": "to ***"}, {"type": "text", "text": "***"}]);
    assert_eq!(answer["result"]["content"], texts, "{answer}");
    let key = "-----BEGIN PRIVATE KEY-----\nx";
    assert_denied(&call(json!({"name": "t", "arguments": {"a": key}})).await, "private_key");
    let answer = call(json!({"name": "bo@x.org", "arguments": {}})).await;
    assert_eq!(answer["error"]["data"]["reason"], "invalid_params", "{answer}");
    assert_eq!(upstream.methods().iter().filter(|method| *method == "tools/call").count(), 1);
    gateway.drain().await;
}

#[tokio::test]
async fn a_guard_that_observes_records_what_it_would_do_and_never_the_match() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let log = Log::new();
    let toml = guard("cards", "arguments", "deny = [\"payment_card\"]")
        .replace("enforce", "observe")
        + &upstream.table("up")
        + &log.table()
        + "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let gateway = Gateway::start(&toml).await;
    let answer = get(&gateway.client(), CARD).await;
    assert!(text(&answer["result"]).contains(CARD), "{answer}");
    assert!(text(&get(&gateway.client(), "fine").await["result"]).contains("fine"));
    let record = log.wait_for("guard").await;
    for (member, expected) in [
        ("guard", "cards"),
        ("on", "arguments"),
        ("outcome", "observed"),
        ("code", "payment_card"),
        ("upstream", "up"),
        ("name", "up__p"),
    ] {
        assert_eq!(record[member], expected, "{record}");
    }
    assert!(record["call"].is_u64() && record["examined_hmac"].is_string(), "{record}");
    assert!(!log.text().contains("4111"));
    let counted = metrics(&gateway.admin(), &["promptgate_guard_decisions_total"]).await;
    let outcome =
        |name: &str| counted.iter().find(|(key, _)| key.contains(name)).map(|(_, count)| *count);
    assert_eq!((outcome("observed"), outcome("allowed")), (Some(1.0), Some(1.0)), "{counted:?}");
    gateway.drain().await;
}

#[tokio::test]
async fn a_text_that_is_proved_against_the_approved_one_is_not_examined_again() {
    let changeable = Changeable::start().await;
    let guards = guard("good", "results", "deny = [\"/good/\"]");
    let folder = Folder::new(&(guards + &enforced(&changeable.upstream.table("up"))));
    folder.approve().await;
    let process = Process::serve(folder.path()).await;
    let client = process.client();
    let served = client.modern("prompts/get", json!({"name": "up__p"})).await.json();
    assert!(text(&served["result"]).starts_with("good"), "{served}");
    process.stop().await;
    let file = folder.path().join("gateway.toml");
    let toml = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        toml.replace("[approvals]\nmode = \"enforce\"", "[approvals]\nmode = \"warn\""),
    )
    .unwrap();
    changeable.offer(|offer| offer.text = "not good".to_owned());
    let process = Process::serve(folder.path()).await;
    let answer = process.client().modern("prompts/get", json!({"name": "up__p"})).await.json();
    assert_denied(&answer, "pattern");
    process.stop().await;
}

#[tokio::test]
async fn an_enforced_finding_in_what_is_offered_keeps_a_prompt_from_bulk_approval() {
    let changeable = Changeable::start().await;
    let guards = guard("good", "offered", "deny = [\"/good/\"]");
    let folder = Folder::new(&(guards + &enforced(&changeable.upstream.table("up"))));
    let bulk = ["approve", "--upstream", "up", "--yes", "--why", "reviewed"];
    let said = folder.approvals(&bulk).await;
    let text = format!("{said:?}");
    assert!(text.contains("finds pattern in its text. Approve it by its name"), "{text}");
    let said = folder.approvals(&["diff", "--json"]).await;
    let shown: Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(shown.to_string().contains(r#""findings":["The guard"#), "{shown}");
    let said = folder.approvals(&["approve", "up__p", "--yes", "--why", "reviewed"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[tokio::test]
async fn commands_show_what_a_guard_finds_and_has_found() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let folder = Folder::new(
        &(guard("cards", "arguments", "deny = [\"payment_card\"]").replace("enforce", "observe")
            + &upstream.table("up")),
    );
    let typed = folder.path().join("typed");
    std::fs::write(&typed, format!("a\nb é {CARD}")).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = command(folder.path(), arguments);
        command.stdin(std::fs::File::open(&typed).unwrap());
        let output = command.output().unwrap();
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    };
    let said = run(&["guards", "test", "cards"]);
    assert_eq!(said, "line 2, column 5: payment_card\ndenied, once the mode is enforce\n");
    assert!(run(&["guards", "test", "x"]).contains("there is no guard \"x\"; there are: cards"));
    let process = Process::serve(folder.path()).await;
    for _ in 0..2 {
        get(&process.client(), CARD).await;
    }
    process.stop().await;
    let report = run(&["guards", "report"]);
    let row: Vec<_> = report.lines().nth(1).unwrap_or(&report).split_whitespace().collect();
    assert_eq!(
        (row[..3].to_vec(), row.last()),
        (vec!["cards", "observed", "payment_card"], Some(&"2"))
    );
    let found = run(&["audit", "find", "--guard", "cards", "--json"]);
    assert_eq!(found.lines().count(), 2, "{found}");
    assert!(
        run(&["audit", "find", "--guard", "other"]).contains("no entry of this time has the guard")
    );
}
