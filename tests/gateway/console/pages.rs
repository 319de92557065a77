//! Pages: what every one of them sends, so that a browser is protected and loads little.

use std::io::Read as _;

use serde_json::json;

use super::{ADMIN, Browser, OPEN_ADMIN, document, rows, text};
use crate::support::client::Reply;
use crate::support::process::run;
use crate::support::{Gateway, Process, Scripted, Upstream};

const PAGES: [&str; 16] = [
    "/",
    "/prompts",
    "/prompts/up__p",
    "/prompts/up__p/try",
    "/prompts/up__p/versions",
    "/prompts/up__p/access",
    "/prompts/up__p/uses",
    "/search?q=p",
    "/upstreams",
    "/upstreams/up",
    "/access",
    "/approvals",
    "/usage",
    "/audit",
    "/configuration",
    "/connect",
];

#[tokio::test]
async fn the_file_of_a_library_prompt_is_read_on_its_page_without_approvals() {
    let folder = tempfile::tempdir().unwrap();
    let file = "---\nname: greet\narguments:\n  - name: who\n---\nHello {{ who }}!\n";
    std::fs::write(folder.path().join("greet.md"), file).unwrap();
    let lib = format!("[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n", folder.path());
    let gateway = Gateway::start(&format!("{OPEN_ADMIN}{lib}")).await;
    gateway.summary().await;
    let page = Browser::new(&gateway.admin()).page("/prompts/lib__greet").await;
    assert!(page.contains("Hello <var class=\"place\">{{ who }}</var>!"), "{page}");
}

async fn gateway(admin: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&(admin.to_owned() + &upstream.table("up"))).await;
    gateway.summary().await;
    (upstream, gateway)
}

/// The headers of every answer that a browser may show.
fn is_protected(reply: &Reply, path: &str) {
    let policy = reply.header("content-security-policy").unwrap_or_else(|| panic!("{path}"));
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "same-origin"),
    ] {
        assert_eq!(reply.header(name), Some(value), "{path}");
    }
}

#[tokio::test]
async fn every_page_is_protected_and_asked_for_by_its_tag() {
    let (_upstream, gateway) = gateway(OPEN_ADMIN).await;
    let mut browser = Browser::new(&gateway.admin());
    for path in PAGES {
        let page = browser.get(path).await;
        assert_eq!(page.status, 200, "{path}");
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        assert_eq!(page.header("cache-control"), Some("private, no-cache"));
        is_protected(&page, path);
        let took = page.header("server-timing").and_then(|took| took.strip_prefix("page;dur="));
        assert!(took.is_some_and(|took| took.parse::<f64>().is_ok()), "{path}: {took:?}");
        assert!(!text(&page).contains("style=\"") && !text(&page).contains("onclick"), "{path}");
        let tag = page.header("etag").expect("a tag").to_owned();
        assert!(tag.starts_with("W/\""), "{tag}");
        if ["/access", "/connect"].contains(&path) {
            let known = browser.send("GET", path, &[("If-None-Match", &tag)], b"").await;
            assert_eq!((known.status, known.body.len()), (304, 0), "{path}");
        }
        let head = browser.send("HEAD", path, &[], b"").await;
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        let packed = browser.send("GET", path, &[("Accept-Encoding", "br, gzip")], b"").await;
        assert_eq!(packed.header("content-encoding"), Some("gzip"), "{path}");
        assert!(packed.header("vary").unwrap().contains("Accept-Encoding"));
        let mut unpacked = String::new();
        flate2::read::GzDecoder::new(&packed.body[..]).read_to_string(&mut unpacked).unwrap();
        assert!(unpacked.ends_with("</html>"), "{path}");
    }
    for (path, status) in [("/no", 404), ("/prompts/no", 404), ("/upstreams/no", 404)] {
        let page = browser.get(path).await;
        assert_eq!(page.status, status, "{path}");
        assert_eq!(page.header("etag"), None, "{path}");
        is_protected(&page, path);
    }
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS"] {
        let refused = browser.send(method, "/prompts", &[], b"").await;
        assert_eq!(refused.status, 405, "{method}");
        is_protected(&refused, method);
    }
}

#[tokio::test]
async fn the_first_page_and_its_files_are_small_and_the_files_are_kept() {
    let (_upstream, gateway) = gateway(OPEN_ADMIN).await;
    let mut browser = Browser::new(&gateway.admin());
    let packed = [("Accept-Encoding", "gzip")];
    let page = browser.page("/").await;
    let mut total = browser.send("GET", "/", &packed, b"").await.body.len();
    let assets: Vec<_> =
        page.split('"').filter(|part| part.starts_with("/assets/")).map(str::to_owned).collect();
    assert_eq!(assets.len(), 3, "{assets:?}");
    for path in &assets {
        let asset = browser.send("GET", path, &packed, b"").await;
        assert_eq!(asset.status, 200, "{path}");
        is_protected(&asset, path);
        assert_eq!(
            asset.header("cache-control"),
            Some("public, max-age=31536000, immutable"),
            "{path}"
        );
        total += asset.body.len();
    }
    assert!(total <= 60 << 10, "{total} bytes");
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "nothing is loaded from elsewhere"
    );
}

#[tokio::test]
async fn a_console_that_is_off_has_no_pages_and_the_api_stays() {
    let (_upstream, gateway) = gateway(&(ADMIN.to_owned() + "console = false\n")).await;
    let admin = super::with_token(&gateway.admin());
    for path in PAGES.iter().chain(&["/login", "/login/oidc", "/assets/style.css"]) {
        let reply = admin.send("GET", path, &[], b"").await;
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.json()["error"].as_str().unwrap().contains("admin.console"), "{path}");
        assert_eq!(gateway.admin().send("GET", path, &[], b"").await.status, 404, "{path}");
    }
    let catalog = super::document(&admin, "/catalog").await;
    assert_eq!(catalog["prompts"].as_array().unwrap().len(), 1);
    let mut browser = Browser::new(&gateway.admin());
    assert_eq!(browser.log_in("t0ken").await.status, 404);
}

#[tokio::test]
async fn without_a_token_people_try_what_anyone_may_get_and_decide_nothing() {
    let (_upstream, gateway) = gateway(OPEN_ADMIN).await;
    let mut browser = Browser::new(&gateway.admin());
    let csrf = browser.csrf("/prompts/up__p/try").await;
    let tried = browser.submit("/prompts/up__p/try", &[("csrf", &csrf)]).await;
    assert_eq!(tried.status, 200, "{}", text(&tried));
    let forged = browser.submit("/prompts/up__p/try", &[("csrf", "x")]).await;
    assert_eq!(forged.status, 403);
    let decision = [("csrf", csrf.as_str()), ("action", "approve"), ("prompt", "up__p")];
    let refused = browser.submit("/approvals/decide", &decision).await;
    assert_eq!(refused.status, 403, "{}", text(&refused));
}

#[tokio::test]
async fn without_a_token_people_look_and_do_nothing_else_where_rules_decide() {
    let rule = "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\n";
    let (_upstream, gateway) = gateway(&format!("{OPEN_ADMIN}{rule}")).await;
    let mut browser = Browser::new(&gateway.admin());
    let page = browser.page("/prompts/up__p/try").await;
    assert!(!page.contains("/try#result"), "no form is offered");
    assert!(browser.page("/prompts/up__p").await.contains("Texts are shown to testers"));
    let csrf = browser.csrf("/access").await;
    for (path, fields) in [
        ("/prompts/up__p/try", vec![]),
        ("/prompts/up__p/complete", vec![("argument", "a")]),
        ("/approvals/decide", vec![("action", "approve"), ("prompt", "up__p")]),
    ] {
        let fields = [vec![("csrf", csrf.as_str())], fields].concat();
        let refused = browser.submit(path, &fields).await;
        assert_eq!(refused.status, 403, "{path}: {}", text(&refused));
    }
    let refused = super::post(&gateway.admin(), "/prompts/up__p/try", &serde_json::json!({})).await;
    assert_eq!(refused.status, 403);
    // Pasted rules are compared, and change nothing.
    let compared = browser.submit("/access", &[("csrf", &csrf), ("rules", "x = ")]).await;
    assert_eq!(compared.status, 200);
}

#[tokio::test]
async fn addresses_of_forms_lead_to_their_pages() {
    let (_upstream, gateway) = gateway(OPEN_ADMIN).await;
    let mut browser = Browser::new(&gateway.admin());
    for (path, to) in [
        ("/prompts/up__p/complete", "/prompts/up__p"),
        ("/prompts/a%20%22b/complete", "/prompts/a%20%22b"),
        ("/approvals/decide", "/approvals"),
        ("/logout", "/"),
    ] {
        let moved = browser.get(path).await;
        assert_eq!((moved.status, moved.header("location")), (303, Some(to)), "{path}");
    }
    let table = browser.get("/usage?format=csv").await;
    assert_eq!(table.header("content-type"), Some("text/csv; charset=utf-8"));
    assert_eq!(table.header("content-disposition"), Some("attachment; filename=\"usage.csv\""));
    let names = "key,upstream,uses,failures,denied,limited,p50_ms,p95_ms,last,before,kind\r\n";
    assert!(text(&table).starts_with(names));
}

#[tokio::test]
async fn each_upstream_shows_the_latency_failures_and_status_of_its_last_hour() {
    let up = Upstream::modern(|asked| {
        let fails = asked.message["params"]["arguments"]["fails"] == "yes";
        (asked.method() == "prompts/get" && fails).then(|| Scripted::Http(502, vec![], vec![]))
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let toml = "[audit]\npath = \"\"\n".to_owned() + &up.table("up");
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let (gateway, admin) = Process::serve_admin(folder.path(), &[]).await;
    let get = async |fails: &str| {
        let params = json!({"name": "up__p", "arguments": {"fails": fails}});
        gateway.client().modern("prompts/get", params).await;
        document(&admin, "/upstreams").await["upstreams"][0]["lastHour"].clone()
    };
    let good = get("no").await;
    assert_eq!(
        (&good["calls"], &good["failures"], &good["httpStatus"]),
        (&json!(1), &json!(0), &json!(200))
    );
    assert!(good["p50Ms"].as_f64().unwrap() > 0.0 && good["p95Ms"].is_number());
    let bad = get("yes").await;
    assert_eq!(
        (&bad["calls"], &bad["failures"], &bad["httpStatus"]),
        (&json!(2), &json!(1), &json!(502))
    );
    let shown = rows(&Browser::new(&admin).page("/upstreams").await, "Upstreams");
    assert!(shown[0].contains(&"1 of 2 HTTP 502".to_owned()), "{shown:?}");
    let url = format!("http://{}", admin.addr);
    let status = run(folder.path(), &["status", "--url", &url]);
    let status = String::from_utf8(status.stdout).unwrap();
    let line = status.lines().find(|line| line.starts_with("up ")).unwrap();
    assert!(line.contains("ms") && line.trim_end().ends_with("1 of 2  502"), "{status}");
    gateway.stop().await;
}
