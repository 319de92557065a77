//! The admin API is as `openapi.json` says, which is generated from its routes and types: every path
//! and every answer, over the wire.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{document, post, text, with_token};
use crate::approvals::{Changeable, Folder};
use crate::stores::Registry;
use crate::support::client::Reply;
use crate::support::gateway::api_key;
use crate::support::{
    Client, Gateway, Process, Server, ServerMode, Upstream, eventually, upstream::HANG,
};

/// The OpenAPI document, and the answers that were compared with it.
struct Description {
    document: Value,
    seen: BTreeSet<(String, String, u16)>,
}

impl Description {
    async fn of(client: &Client) -> Self {
        Self { document: document(client, "/openapi.json").await, seen: BTreeSet::new() }
    }

    /// Compares an answer with what is described for its path.
    fn check(&mut self, method: &str, path: &str, reply: &Reply) {
        let operation = &self.document["paths"][path][method.to_lowercase()];
        let named = &operation["responses"][reply.status.to_string()];
        let what = format!("{method} {path}, {}", reply.status);
        assert!(!named.is_null(), "{what} is not described: {}", text(reply));
        let response = match named["$ref"].as_str() {
            Some(reference) => self.document.pointer(&reference[1..]).expect("it is defined"),
            None => named,
        };
        self.seen.insert((method.to_owned(), path.to_owned(), reply.status));
        let Some(content) = response["content"].as_object() else {
            assert!(reply.body.is_empty(), "{what}: {}", text(reply));
            return;
        };
        let media_type = reply.header("content-type").expect("a media type");
        let schema = content.get(media_type).unwrap_or_else(|| panic!("{what}: {media_type}"));
        let instance = match media_type {
            "application/json" => reply.json(),
            _ => text(reply).into(),
        };
        let schema = json!({"components": self.document["components"],
            "allOf": [schema["schema"]]});
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        let mistakes: Vec<_> = validator
            .iter_errors(&instance)
            .map(|mistake| format!("{}: {mistake}", mistake.instance_path()))
            .collect();
        assert!(mistakes.is_empty(), "{what}: {mistakes:#?}\n{instance:#}");
    }

    /// Asks for a path of the API; `template` is the path in the document.
    async fn get(&mut self, client: &Client, template: &str, path: &str) -> Reply {
        let reply = client.send("GET", path, &[], b"").await;
        self.check("GET", template, &reply);
        assert_eq!(reply.status, 200, "{path}: {}", text(&reply));
        reply
    }

    fn operations(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        let paths = self.document["paths"].as_object().unwrap().iter();
        paths.flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().iter();
            methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
        })
    }
}

/// A gateway with upstreams of every kind, callers, rules, limits, overlays, a view and approvals.
struct Everything {
    folder: Folder,
    process: Process,
    admin: Client,
    changeable: Changeable,
    /// The store of the upstream `store`.
    registry: Registry,
    _store: Upstream,
    _servers: Vec<Server>,
}

impl Everything {
    async fn start() -> Self {
        let changeable = Changeable::start().await;
        let mut toml = super::ADMIN.to_owned();
        toml += "write = true\ntry_as = true\n[approvals]\nmode = \"off\"\n[views.team]\nupstreams = [\"modern\"]\n";
        toml += &(api_key("ci", "pg_ci") + "groups = [\"staff\"]\n");
        toml += "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ncallers = [\"console\", \"promptgate\"]\n\
            groups = [\"staff\"]\n[[access.rules]]\ndeny = [\"get\"]\nprompts = [\"last\"]\n";
        toml += "[[limits]]\nname = \"slow\"\nper = [\"caller\"]\nrate = \"1/h\"\nburst = 3\ncallers = [\"ci\"]\n\
            methods = [\"prompts/get\"]\n";
        toml += "[[overlays]]\nupstream = \"modern\"\nprompt = \"all\"\ntitle = \"Everything\"\n";
        toml += &(changeable.upstream.table("up") + "approval = \"enforce\"\n");
        let registry = Registry::default();
        registry.publish("gone", "text");
        let store = registry.serve().await;
        toml += &format!(
            "[upstreams.store]\ntransport = \"mlflow\"\nurl = \"http://{}\"\npoll = \"50ms\"\nstate = \"\"\n",
            store.addr
        );
        toml += "[upstreams.dead]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n";
        let mut servers = Vec::new();
        for (id, mode) in [
            ("modern", ServerMode::Modern),
            ("legacy", ServerMode::Http("2025-06-18")),
            ("sse", ServerMode::Sse),
            ("pipe", ServerMode::Stdio),
            ("library", ServerMode::Library),
            ("own", ServerMode::Stdio),
        ] {
            let server = Server::start(mode).await;
            toml += &server.table.replace("[upstreams.up]", &format!("[upstreams.{id}]"));
            if id == "own" {
                toml += "per_caller = true\n";
            }
            servers.push(server);
        }
        toml += "[upstreams.house]\ntransport = \"library\"\npath = \"house\"\n";
        toml += "[[rollouts]]\nprompt = \"house__refund\"\nto = \"candidate\"\nshare = 0.5\ngroups = [\"staff\"]\n\
            steps = [{ at = \"2126-01-01T00:00:00Z\", share = 1 }]\nrollback = { share = 0.1, over = 10 }\n";
        let folder = Folder::new(&toml);
        let versions = folder.path().join("house/refund/versions");
        std::fs::create_dir_all(&versions).unwrap();
        for number in 1..=2 {
            let text = format!("---\nname: refund\ndescription: d\n---\nversion {number}");
            std::fs::write(versions.join(format!("{number}.md")), text).unwrap();
        }
        let labels = "[refund]\nproduction = 1\ncandidate = 2\n";
        std::fs::write(folder.path().join("house/labels.toml"), labels).unwrap();
        std::fs::create_dir(folder.path().join("house/tea")).unwrap();
        let skill = "---\nname: tea\ndescription: d\n---\n";
        std::fs::write(folder.path().join("house/tea/SKILL.md"), skill).unwrap();
        let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
        Self {
            folder,
            process,
            admin: with_token(&admin),
            changeable,
            registry,
            _store: store,
            _servers: servers,
        }
    }

    /// Uses prompts, well and badly, so that every list has something in it.
    async fn use_it(&self) {
        let client = self.process.client().with("X-API-Key", "pg_ci");
        for (name, status) in
            [("modern__all", 200), ("modern__last", 200), ("own__all", 200), ("modern__all", 429)]
        {
            let reply = client.modern("prompts/get", json!({"name": name})).await;
            assert_eq!(reply.status, status, "{name}: {reply:?}");
        }
    }
}

#[tokio::test]
async fn every_answer_is_as_it_is_described() {
    let everything = Everything::start().await;
    everything.use_it().await;
    let admin = &everything.admin;
    let mut described = Description::of(admin).await;

    for probe in ["/livez", "/readyz", "/metrics"] {
        described.get(admin, probe, probe).await;
    }
    for path in ["/status", "/replicas", "/catalog", "/upstreams", "/approvals", "/openapi.json"] {
        let path = format!("/api/v1{path}");
        described.get(admin, &path, &path).await;
    }

    let approval = "/api/v1/approvals/{name}";
    described.get(admin, approval, "/api/v1/approvals/up__p").await;

    let accounts = described.get(admin, "/api/v1/accounts", "/api/v1/accounts").await.json();
    assert_eq!(accounts["accounts"][0]["caller"], "ci", "{accounts}");
    let revoked = post(admin, "/accounts/revoke", &json!({"upstream": "own"})).await;
    described.check("POST", "/api/v1/accounts/revoke", &revoked);
    assert_eq!(revoked.json()["revoked"].as_array().unwrap().len(), 1);

    everything.registry.remove("gone");
    let accept = async || post(admin, "/upstreams/store/accept", &json!({"why": "gone"})).await;
    let accepted = eventually(accept, |reply| reply.status != 409).await;
    described.check("POST", "/api/v1/upstreams/{id}/accept", &accepted);
    assert_eq!(accepted.json(), json!({"served": 1, "listed": 0}));

    let rollouts = described.get(admin, "/api/v1/rollouts", "/api/v1/rollouts").await.json();
    assert_eq!(rollouts["rollouts"][0]["state"], "running", "{rollouts}");
    let rearmed = post(admin, "/rollouts/house__refund", &json!({"action": "rearm"})).await;
    described.check("POST", "/api/v1/rollouts/{name}", &rearmed);
    assert_eq!(rearmed.json(), json!({"changed": false}));

    let labels = described.get(admin, "/api/v1/labels", "/api/v1/labels").await.json();
    let tag = labels["prompts"][0]["tag"].as_str().unwrap();
    let headers = [("If-Match", tag), ("Content-Type", "application/json")];
    let path = "/api/v1/labels/house__refund/production";
    let moved = admin.send("PUT", path, &headers, b"{\"version\":2,\"why\":\"read\"}").await;
    described.check("PUT", "/api/v1/labels/{name}/{label}", &moved);
    let labels = described.get(admin, "/api/v1/labels", "/api/v1/labels").await.json();
    let tag = labels["prompts"][0]["tag"].as_str().unwrap();
    let path = "/api/v1/labels/house__refund/candidate";
    let headers = [("Content-Type", "application/json"), ("If-Match", tag)];
    let removed = admin.send("DELETE", path, &headers, b"{}").await;
    assert_eq!(removed.status, 200, "{}", text(&removed));
    described.check("DELETE", "/api/v1/labels/{name}/{label}", &removed);
    assert_eq!(moved.status, 200, "{}", text(&moved));

    let find = json!({"find": {"find": {"caller": "ci"}, "limit": 2, "before": null}});
    let found = post(admin, "/evidence", &json!({"question": find})).await;
    described.check("POST", "/api/v1/evidence", &found);
    let answer = &found.json()["answered"][0]["answer"]["found"];
    assert_eq!(answer["entries"].as_array().map(Vec::len), Some(2), "{answer}");

    let reloaded = post(admin, "/reload", &json!({})).await;
    described.check("POST", "/api/v1/reload", &reloaded);
    assert_eq!(reloaded.json()["mistakes"], json!([]));

    tries(&mut described, &everything).await;
    decisions(&mut described, &everything).await;
    refusals(&mut described, &everything).await;

    let missing: Vec<_> = described
        .operations()
        .filter(|(path, method, _)| {
            let key = (method.to_uppercase(), (*path).to_owned(), 200);
            !described.seen.contains(&key)
        })
        .map(|(path, method, _)| format!("{method} {path}"))
        .collect();
    assert!(missing.is_empty(), "not asked for: {missing:?}");
}

async fn tries(described: &mut Description, everything: &Everything) {
    let admin = &everything.admin;
    for (path, body) in [
        ("modern__all", json!({"arguments": {"a": "x"}})),
        ("library__all", json!({})),
        ("pipe__all", json!({"as": "ci", "arguments": {"a": ""}})),
        ("no__such", json!({"as": "group staff"})),
    ] {
        let reply = post(admin, &format!("/prompts/{path}/try"), &body).await;
        assert_eq!(reply.status, 200, "{}", text(&reply));
        described.check("POST", "/api/v1/prompts/{name}/try", &reply);
    }
    let reply = post(admin, "/prompts/modern__all/try", &json!({})).await.json();
    let kinds: BTreeSet<_> =
        reply["messages"].as_array().unwrap().iter().map(|m| m["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        ["audio", "image", "resource", "resource_link", "text"]
    );
    let body = json!({"argument": "a", "arguments": {"a": "xy"}});
    let reply = post(admin, "/prompts/modern__all/complete", &body).await;
    described.check("POST", "/api/v1/prompts/{name}/complete", &reply);
    assert_eq!(reply.json(), json!({"values": ["xylophone"]}));
}

/// The row of the prompt that changes.
async fn approval(admin: &Client) -> Value {
    let approvals = document(admin, "/approvals").await;
    let mut rows = approvals["prompts"].as_array().unwrap().iter();
    rows.find(|row| row["name"] == "up__p").expect("it is offered").clone()
}

async fn decisions(described: &mut Description, everything: &Everything) {
    let admin = &everything.admin;
    for (action, description, state) in [
        ("approve", "one", "pending"),
        ("reject", "two", "changed"),
        ("approve", "three", "changed"),
        ("rollback", "three", "approved"),
        ("withdraw", "one", "approved"),
    ] {
        everything.changeable.offer(|offer| offer.definition["description"] = description.into());
        let approval = async || approval(admin).await;
        eventually(approval, |approval| approval["state"] == state).await;
        let path = format!("/api/v1/approvals/{action}");
        // The version may change once more, when the text is probed.
        let decide = async || {
            let tag = approval().await["tag"].as_str().unwrap().to_owned();
            let headers = [("If-Match", tag.as_str()), ("Content-Type", "application/json")];
            let body = json!({"prompts": ["up__p"], "by": "grace", "why": description}).to_string();
            admin.send("POST", &path, &headers, body.as_bytes()).await
        };
        let decided = eventually(decide, |reply| reply.status == 200).await;
        described.check("POST", &path, &decided);
        described.get(admin, "/api/v1/approvals", "/api/v1/approvals").await;
    }
}

async fn refusals(described: &mut Description, everything: &Everything) {
    let admin = &everything.admin;
    let nobody = Client::new(admin.addr);
    let operations: Vec<_> = described
        .operations()
        .map(|(path, method, _)| (path.to_owned(), method.to_uppercase()))
        .collect();
    let real = |path: &str| path.replace("{name}", "modern__all").replace("{label}", "production");
    for (template, method) in &operations {
        let path = real(template);
        if !["/livez", "/readyz"].contains(&path.as_str()) {
            let reply = nobody.send(method, &path, &[], b"").await;
            assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")));
            described.check(method, template, &reply);
        }
        let rebound = admin.send(method, &path, &[("Host", "evil.example")], b"").await;
        assert_eq!(rebound.status, 403);
        described.check(method, template, &rebound);
        let other = if method == "POST" { "PUT" } else { "PATCH" };
        let refused = admin.send(other, &path, &[], b"").await;
        assert_eq!(refused.status, 405, "{other} {path}");
        described.check(method, template, &refused);
        if method == "GET" {
            let tag = admin.send("GET", &path, &[], b"").await;
            let whole = admin.send("HEAD", &path, &[], b"").await;
            assert_eq!((whole.status, whole.body.len()), (tag.status, 0), "HEAD {path}");
            if path.contains("openapi") {
                let known = [("If-None-Match", tag.header("etag").expect("a tag"))];
                let known = admin.send("GET", &path, &known, b"").await;
                assert_eq!(known.status, 304);
                described.check(method, template, &known);
            }
            continue;
        }
        let json = [("Content-Type", "application/json"), ("If-Match", "\"stale\"")];
        let large = format!("{{\"why\":\"{}\"}}", "x".repeat(5 << 20));
        for (headers, body, status) in [
            (&json[1..], "{}", 415),
            (&json[..], "{", 400),
            (&json[..], "{\"unknown\":1}", 400),
            (&json[..], large.as_str(), 413),
        ] {
            let Some(reply) = admin.try_send(method, &path, headers, body.as_bytes()).await else {
                assert_eq!(status, 413, "only a body that is too large is not read to its end");
                continue;
            };
            assert_eq!(reply.status, status, "{path}: {}", text(&reply));
            described.check(method, template, &reply);
        }
        if template.contains("/approvals/") {
            let known = json!({"prompts": ["up__p"]}).to_string();
            let stale = admin.send("POST", &path, &json, known.as_bytes()).await;
            let untagged = admin.send("POST", &path, &json[..1], known.as_bytes()).await;
            assert_eq!((stale.status, untagged.status), (412, 428));
            described.check("POST", template, &stale);
            described.check("POST", template, &untagged);
            let tag = approval(admin).await["tag"].clone();
            let fresh = [json[0], ("If-Match", tag.as_str().unwrap())];
            let unknown = json!({"prompts": ["no__such"]}).to_string();
            let unknown = admin.send("POST", &path, &fresh, unknown.as_bytes()).await;
            assert_eq!(unknown.status, 404);
            described.check("POST", template, &unknown);
        }
    }
    for path in ["/api/v1/no", "/api/v2/status", "/api/", "/api/v1/prompts/up__p", "/api/v1/usage"]
    {
        let reply = admin.send("GET", path, &[], b"").await;
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.json()["error"].as_str().unwrap().contains("/api/v1/openapi.json"));
    }
    // A path means the same with a slash at its end.
    assert_eq!(document(admin, "/approvals/").await, document(admin, "/approvals").await);
    assert!(everything.folder.lock().contains("up"));
}

#[tokio::test]
async fn a_gateway_that_is_not_ready_and_one_without_anything_are_described_too() {
    let silent = Upstream::start(|_| HANG).await;
    let gateway = Gateway::start(&(super::ADMIN.to_owned() + &silent.patient_table("up"))).await;
    let admin = with_token(&gateway.admin());
    let mut described = Description::of(&admin).await;
    let reply = admin.send("GET", "/readyz", &[], b"").await;
    assert_eq!(reply.status, 503);
    described.check("GET", "/readyz", &reply);
    let templates: Vec<_> = described
        .operations()
        .filter(|(path, method, _)| *method == "get" && !path.contains('{') && *path != "/readyz")
        .map(|(path, _, _)| path.to_owned())
        .collect();
    for path in templates {
        described.get(&admin, &path, &path).await;
    }
}
