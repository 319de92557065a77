//! The operator's side: what it shows, to whom, and that it changes nothing.

use std::fs;

use serde_json::{Value, json};

use super::audit::{Log, fill, segment_files};
use crate::support::gateway::api_key;
use crate::support::provider::{JwksResponse, Provider, SigningKey};
use crate::support::upstream::HANG;
use crate::support::{Client, Gateway, Process, Upstream, eventually};

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

async fn look(client: &Client, path: &str) -> (u16, Value) {
    let reply = client.send("GET", path, &[], b"").await;
    (reply.status, reply.json())
}

#[tokio::test]
async fn upstreams_and_prompts_are_shown_as_they_are() {
    let modern = Upstream::with_prompts(&["a", "b"]).await;
    let dead = "[upstreams.dead]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let toml = ADMIN.to_owned()
        + &modern.table("up")
        + dead
        + "[upstreams.lib]\ntransport = \"library\"\npath = \"examples/support\"\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let (code, shown) = look(&gateway.admin(), "/api/v1/upstreams").await;
    assert_eq!(code, 200);
    let rows = shown["upstreams"].as_array().unwrap();
    let row = |id: &str| rows.iter().find(|row| row["upstream"] == id).unwrap();
    let up = row("up");
    let expected = json!({"upstream": "up", "transport": "http", "state": "up", "era": "modern",
        "revision": "2026-07-28", "listChanged": false, "listed": 2, "leftOut": 0, "held": 0, "undecided": 0, "prompts": 2, "pages": 1,
        "ageSecs": up["ageSecs"], "lastHour": {"calls": 0, "failures": 0}, "inFlight": 0, "waiting": 0, "breaker": "closed",
        "driverRestarts": 0});
    assert_eq!(*up, expected);
    assert!(up["ageSecs"].as_u64().unwrap() < 60);
    assert_eq!(row("dead")["state"], "down");
    assert_eq!(row("dead")["error"]["reason"], "upstream_unavailable");
    assert_eq!(
        (&row("lib")["transport"], &row("lib")["revision"]),
        (&json!("library"), &Value::Null)
    );

    let (_, catalog) = look(&gateway.admin(), "/api/v1/catalog").await;
    let prompts = catalog["prompts"].as_array().unwrap();
    let a = prompts.iter().find(|prompt| prompt["name"] == "up__a").unwrap();
    assert_eq!((&a["upstream"], &a["rawName"]), (&json!("up"), &json!("a")));
    assert!(a["digest"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!((&catalog["leftOut"], &catalog["lookAlikes"]), (&json!([]), &json!([])));

    let (_, status) = look(&gateway.admin(), "/api/v1/status").await;
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert!(status["configDigest"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!((&status["audit"], &status["ready"]), (&json!("off"), &json!(true)));
}

#[tokio::test]
async fn a1_k7_the_admin_side_wants_its_token_and_changes_nothing() {
    let toml = format!("{ADMIN}token = {{ value = \"t0ken\" }}\n{}", api_key("ci", "pg_good"));
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let plain = gateway.admin();
    let key = plain.clone().with("Authorization", "Bearer pg_good");
    let good = plain.clone().with("Authorization", "Bearer t0ken");
    for path in ["/livez", "/readyz"] {
        assert_eq!(look(&plain, path).await.0, 200, "{path} needs no token");
    }
    for path in ["/api/v1/status", "/api/v1/upstreams", "/api/v1/catalog"] {
        for client in [&plain, &key] {
            let reply = client.send("GET", path, &[], b"").await;
            assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")));
        }
        assert_eq!(look(&good, path).await.0, 200);
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            assert_eq!(good.send(method, path, &[], b"{}").await.status, 405, "{method} {path}");
        }
        for spoofed in [("Host", "evil.example"), ("Origin", "https://evil.example")] {
            assert_eq!(good.send("GET", path, &[spoofed], b"").await.status, 403, "{spoofed:?}");
        }
    }
    assert_eq!(look(&good, "/mcp").await.0, 404, "prompts are served elsewhere");
}

#[tokio::test]
async fn it_is_ready_once_every_upstream_was_heard_of_or_had_its_time() {
    let silent = Upstream::start(|_| HANG).await;
    let toml = format!("{ADMIN}[listing]\ndeadline = \"1s\"\n{}", silent.patient_table("up"));
    let gateway = Gateway::start(&toml).await;
    assert_eq!(look(&gateway.admin(), "/livez").await, (200, json!({"status": "ok"})));
    let (code, why) = look(&gateway.admin(), "/readyz").await;
    assert_eq!((code, &why["ready"]), (503, &json!(false)));
    assert!(why["why"][0].as_str().unwrap().starts_with("starting"), "{why}");
    // From then on lists fail, which is no state to send anybody to either.
    let why = eventually(
        async || look(&gateway.admin(), "/readyz").await.1,
        |why| why["why"][0].as_str().is_some_and(|why| !why.starts_with("starting")),
    )
    .await;
    assert_eq!(why["why"][0], "upstream_unavailable", "no more without a token");
}

#[tokio::test]
async fn an_identity_provider_that_is_down_makes_no_replica_unready() {
    let key = SigningKey::ec("e");
    let provider = Provider::start(&[&key]).await;
    provider.set(JwksResponse::Status(500));
    let toml = format!("{ADMIN}{}cooldown = \"10ms\"\n", provider.table());
    let gateway = Gateway::start(&(toml + &api_key("ci", "pg_ci"))).await;
    let (code, why) = look(&gateway.admin(), "/readyz").await;
    assert_eq!(code, 200, "all replicas share the provider: {why}");
    let status = async |credential: &str| {
        let client = gateway.client().with("Authorization", &format!("Bearer {credential}"));
        client.modern("prompts/list", json!({})).await.status
    };
    let token = key.sign_with(&provider.claims("https://prompts.example.com/mcp"), |_| {});
    assert_eq!(status(&token).await, 503);
    assert_eq!(status("pg_ci").await, 200, "those who do not need it go on");
}

#[tokio::test]
async fn d2_while_nothing_can_be_recorded_it_lives_and_is_not_ready() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = log.table()
        + "keep_size = \"64KiB\"\non_full = \"refuse\"\n"
        + ADMIN
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    assert_eq!(look(&gateway.admin(), "/readyz").await.0, 200);
    let get = async || gateway.client().modern("prompts/get", json!({"name": "up__p"})).await;
    fill(&log.path(), async || get().await.status).await;
    assert_eq!(look(&gateway.admin(), "/livez").await.0, 200);
    let (code, why) = look(&gateway.admin(), "/readyz").await;
    assert_eq!(code, 503);
    assert!(why["why"][0].as_str().unwrap().starts_with("audit_unavailable"), "{why}");
    assert_eq!(look(&gateway.admin(), "/api/v1/status").await.1["audit"], "failing");
    fs::remove_file(segment_files(&log.path()).remove(0)).unwrap();
    eventually(async || look(&gateway.admin(), "/readyz").await.0, |seen| *seen == 200).await;
}

#[cfg(unix)]
#[tokio::test]
async fn while_it_drains_it_is_shown_and_not_ready_and_a_person_sees_a_table() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("[server.limits]\ngrace = \"20s\"\n{}", upstream.table("up"));
    fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let settings = [("PROMPTGATE__SERVER__LIMITS__PRE_DRAIN", "5s")];
    let (process, admin) = Process::serve_admin(folder.path(), &settings).await;
    let url = format!("http://{}", admin.addr);
    let folder_path = folder.path().to_owned();
    let status = tokio::task::spawn_blocking(move || {
        crate::support::process::run(&folder_path, &["status", "--url", &url])
    });
    let said = String::from_utf8(status.await.unwrap().stdout).unwrap();
    assert!(said.contains("ready") && said.contains("up        http"), "{said}");
    assert!(said.contains("STATE  REVISION    LISTED  HELD  AGE  IN FLIGHT  BREAKER"), "{said}");
    // A stream that is open keeps it draining for a moment.
    let listen = process.client().listen().await;
    process.signal(rustix::process::Signal::TERM);
    let (code, why) =
        eventually(async || look(&admin, "/readyz").await, |(code, _)| *code == 503).await;
    assert!(why["why"][0].as_str().unwrap().starts_with("draining"), "{code} {why}");
    drop(listen);
}

#[tokio::test]
async fn a_refused_change_names_the_keys_it_needs_and_approvals_only_where_it_is_one() {
    let gateway = Gateway::start("[admin]\nlisten = \"127.0.0.1:0\"\n").await;
    for (method, path, is_decision) in [
        ("PUT", "/api/v1/labels/lib__refund/production", false),
        ("POST", "/api/v1/reload", false),
        ("POST", "/api/v1/approvals/approve", true),
    ] {
        let reply = gateway.admin().send(method, path, &[], b"{}").await;
        let said = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, 403, "{path}: {said}");
        assert!(said.contains("set admin.write = true and admin.token"), "{path}: {said}");
        assert_eq!(said.contains("promptgate approvals"), is_decision, "{path}: {said}");
    }
}
