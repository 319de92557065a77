//! Skills in the console: listed, found, read, compared and rolled back beside prompts.

use std::fs;

use base::seal::sha256_text;
use serde_json::json;

use super::{ADMIN, Browser, OPEN_ADMIN, document, hidden, rows, text};
use crate::approvals::{Folder, enforced};
use crate::audit::Log;
use crate::skills::{REFUNDS, file, library, reads, skill, upstream};
use crate::support::{Gateway, Process, Upstream, eventually};

const OWN: &str = "skill://crm/acme/refunds/SKILL.md";
const PAGE: &str = "/skills/skill%3A%2F%2Fcrm%2Facme%2Frefunds%2FSKILL.md";

/// An upstream of one skill, one of whose files is no text.
async fn crm() -> Upstream {
    let files = [("SKILL.md", REFUNDS), ("limits.txt", "at most <100>")];
    let mut entry = skill("skill://acme/refunds", &files);
    let digest = sha256_text(b"\xff\x00");
    let logo = json!({"uri": "skill://acme/refunds/logo.png", "digest": digest, "size": 2});
    entry["resources"].as_array_mut().unwrap().push(logo);
    upstream(json!([entry]), |asked| {
        let uri = asked.message["params"]["uri"].as_str().unwrap();
        match uri.rsplit('/').next() {
            Some("limits.txt") => file(asked, "at most <100>"),
            Some("logo.png") => asked.result(json!({"resultType": "complete", "ttlMs": 0,
                "cacheScope": "private", "contents": [{"uri": uri, "blob": "/wA="}]})),
            _ => file(asked, REFUNDS),
        }
    })
    .await
}

#[tokio::test]
async fn a_skill_has_a_page_with_its_files_and_their_texts() {
    let crm = crm().await;
    let gateway = Gateway::start(&(OPEN_ADMIN.to_owned() + &crm.table("crm"))).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    let page = browser.page(PAGE).await;
    let files = rows(&page, "Files");
    assert_eq!(files.len(), 3, "{page}");
    assert_eq!(files[1][..2], ["limits.txt".to_owned(), "13".to_owned()], "{page}");
    assert!(page.contains(&sha256_text(b"at most <100>")), "{page}");
    assert!(page.contains("Read [limits](limits.md).") && page.contains("offers it now"), "{page}");
    let limits = browser.page(&format!("{PAGE}?file=limits.txt")).await;
    assert!(limits.contains("<pre tabindex=\"0\">at most &lt;100&gt;</pre>"), "{limits}");
    let logo = browser.page(&format!("{PAGE}?file=logo.png")).await;
    assert!(logo.contains("(2 bytes, no text: sha256:"), "{logo}");
    assert_eq!(reads(&crm), 3, "one file for each page");
    for none in ["../refunds/SKILL.md", "none", "%2e%2e%2fx"] {
        assert_eq!(browser.get(&format!("{PAGE}?file={none}")).await.status, 404, "{none}");
    }
    assert_eq!(browser.get("/skills/skill%3A%2F%2Fcrm%2Fnone%2FSKILL.md").await.status, 404);
    assert_eq!(browser.get("/skills/crm__refunds").await.status, 404);
    assert_eq!(browser.get(&format!("{PAGE}/try")).await.status, 404);
    assert!(browser.page(&format!("{PAGE}/versions")).await.contains("No version of it was"));
    let access = rows(&browser.page(&format!("{PAGE}/access")).await, "Rights");
    assert_eq!(access[0][1], "everything", "{access:?}");

    let list = browser.page("/prompts").await;
    let listed = rows(&list, "Skills");
    assert!(listed.len() == 1 && listed[0][0].starts_with(OWN), "{listed:?}");
    assert_eq!(listed[0][3], "3 files, 93 bytes");
    assert!(list.contains(&format!("href=\"{PAGE}\"")), "{list}");
    let both = "aria-label=\"Prompts\"";
    let skills = browser.page("/prompts?kind=skills&q=acme").await;
    assert!(rows(&skills, "Skills").len() == 1 && !skills.contains(both), "{skills}");
    let prompts = browser.page("/prompts?kind=prompts").await;
    assert!(rows(&prompts, "Skills").is_empty() && prompts.contains("skills 1"), "{prompts}");
    for none in ["q=unknown", "upstream=other", "tag=x", "state=pending"] {
        let page = browser.page(&format!("/prompts?kind=skills&{none}")).await;
        assert!(page.contains("No skill matches."), "{none}");
    }
    assert!(browser.page("/search?q=refund").await.contains(PAGE));
    let catalog = document(&gateway.admin(), "/catalog").await;
    assert_eq!(catalog["skills"][0]["name"], OWN);
}

#[tokio::test]
async fn viewers_read_no_file_of_a_skill() {
    let crm = crm().await;
    let rules = "[[access.rules]]\nallow = [\"list\"]\n";
    let toml = OPEN_ADMIN.to_owned() + rules + &crm.table("crm");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    for path in [PAGE.to_owned(), format!("{PAGE}?file=limits.txt")] {
        let page = browser.page(&path).await;
        assert!(page.contains("Texts are shown to testers") && page.contains("13"), "{page}");
        assert!(!page.contains("at most") && !page.contains("Read [limits]"), "{page}");
    }
    assert_eq!(reads(&crm), 0);
    let access = rows(&browser.page(&format!("{PAGE}/access")).await, "Rights");
    assert_eq!(access[0][1], "list", "{access:?}");
}

#[tokio::test]
async fn reading_the_own_file_of_a_skill_is_a_use_by_each_door() {
    let (crm, log) = (crm().await, Log::new());
    let toml = OPEN_ADMIN.to_owned()
        + &log.table()
        + "[server]\nexpose = [\"prompts\", \"tools\"]\n"
        + &crm.table("crm")
        + "expose_skills = [\"prompts\"]\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    let client = gateway.client();
    let limits = OWN.replace("SKILL.md", "limits.txt");
    for uri in [OWN, &limits] {
        client.ask("resources/read", json!({"uri": uri})).await;
    }
    for file in ["SKILL.md", "limits.txt"] {
        let arguments = json!({"name": "crm/acme/refunds", "file": file});
        client.ask("tools/call", json!({"name": "read_skill", "arguments": arguments})).await;
    }
    client.ask("prompts/get", json!({"name": "crm__refunds"})).await;
    client.ask("skills/get", json!({"uri": OWN})).await;
    client.ask("skills/list", json!({})).await;
    client.ask_error("resources/read", json!({"uri": "skill://crm/none/SKILL.md"})).await;
    // Those who look at its page do not use it.
    browser.page(PAGE).await;
    let reader = browser.clone();
    let uses = async || reader.clone().page(&format!("{PAGE}/uses")).await;
    let uses = eventually(uses, |page| page.contains("3 in the last day")).await;
    assert_eq!(rows(&uses, "Callers")[0][1..3], ["3".to_owned(), "0".to_owned()], "{uses}");
    let usage = rows(&browser.page("/usage?span=1h").await, "Usage");
    assert_eq!(usage.len(), 1, "{usage:?}");
    assert_eq!(usage[0][0], format!("{OWN} skill"));
    let table = text(&browser.get("/usage?span=1h&format=csv").await);
    let row = table.lines().nth(1).unwrap();
    assert!(row.starts_with(&format!("{OWN},crm,3,0,0,")) && row.ends_with(",skill"), "{table}");
    let callers = rows(&browser.page("/usage?by=caller&span=1h").await, "Usage");
    assert_eq!((callers[0][1].as_str(), callers[0][4].as_str()), ("3", "1"), "{callers:?}");
    let door = browser.page("/prompts/crm__refunds/uses").await;
    assert!(door.contains("It stands for") && door.contains("3 in the last day"), "{door}");
    let listed = rows(&browser.page("/prompts").await, "Skills");
    assert!(listed[0][4].starts_with('3'), "{listed:?}");
    let usage = browser.page("/usage?span=1h").await;
    let unused = usage.split("Never used").nth(1).unwrap();
    assert!(unused.contains("crm__p") && !unused.contains("refunds"), "{unused}");
}

#[tokio::test]
async fn versions_of_a_skill_are_read_compared_and_rolled_back() {
    let library = tempfile::tempdir().unwrap();
    let own = library.path().join("acme/refunds");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("SKILL.md"), REFUNDS).unwrap();
    fs::write(own.join("limits.md"), "at most 100").unwrap();
    let admin = ADMIN.to_owned() + "write = true\n";
    let crm = format!("[upstreams.crm]\ntransport = \"library\"\npath = {:?}\n", library.path());
    let folder = Folder::new(&(enforced("snapshot = true\n") + &admin + &crm));
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let mut browser = Browser::new(&admin);
    browser.log_in("t0ken").await;
    let reader = browser.clone();
    let shown = async |path: &str, expected: &str| {
        let asked = async || text(&reader.clone().get(path).await);
        eventually(asked, |page| page.contains(expected)).await
    };
    shown(PAGE, "This skill is pending and is not served").await;
    let approval = PAGE.replace("/skills/", "/approvals/");
    let mut approve = async |expected: &str| {
        let page = shown(&approval, expected).await;
        let (csrf, tag) = (hidden(&page, "csrf"), hidden(&page, "tag"));
        let fields =
            [("csrf", csrf.as_str()), ("tag", &tag), ("prompt", OWN), ("action", "approve")];
        let decided = browser.submit("/approvals/decide", &fields).await;
        assert_eq!(decided.status, 303, "{}", text(&decided));
    };
    approve("at most 100").await;
    let limits = format!("{PAGE}?file=limits.md");
    let page = shown(&limits, "Approved by token").await;
    assert!(page.contains("at most 100"), "{page}");

    // What waits is not what is served.
    fs::write(own.join("limits.md"), "at most 900").unwrap();
    let page = shown(&limits, "Another version waits for a decision").await;
    assert!(page.contains("at most 100") && !page.contains("900"), "{page}");
    approve("900").await;
    let versions = format!("{PAGE}/versions");
    let page = shown(&versions, "From version 1 to 2").await;
    assert_eq!(rows(&page, "Approved versions").len(), 2, "{page}");
    assert!(page.contains("limits.md") && page.contains("Removed: "), "{page}");
    let to = page.split("<option value=\"sha256:").nth(1).unwrap();
    let to = format!("sha256:{}", to.split('"').next().unwrap());
    let (csrf, tag) = (hidden(&page, "csrf"), hidden(&page, "tag"));
    let fields = [
        ("csrf", csrf.as_str()),
        ("tag", &tag),
        ("prompt", OWN),
        ("action", "rollback"),
        ("to", &to),
        ("why", "too much"),
    ];
    assert_eq!(browser.submit("/approvals/decide", &fields).await.status, 303);
    shown(&limits, "at most 100").await;
    assert!(browser.page(&versions).await.contains("too much"));
    process.stop().await;
}

#[tokio::test]
async fn a_prompt_that_is_offered_as_a_skill_says_where() {
    let described = "---\nname: greet\ndescription: Greets.\n---\nHello\n";
    let (library, _folder) =
        library(&[("greet.md", described), ("ask.md", "---\nname: ask\n---\nWhy?\n")]);
    let toml = OPEN_ADMIN.to_owned() + &library + "[views.models]\nexpose = [\"skills\"]\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    let page = browser.page("/prompts/lib__greet").await;
    let said = "as the skill <span class=\"mono\">skill://lib/greet/SKILL.md</span> at \
        <span class=\"mono\">/mcp/models</span>";
    assert!(page.contains(said), "{page}");
    let other = browser.page("/prompts/lib__ask").await;
    assert!(!other.contains("as the skill"), "{other}");
}
