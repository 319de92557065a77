//! The access page: the decisions of the rules, and what other rules would change.

use std::fs;

use serde_json::{Value, json};

use super::{ADMIN, Browser, document, text, with_token};
use crate::support::gateway::api_key;
use crate::support::process::run;
use crate::support::{Gateway, Process, Upstream};

const RULES: &str = "[[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"staff\"]\n\
    [[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ncallers = [\"ci\"]\n\
    [[access.rules]]\ndeny = [\"get\"]\nprompts = [\"draft*\"]\n";

/// Reads the output of `promptgate explain` about a caller and a prompt: the allowed actions, and
/// all deciding rules.
fn explained(said: &str) -> (Vec<String>, Vec<String>) {
    let (mut allowed, mut by) = (Vec::new(), Vec::new());
    for action in ["list", "get", "complete"] {
        let line = said.lines().find(|line| line.trim_start().starts_with(&format!("{action} ")));
        let (verdict, reasons) = line.expect(said).split_once(": ").unwrap();
        if verdict.ends_with("allowed") {
            allowed.push(action.to_owned());
        }
        let reasons = reasons.strip_prefix("by ").into_iter().flat_map(|all| all.split(", "));
        by.extend(reasons.map(str::to_owned));
    }
    by.sort();
    by.dedup();
    (allowed, by)
}

fn strings(value: &Value) -> Vec<String> {
    let all = value.as_array().expect("a list").iter();
    all.map(|text| text.as_str().expect("a text").to_owned()).collect()
}

#[tokio::test]
async fn the_matrix_says_what_explain_says() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("lib")).unwrap();
    for name in ["draft-one", "greet"] {
        let prompt = format!("---\nname: {name}\n---\nHello\n");
        fs::write(folder.path().join("lib").join(format!("{name}.md")), prompt).unwrap();
    }
    let toml = ADMIN.to_owned()
        + &api_key("ci", "pg_ci")
        + &(api_key("bob", "pg_bob") + "groups = [\"staff\"]\n")
        + RULES
        + "[telemetry]\nlog = \"warn,promptgate::app=info\"\n[audit]\npath = \"\"\n\
           [upstreams.lib]\ntransport = \"library\"\npath = \"lib\"\n";
    fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let shown = document(&with_token(&admin), "/access").await;
    assert_eq!(strings(&shown["who"]), ["bob", "ci", "group staff"]);
    let mut compared = 0;
    for row in shown["rows"].as_array().unwrap() {
        let prompt = row["prompt"].as_str().unwrap();
        for right in row["rights"].as_array().unwrap() {
            let who = right["who"].as_str().unwrap();
            let arguments = match who.strip_prefix("group ") {
                Some(group) => vec!["explain", "nobody", prompt, "--group", group],
                None => vec!["explain", who, prompt],
            };
            let output = run(folder.path(), &arguments);
            let said = String::from_utf8(output.stdout).unwrap();
            let expected = explained(&said);
            assert_eq!((strings(&right["allowed"]), strings(&right["by"])), expected, "{said}");
            compared += 1;
        }
    }
    assert_eq!(compared, 6);
    let one = document(&with_token(&admin), "/prompts/lib__greet").await;
    assert_eq!(one["rights"], shown["rows"][1]["rights"], "a prompt's page says the same");
    process.kill().await;
}

#[tokio::test]
async fn pasted_rules_are_compared_and_nothing_else() {
    let upstream = Upstream::with_prompts(&["draft", "p"]).await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "root:s3cret").unwrap();
    let toml = ADMIN.to_owned() + &api_key("ci", "pg_ci") + RULES + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let admin = with_token(&gateway.admin());
    let mut browser = Browser::new(&gateway.admin());
    browser.log_in("t0ken").await;
    let csrf = browser.csrf("/access").await;
    let before = document(&admin, "/access").await;

    let what_if = async |rules: &str| {
        let query = super::form(&[("rules", rules)]);
        document(&admin, &format!("/access?{query}")).await["whatIf"].take()
    };
    let none = what_if("[[access.rules]]\nallow = [\"list\"]\ncallers = [\"nobody\"]\n").await;
    let changes = none["changes"].as_array().unwrap();
    assert_eq!((&none["total"], changes.len()), (&json!(4), 4), "{none}");
    assert_eq!((&changes[0]["who"], &changes[0]["prompt"]), (&json!("ci"), &json!("up__draft")));
    assert_eq!(changes[0]["before"]["allowed"], json!(["list", "complete"]));
    assert_eq!(changes[0]["after"]["allowed"], json!([]));
    let same = what_if(RULES).await;
    assert_eq!(
        (&same["total"], &same["complete"], &same["mistakes"]),
        (&json!(0), &json!(true), &json!([]))
    );

    // Mistakes are those of a file. No file is read, and no variable.
    for (rules, mistake) in [
        ("[[access.rules]]\nallow = [\"fly\"]\n", "access.rules.1.allow"),
        ("[[access.rules]]\n", "access.rules.1"),
        ("allow = ", "pasted:1"),
        ("[server]\nlisten = \"0.0.0.0:1\"\n", "server"),
        (&format!("[access]\ncedar = {:?}\n", secret.path()), "paste rules only"),
        ("[admin]\ntoken = { env = \"HOME\" }\n", "admin"),
        (
            &format!("[[access.rules]]\nallow = {{ file = {:?} }}\n", secret.path()),
            "access.rules.1.allow",
        ),
    ] {
        let found = what_if(rules).await;
        let mistakes = strings(&found["mistakes"]).join("\n");
        assert!(mistakes.contains(mistake), "{rules}: {found}");
        assert!(!mistakes.contains("s3cret") && found["changes"] == json!([]), "{found}");
        let fields = [("csrf", csrf.as_str()), ("rules", rules)];
        let page = browser.submit("/access", &fields).await;
        assert!(page.status == 200 && !text(&page).contains("s3cret"), "{}", text(&page));
    }
    for (length, is_too_long) in [(64 << 10, false), ((64 << 10) + 1, true)] {
        let rules = format!("{RULES}#{}", "x".repeat(length - RULES.len() - 1));
        let page = browser.submit("/access", &[("csrf", &csrf), ("rules", &rules)]).await;
        let page = text(&page);
        assert_eq!(page.contains("longer than 64 KiB"), is_too_long, "{length}");
        assert_eq!(page.contains("These rules change nothing"), !is_too_long, "{length}");
    }
    assert_eq!(document(&admin, "/access").await, before, "nothing is changed");
    let reply = gateway
        .client()
        .with("X-API-Key", "pg_ci")
        .modern("prompts/get", json!({"name": "up__p"}))
        .await;
    assert_eq!(reply.json()["result"]["messages"][0]["role"], "user");
}

#[tokio::test]
async fn without_rules_every_caller_may_use_every_prompt() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&(ADMIN.to_owned() + &upstream.table("up"))).await;
    gateway.summary().await;
    let shown = document(&with_token(&gateway.admin()), "/access").await;
    assert_eq!((&shown["hasRules"], &shown["who"]), (&json!(false), &json!(["anonymous"])));
    let right = &shown["rows"][0]["rights"][0];
    assert_eq!(
        (&right["allowed"], &right["by"]),
        (&json!(["list", "get", "complete"]), &json!([]))
    );
}
