//! Dynamic skills: their files have no digests, and are served as the upstream has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::{discovered, file, listed, reads, refused, skill, uris};
use crate::approvals::{Folder, enforced};
use crate::support::upstream::Received;
use crate::support::{Gateway, Process, Upstream, eventually};

const OWN: &str = "skill://up/acme/live/SKILL.md";

/// An upstream whose one skill is dynamic. Its files have their own URIs as texts.
async fn live() -> Upstream {
    let mut entry = skill("skill://acme/live", &[]);
    entry["resources"] = "dynamic".into();
    Upstream::modern(move |asked: &Received| match asked.method() {
        "server/discover" => Some(discovered(asked)),
        "skills/list" => Some(listed(asked, &json!([entry]))),
        "resources/read" if asked.message["params"]["uri"] == "skill://acme/live/lie" => {
            Some(asked.result(json!({"resultType": "complete",
                "contents": [{"uri": "skill://acme/live/other", "text": "secret"}]})))
        }
        "resources/read" if asked.message["params"]["uri"] == "skill://acme/live/gone" => {
            Some(asked.error(-32602, "an own message"))
        }
        "resources/read" => Some(file(asked, asked.message["params"]["uri"].as_str().unwrap())),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn files_below_the_folder_of_a_dynamic_skill_are_read_at_its_upstream() {
    let up = live().await;
    let gateway = Gateway::start(&(up.table("up") + "expose_skills = [\"prompts\"]\n")).await;
    let client = gateway.client();
    let entry = client.ask("skills/get", json!({"uri": OWN})).await["skill"].take();
    assert_eq!((&entry["uri"], &entry["resources"]), (&json!(OWN), &json!("dynamic")));
    for file in ["SKILL.md", "a/b%20c.md"] {
        let uri = format!("skill://up/acme/live/{file}");
        let read = client.ask("resources/read", json!({"uri": uri})).await;
        let content = json!({"uri": uri, "mimeType": "text/markdown",
            "text": format!("skill://acme/live/{file}")});
        assert_eq!(read["contents"], json!([content]));
        let hints = (&read["ttlMs"], &read["cacheScope"]);
        assert_eq!(hints, (&json!(0), &json!("private")), "those of the upstream: {read}");
    }
    let before = reads(&up);
    for inside in
        ["", "/", "/..", "/../x", "/a/../../x", "//x", "/a%2Fb", "/%2e%2e/x", "/x?y", "/x/"]
    {
        let uri = ["skill://up/acme/live", inside].concat();
        let (reason, all) = refused(&client, "resources/read", &uri).await;
        assert!(reason == "unknown_resource" && all.contains("-32602"), "{uri}: {all}");
    }
    for folder in ["skill://up/acme/live", "skill://up/acme/live/a"] {
        let (reason, all) = refused(&client, "resources/directory/read", folder).await;
        assert!(reason == "unknown_resource" && all.contains("-32602"), "{all}");
    }
    assert_eq!(reads(&up), before);
    let (reason, all) = refused(&client, "resources/read", "skill://up/acme/live/lie").await;
    assert!(reason == "upstream_protocol_error" && !all.contains("secret"), "{all}");
    let (reason, all) = refused(&client, "resources/read", "skill://up/acme/live/gone").await;
    assert!(reason == "unknown_resource" && !all.contains("an own message"), "{all}");
    assert!(!client.names().await.0.contains(&"up__live".to_owned()), "it is no prompt");
}

#[tokio::test]
async fn a_snapshot_of_a_dynamic_skill_has_no_files_so_that_a_changed_one_is_withheld() {
    let is_changed = Arc::new(AtomicBool::new(false));
    let changed = is_changed.clone();
    let up = Upstream::modern(move |asked: &Received| match asked.method() {
        "server/discover" => Some(discovered(asked)),
        "skills/list" => {
            let mut entry = skill("skill://acme/live", &[]);
            entry["resources"] = "dynamic".into();
            if changed.load(Ordering::SeqCst) {
                entry["frontmatter"]["description"] = "other".into();
            }
            Some(asked.result(json!({"resultType": "complete", "skills": [entry]})))
        }
        "resources/read" => Some(file(asked, "live")),
        _ => None,
    })
    .await;
    let poll = up.table("up") + "poll = \"50ms\"\n";
    let folder = Folder::new(&(enforced("snapshot = true\n") + &poll));
    let (process, _admin) = Process::serve_admin(folder.path(), &[]).await;
    let said = folder.approvals(&["approve", OWN, "--yes", "--unseen", "--why", "live"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let client = process.client();
    let status = async || client.modern("skills/list", json!({})).await.status;
    eventually(status, |status| *status == 200).await;
    is_changed.store(true, Ordering::SeqCst);
    eventually(status, |status| *status == 404).await;
    let before = reads(&up);
    let read = client.modern("resources/read", json!({"uri": OWN})).await.json();
    assert!(read.get("error").is_some(), "{read}");
    assert_eq!(reads(&up), before);
    process.stop().await;
}

#[tokio::test]
async fn a_dynamic_skill_is_approved_unseen_and_withheld_until_then() {
    let up = live().await;
    let folder = Folder::new(&(enforced("") + &up.table("up")));
    let (process, _admin) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    let status = async || client.modern("skills/list", json!({})).await.status;
    assert_eq!(status().await, 404);
    let refused = folder.approvals(&["approve", OWN, "--yes", "--why", "no"]).await;
    assert!(refused.code == Some(1) && refused.stderr.contains("--unseen"), "{refused:?}");
    let said = folder.approvals(&["approve", OWN, "--yes", "--unseen", "--why", "live"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    eventually(status, |status| *status == 200).await;
    assert_eq!(uris(&client).await, [OWN]);
    let read = client.ask("resources/read", json!({"uri": OWN})).await;
    assert_eq!(read["contents"][0]["text"], "skill://acme/live/SKILL.md");
    let shown: Value = folder.approvals(&["status", "--json"]).await.json();
    let own = shown["prompts"].as_array().unwrap().iter().find(|own| own["name"] == OWN);
    assert_eq!(own.unwrap()["covers"], "definition", "{shown}");
    assert!(folder.lock().contains("acme/live"));
    process.stop().await;
}
