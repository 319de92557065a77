//! The configuration page: where values come from, what is hidden, and what reloads have changed.

use std::fs;

use serde_json::{Value, json};

use super::{Browser, document};
use crate::reload_follow::ConfiguredProcess;
use crate::support::client::Reply;
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

fn setting<'a>(shown: &'a Value, key: &str) -> &'a Value {
    let mut all = shown["settings"].as_array().unwrap().iter();
    all.find(|setting| setting["key"] == key).unwrap_or_else(|| panic!("{key} in {shown:#}"))
}

#[tokio::test]
async fn every_value_has_its_origin_and_no_secret_is_shown_anywhere() {
    let (followed, _library) = start().await;
    let admin = followed.admin.clone().with("Authorization", "Bearer t0ken-s3cret");
    let (mut settings, mut pages) = (Vec::new(), 1);
    let mut page = 1;
    while page <= pages {
        let shown = document(&admin, &format!("/configuration?page={page}")).await;
        pages = shown["paging"]["pages"].as_u64().unwrap();
        settings.extend(shown["settings"].as_array().unwrap().clone());
        page += 1;
    }
    assert!(settings.len() > 80, "{}", settings.len());
    let shown = json!({"settings": settings});
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
        let setting = setting(&shown, key);
        assert_eq!(
            (&setting["value"], &setting["origin"]),
            (&json!(value), &json!(origin)),
            "{key}"
        );
    }
    let only = document(&admin, "/configuration?origin=env").await;
    let keys: Vec<_> = only["settings"].as_array().unwrap().iter().map(|s| &s["key"]).collect();
    assert!(keys.contains(&&json!("listing.page_size")) && keys.len() < 10, "{keys:?}");
    assert_eq!(document(&admin, "/configuration?q=s3cret").await["settings"], json!([]));

    let down = async || document(&admin, "/upstreams").await;
    let is_down = |shown: &Value| {
        shown["upstreams"].as_array().unwrap().iter().filter(|up| up["state"] == "down").count()
            == 2
    };
    eventually(down, is_down).await;
    let mut browser = Browser::new(&admin);
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
        "/configuration?page=2",
        "/configuration?page=3",
        "/connect",
    ] {
        let page = browser.page(path).await;
        assert!(!page.contains("s3cret") && !page.contains("5ec2e7"), "{path}: {page}");
    }
    for path in [
        "status",
        "catalog",
        "approvals",
        "upstreams",
        "overview",
        "prompts/lib__greet",
        "connect",
        "audit",
        "access",
    ] {
        let shown = document(&admin, &format!("/{path}")).await.to_string();
        assert!(!shown.contains("s3cret") && !shown.contains("5ec2e7"), "{path}: {shown}");
    }
    followed.process.kill().await;
}

#[tokio::test]
async fn reloads_are_shown_with_what_they_changed_and_with_mistakes() {
    let (followed, _library) = start().await;
    let admin = followed.admin.clone().with("Authorization", "Bearer t0ken-s3cret");
    let file = fs::read_to_string(followed.file()).unwrap();
    let history = async || document(&admin, "/configuration").await;
    assert_eq!(history().await["reloads"], json!([]));

    fs::write(
        followed.file(),
        file.replace("name = \"one\"", "name = \"two\"").replace("t0ken-s3cret", "t0ken-s3cret2"),
    )
    .unwrap();
    let admin =
        crate::support::Client::new(admin.addr).with("Authorization", "Bearer t0ken-s3cret2");
    let applied = async || admin.send("GET", "/api/v1/configuration", &[], b"").await;
    // The new token counts a moment before the reload is in the history.
    let is_told = |reply: &Reply| reply.status == 200 && !reply.json()["reloads"][0].is_null();
    let applied = eventually(applied, is_told).await.json();
    let newest = &applied["reloads"][0];
    assert_eq!(newest["outcome"], "applied");
    let change = json!({"key": "server.name", "before": "one", "after": "two"});
    assert!(newest["changes"].as_array().unwrap().contains(&change), "{newest}");
    assert!(!applied.to_string().contains("s3cret"), "{applied}");

    let good = fs::read_to_string(followed.file()).unwrap();
    fs::write(followed.file(), good.clone() + "[listing]\ndebounce = \"<b>\"\n").unwrap();
    let history = async || document(&admin, "/configuration").await;
    let rejected = eventually(history, |shown| shown["reloads"][0]["outcome"] == "rejected").await;
    let mistakes = rejected["mistakes"].to_string();
    assert!(mistakes.contains("listing.debounce"), "{mistakes}");
    assert_eq!(rejected["mistakes"], rejected["reloads"][0]["mistakes"]);
    let mut browser = Browser::new(&admin);
    let page = browser.page("/configuration").await;
    assert!(page.contains("Mistakes in the file") && !page.contains("<b>"), "{page}");
    assert!(browser.page("/").await.contains("The configuration file is rejected"));

    fs::write(followed.file(), good).unwrap();
    let history = async || document(&admin, "/configuration").await;
    let restored = eventually(history, |shown| shown["reloads"][0]["outcome"] == "restored").await;
    assert_eq!(restored["mistakes"], json!([]));
    assert_eq!(restored["reloads"].as_array().unwrap().len(), 3);
    followed.process.kill().await;
}
