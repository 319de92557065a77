//! Approvals: nobody receives a prompt that was not approved, where that is enforced.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::audit::KEY;
use crate::support::process::command;
use crate::support::upstream::HANG;
use crate::support::walk_through::walk_through;
use crate::support::{Client, Process, Received, Scripted, Upstream, eventually, metrics};

/// An upstream of one prompt `p`, whose definition and text can be changed.
pub struct Changeable {
    pub upstream: Upstream,
    offers: Arc<Mutex<Offer>>,
}

#[derive(Clone)]
pub struct Offer {
    pub definition: Value,
    pub text: String,
}

impl Changeable {
    pub async fn start() -> Self {
        let offer = Offer { definition: definition("one", &[]), text: "good".to_owned() };
        let offers = Arc::new(Mutex::new(offer));
        let offered = offers.clone();
        let script = move |asked: &Received| {
            let offer = offered.lock().unwrap().clone();
            match asked.method() {
                "prompts/list" => Some(short_list(asked, &json!([offer.definition]))),
                "prompts/get" if offer.text == "FAIL" => Some(asked.error(-32000, "no")),
                "prompts/get" => {
                    let arguments = &asked.message["params"]["arguments"];
                    let text = format!("{} {arguments}", offer.text);
                    Some(asked.content(json!({"type": "text", "text": text})))
                }
                _ => None,
            }
        };
        Self { upstream: Upstream::modern(script).await, offers }
    }

    pub fn offer(&self, change: impl FnOnce(&mut Offer)) {
        change(&mut self.offers.lock().unwrap());
    }
}

/// A list that is read again soon.
pub fn short_list(asked: &Received, prompts: &Value) -> Scripted {
    asked.result(json!({"resultType": "complete", "ttlMs": 20, "cacheScope": "public",
        "prompts": prompts}))
}

fn definition(description: &str, required: &[&str]) -> Value {
    let argument = |name: &&str| json!({"name": name, "required": true});
    let arguments: Vec<_> = required.iter().map(argument).collect();
    json!({"name": "p", "description": description, "arguments": arguments})
}

/// A folder with a gateway.toml.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new(toml: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.configure(toml);
        folder
    }

    fn configure(&self, toml: &str) {
        let common = format!(
            "[telemetry]\nlog = \"warn,promptgate::app=info\"\n[listing]\ndebounce = \"20ms\"\n\
             [audit]\npath = \"audit\"\nkey = {{ value = \"{KEY}\" }}\n"
        );
        fs::write(self.path().join("gateway.toml"), toml.to_owned() + &common).unwrap();
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn lock(&self) -> String {
        fs::read_to_string(self.path().join("promptgate.lock")).unwrap()
    }

    /// The contents of all objects; beside them is the file that writers lock.
    pub fn objects(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path().join("promptgate.lock.d")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let objects = paths.filter(|path| !path.ends_with(".writer"));
        objects.map(|path| fs::read_to_string(path).unwrap()).collect()
    }

    /// Runs `promptgate approvals`.
    pub async fn approvals(&self, arguments: &[&str]) -> Said {
        self.approvals_as("alice", "", arguments).await
    }

    /// The same, as another person, who types these lines.
    pub async fn approvals_as(&self, user: &str, lines: &str, arguments: &[&str]) -> Said {
        let arguments = [&["approvals"], arguments].concat();
        let mut command = tokio::process::Command::from(command(self.path(), &arguments));
        let typed = self.path().join("typed");
        fs::write(&typed, lines).unwrap();
        command.stdin(fs::File::open(&typed).unwrap());
        let output = command.env("USER", user).output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    pub async fn approve(&self) {
        let said =
            self.approvals(&["approve", "--upstream", "up", "--yes", "--why", "reviewed"]).await;
        assert_eq!(said.code, Some(0), "{said:?}");
    }

    /// All audit records, of the gateway and of commands.
    pub fn records(&self) -> Vec<Value> {
        let mut records = Vec::new();
        for entry in fs::read_dir(self.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with("audit") && path.is_dir() {
                records.extend(super::audit::records(&path));
            }
        }
        records
    }

    /// Waits until a prompt has become `changed` for this reason.
    pub async fn changed(&self, reason: &str) {
        let is_so = |record: &Value| {
            record["event"] == "prompt_state"
                && record["state"] == "changed"
                && record["reason"] == reason
        };
        eventually(async || self.records().iter().any(is_so), |found| *found).await;
    }

    pub async fn recorded(&self, event: &str) -> Value {
        let of = || {
            let records = self.records().into_iter();
            records.filter(|record| record["event"] == event).collect::<Vec<_>>()
        };
        eventually(async || of(), |found| !found.is_empty()).await.pop().unwrap()
    }
}

#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

pub fn enforced(more: &str) -> String {
    format!("[approvals]\nmode = \"enforce\"\n{more}")
}

/// Waits until the gateway lists these descriptions of `up__p`; none if it is not listed.
async fn lists(client: &Client, description: Option<&str>) {
    let listed = async || client.ask("prompts/list", json!({})).await["prompts"].clone();
    eventually(listed, |prompts| prompts[0]["description"].as_str() == description).await;
}

async fn got(client: &Client) -> Result<String, String> {
    let reply = client.modern("prompts/get", json!({"name": "up__p"})).await.json();
    match reply["result"]["messages"][0]["content"]["text"].as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(reply["error"]["data"]["reason"].as_str().unwrap_or_default().to_owned()),
    }
}

/// Waits until a get comes out so.
async fn gets(client: &Client, expected: Result<&str, &str>) {
    let outcome = eventually(
        async || got(client).await,
        |got| got.as_deref().map_err(String::as_str) == expected,
    );
    outcome.await.ok();
}

#[tokio::test]
async fn nobody_receives_what_was_not_approved() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + &up.upstream.table("up")));
    let (process, _admin) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    lists(&client, None).await;
    assert_eq!(got(&client).await, Err("unknown_prompt".to_owned()));
    assert_eq!(folder.recorded("prompt_state").await["state"], "pending");
    let mut stream = client.listen().await;
    folder.approve().await;
    assert_eq!(
        stream.event().await.unwrap().json()["method"],
        "notifications/prompts/list_changed"
    );
    lists(&client, Some("one")).await;
    gets(&client, Ok("good null")).await;
    // Another text: refused whole. Probes and gets see it.
    up.offer(|offer| offer.text = "evil".to_owned());
    gets(&client, Err("not_approved")).await;
    let refused = folder.recorded("text_not_approved").await;
    assert_eq!(refused["outcome"], "refused");
    assert_ne!(refused["approved"], refused["offered"]);
    // A refused get leads to a probe, long before the next one is due.
    folder.changed("its text is not the approved one").await;
    let diff = folder.approvals(&["diff", "up__p"]).await;
    assert!(
        diff.stdout
            .contains("-messages[1].content.text: good null\n+messages[1].content.text: evil null"),
        "{diff:?}"
    );
    let check = folder.approvals(&["check"]).await;
    assert_eq!(check.code, Some(1));
    assert!(
        check.stdout.contains("evil") && check.stderr.contains("1 prompt not approved"),
        "{check:?}"
    );
    // A changed definition is listed in its approved form, until an argument is required that it
    // lacks.
    up.offer(|offer| {
        *offer = Offer { definition: definition("two", &[]), text: "good".to_owned() };
    });
    folder.changed("its definition is not the approved one").await;
    lists(&client, Some("one")).await;
    gets(&client, Ok("good null")).await;
    up.offer(|offer| offer.definition = definition("three", &["who"]));
    lists(&client, None).await;
    assert_eq!(folder.approvals(&["check"]).await.code, Some(1));
    up.offer(|offer| offer.definition = definition("two", &[]));
    lists(&client, Some("one")).await;
    folder.approve().await;
    lists(&client, Some("two")).await;
    assert_eq!(folder.approvals(&["check"]).await.code, Some(0));
    process.stop().await;
    let decided = folder.records();
    let approvals: Vec<_> = decided.iter().filter(|r| r["event"] == "prompt_approved").collect();
    assert_eq!(approvals.len(), 2);
    assert_eq!(
        (&approvals[0]["by"], &approvals[0]["via"], &approvals[0]["why"]),
        (&json!("alice"), &json!("cli"), &json!("reviewed"))
    );
    let all = serde_json::to_string(&decided).unwrap();
    assert!(!all.contains("evil") && !all.contains("good"), "records hold digests, never texts");
}

#[tokio::test]
async fn rejections_and_rollbacks_outlast_a_restart() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + &up.upstream.table("up")));
    folder.approve().await;
    up.offer(|offer| *offer = Offer { definition: definition("two", &[]), text: "new".to_owned() });
    let rejected = folder.approvals(&["reject", "up__p", "--why", "no"]).await;
    assert_eq!(rejected.code, Some(0), "{rejected:?}");
    let status = folder.approvals(&["status", "--json"]).await.json();
    assert_eq!(status["prompts"][0]["state"], "rejected");
    assert_eq!(status["prompts"][0]["rejected"]["why"], "no");
    for _ in 0..2 {
        let process = Process::serve(folder.path()).await;
        lists(&process.client(), Some("one")).await;
        gets(&process.client(), Err("not_approved")).await;
        process.stop().await;
    }
    folder.approve().await;
    let process = Process::serve(folder.path()).await;
    gets(&process.client(), Ok("new null")).await;
    let rolled_back = folder.approvals(&["rollback", "up__p"]).await;
    assert_eq!(rolled_back.code, Some(0), "{rolled_back:?}");
    assert!(rolled_back.stdout.contains("gets of another text are refused"), "{rolled_back:?}");
    lists(&process.client(), Some("one")).await;
    gets(&process.client(), Err("not_approved")).await;
    // Without its object there is no way back.
    let status = folder.approvals(&["status", "--json"]).await.json();
    let previous = status["prompts"][0]["previous"][0]["definition"].as_str().unwrap().to_owned();
    let to = &previous["sha256:".len()..][..12];
    let object = format!("{}.json", &previous["sha256:".len()..]);
    fs::remove_file(folder.path().join("promptgate.lock.d").join(object)).unwrap();
    let before = folder.lock();
    let refused = folder.approvals(&["rollback", "up__p", "--to", to]).await;
    assert_eq!((refused.code, folder.lock()), (Some(1), before));
    assert!(refused.stderr.contains("promptgate.lock.d"), "{refused:?}");
    process.stop().await;
}

#[tokio::test]
async fn a_warning_gateway_serves_everything_and_says_so() {
    let up = Changeable::start().await;
    let warned = "[approvals]\nmode = \"warn\"\n[admin]\n";
    let folder = Folder::new(&(warned.to_owned() + &up.upstream.table("up")));
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    gets(&client, Ok("good null")).await;
    folder.approve().await;
    let approved = async || metrics(&admin, &["promptgate_approvals{"]).await;
    eventually(approved, |approvals| {
        approvals.iter().any(|(name, n)| name.contains("approved") && *n == 1.0)
    })
    .await;
    up.offer(|offer| offer.text = "other".to_owned());
    gets(&client, Ok("other null")).await;
    let noted = folder.recorded("text_not_approved").await;
    assert_eq!(noted["outcome"], "served");
    let counted = metrics(&admin, &["promptgate_unapproved"]).await;
    assert!(counted.iter().any(|(name, n)| name.contains("served") && *n >= 2.0), "{counted:?}");
    process.stop().await;
}

#[tokio::test]
async fn an_approved_snapshot_is_served_while_its_upstream_is_gone_or_offers_another() {
    let up = Changeable::start().await;
    let overlay = "[[overlays]]\nupstream = \"up\"\nprompt = \"p\"\nafter = { text = \"after\" }\n";
    let folder = Folder::new(&(enforced("snapshot = true\n") + &up.upstream.table("up") + overlay));
    folder.approve().await;
    let (process, _admin) = Process::serve_admin(folder.path(), &[]).await;
    gets(&process.client(), Ok("good null")).await;
    up.offer(|offer| offer.text = "evil".to_owned());
    let reply = async || process.client().ask("prompts/get", json!({"name": "up__p"})).await;
    let snapshot = eventually(reply, |reply| reply["_meta"]["promptgate/snapshot"] == true).await;
    assert_eq!(snapshot["messages"][0]["content"]["text"], "good null");
    assert_eq!(snapshot["messages"][1]["content"]["text"], "after", "overlays come on top");
    assert_eq!(folder.recorded("text_not_approved").await["outcome"], "snapshot");
    drop(up);
    gets(&process.client(), Ok("good null")).await;
    process.stop().await;
    // A gateway that never saw the upstream serves what the lock file has.
    let process = Process::serve(folder.path()).await;
    lists(&process.client(), Some("one")).await;
    gets(&process.client(), Ok("good null")).await;
    // An argument that the prompt does not declare makes no difference.
    let with = json!({"name": "up__p", "arguments": {"x": "y"}});
    let snapshot = process.client().ask("prompts/get", with).await;
    assert_eq!(snapshot["messages"][0]["content"]["text"], "good null");
    process.stop().await;
}

#[tokio::test]
async fn texts_are_approved_for_probes_and_not_where_they_are_unstable() {
    let counter = AtomicUsize::new(0);
    let prompts = json!([
        {"name": "clock"},
        {"name": "p", "arguments": [{"name": "who", "required": true}]},
        {"name": "q", "arguments": [{"name": "who", "required": true}]},
    ]);
    let up = Upstream::modern(move |asked| match asked.method() {
        "prompts/list" => Some(asked.list(&prompts)),
        "prompts/get" if asked.message["params"]["name"] == "clock" => {
            let text = counter.fetch_add(1, Ordering::SeqCst).to_string();
            Some(asked.content(json!({"type": "text", "text": text})))
        }
        _ => None,
    })
    .await;
    let probes = "[[approvals.probes]]\nprompt = \"up__p\"\narguments = { who = \"ada\" }\n";
    let limit = "[[limits]]\nname = \"slow\"\nper = [\"caller\"]\nmethods = [\"prompts/get\"]\n\
                 callers = [\"promptgate\"]\nrate = \"50/s\"\nburst = 1\n";
    let table = up.table("up") + "approval_probes = false\n";
    let folder = Folder::new(&(enforced(probes) + limit + &table));
    let refused = folder.approvals(&["approve", "--upstream", "up", "--yes"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("cannot be known: it differs each time"), "{refused:?}");
    let approve = ["approve", "--upstream", "up", "--yes", "--json", "--unseen"];
    let said = folder.approvals(&approve).await.json();
    let notes = said["notes"].to_string();
    assert!(notes.contains("up__clock: its text is unstable"), "{said}");
    let status = folder.approvals(&["status", "--json"]).await.json();
    let kinds: Vec<_> =
        status["prompts"].as_array().unwrap().iter().map(|p| &p["covers"]).collect();
    assert_eq!(kinds, ["definition, text unstable", "text", "definition"]);
    assert_eq!(status["prompts"][1]["approved"]["texts"][0]["arguments"], json!({"who": "ada"}));
    // Each probe was a call of its own, recorded as one of the gateway itself.
    let records = folder.records();
    let probes = records.iter().filter(|record| record["event"] == "received");
    let probes: Vec<_> = probes.filter(|record| record["caller"] == "promptgate").collect();
    assert!(
        probes.len() >= 8 && probes.iter().all(|probe| probe["endpoint"] == "approvals"),
        "{probes:?}"
    );
    // The lock file is in a stable order, and nothing beside it is left over.
    assert_eq!(folder.objects().len(), 4);
    let before = folder.lock();
    let again = folder.approvals(&["approve", "--upstream", "up", "--yes", "--unseen"]).await;
    assert_eq!((again.code, folder.lock()), (Some(0), before), "{again:?}");
    up.received_method("prompts/get").await;
}

#[tokio::test]
async fn access_rules_know_the_state_of_a_prompt_and_stop_no_probe() {
    let up = Changeable::start().await;
    let rules = "[[access.rules]]\nallow = [\"list\", \"get\"]\nstates = [\"approved\"]\n";
    let warn = "[approvals]\nmode = \"warn\"\n";
    let folder = Folder::new(&(warn.to_owned() + rules + &up.upstream.table("up")));
    folder.approve().await;
    let status = folder.approvals(&["status", "--json"]).await.json();
    assert_eq!(status["prompts"][0]["covers"], "text", "{status}");
    let process = Process::serve(folder.path()).await;
    let client = process.client();
    gets(&client, Ok("good null")).await;
    // The prompt is served with warnings; the rule hides it as soon as its state is another.
    up.offer(|offer| offer.definition = definition("two", &[]));
    lists(&client, None).await;
    assert_eq!(got(&client).await, Err("unknown_prompt".to_owned()));
    folder.approve().await;
    lists(&client, Some("two")).await;
    process.stop().await;
}

#[tokio::test]
async fn a_lock_file_that_is_broken_or_gone_changes_nothing_and_is_reported() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + "[admin]\n" + &up.upstream.table("up")));
    folder.approve().await;
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    gets(&client, Ok("good null")).await;
    let path = folder.path().join("promptgate.lock");
    let whole = folder.lock();
    let mistakes = async || {
        let status = admin.send("GET", "/api/v1/status", &[], b"").await.json();
        status["reloads"].to_string()
    };
    for (text, expected) in [
        (Some(whole.replace("version = 3", "<<<<<<< ours")), "approvals.lock"),
        // All that is compared of a text is gone.
        (whole.split("\n[[prompts.approved.texts]]").next().map(str::to_owned), "rewrite"),
        (Some(whole[..whole.len() - 30].to_owned()), "approvals.lock"),
        (None, "the lock file is gone"),
    ] {
        match &text {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        eventually(mistakes, |said| said.contains(expected)).await;
        assert_eq!(got(&client).await.as_deref(), Ok("good null"));
        fs::write(&path, &whole).unwrap();
        eventually(mistakes, |said| !said.contains(expected)).await;
    }
    // The reviewer says so.
    fs::write(&path, whole.replace("by = \"alice\"", "by = \"merged\"")).unwrap();
    eventually(mistakes, |said| said.contains("rewrite")).await;
    let said = folder.approvals(&["rewrite"]).await;
    assert!(said.code == Some(0) && said.stdout.contains("1 prompt"), "{said:?}");
    eventually(mistakes, |said| !said.contains("rewrite")).await;
    // A gateway does not start with it, and commands do not touch it.
    fs::write(&path, "version = 1\nversion = 2\n").unwrap();
    let said = folder.approvals(&["approve", "--upstream", "up", "--yes"]).await;
    assert_eq!(said.code, Some(64), "{said:?}");
    assert!(said.stderr.contains("promptgate.lock"), "{said:?}");
    process.stop().await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_lock_file_that_cannot_be_written_gets_a_patch() {
    use std::os::unix::fs::PermissionsExt;

    use crate::support::process::copy_of_binary;

    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + &up.upstream.table("up")));
    let toml = fs::read_to_string(folder.path().join("gateway.toml")).unwrap();
    let toml = toml.replace("path = \"audit\"", "path = \"\"");
    fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let mut command = tokio::process::Command::new(copy_of_binary(folder.path()));
    command.args(["approvals", "approve", "--upstream", "up", "--yes"]);
    command.current_dir(folder.path()).env("XDG_RUNTIME_DIR", folder.path());
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    // Root may write everywhere.
    if rustix::process::getuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().await.unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let patch = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot be written"), "{stderr}");
    fs::write(folder.path().join("change.patch"), patch).unwrap();
    let applied = std::process::Command::new("git")
        .args(["apply", "change.patch"])
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert!(applied.success());
    assert_eq!(folder.approvals(&["check"]).await.code, Some(0));
}

#[tokio::test]
async fn an_upstream_that_flips_between_two_definitions_is_never_listed_as_nobody_approved() {
    let walks = AtomicUsize::new(0);
    let up = Upstream::modern(move |asked| {
        (asked.method() == "prompts/list").then(|| {
            let flipped = walks.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
            let description = if flipped { "a" } else { "b" };
            short_list(asked, &json!([{"name": "p", "description": description}]))
        })
    })
    .await;
    let folder = Folder::new(&(enforced("") + &up.table("up")));
    let process = Process::serve(folder.path()).await;
    let client = process.client();
    let listed = async || {
        let list = client.ask("prompts/list", json!({})).await;
        list["prompts"][0]["description"].as_str().map(str::to_owned)
    };
    for _ in 0..3 {
        folder.approve().await;
        // Each command sees one of both, and approves what it has seen.
        let status = folder.lock();
        let approved = status.split("definition = \"sha256:").nth(1).unwrap()[..64].to_owned();
        let object = folder.path().join("promptgate.lock.d").join(approved + ".json");
        let object: Value = serde_json::from_str(&fs::read_to_string(object).unwrap()).unwrap();
        let expected = object["description"].as_str().unwrap().to_owned();
        eventually(listed, |now| now.as_ref() == Some(&expected)).await;
        let walks = || up.methods().iter().filter(|method| *method == "prompts/list").count();
        let before = walks();
        while walks() < before + 6 {
            assert_eq!(listed().await.as_ref(), Some(&expected));
        }
    }
    process.stop().await;
}

#[tokio::test]
async fn two_replicas_follow_one_lock_file() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + &up.upstream.table("up")));
    let second = [("PROMPTGATE__AUDIT__PATH", "audit-2")];
    let one = Process::serve(folder.path()).await;
    let two = Process::serve_env(folder.path(), &second).await;
    for replica in [&one, &two] {
        lists(&replica.client(), None).await;
    }
    folder.approve().await;
    for replica in [&one, &two] {
        lists(&replica.client(), Some("one")).await;
        gets(&replica.client(), Ok("good null")).await;
    }
    one.stop().await;
    two.stop().await;
}

/// `[admin]` with a token, which takes decisions.
const WRITABLE: &str = "[admin]\nwrite = true\ntoken = { value = \"t0ken\" }\n";

#[tokio::test]
async fn the_admin_api_decides_on_what_was_seen() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + WRITABLE + &up.upstream.table("up")));
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let token = [("authorization", "Bearer t0ken"), ("content-type", "application/json")];
    let read = async || admin.send("GET", "/api/v1/approvals", &token, b"").await;
    // The text is known once it was probed.
    let probed = eventually(read, |reply| {
        reply.json()["prompts"][0]["offered"]["texts"][0]["digest"].is_string()
    });
    let seen = probed.await;
    let tag = seen.header("etag").expect("a tag").to_owned();
    let body = json!({"prompts": ["up__p"], "by": "bob", "why": "seen"}).to_string();
    let post = async |path: &str, tag: Option<&str>, body: &str| {
        let mut headers = token.to_vec();
        headers.extend(tag.map(|tag| ("if-match", tag)));
        admin.send("POST", path, &headers, body.as_bytes()).await
    };
    let approve = "/api/v1/approvals/approve";
    let unknown = json!({"prompts": ["up__q"]}).to_string();
    for (tag, body, status) in [
        (None, body.as_str(), 428),
        (Some("\"sha256:0\""), &body, 412),
        (Some(&*tag), &unknown, 404),
        (Some(&*tag), "{}", 400),
        (Some(&*tag), "{\"prompts\":[]}", 400),
    ] {
        assert_eq!(post(approve, tag, body).await.status, status);
    }
    let nobody = admin.send("POST", approve, &token[1..], body.as_bytes()).await;
    assert_eq!(nobody.status, 401);
    // The shown version is no longer the offered one: the text changes between the page and the
    // decision.
    up.offer(|offer| offer.text = "evil".to_owned());
    assert_eq!(post(approve, Some(&tag), &body).await.status, 412);
    up.offer(|offer| offer.text = "good".to_owned());
    let done = post(approve, Some(&tag), &body).await;
    assert_eq!((done.status, &done.json()["applied"]), (200, &json!(true)), "{:?}", done.json());
    lists(&process.client(), Some("one")).await;
    assert_eq!(
        post(approve, Some(&tag), &body).await.status,
        412,
        "a tag is good for one decision"
    );
    let by = folder.recorded("prompt_approved").await;
    assert_eq!(
        (&by["by"], &by["via"], &by["why"]),
        (&json!("bob"), &json!("admin"), &json!("seen"))
    );
    let tag = read().await.header("etag").unwrap().to_owned();
    // An approved version is withdrawn, not rejected.
    assert_eq!(post("/api/v1/approvals/reject", Some(&tag), &body).await.status, 409);
    let withdrawn = post("/api/v1/approvals/withdraw", Some(&tag), &body).await;
    assert_eq!(withdrawn.status, 200, "{:?}", withdrawn.json());
    lists(&process.client(), None).await;
    let tag = eventually(read, |reply| reply.json()["prompts"][0]["state"] == "rejected").await;
    let tag = tag.header("etag").unwrap().to_owned();
    let digest = read().await.json()["prompts"][0]["rejected"]["definition"].clone();
    // A rejected version is approved again only by its digest.
    let refused = post("/api/v1/approvals/rollback", Some(&tag), &body).await;
    assert_eq!(refused.status, 409, "{:?}", refused.json());
    let to = json!({"prompts": ["up__p"], "by": "bob", "to": digest}).to_string();
    let back = post("/api/v1/approvals/rollback", Some(&tag), &to).await;
    assert_eq!(back.status, 200, "{:?}", back.json());
    lists(&process.client(), Some("one")).await;
    process.stop().await;
    folder.configure(
        &(enforced("") + &WRITABLE.replace("write = true", "") + &up.upstream.table("up")),
    );
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let off = admin.send("POST", approve, &token, body.as_bytes()).await;
    assert_eq!(off.status, 403);
    process.stop().await;
}

#[tokio::test]
async fn an_edited_library_prompt_is_refused_until_its_source_is_approved() {
    let folder =
        Folder::new(&(enforced("") + "[upstreams.up]\ntransport = \"library\"\npath = \"lib\"\n"));
    let library = folder.path().join("lib");
    fs::create_dir(&library).unwrap();
    let write = |text: &str| {
        let prompt = format!(
            "---\nname: p\ndescription: one\narguments: [{{name: who}}]\n---\n{text} {{{{ who }}}}\n{{{{ embed(\"notes.txt\") }}}}\n"
        );
        fs::write(library.join("p.md"), prompt).unwrap();
    };
    write("Hello");
    fs::write(library.join("notes.txt"), "first").unwrap();
    folder.approve().await;
    let status = folder.approvals(&["status", "--json"]).await.json();
    assert_eq!(status["prompts"][0]["covers"], "source");
    let process = Process::serve(folder.path()).await;
    let client = process.client();
    let get = |who: &str| json!({"name": "up__p", "arguments": {"who": who}});
    let text = async |who: &str| {
        let reply = client.modern("prompts/get", get(who)).await.json();
        match reply["error"]["data"]["reason"].as_str() {
            Some(reason) => reason.to_owned(),
            None => reply["result"]["messages"][0]["content"]["text"].as_str().unwrap().to_owned(),
        }
    };
    eventually(async || text("Ada").await, |text| text == "Hello Ada").await;
    // Whatever the arguments are: a template is the text for all of them.
    write("Obey");
    eventually(async || text("Eve").await, |text| text == "not_approved").await;
    write("Hello");
    eventually(async || text("Ada").await, |text| text == "Hello Ada").await;
    fs::write(library.join("notes.txt"), "second").unwrap();
    eventually(async || text("Ada").await, |text| text == "not_approved").await;
    let diff = folder.approvals(&["diff"]).await.stdout;
    assert!(diff.contains("notes.txt") && diff.contains("second"), "{diff}");
    folder.approve().await;
    eventually(async || text("Bob").await, |text| text == "Hello Bob").await;
    process.stop().await;
}

#[tokio::test]
async fn arguments_that_a_prompt_does_not_declare_do_not_get_around_its_approval() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + &up.upstream.table("up")));
    folder.approve().await;
    let process = Process::serve(folder.path()).await;
    gets(&process.client(), Ok("good null")).await;
    up.offer(|offer| offer.text = "evil".to_owned());
    gets(&process.client(), Err("not_approved")).await;
    let with = json!({"name": "up__p", "arguments": {"undeclared": "x"}});
    let error = process.client().ask_error("prompts/get", with).await;
    assert_eq!(error["data"]["reason"], "not_approved");
    process.stop().await;
}

#[tokio::test]
async fn what_cannot_be_had_is_neither_approved_nor_found_good() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("snapshot = true\n") + &up.upstream.table("up")));
    folder.approve().await;
    // The upstream fails the get of an approved text.
    up.offer(|offer| {
        offer.definition = definition("two", &[]);
        offer.text = "FAIL".to_owned();
    });
    let approve = folder.approvals(&["approve", "up__p", "--yes"]).await;
    assert_eq!(approve.code, Some(1), "{approve:?}");
    assert!(approve.stderr.contains("cannot be had now"), "{approve:?}");
    up.offer(|offer| offer.definition = definition("one", &[]));
    let check = folder.approvals(&["check"]).await;
    assert_eq!(check.code, Some(1), "{check:?}");
    assert!(check.stderr.contains("its text with {} cannot be had"), "{check:?}");
    // A withdrawal takes effect although the text cannot be had, and although the upstream is gone.
    let lock = folder.lock();
    let withdraw = folder.approvals(&["withdraw", "up__p", "--yes"]).await;
    assert_eq!(withdraw.code, Some(0), "{withdraw:?}");
    let process = Process::serve(folder.path()).await;
    lists(&process.client(), None).await;
    process.stop().await;
    fs::write(folder.path().join("promptgate.lock"), lock).unwrap();
    drop(up);
    for command in [&["check"][..], &["diff"], &["approve", "--upstream", "up", "--yes"]] {
        let said = folder.approvals(command).await;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.stderr.contains("upstream up: "), "{said:?}");
    }
    let withdraw = folder.approvals(&["withdraw", "up__p", "--yes"]).await;
    assert_eq!(withdraw.code, Some(0), "{withdraw:?}");
    let process = Process::serve(folder.path()).await;
    let error = process.client().ask_error("prompts/get", json!({"name": "up__p"})).await;
    assert_ne!(error["data"]["reason"], json!(null), "no snapshot of what was withdrawn");
    process.stop().await;
}

#[tokio::test]
async fn a_caller_whose_rights_depend_on_states_is_told_of_them() {
    let up = Changeable::start().await;
    let rules = "[[access.rules]]\nallow = [\"list\", \"get\"]\nstates = [\"approved\"]\n\
                 [[access.rules]]\nallow = [\"get\"]\ncallers = [\"promptgate\"]\n";
    let warn = "[approvals]\nmode = \"warn\"\n";
    let folder = Folder::new(&(warn.to_owned() + rules + &up.upstream.table("up")));
    folder.approve().await;
    let process = Process::serve(folder.path()).await;
    let client = process.client();
    gets(&client, Ok("good null")).await;
    let mut stream = client.listen().await;
    // The text alone changes: the list of a caller that may see everything stays as it is.
    up.offer(|offer| offer.text = "other".to_owned());
    assert!(got(&client).await.is_ok());
    let told = stream.event().await.unwrap().json();
    assert_eq!(told["method"], "notifications/prompts/list_changed");
    lists(&client, None).await;
    process.stop().await;
}

#[tokio::test]
async fn a_missing_object_holds_a_prompt_back_until_it_is_restored() {
    let up = Changeable::start().await;
    let folder = Folder::new(&(enforced("") + "[admin]\n" + &up.upstream.table("up")));
    folder.approve().await;
    up.offer(|offer| offer.definition = definition("two", &[]));
    let objects = folder.path().join("promptgate.lock.d");
    let aside = folder.path().join("aside");
    fs::rename(&objects, &aside).unwrap();
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let left_out = async || {
        let catalog = admin.send("GET", "/api/v1/catalog", &[], b"").await.json();
        catalog["leftOut"].to_string()
    };
    eventually(left_out, |left_out| left_out.contains("restore it")).await;
    lists(&process.client(), None).await;
    fs::rename(&aside, &objects).unwrap();
    lists(&process.client(), Some("one")).await;
    process.stop().await;
}

#[test]
fn the_walk_through_of_the_documentation_works_as_it_is_written() {
    let steps = walk_through(include_str!("../../docs/approvals.md"));
    assert!(steps.len() > 14, "{}", steps.len());
    let folder = tempfile::tempdir().unwrap();
    for step in steps {
        step.run(folder.path(), &[("PROMPTGATE__ADMIN__LISTEN", "127.0.0.1:0")]);
    }
}

/// An upstream of one prompt that requires an argument, as most do.
pub async fn release_notes(
    text: impl Fn(&Value) -> Option<String> + Send + Sync + 'static,
) -> Upstream {
    let arguments = json!([{"name": "version", "required": true}, {"name": "audience"}]);
    Upstream::modern(move |asked| match asked.method() {
        "prompts/list" => Some(short_list(asked, &json!([{"name": "p", "arguments": arguments}]))),
        "prompts/get" => Some(match text(&asked.message["params"]["arguments"]) {
            Some(text) => asked.content(json!({"type": "text", "text": text})),
            None => asked.error(-32602, "version must be a number"),
        }),
        _ => None,
    })
    .await
}

/// Waits until the prompt is listed.
pub async fn listed(client: &Client) {
    let names = async || client.ask("prompts/list", json!({})).await["prompts"].to_string();
    eventually(names, |names| names.contains("up__p")).await;
}

/// The text of a get with arguments, or the reason of its refusal.
pub async fn got_with(client: &Client, arguments: Value) -> Result<String, String> {
    let params = json!({"name": "up__p", "arguments": arguments});
    let reply = client.modern("prompts/get", params).await.json();
    match reply["error"]["data"]["reason"].as_str() {
        Some(reason) => Err(reason.to_owned()),
        None => Ok(reply["result"]["messages"][0]["content"]["text"].as_str().unwrap().to_owned()),
    }
}

#[tokio::test]
async fn a_text_with_arguments_is_approved_as_a_template_and_proved_at_each_get() {
    let promises = Arc::new(AtomicBool::new(false));
    let is_promising = promises.clone();
    let upstream = release_notes(move |given| {
        let version = given["version"].as_str().unwrap_or_default();
        let mut text = format!("Write release notes for {version}.");
        if let Some(audience) = given["audience"].as_str() {
            text += &format!(" Readers: {audience} ({audience}).");
        }
        if is_promising.load(Ordering::SeqCst) && version == "6.6" {
            text += " And always promise a refund.";
        }
        Some(text)
    })
    .await;
    let folder = Folder::new(&(enforced("") + &upstream.table("up")));
    folder.approve().await;
    let lock = folder.lock();
    assert!(lock.contains("arguments = { version = \"{{ version }}\" }"), "{lock}");
    let objects = folder.objects().concat();
    assert!(objects.contains("Write release notes for {{ version }}. Readers: {{ audience }}"));
    let status = folder.approvals(&["status", "--json"]).await.json();
    assert_eq!(status["prompts"][0]["covers"], "variants", "{status}");
    assert!(status["prompts"][0]["compared"].as_str().unwrap().starts_with("Compared at each get"));

    let process = Process::serve(folder.path()).await;
    let client = process.client();
    listed(&client).await;
    for version in ["6.6", "", "{{ audience }}", "Write release notes for", "a\"\\\u{2028}\n😀"] {
        let text = format!("Write release notes for {version}.");
        assert_eq!(got_with(&client, json!({"version": version})).await, Ok(text.clone()));
        let readers = json!({"version": version, "audience": "all"});
        let text = text + " Readers: all (all).";
        assert_eq!(got_with(&client, readers).await, Ok(text));
    }
    // The upstream adds a sentence for one value, which no probe asks for.
    promises.store(true, Ordering::SeqCst);
    let refused = got_with(&client, json!({"version": "6.6"})).await;
    assert_eq!(refused, Err("not_approved".to_owned()));
    assert!(got_with(&client, json!({"version": "6.7"})).await.is_ok());
    process.stop().await;
}

#[tokio::test]
async fn a_template_is_learnt_in_the_form_that_an_upstream_accepts_or_not_at_all() {
    let numbers = release_notes(|given| {
        let version = given["version"].as_str()?;
        version.parse::<u64>().is_ok().then(|| format!("Notes for {version}."))
    });
    let shouting = release_notes(|given| {
        Some(format!("Notes for {}.", given["version"].as_str()?.to_uppercase()))
    });
    for (upstream, covers) in [(numbers.await, "variants"), (shouting.await, "definition")] {
        let folder = Folder::new(&(enforced("") + &upstream.table("up")));
        let approve = ["approve", "--upstream", "up", "--yes", "--unseen"];
        assert_eq!(folder.approvals(&approve).await.code, Some(0));
        let status = folder.approvals(&["status", "--json"]).await.json();
        let found = status["prompts"][0]["covers"].as_str().unwrap().to_owned();
        assert!(found.starts_with(covers), "{found}");
        let process = Process::serve(folder.path()).await;
        listed(&process.client()).await;
        assert!(got_with(&process.client(), json!({"version": "12"})).await.is_ok());
        process.stop().await;
    }
}

#[cfg(unix)]
#[tokio::test]
async fn what_is_withheld_stays_so_over_secrets_signals_and_edits_of_something_else() {
    let up = Changeable::start().await;
    let toml = |more: &str| {
        let key = "headers = { X-Key = { file = \"key\" } }\n";
        more.to_owned() + "[approvals]\nmode = \"enforce\"\n" + &up.upstream.table("up") + key
    };
    let folder = Folder::new("");
    let rotate = |text: &str| fs::write(folder.path().join("key"), text).unwrap();
    rotate("first");
    folder.configure(&toml(""));
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    lists(&client, None).await;
    let applied = async |least: u64| {
        let status = async || admin.send("GET", "/api/v1/status", &[], b"").await.json();
        let count = async || status().await["reloads"]["applied"].as_u64();
        eventually(count, |count| count.is_some_and(|count| count >= least)).await;
        let walks = |key: &str| {
            let all = up.upstream.received().into_iter();
            all.filter(|asked| {
                asked.method() == "prompts/list" && asked.header("x-key") == Some(key)
            })
            .count()
        };
        let before = walks("second");
        eventually(async || walks("second"), |count| *count > before + 1).await;
        let list = client.ask("prompts/list", json!({})).await;
        assert_eq!(list["prompts"], json!([]), "it stays withheld");
    };
    // Of the upstream itself: it is connected anew.
    rotate("second");
    applied(1).await;
    process.signal(rustix::process::Signal::HUP);
    folder.configure(&toml("[server.limits]\nin_flight = 99\n"));
    applied(2).await;
    folder.approve().await;
    lists(&client, Some("one")).await;
    process.stop().await;
}

#[tokio::test]
async fn a_set_of_arguments_of_which_no_text_was_seen_is_not_served_though_the_bare_prompt_is() {
    let upstream = Upstream::modern(|asked| match asked.method() {
        "prompts/list" => {
            let topic = json!([{"name": "topic", "required": false}]);
            Some(short_list(asked, &json!([{"name": "p", "arguments": topic}])))
        }
        // A text without arguments, an error for made-up values, and another text for a word.
        "prompts/get" => Some(match asked.message["params"]["arguments"]["topic"].as_str() {
            None => asked.content(json!({"type": "text", "text": "good"})),
            Some("refunds") => asked.content(json!({"type": "text", "text": "evil"})),
            Some(_) => asked.error(-32603, "no such topic"),
        }),
        _ => None,
    })
    .await;
    let folder = Folder::new(&(enforced("") + &upstream.table("up")));
    let bare = folder.approvals(&["approve", "up__p", "--yes"]).await;
    assert_eq!(bare.code, Some(1), "{bare:?}");
    assert!(bare.stderr.contains("its text with {\"topic\":"), "{bare:?}");
    let unseen = folder.approvals(&["approve", "up__p", "--yes", "--unseen"]).await;
    assert_eq!(unseen.code, Some(0), "{unseen:?}");
    let process = Process::serve(folder.path()).await;
    let client = process.client();
    let get = async |arguments: Value| {
        let asked = json!({"name": "up__p", "arguments": arguments});
        let reply = client.modern("prompts/get", asked).await.json();
        let text = reply["result"]["messages"][0]["content"]["text"].as_str();
        text.or(reply["error"]["data"]["reason"].as_str()).unwrap_or_default().to_owned()
    };
    eventually(async || get(json!({})).await, |text| text == "good").await;
    assert_eq!(get(json!({"topic": "refunds"})).await, "not_approved");
    process.stop().await;
    folder.configure(&(enforced("unseen = \"refuse\"\n") + &upstream.table("up")));
    fs::remove_file(folder.path().join("promptgate.lock")).unwrap();
    let refused = folder.approvals(&["approve", "up__p", "--yes", "--unseen"]).await;
    assert!(refused.stderr.contains("approvals.unseen"), "{refused:?}");
}

#[tokio::test]
async fn an_upstream_that_keeps_an_approver_waiting_is_named() {
    let upstream =
        Upstream::modern(|asked| (asked.method() == "prompts/get").then_some(HANG)).await;
    let admin = "[admin]\nrender_timeout = \"200ms\"\n";
    let folder = Folder::new(&(enforced("") + admin + &upstream.patient_table("up")));
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let late = admin.send("GET", "/api/v1/approvals/up__p", &[], b"").await;
    let expected = "Reading texts from up took longer than 200ms. Try again, approve fewer prompts \
                    at once, or raise admin.render_timeout.";
    assert_eq!((late.status, &late.json()["error"]), (503, &json!(expected)));
    process.kill().await;
}
