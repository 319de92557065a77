//! Decisions in the console: who may, on what, and what is on record.

use serde_json::{Value, json};

use super::oidc::OpenId;
use super::{ADMIN, Browser, document, hidden, rows, text, with_token};
use crate::approvals::{Changeable, Folder, enforced};
use crate::support::{Process, eventually};

#[tokio::test]
async fn a_person_approves_rejects_and_goes_back() {
    let (up, provider) = (Changeable::start().await, OpenId::start().await);
    let admin = ADMIN.to_owned() + "write = true\n";
    let toml = enforced("") + &admin + &provider.table() + &up.upstream.table("up");
    let folder = Folder::new(&toml);
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let mut people = Vec::new();
    for group in ["readers", "authors", "leads"] {
        let mut browser = Browser::new(&admin);
        let entered = provider.sign_in(&mut browser, &[group]).await;
        assert_eq!(entered.status, 200, "{}", text(&entered));
        people.push(browser);
    }
    let [mut viewer, mut tester, mut approver] = <[Browser; 3]>::try_from(people).ok().unwrap();
    let api = with_token(&admin);
    let state = async |expected: &str| {
        let approval = async || document(&api, "/approvals").await["prompts"][0].take();
        eventually(approval, |approval| approval["state"] == expected).await
    };
    state("pending").await;

    // Viewers read no texts; testers do, and neither decides.
    let seen = viewer.page("/approvals/up__p").await;
    assert!(seen.contains("Texts are shown to testers") && !seen.contains("value=\"approve\""));
    let seen = tester.page("/approvals/up__p").await;
    assert!(seen.contains("aria-label=\"Patch\"") && !seen.contains("value=\"approve\""), "{seen}");
    let tag = async || {
        document(&api, "/approvals").await["prompts"][0]["tag"].as_str().unwrap().to_owned()
    };
    let first_tag = tag().await;
    for browser in [&mut viewer, &mut tester] {
        let csrf = browser.csrf("/access").await;
        let fields = [
            ("csrf", csrf.as_str()),
            ("prompt", "up__p"),
            ("action", "approve"),
            ("tag", &first_tag),
        ];
        let refused = browser.submit("/approvals/decide", &fields).await;
        assert_eq!(refused.status, 403);
        assert!(text(&refused).contains("admin.oidc.approvers"), "{}", text(&refused));
    }

    let mut decide = async |action: &'static str, why: &'static str| {
        // A page that was made before its text was probed is stale.
        let decided = async || {
            let page = approver.page("/approvals/up__p").await;
            let (csrf, tag) = (hidden(&page, "csrf"), hidden(&page, "tag"));
            let fields = [
                ("csrf", csrf.as_str()),
                ("tag", &tag),
                ("prompt", "up__p"),
                ("action", action),
                ("why", why),
            ];
            approver.submit("/approvals/decide", &fields).await
        };
        let decided = eventually(decided, |reply| reply.status != 412).await;
        assert_eq!(
            decided.header("location"),
            Some("/approvals/up__p?after=up__p"),
            "{action}: {}",
            text(&decided)
        );
    };
    decide("approve", "ticket <1>").await;
    state("approved").await;
    up.offer(|offer| offer.definition["description"] = json!("<b>two</b>"));
    state("changed").await;
    assert!(tester.page("/approvals/up__p").await.contains("&lt;b&gt;two&lt;/b&gt;"));
    decide("reject", "no").await;
    state("rejected").await;
    up.offer(|offer| offer.definition["description"] = json!("three"));
    state("changed").await;
    decide("approve", "").await;
    state("approved").await;
    decide("rollback", "back").await;
    state("changed").await;
    for event in ["prompt_approved", "prompt_rejected", "prompt_rolled_back"] {
        let record = folder.recorded(event).await;
        assert_eq!((&record["by"], &record["via"]), (&json!("ada"), &json!("admin")), "{record}");
    }
    let whys: Vec<_> = folder
        .records()
        .iter()
        .filter(|r| r["event"] == "prompt_approved")
        .map(|r| r["why"].clone())
        .collect();
    assert_eq!(whys, [json!("ticket <1>"), Value::Null]);

    // A tag is good for what its page showed.
    let csrf = approver.csrf("/access").await;
    for (tag, status) in [(first_tag.as_str(), 412), ("", 428), ("*", 412)] {
        let fields =
            [("csrf", csrf.as_str()), ("tag", tag), ("prompt", "up__p"), ("action", "approve")];
        let refused = approver.submit("/approvals/decide", &fields).await;
        assert_eq!(refused.status, status, "{tag}: {}", text(&refused));
    }
    // Over the API a person is recorded under their own id, too, whatever they say.
    let signed_in = async || {
        let tag = tag().await;
        let origin = approver.origin();
        let headers = [
            ("Content-Type", "application/json"),
            ("If-Match", tag.as_str()),
            ("Origin", origin.as_str()),
        ];
        let body = json!({"prompts": ["up__p"], "by": "grace", "why": "as grace"}).to_string();
        approver.send("POST", "/api/v1/approvals/approve", &headers, body.as_bytes()).await
    };
    let decided = eventually(signed_in, |reply| reply.status != 412).await;
    assert_eq!(decided.status, 200, "{}", text(&decided));
    let records = folder.records();
    let record = records.iter().find(|record| record["why"] == "as grace").unwrap();
    assert_eq!(record["by"], "ada");
    process.kill().await;
}

#[tokio::test]
async fn nobody_approves_a_difference_of_which_a_part_is_shown() {
    let up = Changeable::start().await;
    let toml = enforced("") + ADMIN + "write = true\npage_rows = 1\n" + &up.upstream.table("up");
    let folder = Folder::new(&toml);
    let (_process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let api = with_token(&admin);
    let waiting = async || document(&api, "/approvals").await["prompts"][0]["state"].take();
    eventually(waiting, |state| state == "pending").await;
    let mut browser = Browser::new(&admin);
    browser.log_in("t0ken").await;
    let page = browser.page("/approvals/up__p").await;
    assert!(page.contains("The first 1 of") && page.contains("admin.page_rows"), "{page}");
    assert!(page.contains("value=\"approve\" disabled"), "{page}");
}

#[tokio::test]
async fn a_decision_is_on_the_text_that_was_shown_whatever_the_upstream_answers_meanwhile() {
    let up = Changeable::start().await;
    let toml = enforced("") + ADMIN + "write = true\n" + &up.upstream.table("up");
    let folder = Folder::new(&toml);
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let api = with_token(&admin);
    let known = async |state: &str| {
        let row = async || document(&api, "/approvals").await["prompts"][0].take();
        eventually(row, |row| row["state"] == state && row["offered"]["texts"][0].is_object()).await
    };
    known("pending").await;
    let mut browser = Browser::new(&admin);
    browser.log_in("t0ken").await;
    let shown = async |browser: &mut Browser, text: &str| {
        up.offer(|offer| offer.text = text.to_owned());
        let page = browser.page("/approvals/up__p").await;
        assert!(page.contains(text), "{page}");
        (page.contains("received a different text"), hidden(&page, "csrf"), hidden(&page, "tag"))
    };
    let decide = async |browser: &mut Browser, action: &str, csrf: &str, tag: &str| {
        let fields = [("csrf", csrf), ("tag", tag), ("prompt", "up__p"), ("action", action)];
        browser.submit("/approvals/decide", &fields).await
    };
    let offer_evil = || up.offer(|offer| offer.text = "evil".to_owned());
    // A first approval: the page and the decision ask at different times.
    let (_, csrf, tag) = shown(&mut browser, "good").await;
    offer_evil();
    assert_eq!(decide(&mut browser, "approve", &csrf, &tag).await.status, 303);
    known("approved").await;
    let get = async || process.client().modern("prompts/get", json!({"name": "up__p"})).await;
    eventually(get, |reply| text(reply).contains("not_approved")).await;
    // The gateway knows the other text by now; the page shows what it got itself, and says so.
    known("changed").await;
    let (says_so, csrf, tag) = shown(&mut browser, "nice").await;
    assert!(says_so);
    offer_evil();
    let document = document(&api, "/approvals/up__p").await;
    assert!(document["diff"].as_str().unwrap().contains("evil"), "{document}");
    assert_eq!(decide(&mut browser, "approve", &csrf, &tag).await.status, 303);
    assert!(text(&get().await).contains("not_approved"));
    // The version that was shown is rejected, too, and a tag is good for one decision.
    let (_, csrf, tag) = shown(&mut browser, "third").await;
    offer_evil();
    assert_eq!(decide(&mut browser, "reject", &csrf, &tag).await.status, 303);
    let again = decide(&mut browser, "approve", &csrf, &tag).await.status;
    assert!([409, 412].contains(&again), "{again}");
    let kept: String = folder.objects().concat();
    let is_kept = ["good", "nice", "third", "evil"].map(|text| kept.contains(text));
    assert_eq!(is_kept, [true, true, true, false], "{kept}");
    process.stop().await;
}

#[tokio::test]
async fn what_waits_is_read_as_a_document_and_decided_one_by_one_or_together() {
    let (up, provider) = (Changeable::start().await, OpenId::start().await);
    up.offer(|offer| offer.text = "Be kind.\n\n```\n{{ x }}\n```".to_owned());
    let library = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        let file =
            format!("---\nname: {name}\narguments:\n  - name: topic\n---\nOn {{{{ topic }}}}.\n");
        std::fs::write(library.path().join(format!("{name}.md")), file).unwrap();
    }
    let lib = format!("[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n", library.path());
    let toml = enforced("")
        + ADMIN
        + "write = true\n"
        + &provider.table()
        + &lib
        + &up.upstream.table("up");
    let folder = Folder::new(&toml);
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let mut browser = Browser::new(&admin);
    browser.log_in("t0ken").await;
    let inbox = async || browser.clone().page("/approvals/up__p").await;
    let page = eventually(inbox, |page| page.contains("4 waiting")).await;
    // A first version is a document: its text with code, and no patch against nothing.
    assert!(page.contains("First version") && page.contains("<pre class=\"code\""), "{page}");
    assert!(page.contains("href=\"/approvals/lib__c\" aria-keyshortcuts=\"k\""), "{page}");
    let decide = async |browser: &mut Browser, page: &str, action: &str| {
        let prompts = page
            .split("name=\"prompt\" value=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap());
        let tags = page
            .split("name=\"tag\" value=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().replace("&#34;", "\""));
        let (prompts, tags): (Vec<_>, Vec<_>) = (prompts.collect(), tags.collect());
        let csrf = hidden(page, "csrf");
        let mut fields = vec![("csrf", csrf.as_str()), ("action", action)];
        fields.extend(prompts.iter().map(|prompt| ("prompt", *prompt)));
        fields.extend(tags.iter().map(|tag| ("tag", tag.as_str())));
        browser.submit("/approvals/decide", &fields).await
    };
    // Several at once, with a summary of each.
    let several = browser.page("/approvals?chosen=lib__a&chosen=lib__b").await;
    assert_eq!(rows(&several, "Changes").len(), 2, "{several}");
    assert!(several.contains("Approve 2 prompts") && several.contains("first version"));
    let decided = decide(&mut browser, &several, "approve").await;
    assert_eq!(
        decided.header("location"),
        Some("/approvals/lib__c?after=lib__b"),
        "{}",
        text(&decided)
    );
    let page = browser.page("/approvals/lib__c?after=lib__b").await;
    assert!(page.contains("was approved by token") && page.contains("2 waiting"), "{page}");
    assert!(page.contains("<var class=\"place\">{{ topic }}</var>"), "{page}");
    // One by one: each decision leads to the next that waits.
    let one = page.split("<details><summary>Take back").next().unwrap();
    let decided = decide(&mut browser, one, "approve").await;
    assert_eq!(
        decided.header("location"),
        Some("/approvals/up__p?after=lib__c"),
        "{}",
        text(&decided)
    );
    // A change is shown message by message, the versions on the page of the prompt.
    let file = "---\nname: a\narguments:\n  - name: topic\n---\nAll on {{ topic }}, please.\n";
    std::fs::write(library.path().join("a.md"), file).unwrap();
    // A page that is asked for before the edit is seen says that the file has changed.
    let changed = async || text(&browser.clone().get("/approvals/lib__a").await);
    let page = eventually(changed, |page| page.contains("What changes")).await;
    assert!(page.contains("<mark>}}, please.</mark>"), "{page}");
    let decided =
        decide(&mut browser, page.split("<details><summary>Take back").next().unwrap(), "approve")
            .await;
    assert_eq!(decided.status, 303, "{}", text(&decided));
    let versions = browser.page("/prompts/lib__a/versions").await;
    assert_eq!(rows(&versions, "Approved versions").len(), 2, "{versions}");
    assert!(versions.contains("From version 1 to 2") && versions.contains("please"), "{versions}");
    let text_tab = browser.page("/prompts/lib__a").await;
    assert!(text_tab.contains("Approved by token") && text_tab.contains("All on "), "{text_tab}");
    // A chosen version comes back, with a reason.
    let (csrf, tag, to) = (
        hidden(&versions, "csrf"),
        hidden(&versions, "tag"),
        versions.split("<option value=\"sha256:").nth(1).unwrap(),
    );
    let to = format!("sha256:{}", to.split('"').next().unwrap());
    let mut fields = vec![
        ("csrf", csrf.as_str()),
        ("tag", &tag),
        ("prompt", "lib__a"),
        ("action", "rollback"),
        ("to", &to),
    ];
    assert_eq!(browser.submit("/approvals/decide", &fields).await.status, 400, "it needs a reason");
    fields.push(("why", "too polite"));
    assert_eq!(browser.submit("/approvals/decide", &fields).await.status, 303);
    let page = browser.page("/prompts/lib__a/versions").await;
    assert!(page.contains("too polite") && page.contains("Another version is offered"), "{page}");
    // Viewers read none of it.
    let mut viewer = Browser::new(&admin);
    provider.sign_in(&mut viewer, &["readers"]).await;
    for path in ["/prompts/lib__a", "/prompts/lib__a/versions", "/approvals/up__p"] {
        let page = viewer.page(path).await;
        assert!(
            page.contains("Texts are shown to testers") && !page.contains("please"),
            "{path}: {page}"
        );
    }
    assert_eq!(viewer.get("/approvals?chosen=lib__a").await.status, 403);
    process.kill().await;
}
