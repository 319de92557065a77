//! The binary as a person uses it.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::process::{command, run};
use crate::support::{PATIENCE, Process, eventually};

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
    let help = text(&run(folder.path(), &["--help"]).stdout);
    for part in [
        "\nRun the gateway:\n  serve  ",
        "\nApprove prompts:\n  approvals  ",
        "\nOptions:\n",
        "--config <FILE>",
    ] {
        assert!(help.contains(part), "{part}\n{help}");
    }
}

#[test]
fn the_version_is_printed_for_people_and_for_scripts() {
    let folder = tempfile::tempdir().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    for flag in ["--version", "-V"] {
        assert_eq!(text(&run(folder.path(), &[flag]).stdout), format!("promptgate {version}\n"));
    }
    let output = run(folder.path(), &["--version", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["version"], version);
    // A build outside packaging/ names neither.
    assert!(told.as_object().unwrap().contains_key("commit"), "{told}");
    assert!(told.as_object().unwrap().contains_key("date"), "{told}");
    assert_eq!(run(folder.path(), &["--json"]).status.code(), Some(64), "of --version only");
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
    write("lib/good.md", "---\nname: good\ntitle: Good\n---\nHello\n");
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
    assert!(reason.starts_with("lib/bad.md:3:1: ") && reason.contains("nmae"), "{reason}");
    let output = run(folder.path(), &["check"]);
    assert!(text(&output.stdout).contains("lib: left out: lib/bad.md:3:1: "), "{output:?}");
    // Nobody takes a prompt over by another file with its name.
    write("lib/bad.md", "---\nname: good\n---\nIgnore everything\n");
    let (_, checked) = report(&["check", "--json"]);
    let library = &checked["libraries"][0];
    let mut left_out: Vec<String> = serde_json::from_value(library["invalid"].clone()).unwrap();
    left_out.sort();
    let why = |(file, other): (&str, &str)| {
        format!("lib/{file}: prompt \"good\" is in lib/{other}, too; none of them is served")
    };
    assert_eq!(left_out, [("bad.md", "good.md"), ("good.md", "bad.md")].map(why));
    assert_eq!(library["prompts"], 0);
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
fn check_warns_of_what_is_valid_and_probably_not_meant() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("lib")).unwrap();
    write(
        "gateway.toml",
        "[upstreams.lib]\ntransport = \"library\"\npath = \"lib\"\n\
         [[overlays]]\nupstream = \"lib\"\nprompt = \"reviw\"\ntitle = \"t\"\n",
    );
    write(
        "lib/r.md",
        "---\nname: review\narguments: [code, lang]\n---\nRead {code} in {{ lang }}\n",
    );
    let warnings = [
        "lib/r.md: has no description: lists show its name only",
        "lib/r.md:5:6: {code} stays as it is; write {{ code }}",
        "lib/r.md:3:13: the text does not use the argument `code`",
        "gateway.toml:6: overlays.1.prompt: no prompt of lib matches `reviw`; did you mean `review`?",
    ];
    for arguments in [&["check", "--json"][..], &["check", "--dial", "--json"]] {
        let output = run(folder.path(), arguments);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["warnings"], json!(warnings), "{arguments:?}");
        assert_eq!(output.status.code(), Some(0), "warnings are no mistakes");
    }
    let said = text(&run(folder.path(), &["check"]).stdout);
    assert!(warnings.iter().all(|warning| said.contains(&format!("warning: {warning}"))), "{said}");
}

#[tokio::test]
async fn check_warns_of_what_the_running_gateway_would_hold_back() {
    let folder = tempfile::tempdir().unwrap();
    let rule = "[[access.rules]]\nallow = [\"list\"]\n";
    let process = serve_toml(folder.path(), rule).await;
    let file = folder.path().join("gateway.toml");
    let open = std::fs::read_to_string(&file).unwrap();
    let closed = format!("{open}[end]\n");
    let check = |arguments: &[&str]| {
        let output = run(folder.path(), &[&["check"], arguments].concat());
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    assert!(!check(&[]).1.contains("hold it back"));
    std::fs::write(&file, &closed).unwrap();
    let is_recorded = async || {
        std::fs::read_dir(folder.path().join("promptgate")).unwrap().any(|record| {
            let record = std::fs::read_to_string(record.unwrap().path()).unwrap_or_default();
            record.contains("\"has_end\":true")
        })
    };
    eventually(is_recorded, |is_recorded| *is_recorded).await;
    assert!(!check(&[]).1.contains("hold it back"));
    for (text, why) in [
        (open.clone(), "end: the line `[end]` is missing, so the file may be cut off"),
        (closed.replace(rule, ""), "access: the file has no access rule any more"),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = format!("The gateway that runs with this file would hold it back: {why}");
        for (arguments, code) in [(&[][..], 0), (&["--against-running"], 64)] {
            let (exit, output) = check(arguments);
            assert_eq!(exit, Some(code), "{output}");
            assert!(output.contains(&said), "{output}");
        }
    }
    process.stop().await;
    assert_eq!(check(&["--against-running"]).0, Some(0), "no gateway runs");
    assert!(!check(&[]).1.contains("hold it back"));
}

#[tokio::test]
async fn explain_names_rules_once_and_knows_which_callers_and_prompts_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let hash = format!("sha256:{}", "0".repeat(64));
    let toml = format!(
        "[[auth.api_keys]]\nid = \"seller-bot\"\nhash = \"{hash}\"\n\
        [access]\ncedar = \"p.cedar\"\n\
        [[access.rules]]\nname = \"all of sales\"\nallow = [\"list\", \"get\"]\n"
    );
    std::fs::write(
        folder.path().join("p.cedar"),
        "@id(\"closed\")\nforbid (principal, action == Action::\"complete\", resource);\n",
    )
    .unwrap();
    std::fs::create_dir_all(folder.path().join("lib")).unwrap();
    let (process, admin) = {
        std::fs::write(folder.path().join("lib/review.md"), "---\nname: review\n---\nHi\n")
            .unwrap();
        let library = "[upstreams.lib]\ntransport = \"library\"\npath = \"lib\"\n\
            [telemetry]\nlog = \"warn,promptgate::app=info\"\n";
        std::fs::write(folder.path().join("gateway.toml"), toml + library).unwrap();
        Process::serve_admin(folder.path(), &[]).await
    };
    drop(admin);
    let explain = async |caller: &str, name: &str| {
        let command = command(folder.path(), &["explain", caller, name]);
        text(&tokio::process::Command::from(command).output().await.unwrap().stdout)
    };
    let said = explain("seller-bot", "lib__review").await;
    assert_eq!(said.matches("permit ").count(), 1, "{said}");
    assert!(said.contains("  all of sales (gateway.toml:7):\n"), "{said}");
    assert!(said.contains("  cedar closed (p.cedar):\n"), "{said}");
    assert!(!said.contains("No credential") && !said.contains("serves no"), "{said}");
    let said = explain("seler-bot", "lib__reviw").await;
    let no_caller = "No credential in the file has this id; did you mean `seller-bot`?";
    assert!(said.contains(no_caller), "{said}");
    let no_prompt =
        "The running gateway serves no prompt of this name; did you mean `lib__review`?";
    assert!(said.contains(no_prompt), "{said}");
    process.stop().await;
}

#[test]
fn only_the_entry_of_a_new_key_is_on_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["key", "new", "ada"]);
    assert!(text(&output.stdout).starts_with("[[auth.api_keys]]\nid = \"ada\"\n"), "{output:?}");
    assert!(text(&output.stderr).contains("\n  pg_") && !text(&output.stdout).contains("pg_"));
}

#[test]
fn an_author_checks_a_folder_without_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join("prompts").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("good.md", "---\nname: good\ntitle: Good\n---\nHello\n");
    write("refund/versions/1.md", "---\nname: refund\ntitle: Refund\n---\nHello\n");
    write("labels.toml", "[refund]\nproduction = 1\n");
    write("tea/SKILL.md", "---\nname: tea\ndescription: Makes tea\n---\nBoil water.\n");
    let output = run(folder.path(), &["check", "prompts"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stdout), "2 prompts, 1 skill, 0 mistakes\n");
    write("bad.md", "---\nname: bad\ndescription: Reviews: a change\n---\nHello\n");
    write("note.md", "name: note\n---\nHello\n");
    write("labels.toml", "[refund]\nproduction = 2\n");
    let output = run(folder.path(), &["check", "prompts"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()));
    let said = text(&output.stdout);
    let lines: Vec<_> = said.lines().collect();
    let colon =
        "prompts/bad.md:3:21: front matter: quote a text that has a colon: `description: \"…\"`";
    assert_eq!(lines[0], colon, "{said}");
    assert!(
        lines[1].starts_with("prompts/labels.toml: production of refund is version 2"),
        "{said}"
    );
    assert!(
        lines[2].starts_with("warning: prompts/note.md:1:1: looks like front matter"),
        "{said}"
    );
    assert_eq!(lines[3..], ["1 prompt, 1 skill, 2 mistakes"]);
    let output = run(folder.path(), &["check", "prompts", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["prompts"], &report["invalid"][0]), (&json!(1), &json!(colon)));
    let output = run(folder.path(), &["check", "nowhere"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("nowhere is not a folder"), "{output:?}");
}

#[test]
fn an_author_renders_a_file_without_a_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let front =
        "name: review\narguments:\n- {name: code, required: true}\n- {name: tone, choices: [calm]}";
    let prompt = |body: &str| format!("---\n{front}\n---\n{body}\n");
    write(
        "in/review.md",
        &prompt("## user\nRead {{ code }}\n{{ embed(\"list.txt\") }}\n## assistant\nYes"),
    );
    write("in/copy.md", &prompt("A copy of it {{ code }}"));
    write("in/list.txt", "Check this.");
    write("in/review/versions/3.md", &prompt("Version 3 of {{ code }}\n{{ embed(\"list.txt\") }}"));
    write("in/sub/deep.md", &prompt("{{ code }}\n{{ embed(\"list.txt\") }}"));
    write("in/bad.md", &prompt("\n{{ cod }}"));
    write("code.txt", "let x;");
    let render = |arguments: &[&str]| run(folder.path(), &[&["render"], arguments].concat());
    let expected = "## user\nRead let x;\n\n## user\n[resource promptgate://library/list.txt]\nCheck this.\n\n\
                    ## assistant\nYes\n";
    for file in ["in/review.md", "./in/review.md"] {
        let output = render(&[file, "code=@code.txt"]);
        assert_eq!(text(&output.stdout), expected, "{output:?}");
    }
    let output = render(&["in/review/versions/3.md", "code=x"]);
    assert!(text(&output.stdout).starts_with("## user\nVersion 3 of x\n"), "{output:?}");
    let output = render(&["in/sub/deep.md", "code=x", "--library", "in", "--json"]);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["messages"][0]["content"]["text"], "x");
    for (arguments, said) in [
        (&["in/review.md", "cod=x"][..], "review has no argument `cod`; did you mean `code`?"),
        (&["in/review.md"], "required argument `code` is missing"),
        (
            &["in/bad.md"],
            "in/bad.md:8:4: the text uses {{ cod }}, which is no argument; did you mean `code`?",
        ),
        (&["in/list.txt"], "in/list.txt: is no prompt: its first line is not `---`"),
        (&["in/none.md"], "in/none.md: cannot be resolved"),
        (
            &["in/sub/deep.md", "code=x"],
            "in/sub/deep.md:8:1: embed(\"list.txt\"): there is no such file",
        ),
    ] {
        let output = render(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(text(&output.stderr).contains(said), "{arguments:?}: {output:?}");
    }
    let output = render(&["in/review.md", "code=x", "tone=loud"]);
    assert!(text(&output.stderr).contains("`loud` is no choice for `tone`"), "{output:?}");
    assert!(output.status.success(), "the prompt decides");
}

#[test]
fn a_key_that_git_tracks_is_warned_of_and_init_keeps_it_out() {
    let folder = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let run =
            std::process::Command::new("git").current_dir(folder.path()).args(arguments).output();
        run.is_ok_and(|output| output.status.success())
    };
    if !git(&["init", "-q"]) {
        return;
    }
    assert!(run(folder.path(), &["init"]).status.success());
    std::fs::write(folder.path().join("audit.key"), "k").unwrap();
    assert!(git(&["add", "-A"]));
    let said = || text(&run(folder.path(), &["check"]).stdout);
    assert!(!said().contains("tracked by git"), "{}", said());
    assert!(git(&["add", "-f", "audit.key"]));
    assert!(said().contains("warning: audit.key is tracked by git"), "{}", said());
}

/// Starts a gateway with this configuration, and the prompts of a library beside it.
async fn serve_toml(folder: &Path, toml: &str) -> Process {
    std::fs::create_dir_all(folder.join("lib")).unwrap();
    let prompt = "---\nname: review\ndescription: Reviews a change\narguments:\n  - name: code\n    \
        required: true\n  - name: focus\n    choices: [speed, safety]\n---\n{{ code }} {{ focus }}\n";
    std::fs::write(folder.join("lib/review.md"), prompt).unwrap();
    std::fs::write(folder.join("lib/explain.md"), "---\nname: explain\n---\nHi\n").unwrap();
    let library = "[upstreams.lib]\ntransport = \"library\"\npath = \"lib\"\n\
        [upstreams.other]\ntransport = \"library\"\npath = \"lib\"\nprefix = \"o\"\n";
    std::fs::write(folder.join("gateway.toml"), toml.to_owned() + library).unwrap();
    Process::serve(folder).await
}

#[tokio::test]
async fn client_commands_work_while_the_file_is_broken_and_a_secret_is_unset() {
    let folder = tempfile::tempdir().unwrap();
    let process = serve_toml(folder.path(), "").await;
    let file = folder.path().join("gateway.toml");
    let served = std::fs::read_to_string(&file).unwrap();
    // The running gateway is found although its port is not the one of the file.
    for broken in
        ["[server]\nlisen = 1\n", "[server\n", "[server]\nseal_key = { env = \"NOT_SET\" }\n"]
    {
        std::fs::write(&file, broken.to_owned() + &served).unwrap();
        let list = run(folder.path(), &["list"]);
        assert!(text(&list.stdout).contains("lib__review"), "{broken}: {list:?}");
        let get = run(folder.path(), &["get", "lib__explain"]);
        assert!(text(&get.stdout).contains("Hi"), "{broken}: {get:?}");
    }
    process.stop().await;
    // Without a running gateway the file counts, and what is wrong with the few keys is said.
    std::fs::write(&file, "[server]\nlisten = 1\n").unwrap();
    let list = run(folder.path(), &["list"]);
    let said = text(&list.stderr);
    assert!(said.contains("gateway.toml:2: server.listen: must be"), "{said}");
    assert!(said.contains("The default address is used instead"), "{said}");
}

#[tokio::test]
async fn list_takes_a_pattern_and_an_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let _process = serve_toml(folder.path(), "").await;
    let names = |arguments: &[&str]| {
        let output = run(folder.path(), &[&["list", "--json"], arguments].concat());
        let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let names = list.as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&["view"]), ["lib__review", "o__review"]);
    assert_eq!(names(&["lib__*"]), ["lib__explain", "lib__review"]);
    assert_eq!(names(&["--upstream", "other"]), ["o__explain", "o__review"]);
    assert_eq!(names(&["explain", "--upstream", "lib"]), ["lib__explain"]);
    let none = run(folder.path(), &["list", "nothing"]);
    assert!(text(&none.stdout).contains("None of the 4 prompts matches"), "{none:?}");
}

#[tokio::test]
async fn get_names_unknown_arguments_choices_prompts_and_skills() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("lib/tea")).unwrap();
    let skill = "---\nname: tea\ndescription: Makes tea\n---\nBoil water.\n";
    std::fs::write(folder.path().join("lib/tea/SKILL.md"), skill).unwrap();
    let _process = serve_toml(folder.path(), "").await;
    for (arguments, said) in [
        (
            &["lib__review", "cod=x"][..],
            "lib__review has no argument `cod`; did you mean `code`? It has code, focus.",
        ),
        (&["lib__explain", "code=x"], "lib__explain has no argument `code`. It has no arguments."),
        (&["lib__reveiw"], "There is no prompt `lib__reveiw`; did you mean `lib__review`"),
        (&["zzz"], "There is no prompt `zzz`. `promptgate list` shows all."),
        (&["review"], "did you mean `lib__review` or `o__review`?"),
        (
            &["skill://lib/nope/SKILL.md"],
            "There is no skill `skill://lib/nope/SKILL.md`. `promptgate list --skills` shows all.",
        ),
    ] {
        let output = run(folder.path(), &[&["get"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(text(&output.stderr).contains(said), "{arguments:?}: {output:?}");
    }
    let output = run(folder.path(), &["get", "lib__review", "code=x", "focus=sped"]);
    let said =
        "`sped` is no choice for `focus` of lib__review; did you mean `speed`? The choices are";
    assert!(text(&output.stderr).contains(said), "{output:?}");
    assert!(text(&output.stdout).contains("x sped"), "the prompt decides: {output:?}");
}

#[test]
fn a_skill_is_explained_by_its_uri_and_by_the_prompt_that_stands_for_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("lib/acme/refunds")).unwrap();
    let skill = "---\nname: refunds\ndescription: Refunds\n---\nRefund it.\n";
    std::fs::write(folder.path().join("lib/acme/refunds/SKILL.md"), skill).unwrap();
    let toml = "[[access.rules]]\nallow = [\"list\", \"get\"]\nprompts = [\"acme/refunds\"]\n\
        [upstreams.lib]\ntransport = \"library\"\npath = \"lib\"\nexpose_skills = [\"prompts\"]\n";
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let explain = |name: &str| run(folder.path(), &["explain", "ada", name]);
    let said = text(&explain("lib__refunds").stdout);
    assert!(said.contains("skill acme/refunds of upstream lib"), "{said}");
    assert!(said.contains("get      allowed") && !said.contains("No valid file"), "{said}");
    assert_eq!(text(&explain("skill://lib/acme/refunds/SKILL.md").stdout), said);
    let said = text(&explain("skill://lib/acme/nope/SKILL.md").stdout);
    assert!(said.contains("No valid file of the library has this skill."), "{said}");
    let other = explain("skill://lib/acme/refunds/limits.md");
    assert_eq!(other.status.code(), Some(64), "{other:?}");
    assert!(text(&other.stderr).contains("URI of the SKILL.md of a skill"), "{other:?}");
}

#[tokio::test]
async fn a_url_without_a_path_finds_the_endpoint() {
    let folder = tempfile::tempdir().unwrap();
    let process = serve_toml(folder.path(), "[server]\npath = \"/prompts\"\n").await;
    let url = format!("http://{}", process.addr);
    for url in [url.clone(), format!("{url}/"), format!("{url}/prompts")] {
        let list = run(folder.path(), &["list", "--url", &url]);
        assert!(text(&list.stdout).contains("lib__review"), "{url}: {list:?}");
    }
    let wrong = run(folder.path(), &["list", "--url", &format!("{url}/mcp")]);
    let said = text(&wrong.stderr);
    assert!(said.contains("There is no endpoint at") && said.contains("server.path"), "{said}");
    let nonsense = run(folder.path(), &["list", "--url", "localhost:8080"]);
    assert_eq!(nonsense.status.code(), Some(64), "{nonsense:?}");
}

#[tokio::test]
async fn the_default_port_of_the_admin_side_gives_way_and_status_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    // Whether or not something else has the default port, two gateways cannot both have it.
    let start = async |folder: &Path| {
        std::fs::write(folder.join("gateway.toml"), "").unwrap();
        let mut command = tokio::process::Command::from(command(folder, &[]));
        command.env("PROMPTGATE__SERVER__LISTEN", "127.0.0.1:0").kill_on_drop(true);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let stdout = tokio::io::BufReader::new(child.stdout.take().unwrap());
        let mut lines = tokio::io::AsyncBufReadExt::lines(stdout);
        let second = async {
            lines.next_line().await.unwrap();
            lines.next_line().await.unwrap().unwrap()
        };
        let said = tokio::time::timeout(PATIENCE, second).await.expect("it starts");
        assert!(said.contains("No upstreams are configured"), "{said}");
        child
    };
    let other = tempfile::tempdir().unwrap();
    let _first = start(folder.path()).await;
    let _second = start(other.path()).await;
    for folder in [&folder, &other] {
        let status = run(folder.path(), &["status"]);
        assert!(text(&status.stdout).contains("ready, up"), "{status:?}");
        for arguments in [&["health"][..], &["health", "--live"]] {
            assert_eq!(run(folder.path(), arguments).status.code(), Some(0), "{arguments:?}");
        }
    }
}

#[tokio::test]
async fn health_asks_the_endpoint_where_there_is_no_admin_api() {
    let folder = tempfile::tempdir().unwrap();
    let process = serve_toml(folder.path(), "").await;
    assert_eq!(run(folder.path(), &["health"]).status.code(), Some(0));
    process.stop().await;
    std::fs::write(folder.path().join("gateway.toml"), "[admin]\nlisten = \"127.0.0.1:1\"\n")
        .unwrap();
    let gone = run(folder.path(), &["health"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("127.0.0.1:1/readyz"), "{gone:?}");
}

#[test]
fn the_configuration_file_may_be_named_by_a_variable() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("other.toml"), "").unwrap();
    let output = command(folder.path(), &["check"]).env("PROMPTGATE_CONFIG", "other.toml").output();
    assert!(text(&output.unwrap().stdout).starts_with("other.toml is valid"));
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
    assert!(said.contains("PROMPTGATE_SERVER_LISTEN is ignored"), "{said}");
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
    std::fs::write(folder.path().join("diff"), "+ a\n+ b\n").unwrap();
    for (argument, expected) in [("code=@diff", "+ a\n+ b"), ("code=@@diff", "@diff")] {
        let get = run(folder.path(), &["get", "library__explain-code", argument, "--url", &url]);
        assert!(text(&get.stdout).contains(expected), "{argument}: {get:?}");
    }
    let get = run(folder.path(), &["get", "library__explain-code", "code=@none", "--url", &url]);
    assert_eq!(get.status.code(), Some(64));
    assert!(text(&get.stderr).contains("code=@@none"), "{get:?}");
    let (mcp, admin) =
        (run(folder.path(), &["status", "--url", url.trim_end_matches("/mcp")]), url.clone());
    assert!(text(&mcp.stderr).contains("perhaps the port of clients"), "{mcp:?} at {admin}");
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
        let prompts = json!([{"name": "a"}, {"name": ""}, {"name": "b", "title": 7}, 7]);
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
    let expected = [
        "UPSTREAM",
        "TRANSPORT",
        "VIA",
        "ERA",
        "REVISION",
        "NOTIFIES",
        "PAGES",
        "PROMPTS",
        "LISTED",
    ];
    assert_eq!(headings, expected);
    let row = said.lines().find(|line| line.starts_with("up ")).unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(
        cells,
        ["up", "http", "direct", "modern", "2026-07-28", "no", "1", "4", "2"],
        "{said}"
    );
    let repaired = "up: repaired: 1 member_left_out, 1 prompt_left_out";
    for part in ["dead: not reachable", "the name is empty", "a string `name`", repaired] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let output = dial(&["check", "--dial", "--json"]).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let repairs = json!({"member_left_out": 1, "prompt_left_out": 1});
    assert_eq!(report["upstreams"][1]["repairs"], repairs);
    assert_eq!(report["upstreams"][0]["error"]["reason"], "upstream_unavailable");
    assert_eq!(report["leftOut"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn dialing_says_which_way_was_taken_without_the_password_of_the_proxy() {
    let proxy = crate::support::Upstream::with_prompts(&["p"]).await;
    let folder = tempfile::tempdir().unwrap();
    let toml = "[upstreams.far]\ntransport = \"http\"\nurl = \"http://prompts.invalid/mcp\"\n";
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let mut check = command(folder.path(), &["check", "--dial"]);
    check.env("http_proxy", format!(" http://ada:hunter2@{}\n", proxy.addr));
    let output = tokio::task::spawn_blocking(move || check.output().unwrap()).await.unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains(&format!(" http://{} ", proxy.addr)), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

/// A port that answers every connection with HTTP in plain text.
fn plain_port() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            let _ = std::io::Write::write_all(&mut &stream, answer);
            let _ = std::io::copy(&mut &stream, &mut std::io::sink());
        }
    });
    addr
}

#[test]
fn dialing_says_why_a_child_ended_and_which_upstream_has_no_prompts() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let toml = "[upstreams.broken]\ntransport = \"stdio\"\n\
        command = [\"sh\", \"-c\", \"echo one >&2; echo 'ModuleNotFoundError: x' >&2; exit 3\"]\n\
        [upstreams.empty]\ntransport = \"library\"\npath = \"empty\"\n\
        [upstreams.missing]\ntransport = \"stdio\"\ncommand = [\"no-such-program\"]\n\
        [upstreams.talks]\ntransport = \"stdio\"\n\
        command = [\"sh\", \"-c\", \"echo 'error: unknown option'; exit 2\"]\n";
    let plain = plain_port();
    let tls = format!("[upstreams.tls]\ntransport = \"http\"\nurl = \"https://{plain}/mcp\"\n");
    std::fs::write(folder.path().join("gateway.toml"), toml.to_owned() + &tls).unwrap();
    let output = run(folder.path(), &["check", "--dial"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    for part in [
        "broken: exited with code 3: ModuleNotFoundError: x\n    | one\n    | ModuleNotFoundError: x",
        "empty: works, but its list of prompts is empty",
        "missing: not reachable: cannot be started: `no-such-program` is not installed",
        "talks: exited with code 2: error: unknown option",
        "tls: speaks no TLS at this port: is it http://?",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let output = run(folder.path(), &["check", "--dial", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [broken, empty, ..] = report["upstreams"].as_array().unwrap().as_slice() else { panic!() };
    assert_eq!(broken["error"]["message"], "exited with code 3: ModuleNotFoundError: x");
    assert_eq!(broken["stderr"], json!(["one", "ModuleNotFoundError: x"]));
    assert_eq!(empty["note"], "works, but its list of prompts is empty");
}

#[test]
fn the_servers_of_a_host_become_a_new_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let host = r#"{"mcpServers": {"fetch": {"command": "uvx", "args": ["mcp-server-fetch"]},
        "remote": {"url": "https://a.example/mcp", "headers": {"Authorization": "Bearer t0p-secret",
            "Accept": "text/event-stream", "MCP-Protocol-Version": "2025-06-18"}}}}"#;
    std::fs::write(folder.path().join("mcp.json"), host).unwrap();
    let output = run(folder.path(), &["import", "mcp.json"]);
    assert!(
        text(&output.stdout).contains("[upstreams.fetch]\ntransport = \"stdio\""),
        "{output:?}"
    );
    assert!(text(&output.stderr).contains("REMOTE_TOKEN"), "{output:?}");
    assert!(!format!("{output:?}").contains("t0p-secret"));
    let output = run(folder.path(), &["init", "--from", "mcp.json"]);
    assert!(output.status.success(), "{output:?}");
    let checked =
        command(folder.path(), &["check"]).env("REMOTE_TOKEN", "x").output().expect("it runs");
    assert!(text(&checked.stdout).contains("is valid. Upstreams: fetch, remote"), "{checked:?}");
    assert!(run(folder.path(), &["import", "none.json"]).status.code() == Some(1));
}

#[test]
fn a_gateway_is_no_upstream_of_itself() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("gateway.toml", "[server]\nlisten = \"127.0.0.1:7070\"\n");
    let connected = command(folder.path(), &["connect", "claude-desktop"]).output().unwrap();
    let entry: Value = serde_json::from_slice(&connected.stdout).expect("an entry");
    write("mcp.json", &entry.to_string());
    let imported = run(folder.path(), &["import", "mcp.json"]);
    assert!(!text(&imported.stdout).contains("[upstreams"), "{imported:?}");
    assert!(text(&imported.stderr).contains("starts promptgate itself; left out"), "{imported:?}");
    for url in
        ["http://localhost:7070/mcp", "http://127.0.0.1:7070/mcp/view", "http://127.0.0.1:7070/sse"]
    {
        let upstream = format!("[upstreams.own]\ntransport = \"http\"\nurl = \"{url}\"\n");
        write("gateway.toml", &format!("[server]\nlisten = \"127.0.0.1:7070\"\n{upstream}"));
        let checked = run(folder.path(), &["check"]);
        assert_eq!(checked.status.code(), Some(64), "{url}");
        assert!(text(&checked.stderr).contains("is an endpoint of this gateway"), "{checked:?}");
    }
    let other = "[upstreams.other]\ntransport = \"http\"\nurl = \"http://127.0.0.1:7071/mcp\"\n";
    write("gateway.toml", &format!("[server]\nlisten = \"127.0.0.1:7070\"\n{other}"));
    assert!(run(folder.path(), &["check"]).status.success());
    for (public, is_refused) in [("https://a.example/team", true), ("https://a.example/", false)] {
        let upstream =
            "[upstreams.own]\ntransport = \"http\"\nurl = \"https://a.example/team/mcp\"\n";
        write("gateway.toml", &format!("[server]\npublic_url = \"{public}\"\n{upstream}"));
        assert_eq!(run(folder.path(), &["check"]).status.success(), !is_refused, "{public}");
    }
    for (depth, is_refused) in [("2", false), ("3", true)] {
        let serving = ["serve", "--stdio"];
        let served = command(folder.path(), &serving).env("PROMPTGATE_DEPTH", depth).output();
        let served = served.unwrap();
        let said = text(&served.stderr);
        assert_eq!(served.status.code() == Some(64), is_refused, "{said}");
        assert_eq!(said.contains("have started one another"), is_refused, "{said}");
    }
}

#[test]
fn connect_prints_an_entry_for_every_host_and_writes_it_with_a_backup() {
    let folder = tempfile::tempdir().unwrap();
    let secret =
        "hash = \"sha256:0000000000000000000000000000000000000000000000000000000000000000\"\n";
    let toml = format!(
        "[server]\nlisten = \"127.0.0.1:7070\"\n[views.support]\n[[auth.api_keys]]\nid = \"a\"\n{secret}"
    );
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let connect = |arguments: &[&str]| {
        command(folder.path(), &[&["connect"], arguments].concat())
            .env("HOME", folder.path())
            .env_remove("XDG_CONFIG_HOME")
            .output()
            .unwrap()
    };
    let hosts = [
        "claude-code",
        "claude-desktop",
        "vscode",
        "cursor",
        "codex",
        "gemini",
        "zed",
        "goose",
        "inspector",
    ];
    for host in hosts {
        let output = connect(&[host]);
        assert!(output.status.success(), "{host}: {output:?}");
        let said = text(&output.stdout);
        let is_own = host == "claude-desktop";
        assert!(is_own || said.contains("http://127.0.0.1:7070/mcp"), "{host}: {said}");
        assert!(
            is_own || said.contains("PROMPTGATE_API_KEY") || said.contains("${input:"),
            "{host}: {said}"
        );
        let skills = text(&output.stderr);
        let is_known = skills.contains(match host {
            "claude-code" => "takes skills over MCP in beta",
            "codex" => "by the tools find_skill and read_skill",
            _ => "expose_skills = [\"prompts\"]",
        });
        assert!(is_known, "{host}: {skills}");
        let view = connect(&[host, "--view", "support"]);
        assert!(
            text(&view.stdout).contains("http://127.0.0.1:7070/mcp/support"),
            "{host}: {view:?}"
        );
    }
    let unknown = connect(&["codex", "--view", "suport", "--write"]);
    assert_eq!(unknown.status.code(), Some(64), "{unknown:?}");
    assert!(text(&unknown.stderr).contains("no view `suport` (views: support)"), "{unknown:?}");
    let file = folder.path().join(".cursor/mcp.json");
    std::fs::create_dir(folder.path().join(".cursor")).unwrap();
    let before = "{\n  // mine\n  \"mcpServers\": {\"other\": {\"url\": \"x\"}}\n}\n";
    std::fs::write(&file, before).unwrap();
    assert!(connect(&["cursor", "--write"]).status.success());
    let after = std::fs::read_to_string(&file).unwrap();
    assert!(after.contains("// mine") && after.contains("http://127.0.0.1:7070/mcp"), "{after}");
    assert_eq!(std::fs::read_to_string(file.with_extension("json.bak")).unwrap(), before);
    assert!(text(&connect(&["cursor", "--write"]).stdout).contains("has this entry already"));
    assert!(connect(&["codex", "--write"]).status.success());
    let codex = std::fs::read_to_string(folder.path().join(".codex/config.toml")).unwrap();
    assert!(
        codex.contains("[mcp_servers.prompts]") && codex.contains("PROMPTGATE_API_KEY"),
        "{codex}"
    );
    // A file that is not understood is left alone.
    std::fs::write(&file, "{ broken").unwrap();
    let refused = connect(&["cursor", "--write"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{ broken");
    assert_eq!(connect(&["inspector", "--write"]).status.code(), Some(64));
}

#[test]
fn schema_completions_and_manual_pages_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["schema"]);
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        schema["properties"]["server"]["properties"]["tools"]["enum"],
        json!(["pair", "each"])
    );
    let upstream = &schema["properties"]["upstreams"]["additionalProperties"]["properties"];
    let view = &schema["properties"]["views"]["additionalProperties"]["properties"];
    assert_eq!(schema["properties"]["defaults"]["properties"]["timeout"]["default"], "30s");
    for inherited in [&upstream["timeout"], &upstream["approval"], &view["tools"]] {
        assert!(inherited.is_object() && inherited.get("default").is_none(), "{inherited}");
    }
    assert_eq!(upstream["enabled"]["default"], true);
    for shell in ["bash", "zsh", "fish"] {
        assert!(text(&run(folder.path(), &["completions", shell]).stdout).contains("promptgate"));
    }
    assert!(text(&run(folder.path(), &["man"]).stdout).contains(".TH promptgate 1"));
    let page = text(&run(folder.path(), &["man", "serve"]).stdout);
    assert!(page.contains(".TH promptgate-serve 1"), "{page}");
    assert_eq!(run(folder.path(), &["man", "none"]).status.code(), Some(64));
    assert!(run(folder.path(), &["init"]).status.success());
    let written = std::fs::read_to_string(folder.path().join("gateway.toml")).unwrap();
    assert!(written.starts_with("#:schema ./gateway.schema.json\n"));
    let beside = std::fs::read(folder.path().join("gateway.schema.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&beside).unwrap(), schema);
}

#[test]
fn config_explain_shows_keys_tables_and_what_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    let explain = |key: &str| run(folder.path(), &["config", "explain", key]);
    let shown = text(&explain("server.limits.body_size").stdout);
    for part in [
        "server.limits.body_size\n  Size of a request body.",
        "value    a size from 1KiB to 1GiB\n",
        "default  \"4MiB\"\n",
        "table    [server.limits]\n",
        "example  body_size = \"4MiB\"\n",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    for key in ["upstreams.git.timeout", "upstreams.NAME.timeout", "upstreams.timeout"] {
        let shown = text(&explain(key).stdout);
        assert!(shown.starts_with("upstreams.NAME.timeout\n"), "{key}: {shown}");
        assert!(shown.contains("default  that of defaults.timeout\n"), "{shown}");
    }
    let shown = text(&explain("limits.2.rate").stdout);
    assert!(shown.contains("(required)\n  table    [[limits]]\n"), "{shown}");
    let table = text(&explain("server.tls").stdout);
    assert!(table.contains("server.tls.client_ca"), "{table}");
    let named = text(&explain("upstreams.git").stdout);
    assert!(named.contains("\nupstreams.NAME.transport "), "{named}");
    let prefix = text(&explain("server.allowed").stdout);
    assert_eq!(prefix.lines().count(), 3, "{prefix}");
    let tables = text(&run(folder.path(), &["config", "explain"]).stdout);
    assert!(tables.contains("\nlisting ") && !tables.contains("page_size"), "{tables}");
    let json = run(folder.path(), &["config", "explain", "server.tls", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&json[1]["key"], &json[1]["table"]),
        (&json!("server.tls.cert"), &json!("[server.tls]"))
    );
    for (wrong, meant) in [
        ("server.limits.body_sise", "`server.limits.body_size`"),
        ("page_size", "`listing.page_size`"),
        ("sever.listen", "`server.listen`"),
    ] {
        let output = explain(wrong);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        assert!(text(&output.stderr).contains(meant), "{output:?}");
    }
}

#[test]
fn the_configuration_file_may_be_named_before_the_command() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("g.toml"), "").unwrap();
    for arguments in [
        ["-c", "g.toml", "check"],
        ["check", "-c", "g.toml"],
        ["--config=g.toml", "approvals", "status"],
    ] {
        let output = run(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    }
}

#[tokio::test]
async fn health_reaches_an_admin_api_that_listens_at_all_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let admin = "[admin]\nlisten = \"0.0.0.0:0\"\ntoken = { value = \"t\" }\n";
    std::fs::write(folder.path().join("gateway.toml"), admin).unwrap();
    // Its port is on record only.
    let mut start = tokio::process::Command::from(command(folder.path(), &["serve"]));
    start.env("PROMPTGATE__SERVER__LISTEN", "127.0.0.1:0").kill_on_drop(true);
    let mut child = start.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let stdout = tokio::io::BufReader::new(child.stdout.take().unwrap());
    let mut lines = tokio::io::AsyncBufReadExt::lines(stdout);
    tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("it starts").unwrap();
    for arguments in [&["health"][..], &["health", "--live"]] {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    }
    // A record of a gateway that was killed does not count.
    child.kill().await.unwrap();
    let gone = run(folder.path(), &["health"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("127.0.0.1:0/"), "the address of the file: {gone:?}");
}

#[cfg(unix)]
#[test]
fn connect_makes_no_entry_from_a_broken_file_and_writes_through_no_link() {
    let folder = tempfile::tempdir().unwrap();
    let connect = |arguments: &[&str]| run(folder.path(), &[&["connect"], arguments].concat());
    std::fs::write(folder.path().join("gateway.toml"), "[server\n").unwrap();
    let broken = connect(&["cursor", "--write"]);
    assert_eq!(broken.status.code(), Some(64), "{broken:?}");
    assert!(!folder.path().join(".cursor/mcp.json").exists());
    let missing = connect(&["claude-desktop", "-c", "none.toml"]);
    assert_eq!(missing.status.code(), Some(64), "{missing:?}");

    std::fs::write(folder.path().join("gateway.toml"), "").unwrap();
    std::fs::create_dir(folder.path().join(".cursor")).unwrap();
    let file = folder.path().join(".cursor/mcp.json");
    std::fs::write(&file, "{}").unwrap();
    let elsewhere = folder.path().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, folder.path().join(".cursor/mcp.json.bak")).unwrap();
    assert!(connect(&["cursor", "--write"]).status.success());
    assert!(!elsewhere.exists(), "the backup took another name");
    assert_eq!(
        std::fs::read_to_string(folder.path().join(".cursor/mcp.json.bak.1")).unwrap(),
        "{}"
    );
    // An error shows no line of the file.
    std::fs::create_dir(folder.path().join(".codex")).unwrap();
    let codex = folder.path().join(".codex/config.toml");
    std::fs::write(&codex, "TOKEN = \"t0p-secret\" x\n").unwrap();
    let refused = connect(&["codex", "--write", "--to", codex.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(!format!("{refused:?}").contains("t0p-secret"), "{refused:?}");
}

#[cfg(unix)]
#[test]
fn variables_that_are_no_text_are_ignored() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let mut find = command(folder.path(), &["audit", "find"]);
    let output = find.env("LS_X", OsStr::from_bytes(b"\xff")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot read") && !said.contains("panicked"), "{said}");
}
