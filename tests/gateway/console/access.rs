//! The access page: the decisions of the rules, and what other rules would change.

use std::fs;

use serde_json::json;

use super::{ADMIN, Browser, rows, text, with_token};
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

/// The headings of the columns of a table.
fn headings(page: &str, label: &str) -> Vec<String> {
    let heads = page.replace("<thead>", "<tbody>").replace("</thead>", "</tbody>");
    rows(&heads, label).remove(0)
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
    let mut browser = Browser::new(&with_token(&admin));
    let folded = browser.page("/access").await;
    assert_eq!(headings(&folded, "Access matrix"), ["Prompt", "group staff"]);
    assert!(folded.contains("Groups and 2 callers"), "{folded}");
    let page = browser.page("/access?callers=1").await;
    let who = headings(&page, "Access matrix");
    assert_eq!(who, ["Prompt", "group staff", "bob", "ci"]);
    let shown = rows(&page, "Access matrix");
    let mut compared = 0;
    for row in &shown {
        let prompt = row[0].as_str();
        for (who, right) in who.iter().zip(row).skip(1) {
            let arguments = match who.strip_prefix("group ") {
                Some(group) => vec!["explain", "nobody", prompt, "--group", group],
                None => vec!["explain", who.as_str(), prompt],
            };
            let output = run(folder.path(), &arguments);
            let said = String::from_utf8(output.stdout).unwrap();
            let (allowed, by) = explained(&said);
            let allowed = match allowed.len() {
                0 => "– nothing".to_owned(),
                3 => "✓ everything".to_owned(),
                _ => format!("✓ {}", allowed.join(", ")),
            };
            assert_eq!(*right, [vec![allowed], by].concat().join(" "), "{said}");
            compared += 1;
        }
    }
    assert_eq!(compared, 6);
    let one = rows(&browser.page("/prompts/lib__greet/access").await, "Rights");
    let text = |right: &Vec<String>| right[1..].join(" ").replace("no rule allows it", "");
    let one = one.iter().map(|right| text(right).trim().to_owned());
    let without_marks = shown[1][1..].iter().map(|right| right.split_once(' ').unwrap().1);
    assert_eq!(
        one.collect::<Vec<_>>(),
        without_marks.collect::<Vec<_>>(),
        "a prompt's page says the same"
    );
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
    let mut browser = Browser::new(&gateway.admin());
    browser.log_in("t0ken").await;
    let csrf = browser.csrf("/access").await;
    let before = browser.page("/access").await;

    let mut reader = browser.clone();
    let mut what_if = async |rules: &str| {
        let query = super::form(&[("rules", rules)]);
        reader.page(&format!("/access?{query}")).await
    };
    let none = what_if("[[access.rules]]\nallow = [\"list\"]\ncallers = [\"nobody\"]\n").await;
    assert!(none.contains("4 rights would change<"), "{none}");
    for summary in ["<b>ci</b> loses rights to 2 prompts<", "<b>group staff</b> loses rights to 2"]
    {
        assert!(none.contains(summary), "{none}");
    }
    let changes = rows(&none, "Changes");
    assert_eq!(changes.len(), 4, "{none}");
    assert_eq!(changes[0][..4], ["group staff", "up__draft", "list", "nothing"]);
    let other = RULES.replace("\"list\", \"get\", \"complete\"", "\"get\"").replace("draft*", "p");
    let both = what_if(&other).await;
    assert!(
        both.contains("<b>ci</b> loses rights to 2 prompts, gains rights to 1 prompt<"),
        "{both}"
    );
    let same = what_if(RULES).await;
    assert!(same.contains("These rules change nothing"), "{same}");

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
        assert!(found.contains("class=\"attention\"") && found.contains(mistake), "{found}");
        assert!(!found.contains("s3cret") && rows(&found, "Changes").is_empty(), "{found}");
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
    let (before, after) = (rows(&before, "Access matrix"), browser.page("/access").await);
    assert_eq!(rows(&after, "Access matrix"), before, "nothing is changed");
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
    let shown = Browser::new(&with_token(&gateway.admin())).page("/access").await;
    assert!(shown.contains("No access rules are configured"), "{shown}");
    assert_eq!(headings(&shown, "Access matrix"), ["Prompt", "anonymous"]);
    assert_eq!(rows(&shown, "Access matrix"), [["up__p", "✓ everything"]]);
}

#[tokio::test]
async fn a_decision_leads_to_the_lines_of_its_rule_which_has_a_name() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let rule = "[[access.rules]]\nallow = [\"list\"]\ngroups = [\"staff\"]\n";
    let toml = ADMIN.to_owned()
        + &rule.repeat(10)
        + &rule.replace("list\"]", "get\"]\nname = \"staff-only\"")
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let mut browser = Browser::new(&with_token(&gateway.admin()));
    let page = browser.page("/access?who=staff").await;
    let right = rows(&page, "Access matrix").remove(0).remove(1);
    assert!(
        right.starts_with("✓ list, get access.rules.1 access.rules.10 access.rules.2 "),
        "{right}"
    );
    assert!(right.ends_with(" staff-only"), "{right}");
    for (number, name) in [(1, "access.rules.1"), (11, "staff-only")] {
        let link = format!("<a href=\"/configuration?q=access.rules.{number}.\">{name}</a>");
        assert!(page.contains(&link), "{link}: {page}");
        let found = browser.page(&format!("/configuration?q=access.rules.{number}.")).await;
        let keys = rows(&found, "Values in use");
        let prefix = format!("access.rules.{number}.");
        assert!(!keys.is_empty() && keys.iter().all(|row| row[0].starts_with(&prefix)), "{keys:?}");
        assert!(
            keys.iter().any(|row| row.iter().any(|cell| cell.starts_with("line "))),
            "{keys:?}"
        );
    }
}
