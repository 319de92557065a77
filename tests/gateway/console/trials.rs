//! Trying prompts: as whom, what is recorded and counted, and what is not told.

use serde_json::{Value, json};

use super::{ADMIN, Browser, post, rows, text, with_token};
use crate::audit::Log;
use crate::support::gateway::api_key;
use crate::support::{Client, Gateway, Upstream, eventually};

const RULES: &str = "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ncallers = [\"console\", \"ci\"]\n\
    [[access.rules]]\nallow = [\"get\"]\ngroups = [\"staff\"]\nprompts = [\"q\"]\n\
    [[access.rules]]\ndeny = [\"get\", \"complete\"]\ncallers = [\"console\"]\nprompts = [\"secret\"]\n";

/// Prompts of which one lacks what it needs, and completions of one value.
async fn upstream() -> Upstream {
    let prompts = json!([
        {"name": "p", "arguments": [{"name": "who", "required": true}, {"name": "tenant"}]},
        {"name": "q"},
        {"name": "secret"},
        {"name": "broken"},
    ]);
    Upstream::modern(move |asked| {
        match (asked.method(), asked.message["params"]["name"].as_str()) {
            ("prompts/list", _) => Some(asked.list(&prompts)),
            ("prompts/get", Some("broken")) => Some(asked.error(-32000, "it <b>fails</b>")),
            ("prompts/get", _) => {
                let who = asked.message["params"]["arguments"]["who"].as_str().unwrap_or("nobody");
                Some(asked.content(json!({"type": "text", "text": format!("Hello {who}")})))
            }
            ("completion/complete", _) => {
                let value =
                    asked.message["params"]["argument"]["value"].as_str().unwrap_or_default();
                let values = json!({"values": [format!("{value}da")]});
                Some(asked.result(json!({"resultType": "complete", "completion": values})))
            }
            _ => None,
        }
    })
    .await
}

struct Tried {
    _upstream: Upstream,
    gateway: Gateway,
    admin: Client,
    log: Log,
}

impl Tried {
    async fn start(more: &str) -> Self {
        let (upstream, log) = (upstream().await, Log::new());
        let toml = ADMIN.to_owned()
            + more
            + &log.table()
            + &api_key("ci", "pg_ci")
            + "groups = [\"staff\"]\n"
            + RULES
            + "[[overlays]]\nupstream = \"up\"\nprompt = \"p\"\narguments.tenant = { preset = \"s3cret\" }\n"
            + "[[limits]]\nname = \"slow\"\nper = [\"caller\"]\nrate = \"1/h\"\nburst = 7\ncallers = [\"console\"]\n"
            + &upstream.table("up");
        let gateway = Gateway::start(&toml).await;
        gateway.summary().await;
        let admin = with_token(&gateway.admin());
        Self { _upstream: upstream, gateway, admin, log }
    }

    async fn attempt(&self, name: &str, body: Value) -> Value {
        let reply = post(&self.admin, &format!("/prompts/{name}/try"), &body).await;
        assert_eq!(reply.status, 200, "{}", text(&reply));
        let mut trial = reply.json();
        assert!(trial["durationMs"].take().is_u64());
        trial
    }
}

#[tokio::test]
async fn a_person_tries_a_prompt_as_any_caller_would() {
    let tried = Tried::start("").await;
    let trial = tried.attempt("up__p", json!({"arguments": {"who": "Ada"}})).await;
    let message = json!({"role": "user", "type": "text", "text": "Hello Ada", "hidden": 0});
    let expected = json!({"caller": "console", "outcome": "ok", "error": null, "durationMs": null,
        "description": "", "messages": [message]});
    assert_eq!(trial, expected);
    // A denied prompt looks like one that does not exist; both count as calls.
    let denied = tried.attempt("up__secret", json!({})).await;
    let unknown = tried.attempt("up__s3cret", json!({})).await;
    assert_eq!(denied, unknown);
    assert_eq!(denied["outcome"], "unknown_prompt");
    let lacking = tried.attempt("up__p", json!({"arguments": {"who": ""}})).await;
    assert_eq!(lacking["outcome"], "missing_argument", "fields that are left empty are not given");

    let failed = tried.attempt("up__broken", json!({})).await;
    assert_eq!(failed["outcome"], "upstream_error", "{failed}");
    tried.attempt("up__q", json!({})).await;
    let limited = eventually(
        async || tried.attempt("up__q", json!({})).await,
        |trial| trial["outcome"] != "ok",
    )
    .await;
    assert_eq!(limited["outcome"], "rate_limited", "{limited}");

    let received = tried.log.of("received");
    let first = &received[0];
    assert_eq!((&first["caller"], &first["tried_by"]), (&json!("console"), &json!("token")));
    assert_eq!((&first["endpoint"], &first["name"]), (&json!("/mcp"), &json!("up__p")));
    assert!(!tried.log.text().contains("Ada"), "values of arguments are not recorded");
    let mut browser = Browser::new(&tried.admin);
    let usage = async || rows(&browser.page("/usage?by=caller").await, "Usage");
    let is_counted = |rows: &Vec<Vec<String>>| {
        rows.first().is_some_and(|row| row[0] == "console" && row[1].parse::<u64>().unwrap() >= 3)
    };
    eventually(usage, is_counted).await;
}

#[tokio::test]
async fn the_rights_of_others_are_used_only_where_that_is_configured() {
    let without = Tried::start("").await;
    let refused = post(&without.admin, "/prompts/up__q/try", &json!({"as": "ci"})).await;
    assert_eq!(refused.status, 403);
    assert!(refused.json()["error"].as_str().unwrap().contains("admin.try_as"));
    let mut browser = Browser::new(&without.admin);
    assert!(!browser.page("/prompts/up__q/try").await.contains("name=\"as\""));

    let with = Tried::start("try_as = true\n").await;
    let trial = with.attempt("up__secret", json!({"as": "ci"})).await;
    assert_eq!((&trial["caller"], &trial["outcome"]), (&json!("ci"), &json!("ok")), "{trial}");
    let trial = with.attempt("up__q", json!({"as": "group staff"})).await;
    assert_eq!((&trial["caller"], &trial["outcome"]), (&json!("console"), &json!("ok")));
    // The person may see the rules; the caller learns nothing.
    let trial = with.attempt("up__secret", json!({"as": "group staff"})).await;
    let why = "group staff may not get it: by access.rules.3. To group staff it does not exist.";
    assert_eq!((&trial["outcome"], &trial["error"]), (&json!("unknown_prompt"), &json!(why)));
    for (nobody, status) in [("root", 404), ("group root", 404), ("console", 200)] {
        let reply = post(&with.admin, "/prompts/up__q/try", &json!({"as": nobody})).await;
        assert_eq!(reply.status, status, "{nobody}: {}", text(&reply));
    }
    let received = with.log.of("received");
    let as_ci = received.iter().find(|record| record["caller"] == "ci").unwrap();
    assert_eq!(as_ci["tried_by"], "token", "who it was is on record");
    let mut browser = Browser::new(&with.admin);
    assert!(browser.page("/prompts/up__q/try").await.contains("<option value=\"ci\">ci</option>"));
}

#[tokio::test]
async fn a_form_tries_completes_and_keeps_what_was_typed() {
    let tried = Tried::start("").await;
    let mut browser = Browser::new(&tried.gateway.admin());
    browser.log_in("t0ken").await;
    let page = browser.page("/prompts/up__p/try").await;
    assert!(
        page.contains("name=\"arg.who\"") && !page.contains("tenant\""),
        "presets are not asked for"
    );
    assert!(!page.contains("s3cret"));
    let csrf = super::hidden(&page, "csrf");
    let fields = [("csrf", csrf.as_str()), ("arg.who", "Ada & \"Bob\"")];
    let result = browser.submit("/prompts/up__p/try", &fields).await;
    assert_eq!(result.status, 200);
    let result = text(&result);
    assert!(result.contains("Hello Ada &amp; &quot;Bob&quot;"), "{result}");
    assert!(result.contains("\nAda &#38; &#34;Bob&#34;</textarea>"), "{result}");
    let failed = browser.submit("/prompts/up__broken/try", &fields[..1]).await;
    assert!(text(&failed).contains("it &lt;b&gt;fails&lt;/b&gt;"), "{}", text(&failed));
    let fields = [("csrf", csrf.as_str()), ("argument", "who"), ("arg.who", "a"), ("arg.x", "y")];
    let completed = browser.submit("/prompts/up__p/complete", &fields).await;
    assert_eq!(completed.json(), json!({"values": ["ada"]}));
    let unknown = browser.submit("/prompts/up__secret/complete", &fields).await;
    assert_eq!(
        unknown.json(),
        json!({"values": []}),
        "denied and unknown prompts complete nothing"
    );
    for path in
        ["/prompts/up__p", "/prompts/up__p/try", "/configuration", "/configuration?q=tenant"]
    {
        assert!(!browser.page(path).await.contains("s3cret"), "{path}");
    }
    let page = browser.page("/prompts/up__p").await;
    assert_eq!(page.matches("<dt><var class=\"place\">").count(), 1, "{page}");
}
