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

use crate::support::gateway::api_key;
use crate::support::replicas::Store;

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

/// The id of a caller, which is also its key.
fn caller(number: usize) -> String {
    format!("caller-{number}")
}

fn bearer(number: usize) -> String {
    format!("Bearer {}", caller(number))
}
