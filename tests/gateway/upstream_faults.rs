//! Upstreams that break the rules (fault matrix, U): the fault has a name, nothing hangs, nothing
//! grows, and none of their words are repeated.

use std::path::Path;
use std::sync::{Arc, Mutex};

use config::Config;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::support::upstream::{HANG, good_legacy, good_modern};
use crate::support::{Gateway, Received, Scripted, Upstream, eventually};

/// The error of a get whose upstream responds like this.
async fn error_of(scripted: impl Fn(&Received) -> Scripted + Send + Sync + 'static) -> Value {
    let upstream =
        Upstream::modern(move |asked| (asked.method() == "prompts/get").then(|| scripted(asked)))
            .await;
    let table = upstream.table("up") + "max_message = \"64KiB\"\n";
    let gateway = Gateway::start(&table).await;
    let error = gateway.client().ask_error("prompts/get", json!({"name": "up__p"})).await;
    assert_eq!(error["code"], -32603, "{error}");
    assert_eq!(error["data"]["upstream"], "up");
    error
}

async fn reason_of(scripted: impl Fn(&Received) -> Scripted + Send + Sync + 'static) -> String {
    error_of(scripted).await["data"]["reason"].as_str().unwrap().to_owned()
}

fn json_bytes(body: &str) -> Scripted {
    let headers = vec![("Content-Type", "application/json".to_owned())];
    Scripted::Http(200, headers, body.as_bytes().to_vec())
}

#[tokio::test]
async fn u6_answers_that_are_no_answers_are_protocol_errors() {
    for body in [
        "SECRET not json",
        "7",
        "{\"jsonrpc\":\"1.0\",\"id\":2,\"result\":{}}",
        "{\"jsonrpc\":\"2.0\",\"id\":2,\"id\":2,\"result\":{}}",
        "",
    ] {
        let error = error_of(move |_| json_bytes(body)).await;
        assert_eq!(error["data"]["reason"], "upstream_protocol_error", "{body}");
        assert!(!error.to_string().contains("SECRET"), "{error}");
    }
    for result in [
        json!([]),
        json!({}),
        json!({"messages": {"a": 1}}),
        json!({"resultType": "partial", "messages": []}),
        json!({"messages": [], "description": 7}),
    ] {
        let reason = reason_of(move |asked| asked.result(result.clone())).await;
        assert_eq!(reason, "upstream_protocol_error");
    }
    let both = |asked: &Received| {
        let Scripted::Json(mut answer) = asked.result(json!({"messages": []})) else {
            unreachable!()
        };
        answer["error"] = json!({"code": 1, "message": ""});
        Scripted::Json(answer)
    };
    assert_eq!(reason_of(both).await, "upstream_protocol_error");
}

#[tokio::test]
async fn u5_statuses_have_names_and_redirects_lead_nowhere_else() {
    for (status, reason) in [
        (202, "upstream_protocol_error"),
        (204, "upstream_protocol_error"),
        (302, "upstream_http_error"),
        (401, "upstream_auth_failed"),
        (403, "upstream_auth_failed"),
        (404, "upstream_http_error"),
        (429, "upstream_rate_limited"),
        (500, "upstream_http_error"),
        (502, "upstream_http_error"),
    ] {
        let scripted =
            move |_: &Received| Scripted::Http(status, vec![("Retry-After", "1".into())], vec![]);
        assert_eq!(reason_of(scripted).await, reason, "{status}");
    }
    let html = vec![("Content-Type", "text/html".to_owned())];
    let page = move |_: &Received| Scripted::Http(200, html.clone(), b"<h1>hi".to_vec());
    assert_eq!(reason_of(page).await, "upstream_protocol_error");
    let target = Upstream::start(|asked| asked.content(json!({"type": "text", "text": "x"}))).await;
    let away = format!("http://{}/mcp", target.addr);
    let redirect =
        move |_: &Received| Scripted::Http(307, vec![("Location", away.clone())], vec![]);
    assert_eq!(reason_of(redirect).await, "upstream_http_error");
    assert!(target.received().is_empty(), "another origin gets neither call nor credential");
}

#[tokio::test]
async fn u3_a_connection_that_breaks_is_told_at_once() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    for bytes in ["", "HTTP/1.1 200", head] {
        let reason = reason_of(move |_| Scripted::Break(bytes.as_bytes().to_vec())).await;
        assert_eq!(reason, "upstream_reset", "{bytes:?}");
    }
    for bytes in ["", head] {
        let error = error_of(move |_| Scripted::Break(bytes.as_bytes().to_vec())).await;
        let expected = "upstream `up`: the connection broke before the response was complete";
        assert_eq!(error["message"], expected);
    }
    let ended = |_: &Received| Scripted::Stream(b": nothing\n\n".to_vec());
    let error = error_of(ended).await;
    assert_eq!(error["data"]["reason"], "upstream_reset");
    let seen = Upstream::modern(|asked| {
        let Scripted::Json(answer) = asked.content(json!({"type": "text", "text": "x"})) else {
            unreachable!()
        };
        let stream = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n\
             id: 1\ndata:\n\ndata: {answer}\n\n"
        );
        (asked.method() == "prompts/get").then(|| Scripted::Break(stream.into_bytes()))
    })
    .await;
    let gateway = Gateway::before(&[("up", &seen)]).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
}

#[tokio::test]
async fn u4_silence_and_heartbeats_end_at_the_deadline() {
    assert_eq!(reason_of(|_| HANG).await, "upstream_timeout");
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n";
    let beat = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: alive\n\n";
    for start in [head, beat] {
        let upstream = Upstream::modern(move |asked| {
            let stall = Scripted::Stall(start.as_bytes().to_vec());
            (asked.method() == "prompts/get").then_some(stall)
        })
        .await;
        let gateway = Gateway::before(&[("up", &upstream)]).await;
        let error = gateway.client().ask_error("prompts/get", json!({"name": "up__p"})).await;
        assert_eq!(error["data"]["reason"], "upstream_timeout");
    }
}

#[tokio::test]
async fn u4_a_call_that_is_given_up_is_cancelled_upstream() {
    let upstream = Upstream::start(|asked| match asked.method() {
        "prompts/get" => HANG,
        "notifications/cancelled" => Scripted::Http(202, vec![], vec![]),
        _ => good_legacy(asked, "2025-06-18"),
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let error = gateway.client().ask_error("prompts/get", json!({"name": "up__p"})).await;
    assert_eq!(error["data"]["reason"], "upstream_timeout");
    upstream.received_method("notifications/cancelled").await;
    let asked = upstream.received();
    let of = |method: &str| asked.iter().find(|a| a.method() == method).unwrap().clone();
    let (get, cancelled) = (of("prompts/get"), of("notifications/cancelled"));
    assert_eq!(cancelled.message["params"]["requestId"], get.message["id"]);
    assert_eq!(cancelled.header("mcp-session-id"), Some("legacy-session"));
}

#[tokio::test]
async fn u7_messages_for_nobody_pass_by_and_the_answer_still_comes() {
    let upstream = Upstream::modern(|asked| {
        let id = &asked.message["id"];
        let stranger = json!({"jsonrpc": "2.0", "id": format!("other {id}"), "result": {}});
        let request =
            json!({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}});
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}});
        let Scripted::Json(answer) = asked.content(json!({"type": "text", "text": "mine"})) else {
            unreachable!()
        };
        let stream = format!(
            "event: message\ndata: {stranger}\n\ndata: {request}\n\ndata: {notice}\n\n\
             event: other\ndata: {answer}\n\ndata: {answer}\n\ndata: {answer}\n\n"
        );
        (asked.method() == "prompts/get").then(|| Scripted::Stream(stream.into_bytes()))
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let result = gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    assert_eq!(result["messages"][0]["content"]["text"], "mine");
    let wrong = |_: &Received| json_bytes(r#"{"jsonrpc":"2.0","id":"x","result":{"messages":[]}}"#);
    assert_eq!(reason_of(wrong).await, "upstream_protocol_error");
}

#[tokio::test]
async fn a_legacy_batch_in_a_stream_is_read_item_by_item() {
    let upstream = Upstream::modern(|asked| {
        let Scripted::Json(answer) = asked.content(json!({"type": "text", "text": "mine"})) else {
            unreachable!()
        };
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}});
        let stream = format!("data: {}\n\n", json!([notice, answer]));
        (asked.method() == "prompts/get").then(|| Scripted::Stream(stream.into_bytes()))
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
}

#[tokio::test]
async fn u8_what_is_too_large_is_cut_off_at_the_limit() {
    let big = |size: usize| {
        move |asked: &Received| {
            let Scripted::Json(answer) = asked.content(json!({"type": "text", "text": ""})) else {
                unreachable!()
            };
            let body = answer.to_string();
            let text = "x".repeat(size - body.len());
            json_bytes(&body.replace("\"text\":\"\"", &format!("\"text\":\"{text}\"")))
        }
    };
    assert_eq!(reason_of(big((64 << 10) + 1)).await, "upstream_too_large");
    let endless = |content_type: &str, piece: &str| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n\r\n");
        let piece = piece.repeat(1000).into_bytes();
        move |_: &Received| Scripted::Endless(head.clone(), piece.clone())
    };
    assert_eq!(reason_of(endless("application/json", "[")).await, "upstream_too_large");
    assert_eq!(reason_of(endless("text/event-stream", "data: x\n")).await, "upstream_too_large");
    assert_eq!(reason_of(endless("text/event-stream", ": comment\n")).await, "upstream_too_large");
    let headers = |_: &Received| {
        Scripted::Endless("HTTP/1.1 200 OK\r\n".into(), "X-Header: y\r\n".repeat(100).into_bytes())
    };
    assert_eq!(reason_of(headers).await, "upstream_reset");
    let zipped = |_: &Received| {
        let headers = vec![
            ("Content-Type", "application/json".to_owned()),
            ("Content-Encoding", "gzip".to_owned()),
        ];
        Scripted::Http(200, headers, b"\x1f\x8b".to_vec())
    };
    assert_eq!(reason_of(zipped).await, "upstream_protocol_error");

    let upstream = Upstream::modern(move |asked| {
        (asked.method() == "prompts/get").then(|| big(64 << 10)(asked))
    })
    .await;
    let gateway = Gateway::start(&(upstream.table("up") + "max_message = \"64KiB\"\n")).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
}

#[tokio::test]
async fn u9_lists_without_end_fail_and_the_others_stay() {
    let pages = std::sync::atomic::AtomicUsize::new(0);
    let good = Upstream::with_prompts(&["p"]).await;
    let bad = Upstream::modern(move |asked| {
        let page = pages.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let result = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "public",
            "prompts": [], "nextCursor": page.to_string()});
        (asked.method() == "prompts/list").then(|| asked.result(result))
    })
    .await;
    let toml = good.table("good") + &bad.table("bad") + "max_pages = 10\n";
    let gateway = Gateway::start(&toml).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(list["prompts"], json!([{"name": "good__p"}]));
    let incomplete = &list["_meta"]["promptgate/incomplete"][0];
    assert_eq!(
        (&incomplete["upstream"], &incomplete["reason"]),
        (&json!("bad"), &json!("pagination_limit"))
    );
    let walked = bad.methods().iter().filter(|m| *m == "prompts/list").count();
    assert!(walked <= 10 * 5, "bounded, with a few retries: {walked}");
}

#[tokio::test]
async fn u9_an_empty_cursor_is_followed() {
    let upstream = Upstream::modern(|asked| {
        let second = asked.message["params"].get("cursor").is_some();
        let mut result = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "public",
            "prompts": [{"name": if second { "b" } else { "a" }}]});
        if !second {
            result["nextCursor"] = "".into();
        }
        (asked.method() == "prompts/list").then(|| asked.result(result))
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    assert_eq!(gateway.client().names().await.0, ["up__a", "up__b"]);
}

#[tokio::test]
async fn a_stream_that_ends_after_its_response_leaves_its_connection_to_later_calls() {
    let end = Arc::new(Notify::new());
    let late = end.clone();
    let upstream = Upstream::modern(move |asked| {
        (asked.method() == "prompts/get").then(|| {
            let Scripted::Json(answer) = good_modern(asked) else { unreachable!() };
            Scripted::LateEnd(format!("data: {answer}\n\n").into(), late.clone())
        })
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let client = gateway.client();
    let get = || client.ask("prompts/get", json!({"name": "up__p"}));
    // It is answered while the stream is open.
    get().await;
    let first = upstream.gets()[0].connection;
    end.notify_one();
    // The streams of later calls stay open: each call takes the free connection, or a new one.
    let later = async || {
        get().await;
        upstream.gets().last().map(|asked| asked.connection)
    };
    eventually(later, |connection| *connection == Some(first)).await;
}

#[tokio::test]
async fn a12_an_upstream_out_of_reach_is_never_asked_and_the_others_are() {
    let (near, other) =
        (Upstream::with_prompts(&["p"]).await, Upstream::with_prompts(&["q"]).await);
    let table = near.table("near").replace("127.0.0.1", "localhost") + "allow_private = false\n";
    let gateway = Gateway::start(&(table + &other.table("other"))).await;
    let summary = gateway.summary().await;
    assert_eq!(summary[0], ("near".into(), 0, Some("upstream_unavailable")));
    assert_eq!(gateway.client().names().await.0, ["other__q"]);
    assert_eq!(near.methods(), Vec::<String>::new());
}

#[test]
fn a12_an_address_out_of_reach_is_a_mistake_of_the_configuration() {
    for (host, allow_private, told) in [
        ("169.254.169.254", true, "link-local"),
        ("[::ffff:169.254.169.254]", true, "link-local"),
        ("10.0.0.1", false, "allow_private"),
    ] {
        let toml = format!(
            "[upstreams.up]\ntransport = \"http\"\nurl = \"http://{host}/mcp\"\n\
             allow_private = {allow_private}\n"
        );
        let error = Config::parse("g", &toml, Path::new(""), &[]).expect_err(host).to_string();
        assert!(error.contains("g:3: upstreams.up.url") && error.contains(told), "{error}");
    }
}

/// An upstream that takes calls with the header of a name and the present value only.
async fn locked(name: &'static str, value: &Arc<Mutex<String>>) -> Upstream {
    let valid = value.clone();
    Upstream::modern(move |asked| {
        let is_valid = asked.header(name) == Some(valid.lock().unwrap().as_str());
        (!is_valid).then(|| Scripted::Http(401, vec![], vec![]))
    })
    .await
}

#[tokio::test]
async fn a_secret_that_is_replaced_and_revoked_at_once_fails_no_call() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    for (header, scheme, credential) in [
        ("authorization", "Bearer ", format!("{{ bearer = {{ file = {file:?} }} }}")),
        ("x-api-key", "", format!("{{ header = \"X-Api-Key\", value = {{ file = {file:?} }} }}")),
    ] {
        let value = Arc::new(Mutex::new(format!("{scheme}first-secret")));
        std::fs::write(&file, "first-secret\n").unwrap();
        let upstream = locked(header, &value).await;
        let gateway =
            Gateway::start(&format!("{}credential = {credential}\n", upstream.table("up"))).await;
        let client = gateway.client();
        let get = async || client.modern("prompts/get", json!({"name": "up__p"})).await.json();
        assert_eq!(get().await["error"], Value::Null);

        // This gateway reads its configuration once, so that no reload helps.
        std::fs::write(&file, "second-secret\n").unwrap();
        *value.lock().unwrap() = format!("{scheme}second-secret");
        let gets = || {
            let received = upstream.received();
            received.iter().filter(|asked| asked.method() == "prompts/get").count()
        };
        let before = gets();
        assert_eq!(gateway.texts_at_once(20).await.len(), 20);
        assert!((before + 21..=before + 40).contains(&gets()), "at most one retry for each call");
        let before = gets();
        get().await;
        assert_eq!(gets(), before + 1, "the new secret is kept");

        // A secret that is refused as well is sent once for each call.
        *value.lock().unwrap() = "another".to_owned();
        let before = gets();
        for _ in 0..5 {
            assert_eq!(get().await["error"]["data"]["reason"], "upstream_auth_failed");
        }
        assert_eq!(gets(), before + 5);
    }
}

#[tokio::test]
async fn a_secret_that_was_read_again_is_removed_from_the_words_of_the_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, "first-secret").unwrap();
    let upstream = Upstream::modern(|asked| {
        let sent = asked.header("authorization").unwrap_or_default();
        match asked.method() == "prompts/get" {
            true if sent == "Bearer first-secret" => Some(Scripted::Http(401, vec![], vec![])),
            true => Some(asked.error(-32603, &format!("not for {sent}"))),
            false => None,
        }
    })
    .await;
    let credential = format!("credential = {{ bearer = {{ file = {file:?} }} }}\n");
    let gateway = Gateway::start(&(upstream.table("up") + &credential)).await;
    std::fs::write(&file, "second-secret").unwrap();
    let answer = gateway.client().modern("prompts/get", json!({"name": "up__p"})).await.json();
    assert_eq!(answer["error"]["data"]["reason"], "upstream_error", "{answer}");
    assert!(!answer.to_string().contains("second-secret"), "{answer}");
}
