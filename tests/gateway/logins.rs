//! Sign-ins of the operator for an upstream that lets in users only: how they begin, what they are
//! worth, and how they end.

use std::collections::HashMap;
use std::fs::File;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use crate::support::process::{Process, run};
use crate::support::wiki::{
    Login, Wiki, browse, browse_as, failure, files, logins, ran, reason, served, sign_in, text,
};
use crate::support::{Upstream, eventually, metrics, write_greeting};

/// A folder with a gateway's configuration.
fn folder(upstream: &Upstream, login: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("library")).unwrap();
    write_greeting(&folder.path().join("library"), "Greets.");
    let toml = format!(
        "[server]\nseal_key = {{ value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }}\n\
         [telemetry]\nlog = \"warn,promptgate::app=info\"\n\
         [upstreams.library]\ntransport = \"library\"\npath = \"library\"\n\
         {}credential = {{ login = {{ {login} }} }}\n",
        upstream.patient_table("wiki")
    );
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    folder
}

#[tokio::test]
async fn an_operator_signs_in_once_for_a_gateway_that_runs() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    let (gateway, admin) = Process::serve_admin(folder.path(), &[]).await;
    let failed = eventually(async || failure(&admin).await, |row| row["state"] == "down").await;
    assert!(failed.to_string().contains("promptgate login wiki"), "{failed}");
    assert_eq!(logins(folder.path())["state"], "needs a sign-in");
    let missing = "promptgate_upstream_login_missing";
    assert_eq!(metrics(&admin, &[missing]).await.values().next(), Some(&1.0));
    assert!(upstream.received().is_empty(), "an upstream is not asked without a token");
    let dialed = text(&ran(folder.path(), &["check", "--dial"]).await);
    assert!(dialed.contains("promptgate login wiki"), "{dialed}");

    sign_in(folder.path()).await;
    served(&gateway).await;
    assert_eq!(logins(folder.path())["state"], "valid");
    assert_eq!(metrics(&admin, &[missing]).await.values().next(), Some(&0.0));
    let registered = upstream.received().into_iter().find(|asked| asked.path == "/register");
    let message = registered.unwrap().message;
    assert_eq!(message["application_type"], "native");
    assert!(message["redirect_uris"][0].as_str().unwrap().starts_with("http://127.0.0.1:"));
    let all = files(folder.path());
    for canary in &wiki.state().issued {
        assert!(!all.contains(canary.as_str()), "{canary} is on the disk");
    }
    assert!(all.contains("\"event\":\"login_failed\"") && all.contains("\"reason\":\"no_login\""));
    assert!(all.contains("\"event\":\"login_changed\",\"upstream\":\"wiki\""));
    gateway.stop().await;
    // The next gateway needs neither a person nor the provider.
    wiki.state().broken = Some(503);
    let (gateway, _) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
}

#[tokio::test]
async fn tokens_are_renewed_ahead_and_a_refresh_token_is_used_once_by_two_replicas() {
    let wiki = Wiki::lasting(4);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let audit = [("PROMPTGATE__AUDIT__PATH", "audit-b")];
    let (first, _) = Process::serve_admin(folder.path(), &[]).await;
    let (second, _) = Process::serve_admin(folder.path(), &audit).await;
    served(&first).await;
    served(&second).await;
    let clients = [first.client(), second.client()];
    let renewals = async || {
        for client in &clients {
            let answer = client.modern("prompts/get", json!({"name": "wiki__p"})).await.json();
            assert!(answer["result"]["messages"].is_array(), "{answer}");
        }
        wiki.state().issues()
    };
    eventually(renewals, |count| *count >= 3).await;
    assert!(!wiki.state().reused, "a refresh token was sent twice");
}

#[tokio::test]
async fn a_sign_in_that_cannot_be_written_over_several_renewals_is_not_lost() {
    let wiki = Wiki::lasting(3);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let (gateway, _) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
    let client = gateway.client();
    let renewed = async |more: usize| {
        let before = wiki.state().issues();
        let renewals = async || {
            let answer = client.modern("prompts/get", json!({"name": "wiki__p"})).await.json();
            assert!(answer["result"]["messages"].is_array(), "{answer}");
            wiki.state().issues()
        };
        eventually(renewals, |count| *count >= before + more).await;
    };
    // The file cannot be replaced, except by root; it can be locked and read.
    let logins = folder.path().join("logins");
    let before = std::fs::metadata(&logins).unwrap().permissions();
    let mut closed = before.clone();
    closed.set_readonly(true);
    std::fs::set_permissions(&logins, closed).unwrap();
    renewed(2).await;
    std::fs::set_permissions(&logins, before).unwrap();
    renewed(1).await;
    assert!(!wiki.state().reused, "a refresh token was sent twice");
}

#[tokio::test]
async fn a_sign_in_that_the_provider_ends_is_said_and_repaired_by_another() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let (gateway, admin) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
    {
        let mut state = wiki.state();
        state.refresh = None;
        state.valid.clear();
    }
    let client = gateway.client();
    eventually(async || reason(&client).await, |reason| reason == "login_refused").await;
    assert_eq!(logins(folder.path())["state"], "ended by the provider");
    let asked = upstream.received().iter().filter(|asked| asked.path == "/token").count();
    reason(&client).await;
    let row = eventually(async || failure(&admin).await, |row| !row["error"].is_null()).await;
    assert!(row.to_string().contains("promptgate login wiki"), "{row}");
    let again = upstream.received().iter().filter(|asked| asked.path == "/token").count();
    assert_eq!(asked, again, "a sign-in that has ended is not tried again");
    sign_in(folder.path()).await;
    served(&gateway).await;
}

#[tokio::test]
async fn a_provider_that_is_away_is_another_reason_and_needs_no_sign_in() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let (gateway, _) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
    {
        let mut state = wiki.state();
        state.valid.clear();
        state.broken = Some(503);
    }
    let client = gateway.client();
    eventually(async || reason(&client).await, |reason| reason == "provider_unavailable").await;
    assert_eq!(logins(folder.path())["state"], "valid");
    wiki.state().broken = None;
    served(&gateway).await;
}

#[tokio::test]
async fn a_sign_out_ends_the_use_at_once_and_tells_the_provider() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let (gateway, _) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
    let output = ran(folder.path(), &["logout", "wiki"]).await;
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("Its provider has ended the sign-in"), "{}", text(&output));
    let revoked = wiki.state().revoked.clone();
    assert_eq!(revoked.len(), 2, "{revoked:?}");
    assert!(revoked[0].contains("refresh") && revoked[1].contains("access"));
    let client = gateway.client();
    eventually(async || reason(&client).await, |reason| reason == "no_login").await;
    let again = ran(folder.path(), &["logout", "wiki"]).await;
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again).contains("Nobody has signed in"), "{}", text(&again));
}

#[tokio::test]
async fn a_provider_without_revocation_is_named() {
    let wiki = Wiki::lasting(3600);
    wiki.state().metadata = json!({"revocation_endpoint": null});
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let said = text(&ran(folder.path(), &["logout", "wiki"]).await);
    assert!(said.contains("advertises no revocation"), "{said}");
    assert!(wiki.state().revoked.is_empty());
}

#[tokio::test]
async fn an_address_can_be_pasted_and_a_device_be_used() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "client_id = \"known\", scope = \"read\"");
    let mut login = Login::begin(folder.path(), &[]).await;
    let pairs: HashMap<_, _> = login.url.query_pairs().into_owned().collect();
    assert_eq!(pairs["client_id"], "known");
    assert_eq!(pairs["scope"], "read offline_access");
    let back = login.agree().await;
    let mut input = login.child.stdin.take().unwrap();
    input.write_all(format!("\nnothing\n{back}\n").as_bytes()).await.unwrap();
    let (succeeded, said) = login.ended().await;
    assert!(succeeded, "{said}");
    assert!(said.contains("An answer was refused"), "{said}");
    assert!(upstream.received().iter().all(|asked| asked.path != "/register"));

    wiki.state().pending = 2;
    let output = ran(folder.path(), &["login", "wiki", "--device"]).await;
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("WDJB-MJHT"), "{}", text(&output));
    assert_eq!(logins(folder.path())["state"], "valid");
}

#[tokio::test]
async fn a12_answers_that_belong_to_no_request_sign_nobody_in() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    let login = Login::begin(folder.path(), &[]).await;
    let back = login.agree().await;
    let with = |name: &str, value: &str| {
        let mut url = back.clone();
        let pairs: Vec<_> = back.query_pairs().into_owned().collect();
        url.query_pairs_mut().clear().extend_pairs(
            pairs.iter().map(|(key, own)| (key, if key == name { value } else { own.as_str() })),
        );
        url
    };
    let mut elsewhere = back.clone();
    elsewhere.set_path("/other");
    let mut empty = back.clone();
    empty.set_query(Some("x=1"));
    for (attack, status) in [(with("state", "guessed"), 400), (elsewhere, 404), (empty, 400)] {
        assert_eq!(browse(&attack).await.status, status, "{attack}");
    }
    let rebound = browse_as(&back, "evil.example").await;
    assert_eq!(rebound.status, 404, "another name for this address");

    // A code of another sign-in is of no use: its challenge is another.
    let other = Login::begin(folder.path(), &[]).await;
    let stolen = other.agree().await;
    let code = stolen.query_pairs().find(|(name, _)| name == "code").unwrap().1.into_owned();
    assert_eq!(browse(&with("code", &code)).await.status, 400);
    let (succeeded, said) = login.ended().await;
    assert!(!succeeded && said.contains("invalid_grant"), "{said}");
    drop(other);

    for (change, expected) in [
        ("https://evil.example", "another authorization server"),
        ("", "another authorization server"),
    ] {
        wiki.state().named_issuer = Some(change.to_owned());
        let login = Login::begin(folder.path(), &[]).await;
        assert_eq!(browse(&login.agree().await).await.status, 400);
        let (succeeded, said) = login.ended().await;
        assert!(!succeeded && said.contains(expected), "{said}");
    }
    wiki.state().named_issuer = None;
    let login = Login::begin(folder.path(), &[]).await;
    let mut denied = login.agree().await;
    let state = denied.query_pairs().find(|(name, _)| name == "state").unwrap().1.into_owned();
    let issuer = denied.query_pairs().find(|(name, _)| name == "iss").unwrap().1.into_owned();
    denied
        .query_pairs_mut()
        .clear()
        .append_pair("error", "access_denied")
        .append_pair("state", &state)
        .append_pair("iss", &issuer);
    assert_eq!(browse(&denied).await.status, 400);
    let (succeeded, said) = login.ended().await;
    assert!(!succeeded && said.contains("access was denied"), "{said}");
    assert!(!folder.path().join("logins/wiki.login").exists());
}

#[tokio::test]
async fn a12_a_provider_that_cannot_be_trusted_gets_no_browser() {
    for (metadata, expected) in [
        (json!({"code_challenge_methods_supported": ["plain"]}), "S256"),
        (json!({"code_challenge_methods_supported": null}), "S256"),
        (json!({"authorization_endpoint": "javascript:alert(1)"}), "authorization_endpoint"),
        (json!({"token_endpoint": "http://169.254.169.254/token"}), "token_endpoint"),
        (json!({"issuer": "https://evil.example"}), "issuer"),
        (json!({"registration_endpoint": "http://10.0.0.1/register"}), "set client_id"),
    ] {
        let wiki = Wiki::lasting(3600);
        wiki.state().metadata = metadata.clone();
        let upstream = wiki.start().await;
        let folder = folder(&upstream, "");
        let output = ran(folder.path(), &["login", "wiki", "--no-browser"]).await;
        assert_eq!(output.status.code(), Some(1), "{metadata}");
        assert!(text(&output).contains(expected), "{metadata}: {}", text(&output));
        assert!(output.stdout.is_empty(), "{}", text(&output));
    }
}

#[tokio::test]
async fn a_scope_that_the_operator_has_not_granted_is_named() {
    let wiki = Wiki::lasting(3600);
    let upstream = wiki.start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let (gateway, _) = Process::serve_admin(folder.path(), &[]).await;
    served(&gateway).await;
    wiki.state().lacking = Some("write");
    assert_eq!(reason(&gateway.client()).await, "scope_refused");
    wiki.state().lacking = None;
    served(&gateway).await;
}

#[tokio::test]
async fn commands_say_what_is_wrong_with_an_upstream() {
    let upstream = Wiki::default().start().await;
    let folder = folder(&upstream, "");
    for (arguments, expected) in [
        (["login", "nowhere"], "There is no enabled upstream"),
        (["login", "library"], "takes no sign-in"),
        (["logout", "wiki"], "Nobody has signed in to wiki"),
    ] {
        let output = run(folder.path(), &arguments);
        assert!(!output.status.success());
        assert!(text(&output).contains(expected), "{}", text(&output));
    }
}

#[tokio::test]
async fn a_sign_in_that_cannot_be_kept_does_not_begin() {
    let upstream = Wiki::default().start().await;
    let folder = folder(&upstream, "");
    std::fs::write(folder.path().join("logins"), "a file where the folder should be").unwrap();
    let output = run(folder.path(), &["login", "wiki", "--no-browser"]);
    assert!(!output.status.success() && text(&output).contains("logins"), "{}", text(&output));
    assert_eq!(upstream.methods(), Vec::<String>::new());
}

#[tokio::test]
async fn sign_ins_that_no_gateway_has_used_for_long_are_forgotten() {
    let upstream = Wiki::lasting(3600).start().await;
    let folder = folder(&upstream, "");
    sign_in(folder.path()).await;
    let logins = folder.path().join("logins");
    let file = |name: &str| logins.join(format!("{name}.login"));
    for (name, age) in [("gone", 91), ("young", 89), ("wiki", 91)] {
        if name != "wiki" {
            std::fs::copy(file("wiki"), file(name)).unwrap();
        }
        let used = SystemTime::now() - Duration::from_secs(age * 86_400);
        File::options().write(true).open(file(name)).unwrap().set_modified(used).unwrap();
    }
    let (gateway, _) = Process::serve_admin(folder.path(), &[]).await;
    eventually(async || file("gone").exists(), |exists| !exists).await;
    let forgotten = "\"event\":\"login_forgotten\",\"upstream\":\"gone\"";
    eventually(async || files(folder.path()), |all| all.contains(forgotten)).await;
    assert!(file("young").exists(), "another gateway may use it");
    let used = std::fs::metadata(file("wiki")).unwrap().modified().unwrap();
    assert!(used.elapsed().unwrap() < Duration::from_secs(86_400), "it is marked as used");
    served(&gateway).await;
}
