//! Upstreams that bend the rules: what their client SDKs deliver is delivered, repaired where
//! clients need it, and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::upstream::{OpenStream, good_legacy, good_modern};
use crate::support::{Gateway, Received, Scripted, Upstream, eventually};

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// The row of the upstream `up` in the admin API.
async fn row(gateway: &Gateway) -> Value {
    let shown = gateway.admin().send("GET", "/api/v1/upstreams", &[], b"").await.json();
    shown["upstreams"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["upstream"] == "up")
        .unwrap()
        .clone()
}

async fn get(gateway: &Gateway) -> Value {
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await
}

async fn get_error(gateway: &Gateway) -> Value {
    gateway.client().ask_error("prompts/get", json!({"name": "up__p"})).await
}

fn json_bytes(body: Vec<u8>) -> Scripted {
    Scripted::Http(200, vec![("Content-Type", "application/json".to_owned())], body)
}

fn accepted() -> Scripted {
    Scripted::Http(202, vec![], vec![])
}

/// The bytes of a response whose outcome is this text.
fn response(asked: &Received, outcome: &[u8]) -> Vec<u8> {
    let head = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},", asked.message["id"]);
    [head.as_bytes(), outcome, b"}"].concat()
}

/// The bytes of an upstream instead of a good response, by the method: the outcome, or a whole
/// message with `$` for its id.
type Odd = fn(&str) -> Option<&'static [u8]>;

fn odd_message(asked: &Received, odd: Odd) -> Option<Vec<u8>> {
    let odd = odd(asked.method())?;
    if !odd.starts_with(b"$") {
        return Some(response(asked, odd));
    }
    let text = String::from_utf8(odd[1..].to_vec()).unwrap();
    Some(text.replace('$', &asked.message["id"].to_string()).into_bytes())
}

/// The response of a good upstream of this era.
fn good(asked: &Received, is_modern: bool) -> Value {
    let scripted = if is_modern { good_modern(asked) } else { good_legacy(asked, "2025-06-18") };
    match scripted {
        Scripted::Json(answer) => answer,
        Scripted::Http(_, _, body) => serde_json::from_slice(&body).unwrap_or_default(),
        _ => unreachable!(),
    }
}

/// Gateways before an upstream that is odd over each transport, with the name of each. The second
/// value keeps the upstream.
async fn odd_gateways(odd: Odd) -> Vec<(&'static str, Gateway, Option<Upstream>)> {
    let modern = Upstream::modern(move |asked| odd_message(asked, odd).map(json_bytes)).await;
    let legacy = Upstream::start(move |asked| match odd_message(asked, odd) {
        Some(message) => json_bytes(message),
        None => good_legacy(asked, "2025-06-18"),
    })
    .await;
    let streaming = Upstream::modern(move |asked| {
        let event = |message: Vec<u8>| [b"data: ", message.as_slice(), b"\n\n"].concat();
        odd_message(asked, odd).map(|message| Scripted::Stream(event(message)))
    })
    .await;
    let http_sse = http_sse(odd).await;
    let start = async |table: String| Gateway::start(&(ADMIN.to_owned() + &table)).await;
    let sse = http_sse.patient_table("up").replace("\"http\"", "\"sse\"");
    vec![
        ("modern", start(modern.patient_table("up")).await, Some(modern)),
        ("legacy", start(legacy.patient_table("up")).await, Some(legacy)),
        ("event stream", start(streaming.patient_table("up")).await, Some(streaming)),
        ("HTTP+SSE", start(sse).await, Some(http_sse)),
        ("stdio", start(child(odd)).await, None),
    ]
}

/// An HTTP+SSE upstream (2024-11-05).
async fn http_sse(odd: Odd) -> Upstream {
    let (live, stream) = OpenStream::new();
    live.raw("event: endpoint\ndata: /post\n\n");
    Upstream::start(move |asked| {
        if asked.http_method == "GET" {
            return stream.clone();
        }
        let message =
            odd_message(asked, odd).unwrap_or_else(|| good(asked, false).to_string().into_bytes());
        if asked.message.get("id").is_some() {
            // Tests with bytes that are no UTF-8 do not come here.
            live.raw(&format!("data: {}\n\n", String::from_utf8(message).unwrap()));
        }
        accepted()
    })
    .await
}

/// The table of a child process that is odd.
fn child(odd: Odd) -> String {
    chatty_child("", odd)
}

/// The table of a child process that prints `noise`, with the id for `$`, before each answer.
fn chatty_child(noise: &str, odd: Odd) -> String {
    let answer = |method: &str, good: &str| {
        let outcome = odd(method).map(|odd| String::from_utf8(odd.to_vec()).unwrap());
        let message = match outcome {
            Some(whole) if whole.starts_with('$') => whole[1..].replace('$', "'\"$id\"'"),
            outcome => {
                let outcome = outcome.unwrap_or_else(|| format!("\"result\":{good}"));
                format!(r#"{{"jsonrpc":"2.0","id":'"$id"',{outcome}}}"#)
            }
        };
        format!("*'\"{method}\"'*) printf '%s\\n' '{message}' ;;\n")
    };
    let script = [
        "while read -r line; do\nid=$(printf '%s' \"$line\" | sed 's/.*\"id\":\\([0-9]*\\).*/\\1/')\n",
        &format!("printf '%b\\n' '{}'\ncase \"$line\" in\n", noise.replace('$', "'\"$id\"'")),
        &answer("server/discover", "{}"),
        &answer("initialize", r#"{"protocolVersion":"2025-06-18","capabilities":{"prompts":{}},"serverInfo":{"name":"c","version":"1"}}"#),
        &answer("prompts/list", r#"{"prompts":[{"name":"p"}]}"#),
        &answer("prompts/get", r#"{"messages":[]}"#),
        "esac\ndone",
    ]
    .concat();
    let script = serde_json::to_string(&script).unwrap();
    format!("[upstreams.up]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {script}]\n")
}

#[tokio::test]
async fn u6_a_lone_surrogate_costs_itself_over_every_transport() {
    let odd: Odd = |method| {
        match method {
        "prompts/list" => Some(
            br#""result":{"resultType":"complete","ttlMs":60000,"cacheScope":"public","prompts":[{"name":"p","description":"x \ud83d"},{"name":"q"}]}"#,
        ),
        "prompts/get" => Some(
            br#""result":{"resultType":"complete","messages":[{"role":"user","content":{"type":"text","text":"\ude00y"}}]}"#,
        ),
        _ => None,
    }
    };
    for (transport, gateway, _upstream) in Box::pin(odd_gateways(odd)).await {
        let list = gateway.client().ask("prompts/list", json!({})).await;
        let prompts = json!([{"name": "up__p", "description": "x \u{fffd}"}, {"name": "up__q"}]);
        assert_eq!(list["prompts"], prompts, "{transport}");
        let text = &get(&gateway).await["messages"][0]["content"]["text"];
        assert_eq!(*text, "\u{fffd}y", "{transport}");
        assert!(row(&gateway).await["repairs"]["text"].as_u64() >= Some(2), "{transport}");
    }
}

#[tokio::test]
async fn u6_bytes_that_are_no_characters_are_replaced() {
    let odd = |asked: &Received| {
        let list = b"\"result\":{\"resultType\":\"complete\",\"ttlMs\":60000,\"cacheScope\":\"public\",\"prompts\":[{\"name\":\"p\",\"title\":\"caf\xe9\"}]}";
        (asked.method() == "prompts/list").then(|| json_bytes(response(asked, list)))
    };
    let upstream = Upstream::modern(odd).await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let list = gateway.client().ask("prompts/list", json!({})).await;
    assert_eq!(list["prompts"], json!([{"name": "up__p", "title": "caf\u{fffd}"}]));
}

#[tokio::test]
async fn u6_a_prompt_with_a_member_twice_is_left_out_by_its_name_over_every_transport() {
    let odd: Odd = |method| {
        (method == "prompts/list").then_some(
            br#""result":{"resultType":"complete","ttlMs":60000,"cacheScope":"public","prompts":[{"name":"p"},{"name":"twice","title":"a","title":"b"},{"name":"icon","icons":{},"title":5}]}"#,
        )
    };
    for (transport, gateway, _upstream) in Box::pin(odd_gateways(odd)).await {
        let list = gateway.client().ask("prompts/list", json!({})).await;
        assert_eq!(
            list["prompts"],
            json!([{"name": "up__icon"}, {"name": "up__p"}]),
            "{transport}"
        );
        let catalog = gateway.admin().send("GET", "/api/v1/catalog", &[], b"").await.json();
        let left_out = &catalog["leftOut"][0];
        assert_eq!((&left_out["upstream"], &left_out["name"]), (&json!("up"), &json!("twice")));
        assert!(left_out["reason"].as_str().unwrap().contains("duplicate member"), "{left_out}");
        let repairs = &row(&gateway).await["repairs"];
        let kinds = [&repairs["prompt_left_out"], &repairs["member_left_out"]];
        assert!(kinds.iter().all(|count| count.as_u64() >= Some(1)), "{transport}: {repairs}");
    }
}

#[tokio::test]
async fn u6_a_response_that_cannot_be_read_fails_its_call_at_once_over_every_transport() {
    for odd in [
        (|method| {
            (method == "prompts/get").then_some(&br#""result":{"messages":[],"messages":[]}"#[..])
        }) as Odd,
        |method| (method == "prompts/get").then_some(br#"${"id":$,"result":{"messages":["#),
    ] {
        // The timeout of a call is longer than the patience of a test.
        for (transport, gateway, _upstream) in Box::pin(odd_gateways(odd)).await {
            let error = get_error(&gateway).await;
            assert_eq!(error["data"]["reason"], "upstream_protocol_error", "{transport}: {error}");
        }
    }
}

#[tokio::test]
async fn an_error_without_an_id_is_the_answer_over_every_transport() {
    let odd: Odd = |method| {
        (method == "prompts/get").then_some(
            br#"${"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"Unknown prompt: p"}}"#,
        )
    };
    for (transport, gateway, _upstream) in Box::pin(odd_gateways(odd)).await {
        let error = get_error(&gateway).await;
        assert_eq!(error["data"]["reason"], "upstream_error", "{transport}: {error}");
        assert!(error["message"].as_str().unwrap().contains("Unknown prompt: p"), "{error}");
    }
}

#[tokio::test]
async fn u7_an_id_in_another_json_type_is_read_and_counted_over_every_transport() {
    for odd in [
        (|method| {
            (method == "prompts/get").then_some(
                &br#"${"jsonrpc":"2.0","id":"$","result":{"resultType":"complete","messages":[]}}"#
                    [..],
            )
        }) as Odd,
        |method| {
            (method == "prompts/list")
                .then_some(br#"${"jsonrpc":"2.0","id":$.0,"result":{"resultType":"complete","ttlMs":60000,"cacheScope":"public","prompts":[{"name":"p"}]}}"#)
        },
    ] {
        for (transport, gateway, _upstream) in Box::pin(odd_gateways(odd)).await {
            let messages = &get(&gateway).await["messages"];
            assert!(messages.is_array(), "{transport}: {messages}");
            let counted = &row(&gateway).await["repairs"]["id"];
            assert!(counted.as_u64() >= Some(1), "{transport}");
        }
    }
}

#[tokio::test]
async fn u7_lines_of_a_log_in_json_are_no_answers() {
    for line in [
        r#"{"level":30,"msg":"request","id":$}"#,
        r#"{"level":50,"msg":"failed","error":{"code":-32000,"message":"x"},"id":$}"#,
        r#"{"level":30,"method":"GET","id":$}"#,
        r#"{"level":50,"error":"without an id"}"#,
        r#"{\n  "id": $,\n  "result": 7\n}"#,
        r#"[\n  {"id": $, "n": 1},\n  {"id": $}\n]"#,
    ] {
        let table = chatty_child(line, |_| None);
        let gateway = Gateway::start(&(ADMIN.to_owned() + &table)).await;
        assert_eq!(get(&gateway).await["messages"], json!([]), "{line}");
    }
}

#[tokio::test]
async fn u7_an_answer_that_fits_no_request_is_named() {
    let odd: Odd = |method| {
        (method != "prompts/get").then_some(br#"${"jsonrpc":"2.0","id":"other","result":{}}"#)
    };
    for (transport, gateway, _upstream) in Box::pin(odd_gateways(odd)).await {
        let is_named = |row: &Value| row.to_string().contains("the id of the response fits no");
        let row = eventually(async || row(&gateway).await, is_named).await;
        assert_ne!(row["state"], "up", "{transport}");
    }
}

#[tokio::test]
async fn u6_an_empty_list_may_be_null_or_an_object_over_every_transport() {
    for odd in [
        (|method| {
            (method == "prompts/list").then_some(
                &br#""result":{"resultType":"complete","ttlMs":60000.0,"cacheScope":"public","prompts":null}"#[..],
            )
        }) as Odd,
        |method| {
            (method == "prompts/list").then_some(
                br#""result":{"resultType":"complete","ttlMs":60000,"cacheScope":"public","prompts":{}}"#,
            )
        },
    ] {
        for (transport, gateway, _upstream) in Box::pin(odd_gateways(odd)).await {
            let is_counted = |row: &Value| row["repairs"]["empty_list"] == 1;
            let row = eventually(async || row(&gateway).await, is_counted).await;
            assert_eq!(row["state"], "up", "{transport}: {row}");
            let list = gateway.client().ask("prompts/list", json!({})).await;
            assert_eq!(list["prompts"], json!([]), "{transport}");
        }
    }
}

#[tokio::test]
async fn u6_the_code_of_an_error_may_be_a_double_over_every_transport() {
    let odd: Odd = |method| {
        (method == "prompts/get")
            .then_some(br#""error":{"code":-32602.0,"message":"Unknown prompt: p"}"#)
    };
    for (transport, gateway, _upstream) in Box::pin(odd_gateways(odd)).await {
        let error = get_error(&gateway).await;
        assert_eq!(error["data"]["reason"], "upstream_error", "{transport}: {error}");
    }
}

#[tokio::test]
async fn u15_whatever_is_no_modern_answer_leads_to_the_legacy_handshake() {
    let broken: [fn() -> Scripted; 5] = [
        || Scripted::Http(500, vec![], vec![]),
        || Scripted::Http(501, vec![], b"<h1>Not implemented".to_vec()),
        || Scripted::Http(403, vec![], vec![]),
        || Scripted::Break(vec![]),
        || Scripted::Stall(vec![]),
    ];
    for answer in broken {
        let is_open = AtomicUsize::new(0);
        let upstream = Upstream::start(move |asked| {
            if asked.method() == "initialize" {
                is_open.store(1, Ordering::SeqCst);
            }
            match is_open.load(Ordering::SeqCst) {
                0 => answer(),
                _ => good_legacy(asked, "2025-06-18"),
            }
        })
        .await;
        let table = upstream.patient_table("up") + "probe = \"100ms\"\n";
        let gateway = Gateway::start(&(ADMIN.to_owned() + &table)).await;
        assert_eq!(gateway.client().names().await.0, ["up__p"], "{:?}", answer());
        assert_eq!(row(&gateway).await["revision"], "2025-06-18");
    }
}

#[tokio::test]
async fn u9_a_cursor_that_names_no_page_ends_the_list() {
    for (next, is_modern, is_repaired) in [
        (json!(""), false, true),
        (json!(null), false, false),
        (json!(7), false, true),
        (json!("same"), false, true),
        (json!(""), true, true),
        (json!(7), true, true),
        (json!("same"), true, true),
    ] {
        let told = next.clone();
        let upstream = Upstream::start(move |asked| {
            if asked.method() == "prompts/list" {
                return asked.result(json!({"resultType": "complete", "ttlMs": 60_000,
                    "cacheScope": "public", "prompts": [{"name": "p"}, {"name": "q"}],
                    "nextCursor": told}));
            }
            if is_modern { good_modern(asked) } else { good_legacy(asked, "2025-06-18") }
        })
        .await;
        let gateway = Gateway::start(&(ADMIN.to_owned() + &upstream.table("up"))).await;
        assert_eq!(gateway.client().names().await.0, ["up__p", "up__q"], "{next} {is_modern}");
        let repaired = row(&gateway).await["repairs"]["cursor"].as_u64();
        assert_eq!(repaired.is_some(), is_repaired, "{next} {is_modern}");
    }
}

#[tokio::test]
async fn s4_what_a_child_says_on_standard_output_is_among_its_last_words() {
    for (says, shown) in [
        ("echo 'error: unknown option'; exit 2", "error: unknown option"),
        ("printf 'usage: server [FILE]'; exit 2", "usage: server [FILE]"),
        (
            r#"echo '{\"level\":50,\"msg\":\"cannot open the database\"}'; exit 1"#,
            "cannot open the database",
        ),
    ] {
        let toml = format!(
            "{ADMIN}[upstreams.up]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", \"{says}\"]\n"
        );
        let gateway = Gateway::start(&toml).await;
        let row = eventually(async || row(&gateway).await, |row| row["state"] == "down").await;
        let message = row["error"]["message"].as_str().unwrap();
        assert!(message.contains(shown), "{message}");
        assert!(row["stderr"].to_string().contains(shown.split(' ').next().unwrap()), "{row}");
    }
}

/// How an upstream says that it does not know a session.
type Refusal = fn(&Received) -> Scripted;

const REFUSALS: [(&str, Refusal); 6] = [
    ("400", |_| {
        let body = br#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}"#;
        Scripted::Http(400, vec![("Content-Type", "application/json".to_owned())], body.to_vec())
    }),
    ("400 in words", |_| Scripted::Http(400, vec![], b"Invalid session ID".to_vec())),
    ("401", |_| Scripted::Http(401, vec![], b"session expired".to_vec())),
    ("503", |_| Scripted::Http(503, vec![], b"Unknown session".to_vec())),
    ("200", |asked| asked.error(-32001, "Session not found")),
    ("200 without an id", |_| {
        json_bytes(br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Server not initialized"}}"#.to_vec())
    }),
];

/// An upstream whose session lives until the number is raised; then it refuses so.
async fn forgetful(refusal: Refusal) -> (Upstream, Arc<AtomicUsize>) {
    let session = Arc::new(AtomicUsize::new(1));
    let current = session.clone();
    let upstream = Upstream::start(move |asked| {
        let current = format!("s{}", current.load(Ordering::SeqCst));
        let told = asked.header("mcp-session-id");
        match (good_legacy(asked, "2025-06-18"), asked.method()) {
            (Scripted::Http(200, mut headers, body), "initialize") => {
                headers[1].1 = current;
                Scripted::Http(200, headers, body)
            }
            (_, "notifications/initialized") => accepted(),
            (_, "ping") if told == Some(&current) => asked.result(json!({})),
            (_, "server/discover") => Scripted::Http(404, vec![], vec![]),
            (good, _) if told == Some(&current) => good,
            _ => refusal(asked),
        }
    })
    .await;
    (upstream, session)
}

fn count(upstream: &Upstream, method: &str) -> usize {
    upstream.methods().iter().filter(|asked| *asked == method).count()
}

#[tokio::test]
async fn a_lost_session_is_renewed_once_however_it_is_said() {
    for (how, refusal) in REFUSALS {
        let (upstream, session) = forgetful(refusal).await;
        let gateway = Gateway::start(&(ADMIN.to_owned() + &upstream.table("up"))).await;
        get(&gateway).await;
        session.fetch_add(1, Ordering::SeqCst);
        get(&gateway).await;
        assert_eq!(count(&upstream, "initialize"), 2, "{how}");
        assert_eq!(count(&upstream, "prompts/get"), 3, "{how}: repeated once");
        assert_eq!(row(&gateway).await["repairs"]["session_renewed"], 1, "{how}");
        session.fetch_add(1, Ordering::SeqCst);
        let complete = json!({"ref": {"type": "ref/prompt", "name": "up__p"},
            "argument": {"name": "a", "value": ""}});
        gateway.client().ask("completion/complete", complete).await;
        assert_eq!(count(&upstream, "initialize"), 3, "{how}");
    }
}

#[tokio::test]
async fn a_list_renews_a_lost_session() {
    let (upstream, session) = forgetful(REFUSALS[0].1).await;
    let gateway = Gateway::start(&(upstream.table("up") + "poll = \"100ms\"\n")).await;
    gateway.summary().await;
    session.fetch_add(1, Ordering::SeqCst);
    upstream.until(|asked| asked.iter().filter(|a| a.method() == "initialize").count() == 2).await;
    assert_eq!(gateway.client().names().await.0, ["up__p"]);
}

#[tokio::test]
async fn an_upstream_that_knows_no_session_at_all_is_not_asked_without_end() {
    let upstream = Upstream::start(|asked| match asked.method() {
        "prompts/get" => Scripted::Http(400, vec![], b"No valid session ID provided".to_vec()),
        _ => good_legacy(asked, "2025-06-18"),
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    get_error(&gateway).await;
    assert!(count(&upstream, "prompts/get") <= 2 && count(&upstream, "initialize") <= 2);
}

#[tokio::test]
async fn a_prompt_that_has_sessions_of_its_own_keeps_its_error() {
    let upstream = Upstream::start(|asked| match asked.method() {
        "prompts/get" => asked.error(-32000, "Session not found"),
        "ping" => asked.result(json!({})),
        _ => good_legacy(asked, "2025-06-18"),
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let error = get_error(&gateway).await;
    assert!(error["message"].as_str().unwrap().contains("Session not found"), "{error}");
    assert_eq!((count(&upstream, "prompts/get"), count(&upstream, "initialize")), (1, 1));
}

#[tokio::test]
async fn a_lost_session_of_the_older_transport_is_renewed() {
    let sessions = Arc::new(AtomicUsize::new(0));
    let known = sessions.clone();
    let streams: Vec<_> = (0..2).map(|_| OpenStream::new()).collect();
    let upstream = Upstream::start(move |asked| {
        if asked.http_method == "GET" {
            let number = known.fetch_add(1, Ordering::SeqCst);
            streams[number].0.raw(&format!("event: endpoint\ndata: /post/{number}\n\n"));
            return streams[number].1.clone();
        }
        let of: usize = asked.path.rsplit('/').next().unwrap().parse().unwrap();
        if of == 0 && asked.method() == "prompts/get" {
            return Scripted::Http(400, vec![], b"No transport found for sessionId".to_vec());
        }
        if asked.message.get("id").is_some() {
            streams[of].0.send(&good(asked, false));
        }
        accepted()
    })
    .await;
    let table = upstream.table("up").replace("\"http\"", "\"sse\"");
    let gateway = Gateway::start(&(ADMIN.to_owned() + &table)).await;
    get(&gateway).await;
    assert_eq!(sessions.load(Ordering::SeqCst), 2);
    assert_eq!(row(&gateway).await["repairs"]["session_renewed"], 1);
}

/// A legacy upstream whose gets are answered in pieces: the first on the stream of the POST, the
/// others to GETs with the id of the event before. `$` is the id of the request.
async fn in_pieces(pieces: &'static [&'static str]) -> Upstream {
    let asked_id = Arc::new(AtomicUsize::new(0));
    Upstream::start(move |asked| {
        let piece = |number: usize| {
            let id = asked_id.load(Ordering::SeqCst).to_string();
            Scripted::Stream(pieces[number].replace('$', &id).into_bytes())
        };
        match (asked.http_method.as_str(), asked.method()) {
            ("GET", _) => match asked.header("last-event-id").map(str::parse::<usize>) {
                Some(Ok(last)) if last < pieces.len() => piece(last),
                _ => Scripted::Http(405, vec![], vec![]),
            },
            (_, "prompts/get") => {
                let id = asked.message["id"].as_u64().unwrap();
                asked_id.store(id.try_into().unwrap(), Ordering::SeqCst);
                piece(0)
            }
            _ => good_legacy(asked, "2025-11-25"),
        }
    })
    .await
}

const ANSWER: &str = "id: 9\ndata: {\"jsonrpc\":\"2.0\",\"id\":$,\"result\":{\"messages\":[]}}\n\n";

#[tokio::test]
async fn u3_a_response_stream_that_ends_after_an_event_id_is_resumed() {
    let upstream =
        in_pieces(&["id: 1\nretry: 10\ndata:\n\n", "id: 2\ndata:\n\n", ": no id\n\n", ANSWER])
            .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    // Nothing new comes after the second event, and the stream is asked for again.
    let error = get_error(&gateway).await;
    assert_eq!(error["data"]["reason"], "upstream_timeout");
    let upstream = in_pieces(&["id: 1\nretry: 10\ndata:\n\n", "id: 2\ndata:\n\n", ANSWER]).await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    get(&gateway).await;
    let gets = upstream.received().into_iter().filter(|asked| asked.http_method == "GET");
    let ids: Vec<_> = gets.map(|asked| asked.header("last-event-id").unwrap().to_owned()).collect();
    assert_eq!(ids, ["1", "2"]);
    let asked = upstream.received();
    let resumed = asked.iter().rfind(|asked| asked.http_method == "GET").unwrap();
    assert_eq!(resumed.header("mcp-session-id"), Some("legacy-session"));
    assert_eq!(resumed.header("mcp-protocol-version"), Some("2025-11-25"));
}

#[tokio::test]
async fn u3_a_response_stream_that_cannot_be_resumed_is_told_at_once() {
    for pieces in [&["data:\n\n"][..], &["id: 1\nretry: 10\ndata:\n\n"]] {
        let upstream = in_pieces(pieces).await;
        let gateway = Gateway::start(&upstream.patient_table("up")).await;
        let error = get_error(&gateway).await;
        assert_eq!(error["data"]["reason"], "upstream_reset", "{pieces:?}");
    }
    let modern = Upstream::modern(|asked| {
        let stream = Scripted::Stream(b"id: 1\nretry: 10\ndata:\n\n".to_vec());
        (asked.method() == "prompts/get").then_some(stream)
    })
    .await;
    let gateway = Gateway::start(&modern.patient_table("up")).await;
    assert_eq!(get_error(&gateway).await["data"]["reason"], "upstream_reset");
    assert!(modern.received().iter().all(|asked| asked.http_method == "POST"));
}

#[tokio::test]
async fn progress_on_a_resumed_stream_reaches_the_client() {
    let progress = "id: 2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":$,\"progress\":1}}\n\n";
    let pieces = Box::leak(Box::new(["id: 1\nretry: 10\ndata:\n\n", progress, ANSWER]));
    let upstream = in_pieces(pieces).await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let params = json!({"name": "up__p", "_meta": {"progressToken": "mine"}});
    let (body, headers) = crate::support::client::modern(3, "prompts/get", params);
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let body = body.to_string();
    let mut stream = gateway.client().stream("POST", &headers, body.as_bytes()).await;
    let first = stream.event().await.unwrap().json();
    assert_eq!(first["params"]["progressToken"], "mine", "{first}");
    assert!(stream.event().await.unwrap().json()["result"]["messages"].is_array());
}

#[tokio::test]
async fn a_notification_stream_is_resumed_after_its_last_event() {
    let opened = AtomicUsize::new(0);
    let (live, last) = OpenStream::new();
    let upstream = Upstream::start(move |asked| {
        if asked.http_method == "GET" {
            return match opened.fetch_add(1, Ordering::SeqCst) {
                0 => Scripted::Stream(b"id: n1\nretry: 10\ndata:\n\n".to_vec()),
                // It has forgotten the event.
                1 => Scripted::Http(400, vec![], vec![]),
                _ => last.clone(),
            };
        }
        match (good_legacy(asked, "2025-11-25"), asked.method()) {
            (Scripted::Http(status, headers, body), "initialize") => {
                let body = String::from_utf8(body).unwrap();
                let body = body.replace("\"prompts\":{}", "\"prompts\":{\"listChanged\":true}");
                Scripted::Http(status, headers, body.into_bytes())
            }
            (good, _) => good,
        }
    })
    .await;
    let _gateway = Gateway::before(&[("up", &upstream)]).await;
    let of = |asked: &[Received]| {
        let gets = asked.iter().filter(|asked| asked.http_method == "GET");
        gets.map(|asked| asked.header("last-event-id").map(str::to_owned)).collect::<Vec<_>>()
    };
    upstream.until(|asked| of(asked).len() == 3).await;
    assert_eq!(of(&upstream.received()), [None, Some("n1".to_owned()), None]);
    drop(live);
}
