//! Both eras on both sides, and the sessions of the older one.

use std::sync::Mutex;

use serde_json::{Value, json};

use crate::support::client::{modern, request};
use crate::support::upstream::{good_legacy, good_modern};
use crate::support::{Counter, Gateway, OpenStream, Scripted, Upstream, eventually};

#[tokio::test]
async fn every_legacy_upstream_is_found_however_it_refuses_discover() {
    let json_type = || vec![("Content-Type", "application/json".to_owned())];
    let text_type = || vec![("Content-Type", "text/plain".to_owned())];
    let error = |code: i64, id: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"no"}}}}"#)
            .into_bytes()
    };
    let refusals = [
        Scripted::Http(200, json_type(), error(-32601, "0")),
        Scripted::Http(404, json_type(), error(-32601, "0")),
        Scripted::Http(400, json_type(), error(-32000, "null")),
        Scripted::Http(404, text_type(), b"not found".to_vec()),
        Scripted::Http(400, json_type(), error(-32600, "0")),
        Scripted::Http(405, vec![], vec![]),
    ];
    for refusal in refusals {
        let refuse = refusal.clone();
        let upstream = Upstream::start(move |asked| match asked.method() {
            "server/discover" => refuse.clone(),
            _ => good_legacy(asked, "2025-06-18"),
        })
        .await;
        let gateway = Gateway::before(&[("up", &upstream)]).await;
        assert_eq!(gateway.client().names().await.0, ["up__p"], "{refusal:?}");
        let asked = upstream.received();
        let list = asked.iter().find(|a| a.method() == "prompts/list").unwrap();
        assert_eq!(list.header("mcp-session-id"), Some("legacy-session"));
        assert_eq!(list.header("mcp-protocol-version"), Some("2025-06-18"));
        assert_eq!(list.header("mcp-method"), None);
        assert_eq!(asked[1].message["params"]["protocolVersion"], "2025-11-25");
        assert_eq!(asked[2].method(), "notifications/initialized");
    }
}

#[tokio::test]
async fn the_older_transport_is_found_behind_a_refusal_by_status_or_in_json() {
    let json_type = || vec![("Content-Type", "application/json".to_owned())];
    let error =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Method not allowed."}}"#;
    let refusals = [
        Scripted::Http(405, vec![], b"Method Not Allowed".to_vec()),
        Scripted::Http(405, json_type(), error.as_bytes().to_vec()),
        Scripted::Http(404, json_type(), error.as_bytes().to_vec()),
        Scripted::Http(400, json_type(), error.as_bytes().to_vec()),
    ];
    for refusal in refusals {
        let refuse = refusal.clone();
        let stream = Mutex::new(None);
        let upstream = Upstream::start(move |asked| {
            let mut stream = stream.lock().unwrap();
            if asked.http_method == "GET" {
                let (opened, scripted) = OpenStream::new();
                opened.raw("event: endpoint\ndata: /messages\n\n");
                *stream = Some(opened);
                return scripted;
            }
            if asked.path != "/messages" {
                return refuse.clone();
            }
            let answer = match good_legacy(asked, "2024-11-05") {
                Scripted::Json(answer) => Some(answer),
                Scripted::Http(200, _, body) => serde_json::from_slice(&body).ok(),
                _ => None,
            };
            if let Some(answer) = answer {
                stream.as_ref().unwrap().send(&answer);
            }
            Scripted::Http(202, vec![], vec![])
        })
        .await;
        let gateway = Gateway::before(&[("up", &upstream)]).await;
        assert_eq!(gateway.client().names().await.0, ["up__p"], "{refusal:?}");
    }
}

#[tokio::test]
async fn what_says_nothing_about_the_era_is_asked_again() {
    for status in [401, 429, 503] {
        let upstream = Upstream::modern(move |asked| {
            let first = asked.connection == 0 && asked.method() == "server/discover";
            first.then(|| Scripted::Http(status, vec![("Connection", "close".into())], vec![]))
        })
        .await;
        let gateway = Gateway::before(&[("up", &upstream)]).await;
        eventually(
            async || gateway.client().modern("prompts/list", json!({})).await.json(),
            |reply| reply["result"]["prompts"] == json!([{"name": "up__p"}]),
        )
        .await;
        assert!(!upstream.methods().contains(&"initialize".to_owned()), "{status}");
    }
}

#[tokio::test]
async fn a_configured_revision_skips_the_search() {
    let legacy = Upstream::start(|asked| good_legacy(asked, "2025-03-26")).await;
    let modern = Upstream::start(good_modern).await;
    let toml = legacy.table("legacy")
        + "revision = \"2025-03-26\"\n"
        + &modern.table("modern")
        + "revision = \"2026-07-28\"\n";
    let gateway = Gateway::start(&toml).await;
    assert_eq!(gateway.client().names().await.0, ["legacy__p", "modern__p"]);
    assert_eq!(legacy.methods()[0], "initialize");
    assert_eq!(legacy.received()[0].message["params"]["protocolVersion"], "2025-03-26");
}

#[tokio::test]
async fn u15_a_lost_upstream_session_is_opened_again_and_the_get_repeated() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static SESSIONS: AtomicUsize = AtomicUsize::new(0);
    let upstream = Upstream::start(|asked| match asked.method() {
        "initialize" => {
            SESSIONS.fetch_add(1, Ordering::SeqCst);
            good_legacy(asked, "2025-11-25")
        }
        "prompts/get" if SESSIONS.load(Ordering::SeqCst) == 1 => {
            Scripted::Http(404, vec![], vec![])
        }
        _ => good_legacy(asked, "2025-11-25"),
    })
    .await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    let result = gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    assert_eq!(result["messages"][0]["role"], "user");
    assert_eq!(SESSIONS.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn u15_a_session_that_is_lost_while_the_list_fails_is_opened_again() {
    let (sessions, walks) = (Counter::new(), Counter::new());
    let (opened, walked) = (sessions.clone(), walks.clone());
    let upstream = Upstream::start(move |asked| match asked.method() {
        "initialize" => {
            opened.increment();
            good_legacy(asked, "2025-11-25")
        }
        "prompts/list" if walked.increment() > 0 && opened.get() == 1 => {
            let error = json!({"code": -32603, "message": "not now"});
            Scripted::Json(json!({"jsonrpc": "2.0", "id": asked.message["id"], "error": error}))
        }
        "prompts/get" if opened.get() == 1 => Scripted::Http(404, vec![], vec![]),
        _ => good_legacy(asked, "2025-11-25"),
    })
    .await;
    let gateway = Gateway::start(&(upstream.patient_table("up") + "poll = \"20ms\"\n")).await;
    walks.reaches(3).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    assert_eq!(sessions.get(), 2);
}

#[tokio::test]
async fn an_upstream_may_answer_as_a_stream() {
    let upstream = Upstream::start(|asked| match (good_modern(asked), asked.method()) {
        (Scripted::Json(answer), _) => {
            Scripted::Stream(format!("event: message\r\ndata: {answer}\r\n\r\n").into_bytes())
        }
        (other, _) => other,
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
}

#[tokio::test]
async fn initialize_answers_with_a_revision_that_both_know() {
    let gateway = Gateway::start("").await;
    for (asked, answered) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("2099-01-01", "2025-11-25"),
    ] {
        let params = json!({"protocolVersion": asked, "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"}});
        // Whatever the version header says, the method decides.
        let client = gateway.client().with("MCP-Protocol-Version", asked);
        let reply = client.post(&request(0, "initialize", params)).await;
        let result = &reply.json()["result"];
        assert_eq!(result["protocolVersion"], answered);
        assert_eq!(result["serverInfo"]["name"], "promptgate");
        assert!(result["capabilities"]["prompts"].is_object());
        let session = reply.header("mcp-session-id").unwrap();
        assert!(session.len() <= 512 && session.bytes().all(|b| b.is_ascii_graphic()));
    }
}

#[tokio::test]
async fn sessions_live_until_they_are_ended() {
    let gateway = Gateway::start("").await;
    let client = gateway.client().legacy("2025-06-18").await;
    let ping = request(1, "ping", json!({}));
    assert_eq!(client.post(&ping).await.json()["result"], json!({}));
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let reply = client.post(&ready).await;
    assert_eq!((reply.status, reply.body.len()), (202, 0));
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    assert_eq!(client.post(&answer).await.status, 202);
    let unknown = client.post(&request(2, "logging/setLevel", json!({"level": "info"}))).await;
    assert_eq!((unknown.status, unknown.refusal().1), (200, -32601));

    assert_eq!(client.send("DELETE", "/mcp", &[], b"").await.status, 200);
    assert_eq!(client.post(&ping).await.refusal(), (404, -32600, "session_unknown".into()));
    assert_eq!(client.send("DELETE", "/mcp", &[], b"").await.status, 404);
    assert_eq!(gateway.client().send("DELETE", "/mcp", &[], b"").await.status, 400);
    for forged in ["x", "", "A".repeat(600).as_str()] {
        let reply = gateway.client().with("Mcp-Session-Id", forged).post(&ping).await;
        assert_eq!(reply.status, 404, "{forged:?}");
    }
}

#[tokio::test]
async fn sessions_survive_a_restart_with_the_same_key() {
    let toml =
        "[server]\nseal_key = { value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }\n";
    let (before, after) = (Gateway::start(toml).await, Gateway::start(toml).await);
    let mut client = before.client().legacy("2025-06-18").await;
    client.addr = after.addr;
    assert_eq!(client.post(&request(1, "ping", json!({}))).await.status, 200);
    let other = Gateway::start("").await;
    client.addr = other.addr;
    assert_eq!(client.post(&request(1, "ping", json!({}))).await.status, 404);
}

#[tokio::test]
async fn modern_clients_discover_and_open_no_session() {
    let gateway = Gateway::start("[server]\ninstructions = \"Ask nicely\"\n").await;
    let client = gateway.client().with("Mcp-Session-Id", "ignored").with("Last-Event-ID", "7");
    let reply = client.modern("server/discover", json!({})).await;
    assert_eq!(reply.header("mcp-session-id"), None);
    let result = &reply.json()["result"];
    assert_eq!(result["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(result["instructions"], "Ask nicely");
    assert_eq!(result["resultType"], "complete");
    assert!(result["ttlMs"].is_u64() && result["cacheScope"] == "public");
    assert!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["version"].is_string());
}

#[tokio::test]
async fn w10_methods_that_are_gone_are_404_in_the_modern_era() {
    let gateway = Gateway::start("").await;
    for method in ["initialize", "ping", "logging/setLevel", "tools/List", "prompts/List", "x\u{0}"]
    {
        let (body, headers) = modern(3, method, json!({}));
        let headers: Vec<_> = headers
            .iter()
            .filter(|(_, v)| !v.contains('\0'))
            .map(|(n, v)| (*n, v.as_str()))
            .collect();
        let reply =
            gateway.client().send("POST", "/mcp", &headers, body.to_string().as_bytes()).await;
        let expected = if method.contains('\0') { 400 } else { 404 };
        assert_eq!(reply.status, expected, "{method}");
        assert_eq!(reply.json()["id"], 3);
    }
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/whatever", "params": {}});
    let client = gateway.client().with("MCP-Protocol-Version", "2026-07-28");
    assert_eq!(client.post(&notice).await.status, 202);
}

#[tokio::test]
async fn w11_get_and_delete_are_405_in_the_modern_era() {
    let gateway = Gateway::start("").await;
    let client = gateway.client().with("MCP-Protocol-Version", "2026-07-28");
    for method in ["GET", "DELETE", "PUT"] {
        let reply = client.send(method, "/mcp", &[("Mcp-Session-Id", "x")], b"").await;
        assert_eq!((reply.status, reply.header("allow").is_some()), (405, true), "{method}");
    }
}

#[tokio::test]
async fn all_revisions_get_the_same_prompt_dressed_for_them() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let get = request(1, "prompts/get", json!({"name": "up__p", "arguments": {"a": "b"}}));
    let modern = gateway.client().ask("prompts/get", get["params"].clone()).await;
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = gateway.client().legacy(revision).await;
        let result: Value = client.post(&get).await.json()["result"].clone();
        assert_eq!(result["messages"], modern["messages"]);
        assert!(result.get("resultType").is_none());
        let list = client.post(&request(2, "prompts/list", json!({}))).await.json();
        assert_eq!(list["result"], json!({"prompts": [{"name": "up__p"}]}));
    }
}

#[tokio::test]
async fn u14_the_era_is_found_again_when_it_stops_holding() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static DOWNGRADED: AtomicBool = AtomicBool::new(false);
    let upstream = Upstream::start(|asked| match DOWNGRADED.load(Ordering::SeqCst) {
        false => good_modern(asked),
        true if asked.method() == "initialize" || asked.header("mcp-session-id").is_some() => {
            good_legacy(asked, "2025-06-18")
        }
        true => Scripted::Http(400, vec![], vec![]),
    })
    .await;
    let gateway = Gateway::start(&(upstream.patient_table("up") + "poll = \"20ms\"\n")).await;
    let client = gateway.client();
    client.ask("prompts/get", json!({"name": "up__p"})).await;
    DOWNGRADED.store(true, Ordering::SeqCst);
    eventually(
        async || {
            let reply = client.modern("prompts/get", json!({"name": "up__p"})).await.json();
            (reply, upstream.methods())
        },
        |(reply, methods)| {
            methods.contains(&"initialize".to_owned()) && reply.get("result").is_some()
        },
    )
    .await;
}

#[tokio::test]
async fn w14_five_hundred_clients_with_one_id_get_their_own_answers() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    // All of them have one address, and need the whole queue.
    let toml = "[server.limits]\nshare = 1.0\n".to_owned()
        + &upstream.patient_table("up")
        + "queue = 500\nqueue_wait = \"20s\"\n";
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    for (i, text) in gateway.texts_at_once(500).await.iter().enumerate() {
        assert!(text.contains(&format!("client-{i}\"")), "{i}: {text}");
    }
}

#[tokio::test]
async fn u14_an_upstream_that_refuses_our_version_and_names_it_is_asked_once_more() {
    let upstream = Upstream::start(|asked| {
        let id = &asked.message["id"];
        if asked.method() == "server/discover" && *id == 0 {
            let data = json!({"supported": ["2026-07-28"], "requested": "2026-07-28"});
            let error = json!({"code": -32022, "message": "version", "data": data});
            let body = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
            let headers = vec![("Content-Type", "application/json".to_owned())];
            return Scripted::Http(400, headers, body.into_bytes());
        }
        good_modern(asked)
    })
    .await;
    for revision in ["auto", "2026-07-28"] {
        let toml = upstream.patient_table("up") + &format!("revision = \"{revision}\"\n");
        let gateway = Gateway::start(&toml).await;
        assert_eq!(gateway.client().names().await.0, ["up__p"], "{revision}");
    }
}

#[tokio::test]
async fn u14_a_subscription_that_is_never_acknowledged_or_ends_at_once_costs_nobody_the_list() {
    for ends_at_once in [false, true] {
        let upstream = Upstream::start(move |asked| match asked.method() {
            "server/discover" => asked.result(json!({
                "resultType": "complete", "ttlMs": 0, "cacheScope": "public",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"prompts": {"listChanged": true}},
            })),
            // Nothing is ever said on it.
            "subscriptions/listen" if ends_at_once => Scripted::Stream(Vec::new()),
            "subscriptions/listen" => crate::support::upstream::HANG,
            _ => good_modern(asked),
        })
        .await;
        let gateway = Gateway::start(&upstream.patient_table("up")).await;
        let client = gateway.client();
        assert_eq!(client.names().await.0, ["up__p"]);
        upstream.received_method("subscriptions/listen").await;
        client.ask("prompts/get", json!({"name": "up__p"})).await;
    }
}

#[tokio::test]
async fn u18_a_list_that_asks_is_no_list() {
    let upstream = Upstream::modern(|asked| {
        let (method, params) =
            crate::support::server_request_upstream::form_elicitation("Which colour?");
        (asked.method() == "prompts/list").then(|| {
            asked.result(json!({"resultType": "input_required", "requestState": "s",
                "inputRequests": {"k": {"method": method, "params": params}}}))
        })
    })
    .await;
    let gateway = Gateway::start(&upstream.table("up")).await;
    let error = gateway.client().ask_error("prompts/list", json!({})).await;
    assert_eq!(error["code"], -32603);
    let (_, _, reason) = gateway.summary().await.remove(0);
    assert_eq!(reason, Some("upstream_protocol_error"));
}
