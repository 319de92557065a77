//! Guards in the console: findings beside the offered version, and calls that were refused.

use serde_json::json;

use super::{ADMIN, Browser, text};
use crate::approvals::{Changeable, Folder, enforced};
use crate::guards::{assert_denied, guard};
use crate::support::{Process, Upstream, eventually};

#[tokio::test]
async fn findings_stand_on_the_page_of_an_offered_version_and_not_the_match() {
    let changeable = Changeable::start().await;
    let toml = guard("words", "offered", "deny = [\"/go+d/\"]")
        + &enforced("")
        + ADMIN
        + &changeable.upstream.table("up");
    let folder = Folder::new(&toml);
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let mut browser = Browser::new(&admin);
    browser.log_in("t0ken").await;
    let page = async || browser.page("/approvals/up__p").await;
    let is_whole = |page: &String| page.contains("finds pattern in its text");
    let page = eventually(page, is_whole).await;
    assert!(page.contains("The guard &quot;words&quot; finds"), "{page}");
    assert!(!page.contains("go+d"), "the pattern is not shown");
    process.stop().await;
}

#[tokio::test]
async fn refused_texts_are_counted_as_denied_and_not_as_failures_of_the_prompt() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = guard("words", "arguments", "deny = [\"/bad/\"]") + ADMIN + &upstream.table("up");
    let folder = Folder::new(&toml);
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    let params = json!({"name": "up__p", "arguments": {"a": "bad"}});
    for _ in 0..2 {
        assert_denied(&client.modern("prompts/get", params.clone()).await.json(), "pattern");
    }
    let mut browser = Browser::new(&admin);
    browser.log_in("t0ken").await;
    // The columns are uses, failures, denied and limited.
    let mut reader = browser.clone();
    let table = async || text(&reader.get("/usage?format=csv").await);
    let table = eventually(table, |table| table.contains("up__p,up,0,0,2,0,")).await;
    assert_eq!(table.lines().count(), 2, "{table}");
    let page = browser.page("/").await;
    assert!(page.contains("Rights and guards have refused 2 calls in 15 min"), "{page}");
    process.stop().await;
}
