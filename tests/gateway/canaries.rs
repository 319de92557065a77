//! Secrets are searched in all that the real binary writes and says.

use std::fs::{self, File};

use serde_json::json;

use super::audit::KEY;
use crate::support::gateway::api_key;
use crate::support::process::run;
use crate::support::{Process, Upstream};

#[tokio::test]
async fn a10_d7_k5_no_secret_shows_in_logs_records_answers_or_at_upstreams() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let refusing = Upstream::start(|_| {
        let said = b"canary-upstream said: your key canary-bearer is bad".to_vec();
        crate::support::Scripted::Http(401, vec![], said)
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let toml = format!(
        "[telemetry]\nlog = \"promptgate=trace,info\"\n\
         [audit]\nkey = {{ value = \"{KEY}\" }}\n{}{}credential = {{ bearer = {{ env = \"CANARY\" }} }}\n\
         headers = {{ X-Team = {{ value = \"canary-header\" }} }}\n{}credential = {{ header = \"X-Key\", value = {{ env = \"CANARY\" }} }}\n\
         {}credential = {{ oauth = {{ client_id = \"g\", client_secret = {{ value = \"canary-oauth\" }}, token_url = \"http://127.0.0.1:1/t\" }} }}\n",
        api_key("ci", "pg_canary_key"),
        upstream.table("up"),
        refusing.table("no"),
        refusing.table("oauth"),
    );
    let config = folder.path().join("gateway.toml");
    fs::write(&config, toml.replace("env = \"CANARY\"", "value = \"canary-bearer\"")).unwrap();
    let stderr = File::create(folder.path().join("stderr")).unwrap();
    let process = Process::serve_with(folder.path(), stderr.into()).await;
    let mut answers = String::new();
    let keys = ["pg_canary_key", "pg_canary_wrong", "ey.canary.token"];
    for key in keys {
        let client = process.client().with("Authorization", &format!("Bearer {key}"));
        for (method, params) in [
            ("prompts/list", json!({})),
            ("prompts/get", json!({"name": "up__p", "arguments": {"who": "canary-argument"}})),
            ("prompts/get", json!({"name": "no__p", "arguments": {"who": "canary-argument"}})),
            ("prompts/get", json!({"name": "oauth__p"})),
            (
                "completion/complete",
                json!({"ref": {"type": "ref/prompt", "name": "up__p"},
                "argument": {"name": "who", "value": "canary-typed"}}),
            ),
        ] {
            let reply = client.modern(method, params).await;
            answers.push_str(&format!(
                "{:?} {}\n",
                reply.headers,
                String::from_utf8_lossy(&reply.body)
            ));
        }
        let session = client.with("Mcp-Session-Id", "canary-session").post(&json!(1)).await;
        answers.push_str(&String::from_utf8_lossy(&session.body));
    }
    let seen = format!("{:?}", upstream.received());
    process.stop().await;

    // An argument that returns to its caller, or reaches the upstream of its call, is no leak.
    let echoed = r#"{\"who\":\"canary-argument\"}"#;
    assert!(answers.contains(echoed));
    let answers = answers.replace(echoed, "");
    assert!(!answers.contains("canary"), "{answers}");
    assert!(!seen.contains("canary_key") && !seen.contains("canary-session"), "{seen}");
    assert!(seen.contains("canary-bearer") && seen.contains("canary-header"), "they are sent");
    let mut written = fs::read_to_string(folder.path().join("stderr")).unwrap();
    assert!(written.lines().count() > 10, "{written}");
    for entry in fs::read_dir(folder.path().join("audit")).unwrap() {
        written.push_str(&String::from_utf8_lossy(&fs::read(entry.unwrap().path()).unwrap()));
    }
    for arguments in
        [&["check"][..], &["check", "--dial"], &["audit", "verify"], &["explain", "ci", "up__p"]]
    {
        let output = run(folder.path(), arguments);
        written.push_str(&String::from_utf8_lossy(&output.stdout));
        written.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    assert!(written.contains("\"event\":\"completed\""), "calls are on record");
    let found: Vec<_> = written.lines().filter(|line| line.contains("canary")).collect();
    assert!(found.is_empty(), "{found:#?}");
}
