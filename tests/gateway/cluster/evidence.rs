//! Usage and audit logs, asked at one replica: the answer covers all.

use std::process::Output;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rollouts;
use crate::support::process::command;
use crate::support::replicas::{Replica, Replicas, Store, environment};
use crate::support::{Process, Upstream, eventually};

/// Runs a command beside a replica.
async fn try_run(replica: &Replica, store: &Store, arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::from(command(&replica.folder, arguments));
    command.env("PROMPTGATE_ADMIN_TOKEN", "t");
    command.envs(environment(&store.url(), "me")).output().await.unwrap()
}

/// The same; its standard output and standard error.
async fn run(replica: &Replica, store: &Store, arguments: &[&str]) -> (String, String) {
    let output = try_run(replica, store, arguments).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, error) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{arguments:?}: {error}");
    (out, error)
}

fn uses(report: &str) -> u64 {
    let report: Value = serde_json::from_str(report).unwrap();
    report["rows"].as_array().unwrap().iter().map(|row| row["uses"].as_u64().unwrap()).sum()
}

fn entries(found: &str) -> Vec<Value> {
    found.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn usage_and_audit_of_all_replicas_are_one_answer_and_silent_replicas_are_named() {
    let store = Store::start().await;
    let upstream = Upstream::with_prompts(&["p"]).await;
    let replicas = Replicas::start(&store.url(), &upstream.table("up")).await;
    let [one, two, three] = replicas.replicas.as_slice() else { panic!("three replicas") };
    for (replica, calls) in [(one, 1), (two, 2), (three, 3)] {
        let client = replica.client();
        for _ in 0..calls {
            let got = client.modern("prompts/get", json!({"name": "up__p"})).await.json();
            assert!(got["result"].is_object(), "{got}");
        }
    }

    let usage = ["usage", "--json", "--since", "1h"];
    let asked = async || run(one, &store, &usage).await;
    // Each replica opens its index a moment after its start.
    let (_, error) = eventually(asked, |(report, _)| uses(report) == 6).await;
    assert_eq!(error, "");
    let (alone, _) = run(one, &store, &[&usage[..], &["--replica", "replica-2"]].concat()).await;
    assert_eq!(uses(&alone), 3, "{alone}");
    let (own, _) = run(one, &store, &[&usage[..], &["--offline"]].concat()).await;
    assert_eq!(uses(&own), 1, "{own}");
    let (unused, _) = run(two, &store, &["usage", "--unused", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&unused).unwrap()["unused"], json!([]));

    let find = ["audit", "find", "--json", "--event", "call", "--prompt", "up__p"];
    let found = entries(&run(two, &store, &find).await.0);
    assert_eq!(found.len(), 6, "{found:?}");
    let of = |name: &str| found.iter().filter(|entry| entry["replica"] == name).count();
    assert_eq!([of("replica-0"), of("replica-1"), of("replica-2")], [1, 2, 3]);
    assert!(found.is_sorted_by_key(|entry| entry["time"].as_str().unwrap().to_owned()));
    let few = entries(&run(two, &store, &[&find[..], &["--limit", "4"]].concat()).await.0);
    assert_eq!(few, found[2..], "the newest");

    // The console, and one record of another replica.
    let page = async |path: &str| {
        let reply = one.admin.send("GET", path, &[], b"").await;
        String::from_utf8(reply.body.clone()).unwrap()
    };
    let log = page("/audit?event=call").await;
    assert!(log.contains("replica-1") && log.contains("replica-2"), "{log}");
    let seq = found.iter().find(|entry| entry["replica"] == "replica-2").unwrap()["seq"].clone();
    let record = page(&format!("/audit/{seq}?replica=replica-2")).await;
    assert!(record.contains("up__p"), "{record}");

    // A replica that hangs is named, and the others answer.
    three.process.signal(Signal::STOP);
    // Both, before it counts as gone.
    let ((report, error), usage_page, overview) =
        tokio::join!(asked(), page("/usage"), page("/overview"));
    assert!(error.contains("not answered: replica-2: no answer in time"), "{error}");
    assert_eq!(uses(&report), 3, "{report}");
    assert!(
        report.contains("\"notAnswered\": [\n    \"replica-2: no answer in time\""),
        "{report}"
    );
    assert!(usage_page.contains("Not answered: replica-2"), "{usage_page}");
    assert!(overview.contains("<b class=\"\">3</b> uses in the last hour"), "{overview}");
    assert!(overview.contains("Not answered: replica-2"), "{overview}");
    three.process.signal(Signal::CONT);
    eventually(asked, |(report, error)| error.is_empty() && uses(report) == 6).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn what_people_changed_at_one_replica_is_found_at_another_by_the_name_of_the_prompt() {
    let store = Store::start().await;
    let upstream = Upstream::with_prompts(&["p"]).await;
    let library = tempfile::tempdir().unwrap();
    let versions = library.path().join("refund/versions");
    std::fs::create_dir_all(&versions).unwrap();
    for number in 1..=2 {
        let text = format!("---\nname: refund\ndescription: d\n---\nversion {number}");
        std::fs::write(versions.join(format!("{number}.md")), text).unwrap();
    }
    std::fs::write(library.path().join("labels.toml"), "[refund]\nproduction = 1\n").unwrap();
    let toml = rollouts::ADMIN.to_owned()
        + &format!("[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n", library.path())
        + &upstream.table("up")
        + "approval = \"warn\"\n";
    let replicas = Replicas::start(&store.url(), &toml).await;
    let [one, two, _] = replicas.replicas.as_slice() else { panic!("three replicas") };
    run(one, &store, &["approvals", "approve", "up__p", "--yes"]).await;
    run(one, &store, &["labels", "set", "lib__refund", "production", "2"]).await;
    for (event, prompt, kind) in [
        ("decisions", "up__p", "prompt_approved"),
        ("labels", "lib__refund", "label_moved"),
        ("changes", "up__p", "prompt_approved"),
        ("changes", "lib__refund", "label_moved"),
    ] {
        let find = ["audit", "find", "--json", "--event", event, "--prompt", prompt];
        let found = async || entries(&run(two, &store, &find).await.0);
        let made = |entry: &Value| entry["event"] == kind && entry["replica"] == "replica-0";
        eventually(found, |found| found.iter().any(made)).await;
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn replicas_of_one_name_are_told_apart_and_asked_by_their_ids() {
    let store = Store::start().await;
    let upstream = Upstream::with_prompts(&["p"]).await;
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut replicas = Vec::new();
    for folder in &folders {
        let folder = folder.path().to_owned();
        std::fs::write(folder.join("gateway.toml"), upstream.table("up")).unwrap();
        let variables = environment(&store.url(), "twin");
        let variables: Vec<_> = variables.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let (process, admin) = Process::serve_admin(&folder, &variables).await;
        replicas.push(Replica { process, admin, folder });
    }
    let [one, two] = replicas.as_slice() else { panic!("two replicas") };
    let ids = async || -> Vec<(String, bool)> {
        let cluster = one.cluster().await;
        let rows = cluster["replicas"].as_array().unwrap().iter();
        let id = |row: &Value| (row["id"].as_str().unwrap().to_owned(), row["self"] == true);
        rows.map(id).collect()
    };
    let ids = eventually(ids, |ids| ids.len() == 2).await;
    let id = |is_own: bool| ids.iter().find(|(_, own)| *own == is_own).unwrap().0.clone();
    let (own, other) = (id(true), id(false));
    for (replica, calls) in [(one, 1), (two, 2)] {
        for _ in 0..calls {
            replica.client().ask("prompts/get", json!({"name": "up__p"})).await;
        }
    }

    let usage = ["usage", "--json", "--since", "1h", "--replica"];
    let ambiguous = try_run(one, &store, &[&usage[..], &["twin"]].concat()).await;
    let error = String::from_utf8(ambiguous.stderr).unwrap();
    assert!(!ambiguous.status.success());
    assert!(error.contains("twin: several replicas begin so: twin/"), "{error}");
    assert!(error.contains(&own) && error.contains(&other), "{error}");
    for (name, wanted) in [(&other, 2), (&own, 1), (&format!("twin/{other}"), 2)] {
        let arguments = [&usage[..], &[name]].concat();
        let asked = async || run(one, &store, &arguments).await;
        eventually(asked, |(report, _)| uses(report) == wanted).await;
    }
    let find = ["audit", "find", "--json", "--event", "call", "--prompt", "up__p"];
    let found = entries(&run(one, &store, &find).await.0);
    let of = |id: &str| found.iter().filter(|own| own["replica"] == format!("twin/{id}")).count();
    assert_eq!([of(&own), of(&other)], [1, 2], "{found:?}");
    let record = one.admin.send("GET", "/audit/1", &[], b"").await;
    assert_eq!(record.status, 200, "its own, where none is named");
}
