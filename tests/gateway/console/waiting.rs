//! Prompts that wait for approval: their list, their pages, and trials of what is offered.

use serde_json::json;

use super::oidc::OpenId;
use super::{ADMIN, Browser, hidden, rows, text};
use crate::approvals::{Changeable, Folder, enforced};
use crate::support::{Process, Upstream, eventually};

#[tokio::test]
async fn the_list_opens_on_what_waits_and_repeats_nothing() {
    let (up, other) = (Upstream::with_prompts(&["a", "b"]).await, Changeable::start().await);
    let toml =
        enforced("") + ADMIN + "write = true\n" + &up.table("a") + &other.upstream.table("up");
    let folder = Folder::new(&toml);
    let approve = ["approve", "--all-of", "a", "--yes", "--unseen", "--why", "read"];
    let said = folder.approvals(&approve).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let mut browser = Browser::new(&admin);
    browser.log_in("t0ken").await;
    let list = async || browser.clone().page("/approvals").await;
    let page = eventually(list, |page| rows(page, "Approvals").len() == 1).await;
    assert!(page.contains("aria-current=\"true\">waiting 1</a>"), "{page}");
    assert!(page.contains("class=\"actions chosen\"") && !page.contains("Mode"), "{page}");
    let page = browser.page("/approvals?state=all").await;
    let all = rows(&page, "Approvals");
    assert_eq!(all.len(), 3, "{page}");
    assert!(!page.contains("it is the approved version"), "{page}");
    process.stop().await;
}

#[tokio::test]
async fn a_prompt_that_waits_has_a_page_and_approvers_try_what_is_offered() {
    let (up, provider) = (Changeable::start().await, OpenId::start().await);
    let admin = ADMIN.to_owned() + "write = true\n";
    let toml = enforced("") + &admin + &provider.table() + &up.upstream.table("up");
    let folder = Folder::new(&toml);
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let mut people = Vec::new();
    for group in ["readers", "authors", "leads"] {
        let mut browser = Browser::new(&admin);
        provider.sign_in(&mut browser, &[group]).await;
        people.push(browser);
    }
    let [mut viewer, mut tester, mut approver] = <[Browser; 3]>::try_from(people).ok().unwrap();
    // A prompt that was never approved.
    let list = async || viewer.clone().page("/prompts?state=pending").await;
    let page = eventually(list, |page| rows(page, "Prompts").len() == 1).await;
    assert!(page.contains("aria-current=\"true\">pending 1</a>"), "{page}");
    let page = viewer.page("/prompts/up__p").await;
    assert!(page.contains("is not served until then") && page.contains("one"), "{page}");
    assert!(page.contains("href=\"/approvals/up__p\">Review</a>"), "{page}");
    assert!(!page.contains("good null"), "viewers read no texts: {page}");
    for tab in ["", "/versions", "/access", "/uses"] {
        assert!(!tester.page(&format!("/prompts/up__p{tab}")).await.is_empty());
    }
    assert!(tester.page("/prompts/up__p").await.contains("good null"));
    // An approver tries what is offered; that is no right of testers.
    let page = tester.page("/prompts/up__p/try").await;
    assert!(page.contains("Approvers try") && !page.contains("name=\"version\""), "{page}");
    let page = approver.page("/prompts/up__p/try").await;
    assert!(page.contains("<option value=\"offered\""), "{page}");
    let offered = async |browser: &mut Browser| {
        let csrf = browser.csrf("/access").await;
        let fields = [("csrf", csrf.as_str()), ("version", "offered")];
        browser.submit("/prompts/up__p/try", &fields).await
    };
    let refused = offered(&mut tester).await;
    assert_eq!(refused.status, 403, "{}", text(&refused));
    let tried = offered(&mut approver).await;
    assert!(text(&tried).contains("good null"), "{}", text(&tried));
    let is_trial = |record: &serde_json::Value| record["tried_by"] == "ada";
    let records = eventually(async || folder.records(), |all| all.iter().any(is_trial)).await;
    let record = records.into_iter().find(is_trial).unwrap();
    assert_eq!(
        (&record["caller"], &record["endpoint"]),
        (&json!("promptgate"), &json!("approvals"))
    );
    // A changed prompt: both versions, and a refused try leads to the review.
    folder.approve().await;
    let page = async || approver.clone().page("/prompts/up__p/try").await;
    eventually(page, |page| !page.contains("waits for approval")).await;
    up.offer(|offer| offer.text = "other".to_owned());
    let page = async || approver.clone().page("/prompts/up__p/try").await;
    let try_as_callers = async || {
        let mut browser = tester.clone();
        let csrf = hidden(&browser.page("/access").await, "csrf");
        text(&browser.submit("/prompts/up__p/try", &[("csrf", &csrf)]).await)
    };
    let refused = eventually(try_as_callers, |page| page.contains("not_approved")).await;
    assert!(refused.contains("href=\"/approvals/up__p\">Review what is offered"), "{refused}");
    let page = eventually(page, |page| page.contains("Another version of it waits")).await;
    assert!(page.contains("<option value=\"\">approved"), "{page}");
    assert!(text(&offered(&mut approver).await).contains("other null"));
    let page = approver.page("/approvals/up__p").await;
    let (before, _) = page.split_once("value=\"approve\"").unwrap();
    assert!(before.contains("Uses: "), "the uses stand before the decision: {page}");
    process.stop().await;
}
