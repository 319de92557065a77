//! Versions of library prompts, and the labels that choose them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::approvals::{Folder, enforced};
use crate::audit::{KEY, Log};
use crate::support::gateway::api_key;
use crate::support::process::command;
use crate::support::walk_through::walk_through;
use crate::support::{Client, Gateway, Process, eventually};
use crate::views::{ask_at, names_at};

/// A library with versions of `refund`, beside the files of a gateway.
pub struct Library {
    folder: tempfile::TempDir,
}

const LABELS: &str = "# reviewed\n[refund]\nproduction = 1\ncandidate = 3\n";

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

const PINS: &str = "[views.pins]\nversions = true\n[views.plain]\n";

impl Library {
    pub fn new(labels: &str) -> Self {
        let new = Self { folder: tempfile::tempdir().unwrap() };
        for number in 1..=3 {
            let text = format!("---\nname: refund\ndescription: d\n---\nversion {number}");
            new.write(&format!("refund/versions/{number}.md"), &text);
        }
        new.write("plain.md", "---\nname: plain\ndescription: d\n---\nplain");
        new.write("labels.toml", labels);
        new
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("prompts")
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // As an editor does it.
        let beside = path.with_extension("tmp");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, path).unwrap();
    }

    fn labels(&self) -> String {
        fs::read_to_string(self.path().join("labels.toml")).unwrap()
    }

    pub fn table(&self) -> String {
        let path = self.path();
        format!(
            "[listing]\ndebounce = \"1ms\"\n[upstreams.lib]\ntransport = \"library\"\npath = {path:?}\n"
        )
    }
}

async fn get_at(client: &Client, path: &str, name: &str) -> Value {
    ask_at(client, path, "prompts/get", json!({"name": name})).await
}

fn text(answer: &Value) -> &str {
    answer["result"]["messages"][0]["content"]["text"].as_str().unwrap_or_default()
}

async fn serves(gateway: &Gateway, expected: &str) {
    let client = gateway.client();
    let look = async || text(&get_at(&client, "/mcp", "lib__refund").await).to_owned();
    eventually(look, |seen| seen == expected).await;
}

const REFUND: &str = "lib__refund";

#[tokio::test]
async fn versions_are_prompts_in_views_that_want_them_and_nowhere_else() {
    let library = Library::new(LABELS);
    let gateway = Gateway::start(&(library.table() + PINS)).await;
    let client = gateway.client();
    let plain = ["lib__plain", REFUND];
    assert_eq!(names_at(&client, "/mcp").await, plain);
    assert_eq!(names_at(&client, "/mcp/plain").await, plain);
    let all = [
        "lib__plain",
        REFUND,
        "lib__refund@1",
        "lib__refund@2",
        "lib__refund@3",
        "lib__refund@candidate",
        "lib__refund@production",
    ];
    assert_eq!(names_at(&client, "/mcp/pins").await, all);
    for path in ["/mcp", "/mcp/plain"] {
        for hidden in ["lib__refund@2", "lib__refund@candidate"] {
            let got = get_at(&client, path, hidden).await;
            assert_eq!(got["error"]["code"], -32602, "{path} {hidden}");
            assert_eq!(got, get_at(&client, path, "lib__never").await, "{path} {hidden}");
        }
    }
    for (name, expected, version, label) in [
        (REFUND, "version 1", "1", Some("production")),
        ("lib__refund@candidate", "version 3", "3", Some("candidate")),
        ("lib__refund@2", "version 2", "2", None),
    ] {
        let got = get_at(&client, "/mcp/pins", name).await;
        assert_eq!(text(&got), expected, "{name}");
        let meta = &got["result"]["_meta"];
        assert_eq!((&meta["version"], meta["label"].as_str()), (&json!(version), label), "{got}");
        let list = ask_at(&client, "/mcp/pins", "prompts/list", json!({})).await;
        let prompts = list["result"]["prompts"].as_array().unwrap();
        let listed = &prompts.iter().find(|prompt| prompt["name"] == name).unwrap()["_meta"];
        assert_eq!((&listed["version"], listed["label"].as_str()), (&json!(version), label));
    }
}

#[tokio::test]
async fn a_moved_label_reaches_a_connected_client_and_a_broken_one_changes_nothing() {
    let library = Library::new(LABELS);
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned() + &library.table() + PINS;
    let gateway = Gateway::start(&toml).await;
    serves(&gateway, "version 1").await;
    let mut changes = gateway.client().listen().await;
    library.write("labels.toml", "[refund]\nproduction = 2\n");
    changes.event().await.expect("a notification");
    serves(&gateway, "version 2").await;
    let gone = get_at(&gateway.client(), "/mcp/pins", "lib__refund@candidate").await;
    assert_eq!(gone["error"]["code"], -32602, "the label is not in the file any more");
    let row = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
    let row = &row["upstreams"][0];
    assert_eq!((&row["listed"], &row["prompts"]), (&json!(2), &json!(2)), "versions are hidden");
    let left_out = async || {
        let catalog = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await.json();
        catalog["leftOut"].to_string()
    };
    for (broken, said) in [
        ("[refund]\nproduction = 9\n", "production of refund is version 9"),
        ("[refund\n", "labels.toml:1:"),
        ("[refund]\nprodction = 1\n", "did you mean `production` by `prodction`?"),
        ("[refunds]\nproduction = 1\n", "did you mean [refund]?"),
    ] {
        library.write("labels.toml", broken);
        eventually(left_out, |seen| seen.contains(said)).await;
        serves(&gateway, "version 2").await;
    }
    library.write("labels.toml", "[refund]\nproduction = 3\n");
    serves(&gateway, "version 3").await;
    library.write("odd.md", "---\nname: odd@1\ndescription: d\n---\nx");
    let said = eventually(left_out, |seen| seen.contains("odd@1")).await;
    assert!(said.contains("stands before a version or label"), "{said}");
}

#[tokio::test]
async fn a_rule_for_a_prompt_grants_none_of_its_versions_and_one_with_a_star_does() {
    let library = Library::new(LABELS);
    let key = |id, group| api_key(id, id) + &format!("groups = [\"{group}\"]\n");
    let rule = |group, prompts| {
        format!(
            "[[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"{group}\"]\nprompts = [\"{prompts}\"]\n"
        )
    };
    let toml =
        key("ada", "one") + &key("bob", "all") + &rule("one", "refund") + &rule("all", "refund*");
    let gateway = Gateway::start(&(toml + &library.table() + PINS)).await;
    let ada = gateway.client().with("X-API-Key", "ada");
    let bob = gateway.client().with("X-API-Key", "bob");
    assert_eq!(names_at(&ada, "/mcp/pins").await, [REFUND]);
    assert_eq!(names_at(&bob, "/mcp/pins").await.len(), 6);
    let denied = get_at(&ada, "/mcp/pins", "lib__refund@3").await;
    assert_eq!(denied, get_at(&ada, "/mcp/pins", "lib__never").await);
    assert_eq!(text(&get_at(&bob, "/mcp/pins", "lib__refund@3").await), "version 3");
}

const WRITE: &str =
    "[admin]\nlisten = \"127.0.0.1:0\"\nwrite = true\ntoken = { value = \"t0ken\" }\n";

/// The admin API over a library.
struct Desk {
    library: Library,
    log: Log,
    _gateway: Gateway,
    admin: Client,
}

impl Desk {
    async fn open() -> Self {
        let library = Library::new(LABELS);
        let log = Log::new();
        let gateway = Gateway::start(&(log.table() + WRITE + &library.table())).await;
        serves(&gateway, "version 1").await;
        let admin = gateway.admin().with("Authorization", "Bearer t0ken");
        Self { library, log, _gateway: gateway, admin }
    }

    /// The prompt with its labels.
    async fn look(&self) -> Value {
        let shown = self.admin.send("GET", "/api/v1/labels", &[], b"").await.json();
        shown["prompts"][0].clone()
    }

    /// The same, once the gateway has read them.
    async fn row(&self, accept: impl FnMut(&Value) -> bool) -> Value {
        eventually(async || self.look().await, accept).await
    }

    async fn put(&self, label: &str, tag: &str, body: Value) -> (u16, Value) {
        self.change("PUT", label, tag, body).await
    }

    async fn change(&self, method: &str, label: &str, tag: &str, body: Value) -> (u16, Value) {
        let path = format!("/api/v1/labels/lib__refund/{label}");
        let headers = [("If-Match", tag), ("Content-Type", "application/json")];
        let headers = if tag.is_empty() { &headers[1..] } else { &headers[..] };
        let reply = self.admin.send(method, &path, headers, body.to_string().as_bytes()).await;
        (reply.status, reply.json())
    }
}

fn tag(row: &Value) -> String {
    row["tag"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_move_over_the_api_is_of_what_was_seen_and_on_record() {
    let desk = Desk::open().await;
    let row = desk.row(|_| true).await;
    assert_eq!(row["labels"], json!({"production": 1, "candidate": 3}));
    assert_eq!((&row["versions"], &row["served"]), (&json!([1, 2, 3]), &json!(1)));
    let body = json!({"version": 2, "by": "ada", "why": "shorter"});
    assert_eq!(desk.put("candidate", "", body.clone()).await.0, 428);
    let (status, done) = desk.put("candidate", &tag(&row), body.clone()).await;
    let expected = json!({"name": REFUND, "label": "candidate", "from": 3, "to": 2});
    assert_eq!((status, &done), (200, &expected));
    assert!(desk.library.labels().starts_with("# reviewed\n"));
    let record = desk.log.wait_for("label_moved").await;
    for (key, expected) in [
        ("upstream", json!("lib")),
        ("prompt", json!("refund")),
        ("label", json!("candidate")),
        ("from", json!(3)),
        ("to", json!(2)),
        ("by", json!("ada")),
        ("why", json!("shorter")),
        ("via", json!("admin")),
    ] {
        assert_eq!(record[key], expected, "{key}: {record}");
    }
    let moved = desk.look().await;
    assert_eq!(moved["labels"]["candidate"], 2, "the answer comes once the move can be seen");
    assert_eq!(desk.put("candidate", &tag(&row), body).await.0, 412, "seen before the move");
    for (version, expected) in [(9, 409), (2, 409)] {
        let (status, said) = desk.put("candidate", &tag(&moved), json!({"version": version})).await;
        assert_eq!(status, expected, "{said}");
    }
    assert_eq!(desk.put("7", &tag(&moved), json!({"version": 1})).await.0, 409, "no label");
    let (status, said) = desk.put("canddate", &tag(&moved), json!({"version": 1})).await;
    assert_eq!(status, 409, "{said}");
    assert!(said["error"].as_str().unwrap().contains("did you mean `candidate`?"), "{said}");
    let (status, done) = desk.put("new", &tag(&moved), json!({"version": 1, "new": true})).await;
    assert_eq!((status, &done["to"]), (200, &json!(1)), "{done}");
    let made = desk.look().await;
    let (status, done) = desk.change("DELETE", "new", &tag(&made), json!({"by": "ada"})).await;
    let expected = json!({"name": REFUND, "label": "new", "from": 1, "to": null});
    assert_eq!((status, &done), (200, &expected));
    let removed = desk.look().await;
    assert_eq!(removed["labels"], moved["labels"]);
    let (status, said) = desk.change("DELETE", "production", &tag(&removed), json!({})).await;
    assert_eq!(status, 409, "{said}");
    assert_eq!(desk.log.wait_for("label_removed").await["label"], "new");
    let path = "/prompts/lib__refund/versions?left=production&right=candidate";
    let page = desk.admin.send("GET", path, &[], b"").await.body;
    let page = String::from_utf8(page).unwrap();
    for expected in [
        "aria-label=\"Versions\"",
        "candidate from 3 to 2",
        "shorter",
        "From production to candidate",
        "<mark>2</mark>",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
}

#[tokio::test]
async fn a_move_in_the_file_is_on_record_and_one_by_a_command_is_so_once() {
    let desk = Desk::open().await;
    let row = desk.row(|_| true).await;
    let body = json!({"version": 2, "by": "ada"});
    assert_eq!(desk.put("candidate", &tag(&row), body).await.0, 200);
    desk.library.write("labels.toml", "[refund]\nproduction = 3\nnew = 1\n");
    desk.log.wait_for("label_removed").await;
    let text = |record: &Value| {
        let key = |key| record[key].to_string();
        ["label", "from", "to", "by", "via"].map(key).join(" ")
    };
    let moved: Vec<_> = desk.log.of("label_moved").iter().map(text).collect();
    let expected = [
        r#""candidate" 3 2 "ada" "admin""#,
        r#""new" null 1 null "file""#,
        r#""production" 1 3 null "file""#,
    ];
    assert_eq!(moved, expected, "in the order of the moves");
    let removed: Vec<_> = desk.log.of("label_removed").iter().map(text).collect();
    assert_eq!(removed, [r#""candidate" 2 null null "file""#]);
}

#[tokio::test]
async fn files_that_are_saved_in_parts_or_beside_others_are_never_served_in_part() {
    let library = Library::new(LABELS);
    let gateway = Gateway::start(&(library.table() + PINS)).await;
    serves(&gateway, "version 1").await;
    let client = gateway.client();
    let path = library.path();
    let whole = |text: &str| format!("---\nname: refund\ndescription: d\n---\n{text}");
    // Backups of editors and the temporary files of rsync are no prompts, and no versions.
    for name in ["1.md~", ".1.md.swp", ".1.md.XyZ123", "#1.md#", "4913", "1.md.orig", "1.md.bak"] {
        fs::write(path.join("refund/versions").join(name), whole("partial")).unwrap();
    }
    // Each way to save the versions and the labels; what is seen meanwhile is old or new.
    let one = path.join("refund/versions/1.md");
    let cut = "---\nname: refund\ndescr";
    for (how, first) in [("truncated first", Some("")), ("in halves", Some(cut)), ("renamed", None)]
    {
        match first {
            Some(first) => {
                fs::write(&one, first).unwrap();
                fs::write(&one, whole(how)).unwrap();
            }
            None => library.write("refund/versions/1.md", &whole(how)),
        }
        let got = async || text(&get_at(&client, "/mcp", REFUND).await).to_owned();
        let mut seen = Vec::new();
        eventually(got, |now| {
            seen.push(now.clone());
            now == how
        })
        .await;
        seen.dedup();
        assert!(seen.len() <= 2, "{how}: {seen:?}");
    }
    // A half that is left there is no text, and neither are the labels before their table.
    for (name, half) in
        [("refund/versions/1.md", cut), ("labels.toml", "[plain]\nproduction = 1\n")]
    {
        fs::write(path.join(name), half).unwrap();
        let left_out = async || get_at(&client, "/mcp", REFUND).await;
        let got = eventually(left_out, |got| text(got) == "renamed").await;
        assert_eq!(got["result"]["_meta"]["version"], "1", "{name}");
    }
    let left_out = async || names_at(&client, "/mcp/pins").await;
    let names =
        eventually(left_out, |names| !names.contains(&"lib__refund@candidate".into())).await;
    assert!(names.contains(&REFUND.to_owned()), "{names:?}");
    assert_eq!(text(&get_at(&client, "/mcp", REFUND).await), "renamed");
}

#[tokio::test]
async fn a_version_that_broke_while_the_gateway_was_down_is_withheld_and_never_the_newest() {
    let library = Library::new(LABELS);
    library.write("refund/versions/1.md", "---\nname: [\n---\n");
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned() + &library.table() + PINS;
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    eventually(async || names_at(&client, "/mcp").await, |names| names == &["lib__plain"]).await;
    let catalog = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await.json();
    let why = catalog["leftOut"].to_string();
    assert!(why.contains("production of refund is version 1, which is missing"), "{why}");
    let got = get_at(&client, "/mcp", REFUND).await;
    assert_eq!(text(&got), "", "{got}");
    library.write("refund/versions/1.md", "---\nname: refund\n---\nrepaired");
    serves(&gateway, "repaired").await;
}

#[tokio::test]
async fn commands_move_labels_with_a_gateway_and_without_one() {
    let library = Library::new(LABELS);
    let folder = library.folder.path().to_owned();
    let toml = format!("[audit]\npath = \"audit\"\nkey = {{ value = \"{KEY}\" }}\n")
        + "\
        [telemetry]\nlog = \"warn,promptgate::app=info\"\n\
        [admin]\nwrite = true\ntoken = { value = \"t0ken\" }\n";
    fs::write(folder.join("gateway.toml"), toml + &library.table()).unwrap();
    let run = async |user: &str, arguments: &[&str]| {
        let mut command = command(&folder, arguments);
        command.env("PROMPTGATE_ADMIN_TOKEN", "t0ken").env("USER", user);
        let output = tokio::process::Command::from(command).output().await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let said =
        run("ada", &["labels", "set", REFUND, "production", "2", "--reason", "why not"]).await;
    assert_eq!(
        (said.0, said.1.as_str()),
        (Some(0), "production of lib__refund: version 1 → 2\n"),
        "{said:?}"
    );
    assert_eq!(library.labels(), LABELS.replace("production = 1", "production = 2"));
    let before = library.labels();
    let slip = ["labels", "set", REFUND, "prod", "2"];
    let said = run("ada", &slip).await;
    assert_eq!(said.0, Some(1), "{said:?}");
    for expected in ["has no label prod; it has candidate, production", "`production`?", "`--new`"]
    {
        assert!(said.2.contains(expected), "{said:?}");
    }
    let said = run("ada", &[&slip[..], &["--new"]].concat()).await;
    assert_eq!(said.1, "prod of lib__refund: version 2\n", "{said:?}");
    let said = run("ada", &["labels", "remove", REFUND, "prod", "--reason", "a slip"]).await;
    assert_eq!(said.1, "prod of lib__refund: removed\n", "{said:?}");
    assert_eq!(library.labels(), before);
    let said = run("ada", &["labels", "remove", REFUND, "production"]).await;
    assert_eq!(said.0, Some(1), "{said:?}");
    assert!(said.2.contains("lib__refund is served by production"), "{said:?}");
    let unknown = run("ada", &["labels", "set", "lib__refnud", "production", "2"]).await;
    assert_eq!(unknown.0, Some(64), "{unknown:?}");
    assert!(unknown.2.contains(REFUND), "{unknown:?}");
    let (process, _) = Process::serve_admin(&folder, &[]).await;
    let said = run("bob", &["labels", "set", REFUND, "production", "3"]).await;
    assert_eq!(said.1, "production of lib__refund: version 2 → 3\n", "{said:?}");
    let list = async || run("bob", &["labels", "list"]).await.1;
    let listed = eventually(list, |list| list.contains("production=3")).await;
    assert!(listed.contains("1, 2, 3"), "{listed}");
    let said = run("bob", &["labels", "remove", REFUND, "candidate"]).await;
    assert_eq!(said.1, "candidate of lib__refund: removed\n", "{said:?}");
    let history = async || run("bob", &["labels", "history"]).await.1;
    let history = eventually(history, |history| history.contains("by=bob")).await;
    for expected in [
        "label_moved",
        "label_removed",
        "why=a slip",
        "by=ada",
        "why=why not",
        "from=1",
        "to=2",
        "via=cli",
        "via=admin",
    ] {
        assert!(history.contains(expected), "{expected}: {history}");
    }
    process.stop().await;
}

#[tokio::test]
async fn status_says_what_is_wrong_with_labels_and_counts_that_as_no_prompt() {
    let library = Library::new(LABELS);
    let folder = library.folder.path();
    fs::write(folder.join("gateway.toml"), library.table()).unwrap();
    let (process, _) = Process::serve_admin(folder, &[]).await;
    let status = async || {
        let mut command = tokio::process::Command::from(command(folder, &["status"]));
        let output = command.output().await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for (labels, expected) in [
        ("[refund\n", "labels.toml:1:"),
        ("[refund]\nproduction = 9\n", "production of refund is version 9"),
    ] {
        library.write("labels.toml", labels);
        let said = eventually(status, |said| said.contains("lib: ")).await;
        let line = said.lines().find(|line| line.starts_with("lib: ")).unwrap();
        assert!(line.contains(expected) && !said.contains("not listed"), "{said}");
        library.write("labels.toml", LABELS);
        eventually(status, |said| !said.contains("lib: ")).await;
    }
    process.stop().await;
}

/// A caller that gets `team__refund` every 50 ms until it is stopped, and every reply.
struct SteadyCaller {
    stop: CancellationToken,
    replies: JoinHandle<Vec<Value>>,
}

impl SteadyCaller {
    fn start(client: Client) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let replies = tokio::spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_millis(50));
            let mut replies = Vec::new();
            while !stopped.is_cancelled() {
                pace.tick().await;
                let get = client.modern("prompts/get", json!({"name": "team__refund"}));
                replies.push(get.await.json());
            }
            replies
        });
        Self { stop, replies }
    }

    /// Returns the texts in their order, without repetitions.
    async fn texts(self) -> Vec<String> {
        self.stop.cancel();
        let replies = self.replies.await.unwrap();
        let text = |reply: &Value| {
            let text = reply["result"]["messages"][0]["content"]["text"].as_str();
            text.unwrap_or_else(|| panic!("a get failed: {reply}")).to_owned()
        };
        let mut texts: Vec<_> = replies.iter().map(text).collect();
        texts.dedup();
        texts
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_get_fails_during_the_walk_through_of_versions_with_approvals() {
    const KEY: &str = "key-of-the-walk-through";
    let steps = walk_through(include_str!("../../docs/versions.md"));
    assert!(steps.len() > 12, "{}", steps.len());
    let folder = tempfile::tempdir().unwrap();
    let variables = [("PROMPTGATE_ADMIN_TOKEN", "token"), ("PROMPTGATE_API_KEY", KEY)];
    let mut serving = None;
    for step in steps {
        if step.command == "promptgate serve &" {
            let (process, _) = Process::serve_admin(folder.path(), &variables).await;
            let client = process.client().with("X-API-Key", KEY);
            serving = Some((process, SteadyCaller::start(client)));
            continue;
        }
        let folder = folder.path().to_owned();
        tokio::task::spawn_blocking(move || step.run(&folder, &variables)).await.unwrap();
    }
    let (process, caller) = serving.expect("a step serves");
    let texts = caller.texts().await;
    let text = |number: u32| format!("Refund, version {number}.");
    assert_eq!(texts, [1, 2, 3, 2, 1].map(text), "no other text, and each at its turn");
    process.stop().await;
}

#[tokio::test]
async fn a_version_that_is_not_approved_takes_no_prompt_from_its_callers() {
    let library = Library::new("[refund]\nproduction = 1\n");
    let table = library.table().replace("[listing]\ndebounce = \"1ms\"\n", "");
    let rule = "[[access.rules]]\nallow = [\"list\", \"get\"]\nstates = [\"approved\"]\n";
    let folder = Folder::new(&(enforced("") + ADMIN + &table + rule));
    let approved = folder.approvals(&["approve", "lib__refund@1", "lib__plain", "--yes"]).await;
    assert_eq!(approved.code, Some(0), "{approved:?}");
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let text = async || {
        let params = json!({"name": "lib__refund"});
        let reply = process.client().modern("prompts/get", params).await.json();
        reply["result"]["messages"][0]["content"]["text"].as_str().unwrap_or("none").to_owned()
    };
    eventually(&text, |text| text == "version 1").await;
    let offered = async |version: &str, state: &str| {
        let row = async || {
            let list = admin.send("GET", "/api/v1/approvals", &[], b"").await.json();
            let mut rows = list["prompts"].as_array().unwrap().clone().into_iter();
            rows.find(|row| row["name"] == version).unwrap_or_default()
        };
        eventually(row, |row| {
            let aliases = row["aliases"].as_array().cloned().unwrap_or_default();
            aliases.contains(&json!("lib__refund")) && row["state"] == state
        })
        .await
    };

    // A label that moves in the file.
    library.write("labels.toml", "[refund]\nproduction = 2\n");
    offered("lib__refund@2", "pending").await;
    assert_eq!(text().await, "version 1");
    let page = admin.send("GET", "/prompts/lib__refund", &[], b"").await.body;
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("version 2 is pending; version 1 is served"), "{page}");
    let approved = folder.approvals(&["approve", "lib__refund", "--yes"]).await;
    assert_eq!(approved.stdout, "Approved: lib__refund@2\n", "the version that the name offers");
    eventually(&text, |text| text == "version 2").await;

    // A version that is edited in its file.
    let edited = "---\nname: refund\ndescription: d\n---\nversion 2, edited";
    library.write("refund/versions/2.md", edited);
    offered("lib__refund@2", "changed").await;
    assert_eq!(text().await, "version 2");

    // The way back is open, and the edited version has its approved text.
    library.write("labels.toml", "[refund]\nproduction = 1\n");
    eventually(&text, |text| text == "version 1").await;
    library.write("labels.toml", "[refund]\nproduction = 2\n");
    offered("lib__refund@2", "changed").await;
    assert_eq!(text().await, "version 1", "the version before, since version 2 waits");

    // A withdrawal takes a version from all its names.
    let withdrawn = folder.approvals(&["withdraw", "lib__refund@1", "--yes"]).await;
    assert_eq!(withdrawn.code, Some(0), "{withdrawn:?}");
    eventually(&text, |text| text == "version 2").await;
    process.stop().await;
}

#[tokio::test]
async fn uses_are_counted_by_version_whichever_name_led_there() {
    let (library, log, index) = (Library::new(LABELS), Log::new(), tempfile::tempdir().unwrap());
    let toml = format!("{ADMIN}[admin.usage]\npath = {:?}\n", index.path())
        + &log.table()
        + &library.table()
        + PINS;
    let gateway = Gateway::start(&toml).await;
    serves(&gateway, "version 1").await;
    let client = gateway.client();
    for name in ["lib__refund@production", "lib__refund@1", "lib__refund@candidate"] {
        assert!(text(&get_at(&client, "/mcp/pins", name).await).starts_with("version"), "{name}");
    }
    let admin = gateway.admin();
    let path = format!("/prompts/{REFUND}/versions");
    let page = async || String::from_utf8(admin.send("GET", &path, &[], b"").await.body).unwrap();
    let counted = |page: &String| {
        let cells = page.split("data-label=\"Uses, 24 h\">").skip(1);
        let uses: Vec<u32> =
            cells.filter_map(|cell| cell.split('<').next()?.parse().ok()).collect();
        // The newest first. The plain name is got until it is served, at least once.
        matches!(uses[..], [1, 0, first] if first >= 3)
    };
    eventually(page, counted).await;
    assert_eq!(log.wait_for("received").await["version"], "3", "of the last get");
}
