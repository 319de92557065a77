//! The overview's list: what callers lose leads, and each cause is told once.

use serde_json::json;

use super::{ADMIN, Browser, rows};
use crate::approvals::{Changeable, Folder, enforced};
use crate::support::{Process, Upstream, eventually};

/// The lines of the list: the class, the page and the text of each.
fn attention(page: &str) -> Vec<[String; 3]> {
    let list = page.split_once("<ul class=\"attention\">").map_or("", |(_, list)| list);
    let list = list.split_once("</ul>").map_or("", |(list, _)| list);
    let line = |line: &str| {
        let (class, rest) = line.split_once("\"><a href=\"").expect("a link");
        let (link, rest) = rest.split_once("\">").expect("its end");
        let text = rest.split_once("</a>").expect("its end").0;
        [class, &link.replace("&#38;", "&"), text].map(str::to_owned)
    };
    list.split("<li class=\"").skip(1).map(line).collect()
}

#[tokio::test]
async fn what_callers_lose_leads_and_what_can_wait_is_quiet() {
    let (up, more) = (Changeable::start().await, Upstream::with_prompts(&["x", "y"]).await);
    let others = "[upstreams.gone]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n\
                  [upstreams.lib]\ntransport = \"library\"\npath = \"lib\"\n";
    let toml = enforced("") + ADMIN + &up.upstream.table("up") + &more.table("more") + others;
    let folder = Folder::new(&toml);
    let broken = "---\nname: b\ndescription: d\n---\nUse {{ cod }}\n";
    std::fs::create_dir(folder.path().join("lib")).unwrap();
    std::fs::write(folder.path().join("lib/b.md"), broken).unwrap();
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let client = process.client();
    folder.recorded("prompt_state").await;
    folder.approve().await;
    let get = async || {
        let reply = client.modern("prompts/get", json!({"name": "up__p"})).await.json();
        reply["result"].is_object()
    };
    eventually(get, |is_served| *is_served).await;
    up.offer(|offer| offer.text = "evil".to_owned());
    for _ in 0..3 {
        assert!(!get().await);
    }

    let mut browser = Browser::new(&admin);
    browser.log_in("t0ken").await;
    let mut reader = browser.clone();
    let overview = async || attention(&reader.page("/").await);
    let why = "gets refused in 15 min, since its text is not the approved one";
    let is_whole = |lines: &Vec<[String; 3]>| {
        let has = |text| lines.iter().any(|line| line[2].contains(text));
        has(why) && has("gone is down")
    };
    let lines = eventually(overview, is_whole).await;
    let expected = [
        ["bad", "/approvals/up__p", "up__p: "],
        ["bad", "/upstreams/gone", "Upstream gone is down: "],
        ["warn", "/upstreams/lib", "lib: "],
        ["", "/approvals?state=waiting&upstream=more", "more: 2 prompts wait for approval"],
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for ([class, page, text], line) in expected.into_iter().zip(&lines) {
        assert_eq!([class, page], [&*line[0], &*line[1]], "{lines:?}");
        assert!(line[2].starts_with(text), "{text}: {lines:?}");
    }
    assert!(lines[2][2].contains("lib/b.md:5") && lines[2][2].contains("cod"), "{lines:?}");

    let page = browser.page("/upstreams/gone").await;
    for text in ["http://127.0.0.1:1/mcp", "first failed ", "is tried again ", "Circuit breaker"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let page = browser.page("/upstreams/lib").await;
    assert!(page.contains("library: <code>lib</code>") && page.contains("lib/b.md:5"), "{page}");
    for text in ["Revision", "Circuit breaker", "list_changed"] {
        assert!(!page.contains(text), "a folder has none: {text}: {page}");
    }
    let left_out = rows(&browser.page("/prompts").await, "Prompts that are left out");
    assert!(
        left_out.iter().any(|row| row[0] == "b" && row[2].starts_with("lib/b.md:5")),
        "{left_out:?}"
    );
    let page = browser.page("/upstreams/more").await;
    let waiting = "0 served</a> of a list with 2 entries; \
                   <a href=\"/approvals?state=waiting&amp;upstream=more\">2 wait for approval</a>";
    assert!(page.contains(waiting), "{page}");

    // The record that a text is not approved has a row of its own only without its call.
    let mut sentences = async |query: &str| -> Vec<String> {
        let page = browser.page(&format!("/audit{query}")).await;
        rows(&page, "Records").into_iter().map(|row| row[1].clone()).collect()
    };
    let refused = "because its text is not the approved one";
    let all = eventually(
        async || sentences("").await,
        |all| all.iter().filter(|one| one.contains(refused)).count() == 3,
    )
    .await;
    assert!(!all.iter().any(|one| one.contains("has a text that")), "{all:?}");
    assert_eq!(sentences("?event=text_not_approved").await.len(), 3);
    process.stop().await;
}
