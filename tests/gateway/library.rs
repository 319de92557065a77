//! The library: files in, prompts out, edits seen without a restart.

use std::fs;

use serde_json::json;
use tokio::time::timeout;

use crate::support::process::run;
use crate::support::{Gateway, PATIENCE, eventually};

async fn library(files: &[(&str, &str)]) -> (Gateway, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let path = folder.path().display();
    let toml = format!("[upstreams.lib]\ntransport = \"library\"\npath = \"{path}\"\n");
    (Gateway::start(&toml).await, folder)
}

#[tokio::test]
async fn an_edit_is_visible_without_a_restart() {
    let (gateway, folder) = library(&[("a.md", "---\nname: a\n---\nfirst")]).await;
    let client = gateway.client();
    assert_eq!(client.names().await.0, ["lib__a"]);
    let text = async || {
        let result = client.ask("prompts/get", json!({"name": "lib__a"})).await;
        result["messages"][0]["content"]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(text().await, "first");
    fs::write(folder.path().join("a.md"), "---\nname: a\n---\nsecond").unwrap();
    eventually(async || text().await, |seen| *seen == "second").await;
    fs::write(folder.path().join("b.md"), "---\nname: b\n---\nB").unwrap();
    eventually(async || client.names().await.0, |seen| *seen == ["lib__a", "lib__b"]).await;
    fs::remove_file(folder.path().join("a.md")).unwrap();
    eventually(async || client.names().await.0, |seen| *seen == ["lib__b"]).await;
    fs::write(folder.path().join("b.md"), "---\nname: [\n---\n").unwrap();
    eventually(async || client.names().await.0, |seen| seen.is_empty()).await;
}

#[tokio::test]
async fn an_author_who_saves_again_and_again_waits_for_no_edit() {
    let (gateway, folder) = library(&[("a.md", "---\nname: a\n---\nHi")]).await;
    let client = gateway.client();
    let edits = async {
        // A list of a server that changed as often would be fetched every 16 seconds.
        for edit in 0..17 {
            let text = format!("---\nname: edit-{edit}\n---\nHi");
            fs::write(folder.path().join("a.md"), text).unwrap();
            let expected = format!("lib__edit-{edit}");
            eventually(async || client.names().await.0, |names| *names == [&*expected]).await;
        }
    };
    timeout(PATIENCE, edits).await.expect("the edits are seen one after another");
}

#[tokio::test]
async fn status_counts_skills_apart_from_prompts_and_each_file_that_is_not_served() {
    let skill = |name: &str| format!("---\nname: {name}\ndescription: d\n---\nDo it.");
    let [refunds, returns] = ["refunds", "returns"].map(skill);
    let (library, folder) = crate::skills::library(&[
        ("a.md", "---\nname: a\n---\nA"),
        ("refunds/SKILL.md", &refunds),
        ("returns/SKILL.md", &returns),
    ]);
    let toml = format!("[admin]\nlisten = \"127.0.0.1:0\"\n{library}");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let url = format!("http://{}", gateway.admin().addr);
    let status = async || {
        let path = folder.path().to_owned();
        let url = url.clone();
        let arguments = move || run(&path, &["status", "--url", &url]);
        let output = tokio::task::spawn_blocking(arguments).await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = status().await;
    assert!(shown.contains("lib       library") && !shown.contains("not listed"), "{shown}");
    for number in 0..12 {
        let file = folder.path().join(format!("broken-{number}.md"));
        fs::write(file, "---\nname: [\n---\n").unwrap();
    }
    let line =
        "lib: 12 of 13 prompts are not listed, 10 of 12 shown; `promptgate check` says which";
    eventually(status, |shown| shown.contains(line)).await;
}

#[cfg(unix)]
#[tokio::test]
async fn l4_the_swap_of_a_mounted_config_map_is_one_change() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let mount = |version: &str, names: &[&str]| {
        let data = folder.path().join(format!("..{version}"));
        fs::create_dir(&data).unwrap();
        for name in names {
            let text = format!("---\nname: {name}\n---\n{version} {{{{ embed(\"note.txt\") }}}}");
            fs::write(data.join(format!("{name}.md")), text).unwrap();
            let link = folder.path().join(format!("{name}.md"));
            let _ = symlink(format!("..data/{name}.md"), link);
        }
        fs::write(data.join("note.txt"), version).unwrap();
        let _ = symlink("..data/note.txt", folder.path().join("note.txt"));
        // As the kubelet does it: all files at once.
        symlink(format!("..{version}"), folder.path().join("..data_tmp")).unwrap();
        fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).unwrap();
    };
    mount("one", &["a", "b", "c"]);
    let toml = format!(
        "[listing]\ndebounce = \"1ms\"\n[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n",
        folder.path()
    );
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    assert_eq!(client.names().await.0, ["lib__a", "lib__b", "lib__c"]);
    let mut changes = client.listen().await;
    mount("two", &["a", "b", "c"]);
    changes.event().await.expect("a notification");
    for name in ["lib__a", "lib__b", "lib__c"] {
        let messages = client.ask("prompts/get", json!({"name": name})).await["messages"].take();
        assert_eq!(messages[0]["content"]["text"], "two", "{name}");
        assert_eq!(messages[1]["content"]["resource"]["text"], "two", "{name}");
    }
}

#[tokio::test]
async fn completions_come_from_choices() {
    let (gateway, _folder) = library(&[(
        "a.md",
        "---\nname: a\narguments:\n  - name: tone\n    choices: [warm, wry, dry]\n---\n{{ tone }}",
    )])
    .await;
    let params = json!({"ref": {"type": "ref/prompt", "name": "lib__a"},
        "argument": {"name": "tone", "value": "w"}});
    let result = gateway.client().ask("completion/complete", params).await;
    assert_eq!(
        result["completion"],
        json!({"values": ["warm", "wry"], "total": 2, "hasMore": false})
    );
}

#[tokio::test]
async fn a_template_that_runs_away_is_an_error_and_harms_nobody() {
    let spin = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
    let (gateway, _folder) = library(&[
        ("spin.md", &format!("---\nname: spin\n---\n{spin}x")),
        ("good.md", "---\nname: good\n---\nx"),
    ])
    .await;
    let error = gateway.client().ask_error("prompts/get", json!({"name": "lib__spin"})).await;
    assert_eq!(error["code"], -32603);
    gateway.client().ask("prompts/get", json!({"name": "lib__good"})).await;
}
