//! A thousand skills: what is known of them is answered from memory.

use serde_json::{Value, json};

use super::{file, reads, skill, upstream};
use crate::support::{Gateway, eventually};

const SKILLS: usize = 1_000;
const FILES: usize = 20;
const TEXT: &str = "---\nname: s\ndescription: d\n---\n";

#[tokio::test]
async fn lists_entries_and_folders_of_a_thousand_skills_cost_no_upstream_call() {
    let names: Vec<String> = (1..FILES).map(|n| format!("files/{n}.md")).collect();
    let files: Vec<(&str, &str)> = std::iter::once("SKILL.md")
        .chain(names.iter().map(String::as_str))
        .map(|name| (name, TEXT))
        .collect();
    let skills: Vec<Value> =
        (0..SKILLS).map(|n| skill(&format!("skill://s{n:04}"), &files)).collect();
    let many = upstream(json!(skills), |asked| file(asked, TEXT)).await;
    let gateway = Gateway::start(&many.patient_table("up")).await;
    let client = gateway.client();
    let known = async || client.modern("skills/list", json!({})).await.json();
    eventually(known, |reply| reply.get("result").is_some()).await;
    let list = async || {
        let (mut uris, mut params) = (Vec::new(), json!({}));
        loop {
            let mut page = client.ask("skills/list", params).await;
            for entry in page["skills"].as_array().unwrap() {
                assert_eq!(entry["resources"].as_array().unwrap().len(), FILES);
                uris.push(entry["uri"].as_str().unwrap().to_owned());
            }
            match page["nextCursor"].take() {
                Value::Null => return uris,
                cursor => params = json!({"cursor": cursor}),
            }
        }
    };
    let all = list().await;
    assert!(all.len() == SKILLS && all.is_sorted());
    let walked = many.methods();
    assert_eq!(walked.iter().filter(|method| *method == "skills/list").count(), 1);
    for _ in 0..3 {
        assert_eq!(list().await, all);
    }
    let last = all.last().unwrap();
    let folder = "skill://up/s0999/files";
    client.ask("skills/get", json!({"uri": last})).await;
    let children = client.ask("resources/directory/read", json!({"uri": folder})).await;
    assert_eq!(children["resources"].as_array().unwrap().len(), FILES - 1);
    assert_eq!(many.methods(), walked, "nothing of that is asked for");
    client.ask("resources/read", json!({"uri": last})).await;
    assert_eq!(reads(&many), 1);
}
