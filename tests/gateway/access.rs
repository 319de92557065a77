//! Rules: what a caller may not use is not there, in no way.

use serde_json::{Value, json};

use super::approvals::Folder;
use crate::support::client::modern;
use crate::support::gateway::api_key;
use crate::support::process::run;
use crate::support::{Client, Gateway, Process, Upstream, eventually};

/// The ids are the keys.
fn keys() -> String {
    let key = |id, group| api_key(id, id) + &format!("groups = [\"{group}\"]\n");
    key("alice", "sales") + &key("bob", "engineering") + &key("carol", "sales")
}

const RULES: &str = "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ngroups = [\"sales\"]\n\
    upstreams = [\"crm\"]\n\
    [[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ngroups = [\"engineering\"]\n\
    [[access.rules]]\ndeny = [\"get\"]\nprompts = [\"secret\"]\n";

fn as_caller(gateway: &Gateway, id: &str) -> Client {
    gateway.client().with("X-API-Key", id)
}

async fn body(client: &Client, method: &str, params: Value) -> Vec<u8> {
    let reply = client.modern(method, params).await;
    assert_eq!(reply.status, 200);
    reply.body
}

#[tokio::test]
async fn p1_what_is_denied_is_as_unknown_as_what_nobody_has() {
    let crm = Upstream::with_prompts(&["x", "secret"]).await;
    let git = Upstream::with_prompts(&["y"]).await;
    let toml =
        keys() + RULES + "[listing]\npage_size = 1\n" + &crm.table("crm") + &git.table("git");
    let gateway = Gateway::start(&toml).await;
    let (alice, bob) = (as_caller(&gateway, "alice"), as_caller(&gateway, "bob"));
    // Lists and all their pages.
    assert_eq!(alice.names().await, (vec!["crm__secret".into(), "crm__x".into()], 2));
    assert_eq!(bob.names().await.0, ["crm__secret", "crm__x", "git__y"]);
    // Gets and completions, byte for byte.
    let complete = |name: &str| json!({"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "a", "value": ""}});
    for denied in ["git__y", "crm__secret"] {
        let got = body(&alice, "prompts/get", json!({"name": denied})).await;
        assert_eq!(
            got,
            body(&alice, "prompts/get", json!({"name": "git__never"})).await,
            "{denied}"
        );
        assert!(String::from_utf8_lossy(&got).contains("unknown_prompt"));
    }
    let completed = body(&alice, "completion/complete", complete("git__y")).await;
    assert_eq!(completed, body(&alice, "completion/complete", complete("git__never")).await);
    let calls = ["prompts/get", "completion/complete"];
    assert!(!git.methods().iter().any(|method| calls.contains(&method.as_str())));
    // Allowed calls.
    alice.ask("prompts/get", json!({"name": "crm__x"})).await;
    bob.ask("prompts/get", json!({"name": "git__y"})).await;
}

#[tokio::test]
async fn p1_an_upstream_that_was_never_seen_is_not_told_to_those_who_may_not_use_it() {
    let crm = Upstream::with_prompts(&["x"]).await;
    let dead = "[upstreams.git]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/\"\n";
    let toml = keys() + RULES + "[listing]\ndeadline = \"100ms\"\n" + &crm.table("crm") + dead;
    let gateway = Gateway::start(&toml).await;
    let (alice, bob) = (as_caller(&gateway, "alice"), as_caller(&gateway, "bob"));
    let hidden = body(&alice, "prompts/get", json!({"name": "git__y"})).await;
    assert_eq!(hidden, body(&alice, "prompts/get", json!({"name": "none__y"})).await);
    let error = bob.ask_error("prompts/get", json!({"name": "git__y"})).await;
    assert_eq!(error["data"]["reason"], "upstream_unavailable");
    let list = alice.ask("prompts/list", json!({})).await;
    assert!(list["_meta"].get("promptgate/incomplete").is_none(), "{list}");
}

#[tokio::test]
async fn p8_lists_that_differ_by_caller_are_private_and_never_mixed() {
    let crm = Upstream::with_prompts(&["x"]).await;
    let git = Upstream::with_prompts(&["y"]).await;
    let toml = keys() + RULES + &crm.table("crm") + &git.table("git");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let callers = ["alice", "bob", "carol", "bob", "alice"];
    // Many at once, but no more than a short accept queue holds: all run on one thread.
    for _ in 0..10 {
        let asking = (0..20).map(|n| {
            let (client, id) = (as_caller(&gateway, callers[n % 5]), callers[n % 5]);
            tokio::spawn(async move {
                let list = client.ask("prompts/list", json!({})).await;
                assert_eq!(list["cacheScope"], "private");
                let expected = if id == "bob" { 2 } else { 1 };
                assert_eq!(list["prompts"].as_array().unwrap().len(), expected, "{id}");
            })
        });
        for one in asking.collect::<Vec<_>>() {
            one.await.unwrap();
        }
    }
}

#[tokio::test]
async fn l3_a_change_is_told_only_to_those_who_see_it() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static MORE: AtomicBool = AtomicBool::new(false);
    let git = Upstream::modern(|asked| {
        let names: &[&str] = if MORE.load(Ordering::SeqCst) { &["y", "z"] } else { &["y"] };
        let prompts: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        (asked.method() == "prompts/list").then(|| asked.list(&json!(prompts)))
    })
    .await;
    let crm = Upstream::with_prompts(&["x"]).await;
    let toml = keys()
        + RULES
        + "[listing]\ndebounce = \"10ms\"\n"
        + &crm.patient_table("crm")
        + &git.patient_table("git")
        + "poll = \"20ms\"\n";
    let gateway = Gateway::start(&toml).await;
    let (alice, bob) = (as_caller(&gateway, "alice"), as_caller(&gateway, "bob"));
    assert_eq!(bob.names().await.0.len(), 2);
    let (mut told, mut not_told) = (bob.listen().await, alice.listen().await);
    MORE.store(true, Ordering::SeqCst);
    let change = told.event().await.expect("a change").json();
    assert_eq!(change["method"], "notifications/prompts/list_changed");
    eventually(async || bob.names().await.0.len(), |seen| *seen == 3).await;
    gateway.drain().await;
    let last = not_told.event().await.expect("the end").json();
    assert!(last.get("result").is_some(), "nothing was told before it: {last}");
}

#[tokio::test]
async fn p2_a_cedar_file_is_checked_and_denies_by_default() {
    let crm = Upstream::with_prompts(&["x", "z"]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.cedar");
    let parse = |policies: &str| {
        std::fs::write(&file, policies).unwrap();
        let toml =
            format!("{}[access]\ncedar = \"{}\"\n{}", keys(), file.display(), crm.table("crm"));
        config::Config::parse("g", &toml, std::path::Path::new(""), &[]).map(|_| toml)
    };
    for (bad, says) in [
        ("permit (principal, action, resource) when { resource.nmae == \"x\" };", "nmae"),
        ("permit (principal in Gruop::\"a\", action, resource);", "Gruop"),
        ("permit (principal, action == Action::\"gte\", resource);", "gte"),
        ("permit (principal, action, resource) when { context.ip == \"1\" };", "ip"),
        ("permit (principal, action resource);", "resource"),
    ] {
        let error = parse(bad).unwrap_err().to_string();
        assert!(error.contains("access.cedar") && error.contains(says), "{error}");
    }
    let gateway = Gateway::start(&parse("").unwrap()).await;
    assert_eq!(as_caller(&gateway, "alice").names().await.0, Vec::<String>::new());
    let policy = "@id(\"a\") permit (principal == Caller::\"alice\", action, resource) when { resource.name like \"x*\" };";
    let gateway = Gateway::start(&parse(policy).unwrap()).await;
    assert_eq!(as_caller(&gateway, "alice").names().await.0, ["crm__x"]);
    assert_eq!(as_caller(&gateway, "carol").names().await.0, Vec::<String>::new());
}

#[tokio::test]
async fn states_do_not_outlive_the_right_to_the_prompt() {
    use crate::support::server_request_upstream::form_elicitation;
    let upstream =
        Upstream::modern_with_input_requests(vec![form_elicitation("Which colour?")]).await;
    let seal =
        "[server]\nseal_key = { value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }\n";
    let allowed = "[[access.rules]]\nallow = [\"get\"]\n";
    let denied = "[[access.rules]]\nallow = [\"list\"]\n";
    let toml = |rules: &str| seal.to_owned() + &keys() + rules + &upstream.patient_table("up");
    let before = Gateway::start(&toml(allowed)).await;
    let after = Gateway::start(&toml(denied)).await;
    let params = json!({"name": "up__p"});
    let mut request = modern(1, "prompts/get", params.clone());
    let key = "io.modelcontextprotocol/clientCapabilities";
    request.0["params"]["_meta"][key] = json!({"elicitation": {}});
    let headers: Vec<_> = request.1.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let body = request.0.to_string();
    let asked = as_caller(&before, "alice").send("POST", "/mcp", &headers, body.as_bytes()).await;
    let state = asked.json()["result"]["requestState"].clone();
    assert!(state.is_string(), "{asked:?}");
    let back = json!({"name": "up__p", "requestState": state, "inputResponses": {}});
    let error = as_caller(&after, "alice").ask_error("prompts/get", back).await;
    assert_eq!(error["data"]["reason"], "unknown_prompt");
}

#[tokio::test]
async fn p7_hostile_patterns_are_refused_or_take_no_longer_than_others() {
    let rule = |pattern: &str| {
        format!("[[access.rules]]\nallow = [\"list\", \"get\"]\nprompts = [\"{pattern}\"]\n")
    };
    let long =
        config::Config::parse("g", &rule(&"a".repeat(1 << 20)), std::path::Path::new(""), &[]);
    assert!(long.unwrap_err().to_string().contains("1 to 512 bytes"));
    // Characters of other pattern languages are literal here.
    let long_name = "a".repeat(100);
    let upstream = Upstream::with_prompts(&[&long_name, "(a+)+$", "[[:alpha:]]"]).await;
    let backtracking = "a*".repeat(255) + "b";
    let toml = rule(&backtracking) + &rule("(a+)+$") + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    for _ in 0..100 {
        assert_eq!(gateway.client().names().await.0, ["up__(a+)+$"]);
    }
}

#[tokio::test]
async fn k7_no_route_adds_an_upstream_or_a_command() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&upstream.table("up")).await;
    let body =
        json!({"id": "evil", "transport": "stdio", "command": ["touch", "/tmp/x"]}).to_string();
    for method in ["POST", "PUT", "PATCH", "DELETE", "GET"] {
        for path in ["/", "/upstreams", "/api/v1/upstreams", "/admin", "/mcp/evil", "/config"] {
            let headers = [("Content-Type", "application/json"), ("Accept", "application/json")];
            let reply = gateway.client().send(method, path, &headers, body.as_bytes()).await;
            assert_eq!(reply.status, 404, "{method} {path}");
        }
    }
    for method in ["upstreams/add", "config/set", "logging/setLevel"] {
        let reply = gateway.client().modern(method, json!({"name": "evil"})).await;
        assert_eq!(reply.json()["error"]["code"], -32601, "{method}");
    }
    let called = gateway.client().ask_error("tools/call", json!({"name": "evil"})).await;
    assert_eq!(called["data"]["reason"], "unknown_tool");
    assert_eq!(gateway.summary().await.len(), 1);
}

#[tokio::test]
async fn a_denial_is_on_record_with_the_rule_and_the_configuration_and_is_found_by_it() {
    let up = Upstream::modern(|asked| {
        let strict = json!({"name": "strict", "arguments": [{"name": "code", "required": true}]});
        let prompts = json!([{"name": "open"}, {"name": "secret"}, {"name": "other"}, strict]);
        (asked.method() == "prompts/list").then(|| asked.list(&prompts))
    })
    .await;
    let new = Upstream::with_prompts(&["unread"]).await;
    let toml = "[[access.rules]]\nallow = [\"list\", \"get\"]\n\
         prompts = [\"open\", \"secret\", \"strict\", \"unread\"]\n\
         [[access.rules]]\ndeny = [\"get\"]\nprompts = [\"sec*\"]\n\
         [views.part]\nprompts = [\"up__s*\"]\n\
         [[limits]]\nname = \"few\"\nper = [\"caller\"]\nmethods = [\"completion/complete\"]\n\
         rate = \"1/d\"\nburst = 1\n"
        .to_owned();
    let folder =
        Folder::new(&(toml + &up.table("up") + &new.table("new") + "approval = \"enforce\"\n"));
    let gateway = Process::serve(folder.path()).await;
    let client = gateway.client();
    client.ask("prompts/get", json!({"name": "up__open"})).await;
    for name in ["up__secret", "up__other", "up__strict", "new__unread", "up__nothing"] {
        client.ask_error("prompts/get", json!({"name": name})).await;
    }
    let (body, headers) = modern(1, "prompts/get", json!({"name": "up__open"}));
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    client.send("POST", "/mcp/part", &headers, body.to_string().as_bytes()).await;
    let typed = json!({"ref": {"type": "ref/prompt", "name": "up__open"},
        "argument": {"name": "who", "value": ""}});
    for _ in 0..2 {
        client.modern("completion/complete", typed.clone()).await;
    }
    folder.recorded("refused").await;

    let found = run(folder.path(), &["audit", "find", "--denied", "--json"]);
    let text = String::from_utf8(found.stdout).unwrap();
    let denials: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rules: Vec<_> =
        denials.iter().map(|entry| (entry["name"].as_str(), entry["rule"].as_str())).collect();
    let of = |name, rule| (Some(name), Some(rule));
    let expected = [
        of("up__secret", "access.rules.2"),
        of("up__other", "none"),
        of("up__strict", "arguments.code"),
        of("new__unread", "approvals.pending"),
        of("up__open", "views.part"),
        of("up__open", "none"),
        (None, None),
    ];
    assert_eq!(rules, expected, "{text}");
    let refused = &denials.last().unwrap()["members"];
    assert_eq!((&refused["reason"], &refused["by"]), (&json!("rate_limited"), &json!("few")));
    let config = folder.recorded("config_loaded").await["digest"].clone();
    assert!(config.as_str().unwrap().starts_with("sha256:"));
    assert!(denials.iter().all(|entry| entry["members"]["config"] == config), "{text}");
    let shown = run(folder.path(), &["audit", "find", "--denied", "--prompt", "up__secret"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("denied rule=access.rules.2 config=sha256:"), "{shown}");
}
