//! Approvals of skills: only the bytes that somebody has approved leave, where that is enforced.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{REFUNDS, discovered, file, refused, skill, uris};
use crate::approval_review::commit;
use crate::approvals::{Folder, enforced, short_list};
use crate::support::{Client, Process, Received, Upstream, eventually, metrics};

const OWN: &str = "skill://crm/acme/refunds/SKILL.md";
const LIMITS: &str = "skill://crm/acme/refunds/limits.md";
const FOLDER: &str = "skill://crm/acme/refunds";

/// An upstream of two skills. One has files that can be changed, in the entry or only when they are
/// read.
struct Changeable {
    upstream: Upstream,
    offers: Arc<Mutex<Offer>>,
}

#[derive(Clone)]
struct Offer {
    limits: &'static str,
    /// The text that is read instead.
    lie: Option<&'static str>,
}

impl Changeable {
    async fn start() -> Self {
        let offers = Arc::new(Mutex::new(Offer { limits: "at most 100", lie: None }));
        let offered = offers.clone();
        let script = move |asked: &Received| {
            let offer = offered.lock().unwrap().clone();
            let files = [("SKILL.md", REFUNDS), ("limits.md", offer.limits)];
            match asked.method() {
                "server/discover" => Some(discovered(asked)),
                "prompts/list" => Some(short_list(asked, &json!([]))),
                "skills/list" => {
                    let skills = json!([
                        skill("skill://acme/refunds", &files),
                        skill("skill://acme/tea", &[("SKILL.md", REFUNDS)]),
                    ]);
                    Some(asked.result(json!({"resultType": "complete", "ttlMs": 20,
                        "cacheScope": "public", "skills": skills})))
                }
                "resources/read"
                    if asked.message["params"]["uri"] == "skill://acme/refunds/limits.md" =>
                {
                    Some(file(asked, offer.lie.unwrap_or(offer.limits)))
                }
                "resources/read" => Some(file(asked, REFUNDS)),
                _ => None,
            }
        };
        Self { upstream: Upstream::modern(script).await, offers }
    }

    fn offer(&self, change: impl FnOnce(&mut Offer)) {
        change(&mut self.offers.lock().unwrap());
    }

    fn folder(&self, more: &str) -> Folder {
        Folder::new(&(enforced(more) + &self.upstream.table("crm")))
    }
}

async fn decide(folder: &Folder, arguments: &[&str]) {
    let said = folder.approvals(&[arguments, &["--why", "reviewed"]].concat()).await;
    assert_eq!(said.code, Some(0), "{said:?}");
}

async fn approve(folder: &Folder) {
    decide(folder, &["approve", OWN, "--yes"]).await;
}

/// The text of the file, or the reason why there is none.
async fn limits(client: &Client) -> Result<String, String> {
    let reply = client.modern("resources/read", json!({"uri": LIMITS})).await.json();
    match reply["result"]["contents"][0]["text"].as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(reply["error"]["data"]["reason"].as_str().unwrap_or_default().to_owned()),
    }
}

/// Waits until a read of the file comes out so.
async fn reads(client: &Client, expected: Result<&str, &str>) {
    let outcome = async || limits(client).await;
    eventually(outcome, |read| read.as_deref().map_err(String::as_str) == expected).await.ok();
}

async fn lists(client: &Client, expected: &[&str]) {
    let listed = async || {
        let reply = client.modern("skills/list", json!({})).await.json();
        let skills = reply["result"]["skills"].as_array().cloned().unwrap_or_default();
        skills.iter().map(|own| own["uri"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    eventually(listed, |uris| uris == expected).await;
}

#[tokio::test]
async fn no_byte_of_a_skill_leaves_that_nobody_has_approved() {
    let crm = Changeable::start().await;
    let folder = crm.folder("");
    decide(&folder, &["approve", "skill://crm/acme/tea/SKILL.md", "--yes"]).await;
    let (process, _admin) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    lists(&client, &["skill://crm/acme/tea/SKILL.md"]).await;
    // A withheld skill is answered as one that does not exist.
    let answer = async |method: &str, uri: &str| {
        let mut error = client.ask_error(method, json!({"uri": uri})).await;
        error["data"]["correlationId"] = Value::Null;
        error.to_string().replace(uri, "URI")
    };
    for (method, uri) in [
        ("skills/get", OWN),
        ("resources/read", OWN),
        ("resources/read", LIMITS),
        ("resources/directory/read", FOLDER),
    ] {
        let unknown = answer(method, &uri.replace("refunds", "unknown")).await;
        assert_eq!(answer(method, uri).await, unknown, "{method} {uri}");
        assert!(unknown.contains("-32602"), "{unknown}");
    }
    let before = crm.upstream.methods().iter().filter(|own| *own == "resources/read").count();
    assert_eq!(before, 1, "the review has read the one file of the other skill");

    approve(&folder).await;
    reads(&client, Ok("at most 100")).await;
    assert_eq!(uris(&client).await.len(), 2);
    // Another file in the entry withholds the whole skill.
    crm.offer(|offer| offer.limits = "no limit at all");
    reads(&client, Err("unknown_resource")).await;
    lists(&client, &["skill://crm/acme/tea/SKILL.md"]).await;
    let (reason, _) = refused(&client, "resources/read", OWN).await;
    assert_eq!(reason, "unknown_resource", "also the files that are the same");
    let said = folder.approvals(&["check"]).await;
    assert_eq!(said.code, Some(1));
    assert!(
        said.stdout.contains("+no limit at all") && said.stdout.contains("-at most 100"),
        "{said:?}"
    );
    approve(&folder).await;
    reads(&client, Ok("no limit at all")).await;

    // Other bytes under the approved entry.
    crm.offer(|offer| offer.lie = Some("NO LIMIT AT ALL"));
    let (reason, answered) = refused(&client, "resources/read", LIMITS).await;
    assert!(reason == "upstream_protocol_error" && !answered.contains("NO LIMIT"), "{answered}");
    crm.offer(|offer| offer.lie = None);
    reads(&client, Ok("no limit at all")).await;

    decide(&folder, &["withdraw", OWN, "--yes"]).await;
    reads(&client, Err("unknown_resource")).await;
    lists(&client, &["skill://crm/acme/tea/SKILL.md"]).await;
    decide(&folder, &["rollback", OWN]).await;
    crm.offer(|offer| offer.limits = "at most 100");
    reads(&client, Ok("at most 100")).await;
    let record = folder.recorded("prompt_withdrawn").await;
    let said = ["kind", "prompt", "by"].map(|member| record[member].as_str().unwrap_or_default());
    assert_eq!(said, ["skill", "acme/refunds", "alice"]);
    process.stop().await;
}

#[tokio::test]
async fn what_cannot_be_shown_of_a_skill_is_not_approved() {
    let crm = Changeable::start().await;
    let folder = crm.folder("");
    crm.offer(|offer| offer.lie = Some("another text"));
    let said = folder.approvals(&["approve", OWN, "--yes"]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("its file limits.md cannot be had"), "{said:?}");
    assert!(
        !said.stderr.contains("another text") && !folder.path().join("promptgate.lock").exists()
    );
    crm.offer(|offer| offer.lie = None);
    approve(&folder).await;
    let kept = folder.objects();
    assert!(
        kept.contains(&"at most 100".to_owned()) && kept.contains(&REFUNDS.to_owned()),
        "{kept:?}"
    );
}

#[tokio::test]
async fn the_approved_files_are_served_while_the_upstream_offers_others_or_is_gone() {
    let crm = Changeable::start().await;
    let table = crm.upstream.table("crm") + "expose_skills = [\"prompts\"]\n";
    let folder = Folder::new(&(enforced("snapshot = true\n") + &table));
    approve(&folder).await;
    let (process, _admin) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    lists(&client, &[OWN]).await;
    let entry = client.ask("skills/get", json!({"uri": OWN})).await["skill"].take();
    // The upstream lies, then says it, then has another skill.
    crm.offer(|offer| offer.lie = Some("NO LIMIT"));
    let read = client.ask("resources/read", json!({"uri": LIMITS})).await;
    assert_eq!(read["_meta"]["promptgate/snapshot"], true);
    assert_eq!(read["contents"][0]["text"], "at most 100");
    crm.offer(|offer| *offer = Offer { limits: "NO LIMIT", lie: None });
    let changed = async || {
        let records = folder.records().into_iter();
        records.filter(|own| own["event"] == "prompt_state" && own["state"] == "changed").count()
    };
    eventually(changed, |count| *count > 0).await;
    let shown = async || client.ask("skills/get", json!({"uri": OWN})).await;
    let shown = eventually(shown, |own| own["_meta"]["promptgate/snapshot"] == true).await;
    assert_eq!(shown["skill"], entry);
    reads(&client, Ok("at most 100")).await;
    let listed = client.ask("skills/list", json!({})).await;
    assert!(listed.to_string().contains(entry["resources"][1]["digest"].as_str().unwrap()));
    // An approval of the new files, and back.
    approve(&folder).await;
    reads(&client, Ok("NO LIMIT")).await;
    decide(&folder, &["rollback", OWN]).await;
    reads(&client, Ok("at most 100")).await;
    drop(crm);
    reads(&client, Ok("at most 100")).await;
    let prompt = client.ask("prompts/get", json!({"name": "crm__refunds"})).await;
    assert_eq!(prompt["_meta"]["promptgate/snapshot"], true, "{prompt}");
    process.stop().await;
    // A gateway that never saw the upstream serves what the lock file has.
    let process = Process::serve(folder.path()).await;
    lists(&process.client(), &[OWN]).await;
    reads(&process.client(), Ok("at most 100")).await;
    process.stop().await;
}

#[tokio::test]
async fn a_warning_gateway_serves_skills_and_says_what_is_not_approved() {
    let crm = Changeable::start().await;
    let folder =
        Folder::new(&(enforced("").replace("enforce", "warn") + &crm.upstream.table("crm")));
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    reads(&process.client(), Ok("at most 100")).await;
    let record = folder.recorded("prompt_state").await;
    assert_eq!(record["state"], "pending");
    let counted = metrics(&admin, &["promptgate_unapproved"]).await;
    assert!(counted.iter().any(|(name, n)| name.contains("served") && *n >= 1.0), "{counted:?}");
    process.stop().await;
}

#[tokio::test]
async fn the_admin_api_shows_the_files_of_a_skill_and_decides_on_these() {
    const WRITABLE: &str = "[admin]\nwrite = true\ntoken = { value = \"t0ken\" }\n";
    let crm = Changeable::start().await;
    let folder = crm.folder(WRITABLE);
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let token = [("authorization", "Bearer t0ken"), ("content-type", "application/json")];
    let name = OWN.replace(':', "%3A").replace('/', "%2F");
    let path = format!("/api/v1/approvals/{name}");
    let read = async || admin.send("GET", &path, &token, b"").await.json();
    let shown = eventually(read, |shown| shown["tag"].is_string()).await;
    assert_eq!((&shown["kind"], &shown["covers"]), (&json!("skill"), &json!("files")));
    let diff = shown["diff"].as_str().unwrap();
    assert!(diff.contains("(file limits.md)") && diff.contains("+at most 100"), "{diff}");
    // Others are offered between the page and the decision.
    crm.offer(|offer| offer.limits = "NO LIMIT");
    let tag = shown["tag"].as_str().unwrap();
    let body = json!({"prompts": [OWN], "by": "bob"}).to_string();
    let headers = [token[0], token[1], ("if-match", tag)];
    let done = admin.send("POST", "/api/v1/approvals/approve", &headers, body.as_bytes()).await;
    assert!(done.status == 200 || done.status == 412, "{:?}", done.json());
    let objects = if done.status == 200 { folder.objects() } else { Vec::new() };
    assert!(!objects.iter().any(|object| object.contains("NO LIMIT")), "{objects:?}");
    process.stop().await;
}

#[tokio::test]
async fn the_second_of_two_approvals_is_not_that_of_the_person_who_changed_a_file_of_the_skill() {
    let library = "[upstreams.lib]\ntransport = \"library\"\npath = \"prompts\"\n";
    let folder = Folder::new(&(enforced("approvers = 2\n") + library));
    let own = folder.path().join("prompts/my team/refunds");
    std::fs::create_dir_all(&own).unwrap();
    let name = "skill://lib/my%20team/refunds/SKILL.md";
    let approve = async |who: &str| {
        folder.approvals_as(who, "", &["approve", name, "--yes", "--why", "read"]).await
    };
    std::fs::write(own.join("SKILL.md"), REFUNDS).unwrap();
    commit(&folder, "bob");
    std::fs::write(own.join("limits.md"), "at most 100").unwrap();
    commit(&folder, "ada");
    let first = approve("carol").await;
    assert!(first.stdout.starts_with("Approved by one of two"), "{first:?}");
    let refused = approve("ada").await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains(": ada changed its file in commit "), "{refused:?}");
    assert_eq!(approve("bob").await.stdout, format!("Approved: {name}\n"));
}
