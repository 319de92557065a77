//! Several replicas behind a balancer, as one gateway. The tests start a real Redis or Valkey
//! server: `apt-get install redis-server`, then `cargo test --test gateway cluster:: -- --ignored`.

mod addressing;
mod consistency;
mod evidence;
mod id_jag;
mod limits;
mod logins;
mod relay;
mod sign_in;
mod store_failures;

use std::path::Path;

use serde_json::{Value, json};

use crate::support::gateway::api_key;
use crate::support::process::LOG_WARNINGS;
use crate::support::replicas::{Replica, SEAL_KEY, Store};
use crate::support::{Process, write_greeting};

/// The keys of four callers, and a limit of 30 requests of each, which refills nothing meanwhile.
fn limited() -> String {
    let keys: String = (0..4).map(|n| api_key(&caller(n), &caller(n))).collect();
    format!(
        "{keys}[[limits]]\nname = \"calls\"\nper = [\"caller\"]\nrate = \"30/h\"\nburst = 30\n\
         [access]\n[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\n"
    )
}

/// Creates the user `gate` of a store, with the password `secret` and the rights that the manual
/// names.
async fn create_user(store: &Store) {
    let manual = include_str!("../../../docs/scaling.md");
    let user = manual.split("user promptgate on >PASSWORD ").nth(1).expect("a user");
    let rights = user.split("\n```").next().unwrap().replace('\n', " ");
    let made = store.command(&format!("ACL SETUSER gate on >secret {rights}")).await;
    assert!(made.starts_with("+OK"), "{made}");
}

/// Starts a replica with a library and with more tables, whose admin API ends accounts. The store
/// has the user `gate`.
async fn administered(store: &Store, folder: &Path, public_url: &str, tables: &str) -> Replica {
    std::fs::create_dir_all(folder.join("library")).unwrap();
    write_greeting(&folder.join("library"), "Greets.");
    let toml = format!(
        "[server]\npublic_url = \"{public_url}\"\n\
         seal_key = {{ value = \"{SEAL_KEY}\" }}\n\
         [cluster]\nstore = \"{}\"\ntimeout = \"2s\"\n\
         username = \"gate\"\npassword = {{ value = \"secret\" }}\n\
         [telemetry]\nlog = \"{LOG_WARNINGS}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\nwrite = true\ntoken = {{ value = \"t\" }}\n\
         [upstreams.library]\ntransport = \"library\"\npath = \"library\"\n{tables}",
        store.url(),
    );
    std::fs::write(folder.join("gateway.toml"), toml).unwrap();
    let (process, admin) = Process::serve_admin(folder, &[]).await;
    let admin = admin.with("Authorization", "Bearer t").with("Content-Type", "application/json");
    Replica { process, admin, folder: folder.to_owned() }
}

/// Ends the accounts of a caller at a replica, and returns them.
async fn revoke(replica: &Replica, caller: &str) -> Value {
    let body = json!({"caller": caller}).to_string();
    let revoked = replica.admin.send("POST", "/api/v1/accounts/revoke", &[], body.as_bytes());
    revoked.await.json()["revoked"].clone()
}

/// The id of a caller, which is also its key.
fn caller(number: usize) -> String {
    format!("caller-{number}")
}

fn bearer(number: usize) -> String {
    format!("Bearer {}", caller(number))
}
