//! The versions of a prompt in the console, and the moves of its labels.

use super::{ADMIN, Browser, hidden, rows, text};
use crate::approvals::{Folder, enforced};
use crate::support::{Process, eventually};

const PAGE: &str = "/prompts/lib__refund/versions";

#[tokio::test]
async fn a_label_is_moved_by_a_click_to_approved_versions_only() {
    let library = tempfile::tempdir().unwrap();
    let versions = library.path().join("refund/versions");
    std::fs::create_dir_all(&versions).unwrap();
    for number in 1..=3 {
        let text = format!("---\nname: refund\ndescription: d\n---\nversion {number}");
        std::fs::write(versions.join(format!("{number}.md")), text).unwrap();
    }
    let labels = "[refund]\nproduction = 1\ncandidate = 3\n";
    std::fs::write(library.path().join("labels.toml"), labels).unwrap();
    let table = format!("[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n", library.path());
    let folder = Folder::new(&(enforced("") + ADMIN + "write = true\n" + &table));
    let approved = folder.approvals(&["approve", "lib__refund@1", "lib__refund@2", "--yes"]).await;
    assert_eq!(approved.code, Some(0), "{approved:?}");
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let mut browser = Browser::new(&admin);
    browser.log_in("t0ken").await;

    let page = async || text(&browser.clone().get(PAGE).await);
    let page = eventually(page, |page| rows(page, "Versions").len() == 3).await;
    let shown = rows(&page, "Versions");
    let numbers: Vec<&str> = shown.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(numbers, ["3", "2", "1 served"], "the newest first");
    assert_eq!((shown[0][1].as_str(), shown[2][1].as_str()), ("candidate", "production"));
    assert!(shown[0][2].starts_with("pending") && shown[1][2].starts_with("approved by alice"));
    assert!(page.contains("From 1 to 3"), "what the newest version would change");

    let mut forms = browser.clone();
    let mut move_to = async |page: &str, version: &str| {
        let csrf = hidden(page, "csrf");
        let tag = hidden(page, "tag");
        let fields = [
            ("csrf", csrf.as_str()),
            ("prompt", "lib__refund"),
            ("tag", &tag),
            ("label", "production"),
            ("version", version),
            ("why", "better"),
        ];
        forms.submit(PAGE, &fields).await
    };
    let refused = move_to(&page, "3").await;
    assert_eq!(refused.status, 409);
    assert!(text(&refused).contains("lib__refund@3 is not approved"), "{}", text(&refused));
    let moved = move_to(&page, "2").await;
    assert_eq!((moved.status, moved.header("location")), (303, Some(PAGE)), "{}", text(&moved));
    let page = async || text(&browser.clone().get(PAGE).await);
    let page = eventually(page, |page| rows(page, "Versions")[1][0] == "2 served").await;
    assert_eq!(rows(&page, "Moves of labels")[0][1], "production from 1 to 2");
    assert_eq!(move_to(&page, "none").await.status, 400);
    process.stop().await;
}
