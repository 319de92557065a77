//! The binary as a person uses it.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::process::run;
use crate::support::{PATIENCE, Process};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A gateway with one library of one prompt, and its URL.
async fn serve(folder: &Path) -> (Process, String) {
    let mut process = Process::serve(folder).await;
    let second = tokio::time::timeout(PATIENCE, process.lines.next_line()).await.unwrap();
    assert_eq!(second.unwrap().unwrap(), "  library: 1 prompt");
    let url = format!("http://{}/mcp", process.addr);
    (process, url)
}

#[test]
fn without_a_configuration_the_error_names_init() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&[][..], &["serve"], &["check"]] {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(64));
        assert!(text(&output.stderr).contains("promptgate init"), "{output:?}");
    }
}

#[test]
fn an_invalid_command_line_exits_64_and_help_exits_0() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["nonsense"][..], &["get"], &["get", "a", "=b"], &["--nope"]] {
        assert_eq!(run(folder.path(), arguments).status.code(), Some(64), "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["--version"], &["get", "--help"]] {
        let output = run(folder.path(), arguments);
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(0), false));
    }
}

#[test]
fn k1_check_reports_all_mistakes_and_exits_64() {
    let folder = tempfile::tempdir().unwrap();
    let bad = "[server]\nlisten = 1\nlisen = \"x\"\n[upstreams.a]\ntransport = \"library\"\n\
               path = \"missing\"\n";
    std::fs::write(folder.path().join("bad.toml"), bad).unwrap();
    let output = run(folder.path(), &["check", "--config", "bad.toml"]);
    assert_eq!(output.status.code(), Some(64));
    let said = text(&output.stderr);
    for part in [
        "bad.toml:2: server.listen",
        "bad.toml:3: server.lisen",
        "bad.toml:6: upstreams.a.path",
        "3 mistakes",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let output = run(folder.path(), &["serve", "-c", "bad.toml"]);
    assert_eq!(output.status.code(), Some(64), "it does not start either");
}

#[test]
fn check_reports_as_json_and_reads_the_libraries() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("lib")).unwrap();
    write("gateway.toml", "[upstreams.lib]\ntransport = \"library\"\npath = \"lib\"\n");
    write("lib/good.md", "---\nname: good\n---\nHello\n");
    let report = |arguments: &[&str]| {
        let output = run(folder.path(), arguments);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), report)
    };
    let (code, checked) = report(&["check", "--json"]);
    assert_eq!((code, &checked["valid"]), (Some(0), &json!(true)));
    assert_eq!(checked["libraries"], json!([{"upstream": "lib", "prompts": 1, "invalid": []}]));
    write("lib/bad.md", "---\nname: bad\nnmae: x\n---\nHello\n");
    let (code, checked) = report(&["check", "--json"]);
    assert_eq!(code, Some(1));
    let reason = checked["libraries"][0]["invalid"][0].as_str().unwrap();
    assert!(reason.starts_with("bad.md: ") && reason.contains("nmae"), "{reason}");
    let output = run(folder.path(), &["check"]);
    assert!(text(&output.stdout).contains("lib: left out: bad.md: "), "{output:?}");
    write("gateway.toml", "[server]\nlisen = \"x\"\n");
    let (code, checked) = report(&["check", "--json"]);
    assert_eq!(code, Some(64));
    assert_eq!(checked["valid"], false);
    assert_eq!(
        checked["mistakes"],
        json!([{"key": "server.lisen", "line": 2, "message": "unknown key; did you mean `listen`?"}])
    );
}

#[test]
fn variables_that_have_no_effect_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("gateway.toml"), "").unwrap();
    let output = std::process::Command::new(crate::support::process::BINARY)
        .arg("check")
        .current_dir(folder.path())
        .env("PROMPTGATE_SERVER_LISTEN", "127.0.0.1:1")
        .env("PROMPTGATE_SERVICE_HOST", "10.0.0.1")
        .output()
        .unwrap();
    let said = text(&output.stdout);
    assert!(said.contains("PROMPTGATE_SERVER_LISTEN has no effect"), "{said}");
    assert!(!said.contains("PROMPTGATE_SERVICE_HOST"), "{said}");
}

#[tokio::test]
async fn a_new_user_gets_from_init_to_the_first_prompt() {
    let folder = tempfile::tempdir().unwrap();
    assert!(run(folder.path(), &["init"]).status.success());
    let again = run(folder.path(), &["init"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("already exists"));
    assert!(text(&run(folder.path(), &["check"]).stdout).contains("is valid"));

    let (process, url) = serve(folder.path()).await;
    let list = run(folder.path(), &["list", "--url", &url]);
    assert!(text(&list.stdout).starts_with("library__explain-code  Explains a piece"), "{list:?}");
    let list = run(folder.path(), &["list", "--url", &url, "--json"]);
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list[0]["arguments"][0]["required"], true);

    let get = run(folder.path(), &["get", "library__explain-code", "code=a = b", "--url", &url]);
    assert!(text(&get.stdout).contains("## user\nExplain this code. Start"), "{get:?}");
    assert!(text(&get.stdout).contains("a = b"));
    let get =
        run(folder.path(), &["get", "library__explain-code", "code=x", "--json", "--url", &url]);
    let result: Value = serde_json::from_slice(&get.stdout).unwrap();
    assert_eq!(result["messages"][0]["role"], "user");
    let missing = run(folder.path(), &["get", "library__explain-code", "--url", &url]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("`code` is missing"), "{missing:?}");

    process.stop().await;
    let gone = run(folder.path(), &["list", "--url", &url]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("promptgate serve"), "{gone:?}");
}

#[tokio::test]
async fn dialing_reports_each_upstream_and_the_prompts_that_are_left_out() {
    let upstream = crate::support::Upstream::modern(|asked| {
        let prompts = json!([{"name": "a"}, {"name": ""}, {"name": "b", "title": 7}]);
        (asked.method() == "prompts/list").then(|| asked.list(&prompts))
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let dead = "[upstreams.dead]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n";
    std::fs::write(folder.path().join("gateway.toml"), upstream.table("up") + dead).unwrap();
    let dial = async |arguments: &'static [&'static str]| {
        let folder = folder.path().to_owned();
        tokio::task::spawn_blocking(move || run(&folder, arguments)).await.unwrap()
    };
    let output = dial(&["check", "--dial"]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    let headings: Vec<_> = said.lines().next().unwrap().split_whitespace().collect();
    let expected =
        ["UPSTREAM", "TRANSPORT", "ERA", "REVISION", "NOTIFIES", "PAGES", "PROMPTS", "LISTED"];
    assert_eq!(headings, expected);
    let row = said.lines().find(|line| line.starts_with("up ")).unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells, ["up", "http", "modern", "2026-07-28", "no", "1", "3", "1"], "{said}");
    for part in ["dead: not reachable", "the name is empty", "`title` of prompt \"b\""] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let output = dial(&["check", "--dial", "--json"]).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["upstreams"][0]["error"]["reason"], "upstream_unavailable");
    assert_eq!(report["leftOut"].as_array().unwrap().len(), 2);
}

#[test]
fn dialing_says_why_a_child_ended_and_which_upstream_has_no_prompts() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let toml = "[upstreams.broken]\ntransport = \"stdio\"\n\
        command = [\"sh\", \"-c\", \"echo one >&2; echo 'ModuleNotFoundError: x' >&2; exit 3\"]\n\
        [upstreams.empty]\ntransport = \"library\"\npath = \"empty\"\n";
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let output = run(folder.path(), &["check", "--dial"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    for part in [
        "broken: exited with code 3: ModuleNotFoundError: x\n    | one\n    | ModuleNotFoundError: x",
        "empty: works, but its list of prompts is empty",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let output = run(folder.path(), &["check", "--dial", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [broken, empty] = report["upstreams"].as_array().unwrap().as_slice() else { panic!() };
    assert_eq!(broken["error"]["message"], "exited with code 3: ModuleNotFoundError: x");
    assert_eq!(broken["stderr"], json!(["one", "ModuleNotFoundError: x"]));
    assert_eq!(empty["note"], "works, but its list of prompts is empty");
}
