//! Skills: found, read and checked as prompts are, and never another file than the entry says.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base::seal::sha256_text;
use serde_json::{Value, json};

use super::audit::Log;
use crate::support::client::Reply;
use crate::support::client::modern;
use crate::support::gateway::api_key;
use crate::support::upstream::{OpenStream, Received, Scripted};
use crate::support::{Client, Gateway, Upstream, eventually};

mod dynamic;
mod skill_approvals;
mod skill_attacks;
mod skill_scale;

pub(super) const REFUNDS: &str =
    "---\nname: refunds\ndescription: Refund a customer\n---\nRead [limits](limits.md).";

/// An entry with these files.
pub(super) fn skill(base: &str, files: &[(&str, &str)]) -> Value {
    let name = base.rsplit('/').next().unwrap();
    let resources = files.iter().map(|(file, text)| {
        let digest = sha256_text(text.as_bytes());
        json!({"uri": format!("{base}/{file}"), "digest": digest, "size": text.len()})
    });
    json!({"uri": format!("{base}/SKILL.md"), "resources": resources.collect::<Vec<_>>(),
        "frontmatter": {"name": name, "description": "d", "x-own": [1]}})
}

pub(super) fn discovered(asked: &Received) -> Scripted {
    asked.result(json!({
        "resultType": "complete", "ttlMs": 0, "cacheScope": "public",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"prompts": {}, "resources": {},
            "extensions": {"io.modelcontextprotocol/skills": {}}},
    }))
}

pub(super) fn listed(asked: &Received, skills: &Value) -> Scripted {
    asked.result(json!({"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public",
        "skills": skills}))
}

pub(super) fn file(asked: &Received, text: &str) -> Scripted {
    let uri = &asked.message["params"]["uri"];
    asked.result(json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private",
        "contents": [{"uri": uri, "mimeType": "text/markdown", "text": text}]}))
}

/// An upstream with these skills, whose files are what `read` answers.
pub(super) async fn upstream(
    skills: Value,
    read: impl Fn(&Received) -> Scripted + Send + Sync + 'static,
) -> Upstream {
    Upstream::modern(move |asked| match asked.method() {
        "server/discover" => Some(discovered(asked)),
        "skills/list" => Some(listed(asked, &skills)),
        "resources/read" => Some(read(asked)),
        _ => None,
    })
    .await
}

/// One whose one skill has this one file.
pub(super) async fn simple(base: &str) -> Upstream {
    upstream(json!([skill(base, &[("SKILL.md", REFUNDS)])]), |asked| file(asked, REFUNDS)).await
}

pub(super) async fn uris(client: &Client) -> Vec<String> {
    let result = client.ask("skills/list", json!({})).await;
    let skills = result["skills"].as_array().unwrap().iter();
    skills.map(|skill| skill["uri"].as_str().unwrap().to_owned()).collect()
}

async fn read(client: &Client, uri: &str) -> Value {
    client.ask("resources/read", json!({"uri": uri})).await
}

/// The reason of an error, and everything that was answered.
pub(super) async fn refused(client: &Client, method: &str, uri: &str) -> (String, String) {
    let error = client.ask_error(method, json!({"uri": uri})).await;
    (error["data"]["reason"].as_str().unwrap_or_default().to_owned(), error.to_string())
}

pub(super) fn reads(upstream: &Upstream) -> usize {
    upstream.methods().iter().filter(|method| *method == "resources/read").count()
}

pub(super) async fn post_at(client: &Client, path: &str, method: &str, params: Value) -> Reply {
    let (body, headers) = modern(1, method, params);
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    client.send("POST", path, &headers, body.to_string().as_bytes()).await
}

pub(super) fn library(files: &[(&str, &str)]) -> (String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let toml = format!("[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n", folder.path());
    (toml, folder)
}

#[tokio::test]
async fn a_folder_of_a_library_is_a_skill_that_hosts_find_and_read() {
    let (toml, folder) = library(&[
        ("refunds/SKILL.md", REFUNDS),
        ("refunds/limits.md", "at most 100"),
        ("refunds/forms/eu/a b.txt", "form"),
    ]);
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let capabilities = client.ask("server/discover", json!({})).await["capabilities"].take();
    let extension = json!({"io.modelcontextprotocol/skills": {"directoryRead": true}});
    assert_eq!(capabilities["extensions"], extension);
    assert_eq!(capabilities["resources"], json!({}));

    let listed = client.ask("skills/list", json!({})).await;
    assert_eq!(listed["resultType"], "complete");
    assert!(listed["ttlMs"].is_u64() && listed["cacheScope"].is_string(), "{listed}");
    let entry = &listed["skills"][0];
    assert_eq!(entry["uri"], "skill://lib/refunds/SKILL.md");
    assert_eq!(
        entry["frontmatter"],
        json!({"name": "refunds", "description": "Refund a customer"})
    );
    let files = entry["resources"].as_array().unwrap();
    assert_eq!(files.len(), 3);
    let got = client.ask("skills/get", json!({"uri": entry["uri"]})).await;
    assert_eq!(got["skill"], *entry);
    assert!(got["ttlMs"].is_u64() && got["cacheScope"].is_string(), "{got}");
    for listed in files {
        let result = read(&client, listed["uri"].as_str().unwrap()).await;
        let content = &result["contents"][0];
        assert_eq!(content["uri"], listed["uri"]);
        let text = content["text"].as_str().unwrap();
        assert_eq!(listed["digest"], sha256_text(text.as_bytes()));
        assert_eq!(listed["size"], text.len());
        assert!(result["ttlMs"].is_u64() && result["cacheScope"].is_string(), "{result}");
    }
    let folder_of = async |uri: &str| {
        let result = client.ask("resources/directory/read", json!({"uri": uri})).await;
        result["resources"].as_array().unwrap().clone()
    };
    let root = folder_of("skill://lib/refunds").await;
    let forms =
        json!({"uri": "skill://lib/refunds/forms", "name": "forms", "mimeType": "inode/directory"});
    assert!(root.len() == 3 && root.contains(&forms), "{root:?}");
    assert_eq!(folder_of("skill://lib/refunds/forms/eu").await[0]["name"], "a b.txt");
    for method in ["resources/list", "resources/templates/list"] {
        client.ask(method, json!({})).await;
    }

    // An edit is followed, and what was listed before is not served under the old entry.
    fs::write(folder.path().join("refunds/limits.md"), "at most 200").unwrap();
    let text = async || {
        let reply =
            client.modern("resources/read", json!({"uri": "skill://lib/refunds/limits.md"}));
        reply.await.json()["result"]["contents"][0]["text"].as_str().map(str::to_owned)
    };
    eventually(text, |text| text.as_deref() == Some("at most 200")).await;
    let entry = client.ask("skills/get", json!({"uri": "skill://lib/refunds/SKILL.md"})).await;
    let digest = sha256_text(b"at most 200");
    assert!(entry.to_string().contains(&digest), "{entry}");
    fs::write(folder.path().join("refunds/SKILL.md"), "---\nname: refund\n---\n").unwrap();
    let known =
        async || client.modern("skills/list", json!({})).await.json()["result"]["skills"].take();
    eventually(known, |skills| skills.is_null()).await;
    assert_eq!(
        client.modern("skills/list", json!({})).await.status,
        404,
        "there are none any more"
    );
}

#[tokio::test]
async fn skills_of_upstreams_are_listed_whole_under_their_prefixes() {
    let page = |asked: &Received, cursor: Option<&str>, skill: Value, scope: &str| {
        let mut result = json!({"resultType": "complete", "ttlMs": 5_000, "cacheScope": scope,
            "skills": [skill]});
        if let Some(cursor) = cursor {
            result["nextCursor"] = cursor.into();
        }
        asked.result(result)
    };
    let one = Upstream::modern(move |asked| match asked.method() {
        "server/discover" => Some(discovered(asked)),
        "skills/list" if asked.message["params"]["cursor"] == "2" => {
            let other = skill("github://o/r/b", &[("SKILL.md", REFUNDS)]);
            Some(page(asked, None, other, "private"))
        }
        "skills/list" => {
            let first = skill("skill://acme/a", &[("SKILL.md", REFUNDS), ("x/y.txt", "why")]);
            Some(page(asked, Some("2"), first, "public"))
        }
        "resources/read" => Some(file(asked, REFUNDS)),
        _ => None,
    })
    .await;
    let two = simple("skill://acme/a").await;
    let toml = "[listing]\npage_size = 2\n".to_owned() + &one.table("one") + &two.table("two");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let first = client.ask("skills/list", json!({})).await;
    assert_eq!(first["cacheScope"], "private", "the strictest");
    assert!(first["ttlMs"].as_u64().unwrap() <= 5_000, "the least: {first}");
    let second = client.ask("skills/list", json!({"cursor": first["nextCursor"]})).await;
    let skills: Vec<_> =
        [&first, &second].iter().flat_map(|page| page["skills"].as_array().unwrap()).collect();
    let found: Vec<_> = skills.iter().map(|skill| skill["uri"].as_str().unwrap()).collect();
    let own = "skill://one/github/o/r/b/SKILL.md";
    assert_eq!(found, ["skill://one/acme/a/SKILL.md", own, "skill://two/acme/a/SKILL.md"]);
    let expected = skill("skill://one/acme/a", &[("SKILL.md", REFUNDS), ("x/y.txt", "why")]);
    assert_eq!(*skills[0], expected, "but for the beginning of URIs as the upstream has it");
    // The cursor of one list is none of another.
    let error = client.ask_error("prompts/list", json!({"cursor": first["nextCursor"]})).await;
    assert_eq!(error["data"]["reason"], "invalid_cursor");

    let content = read(&client, own).await["contents"][0].take();
    assert_eq!(content, json!({"uri": own, "mimeType": "text/markdown", "text": REFUNDS}));
    let received = one.received();
    let asked = received.iter().find(|asked| asked.method() == "resources/read").unwrap();
    assert_eq!(asked.message["params"]["uri"], "github://o/r/b/SKILL.md");
    assert_eq!(asked.header("mcp-name"), Some("github://o/r/b/SKILL.md"));
    assert_eq!(reads(&two), 0);
}

#[tokio::test]
async fn a_file_that_differs_from_its_entry_is_not_served() {
    let secret = "another text, of the same size";
    for answer in [
        json!([{"uri": "skill://a/SKILL.md", "text": secret}]),
        json!([{"uri": "skill://a/SKILL.md", "text": format!("{secret} and more")}]),
        json!([{"uri": "skill://b/SKILL.md", "text": "x".repeat(30)}]),
        json!([{"uri": "skill://a/SKILL.md", "text": "x".repeat(30)}, {"uri": "skill://a/y", "text": secret}]),
        json!([{"uri": "skill://a/SKILL.md", "blob": "YW5vdGhlciB0ZXh0"}]),
        json!([]),
    ] {
        let entry = skill("skill://a", &[("SKILL.md", &"x".repeat(30))]);
        let lying = upstream(json!([entry]), move |asked| {
            asked.result(json!({"resultType": "complete", "contents": answer}))
        });
        let lying = lying.await;
        let gateway = Gateway::before(&[("up", &lying)]).await;
        let (reason, all) =
            refused(&gateway.client(), "resources/read", "skill://up/a/SKILL.md").await;
        assert_eq!(reason, "upstream_protocol_error", "{all}");
        assert!(!all.contains(secret), "{all}");
    }
}

#[tokio::test]
async fn a_skill_that_has_changed_is_served_once_its_new_entry_is_known() {
    let version = Arc::new(AtomicUsize::new(0));
    let now = version.clone();
    let changing = Upstream::modern(move |asked| {
        let text = format!("version {}", now.load(Ordering::SeqCst));
        match asked.method() {
            "server/discover" => Some(discovered(asked)),
            "skills/list" => {
                Some(listed(asked, &json!([skill("skill://a", &[("SKILL.md", &text)])])))
            }
            "resources/read" => Some(file(asked, &text)),
            _ => None,
        }
    })
    .await;
    let gateway = Gateway::before(&[("up", &changing)]).await;
    let (client, uri) = (gateway.client(), "skill://up/a/SKILL.md");
    assert_eq!(read(&client, uri).await["contents"][0]["text"], "version 0");
    version.store(1, Ordering::SeqCst);
    let (reason, _) = refused(&client, "resources/read", uri).await;
    assert_eq!(reason, "upstream_protocol_error", "the entry is still the old one");
    let reading = async || client.modern("resources/read", json!({"uri": uri})).await.json();
    let reply = eventually(reading, |reply| reply.get("result").is_some()).await;
    assert_eq!(reply["result"]["contents"][0]["text"], "version 1");
    let entry = client.ask("skills/get", json!({"uri": uri})).await;
    assert_eq!(entry["skill"]["resources"][0]["digest"], sha256_text(b"version 1"));
}

/// An upstream that announces changes of these lists, the number that its one skill has in its
/// name, and its newest notification stream.
async fn announcing(
    lists: &[&str],
) -> (Upstream, Arc<AtomicUsize>, Arc<Mutex<Option<OpenStream>>>) {
    let (number, stream) = (Arc::new(AtomicUsize::new(1)), Arc::new(Mutex::new(None)));
    let (now, opened) = (number.clone(), stream.clone());
    let mut capabilities = json!({"extensions": {"io.modelcontextprotocol/skills": {}},
        "prompts": {}, "resources": {}});
    for list in lists {
        capabilities[*list]["listChanged"] = true.into();
    }
    let upstream = Upstream::modern(move |asked| match asked.method() {
        "server/discover" => Some(asked.result(json!({"resultType": "complete", "ttlMs": 0,
            "cacheScope": "public", "supportedVersions": ["2026-07-28"],
            "capabilities": capabilities}))),
        "subscriptions/listen" => {
            let (open, scripted) = OpenStream::new();
            *opened.lock().unwrap() = Some(open);
            Some(scripted)
        }
        "skills/list" => {
            let base = format!("skill://s{}", now.load(Ordering::SeqCst));
            Some(listed(asked, &json!([skill(&base, &[("SKILL.md", REFUNDS)])])))
        }
        _ => None,
    });
    (upstream.await, number, stream)
}

#[tokio::test]
async fn a_change_of_resources_that_an_upstream_announces_has_its_skills_fetched_again() {
    let (upstream, number, stream) = announcing(&["resources"]).await;
    let toml = upstream.table("up") + "poll = \"0s\"\nmax_age = \"1h\"\n";
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    assert_eq!(uris(&client).await, ["skill://up/s1/SKILL.md"]);
    let open = async || stream.lock().unwrap().clone();
    let open = eventually(open, Option::is_some).await.unwrap();
    number.store(2, Ordering::SeqCst);
    open.send(&json!({"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}));
    eventually(async || uris(&client).await, |uris| *uris == ["skill://up/s2/SKILL.md"]).await;
    let received = upstream.received();
    let listen = received.iter().find(|asked| asked.method() == "subscriptions/listen").unwrap();
    let wanted = json!({"resourcesListChanged": true});
    assert_eq!(listen.message["params"]["notifications"], wanted);
}

#[tokio::test]
async fn skills_are_polled_even_where_changes_of_prompts_are_announced() {
    let (upstream, number, stream) = announcing(&["prompts"]).await;
    let toml = upstream.table("up") + "poll = \"100ms\"\nmax_age = \"1h\"\n";
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    assert_eq!(uris(&client).await, ["skill://up/s1/SKILL.md"]);
    eventually(async || stream.lock().unwrap().is_some(), |is_open| *is_open).await;
    number.store(2, Ordering::SeqCst);
    eventually(async || uris(&client).await, |uris| *uris == ["skill://up/s2/SKILL.md"]).await;
}

#[tokio::test]
async fn skills_may_be_kept_no_longer_than_they_are_polled() {
    let (toml, _folder) = library(&[("refunds/SKILL.md", REFUNDS)]);
    let gateway = Gateway::start(&(toml + "poll = \"7s\"\n")).await;
    let client = gateway.client();
    let uri = json!({"uri": "skill://lib/refunds/SKILL.md"});
    for (method, params) in
        [("skills/list", json!({})), ("skills/get", uri.clone()), ("resources/read", uri)]
    {
        let ttl = client.ask(method, params).await["ttlMs"].as_u64().unwrap();
        assert!((1..=7_000).contains(&ttl), "{method}: {ttl}");
    }
    let prompts = client.ask("prompts/list", json!({})).await;
    assert_eq!(prompts["ttlMs"], 300_000, "changes of prompts are announced");
}

#[tokio::test]
async fn malformed_skills_are_left_out_and_uris_of_clients_are_never_cut_together() {
    let own = [("SKILL.md", REFUNDS)];
    let many: Vec<String> = (0..600).map(|n| format!("{n}.md")).collect();
    let mut many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "x")).collect();
    many.push(own[0]);
    let mut large = skill("skill://large", &own);
    large["resources"][0]["size"] = json!(17 << 20);
    let mut foreign = skill("skill://foreign", &own);
    foreign["resources"][0]["uri"] = "file:///etc/passwd".into();
    let mut renamed = skill("skill://renamed", &own);
    renamed["frontmatter"]["name"] = "other".into();
    let skills = json!([
        skill("skill://good", &own),
        skill("skill://many", &many),
        large,
        foreign,
        renamed,
        skill("skill://x/../up", &own),
        skill("skill://a%2Fb", &own),
        skill("skill://%2e%2e/a", &own),
        skill("skill://good", &[("SKILL.md", REFUNDS), ("../other/x", "x")]),
        7,
        null,
    ]);
    let hostile = upstream(skills, |asked| file(asked, REFUNDS)).await;
    let other = simple("skill://secret").await;
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned()
        + &hostile.table("up")
        + &other.table("other");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    assert_eq!(uris(&client).await, ["skill://other/secret/SKILL.md", "skill://up/good/SKILL.md"]);
    for uri in [
        "skill://up/good/../../other/secret/SKILL.md",
        "skill://up/good/./SKILL.md",
        "skill://up/good//SKILL.md",
        "skill://up/good/%53KILL.md",
        "skill://up%2Fgood/SKILL.md",
        "skill://up/good/SKILL.md/",
        "skill://up/good/SKILL.md?x",
        "skill://UP/good/SKILL.md",
        "skill://good/SKILL.md",
        "skill://up/secret/SKILL.md",
        "skill://up/many/1.md",
        "skill://up/good",
        "skill://",
        "skill:///etc/passwd",
        "file:///etc/passwd",
        "SKILL://up/good/SKILL.md",
    ] {
        let (reason, all) = refused(&client, "resources/read", uri).await;
        assert_eq!(reason, "unknown_resource", "{all}");
        assert!(all.contains("-32602"), "{all}");
    }
    for (method, uri) in [
        ("skills/get", "skill://up/good"),
        ("resources/directory/read", "skill://up/good/SKILL.md"),
        ("resources/directory/read", "skill://up"),
        ("resources/directory/read", "skill://up/good/"),
    ] {
        assert_eq!(refused(&client, method, uri).await.0, "unknown_resource", "{method} {uri}");
    }
    assert_eq!((reads(&hostile), reads(&other)), (0, 0), "no such URI reaches an upstream");
}

#[tokio::test]
async fn what_rules_deny_is_as_unknown_as_what_nobody_has() {
    let (crm, git) = (simple("skill://refunds").await, simple("skill://review").await);
    let keys = api_key("alice", "alice") + "groups = [\"sales\"]\n" + &api_key("bob", "bob");
    let rules = "[[access.rules]]\nallow = [\"list\", \"get\"]\n\
        [[access.rules]]\ndeny = [\"list\", \"get\"]\ngroups = [\"sales\"]\nprompts = [\"review\"]\n";
    let log = Log::new();
    let toml = keys + rules + &log.table() + &crm.table("crm") + &git.table("git");
    let gateway = Gateway::start(&toml).await;
    let (alice, bob) =
        (gateway.client().with("X-API-Key", "alice"), gateway.client().with("X-API-Key", "bob"));
    assert_eq!(uris(&alice).await, ["skill://crm/refunds/SKILL.md"]);
    assert_eq!(uris(&bob).await, ["skill://crm/refunds/SKILL.md", "skill://git/review/SKILL.md"]);
    let denied = "skill://git/review";
    for (method, uri, unknown) in [
        ("skills/get", "skill://git/review/SKILL.md", "skill://git/nobody/SKILL.md"),
        ("resources/read", "skill://git/review/SKILL.md", "skill://git/nobody/SKILL.md"),
        ("resources/directory/read", denied, "skill://git/nobody"),
    ] {
        let (_, got) = refused(&alice, method, uri).await;
        let (reason, expected) = refused(&alice, method, unknown).await;
        assert_eq!(reason, "unknown_resource");
        assert_eq!(got.replace("review", "nobody"), expected, "{method}");
        bob.ask(method, json!({"uri": uri})).await;
    }
    assert_eq!(reads(&git), 1, "the read of bob alone");
    read(&alice, "skill://crm/refunds/SKILL.md").await;
    // Each is on record with its rule.
    let received = log.of("received");
    let of = |caller: &str, method: &str, decision: &str| {
        let is = |record: &&Value| {
            record["caller"] == caller
                && record["method"] == method
                && record["decision"] == decision
        };
        received.iter().filter(is).cloned().collect::<Vec<_>>()
    };
    let denials = of("alice", "resources/read", "denied");
    assert_eq!(denials[0]["name"], "skill://git/review/SKILL.md", "{denials:?}");
    assert_eq!(denials[0]["prompt"], "review", "{denials:?}");
    let allowed = of("bob", "resources/read", "allowed");
    assert!(allowed[0]["definition"].as_str().unwrap().starts_with("sha256:"), "{allowed:?}");
}

#[tokio::test]
async fn limits_and_views_are_for_skills_too() {
    let (crm, git) = (simple("skill://refunds").await, simple("skill://review").await);
    let toml = "[[limits]]\nname = \"reads\"\nper = [\"prompt\"]\nmethods = [\"resources/read\"]\n\
        rate = \"1/h\"\n[views.sales]\nupstreams = [\"crm\"]\n[views.reviews]\n\
        prompts = [\"skill://*/review/SKILL.md\"]\n[views.none]\nprompts = [\"crm__x\"]\n"
        .to_owned()
        + &crm.table("crm")
        + &git.table("git");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    read(&client, "skill://crm/refunds/SKILL.md").await;
    let again =
        client.modern("resources/read", json!({"uri": "skill://crm/refunds/SKILL.md"})).await;
    assert_eq!(again.refusal().2, "rate_limited");
    read(&client, "skill://git/review/SKILL.md").await;

    let at = async |view: &str, method: &str, params: Value| {
        post_at(&client, &format!("/mcp/{view}"), method, params).await
    };
    for (view, uri) in
        [("sales", "skill://crm/refunds/SKILL.md"), ("reviews", "skill://git/review/SKILL.md")]
    {
        let listed = at(view, "skills/list", json!({})).await.json();
        assert_eq!(listed["result"]["skills"].as_array().unwrap().len(), 1, "{listed}");
        assert_eq!(listed["result"]["skills"][0]["uri"], uri);
    }
    let unknown = at("sales", "skills/get", json!({"uri": "skill://git/review/SKILL.md"})).await;
    assert_eq!(unknown.json()["error"]["code"], -32602);
    let declared = at("none", "server/discover", json!({})).await.json();
    assert!(!declared.to_string().contains("skills"), "{declared}");
    assert_eq!(at("none", "skills/list", json!({})).await.status, 404);
}

#[tokio::test]
async fn skills_of_an_upstream_with_approvals_are_withheld_and_said() {
    let crm = simple("skill://refunds").await;
    let (toml, folder) = library(&[("tea/SKILL.md", &REFUNDS.replace("refunds", "tea"))]);
    let lock = folder.path().join("promptgate.lock");
    let modes = |mode: &str| {
        format!(
            "[approvals]\nmode = \"{mode}\"\nlock = {lock:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n{toml}{}",
            crm.table("crm")
        )
    };
    let gateway = Gateway::start(&modes("enforce")).await;
    let client = gateway.client();
    client.names().await;
    let declared = client.ask("server/discover", json!({})).await;
    assert!(!declared.to_string().contains("skills"), "{declared}");
    for method in ["skills/get", "resources/read"] {
        let reply = client.modern(method, json!({"uri": "skill://crm/refunds/SKILL.md"})).await;
        assert!(reply.json().get("result").is_none(), "{method}");
    }
    assert_eq!(reads(&crm), 0);
    gateway.reload(&modes("off")).await;
    let known = async || client.modern("skills/list", json!({})).await.json();
    eventually(known, |reply| reply["result"]["skills"].as_array().is_some_and(|s| s.len() == 2))
        .await;
    gateway.reload(&modes("enforce")).await;
    assert_eq!(client.modern("skills/list", json!({})).await.status, 404);
}

#[tokio::test]
async fn skills_are_declared_only_where_there_are_some_and_never_to_older_clients() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let declared = gateway.client().ask("server/discover", json!({})).await;
    assert!(declared["capabilities"].get("resources").is_none(), "{declared}");
    assert!(!upstream.methods().contains(&"skills/list".to_owned()), "it declares none");

    let (toml, _folder) = library(&[("refunds/SKILL.md", REFUNDS)]);
    let gateway = Gateway::start(&toml).await;
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"}});
    let opened =
        gateway.client().post(&crate::support::client::request(1, "initialize", params)).await;
    let capabilities = &opened.json()["result"]["capabilities"];
    assert!(capabilities.get("extensions").is_none() && capabilities.get("resources").is_none());
}

#[tokio::test]
async fn an_upstream_that_cannot_list_its_skills_still_has_its_prompts() {
    let broken = Upstream::modern(|asked| match asked.method() {
        "server/discover" => Some(discovered(asked)),
        "skills/list" => Some(asked.error(-32603, "broken")),
        _ => None,
    })
    .await;
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned() + &broken.table("up");
    let gateway = Gateway::start(&toml).await;
    assert_eq!(gateway.client().names().await.0, ["up__p"]);
    let status = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await;
    let text = String::from_utf8_lossy(&status.body).into_owned();
    assert!(text.contains("its skills cannot be listed"), "{text}");
}

#[tokio::test]
async fn skills_that_cannot_be_listed_for_a_while_stay_and_their_list_says_so() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let broken = is_broken.clone();
    let entry = skill("skill://acme/refunds", &[("SKILL.md", REFUNDS)]);
    let upstream = Upstream::modern(move |asked| match asked.method() {
        "server/discover" => Some(discovered(asked)),
        "skills/list" if broken.load(Ordering::SeqCst) => Some(asked.error(-32603, "broken")),
        "skills/list" => {
            let skills = json!({"resultType": "complete", "skills": [entry]});
            Some(asked.result(skills))
        }
        "resources/read" => Some(file(asked, REFUNDS)),
        _ => None,
    })
    .await;
    let gateway = Gateway::start(&(upstream.table("up") + "poll = \"50ms\"\n")).await;
    let client = gateway.client();
    let own = "skill://up/acme/refunds/SKILL.md";
    eventually(async || uris(&client).await, |uris| *uris == [own]).await;
    let incomplete = async |method| {
        let listed = client.ask(method, json!({})).await;
        listed["_meta"]["promptgate/incomplete"][0]["upstream"].clone()
    };
    is_broken.store(true, Ordering::SeqCst);
    eventually(async || incomplete("skills/list").await, |upstream| *upstream == "up").await;
    assert_eq!(uris(&client).await, [own]);
    assert_eq!(read(&client, own).await["contents"][0]["text"], REFUNDS);
    assert_eq!(incomplete("prompts/list").await, Value::Null, "the prompts are there");
    is_broken.store(false, Ordering::SeqCst);
    eventually(async || incomplete("skills/list").await, Value::is_null).await;
}
