//! The library: files in, prompts out, edits seen without a restart.

use std::fs;

use serde_json::json;
use tokio::time::timeout;

use crate::support::gateway::api_key;
use crate::support::process::{command, run};
use crate::support::{Gateway, PATIENCE, Process, eventually};

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
    fs::remove_file(folder.path().join("b.md")).unwrap();
    eventually(async || client.names().await.0, |seen| seen.is_empty()).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_folder_that_a_link_swaps_is_read_at_once_and_watched_from_then_on() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for name in ["rev1", "rev2"] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("a.md"), format!("---\nname: {name}\n---\nHi")).unwrap();
    }
    std::os::unix::fs::symlink("rev1", at("prompts")).unwrap();
    let path = at("prompts");
    let toml = format!("[upstreams.lib]\ntransport = \"library\"\npath = \"{}\"\n", path.display());
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    assert_eq!(client.names().await.0, ["lib__rev1"]);
    std::os::unix::fs::symlink("rev2", at("next")).unwrap();
    fs::rename(at("next"), &path).unwrap();
    eventually(async || client.names().await.0, |seen| *seen == ["lib__rev2"]).await;
    fs::write(at("rev2/a.md"), "---\nname: edited\n---\nHi").unwrap();
    eventually(async || client.names().await.0, |seen| *seen == ["lib__edited"]).await;
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

#[tokio::test]
async fn a_file_with_a_mistake_stays_served_as_it_was_and_status_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let valid = "---\nname: explain\ndescription: d\narguments: [code]\n---\nSay {{ code }}";
    fs::create_dir(folder.path().join("prompts")).unwrap();
    write("prompts/explain.md", valid);
    write(
        "gateway.toml",
        "[listing]\ndebounce = \"1ms\"\n[upstreams.lib]\ntransport = \"library\"\npath = \"prompts\"\n",
    );
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let run = async |arguments: &[&str]| {
        let command = command(folder.path(), arguments);
        let output = tokio::process::Command::from(command).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let status = async || run(&["status"]).await;
    write("prompts/explain.md", &valid.replace("code }}", "cod }}"));
    let said = eventually(status, |said| said.contains("lib: ")).await;
    let line = said.lines().find(|line| line.starts_with("lib: ")).unwrap();
    assert!(line.contains("prompts/explain.md:6:8: "), "{said}");
    assert!(line.ends_with("; the text of before is served"), "{said}");
    assert!(!said.contains("not listed"), "{said}");
    assert!(run(&["get", "lib__explain", "code=this"]).await.contains("Say this"));
    // A copy is how an author begins a new prompt.
    write("prompts/explain.md", valid);
    write("prompts/copy.md", valid);
    let said = eventually(status, |said| said.contains("copy.md")).await;
    assert!(said.contains("explain.md, too, which is served"), "{said}");
    assert!(run(&["get", "lib__explain", "code=this"]).await.contains("Say this"));
    for path in ["/overview", "/upstreams/lib"] {
        let page = String::from_utf8(admin.send("GET", path, &[], b"").await.body).unwrap();
        assert!(page.contains("prompts/explain.md"), "{path}: {page}");
    }
    let catalog = admin.send("GET", "/api/v1/catalog", &[], b"").await.json();
    let left_out = &catalog["leftOut"][0];
    assert_eq!((&left_out["name"], &left_out["by"]), (&json!("explain"), &json!("stale")));
    let row = admin.send("GET", "/api/v1/upstreams", &[], b"").await.json();
    let row = &row["upstreams"][0];
    assert_eq!((&row["listed"], &row["prompts"]), (&json!(1), &json!(1)), "it counts as served");
    fs::remove_file(folder.path().join("prompts/copy.md")).unwrap();
    eventually(status, |said| !said.contains("lib: ")).await;
    process.stop().await;
}

#[tokio::test]
async fn a_get_of_an_invalid_prompt_says_why_to_callers_who_may_use_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.md"), "---\nname: a\n---\n{{ cod }}").unwrap();
    fs::write(folder.path().join("b.md"), "---\nname: b\n---\nB").unwrap();
    let rule =
        "[[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"one\"]\nprompts = [\"a\"]\n";
    for prefix in ["", "prefix = \"\"\n"] {
        let toml = api_key("ada", "ada")
            + "groups = [\"one\"]\n"
            + &api_key("bob", "bob")
            + rule
            + &format!("[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n", folder.path())
            + prefix;
        let gateway = Gateway::start(&toml).await;
        let (name, unknown) = if prefix.is_empty() { ("lib__a", "lib__z") } else { ("a", "z") };
        let error = async |key: &str, name: &str| {
            let client = gateway.client().with("X-API-Key", key);
            let reply = client.modern("prompts/get", json!({"name": name})).await.json();
            reply["error"].clone()
        };
        let said = error("ada", name).await;
        assert_eq!(said["code"], -32602, "{said}");
        let message = said["message"].as_str().unwrap();
        assert!(message.contains(": a.md:4:4: "), "{said}");
        assert!(!message.contains(&*folder.path().to_string_lossy()), "{said}");
        assert_eq!(error("bob", name).await, error("bob", unknown).await, "it has no right");
        gateway.drain().await;
    }
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
