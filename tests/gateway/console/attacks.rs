//! Attacks on who reads the console, and through its addresses.

use std::fs;

use serde_json::{Value, json};

use super::{ADMIN, Browser, OPEN_ADMIN, form, post, rows, text, with_token};
use crate::audit::Log;
use crate::skills::{file, skill, upstream};
use crate::support::gateway::api_key;
use crate::support::{Gateway, Upstream, eventually};

/// Texts that would run, break out of an attribute or a comment, or end an element.
const PAYLOADS: [&str; 34] = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "\"><script>alert(1)</script>",
    "'><script>alert(1)</script>",
    "\" autofocus onfocus=alert(1) x=\"",
    "' autofocus onfocus=alert(1) x='",
    "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</option></select><img src=x onerror=alert(1)>",
    "</pre><iframe src=javascript:alert(1)>",
    "<iframe srcdoc=\"<script>alert(1)</script>\">",
    "<a href=\"javascript:alert(1)\">x</a>",
    "<a href='data:text/html,<script>alert(1)</script>'>x</a>",
    "<body onload=alert(1)>",
    "<input onfocus=alert(1) autofocus>",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)>",
    "<math><mtext></mtext><script>alert(1)</script></math>",
    "<!--<img src=\"--><img src=x onerror=alert(1)//\">",
    "--><script>alert(1)</script>",
    "]]><script>alert(1)</script>",
    "<base href=\"https://evil.example/\">",
    "<meta http-equiv=refresh content=\"0;url=https://evil.example\">",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<form action=https://evil.example><button>x</button>",
    "<style>*{background:url(https://evil.example)}</style>",
    "&lt;i onclick=alert(1)&gt;",
    "&#60;u onclick=alert(1)&#62;",
    "{{ 7*7 }}<b>{% raw %}</b>",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
];

/// The two ways in which pages write a text: as content, and by the template engine.
fn escaped(text: &str) -> [String; 2] {
    let write = |quote: &str, apostrophe: &str, names: [&str; 3]| {
        let [and, less, more] = names;
        text.replace('&', and)
            .replace('<', less)
            .replace('>', more)
            .replace('"', quote)
            .replace('\'', apostrophe)
    };
    [
        write("&quot;", "&#39;", ["&amp;", "&lt;", "&gt;"]),
        write("&#34;", "&#39;", ["&#38;", "&#60;", "&#62;"]),
    ]
}

/// The page shows the text, and never as it is.
#[track_caller]
fn assert_harmless(page: &str, payload: &str, at: &str) {
    assert!(!page.contains(payload), "{at} has {payload}");
    assert!(
        escaped(payload).iter().any(|text| page.contains(text)),
        "{at} hides {payload}: {page}"
    );
}

/// An upstream with one prompt for each payload, which is in all its parts.
async fn hostile() -> Upstream {
    let prompts: Vec<Value> = PAYLOADS
        .iter()
        .enumerate()
        .map(|(number, payload)| {
            json!({"name": format!("p{number}"), "title": format!("T {payload}"), "description": format!("D {payload}"),
                "arguments": [{"name": format!("a {payload}"), "description": format!("A {payload}")}]})
        })
        .collect();
    Upstream::modern(move |asked| match asked.method() {
        "prompts/list" => Some(asked.list(&json!(prompts))),
        "prompts/get" => {
            let number = asked.message["params"]["name"].as_str()?.strip_prefix('p')?.parse::<usize>().ok()?;
            let payload = PAYLOADS[number];
            let kinds = [
                json!({"type": "text", "text": payload}),
                json!({"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/html", "text": payload}}),
                json!({"type": "resource_link", "uri": "https://a.example/x", "name": payload, "description": payload}),
            ];
            let messages: Vec<_> =
                kinds.into_iter().map(|content| json!({"role": "user", "content": content})).collect();
            Some(asked.result(json!({"resultType": "complete", "description": payload, "messages": messages})))
        }
        _ => None,
    })
    .await
}

#[tokio::test]
async fn texts_of_upstreams_are_never_markup() {
    let upstream = hostile().await;
    let gateway = Gateway::start(&(ADMIN.to_owned() + &upstream.table("up"))).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    browser.log_in("t0ken").await;
    let csrf = browser.csrf("/access").await;
    let list = browser.page("/prompts").await;
    for (number, payload) in PAYLOADS.into_iter().enumerate() {
        assert_harmless(&list, payload, "/prompts");
        let path = format!("/prompts/up__p{number}");
        let page = browser.page(&path).await;
        for part in ["T", "D", "a", "A"] {
            assert_harmless(&page, &format!("{part} {payload}"), &path);
        }
        assert!(!page.contains(payload));
        let field = format!("arg.a {payload}");
        let fields = [("csrf", csrf.as_str()), (field.as_str(), payload), ("as", "")];
        let tried = browser.submit(&format!("{path}/try"), &fields).await;
        assert_eq!(tried.status, 200, "{}", text(&tried));
        assert_harmless(&text(&tried), payload, "a result");
    }
}

#[tokio::test]
async fn texts_of_skills_are_never_markup() {
    let texts = |number: usize| {
        let own = format!("---\nname: s{number}\n---\n{}", PAYLOADS[number]);
        [("SKILL.md", own), ("x%3Cb%3E.txt", format!("a\u{202e}{}", PAYLOADS[number]))]
    };
    let skills: Vec<Value> = (0..PAYLOADS.len())
        .map(|number| {
            let texts = texts(number);
            let files = texts.each_ref().map(|(path, text)| (*path, text.as_str()));
            let mut entry = skill(&format!("skill://s{number}"), &files);
            entry["frontmatter"]["description"] = format!("D {}", PAYLOADS[number]).into();
            entry
        })
        .collect();
    let hostile = upstream(json!(skills), move |asked| {
        let uri = asked.message["params"]["uri"].as_str().unwrap();
        let number = uri["skill://s".len()..].split('/').next().unwrap().parse().unwrap();
        let [own, other] = texts(number);
        file(asked, if uri.ends_with("SKILL.md") { &own.1 } else { &other.1 })
    })
    .await;
    let gateway = Gateway::start(&(OPEN_ADMIN.to_owned() + &hostile.table("up"))).await;
    gateway.summary().await;
    let mut browser = Browser::new(&gateway.admin());
    let list = browser.page("/prompts").await;
    for (number, payload) in PAYLOADS.into_iter().enumerate() {
        assert_harmless(&list, &format!("D {payload}"), "/prompts");
        let path = format!("/skills/skill%3A%2F%2Fup%2Fs{number}%2FSKILL.md");
        let page = browser.page(&path).await;
        assert_harmless(&page, &format!("D {payload}"), &path);
        assert_harmless(&page, payload, &path);
        let other = browser.page(&format!("{path}?file=x%253Cb%253E.txt")).await;
        assert_harmless(&other, payload, "another file");
        assert!(other.contains("<mark class=\"hidden\">U+202E</mark>"), "{other}");
        let refused = browser.get(&format!("{path}?{}", form(&[("file", payload)]))).await;
        assert!(refused.status == 404 && !text(&refused).contains(payload), "{payload}");
    }
}

#[tokio::test]
async fn what_visitors_callers_and_children_write_is_never_markup() {
    let log = Log::new();
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines");
    fs::write(&lines, PAYLOADS.join("\n") + "\n").unwrap();
    let ids: Vec<_> = PAYLOADS.into_iter().filter(|payload| !payload.contains(' ')).collect();
    assert!(ids.len() > 10);
    let mut keys = String::new();
    for (number, id) in ids.iter().enumerate() {
        let id = id.replace('"', "\\\"");
        keys += &api_key(&id, &format!("pg_{number}"));
    }
    let upstream = Upstream::with_prompts(&["p"]).await;
    let child = format!(
        "[upstreams.child]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", 'cat \"$LINES\" >&2; exit 1']\nenv = {{ LINES = {lines:?} }}\n"
    );
    let toml = ADMIN.to_owned() + &log.table() + &keys + &child + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    for (number, _) in ids.iter().enumerate() {
        let client = gateway.client().with("X-API-Key", &format!("pg_{number}"));
        client.modern("prompts/get", json!({"name": "up__p"})).await;
        client.modern("prompts/get", json!({"name": ids[number]})).await;
    }
    let mut browser = Browser::new(&gateway.admin());
    browser.log_in("t0ken").await;
    let mut reader = browser.clone();
    let used = async || rows(&reader.page("/usage?by=caller").await, "Usage").len();
    eventually(used, |rows| *rows == ids.len()).await;
    let csrf = browser.csrf("/access").await;
    let stderr = browser.page("/upstreams/child").await;
    let usage = browser.page("/usage?by=caller").await;
    let uses = browser.page("/prompts/up__p/uses").await;
    for payload in PAYLOADS {
        assert_harmless(&stderr, payload, "/upstreams/child");
        let query = form(&[
            ("q", payload),
            ("who", payload),
            ("caller", payload),
            ("prompt", payload),
            ("upstream", payload),
            ("text", payload),
            ("tag", payload),
        ]);
        for path in
            ["/prompts", "/search", "/access", "/approvals", "/usage", "/audit", "/configuration"]
        {
            let odd = "state=%22%3E%3Cb%3E&view=%22%3E%3Cb%3E";
            let choices = "&sort=%22%3E%3Cb%3E&by=%22%3E%3Cb%3E&span=%22%3E%3Cb%3E";
            // The page of uses refuses values of these that it does not know.
            let choices = if path == "/usage" { "" } else { choices };
            let page = browser.page(&format!("{path}?{query}&{odd}{choices}")).await;
            assert_harmless(&page, payload, path);
            assert!(!page.contains("\"><b>"), "{path}");
        }
        let refused = browser.get(&format!("/usage?{}", form(&[("by", payload)]))).await;
        assert_eq!(refused.status, 400);
        assert!(!text(&refused).contains(payload), "{payload}");
        let fields =
            [("csrf", csrf.as_str()), ("rules", payload), ("q", payload), ("who", payload)];
        let page = browser.submit("/access", &fields).await;
        assert_harmless(&text(&page), payload, "pasted rules");
        let mut stranger = Browser::new(&gateway.admin());
        let login = stranger.page(&format!("/login?{}", form(&[("to", payload)]))).await;
        assert!(!login.contains(payload) && login.contains("name=\"to\" value=\"/\""), "{login}");
        let segment: String = payload.bytes().map(|byte| format!("%{byte:02X}")).collect();
        for path in ["prompts", "skills", "upstreams", "approvals", "audit", "x"] {
            let page = browser.get(&format!("/{path}/{segment}")).await;
            assert_eq!(page.status, 404, "{path}/{payload}");
            assert!(!text(&page).contains(payload), "{path}/{payload}");
        }
        let moved = browser.get(&format!("/prompts/{segment}/complete")).await;
        assert_eq!(moved.status, 303);
        let to = moved.header("location").unwrap();
        assert!(to.starts_with("/prompts/") && !to.contains(['<', '>', '"', '\'', ' ']), "{to}");
    }
    for id in &ids {
        assert_harmless(&usage, id, "/usage");
        let audit = browser.page(&format!("/audit?{}", form(&[("caller", id)]))).await;
        assert_harmless(&audit, id, "/audit");
    }
    let found = browser.page(&format!("/audit?{}", form(&[("caller", ids[0])]))).await;
    let (_, first) = found.split_once("href=\"/audit/").expect("a link to a record");
    let record = browser.page(&format!("/audit/{}", first.split_once('"').unwrap().0)).await;
    assert_harmless(&record, ids[0], "a record");
    assert!(!uses.contains("<script>alert") && !usage.contains("<script>alert"));
    // A name that a spreadsheet would take for a formula, or a field that ends early, is neither.
    let table = text(&browser.get("/usage?by=caller&format=csv").await);
    assert_eq!(table.lines().count(), ids.len() + 1, "{table}");
}

#[tokio::test]
async fn addresses_lead_to_pages_and_nothing_else() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&(OPEN_ADMIN.to_owned() + &upstream.table("up"))).await;
    gateway.summary().await;
    let admin = gateway.admin();
    for path in [
        "/../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/assets/../../Cargo.toml",
        "/assets/%2e%2e/style.css",
        "/assets/",
        "/assets/style.css",
        "/prompts/../../etc/passwd",
        "/prompts/%00",
        "/prompts/%ff",
        "/prompts/%",
        "/prompts/up__p/../try",
        "/prompts/up__p/x",
        "/audit/-1",
        "/audit/18446744073709551616",
        "/audit/1/2",
        "/upstreams/..",
        "/usage/usage",
        "/.git/config",
        "/console.html",
        "//evil.example/%2e%2e",
        "/api",
        "/api/v1/../../livez",
        "/api/v1/prompts/%2e%2e",
        "/api/v1/audit/%2e%2e%2f1",
        "/%61pi/v1/status",
    ] {
        let reply = admin.send("GET", path, &[], b"").await;
        assert_eq!(reply.status, 404, "{path}: {}", text(&reply));
        assert!(!text(&reply).contains("root:"), "{path}");
    }
    for (host, origin) in [
        ("evil.example", None),
        ("127.0.0.1.evil.example", None),
        ("localhost.evil.example:80", None),
        ("localhost", Some("https://evil.example")),
        ("localhost", Some("null")),
        ("localhost", Some("http://localhost.evil.example")),
    ] {
        let mut headers = vec![("Host", host)];
        headers.extend(origin.map(|origin| ("Origin", origin)));
        for path in ["/", "/login", "/prompts", "/api/v1/status", "/livez", "/metrics"] {
            let reply = admin.send("GET", path, &headers, b"").await;
            assert_eq!(reply.status, 403, "{path} {headers:?}");
        }
    }
}

#[tokio::test]
async fn long_and_many_parameters_are_read_within_bounds() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&(ADMIN.to_owned() + &upstream.table("up"))).await;
    gateway.summary().await;
    let admin = with_token(&gateway.admin());
    let mut browser = Browser::new(&gateway.admin());
    browser.log_in("t0ken").await;
    let long = "x".repeat(7_000);
    for path in ["/prompts", "/access", "/usage", "/audit", "/configuration", "/approvals"] {
        let page = browser.get(&format!("{path}?q={long}")).await;
        assert_eq!(page.status, 200, "{path}");
    }
    for size in [20_000, 200_000] {
        let path = format!("/prompts?q={}", "x".repeat(size));
        if let Some(reply) = admin.try_send("GET", &path, &[], b"").await {
            assert!([200, 414, 431].contains(&reply.status), "{size}: {}", reply.status);
        }
    }
    let many: String = (0..700).map(|n| format!("a{n}=1&")).collect();
    let found = browser.page(&format!("/prompts?q=nothing&{many}")).await;
    assert_eq!(rows(&found, "Prompts").len(), 0);
    let ignored = browser.page(&format!("/prompts?{many}q=nothing")).await;
    assert_eq!(rows(&ignored, "Prompts").len(), 1, "parameters beyond 600 are ignored");

    let csrf = browser.csrf("/access").await;
    let names: Vec<_> = (0..2_000).map(|n| format!("arg.a{n}")).collect();
    let mut fields = vec![("csrf", csrf.as_str())];
    fields.extend(names.iter().map(|name| (name.as_str(), "1")));
    assert_eq!(browser.submit("/prompts/up__p/try", &fields).await.status, 200);
    let gets = upstream.gets();
    let given = gets[0].message["params"]["arguments"].as_object().unwrap().len();
    assert!(given < 600, "{given}");

    let large = "x".repeat(5 << 20);
    let kind =
        [("Content-Type", "application/x-www-form-urlencoded"), ("Sec-Fetch-Site", "same-origin")];
    for path in ["/login", "/access", "/prompts/up__p/try"] {
        if let Some(reply) = admin.try_send("POST", path, &kind, large.as_bytes()).await {
            assert_eq!(reply.status, 413, "{path}");
        }
    }
    for body in [&b"\xff\xfe"[..], b"%", b"&&&=", b"csrf=%ff&csrf=x", b""] {
        let reply = admin.send("POST", "/access", &kind, body).await;
        assert!([200, 403].contains(&reply.status), "{body:?}: {}", reply.status);
    }
    for method in ["FOO", "TRACE", "CONNECT", "OPTIONS", "PROPFIND"] {
        if let Some(reply) = admin.try_send(method, "/prompts", &[], b"").await {
            assert!(
                [400, 403, 404, 405, 501].contains(&reply.status),
                "{method}: {}",
                reply.status
            );
        }
    }
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let reply = post(&admin, "/prompts/up__p/try", &json!({"arguments": {"a": deep}})).await;
    assert_eq!(reply.status, 200);
    let headers = [("Content-Type", "application/json")];
    let reply = admin.send("POST", "/api/v1/prompts/up__p/try", &headers, deep.as_bytes()).await;
    assert_eq!(reply.status, 400);
}
