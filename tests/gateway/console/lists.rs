//! The overview and the lists: what a row says, how rows are sorted, and where they lead.

use serde_json::json;

use super::{ADMIN, Browser, OPEN_ADMIN, rows, with_token};
use crate::audit::Log;
use crate::support::{Gateway, Upstream, eventually};

/// The texts of a column of prompts.
fn column(page: &str, index: usize) -> Vec<String> {
    rows(page, "Prompts").into_iter().map(|row| row[index].clone()).collect()
}

#[tokio::test]
async fn prompts_have_their_uses_of_the_week_and_are_sorted_by_headings() {
    let upstream = Upstream::with_prompts(&["a", "b", "c"]).await;
    let log = Log::new();
    let toml = OPEN_ADMIN.to_owned() + &log.table() + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    for name in ["up__b", "up__c", "up__b"] {
        gateway.client().ask("prompts/get", json!({"name": name})).await;
    }
    let mut browser = Browser::new(&gateway.admin());
    let mut reader = browser.clone();
    let by_use = async || reader.page("/prompts?sort=-uses").await;
    let page = eventually(by_use, |page| column(page, 3)[0].starts_with("2 uses")).await;
    assert_eq!(column(&page, 3), ["2 uses this week", "1 use this week", "0 uses this week"]);
    let names = |page: &str| {
        let names = column(page, 0);
        names.iter().map(|cell| cell[..5].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&page), ["up__b", "up__c", "up__a"]);
    assert_eq!(page.matches("<svg class=\"spark\"").count(), 2, "nothing is drawn for no use");
    assert!(
        page.contains("aria-sort=\"descending\" class=\"number\"><a href=\"/prompts?sort=uses\">")
    );
    let turned = browser.page("/prompts?sort=uses").await;
    assert_eq!(names(&turned), ["up__a", "up__c", "up__b"]);
    let plain = browser.page("/prompts").await;
    assert_eq!(names(&plain), ["up__a", "up__b", "up__c"]);
    assert_eq!(plain.matches("aria-sort=\"ascending\"").count(), 1, "of the names");
    assert_eq!(names(&browser.page("/prompts?sort=-name").await), ["up__c", "up__b", "up__a"]);
}

#[tokio::test]
async fn a_prompt_that_is_left_out_says_where_that_is_mended() {
    let up = Upstream::with_prompts(&["a1", "a2", "b", "c"]).await;
    let held = Upstream::with_prompts(&["p"]).await;
    let overlays = "[[overlays]]\nupstream = \"up\"\nprompt = \"a1\"\nrename = \"x\"\n\
                    [[overlays]]\nupstream = \"up\"\nprompt = \"a2\"\nrename = \"x\"\n\
                    [[overlays]]\nupstream = \"up\"\nprompt = \"b\"\ndrop = true\n";
    let toml = OPEN_ADMIN.to_owned()
        + &up.table("up")
        + &held.table("held")
        + "approval = \"enforce\"\n"
        + overlays;
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    let page = browser.page("/prompts").await;
    let left_out = rows(&page, "Prompts that are left out");
    let repair = |name: &str| {
        let row = left_out.iter().find(|row| row[0] == name);
        row.unwrap_or_else(|| panic!("{name}: {left_out:?}"))[3].clone()
    };
    assert_eq!(repair("a1"), "Set a prefix, or rename it");
    assert_eq!(repair("b"), "Change the overlay");
    assert_eq!(repair("p"), "Decide on it");
    let page = page.replace("&#38;", "&");
    for (link, shows) in [
        ("/configuration?q=upstreams.up.prefix", "upstreams.up.prefix"),
        ("/configuration?q=overlays.", "overlays.3.drop"),
        ("/approvals?upstream=held&q=p", "held__p"),
    ] {
        assert!(page.contains(&format!("href=\"{link}\"")), "{link}: {page}");
        assert!(browser.page(link).await.contains(shows), "{link}");
    }
}

#[tokio::test]
async fn the_first_steps_vanish_as_they_are_done() {
    let (upstream, log) = (Upstream::with_prompts(&["p"]).await, Log::new());
    let toml = OPEN_ADMIN.to_owned() + &log.table() + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    let steps = ["Add an upstream", "Try a prompt", "Connect a host", "Set a token"];
    let left = |page: &str| steps.map(|step| page.contains(&format!(">{step}</a>: ")));
    assert_eq!(left(&browser.page("/").await), [false, true, true, true]);
    let csrf = browser.csrf("/prompts/up__p/try").await;
    browser.submit("/prompts/up__p/try", &[("csrf", &csrf)]).await;
    let mut reader = browser.clone();
    let mut page = async || left(&reader.page("/").await);
    eventually(&mut page, |left| *left == [false, false, true, true]).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    eventually(&mut page, |left| *left == [false, false, false, true]).await;

    let empty = Gateway::start(ADMIN).await;
    let admin = with_token(&empty.admin());
    let page = Browser::new(&admin).page("/").await;
    assert_eq!(left(&page), [true, true, true, false]);
}

#[tokio::test]
async fn the_overview_tells_what_changed_and_not_who_called() {
    let (upstream, log) = (Upstream::with_prompts(&["p"]).await, Log::new());
    let toml = ADMIN.to_owned() + &log.table() + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    for _ in 0..20 {
        gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    }
    let mut browser = Browser::new(&gateway.admin());
    browser.log_in("t0ken").await;
    for _ in 0..3 {
        Browser::new(&gateway.admin()).log_in("wrong").await;
    }
    let mut reader = browser.clone();
    let sees = |page: &String| page.contains("wrong_token");
    let page = eventually(async || reader.page("/").await, sees).await;
    let (_, news) = page.split_once("What changed").unwrap();
    assert!(news.contains("signed in to the console"), "{news}");
    assert!(news.contains("wrong_token, and 2 more"), "alike ones stand together: {news}");
    assert!(!news.contains("prompts/get"), "{news}");
    let record = news.split_once("href=\"/audit/").unwrap().1.split_once('"').unwrap().0;
    assert!(browser.page(&format!("/audit/{record}")).await.contains("wrong_token"));
    assert!(news.contains("not verified</a> the audit log yet"), "{news}");
}

#[tokio::test]
async fn versions_are_listed_where_a_view_serves_them_and_never_as_unused() {
    let (library, log) = (tempfile::tempdir().unwrap(), Log::new());
    std::fs::create_dir_all(library.path().join("refund/versions")).unwrap();
    for number in 1..=2 {
        let text = format!("---\nname: refund\ndescription: d\n---\nversion {number}");
        let file = library.path().join(format!("refund/versions/{number}.md"));
        std::fs::write(file, text).unwrap();
    }
    let lib = format!("[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n", library.path());
    let views = "[views.authors]\nversions = true\n[views.plain]\n";
    let gateway = Gateway::start(&(OPEN_ADMIN.to_owned() + &log.table() + &lib + views)).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    assert_eq!(column(&browser.page("/prompts").await, 0).len(), 1);
    assert_eq!(column(&browser.page("/prompts?view=plain").await, 0).len(), 1);
    let names = column(&browser.page("/prompts?view=authors").await, 0);
    for name in ["lib__refund", "lib__refund@1", "lib__refund@2"] {
        assert!(names.iter().any(|cell| cell.split(' ').next() == Some(name)), "{names:?}");
    }
    let usage = browser.page("/usage").await;
    let (_, unused) = usage.split_once("Never used").unwrap();
    assert!(unused.contains("lib__refund<") && !unused.contains("lib__refund@"), "{unused}");
    for list in ["list=\"prompts\"", "<datalist id=\"prompts\"><option value=\"lib__refund\">"] {
        assert!(usage.contains(list), "{usage}");
    }
}

#[tokio::test]
async fn the_span_of_plots_is_chosen_and_each_cell_has_its_column() {
    let (upstream, log) = (Upstream::with_prompts(&["p"]).await, Log::new());
    let gateway =
        Gateway::start(&(OPEN_ADMIN.to_owned() + &log.table() + &upstream.table("up"))).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    let mut browser = Browser::new(&gateway.admin());
    for path in ["/", "/upstreams/up"] {
        let page = browser.page(&format!("{path}?span=7d")).await;
        assert!(page.contains("Uses, last 7 days") && !page.contains("Uses, last hour"), "{page}");
        assert!(page.contains("<a href=\"?span=7d\" aria-current=\"true\">last 7 days</a>"));
        assert!(page.contains("<a href=\"?span=1h\">last hour</a>"), "{page}");
        assert!(!page.contains("last 30 days"), "no more than is known: {page}");
    }
    let mut usage = async || browser.page("/usage").await;
    let page = eventually(&mut usage, |page| !rows(page, "Usage").is_empty()).await;
    assert!(page.contains("<td data-label=\"Uses\" class=\"number\">1</td>"), "{page}");
}
