//! Signing in with the token, and out: who is let in, for how long, and from where.

use super::{ADMIN, Browser, hidden, set_cookies, text, with_token};
use crate::audit::Log;
use crate::support::{Gateway, Upstream, eventually};

async fn gateway(more: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = format!("[server]\nallowed_hosts = [\"console.example\"]\n{ADMIN}{more}");
    let gateway = Gateway::start(&(toml + &upstream.table("up"))).await;
    gateway.summary().await;
    (upstream, gateway)
}

#[tokio::test]
async fn a_person_signs_in_with_the_token_and_out_again() {
    let log = Log::new();
    let (_upstream, gateway) = gateway(&log.table()).await;
    let mut browser = Browser::new(&gateway.admin());
    let sent = browser.get("/prompts/up__p?x=1&y=2").await;
    assert_eq!(sent.status, 303);
    assert_eq!(sent.header("location"), Some("/login?to=%2Fprompts%2Fup__p%3Fx%3D1%26y%3D2"));
    let page = browser.page("/login?to=%2Fprompts%2Fup__p%3Fx%3D1").await;
    assert_eq!(hidden(&page, "to"), "/prompts/up__p?x=1");
    assert!(!page.contains("href=\"/prompts\""), "nobody is told what there is");

    let wrong = browser.log_in("wrong").await;
    assert_eq!(wrong.status, 401);
    assert!(text(&wrong).contains("not the value of admin.token") && browser.cookies.is_empty());
    let right = browser.log_in(" t0ken\n").await;
    assert_eq!((right.status, right.header("location")), (303, Some("/prompts")));
    let cookies: Vec<_> = set_cookies(&right).collect();
    let [cookie] = cookies[..] else { panic!("{cookies:?}") };
    assert!(cookie.starts_with("promptgate_session="), "{cookie}");
    assert!(cookie.ends_with("; Max-Age=28800; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains("t0ken"));
    let page = browser.page("/prompts").await;
    assert!(page.contains("tester"), "without admin.write nobody decides");
    assert!(page.contains("up__p"));

    let csrf = browser.csrf("/").await;
    let stolen = browser.clone();
    let out = browser.submit("/logout", &[("csrf", &csrf)]).await;
    assert_eq!((out.status, out.header("location")), (303, Some("/login")));
    assert!(browser.cookies.is_empty());
    for mut browser in [browser, stolen] {
        let sent = browser.get("/").await;
        assert_eq!((sent.status, sent.header("location")), (303, Some("/login?to=%2F")));
    }
    log.wait_for("admin_logout").await;
    let of = |event| log.of(event).pop().unwrap();
    assert_eq!(of("admin_login")["role"], "tester");
    assert_eq!(
        (&of("admin_login")["by"], &of("admin_login")["via"]),
        (&"token".into(), &"token".into())
    );
    assert_eq!(of("admin_login_failed")["reason"], "wrong_token");
    assert!(!log.text().contains("t0ken") && !log.text().contains("wrong\""));
}

#[tokio::test]
async fn the_role_of_the_token_follows_the_configuration() {
    let (upstream, gateway) = gateway("write = true\n").await;
    let mut browser = Browser::new(&gateway.admin());
    browser.log_in("t0ken").await;
    assert!(browser.page("/").await.contains("approver"));
    let base = format!("[server]\nallowed_hosts = [\"console.example\"]\n{ADMIN}");
    gateway.reload(&(base.clone() + &upstream.table("up"))).await;
    assert!(browser.page("/").await.contains("tester"), "the session stays, its role is less");
    // Another token ends the session, and a token that returns brings it back only within its time.
    let changed = base.replace("t0ken", "0ther") + &upstream.table("up");
    gateway.reload(&changed).await;
    assert_eq!(browser.get("/").await.status, 303);
    assert_eq!(
        with_token(&gateway.admin()).send("GET", "/api/v1/status", &[], b"").await.status,
        401
    );
    let short = base + "session = \"1ms\"\n" + &upstream.table("up");
    gateway.reload(&short).await;
    assert_eq!(browser.get("/").await.status, 303, "sessions are as short as the file says");
}

#[tokio::test]
async fn forged_and_foreign_cookies_sign_nobody_in() {
    let (_upstream, one) = gateway("").await;
    let (_upstream, two) = gateway("").await;
    let mut browser = Browser::new(&one.admin());
    browser.log_in("t0ken").await;
    let name = "promptgate_session".to_owned();
    let good = browser.cookies[&name].clone();
    for forged in [
        String::new(),
        "x".to_owned(),
        good[1..].to_owned(),
        format!("{good}A"),
        good.replacen(&good[20..21], if &good[20..21] == "A" { "B" } else { "A" }, 1),
        "A".repeat(good.len()),
    ] {
        browser.cookies.insert(name.clone(), forged.clone());
        assert_eq!(browser.get("/").await.status, 303, "{forged}");
    }
    browser.cookies.insert(name.clone(), good.clone());
    assert_eq!(browser.get("/").await.status, 200);
    // Two gateways without a key of their own do not open each other's cookies.
    let mut other = Browser::new(&two.admin());
    other.cookies.insert(name, good);
    assert_eq!(other.get("/").await.status, 303);
    // A wrong token in the header is not made good by a cookie.
    let headers = [("Authorization", "Bearer wrong")];
    assert_eq!(browser.send("GET", "/api/v1/status", &headers, b"").await.status, 401);
}

#[tokio::test]
async fn guesses_are_slowed_down_and_sessions_are_not() {
    let log = Log::new();
    let (_upstream, gateway) = gateway(&log.table()).await;
    let mut known = Browser::new(&gateway.admin());
    known.log_in("t0ken").await;
    let mut browser = Browser::new(&gateway.admin());
    for guess in 0..5 {
        assert_eq!(browser.log_in(&guess.to_string()).await.status, 401);
    }
    for guess in ["6", "t0ken"] {
        let refused = browser.log_in(guess).await;
        assert_eq!(refused.status, 429, "the right one is not looked at, either");
        let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=30).contains(&seconds), "{seconds}");
        assert!(text(&refused).contains("too many failed attempts"));
        assert!(set_cookies(&refused).next().is_none());
    }
    assert_eq!(known.get("/").await.status, 200);
    assert_eq!(with_token(&gateway.admin()).send("GET", "/metrics", &[], b"").await.status, 200);
    let failed = async || log.of("admin_login_failed").len();
    eventually(failed, |count| *count == 5).await;
}

#[tokio::test]
async fn a_sign_in_leads_nowhere_but_to_this_site() {
    let (_upstream, gateway) = gateway("").await;
    for (to, expected) in [
        ("/usage?by=caller", "/usage?by=caller"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/%0d%0aSet-Cookie:x=y", "/"),
        ("/\r\nSet-Cookie: x=y", "/"),
        ("/%2fevil.example", "/"),
        ("", "/"),
    ] {
        let mut browser = Browser::new(&gateway.admin());
        let moved = browser.submit("/login", &[("token", "t0ken"), ("to", to)]).await;
        assert_eq!((moved.status, moved.header("location")), (303, Some(expected)), "{to:?}");
        assert_eq!(set_cookies(&moved).count(), 1, "{to:?}");
    }
}

type Headers<'a> = &'a [(&'a str, &'a str)];

#[tokio::test]
async fn the_api_takes_posts_with_a_cookie_from_the_console_itself_only() {
    let (_upstream, gateway) = gateway("").await;
    let mut own = Browser::new(&gateway.admin());
    own.log_in("t0ken").await;
    let origin = own.origin();
    let json = ("Content-Type", "application/json");
    let path = "/api/v1/prompts/up__p/try";
    let cases: [(Headers<'_>, u16); 7] = [
        (&[json, ("Origin", &origin)], 200),
        (&[json, ("Sec-Fetch-Site", "same-origin")], 200),
        (&[json], 403),
        // Browsers send cookies of loopback to each of its ports.
        (&[json, ("Origin", "http://localhost:3000")], 403),
        (&[json, ("Origin", "http://127.0.0.1")], 403),
        (&[json, ("Origin", "https://evil.example")], 403),
        (&[json, ("Origin", &origin), ("Sec-Fetch-Site", "same-site")], 403),
    ];
    for (headers, status) in cases {
        let reply = own.send("POST", path, headers, b"{}").await;
        assert_eq!(reply.status, status, "{headers:?}: {}", text(&reply));
    }
    // No page can send this header to another origin unasked.
    let program = gateway.admin().with("Authorization", "Bearer t0ken");
    assert_eq!(program.send("POST", path, &[json], b"{}").await.status, 200);
}

#[tokio::test]
async fn what_pages_of_other_sites_load_is_refused_and_links_work() {
    let (_upstream, gateway) = gateway("").await;
    let mut own = Browser::new(&gateway.admin());
    own.log_in("t0ken").await;
    for path in ["/", "/api/v1/catalog", "/metrics", "/console.css", "/login", "/livez"] {
        for site in ["cross-site", "same-site"] {
            let load = [("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "no-cors")];
            let reply = own.send("GET", path, &load, b"").await;
            assert_eq!(reply.status, 403, "{path} {site}");
            assert_eq!(reply.header("cross-origin-resource-policy"), Some("same-origin"));
        }
    }
    for dest in ["document", "iframe"] {
        let link = [
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "navigate"),
            ("Sec-Fetch-Dest", dest),
        ];
        let reply = own.send("GET", "/", &link, b"").await;
        assert_eq!(reply.status, if dest == "document" { 200 } else { 403 });
        assert_eq!(reply.header("cross-origin-resource-policy"), Some("same-origin"));
    }
}

#[tokio::test]
async fn forms_of_other_sites_and_sessions_are_refused() {
    let (_upstream, gateway) = gateway("").await;
    let (mut own, mut other) = (Browser::new(&gateway.admin()), Browser::new(&gateway.admin()));
    own.log_in("t0ken").await;
    other.log_in("t0ken").await;
    let (csrf, foreign) = (own.csrf("/access").await, other.csrf("/access").await);
    assert_ne!(csrf, foreign);
    let origin = own.origin();
    let here = ("Origin", origin.as_str());
    let cases: [(&str, Headers<'_>, u16); 9] = [
        (&csrf, &[here], 200),
        (&csrf, &[("Sec-Fetch-Site", "same-origin")], 200),
        (&foreign, &[here], 403),
        ("", &[here], 403),
        (&csrf, &[], 403),
        (&csrf, &[("Origin", "https://evil.example")], 403),
        (&csrf, &[("Origin", "null")], 403),
        (&csrf, &[here, ("Sec-Fetch-Site", "cross-site")], 403),
        (&csrf, &[here, ("Sec-Fetch-Site", "same-site")], 403),
    ];
    for (csrf, headers, status) in cases {
        let fields = [("csrf", csrf), ("rules", "x")];
        let reply = own.submit_from("/access", &fields, headers).await;
        assert_eq!(reply.status, status, "{csrf} {headers:?}: {}", text(&reply));
    }
    // Nobody can be signed in or out by another site.
    for headers in
        [&[("Origin", "https://evil.example")][..], &[("Sec-Fetch-Site", "cross-site")], &[]]
    {
        let mut browser = Browser::new(&gateway.admin());
        let refused = browser.submit_from("/login", &[("token", "t0ken")], headers).await;
        assert_eq!(refused.status, 403, "{headers:?}");
        assert!(browser.cookies.is_empty());
        assert_eq!(own.submit_from("/logout", &[("csrf", &csrf)], headers).await.status, 403);
    }
    assert_eq!(own.get("/").await.status, 200, "still signed in");
    let json = [("Content-Type", "application/json"), here];
    let refused = own.send("POST", "/access", &json, b"{}").await;
    assert_eq!(refused.status, 415);
}

#[tokio::test]
async fn behind_a_proxy_its_own_host_is_the_site() {
    let (_upstream, gateway) = gateway("").await;
    let mut browser = Browser::new(&gateway.admin()).at("console.example");
    let entered = browser.log_in("t0ken").await;
    assert_eq!(entered.status, 303, "{}", text(&entered));
    let cookie = set_cookies(&entered).next().unwrap().to_owned();
    assert!(
        cookie.starts_with("__Host-promptgate_session=") && cookie.ends_with("; Secure"),
        "{cookie}"
    );
    let csrf = browser.csrf("/access").await;
    let fields = [("csrf", csrf.as_str()), ("rules", "x")];
    assert_eq!(browser.submit("/access", &fields).await.status, 200);
    let refused =
        browser.submit_from("/access", &fields, &[("Origin", "https://evil.example")]).await;
    assert_eq!(refused.status, 403);
    for host in ["evil.example", "console.example.evil.example", "console.example@evil.example"] {
        let mut elsewhere = browser.clone().at(host);
        let refused = elsewhere.get("/").await;
        assert!([400, 403].contains(&refused.status), "{host}: {}", refused.status);
        assert!(!text(&refused).contains("up__p"));
    }
}
