//! The configuration page: where values come from, what is hidden, and how reloads ended.

use std::fs;

use serde_json::Value;

use super::{Browser, document, rows, text};
use crate::reload_follow::ConfiguredProcess;
use crate::support::eventually;

const LIBRARY: &str =
    "---\nname: greet\ndescription: Says hello\narguments:\n  - name: x\n---\nHello\n";

/// Everything that may hold a secret holds the same one.
fn toml(name: &str) -> String {
    format!(
        "[server]\nname = \"{name}\"\n\
         [admin]\ntoken = {{ value = \"t0ken-s3cret\" }}\n\
         [admin.oidc]\nissuer = \"https://id.example\"\nclient_id = \"console\"\nclient_secret = {{ value = \"s3cret\" }}\nviewers = [\"v\"]\n\
         [telemetry]\nlog = \"warn,promptgate::app=info\"\n\
         [audit]\npath = \"audit\"\n\
         [[auth.api_keys]]\nid = \"ci\"\nhash = \"sha256:00000000000000000000000000000000000000000000000000000000005ec2e7\"\n\
         [upstreams.lib]\ntransport = \"library\"\npath = \"lib\"\n\
         [upstreams.far]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp?key=s3cret\"\ncredential = {{ bearer = {{ value = \"s3cret-b\" }} }}\n\
         headers = {{ X-Key = {{ value = \"s3cret-h\" }}, X-Plain = \"s3cret-p\", X-Env = {{ env = \"HEADER\" }} }}\n\
         [upstreams.child]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", \"exit 1 # s3cret\"]\nenv = {{ KEY = {{ value = \"s3cret-e\" }}, PLAIN = \"s3cret-e\" }}\n\
         [[overlays]]\nupstream = \"lib\"\nprompt = \"greet\"\narguments.x = {{ preset = \"s3cret-x\" }}\n"
    )
}

/// A gateway that runs, and the folder of its library.
async fn start() -> (ConfiguredProcess, tempfile::TempDir) {
    let variables = [("PROMPTGATE__LISTING__PAGE_SIZE", "7"), ("HEADER", "s3cret-v")];
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("lib")).unwrap();
    fs::write(folder.path().join("lib/greet.md"), LIBRARY).unwrap();
    let text =
        toml("one").replace("path = \"lib\"", &format!("path = {:?}", folder.path().join("lib")));
    (ConfiguredProcess::with(&text, &variables).await, folder)
}

#[tokio::test]
async fn every_value_has_its_origin_and_no_secret_is_shown_anywhere() {
    let (followed, _library) = start().await;
    let admin = followed.admin.clone().with("Authorization", "Bearer t0ken-s3cret");
    let mut browser = Browser::new(&admin);
    let mut settings = Vec::new();
    for page in 1.. {
        let shown = browser.page(&format!("/configuration?defaults=1&page={page}")).await;
        settings.extend(rows(&shown, "Values in use"));
        if !shown.contains("rel=\"next\"") {
            break;
        }
    }
    assert!(settings.len() > 80, "{}", settings.len());
    for (key, value, origin) in [
        ("server.name", "one", "line 2"),
        ("listing.page_size", "7", "PROMPTGATE__LISTING__PAGE_SIZE"),
        ("admin.page_rows", "1000", "default"),
        ("admin.token.value", "(hidden)", "line 4"),
        ("upstreams.far.headers.X-Key.value", "(hidden)", "line 24"),
        ("upstreams.far.headers.X-Plain", "(hidden)", "line 24"),
        ("upstreams.far.headers.X-Env.env", "HEADER", "line 24"),
        ("upstreams.far.url", "http://127.0.0.1:1/mcp?(hidden)", "line 22"),
        ("upstreams.child.command", "[sh, (hidden)]", "line 27"),
    ] {
        let setting = settings.iter().find(|setting| setting[0] == key);
        assert_eq!(setting.expect(key)[1..3], [value, origin], "{key}");
    }
    for setting in &settings {
        assert!(setting[3].ends_with('.'), "a meaning: {setting:?}");
    }
    // Keys that are set come first; defaults are one link away.
    let page = browser.page("/configuration").await;
    let only = rows(&page, "Values in use");
    assert!(only.iter().any(|setting| setting[0] == "listing.page_size"), "{only:?}");
    assert!(only.iter().all(|setting| setting[2] != "default"), "{only:?}");
    assert!(page.contains(&format!("With defaults: {}", settings.len())), "{page}");
    let none = browser.page("/configuration?q=page_rows").await;
    assert!(none.contains("No key that is set matches; with defaults 1 do"), "{none}");
    assert!(rows(&browser.page("/configuration?q=s3cret").await, "Values in use").is_empty());

    let down = async || document(&admin, "/upstreams").await;
    let is_down = |shown: &Value| {
        shown["upstreams"].as_array().unwrap().iter().filter(|up| up["state"] == "down").count()
            == 2
    };
    eventually(down, is_down).await;
    for path in [
        "/",
        "/prompts",
        "/prompts/lib__greet",
        "/upstreams",
        "/upstreams/far",
        "/upstreams/child",
        "/access",
        "/approvals",
        "/usage",
        "/audit",
        "/configuration",
        "/configuration?defaults=1",
        "/configuration?defaults=1&page=2",
        "/connect",
    ] {
        let page = browser.page(path).await;
        assert!(!page.contains("s3cret") && !page.contains("5ec2e7"), "{path}: {page}");
    }
    for path in ["status", "catalog", "approvals", "upstreams", "accounts", "replicas"] {
        let shown = document(&admin, &format!("/{path}")).await.to_string();
        assert!(!shown.contains("s3cret") && !shown.contains("5ec2e7"), "{path}: {shown}");
    }
    followed.process.kill().await;
}

#[tokio::test]
async fn reloads_are_shown_with_their_outcome_and_mistakes() {
    let (followed, _library) = start().await;
    let admin = followed.admin.clone().with("Authorization", "Bearer t0ken-s3cret");
    let file = fs::read_to_string(followed.file()).unwrap();
    assert!(Browser::new(&admin).page("/configuration").await.contains("None since the start."));

    fs::write(
        followed.file(),
        file.replace("name = \"one\"", "name = \"two\"").replace("t0ken-s3cret", "t0ken-s3cret2"),
    )
    .unwrap();
    let admin =
        crate::support::Client::new(admin.addr).with("Authorization", "Bearer t0ken-s3cret2");
    let applied = async || text(&admin.send("GET", "/configuration", &[], b"").await);
    // The new token counts a moment before the reload is in the history.
    let applied = eventually(applied, |page| page.contains(": applied</h3>")).await;
    let value = ["server.name".to_owned(), "two".to_owned()];
    assert!(rows(&applied, "Values in use").iter().any(|row| row[..2] == value), "{applied}");
    assert!(!applied.contains("s3cret"), "{applied}");

    let good = fs::read_to_string(followed.file()).unwrap();
    fs::write(followed.file(), good.clone() + "[listing]\nsettle = \"<b>\"\n").unwrap();
    let mut browser = Browser::new(&admin);
    let mut reader = browser.clone();
    let history = async || reader.page("/configuration").await;
    let page = eventually(history, |page| page.contains(": rejected</h3>")).await;
    assert_eq!(page.matches("listing.settle").count(), 2, "now, and in the history: {page}");
    assert!(page.contains("Mistakes in the file") && !page.contains("<b>"), "{page}");
    assert!(browser.page("/").await.contains("The configuration file is rejected"));

    fs::write(followed.file(), good).unwrap();
    let history = async || reader.page("/configuration").await;
    let restored = eventually(history, |page| page.contains(": restored</h3>")).await;
    assert!(!restored.contains("Mistakes in the file"), "{restored}");
    assert_eq!(restored.matches("</h3>").count(), 3);
    followed.process.kill().await;
}
