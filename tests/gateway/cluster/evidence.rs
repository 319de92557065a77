//! Usage and audit logs, asked at one replica: the answer covers all.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::process::command;
use crate::support::replicas::{Replica, Replicas, Store, environment};
use crate::support::{Upstream, eventually};

/// Runs a command beside a replica; its standard output and standard error.
async fn run(replica: &Replica, store: &Store, arguments: &[&str]) -> (String, String) {
    let mut command = tokio::process::Command::from(command(&replica.folder, arguments));
    let output = command.envs(environment(&store.url(), "me")).output().await.unwrap();
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
    let (report, error) = run(one, &store, &usage).await;
    assert_eq!((uses(&report), error.as_str()), (6, ""), "{report}");
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
    let asked = async || run(one, &store, &usage).await;
    // Both, before it counts as gone.
    let ((report, error), usage_page) = tokio::join!(asked(), page("/usage"));
    assert!(error.contains("not answered: replica-2: no answer in time"), "{error}");
    assert_eq!(uses(&report), 3, "{report}");
    assert!(
        report.contains("\"notAnswered\": [\n    \"replica-2: no answer in time\""),
        "{report}"
    );
    assert!(usage_page.contains("Not answered: replica-2"), "{usage_page}");
    three.process.signal(Signal::CONT);
    eventually(asked, |(report, error)| error.is_empty() && uses(report) == 6).await;
}
