//! Documents for users must be true: the shipped files work, and the documentation describes the
//! code.

use std::path::Path;

use config::{Config, Settings};
use domain::protocol::server_request::ClientCapabilities;
use serde_json::json;

use crate::support::process::BINARY;
use crate::support::{Gateway, eventually};

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[tokio::test]
async fn the_shipped_configuration_serves_what_the_readme_promises() {
    // The configuration is run without fixed ports and folders.
    let shipped = read("gateway.toml")
        .replace("listen = \"127.0.0.1:8080\"", "")
        .replace("# listen = \"127.0.0.1:9877\"", "listen = \"\"")
        .replace("path = \"audit\"", "path = \"\"");
    let gateway = Gateway::start(&shipped).await;
    let client = gateway.client();
    let (names, _) = client.names().await;
    assert!(names.len() >= 8, "{names:?}");
    let owners: std::collections::BTreeSet<_> =
        names.iter().map(|n| n.split("__").next()).collect();
    assert_eq!(owners.len(), 2);
    for (id, _, failure) in gateway.summary().await {
        assert_eq!(failure, None, "{id}");
    }
    let list = client.ask("prompts/list", json!({})).await;
    let mut kinds = std::collections::BTreeSet::new();
    for prompt in list["prompts"].as_array().unwrap() {
        assert!(prompt["description"].is_string(), "{prompt}");
        let arguments = prompt["arguments"].as_array().cloned().unwrap_or_default();
        let filled: serde_json::Map<_, _> = arguments
            .iter()
            .map(|a| (a["name"].as_str().unwrap().to_owned(), "x".into()))
            .collect();
        let params = json!({"name": prompt["name"], "arguments": filled});
        let result = client.ask("prompts/get", params).await;
        for message in result["messages"].as_array().unwrap() {
            kinds.insert(message["content"]["type"].as_str().unwrap().to_owned());
            kinds.insert(message["role"].as_str().unwrap().to_owned());
        }
    }
    let expected = ["assistant", "image", "resource", "text", "user"];
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), expected);
    eventually(
        async || {
            let params = json!({"ref": {"type": "ref/prompt", "name": "library__review-code"},
            "argument": {"name": "focus", "value": "sec"}});
            client.ask("completion/complete", params).await["completion"]["values"].clone()
        },
        |values| *values == json!(["security"]),
    )
    .await;
}

/// The TOML blocks of a document.
pub fn toml_blocks(text: &str) -> Vec<String> {
    let blocks = text.split("```toml\n").skip(1);
    blocks.filter_map(|block| block.split("```").next()).map(str::to_owned).collect()
}

#[test]
fn the_examples_of_the_reference_are_valid_together() {
    let mut blocks = toml_blocks(&read("docs/configuration.md"));
    assert!(blocks.len() >= 8, "the blocks were found");
    // Subjects need a file of certificates: a test of their own.
    blocks.retain(|block| !block.contains("[[auth.mtls]]"));
    let env = ["REMOTE_TOKEN", "ADMIN_TOKEN"].map(|name| (name.to_owned(), "t".to_owned()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let parse =
        |text: &str| Config::parse("docs", text, root, &env).unwrap_or_else(|e| panic!("{e}"));
    let documented = parse(&blocks.concat());
    assert!(documented.upstreams.len() >= 4);
    for upstream in &documented.upstreams {
        let bare = "[upstreams.a]\ntransport = \"library\"\npath = \"examples/library\"\n";
        let capabilities = match upstream.transport.name() {
            "http" => ClientCapabilities::FORM,
            _ => ClientCapabilities::NONE,
        };
        let expected =
            Settings { server_requests: capabilities, ..parse(bare).upstreams[0].settings.clone() };
        assert_eq!(upstream.settings, expected, "{}", upstream.id);
    }
}

#[test]
fn every_configuration_in_the_readme_is_valid() {
    let blocks = toml_blocks(&read("README.md"));
    assert!(!blocks.is_empty());
    let env = [("GITHUB_TOKEN".to_owned(), "t".to_owned())];
    for block in blocks {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        Config::parse("README", &block, root, &env).unwrap_or_else(|e| panic!("{e}\n{block}"));
    }
}

#[test]
fn the_rules_of_the_documentation_are_valid() {
    let text = read("docs/access.md");
    let upstream = |id: &str| {
        format!("[upstreams.{id}]\ntransport = \"library\"\npath = \"examples/library\"\n")
    };
    let folder = tempfile::tempdir().unwrap();
    let policies = text.split("```cedar\n").nth(1).unwrap().split("```").next().unwrap();
    std::fs::write(folder.path().join("policies.cedar"), policies).unwrap();
    let schema = text.split("```\nentity").nth(1).unwrap().split("```").next().unwrap();
    assert!(access::SCHEMA.ends_with(schema), "the schema is the one that is used");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut counted = 0;
    for block in toml_blocks(&text) {
        let absolute = folder.path().join("policies.cedar");
        let block = block.replace("policies.cedar", absolute.to_str().unwrap());
        let toml = upstream("library") + &upstream("wiki") + &block;
        let config = Config::parse("docs", &toml, root, &[]);
        let config = config.unwrap_or_else(|e| panic!("{e}\n{block}"));
        counted += config.access.unwrap().rules.policy_count();
    }
    assert_eq!(counted, 5);
}

#[test]
fn every_reason_of_an_error_is_documented() {
    let respond =
        read("crates/front/src/downstream/error_message.rs") + &read("crates/domain/src/fault.rs");
    let reasons: Vec<_> = respond
        .lines()
        .filter_map(|line| line.split_once("=> \"")?.1.split_once('"'))
        .map(|(reason, _)| reason)
        .filter(|r| r.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        .collect();
    assert!(reasons.len() > 30, "{reasons:?}");
    let documented = read("docs/errors.md");
    for reason in reasons {
        assert!(documented.contains(&format!("`{reason}`")), "{reason} is not in docs/errors.md");
    }
}

#[test]
fn the_examples_for_containers_lack_nothing_but_their_secrets() {
    let compose = read("examples/compose/config/gateway.toml");
    let replicas = read("examples/replicas/gateway.toml");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for text in [compose, replicas] {
        // Where the containers have the prompts is not here.
        let text = text.replace("/prompts/library", "examples/library");
        let mistakes = Config::parse("example", &text, root, &[]).unwrap_err().to_string();
        let secrets = [
            "cannot read /run/secrets/",
            "is required beyond loopback",
            "is not set. Set it",
            // They are in the environment, or in files that are not here.
            "needs server.seal_key",
            "is required with cluster.username",
        ];
        for mistake in mistakes.lines() {
            assert!(secrets.iter().any(|missing| mistake.contains(missing)), "{mistake}");
        }
        assert!(mistakes.lines().count() >= 3, "{mistakes}");
    }
}

/// A metric's name without what Prometheus adds for units and kinds.
fn bare(name: &str) -> &str {
    let endings = ["_bucket", "_sum", "_count", "_total", "_seconds", "_bytes"];
    let shorter = endings.iter().find_map(|ending| name.strip_suffix(ending));
    shorter.map_or(name, bare)
}

#[test]
fn dashboards_alerts_and_the_manual_speak_of_metrics_that_there_are() {
    let sources = ["metrics.rs", "counters.rs", "prometheus.rs", "prompts.rs"]
        .map(|file| format!("crates/telemetry/src/{file}"));
    let sources = sources.iter().map(String::as_str).chain(["src/app/observe.rs"]);
    let sources = sources.map(read).collect::<Vec<_>>().concat();
    let literals = sources.split('"').skip(1).step_by(2).filter(|text| text.contains('.'));
    let known: std::collections::BTreeSet<_> =
        literals.map(|name| bare(&name.replace('.', "_")).to_owned()).collect();
    assert!(known.len() > 25, "{known:?}");
    let mut looked_at = 0;
    for path in [
        "examples/monitoring/dashboard.json",
        "examples/monitoring/alerts.yaml",
        "docs/operating.md",
        "docs/scaling.md",
    ] {
        let text = read(path);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let is_metric = |word: &&str| {
            let starts =
                ["promptgate_", "mcp_server_", "mcp_client_", "process_memory", "process_open"];
            // Labels, and names that are cut in the text.
            let labels = [
                "promptgate_upstream",
                "promptgate_limit",
                "promptgate_message",
                "promptgate_outcome",
                "promptgate_task",
                "promptgate_how",
                "mcp_server_",
            ];
            starts.iter().any(|start| word.starts_with(start)) && !labels.contains(word)
        };
        for word in words.filter(is_metric) {
            looked_at += 1;
            assert!(known.contains(bare(word)), "{path}: {word}");
        }
    }
    assert!(looked_at > 80, "{looked_at}");

    // The other way round: the table has each metric and label, by its name or by its end after
    // the beginning of the first name of a row.
    let manual = read("docs/operating.md");
    let (_, table) = manual.split_once("### Metrics").unwrap();
    let (table, _) = table.split_once("### Traces").unwrap();
    let is_in = |row: &str, name: &str| {
        let names: Vec<_> = row.split('`').skip(1).step_by(2).map(bare).collect();
        names.iter().any(|own| match own.strip_prefix('_') {
            None => *own == name,
            Some(_) => name.strip_suffix(own).is_some_and(|start| names[0].starts_with(start)),
        })
    };
    let ours = known
        .iter()
        .filter(|name| ["promptgate_", "process_"].iter().any(|start| name.starts_with(start)));
    let unnamed: Vec<_> = ours.filter(|name| !table.lines().any(|row| is_in(row, name))).collect();
    assert!(unnamed.is_empty(), "no row in docs/operating.md: {unnamed:?}");
}

/// The first block of this language in docs/authors.md.
fn block_for_authors<'a>(manual: &'a str, language: &str) -> &'a str {
    let opening = format!("```{language}\n");
    manual.split(&opening).nth(1).unwrap().split("\n```\n").next().unwrap()
}

#[tokio::test]
async fn the_prompt_in_the_manual_for_authors_works_as_pasted() {
    let manual = read("docs/authors.md");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("pasted.md"), block_for_authors(&manual, "markdown"))
        .unwrap();
    let toml = format!("[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n", folder.path());
    let gateway = Gateway::start(&toml).await;
    let params = json!({"name": "lib__review-code", "arguments": {"code": "let x"}});
    let messages = gateway.client().ask("prompts/get", params).await["messages"].take();
    assert!(messages[0]["content"]["text"].as_str().unwrap().contains("let x"), "{messages}");
    assert_eq!(messages[1]["role"], "assistant");
}

#[test]
fn the_commands_in_the_manual_for_authors_work_without_a_gateway() {
    let manual = read("docs/authors.md");
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    for created in ["prompts", ".git/hooks"] {
        std::fs::create_dir_all(folder.path().join(created)).unwrap();
    }
    write("prompts/review-code.md", block_for_authors(&manual, "markdown"));
    write("change.diff", "+ let y = 2;");
    let path = std::env::var("PATH").unwrap();
    let binaries = Path::new(BINARY).parent().unwrap();
    let shell = |commands: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-euc", commands]).current_dir(folder.path());
        let output = shell.env("PATH", format!("{}:{path}", binaries.display())).output().unwrap();
        assert!(output.status.success(), "{commands}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let blocks = manual.split("```sh\n").skip(1).filter_map(|block| block.split("```").next());
    let said: Vec<_> = blocks.map(shell).collect();
    assert_eq!(said.len(), 4, "{said:?}");
    assert_eq!(said[0], "1 prompt, 0 skills, 0 mistakes\n");
    assert!(said[1].contains("with a focus on security:\n\nlet x = 1;\n"), "{}", said[1]);
    assert!(said[1].contains("+ let y = 2;\n\n## assistant\n"), "{}", said[1]);
    assert!(said[2].starts_with("## user\nReview this change:\n\nx\n"), "{}", said[2]);
    write("prompts/labels.toml", block_for_authors(&manual, "toml"));
    assert_eq!(shell("sh .git/hooks/pre-commit"), "1 prompt, 0 skills, 0 mistakes\n");
}

#[test]
fn each_mistake_in_the_manual_for_authors_is_a_message_of_the_library() {
    let files = ["source", "template", "render", "scan", "embed", "reader", "yaml_mistake"];
    let sources = files.map(|file| read(&format!("crates/library/src/{file}.rs"))).concat();
    let manual = read("docs/authors.md");
    let rows = manual.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let messages: Vec<_> = rows.map(|(message, _)| message).collect();
    assert!(messages.len() >= 15, "{messages:?}");
    for message in messages {
        assert!(sources.contains(message), "{message}");
    }
}
